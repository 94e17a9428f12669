"""Attacks on the state of a sign-in and on its cookie: invented, stolen, changed, played back, or sent twice at once."""

import base64
import json
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

import pytest
from support.commands import OPERATOR
from support.fakes import FakeClock
from support.oauth_site import (
    CALLBACK,
    ELSEWHERE,
    Browser,
    MakeOAuthSite,
    OAuthSite,
    answered,
    asked,
    error_of,
    path_of,
)
from support.web import Reply, running

from usersctl.models import OAUTH
from usersctl.secrets import sign
from usersctl.service import Service
from usersctl.store.signing_keys import COOKIES
from usersd.handlers.oauth import PURPOSE, Flow


@pytest.fixture
def site(make_oauth_site: MakeOAuthSite) -> OAuthSite:
    return make_oauth_site(oauth_allow_auto_registration=True, limits_enabled=False)


def with_state(path: str, state: str) -> str:
    return f"{urlsplit(path).path}?{urlencode(asked(path) | {'state': state})}"


# --- state ---


def test_a_callback_without_a_state_is_refused(site: OAuthSite, browser: Browser) -> None:
    back = path_of(browser.consent(browser.set_out(), "1001"))
    code = asked(back)["code"]
    for path in (CALLBACK, f"{CALLBACK}?code={code}", f"{CALLBACK}?code={code}&state=", f"{CALLBACK}?state="):
        assert error_of(browser.client.get(path)) == "oauth_failed"
    assert (browser.me(), site.accounts()) == (None, 0)
    assert browser.callback(back if back.startswith("http") else browser.base_url + back).status == 302
    assert browser.me() is not None  # and the right browser still can


def test_a_callback_without_a_code_asks_the_provider_nothing(site: OAuthSite, browser: Browser) -> None:
    answer = asked(browser.consent(browser.set_out(), "1001"))
    del answer["code"]
    assert error_of(browser.client.get(f"{CALLBACK}?{urlencode(answer)}")) == "oauth_failed"
    assert (site.exchanges(), browser.me()) == (0, None)


def test_a_state_of_another_browser_is_refused(site: OAuthSite, browser: Browser) -> None:
    """A victim who opens the attacker's callback is not signed in as the attacker."""
    attacker = site.browser()
    back = attacker.consent(attacker.set_out(), "1004")
    assert error_of(browser.callback(back)) == "oauth_failed"
    browser.set_out()
    assert error_of(browser.callback(back)) == "oauth_failed"
    mine = browser.consent(browser.set_out(), "1001")
    mixed = with_state(path_of(mine), asked(back)["state"])
    assert error_of(browser.client.get(mixed)) == "oauth_failed"
    assert (browser.me(), site.accounts()) == (None, 0)


def test_a_code_of_another_person_is_refused(site: OAuthSite, browser: Browser) -> None:
    """PKCE: a stolen code does not work with the verifier of another browser."""
    victim = site.browser()
    stolen = asked(victim.consent(victim.set_out(), "1001"))["code"]
    there = browser.set_out()
    assert (
        error_of(browser.client.get(answered(there, code=stolen, iss=site.provider.issuer))) == "oauth_failed"
    )
    assert (browser.me(), site.accounts()) == (None, 0)


def test_a_callback_works_once(site: OAuthSite, browser: Browser) -> None:
    back = browser.consent(browser.set_out(), "1001")
    cookies = dict(browser.client.cookies)
    assert browser.callback(back).header("Location") == "/"
    again = site.browser()
    again.client.cookies = cookies  # even for a client that kept the cookie
    assert error_of(again.callback(back)) == "oauth_failed"
    assert again.me() is None
    assert error_of(browser.callback(back)) == "oauth_failed"


def test_a_callback_works_once_even_if_the_provider_accepts_the_code_twice(
    site: OAuthSite, browser: Browser
) -> None:
    back = browser.consent(browser.set_out(), "1001")
    cookies, codes = dict(browser.client.cookies), dict(site.provider._codes)
    assert browser.callback(back).header("Location") == "/"
    again = site.browser()
    again.client.cookies = cookies
    site.provider._codes.update(codes)
    assert error_of(again.callback(back)) == "oauth_failed"
    assert again.me() is None
    assert (site.exchanges(), site.provider._codes) == (1, codes)  # it was not asked


