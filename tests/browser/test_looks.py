"""Looks and accessibility of every page: contrast, names, width, brand."""

import base64
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from support.commands import OPERATOR, PASSWORD, create_user
from support.looks import HTML, LINK, PHONE, WIDE, looks_well, violations
from support.visitors import Visitor, all_users, expect
from support.web import Site

from usersctl.config.providers import PRESETS
from usersctl.factors import totp
from usersctl.invitations import guest
from usersctl.mail.writer import Writer
from usersctl.models import Client

Visit = Callable[..., Visitor]
House = Callable[..., Site]

LONG = "w" * 60
NARROW = {"width": 320, "height": 640}  # also a desk at a zoom of 400 %


def at(path: str) -> Callable[[Visitor], None]:
    return lambda visitor: visitor.goes(path)


def wrong_login(visitor: Visitor) -> None:
    visitor.goes("/login?error=account_inactive")
    visitor.fills(Email="ada@example.com", Password="wrong")
    visitor.presses("Sign in")
    visitor.sees("Email or password is wrong.")


def weak_registration(visitor: Visitor) -> None:
    visitor.goes("/register")
    visitor.fills(Name=LONG, Email=f"{LONG}@{LONG}.example", Password="Password7")
    visitor.presses("Create account")
    visitor.sees("This password does not meet all the rules yet.")


def empty_registration(visitor: Visitor) -> None:
    visitor.goes("/register")
    visitor.presses("Create account")
    visitor.sees("Please fill in this field.")


def invited(visitor: Visitor) -> None:
    guests = [guest(f"{LONG}@{LONG}.example", HTML)]
    visitor.site.service.invitations.invite(guests, timedelta(days=7), by=OPERATOR)
    visitor.opens_email("You are invited")
    visitor.sees("You are invited")


def inviting(visitor: Visitor) -> None:
    visitor.site.service.groups.create("g" * 63, by=OPERATOR)
    visitor.signs_in(at="/login?redirect=/users")
    visitor.presses("Invite")
    visitor.presses("Send the invitation")
    visitor.sees("Please fill in this field.")


def signing_out(visitor: Visitor) -> None:
    visitor.signs_in()
    visitor.goes("/logout")
    visitor.sees("Stay signed in")


def old_confirmation(visitor: Visitor) -> None:
    visitor.goes(f"/confirm-email{LINK}")
    visitor.presses("Confirm")
    visitor.sees("This link has already been used")


def old_notice(visitor: Visitor) -> None:
    visitor.goes(f"/not-me{LINK}")
    visitor.presses("Lock everyone out")
    visitor.sees("If you are still worried")


def old_reset(visitor: Visitor) -> None:
    visitor.goes(f"/reset-password{LINK}")
    visitor.fills(New_password=PASSWORD, New_password__once_more=PASSWORD)
    visitor.presses("Set password")
    visitor.sees("This link has already been used")


def registered(visitor: Visitor) -> None:
    visitor.goes("/register")
    visitor.fills(Name=LONG, Email=f"x{LONG}@example.com", Password=PASSWORD)
    visitor.presses("Create account")
    visitor.sees("Your account has been created.")


def signed_in_already(visitor: Visitor) -> None:
    visitor.signs_in()
    visitor.goes("/login?redirect=/users&error=oauth_failed")
    visitor.sees("You are signed in")


def first_admin(visitor: Visitor) -> None:
    visitor.page.goto(visitor.site.service.first_admin.link())


def caught_letters(visitor: Visitor) -> None:
    visitor.site.service.recovery.forgot("ada@example.com")
    visitor.site.service.outbox.work()
    visitor.goes("/dev/mail")
    visitor.sees("Set a new password")


def profile(visitor: Visitor) -> None:
    visitor.signs_in()
    visitor.presses("Save")
    visitor.sees("Saved.")
    visitor.sees("this device")


def no_password(visitor: Visitor) -> None:
    visitor.goes("/login?redirect=/account")
    visitor.follows("Continue with Example ID")
    visitor.follows("Ada Lovelace")
    visitor.presses("Send the link")
    visitor.sees("A link to set a password is on its way")
    visitor.sees("this device")


def confirming(visitor: Visitor) -> None:
    visitor.signs_in("grace")
    visitor.goes("/account")
    visitor.sees("this device")
    visitor.page.evaluate("document.querySelector('#proof').showModal()")


def filling_in_a_token(visitor: Visitor, ranges: str) -> None:
    visitor.signs_in(at="/login?redirect=/account")
    visitor.page.get_by_text("Make a token…").click()
    visitor.fills(**{"What it is for": LONG, "Addresses or ranges it works from (empty: anywhere)": ranges})
    visitor.presses("Make token")


