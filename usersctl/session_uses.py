"""Uses of sessions: noted in memory at each request, and written together a moment later."""

import threading
from contextlib import suppress
from datetime import datetime, timedelta
from operator import attrgetter

from usersctl.errors import Busy, StoreUnusable
from usersctl.models import Session
from usersctl.store.store import Store


class SessionUses:
    """A commit for each use would make a request wait for the disk. A crash loses the notes of the last seconds.

    A revocation is no note: it is committed at once, and a note does not bring back a session that is gone.
    """

    wait = 2.0  # seconds between the first note and the transaction that writes all of them
    overdue = timedelta(seconds=10)  # by the clock of the service: it was moved, or the machine slept
    batch = 1_000  # notes in one transaction, so that other writers wait for some milliseconds only
    patience = 1.0  # seconds that the thread and the stop wait for other writers

    def __init__(self, store: Store) -> None:
        self.store = store
        self._notes: dict[int, Session] = {}
        self._lock = threading.Lock()
        self._noted = threading.Event()
        self._stopping = threading.Event()
        # One for all transactions, because a thread has a connection of its own.
        self._writer: threading.Thread | None = None
        self._since: datetime | None = None  # the first of the notes, or the last attempt to write them

    def latest(self, session: Session) -> Session:
        """The session with its last use, which may not be written yet."""
        noted = self._notes.get(session.id)
        if noted is None or noted.created_at != session.created_at:
            return session
        return session._replace(last_used_at=noted.last_used_at, expires_at=noted.expires_at)

    def are_overdue(self) -> bool:
        """Whether to write before another session is checked: a session might seem to have ended that was used."""
        since = self._since
        return since is not None and self.store.clock() - since > self.overdue

    def note(self, session: Session) -> None:
        with self._lock:
            earlier = self._notes.get(session.id)
            if earlier is not None and earlier.moved:  # an expiry that waits for its transaction stays moved
                session = session._replace(moved=True)
            self._notes[session.id] = session
            self._since = self._since or self.store.clock()
            # The system may allow no more threads for now: then the next note tries again.
            with suppress(RuntimeError):
                self._start()
                if not self._noted.is_set():
                    self._noted.set()

    def _start(self) -> None:
        if self._writer is None or not self._writer.is_alive():
            writer = threading.Thread(target=self._write_in_time, name="uses", daemon=True)
            writer.start()
            self._writer = writer

    def write(self, *, patience: float | None = None) -> None:
        """Raises Busy or StoreUnusable if the database takes nothing now; the notes are kept then."""
        with self._lock:
            # In the order of the table, so that each of its pages is read and written once.
            notes = sorted(self._notes.values(), key=attrgetter("id"))
        try:
            for first in range(0, len(notes), self.batch):
                self._write(notes[first : first + self.batch], patience)
        finally:
            with self._lock:
                # What is left came since, or could not be written: then a check does not try again at once.
                self._since = self.store.clock() if self._notes else None

    def _write(self, notes: list[Session], patience: float | None) -> None:
        with self.store.write(patience=patience) as tx:
            tx.use_tokens(notes)
        with self._lock:
            for session in notes:
                if self._notes.get(session.id) is session:  # and not a later use
                    del self._notes[session.id]

    def stop(self) -> None:
        """Writes what is noted, because the process ends or forks; a later note starts the thread again."""
        self._stopping.set()
        self._noted.set()
        if self._writer is not None:
            self._writer.join()
        self._stopping.clear()
        with suppress(Busy, StoreUnusable):
            self.write(patience=self.patience)

    def _write_in_time(self) -> None:
        while self._noted.wait() and not self._stopping.wait(self.wait):
            self._noted.clear()
            with suppress(Busy, StoreUnusable):
                self.write(patience=self.patience)
            if self._notes:
                self._noted.set()