def test_a_callback_works_once_also_at_a_daemon_whose_clock_is_behind(
    site: OAuthSite, browser: Browser, clock: FakeClock
) -> None:
    back = browser.consent(browser.set_out(), "1001")
    cookies, codes = dict(browser.client.cookies), dict(site.provider._codes)
    clock.move(seconds=-10)
    assert browser.callback(back).header("Location") == "/"
    clock.move(minutes=10)
    site.service.cleaner.run(by=OPERATOR)
    again = site.browser()
    again.client.cookies = cookies
    site.provider._codes.update(codes)
    assert error_of(again.callback(back)) == "oauth_failed"


@pytest.mark.parametrize(
    ("seconds", "comes_in"), [(599, True), (601, False), (86_400, False), (-10, True), (-11, False)]
)
def test_a_state_expires_after_ten_minutes(
    browser: Browser, clock: FakeClock, seconds: int, comes_in: bool
) -> None:
    back = browser.consent(browser.set_out(), "1001")
    clock.move(seconds=seconds)
    reply = browser.callback(back)
    assert comes_in or error_of(reply) == "oauth_failed"
    assert (browser.me() is not None) == comes_in


@pytest.mark.parametrize("twice", ["code", "state", "iss", "error", "x"])
def test_a_repeated_parameter_is_refused(site: OAuthSite, browser: Browser, twice: str) -> None:
    back = path_of(browser.consent(browser.set_out(), "1001"))
    value = asked(back).get(twice, "x")
    for path in (f"{back}&{twice}={quote(value)}&{twice}=other", f"{back}&{twice}={quote(value)}&{twice}={quote(value)}",
                 f"{CALLBACK}?{twice}=other&{twice}=x&{urlsplit(back).query}"):  # fmt: skip
        assert error_of(browser.client.get(path)) == "oauth_failed"
    assert (browser.me(), site.accounts()) == (None, 0)


def test_an_error_parameter_wins_over_a_code(site: OAuthSite, browser: Browser) -> None:
    back = path_of(browser.consent(browser.set_out(), "1001"))
    assert error_of(browser.client.get(f"{back}&error=access_denied")) == "oauth_failed"
    assert (browser.me(), site.accounts()) == (None, 0)


# --- the cookie of the sign-in ---


def unsigned(flow: Any) -> str:
    return base64.urlsafe_b64encode(json.dumps(flow).encode()).decode().rstrip("=")


def begun(browser: Browser) -> tuple[str, str, str]:
    """Name and value of the cookie of a sign-in that was begun, and its callback."""
    back = browser.consent(browser.set_out(), "1001")
    (name,) = browser.flows()
    return name, browser.client.cookies[name], back


def test_a_cookie_that_the_service_did_not_sign_starts_nothing(site: OAuthSite, browser: Browser) -> None:
    name, value, back = begun(browser)
    text, _, mac = value.rpartition(".")
    flow = Flow.read(text)
    key = site.service.store.signing_key(COOKIES)
    changes: list[dict[str, Any]] = [{"then": target} for target in ELSEWHERE if target]
    changes += [
        {"began": flow.began + 1},
        {"verifier": "v" * 43},
        {"nonce": "n" * 43},
        {"state": flow.state + "x"},
    ]
    odd = [
        "", ".", mac, text, f"{text}.", f".{mac}", f"{text}.x", f"{text}x.{mac}", f"{text[:-1]}.{mac}", f"{text}.{mac[:-1]}", f"{value}x",
        value.swapcase(), f"{value}.{mac}", f"{text}={mac}", "=", "%00", "a b", '"x"', "\\", "x" * 4001, "x" * 14_000, "!" * 100,
        *(f"{unsigned(value)}.{mac}" for value in (None, [], {}, 5, "x", list(flow)[:3])),
        *(f"{flow._replace(**change).written()}.{mac}" for change in changes),
        sign(b"k" * 32, PURPOSE, text), sign(b"", PURPOSE, text), sign(key, "device", text), sign(key, "", text), sign(key, PURPOSE, text + "x")[:-1],
        site.service.devices.cookie([], 1, "2026-11-20T08:22:19.123Z"),  # another one of the service
    ]  # fmt: skip
    assert value not in odd
    for cookie_value in odd:
        reply = site.site.client().get(path_of(back), headers={"Cookie": f"{name}={cookie_value}"})
        assert error_of(reply) == "oauth_failed", cookie_value
    for renamed in (name + "0", name[:-1], "oauth_", name.upper(), f"__Host-{name}"):
        browser.client.cookies = {renamed: value}
        assert error_of(browser.callback(back)) == "oauth_failed", renamed
    # A genuine cookie of another sign-in does not fit either.
    other = site.browser()
    _, theirs, _ = begun(other)
    browser.client.cookies = {name: theirs}
    assert error_of(browser.callback(back)) == "oauth_failed"
    assert (site.accounts(), site.exchanges(), spent(site)) == (0, 0, 0)
    browser.client.cookies = {name: value}
    assert browser.callback(back).header("Location") == "/"  # the cookie was the reason of the refusal


