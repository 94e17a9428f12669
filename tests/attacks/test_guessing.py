"""Attacks by guessing, timing and racing; and what a page reveals."""

import json
import random
import re
import shutil
import statistics
import subprocess
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import quote

import bcrypt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.commands import OPERATOR, PASSWORD, create_user
from support.fakes import FakeClock
from support.oauth_site import oauth_site
from support.web import Client, Reply, Site, running

import usersd.pages
from usersctl import models
from usersctl.config import Settings
from usersctl.devices import KEY, PURPOSE
from usersctl.errors import TooMany, Unauthenticated, WrongPassword
from usersctl.mail.kinds import PASSWORD_CHANGED, RESET, Kind
from usersctl.models import UNUSABLE, User
from usersctl.passwords import Hasher
from usersctl.secrets import new_key, sign
from usersctl.service import Service, build
from usersd.access import own_path
from usersd.routes import TABLE
from usersd.routing import Access

NO_LIMITS: dict[str, Any] = {
    "failures_before_delay": 10**6,
    "failures_before_lock": 10**6,
    "failed_logins_per_minute": 10**6,
}  # counted as usual, and never reached


# --- who exists ---


@pytest.fixture(scope="module")
def refused() -> dict[str, tuple[str, str]]:
    """Logins that get the same refusal: address and password."""
    names = ("wrong", "inactive", "broken", "nonsense", "unusable", "cheap")
    return {
        **{name: (f"{name}@example.com", "not the password") for name in names},
        "unknown": ("nobody@example.com", "not the password"),
        "no address": ("nobody at all", "not the password"),
        "too long": ("wrong@example.com", "x" * 73),
        "far too long": ("wrong@example.com", "x" * 50_000),
        "too long, unknown": ("nobody@example.com", "x" * 73),
        "empty hash, empty word": ("unusable@example.com", UNUSABLE),
        "nothing much": ("wrong@example.com", " "),
    }


def accounts_for_refusal(service: Service) -> None:
    stored = {
        "broken": "$2b$12$short",
        "nonsense": "$2b$09$" + "." * 10 + "\u00e4" * 43,
        "unusable": UNUSABLE,
        "cheap": bcrypt.hashpw(PASSWORD.encode(), bcrypt.gensalt(4)).decode(),
    }
    for name in ("wrong", "inactive", "broken", "nonsense", "unusable", "cheap"):
        user = create_user(
            service, f"{name}@example.com", name.title(), PASSWORD, active=name != "inactive", by=OPERATOR
        )
        if name in stored:
            with service.store.write() as tx:
                tx.change_user(user.id, password_hash=stored[name])


def refusal_of(reply: Reply) -> tuple[Any, ...]:
    headers = sorted((name, value) for name, value in reply.headers if name not in ("X-Request-Id", "Date"))
    return reply.status, headers, reply.body


def test_login_refusals_do_not_reveal_accounts(
    make_service: Callable[..., Service], refused: dict[str, tuple[str, str]]
) -> None:
    service = make_service(**NO_LIMITS)
    accounts_for_refusal(service)
    with running(service) as site:
        refusals = {name: refusal_of(site.client().login(*words)) for name, words in refused.items()}
    assert len({repr(refusal) for refusal in refusals.values()}) == 1, refusals
    assert refusals["wrong"][0] == 401


def test_limits_do_not_reveal_accounts(
    make_service: Callable[..., Service], clock: FakeClock, refused: dict[str, tuple[str, str]]
) -> None:
    service = make_service(failures_before_lock=13, failed_logins_per_minute=10**6)
    accounts_for_refusal(service)
    kinds = ("wrong", "inactive", "broken", "nonsense", "unusable", "cheap", "unknown", "no address")
    seen: dict[str, list[Any]] = {name: [] for name in kinds}
    with running(service) as site:
        for _ in range(16):
            for name, seen_of_it in seen.items():
                seen_of_it.append(refusal_of(site.client().login(*refused[name])))
            clock.move(seconds=20)
    assert len({repr(statuses) for statuses in seen.values()}) == 1
    assert [statuses[0] for statuses in seen["unknown"]].count(429) > 3


