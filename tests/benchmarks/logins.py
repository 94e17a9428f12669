"""Logins beside bcrypt alone, and session checks during a storm of logins."""

import statistics
import subprocess
from collections import defaultdict
from collections.abc import Iterator
from contextlib import AbstractContextManager

from tests.benchmarks.frame import Bench, Figure, add_sessions, add_users, filling
from tests.benchmarks.servers import Asker, Order, asking, post, servers, signed_in
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
    while time.perf_counter() < until:
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
    database = bench.database("logins")
    cost, users = bench.size(COST, 10), bench.size(1_000, 40)
    hashed = Hasher(cost).hash(PASSWORD)
    with filling(database) as connection:
        add_users(connection, users, hashed=hashed)
        add_sessions(connection, users)
    measured: dict[str, list[float]] = defaultdict(list)
    for _ in range(bench.size(3, 1)):
        with servers(bench) as start, asking(bench) as asker, asking(bench) as stormer:
            ours = start.daemon(database, configuration=f"[passwordHashing]\nrounds = {cost}\n")
            logins = [
                post("/api/users/session", {"email": f"user{n:08}@example.com", "password": PASSWORD})
                for n in range(users)
            ]
            with _bcrypt(bench, hashed) as alone:
                seconds, ratios, rates = bench.seconds(3), [], []
                for _ in range(bench.size(3, 1)):
                    before = _alone(alone, seconds)
                    rate = asker.ask(Order(ours.port, logins, CLIENTS), seconds, warm_up=0)["rate"]
                    rates.append(rate)
                    ratios.append(2 * rate / (before + _alone(alone, seconds)))
            measured["logins"].append(statistics.median(rates))
            measured["logins beside bcrypt"].append(statistics.median(ratios))
            for connections in (1, MANY):
                checks = Order(ours.port, signed_in(users), connections)
                storm = Order(ours.port, logins, STORM)
                _storm(bench, asker, stormer, checks, storm, measured)

    yield Figure(f"logins, {CLIENTS} clients, bcrypt of cost {cost}", measured["logins"], "logins/s")
    yield Figure(
        "  beside bcrypt alone on all cores", measured["logins beside bcrypt"], "times", at_least=0.90
    )
    for connections in (1, MANY):
        title = f"session check, {connections} connection{'s' * (connections > 1)}"
        yield Figure(f"{title}, while {STORM} clients log in", measured[f"rate {connections}"], "requests/s")
        yield Figure(
            "  beside itself when all is quiet", measured[f"share {connections}"], "times", at_least=0.5
        )
        yield Figure("  99 of 100 within", measured[f"p99 {connections}"], "ms", at_most=50)


def _storm(
    bench: Bench, asker: Asker, stormer: Asker, checks: Order, storm: Order, measured: dict[str, list[float]]
) -> None:
    """Alternates quiet phases and storms."""
    seconds = bench.seconds(3)
    shares, rates, slowest = [], [], []
    for _ in range(bench.size(2, 1)):
        quiet = asker.ask(checks, seconds)["rate"]
        stormer.begin(storm, 1.3 * seconds, warm_up=0)
        stormy = asker.ask(checks, seconds)
        stormer.end(refusals=True)
        rates.append(stormy["rate"])
        shares.append(stormy["rate"] / quiet)
        slowest.append(stormy["p99"] * 1000)
    measured[f"rate {checks.connections}"].append(statistics.median(rates))
    measured[f"share {checks.connections}"].append(statistics.median(shares))
    measured[f"p99 {checks.connections}"].append(max(slowest))


def _bcrypt(bench: Bench, hashed: str) -> AbstractContextManager["subprocess.Popen[str]"]:
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    return bench.started(
        ["-c", BCRYPT, hashed, PASSWORD], bench.environment(bench.folder / "none.db"), **pipes
    )


def _alone(process: "subprocess.Popen[str]", seconds: float) -> float:
    print(seconds, file=process.stdin, flush=True)
    return float(process.stdout.readline() if process.stdout else "")
