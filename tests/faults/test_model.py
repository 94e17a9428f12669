"""Any sequence of what users, admins and operators do, over HTTP and by commands, with a clock that moves: the service
and a small model of it agree at each step, and in the end on everything.

A few hundred steps in every run; thousands by `USERSCTL_LONG=1 pytest tests/faults`.
"""

import contextlib
import io
import json
import os
import random
import signal
import sys
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import bcrypt
import pytest
from hypothesis import HealthCheck, Phase, assume, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    initialize,
    invariant,
    multiple,
    precondition,
    rule,
    run_state_machine_as_test,
)
from support.commands import PASSWORD
from support.databases import database_at, fields_of
from support.fakes import FakeClock
from support.faults import LONG
from support.web import Client, running

from usersctl import __main__
from usersctl.config import Settings
from usersctl.service import build
from usersctl.store.conninfo import Conninfo, Database
from usersctl.store.opening import open_store

PHASES = [Phase.explicit, Phase.reuse, Phase.generate]  # a smaller example would take minutes to find
EXAMPLES, STEPS = (100, 80) if LONG else (10, 30)
PASSWORDS = [PASSWORD, "another horse battery", "a third battery of horses"]
WRONG = "nobody's battery of horses"
NAMES = ["ada", "bea", "cy", "dee"]
MINUTE, DAY = timedelta(minutes=1), timedelta(days=1)
IDLE = {"session": DAY, "persistent": 30 * DAY}


@dataclass
class Person:
    id: int
    email: str
    name: str
    password: str
    role: str = "user"
    active: bool = True
    awaiting: datetime | None = None  # since when
    claim: tuple[str, datetime] | None = None  # a new address, and when its claim expires
    reserved: dict[str, datetime] = field(
        default_factory=dict
    )  # former addresses, in the order of giving them up

    def claimed(self, now: datetime) -> str | None:
        return self.claim[0] if self.claim is not None and self.claim[1] > now else None

    def called(self, now: datetime) -> str:
        return self.claimed(now) or self.email

    def has_lapsed(self, now: datetime) -> bool:
        return self.awaiting is not None and now - self.awaiting >= DAY


@dataclass
class Token:
    owner: int
    kind: str  # session, persistent, api
    expires: datetime | None
    limit: datetime | None
    used: datetime | None


@dataclass
class Link:
    kind: str
    owner: int
    email: str
    expires: datetime


@dataclass
class Model:
    people: dict[int, Person] = field(default_factory=dict)
    tokens: dict[str, Token] = field(default_factory=dict)
    links: dict[str, Link] = field(default_factory=dict)

    def is_free(
        self, email: str, now: datetime, but: Person | None = None, *, to_claim: bool = False
    ) -> bool:
        for person in self.people.values():
            if person is but:
                continue
            is_known = person.email == email and not person.has_lapsed(now)
            is_claimed = to_claim and person.claimed(now) == email
            if is_known or is_claimed or person.reserved.get(email, now) > now:
                return False
        return True

    def make_free(self, email: str, now: datetime, but: Person | None = None) -> None:
        for person in list(self.people.values()):
            if person is not but and person.email == email and person.has_lapsed(now):
                self.delete(person)
            elif person is not but and person.claim is not None and person.claim[0] == email:
                self.end_claim(person)

    def delete(self, person: Person) -> None:
        self.end_tokens(person.id)
        self.end_links(person.id)
        self.end_claim(person)
        del self.people[person.id]

    def end_claim(self, person: Person) -> None:
        person.claim = None
        self.end_links(person.id, "email")

    def give(self, person: Person, email: str, now: datetime) -> None:
        if email != person.email:
            self.make_free(email, now, person)
            self.end_links(person.id)
            person.email, person.reserved = email, {}
        self.end_claim(person)

    def change_own(self, person: Person, email: str, now: datetime) -> None:
        self.end_claim(person)
        if email != person.email:
            self.make_free(email, now, person)
            person.claim = (email, now + DAY)

    def admins(self) -> int:
        return sum(person.active and person.role == "admin" for person in self.people.values())

    def is_last_admin(self, person: Person) -> bool:
        return person.active and person.role == "admin" and self.admins() == 1

    def end_tokens(self, owner: int, *, but: str | None = None) -> None:
        self.tokens = {
            key: session for key, session in self.tokens.items() if session.owner != owner or key == but
        }

    def end_links(self, owner: int, *kinds: str) -> None:
        ended = kinds or ("confirm", "reset")
        self.links = {
            key: link for key, link in self.links.items() if link.owner != owner or link.kind not in ended
        }

    def holder(self, token: str | None, now: datetime) -> Person | None:
        """The owner of a valid token. Using it prolongs it."""
        session = self.tokens.get(token) if token is not None else None
        if session is None or (session.expires is not None and session.expires <= now):
            return None
        if session.used is None or now - session.used >= MINUTE:
            session.used = now
            if session.limit is not None:
                session.expires = min(now + IDLE[session.kind], session.limit)
        return self.people[session.owner]


