"""The webhooks of the configuration: they hear of every change, and an operator sees, tries and begins them again."""

import threading
from collections.abc import Iterator
from functools import cached_property
from typing import Any

from usersctl.clock import Clock, stamp
from usersctl.config.webhooks import Webhook
from usersctl.errors import NotFound
from usersctl.events import WEBHOOK_TEST
from usersctl.models import Actor, EmailState, QueuedEmail, WebhookState
from usersctl.named import NamedTuple
from usersctl.outgoing import LEASE, Attempt
from usersctl.store.audit import Told
from usersctl.store.store import Store
from usersctl.store.transaction import Transaction
from usersctl.webhooks import delivery
from usersctl.webhooks.delivery import Delivery
from usersctl.webhooks.errors import NotDelivered
from usersctl.webhooks.events import add_events, new_event_id, payload
from usersctl.webhooks.sending import Answer

NEWEST = 10  # events that are shown


class Condition(NamedTuple):
    webhook: Webhook
    state: WebhookState
    counts: dict[str, int]
    oldest_waiting: QueuedEmail | None
    newest: list[QueuedEmail]

    @property
    def word(self) -> str:
        if self.state.ended_at is not None:
            return "ended"
        return "failing" if self.state.failures else "ok"

    def as_json(self) -> dict[str, Any]:
        webhook, oldest = self.webhook, self.oldest_waiting
        return {
            "name": webhook.name,
            "url": webhook.url,
            "events": list(webhook.events),
            "allow_private": webhook.allow_private,
            "state": self.word,
            **self.counts,
            "oldest_waiting": oldest and oldest.created_at,
            "failures": self.state.failures,
            "paused_until": self.state.paused_until,
            "ended_at": self.state.ended_at,
        }


class Webhooks:
    def __init__(self, store: Store, webhooks: tuple[Webhook, ...], now: Clock) -> None:
        self.store = store
        self.all = webhooks
        self.now = now

    @cached_property
    def deliveries(self) -> dict[str, Delivery]:
        return {webhook.name: Delivery(self.store, webhook, threading.Event()) for webhook in self.all}

    def hear(self, tx: Transaction, told: Told) -> None:
        """Of each change, in its transaction."""
        for name in add_events(tx, self.all, told):
            tx.after_commit(self.deliveries[name].committed.set)

    def named(self, name: str) -> Webhook:
        if name not in self.deliveries:
            raise NotFound(f"No webhook {name!r} in the configuration", hint="see: usersctl webhook list")
        return self.deliveries[name].webhook

    def conditions(self) -> list[Condition]:
        with self.store.read() as tx:
            return [_condition(tx, webhook) for webhook in self.all]

    def condition(self, name: str) -> Condition:
        webhook = self.named(name)
        with self.store.read() as tx:
            return _condition(tx, webhook)

    def retry(self, name: str) -> Iterator[Attempt]:
        """Begins it again, also after a 410, and sends what waits, up to the first event that fails."""
        self.named(name)
        with self.store.locks() as locks, self.store.write() as tx:
            tx.begin_webhook_again(name)
            tried = tx.tried_events(name, due_by=stamp(tx.now + LEASE))
            tx.retry_events(name, being_sent=list(filter(locks.is_taken, tried)))
        while (attempt := self.deliveries[name].work()) is not None:
            yield attempt
            if attempt.state != EmailState.SENT:
                return

    def test(self, name: str, *, by: Actor) -> tuple[str, Answer]:
        """Sends an event at once, past the outbox. Returns its id and the answer; raises NotDelivered if it was not taken."""
        webhook, now, event_id = self.named(name), self.now(), new_event_id()
        text = payload(WEBHOOK_TEST, stamp(now), None, Told(by, WEBHOOK_TEST, None, None, {"webhook": name}))
        answer = delivery.send(webhook, event_id, text, now)
        if not answer.is_success:
            raise NotDelivered(answer.refusal)
        return event_id, answer


def _condition(tx: Transaction, webhook: Webhook) -> Condition:
    name = webhook.name
    newest = list(tx.newest_events(name, NEWEST))
    oldest = tx.oldest_waiting_event(name)
    return Condition(webhook, tx.webhook_state(name), tx.count_events(name), oldest, newest)