def token_refused(visitor: Visitor) -> None:
    filling_in_a_token(visitor, "10.0.0.1/8")
    visitor.sees("This is not an address or a range.")


def new_token(visitor: Visitor) -> None:
    filling_in_a_token(visitor, "2001:db8:1234:5678:9abc::/80 192.0.2.0/24")
    visitor.sees("Copy it now")


def tokens(visitor: Visitor) -> None:
    new_token(visitor)
    visitor.presses("I have kept it")
    visitor.sees("The token has been made.")


def setting_up_an_app(visitor: Visitor) -> str:
    visitor.signs_in("grace")
    visitor.presses("Set up an app")
    visitor.sees("Scan this with the app on your phone.")
    visitor.fills(Code_that_the_app_shows_now="000000")
    visitor.presses("Confirm")
    visitor.sees("This code is wrong, or was used already.")
    return str(visitor.page.locator("#totp-key").inner_text())


def now(site: Site) -> datetime:
    with site.service.store.read() as tx:
        return tx.now


def recovery_codes(visitor: Visitor) -> None:
    secret = base64.b32decode(setting_up_an_app(visitor).replace(" ", ""))
    code = totp.code_at(secret, totp.step_at(now(visitor.site)))
    visitor.fills(Code_that_the_app_shows_now=code)
    visitor.presses("Confirm")
    visitor.sees("Keep them where you find them")


def with_a_second_factor(visitor: Visitor) -> None:
    recovery_codes(visitor)
    visitor.presses("I have kept them")
    visitor.sees("Codes left: 10")


def confirming_with_a_code(visitor: Visitor) -> None:
    with_a_second_factor(visitor)
    visitor.page.evaluate("document.querySelector('#proof').showModal()")


def second_step(visitor: Visitor) -> None:
    with_a_second_factor(visitor)
    visitor.loses_cookies()
    visitor.goes("/login")
    visitor.fills(Email="grace@example.com", Password=PASSWORD)
    visitor.presses("Sign in")
    visitor.sees("One more step")
    visitor.fills(**{"Code from your app, or a recovery code": "000000"})
    visitor.presses("Confirm")
    visitor.sees("This code is wrong, or was used already.")


def deletion(visitor: Visitor) -> None:
    visitor.signs_in("grace")
    visitor.page.get_by_text("Delete my account…").click()
    visitor.fills(Your_password="wrong")
    visitor.presses("Delete my account")
    visitor.sees("Incorrect password.")


def deleted(visitor: Visitor) -> None:
    deletion(visitor)
    visitor.fills(Your_password=PASSWORD)
    visitor.presses("Delete my account")
    visitor.sees("will be deleted")


def old_undo(visitor: Visitor) -> None:
    visitor.goes(f"/undo-deletion{LINK}")
    visitor.presses("Undo the deletion")
    visitor.sees("your account has been deleted")


def ended_session(visitor: Visitor) -> None:
    visitor.signs_in()
    visitor.context.clear_cookies()
    visitor.presses("Save")
    visitor.sees("Your session has ended.")


def chosen_users(visitor: Visitor) -> None:
    visitor.site.service.groups.create("a" * 63, by=OPERATOR)
    all_users(visitor)
    visitor.page.get_by_label("Choose all on this page").check()


def new_user(visitor: Visitor) -> None:
    all_users(visitor)
    visitor.presses("New user")


def doomed_users(visitor: Visitor) -> None:
    chosen_users(visitor)
    visitor.presses("Delete…")


def page_of_one(visitor: Visitor) -> None:
    service = visitor.site.service
    grace = service.accounts.find("grace@example.com")
    service.sessions.login(grace.email, PASSWORD, client=Client("192.0.2.1", f"{HTML} {LONG}"))
    service.sessions.create_api_token(grace.id, name=LONG, lifetime=None, by=OPERATOR)
    service.groups.create("a" * 63, by=OPERATOR)
    visitor.signs_in(at=f"/login?redirect=/users/{grace.id}")
    visitor.sees("History")


def question_about_one(visitor: Visitor) -> None:
    page_of_one(visitor)
    visitor.presses("Deactivate")


def page_of_a_long_name(visitor: Visitor) -> None:
    account = visitor.site.service.accounts.find(f"{LONG}@example.com")
    visitor.signs_in(at=f"/login?redirect=/users/{account.id}")
    visitor.sees("The account has no password")


