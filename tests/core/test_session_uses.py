"""Uses of sessions wait in memory for a moment: none is lost but by a crash, and no session outlives its revocation."""

import tempfile
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule
from support.commands import OPERATOR, PASSWORD, create_user
from support.fakes import FakeClock

from usersctl.clock import stamp
from usersctl.config import Settings
from usersctl.models import Session, User
from usersctl.service import Service, build
from usersctl.session_uses import SessionUses

ADA = "ada@example.com"
IDLE, PERSISTENT_IDLE = timedelta(minutes=20), timedelta(hours=2)


@pytest.fixture
def service(make_service: Callable[..., Service]) -> Service:
    return make_service(token_expiration=IDLE)


@pytest.fixture
def ada(service: Service) -> User:
    return create_user(service, ADA, "Ada", PASSWORD, by=OPERATOR)


@pytest.fixture
def beside(service: Service, clock: FakeClock) -> Iterator[Service]:
    """A second process on the database."""
    other = build(service.settings, now=clock)
    yield other
    other.close()


def in_database(service: Service) -> Session:
    with service.store.read() as tx:
        (session,) = tx.tokens()
    return session


def test_a_use_is_written_a_moment_after_the_request(service: Service, ada: User, clock: FakeClock) -> None:
    opened = service.sessions.login(ada.email, PASSWORD)
    clock.move(minutes=2)
    known = service.sessions.check(opened.token)
    assert known is not None
    assert in_database(service) == opened.session
    service.sessions.uses.write()
    assert in_database(service) == known[0]._replace(moved=False)


def test_a_use_is_written_without_another_request(service: Service, ada: User, clock: FakeClock) -> None:
    uses = SessionUses(service.store, wait=0.05)
    sessions = replace(service.sessions, uses=uses)
    opened = sessions.login(ada.email, PASSWORD)
    clock.move(minutes=2)
    sessions.check(opened.token)
    written = threading.Event()
    for _ in range(200):
        if in_database(service).last_used_at == stamp(clock()):
            break
        written.wait(0.05)
    assert in_database(service).last_used_at == stamp(clock())


def test_a_second_use_within_a_minute_renews_no_cookie_again(
    service: Service, ada: User, clock: FakeClock
) -> None:
    opened = service.sessions.login(ada.email, PASSWORD, remember=True)
    clock.move(minutes=2)
    checks = [service.sessions.check(opened.token) for _ in range(3)]
    assert [known is not None and known[0].moved for known in checks] == [True, False, False]


def test_a_use_shortly_before_the_end_is_written_at_once(
    service: Service, beside: Service, ada: User, clock: FakeClock
) -> None:
    opened = service.sessions.login(ada.email, PASSWORD)
    clock.move(minutes=19)
    assert service.sessions.check(opened.token)
    clock.move(minutes=19)
    assert beside.sessions.check(opened.token), "another process sees the use"


def test_notes_are_written_before_a_check_if_the_clock_was_moved(
    service: Service, ada: User, clock: FakeClock
) -> None:
    opened = service.sessions.login(ada.email, PASSWORD)
    for _ in range(5):
        clock.move(minutes=15)
        assert service.sessions.check(opened.token)


def test_a_revoked_session_is_not_brought_back_by_its_note(
    service: Service, beside: Service, ada: User, clock: FakeClock
) -> None:
    opened = service.sessions.login(ada.email, PASSWORD)
    clock.move(minutes=2)
    assert service.sessions.check(opened.token)
    beside.sessions.revoke_all([ada.id], by=OPERATOR)
    assert service.sessions.check(opened.token) is None
    service.sessions.uses.write()
    assert service.sessions.check(opened.token) is None


def test_a_note_does_not_change_another_session_of_the_same_id(
    service: Service, ada: User, clock: FakeClock
) -> None:
    opened = service.sessions.login(ada.email, PASSWORD)
    clock.move(minutes=2)
    service.sessions.check(opened.token)
    with service.store.write() as tx:  # as a restored database might have it
        tx._run("UPDATE auth_tokens SET created_at = ?", (stamp(clock()),))
    before = in_database(service)
    service.sessions.uses.write()
    assert in_database(service) == before


