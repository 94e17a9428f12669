"""db restore while the daemon runs: complete or not at all. For what a restore brings back see test_restored.py."""

import os
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from support.backups import emails, names, report_on, restored, saved
from support.commands import OPERATOR, PASSWORD, Command, by_hand, create_user
from support.databases import held
from support.web import Site

from usersctl.clock import utc_now
from usersctl.deletion import tell_owners
from usersctl.errors import Busy, StoreUnusable
from usersctl.models import User
from usersctl.service import Service
from usersctl.store import backup, database_file
from usersctl.store.transaction import Transaction

pytestmark = pytest.mark.usefixtures("progress_is_drawn_often")

ME = "/api/users/me"


def test_restore_refuses_a_backup_of_a_newer_version_as_that(usersctl: Command, ada: User) -> None:
    """As on the way back to the version before. The file is sound."""
    file = saved(usersctl)
    with closing(sqlite3.connect(file)) as db:
        db.execute(f"PRAGMA user_version = {database_file.VERSION + 1}")
    refused = usersctl("db", "restore", file, "--yes", "--json")
    newer, known = database_file.VERSION + 1, database_file.VERSION
    message = f"{file} is of version {newer}, this usersctl knows {known}"
    assert (refused.code, refused.error["message"]) == (6, message)
    assert refused.error["hint"] == "install the newer usersctl that wrote it"
    assert emails(usersctl.database) == [ada.email]


def test_restore_brings_everything_back_and_keeps_the_replaced_database(usersctl: Command, ada: User) -> None:
    saved(usersctl)
    usersctl.add("bob")
    with usersctl.service() as service:
        service.accounts.set_password(ada.id, "another good password", by=OPERATOR)
    replaced = report_on(usersctl.database)
    done = usersctl.ok("db", "restore", "saved.db", "--yes", "--json").json
    kept = Path(done["kept"])
    assert (done["accounts"], kept.parent, kept.stat().st_mode & 0o777) == (1, usersctl.folder, 0o600)
    assert emails(usersctl.database) == [ada.email]
    assert usersctl.can_log_in(ada.email, PASSWORD)
    assert emails(kept) == [ada.email, "bob@example.com"]
    assert backup.check(kept) == replaced
    assert report_on(usersctl.database).problems == []
    # The audit trail names the backup and the kept file.
    with usersctl.service() as service, service.store.read() as tx:
        row = list(tx.audit_rows())[1]
    assert (row.action, row.details["kept"]) == ("restore", kept.name)
    assert row.details["replaced_trail"] == {"rows": 3, "hash": replaced.head}
    # The kept file can be restored, too.
    assert (
        usersctl.ok("db", "restore", kept, "--yes").stdout == f"Restored 2 accounts to {usersctl.database}\n"
    )
    assert emails(usersctl.database) == [ada.email, "bob@example.com"]


@pytest.mark.usefixtures("ada")
def test_restore_asks_first_and_a_dry_run_changes_nothing(usersctl: Command) -> None:
    saved(usersctl)
    usersctl.add("bob")
    before = names(usersctl.folder)
    done = usersctl("db", "restore", "saved.db")
    assert (done.code, "--yes" in done.stderr) == (5, True)
    done = usersctl.ok("db", "restore", "saved.db", "--dry-run")
    assert done.stdout == f"Would restore 1 account to {usersctl.database}\n"
    question = "by 1 account of saved.db, and end all sessions and API tokens? [y/N]"
    assert usersctl.on_terminal("db", "restore", "saved.db", typed=[(question, "n\n")], columns=300).code == 5
    assert names(usersctl.folder) == before
    assert len(emails(usersctl.database)) == 2


def test_a_backup_with_a_name_that_is_not_utf_8_is_restored(usersctl: Command) -> None:
    usersctl.add("ada")
    file = Path(usersctl.folder, os.fsdecode(b"saved-\xff.db"))
    usersctl.ok("db", "backup", file)
    usersctl.ok("db", "restore", file, "--yes")
    (row,) = usersctl.ok("audit", "--action", "restore", "--json").json
    assert row["details"]["backup"] == "saved-\\udcff.db"


