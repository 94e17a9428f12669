"""A request that waits for the database while its caller loses the right to make the change: it changes nothing.

Every write of every route of the table is tried, so a new route needs a row in REQUESTS.
"""

import base64
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from support.accounts import author, open_session
from support.authenticator import Authenticator
from support.commands import OPERATOR, PASSWORD
from support.databases import add_database, database_at, fields_of
from support.factors import store_passkey
from support.identities import link, provider_settings
from support.passkeys import ORIGIN, OWN, TO_ADD, options
from support.tables import everything, query
from support.web import Client, Reply, Site, running

from usersctl.config import Settings
from usersctl.factors import totp
from usersctl.models import Session, User
from usersctl.secrets import digest
from usersctl.service import Service, build
from usersctl.sessions import Opened
from usersctl.store.signing_keys import COOKIES, USER_HANDLES
from usersctl.store.store import Store
from usersctl.store.transaction import Transaction
from usersd.routes import TABLE
from usersd.routing import Access

NEW_PASSWORD = "another sentence entirely"
CLEANUP = ("POST", "/_tasks/users:cleanup-tokens")
BULK = ("POST", "/api/users/bulk")
CONFIRM_TOTP, ADD_PASSKEY = ("POST", "/api/users/me/totp/confirm"), ("POST", OWN)
# Of an account that has an authenticator app and a passkey.
OF_FACTORS = [
    ("DELETE", "/api/users/me/totp"),
    ("POST", "/api/users/me/recovery-codes"),
    ("PATCH", "/api/users/me/passkeys/<passkey_id>"),
    ("DELETE", "/api/users/me/passkeys/<passkey_id>"),
]
# A body with which the request of an admin succeeds. <id> is another user; <session_id> is another session of the caller,
# or behind an <id> one of that user.
REQUESTS: dict[tuple[str, str], dict[str, Any] | None] = {
    ("PATCH", "/api/users/me"): {"name": "New Name"},
    ("DELETE", "/api/users/me"): {"password": PASSWORD},
    ("DELETE", "/api/users/me/email"): None,
    ("POST", "/api/users/me/email/resend"): None,
    ("DELETE", "/api/users/me/sessions/<session_id>"): None,
    ("POST", "/api/users/me/sessions/end-others"): None,
    ("POST", "/api/users/me/tokens"): {"name": "backup"},
    ("DELETE", "/api/users/me/tokens/<token_id>"): None,
    ("POST", "/api/users/session/confirm"): {"password": PASSWORD},
    ("DELETE", "/api/users/me/identities/<provider>"): None,
    ("POST", "/api/users/me/totp"): {},
    CONFIRM_TOTP: None,
    ("DELETE", "/api/users/me/totp"): None,
    ("POST", "/api/users/me/recovery-codes"): {},
    ADD_PASSKEY: None,
    ("PATCH", "/api/users/me/passkeys/<passkey_id>"): {"name": "New Name"},
    ("DELETE", "/api/users/me/passkeys/<passkey_id>"): None,
    ("PATCH", "/api/users/password"): {
        "currentPassword": PASSWORD,
        "newPassword": NEW_PASSWORD,
        "newPasswordConfirmation": NEW_PASSWORD,
    },
    ("POST", "/api/users"): {
        "email": "accomplice@example.com",
        "name": "Accomplice",
        "password": PASSWORD,
        "role": "admin",
    },
    BULK: {"ids": [], "action": "deactivate"},  # of the other user
    ("POST", "/api/users/invite"): {"email": "accomplice@example.com", "role": "admin"},
    ("POST", "/api/users/<id>/invite"): {},
    ("DELETE", "/api/users/<id>/invite"): None,
    ("PATCH", "/api/users/<id>"): {"role": "admin"},
    ("DELETE", "/api/users/<id>"): None,
    ("DELETE", "/api/users/<id>/sessions"): None,
    ("DELETE", "/api/users/<id>/sessions/<session_id>"): None,
    ("POST", "/api/users/<id>/unlock"): None,
    ("POST", "/api/users/<id>/reset-letter"): None,
    ("POST", "/api/users/<id>/confirm-letter"): None,
    ("DELETE", "/api/users/<id>/factors"): None,
    ("PUT", "/api/users/<id>/groups"): {"groups": ["staff"]},
    ("POST", "/api/groups"): {"name": "board"},
    ("DELETE", "/api/groups/<group>"): None,
    CLEANUP: {"includeNoExpiration": True},
}
FOR_SIGNED_IN = [route for route in TABLE if route.access.needs_session]
WRITING = [route for route in FOR_SIGNED_IN if (route.method, route.path) in REQUESTS]
ONLY_READING = [route for route in FOR_SIGNED_IN if (route.method, route.path) not in REQUESTS]


class Gate:
    """Stands before the writes of a store. `before` is called when a write is about to wait for the database."""

    def __init__(self, store: Store) -> None:
        self.real = store.write
        self.writes = 0
        self.before: Callable[[int], object] = id

    @contextmanager
    def write(self, **keywords: Any) -> Iterator[Transaction]:
        self.writes += 1
        self.before(self.writes)
        with self.real(**keywords) as tx:
            yield tx

    def reset(self, before: Callable[[int], object] = id) -> None:
        self.writes, self.before = 0, before


