"""The second step of a sign-in, and its set-up, as people do it: an authenticator app and recovery codes."""

import base64
import re
from collections.abc import Callable

import pytest
from support.commands import PASSWORD
from support.fakes import FakeClock
from support.visitors import Visitor, expect
from support.web import Site

from usersctl.factors import totp

Visit = Callable[..., Visitor]
House = Callable[..., Site]

CODE = "Code from your app, or a recovery code"


class App:
    """An authenticator app on a phone, which takes the key that the page shows."""

    def __init__(self, key: str, clock: FakeClock) -> None:
        self.clock = clock
        key = key.replace(" ", "")
        self.secret = base64.b32decode(key + "=" * (-len(key) % 8))

    def code(self) -> str:
        """The next one: the step before is over."""
        self.clock.move(seconds=30)
        return totp.code_at(self.secret, totp.step_at(self.clock()))


@pytest.fixture
def site(house: House) -> Site:
    made = house()
    made.add()
    return made


def enrols(visitor: Visitor, clock: FakeClock) -> tuple[App, list[str]]:
    """Sets up an app at /account, and keeps the recovery codes."""
    visitor.presses("Set up an app")
    visitor.has_focus_on(visitor.field("Code that the app shows now"))
    app = App(visitor.page.locator("#totp-key").inner_text(), clock)
    visitor.fills(Code_that_the_app_shows_now=app.code())
    visitor.page.keyboard.press("Enter")
    return app, keeps_codes(visitor)


def keeps_codes(visitor: Visitor) -> list[str]:
    visitor.sees("Keep them where you find them without this device.")
    codes: list[str] = visitor.page.locator("#codes-list code").all_inner_texts()
    with visitor.page.expect_navigation():
        visitor.presses("I have kept them")
    return codes


def signs_in_again(visitor: Visitor, *, at: str = "/login") -> None:
    """As far as the second step."""
    visitor.loses_cookies("auth_token")
    visitor.goes(at)
    visitor.fills(Email="ada@example.com", Password=PASSWORD)
    visitor.presses("Sign in")
    visitor.sees("One more step")


def test_a_user_sets_up_an_app_and_signs_in_with_its_code(site: Site, visit: Visit, clock: FakeClock) -> None:
    ada = visit(site)
    ada.expected = {400, 401}
    ada.signs_in(at="/login?redirect=/account")
    ada.presses("Set up an app")
    expect(ada.page.locator("#totp-qr svg")).to_be_visible()
    link = str(ada.page.get_by_role("link", name="Open it in an app on this device").get_attribute("href"))
    assert link.startswith("otpauth://totp/")
    ada.fills(Code_that_the_app_shows_now="000000")
    ada.presses("Confirm")
    ada.sees("This code is wrong, or was used already.")
    app = App(ada.page.locator("#totp-key").inner_text(), clock)
    ada.fills(Code_that_the_app_shows_now=app.code())
    ada.presses("Confirm")
    codes = keeps_codes(ada)
    assert len(set(codes)) == 10
    ada.sees("Your authenticator app is set up.")
    ada.sees("Codes left: 10")
    signs_in_again(ada, at="/login?redirect=/account")
    assert ada.page.url.endswith("/second-factor?redirect=%2Faccount")
    ada.has_focus_on(ada.field(CODE))
    ada.fills(**{CODE: "12 34 56"})
    ada.presses("Confirm")
    ada.sees("This code is wrong, or was used already.")
    code = app.code()
    ada.fills(**{CODE: f"{code[:3]} {code[3:]}"})
    ada.page.keyboard.press("Enter")
    ada.is_at("/account")
    ada.sees("Set up since")


def test_the_same_field_takes_a_recovery_code(site: Site, visit: Visit, clock: FakeClock) -> None:
    ada = visit(site)
    ada.expected = {401}
    ada.signs_in(at="/login?redirect=/account")
    _, codes = enrols(ada, clock)
    for number, code in enumerate(codes[:8]):
        signs_in_again(ada, at="/login?redirect=/account")
        ada.fills(**{CODE: code.upper().replace("-", " ") if number else code})
        ada.presses("Confirm")
        ada.is_at("/account")
        ada.sees(f"Codes left: {9 - number}")
    ada.sees("Make new codes before you run out of them.")
    signs_in_again(ada)
    ada.fills(**{CODE: codes[0]})
    ada.presses("Confirm")
    ada.sees("This code is wrong, or was used already.")


