"""The session check, `GET /api/users/me`, beside the bare framework, a minimal check and other frameworks."""

import http.client
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping

from tests.benchmarks.frame import Bench, Figure
from tests.benchmarks.servers import (
    Load,
    Server,
    Servers,
    Turn,
    Wrk,
    get,
    servers,
    signed_in,
    take_turns,
    use,
)

MANY = 16  # parallel connections
CONNECTIONS = (1, MANY, 64)
MANY_SESSIONS, MOST_SESSIONS = 10_000, 150_000
STALE = 120  # seconds since the last use
NOTED = 3  # seconds after a request until its use is written
TWO = "[server]\nprocesses = 2\n"
# The headers of a proxy that asks on behalf of another application.
TRUST = '[server]\ntrustedProxies = ["127.0.0.1"]\n'
FORWARDED = (
    "X-Forwarded-For: 192.0.2.7",
    "X-Forwarded-Proto: http",
    "X-Forwarded-Host: 127.0.0.1",
    "X-Forwarded-Method: GET",
    "X-Forwarded-Uri: /orders/7",
)

Turns = Mapping[str, list[Turn]]


def measure(bench: Bench) -> Iterator[Figure]:
    users = bench.size(10_000, 300)
    numbers = CONNECTIONS[: bench.size(3, 2)]
    with servers(bench) as start:
        loads = _loads(bench, start, users)
        taken: dict[str, list[Turn]] = {}
        for connections in numbers:
            use(bench.people(users), users, active=users)
            present = {
                f"{name} {connections}": Load(wrk, server, connections)
                for name, (wrk, server) in loads.items()
                if connections in (MANY, *ALSO.get(name, CONNECTIONS))
            }
            taken |= take_turns(present, bench.size(6, 1), 1)
    for connections in numbers:
        yield from _checks(taken, users, connections)
    yield from _forwarding(taken)
    yield from _others(taken)


# The numbers of connections beside MANY at which these are measured; all others at all of them.
ALSO: dict[str, tuple[int, ...]] = {
    "two": (64,),
    "verify": (1,),
    "forwarded": (1,),
    "minimal": (),
    "flask": (),
    "django": (),
}


def _loads(bench: Bench, start: Servers, users: int) -> dict[str, tuple[Wrk, Server]]:
    database = bench.people(users)
    checks = Wrk(bench, signed_in(users, active=users))

    def forwarded(path: str) -> Wrk:
        return Wrk(bench, signed_in(users, path, *FORWARDED, active=users))

    behind = start.daemon(database, configuration=TRUST)
    tables = bench.database("django")
    tables.unlink()
    flask = start.beside("flask_service", str(database), database=database)
    return {
        "bare": (checks, start.beside("bare", database=database)),
        "ours": (checks, start.daemon(database)),
        "two": (checks, start.daemon(database, configuration=TWO)),
        "verify": (forwarded("/api/users/auth/verify"), behind),
        "forwarded": (forwarded("/api/users/me"), behind),
        "minimal": (checks, start.beside("minimal", str(database), database=database)),
        "flask": (Wrk(bench, _flask_cookies(flask.port, bench.size(100, 10))), flask),
        "django": (checks, start.beside("django_service", str(tables), str(users), database=tables)),
    }


def _checks(taken: Turns, users: int, connections: int) -> Iterator[Figure]:
    where = at(connections)
    bare, ours = f"bare {connections}", f"ours {connections}"
    yield from rate(f"waitress + bottle, 200 bytes of JSON, {where}", taken[bare])
    yield from rate(f"session check, {users:,} sessions, {where}", taken[ours])
    at_least = {1: 0.9, MANY: 1.3}.get(connections)
    yield beside("beside waitress + bottle", taken, ours, bare, at_least)
    yield beside("its processor time beside that", taken, ours, bare, of=_server)
    if f"two {connections}" in taken:
        yield from rate(f"session check, server.processes = 2, {where}", taken[f"two {connections}"])
        promise = 2.0 if connections == MANY else None
        yield beside("beside waitress + bottle (one process)", taken, f"two {connections}", bare, promise)


def _forwarding(taken: Turns) -> Iterator[Figure]:
    for connections in (1, MANY):
        verify, forwarded = f"verify {connections}", f"forwarded {connections}"
        yield from rate(f"forward authentication, {at(connections)}", taken[verify])
        yield beside("beside the session check asked like it", taken, verify, forwarded, 0.95)


def _others(taken: Turns) -> Iterator[Figure]:
    titles = {"minimal": "minimal session check", "flask": "Flask, signed cookie", "django": "Django"}
    for other, title in titles.items():
        yield from rate(f"{title}, {at(MANY)}", taken[f"{other} {MANY}"])
        yield beside("beside waitress + bottle", taken, f"{other} {MANY}", f"bare {MANY}")
        yield beside("our session check beside it", taken, f"ours {MANY}", f"{other} {MANY}", 1)


