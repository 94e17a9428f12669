"""Attacks with several identity providers, some of them hostile: one provider's answer opens nothing by another."""

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlencode, urlsplit

import pytest
from support.hostile import Hostile, hostile, silent
from support.identities import link_of, provider_settings
from support.oauth_site import (
    CALLBACK,
    GO,
    HOSTILE,
    IDENTITIES,
    Browser,
    MakeOAuthSite,
    OAuthSite,
    asked,
    error_of,
    path_of,
)
from support.postbox import last_link, sent
from support.web import Client, Reply, running

from usersctl.config.providers import ProviderSettings
from usersctl.service import Service
from usersd.router import Router
from usersd.routes import TABLE
from usersd.server.lanes import Lane


@pytest.fixture
def site(make_oauth_site: MakeOAuthSite) -> OAuthSite:
    """One honest provider, `oauth`, and two hostile ones."""
    return make_oauth_site(others=HOSTILE, oauth_allow_auto_registration=True)


def at(provider: str, back: str, **changes: str) -> str:
    """The callback of this provider with the answer of another."""
    path = CALLBACK if provider == "oauth" else f"{CALLBACK}/{provider}"
    return f"{path}?{urlencode(asked(back) | changes)}"


# --- mix-up ---


def test_each_provider_has_a_callback_of_its_own(browser: Browser, site: OAuthSite) -> None:
    for name, path in (("oauth", CALLBACK), ("evil", f"{CALLBACK}/evil"), ("wicked", f"{CALLBACK}/wicked")):
        there = browser.set_out(f"?provider={name}")
        assert asked(there)["redirect_uri"] == browser.base_url + path
    assert browser.set_out().startswith(site.provider.issuer)


@pytest.mark.parametrize(
    ("from_", "to"), [("oauth", "evil"), ("oauth", "wicked"), ("evil", "oauth"), ("evil", "wicked")]
)
def test_a_code_of_one_provider_is_never_sent_to_another(
    site: OAuthSite, browser: Browser, from_: str, to: str
) -> None:
    """The state is bound to the provider that the sign-in began at, whatever the answer says of its issuer."""
    before = {name: site.exchanges(name) for name in ("provider", "evil", "wicked")}
    issuer = site.others[to].issuer if to in site.others else site.provider.issuer
    for more in ({}, {"iss": issuer}):
        # A sign-in for each, because a state is spent by its first answer.
        back = browser.consent(browser.set_out(f"?provider={from_}"), "1001")
        assert error_of(browser.client.get(at(to, back, **more))) == "oauth_failed"
    assert {name: site.exchanges(name) for name in before} == before
    assert (browser.me(), site.accounts()) == (None, 0)


def test_a_hostile_provider_that_starts_a_sign_in_at_the_honest_one_gets_no_code(
    site: OAuthSite, browser: Browser
) -> None:
    """The classic mix-up: the visitor chose the hostile provider, which sends the browser to the honest one."""
    hostile = asked(browser.set_out("?provider=evil"))
    honest = asked(site.browser().set_out())
    mixed = {**honest, "state": hostile["state"], "code_challenge": hostile["code_challenge"]}
    back = browser.consent(f"{site.provider.issuer}/authorize?{urlencode(mixed)}", "1001")
    assert urlsplit(back).path == CALLBACK  # the honest provider knows this callback only
    assert error_of(browser.callback(back)) == "oauth_failed"
    assert site.exchanges("evil") == 0
    assert (browser.me(), site.accounts()) == (None, 0)
    elsewhere = urlencode({**mixed, "redirect_uri": hostile["redirect_uri"]})
    assert browser.client.get(f"{path_of(site.provider.issuer)}/authorize?{elsewhere}").status == 400


@pytest.mark.parametrize("iss", ["https://id.example", "", None, "of the honest one"])
def test_an_answer_with_a_wrong_issuer_or_none_is_refused(
    site: OAuthSite, browser: Browser, iss: str | None
) -> None:
    back = browser.consent(browser.set_out("?provider=evil"), "1001")
    answer = asked(back)
    del answer["iss"]
    if iss is not None:
        answer["iss"] = site.provider.issuer if iss == "of the honest one" else iss
    assert error_of(browser.client.get(f"{CALLBACK}/evil?{urlencode(answer)}")) == "oauth_failed"
    assert site.exchanges("evil") == 0
    assert browser.me() is None


