"""Attacks with several identity providers, some of them hostile: one provider's answer opens nothing by another."""

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from typing import Any
from urllib.parse import urlencode, urlsplit

import pytest
from support.commands import OPERATOR, PASSWORD
from support.fakes import FakeClock
from support.hostile import Hostile, hostile, silent
from support.identities import link_of, provider_settings
from support.oauth_site import CALLBACK, GO, Browser, OAuthSite, asked, error_of, oauth_site, path_of
from support.postbox import last_link, sent
from support.web import Client, Reply, running

from usersctl.config.providers import ProviderSettings
from usersctl.models import SYSTEM, User
from usersctl.service import Service
from usersd.router import Router
from usersd.routes import TABLE
from usersd.server.lanes import Lane

IDENTITIES = "/api/users/me/identities"
OTHERS = {
    "evil": {"allow_auto_registration": True},
    "wicked": {"allow_auto_registration": True},
}

Make = Callable[..., OAuthSite]


@pytest.fixture
def make_site(make_service: Callable[..., Service]) -> Iterator[Make]:
    with ExitStack() as stack:
        yield lambda **changes: stack.enter_context(oauth_site(make_service, **changes))


@pytest.fixture
def site(make_site: Make) -> Iterator[OAuthSite]:
    """One honest provider, `oauth`, and two hostile ones."""
    site = make_site(others=OTHERS, oauth_allow_auto_registration=True)
    yield site
    assert not site.errors()
    assert not [line for line in site.site.log if line.get("status", 0) >= 500]


@pytest.fixture
def browser(site: OAuthSite) -> Browser:
    return site.browser()


def proven(site: OAuthSite, name: str = "ada") -> User:
    user = site.site.add(name)
    with site.service.store.write() as tx:
        return tx.change_user(user.id, email_proven_at=tx.now_text)


def accounts(site: OAuthSite) -> int:
    with site.service.store.read() as tx:
        return len(list(tx.all_credentials()))


def exchanges(site: OAuthSite, provider: str) -> int:
    """How often this provider was asked for the tokens of a code."""
    return sum(line.get("path") == f"/dev/{provider}/token" for line in site.site.log)


def sign_in(browser: Browser, provider: str, person: str = "1001") -> Reply:
    return browser.sign_in(person, f"?provider={provider}")


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


@pytest.mark.parametrize("from_", ["oauth", "evil"])
@pytest.mark.parametrize("to", ["oauth", "evil", "wicked"])
def test_a_code_of_one_provider_is_never_sent_to_another(
    site: OAuthSite, browser: Browser, from_: str, to: str
) -> None:
    """The state is bound to the provider that the sign-in began at, whatever the answer says of its issuer."""
    if from_ == to:
        return
    before = {name: exchanges(site, name) for name in ("provider", "evil", "wicked")}
    there = browser.set_out(f"?provider={from_}")
    back = browser.consent(there, "1001")
    issuer = site.others[to].issuer if to in site.others else site.provider.issuer
    cookies = dict(browser.client.cookies)
    for more in ({}, {"iss": issuer}):
        browser.client.cookies = dict(cookies)
        assert error_of(browser.client.get(at(to, back, **more))) == "oauth_failed"
    assert {name: exchanges(site, name) for name in before} == before
    assert (browser.me(), accounts(site)) == (None, 0)


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
    assert exchanges(site, "evil") == 0
    assert (browser.me(), accounts(site)) == (None, 0)
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
    assert exchanges(site, "evil") == 0
    assert browser.me() is None


def test_a_hostile_provider_that_claims_the_issuer_of_another_in_its_id_token_is_refused(
    site: OAuthSite, browser: Browser
) -> None:
    evil = site.others["evil"]
    for claims in ({"iss": site.provider.issuer}, {"iss": site.others["wicked"].issuer}, {"aud": "other"}):
        evil.claims = claims
        assert error_of(sign_in(browser, "evil")) == "oauth_failed"
    evil.claims = {}
    assert sign_in(browser, "evil").status == 302
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
    sign_in(eve, "evil", "1001")
    assert (ada.me() or {})["id"] != (eve.me() or {})["id"]
    assert (eve.me() or {})["oauth_id"] is None  # that of the provider `oauth` only


