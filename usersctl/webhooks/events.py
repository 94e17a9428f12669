"""From a change to its events: the payload, and a row of the outbox for each webhook that takes it."""

import json
from typing import Any

from usersctl.config.webhooks import Webhook
from usersctl.events import events_of
from usersctl.models import User
from usersctl.secrets import new_message_id
from usersctl.store.audit import Told
from usersctl.store.transaction import Transaction

MOST_BYTES = 20_000
_LONG = {"oauth_id": None, "profile_picture": None}  # that an import may have made as long as it likes
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
    """Under 20 kB. Other applications know a user by the known address."""
    known = user and user.as_known()
    data = {"user": known, "action": told.action, "actor": told.by.name, "details": told.details}
    no_details: dict[str, Any] = {"details": {}}
    for left_out in ({}, no_details, no_details | {"user": known and known | _LONG}):
        text = _encoded({"type": event, "timestamp": at, "data": data | left_out})
        if len(text.encode()) < MOST_BYTES:
            break
    return text