@pytest.mark.sqlite  # backup and database are one file
def test_restore_refuses_the_database_itself(usersctl: Command) -> None:
    usersctl.add("ada")
    other = usersctl.folder / "other-name.db"
    other.hardlink_to(usersctl.database)
    for file in (usersctl.database, other):
        done = usersctl("db", "restore", file, "--yes")
        assert (done.code, done.stdout) == (2, "")
        assert "is the database itself" in done.stderr
    other.unlink()
    assert usersctl.emails() == ["ada@example.com"]


@pytest.mark.sqlite  # a damaged file
def test_restore_replaces_a_truncated_database(usersctl: Command) -> None:
    usersctl.add("ada")
    usersctl.ok("db", "backup", "saved.db")
    usersctl.database.write_bytes(b"")
    assert usersctl("list").code == 6
    usersctl.ok("db", "restore", "saved.db", "--yes")
    assert usersctl.emails() == ["ada@example.com"]


def test_a_running_daemon_uses_the_restored_database(site: Site, usersctl: Command) -> None:
    ada, bob = site.add("ada", role="admin"), site.add("bob")
    client = site.signed_in(ada)
    opened = site.service.sessions.create_api_token(ada.id, name="ci", lifetime=None, by=OPERATOR)
    machine = site.client(headers={"Authorization": f"Bearer {opened.token}"})
    assert (client.get(ME).status, machine.get(ME).status) == (200, 200)
    saved(usersctl)
    site.service.accounts.delete([bob.id], by=OPERATOR)
    before = database_file.identity(str(usersctl.database))
    usersctl.ok("db", "restore", "saved.db", "--yes")
    assert database_file.identity(str(usersctl.database)) == before
    # Sessions of the backup may have been revoked since.
    assert (client.get(ME).status, machine.get(ME).status) == (401, 401)
    assert client.login(bob.email, PASSWORD).status == 200
    assert client.patch(ME, {"name": "Bobby"}).status == 200
    assert site.service.accounts.get(bob.id).name == "Bobby"
    assert report_on(usersctl.database).problems == []


def test_every_answered_change_is_in_the_kept_or_in_the_restored_database(
    service: Service, add: Callable[..., User], tmp_path: Path
) -> None:
    """No change is lost between the copy of the old content and its replacement."""
    add("first")
    service.store.copy(tmp_path / "saved.db")
    answered: list[str] = []
    stop = threading.Event()

    def write() -> None:
        number = 0
        while not stop.is_set():
            number += 1
            answered.append(create_user(service, f"u{number}@example.com", "U", None, by=OPERATOR).email)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        kept = [restored(tmp_path / "saved.db", service.store.database) for _ in range(3)]
    finally:
        stop.set()
        writer.join(30)
    there = set(emails(service.store.database))
    for file in kept:
        assert file is not None
        assert backup.check(file).problems == []
        there |= set(emails(file))
    assert answered
    assert set(answered) <= there
    assert report_on(service.store.database).problems == []


@pytest.mark.parametrize("after", [1, 3])
def test_a_restore_that_fails_changes_nothing(
    service: Service, add: Callable[..., User], tmp_path: Path, after: int
) -> None:
    add("ada")
    service.store.copy(tmp_path / "saved.db")
    add("bob")
    before = names(tmp_path)
    steps = 0

    def stop(_done: int, _total: int) -> None:
        nonlocal steps
        steps += 1
        if steps == after:
            raise KeyboardInterrupt

    with backup.checked_copy(tmp_path / "saved.db") as (_found, copy), pytest.raises(KeyboardInterrupt):
        backup.Replacement(
            copy, service.store.database, Path("x"), False, OPERATOR, utc_now, tell_owners
        ).run(stop)
    assert len(emails(service.store.database)) == 2
    assert names(tmp_path) == before
    assert add("eve")
    assert report_on(service.store.database).problems == []


@pytest.mark.parametrize("error", [KeyboardInterrupt(), StoreUnusable("no space is left")])
def test_a_restore_that_ends_before_anything_is_replaced_is_not_reported_as_done(
    service: Service, add: Callable[..., User], tmp_path: Path, error: BaseException
) -> None:
    """The last row of the backup's trail is in the database, too: only the row of the restore tells that it was done."""
    add("ada")
    service.store.copy(tmp_path / "saved.db")
    add("bob")
    before = names(tmp_path)

    def stop(_tx: Transaction) -> None:
        raise error

    with backup.checked_copy(tmp_path / "saved.db") as (_found, copy), pytest.raises(type(error)):
        backup.Replacement(copy, service.store.database, Path("x"), False, OPERATOR, utc_now, stop).run(
            lambda _done, _total: None
        )
    assert len(emails(service.store.database)) == 2
    assert names(tmp_path) == before


