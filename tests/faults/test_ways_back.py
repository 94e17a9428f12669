"""The person who reads the emails to a proven address can always get the account back, and no other person ever can.

An owner and two attackers do anything in any order: register, confirm, claim an address, prove it, take it back, sign in
through one of two providers, link accounts of theirs there, reset, use "this wasn't me", unlink, delete, undo, accept an invitation,
add and remove authenticator apps, make recovery codes. The attackers also steal sessions and passwords, and an admin invites
addresses and accounts without looking whose they are. After each step the owner takes each of their accounts back, on a copy of the
database, while the attackers try everything.

A factor is its holder's once the link that takes it back has expired: then the emails alone open the account no more, which is
what a second factor is for. Until then the owner takes a factor of an attacker back, and one of their own stands against
attackers who know even the new password.

A receiver of webhooks goes along: from its events alone it knows each account after each step.

A few hundred steps in every run; ten thousand by `USERSCTL_LONG=1 pytest tests/faults/test_ways_back.py`.
"""

import json
import tempfile
from base64 import b32decode
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from email.message import EmailMessage
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test
from support.databases import IN_MEMORY, SECRET_KEY, database_at
from support.fakes import FakeClock
from support.faults import LONG
from support.identities import provider_settings
from support.postbox import Link, link_in, send_all
from support.receivers import SECRET
from support.tables import query

from usersctl.clock import stamp
from usersctl.config import Settings
from usersctl.config.webhooks import Webhook
from usersctl.errors import Busy, UsersError
from usersctl.factors import totp
from usersctl.factors.sealing import totp_context
from usersctl.invitations import guest
from usersctl.models import OAUTH, SYSTEM, UNKNOWN_CLIENT, Actor, Enrolment, Proof, Purpose, User, UserFilter
from usersctl.oauth.providers import Profile
from usersctl.secrets import digest
from usersctl.service import Service, build
from usersctl.sessions import Opened, Pending
from usersctl.store.conninfo import Database
from usersctl.store.transaction import Transaction

EXAMPLES, STEPS = (200, 50) if LONG else (8, 25)
OWNER, ATTACKERS = "ada", ("eve", "mal")
PEOPLE = (OWNER, *ATTACKERS)
# Each person reads two addresses, and has an account at each provider for each of them.
ADDRESSES = {person: (f"{person}@example.com", f"{person}2@example.com") for person in PEOPLE}
EVERY_ADDRESS = [address for addresses in ADDRESSES.values() for address in addresses]
PASSWORDS = {person: f"{person}'s horse battery" for person in PEOPLE}
KEPT = timedelta(days=5)  # a notice is at most two days older than the change, and its link works for seven
SECOND = "second"  # a provider of auth.providers
RECOVERED = "a password for the account that is back"
WEB = Actor("anonymous", "192.0.2.1")
RECEIVER = Webhook("receiver", "https://receiver.example.com/", (SECRET,))
# What events tell of an account. A new picture and a sign-in are no change.
TOLD = ("email", "name", "role", "active", "oauth_id")

PROVIDERS = (OAUTH, SECOND)

person = st.sampled_from(PEOPLE)
provider = st.sampled_from(PROVIDERS)
attacker = st.sampled_from(ATTACKERS)
address = st.sampled_from(EVERY_ADDRESS)
own = st.integers(0, 1)  # which of one's own addresses
pick = st.integers(0, 99)  # which of one's sessions, passwords or links, from the newest


def profile_of(who: str, own: int) -> Profile:
    """At both providers."""
    email = ADDRESSES[who][own]
    return Profile(f"id of {email}", email, email_verified=True, name=who, picture=None)


@dataclass
class Holdings:
    """What one person has in their hands."""

    sessions: list[str] = field(default_factory=list)
    passwords: list[str] = field(default_factory=list)
    claimed: list[int] = field(default_factory=list)  # the accounts whose address they have changed
    apps: list[tuple[int, bytes]] = field(
        default_factory=list
    )  # authenticator apps: account and secret, newest first
    codes: list[tuple[int, str]] = field(
        default_factory=list
    )  # recovery codes: account and code, newest first
    enrolled: set[str] = field(default_factory=set)  # when they added an app or made codes


