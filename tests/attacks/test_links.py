"""Attacks on the links of an account to identity providers: who may make and end one, and a thief who has made one."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from support.commands import OPERATOR, PASSWORD
from support.fakes import FakeClock
from support.identities import link_of
from support.oauth_site import HOSTILE, IDENTITIES, Browser, MakeOAuthSite, OAuthSite, error_of
from support.postbox import last_link, sent
from support.web import Reply

from usersctl.models import SYSTEM, Actor
from usersctl.service import Service


@pytest.fixture
def site(make_oauth_site: MakeOAuthSite) -> OAuthSite:
    """One honest provider, `oauth`, and two hostile ones."""
    return make_oauth_site(others=HOSTILE, oauth_allow_auto_registration=True)


def linked(browser: Browser, provider: str, person: str) -> Reply:
    reply = browser.client.post(f"{IDENTITIES}/{provider}", {})
    assert reply.status == 200, reply.body
    return browser.callback(browser.consent(reply.json["url"], person))


def test_a_user_links_an_account_of_another_address_and_signs_in_with_it(site: OAuthSite) -> None:
    ada = site.proven()
    browser = site.browser()
    browser.client.login(ada.email, PASSWORD)
    before = len(sent(site.service))
    assert linked(browser, "evil", "1004").header("Location") == "/account?linked=evil"
    listed = browser.client.get(IDENTITIES).json["identities"]
    assert [(one["name"], one["email"]) for one in listed] == [("evil", "eve@example.com")]
    assert [letter.to for letter in sent(site.service)[before:]] == [ada.email]
    again = site.browser()
    again.sign_in_at("evil", "1004")
    assert (again.me() or {})["id"] == ada.id


def test_an_account_that_is_another_users_is_not_linked(site: OAuthSite) -> None:
    """By its id, or by its verified address: its owner's first sign-in would open the account of the other."""
    eve, bea = site.browser(), site.proven("bea")
    eve.sign_in_at("evil", "1004")
    site.others["evil"].people["2001"] = site.others["evil"].people.pop("1002")
    site.others["evil"].people["2001"].sub, site.others["evil"].people["2001"].email = "2001", bea.email
    ada = site.proven()
    browser = site.browser()
    browser.client.login(ada.email, PASSWORD)
    for person in ("1004", "2001"):
        reply = linked(browser, "evil", person)
        assert reply.header("Location") == "/account?error=oauth_failed"
        assert "belongs to another user" in browser.client.get("/account?error=oauth_failed").body.decode()
    assert browser.client.get(IDENTITIES).json == {"identities": []}


def test_a_registration_of_a_stranger_keeps_no_provider_account_from_its_person(site: OAuthSite) -> None:
    person = site.others["evil"].people["1002"]
    site.service.registration.register(person.email, "Stranger", PASSWORD, by=Actor("anonymous"))
    ada = site.proven()
    browser = site.browser()
    browser.client.login(ada.email, PASSWORD)
    linked(browser, "evil", "1002")
    assert link_of(site.service, ada.id, "evil") is not None


def test_a_link_needs_a_fresh_proof_of_identity(site: OAuthSite, clock: FakeClock) -> None:
    ada = site.proven()
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
    ada = site.proven()
    first, second = site.browser(), site.browser()
    for browser in (first, second):
        browser.client.login(ada.email, PASSWORD)
    clock.move(minutes=11)
    assert first.client.post("/api/users/session/confirm", {"password": PASSWORD}).status == 200
    assert second.client.post(f"{IDENTITIES}/evil", {}).status == 403
    assert first.client.post(f"{IDENTITIES}/evil", {}).status == 200


@pytest.mark.parametrize(("behind", "status"), [(10, 200), (11, 403)])
def test_a_proof_counts_at_a_daemon_whose_clock_is_behind(
    site: OAuthSite, clock: FakeClock, behind: int, status: int
) -> None:
    ada = site.proven()
    browser = site.browser()
    browser.client.login(ada.email, PASSWORD)
    clock.move(seconds=-behind)
    assert browser.client.post(f"{IDENTITIES}/evil", {}).status == status


def test_a_proof_counts_after_the_clock_was_set_back(site: OAuthSite, clock: FakeClock) -> None:
    ada = site.proven()
    browser = site.browser()
    browser.client.login(ada.email, PASSWORD)
    clock.move(hours=-1)
    assert browser.client.post(f"{IDENTITIES}/evil", {}).status == 403
    assert browser.client.post("/api/users/session/confirm", {"password": PASSWORD}).status == 200
    assert browser.client.post(f"{IDENTITIES}/evil", {}).status == 200


def test_an_api_token_confirms_and_links_nothing(site: OAuthSite) -> None:
    ada = site.proven()
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
    ada = site.proven()
    client = site.site.client()
    client.login(ada.email, PASSWORD)
    replies = [client.post("/api/users/session/confirm", {"password": "wrong"}).status for _ in range(12)]
    assert replies == [400] * 10 + [429] * 2


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


def test_a_link_is_not_completed_for_another_session_or_none(site: OAuthSite) -> None:
    ada, bea = site.proven(), site.proven("bea")
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


def test_an_api_token_completes_no_link(site: OAuthSite) -> None:
    ada = site.proven()
    browser = site.browser()
    browser.client.login(ada.email, PASSWORD)
    back = browser.consent(browser.client.post(f"{IDENTITIES}/evil", {}).json["url"], "1004")
    token = site.service.sessions.create_api_token(ada.id, name="ci", lifetime=None, by=SYSTEM).token
    browser.client.headers["Authorization"] = f"Bearer {token}"
    assert browser.callback(back).header("Location") == "/account?error=oauth_failed"
    assert (link_of(site.service, ada.id, "evil"), site.exchanges("evil")) == (None, 0)


def test_a_link_that_is_played_back_asks_the_provider_once(site: OAuthSite) -> None:
    browser = site.browser()
    browser.client.login(site.proven().email, PASSWORD)
    back = browser.consent(browser.client.post(f"{IDENTITIES}/evil", {}).json["url"], "1004")
    cookies = dict(browser.client.cookies)
    for location in ("/account?linked=evil", "/account?error=oauth_failed"):
        browser.client.cookies = dict(cookies)
        assert browser.callback(back).header("Location") == location
    assert site.exchanges("evil") == 1


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
    ada = site.proven()
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
    again.sign_in_at("evil", "1004")
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
    again.sign_in_at("evil", "1004")
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
    stranger.sign_in_at("evil", "1004")
    assert (stranger.me() or {})["id"] != ada.id
    with site.service.store.read() as tx:
        rows = [row.details["provider"] for row in tx.audit_rows() if row.action == "unlink"]
    assert rows == ["evil"]


def test_this_was_not_me_ends_every_link(site: OAuthSite) -> None:
    ada = site.proven()
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
        again.sign_in_at(provider, "1004")
        assert (again.me() or {}).get("id") != ada.id
