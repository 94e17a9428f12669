"""The store on a PostgreSQL server, with its errors in words for an operator."""

import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Self

from usersctl.clock import Clock
from usersctl.errors import Busy, OtherVersion, Outdated, ServerAway, StoreUnusable, Taken, UsersError
from usersctl.store import database_file
from usersctl.store.conninfo import Conninfo
from usersctl.store.content import pour, tables
from usersctl.store.database_file import NOT_OURS, VERSION, Migrated, in_name, moved
from usersctl.store.postgres import dialect
from usersctl.store.postgres.locks import ServerLocks
from usersctl.store.postgres.transaction import TAKES_LONG, PostgresTransaction
from usersctl.store.store import EndOfThread, Progress, Store

try:
    from usersctl.store.postgres.driver import SLOW, Away, Connection, ServerError, Silent
except ImportError:
    hint = "install it with: pip install 'usersctl[postgres]'"
    raise StoreUnusable("A database on a PostgreSQL server needs psycopg", hint=hint) from None

if TYPE_CHECKING:
    from datetime import datetime

    from usersctl.store.postgres.new_tables import NewTables

OLDEST_SERVER = 140000
NEVER = float("-inf")
ENDED = 2  # times
UPGRADE = 600.0  # seconds for which a process waits while another one upgrades the database
WRITERS = 0x75737273  # the advisory lock of the one writer: "usrs"
# After one writer has waited in vain, the others do not wait: their threads are needed by readers.
PATIENCE_WHILE_HELD, COMMIT_WHILE_HELD = 0.05, 0.5
LEFT_ALONE = 1.0  # seconds: after a server did not answer, nothing waits for it again for so long
_AWAY = {"57P01", "57P02", "57P03", "08006", "08003", "08000", "25006"}
_BUSY = {"55P03", "40001", "40P01"}
_PROBLEMS = {
    "53100": "cannot grow: the disk of the server is full",
    "53300": "takes no more connections",
    "42501": "does not let this user do that",
    "42P01": "is not whole: restore a backup",
    "25006": "is read-only: is this a standby?",
}
# In the words of libpq and the server: a connection that no waiting opens.
_MISTAKES = re.compile(
    r"authentication|no password|does not exist|pg_hba|ermission denied|certificate|invalid|not found|not support"
)
_IDLE = "idle_in_transaction_session_timeout = '10s'"
_SESSION = (
    f"SET client_encoding = 'UTF8'; SET jit = off; SET bytea_output = 'hex'; SET statement_timeout = '{SLOW}s';"
    # Within half a minute the server knows of a machine that is gone, and frees its locks.
    " SET tcp_keepalives_idle = 10; SET tcp_keepalives_interval = 5; SET tcp_keepalives_count = 3;"
    " SELECT pg_backend_pid(), current_setting('server_encoding')"
)


