"""Store: the open database, for many threads and processes at once, on SQLite or on PostgreSQL.

Four verbs: `read` a snapshot, `glance` at one statement, `write` all or nothing, and `write` without a commit to try.
"""

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from datetime import datetime
from pathlib import Path
from typing import Any, ClassVar

from usersctl.clock import Clock
from usersctl.errors import Damaged, OtherVersion, Outdated, ServerAway, StoreUnusable, UsersError
from usersctl.store.audit import Told
from usersctl.store.conninfo import Database, file_of, shown
from usersctl.store.database_file import VERSION, Migrated
from usersctl.store.locks import Locks
from usersctl.store.progress import Progress, unwatched
from usersctl.store.transaction import Transaction

# After one writer has waited in vain, the others do not wait: their threads are needed by readers.
PATIENCE_WHILE_HELD = 0.05  # seconds


class Store(ABC):
    """One connection for each thread."""

    transaction: ClassVar[type[Transaction]] = Transaction
    foreign_errors: ClassVar[tuple[type[Exception], ...]]  # of the driver, which `in_words` translates
    listener: Callable[[Transaction, Told], object] | None = None  # called in each change
    migrated: Migrated | None = None  # what opening it did to an older database
    made = False  # the database, by opening it
    is_open = False  # and the database is a current one
    opens_late = False  # with its first connection

    def __init__(self, database: Database, *, read_only: bool, clock: Clock) -> None:
        self.database = database
        self.read_only = read_only
        self.clock = clock
        self._local = threading.local()
        self._connections: set[Any] = set()
        self._held = False  # a writer has waited in vain for another process, and none has written since

    @property
    def path(self) -> Path:
        """Raises StoreUnusable if the database is no file."""
        return file_of(self.database)

    @property
    def name(self) -> str:
        """For messages."""
        return shown(self.database)

    # --- opening ---

    def open(self, *, create: bool = False, may_be_away: bool = False) -> None:
        """`create` makes a missing database. An older one is upgraded, unless it is opened for reading."""
        try:
            self._bring_up_to_date(create=create)
            self.is_open, self.opens_late = True, False
        except ServerAway:
            self.close()
            if not may_be_away:
                raise
            self.opens_late = True
        except BaseException:
            self.close()
            raise

    def _bring_up_to_date(self, *, create: bool) -> None:
        with self._errors_in_words():
            connection = self._connection()
            version = self._version_on(connection)
            if version == VERSION:
                return
            if version is None and not create:
                # It may be the rest of a database that was cut off: only a request for a new one uses it.
                hint = "make a new one with: usersctl db init; or restore a backup: usersctl db restore FILE"
                raise StoreUnusable(f"{self.name} is empty", hint=hint)
            if self.read_only:
                raise self._outdated(version)
            self._upgrade(connection)

    def _outdated(self, version: int | None) -> Outdated:
        made = f"version {version}, this usersctl knows {VERSION}"
        if not version:
            made = "an older deployment of this service"
        return Outdated(f"{self.name} is of {made}", hint="bring it up to date with: usersctl db migrate")

    @abstractmethod
    def _version_on(self, connection: Any) -> int | None:
        """None for an empty database, 0 for one of a deployment from before versions; raises for one that is newer, was moved,
        or belongs to another program."""

    @abstractmethod
    def _upgrade(self, connection: Any) -> None:
        """Makes an empty or older database a current one."""

    def is_current(self) -> bool:
        """Whether the database still has the version that this program knows."""
        with self._errors_in_words():
            return self._version_on(self._connection()) == VERSION

    def _check_version(self, connection: Any) -> None:
        """Another process may have replaced, moved or upgraded the database since it was opened."""
        if self.is_open and self._version_on(connection) != VERSION:
            problem = f"{self.name} was replaced by one that is empty or older"
            raise OtherVersion(problem, hint="start again")

    # --- the verbs ---

    @abstractmethod
    def read(self) -> AbstractContextManager[Transaction]:
        """A snapshot of the database, for several questions."""

    def glance(self) -> AbstractContextManager[Transaction]:
        """For a single statement, which needs no snapshot."""
        return Glance(self)

    def together(self) -> AbstractContextManager[object]:
        """This thread's glances within the block may be at one moment, if that is quicker."""
        return nullcontext()

    def begun(self) -> Transaction:
        return self.transaction(self._connection(), self.clock)

    @contextmanager
    def write(
        self, *, patience: float | None = None, commit: bool = True, alone: bool = True
    ) -> Iterator[Transaction]:
        """All changes or none; Busy if other writers take longer than `patience` (seconds; without it
        database_file.BUSY_SECONDS).

        Without `commit` the changes are rolled back at the end, to learn what would happen. `alone`: no other writer is
        at work meanwhile. Those that need not be alone may be at work together, where the engine can: a few hot places
        that add rows or change their own, and add nothing to the audit trail.
        """
        with self._writing(patience, commit=commit, alone=alone) as connection:
            tx = self.transaction(connection, self.clock)
            tx.listener = self.listener
            yield tx
            tx.write_end_of_trail()
        if commit:
            for callback in tx.callbacks:
                callback()

    @abstractmethod
    def _writing(self, patience: float | None, *, commit: bool, alone: bool) -> AbstractContextManager[Any]:
        """A connection in the transaction of `write`, which ends with the block."""

    @abstractmethod
    def within(self, seconds: float) -> AbstractContextManager[None]:
        """Interrupts statements that take longer, with a TimeoutError."""

    def check_writable(self) -> None:
        """Raises StoreUnusable if nothing could be written now, and Busy while another writer is at work."""
        with self.write(patience=0, commit=False) as tx:
            tx.change_nothing()

    def damage(self) -> Damaged | None:
        """What a quick look at a file finds. A damaged one holds what it cannot hold, which raises anything."""
        return None

    @abstractmethod
    def locks(self) -> AbstractContextManager[Locks]:
        """Locks of one holder, which end with the block."""

    def signing_key(self, name: str) -> bytes:
        """Made at first use, and read at every other: a restore or another process may have replaced it."""
        with self.glance() as tx:
            key = tx.signing_key(name)
        if key is not None:
            return key
        with self.write() as tx:
            return tx.make_signing_key(name)

    # --- the whole content ---

    @abstractmethod
    def copy(
        self, target: Path, progress: Progress = unwatched, *, owner: Path | None = None
    ) -> dict[str, int]:
        """Copies the database as it is at this moment into a new file. Returns how many rows it has, by table.

        `owner`: if root makes the copy, it belongs to the owner of this file or folder. Without that it stays with its maker.
        """

    @abstractmethod
    def copy_aside(self, now: datetime, folder: Path) -> Path:
        """Copies it to a new file that has the time in its name: beside the database, or if that is no file, in `folder`."""

    @abstractmethod
    def take_over(self, other: Any, *, first: Callable[[], object], progress: Progress) -> None:
        """Replaces the content by that of a file, in one transaction: other processes see it at their next statement.

        `first` is called when no other process can write any more and nothing is replaced yet; it may still change `other`.
        """

    def whole(self) -> None:  # noqa: B027
        """The rest of this transaction, with its commit, may take long, because it is about the whole content."""

    def check_movable(self) -> None:  # noqa: B027
        """Raises StoreUnusable if this user could not mark it as moved."""

    def mark_as_moved(self, tx: Transaction, moved_to: str) -> None:
        """From the end of this transaction on, every process refuses to use this database."""
        tx.mark_as_moved(moved_to)
        tx.after_commit(self._forget)

    # --- connections ---

    @abstractmethod
    def _connection(self) -> Any:
        """This thread's."""

    def _keep(self, connection: Any) -> None:
        """As this thread's."""
        self._connections.add(connection)
        self._local.connection = connection
        self._local.end = EndOfThread(connection, self._connections)

    def _forget(self) -> None:
        """Closes this thread's connection: the next statement opens another one."""
        connection = self._local.__dict__.pop("connection", None)
        if connection is not None:
            self._connections.discard(connection)
            connection.close()

    def close(self) -> None:
        """Closes the connections of all threads."""
        self._local = threading.local()  # a thread that goes on opens a connection of its own
        while self._connections:
            self._connections.pop().close()

    def rest(self) -> None:  # noqa: B027
        """This thread will wait for something else: it keeps neither a connection to a server nor the pages of a file."""

    @contextmanager
    def _errors_in_words(self) -> Iterator[None]:
        try:
            yield
        except self.foreign_errors as error:
            raise self.in_words(error) from error

    @abstractmethod
    def in_words(self, error: Any) -> UsersError:
        """An error of the driver in words for an operator; raises one that is a fault of this program."""

    # --- what a file needs, and a server does by itself ---

    def truncate_log(self) -> None:  # noqa: B027
        """Cuts a write-ahead log that grew while a reader took long; nothing else makes it small again."""

    def checkpoint(self) -> None:  # noqa: B027
        """For use after a great change: otherwise the next commit would have to carry its pages into the database."""

    @contextmanager
    def many_changes(self) -> Iterator[None]:
        """For a thread that changes many rows, and calls checkpoint() after each transaction."""
        yield

    def cache_more(self) -> None:  # noqa: B027
        """For the thread of a daemon that checks all sessions."""


class Glance:
    """A context manager of a class, because one of a generator costs half as much as the statement of a session check."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def __enter__(self) -> Transaction:
        try:
            return self._store.begun()
        except self._store.foreign_errors as error:
            raise self._store.in_words(error) from error

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if isinstance(error, self._store.foreign_errors):
            raise self._store.in_words(error) from error


class EndOfThread:
    """Closes the connection of a thread that has ended: some servers use a thread for each request."""

    def __init__(self, connection: Any, connections: set[Any]) -> None:
        self._connection = connection
        self._connections = connections

    def __del__(self) -> None:
        self._connections.discard(self._connection)
        self._connection.close()
