"""Sign-in through the identity provider in a browser: over real HTTP, with the sample provider."""

import base64
import hashlib
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import quote, urlsplit

import pytest
from support.commands import OPERATOR, PASSWORD, Command
from support.daemons import serving
from support.fakes import FakeClock
from support.oauth_site import (
    CALLBACK,
    GO,
    SECRET,
    Browser,
    MakeOAuthSite,
    OAuthSite,
    answered,
    asked,
    error_of,
    path_of,
)
from support.postbox import last_link, link_in, sent
from support.second_factors import enrol
from support.tables import written
from support.web import Client, Site, running

from usersctl.models import OAUTH
from usersctl.service import Service
from usersctl.transfer.transfer import ImportOptions
from usersd.cookies import without_ours
from usersd.dev_provider import CLIENT
from usersd.handlers.oauth import Flow


@pytest.fixture
def open_site(make_oauth_site: MakeOAuthSite) -> OAuthSite:
    return make_oauth_site(oauth_allow_auto_registration=True)


@pytest.fixture
def closed_site(make_oauth_site: MakeOAuthSite) -> OAuthSite:
    return make_oauth_site()


# --- who comes in ---


def test_a_new_user_is_registered_and_signed_in(open_site: OAuthSite) -> None:
    open_site.provider.people["1001"].picture = "https://pictures.example/ada.png"
    browser = open_site.browser()
    reply = browser.sign_in()
    assert (reply.status, reply.header("Location"), reply.body) == (302, "/", b"")
    me = browser.me()
    assert me is not None
    assert (me["email"], me["name"], me["role"], me["active"], me["oauth_id"], me["profile_picture"]) == (
        "ada@example.com",
        "Ada Lovelace",
        "user",
        True,
        "1001",
        "https://pictures.example/ada.png",
    )
    assert me["last_login_at"] is not None
    assert not open_site.errors()


def test_a_new_user_is_sent_back_where_registration_is_not_automatic(closed_site: OAuthSite) -> None:
    browser = closed_site.browser()
    reply = browser.sign_in()
    assert error_of(reply) == "user_not_registered"
    assert reply.header("Location") == "/login?error=user_not_registered"
    assert browser.me() is None
    assert closed_site.accounts() == 0
    page = browser.client.get(str(reply.header("Location")))
    assert (page.status, b'role="alert"' in page.body) == (200, True)


def test_a_linked_user_signs_in_again(open_site: OAuthSite) -> None:
    first, second = open_site.browser(), open_site.browser()
    first.sign_in()
    second.sign_in()
    assert first.me() == second.me() is not None
    assert open_site.accounts() == 1


def test_an_account_with_the_same_address_is_linked_and_keeps_its_password(closed_site: OAuthSite) -> None:
    user = closed_site.site.add("ada")
    with closed_site.service.store.write() as tx:
        tx.change_user(user.id, email_proven_at=user.created_at)
    browser = closed_site.browser()
    assert browser.sign_in().header("Location") == "/"
    me = browser.me()
    assert me is not None
    assert (me["id"], me["oauth_id"]) == (user.id, "1001")
    assert closed_site.site.client().login(user.email, PASSWORD).status == 200
    assert [letter.to for letter in sent(closed_site.service)] == [user.email]


def test_a_squatter_of_an_address_is_shut_out_when_its_owner_signs_in(
    closed_site: OAuthSite,
) -> None:
    user = closed_site.site.add("ada")
    waiting = closed_site.site.signed_in(user, rememberMe=True)
    owner = closed_site.browser()
    owner.sign_in()
    assert (owner.me() or {})["id"] == user.id
    assert waiting.get("/api/users/me").status == 401
    assert waiting.login(user.email, PASSWORD).status == 401


def by_the_set_up_link(site: OAuthSite) -> None:
    link = site.service.first_admin.link()
    body = {"email": "ada@example.com", "name": "Ada", "password": PASSWORD}
    reply = site.site.client().post("/api/users/setup", body | {"token": link.partition("token=")[2]})
    assert reply.status == 200


def by_the_environment(site: OAuthSite) -> None:
    file = site.service.settings.folder / "password"
    file.write_text(PASSWORD)
    site.service.first_admin.from_environment(
        {"USERS_ADMIN_EMAIL": "ada@example.com", "USERS_ADMIN_PASSWORD_FILE": str(file)}
    )


