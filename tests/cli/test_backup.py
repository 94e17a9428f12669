"""db backup, verify and restore while the daemon runs: complete or not at all, with a message for every problem."""

import os
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import timedelta
from pathlib import Path

import pytest
from support.commands import OPERATOR, PASSWORD, Command, by_hand, create_user
from support.databases import held, opened
from support.factors import SEED, add_authenticator_apps, opened_secrets
from support.old_databases import old_database
from support.web import Site

from usersctl.clock import moment, utc_now
from usersctl.errors import Busy, StoreUnusable, Taken
from usersctl.mail.kinds import RESET
from usersctl.models import User
from usersctl.service import Service
from usersctl.store import backup, content, database_file
from usersctl.store.conninfo import Database
from usersctl.store.opening import open_store

pytestmark = pytest.mark.slow

ME = "/api/users/me"


@pytest.fixture(autouse=True)
def progress_is_drawn_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(content, "DRAWN_EVERY", 1)


@pytest.fixture
def ada(usersctl: Command) -> User:
    (user,) = usersctl.add("ada", role="admin")
    return user


def emails(database: Database) -> list[str]:
    with opened(database) as db:
        return [email for (email,) in db.execute("SELECT email FROM users ORDER BY id")]


def report_on(database: Database) -> backup.BackupReport:
    with closing(open_store(database, write=False)) as store:
        return backup.check_in_use(store)


def names(folder: Path) -> set[str]:
    """The files in the folder, without those that SQLite keeps beside an open database."""
    return {path.name for path in folder.iterdir() if not path.name.endswith(("-wal", "-shm"))}


def saved(usersctl: Command) -> Path:
    with usersctl.service() as service:
        service.store.copy(usersctl.folder / "saved.db")
    return usersctl.folder / "saved.db"


# --- backup ---


def test_a_backup_is_complete_and_readable_by_its_owner_only(usersctl: Command, ada: User) -> None:
    file = usersctl.folder / "saved.db"
    printed = usersctl.shell(f"umask 0; usersctl db backup {file} --json").json
    assert (printed["file"], printed["accounts"], printed["bytes"]) == (str(file), 1, file.stat().st_size)
    assert printed["seconds"] >= 0
    assert file.stat().st_mode & 0o777 == 0o600
    assert emails(file) == [ada.email]
    (line,) = usersctl.ok("db", "backup", "second.db").stdout.splitlines()
    assert line.startswith("Saved 1 account in second.db: ")


@pytest.mark.usefixtures("ada")
def test_a_backup_is_in_the_trail_of_the_database_in_use_and_not_in_its_own(usersctl: Command) -> None:
    assert usersctl.ok("db", "status", "--json").json["last_backup"] is None
    usersctl.ok("db", "backup", "one.db")
    folder = usersctl.folder / "kept"
    usersctl.ok("db", "backup", "--keep", "2", str(folder))
    (dated,) = folder.iterdir()
    rows = usersctl.ok("audit", "--action", "backup", "--json").json
    assert [row["details"] for row in rows] == [
        {"file": str(usersctl.folder / "one.db"), "accounts": 1},
        {"file": str(dated), "accounts": 1},
    ]
    assert rows[0]["actor"].startswith("cli:")
    assert usersctl.ok("db", "status", "--json").json["last_backup"] == rows[1]["at"]
    assert usersctl.ok("--db", "one.db", "audit", "--action", "backup", "--json").json == []
    usersctl.ok("audit", "verify")


def test_a_backup_of_a_database_that_is_locked_for_long_says_that_no_trail_has_it(
    usersctl: Command, ada: User
) -> None:
    with held(usersctl.database):
        done = usersctl.ok("db", "backup", "saved.db")
    assert "The backup is complete, but not in the audit trail: The database is busy" in done.stderr
    assert emails(usersctl.folder / "saved.db") == [ada.email]
    assert usersctl.ok("audit", "--action", "backup", "--json").json == []


