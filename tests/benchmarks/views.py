"""Views of the table of users: each filter in each order, first, last and middle page, among 1,000 and 1,000,000 users."""

import sqlite3
from collections.abc import Iterator, Mapping
from itertools import product
from pathlib import Path

from tests.benchmarks.frame import HASH, MOMENT, Bench, Figure, add_sessions
from tests.benchmarks.servers import Asker, Order, asking, get, in_turns, servers, use

ADMIN = "Cookie: auth_token=benchmark-00000000"
FLAT = 1.5  # times the smallest size
MANY = 50  # milliseconds
PAGE = 10  # so that the few users of a kind fill it among 1,000, too
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
    sizes = (200, 800) if bench.quick else (1_000, 1_000_000)
    databases = {
        size: bench.kept(f"views-{size}", lambda filled, size=size: _fill(filled, size)) for size in sizes
    }
    with servers(bench) as start, asking(bench) as asker:
        ports = {size: start.daemon(databases[size]).port for size in sizes}
        for what, view in (VIEWS | BETWEEN).items():
            for size in sizes:
                use(databases[size], size)
            took = {
                f"{sort} {order}, {page}": _milliseconds(bench, asker, ports, requests)
                for sort, order in ORDERS
                for page, requests in _pages(databases, f"{view}&sort={sort}&order={order}").items()
            }
            if what in BETWEEN:
                worst = max(took, key=lambda order: took[order][sizes[-1]])
                yield Figure(
                    f"{what}, {sizes[-1]:,} users, slowest ({worst})", [took[worst][sizes[-1]]], "ms", MANY
                )
                continue
            ratio = {order: times[sizes[-1]] / times[sizes[0]] for order, times in took.items()}
            for page in ("first page", "last page", "page in the middle"):
                worst = max(
                    (order for order in ratio if order.endswith(page)), key=lambda order: ratio[order]
                )
                yield Figure(f"{what}, {page}, {sizes[-1]:,} users", [took[worst][sizes[-1]]], "ms")
                yield Figure(f"  beside {sizes[0]:,}, slowest order ({worst})", [ratio[worst]], "times", FLAT)


def _milliseconds(
    bench: Bench, asker: Asker, ports: Mapping[int, int], requests: Mapping[int, str]
) -> dict[int, float]:
    """Of the quickest turn: whatever else the machine does only adds to it."""
    orders = {str(size): Order(ports[size], [get(request, ADMIN)]) for size, request in requests.items()}
    rates = in_turns(asker, orders, bench.size(4, 1), bench.seconds(0.06), warm_up=2)
    return {size: 1000 / max(rates[str(size)]) for size in requests}


def _pages(databases: Mapping[int, Path], view: str) -> dict[str, dict[int, str]]:
    """The requests by database, for the pages that have to be as quick among many users."""
    pages: dict[str, dict[int, str]] = {"first page": {}, "last page": {}, "page in the middle": {}}
    for size, database in databases.items():
        request = f"/api/users?limit={PAGE}&{view}"
        pages["first page"][size] = request
        pages["last page"][size] = f"{request}&page={_last_page(database, view)}"
        # Any user is a place in any list.
        pages["page in the middle"][size] = f"{request}&page=2&after={size // 2}"
    return pages


def _last_page(database: Path, view: str) -> int:
    from urllib.parse import parse_qsl

    from usersctl.models import UserFilter
    from usersctl.store.store import Store

    asked = dict(parse_qsl(view))
    wanted = UserFilter(role=asked.get("role"), state=asked.get("state"), group=asked.get("group"))
    if "active" in asked:
        wanted = wanted._replace(active=False)
    store = Store.open(database)
    with store.read() as tx:
        pages = tx.page(wanted, limit=PAGE).total_pages
    store.close()
    return max(1, pages)


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
        " CASE n % 100 WHEN 1 THEN 'admin' ELSE 'user' END, kind NOT BETWEEN 10 AND 19, kind = 18,"
        " CASE kind WHEN 19 THEN :moment END, CASE kind WHEN 19 THEN :moment END,"
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
        f" SELECT 'user:' || id, id, 90, '{MOMENT}' FROM users WHERE id % {size // 20} = 2"
    )
