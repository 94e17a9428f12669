"""Creates a new database from schema.sql, and upgrades the database of an existing deployment."""

import sqlite3
import time
from collections.abc import Callable
from contextlib import closing, suppress
from datetime import datetime, timedelta
from functools import cache, partial
from pathlib import Path
from typing import Any

from usersctl.clock import stamp, utc_now
from usersctl.errors import Busy, Invalid, StoreUnusable
from usersctl.fields import lookup_key, name_of, normal_time
from usersctl.folding import FOLDED_COLUMNS, with_folded
from usersctl.models import OAUTH, UNUSABLE, USER_FIELDS, Role
from usersctl.store import database_file
from usersctl.store.database_file import Migrated

UNFINISHED = ".unfinished"  # the end of the name of a copy until its upgrade is done


def upgrade_database(connection: sqlite3.Connection, path: Path) -> tuple[bool, Migrated | None]:
    """Makes an empty or older database a current one, and tells which of the two; neither, if another process was quicker."""
    (journal,) = connection.execute("PRAGMA journal_mode").fetchone()
    _write_ahead(connection)
    # The old table of users is replaced while other tables refer to it.
    connection.execute("PRAGMA foreign_keys = OFF")
    # Processes that start at once take turns, and a killed one leaves the old database or the new one.
    connection.execute("BEGIN IMMEDIATE")
    copies: list[Path] = []

    def copy_aside() -> Path:
        copies.append(_copy_to_keep(path))
        return copies[0]

    try:
        migrated = None
        version = database_file.version_of(connection, path)
        if version != database_file.VERSION:  # else another process was quicker
            if version is None:
                _run_schema(connection)
            elif version == 0:
                migrated = _adopt(connection, path, copy_aside)
            else:
                migrated = _renew(connection, copy_aside)
            connection.execute(f"PRAGMA application_id = {database_file.APPLICATION_ID}")
            connection.execute(f"PRAGMA user_version = {database_file.VERSION}")
            _for_its_owner_only(path)
        if migrated is not None:
            copies[0] = _keep(copies[0])
            migrated = migrated._replace(backup=copies[0])
        connection.execute("COMMIT")
    except BaseException as error:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        elif isinstance(error, KeyboardInterrupt):  # amid the commit, which is not interrupted
            raise KeyboardInterrupt(f"but {path} is up to date") from None
        with suppress(sqlite3.Error):  # restored for the application that still uses the file
            connection.execute(f"PRAGMA journal_mode = {journal}")
        with suppress(sqlite3.Error):
            # The next try makes another copy. A daemon that is started again and again would fill the disk with them.
            if copies and database_file.version_of(connection, path) != database_file.VERSION:
                copies[0].unlink()
        raise
    finally:
        with suppress(sqlite3.OperationalError):  # only _renew() has attached it
            connection.execute("DETACH old")
        connection.execute("PRAGMA foreign_keys = ON")
    return version is None, migrated


def _copy_to_keep(path: Path) -> Path:
    """Has another name until the upgrade is done, by which the next one finds and removes what a killed one left."""
    for left in path.parent.iterdir():
        # No upgrade is under way elsewhere, because the transaction of this one writes.
        if left.name.startswith(f"{path.name}.before-") and left.name.endswith(UNFINISHED):
            left.unlink()
    return database_file.copy_aside(path, utc_now(), UNFINISHED)


def _keep(copy: Path) -> Path:
    kept = copy.rename(copy.with_suffix(""))
    database_file.to_disk(kept.parent)
    return kept


def _write_ahead(connection: sqlite3.Connection) -> None:
    # SQLite ignores the busy timeout when it changes the journal mode, so processes that start at once wait here.
    deadline = time.monotonic() + database_file.BUSY_SECONDS
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL").fetchone()
        except sqlite3.OperationalError as error:
            if database_file.primary_code(error) != sqlite3.SQLITE_BUSY:
                raise
            if time.monotonic() > deadline:
                hint = "stop the daemon, or the application that has it open, and try again"
                raise Busy("The database is in use by another process", retry_after=5, hint=hint) from None
            time.sleep(0.02)
        else:
            return