def test_recovery_codes_are_copied_downloaded_and_made_anew(
    site: Site, visit: Visit, clock: FakeClock
) -> None:
    ada = visit(site, permissions=["clipboard-read", "clipboard-write"], accept_downloads=True)
    ada.signs_in(at="/login?redirect=/account")
    _, codes = enrols(ada, clock)
    ada.sees("Codes left: 10")
    ada.presses("Make new codes")
    ada.page.get_by_role("dialog").get_by_role("button", name="Make new codes").click()
    ada.sees("Keep them where you find them")
    fresh = ada.page.locator("#codes-list code").all_inner_texts()
    assert not set(fresh) & set(codes)
    for _ in range(3):
        ada.page.keyboard.press("Escape")  # too easily pressed for what is shown once
    ada.sees("Keep them where you find them")
    beside = ada.page.get_by_role("link", name="Download")
    place = beside.bounding_box()
    ada.presses("Copy")
    ada.sees("Copied")
    expect(ada.button("Copied")).to_have_attribute("aria-live", "polite")  # read aloud
    assert beside.bounding_box() == place  # no button jumps
    assert ada.page.evaluate("navigator.clipboard.readText()").split() == fresh
    with ada.page.expect_download() as download:
        ada.follows("Download")
    assert download.value.path().read_text().split() == fresh
    ada.page.evaluate("window.print = () => { document.title = 'printed' }")
    ada.presses("Print")
    expect(ada.page).to_have_title("printed")
    ada.page.emulate_media(media="print")
    expect(ada.page.locator("#codes-list")).to_be_visible()
    expect(ada.page.get_by_role("navigation")).to_be_hidden()


def test_recovery_codes_are_printed_once_and_all_of_them(site: Site, visit: Visit, clock: FakeClock) -> None:
    ada = visit(site)
    ada.signs_in(at="/login?redirect=/account")
    enrols(ada, clock)
    ada.page.set_viewport_size({"width": 320, "height": 480})  # where the list is scrolled
    ada.presses("Make new codes")
    ada.page.get_by_role("dialog").get_by_role("button", name="Make new codes").click()
    ada.sees("Keep them where you find them")
    assert len(re.findall(rb"/Type */Page\b", ada.page.pdf(format="A4"))) == 1
    ada.page.emulate_media(media="print")
    scrolled = "dialog => dialog.scrollHeight > dialog.clientHeight"
    assert not ada.page.locator("#codes").evaluate(scrolled)


def test_a_device_is_not_asked_again_for_thirty_days(site: Site, visit: Visit, clock: FakeClock) -> None:
    ada = visit(site)
    ada.expected = {401}
    ada.signs_in(at="/login?redirect=/account")
    app, _ = enrols(ada, clock)
    signs_in_again(ada)
    ada.page.get_by_label("Do not ask again on this device for 30 days").check()
    ada.fills(**{CODE: app.code()})
    ada.presses("Confirm")
    ada.is_at("/")
    clock.move(days=29)
    ada.loses_cookies("auth_token")
    ada.signs_in(at="/login?redirect=/account")
    ada.is_at("/account")
    clock.move(days=2)
    signs_in_again(ada)


def test_five_wrong_codes_lead_back_to_the_sign_in(site: Site, visit: Visit, clock: FakeClock) -> None:
    ada = visit(site)
    ada.expected = {401}
    ada.signs_in(at="/login?redirect=/account")
    enrols(ada, clock)
    signs_in_again(ada, at="/login?redirect=/account")
    for _ in range(5):
        ada.fills(**{CODE: "000000"})
        with ada.page.expect_response("**/second-factor"):
            ada.presses("Confirm")
    ada.fills(**{CODE: "000000"})
    ada.presses("Confirm")
    ada.is_at("/login?redirect=%2Faccount")
    ada.sees("This sign-in has ended. Please start again.")


def test_a_page_of_a_sign_in_that_has_ended_leads_back(site: Site, visit: Visit) -> None:
    ada = visit(site)
    ada.goes("/second-factor?redirect=/account")
    ada.sees("This sign-in has ended. Please start again.")
    ada.page.get_by_role("main").get_by_role("link", name="Sign in").click()
    ada.is_at("/login?redirect=%2Faccount")


