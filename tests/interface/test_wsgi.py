"""`usersd.wsgi:application` with other servers than the daemon's own, and several processes of them on one database."""

import io
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from ast import literal_eval
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path

import pytest
from support.commands import OPERATOR, PASSWORD, Command
from support.daemons import Daemon, free_port, wait_for
from support.servers import importable, installed
from support.web import Client, Reply

from usersctl.errors import StoreUnusable
from usersd import embedded
from usersd.embedded import Embedded
from usersd.log import Log

NOT_BELIEVED = (
    "Forward authentication does not know the path: "
    "set server.proxyDropsUnderscores if the proxy removes headers with an underscore in their name"
)
GUNICORN = ("gunicorn", "--no-control-socket", "--bind=127.0.0.1:{port}", "--workers=2")
UWSGI = (
    "uwsgi",
    "--http-socket=127.0.0.1:{port}",
    "--master",
    "--processes=2",
    "--enable-threads",
    "--need-app",
)
SITE_OF_TESTS = "site_of_tests:application"
SERVERS = {
    # The hardest case: the process that forks the others imports the application.
    "gunicorn": [*GUNICORN, "--preload", SITE_OF_TESTS],
    "granian": [
        *("granian", "--interface=wsgi", "--workers=2", "--blocking-threads=4", "--respawn-failed-workers"),
        *("--host=127.0.0.1", "--port={port}", SITE_OF_TESTS),
    ],
}
ALL_SERVERS = SERVERS | {
    "gunicorn-gthread": [*GUNICORN, "--worker-class=gthread", "--threads=4", SITE_OF_TESTS],
    "gunicorn-gevent": [*GUNICORN, "--worker-class=gevent", SITE_OF_TESTS],
    "uwsgi": [*UWSGI, "--die-on-term", f"--module={SITE_OF_TESTS}"],
    "uwsgi-lazy": [*UWSGI, "--die-on-term", "--lazy-apps", f"--module={SITE_OF_TESTS}"],
    "cheroot": ["cheroot", "--bind=127.0.0.1:{port}", SITE_OF_TESTS],
    "uvicorn": ["uvicorn", "--host=127.0.0.1", "--port={port}", "site_of_tests:asgi_application"],
    "hypercorn": ["hypercorn", "--bind=127.0.0.1:{port}", f"wsgi:{SITE_OF_TESTS}"],
}
ONE_PROCESS = ("cheroot", "uvicorn", "hypercorn")
WITHOUT_CHUNKS = ("uwsgi", "uwsgi-lazy", "uvicorn", "hypercorn")
# The application with the answering process in a header, and a clock that jumps a minute ahead on a signal of the test.
# A request to /slow lasts until then.
SITE = """
import os, pathlib, time
from datetime import timedelta
from usersctl import clock

real = clock.utc_now
clock.utc_now = lambda: real() + timedelta(minutes=pathlib.Path("jump").exists())
from usersd import wsgi
from usersd.background import scheduler

scheduler.LONGEST_SLEEP = 0.1

def application(environ, start_response):
    def start(status, headers, *rest):
        return start_response(status, [*headers, ("X-Process", str(os.getpid()))], *rest)

    if environ["PATH_INFO"] == "/slow":
        pathlib.Path("slow-began").touch()
        while not pathlib.Path("slow-may-end").exists():
            time.sleep(0.02)
    return wsgi.application(environ, start)

try:
    from a2wsgi import WSGIMiddleware
except ImportError:
    pass
else:
    asgi_application = WSGIMiddleware(application)
"""


@contextmanager
def served_by(usersctl: Command, server: str) -> Iterator[Daemon]:
    (usersctl.folder / "site_of_tests.py").write_text(SITE)
    port = free_port()
    file = usersctl.folder / f"{server}.log"
    program, *words = (word.format(port=port) for word in ALL_SERVERS[server])
    if server == "gunicorn-gevent":
        importable("gevent")
    if server == "uvicorn":  # which the extra `browser` brings, too
        importable("a2wsgi")
    path, count = installed(program), 1 if server in ONE_PROCESS else 2
    with file.open("wb") as log:
        process = subprocess.Popen(
            [path, *words],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=usersctl.env | {"PYTHONPATH": str(usersctl.folder)},
            cwd=usersctl.folder,
            start_new_session=True,
        )
    daemon = OfAnother(process, port, file)
    try:
        wait_for(lambda: process.poll() is not None or len(daemon.events("serving")) == count)
        assert process.poll() is None, file.read_text()
        yield daemon
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(15)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)  # with its workers, which would live on
                process.wait(8)


