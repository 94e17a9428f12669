"""A migration that is killed before any one of its statements leaves the old database or the new one, never one between;
the next process gets the new one with all accounts.

Every statement in the long version (`USERSCTL_LONG=1 pytest tests/faults`), some of them in each run.
"""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from support.commands import HASH
from support.faults import LONG
from support.killed import folders_after_kills
from support.old_databases import OLD

from usersctl.store.backup import check
from usersctl.store.database_file import VERSION
from usersctl.store.opening import open_store

pytestmark = pytest.mark.sqlite  # an older file

MIGRATE = """
import sqlite_utils, usersctl.store.upgrade  # once, and not in each of the processes that are killed


def act(database):
    open_store(database).close()
"""


def everything(path: Path) -> list[str]:
    with closing(sqlite3.connect(path)) as database:
        return [*database.iterdump(), str(database.execute("PRAGMA user_version").fetchone())]


@pytest.mark.slow
@pytest.mark.parametrize("journal", ["delete", "wal"])
def test_a_migration_that_is_killed_leaves_the_old_database_or_the_new_one(
    tmp_path: Path, journal: str
) -> None:
    old = tmp_path / "old" / "users.db"
    old.parent.mkdir()
    with closing(sqlite3.connect(old)) as database:
        database.execute(f"PRAGMA journal_mode = {journal}")
        database.executescript(OLD)
        database.executemany(
            "INSERT INTO users (email, name, password, role) VALUES (?, ?, ?, ?)",
            [(f"u{number}@example.com", "U", HASH, "admin" if number == 1 else "user") for number in range(1, 31)],
        )  # fmt: skip
        database.execute("INSERT INTO migrations (name) VALUES ('kept')")
        database.commit()
    before = everything(old)
    states = []
    with folders_after_kills(old.parent, MIGRATE, step=1 if LONG else 50) as folders:
        for folder in folders:
            path = folder / "users.db"
            with closing(sqlite3.connect(path)) as database:
                (version,) = database.execute("PRAGMA user_version").fetchone()
            states.append(version)
            if version == 0:
                assert everything(path) == before, folder.name
            else:
                is_new(path)
            for saved in folder.glob("users.db.before-*"):
                assert everything(saved) == before, (folder.name, saved)
            if version == 0:
                open_store(path).close()
                is_new(path)
        print(
            f"killed before {len(folders) - 1} of {folders[-1].name} statements: {states.count(0)} old, {states.count(VERSION)} new"
        )
    assert states[0] == 0
    assert states[-1] == VERSION
    assert states == sorted(states)


def is_new(path: Path) -> None:
    assert check(path, read_only=False).problems == []
    with closing(sqlite3.connect(path)) as database:
        users = database.execute(
            "SELECT id, email, password_hash, role, active FROM users ORDER BY id"
        ).fetchall()
        assert users == [
            (n, f"u{n}@example.com", HASH, "admin" if n == 1 else "user", 1) for n in range(1, 31)
        ]
        assert database.execute("SELECT name FROM migrations").fetchall() == [("kept",)]
