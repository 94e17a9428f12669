"""Signing in and out in a browser: with the password or through a provider, to the page that was asked for."""

from collections.abc import Callable

import pytest
from support.commands import PASSWORD
from support.visitors import Visitor, expect, sees_profile
from support.web import Site

Visit = Callable[..., Visitor]
House = Callable[..., Site]


@pytest.mark.parametrize("remember", [False, True])
def test_a_login_is_remembered_when_asked_for(house: House, visit: Visit, remember: bool) -> None:
    site = house()
    site.add()
    ada = visit(site)
    ada.goes("/login")
    ada.fills(Email="ada@example.com", Password=PASSWORD)
    if remember:
        ada.field("Stay signed in on this device").check()
    ada.presses("Sign in")
    sees_profile(ada)
    cookie = ada.cookie()
    assert cookie is not None
    assert (cookie["expires"] > 0, cookie["httpOnly"], cookie["sameSite"]) == (remember, True, "Lax")


def test_a_note_keeps_the_focus_where_the_browser_gives_it_to_a_field_later(
    house: House, visit: Visit
) -> None:
    """As WebKit does with the field that has autofocus."""
    ada = visit(house())
    ada.goes("/login")
    ada.page.evaluate("sessionStorage.setItem('note', 'Your new password is set.')")
    ada.page.add_init_script(
        "new MutationObserver((_, each) => { const field = document.querySelector('[autofocus]');"
        " if (document.querySelector('#notes p')) { each.disconnect(); field.focus(); window.taken = true; } })"
        ".observe(document, { childList: true, subtree: true })"
    )
    ada.page.reload()
    expect(ada.page.get_by_text("Your new password is set.")).to_be_focused()
    assert ada.page.evaluate("window.taken")


def test_a_visitor_whose_browser_blocks_cookies_reads_why_a_sign_in_cannot_work(
    house: House, visit: Visit
) -> None:
    ada = visit(house())
    ada.goes("/login")
    expect(ada.page.get_by_text("keeps no cookies")).to_have_count(0)
    ada.page.add_init_script("Object.defineProperty(navigator, 'cookieEnabled', { value: false })")
    ada.page.reload()
    ada.sees("Your browser keeps no cookies of this site, so you cannot sign in.")


# --- through a provider ---


def test_a_sign_in_through_the_provider_leads_to_the_requested_page(house: House, visit: Visit) -> None:
    site = house()
    ada = visit(site)
    ada.goes("/?from=here")
    ada.is_at("/login?redirect=/%3Ffrom%3Dhere")
    ada.signs_in_by_provider()
    ada.is_at("/?from=here")
    expect(ada.page.get_by_role("region", name="Other ways to sign in")).to_contain_text("Example ID")


def test_a_user_of_the_provider_sets_a_first_password_by_email(house: House, visit: Visit) -> None:
    site = house()
    ada = visit(site)
    ada.signs_in_by_provider(at="/login?redirect=/account")
    ada.is_at("/account")
    ada.sees("This account has no password.")
    expect(ada.field("Current password")).to_have_count(0)
    ada.fills(Email="countess@example.com")
    ada.presses("Save")
    ada.sees("Saved.")
    ada.presses("Send the link")
    ada.sees("A link to set a password is on its way to ada@example.com.")  # the new one is not proven
    ada.opens_email("Set a new password")
    ada.fills(New_password=PASSWORD, New_password__once_more=PASSWORD)
    ada.presses("Set password")
    ada.sees("Your new password is set.")
    ada.signs_in(at="/login?redirect=/account")  # the reset ended the claim to another address
    expect(ada.field("Current password")).to_have_count(1)
    ada.misses("This account has no password.")


def test_cancelling_at_the_provider_is_reported(house: House, visit: Visit) -> None:
    ada = visit(house())
    ada.goes("/login")
    ada.follows("Continue with Example ID")
    ada.follows("Cancel")
    ada.is_at("/login?error=oauth_failed")
    ada.sees("The sign-in was cancelled.")
    ada.page.reload()
    ada.sees("The sign-in did not work.")  # the browser was told once


@pytest.mark.parametrize("again", ["with the password", "through the provider"])
def test_a_sign_in_after_cancelling_at_the_provider_leads_to_the_requested_page(
    house: House, visit: Visit, again: str
) -> None:
    site = house()
    site.add(role="admin")
    ada = visit(site)
    ada.goes("/users?search=a%26b")
    for _ in range(2):
        ada.follows("Continue with Example ID")
        ada.follows("Cancel")
        ada.sees("The sign-in was cancelled.")
        assert ada.page.evaluate("sessionStorage.length") == 0
    ada.page.reload()
    if again == "with the password":
        ada.fills(Email="ada@example.com", Password=PASSWORD)
        ada.presses("Sign in")
    else:
        ada.signs_in_by_provider()
    ada.is_at("/users?search=a%26b")
    ada.presses("Sign out")
    ada.is_at("/login")
    ada.follows("Continue with Example ID")
    ada.follows("Cancel")
    ada.is_at("/login?error=oauth_failed")  # that way is forgotten


