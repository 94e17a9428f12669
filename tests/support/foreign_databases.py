"""Databases of other applications, and what an import made of their accounts."""

import hashlib
import sqlite3
from pathlib import Path
from typing import Any

from support.commands import Command


def database(path: Path, script: str, rows: list[dict[str, Any]], table: str = "users") -> Path:
    connection = sqlite3.connect(path)
    connection.executescript(script)
    for row in rows:
        names, marks = ", ".join(row), ", ".join(f":{name}" for name in row)
        connection.execute(f"INSERT INTO {table} ({names}) VALUES ({marks})", row)  # noqa: S608 - our own names
    connection.commit()
    connection.close()
    return path


def digest(path: Path) -> dict[str, str]:
    """All files whose names begin with its name."""
    return {
        file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in path.parent.glob(f"{path.name}*")
    }


def by_email(usersctl: Command) -> dict[str, dict[str, Any]]:
    with usersctl.service() as service:
        return {row["email"]: row for row in service.transfer.export_rows(with_hashes=True)}
