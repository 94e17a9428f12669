"""Attacks on the sign-in through the identity provider: no session, the right error code, never a 5xx."""

import json
from typing import Any
from urllib.parse import quote, urlencode

import pytest
from support.commands import OPERATOR, PASSWORD, create_user
from support.oauth_site import (
    CALLBACK,
    ELSEWHERE,
    GO,
    Browser,
    MakeOAuthSite,
    OAuthSite,
    asked,
    error_of,
    path_of,
)

from usersctl.config import load
from usersctl.errors import ConfigError
from usersd.access import own_path


@pytest.fixture
def site(make_oauth_site: MakeOAuthSite) -> OAuthSite:
    return make_oauth_site(oauth_allow_auto_registration=True, limits_enabled=False)


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
    assert (browser.me(), site.accounts()) == (None, 0)
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


def test_absolute_and_doubled_paths_start_no_sign_in(site: OAuthSite) -> None:
    for target, status, location in (
        (f"http://evil.example{GO}", b"400", b""),
        (f"//evil.example{GO}", b"302", f"/login?redirect=/evil.example{GO}".encode()),
        (f"/evil.example/..{GO}", b"302", f"/login?redirect=/evil.example/..{GO}".encode()),
    ):
        answer = site.site.raw(f"GET {target} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
        assert answer.split()[1] == status, answer
        assert answer.partition(b"\r\nLocation: ")[2].partition(b"\r\n")[0] == location
        assert b"Set-Cookie" not in answer, target


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