def test_a_change_goes_on_after_a_code(site: Site, visit: Visit, clock: FakeClock) -> None:
    ada = visit(site)
    ada.expected = {400, 403}
    ada.signs_in(at="/login?redirect=/account")
    app, _ = enrols(ada, clock)
    ada.sees("Your authenticator app is set up.")
    clock.move(minutes=11)
    ada.presses("Remove: Authenticator app")
    ada.sees("It is your last passkey or app, so your recovery codes stop working, too.")
    ada.page.get_by_role("dialog").get_by_role("button", name="Remove", exact=True).click()
    ada.sees("Confirm that it is you")
    ada.has_focus_on(ada.field(CODE))
    ada.fills(**{CODE: "000000"})
    ada.presses("Confirm")
    ada.sees("This code is wrong, or was used already.")
    ada.fills(**{CODE: app.code()})
    ada.presses("Confirm")
    ada.sees("The authenticator app has been removed.")
    expect(ada.button("Set up an app")).to_be_visible()
    ada.misses("Codes left")


def test_an_end_of_the_session_is_seen_while_a_proof_stands_above_another_dialog(
    site: Site, visit: Visit, clock: FakeClock
) -> None:
    ada = visit(site)
    ada.signs_in(at="/login?redirect=/account")
    ada.presses("Set up an app")
    ada.fills(Code_that_the_app_shows_now="123456")
    clock.move(minutes=11)  # to find an app took long
    ada.expected = {401, 403}
    ada.page.keyboard.press("Enter")
    ada.sees("Before this is done, enter your password once more.")
    ada.loses_cookies(name="auth_token")
    ada.fills(Your_password=PASSWORD)
    ada.page.keyboard.press("Enter")
    ada.sees("Your session has ended.")
    expect(ada.page.locator("dialog[open]")).to_have_count(0)


def test_who_must_have_a_second_factor_is_led_through_its_set_up(
    house: House, visit: Visit, clock: FakeClock
) -> None:
    site = house(second_factor="admins")
    site.add(role="admin")
    ada = visit(site)
    ada.expected = {403}
    ada.signs_in(at="/login?redirect=/users")
    expect(ada.page).to_have_url(re.compile("/account"))
    ada.sees("Before you can go on, your account needs a second step")
    ada.misses("passkey")  # there are none at an address that is no name
    ada.misses("Your details")
    enrols(ada, clock)
    ada.is_at("/users")
    ada.sees("Page 1 of 1")
    ada.goes("/account")
    ada.sees("Your details")


def test_a_new_address_is_confirmed_after_a_second_factor(site: Site, visit: Visit, clock: FakeClock) -> None:
    ada = visit(site)
    ada.expected = {401, 403}
    ada.signs_in(at="/login?redirect=/account")
    app, _ = enrols(ada, clock)
    ada.fills(Email="countess@example.com")
    ada.presses("Save")
    ada.sees("Open the link in the email to countess@example.com by")
    ada.loses_cookies()
    ada.opens_email("Confirm")
    ada.presses("Confirm")
    ada.is_at("/login?redirect=/confirm-new-email")
    ada.fills(Email="ada@example.com", Password=PASSWORD)
    ada.presses("Sign in")
    ada.fills(**{CODE: app.code()})
    ada.presses("Confirm")
    expect(ada.page.get_by_role("heading", level=1)).to_have_text("Confirm your new address")
    clock.move(minutes=11)
    ada.presses("Confirm")
    ada.sees("Confirm that it is you")
    ada.fills(**{CODE: app.code()})
    ada.page.get_by_role("dialog").get_by_role("button", name="Confirm").click()
    ada.is_at("/account")
    ada.sees("Your email address has been changed.")


def test_a_new_address_is_confirmed_with_its_accounts_password_where_another_user_with_a_factor_is_signed_in(
    site: Site, visit: Visit, clock: FakeClock
) -> None:
    site.add("bob")
    ada = visit(site)
    ada.signs_in(at="/login?redirect=/account")
    ada.fills(Email="countess@example.com")
    ada.presses("Save")
    ada.sees("Open the link in the email to countess@example.com by")
    ada.loses_cookies()
    ada.signs_in("bob", at="/login?redirect=/account")
    enrols(ada, clock)
    ada.opens_email("Confirm")
    ada.fills(**{"Password (leave it empty if your account has none)": PASSWORD})
    ada.presses("Confirm")
    ada.is_at("/account")
    ada.sees("Your email address has been changed.")


def test_an_account_with_a_second_factor_is_deleted_with_it(
    site: Site, visit: Visit, clock: FakeClock
) -> None:
    ada = visit(site)
    ada.expected = {403}
    ada.signs_in(at="/login?redirect=/account")
    app, _ = enrols(ada, clock)
    ada.sees("Your authenticator app is set up.")
    clock.move(minutes=11)
    ada.page.get_by_text("Delete my account…").click()
    ada.presses("Delete my account")
    ada.sees("Confirm that it is you")
    ada.fills(**{CODE: app.code()})
    ada.presses("Confirm")
    ada.is_at("/login")
    ada.sees("Your account is now inactive and will be deleted.")