@pytest.mark.sqlite  # the replaced file is kept
def test_an_interrupt_after_the_restore_keeps_the_replaced_database(
    service: Service, add: Callable[..., User], tmp_path: Path
) -> None:
    add("ada")
    service.store.copy(tmp_path / "saved.db")
    add("bob")

    def stop(done: int, total: int) -> None:
        if done == total:
            raise KeyboardInterrupt

    with backup.checked_copy(tmp_path / "saved.db") as (_found, copy):
        kept = backup.Replacement(
            copy, service.store.database, Path("x"), False, OPERATOR, utc_now, tell_owners
        ).run(stop)
    assert len(emails(service.store.database)) == 1
    assert kept is not None
    assert len(emails(kept)) == 2


KILLED = """
import os, sys
from pathlib import Path
from usersctl.store import backup
from usersctl.clock import utc_now
from usersctl.deletion import tell_owners
from usersctl.models import SYSTEM

def progress(done, total):
    if done >= int(sys.argv[3]) or done == total:
        os.kill(os.getpid(), 9)

with backup.checked_copy(Path(sys.argv[1])) as (found, copy):
    backup.Replacement(copy, Path(sys.argv[2]), Path("x"), False, SYSTEM, utc_now, tell_owners).run(progress)
"""


@pytest.mark.sqlite  # pages of a file
@pytest.mark.parametrize(("page", "new"), [(8, False), (24, False), (10_000, True)])
def test_a_killed_restore_leaves_the_old_or_the_new_database(
    service: Service, add: Callable[..., User], tmp_path: Path, page: int, new: bool
) -> None:
    add("ada")
    service.store.copy(tmp_path / "saved.db")
    add("bob")
    done = subprocess.run(
        [sys.executable, "-c", KILLED, tmp_path / "saved.db", service.store.database, str(page)],
        env=os.environ | {"TMPDIR": str(tmp_path)},
        timeout=30,
        check=False,
    )
    assert done.returncode == -signal.SIGKILL
    assert len(emails(service.store.database)) == (1 if new else 2)
    assert report_on(service.store.database).problems == []
    assert add("eve")


def test_restore_creates_a_missing_database_and_does_not_ask(usersctl: Command, ada: User) -> None:
    saved(usersctl)
    target = usersctl.folder / "elsewhere" / "users.db"
    done = usersctl.ok("db", "restore", "saved.db", "--db", target)
    assert done.stdout == f"Restored 1 account to {target}\n"
    assert (target.stat().st_mode & 0o777, target.parent.stat().st_mode & 0o777) == (0o600, 0o700)
    assert names(target.parent) == {"users.db"}
    assert emails(target) == [ada.email]
    with closing(sqlite3.connect(target)) as db:
        assert db.execute("PRAGMA journal_mode").fetchone() == ("wal",)


@pytest.mark.sqlite  # pages of a file
def test_restore_takes_a_backup_with_another_page_size(
    service: Service, add: Callable[..., User], tmp_path: Path
) -> None:
    add("ada")
    file = tmp_path / "saved.db"
    service.store.copy(file)
    by_hand(file, "PRAGMA journal_mode = DELETE", "PRAGMA page_size = 1024", "VACUUM")
    add("bob")
    restored(file, service.store.database)
    assert emails(service.store.database) == ["ada@example.com"]
    assert service.sessions.login("ada@example.com", PASSWORD)
    assert report_on(service.store.database).problems == []


