"""What emails and events for webhooks share: they wait in the outbox until one worker claims, tries, and marks them."""

import random
import time
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

from usersctl.clock import moment, stamp
from usersctl.errors import Busy, StoreUnusable
from usersctl.models import EmailState, QueuedEmail
from usersctl.named import NamedTuple
from usersctl.store.lock_file import HAS_BYTE_LOCKS
from usersctl.store.locks import Locks
from usersctl.store.store import Store
from usersctl.store.transaction import Transaction

# For so long no worker looks at an email that one has taken. Then its lock tells whether that worker lives; where there
# are no such locks, the lease is longer than one attempt can take.
LEASE = timedelta(seconds=3) if HAS_BYTE_LOCKS else timedelta(minutes=2)
NOTED_WITHIN = 60.0  # seconds
FIRST_DELAY, LONGEST_DELAY = timedelta(seconds=5), timedelta(minutes=15)
# No daemon puts anything off for so long: what is due later was written by a clock that was wrong.
LATEST = 2 * LONGEST_DELAY


class Attempt(NamedTuple):
    """What became of one email or event, for the log. Never the link."""

    email: QueuedEmail
    state: EmailState
    message: str

    def for_log(self) -> tuple[str, dict[str, Any]]:
        """The name of the line, and its fields."""
        row = self.email
        if row.webhook:
            name = "webhook"
            about = {
                "webhook": row.webhook,
                "id": row.message_id,
                "type": row.kind,
                "user": row.subject or None,
            }
        else:
            name = "email"
            about = {"id": row.id, "kind": row.kind, "user": row.user_id}
        return name, {"state": self.state, **about, "attempt": row.attempts, "detail": self.message}


def first_due(store: Store, webhook: str = "") -> tuple[str | None, datetime]:
    """When the next email, or event for a webhook, is due, and the present moment."""
    with store.glance() as tx:
        due, now, last = tx.next_email_due(webhook), tx.now, tx.last_email_due(webhook)
    latest = stamp(now + LATEST)
    # Others that are due sooner tell nothing: a pause of their receiver, by the same clock, may keep them back.
    if last is not None and last > latest:
        with store.write() as tx:
            tx.hasten_emails(webhook, latest)
        due = min(due or last, stamp(now))
    return due, now


def seconds_until(store: Store, at_most: float, webhook: str = "") -> float:
    due, now = first_due(store, webhook)
    if due is None:
        return at_most
    return min(at_most, max(0.0, (moment(due) - now) / timedelta(seconds=1)))


def noted(store: Store, change: Callable[[Transaction], Any]) -> None:
    """Repeats the change until the database takes it, because an email that was sent must be marked."""
    until = time.monotonic() + NOTED_WITHIN
    while True:
        try:
            with store.write() as tx:
                change(tx)
                return
        except (Busy, StoreUnusable):
            if time.monotonic() > until:
                raise
            time.sleep(0.5)


def claimed(tx: Transaction, locks: Locks, due_by: str, webhook: str = "") -> QueuedEmail | None:
    """The email that is due longest, locked; not one that another worker is sending, or was quicker to claim."""
    while (email_id := tx.due_email(due_by, webhook)) is not None:
        email = tx.claim_email(email_id, due_by, LEASE)
        if email is not None and locks.take(email_id):
            return email
        if email is not None:
            tx.leave_email(email_id)
    return None


def delay_after(attempts: int) -> timedelta:
    """From seconds to a quarter of an hour, and random, so that not all emails come back to a server at once."""
    doubled = min(LONGEST_DELAY / 1.2, FIRST_DELAY * 2.0 ** min(attempts - 1, 10))
    return doubled * random.uniform(0.8, 1.2)  # noqa: S311 - no secret
