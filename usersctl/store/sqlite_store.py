"""The store on a file of SQLite, with its errors in words for an operator."""

import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from datetime import datetime
from pathlib import Path

from usersctl.clock import Clock
from usersctl.errors import Busy, Damaged, Referred, StoreUnusable, UsersError
from usersctl.store import database_file
from usersctl.store.lock_file import FileLocks
from usersctl.store.progress import Progress, unwatched
from usersctl.store.store import PATIENCE_WHILE_HELD, Store
from usersctl.store.transaction import Transaction

TRIED_EVERY = 0.002  # seconds, while another process writes
CARRY_PATIENCE = 0.05  # seconds
# Pages of a cleanup in the log, from which it begins anew: with those of one more transaction they would come near the
# number that the commit of a login carries.
RESTARTED_FROM = 2_500


class SQLiteStore(Store):
    """One SQLite file. Readers never wait: they and the one writer do not meet."""

    foreign_errors = (sqlite3.Error, UnicodeDecodeError)  # the latter in the text of a damaged database
    longest_log = 32 * 1024 * 1024  # bytes of the write-ahead log; truncate_log() cuts a longer one
    least_space = 1024 * 1024  # bytes on the disk, below which it counts as full

    def __init__(self, path: Path, *, read_only: bool, no_trace: bool, why: str, clock: Clock) -> None:
        super().__init__(path, read_only=read_only, clock=clock)
        self._path = path
        self._name = os.fspath(path)
        self.no_trace = no_trace
        self._why = why
        # Threads of one process queue here, which is fair and quick; SQLite's own waiting is by polling.
        self._queue = threading.Lock()

    def _bring_up_to_date(self, *, create: bool) -> None:
        path = self._path
        try:
            if create:
                database_file.create_file(path)
            if path.is_dir():
                hint = "name a file, with --db or USERS_DATABASE"
                raise StoreUnusable(f"{path} is a folder and no database", hint=hint)
            if path.is_symlink() and not path.exists():
                hint = "its disk may be missing; else remove the link"
                raise StoreUnusable(f"{path} is a link to {path.readlink()}, where no file is", hint=hint)
            if path.exists() and not path.is_file():
                reason = "is a pipe or a device and no database"
                raise StoreUnusable(f"{path} {reason}", hint=database_file.NAME_ANOTHER)
            if not path.is_file():
                origin = self._why and f" ({self._why})"
                raise StoreUnusable(f"No database at {path}{origin}", hint="make one with: usersctl db init")
        except PermissionError as error:
            hint = "run it as the owner of its folder, or as root"
            raise StoreUnusable(f"{path} cannot be opened: {error.strerror}", hint=hint) from None
        except OSError as error:
            raise StoreUnusable(f"{path} cannot be opened: {error.strerror}") from None
        super()._bring_up_to_date(create=create)

    def _version_on(self, connection: sqlite3.Connection) -> int | None:
        return database_file.version_of(connection, self._path)

    def _upgrade(self, connection: sqlite3.Connection) -> None:
        from usersctl.store.upgrade import upgrade_database  # late: hardly ever needed

        try:
            self.made, self.migrated = upgrade_database(connection, self._path)
        except sqlite3.IntegrityError as error:
            if self._version_on(connection):  # rows that our own tables held do not fit into them
                raise damaged(self._path) from error
            raise

    @contextmanager
    def together(self) -> Iterator[None]:
        """In one snapshot: to begin and to end one costs as much as the statement of a session check."""
        try:
            with suppress(Exception):  # each glance will raise it, for its own request
                connection = self._connection()
                self._local.together = Transaction(connection, self.clock)
                connection.execute("BEGIN")
            yield
        finally:
            self._part()

    def begun(self) -> Transaction:
        return getattr(self._local, "together", None) or super().begun()

    def _part(self) -> None:
        """Ends the snapshot of `together`: with its block, before another transaction of this thread, or after an error."""
        shared = self._local.__dict__.pop("together", None)
        if shared is not None and self._local.connection.in_transaction:
            self._local.connection.execute("ROLLBACK")

    @contextmanager
    def read(self) -> Iterator[Transaction]:
        self._part()
        with self._errors_in_words():
            connection = self._connection()
            connection.execute("BEGIN")
            try:
                yield Transaction(connection, self.clock)
            finally:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")

    @contextmanager
    def within(self, seconds: float) -> Iterator[None]:
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

    def damage(self) -> Damaged | None:
        try:
            with self.read() as tx:
                return damaged(self._path) if tx.broken_page() else None
        except Damaged as error:
            return error
        except (UsersError, sqlite3.Error):
            return None

    def check_writable(self) -> None:
        super().check_writable()
        disk = os.statvfs(self._path.parent)
        if disk.f_bavail * disk.f_frsize < self.least_space:
            raise StoreUnusable(f"{self._path} cannot grow: the disk is full", hint=MAKE_ROOM)

    @contextmanager
    def _writing(
        self,
        patience: float | None,
        *,
        commit: bool,
        alone: bool,  # noqa: ARG002 - a writer always is
    ) -> Iterator[sqlite3.Connection]:
        """Every transaction begins as a writer, because SQLite may refuse to turn a reader into one."""
        self._part()
        if patience is None:
            patience = database_file.BUSY_SECONDS
        waits_fully = patience >= database_file.BUSY_SECONDS and not self._held
        if self._held:
            patience = min(patience, PATIENCE_WHILE_HELD)
        until = time.monotonic() + patience
        if not self._queue.acquire(timeout=patience):
            self._held |= waits_fully
            raise Busy("The database is busy, please try again", retry_after=2)
        try:
            with self._errors_in_words():
                connection = self._connection(to_write=True)
                # The time that was spent on waiting for threads counts when it waits for processes.
                left = max(0, until - time.monotonic())
                if self._held:  # since this thread began to wait
                    left = min(left, PATIENCE_WHILE_HELD)
                try:
                    self._begin_to_write(connection, left)
                except sqlite3.OperationalError:
                    self._held |= waits_fully
                    raise
                self._held = False
                try:
                    self._check_version(connection)
                    yield connection
                    connection.execute("COMMIT" if commit else "ROLLBACK")
                except BaseException:
                    if connection.in_transaction:
                        connection.execute("ROLLBACK")
                    raise
        finally:
            self._queue.release()

    def _begin_to_write(self, connection: sqlite3.Connection, patience: float) -> None:
        """SQLite sleeps longer from try to try, and so misses the moments between the transactions of a long work."""
        until = time.monotonic() + patience
        self._set_patience(connection, 0)
        try:
            while True:
                try:
                    connection.execute("BEGIN IMMEDIATE")
                except sqlite3.OperationalError as error:
                    if database_file.primary_code(error) != sqlite3.SQLITE_BUSY or time.monotonic() >= until:
                        raise
                else:
                    return
                time.sleep(TRIED_EVERY)
        finally:
            self._set_patience(connection, database_file.BUSY_SECONDS)

    def locks(self) -> closing[FileLocks]:
        return closing(FileLocks(self._path))

    def copy(
        self, target: Path, progress: Progress = unwatched, *, owner: Path | None = None
    ) -> dict[str, int]:
        """While others write on."""
        with self.read() as tx:
            counts = tx.counts()
            database_file.copy(self._connection(), target, progress, owner=owner)
        return counts

    def copy_aside(self, now: datetime, folder: Path) -> Path:  # noqa: ARG002
        return database_file.copy_aside(self._path, now)

    def check_movable(self) -> None:
        if os.geteuid() not in (0, self._path.stat().st_uid):
            raise StoreUnusable(
                f"{self._path} belongs to another user", hint="run this as its owner, or as root"
            )

    def mark_as_moved(self, tx: Transaction, moved_to: str) -> None:
        super().mark_as_moved(tx, moved_to)
        # Each request looks at the mode of the file, and at the mark when that has changed.
        tx.after_commit(lambda: self._path.chmod(self._path.stat().st_mode & 0o440))

    def take_over(self, other: "SQLiteStore", *, first: Callable[[], object], progress: Progress) -> None:
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

        with self._queue, self._errors_in_words():
            connection = self._connection(to_write=True)
            other.replace_pages_of(connection, step)
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    def replace_pages_of(self, target: sqlite3.Connection, progress: Callable[[int, int, int], None]) -> None:
        """Puts the pages of this database in the place of those of `target`, in one transaction."""
        source = self._connection()
        (size,) = target.execute("PRAGMA page_size").fetchone()
        if source.execute("PRAGMA page_size").fetchone() != (size,):
            source.execute("PRAGMA journal_mode = DELETE")
            source.execute(f"PRAGMA page_size = {size}")
            source.execute("VACUUM")
        # Fewer pages in a step than the smallest database has, so that the first step is not the last one.
        source.backup(target, pages=8, progress=progress, sleep=0.02)

    def truncate_log(self) -> None:
        log = Path(f"{self._path}-wal")
        if log.exists() and log.stat().st_size > self.longest_log:
            self._carry_log("TRUNCATE")

    def checkpoint(self) -> None:
        """The log begins anew only if it is long: with a login meanwhile, that is a second wait for the disk."""
        self._carry_log("RESTART", longer_than=RESTARTED_FROM)

    def _carry_log(self, at_the_end: str, *, longer_than: int = -1) -> None:
        """The end of the work waits for readers, and keeps writers waiting meanwhile: so only for a moment, which is longer
        than the snapshot of checks together."""
        with self._errors_in_words():
            connection = self._connection(to_write=True)
            self._set_patience(connection, CARRY_PATIENCE)
            _, pages, _ = connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
            if pages > longer_than:
                connection.execute(f"PRAGMA wal_checkpoint({at_the_end})").fetchone()

    @contextmanager
    def many_changes(self) -> Iterator[None]:
        """The larger cache holds all pages of a transaction; else some are written before the commit, and read again. A
        power cut may undo the last transactions until another one, outside of this, is committed.
        """
        meanwhile = {"wal_autocheckpoint": 0, "cache_size": -16384, "synchronous": 1}  # 1: NORMAL
        with self._errors_in_words():
            connection = self._connection(to_write=True)
            before = {name: connection.execute(f"PRAGMA {name}").fetchone()[0] for name in meanwhile}
            _set(connection, meanwhile)
        try:
            yield
        finally:
            if connection in self._connections:  # an error may have closed it
                with self._errors_in_words():
                    _set(connection, before)

    def rest(self) -> None:
        """Many threads wait for providers. Each would keep two megabytes of a larger file in its cache."""
        connection: sqlite3.Connection | None = getattr(self._local, "connection", None)
        if connection is not None:
            connection.execute("PRAGMA shrink_memory")

    def cache_more(self) -> None:
        """The cache holds what checks read of some 20,000 users."""
        with self._errors_in_words():
            self._connection().execute("PRAGMA cache_size = -16384")

    def _set_patience(self, connection: sqlite3.Connection, seconds: float) -> None:
        milliseconds = round(seconds * 1000)
        if milliseconds != self._local.patience:
            connection.execute(f"PRAGMA busy_timeout = {milliseconds}")
            self._local.patience = milliseconds

    def close(self) -> None:
        """The last connection carries the write-ahead log into the database.

        A background thread that did not stop in time may be amid a change, and closing its connection then would crash.
        """
        waited = self._queue.acquire(timeout=database_file.BUSY_SECONDS)
        try:
            super().close()
        finally:
            if waited:
                self._queue.release()

    def _connection(self, *, to_write: bool = False) -> sqlite3.Connection:
        """This thread's connection, to the file that has the name now: an operator may have replaced the file."""
        connection: sqlite3.Connection | None = getattr(self._local, "connection", None)
        if connection is not None:
            file = database_file.identity(self._name)
            if file is None and to_write:
                raise StoreUnusable(f"{self._path} is gone", hint="put it back, or restore a backup")
            if file in (self._local.file, None) or connection.in_transaction:
                return connection  # a file that was moved away can still be read
            self._forget()  # SQLite sees that its file was moved, and leaves the files beside the new one alone
        return self._connect()

    def _connect(self) -> sqlite3.Connection:
        file = database_file.identity(self._name)
        connection = database_file.connect(self._path, read_only=self.read_only, no_trace=self.no_trace)
        try:
            self._check_version(connection)
        except BaseException:
            connection.close()
            raise
        self._keep(connection)
        self._local.file, self._local.patience = file, None
        return connection

    def in_words(self, error: sqlite3.Error | UnicodeDecodeError) -> UsersError:
        self._part()
        if isinstance(error, UnicodeDecodeError):  # in SQLite's message about a damaged schema
            return damaged(self._path)
        if database_file.primary_code(error) in _LASTING:
            self._forget()
        if getattr(error, "sqlite_errorcode", 0) == sqlite3.SQLITE_CONSTRAINT_FOREIGNKEY:  # not of the schema
            return Referred()
        return store_error(error, self._path)

    def _forget(self) -> None:
        """A connection stays read-only if it was opened so, and keeps damage in its cache. That of a transaction stays."""
        connection: sqlite3.Connection | None = getattr(self._local, "connection", None)
        if connection is not None and not connection.in_transaction:
            super()._forget()


