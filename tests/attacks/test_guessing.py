"""Guesses of passwords: how many a stranger, a known device and a session get, and that they lock no other out."""

import random
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.commands import OPERATOR, PASSWORD, create_user
from support.databases import database_at, fields_of
from support.fakes import FakeClock
from support.oauth_site import oauth_site
from support.web import DEVICE, Client, Site, refusal_of, running

from usersctl import models
from usersctl.config import Settings
from usersctl.devices import KEY, PURPOSE
from usersctl.errors import TooMany, Unauthenticated, WrongPassword
from usersctl.mail.kinds import PASSWORD_CHANGED, RESET, Kind
from usersctl.models import User
from usersctl.passwords import Hasher
from usersctl.secrets import new_key, sign
from usersctl.service import Service, build

OWN_PASSWORD = "/api/users/password"
WITHOUT_CLIENT_LIMIT = {"failed_logins_per_minute": 10**6}


@pytest.fixture
def unlimited(make_service: Callable[..., Service]) -> Iterator[Site]:
    """With limits for accounts only."""
    with running(make_service(**WITHOUT_CLIENT_LIMIT)) as site:
        yield site


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


def device_of(site: Site, user: User, **cookies: str) -> Client:
    """A browser that signed in to the account before, without a session."""
    client = site.client(cookies=cookies)
    assert client.login(user.email, PASSWORD).status == 200
    return site.client(cookies={DEVICE: client.cookies[DEVICE]})


def fail(client: Client, user: User, times: int = 1) -> list[int]:
    return [client.login(user.email, "wrong").status for _ in range(times)]


def change_password(client: Client, current: str) -> int:
    new = {"newPassword": "another sentence", "newPasswordConfirmation": "another sentence"}
    return client.patch(OWN_PASSWORD, {"currentPassword": current, **new}).status


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


def test_a_browser_stays_known_to_the_five_accounts_that_signed_in_last(unlimited: Site) -> None:
    site = unlimited
    users = [site.add(f"user{number}") for number in range(6)]
    client = site.client()
    for user in users:
        assert client.login(user.email, PASSWORD).status == 200
    known = {DEVICE: client.cookies[DEVICE]}
    for user in users:
        fail(site.client(), user, 10)
    statuses = [site.client(cookies=dict(known)).login(user.email, PASSWORD).status for user in users]
    assert statuses == [429] + [200] * 5


def test_a_sign_in_through_the_provider_makes_a_device_known(
    make_service: Callable[..., Service], clock: FakeClock
) -> None:
    limits = WITHOUT_CLIENT_LIMIT | {"oauth_allow_auto_registration": True}
    with oauth_site(make_service, **limits) as site:
        browser = site.browser()
        assert browser.sign_in().header("Location") == "/"
        user = site.service.accounts.find((browser.me() or {})["email"])
        clock.move(seconds=1)
        site.service.accounts.set_password(user.id, PASSWORD, by=OPERATOR)
        known = site.site.client(cookies={DEVICE: browser.client.cookies[DEVICE]})
        fail(site.site.client(), user, 10)
        assert known.login(user.email, PASSWORD).status == 429, "a new password ends it"
        browser.sign_in()
        known = site.site.client(cookies={DEVICE: browser.client.cookies[DEVICE]})
        assert known.login(user.email, PASSWORD).status == 200


def test_the_end_of_all_other_sessions_leaves_only_this_device_known(
    unlimited: Site, clock: FakeClock
) -> None:
    site, ada = unlimited, unlimited.add()
    other, session = device_of(site, ada), site.signed_in(ada)
    clock.move(seconds=1)
    assert session.post("/api/users/me/sessions/end-others").status == 200
    fail(site.client(), ada, 10)
    assert other.login(ada.email, PASSWORD).status == 429
    assert site.client(cookies={DEVICE: session.cookies[DEVICE]}).login(ada.email, PASSWORD).status == 200


def resigned(cookie: str, key: bytes, purpose: str = PURPOSE) -> str:
    return sign(key, purpose, cookie.rpartition(".")[0])


FORGERIES: dict[str, Callable[[Site, User, str], str]] = {
    "none": lambda _site, _ada, _cookie: "",
    "nonsense": lambda _site, _ada, _cookie: "1~x~2026-11-20T08:22:19.123Z",
    "separators": lambda _site, _ada, _cookie: "~/~/~.~",
    "unsigned": lambda _site, _ada, cookie: cookie.rpartition(".")[0] + ".",
    "cut": lambda _site, _ada, cookie: cookie[:-1],
    "later": lambda _site, _ada, cookie: cookie.replace("2026", "2027"),
    "of another account": lambda site, _ada, _cookie: device_of(site, site.add("eve")).cookies[DEVICE],
    "for another account": lambda site, ada, _cookie: (
        device_of(site, site.add("eve")).cookies[DEVICE].replace("2~", f"{ada.id}~", 1)
    ),
    "with another key": lambda _site, _ada, cookie: resigned(cookie, new_key()),
    "for another purpose": lambda site, _ada, cookie: resigned(
        cookie, site.service.store.signing_key(KEY), "oauth"
    ),
}


