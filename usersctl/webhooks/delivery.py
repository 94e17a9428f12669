"""The worker's side: an event is claimed, signed, sent, and marked; what fails is tried again for three days."""

import base64
import hashlib
import hmac
import threading
from datetime import UTC, datetime, timedelta
from typing import Protocol

from usersctl.clock import moment, stamp
from usersctl.config.webhooks import Webhook, key_of
from usersctl.events import TRIED_FOR
from usersctl.models import EmailState, QueuedEmail
from usersctl.named import NamedTuple
from usersctl.outgoing import LATEST, Attempt, claimed, delay_after, first_due, noted, seconds_until
from usersctl.store.store import Store
from usersctl.store.transaction import Transaction
from usersctl.webhooks import sending
from usersctl.webhooks.errors import NotDelivered
from usersctl.webhooks.sending import Answer

LONGEST_WAIT = timedelta(days=1)  # that a receiver may ask for
# No receiver is left alone for so long: a later end was written by a clock that was wrong.
LONGEST_PAUSE = LONGEST_WAIT + LATEST
FAILURES_BEFORE_PAUSE = 3  # of as many events in a row: the receiver is down, and not one event is at fault
GONE = 410


class Post(Protocol):
    def __call__(self, url: str, body: bytes, headers: dict[str, str], *, allow_private: bool) -> Answer: ...


class Delivery(NamedTuple):
    """To one webhook. Events of one user are sent in their order: the next one is due when the one before is done."""

    store: Store
    webhook: Webhook
    committed: threading.Event  # wakes the worker that sends
    post: Post = sending.post

    def work(self) -> Attempt | None:
        """Tries the next event that is due; None if there is none, or the receiver is left alone."""
        name = self.webhook.name
        due, now = first_due(self.store, name)
        if due is None or due > stamp(now) or self._holds():
            return None
        with self.store.locks() as locks:
            with self.store.write() as tx:
                event = claimed(tx, locks, stamp(now), name)
            return event and self._send(event, tx.now)

    def _holds(self) -> bool:
        """Ends a pause that a wrong clock made."""
        name = self.webhook.name
        with self.store.glance() as tx:
            state, now = tx.webhook_state(name), tx.now
        longest = stamp(now + LONGEST_PAUSE)
        if (state.paused_until or "") > longest:
            with self.store.write() as tx:
                tx.end_pause(name, longest)
            state = state._replace(paused_until=None)
        return state.holds(stamp(now))

    def seconds_until_due(self, at_most: float) -> float:
        if self._holds():
            return at_most
        return seconds_until(self.store, at_most, self.webhook.name)

    def _send(self, event: QueuedEmail, now: datetime) -> Attempt:
        try:
            answer = send(self.webhook, event.message_id, event.payload or "", now, self.post)
        except NotDelivered as problem:
            return self._failed(event, str(problem))
        except Exception as error:  # noqa: BLE001 - one bad event must not stop the others
            return self._failed(event, type(error).__name__)
        if answer.is_success:
            return self._taken(event, answer)
        return self._failed(event, answer.refusal, answer)

    def _taken(self, event: QueuedEmail, answer: Answer) -> Attempt:
        def note(tx: Transaction) -> None:
            tx.finish_event(event, EmailState.SENT)
            tx.note_webhook_works(event.webhook)

        noted(self.store, note)
        return Attempt(event, EmailState.SENT, str(answer.status))

    def _failed(self, event: QueuedEmail, reason: str, answer: Answer = Answer(0)) -> Attempt:  # noqa: B008 - a tuple
        state = EmailState.WAITING

        def note(tx: Transaction) -> None:
            nonlocal state
            state = EmailState.WAITING
            failures = _failures(tx.webhook_state(event.webhook).failures, event)
            until = _pause(failures, answer, tx.now)
            tx.note_webhook_failure(event.webhook, failures, paused_until=until, ended=answer.status == GONE)
            if tx.now - moment(event.created_at) > TRIED_FOR:
                state = EmailState.FAILED
                tx.finish_event(event, state, reason)
            else:
                tx.postpone_email(event.id, tx.now + delay_after(event.attempts), reason)

        noted(self.store, note)
        return Attempt(event, state, reason)


def _failures(before: int, event: QueuedEmail) -> int:
    """How many in a row, with this one. An event counts once, so that one that is refused again and again does not pause the
    others; of a receiver that is down, each attempt counts."""
    is_counted = event.attempts == 1 or not 0 < before < FAILURES_BEFORE_PAUSE
    return before + is_counted


def _pause(failures: int, answer: Answer, now: datetime) -> datetime | None:
    """Until when the receiver gets no event at all: it asks for that, or is down. The later one, because some ask for nothing."""
    waits = []
    if answer.retry_after is not None:
        waits.append(wait_of(answer.retry_after, now))
    if failures >= FAILURES_BEFORE_PAUSE:
        waits.append(delay_after(failures - FAILURES_BEFORE_PAUSE + 1))
    return now + max(waits) if waits else None


def send(webhook: Webhook, event_id: str, text: str, now: datetime, post: Post = sending.post) -> Answer:
    """As Standard Webhooks has it: https://www.standardwebhooks.com. Each secret signs."""
    timestamp = str(int(now.timestamp()))
    signatures = [_signature(secret, f"{event_id}.{timestamp}.{text}") for secret in webhook.secrets]
    headers = {
        "webhook-id": event_id,
        "webhook-timestamp": timestamp,
        "webhook-signature": " ".join(signatures),
    }
    return post(webhook.url, text.encode(), headers, allow_private=webhook.allow_private)


def _signature(secret: str, signed: str) -> str:
    mac = hmac.new(key_of(secret), signed.encode(), hashlib.sha256).digest()
    return f"v1,{base64.b64encode(mac).decode()}"


def wait_of(retry_after: str, now: datetime) -> timedelta:
    """Of the header: seconds, or a date. At most a day; none if it cannot be read."""
    from email.utils import parsedate_to_datetime

    if retry_after.isdecimal():
        return min(LONGEST_WAIT, timedelta(seconds=min(int(retry_after), 10**6)))
    try:
        until = parsedate_to_datetime(retry_after)
    except (ValueError, OverflowError):  # of a year or a zone with many digits
        return timedelta()
    if until.tzinfo is None:
        until = until.replace(tzinfo=UTC)
    return min(LONGEST_WAIT, max(timedelta(), until - now))
