"""Whole journeys in a browser: set-up, the own account, registration, recovery, invitation."""

from collections.abc import Callable
from datetime import timedelta

import pytest
from support.commands import OPERATOR, PASSWORD
from support.fakes import FakeClock
from support.visitors import Visitor, expect, sees_profile
from support.web import Site

from usersctl.invitations import guest

Visit = Callable[..., Visitor]
House = Callable[..., Site]

ANOTHER = "another horse battery"


# --- the first admin, and one's own account ---


def test_the_first_admin_comes_by_a_link_and_signs_in(house: House, visit: Visit) -> None:
    site = house()
    ada = visit(site)
    ada.goes("/login")
    ada.sees("usersctl create EMAIL --admin")
    link = site.service.first_admin.link()
    ada.page.goto(link)
    ada.fills(Name="Ada Lovelace", Email="ada@example.com", Password=PASSWORD)
    ada.presses("Create admin")
    ada.is_at("/login")
    ada.has_focus_on(ada.page.get_by_text("Your admin account has been created."))
    ada.misses("There is no admin yet")
    expect(ada.field("Email")).to_have_value("ada@example.com")
    ada.fills(Password=PASSWORD)
    ada.presses("Sign in")
    sees_profile(ada)
    ada.follows("Users")
    ada.sees("Page 1 of 1 · 1 in all")
    ada.page.goto(link)
    ada.sees("There is an admin already")


@pytest.mark.parametrize("query", ["", "?token=nobodys", "?token=%ff", "?token=a&token=b"])
def test_a_wrong_set_up_link_shows_the_command_instead_of_a_form(
    house: House, visit: Visit, query: str
) -> None:
    ada = visit(house())
    ada.goes(f"/setup{query}")
    ada.sees("This link has already been used, or has expired.")
    ada.sees("usersctl create EMAIL --admin")
    expect(ada.page.locator("form")).to_have_count(0)


def test_a_visit_of_the_set_up_page_does_not_consume_its_link(house: House, visit: Visit) -> None:
    site = house()
    ada = visit(site)
    link = site.service.first_admin.link()
    for _ in range(3):
        ada.page.goto(link)
    ada.fills(Name="Ada", Email="ada@example.com", Password=PASSWORD)
    ada.presses("Create admin")
    ada.sees("Your admin account has been created.")


def test_a_set_up_link_that_expires_meanwhile_is_refused_in_words(house: House, visit: Visit) -> None:
    site = house()
    ada = visit(site)
    ada.expected = {400}
    ada.page.goto(site.service.first_admin.link())
    site.service.first_admin.link()
    ada.fills(Name="Ada", Email="ada@example.com", Password=PASSWORD)
    ada.presses("Create admin")
    ada.sees("This link has already been used, or has expired.")
    ada.sees("usersctl create EMAIL --admin")
    expect(ada.button("Create admin")).to_have_count(0)


def test_a_password_manager_leads_through_the_sign_in_to_the_password(house: House, visit: Visit) -> None:
    site = house()
    site.add()
    ada = visit(site)
    ada.signs_in(at="/.well-known/change-password")
    ada.is_at("/account#change")
    expect(ada.page.locator("#change")).to_be_in_viewport()


def test_a_user_manages_profile_password_and_sessions(house: House, visit: Visit) -> None:
    site = house()
    site.add()
    phone, ada = visit(site), visit(site)
    phone.signs_in()
    ada.signs_in()
    ada.fills(Name="Ada Lovelace", Email="countess@example.com")
    ada.presses("Save")
    ada.sees("Saved.")
    expect(ada.page.locator(".away").first).to_have_value("ada@example.com")  # until the new one is proven

    ada.expected = {400}
    ada.fills(Current_password="wrong", New_password=ANOTHER, New_password__once_more="x")
    ada.presses("Change password")
    ada.sees("The two passwords are not the same.")
    ada.fills(New_password__once_more=ANOTHER)
    ada.presses("Change password")
    ada.sees("Current password is incorrect")
    ada.has_focus_on(ada.field("Current password"))
    ada.fills(Current_password=PASSWORD)
    ada.presses("Change password")
    ada.sees("Your password is changed.")
    expect(ada.field("Current password")).to_have_value("")

    # The others have ended; a new one is ended by its button.
    phone.expected = {401}
    phone.presses("Save")
    phone.sees("Your session has ended.")
    phone.follows("Sign in again")
    phone.fills(Email="countess@example.com", Password=ANOTHER)
    phone.presses("Sign in")
    sees_profile(phone)
    ada.goes("/")
    sessions = ada.page.get_by_role("listitem").filter(has_text="127.0.0.1")
    expect(sessions).to_have_count(2)
    expect(sessions.filter(has_text="this device")).to_have_count(1)
    ada.page.get_by_role("button", name="End Chrome").click()
    ada.sees("It has ended.")
    expect(sessions).to_have_count(1)
    ada.presses("Sign out")
    ada.is_at("/login")
    assert ada.cookie() is None


