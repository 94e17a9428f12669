"""Questions about the database as a whole, for doctor, backup and health checks."""

from typing import NamedTuple

from usersctl.store.statements import Statements


class Server(NamedTuple):
    """The PostgreSQL server of a database, as the role of this connection sees it."""

    role: str
    schema: str
    version: str
    encoding: str
    milliseconds: int  # since 1970, by its clock
    may_create: bool
    foreign_tables: int  # that the role does not own
    has_trigrams: bool
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

    def broken_page(self) -> str | None:
        """The first problem with the pages of the file, by a quick look at all of them."""
        (problem,) = self._run("PRAGMA quick_check(1)").fetchone()
        return None if problem == "ok" else str(problem)

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
        return {table: self._number(f"SELECT count(*) FROM {table}") for table in tables}
