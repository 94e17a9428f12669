"""The first start of the real daemon: without configuration, the first admin, and errors that stop it."""

import contextlib
import fcntl
import json
import os
import pty
import re
import select
import signal
import socket
import sqlite3
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from support.commands import PASSWORD, Command, Result
from support.daemons import TIME_LIMIT, free_port, serving, wait_for
from support.fakes import FakeClock
from support.web import Client, Site

from usersctl.clock import moment
from usersctl.config import load
from usersd.development import Trial, for_development
from usersd.routes import FOR_DEVELOPMENT, TABLE
from usersd.start import admin_command, show_link

USERSD = str(Path(sys.executable).with_name("usersd"))
MAKE_ONE = "usersctl create EMAIL --admin"
LINK = re.compile(r"http://127\.0\.0\.1:[0-9]+/setup\?token=([A-Za-z0-9_-]{43})")


def start(usersctl: Command, *words: str, env: dict[str, str] | None = None) -> Result:
    """A start that fails."""
    return usersctl("serve", *words, env=env)


@pytest.fixture
def bare(usersctl: Command) -> Command:
    """A command without any configuration."""
    usersctl.config.unlink()
    del usersctl.env["USERS_CONFIG"]
    return usersctl


# --- with nothing ---


def test_without_configuration_it_serves_on_loopback_with_a_database_of_its_own(bare: Command) -> None:
    bare.env.pop("USERS_DATABASE")
    bare.env["STATE_DIRECTORY"] = str(bare.folder / "state")
    with serving(bare) as daemon:
        (listening,) = daemon.events("listening")
        assert listening["url"] == f"http://127.0.0.1:{daemon.port}"
        assert listening["base_url"] == listening["url"]
        assert listening["database"] == str(bare.folder / "state" / "users.db")
        assert daemon.client().get("/login").status == 200
        assert (bare.folder / "state" / "users.db").stat().st_mode & 0o777 == 0o600
        assert (bare.folder / "state").stat().st_mode & 0o777 == 0o700
        assert daemon.stop() == 0
    assert daemon.log[-1]["event"] == "stopped"


def test_the_default_address_is_port_8080_of_this_machine(usersctl: Command) -> None:
    shown = usersctl.ok("config", "show").stdout.splitlines()
    assert "server.host = 127.0.0.1" in [line.replace('"', "") for line in shown]
    assert "server.port = 8080" in shown
    with contextlib.ExitStack() as stack:
        taken = stack.enter_context(socket.socket())
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            taken.bind(("127.0.0.1", 8080))
            taken.listen()
        except OSError:
            pass  # a server is there already, which proves as much
        refused = start(usersctl)
    assert refused.code == 6
    assert "127.0.0.1:8080 is already in use" in refused.stderr


@pytest.mark.parametrize("module", [("usersctl", "serve"), ("usersd",)])
@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_every_way_to_start_the_daemon_is_the_same_and_a_signal_ends_it_with_0(
    usersctl: Command, module: tuple[str, ...], signum: int
) -> None:
    with serving(usersctl, module=module) as daemon:
        assert daemon.client().get("/api/users/me").status == 401
        began = time.monotonic()
        assert daemon.stop(signum) == 0
        assert time.monotonic() - began < 6


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_ends_with_0_also_a_daemon_that_waits_for_the_server_of_its_database(
    usersctl: Command, signum: int
) -> None:
    pytest.importorskip("psycopg")
    usersctl.env["USERS_DATABASE"] = f"host=127.0.0.1 port={free_port()} dbname=users"
    with usersctl.start(
        "serve", "--port", str(free_port()), measured=False, stderr=subprocess.PIPE
    ) as daemon:
        assert daemon.stderr is not None
        assert json.loads(daemon.stderr.readline())["event"] == "waiting"
        daemon.send_signal(signum)
        assert (daemon.wait(TIME_LIMIT), daemon.stderr.read()) == (0, b"")


