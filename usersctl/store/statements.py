"""Statements: the connection and the moment that the statements of one transaction share."""

import json
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import Any, Protocol, TypeVar

from usersctl.clock import Clock, stamp, utc_now
from usersctl.lazy import lazy

T = TypeVar("T")

MOST = 2**62  # rows: more than any table holds, and still an integer of SQLite
ROWS_OF_A_STATEMENT = 100


def places(values: Collection[object]) -> str:
    return ", ".join("?" * len(values))


def quoted(name: str) -> str:
    """The name of a table or column that may be a word of SQL."""
    return '"' + name.replace('"', '""') + '"'


def given_ids(ids: Iterable[int]) -> dict[str, str]:
    """The value of AMONG."""
    return {"ids": json.dumps(list(ids))}


class Rows(Protocol):
    """The result of a statement."""

    @property
    def rowcount(self) -> int: ...

    def fetchone(self) -> Any: ...

    def fetchall(self) -> list[Any]: ...

    def __iter__(self) -> Iterator[Any]: ...


class Statements:
    AMONG = "SELECT value FROM json_each(:ids)"  # the ids of a list, given by given_ids()

    def __init__(self, connection: Any, clock: Clock = utc_now) -> None:
        """`connection`: SQLite's, or one to PostgreSQL with the same face."""
        self._run: Callable[..., Rows] = connection.execute
        self._connection = connection
        self._clock = clock
        self._later: dict[timedelta, str] = {}
        self.callbacks: list[Callable[[], object]] = []

    @lazy
    def now(self) -> datetime:
        """The moment of this transaction. The clock is read once, at the first use, when a writer holds its lock."""
        return self._clock()

    @lazy
    def now_text(self) -> str:
        """`now` as columns hold it."""
        return stamp(self.now)

    def after(self, time: timedelta) -> str:
        """`now_text` so much later; made once for all sessions that are used at this moment."""
        text = self._later.get(time)
        if text is None:
            text = self._later[time] = stamp(self.now + time)
        return text

    def after_commit(self, callback: Callable[[], object]) -> None:
        """Calls `callback` when the transaction is committed, and not if it is rolled back."""
        self.callbacks.append(callback)

    def _first(self, make: Callable[[Any], T], statement: str, values: Any = ()) -> T | None:
        """The first row, made into a model; None if there is no row."""
        row = self._run(statement, values).fetchone()
        return None if row is None else make(row)

    def _value(self, make: Callable[[Any], T], statement: str, values: Any = ()) -> T | None:
        """The first column of the first row; None if there is no row."""
        return self._first(lambda row: make(row[0]), statement, values)

    def _stream(self, statement: str, values: Any = ()) -> Iterable[Any]:
        """For so many rows that they are not all to be in memory at once."""
        return self._run(statement, values)

    def _insert(self, table: str, ending: str = "", **row: Any) -> Rows:
        names = ", ".join(row)
        return self._run(f"INSERT INTO {table} ({names}) VALUES (:{', :'.join(row)}) {ending}", row)

    def _insert_rows(
        self, table: str, names: Sequence[str], rows: Sequence[Sequence[Any]], ending: str = ""
    ) -> int:
        """Many by one statement: each statement writes to the table of AUTOINCREMENT, which takes longer than its row.

        Not all by one, because a statement takes only so many values. Returns how many there are now.
        """
        row, count = f"({places(names)})", 0
        for start in range(0, len(rows), ROWS_OF_A_STATEMENT):
            some = rows[start : start + ROWS_OF_A_STATEMENT]
            values = [value for each in some for value in each]
            statement = (
                f"INSERT INTO {table} ({', '.join(names)}) VALUES {', '.join([row] * len(some))} {ending}"
            )
            count += self._run(statement, values).rowcount
        return count

    def _delete_some(self, table: str, key: str, condition: str, *values: Any) -> int:
        """`condition` ends with a LIMIT: other writers wait for a delete. Returns how many rows it found."""
        some = f"SELECT {key} FROM {table} WHERE {condition}"
        return self._run(f"DELETE FROM {table} WHERE {key} IN ({some})", values).rowcount

    def _how_many(self, statement: str, values: Any) -> int:
        """Rows that this statement finds, up to its LIMIT."""
        return self._number(f"SELECT count(*) FROM ({statement}) AS found", values)

    def _number(self, statement: str, values: Any = ()) -> int:
        """The first column of the first row; 0 if there is no row, or no value in it."""
        row = self._run(statement, values).fetchone()
        return int(row[0] or 0) if row else 0

    @contextmanager
    def _readable(self, errors: str = "replace") -> Iterator[None]:
        """Reads text that is not UTF-8 as well: a row may have been changed by hand."""
        connection = self._connection
        connection.text_factory = lambda raw: raw.decode("utf-8", errors)
        try:
            yield
        finally:
            connection.text_factory = str