@pytest.mark.alone
def test_the_time_of_a_refusal_does_not_reveal_accounts(
    make_service: Callable[..., Service], refused: dict[str, tuple[str, str]]
) -> None:
    """All kinds in turn, so that whatever else this machine does meets them alike, and more of them while it is noisy.

    On a machine that never comes to rest the time that the processor worked for them tells as much.
    """
    service = make_service(rounds=8, **NO_LIMITS)
    accounts_for_refusal(service)
    kinds = (
        "wrong",
        "inactive",
        "broken",
        "unusable",
        "cheap",
        "unknown",
        "no address",
        "too long",
        "far too long",
    )
    clocks = (time.perf_counter, time.process_time)
    took: dict[str, list[tuple[float, ...]]] = {name: [] for name in kinds}
    with running(service) as site:
        device = site.client()
        assert device.login(site.add("device").email, PASSWORD).status == 200
        client = site.client(cookies={DEVICE: device.cookies[DEVICE]})  # a device of another account
        for _ in range(6):
            for name in kinds * 12:
                began = [clock() for clock in clocks]
                assert client.login(*refused[name]).status == 401
                took[name].append(tuple(clock() - start for clock, start in zip(clocks, began, strict=True)))
            shares = [
                medians({name: [seconds[n] for seconds in times] for name, times in took.items()})
                for n in (0, 1)
            ]
            if any(all(0.9 <= share <= 1.1 for share in one.values()) for one in shares):
                return
    pytest.fail(str(shares))


def medians(times: dict[str, list[float]]) -> dict[str, float]:
    """Of each, as a share of the middle one."""
    by_name = {name: statistics.median(seconds) for name, seconds in times.items()}
    return {name: round(median / statistics.median(by_name.values()), 3) for name, median in by_name.items()}


# --- how often ---

DEVICE = "auth_token_device"
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
        values = {"database": Path(folder) / "users.db", "base_url": "http://127.0.0.1", "rounds": 4}
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


# --- races ---


def at_once(*calls: Callable[[], Any]) -> list[Any]:
    barrier = threading.Barrier(len(calls))

    def run(call: Callable[[], Any]) -> Any:
        barrier.wait(10)
        return call()

    with ThreadPoolExecutor(len(calls)) as pool:
        return list(pool.map(run, calls))


def test_parallel_creations_of_an_address_make_one_account(site: Site, add: Callable[..., User]) -> None:
    add(role="admin")
    admin = site.client()
    admin.login("ada@example.com", PASSWORD)
    for number in range(5):
        spellings = [f"eve{number}@example.com", f"EVE{number}@example.com", f" eve{number}@EXAMPLE.com "] * 3
        replies = at_once(
            *(
                lambda e=email: Client(site.port, dict(admin.cookies)).post(
                    "/api/users", {"email": e, "name": "Eve", "password": PASSWORD}
                )
                for email in spellings
            )
        )
        statuses = sorted(reply.status for reply in replies)
        assert statuses.count(200) == 1, statuses
        assert set(statuses) <= {200, 400, 503}
        assert len(admin.get(f"/api/users?search=eve{number}").json["users"]) == 1


def test_parallel_changes_to_an_address_give_it_to_one_user(site: Site, add: Callable[..., User]) -> None:
    clients = []
    for number in range(6):
        add(f"user{number}")
        clients.append(site.client())
        clients[-1].login(f"user{number}@example.com", PASSWORD)
    replies = at_once(
        *(lambda c=client: c.patch("/api/users/me", {"email": "Same@example.com"}) for client in clients)
    )
    assert sorted(reply.status for reply in replies) == [200] + [400] * 5


