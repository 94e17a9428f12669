"""Logins beside bcrypt alone, and session checks during a storm of logins."""

import subprocess
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path

from tests.benchmarks.frame import Bench, Figure, add_sessions, add_users, filling
from tests.benchmarks.servers import Asker, Load, Order, Wrk, asking, post, servers, signed_in
from usersctl.passwords import Hasher

PASSWORD = "correct horse battery"
COST = 12
CLIENTS = 8
STORM = 32
MANY = 16

# The checks per second of this machine on all cores, with the low priority of the daemon's hashing threads.
BCRYPT = """
import bcrypt, os, sys, threading, time
hashed, password = sys.argv[1].encode(), sys.argv[2].encode()
def work(until, done):
    if sys.platform == "linux":
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 10)
    while not done or time.perf_counter() < until:  # a busy machine may begin late
        bcrypt.checkpw(password, hashed)
        done.append(time.perf_counter())
for line in sys.stdin:
    began, done = time.perf_counter(), []
    threads = [threading.Thread(target=work, args=(began + float(line), done)) for _ in range(os.cpu_count() or 1)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    print(len(done) / (max(done) - began), flush=True)
"""


def measure(bench: Bench) -> Iterator[Figure]:
    yield from of(bench, filled(bench), at_least=0.95)


def filled(bench: Bench) -> Path:
    """A new database of users with sessions, who all have the same password."""
    database, users = bench.database("logins"), _users(bench)
    with filling(database) as connection:
        add_users(connection, users, hashed=Hasher(_cost(bench)).hash(PASSWORD))
        add_sessions(connection, users)
    return database


def _users(bench: Bench) -> int:
    return bench.size(1_000, 40)


def _cost(bench: Bench) -> int:
    return bench.size(COST, 10)


def of(bench: Bench, database: Path | str, *, at_least: float) -> Iterator[Figure]:
    cost, users = _cost(bench), _users(bench)
    logins = [
        post("/api/users/session", {"email": f"user{n:08}@example.com", "password": PASSWORD})
        for n in range(users)
    ]
    with servers(bench) as start, asking(bench) as asker:
        ours = start.daemon(database, configuration=f"[passwordHashing]\nrounds = {cost}\n")
        yield from _logins(bench, asker, Order(ours.port, logins, CLIENTS), at_least)
        checks = Wrk(bench, signed_in(users))
        for connections in (1, MANY):
            yield from _storm(
                bench, asker, Order(ours.port, logins, bench.size(STORM, 4)), Load(checks, ours, connections)
            )


def _logins(bench: Bench, asker: Asker, logins: Order, at_least: float) -> Iterator[Figure]:
    """Alternates with bcrypt alone."""
    seconds, shares, rates = bench.seconds(3), [], []
    with _bcrypt(bench, Hasher(_cost(bench)).hash(PASSWORD)) as alone:
        for _ in range(bench.size(2, 1)):
            before = _alone(alone, seconds)
            rates.append(asker.ask(logins, seconds, warm_up=0)["rate"])
            shares.append(2 * rates[-1] / (before + _alone(alone, seconds)))
    yield Figure(f"logins, {CLIENTS} clients", rates, "logins/s")
    yield Figure("  beside bcrypt alone on all cores", shares, "times", at_least=at_least)


def _storm(bench: Bench, stormer: Asker, storm: Order, checks: Load) -> Iterator[Figure]:
    """Alternates quiet phases and storms."""
    seconds = bench.size(3, 1)
    shares, rates, slowest = [], [], []
    for _ in range(bench.size(2, 1)):
        quiet = checks.wrk.ask(checks.server, checks.connections, seconds)
        stormer.begin(storm, bench.seconds(1.3 * seconds), warm_up=0)
        stormy = checks.wrk.ask(checks.server, checks.connections, seconds)
        stormer.end(refusals=True)
        rates.append(stormy.rate)
        shares.append(stormy.rate / quiet.rate)
        slowest.append(stormy.p99 * 1000)
    title = f"session check, {checks.connections} connection{'s' * (checks.connections > 1)}"
    yield Figure(f"{title}, while {STORM} clients log in", rates, "requests/s")
    yield Figure("  beside itself when all is quiet", shares, "times", at_least=0.75)
    yield Figure("  99 of 100 within", [max(slowest)], "ms", at_most=20)


def _bcrypt(bench: Bench, hashed: str) -> AbstractContextManager["subprocess.Popen[str]"]:
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    return bench.started(
        ["-c", BCRYPT, hashed, PASSWORD], bench.environment(bench.folder / "none.db"), **pipes
    )


def _alone(process: "subprocess.Popen[str]", seconds: float) -> float:
    print(seconds, file=process.stdin, flush=True)
    return float(process.stdout.readline() if process.stdout else "")
