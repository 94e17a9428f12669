"""The overview: counts of each day against a model, in any order of events and over midnight, and what last ran."""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.commands import OPERATOR, PASSWORD, by_hand, create_user
from support.databases import database_at
from support.fakes import FakeClock
from support.tables import query

from usersctl.errors import Busy, UsersError
from usersctl.models import Actor, DayCounts, User
from usersctl.overview import DAYS, MANY
from usersctl.passwords import Hasher
from usersctl.service import Service

TODAY = "2026-11-20"
VISITOR = Actor("anonymous")


def counts(service: Service, day: str = TODAY) -> DayCounts:
    return next((counts for counts in service.overview.now().days if counts.day == day), DayCounts(day))


def tries(service: Service, email: str = "ada@example.com", password: str = "wrong") -> None:
    with pytest.raises(UsersError):
        service.sessions.login(email, password)


# --- what counts ---


def test_a_sign_in_counts_on_its_day_and_leaves_no_failure(
    service: Service, add: Callable[..., User]
) -> None:
    add()
    service.sessions.login("ada@example.com", PASSWORD)
    assert counts(service) == DayCounts(TODAY, sign_ins=1)


def test_wrong_passwords_count_also_for_unknown_addresses(service: Service, add: Callable[..., User]) -> None:
    add()
    tries(service)
    tries(service, "nobody@example.com")
    assert counts(service) == DayCounts(TODAY, failed=2)
    service.sessions.login("ada@example.com", PASSWORD)
    assert counts(service) == DayCounts(TODAY, sign_ins=1, failed=2)


def test_the_right_password_of_an_inactive_account_is_no_failed_sign_in(
    service: Service, add: Callable[..., User]
) -> None:
    service.accounts.set_active([add().id], active=False, by=OPERATOR)
    tries(service, password=PASSWORD)
    assert counts(service) == DayCounts(TODAY)


def test_an_attempt_that_has_to_wait_is_not_counted(service: Service, add: Callable[..., User]) -> None:
    add()
    for _ in range(10):
        tries(service)
    tries(service)  # 429
    tries(service, password=PASSWORD)
    assert counts(service) == DayCounts(TODAY, failed=10)


def test_an_attempt_without_a_free_slot_is_not_counted(
    service: Service, add: Callable[..., User], monkeypatch: pytest.MonkeyPatch
) -> None:
    add()

    @contextmanager
    def full(_hasher: Hasher) -> Iterator[None]:
        raise Busy("full", retry_after=1)
        yield

    monkeypatch.setattr(Hasher, "slot", full)
    tries(service, password=PASSWORD)
    assert counts(service) == DayCounts(TODAY)


def test_a_hash_that_was_renewed_meanwhile_leaves_no_failure(
    service: Service, add: Callable[..., User], monkeypatch: pytest.MonkeyPatch
) -> None:
    ada = add()
    matches, renewed = Hasher.matches, []

    def renew_meanwhile(hasher: Hasher, password: str, stored: str | None) -> bool:
        fits = matches(hasher, password, stored)
        if not renewed:
            renewed.append(True)
            with service.store.write() as tx:
                tx.renew_hash(ada.id, hasher.hash(password))
        return fits

    monkeypatch.setattr(Hasher, "matches", renew_meanwhile)
    service.sessions.login("ada@example.com", PASSWORD)
    assert counts(service) == DayCounts(TODAY, sign_ins=1)
    assert query(service, "SELECT * FROM login_failures") == []


def test_over_midnight_the_day_of_the_attempt_loses_its_failure(
    service: Service, clock: FakeClock, add: Callable[..., User], monkeypatch: pytest.MonkeyPatch
) -> None:
    add()
    clock.now = datetime(2026, 11, 20, 23, 59, 59, tzinfo=UTC)
    matches = Hasher.matches

    def slowly(hasher: Hasher, password: str, stored: str | None) -> bool:
        clock.move(seconds=2)
        return matches(hasher, password, stored)

    monkeypatch.setattr(Hasher, "matches", slowly)
    service.sessions.login("ada@example.com", PASSWORD)
    assert counts(service) == DayCounts(TODAY)
    assert counts(service, "2026-11-21") == DayCounts("2026-11-21", sign_ins=1)


def test_accounts_that_their_owners_made_are_registrations(
    service: Service, add: Callable[..., User]
) -> None:
    add()
    service.registration.register("grace@example.com", "Grace", PASSWORD, by=VISITOR)
    assert counts(service) == DayCounts(TODAY, registrations=1)


