"""Reads the tables of a service, and writes rows past it."""

from typing import Any

from usersctl.models import AuditRow, User
from usersctl.secrets import digest
from usersctl.service import Service

LATER = "2999-01-01T00:00:00.000Z"


def audit(service: Service) -> list[AuditRow]:
    with service.store.read() as tx:
        return list(tx.audit_rows())


def query(service: Service, sql: str, *values: object) -> list[tuple[Any, ...]]:
    with service.store.read() as tx:
        return tx._run(sql, values).fetchall()


def everything(service: Service) -> dict[str, list[tuple[Any, ...]]]:
    """All rows of all tables."""
    tables = query(service, "SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name")
    return {name: query(service, f"SELECT * FROM {name}") for (name,) in tables}  # noqa: S608 - our own tables


def plant_link(service: Service, user: User, purpose: str = "reset") -> None:
    with service.store.write() as tx:
        tx._run(
            "INSERT INTO one_time_tokens VALUES (?, ?, ?, ?, ?, ?)",
            (digest(f"{purpose} {user.id}"), purpose, user.id, user.email, LATER, LATER),
        )