def _set(connection: sqlite3.Connection, pragmas: dict[str, int]) -> None:
    for name, value in pragmas.items():
        connection.execute(f"PRAGMA {name} = {value}")


MAKE_ROOM = "make room on that disk, and try again; see: usersctl doctor"
_LASTING = (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
_PROBLEMS = {
    sqlite3.SQLITE_NOTADB: "is not a database",
    sqlite3.SQLITE_READONLY: "is read-only",
    sqlite3.SQLITE_FULL: "cannot grow: the disk is full",
    sqlite3.SQLITE_IOERR: "cannot be read or written: the disk is full or failing",
    sqlite3.SQLITE_CANTOPEN: "cannot be opened",
    sqlite3.SQLITE_PERM: "may not be opened by this user",
}
NOT_UTF8 = -1  # beside the codes of SQLite, which has none for it
_HINTS = {
    NOT_UTF8: "which: usersctl db verify",
    sqlite3.SQLITE_READONLY: "this user has to be able to write the file and its folder; see: usersctl doctor",
    sqlite3.SQLITE_FULL: MAKE_ROOM,
    sqlite3.SQLITE_IOERR: MAKE_ROOM,
}
# The last three come of the index of searches.
_NOT_WHOLE = (
    "no such table",
    "no such column",
    "vtable constructor failed",
    "invalid fts5 file format",
    "SQL logic error",
)


def damaged(path: Path, how: str = "is damaged") -> Damaged:
    return Damaged(f"{path} {how}", hint="restore a backup: usersctl db restore FILE")


def store_error(error: sqlite3.Error, path: Path) -> UsersError:
    """SQLite's error in words for an operator; raises an error that is a fault of this program."""
    primary = database_file.primary_code(error)
    if primary in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        hint = f"another process holds {path}; try again when it is done"
        return Busy("The database is busy, please try again", retry_after=2, hint=hint)
    if primary == sqlite3.SQLITE_CANTOPEN and path.exists():
        closed = database_file.closed_to_this_user(path)
        if closed is not None:
            return StoreUnusable(f"{closed} may not be read by this user", hint="see: usersctl doctor")
        if not os.access(path.parent, os.W_OK):  # SQLite cannot make its files beside it
            primary = sqlite3.SQLITE_READONLY
    if primary == sqlite3.SQLITE_CORRUPT:
        return damaged(path)
    if str(error).startswith(_NOT_WHOLE) or "has no column named" in str(error):
        return damaged(path, f"is not whole ({error})")
    if getattr(error, "sqlite_errorcode", 0) == sqlite3.SQLITE_CONSTRAINT_TRIGGER:  # not one of the schema
        reason = f"has a trigger that refuses this ({error})"
        return StoreUnusable(f"{path} {reason}", hint="see: usersctl db verify")
    problem = _PROBLEMS.get(primary)
    if problem is None and str(error).startswith("Could not decode"):
        problem, primary = "holds text that is not UTF-8", NOT_UTF8
    if problem is None:
        raise error
    return StoreUnusable(f"{path} {problem}", hint=_HINTS.get(primary))
