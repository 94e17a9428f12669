"""How often a password may be guessed."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta
from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.accounts import author, open_session
from support.commands import OPERATOR, PASSWORD, create_user
from support.factors import add_authenticator_apps
from support.fakes import FakeClock
from support.tables import query

from usersctl.clock import stamp
from usersctl.errors import Forbidden, StoreUnusable, TooMany, Unauthenticated, UsersError
from usersctl.fields import lookup_key
from usersctl.models import User, UserFilter
from usersctl.passwords import Hasher
from usersctl.secrets import digest
from usersctl.service import Service
from usersctl.throttle import LONGEST_WINDOW, AddressThrottle, Counter, counter_in_session, network_of

ADA = "ada@example.com"
NOBODY = "nobody@example.com"


def guess(service: Service, email: str = ADA, password: str = "wrong") -> UsersError:
    """One login that fails; the refusal."""
    with pytest.raises(UsersError) as refused:
        service.sessions.login(lookup_key(email), password)
    return refused.value


def failures(service: Service, user: User) -> int:
    """Those of strangers."""
    with service.store.read() as tx:
        return (tx.failures(f"user:{user.id}") or (0, ""))[0]


class CountedHasher(Hasher):
    """A hasher that knows how many passwords it was asked to check."""

    checks = 0

    def matches(self, password: str, stored: str | None) -> bool:
        self.checks += 1
        return super().matches(password, stored)


@pytest.fixture
def counted(service: Service) -> Service:
    """The service, with a hasher that has room for many threads and counts."""

    hasher = CountedHasher(4, slots=2, waiting_room=1000)
    service.hasher = hasher
    service.accounts = service.accounts._replace(hasher=hasher)
    service.sessions = service.sessions._replace(hasher=hasher)
    return service


# --- on one account ---


@pytest.mark.parametrize("email", [ADA, NOBODY, "no address at all", "\ud800@example.com"])
def test_after_ten_failures_in_a_row_a_wait_doubles_up_to_15_minutes(
    email: str, service: Service, add: Callable[..., User], clock: FakeClock
) -> None:
    add()
    for _ in range(10):
        assert isinstance(guess(service, email), Unauthenticated)
    waits = []
    for _ in range(8):
        refused = guess(service, email)
        assert isinstance(refused, TooMany)
        waits.append(refused.retry_after)
        clock.move(seconds=refused.retry_after - 1)
        assert isinstance(guess(service, email), TooMany)
        clock.move(seconds=1)
        assert isinstance(guess(service, email), Unauthenticated)
    assert waits == [30, 60, 120, 240, 480, 900, 900, 900]


@pytest.mark.parametrize("email", [ADA, NOBODY])
def test_after_eighty_failures_no_password_of_strangers_is_checked_any_more(
    email: str, counted: Service, add: Callable[..., User], clock: FakeClock
) -> None:
    add()
    for _ in range(120):
        guess(counted, email)
        clock.move(hours=1)
    assert counted.hasher.checks == 80
    clock.move(days=1000)
    refused = guess(counted, email, PASSWORD)
    assert isinstance(refused, TooMany)
    assert refused.retry_after == 900
    assert counted.hasher.checks == 80


def test_the_right_password_is_refused_too_while_the_account_waits(
    service: Service, add: Callable[..., User]
) -> None:
    add()
    for _ in range(10):
        guess(service)
    assert isinstance(guess(service, password=PASSWORD), TooMany)


def test_a_success_clears_the_count(service: Service, add: Callable[..., User]) -> None:
    user = add()
    for _ in range(3):
        for _ in range(9):
            guess(service)
        assert failures(service, user) == 9
        service.sessions.login(ADA, PASSWORD)
        assert failures(service, user) == 0


def test_a_password_set_by_an_operator_unlocks_the_account(
    service: Service, add: Callable[..., User]
) -> None:
    user = add()
    for _ in range(10):
        guess(service)
    service.accounts.set_password(user.id, "another sentence", by=OPERATOR)
    assert service.sessions.login(ADA, "another sentence").user.id == user.id


def test_unlock_unlocks_an_account_with_one_audit_row(service: Service, add: Callable[..., User]) -> None:
    user = add()
    assert not service.throttle.unlock(user, OPERATOR)
    for _ in range(10):
        guess(service)
    assert service.throttle.unlock(user, OPERATOR)
    assert service.sessions.login(ADA, PASSWORD)
    with service.store.read() as tx:
        assert [row.action for row in tx.audit_rows(user_id=user.id)] == ["create", "unlock"]


def test_another_account_is_not_touched(service: Service, add: Callable[..., User]) -> None:
    add()
    add("bob")
    for _ in range(10):
        guess(service)
    assert service.sessions.login("bob@example.com", PASSWORD)


def test_every_way_to_write_an_address_counts_on_one_account(
    service: Service, add: Callable[..., User]
) -> None:
    add()
    for number in range(10):
        guess(service, [ADA, " ADA@Example.com", "ada@EXAMPLE.COM\n"][number % 3])
    assert isinstance(guess(service), TooMany)
    for number in range(10):
        guess(service, ["x@exämple.com", "X@xn--exmple-cua.com"][number % 2])
    assert isinstance(guess(service, "x@EXÄMPLE.com"), TooMany)


def test_a_change_of_address_does_not_clear_the_count(service: Service, add: Callable[..., User]) -> None:
    user = add()
    for _ in range(10):
        guess(service)
    service.accounts.update(user.id, email="lovelace@example.com", by=OPERATOR)
    assert isinstance(guess(service, "lovelace@example.com"), TooMany)


def test_the_right_password_of_an_inactive_account_is_no_guess(
    service: Service, add: Callable[..., User]
) -> None:
    user = add(active=False)
    for _ in range(15):
        assert isinstance(guess(service, password=PASSWORD), Forbidden)
    assert failures(service, user) == 0


def test_the_right_password_of_an_inactive_account_clears_no_earlier_guess(
    service: Service, add: Callable[..., User]
) -> None:
    user = add(active=False)
    guess(service)
    assert isinstance(guess(service, password=PASSWORD), Forbidden)
    assert failures(service, user) == 1


def test_wrong_current_passwords_count_as_guesses_of_the_session(
    counted: Service, add: Callable[..., User]
) -> None:
    user = add()
    opened = counted.sessions.login(ADA, PASSWORD)

    def change(current: str) -> UsersError:
        with pytest.raises(UsersError) as refused:
            counted.accounts.change_password(
                user.id, current, "another sentence", session_id=opened.session.id, by=OPERATOR, renew=print
            )
        return refused.value

    for _ in range(10):
        assert str(change("wrong")) == "Current password is incorrect"
    assert isinstance(change(PASSWORD), TooMany)
    assert isinstance(guess(counted), Unauthenticated), "strangers have a counter of their own"
    assert counted.sessions.login(ADA, PASSWORD)
    assert str(change("wrong")) == "Current password is incorrect"


def test_a_session_that_has_ended_meanwhile_learns_nothing_of_the_password(
    service: Service, add: Callable[..., User]
) -> None:
    user = add()
    opened = open_session(service, user)
    for end in (service.sessions.revoke_all, service.accounts.delete):
        end([user.id], by=OPERATOR)
        for password in ("wrong", PASSWORD):
            with pytest.raises(Unauthenticated):
                service.freshness.confirm(user.id, password, session_id=opened.session.id, by=author(opened))
    assert query(service, "SELECT * FROM login_failures") == []


def test_an_unlock_of_an_app_without_a_tried_code_has_nothing_to_do(
    service: Service, add: Callable[..., User]
) -> None:
    user = add()
    add_authenticator_apps(service, user.id)
    assert not service.throttle.unlock(user, OPERATOR)
    with service.store.write() as tx:
        service.throttle.count_code(tx, user.id)
    assert service.throttle.unlock(user, OPERATOR)


def test_without_limits_no_code_is_counted(make_service: Callable[..., Service]) -> None:
    service = make_service(limits_enabled=False)
    user = create_user(service, ADA, "Ada", PASSWORD, by=OPERATOR)
    add_authenticator_apps(service, user.id)
    with service.store.write() as tx:
        service.throttle.count_code(tx, user.id)
        assert tx.tried_codes(user.id) == 0
        for _ in range(100):  # of a time with limits
            tx.count_code(user.id)
        service.throttle.count_code(tx, user.id)
        assert tx.tried_codes(user.id) == 100


def test_without_limits_every_password_is_checked(make_service: Callable[..., Service]) -> None:
    service = make_service(limits_enabled=False)
    user = create_user(service, ADA, "Ada", PASSWORD, by=OPERATOR)
    for _ in range(105):
        assert isinstance(guess(service), Unauthenticated)
    assert service.sessions.login(ADA, PASSWORD)
    assert failures(service, user) == 0
    assert query(service, "SELECT sum(failed) FROM daily_counts") == [(0,)]


def test_the_limits_follow_the_settings(make_service: Callable[..., Service], clock: FakeClock) -> None:
    service = make_service(failures_before_delay=2, failures_before_lock=4)
    create_user(service, ADA, "Ada", PASSWORD, by=OPERATOR)
    assert isinstance(guess(service), Unauthenticated)
    assert isinstance(guess(service), Unauthenticated)
    assert guess(service).retry_after == 30
    clock.move(seconds=30)
    assert isinstance(guess(service), Unauthenticated)
    clock.move(days=1)
    assert guess(service, password=PASSWORD).retry_after == 900


def test_a_lock_before_the_first_wait_is_a_lock(
    make_service: Callable[..., Service], clock: FakeClock
) -> None:
    service = make_service(failures_before_delay=50, failures_before_lock=4)
    for _ in range(3):
        assert isinstance(guess(service), Unauthenticated)
    clock.move(days=1)
    assert isinstance(guess(service), TooMany)


@pytest.mark.parametrize(("before_delay", "before_lock"), [(10, 100), (50, 4)])
def test_the_accounts_that_are_listed_as_locked_are_those_that_wait(
    make_service: Callable[..., Service], clock: FakeClock, before_delay: int, before_lock: int
) -> None:
    service = make_service(failures_before_delay=before_delay, failures_before_lock=before_lock)
    user = create_user(service, ADA, "Ada", PASSWORD, by=OPERATOR)
    strangers, began = Counter(f"user:{user.id}", user.id), clock()
    delays = [timedelta(seconds=seconds) for seconds in (30, 60, 120, 240, 480, 900)]
    ages = [age for delay in delays for age in (delay - timedelta(milliseconds=1), delay)]
    ages += [timedelta(seconds=seconds) for seconds in (-11, -10, 0)]
    for _ in range(before_lock):
        clock.now = began
        with service.store.write() as tx:
            tx.count_failure(strangers.key, user.id)
        for age in ages:
            clock.now = began + age
            with service.store.read() as tx:
                waits = service.throttle.wait(tx, strangers) is not None
                assert tx.locked_ids(service.throttle.locks(tx.now), 10) == [user.id] * waits


def test_an_account_whose_known_devices_are_locked_together_is_listed_as_locked(
    service: Service, add: Callable[..., User]
) -> None:
    user = add()
    devices = [Counter(f"user:{user.id}:device:{name}", user.id, is_known=True) for name in "ab"]
    for number in range(1, 21):
        with service.store.write() as tx:
            tx.count_failure(devices[number % 2].key, user.id)
            assert service.throttle.is_locked(tx, devices[0]) == (number == 20)
            assert bool(tx.locked_ids(service.throttle.locks(tx.now), 10)) == (number == 20)


def test_parallel_guesses_cannot_slip_past(counted: Service, add: Callable[..., User]) -> None:
    add()
    with ThreadPoolExecutor(16) as pool:
        refusals = list(pool.map(lambda _: guess(counted), range(64)))
    assert counted.hasher.checks == 10
    assert sum(isinstance(refusal, Unauthenticated) for refusal in refusals) == 10
    assert sum(isinstance(refusal, TooMany) for refusal in refusals) == 54


def test_strangers_get_eighty_checks_at_most_also_in_parallel(
    counted: Service, add: Callable[..., User], clock: FakeClock
) -> None:
    add()
    with ThreadPoolExecutor(8) as pool:
        for _ in range(100):
            list(pool.map(lambda _: guess(counted), range(8)))
            clock.move(minutes=15)
            if isinstance(guess(counted), TooMany):
                break
            clock.move(minutes=15)
        else:
            pytest.fail("never locked")
    assert counted.hasher.checks == 80


def test_a_check_is_counted_before_it_is_made(service: Service, add: Callable[..., User]) -> None:
    user = add()
    seen: list[int] = []

    class Looking(Hasher):
        def matches(self, password: str, stored: str | None) -> bool:
            seen.append(failures(service, user))
            return super().matches(password, stored)

    service.sessions._replace(hasher=Looking(4)).login(ADA, PASSWORD)
    assert seen == [1]
    assert failures(service, user) == 0


@pytest.mark.parametrize(("behind", "refusal", "locked"), [(10, TooMany, 1), (11, Unauthenticated, 0)])
def test_an_account_waits_also_at_a_daemon_whose_clock_is_behind(
    service: Service,
    add: Callable[..., User],
    clock: FakeClock,
    behind: int,
    refusal: type[Exception],
    locked: int,
) -> None:
    add()
    for _ in range(10):
        guess(service)
    clock.move(seconds=-behind)
    assert len(service.accounts.page(UserFilter(state="locked")).users) == locked
    assert isinstance(guess(service), refusal)


def test_a_clock_that_is_set_back_leaves_no_account_in_the_list_of_locked_ones(
    service: Service, add: Callable[..., User], clock: FakeClock
) -> None:
    ada = add("ada")
    with service.store.write() as tx:
        for _ in range(service.throttle.before_delay):
            tx.count_failure(f"user:{ada.id}", ada.id)
    assert service.accounts.page(UserFilter(state="locked")).users == [ada]
    clock.move(days=-1)
    assert service.accounts.page(UserFilter(state="locked")).users == []


def test_a_clock_that_is_set_back_does_not_lengthen_the_wait(
    service: Service, add: Callable[..., User], clock: FakeClock
) -> None:
    add()
    for _ in range(12):
        guess(service)
    clock.move(days=-1)
    assert isinstance(guess(service), Unauthenticated)
    refused = guess(service)  # and the wait goes on in the new time
    assert isinstance(refused, TooMany)
    clock.move(seconds=refused.retry_after)
    assert service.sessions.login(ADA, PASSWORD)


def test_an_address_without_an_account_is_not_kept_in_clear(service: Service) -> None:
    guess(service, "my secret password, typed into the wrong field")
    with service.store.read() as tx:
        (row,) = tx._run("SELECT * FROM login_failures").fetchall()
    assert row[0] == digest("my secret password, typed into the wrong field").hex()
    assert "secret" not in str(row)


def test_the_cleanup_keeps_the_newest_addresses_without_an_account_and_all_with_one(
    service: Service, add: Callable[..., User], clock: FakeClock
) -> None:
    assert service.cleaner.kept_failures == 100_000
    cleaner = service.cleaner._replace(kept_failures=3, some=2)
    user = add()
    guess(service)
    for number in range(10):
        clock.move(seconds=1)
        guess(service, f"nobody{number}@example.com")
    cleaner.run(by=OPERATOR)
    with service.store.read() as tx:
        kept = {row[0] for row in tx._run("SELECT account FROM login_failures")}
    newest = {digest(f"nobody{number}@example.com").hex() for number in (7, 8, 9)}
    assert kept == newest | {f"user:{user.id}"}


@pytest.mark.parametrize(
    ("lock", "strangers", "known"), [(1, 1, 1), (2, 1, 1), (5, 4, 1), (99, 79, 20), (100, 80, 20)]
)
def test_strangers_have_four_fifths_of_the_checks(
    service: Service, lock: int, strangers: int, known: int
) -> None:
    throttle = service.throttle._replace(before_lock=lock)
    assert (throttle.of_strangers, throttle.of_known) == (strangers, known)


def test_an_unlock_clears_the_counters_of_strangers_devices_and_sessions(
    service: Service, add: Callable[..., User]
) -> None:
    user = add()
    counters = [
        Counter(f"user:{user.id}", user.id),
        Counter(f"user:{user.id}:device:x", user.id, is_known=True),
        counter_in_session(user.id, 1),
    ]
    for counter in counters:
        with service.store.write() as tx:
            service.throttle.count_check(tx, counter)
    assert service.throttle.unlock(user, OPERATOR)
    with service.store.read() as tx:
        assert [tx.failures(counter.key) for counter in counters] == [None] * 3
    assert not service.throttle.unlock(user, OPERATOR)


# --- from one client ---


@pytest.fixture
def three(clock: FakeClock) -> AddressThrottle:
    return AddressThrottle(clock, 3, timedelta(minutes=1))


def test_a_client_has_a_limited_number_of_events_in_a_window(
    three: AddressThrottle, clock: FakeClock
) -> None:
    for _ in range(3):
        three.check("192.0.2.1")
        three.count("192.0.2.1")
        clock.move(seconds=10)
    with pytest.raises(TooMany) as refused:
        three.check("192.0.2.1")
    assert refused.value.retry_after == 30
    three.check("192.0.2.2")
    clock.move(seconds=29)
    with pytest.raises(TooMany):
        three.check("192.0.2.1")
    clock.move(seconds=1)
    three.check("192.0.2.1")


def test_a_clock_that_is_set_back_starts_a_new_window(three: AddressThrottle, clock: FakeClock) -> None:
    for _ in range(3):
        three.count("192.0.2.1")
    clock.move(days=-1)
    three.check("192.0.2.1")


def test_the_memory_of_clients_does_not_grow(clock: FakeClock) -> None:
    throttle = AddressThrottle(clock, 1, timedelta(minutes=1), kept=100)
    for number in range(1000):
        throttle.count(f"10.0.{number // 250}.{number % 250}")
    assert len(throttle._windows) == 100
    with pytest.raises(TooMany):
        throttle.check("10.0.3.249")


def test_a_client_whose_window_begins_anew_is_remembered_longer_than_one_that_came_before(
    clock: FakeClock,
) -> None:
    throttle = AddressThrottle(clock, 1, timedelta(minutes=1), kept=2)
    throttle.count("192.0.2.1")
    clock.move(seconds=50)
    throttle.count("192.0.2.2")
    clock.move(seconds=10)
    for address in ("192.0.2.1", "192.0.2.3"):
        throttle.count(address)
    with pytest.raises(TooMany):
        throttle.check("192.0.2.1")
    throttle.check("192.0.2.2")


def test_a_client_that_other_processes_counted_is_refused_before_it_is_counted_again(
    clock: FakeClock,
) -> None:
    throttle = AddressThrottle(clock, 3, timedelta(minutes=1), together=lambda *_: (clock(), 3))
    throttle.check("192.0.2.1")
    throttle.count("192.0.2.1")
    with pytest.raises(TooMany):
        throttle.check("192.0.2.1")


def test_a_client_is_counted_in_memory_while_the_database_takes_nothing(clock: FakeClock) -> None:
    def together(_client: str, _window: timedelta) -> tuple[datetime, int]:
        raise StoreUnusable("away")

    throttle = AddressThrottle(clock, 2, timedelta(minutes=1), together=together)
    for _ in range(2):
        throttle.check("192.0.2.1")
        throttle.admit("192.0.2.1")
    with pytest.raises(TooMany):
        throttle.check("192.0.2.1")


@pytest.mark.parametrize(
    ("began", "wait"),
    [
        (timedelta(seconds=-60), 1),  # the very end of a window
        (timedelta(seconds=-30, milliseconds=500), 31),
        (timedelta(seconds=5), 60),  # by a clock that is ahead
    ],
)
def test_a_client_that_all_processes_counted_waits_for_the_end_of_their_window(
    clock: FakeClock, began: timedelta, wait: int
) -> None:
    throttle = AddressThrottle(clock, 2, timedelta(minutes=1), together=lambda *_: (clock() + began, 3))
    with pytest.raises(TooMany) as refused:
        throttle.admit("192.0.2.1")
    assert refused.value.retry_after == wait
    if wait > 1:
        with pytest.raises(TooMany):
            throttle.check("192.0.2.1")


def test_a_window_that_began_anew_for_all_processes_begins_anew_in_memory(clock: FakeClock) -> None:
    counts = iter([(clock(), 2), (clock() + timedelta(seconds=30), 1)])
    throttle = AddressThrottle(clock, 2, timedelta(minutes=1), together=lambda *_: next(counts))
    throttle.admit("192.0.2.1")
    clock.move(seconds=30)
    throttle.admit("192.0.2.1")
    throttle.check("192.0.2.1")


def test_threads_count_every_event(clock: FakeClock) -> None:
    throttle = AddressThrottle(clock, 800, timedelta(minutes=1))
    barrier = threading.Barrier(8)

    def count() -> None:
        barrier.wait()
        for _ in range(100):
            throttle.count("192.0.2.1")

    threads = [threading.Thread(target=count) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with pytest.raises(TooMany):
        throttle.check("192.0.2.1")
    assert throttle._windows["192.0.2.1"][1] == 800


def test_a_thread_that_learns_late_of_other_processes_forgets_no_event(clock: FakeClock) -> None:
    numbers, first_counted, second_learnt = count(1), threading.Event(), threading.Event()

    def together(_network: str, _window: timedelta) -> tuple[datetime, int]:
        number = next(numbers)
        if number == 1:
            first_counted.set()
            assert second_learnt.wait(10)
        return clock(), number

    throttle = AddressThrottle(clock, 2, timedelta(minutes=1), together=together)
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(throttle.count, "192.0.2.1")
        assert first_counted.wait(10)
        throttle.count("192.0.2.1")
        second_learnt.set()
        first.result(10)
    with pytest.raises(TooMany):
        throttle.check("192.0.2.1")


@pytest.mark.parametrize(
    ("moved", "goes_on"),
    [
        (timedelta(seconds=60) - timedelta(milliseconds=1), True),
        (timedelta(seconds=60), False),  # as in memory
        (timedelta(seconds=-59), True),  # another machine's clock is ahead
        (timedelta(seconds=-61), False),
    ],
)
def test_the_count_of_a_client_for_all_processes_begins_anew_outside_of_its_window(
    service: Service, clock: FakeClock, moved: timedelta, goes_on: bool
) -> None:
    def count() -> tuple[str, int]:
        with service.store.write() as tx:
            return tx.count_client("FORGOTS 192.0.2.1", timedelta(minutes=1))

    began = stamp(clock())
    assert [count() for _ in range(2)] == [(began, 1), (began, 2)]
    clock.now += moved
    assert count() == ((began, 3) if goes_on else (stamp(clock()), 1))
    assert count()[1] == (4 if goes_on else 2)


def test_the_cleanup_keeps_the_counts_of_clients_whose_window_may_last(
    service: Service, clock: FakeClock
) -> None:
    def count(client: str) -> None:
        with service.store.write() as tx:
            tx.count_client(client, LONGEST_WINDOW)

    count("REGISTRATIONS 192.0.2.1")
    clock.move(minutes=59)
    count("REGISTRATIONS 192.0.2.2")
    for minutes, left in (
        (1, {"REGISTRATIONS 192.0.2.1", "REGISTRATIONS 192.0.2.2"}),
        (1, {"REGISTRATIONS 192.0.2.2"}),
    ):
        clock.move(minutes=minutes)
        service.cleaner.run(by=OPERATOR)
        assert {client for (client,) in query(service, "SELECT client FROM client_counts")} == left


@pytest.mark.parametrize("engine", ["file", "server"])
def test_processes_count_every_event_of_a_client(
    engine: str, make_service: Callable[..., Service], request: pytest.FixtureRequest
) -> None:
    changes = {"database": request.getfixturevalue("postgres_database")()} if engine == "server" else {}
    services = [make_service(**changes) for _ in range(4)]
    barrier = threading.Barrier(4)

    def count(service: Service) -> list[int]:
        barrier.wait(20)
        counted = []
        for _ in range(50):
            with service.store.write(alone=False) as tx:
                counted.append(tx.count_client("FORGOTS 192.0.2.1", timedelta(minutes=1))[1])
        return counted

    with ThreadPoolExecutor(4) as pool:
        counted = [number for numbers in pool.map(count, services) for number in numbers]
    assert sorted(counted) == list(range(1, 201))


@pytest.mark.parametrize(
    ("address", "network"),
    [
        ("192.0.2.1", "192.0.2.1"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("2001:DB8:1:2::", "2001:db8:1:2::/64"),
        ("::1", "::/64"),
        ("::ffff:192.0.2.1", "192.0.2.1"),
        ("fe80::1%eth0", "fe80::/64"),
        ("", ""),
        ("unix socket", "unix socket"),
    ],
)
def test_ipv6_counts_by_64(address: str, network: str) -> None:
    assert network_of(address) == network


@given(st.ip_addresses(v=6), st.integers(0, 2**64 - 1))
def test_other_addresses_of_a_64_get_no_new_attempts(address: object, host: int) -> None:
    import ipaddress

    other = ipaddress.IPv6Address(int(address) >> 64 << 64 | host)  # type: ignore[call-overload]
    if not (other.ipv4_mapped or ipaddress.IPv6Address(str(address)).ipv4_mapped):
        assert network_of(str(address)) == network_of(str(other))
