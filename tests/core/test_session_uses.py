"""Uses of sessions wait in memory for a moment: none is lost but by a crash, and no session outlives its revocation.

Some hundred steps against a model in every run; ten thousand by
`USERSCTL_LONG=1 pytest tests/core/test_session_uses.py`.
"""

import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from support.accounts import open_session, stored_sessions
from support.commands import OPERATOR, PASSWORD, create_user
from support.daemons import wait_for
from support.databases import IN_MEMORY, add_database, database_at, fields_of
from support.fakes import FakeClock
from support.faults import LONG

from usersctl.clock import moment, stamp
from usersctl.config import Settings
from usersctl.errors import Busy
from usersctl.models import Client, Session, User
from usersctl.service import Service, build
from usersctl.session_uses import SessionUses
from usersctl.sessions import Opened, Sessions
from usersctl.store.transaction import Transaction

ADA = "ada@example.com"
EXAMPLES, STEPS = (250, 50) if LONG else (15, 40)
IDLE, PERSISTENT_IDLE = timedelta(minutes=20), timedelta(hours=2)


@pytest.fixture
def service(make_service: Callable[..., Service]) -> Service:
    return make_service(token_expiration=IDLE, remember_me_expiration=timedelta(days=7))


@pytest.fixture
def ada(service: Service) -> User:
    return create_user(service, ADA, "Ada", PASSWORD, by=OPERATOR)


@pytest.fixture
def beside(service: Service, clock: FakeClock) -> Iterator[Service]:
    """A second process on the database."""
    other = build(service.settings, now=clock)
    yield other
    other.close()


def used_after(minutes: float, service: Service, user: User, clock: FakeClock) -> Opened:
    """A session that was used so many minutes after its login."""
    opened = service.sessions.login(user.email, PASSWORD)
    clock.move(minutes=minutes)
    assert service.sessions.check(opened.token)
    return opened


def writing_soon(service: Service) -> Sessions:
    uses = SessionUses(service.store)
    uses.wait = 0.05
    return service.sessions._replace(uses=uses)


def in_database(service: Service) -> Session:
    (session,) = stored_sessions(service)
    return session


def test_a_use_is_written_a_moment_after_the_request(service: Service, ada: User, clock: FakeClock) -> None:
    opened = service.sessions.login(ada.email, PASSWORD)
    clock.move(minutes=2)
    known = service.sessions.check(opened.token)
    assert known is not None
    assert in_database(service) == opened.session
    service.sessions.uses.write()
    assert in_database(service) == known[0]._replace(moved=False)


@pytest.mark.parametrize("after_a_stop", [False, True])
def test_a_use_is_written_without_another_request(
    service: Service, ada: User, clock: FakeClock, after_a_stop: bool
) -> None:
    sessions = writing_soon(service)
    opened = sessions.login(ada.email, PASSWORD)
    if after_a_stop:  # as before a fork
        clock.move(minutes=2)
        sessions.check(opened.token)
        sessions.uses.stop()
    clock.move(minutes=2)
    sessions.check(opened.token)
    wait_for(lambda: in_database(service).last_used_at == stamp(clock()))