def test_a_first_admin_link_makes_one_admin(make_service: Callable[..., Service]) -> None:
    service = make_service()
    token = service.first_admin.link().partition("token=")[2]
    with running(service) as site:
        replies = at_once(
            *(
                lambda n=n: site.client().post(
                    "/api/users/setup",
                    {"token": token, "email": f"a{n}@example.com", "name": "A", "password": PASSWORD},
                )
                for n in range(8)
            )
        )
    assert [reply.status for reply in replies].count(200) == 1
    with service.store.read() as tx:
        assert tx.counts()["users"] == tx.active_admins() == 1


# --- pages ---

LEAVING = [
    "//evil.example", "///evil.example", "/\\evil.example", "\\\\evil.example", "\\/evil.example", "https://evil.example", "https:evil.example",
    "http:/evil.example", "javascript:alert(1)", " javascript:alert(1)", "java\tscript:alert(1)", "data:text/html,x", "vbscript:x", "/\t/evil.example",
    "/\n/evil.example", "/\r/evil.example", "\t//evil.example", " //evil.example", "\u00a0//evil.example", "\ufeff//evil.example", "/\u0000/evil.example",
    "\u0000//evil.example", "/\t\\evil.example", "/.\t./evil.example", "evil.example", "@evil.example", ":80", "", "?", "#", "./x", "..//evil.example",
    "/x\\..\\..\\\\evil.example", "\uff0f\uff0fevil.example", "blob:x", "/ /evil.example", "//", "/\\", "\u2028//evil.example", "//\u3002evil.example",
]  # fmt: skip
STAYING = ["/", "/users", "/users?page=2&search=a%20b#x", "/a//b", "/.//evil.example", "/%09/evil.example", "/%5cevil.example", "/x?to=https://evil.example",
           "/@evil.example", "/:80", "/;//evil.example"]  # fmt: skip

PROGRAM = """
const [leaving, staying] = JSON.parse(require("fs").readFileSync(0, "utf8"));
const home = "https://users.example/login?redirect=x";
const bad = [];
const stays = (target) => new URL(own_path(target), home).origin === "https://users.example";
for (const each of [...leaving, null, undefined]) if (own_path(each) !== "/") bad.push(each);
for (const each of staying) if (own_path(each) !== each || !stays(each)) bad.push(each);
const letters = ["/", "/", "\\\\", ".", "\\t", "\\n", "\\r", " ", "@", ":", "?", "#", "%", "a", "http:", "evil.example", "\\u0000", "\\u00a0", "\\uff0f", "\\u2028", "\\x7f"];
for (let n = 0; n < 100000; n++) {
  let each = n % 2 ? "/" : "";
  for (let k = n % 7; k >= 0; k--) each += letters[Math.floor(Math.random() * letters.length)];
  if (!stays(each)) bad.push(each);
}
console.log(JSON.stringify(bad));
"""


def script() -> str:
    """What all pages load, and the additions of two pages."""
    folder = Path(usersd.pages.pages.__file__).parent
    return "".join((folder / name).read_text() for name in ("script.js", "profile.js", "users.js"))


