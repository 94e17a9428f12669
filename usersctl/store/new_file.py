"""A new database file, filled with the content of another database."""

import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from usersctl.store import database_file
from usersctl.store.checks import check
from usersctl.store.statements import places
from usersctl.store.transaction import Transaction
from usersctl.store.upgrade import statements

CACHE = 32 * 1024  # KiB


@contextmanager
def new_file(target: Path, *, owner: Path | None = None) -> Iterator["NewFile"]:
    """It gets its name when the block ends without an error."""
    with database_file.new_file(target, owner=owner) as path, closing(NewFile(path)) as new:
        yield new


class NewFile:
    def __init__(self, path: Path) -> None:
        self._path = path
        self._connection = sqlite3.connect(path, isolation_level=None)
        # After an error the file is discarded, and it is on the disk before it gets its name.
        for pragma in ("journal_mode = OFF", "synchronous = OFF", f"cache_size = -{CACHE}"):
            self._connection.execute(f"PRAGMA {pragma}")
        self._connection.execute("BEGIN")
        for statement in statements():
            if statement.startswith("CREATE TABLE"):
                self._connection.execute(statement)

    def put(self, table: str, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
        statement = f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({places(columns)})"
        self._connection.executemany(statement, rows)

    def complete(self, last_ids: dict[str, int]) -> Transaction:
        for statement in statements():
            if not statement.startswith(("CREATE TABLE", "INSERT", "WITH")):
                self._connection.execute(statement)
        self._connection.execute("INSERT INTO user_search (user_search) VALUES ('rebuild')")
        self._connection.execute(f"PRAGMA application_id = {database_file.APPLICATION_ID}")
        self._connection.execute(f"PRAGMA user_version = {database_file.VERSION}")
        tx = Transaction(self._connection)
        tx.give_no_ids_up_to(last_ids)
        self._connection.execute("COMMIT")
        return tx

    def problems(self) -> list[str]:
        return [problem.message for problem in check(self._path, read_only=False).problems]

    def finish(self) -> None:
        self._connection.execute("PRAGMA journal_mode = WAL")

    def close(self) -> None:
        self._connection.close()