def _for_its_owner_only(path: Path) -> None:
    """Removes the permissions of others; a group keeps its own if it may write, which an operator did on purpose."""
    for file in (path, Path(f"{path}-wal"), Path(f"{path}-shm")):
        with suppress(OSError):  # missing, or another user's
            mode = file.stat().st_mode
            file.chmod(mode & (0o660 if mode & 0o020 else 0o600))


def _run_schema(connection: sqlite3.Connection) -> None:
    # Statement by statement, because executescript() would commit the transaction that this runs in.
    for statement in statements():
        connection.execute(statement)


@cache  # a check of a file asks for them several times
def statements() -> tuple[str, ...]:
    """Those of schema.sql, without the comments before them."""
    complete, statement = [], ""
    for line in schema().splitlines(keepends=True):
        if statement or not line.startswith(("--", "\n")):
            statement += line
        if sqlite3.complete_statement(statement):
            complete.append(statement)
            statement = ""
    return tuple(complete)


def schema() -> str:
    """schema.sql, from the package or, in a checkout, from the root."""
    package = Path(__file__).parents[1]
    packaged = package / "schema.sql"
    return (packaged if packaged.exists() else package.parent / "schema.sql").read_text("utf-8")


# --- an older version of this schema ---


COUNTED = {"groups": "members", "users": "factors"}  # columns that triggers count anew
MOVED = ("oauth_issuer",)  # columns whose values are in another table now


def _renew(connection: sqlite3.Connection, copy_aside: Callable[[], Path]) -> Migrated:
    """Makes each table again as schema.sql has it, with all rows and all columns that both versions have.

    One way for every version. What a version needs beyond that is a statement after the copy.
    """
    backup = copy_aside()
    ours = names_of_schema()
    kept = {name: columns for name, columns in columns_by_table(connection).items() if name in ours}
    kept.pop("user_counts", None)  # the triggers count anew
    _drop(connection, ours)
    _run_schema(connection)
    # Immutable, because SQLite would create files beside the backup otherwise.
    connection.execute("ATTACH ? AS old", (f"{backup.absolute().as_uri()}?immutable=1",))
    notes: list[str] = []
    for table, columns in kept.items():
        counted = COUNTED.get(table)
        names = _columns(connection, table)
        _note_left(notes, table, set(columns).difference(names, MOVED))
        copied = {column: column for column in names if column in columns and column != counted}
        if table == "users":
            copied |= _folds(connection, columns)
        # Replaces the rows with which schema.sql begins.
        connection.execute(
            f"INSERT OR REPLACE INTO main.{table} ({', '.join(copied)})"
            f" SELECT {', '.join(copied.values())} FROM old.{table}"
        )
    # The last id of each table, so that an id of a deleted row is not given again.
    connection.execute("DELETE FROM main.sqlite_sequence")
    connection.execute("INSERT INTO main.sqlite_sequence SELECT * FROM old.sqlite_sequence")
    if "audit" in kept and "daily_counts" not in kept:
        _learn_from_trail(connection)
    if "identities" not in kept:
        _identify(connection, kept["users"])
    if "reserved_emails" not in kept:
        _reserve_former_addresses(connection, utc_now())
    (accounts,) = connection.execute("SELECT coalesce(sum(n), 0) FROM user_counts").fetchone()
    return Migrated(accounts, backup, notes)


def _note_left(notes: list[str], table: str, columns: set[str]) -> None:
    if columns:
        notes.append(f"columns of {table} that stand in the backup only: {', '.join(sorted(columns))}")


def _identify(connection: sqlite3.Connection, columns: list[str]) -> None:
    """Before version 4, the one link of an account to a provider stood in its row."""
    issuer = "''"
    if "oauth_issuer" in columns:
        issuer = "coalesce(oauth_issuer, '')"
    connection.execute(
        "INSERT INTO main.identities (user_id, provider, issuer, subject)"
        f" SELECT id, '{OAUTH}', {issuer}, oauth_id FROM old.users WHERE oauth_id IS NOT NULL ORDER BY id"
    )


def _folds(connection: sqlite3.Connection, columns: list[str]) -> dict[str, str]:
    """The columns of folded forms, and the SQL that makes them of these columns of an older table."""
    folds = {}
    for name, (of, fold) in FOLDED_COLUMNS.items():
        if of in columns:
            connection.create_function(f"make_{name}", 1, partial(_fold_stored, fold), deterministic=True)
            folds[name] = f"make_{name}(CAST({of} AS BLOB))"
    return folds


