"""Attacks on the sign-in through the identity provider: no session, the right error code, never a 5xx."""

import base64
import json
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

import pytest
from support.commands import OPERATOR, PASSWORD, create_user
from support.fakes import FakeClock
from support.oauth_site import (
    CALLBACK,
    GO,
    Browser,
    OAuthSite,
    answered,
    asked,
    error_of,
    oauth_site,
    path_of,
)
from support.web import Reply, running

from usersctl.config import load
from usersctl.devices import KEY
from usersctl.errors import ConfigError
from usersctl.secrets import sign
from usersctl.service import Service
from usersd.access import own_path
from usersd.handlers.oauth import PURPOSE, Flow

Make = Callable[..., OAuthSite]
ELSEWHERE = [
    "//evil.example", "///evil.example", "/\\evil.example", "\\\\evil.example", "\\/evil.example", "https:evil.example", "https://evil.example",
    "http:/evil.example", "javascript:alert(1)", "JaVaScRiPt:alert(1)", "data:text/html,x", "evil.example", "", " /x", "/x y", "/x\r\nSet-Cookie: a=b",
    "/\r/evil.example", "/\n/evil.example", "/\t/evil.example", "\t//evil.example", "\x00/x", "/\x00/evil.example", "/\u2028x", "/ä", "?x", "#x", "x:/y",
    "/\x7f", "/a\\..\\..\\\\evil.example",
]  # fmt: skip


@pytest.fixture
def make_site(make_service: Callable[..., Service]) -> Iterator[Make]:
    with ExitStack() as stack:
        yield lambda **changes: stack.enter_context(oauth_site(make_service, **changes))


@pytest.fixture
def site(make_site: Make) -> Iterator[OAuthSite]:
    """No attack may cause a 5xx or leave a row behind."""
    site = make_site(oauth_allow_auto_registration=True, limits_enabled=False)
    yield site
    assert not site.errors()
    assert not [line for line in site.site.log if line.get("status", 0) >= 500]


@pytest.fixture
def browser(site: OAuthSite) -> Browser:
    return site.browser()


def accounts(site: OAuthSite) -> int:
    with site.service.store.read() as tx:
        return len(list(tx.all_credentials()))


def unsigned(flow: Any) -> str:
    return base64.urlsafe_b64encode(json.dumps(flow).encode()).decode().rstrip("=")


def exchanges(site: OAuthSite) -> int:
    """How often the provider was asked for the tokens of a code."""
    return sum(line.get("path") == "/dev/provider/token" for line in site.site.log)


def with_state(path: str, state: str) -> str:
    return f"{urlsplit(path).path}?{urlencode(asked(path) | {'state': state})}"


# --- started by another site ---


@pytest.mark.parametrize("site_of_page", ["cross-site", "", "Same-Origin", "other"])
def test_a_page_of_another_site_cannot_start_a_sign_in(browser: Browser, site_of_page: str) -> None:
    for more in ({}, {"Sec-Fetch-Mode": "navigate"}, {"Sec-Fetch-User": "?0"}, {"Sec-Fetch-Mode": "no-cors"}):
        reply = browser.client.get(GO, headers={"Sec-Fetch-Site": site_of_page} | more)
        assert error_of(reply) == "oauth_failed"
        assert path_of(str(reply.header("Location"))).startswith("/login?")
        assert browser.flows() == []