class OfAnother(Daemon):
    """The daemon's log lines stand among those of the server."""

    @property
    def log(self) -> list[dict[str, object]]:
        return [json.loads(line) for line in self.file.read_text().splitlines() if line.startswith('{"at"')]


def from_each(ask: Callable[[], Reply], processes: set[str]) -> dict[str, Reply]:
    """An answer of each process."""
    answers: dict[str, Reply] = {}
    with ThreadPoolExecutor(4) as pool:
        for _ in range(200):
            for reply in pool.map(lambda _: ask(), range(8)):
                answers.setdefault(str(reply.header("X-Process")), reply)
            if set(answers) >= processes:
                return answers
    raise AssertionError(f"only {set(answers)} answered, of {processes}")


@pytest.mark.parametrize("server", SERVERS)
def test_two_processes_of_another_server_share_the_background_work(usersctl: Command, server: str) -> None:
    usersctl.configure(
        'tokenCleanupSchedule = "* * * * *"\n[passwordHashing]\nrounds = 10\n'
        '[server]\ntrustedProxies = ["127.0.0.1"]\n'
    )
    names = ("ada", "grace", "alan", "bob")
    ada, *_, bob = usersctl.add(*names)
    mailbox = usersctl.folder / "mail"

    with served_by(usersctl, server) as daemon:
        # The processes start without a request.
        processes = {str(line["process"]) for line in daemon.events("serving")}
        assert len(processes) == 2
        wait_for(lambda: daemon.events("leader"))
        (leader,) = daemon.events("leader")
        assert str(leader["process"]) in processes

        # Both processes share sessions: one that is ended ends in both at the next request.
        client = daemon.client()
        reply = client.login(ada.email, PASSWORD)
        assert reply.status == 200
        assert {
            reply.status for reply in from_each(lambda: client.get("/api/users/me"), processes).values()
        } == {200}
        with usersctl.service() as service:
            service.accounts.set_active([ada.id], active=False, by=OPERATOR)
        assert {
            reply.status for reply in from_each(lambda: client.get("/api/users/me"), processes).values()
        } == {401}

        # The log, the request's id and the client's address are those of the daemon.
        reply = daemon.client().get("/api/users/me", headers={"X-Forwarded-For": "203.0.113.7"})
        (line,) = [
            line for line in daemon.events("request") if line["request"] == reply.header("X-Request-Id")
        ]
        assert (line["status"], line["ip"]) == (401, "203.0.113.7")
        # `serve` lets a local operator in without a session; here the listening address is unknown, so it does not.
        assert daemon.client().get("/_tasks/").status == 401

        # Each email is sent once, whichever process queued it.
        for name in names[1:3]:
            from_each(lambda name=name: forgot(daemon.client(), name), processes)
        wait_for(lambda: len(list(mailbox.glob("*.eml"))) == 6)  # three of a kind to each are sent
        wait_for(lambda: len(daemon.events("email")) >= 6)
        assert len(once(line["id"] for line in daemon.events("email") if line["state"] == "sent")) == 6

        # Each slot of the schedule runs once.
        with usersctl.service() as service:
            service.sessions.create_api_token(bob.id, name="ci", lifetime=timedelta(seconds=-1), by=OPERATOR)
        (usersctl.folder / "jump").touch()
        wait_for(lambda: [line for line in daemon.events("cleanup-tokens") if line["removed"]])
        cleaned = daemon.events("cleanup-tokens")
        assert sum(int(str(line["removed"])) for line in cleaned) == 1
        assert once(line["slot"] for line in cleaned)

        # When the leader dies, another process takes over without a request.
        os.kill(int(str(leader["process"])), signal.SIGKILL)
        wait_for(lambda: len(daemon.events("leader")) == 2)
        assert forgot(daemon.client(), "bob").status == 200
        wait_for(lambda: len(list(mailbox.glob("*.eml"))) == 7)

        # A clean stop, once the killed process is replaced: pending requests are answered.
        wait_for(lambda: len(daemon.events("serving")) == 3)
        slow: list[int] = []
        asking = threading.Thread(target=lambda: slow.append(daemon.client().get("/slow").status))
        asking.start()
        wait_for((usersctl.folder / "slow-began").exists)
        daemon.process.send_signal(signal.SIGTERM)
        (usersctl.folder / "slow-may-end").touch()
        asking.join(20)
        assert slow == [302]  # a page that asks for a session
        assert daemon.process.wait(20) == 0
        assert "Traceback" not in daemon.file.read_text()

        # Until the end, for the first leader and for its successor.
        assert len(once(line["id"] for line in daemon.events("email") if line["state"] == "sent")) == 7
        assert len(once(line["slot"] for line in daemon.events("cleanup-tokens"))) >= len(cleaned)


