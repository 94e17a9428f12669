"""The page of all users, as admins use it."""

import csv
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from support.commands import OPERATOR, PASSWORD
from support.databases import opened
from support.visitors import Visitor, expect
from support.web import Site

from usersctl.invitations import guest
from usersctl.models import Newcomer

Visit = Callable[..., Visitor]
House = Callable[..., Site]


@pytest.fixture
def ada(house: House, visit: Visit) -> Visitor:
    """An admin at the page, with 55 other users."""
    site = house()
    site.add(role="admin")
    with site.service.store.write() as tx:
        tx.add_users([Newcomer(f"user{number:02}@example.com", f"User{number:02}") for number in range(55)])
    site.add("grace")
    site.service.groups.create("staff", by=OPERATOR)
    visitor = visit(site)
    visitor.signs_in(at="/login?redirect=/users")
    visitor.sees("Page 1 of 2 · 57 in all")
    return visitor


def rows(visitor: Visitor) -> list[str]:
    """The names in the list."""
    return list(visitor.page.locator("tbody .name").all_inner_texts())


def row(visitor: Visitor, name: str) -> object:
    return visitor.page.get_by_role("row").filter(has_text=f"{name}@example.com")


def box(visitor: Visitor, name: str) -> Any:
    return visitor.page.get_by_label(f"Choose: {name}@example.com", exact=True)


def acts(visitor: Visitor, action: str, submit: str | None = None) -> None:
    """Presses the button for the chosen users, and the one of the question."""
    visitor.presses(action)
    visitor.page.get_by_role("dialog").get_by_role("button", name=submit or action, exact=True).click()


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


# --- many users at once ---


def test_users_are_chosen_across_pages_and_filters(ada: Visitor) -> None:
    expect(ada.button("Deactivate")).to_be_hidden()
    box(ada, "user00").check()
    ada.sees("Chosen: 1")
    ada.presses("Next")
    ada.sees("Page 2 of 2")
    box(ada, "user54").check()
    ada.sees("Chosen: 2")
    ada.fills(Search_by_name_or_email="user0")
    ada.sees("10 in all")
    expect(box(ada, "user00")).to_be_checked()
    whole = ada.page.get_by_label("Choose all on this page")
    assert whole.evaluate("box => box.indeterminate")
    whole.check()
    ada.sees("Chosen: 11")
    whole.uncheck()
    ada.sees("Chosen: 1")
    ada.presses("Choose none")
    ada.misses("Chosen:")
    expect(ada.button("Deactivate")).to_be_hidden()


def test_the_own_account_cannot_be_chosen(ada: Visitor) -> None:
    expect(box(ada, "ada")).to_have_count(0)
    ada.field("Role").select_option(label="Admin")
    ada.sees("1 in all")
    expect(ada.page.get_by_label("Choose all on this page")).to_be_disabled()


def test_all_that_a_list_holds_are_chosen_deactivated_and_activated(ada: Visitor) -> None:
    ada.page.get_by_label("Choose all on this page").check()
    ada.sees("Chosen: 49")
    ada.presses("Choose all 57")
    ada.sees("Chosen: 56")
    ada.presses("Deactivate")
    question = ada.page.get_by_role("dialog")
    expect(question).to_contain_text(
        "Chosen: 56 (grace@example.com, user00@example.com, user01@example.com, …)."
    )
    ada.presses("Cancel")
    ada.has_focus_on(ada.button("Deactivate"))
    ada.sees("Chosen: 56")
    acts(ada, "Deactivate")
    ada.sees("Deactivated: 56. All of their sessions have ended.")
    expect(row(ada, "user00")).to_contain_text("Deactivated")
    ada.misses("Chosen:")
    ada.has_focus_on(ada.page.get_by_label("Choose all on this page"))
    box(ada, "grace").check()
    acts(ada, "Activate")
    ada.sees("Activated: 1.")
    expect(row(ada, "grace")).to_contain_text("Active")