class PostgresStore(Store):
    """One connection for each thread. Writers take turns by a lock of the server, which ends with their transaction."""

    def __init__(self, conninfo: Conninfo, *, read_only: bool, clock: Clock) -> None:
        super().__init__(conninfo, read_only=read_only, clock=clock)
        self._conninfo = conninfo
        self._local = threading.local()
        self._connections: set[Connection] = set()
        self._spare: list[Connection] = []  # for locks, which need one of their own
        self._was_connected = False
        self._lost = NEVER  # when a connection was lost: all older ones are made anew
        self._silent, self._reason = NEVER, ""  # when the server did not answer, and why
        self._held = False  # a writer has waited in vain for another, and none has written since

    @classmethod
    def opened(cls, conninfo: Conninfo, *, create: bool, write: bool, clock: Clock) -> Self:
        store = cls(conninfo, read_only=not write, clock=clock)
        try:
            store._bring_up_to_date_patiently(create=create)
            store.is_open = True
        except BaseException:
            store.close()
            raise
        return store

    def _bring_up_to_date_patiently(self, *, create: bool) -> None:
        """A process that upgrades the database ends the connections of those that wait for it: they look again."""
        for _ in range(ENDED):
            try:
                return self._bring_up_to_date(create=create)
            except ServerAway:
                if not self._was_connected:
                    raise
        return self._bring_up_to_date(create=create)

    def _bring_up_to_date(self, *, create: bool) -> None:
        with self._translated_errors():
            connection = self._connection()
            if self._version_on(connection) == VERSION:
                return
            if not create and self._version_on(connection) is None:
                hint = "make a new one with: usersctl db init; or restore a backup: usersctl db restore FILE"
                raise StoreUnusable(f"{self.name} is empty", hint=hint)
            if self.read_only:
                hint = "bring it up to date with: usersctl db migrate"
                raise Outdated(f"{self.name} is of an older version", hint=hint)
            with connection.patient(), self._transaction(connection, _begin(UPGRADE, alone=True)):
                version = self._version_on(connection)
                if version is None:
                    self._make(connection)
                    self.made = True
                elif version < VERSION:  # else another process was quicker
                    self._renew(connection)

    def _make(self, connection: Connection) -> None:
        from usersctl.store.upgrade import schema  # late: hardly ever needed

        for statement in dialect.schema(schema()):
            connection.run(statement)
        connection.execute("INSERT INTO installation (version) VALUES (?)", (VERSION,))
        for addition in dialect.SEARCH:
            connection.attempt(addition)

    def _renew(self, connection: Connection) -> None:
        """Makes each table again as schema.sql has it, with all rows and all columns that both versions have."""
        from usersctl.store.postgres.new_tables import NewTables

        last_ids, new = PostgresTransaction(connection).last_ids(), NewTables(connection)
        new.put_old_rows()
        tx = new.complete(last_ids)
        accounts = tx.count_rows("users")
        # Processes of the older version see the new one when they connect again. Before: those that read for long. After:
        # those that came meanwhile, and wait.
        tx.end_other_connections()
        new.finish()
        tx.end_other_connections()
        self.migrated = Migrated(accounts, None, [])

    def _is_current_on(self, connection: Connection) -> bool:
        return self._version_on(connection) == VERSION

    def _version_on(self, connection: Connection) -> int | None:
        """None for an empty database; raises for one that is newer, was moved, or belongs to another program."""
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
            message = f"{self.name} is of schema version {version}, this usersctl knows {VERSION}"
            raise OtherVersion(message, hint="install the newer usersctl that wrote it")
        return int(version)

    # --- the four verbs ---

    @contextmanager
    def read(self) -> Iterator[PostgresTransaction]:
        with self._translated_errors():
            connection = self._connection()
            with self._transaction(
                connection, "BEGIN ISOLATION LEVEL REPEATABLE READ, READ ONLY", commit=False
            ):
                yield PostgresTransaction(connection, self.clock)

    def glance(self) -> "Glance":
        return Glance(self._begun, self._translated)

    def _begun(self) -> PostgresTransaction:
        return PostgresTransaction(self._connection(), self.clock)

    @contextmanager
    def write(
        self, *, patience: float | None = None, commit: bool = True, alone: bool = True
    ) -> Iterator[PostgresTransaction]:
        waits_fully = patience is None and not self._held
        if self._held:
            patience = min(patience or PATIENCE_WHILE_HELD, PATIENCE_WHILE_HELD)
        try:
            with self._translated_errors():
                connection = self._connection()
                with self._transaction(connection, _begin(patience, alone=alone), commit=commit):
                    tx = PostgresTransaction(connection, self.clock)
                    tx.listener = self.listener
                    yield tx
        except Busy as error:
            self._held |= waits_fully and isinstance(error.__cause__, ServerError)
            raise
        self._held = False
        if commit:
            for callback in tx.callbacks:
                callback()

    @contextmanager
    def _transaction(self, connection: Connection, begin: str, *, commit: bool = True) -> Iterator[None]:
        try:
            connection.run(begin)
            yield
            hurry = COMMIT_WHILE_HELD if self._held else None
            try:
                connection.run("COMMIT" if commit else "ROLLBACK", within=hurry)
            except Silent as error:  # it waits for a standby, perhaps, and the server answers others
                self._held = True
                raise Away(str(error)) from None
        except BaseException:
            if not connection.is_lost and connection.in_transaction:
                with suppress(Away, ServerError):
                    connection.run("ROLLBACK")
            raise

    @contextmanager
    def within(self, seconds: float) -> Iterator[None]:
        connection = self._connection()
        connection.limit(seconds)
        try:
            yield
        except StoreUnusable as error:
            if getattr(error.__cause__, "state", "") != "57014":
                raise
            raise TimeoutError from None
        finally:
            if not connection.is_lost:
                connection.limit()

    def is_current(self) -> bool:
        with self._translated_errors():
            return self._is_current_on(self._connection())

    def check_writable(self) -> None:
        with self.write(patience=0, commit=False) as tx:
            tx.change_nothing()

    # --- the whole content ---

    def copy(self, target: Path, progress: Progress = lambda _done, _total: None) -> dict[str, int]:
        """The copy is a file."""
        from usersctl.store.new_file import new_file  # late: hardly ever needed

        with self.read() as tx, self.whole(tx), new_file(target) as new:
            pour(tx, new, progress)
            return tx.counts()

    def copy_aside(self, now: "datetime", folder: Path) -> Path:
        target = folder / f"users.db.before-{in_name(now)}"
        self.copy(target)
        return target

    def take_over(self, other: Store, *, first: Callable[[], object], progress: Progress) -> None:
        from usersctl.store.postgres.new_tables import NewTables

        with self.write() as tx, self.whole(tx):
            first()
            with other.read() as content:
                pour(content, NewTables(self._connection()), progress)

    @contextmanager
    def filled(self) -> "Iterator[NewTables]":
        """Fills an empty database, which need not have tables, in one transaction. Raises Taken if it is not empty."""
        from usersctl.store.postgres.new_tables import NewTables

        with self._translated_errors():
            connection = self._connection()
            with (
                connection.patient(),
                self._transaction(connection, _begin(database_file.BUSY_SECONDS, alone=True)),
            ):
                connection.run(TAKES_LONG)
                self._refuse_content(connection)
                yield NewTables(connection)

    def _refuse_content(self, connection: Connection) -> None:
        rows = connection.run(
            "SELECT relname FROM pg_class WHERE relnamespace = to_regnamespace(current_schema())"
        )
        present = {name for (name,) in rows}.intersection(("installation", *tables()))
        problem = ""
        if present and "installation" not in present:
            problem = f"has tables of another application: {', '.join(sorted(present))}"
        elif (
            present and connection.run("SELECT 1 FROM users UNION ALL SELECT 1 FROM audit LIMIT 1").fetchone()
        ):
            problem = "is not empty"
        if problem:
            raise Taken(f"{self.name} {problem}", hint="name a new database, made with: createdb NAME")

    @contextmanager
    def whole(self, tx: PostgresTransaction) -> Iterator[None]:
        with self._connection().patient():
            tx.take_time()
            yield

    def mark_as_moved(self, tx: PostgresTransaction, moved_to: str) -> None:
        tx.mark_as_moved(moved_to)
        tx.after_commit(self._forget)

    @contextmanager
    def locks(self) -> Iterator[ServerLocks]:
        with self._translated_errors():
            try:
                connection = self._spare.pop()
            except IndexError:
                connection = self._opened()
            locks = ServerLocks(connection)
            try:
                yield locks
                locks.free()
            except BaseException:
                connection.close()
                raise
            self._spare.append(connection)

    def close(self) -> None:
        self._close_spare()
        self._local = threading.local()  # a thread that goes on opens a connection of its own
        while self._connections:
            self._connections.pop().close()

    # --- connections and their errors ---

    def _connection(self) -> Connection:
        local = self._local.__dict__
        connection: Connection | None = local.get("connection")
        if connection is not None and not connection.is_lost and local["since"] > self._lost:
            return connection
        return self._connect()

    def _connect(self) -> Connection:
        self._forget()
        connection = self._opened()
        self._was_connected = True
        self._connections.add(connection)
        local = self._local.__dict__
        local["connection"], local["since"] = connection, time.monotonic()
        local["end"] = EndOfThread(connection, self._connections)
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
            if self.is_open and not self._is_current_on(connection):
                raise OtherVersion(
                    f"{self.name} was replaced by one that is empty or older", hint="start again"
                )
        except BaseException:
            connection.close()
            raise
        return connection

    def _check_server(self, connection: Connection) -> None:
        ((process, encoding),) = connection.run(_SESSION)
        if process != connection.process:
            # Locks, notices and prepared statements belong to a connection, which a pooler changes under us.
            hint = "name the server itself: each process needs one connection for a thread, and keeps it"
            raise StoreUnusable(f"{self.name} is a pooler of connections, such as PgBouncer", hint=hint)
        if connection.server_version < OLDEST_SERVER:
            raise StoreUnusable(f"{self.name} is a server older than PostgreSQL 14")
        if encoding != "UTF8":
            hint = "create the database with: ENCODING 'UTF8'"
            raise StoreUnusable(f"{self.name} has the encoding {encoding}", hint=hint)

    def rest(self) -> None:
        self._forget()

    def _forget(self) -> None:
        connection = self._local.__dict__.pop("connection", None)
        if connection is not None:
            self._connections.discard(connection)
            connection.close()

    def _close_spare(self) -> None:
        while self._spare:
            self._spare.pop().close()

    @contextmanager
    def _translated_errors(self) -> Iterator[None]:
        try:
            yield
        except (ServerError, Away) as error:
            raise self._translated(error) from error

    def _translated(self, error: ServerError | Away) -> UsersError:
        """In words for an operator; raises an error that is a fault of this program."""
        if isinstance(error, Away) or error.state in _AWAY:
            if isinstance(error, Silent):
                self._silent = self._lost = time.monotonic()
                self._reason = str(error)
            self._forget()
            self._close_spare()
            if isinstance(error, Away) and _MISTAKES.search(str(error)):
                hint = "check `database` of the configuration, and the roles and databases of the server"
                return StoreUnusable(f"{self.name} cannot be used: {error}", hint=hint)
            problem = _PROBLEMS.get(getattr(error, "state", ""), "is away")
            return ServerAway(
                f"{self.name} {problem}: {error}", hint="it heals by itself when the server is back"
            )
        if error.state in _BUSY:
            return Busy("The database is busy, please try again", retry_after=2)
        problem = _PROBLEMS.get(error.state, "")
        if error.state == "57014":
            problem = "takes too long"
        if not problem:
            raise error
        return StoreUnusable(f"{self.name} {problem} ({error})")


class Glance:
    """For a single statement, which is a transaction by itself."""

    def __init__(
        self, begin: Callable[[], PostgresTransaction], translated: Callable[[ServerError | Away], UsersError]
    ) -> None:
        self._begin = begin
        self._translated = translated

    def __enter__(self) -> PostgresTransaction:
        try:
            return self._begin()
        except (ServerError, Away) as error:
            raise self._translated(error) from error

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if isinstance(error, ServerError | Away):
            raise self._translated(error) from error


def _begin(patience: float | None, *, alone: bool) -> str:
    if patience is None:
        patience = 0.8 * database_file.BUSY_SECONDS  # before the statement counts as slow
    lock = "pg_advisory_xact_lock" if alone else "pg_advisory_xact_lock_shared"
    # 0 would mean for ever. A process that stands still amid a change must not hold up the others for long.
    limits = f"SET LOCAL lock_timeout = {max(1, round(patience * 1000))}; SET LOCAL {_IDLE}"
    return f"BEGIN; {limits}; SELECT {lock}({WRITERS})"
