"""`usersctl snippet` for several daemons, and for a database on a server, tried with nginx, Caddy and systemd."""

import json
import re
import subprocess
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from support.commands import Command
from support.daemons import free_port, wait_for
from support.documentation import page
from support.proxies import STARTS, Proxy, needed
from support.web import Reply

from usersctl.config.sources import load
from usersctl.store.conninfo import Conninfo

CONNINFO = "host=a,b dbname=users passfile=/etc/users/pgpass"


class StandIn(ThreadingHTTPServer):
    """Answers with its port, as a daemon that is ready or not, or stands still."""

    is_ready = True
    goes_on: threading.Event | None = None

    def __init__(self, port: int) -> None:
        super().__init__(("127.0.0.1", port), _Answer)

    def handle_error(self, *_: Any) -> None:
        pass


class _Answer(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        assert isinstance(self.server, StandIn)
        if self.server.goes_on is not None:
            self.server.goes_on.wait(60)
        body = str(self.server.server_port).encode()
        self.send_response(503 if self.path == "/ready" and not self.server.is_ready else 200)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Connection", "close")  # nothing reaches it after its end
        self.end_headers()
        self.wfile.write(body)

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.do_GET()

    def log_message(self, *_: Any) -> None:
        pass


@contextmanager
def stand_in(port: int) -> Iterator[StandIn]:
    with StandIn(port) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join(10)


def _away(proxy: Proxy) -> Reply | None:
    answer = proxy.visitor().get("/login")
    return answer if answer.status == 503 else None


@pytest.mark.parametrize(
    "address", ["", "10.0.0.5", "10.0.0.5:", "[::1]", "10.0.0.5:8080/x", "a b:1", "x;y:80", "https://x:1"]
)
def test_a_daemon_without_a_port_is_no_upstream(usersctl: Command, address: str) -> None:
    refused = usersctl("snippet", "nginx", "--daemon", "10.0.0.5:8080", "--daemon", address)
    assert (refused.code, "is no address with a port" in refused.stderr) == (2, True)


@pytest.mark.parametrize("kind", ["nginx", "caddy"])
def test_a_change_that_reaches_no_daemon_takes_no_other_one_along(
    usersctl: Command, tmp_path: Path, kind: str
) -> None:
    """One daemon of two stops, and what comes next are changes, before the proxy has asked who is ready."""
    needed(kind)
    port, *ports = (free_port() for _ in range(3))
    usersctl.configure(f'baseUrl = "http://localhost:{port}"\n')
    words = [word for each in ports for word in ("--daemon", f"127.0.0.1:{each}")]
    snippet = usersctl.ok("snippet", kind, *words, "--app", "127.0.0.1:9").stdout
    with ExitStack() as stack:
        stack.enter_context(stand_in(ports[0]))
        with stand_in(ports[1]):
            proxy = stack.enter_context(STARTS[kind](tmp_path, snippet, port))
            asked = {proxy.visitor().get("/login").body.decode() for _ in range(40)}
            assert asked == {str(each) for each in ports}

        changes = [proxy.visitor().post("/api/users/session", {"email": "x"}).status for _ in range(20)]
        assert changes.count(502) <= 1
        assert set(changes) <= {200, 502}
        assert {proxy.visitor().get("/login").status for _ in range(20)} == {200}


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["nginx", "caddy"])
def test_a_proxy_leaves_out_a_daemon_that_is_away(usersctl: Command, tmp_path: Path, kind: str) -> None:
    needed(kind)
    port, *ports = (free_port() for _ in range(4))
    usersctl.configure(f'baseUrl = "http://localhost:{port}"\n')
    words = [word for each in ports for word in ("--daemon", f"127.0.0.1:{each}")]
    snippet = usersctl.ok("snippet", kind, *words, "--app", "127.0.0.1:9").stdout
    with ExitStack() as stack:
        first, second = [stack.enter_context(stand_in(each)) for each in ports[:2]]
        proxy = stack.enter_context(STARTS[kind](tmp_path, snippet, port))

        def answered(times: int) -> set[str]:
            answers = [proxy.visitor().get("/login") for _ in range(times)]
            assert {answer.status for answer in answers} == {200}
            return {answer.body.decode() for answer in answers}

        # The third is away from the beginning, and no request fails.
        both = {str(each) for each in ports[:2]}
        assert answered(40) == both
        if kind == "caddy":  # it asks each daemon whether it is ready
            first.is_ready = False
            wait_for(lambda: answered(10) == {str(ports[1])})
            first.is_ready = True
            wait_for(lambda: answered(10) == both)
            first.is_ready = second.is_ready = False
            away = wait_for(lambda: _away(proxy))
            assert (away.header("Retry-After"), away.message) == (
                "5",
                "The service is not available right now, please try again",
            )


@pytest.mark.slow
def test_nginx_asks_the_next_daemon_if_one_stands_still(usersctl: Command, tmp_path: Path) -> None:
    needed("nginx")
    port, *ports = (free_port() for _ in range(4))
    usersctl.configure(f'baseUrl = "http://localhost:{port}"\n')
    words = [word for each in ports[:2] for word in ("--daemon", f"127.0.0.1:{each}")]
    snippet = usersctl.ok("snippet", "nginx", *words, "--app", f"127.0.0.1:{ports[2]}").stdout
    with ExitStack() as stack:
        first, _, _ = [stack.enter_context(stand_in(each)) for each in ports]
        proxy = stack.enter_context(STARTS["nginx"](tmp_path, snippet, port))
        first.goes_on = threading.Event()
        stack.callback(first.goes_on.set)
        with ThreadPoolExecutor(4) as visitors:  # of which some ask the first
            began = time.monotonic()
            answers = list(visitors.map(lambda _: proxy.visitor().get("/of-the-application"), range(4)))
        assert {(answer.status, answer.body.decode()) for answer in answers} == {(200, str(ports[2]))}
        assert 7 < time.monotonic() - began < 15


