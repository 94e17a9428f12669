"""Another program copies the database file while the daemon writes, for a follower that is read elsewhere: which copies are
whole, and which are not.

A program such as Litestream keeps a read transaction open: as long as it lasts, the write-ahead log only grows, and
nothing that the log has got since is in the file alone. So a copy of the file, and then of the log, is whole.
"""

import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from support.commands import PASSWORD, Command
from support.daemons import serving, wait_for
from support.faults import LONG
from support.writers import Writer, prepared, writing

from usersctl.service import Service

pytestmark = pytest.mark.sqlite  # copies of the file

COPIES = 25 if LONG else 3


@contextmanager
def kept_as_it_is(source: Path) -> Iterator[None]:
    """No other connection moves the log into the file meanwhile and begins it anew."""
    with closing(sqlite3.connect(f"{source.as_uri()}?mode=ro", uri=True, isolation_level=None)) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM users").fetchone()
        yield


def copy_of(source: Path, folder: Path) -> Path:
    """The file, then its log, put together to one file, which needs no other beside it."""
    target = folder / "copied.db"
    with kept_as_it_is(source):
        shutil.copyfile(source, target)
        shutil.copyfile(f"{source}-wal", f"{target}-wal")
    put_together(target)
    return target


def put_together(path: Path) -> None:
    with closing(sqlite3.connect(path)) as copied:
        assert copied.execute("PRAGMA journal_mode = DELETE").fetchone() == ("delete",)


def emails(usersctl: Command, path: Path) -> set[str]:
    listed = usersctl.ok("--db", path, "list", "--all", "--json").json
    return {user["email"] for user in listed}


@pytest.mark.slow
def test_a_copy_of_the_file_and_then_of_its_log_has_all_that_was_answered(
    usersctl: Command, tmp_path: Path
) -> None:
    admin, follower = prepared(usersctl), tmp_path / "follower" / "users.db"
    follower.parent.mkdir()
    with serving(usersctl) as daemon, writing([daemon], admin, each=4, seconds=0.2) as writers:
        for number in range(COPIES):
            folder = tmp_path / str(number)
            folder.mkdir()
            certain = {account.email for writer in writers for account in list(writer.accounts)}
            # Under its name at once, so that a command which reads it sees the last copy or this one.
            copy_of(usersctl.database, folder).replace(follower)
            assert certain <= emails(usersctl, follower)
            usersctl.ok("--db", follower, "db", "verify")
            usersctl.ok("--db", follower, "audit", "verify")
            _grows(writers, len(certain))
    assert not list(follower.parent.glob("users.db-*"))  # reading leaves nothing beside it


def _grows(writers: list[Writer], than: int) -> None:
    wait_for(lambda: sum(len(writer.accounts) for writer in writers) > than + 4)


def test_a_reader_sees_each_new_copy(usersctl: Command, tmp_path: Path) -> None:
    """Also one that had the last copy open: its next question is asked of the new one."""
    follower = tmp_path / "follower.db"
    usersctl.add("ada")
    usersctl.ok("db", "backup", follower)
    reading = Command(tmp_path)
    reading.database = follower
    with reading.service() as reader:
        assert _count(reader) == 1
        usersctl.add("bea")
        usersctl.ok("db", "backup", tmp_path / "next.db")
        (tmp_path / "next.db").replace(follower)
        assert _count(reader) == 2


def _count(service: Service) -> int:
    with service.store.read() as tx:
        return tx.counts()["users"]


def test_a_copy_of_the_file_alone_lacks_what_was_answered(usersctl: Command, tmp_path: Path) -> None:
    admin, copied = prepared(usersctl), tmp_path / "copied.db"
    with serving(usersctl) as daemon:
        writer = Writer(daemon.port, admin, "w")
        _answered(writer, "ada")
        shutil.copyfile(usersctl.database, copied)
        assert "ada@example.com" not in emails(usersctl, copied)


def test_a_log_that_was_begun_anew_does_not_belong_to_the_copied_file(
    usersctl: Command, tmp_path: Path
) -> None:
    """Without the read transaction: what was answered in between is lost, and pages of two times stand side by side."""
    admin, copied = prepared(usersctl), tmp_path / "copied.db"
    with serving(usersctl) as daemon:
        writer = Writer(daemon.port, admin, "w")
        for number in range(40):
            _answered(writer, f"before{number}")
        shutil.copyfile(usersctl.database, copied)
        with closing(sqlite3.connect(usersctl.database, timeout=10)) as other:
            assert other.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0] == 0
        _answered(writer, "after")
        shutil.copyfile(f"{usersctl.database}-wal", f"{copied}-wal")
    assert usersctl("--db", copied, "db", "verify").code != 0


def _answered(writer: Writer, name: str) -> None:
    person = {"email": f"{name}@example.com", "name": name, "password": PASSWORD}
    assert writer.admin.post("/api/users", person).status == 200
