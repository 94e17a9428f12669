"""Looks and accessibility: contrast, names, focus, width, size, speed, languages, brand."""

import base64
import json
import re
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from support.commands import OPERATOR, PASSWORD, create_user
from support.looks import PHONE, WIDE, looks_well, violations
from support.visitors import Visitor, expect
from support.web import Site

from usersctl.config.providers import PRESETS
from usersctl.factors import totp
from usersctl.invitations import guest
from usersctl.models import Client
from usersd.pages import layout, texts

Visit = Callable[..., Visitor]
House = Callable[..., Site]

LONG = "w" * 60
HTML = "<b>Bobby</b> <img src=x onerror=alert(1)> <script>alert(1)</script>"
LINK = "?token=x&email=ada@example.com"


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
    visitor.sees("This password does not keep all the rules yet.")


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
    visitor.page.get_by_text("Make a token …").click()
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
    visitor.context.clear_cookies()
    visitor.goes("/login")
    visitor.fills(Email="grace@example.com", Password=PASSWORD)
    visitor.presses("Sign in")
    visitor.sees("One more step")
    visitor.fills(**{"Code from your app, or a recovery code": "000000"})
    visitor.presses("Confirm")
    visitor.sees("This code is wrong, or was used already.")


def deletion(visitor: Visitor) -> None:
    visitor.signs_in("grace")
    visitor.page.get_by_text("Delete my account …").click()
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


def all_users(visitor: Visitor) -> None:
    visitor.signs_in(at="/login?redirect=/users")
    visitor.sees("Page 1 of 1")


def chosen_users(visitor: Visitor) -> None:
    visitor.site.service.groups.create("a" * 63, by=OPERATOR)
    all_users(visitor)
    visitor.page.get_by_label("Choose all on this page").check()


def new_user(visitor: Visitor) -> None:
    all_users(visitor)
    visitor.presses("New user")


def doomed_users(visitor: Visitor) -> None:
    chosen_users(visitor)
    visitor.presses("Delete …")


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
    visitor.sees("Failed sign-ins")


def trail(visitor: Visitor) -> None:
    visitor.site.service.accounts.update(1, name=f"{HTML} {LONG}", by=OPERATOR)
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


OPEN_TO_ALL = [
    "/login",
    "/logout",
    "/second-factor",
    "/register",
    "/forgot-password",
    "/dev/mail",
    "/api/users/auth/oauth/redirect",
]
BY_LINK = [
    "confirm-email",
    "accept-invite",
    "reset-password",
    "not-me",
    "confirm-new-email",
    "confirm-deletion",
    "undo-deletion",
]
FOR_ADMINS = [path for _, path in layout.FOR_ADMINS]


@pytest.mark.slow
@pytest.mark.parametrize("locale", [name for name in texts.shipped() if name != "en"])
def test_every_page_is_accessible_and_fits_in_every_language(house: House, visit: Visit, locale: str) -> None:
    site = house()
    site.add(role="admin")
    site.service.recovery.forgot("ada@example.com")
    site.service.outbox.work()
    visitor = visit(site, viewport=PHONE, reduced_motion="reduce", locale=locale)
    visitor.expected = {404}

    def look(path: str) -> None:
        visitor.goes(path)
        visitor.page.wait_for_load_state("networkidle")
        expect(visitor.page.locator("html")).to_have_attribute("lang", locale)
        assert violations(visitor.page) == [], path
        assert visitor.page.evaluate(WIDE) == 0, path

    for path in [*OPEN_TO_ALL, *(f"/{name}{LINK}" for name in BY_LINK)]:
        look(path)
    # In the language of the page, whose labels are others.
    visitor.page.request.post(
        visitor.base + "/api/users/session", data={"email": "ada@example.com", "password": PASSWORD}
    )
    for path in [*FOR_ADMINS, "/users/1", "/nowhere"]:
        look(path)