@dataclass
class Caller:
    """An admin who is signed in, has another session and an API token, and names another user in the request."""

    house: "House"
    user: User
    client: Client
    opened: Opened
    other_session: Session
    api_token: Session
    named: User
    session_of_named: Session
    unconfirmed: User
    invited: User

    def send(self, method: str, path: str) -> Reply:
        ids: dict[str, object] = {
            "<id>": self.named.id,
            "<session_id>": self.other_session.id,
            "<token_id>": self.api_token.id,
            "<provider>": "second" if method == "POST" else "oauth",
            "<group>": f"group-{self.named.id}",
        }
        if path.startswith("/api/users/<id>/"):
            ids["<session_id>"] = self.session_of_named.id
        if path.endswith("/confirm-letter"):
            ids["<id>"] = self.unconfirmed.id
        if path.endswith("/<id>/invite"):
            ids["<id>"] = self.invited.id
        body = REQUESTS.get((method, path))
        if (method, path) in OF_FACTORS:
            ids["<passkey_id>"] = self.with_factors()
        if (method, path) == CONFIRM_TOTP:
            body = {"code": self.code()}
        if (method, path) == ADD_PASSKEY:
            body = {"credential": Authenticator(ORIGIN).create(options(self.client, TO_ADD)), "name": "Key"}
        if (method, path) == BULK:
            body = {**(body or {}), "ids": [self.named.id]}
        return self.client.send(method, re.sub("<[a-z_]+>", lambda name: str(ids[name[0]]), path), body)

    @property
    def session(self) -> Session:
        return self.opened.session

    def with_factors(self) -> int:
        """The account has both kinds, and the session has proved one. Returns the id of the passkey."""
        with self.house.elsewhere.store.write() as tx:
            tx.add_totp(self.user.id, b"sealed", 0)
            passkey = store_passkey(tx, self.user.id, f"id of {self.user.id}")
            tx.note_proof(digest(self.opened.token), "passkey")
        return passkey.id

    def code(self) -> str:
        """The first one of an authenticator app that is being set up."""
        service = self.house.elsewhere
        begun = service.factors.begin_totp(self.user.id, session_id=self.session.id, by=author(self.opened))
        return totp.code_at(base64.b32decode(begun.secret), totp.step_at(service.now()))


@dataclass
class House:
    site: Site
    gate: Gate
    elsewhere: Service  # another process on the same database
    callers: int = 0

    def caller(self) -> Caller:
        self.gate.reset()
        self.elsewhere.lockdown.stop(by=OPERATOR)
        self.callers += 1
        user = self.site.add(f"caller-{self.callers}", role="admin")
        named = self.site.add(f"named-{self.callers}")
        with self.elsewhere.store.write() as tx:
            claim = {"claimed_email": f"new-{user.email}", "claim_expires_at": "2999-01-01T00:00:00.000Z"}
            tx.change_user(user.id, **claim)
        link(self.elsewhere, user.id, str(user.id))
        opened = [open_session(self.elsewhere, user) for _ in range(2)]
        # With an end, or the cleanup would remove it, and note that.
        year = timedelta(days=365)
        made = self.elsewhere.sessions.create_api_token(user.id, name="ci", lifetime=year, by=OPERATOR)
        session_of_named = open_session(self.elsewhere, named).session
        unconfirmed = self.elsewhere.registration.register(
            f"unconfirmed-{self.callers}@example.com", "Zoe", PASSWORD, by=OPERATOR
        )
        self.elsewhere.groups.create(f"group-{named.id}", by=OPERATOR)
        invited = self.site.add(f"invited-{self.callers}", password=None)
        self.elsewhere.invitations.again([invited.id], timedelta(days=7), by=OPERATOR)
        client = self.site.client(cookies={"auth_token": opened[0].token})
        self.gate.reset()
        return Caller(
            self,
            user,
            client,
            opened[0],
            opened[1].session,
            made.session,
            named,
            session_of_named,
            unconfirmed,
            invited,
        )

    def undo(self) -> None:
        """So that a request which creates the same account or group succeeds again."""
        self.gate.reset()
        for (user_id,) in query(self.elsewhere, "SELECT id FROM users WHERE email LIKE 'accomplice@%'"):
            self.elsewhere.accounts.delete([user_id], by=OPERATOR)
        if query(self.elsewhere, "SELECT 1 FROM groups WHERE name = 'board'"):
            self.elsewhere.groups.delete("board", by=OPERATOR)


