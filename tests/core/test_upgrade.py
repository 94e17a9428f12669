"""A database of an existing deployment becomes a current one: everything is kept, or nothing is changed."""

import multiprocessing
import sqlite3
import stat
import threading
from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from support.commands import OPERATOR, PASSWORD, create_user
from support.fakes import FakeClock
from support.old_databases import (
    INTEGER_ACTIVE,
    OLD,
    OLDER_TOKEN,
    WITH_LAST_LOGIN,
    make_version,
)
from support.postbox import last_link
from werkzeug.security import generate_password_hash

from usersctl.clock import moment, stamp, utc_now
from usersctl.errors import Busy, Invalid, StoreUnusable, Unauthenticated
from usersctl.fields import lookup_key
from usersctl.models import Client, User, UserFilter
from usersctl.passwords import Hasher
from usersctl.secrets import digest
from usersctl.service import Service
from usersctl.store import database_file, upgrade
from usersctl.store.backup import check, checked_copy
from usersctl.store.database_file import VERSION
from usersctl.store.opening import open_store

pytestmark = pytest.mark.sqlite  # older files

HASH = Hasher(4).hash(PASSWORD)
WERKZEUG = generate_password_hash(PASSWORD, "pbkdf2:sha256:100")


def make(path: Path, layout: str = OLD, *rows: dict[str, Any], extra: str = "") -> Path:
    with closing(sqlite3.connect(path)) as db:
        db.executescript(layout)
        for row in rows:
            names = ", ".join(row)
            marks = ", ".join("?" * len(row))
            db.execute(f"INSERT INTO users ({names}) VALUES ({marks})", tuple(row.values()))  # noqa: S608 - ours
        db.executescript(extra)
        db.commit()
    return path


def old_row(**changes: Any) -> dict[str, Any]:
    return {
        "email": "ada@example.com",
        "name": "Ada",
        "password": HASH,
        "role": "admin",
        "active": 1,
        "created_at": "2024-02-29 12:34:56",
        "updated_at": "2025-01-02T03:04:05.678Z",
    } | changes


def dump(path: Path) -> list[str]:
    with closing(sqlite3.connect(path)) as db:
        return list(db.iterdump())


def layout_of(path: Path, but: tuple[str, ...] = ()) -> set[tuple[Any, ...]]:
    """Tables, columns, indexes and triggers, as SQLite has them."""
    with closing(sqlite3.connect(path)) as db:
        rows = db.execute("SELECT type, name, tbl_name, sql FROM sqlite_schema").fetchall()
        columns = [
            (name, *column)
            for kind, name, *_ in rows
            if kind == "table"
            for column in db.execute("SELECT * FROM pragma_table_xinfo(?)", (name,))
        ]
        marks = [
            db.execute(f"PRAGMA {name}").fetchone()
            for name in ("user_version", "application_id", "journal_mode")
        ]
    return {row for row in (*rows, *columns) if not {row[0], row[1], *row[2:3]} & set(but)} | set(marks)


def migrated(path: Path) -> tuple[list[User], upgrade.Migrated | None]:
    store = open_store(path)
    try:
        with store.read() as tx:
            return list(tx.users(UserFilter(sort="created"))), store.migrated
    finally:
        store.close()


def only(path: Path) -> User:
    (user,), _ = migrated(path)
    return user


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "users.db"


# --- what is kept ---


@pytest.mark.parametrize(
    "layout", [OLD, WITH_LAST_LOGIN, INTEGER_ACTIVE], ids=["old", "last login", "integer"]
)
def test_an_upgrade_keeps_the_id_address_hash_and_times_of_every_account(path: Path, layout: str) -> None:
    rows = [
        old_row(id=3),
        old_row(
            id=7, email="Bob@Example.COM", name="Bob", role="user", active=0, updated_at="2024-02-29 12:34:57"
        ),
    ]
    if layout is WITH_LAST_LOGIN:
        rows[1]["last_login_at"] = "2025-06-01 00:00:00"
    make(path, layout, *rows)
    users, what = migrated(path)
    assert users == [
        User(
            *(3, "ada@example.com", "Ada", "admin", True),
            *("2024-02-29T12:34:56.000Z", "2025-01-02T03:04:05.678Z", None, None, None, None, False),
        ),
        User(
            *(7, "bob@example.com", "Bob", "user", False),
            *("2024-02-29T12:34:56.000Z", "2024-02-29T12:34:57.000Z"),
            *("2025-06-01T00:00:00.000Z" if layout is WITH_LAST_LOGIN else None, None, None, None, False),
        ),
    ]
    assert what is not None
    assert what.accounts == 2
    with closing(sqlite3.connect(path)) as db:
        assert db.execute("SELECT DISTINCT password_hash FROM users").fetchall() == [(HASH,)]