def no_such_user(visitor: Visitor) -> None:
    visitor.expected = {404}
    visitor.signs_in(at="/login?redirect=/users/999")
    visitor.sees("There is no such user")


def overview(visitor: Visitor) -> None:
    visitor.site.client().login("grace@example.com", PASSWORD)
    visitor.signs_in(at="/login?redirect=/overview")
    visitor.page.locator("summary").click()
    visitor.sees("Failed logins")


def trail(visitor: Visitor) -> None:
    service = visitor.site.service
    service.accounts.update(1, name=f"{HTML} {LONG}", by=OPERATOR)
    visitor.site.signed_in(service.accounts.find("ada@example.com")).patch("/api/users/me", {"name": LONG})
    visitor.signs_in(at="/login?redirect=/audit")
    visitor.sees("Is the trail whole?")


def wrong_filter(visitor: Visitor) -> None:
    trail(visitor)
    visitor.goes("/audit?user=ada")
    visitor.sees("For the user, enter an id or an email address.")


def groups(visitor: Visitor) -> None:
    for name in ("staff", "w" * 63):
        visitor.site.service.groups.create(name, by=OPERATOR)
    visitor.signs_in(at="/login?redirect=/users/groups")
    visitor.fills(Name_of_the_group="Staff")
    visitor.presses("Create group")
    visitor.sees("Use a-z, 0-9 and")


def forbidden(visitor: Visitor) -> None:
    visitor.signs_in("grace", at="/login?redirect=/users")
    visitor.sees("This page is for admins")


def interface(visitor: Visitor) -> None:
    visitor.goes("/api/users/docs")
    for operation in ("changePassword", "verify", "getUser"):
        visitor.page.locator(f"#{operation} > summary").click()
    visitor.sees("newPasswordConfirmation")


SIGHTS: dict[str, Callable[[Visitor], object]] = {
    "login": at("/login"),
    "login, refused": wrong_login,
    "login, signed in": signed_in_already,
    "register": at("/register"),
    "register, refused": weak_registration,
    "register, empty": empty_registration,
    "registered": registered,
    "confirm": at(f"/confirm-email{LINK}"),
    "confirm, refused": old_confirmation,
    "invited": invited,
    "invitation, dead": at(f"/accept-invite{LINK}"),
    "invitation, no link": at("/accept-invite"),
    "inviting": inviting,
    "forgot": at("/forgot-password"),
    "reset": at(f"/reset-password{LINK}"),
    "reset, refused": old_reset,
    "not me": at(f"/not-me{LINK}"),
    "not me, refused": old_notice,
    "not me, no link": at("/not-me"),
    "sign out": signing_out,
    "signed out": at("/logout"),
    "set-up": first_admin,
    "set-up, refused": at("/setup?token=x"),
    "set-up, over": at("/setup?token=x"),
    "letters": caught_letters,
    "provider": at("/api/users/auth/oauth/redirect"),
    "profile": profile,
    "profile, no password": no_password,
    "profile, confirming": confirming,
    "profile, token refused": token_refused,
    "profile, new token": new_token,
    "profile, tokens": tokens,
    "profile, setting up an app": setting_up_an_app,
    "profile, recovery codes": recovery_codes,
    "profile, second factor": with_a_second_factor,
    "profile, confirming with a code": confirming_with_a_code,
    "second step": second_step,
    "second step, over": at("/second-factor"),
    "sign-in, providers": at("/login"),
    "register, providers": at("/register"),
    "profile, deletion": deletion,
    "deleted": deleted,
    "deletion, to confirm": at(f"/confirm-deletion{LINK}"),
    "deletion, to undo": at(f"/undo-deletion{LINK}"),
    "deletion, too late": old_undo,
    "session, ended": ended_session,
    "users": all_users,
    "users, chosen": chosen_users,
    "user, new": new_user,
    "users, doomed": doomed_users,
    "page of one": page_of_one,
    "page of one, question": question_about_one,
    "page of one, long": page_of_a_long_name,
    "page of one, unknown": no_such_user,
    "groups": groups,
    "overview": overview,
    "trail": trail,
    "trail, wrong filter": wrong_filter,
    "forbidden": forbidden,
    "interface": interface,
}


# Pages where there are more providers than one.
WITH_PROVIDERS = {"profile", "profile, confirming", "sign-in, providers", "register, providers"}


