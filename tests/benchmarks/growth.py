"""The cost of requests and commands at 1,000, 100,000 and 1,000,000 users; that of a session check is in `sessions`."""

import sqlite3
import statistics
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path

from tests.benchmarks.daemon import until_it_answers
from tests.benchmarks.frame import (
    MOMENT,
    USER_AGENT,
    Bench,
    Figure,
    add_audit_rows,
    add_sessions,
    add_users,
    filling,
)
from tests.benchmarks.logins import PASSWORD
from tests.benchmarks.servers import Order, asking, beside, get, in_turns, post, servers, use
from usersctl.passwords import Hasher

COST = 10  # the lowest cost, so that bcrypt hides as little as possible
EXPIRED = 1_000
ADMIN = "Cookie: auth_token=benchmark-00000000"

FLAT = 1.5  # times the smallest size: constant, apart from caches and deeper trees
MEASURED = {  # by how much each may grow; None for those that read the rows they skip
    "login": FLAT,
    "list, first page": FLAT,
    "list, last page": FLAT,
    "list, page in the middle with `after`": FLAT,
    "list, page in the middle by its number": None,
    "overview": FLAT,
    "audit trail, first page": FLAT,
    "audit trail of a user": FLAT,
    "audit trail of a rare actor": FLAT,
    "audit trail of a rare action": FLAT,
    "audit trail of a rare action by another actor": None,
    "audit trail of a day long ago": FLAT,
    "page of the audit trail": FLAT,
}
COMMANDS = {
    "start of the daemon": FLAT,
    f"cleanup-tokens of {EXPIRED:,} expired": FLAT,
    "list --sort email --desc": FLAT,
    "list --sort created": FLAT,
    "list --sort last-login --desc": FLAT,
    "export of all": None,  # it writes every row
}


def measure(bench: Bench) -> Iterator[Figure]:
    sizes = (100, 400) if bench.quick else (1_000, 100_000, 1_000_000)
    databases = {size: _filled(bench, size) for size in sizes}
    took: dict[str, dict[int, float]] = defaultdict(dict)  # milliseconds
    grown: dict[str, float] = {}
    with servers(bench) as start, asking(bench) as asker:
        rounds = f"[passwordHashing]\nrounds = {COST}\n"
        ports = {size: start.daemon(databases[size], configuration=rounds).port for size in sizes}
        for what in MEASURED:
            for size in sizes:
                use(databases[size], size)
            orders = {str(size): Order(ports[size], _requests(size)[what]) for size in sizes}
            rates = in_turns(asker, orders, bench.size(4, 1), bench.seconds(0.3), warm_up=2)
            for size in sizes:
                took[what][size] = 1000 / statistics.median(rates[str(size)])
            grown[what] = beside(rates, str(sizes[0]), str(sizes[-1]))
    for size in sizes:
        for what, seconds in _without_a_daemon(bench, databases[size], size).items():
            took[what][size] = seconds * 1000
    for what in COMMANDS:
        grown[what] = took[what][sizes[-1]] / took[what][sizes[0]]
    for what, at_most in (MEASURED | COMMANDS).items():
        for size in sizes:
            yield Figure(f"{what}, {size:,} users", [took[what][size]], "ms")
        yield Figure(f"  {sizes[-1]:,} beside {sizes[0]:,}", [grown[what]], "times", at_most)


def _filled(bench: Bench, size: int) -> Path:
    def fill(connection: sqlite3.Connection) -> None:
        add_users(connection, size, hashed=Hasher(COST).hash(PASSWORD))
        add_sessions(connection, size)
        add_audit_rows(connection, size)
        connection.execute("UPDATE users SET role = 'admin' WHERE id = 1")

    return bench.kept(f"growth-{size}", fill)


def _requests(size: int) -> Mapping[str, list[str]]:
    pages = size // 10
    middle = pages // 2
    step = max(1, size // 1_000)
    return {
        "login": [
            post("/api/users/session", {"email": f"user{n:08}@example.com", "password": PASSWORD})
            for n in range(0, size, step)
        ],
        "list, first page": [get("/api/users", ADMIN)],
        "list, last page": [get(f"/api/users?page={pages}", ADMIN)],
        # Lists sort by name and id, which is the order in which `add_users` adds.
        "list, page in the middle with `after`": [
            get(f"/api/users?page={middle + 1}&after={10 * middle}", ADMIN)
        ],
        "list, page in the middle by its number": [get(f"/api/users?page={middle + 1}", ADMIN)],
        "overview": [get("/overview", ADMIN)],
        "audit trail, first page": [get("/api/audit", ADMIN)],
        "audit trail of a user": [get(f"/api/audit?user={size // 2}", ADMIN)],
        "audit trail of a rare actor": [get("/api/audit?actor=cli:rare", ADMIN)],
        "audit trail of a rare action": [get("/api/audit?action=lockdown-on", ADMIN)],
        "audit trail of a rare action by another actor": [
            get("/api/audit?action=lockdown-on&actor=user:1", ADMIN)
        ],
        "audit trail of a day long ago": [get(f"/api/audit?until={size * 3 // 4}m", ADMIN)],
        "page of the audit trail": [get("/audit", ADMIN)],
    }


def _without_a_daemon(bench: Bench, database: Path, size: int) -> dict[str, float]:
    """The seconds of each command."""
    env = bench.environment(database)
    starts = [until_it_answers(bench, env) for _ in range(bench.size(5, 1))]
    seconds = {"start of the daemon": statistics.median(starts)}
    with filling(database) as connection:
        connection.executemany(
            "INSERT INTO auth_tokens (user_id, token_hash, kind, name, created_at, expires_at, user_agent)"
            " VALUES (?, randomblob(32), 'session', 'login', ?2, ?2, ?3)",
            ((1 + n % size, MOMENT, USER_AGENT) for n in range(EXPIRED)),
        )
    cleaned = bench.usersctl(database, "cleanup-tokens", "--quiet")
    seconds[f"cleanup-tokens of {EXPIRED:,} expired"] = cleaned.seconds
    some = ("--limit", "50", "--json")
    lists = {
        "list --sort email --desc": ("--sort", "email", "--desc", *some),
        "list --sort created": ("--sort", "created", *some),
        "list --sort last-login --desc": ("--sort", "last-login", "--desc", *some),
    }
    for what, words in lists.items():
        seconds[what] = min(bench.usersctl(database, "list", *words).seconds for _ in range(bench.size(3, 1)))
    target = bench.folder / "people.jsonl"
    seconds["export of all"] = bench.usersctl(database, "export", str(target)).seconds
    target.unlink()
    return seconds
