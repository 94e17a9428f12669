"""The few statements that PostgreSQL says otherwise, and that no form for both engines says."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from usersctl.errors import StoreUnusable
from usersctl.store.content import tables
from usersctl.store.inspection import Server
from usersctl.store.postgres import dialect
from usersctl.store.postgres.driver import ServerError
from usersctl.store.transaction import Transaction
from usersctl.store.user_search import FEW, pattern

APPLICATION = "usersctl"  # the name of our connections
ROWS_OF_DAY = 8
SAMPLE = 200  # users
# The schema of our tables, or the one in which they would be made: the first of the search path may be another's by now,
# and a name with capital letters or odd signs has to be quoted.
HOME = (
    "coalesce((SELECT relnamespace FROM pg_class WHERE oid = to_regclass('installation')),"
    " to_regnamespace(quote_ident(current_schema())))"
)
_HOLDS = "search_text LIKE ? ESCAPE '\\'"
_HOLDS_BEHIND = (
    "substr(search_text, 3) LIKE ? ESCAPE '\\'"  # as the index has it; a line end stands before the name
)
_BEGINS = "name_folded LIKE ? ESCAPE '\\'"


def our_tables() -> tuple[str, ...]:
    """Those of other applications may stand beside them."""
    return ("installation", *tables())


def of_ours() -> str:
    """The condition for their rows in pg_class."""
    names = ", ".join(f"'{name}'" for name in our_tables())
    return f"relnamespace = {HOME} AND relname IN ({names})"


class PostgresTransaction(Transaction):
    AMONG = "SELECT CAST(value AS BIGINT) FROM json_array_elements_text(CAST(:ids AS JSON))"

    def _stream(self, statement: str, values: Any = ()) -> Iterable[Any]:
        rows: Iterable[Any] = self._connection.stream(statement, values)
        return rows

    @property
    def row_of_day(self) -> str:
        """One of several: until it commits, a sign-in keeps others from counting in the same row."""
        return f"{self.day} {self._connection.process % ROWS_OF_DAY}"

    # --- users ---

    def candidates(self, words: Sequence[str]) -> list[int] | None:
        """By the index of three characters in a row, which looks at all users where the server has no pg_trgm.

        It knows all but the first character of a name. So users who share a first name are no more to it than one, and the
        index of names has them side by side.
        """
        long = self._worth_a_look(words)
        if not long:
            return None
        ids = set(self._holders(long))
        for word in long:
            if len(ids) <= FEW:
                ids.update(self._holders([one for one in long if not word.startswith(one)], begins=word))
        return list(ids)

    def _with_other_names(self, words: Sequence[str], _starts: Sequence[str]) -> list[int]:
        return self._holders(self._worth_a_look(words))

    def _holders(self, words: Sequence[str], *, begins: str = "") -> list[int]:
        """Users who hold these words behind the first character of their names, which begin so; at most FEW and one more."""
        patterns = [pattern(word) for word in words]
        conditions = [_HOLDS_BEHIND] * len(words)
        if begins:
            patterns.append(pattern(begins)[1:])
            conditions.append(_BEGINS)
        found = self._run(
            f"SELECT id FROM users WHERE {' AND '.join(conditions)} LIMIT ?", (*patterns, FEW + 1)
        )
        return [user_id for (user_id,) in found]

    def _worth_a_look(self, words: Sequence[str]) -> list[str]:
        """Those that the index knows, without those that most users hold, if there are others: it would read all that it
        has of them."""
        long = [word for word in words if len(word) > 2]
        if len(long) < 2:
            return long
        counts = ", ".join(f"count(*) FILTER (WHERE {_HOLDS})" for _ in long)
        row = self._run(
            f"SELECT {counts} FROM (SELECT search_text FROM users LIMIT {SAMPLE}) AS sample",
            [pattern(word) for word in long],
        ).fetchone()
        return [word for word, count in zip(long, row, strict=True) if count < SAMPLE / 2] or long

    # --- the database as a whole ---

    def parts(self) -> set[str]:
        """The names of tables, columns, indexes, triggers and constraints that work, of the schema of our tables."""
        parts = self._run(
            f"SELECT relname FROM pg_class WHERE relnamespace = {HOME}"
            " AND oid NOT IN (SELECT indexrelid FROM pg_index WHERE NOT indisvalid)"
            f" UNION SELECT conname FROM pg_constraint WHERE connamespace = {HOME}"
            " UNION SELECT tgname FROM pg_trigger JOIN pg_class ON pg_class.oid = tgrelid"
            f" WHERE relnamespace = {HOME} AND NOT tgisinternal AND tgenabled <> 'D'"
            " UNION SELECT relname || '.' || attname FROM pg_attribute JOIN pg_class ON pg_class.oid = attrelid"
            f" WHERE relnamespace = {HOME} AND NOT attisdropped"
        )
        return {name for (name,) in parts}

    def lock_holders(self) -> list[str]:
        """Of locks of our tables: the processes of the server, and whose they are."""
        found = self._run(
            "SELECT DISTINCT pid, usename, application_name FROM pg_locks JOIN pg_stat_activity USING (pid)"
            " JOIN pg_class ON pg_class.oid = relation WHERE granted AND pid <> pg_backend_pid()"
            f" AND database = (SELECT oid FROM pg_database WHERE datname = current_database()) AND {of_ours()}"
        )
        return [f"process {process} of {role} ({program})" for process, role, program in found]

    def another_home(self) -> str | None:
        """The schema of tables like ours, of another service in this database."""
        statement = (
            "SELECT nspname FROM pg_class JOIN pg_namespace ON pg_namespace.oid = relnamespace"
            f" WHERE relname = 'audit_head' AND relkind = 'r' AND relnamespace <> {HOME}"
        )
        return self._value(str, statement)

    def server(self) -> Server:
        facts = self._run(
            f"SELECT current_user, (SELECT nspname FROM pg_namespace WHERE oid = {HOME}),"
            " split_part(current_setting('server_version'), ' ', 1), current_setting('server_encoding'),"
            f" CAST(extract(epoch FROM clock_timestamp()) * 1000 AS BIGINT), has_schema_privilege({HOME}, 'CREATE')"
            " AND has_database_privilege(current_database(), 'CREATE'),"
            f" (SELECT count(*) FROM pg_class WHERE {of_ours()} AND NOT pg_has_role(relowner, 'USAGE')),"
            " (SELECT CAST(extnamespace AS REGNAMESPACE) FROM pg_extension WHERE extname = 'pg_trgm'),"
            " to_regclass('users_by_words') IS NOT NULL,"
            " pg_is_in_recovery(), current_setting('fsync') = 'on' AND current_setting('synchronous_commit') <> 'off',"
            " CASE WHEN current_setting('synchronous_commit') = 'local' THEN '' ELSE current_setting('synchronous_standby_names')"
            " END, (SELECT count(*) FROM pg_stat_replication), pg_database_size(current_database())"
        ).fetchone()
        limits = self._run(
            "SELECT 'the server', CAST(current_setting('max_connections') AS INT)"
            " - CAST(current_setting('superuser_reserved_connections') AS INT), sum(numbackends) FROM pg_stat_database"
            " UNION ALL SELECT 'the database', datconnlimit, pg_stat_get_db_numbackends(oid) FROM pg_database"
            " WHERE datname = current_database() AND datconnlimit >= 0"
            " UNION ALL SELECT 'the role', rolconnlimit, (SELECT count(*) FROM pg_stat_activity WHERE usename = current_user)"
            " FROM pg_roles WHERE rolname = current_user AND rolconnlimit >= 0"
        )
        return Server(*facts, *min(limits, key=lambda limit: limit[1] - limit[2]))

    def missing_parts(self) -> set[str]:
        columns = {f"{table}.{name}" for table, names in tables().items() for name in names}
        return (dialect.names() | columns) - self.parts()

    def last_ids(self) -> dict[str, int]:
        given = self._run(
            "SELECT relname, pg_sequence_last_value(CAST(pg_get_serial_sequence(relname, 'id') AS REGCLASS))"
            " FROM pg_attribute JOIN pg_class ON pg_class.oid = attrelid"
            f" WHERE attidentity <> '' AND {of_ours()}"
        )
        # A row that came with its id did not move the sequence.
        last = {
            table: max(number or 0, self._number(f"SELECT max(id) FROM {table}")) for table, number in given
        }
        return {table: number for table, number in last.items() if number}

    def give_no_ids_up_to(self, last: dict[str, int]) -> None:
        given = self.last_ids()
        for table in {**given, **last}:
            number = max(given.get(table, 0), last.get(table, 0))
            self._run("SELECT setval(CAST(pg_get_serial_sequence(?, 'id') AS REGCLASS), ?)", (table, number))

    def mark_as_moved(self, moved_to: str) -> None:
        self.end_other_connections()
        self._run("UPDATE installation SET moved_to = ?", (moved_to,))

    def end_other_connections(self, installation: str = "installation") -> None:
        """Those of this service, also of changes that wait for this one. A new connection waits for the end of this
        transaction before it reads the version or the mark."""
        self._connection.run(f"LOCK TABLE {installation} IN ACCESS EXCLUSIVE MODE")
        try:
            self._run(
                "SELECT pg_terminate_backend(pid, 3000) FROM pg_stat_activity WHERE datname = current_database()"
                " AND pid <> pg_backend_pid() AND (usename = current_user OR application_name = ?)",
                (APPLICATION,),
            )
        except ServerError as error:
            if error.state != "42501":
                raise
            problem = f"The connections of daemons with another role cannot be ended: {error}"
            raise StoreUnusable(problem, hint="stop these daemons first") from None

    @contextmanager
    def _readable(self, _errors: str = "") -> Iterator[None]:
        yield  # the server takes no text but UTF-8
