"""The thread that runs the token cleanup when its cron line is due."""

import threading
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

from usersctl.clock import Clock
from usersctl.errors import UsersError
from usersctl.models import Actor
from usersctl.schedule import latest_slot, next_slot
from usersd.log import Log

TRIED_AGAIN_AFTER = timedelta(minutes=5)
LONGEST_SLEEP = 30.0  # seconds: the wall clock may jump, so it is read again now and then
ACTOR = Actor("system", "schedule")


class Scheduler(threading.Thread):
    """Runs `task` once for each slot, and again later if it fails, as without the database. `since`: the moment until which
    another scheduler ran them.

    A clock that is set back runs no slot twice; a clock that jumps ahead runs the skipped slots once. Only after a
    correction by more than a day, as by the first answer of a time server, is the next slot computed again.
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
        super().__init__(name="scheduler", daemon=True)
        self._line = line
        self._task = task
        self._now = now
        self._log = log
        self._seen = now()
        self._undone = next_slot(line, since or self._seen)  # the first of the slots that were not run
        self.due = self._undone  # the moment of the next run, of a slot or once more after a failure
        self._stopping = threading.Event()

    def end(self) -> None:
        self._stopping.set()

    def tick(self) -> float:
        """Runs the slot that is due; returns the seconds to sleep until the next tick."""
        now = self._now()
        if now < self._seen - timedelta(days=1):
            self.due = self._undone = next_slot(self._line, now)
        self._seen = now
        if now >= self.due:
            # The latest of those that are due: another scheduler may have run the first of them.
            slot, undone = latest_slot(self._line, self._undone, now), self._undone
            self.due = self._undone = next_slot(self._line, now)
            try:
                self._task(slot)
            except UsersError as error:
                self._log.event("schedule", failed=error.in_full)
                self.due, self._undone = min(self.due, now + TRIED_AGAIN_AFTER), undone
            except Exception as error:  # noqa: BLE001 - the thread must live to see the next slot
                self._log.error(error)
        left = (self.due - self._now()) / timedelta(seconds=1)
        return min(LONGEST_SLEEP, max(left, 0.05))

    def run(self) -> None:
        while not self._stopping.wait(self.tick()):
            pass
