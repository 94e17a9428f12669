"""The rules of one row of an import, by column."""

import json
import re
from collections.abc import Callable
from functools import partial
from typing import Any

from usersctl.config import Settings
from usersctl.config.providers import host_of
from usersctl.config.settings import PROVIDER_NAME
from usersctl.errors import Invalid
from usersctl.fields import (
    is_text,
    is_web_address,
    normal_email,
    normal_group,
    normal_name,
    normal_role,
    normal_time,
    unique_keys,
)
from usersctl.models import OAUTH, Newcomer
from usersctl.passwords import check_hash, check_password

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_SECRETS = ("password", "password_hash")
MOST_OF_SUBJECT = 255  # as OpenID Connect has it, and a sign-in takes
MOST_OF_ISSUER = 1000  # bytes: an index of PostgreSQL holds 2.7 kB, also of provider and subject
_TRUE, _FALSE = ("true", "1", "yes"), ("false", "0", "no")


def _boolean(name: str, value: str) -> bool:
    text = value.strip().lower()
    if text not in _TRUE + _FALSE:
        raise Invalid(f"{name} must be true or false", value=value)
    return text in _TRUE


def _time(name: str, value: str) -> str:
    try:
        return normal_time(value)
    except Invalid:
        raise Invalid(f"{name} is not an ISO 8601 time", value=value) from None


def _picture(value: str) -> str:
    if not is_web_address(value):
        raise Invalid(f"profile_picture {value[:40]!r} is no web address: it begins with https:// or http://")
    return value


def _issuer(name: str, value: str) -> str:
    if not is_web_address(value) or not host_of(value):
        raise Invalid(f"{name} {value[:40]!r} is no web address: it begins with https:// or http://")
    if len(value.encode()) > MOST_OF_ISSUER:
        raise Invalid(f"{name} has more than {MOST_OF_ISSUER} bytes", value=value)
    return value


def _subject(name: str, value: str) -> str:
    if len(value) > MOST_OF_SUBJECT:
        raise Invalid(f"{name} has more than {MOST_OF_SUBJECT} characters", value=value)
    return value


def _provider_name(value: str) -> str:
    if not PROVIDER_NAME.fullmatch(value):
        raise Invalid(f"{value[:40]!r} is no name of a provider")
    return value


# In the order in which an export writes them; a password is only imported.
_CHECKS: dict[str, Callable[[str], Any]] = {
    "email": normal_email,
    "name": normal_name,
    "role": normal_role,
    "active": partial(_boolean, "active"),
    "confirmed": partial(_boolean, "confirmed"),
    "password_hash": check_hash,
    "created_at": partial(_time, "created_at"),
    "last_login_at": partial(_time, "last_login_at"),
    "oauth_id": partial(_subject, "oauth_id"),
    "oauth_issuer": partial(_issuer, "oauth_issuer"),
    "profile_picture": _picture,
    "password": str,
}
IDENTITIES = "identities"  # a list of objects, in CSV as JSON; for oauth_id see _join_oauth_id()
GROUPS = "groups"  # a list of names, in CSV separated by commas
COLUMNS = (*(name for name in _CHECKS if name != "password"), IDENTITIES, GROUPS)
IMPORTED = (*COLUMNS, "password")

_CHECKS_OF_IDENTITY: dict[str, Callable[[str], Any]] = {
    "provider": _provider_name,
    "issuer": partial(_issuer, "the issuer of an identity"),
    "subject": partial(_subject, "the subject of an identity"),
    "email": normal_email,
    "linked_at": partial(_time, "linked_at"),
}
# Columns that `list` prints and an import ignores: accounts get new ids.
IGNORED = ("id", "updated_at")
_KNOWN = {*IMPORTED, *IGNORED}


