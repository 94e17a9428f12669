"""Attacks by another user of the machine, in a folder where everybody may create files, as /tmp."""

import os
import shutil
import stat
import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from support.commands import Command

from usersctl.cli.files import replaced
from usersctl.errors import Invalid, KeyUnusable, StoreUnusable
from usersctl.factors.sealing import KeyFile
from usersctl.store import backup, database_file

STRANGER = 12345

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    folder = tmp_path / "shared"
    folder.mkdir()
    folder.chmod(0o1777)
    return folder


def of_stranger(path: Path) -> Path:
    os.chown(path, STRANGER, STRANGER, follow_symlinks=False)
    return path


# --- the emails of a daemon that is not root ---


@pytest.mark.sqlite  # the owner of a file
def test_an_email_that_root_writes_into_the_folder_belongs_to_the_owner_of_the_database(
    usersctl: Command,
) -> None:
    usersctl.add("ada")
    of_stranger(usersctl.database)
    usersctl.ok("mail", "test", "ada@example.com")
    folder = usersctl.folder / "mail"
    for path in (folder, *folder.iterdir()):
        status = path.lstat()
        assert (status.st_uid, status.st_gid) == (STRANGER, STRANGER), path


# --- the keys of authenticator apps ---


@pytest.fixture
def key_file(tmp_path: Path) -> KeyFile:
    database = tmp_path / "users.db"
    database.touch()
    return KeyFile(of_stranger(database))


def test_a_key_that_root_makes_belongs_to_the_owner_of_the_database(key_file: KeyFile) -> None:
    key_file.make()
    assert (key_file.path.stat().st_uid, key_file.path.stat().st_gid) == (STRANGER, STRANGER)


@pytest.mark.parametrize("owner", [(STRANGER, STRANGER + 1), (0, STRANGER)])
def test_a_key_that_root_adds_leaves_the_file_to_its_owner(key_file: KeyFile, owner: tuple[int, int]) -> None:
    key_file.make()
    os.chown(key_file.path, *owner)
    key_file.add()
    assert (key_file.path.stat().st_uid, key_file.path.stat().st_gid) == owner