def test_a_sign_in_starts_with_a_click_from_our_pages_or_from_an_older_browser(
    browser: Browser,
) -> None:
    for headers in (
        {},
        {"Sec-Fetch-Site": "same-origin"},
        {"Sec-Fetch-Site": "same-site"},
        {"Sec-Fetch-Site": "none"},
        {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-User": "?1"},
    ):
        assert "/dev/provider/" in browser.set_out(headers=headers)


# --- state ---


def test_a_callback_without_a_state_is_refused(site: OAuthSite, browser: Browser) -> None:
    back = path_of(browser.consent(browser.set_out(), "1001"))
    code = asked(back)["code"]
    for path in (CALLBACK, f"{CALLBACK}?code={code}", f"{CALLBACK}?code={code}&state=", f"{CALLBACK}?state="):
        assert error_of(browser.client.get(path)) == "oauth_failed"
    assert (browser.me(), accounts(site)) == (None, 0)
    assert browser.callback(back if back.startswith("http") else browser.base_url + back).status == 302
    assert browser.me() is not None  # and the right browser still can


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
    assert (browser.me(), accounts(site)) == (None, 0)


def test_a_code_of_another_person_is_refused(site: OAuthSite, browser: Browser) -> None:
    """PKCE: a stolen code does not work with the verifier of another browser."""
    victim = site.browser()
    stolen = asked(victim.consent(victim.set_out(), "1001"))["code"]
    there = browser.set_out()
    assert (
        error_of(browser.client.get(answered(there, code=stolen, iss=site.provider.issuer))) == "oauth_failed"
    )
    assert (browser.me(), accounts(site)) == (None, 0)


def test_a_callback_works_once(site: OAuthSite, browser: Browser) -> None:
    back = browser.consent(browser.set_out(), "1001")
    cookies = dict(browser.client.cookies)
    browser.callback(back)
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
    assert (exchanges(site), site.provider._codes) == (1, codes)  # it was not asked


@pytest.mark.parametrize(("seconds", "comes_in"), [(599, True), (601, False), (86_400, False), (-1, False)])
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
    assert (browser.me(), accounts(site)) == (None, 0)


def test_an_error_parameter_wins_over_a_code(site: OAuthSite, browser: Browser) -> None:
    back = path_of(browser.consent(browser.set_out(), "1001"))
    assert error_of(browser.client.get(f"{back}&error=access_denied")) == "oauth_failed"
    assert (browser.me(), accounts(site)) == (None, 0)


# --- iss ---


@pytest.mark.parametrize("iss", ["https://evil.example", "", "ISSUER/", "issuer", None])
def test_the_issuer_of_the_callback_must_be_the_configured_one(
    site: OAuthSite, browser: Browser, iss: str | None
) -> None:
    back = browser.consent(browser.set_out(), "1001")
    query = asked(back)
    assert query["iss"] == site.provider.issuer
    del query["iss"]
    if iss is not None:
        query["iss"] = iss.replace("ISSUER", site.provider.issuer)
    assert error_of(browser.client.get(f"{CALLBACK}?{urlencode(query)}")) == "oauth_failed"
    assert (browser.me(), accounts(site)) == (None, 0)
    assert query["code"] in site.provider._codes  # the provider was not even called


# --- other sites ---


@pytest.mark.parametrize("target", ELSEWHERE)
def test_no_sign_in_ends_at_another_site(browser: Browser, target: str) -> None:
    reply = browser.sign_in(query="?" + urlencode({"redirect": target}, errors="surrogatepass"))
    assert reply.header("Location") == "/"
    assert browser.me() is not None
    assert own_path(target) == ""


def test_a_doubly_encoded_target_stays_on_this_site(browser: Browser) -> None:
    for path in (
        "/%09/evil.example",
        "/%2f/evil.example",
        "/%5cevil.example",
        "/%0d%0aX:%20y",
        "/.//evil.example",
    ):
        location = str(browser.sign_in(query="?redirect=" + quote(path)).header("Location"))
        assert location == path
        assert not location.startswith(("//", "/\\"))


def test_a_repeated_or_undecodable_target_is_ignored(browser: Browser) -> None:
    for query in (
        "?redirect=/a&redirect=//evil.example",
        "?redirect=%ff",
        "?redirect",
        "?redirect[]=/a",
        "?" + "&" * 100,
    ):
        assert browser.sign_in(query=query).header("Location") == "/"


@pytest.mark.parametrize("target", [address for address in ELSEWHERE if address])
@pytest.mark.parametrize("key", ["successRedirect", "errorRedirect"])
def test_no_configuration_leads_to_another_site(tmp_path: Any, key: str, target: str) -> None:
    file = tmp_path / "users.json"
    file.write_text(json.dumps({"auth": {"oauth": {key: target}}}))
    with pytest.raises(ConfigError, match=key):
        load(config=file, env={"HOME": str(tmp_path)})


@pytest.mark.parametrize(
    "host", ["evil.example", "127.0.0.1:1", "evil.example:80", "users.example@evil.example"]
)
def test_no_request_header_changes_the_redirect_uri(site: OAuthSite, browser: Browser, host: str) -> None:
    lines = [f"GET {GO} HTTP/1.1", f"Host: {host}", f"X-Forwarded-Host: {host}", "X-Forwarded-Proto: https", "X-Forwarded-Port: 444",
             f"Forwarded: host={host};proto=https", "X-Forwarded-Prefix: /evil", f"X-Original-URL: http://{host}/", f"Origin: https://{host}",
             "Connection: close", "", ""]  # fmt: skip
    request = "\r\n".join(lines)
    answer = site.site.raw(request.encode()).decode()
    assert answer.startswith("HTTP/1.1 302 "), answer
    (location,) = [line[10:] for line in answer.split("\r\n") if line.startswith("Location: ")]
    assert asked(location)["redirect_uri"] == browser.base_url + CALLBACK
    assert "evil" not in answer
    assert location.startswith(site.provider.issuer + "/authorize?")


def test_absolute_and_doubled_paths_reach_the_same_callback(site: OAuthSite) -> None:
    for target in (f"http://evil.example{GO}", f"//evil.example{GO}", f"/evil.example/..{GO}"):
        answer = site.site.raw(f"GET {target} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
        assert b"Location: http://evil" not in answer
        assert b"oauth_" not in answer


# --- script ---


@pytest.mark.parametrize("error", ["<script>alert(1)</script>", "'\"><img src=x onerror=alert(1)>", "access_denied\r\nSet-Cookie: a=b", "\x1b[31m",
                                   "oauth_not_configured", "x" * 5000, "{{7*7}}", "%00", "ä"])  # fmt: skip
def test_the_providers_error_text_is_never_shown(site: OAuthSite, browser: Browser, error: str) -> None:
    there = browser.set_out()
    query = {"state": asked(there)["state"], "error": error, "error_description": error, "error_uri": error}
    reply = browser.client.get(f"{CALLBACK}?{urlencode(query)}")
    assert reply.header("Location") == "/login?error=oauth_failed"
    assert not [name for name, _ in reply.headers if name == "a"]
    for line in site.site.log:
        assert "\x1b" not in json.dumps(line, ensure_ascii=False)
        assert len(str(line.get("why", ""))) < 1000


@pytest.mark.parametrize("error", ["<script>alert(1)</script>", '"onload=alert(1)', "oauth_failed<b>", "javascript:alert(1)", "messages", "__class__"])  # fmt: skip
def test_the_login_page_shows_known_errors_only(browser: Browser, error: str) -> None:
    plain = browser.client.get("/login").body
    reply = browser.client.get("/login?" + urlencode({"error": error}))
    assert reply.status == 200
    assert reply.body == plain
    assert browser.client.get("/login?error=oauth_failed").body != plain


# --- whose account ---


def test_a_linked_account_is_not_relinked_by_another_subject(site: OAuthSite, browser: Browser) -> None:
    browser.sign_in()
    mine, eve = browser.me(), site.browser()
    site.provider.people["1004"].email = "ADA@example.com"
    assert error_of(eve.sign_in("1004")) == "oauth_failed"
    assert eve.me() is None
    assert browser.me() == mine


def test_an_account_that_waits_for_an_address_it_claims_does_not_get_its_owner(
    site: OAuthSite, browser: Browser
) -> None:
    eve = create_user(site.service, "eve@example.com", "Eve", PASSWORD, by=OPERATOR)
    inside_already = site.site.signed_in(eve, rememberMe=True)
    assert inside_already.patch("/api/users/me", {"email": "ada@example.com"}).status == 200
    browser.sign_in()
    assert (browser.me() or {})["id"] != eve.id, "the owner has an account of her own"
    assert inside_already.get("/api/users/me").json["user"]["email"] == "eve@example.com"
    assert site.site.client().login("ada@example.com", PASSWORD).status == 401
    # The attacker's own account at the provider leads to the attacker's own account here.
    attacker = site.browser()
    attacker.sign_in("1004")
    assert (attacker.me() or {})["id"] == eve.id


def test_an_account_made_in_advance_by_an_admin_gives_its_user_no_access_when_the_owner_comes(
    site: OAuthSite, browser: Browser
) -> None:
    made = create_user(site.service, "ada@example.com", "Eve", PASSWORD, by=OPERATOR)
    inside_already = site.site.signed_in(made, rememberMe=True)
    api = site.service.sessions.create_api_token(made.id, name="ci", lifetime=None, by=OPERATOR)
    browser.sign_in()
    assert (browser.me() or {})["id"] == made.id
    assert inside_already.get("/api/users/me").status == 401
    bearer = {"Authorization": f"Bearer {api.token}"}
    assert site.site.client().get("/api/users/me", headers=bearer).status == 401
    assert site.site.client().login("ada@example.com", PASSWORD).status == 401


def test_a_claim_of_a_linked_account_does_not_keep_the_owner_of_the_address_out(
    site: OAuthSite, browser: Browser
) -> None:
    attacker = site.browser()
    attacker.sign_in("1004")
    theirs = (attacker.me() or {})["id"]
    assert attacker.client.patch("/api/users/me", {"email": "ada@example.com"}).status == 200
    browser.sign_in()
    assert (browser.me() or {})["id"] != theirs


def test_a_linked_account_cannot_link_or_unlink_itself_by_its_profile(browser: Browser) -> None:
    browser.sign_in()
    before = browser.me()
    for body in (
        {"oauth_id": "1004"},
        {"oauth_id": None},
        {"profile_picture": "javascript:alert(1)"},
        {"oauthId": "1"},
    ):
        reply = browser.client.patch("/api/users/me", {"name": "Ada Lovelace", **body})
        assert reply.status == 200
    assert browser.me() == before


# --- the cookie of the sign-in ---


def begun(browser: Browser) -> tuple[str, str, str]:
    """Name and value of the cookie of a sign-in that was begun, and its callback."""
    back = browser.consent(browser.set_out(), "1001")
    (name,) = browser.flows()
    return name, browser.client.cookies[name], back


def test_a_cookie_that_the_service_did_not_sign_starts_nothing(site: OAuthSite, browser: Browser) -> None:
    name, value, back = begun(browser)
    text, _, mac = value.rpartition(".")
    flow = Flow.read(text)
    key = site.service.store.signing_key(KEY)
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
    assert (accounts(site), exchanges(site), spent(site)) == (0, 0, 0)
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
    assert (spent(site), exchanges(site)) == (0, 0)


def test_a_callback_that_is_played_back_asks_nobody(
    site: OAuthSite, browser: Browser, clock: FakeClock
) -> None:
    name, value, back = begun(browser)
    assert browser.callback(back).header("Location") == "/"
    for seconds in (0, 30, 3600):
        clock.move(seconds=seconds)
        site.service.sessions.cleanup(by=OPERATOR)
        reply = site.site.client().get(path_of(back), headers={"Cookie": f"{name}={value}"})
        assert error_of(reply) == "oauth_failed"
    late = site.browser()
    name, value, back = begun(late)
    clock.move(minutes=10, seconds=1)
    assert error_of(late.callback(back)) == "oauth_failed"
    assert exchanges(site) == 1


def test_a_failed_callback_is_not_tried_again(site: OAuthSite, browser: Browser) -> None:
    name, value, back = begun(browser)
    codes = dict(site.provider._codes)
    site.provider._codes.clear()
    assert error_of(browser.callback(back)) == "oauth_failed"
    site.provider._codes.update(codes)
    browser.client.cookies = {name: value}
    assert error_of(browser.callback(back)) == "oauth_failed"
    assert (exchanges(site), accounts(site)) == (1, 0)


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
        assert exchanges(site) == rounds


def test_a_second_click_during_the_first_gets_the_same_session(site: OAuthSite, browser: Browser) -> None:
    """A browser drops the answer to the first click."""
    name, value, back = begun(browser)
    provider, arrived, go_on = site.service.oauth.provider, threading.Event(), threading.Event()
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
    assert (len(tokens), exchanges(site)) == (1, 1)
    assert site.service.oauth.under_way == {}


def test_a_second_click_during_a_failing_first_fails_with_it(site: OAuthSite, browser: Browser) -> None:
    _, _, back = begun(browser)
    site.provider._codes.clear()
    replies = at_once(site, back, browser.client.cookies, 4)
    assert [error_of(reply) for reply in replies] == ["oauth_failed"] * 4
    assert exchanges(site) == 1


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
    assert exchanges(site) == 1


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
    assert accounts(site) == 0


def asked_loosely(path: str) -> dict[str, str]:
    """What the parameters that count say, however it is written."""
    from urllib.parse import parse_qsl

    query = dict(parse_qsl(urlsplit(path).query, keep_blank_values=True, errors="replace"))
    return {name: query.get(name, "") for name in ("code", "state", "iss", "error")}