class World:
    """A service, its mailboxes, and what each person holds."""

    def __init__(self, database: Database, folder: Path, clock: FakeClock) -> None:
        values = Settings(
            database=database,
            state_folder=folder,
            secret_keys=(SECRET_KEY,),
            base_url="http://users.example.com",
            rounds=4,
            whitelist=("/register",),
            limits_enabled=False,
            webhooks=(RECEIVER,),
            oauth_client_id="users",
            oauth_client_secret="secret",
            oauth_issuer="https://id.example.com",
            oauth_allow_auto_registration=True,
            more_providers=(
                provider_settings(
                    SECOND,
                    client_id="users",
                    client_secret="secret",
                    issuer="https://second.example.com",
                    allow_auto_registration=True,
                ),
            ),
        )
        self.clock = clock
        self.emails: list[Link] = []
        self.holdings = {person: Holdings([], [PASSWORDS[person]]) for person in PEOPLE}
        self.service: Service = build(values, now=clock, send=self._receive)

    def copy(self, database: Path) -> "World":
        """In a file, also of a database on a server."""
        self.service.store.copy(database)
        copied = World(database, database.parent, self.clock)
        copied.emails = list(self.emails)
        copied.holdings = deepcopy(self.holdings)
        return copied

    def _receive(self, message: EmailMessage, _recipient: str, _number: int) -> str:
        body = message.get_body(("plain",))
        assert body is not None
        text = body.get_content()
        if "http" in text:
            self.emails.append(link_in(text))
        return "250 OK"

    def tried(self, action: Callable[[], Any]) -> Any:
        """The result of an action that may be refused. Busy is no refusal: so is a machine with much else to do."""
        result = None
        for _ in range(5):
            try:
                result = action()
            except Busy:
                continue
            except UsersError:
                pass
            break
        send_all(self.service)
        return result

    # --- what people see ---

    def links(self, who: str, *pages: str) -> list[Link]:
        """Those that a person can read, the newest first."""
        return [link for link in self.emails[::-1] if link.email in ADDRESSES[who] and link.path in pages]

    def signed_in(self, token: str) -> tuple[User, Actor] | None:
        known = self.service.sessions.check(token)
        if known is None:
            return None
        user = known[1]
        return user, Actor(f"user:{user.id}", None, user.id, digest(token))

    def user(self, user_id: int) -> User | None:
        with self.service.store.read() as tx:
            return tx.user(user_id)

    # --- what people do; all of it may be refused ---

    def sign_in(self, who: str, address: str, password: str) -> User | None:
        opened = self.tried(lambda: self.service.sessions.login(address, password))
        return self._keep(who, opened)

    def by_provider(self, who: str, own: int, provider: str = OAUTH) -> User | None:
        profile, sign_in = profile_of(who, own), self.service.sign_ins[provider]
        then = partial(self.service.sessions.open_in, remember=True, client=UNKNOWN_CLIENT)
        return self._keep(who, self.tried(lambda: sign_in.user_for(profile, then=then, by=WEB)))

    def _keep(self, who: str, opened: Any) -> User | None:
        if isinstance(opened, Pending):
            opened = self._finish(who, opened)
        if opened is None:
            return None
        self.holdings[who].sessions.insert(0, opened.token)
        user: User = opened.user
        return user

    def _finish(self, who: str, pending: Pending) -> Any:
        """The second step, with all that this person has for the account."""
        finish, then = self.service.second_step.finish, self.service.sessions.finish
        for proof in self.proofs(who, pending.user.id):
            opened = self.tried(
                lambda proof=proof: finish([pending.token], proof, then=then, client=UNKNOWN_CLIENT, by=WEB)
            )
            if opened is not None:
                return opened
        return None

    def proofs(self, who: str, user_id: int) -> list[Proof]:
        """Four at most, because five wrong ones end a sign-in. A code works once, so that time goes on."""
        self.clock.move(seconds=31)
        holds, step = self.holdings[who], totp.step_at(self.clock())
        secrets = [secret for account, secret in holds.apps if account == user_id][:2]
        codes = [code for account, code in holds.codes if account == user_id][:2]
        return [Proof(totp.code_at(secret, step)) for secret in secrets] + [
            Proof(recovery_code=code) for code in codes
        ]

    def with_session(self, who: str, pick: int, action: Callable[[User, Actor], Any]) -> Any:
        sessions = self.holdings[who].sessions
        known = self.signed_in(sessions[pick % len(sessions)]) if sessions else None
        if known is not None:
            return self.tried(lambda: action(*known))
        return None

    def use(self, link: Link, password: str) -> None:
        """What the page behind a link does."""
        service, token, email = self.service, link.token, link.email
        (reader,) = (person for person in PEOPLE if email in ADDRESSES[person])
        by = self.newest_session(reader)
        uses: dict[str, Callable[[], object]] = {
            "/confirm-email": lambda: service.registration.confirm(token, email, by=WEB),
            "/confirm-new-email": lambda: service.claims.prove(token, email, password, by=by),
            "/reset-password": lambda: service.recovery.reset(token, email, password, by=WEB),
            "/not-me": lambda: service.recovery.not_me(token, email, by=WEB),
            "/confirm-deletion": lambda: service.deletion.confirm(token, email, by=WEB),
            "/undo-deletion": lambda: service.deletion.undo(token, email, by=WEB),
            "/accept-invite": lambda: service.invitations.accept(
                token, email, "Guest", password, then=self._open, by=WEB
            ),
        }
        done = self.tried(uses[link.path])
        if link.path == "/accept-invite":
            self._keep(reader, done)

    def newest_session(self, who: str) -> Actor:
        """The browser of this person."""
        for token in self.holdings[who].sessions[:1]:
            known = self.signed_in(token)
            if known is not None:
                return known[1]
        return WEB

    def _open(self, tx: Transaction, user: User) -> Opened | Pending:
        return self.service.sessions.open_in(tx, user, remember=False, client=UNKNOWN_CLIENT)

    def forget(self, address: str) -> None:
        self.clock.move(minutes=16)  # at most three emails in a quarter of an hour
        self.tried(lambda: self.service.recovery.forgot(address))

    # --- second factors ---

    def confirm(self, who: str, pick: int) -> tuple[User, Actor, int] | None:
        """One of their sessions, which is fresh, if anything that this person has makes it so."""
        sessions = self.holdings[who].sessions
        known = self.service.sessions.check(sessions[pick % len(sessions)]) if sessions else None
        if known is None:
            return None
        session, user = known
        by = Actor(f"user:{user.id}", None, user.id, digest(sessions[pick % len(sessions)]))
        for password in self.holdings[who].passwords[:2]:
            self.tried(
                lambda password=password: self.service.freshness.confirm(
                    user.id, password, session_id=session.id, by=by
                )
            )
        for proof in self.proofs(who, user.id):
            self.tried(
                lambda proof=proof: self.service.second_step.confirm(
                    user.id, proof, session_id=session.id, by=by
                )
            )
        return user, by, session.id

    def enrol(self, who: str, pick: int) -> None:
        proven = self.confirm(who, pick)
        if proven is None:
            return
        user, by, session_id = proven
        factors = self.service.factors
        new = self.tried(lambda: factors.begin_totp(user.id, session_id=session_id, by=by))
        if new is None:
            return
        secret = b32decode(new.secret)
        code = totp.code_at(secret, totp.step_at(self.clock()))
        codes = self.tried(lambda: factors.confirm_totp(user.id, code, session_id=session_id, by=by))
        if self.app_of(user.id) == secret:
            self.holdings[who].apps.insert(0, (user.id, secret))
            self._note(who, user.id, codes)

    def new_codes(self, who: str, pick: int) -> None:
        proven = self.confirm(who, pick)
        if proven is not None:
            user, by, _ = proven
            codes = self.tried(lambda: self.service.factors.new_recovery_codes(user.id, by=by))
            if codes is not None:
                self._note(who, user.id, codes)

    def _note(self, who: str, user_id: int, codes: list[str] | None) -> None:
        self.holdings[who].enrolled.add(stamp(self.clock()))
        self.holdings[who].codes[:0] = [(user_id, code) for code in codes or ()]

    def remove_app(self, who: str, pick: int) -> None:
        proven = self.confirm(who, pick)
        if proven is not None:
            user, by, _ = proven
            self.tried(lambda: self.service.factors.remove_totp(user.id, by=by))

    def app_of(self, user_id: int) -> bytes | None:
        with self.service.store.read() as tx:
            stored = tx.totp(user_id)
        return stored and self.service.sealer.open(stored.secret, totp_context(user_id))

    def has_own_app(self, user_id: int) -> bool:
        return (user_id, self.app_of(user_id)) in self.holdings[OWNER].apps

    def is_settled(self, user_id: int) -> bool:
        """An attacker's factor, or their recovery codes, are there for so long that no link takes them back."""
        since = stamp(self.clock() - KEPT)
        with self.service.store.read() as tx:
            stored = tx.totp(user_id)
            made = [
                at for (at,) in tx._run("SELECT created_at FROM recovery_codes WHERE user_id = ?", (user_id,))
            ]
        if stored is not None:
            made.append(stored.created_at)
        return any(at < since for at in made if at not in self.holdings[OWNER].enrolled)

    # --- the owner's way back, and everything that others can try ---

    def addresses(self) -> dict[int, tuple[str, bool]]:
        """The known address of each account, and whether it is proven."""
        with self.service.store.read() as tx:
            users = [credentials.user for credentials in tx.all_credentials()]
        return {user.id: (user.email, user.email_proven_at is not None) for user in users}

    def get_back(self, user_id: int, address: str) -> None:
        self.use_all("/not-me", address)
        self.forget(address)
        self.use_all("/accept-invite", address)
        self.use_all("/undo-deletion", address)
        self.use_all("/reset-password", address)
        # A reset proves the address of a registration, too, and leaves it to be confirmed.
        self.tried(lambda: self.service.registration.resend(address))
        self.use_all("/confirm-email", address)
        user = self.sign_in(OWNER, address, RECOVERED)
        assert user is not None, "the owner gets the account back"
        assert (user.id, user.email, user.claimed_email) == (user_id, address, None)

    def use_all(self, page: str, address: str) -> None:
        for link in self.links(OWNER, page):
            if link.email == address and not self.is_of_own_factor(link):
                self.use(link, RECOVERED)

    def is_of_own_factor(self, link: Link) -> bool:
        with self.service.store.read() as tx:
            found = tx.one_time_token(Purpose.NOT_ME, digest(link.token))
        about = found and found.about
        return about is not None and Enrolment.read(about).made_at in self.holdings[OWNER].enrolled

    def attack(self, user_id: int) -> None:
        """No attacker gets into the account by anything that they hold or ask for."""
        for who in ATTACKERS:
            for address in ADDRESSES[who]:
                self.forget(address)
        for who in ATTACKERS:
            holds = self.holdings[who]
            for link in self.links(
                who,
                "/not-me",
                "/undo-deletion",
                "/reset-password",
                "/confirm-email",
                "/confirm-new-email",
                "/accept-invite",
            ):
                self.use(link, holds.passwords[0])
            entered = [self.by_provider(who, own, provider) for own in (0, 1) for provider in PROVIDERS]
            known = [RECOVERED, *holds.passwords] if self.has_own_app(user_id) else holds.passwords
            entered += [
                self.sign_in(who, address, password) for address in EVERY_ADDRESS for password in known
            ]
            entered += [known[0] for token in holds.sessions if (known := self.signed_in(token))]
            assert user_id not in {user.id for user in entered if user is not None}, f"{who} got in"


