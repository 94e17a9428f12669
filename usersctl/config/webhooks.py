"""The tables [[webhooks]] of the configuration: each is checked key by key."""

import re
from collections.abc import Callable
from typing import Any

from usersctl.config.values import MASK, BadPart, BadValue, MissingPart, boolean, kind, url_of
from usersctl.events import EVENTS
from usersctl.named import NamedTuple

ALL = "*"
_NAME = "[A-Za-z0-9][A-Za-z0-9._-]{0,62}"
SECRET_PREFIX = "whsec_"  # noqa: S105 - what a secret begins with
LONGEST_URL = 2000


class Webhook(NamedTuple):
    name: str
    url: str
    secrets: tuple[str, ...]  # all of them sign
    events: tuple[str, ...] = (ALL,)
    allow_private: bool = False

    def __repr__(self) -> str:
        return f"<Webhook {self.name}>"  # never a secret

    def takes(self, event: str) -> bool:
        return event in self.events or ALL in self.events


def key_of(secret: str) -> bytes:
    """The bytes that a secret stands for."""
    import base64

    return base64.b64decode(secret.removeprefix(SECRET_PREFIX), validate=True)


def _name(value: Any) -> str:
    if not isinstance(value, str) or not re.fullmatch(_NAME, value):
        raise BadValue(
            "must be 1 to 63 letters, digits, dots, hyphens and underscores, a letter or digit first"
        )
    return value


def _url(value: Any) -> str:
    problem = BadValue(
        f"must be an http or https URL of at most {LONGEST_URL} ASCII characters, without user and fragment"
    )
    url = url_of(value, problem)
    if url.scheme not in ("http", "https") or url.fragment or url.port == 0 or len(value) > LONGEST_URL:
        raise problem
    return str(value)


def _events(value: Any) -> tuple[str, ...]:
    known = (ALL, *EVENTS)
    if not isinstance(value, list) or not value or any(event not in known for event in value):
        raise BadValue(f'must be a list of {", ".join(EVENTS)}, or ["*"] for all of them')
    return tuple(value)


def _secrets(value: Any) -> tuple[str, ...]:
    if not isinstance(value, list) or not value or not all(map(_is_secret, value)):
        example = f'"{SECRET_PREFIX}" and the base64 of 24 to 64 bytes, as `openssl rand -base64 32` prints'
        raise BadValue(f"must be a list of secrets, each {example}")
    return tuple(value)


def _is_secret(value: Any) -> bool:
    if not isinstance(value, str) or not value.startswith(SECRET_PREFIX):
        return False
    try:
        return 24 <= len(key_of(value)) <= 64
    except ValueError:
        return False


_KEYS: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "name": ("name", _name),
    "url": ("url", _url),
    "secrets": ("secrets", _secrets),
    "events": ("events", _events),
    "allowPrivate": ("allow_private", boolean.check),
}
_REQUIRED = ("name", "url", "secrets")


def _written(hooks: tuple[Webhook, ...]) -> list[dict[str, Any]]:
    return [
        {
            "name": hook.name,
            "url": hook.url,
            "events": list(hook.events),
            "secrets": [MASK] * len(hook.secrets),
            "allowPrivate": hook.allow_private,
        }
        for hook in hooks
    ]


@kind("tables of webhooks", write=_written)
def webhook_tables(value: Any) -> tuple[Webhook, ...]:
    if not isinstance(value, list) or not all(isinstance(table, dict) for table in value):
        raise BadPart("", MASK, "must be tables, each under a line [[webhooks]]")
    made: dict[str, Webhook] = {}
    for number, table in enumerate(value):
        hook = _webhook(table, number)
        if hook.name in made:
            raise BadPart(f"[{number}].name", hook.name, "is the name of another webhook: choose another")
        made[hook.name] = hook
    return tuple(made.values())


def _webhook(table: dict[str, Any], number: int) -> Webhook:
    for key in table:
        if key not in _KEYS:
            raise BadPart(f"[{number}].{key}", MASK, f"unknown key, must be one of {', '.join(_KEYS)}")
    for key in _REQUIRED:
        if key not in table:
            raise MissingPart(f"[{number}].{key}")
    fields = {}
    for key, value in table.items():
        field, check = _KEYS[key]
        try:
            fields[field] = check(value)
        except BadValue as problem:
            has_secret = key == "secrets" or (key == "url" and "@" in str(value))
            raise BadPart(f"[{number}].{key}", MASK if has_secret else value, str(problem)) from None
    return Webhook(**fields)
