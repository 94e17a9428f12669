"""Pages in every language, and in one that an operator began to translate."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from support.commands import OPERATOR, PASSWORD, create_user
from support.fakes import FakeClock
from support.looks import LINK, PHONE, WIDE, violations
from support.visitors import Visitor, expect
from support.web import Site

from usersctl.models import Client
from usersd.pages import layout, texts

Visit = Callable[..., Visitor]
House = Callable[..., Site]

OPEN_TO_ALL = [
    "/login",
    "/logout",
    "/second-factor",
    "/register",
    "/forgot-password",
    "/dev/mail",
    "/api/users/auth/oauth/redirect",
]
BY_LINK = [
    "confirm-email",
    "accept-invite",
    "reset-password",
    "not-me",
    "confirm-new-email",
    "confirm-deletion",
    "undo-deletion",
]
FOR_ADMINS = [path for _, path in layout.FOR_ADMINS]


def an_admin(site: Site, visit: Visit, locale: str) -> Visitor:
    token = site.signed_in(site.add(role="admin")).token
    visitor = visit(site, locale=locale)
    visitor.has_session(token)
    return visitor


@pytest.mark.parametrize("locale", [name for name in texts.shipped() if name != "en"])
def test_every_page_is_accessible_and_fits_in_every_language(house: House, visit: Visit, locale: str) -> None:
    site = house()
    site.add(role="admin")
    site.service.recovery.forgot("ada@example.com")
    site.service.outbox.work()
    visitor = visit(site, viewport=PHONE, reduced_motion="reduce", locale=locale)
    visitor.expected = {404}

    def look(path: str) -> None:
        visitor.goes(path)
        visitor.page.wait_for_load_state("networkidle")
        expect(visitor.page.locator("html")).to_have_attribute("lang", locale)
        assert violations(visitor.page) == [], path
        assert visitor.page.evaluate(WIDE) == 0, path

    for path in [*OPEN_TO_ALL, *(f"/{name}{LINK}" for name in BY_LINK)]:
        look(path)
    # In the language of the page, whose labels are others.
    visitor.page.request.post(
        visitor.base + "/api/users/session", data={"email": "ada@example.com", "password": PASSWORD}
    )
    for path in [*FOR_ADMINS, "/users/1", "/nowhere"]:
        look(path)


@pytest.mark.parametrize("locale", texts.shipped())
def test_the_pages_of_admins_need_no_scrolling_to_the_side_on_tablets_and_at_a_zoom_of_400_percent(
    house: House, visit: Visit, locale: str
) -> None:
    site = house()
    site.add(role="admin")
    grace = {"email": "grace@example.com", "name": "Grace Hopper", "password": PASSWORD}
    site.client().post("/api/users/register", grace)
    create_user(site.service, "emmy@example.com", "Emmy", None, by=OPERATOR)
    site.service.groups.create("staff", by=OPERATOR)
    visitor = visit(site, viewport={"width": 320, "height": 256}, locale=locale)
    visitor.goes("/login")
    visitor.page.request.post(
        visitor.base + "/api/users/session", data={"email": "ada@example.com", "password": PASSWORD}
    )
    for path in [*FOR_ADMINS, "/users/2", "/users/3"]:
        visitor.goes(path)
        visitor.page.wait_for_load_state("networkidle")
        for width in (320, 641, 700, 768, 897, 960, 1024):
            visitor.page.set_viewport_size({"width": width, "height": 800})
            assert visitor.page.evaluate(WIDE) == 0, (path, width)


# The words of an element that are cut in two, but for those that have a hyphen there.
CUT_WORDS = """element => {
  const cut = [], range = document.createRange(), texts = document.createTreeWalker(element, NodeFilter.SHOW_TEXT);
  for (let text; text = texts.nextNode();) for (const { 0: word, index } of text.data.matchAll(/[^\\s-]+-?/g)) {
    range.setStart(text, index);
    range.setEnd(text, index + word.length);
    if (range.getClientRects().length > 1) cut.push(word);
  }
  return cut;
}"""


@pytest.mark.parametrize("locale", texts.shipped())
def test_the_table_of_the_overview_cuts_no_word_of_its_head(house: House, visit: Visit, locale: str) -> None:
    site = house()
    visitor = an_admin(site, visit, locale)
    visitor.goes("/overview")
    visitor.page.locator("summary").click()
    head = visitor.page.locator("thead")
    for width in (320, 360, 390, 480, 608, 640, 768, 1280):
        visitor.page.set_viewport_size({"width": width, "height": 800})
        assert head.evaluate(CUT_WORDS) == [], width
        assert visitor.page.evaluate(WIDE) == 0, width


# How much wider the chosen text of a list is than the room for it, without the list's own arrow.
TOO_LONG = """list => {
  const { font, paddingLeft, paddingRight } = getComputedStyle(list);
  const pen = document.createElement("canvas").getContext("2d");
  pen.font = font;
  return pen.measureText(list.selectedOptions[0].text).width + parseFloat(paddingLeft) + parseFloat(paddingRight) + 16 - list.clientWidth;
}"""


@pytest.mark.parametrize("locale", texts.shipped())
def test_the_lists_above_all_users_show_what_is_chosen(house: House, visit: Visit, locale: str) -> None:
    site = house()
    site.service.groups.create("staff", by=OPERATOR)
    visitor = an_admin(site, visit, locale)
    visitor.goes("/users?sort=last-login&order=desc")
    for width in (320, 375, 768):
        visitor.page.set_viewport_size({"width": width, "height": 800})
        for name in ("state", "role", "group", "sort"):
            expect(visitor.page.locator(f"#{name}")).to_be_visible()
            assert visitor.page.locator(f"#{name}").evaluate(TOO_LONG) <= 0, (name, width)
    visitor.page.set_viewport_size({"width": 1280, "height": 800})
    labels = visitor.page.locator("#find label").locator("visible=true").all()
    assert len({label.bounding_box()["height"] for label in labels}) == 1  # each in one line


@pytest.mark.parametrize("locale", texts.shipped())
def test_the_list_above_the_audit_trail_shows_what_is_chosen(house: House, visit: Visit, locale: str) -> None:
    site = house()
    visitor = an_admin(site, visit, locale)
    visitor.goes("/audit")
    for width in (320, 768, 1280):
        visitor.page.set_viewport_size({"width": width, "height": 800})
        assert visitor.page.locator("#action").evaluate(TOO_LONG) <= 0, width


@pytest.mark.parametrize("locale", texts.shipped())
def test_the_pages_of_admins_fit_on_a_phone_with_letters_of_twice_the_size(
    house: House, visit: Visit, locale: str
) -> None:
    site = house()
    token = site.signed_in(site.add(role="admin")).token
    site.service.groups.create("staff", by=OPERATOR)
    visitor = visit(site, viewport={"width": 375, "height": 667}, locale=locale)
    larger = {"fontSizes": {"standard": 32, "fixed": 26}}
    visitor.context.new_cdp_session(visitor.page).send("Page.setFontSizes", larger)
    visitor.goes("/login")
    assert visitor.page.locator("a.button").evaluate(CUT_WORDS) == []
    visitor.has_session(token)
    for path in FOR_ADMINS:
        visitor.goes(path)
        visitor.page.wait_for_load_state("networkidle")
        for part in visitor.page.locator("details").all():
            part.evaluate("part => part.open = true")
        expect(visitor.page.locator("body")).to_have_css("font-size", "32px")
        assert visitor.page.evaluate(WIDE) == 0, path


def test_the_time_of_an_invitation_is_in_the_case_that_german_asks_for(house: House, visit: Visit) -> None:
    site = house()
    ada = an_admin(site, visit, "de-DE")
    ada.goes("/users")
    ada.presses("Einladen")
    expect(ada.field("Läuft ab nach").locator("option:checked")).to_have_text("7 Tagen")


def test_the_pages_speak_german(house: House, visit: Visit) -> None:
    site = house(locale="de", require_numbers=True)
    site.add(role="admin", password="correct horse 7")
    site.add("grace", password=None)
    ada = visit(site, locale="de-DE")
    ada.expected = {400, 401, 429}
    ada.goes("/login")
    ada.fills(**{"E-Mail-Adresse": "ada@example.com"}, Passwort="falsch")
    ada.presses("Anmelden")
    ada.sees("E-Mail-Adresse oder Passwort stimmt nicht.")
    ada.fills(Passwort="correct horse 7")
    ada.presses("Anmelden")
    ada.sees("Wo Sie angemeldet sind")
    ada.fills(Aktuelles_Passwort="x", Neues_Passwort="zu kurz", Neues_Passwort_wiederholen="zu kurz")
    ada.presses("Passwort ändern")
    ada.sees("Dieses Passwort erfüllt noch nicht alle Regeln.")
    ada.follows("Benutzer")
    ada.sees("Seite 1 von 1 · insgesamt 2")
    ada.page.get_by_label("Auswählen: grace@example.com").check()
    ada.presses("Deaktivieren")
    ada.page.get_by_role("dialog").get_by_role("button", name="Deaktivieren").click()
    ada.sees("Deaktiviert: 1. Alle ihre Sitzungen wurden beendet.")
    assert violations(ada.page) == []
    for _ in range(10):
        site.client().login("ada@example.com", "wrong")
    ada.presses("Abmelden")
    ada.is_at("/login")
    ada.loses_cookies()  # strangers' failed logins keep no known device out
    ada.fills(**{"E-Mail-Adresse": "ada@example.com"}, Passwort="falsch")
    ada.presses("Anmelden")
    ada.sees("Bitte warten Sie 30 Sekunden")


@pytest.mark.parametrize("locale", texts.shipped())
def test_each_button_that_ends_a_session_or_token_has_a_name_of_its_own(
    house: House, visit: Visit, clock: FakeClock, locale: str
) -> None:
    site = house()
    ada = site.add(role="admin")
    agent = "Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/131.0.0.0 Safari/537.36"
    for address in ("192.0.2.1", "192.0.2.1", "192.0.2.2"):
        site.service.sessions.login(ada.email, PASSWORD, client=Client(address, agent))
        site.service.sessions.create_api_token(ada.id, name="nightly", lifetime=None, by=OPERATOR)
        clock.move(minutes=1)
    token = site.signed_in(ada).token
    visitor = visit(site, locale=locale)
    visitor.has_session(token)
    for path in ("/account", "/users/1"):
        visitor.goes(path)
        for width in (320, 1280):  # on a phone the beginning of a session is not to be seen
            visitor.page.set_viewport_size({"width": width, "height": 800})
            names = [button.aria_snapshot() for button in visitor.page.locator("[data-act=end]").all()]
            assert len(set(names)) == len(names) == 6
            for name in names:
                assert re.search(r"(nightly|Chrome · Linux 192\.0\.2\.[12]) · .*\d", name), name


def test_dates_are_written_as_the_language_of_the_page_does(house: House, visit: Visit) -> None:
    site = house()
    site.add()
    site.service.recovery.forgot("ada@example.com")
    site.service.outbox.work()
    written = {"de-DE": r"^\d\d\.\d\d\.\d{4}, \d\d:\d\d$", "fr-CA": r"^\d{1,2} .+ \d{4}, \d\d\W?h \d\d$",
               "es-ES": r"^\d{1,2} \w+ \d{4}, \d{1,2}:\d\d$", "en-US": r"^\w+ \d{1,2}, \d{4}, \d{1,2}:\d\d\W[AP]M$"}  # fmt: skip
    for locale, pattern in written.items():
        visitor = visit(site, locale=locale)
        visitor.goes("/dev/mail")
        expect(visitor.page.locator("time")).to_have_text(re.compile(pattern))
        expect(visitor.page.locator("html")).to_have_attribute("lang", locale[:2])
    silent = visit(site, java_script_enabled=False)
    silent.goes("/dev/mail")
    expect(silent.page.locator("time")).to_have_text(re.compile(r"^\d{4}-\d\d-\d\d \d\d:\d\d UTC$"))


def test_the_pages_work_in_a_browser_whose_language_has_no_valid_name(house: House, visit: Visit) -> None:
    site = house()
    site.add()
    visitor = visit(site)
    visitor.context.add_init_script(
        "Object.defineProperty(navigator, 'languages', {get: () => ['en-US@posix', 'en-GB']})"
    )
    visitor.signs_in(at="/login?redirect=/account")
    expect(visitor.page.locator("time").first).to_have_text(re.compile(r"^\d{1,2} \w+ \d{4}, "))  # British
    visitor.presses("Save")
    visitor.sees("Saved.")


def test_a_partial_catalogue_is_completed_in_english(house: House, visit: Visit, tmp_path: Path) -> None:
    file = tmp_path / "nds.json"
    file.write_text(
        json.dumps({"lang": "nds", "login.title": "Moin", "messages": {"Invalid email or password": "Nee"}})
    )
    visitor = visit(house(locale=str(file)))
    visitor.expected = {401}
    visitor.goes("/login")
    expect(visitor.page.get_by_role("heading")).to_have_text("Moin")
    visitor.fills(Email="ada@example.com", Password="x")
    visitor.presses("Sign in")
    visitor.sees("Nee")
