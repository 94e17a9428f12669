"""A person's passkeys, used at a daemon."""

from dataclasses import dataclass
from typing import Any

from support.authenticator import Authenticator
from support.web import Client, Reply

OPTIONS = "/api/users/session/passkey/options"
SIGN_IN = "/api/users/session/passkey"
OWN = "/api/users/me/passkeys"
TO_ADD = "/api/users/me/passkeys/options"
ORIGIN = "http://localhost:8080"


def options(client: Client, path: str = OPTIONS) -> dict[str, Any]:
    reply = client.post(path, {})
    assert reply.status == 200, reply.body
    public_key: dict[str, Any] = reply.json["publicKey"]
    return public_key


def add_passkey(client: Client, authenticator: Authenticator, name: str = "Phone", **changes: Any) -> Reply:
    """In a fresh session. `changes` are those of `Authenticator.create`."""
    credential = authenticator.create(options(client, TO_ADD), **changes)
    return client.post(OWN, {"credential": credential, "name": name})


def use_passkey(
    client: Client, authenticator: Authenticator, path: str = SIGN_IN, *, body: Any = None, **changes: Any
) -> Reply:
    """To sign in, or at another endpoint that takes a credential."""
    credential = authenticator.get(options(client), **changes)
    return client.post(path, (body or {}) | {"credential": credential})


@dataclass
class Person:
    """With a fresh session, and a passkey that the account has."""

    client: Client
    device: Authenticator


def with_passkey(client: Client, device: Authenticator | None = None) -> Person:
    device = device or Authenticator(ORIGIN)
    reply = add_passkey(client, device)
    assert reply.status == 200, reply.body
    return Person(client, device)