def as_proven(site: OAuthSite) -> None:
    newcomer = site.service.accounts.newcomer("ada@example.com", "Ada")
    site.service.accounts.create(newcomer, PASSWORD, proven=True, by=OPERATOR)


def by_an_import(site: OAuthSite) -> None:
    rows = [("line 2", {"email": "ada@example.com", "password": PASSWORD, "confirmed": "true"})]
    options = ImportOptions("fail", False, OPERATOR, lambda _row: None, lambda *_: None)
    site.service.transfer.import_rows(rows, options)


@pytest.mark.parametrize("made", [by_the_set_up_link, by_the_environment, as_proven, by_an_import])
def test_an_address_that_an_operator_vouches_for_keeps_its_password(
    closed_site: OAuthSite, made: Callable[[OAuthSite], None]
) -> None:
    made(closed_site)
    ada = closed_site.site.client()
    assert ada.login("ada@example.com", PASSWORD).status == 200
    assert "will end this password" not in ada.get("/account").body.decode()
    browser = closed_site.browser()
    assert browser.sign_in().header("Location") == "/"
    assert ada.get("/api/users/me").status == 200
    assert closed_site.site.client().login("ada@example.com", PASSWORD).status == 200
    (email,) = sent(closed_site.service)
    assert "old password" not in " ".join(email.parts)
    assert "has ended the old password" not in browser.client.get("/account").body.decode()


@pytest.mark.slow
def test_the_end_of_a_password_is_told_before_and_after(closed_site: OAuthSite) -> None:
    user = closed_site.site.add("ada")
    before = closed_site.site.signed_in(user).get("/account").body.decode()
    assert "your first sign-in with 127.0.0.1 will end this password" in before
    browser = closed_site.browser()
    browser.sign_in()
    after = browser.client.get("/account").body.decode()
    assert "Your first sign-in with 127.0.0.1 has ended the old password" in after
    (email,) = sent(closed_site.service)
    text = " ".join(email.parts)
    assert "no longer works" in email.subject
    assert "The old password of your account no longer works" in text
    assert "If your address" not in text
    link = link_in(text)
    reply = closed_site.site.client().post("/api/users/not-me", {"token": link.token, "email": link.email})
    assert reply.status == 200
    assert browser.me() is None


def test_no_end_of_a_password_is_told_that_a_second_factor_prevents(
    closed_site: OAuthSite, clock: FakeClock
) -> None:
    ada = closed_site.site.signed_in(closed_site.site.add("ada"))
    enrol(ada, clock)
    assert "will end this password" not in ada.get("/account").body.decode()
    browser = closed_site.browser()
    assert browser.sign_in().header("Location") == "/login?error=oauth_failed"
    told = browser.client.get("/login?error=oauth_failed").body.decode()
    assert "Set a new password by email first." in told
    assert closed_site.site.client().login("ada@example.com", PASSWORD).message == "Second factor required"


def test_a_password_that_was_set_by_email_is_kept(closed_site: OAuthSite) -> None:
    """What the page advises before the first sign-in."""
    user = closed_site.site.add("ada")
    ada = closed_site.site.signed_in(user)
    ada.post("/api/users/password/forgot", {"email": user.email})
    link = last_link(closed_site.service)
    new = {"password": "another horse", "password_confirmation": "another horse"}
    body = {"token": link.token, "email": link.email} | new
    assert closed_site.site.client().post("/api/users/password/reset", body).status == 200
    closed_site.browser().sign_in()
    assert closed_site.site.client().login(user.email, "another horse").status == 200


def test_without_a_provider_no_end_of_a_password_is_told(site: Site) -> None:
    assert "will end this password" not in site.signed_in(site.add()).get("/account").body.decode()


def test_an_inactive_account_cannot_sign_in_through_the_provider(closed_site: OAuthSite) -> None:
    user = closed_site.site.add("ada", active=False)
    browser = closed_site.browser()
    assert error_of(browser.sign_in()) == "account_inactive"
    assert browser.me() is None
    assert closed_site.service.accounts.get(user.id) == user


def test_a_deactivated_linked_account_cannot_sign_in(open_site: OAuthSite) -> None:
    browser = open_site.browser()
    browser.sign_in()
    me = browser.me()
    assert me is not None
    open_site.service.accounts.update(me["id"], active=False, by=OPERATOR)
    assert browser.me() is None
    assert error_of(browser.sign_in()) == "account_inactive"