def test_a_login_never_redirects_to_another_site() -> None:
    node = shutil.which("node")
    if node is None:
        pytest.skip("node, which runs the script of the pages, is not installed")
    function = re.search(r"^function own_path\(.*?^}\n", script(), re.MULTILINE | re.DOTALL)
    assert function
    done = subprocess.run(
        [node, "-e", function[0] + PROGRAM],
        input=json.dumps([LEAVING, STAYING]),
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert done.stderr == ""
    assert json.loads(done.stdout) == []


def test_the_service_never_redirects_to_another_site() -> None:
    assert {own_path(target) for target in LEAVING} == {""}
    assert [own_path(target) for target in STAYING] == STAYING


def test_the_script_navigates_only_to_own_paths_and_writes_no_html() -> None:
    for dangerous in (
        "innerHTML",
        "outerHTML",
        "insertAdjacentHTML",
        "document.write",
        "eval(",
        "new Function",
        "location.href =",
        "location =",
        "window.open",
        "postMessage",
    ):
        assert dangerous not in script(), dangerous
    for used in re.findall(r"location\.(?:assign|replace)\((.*?)\);\n", script()):
        assert "redirect" not in used or "own_path(" in used, used


class Page(HTMLParser):
    """Everything in a page that a browser runs or fetches."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.odd: list[str] = []
        self.scripts: list[str | None] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        attributes = dict(attrs)
        if tag == "script":
            src, kind = attributes.get("src"), attributes.get("type")
            self.scripts.append(src.partition("?")[0] if src else kind)
        self.odd += [
            f"{tag} {name}"
            for name in attributes
            if name.startswith("on") or name in ("style", "srcdoc", "formaction")
        ]
        self.odd += [
            f"{tag} {value}"
            for name in ("src", "href", "action")
            if (value := attributes.get(name)) and not value.startswith(("/", "#", "data:,"))
        ]
        self.odd += [tag] if tag in ("iframe", "object", "embed", "base", "style", "xss") else []


PAGES = [
    route
    for route in TABLE
    if route.method == "GET"
    and not route.path.startswith(("/api/", "/_tasks/", "/assets/", "/health", "/ready"))
]
XSS = "\"'><xss onload=alert(1)>{{7*7}}</title>%3Cxss%3E"


@pytest.fixture
def page_site(make_service: Callable[..., Service]) -> Iterator[Site]:
    service = make_service(whitelist=("/register",), brand=f"Brand {XSS}")
    create_user(service, "ada@example.com", f"Ada {XSS}", PASSWORD, role="admin", by=OPERATOR)
    with running(service) as site:
        yield site


@pytest.mark.parametrize("route", PAGES, ids=lambda route: route.path)
def test_no_page_repeats_its_input(page_site: Site, route: Any) -> None:
    client = page_site.client()
    client.login("ada@example.com", PASSWORD)
    plain = client.get(route.path)
    assert plain.status == 200
    names = ("redirect", "error", "token", "email", "message", "code", "state", "x")
    for value in (XSS, "javascript:alert(1)", "//evil.example", "\r\n\r\n<xss>", "\ud83d\ude00<xss>"):
        query = "&".join(
            f"{name}={quote(value.encode('utf-16', 'surrogatepass').decode('utf-16'))}" for name in names
        )
        reply = client.get(
            f"{route.path}?{query}", headers={"User-Agent": XSS, "Referer": XSS, "Accept-Language": XSS}
        )
        assert "<xss" not in reply.body.decode()
        assert "evil.example" not in reply.body.decode()
        page = Page(reply.body.decode())
        assert page.odd == []
        assert set(page.scripts) <= {f"/assets/{name}.js" for name in ("script", "profile", "users")}
    assert Page(plain.body.decode()).odd == []
    assert "{{7*7}}" in plain.body.decode()


def test_every_response_has_its_protecting_headers(page_site: Site) -> None:
    admin, nobody = page_site.client(), page_site.client()
    admin.login("ada@example.com", PASSWORD)
    token = admin.cookies["auth_token"]
    paths = {
        route.path.replace("<id>", "1").replace("<session_id>", "99").replace("<name>", "style.css")
        for route in TABLE
    }
    seen = set()
    for client in (nobody, admin):
        for path in sorted(
            {*paths, "/nowhere", "/api/nowhere", "/api/users/x", "/assets/x", "/%ff", "/x%0a"}
        ):
            for method in ("GET", "HEAD", "POST", "DELETE", "OPTIONS", "TRACE"):
                client.cookies = {"auth_token": token} if client is admin else {}
                reply = client.send(
                    method, path, headers={"Origin": "http://evil.example"} if method == "TRACE" else None
                )
                if (method, path) in (
                    ("DELETE", "/api/users/session"),
                    ("DELETE", "/api/users/1/sessions"),
                ) and client is admin:
                    token = page_site.service.sessions.login("ada@example.com", PASSWORD).token
                seen.add(reply.status)
                protected(reply, asset=path == "/assets/style.css")
    assert {200, 302, 400, 401, 403, 404, 405} <= seen


def protected(reply: Reply, *, asset: bool = False) -> None:
    for name in (
        "Content-Type",
        "Content-Security-Policy",
        "X-Content-Type-Options",
        "Referrer-Policy",
        "Cache-Control",
        "X-Request-Id",
    ):
        assert len(reply.all(name)) == 1, (name, reply)
    policy = reply.header("Content-Security-Policy") or ""
    assert policy.startswith("default-src 'none'")
    assert "frame-ancestors 'none'" in policy
    assert "unsafe" not in policy
    assert "*" not in policy
    assert reply.header("X-Content-Type-Options") == "nosniff"
    assert reply.header("Referrer-Policy") == "no-referrer"
    assert reply.header("Cache-Control") == "no-store" or (asset and reply.status == 200)
    assert reply.header("Server") is None
    assert reply.header("X-Powered-By") is None
    assert reply.header("Strict-Transport-Security") is None
    assert reply.header("Access-Control-Allow-Origin") is None


def test_responses_of_the_server_itself_have_the_headers_too(page_site: Site) -> None:
    for raw in (b"\r\n\r\nGET\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n", b"GET / HTTP/1.1\r\n\r\n", b"GET http://x/ HTTP/1.1\r\nHost: x\r\n\r\n",
                b"GET / HTTP/1.1\r\nHost: x\r\nX: " + b"x" * 20_000 + b"\r\n\r\n", b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 70000\r\n\r\n"):  # fmt: skip
        head, _, body = page_site.raw(raw).partition(b"\r\n\r\n")
        lines = [line.partition(": ") for line in head.decode().split("\r\n")[1:]]
        reply = Reply(int(head.split()[1]), [(name, value) for name, _, value in lines], body)
        assert reply.status in (400, 413, 431)
        assert reply.message
        protected(reply)


def test_over_https_every_response_has_hsts(make_service: Callable[..., Service]) -> None:
    with running(make_service(base_url="https://users.example")) as site:
        for path in ("/", "/login", "/api/users/me", "/nowhere", "/assets/style.css", "/%ff"):
            (header,) = site.client().get(path).all("Strict-Transport-Security")
            assert int(header.partition("max-age=")[2].partition(";")[0]) >= 15_768_000
        assert b"Strict-Transport-Security" in site.raw(b"GET / HTTP/1.1\r\n\r\n")


def test_subdomains_are_in_hsts_only_if_configured(make_service: Callable[..., Service]) -> None:
    with running(make_service(base_url="https://users.example", hsts_include_subdomains=True)) as site:
        for path in ("/login", "/nowhere", "/assets/style.css"):
            (header,) = site.client().get(path).all("Strict-Transport-Security")
            assert header == "max-age=31536000; includeSubDomains"
    with running(make_service(hsts_include_subdomains=True)) as site:
        assert site.client().get("/login").header("Strict-Transport-Security") is None


def test_the_routes_open_to_anyone_are_exactly_the_intended_ones() -> None:
    open_to_all = {(route.method, route.path) for route in TABLE if route.access is Access.ANYONE}
    meant = {
        ("POST", "/api/users/session"), ("DELETE", "/api/users/session"), ("POST", "/api/users/setup"), ("GET", "/login"), ("GET", "/setup"),
        ("GET", "/assets/<name>"), ("POST", "/api/users/password/forgot"), ("POST", "/api/users/password/reset"), ("POST", "/api/users/not-me"),
        ("POST", "/api/users/confirm-deletion"), ("POST", "/api/users/undo-deletion"), ("GET", "/confirm-deletion"), ("GET", "/undo-deletion"),
        ("GET", "/forgot-password"), ("GET", "/reset-password"), ("GET", "/not-me"), ("GET", "/api/users/auth/oauth/redirect"),
        ("GET", "/api/users/auth/oauth/callback"), ("GET", "/api/users/auth/verify"), ("GET", "/health"), ("GET", "/ready"),
        ("GET", "/api/users/openapi.json"), ("GET", "/api/users/docs"), ("POST", "/api/users/me/email"), ("GET", "/confirm-new-email"),
        ("POST", "/logout"),
    }  # fmt: skip
    assert open_to_all <= meant