def test_chosen_users_join_and_leave_a_group(ada: Visitor) -> None:
    for name in ("grace", "user03"):
        box(ada, name).check()
    acts(ada, "Add to group")
    ada.sees("Added to the group staff: 2.")
    ada.field("Group").first.select_option(label="staff")
    ada.sees("2 in all")
    box(ada, "grace").check()
    acts(ada, "Remove from group")
    ada.sees("Removed from the group staff: 1.")
    ada.sees("1 in all")
    assert rows(ada) == ["User03"]


def test_the_sessions_of_chosen_users_are_ended(ada: Visitor, visit: Visit) -> None:
    grace = visit(ada.site)
    grace.signs_in("grace")
    grace.expected = {401}
    box(ada, "grace").check()
    acts(ada, "End sessions")
    ada.sees("Accounts whose sessions have ended: 1.")
    grace.presses("Save")
    grace.sees("Your session has ended.")


def test_chosen_guests_are_invited_again(ada: Visitor) -> None:
    ada.site.service.invitations.invite([guest("ida@example.com", "Ida")], timedelta(days=1), by=OPERATOR)
    ada.field("Show").select_option(label="Invited")
    ada.sees("1 in all")
    expect(row(ada, "ida")).to_contain_text("Invited")
    box(ada, "ida").check()
    acts(ada, "Invite again")
    ada.sees("Invited again: 1.")


def test_chosen_users_are_deleted_only_after_a_question(ada: Visitor) -> None:
    for name in ("grace", "user00"):
        box(ada, name).check()
    ada.presses("Delete …")
    ada.sees("These accounts are deleted for good")
    ada.page.keyboard.press("Escape")
    ada.has_focus_on(ada.button("Delete …"))
    assert ada.site.service.accounts.find("grace@example.com")
    acts(ada, "Delete …", "Delete")  # no dots: nothing else is asked
    ada.sees("Deleted: 2.")
    ada.sees("55 in all")
    expect(row(ada, "grace")).to_have_count(0)


def test_a_held_key_does_not_confirm_the_deletion(ada: Visitor) -> None:
    for key in ("Enter", "Space"):
        box(ada, "grace").check()
        ada.button("Delete …").focus()
        for _ in range(20):  # without the release of the key in between, each is a repetition
            ada.page.keyboard.down(key)
        ada.has_focus_on(ada.button("Cancel") if key == "Enter" else ada.button("Delete …"))
        ada.page.keyboard.up(key)
        ada.sees("These accounts are deleted for good")
        ada.page.keyboard.press("Escape")
        ada.has_focus_on(ada.button("Delete …"))
    assert [line["path"] for line in ada.site.log if line.get("path") == "/api/users/bulk"] == []
    ada.page.keyboard.press("Enter")
    ada.has_focus_on(ada.button("Cancel"))
    ada.page.keyboard.press("Shift+Tab")
    ada.has_focus_on(ada.page.get_by_role("dialog").get_by_role("button", name="Delete", exact=True))
    ada.page.keyboard.press("Enter")
    ada.sees("Deleted: 1.")


def test_a_refusal_of_a_change_of_many_says_that_nothing_was_changed(ada: Visitor) -> None:
    ada.expected = {404}
    for name in ("grace", "user00"):
        box(ada, name).check()
    user = ada.site.service.accounts.find("grace@example.com")
    with ada.site.service.store.write() as tx:
        tx.delete_user(user.id)
    acts(ada, "Deactivate")
    ada.sees("This account no longer exists. Nothing has been changed.")
    expect(row(ada, "grace")).to_have_count(0)
    expect(row(ada, "user00")).to_contain_text("Active")


