"""A database whose file is damaged, or that somebody else has changed: each command says so, and none calls it a bug."""

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from support.commands import Command, by_hand


@pytest.mark.sqlite  # a damaged file
def test_a_damaged_database_is_reported_in_one_line(usersctl: Command) -> None:
    usersctl.add(*(f"user{number}" for number in range(30)))
    content = bytearray(usersctl.database.read_bytes())
    for page in range(4096, len(content), 4096):
        content[page : page + 200] = b"\xff" * 200
    usersctl.database.write_bytes(content)
    for words in (["list"], ["update", "1", "--name", "x"], ["list", "--json"]):
        done = usersctl(*words)
        assert done.code == 6, done
        assert "is damaged" in done.stderr
        assert "restore a backup: usersctl db restore FILE" in done.stderr


def _tear(path: Path, table: str) -> None:
    """Makes the second half of its root page zeros, as a power cut may leave it: its rows hold NULL in every column."""
    with closing(sqlite3.connect(path)) as connection:
        (page,) = connection.execute("SELECT rootpage FROM sqlite_schema WHERE name = ?", (table,)).fetchone()
    with path.open("r+b") as file:
        file.seek(page * 4096 - 2048)
        file.write(bytes(2048))


@pytest.mark.sqlite  # a damaged file
def test_a_torn_page_is_reported_as_damage_and_not_as_a_bug(usersctl: Command) -> None:
    usersctl.add("ada")
    usersctl.ok("db", "backup", "saved.db")
    for table, words in (("users", ["export"]), ("audit", ["audit"])):
        _tear(usersctl.database, table)
        done = usersctl(*words)
        assert (done.code, "is damaged" in done.stderr) == (6, True), done
        usersctl.ok("db", "restore", "saved.db", "--yes")
        usersctl.ok(*words)


@pytest.mark.sqlite  # a damaged file
def test_an_older_database_with_a_torn_page_is_not_upgraded_and_called_damaged(usersctl: Command) -> None:
    usersctl.add("ada")
    usersctl.ok("db", "backup", "saved.db")
    by_hand(usersctl.database, "PRAGMA user_version = 7")
    _tear(usersctl.database, "users")
    before = usersctl.database.read_bytes()
    for words in (["db", "migrate"], ["create", "bob@example.com", "--generate"]):
        done = usersctl(*words)
        assert (done.code, f"{usersctl.database} is damaged" in done.stderr) == (6, True), done
    assert usersctl.database.read_bytes()[100:] == before[100:]
    assert not list(usersctl.folder.glob("*.before-*"))
    refused = usersctl("db", "restore", "saved.db", "--yes", "--json")
    assert refused.error["hint"].startswith("nothing was replaced; stop the daemon, move ")
    usersctl.database.unlink()
    usersctl.ok("db", "restore", "saved.db", "--yes")


@pytest.mark.sqlite  # a damaged file
def test_a_torn_end_of_the_trail_is_found_and_restored(usersctl: Command) -> None:
    usersctl.add("ada")
    usersctl.ok("db", "backup", "saved.db")
    _tear(usersctl.database, "audit_head")
    for words in (["db", "verify"], ["db", "verify", "torn.db"], ["audit", "verify"]):
        shutil.copy(usersctl.database, usersctl.folder / "torn.db")
        done = usersctl(*words)
        assert (done.code, "the note of where the trail ends is missing" in done.stdout) == (7, True), done
    usersctl.ok("db", "restore", "saved.db", "--yes")
    usersctl.ok("db", "verify")


@pytest.mark.sqlite  # the index of searches of a file
@pytest.mark.parametrize("table", ["user_search_data", "user_search_idx", "user_search_config"])
def test_a_missing_table_of_the_index_of_searches_is_found_and_no_bug(usersctl: Command, table: str) -> None:
    usersctl.add("ada")
    by_hand(usersctl.database, f"DROP TABLE {table}")
    for words in (["update", "1", "--name", "x"], ["list", "--search", "ada"]):
        done = usersctl(*words)
        assert (done.code, "usersctl db restore FILE" in done.stderr) == (6, True), done
    verified = usersctl("db", "verify")
    assert (verified.code, f"schema: the table {table} is missing" in verified.stdout) == (7, True), verified


@pytest.mark.sqlite  # a table in a file
def test_a_table_of_others_that_refers_to_an_account_keeps_it(usersctl: Command) -> None:
    usersctl.add("ada")
    by_hand(
        usersctl.database,
        "CREATE TABLE posts (author REFERENCES users)",
        "INSERT INTO posts VALUES (1)",
    )
    done = usersctl("delete", "1", "--yes", "--json")
    assert (done.code, done.error["code"]) == (5, "referred")


@pytest.mark.sqlite  # a trigger of a file
def test_a_foreign_trigger_that_refuses_a_change_is_no_bug(usersctl: Command) -> None:
    usersctl.add("ada")
    trigger = "CREATE TRIGGER theirs BEFORE UPDATE ON users BEGIN SELECT RAISE(ABORT, 'not today'); END"
    by_hand(usersctl.database, trigger)
    done = usersctl("update", "1", "--name", "x")
    assert done.code == 6
    assert done.stderr == (
        f"usersctl: {usersctl.database} has a trigger that refuses this (not today)\n  see: usersctl db verify\n"
    )
    assert "the trigger theirs does not belong to the table users" in usersctl("db", "verify").stdout
