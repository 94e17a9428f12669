"""The page of one user, as admins use it."""

from collections.abc import Callable

import pytest
from support.accounts import open_session
from support.commands import OPERATOR, PASSWORD
from support.factors import add_factors
from support.fakes import FakeClock
from support.visitors import Visitor, expect
from support.web import Site

from usersctl.models import Client, Role, User

Visit = Callable[..., Visitor]
House = Callable[..., Site]

QUESTION = "dialog[open]"


@pytest.fixture
def site(house: House) -> Site:
    site = house()
    site.add(role="admin")
    return site


@pytest.fixture
def grace(site: Site) -> User:
    return site.add("grace")


@pytest.fixture
def ada(site: Site, visit: Visit, grace: User) -> Visitor:
    """An admin at the page of Grace."""
    visitor = visit(site)
    visitor.signs_in(at=f"/login?redirect=/users/{grace.id}")
    visitor.sees("Name, email and role")
    return visitor


def confirms(visitor: Visitor, name: str) -> None:
    """Presses a button, and the one of its question."""
    visitor.presses(name)
    question = visitor.page.locator(QUESTION)
    expect(question).to_be_visible()
    question.get_by_role("button", name=name).click()


def part(visitor: Visitor, name: str) -> object:
    return visitor.page.get_by_role("region", name=name)


def test_name_address_and_role_are_changed_and_the_history_shows_it(ada: Visitor, grace: User) -> None:
    ada.fills(Name="Grace Hopper", Email="admiral@example.com")
    ada.field("Role").select_option("admin")
    ada.presses("Save")
    ada.sees("admiral@example.com has been saved.")
    expect(ada.page.get_by_role("heading", level=1)).to_have_text("Grace Hopper")
    expect(ada.page).to_have_title("Grace Hopper · Acme")
    expect(part(ada, "Account")).to_contain_text("admiral@example.com")
    expect(part(ada, "History")).to_contain_text("email: admiral@example.com")
    user = ada.site.service.accounts.get(grace.id)
    assert (user.name, user.role) == ("Grace Hopper", "admin")


def test_a_new_name_with_signs_of_its_own_is_the_title_of_the_page(ada: Visitor) -> None:
    for name in ("Ca$$h", "A $& $' B"):
        ada.fills(Name=name)
        ada.presses("Save")
        ada.sees("has been saved.")
        expect(ada.page).to_have_title(f"{name} · Acme")


def test_a_taken_address_is_marked_at_its_field(ada: Visitor) -> None:
    ada.expected = {400}
    ada.fills(Email="ada@example.com")
    ada.presses("Save")
    expect(ada.field("Email")).to_have_accessible_error_message(
        "There is already an account with this address."
    )


def test_a_user_is_deactivated_after_a_question_and_activated_where_it_says_why(
    ada: Visitor, visit: Visit
) -> None:
    user = visit(ada.site)
    user.signs_in("grace")
    ada.presses("Deactivate")
    ada.page.keyboard.press("Escape")
    ada.has_focus_on(ada.button("Deactivate"))
    confirms(ada, "Deactivate")
    ada.sees("grace@example.com is inactive. All sessions have ended.")
    above = part(ada, "Something is in the way of a sign-in")
    expect(above).to_contain_text("The account is deactivated.")
    expect(part(ada, "Sessions")).to_contain_text("Signed in nowhere")
    ada.has_focus_on(ada.page.get_by_role("heading", name="Account", exact=True))
    confirms(ada, "Activate")
    ada.sees("grace@example.com is active and can sign in.")
    expect(above).to_have_count(0)


def test_a_locked_user_is_unlocked(ada: Visitor, grace: User) -> None:
    for _ in range(10):
        ada.site.client().login(grace.email, "wrong")
    ada.page.reload()
    ada.sees("Too many wrong passwords")
    confirms(ada, "Unlock")
    ada.sees("grace@example.com is unlocked.")
    ada.misses("Too many wrong passwords")
    assert ada.site.client().login(grace.email, PASSWORD).status == 200


def test_a_reset_email_is_sent_after_a_question_that_is_not_red(ada: Visitor) -> None:
    ada.presses("Send a reset email")
    expect(ada.page.locator(f"{QUESTION} .danger")).to_have_count(0)
    ada.presses("Cancel")
    ada.has_focus_on(ada.button("Send a reset email"))
    confirms(ada, "Send a reset email")
    ada.sees("A reset email is on its way to grace@example.com.")
    ada.has_focus_on(ada.button("Send a reset email"))
    expect(part(ada, "History")).to_contain_text("email-reset")
    ada.opens_email("Set a new password")
    ada.sees("New password, once more")