def test_an_unverified_address_cannot_sign_in(open_site: OAuthSite) -> None:
    browser = open_site.browser()
    assert error_of(browser.sign_in("1003")) == "oauth_failed"
    assert (browser.me(), open_site.accounts()) == (None, 0)
    open_site.provider.people["1003"].email_verified = True
    browser.sign_in("1003")
    assert (browser.me() or {})["email"] == "alan@example.com"


def test_who_has_no_address_at_the_provider_is_told_so(open_site: OAuthSite) -> None:
    person = open_site.provider.people["1003"]  # neither an address nor a word about it is verified
    person.email = ""
    browser = open_site.browser()
    assert error_of(browser.sign_in("1003")) == "oauth_failed"
    told = browser.client.get("/login?error=oauth_failed").body.decode()
    assert "The provider gave us no email address of yours." in told
    assert [line["why"] for line in open_site.site.log if line["event"] == "oauth-refused"] == [
        "the provider gave no address"
    ]


def test_a_cancelled_sign_in_redirects_to_the_error_page(open_site: OAuthSite) -> None:
    browser = open_site.browser()
    reply = browser.callback(browser.cancel(browser.set_out()))
    assert error_of(reply) == "oauth_failed"
    assert (browser.me(), open_site.accounts(), browser.flows()) == (None, 0, [])
    assert [line["why"] for line in open_site.site.log if line["event"] == "oauth-refused"] == [
        "the provider says 'access_denied'"
    ]
    browser.sign_in()  # and may try again
    assert browser.me() is not None


def test_a_changed_picture_is_stored(open_site: OAuthSite) -> None:
    person, browser = open_site.provider.people["1001"], open_site.browser()
    person.picture = "https://pictures.example/old.png"
    browser.sign_in()
    person.picture = "https://pictures.example/new.png"
    browser.sign_in()
    assert (browser.me() or {})["profile_picture"] == "https://pictures.example/new.png"


def test_an_address_changed_at_the_provider_changes_nothing_here(open_site: OAuthSite) -> None:
    browser, grace = open_site.browser(), open_site.site.add("grace")
    browser.sign_in()
    before = browser.me()
    open_site.provider.people["1001"].email = "grace@example.com"
    browser.sign_in()
    assert before is not None
    assert (browser.me() or {})["id"] == before["id"] != grace.id
    assert (browser.me() or {})["email"] == "ada@example.com"


def test_another_person_with_the_same_address_is_refused(open_site: OAuthSite) -> None:
    browser, eve = open_site.browser(), open_site.browser()
    browser.sign_in()
    open_site.provider.people["1004"].email = "ada@example.com"
    assert error_of(eve.sign_in("1004")) == "oauth_failed"
    assert eve.me() is None
    assert (browser.me() or {})["oauth_id"] == "1001"


@pytest.mark.slow
def test_twenty_first_sign_ins_at_once_make_one_account(open_site: OAuthSite) -> None:
    browsers = [open_site.browser() for _ in range(20)]
    backs = [browser.consent(browser.set_out(), "1001") for browser in browsers]
    with ThreadPoolExecutor(20) as pool:
        replies = list(pool.map(lambda pair: pair[0].callback(pair[1]), zip(browsers, backs, strict=True)))
    assert [reply.header("Location") for reply in replies] == ["/"] * 20
    assert len({(browser.me() or {})["id"] for browser in browsers}) == 1
    assert open_site.accounts() == 1


# --- tabs, sessions, cookies ---


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_two_tabs_may_finish_in_any_order(open_site: OAuthSite, order: tuple[int, int]) -> None:
    browser = open_site.browser()
    tabs = [browser.set_out("?redirect=/one"), browser.set_out("?redirect=/two")]
    assert len(browser.flows()) == 2
    backs = [browser.consent(there, "1001") for there in tabs]
    for tab in order:
        assert browser.callback(backs[tab]).header("Location") == ["/one", "/two"][tab]
        assert browser.me() is not None
    assert browser.flows() == []


def test_only_the_newest_sign_ins_of_a_browser_are_kept(open_site: OAuthSite) -> None:
    browser = open_site.browser()
    tabs = [browser.set_out(f"?redirect=/{'x' * 900}{n}") for n in range(30)]
    assert len(browser.flows()) == 5
    assert browser.callback(browser.consent(tabs[-1], "1001")).header("Location") == f"/{'x' * 900}29"
    assert error_of(browser.callback(browser.consent(tabs[0], "1001"))) == "oauth_failed"


