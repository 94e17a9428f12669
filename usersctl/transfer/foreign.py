"""Files of other applications that hold accounts: opened to be read, as one table with its columns."""

import re
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from enum import StrEnum
from pathlib import Path
from typing import Any, NamedTuple

from usersctl.errors import Invalid
from usersctl.transfer.rows import Row, as_text, csv_rows, json_rows

TABLES = ("users", "user", "accounts", "account", "authuser", "members", "people")
EXTERNAL = "external."  # before a provider's name: PocketBase keeps its ids in a table of their own
SQLITE = b"SQLite format 3\0"


class Kind(StrEnum):
    SQLITE = "sqlite"
    POCKETBASE = "pocketbase"
    DJANGO = "django"
    CSV = "csv"


class Table(NamedTuple):
    """What a file holds, before any of it is understood."""

    name: str
    columns: Sequence[str]
    rows: Iterable[Row]


@contextmanager
def opened(kind: Kind, path: Path, table: str | None = None) -> Iterator[Table]:
    """Nothing is written into it; nor beside it, but for SQLite's index of a write-ahead log that lost its own."""
    try:
        source = path.open("rb")
    except OSError as error:
        raise Invalid(f"{path} cannot be read: {error.strerror}") from None
    with source:
        beginning = source.peek()
        if kind is Kind.CSV:
            with as_text(source) as text:
                yield Table(path.name, *csv_rows(text, delimiter=_delimiter(beginning)))
            return
        if kind is Kind.DJANGO and not beginning.startswith(SQLITE):
            with as_text(source) as text:
                yield _dumped(json_rows(text), table)
            return
    if not beginning.startswith(SQLITE):
        raise Invalid(f"{path} is no SQLite database")
    with closing(_connect(path, keeps_log=beginning[18:20] == b"\2\2")) as connection:
        try:
            found = (_pocketbase if kind is Kind.POCKETBASE else _sqlite)(connection, table, path)
        except sqlite3.Error as error:
            if getattr(error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_READONLY:
                told = f"{path} was left half-way through a change"
                raise Invalid(
                    told, hint="let its own application open it once, which takes that back"
                ) from None
            raise Invalid(f"{path} cannot be read: {error}") from None
        yield found


def folded(name: str) -> str:
    """`is_admin`, `isAdmin` and `Is-Admin` are the same column."""
    return re.sub(r"[^a-z0-9.]", "", name.lower())


def _delimiter(beginning: bytes) -> str:
    line = beginning.partition(b"\n")[0]
    return max(",", ";", "\t", key=lambda each: line.count(each.encode()))


def _connect(path: Path, *, keeps_log: bool) -> sqlite3.Connection:
    # Without its log beside it nobody has it open, and SQLite need not make one to look into it. A file that never has
    # one is read under SQLite's lock, which leaves no trace, and never while somebody is half-way through a change.
    in_use = not keeps_log or Path(f"{path}-wal").exists()
    how = "mode=ro" if in_use else "mode=ro&immutable=1"
    connection = sqlite3.connect(f"{path.absolute().as_uri()}?{how}", uri=True)
    # What is not UTF-8 is told by the row that has it.
    connection.text_factory = lambda raw: raw.decode("utf-8", "surrogateescape")
    connection.row_factory = sqlite3.Row
    return connection


def _sqlite(connection: sqlite3.Connection, wanted: str | None, path: Path) -> Table:
    name = _chosen(_tables(connection), wanted, path)
    return _rows_of(connection, name, f"SELECT * FROM {_quoted(name)}", path)


def _tables(connection: sqlite3.Connection) -> list[str]:
    kinds = "type IN ('table', 'view') AND name NOT LIKE 'sqlite~_%' ESCAPE '~'"
    return [
        name for (name,) in connection.execute(f"SELECT name FROM sqlite_schema WHERE {kinds} ORDER BY name")
    ]


def _chosen(tables: Sequence[str], wanted: str | None, path: Path) -> str:
    """By its name; else the one that is called as tables of users are."""
    if wanted is not None:
        found = next((name for name in tables if name.lower() == wanted.lower()), None)
        problem = f"{path} has no table {wanted!r}"
    else:
        by_name = {folded(name): name for name in tables}
        found = next((by_name[name] for name in TABLES if name in by_name), None)
        problem = f"{path}: no table is called as tables of users are"
    if found is None:
        raise Invalid(problem, hint=f"choose with --table; there are {', '.join(tables) or 'none'}")
    return found


def _rows_of(connection: sqlite3.Connection, name: str, query: str, path: Path, *values: str) -> Table:
    cursor = connection.execute(query, values)
    columns = [column for column, *_ in cursor.description]
    key = next((column for column in columns if column.lower() == "id"), None)

    def rows() -> Iterator[Row]:
        try:
            for number, row in enumerate(cursor, 1):
                which = f" (id {row[key]})" if key else ""
                yield f"row {number}{which}", dict(zip(columns, row, strict=True))
        except sqlite3.Error as error:
            raise Invalid(f"{path} cannot be read any further: {error}") from None

    return Table(f"table {name}", columns, rows())


def _pocketbase(connection: sqlite3.Connection, wanted: str | None, path: Path) -> Table:
    """Each collection is a table. What it is linked to at providers, and under which ids, stands in another one."""
    tables = _tables(connection)
    if not {"_collections", "_externalAuths"} <= set(tables):
        raise Invalid(
            f"{path} is no database of PocketBase", hint="it is the file data.db in the folder pb_data"
        )
    name = _chosen(tables, wanted or "users", path)
    links = {row["name"] for row in connection.execute("PRAGMA table_info(_externalAuths)")}
    end = "Ref" if "recordRef" in links else "Id"  # since version 0.23, and before
    ours = f"collection{end} = (SELECT id FROM _collections WHERE name = ?)"
    providers = [
        provider
        for (provider,) in connection.execute(
            f"SELECT DISTINCT provider FROM _externalAuths WHERE {ours} ORDER BY provider", (name,)
        )
    ]
    ids = "".join(
        f", (SELECT providerId FROM _externalAuths WHERE {ours} AND record{end} = them.id AND provider = ?)"
        f" AS {_quoted(EXTERNAL + provider)}"
        for provider in providers
    )
    values = [value for provider in providers for value in (name, provider)]
    return _rows_of(connection, name, f"SELECT them.*{ids} FROM {_quoted(name)} AS them", path, *values)


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _dumped(entries: Iterator[Row], wanted: str | None) -> Table:
    """`manage.py dumpdata`: all models in one list, each entry with its `model`, `pk` and `fields`."""
    found: dict[str, list[tuple[str, dict[str, Any]]]] = {}
    for where, entry in entries:
        if isinstance(entry, Invalid) or not isinstance(entry.get("fields"), dict) or "model" not in entry:
            raise Invalid(f"{where} is no object with model, pk and fields, as dumpdata writes them")
        row = {"id": entry.get("pk")} | entry["fields"]
        found.setdefault(str(entry["model"]), []).append((f"{where} (id {row['id']})", row))
    people = [model for model, rows in found.items() if {"email", "password"} <= set(rows[0][1])]
    model = wanted or ("auth.user" if "auth.user" in people else people[0] if len(people) == 1 else "")
    if model not in found:
        raise Invalid(
            f"No entries of the model {model!r}" if model else "Cannot tell which model the accounts are",
            hint=f"choose with --table; there are {', '.join(found) or 'none'}",
        )
    rows = found[model]
    return Table(f"model {model}", list(dict.fromkeys(name for _, row in rows for name in row)), rows)
