"""The service on PostgreSQL beside itself on SQLite, all on this machine: session check, logins, start, memory, growth."""

import os
import shutil
import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from tests.benchmarks import logins
from tests.benchmarks.daemon import until_it_answers
from tests.benchmarks.frame import ROOT, Bench, Figure, into_memory, ratios
from tests.benchmarks.growth import ADMIN
from tests.benchmarks.servers import (
    ACTIVE,
    Order,
    Server,
    Turn,
    Wrk,
    asking,
    get,
    in_turns,
    processor_of,
    servers,
    signed_in,
    use,
)
from tests.benchmarks.servers import beside as rate_beside
from tests.benchmarks.sessions import MANY, at, beside, rate

sys.path.append(str(ROOT / "tests"))  # where the helpers of the tests find each other

from support.cluster import ROLE, Node, owned_folder

AUTOGROUP = Path("/proc/sys/kernel/sched_autogroup_enabled")

# As it is installed: a commit waits for the disk.
SETTINGS = {"fsync": "on", "shared_buffers": "128MB", "max_wal_size": "1GB"}


def measure(bench: Bench) -> Iterator[Figure]:
    with _server(bench) as node:
        yield from _sessions(bench, node)
        yield from _size(bench, node)
        yield from _start_and_memory(bench, node)
        with _one_order_of_priorities():
            yield from logins.of(bench, _moved(bench, node, logins.filled(bench)), at_least=0.9)


@contextmanager
def _one_order_of_priorities() -> Iterator[None]:
    """As docs/operating/postgresql.md advises where daemon and server share a machine. Only root can set it."""
    before = AUTOGROUP.read_text() if os.access(AUTOGROUP, os.W_OK) else None
    if before is not None:
        AUTOGROUP.write_text("0")
    try:
        yield
    finally:
        if before is not None:
            AUTOGROUP.write_text(before)


@contextmanager
def _server(bench: Bench) -> Iterator[Node]:
    """Its databases are kept for the next run."""
    node = Node(bench.folder / "postgres")
    if node.folder.exists():
        for file in (node.folder / "data" / "base").rglob("*"):
            if file.is_file():
                into_memory(file)
    else:
        bench.folder.chmod(0o711)  # the server runs as another user
        owned_folder(node.folder)
        node.make()
    with ExitStack() as stack:
        node.start(stack, **SETTINGS)
        yield node


def _moved(bench: Bench, node: Node, file: Path) -> str:
    """The content of this file on the server, in a database of its own."""
    name = file.stem.replace("-", "_")
    there = f"postgresql://{ROLE}@127.0.0.1:{node.port}/{name}"
    known = node.sql("SELECT datname FROM pg_database", database=ROLE).splitlines()
    if name not in known:
        node.sql(f"CREATE DATABASE {name}", database=ROLE)
        copied = bench.folder / f"{name}-moved.db"  # the command marks the database that it moves
        shutil.copyfile(file, copied)
        bench.usersctl(copied, "db", "move", "--quiet", there)
        copied.unlink()
        node.sql("VACUUM ANALYZE", database=name)
    node.sql("CHECKPOINT", database=name)
    return there


def _use(node: Node, there: str, users: int, *, active: int = ACTIVE) -> None:
    """The same as `servers.use`."""
    step = max(1, users // active)
    used = f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%S}.000Z"
    statement = f"UPDATE auth_tokens SET last_used_at = '{used}' WHERE (id - 1) % {step} = 0"  # noqa: S608
    node.sql(statement, database=there.rpartition("/")[2])


class Asked(NamedTuple):
    turn: Turn
    database: float  # microseconds of the database server's processor time for a request


def _ask(
    node: Node, checks: Sequence[Wrk], daemons: Sequence[Server], connections: int, seconds: int
) -> Asked:
    """Each daemon is asked by a client of its own, all at the same time."""
    before = _busy(node)
    with ThreadPoolExecutor(len(daemons)) as pool:
        asked = [
            pool.submit(wrk.ask, daemon, connections, seconds)
            for wrk, daemon in zip(checks, daemons, strict=False)
        ]
        turns = [future.result() for future in asked]
    together = sum(turn.rate for turn in turns)
    server, client = (
        sum(cost * turn.rate for turn, cost in zip(turns, costs, strict=True)) / together
        for costs in ([turn.server for turn in turns], [turn.client for turn in turns])
    )
    turn = Turn(together, max(turn.p99 for turn in turns), server, client)
    return Asked(turn, 1e6 * (_busy(node) - before) / (together * seconds))


def _busy(node: Node) -> float:
    """Seconds of processor time until now, of the processes that ended as well."""
    busy = 0.0
    for process in node.processes:
        with suppress(OSError):
            busy += processor_of(process, ended=True)
    return busy


