"""Fields for passwords: what they show, and the rules beside them while one types."""

from collections.abc import Callable

from support.commands import PASSWORD
from support.visitors import Visitor, expect
from support.web import Site

from usersctl.models import Newcomer

Visit = Callable[..., Visitor]
House = Callable[..., Site]


def test_the_rule_about_common_passwords_turns_while_a_password_is_typed(ada: Visitor) -> None:
    ada.goes("/register")
    ada.fills(Name="Grace Hopper", Email="grace.hopper@example.com")
    rule = ada.page.locator("[data-rule=common]")
    with ada.page.expect_response("**/assets/common.bin?*"):
        ada.fills(Password="p")
    for password, state in (
        ("", ""),
        ("passwor", ""),
        ("password", "broken"),
        ("PassWord1", "broken"),
        ("password of mine", "met"),
        ("Grace.Hopper", "broken"),
        ("grace hopper", "broken"),
        ("grace hopped", "met"),
        ("127.0.0.1", "broken"),
        ("sunshine", "broken"),
        ("Michelle", "broken"),
        ("12341234", "broken"),
        ("0987654321", "broken"),
        ("correct horse battery", "met"),
    ):
        ada.fills(Password=password)
        expect(rule).to_have_class(state)
    assert "passw" not in str(ada.site.log)


def test_caps_lock_is_reported_while_a_password_is_typed(ada: Visitor) -> None:
    password = ada.field("Password")
    for state in (True, False):
        password.evaluate(
            "(input, state) => input.dispatchEvent(new KeyboardEvent('keyup', {key: 'A', modifierCapsLock: state}))",
            state,
        )
        expect(ada.page.get_by_role("status").filter(has_text="Caps Lock is on.")).to_have_count(int(state))


def test_a_password_can_be_shown_and_is_hidden_when_it_is_sent(ada: Visitor) -> None:
    ada.expected = {401}
    ada.fills(Email="ada@example.com", Password="wrong")
    ada.page.get_by_role("button", name="Show: Password").click()
    expect(ada.field("Password")).to_have_attribute("type", "text")
    ada.presses("Sign in")
    ada.sees("Email or password is wrong.")
    expect(ada.field("Password")).to_have_attribute("type", "password")


def test_the_button_that_shows_a_password_then_hides_it(ada: Visitor) -> None:
    ada.fills(Password="secret")
    ada.presses("Show: Password")
    expect(ada.field("Password")).to_have_attribute("type", "text")
    expect(ada.page.locator(".show")).to_have_text("Hide")
    ada.presses("Hide: Password")
    expect(ada.field("Password")).to_have_attribute("type", "password")
    expect(ada.page.locator(".show")).to_have_text("Show")


def test_a_password_can_be_pasted(ada: Visitor) -> None:
    password = ada.field("Password")
    allowed = "input => input.dispatchEvent(new ClipboardEvent('paste', {bubbles: true, cancelable: true}))"
    assert password.evaluate(allowed)
    password.focus()
    ada.page.keyboard.insert_text(PASSWORD)
    expect(password).to_have_value(PASSWORD)


ALL_RULES = {
    "min_length": 10,
    "require_uppercase": True,
    "require_lowercase": True,
    "require_numbers": True,
    "require_special_chars": True,
}
MISSING = {
    "length": "at least 10 characters",
    "upper": "an upper-case letter",
    "lower": "a lower-case letter",
    "number": "a number",
    "special": "a special character",
    "common": "your own",
    "bytes": "72 bytes",
}
PASSWORDS = [
    "a", "A", "7", "!", "aA7! aA7! ", "ÄÖÜäöü77__", "ǅǅǅǅǅǅǅǅǅǅ", "\u2160\u2161 \u24d0\u24d1 \uff11\uff12\uff13 \uff3f", "日本語日本語日本語日", "😀😀😀😀😀😀😀😀😀", "😀😀😀😀😀😀😀😀😀😀",
    "grace@example.com", "Grace", "GRACE HOPPER", "x" * 72, "x" * 73, "ä" * 36, "ä" * 37, "½½½½½½½½½½", "\u00a0" * 12, "٣٤٥٦٧٨٩٠١٢",
]  # fmt: skip


def test_the_hints_follow_the_rules_of_the_server(house: House, visit: Visit) -> None:
    from usersctl.errors import Invalid
    from usersctl.passwords import check_password

    site = house(**ALL_RULES)
    grace = visit(site)
    grace.goes("/register")
    grace.fills(Name="Grace Hopper", Email="grace@example.com")
    rules = grace.page.locator("[data-rule]")
    for password in PASSWORDS:
        refused = ""
        try:
            check_password(site.service.settings, password, Newcomer("grace@example.com", "Grace Hopper"))
        except Invalid as error:
            refused = str(error)
        grace.fills(Password=password)
        broken = rules.evaluate_all(
            "all => all.filter(rule => rule.classList.contains('broken')).map(rule => rule.dataset.rule)"
        )
        if "bytes" in refused:
            assert "bytes" in broken, password
        elif "your own" in refused:
            assert broken == ["common"], password
        else:
            # The server names rules before it compares with names and addresses.
            assert [rule for rule in broken if rule != "common"] == [
                rule for rule, words in MISSING.items() if words in refused
            ], password
