"""db verify, of backups and of the database in use: it changes nothing, and has a message for every problem."""

import os
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from support.backups import emails, names, saved
from support.commands import OPERATOR, Command, by_hand
from support.old_databases import old_database

from usersctl.errors import StoreUnusable
from usersctl.models import User
from usersctl.service import Service
from usersctl.store import backup

pytestmark = pytest.mark.usefixtures("progress_is_drawn_often")


@pytest.mark.sqlite  # verifies the file in use
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
        ("schema", "CREATE INDEX back_door ON user_search_idx (segid)"),
        ("schema", "ALTER TABLE users ADD COLUMN more TEXT"),
        ("schema", "DROP TABLE audit_head"),
        ("schema", "DROP TABLE users"),
        ("text", "UPDATE users SET name = CAST(x'41ff' AS TEXT)"),
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


@pytest.mark.sqlite  # a server takes no text that is not UTF-8
@pytest.mark.usefixtures("ada")
def test_text_that_is_not_utf8_is_named_with_its_row(usersctl: Command) -> None:
    by_hand(usersctl.folder / "users.db", "UPDATE users SET name = CAST(x'41ff0a42' AS TEXT)")
    refused = usersctl("list", "--json")
    assert (refused.code, refused.error["hint"]) == (6, "which: usersctl db verify")
    verified = usersctl("db", "verify")
    assert verified.code == 7
    assert "text: users.name is not UTF-8 in the row with id 1\n" in verified.stdout
    found = usersctl("doctor", "--json").json
    (finding,) = (each for each in found["findings"] if each["code"] == "database-integrity")
    assert (finding["severity"], "users.name is not UTF-8" in finding["message"]) == ("problem", True)


@pytest.mark.sqlite  # as above
@pytest.mark.usefixtures("ada")
def test_text_that_is_not_utf8_is_named_on_one_line_also_beside_a_missing_table(usersctl: Command) -> None:
    by_hand(
        usersctl.folder / "users.db",
        "INSERT INTO applied_invitations VALUES (CAST(x'410aff' AS TEXT), '')",
        "DROP TABLE groups",
    )
    lines = usersctl("db", "verify").stdout.splitlines()
    assert [line for line in lines if not line.startswith("schema: ")] == [
        r"text: applied_invitations.email is not UTF-8 in the row with email A\n\xff"
    ]
    found = usersctl("doctor", "--json").json
    (finding,) = (each for each in found["findings"] if each["code"] == "database-integrity")
    assert finding["message"].startswith("damaged: applied_invitations.email is not UTF-8")


@pytest.mark.sqlite  # as above
@pytest.mark.usefixtures("ada")
def test_text_is_checked_beside_a_column_that_others_have_added_with_a_word_of_sql(usersctl: Command) -> None:
    by_hand(
        usersctl.folder / "users.db",
        'ALTER TABLE users ADD COLUMN "order" TEXT',
        'ALTER TABLE users ADD COLUMN "a ""b""\nc" TEXT DEFAULT \'x\'',
        'UPDATE users SET "a ""b""\nc" = CAST(x\'ff\' AS TEXT), name = CAST(x\'41ff\' AS TEXT)',
    )
    lines = usersctl("db", "verify").stdout.splitlines()
    assert [line for line in lines if line.startswith("text: ")] == [
        "text: users.name is not UTF-8 in the row with id 1",
        r'text: users.a "b"\nc is not UTF-8 in the row with id 1',
    ]


def test_what_another_application_keeps_beside_the_tables_is_no_fault(
    service: Service, add: Callable[..., User], tmp_path: Path
) -> None:
    add("ada")
    file = tmp_path / "saved.db"
    service.store.copy(file)
    by_hand(
        file,
        "CREATE TABLE songs (title TEXT, user_id REFERENCES users (id))",
        "CREATE INDEX songs_by_title ON songs (title)",
        "CREATE VIRTUAL TABLE song_search USING fts5 (title)",
        "CREATE TRIGGER songs_searched_in AFTER INSERT ON songs BEGIN INSERT INTO song_search VALUES (new.title); END",
        "CREATE VIEW singers AS SELECT name FROM users",
        "CREATE TRIGGER singers_in INSTEAD OF INSERT ON singers BEGIN SELECT 1; END",
    )
    with backup.checked_copy(file) as (report, _copy):
        assert report.problems == []


@pytest.mark.sqlite  # pages of a file
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


@pytest.mark.sqlite  # the log of a file
def test_verify_reads_the_write_ahead_log_of_a_copied_database(
    add: Callable[..., User], tmp_path: Path
) -> None:
    add("ada")
    (tmp_path / "copy").mkdir()
    for suffix in ("", "-wal"):
        shutil.copy(f"{tmp_path / 'users.db'}{suffix}", f"{tmp_path / 'copy' / 'users.db'}{suffix}")
    with backup.checked_copy(tmp_path / "copy" / "users.db") as (report, _copy):
        assert (report.counts["users"], report.problems) == (1, [])


@pytest.mark.sqlite  # an older file
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


@pytest.mark.sqlite  # verifies the file in use
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
