"""The store on a PostgreSQL server, with its errors in words for an operator."""

import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path

from usersctl.clock import Clock
from usersctl.errors import Busy, Referred, ServerAway, StoreUnusable, Taken, UsersError
from usersctl.store import database_file
from usersctl.store.conninfo import Conninfo
from usersctl.store.content import pour
from usersctl.store.database_file import NOT_OURS, VERSION, Migrated, in_name, moved, newer
from usersctl.store.new_file import new_file
from usersctl.store.postgres import dialect
from usersctl.store.progress import Progress, unwatched
from usersctl.store.store import PATIENCE_WHILE_HELD, Store
from usersctl.store.transaction import Transaction

try:
    from usersctl.store.postgres.driver import MISTAKES, REFUSAL, SLOW, Away, Connection, ServerError, Silent
    from usersctl.store.postgres.locks import ServerLocks
    from usersctl.store.postgres.new_tables import NewTables
    from usersctl.store.postgres.transaction import APPLICATION, HOME, PostgresTransaction, our_tables
except ImportError:
    hint = "install it with: pip install 'psycopg[binary]'"
    raise StoreUnusable("A database on a PostgreSQL server needs psycopg", hint=hint) from None

OLDEST_SERVER = 140000
NEVER = float("-inf")
UPGRADE = 600.0  # seconds for which a process waits while another one upgrades the database
IN_USE = 30.0  # seconds for which an upgrade waits for others that use the old tables, while new readers wait for it
WRITERS = database_file.APPLICATION_ID  # the advisory lock of the one writer
COMMIT_WHILE_HELD = 0.5  # seconds, while another writer was waited for in vain
LONGEST = 3600.0  # seconds for a statement about the whole content, and for its commit
LEFT_ALONE = 1.0  # seconds: after a server did not answer, nothing waits for it again for so long
_AWAY = {"57P01", "57P02", "57P03", "08006", "08003", "08000", "25006"}
_BUSY = {"55P03", "40001", "40P01"}
_PROBLEMS = {  # by state, or by the class with which it begins
    "53100": "cannot grow: the disk of the server is full",
    "53300": "takes no more connections",
    "57014": "takes too long",
    "42501": "does not let this user do that",
    "42P01": "is not whole",
    "42703": "is not whole",
    "2BP01": "has something of others that depends on its tables",
    "42P06": "has a schema of the name that new tables need",
    "3F000": "has no schema for the tables: see search_path",
    "53": "is short of memory, disk or connections",
    "54": "does not take a value of that length",
    "58": "has trouble with its machine: see its log",
    "XX": "has a fault, or is damaged: see its log",
}
_LOCKED = "if it goes on, look for a session that holds a lock: SELECT pid, usename, state, query FROM pg_stat_activity"
# What is there cannot be kept, as a restore does first.
_ANOTHER = "restore a backup to a new database, made with: createdb NAME"
_HINTS = {
    "57014": _LOCKED,
    "42P01": _ANOTHER,
    "42703": _ANOTHER,
    "42501": "to make tables, let the role own the database: ALTER DATABASE name OWNER TO role; else use the role of the daemons,"
    " which owns the tables, or make this one its member: GRANT owner TO role",
    "2BP01": "drop it, and make it again afterwards",
    "42P06": "drop that schema, or give it another name",
}
_READ_ONLY = re.compile(r"read-only|hot standby")  # in the words of libpq
_IDLE = "idle_in_transaction_session_timeout = '10s'"
# For a transaction that copies everything, or waits while another database is filled.
TAKES_LONG = (
    "SET LOCAL idle_in_transaction_session_timeout = '30min';"
    # A database or a role may limit whole transactions, since PostgreSQL 17.
    " SELECT set_config(name, '0', true) FROM pg_settings WHERE name = 'transaction_timeout'"
)
_SESSION = (
    f"SET client_encoding = 'UTF8'; SET jit = off; SET bytea_output = 'hex'; SET statement_timeout = '{SLOW}s';"
    # An export may wait for its reader.
    " SET idle_in_transaction_session_timeout = '30min';"
    # By which those that still use a database that was moved are found, whatever the conninfo says.
    f" SET application_name = '{APPLICATION}';"
    # Whatever the database or the role is set to: a writer that waited for another one sees what that one has done, and
    # statements hold backslashes.
    " SET default_transaction_isolation = 'read committed'; SET standard_conforming_strings = on;"
    # Within half a minute the server knows of a machine that is gone, and frees its locks.
    " SET tcp_keepalives_idle = 10; SET tcp_keepalives_interval = 5; SET tcp_keepalives_count = 3;"
    # Tables of the same names, in a schema that has come before ours since, are others'.
    " SELECT set_config('search_path', quote_ident(nspname) || ', ' || current_setting('search_path'), false)"
    f" FROM pg_namespace WHERE oid = {HOME};"
    " SELECT pg_backend_pid(), CAST(current_setting('server_version_num') AS INT), current_setting('server_encoding')"
)