def test_an_account_without_a_password_is_deleted_with_its_second_factor(
    house: House, visit: Visit, clock: FakeClock
) -> None:
    ada = visit(house())
    ada.signs_in_by_provider(at="/login?redirect=/account")
    enrols(ada, clock)
    ada.sees("Your authenticator app is set up.")
    ada.page.get_by_text("Delete my account…").click()
    ada.presses("Delete my account")
    ada.is_at("/login")
    ada.sees("Your account is now inactive and will be deleted.")


def test_an_enrolment_that_was_not_mine_is_taken_back(site: Site, visit: Visit, clock: FakeClock) -> None:
    ada = visit(site)
    ada.signs_in(at="/login?redirect=/account")
    enrols(ada, clock)
    owner = visit(site)
    owner.opens_email("An authenticator app for Acme was added")
    owner.sees("a new passkey or app that the email is about is removed")
    owner.presses("Lock everyone out")
    owner.is_at("/forgot-password")
    user = site.service.accounts.find("ada@example.com")
    assert user.factors == 0
    assert site.service.sessions.listed(user.id) == []


def test_an_admin_sees_and_resets_the_factors_of_a_user(site: Site, visit: Visit, clock: FakeClock) -> None:
    ada = visit(site)
    ada.expected = {401}
    ada.signs_in(at="/login?redirect=/account")
    enrols(ada, clock)
    root = visit(site)
    site.add("root", role="admin")
    user = site.service.accounts.find("ada@example.com")
    root.signs_in("root", at=f"/login?redirect=/users/{user.id}")
    region = root.page.get_by_role("region", name="Second step of a sign-in")
    expect(region).to_contain_text("Authenticator app")
    expect(region).to_contain_text("Codes left: 10")
    region.get_by_role("button", name="Remove all").click()
    root.page.get_by_role("dialog").get_by_role("button", name="Remove all").click()
    root.sees("ada@example.com has no second step any more.")
    expect(region).to_contain_text("None: no passkey and no authenticator app.")
    ada.goes("/account")
    ada.is_at("/login?redirect=/account")
    ada.signs_in()
    ada.is_at("/")


def test_a_set_up_goes_on_after_a_sign_in_at_the_provider(
    house: House, visit: Visit, clock: FakeClock
) -> None:
    site = house()
    ada = visit(site)
    ada.expected = {403}
    ada.signs_in_by_provider(at="/login?redirect=/account")
    clock.move(minutes=11)
    ada.presses("Set up an app")
    ada.sees("Confirm that it is you")
    ada.signs_in_by_provider()
    ada.is_at("/account?confirmed")
    ada.sees("Scan this with the app on your phone.")


def test_a_set_up_after_a_sign_in_at_the_provider_leads_to_the_requested_page(
    house: House, visit: Visit, clock: FakeClock
) -> None:
    site = house(second_factor="everyone")
    site.add(role="admin")
    ada = visit(site)
    ada.expected = {403}
    ada.signs_in_by_provider(at="/users?search=a%26d&role=admin")
    ada.sees("Before you can go on, your account needs a second step")
    clock.move(minutes=11)
    ada.presses("Set up an app")
    ada.sees("Confirm that it is you")
    ada.signs_in_by_provider()
    ada.has_focus_on(ada.field("Code that the app shows now"))
    app = App(ada.page.locator("#totp-key").inner_text(), clock)
    ada.fills(Code_that_the_app_shows_now=app.code())
    ada.page.keyboard.press("Enter")
    keeps_codes(ada)
    ada.is_at("/users?search=a%26d&role=admin")


def test_a_sign_in_through_a_provider_asks_for_the_second_factor_and_goes_on(
    house: House, visit: Visit, clock: FakeClock
) -> None:
    site = house()
    ada = visit(site)
    ada.signs_in_by_provider(at="/login?redirect=/account")
    app, _ = enrols(ada, clock)
    ada.sees("Your authenticator app is set up.")
    ada.loses_cookies()
    ada.signs_in_by_provider(at="/login?redirect=/account")
    ada.sees("One more step")
    ada.fills(**{CODE: app.code()})
    ada.presses("Confirm")
    ada.is_at("/account")
    ada.sees("Set up since")