def test_the_pages_that_sign_ins_lead_to_never_make_the_cookies_too_large(open_site: OAuthSite) -> None:
    browser = open_site.browser()
    tabs = [browser.set_out(f"?redirect=/{'%22' * 990}") for _ in range(7)]
    assert browser.callback(browser.consent(tabs[-1], "1001")).header("Location") == "/"
    assert browser.me() is not None


def test_the_session_lasts_thirty_days_and_its_cookie_too(open_site: OAuthSite, clock: FakeClock) -> None:
    browser = open_site.browser()
    (cookie,) = [cookie for cookie in browser.sign_in().all("Set-Cookie") if cookie.startswith("auth_token=")]
    assert sorted(cookie.split("; ")[1:]) == ["HttpOnly", "Max-Age=2592000", "Path=/", "SameSite=Lax"]
    clock.move(days=29, hours=23)
    assert browser.me() is not None
    clock.move(days=1)
    assert browser.me() is None


def test_the_configuration_sets_the_lifetime_of_the_session(
    make_oauth_site: MakeOAuthSite, clock: FakeClock
) -> None:
    from datetime import timedelta

    site = make_oauth_site(oauth_allow_auto_registration=True, remember_me_expiration=timedelta(days=2))
    browser = site.browser()
    (cookie,) = [cookie for cookie in browser.sign_in().all("Set-Cookie") if cookie.startswith("auth_token=")]
    assert "Max-Age=172800" in cookie
    clock.move(days=2, seconds=1)
    assert browser.me() is None


def test_a_sign_in_ends_and_replaces_the_session_of_its_request(open_site: OAuthSite) -> None:
    bea = open_site.site.add("bea")
    browser = open_site.browser()
    browser.client.login(bea.email, PASSWORD)
    old = Client(open_site.site.port, cookies=dict(browser.client.cookies))
    assert old.get("/api/users/me").json["user"]["email"] == bea.email
    browser.sign_in()
    assert (browser.me() or {})["email"] == "ada@example.com"
    assert old.get("/api/users/me").status == 401


def test_a_failed_sign_in_keeps_the_session_of_its_request(closed_site: OAuthSite) -> None:
    bea = closed_site.site.add("bea")
    browser = closed_site.browser()
    browser.client.login(bea.email, PASSWORD)
    assert error_of(browser.sign_in()) == "user_not_registered"
    assert (browser.me() or {})["email"] == bea.email


def test_logging_out_ends_the_session(open_site: OAuthSite) -> None:
    browser = open_site.browser()
    browser.sign_in()
    assert browser.client.delete("/api/users/session").status == 200
    assert browser.me() is None


def test_the_state_cookie_is_bound_to_the_browser_for_ten_minutes(open_site: OAuthSite) -> None:
    (cookie,) = open_site.browser().client.get(GO).all("Set-Cookie")
    assert re.fullmatch(
        r"oauth_[0-9a-f]{16}=[\w-]+\.[\w-]{43}; Path=/; HttpOnly; SameSite=Lax; Max-Age=600", cookie, re.ASCII
    )


def test_over_https_both_cookies_have_the_host_prefix(
    make_service: Callable[..., Service], open_site: OAuthSite
) -> None:
    """Behind a proxy that speaks TLS; the provider is at the other site."""
    base_url = "https://users.example"
    service = make_service(
        base_url=base_url,
        oauth_client_id=CLIENT,
        oauth_client_secret=SECRET,
        oauth_issuer=open_site.provider.issuer,
        oauth_allow_auto_registration=True,
    )
    open_site.provider.redirect_uri = base_url + CALLBACK
    with running(service) as site:
        browser, provider = Browser(base_url, site.client()), open_site.browser()
        there = browser.set_out()
        (name,) = browser.client.cookies
        assert re.fullmatch(r"__Host-oauth_[0-9a-f]{16}", name)
        assert asked(there)["redirect_uri"] == base_url + CALLBACK
        back = provider.consent(there, "1001")
        plain = Client(site.port, cookies={name.removeprefix("__Host-"): browser.client.cookies[name]})
        assert (
            error_of(plain.get(path_of(back))) == "oauth_failed"
        )  # another application may have set that one
        reply = browser.callback(back)
        cookies = reply.cookies()
        assert [cookie.partition("=")[0] for cookie in cookies] == [name, "__Host-auth_token"]
        assert all(
            "; Secure" in cookie and "; Path=/" in cookie and "Domain" not in cookie for cookie in cookies
        )
        assert (browser.me() or {})["email"] == "ada@example.com"


