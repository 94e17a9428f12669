"""Lists of users: every filter in every order is what a model in Python lists, page by page."""

import re
from collections.abc import Callable
from datetime import timedelta
from itertools import product
from typing import Any, NamedTuple

import pytest
from support.commands import OPERATOR
from support.fakes import FakeClock
from support.tables import plan, statements

from usersctl.clock import stamp
from usersctl.errors import Invalid
from usersctl.folding import folded
from usersctl.models import Newcomer, Page, User, UserFilter, UserState
from usersctl.service import Service
from usersctl.store import user_lists

SORTS = ("name", "email", "created", "last-login")
NAMES = ("Zoë", "zoe", "Ada", "Bob Ab", "Ábel")


class Person(NamedTuple):
    user: User
    states: frozenset[str]
    groups: frozenset[str]


@pytest.fixture
def people(service: Service, clock: FakeClock) -> list[Person]:
    """120 accounts of all kinds, with equal names and times among them."""
    with service.store.write() as tx:
        for number in range(120):
            newcomer = Newcomer(
                f"u{number * 7 % 120:03}@{'even' if number % 2 else 'odd'}.example",
                NAMES[number % len(NAMES)],
                role="admin" if number % 11 == 1 else "user",
                active=number % 3 != 1,
                awaiting_confirmation=number % 6 == 1,
                created_at=stamp(clock() - timedelta(days=number % 9)),
                last_login_at=None if number % 4 else stamp(clock() - timedelta(hours=number % 5)),
            )
            user = tx.add_user(newcomer)
            if number % 13 == 1:
                tx.change_user(
                    user.id,
                    active=False,
                    awaiting_confirmation=False,
                    invited_at=tx.now_text,
                    invitation_expires_at=tx.now_text,
                )
            if number % 10 == 3:
                for _ in range(service.throttle.before_delay + number % 3):
                    tx.count_failure(f"user:{user.id}", user.id)
            if number % 10 == 4:  # locked by several devices together
                for device in range(4):
                    for _ in range(number % 20):
                        tx.count_failure(f"user:{user.id}:device:{device}", user.id)
    service.groups.create("odd", by=OPERATOR)
    service.groups.create("few", by=OPERATOR)
    service.groups.create("none", by=OPERATOR)
    with service.accounts.all(UserFilter(sort="created")) as everyone:
        users = list(everyone)
    service.groups.add("odd", [user.id for user in users if user.id % 2], by=OPERATOR)
    service.groups.add("few", [user.id for user in users if user.id % 17 == 3], by=OPERATOR)
    clock.move(seconds=45)  # the shortest delays are over
    return [Person(user, states(service, user), frozenset(service.groups.of(user.id))) for user in users]


def states(service: Service, user: User) -> frozenset[str]:
    is_invited = user.invited_at is not None
    gates = service.why.explain(str(user.id)).gates
    known = {
        UserState.ACTIVE: user.active,
        UserState.DEACTIVATED: not (user.active or user.awaiting_confirmation or is_invited),
        UserState.AWAITING: user.awaiting_confirmation and not is_invited,
        UserState.INVITED: is_invited,
        UserState.LOCKED: any(gate.name == "throttled" and gate.state == "shut" for gate in gates),
        UserState.NEVER_SIGNED_IN: user.last_login_at is None,
    }
    return frozenset(state for state, holds in known.items() if holds)


def key(user: User, sort: str) -> tuple[Any, ...]:
    keys = {
        "name": (folded(user.name), user.name),
        "email": (user.email,),
        "created": (user.created_at,),
        "last-login": (user.last_login_at or "",),
    }
    return (*keys[sort], user.id)


def expected(people: list[Person], wanted: UserFilter) -> list[User]:
    listed = [
        person.user
        for person in people
        if wanted.role in (None, person.user.role)
        and wanted.active in (None, person.user.active)
        and (wanted.state is None or wanted.state in person.states)
        and (wanted.group is None or wanted.group in person.groups)
        and (not wanted.search or wanted.search in f"{folded(person.user.name)} {person.user.email}")
    ]
    return sorted(listed, key=lambda user: key(user, wanted.sort), reverse=wanted.descending)


def filters() -> list[dict[str, Any]]:
    parts = product(
        (None, *UserState),
        (None, "odd", "few", "none"),
        (None, "admin", "user"),
        (None, False),
        (None, "b", "zoe"),
    )
    return [dict(zip(("state", "group", "role", "active", "search"), part, strict=True)) for part in parts]


