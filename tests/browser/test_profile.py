"""What people do with their own account in a browser: sign out everywhere, delete it, change their mind."""

from collections.abc import Callable
from datetime import timedelta

import pytest
from support.commands import OPERATOR, PASSWORD
from support.fakes import FakeClock
from support.visitors import Visitor, expect
from support.web import Site

Visit = Callable[..., Visitor]
House = Callable[..., Site]

ADA = "ada@example.com"
ANOTHER = "another sentence of words"


@pytest.fixture
def site(house: House) -> Site:
    made = house()
    made.add()
    return made


# --- a new address ---


def test_a_new_address_waits_for_its_link_and_then_is_the_address(site: Site, visit: Visit) -> None:
    ada = visit(site)
    ada.signs_in()
    expect(ada.page.get_by_role("heading", name="Your new address")).to_have_count(0)
    ada.fills(Email="countess@example.com")
    ada.presses("Save")
    ada.sees("Saved.")
    ada.sees("Open the link in the email to countess@example.com by")
    ada.sees("Until then, your emails still go to ada@example.com.")
    ada.page.reload()
    expect(ada.field("Email")).to_have_value("countess@example.com")
    ada.presses("Send the email again")
    ada.sees("Another email is on its way.")
    ada.opens_email("Confirm")
    ada.is_at("/confirm-new-email")
    ada.fills(**{"Password (leave it empty if your account has none)": PASSWORD})
    ada.presses("Confirm")
    ada.is_at("/account")
    ada.sees("Your email address has been changed.")
    ada.sees("this device")
    expect(ada.page.get_by_role("heading", name="Your new address")).to_have_count(0)
    expect(ada.field("Email")).to_have_value("countess@example.com")


def test_a_new_address_is_taken_back(site: Site, visit: Visit) -> None:
    ada = visit(site)
    ada.signs_in()
    ada.fills(Email="countess@example.com")
    ada.presses("Save")
    ada.presses("Keep the old address")
    ada.sees("Your address stays as it was.")
    expect(ada.field("Email")).to_have_value(ADA)
    expect(ada.page.get_by_role("heading", name="Your new address")).to_have_count(0)


def test_what_a_user_types_stays_when_the_page_has_asked_for_the_address(site: Site, visit: Visit) -> None:
    ada = visit(site)
    ada.signs_in()
    with ada.page.expect_response("**/api/users/me/email"):
        ada.goes("/account")
        ada.fills(Email="countess@example.com")
    ada.sees("this device")
    expect(ada.field("Email")).to_have_value("countess@example.com")


def test_what_a_user_types_before_the_script_of_the_page_has_come_stays(site: Site, visit: Visit) -> None:
    ada = visit(site)
    ada.signs_in()
    ada.context.add_init_script(
        """new MutationObserver(() => {
            const field = document.querySelector("#email");
            if (field && field.value === field.defaultValue) field.value = "countess@example.com";
        }).observe(document, {childList: true, subtree: true})"""
    )
    with ada.page.expect_response("**/api/users/me/email"):
        ada.goes("/account")
    ada.sees("this device")
    ada.presses("Save")
    ada.sees("Open the link in the email to countess@example.com")


def test_a_user_without_a_password_reads_that_both_addresses_get_a_link(house: House, visit: Visit) -> None:
    ada = visit(house())
    ada.signs_in_by_provider(at="/login?redirect=/account")
    ada.fills(Email="countess@example.com")
    ada.presses("Save")
    ada.sees("Open the links in the emails to countess@example.com and to ada@example.com by")


# --- sign out everywhere else ---


def test_a_user_signs_out_everywhere_else(site: Site, visit: Visit) -> None:
    ada = visit(site)
    ada.signs_in()
    ada.sees("this device")
    phone = visit(site)
    phone.signs_in()
    ada.goes("/account")
    ada.presses("Sign out everywhere else")
    ada.sees("You are signed out everywhere else.")
    expect(ada.page.locator("#session-list li")).to_have_count(1)
    phone.expected = {401}
    phone.presses("Save")
    phone.sees("Your session has ended.")


# --- connect and disconnect providers ---