def test_usersd_is_a_command_too(usersctl: Command) -> None:
    for words in (["--help"], ["--version"]):
        by_name, by_module, by_command = (
            subprocess.run(
                [*start, *words], env=usersctl.env, capture_output=True, timeout=TIME_LIMIT, check=True
            ).stdout
            for start in (
                [USERSD],
                [sys.executable, "-m", "usersd"],
                [sys.executable, "-m", "usersctl", "serve"],
            )
        )
        assert by_name == by_module == by_command


# --- the first admin ---


def test_the_command_is_for_the_configuration_and_the_database_that_the_daemon_was_given(
    tmp_path: Path,
) -> None:
    file, database = tmp_path / "users.toml", tmp_path / "x y.db"
    file.touch()
    flags = {"database": str(database)}
    assert admin_command(load(env={"HOME": "/nowhere"})) == MAKE_ONE
    assert admin_command(load(config=file, env={"HOME": "/nowhere"})) == f"{MAKE_ONE} --config {file}"
    assert (
        admin_command(load(config=file, flags=flags, env={}))
        == f"{MAKE_ONE} --config {file} --db '{database}'"
    )
    assert (
        admin_command(load(env={"HOME": "/nowhere", "USERS_DATABASE": "/srv/users.db"}))
        == f"{MAKE_ONE} --db /srv/users.db"
    )
    server = {"HOME": "/nowhere", "USERS_DATABASE": "postgresql://users:secret@db.example.com/users"}
    assert admin_command(load(env=server)) == MAKE_ONE


def test_while_there_is_no_admin_the_log_and_the_login_say_how_to_make_one(usersctl: Command) -> None:
    with serving(usersctl) as daemon:
        (line,) = daemon.events("no-admin")
        page = daemon.client().get("/login").body.decode()
        (command,) = re.findall("<code>(usersctl create .*)</code>", page)
        assert line["message"] == f"There is no admin yet. Make one with: {command}"
        assert command.startswith(MAKE_ONE)
        usersctl.ok("create", "ada@example.com", "--admin", "--password-stdin", stdin=PASSWORD)
        assert MAKE_ONE.encode() not in daemon.client().get("/login").body
        assert b"setup?token" not in daemon.file.read_bytes()
        usersctl.ok("create", "bea@example.com", "--admin", "--inactive", "--password-stdin", stdin=PASSWORD)
    with serving(usersctl) as daemon:
        assert daemon.events("no-admin") == []


def test_the_log_names_variables_of_the_environment_that_set_nothing(usersctl: Command) -> None:
    with serving(usersctl, env={"USERS_SERVER_PORT": "8080"}) as daemon:
        (warning,) = daemon.events("unread-variables")
        assert warning["message"] == "environment variables that set nothing: USERS_SERVER_PORT"


def test_with_an_admin_the_log_warns_of_a_base_url_that_was_never_set(usersctl: Command) -> None:
    usersctl.add("root", role="admin")
    with serving(usersctl) as daemon:
        (warning,) = daemon.events("default-address")
        assert str(warning["message"]).startswith("baseUrl is not set")
        assert "its processes run tasks without a session" in str(warning["message"])
    usersctl.configure('baseUrl = "http://127.0.0.1:8080"\n')
    with serving(usersctl) as daemon:
        assert daemon.events("default-address") == []


def test_only_an_active_admin_counts_as_an_admin(usersctl: Command) -> None:
    usersctl.add("ada")
    usersctl.add("bea", role="admin", active=False)
    with serving(usersctl) as daemon:
        assert len(daemon.events("no-admin")) == 1
        assert daemon.events("default-address") == []


@dataclass
class OnTerminal:
    process: subprocess.Popen[bytes]
    master: int
    raw: str = ""

    @property
    def shown(self) -> str:
        return re.sub(r"\x1b\[[0-9;]*m", "", self.raw)

    def wait_for(self, pattern: re.Pattern[str]) -> re.Match[str]:
        until = time.monotonic() + TIME_LIMIT
        while not (match := pattern.search(self.shown)):
            assert select.select([self.master], [], [], max(0, until - time.monotonic()))[0], self.shown
            self.raw += os.read(self.master, 65536).decode()
        return match


