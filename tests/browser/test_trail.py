"""The audit trail and the overview in a browser: filters, older rows, Back, the check of the chain, and no JavaScript."""

from collections.abc import Callable

import pytest
from support.commands import OPERATOR, PASSWORD, by_hand
from support.visitors import Visitor
from support.web import Site

from usersctl import trail
from usersd.pages import audit_page

Visit = Callable[..., Visitor]
House = Callable[..., Site]


@pytest.fixture
def site(house: House, monkeypatch: pytest.MonkeyPatch) -> Site:
    """A page of the trail has three rows, and a step of its check two."""
    for place, name, number in (
        (audit_page, "ROWS", 3),
        (audit_page, "END", 2),
        (trail, "END", 2),
        (trail, "STEP", 2),
    ):
        monkeypatch.setattr(place, name, number)
    site = house()
    site.add(role="admin")
    for name in ("grace", "bob", "zoe"):
        site.add(name)
    site.service.accounts.update(2, name="Admiral", by=OPERATOR)
    return site


@pytest.mark.parametrize("scripted", [True, False])
def test_an_admin_filters_the_trail_and_comes_back(site: Site, visit: Visit, scripted: bool) -> None:
    token = site.signed_in(site.service.accounts.get(1)).token
    visitor = visit(site, java_script_enabled=scripted)
    visitor.has_session(token)
    visitor.goes("/audit")
    visitor.sees("zoe@example.com")
    visitor.follows("Older rows")
    visitor.is_at("/audit?before=3")
    visitor.sees("grace@example.com")
    visitor.follows("grace@example.com")
    visitor.sees("Admiral")
    assert visitor.page.locator("#user").input_value() == "2"
    visitor.page.locator("#action").select_option("create")
    visitor.page.get_by_role("button", name="Show").press("Enter")
    visitor.page.wait_for_url("**action=create*")
    assert visitor.page.locator(".what").all_text_contents() == ["create"]
    visitor.page.go_back()
    visitor.sees("Admiral")
    visitor.page.reload()
    assert visitor.page.locator(".what").all_text_contents() == ["update", "create"]


def test_an_admin_signs_out_of_the_pages_that_need_no_script(site: Site, visit: Visit) -> None:
    for scripted in (True, False):
        token = site.signed_in(site.service.accounts.get(1)).token
        visitor = visit(site, java_script_enabled=scripted)
        visitor.has_session(token)
        visitor.goes("/overview")
        visitor.follows("Sign out")
        if not scripted:
            visitor.presses("Sign out")
        visitor.page.wait_for_url("**/log*")
        assert visitor.cookie() is None


@pytest.mark.parametrize("width", [320, 360, 390])
def test_a_date_is_not_cut_off_on_a_narrow_screen(site: Site, visit: Visit, width: int) -> None:
    visitor = visit(site, viewport={"width": width, "height": 640})
    visitor.signs_in(at="/login?redirect=/audit")
    for label in ("From (UTC)", "To (UTC)"):
        assert visitor.field(label).bounding_box()["width"] > 160, label


def test_an_address_stands_on_one_line_beside_long_details(site: Site, visit: Visit) -> None:
    site.add("lukasiewicz")
    site.service.accounts.update(2, name="Rear Admiral Grace Brewster Murray Hopper", by=OPERATOR)
    visitor = visit(site, viewport={"width": 1000, "height": 800})
    visitor.signs_in(at="/login?redirect=/audit")
    address = visitor.page.get_by_role("link", name="lukasiewicz@example.com")
    assert address.evaluate("link => link.getClientRects().length") == 1


def test_a_date_stands_in_the_middle_of_its_field(site: Site, visit: Visit) -> None:
    """Chromium has it there in any case, and WebKit only in a box that says so."""
    visitor = visit(site)
    visitor.signs_in(at="/login?redirect=/audit")
    for label in ("From (UTC)", "To (UTC)"):
        styles = visitor.field(label).evaluate(
            "(input) => { const s = getComputedStyle(input); return [s.display, s.alignItems]; }"
        )
        assert styles == ["flex", "center"]


def test_an_admin_checks_the_whole_chain(site: Site, visit: Visit) -> None:
    visitor = visit(site)
    visitor.signs_in(at="/login?redirect=/audit")
    visitor.sees("The newest 2 were just checked")
    visitor.presses("Check all rows")
    visitor.sees("All 5 rows were checked: none was changed, and none is missing.")
    by_hand(site.service.store.database, "UPDATE audit SET email = 'x' WHERE id = 2")
    visitor.presses("Check all rows")
    visitor.sees("No: row 2 does not follow from the one before it.")
    assert visitor.page.locator("#chain-state").get_attribute("aria-live") == "polite"


def test_the_overview_leads_to_what_it_counts(site: Site, visit: Visit) -> None:
    site.client().login("grace@example.com", PASSWORD)
    site.service.registration.register("new@example.com", "New", PASSWORD, by=OPERATOR)
    visitor = visit(site)
    visitor.signs_in(at="/login?redirect=/overview")
    visitor.sees("2 in all · 2 today")
    visitor.follows("Not confirmed")
    visitor.is_at("/users?state=awaiting")
    visitor.sees("new@example.com")
