"""db, and all commands with a database that is missing, another's, busy, closed to its user, or older."""

import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from support.commands import Command
from support.databases import held
from support.old_databases import old_database

EVERY_READER = [
    ["list"],
    ["list", "--json"],
    ["show", "1"],
    ["export"],
    ["audit"],
    ["token", "list"],
    ["db", "status"],
    ["cleanup-tokens", "--dry-run"],
]
EVERY_DRY_RUN = [
    ["delete", "1", "--dry-run"],
    ["import", "-", "--format", "jsonl", "--dry-run"],
    ["cleanup-tokens", "--dry-run"],
]
EVERY_WRITER = [
    ["update", "1", "--name", "x"],
    ["activate", "1"],
    ["deactivate", "1"],
    ["delete", "1", "--yes"],
    ["set-password", "1", "--generate"],
    ["unlock", "1"],
    ["cleanup-tokens"],
    ["token", "create", "1", "--no-expiry"],
    ["token", "revoke", "1"],
    ["db", "migrate"],
]


# --- made and looked at ---


@pytest.mark.sqlite  # modes of files
def test_init_creates_the_database_once_for_its_owner_only(usersctl: Command) -> None:
    path = usersctl.folder / "deep" / "users.db"
    done = usersctl.ok("db", "init", "--db", path)
    assert done.stdout == f"Created {path}\n"
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700
    assert usersctl.ok("db", "init", "--db", path).stdout == f"Exists already: {path}\n"
    assert usersctl.ok("db", "init", "--db", path, "--json").json["created"] is False


def test_status_shows_the_path_its_reason_and_the_counts(usersctl: Command) -> None:
    usersctl.add("ada", role="admin")
    printed = usersctl.ok("db", "status", "--json").json
    assert printed["path"] == str(usersctl.database)
    assert printed["chosen_by"] == "USERS_DATABASE"
    assert (printed["users"], printed["active_admins"]) == (1, 1)
    assert "users\t1\n" in usersctl.ok("db", "status").stdout


# --- what cannot be used ---


@pytest.mark.sqlite  # a missing file
@pytest.mark.parametrize("words", [*EVERY_READER, *EVERY_WRITER], ids=" ".join)
def test_only_some_commands_create_a_missing_database(usersctl: Command, words: list[str]) -> None:
    done = usersctl(*words)
    assert (done.code, done.stdout) == (6, "")
    assert f"No database at {usersctl.database} (USERS_DATABASE)" in done.stderr
    assert "usersctl db init" in done.stderr
    assert usersctl.is_unused


@pytest.mark.sqlite  # other files
@pytest.mark.parametrize(
    ("make", "printed"),
    [
        (lambda path: path.write_text("this is a letter and no database at all " * 10), "is not a database"),
        (lambda path: path.mkdir(), "is a folder"),
        (
            lambda path: path.symlink_to("/nowhere/users.db"),
            "is a link to /nowhere/users.db, where no file is",
        ),
        (lambda path: _sql(path, "CREATE TABLE songs (title)"), "is not a database of usersctl"),
        (lambda path: _sql(path, "PRAGMA application_id = 7; CREATE TABLE users (id)"), "not a database of"),
        (lambda path: _sql(path, "CREATE TABLE users (id)"), "no id, email or password"),
    ],
)
def test_a_file_that_is_not_our_database_is_refused_and_not_changed(
    usersctl: Command, make: object, printed: str
) -> None:
    make(usersctl.database)  # type: ignore[operator]
    before = usersctl.database.read_bytes() if usersctl.database.is_file() else None
    for words in (["db", "migrate"], ["create", "ada@example.com", "--generate", "--json"]):
        done = usersctl(*words)
        assert done.code == 6, done
        assert str(usersctl.database) in done.stderr
        assert printed in done.stderr
    assert usersctl("list").code == 6
    # Except its journal mode, which is set before the tables are read.
    after = usersctl.database.read_bytes() if usersctl.database.is_file() else None
    assert (after and after[100:]) == (before and before[100:])


def _sql(path: Path, script: str) -> None:
    connection = sqlite3.connect(path)
    connection.executescript(script)
    connection.close()


@pytest.mark.sqlite  # the version in the head of a file
def test_a_database_that_lost_its_version_is_no_older_deployment(usersctl: Command) -> None:
    """As by `sqlite3 users.db .dump | sqlite3 new.db`. An upgrade would drop groups, second factors and the trail."""
    usersctl.add("ada")
    usersctl.ok("db", "backup", "saved.db")
    for file in (usersctl.database, usersctl.folder / "saved.db"):
        _sql(file, "PRAGMA application_id = 0; PRAGMA user_version = 0")
    verified = usersctl("db", "verify", "saved.db")
    assert (verified.code, "has lost its version" in verified.stdout) == (7, True)
    refused = usersctl("create", "bob@example.com", "--generate", "--json")
    assert (refused.code, "has lost its version" in refused.error["message"]) == (6, True)
    _, statements, _ = refused.error["hint"].split("'")
    _sql(usersctl.database, statements)
    usersctl.ok("db", "verify")
    assert "ada@example.com" in usersctl.ok("audit").stdout