@pytest.mark.parametrize(
    "layout", [OLD, WITH_LAST_LOGIN, INTEGER_ACTIVE], ids=["old", "last login", "integer"]
)
def test_an_upgraded_database_has_the_layout_of_a_new_one(path: Path, tmp_path: Path, layout: str) -> None:
    make(path, layout, old_row())
    migrated(path)
    open_store(tmp_path / "new.db", create=True).close()
    others = (
        "personal_access_tokens",
        "password_reset_tokens",
        "migrations",
        "idx_password_reset_tokens_email",
    )
    assert layout_of(path, others) == layout_of(tmp_path / "new.db")
    with closing(sqlite3.connect(path)) as db:
        columns = {name for (name,) in db.execute("SELECT name FROM pragma_table_info('users')")}
    assert {"oauth_id", "profile_picture", "last_login_at"} <= columns


def test_an_old_database_that_its_application_reads_is_not_upgraded_and_the_way_on_is_told(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(path, OLD, old_row())
    monkeypatch.setattr(database_file, "BUSY_SECONDS", 0.1)
    with closing(sqlite3.connect(path)) as application:
        application.execute("BEGIN")
        application.execute("SELECT * FROM users").fetchall()
        with pytest.raises(Busy, match="in use by another process") as refused:
            open_store(path)
    assert refused.value.hint == "stop the daemon, or the application that has it open, and try again"
    migrated(path)


def test_an_upgrade_leaves_other_tables_alone(path: Path) -> None:
    make(
        path,
        OLD,
        old_row(),
        extra="""
        INSERT INTO personal_access_tokens (tokenable_type, tokenable_id, name, token) VALUES ('user', 1, 'a', 'b');
        INSERT INTO password_reset_tokens (email, token) VALUES ('ada@example.com', 'x');
        CREATE TABLE orders (id INTEGER PRIMARY KEY, user_id INTEGER REFERENCES users (id) ON DELETE CASCADE);
        INSERT INTO orders VALUES (5, 1);
        CREATE VIEW active_users AS SELECT id, email FROM users WHERE active;
        """,
    )
    names = ("personal_access_tokens", "password_reset_tokens", "migrations", "orders")

    def held() -> list[str]:
        return [
            line for line in dump(path) if any(f'"{name}"' in line or f" {name} " in line for name in names)
        ]

    before = held()
    migrated(path)
    assert [line for line in held() if "sqlite_sequence" not in line] == [
        line for line in before if "sqlite_sequence" not in line
    ]
    with closing(sqlite3.connect(path)) as db:
        assert db.execute("SELECT * FROM orders").fetchall() == [(5, 1)]
        assert db.execute("SELECT * FROM active_users").fetchall() == [(1, "ada@example.com")]
        assert db.execute("PRAGMA foreign_key_check").fetchall() == []
        assert db.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


def test_tables_with_a_name_of_the_schema_are_replaced_and_kept_in_the_backup(path: Path) -> None:
    make(
        path,
        OLD,
        old_row(),
        extra="""
        CREATE TABLE Audit (line TEXT);
        INSERT INTO Audit VALUES ('old');
        CREATE VIEW auth_tokens AS SELECT 1;
        CREATE INDEX users_by_name ON password_reset_tokens (token);
        CREATE TRIGGER users_counted_in AFTER INSERT ON migrations BEGIN SELECT 1; END;
        """,
    )
    before = dump(path)
    users, what = migrated(path)
    assert len(users) == 1
    assert what is not None
    assert dump(what.backup) == before


def test_the_next_id_after_an_upgrade_is_new(path: Path, make_service: Callable[..., Service]) -> None:
    make(
        path,
        OLD,
        *(old_row(id=number, email=f"u{number}@example.com") for number in (1, 2, 9)),
        extra="DELETE FROM users WHERE id = 9;",
    )
    service = make_service()
    assert create_user(service, "new@example.com", "New", None, by=OPERATOR).id == 10


def test_the_next_id_after_an_upgrade_is_new_also_without_accounts(
    path: Path, make_service: Callable[..., Service]
) -> None:
    make(path, OLD, old_row(id=9), extra="DELETE FROM users;")
    assert create_user(make_service(), "new@example.com", "New", None, by=OPERATOR).id == 10


def test_every_user_signs_in_with_the_former_password_after_an_upgrade(
    path: Path, make_service: Callable[..., Service]
) -> None:
    make(path, OLD, old_row(email="Ada@Example.com"), old_row(email="bob@exämple.com"))
    service = make_service()
    for email in ("ada@example.com", "ADA@EXAMPLE.COM", "bob@exämple.com", "bob@xn--exmple-cua.com"):
        assert service.sessions.login(lookup_key(email), PASSWORD)
    service.accounts.update(1, name="Changed", by=OPERATOR)
    assert not service.first_admin.needed()
    with pytest.raises(Invalid):
        service.accounts.delete([1, 2], by=OPERATOR)


def test_an_upgrade_sets_the_counts_of_the_accounts(path: Path, make_service: Callable[..., Service]) -> None:
    make(
        path,
        OLD,
        *(
            old_row(email=f"u{n}@example.com", role=["admin", "user"][n % 2], active=n % 3 > 0)
            for n in range(12)
        ),
    )
    accounts = make_service().accounts
    assert accounts.page(UserFilter()).total == 12
    assert accounts.page(UserFilter(role="admin", active=True)).total == 4
    assert accounts.page(UserFilter(active=False)).total == 4


# --- the backup ---


def test_the_former_database_is_kept_beside_the_new_one_for_its_owner_only(path: Path) -> None:
    make(path, OLD, old_row())
    before = dump(path)
    _, what = migrated(path)
    assert what is not None
    assert what.backup.parent == path.parent
    assert what.backup.name.startswith("users.db.before-")
    assert dump(what.backup) == before
    assert stat.S_IMODE(what.backup.stat().st_mode) == 0o600
    assert {file.name for file in path.parent.iterdir()} == {path.name, what.backup.name}


@pytest.mark.parametrize(("before", "after"), [(0o644, 0o600), (0o600, 0o600), (0o666, 0o660)])
@pytest.mark.parametrize("layout", [OLD, OLD + "PRAGMA journal_mode = WAL;", ""], ids=["old", "wal", "empty"])
def test_an_upgraded_database_is_closed_to_other_users(
    path: Path, layout: str, before: int, after: int
) -> None:
    make(path, layout).chmod(before)
    store = open_store(path, create=True)
    try:
        with store.write() as tx:
            tx.clear_failures(1)
        files = [path, path.with_name("users.db-wal"), path.with_name("users.db-shm")]
        assert [stat.S_IMODE(file.stat().st_mode) for file in files] == [after] * 3
    finally:
        store.close()


def test_a_refused_database_keeps_its_mode(path: Path) -> None:
    make(path, OLD.replace("email TEXT", "mail TEXT", 1)).chmod(0o644)
    with pytest.raises(StoreUnusable):
        migrated(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o644


def test_an_upgrade_names_the_columns_that_it_drops(path: Path) -> None:
    make(path, OLD + "ALTER TABLE users ADD COLUMN phone TEXT; ALTER TABLE users ADD COLUMN Nick TEXT;")
    _, what = migrated(path)
    assert what is not None
    assert what.notes == ["columns of users that stand in the backup only: nick, phone"]


def test_a_current_database_is_not_migrated_again(path: Path) -> None:
    make(path, OLD, old_row())
    migrated(path)
    before = dump(path)
    assert migrated(path)[1] is None
    assert dump(path) == before
    assert len(list(path.parent.iterdir())) == 2


def test_reading_an_old_database_says_how_to_migrate_it_and_changes_nothing(path: Path) -> None:
    make(path, OLD, old_row())
    before = path.read_bytes()
    with pytest.raises(StoreUnusable, match="is of an older deployment of this service") as refused:
        open_store(path, write=False)
    assert "db migrate" in str(refused.value.hint)
    assert path.read_bytes() == before
    assert list(path.parent.iterdir()) == [path]


def test_reading_an_older_version_tells_which_one_it_is(path: Path) -> None:
    open_store(path, create=True).close()
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA user_version = 5")
    with pytest.raises(StoreUnusable, match=f"is of version 5, this usersctl knows {VERSION}$"):
        open_store(path, write=False)


# --- variants ---


@pytest.mark.parametrize(
    ("written", "active"),
    [
        (1, True),
        (0, False),
        ("1", True),
        ("true", True),
        (" TRUE ", True),
        ("t", True),
        ("yes", True),
        ("false", False),
        ("0", False),
        ("", False),
        (None, False),
    ],
)
def test_booleans_may_be_spelled_yes_no_1_0(path: Path, written: Any, active: bool) -> None:
    make(
        path,
        OLD.replace("active BOOLEAN", "active TEXT") if isinstance(written, str) else OLD,
        old_row(active=written),
    )
    assert only(path).active is active


@pytest.mark.parametrize(
    ("written", "stored"),
    [
        ("2024-02-29 12:34:56", "2024-02-29T12:34:56.000Z"),
        ("2024-02-29T12:34:56.789Z", "2024-02-29T12:34:56.789Z"),
        ("2024-02-29T14:34:56+02:00", "2024-02-29T12:34:56.000Z"),
        (" 2024-02-29 ", "2024-02-29T00:00:00.000Z"),
        (1709210096, "2024-02-29T12:34:56.000Z"),
        (1709210096.5, "2024-02-29T12:34:56.500Z"),
        (1709210096789, "2024-02-29T12:34:56.789Z"),
        (0, "1970-01-01T00:00:00.000Z"),
    ],
)
def test_times_may_be_spelled_in_other_formats(path: Path, written: Any, stored: str) -> None:
    make(path, OLD, old_row(created_at=written, updated_at=written))
    user = only(path)
    assert (user.created_at, user.updated_at) == (stored, stored)


@pytest.mark.parametrize("written", [None, "", "yesterday", "2024-13-01", 1e300, -1e300, b"2024"])
def test_a_missing_time_becomes_the_time_of_the_upgrade(path: Path, written: Any) -> None:
    make(path, WITH_LAST_LOGIN, old_row(created_at=written, updated_at=written, last_login_at=written))
    began = datetime.now(UTC).isoformat()[:16]
    user = only(path)
    assert user.created_at[:16] in (began, datetime.now(UTC).isoformat()[:16])
    assert user.updated_at == user.created_at
    assert user.last_login_at is None


@pytest.mark.parametrize(
    ("written", "role", "noted"),
    [
        ("admin", "admin", 0),
        (" Admin ", "admin", 0),
        ("user", "user", 0),
        (None, "user", 0),
        ("", "user", 0),
        ("moderator", "user", 1),
    ],
)
def test_an_unknown_role_becomes_user_and_is_reported(
    path: Path, written: str | None, role: str, noted: int
) -> None:
    make(path, OLD, old_row(role=written))
    (user,), what = migrated(path)
    assert user.role == role
    assert what is not None
    assert len(what.notes) == noted
    assert all("moderator" in note for note in what.notes)


@pytest.mark.parametrize(
    ("layout", "password"),
    [
        ("id INTEGER PRIMARY KEY, email TEXT, password TEXT", HASH),
        ("id INTEGER PRIMARY KEY, email TEXT, password_hash TEXT", HASH),
        ("ID INTEGER PRIMARY KEY, Email TEXT, Password TEXT", HASH),
        ("id INTEGER PRIMARY KEY, email TEXT, password TEXT, password_hash TEXT", HASH),
        ("id INTEGER PRIMARY KEY, email TEXT, password BLOB", HASH.encode()),
        ("id INTEGER PRIMARY KEY, email TEXT, password TEXT", WERKZEUG),
        ("id INTEGER PRIMARY KEY, email TEXT, password BLOB", b"\xff\0"),
        ("id INTEGER PRIMARY KEY, email TEXT, password TEXT", None),
    ],
    ids=["password", "password_hash", "capitals", "both", "bytes", "Werkzeug", "other bytes", "none"],
)
def test_missing_columns_of_an_account_get_defaults(
    path: Path, make_service: Callable[..., Service], layout: str, password: Any
) -> None:
    column = "password_hash" if "password_hash" in layout else "password"
    make(path, f"CREATE TABLE Users ({layout});", {"id": 4, "email": "ada@example.com", column: password})
    service = make_service()
    user = service.accounts.get(4)
    assert user == User(
        4, "ada@example.com", "ada", "user", True, *(user.created_at,) * 2, None, None, None, None, False
    )
    if password in (HASH, HASH.encode(), WERKZEUG):
        assert service.sessions.login("ada@example.com", PASSWORD)
    else:
        with pytest.raises(Unauthenticated):
            service.sessions.login("ada@example.com", PASSWORD)


def test_a_provider_account_and_picture_are_kept(path: Path) -> None:
    layout = OLD.replace("role TEXT", "oauth_id TEXT, profile_picture TEXT, role TEXT")
    make(path, layout, old_row(oauth_id="7", profile_picture="https://example.com/a.png"))
    user = only(path)
    assert (user.oauth_id, user.profile_picture) == ("7", "https://example.com/a.png")
    with closing(sqlite3.connect(path)) as db:
        links = db.execute("SELECT user_id, provider, issuer, subject FROM identities").fetchall()
    assert links == [(user.id, "oauth", "", "7")]


# --- what is refused ---


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (
            [old_row(id=1), old_row(id=2, email="ADA@example.com")],
            "accounts 1 and 2 have the same email address ada@example.com",
        ),
        (
            [old_row(id=1, email="a@exämple.com"), old_row(id=2, email="a@xn--exmple-cua.com")],
            "accounts 1 and 2 have the same",
        ),
        ([old_row(id=5, email="  ")], "account 5 has no usable"),
        ([old_row(id=0)], "account 0 has no usable"),
        ([old_row(id=-3)], "account -3 has no usable"),
    ],
    ids=["case", "idn", "no address", "zero", "negative"],
)
def test_an_upgrade_names_accounts_that_it_cannot_keep_and_changes_nothing(
    path: Path, rows: list[dict[str, Any]], message: str
) -> None:
    make(path, OLD, *rows)
    before, content = path.read_bytes(), dump(path)
    with pytest.raises(StoreUnusable, match=message):
        open_store(path)
    assert dump(path) == content
    # Nothing but SQLite's own counts of changes: the journal, too, is the one that the old application had.
    after = path.read_bytes()
    assert (after[:24], after[28:92], after[100:]) == (before[:24], before[28:92], before[100:])
    assert list(path.parent.iterdir()) == [path]


