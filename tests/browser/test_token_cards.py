"""API tokens in a browser: made, shown once, copied and ended in /account; seen and ended by an admin in /users/ID."""

import re
from collections.abc import Callable
from typing import Any

import pytest
from support.commands import OPERATOR, PASSWORD
from support.fakes import FakeClock
from support.visitors import Visitor, expect
from support.web import Site

from usersctl.networks import normal_ranges

Visit = Callable[..., Visitor]
House = Callable[..., Site]

RANGES = "Addresses or ranges it works from (empty: anywhere)"
CLIPBOARD = {"permissions": ["clipboard-read", "clipboard-write"]}


@pytest.fixture
def site(house: House) -> Site:
    made = house()
    made.add()
    return made


def card(visitor: Visitor) -> Any:
    return visitor.page.get_by_role("region", name="API tokens")


def opens_form(visitor: Visitor, name: str) -> None:
    visitor.page.get_by_text("Make a token…").click()
    visitor.fills(What_it_is_for=name)


def status(site: Site, token: str, path: str = "/api/users/me") -> int:
    return site.client(headers={"Authorization": f"Bearer {token}"}).get(path).status


def test_a_token_is_made_shown_once_copied_and_ended(site: Site, visit: Visit) -> None:
    ada = visit(site, **CLIPBOARD)
    ada.signs_in(at="/login?redirect=/account")
    expect(card(ada)).to_contain_text("No API tokens.")
    opens_form(ada, "backup")
    ada.field("Expires after").select_option("30d")
    card(ada).get_by_role("checkbox", name=re.compile("^me ")).check()
    ada.fills(**{RANGES: "127.0.0.1, 10.0.0.0/8"})
    ada.presses("Make token")
    dialog = ada.page.get_by_role("dialog", name="Your new token")
    expect(dialog).to_be_visible()
    ada.has_focus_on(dialog.get_by_role("heading"))
    token = dialog.locator("code").inner_text()
    dialog.get_by_role("button", name="Copy", exact=True).click()
    expect(dialog.get_by_role("button", name="Copied")).to_be_visible()
    assert ada.page.evaluate("navigator.clipboard.readText()") == token
    for _ in range(3):
        ada.page.keyboard.press("Escape")  # too easily pressed for what is shown once
    expect(dialog).to_be_visible()
    ada.presses("I have kept it")
    ada.sees("The token has been made.")
    for text in ("backup", "me", "from 10.0.0.0/8 127.0.0.1/32", "never used", "until"):
        expect(card(ada)).to_contain_text(text)
    assert token not in ada.page.content()
    expect(ada.page.get_by_label("What it is for")).to_be_hidden()
    assert (status(site, token), status(site, token, "/api/users/me/factors")) == (200, 403)
    site.service.sessions.uses.write()
    ada.page.reload()
    expect(card(ada)).to_contain_text("last used")
    expect(card(ada)).to_contain_text("127.0.0.1")
    ada.page.get_by_role("button", name="End backup").click()
    ada.page.locator("dialog[open]").get_by_role("button", name="End").click()
    ada.sees("It has ended.")
    expect(card(ada)).to_contain_text("No API tokens.")
    assert status(site, token) == 401


def test_a_token_is_selected_where_the_browser_refuses_the_clipboard(site: Site, visit: Visit) -> None:
    ada = visit(site)
    refusal = "() => Promise.reject(new DOMException('', 'NotAllowedError'))"
    ada.page.add_init_script(f"Clipboard.prototype.writeText = {refusal}")
    ada.signs_in(at="/login?redirect=/account")
    opens_form(ada, "backup")
    ada.presses("Make token")
    dialog = ada.page.get_by_role("dialog", name="Your new token")
    dialog.get_by_role("button", name="Copy", exact=True).click()
    token = dialog.locator("code").inner_text()
    ada.waits(lambda: ada.page.evaluate("String(getSelection())") == token)
    expect(dialog.get_by_role("button", name="Copy", exact=True)).to_be_visible()


def test_tokens_stand_beside_sessions_and_not_among_them(site: Site, visit: Visit) -> None:
    site.service.sessions.create_api_token(1, name="nightly", lifetime=None, by=OPERATOR)
    ada = visit(site)
    ada.signs_in(at="/login?redirect=/account")
    expect(ada.page.locator("#session-list li")).to_have_count(1)
    expect(card(ada).get_by_role("listitem")).to_have_count(1)
    expect(card(ada)).to_contain_text("does not expire")
    ada.presses("Sign out everywhere else")
    ada.sees("You are signed out everywhere else.")
    expect(card(ada)).to_contain_text("No API tokens.")


