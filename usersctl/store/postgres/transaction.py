"""The few statements that PostgreSQL says otherwise, and that no form for both engines says."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from usersctl.store.transaction import Transaction
from usersctl.store.user_search import FEW, pattern


class PostgresTransaction(Transaction):
    AMONG = "SELECT CAST(value AS BIGINT) FROM json_array_elements_text(CAST(:ids AS JSON))"

    def _stream(self, statement: str, values: Any = ()) -> Iterable[Any]:
        rows: Iterable[Any] = self._connection.stream(statement, values)
        return rows

    # --- users ---

    def last_user_id_given(self) -> int:
        sequence = self._sequence_of("users")
        return self._number(f"SELECT CASE WHEN is_called THEN last_value ELSE 0 END FROM {sequence}")

    def give_no_user_id_up_to(self, last: int) -> None:
        if last > self.last_user_id_given():
            self._run("SELECT setval(CAST(? AS REGCLASS), ?)", (self._sequence_of("users"), last))

    def _sequence_of(self, table: str) -> str:
        ((name,),) = self._run("SELECT pg_get_serial_sequence(?, 'id')", (table,))
        return str(name)

    def candidates(self, words: Sequence[str]) -> list[int] | None:
        """By the index of three characters in a row, which looks at all users where the server has no pg_trgm."""
        long = [word for word in words if len(word) > 2]
        if not long:
            return None
        held = " AND ".join("search_text LIKE ? ESCAPE '\\'" for _ in long)
        found = self._run(f"SELECT id FROM users WHERE {held} LIMIT ?", (*map(pattern, long), FEW + 1))
        return [user_id for (user_id,) in found]

    def first_by_name(self, *_search: Any) -> list[int] | None:
        return None  # the planner chooses

    # --- the database as a whole ---

    def parts(self) -> set[str]:
        """The names of tables, indexes and triggers of the schema that this connection uses."""
        parts = self._run(
            "SELECT relname FROM pg_class WHERE relnamespace = to_regnamespace(current_schema()) AND relkind IN ('r', 'i')"
            " UNION SELECT tgname FROM pg_trigger JOIN pg_class ON pg_class.oid = tgrelid"
            " WHERE relnamespace = to_regnamespace(current_schema()) AND NOT tgisinternal"
        )
        return {name for (name,) in parts}

    def broken_page(self) -> str | None:
        return None  # the server checks its pages itself

    @contextmanager
    def _readable(self, _errors: str = "") -> Iterator[None]:
        yield  # the server takes no text but UTF-8
