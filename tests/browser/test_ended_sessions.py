"""A session that is over: what its tabs show, and what they keep."""

from collections.abc import Callable

from support.commands import PASSWORD
from support.fakes import FakeClock
from support.second_factors import with_phone
from support.visitors import Visitor, expect, tries
from support.web import Site


def test_a_session_that_ended_elsewhere_is_noticed_on_the_way_back_to_the_tab(ada: Visitor) -> None:
    tries(ada, PASSWORD)
    ada.is_at("/")
    ada.expected = {401}
    ada.site.client(cookies={"auth_token": ada.cookie()["value"]}).delete("/api/users/session")
    ada.page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
    ada.sees("Your session has ended.")
    ada.follows("Sign in again")
    ada.is_at("/login?redirect=%2F")


def session_ends(ada: Visitor, *, at_button: str, page: str) -> None:
    """It ended elsewhere, which this button of a form notices; the user signs in again in a new tab, and comes back."""
    ada.site.client(cookies={"auth_token": ada.cookie()["value"]}).delete("/api/users/session")
    ada.expected = {401}
    ada.presses(at_button)
    ada.sees("in a new tab, so that what you have typed stays here.")
    typed_in = ada.page
    with ada.context.expect_page() as opened:
        ada.follows("Sign in again")
    ada.page = opened.value
    tries(ada, PASSWORD)
    ada.is_at(page)
    ada.page = typed_in
    ada.page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
    ada.misses("Your session has ended.")


def test_what_was_typed_before_the_session_ended_stays_while_its_user_signs_in_in_a_new_tab(
    ada: Visitor,
) -> None:
    tries(ada, PASSWORD)
    ada.is_at("/")
    ada.goes("/account")
    ada.fills(Name="Ada King")
    session_ends(ada, at_button="Save", page="/account")
    ada.presses("Save")
    ada.sees("Saved")
    assert ada.site.service.accounts.get(1).name == "Ada King"


def test_where_nothing_was_typed_or_chosen_the_table_of_users_leads_back_in_the_same_tab(
    house: Callable[..., Site], visit: Callable[..., Visitor]
) -> None:
    site = house()
    site.add(role="admin")
    site.add("grace")
    ada = visit(site)
    ada.signs_in(at="/login?redirect=/users")
    ada.sees("2 in all")
    ada.expected = {401}
    ada.loses_cookies(name="auth_token")
    ada.field("Role").select_option(label="Admin")
    ada.sees("Your session has ended.")
    ada.misses("in a new tab")
    ada.follows("Sign in again")
    tries(ada, PASSWORD)
    ada.is_at("/users?role=admin")


def test_a_tab_of_a_user_who_signed_out_shows_the_present_user(ada: Visitor) -> None:
    ada.site.add("grace")
    tries(ada, PASSWORD)
    ada.is_at("/")
    grace = ada.site.client()
    grace.login("grace@example.com", PASSWORD)
    ada.has_session(grace.cookies["auth_token"])
    ada.page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
    expect(ada.field("Email")).to_have_value("grace@example.com")


def test_the_back_button_shows_nothing_after_signing_out(ada: Visitor) -> None:
    tries(ada, PASSWORD)
    ada.is_at("/")
    ada.presses("Sign out")
    ada.is_at("/login")
    ada.page.go_back()
    ada.is_at("/login?redirect=/")
    ada.misses("Your profile")


def test_a_new_user_that_was_typed_stays_in_its_dialog_when_the_session_ends(
    house: Callable[..., Site], visit: Callable[..., Visitor]
) -> None:
    site = house()
    site.add(role="admin")
    ada = visit(site)
    ada.signs_in(at="/login?redirect=/users")
    ada.presses("New user")
    ada.fills(Name="Grace", Email="grace@example.com", Password=PASSWORD)
    session_ends(ada, at_button="Create user", page="/users")
    ada.presses("New user")
    ada.presses("Create user")
    ada.sees("grace@example.com has been created and can sign in.")
    ada.presses("New user")
    expect(ada.field("Name")).to_have_value("")


def test_recovery_codes_stay_until_they_are_kept_though_the_session_ended_meanwhile(
    ada: Visitor, clock: FakeClock
) -> None:
    client, _ = with_phone(ada.site, clock, "grace")
    ada.has_session(client.token)
    ada.goes("/account")
    ada.presses("Make new codes")
    ada.page.locator("dialog[open]").get_by_role("button", name="Make new codes").click()
    ada.sees("Keep them where you find them")
    client.delete("/api/users/session")
    ada.expected = {401}
    ada.page.evaluate("document.dispatchEvent(new Event('visibilitychange')); fetch('/api/users/me')")
    expect(ada.page.locator("#codes-list code").first).to_be_visible()
    ada.presses("I have kept them")
    ada.is_at("/login?redirect=/account")
