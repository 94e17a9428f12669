"""Questions about the database as a whole, for doctor, backup and health checks."""

import re
import sqlite3
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from usersctl.named import NamedTuple
from usersctl.store.database_file import VERSION
from usersctl.store.statements import Statements, quoted
from usersctl.text import visible


class Server(NamedTuple):
    """The PostgreSQL server of a database, as the role of this connection sees it."""

    role: str
    schema: str
    version: str
    encoding: str
    milliseconds: int  # since 1970, by its clock
    may_create: bool
    foreign_tables: int  # that the role does not own
    schema_of_trigrams: str | None  # of the extension pg_trgm
    is_indexed: bool  # for searches
    is_standby: bool
    is_durable: bool  # a crash loses no commit
    synchronous_standbys: str
    standbys: int
    bytes: int
    limit: str  # of connections: the nearest one
    most: int
    used: int


class Inspection(Statements):
    def change_nothing(self) -> None:
        """Fails if the database cannot be written, which SQLite reports only on a write."""
        self._run("DELETE FROM login_failures WHERE FALSE")

    def parts(self) -> set[str]:
        """The names of tables, indexes and triggers."""
        return {name for (name,) in self._run("SELECT name FROM sqlite_schema")}

    def server(self) -> Server | None:
        """None for a file."""
        return None

    def missing_parts(self) -> set[str]:
        """Of the schema."""
        from usersctl.store.upgrade import names_of_schema  # late: hardly ever needed

        return names_of_schema() - self.parts()

    def broken_page(self) -> str | None:
        """Of a file: the first problem with its pages, by a quick look at all of them."""
        (problem,) = self._run("PRAGMA quick_check(1)").fetchone()
        return None if problem == "ok" else str(problem)

    def not_utf8(self) -> Iterator[str]:
        """Of a file: text that is not UTF-8. SQLite keeps it as it comes, but the rows with it cannot be read."""
        for table, columns in self._texts().items():
            try:
                deque(self.all_rows(table, map(quoted, columns)), maxlen=0)
            except sqlite3.OperationalError as error:
                if not str(error).startswith("Could not decode"):
                    raise
                yield from self._not_utf8_in(table, columns)

    def _texts(self) -> dict[str, list[str]]:
        """The columns of text of each of our tables but the audit trail, whose hashes tell of such text. Others may have added
        columns, of any name."""
        from usersctl.store.upgrade import statements  # late: hardly ever needed

        made = (re.match(r"CREATE TABLE (\w+)", statement) for statement in statements())
        query = "SELECT name FROM pragma_table_info(?) WHERE type = 'TEXT' OR cid = 0"
        texts = {
            table[1]: [name for (name,) in self._run(query, (table[1],))]
            for table in made
            if table and table[1] != "audit"
        }
        return {table: columns for table, columns in texts.items() if columns}  # a missing table has none

    def _not_utf8_in(self, table: str, columns: list[str]) -> Iterator[str]:
        names = [quoted(name) for name in columns]
        with self._readable("backslashreplace"):
            for row in self.all_rows(table, [*names, *(f"CAST({name} AS BLOB)" for name in names)]):
                for name, text, stored in zip(columns, row, row[len(columns) :], strict=False):
                    if isinstance(text, str) and text.encode() != stored:
                        key = f"{columns[0]} {visible(str(row[0]))}"
                        yield f"{table}.{visible(name)} is not UTF-8 in the row with {key}"

    def count_later_than(self, moment: str) -> dict[str, int]:
        """Rows with a time after this moment, by table."""
        columns = {
            "users": ("created_at", "updated_at", "last_login_at"),
            "auth_tokens": ("created_at", "last_used_at"),
            "outbox": ("created_at",),
            "audit": ("at",),
        }
        counts = {}
        for table, names in columns.items():
            later = " OR ".join(f"{name} > :at" for name in names)
            counts[table] = self._number(f"SELECT count(*) FROM {table} WHERE {later}", {"at": moment})
        return counts

    def counts(self) -> dict[str, int]:
        """Rows, by table."""
        tables = (
            "users",
            "totp_secrets",
            "passkeys",
            "auth_tokens",
            "one_time_tokens",
            "outbox",
            "login_failures",
            "audit",
        )
        return {table: self.count_rows(table) for table in tables}

    def count_rows(self, table: str) -> int:
        return self._number(f"SELECT count(*) FROM {table}")

    # --- the whole content, for another database ---

    def all_rows(self, table: str, columns: Iterable[str]) -> Iterable[Sequence[Any]]:
        return self._stream(f"SELECT {', '.join(columns)} FROM {table} ORDER BY 1")

    def last_ids(self) -> dict[str, int]:
        """The last id that each table gave, perhaps of a row that was deleted since."""
        return dict(self._run("SELECT name, seq FROM sqlite_sequence WHERE seq > 0").fetchall())

    def give_no_ids_up_to(self, last: dict[str, int]) -> None:
        given = self.last_ids()
        for table, number in last.items():
            if number > given.get(table, 0):
                self._run("DELETE FROM sqlite_sequence WHERE name = ?", (table,))
                self._insert("sqlite_sequence", name=table, seq=number)

    def mark_as_moved(self, moved_to: str) -> None:
        """From the commit on, no process uses this database."""
        self._run("DROP TABLE IF EXISTS usersctl_moved")
        self._run("CREATE TABLE usersctl_moved (moved_to TEXT NOT NULL)")
        self._insert("usersctl_moved", moved_to=moved_to)
        self._run(f"PRAGMA user_version = -{VERSION}")

    # --- checks ---

    def miscounted(self) -> Iterator[str]:
        kind = "role, active, awaiting_confirmation, invited, signed_in"
        query = f"""
            SELECT role, active, sum(before), sum(after)
            FROM (SELECT {kind}, sum(stored) AS before, sum(actual) AS after
                  FROM (SELECT {kind}, n AS stored, 0 AS actual FROM user_counts
                        UNION ALL SELECT {kind}, 0, 1 FROM users) AS each
                  GROUP BY {kind}) AS kinds
            WHERE before <> after GROUP BY role, active"""
        for role, active, stored, actual in self._run(query):
            accounts = f"{'active' if active else 'inactive'} accounts of role {role}"
            yield f"user_counts has {stored} {accounts}, but there are {actual}"