class Machine(RuleBasedStateMachine):
    tokens: Bundle[str] = Bundle("tokens")
    links: Bundle[str] = Bundle("links")
    daemons = 1  # each with a connection of its own to the database; a request goes to any of them

    def __init__(self) -> None:
        super().__init__()
        self.stack = ExitStack()
        self.folder = Path(self.stack.enter_context(tempfile.TemporaryDirectory()))
        self.clock = FakeClock()
        self.model = Model()
        values = Settings(
            **fields_of(self.new_database(), self.folder),
            base_url="http://users.example.com",
            rounds=4,
            whitelist=("/register",),
            limits_enabled=False,
        )
        self.services = [build(values, now=self.clock) for _ in range(self.daemons)]
        self.service = self.services[0]
        for service in self.services:
            self.stack.callback(service.close)
        self.sites = [self.stack.enter_context(running(service)) for service in self.services]
        self.chance = random.Random(0)
        (self.folder / "users.toml").write_text(
            'passwordHashing.rounds = 10\nauth.whitelist = ["/register"]\n'
        )

    def new_database(self) -> Database:
        database: Database = database_at(self.folder / "users.db")
        return database

    @property
    def port(self) -> int:
        return self.chance.choice(self.sites).port

    def teardown(self) -> None:
        try:
            if self.model.people:
                self.agree()
        finally:
            self.stack.close()

    # --- the two ways in ---

    def http(
        self, method: str, path: str, body: Any = None, token: str | None = None
    ) -> tuple[int, Any, Client]:
        client = Client(self.port, {"auth_token": token} if token else {})
        reply = client.send(method, path, body)
        return reply.status, reply.json, client

    def cli(self, *words: str, stdin: str = "") -> tuple[int, Any]:
        """Runs a command in this process, which is fast and uses the clock of the test. The other tests of this
        folder start processes."""
        out, errors, salt = io.StringIO(), io.StringIO(), bcrypt.gensalt(4)
        with (
            pytest.MonkeyPatch.context() as patch,
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(errors),
        ):
            for name in [name for name in os.environ if name.startswith("USERS_")]:
                patch.delenv(name)
            patch.setenv("USERS_DATABASE", str(self.service.settings.database))
            patch.setenv("USERS_CONFIG", str(self.folder / "users.toml"))
            patch.setenv("STATE_DIRECTORY", str(self.folder))
            patch.setattr(sys, "argv", ["usersctl", "--json", "--no-input", *words])
            patch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin.encode())))
            patch.setitem(open_store.__kwdefaults__, "clock", self.clock)
            patch.setattr(bcrypt, "gensalt", lambda _rounds: salt)
            patch.setattr(signal, "signal", lambda *_arguments: None)
            with pytest.raises(SystemExit) as ended:
                __main__.main()
        code = ended.value.code
        assert isinstance(code, int)
        assert code != 1, errors.getvalue()
        return code, json.loads(out.getvalue()) if out.getvalue() and code == 0 else None

    def role_of(self, token: str | None) -> str | None:
        """The role of the caller, as the model has it."""
        person = self.model.holder(token, self.clock())
        return person.role if person is not None and person.active else None

    def refused(self, token: str | None, *, needs: str = "user") -> int | None:
        """The status of the refusal, or None if the caller is allowed."""
        role = self.role_of(token)
        if role is None:
            return 401
        return 403 if needs == "admin" and role != "admin" else None

    def refused_to_token(self, token: str, person: Person) -> int | None:
        """An API token changes nothing that its own user signs in with."""
        entry = self.model.tokens.get(token)
        is_own = entry is not None and entry.kind == "api" and entry.owner == person.id
        return 403 if is_own else None

    def me(self, token: str | None) -> Person:
        return (
            self.model.people[self.model.tokens[token].owner]
            if token
            else next(iter(self.model.people.values()))
        )

    def someone(self, pick: int) -> Person:
        people = list(self.model.people.values())
        return people[pick % len(people)]

    def add_token(self, token: str, owner: Person, kind: str) -> str:
        now = self.clock()
        self.model.tokens[token] = Token(owner.id, kind, now + IDLE[kind], now + 30 * DAY, now)
        return token

    # --- accounts are made ---

    @initialize(target=tokens)
    def an_admin_by_command(self) -> Any:
        code, made = self.cli(
            "create", "root@example.com", "--name", "Root", "--admin", "--password-stdin", stdin=PASSWORD
        )
        assert code == 0
        root = Person(made["id"], "root@example.com", "Root", PASSWORD, role="admin")
        self.model.people[root.id] = root
        status, _, client = self.http(
            "POST", "/api/users/session", {"email": root.email, "password": PASSWORD, "rememberMe": True}
        )
        assert status == 200
        return self.add_token(client.cookies["auth_token"], root, "persistent")

    @rule(
        name=st.sampled_from(NAMES),
        shout=st.booleans(),
        password=st.sampled_from(PASSWORDS),
        admin=st.booleans(),
    )
    def create_by_command(self, name: str, shout: bool, password: str, admin: bool) -> None:
        email = f"{name}@example.com"
        words = [
            "create",
            email.upper() if shout else email,
            "--name",
            name,
            "--password-stdin",
            *(["--admin"] if admin else []),
        ]
        code, made = self.cli(*words, stdin=password)
        if not self.model.is_free(email, self.clock()):
            assert code == 4
        else:
            assert code == 0
            self.model.make_free(email, self.clock())
            self.model.people[made["id"]] = Person(
                made["id"], email, name, password, role="admin" if admin else "user"
            )

    @rule(
        token=st.none() | tokens,
        name=st.sampled_from(NAMES),
        password=st.sampled_from(PASSWORDS),
        role=st.sampled_from(["user", "admin"]),
    )
    def create_over_http(self, token: str | None, name: str, password: str, role: str) -> None:
        email = f"{name}@example.com"
        expected = self.refused(token, needs="admin") or (
            200 if self.model.is_free(email, self.clock()) else 400
        )
        status, answer, _ = self.http(
            "POST", "/api/users", {"email": email, "name": name, "password": password, "role": role}, token
        )
        assert status == expected
        if status == 200:
            made = answer["user"]
            self.model.make_free(email, self.clock())
            self.model.people[made["id"]] = Person(made["id"], email, name, password, role=role)

    @rule(name=st.sampled_from(NAMES), password=st.sampled_from(PASSWORDS))
    def register(self, name: str, password: str) -> None:
        email = f"{name}@example.com"
        status, answer, _ = self.http(
            "POST", "/api/users/register", {"email": f" {email}", "name": name, "password": password}
        )
        assert status == (200 if self.model.is_free(email, self.clock()) else 400)
        if status == 200:
            number = answer["user"]["id"]
            self.model.make_free(email, self.clock())
            self.model.people[number] = Person(
                number, email, name, password, active=False, awaiting=self.clock()
            )

    # --- sessions ---

    @rule(
        target=tokens,
        pick=st.integers(0, 9),
        right=st.sampled_from([True, True, True, False]),
        remember=st.booleans(),
    )
    def sign_in(self, pick: int, right: bool, remember: bool) -> Any:
        person = self.someone(pick)
        password = person.password if right else WRONG
        status, _, client = self.http(
            "POST",
            "/api/users/session",
            {"email": person.email, "password": password, "rememberMe": remember},
        )
        assert status == (401 if not right else 200 if person.active else 403)
        if status != 200:
            return multiple()
        return self.add_token(client.cookies["auth_token"], person, "persistent" if remember else "session")

    @rule(token=tokens, bearer=st.booleans())
    def look_at_me(self, token: str, bearer: bool) -> None:
        person = self.model.holder(token, self.clock())
        client = Client(
            self.port,
            {} if bearer else {"auth_token": token},
            {"Authorization": f"Bearer {token}"} if bearer else {},
        )
        reply = client.get("/api/users/me")
        if person is None:
            assert reply.status == 401
        else:
            assert reply.status == 200
            self.agrees(person, reply.json["user"])

    @rule(token=tokens)
    def sign_out(self, token: str) -> None:
        assert self.http("DELETE", "/api/users/session", token=token)[0] == 200
        self.model.tokens.pop(token, None)

    @rule(target=tokens, pick=st.integers(0, 9), days=st.none() | st.integers(1, 60))
    def make_api_token(self, pick: int, days: int | None) -> Any:
        person = self.someone(pick)
        code, made = self.cli(
            "token", "create", person.email, *(["--no-expiry"] if days is None else ["--expires", f"{days}d"])
        )
        assert code == (0 if person.active else 5)
        if code:
            return multiple()
        expires = self.clock() + timedelta(days=days) if days is not None else None
        self.model.tokens[made["token"]] = Token(person.id, "api", expires, None, None)
        return made["token"]

    @rule(pick=st.integers(0, 9), token=st.none() | tokens)
    def end_all_sessions(self, pick: int, token: str | None) -> None:
        """By an admin, or without a token by command."""
        person = self.someone(pick)
        if token is None:
            assert self.cli("token", "revoke", str(person.id))[0] == 0
        else:
            status = self.http("DELETE", f"/api/users/{person.id}/sessions", token=token)[0]
            expected = self.refused(token, needs="admin") or self.refused_to_token(token, person)
            assert status == (expected or 200)
            if expected:
                return
        self.model.end_tokens(person.id)

    @rule(token=tokens)
    def see_my_sessions(self, token: str) -> None:
        expected = self.refused(token)
        status, answer, _ = self.http("GET", "/api/users/me/sessions", token=token)
        assert status == (expected or 200)
        if not expected:
            mine = self.me(token).id
            now = self.clock()
            live = [
                session
                for session in self.model.tokens.values()
                if session.owner == mine and (session.expires is None or session.expires > now)
            ]
            assert len(answer["sessions"]) == len(live)

    # --- accounts change ---

    @rule(
        pick=st.integers(0, 9),
        token=st.none() | tokens,
        change=st.sampled_from(
            [
                {"name": "New"},
                {"role": "admin"},
                {"role": "user"},
                {"active": False},
                {"active": True},
                {"email": "dee@example.com"},
                {"email": "eve@example.com", "name": "Eve"},
                {"role": "user", "name": "Plain"},
                {"role": "admin", "active": True},
            ]
        ),
    )
    def change(self, pick: int, token: str | None, change: dict[str, Any]) -> None:
        """By an admin, or without a token by command."""
        person = self.someone(pick)
        if token is None:
            assume("active" not in change or len(change) == 1)
            if "active" in change:
                words = ["activate" if change["active"] else "deactivate", person.email]
            else:
                words = [
                    "update",
                    str(person.id),
                    *(word for key, value in change.items() for word in (f"--{key}", value)),
                ]
            by = "command"
            expected, got = self.change_of(person, change, by), self.cli(*words)[0]
            assert got == {200: 0, 400: 4 if "email" in change else 5}[expected], (got, expected)
        else:
            refused = self.refused(token, needs="admin")
            if refused is None and "email" in change:
                refused = self.refused_to_token(token, person)
            by = "another admin"
            if refused is None and self.me(token).id == person.id:
                by = "itself"
            expected = refused or self.change_of(person, change, by)
            assert self.http("PATCH", f"/api/users/{person.id}", change, token)[0] == expected
        if expected == 200:
            self.changed(person, change, by)

    def moves(self, person: Person, email: str, by: str) -> bool:
        """Whether this is another address: a form sends back the claimed one that it shows."""
        return email != person.called(self.clock()) or (by == "command" and email != person.email)

    def change_of(self, person: Person, change: dict[str, Any], by: str) -> int:
        itself = by == "itself"
        new = {
            key: value for key, value in change.items() if key != "email" and getattr(person, key) != value
        }
        if "active" in change and person.awaiting:
            new["active"] = change["active"]
        if "active" in new and itself:
            return 403
        if self.model.is_last_admin(person) and (new.get("role") == "user" or new.get("active") is False):
            return 400
        email = change.get("email")
        if email is None or email == person.email or not self.moves(person, email, by):
            return 200
        return 200 if self.model.is_free(email, self.clock(), person, to_claim=itself) else 400

    def changed(self, person: Person, change: dict[str, Any], by: str) -> None:
        if change.get("active") is False and (person.active or person.awaiting):
            self.model.end_tokens(person.id)
            self.model.end_links(person.id)
            self.model.end_claim(person)
            person.reserved = {}
        if "active" in change:
            person.awaiting = None
        email = change.get("email")
        if email is not None and self.moves(person, email, by):
            move = self.model.change_own if by == "itself" else self.model.give
            move(person, email, self.clock())
        for key, value in change.items():
            if key != "email":
                setattr(person, key, value)

    @rule(token=tokens, name=st.sampled_from(["Countess", "Mother"]))
    def rename_myself(self, token: str, name: str) -> None:
        expected = self.refused(token)
        assert self.http("PATCH", "/api/users/me", {"name": name, "role": "admin", "active": False}, token)[
            0
        ] == (expected or 200)
        if not expected:
            self.me(token).name = name

    @rule(token=tokens, name=st.sampled_from([*NAMES, "eve"]))
    def change_my_address(self, token: str, name: str) -> None:
        email, now = f"{name}@example.com", self.clock()
        expected = self.refused(token)
        if expected is None:
            me = self.me(token)
            is_free = email == me.email or self.model.is_free(email, now, me, to_claim=True)
            expected = self.refused_to_token(token, me) or (200 if is_free else 400)
        assert self.http("PATCH", "/api/users/me", {"email": email}, token)[0] == expected
        if expected == 200 and email != me.called(now):
            self.model.change_own(me, email, now)

    @rule(pick=st.integers(0, 9), token=st.none() | tokens)
    def delete(self, pick: int, token: str | None) -> None:
        """By an admin, or without a token by command."""
        person = self.someone(pick)
        expected = None
        if token is not None:
            expected = self.refused(token, needs="admin") or self.refused_to_token(token, person)
        expected = expected or (400 if self.model.is_last_admin(person) else 200)
        if token is None:
            assert self.cli("delete", "--yes", person.email)[0] == (0 if expected == 200 else 5)
        else:
            assert self.http("DELETE", f"/api/users/{person.id}", token=token)[0] == expected
        if expected == 200:
            self.model.delete(person)

    # --- passwords and emails ---

    @rule(pick=st.integers(0, 9), password=st.sampled_from(PASSWORDS))
    def set_password_by_command(self, pick: int, password: str) -> None:
        person = self.someone(pick)
        assert self.cli("set-password", person.email, "--password-stdin", stdin=password)[0] == 0
        person.password = password
        self.model.end_tokens(person.id)
        self.model.end_links(person.id)
        self.model.end_claim(person)

    @rule(target=tokens, token=tokens, right=st.booleans(), password=st.sampled_from(PASSWORDS))
    def change_my_password(self, token: str, right: bool, password: str) -> Any:
        expected = self.refused(token) or (200 if right else 400)
        if self.refused(token) is None:
            expected = self.refused_to_token(token, self.me(token)) or expected
        current = self.me(token).password if token in self.model.tokens and right else WRONG
        body = {"currentPassword": current, "newPassword": password, "newPasswordConfirmation": password}
        status, _, client = self.http("PATCH", "/api/users/password", body, token)
        assert status == expected
        if status != 200:
            return multiple()
        person, entry = self.me(token), self.model.tokens[token]
        person.password = password
        self.model.end_tokens(person.id, but=token)
        self.model.end_links(person.id)
        del self.model.tokens[token]
        self.model.tokens[client.cookies["auth_token"]] = entry
        return client.cookies["auth_token"]

    @rule(target=links, pick=st.integers(0, 9), kind=st.sampled_from(["confirm", "reset", "email"]))
    def print_a_link(self, pick: int, kind: str) -> Any:
        person = self.someone(pick)
        code, output = self.cli("link", kind, person.email)
        if kind == "confirm" and not person.awaiting:
            assert code != 0
            return multiple()
        email, lifetime = person.email, timedelta(hours=1 if kind == "reset" else 24)
        if kind == "email":
            claimed = person.claimed(self.clock())
            if claimed is None:
                assert code == 5
                return multiple()
            email = claimed
            person.claim = (claimed, self.clock() + lifetime)
        assert code == 0
        token = str(output["url"]).partition("token=")[2].partition("&")[0]
        self.model.links[token] = Link(kind, person.id, email, self.clock() + lifetime)
        return token

    def good(self, link: str, kind: str) -> Person | None:
        known = self.model.links.get(link)
        if known is None or known.kind != kind or known.expires <= self.clock():
            return None
        return self.model.people[known.owner]

    @rule(link=links, email=st.sampled_from([f"{name}@example.com" for name in (*NAMES, "root")]))
    def confirm(self, link: str, email: str) -> None:
        person = self.good(link, "confirm")
        fits = person is not None and person.email == email and person.awaiting is not None
        status = self.http("GET", "/api/users/confirm-email?" + urlencode({"token": link, "email": email}))[0]
        assert status == (200 if fits else 400)
        if fits and person:
            person.active, person.awaiting = True, None
            self.model.end_links(person.id)

    @rule(link=links, own=st.booleans(), password=st.sampled_from(PASSWORDS))
    def reset(self, link: str, own: bool, password: str) -> None:
        person = self.good(link, "reset")
        fits = person is not None and own
        email = person.email if person is not None and own else "other@example.com"
        body = {"token": link, "email": email, "password": password, "password_confirmation": password}
        status = self.http("POST", "/api/users/password/reset", body)[0]
        assert status == (200 if fits else 400)
        if fits and person:
            person.password = password
            self.model.end_tokens(person.id)
            self.model.end_links(person.id)
            self.model.end_claim(person)

    @rule(link=links, right=st.booleans())
    def prove(self, link: str, right: bool) -> None:
        """The link to a new address, with the password."""
        now, person = self.clock(), self.good(link, "email")
        claimed = person.claimed(now) if person is not None else None
        fits = claimed is not None and self.model.links[link].email == claimed and person.active
        email = claimed or "other@example.com"
        password = person.password if person is not None and right else WRONG
        body = {"token": link, "email": email, "password": password}
        status = self.http("POST", "/api/users/me/email", body)[0]
        assert status == ((200 if right else 401) if fits else 400)
        if status != 200 or person is None:
            return
        if person.reserved.get(email, now) > now:
            order = list(person.reserved)
            for later in order[order.index(email) :]:
                del person.reserved[later]
        else:
            person.reserved.pop(person.email, None)
            person.reserved[person.email] = now + timedelta(days=7)
        person.email = email
        self.model.end_links(person.id)
        self.model.end_claim(person)

    @rule(pick=st.integers(0, 9))
    def forget(self, pick: int) -> None:
        assert self.http("POST", "/api/users/password/forgot", {"email": self.someone(pick).email})[0] == 200

    # --- time and cleanup ---

    @rule(
        span=st.sampled_from(
            [
                timedelta(seconds=30),
                timedelta(minutes=2),
                timedelta(minutes=59, seconds=59),
                timedelta(hours=6),
                timedelta(hours=24),
                timedelta(days=10),
            ]
        )
    )
    def wait(self, span: timedelta) -> None:
        # As the daemon does in such a span. What a clock that jumps does to notes: tests/core/test_session_uses.py
        for service in self.services:
            service.sessions.uses.write()
        self.clock.now += span

    @rule(token=st.none() | tokens, endless=st.booleans())
    def clean_up(self, token: str | None, endless: bool) -> None:
        """By an admin, or without a token by command."""
        refused = self.refused(token, needs="admin") if token is not None else None
        now = self.clock()
        stale = {
            key
            for key, session in self.model.tokens.items()
            if session.expires is not None and session.expires <= now
        }
        for_ever = {key for key, session in self.model.tokens.items() if session.expires is None and endless}
        if token is None:
            code, output = self.cli("cleanup-tokens", *(["--include-no-expiration"] if endless else []))
            assert code == 0
        else:
            status, output, _ = self.http(
                "POST", "/_tasks/users:cleanup-tokens", {"includeNoExpiration": endless}, token
            )
            assert status == (refused or 200)
        if not refused:
            assert (output["expiredTokensRemoved"], output["noExpirationTokensRemoved"]) == (
                len(stale),
                len(for_ever),
            )
            self.model.tokens = {
                key: session for key, session in self.model.tokens.items() if key not in stale | for_ever
            }
            for person in list(self.model.people.values()):
                if person.awaiting is not None and now - person.awaiting >= timedelta(days=30):
                    self.model.delete(person)

    # --- agreement ---

    def agrees(self, person: Person, printed: dict[str, Any]) -> None:
        seen = {name: printed[name] for name in ("id", "name", "role", "active")}
        assert seen == {name: getattr(person, name) for name in seen}
        assert printed["email"] == person.called(self.clock())

    @precondition(lambda self: bool(self.model.people))
    @invariant()
    def there_is_an_admin(self) -> None:
        with self.service.store.read() as tx:
            assert tx.active_admins() == self.model.admins() >= 1
            assert tx.counts()["users"] == len(self.model.people)
            assert tx.counts()["auth_tokens"] == len(self.model.tokens)

    def agree(self) -> None:
        code, listed = self.cli("list")
        assert code == 0
        assert {entry["id"] for entry in listed} == set(self.model.people)
        for entry in listed:
            self.agrees(self.model.people[entry["id"]], entry)
        for token in list(self.model.tokens):
            self.look_at_me(token, bearer=True)


def agree_after_any_sequence(machine: type[Machine]) -> None:
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=EXAMPLES,
            stateful_step_count=STEPS,
            deadline=None,
            suppress_health_check=list(HealthCheck),
            print_blob=True,
            phases=PHASES,
        ),
    )


@pytest.mark.slow
def test_the_service_and_its_model_agree_after_any_sequence_of_actions() -> None:
    agree_after_any_sequence(Machine)


@pytest.mark.slow
def test_three_daemons_on_one_server_and_the_model_agree_after_any_sequence_of_actions(
    postgres_database: Callable[[], Conninfo],
) -> None:
    class OfThree(Machine):
        daemons = 3

        def new_database(self) -> Database:
            return postgres_database()

    agree_after_any_sequence(OfThree)
