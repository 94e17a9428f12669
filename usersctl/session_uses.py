"""Uses of sessions: noted in memory at each request, and written together a moment later."""

import threading
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from usersctl.errors import Busy, StoreUnusable
from usersctl.models import Session
from usersctl.store.store import Store


@dataclass
class SessionUses:
    """A commit for each use would make a request wait for the disk. A crash loses the notes of the last seconds.

    A revocation is no note: it is committed at once, and a note does not bring back a session that is gone.
    """

    store: Store
    wait: float = 2.0  # seconds between the first note and the transaction that writes all of them
    overdue: timedelta = timedelta(
        seconds=10
    )  # by the clock of the service: it was moved, or the machine slept
    batch: int = 500  # notes in one transaction, so that other writers wait for some milliseconds only
    _notes: dict[int, Session] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _timer: threading.Timer | None = None
    _since: datetime | None = None  # the first of the notes

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
            self._notes[session.id] = session
            self._since = self._since or self.store.clock()
            if self._timer is None:
                self._start_timer()

    def write(self, *, patience: float | None = None) -> None:
        """Raises Busy or StoreUnusable if the database takes nothing now; the notes are kept then."""
        notes = list(self._notes.values())
        for first in range(0, len(notes), self.batch):
            some = notes[first : first + self.batch]
            with self.store.write(patience=patience) as tx:
                for session in some:
                    tx.use_token(session)
            with self._lock:
                for session in some:
                    if self._notes.get(session.id) is session:  # and not a later use
                        del self._notes[session.id]
                if not self._notes:
                    self._since = None

    def stop(self) -> None:
        """Writes what is noted, because the process ends."""
        with self._lock:
            timer = self._timer
        if timer is not None:
            timer.cancel()
            timer.join()
        with suppress(Busy, StoreUnusable):
            self.write()

    def _start_timer(self) -> None:
        self._timer = threading.Timer(self.wait, self._write_in_time)
        self._timer.daemon = True
        self._timer.start()

    def _write_in_time(self) -> None:
        with suppress(Busy, StoreUnusable):
            self.write()
        with self._lock:
            self._timer = None
            if self._notes:
                self._start_timer()
