"""Start-up time and memory of the daemon."""

import time
from collections.abc import Iterator

from tests.benchmarks.frame import BARE_SERVER, START, Bench, Figure, add_sessions, add_users, filling, ratios
from tests.benchmarks.servers import Order, answering, asking, free_port, servers, signed_in


def measure_start(bench: Bench) -> Iterator[Figure]:
    users = bench.size(100_000, 300)
    database = bench.database("start")
    with filling(database) as connection:
        add_users(connection, users)
        add_sessions(connection, users)
    env = bench.environment(database)
    bare, ours = [], []
    for _ in range(bench.size(15, 1)):
        bare.append(bench.run(["-c", BARE_SERVER], env).seconds)
        ours.append(until_it_answers(bench, env))
    yield Figure(f'python -c "{BARE_SERVER}"', [seconds * 1000 for seconds in bare], "ms")
    yield Figure(
        f"usersctl serve, {users:,} users, to its first answer",
        [seconds * 1000 for seconds in ours],
        "ms",
        2000,
    )
    yield Figure("  beside the bare one", ratios(ours, bare), "times", 2.2)


def until_it_answers(bench: Bench, env: dict[str, str]) -> float:
    port = free_port()
    began = time.perf_counter()
    with (
        (bench.folder / "start.log").open("w") as log,
        bench.started(["-c", START, "serve", "--port", str(port)], env, stderr=log) as process,
    ):
        answering(port, process)
        return time.perf_counter() - began


def measure_memory(bench: Bench) -> Iterator[Figure]:
    users, requests = bench.size(10_000, 300), bench.size(100_000, 500)
    database = bench.database("memory")
    with filling(database) as connection:
        add_users(connection, users)
        add_sessions(connection, users)
    bare, idle, after_some, after_many = [], [], [], []
    for _ in range(bench.size(3, 1)):
        with servers(bench) as start, asking(bench) as asker:
            theirs, ours = start.beside("bare", database=database), start.daemon(database)
            bare.append(theirs.memory)
            idle.append(ours.memory)
            asked = 0.0
            for enough, memory in ((requests / 10, after_some), (requests, after_many)):
                while asked < enough:
                    seconds = bench.seconds(1)
                    asked += asker.ask(Order(ours.port, signed_in(users), 16), seconds)["rate"] * seconds
                memory.append(ours.memory)
    yield Figure("memory of idle waitress + bottle", bare, "MB")
    yield Figure("memory of the idle daemon", idle, "MB")
    yield Figure("  beside waitress + bottle", ratios(idle, bare), "times", 2.5)
    yield Figure(f"memory after {requests:,} requests", after_many, "MB")
    yield Figure(f"  beside that after {requests // 10:,}", ratios(after_many, after_some), "times", 1.1)
