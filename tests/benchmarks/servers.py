"""Servers that are measured side by side and in turns, so that other load of the machine affects all alike."""

import json
import shutil
import socket
import sqlite3
import statistics
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

from tests.benchmarks.frame import START, TICKS, Bench
from tests.support.ports import free_port

HERE = Path(__file__).parent
BESIDE = HERE / "beside"
TIME_LIMIT = 30.0  # waiting for another process that writes
STARTS_WITHIN = 60.0  # Django creates its database first
ACTIVE = 1_000  # sessions in use, spread over all of them


class Order(NamedTuple):
    """Requests that `connections` send to a server, one after the other."""

    port: int
    requests: Sequence[str]
    connections: int = 1


class Turn(NamedTuple):
    """A second or more of requests by wrk."""

    rate: float  # per second
    p99: float  # seconds
    server: float  # microseconds of processor time for a request, of all its processes
    client: float


class Asker:
    """The process that sends the requests, see `load`."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self.process = process

    def begin(self, order: Order, seconds: float, *, warm_up: int = 5) -> None:
        line = {**order._asdict(), "seconds": seconds, "warm_up": warm_up}
        print(json.dumps(line), file=self.process.stdin, flush=True)

    def end(self, *, refusals: bool = False) -> dict[str, Any]:
        answer = self.process.stdout.readline() if self.process.stdout else ""
        if not answer:
            raise RuntimeError("the process that asks has ended")
        result: dict[str, Any] = json.loads(answer)
        if result["others"] and not refusals:
            raise RuntimeError(f"not all answers were 200: {result['others']}")
        return result

    def ask(self, order: Order, seconds: float, *, warm_up: int = 5) -> dict[str, Any]:
        self.begin(order, seconds, warm_up=warm_up)
        return self.end()


@contextmanager
def asking(bench: Bench) -> Iterator[Asker]:
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with bench.started(
        [str(HERE / "load.py")], bench.environment(bench.folder / "none.db"), **pipes
    ) as process:
        yield Asker(process)


class Server(NamedTuple):
    port: int
    process: "subprocess.Popen[str]"

    @property
    def memory(self) -> float:
        """Resident memory in MB, as `ps` shows it."""
        status = Path(f"/proc/{self.process.pid}/status").read_text("utf-8")
        return int(status.partition("VmRSS:")[2].split()[0]) / 1024

    @property
    def processor(self) -> float:
        """Seconds of processor time of all its processes until now."""
        return sum(map(processor_of, _with_children(self.process.pid)))


def _with_children(pid: int) -> Iterator[int]:
    yield pid
    for task in Path(f"/proc/{pid}/task").iterdir():
        for child in (task / "children").read_text("utf-8").split():
            yield from _with_children(int(child))


def processor_of(pid: int, *, ended: bool = False) -> float:
    """Seconds until now; `ended`: also those of its children that ended."""
    values = Path(f"/proc/{pid}/stat").read_text("utf-8").rpartition(")")[2].split()
    return sum(map(int, values[11 : 15 if ended else 13])) / TICKS


class Servers:
    """Starts servers, each on its own port, and stops all of them at the end."""

    def __init__(self, bench: Bench, stack: ExitStack) -> None:
        self._bench = bench
        self._stack = stack

    def daemon(self, database: Path | str, *, configuration: str = "") -> Server:
        """The daemon as `usersctl serve` starts it, with its log in a file."""
        port = free_port()
        file = self._bench.folder / f"users-{port}.toml"
        file.write_text(configuration, "utf-8")
        words = ["-c", START, "--config", str(file), "serve", "--port", str(port)]
        return self._start(port, words, database)

    def beside(self, name: str, *words: str, database: Path) -> Server:
        port = free_port()
        return self._start(port, [str(BESIDE / f"{name}.py"), str(port), *words], database)

    def _start(self, port: int, words: Sequence[str], database: Path | str) -> Server:
        log = self._stack.enter_context((self._bench.folder / f"server-{port}.log").open("w"))
        process = self._stack.enter_context(
            self._bench.started(words, self._bench.environment(database), stderr=log)
        )
        answering(port, process)
        return Server(port, process)


@contextmanager
def servers(bench: Bench) -> Iterator[Servers]:
    with ExitStack() as stack:
        yield Servers(bench, stack)


def answering(port: int, process: "subprocess.Popen[str]") -> None:
    """Waits for the first answer, of any status."""
    until = time.perf_counter() + STARTS_WITHIN
    while time.perf_counter() < until:
        try:
            with socket.create_connection(("127.0.0.1", port), 10) as connection:
                connection.sendall(get("/api/users/me").encode())
                if connection.recv(1):
                    return
        except OSError:
            time.sleep(0.001)
        if process.poll() is not None:
            break
    raise RuntimeError(f"{process.args} does not answer")


def get(path: str, *headers: str) -> str:
    return "\r\n".join([f"GET {path} HTTP/1.1", "Host: 127.0.0.1", *headers, "", ""])


def post(path: str, body: Mapping[str, Any]) -> str:
    text = json.dumps(body)
    head = [f"POST {path} HTTP/1.1", "Host: 127.0.0.1", "Content-Type: application/json"]
    return "\r\n".join([*head, f"Content-Length: {len(text)}", "", text])


def signed_in(users: int, path: str = "/api/users/me", *headers: str, active: int = ACTIVE) -> list[str]:
    """Requests with some sessions of `add_sessions`, spread over all of them."""
    step = max(1, users // active)
    return [get(path, f"Cookie: auth_token=benchmark-{n:08}", *headers) for n in range(0, users, step)]


def use(database: Path, users: int, *, active: int = ACTIVE, ago: float = 0) -> None:
    """Marks the active sessions as used so many seconds ago: a service notes the use of each once a minute."""
    step = max(1, users // active)
    used = f"{datetime.now(UTC) - timedelta(seconds=ago):%Y-%m-%dT%H:%M:%S}.000Z"
    with closing(sqlite3.connect(database, TIME_LIMIT)) as connection, connection:
        connection.execute("UPDATE auth_tokens SET last_used_at = ? WHERE (id - 1) % ? = 0", (used, step))


class Wrk:
    """Sends requests by wrk, a program in C. Each of its turns begins where the last one of these requests ended."""

    def __init__(self, bench: Bench, requests: Sequence[str]) -> None:
        if shutil.which("wrk") is None:
            raise SystemExit("wrk is missing, the client of this measure; on Debian: apt-get install wrk")
        self.requests = len(requests)
        self._bench = bench
        self._next = 0
        with tempfile.NamedTemporaryFile(dir=bench.folder, delete=False) as file:
            file.write(b"".join(request.encode() + b"\0" for request in requests))
        self._file = file.name

    def ask(self, server: Server, connections: int, seconds: int, *, after: float = 0) -> Turn:
        """`after`: seconds in which the server may end what the requests have begun, which counts as theirs."""
        words = ["-t1", f"-c{connections}", f"-d{seconds}s", "-s", str(HERE / "wrk.lua")]
        url = f"http://127.0.0.1:{server.port}"
        before = server.processor
        ran = self._bench.wrk([*words, url, "--", self._file, str(self._next)])
        time.sleep(after)
        answered: dict[str, float] = json.loads(ran.printed.splitlines()[-1])
        answers = int(answered["answers"])
        if answered["refused"] or answered["broken"] or not answers:
            raise RuntimeError(f"not all answers were 200: {answered}")
        self._next = (self._next + answers) % self.requests
        used, asked = (1e6 * took / answers for took in (server.processor - before, ran.processor))
        return Turn(answers / answered["seconds"], answered["p99"], used, asked)


class Load(NamedTuple):
    """What wrk asks a server in its turns."""

    wrk: Wrk
    server: Server
    connections: int = 1


def take_turns(loads: Mapping[str, Load], turns: int, seconds: int) -> dict[str, list[Turn]]:
    """The turns of each load, in alternating direction."""
    taken: dict[str, list[Turn]] = {name: [] for name in loads}
    for turn in range(turns):
        for name in list(loads)[:: -1 if turn % 2 else 1]:
            load = loads[name]
            taken[name].append(load.wrk.ask(load.server, load.connections, seconds))
    return taken


def in_turns(
    asker: Asker, orders: Mapping[str, Order], turns: int, seconds: float, *, warm_up: int = 5
) -> dict[str, list[float]]:
    """Requests per second of each order, measured in short turns of alternating direction."""
    rates: dict[str, list[float]] = {name: [] for name in orders}
    for turn in range(turns):
        for name in list(orders)[:: -1 if turn % 2 else 1]:
            rates[name].append(asker.ask(orders[name], seconds, warm_up=warm_up)["rate"])
    return rates


def beside(rates: Mapping[str, list[float]], one: str, other: str) -> float:
    """The median over all turns of the rate of `one` divided by that of `other`."""
    return statistics.median(mine / theirs for mine, theirs in zip(rates[one], rates[other], strict=True))
