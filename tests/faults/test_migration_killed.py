"""A migration that is killed before any one of its statements leaves the old database or the new one, never one between;
the next process gets the new one with all accounts.

Every statement in the long version (`USERSCTL_LONG=1 pytest tests/faults`), some of them in each run.
"""

import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
from support.commands import HASH
from support.faults import LONG
from support.old_databases import OLD

from usersctl.store.backup import check
from usersctl.store.database_file import VERSION
from usersctl.store.opening import open_store

pytestmark = pytest.mark.sqlite

# A process of its own, because it forks and so must have no threads and no open database.
KILL_AT_EACH = """
import os, shutil, signal, sys
from pathlib import Path
from usersctl.store import database_file
from usersctl.store.opening import open_store
import sqlite_utils, usersctl.store.upgrade  # once, and not in each of those that are killed

old, work, step = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
opened = database_file._open


def migrate(path, at):
    begun = 0

    def count(_statement):
        nonlocal begun
        begun += 1
        if begun == at:
            os.kill(os.getpid(), signal.SIGKILL)

    def open_and_watch(*arguments):
        connection = opened(*arguments)
        connection.set_trace_callback(count)
        return connection

    database_file._open = open_and_watch
    open_store(path).close()


at = 0
while True:
    at += step
    folder = work / str(at)
    folder.mkdir()
    for each in old.parent.glob(old.name + "*"):
        shutil.copy(each, folder / each.name)
    child = os.fork()
    if child == 0:
        migrate(folder / old.name, at)
        os._exit(0)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert status in (0, -signal.SIGKILL), status
    if status == 0:
        break
print(at)
"""


def everything(path: Path) -> list[str]:
    with closing(sqlite3.connect(path)) as database:
        return [*database.iterdump(), str(database.execute("PRAGMA user_version").fetchone())]


@pytest.mark.parametrize("journal", ["delete", "wal"])
def test_a_migration_that_is_killed_leaves_the_old_database_or_the_new_one(
    tmp_path: Path, journal: str
) -> None:
    old, work = tmp_path / "old" / "users.db", tmp_path / "work"
    old.parent.mkdir()
    work.mkdir()
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
    words = [sys.executable, "-c", KILL_AT_EACH, str(old), str(work), "1" if LONG else "50"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=500, check=False)
    assert done.returncode == 0, done.stderr
    killed = sorted(int(path.name) for path in work.iterdir())
    assert killed[-1] == int(done.stdout)
    states = []
    for number in killed:
        folder = work / str(number)
        path = folder / "users.db"
        with closing(sqlite3.connect(path)) as database:
            (version,) = database.execute("PRAGMA user_version").fetchone()
        states.append(version)
        if version == 0:
            assert everything(path) == before, number
        else:
            is_new(path)
        for saved in folder.glob("users.db.before-*"):
            assert everything(saved) == before, (number, saved)
        if version == 0:
            open_store(path).close()
            is_new(path)
    print(
        f"killed before {len(killed) - 1} of {killed[-1]} statements: {states.count(0)} old, {states.count(VERSION)} new"
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