@contextlib.contextmanager
def on_terminal(usersctl: Command, *words: str) -> Iterator[OnTerminal]:
    master, terminal = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 50, 200, 0, 0))
    process = usersctl.start(
        "serve", *words, stdin=terminal, stdout=terminal, stderr=terminal, start_new_session=True
    )
    os.close(terminal)
    try:
        yield OnTerminal(process, master)
    finally:
        process.terminate()
        try:
            process.wait(8)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(8)
        os.close(master)


FIRST = {"email": "ada@example.com", "name": "Ada", "password": PASSWORD}


def test_the_lines_around_the_link_are_no_wider_than_the_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for columns, width in (("40", 40), ("250", 66)):
        monkeypatch.setenv("COLUMNS", columns)
        show_link("http://127.0.0.1:8080/setup?token=x")
        assert [len(line) for line in capsys.readouterr().out.splitlines() if "─" in line] == [width, width]


@pytest.mark.slow
def test_on_a_terminal_a_link_makes_the_first_admin_once(usersctl: Command) -> None:
    port = free_port()
    with on_terminal(usersctl, "--port", str(port)) as screen:
        screen.wait_for(re.compile(r"\blistening\b.*\n"))
        link = screen.wait_for(LINK)
        assert link[0].startswith(f"http://127.0.0.1:{port}/setup?token=")
        assert re.search(
            r"─{20,}\r\n.*Create the first admin here.*\r\n\r\n  \S+\r\n.*─{20,}\r\n\r\n", screen.shown
        )
        assert "\x1b[32mlistening\x1b[0m" in screen.raw
        # Text, one line for each event, and not JSON.
        assert re.search(
            r"^[0-9T:.-]{23}Z no-admin message=\"There is no admin yet", screen.shown, re.MULTILINE
        )
        assert "{" not in screen.shown
        client = Client(port)
        page = client.get(link[0].partition(str(port))[2])
        assert (page.status, b"/api/users/setup" in page.body) == (200, True)
        with usersctl.service() as service:
            assert service.first_admin.needed()
        wrong = client.post("/api/users/setup", FIRST | {"token": "A" * 43})
        assert (wrong.status, wrong.message) == (400, "Invalid or expired link")
        made = client.post("/api/users/setup", FIRST | {"token": link[1]})
        assert (made.status, made.json["user"]["role"], made.json["user"]["active"]) == (200, "admin", True)
        again = client.post("/api/users/setup", FIRST | {"token": link[1], "email": "bea@example.com"})
        assert (again.status, again.message) == (400, "Invalid or expired link")
        assert client.login("ada@example.com", PASSWORD).status == 200
        assert client.get("/api/users").json["pagination"]["total"] == 1
        assert MAKE_ONE.encode() not in client.get("/login").body
    with on_terminal(usersctl, "--port", str(port)) as screen:
        screen.wait_for(re.compile(r"\blistening\b.*\n"))
        assert "setup" not in screen.shown


# --- the link, in a clock that can be moved ---


def setup_token(site: Site) -> str:
    match = re.search(r"token=([A-Za-z0-9_-]{43})$", site.service.first_admin.link())
    assert match is not None
    return match[1]


@pytest.mark.parametrize(
    ("after", "status"),
    [(timedelta(minutes=29, seconds=59), 200), (timedelta(minutes=30), 400), (timedelta(days=1), 400)],
)
def test_the_link_works_for_thirty_minutes(
    site: Site, clock: FakeClock, after: timedelta, status: int
) -> None:
    token = setup_token(site)
    clock.now += after
    assert site.client().post("/api/users/setup", FIRST | {"token": token}).status == status