# --- half-way ---


@pytest.mark.parametrize("layout", [OLD, None], ids=["old", "new"])
def test_an_upgrade_that_fails_halfway_leaves_the_former_database(
    path: Path, layout: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    if layout:
        make(path, layout, old_row())
    else:
        path.touch()
    before = dump(path)
    again = (*upgrade.statements(), "CREATE TABLE users (again TEXT);")
    monkeypatch.setattr(upgrade, "statements", lambda: again)
    monkeypatch.setattr(upgrade, "names_of_schema", lambda: {"users"})
    with pytest.raises(sqlite3.OperationalError, match="already exists"):
        open_store(path, create=True)
    assert dump(path) == before
    monkeypatch.undo()
    open_store(path, create=True).close()
    assert len(migrated(path)[0]) == (1 if layout else 0)


def killed_in_the_middle(path: Path) -> None:
    import os
    import signal

    real = upgrade._run_schema

    def die(connection: sqlite3.Connection) -> None:
        real(connection)
        os.kill(os.getpid(), signal.SIGKILL)

    upgrade._run_schema = die
    open_store(path)


def test_a_database_that_another_process_makes_amid_a_look_at_the_file_has_not_lost_its_version(
    path: Path,
) -> None:
    path.touch()
    other = threading.Thread(target=lambda: open_store(path, create=True).close())

    def while_it_looks(statement: str) -> None:
        if "sqlite_schema" in statement and other.ident is None:
            other.start()
            other.join(0.5)

    with closing(database_file.connect(path)) as connection:
        connection.set_trace_callback(while_it_looks)
        assert database_file.version_of(connection, path) is None
        other.join()
        assert database_file.version_of(connection, path) == VERSION


def kill_an_upgrade(path: Path) -> None:
    process = multiprocessing.get_context("spawn").Process(target=killed_in_the_middle, args=(path,))
    process.start()
    process.join(60)
    assert process.exitcode == -9


def test_an_upgrade_that_is_killed_halfway_leaves_the_former_database(path: Path) -> None:
    make(path, OLD, old_row())
    before = dump(path)
    kill_an_upgrade(path)
    assert dump(path) == before
    assert only(path).email == "ada@example.com"


@pytest.mark.slow
@pytest.mark.parametrize(
    "make_older", [make, partial(make_version, version=1)], ids=["deployment", "version"]
)
def test_upgrades_that_are_killed_leave_no_copies_that_fill_the_disk(
    path: Path, make_older: Callable[[Path], Any]
) -> None:
    """As by a machine that is short of memory, and starts the daemon again and again."""
    make_older(path)
    before = dump(path)
    theirs = path.with_name("other.db.before-20260102T030405.678901Z.unfinished")
    theirs.touch()
    for _ in range(2):
        kill_an_upgrade(path)
        (left,) = path.parent.glob("users.db.before-*")
        assert left.name.endswith(".unfinished")
    open_store(path).close()
    (copy,) = path.parent.glob("users.db.before-*")
    assert copy.name.endswith("Z")
    assert dump(copy) == before
    assert theirs.exists()


# --- the first release ---


def rows_of(path: Path) -> dict[str, list[dict[str, Any]]]:
    with closing(sqlite3.connect(path)) as db:
        db.row_factory = sqlite3.Row
        tables = [name for (name,) in db.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")]
        rows = {table: [dict(row) for row in db.execute(f"SELECT * FROM {table}")] for table in tables}  # noqa: S608 - ours
        # Older versions count by role and activity alone.
        counts = (
            "SELECT role, active, sum(n) AS n FROM user_counts GROUP BY role, active ORDER BY role, active"
        )
        rows["user_counts"] = [dict(row) for row in db.execute(counts)]
        # Before version 4, the one link of an account stood in its row.
        links = [
            {"user_id": row["id"], "subject": row["oauth_id"], "issuer": row.pop("oauth_issuer", None) or ""}
            for row in rows["users"]
        ]
        rows["links"] = rows.pop("identities", [link for link in links if link["subject"]])
        return rows


def test_an_upgrade_of_the_first_release_keeps_every_row_of_every_table(path: Path) -> None:
    before = rows_of(make_version(path, 1))
    open_store(path).close()
    after = rows_of(path)
    # A table that the first release had not has an id of its own.
    new = {"reserved_emails", "identities"}
    assert {row["name"] for row in after["sqlite_sequence"]} - new == {
        row["name"] for row in before["sqlite_sequence"]
    }
    after["sqlite_sequence"] = [row for row in after["sqlite_sequence"] if row["name"] not in new]
    for table, rows in before.items():
        kept = [{name: row[name] for name in old} for old, row in zip(rows, after[table], strict=True)]
        assert kept == rows, table
    assert after["theirs"] == [{"note": "kept"}]


def test_an_upgrade_of_the_first_release_has_the_layout_of_a_new_database(path: Path, tmp_path: Path) -> None:
    open_store(make_version(path, 1)).close()
    open_store(tmp_path / "new.db", create=True).close()
    assert layout_of(path, but=("theirs",)) == layout_of(tmp_path / "new.db")
    assert check(path).problems == []


def test_an_upgrade_of_the_first_release_keeps_the_former_file_and_gives_no_id_again(path: Path) -> None:
    before = dump(make_version(path, 1))
    store = open_store(path)
    assert store.migrated is not None
    assert (store.migrated.accounts, dump(store.migrated.backup)) == (6, before)
    with store.read() as tx:
        assert (tx.last_ids()["users"], tx.active_admins()) == (7, 1)
    store.close()


def test_an_upgrade_of_the_first_release_leaves_one_file_beside_the_database_and_lets_go_of_it(
    path: Path,
) -> None:
    store = open_store(make_version(path, 1))
    assert store.migrated is not None
    with store.read() as tx:
        assert [name for _, name, _ in tx._run("PRAGMA database_list")] == ["main"]
    store.close()
    assert {file.name for file in path.parent.iterdir()} == {path.name, store.migrated.backup.name}


def test_an_upgrade_of_the_first_release_that_fails_halfway_changes_nothing(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = dump(make_version(path, 1))
    monkeypatch.setattr(upgrade, "_for_its_owner_only", lambda _: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        open_store(path)
    assert dump(path) == before


def test_an_upgrade_that_is_interrupted_during_its_commit_says_that_it_is_done(path: Path) -> None:
    class Interrupted(sqlite3.Connection):
        def execute(self, statement: str, *values: Any) -> sqlite3.Cursor:
            done = super().execute(statement, *values)
            if statement == "COMMIT":
                raise KeyboardInterrupt
            return done

    make_version(path, 1)
    with closing(sqlite3.connect(path, factory=Interrupted, isolation_level=None)) as connection:
        with pytest.raises(KeyboardInterrupt, match=r"but .* is up to date"):
            upgrade.upgrade_database(connection, path)
        assert database_file.version_of(connection, path) == VERSION
    assert len(list(path.parent.glob("*.before-*"))) == 1
    open_store(path).close()


@pytest.mark.parametrize(
    "make_older", [make, partial(make_version, version=1)], ids=["deployment", "version"]
)
def test_upgrades_that_fail_leave_no_copies_that_fill_the_disk(
    path: Path, monkeypatch: pytest.MonkeyPatch, make_older: Callable[[Path], Any]
) -> None:
    make_older(path)
    monkeypatch.setattr(upgrade, "_for_its_owner_only", lambda _: 1 / 0)
    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            open_store(path)
    assert list(path.parent.glob("*.before-*")) == []
    monkeypatch.undo()
    open_store(path).close()
    assert len(list(path.parent.glob("*.before-*"))) == 1


def add_ways_back(path: Path, *ways: tuple[int, str, str, float, float | None]) -> None:
    """Each of: user, address, kind of link or state of the notice, its age in days, and the days that a link still works."""
    with closing(sqlite3.connect(path)) as db:
        for number, (user_id, email, kind, age, left) in enumerate(ways):
            made = stamp(utc_now() - timedelta(days=age))
            if left is not None:
                until = stamp(utc_now() + timedelta(days=left))
                row = (digest(f"token {number}"), kind, user_id, email, made, until)
                db.execute("INSERT INTO one_time_tokens VALUES (?, ?, ?, ?, ?, ?)", row)
            else:
                db.execute(
                    "INSERT INTO outbox (kind, user_id, email, message_id, state, created_at, due_at)"
                    " VALUES ('email-changed', ?, ?, ?, ?, ?, ?)",
                    (user_id, email, f"way-{number}", kind, made, made),
                )
        db.execute("DELETE FROM lockdown")
        db.commit()


def test_an_upgrade_of_the_first_release_reserves_the_addresses_that_a_link_puts_back(path: Path) -> None:
    add_ways_back(
        make_version(path, 1),
        (2, "third@example.com", "waiting", 1, None),
        (2, "second@example.com", "not_me", 0.5, 6.5),  # sent two days late
        (2, "second@example.com", "sent", 2.5, None),
        (2, "first@example.com", "not_me", 2, 5),
        (2, "first@example.com", "not_me", 3, 4),
        (4, "first@example.com", "not_me", 1, 6),  # it had the address after user 2
        (2, "user2@example.com", "not_me", 1, 6),  # the present address
        (3, "user1@example.com", "not_me", 1, 6),  # another account has it
        (4, "expired@example.com", "not_me", 8, -1),
        (5, "reset@example.com", "reset", 1, 6),
        (6, "sent@example.com", "sent", 1, None),
    )
    open_store(path).close()
    reserved = [(row["user_id"], row["email"]) for row in rows_of(path)["reserved_emails"]]
    assert reserved == [(2, "first@example.com"), (2, "second@example.com"), (2, "third@example.com")]
    days = [
        round((moment(row["expires_at"]) - utc_now()) / timedelta(days=1), 1)
        for row in rows_of(path)["reserved_emails"]
    ]
    assert days == [5, 6.5, 7]


def test_not_me_from_the_first_release_puts_the_address_back_after_an_upgrade(
    path: Path, make_service: Callable[..., Service], clock: FakeClock
) -> None:
    add_ways_back(
        make_version(path, 1),
        (2, "owner@example.com", "not_me", 2, 5),
        (2, "thief@example.com", "waiting", 1, None),
    )
    clock.now = utc_now()
    service = make_service(database=path)
    notice = last_link(service, "thief@example.com")
    assert notice.path == "/not-me"
    service.recovery.not_me("token 0", "owner@example.com", by=OPERATOR)
    assert service.accounts.get(2).email == "owner@example.com"
    assert service.sessions.listed(2) == []
    with pytest.raises(Invalid):
        service.recovery.not_me(notice.token, notice.email, by=OPERATOR)


def test_a_waiting_notice_of_the_first_release_is_sent_after_an_upgrade_and_puts_the_address_back(
    path: Path, make_service: Callable[..., Service], clock: FakeClock
) -> None:
    add_ways_back(make_version(path, 1), (2, "owner@example.com", "waiting", 1, None))
    clock.now = utc_now()
    service = make_service(database=path)
    notice = last_link(service, "owner@example.com")
    clock.move(days=6, hours=23)
    service.recovery.not_me(notice.token, notice.email, by=OPERATOR)
    assert service.accounts.get(2).email == "owner@example.com"


def test_a_backup_of_the_first_release_is_verified_as_it_would_be_restored(path: Path) -> None:
    with checked_copy(make_version(path, 1)) as (report, _):
        assert (report.problems, report.counts["users"]) == ([], 6)


# --- later releases; the second had no folded forms, the third no groups and no table of identities, the fourth no factors ---


def folded_forms(path: Path) -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(path)) as db:
        query = "SELECT name_folded, email_folded, claimed_folded FROM users ORDER BY id"
        return db.execute(query).fetchall()


@pytest.mark.parametrize("version", range(2, VERSION))
def test_an_upgrade_of_a_later_release_keeps_every_row_and_has_the_layout_of_a_new_database(
    path: Path, tmp_path: Path, version: int
) -> None:
    with closing(sqlite3.connect(make_version(path, version))) as db:
        if version in (2, 3):  # later ones have the issuer in a table of its own
            db.execute("UPDATE users SET oauth_issuer = 'https://id.example' WHERE id > 3")
            db.commit()
    before = rows_of(path)
    open_store(path).close()
    after = rows_of(path)
    for table, rows in before.items():
        if table == "sqlite_sequence":
            names = {row["name"] for row in rows}
            after[table] = [row for row in after[table] if row["name"] in names]
        if table.startswith("user_search"):  # the index is made again, and checked below
            continue
        assert [
            {name: row[name] for name in old} for old, row in zip(rows, after[table], strict=True)
        ] == rows, table
    open_store(tmp_path / "new.db", create=True).close()
    assert layout_of(path, but=("theirs",)) == layout_of(tmp_path / "new.db")
    assert check(path).problems == []


@pytest.mark.parametrize("version", range(1, VERSION))
def test_an_upgrade_of_a_release_names_only_the_columns_that_somebody_added(path: Path, version: int) -> None:
    with closing(sqlite3.connect(make_version(path, version))) as db:
        db.execute("ALTER TABLE users ADD COLUMN phone TEXT")
    _, what = migrated(path)
    assert what is not None
    assert what.notes == ["columns of users that stand in the backup only: phone"]


def test_an_api_token_of_before_may_do_after_an_upgrade_what_it_might(
    path: Path, make_service: Callable[..., Service]
) -> None:
    with closing(sqlite3.connect(make_version(path, 5))) as db:
        db.execute("DELETE FROM lockdown")  # which refuses all tokens
        db.commit()
    known = make_service(database=path).sessions.check(OLDER_TOKEN, caller=Client("192.0.2.7"))
    assert known is not None
    session, user = known
    assert (session.name, session.scopes, session.ranges, user.id) == ("backup", None, None, 2)


def test_an_upgrade_folds_names_and_addresses(path: Path) -> None:
    with closing(sqlite3.connect(make_version(path, 2))) as db:
        db.execute("UPDATE users SET name = 'Bjørn ÖDEGÅRD' WHERE id = 1")
        db.execute("UPDATE users SET email = 'u@xn--exmple-cua.com' WHERE id = 2")
        db.execute("UPDATE users SET claimed_email = 'x@xn--exmple-cua.com' WHERE id = 3")
        db.commit()
    open_store(path).close()
    assert folded_forms(path)[:4] == [
        ("bjorn odegard", None, None),
        ("user 2", "u@example.com", None),
        ("user 3", None, "x@example.com"),
        ("user 4", None, None),
    ]


@pytest.mark.parametrize("version", range(1, VERSION))
def test_an_upgrade_keeps_a_name_that_is_no_text(path: Path, version: int) -> None:
    with closing(sqlite3.connect(make_version(path, version))) as db:
        db.execute("UPDATE users SET name = CAST(x'41ff' AS TEXT) WHERE id = 1")
        db.commit()
    open_store(path).close()
    assert folded_forms(path)[0] == ("a\ufffd", None, None)
    with closing(sqlite3.connect(path)) as db:
        assert db.execute("SELECT CAST(name AS BLOB) FROM users WHERE id = 1").fetchone() == (b"A\xff",)


def test_an_upgrade_learns_from_the_trail_what_nothing_counted_before(path: Path) -> None:
    with closing(sqlite3.connect(make_version(path, 3))) as db:
        add = "INSERT INTO audit (at, actor, action, details, hash) VALUES (?, 'system', ?, ?, zeroblob(32))"
        for at, action, details in (
            ("2026-11-01T10:00:00.000Z", "register", "{}"),
            ("2026-11-01T09:59:58.500Z", "register", "{}"),
            ("2026-11-02T10:00:00.000Z", "create", '{"role": "user", "active": true, "through": "provider"}'),
            ("2026-11-02T11:00:00.000Z", "create", '{"role": "user", "active": true}'),
        ):
            db.execute(add, (at, action, details))
        db.commit()
    open_store(path).close()
    with closing(sqlite3.connect(path)) as db:
        counts = db.execute(
            "SELECT day, sign_ins, failed, registrations FROM daily_counts ORDER BY day"
        ).fetchall()
        latest, set_back = db.execute("SELECT latest, set_back FROM audit_head").fetchone()
    assert counts == [("2026-11-01", 0, 0, 2), ("2026-11-02", 0, 0, 1)]
    assert latest == "2026-11-02T11:00:00.000Z"
    assert 1500 <= set_back <= 1502


def test_an_upgrade_of_an_existing_deployment_folds_names_and_addresses(path: Path) -> None:
    make(path, OLD, old_row(name="ÅSA Ø", email="asa@exämple.com"))
    migrated(path)
    assert folded_forms(path) == [("asa o", "asa@example.com", None)]


# --- several at once ---


def open_together(folder: Path, rounds: int, ready: Any, results: Any) -> None:
    for number in range(rounds):
        ready.wait(60)
        try:
            store = open_store(folder / f"{number}.db", create=True)
            with store.read() as tx:
                count = tx.count_users(UserFilter())
            results.put((number, count, store.made, store.migrated is not None))
            store.close()
        except Exception as error:  # noqa: BLE001 - whatever it was, the test tells
            results.put((number, repr(error), False, False))


@pytest.mark.slow
@pytest.mark.parametrize("old", [True, False], ids=["old", "new"])
def test_of_processes_that_start_at_once_one_makes_or_upgrades(tmp_path: Path, old: bool) -> None:
    processes_at_once, rounds = 4, 12
    if old:
        for number in range(rounds):
            make(tmp_path / f"{number}.db", OLD, old_row(), old_row(email="bob@example.com"))
    context = multiprocessing.get_context("spawn")
    ready, results = context.Barrier(processes_at_once), context.Queue()
    processes = [
        context.Process(target=open_together, args=(tmp_path, rounds, ready, results))
        for _ in range(processes_at_once)
    ]
    for process in processes:
        process.start()
    outcomes = [results.get(timeout=60) for _ in range(processes_at_once * rounds)]
    for process in processes:
        process.join(60)
    assert {count for _, count, _, _ in outcomes} == {2 if old else 0}
    for number in range(rounds):
        done = [(made, migrated) for which, _, made, migrated in outcomes if which == number]
        assert sorted(done) == sorted([(False, False)] * (processes_at_once - 1) + [(not old, old)])
    assert len(list(tmp_path.glob("*.before-*"))) == (rounds if old else 0)