@pytest.mark.parametrize("sight", SIGHTS)
def test_every_page_is_accessible_and_fits_in_light_and_dark(house: House, visit: Visit, sight: str) -> None:
    others = tuple(PRESETS) * (sight in WITH_PROVIDERS)
    site = house(require_special_chars=sight == "register, refused", others=others)
    for name, title in ((LONG, "W" * 150), ("bobby", HTML), ("zoe", "Zoë")):
        create_user(site.service, f"{name}@example.com", title, None, by=OPERATOR)
    if sight not in ("register, refused", "set-up", "set-up, refused"):
        site.add(role="admin", password=None if sight == "profile, no password" else PASSWORD)
        site.add("grace")
    visitor = visit(site, viewport=PHONE, reduced_motion="reduce")
    visitor.expected = {400, 401, 403}
    SIGHTS[sight](visitor)
    looks_well(visitor.page)


# At a zoom of 400 %, and with letters of twice the size.
@pytest.mark.parametrize(("width", "letters"), [(320, 16), (375, 32)])
def test_the_pages_of_the_interface_fit_on_small_screens_and_with_large_letters(
    house: House, visit: Visit, width: int, letters: int
) -> None:
    visitor = visit(house(), viewport={"width": width, "height": 640})
    sizes = {"fontSizes": {"standard": letters}}
    visitor.context.new_cdp_session(visitor.page).send("Page.setFontSizes", sizes)
    visitor.goes("/api/users/docs")
    expect(visitor.page.locator("body")).to_have_css("font-size", f"{letters}px")
    for part in visitor.page.locator("details").all():
        part.evaluate("part => part.open = true")
    assert visitor.page.evaluate(WIDE) == 0
    expect(visitor.page.get_by_role("group", name="An example of the body").first).to_be_visible()


def test_a_refusal_has_a_border_where_the_colours_are_those_of_the_visitor(
    house: House, visit: Visit
) -> None:
    visitor = visit(house(), forced_colors="active")
    visitor.expected = {401}
    visitor.site.add()
    wrong_login(visitor)
    note = visitor.page.locator(".refused:visible")
    expect(note).to_have_css("border-top-width", "1px")
    expect(note).to_have_css("border-top-color", "rgb(0, 0, 0)")


@pytest.mark.parametrize("kind", ["approve-new-email", "email-kept", "test"])
def test_an_email_with_a_long_address_fits_on_a_phone(house: House, visit: Visit, kind: str) -> None:
    site = house()
    address = "maximiliane.musterfrau@zweigstelle.verwaltung.example.com"
    letter = Writer(site.service.settings).write(
        kind, address, link="https://example.com/", new_email=address, message_id="1", date=now(site)
    )
    part = letter.get_body(("html",))
    assert part is not None
    visitor = visit(site, viewport=NARROW)
    visitor.page.set_content(part.get_content())
    visitor.sees(address)
    assert visitor.page.evaluate(WIDE) == 0
    assert visitor.page.locator("p").last.bounding_box()["width"] >= 0.8 * NARROW["width"]


# --- the colours, logo and name of an operator ---

LOGO = '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 64 32"><style>.a{fill:#d00}</style><rect class="a" width="64" height="32"/></svg>'


@pytest.mark.parametrize("accent", ["#ffcc00", "#0b3d91", "#808080"])
def test_text_on_any_accent_is_readable(house: House, visit: Visit, tmp_path: Path, accent: str) -> None:
    logo, own = tmp_path / "logo.svg", tmp_path / "own.css"
    logo.write_text(LOGO)
    own.write_text("h1 { letter-spacing: 3px; }")
    site = house(accent=accent, logo=logo, stylesheet=own, brand="Schiffe")
    site.add(role="admin")
    visitor = visit(site)
    visitor.goes("/login")
    expect(visitor.page.get_by_role("banner")).to_have_text("Schiffe")
    expect(visitor.page.get_by_role("heading")).to_have_css("letter-spacing", "3px")
    assert visitor.page.locator(".brand img").evaluate("image => image.complete && image.naturalWidth") > 0
    all_users(visitor)
    for scheme in ("light", "dark"):
        visitor.page.emulate_media(color_scheme=scheme)
        assert violations(visitor.page) == [], scheme


def test_a_long_brand_name_is_centred(house: House, visit: Visit) -> None:
    ada = visit(house(brand="Society for the Encouragement of Long Walks and Longer Names"), viewport=PHONE)
    ada.goes("/login")
    expect(ada.page.locator(".brand")).to_have_css("text-align", "center")
    middle = "e => { const box = e.getBoundingClientRect(); return box.left + box.width / 2; }"
    assert abs(ada.page.locator(".brand").evaluate(middle) - PHONE["width"] / 2) < 1
