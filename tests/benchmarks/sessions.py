"""The session check, `GET /api/users/me`, beside the bare framework, a minimal check and other frameworks."""

import http.client
from collections import defaultdict
from collections.abc import Iterator

from tests.benchmarks.frame import Bench, Figure, add_sessions, add_users, filling
from tests.benchmarks.servers import Order, asking, beside, get, in_turns, servers, signed_in, use

MANY = 16  # parallel connections
# The headers of a proxy that asks on behalf of another application.
TRUST = '[server]\ntrustedProxies = ["127.0.0.1"]\n'
FORWARDED = (
    "X-Forwarded-For: 192.0.2.7",
    "X-Forwarded-Proto: http",
    "X-Forwarded-Host: 127.0.0.1",
    "X-Forwarded-Method: GET",
    "X-Forwarded-Uri: /orders/7",
)


def measure(bench: Bench) -> Iterator[Figure]:
    users = bench.size(10_000, 300)
    database = bench.database("sessions")
    with filling(database) as connection:
        add_users(connection, users)
        add_sessions(connection, users)
    checks = signed_in(users)

    def forwarded(path: str) -> list[str]:
        return signed_in(users, path, *FORWARDED)

    measured: dict[str, list[float]] = defaultdict(list)
    for run in range(bench.size(3, 1)):
        with servers(bench) as start, asking(bench) as asker:
            ours = start.daemon(database)
            two = start.daemon(database, configuration="[server]\nprocesses = 2\n")
            behind = start.daemon(database, configuration=TRUST)
            bare = start.beside("bare", database=database)
            minimal = start.beside("minimal", str(database), database=database)
            theirs = bench.database(f"django-{run}")
            theirs.unlink()
            django = start.beside("django_service", str(theirs), str(users), database=theirs)
            flask = start.beside("flask_service", str(database), database=database)
            cookies = _flask_cookies(flask.port, bench.size(100, 10))
            for connections in (1, MANY):
                orders = {
                    "bare": Order(bare.port, checks, connections),
                    "ours": Order(ours.port, checks, connections),
                    "verify": Order(behind.port, forwarded("/api/users/auth/verify"), connections),
                    "forwarded": Order(behind.port, forwarded("/api/users/me"), connections),
                    "minimal": Order(minimal.port, checks, connections),
                }
                if connections == MANY:
                    orders |= {
                        "two": Order(two.port, checks, connections),
                        "django": Order(django.port, checks, connections),
                        "flask": Order(flask.port, cookies, connections),
                    }
                use(database, users)
                rates = in_turns(asker, orders, bench.size(12, 1), bench.seconds(0.4))
                for name, values in rates.items():
                    measured[f"{name} {connections}"] += values
                    for other in ("bare", "minimal", "ours", "forwarded"):
                        measured[f"{name} beside {other} {connections}"].append(beside(rates, name, other))

    def rate(title: str, name: str) -> Figure:
        return Figure(title, measured[name], "requests/s")

    def ratio(title: str, name: str, at_least: float | None = None) -> Figure:
        return Figure(f"  {title}", measured[name], "times", at_least=at_least)

    one, many = "1 connection", f"{MANY} connections"
    yield rate(f"waitress + bottle, 200 bytes of JSON, {one}", "bare 1")
    yield rate(f"session check, {users:,} users, {one}", "ours 1")
    yield ratio("beside waitress + bottle", "ours beside bare 1", 0.75)
    yield ratio("beside a minimal session check", "ours beside minimal 1")
    yield rate(f"forward authentication, {one}", "verify 1")
    yield ratio("beside the session check asked like it", "verify beside forwarded 1", 0.95)
    yield rate(f"waitress + bottle, 200 bytes of JSON, {many}", f"bare {MANY}")
    yield rate(f"session check, {many}", f"ours {MANY}")
    yield ratio("beside waitress + bottle", f"ours beside bare {MANY}", 0.60)
    yield rate(f"forward authentication, {many}", f"verify {MANY}")
    yield ratio("beside the session check asked like it", f"verify beside forwarded {MANY}", 0.95)
    yield rate(f"session check, server.processes = 2, {many}", f"two {MANY}")
    yield ratio("beside waitress + bottle (one process)", f"two beside bare {MANY}", 1.2)
    for other, title in (
        ("minimal", "minimal session check"),
        ("flask", "Flask, signed cookie"),
        ("django", "Django"),
    ):
        yield rate(f"{title}, {many}", f"{other} {MANY}")
        yield ratio("beside waitress + bottle", f"{other} beside bare {MANY}")
        yield Figure(
            "  our session check beside it",
            [1 / value for value in measured[f"{other} beside ours {MANY}"]],
            "times",
            at_least=0.85 if other == "minimal" else 1,
        )


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