def test_a_page_is_written_from_right_to_left_for_such_a_language(
    house: House, visit: Visit, tmp_path: Path
) -> None:
    own = tmp_path / "own.json"
    own.write_text(json.dumps({"lang": "ar"}))
    site = house(locale=str(own))
    site.add(role="admin")
    visitor = visit(site, viewport=PHONE)
    visitor.signs_in(at="/login?redirect=/users")
    for path in ("/login", *FOR_ADMINS):
        visitor.goes(path)
        visitor.page.wait_for_load_state("networkidle")
        expect(visitor.page.locator("body")).to_have_css("direction", "rtl")
        assert visitor.page.evaluate(WIDE) == 0, path


# --- by keyboard ---


def tabs(visitor: Visitor, most: int = 40) -> list[str]:
    """The elements that the Tab key reaches, in order."""
    name = """() => { const e = document.activeElement;
        return e === document.body ? '' : e.getAttribute('aria-label') || e.labels?.[0]?.innerText || e.innerText || e.id }"""
    visitor.page.locator(".skip").focus()
    labels: list[str] = []
    for _ in range(most):
        now = visitor.page.evaluate(name)
        if not now:
            break
        labels.append(now)
        assert visitor.page.evaluate("getComputedStyle(document.activeElement).outlineStyle") != "none", (
            f"no focus to be seen on {now}"
        )
        visitor.page.keyboard.press("Tab")
    return labels


def test_the_login_page_is_usable_by_keyboard(house: House, visit: Visit) -> None:
    ada = visit(house())
    ada.site.add()
    ada.goes("/login")
    ada.has_focus_on(ada.field("Email"))
    assert tabs(ada) == [
        "Skip to the content", "Acme", "Email", "Password", "Show: Password", "Stay signed in on this device", "Sign in",
        "Continue with Example ID", "Forgot your password?", "Create an account",
    ]  # fmt: skip
    ada.goes("/login")
    ada.has_focus_on(ada.field("Email"))
    ada.page.keyboard.type("ada@example.com")
    ada.page.keyboard.press("Tab")
    ada.page.keyboard.type(PASSWORD)
    ada.page.keyboard.press("Tab")
    ada.page.keyboard.press("Tab")
    ada.page.keyboard.press("Space")
    ada.page.keyboard.press("Enter")
    ada.is_at("/")
    cookie = ada.cookie()
    assert cookie is not None
    assert cookie["expires"] > 0


def test_the_profile_is_usable_by_keyboard(house: House, visit: Visit) -> None:
    site = house()
    site.add()
    ada, phone = visit(site), visit(site)
    phone.signs_in()
    ada.signs_in()
    ada.fills(Email="countess@example.com")
    ada.presses("Save")
    ada.sees("Saved.")
    ada.goes("/account")
    ada.sees("Your new address")
    ada.sees("this device")
    assert tabs(ada) == [
        *("Skip to the content", "Acme", "Profile", "Sign out", "Name", "Email", "Save"),
        *("Send the email again", "Keep the old address"),
        *("Current password", "Show: Current password", "New password", "Show: New password"),
        *("New password, once more", "Show: New password, once more", "Change password"),
        *("Set up an app", "Connect: Example ID"),
        *(
            "End: Chrome · Linux · 127.0.0.1",
            "Sign out everywhere else",
            "Make a token …",
            "Delete my account …",
        ),
    ]
    ada.button("Keep the old address").press("Enter")
    ada.sees("Your address stays as it was.")
    ada.page.get_by_text("Delete my account …").press("Space")
    ada.page.keyboard.press("Tab")
    ada.has_focus_on(ada.field("Your password"))
    ada.page.keyboard.type(PASSWORD)
    ada.page.keyboard.press("Enter")
    ada.is_at("/login")
    ada.has_focus_on(ada.page.get_by_text("Your account is now inactive"))