def test_a_code_of_one_person_at_another_provider_does_not_link_their_account(site: OAuthSite) -> None:
    """The attacker's callback in the victim's browser, which is signed in."""
    victim, attacker = site.browser(), site.browser()
    victim.sign_in("1001")
    me = victim.me() or {}
    attacker.sign_in("1004")
    there = attacker.client.post(f"{IDENTITIES}/evil", {}).json["url"]
    back = attacker.consent(there, "1004")
    assert error_of(victim.callback(back)) == "oauth_failed"
    assert link_of(site.service, me["id"], "evil") is None
    assert [one["name"] for one in victim.client.get(IDENTITIES).json["identities"]] == ["oauth"]


# --- one address at two providers ---


def test_two_providers_that_verify_one_address_open_one_account(site: OAuthSite) -> None:
    first, second = site.browser(), site.browser()
    first.sign_in("1001")
    before = len(sent(site.service))
    sign_in(second, "wicked", "1001")
    ada = first.me() or {}
    assert (second.me() or {})["id"] == ada["id"]
    assert link_of(site.service, ada["id"], "wicked") == ("1001", site.others["wicked"].issuer)
    (notice,) = sent(site.service)[before:]
    assert (notice.to, last_link(site.service).path) == (ada["email"], "/not-me")


def test_another_id_of_one_provider_is_refused_although_its_address_is_right(site: OAuthSite) -> None:
    sign_in(site.browser(), "wicked", "1001")
    site.others["wicked"].people["1004"].email = "ada@example.com"
    assert error_of(sign_in(site.browser(), "wicked", "1004")) == "oauth_failed"


@pytest.mark.parametrize("said", [False, None])
def test_an_address_that_a_provider_does_not_verify_opens_no_account_of_another(
    site: OAuthSite, said: bool | None
) -> None:
    ada = proven(site)
    site.others["evil"].people["1001"].email_verified = said  # type: ignore[assignment]
    assert error_of(sign_in(site.browser(), "evil")) == "oauth_failed"
    assert link_of(site.service, ada.id, "evil") is None


def test_each_provider_trusts_and_registers_by_its_own_settings(make_site: Make) -> None:
    others = {"closed": {}, "open": {"allow_auto_registration": True, "trusts_email": True}}
    site = make_site(others=others)
    for name in others:
        site.others[name].people["1003"].email_verified = None  # type: ignore[assignment]
    assert error_of(sign_in(site.browser(), "closed")) == "user_not_registered"
    assert error_of(sign_in(site.browser(), "closed", "1003")) == "oauth_failed"
    trusting = site.browser()
    sign_in(trusting, "open", "1003")
    assert trusting.me() is not None
    assert error_of(site.browser().sign_in("1004")) == "user_not_registered"


# --- not configured ---


@pytest.mark.parametrize("name", ["other", "OAUTH", "evil/", "..", "evil%00", "é", "oauth%20"])
def test_an_unknown_provider_is_not_configured(browser: Browser, name: str) -> None:
    assert error_of(browser.client.get(f"{GO}?{urlencode({'provider': name})}")) == "oauth_not_configured"
    assert browser.flows() == []


def test_the_callback_of_an_unknown_or_incomplete_provider_is_not_configured(make_site: Make) -> None:
    site = make_site(others={"half": {"client_secret": None}, "own": {"callback_url": "/sso/own"}})
    browser = site.browser()
    assert error_of(browser.client.get(f"{GO}?provider=half")) == "oauth_not_configured"
    for name in ("half", "other", "own"):  # the last has a callback elsewhere
        assert error_of(browser.client.get(f"{CALLBACK}/{name}?code=x&state=y")) == "oauth_not_configured"
    assert error_of(browser.client.get("/sso/own?code=x&state=y")) == "oauth_failed"
    assert asked(browser.set_out("?provider=own"))["redirect_uri"] == f"{browser.base_url}/sso/own"