# --- where to ---


@pytest.mark.parametrize("deep", ["/users?page=2&search=%C3%A4", "/a/b#c", "/", "/%09/evil", "/x?next=https://evil.example"])  # fmt: skip
def test_a_deep_link_is_kept(open_site: OAuthSite, deep: str) -> None:
    assert open_site.browser().sign_in(query="?redirect=" + quote(deep)).header("Location") == deep


def test_the_login_page_hands_a_deep_link_on(open_site: OAuthSite) -> None:
    browser = open_site.browser()
    wanted = browser.client.get("/nowhere?x=1")
    page = browser.client.get(str(wanted.header("Location"))).body.decode()
    match = re.search(rf'href="{re.escape(GO)}(\?redirect=[^"]+)"', page)
    assert match
    assert browser.sign_in(query=match[1]).header("Location") == "/nowhere?x=1"


def test_a_deep_link_that_is_too_long_is_left_out_and_the_sign_in_goes_on(open_site: OAuthSite) -> None:
    browser = open_site.browser()
    assert browser.sign_in(query="?redirect=/" + "x" * 5000).header("Location") == "/"
    for longest in ("/" + "x" * 999, "/" + '"' * 499):
        assert browser.sign_in(query=f"?redirect={longest}").header("Location") == longest
    assert browser.me() is not None


@pytest.mark.parametrize(
    ("configured", "origins"),
    [
        ("/welcome?from=provider#top", ()),
        ("https://app.example/welcome", ("https://app.example",)),
        ("http://127.0.0.1:1/x", ("http://127.0.0.1:1",)),
    ],
)
def test_success_leads_where_the_configuration_says(
    make_oauth_site: MakeOAuthSite, configured: str, origins: tuple[str, ...]
) -> None:
    site = make_oauth_site(
        oauth_allow_auto_registration=True, oauth_success_redirect=configured, allowed_origins=origins
    )
    assert site.browser().sign_in().header("Location") == configured
    assert site.browser().sign_in(query="?redirect=/deep").header("Location") == "/deep"


@pytest.mark.parametrize(
    ("configured", "location"),
    [
        ("/login?error=oauth_failed", "/login?error=CODE"),
        ("/login", "/login?error=CODE"),
        ("/login?", "/login?error=CODE"),
        ("/login?error=a&error=b", "/login?error=CODE"),
        ("/x?a=1&error=b&c=%2F%20+&error=&d", "/x?a=1&c=%2F%20+&d&error=CODE"),
        ("/x?errors=1&my_error=2#error=3", "/x?errors=1&my_error=2&error=CODE#error=3"),
        ("/x#/spa/login", "/x?error=CODE#/spa/login"),
        ("https://app.example/x?error=1&a=1#y", "https://app.example/x?a=1&error=CODE#y"),
        ("https://app.example", "https://app.example?error=CODE"),
    ],
)
def test_the_error_page_has_its_one_error_and_keeps_the_rest(
    make_oauth_site: MakeOAuthSite, configured: str, location: str
) -> None:
    site = make_oauth_site(oauth_error_redirect=configured, allowed_origins=("https://app.example",))
    reply = site.browser().sign_in()
    assert reply.header("Location") == location.replace("CODE", "user_not_registered")
    reply = site.browser().client.get(CALLBACK)
    assert reply.header("Location") == location.replace("CODE", "oauth_failed")


def test_another_callback_url_takes_the_place_of_ours(make_oauth_site: MakeOAuthSite) -> None:
    site = make_oauth_site(callback="/sign-in/done", oauth_allow_auto_registration=True)
    browser = site.browser()
    back = browser.consent(browser.set_out(), "1001")
    assert urlsplit(back).path == "/sign-in/done"
    old = browser.client.get(path_of(back).replace("/sign-in/done", CALLBACK))
    assert (old.status, old.message) == (401, "Authentication required")
    assert browser.callback(back).header("Location") == "/"
    assert browser.me() is not None


# --- what is asked of the provider ---


