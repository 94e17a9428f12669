"""The messages to systemd: more time, ready, alive while it answers, stopping. The test acts as systemd."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from support.commands import Command
from support.daemons import serving

from usersd.server.systemd import Notifier

LIMIT = 20


@dataclass
class Systemd:
    """The socket that NOTIFY_SOCKET names, and the messages received."""

    socket: socket.socket
    address: str
    heard: list[str] = field(default_factory=list)

    def listen(self, *, until: Callable[[], bool], seconds: float = LIMIT) -> None:
        deadline = time.monotonic() + seconds
        while not until():
            assert time.monotonic() < deadline, self.heard
            self.socket.settimeout(0.1)
            try:
                self.heard += self.socket.recv(4096).decode().splitlines()
            except TimeoutError:
                continue

    def hears(self, line: str, times: int = 1) -> None:
        self.listen(until=lambda: self.heard.count(line) >= times)

    def hears_nothing_for(self, seconds: float) -> bool:
        """True if no message came for so long, within the time limit."""
        deadline = time.monotonic() + LIMIT
        self.socket.settimeout(seconds)
        while time.monotonic() < deadline:
            try:
                self.heard += self.socket.recv(4096).decode().splitlines()
            except TimeoutError:
                return True
        return False


@contextmanager
def systemd(address: str) -> Iterator[Systemd]:
    with closing(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)) as made:
        made.bind("\0" + address[1:] if address.startswith("@") else address)
        yield Systemd(made, address)


@pytest.fixture
def watching(tmp_path: Path) -> Iterator[Systemd]:
    with systemd(str(tmp_path / "notifier")) as notifier:
        yield notifier


def environment(of: Systemd, usec: int) -> dict[str, str]:
    return {"NOTIFY_SOCKET": of.address, "WATCHDOG_USEC": str(usec)}


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


@pytest.mark.slow
def test_systemd_is_notified_of_ready_alive_and_stopping(usersctl: Command, watching: Systemd) -> None:
    with serving(usersctl, env=environment(watching, 400_000)) as daemon:
        watching.hears("READY=1")
        assert watching.heard == ["READY=1", f"STATUS=http://127.0.0.1:{daemon.port}"]
        watching.hears("WATCHDOG=1", 3)
        # Self-checks are not logged.
        assert daemon.events("request") == []
        # A stopped process cannot answer, so systemd receives nothing until it continues.
        os.kill(daemon.process.pid, signal.SIGSTOP)
        assert watching.hears_nothing_for(1)
        os.kill(daemon.process.pid, signal.SIGCONT)
        watching.hears("WATCHDOG=1", watching.heard.count("WATCHDOG=1") + 1)
        assert daemon.stop() == 0
        watching.hears("STOPPING=1")
    assert watching.heard.count("READY=1") == watching.heard.count("STOPPING=1") == 1


@pytest.mark.slow
def test_one_stuck_process_of_several_stops_the_watchdog_messages(
    usersctl: Command, watching: Systemd
) -> None:
    usersctl.configure('[server]\nsocket = "run.sock"\nprocesses = 2\n')
    with serving(usersctl, port=1, env=environment(watching, 1_500_000)) as daemon:
        watching.hears("READY=1")
        assert f"STATUS=unix:{usersctl.folder}/run.sock" in watching.heard
        watching.hears("WATCHDOG=1", 3)
        first, second = children(daemon.process.pid)
        os.kill(second, signal.SIGSTOP)
        assert watching.hears_nothing_for(2.5)
        os.kill(second, signal.SIGCONT)
        watching.hears("WATCHDOG=1", watching.heard.count("WATCHDOG=1") + 1)
        # A process that dies is replaced, and its replacement counts.
        os.kill(first, signal.SIGKILL)
        watching.listen(until=lambda: second in (now := children(daemon.process.pid)) and len(now) == 2)
        watching.hears("WATCHDOG=1", watching.heard.count("WATCHDOG=1") + 2)
        assert daemon.stop() == 0
        watching.hears("STOPPING=1")
    assert watching.heard.count("READY=1") == 1
    assert not (usersctl.folder / "run.sock").exists()


# An application whose quick threads all hang while the loop goes on accepting connections.
STUCK = """
import sys, threading
from contextlib import contextmanager
from usersd.server.connections import Hosted
from usersd.server.listener import listen
from usersd.server.systemd import Notifier
from usersd.server.processes import Serving, serve

stuck = threading.Event()

def app(environ, start_response):
    if environ["PATH_INFO"] == "/hang":
        stuck.wait(20)
    start_response("200 OK", [("Content-Length", "0")])
    return [b""]

@contextmanager
def hosted(_index):
    yield Hosted(app)

def ready(url):
    print(url, flush=True)