def test_a_use_is_noted_while_the_system_allows_no_more_threads(
    service: Service, ada: User, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    sessions = writing_soon(service)
    opened = sessions.login(ada.email, PASSWORD)

    def refuse(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refuse)
        clock.move(minutes=2)
        assert sessions.check(opened.token)
    assert sessions.uses.latest(opened.session).last_used_at == stamp(clock())
    clock.move(minutes=2)
    assert sessions.check(opened.token)  # the next use starts the thread
    wait_for(lambda: in_database(service).last_used_at == stamp(clock()))
    sessions.uses.stop()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_use_is_written_after_an_error_that_ended_the_thread_while_another_was_noted(
    service: Service, ada: User, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    sessions = writing_soon(service)
    tokens = [sessions.login(ada.email, PASSWORD).token for _ in range(3)]
    clock.move(minutes=2)

    def fail(*_: object) -> None:
        sessions.check(tokens[1])
        raise MemoryError

    with monkeypatch.context() as patched:
        patched.setattr(sessions.uses, "_write", fail)
        sessions.check(tokens[0])
        writer = sessions.uses._writer
        assert writer is not None
        wait_for(lambda: not writer.is_alive())
    sessions.check(tokens[2])
    wait_for(lambda: {each.last_used_at for each in stored_sessions(service)} == {stamp(clock())})
    sessions.uses.stop()


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
    opened = used_after(19, service, ada, clock)
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
    opened = used_after(2, service, ada, clock)
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


@pytest.fixture
def uses(service: Service) -> Iterator[SessionUses]:
    uses = SessionUses(service.store)
    yield uses
    uses.stop()


def test_the_latest_use_of_a_session_is_not_that_of_another_one_with_its_id(
    service: Service, uses: SessionUses, ada: User, clock: FakeClock
) -> None:
    session = open_session(service, ada).session
    clock.move(minutes=2)
    used = session._replace(last_used_at=stamp(clock()))
    uses.note(used)
    assert uses.latest(session) == used
    other = session._replace(created_at=stamp(clock()))
    assert uses.latest(other) == other


def test_an_expiry_that_waits_to_be_written_stays_moved_when_a_later_use_moves_none(
    service: Service, uses: SessionUses, ada: User
) -> None:
    session = open_session(service, ada).session
    for moved in (True, False):
        uses.note(session._replace(moved=moved))
    assert uses._notes[session.id].moved


def test_notes_are_overdue_ten_seconds_after_the_first_of_them(
    service: Service, uses: SessionUses, ada: User, clock: FakeClock
) -> None:
    for seconds in (0, 6, 4):
        clock.move(seconds=seconds)
        uses.note(open_session(service, ada).session)
        assert not uses.are_overdue()
    clock.move(milliseconds=1)
    assert uses.are_overdue()


@pytest.mark.sqlite  # on a server, several write at once
def test_notes_wait_for_another_writer_and_are_written_without_another_use(
    service: Service, beside: Service, uses: SessionUses, ada: User, clock: FakeClock
) -> None:
    uses.wait = uses.patience = 0.05
    session = open_session(service, ada).session
    clock.move(minutes=2)
    with beside.store.write():
        uses.note(session._replace(last_used_at=stamp(clock())))
        time.sleep(0.5)
        uses.stop()
        assert list(uses._notes) == [session.id]
        uses.note(uses._notes[session.id])
        time.sleep(0.5)
    wait_for(lambda: in_database(service).last_used_at == stamp(clock()))


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
    uses = SessionUses(service.store)
    uses.batch = 3
    sessions = service.sessions._replace(uses=uses)
    tokens = [sessions.login(ada.email, PASSWORD).token for _ in range(10)]
    clock.move(minutes=2)
    assert all(sessions.check(token) for token in tokens)
    uses.write()
    assert {session.last_used_at for session in stored_sessions(service)} == {stamp(clock())}


def test_uses_that_come_while_others_are_written_are_not_overdue(
    service: Service, ada: User, clock: FakeClock
) -> None:
    uses = service.sessions.uses
    noted, later = (service.sessions.login(ada.email, PASSWORD).session for _ in range(2))
    uses.note(noted)
    clock.move(seconds=9)
    again = noted._replace(last_used_at=stamp(clock()))

    write = service.store.write

    @contextmanager
    def while_another_comes(**keywords: Any) -> Iterator[Transaction]:
        with write(**keywords) as tx:
            uses.note(later)
            uses.note(again)
            yield tx

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(service.store, "write", while_another_comes)
        uses.write()
    assert uses._notes == {noted.id: again, later.id: later}
    clock.move(seconds=9)
    assert not uses.are_overdue()
    clock.move(seconds=2)
    assert uses.are_overdue()


def test_a_check_does_not_write_again_at_once_what_could_not_be_written(
    service: Service, beside: Service, ada: User, clock: FakeClock
) -> None:
    opened = used_after(2, service, ada, clock)
    clock.move(seconds=11)
    with beside.store.write():
        with pytest.raises(Busy):
            service.sessions.check(opened.token, nonblocking=True)
        assert service.sessions.check(opened.token)
        assert service.sessions.check(opened.token, nonblocking=True), "it tried a moment ago"
        clock.move(seconds=11)
        with pytest.raises(Busy):
            service.sessions.check(opened.token, nonblocking=True)


def test_a_use_that_moves_no_expiry_is_not_written_at_once(
    make_service: Callable[..., Service], clock: FakeClock
) -> None:
    service = make_service(
        token_expiration=IDLE
    )  # a persistent session has 30 days, which is also the absolute limit
    create_user(service, ADA, "Ada", PASSWORD, by=OPERATOR)
    opened = service.sessions.login(ADA, PASSWORD, remember=True)
    clock.move(days=29)
    assert service.sessions.check(opened.token, nonblocking=True)
    assert in_database(service) == opened.session


def test_an_earlier_use_of_another_process_takes_no_time_from_a_session(
    service: Service, beside: Service, ada: User, clock: FakeClock
) -> None:
    opened = used_after(2, service, ada, clock)
    clock.move(minutes=9)
    assert beside.sessions.check(opened.token)
    beside.sessions.uses.write()
    written = in_database(service)
    service.sessions.uses.write()
    assert in_database(service) == written


def test_the_last_client_of_an_api_token_is_that_of_its_last_use_whichever_process_writes_first(
    service: Service, beside: Service, ada: User, clock: FakeClock
) -> None:
    made = service.sessions.create_api_token(ada.id, name="ci", lifetime=None, by=OPERATOR)
    service.sessions.check(made.token, caller=Client("192.0.2.1", "first"))
    clock.move(seconds=1)
    beside.sessions.check(made.token, caller=Client("192.0.2.2", "second"))
    beside.sessions.uses.write()
    service.sessions.uses.write()
    token = in_database(service)
    assert (token.last_used_at, token.ip, token.user_agent) == (stamp(clock()), "192.0.2.2", "second")


@pytest.mark.parametrize("elsewhere", [True, False])
def test_a_use_that_renews_no_cookie_leaves_the_expiry_that_a_use_before_it_moved(
    service: Service, beside: Service, ada: User, clock: FakeClock, elsewhere: bool
) -> None:
    """`elsewhere`: the use before it is noted in another process; else it waits in this one."""
    earlier = beside if elsewhere else service
    opened = service.sessions.login(ada.email, PASSWORD, remember=True)
    clock.move(minutes=2)
    renewed = earlier.sessions.check(opened.token)
    clock.move(minutes=1)
    assert service.sessions.check(opened.token, renews=False)
    beside.sessions.uses.write()
    service.sessions.uses.write()
    assert renewed is not None
    assert in_database(service).expires_at == renewed[0].expires_at
    assert in_database(service).last_used_at == stamp(clock())


def test_a_shorter_idle_time_holds_from_the_next_use_on(
    service: Service, ada: User, clock: FakeClock
) -> None:
    opened = service.sessions.login(ada.email, PASSWORD)
    shorter = service.settings._replace(token_expiration=timedelta(minutes=5))
    other = build(shorter, now=clock)
    clock.move(minutes=2)
    assert other.sessions.check(opened.token)
    other.close()
    assert in_database(service).expires_at == stamp(clock() + timedelta(minutes=5))


def test_a_note_does_not_bring_back_a_session_that_was_removed_after_its_end(
    service: Service, beside: Service, ada: User, clock: FakeClock
) -> None:
    opened = used_after(2, service, ada, clock)
    clock.move(minutes=20)
    assert beside.cleaner.run(by=OPERATOR).expired == 1
    service.sessions.uses.write()
    assert stored_sessions(service) == []
    assert service.sessions.check(opened.token) is None


class Process:
    """One of two processes, and what it has noted of the session and not yet written."""

    def __init__(self, configured: Settings, clock: FakeClock) -> None:
        self.service = build(configured, now=clock)
        self.moved_at: datetime | None = None  # a use that moved the expiry, and waits
        self.suspended = False

    def write(self) -> datetime | None:
        self.service.sessions.uses.write()
        written, self.moved_at = self.moved_at, None
        return written


class ExpiryMachine(RuleBasedStateMachine):
    """Sessions, one after the other, that are used in two processes, against a model of their lives. Whatever happens,
    none outlives its idle time, its absolute limit or its revocation; only a crash, or a process that is suspended, makes
    one end early, by the uses of the last moment in that process."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory(dir=IN_MEMORY)
        self.clock = FakeClock()
        folder = Path(self.folder.name)
        configured = Settings(
            **fields_of(database_at(folder / "users.db"), folder),
            base_url="http://127.0.0.1:8080",
            token_expiration=IDLE,
            remember_me_expiration=PERSISTENT_IDLE,
            rounds=4,
        )
        add_database(configured.database)
        self.processes = [Process(configured, self.clock) for _ in range(2)]
        self.user = create_user(self.processes[0].service, ADA, "Ada", PASSWORD, by=OPERATOR)
        self.ended = True
        self.waited = 0.0

    @precondition(lambda self: self.ended)
    @rule(remember=st.booleans())
    def sign_in(self, *, remember: bool) -> None:
        self.persistent, self.idle = remember, PERSISTENT_IDLE if remember else IDLE
        opened = open_session(self.processes[0].service, self.user, remember=remember)
        self.token, self.id = opened.token, opened.session.id
        self.moved_at = self.written_at = self.clock()
        self.limit = self.clock() + timedelta(days=30)
        self.ended = False
        for process in self.processes:
            process.moved_at = None

    def end_after(self, used: datetime) -> datetime:
        return min(used + self.idle, self.limit)

    @property
    def latest_end(self) -> datetime:
        return self.end_after(self.moved_at)

    def earliest_end(self, used: datetime) -> datetime:
        """A use is noted once a minute at most, so the end may be that of a use a minute before."""
        return self.end_after(used - timedelta(minutes=1))

    @precondition(lambda self: not self.ended)
    @rule(number=st.integers(0, 1), renews=st.booleans())
    def use(self, number: int, *, renews: bool) -> None:
        process, now = self.processes[number], self.clock()
        known = process.service.sessions.check(self.token, renews=renews)
        noted = [one.moved_at for one in self.processes if one.moved_at and not one.suspended]
        if now >= self.latest_end:
            assert known is None, "it outlives its end"
        elif now < self.earliest_end(max([self.written_at, *noted])):
            assert known is not None, "it ended while it was in use"
        self.ended = known is None
        if known is not None and (renews or not self.persistent):
            self.moved_at = process.moved_at = now

    @rule(seconds=st.sampled_from([0.5, 1, 31, 59, 61, 600, 1139, 1201, 7000, 7201, 86_400]))
    def wait(self, seconds: float) -> None:
        self.waited += seconds
        if self.waited >= SessionUses.wait:
            self.write()  # as the timer does
        self.clock.move(seconds=seconds)

    @precondition(lambda self: not self.ended)
    @rule(number=st.integers(0, 1), before=st.sampled_from([0.5, 1, 9, 11, 121]))
    def use_before_the_end(self, number: int, before: float) -> None:
        """One process uses it, and the other one after the end that is stored."""
        session = self.stored()
        left = (moment(str(session.expires_at)) - self.clock()).total_seconds() if session else 0
        if left > before:
            self.wait(left - before)
            self.use(number, renews=True)
            self.wait(before)
            self.use(1 - number, renews=True)

    @rule()
    def write(self) -> None:
        self.waited = 0.0
        for process in self.processes:
            if not process.suspended and (written := process.write()) and self.stored():
                self.written_at = max(self.written_at, written)

    @precondition(lambda self: not self.ended)
    @rule(
        number=st.integers(0, 1), renews=st.booleans(), seconds=st.sampled_from([1, 59, 61, 600, 1139, 7000])
    )
    def suspend(self, number: int, *, renews: bool, seconds: float) -> None:
        """A process that wakes up writes what it noted long ago."""
        process = self.processes[number]
        self.use(number, renews=renews)
        process.suspended = True
        self.wait(seconds)
        if not self.ended:
            self.use(1 - number, renews=True)
        self.write()
        process.suspended = False
        self.write()

    @rule(number=st.integers(0, 1))
    def crash(self, number: int) -> None:
        self.processes[number].service.sessions.uses._notes.clear()
        self.processes[number].moved_at = None

    def stored(self) -> Session | None:
        sessions = stored_sessions(self.processes[0].service)
        return next((session for session in sessions if session.id == self.id), None)

    @precondition(lambda self: not self.ended)
    @invariant()
    def the_stored_end_is_that_of_a_use(self) -> None:
        session, earliest = self.stored(), self.earliest_end(self.written_at)
        if session is None:
            assert self.clock() >= earliest
        else:
            assert stamp(earliest) <= str(session.expires_at) <= stamp(self.latest_end)

    @precondition(lambda self: not self.ended)
    @rule(number=st.integers(0, 1), chance=st.integers(0, 9))
    def revoke(self, number: int, chance: int) -> None:
        if chance == 0:
            for process in self.processes[:: 1 if number else -1]:
                process.service.sessions.revoke_all([self.user.id], by=OPERATOR)
                assert process.service.sessions.check(self.token) is None
            self.ended = True

    @rule()
    def clean_up(self) -> None:
        self.processes[0].service.cleaner.run(by=OPERATOR)

    def teardown(self) -> None:
        for process in self.processes:
            process.service.close()
        self.folder.cleanup()


TestExpiry = ExpiryMachine.TestCase
TestExpiry.settings = settings(max_examples=EXAMPLES, stateful_step_count=STEPS, deadline=None)
