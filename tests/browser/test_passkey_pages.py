"""Passkeys in Chromium, with its virtual authenticators."""

from collections.abc import Callable
from typing import Any

import pytest
from support.commands import PASSWORD
from support.fakes import FakeClock
from support.looks import looks_well
from support.virtual_authenticator import VirtualAuthenticator, without_suggestions
from support.visitors import Visitor, expect
from support.web import Site

Visit = Callable[..., Visitor]
House = Callable[..., Site]

NOTHING_CAME = "Nothing came from your device"
OPTIONS = "**/session/passkey/options"


@pytest.fixture
def site(house: House) -> Site:
    made = house("localhost")
    made.add()
    return made


@pytest.fixture
def ada(site: Site, visit: Visit) -> Visitor:
    """At /account of a site whose address is a name."""
    visitor = visit(site)
    visitor.base = site.service.settings.base_url
    visitor.signs_in(at="/login?redirect=/account")
    return visitor


def adds_passkey(visitor: Visitor, *, first: bool = True) -> None:
    visitor.presses("Add a passkey")
    if first:
        visitor.sees("Keep them where you find them without this device.")
        visitor.presses("I have kept them")
    visitor.sees("The passkey has been added.")


def signs_out(visitor: Visitor, *, at: str = "/login") -> None:
    """And comes back, to a page that suggests no passkeys."""
    without_suggestions(visitor)
    comes_back(visitor, at=at)


def comes_back(visitor: Visitor, *, at: str = "/login") -> None:
    visitor.loses_cookies("auth_token")
    visitor.goes(at)


def subjects(site: Site) -> list[str]:
    """Of the emails, the oldest first."""
    while site.service.outbox.work() is not None:
        pass
    return [str(email.subject) for email in reversed(site.service.outbox.saved_emails())]


def test_a_user_adds_a_passkey_and_signs_in_without_a_name(ada: Visitor) -> None:
    phone = VirtualAuthenticator(ada)
    adds_passkey(ada)
    ada.sees("on one device only")
    ada.sees("Codes left: 10")
    assert [one["isResidentCredential"] for one in phone.credentials] == [True]
    assert "ada" not in str(phone.credentials[0]["userHandle"])
    signs_out(ada, at="/login?redirect=/account")
    ada.presses("Sign in with a passkey")
    ada.is_at("/account")
    ada.sees("last used")


def test_a_passkey_is_chosen_in_the_suggestions_of_the_address_field(ada: Visitor) -> None:
    VirtualAuthenticator(ada)
    adds_passkey(ada)
    comes_back(ada, at="/login?redirect=/account")
    ada.is_at("/account")


def test_stay_signed_in_holds_for_a_passkey(ada: Visitor) -> None:
    VirtualAuthenticator(ada)
    adds_passkey(ada)
    signs_out(ada)
    ada.page.get_by_label("Stay signed in on this device").check()
    ada.presses("Sign in with a passkey")
    ada.is_at("/")
    cookie = ada.cookie()
    assert cookie is not None
    assert cookie["expires"] > 0


def test_a_device_has_one_passkey_for_an_account(ada: Visitor) -> None:
    VirtualAuthenticator(ada)
    adds_passkey(ada)
    ada.presses("Add a passkey")
    ada.sees("This device has a passkey for your account already.")


def test_two_authenticators_have_one_passkey_each(ada: Visitor) -> None:
    phone = VirtualAuthenticator(ada)
    adds_passkey(ada)
    key = VirtualAuthenticator(ada, transport="usb", beside=phone)
    adds_passkey(ada, first=False)
    expect(ada.page.locator("#passkeys li")).to_have_count(2)  # the note may be that of the first one
    assert (len(phone.credentials), len(key.credentials)) == (1, 1)
    phone.is_gone()
    signs_out(ada, at="/login?redirect=/account")
    ada.presses("Sign in with a passkey")
    ada.is_at("/account")