def test_the_unit_of_several_daemons_is_valid_and_takes_the_port_from_its_name(
    usersctl: Command, tmp_path: Path
) -> None:
    analyze = needed("systemd-analyze")
    printed = usersctl.ok("snippet", "instances", "--json").json
    assert printed["place"] == "/etc/systemd/system/usersd@.service"
    assert printed["then"].endswith("enable --now usersd@8081 usersd@8082")
    alone = usersctl.ok("snippet", "systemd").stdout.splitlines()
    several = printed["text"].splitlines()
    differ = [line for line in several if line not in alone]
    assert len(differ) == 3
    assert differ[2].startswith("ExecStart=")
    assert differ[2].endswith(" serve --port %i")
    unit = tmp_path / "usersd@.service"
    unit.write_text(printed["text"])
    for name in (unit, tmp_path / "usersd@8081.service"):
        if name != unit:
            name.write_text(printed["text"])
        done = subprocess.run(
            [analyze, "verify", "--man=no", name], capture_output=True, text=True, timeout=60, check=False
        )
        assert (done.returncode, [line for line in done.stderr.splitlines() if "usersd@" in line]) == (0, [])


def test_the_conninfo_of_a_cluster_is_taken_as_it_is_printed(usersctl: Command, tmp_path: Path) -> None:
    printed = usersctl.ok("snippet", "postgres").stdout
    assert printed.count("# <--") == 2
    file = tmp_path / "printed.toml"
    example = re.sub(
        r"^# (\[(auth|mailer|server)\])$", r"\1", page("daemon/users.example.toml"), flags=re.MULTILINE
    )
    assert "\n[auth]\n" in example
    # At the beginning of a file that has tables already, as the comment says.
    for present in ("", example, '[server]\nport = 8081\n[auth]\nwhitelist = ["/"]\n'):
        file.write_text(f"{printed}\n{present}")
        settings = load(config=file, env={"HOME": "/h"}).settings
        assert isinstance(settings.database, Conninfo)
    words = dict(word.split("=") for word in settings.database.split())
    assert words == {
        "host": "db1,db2,db3",
        "dbname": "users",
        "user": "users",
        "passfile": "/etc/users/pgpass",
        "target_session_attrs": "read-write",
        "tcp_user_timeout": "3000",
    }
    psycopg = pytest.importorskip("psycopg")
    assert psycopg.conninfo.conninfo_to_dict(settings.database) == words
    (line,) = re.findall(r'^# (secretKey = "") # <--', printed, re.MULTILINE)
    for key, code in (("", 6), ("k" * 44, 0)):
        file.write_text(f"{printed}\n[auth]\n" + line.replace('""', f'"{key}"'))
        done = usersctl("config", "check", "--config", str(file), env={"USERS_DATABASE": ""})
        assert (done.code, "auth.secretKey" in done.stderr) == (code, code == 6), done


@pytest.mark.slow
def test_units_and_scripts_reach_a_database_on_a_server(usersctl: Command) -> None:
    for env in ({"USERS_DATABASE": CONNINFO}, {"USERS_DATABASE": ""}):
        usersctl.configure(f'database = "{CONNINFO}"\n' if not env["USERS_DATABASE"] else "")
        for name in ("cleanup", "backup"):
            done = usersctl.ok("snippet", name, env=env)
            assert "PrivateNetwork=no\n" in done.stdout
            assert "RestrictAddressFamilies=AF_INET AF_INET6 AF_UNIX\n" in done.stdout
            assert "passfile" not in done.stdout
            told = "It names no database, which comes from USERS_DATABASE: set it there"
            assert (told in done.stderr) == bool(env["USERS_DATABASE"])
        assert "names no database" not in usersctl.ok("snippet", "caddy", env=env).stderr
        unit = usersctl.ok("snippet", "systemd", env=env | {"STATE_DIRECTORY": "/var/lib/users"}).stdout
        assert "StateDirectory=users\n" in unit
        assert "--db" not in unit
    assert (
        "--no-cache-dir '.[postgres]'\n"
        in usersctl.ok("snippet", "dockerfile", env={"USERS_DATABASE": CONNINFO}).stdout
    )
    usersctl.configure("")
    in_a_file = usersctl.ok("snippet", "cleanup", env={"USERS_DATABASE": "/srv/users.db"})
    assert "PrivateNetwork=yes\n" in in_a_file.stdout


@pytest.mark.parametrize("address", ["", "a b", "a/b", "http://a:1", "a:x", "unix:/run/x"])
def test_an_address_of_a_daemon_that_is_none_is_refused(usersctl: Command, address: str) -> None:
    refused = usersctl("snippet", "nginx", "--daemon", address)
    assert (refused.code, refused.stdout) == (2, "")
    assert "such as 10.0.0.5:8080" in refused.stderr


def test_only_nginx_and_caddy_have_several_daemons(usersctl: Command) -> None:
    for name in ("traefik", "systemd", "compose"):
        refused = usersctl("snippet", name, "--daemon", "10.0.0.5:8080", "--json")
        assert refused.code == 2
        assert json.loads(refused.stderr)["error"]["message"] == "--daemon is for nginx and caddy only"
    one = usersctl.ok("snippet", "nginx", "--daemon", "10.0.0.5:8080").stdout
    assert "upstream usersd {\n    server 10.0.0.5:8080;\n    keepalive 16;\n}" in one