def test_a_hostile_provider_that_claims_the_issuer_of_another_in_its_id_token_is_refused(
    site: OAuthSite, browser: Browser
) -> None:
    evil = site.others["evil"]
    for claims in ({"iss": site.provider.issuer}, {"iss": site.others["wicked"].issuer}, {"aud": "other"}):
        evil.claims = claims
        assert error_of(browser.sign_in_at("evil")) == "oauth_failed"
    evil.claims = {}
    assert browser.sign_in_at("evil").status == 302
    assert browser.me() is not None


def test_a_hostile_provider_whose_discovery_names_the_issuer_of_another_is_refused(
    make_service: Callable[..., Service],
) -> None:
    with hostile() as evil, hostile() as honest:
        evil.discovery |= {"issuer": honest.url}
        with browsing(make_service, evil=evil, honest=honest) as browser:
            assert error_of(browser.client.get(f"{GO}?provider=evil")) == "oauth_failed"
            assert browser.set_out("?provider=honest").startswith(honest.url)


def test_the_same_subject_at_two_issuers_is_two_persons(site: OAuthSite) -> None:
    ada, eve = site.browser(), site.browser()
    ada.sign_in("1001")
    site.others["evil"].people["1001"].email = "mallory@example.com"
    eve.sign_in_at("evil", "1001")
    assert (ada.me() or {})["id"] != (eve.me() or {})["id"]
    assert (eve.me() or {})["oauth_id"] is None  # that of the provider `oauth` only


# --- one address at two providers ---


def test_two_providers_that_verify_one_address_open_one_account(site: OAuthSite) -> None:
    first, second = site.browser(), site.browser()
    first.sign_in("1001")
    before = len(sent(site.service))
    second.sign_in_at("wicked", "1001")
    ada = first.me() or {}
    assert (second.me() or {})["id"] == ada["id"]
    assert link_of(site.service, ada["id"], "wicked") == ("1001", site.others["wicked"].issuer)
    (notice,) = sent(site.service)[before:]
    assert (notice.to, last_link(site.service).path) == (ada["email"], "/not-me")


def test_another_id_of_one_provider_is_refused_although_its_address_is_right(site: OAuthSite) -> None:
    site.browser().sign_in_at("wicked", "1001")
    site.others["wicked"].people["1004"].email = "ada@example.com"
    assert error_of(site.browser().sign_in_at("wicked", "1004")) == "oauth_failed"


@pytest.mark.parametrize("said", [False, None])
def test_an_address_that_a_provider_does_not_verify_opens_no_account_of_another(
    site: OAuthSite, said: bool | None
) -> None:
    ada = site.proven()
    site.others["evil"].people["1001"].email_verified = said  # type: ignore[assignment]
    assert error_of(site.browser().sign_in_at("evil")) == "oauth_failed"
    assert link_of(site.service, ada.id, "evil") is None


def test_each_provider_trusts_and_registers_by_its_own_settings(make_oauth_site: MakeOAuthSite) -> None:
    others = {"closed": {}, "open": {"allow_auto_registration": True, "trusts_email": True}}
    site = make_oauth_site(others=others)
    for name in others:
        site.others[name].people["1003"].email_verified = None  # type: ignore[assignment]
    assert error_of(site.browser().sign_in_at("closed")) == "user_not_registered"
    assert error_of(site.browser().sign_in_at("closed", "1003")) == "oauth_failed"
    trusting = site.browser()
    trusting.sign_in_at("open", "1003")
    assert trusting.me() is not None
    assert error_of(site.browser().sign_in("1004")) == "user_not_registered"


# --- not configured ---


@pytest.mark.parametrize("name", ["other", "OAUTH", "evil/", "..", "evil%00", "é", "oauth%20"])
def test_an_unknown_provider_is_not_configured(browser: Browser, name: str) -> None:
    assert error_of(browser.client.get(f"{GO}?{urlencode({'provider': name})}")) == "oauth_not_configured"
    assert browser.flows() == []


def test_the_callback_of_an_unknown_or_incomplete_provider_is_not_configured(
    make_oauth_site: MakeOAuthSite,
) -> None:
    site = make_oauth_site(others={"half": {"client_secret": None}, "own": {"callback_url": "/sso/own"}})
    browser = site.browser()
    assert error_of(browser.client.get(f"{GO}?provider=half")) == "oauth_not_configured"
    for name in ("half", "other", "own"):  # the last has a callback elsewhere
        assert error_of(browser.client.get(f"{CALLBACK}/{name}?code=x&state=y")) == "oauth_not_configured"
    assert error_of(browser.client.get("/sso/own?code=x&state=y")) == "oauth_failed"
    assert asked(browser.set_out("?provider=own"))["redirect_uri"] == f"{browser.base_url}/sso/own"