def test_the_provider_is_disconnected_when_a_password_is_another_way_in(house: House, visit: Visit) -> None:
    site = house()
    ada = visit(site)
    ada.signs_in_by_provider(at="/login?redirect=/account")
    ada.sees("Other ways to sign in")
    ada.sees("This is your only way to sign in, so it cannot be disconnected. Set a password first.")
    expect(ada.button("Disconnect: Example ID")).to_have_count(0)
    ada.page.wait_for_load_state("networkidle")  # no request of the page meets the end of the session
    user = site.service.accounts.find(ADA)
    site.service.accounts.set_password(user.id, PASSWORD, by=OPERATOR)
    ada.signs_in(at="/login?redirect=/account")
    ada.presses("Disconnect: Example ID")
    ada.sees(
        "Example ID is disconnected. If it knows you by the email address of this account, a sign-in there connects it again."
    )
    expect(ada.button("Connect: Example ID")).to_have_count(1)
    assert site.service.identities.of(user.id) == []


def connected(site: Site) -> list[str]:
    return [one.name for one in site.service.identities.of(site.service.accounts.find(ADA).id)]


def test_a_user_connects_a_provider_after_the_password_once_more(
    house: House, visit: Visit, clock: FakeClock
) -> None:
    site = house(others=("google", "github"))
    site.add(name="ada", password=PASSWORD)
    ada = visit(site)
    ada.signs_in(at="/login?redirect=/account")
    clock.move(minutes=11)
    ada.expected = {400, 403}
    ada.presses("Connect: Github")
    ada.sees("Confirm that it is you")
    ada.has_focus_on(ada.field("Your password"))
    ada.fills(Your_password="wrong")
    ada.presses("Confirm")
    ada.sees("Incorrect password.")
    ada.fills(Your_password=PASSWORD)
    ada.page.keyboard.press("Enter")
    ada.follows("Grace Hopper")
    ada.is_at("/account?linked=github")
    ada.sees("Github is connected.")
    ada.sees("grace@example.com")
    assert connected(site) == ["github"]
    clock.move(minutes=11)
    ada.presses("Disconnect: Github")
    ada.has_focus_on(ada.field("Your password"))
    ada.page.keyboard.press("Escape")
    ada.sees("Confirm that it is you, and try again.")
    assert connected(site) == ["github"]


def test_a_user_without_a_password_confirms_at_the_provider_and_goes_on(
    house: House, visit: Visit, clock: FakeClock
) -> None:
    site = house(others=("google",))
    ada = visit(site)
    ada.signs_in_by_provider(at="/login?redirect=/account")
    clock.move(minutes=11)
    ada.expected = {403}
    ada.presses("Connect: Google")
    ada.sees("Before this is done, sign in once more.")
    ada.follows("Continue with Example ID")
    ada.follows("Ada Lovelace")
    ada.follows("Ada Lovelace")  # at Google: the form that was sent is sent again
    ada.sees("Google is connected.")
    assert connected(site) == ["oauth", "google"]
    ada.presses("Disconnect: Google")
    ada.sees(
        "Google is disconnected. If it knows you by the email address of this account, a sign-in there connects it again."
    )
    assert connected(site) == ["oauth"]


def test_a_proof_by_another_account_does_not_go_on_with_what_was_begun(
    house: House, visit: Visit, clock: FakeClock
) -> None:
    site = house(others=("google",))
    ada = visit(site)
    ada.signs_in_by_provider(at="/login?redirect=/account")
    clock.move(minutes=11)
    ada.expected = {403}
    ada.presses("Connect: Google")
    ada.follows("Continue with Example ID")
    ada.follows("Grace Hopper")
    ada.is_at("/account?confirmed")
    ada.sees("this device")
    expect(ada.button("Connect: Google")).to_be_enabled()
    assert connected(site) == ["oauth"]


# --- delete the account ---


def test_a_new_password_promises_a_deleted_account_nothing_and_the_sign_in_names_the_ways_back(
    site: Site, visit: Visit
) -> None:
    ada = visit(site)
    ada.expected = {403}
    ada.signs_in()
    ada.page.get_by_text("Delete my account…").press("Enter")
    ada.fills(Your_password=PASSWORD)
    ada.presses("Delete my account")
    ada.is_at("/login")
    site.service.recovery.forgot(ADA)
    ada.opens_email("Set a new password")
    ada.fills(New_password=ANOTHER, New_password__once_more=ANOTHER)
    ada.presses("Set password")
    ada.sees("Your new password is set.")
    ada.misses("You can sign in")
    ada.fills(Password=ANOTHER)
    ada.presses("Sign in")
    ada.sees("open the link in the email about the deletion, or ask the people who run this site")