def measure_stale(bench: Bench) -> Iterator[Figure]:
    """Sessions that were not used for more than a minute: the first use of each is noted."""
    for processes, configuration in ((1, ""), (2, TWO)):
        yield from _stale(bench, MANY_SESSIONS, processes, configuration)
        # So many that each is used once in a turn: every use is noted, which is the worst case.
        yield from _stale(bench, MOST_SESSIONS, processes, configuration)


def _stale(bench: Bench, sessions: int, processes: int, configuration: str) -> Iterator[Figure]:
    """A turn lasts longer than notes wait, and its processor time includes the transaction of the last ones."""
    users, seconds = bench.size(sessions, sessions // 100), bench.size(8, 1)
    database = bench.people(users)
    checks = Wrk(bench, signed_in(users, active=users))
    taken: dict[str, list[Turn]] = defaultdict(list)
    order = (0, STALE, STALE, 0)  # so a machine that becomes slower or quicker is nobody's gain
    for ago in order * bench.size(2, 1):
        use(database, users, active=users, ago=ago)
        with servers(bench) as start:
            ours = start.daemon(database, configuration=configuration)
            turn = checks.ask(ours, MANY, seconds, after=bench.seconds(NOTED))
        if sessions == MOST_SESSIONS and turn.rate * seconds > users and not bench.quick:
            raise RuntimeError(f"{users:,} sessions are too few for {seconds} seconds")
        taken["stale" if ago else "fresh"].append(turn)
    where = f"server.processes = {processes}"
    yield from rate(f"{users:,} fresh sessions, {where}", taken["fresh"])
    yield from rate(f"{users:,} stale sessions, {where}", taken["stale"])
    at_least = 0.9 if sessions == MANY_SESSIONS else None
    yield beside("beside fresh ones", taken, "stale", "fresh", at_least)
    yield beside("its processor time beside that", taken, "stale", "fresh", of=_server)


def measure_size(bench: Bench) -> Iterator[Figure]:
    """The session check of few and of very many users, each with a session. A thousand sessions are in use."""
    sizes = (100, 400) if bench.quick else (1_000, 1_000_000)
    databases = {size: bench.people(size) for size in sizes}
    with servers(bench) as start:
        loads = {}
        for size, database in databases.items():
            use(database, size)
            loads[str(size)] = Load(Wrk(bench, signed_in(size)), start.daemon(database), 1)
        taken = take_turns(loads, bench.size(12, 1), 1)
    few, many = map(str, sizes)
    for size in sizes:
        yield from rate(f"session check, {size:,} users and sessions, 1 connection", taken[str(size)])
    yield beside(f"{sizes[1]:,} beside {sizes[0]:,}", taken, many, few, 0.95)
    yield beside("its processor time beside that", taken, many, few, of=_server)


def measure_client(bench: Bench) -> Iterator[Figure]:
    """What wrk costs, with its script of requests and without."""
    users = bench.size(10_000, 300)
    many, one = Wrk(bench, signed_in(users, active=users)), Wrk(bench, [get("/api/users/me")])
    with servers(bench) as start:
        bare = start.beside("bare", database=bench.folder / "none.db")
        loads = {"many": Load(many, bare, MANY), "one": Load(one, bare, MANY)}
        taken = take_turns(loads, bench.size(4, 1), 1)
    yield Figure("wrk's processor time of a request", [turn.client for turn in taken["many"]], "µs")
    yield Figure("  with one request that it repeats", [turn.client for turn in taken["one"]], "µs")


def rate(title: str, turns: list[Turn]) -> Iterator[Figure]:
    yield Figure(title, [turn.rate for turn in turns], "requests/s")
    yield Figure("  processor time of a request: server", [turn.server for turn in turns], "µs")
    yield Figure("  processor time of a request: client", [turn.client for turn in turns], "µs")


def _rate_of(turn: Turn) -> float:
    return turn.rate


def _server(turn: Turn) -> float:
    return turn.server


def beside(
    title: str,
    taken: Turns,
    one: str,
    other: str,
    at_least: float | None = None,
    *,
    of: Callable[[Turn], float] = _rate_of,
) -> Figure:
    """The ratio of neighbouring turns."""
    ratios = [of(mine) / of(theirs) for mine, theirs in zip(taken[one], taken[other], strict=True)]
    return Figure(f"  {title}", [statistics.median(ratios)], "times", at_least=at_least)


def at(connections: int) -> str:
    return f"{connections} connection{'s' * (connections > 1)}"


def _flask_cookies(port: int, count: int) -> list[str]:
    """Requests with sessions of the Flask service."""
    requests = []
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    for n in range(1, count + 1):
        connection.request("GET", f"/login/{n}")
        answer = connection.getresponse()
        answer.read()
        cookie = (answer.getheader("Set-Cookie") or "").partition(";")[0]
        requests.append(get("/api/users/me", f"Cookie: {cookie}"))
    connection.close()
    return requests
