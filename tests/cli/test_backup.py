"""db backup while the daemon runs: complete or not at all, and dated ones that replace the oldest."""

import os
import re
import tempfile
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from support.backups import emails, names
from support.commands import Command, by_hand
from support.databases import held
from support.factors import add_authenticator_apps
from support.old_databases import old_database

from usersctl.clock import utc_now
from usersctl.errors import StoreUnusable, Taken
from usersctl.models import User
from usersctl.service import Service
from usersctl.store import backup, database_file
from usersctl.store.opening import open_store

pytestmark = pytest.mark.usefixtures("progress_is_drawn_often")


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


@pytest.mark.slow
def test_a_backup_of_a_database_that_is_locked_for_long_says_that_no_trail_has_it(
    usersctl: Command, ada: User
) -> None:
    with held(usersctl.database):
        done = usersctl.ok("db", "backup", "saved.db")
    assert "The backup is complete, but not in the audit trail: The database is busy" in done.stderr
    assert emails(usersctl.folder / "saved.db") == [ada.email]
    assert usersctl.ok("audit", "--action", "backup", "--json").json == []


def test_a_backup_never_overwrites_a_file(usersctl: Command, ada: User) -> None:
    (usersctl.folder / "file").write_text("precious")
    (usersctl.folder / "folder").mkdir()
    (usersctl.folder / "link").symlink_to("nowhere")
    before = names(usersctl.folder)
    with usersctl.service() as service:
        for name in before:  # also the database, where it is a file
            with pytest.raises(Taken, match="is there already"):
                service.store.copy(usersctl.folder / name)
    assert usersctl("db", "backup", "file").code == 4
    assert usersctl("db", "backup", "-").code == 2  # a backup cannot go to standard output
    assert (usersctl.folder / "file").read_text() == "precious"
    assert emails(usersctl.database) == [ada.email]
    assert names(usersctl.folder) == before


def test_a_folder_is_no_file_for_a_backup_and_the_hint_has_both_ways(usersctl: Command) -> None:
    usersctl.add("ada")
    folder = usersctl.folder / "my backups"
    folder.mkdir()
    refused = usersctl("db", "backup", folder)
    assert (refused.code, refused.stdout) == (4, "")
    command = f"usersctl db backup --keep 7 '{folder}'"
    hint = f"name a file in it, or keep the newest ones there: {command}"
    assert refused.stderr == f"usersctl: {folder} is a folder\n  {hint}\n"
    assert list(folder.iterdir()) == []
    assert usersctl.shell(command).code == 0


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
    assert "make room on that disk" in done.stderr
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


@pytest.mark.parametrize("how", [KeyboardInterrupt, SystemExit])
def test_an_interrupt_while_temporary_files_are_removed_leaves_none(
    service: Service, add: Callable[..., User], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: type
) -> None:
    add("ada")
    saved, temporary, remove = tmp_path / "saved.db", tmp_path / "temporary", os.rmdir
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))

    def interrupted(*_words: Any, **_options: Any) -> None:
        monkeypatch.setattr(os, "rmdir", remove)
        raise how

    monkeypatch.setattr(os, "rmdir", interrupted)
    with pytest.raises(how):
        service.store.copy(saved)
    assert not list(tmp_path.glob(f"{database_file.UNFINISHED}*"))
    monkeypatch.setattr(os, "rmdir", interrupted)
    with pytest.raises(how), backup.checked_copy(saved):
        pass
    assert names(temporary) == set()


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


# --- dated backups ---


@pytest.mark.slow
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
    (left,) = folder.iterdir()
    refused = usersctl("db", "backup", "--keep", "2", left)
    assert (refused.code, f"{left} is no folder" in refused.stderr) == (2, True)


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


def test_backups_dated_in_the_future_take_no_places(
    service: Service, add: Callable[..., User], tmp_path: Path
) -> None:
    add("ada")
    folder, now = tmp_path / "backups", utc_now()
    ahead, _, _ = dated(folder, 3).add(service.store, now + timedelta(days=400), quiet)
    first, _, _ = dated(folder, 3).add(service.store, now, quiet)
    second, _, _ = dated(folder, 3).add(service.store, now + timedelta(days=1), quiet)
    third, _, removed = dated(folder, 3).add(service.store, now + timedelta(days=2), quiet)
    assert removed == [ahead]
    assert sorted(folder.iterdir()) == [first, second, third]


def test_what_killed_backups_left_is_removed_after_a_day(
    service: Service, add: Callable[..., User], tmp_path: Path
) -> None:
    add("ada")
    folder, now = tmp_path / "backups", utc_now()
    for name in (".users-copy-old", ".users-copy-running"):
        (folder / name).mkdir(parents=True)
        (folder / name / "users.db").write_text("half a copy")
    (folder / "users-20200101T000000.000000Z.unverified").write_text("half a copy")
    (folder / "mine.unverified").mkdir()
    (folder / "notes.unverified").write_text("of somebody else")
    (folder / "users-20200102T000000.000000Z.unverified").mkdir()
    for path in folder.iterdir():
        if path.name != ".users-copy-running":
            os.utime(path, times=(now.timestamp() - 86_401,) * 2)
    new, _, removed = dated(folder, 1).add(service.store, now, quiet)
    others = ["mine.unverified", "notes.unverified", "users-20200102T000000.000000Z.unverified"]
    left = {path.name for path in folder.iterdir()}
    assert (left, removed) == ({".users-copy-running", new.name, *others}, [])


def test_a_backup_beside_another_one_does_not_fail_over_what_that_one_removes(
    service: Service, add: Callable[..., User], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add("ada")
    folder = tmp_path / "backups"
    gone, listed = folder / "users-20200101T000000.000000Z.unverified", Path.iterdir
    monkeypatch.setattr(Path, "iterdir", lambda self: iter([*listed(self), *[gone] * (self == folder)]))
    new, _, _ = dated(folder, 1).add(service.store, utc_now(), quiet)
    assert new.exists()


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


# --- the key of authenticator apps ---


@pytest.mark.sqlite  # the key of a server is configured
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
