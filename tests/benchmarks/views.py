"""Views of the table of users: each filter in each order, first, last and middle page, among 1,000 and 1,000,000 users."""

import io
import json
import sqlite3
import time
from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import Any
from wsgiref.util import setup_testing_defaults

from tests.benchmarks.frame import HASH, MOMENT, Bench, Figure, add_sessions
from tests.benchmarks.servers import use

COOKIE = "auth_token=benchmark-00000000"  # of the first user
FLAT = 1.5  # times the smallest size
MANY = 50  # milliseconds
PAGE = 10  # so that the few users of a kind fill two pages among 1,000, too
FAR = 100  # pages: farther ones take long to find by their number
TIMES = 15  # of which the quickest counts: whatever else the machine does only adds to it
ORDERS = list(product(("name", "email", "created", "last-login"), ("asc", "desc")))
VIEWS = {  # with as many users in each size, or the same part of them
    "all users": "",
    "admins": "role=admin",
    "users who are no admins": "role=user",
    "active": "state=active",
    "inactive": "active=false",
    "deactivated": "state=deactivated",
    "awaiting a confirmation": "state=awaiting",
    "invited": "state=invited",
    "never signed in": "state=never-signed-in",
    "locked": "state=locked",
    "a group of one hundred": "group=few",
    "a group of one half": "group=half",
    "of a group of one hundred, active": "group=few&state=active",
}
# Neither few nor a part that a page of the list in any order meets soon: sorted, or looked for.
BETWEEN = {
    "deactivated admins": "state=deactivated&role=admin",
    "a group of one in a hundred": "group=hundredth",
    "a group of one in two hundred": "group=rare",
    "of a group of one half, never signed in": "group=half&state=never-signed-in",
}


def measure(bench: Bench) -> Iterator[Figure]:
    """Processor time of the whole request, without the socket."""
    small, large = (800, 1_600) if bench.quick else (1_000, 1_000_000)
    services = {
        size: Daemon(bench.kept(f"views-{size}", lambda filled, size=size: _fill(filled, size)), size)
        for size in (small, large)
    }
    for what, view in (VIEWS | BETWEEN).items():
        took = {
            (page, f"{sort} {order}"): _milliseconds(
                list(services.values()),
                f"{view}&sort={sort}&order={order}",
                page,
                bench.size(TIMES, 2),
            )
            for sort, order in ORDERS
            for page in PAGES
        }
        if what in BETWEEN:
            slowest = max(many for _, many in took.values())
            yield Figure(f"{what}, {large:,} users, slowest page and order", [slowest], "ms", MANY)
            continue
        for page in PAGES:
            ratio, milliseconds = max(
                (many / few, many) for (of, _), (few, many) in took.items() if of == page
            )
            yield Figure(f"{what}, {page}, {large:,} users, slowest order", [milliseconds], "ms")
            yield Figure(f"  beside {small:,}", [ratio], "times", FLAT)


PAGES = ("first page", "last page", "a page `after`")


def _milliseconds(daemons: Sequence["Daemon"], view: str, page: str, times: int) -> list[float]:
    """They take turns."""
    queries = [f"limit={PAGE}&{view}{daemon.place(view, page)}" for daemon in daemons]
    turns = [
        [daemon.ask(query)[0] for daemon, query in zip(daemons, queries, strict=True)] for _ in range(times)
    ]
    return [min(took) * 1000 for took in zip(*turns, strict=True)]


class Daemon:
    """The application in this process, as its server calls it."""

    def __init__(self, database: Path, size: int) -> None:
        # Late: the peak of a process that another measure starts includes what this one holds.
        from usersctl.config import Settings
        from usersctl.service import build
        from usersd.app import App
        from usersd.log import Log

        use(database, size)
        service = build(Settings(database=database, base_url="http://127.0.0.1:8080"))
        self.app = App(service, log=Log(io.StringIO(), as_json=True, now=service.now), listening=None)
        self.size = size

    def place(self, view: str, page: str) -> str:
        if page == "first page":
            return ""
        pages = max(1, self.ask(f"limit={PAGE}&{view}")[1]["pagination"]["totalPages"])
        if page == "last page":
            return f"&page={pages}"
        half = max(1, pages // 2)
        if half > FAR:
            return f"&page={half}&after={self.size // 2}"  # any user is a place in any list
        before = self.ask(f"limit={PAGE}&{view}&page={half}")[1]["users"]
        return f"&page={half + 1}" + "".join(f"&after={user['id']}" for user in before[-1:])

    def ask(self, query: str) -> tuple[float, dict[str, Any]]:
        environ: dict[str, Any] = {"PATH_INFO": "/api/users", "QUERY_STRING": query, "HTTP_COOKIE": COOKIE}
        setup_testing_defaults(environ)
        statuses: list[str] = []
        began = time.process_time()
        body = b"".join(self.app(environ, lambda status, _headers, *_: statuses.append(status)))
        took = time.process_time() - began
        if statuses != ["200 OK"]:
            raise RuntimeError(f"{query}: {statuses} {body!r}")
        return took, json.loads(body)


def _fill(connection: sqlite3.Connection, size: int) -> None:
    """Names, addresses, times and states in orders that have nothing to do with one another."""
    connection.execute("PRAGMA cache_size = -1000000")
    connection.execute(
        "WITH RECURSIVE numbers (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers LIMIT :size),"
        " mixed AS (SELECT n, n % 101 AS kind, n * 7919 % 1000003 AS a, (n * 7919 + 500) % 1000003 AS b,"
        " (n * 7919 + 333333) % 1000003 AS c, (n * 7919 + 99) % 1000003 AS d FROM numbers)"
        " INSERT INTO users (id, email, name, name_folded, password_hash, role, active, awaiting_confirmation,"
        " invited_at, invitation_expires_at, created_at, updated_at, last_login_at)"
        " SELECT n, printf('u%07d@example.com', b), printf('User %07d', a), printf('user %07d', a), :hash,"
        " CASE n % 33 WHEN 1 THEN 'admin' ELSE 'user' END, kind NOT BETWEEN 10 AND 19, kind BETWEEN 14 AND 16,"
        " CASE WHEN kind > 16 AND kind < 20 THEN :moment END, CASE WHEN kind > 16 AND kind < 20 THEN :moment END,"
        " printf('2026-01-01T00:00:00.%07dZ', c), :moment,"
        " CASE WHEN (a + b) % 5 THEN printf('2026-10-01T00:00:00.%07dZ', d) END FROM mixed",
        {"size": size, "hash": HASH, "moment": MOMENT},
    )
    add_sessions(connection, size)
    for name, condition in (
        ("few", f"id % {size // 100} = 1"),
        ("half", "id % 2 = 1"),
        ("hundredth", "id % 100 = 3"),
        ("rare", "id % 200 = 7"),
    ):
        connection.execute("INSERT INTO groups (name, created_at) VALUES (?, ?)", (name, MOMENT))
        connection.execute(
            f"INSERT INTO group_members (group_id, user_id) SELECT (SELECT max(id) FROM groups), id FROM users WHERE {condition}"  # noqa: S608 - ours
        )
    connection.execute(
        f"INSERT INTO login_failures (account, user_id, failures, last_failed_at)"  # noqa: S608 - ours
        f" SELECT 'user:' || id, id, 90, '{MOMENT}' FROM users WHERE id % {size // 40} = 2"
    )
