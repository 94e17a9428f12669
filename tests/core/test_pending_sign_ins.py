"""Sign-ins that wait for their second factor, beside a model of what may open a session: three browsers of one account."""

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from support.commands import OPERATOR, PASSWORD, create_user
from support.databases import add_database, database_at, fields_of
from support.factors import SEED, add_authenticator_apps
from support.fakes import FakeClock
from support.faults import LONG
from support.tables import query

from usersctl.config import Settings
from usersctl.errors import InvalidCode, Unauthenticated
from usersctl.factors import recovery_codes, totp
from usersctl.models import Actor, Client, Proof, User
from usersctl.secrets import digest
from usersctl.service import Service, build
from usersctl.sessions import Pending

ADA = "ada@example.com"
BROWSERS = st.integers(0, 2)
ANONYMOUS = Actor("anonymous")


@dataclass
class Waiting:
    """What the model knows of a browser's pending sign-in."""

    token: str
    until: float
    wrong: int = 0


class PendingSignIns(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.clock = FakeClock()
        folder = Path(self.folder.name)
        database = database_at(folder / "users.db")
        add_database(database)
        here = Settings(
            **fields_of(database, folder), base_url="http://127.0.0.1:8080", rounds=4, limits_enabled=False
        )
        self.service = build(here, now=self.clock)
        self.user = create_user(self.service, ADA, "Ada", PASSWORD, by=OPERATOR)
        add_authenticator_apps(self.service, self.user.id)
        self.codes = recovery_codes.new_codes()
        with self.service.store.write() as tx:
            tx.add_recovery_codes(self.user.id, list(map(recovery_codes.hash_of, self.codes)))
        self.left = set(self.codes)
        self.last_step = 0
        self.waiting: dict[int, Waiting] = {}

    def teardown(self) -> None:
        self.service.close()
        self.folder.cleanup()

    def is_alive(self, browser: int) -> bool:
        waiting = self.waiting.get(browser)
        return waiting is not None and waiting.until > self.clock().timestamp() and waiting.wrong < 5

    @rule(browser=BROWSERS)
    def login(self, browser: int) -> None:
        sent = (self.waiting[browser].token,) if browser in self.waiting else ()
        pending = self.service.sessions.login(ADA, PASSWORD, client=Client(pending=sent))
        assert isinstance(pending, Pending)
        until = (self.clock() + timedelta(minutes=10)).timestamp()
        self.waiting[browser] = Waiting(pending.token, until)

    def _finish(self, browser: int, proof: Proof, *, is_right: bool) -> bool:
        """Whether a session was opened; checked against the model."""
        waiting = self.waiting[browser]
        may = self.is_alive(browser) and is_right
        was_alive = self.is_alive(browser)
        try:
            opened = self.service.second_step.finish(
                [waiting.token], proof, then=self.service.sessions.finish, client=Client(), by=ANONYMOUS
            )
        except InvalidCode:
            assert was_alive
            assert not may
            waiting.wrong += 1
            return False
        except Unauthenticated:
            assert not was_alive
            return False
        assert may
        assert opened.user.id == self.user.id
        del self.waiting[browser]
        return True

    @precondition(lambda self: self.waiting)
    @rule(data=st.data(), off=st.integers(-2, 2))
    def code(self, data: st.DataObject, off: int) -> None:
        browser = data.draw(st.sampled_from(sorted(self.waiting)))
        step = totp.step_at(self.clock()) + off
        typed = totp.code_at(SEED, step)
        # Two steps rarely have the same code: the newest of those that fit counts.
        near = range(totp.step_at(self.clock()) - 1, totp.step_at(self.clock()) + 2)
        fits = max((near_step for near_step in near if totp.code_at(SEED, near_step) == typed), default=0)
        if self._finish(browser, Proof(typed), is_right=fits > self.last_step):
            self.last_step = fits

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def recovery_code(self, data: st.DataObject) -> None:
        browser = data.draw(st.sampled_from(sorted(self.waiting)))
        typed = data.draw(st.sampled_from(self.codes))
        if self._finish(browser, Proof(recovery_code=typed), is_right=typed in self.left):
            self.left.discard(typed)

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def wrong_code(self, data: st.DataObject) -> None:
        self._finish(data.draw(st.sampled_from(sorted(self.waiting))), Proof("12345"), is_right=False)

    @rule(seconds=st.sampled_from([1, 29, 30, 90, 599, 600]))
    def wait(self, seconds: int) -> None:
        self.clock.move(seconds=seconds)

    @rule()
    def all_sessions_end(self) -> None:
        self.service.sessions.revoke_all([self.user.id], by=OPERATOR)
        for waiting in self.waiting.values():
            waiting.until = 0

    @rule()
    def cleanup(self) -> None:
        self.service.cleaner.run(by=OPERATOR)
        stored = {
            token_hash for (token_hash,) in query(self.service, "SELECT token_hash FROM pending_sign_ins")
        }
        alive = {digest(each.token) for name, each in self.waiting.items() if self.is_alive(name)}
        assert stored == alive

    @invariant()
    def a_session_opens_by_a_second_factor_only(self) -> None:
        rows = query(self.service, "SELECT opened_with FROM auth_tokens WHERE expires_at > ?", "0")
        assert {opened_with for (opened_with,) in rows} <= {"pwd otp", "pwd recovery"}


PendingSignIns.TestCase.settings = settings(
    max_examples=200 if LONG else 15, stateful_step_count=30, deadline=None
)
TestPendingSignIns = PendingSignIns.TestCase


def test_a_code_of_an_app_that_is_replaced_meanwhile_is_wrong(
    service: Service, add: Callable[..., User], clock: FakeClock
) -> None:
    user = add()
    add_authenticator_apps(service, user.id)
    check = service.second_step.prepare(
        user.id, Proof(totp.code_at(SEED, totp.step_at(clock()))), by=ANONYMOUS
    )
    with service.store.write() as tx:
        tx.delete_totp(user.id)
    clock.move(seconds=1)
    add_authenticator_apps(service, user.id, seed=b"another")
    with service.store.write() as tx:
        assert check(tx) is None