def test_a_signed_in_user_continues_by_keyboard(house: House, visit: Visit) -> None:
    ada = visit(house())
    ada.site.add()
    ada.signs_in()
    ada.goes("/login")
    assert tabs(ada) == [
        *("Skip to the content", "Acme", "Profile", "Sign out"),
        *("Continue", "Use another account"),
    ]


def test_a_long_brand_name_is_centred(house: House, visit: Visit) -> None:
    ada = visit(house(brand="Society for the Encouragement of Long Walks and Longer Names"), viewport=PHONE)
    ada.goes("/login")
    expect(ada.page.locator(".brand")).to_have_css("text-align", "center")
    middle = "e => { const box = e.getBoundingClientRect(); return box.left + box.width / 2; }"
    assert abs(ada.page.locator(".brand").evaluate(middle) - PHONE["width"] / 2) < 1


def test_the_skip_link_leads_to_the_content(house: House, visit: Visit) -> None:
    ada = visit(house())
    ada.site.add()
    ada.signs_in()
    ada.page.keyboard.press("Tab")
    skip = ada.page.get_by_role("link", name="Skip to the content")
    expect(skip).to_be_in_viewport()
    ada.page.keyboard.press("Enter")
    ada.has_focus_on(ada.page.get_by_role("main"))


def test_users_are_managed_by_keyboard(house: House, visit: Visit) -> None:
    ada = visit(house())
    ada.site.add(role="admin")
    ada.site.add("grace")
    all_users(ada)
    reached = tabs(ada)
    assert reached[reached.index("Sign out") + 1 :] == [
        *("Search by name or email", "Show", "Role", "Invite", "New user", "Choose all on this page"),
        *("Name", "Email", "Created", "Last sign-in", "Ada", "Choose: grace@example.com", "Grace"),
    ]
    ada.button("Last sign-in").press("Enter")
    ada.is_at("/users?sort=last-login&order=desc")
    ada.has_focus_on(ada.button("Last sign-in"))
    box = ada.page.get_by_label("Choose: grace@example.com")
    box.press("Space")
    ada.sees("Chosen: 1")
    ada.has_focus_on(box)
    reached = [
        ada.page.keyboard.press("Shift+Tab") or ada.page.evaluate("document.activeElement.className")
        for _ in range(6)
    ]
    assert reached[-1] == "choose-page"
    ada.page.keyboard.press("Shift+Tab")
    ada.has_focus_on(ada.button("Delete …"))
    ada.button("End sessions").press("Enter")
    ada.has_focus_on(ada.button("Cancel"))
    ada.page.keyboard.press("Shift+Tab")
    ada.page.keyboard.press("Enter")
    ada.sees("Accounts whose sessions have ended: 0.")
    ada.has_focus_on(ada.page.get_by_label("Choose all on this page"))


def test_the_focus_stays_on_a_row_that_is_replaced_meanwhile(house: House, visit: Visit) -> None:
    ada = visit(house())
    ada.site.add(role="admin")
    ada.site.add("grace")
    all_users(ada)
    for held in (
        ada.page.get_by_label("Choose: grace@example.com"),
        ada.page.get_by_role("link", name="Grace"),
    ):
        held.focus()
        with ada.page.expect_response("**/api/users?*"):
            ada.page.evaluate("document.dispatchEvent(new CustomEvent('changed', { detail: {} }))")
        ada.has_focus_on(held)


def test_results_and_the_number_of_chosen_users_are_read_aloud(house: House, visit: Visit) -> None:
    ada = visit(house())
    ada.site.add(role="admin")
    ada.site.add("grace")
    all_users(ada)
    ada.page.get_by_label("Choose: grace@example.com").check()
    ada.fills(Search_by_name_or_email="nobody")
    ada.sees("No users found.")
    assert {status.inner_text() for status in ada.page.get_by_role("status").all()} >= {
        "Chosen: 1",
        "No users found.",
    }


# --- password managers ---