def test_a_newer_link_replaces_an_older_one(site: Site) -> None:
    old, new = setup_token(site), setup_token(site)
    assert site.client().post("/api/users/setup", FIRST | {"token": old}).status == 400
    assert site.client().post("/api/users/setup", FIRST | {"token": new}).status == 200


def test_a_link_is_worth_nothing_once_there_is_an_admin(site: Site) -> None:
    token = setup_token(site)
    site.add("root", role="admin")
    reply = site.client().post("/api/users/setup", FIRST | {"token": token})
    assert (reply.status, reply.message) == (400, "Invalid or expired link")


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"token": ""}, "Token, email, name and password are required"),
        ({"name": None}, "Token, email, name and password are required"),
        ({"token": 1}, "token must be a string"),
        ({"email": "x"}, "Invalid email format"),
        ({"password": "1234567"}, "Password must have at least 8 characters"),
    ],
)
def test_a_mistake_in_the_form_does_not_consume_the_set_up_link(
    site: Site, changed: dict[str, Any], message: str
) -> None:
    token = setup_token(site)
    reply = site.client().post("/api/users/setup", FIRST | {"token": token} | changed)
    assert (reply.status, reply.message) == (400, message)
    assert site.client().post("/api/users/setup", FIRST | {"token": token}).status == 200


def test_without_a_link_nobody_has_a_password_looked_at(make_site: Callable[..., Site]) -> None:
    """To estimate the strength of some takes as long as three logins, and this is asked without a limit."""
    site = make_site(min_strength=4)
    weak = FIRST | {"password": "lovelace1815"}

    without = site.client().post("/api/users/setup", weak | {"token": "A" * 43})
    with_link = site.client().post("/api/users/setup", weak | {"token": setup_token(site)})

    assert (without.status, without.message) == (400, "Invalid or expired link")
    assert (with_link.status, with_link.message[:8]) == (400, "Password")


# --- unattended ---


def from_file(usersctl: Command, password: str = PASSWORD) -> dict[str, str]:
    file = usersctl.folder / "password"
    file.write_text(password + "\n")
    return {"USERS_ADMIN_EMAIL": "Root@Example.com", "USERS_ADMIN_PASSWORD_FILE": str(file)}


def test_the_environment_makes_the_first_admin_if_it_is_missing(usersctl: Command) -> None:
    env = from_file(usersctl)
    with serving(usersctl, env=env) as daemon:
        assert [line["email"] for line in daemon.events("first-admin")] == ["root@example.com"]
        assert daemon.events("no-admin") == []
        reply = daemon.client().login("root@example.com", PASSWORD)
        assert (reply.status, reply.json["user"]["role"]) == (200, "admin")
        assert PASSWORD not in daemon.file.read_text()
    usersctl.ok("set-password", "root@example.com", "--password-stdin", stdin="another horse battery")
    with serving(usersctl, env=env) as daemon:
        assert daemon.events("first-admin") == []
        assert daemon.client().login("root@example.com", PASSWORD).status == 401, "it stays as it was changed"
        assert moment(usersctl.ok("--json", "show", "root@example.com").json["created_at"])


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"USERS_ADMIN_PASSWORD_FILE": ""}, "go together"),
        ({"USERS_ADMIN_EMAIL": ""}, "go together"),
        ({"USERS_ADMIN_EMAIL": "no address"}, "USERS_ADMIN_EMAIL = 'no address': Invalid email format"),
        ({"USERS_ADMIN_PASSWORD_FILE": "/nowhere/at/all"}, "cannot be read"),
        ("short", "Password must have at least 8 characters"),
    ],
)
def test_invalid_environment_variables_of_the_first_admin_stop_the_start(
    usersctl: Command, changes: dict[str, str] | str, words: str
) -> None:
    env = from_file(usersctl, changes) if isinstance(changes, str) else from_file(usersctl) | changes
    refused = start(usersctl, "--port", str(free_port()), env=env)
    assert (refused.code, len(refused.stderr.splitlines())) == (6, 1), refused
    assert words in refused.stderr