# --- by email ---


def test_a_new_user_registers_confirms_and_signs_in(house: House, visit: Visit) -> None:
    new = visit(house())
    new.goes("/login")
    new.follows("Create an account")
    new.fills(Name="Grace Hopper", Email="grace@example.com", Password=PASSWORD)
    new.presses("Create account")
    new.sees("open the link in the email that is on its way to grace@example.com.")
    expect(new.page.get_by_role("heading")).to_have_text("Check your email")
    expect(new.page).to_have_title("Check your email · Acme")
    new.misses("Already have an account?")

    new.expected = {403}
    new.goes("/login")
    new.fills(Email="grace@example.com", Password=PASSWORD)
    new.presses("Sign in")
    new.sees("Your email address still has to be confirmed.")
    new.presses("Send the confirmation email again")
    new.sees("If grace@example.com still has to be confirmed, an email is on its way.")

    new.opens_email("Confirm")
    new.presses("Confirm")
    new.is_at("/login")
    new.sees("Your email address is confirmed.")
    expect(new.field("Email")).to_have_value("grace@example.com")
    new.fills(Password=PASSWORD)
    new.presses("Sign in")
    sees_profile(new)


def test_an_expired_confirmation_email_leads_to_another_one(
    house: House, visit: Visit, clock: FakeClock
) -> None:
    site = house()
    site.service.registration.register("grace@example.com", "Grace", PASSWORD, by=OPERATOR)
    new = visit(site)
    new.expected = {400}
    while site.service.outbox.work() is not None:
        pass
    clock.move(hours=25)
    new.opens_email("Confirm")
    new.presses("Confirm")
    new.sees("This link has already been used, or has expired.")
    expect(new.button("Confirm")).to_have_count(0)
    new.presses("Send the confirmation email again")
    new.sees("an email is on its way")
    new.opens_email("Confirm")
    new.presses("Confirm")
    new.sees("Your email address is confirmed.")


def test_a_forgotten_password_is_reset_by_email(house: House, visit: Visit) -> None:
    site = house()
    site.add()
    ada = visit(site)
    ada.goes("/login")
    ada.fills(Email="ada@example.com")
    ada.follows("Forgot your password?")
    expect(ada.field("Email")).to_have_value("ada@example.com")
    ada.follows("Sign in")
    expect(ada.field("Email")).to_have_value("ada@example.com")
    ada.follows("Forgot your password?")
    ada.presses("Send the link")
    ada.sees("If ada@example.com has an account, an email with a link is on its way.")
    expect(ada.page.get_by_role("heading")).to_have_text("Check your email")
    letter = ada.opens_email("Set a new password")
    ada.fills(New_password=ANOTHER, New_password__once_more=ANOTHER)
    ada.presses("Set password")
    ada.is_at("/login")
    ada.sees("Your new password is set.")
    expect(ada.field("Email")).to_have_value("ada@example.com")
    ada.fills(Password=ANOTHER)
    ada.presses("Sign in")
    sees_profile(ada)

    ada.expected = {400}
    ada.page.goto(letter)
    ada.fills(New_password=ANOTHER, New_password__once_more=ANOTHER)
    ada.presses("Set password")
    ada.sees("This link has already been used, or has expired.")
    expect(ada.button("Set password")).to_have_count(0)
    ada.follows("Get another link")
    ada.is_at("/forgot-password")
    expect(ada.field("Email")).to_have_value("ada@example.com")
    ada.page.reload()
    assert ada.page.evaluate("sessionStorage.length") == 0


def test_a_link_works_in_a_browser_that_keeps_nothing_for_a_site(house: House, visit: Visit) -> None:
    site = house()
    site.add()
    site.service.recovery.forgot("ada@example.com")
    ada = visit(site)
    ada.context.add_init_script(
        "Object.defineProperty(window, 'sessionStorage', {get() { throw new DOMException('no', 'SecurityError'); }})"
    )
    ada.opens_email("Set a new password")
    ada.fills(New_password="another good one", New_password__once_more="another good one")
    ada.presses("Set password")
    ada.is_at("/login")
    assert site.client().login("ada@example.com", "another good one").status == 200


