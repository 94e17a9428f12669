"""The page of all users, as admins use it."""

import time
from collections.abc import Callable
from typing import Any

import pytest
from support.commands import OPERATOR, PASSWORD
from support.databases import opened
from support.user_list import admin_at_the_list, row, rows
from support.visitors import Visitor, expect
from support.web import Site

Visit = Callable[..., Visitor]
House = Callable[..., Site]


@pytest.fixture
def ada(house: House, visit: Visit) -> Visitor:
    return admin_at_the_list(house, visit)


def test_the_list_comes_in_pages(ada: Visitor) -> None:
    assert (len(rows(ada)), rows(ada)[0]) == (50, "Ada")
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
    last = ada.site.service.accounts.find("user47@example.com")
    with ada.page.expect_request(f"**/api/users?*after={last.id}"):
        ada.presses("Next")
    ada.sees("Page 2 of 2")
    assert rows(ada)[0] == "User48"
    ada.field("Role").select_option(label="Admin")
    ada.sees("1 in all")
    ada.field("Role").select_option(label="All")
    ada.sees("Page 1 of 2 · 57 in all")  # the list began anew
    with ada.page.expect_request(f"**/api/users?*after={last.id}"):
        ada.presses("Next")
    ada.sees("Page 2 of 2")


def test_a_page_that_is_asked_for_twice_is_one_page_further(ada: Visitor) -> None:
    ada.presses("Next")
    ada.sees("Page 2 of 2")
    ada.page.evaluate("for (const _ of [1, 2, 3]) document.querySelector('#previous').click()")
    ada.sees("Page 1 of 2")
    ada.page.go_back()
    ada.sees("Page 2 of 2")


def test_no_page_is_left_out_after_a_request_that_failed(ada: Visitor) -> None:
    for number in range(50):
        ada.site.add(f"v{number}", password=None)
    ada.page.reload()
    ada.sees("Page 1 of 3")
    ada.expected = {503}
    ada.page.route("**/api/users?*", lambda route: route.fulfill(status=503, body="{}"), times=1)
    ada.presses("Next")
    ada.sees("The site is very busy right now.")
    ada.presses("Next")
    ada.sees("Page 2 of 3")


def test_people_are_found_by_name_address_and_state(ada: Visitor) -> None:
    ada.fills(Search_by_name_or_email="race")
    ada.sees("Page 1 of 1 · 1 in all")
    assert rows(ada) == ["Grace"]
    ada.is_at("/users?search=race")
    ada.fills(Search_by_name_or_email="%")
    ada.sees("No users found.")
    ada.fills(Search_by_name_or_email="")
    ada.field("Role").select_option(label="Admin")
    ada.sees("1 in all")
    assert rows(ada) == ["Ada"]
    ada.page.reload()
    ada.sees("1 in all")
    expect(ada.field("Role")).to_have_value("admin")


def test_back_and_forward_return_through_pages_and_searches(ada: Visitor) -> None:
    ada.presses("Next")
    ada.sees("Page 2 of 2")
    ada.field("Search by name or email").press_sequentially("gr")
    ada.is_at("/users?search=gr")
    ada.field("Search by name or email").press_sequentially("ace")
    ada.is_at("/users?search=grace")
    ada.sees("1 in all")
    ada.field("Role").select_option(label="Admin")
    ada.sees("No users found.")
    ada.page.go_back()
    ada.is_at("/users?search=grace")
    ada.sees("1 in all")
    expect(ada.field("Role")).to_have_value("")
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
    ada.page.get_by_role("dialog").get_by_label("Role").select_option("admin")
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
    barbara.sees("58 in all")


def test_an_account_that_awaits_its_confirmation_does_not_look_deactivated(ada: Visitor) -> None:
    ada.site.service.registration.register("zoe@example.com", "Zoe", PASSWORD, by=OPERATOR)
    ada.site.add("zora", active=False)
    ada.fills(Search_by_name_or_email="zo")
    expect(row(ada, "zoe")).to_contain_text("Not confirmed")
    expect(row(ada, "zora")).to_contain_text("Deactivated")


def test_a_row_leads_to_the_page_of_its_user(ada: Visitor) -> None:
    grace = ada.site.service.accounts.find("grace@example.com")
    ada.page.get_by_role("link", name="Grace", exact=True).click()
    ada.is_at(f"/users/{grace.id}")
    ada.page.go_back()
    ada.sees("Page 1 of 2 · 57 in all")


# --- order and filters ---


def test_a_group_with_a_long_name_makes_the_page_no_wider_in_safari(ada: Visitor) -> None:
    # Chromium cuts the name off by itself. In WebKit the page was 574 pixels wide on a screen of 447.
    for name in ("Group", "Role"):
        expect(ada.field(name)).to_have_css("contain", "paint")