@pytest.mark.sqlite
def test_a_backup_never_overwrites_a_file(usersctl: Command, ada: User) -> None:
    (usersctl.folder / "file").write_text("precious")
    (usersctl.folder / "folder").mkdir()
    (usersctl.folder / "link").symlink_to("nowhere")
    before = names(usersctl.folder)
    with usersctl.service() as service:
        for name in ("file", "folder", "link", "users.db"):
            with pytest.raises(Taken, match="is there already"):
                service.store.copy(usersctl.folder / name)
    assert usersctl("db", "backup", "file").code == 4
    assert usersctl("db", "backup", "-").code == 2  # a backup cannot go to standard output
    assert (usersctl.folder / "file").read_text() == "precious"
    assert emails(usersctl.database) == [ada.email]
    assert names(usersctl.folder) == before


def test_of_two_concurrent_backups_to_one_name_one_succeeds(
    make_service: Callable[..., Service], add: Callable[..., User], tmp_path: Path
) -> None:
    add("ada")

    def copy(service: Service) -> str:
        try:
            service.store.copy(tmp_path / "saved.db")
        except Taken:
            return "taken"
        return "made"

    with ThreadPoolExecutor(4) as pool:
        printed = list(pool.map(copy, [make_service() for _ in range(4)]))
    assert sorted(printed) == ["made", "taken", "taken", "taken"]
    assert backup.check(tmp_path / "saved.db").problems == []


@pytest.mark.usefixtures("ada")
def test_a_failed_backup_leaves_no_file(usersctl: Command) -> None:
    before = names(usersctl.folder)
    assert usersctl("db", "backup", "no/such/folder.db").code == 2
    usersctl.add(*(f"user{number}" for number in range(3)))
    # A limit of 64 KiB on files stands for a full disk.
    done = usersctl.shell("ulimit -f 64; usersctl db backup saved.db")
    assert (done.code, "the disk is full" in done.stderr) == (6, True), done
    assert names(usersctl.folder) == before


@pytest.mark.parametrize("how", [KeyboardInterrupt, SystemExit])
def test_an_interrupted_backup_leaves_no_file(
    service: Service, add: Callable[..., User], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: type
) -> None:
    add("ada")
    monkeypatch.setattr(database_file, "PAGES", 5)
    before = names(tmp_path)

    def stop(done: int, _total: int) -> None:
        if done > 10:
            raise how

    with pytest.raises(how):
        service.store.copy(tmp_path / "saved.db", stop)
    assert names(tmp_path) == before
    service.store.copy(tmp_path / "saved.db")