def _sessions(bench: Bench, node: Node) -> Iterator[Figure]:
    users, seconds = bench.size(10_000, 300), bench.size(2, 1)
    file = bench.people(users)
    there = _moved(bench, node, file)
    taken: dict[str, list[Asked]] = {}
    with servers(bench) as start:
        here, one, two = start.daemon(file), start.daemon(there), start.daemon(there)
        loads = {"sqlite": [here], "one": [one], "two": [one, two]}
        for connections in (1, MANY):
            use(file, users, active=users)
            _use(node, there, users, active=users)
            checks = [Wrk(bench, signed_in(users, active=users)) for _ in range(2)]
            for turn in range(bench.size(4, 1)):
                for name in list(loads)[:: -1 if turn % 2 else 1]:
                    asked = _ask(node, checks, loads[name], connections, seconds)
                    taken.setdefault(f"{name} {connections}", []).append(asked)
    turns = {name: [asked.turn for asked in some] for name, some in taken.items()}
    for connections in (1, MANY):
        sqlite, single, double = (f"{name} {connections}" for name in loads)
        yield from rate(f"session check on SQLite, {users:,} sessions, {at(connections)}", turns[sqlite])
        yield from rate(f"session check on PostgreSQL, {users:,} sessions, {at(connections)}", turns[single])
        yield _of_the_server(taken[single])
        yield beside("beside SQLite", turns, single, sqlite, 0.35)
        yield from rate(f"two daemons on PostgreSQL, {at(connections)} each", turns[double])
        yield _of_the_server(taken[double])
        # With many connections one daemon, its server and its client use up two cores already.
        yield beside("beside one", turns, double, single, 1.7 if connections == 1 else None)


def _of_the_server(asked: Sequence[Asked]) -> Figure:
    return Figure("  processor time of a request: PostgreSQL", [one.database for one in asked], "µs")


def _size(bench: Bench, node: Node) -> Iterator[Figure]:
    sizes = (100, 400) if bench.quick else (1_000, 1_000_000)
    databases = {size: _moved(bench, node, bench.people(size)) for size in sizes}
    taken: dict[str, list[Asked]] = {str(size): [] for size in sizes}
    with servers(bench) as start:
        daemons = {}
        for size, there in databases.items():
            _use(node, there, size)
            daemons[size] = start.daemon(there)
        checks = {size: [Wrk(bench, signed_in(size))] for size in sizes}
        for turn in range(bench.size(4, 1)):
            for size in sizes[:: -1 if turn % 2 else 1]:
                taken[str(size)].append(_ask(node, checks[size], [daemons[size]], 1, bench.size(2, 1)))
        lists = list(_lists(bench, node, databases, daemons))
    turns = {size: [asked.turn for asked in some] for size, some in taken.items()}
    few, many = map(str, sizes)
    for size in sizes:
        yield from rate(f"session check on PostgreSQL, {size:,} users, 1 connection", turns[str(size)])
        yield _of_the_server(taken[str(size)])
    yield beside(f"{sizes[1]:,} beside {sizes[0]:,}", turns, many, few, 0.95)
    yield from lists


def _lists(
    bench: Bench, node: Node, databases: Mapping[int, str], daemons: Mapping[int, Server]
) -> Iterator[Figure]:
    few, many = databases
    for there in databases.values():
        node.sql("UPDATE users SET role = 'admin' WHERE id = 1", database=there.rpartition("/")[2])
    paths = {
        "list, first page": "/api/users",
        "list, last page": "/api/users?page={pages}",
        "search for one": "/api/users?search=user%20number%2000000050",
    }
    with asking(bench) as asker:
        for what, path in paths.items():
            orders = {
                str(size): Order(daemon.port, [get(path.format(pages=size // 10), ADMIN)])
                for size, daemon in daemons.items()
            }
            rates = in_turns(asker, orders, bench.size(4, 1), bench.seconds(0.3), warm_up=10)
            is_list = what.startswith("list")
            for size in databases:
                median = 1000 / statistics.median(rates[str(size)])
                title = f"{what} on PostgreSQL, {size:,} users"
                yield Figure(title, [median], "ms", at_most=None if is_list else 10)
            grown = rate_beside(rates, str(few), str(many))
            yield Figure(f"  {many:,} beside {few:,}", [grown], "times", at_most=1.5 if is_list else None)


def _start_and_memory(bench: Bench, node: Node) -> Iterator[Figure]:
    file = bench.people(bench.size(10_000, 300))
    there = _moved(bench, node, file)
    here, ours = [], []
    for _ in range(bench.size(5, 1)):
        here.append(until_it_answers(bench, bench.environment(file)))
        ours.append(until_it_answers(bench, bench.environment(there)))
    yield Figure(
        "start of the daemon on PostgreSQL to its first answer", [1000 * seconds for seconds in ours], "ms"
    )
    yield Figure("  beside SQLite", [statistics.median(ratios(ours, here))], "times")
    with servers(bench) as start:
        yield Figure(
            "memory of the idle daemon on PostgreSQL", [start.daemon(there).memory], "MB", at_most=55
        )