import os
notifier = Notifier.from_environment(os.environ)
serve(listen("127.0.0.1", 0), hosted, Serving(threads=1), ready, notifier)
"""


@pytest.mark.slow
def test_hanging_threads_stop_the_watchdog_messages_although_the_loop_runs(watching: Systemd) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", STUCK],
        stdout=subprocess.PIPE,
        env=os.environ | environment(watching, 400_000),
    )
    try:
        assert process.stdout is not None
        port = int(process.stdout.readline().rpartition(b":")[2])
        watching.hears("WATCHDOG=1", 2)
        with closing(socket.create_connection(("127.0.0.1", port))) as client:
            client.sendall(b"GET /hang HTTP/1.1\r\nHost: x\r\n\r\n")
            assert watching.hears_nothing_for(1)
    finally:
        process.kill()
        process.wait(10)
        if process.stdout is not None:
            process.stdout.close()


# A daemon whose database takes a moment to prepare, as in the upgrade of a large one.
SLOW_START = """
import sys, time
from usersd import start
from usersd.server.systemd import Notifier

first_run, starting = start.first_run, Notifier.starting

def slowly(*words, **keywords):
    time.sleep(1)
    first_run(*words, **keywords)

start.first_run = slowly
Notifier.starting = lambda notifier: starting(notifier, every=0.1)
sys.argv = ["usersctl", "serve", "--socket", "run.sock"]
from usersctl.__main__ import command
command()
"""


@pytest.mark.slow
def test_a_daemon_that_prepares_its_database_asks_systemd_for_more_time(
    usersctl: Command, watching: Systemd
) -> None:
    log = usersctl.folder / "log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-c", SLOW_START],
            stdout=output,
            stderr=output,
            env=usersctl.env | environment(watching, 60_000_000),
            cwd=usersctl.folder,
        )
    try:
        watching.listen(until=lambda: "READY=1" in watching.heard or process.poll() is not None)
    finally:
        process.terminate()
        process.wait(LIMIT)
    assert "READY=1" in watching.heard, log.read_text()
    before = watching.heard[: watching.heard.index("READY=1")]
    assert len(before) >= 4
    assert before[::2] == ["EXTEND_TIMEOUT_USEC=30000000"] * (len(before) // 2)
    assert set(before[1::2]) == {"STATUS=preparing the database"}
    assert "EXTEND_TIMEOUT_USEC=30000000" not in watching.heard[len(before) :]


# The parent after its processes ended, at the time of its next check.
OVER = """
import os, signal, time
from contextlib import nullcontext
from wsgiref.simple_server import demo_app
from usersd.server.connections import Hosted
from usersd.server.listener import listen
from usersd.server.systemd import Notifier
from usersd.server.processes import Serving, serve

def stop(url):
    os.kill(os.getpid(), signal.SIGTERM)

code = serve(
    listen("127.0.0.1", 0),
    lambda index: nullcontext(Hosted(demo_app)),
    Serving(processes=2),
    stop,
    Notifier(every=0.05),
)
time.sleep(0.2)
print(code)
"""


def test_the_parents_watchdog_timer_does_not_kill_it_after_a_clean_end() -> None:
    done = subprocess.run(
        [sys.executable, "-c", OVER], capture_output=True, text=True, timeout=LIMIT, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "0\n", "")


# --- the protocol ---


def test_an_abstract_notify_socket_is_reached() -> None:
    name = f"@usersd-{os.getpid()}"
    with systemd(name) as watching:
        Notifier(name).ready("here")
        watching.hears("READY=1")
        assert watching.heard == ["READY=1", "STATUS=here"]


@pytest.mark.parametrize("address", ["", "/nobody/listens/here", "@nobody-listens-here", "/" + "x" * 200])
def test_a_notify_socket_without_a_listener_is_ignored(address: str) -> None:
    Notifier(address).ready("here")


@pytest.mark.slow
def test_a_notify_socket_that_is_not_read_delays_the_sender_for_a_moment_only(watching: Systemd) -> None:
    began = time.monotonic()
    for _ in range(2000):  # more than the kernel keeps
        Notifier(watching.address).alive()
        if time.monotonic() - began > 0.9:
            break
    assert time.monotonic() - began < 5


@pytest.mark.parametrize(
    ("environ", "every"),
    [
        ({}, None),
        ({"WATCHDOG_USEC": "30000000"}, 15.0),
        ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": str(os.getpid())}, 15.0),
        ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": "1"}, None),
        ({"WATCHDOG_USEC": "0"}, None),
        ({"WATCHDOG_USEC": "-1"}, None),
        ({"WATCHDOG_USEC": "soon"}, None),
    ],
)
def test_a_watchdog_message_is_sent_twice_in_each_watchdog_interval(
    environ: dict[str, str], every: float | None
) -> None:
    assert Notifier.from_environment(environ).every == every
