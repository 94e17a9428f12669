"""The page of groups, as admins use it."""

from collections.abc import Callable

import pytest
from support.commands import OPERATOR
from support.visitors import Visitor, expect
from support.web import Site

Visit = Callable[..., Visitor]
House = Callable[..., Site]


@pytest.fixture
def ada(house: House, visit: Visit) -> Visitor:
    site = house()
    site.add(role="admin")
    visitor = visit(site)
    visitor.signs_in(at="/login?redirect=/users/groups")
    visitor.sees("There are no groups.")
    return visitor


def test_a_group_is_created_filled_and_deleted(ada: Visitor) -> None:
    ada.fills(Name_of_the_group="staff")
    ada.presses("Create group")
    ada.sees("The group staff has been created.")
    grace = ada.site.add("grace")
    ada.goes(f"/users/{grace.id}")
    ada.page.get_by_label("staff", exact=True).check()
    ada.page.locator("#groups").get_by_role("button", name="Save").click()
    ada.sees("grace@example.com has been saved.")
    assert ada.site.service.groups.of(grace.id) == ("staff",)
    ada.goes("/users/groups")
    ada.follows("1")
    ada.sees("Page 1 of 1 · 1 in all")
    ada.is_at("/users?group=staff")
    ada.goes("/users/groups")
    ada.button("Delete: staff").click()
    ada.sees("Members of the group staff: 1.")
    ada.presses("Delete")
    ada.sees("The group staff has been deleted.")
    ada.sees("There are no groups.")
    assert ada.site.service.groups.of(grace.id) == ()


def test_a_name_that_cannot_be_is_refused_at_the_field(ada: Visitor) -> None:
    ada.site.service.groups.create("staff", by=OPERATOR)
    ada.expected = {400}
    for name, text in (
        ("", "Please fill in this field."),
        ("Staff!", "Use a-z, 0-9 and . _ -"),
        ("staff", "This name is taken"),
    ):
        ada.fills(Name_of_the_group=name)
        ada.presses("Create group")
        ada.sees(text)
        ada.has_focus_on(ada.field("Name of the group"))
    assert [group.name for group in ada.site.service.groups.all()] == ["staff"]


def test_a_page_that_is_out_of_date_says_that_the_group_is_gone(ada: Visitor) -> None:
    ada.site.service.groups.create("staff", by=OPERATOR)
    ada.page.reload()
    ada.site.service.groups.delete("staff", by=OPERATOR)
    ada.expected = {404}
    ada.button("Delete: staff").click()
    ada.presses("Delete")
    ada.sees("There is no such group any more.")
    expect(ada.page.get_by_role("dialog")).to_have_count(0)
