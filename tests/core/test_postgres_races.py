"""The places that do not wait for the one writer of PostgreSQL: what they leave is as if one came after the other."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing

import pytest
from support import postgres
from support.accounts import open_session, stored_sessions
from support.commands import OPERATOR, PASSWORD, create_user
from support.daemons import wait_for

from usersctl.errors import Forbidden, LockedDown, Unauthenticated
from usersctl.service import Service
from usersctl.sessions import Opened
from usersctl.store.conninfo import Conninfo
from usersctl.store.opening import open_store
from usersctl.store.store import Store

THREADS = 8


@pytest.fixture
def database(postgres_database: Callable[..., Conninfo]) -> Conninfo:
    return postgres_database()


@pytest.fixture
def service(make_service: Callable[..., Service], database: Conninfo) -> Service:
    return make_service(database=database)


@pytest.fixture
def pool(service: Service) -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(THREADS) as pool:
        yield pool
    service.sessions.uses.stop()


@pytest.mark.slow
def test_sessions_that_open_at_once_are_all_opened_and_counted(
    service: Service, pool: ThreadPoolExecutor
) -> None:
    users = [create_user(service, f"{name}@example.com", name, PASSWORD) for name in ("ada", "bea", "cyd")]

    opened = list(pool.map(lambda n: open_session(service, users[n % 3]), range(120)))

    assert all(service.sessions.check(one.token) for one in opened)
    assert len(stored_sessions(service)) == 120
    with service.store.read() as tx:
        assert [counts.sign_ins for counts in tx.daily_counts(tx.day, tx.day).values()] == [120]


def test_a_sign_in_does_not_wait_until_another_one_is_counted(service: Service) -> None:
    rows: dict[str, Store] = {}
    with ExitStack() as stack:
        while len(rows) < 2:  # connections that count in different rows
            store = stack.enter_context(closing(open_store(service.store.database)))
            with store.glance() as tx:
                rows[tx.row_of_day] = store
        first, second = rows.values()

        with first.write(alone=False) as one, second.write(alone=False, patience=0.2) as other:
            one.count_sign_in()
            other.count_sign_in()

        with first.read() as tx:
            assert [counts.sign_ins for counts in tx.daily_counts(tx.day, tx.day).values()] == [2]


def test_two_right_passwords_at_once_take_back_both_counts_and_leave_no_row(
    database: Conninfo, service: Service
) -> None:
    """As of two sign-ins that go on to wait for their second factor."""
    ada = create_user(service, "ada@example.com", "Ada", PASSWORD)
    key = f"user:{ada.id}"
    with service.store.write() as tx:
        for _ in range(2):
            tx.count_failure(key, ada.id)
    with closing(open_store(database)) as other, ThreadPoolExecutor(1) as pool:

        def take_back() -> None:
            with other.write(alone=False) as tx:
                tx.uncount_failure(key)

        with service.store.write(alone=False) as tx:
            tx.uncount_failure(key)
            second = pool.submit(take_back)
            wait_for(lambda: postgres.waits_for_a_row(database))
        second.result(10)
    assert not service.throttle.unlock(ada, by=OPERATOR)


@pytest.mark.slow
@pytest.mark.parametrize("end", ["password", "deactivation", "lockdown"])
def test_no_session_outlives_what_ends_all_while_people_sign_in(
    service: Service, pool: ThreadPoolExecutor, end: str
) -> None:
    """A session is opened before that, and ends; or the sign-in comes after it, and is refused."""
    user = create_user(service, "ada@example.com", "Ada", PASSWORD)
    for number in range(5):
        tokens: list[str] = []
        enough = threading.Event()
        signing_in = [pool.submit(sign_in_until_refused, service, tokens, enough) for _ in range(THREADS)]
        assert enough.wait(30)
        if end == "password":
            service.accounts.set_password(user.id, f"Another-{number}-secret", by=OPERATOR)
        elif end == "deactivation":
            service.accounts.update(user.id, active=False, by=OPERATOR)
        else:
            service.lockdown.start(None, by=OPERATOR)
        for one in signing_in:
            one.result(30)
        service.accounts.set_password(user.id, PASSWORD, by=OPERATOR)
        service.accounts.update(user.id, active=True, by=OPERATOR)
        service.lockdown.stop(by=OPERATOR)

        assert len(tokens) > THREADS
        assert not any(service.sessions.check(token) for token in tokens)


def sign_in_until_refused(service: Service, tokens: list[str], enough: threading.Event) -> None:
    try:
        while True:
            opened = service.sessions.login("ada@example.com", PASSWORD)
            assert isinstance(opened, Opened)
            tokens.append(opened.token)
            if len(tokens) > 2 * THREADS:
                enough.set()
    except (Unauthenticated, Forbidden, LockedDown):
        return
