"""Passwords of accounts: set by an operator, changed by their owner; what ends with the old one."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from copy import copy

import pytest
from support.accounts import author, change_password
from support.commands import OPERATOR, PASSWORD
from support.factors import add_authenticator_apps
from support.fakes import FakeClock
from support.postbox import link_in
from support.tables import plant_link, query, store_hash

from usersctl.clock import stamp
from usersctl.errors import (
    Forbidden,
    Invalid,
    TooMany,
    Unauthenticated,
)
from usersctl.mail.kinds import CONFIRM_NEW_EMAIL
from usersctl.models import Actor, User
from usersctl.passwords import Hasher
from usersctl.service import Service


def test_a_password_set_by_an_operator_ends_everything_else(
    service: Service, add: Callable[..., User], clock: FakeClock
) -> None:
    user = add("ada")
    tokens = [
        service.sessions.login(user.email, PASSWORD).token,
        service.sessions.create_api_token(user.id, name="ci", lifetime=None, by=OPERATOR).token,
    ]
    plant_link(service, user)
    clock.move(hours=1)
    changed = service.accounts.set_password(user.id, "another sentence", by=OPERATOR)
    assert changed.updated_at == stamp(clock())
    assert [service.sessions.check(token) for token in tokens] == [None, None]
    assert query(service, "SELECT * FROM one_time_tokens") == []
    with pytest.raises(Unauthenticated):
        service.sessions.login(user.email, PASSWORD)
    assert service.sessions.login(user.email, "another sentence")


@pytest.mark.parametrize("password", ["short", "x" * 73, "password", "ada@example.com", "\ud800" * 9])
def test_a_password_that_breaks_a_rule_is_not_set(
    service: Service, add: Callable[..., User], password: str
) -> None:
    user = add("ada")
    opened = service.sessions.login(user.email, PASSWORD)
    with pytest.raises(Invalid):
        service.accounts.set_password(user.id, password, by=OPERATOR)
    with pytest.raises(Invalid):
        change_password(service, opened, PASSWORD, password)
    assert service.sessions.check(opened.token)


def test_an_owner_who_changes_the_password_keeps_one_session_with_a_new_token(
    service: Service, add: Callable[..., User]
) -> None:
    user = add("ada")
    here = service.sessions.login(user.email, PASSWORD, remember=True)
    others = [
        service.sessions.login(user.email, PASSWORD).token,
        service.sessions.create_api_token(user.id, name="ci", lifetime=None, by=OPERATOR).token,
    ]
    plant_link(service, user)
    renewed = change_password(service, here, PASSWORD, "another sentence")
    assert [service.sessions.check(token) for token in (here.token, *others)] == [None] * 3
    checked = service.sessions.check(renewed)
    assert checked is not None
    assert (checked[0].id, checked[0].kind) == (here.session.id, "persistent")
    assert query(service, "SELECT * FROM one_time_tokens") == []
    assert service.sessions.login(user.email, "another sentence")


def test_a_wrong_current_password_changes_nothing(service: Service, add: Callable[..., User]) -> None:
    opened = service.sessions.login(add("ada").email, PASSWORD)
    with pytest.raises(Invalid, match=r"^Current password is incorrect$"):
        change_password(service, opened, "wrong", "another sentence")
    assert service.sessions.check(opened.token)
    assert service.sessions.login("ada@example.com", PASSWORD)


def test_a_session_that_ended_in_the_meantime_changes_no_password(
    service: Service, add: Callable[..., User]
) -> None:
    opened = service.sessions.login(add("ada").email, PASSWORD)
    service.sessions.end(opened.token)
    with pytest.raises(Unauthenticated):
        change_password(service, opened, PASSWORD, "another sentence")
    assert service.sessions.login("ada@example.com", PASSWORD)


def test_of_two_changes_at_once_one_wins_and_the_old_password_is_gone(
    service: Service, add: Callable[..., User]
) -> None:
    user = add("ada")
    opened = [service.sessions.login(user.email, PASSWORD) for _ in range(4)]

    def attempt(number: int) -> int | None:
        try:
            change_password(service, opened[number], PASSWORD, f"new sentence {number}")
        except (Invalid, TooMany, Unauthenticated):
            return None
        return number

    with ThreadPoolExecutor(4) as pool:
        winners = [number for number in pool.map(attempt, range(4)) if number is not None]
    assert len(winners) == 1
    assert service.sessions.login(user.email, f"new sentence {winners[0]}")
    with pytest.raises(Unauthenticated):
        service.sessions.login(user.email, PASSWORD)


@pytest.mark.parametrize(
    ("way", "message"),
    [
        ("change", "Current password is incorrect"),
        ("delete", "Incorrect password"),
        ("confirm", "Incorrect password"),
    ],
)
def test_a_password_that_is_replaced_while_it_is_checked_is_refused(
    service: Service, add: Callable[..., User], way: str, message: str
) -> None:
    user = add("ada")
    opened = service.sessions.login(user.email, PASSWORD)

    class Slow(Hasher):
        def matches(self, password: str, stored: str | None) -> bool:
            with service.store.write() as tx:
                tx.change_user(user.id, password_hash="changed meanwhile")
            return super().matches(password, stored)

    slow = copy(service)
    slow.accounts = service.accounts._replace(hasher=Slow(4))
    slow.deletion = service.deletion._replace(hasher=Slow(4))
    slow.freshness = service.freshness._replace(hasher=Slow(4))
    own = {"session_id": opened.session.id, "by": author(opened)}
    ways = {
        "change": lambda: change_password(slow, opened, PASSWORD, "another sentence"),
        "delete": lambda: slow.deletion.request(user.id, PASSWORD, **own),
        "confirm": lambda: slow.freshness.confirm(user.id, PASSWORD, **own),
    }
    with pytest.raises(Invalid, match=f"^{message}$"):
        ways[way]()
    assert query(service, "SELECT password_hash, active FROM users") == [("changed meanwhile", 1)]
    assert query(service, "SELECT confirmed_at FROM auth_tokens") == [(None,)]


@pytest.mark.parametrize(
    ("meanwhile", "refusal"),
    [
        (lambda service, user: store_hash(service, user, "changed meanwhile"), Unauthenticated),
        (lambda service, user: add_authenticator_apps(service, user.id), Forbidden),
    ],
    ids=["another password", "a second factor"],
)
def test_a_password_that_does_not_suffice_any_more_when_it_was_checked_proves_no_address(
    service: Service,
    add: Callable[..., User],
    meanwhile: Callable[[Service, User], None],
    refusal: type[Exception],
) -> None:
    user = add("ada")
    opened = service.sessions.login(user.email, PASSWORD)
    service.accounts.update(user.id, email="new@example.com", by=author(opened))
    link = link_in(service.outbox.link(CONFIRM_NEW_EMAIL, user, by=OPERATOR))

    class Slow(Hasher):
        def matches(self, password: str, stored: str | None) -> bool:
            meanwhile(service, user)
            return super().matches(password, stored)

    slow = service.claims._replace(hasher=Slow(4))
    with pytest.raises(refusal):
        slow.prove(link.token, link.email, PASSWORD, by=Actor("anonymous"))
    assert query(service, "SELECT email, claim_proven_at FROM users") == [(user.email, None)]


def test_a_factor_that_is_added_while_the_password_is_checked_keeps_the_account(
    service: Service, add: Callable[..., User]
) -> None:
    user = add("ada")
    opened = service.sessions.login(user.email, PASSWORD)

    class Slow(Hasher):
        def matches(self, password: str, stored: str | None) -> bool:
            add_authenticator_apps(service, user.id)
            return super().matches(password, stored)

    deletion = service.deletion._replace(hasher=Slow(4))
    with pytest.raises(Forbidden, match=r"^Confirm that it is you$"):
        deletion.request(user.id, PASSWORD, session_id=opened.session.id, by=author(opened))
    assert query(service, "SELECT active, delete_at, factors FROM users") == [(1, None, 1)]