def test_closing_the_service_writes_the_notes(service: Service, ada: User, clock: FakeClock) -> None:
    other = build(service.settings, now=clock)
    opened = other.sessions.login(ada.email, PASSWORD)
    clock.move(minutes=2)
    other.sessions.check(opened.token)
    other.close()
    assert in_database(service).last_used_at == stamp(clock())


def test_notes_that_cannot_be_written_now_stay(
    service: Service, beside: Service, ada: User, clock: FakeClock
) -> None:
    opened = service.sessions.login(ada.email, PASSWORD)
    clock.move(minutes=19)
    with beside.store.write():
        assert service.sessions.check(opened.token)
    service.sessions.uses.write()
    assert in_database(service).last_used_at == stamp(clock())


def test_many_notes_are_written_in_batches(service: Service, ada: User, clock: FakeClock) -> None:
    uses = SessionUses(service.store, batch=3)
    sessions = replace(service.sessions, uses=uses)
    tokens = [sessions.login(ada.email, PASSWORD).token for _ in range(10)]
    clock.move(minutes=2)
    assert all(sessions.check(token) for token in tokens)
    uses.write()
    with service.store.read() as tx:
        assert {session.last_used_at for session in tx.tokens()} == {stamp(clock())}


class ExpiryMachine(RuleBasedStateMachine):
    """One session that is used in two processes, against a model of its life. Whatever happens, it never outlives its
    idle time, its absolute limit or its revocation; only a crash makes it end early, by the uses of the last moment."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.clock = FakeClock()

    @initialize(remember=st.booleans())
    def open(self, *, remember: bool) -> None:
        self.idle = PERSISTENT_IDLE if remember else IDLE
        configured = Settings(
            base_url="http://127.0.0.1:8080",
            database=Path(self.folder.name) / "users.db",
            token_expiration=IDLE,
            remember_me_expiration=PERSISTENT_IDLE,
            rounds=4,
        )
        self.processes = [build(configured, now=self.clock) for _ in range(2)]
        self.user = create_user(self.processes[0], ADA, "Ada", PASSWORD, by=OPERATOR)
        self.token = self.processes[0].sessions.open(self.user, remember=remember).token
        self.used_at = self.written_to = self.clock()
        self.limit = self.clock() + timedelta(days=30)
        self.revoked = False

    @rule(process=st.integers(0, 1))
    def use(self, process: int) -> None:
        known, now = self.processes[process].sessions.check(self.token), self.clock()
        if self.revoked or now >= min(self.used_at + self.idle, self.limit):
            assert known is None, "it outlives its end"
        # A use is noted once a minute at most, so the end may be that of a use a minute before the last one.
        elif now < min(self.written_to - timedelta(minutes=1) + self.idle, self.limit):
            assert known is not None, "it ended while it was in use"
        if known is not None:
            self.used_at = now

    @rule(seconds=st.sampled_from([0.5, 1, 5, 29, 31, 59, 61, 600, 1139, 1190, 1201, 7000, 7201, 86_400]))
    def wait(self, seconds: float) -> None:
        if seconds >= 2:
            self.write()  # as the timer does
        self.clock.move(seconds=seconds)

    @rule()
    def write(self) -> None:
        for process in self.processes:
            process.sessions.uses.write()
        self.written_to = self.used_at

    @rule(process=st.integers(0, 1))
    def crash(self, process: int) -> None:
        self.processes[process].sessions.uses._notes.clear()

    @precondition(lambda self: not self.revoked)
    @rule(process=st.integers(0, 1), chance=st.integers(0, 9))
    def revoke(self, process: int, chance: int) -> None:
        if chance == 0:
            self.processes[process].sessions.revoke_all([self.user.id], by=OPERATOR)
            self.revoked = True

    def teardown(self) -> None:
        for process in getattr(self, "processes", ()):
            process.close()
        self.folder.cleanup()


TestExpiry = ExpiryMachine.TestCase
TestExpiry.settings = settings(max_examples=30, stateful_step_count=40, deadline=None)
