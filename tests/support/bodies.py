"""The fields of the bodies of all endpoints, with values that are accepted, and the form of every answer."""

from typing import Any

from support.commands import PASSWORD
from support.paths import filled
from support.web import Reply

from usersd.openapi.operation import operation_of
from usersd.routes import TABLE

# The fields of each endpoint, with accepted values. Booleans may be left out.
TEXTS: dict[tuple[str, str], dict[str, str]] = {
    ("POST", "/api/users/session"): {
        "email": "bob@example.com",
        "password": PASSWORD,
        "code": "123456",
    },
    ("POST", "/api/users/session/second-factor"): {"code": "123456", "recoveryCode": "abcd"},
    ("POST", "/api/users/me/totp/confirm"): {"code": "123456"},
    ("POST", "/api/users/me/passkeys"): {"name": "Phone"},
    ("POST", "/api/users/me/tokens"): {"name": "ci", "expires": "90d"},
    ("PATCH", "/api/users/me/passkeys/1"): {"name": "Phone"},
    ("POST", "/api/users/setup"): {
        "token": "t",
        "email": "new@example.com",
        "name": "New",
        "password": PASSWORD,
    },
    ("POST", "/api/users"): {
        "email": "new@example.com",
        "name": "New",
        "password": PASSWORD,
        "role": "user",
    },
    ("PATCH", "/api/users/2"): {"email": "bob@example.com", "name": "Bob", "role": "user"},
    ("PATCH", "/api/users/me"): {"email": "ada@example.com", "name": "Ada"},
    ("PATCH", "/api/users/password"): {
        "currentPassword": PASSWORD,
        "newPassword": "another sentence",
        "newPasswordConfirmation": "another sentence",
    },
    ("POST", "/api/users/register"): {"email": "new@example.com", "name": "New", "password": PASSWORD},
    ("POST", "/api/users/register/resend"): {"email": "bob@example.com"},
    ("POST", "/api/users/password/forgot"): {"email": "bob@example.com"},
    ("POST", "/api/users/password/reset"): {
        "token": "t",
        "email": "bob@example.com",
        "password": PASSWORD,
        "password_confirmation": PASSWORD,
    },
    ("POST", "/api/users/not-me"): {"token": "t", "email": "bob@example.com"},
    ("POST", "/api/users/confirm-deletion"): {"token": "t", "email": "bob@example.com"},
    ("POST", "/api/users/undo-deletion"): {"token": "t", "email": "bob@example.com"},
    ("POST", "/api/users/me/email"): {"token": "t", "email": "bob@example.com", "password": PASSWORD},
    ("DELETE", "/api/users/me"): {"password": "not the password"},
    ("POST", "/api/users/session/confirm"): {
        "password": PASSWORD,
        "code": "123456",
        "recoveryCode": "abcd",
    },
    ("POST", "/api/users/invite"): {
        "email": "new@example.com",
        "name": "New",
        "role": "user",
        "expires": "7d",
    },
    ("POST", "/api/users/invite/accept"): {
        "token": "t",
        "email": "bob@example.com",
        "name": "Bob",
        "password": PASSWORD,
    },
    ("POST", "/api/users/2/invite"): {"expires": "7d"},
    ("POST", "/api/users/bulk"): {"action": "add-group", "group": "staff"},
    ("POST", "/api/groups"): {"name": "staff"},
}
LISTS: dict[tuple[str, str], dict[str, list[Any]]] = {
    ("POST", "/api/users/invite"): {"groups": []},
    ("POST", "/api/users/bulk"): {"ids": [2]},
    ("PUT", "/api/users/2/groups"): {"groups": []},
    ("POST", "/api/users/me/tokens"): {"scopes": ["me"], "ip": ["192.0.2.0/24"]},
}
OBJECTS: dict[tuple[str, str], dict[str, dict[str, Any]]] = {
    ("POST", "/api/users/session/second-factor"): {"credential": {}},
    ("POST", "/api/users/session/confirm"): {"credential": {}},
    ("POST", "/api/users/session/passkey"): {"credential": {}},
    ("POST", "/api/users/me/passkeys"): {"credential": {}},
}
BOOLEANS = {
    (("POST", "/api/users/session"), "rememberMe"),
    (("POST", "/api/users/session"), "rememberDevice"),
    (("POST", "/api/users/session/second-factor"), "rememberDevice"),
    (("POST", "/api/users/session/passkey"), "rememberMe"),
    (("PATCH", "/api/users/2"), "active"),
    (("POST", "/_tasks/users:cleanup-tokens"), "includeNoExpiration"),
}
CHANGES = [
    (route.method, filled(route.path, id="2", session_id="99")) for route in TABLE if route.method != "GET"
]
READ_BODY = {
    change: body
    for change, route in zip(CHANGES, (route for route in TABLE if route.method != "GET"), strict=True)
    if (body := operation_of(route.handler).body) is not None
}
ALL_FIELDS = {name: value for fields in TEXTS.values() for name, value in fields.items()} | dict.fromkeys(
    (name for _, name in BOOLEANS), True
)


def accepted(endpoint: tuple[str, str]) -> dict[str, Any]:
    return {**TEXTS.get(endpoint, {}), **LISTS.get(endpoint, {}), **OBJECTS.get(endpoint, {})}


def well_formed(reply: Reply) -> Reply:
    """No 5xx, and the shape of an error."""
    assert reply.status < 500, reply
    assert (reply.header("Content-Type") or "").startswith(
        ("application/json", "text/html", "text/css", "text/javascript")
    ), reply
    if reply.status >= 400:
        assert reply.message
        assert "Traceback" not in reply.message
        assert len(reply.body) < 1000, reply
    return reply