def test_what_is_wrong_stands_at_its_field_and_what_was_typed_stays(site: Site, visit: Visit) -> None:
    ada = visit(site)
    ada.expected = {400}
    ada.signs_in(at="/login?redirect=/account")
    ada.page.get_by_text("Make a token…").click()
    ada.presses("Make token")
    ada.has_focus_on(ada.field("What it is for"))
    ada.fills(**{"What it is for": "backup", RANGES: "10.0.0.1/8"})
    ada.presses("Make token")
    ada.sees("This is not an address or a range.")
    ada.has_focus_on(ada.field(RANGES))
    expect(ada.field("What it is for")).to_have_value("backup")
    assert site.service.sessions.listed(1)[-1].kind != "api"


def test_a_token_needs_a_fresh_proof_in_a_dialog_and_goes_on(
    site: Site, visit: Visit, clock: FakeClock
) -> None:
    ada = visit(site)
    ada.signs_in(at="/login?redirect=/account")
    clock.move(minutes=11)
    ada.expected = {403}
    opens_form(ada, "backup")
    ada.presses("Make token")
    ada.sees("Confirm that it is you")
    ada.misses("This changes how you sign in.")  # a token does not
    ada.page.locator("#proof-password").fill(PASSWORD)
    ada.presses("Confirm")
    expect(ada.page.get_by_role("dialog", name="Your new token")).to_be_visible()
    ada.presses("I have kept it")
    expect(card(ada)).to_contain_text("all that its user may do")


def test_a_token_form_is_still_filled_in_after_the_proof_at_a_provider(
    house: House, visit: Visit, clock: FakeClock
) -> None:
    site = house()
    ada = visit(site)
    ada.signs_in_by_provider(at="/login?redirect=/account")
    clock.move(minutes=11)
    ada.expected = {403}
    opens_form(ada, "backup")
    ada.field("Expires after").select_option("30d")
    card(ada).get_by_role("checkbox", name=re.compile("^me ")).check()
    ada.fills(**{RANGES: "127.0.0.1"})
    ada.presses("Make token")
    ada.signs_in_by_provider()
    expect(ada.page.get_by_role("dialog", name="Your new token")).to_be_visible()
    (token,) = (each for each in site.service.sessions.listed(1) if each.kind == "api")
    assert (token.name, token.scope_names, token.range_texts) == ("backup", ["me"], ["127.0.0.1/32"])


def test_a_long_list_of_addresses_is_taken_whole(site: Site, visit: Visit) -> None:
    ada = visit(site)
    ada.signs_in(at="/login?redirect=/account")
    opens_form(ada, "backup")
    addresses = [f"192.0.2.{number}" for number in range(51)]
    ada.expected = {400}
    for count in (51, 50):
        ada.field(RANGES).select_text()
        ada.page.keyboard.insert_text(" ".join(addresses[:count]))
        ada.presses("Make token")
        if count == 51:
            expect(ada.field(RANGES)).to_have_accessible_error_message(
                "These are too many addresses: 50 at most."
            )
    expect(ada.page.get_by_role("dialog", name="Your new token")).to_be_visible()
    (token,) = (each for each in site.service.sessions.listed(1) if each.kind == "api")
    assert len(token.range_texts) == 50


def test_a_plain_user_is_offered_what_opens_something_for_them(site: Site, visit: Visit) -> None:
    site.add("root", role="admin")
    for name, count in (("ada", 2), ("root", 7)):
        visitor = visit(site)
        visitor.signs_in(name, at="/login?redirect=/account")
        opens_form(visitor, "x")
        expect(card(visitor).get_by_role("checkbox")).to_have_count(count)


def test_an_admin_sees_and_ends_the_tokens_of_a_user(site: Site, visit: Visit) -> None:
    site.add("root", role="admin")
    made = site.service.sessions.create_api_token(
        1, name="nightly", lifetime=None, scopes="me", ranges=normal_ranges(["127.0.0.1"]), by=OPERATOR
    )
    client = site.client(headers={"Authorization": f"Bearer {made.token}", "User-Agent": "curl/8.5.0"})
    assert client.get("/api/users/me").status == 200
    site.service.sessions.uses.write()
    root = visit(site)
    root.signs_in("root", at="/login?redirect=/users/1")
    for text in ("nightly", "me", "from 127.0.0.1/32", "last used", "127.0.0.1 · curl", "does not expire"):
        expect(card(root)).to_contain_text(text)
    root.page.get_by_role("button", name="End nightly").click()
    root.page.locator("dialog[open]").get_by_role("button", name="End").click()
    root.sees("It has ended.")
    expect(card(root)).to_contain_text("No API tokens.")
    assert client.get("/api/users/me").status == 401