def test_each_provider_has_its_own_pages_to_end_at(make_oauth_site: MakeOAuthSite) -> None:
    fields = {"success_redirect": "/welcome", "error_redirect": "/oops?x=1", "allow_auto_registration": True}
    site = make_oauth_site(others={"other": fields})
    browser = site.browser()
    for reply in (
        browser.callback(browser.cancel(browser.set_out("?provider=other"))),
        browser.client.get(f"{GO}?provider=other", headers={"Sec-Fetch-Site": "cross-site"}),
    ):
        assert reply.header("Location") == "/oops?x=1&error=oauth_failed"
    assert browser.sign_in_at("other").header("Location") == "/welcome"


# --- one of them down or slow ---


def described(name: str, server: Hostile, **more: Any) -> ProviderSettings:
    fields = {"client_id": "users", "client_secret": "secret", "issuer": server.url}
    return provider_settings(name, **fields, allow_auto_registration=True, **more)


@contextmanager
def browsing(make_service: Callable[..., Service], **servers: Hostile) -> Iterator[Browser]:
    providers = tuple(described(name, server) for name, server in servers.items())
    service = make_service(more_providers=providers, provider_sign_ins_per_minute=10**6)
    for sign_in_there in service.sign_ins.values():
        sign_in_there.http.whole = 3.0
    with running(service) as site:
        yield Browser(service.settings.base_url, site.client())


def comes_back(browser: Browser, provider: str) -> Reply:
    there = browser.set_out(f"?provider={provider}")
    query = urlencode({"code": "x", "state": asked(there)["state"]})
    return browser.client.get(f"{CALLBACK}/{provider}?{query}")


def test_a_provider_that_is_down_keeps_no_other_from_working(make_service: Callable[..., Service]) -> None:
    with hostile() as down, hostile() as up:
        up.discovery["jwks_uri"] = f"{up.url}/keys"
        with browsing(make_service, down=down, up=up) as browser:
            down.close()
            assert error_of(browser.client.get(f"{GO}?provider=down")) == "oauth_failed"
            assert comes_back(browser, "up").header("Location") == "/"
            user = browser.me() or {}
            assert user["email"] == "ada@example.com"
            reply = browser.client.post(f"{IDENTITIES}/down", {})
            assert (reply.status, reply.message, reply.header("Retry-After")) == (
                503,
                "The provider cannot be reached, please try again later",
                "10",
            )


def test_every_request_that_may_wait_for_a_provider_has_a_thread_that_no_other_needs(
    make_service: Callable[..., Service],
) -> None:
    with hostile() as one:
        own = described("own", one)._replace(callback_url="/sso/own")
        settings = make_service(more_providers=(described("one", one), own)).settings
    lane = Router(TABLE, settings).lane
    paths = (GO, CALLBACK, f"{CALLBACK}/one", f"{CALLBACK}/unknown", "/sso/own")
    assert {lane("GET", path) for path in paths} == {Lane.AWAY}
    assert lane("POST", f"{IDENTITIES}/one") is Lane.AWAY
    assert lane("DELETE", f"{IDENTITIES}/one") is Lane.WRITING
    assert lane("GET", "/api/users/7") is Lane.QUICK


@pytest.mark.slow
def test_sign_ins_that_wait_for_a_slow_provider_leave_places_for_the_others(
    make_service: Callable[..., Service],
) -> None:
    with hostile() as slow, hostile() as quick:
        slow.answers["/token"] = silent
        with browsing(make_service, slow=slow, quick=quick) as browser, ThreadPoolExecutor(30) as pool:
            paths = []
            for _ in range(30):  # the daemon has threads for 32, so that none is turned away
                visitor = Browser(browser.base_url, Client(browser.client.port))
                there = visitor.set_out("?provider=slow")
                query = urlencode({"code": "x", "state": asked(there)["state"]})
                paths.append((visitor, f"{CALLBACK}/slow?{query}"))
            waiting = [pool.submit(visitor.client.get, path) for visitor, path in paths]
            while len(slow.asked("/token")) < 4:
                time.sleep(0.01)
            began = time.monotonic()
            assert comes_back(browser, "quick").header("Location") == "/"
            assert time.monotonic() - began < 2.0
            assert {error_of(reply.result()) for reply in waiting} == {"oauth_failed"}
            assert len(slow.asked("/token")) <= 32 // 3  # three are described: these and `oauth`