def checked(settings: Settings, row: dict[str, Any]) -> dict[str, Any]:
    """The fields of an account in their stored form, and its password if the row has one."""
    if not row.keys() <= _KNOWN:
        unknown = next(name for name in row if name not in _KNOWN)
        raise Invalid(f"unknown column {unknown[:60]!r}; known are {', '.join(IMPORTED)}")
    fields = _stored(row)
    if "email" not in fields:
        raise Invalid("email is missing")
    if "password_hash" in fields and "password" in fields:
        raise Invalid("has both a password and a password_hash")
    if fields.get("confirmed") is False:
        if fields.get("active"):
            raise Invalid("is active and not confirmed: leave confirmed empty, or make it inactive")
        del fields["confirmed"]
        fields |= {"active": False, "awaiting_confirmation": True}
    _join_oauth_id(fields)
    if "password" in fields:
        owner = Newcomer(fields["email"], fields.get("name", ""))
        check_password(settings, fields["password"], owner)
    return fields


def _stored(row: dict[str, Any]) -> dict[str, Any]:
    fields = {}
    for name, value in row.items():
        if _is_empty(name, value):
            continue
        if name in _CHECKS:
            fields[name] = _CHECKS[name](_text(name, value))
        elif name in _LISTS:
            fields[name] = _LISTS[name](value)
    return fields


def _identities(value: Any) -> list[dict[str, str]]:
    if isinstance(value, str):
        try:
            value = json.loads(value, object_pairs_hook=unique_keys)
        except (ValueError, RecursionError):
            raise Invalid("identities is not JSON") from None
    if not isinstance(value, list) or not all(isinstance(identity, dict) for identity in value):
        raise Invalid("identities must be a list of objects")
    identities = [_identity(identity) for identity in value]
    if len({identity["provider"] for identity in identities}) < len(identities):
        raise Invalid("identities has a provider twice")
    return identities


def _groups(value: Any) -> list[str]:
    names = value.split(",") if isinstance(value, str) else value
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise Invalid("groups must be a list of names, or names separated by commas")
    return sorted({normal_group(name.strip()) for name in names})


_LISTS: dict[str, Callable[[Any], Any]] = {IDENTITIES: _identities, GROUPS: _groups}


def _identity(given: dict[str, Any]) -> dict[str, str]:
    if not given.keys() <= _CHECKS_OF_IDENTITY.keys():
        raise Invalid(f"an identity has {', '.join(_CHECKS_OF_IDENTITY)}, and nothing else")
    texts = {name: _text(name, value) for name, value in given.items() if not _is_empty(name, value)}
    if not texts.keys() >= {"provider", "subject"}:
        raise Invalid("an identity needs a provider and a subject")
    return {name: _CHECKS_OF_IDENTITY[name](text) for name, text in texts.items()}


def _join_oauth_id(fields: dict[str, Any]) -> None:
    """oauth_id and oauth_issuer become the identity of the provider oauth, which may stand among the identities as well."""
    subject, issuer = fields.pop("oauth_id", None), fields.pop("oauth_issuer", None)
    if subject is None:
        return
    identity = {"provider": OAUTH, "subject": subject}
    if issuer is not None:
        identity["issuer"] = issuer
    identities = fields.setdefault(IDENTITIES, [])
    same = next((other for other in identities if other["provider"] == OAUTH), None)
    if same is None:
        identities.insert(0, identity)
    elif any(same.get(name, value) != value for name, value in identity.items()):
        raise Invalid("oauth_id, oauth_issuer and identities say different things of the provider oauth")


def _is_empty(name: str, value: Any) -> bool:
    """Null and blank text count as left out. A password is taken as it is."""
    return value is None or value == "" or (isinstance(value, str) and value.isspace() and name != "password")


def _text(name: str, value: Any) -> str:
    if isinstance(value, str) and value.isprintable():
        return value
    if isinstance(value, bool | int) and name in ("active", "confirmed"):
        return str(value)
    if not isinstance(value, str):
        raise Invalid(f"{name} must be a string", value=None if name in _SECRETS else str(value))
    # A password is taken exactly as it was typed; its own rules forbid some characters.
    if not is_text(value) or (name != "password" and _CONTROL.search(value)):
        problem = f"{name} is not valid text: it holds control characters, or is not UTF-8"
        raise Invalid(problem, value=None if name in _SECRETS else value)
    return value