def test_password_managers_find_their_fields(house: House, visit: Visit) -> None:
    ada = visit(house())
    ada.site.add()

    def fields() -> list[str]:
        listed = "all => all.filter(e => ['email', 'password'].includes(e.type)).map(e => e.autocomplete)"
        return list(ada.page.locator("form input").evaluate_all(listed))

    for path, expected in (
        ("/login", ["username", "current-password"]),
        ("/register", ["username", "new-password"]),
        ("/forgot-password", ["username"]),
        (f"/reset-password{LINK}", ["username", "new-password", "new-password"]),
    ):
        ada.goes(path)
        assert fields() == expected, path
        if "reset" in path:
            expect(ada.page.locator(".away")).to_have_value("ada@example.com")
    ada.signs_in()
    # The question before a link to a provider, and the deletion.
    again = ["username", "current-password"] * 2
    assert fields() == ["email", "username", "current-password", "new-password", "new-password", *again]
    names = ada.page.locator("form input:not(.away)").evaluate_all("all => all.filter(e => !e.name).length")
    assert names == 0


# --- text stays text, pages stay ours ---


def test_html_in_names_and_addresses_stays_text(house: House, visit: Visit) -> None:
    site = house(brand=f"Brand {HTML}")
    ada = create_user(site.service, "ada@example.com", HTML, PASSWORD, role="admin", by=OPERATOR)
    create_user(site.service, "b&'/{{b}}@example.com", HTML, None, by=OPERATOR)
    site.service.sessions.login("ada@example.com", PASSWORD, client=Client("127.0.0.1", HTML))
    visitor = visit(site)
    visitor.page.on("dialog", lambda dialog: visitor.odd.append(f"dialog: {dialog.message}"))
    visitor.signs_in()
    expect(visitor.field("Name")).to_have_value(ada.name)
    visitor.sees(HTML)
    visitor.goes("/users")
    visitor.sees(HTML)
    visitor.page.get_by_label("Choose all on this page").check()
    visitor.presses("Delete …")
    assert visitor.page.locator("main img, main script, main b").count() == 0


def test_no_page_can_be_framed_in_a_browser(house: House, visit: Visit) -> None:
    site = house()
    visitor = visit(site)
    frame = f'<iframe src="{visitor.base}/login"></iframe>'
    visitor.page.route("**/elsewhere", lambda route: route.fulfill(content_type="text/html", body=frame))
    visitor.goes("/elsewhere")
    visitor.waits(lambda: any("frame-ancestors 'none'" in line for line in visitor.odd))
    assert visitor.page.frames[1].get_by_label("Password").count() == 0
    visitor.odd.clear()


def test_all_files_come_from_the_site_and_a_page_is_small(house: House, visit: Visit) -> None:
    site = house()
    site.add(role="admin")
    sizes: dict[str, int] = {}  # of each address
    loaded: set[str] = set()  # by the page, also from the browser's cache
    ada = visit(site)

    def weigh(response: Any) -> None:
        assert response.url.startswith((ada.base, "data:")), response.url
        if response.url.startswith("http") and response.status == 200:
            sizes[response.url] = int(response.headers["content-length"])
            loaded.add(response.url)

    ada.page.on("response", weigh)
    ada.signs_in()
    ada.page.wait_for_load_state("networkidle")
    weights = {}
    for path in ("/users", "/", "/register", f"/reset-password{LINK}", "/login"):
        loaded.clear()
        ada.goes(path)
        ada.page.wait_for_load_state("networkidle")
        weights[path] = sum(sizes[url] for url in loaded)
        assert len([url for url in loaded if "/assets/" in url]) == 3, loaded
    assert max(weights.values()) < 60_000, weights


def test_the_first_paint_is_quick(house: House, visit: Visit) -> None:
    ada = visit(house())
    ada.site.add(role="admin")
    ada.signs_in()
    painted = "performance.getEntriesByName('first-contentful-paint')[0]?.startTime || 0"
    for path in ("/login", "/users", "/"):
        times: list[float] = []
        # The best of several: other work of this machine must not count.
        while len(times) < 20 and min(times, default=100) >= 100:
            ada.goes(path)
            ada.waits(lambda: ada.page.evaluate(painted) > 0)
            times.append(ada.page.evaluate(painted))
        assert min(times) < 100, (path, times)


