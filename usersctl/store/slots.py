"""The table of scheduled tasks, with the last slot of each that was run."""

from datetime import datetime, timedelta

from usersctl.clock import stamp
from usersctl.store.statements import Statements

CLEANUP_TASK = "users:cleanup-tokens"
AHEAD = timedelta(days=1)  # a slot further in the future comes from a clock that was wrong


class Slots(Statements):
    def last_slot(self, task: str) -> str | None:
        statement = "SELECT last FROM slots WHERE task = ? AND last <= ?"
        return self._value(str, statement, (task, stamp(self.now + AHEAD)))

    def note_slot(self, task: str, slot: datetime) -> bool:
        """False if this slot, or a later one, was noted already."""
        statement = (
            "INSERT INTO slots (task, last) VALUES (:task, :slot) ON CONFLICT (task) DO UPDATE SET last = excluded.last"
            " WHERE slots.last < excluded.last OR slots.last > :ahead"
        )
        values = {"task": task, "slot": stamp(slot), "ahead": stamp(slot + AHEAD)}
        return self._run(statement, values).rowcount == 1