@pytest.fixture
def house(tmp_path: Path) -> Iterator[House]:
    database = database_at(tmp_path / "users.db")
    add_database(database)
    settings = Settings(
        **fields_of(database, tmp_path),
        base_url=ORIGIN,
        rounds=4,
        limits_enabled=False,
        whitelist=("/register",),
        more_providers=(provider_settings("second", provider="github", client_id="x", client_secret="y"),),
    )
    with closing(build(settings)) as service, closing(build(settings)) as elsewhere:
        service.sessions.uses.wait = 3600  # no other write comes in between
        service.sessions.uses.overdue = timedelta(hours=1)
        for name in (COOKIES, USER_HANDLES):
            service.store.signing_key(name)
        gate = Gate(service.store)
        service.store.write = gate.write  # type: ignore[method-assign]
        with running(service, listening=None) as site:
            site.add("root", role="admin")
            elsewhere.groups.create("staff", by=OPERATOR)
            yield House(site, gate, elsewhere)
            gate.reset()  # the uses of sessions are written at the end, when nothing is lost any more


def renew_session(service: Service, caller: Caller) -> None:
    """As a change of the password does with the session that it comes from."""
    _, renew = service.sessions.renewal(caller.session)
    with service.store.write() as tx:
        renew(tx)


Loss = Callable[[Service, Caller], object]
LOSSES: dict[str, Loss] = {
    "demoted": lambda service, me: service.accounts.update(me.user.id, role="user", by=OPERATOR),
    "deactivated": lambda service, me: service.accounts.set_active([me.user.id], active=False, by=OPERATOR),
    "deleted": lambda service, me: service.accounts.delete([me.user.id], by=OPERATOR),
    "session ended": lambda service, me: service.sessions.revoke(me.session.id, by=OPERATOR),
    "session renewed": renew_session,
    "lockdown": lambda service, _: service.lockdown.start(None, by=OPERATOR),
}


def test_every_route_for_signed_in_callers_that_may_write_has_a_request_here() -> None:
    assert {(route.method, route.path) for route in ONLY_READING if route.method != "GET" or route.once} == {
        ("POST", "/api/users/me/identities/<provider>"),
        ("POST", TO_ADD),
    }  # they only begin, in a cookie and a challenge


@pytest.mark.parametrize("route", ONLY_READING, ids=lambda route: route.path)
def test_a_route_without_a_request_here_writes_nothing(house: House, route: Any) -> None:
    assert house.caller().send(route.method, route.path).status in (200, 302)
    assert house.gate.writes == 0


@pytest.mark.parametrize("route", WRITING, ids=lambda route: f"{route.method} {route.path}")
def test_a_caller_who_loses_the_right_while_the_request_waits_changes_nothing(
    house: House, route: Any
) -> None:
    assert house.caller().send(route.method, route.path).status == 200
    writes = house.gate.writes
    assert writes > 0
    if (route.method, route.path) == CLEANUP:
        writes -= 1  # the last one records what was done while the caller was an admin
    for loss, lose in LOSSES.items():
        for number in range(1, writes + 1):
            house.undo()
            caller, rows = house.caller(), dict[str, Any]()

            def before(
                write: int,
                number: int = number,
                lose: Loss = lose,
                caller: Caller = caller,
                rows: dict[str, Any] = rows,
            ) -> None:
                if write == number:
                    lose(house.elsewhere, caller)
                    rows.update(everything(house.elsewhere))

            house.gate.reset(before)
            reply = caller.send(route.method, route.path)
            if loss == "demoted" and route.access is Access.SIGNED_IN:
                assert reply.status == 200, "an own change needs no role"
            else:
                refusal = (
                    (403, "Admin access required") if loss == "demoted" else (401, "Authentication required")
                )
                assert (reply.status, reply.message) == refusal, (loss, number)
                assert everything(house.elsewhere) == rows, (loss, number)


@pytest.mark.parametrize("loss", LOSSES)
def test_a_waiting_admin_who_loses_the_right_promotes_no_accomplice(house: House, loss: str) -> None:
    """With the database held by another process until the loss is committed."""
    caller, waiting, replies = house.caller(), threading.Event(), list[Reply]()
    house.gate.reset(lambda _write: waiting.set())
    request = threading.Thread(target=lambda: replies.append(caller.send("PATCH", "/api/users/<id>")))
    with house.elsewhere.store.write() as tx:
        request.start()
        assert waiting.wait(10)
        if loss == "lockdown":
            tx.lock_down(tx.now_text, "cli:tester", None)
        elif loss == "demoted":
            tx.change_user(caller.user.id, role="user")
        elif loss == "deactivated":
            tx.change_user(caller.user.id, active=False)
        elif loss == "deleted":
            tx.delete_users([caller.user.id])
        else:
            tx.delete_token_by_id(caller.session.id)
    request.join(10)
    assert replies[0].status == (403 if loss == "demoted" else 401)
    assert house.elsewhere.accounts.get(caller.named.id).role == "user"


def test_an_api_token_changes_nothing_in_a_lockdown_that_began_while_the_request_waited(house: House) -> None:
    caller = house.caller()
    token = house.elsewhere.sessions.create_api_token(
        caller.user.id, name="ci", lifetime=None, by=OPERATOR
    ).token
    caller.client = house.site.client(headers={"Authorization": f"Bearer {token}"})
    house.gate.reset(lambda _write: house.elsewhere.lockdown.start(None, by=OPERATOR))
    assert caller.send("PATCH", "/api/users/<id>").status == 401
    assert house.elsewhere.accounts.get(caller.named.id).role == "user"
