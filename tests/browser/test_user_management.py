"""The page of all users, as admins use it."""

import sqlite3
import time
from collections.abc import Callable

import pytest
from support.commands import OPERATOR, PASSWORD
from support.visitors import Visitor, expect
from support.web import Site

Visit = Callable[..., Visitor]
House = Callable[..., Site]


@pytest.fixture
def ada(house: House, visit: Visit) -> Visitor:
    """An admin at the page, with 25 other users."""
    site = house()
    site.add(role="admin")
    for number in range(25):
        site.add(f"user{number:02}", password=None)
    site.add("grace")
    visitor = visit(site)
    visitor.signs_in(at="/login?redirect=/users")
    visitor.sees("Page 1 of 2 · 27 in all")
    return visitor


def rows(visitor: Visitor) -> list[str]:
    """The names in the list."""
    return list(visitor.page.locator("tbody .name").all_inner_texts())


def row(visitor: Visitor, name: str) -> object:
    return visitor.page.get_by_role("row").filter(has_text=f"{name}@example.com")


def manages(visitor: Visitor, name: str) -> None:
    visitor.presses(f"Manage: {name}@example.com")
    expect(visitor.page.get_by_role("dialog")).to_be_visible()


def test_the_list_comes_in_pages(ada: Visitor) -> None:
    assert (len(rows(ada)), rows(ada)[0]) == (20, "Ada")
    expect(ada.button("Previous")).to_be_disabled()
    ada.presses("Next")
    ada.sees("Page 2 of 2")
    assert len(rows(ada)) == 7
    ada.has_focus_on(ada.button("Previous"))  # and not lost with the button that is over
    ada.page.reload()
    ada.sees("Page 2 of 2")
    ada.presses("Previous")
    ada.sees("Page 1 of 2")
    ada.is_at("/users")


def test_the_next_page_is_asked_for_by_the_last_user_of_this_one(ada: Visitor) -> None:
    last = ada.site.service.accounts.find("user17@example.com")
    with ada.page.expect_request(f"**/api/users?*after={last.id}"):
        ada.presses("Next")
    ada.sees("Page 2 of 2")
    assert rows(ada)[0] == "User18"
    ada.field("Show").select_option(label="Admins")
    ada.sees("1 in all")
    ada.field("Show").select_option(label="All users")
    ada.sees("Page 1 of 2 · 27 in all")  # the list began anew
    with ada.page.expect_request(f"**/api/users?*after={last.id}"):
        ada.presses("Next")
    ada.sees("Page 2 of 2")


def test_people_are_found_by_name_address_and_state(ada: Visitor) -> None:
    ada.fills(Search_by_name_or_email="race")
    ada.sees("Page 1 of 1 · 1 in all")
    assert rows(ada) == ["Grace"]
    ada.is_at("/users?search=race")
    ada.fills(Search_by_name_or_email="%")
    ada.sees("No users found.")
    ada.fills(Search_by_name_or_email="")
    ada.field("Show").select_option(label="Admins")
    ada.sees("1 in all")
    assert rows(ada) == ["Ada"]
    ada.page.reload()
    ada.sees("1 in all")
    expect(ada.field("Show")).to_have_value("role=admin")


def test_back_and_forward_return_through_pages_and_searches(ada: Visitor) -> None:
    ada.presses("Next")
    ada.sees("Page 2 of 2")
    ada.field("Search by name or email").press_sequentially("gr")
    ada.is_at("/users?search=gr")
    ada.field("Search by name or email").press_sequentially("ace")
    ada.is_at("/users?search=grace")
    ada.sees("1 in all")
    ada.field("Show").select_option(label="Admins")
    ada.sees("No users found.")
    ada.page.go_back()
    ada.is_at("/users?search=grace")
    ada.sees("1 in all")
    expect(ada.field("Show")).to_have_value("")
    ada.page.go_back()  # the word that was typed is one step
    ada.is_at("/users?page=2")
    ada.sees("Page 2 of 2")
    expect(ada.field("Search by name or email")).to_have_value("")
    ada.page.go_back()
    ada.is_at("/users")
    ada.sees("Page 1 of 2")
    ada.page.go_forward()
    ada.sees("Page 2 of 2")