@pytest.mark.parametrize("forgery", FORGERIES)
def test_a_forged_or_foreign_device_is_a_stranger(unlimited: Site, forgery: str) -> None:
    site, ada = unlimited, unlimited.add()
    cookie = device_of(site, ada).cookies[DEVICE]
    forged = site.client(cookies={DEVICE: FORGERIES[forgery](site, ada, cookie)})
    fail(site.client(), ada, 10)
    assert refusal_of(forged.login(ada.email, PASSWORD)) == refusal_of(
        site.client().login(ada.email, PASSWORD)
    )
    assert forged.login(ada.email, PASSWORD).status == 429


def token_for(site: Site, user: User, kind: Kind) -> str:
    link = site.service.outbox.link(kind, user, by=OPERATOR)
    return link.partition("token=")[2].partition("&")[0]


REVOCATIONS: dict[str, Callable[[Site, User], object]] = {
    "a password set by an operator": lambda site, ada: site.service.accounts.set_password(
        ada.id, PASSWORD, by=OPERATOR
    ),
    "a deactivation": lambda site, ada: [
        site.service.accounts.set_active([ada.id], active=active, by=OPERATOR) for active in (False, True)
    ],
    "the end of all sessions": lambda site, ada: site.service.sessions.revoke_all([ada.id], by=OPERATOR),
    "a reset": lambda site, ada: site.client().post(
        "/api/users/password/reset",
        {
            "token": token_for(site, ada, RESET),
            "email": ada.email,
            "password": PASSWORD,
            "password_confirmation": PASSWORD,
        },
    ),
    "this wasn't me": lambda site, ada: site.client().post(
        "/api/users/not-me", {"token": token_for(site, ada, PASSWORD_CHANGED), "email": ada.email}
    ),
    "a change of the password elsewhere": lambda site, ada: change_password(site.signed_in(ada), PASSWORD),
    "a restored backup": lambda site, _ada: without_keys(site.service),
}


def without_keys(service: Service) -> None:
    with service.store.write() as tx:
        tx.delete_signing_keys()


@pytest.mark.parametrize("revocation", REVOCATIONS)
def test_a_thief_s_device_is_a_stranger_after(unlimited: Site, clock: FakeClock, revocation: str) -> None:
    site, ada = unlimited, unlimited.add()
    device = device_of(site, ada)
    clock.move(seconds=1)
    REVOCATIONS[revocation](site, ada)
    assert fail(site.client(), ada, 10) == [401] * 10
    assert device.login(ada.email, PASSWORD).status == 429


def test_a_device_is_known_for_a_year(unlimited: Site, clock: FakeClock) -> None:
    site, ada = unlimited, unlimited.add()
    device = device_of(site, ada)
    fail(site.client(), ada, 80)
    clock.move(days=364, hours=23)
    while fail(site.client(), ada) == [401]:
        clock.move(seconds=1)
    assert fail(device, ada) == [401]
    clock.move(hours=2)
    while fail(site.client(), ada) == [401]:
        pass
    assert fail(device, ada) == [429]


def test_a_change_of_the_password_keeps_this_device_known(unlimited: Site, clock: FakeClock) -> None:
    site, ada = unlimited, unlimited.add()
    session = site.signed_in(ada)
    clock.move(seconds=1)
    assert change_password(session, PASSWORD) == 200
    fail(site.client(), ada, 10)
    device = site.client(cookies={DEVICE: session.cookies[DEVICE]})
    assert device.login(ada.email, "another sentence").status == 200


def test_the_cookie_of_a_device_is_out_of_reach_of_scripts_and_other_sites(
    make_service: Callable[..., Service],
) -> None:
    with running(make_service()) as site:
        ada = site.add()
        (cookie,) = (
            text for text in site.client().login(ada.email, PASSWORD).all("Set-Cookie") if DEVICE in text
        )
        assert cookie.partition("; ")[2] == "Path=/; HttpOnly; SameSite=Lax; Max-Age=31536000"
    with running(make_service(base_url="https://users.example")) as site:
        cookies = site.client().login(ada.email, PASSWORD).all("Set-Cookie")
        (cookie,) = (text for text in cookies if DEVICE in text)
        assert cookie.startswith(f"__Host-{DEVICE}=")
        assert cookie.partition("; ")[2] == "Path=/; HttpOnly; SameSite=Lax; Secure; Max-Age=31536000"


def test_the_cookie_of_a_device_is_not_logged(unlimited: Site) -> None:
    site, ada = unlimited, unlimited.add()
    device = device_of(site, ada)
    cookie = device.cookies[DEVICE]
    fail(device, ada, 11)
    for path in ("/", "/api/users/me", "/login", "/nowhere"):
        device.get(path)
    assert cookie.rpartition(".")[2] not in site.stream.getvalue()
    assert cookie.split("~")[1] not in site.stream.getvalue()


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