def test_columns_sort_and_say_so(ada: Visitor) -> None:
    def sorted_by() -> list[tuple[str, str]]:
        heads = ada.page.locator("th[aria-sort]")
        return [(head.inner_text(), str(head.get_attribute("aria-sort"))) for head in heads.all()]

    assert sorted_by() == [("Name", "ascending")]
    ada.presses("Name")
    ada.sees("User54")
    assert (sorted_by(), rows(ada)[0]) == ([("Name", "descending")], "User54")
    ada.is_at("/users?order=desc")
    ada.presses("Last sign-in")
    expect(ada.page.locator("tbody .name").first).to_have_text("Ada")
    assert sorted_by() == [("Last sign-in", "descending")]
    ada.presses("Email")
    ada.is_at("/users?sort=email")
    ada.presses("Created")
    ada.is_at("/users?sort=created&order=desc")
    expect(ada.page.locator("tbody .name").first).to_have_text("Grace")
    ada.presses("Next")
    ada.sees("Page 2 of 2")
    expect(ada.page.locator("tbody .name").last).to_have_text("Ada")
    ada.page.reload()
    ada.sees("Page 2 of 2")
    assert sorted_by() == [("Created", "descending")]
    ada.page.go_back()
    ada.page.go_back()
    ada.is_at("/users?sort=email")
    assert ada.page.get_by_role("button", name="Email").count() == 1
    expect(ada.page.locator("th[aria-sort]")).to_have_text("Email")


def test_the_focus_stays_in_the_search_while_one_types_and_outdated_answers_are_dropped(ada: Visitor) -> None:
    held: list[Any] = []
    ada.page.route("**/api/users?*search=u", lambda route: held.append(route))  # noqa: PLW0108
    search = ada.field("Search by name or email")
    search.focus()
    ada.page.keyboard.type("u")
    ada.waits(lambda: bool(held))
    ada.page.keyboard.type("ser1")
    ada.sees("Page 1 of 1 · 10 in all")
    held[0].continue_()
    ada.page.keyboard.type("7")
    ada.sees("1 in all")
    assert rows(ada) == ["User17"]
    ada.has_focus_on(search)
    expect(search).to_have_value("user17")


def test_filters_by_state_and_group_keep_their_place(ada: Visitor) -> None:
    service = ada.site.service
    grace, zero, one = (
        service.accounts.find(f"{name}@example.com") for name in ("grace", "user00", "user01")
    )
    service.groups.add("staff", [grace.id, zero.id], by=OPERATOR)
    service.accounts.set_active([zero.id, one.id], active=False, by=OPERATOR)
    with service.store.write() as tx:
        for _ in range(80):
            tx.count_failure(f"user:{grace.id}", grace.id)
    for state, names in (
        ("Deactivated", ["User00", "User01"]),
        ("Locked", ["Grace"]),
        ("Not confirmed", []),
        ("Invited", []),
    ):
        ada.field("Show").select_option(label=state)
        ada.sees(f"{len(names)} in all" if names else "No users found.")
        assert rows(ada) == names, state
    ada.field("Show").select_option(label="Never signed in")
    ada.sees("56 in all")
    ada.field("Group").select_option(label="staff")
    ada.sees("2 in all")
    ada.is_at("/users?state=never-signed-in&group=staff")
    ada.page.reload()
    ada.sees("2 in all")
    assert rows(ada) == ["Grace", "User00"]
    expect(ada.field("Group")).to_have_value("staff")
    ada.page.go_back()
    ada.sees("56 in all")
    expect(ada.field("Group")).to_have_value("")


def test_a_group_of_the_address_that_does_not_exist_is_refused_in_words(ada: Visitor) -> None:
    ada.expected = {400}
    ada.goes("/users?group=ghosts")
    ada.sees("Unknown group")
    expect(ada.field("Group")).to_have_value("ghosts")


def test_an_admin_who_lost_the_role_is_told_so(ada: Visitor) -> None:
    ada.expected = {403}
    user = ada.site.service.accounts.find("ada@example.com")
    with ada.site.service.store.write() as tx:
        tx.change_user(user.id, role="user")
    ada.presses("Next")
    ada.sees("Admin access required")


def test_a_hundred_thousand_users_are_as_quick_as_ten(ada: Visitor) -> None:
    with opened(ada.site.service.settings.database) as database:
        database.execute(
            "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 100000)"
            " INSERT INTO users (email, name, password_hash, active, created_at, updated_at)"
            " SELECT 'person' || i || '@example.com', 'Person ' || i, '!', CASE WHEN i % 10 > 0 THEN 1 ELSE 0 END,"
            " '2026', '2026' FROM n"
        )

    def seconds(what: Callable[[], None], message: str) -> float:
        began = time.perf_counter()
        what()
        ada.sees(message)
        return time.perf_counter() - began

    search = "Search_by_name_or_email"
    # Generous, for a busy machine; it takes a tenth of that.
    assert seconds(lambda: ada.goes("/users"), "Page 1 of 2,002 · 100,057 in all") < 4
    assert seconds(lambda: ada.presses("Next"), "Page 2 of 2,002") < 4
    assert seconds(lambda: ada.fills(**{search: "person99999"}), "1 in all") < 4
    assert seconds(lambda: ada.fills(**{search: "person"}), "1,000 and more in all") < 4
    assert seconds(lambda: ada.field("Show").select_option("deactivated"), "500 and more in all") < 4
    asked = [line["ms"] for line in ada.site.log if line.get("path", "").startswith("/api/users?")]
    assert sorted(asked)[len(asked) // 2] < 150
    ada.goes("/users?page=2001")
    ada.sees("Page 2,001 of 2,002")
