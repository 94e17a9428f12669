"""Checks of a database from end to end: its pages, its parts, and what its rows say of one another."""

import re
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from itertools import islice
from pathlib import Path

from usersctl.errors import OtherVersion
from usersctl.named import NamedTuple
from usersctl.store import database_file
from usersctl.store.transaction import Transaction
from usersctl.store.upgrade import statements
from usersctl.text import counted

_CREATES = re.compile(r"CREATE (?:UNIQUE |VIRTUAL )?(TABLE|INDEX|TRIGGER) (\w+)")
# The tables that SQLite writes with user_search. A view may have replaced one.
_OF_THE_INDEX = {f"user_search_{part}" for part in ("data", "idx", "config")}
MOST_PROBLEMS = 20  # of one check; a damaged file has thousands


class Problem(NamedTuple):
    check: str
    message: str


class Report(NamedTuple):
    counts: dict[str, int]  # rows of each table; empty where the file could not be read
    head: str  # hash of the audit trail's last row
    problems: list[Problem]
    other_version: OtherVersion | None = None  # which has to read the file, and says nothing of its content


# Is called as each check begins, with its name, its number and how many there are.
Begins = Callable[[str, int, int], object]


def unseen(_check: str, _number: int, _of: int) -> None:
    """For checks that nobody watches."""


def check(path: Path, begins: Begins = unseen, *, read_only: bool = True) -> Report:
    """Checks a file of the current version in one snapshot."""
    with closing(database_file.connect(path, read_only=read_only)) as connection:
        connection.execute("BEGIN")
        tx = Transaction(connection)
        checks = {
            "integrity": _integrity(connection),
            "foreign keys": _foreign_keys(connection),
            "schema": _schema(connection),
            "text": islice(tx.not_utf8(), MOST_PROBLEMS),
            "counts": tx.miscounted(),
            "search": _search(connection),
            "audit": _trail(tx),
        }
        return _report(tx, checks, begins)


def check_on_server(tx: Transaction, begins: Begins = unseen) -> Report:
    """A server checks its pages and references itself."""
    missing = (f"{name} is missing" for name in sorted(tx.missing_parts()))
    return _report(tx, {"schema": missing, "counts": tx.miscounted(), "audit": _trail(tx)}, begins)


def _report(tx: Transaction, checks: dict[str, Iterator[str]], begins: Begins) -> Report:
    problems = []
    for number, (name, messages) in enumerate(checks.items(), 1):
        begins(name, number, len(checks))
        try:
            problems += [Problem(name, message) for message in messages]
        except sqlite3.DatabaseError as error:
            problems.append(Problem(name, f"cannot be checked: {error}"))
    with suppress(sqlite3.DatabaseError):  # the checks have reported it
        head = tx.audit_head()
        return Report(tx.counts(), head.hash.hex() if head else "", problems)
    return Report({}, "", problems)


def _integrity(connection: sqlite3.Connection) -> Iterator[str]:
    for (message,) in connection.execute(f"PRAGMA integrity_check({MOST_PROBLEMS})"):
        if message != "ok":
            yield str(message).replace("\n", " ")


def _foreign_keys(connection: sqlite3.Connection) -> Iterator[str]:
    for table, parent, count in connection.execute(
        'SELECT "table", parent, count(*) FROM pragma_foreign_key_check GROUP BY 1, 2'
    ):
        yield f"{counted(count, 'row')} of {table} with a reference to a missing row of {parent}"


def _schema(connection: sqlite3.Connection) -> Iterator[str]:
    expected = {
        (match[1].lower(), match[2].lower()): _bare(sql)
        for sql in statements()
        if (match := _CREATES.match(sql))
    }
    ours = {name for kind, name in expected if kind == "table"} | _OF_THE_INDEX
    changed = _changed_with(ours, connection)
    actual = _parts(connection)
    tables = {
        name for (name,) in connection.execute("SELECT lower(name) FROM sqlite_schema WHERE type = 'table'")
    }
    for name in sorted(_OF_THE_INDEX - tables):
        yield f"the table {name} is missing"
    for (kind, name), sql in expected.items():
        if (kind, name) not in actual:
            yield f"the {kind} {name} is missing"
        elif actual[kind, name][1] != sql:
            yield f"the {kind} {name} differs from the schema"
    for (kind, name), (table, _) in actual.items():
        # Only on our tables: those of an older application may stand beside them.
        if table in ours and (kind, name) not in expected:
            yield f"the {kind} {name} does not belong to the table {table}"
        elif kind == "trigger" and table in changed - ours:
            yield f"the trigger {name} of the table {table} runs when a table of this program changes"


def _changed_with(ours: set[str], connection: sqlite3.Connection) -> set[str]:
    """These tables, and those of others that a foreign key changes with them."""
    keys = connection.execute(
        'SELECT lower(child.name), lower("table") FROM sqlite_schema AS child, pragma_foreign_key_list(child.name)'
        " WHERE type = 'table' AND NOT (on_delete IN ('NO ACTION', 'RESTRICT') AND on_update IN ('NO ACTION', 'RESTRICT'))"
    ).fetchall()
    changed = set(ours)
    while more := {child for child, parent in keys if parent in changed} - changed:
        changed |= more
    return changed


def _parts(connection: sqlite3.Connection) -> dict[tuple[str, str], tuple[str, str]]:
    """Returns the table and the SQL, without comments and line ends, of each kind and name in the schema."""
    rows = connection.execute(
        "SELECT type, lower(name), lower(tbl_name), sql FROM sqlite_schema WHERE sql IS NOT NULL"
        # Only tables: a trigger may have the name of one.
        " AND NOT (type = 'table' AND (name = 'sqlite_sequence'"
        " OR name IN (SELECT name FROM pragma_table_list WHERE type = 'shadow')))"
    )
    return {(kind, name): (table, _bare(sql)) for kind, name, table, sql in rows}


def _bare(sql: str) -> str:
    """Without comments, line ends and the semicolon at its end."""
    return " ".join(re.sub(r"--[^\n]*", "", sql).split()).removesuffix(";")


def _search(connection: sqlite3.Connection) -> Iterator[str]:
    try:
        # Compares the index with the users, and writes nothing.
        connection.execute("INSERT INTO user_search (user_search, rank) VALUES ('integrity-check', 1)")
    except sqlite3.DatabaseError as error:
        problem = database_file.primary_code(error)
        if problem == sqlite3.SQLITE_CORRUPT:
            yield "user_search does not hold what the users hold"
        elif problem != sqlite3.SQLITE_READONLY:  # which the database in use is here, and no copy of a backup
            raise


def _trail(tx: Transaction) -> Iterator[str]:
    if problem := tx.check_audit().problem:
        yield problem