# --- --dev ---


def test_dev_opens_registration_on_this_machine(usersctl: Command) -> None:
    with serving(usersctl, "--dev") as daemon:
        assert daemon.client().get("/register").status == 200
    with serving(usersctl) as daemon:
        assert daemon.client().get("/register").status == 302


@pytest.mark.parametrize(
    "words",
    [
        ["--host", "0.0.0.0"],  # noqa: S104 - what must be refused
        ["--host", "192.0.2.1"],
        ["--host", "::"],
        ["--base-url", "https://users.example.com"],
        ["--base-url", "http://192.0.2.1:8080"],
    ],
)
def test_dev_on_another_host_is_refused_before_anything_is_opened(
    usersctl: Command, words: list[str]
) -> None:
    refused = start(usersctl, "--dev", *words)
    assert (refused.code, "--dev serves this machine only" in refused.stderr) == (2, True), refused
    assert re.search(f"use {words[0]} [^,]+, or leave --dev out\\n", refused.stderr)
    assert usersctl.is_unused


def test_dev_with_the_configuration_of_a_public_service_names_the_options_that_it_needs(
    usersctl: Command,
) -> None:
    usersctl.configure('baseUrl = "https://users.example.com"\nserver.host = "192.0.2.1"\n')
    refused = start(usersctl, "--dev")
    source = usersctl.config
    assert refused.code == 2
    assert refused.stderr == (
        "usersctl: --dev serves this machine only, not 192.0.2.1 as https://users.example.com"
        f" (server.host: {source}, baseUrl: {source})\n"
        "  use --host 127.0.0.1 --base-url http://localhost:8080, or leave --dev out\n"
    )
    options = ["--host", "127.0.0.1", "--base-url", "http://localhost:8080"]
    with serving(usersctl, "--dev", *options) as daemon:
        assert daemon.client().get("/register").status == 200


def test_a_trial_names_its_database_to_other_commands_and_is_one_process() -> None:
    configured = load(env={"HOME": "/nowhere"}, flags={"server.processes": 2})
    trial, *_ = for_development(configured, Trial())
    assert admin_command(trial) == f"{MAKE_ONE} --db {trial.settings.database}"
    assert (configured.settings.processes, trial.settings.processes) == (2, 1)


def test_a_trial_keeps_the_configured_provider() -> None:
    keys = {"clientId": "id", "clientSecret": "secret", "issuer": "https://id.example.com"}
    flags = {f"auth.oauth.{key}": value for key, value in keys.items()}
    trial, table, _ = for_development(load(env={"HOME": "/nowhere"}, flags=flags), Trial())
    assert trial.settings.oauth_issuer == "https://id.example.com"
    assert table == TABLE + FOR_DEVELOPMENT


@pytest.mark.parametrize("base_url", ["http://[::1]:8080", "http://[::1]", "http://localhost"])
def test_dev_knows_this_machine_by_its_other_names(usersctl: Command, base_url: str) -> None:
    with serving(usersctl, "--dev", "--base-url", base_url) as daemon:
        assert daemon.events("listening")[0]["base_url"] == base_url


@pytest.mark.sqlite  # an older file
def test_losses_of_a_migration_are_logged(bare: Command) -> None:
    with contextlib.closing(sqlite3.connect(bare.database)) as old, old:
        old.execute("CREATE TABLE users (id INTEGER, email TEXT, password TEXT, role TEXT, phone TEXT)")
        old.execute("INSERT INTO users VALUES (1, 'ada@example.com', 'x', 'moderator', '1')")
    with serving(bare) as daemon:
        done, *notes = daemon.events("migrated")
    assert done["accounts"] == 1
    assert [word for word in ("phone", "moderator") if word not in str(notes)] == []


# --- what stops it ---