def test_a_page_number_beyond_the_end_shows_the_last_page(ada: Visitor) -> None:
    ada.goes("/users?page=900")
    ada.sees("Page 2 of 2")
    ada.goes("/users?page=-1&search=&active=maybe")
    ada.sees("Page 1 of 2")


def test_an_account_is_made_and_can_be_used(ada: Visitor, visit: Visit) -> None:
    ada.expected = {400}
    ada.presses("New user")
    ada.has_focus_on(ada.field("Name"))
    ada.fills(Name="Barbara", Email="grace@example.com", Password=PASSWORD)
    ada.field("Role").select_option("admin")
    ada.presses("Create user")
    expect(ada.field("Email")).to_have_accessible_error_message(
        "There is already an account with this address."
    )
    ada.fills(Email="barbara@example.com")
    ada.presses("Create user")
    ada.sees("barbara@example.com has been created and can sign in.")
    expect(row(ada, "barbara")).to_contain_text("Admin")
    ada.has_focus_on(ada.button("New user"))
    barbara = visit(ada.site)
    barbara.signs_in("barbara", at="/login?redirect=/users")
    barbara.sees("28 in all")


def test_name_address_and_role_are_changed(ada: Visitor) -> None:
    manages(ada, "grace")
    ada.fills(Name="Grace Hopper", Email="admiral@example.com")
    ada.field("Role").select_option("admin")
    ada.presses("Save")
    ada.sees("admiral@example.com has been saved.")
    expect(row(ada, "admiral")).to_contain_text("Grace Hopper")
    expect(row(ada, "admiral")).to_contain_text("Admin")
    ada.has_focus_on(ada.button("Manage: admiral@example.com"))


def test_an_account_is_deactivated_and_activated(ada: Visitor, visit: Visit) -> None:
    grace = visit(ada.site)
    grace.signs_in("grace")
    grace.expected = {401, 403}
    manages(ada, "grace")
    ada.presses("Deactivate")
    ada.sees("grace@example.com is inactive. All sessions have ended.")
    expect(row(ada, "grace")).to_contain_text("Inactive")
    grace.presses("Save")
    grace.sees("Your session has ended.")
    manages(ada, "grace")
    ada.presses("Activate")
    ada.sees("grace@example.com is active and can sign in.")
    grace.signs_in("grace")


def test_an_account_that_awaits_its_confirmation_does_not_look_deactivated(ada: Visitor) -> None:
    ada.site.service.registration.register("zoe@example.com", "Zoe", PASSWORD, by=OPERATOR)
    ada.site.add("zora", active=False)
    ada.fills(Search_by_name_or_email="zo")
    expect(row(ada, "zoe")).to_contain_text("Not confirmed")
    expect(row(ada, "zora")).to_contain_text("Inactive")


def test_sessions_are_ended(ada: Visitor, visit: Visit) -> None:
    grace = visit(ada.site)
    grace.signs_in("grace")
    grace.expected = {401}
    manages(ada, "grace")
    ada.presses("End sessions")
    ada.sees("All sessions of grace@example.com have ended.")
    grace.presses("Save")
    grace.sees("Your session has ended.")


def test_an_account_is_deleted_only_after_a_confirmation(ada: Visitor) -> None:
    manages(ada, "grace")
    ada.presses("Delete …")
    ada.sees("Grace (grace@example.com)")
    ada.presses("Cancel")
    ada.sees("27 in all")
    manages(ada, "grace")
    ada.presses("Delete …")
    ada.page.keyboard.press("Escape")
    assert ada.site.service.accounts.find("grace@example.com")
    manages(ada, "grace")
    ada.presses("Delete …")
    ada.presses("Delete for good")
    ada.sees("grace@example.com has been deleted.")
    ada.sees("26 in all")
    expect(row(ada, "grace")).to_have_count(0)