def test_a_device_that_does_not_verify_its_user_adds_nothing_and_signs_nobody_in(ada: Visitor) -> None:
    phone = VirtualAuthenticator(ada)
    phone.verifies(user=False)
    ada.presses("Add a passkey")
    ada.sees(NOTHING_CAME)
    phone.verifies(user=True)
    adds_passkey(ada)
    signs_out(ada)
    phone.verifies(user=False)
    ada.presses("Sign in with a passkey")
    ada.sees(NOTHING_CAME)
    assert ada.cookie() is None


def test_a_copied_passkey_is_refused_and_its_owner_told(ada: Visitor) -> None:
    phone = VirtualAuthenticator(ada)
    adds_passkey(ada)
    for _ in range(2):
        signs_out(ada, at="/login?redirect=/account")
        ada.presses("Sign in with a passkey")
        ada.is_at("/account")
    ada.expected = {401}
    phone.is_cloned()
    signs_out(ada)
    ada.presses("Sign in with a passkey")
    ada.sees("This passkey was refused.")
    assert ada.cookie() is None
    assert "A passkey for Acme was refused" in subjects(ada.site)


def test_a_removed_passkey_signs_nobody_in_and_the_browser_forgets_it(ada: Visitor) -> None:
    phone = VirtualAuthenticator(ada)
    adds_passkey(ada)
    (credential,) = phone.credentials
    user = ada.site.service.accounts.find("ada@example.com")
    with ada.site.service.store.write() as tx:
        tx.delete_passkeys(user.id)
    ada.expected = {401}
    signs_out(ada)
    ada.presses("Sign in with a passkey")
    ada.sees("This passkey does not belong to an account here any more.")
    assert ada.cookie() is None
    ada.waits(lambda: credential["credentialId"] not in [one["credentialId"] for one in phone.credentials])


def test_a_passkey_is_renamed_and_removed_after_it_was_used_once_more(ada: Visitor, clock: FakeClock) -> None:
    phone = VirtualAuthenticator(ada)
    adds_passkey(ada)
    ada.expected = {403}
    clock.move(minutes=11)
    ada.page.locator("[data-rename]").click()
    ada.fills(Name_of_the_passkey="My phone")
    ada.page.get_by_role("dialog").get_by_role("button", name="Save").click()
    ada.sees("Confirm that it is you")
    ada.presses("Use a passkey")
    ada.sees("My phone")
    clock.move(minutes=11)
    ada.presses("Remove: My phone")
    ada.page.get_by_role("dialog").get_by_role("button", name="Remove", exact=True).click()
    ada.sees("Confirm that it is you")
    ada.presses("Use a passkey")
    ada.sees("The passkey has been removed.")
    ada.misses("My phone")
    assert subjects(ada.site)[-2:] == [
        "Your account at Acme has a new passkey",
        "A passkey for Acme was removed",
    ]
    ada.waits(lambda: phone.credentials == [])


def test_the_page_of_a_change_that_was_not_mine_says_that_passkeys_stay(ada: Visitor, visit: Visit) -> None:
    VirtualAuthenticator(ada)
    adds_passkey(ada)
    another = "another horse battery"
    ada.fills(Current_password=PASSWORD, New_password=another, New_password__once_more=another)
    ada.presses("Change password")
    ada.sees("Your password is changed.")
    owner = visit(ada.site)
    owner.opens_email("Your password for Acme was changed")
    owner.sees("Passkeys that were there before stay.")
    owner.presses("Lock everyone out")
    owner.sees("A link to set a new one is on its way to you.")
    owner.sees("remove passkeys that are not yours")
    assert subjects(ada.site)[-1] == "Set a new password for Acme"
    signs_out(ada)
    ada.presses("Sign in with a passkey")
    ada.is_at("/")


def test_the_question_before_a_passkey_is_removed_says_whether_the_recovery_codes_end_with_it(
    ada: Visitor,
) -> None:
    end_of_codes = "your recovery codes stop working, too"
    phone = VirtualAuthenticator(ada)
    adds_passkey(ada)
    ada.page.locator("#passkeys [data-act=remove]").click()
    ada.sees(end_of_codes)
    ada.presses("Cancel")
    VirtualAuthenticator(ada, transport="usb", beside=phone)
    adds_passkey(ada, first=False)
    ada.page.locator("#passkeys [data-act=remove]").first.click()
    ada.sees("no longer signs you in")
    ada.misses(end_of_codes)


