"""Guesses of passwords: how many a stranger, a known device and a session get, and that they lock no other out."""

import random
import tempfile
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.commands import OPERATOR, PASSWORD, create_user
from support.databases import database_at, fields_of
from support.devices import WITHOUT_CLIENT_LIMIT, change_password, device_of, fail
from support.fakes import FakeClock
from support.passkeys import ORIGIN, SIGN_IN, use_passkey, with_passkey
from support.web import Client, Site, refusal_of, running

from usersctl import models
from usersctl.config import Settings
from usersctl.errors import TooMany, Unauthenticated, WrongPassword
from usersctl.models import User
from usersctl.passwords import Hasher
from usersctl.service import Service, build


@pytest.fixture
def checks(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The passwords that were checked."""
    passwords: list[str] = []
    matches = Hasher.matches

    def counted(self: Hasher, password: str, stored: str | None) -> bool:
        passwords.append(password)
        return matches(self, password, stored)

    monkeypatch.setattr(Hasher, "matches", counted)
    return passwords


def test_a_stranger_locks_neither_a_known_device_nor_a_session_out(unlimited: Site) -> None:
    site, ada = unlimited, unlimited.add()
    device, session = device_of(site, ada), site.signed_in(ada)
    assert fail(site.client(), ada, 11) == [401] * 10 + [429]
    assert site.client().login(ada.email, PASSWORD).status == 429
    assert device.login(ada.email, PASSWORD).status == 200
    assert fail(site.client(), ada, 11) == [401] * 10 + [429]
    assert change_password(session, PASSWORD) == 200


def test_a_stranger_who_returns_for_days_does_not_keep_a_known_device_out(
    unlimited: Site, clock: FakeClock
) -> None:
    site, ada = unlimited, unlimited.add()
    device, session = device_of(site, ada), site.signed_in(ada, rememberMe=True)
    statuses = []
    for _ in range(300):
        statuses += fail(site.client(), ada)
        clock.move(minutes=15)
    assert statuses.count(401) == 80
    assert site.client().login(ada.email, PASSWORD).status == 429
    assert change_password(session, "wrong") == 400
    assert device.login(ada.email, PASSWORD).status == 200
    assert site.client().login(ada.email, PASSWORD).status == 200, "a success opens the account to all"


def test_strangers_at_the_same_client_address_lock_neither_a_known_device_nor_a_session_out(
    make_service: Callable[..., Service],
) -> None:
    """The same office, or all visitors behind a proxy that is not trusted."""
    with running(make_service(failed_logins_per_minute=3)) as site:
        ada, eve = site.add(), site.add("eve")
        device, session = device_of(site, ada), site.signed_in(ada)
        assert [site.client().login(f"x{n}@example.com", "wrong").status for n in range(4)] == [401] * 3 + [
            429
        ]
        assert site.client().login(ada.email, PASSWORD).status == 429
        assert device.login(eve.email, PASSWORD).status == 429, "known to another account"
        assert device.login("x1@example.com", "wrong").status == 429
        assert fail(device, ada, 11) == [401] * 10 + [429], "as many as its own counter allows"
        assert change_password(session, PASSWORD) == 200


def test_strangers_at_the_same_client_address_do_not_keep_out_a_passkey_on_a_known_device(
    make_service: Callable[..., Service],
) -> None:
    with running(make_service(base_url=ORIGIN, failed_logins_per_minute=3)) as site:
        ada, bob = with_passkey(site.signed_in(site.add())), with_passkey(site.signed_in(site.add("bob")))
        assert ada.client.delete("/api/users/session").status == 200
        assert [site.client().login("x@example.com", "wrong").status for _ in range(4)] == [401] * 3 + [429]
        assert use_passkey(site.client(), ada.device).status == 429
        assert use_passkey(ada.client, bob.device).status == 429, "known to another account"
        assert use_passkey(ada.client, ada.device, id=bytes(32)).status == 429, "of no account"
        assert site.client().post(SIGN_IN, {"credential": {"id": 5}}).status == 429
        assert use_passkey(ada.client, ada.device).status == 200


def test_a_known_device_and_a_session_wait_as_strangers_do_and_share_twenty_checks(
    unlimited: Site, clock: FakeClock, checks: list[str]
) -> None:
    site, ada = unlimited, unlimited.add()
    device, session = device_of(site, ada), site.signed_in(ada, rememberMe=True)
    checks.clear()
    assert fail(device, ada, 11) == [401] * 10 + [429]
    assert device.login(ada.email, PASSWORD).header("Retry-After") == "30"
    assert [change_password(session, "wrong") for _ in range(11)] == [400] * 10 + [429]
    clock.move(days=1)
    assert device.login(ada.email, PASSWORD).header("Retry-After") == "900"
    assert change_password(session, PASSWORD) == 429
    assert len(checks) == 20
    assert fail(site.client(), ada) == [401]
    assert site.client().login(ada.email, PASSWORD).status == 200
    assert device.login(ada.email, PASSWORD).status == 200, "a success of any of them clears all counters"


@pytest.mark.slow
def test_refusals_are_alike_for_known_and_unknown_addresses_whatever_device_asks(
    make_service: Callable[..., Service], clock: FakeClock
) -> None:
    service = make_service(**WITHOUT_CLIENT_LIMIT)
    replies: dict[str, list[Any]] = {"ada@example.com": [], "nobody@example.com": []}
    with running(service) as site:
        site.add()
        device = device_of(site, site.add("eve"))
        for number in range(90):
            for email, told_of_it in replies.items():
                told_of_it.append(refusal_of(device.login(email, "wrong")))
            clock.move(minutes=number % 17)
    assert replies["ada@example.com"] == replies["nobody@example.com"]


@pytest.mark.slow
@given(st.integers(0, 2**32))
@settings(max_examples=4)
def test_strangers_devices_and_sessions_never_get_more_than_a_hundred_checks(seed: int) -> None:
    """In any order and at any pace, by two processes."""
    clock, chance = FakeClock(), random.Random(seed)
    with tempfile.TemporaryDirectory() as folder:
        values = fields_of(database_at(Path(folder) / "users.db"), Path(folder))
        values |= {"base_url": "http://127.0.0.1", "rounds": 4}
        services = [build(Settings(**values), now=clock) for _ in range(2)]
        ada = create_user(services[0], "ada@example.com", "Ada", PASSWORD, by=OPERATOR)
        guessers = [
            guesser(services, ada, kind) for kind in ("stranger",) * 2 + ("device",) * 3 + ("session",) * 2
        ]
        checked: Counter[str] = Counter()
        refused_in_a_row = 0
        while refused_in_a_row < 60:
            kind, guess = chance.choice(guessers)
            was_checked = guess(chance.choice(services))
            checked[kind] += was_checked
            refused_in_a_row = 0 if was_checked else refused_in_a_row + 1
            clock.move(seconds=chance.choice((0, 0, 10, 100, 1000, 3000)))
        assert checked["stranger"] == 80
        assert checked["device"] + checked["session"] == 20
        for service in services:
            service.close()


def guesser(services: list[Service], user: User, kind: str) -> tuple[str, Callable[[Service], bool]]:
    """A function that guesses a password and returns whether it was checked."""
    opened = services[0].sessions.login(user.email, PASSWORD)
    cookie = services[0].devices.cookie((), user.id, opened.session.created_at)
    client = models.Client(devices=(cookie,)) if kind == "device" else models.Client()

    def guess(service: Service) -> bool:
        try:
            if kind == "session":
                service.accounts.change_password(
                    user.id,
                    "wrong",
                    "another sentence",
                    session_id=opened.session.id,
                    by=OPERATOR,
                    renew=None,
                )
            else:
                service.sessions.login(user.email, "wrong", client=client)
        except TooMany:
            return False
        except (Unauthenticated, WrongPassword):
            return True
        raise AssertionError("a wrong password was taken")

    return kind, guess


@pytest.mark.slow
def test_parallel_guesses_are_never_more_than_a_hundred(
    make_service: Callable[..., Service], clock: FakeClock, checks: list[str]
) -> None:
    """By the login, by every spelling of the address, by a stolen session and by a stolen device, at two daemons; the
    clock runs, so that no wait helps."""
    services = [make_service(**WITHOUT_CLIENT_LIMIT) for _ in range(2)]
    user = create_user(services[0], "ada@b\u00fccher.example", "Ada", PASSWORD, by=OPERATOR)
    spellings = [
        "ada@b\u00fccher.example",
        "ADA@B\u00dcCHER.EXAMPLE",
        " ada@xn--bcher-kva.example\n",
        "Ada@xn--BCHER-kva.example",
        "ada@bu\u0308cher.example",
    ]
    statuses: set[int] = set()
    with running(services[0]) as one, running(services[1]) as other:
        stolen = one.signed_in(user, rememberMe=True)
        device = device_of(one, user)
        checks.clear()

        def guess(number: int) -> None:
            site = (one, other)[number % 2]
            for turn in range(40):
                password = f"guess {number} {turn}"
                if number % 3 == 0:
                    client = Client(site.port, {"auth_token": stolen.cookies["auth_token"]})
                    statuses.add(change_password(client, password))
                else:
                    client = Client(site.port, dict(device.cookies) if number % 3 == 1 else {})
                    statuses.add(client.login(spellings[turn % len(spellings)], password).status)
                clock.move(minutes=16)

        with ThreadPoolExecutor(12) as pool:
            list(pool.map(guess, range(12)))
        assert statuses <= {400, 401, 429, 503}
        assert 429 in statuses
        assert len(checks) == 100
        clock.move(days=400)
        assert one.client().login("ada@b\u00fccher.example", PASSWORD).status == 429
        assert len(checks) == 100