def test_an_owner_closes_the_account_after_a_foreign_change(house: House, visit: Visit) -> None:
    site = house()
    site.add()
    thief, ada = visit(site), visit(site)
    thief.signs_in()
    thief.fills(Current_password=PASSWORD, New_password=ANOTHER, New_password__once_more=ANOTHER)
    thief.presses("Change password")
    thief.sees("Your password is changed.")
    link = ada.opens_email("password")
    ada.presses("Lock everyone out")
    ada.sees("the old password no longer works")
    ada.expected = {400}
    ada.page.goto(link)
    ada.presses("Lock everyone out")
    ada.sees("This link has already been used, or has expired. If you are still worried, set a new password.")
    expect(ada.button("Lock everyone out")).to_have_count(0)
    ada.follows("Set a new password")
    ada.is_at("/forgot-password")
    thief.expected = {401}
    thief.presses("Save")
    thief.sees("Your session has ended.")


WAYS_ON = {
    "/confirm-email": ("Sign in", "/login"),
    "/reset-password": ("Get another link", "/forgot-password"),
    "/not-me": ("Set a new password", "/forgot-password"),
    "/confirm-new-email": ("Profile", "/login?redirect=/account"),
    "/confirm-deletion": ("Profile", "/login?redirect=/account"),
    "/undo-deletion": ("Sign in", "/login"),
}


def test_without_its_link_a_page_shows_no_form_but_what_to_do(house: House, visit: Visit) -> None:
    ada = visit(house())
    for page, (way, led_to) in WAYS_ON.items():
        for query in ("", "?email=ada@example.com", "?token=x", "?token=&email="):
            ada.goes(page + query)
            ada.sees("part of that link is missing")
            expect(ada.page.locator("form, main button")).to_have_count(0)
        ada.follows(way)
        ada.is_at(led_to)


def test_a_guest_is_invited_and_comes_in_by_the_email(house: House, visit: Visit) -> None:
    site = house()
    site.add(role="admin")
    site.service.groups.create("staff", by=OPERATOR)
    ada = visit(site)
    ada.signs_in(at="/login?redirect=/users")
    ada.expected = {400}
    ada.presses("Invite")
    ada.has_focus_on(ada.field("Email"))
    ada.presses("Send the invitation")
    ada.sees("Please fill in this field.")
    ada.fills(Email="ada@example.com")
    ada.presses("Send the invitation")
    ada.sees("There is already an account with this address.")
    ada.fills(Email="grace@example.com")
    ada.field("Groups").select_option("staff")
    ada.presses("Send the invitation")
    ada.sees("An invitation is on its way to grace@example.com.")
    ada.presses("Invite")
    ada.fills(Email="grace@example.com")  # without a group, which leaves that of the first invitation
    with ada.page.expect_response("**/api/users/invite"):
        ada.presses("Send the invitation")

    grace = visit(site)
    link = grace.opens_email("You are invited")
    grace.sees("You are invited.")
    grace.fills(Password=PASSWORD)
    grace.presses("Accept the invitation")
    grace.sees("Please fill in this field.")
    grace.fills(Name="Grace Hopper")
    grace.presses("Accept the invitation")
    grace.sees("Welcome! You are signed in.")
    sees_profile(grace)
    user = site.service.accounts.find("grace@example.com")
    assert (user.name, site.service.groups.of(user.id)) == ("Grace Hopper", ("staff",))

    late = visit(site)
    late.page.goto(link)
    late.sees("This invitation has been accepted already.")
    late.follows("Sign in")
    late.is_at("/login")


def test_an_invitation_that_is_withdrawn_while_its_page_is_open_says_so(house: House, visit: Visit) -> None:
    site = house()
    (user,) = site.service.invitations.invite(
        [guest("grace@example.com", "Grace Hopper")], timedelta(days=7), by=OPERATOR
    )
    grace = visit(site)
    grace.expected = {400}
    grace.opens_email("You are invited")
    expect(grace.field("Name")).to_have_value("Grace Hopper")
    site.service.invitations.withdraw([user.id], by=OPERATOR)
    grace.fills(Password=PASSWORD)
    grace.presses("Accept the invitation")
    grace.sees("This invitation has been withdrawn.")
    expect(grace.button("Accept the invitation")).to_have_count(0)