def test_the_limit_on_emails_is_told(ada: Visitor) -> None:
    ada.expected = {429}
    for _ in range(3):
        confirms(ada, "Send a reset email")
        ada.sees("A reset email is on its way")
    confirms(ada, "Send a reset email")
    ada.sees("grace@example.com got too many emails of this kind. Please try again later.")


def test_the_confirmation_email_is_sent_again(site: Site, visit: Visit) -> None:
    eve = site.service.registration.register("eve@example.com", "Eve", PASSWORD, by=OPERATOR)
    ada = visit(site)
    ada.signs_in(at=f"/login?redirect=/users/{eve.id}")
    ada.sees("The email address was never confirmed.")
    confirms(ada, "Send the confirmation email again")
    ada.sees("A confirmation email is on its way to eve@example.com.")


def test_one_session_and_then_all_are_ended(ada: Visitor, grace: User, visit: Visit) -> None:
    service = ada.site.service
    phone = visit(ada.site)
    phone.signs_in("grace")
    phone.expected = {401}
    service.sessions.login(grace.email, PASSWORD, client=Client("192.0.2.9", "Firefox Windows"))
    service.sessions.create_api_token(grace.id, name="nightly", lifetime=None, by=OPERATOR)
    ada.page.reload()
    sessions, tokens = part(ada, "Sessions"), part(ada, "API tokens")
    expect(tokens).to_contain_text("all that its user may do")
    ada.page.get_by_role("button", name="End nightly").click()
    title = "End nightly · since Nov 20, 2026"
    expect(ada.page.locator(QUESTION).get_by_role("heading", name=title)).to_be_visible()
    ada.page.locator(QUESTION).get_by_role("button", name="End").click()
    ada.sees("It has ended.")
    expect(tokens).to_contain_text("No API tokens.")
    ada.has_focus_on(ada.page.get_by_role("heading", name="API tokens"))
    confirms(ada, "End all")
    ada.sees("All sessions and API tokens of grace@example.com have ended.")
    expect(sessions).to_contain_text("Signed in nowhere")
    phone.presses("Save")
    phone.sees("Your session has ended.")


def test_groups_are_set_by_ticking_them(ada: Visitor, grace: User) -> None:
    for name in ("staff", "press", "board"):
        ada.site.service.groups.create(name, by=OPERATOR)
    ada.page.reload()
    ada.page.get_by_label("staff").check()
    ada.page.get_by_label("board").check()
    part(ada, "Groups").get_by_role("button", name="Save").click()
    ada.sees("grace@example.com has been saved.")
    assert ada.site.service.groups.of(grace.id) == ("board", "staff")
    ada.page.get_by_label("staff").uncheck()
    part(ada, "Groups").get_by_role("button", name="Save").click()
    ada.waits(lambda: ada.site.service.groups.of(grace.id) == ("board",))
    expect(part(ada, "History")).to_contain_text("group-remove")


def test_a_page_that_is_older_than_the_account_changes_only_what_was_typed(ada: Visitor, grace: User) -> None:
    service = ada.site.service
    service.accounts.update(grace.id, role="admin", by=OPERATOR)
    ada.page.reload()
    service.accounts.update(grace.id, role="user", by=OPERATOR)
    ada.fills(Name="Grace Hopper")
    ada.presses("Save")
    ada.sees("grace@example.com has been saved.")
    user = service.accounts.get(grace.id)
    assert (user.name, user.role) == ("Grace Hopper", "user")
    expect(ada.field("Role")).to_have_value("user")
    ada.field("Role").select_option("admin")
    ada.presses("Save")
    ada.waits(lambda: service.accounts.get(grace.id).role == "admin")


def test_groups_that_were_changed_elsewhere_meanwhile_stay_so(ada: Visitor, grace: User) -> None:
    groups = ada.site.service.groups
    for name in ("staff", "press", "board"):
        groups.create(name, by=OPERATOR)
    groups.set(grace.id, ["staff", "press"], by=OPERATOR)
    ada.page.reload()
    groups.set(grace.id, ["press"], by=OPERATOR)
    ada.page.get_by_label("board").check()
    part(ada, "Groups").get_by_role("button", name="Save").click()
    ada.sees("grace@example.com has been saved.")
    assert groups.of(grace.id) == ("board", "press")
    expect(ada.page.get_by_label("staff")).not_to_be_checked()


