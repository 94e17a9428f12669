"""Start-up time and memory of the daemon."""

import time
from collections.abc import Iterator

from tests.benchmarks.frame import BARE_SERVER, START, Bench, Figure, ratios
from tests.benchmarks.servers import Order, answering, asking, free_port, servers, signed_in, use


def measure_start(bench: Bench) -> Iterator[Figure]:
    users = bench.size(100_000, 300)
    database = bench.people(users)
    env = bench.environment(database)
    bare, ours = [], []
    for _ in range(bench.size(7, 1)):
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
    database = bench.people(users)
    use(database, users)
    after: list[float] = []
    with servers(bench) as start, asking(bench) as asker:
        bare, ours = start.beside("bare", database=database), start.daemon(database)
        idle = ours.memory
        asked = 0.0
        for enough in (requests / 10, requests):
            while asked < enough:
                seconds = bench.seconds(1)
                asked += asker.ask(Order(ours.port, signed_in(users), 16), seconds)["rate"] * seconds
            after.append(ours.memory)
        yield Figure("memory of idle waitress + bottle", [bare.memory], "MB")
        yield Figure("memory of the idle daemon", [idle], "MB")
        yield Figure("  beside waitress + bottle", [idle / bare.memory], "times", 1.6)
    yield Figure(f"memory after {requests:,} requests", [after[1]], "MB")
    yield Figure(f"  beside that after {requests // 10:,}", [after[1] / after[0]], "times", 1.1)