def _fold_stored(fold: Callable[[str], str | None], value: bytes | None) -> str | None:
    # A damaged row may hold bytes that are no text.
    return None if value is None else fold(value.decode("utf-8", "replace"))


def _learn_from_trail(connection: sqlite3.Connection) -> None:
    """Up to version 3 nothing counted the registrations of a day, or how far the clock was set back."""
    connection.execute(
        "INSERT INTO daily_counts (day, registrations) SELECT substr(at, 1, 10), count(*) FROM audit"
        " WHERE action = 'register' OR (action = 'create' AND details LIKE '%\"through\": \"provider\"%')"
        " GROUP BY 1"
    )
    earlier = "SELECT at, max(at) OVER (ORDER BY id) AS latest FROM audit"
    connection.execute(
        "UPDATE audit_head SET latest = coalesce((SELECT max(at) FROM audit), ''), set_back = coalesce((SELECT"
        f" max(round((julianday(latest) - julianday(at)) * 86400000)) + 1 FROM ({earlier}) WHERE at < latest), 0)"
    )


def _reserve_former_addresses(connection: sqlite3.Connection, now: datetime) -> None:
    """Version 1 put an address back by the "this wasn't me" link alone. Here it has to be reserved as well.

    An address that several accounts gave up is reserved for the first: the others may have had it from a thief.
    """
    way_back = (
        "SELECT user_id, email, expires_at AS until, created_at FROM one_time_tokens"
        " WHERE purpose = 'not_me' AND expires_at > :now"
        " UNION ALL SELECT user_id, email, :week, created_at FROM outbox"
        " WHERE kind = 'email-changed' AND state = 'waiting'"
    )
    # A link is made when its email is sent, which may be late; the email itself is as old as the change.
    given_up = (
        "SELECT min(outbox.created_at) FROM outbox WHERE kind = 'email-changed'"
        " AND outbox.user_id = way_back.user_id AND outbox.email = way_back.email"
    )
    connection.execute(
        "INSERT OR IGNORE INTO reserved_emails (user_id, email, expires_at)"
        f" SELECT user_id, email, max(until) FROM ({way_back}) AS way_back"
        " WHERE user_id IS NOT NULL AND email NOT IN (SELECT email FROM users) GROUP BY user_id, email"
        f" ORDER BY coalesce(({given_up}), min(created_at))",
        {"now": stamp(now), "week": stamp(now + timedelta(days=7))},
    )


def _tables(connection: sqlite3.Connection, but: str = "") -> list[str]:
    """Without the tables in which SQLite keeps an index of text."""
    query = (
        "SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite%'"
        " AND name NOT IN (SELECT name FROM pragma_table_list WHERE type IN ('shadow', ?))"
    )
    return [name for (name,) in connection.execute(query, (but,))]


def columns_by_table(connection: sqlite3.Connection) -> dict[str, list[str]]:
    """The stored columns of the tables that hold rows."""
    return {name: _columns(connection, name) for name in _tables(connection, but="virtual")}


def _columns(connection: sqlite3.Connection, table: str) -> list[str]:
    return [name for (name,) in connection.execute("SELECT name FROM pragma_table_info(?)", (table,))]


def _drop(connection: sqlite3.Connection, ours: set[str]) -> None:
    """Other tables of the deployment stay, except those with a name of the schema; the backup keeps them."""
    for table in _tables(connection):
        if table.lower() in ours:
            connection.execute(f'DROP TABLE "{table}"')
    query = "SELECT type, name FROM sqlite_schema WHERE type <> 'table' AND sql IS NOT NULL"
    for kind, other in connection.execute(query).fetchall():
        if other.lower() in ours:
            connection.execute(f'DROP {kind} IF EXISTS "{other}"')


# --- an existing deployment: the table of users of the specification, in a database without a version ---

_PASSWORD_COLUMNS = ("password_hash", "password")


