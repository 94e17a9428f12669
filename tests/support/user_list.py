"""The page of all users, as an admin has it before them."""

from collections.abc import Callable
from typing import Any

from support.commands import OPERATOR
from support.visitors import Visitor
from support.web import Site

from usersctl.models import Newcomer


def admin_at_the_list(house: Callable[..., Site], visit: Callable[..., Visitor]) -> Visitor:
    """Ada, with 55 other users and Grace."""
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