def test_each_provider_has_its_own_pages_to_end_at(make_site: Make) -> None:
    fields = {"success_redirect": "/welcome", "error_redirect": "/oops?x=1", "allow_auto_registration": True}
    site = make_site(others={"other": fields})
    browser = site.browser()
    reply = browser.callback(browser.cancel(browser.set_out("?provider=other")))
    assert reply.header("Location") == "/oops?x=1&error=oauth_failed"
    assert sign_in(browser, "other").header("Location") == "/welcome"


# --- linked by hand ---


def linked(browser: Browser, provider: str, person: str) -> Reply:
    reply = browser.client.post(f"{IDENTITIES}/{provider}", {})
    assert reply.status == 200, reply.body
    return browser.callback(browser.consent(reply.json["url"], person))


def test_a_user_links_an_account_of_another_address_and_signs_in_with_it(site: OAuthSite) -> None:
    ada = proven(site)
    browser = site.browser()
    browser.client.login(ada.email, PASSWORD)
    before = len(sent(site.service))
    assert linked(browser, "evil", "1004").header("Location") == "/account?linked=evil"
    listed = browser.client.get(IDENTITIES).json["identities"]
    assert [(one["name"], one["email"]) for one in listed] == [("evil", "eve@example.com")]
    assert [letter.to for letter in sent(site.service)[before:]] == [ada.email]
    again = site.browser()
    sign_in(again, "evil", "1004")
    assert (again.me() or {})["id"] == ada.id


def test_an_account_that_is_another_users_is_not_linked(site: OAuthSite) -> None:
    """By its id, or by its verified address: its owner's first sign-in would open the account of the other."""
    eve, bea = site.browser(), proven(site, "bea")
    sign_in(eve, "evil", "1004")
    site.others["evil"].people["2001"] = site.others["evil"].people.pop("1002")
    site.others["evil"].people["2001"].sub, site.others["evil"].people["2001"].email = "2001", bea.email
    ada = proven(site)
    browser = site.browser()
    browser.client.login(ada.email, PASSWORD)
    for person in ("1004", "2001"):
        reply = linked(browser, "evil", person)
        assert reply.header("Location") == "/account?error=oauth_failed"
        assert "belongs to another user" in browser.client.get("/account?error=oauth_failed").body.decode()
    assert browser.client.get(IDENTITIES).json == {"identities": []}


def test_a_link_needs_a_fresh_proof_of_identity(site: OAuthSite, clock: FakeClock) -> None:
    ada = proven(site)
    browser = site.browser()
    browser.client.login(ada.email, PASSWORD)
    clock.move(minutes=10, seconds=1)
    refused = [browser.client.post(f"{IDENTITIES}/evil", {})]
    assert browser.client.post("/api/users/session/confirm", {"password": "wrong"}).status == 400
    refused.append(browser.client.post(f"{IDENTITIES}/evil", {}))
    refused += [browser.client.send(method, f"{IDENTITIES}/unknown", {}) for method in ("POST", "DELETE")]
    assert [(reply.status, reply.message) for reply in refused] == [(403, "Confirm that it is you")] * 4
    assert browser.client.post("/api/users/session/confirm", {"password": PASSWORD}).json == {"success": True}
    assert linked(browser, "evil", "1004").header("Location") == "/account?linked=evil"
    clock.move(minutes=10, seconds=1)
    assert browser.client.delete(f"{IDENTITIES}/evil").message == "Confirm that it is you"
    browser.client.post("/api/users/session/confirm", {"password": PASSWORD})
    assert browser.client.delete(f"{IDENTITIES}/evil").json == {"success": True}


