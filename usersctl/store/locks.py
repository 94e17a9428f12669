"""Locks that all processes on a database see: that of the leader, and one for each email or event that is being sent."""

from threading import Event
from typing import Protocol

LEADER = 0  # the number of the leader's lock; that of an email is its id


class Locks(Protocol):
    """Those of one holder, of which a thread is one at a time. They are free when it is done, and when its process dies."""

    look_every: float  # seconds between two looks of the sender at the outbox

    def take(self, number: int) -> bool:
        """False if another holder has it."""

    def is_taken(self, number: int) -> bool:
        """Whether another holder has it."""

    def hear(self, stopping: Event, seconds: float) -> bool:
        """Waits so long, and returns True at once when another process queues an email or event, if that can be heard.
        Raises StoreUnusable if the locks were lost."""