def once(values: Iterable[object]) -> list[object]:
    """The values, after a check that no two are the same."""
    listed = list(values)
    assert len(set(listed)) == len(listed), listed
    return listed


def forgot(client: Client, name: str) -> Reply:
    return client.post("/api/users/password/forgot", {"email": f"{name}@example.com"})


@pytest.mark.parametrize("server", SERVERS)
def test_a_chunked_body_has_the_same_size_limit(usersctl: Command, server: str) -> None:
    (ada,) = usersctl.add("ada")
    raw = json.dumps({"email": ada.email, "password": PASSWORD}).encode()
    with served_by(usersctl, server) as daemon:
        statuses = {size: in_chunks(daemon.port, raw.ljust(size)) for size in (100, 65_536, 65_537, 70_000)}
    assert statuses == {100: 200, 65_536: 200, 65_537: 413, 70_000: 413}


@pytest.mark.parametrize("server", ALL_SERVERS)
def test_each_server_reads_bodies_answers_head_and_stops(usersctl: Command, server: str) -> None:
    (ada,) = usersctl.add("ada")
    with served_by(usersctl, server) as daemon:
        client = daemon.client()
        assert client.login(ada.email, PASSWORD).status == 200
        for method in ("GET", "HEAD"):
            for path, status in (("/api/users/me", 200), ("/login", 200), ("/api/users/2", 403)):
                reply = client.send(method, path)
                assert (reply.status, reply.body == b"") == (status, method == "HEAD")
                assert reply.header("X-Request-Id")
        assert client.patch("/api/users/me", {"name": "Ada L."}).status == 200
        # A body that cannot be read is refused, and does not count as an empty one.
        raw = json.dumps({"name": "In chunks"}).encode()
        status = in_chunks(daemon.port, raw, "PATCH /api/users/me", f"auth_token={client.token}")
        name = client.get("/api/users/me").json["user"]["name"]
        assert (status, name) == ((411, "Ada L.") if server in WITHOUT_CHUNKS else (200, "In chunks"))
        assert client.delete("/api/users/session").status == 200
        assert client.get("/api/users/me").status == 401
        assert "Traceback" not in daemon.file.read_text()
        # At SIGTERM some kill their process, so that nothing can be closed.
        daemon.stop(signal.SIGINT if server in ONE_PROCESS else signal.SIGTERM)
        # The last process closes the database.
        wait_for(lambda: not Path(f"{usersctl.database}-wal").exists())


def in_chunks(port: int, raw: bytes, target: str = "POST /api/users/session", cookie: str = "") -> int:
    """The status of a request, by default a login, whose body has no Content-Length."""
    head = (
        f"{target} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Type: application/json\r\n"
        f"Cookie: {cookie}\r\nTransfer-Encoding: chunked\r\n\r\n"
    ).encode()
    chunks = [raw[at : at + 7_001] for at in range(0, len(raw), 7_001)]
    got = b""
    with socket.create_connection(("127.0.0.1", port), timeout=20) as client, suppress(ConnectionError):
        with suppress(ConnectionError):  # it has read enough to refuse the rest
            client.sendall(head + b"".join(b"%x\r\n%b\r\n" % (len(chunk), chunk) for chunk in [*chunks, b""]))
        while some := client.recv(65536):
            got += some
    assert got.startswith(b"HTTP/1.1 "), got
    return int(got[9:12])


# --- headers with underscores, which some servers take for those with hyphens ---

VERIFY = "/api/users/auth/verify"
PROTECTED = """
[server]
trustedProxies = ["127.0.0.1"]
[auth]
whitelist = ["/docs/*"]
[auth.roleRules]
"/admin/*" = "admin"
"""


@pytest.mark.parametrize("server", SERVERS)
def test_a_header_with_underscores_opens_no_page(usersctl: Command, server: str) -> None:
    usersctl.configure(PROTECTED)
    (ada,) = usersctl.add("ada")
    with served_by(usersctl, server) as daemon:
        nobody, user = daemon.client(), daemon.client()
        assert user.login(ada.email, PASSWORD).status == 200
        for url, method in (
            ("X-Forwarded-Uri", "X-Forwarded-Method"),
            ("X-Original-URL", "X-Original-Method"),
        ):
            true = {url: "/admin/x", method: "GET"}
            for forged in ({url.replace("-", "_"): "/docs/x"}, {url.replace("-", "_", 1): "/docs/x"}):
                for headers in (true | forged, forged | true, forged):
                    assert nobody.get(VERIFY, headers=headers).status == 401, headers
                    assert user.get(VERIFY, headers=headers).status == 403, headers
        assert [line["message"] for line in daemon.events("not-believed")] == [NOT_BELIEVED] * 2