def test_without_limits_failed_sign_ins_write_nothing(make_service: Callable[..., Service]) -> None:
    service = make_service(limits_enabled=False)
    create_user(service, "ada@example.com", "Ada", PASSWORD)
    tries(service)
    assert query(service, "SELECT * FROM daily_counts") == []
    service.sessions.login("ada@example.com", PASSWORD)
    assert counts(service) == DayCounts(TODAY, sign_ins=1)


def test_several_rows_of_a_day_are_added_up(service: Service) -> None:
    """Sign-ins on a server count in several, which a backup of it has, too."""
    rows = f"('{TODAY}', 1), ('{TODAY} 3', 2), ('{TODAY} 7', 4)"
    by_hand(service.store.database, f"INSERT INTO daily_counts (day, sign_ins) VALUES {rows}")  # noqa: S608
    assert counts(service) == DayCounts(TODAY, sign_ins=7)


# --- against a model ---

EVENT = st.sampled_from(["right", "wrong", "unknown", "register", "inactive"])
EVENTS = st.lists(st.tuples(EVENT, st.integers(-20, 40)), max_size=30)


@pytest.mark.slow
@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(events=EVENTS)
def test_the_counts_of_the_days_are_those_of_a_model(
    make_service: Callable[..., Service],
    clock: FakeClock,
    tmp_path_factory: pytest.TempPathFactory,
    events: list[tuple[str, int]],
) -> None:
    database = database_at(tmp_path_factory.mktemp("overview") / "users.db")
    # Two services on one database, as two processes have.
    services = [
        make_service(database=database, failures_before_delay=10_000, failures_before_lock=20_000)
        for _ in "ab"
    ]
    create_user(services[0], "ada@example.com", "Ada", PASSWORD)
    bob = create_user(services[0], "bob@example.com", "Bob", PASSWORD)
    services[0].accounts.set_active([bob.id], active=False, by=OPERATOR)
    model: dict[str, Counter[str]] = {}
    for number, (event, hours) in enumerate(events):
        clock.move(hours=hours)
        service, day = services[number % 2], model.setdefault(str(clock().date()), Counter())
        if event == "right":
            service.sessions.login("ada@example.com", PASSWORD)
            day["sign_ins"] += 1
        elif event == "register":
            service.registration.register(f"user{number}@example.com", "User", PASSWORD, by=VISITOR)
            day["registrations"] += 1
        elif event == "inactive":
            tries(service, "bob@example.com", PASSWORD)
        else:
            tries(service, "ada@example.com" if event == "wrong" else "nobody@example.com")
            day["failed"] += 1
    days = services[0].overview.now().days
    assert len(days) == DAYS
    assert [day.day for day in days] == sorted(day.day for day in days)
    assert days[-1].day == str(clock().date())
    for day in days:
        expected = model.get(day.day, Counter())
        assert day == DayCounts(day.day, expected["sign_ins"], expected["failed"], expected["registrations"])


# --- the numbers ---


def test_the_overview_counts_users_by_what_they_are(service: Service, add: Callable[..., User]) -> None:
    add("admin", role="admin")
    add("ada")
    service.accounts.set_active([add("asleep").id], active=False, by=OPERATOR)
    service.registration.register("new@example.com", "New", PASSWORD, by=VISITOR)
    for _ in range(10):
        tries(service)
    service.groups.create("staff", by=OPERATOR)
    now = service.overview.now()
    assert (now.users, now.active, now.admins, now.awaiting, now.invited) == (4, 2, 1, 1, 0)
    assert (now.locked, now.groups) == (1, 1)
    assert (now.emails_waiting, now.emails_failed) == (1, 0)
    assert (now.last_backup, now.last_cleanup) == (None, None)
    assert len(now.days) == DAYS


def test_what_no_table_counts_is_counted_up_to_a_bound(service: Service) -> None:
    with service.store.write() as tx:
        for number in range(MANY + 5):
            tx.add_email("reset", None, "ada@example.com", f"<{number}>", dropped=False)
    assert service.overview.now().emails_waiting == MANY


def test_the_last_cleanup_and_backup_are_rows_of_the_trail(service: Service, clock: FakeClock) -> None:
    service.cleaner.run(by=OPERATOR)
    clock.move(hours=1)
    service.cleaner.run(by=OPERATOR)
    with service.store.write() as tx:
        tx.audit(OPERATOR, "backup", file="/backups/users.db")
    now = service.overview.now()
    assert now.last_cleanup is not None
    assert now.last_backup is not None
    assert now.last_cleanup.at == now.last_backup.at == "2026-11-20T09:22:19.123Z"
