"""Store: the open database, by threads and processes at once, and what SQLite refuses in the words of an operator."""

import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from usersctl.errors import Busy, OtherVersion, Outdated, StoreUnusable, UsersError
from usersctl.store import database_file
from usersctl.store.transaction import Transaction

LONGEST_LOG = 32 * 1024 * 1024  # bytes of the write-ahead log; a longer one is cut when nobody needs it
FOLDING_PATIENCE = 0.05  # seconds for a writer, and with all of them for a reader, to come to an end
LEAST_SPACE = 1024 * 1024  # bytes on the disk, below which it counts as full

# Once somebody has waited in vain for another process, nobody else does: the threads are needed for those who read.
PATIENCE_WHILE_HELD = 0.05


class Store:
    """One SQLite file, one connection for each thread, one writer at a time."""

    def __init__(self, path: Path, *, read_only: bool = False, no_trace: bool = False) -> None:
        self.path = path
        self.read_only = read_only
        self.no_trace = no_trace
        self.migrated: database_file.Migrated | None = None  # what opening it did to an older database
        self.is_open = False  # and the database is a current one
        self._local = threading.local()
        self._connections: list[sqlite3.Connection] = []
        # Threads of one process queue here, which is fair and quick; SQLite's own waiting is by polling.
        self._writing = threading.Lock()
        self._held = False  # another process kept a writer waiting for too long, and nobody has come in since
        self.letter_due = threading.Event()  # a letter was committed here; whoever sends letters waits for it

    @contextmanager
    def read(self) -> Iterator[Transaction]:
        """One moment of the database, for as many questions as one likes."""
        with self._refusals():
            connection = self._connection()
            connection.execute("BEGIN")
            try:
                yield Transaction(connection)
            finally:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")

    @contextmanager
    def glance(self) -> Iterator[Transaction]:
        """For one question, which is a moment by itself. Nobody keeps it waiting: readers and writers do not meet."""
        with self._refusals():
            yield Transaction(self._connection())

    @contextmanager
    def trial(self) -> Iterator[Transaction]:
        """A write that is taken back at its end: what would happen."""
        with self._writer("ROLLBACK", database_file.BUSY_SECONDS) as tx:
            yield tx

    @contextmanager
    def within(self, seconds: float) -> Iterator[None]:
        """Questions that take longer are broken off with a TimeoutError."""
        connection, until = self._connection(), time.monotonic() + seconds
        connection.set_progress_handler(lambda: time.monotonic() > until, 10_000)
        try:
            yield
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode != sqlite3.SQLITE_INTERRUPT:
                raise
            raise TimeoutError from None
        finally:
            connection.set_progress_handler(None, 0)

    def is_current(self) -> bool:
        """Whether the database is still of the version that this program knows."""
        with self._refusals():
            return database_file.is_current(self._connection(), self.path)

    def check_writable(self) -> None:
        """Raises StoreUnusable where nothing could be written now, and Busy where another writer is at it."""
        with self._writer("ROLLBACK", 0) as tx:
            tx.change_nothing()
        disk = os.statvfs(self.path.parent)
        if disk.f_bavail * disk.f_frsize < LEAST_SPACE:
            raise StoreUnusable(f"{self.path} cannot grow: the disk is full")

    @contextmanager
    def write(self, *, patience: float | None = None) -> Iterator[Transaction]:
        """All of it or nothing; Busy where others write for longer than `patience`."""
        with self._writer("COMMIT", database_file.BUSY_SECONDS if patience is None else patience) as tx:
            yield tx

    @contextmanager
    def _writer(self, at_the_end: str, patience: float) -> Iterator[Transaction]:
        """It begins as a writer, because a reader that becomes one may find that it cannot."""
        waits_fully = patience >= database_file.BUSY_SECONDS and not self._held
        if self._held:
            patience = min(patience, PATIENCE_WHILE_HELD)
        until = time.monotonic() + patience
        if not self._writing.acquire(timeout=patience):
            self._held |= waits_fully
            raise Busy("The database is busy, please try again", retry_after=2)
        try:
            with self._refusals():
                connection = self._connection(to_write=True)
                # What was spent on waiting for threads is not spent again on waiting for processes.
                left = max(0, until - time.monotonic())
                if self._held:  # since we began to wait
                    left = min(left, PATIENCE_WHILE_HELD)
                connection.execute(f"PRAGMA busy_timeout = {round(left * 10) * 100}")
                try:
                    connection.execute("BEGIN IMMEDIATE")
                except sqlite3.OperationalError:
                    self._held |= waits_fully
                    raise
                self._held = False
                try:
                    tx = Transaction(connection)
                    yield tx
                    connection.execute(at_the_end)
                    if tx.wrote_letter:
                        self.letter_due.set()
                except BaseException:
                    if connection.in_transaction:
                        connection.execute("ROLLBACK")
                    raise
        finally:
            self._writing.release()

    def copy(
        self, target: Path, progress: Callable[[int, int], Any] = lambda _done, _total: None
    ) -> dict[str, int]:
        """All of it as it is at this moment, while others write on. How many rows that are."""
        with self.read() as tx:
            counts = tx.counts()
            database_file.copy(self._connection(), target, progress)
        return counts

    def take_over(
        self, other: "Store", *, first: Callable[[], object], progress: Callable[[int, int], Any]
    ) -> None:
        """All that is in `other`, in one transaction: whoever has this database open sees it at their next look.

        `first` is called when nobody else can write any more and nothing is replaced yet; it may still change `other`.
        """
        until = time.monotonic() + database_file.BUSY_SECONDS
        begun = False

        def step(status: int, left: int, total: int) -> None:
            nonlocal begun
            if status in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
                if time.monotonic() > until:
                    raise Busy("The database is busy, please try again", retry_after=2)
            elif not begun:
                begun = True
                first()
            progress(total - left, total)

        with self._writing, self._refusals():
            connection = self._connection(to_write=True)
            source = other._connection()  # noqa: SLF001 - a store, too
            (size,) = connection.execute("PRAGMA page_size").fetchone()
            if source.execute("PRAGMA page_size").fetchone() != (size,):
                source.execute("PRAGMA journal_mode = DELETE")
                source.execute(f"PRAGMA page_size = {size}")
                source.execute("VACUUM")
            # Less in one step than the smallest database has, so that the first step is not the last one.
            source.backup(connection, pages=8, progress=step, sleep=0.02)
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    def truncate_log(self) -> None:
        """Whoever reads for long keeps the write-ahead log growing, and nothing else makes it small again."""
        log = Path(f"{self.path}-wal")
        if not log.exists() or log.stat().st_size <= LONGEST_LOG:
            return
        self._checkpoint("TRUNCATE", patience=0)

    def checkpoint(self) -> None:
        """After a great change: otherwise whoever commits next would carry its pages into the database, and wait for that."""
        self._checkpoint("RESTART", patience=FOLDING_PATIENCE)

    def _checkpoint(self, at_the_end: str, *, patience: float) -> None:
        """First most of the work, for which nobody has to wait; then what is left, for which all do, where nobody reads."""
        with self._refusals():
            connection = self._connection(to_write=True)
            connection.execute(f"PRAGMA busy_timeout = {round(patience * 1000)}")
            for how in ("PASSIVE", at_the_end):
                connection.execute(f"PRAGMA wal_checkpoint({how})").fetchone()

    def close(self) -> None:
        """Every thread's connection; the last one to go folds the write-ahead log into the database."""
        while self._connections:
            self._connections.pop().close()
        self._local = threading.local()

    def _connection(self, *, to_write: bool = False) -> sqlite3.Connection:
        """This thread's, to the file that has the name now: whoever put another one in its place meant it."""
        found: sqlite3.Connection | None = getattr(self._local, "connection", None)
        if found is None:
            return self._connect()
        file = database_file.identity(self.path)
        if file is None and to_write:
            raise StoreUnusable(f"{self.path} is gone", hint="put it back, or restore a backup")
        if file in (self._local.file, None) or found.in_transaction:
            return found  # what was moved away can still be read
        self._forget()  # SQLite sees that its file was moved, and leaves alone what lies beside the new one
        return self._connect()

    def _connect(self) -> sqlite3.Connection:
        file = database_file.identity(self.path)
        connection = database_file.connect(self.path, read_only=self.read_only, no_trace=self.no_trace)
        try:
            if self.is_open and not database_file.is_current(connection, self.path):
                raise OtherVersion(
                    f"{self.path} was replaced by one that is empty or older", hint="start again"
                )
        except BaseException:
            connection.close()
            raise
        self._connections.append(connection)
        self._local.connection, self._local.file = connection, file
        return connection

    @contextmanager
    def _refusals(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            if _primary(error) in _LASTING:
                self._forget()
            raise refusal(error, self.path) from error
        except UnicodeDecodeError as error:  # in what SQLite says of a damaged schema
            raise StoreUnusable(f"{self.path} {DAMAGED}") from error

    def _forget(self) -> None:
        """This thread begins with a new connection: what was opened read-only stays so, and damage stays in its cache."""
        found: sqlite3.Connection | None = getattr(self._local, "connection", None)
        if found is not None and not found.in_transaction:
            self._local.connection = None
            self._connections.remove(found)
            found.close()


DAMAGED = "is damaged: restore a backup"
_LASTING = (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)


def _primary(error: sqlite3.Error) -> int | None:
    code = getattr(error, "sqlite_errorcode", None)
    return code & 0xFF if code is not None else None


def refusal(error: sqlite3.Error, path: Path) -> UsersError:
    """What SQLite said, in the words of an operator; a mistake of ours stays what it is."""
    primary = _primary(error)
    if primary in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return Busy(
            "The database is busy, please try again",
            retry_after=2,
            hint=f"another process holds {path}; try again when it is done",
        )
    said = {
        sqlite3.SQLITE_NOTADB: "is not a database",
        sqlite3.SQLITE_CORRUPT: DAMAGED,
        sqlite3.SQLITE_READONLY: "is read-only",
        sqlite3.SQLITE_FULL: "cannot grow: the disk is full",
        sqlite3.SQLITE_IOERR: "cannot be read or written: the disk is full or failing",
        sqlite3.SQLITE_CANTOPEN: "cannot be opened",
        sqlite3.SQLITE_PERM: "may not be opened by this user",
    }.get(primary or -1)
    if primary == sqlite3.SQLITE_CANTOPEN and path.exists() and not os.access(path, os.R_OK):
        return StoreUnusable(f"{path} may not be read by this user", hint="see: usersctl doctor")
    if said is None and str(error).startswith("Could not decode"):
        said = "holds text that is not UTF-8"
    if said is None and str(error).startswith("no such table"):
        said = f"is not whole ({error}): restore a backup"
    if said is None:
        raise error
    return StoreUnusable(f"{path} {said}")


def open_store(
    path: Path, *, create: bool = False, write: bool = True, no_trace: bool = False, why: str = ""
) -> Store:
    """A store on a current database: made if it may be, migrated if it is old and opened for writing."""
    try:
        if create:
            database_file.create_file(path)
        if path.is_dir():
            raise StoreUnusable(
                f"{path} is a folder and no database", hint="name a file, with --db or USERS_DATABASE"
            )
        if not path.is_file():
            raise StoreUnusable(
                f"No database at {path}{f' ({why})' if why else ''}", hint="make one with: usersctl db init"
            )
    except OSError as error:
        raise StoreUnusable(f"{path} cannot be opened: {error.strerror}") from None
    store = Store(path, read_only=not write, no_trace=no_trace)
    try:
        with store._refusals():  # noqa: SLF001 - the same room
            connection = store._connection()  # noqa: SLF001
            if not database_file.is_current(connection, path):
                if not create and database_file.is_empty(connection):
                    # It may be what is left of one that was cut off: only who asks for a new one gets it.
                    raise StoreUnusable(
                        f"{path} is empty",
                        hint="make a new one with: usersctl db init; or restore a backup: usersctl db restore FILE",
                    )
                if not write:
                    raise Outdated(
                        f"{path} is of an older version", hint="bring it up to date with: usersctl db migrate"
                    )
                from usersctl.store.upgrade import upgrade_database  # late: hardly ever needed

                store.migrated = upgrade_database(connection, path)
            store.is_open = True
    except BaseException:
        store.close()
        raise
    return store