def test_a_proof_counts_in_its_own_session_only(site: OAuthSite, clock: FakeClock) -> None:
    ada = proven(site)
    first, second = site.browser(), site.browser()
    for browser in (first, second):
        browser.client.login(ada.email, PASSWORD)
    clock.move(minutes=11)
    assert first.client.post("/api/users/session/confirm", {"password": PASSWORD}).status == 200
    assert second.client.post(f"{IDENTITIES}/evil", {}).status == 403
    assert first.client.post(f"{IDENTITIES}/evil", {}).status == 200


def test_a_proof_counts_after_the_clock_was_set_back(site: OAuthSite, clock: FakeClock) -> None:
    ada = proven(site)
    browser = site.browser()
    browser.client.login(ada.email, PASSWORD)
    clock.move(hours=-1)
    assert browser.client.post(f"{IDENTITIES}/evil", {}).status == 403
    assert browser.client.post("/api/users/session/confirm", {"password": PASSWORD}).status == 200
    assert browser.client.post(f"{IDENTITIES}/evil", {}).status == 200


def test_an_api_token_confirms_and_links_nothing(site: OAuthSite) -> None:
    ada = proven(site)
    token = site.service.sessions.create_api_token(ada.id, name="ci", lifetime=None, by=SYSTEM).token
    client = site.site.client(headers={"Authorization": f"Bearer {token}"})
    for method, path in (
        ("POST", f"{IDENTITIES}/evil"),
        ("DELETE", f"{IDENTITIES}/evil"),
        ("POST", "/api/users/session/confirm"),
    ):
        reply = client.send(method, path, {"password": PASSWORD})
        assert (reply.status, reply.message) == (403, "Sign in to change this")
    assert client.get(IDENTITIES).json == {"identities": []}


def test_an_account_without_a_password_proves_itself_by_a_sign_in_at_its_provider(
    browser: Browser, clock: FakeClock
) -> None:
    browser.sign_in()
    clock.move(minutes=11)
    assert browser.client.post(f"{IDENTITIES}/evil", {}).status == 403
    reply = browser.client.post("/api/users/session/confirm", {"password": PASSWORD})
    assert (reply.status, "no password" in reply.message) == (400, True)
    browser.sign_in()
    assert linked(browser, "evil", "1004").header("Location") == "/account?linked=evil"


def test_guesses_of_a_proof_count_as_failed_logins(site: OAuthSite) -> None:
    ada = proven(site)
    client = site.site.client()
    client.login(ada.email, PASSWORD)
    replies = [client.post("/api/users/session/confirm", {"password": "wrong"}).status for _ in range(12)]
    assert replies == [400] * 10 + [429] * 2


def test_a_link_is_not_completed_for_another_session_or_none(site: OAuthSite) -> None:
    ada, bea = proven(site), proven(site, "bea")
    browser = site.browser()
    for then in (None, bea.email):
        browser.client.cookies.clear()
        browser.client.login(ada.email, PASSWORD)
        there = browser.client.post(f"{IDENTITIES}/evil", {}).json["url"]
        back = browser.consent(there, "1004")
        browser.client.delete("/api/users/session")
        if then is not None:
            browser.client.login(then, PASSWORD)
        assert browser.callback(back).header("Location") == "/account?error=oauth_failed"
    assert [link_of(site.service, user.id, "evil") for user in (ada, bea)] == [None, None]


def test_the_last_way_in_is_never_taken_but_one_of_two_providers_is(browser: Browser) -> None:
    browser.sign_in()
    assert browser.client.delete(f"{IDENTITIES}/oauth").status == 400
    linked(browser, "evil", "1004")
    assert browser.client.delete(f"{IDENTITIES}/oauth").status == 200
    assert browser.client.delete(f"{IDENTITIES}/evil").status == 400


def test_a_link_to_a_provider_that_is_not_configured_any_more_is_no_way_in(
    site: OAuthSite, browser: Browser, make_service: Callable[..., Service]
) -> None:
    browser.sign_in()
    linked(browser, "evil", "1004")
    me = browser.me() or {}
    without = make_service(database=site.service.settings.database, **site_settings(site))
    assert [one.is_spare for one in without.identities.connections(me["id"])[:2]] == [False, True]