def test_the_authorization_request_has_all_parameters_of_the_protocol(open_site: OAuthSite) -> None:
    browser = open_site.browser()
    first, second = asked(browser.set_out()), asked(browser.set_out())
    assert first == {
        "response_type": "code",
        "client_id": CLIENT,
        "redirect_uri": browser.base_url + CALLBACK,
        "scope": "openid profile email",
        "state": first["state"],
        "nonce": first["nonce"],
        "code_challenge": first["code_challenge"],
        "code_challenge_method": "S256",
    }
    assert len(first["state"]) >= 43
    assert first["state"] != second["state"]
    assert first["code_challenge"] != second["code_challenge"]
    assert len(first["nonce"]) >= 43
    assert first["nonce"] != second["nonce"]
    name = f"oauth_{hashlib.sha256(first['state'].encode()).hexdigest()[:16]}"
    flow = Flow.read(browser.client.cookies[name].partition(".")[0])
    made = base64.urlsafe_b64encode(hashlib.sha256(flow.verifier.encode()).digest()).decode()
    assert made.rstrip("=") == first["code_challenge"]


def test_a_sign_in_without_the_scope_openid_sends_no_nonce(make_oauth_site: MakeOAuthSite) -> None:
    site = make_oauth_site(oauth_scopes=("profile", "email"), oauth_allow_auto_registration=True)
    assert "nonce" not in asked(site.browser().set_out())
    assert site.browser().sign_in().header("Location") == "/"


def test_the_configuration_sets_the_scopes(make_oauth_site: MakeOAuthSite) -> None:
    site = make_oauth_site(oauth_scopes=("openid", "email", "https://scopes.example/x y"))
    assert asked(site.browser().set_out())["scope"] == "openid email https://scopes.example/x y"


def test_the_log_names_the_user_and_no_secret(open_site: OAuthSite) -> None:
    browser = open_site.browser()
    there = browser.set_out()
    back = browser.consent(there, "1001")
    browser.callback(back)
    (line,) = [line for line in open_site.site.log if line["event"] == "oauth"]
    assert line["user"] == (browser.me() or {})["id"]
    written = open_site.site.stream.getvalue()
    for secret in (asked(back)["code"], asked(back)["state"], *browser.client.cookies.values()):
        assert secret not in written


def test_no_secret_of_a_sign_in_is_stored_in_clear(open_site: OAuthSite) -> None:
    browser = open_site.browser()
    there = browser.set_out()
    back = browser.consent(there, "1001")
    browser.callback(back)
    kept = written(open_site.site.service)
    for secret in (SECRET, asked(back)["code"], asked(back)["state"], browser.client.cookies["auth_token"]):
        assert secret.encode() not in kept
    assert b"ada@example.com" in kept  # the right files were read


def test_head_and_prefetch_leave_the_callback_valid(open_site: OAuthSite) -> None:
    browser = open_site.browser()
    back = browser.consent(browser.set_out(), "1001")
    assert browser.client.send("HEAD", path_of(back)).status == 405
    assert browser.callback(back, headers={"Sec-Purpose": "prefetch"}).status == 405
    assert browser.me() is None
    assert browser.callback(back).header("Location") == "/"


def test_every_oauth_response_has_the_security_headers(open_site: OAuthSite) -> None:
    browser = open_site.browser()
    for reply in (browser.client.get(GO), browser.client.get(CALLBACK), browser.sign_in()):
        assert reply.header("Cache-Control") == "no-store"
        assert reply.header("Referrer-Policy") == "no-referrer"
        assert reply.header("X-Content-Type-Options") == "nosniff"


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE"])
def test_both_oauth_endpoints_accept_get_only(open_site: OAuthSite, method: str) -> None:
    for path, allowed in ((GO, "GET, HEAD"), (CALLBACK, "GET")):
        reply = open_site.browser().client.send(method, path)
        assert (reply.status, reply.header("Allow")) == (405, allowed)


# --- not configured ---


@pytest.mark.parametrize(
    "missing",
    [
        {"oauth_client_id": None},
        {"oauth_client_secret": None},
        {"oauth_client_id": None, "oauth_client_secret": None},
        {"oauth_client_id": ""},
        {"oauth_client_secret": ""},
        {"oauth_client_id": None, "oauth_client_secret": None, "oauth_issuer": None},
    ],
)
def test_without_client_id_and_secret_both_endpoints_answer_not_configured(
    make_oauth_site: MakeOAuthSite, missing: dict[str, Any]
) -> None:
    site = make_oauth_site(oauth_error_redirect="/login?a=1&error=x#y", **missing)
    client = site.site.client()
    for path in (GO, CALLBACK, GO + "?redirect=/x", f"{CALLBACK}?code=x&state=y", f"{CALLBACK}?a=1&a=2"):
        reply = client.get(path)
        assert (reply.status, reply.header("Location")) == (302, "/login?a=1&error=oauth_not_configured#y")
        assert reply.all("Set-Cookie") == []
    assert GO not in client.get("/login").body.decode()
    assert not site.errors()


