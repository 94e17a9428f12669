"""Pages without a mouse: by keyboard, read aloud, and filled in by a password manager."""

from collections.abc import Callable

from support.commands import OPERATOR, PASSWORD, create_user
from support.looks import LINK
from support.visitors import Visitor, all_users, expect
from support.web import Site

Visit = Callable[..., Visitor]
House = Callable[..., Site]


def tabs(visitor: Visitor, most: int = 40) -> list[str]:
    """The elements that the Tab key reaches, in order."""
    name = """() => { const e = document.activeElement;
        const parts = (e.getAttribute('aria-labelledby') || '').split(' ').filter(Boolean);
        if (parts.length) return parts.map((id) => document.getElementById(id).innerText.trim()).join(' ');
        return e === document.body ? '' : e.getAttribute('aria-label') || e.labels?.[0]?.innerText || e.innerText || e.id }"""
    visitor.page.locator(".skip").focus()
    labels: list[str] = []
    for _ in range(most):
        now = visitor.page.evaluate(name)
        if not now:
            break
        labels.append(" ".join(now.split()))  # a time may have spaces that no line breaks at
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
            "End Chrome · Linux 127.0.0.1 · since Nov 20, 2026, 8:22 AM",
            "Sign out everywhere else",
            "Make a token…",
            "Delete my account…",
        ),
    ]
    ada.button("Keep the old address").press("Enter")
    ada.has_focus_on(ada.page.get_by_text("Your address stays as it was."))
    ada.page.get_by_text("Delete my account…").press("Space")
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


def test_the_tab_key_reaches_the_way_on_from_a_dead_link_first(house: House, visit: Visit) -> None:
    ada = visit(house())
    ada.expected = {400}
    ada.goes(f"/reset-password{LINK}")
    ada.fills(New_password=PASSWORD, New_password__once_more=PASSWORD)
    ada.presses("Set password")
    ada.has_focus_on(ada.page.get_by_text("This link has already been used, or has expired."))
    seen = ada.page.locator(".ways a").all()
    tops = [link.bounding_box()["y"] for link in seen]
    assert tops == sorted(tops)
    for name in ("Get another link", "Sign in"):
        ada.page.keyboard.press("Tab")
        ada.has_focus_on(ada.page.get_by_role("link", name=name))


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
    ada.has_focus_on(ada.button("Delete…"))
    ada.button("End sessions").press("Enter")
    ada.has_focus_on(ada.button("Cancel"))
    ada.page.keyboard.press("Shift+Tab")
    ada.page.keyboard.press("Enter")
    ada.sees("Accounts whose sessions have ended: 0.")
    ada.has_focus_on(ada.page.get_by_label("Choose all on this page"))


# Whether the element with the focus, or a part of it, can be seen.
SEEN = """() => {
  const focused = document.activeElement, { left, top, width, height } = focused.getBoundingClientRect();
  return [0.1, 0.5, 0.9].some((part) => {
    const hit = document.elementFromPoint(left + width / 2, top + height * part);
    return hit === focused || focused.contains(hit) || hit?.contains(focused);
  });
}"""


def among_thirty(house: House, visit: Visit) -> Visitor:
    """An admin of so many users that the list has to be scrolled."""
    site = house()
    site.add(role="admin")
    for number in range(30):
        create_user(site.service, f"user{number}@example.com", f"User {number}", None, by=OPERATOR)
    return visit(site, viewport={"width": 1280, "height": 600})


def test_a_long_note_hides_no_field_at_a_zoom_of_400_percent(house: House, visit: Visit) -> None:
    site = house()
    ada = visit(site, viewport={"width": 320, "height": 256})
    site.service.accounts.set_password(site.add().id, "another sentence of words", by=OPERATOR)
    ada.opens_email("Your password for Acme was changed")
    ada.presses("Lock everyone out")
    ada.is_at("/forgot-password")
    ada.has_focus_on(ada.page.locator("#notes p"))
    for _ in range(3):
        ada.page.keyboard.press("Tab")
        assert ada.page.evaluate(SEEN)


def test_nothing_that_stays_at_the_top_hides_the_focus(house: House, visit: Visit) -> None:
    ada = among_thirty(house, visit)

    def goes_back(steps: int) -> None:
        for _ in range(steps):
            ada.page.keyboard.press("Shift+Tab")
            focused = "document.activeElement.outerHTML.slice(0, 200)"
            assert ada.page.evaluate(SEEN), ada.page.evaluate(focused)

    all_users(ada)
    ada.page.get_by_label("Choose all on this page").check()
    ada.page.get_by_role("link", name="User 9").focus()
    goes_back(58)
    ada.goes("/account")
    ada.presses("Save")
    ada.sees("Saved.")
    ada.page.get_by_text("Delete my account…").focus()
    goes_back(16)


def test_a_refusal_is_not_hidden_by_the_bar_of_the_chosen_users(house: House, visit: Visit) -> None:
    ada = among_thirty(house, visit)
    ada.expected = {503}
    all_users(ada)
    ada.page.get_by_label("Choose all on this page").check()
    ada.page.get_by_role("link", name="User 9").scroll_into_view_if_needed()
    ada.page.route("**/api/users/bulk", lambda route: route.fulfill(status=503, body="{}"))
    ada.presses("End sessions")
    ada.page.get_by_role("dialog").get_by_role("button", name="End sessions").click()
    ada.sees("The site is very busy right now.")
    ada.page.locator("#notes .note").evaluate("note => note.focus({ preventScroll: true })")
    assert ada.page.evaluate(SEEN)


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


def test_a_wrong_field_at_the_top_of_the_screen_is_shown_with_its_label(house: House, visit: Visit) -> None:
    ada = visit(house(), viewport={"width": 1280, "height": 400})
    ada.site.add()
    ada.signs_in(at="/login?redirect=/account")
    ada.page.get_by_text("Make a token…").click()
    ada.field("What it is for").evaluate("field => scrollBy(0, field.getBoundingClientRect().top + 10)")
    ada.button("Make token").dispatch_event("click")
    ada.has_focus_on(ada.field("What it is for"))
    for text in ("What it is for", "Please fill in this field."):
        expect(ada.page.get_by_text(text).locator("visible=true")).to_be_in_viewport(ratio=1)


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


def test_an_error_at_the_field_that_has_the_focus_already_is_read_aloud(house: House, visit: Visit) -> None:
    ada = visit(house())
    ada.expected = {400}
    ada.site.add()
    ada.goes("/login")
    password = ada.field("Password")
    ada.fills(Email="ada@example.com")
    password.press("Enter")
    expect(ada.page.get_by_role("alert")).to_have_text("Please fill in this field.")
    expect(password).to_have_accessible_error_message("Please fill in this field.")
    # A field that gets the focus is read aloud with its error, once.
    ada.fills(Email="")
    password.press("Enter")
    ada.has_focus_on(ada.field("Email"))
    expect(ada.page.get_by_role("alert")).to_have_count(1)
    ada.signs_in()
    ada.goes("/account")
    current = ada.field("Current password")
    ada.fills(Current_password="wrong", New_password=PASSWORD + "2", New_password__once_more=PASSWORD + "2")
    current.press("Enter")
    expect(ada.page.get_by_role("alert")).to_have_text("Current password is incorrect.")


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