VERIFIED = """
from usersd import wsgi

told = []
asked = {"REQUEST_METHOD": "GET", "PATH_INFO": "/api/users/auth/verify", "REMOTE_ADDR": "127.0.0.1"}
for more in ({}, {"HTTP_X_FORWARDED_URI": "/docs/x"}, {"HTTP_X_ORIGINAL_URL": "/docs/x"}):
    list(wsgi.application(asked | more, lambda *a: told.append(int(a[0][:3]))))
print(told)
"""


@pytest.mark.slow
@pytest.mark.parametrize(("drops", "statuses"), [("false", [401, 401, 401]), ("true", [401, 200, 200])])
def test_another_server_believes_the_path_only_if_the_proxy_drops_underscores(
    usersctl: Command, drops: str, statuses: list[int]
) -> None:
    usersctl.configure(PROTECTED.replace("[auth]", f"proxyDropsUnderscores = {drops}\n[auth]", 1))
    done = subprocess.run(
        [sys.executable, "-c", VERIFIED],
        env=usersctl.env,
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
    )
    assert literal_eval(done.stdout) == statuses
    assert (NOT_BELIEVED in done.stderr) == (drops == "false")


IN_A_GATE = """
from usersctl.config import load
from usersctl.service import build
from usersd.gate import Gate

def application(environ, start_response):
    start_response("200 OK", [])
    return []

gate = Gate(application, build(load().settings), pages=True)
list(gate({"REQUEST_METHOD": "GET", "PATH_INFO": "/login"}, lambda *a: print(a[0])))
"""


@pytest.mark.slow
@pytest.mark.parametrize("program", [VERIFIED, IN_A_GATE])
@pytest.mark.parametrize("port", ["", "port = 9180"])
def test_the_log_of_another_server_says_that_it_serves_no_metrics(
    usersctl: Command, program: str, port: str
) -> None:
    usersctl.configure(f"[metrics]\n{port}\n")
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=usersctl.env,
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
    )
    assert ("metrics.port is set, but only usersctl serve has metrics" in done.stderr) == bool(port)


@pytest.mark.slow
def test_under_another_server_no_task_is_without_a_session_and_the_log_does_not_say_so(
    usersctl: Command,
) -> None:
    code = """
from usersd import wsgi

told = []
environ = {"REQUEST_METHOD": "GET", "PATH_INFO": "/_tasks/", "REMOTE_ADDR": "127.0.0.1", "HTTP_HOST": "localhost"}
list(wsgi.application(environ | {"SERVER_PROTOCOL": "HTTP/1.1"}, lambda *answer: told.append(answer[0])))
print(*told)
"""
    usersctl.add("root", role="admin")
    words = [sys.executable, "-c", code]
    done = subprocess.run(words, env=usersctl.env, capture_output=True, text=True, timeout=30, check=True)
    assert done.stdout == "401 Unauthorized\n"
    assert "so links lead to this machine. Set it before" in done.stderr


# --- nothing of ours crosses a fork ---

FORK = """
import os, sys, threading, time
from usersd import wsgi

def answered(path):
    told = []
    list(wsgi.application({"REQUEST_METHOD": "GET", "PATH_INFO": path, "wsgi.input": None}, lambda *a: told.append(a[0])))
    return told[0]

print(answered("/api/users/me"), len(threading.enumerate()) > 1)
pid = os.fork()
if pid == 0:
    print("child", answered("/api/users/me"), flush=True)
    sys.exit(0)
print("parent", [each.name for each in threading.enumerate()], os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
print("parent", answered("/api/users/me"))
"""


@pytest.mark.slow
def test_a_fork_after_the_import_inherits_no_thread_and_no_database(
    usersctl: Command,
) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", FORK],
        env=usersctl.env | {"PYTHONUNBUFFERED": "1"},
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
    )
    assert sorted(done.stdout.splitlines()) == sorted(
        [
            "401 Unauthorized True",
            "parent ['MainThread'] 0",
            "child 401 Unauthorized",
            "parent 401 Unauthorized",
        ]
    )


@pytest.mark.parametrize("problem", [StoreUnusable("No file"), RuntimeError("can't start new thread")])
def test_what_fails_when_it_opens_without_a_request_is_tried_again_and_closed(
    problem: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embedded, "START_AFTER", 0.01)
    log, done = io.StringIO(), list[str]()

    @contextmanager
    def opening() -> Iterator[str]:
        done.append("tried")
        if len(done) == 1:
            raise problem
        yield "open"
        done.append("closed")

    part = Embedded(opening, Log(log))
    wait_for(lambda: len(done) == 2)
    part.close()
    assert done == ["tried", "tried", "closed"]
    assert str(problem) in log.getvalue()