@pytest.mark.sqlite  # the version in the head of a file
def test_a_database_of_a_newer_version_is_refused(usersctl: Command) -> None:
    usersctl.add("ada")
    _sql(usersctl.database, "PRAGMA user_version = 999")
    for words in (["list"], ["create", "eve@example.com", "--generate"]):
        done = usersctl(*words)
        assert done.code == 6
        assert "999" in done.stderr
        assert "newer usersctl" in done.stderr


@pytest.mark.sqlite  # an empty file
def test_an_empty_file_becomes_a_database_at_the_first_create(usersctl: Command) -> None:
    usersctl.database.touch()
    for words in (["list"], ["db", "migrate"], ["delete", "1", "--yes"]):
        done = usersctl(*words)
        assert (done.code, done.stdout) == (6, "")
        assert "is empty" in done.stderr
    assert usersctl.database.stat().st_size == 0
    usersctl.ok("create", "ada@example.com", "--generate")
    assert len(usersctl.ok("list").rows) == 1


@pytest.mark.slow
def test_a_command_waits_for_a_locked_database_and_then_gives_up(usersctl: Command) -> None:
    usersctl.add("ada")
    with held(usersctl.database):
        assert len(usersctl.ok("list").rows) == 1  # readers do not wait
        waiting = usersctl.start("update", "1", "--name", "x", stderr=subprocess.PIPE)
        _, printed = waiting.communicate(timeout=20)
        assert waiting.returncode == 6
        assert b"is busy" in printed
    assert usersctl.ok("show", "1", "--json").json["name"] == "Ada"


@pytest.mark.slow
@pytest.mark.sqlite  # modes of files
@pytest.mark.skipif(os.geteuid() != 0 or shutil.which("setpriv") is None, reason="needs another user")
def test_a_read_only_database_can_be_read_but_not_written(usersctl: Command) -> None:
    usersctl.add("ada")
    with tempfile.TemporaryDirectory() as name:  # in a folder that the other user may enter
        folder = Path(name)
        shutil.copy(usersctl.database, folder / "users.db")
        (folder / "users.db").chmod(0o444)
        folder.chmod(0o555)

        def as_nobody(*words: str) -> subprocess.CompletedProcess[str]:
            return subprocess.run(
                ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", sys.executable, "-m", "usersctl", *words],
                env=usersctl.env | {"USERS_CONFIG": "", "USERS_DATABASE": f"{folder}/users.db"},
                cwd="/", capture_output=True, text=True, check=False,
            )  # fmt: skip

        if as_nobody("--version").returncode != 0:
            pytest.skip("another user cannot run this Python")
        assert "ada@example.com" in as_nobody("list").stdout
        for words in EVERY_DRY_RUN:
            assert as_nobody(*words).returncode == 0, words
        done = as_nobody("update", "1", "--name", "x")
        assert done.returncode == 6, done
        assert "read-only" in done.stderr
        with tempfile.TemporaryDirectory() as writable:
            Path(writable).chmod(0o777)
            done = as_nobody("db", "backup", f"{writable}/saved.db")
            assert (done.returncode, Path(writable, "saved.db").exists()) == (0, True)
            assert "The backup is complete, but not in the audit trail" in done.stderr


@pytest.mark.sqlite  # owners of files
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
@pytest.mark.parametrize("command", ["create", "init", "restore"])
def test_a_database_that_root_makes_in_the_folder_of_the_daemon_is_the_daemons(
    usersctl: Command, command: str
) -> None:
    usersctl.add("ada")
    usersctl.ok("db", "backup", "saved.db")
    folder = usersctl.folder / "of-the-daemon"
    folder.mkdir(mode=0o700)
    os.chown(folder, 65534, 65534)
    usersctl.env["USERS_DATABASE"] = f"{folder}/users.db"
    words = {
        "create": ("create", "ada@example.com", "--generate"),
        "init": ("db", "init"),
        "restore": ("db", "restore", "saved.db", "--yes"),
    }
    usersctl.ok(*words[command])
    usersctl.ok("list")
    assert {(file.stat().st_uid, file.stat().st_mode & 0o777) for file in folder.iterdir()} == {
        (65534, 0o600)
    }


@pytest.mark.sqlite  # owners of files
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_what_a_restore_by_root_replaces_is_kept_for_the_owner_of_the_database(usersctl: Command) -> None:
    usersctl.add("ada")
    usersctl.ok("db", "backup", "saved.db")
    os.chown(usersctl.folder / "users.db", 65534, 65534)  # and the folder stays root's
    usersctl.ok("db", "restore", "saved.db", "--yes")
    (kept,) = usersctl.folder.glob("users.db.before-*")
    assert (kept.stat().st_uid, kept.stat().st_mode & 0o777) == (65534, 0o600)


