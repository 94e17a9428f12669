"""Content: all rows of a database, as they go into a new one, on the same engine or on the other."""

import sqlite3
from collections.abc import Iterable, Sequence
from contextlib import closing
from functools import cache
from typing import Any, Protocol

from usersctl.errors import StoreUnusable
from usersctl.store.progress import Progress, watched
from usersctl.store.transaction import Transaction
from usersctl.store.upgrade import columns_by_table, schema


class NewDatabase(Protocol):
    """Has empty tables, and what belongs to them when it is complete."""

    def put(self, table: str, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
        """All rows of a table."""

    def complete(self, last_ids: dict[str, int]) -> Transaction:
        """Adds what is made quicker when the rows are there. Returns a transaction that sees the result."""

    def problems(self) -> list[str]:
        """What a long look at it finds, the audit trail included."""

    def finish(self) -> None:
        """The last step before the commit."""


def pour(source: Transaction, new: NewDatabase, progress: Progress) -> dict[str, int]:
    """Puts all rows of a snapshot into a new database, and checks them there. Returns how many each table has."""
    counts = {table: source.count_rows(table) for table in tables()}
    done, total = 0, sum(counts.values())
    for table, columns in tables().items():
        new.put(table, columns, watched(source.all_rows(table, columns), progress, total, done))
        done += counts[table]
    made = new.complete({table: last for table, last in source.last_ids().items() if table in counts})
    problems = new.problems()
    if made.audit_head() != source.audit_head() or counts != {
        table: made.count_rows(table) for table in counts
    }:
        problems.append("not all rows arrived")
    if problems:
        hint = "see: usersctl db verify"
        raise StoreUnusable(f"The copy is not sound, and was discarded: {problems[0]}", hint=hint)
    new.finish()
    progress(total, total)
    return counts


@cache
def tables() -> dict[str, list[str]]:
    """The stored columns of each table of schema.sql. A table comes after those that its rows refer to."""
    with closing(sqlite3.connect(":memory:")) as fresh:
        fresh.executescript(schema())
        return columns_by_table(fresh)
