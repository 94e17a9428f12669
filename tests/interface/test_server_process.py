"""The server as a process of its own, or as several: signals, requests in flight, processes that end, slow clients."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from support.daemons import wait_for
from support.web import OK, read_all

PROGRAM = """
import contextlib, logging, os, sys, time
import bcrypt
from usersctl.errors import ConfigError
from usersd.response import Response
from usersd.server import connections
from usersd.server.connections import Hosted
from usersd.server.listener import listen
from usersd.server.processes import Serving, serve

def answer(environ):
    until = time.monotonic() + 5
    while environ["QUERY_STRING"] == "hash" and time.monotonic() < until:
        bcrypt.hashpw(b"x", bcrypt.gensalt(4))
    if environ["QUERY_STRING"] != "hash":
        time.sleep(float(environ["QUERY_STRING"] or 0))
    return Response(200, str(os.getpid()).encode())

def say(text):
    os.write(1, f"{text}\\n".encode())  # in one piece: another process writes there, too

@contextlib.contextmanager
def make(index):
    if "broken" in sys.argv:
        raise ConfigError("users.toml: no")
    yield Hosted(app=None, answer=answer, on_stop=lambda: say(f"stopping {index}"))
    say(f"stopped {index}")

logging.basicConfig()
if "crowded" in sys.argv:
    fork, numbers = os.fork, iter(range(100))

    def fork_or_refuse():
        if next(numbers) in (2, 3):
            raise BlockingIOError(11, "Resource temporarily unavailable")
        return fork()

    os.fork = fork_or_refuse
if "hasty" in sys.argv:
    connections.TO_STOP = connections.TO_LEAVE = 0.1