# --- an older one ---


@pytest.mark.sqlite  # an older file
def test_a_reader_refuses_an_old_database_and_a_writer_migrates_it(usersctl: Command) -> None:
    old_database(usersctl.database)
    before = usersctl.database.read_bytes()
    for words in EVERY_READER[:3]:
        done = usersctl(*words)
        assert done.code == 6
        assert "is of an older deployment" in done.stderr
        assert "db migrate" in done.stderr
    assert usersctl.database.read_bytes() == before
    done = usersctl.ok("update", "7", "--name", "Ada L")
    assert "Migrated" in done.stderr
    assert usersctl.ok("show", "ada@example.com", "--json").json["name"] == "Ada L"
    assert usersctl.ok("db", "migrate").stdout.endswith("already\n")
    assert len(list(usersctl.folder.glob("users.db.before-*"))) == 1


@pytest.mark.sqlite  # an older file
@pytest.mark.parametrize("words", EVERY_DRY_RUN, ids=" ".join)
def test_a_dry_run_migrates_nothing(usersctl: Command, words: list[str]) -> None:
    old_database(usersctl.database)
    before = usersctl.database.read_bytes()
    done = usersctl(*words)
    assert (done.code, done.stdout) == (6, "")
    assert "is of an older deployment" in done.stderr
    assert "usersctl db migrate" in done.stderr
    assert usersctl.database.read_bytes() == before
    assert {path.name for path in usersctl.folder.glob("users.db*")} == {"users.db"}


@pytest.mark.parametrize("words", EVERY_DRY_RUN, ids=" ".join)
def test_a_dry_run_does_not_wait_for_writers(usersctl: Command, words: list[str]) -> None:
    usersctl.add("ada")
    with held(usersctl.database):
        usersctl.ok(*words)


@pytest.mark.sqlite  # an older file
def test_migrate_prints_version_accounts_and_kept_file(usersctl: Command) -> None:
    old_database(usersctl.database)
    printed = usersctl.ok("db", "migrate", "--json").json
    assert (printed["migrated"], printed["accounts"]) == (True, 1)
    assert Path(printed["backup"]).is_file()
    assert usersctl.ok("db", "migrate", "--json").json["migrated"] is False


NAMES = ["\x1b[2J\x1b]0;owned\x07", "a\tb\nc", "[bold red]x[/]", "\u202eevil\u2066", "nul\0in", "\x9b31m"]
UNSAFE = "\x1b\x07\0\x9b\u202e\u2066"


@pytest.mark.sqlite  # an older file
def test_control_characters_in_names_of_an_old_database_are_made_visible(usersctl: Command) -> None:
    old_database(usersctl.database)
    connection = sqlite3.connect(usersctl.database)
    with connection:
        connection.executemany(
            "INSERT INTO users (email, name, password, role, active) VALUES (? || '@example.com', ?, '!', 'user', 1)",
            enumerate(NAMES),
        )
    connection.close()
    usersctl.ok("db", "migrate")
    for words in (["list", "--jsonl"], ["show", "8"], ["export", "--format", "jsonl"]):
        assert not set(UNSAFE) & set(usersctl.ok(*words).stdout), words
    listed = usersctl.ok("list", "--sort", "created")
    assert not set(UNSAFE) & set(listed.stdout)
    assert [len(row) for row in listed.rows] == [7] * 7
    assert {user["name"] for user in usersctl.ok("list", "--json").json} == {"Ada", *map(str.strip, NAMES)}
    for words in (["list"], ["list", "--csv"], ["list", "--json"], ["export"]):
        assert not set(UNSAFE) & set(usersctl.on_terminal(*words).text), words


@pytest.mark.sqlite  # an older file
def test_control_characters_in_an_address_of_an_old_database_are_made_visible(usersctl: Command) -> None:
    old_database(usersctl.database, email="\x1b[2Jx")
    usersctl.ok("db", "migrate")
    screen = usersctl.on_terminal("delete", "7", typed=[("[y/N]", "n\n")])
    assert "\x1b" not in screen.raw
    assert screen.code == 5


@pytest.mark.sqlite  # a server takes UTF-8 only
@pytest.mark.parametrize("value", [b"\xff\xfe", b"\xc3\x28"])
def test_invalid_utf_8_in_an_old_database_is_no_bug(usersctl: Command, value: bytes) -> None:
    old_database(usersctl.database)
    connection = sqlite3.connect(usersctl.database)
    with connection:
        connection.execute("UPDATE users SET name = CAST(? AS TEXT)", (value,))
    connection.close()
    done = usersctl("db", "migrate")
    assert done.code in (0, 6), done
