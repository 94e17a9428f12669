"""A person's authenticator app, which knows the secret of an account and the time."""

import base64
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from support.commands import PASSWORD
from support.fakes import FakeClock
from support.web import Client, Reply, Site

from usersctl.factors import totp

SECOND_STEP = "/api/users/session/second-factor"
CONFIRM = "/api/users/session/confirm"


@dataclass
class Phone:
    """`codes` are the recovery codes that came with it."""

    secret: bytes
    clock: FakeClock
    codes: list[str] = field(default_factory=list)

    def code(self, *, steps: int = 0, now: datetime | None = None) -> str:
        """What it shows now, or so many steps later."""
        return totp.code_at(self.secret, totp.step_at(now or self.clock()) + steps)

    def next_code(self) -> str:
        """One that was not used yet: the time moves on to the next step."""
        self.clock.move(seconds=totp.STEP)
        return self.code()

    def wrong_code(self) -> str:
        shown = {self.code(steps=steps) for steps in range(-2, 3)}
        return next(
            code for code in ("000000", "111111", "222222", "333333", "444444", "555555") if code not in shown
        )


def enrol(client: Client, clock: FakeClock) -> Phone:
    """Sets up an authenticator app for the account of a fresh session."""
    begun = client.post("/api/users/me/totp")
    assert begun.status == 200, begun.body
    secret = begun.json["secret"]
    phone = Phone(base64.b32decode(secret), clock)
    confirmed = client.post("/api/users/me/totp/confirm", {"code": phone.code()})
    assert confirmed.status == 200, confirmed.body
    phone.codes = confirmed.json.get("recoveryCodes", [])
    return phone


def second_step(
    client: Client, email: str = "ada@example.com", *, password: str = PASSWORD, **more: Any
) -> Client:
    """A browser whose sign-in waits for its second factor."""
    asked = client.login(email, password, **more)
    assert (asked.status, asked.message) == (401, "Second factor required")
    return client


def finish(client: Client, **proof: Any) -> Reply:
    return client.post(SECOND_STEP, proof)


def with_phone(site: Site, clock: FakeClock, name: str = "ada", **keywords: Any) -> tuple[Client, Phone]:
    """An account with an authenticator app, and the session that set it up."""
    client = site.signed_in(site.add(name, **keywords))
    return client, enrol(client, clock)


def remembered(site: Site, phone: Phone) -> Client:
    """A browser that is not asked for the second step for 30 days, without a session."""
    client = second_step(site.client())
    assert finish(client, code=phone.next_code(), rememberDevice=True).status == 200
    client.delete("/api/users/session")
    return client