# --- an operator's own ---

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


def test_the_pages_speak_german(house: House, visit: Visit) -> None:
    site = house(locale="de", require_numbers=True)
    site.add(role="admin", password="correct horse 7")
    site.add("grace", password=None)
    ada = visit(site, locale="de-DE")
    ada.expected = {400, 401, 429}
    ada.goes("/login")
    ada.fills(**{"E-Mail-Adresse": "ada@example.com"}, Passwort="falsch")
    ada.presses("Anmelden")
    ada.sees("E-Mail-Adresse oder Passwort stimmt nicht.")
    ada.fills(Passwort="correct horse 7")
    ada.presses("Anmelden")
    ada.sees("Wo Sie angemeldet sind")
    ada.fills(Aktuelles_Passwort="x", Neues_Passwort="zu kurz", Neues_Passwort_wiederholen="zu kurz")
    ada.presses("Passwort ändern")
    ada.sees("Dieses Passwort erfüllt noch nicht alle Regeln.")
    ada.follows("Benutzer")
    ada.sees("Seite 1 von 1 · insgesamt 2")
    ada.page.get_by_label("Auswählen: grace@example.com").check()
    ada.presses("Deaktivieren")
    ada.page.get_by_role("dialog").get_by_role("button", name="Deaktivieren").click()
    ada.sees("Deaktiviert: 1. Alle ihre Sitzungen wurden beendet.")
    assert violations(ada.page) == []
    for _ in range(10):
        site.client().login("ada@example.com", "wrong")
    ada.presses("Abmelden")
    ada.is_at("/login")
    ada.context.clear_cookies()  # strangers' failed logins keep no known device out
    ada.fills(**{"E-Mail-Adresse": "ada@example.com"}, Passwort="falsch")
    ada.presses("Anmelden")
    ada.sees("Bitte warten Sie 30 Sekunden")


def test_dates_are_written_as_the_language_of_the_page_does(house: House, visit: Visit) -> None:
    site = house()
    site.add()
    site.service.recovery.forgot("ada@example.com")
    site.service.outbox.work()
    written = {"de-DE": r"^\d\d\.\d\d\.\d{4}, \d\d:\d\d$", "fr-CA": r"^\d{1,2} .+ \d{4}, \d\d\W?h \d\d$",
               "es-ES": r"^\d{1,2} \w+ \d{4}, \d{1,2}:\d\d$", "en-US": r"^\w+ \d{1,2}, \d{4}, \d{1,2}:\d\d\W[AP]M$"}  # fmt: skip
    for locale, pattern in written.items():
        visitor = visit(site, locale=locale)
        visitor.goes("/dev/mail")
        expect(visitor.page.locator("time")).to_have_text(re.compile(pattern))
        expect(visitor.page.locator("html")).to_have_attribute("lang", locale[:2])
    silent = visit(site, java_script_enabled=False)
    silent.goes("/dev/mail")
    expect(silent.page.locator("time")).to_have_text(re.compile(r"^\d{4}-\d\d-\d\d \d\d:\d\d UTC$"))


def test_a_partial_catalogue_is_completed_in_english(house: House, visit: Visit, tmp_path: Path) -> None:
    file = tmp_path / "nds.json"
    file.write_text(
        json.dumps({"lang": "nds", "login.title": "Moin", "messages": {"Invalid email or password": "Nee"}})
    )
    visitor = visit(house(locale=str(file)))
    visitor.expected = {401}
    visitor.goes("/login")
    expect(visitor.page.get_by_role("heading")).to_have_text("Moin")
    visitor.fills(Email="ada@example.com", Password="x")
    visitor.presses("Sign in")
    visitor.sees("Nee")