def spent(site: OAuthSite) -> int:
    with site.service.store.read() as tx:
        return int(tx.counts()["one_time_tokens"])


def test_a_foreign_cookie_of_the_same_name_does_not_stop_a_sign_in(site: OAuthSite, browser: Browser) -> None:
    name, value, back = begun(browser)
    header = f'{name}=x; j={{"a":1}}; Path=/; {name}={value}; {name}={value[:-1]}'
    reply = site.site.client().get(path_of(back), headers={"Cookie": header})
    assert reply.header("Location") == "/"


def test_invented_states_cause_no_write_and_no_request(site: OAuthSite) -> None:
    """A client that invents states and their cookies must not fill the disk, or use this service against the provider."""
    import hashlib

    client = site.site.client()
    for number in range(20):
        state = f"made-up-{number}"
        flow = Flow(state, "n" * 43, "v" * 43, site.service.now().timestamp(), "")
        name = f"oauth_{hashlib.sha256(state.encode()).hexdigest()[:16]}"
        reply = client.get(
            f"{CALLBACK}?{urlencode({'code': 'x', 'state': state, 'iss': site.provider.issuer})}",
            headers={"Cookie": f"{name}={sign(b'guessed', PURPOSE, flow.written())}"},
        )
        assert error_of(reply) == "oauth_failed"
    assert (spent(site), site.exchanges()) == (0, 0)


def test_a_callback_that_is_played_back_asks_nobody(
    site: OAuthSite, browser: Browser, clock: FakeClock
) -> None:
    name, value, back = begun(browser)
    assert browser.callback(back).header("Location") == "/"
    for seconds in (0, 30, 3600):
        clock.move(seconds=seconds)
        site.service.cleaner.run(by=OPERATOR)
        reply = site.site.client().get(path_of(back), headers={"Cookie": f"{name}={value}"})
        assert error_of(reply) == "oauth_failed"
    late = site.browser()
    name, value, back = begun(late)
    clock.move(minutes=10, seconds=1)
    assert error_of(late.callback(back)) == "oauth_failed"
    assert site.exchanges() == 1


def test_a_failed_callback_is_not_tried_again(site: OAuthSite, browser: Browser) -> None:
    name, value, back = begun(browser)
    codes = dict(site.provider._codes)
    site.provider._codes.clear()
    assert error_of(browser.callback(back)) == "oauth_failed"
    site.provider._codes.update(codes)
    browser.client.cookies = {name: value}
    assert error_of(browser.callback(back)) == "oauth_failed"
    assert (site.exchanges(), site.accounts()) == (1, 0)


def at_once(site: OAuthSite, back: str, cookies: dict[str, str], times: int = 2) -> list[Reply]:
    """The same callback several times in parallel, as a double click or a proxy's second try sends it."""
    clients = [site.site.client(cookies=dict(cookies)) for _ in range(times)]
    with ThreadPoolExecutor(times) as pool:
        return list(pool.map(lambda client: client.get(path_of(back)), clients))


def test_a_callback_that_comes_twice_at_once_asks_the_provider_once_and_signs_in(site: OAuthSite) -> None:
    """The provider ends all that it gave for a code which comes twice."""
    for rounds in range(1, 9):
        browser = site.browser()
        _, _, back = begun(browser)
        replies = at_once(site, back, browser.client.cookies)
        locations = [reply.header("Location") for reply in replies]
        assert "/" in locations, rounds
        assert set(locations) <= {"/", "/login?error=oauth_failed"}
        assert site.exchanges() == rounds


