"""The thread that runs the token cleanup when its cron line is due."""

import threading
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

from usersctl.clock import Clock
from usersctl.errors import UsersError
from usersctl.models import Actor
from usersctl.schedule import next_slot
from usersd.log import Log

# The wall clock may jump, so it is looked at now and then instead of being trusted for a whole night.
LOOK_EVERY = 30.0
ACTOR = Actor("system", "schedule")


class Scheduler:
    """Runs `task` once for each slot, and sleeps between looks. `since`: who did the same before us was at it until then.

    A clock that is set back does not run a slot again, and one that jumps ahead runs what it jumped over once. Only of
    one that was wrong by more than a day, as before the first answer of a time server, are slots counted anew.
    """

    def __init__(
        self,
        line: str,
        task: Callable[[datetime], Any],
        *,
        now: Clock,
        log: Log,
        since: datetime | None = None,
    ) -> None:
        self._line = line
        self._task = task
        self._now = now
        self._log = log
        self._seen = now()
        self._due = next_slot(line, since or self._seen)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._work, name="scheduler", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(2)

    def is_alive(self) -> bool:
        return self._thread.is_alive()

    @property
    def due(self) -> datetime:
        return self._due

    def look(self) -> float:
        """Runs what is due; answers how many seconds to sleep until the next look."""
        now = self._now()
        if now < self._seen - timedelta(days=1):
            self._due = next_slot(self._line, now)
        self._seen = now
        if now >= self._due:
            slot, self._due = self._due, next_slot(self._line, now)
            try:
                self._task(slot)
            except UsersError as error:
                self._log.event("schedule", failed=str(error))
            except Exception as error:  # noqa: BLE001 - the thread must live to see the next slot
                self._log.error(error)
        left = (self._due - self._now()) / timedelta(seconds=1)
        return min(LOOK_EVERY, max(left, 0.05))

    def _work(self) -> None:
        while not self._stop.wait(self.look()):
            pass
