"""From a change to its events: the payload, and a row of the outbox for each webhook that takes it."""

import json
from typing import Any

from usersctl.config.webhooks import Webhook
from usersctl.events import WEBHOOK_TEST, events_of
from usersctl.models import User
from usersctl.secrets import new_message_id
from usersctl.store.audit import Told
from usersctl.store.transaction import Transaction

MOST_BYTES = 20_000
_encoded = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


def add_events(tx: Transaction, webhooks: tuple[Webhook, ...], told: Told) -> set[str]:
    """In the transaction of the change. Returns the webhooks that have something to send."""
    wanted = [
        (event, webhook)
        for event in events_of(told.action, told.details)
        for webhook in webhooks
        if webhook.takes(event)
    ]
    if not wanted:
        return set()
    user = (told.user_id and tx.user(told.user_id)) or told.user  # as it is now, or was before its deletion
    for event, webhook in wanted:
        text = payload(event, tx.now_text, user, told)
        tx.add_event(webhook.name, told.user_id or 0, event, new_event_id(), text)
    return {webhook.name for _, webhook in wanted}


def new_event_id() -> str:
    return f"msg_{new_message_id()}"


def payload(event: str, at: str, user: User | None, told: Told) -> str:
    """Under 20 kB: what is too long for it is left out. Other applications know a user by the known address."""
    data: dict[str, Any] = {"user": user and user.as_known()}
    data |= {"action": told.action, "actor": told.by.name, "details": told.details}
    for part, name in (
        (data, ""),
        (data, "details"),
        (data["user"] or {}, "profile_picture"),
        (data["user"] or {}, "oauth_id"),
    ):
        if name:
            part[name] = {} if name == "details" else None
        text = _encoded({"type": event, "timestamp": at, "data": data})
        if len(text.encode()) < MOST_BYTES:
            break
    return text


def test_payload(at: str, told: Told) -> str:
    return payload(WEBHOOK_TEST, at, None, told)