def test_a_second_click_during_the_first_gets_the_same_session(site: OAuthSite, browser: Browser) -> None:
    """A browser drops the answer to the first click."""
    name, value, back = begun(browser)
    provider, arrived, go_on = site.service.sign_ins[OAUTH].provider, threading.Event(), threading.Event()
    exchange = provider.exchange

    def slow(**keywords: Any) -> Any:
        arrived.set()
        assert go_on.wait(10)
        return exchange(**keywords)

    provider.exchange = slow  # type: ignore[method-assign]
    with ThreadPoolExecutor(3) as pool:
        first = pool.submit(site.site.client(cookies={name: value}).get, path_of(back))
        assert arrived.wait(10)
        twins = [pool.submit(site.site.client(cookies={name: value}).get, path_of(back)) for _ in range(2)]
        stranger = site.site.client().get(path_of(back))  # without the cookie
        while sum(line.get("event") == "oauth-refused" for line in site.site.log) < 1:
            time.sleep(0.01)
        time.sleep(0.2)
        assert not any(twin.done() for twin in twins)
        go_on.set()
        replies = [first.result(10), *(twin.result(10) for twin in twins)]
    assert error_of(stranger) == "oauth_failed"
    tokens = {
        cookie for reply in replies for cookie in reply.all("Set-Cookie") if cookie.startswith("auth_token=")
    }
    assert [reply.header("Location") for reply in replies] == ["/"] * 3
    assert (len(tokens), site.exchanges()) == (1, 1)
    assert site.service.sign_ins[OAUTH].under_way == {}


def test_a_second_click_during_a_failing_first_fails_with_it(site: OAuthSite, browser: Browser) -> None:
    _, _, back = begun(browser)
    site.provider._codes.clear()
    replies = at_once(site, back, browser.client.cookies, 4)
    assert [error_of(reply) for reply in replies] == ["oauth_failed"] * 4
    assert site.exchanges() == 1


def test_another_process_does_not_ask_again(
    site: OAuthSite, browser: Browser, make_service: Callable[..., Service]
) -> None:
    """Two processes share the database; a proxy sends the second try to the other one."""
    settings = site.service.settings
    other = make_service(
        **{
            name: value
            for name, value in settings._asdict().items()
            if name.startswith(("oauth_", "base_url"))
        }
    )
    name, value, back = begun(browser)
    assert browser.callback(back).header("Location") == "/"
    with running(other) as twin:
        reply = twin.client(cookies={name: value}).get(path_of(back))
        assert error_of(reply) == "oauth_failed"
    assert site.exchanges() == 1


def test_mutated_callbacks_are_refused(site: OAuthSite, browser: Browser) -> None:
    import random

    rng = random.Random(5)  # the same attacks in every run
    odd = [
        "%00",
        "%ff",
        "%",
        "&",
        "=",
        ";",
        "#",
        "%0d%0a",
        "+",
        "%f0%9f%92%a9",
        "'",
        '"',
        "<",
        "[]",
        "a" * 300,
    ]
    for _ in range(60):
        browser.client.cookies.clear()
        back = path_of(browser.consent(browser.set_out(), "1001"))
        at = rng.randrange(len(CALLBACK) + 1, len(back))
        changed = back[:at] + rng.choice(odd) + back[at + rng.randrange(2) :]
        if "#" in changed or asked_loosely(changed) == asked_loosely(back):
            continue
        assert (
            error_of(browser.client.get(changed.replace('"', "%22").replace("<", "%3C"))) == "oauth_failed"
        ), changed
        assert asked(back)["code"] in site.provider._codes, "a changed callback used up the code"
    assert site.accounts() == 0


def asked_loosely(path: str) -> dict[str, str]:
    """What the parameters that count say, however it is written."""
    from urllib.parse import parse_qsl

    query = dict(parse_qsl(urlsplit(path).query, keep_blank_values=True, errors="replace"))
    return {name: query.get(name, "") for name in ("code", "state", "iss", "error")}
