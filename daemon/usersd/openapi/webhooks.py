"""What webhooks tell, for the OpenAPI document: one schema for each event."""

from typing import Any

from usersctl.events import (
    EVENTS,
    FACTOR_CHANGED,
    LOCKDOWN_OFF,
    LOCKDOWN_ON,
    SESSION_CREATED,
    SESSION_REVOKED,
    USER_ACTIVATED,
    USER_CONFIRMED,
    USER_CREATED,
    USER_DEACTIVATED,
    USER_DELETED,
    USER_UPDATED,
    WEBHOOK_TEST,
)
from usersd.openapi.schemas import MOMENT, Schema, exactly, integer, model, named, string

_MEANINGS = {
    USER_CREATED: "An account was made: by an admin, an invitation, an import, a registration, or a sign-in through a provider.",
    USER_CONFIRMED: "The owner of an account confirmed the registration, or accepted the invitation.",
    USER_UPDATED: "Name, address, role, password, or a link to a provider was changed.",
    USER_DELETED: "An account was deleted; `user` is what it was.",
    USER_ACTIVATED: "An account was activated, or its owner has undone the deletion.",
    USER_DEACTIVATED: "An account was deactivated, or its owner asked for its deletion. Its sessions are ended.",
    SESSION_CREATED: "A user signed in, or an API token was made.",
    SESSION_REVOKED: "A session or API token was ended, or all of a user. One that expires tells nothing.",
    FACTOR_CHANGED: "A second factor or recovery codes were added, removed, used up or reset.",
    LOCKDOWN_ON: "The service is closed, and all sessions are ended; `user` is the admin who may still sign in.",
    LOCKDOWN_OFF: "The service is open again.",
    WEBHOOK_TEST: "An operator tests the receiver.",
}
_NO_USER = (LOCKDOWN_ON, LOCKDOWN_OFF, WEBHOOK_TEST)
_DETAILS: Schema = {
    "type": "object",
    "description": "What the audit trail has of the change. Other keys may be added.",
    "properties": {
        "token": integer(12, description="The id of the session or API token."),
        "kind": string("session", "`session`, `persistent` or `api`."),
        "count": integer(3, minimum=0, description="How many sessions and API tokens ended."),
    },
    "additionalProperties": True,
    "examples": [{"role": "user", "active": True}],
}
_HEADERS = {
    "webhook-id": (
        "The same in every attempt: a receiver that has it already answers 2xx, and does nothing.",
        "msg_5c94",
    ),
    "webhook-timestamp": ("The time of this attempt, in seconds.", "1795393589"),
    "webhook-signature": (
        "`v1,` and the base64 of an HMAC-SHA-256 of id, timestamp and body, joined by dots; one for each secret.",
        "v1,SBb6",
    ),
}
_ANSWERS = {
    "2XX": "Taken.",
    "410": "Ends the webhook, until `usersctl webhook retry NAME`.",
    "default": "Tried again with growing pauses, no sooner than `Retry-After` says, for three days. Redirects are not followed.",
}


def name_of(event: str) -> str:
    """Of its schema: `UserCreatedEvent`."""
    return "".join(word.title() for word in event.split(".")) + "Event"


def schemas() -> dict[str, Schema]:
    return {name_of(event): _payload(event) for event in EVENTS}


def _payload(event: str) -> Schema:
    user = named("User")
    if event in _NO_USER:
        user = {"anyOf": [named("User"), {"type": "null"}]}
    data = exactly(
        {
            "user": user,
            "action": string("update", "As the audit trail names it."),
            "actor": string("cli:root", "`user:ID`, `cli:NAME`, `anonymous` or `system`."),
            "details": _DETAILS,
        }
    )
    payload = model(
        name_of(event), {"type": {"type": "string", "const": event}, "timestamp": MOMENT, "data": data}
    )
    return payload | {"description": _MEANINGS[event]}


def described_webhooks() -> dict[str, Any]:
    return {event: {"post": _operation(event)} for event in EVENTS}


def _operation(event: str) -> dict[str, Any]:
    parameters = [
        {"name": name, "in": "header", "required": True, "description": meaning, "schema": string(example)}
        for name, (meaning, example) in _HEADERS.items()
    ]
    name = name_of(event)
    return {
        "operationId": f"on{name}",
        "summary": _MEANINGS[event].partition(". ")[0].removesuffix("."),
        "description": "Signed as Standard Webhooks has it, with each of the secrets of the webhook.",
        "security": [],
        "parameters": parameters,
        "requestBody": {"required": True, "content": {"application/json": {"schema": named(name)}}},
        "responses": {status: {"description": meaning} for status, meaning in _ANSWERS.items()},
    }
