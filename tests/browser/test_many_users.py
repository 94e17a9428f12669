"""Changes of many users at once, chosen in the list of the page."""

import csv
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest
from support.commands import OPERATOR
from support.user_list import admin_at_the_list, box, row, rows
from support.visitors import Visitor, expect
from support.web import Site

from usersctl.invitations import guest
from usersctl.models import Newcomer

Visit = Callable[..., Visitor]
House = Callable[..., Site]


@pytest.fixture
def ada(house: House, visit: Visit) -> Visitor:
    return admin_at_the_list(house, visit)


def acts(visitor: Visitor, action: str, submit: str | None = None) -> None:
    """Presses the button for the chosen users, and the one of the question."""
    visitor.presses(action)
    visitor.page.get_by_role("dialog").get_by_role("button", name=submit or action, exact=True).click()


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
    ada.presses("Delete…")
    ada.sees("These accounts are deleted for good")
    ada.page.keyboard.press("Escape")
    ada.has_focus_on(ada.button("Delete…"))
    assert ada.site.service.accounts.find("grace@example.com")
    acts(ada, "Delete…", "Delete")  # no dots: nothing else is asked
    ada.sees("Deleted: 2.")
    ada.sees("55 in all")
    expect(row(ada, "grace")).to_have_count(0)


def test_a_held_key_does_not_confirm_the_deletion(ada: Visitor) -> None:
    for key in ("Enter", "Space"):
        box(ada, "grace").check()
        ada.button("Delete…").focus()
        for _ in range(20):  # without the release of the key in between, each is a repetition
            ada.page.keyboard.down(key)
        ada.has_focus_on(ada.button("Cancel") if key == "Enter" else ada.button("Delete…"))
        ada.page.keyboard.up(key)
        ada.sees("These accounts are deleted for good")
        ada.page.keyboard.press("Escape")
        ada.has_focus_on(ada.button("Delete…"))
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
        tx.delete_users([user.id])
    acts(ada, "Deactivate")
    ada.sees("This account no longer exists. Nothing has been changed.")
    expect(row(ada, "grace")).to_have_count(0)
    expect(row(ada, "user00")).to_contain_text("Active")


def test_the_choice_outlives_a_refusal_and_a_lost_connection_promises_nothing(ada: Visitor) -> None:
    ada.expected = {400}
    for name in ("grace", "user00"):
        box(ada, name).check()
    acts(ada, "Invite again")
    ada.sees("grace@example.com needs no invitation. Nothing has been changed.")
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