class Receiver:
    """Keeps what events tell of accounts. It reads them where they wait to be sent."""

    def __init__(self, service: Service) -> None:
        self.service = service
        self.accounts: dict[int, tuple[Any, ...]] = {}
        self.last = 0  # the id of the newest event that it has taken

    def take_all(self) -> None:
        newer = "SELECT id, kind, payload FROM outbox WHERE webhook = ? AND id > ? ORDER BY id"
        events = query(self.service, newer, RECEIVER.name, self.last)
        for self.last, kind, payload in events:
            user = json.loads(payload)["data"]["user"]
            is_new = user["id"] not in self.accounts
            assert (kind == "user.created") == is_new, f"{kind} of user {user['id']}"
            self.accounts[user["id"]] = tuple(user[name] for name in TOLD)
            if kind == "user.deleted":
                del self.accounts[user["id"]]


class Machine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory(dir=IN_MEMORY)
        self.clock = FakeClock()
        folder = Path(self.folder.name)
        self.world = World(database_at(folder / "users.db"), folder, self.clock)
        self.receiver = Receiver(self.world.service)
        self.copies = 0
        self.seen: Any = None
        self.addresses: dict[int, tuple[str, bool]] = {}
        # The owner's addresses that an account had and lost, in this order, and until when they can be put back.
        self.lost: dict[int, dict[str, datetime]] = {}

    def teardown(self) -> None:
        self.world.service.close()
        self.folder.cleanup()

    @initialize(account=st.sampled_from(["with a password", "with a password", "by the provider", "none"]))
    def begin(self, account: str) -> None:
        """Most often the owner is signed in."""
        if account == "with a password":
            self.register(OWNER, ADDRESSES[OWNER][0])
            self.confirm(OWNER, 0)
            self.sign_in(OWNER, ADDRESSES[OWNER][0], 0)
        elif account == "by the provider":
            self.sign_in_through_the_provider(OWNER, 0)

    # --- accounts are made ---

    @rule(who=person, address=address)
    def register(self, who: str, address: str) -> None:
        if who == OWNER and address not in ADDRESSES[OWNER]:
            return
        register = self.world.service.registration.register
        self.world.tried(lambda: register(address, who, PASSWORDS[who], by=WEB))

    @rule(who=person, pick=pick)
    def confirm(self, who: str, pick: int) -> None:
        self.use(who, pick, "/confirm-email")

    @rule(who=person, own=own, provider=provider)
    def sign_in_through_the_provider(self, who: str, own: int, provider: str = OAUTH) -> None:
        self.world.by_provider(who, own, provider)

    @rule(who=person, address=address, pick=pick)
    def sign_in(self, who: str, address: str, pick: int) -> None:
        passwords = self.world.holdings[who].passwords
        self.world.sign_in(who, address, passwords[pick % len(passwords)])

    # --- invitations, by an admin who does not look ---

    @rule(address=address, role=st.sampled_from(["user", None]))
    def invite(self, address: str, role: str | None) -> None:
        invite = self.world.service.invitations.invite
        self.world.tried(lambda: invite([guest(address, None, role)], timedelta(days=1), by=SYSTEM))

    @rule(pick=pick)
    def invite_again(self, pick: int) -> None:
        self.of_any_account(
            pick, lambda users: self.world.service.invitations.again(users, timedelta(days=1), by=SYSTEM)
        )

    @rule(pick=pick)
    def withdraw(self, pick: int) -> None:
        before = self.world.addresses()
        self.of_any_account(pick, lambda users: self.world.service.invitations.withdraw(users, by=SYSTEM))
        proven = {user_id for user_id, (_, is_proven) in before.items() if is_proven}
        assert proven <= self.world.addresses().keys(), "an account in use stays"

    def of_any_account(self, pick: int, change: Callable[[list[int]], object]) -> None:
        users = list(self.world.addresses())
        if users:
            self.world.tried(lambda: change([users[pick % len(users)]]))

    @rule(who=person, pick=pick, password=pick)
    def accept(self, who: str, pick: int, password: int) -> None:
        self.use(who, pick, "/accept-invite", password)

    # --- what is stolen ---

    @rule(who=attacker, pick=pick)
    def steal_a_session(self, who: str, pick: int) -> None:
        sessions = self.world.holdings[OWNER].sessions
        if sessions:
            self.world.holdings[who].sessions.insert(0, sessions[pick % len(sessions)])

    @rule(who=attacker)
    def learn_the_owners_password(self, who: str) -> None:
        self.world.holdings[who].passwords.insert(0, PASSWORDS[OWNER])

    # --- addresses ---

    @rule(who=person, pick=pick, address=address)
    def claim(self, who: str, pick: int, address: str) -> None:
        if who == OWNER and address not in ADDRESSES[OWNER]:
            return

        def change(user: User, by: Actor) -> None:
            self.world.service.accounts.update(user.id, email=address, by=by)
            self.world.holdings[who].claimed.append(user.id)

        self.world.with_session(who, pick, change)

    @rule(who=person, pick=pick, password=pick)
    def prove(self, who: str, pick: int, password: int) -> None:
        self.use(who, pick, "/confirm-new-email", password)

    @rule(who=person, pick=pick)
    def take_back(self, who: str, pick: int) -> None:
        claims = self.world.service.claims
        self.world.with_session(who, pick, lambda user, by: claims.take_back(user.id, by=by))

    @rule(who=person, pick=pick)
    def send_again(self, who: str, pick: int) -> None:
        claims = self.world.service.claims
        self.world.with_session(who, pick, lambda user, by: claims.resend(user.id, by=by))

    @rule(who=attacker, pick=pick, own=own)
    def steal_and_move(self, who: str, pick: int, own: int) -> None:
        """The shortest way for a thief with a session and the password: random steps find it too seldom."""
        self.learn_the_owners_password(who)
        self.steal_a_session(who, pick)
        self.claim(who, 0, ADDRESSES[who][own])
        self.prove(who, 0, 0)

    @rule(who=attacker, own=own)
    def move_on(self, who: str, own: int) -> None:
        self.claim(who, 0, ADDRESSES[who][own])
        self.prove(who, 0, 0)

    # --- ways back ---

    @rule(address=address)
    def forget(self, address: str) -> None:
        self.world.forget(address)

    @rule(who=person, pick=pick)
    def reset(self, who: str, pick: int) -> None:
        self.use(who, pick, "/reset-password")

    @rule(who=person, pick=pick)
    def this_was_not_me(self, who: str, pick: int) -> None:
        self.use(who, pick, "/not-me")

    # --- links to the provider, and deletion ---

    @rule(who=person, pick=pick, provider=provider)
    def unlink(self, who: str, pick: int, provider: str) -> None:
        identities = self.world.service.identities
        self.world.with_session(who, pick, lambda user, by: identities.disconnect(user.id, provider, by=by))

    @rule(who=person, pick=pick, own=own, provider=provider, password=pick)
    def link(self, who: str, pick: int, own: int, provider: str, password: int) -> None:
        service, passwords = self.world.service, self.world.holdings[who].passwords

        def prove(user: User, by: Actor) -> None:
            chosen = passwords[password % len(passwords)]
            service.freshness.confirm(user.id, chosen, session_id=0, by=by)

        def link(user: User, by: Actor) -> None:
            service.identities.prepare_link(user.id, provider, by=by)
            service.sign_ins[provider].link(user.id, profile_of(who, own), by=by)

        self.world.with_session(who, pick, prove)
        self.world.with_session(who, pick, link)

    @rule(who=attacker, own=own, provider=provider)
    def steal_and_link(self, who: str, own: int, provider: str) -> None:
        self.learn_the_owners_password(who)
        self.steal_a_session(who, 0)
        self.link(who, 0, own, provider, 0)

    # --- second factors ---

    @rule(who=person, pick=pick)
    def add_an_app(self, who: str, pick: int) -> None:
        self.world.enrol(who, pick)

    @rule(own=own)
    def the_owner_adds_an_app(self, own: int) -> None:
        """The owner is seldom in a session that is fresh."""
        self.sign_in(OWNER, ADDRESSES[OWNER][own], 0)
        self.world.enrol(OWNER, 0)

    @rule(who=person, pick=pick)
    def remove_the_app(self, who: str, pick: int) -> None:
        self.world.remove_app(who, pick)

    @rule(who=person, pick=pick)
    def make_new_codes(self, who: str, pick: int) -> None:
        self.world.new_codes(who, pick)

    @rule(who=attacker, own=own, moves=st.sampled_from(["first", "then", "no"]))
    def steal_and_add_an_app(self, who: str, own: int, moves: str) -> None:
        self.learn_the_owners_password(who)
        self.steal_a_session(who, 0)
        if moves == "first":
            self.move_on(who, own)
        self.world.enrol(who, 0)
        if moves == "then":
            self.move_on(who, own)

    @rule(who=person, pick=pick, password=pick)
    def delete(self, who: str, pick: int, password: int) -> None:
        passwords = self.world.holdings[who].passwords

        def request(user: User, by: Actor) -> object:
            chosen = passwords[password % len(passwords)]
            return self.world.service.deletion.request(user.id, chosen, session_id=0, by=by)

        self.world.with_session(who, pick, request)

    @rule(who=attacker, pick=pick)
    def confirm_a_deletion(self, who: str, pick: int) -> None:
        self.use(who, pick, "/confirm-deletion")

    @rule(who=person, pick=pick)
    def undo(self, who: str, pick: int) -> None:
        self.use(who, pick, "/undo-deletion")

    def use(self, who: str, pick: int, page: str, password: int = 0) -> None:
        """The owner confirms only what they did themselves."""
        links, passwords = self.world.links(who, page), self.world.holdings[who].passwords
        if not links:
            return
        link = links[pick % len(links)]
        if who == OWNER and not self.was_the_owner(link):
            return
        self.world.use(link, passwords[password % len(passwords)])

    def was_the_owner(self, link: Link) -> bool:
        with self.world.service.store.read() as tx:
            row = tx._run(
                "SELECT user_id FROM one_time_tokens WHERE token_hash = ?", (digest(link.token),)
            ).fetchone()
        claimed = self.world.holdings[OWNER].claimed
        return link.path != "/confirm-new-email" or (row is not None and row[0] in claimed)

    # --- time ---

    @rule(hours=st.sampled_from([1, 12, 25]))
    def wait(self, hours: int) -> None:
        self.clock.now += timedelta(hours=hours)
        self.world.tried(self.world.service.claims.expire)
        self.world.tried(lambda: self.world.service.cleaner.run(by=SYSTEM))

    # --- the promise ---

    def is_as_before(self) -> bool:
        """The last step was refused, or changed nothing that this is about."""
        with self.world.service.store.read() as tx:
            row = tx.last_audit_row()
        before = self.seen
        self.seen = (row and row.id, len(self.world.emails), deepcopy(self.world.holdings), self.clock.now)
        return before == self.seen

    def rightful(self) -> dict[int, str]:
        """The accounts that are the owner's to get back, and the address to do it from: the one that was lost first, else
        the proven one."""
        before, self.addresses = self.addresses, self.world.addresses()
        for user_id, (former, was_proven) in before.items():
            lost = self.lost.setdefault(user_id, {})
            if user_id in self.addresses and self.addresses[user_id][0] != former:
                if was_proven and former in ADDRESSES[OWNER]:
                    lost.setdefault(former, self.clock.now + KEPT)
                returned = self.addresses[user_id][0]
                if returned in lost:  # also those after it are as if they had never been
                    order = list(lost)
                    for later in order[order.index(returned) :]:
                        del lost[later]
        owners = {}
        for user_id, (email, is_proven) in self.addresses.items():
            owed = [
                address for address, until in self.lost.get(user_id, {}).items() if self.clock.now < until
            ]
            owed += [email] * (is_proven and email in ADDRESSES[OWNER])
            if owed and not self.world.is_settled(user_id):
                owners[user_id] = owed[0]
        return owners

    @invariant()
    def a_receiver_of_all_events_knows_each_account(self) -> None:
        self.receiver.take_all()
        with self.world.service.store.read() as tx:
            users = {user.id: user.as_known() for user in tx.users(UserFilter())}
        known = {user_id: tuple(user[name] for name in TOLD) for user_id, user in users.items()}
        assert self.receiver.accounts == known

    @invariant()
    def the_owner_gets_each_account_back_and_nobody_else_does(self) -> None:
        if self.is_as_before():
            return
        for user_id, address in self.rightful().items():
            moment = self.clock.now
            self.copies += 1
            copy = self.world.copy(Path(self.folder.name) / f"copy-{self.copies}.db")
            try:
                copy.get_back(user_id, address)
                copy.attack(user_id)
                user = copy.sign_in(OWNER, address, RECOVERED)
                assert user is not None
                assert user.id == user_id, "and keeps it"
            finally:
                self.clock.now = moment
                copy.service.close()


@pytest.mark.slow
def test_the_reader_of_a_proven_address_gets_the_account_back_and_no_other_person_does() -> None:
    run_state_machine_as_test(
        Machine,
        settings=settings(
            max_examples=EXAMPLES,
            stateful_step_count=STEPS,
            deadline=None,
            suppress_health_check=list(HealthCheck),
            print_blob=True,
            phases=[
                Phase.explicit,
                Phase.reuse,
                Phase.generate,
            ],  # a smaller example would take minutes to find
        ),
    )
