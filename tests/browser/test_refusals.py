"""Errors in a browser: each is shown once, in plain words, and with the next step."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from support.commands import OPERATOR, PASSWORD
from support.visitors import Visitor, all_users, expect, tries
from support.web import Site

from usersd.response import unavailable

Visit = Callable[..., Visitor]
House = Callable[..., Site]


def answers(visitor: Visitor, path: str, **answer: Any) -> None:
    """Answers a path in place of the server."""
    visitor.page.route(f"**{path}", lambda route: route.fulfill(**answer))


def test_a_wrong_password_is_reported_and_can_be_typed_again(ada: Visitor) -> None:
    ada.expected = {401}
    tries(ada, "wrong")
    expect(ada.page.get_by_role("alert")).to_have_text("Email or password is wrong.")
    ada.has_focus_on(ada.field("Password"))
    ada.page.keyboard.type(PASSWORD)
    ada.page.keyboard.press("Enter")
    ada.is_at("/")


def test_too_many_attempts_show_how_long_to_wait(ada: Visitor) -> None:
    ada.expected = {401, 429}
    for _ in range(10):
        ada.site.client().login("ada@example.com", "wrong")
    tries(ada, PASSWORD)
    ada.sees("Too many wrong passwords. Please wait 30 seconds, or set a new password by email.")


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ({"status": 429, "headers": {"Retry-After": "600"}}, "Please try again in 10 minutes."),
        ({"status": 429, "body": "<html>"}, "Please try again in 60 seconds."),
        ({"status": 503, "headers": {"Retry-After": "2"}}, "Please try again in 2 seconds."),
        ({"status": 503, "body": unavailable().body.decode()}, "The site is not available right now."),
        ({"status": 500, "json": {"statusMessage": "Internal server error"}}, "Something went wrong on our side."),
        ({"status": 502, "body": "<html>"}, "Something went wrong on our side."),
        ({"status": 200, "body": "<html>a portal of somebody else's"}, "Something went wrong on our side."),
        ({"status": 400, "json": {"statusMessage": "Something new"}}, "Something new"),
    ],
)  # fmt: skip
def test_every_kind_of_failed_answer_is_reported(ada: Visitor, answer: dict[str, Any], message: str) -> None:
    ada.expected = {answer["status"]}
    answers(ada, "/api/users/session", **answer)
    tries(ada, PASSWORD)
    ada.sees(message)
    ada.is_at("/login")
    expect(ada.button("Sign in")).not_to_have_attribute("aria-disabled", "true")


def test_a_lost_network_is_reported_until_it_is_back(ada: Visitor) -> None:
    ada.offline = True
    ada.context.set_offline(True)
    tries(ada, PASSWORD)
    ada.sees("The server cannot be reached.")
    ada.context.set_offline(False)
    ada.presses("Sign in")
    ada.is_at("/")


def test_a_list_that_did_not_come_is_reported_until_one_comes(house: House, visit: Visit) -> None:
    ada = visit(house())
    ada.site.add(role="admin")
    all_users(ada)
    ada.offline = True
    ada.context.set_offline(True)
    ada.fills(Search_by_name_or_email="ada")
    ada.sees("The server cannot be reached.")
    ada.context.set_offline(False)
    ada.fills(Search_by_name_or_email="nobody")
    ada.sees("No users found.")
    ada.misses("The server cannot be reached.")


# --- not twice ---


@contextmanager
def held_back(visitor: Visitor, path: str) -> Iterator[list[Any]]:
    """Holds the requests to a path until the end, and lists them."""
    sent: list[Any] = []
    visitor.page.route(f"**{path}", lambda route: sent.append(route))  # noqa: PLW0108 - Playwright takes functions only
    yield sent
    for route in sent:
        route.continue_()


def test_a_form_is_sent_once_however_often_its_button_is_pressed(ada: Visitor) -> None:
    ada.goes("/register")
    ada.fills(Name="Grace", Email="grace@example.com", Password=PASSWORD)
    with held_back(ada, "/api/users/register") as sent:
        for _ in range(3):
            ada.button("Create account").click(force=True)
            ada.page.keyboard.press("Enter")
        ada.field("Name").press("Enter")
        expect(ada.button("Create account")).to_have_attribute("aria-disabled", "true")
        ada.waits(lambda: bool(sent))
        ada.page.wait_for_timeout(200)
        assert len(sent) == 1
        ada.has_focus_on(ada.field("Name"))  # it stays where it was
    ada.sees("Open the link in the email")


def test_a_button_beside_a_form_acts_once_however_often_it_is_pressed(ada: Visitor) -> None:
    tries(ada, PASSWORD)
    ada.is_at("/")
    with held_back(ada, "/api/users/session") as sent:
        ada.button("Sign out").click(force=True)
        ada.button("Sign out").click(force=True)
        ada.page.wait_for_timeout(200)
        assert len(sent) == 1
    ada.is_at("/login")


# --- answers that nobody expects ---


def test_a_failure_to_load_the_new_address_is_reported(ada: Visitor) -> None:
    ada.expected = {500}
    answers(ada, "/api/users/me/email", status=500, body="")
    tries(ada, PASSWORD)
    ada.sees("Something went wrong on our side.")


@pytest.mark.parametrize("answer", [{"status": 503, "json": {}}, {"status": 200, "body": "<html>"}])
def test_texts_that_cannot_be_loaded_are_reported_in_english_and_loaded_later(
    ada: Visitor, answer: dict[str, Any]
) -> None:
    ada.expected = {answer["status"]}
    tries(ada, PASSWORD)
    ada.is_at("/")
    ada.page.route("**/assets/*.json*", lambda route: route.fulfill(**answer))
    ada.goes("/account")
    ada.sees("The server cannot be reached.")
    ada.page.unroute("**/assets/*.json*")
    ada.fills(Name="Countess")
    ada.page.get_by_role("button", name="Save").click()
    ada.sees("Saved.")


def test_a_button_whose_action_fails_unexpectedly_can_be_pressed_again(house: House, visit: Visit) -> None:
    site = house()
    site.add("root", role="admin")
    site.add("ada")
    root = visit(site)
    root.signs_in("root", at="/login?redirect=/users")
    root.page.get_by_label("Choose: ada@example.com").check()
    answers(root, "/api/users?*", json={"users": []})
    root.presses("Deactivate")
    root.page.get_by_role("dialog").get_by_role("button", name="Deactivate").click()
    root.sees("Deactivated: 1.")
    root.waits(lambda: bool(root.odd))
    expect(root.page.locator("[data-act=deactivate]")).not_to_have_attribute("aria-disabled", "true")
    root.odd.clear()


# --- fields ---


def test_a_refusal_is_shown_at_its_field_and_linked_to_it(ada: Visitor) -> None:
    ada.expected = {400}
    ada.goes("/register")
    ada.fills(Name="Grace", Email="grace@example", Password=PASSWORD)
    ada.presses("Create account")
    email = ada.field("Email")
    expect(email).to_have_attribute("aria-invalid", "true")
    expect(email).to_have_accessible_description("This is not an email address.")
    expect(email).to_have_accessible_error_message("This is not an email address.")
    ada.has_focus_on(email)
    email.fill("ada@example.com")
    ada.presses("Create account")
    expect(email).to_have_accessible_error_message("There is already an account with this address.")
    email.fill("grace@example.com")
    ada.fills(Password="password")
    ada.presses("Create account")
    password = ada.field("Password")
    expect(password).to_have_accessible_error_message("This password is too common: attackers try it first.")
    expect(email).not_to_have_attribute("aria-invalid", "true")


def errors(visitor: Visitor) -> dict[str, str]:
    """The error of each field, by its label."""
    fields = visitor.page.locator("[aria-invalid]").evaluate_all(
        """all => all.map(e => [e.labels[0].innerText, document.getElementById(e.getAttribute("aria-errormessage")).innerText])"""
    )
    return dict(fields)


@pytest.mark.parametrize("locale", ["en", "de"])
def test_all_errors_are_shown_at_once_beside_their_fields_in_the_language_of_the_page(
    house: House, visit: Visit, locale: str
) -> None:
    site = house(locale=locale, require_numbers=True)
    visitor = visit(site, locale="it-IT")  # not among the languages of the pages
    visitor.goes("/register")
    button = visitor.page.locator("form[data-api$=register] > button:not([type])")
    button.click()
    missing = {"en": "Please fill in this field.", "de": "Bitte füllen Sie dieses Feld aus."}[locale]
    assert list(errors(visitor).values()) == [missing] * 3
    visitor.has_focus_on(visitor.page.locator("#name"))
    visitor.page.locator("#name").fill("Grace")
    assert list(errors(visitor).values()) == [missing] * 2
    visitor.page.locator("#email").fill("grace at example")
    visitor.page.locator("#password").fill("short")
    assert errors(visitor) == {}
    button.click()
    assert (
        list(errors(visitor).values())
        == {
            "en": ["This is not an email address.", "This password does not meet all the rules yet."],
            "de": ["Das ist keine E-Mail-Adresse.", "Dieses Passwort erfüllt noch nicht alle Regeln."],
        }[locale]
    )
    visitor.has_focus_on(visitor.page.locator("#email"))
    assert [line for line in site.log if line.get("method") == "POST"] == []
    native = "all => all.filter(form => form.dataset.api && !form.noValidate).length"
    assert visitor.page.locator("form").evaluate_all(native) == 0


def test_an_address_whose_domain_is_not_ascii_is_left_to_the_server(house: House, visit: Visit) -> None:
    visitor = visit(house())
    visitor.expected = {400}
    visitor.goes("/register")
    visitor.fills(Name="Ada", Password=PASSWORD)

    def registers(email: str) -> None:
        # As a password manager does. Chromium converts what is typed.
        visitor.field("Email").evaluate("(field, email) => { field.value = email; }", email)
        visitor.presses("Create account")

    for wrong in ("ädä@example.com", "ada@bücher..example"):
        registers(wrong)
        expect(visitor.field("Email")).to_have_accessible_error_message("This is not an email address.")
    registers("ada@bücher.example")
    visitor.sees("Your account has been created.")
    assert visitor.site.service.accounts.find("ada@xn--bcher-kva.example").name == "Ada"


def test_an_error_ends_when_its_field_is_put_right(ada: Visitor) -> None:
    ada.expected = {400}
    ada.goes("/reset-password?token=x&email=ada@example.com")
    ada.fills(New_password="short", New_password__once_more="other")
    ada.presses("Set password")
    assert errors(ada) == {
        "New password": "This password does not meet all the rules yet.",
        "New password, once more": "The two passwords are not the same.",
    }
    for red in ("#password-error", "#again-error", "[data-rule=length]"):
        expect(ada.page.locator(red)).to_have_css("color", "rgb(179, 38, 30)")
    ada.fills(New_password="a good sentence")
    assert errors(ada) == {}
    expect(ada.page.locator("[data-rule=length]")).to_have_class("met")
    expect(ada.page.locator("[data-rule=length]")).to_have_css("color", "rgb(26, 110, 55)")
    ada.goes("/register")
    ada.fills(Name="Grace", Email="ada@example.com", Password="password1")
    ada.presses("Create account")
    ada.sees("This password is too common: attackers try it first.")
    assert list(errors(ada)) == ["Password"]
    expect(ada.page.locator("[data-rule=common]")).to_have_class("broken")
    ada.fills(Password="another good sentence")
    assert errors(ada) == {}
    expect(ada.page.locator("[data-rule=common]")).to_have_class("met")
    ada.presses("Create account")
    ada.sees("There is already an account with this address.")
    assert list(errors(ada)) == ["Email"]
    ada.fills(Email="grace@example.com")
    assert errors(ada) == {}


def needs_the_script(visitor: Visitor) -> bool:
    # Playwright's browser without scripts has the element, and does not show it.
    texts = visitor.page.locator("noscript").all_text_contents()
    return any("This page needs JavaScript." in text for text in texts)


def test_a_form_is_not_sent_without_the_script(house: House, visit: Visit) -> None:
    visitor = visit(house(), java_script_enabled=False)
    sent: list[str] = []
    visitor.page.on("request", lambda request: sent.append(request.method))
    for page, field in (("/login", "Password"), ("/forgot-password", "Email"), ("/register", "Password")):
        visitor.goes(page)
        assert needs_the_script(visitor)
        visitor.fills(Email="ada@example.com")
        expect(visitor.page.locator("main form button:not([type])").first).to_be_disabled()
        visitor.field(field).press("Enter")
        visitor.page.wait_for_timeout(100)
        visitor.is_at(page)
    assert set(sent) == {"GET"}


def test_a_page_that_needs_no_script_does_not_say_that_it_does(house: House, visit: Visit) -> None:
    visitor = visit(house(), java_script_enabled=False)
    visitor.goes("/login")
    visitor.follows("Continue with Example ID")
    visitor.sees("Who are you?")
    assert not needs_the_script(visitor)
    visitor.follows("Grace Hopper")
    visitor.is_at("/")
    assert needs_the_script(visitor)


# --- inactive accounts ---


def test_an_inactive_account_reads_why_after_the_right_password_only(house: House, visit: Visit) -> None:
    site = house()
    site.service.registration.register("ada@example.com", "Ada", PASSWORD, by=OPERATOR)
    site.add("grace", active=False)
    barbara = site.add("barbara")
    site.signed_in(barbara).delete("/api/users/me", body={"password": PASSWORD})
    visitor = visit(site)
    visitor.expected = {401, 403}
    for name, message in (
        ("ada", "Your email address still has to be confirmed."),
        ("grace", "Your account has been deactivated."),
        ("barbara", "You have deleted this account."),
    ):
        visitor.goes("/login")
        visitor.fills(Email=f"{name}@example.com", Password="wrong")
        visitor.presses("Sign in")
        visitor.sees("Email or password is wrong.")
        visitor.fills(Password=PASSWORD)
        visitor.presses("Sign in")
        visitor.sees(message)
        resend = visitor.button("Send the confirmation email again")
        expect(resend).to_have_count(int(name == "ada"))


def test_a_provider_user_whose_registration_waits_gets_another_email(house: House, visit: Visit) -> None:
    site = house()
    site.service.registration.register("ada@example.com", "Ada", PASSWORD, by=OPERATOR)
    ada = visit(site)
    ada.expected = {400}
    ada.goes("/login")
    ada.follows("Continue with Example ID")
    ada.follows("Ada Lovelace")
    ada.is_at("/login?error=account_inactive")
    ada.sees("Your email address still has to be confirmed.")
    ada.fills(Email="ada@example.com")
    ada.presses("Send the confirmation email again")
    ada.sees("If ada@example.com still has to be confirmed, an email is on its way.")
    ada.opens_email("Confirm")
    ada.presses("Confirm")
    ada.sees("Your email address is confirmed.")


# --- one message at a time ---


def messages(visitor: Visitor) -> list[str]:
    return list(visitor.page.locator(".note:visible, .refused:visible, .error:visible").all_inner_texts())


def test_only_the_latest_message_is_shown(house: House, visit: Visit) -> None:
    site = house()
    site.service.registration.register("ada@example.com", "Ada", PASSWORD, by=OPERATOR)
    site.add("root", role="admin")
    ada = visit(site)
    ada.expected = {401, 403}
    ada.goes("/login?error=account_inactive")
    assert len(messages(ada)) == 1
    tries(ada, "wrong")
    ada.sees("Email or password is wrong.")
    assert len(messages(ada)) == 1
    tries(ada, PASSWORD)
    ada.sees("Your email address still has to be confirmed.")
    assert len(messages(ada)) == 1
    ada.presses("Send the confirmation email again")
    ada.sees("If ada@example.com still has to be confirmed, an email is on its way.")
    assert len(messages(ada)) == 1
    tries(ada, PASSWORD)
    ada.sees("Your email address still has to be confirmed.")
    assert len(messages(ada)) == 1


def test_a_message_from_another_form_replaces_a_refusal(ada: Visitor) -> None:
    ada.site.signed_in(ada.site.service.accounts.find("ada@example.com"))
    ada.expected = {400}
    tries(ada, PASSWORD)
    ada.is_at("/")
    ada.fills(Current_password="wrong", New_password="another horse", New_password__once_more="another horse")
    ada.presses("Change password")
    ada.sees("Current password is incorrect.")
    assert len(messages(ada)) == 1
    ada.page.get_by_role("button", name="End Unknown browser").click()
    ada.sees("It has ended.")
    assert len(messages(ada)) == 1
    expect(ada.field("Current password")).not_to_have_attribute("aria-invalid", "true")