def walked(page_of: Callable[..., Page], limit: int) -> list[User]:
    """All pages, each behind the last user of the one before."""
    users: list[User] = []
    while True:
        after = users[-1].id if users else None
        page = page_of(page=len(users) // limit + 1, limit=limit, after=after)
        users += page.users
        if len(page.users) < limit:
            return users


@pytest.mark.slow
@pytest.mark.parametrize("few", [5_000, 12])
@pytest.mark.parametrize("sort", SORTS)
def test_every_filter_in_every_order_lists_what_a_model_lists(
    service: Service, people: list[Person], monkeypatch: pytest.MonkeyPatch, sort: str, few: int
) -> None:
    """`few`: from how many users on a group, a search or the locked accounts are looked for in the order of the list."""
    monkeypatch.setattr(user_lists, "FEW", few)
    assert {state for person in people for state in person.states} == set(UserState)
    for number, parts in enumerate(filters()):
        wanted = UserFilter(**parts, sort=sort, descending=number % 2 == 1)
        users = expected(people, wanted)
        page = service.accounts.page(wanted, limit=100)
        assert page.users == users[:100], wanted
        assert page.total == len(users) or not page.is_exact, wanted
        assert walked(lambda wanted=wanted, **place: service.accounts.page(wanted, **place), 17) == users, (
            wanted
        )
        last = max(1, -(-len(users) // 17))
        assert service.accounts.page(wanted, page=last, limit=17).users == users[17 * (last - 1) :], wanted
        with service.accounts.all(wanted) as everyone:
            assert list(everyone) == users, wanted


def test_a_group_that_does_not_exist_is_refused(service: Service) -> None:
    for wanted in (UserFilter(group="ghosts"), UserFilter(group="ghosts", search="ada", state="locked")):
        with pytest.raises(Invalid, match="Unknown group"):
            service.accounts.page(wanted)


def test_no_account_is_listed_as_locked_while_limits_are_off(make_service: Callable[..., Service]) -> None:
    service = make_service(limits_enabled=False)
    with service.store.write() as tx:
        user = tx.add_user(Newcomer("ada@example.com", "Ada"))
        for _ in range(200):
            tx.count_failure(f"user:{user.id}", user.id)
    assert service.accounts.page(UserFilter(state="locked")).users == []


@pytest.mark.sqlite  # the plan of SQLite
@pytest.mark.parametrize("state", [state for state in UserState if state not in ("active", "locked")])
def test_a_state_is_listed_from_an_index_in_the_order_of_the_list(
    service: Service, people: list[Person], state: str
) -> None:
    own = {
        "deactivated": "users_shut",
        "awaiting": "users_shut",
        "invited": "users_invited",
        "never-signed-in": "users_(new|by_last_login)",
    }
    for sort, descending in product(SORTS, (False, True)):
        wanted = UserFilter(state=state, sort=sort, descending=descending)
        last = expected(people, wanted)[2]
        with statements(service) as run:
            for after in (None, last.id):
                service.accounts.page(wanted, limit=3, after=after)
        steps = [step for statement in run if "LIMIT" in statement for step in plan(service, statement)]
        assert not [step for step in steps if "TEMP B-TREE" in step or re.fullmatch(r"SCAN \w+", step)], (
            wanted,
            steps,
        )
        assert re.search(rf"USING INDEX {own[state]}", steps[0]), (wanted, steps)


@pytest.mark.sqlite  # the plan of SQLite
@pytest.mark.parametrize("others", [{"state": "active"}, {"role": "user"}, {"active": True, "role": "user"}])
def test_a_part_of_a_large_group_is_counted_from_its_members(
    service: Service, people: list[Person], monkeypatch: pytest.MonkeyPatch, others: dict[str, Any]
) -> None:
    monkeypatch.setattr(user_lists, "FEW", 12)
    wanted = UserFilter(group="odd", **others)
    with statements(service) as run:
        page = service.accounts.page(wanted, limit=3)
    assert page.total == len(expected(people, wanted))
    (counting,) = (statement for statement in run if "SELECT count(*)" in statement)
    steps = plan(service, counting)
    assert any(step.startswith("SEARCH group_members") for step in steps), steps
    assert not [step for step in steps if re.fullmatch(r"SCAN users.*", step)], steps