def test_a_passkey_is_the_second_step_after_a_password(ada: Visitor) -> None:
    phone = VirtualAuthenticator(ada)
    adds_passkey(ada)
    ada.expected = {401}
    signs_out(ada, at="/login?redirect=/account")
    ada.fills(Email="ada@example.com", Password=PASSWORD)
    ada.presses("Sign in")
    ada.sees("One more step")
    phone.verifies(user=False)
    ada.presses("Use a passkey")
    ada.sees(NOTHING_CAME)
    phone.verifies(user=True)
    ada.presses("Use a passkey")
    ada.is_at("/account")


def test_a_refused_passkey_is_not_called_a_code(ada: Visitor, clock: FakeClock) -> None:
    phone = VirtualAuthenticator(ada)
    adds_passkey(ada)
    signs_out(ada, at="/login?redirect=/account")
    ada.presses("Sign in with a passkey")
    ada.is_at("/account")
    ada.expected = {400, 401, 403}
    phone.is_cloned()
    clock.move(minutes=11)
    ada.presses("Make new codes")
    ada.page.get_by_role("dialog").get_by_role("button", name="Make new codes").click()
    ada.presses("Use a passkey")
    ada.sees("This passkey was refused.")
    phone.is_cloned()
    signs_out(ada)
    ada.fills(Email="ada@example.com", Password=PASSWORD)
    ada.presses("Sign in")
    ada.presses("Use a passkey")
    ada.sees("This passkey was refused.")


def test_passkeys_are_suggested_again_after_one_was_refused(ada: Visitor) -> None:
    phone = VirtualAuthenticator(ada)
    adds_passkey(ada)
    for _ in range(2):
        comes_back(ada, at="/login?redirect=/account")
        ada.is_at("/account")
    ada.expected = {401}
    phone.is_cloned()
    comes_back(ada, at="/login?redirect=/account")
    ada.is_at("/account")  # at the third suggestion, when the counter of the copy is ahead
    assert subjects(ada.site).count("A passkey for Acme was refused") == 2


def test_suggestions_that_come_late_do_not_end_what_the_button_began(ada: Visitor) -> None:
    phone = VirtualAuthenticator(ada)
    adds_passkey(ada)
    phone.answers(at_once=False)
    asked: list[Any] = []

    def holds_the_first(route: Any) -> None:
        asked.append(route)
        if len(asked) > 1:
            route.continue_()

    ada.page.route(OPTIONS, holds_the_first)
    comes_back(ada, at="/login?redirect=/account")
    ada.waits(lambda: bool(asked))
    button = ada.button("Sign in with a passkey")
    button.click()
    ada.page.wait_for_timeout(200)
    with ada.page.expect_response(OPTIONS):
        asked[0].continue_()
    ada.page.wait_for_timeout(200)
    expect(button).to_have_attribute("aria-disabled", "true")  # it waits for the phone


HIDES = """isHidden => {
    Object.defineProperty(document, "hidden", { value: isHidden, configurable: true });
    document.dispatchEvent(new Event("visibilitychange"));
}"""
WAITS_A_QUARTER = "() => { const now = Date.now; Date.now = () => now() + 900000; }"


def test_passkeys_are_suggested_anew_in_a_tab_that_is_shown_again_after_a_while(
    ada: Visitor, clock: FakeClock
) -> None:
    phone = VirtualAuthenticator(ada)
    adds_passkey(ada)
    phone.answers(at_once=False)
    with ada.page.expect_response(OPTIONS):
        comes_back(ada, at="/login?redirect=/account")
    ada.page.wait_for_load_state("networkidle")
    phone.answers(at_once=True)
    ada.page.evaluate(HIDES, arg=True)
    clock.move(minutes=15)
    ada.page.evaluate(WAITS_A_QUARTER)
    ada.page.evaluate(HIDES, arg=False)
    ada.is_at("/account")