def test_a_stored_target_does_not_lead_to_another_site(house: House, visit: Visit) -> None:
    site = house()
    site.add()
    ada = visit(site)
    for kept in ("//evil.example", "https://evil.example", "/\\evil.example", "javascript:alert(1)"):
        ada.goes("/login")
        ada.page.evaluate("kept => sessionStorage.setItem('then', kept)", kept)
        ada.goes("/login?error=oauth_failed")
        ada.fills(Email="ada@example.com", Password=PASSWORD)
        ada.presses("Sign in")
        sees_profile(ada)
        ada.presses("Sign out")
        ada.is_at("/login")


@pytest.mark.parametrize(
    ("person", "settings", "message"),
    [
        ("Alan Turing", {}, "Your email address is not verified at the provider."),
        (
            "Grace Hopper",
            {"oauth_allow_auto_registration": False},
            "There is no account with your email address",
        ),
        ("Ada Lovelace", {}, "Your account has been deactivated."),
    ],
)
def test_a_refused_sign_in_through_the_provider_is_shown_in_words(
    house: House, visit: Visit, person: str, settings: dict[str, bool], message: str
) -> None:
    site = house(**settings)
    site.add(active=False)
    visitor = visit(site)
    visitor.goes("/login")
    visitor.follows("Continue with Example ID")
    visitor.follows(person)
    visitor.sees(message)


# --- where to ---


@pytest.mark.parametrize(
    ("asked", "led_to"),
    [
        ("/users%3Fpage%3D2%26search%3Da", "/users?search=a"),
        ("//evil.example", "/"),
        ("/%5Cevil.example", "/"),
    ],
)
def test_a_login_leads_to_the_requested_page_inside_the_site(
    house: House, visit: Visit, asked: str, led_to: str
) -> None:
    site = house()
    site.add(role="admin")
    ada = visit(site)
    ada.signs_in(at=f"/login?redirect={asked}")
    ada.is_at(led_to)


def test_a_user_without_the_role_reads_that_the_page_is_for_admins(house: House, visit: Visit) -> None:
    site = house()
    site.add("grace")
    grace = visit(site)
    grace.expected = {403}
    grace.signs_in("grace", at="/login?redirect=/users")
    grace.sees("This page is for admins")
    expect(grace.page.get_by_role("link", name="Users", exact=True)).to_have_count(0)
    grace.page.locator("main").get_by_role("link", name="Profile").click()
    sees_profile(grace, at="/account")


# --- signing out ---


@pytest.mark.parametrize("script", [True, False])
@pytest.mark.parametrize("host", ["127.0.0.1", "accounts.example.com"])
def test_the_logout_page_signs_out_also_without_a_script_and_without_https(
    house: House, visit: Visit, host: str, script: bool
) -> None:
    """A browser says where a request comes from by Sec-Fetch-Site only to this machine and to https."""
    site = house(host=host)
    token = site.signed_in(site.add()).token
    ada = visit(site, java_script_enabled=script)
    ada.base = site.service.settings.base_url
    ada.has_session(token)
    ada.goes("/logout?redirect=/login%3Fredirect=/account")
    ada.sees("ada@example.com")
    ada.presses("Sign out")
    ada.is_at("/login?redirect=/account")
    assert ada.cookie() is None
    ada.goes("/logout")
    ada.sees("You are signed out")
    ada.follows("Sign in")
    ada.is_at("/login")


# --- visitors who are signed in already ---


@pytest.mark.parametrize(
    ("at", "led_to"),
    [
        ("/login", "/account"),
        ("/login?redirect=/users%3Fsearch%3Da", "/users?search=a"),
        ("/login?redirect=/login", "/account"),
        ("/login?redirect=/login%3Fredirect%3D/users", "/account"),
        ("/login?redirect=//evil.example", "/account"),
    ],
)
def test_the_login_page_offers_a_signed_in_user_to_continue(
    house: House, visit: Visit, at: str, led_to: str
) -> None:
    site = house()
    site.add(role="admin")
    ada = visit(site)
    ada.signs_in()
    ada.goes(at)
    ada.sees("You are signed in")
    ada.sees("ada@example.com")
    expect(ada.field("Password")).to_have_count(0)
    ada.follows("Continue")
    ada.is_at(led_to)


def test_the_login_page_lets_another_user_sign_in(house: House, visit: Visit) -> None:
    site = house()
    for name in ("ada", "grace"):
        site.add(name, role="admin")
    visitor = visit(site)
    visitor.signs_in()
    visitor.goes("/login?redirect=/users")
    visitor.presses("Use another account")
    visitor.is_at("/login?redirect=%2Fusers")
    assert visitor.cookie() is None
    visitor.fills(Email="grace@example.com", Password=PASSWORD)
    visitor.presses("Sign in")
    visitor.is_at("/users")
    visitor.goes("/login")
    visitor.presses("Sign out")
    visitor.is_at("/login")
    expect(visitor.field("Password")).to_have_count(1)


def test_a_sign_in_with_the_login_page_as_target_leads_to_the_profile(house: House, visit: Visit) -> None:
    site = house()
    site.add()
    ada = visit(site)
    ada.goes("/login?redirect=/login")
    ada.fills(Email="ada@example.com", Password=PASSWORD)
    ada.presses("Sign in")
    sees_profile(ada)
