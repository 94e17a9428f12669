"""db restore while the daemon runs: complete or not at all, and nothing returns that has to stay in the past."""

import os
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import closing
from datetime import timedelta
from pathlib import Path

import pytest
from support.accounts import open_session
from support.backups import emails, names, report_on, restored, saved
from support.commands import OPERATOR, PASSWORD, Command, by_hand, create_user
from support.databases import held
from support.factors import SEED, add_authenticator_apps, opened_secrets
from support.fakes import FakeClock
from support.postbox import last_link
from support.second_factors import enrol, finish, second_step
from support.web import Site

from usersctl.clock import moment, stamp, utc_now
from usersctl.deletion import tell_owners
from usersctl.errors import Busy, Invalid, StoreUnusable
from usersctl.mail.kinds import RESET
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


@pytest.mark.parametrize("keep", [False, True])
def test_revoked_tokens_come_back_only_with_keep_tokens(
    service: Service, add: Callable[..., User], tmp_path: Path, keep: bool
) -> None:
    ada = add("ada")
    session = service.sessions.login(ada.email, PASSWORD)
    machine = service.sessions.create_api_token(ada.id, name="ci", lifetime=None, by=OPERATOR)
    link = service.outbox.link(RESET, ada, by=OPERATOR)
    service.store.copy(tmp_path / "saved.db")
    service.sessions.revoke_all([ada.id], by=OPERATOR)
    restored(tmp_path / "saved.db", service.store.database, keep_tokens=keep)
    assert [service.sessions.check(opened.token) is not None for opened in (session, machine)] == [keep, keep]
    token = link.partition("token=")[2].partition("&")[0]
    if keep:
        service.recovery.reset(token, ada.email, "another good password", by=OPERATOR)
    else:
        with pytest.raises(Exception, match="Invalid or expired link"):
            service.recovery.reset(token, ada.email, "another good password", by=OPERATOR)


@pytest.mark.parametrize("keep", [False, True])
def test_devices_stay_known_only_with_keep_tokens(
    service: Service, add: Callable[..., User], tmp_path: Path, keep: bool
) -> None:
    ada = add("ada")
    cookie = service.devices.cookie(
        (), ada.id, service.sessions.login(ada.email, PASSWORD).session.created_at
    )
    service.store.copy(tmp_path / "saved.db")
    service.sessions.revoke_all([ada.id], by=OPERATOR)
    restored(tmp_path / "saved.db", service.store.database, keep_tokens=keep)
    assert [device.user_id for device in service.devices.read([cookie])] == [ada.id] * keep


def test_a_restore_never_leads_to_a_reused_id(
    service: Service, add: Callable[..., User], tmp_path: Path
) -> None:
    """Other applications may refer to users by their ids."""
    add("ada")
    service.store.copy(tmp_path / "saved.db")
    assert add("bob").id == 2
    restored(tmp_path / "saved.db", service.store.database)
    assert add("eve").id == 3


def test_a_restore_never_leads_to_a_reused_number_of_a_session(
    service: Service, add: Callable[..., User], tmp_path: Path
) -> None:
    """Rows of the audit trail name sessions by it."""
    ada = add("ada")
    service.store.copy(tmp_path / "saved.db")
    service.sessions.login(ada.email, PASSWORD)
    restored(tmp_path / "saved.db", service.store.database)
    service.sessions.login(ada.email, PASSWORD)
    assert [session.id for session in service.sessions.listed(ada.id)] == [2]


def test_deletions_that_were_due_wait_a_week_after_a_restore(usersctl: Command) -> None:
    """Their owners may have undone them after the backup was made."""
    (grace,) = usersctl.add("grace")
    with usersctl.service() as service, service.store.write() as tx:
        tx.change_user(grace.id, active=False, delete_at="2026-01-01T00:00:00.000Z")
    file = saved(usersctl)
    usersctl.ok("activate", str(grace.id))
    usersctl.ok("db", "restore", str(file), "--yes")
    with usersctl.service() as service:
        assert service.deletion.carry_out(by=OPERATOR) == 0
        until = service.accounts.get(grace.id).delete_at
    assert until is not None
    assert timedelta(days=6) < moment(until) - utc_now() <= timedelta(days=7)


@pytest.mark.parametrize("options", [[], ["--keep-tokens"]])
def test_an_owner_can_undo_a_deletion_after_a_restore(
    usersctl: Command, ada: User, options: list[str]
) -> None:
    (root,) = usersctl.add("root", role="admin")
    with usersctl.service() as service:
        session = open_session(service, ada).session
        assert service.deletion.request(ada.id, PASSWORD, session_id=session.id, by=OPERATOR)
        before = last_link(service, ada.email)
    file = saved(usersctl)
    with usersctl.service() as service:
        service.deletion.undo(before.token, before.email, by=OPERATOR)
    usersctl.ok("db", "restore", str(file), "--yes", *options)
    with usersctl.service() as service:
        assert not service.accounts.get(ada.id).active
        again = last_link(service, ada.email)
        assert again.token != before.token
        service.deletion.undo(again.token, again.email, by=OPERATOR)
        assert service.accounts.get(ada.id).active
        assert service.accounts.get(root.id).active


def test_an_invitation_shows_as_expired_after_a_restore(usersctl: Command) -> None:
    usersctl.ok("db", "init")
    usersctl.ok("invite", "eve@example.com")
    file = saved(usersctl)
    usersctl.ok("db", "restore", str(file), "--yes", "--keep-tokens")
    (waiting,) = usersctl.ok("invite", "list", "--json").json
    usersctl.ok("db", "restore", str(file), "--yes")
    (ended,) = usersctl.ok("invite", "list", "--json").json
    assert ended["expires_at"] <= stamp(utc_now()) < waiting["expires_at"]
    usersctl.ok("invite", "resend", "eve@example.com")