def test_the_choice_outlives_a_refusal_and_a_lost_connection_promises_nothing(ada: Visitor) -> None:
    ada.expected = {400}
    for name in ("grace", "user00"):
        box(ada, name).check()
    acts(ada, "Invite again")
    ada.sees("Nothing has been changed.")
    ada.sees("Chosen: 2")
    ada.offline = True
    ada.page.route("**/api/users/bulk", lambda route: route.abort())
    acts(ada, "Deactivate")
    ada.sees("The server cannot be reached.")
    ada.misses("Nothing has been changed.")
    ada.sees("Chosen: 2")
    ada.page.unroute("**/api/users/bulk")
    acts(ada, "Deactivate")
    ada.sees("Deactivated: 2.")


def test_chosen_users_are_exported_as_a_table_that_runs_no_formula(ada: Visitor, tmp_path: Path) -> None:
    names = ["=1+1", "+1", "-1", "@SUM(A1)", "  =1", 'Quoted "name", here', "Zoë 田中", "\uff1d1", "a=b"]
    with ada.site.service.store.write() as tx:
        tx.add_users([Newcomer(f"odd{number}@example.com", name) for number, name in enumerate(names)])
    ada.fills(Search_by_name_or_email="odd")
    ada.sees("9 in all")
    ada.page.get_by_label("Choose all on this page").check()
    with ada.page.expect_download() as download:
        ada.presses("Export as CSV")
    file = tmp_path / "users.csv"
    download.value.save_as(file)
    assert download.value.suggested_filename == "127.0.0.1.csv"
    with file.open(encoding="utf-8-sig", newline="") as lines:
        table = list(csv.DictReader(lines))
    assert list(table[0]) == ["id", "email", "name", "role", "active", "created_at", "last_login_at"]
    exported = {line["email"]: line["name"] for line in table}
    for number, name in enumerate(names):
        is_formula = name.lstrip().startswith(("=", "+", "-", "@", "\uff1d"))
        assert exported[f"odd{number}@example.com"] == ("'" if is_formula else "") + name
    ada.sees("Chosen: 9")


@pytest.mark.slow
def test_five_hundred_of_five_thousand_users_are_filtered_sorted_chosen_and_deactivated(ada: Visitor) -> None:
    with ada.site.service.store.write() as tx:
        for start in range(0, 5_000, 500):
            people = [
                Newcomer(
                    f"person{number:04}@example.com",
                    f"Person {number * 37 % 5_000:04}",
                    last_login_at=None if number % 10 == 0 else "2026-11-01T00:00:00.000Z",
                )
                for number in range(start, start + 500)
            ]
            tx.add_users(people)
    ada.goes("/users?search=person")
    ada.sees("in all")
    ada.field("Show").select_option(label="Never signed in")
    ada.presses("Email")
    ada.sees("Page 1 of 10 · 500 in all")
    ada.waits(lambda: rows(ada)[:2] == ["Person 0000", "Person 0370"])
    ada.page.get_by_label("Choose all on this page").check()
    ada.presses("Choose all 500")
    ada.sees("Chosen: 500")
    acts(ada, "Deactivate")
    ada.sees("Deactivated: 500. All of their sessions have ended.")
    ada.is_at("/users?search=person&state=never-signed-in&sort=email")
    with ada.site.service.store.read() as tx:
        assert tx._run("SELECT count(*) FROM users WHERE active = 0").fetchone() == (500,)
        assert tx._run("SELECT count(*) FROM audit WHERE action = 'deactivate'").fetchone() == (500,)


def test_at_most_a_thousand_users_are_chosen(ada: Visitor) -> None:
    with ada.site.service.store.write() as tx:
        for start in (0, 500, 1_000):
            tx.add_users([Newcomer(f"p{start + n}@example.com", f"P{start + n}") for n in range(500)])
    ada.goes("/users")
    ada.page.get_by_label("Choose all on this page").check()
    ada.presses("Choose the first 1,000")
    ada.sees("Chosen: 1,000")
    ada.fills(Search_by_name_or_email="user54")
    ada.sees("1 in all")
    box(ada, "user54").click()
    ada.sees("No more than 1,000 users can be chosen at once.")
    expect(box(ada, "user54")).not_to_be_checked()
    ada.sees("Chosen: 1,000")


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