def test_a_user_adds_a_key_to_a_file_of_their_own_only(
    key_file: KeyFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    key_file.make()
    monkeypatch.setattr(os, "geteuid", lambda: STRANGER)
    key_file.add()
    os.chown(key_file.path, STRANGER + 1, STRANGER)
    with pytest.raises(KeyUnusable, match="belongs to another user"):
        key_file.add()
    assert len(key_file.keys()) == 2


def test_a_user_who_is_not_root_gives_no_file_away(
    key_file: KeyFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: STRANGER + 1)
    key_file.make()
    assert key_file.path.stat().st_uid == 0


# --- the files that an export writes ---


@pytest.fixture
def pipe(shared: Path) -> Path:
    os.mkfifo(shared / "people.jsonl", 0o666)
    return of_stranger(shared / "people.jsonl")


@pytest.fixture
def reader(pipe: Path) -> Iterator[int]:
    number = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    yield number
    os.close(number)


@pytest.mark.parametrize("options", [("--with-hashes",), ("--as-state",)])
def test_an_export_into_a_pipe_of_another_user_is_refused(
    usersctl: Command, pipe: Path, reader: int, options: tuple[str, ...]
) -> None:
    usersctl.add("ada")
    if "--as-state" in options:
        pipe = pipe.rename(pipe.with_suffix(".json"))
    done = usersctl("export", pipe, *options)
    assert (done.code, f"{pipe} belongs to another user" in done.stderr) == (2, True), done
    assert os.read(reader, 100) == b""


def test_an_export_through_a_link_of_another_user_is_refused(usersctl: Command, shared: Path) -> None:
    usersctl.add("ada")
    precious = usersctl.folder / "precious"
    precious.write_text("before")
    link = shared / "people.jsonl"
    for target in (precious, usersctl.folder / "new", "/dev/stdout"):
        link.unlink(missing_ok=True)
        link.symlink_to(target)
        of_stranger(link)
        done = usersctl("export", link)
        assert (done.code, f"{link} belongs to another user" in done.stderr) == (2, True), done
        assert done.stdout == ""
    assert precious.read_text() == "before"
    assert not (usersctl.folder / "new").exists()


def test_a_link_of_ones_own_to_a_pipe_of_another_user_is_refused(tmp_path: Path, pipe: Path) -> None:
    (tmp_path / "link").symlink_to(pipe)
    with pytest.raises(Invalid, match="belongs to another user"), replaced(tmp_path / "link"):
        pass


@pytest.mark.parametrize("put", ["pipe", "link"])
def test_what_another_user_puts_there_after_the_check_is_not_written(
    shared: Path, pipe: Path, reader: int, monkeypatch: pytest.MonkeyPatch, put: str
) -> None:
    path = shared / "later.jsonl"
    exists = Path.exists

    def put_and_look(looked_at: Path) -> bool:
        if put == "pipe":
            pipe.rename(path)
        else:
            os.mkfifo(shared / "of root")
            path.symlink_to(shared / "of root")
            of_stranger(path)
        return exists(looked_at)

    monkeypatch.setattr(Path, "exists", put_and_look)
    with pytest.raises(Invalid), replaced(path) as target:
        target.write("secret")
    assert os.read(reader, 100) == b""


def test_a_link_that_another_user_puts_there_after_the_check_is_itself_replaced(
    tmp_path: Path, shared: Path
) -> None:
    precious = tmp_path / "precious"
    precious.write_text("before")
    path = shared / "later.jsonl"
    with replaced(path) as target:
        target.write("secret")
        path.symlink_to(precious)
        of_stranger(path)
    assert precious.read_text() == "before"
    assert (path.is_symlink(), path.read_text()) == (False, "secret")


def test_a_file_of_another_user_is_replaced_by_one_that_its_owner_cannot_read(shared: Path) -> None:
    path = shared / "people.jsonl"
    path.touch()
    with of_stranger(path).open() as before:
        with replaced(path) as target:
            target.write("secret")
        assert before.read() == ""
    status = path.stat()
    assert (status.st_uid, stat.S_IMODE(status.st_mode), path.read_text()) == (0, 0o600, "secret")


@pytest.mark.slow
def test_pipes_of_ones_own_and_those_that_were_handed_over_are_written(
    usersctl: Command, shared: Path
) -> None:
    usersctl.add("ada")
    exported = usersctl.shell("{ usersctl export >(cat >&3) --format jsonl >&2; } 3>&1 | cat").stdout
    assert "ada@example.com" in exported
    assert usersctl.shell("usersctl export /dev/stdout --format jsonl | cat").stdout.startswith(exported)
    os.mkfifo(shared / "own.jsonl")
    with subprocess.Popen(["cat", shared / "own.jsonl"], stdout=subprocess.PIPE, text=True) as cat:
        usersctl.ok("export", shared / "own.jsonl")
        assert cat.communicate()[0] == exported


def test_a_pipe_of_the_shell_of_another_user_is_written_as_sudo_hands_it_over(usersctl: Command) -> None:
    usersctl.add("ada")
    read, write = os.pipe()
    os.fchown(write, STRANGER, STRANGER)
    process = usersctl.start("export", "/dev/stdout", "--format", "jsonl", stdout=write)
    os.close(write)
    with os.fdopen(read) as exported:
        assert "ada@example.com" in exported.read()
    assert process.wait(60) == 0


# --- the files beside a backup ---


@pytest.fixture
def saved(usersctl: Command, shared: Path) -> Path:
    """A backup of root, with an account that is no admin."""
    usersctl.add("mallory")
    with usersctl.service() as service:
        service.store.copy(shared / "saved.db")
    return shared / "saved.db"


def put_beside(saved: Path, suffix: str, folder: Path) -> Path:
    """A log from which SQLite makes Mallory an admin."""
    crafted = Path(shutil.copy(saved, folder / "crafted.db"))
    with closing(database_file.connect(crafted)) as db:
        db.execute(f"PRAGMA journal_mode = {'WAL' if suffix == '-wal' else 'DELETE'}")
        db.execute("PRAGMA synchronous = OFF")  # the journal on the disk is complete at once
        db.execute("UPDATE users SET role = 'admin'")
        if suffix == "-journal":  # it holds what was there before
            db.execute("BEGIN")
            db.execute("UPDATE users SET role = 'user'")
        return Path(shutil.copy(f"{crafted}{suffix}", f"{saved}{suffix}"))


def admins(copy: Path) -> int:
    with closing(database_file.connect(copy)) as db:
        return int(db.execute("SELECT count(*) FROM users WHERE role = 'admin'").fetchone()[0])


@pytest.mark.parametrize("suffix", ["-wal", "-journal"])
def test_a_log_of_another_user_beside_a_backup_is_refused(
    usersctl: Command, tmp_path: Path, saved: Path, suffix: str
) -> None:
    log = of_stranger(put_beside(saved, suffix, tmp_path))
    for words in (("verify", saved), ("restore", saved, "--yes")):
        done = usersctl("db", *words)
        assert (done.code, f"{log} belongs to another user" in done.stderr) == (6, True), done
        assert done.stdout == ""


@pytest.mark.parametrize("suffix", ["-wal", "-journal"])
def test_a_log_of_the_owner_of_a_backup_is_read(tmp_path: Path, saved: Path, suffix: str) -> None:
    of_stranger(put_beside(saved, suffix, tmp_path))
    of_stranger(saved)
    with backup.checked_copy(saved) as (report, copy):
        assert (report.problems, admins(copy)) == ([], 1)
    os.chown(f"{saved}{suffix}", 0, 0)
    with backup.checked_copy(saved) as (report, copy):
        assert (report.problems, admins(copy)) == ([], 1)


def test_a_link_of_another_user_to_a_log_beside_a_backup_is_refused(tmp_path: Path, saved: Path) -> None:
    log = Path(f"{saved}-wal")
    put_beside(saved, "-wal", tmp_path).rename(tmp_path / "other-wal")
    log.symlink_to(tmp_path / "other-wal")
    of_stranger(log)
    with pytest.raises(StoreUnusable, match=f"{log} belongs to another user"):
        backup.checked_copy(saved).__enter__()
