"""Searches among 1,000, 100,000 and 1,000,000 users, and what their index costs: the size of the file, and of a write."""

import shutil
import sqlite3
import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

from tests.benchmarks.frame import HASH, MOMENT, Bench, Figure, add_sessions, add_users, filling
from tests.benchmarks.servers import Order, asking, get, in_turns, servers, use
from usersctl.folding import with_folded
from usersctl.models import Newcomer
from usersctl.store.opening import open_store

ADMIN = "Cookie: auth_token=benchmark-00000000"
ONE, MANY = 10, 50  # milliseconds
SEARCHES = {
    "one by a rare word": ("lovelace", ONE),
    "one by two words, the last name first": ("LOVELACE ádà", ONE),
    "one by a part of a word": ("velac", ONE),
    "one by an international domain": ("ødegård.example", ONE),
    "nobody": ("nosuchname", ONE),
    "a word that all share": ("example", MANY),
    "the last first name, of one in twenty": ("zoë", MANY),
    "two words that many share": ("number zoe", MANY),
}
ADA = {"email": "ada@xn--degrd-ora3k.example", "name": "Ada Lovelace"}


def measure(bench: Bench) -> Iterator[Figure]:
    sizes = (100, 400) if bench.quick else (1_000, 100_000, 1_000_000)
    databases = {
        size: bench.kept(f"search-{size}", lambda filled, size=size: _fill(filled, size)) for size in sizes
    }
    with servers(bench) as start, asking(bench) as asker:
        ports = {size: start.daemon(databases[size]).port for size in sizes}
        for what, (words, at_most) in SEARCHES.items():
            request = [get(f"/api/users?search={quote(words)}", ADMIN)]
            for size in sizes:
                use(databases[size], size)
            orders = {str(size): Order(ports[size], request) for size in sizes}
            rates = in_turns(asker, orders, bench.size(4, 1), bench.seconds(0.3), warm_up=2)
            for size in sizes:
                took = 1000 / statistics.median(rates[str(size)])
                yield Figure(f"search for {what}, {size:,} users", [took], "ms", at_most)
    largest = databases[sizes[-1]]
    without = _without_index(largest, bench.folder / "no-search.db")
    yield Figure(
        "index of the search, bytes for each user", [_bytes_more(largest, without, bench) / sizes[-1]], ""
    )
    for what, path in (("with", largest), ("without", without)):
        yield Figure(
            f"an account is added, {what} the index", [_seconds_to_add(path, bench.size(200, 5)) * 1000], "ms"
        )


def _fill(connection: sqlite3.Connection, size: int) -> None:
    add_users(connection, size)
    add_sessions(connection, size)
    connection.execute("UPDATE users SET role = 'admin' WHERE id = 1")
    connection.execute(
        "UPDATE users SET name = 'Zo\u00eb ' || name, name_folded = 'zoe ' || name_folded WHERE id % 20 = 7"
    )
    row = with_folded(ADA) | {"password_hash": HASH, "active": 1, "created_at": MOMENT, "updated_at": MOMENT}
    marks = ", ".join("?" * len(row))
    connection.execute(f"INSERT INTO users ({', '.join(row)}) VALUES ({marks})", tuple(row.values()))  # noqa: S608 - ours


def _without_index(database: Path, copy: Path) -> Path:
    shutil.copyfile(database, copy)
    with filling(copy) as connection:
        for name in ("users_searched_in", "users_searched_out", "users_searched_over"):
            connection.execute(f"DROP TRIGGER {name}")
        connection.execute("DROP TABLE user_search")
    return copy


def _bytes_more(database: Path, without: Path, bench: Bench) -> int:
    """Both are written anew, so that no free page counts."""
    sizes = []
    for path in (database, without):
        compact = bench.folder / "compact.db"
        compact.unlink(missing_ok=True)
        connection = sqlite3.connect(path)
        connection.execute("VACUUM INTO ?", (str(compact),))
        connection.close()
        sizes.append(compact.stat().st_size)
    return sizes[0] - sizes[1]


def _seconds_to_add(database: Path, times: int) -> float:
    """The median."""
    store, took = open_store(database), []
    for _ in range(times):
        began = time.perf_counter()
        with store.write() as tx:
            number = tx.last_ids()["users"]
            tx.add_user(Newcomer(f"added{number}@example.com", f"Added Person {number}"))
        took.append(time.perf_counter() - began)
    store.close()
    return statistics.median(took)
