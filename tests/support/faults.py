"""Prepared requests for every writing endpoint, to compare their answers during a fault and after it."""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from support.accounts import open_session
from support.commands import OPERATOR, PASSWORD, Command, create_user
from support.daemons import Daemon, serving
from support.web import Client, Reply

from usersctl.mail.kinds import CONFIRM, RESET
from usersctl.models import User
from usersctl.service import Service

LONG = os.environ.get("USERSCTL_LONG") == "1"
ANOTHER = "another horse battery"
OPEN = {"whitelist": ("/register",), "limits_enabled": False}
ME = "/api/users/me"
FORGOT = "/api/users/password/forgot"


# Replaces the cost of bcrypt, which is not tested here and would take hours.
CHEAPLY = """
import runpy
from usersctl.passwords import Hasher
make = Hasher.__init__
Hasher.__init__ = lambda self, rounds, **keywords: make(self, 4, **keywords)
runpy.run_module("usersctl", run_name="__main__", alter_sys=True)
"""


@contextmanager
def cheaply_serving(usersctl: Command, **keywords: Any) -> Iterator[Daemon]:
    """The real daemon with the cheapest hashes."""
    (usersctl.folder / "cheaply.py").write_text(CHEAPLY)
    paths = os.pathsep.join(filter(None, (str(usersctl.folder), os.environ.get("PYTHONPATH"))))
    with serving(usersctl, module=("cheaply", "serve"), env={"PYTHONPATH": paths}, **keywords) as daemon:
        yield daemon


@dataclass
class Answered:
    reply: Reply
    seconds: float


class House:
    """Accounts and clients of a daemon at `port`. `service` uses the same database, maybe from another process."""

    def __init__(self, service: Service, port: int) -> None:
        self.service = service
        self.port = port
        self.root = self._add("root", role="admin")
        self.ada = self._add("ada")
        self.admin = self._signed_in(self.root)
        self.reader = self._signed_in(self.ada)

    def _add(self, name: str, **keywords: Any) -> User:
        return create_user(
            self.service, f"{name}@example.com", name.title(), PASSWORD, by=OPERATOR, **keywords
        )

    def _signed_in(self, user: User) -> Client:
        return Client(self.port, {"auth_token": open_session(self.service, user).token})

    def _link(self, kind: Any, user: User) -> str:
        return self.service.outbox.link(kind, user, by=OPERATOR).partition("token=")[2].partition("&")[0]

    def writes(self, about: str) -> dict[str, "Write"]:
        """One prepared request per writing endpoint. `about` is part of every name, so that several sets can exist."""
        anonymous = Client(self.port)
        users = {
            name: self._add(f"{name}-{about}")
            for name in ("in", "out", "self", "secret", "changed", "gone", "thrown", "lost")
        }
        fresh = self.service.registration.register(
            f"fresh-{about}@example.com", "Fresh", PASSWORD, by=OPERATOR
        )
        confirm, reset = self._link(CONFIRM, fresh), self._link(RESET, users["lost"])
        thrown = self._signed_in(users["thrown"])
        (session,) = self.service.sessions.listed(users["thrown"].id)
        new = {"newPassword": ANOTHER, "newPasswordConfirmation": ANOTHER}
        both = {"password": ANOTHER, "password_confirmation": ANOTHER}
        return {
            "login": Write(anonymous, "POST", "/api/users/session", _credentials(users["in"])),
            "logout": Write(self._signed_in(users["out"]), "DELETE", "/api/users/session"),
            "register": Write(anonymous, "POST", "/api/users/register", _person(f"new-{about}")),
            "resend": Write(anonymous, "POST", "/api/users/register/resend", {"email": fresh.email}),
            "confirm": Write(
                anonymous, "GET", f"/api/users/confirm-email?token={confirm}&email={quote(fresh.email)}"
            ),
            "forgot": Write(anonymous, "POST", FORGOT, {"email": users["in"].email}),
            "reset": Write(
                anonymous,
                "POST",
                "/api/users/password/reset",
                {"token": reset, "email": users["lost"].email, **both},
            ),
            "rename": Write(self._signed_in(users["self"]), "PATCH", ME, {"name": "Renamed"}),
            "password": Write(
                self._signed_in(users["secret"]),
                "PATCH",
                "/api/users/password",
                {"currentPassword": PASSWORD, **new},
            ),
            "revoke": Write(thrown, "DELETE", f"/api/users/me/sessions/{session.id}"),
            "create": Write(self.admin, "POST", "/api/users", _person(f"made-{about}")),
            "update": Write(self.admin, "PATCH", f"/api/users/{users['changed'].id}", {"active": False}),
            "delete": Write(self.admin, "DELETE", f"/api/users/{users['gone'].id}"),
            "revoke all": Write(self.admin, "DELETE", f"/api/users/{users['self'].id}/sessions"),
            "cleanup": Write(self.admin, "POST", "/_tasks/users:cleanup-tokens", {}),
        }

    def reads(self) -> dict[str, Answered]:
        asked = {
            "me": (self.reader, ME),
            "sessions": (self.reader, f"{ME}/sessions"),
            "list": (self.admin, "/api/users"),
            "inactive": (self.admin, "/api/users/inactive"),
            "one": (self.admin, f"/api/users/{self.ada.id}"),
            "tasks": (self.admin, "/_tasks/"),
            "page": (self.reader, "/"),
            "login page": (Client(self.port), "/login"),
        }
        return {name: _timed(Write(client, "GET", path)) for name, (client, path) in asked.items()}

    def read_all(self) -> None:
        statuses = {name: read.reply.status for name, read in self.reads().items()}
        assert set(statuses.values()) == {200}, statuses


@dataclass
class Write:
    client: Client
    method: str
    path: str
    body: Any = None

    def __call__(self) -> Reply:
        return self.client.send(self.method, self.path, self.body)


def _timed(write: Write) -> Answered:
    began = time.monotonic()
    reply = write()
    return Answered(reply, time.monotonic() - began)


def ask(writes: dict[str, Write]) -> dict[str, Answered]:
    return {name: _timed(write) for name, write in writes.items()}


def all_done(writes: dict[str, Write]) -> None:
    replies = {name: (answered.reply.status, answered.reply.body) for name, answered in ask(writes).items()}
    assert {status for status, _ in replies.values()} == {200}, replies


def is_refused_as_busy(reply: Reply) -> bool:
    """The reply is a 503 with a message that names no file and with a number of seconds to wait."""
    return (
        reply.status == 503
        and reply.message != ""
        and b".db" not in reply.body
        and 1 <= int(reply.header("Retry-After") or 0) <= 60
    )


def done(reply: Reply) -> bool:
    """True for a 200, False for a correct 503; any other reply fails."""
    assert reply.status == 200 or is_refused_as_busy(reply), (reply.status, reply.body)
    return reply.status == 200


def none_done(writes: dict[str, Write]) -> dict[str, Answered]:
    answered = ask(writes)
    others = {
        name: (answer.reply.status, answer.reply.body)
        for name, answer in answered.items()
        if not is_refused_as_busy(answer.reply)
    }
    assert not others, others
    return answered


def _person(name: str) -> dict[str, str]:
    return {"email": f"{name}@example.com", "name": name, "password": PASSWORD}


def _credentials(user: User) -> dict[str, str]:
    return {"email": user.email, "password": PASSWORD}
