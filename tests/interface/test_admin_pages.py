"""The overview and the page of the audit trail, without a browser: what they show, and that text of rows is text."""

import re
from collections.abc import Callable
from html import unescape
from pathlib import Path
from urllib.parse import urlencode

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.commands import OPERATOR, PASSWORD, by_hand
from support.fakes import FakeClock
from support.web import Client, Site

from usersctl import trail
from usersctl.models import Actor
from usersd.pages import audit_page

EVIL = "<script>alert(1)</script><img src=x onerror='alert(1)'>\"'&"


@pytest.fixture
def admin(site: Site) -> Client:
    return site.signed_in(site.add("admin", role="admin"))


def shown(client: Client, path: str, **query: object) -> str:
    reply = client.get(f"{path}?{urlencode(query)}" if query else path)
    assert reply.status == 200
    return reply.body.decode()


def actions(page: str) -> list[str]:
    return re.findall(r'<span class="what">([^<]*)</span>', page)


def link(page: str, text: str) -> str | None:
    found = re.search(rf'<a [^>]*href="([^"]+)"[^>]*>{text}</a>', page)
    return unescape(found[1]) if found else None


# --- the trail ---


def test_the_trail_shows_the_newest_rows_and_leads_to_older_ones(
    site: Site, admin: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit_page, "ROWS", 2)
    site.service.accounts.update(1, name="Grace", by=OPERATOR)
    site.service.cleaner.run(by=OPERATOR)
    page = shown(admin, "/audit")
    assert actions(page) == ["cleanup-tokens", "update"]
    assert link(page, "Newest rows") is None
    older = link(page, "Older rows")
    assert older == "/audit?before=2"
    page = shown(admin, older)
    assert actions(page) == ["create"]
    assert "role: <bdi>admin</bdi>, active: <bdi>true</bdi>" in page
    assert link(page, "Older rows") is None
    assert link(page, "Newest rows") == "/audit?"
    monkeypatch.setattr(audit_page, "ROWS", 20)
    assert shown(admin, "/audit").count("<nav") == 1  # no empty one, which screen readers would list


def test_the_filter_stands_in_the_address_and_in_the_fields(
    site: Site, admin: Client, clock: FakeClock
) -> None:
    site.add("ada")
    clock.move(days=2)
    site.service.accounts.update(2, name="Countess", by=Actor("cli:root", "local"))
    admin = site.signed_in(site.service.accounts.get(1))
    page = shown(
        admin, "/audit", user="ada@example.com", actor="cli:root", action="update", **{"from": "2026-11-21"}
    )
    assert actions(page) == ["update"]
    assert 'value="ada@example.com"' in page
    assert 'value="cli:root"' in page
    assert "<option selected>update</option>" in page
    assert 'type="date" value="2026-11-21"' in page
    assert actions(shown(admin, "/audit", to="2026-11-20")) == ["create", "create"]
    assert actions(shown(admin, "/audit", **{"from": "2026-11-22", "to": "2026-11-22"})) == ["update"]
    assert actions(shown(admin, "/audit", **{"from": "2026-11-23"})) == []
    assert link(shown(admin, "/audit", user=2), "Open this user") == "/users/2"
    # A browser sends empty fields, too, and what was pasted may have blanks around it.
    sent = {"user": " ada@example.com ", "actor": "", "action": "", "from": "2026-11-22\t", "to": " "}
    assert actions(shown(admin, "/audit", **sent)) == ["update"]


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("user", "ada", "For the user, enter an id or an email address."),
        ("actor", "root", "enter a name as the rows show it"),
        ("action", "creat", "There is no such action."),
        ("from", "7d", "The first day cannot be read."),
        ("to", "9999-12-31", "The last day cannot be read."),
        ("before", "x", "This filter cannot be read."),
    ],
)
def test_a_filter_that_cannot_be_read_says_so_at_its_field(
    admin: Client, name: str, value: str, text: str
) -> None:
    page = shown(admin, "/audit", **{name: value})
    assert text in page
    assert actions(page) == []
    if name not in ("before", "action"):
        assert f'name="{name}" type="text" value="{value}"' in page
        assert page.count('aria-invalid="true" aria-errormessage="wrong"') == 1


def test_text_of_rows_and_of_the_address_is_text(site: Site, admin: Client) -> None:
    with site.service.store.write() as tx:
        ada = site.service.accounts.get(1)._replace(email=EVIL)
        tx.audit(Actor(f"cli:{EVIL}", EVIL), EVIL, ada, note=EVIL, **{EVIL: 1})
    for query in (
        {},
        {"user": EVIL},
        {"actor": f"cli:{EVIL}"},
        {"action": EVIL},
        {"from": EVIL},
        {"before": EVIL},
    ):
        page = shown(admin, "/audit", **query)
        assert page.count("<script") == 1
        assert "<img" not in page
        assert "onerror='" not in page
    database = site.service.store.database
    # A server takes no text that is not UTF-8.
    email = "CAST(x'ff3c' AS TEXT)" if isinstance(database, Path) else "'\ufffd<'"
    by_hand(database, f"UPDATE audit SET at = '<script>', email = {email} WHERE id = 2")  # noqa: S608 - ours
    page = shown(admin, "/audit")
    assert page.count("<script") == 1
    assert "\ufffd&lt;" in page
    overview = shown(admin, "/overview")
    assert overview.count("<script") == 1