CHILDREN_WITHOUT_REQUESTS = """
import os, time
from contextlib import contextmanager
from usersd import embedded
from usersd.log import Log

embedded.START_AFTER = 0.01
opened = []

@contextmanager
def opening():
    opened.append(os.getpid())
    yield "open"

def a_child_opens(seconds):
    pid = os.fork()
    if pid == 0:
        until = time.monotonic() + seconds
        while os.getpid() not in opened and time.monotonic() < until:
            time.sleep(0.01)
        os._exit(os.getpid() in opened)
    return bool(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))

part = embedded.Embedded(opening, Log())
print(a_child_opens(10))
part.close()
print(a_child_opens(0.5))
part.opened()
print(a_child_opens(10))
"""


@pytest.mark.slow
def test_a_child_opens_the_service_without_a_request_unless_it_was_closed(usersctl: Command) -> None:
    words = [sys.executable, "-W", "error", "-c", CHILDREN_WITHOUT_REQUESTS]
    done = subprocess.run(words, env=usersctl.env, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.split() == ["True", "False", "True"]


FORKS_BETWEEN_REQUESTS = """
import os, sys, threading, time
from contextlib import contextmanager
from usersd.embedded import Embedded
from usersd.log import Log

opened, closed, seen = [], [], []

@contextmanager
def opening():
    part = object()
    opened.append(part)
    yield part
    closed.append(part)

def request():
    while not is_over.is_set():
        seen.append(embedded.opened())
        time.sleep(0.0005)

sys.setswitchinterval(1e-6)
embedded, is_over = Embedded(opening, Log()), threading.Event()
threads = [threading.Thread(target=request, daemon=True) for _ in range(8)]
for thread in threads:
    thread.start()
for _ in range(100):
    while not seen:
        time.sleep(0.0005)
    pid = os.fork()
    if pid == 0:
        os._exit(len(opened) - len(closed))  # what it inherits
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    seen.clear()
is_over.set()
for thread in threads:
    thread.join()
print(len(opened) - len(closed), sum(each.name == "usersd" for each in threading.enumerate()))
"""


@pytest.mark.slow
def test_requests_that_come_while_an_application_forks_open_the_service_once_and_in_no_child(
    usersctl: Command,
) -> None:
    words = [sys.executable, "-W", "error", "-W", "ignore:This process:DeprecationWarning"]
    done = subprocess.run(
        [*words, "-c", FORKS_BETWEEN_REQUESTS],
        env=usersctl.env,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout == "1 1\n"


@pytest.mark.slow
@pytest.mark.sqlite  # a folder in the place of the file
def test_a_database_that_cannot_be_used_is_a_503_and_heals(usersctl: Command) -> None:
    code = """
import pathlib, sys
from usersd import wsgi

def answered(method="GET"):
    told = []
    body = list(wsgi.application({"REQUEST_METHOD": method, "PATH_INFO": "/api/users/me"}, lambda *a: told.append(a)))
    return told[0][0], dict(told[0][1]), *body

print(answered())
print(answered("HEAD"))
pathlib.Path(sys.argv[1]).rmdir()
print(answered()[0])
"""
    usersctl.configure('baseUrl = "https://accounts.example.com"\n')
    usersctl.database.mkdir()  # in the place of the file
    done = subprocess.run(
        [sys.executable, "-c", code, str(usersctl.database)],
        env=usersctl.env,
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
    )
    refused, head, healed = done.stdout.splitlines()
    status, headers, body = literal_eval(refused)
    assert (status, headers["Retry-After"], body[:19]) == (
        "503 Service Unavailable",
        "5",
        b'{"statusCode":503,"',
    )
    assert {"X-Request-Id", "Strict-Transport-Security", "Content-Security-Policy"} <= set(headers)
    assert headers["X-Request-Id"] in done.stderr
    assert literal_eval(head)[0] == status
    assert literal_eval(head)[2:] == (b"",)
    assert str(usersctl.folder) not in refused
    assert healed == "401 Unauthorized"


def test_a_configuration_that_cannot_be_used_stops_the_import_with_its_line(usersctl: Command) -> None:
    usersctl.configure("auth.zzz = 1\n")
    done = subprocess.run(
        [sys.executable, "-c", "import usersd.wsgi"],
        env=usersctl.env,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith(
        f"usersctl.errors.ConfigError: {usersctl.config}: unknown key auth.zzz"
    )