@pytest.mark.parametrize("toml", ["", '[auth.oauth]\nclientId = ""\nclientSecret = ""\n', '[auth.oauth]\nclientId = "x"\nissuer = "https://p.example"\n'])  # fmt: skip
def test_the_daemon_starts_without_a_provider_and_the_error_page_says_so(
    usersctl: Command, toml: str
) -> None:
    usersctl.configure(toml)
    with serving(usersctl) as daemon:
        for path in (GO, CALLBACK):
            reply = daemon.client().get(path)
            assert (reply.status, reply.header("Location")) == (302, "/login?error=oauth_not_configured")
        assert daemon.stop() == 0


def test_a_rejected_client_secret_is_reported_as_not_configured(make_oauth_site: MakeOAuthSite) -> None:
    site = make_oauth_site(oauth_client_secret="another", oauth_allow_auto_registration=True)
    browser = site.browser()
    assert error_of(browser.sign_in()) == "oauth_not_configured"
    assert browser.me() is None


@pytest.mark.parametrize("error", ["unauthorized_client", "invalid_client"])
def test_a_client_that_the_provider_refuses_at_its_consent_page_is_reported_as_not_configured(
    open_site: OAuthSite, error: str
) -> None:
    browser = open_site.browser()
    back = browser.cancel(browser.set_out()).replace("access_denied", error)
    assert error_of(browser.callback(back)) == "oauth_not_configured"
    assert browser.me() is None
    assert [line["why"] for line in open_site.site.log if line["event"] == "oauth-refused"] == [
        f"the provider says {error!r}"
    ]


# --- --dev ---


@pytest.mark.slow
def test_the_sample_provider_is_there_with_dev_and_not_without(usersctl: Command) -> None:
    with serving(usersctl, "--dev") as daemon:
        browser = Browser(f"http://localhost:{daemon.port}", daemon.client())
        assert GO in browser.client.get("/login").body.decode()
        assert browser.sign_in("1002").header("Location") == "/"
        assert (browser.me() or {})["email"] == "grace@example.com"
        assert error_of(browser.callback(browser.cancel(browser.set_out()))) == "oauth_failed"
        assert error_of(browser.sign_in("1003")) == "oauth_failed"
        assert daemon.stop() == 0
    with serving(usersctl) as daemon:
        for path in ("/dev/provider/authorize", "/dev/provider/.well-known/openid-configuration"):
            assert daemon.client().get(path).status in (302, 401)
        assert daemon.client().send("POST", "/dev/provider/token").status == 401
        assert error_of(daemon.client().get(GO)) == "oauth_not_configured"


def test_a_sign_in_with_dev_may_begin_at_the_number_of_this_machine(usersctl: Command) -> None:
    with serving(usersctl, "--dev") as daemon:
        browser = Browser(f"http://localhost:{daemon.port}", daemon.client())
        back = path_of(browser.consent(browser.set_out(), "1002"))
        # The cookie of this sign-in is one of 127.0.0.1, and does not come to localhost.
        there = daemon.client().get(back, headers={"Host": f"localhost:{daemon.port}"})
        assert there.header("Location") == f"http://127.0.0.1:{daemon.port}{back}"
        assert browser.client.get(back).header("Location") == "/"
        assert browser.me() is not None
        assert error_of(daemon.client().get(back)) == "oauth_failed"  # and no way back and forth


def test_a_browser_with_dev_may_write_either_name_of_this_machine(usersctl: Command) -> None:
    with serving(usersctl, "--dev", "--no-samples") as daemon:
        (listening,) = daemon.events("listening")
        assert listening["base_url"] == f"http://localhost:{daemon.port}"
        for name, status in (
            ("localhost", 200),
            ("127.0.0.1", 200),
            ("127.0.0.2", 403),
            ("evil.example", 403),
        ):
            origin = {"Origin": f"http://{name}:{daemon.port}"}
            assert daemon.client().delete("/api/users/session", headers=origin).status == status