def _adopt(connection: sqlite3.Connection, path: Path, copy_aside: Callable[[], Path]) -> Migrated:
    import sqlite_utils

    old = sqlite_utils.Database(connection, execute_plugins=False)
    name = next(table for table in old.table_names() if table.lower() == "users")
    columns = {column.lower() for column in old[name].columns_dict}
    if not columns.issuperset(("id", "email")) or not columns.intersection(_PASSWORD_COLUMNS):
        reason = "its table of users has no id, email or password"
        raise StoreUnusable(f"{path} {database_file.NOT_OURS}: {reason}")
    notes: list[str] = []
    _note_left(notes, "users", columns.difference(USER_FIELDS, _PASSWORD_COLUMNS))
    rows = [{key.lower(): value for key, value in row.items()} for row in old[name].rows]
    users = [_adopted(row, notes, path) for row in rows]
    _refuse_twins(users, path)
    backup = copy_aside()
    given = _last_id_given(connection, name)
    _drop(connection, names_of_schema())
    _run_schema(connection)
    connection.execute("INSERT INTO sqlite_sequence (name, seq) VALUES ('users', ?)", (given,))
    for user in map(with_folded, users):
        connection.execute(f"INSERT INTO users ({', '.join(user)}) VALUES (:{', :'.join(user)})", user)
        if user["oauth_id"] is not None:
            connection.execute(
                f"INSERT INTO identities (user_id, provider, issuer, subject) VALUES (:id, '{OAUTH}', '', :oauth_id)",
                user,
            )
    return Migrated(len(users), backup, notes)


def _last_id_given(connection: sqlite3.Connection, table: str) -> int:
    """The largest id that the old table ever gave, which may be of a deleted account; 0 if it is unknown."""
    if connection.execute("SELECT 1 FROM sqlite_schema WHERE name = 'sqlite_sequence'").fetchone() is None:
        return 0
    row = connection.execute("SELECT seq FROM sqlite_sequence WHERE name = ?", (table,)).fetchone()
    return row[0] if row and isinstance(row[0], int) else 0


def _adopted(row: dict[str, Any], notes: list[str], path: Path) -> dict[str, Any]:
    number, email = row["id"], row["email"]
    if not isinstance(number, int) or number < 1 or not isinstance(email, str) or not email.strip():
        raise StoreUnusable(f"{path}: the account {number!r} has no usable id or email address")
    email = lookup_key(email)
    role = str(row.get("role") or Role.USER).strip().lower()
    if role not in tuple(Role):
        notes.append(f"account {number} had the unknown role {role!r} and is a plain user now")
        role = Role.USER
    password = next((row[column] for column in _PASSWORD_COLUMNS if row.get(column)), UNUSABLE)
    if isinstance(password, bytes):  # as bcrypt returns it
        password = password.decode("latin-1")
    created = _time(row.get("created_at")) or stamp(utc_now())
    return {
        "id": number,
        "email": email,
        "name": str(row.get("name") or "").strip() or name_of(email),
        "password_hash": password if isinstance(password, str) else UNUSABLE,
        "role": str(role),
        "active": int(str(row.get("active", 1)).strip().lower() in ("1", "true", "t", "yes")),
        "created_at": created,
        "updated_at": _time(row.get("updated_at")) or created,
        "last_login_at": _time(row.get("last_login_at")),
        "oauth_id": str(row["oauth_id"]) if row.get("oauth_id") else None,
        "profile_picture": str(row["profile_picture"]) if row.get("profile_picture") else None,
    }


def _time(value: Any) -> str | None:
    """The stored form of a time; None if it cannot be read."""
    with suppress(Invalid):
        if isinstance(value, int | float | str):
            return normal_time(value)
    return None


def _refuse_twins(users: list[dict[str, Any]], path: Path) -> None:
    for column, noun in (("email", "email address"), ("oauth_id", "provider account"), ("id", "id")):
        seen: dict[Any, dict[str, Any]] = {}
        for user in users:
            twin = seen.setdefault(user[column], user)
            if twin is not user and user[column] is not None:
                raise StoreUnusable(
                    f"{path}: accounts {twin['id']} and {user['id']} have the same {noun} {user[column]}",
                    hint="change or delete one of them in the old application, then start again",
                )


def names_of_schema() -> set[str]:
    with closing(sqlite3.connect(":memory:")) as fresh:
        fresh.executescript(schema())
        rows = fresh.execute("SELECT name FROM sqlite_schema WHERE name NOT LIKE 'sqlite%'")
        return {name for (name,) in rows}