@pytest.mark.parametrize("admin", [True, False])
def test_a_lockdown_outlives_a_restore(
    service: Service, add: Callable[..., User], tmp_path: Path, admin: bool
) -> None:
    root = add("root", role="admin" if admin else "user")
    service.store.copy(tmp_path / "open.db")
    service.accounts.update(root.id, role="admin", by=OPERATOR)
    service.lockdown.start(service.accounts.get(root.id), by=OPERATOR)
    service.store.copy(tmp_path / "closed.db")
    restored(tmp_path / "open.db", service.store.database)
    lockdown = service.lockdown.state()
    assert lockdown is not None
    # The exception stays in force, if that account is an admin of the restored database.
    assert lockdown.admits(root) is admin
    service.lockdown.stop(by=OPERATOR)
    restored(tmp_path / "closed.db", service.store.database)
    assert service.lockdown.state() is not None  # the backup was made during a lockdown


def test_what_a_lockdown_ended_does_not_return_with_kept_tokens(
    site: Site, usersctl: Command, clock: FakeClock
) -> None:
    """Perhaps it was for a thief with a session of the admin whom it lets in."""
    clock.now = utc_now()  # that of the command
    service, root = site.service, site.add("root", role="admin")
    thief, phone = site.signed_in(root), enrol(site.signed_in(root), clock)
    remembered = second_step(site.client(), root.email)
    assert finish(remembered, recoveryCode=phone.codes[0], rememberDevice=True).status == 200
    device = {name: value for name, value in remembered.cookies.items() if "device" in name}
    opened = service.sessions.create_api_token(root.id, name="ci", lifetime=None, by=OPERATOR)
    machine = site.client(headers={"Authorization": f"Bearer {opened.token}"})
    link = service.outbox.link(RESET, root, by=OPERATOR)
    saved(usersctl)
    service.lockdown.start(root, by=OPERATOR)
    usersctl.ok("db", "restore", "saved.db", "--yes", "--keep-tokens")
    for is_over in (False, True):
        if is_over:
            service.lockdown.stop(by=OPERATOR)
        assert [client.get(ME).status for client in (thief, remembered)] == [401, 401]
        assert machine.get(ME).status == (200 if is_over else 401)  # as after a lockdown without a restore
    again = site.client(cookies=device).login(root.email, PASSWORD)
    assert (again.status, again.message) == (401, "Second factor required")
    token = link.partition("token=")[2].partition("&")[0]
    with pytest.raises(Invalid, match="Invalid or expired link"):
        service.recovery.reset(token, root.email, "another good password", by=OPERATOR)


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


def test_a_restore_with_the_key_says_nothing_of_it(usersctl: Command, ada: User) -> None:
    with usersctl.service() as service:
        add_authenticator_apps(service, ada.id)
    file = saved(usersctl)
    usersctl.ok("key", "rotate")  # the older key stays, and opens the backup
    done = usersctl.ok("db", "restore", file, "--yes")
    assert "authenticator app" not in done.stderr
    assert usersctl.ok("db", "restore", file, "--yes", "--json").json["unreadable"] == 0
    with usersctl.service() as service:
        assert opened_secrets(service) == [SEED]


@pytest.mark.sqlite  # the key of a server is configured
def test_a_restore_without_the_key_says_what_cannot_be_used_and_how_to_go_on(
    usersctl: Command, ada: User
) -> None:
    with usersctl.service() as service:
        add_authenticator_apps(service, ada.id)
    file, key = saved(usersctl), usersctl.folder / "users.key"
    (there := usersctl.folder / "elsewhere").mkdir()
    lost, database = key.read_text(), there / "users.db"  # another machine
    note = (
        f"1 authenticator app cannot be used, because the key is not in {there / 'users.key'}. Add it there, one key a line; or,"
        " if it is lost, let users enrol again after: usersctl factor reset USER --totp. usersctl doctor names them\n"
    )
    done = usersctl.ok("db", "restore", file, "--db", database, "--dry-run")
    assert done.stderr == note
    done = usersctl.ok("db", "restore", file, "--db", database, "--yes")
    assert done.stderr.endswith(note)
    done = usersctl.ok("db", "restore", file, "--db", database, "--yes", "--json").json
    assert done["unreadable"] == 1
    doctor = usersctl("doctor", "--db", database).stdout
    assert "secret-key\tproblem\tno key opens 1 secret of authenticator apps: ada@example.com" in doctor
    # Another key was made meanwhile, and the old one turns up.
    (there / "users.key").write_text(f"{'new key ' * 5}\n{lost}")
    (there / "users.key").chmod(0o600)
    assert "secret-key\thint" in usersctl("doctor", "--db", database).stdout
    assert usersctl.ok("key", "rotate", "--db", database).stdout == "Sealed 1 secret anew\n"


@pytest.mark.sqlite  # the key of a server is configured
def test_an_authenticator_app_whose_key_is_lost_is_reset(usersctl: Command, ada: User) -> None:
    with usersctl.service() as service:
        add_authenticator_apps(service, ada.id)
    (usersctl.folder / "users.key").unlink()
    assert usersctl("doctor", "--quiet").stdout.count("secret-key\tproblem") == 1
    usersctl.ok("factor", "reset", ada.email, "--totp")
    assert "secret-key" not in usersctl("doctor").stdout
    assert usersctl.ok("factor", "list", ada.email).rows == []
