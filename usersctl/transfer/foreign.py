"""Opens the files of other applications as one table of accounts, without writing to them."""

import re
import sqlite3
from codecs import BOM_UTF8
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from enum import StrEnum
from pathlib import Path
from typing import Any

from usersctl.errors import Invalid
from usersctl.named import NamedTuple
from usersctl.store.statements import quoted
from usersctl.transfer.rows import SourceRow, as_text, csv_rows, json_rows, jsonl_rows

TABLES = ("users", "user", "accounts", "account", "authuser", "wpusers", "members", "people")
EXTERNAL = "external."  # prefix of the columns for PocketBase's ids at providers, which are in another table
# The columns for roles that are in another table, joined by BETWEEN_ROLES.
JOINED_ROLES = ("role.name", "roles.name")
BETWEEN_ROLES = "\x1f"
SQLITE = b"SQLite format 3\0"


class SourceKind(StrEnum):
    SQLITE = "sqlite"
    POCKETBASE = "pocketbase"
    DJANGO = "django"
    CSV = "csv"


class SourceTable(NamedTuple):
    name: str
    columns: Sequence[str]
    rows: Iterable[SourceRow]


@contextmanager
def open_source(kind: SourceKind, path: Path, table: str | None = None) -> Iterator[SourceTable]:
    """Creates no file either, except SQLite's index of a write-ahead log that lost its own."""
    try:
        source = path.open("rb")
    except OSError as error:
        raise Invalid(f"{path} cannot be read: {error.strerror}") from None
    with source:
        beginning = source.peek()
        if kind is SourceKind.CSV:
            with as_text(source, str(path)) as text:
                yield SourceTable(path.name, *csv_rows(text, delimiter=_delimiter(beginning)))
            return
        if kind is SourceKind.DJANGO and not beginning.startswith(SQLITE):
            with as_text(source, str(path)) as text:
                is_one_document = beginning.removeprefix(BOM_UTF8).lstrip().startswith(b"[")
                yield _dump(json_rows(text) if is_one_document else jsonl_rows(text), table)
            return
    if not beginning.startswith(SQLITE):
        raise Invalid(f"{path} is not a SQLite database")
    with closing(_connect(path, has_log=beginning[18:20] == b"\2\2")) as connection:
        try:
            reader = _pocketbase if kind is SourceKind.POCKETBASE else _sqlite
            source_table = reader(connection, table, path)
        except sqlite3.Error as error:
            if getattr(error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_READONLY:
                hint = "open it once with its own application, which takes the change back"
                raise Invalid(f"{path} was left half-way through a change", hint=hint) from None
            raise Invalid(f"{path} cannot be read: {error}") from None
        yield source_table


def folded(name: str) -> str:
    """`is_admin`, `isAdmin` and `Is-Admin` are the same column."""
    return re.sub(r"[^a-z0-9.]", "", name.lower())


def _delimiter(beginning: bytes) -> str:
    header = beginning.partition(b"\n")[0]
    return max(",", ";", "\t", key=lambda delimiter: header.count(delimiter.encode()))


def _connect(path: Path, *, has_log: bool) -> sqlite3.Connection:
    uri = f"{path.absolute().as_uri()}?mode=ro"
    if has_log and not Path(f"{path}-wal").exists():
        # No other process has it open, and SQLite would create a log just to read it.
        uri += "&immutable=1"
    # Otherwise SQLite's lock keeps us from reading in the middle of a change, and leaves no trace.
    connection = sqlite3.connect(uri, uri=True)
    # Text that is not UTF-8 becomes surrogates, which are reported with their row.
    connection.text_factory = lambda raw: raw.decode("utf-8", "surrogateescape")
    connection.row_factory = sqlite3.Row
    return connection


def _sqlite(connection: sqlite3.Connection, wanted: str | None, path: Path) -> SourceTable:
    name = _choose(_tables(connection), wanted, path)
    return _select(connection, path, name, _roles(connection, name))


def _roles(connection: sqlite3.Connection, users: str) -> str:
    """One more column for the roles, if two tables have them, as in Flask-Security: `role`, and `roles_users` for who has which."""
    columns = {
        table: {folded(name): quoted(name) for name in _columns(connection, table)}
        for table in _tables(connection)
    }
    roles = [
        table
        for table in columns
        if f"{folded(table)}.name" in JOINED_ROLES and columns[table].keys() >= {"id", "name"}
    ]
    links = [table for table in columns if columns[table].keys() >= {"userid", "roleid"}]
    if not roles or not links or "id" not in columns[users]:
        return ""
    role, link = columns[roles[0]], columns[links[0]]
    return (
        f", (SELECT group_concat(role.{role['name']}, char({ord(BETWEEN_ROLES)})) FROM {quoted(roles[0])} AS role"
        f" JOIN {quoted(links[0])} AS link ON link.{link['roleid']} = role.{role['id']}"
        f" WHERE link.{link['userid']} = them.{columns[users]['id']}) AS {quoted(f'{roles[0]}.name')}"
    )


def _tables(connection: sqlite3.Connection) -> list[str]:
    kinds = "type IN ('table', 'view') AND name NOT LIKE 'sqlite~_%' ESCAPE '~'"
    query = f"SELECT name FROM sqlite_schema WHERE {kinds} ORDER BY name"
    return [name for (name,) in connection.execute(query)]


def _columns(connection: sqlite3.Connection, table: str) -> list[str]:
    return [name for (name,) in connection.execute("SELECT name FROM pragma_table_info(?)", (table,))]


def _choose(tables: Sequence[str], wanted: str | None, path: Path) -> str:
    """The table of that name, or else the first with a usual name for a table of users."""
    if wanted is not None:
        found = [name for name in tables if name.lower() == wanted.lower()]
        problem = f"{path} has no table {wanted!r}"
    else:
        by_name = {folded(name): name for name in tables}
        found = [by_name[name] for name in TABLES if name in by_name]
        problem = f"{path}: no table has a usual name for a table of users"
    if not found:
        raise Invalid(problem, hint=f"choose with --table; there are {', '.join(tables) or 'none'}")
    return found[0]


def _select(connection: sqlite3.Connection, path: Path, name: str, more: str, *values: str) -> SourceTable:
    """`more`: columns that come from other tables, each after a comma, with `them` for this one."""
    cursor = connection.execute(f"SELECT them.*{more} FROM {quoted(name)} AS them", values)
    columns = [column for column, *_ in cursor.description]
    key = next((column for column in columns if column.lower() == "id"), None)

    def rows() -> Iterator[SourceRow]:
        try:
            for number, row in enumerate(cursor, 1):
                where = f"row {number}"
                if key:
                    where += f" (id {row[key]})"
                yield where, dict(zip(columns, row, strict=True))
        except sqlite3.Error as error:
            raise Invalid(f"{path} cannot be read any further: {error}") from None

    return SourceTable(f"table {name}", columns, rows())


def _pocketbase(connection: sqlite3.Connection, wanted: str | None, path: Path) -> SourceTable:
    """Each collection is a table. The ids of its records at providers are in the table _externalAuths."""
    tables = _tables(connection)
    if not {"_collections", "_externalAuths"} <= set(tables):
        hint = "it is the file data.db in the folder pb_data"
        raise Invalid(f"{path} is not a database of PocketBase", hint=hint)
    name = _choose(tables, wanted or "users", path)
    has_ref = "recordRef" in _columns(connection, "_externalAuths")
    suffix = "Ref" if has_ref else "Id"  # since version 0.23, and before
    in_collection = f"collection{suffix} = (SELECT id FROM _collections WHERE name = ?)"
    query = f"SELECT DISTINCT provider FROM _externalAuths WHERE {in_collection} ORDER BY provider"
    providers = [provider for (provider,) in connection.execute(query, (name,))]
    ids = "".join(
        f", (SELECT providerId FROM _externalAuths WHERE {in_collection} AND record{suffix} = them.id"
        f" AND provider = ?) AS {quoted(EXTERNAL + provider)}"
        for provider in providers
    )
    values = [value for provider in providers for value in (name, provider)]
    return _select(connection, path, name, ids, *values)


def _dump(entries: Iterator[SourceRow], wanted: str | None) -> SourceTable:
    """Reads `manage.py dumpdata`: one list of all models, each entry with its `model`, `pk` and `fields`."""
    models: dict[str, list[tuple[str, dict[str, Any]]]] = {}
    for where, entry in entries:
        if isinstance(entry, Invalid) or not isinstance(entry.get("fields"), dict) or "model" not in entry:
            raise Invalid(f"{where} is not an object with model, pk and fields, as dumpdata writes them")
        row = {"id": entry.get("pk")} | entry["fields"]
        models.setdefault(str(entry["model"]), []).append((f"{where} (id {row['id']})", row))
    model = wanted or _model_of_users(models)
    if model not in models:
        problem = "Cannot tell which model the accounts are"
        if model:
            problem = f"No entries of the model {model!r}"
        raise Invalid(problem, hint=f"choose with --table; there are {', '.join(models) or 'none'}")
    rows = models[model]
    return SourceTable(f"model {model}", list(dict.fromkeys(name for _, row in rows for name in row)), rows)


def _model_of_users(models: dict[str, list[tuple[str, dict[str, Any]]]]) -> str:
    candidates = [model for model, rows in models.items() if {"email", "password"} <= set(rows[0][1])]
    if "auth.user" in candidates:
        return "auth.user"
    return candidates[0] if len(candidates) == 1 else ""