TEXT = st.text(st.characters(exclude_categories=("Cs",)), max_size=20)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(query=st.dictionaries(st.sampled_from(["user", "actor", "action", "from", "to", "before"]), TEXT))
def test_no_filter_in_the_address_ends_in_an_error(admin: Client, query: dict[str, str]) -> None:
    assert shown(admin, "/audit", **query)


def test_the_state_of_the_chain_is_shown(site: Site, admin: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "All 1 rows were checked" in shown(admin, "/audit")
    monkeypatch.setattr(trail, "END", 2)
    monkeypatch.setattr(audit_page, "END", 2)
    for _ in range(3):
        site.service.cleaner.run(by=OPERATOR)
    page = shown(admin, "/audit")
    assert "It has 4 rows. The newest 2 were just checked" in page
    assert 'id="check"' in page
    by_hand(site.service.store.database, "UPDATE audit SET actor = 'cli:other' WHERE id = 3")
    assert "No: row 3 does not follow from the one before it." in shown(admin, "/audit")
    by_hand(site.service.store.database, "DELETE FROM audit WHERE id >= 3")
    assert "No: the trail does not end where it should." in shown(admin, "/audit")


# --- the overview ---


def numbers(page: str) -> dict[str, str]:
    found = re.findall(r"<li[^>]*><strong>([^<]+)</strong>\s*<(?:a|span)[^>]*>([^<]+)<", page)
    return {text: number for number, text in found}


def test_the_overview_shows_numbers_charts_and_what_ran_last(
    site: Site, admin: Client, clock: FakeClock
) -> None:
    site.add("ada")
    assert site.client().login("ada@example.com", PASSWORD).status == 200
    assert site.client().login("ada@example.com", "wrong").status == 401
    site.service.cleaner.run(by=OPERATOR)
    page = shown(admin, "/overview")
    assert numbers(page) == {
        "Users": "2",
        "Active": "2",
        "Admins": "1",
        "Not confirmed": "0",
        "Invited": "0",
        "Locked": "0",
        "Groups": "0",
        "Emails waiting": "0",
        "Emails failed": "0",
    }
    assert link(page.partition('class="numbers"')[2], "Groups") == "/users/groups"
    today = f"{clock():%Y-%m-%d}"
    assert link(page, today) == f"/audit?from={today}&to={today}"
    assert re.search(rf"{today}</a></th><td>2</td><td>1</td><td>0</td>", page)  # the admin signed in, too
    assert page.count("<svg") == 3
    assert page.count('<tr><th scope="row">') == 30
    assert f"<title>{today}: 2</title>" in page
    assert "2 in all · 2 today · at most 2 in a day" in page
    assert f'<time datetime="{clock():%Y-%m-%dT%H:%MZ}' in page
    assert "Never. To run it each night:" in page
    assert "usersctl snippet backup" in page


def test_the_overview_tells_of_the_schedule_before_the_first_cleanup(make_site: Callable[..., Site]) -> None:
    def last_cleanup(name: str, schedule: str | None) -> str:
        site = make_site(cleanup_schedule=schedule)
        page = shown(site.signed_in(site.add(name, role="admin")), "/overview")
        return page.partition("Last cleanup")[2].partition("</dd>")[0]

    scheduled = last_cleanup("ada", "30 3 * * *")
    assert "Not yet. The daemon runs it by its schedule:" in scheduled
    assert "30 3 * * *" in scheduled
    assert "snippet" not in scheduled
    assert "usersctl snippet cron" in last_cleanup("grace", None)


def test_large_numbers_are_readable_in_every_language(site: Site, admin: Client) -> None:
    by_hand(
        site.service.store.database,
        "INSERT INTO daily_counts (day, sign_ins) VALUES ('2026-11-19', 1234567)",
    )
    for language, number in {
        "en": ": 1,234,567",
        "de": ": 1.234.567",
        "fr": "\u00a0: 1\u202f234\u202f567",
        "es": ": 1\u202f234\u202f567",
    }.items():
        reply = admin.get("/overview", headers={"Accept-Language": language})
        assert f"2026-11-19{number}</title>" in reply.body.decode()


def test_what_is_counted_up_to_a_bound_says_so(
    site: Site, admin: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("usersctl.overview", "usersd.pages.overview_page"):
        monkeypatch.setattr(f"{module}.MANY", 2)
    for name in ("a", "b", "c"):
        site.service.groups.create(name, by=OPERATOR)
    assert numbers(shown(admin, "/overview"))["Groups"] == "2+"
