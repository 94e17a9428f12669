"""The pages with several identity providers: a button with a logo for each, and the providers of one's own profile."""

import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from support.commands import PASSWORD
from support.identities import provider_settings
from support.oauth_site import OAuthSite, oauth_site
from support.web import Client, Site

from usersctl.config.providers import PRESETS
from usersctl.service import Service
from usersd.counters import Counters, SharedCounters
from usersd.routes import TABLE

CLIENT: dict[str, Any] = {"client_id": "x", "client_secret": "y", "issuer": "https://id.example.com"}
REDIRECT = "/api/users/auth/oauth/redirect"


def html(client: Client, path: str) -> str:
    reply = client.get(path)
    assert reply.status == 200
    return reply.body.decode()


def buttons(page: str) -> list[tuple[str, str]]:
    """The target and the text of each button that leads to a provider."""
    found = re.findall(
        r'<a class="button" data-provider data-before href="([^"]*)">(.*?)</a>', page, re.DOTALL
    )
    return [
        (href.replace("&amp;", "&"), re.sub(r"<svg.*</svg>|\s+", " ", inside, flags=re.DOTALL).strip())
        for href, inside in found
    ]


def provider(name: str, **fields: Any) -> Any:
    return provider_settings(name, **(CLIENT | fields))


@pytest.fixture
def many(make_site: Callable[..., Site]) -> Site:
    return make_site(
        whitelist=("/register",),
        oauth_client_id="x",
        oauth_client_secret="y",
        oauth_issuer="https://id.example.com",
        more_providers=(
            provider("own", label="Example <Ltd>", allow_auto_registration=True),
            provider("google", preset="google", label="Google"),
            provider("half", client_secret=None, label="Half"),
        ),
    )


def test_the_sign_in_has_a_button_for_each_provider(many: Site) -> None:
    assert buttons(html(many.client(), "/login")) == [
        (REDIRECT, "Continue with id.example.com"),
        (f"{REDIRECT}?provider=own", "Continue with Example &lt;Ltd&gt;"),
        (f"{REDIRECT}?provider=google", "Continue with Google"),
    ]
    page = html(many.client(), "/login?redirect=/users%3Fpage%3D2")
    assert [href for href, _ in buttons(page)] == [
        f"{REDIRECT}?redirect=%2Fusers%3Fpage%3D2",
        f"{REDIRECT}?provider=own&redirect=%2Fusers%3Fpage%3D2",
        f"{REDIRECT}?provider=google&redirect=%2Fusers%3Fpage%3D2",
    ]


def test_the_registration_has_the_buttons_of_providers_that_create_accounts(many: Site) -> None:
    assert buttons(html(many.client(), "/register")) == [
        (f"{REDIRECT}?provider=own", "Continue with Example &lt;Ltd&gt;")
    ]


def test_without_a_provider_there_is_no_button(make_site: Callable[..., Site]) -> None:
    site = make_site(whitelist=("/register",))
    for path in ("/login", "/register"):
        page = html(site.client(), path)
        assert (buttons(page), "<svg" in page) == ([], False)


@pytest.mark.parametrize("preset", [*PRESETS, None])
def test_each_button_has_a_logo_that_no_reader_reads_aloud(
    make_site: Callable[..., Site], preset: str | None
) -> None:
    site = make_site(more_providers=(provider("one", preset=preset, label="One"),))
    page = html(site.client(), "/login")
    (logo,) = re.findall(r"<svg.*?</svg>", page, re.DOTALL)
    assert 'aria-hidden="true"' in logo
    assert not re.search(r"https?:|url\(|href|style=|script", logo)
    others = [
        html(make_site(more_providers=(provider("one", preset=other),)).client(), "/login")
        for other in PRESETS
        if other != preset
    ]
    assert all(logo not in other for other in others)


# --- the profile ---


@pytest.fixture
def site(make_service: Callable[..., Service]) -> Iterator[OAuthSite]:
    others = {"second": {"label": "Second"}, "third": {"label": "Third"}}
    with oauth_site(
        make_service, others=others, oauth_allow_auto_registration=True, oauth_label="First"
    ) as running:
        yield running


def forms(page: str) -> list[tuple[str, str]]:
    """The method and the provider of each form that connects or disconnects one."""
    found = re.findall(r'data-api="/api/users/me/identities/(\w+)"(?: data-method="(\w+)")?', page)
    return [(method or "POST", name) for name, method in found]


def test_the_profile_offers_to_connect_and_disconnect(site: OAuthSite) -> None:
    site.site.add("ada")
    browser = site.browser()
    browser.client.login("ada@example.com", PASSWORD)
    assert forms(html(browser.client, "/account")) == [
        ("POST", "oauth"),
        ("POST", "second"),
        ("POST", "third"),
    ]
    url = browser.client.post("/api/users/me/identities/second", {}).json["url"]
    back = browser.callback(browser.consent(url, "1004"))
    page = html(browser.client, str(back.header("Location")))
    assert "Second is connected" in page
    assert "eve@example.com" in page
    assert forms(page) == [("DELETE", "second"), ("POST", "oauth"), ("POST", "third")]
    assert 'id="proof-password"' in page


def test_a_link_to_a_provider_is_counted_as_no_login(site: OAuthSite) -> None:
    shared = SharedCounters(TABLE, 1)
    site.site.app.counters = Counters(shared, 0, site.service.hasher)
    site.site.add("ada")
    browser = site.browser()
    browser.client.login("ada@example.com", PASSWORD)
    for come_back in (browser.cancel, lambda url: browser.consent(url, "1004")):
        browser.callback(come_back(browser.client.post("/api/users/me/identities/second", {}).json["url"]))
    assert "Second is connected" in html(browser.client, "/account?linked=second")
    assert {login for login in shared.logins() if login[-1]} == {("password", "success", 1)}


def test_the_profile_says_that_the_last_way_in_stays(site: OAuthSite) -> None:
    browser = site.browser()
    browser.sign_in()
    page = html(browser.client, "/account")
    assert forms(page) == [("POST", "second"), ("POST", "third")]
    assert "only way to sign in" in page
    # An account without a password proves itself by a sign-in, and comes back to what it began.
    assert f"{REDIRECT}?redirect=%2Faccount%3Fconfirmed" in page
    assert 'id="proof-password"' not in page


def test_the_address_of_the_profile_says_nothing_that_is_not_true(site: OAuthSite) -> None:
    browser = site.browser()
    browser.sign_in()
    for query in ("?linked=second", "?linked=<b>", "?linked=", "?error=nothing", "?error=&linked=x"):
        page = html(browser.client, f"/account{query}")
        assert "is connected" not in page
        assert '<p class="note' not in page.replace('<noscript><p class="note bad">', "")


def test_a_refused_link_ends_at_the_profile_with_its_reason(site: OAuthSite) -> None:
    site.site.add("ada")
    browser = site.browser()
    browser.client.login("ada@example.com", PASSWORD)
    url = browser.client.post("/api/users/me/identities/second", {}).json["url"]
    reply = browser.callback(browser.cancel(url))
    assert reply.header("Location") == "/account?error=oauth_failed"
    page = html(browser.client, "/account?error=oauth_failed")
    assert "was cancelled" in page
    assert "sign in with a password" not in page  # of no use to a visitor who is signed in