serving = Serving(processes=int(sys.argv[1]))
sys.exit(serve(listen("127.0.0.1", 0), make, serving, on_ready=say))
"""


class Program:
    def __init__(self, *arguments: str, ignoring: str = "") -> None:
        root = Path(__file__).parents[2]
        shell = ["sh", "-c", f"trap '' {ignoring}; exec \"$@\"", "sh"] if ignoring else []
        self.process = subprocess.Popen(
            [*shell, sys.executable, "-c", PROGRAM, *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | {"PYTHONPATH": f"{root}:{root / 'daemon'}"},
        )
        assert self.process.stdout
        self.port = int(self.process.stdout.readline().rpartition(":")[2] or 0)

    def connect(self, query: str = "") -> socket.socket:
        client = socket.create_connection(("127.0.0.1", self.port), timeout=15)
        client.sendall(b"GET /?%s HTTP/1.1\r\nHost: x\r\n\r\n" % query.encode())
        return client

    def pid(self) -> int:
        with self.connect() as client:
            return int(client.recv(1000).rpartition(b"\r\n")[2])

    def ended(self) -> tuple[int, list[str], str]:
        out, err = self.process.communicate(timeout=15)
        return self.process.returncode, out.splitlines(), err


@pytest.fixture
def program() -> Iterator[Callable[..., Program]]:
    started: list[Program] = []

    def program(*arguments: str, **keywords: str) -> Program:
        started.append(Program(*arguments, **keywords))
        return started[-1]

    yield program
    for served in started:
        if served.process.poll() is None:
            served.process.send_signal(signal.SIGTERM)
            try:
                served.process.wait(8)
            except subprocess.TimeoutExpired:
                served.process.kill()
        served.process.communicate()


@pytest.mark.slow
@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_twenty_requests_in_flight_are_answered_after_a_signal(
    program: Callable[..., Program], signum: signal.Signals
) -> None:
    served = program("1")
    with ExitStack() as stack:
        clients = [stack.enter_context(served.connect("0.3")) for _ in range(20)]
        time.sleep(0.1)
        began = time.monotonic()
        served.process.send_signal(signum)
        assert all(read_all(client).startswith(OK) for client in clients)
        assert served.ended() == (0, ["stopping 0", "stopped 0"], "")
        assert time.monotonic() - began < 6


@pytest.mark.parametrize("processes", [1, 2])
def test_a_terminal_that_is_closed_cuts_no_request_off(
    program: Callable[..., Program], processes: int
) -> None:
    served = program(str(processes))
    serving: set[int] = set()
    wait_for(lambda: serving.add(served.pid()) or len(serving) == processes)
    with served.connect("0.5") as client:
        time.sleep(0.1)
        parent = served.process.pid
        # By the terminal. The parent comes last: it ends the children, of which one has nothing to do.
        for pid in [*(serving - {parent}), parent]:
            os.kill(pid, signal.SIGHUP)
        time.sleep(0.1)
        served.process.send_signal(signal.SIGHUP)  # by the shell
        assert read_all(client).startswith(OK)
    code, _, errors = served.ended()
    assert (code, errors) == (0, "")


@pytest.mark.parametrize("processes", ["1", "2"])
def test_a_second_signal_ends_the_process_at_once(program: Callable[..., Program], processes: str) -> None:
    served = program(processes)
    with served.connect("30") as client:
        time.sleep(0.2)
        served.process.send_signal(signal.SIGTERM)
        assert served.process.stdout
        assert served.process.stdout.readline().startswith("stopping ")
        began = time.monotonic()
        served.process.send_signal(signal.SIGTERM)
        assert served.process.wait(10) == 128 + signal.SIGTERM
        assert read_all(client) == b""  # no process goes on
        assert time.monotonic() - began < 2


@pytest.mark.parametrize("processes", ["1", "2"])
@pytest.mark.parametrize("ignored", ["INT", "HUP"])
def test_a_signal_that_was_ignored_at_the_start_stops_nothing(
    program: Callable[..., Program], ignored: str, processes: str
) -> None:
    """As SIGINT of a job in the background, and SIGHUP of one after nohup."""
    served = program(processes, ignoring=ignored)
    with served.connect("0.3") as client:
        served.process.send_signal(getattr(signal, f"SIG{ignored}"))
        assert client.recv(1000).startswith(OK)
    assert served.pid()
    served.process.send_signal(signal.SIGTERM)
    assert served.ended()[0] == 0


@pytest.mark.parametrize("processes", ["1", "2"])
def test_hashing_that_outlasts_the_shutdown_does_not_abort_the_process(
    program: Callable[..., Program], processes: str
) -> None:
    served = program(processes, "hasty")
    with served.connect("hash"):
        time.sleep(0.3)
        served.process.send_signal(signal.SIGTERM)
        code, _, errors = served.ended()
        assert code == 0
        assert errors == "WARNING:usersd:Connections that were cut off: 1\n"


@pytest.mark.slow
def test_two_processes_share_a_socket_and_a_killed_one_is_replaced(
    program: Callable[..., Program],
) -> None:
    served = program("2")
    pids: set[int] = set()
    wait_for(lambda: pids.add(served.pid()) or len(pids) == 2)
    killed = max(pids)
    os.kill(killed, signal.SIGKILL)
    after: set[int] = set()
    wait_for(lambda: after.add(served.pid()) or len(after - {killed}) == 2)
    with served.connect("0.5") as client:
        time.sleep(0.1)
        served.process.send_signal(signal.SIGTERM)
        assert read_all(client).startswith(OK)
    code, lines, errors = served.ended()
    assert (code, sorted(lines)) == (0, ["stopped 0", "stopped 1", "stopping 0", "stopping 1"])
    assert errors.count("\n") == 1
    assert f"Process {killed} ended unexpectedly (-9) and is replaced" in errors


@pytest.mark.slow
def test_a_process_that_the_system_does_not_let_begin_is_replaced_later(
    program: Callable[..., Program],
) -> None:
    served = program("2", "crowded")
    pids: set[int] = set()
    wait_for(lambda: pids.add(served.pid()) or len(pids) == 2)
    os.kill(max(pids), signal.SIGKILL)
    after: set[int] = set()
    wait_for(lambda: after.add(served.pid()) or len(after - {max(pids)}) == 2)
    served.process.send_signal(signal.SIGTERM)
    code, lines, errors = served.ended()
    assert (code, sorted(lines)) == (0, ["stopped 0", "stopped 1", "stopping 0", "stopping 1"])
    assert errors.count("cannot be replaced for now: Resource temporarily unavailable") == 1


def test_processes_that_cannot_start_end_the_service_with_one_line_each(
    program: Callable[..., Program],
) -> None:
    code, lines, errors = program("2", "broken").ended()
    assert (code, lines) == (6, [])
    assert "users.toml: no" in errors
    assert "Traceback" not in errors


def test_processes_stop_when_their_parent_is_gone(program: Callable[..., Program]) -> None:
    served = program("2")
    served.process.kill()
    served.process.wait(5)

    def refused() -> bool:
        try:
            with served.connect():
                return False
        except ConnectionError:
            return True

    wait_for(refused)


@pytest.mark.slow
def test_six_hundred_slow_clients_do_not_delay_other_requests(program: Callable[..., Program]) -> None:
    served = program("1")
    address = ("127.0.0.1", served.port)
    with ExitStack() as stack:

        def drip() -> socket.socket:
            client = stack.enter_context(socket.create_connection(address, timeout=5))
            client.sendall(b"GET / HTTP/1.1\r\nX: ")
            return client

        clients = [drip() for _ in range(600)]
        began = time.monotonic()
        thrown_out: set[int] = set()
        slowest = took = 0.0
        while took < 7 or (len(thrown_out) < 600 and took < 30):
            for n, client in enumerate(clients):
                try:
                    client.sendall(b"x")
                except ConnectionError:
                    client.close()
                    clients[n] = drip()
                    thrown_out.add(n)
            asked = time.monotonic()
            served.pid()
            slowest = max(slowest, time.monotonic() - asked)
            time.sleep(0.2)
            took = time.monotonic() - began
    assert len(thrown_out) == 600
    assert slowest < 6