def test_restore_waits_for_a_locked_database_and_then_gives_up(
    service: Service, add: Callable[..., User], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add("ada")
    service.store.copy(tmp_path / "saved.db")
    monkeypatch.setattr(database_file, "BUSY_SECONDS", 0.2)
    with held(service.store.database), pytest.raises(Busy):
        restored(tmp_path / "saved.db", service.store.database)
    assert not list(tmp_path.glob("*.before-*"))
    assert restored(tmp_path / "saved.db", service.store.database) is not None


@pytest.mark.sqlite  # a damaged file
def test_restore_does_not_write_to_an_unreadable_database(usersctl: Command, ada: User) -> None:
    saved(usersctl)
    usersctl.database.write_text("no database at all " * 1000)
    for suffix in ("-wal", "-shm"):
        Path(f"{usersctl.database}{suffix}").unlink(missing_ok=True)
    done = usersctl("db", "restore", "saved.db", "--yes")
    assert (done.code, "move it away" in done.stderr) == (6, True)
    usersctl.database.rename(usersctl.folder / "broken.db")
    usersctl.ok("db", "restore", "saved.db", "--yes")
    assert emails(usersctl.database) == [ada.email]


@pytest.mark.sqlite  # a file of which a part is missing
@pytest.mark.parametrize(
    ("table", "column", "command"),
    [("users", "profile_picture", "list"), ("audit", "origin", "create bob@example.com --generate")],
)
def test_a_database_that_lacks_a_column_is_restored_after_it_is_moved_away(
    usersctl: Command, ada: User, table: str, column: str, command: str
) -> None:
    saved(usersctl)
    by_hand(usersctl.database, f"ALTER TABLE {table} DROP COLUMN {column}")
    done = usersctl(*command.split())
    assert (done.code, "is not whole" in done.stderr) == (6, True)
    for file in usersctl.folder.glob("users.db*"):
        file.rename(file.with_suffix(".broken"))
    usersctl.ok("db", "restore", "saved.db", "--yes")
    assert emails(usersctl.database) == [ada.email]


def test_the_way_to_what_is_wrong_with_a_backup_works_for_a_name_with_a_blank(usersctl: Command) -> None:
    (usersctl.folder / "a backup.db").write_bytes(b"")
    refused = usersctl("db", "restore", "a backup.db", "--yes", "--json")
    assert refused.error["hint"] == "see: usersctl db verify 'a backup.db'"


@pytest.mark.sqlite  # a link in the place of a file
def test_a_link_to_a_missing_disk_is_not_replaced_and_its_way_on_works(usersctl: Command, ada: User) -> None:
    saved(usersctl)
    for path in usersctl.folder.glob("users.db*"):
        path.unlink()
    usersctl.database.symlink_to("/nowhere/users.db")
    link, way_on = (
        f"{usersctl.database} is a link to /nowhere/users.db, where no file is",
        "else remove the link",
    )
    refused = usersctl("db", "restore", "saved.db", "--yes", "--json")
    assert (refused.code, refused.error["message"]) == (6, link)
    assert refused.error["hint"] == f"nothing was replaced; its disk may be missing; {way_on}"
    (found,) = [line for line in usersctl("doctor").rows if line[0] == "database"]
    assert found == ["database", "problem", link, f"its disk may be missing; {way_on}"]
    usersctl.database.unlink()
    usersctl.ok("db", "restore", "saved.db", "--yes")
    assert emails(usersctl.database) == [ada.email]


@pytest.mark.sqlite  # the log of a file
@pytest.mark.parametrize("suffix", ["-wal", "-journal"])
def test_restore_refuses_a_leftover_log_of_a_missing_database(
    usersctl: Command, ada: User, suffix: str
) -> None:
    """SQLite would write the pages of the log over those of the backup."""
    saved(usersctl)
    log = Path(f"{usersctl.database}{suffix}")
    usersctl.database.unlink()
    for path in usersctl.folder.glob("users.db-*"):
        path.unlink()
    log.write_bytes(b"pages")
    done = usersctl("db", "restore", "saved.db", "--yes")
    assert (done.code, f"{log} is there already" in done.stderr) == (4, True)
    assert usersctl.is_unused
    log.unlink()
    usersctl.ok("db", "restore", "saved.db", "--yes")
    assert emails(usersctl.database) == [ada.email]


@pytest.mark.sqlite  # a damaged file
def test_a_torn_database_is_replaced_if_its_trail_can_be_read(
    service: Service, add: Callable[..., User], tmp_path: Path
) -> None:
    """Only the pages of the accounts are lost."""
    for number in range(40):
        add(f"user{number}")
    service.store.copy(tmp_path / "saved.db")
    with closing(sqlite3.connect(service.store.path)) as db:
        (root,) = db.execute("SELECT rootpage FROM sqlite_schema WHERE name = 'users_by_name'").fetchone()
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    service.store.close()
    with service.store.path.open("r+b") as file:
        file.seek((root - 1) * 4096)
        file.write(b"\xff" * 4096)
    assert report_on(service.store.database).problems
    restored(tmp_path / "saved.db", service.store.database)
    assert report_on(service.store.database).problems == []
    assert len(emails(service.store.database)) == 40