def test_a_user_deletes_the_account_and_undoes_that(site: Site, visit: Visit) -> None:
    ada = visit(site)
    ada.expected = {400, 403}
    ada.signs_in()
    ada.sees("After 7 days, it is deleted with everything in it")
    expect(ada.button("Delete my account")).to_have_count(0)
    ada.page.get_by_text("Delete my account…").press("Enter")  # the page is usable by keyboard
    ada.fills(Your_password="wrong")
    ada.presses("Delete my account")
    ada.sees("Incorrect password.")
    ada.has_focus_on(ada.field("Your password"))
    ada.fills(Your_password=PASSWORD)
    ada.presses("Delete my account")
    ada.is_at("/login")
    ada.sees("Your account is now inactive and will be deleted.")
    assert ada.cookie() is None
    ada.page.reload()
    ada.misses("will be deleted")
    ada.fills(Email=ADA, Password=PASSWORD)
    ada.presses("Sign in")
    ada.sees("You have deleted this account.")
    expect(ada.button("Send the confirmation email again")).to_have_count(0)
    ada.opens_email("will be deleted")
    ada.presses("Undo the deletion")
    ada.is_at("/login")
    ada.sees("Your account is active again.")
    expect(ada.field("Email")).to_have_value(ADA)
    ada.fills(Password=PASSWORD)
    ada.presses("Sign in")
    ada.is_at("/")


def test_a_user_without_a_password_deletes_the_account_by_email(house: House, visit: Visit) -> None:
    site = house()
    ada = visit(site)
    ada.signs_in_by_provider(at="/login")
    ada.page.get_by_text("Delete my account…").click()
    ada.sees("we will send you an email with a link to confirm this")
    ada.presses("Delete my account")
    ada.sees("Nothing is deleted until then.")
    ada.opens_email("Delete your account at Acme?")
    ada.presses("Delete my account")
    ada.sees("Your account is now inactive and will be deleted.")
    ada.expected = {400}
    ada.opens_email("will be deleted")
    ada.presses("Undo the deletion")
    ada.sees("Your account is active again")


def test_the_last_admin_reads_why_the_account_stays(house: House, visit: Visit) -> None:
    site = house()
    site.add(role="admin")
    ada = visit(site)
    ada.expected = {400}
    ada.signs_in()
    ada.page.get_by_text("Delete my account…").click()
    ada.fills(Your_password=PASSWORD)
    ada.presses("Delete my account")
    ada.sees("The last active admin cannot be deleted")


def test_an_account_that_is_deleted_at_once_says_so_before(house: House, visit: Visit) -> None:
    site = house(deletion_grace=timedelta())
    site.add()
    ada = visit(site)
    ada.signs_in()
    ada.sees("Your account is deleted at once, with everything in it. This cannot be undone.")
    ada.page.get_by_text("Delete my account…").click()
    ada.fills(Your_password=PASSWORD)
    ada.presses("Delete my account")
    ada.is_at("/login")
    ada.sees("Your account has been deleted.")


# --- one-time links ---


@pytest.mark.parametrize(
    "path",
    [
        "/confirm-email",
        "/reset-password",
        "/not-me",
        "/confirm-new-email",
        "/confirm-deletion",
        "/undo-deletion",
        "/setup",
    ],
)
def test_the_token_of_a_link_leaves_the_address_bar_and_the_history(
    house: House, visit: Visit, path: str
) -> None:
    ada = visit(house())
    ada.goes("/login")
    ada.goes(f"{path}?token=secret-token&email=ada@example.com")
    ada.is_at(path)
    ada.goes("/forgot-password")
    ada.page.go_back()
    ada.is_at(path)
    ada.page.go_back()
    ada.is_at("/login")


def test_a_link_still_works_after_a_reload_and_ends_with_its_use(site: Site, visit: Visit) -> None:
    ada = visit(site)
    ada.expected = {400}
    site.service.recovery.forgot(ADA)
    ada.opens_email("Set a new password")
    ada.is_at("/reset-password")
    ada.page.reload()
    ada.is_at("/reset-password")
    ada.fills(New_password="another good one", New_password__once_more="another good one")
    ada.presses("Set password")
    ada.sees("Your new password is set.")
    ada.is_at("/login")
    assert ada.page.evaluate("sessionStorage.length") == 0
    ada.page.go_back()
    ada.sees("part of that link is missing")


def test_the_set_up_page_shows_its_form_after_a_reload(house: House, visit: Visit) -> None:
    site = house()
    ada = visit(site)
    ada.page.goto(site.service.first_admin.link())
    ada.is_at("/setup")
    ada.page.reload()
    ada.is_at("/setup")
    ada.fills(Name="Ada", Email=ADA, Password=PASSWORD)
    ada.presses("Create admin")
    ada.sees("Your admin account has been created.")
    ada.page.go_back()
    ada.sees("There is an admin already")