def test_a_held_key_does_not_confirm_the_deletion(ada: Visitor) -> None:
    manages(ada, "grace")
    ada.button("Delete …").focus()
    for key in ("Enter", "Space"):
        for _ in range(20):  # without the release of the key in between, each is a repetition
            ada.page.keyboard.down(key)
        ada.has_focus_on(ada.button("Cancel") if key == "Enter" else ada.button("Delete …"))
        ada.page.keyboard.up(key)
        ada.sees("Grace (grace@example.com)")
        ada.page.keyboard.press("Escape")
        ada.has_focus_on(ada.button("Manage: grace@example.com"))
        ada.page.keyboard.press("Enter")
        ada.button("Delete …").focus()
    ada.page.keyboard.press("Escape")
    assert [line["path"] for line in ada.site.log if line.get("method") in ("DELETE", "PATCH")] == []
    ada.page.keyboard.press("Enter")
    ada.button("Delete …").focus()
    ada.page.keyboard.press("Enter")
    ada.page.keyboard.press("Shift+Tab")
    ada.has_focus_on(ada.button("Delete for good"))
    ada.page.keyboard.press("Enter")
    ada.sees("grace@example.com has been deleted.")


def test_the_list_offers_no_actions_on_the_own_account(ada: Visitor) -> None:
    ada.page.get_by_role("row").filter(has_text="ada@example.com").get_by_role("link", name="Profile").click()
    ada.is_at("/account")


def test_a_refusal_is_not_hidden_behind_the_dialog(ada: Visitor) -> None:
    ada.expected = {404}
    manages(ada, "grace")
    user = ada.site.service.accounts.find("grace@example.com")
    with ada.site.service.store.write() as tx:
        tx.delete_user(user.id)
    ada.presses("Deactivate")
    ada.sees("This account no longer exists.")
    expect(ada.page.get_by_role("dialog")).to_have_count(0)
    expect(row(ada, "grace")).to_have_count(0)


def test_an_admin_who_lost_the_role_is_told_so(ada: Visitor) -> None:
    ada.expected = {403}
    user = ada.site.service.accounts.find("ada@example.com")
    with ada.site.service.store.write() as tx:
        tx.change_user(user.id, role="user")
    ada.presses("Next")
    ada.sees("Admin access required")


def test_a_late_answer_does_not_replace_a_newer_list(ada: Visitor) -> None:
    held: list[object] = []
    ada.page.route("**/api/users?*search=gra", lambda route: held.append(route))  # noqa: PLW0108
    ada.fills(Search_by_name_or_email="gra")
    ada.waits(lambda: bool(held))
    ada.fills(Search_by_name_or_email="user07")
    ada.sees("1 in all")
    held[0].continue_()
    ada.page.wait_for_timeout(200)
    assert rows(ada) == ["User07"]


def test_a_hundred_thousand_users_are_as_quick_as_ten(ada: Visitor) -> None:
    with sqlite3.connect(ada.site.service.settings.database) as database:
        database.execute(
            "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 100000)"
            " INSERT INTO users (email, name, password_hash, active, created_at, updated_at)"
            " SELECT 'person' || i || '@example.com', 'Person ' || i, '!', i % 10 > 0, '2026', '2026' FROM n"
        )
    database.close()

    def seconds(what: Callable[[], None], message: str) -> float:
        began = time.perf_counter()
        what()
        ada.sees(message)
        return time.perf_counter() - began

    search = "Search_by_name_or_email"
    # Generous, for a busy machine; it takes a tenth of that.
    assert seconds(lambda: ada.goes("/users"), "Page 1 of 5,002 · 100,027 in all") < 4
    assert seconds(lambda: ada.presses("Next"), "Page 2 of 5,002") < 4
    assert seconds(lambda: ada.fills(**{search: "person99999"}), "1 in all") < 4
    assert seconds(lambda: ada.fills(**{search: "person"}), "1,000 and more in all") < 4
    assert seconds(lambda: ada.field("Show").select_option("active=false"), "500 and more in all") < 4
    asked = [line["ms"] for line in ada.site.log if line.get("path", "").startswith("/api/users?")]
    assert sorted(asked)[len(asked) // 2] < 150
    ada.goes("/users?page=5001")
    ada.sees("Page 5,001 of 5,002")