def test_the_error_for_a_taken_port_is_one_line(usersctl: Command) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        refused = start(usersctl, "--port", str(port))
    assert refused.code == 6
    assert f"127.0.0.1:{port} is already in use" in refused.stderr
    assert "--port" in refused.stderr
    assert len(refused.stderr.splitlines()) <= 2
    assert usersctl.is_unused


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[server]\nprot = 80\n", ["users.toml: unknown key server.prot", "did you mean server.port?"]),
        ('[server]\nport = "80"\n', ['server.port = "80": must be a whole number from 1 to 65535']),
        ("[server\n", ["users.toml: not valid TOML"]),
        ('tokenCleanupSchedule = "61 * * * *"\n', ["tokenCleanupSchedule = ", "must be five cron fields"]),
        ('baseUrl = "users.example.com"\n', ["baseUrl = ", "must be an origin such as"]),
    ],
)
def test_the_error_for_an_invalid_configuration_is_one_line(
    usersctl: Command, text: str, words: list[str]
) -> None:
    usersctl.configure(text)
    refused = start(usersctl)
    assert refused.code == 6
    assert [part for part in words if part not in refused.stderr] == []
    assert len(refused.stderr.splitlines()) == 1
    assert usersctl.is_unused


@pytest.mark.parametrize("flag", [("--port", "99999"), ("--port", "0"), ("--base-url", "example.com")])
def test_an_invalid_flag_is_misuse(usersctl: Command, flag: tuple[str, str]) -> None:
    refused = start(usersctl, *flag)
    assert (refused.code, len(refused.stderr.splitlines())) == (2, 1), refused
    assert flag[1] in refused.stderr
    assert usersctl.is_unused


def test_a_configuration_that_is_missing_is_named(usersctl: Command) -> None:
    refused = start(usersctl, "--config", "/nowhere/users.toml")
    assert (refused.code, "/nowhere/users.toml: no such configuration file" in refused.stderr) == (6, True)


@pytest.mark.parametrize(("where", "lines"), [("file/users.db", 1), ("folder", 2)])
def test_the_error_for_an_unusable_database_path_is_one_line_with_a_hint(
    usersctl: Command, where: str, lines: int
) -> None:
    (usersctl.folder / "file").write_text("")
    (usersctl.folder / "folder").mkdir()
    path = usersctl.folder / where
    refused = start(usersctl, "--port", str(free_port()), env={"USERS_DATABASE": str(path)})
    assert refused.code == 6
    assert str(path) in refused.stderr.splitlines()[0]
    assert len(refused.stderr.splitlines()) == lines


@pytest.mark.sqlite  # other files
def test_a_file_that_is_not_a_database_is_not_touched(usersctl: Command) -> None:
    usersctl.database.write_bytes(b"a letter to my mother\n" * 100)
    refused = start(usersctl, "--port", str(free_port()))
    assert (refused.code, "is not a database" in refused.stderr) == (6, True)
    assert usersctl.database.read_bytes().startswith(b"a letter to my mother")


def test_a_missing_database_folder_is_created_private(usersctl: Command) -> None:
    database = usersctl.folder / "a" / "b" / "users.db"
    with serving(usersctl, env={"USERS_DATABASE": str(database)}) as daemon:
        assert daemon.client().get("/login").status == 200
    assert database.parent.stat().st_mode & 0o777 == 0o700


# --- several processes ---


def test_several_processes_serve_one_socket_and_end_together(usersctl: Command) -> None:
    usersctl.configure("[server]\nprocesses = 2\n[passwordHashing]\nrounds = 10\n")
    usersctl.add("ada")
    with serving(usersctl) as daemon:
        client = daemon.client()
        assert client.login("ada@example.com", PASSWORD).status == 200
        assert {client.get("/api/users/me").status for _ in range(40)} == {200}
        assert client.delete("/api/users/session").status == 200
        assert {daemon.client().get("/api/users/me").status for _ in range(10)} == {401}
        assert daemon.stop() == 0
    wait_for(lambda: daemon.events("stopped"))
    assert len(daemon.events("listening")) == 1