def test_groups_that_are_ticked_and_not_saved_yet_stay_ticked_after_another_change(ada: Visitor) -> None:
    ada.site.service.groups.create("staff", by=OPERATOR)
    ada.page.reload()
    ada.page.get_by_label("staff").check()
    ada.fills(Name="Grace Hopper")
    part(ada, "Name, email and role").get_by_role("button", name="Save").click()
    expect(part(ada, "History")).to_contain_text("name: Grace Hopper")
    expect(ada.page.get_by_label("staff")).to_be_checked()


def test_a_user_is_deleted_and_the_list_says_so(ada: Visitor) -> None:
    confirms(ada, "Delete")
    ada.is_at("/users")
    ada.sees("grace@example.com has been deleted.")


def test_reload_and_back_keep_the_place(ada: Visitor, grace: User) -> None:
    for _ in range(15):
        for role in ("admin", "user"):
            ada.site.service.accounts.update(grace.id, role=role, by=OPERATOR)
    ada.page.reload()
    rows = ada.page.locator("#trail li")
    expect(rows).to_have_count(20)
    ada.follows("Show more")
    expect(rows).to_have_count(31)
    ada.is_at(f"/users/{grace.id}?sessions=10&rows=200")
    rows.last.scroll_into_view_if_needed()
    place = ada.page.evaluate("scrollY")
    assert place > 0
    ada.page.reload()
    expect(rows).to_have_count(31)
    ada.waits(lambda: ada.page.evaluate("scrollY") == place)
    ada.goes("/account")
    ada.page.go_back()
    expect(rows).to_have_count(31)
    ada.waits(lambda: ada.page.evaluate("scrollY") == place)


def test_a_user_who_was_deleted_meanwhile_is_told_of(ada: Visitor, grace: User) -> None:
    ada.expected = {404}
    ada.site.service.accounts.delete([grace.id], by=OPERATOR)
    confirms(ada, "Deactivate")
    ada.sees("This account no longer exists.")
    ada.page.reload()
    ada.sees("There is no such user")
    ada.page.get_by_role("main").get_by_role("link", name="Users").click()
    ada.is_at("/users")


def test_an_admin_whose_session_has_ended_can_sign_in_again(ada: Visitor, grace: User) -> None:
    ada.expected = {401}
    ada.context.clear_cookies()
    confirms(ada, "Deactivate")
    ada.sees("Your session has ended.")
    ada.follows("Sign in again")
    ada.page.wait_for_url(f"**/login?redirect=%2Fusers%2F{grace.id}")


def test_an_admin_who_takes_the_own_role_away_is_told_so(ada: Visitor, site: Site) -> None:
    ada.expected = {403}
    site.add("root", role="admin")
    own = site.service.accounts.find("ada@example.com")
    ada.goes(f"/users/{own.id}")
    ada.field("Role").select_option("user")
    ada.presses("Save")
    ada.sees("This page is for admins")


def test_the_page_can_be_read_without_script(site: Site, visit: Visit, grace: User) -> None:
    ada = visit(site, java_script_enabled=False)
    token = open_session(site.service, site.service.accounts.find("ada@example.com")).token
    ada.has_session(token)
    ada.goes(f"/users/{grace.id}")
    for text in ("grace@example.com", "History", "UTC"):
        ada.sees(text)


def test_an_admin_whose_session_is_not_fresh_proves_it_and_goes_on(
    ada: Visitor, grace: User, clock: FakeClock
) -> None:
    add_factors(ada.site.service, grace.id)
    ada.page.reload()
    ada.sees("Codes left: 10")
    clock.move(minutes=11)
    ada.expected = {403}
    confirms(ada, "Remove all")
    ada.fills(Your_password=PASSWORD)
    ada.presses("Confirm")
    ada.sees("grace@example.com has no second step any more.")
    expect(part(ada, "Second step of a sign-in")).to_contain_text(
        "None: no passkey and no authenticator app."
    )


def test_an_admin_without_a_password_proves_it_at_the_provider_and_goes_on(
    house: House, visit: Visit, clock: FakeClock
) -> None:
    site = house()
    grace = site.add("grace")
    add_factors(site.service, grace.id)
    ada = visit(site)
    ada.signs_in_by_provider(at="/login?redirect=/account")
    ada.sees("Where you are signed in")
    with site.service.store.write() as tx:
        tx.change_user(site.service.accounts.find("ada@example.com").id, role=Role.ADMIN)
    clock.move(minutes=11)
    ada.goes(f"/users/{grace.id}")
    ada.expected = {403}
    confirms(ada, "Remove all")
    ada.signs_in_by_provider()
    ada.is_at(f"/users/{grace.id}?confirmed")
    ada.page.locator(QUESTION).get_by_role("button", name="Remove all").click()
    ada.sees("grace@example.com has no second step any more.")