def site_settings(site: OAuthSite) -> dict[str, Any]:
    """Those of its daemon without the other providers."""
    settings = site.service.settings
    names = ("base_url", "oauth_client_id", "oauth_client_secret", "oauth_issuer")
    return {name: getattr(settings, name) for name in names}


# --- a thief in a session ---


def test_a_reset_by_email_ends_what_a_thief_has_linked(site: OAuthSite) -> None:
    ada = proven(site)
    thief = site.browser()
    thief.client.login(ada.email, PASSWORD)
    linked(thief, "evil", "1004")
    linked(thief, "wicked", "1001")  # at the address of the account: it is the owner's
    site.service.recovery.forgot(ada.email)
    link = last_link(site.service, to=ada.email)
    body = {
        "token": link.token,
        "email": link.email,
        "password": "another horse",
        "password_confirmation": "another horse",
    }
    assert site.site.client().post("/api/users/password/reset", body).status == 200
    assert link_of(site.service, ada.id, "evil") is None
    assert link_of(site.service, ada.id, "wicked") is not None
    again = site.browser()
    sign_in(again, "evil", "1004")
    assert (again.me() or {})["id"] != ada.id


def test_an_accepted_invitation_ends_what_a_thief_has_linked(site: OAuthSite) -> None:
    """To an account without a password, which an admin invites to set one."""
    thief = site.browser()
    thief.sign_in()
    ada = thief.me() or {}
    linked(thief, "evil", "1004")
    site.service.invitations.again([ada["id"]], timedelta(days=1), by=OPERATOR)
    invitation = last_link(site.service, to=ada["email"])
    body = {"token": invitation.token, "email": invitation.email, "password": "another horse"}
    assert site.site.client().post("/api/users/invite/accept", body).status == 200
    assert [one.name for one in site.service.identities.of(ada["id"])] == ["oauth"]
    again = site.browser()
    sign_in(again, "evil", "1004")
    assert (again.me() or {})["id"] != ada["id"]


def test_the_first_sign_in_of_an_owner_ends_what_an_account_of_an_unproven_address_was_linked_to(
    site: OAuthSite,
) -> None:
    """An operator gave the account an address and a password, which another person knew."""
    ada = site.site.add("ada")
    stranger = site.browser()
    stranger.client.login(ada.email, PASSWORD)
    linked(stranger, "evil", "1004")
    linked(stranger, "wicked", "1001")  # the address of the account, as another provider has verified it
    owner = site.browser()
    owner.sign_in()
    assert (owner.me() or {})["id"] == ada.id
    assert [one.name for one in site.service.identities.of(ada.id)] == ["wicked", "oauth"]
    sign_in(stranger, "evil", "1004")
    assert (stranger.me() or {})["id"] != ada.id
    with site.service.store.read() as tx:
        rows = [row.details["provider"] for row in tx.audit_rows() if row.action == "unlink"]
    assert rows == ["evil"]


def test_this_was_not_me_ends_every_link(site: OAuthSite) -> None:
    ada = proven(site)
    thief = site.browser()
    thief.client.login(ada.email, PASSWORD)
    linked(thief, "evil", "1004")
    linked(thief, "wicked", "1004")
    notice = last_link(site.service, to=ada.email)
    body = {"token": notice.token, "email": notice.email}
    assert site.site.client().post("/api/users/not-me", body).status == 200
    assert site.service.identities.of(ada.id) == []
    for provider in ("evil", "wicked"):
        again = site.browser()
        sign_in(again, provider, "1004")
        assert (again.me() or {}).get("id") != ada.id


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
            assert (reply.status, reply.message) == (
                503,
                "The provider cannot be reached, please try again later",
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
        with browsing(make_service, slow=slow, quick=quick) as browser, ThreadPoolExecutor(40) as pool:
            paths = []
            for _ in range(40):
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
