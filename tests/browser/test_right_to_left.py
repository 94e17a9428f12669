"""Pages and names that are written from right to left."""

import json
from collections.abc import Callable
from pathlib import Path

from support.commands import OPERATOR, create_user
from support.looks import PHONE, WIDE
from support.visitors import Visitor, all_users, expect
from support.web import Site

from usersd.pages import layout

Visit = Callable[..., Visitor]
House = Callable[..., Site]

FOR_ADMINS = [path for _, path in layout.FOR_ADMINS]


# Whether the first letter of an element is within its box.
BEGINS_IN_SIGHT = """element => {
  const range = document.createRange();
  range.setStart(element.firstChild, 0);
  range.setEnd(element.firstChild, 1);
  const [letter, box] = [range, element].map((each) => each.getBoundingClientRect());
  return letter.left >= box.left - 1 && letter.right <= box.right + 1;
}"""


def test_a_long_name_from_right_to_left_is_cut_off_at_its_end(house: House, visit: Visit) -> None:
    site = house()
    site.add(role="admin")
    create_user(site.service, "noa@example.com", "ראשון " + "שלום עולם " * 10, None, by=OPERATOR)
    visitor = visit(site)
    all_users(visitor)
    name = visitor.page.locator("#users a.name", has_text="ראשון")
    assert name.evaluate("element => element.scrollWidth > element.clientWidth")  # it is cut off
    assert name.evaluate(BEGINS_IN_SIGHT)
    expect(name).to_have_css("text-align", "left")  # below the others
    visitor.goes("/users/2")
    expect(visitor.field("Name")).to_have_css("direction", "rtl")


# Where these words of an element begin.
BEGINS = """(element, words) => words.map((word) => {
  const texts = document.createTreeWalker(element, NodeFilter.SHOW_TEXT), range = new Range();
  for (let text; text = texts.nextNode();) {
    const place = text.data.indexOf(word);
    if (place < 0) continue;
    range.setStart(text, place);
    range.setEnd(text, place + 1);
    return range.getBoundingClientRect().left;
  }
})"""

# Where the letters of an element begin, in their order.
PLACES = """element => [...element.textContent].map((_, place) => {
  const range = new Range();
  range.setStart(element.firstChild, place);
  range.setEnd(element.firstChild, place + 1);
  return range.getBoundingClientRect().left;
})"""


def test_a_name_from_right_to_left_ends_at_its_left_as_a_heading(house: House, visit: Visit) -> None:
    site = house()
    site.add(role="admin")
    create_user(site.service, "noa@example.com", "נועה!", None, by=OPERATOR)
    visitor = visit(site)
    visitor.signs_in(at="/login?redirect=/users/2")
    heading = visitor.page.get_by_role("heading", level=1)
    expect(heading).to_have_text("נועה!")
    places = heading.evaluate(PLACES)
    assert places == sorted(places, reverse=True)
    assert places[-1] == heading.bounding_box()["x"]  # below the others


def from_right_to_left(house: House, folder: Path, own: dict[str, str] | None = None) -> Site:
    catalogue = folder / "own.json"
    catalogue.write_text(json.dumps({"lang": "ar"} | (own or {})))
    return house(locale=str(catalogue))


def test_a_page_is_written_from_right_to_left_for_such_a_language(
    house: House, visit: Visit, tmp_path: Path
) -> None:
    site = from_right_to_left(house, tmp_path)
    site.add(role="admin")
    visitor = visit(site, viewport=PHONE)
    visitor.signs_in(at="/login?redirect=/users")
    for path in ("/login", *FOR_ADMINS):
        visitor.goes(path)
        visitor.page.wait_for_load_state("networkidle")
        expect(visitor.page.locator("body")).to_have_css("direction", "rtl")
        assert visitor.page.evaluate(WIDE) == 0, path


def test_addresses_times_and_details_keep_their_order_on_a_page_from_right_to_left(
    house: House, visit: Visit, tmp_path: Path
) -> None:
    site = from_right_to_left(house, tmp_path)
    site.add(role="admin")
    create_user(site.service, f"{'w' * 60}@example.com", "Grace", None, by=OPERATOR)
    visitor = visit(site)
    all_users(visitor)
    address = visitor.page.locator("#users td.email", has_text="www")
    assert address.evaluate("element => element.scrollWidth > element.clientWidth")  # it is cut off
    assert address.evaluate(BEGINS_IN_SIGHT)
    expect(address).to_have_css("text-align", "right")  # below the others
    visitor.goes("/audit?action=create")
    row = visitor.page.get_by_role("row").nth(1)
    for part, begin, end in (("td.hint", "2026", "08:22"), ("th .hint", "role", "active")):
        places = dict(zip((begin, end), row.locator(part).evaluate(BEGINS, [begin, end]), strict=True))
        assert places[begin] < places[end], part


def test_a_key_to_type_keeps_its_order_on_a_page_from_right_to_left(
    house: House, visit: Visit, tmp_path: Path
) -> None:
    site = from_right_to_left(house, tmp_path, {"factors.totp.key": "مفتاح:"})
    site.add()
    visitor = visit(site)
    visitor.signs_in(at="/login?redirect=/account")
    visitor.presses("Set up an app")
    visitor.sees("Scan this with the app on your phone.")
    places = visitor.page.locator("#totp-key").evaluate(
        f"""(key) => {{
            key.textContent = "2345 ABCD";
            return ({PLACES})(key);
        }}"""
    )
    assert places == sorted(places)