def test_a_backup_ends_despite_constant_writes(
    service: Service, add: Callable[..., User], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The copy is of one moment. A copy that restarts at every change would never end."""
    add("first")
    monkeypatch.setattr(database_file, "PAGES", 2)
    steps = 0

    def write(_done: int, _total: int) -> None:
        nonlocal steps
        steps += 1
        assert steps < 100
        thread = threading.Thread(target=lambda: add(f"user{steps}"))
        thread.start()
        thread.join()

    counts = service.store.copy(tmp_path / "saved.db", write)
    assert counts["users"] == 1
    assert steps > 10
    assert emails(tmp_path / "saved.db") == ["first@example.com"]
    assert backup.check(tmp_path / "saved.db").problems == []


def test_a_backup_works_without_hard_links(
    service: Service, add: Callable[..., User], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A memory stick has no hard links."""
    add("ada")

    def refuse(*_names: Path) -> None:
        raise PermissionError("Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    service.store.copy(tmp_path / "saved.db")
    assert (tmp_path / "saved.db").stat().st_mode & 0o777 == 0o600
    assert emails(tmp_path / "saved.db") == ["ada@example.com"]
    with pytest.raises(Taken):
        service.store.copy(tmp_path / "saved.db")


# --- dated backups ---


def test_a_dated_backup_is_verified_and_replaces_the_oldest(usersctl: Command, ada: User) -> None:
    folder = usersctl.folder / "backups"
    made = []
    for _ in range(4):
        printed = usersctl.shell(f"umask 0; usersctl db backup --keep 2 {folder} --json").json
        made.append(Path(printed["file"]))
        assert printed["removed"] == [str(path) for path in made[-3:-2]]
    assert folder.stat().st_mode & 0o777 == 0o700
    assert sorted(folder.iterdir()) == made[2:]
    assert re.fullmatch(r"users-\d{8}T\d{6}\.\d{6}Z\.db", made[-1].name)
    assert {file.stat().st_mode & 0o777 for file in made[2:]} == {0o600}
    assert emails(made[-1]) == [ada.email]
    done = usersctl.ok("db", "backup", "--keep", "1", folder)
    assert (len(done.stdout.splitlines()), done.stderr) == (1, "Removed 2 older backups\n")
    assert usersctl.ok("--quiet", "db", "backup", "--keep", "1", folder).stdout == ""
    assert usersctl("db", "backup", "--keep", "0", folder).code == 2


def dated(folder: Path, keep: int) -> backup.DatedBackups:
    return backup.DatedBackups(folder, "users", keep)


def quiet(_done: int, _total: int) -> None:
    pass


def test_files_of_other_names_and_databases_are_never_removed(
    service: Service, add: Callable[..., User], tmp_path: Path
) -> None:
    add("ada")
    folder = tmp_path / "backups"
    folder.mkdir()
    others = {
        "users.db",
        "users-monday.db",
        "users-20200101T000000.000000Z.db.gz",
        "my-users-20200101T000000.000000Z.db",
        "other-20200101T000000.000000Z.db",
        "users-20200101T000000Z.db",
        "users-\u0662\u0660200101T000000.000000Z.db",
    }
    for name in others:
        (folder / name).write_text("precious")
    (folder / "users-20190101T000000.000000Z.db").mkdir()
    (folder / "users-20190102T000000.000000Z.db").symlink_to(folder / "users.db")
    (folder / "users-20190103T000000.000000Z.db").write_text("a backup of ours")
    _, _, removed = dated(folder, 1).add(service.store, utc_now(), quiet)
    assert [path.name for path in removed] == ["users-20190103T000000.000000Z.db"]
    assert others <= {path.name for path in folder.iterdir()}
    assert len(list(folder.iterdir())) == len(others) + 3


def test_a_clock_that_was_set_back_does_not_remove_the_new_backup(
    service: Service, add: Callable[..., User], tmp_path: Path
) -> None:
    add("ada")
    folder = tmp_path / "backups"
    now = utc_now()
    old, _, _ = dated(folder, 2).add(service.store, now, quiet)
    older, _, _ = dated(folder, 2).add(service.store, now - timedelta(days=1), quiet)
    new, _, removed = dated(folder, 2).add(service.store, now - timedelta(days=9), quiet)
    assert removed == [older]
    assert sorted(folder.iterdir()) == [new, old]


def test_what_killed_backups_left_is_removed_after_a_day(
    service: Service, add: Callable[..., User], tmp_path: Path
) -> None:
    add("ada")
    folder, now = tmp_path / "backups", utc_now()
    for name in (".users-copy-old", ".users-copy-running"):
        (folder / name).mkdir(parents=True)
        (folder / name / "users.db").write_text("half a copy")
    (folder / "users-20200101T000000.000000Z.unverified").write_text("half a copy")
    for path in (folder / ".users-copy-old", folder / "users-20200101T000000.000000Z.unverified"):
        os.utime(path, times=(now.timestamp() - 86_401,) * 2)
    new, _, removed = dated(folder, 1).add(service.store, now, quiet)
    assert (sorted(folder.iterdir()), removed) == ([folder / ".users-copy-running", new], [])


@pytest.mark.usefixtures("ada")
def test_older_backups_stay_until_the_new_one_is_verified(usersctl: Command) -> None:
    folder = usersctl.folder / "backups"
    for _ in range(2):
        usersctl.ok("db", "backup", "--keep", "2", folder)
    before = sorted(folder.iterdir())
    by_hand(usersctl.database, "UPDATE user_counts SET n = n + 1")
    done = usersctl("db", "backup", "--keep", "1", folder)
    assert (done.code, done.stdout) == (6, "")
    assert "is not sound, and was discarded: user_counts has" in done.stderr
    assert sorted(folder.iterdir()) == before
    (usersctl.folder / "file").write_text("precious")
    assert usersctl("db", "backup", "--keep", "2", usersctl.folder / "file").code == 2
    done = usersctl.shell(f"ulimit -f 64; usersctl db backup --keep 1 {folder}")
    assert (done.code, sorted(folder.iterdir())) == (6, before)


@pytest.mark.parametrize("how", [KeyboardInterrupt, SystemExit])
def test_an_interrupted_verification_leaves_the_older_backups_and_nothing_else(
    service: Service, add: Callable[..., User], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: type
) -> None:
    add("ada")
    folder = tmp_path / "backups"
    dated(folder, 1).add(service.store, utc_now(), quiet)
    before = sorted(folder.iterdir())

    def stop(_file: Path) -> None:
        raise how

    monkeypatch.setattr(backup, "checked_copy", stop)
    with pytest.raises(how):
        dated(folder, 1).add(service.store, utc_now(), quiet)
    assert sorted(folder.iterdir()) == before


# --- verify ---


@pytest.mark.sqlite
@pytest.mark.usefixtures("ada")
def test_verify_does_not_change_a_sound_file(usersctl: Command) -> None:
    file = saved(usersctl)
    file.chmod(0o400)
    before, stat = file.read_bytes(), file.stat()
    printed = usersctl.ok("db", "verify", file, "--json").json
    assert (printed["sound"], printed["accounts"], printed["audit_rows"], printed["problems"]) == (
        True,
        1,
        1,
        [],
    )
    assert len(printed["audit_head"]) == 64
    assert (file.read_bytes(), file.stat().st_mtime_ns) == (before, stat.st_mtime_ns)
    assert names(usersctl.folder) == {"saved.db", "users.db", "users.toml"}
    assert not list(usersctl.folder.glob("saved.db-*"))


@pytest.mark.parametrize(
    ("check", "statement"),
    [
        (
            "foreign keys",
            "INSERT INTO auth_tokens (user_id, token_hash, kind, name, created_at) VALUES (99, x'00', 'api', '', '')",
        ),
        ("schema", "DROP INDEX auth_tokens_by_user"),
        ("schema", "DROP TRIGGER users_counted_out"),
        ("schema", "CREATE TRIGGER back_door AFTER INSERT ON auth_tokens BEGIN SELECT 1; END"),
        ("schema", "ALTER TABLE users ADD COLUMN more TEXT"),
        ("schema", "DROP TABLE audit_head"),
        ("schema", "DROP TABLE users"),
        ("counts", "UPDATE user_counts SET n = n + 1 WHERE role = 'admin'"),
        ("counts", "DELETE FROM user_counts"),
        ("audit", "UPDATE audit SET actor = 'somebody else'"),
        ("audit", "DELETE FROM audit"),
    ],
)
def test_every_fault_of_a_backup_is_reported_and_prevents_the_restore(
    service: Service, add: Callable[..., User], tmp_path: Path, check: str, statement: str
) -> None:
    add("ada", role="admin")
    file = tmp_path / "saved.db"
    service.store.copy(file)
    by_hand(file, statement)
    with backup.checked_copy(file) as (report, _copy):
        assert check in {problem.check for problem in report.problems}, report
        assert all(problem.message for problem in report.problems)


@pytest.mark.sqlite
@pytest.mark.usefixtures("ada")
def test_verify_finds_a_flipped_page(usersctl: Command) -> None:
    usersctl.add(*(f"user{number}" for number in range(20)))
    file = saved(usersctl)
    with closing(sqlite3.connect(f"file:{file}?immutable=1", uri=True)) as db:
        (page,) = db.execute("SELECT rootpage FROM sqlite_schema WHERE name = 'users_by_name'").fetchone()
    content = bytearray(file.read_bytes())
    content[(page - 1) * 4096 : page * 4096] = b"\xff" * 4096
    file.write_bytes(content)
    done = usersctl("db", "verify", file)
    assert (done.code, done.stdout.startswith("integrity: ")) == (7, True), done
    assert "is not sound" in done.stderr
    refused = usersctl("db", "restore", file, "--yes")
    assert (refused.code, refused.stdout) == (6, "")
    assert "is not sound, and was not restored" in refused.stderr
    assert len(emails(usersctl.database)) == 21
    assert not list(usersctl.folder.glob("*.before-*"))


@pytest.mark.parametrize(
    ("make", "printed"),
    [
        (lambda path: path.write_bytes(b""), "is empty"),
        (lambda path: path.write_text("a letter, and no database at all " * 200), "is not a database"),
        (lambda path: by_hand(path, "CREATE TABLE songs (title)"), "is not a database of usersctl"),
        (lambda path: by_hand(path, "PRAGMA application_id = 7"), "is empty"),
    ],
)
def test_verify_refuses_a_file_that_is_not_a_backup(
    tmp_path: Path, make: Callable[[Path], object], printed: str
) -> None:
    file = tmp_path / "odd.db"
    make(file)
    before = file.read_bytes()
    with backup.checked_copy(file) as (report, _copy):
        (problem,) = report.problems
    assert (problem.check, printed in problem.message, str(file) in problem.message) == ("file", True, True)
    assert file.read_bytes() == before
    assert names(tmp_path) == {"odd.db"}


@pytest.mark.usefixtures("ada")
def test_verify_of_a_missing_or_unreadable_file_ends_with_exit_code_6(usersctl: Command) -> None:
    done = usersctl("db", "restore", ".")
    assert (done.code, "cannot be read" in done.stderr) == (6, True), done
    with pytest.raises(StoreUnusable, match="cannot be read"):
        backup.checked_copy(usersctl.folder / "nothing.db").__enter__()
    os.mkfifo(usersctl.folder / "pipe")
    for name in ("pipe", "/dev/zero"):  # neither ever ends
        with pytest.raises(StoreUnusable, match="is a pipe or a device"):
            backup.checked_copy(usersctl.folder / name).__enter__()


@pytest.mark.usefixtures("ada")
def test_verify_checks_the_database_in_use(usersctl: Command) -> None:
    assert usersctl.ok("db", "verify").stdout.startswith(
        f"{usersctl.database} is sound: 1 account, 1 audit row "
    )
    by_hand(usersctl.database, "DELETE FROM user_counts")
    done = usersctl("db", "verify", "--json")
    assert done.code == 7
    assert done.json["problems"] == [
        {"check": "counts", "message": "user_counts has 0 active accounts of role admin, but there are 1"}
    ]


@pytest.mark.sqlite
def test_verify_reads_the_write_ahead_log_of_a_copied_database(
    add: Callable[..., User], tmp_path: Path
) -> None:
    add("ada")
    (tmp_path / "copy").mkdir()
    for suffix in ("", "-wal"):
        shutil.copy(f"{tmp_path / 'users.db'}{suffix}", f"{tmp_path / 'copy' / 'users.db'}{suffix}")
    with backup.checked_copy(tmp_path / "copy" / "users.db") as (report, _copy):
        assert (report.counts["users"], report.problems) == (1, [])


@pytest.mark.sqlite
def test_a_backup_of_an_older_version_is_upgraded_and_checked(usersctl: Command) -> None:
    old = usersctl.folder / "old.db"
    old_database(old)
    before = old.read_bytes()
    with backup.checked_copy(old) as (report, _copy):
        assert (report.counts["users"], report.counts["audit"], report.problems) == (1, 0, [])
    usersctl.ok("db", "restore", old, "--yes")
    assert emails(usersctl.database) == ["ada@example.com"]
    assert old.read_bytes() == before
    assert names(usersctl.folder) == {"old.db", "users.db", "users.toml"}


# --- restore ---


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


@pytest.mark.sqlite
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


@pytest.mark.sqlite
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


def restored(service: Service, file: Path, *, keep_tokens: bool = False) -> Path | None:
    with backup.checked_copy(file) as (report, copy):
        assert report.problems == []
        replacement = backup.Replacement(copy, service.store.database, file, keep_tokens, OPERATOR, utc_now)
        return replacement.run(lambda _done, _total: None)


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
    restored(service, tmp_path / "saved.db", keep_tokens=keep)
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
    restored(service, tmp_path / "saved.db", keep_tokens=keep)
    assert [device.user_id for device in service.devices.read([cookie])] == [ada.id] * keep


def test_a_restore_never_leads_to_a_reused_id(
    service: Service, add: Callable[..., User], tmp_path: Path
) -> None:
    """Other applications may refer to users by their ids."""
    add("ada")
    service.store.copy(tmp_path / "saved.db")
    assert add("bob").id == 2
    restored(service, tmp_path / "saved.db")
    assert add("eve").id == 3


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


@pytest.mark.parametrize("admin", [True, False])
def test_a_lockdown_outlives_a_restore(
    service: Service, add: Callable[..., User], tmp_path: Path, admin: bool
) -> None:
    root = add("root", role="admin" if admin else "user")
    service.store.copy(tmp_path / "open.db")
    service.accounts.update(root.id, role="admin", by=OPERATOR)
    service.lockdown.start(service.accounts.get(root.id), by=OPERATOR)
    service.store.copy(tmp_path / "closed.db")
    restored(service, tmp_path / "open.db")
    lockdown = service.lockdown.state()
    assert lockdown is not None
    # The exception stays in force, if that account is an admin of the restored database.
    assert lockdown.admits(root) is admin
    service.lockdown.stop(by=OPERATOR)
    restored(service, tmp_path / "closed.db")
    assert service.lockdown.state() is not None  # the backup was made during a lockdown


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
        kept = [restored(service, tmp_path / "saved.db") for _ in range(3)]
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
        backup.Replacement(copy, service.store.database, Path("x"), False, OPERATOR, utc_now).run(stop)
    assert len(emails(service.store.database)) == 2
    assert names(tmp_path) == before
    assert add("eve")
    assert report_on(service.store.database).problems == []


@pytest.mark.sqlite
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
        kept = backup.Replacement(copy, service.store.database, Path("x"), False, OPERATOR, utc_now).run(stop)
    assert len(emails(service.store.database)) == 1
    assert kept is not None
    assert len(emails(kept)) == 2


KILLED = """
import os, sys
from pathlib import Path
from usersctl.store import backup
from usersctl.clock import utc_now
from usersctl.models import SYSTEM

def progress(done, total):
    if done >= int(sys.argv[3]) or done == total:
        os.kill(os.getpid(), 9)

with backup.checked_copy(Path(sys.argv[1])) as (found, copy):
    backup.Replacement(copy, Path(sys.argv[2]), Path("x"), False, SYSTEM, utc_now).run(progress)
"""


@pytest.mark.sqlite
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


def test_restore_creates_a_missing_database(usersctl: Command, ada: User) -> None:
    saved(usersctl)
    target = usersctl.folder / "elsewhere" / "users.db"
    done = usersctl.ok("db", "restore", "saved.db", "--yes", "--db", target)
    assert done.stdout == f"Restored 1 account to {target}\n"
    assert (target.stat().st_mode & 0o777, target.parent.stat().st_mode & 0o777) == (0o600, 0o700)
    assert names(target.parent) == {"users.db"}
    assert emails(target) == [ada.email]
    with closing(sqlite3.connect(target)) as db:
        assert db.execute("PRAGMA journal_mode").fetchone() == ("wal",)


@pytest.mark.sqlite
def test_restore_takes_a_backup_with_another_page_size(
    service: Service, add: Callable[..., User], tmp_path: Path
) -> None:
    add("ada")
    file = tmp_path / "saved.db"
    service.store.copy(file)
    by_hand(file, "PRAGMA journal_mode = DELETE", "PRAGMA page_size = 1024", "VACUUM")
    add("bob")
    restored(service, file)
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
        restored(service, tmp_path / "saved.db")
    assert not list(tmp_path.glob("*.before-*"))
    assert restored(service, tmp_path / "saved.db") is not None


@pytest.mark.sqlite
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


@pytest.mark.sqlite
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


@pytest.mark.sqlite
def test_verify_checks_the_database_in_use_in_place_also_by_its_name(usersctl: Command, ada: User) -> None:
    """A copy would be torn if another process writes meanwhile."""
    with usersctl.service() as service:
        service.accounts.update(
            ada.id, name="A", by=OPERATOR
        )  # in the write-ahead log, which only SQLite reads
        (usersctl.folder / "other name").symlink_to(usersctl.database)
        for name in (usersctl.database, "other name"):
            assert usersctl.ok("db", "verify", name, "--json").json["problems"] == []
        printed = usersctl.ok("db", "verify", "other name", env={"TMPDIR": "/nowhere"})
    assert "sound" in printed.stdout


@pytest.mark.sqlite
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
    restored(service, tmp_path / "saved.db")
    assert report_on(service.store.database).problems == []
    assert len(emails(service.store.database)) == 40


def test_a_migration_keeps_the_old_database_like_a_backup(tmp_path: Path) -> None:
    old_database(tmp_path / "users.db")
    store = open_store(tmp_path / "users.db")
    store.close()
    assert store.migrated is not None
    assert store.migrated.backup.stat().st_mode & 0o777 == 0o600
    assert names(tmp_path) == {"users.db", store.migrated.backup.name}
    with backup.checked_copy(store.migrated.backup) as (report, _copy):
        assert (report.counts["users"], report.problems) == (1, [])
    with pytest.raises(StoreUnusable), backup.checked_copy(tmp_path / "nothing"):
        pass


# --- the key of authenticator apps ---


@pytest.mark.sqlite
def test_a_backup_is_without_the_key_and_says_that_it_has_to_be_kept(usersctl: Command, ada: User) -> None:
    plain = usersctl.ok("db", "backup", "plain.db", "--json").json
    assert plain["key"] is None
    with usersctl.service() as service:
        add_authenticator_apps(service, ada.id)
    key = usersctl.folder / "users.key"
    done = usersctl.ok("db", "backup", "first.db")
    assert done.stderr == (
        f"Not in it: the key in {key}, without which 1 authenticator app cannot be used. Keep a copy elsewhere\n"
    )
    assert usersctl.ok("db", "backup", "second.db", "--json").json["key"] == str(key)
    assert usersctl.ok("--quiet", "db", "backup", "--keep", "2", "nightly").stderr == ""
    env = {"USERS_SECRET_KEY": "k" * 32}
    assert usersctl.ok("db", "backup", "third.db", "--json", env=env).json["key"] == "auth.secretKey"
    for path in usersctl.folder.rglob("*.db*"):
        assert key.read_bytes().strip() not in path.read_bytes()


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


@pytest.mark.sqlite
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


@pytest.mark.sqlite
def test_an_authenticator_app_whose_key_is_lost_is_reset(usersctl: Command, ada: User) -> None:
    with usersctl.service() as service:
        add_authenticator_apps(service, ada.id)
    (usersctl.folder / "users.key").unlink()
    assert usersctl("doctor", "--quiet").stdout.count("secret-key\tproblem") == 1
    usersctl.ok("factor", "reset", ada.email, "--totp")
    assert "secret-key" not in usersctl("doctor").stdout
    assert usersctl.ok("factor", "list", ada.email).rows == []