def test_tabs_that_open_at_once_ask_for_passkeys_one_after_the_other(ada: Visitor) -> None:
    """The first answer names the browser: of two first ones, one would have named it in vain."""
    held: list[Any] = []

    def holds(route: Any) -> None:
        held.append(route)

    ada.loses_cookies()
    ada.context.route(OPTIONS, holds)
    another = ada.tab()
    for page in (ada.page, another):
        page.goto(ada.base + "/login", wait_until="commit")
    ada.waits(lambda: bool(held))
    another.wait_for_timeout(500)
    assert len(held) == 1
    held[0].continue_()
    ada.waits(lambda: len(held) == 2)
    (name,) = (each["value"] for each in ada.context.cookies() if each["name"] == "auth_passkey")
    assert f"auth_passkey={name}" in held[1].request.all_headers()["cookie"]
    held[1].continue_()


def test_a_browser_without_passkeys_says_so_where_nothing_else_is_left(ada: Visitor) -> None:
    VirtualAuthenticator(ada)
    adds_passkey(ada)
    with ada.site.service.store.write() as tx:
        tx.delete_recovery_codes(ada.site.service.accounts.find("ada@example.com").id)
    ada.expected = {401}
    ada.page.add_init_script("delete window.PublicKeyCredential")
    comes_back(ada)
    ada.fills(Email="ada@example.com", Password=PASSWORD)
    ada.presses("Sign in")
    ada.sees("This browser cannot use passkeys here.")
    ada.sees("ask the people who run this site")


def test_an_address_that_is_no_name_offers_no_passkeys(house: House, visit: Visit) -> None:
    site = house()
    site.add()
    ada = visit(site)
    ada.goes("/login")
    expect(ada.page.get_by_role("button")).to_have_count(2)  # sign in, and show the password
    ada.signs_in(at="/login?redirect=/account")
    ada.sees("Authenticator app")
    expect(ada.button("Add a passkey")).to_have_count(0)


def test_a_browser_without_passkeys_offers_none(site: Site, visit: Visit) -> None:
    ada = visit(site)
    ada.base = site.service.settings.base_url
    ada.page.add_init_script("delete window.PublicKeyCredential")
    ada.goes("/login")
    expect(ada.button("Sign in")).to_be_enabled()
    expect(ada.button("Sign in with a passkey")).to_be_hidden()
    ada.signs_in(at="/login?redirect=/account")
    ada.sees("This browser cannot use passkeys here.")
    expect(ada.button("Add a passkey")).to_be_hidden()


def test_pages_with_passkeys_are_accessible_and_fit_in_light_and_dark(ada: Visitor) -> None:
    VirtualAuthenticator(ada)
    adds_passkey(ada)
    looks_well(ada.page)
    ada.page.locator("[data-rename]").click()
    looks_well(ada.page)
    ada.page.keyboard.press("Escape")
    ada.has_focus_on(ada.page.locator("[data-rename]"))
    ada.page.evaluate("document.querySelector('#proof').showModal()")
    looks_well(ada.page)
    ada.expected = {401}
    signs_out(ada)
    looks_well(ada.page)
    ada.fills(Email="ada@example.com", Password=PASSWORD)
    ada.presses("Sign in")
    ada.sees("One more step")
    looks_well(ada.page)


def test_an_admin_sees_the_passkeys_of_a_user_and_removes_them(ada: Visitor, visit: Visit) -> None:
    VirtualAuthenticator(ada)
    adds_passkey(ada)
    ada.page.locator("[data-rename]").click()
    ada.fills(Name_of_the_passkey="My phone")
    ada.page.get_by_role("dialog").get_by_role("button", name="Save").click()
    ada.sees("My phone")
    ada.site.add("root", role="admin")
    root = visit(ada.site)
    user = ada.site.service.accounts.find("ada@example.com")
    root.signs_in("root", at=f"/login?redirect=/users/{user.id}")
    region = root.page.get_by_role("region", name="Second step of a sign-in")
    expect(region).to_contain_text("My phone")
    looks_well(root.page)
    region.get_by_role("button", name="Remove all").click()
    root.page.get_by_role("dialog").get_by_role("button", name="Remove all").click()
    expect(region).to_contain_text("None: no passkey and no authenticator app.")
