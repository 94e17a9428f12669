"""Databases of tests: an empty one is made and then copied, and no test waits until the disk has what it wrote.

A test names the file that its database would be. With `--postgres` it gets one on the server in its place.
"""

import os
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import cache, wraps
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from support import postgres

from usersctl.folding import folded
from usersctl.store import database_file
from usersctl.store.conninfo import Conninfo, Database
from usersctl.store.opening import open_store

# A folder for databases of tests that write much: nothing is lost with them but time.
IN_MEMORY = postgres.IN_MEMORY

SECRET_KEY = "the secret key of a service on a server"
_on_server: dict[Path, Conninfo] = {}


def spare_the_disk() -> None:
    """From now on a commit in this process does not wait for the disk. Only a power cut would tell the difference."""
    connect = database_file.connect

    @wraps(connect)  # which keeps the original as __wrapped__, for the tests of it
    def connected(*arguments: Any, **keywords: Any) -> sqlite3.Connection:
        connection = connect(*arguments, **keywords)
        connection.execute("PRAGMA synchronous = OFF")
        return connection

    database_file.connect = connected


def keep_folders_in_memory() -> None:
    """From now on the folders of tests are there, if there is room and programs may run: removing them is quicker."""
    if IN_MEMORY is None or os.statvfs(IN_MEMORY).f_flag & os.ST_NOEXEC:
        return
    if shutil.disk_usage(IN_MEMORY).free > 4 * 10**9:
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", IN_MEMORY)


def database_at(path: Path) -> Any:
    """The path, or the address of the database on the server that stands for it, which has our tables and no rows."""
    if not postgres.is_whole():
        return path
    if path not in _on_server:
        _on_server[path] = postgres.add_database()
    return _on_server[path]


def use_database(path: Path, database: Conninfo) -> None:
    """One that is on the server already stands for this path."""
    _on_server[path] = database


def fields_of(database: Database, folder: Path) -> dict[str, Any]:
    """Of the settings of a service. `folder`: for its files, which otherwise stand beside the database."""
    fields: dict[str, Any] = {"database": database, "state_folder": folder}
    if isinstance(database, Conninfo):
        fields["secret_keys"] = (SECRET_KEY,)
    return fields


@contextmanager
def dropped_afterwards() -> Iterator[None]:
    """Drops the databases on the server that are made meanwhile."""
    before = set(_on_server)
    yield
    for path in _on_server.keys() - before:
        postgres.drop_database(_on_server.pop(path))


def add_database(database: Database) -> None:
    """Puts an empty database at this path, if there is no file yet. One on the server is there."""
    if isinstance(database, Path) and not database.exists():
        database_file.create_file(database)
        database.write_bytes(_content())


@cache
def _content() -> bytes:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "users.db"
        open_store(path, create=True).close()
        return path.read_bytes()


@contextmanager
def opened(database: Database) -> Iterator[Any]:
    """A connection past the service, which commits each statement by itself, in the words of SQLite."""
    if isinstance(database, Conninfo):
        with postgres.opened(database) as connection:
            yield connection
    else:
        with closing(sqlite3.connect(database, isolation_level=None, timeout=10)) as connection:
            yield connection


def destroy(database: Database) -> None:
    """After it nothing of the database can be read."""
    if isinstance(database, Conninfo):
        postgres.drop_database(database)
        return
    database.write_bytes(b"no database at all, but long enough to be looked at" * 100)
    for suffix in ("-wal", "-shm"):
        database.with_name(database.name + suffix).unlink(missing_ok=True)


def hold(connection: Any) -> None:
    """Begins a transaction during which no other can write."""
    if isinstance(connection, sqlite3.Connection):
        connection.execute("BEGIN IMMEDIATE")
    else:
        postgres.hold(connection)


@contextmanager
def held(database: Database) -> Iterator[Any]:
    """The same, while no other can write. What it changed is undone at the end, unless it said COMMIT."""
    with opened(database) as connection:
        hold(connection)
        yield connection
        if connection.in_transaction:
            connection.execute("ROLLBACK")


def add_crowd(database: Database, count: int, name: str) -> None:
    """Many users at once. `name` may have a place for their number."""
    row = "(email, name, name_folded, password_hash, active, created_at, updated_at)"
    with held(database) as connection:
        for number in range(1, count + 1):
            called = name.format(number)
            connection.execute(
                f"INSERT INTO users {row} VALUES (?, ?, ?, '!', 1, '2026', '2026')",  # noqa: S608 - our own columns
                (f"crowd{number:04}@example.com", called, folded(called)),
            )
        connection.execute("COMMIT")


def is_sound(database: Database) -> bool:
    """Whether the file is not damaged; a server looks after its own."""
    if isinstance(database, Conninfo):
        return True
    with opened(database) as connection:
        return connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