def test_the_sample_provider_is_strict(open_site: OAuthSite) -> None:
    client = open_site.site.client()
    browser = open_site.browser()
    there = browser.set_out()
    for odd in ("redirect_uri=http://evil.example/", "client_id=other"):
        name = odd.partition("=")[0]
        changed = re.sub(rf"{name}=[^&]*", odd, path_of(there))
        assert client.get(changed).status == 400
    code = asked(browser.consent(there, "1001"))["code"]
    form = f"grant_type=authorization_code&code={code}&redirect_uri={quote(browser.base_url + CALLBACK)}"
    basic = base64.b64encode(f"{CLIENT}:{quote(SECRET)}".encode()).decode()
    for authorization in ("", "Basic", "Basic !", "Basic /w==", "Basic eDp5", f"Bearer {basic}"):
        reply = client.send(
            "POST", "/dev/provider/token", raw=form.encode(), headers={"Authorization": authorization}
        )
        assert (reply.status, reply.json) == (401, {"error": "invalid_client"})
    for body in (form + "&code_verifier=wrong", form, "", "\xff", form.replace(code, "x")):
        reply = client.send(
            "POST",
            "/dev/provider/token",
            raw=body.encode("latin-1"),
            headers={"Authorization": f"Basic {basic}"},
        )
        assert (reply.status, reply.json) == (400, {"error": "invalid_grant"})
    reply = client.get("/dev/provider/userinfo", headers={"Authorization": "Bearer x"})
    assert (reply.status, reply.json) == (401, {"error": "invalid_token"})


def test_an_unlinked_account_is_linked_again_only_by_its_owner(open_site: OAuthSite) -> None:
    browser = open_site.browser()
    browser.sign_in()
    me = browser.me()
    assert me is not None
    open_site.service.accounts.update(me["id"], unlink=OAUTH, by=OPERATOR)
    assert browser.me() == me | {"oauth_id": None, "updated_at": (browser.me() or {})["updated_at"]}
    assert error_of(open_site.browser().client.get(answered(browser.set_out()))) == "oauth_failed"
    browser.sign_in()
    assert (browser.me() or {})["oauth_id"] == "1001"


def test_a_crash_on_the_way_back_is_logged_and_ends_at_the_error_page(
    open_site: OAuthSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr("usersctl.oauth.sign_in.OAuthSignIn.user_for")
    assert error_of(open_site.browser().sign_in()) == "oauth_failed"
    (error,) = [line for line in open_site.site.log if line["event"] == "error"]
    assert "user_for" in error["trace"]
    assert [line["why"] for line in open_site.site.log if line["event"] == "oauth-refused"] == [
        "AttributeError"
    ]


def test_a_sign_in_that_finds_no_thread_ends_at_the_error_page(open_site: OAuthSite) -> None:
    environ = {"REQUEST_METHOD": "GET", "PATH_INFO": CALLBACK, "QUERY_STRING": "code=x&state=y"}
    reply = open_site.site.app.server_error(503, "The service is busy", environ)
    assert (reply.status, dict(reply.headers)["Location"]) == (302, "/login?error=oauth_failed")
    assert dict(reply.headers)["X-Request-Id"] == open_site.site.log[-1]["request"]


# --- the reason for our own sign-in page ---


def test_our_sign_in_page_learns_the_reason_of_a_refusal_once(open_site: OAuthSite) -> None:
    browser = open_site.browser()
    reply = browser.callback(browser.cancel(browser.set_out()))
    assert reply.header("Location") == "/login?error=oauth_failed"
    (cookie,) = [line for line in reply.cookies() if line.startswith("sign_in_reason=")]
    assert cookie == "sign_in_reason=cancelled; Path=/; HttpOnly; SameSite=Lax; Max-Age=60"
    assert "The sign-in was cancelled." in browser.client.get("/login?error=oauth_failed").body.decode()
    again = browser.client.get("/login?error=oauth_failed").body.decode()
    assert "The sign-in did not work." in again
    browser.callback(browser.cancel(browser.set_out()).replace("access_denied", "server_error"))
    assert "cancelled" not in browser.client.get("/login?error=oauth_failed").body.decode()


@pytest.mark.parametrize("reason", ["nonsense", "../x", "<b>", "__class__", "x" * 300])
def test_a_forged_reason_shows_no_other_text(open_site: OAuthSite, reason: str) -> None:
    client = open_site.site.client(headers={"Cookie": f"sign_in_reason={reason}"})
    page = client.get("/login?error=oauth_failed").body.decode()
    assert "The sign-in did not work." in page
    assert reason not in page


def test_an_application_does_not_get_the_reason() -> None:
    header = "a=1; sign_in_reason=cancelled; __Host-sign_in_reason=unverified; b=2"
    assert without_ours(header, "auth_token") == "a=1; b=2"