class PostgresStore(Store):
    """Writers take turns by a lock of the server, which ends with their transaction."""

    transaction = PostgresTransaction
    foreign_errors = (ServerError, Away)

    def __init__(self, conninfo: Conninfo, *, read_only: bool, clock: Clock) -> None:
        super().__init__(conninfo, read_only=read_only, clock=clock)
        self._conninfo = conninfo
        self._lost = NEVER  # when a connection was lost: all older ones are made anew
        self._silent, self._reason = NEVER, ""  # when the server did not answer, and why

    def _bring_up_to_date(self, *, create: bool) -> None:
        try:
            super()._bring_up_to_date(create=create)
        except ServerAway:
            # A process that upgrades the database ends the connections of those that wait for it: they look again.
            super()._bring_up_to_date(create=create)

    def _upgrade(self, connection: Connection) -> None:
        try:
            with connection.patient(LONGEST), self._transaction(connection, _begin(UPGRADE, alone=True)):
                version = self._version_on(connection)
                if version is None:
                    self._refuse_another_service(connection)
                    for statement in (*dialect.schema(), *dialect.SEARCH):
                        connection.run(statement)
                    self.made = True
                elif version < VERSION:  # else another process was quicker
                    self._renew(connection)
        except ServerError as error:
            holders = PostgresTransaction(connection).lock_holders() if error.state == "55P03" else []
            if not holders:
                raise
            problem = f"The database cannot be upgraded while others use it: {', '.join(holders)}"
            hint = "let them end, or end them: SELECT pg_terminate_backend(process); and try again"
            raise Busy(problem, retry_after=60, hint=hint) from error

    def _refuse_another_service(self, connection: Connection) -> None:
        """The locks and notices of a database are of one service: of two, one would send no emails."""
        if schema := PostgresTransaction(connection).another_home():
            hint = (
                "name a database of its own, made with: createdb NAME; if it is this service, see search_path"
            )
            raise StoreUnusable(f"{self.name} has a service already, in the schema {schema}", hint=hint)

    def _renew(self, connection: Connection) -> None:
        """Makes each table again as schema.sql has it, with all rows and all columns that both versions have."""
        last_ids, new = PostgresTransaction(connection).last_ids(), NewTables(connection)
        new.put_old_rows()
        tx = new.complete(last_ids)
        accounts = tx.count_rows("users")
        connection.run(f"SET LOCAL lock_timeout = '{IN_USE}s'")
        # Processes of the older version see the new one when they connect again.
        tx.end_other_connections(f"{new.home}.installation")
        new.finish()
        self.migrated = Migrated(accounts, None, [])

    def _version_on(self, connection: Connection) -> int | None:
        # Only a statement that reads a table learns of those that others made since this transaction began.
        known = "SELECT to_regclass('installation'), to_regclass('users') FROM pg_class LIMIT 1"
        ((ours, users),) = connection.run(known)
        if ours is None and users is None:
            return None
        row = None
        if ours is not None:
            row = connection.run("SELECT version, moved_to FROM installation").fetchone()
        if row is None:
            raise StoreUnusable(f"{self.name} {NOT_OURS}")
        version, moved_to = row
        if moved_to is not None:
            raise moved(self.name, moved_to)
        if version > VERSION:
            raise newer(self.name, version)
        return int(version)

    # --- the four verbs ---

    @contextmanager
    def read(self) -> Iterator[Transaction]:
        with self._errors_in_words():
            connection = self._connection()
            with self._transaction(
                connection, "BEGIN ISOLATION LEVEL REPEATABLE READ, READ ONLY", commit=False
            ):
                yield PostgresTransaction(connection, self.clock)

    @contextmanager
    def _writing(self, patience: float | None, *, commit: bool, alone: bool) -> Iterator[Connection]:
        waits_fully = patience is None and not self._held
        if self._held:
            patience = min(patience or PATIENCE_WHILE_HELD, PATIENCE_WHILE_HELD)
        try:
            with self._errors_in_words():
                connection = self._connection()
                with self._transaction(connection, _begin(patience, alone=alone), commit=commit):
                    yield connection
        except Busy as error:
            self._held |= waits_fully and isinstance(error.__cause__, ServerError)
            raise
        if alone:  # others that share the lock come in beside one that stands still
            self._held = False

    @contextmanager
    def _transaction(self, connection: Connection, begin: str, *, commit: bool = True) -> Iterator[None]:
        silence = connection.silence
        try:
            connection.run(begin)
            yield
            if commit:
                self._commit(connection)
            else:
                connection.run("ROLLBACK")
        except BaseException:
            if not connection.is_lost and connection.in_transaction:
                with suppress(Away, ServerError):
                    connection.run("ROLLBACK")
            raise
        finally:
            connection.silence = silence

    def _commit(self, connection: Connection) -> None:
        hurry = COMMIT_WHILE_HELD if self._held else None
        try:
            connection.run("COMMIT", within=hurry)
        except Away as error:
            # A silent server may wait for a standby, and answer others.
            self._held |= isinstance(error, Silent)
            raise Away(f"{error}, so that it is not known whether the change was made") from None

    @contextmanager
    def within(self, seconds: float) -> Iterator[None]:
        try:
            with self._errors_in_words(), self._connection().patient(seconds):
                yield
        except StoreUnusable as error:
            if getattr(error.__cause__, "state", "") != "57014":
                raise
            raise TimeoutError from None

    # --- the whole content ---

    def copy(
        self, target: Path, progress: Progress = unwatched, *, owner: Path | None = None
    ) -> dict[str, int]:
        """The copy is a file."""
        with self.read() as tx, new_file(target, owner=owner) as new:
            self.whole()
            return pour(tx, new, progress)

    def copy_aside(self, now: datetime, folder: Path) -> Path:
        target = folder / f"users.db.before-{in_name(now)}"
        self.copy(target)
        return target

    def take_over(self, other: Store, *, first: Callable[[], object], progress: Progress) -> None:
        with self.write():
            self.whole()
            new = NewTables(self._connection())  # first, because it may refuse
            first()
            with other.read() as content:
                pour(content, new, progress)

    @contextmanager
    def filled(self) -> Iterator[NewTables]:
        """Fills an empty database, which need not have tables, in one transaction. Raises Taken if it is not empty."""
        # A reader waits for no writer, which may be this very move, of the same database by another name.
        with self.read() as tx:
            self._refuse_content(tx)
        with self.write() as tx:
            self.whole()
            self._refuse_content(tx)
            self._refuse_another_service(self._connection())
            yield NewTables(self._connection())

    def _refuse_content(self, tx: Transaction) -> None:
        present, problem = tx.parts().intersection(our_tables()), ""
        if present and "installation" not in present:
            problem = f"has tables of another application: {', '.join(sorted(present))}"
        elif present and (tx.count_rows("users") or tx.count_rows("audit")):
            problem = "is not empty"
        if problem:
            raise Taken(f"{self.name} {problem}", hint="name a new database, made with: createdb NAME")

    def whole(self) -> None:
        connection = self._connection()
        connection.run(TAKES_LONG)
        connection.limit(LONGEST, scope="LOCAL")

    @contextmanager
    def locks(self) -> Iterator[ServerLocks]:
        with self._errors_in_words():
            connection = self._connection()
            locks = ServerLocks(connection)
            try:
                yield locks
                locks.free()
            except BaseException:
                connection.close()
                raise

    def close(self) -> None:
        """A background thread that did not stop in time may be amid a change, and ends it first."""
        until = time.monotonic() + database_file.BUSY_SECONDS
        others = self._connections - {self._local.__dict__.get("connection")}
        while any(other.in_transaction for other in others) and time.monotonic() < until:
            time.sleep(0.01)
        super().close()

    # --- connections and their errors ---

    def _connection(self) -> Connection:
        connection: Connection | None = self._local.__dict__.get("connection")
        if connection is not None and not connection.is_lost and connection.since > self._lost:
            return connection
        self._forget()
        connection = self._opened()
        self._keep(connection)
        if self.opens_late:
            self.open(create=True)
        return connection

    def _opened(self) -> Connection:
        if time.monotonic() - self._silent < LEFT_ALONE:
            raise Away(self._reason)
        try:
            connection = Connection(self._conninfo)
        except Silent as error:
            self._silent, self._reason = time.monotonic(), str(error)
            raise Away(self._reason) from None  # the connections of other threads may go on
        try:
            self._check_server(connection)
            if self.read_only:
                connection.run("SET default_transaction_read_only = on")
            self._check_version(connection)
        except BaseException:
            connection.close()
            raise
        return connection

    def _check_server(self, connection: Connection) -> None:
        ((process, version, encoding),) = connection.run(_SESSION)
        if process != connection.process:
            # Locks, notices and prepared statements belong to a connection, which a pooler changes under us.
            hint = "name the server itself: each process needs one connection for a thread, and keeps it"
            raise StoreUnusable(f"{self.name} is a pooler of connections, such as PgBouncer", hint=hint)
        if version < OLDEST_SERVER:
            raise StoreUnusable(f"{self.name} is a server older than PostgreSQL 14")
        if encoding != "UTF8":
            hint = "create the database with: ENCODING 'UTF8'"
            raise StoreUnusable(f"{self.name} has the encoding {encoding}", hint=hint)

    def rest(self) -> None:
        self._forget()

    def in_words(self, error: ServerError | Away) -> UsersError:
        if isinstance(error, Away) or error.state in _AWAY:
            return self._away(error)
        if error.state in _BUSY:
            return Busy("The database is busy, please try again", retry_after=2, hint=_LOCKED)
        if error.state == "23503":  # a foreign key, and not one of the schema
            return Referred()
        problem = _PROBLEMS.get(error.state) or _PROBLEMS.get(error.state[:2])
        if problem is None:
            raise error
        return StoreUnusable(f"{self.name} {problem} ({error})", hint=_HINTS.get(error.state))

    def _away(self, error: ServerError | Away) -> UsersError:
        if isinstance(error, Silent):
            self._silent = self._lost = time.monotonic()
            self._reason = str(error)
        self._forget()
        if isinstance(error, Away) and MISTAKES.search(str(error)):
            hint = "check `database` of the configuration, and the roles and databases of the server"
            return StoreUnusable(f"{self.name} cannot be used: {error}", hint=hint)
        problem = "is away"
        hint = "check host and port of `database`, or start the server; a daemon goes on by itself when it is back"
        if isinstance(error, Away) and REFUSAL.search(str(error)):
            problem = "refuses the connection"
            hint = "see the limits, the roles and the log of the server; a daemon goes on by itself when it is let in"
        elif error.state == "25006" or _READ_ONLY.search(str(error)):
            problem = "is read-only"
            hint = (
                "name the primary, if this is a standby; else see default_transaction_read_only of the database and the"
                " role; a daemon goes on by itself when it may write"
            )
        return ServerAway(f"{self.name} {problem}: {error}", hint=hint)


def _begin(patience: float | None, *, alone: bool) -> str:
    if patience is None:
        patience = 0.8 * database_file.BUSY_SECONDS  # before the statement counts as slow
    lock = "pg_advisory_xact_lock" if alone else "pg_advisory_xact_lock_shared"
    # 0 would mean for ever. A process that stands still amid a change must not hold up the others for long.
    limits = f"SET LOCAL lock_timeout = {max(1, round(patience * 1000))}; SET LOCAL {_IDLE}"
    return f"BEGIN; {limits}; SELECT {lock}({WRITERS})"
