"""Store: the open database, for many threads and processes at once, on SQLite or on PostgreSQL.

Four verbs: `read` a snapshot, `glance` at one statement, `write` all or nothing, and `write` without a commit to try.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from datetime import datetime
from pathlib import Path
from typing import Any

from usersctl.clock import Clock
from usersctl.store.audit import Told
from usersctl.store.conninfo import Database, file_of, shown
from usersctl.store.database_file import Migrated
from usersctl.store.locks import Locks
from usersctl.store.transaction import Transaction

Progress = Callable[[int, int], object]  # is called with what is done, and the total


class EndOfThread:
    """Closes the connection of a thread that has ended: some servers use a thread for each request."""

    def __init__(self, connection: Any, connections: set[Any]) -> None:
        self._connection = connection
        self._connections = connections

    def __del__(self) -> None:
        self._connections.discard(self._connection)
        self._connection.close()


class Store(ABC):
    listener: Callable[[Transaction, Told], object] | None = None  # called in each change
    migrated: Migrated | None = None  # what opening it did to an older database
    made = False  # the database, by opening it
    is_open = False  # and the database is a current one

    def __init__(self, database: Database, *, read_only: bool, clock: Clock) -> None:
        self.database = database
        self.read_only = read_only
        self.clock = clock

    @property
    def path(self) -> Path:
        """Raises StoreUnusable if the database is no file."""
        return file_of(self.database)

    @property
    def name(self) -> str:
        """For messages."""
        return shown(self.database)

    @abstractmethod
    def read(self) -> AbstractContextManager[Transaction]:
        """A snapshot of the database, for several questions."""

    @abstractmethod
    def glance(self) -> AbstractContextManager[Transaction]:
        """For a single statement, which needs no snapshot."""

    @abstractmethod
    def write(
        self, *, patience: float | None = None, commit: bool = True, alone: bool = True
    ) -> AbstractContextManager[Transaction]:
        """All changes or none; Busy if other writers take longer than `patience` (seconds; without it
        database_file.BUSY_SECONDS).

        Without `commit` the changes are rolled back at the end, to learn what would happen. `alone`: no other writer is
        at work meanwhile. Without it other writers are that are not alone, either, where the engine can: for a few hot
        places that add rows or change their own, and add nothing to the audit trail.
        """

    @abstractmethod
    def within(self, seconds: float) -> AbstractContextManager[None]:
        """Interrupts statements that take longer, with a TimeoutError."""

    @abstractmethod
    def is_current(self) -> bool:
        """Whether the database still has the version that this program knows."""

    @abstractmethod
    def check_writable(self) -> None:
        """Raises StoreUnusable if nothing could be written now, and Busy while another writer is at work."""

    @abstractmethod
    def copy(self, target: Path, progress: Progress = lambda _done, _total: None) -> dict[str, int]:
        """Copies the database as it is at this moment into a new file. Returns how many rows it has, by table."""

    @abstractmethod
    def locks(self) -> AbstractContextManager[Locks]:
        """Locks of one holder, which end with the block."""

    @abstractmethod
    def copy_aside(self, now: datetime, folder: Path) -> Path:
        """Copies it to a new file that has the time in its name: beside the database, or if that is no file, in `folder`."""

    @abstractmethod
    def take_over(self, other: Any, *, first: Callable[[], object], progress: Progress) -> None:
        """Replaces the content by that of a file, in one transaction: other processes see it at their next statement.

        `first` is called when no other process can write any more and nothing is replaced yet; it may still change `other`.
        """

    def whole(self, tx: Any) -> AbstractContextManager[None]:  # noqa: ARG002
        """For a part of a transaction that takes long, because it is about the whole content."""
        return nullcontext()

    def check_movable(self) -> None:  # noqa: B027
        """Raises StoreUnusable if this user could not mark it as moved."""

    @abstractmethod
    def mark_as_moved(self, tx: Any, moved_to: str) -> None:
        """From the end of this transaction on, every process refuses to use this database."""

    @abstractmethod
    def close(self) -> None:
        """Closes the connections of all threads."""

    def signing_key(self, name: str) -> bytes:
        """Made at first use, and read at every other: a restore or another process may have replaced it."""
        with self.glance() as tx:
            key = tx.signing_key(name)
        if key is not None:
            return key
        with self.write() as tx:
            return tx.make_signing_key(name)

    def rest(self) -> None:  # noqa: B027
        """This thread will wait for something else: a server takes only so many connections."""

    # --- what a file needs, and a server does by itself ---

    def truncate_log(self) -> None:  # noqa: B027
        """Cuts a write-ahead log that grew while a reader took long; nothing else makes it small again."""

    def checkpoint(self, at_the_end: str = "RESTART", *, patience: float = 0.05) -> None:  # noqa: B027
        """For use after a great change: otherwise the next commit would have to carry its pages into the database."""

    @contextmanager
    def many_changes(self) -> Iterator[None]:
        """For a thread that changes many rows, and calls checkpoint() after each transaction."""
        yield

    def cache_more(self) -> None:  # noqa: B027
        """For the thread of a daemon that checks all sessions."""
