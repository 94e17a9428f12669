"""Reads the tables of a service, writes rows past it, and shows the statements that it runs."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from usersctl.models import AuditRow, User
from usersctl.secrets import digest
from usersctl.service import Service
from usersctl.store.conninfo import Conninfo
from usersctl.store.transaction import Transaction

LATER = "2999-01-01T00:00:00.000Z"


def audit(service: Service) -> list[AuditRow]:
    with service.store.read() as tx:
        return list(tx.audit_rows())


def query(service: Service, sql: str, *values: object) -> list[tuple[Any, ...]]:
    with service.store.read() as tx:
        return tx._run(sql, values).fetchall()


def everything(service: Service) -> dict[str, list[tuple[Any, ...]]]:
    """All rows of all tables, at one moment."""
    statement = "SELECT name FROM sqlite_schema WHERE type = 'table'"
    if isinstance(service.store.database, Conninfo):
        statement = "SELECT table_name FROM information_schema.tables WHERE table_schema = current_schema()"
    with service.store.read() as tx:
        tables = [name for (name,) in tx._run(statement).fetchall()]
        return {name: sorted(tx._run(f"SELECT * FROM {name}").fetchall(), key=repr) for name in tables}  # noqa: S608 - our own tables


def written(service: Service) -> bytes:
    """All that the database holds: its files or, on a server, its rows."""
    database = service.store.database
    if isinstance(database, Path):
        return b"".join(file.read_bytes() for file in database.parent.glob(f"{database.name}*"))
    values = [value for rows in everything(service).values() for row in rows for value in row]
    return b"\n".join(value if isinstance(value, bytes) else str(value).encode() for value in values)


def columns(service: Service) -> dict[str, list[str]]:
    """The names of the columns of all tables."""
    statement = (
        "SELECT tables.name, columns.name FROM sqlite_schema AS tables, pragma_table_info(tables.name) AS columns"
        " WHERE tables.type = 'table'"
    )
    if isinstance(service.store.database, Conninfo):
        statement = "SELECT table_name, column_name FROM information_schema.columns WHERE table_schema = current_schema()"
    found: dict[str, list[str]] = {}
    for table, column in sorted(query(service, statement)):
        found.setdefault(table, []).append(column)
    return found


@contextmanager
def statements(service: Service) -> Iterator[list[str]]:
    """The statements that this thread runs meanwhile; in a file with their values."""
    connection, run = service.store._connection(), list[str]()
    if isinstance(service.store.database, Conninfo):
        with pytest.MonkeyPatch.context() as patch:
            execute = connection.execute
            patch.setattr(
                connection, "execute", lambda sql, values=(): run.append(sql) or execute(sql, values)
            )
            yield run
        return
    connection.set_trace_callback(run.append)
    try:
        yield run
    finally:
        connection.set_trace_callback(None)


def plan(service: Service, statement: str) -> list[str]:
    """The steps in which SQLite runs a statement."""
    return [step for (*_, step) in query(service, f"EXPLAIN QUERY PLAN {statement}")]


def store_hash(service: Service, user: User, password_hash: str) -> None:
    with service.store.write() as tx:
        tx.change_user(user.id, password_hash=password_hash)


def hash_of(service: Service, user: User) -> str:
    ((password_hash,),) = query(service, "SELECT password_hash FROM users WHERE id = ?", user.id)
    return str(password_hash)


def plant_link(service: Service, user: User, purpose: str = "reset") -> None:
    with service.store.write() as tx:
        tx._run(
            "INSERT INTO one_time_tokens VALUES (?, ?, ?, ?, ?, ?, NULL)",
            (digest(f"{purpose} {user.id}"), purpose, user.id, user.email, LATER, LATER),
        )


def add_many(tx: Transaction, count: int) -> None:
    """Accounts `user1@example.com` and so on, without a password, by one statement."""
    tx._run(
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < ?)"
        " INSERT INTO users (email, name, password_hash, role, active, created_at, updated_at)"
        " SELECT 'user' || i || '@example.com', 'User', '!', 'user', 1, 'x', 'x' FROM n",
        (count,),
    )
