"""New tables in the place of those of a database, in one transaction: until its end the old ones can be read."""

from collections.abc import Iterable, Sequence
from typing import Any

from usersctl.errors import StoreUnusable
from usersctl.store.checks import check_on_server
from usersctl.store.content import tables
from usersctl.store.postgres import dialect
from usersctl.store.postgres.driver import Connection, ServerError
from usersctl.store.postgres.transaction import HOME, PostgresTransaction, of_ours, our_tables
from usersctl.store.upgrade import COUNTED

NEW = "usersctl_new"  # the schema in which they are made
_EXTENSION, _INDEX = dialect.SEARCH


class NewTables:
    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._run = connection.run
        self._names = our_tables()
        self._tx = PostgresTransaction(connection)
        home = self._run(f"SELECT quote_ident(nspname), oid FROM pg_namespace WHERE oid = {HOME}").fetchone()
        if home is None:
            raise StoreUnusable("The database has no schema for the tables: see search_path")
        self.home, self._home_oid = home
        self._owner = self._other_owner()
        self._refuse_dependents()
        self._run(_EXTENSION)  # not into the schema that goes away
        self._run(
            f"CREATE SCHEMA {NEW}; SELECT set_config('search_path', '{NEW}, ' || current_setting('search_path'), true)"
        )
        self._left = list(dialect.schema())
        self._make("CREATE TABLE")

    def _other_owner(self) -> str | None:
        """The role that owns the old tables, and shall own the new ones: that of the daemons, if an operator restores with
        another one. It can only be given tables of a schema in which it may create some."""
        owner = self._run(
            "SELECT quote_ident(rolname) FROM pg_class JOIN pg_roles ON pg_roles.oid = relowner"
            f" WHERE relname = 'installation' AND relnamespace = {self._home_oid} AND rolname <> current_user"
            f" AND has_schema_privilege(relowner, {self._home_oid}, 'CREATE')"
        ).fetchone()
        return str(owner[0]) if owner else None

    def _refuse_dependents(self) -> None:
        """Views and foreign keys of others, which would keep the old tables from being dropped at the end."""
        ours = f"SELECT oid FROM pg_class WHERE {of_ours()}"
        found = self._run(
            "SELECT CAST(CAST(ev_class AS REGCLASS) AS TEXT) FROM pg_rewrite JOIN pg_depend ON objid = pg_rewrite.oid"
            " WHERE classid = CAST('pg_rewrite' AS REGCLASS) AND refclassid = CAST('pg_class' AS REGCLASS)"
            f" AND refobjid IN ({ours}) AND ev_class NOT IN ({ours})"
            " UNION SELECT conname || ' of ' || CAST(conrelid AS REGCLASS) FROM pg_constraint"
            f" WHERE contype = 'f' AND confrelid IN ({ours}) AND conrelid NOT IN ({ours}) ORDER BY 1"
        )
        if dependents := [name for (name,) in found]:
            problem = f"The tables cannot be replaced, because others depend on them: {', '.join(dependents)}"
            raise StoreUnusable(problem, hint="drop them, and make them again afterwards")

    def put(self, table: str, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
        try:
            self._connection.copy_in(table, columns, rows)
        except ServerError as error:
            if error.state != "22021":
                raise
            problem = f"{table} holds text with a zero byte, which PostgreSQL does not take"
            raise StoreUnusable(problem) from None

    def put_old_rows(self) -> None:
        """Those of the tables that are replaced, with the columns that both versions have. Triggers count anew."""
        self._make("")
        at_home = f"FROM information_schema.columns WHERE to_regnamespace(quote_ident(table_schema)) = {self._home_oid}"
        known = set(self._run(f"SELECT table_name, column_name {at_home}")) - set(COUNTED.items())
        for table, columns in tables().items():
            names = ", ".join(column for column in columns if (table, column) in known)
            if names and table != "user_counts":
                # In the place of those with which a database begins.
                self._run(
                    f"DELETE FROM {table}; INSERT INTO {table} ({names}) SELECT {names} FROM {self.home}.{table}"
                )

    def complete(self, last_ids: dict[str, int]) -> PostgresTransaction:
        self._make("CREATE")  # and not the rows with which a database begins
        self._run(_INDEX)
        self._run(f"ANALYZE {', '.join(self._names)}")
        self._tx.give_no_ids_up_to(last_ids)
        return self._tx

    def problems(self) -> list[str]:
        return [problem.message for problem in check_on_server(self._tx).problems]

    def finish(self) -> None:
        """From here to the commit, readers of the old tables wait."""
        self._run(f"DROP TABLE IF EXISTS {', '.join(f'{self.home}.{name}' for name in self._names)}")
        for name in self._names:
            self._run(f"ALTER TABLE {NEW}.{name} SET SCHEMA {self.home}")
            self._give("TABLE", name)
        for (name,) in self._run(
            f"SELECT proname FROM pg_proc WHERE pronamespace = to_regnamespace('{NEW}')"
        ):
            self._run(
                f"DROP FUNCTION IF EXISTS {self.home}.{name}(); ALTER FUNCTION {NEW}.{name}() SET SCHEMA {self.home}"
            )
            self._give("FUNCTION", f"{name}()")
        self._run(f"DROP SCHEMA {NEW}")

    def _give(self, kind: str, name: str) -> None:
        if self._owner:
            self._run(f"ALTER {kind} {self.home}.{name} OWNER TO {self._owner}")

    def _make(self, beginning: str) -> None:
        """What the statements make that begin so, and were not run before."""
        for statement in [some for some in self._left if some.startswith(beginning)]:
            self._run(statement)
            self._left.remove(statement)
