"""The page of one user: what stands in it, for whom, and that no value of it is taken for markup."""

import json
import re
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from support.commands import OPERATOR, PASSWORD, create_user
from support.factors import store_passkey
from support.web import Site

from usersctl.invitations import Guest
from usersctl.models import Client, Identity, User
from usersctl.why import Cause
from usersd.pages import pages, user_page

LIKE_CHROME = "AppleWebKit/537.36 (KHTML, like Gecko) Chrome/131.0.0.0"
ON_IPHONE = "Mozilla/5.0 (iPhone; CPU iPhone OS 17_0 like Mac OS X) AppleWebKit/605.1.15 (KHTML, like Gecko)"
BROWSER = {"Accept": "text/html", "Sec-Fetch-Mode": "navigate"}
LOCALES = sorted((Path(pages.__file__).parent / "locales").glob("*.json"))
HTML = "\"'><xss onload=alert(1)>{{7*7}}"


@pytest.fixture
def root(site: Site) -> User:
    return site.add("root", role="admin")


@pytest.fixture
def page(site: Site, root: User) -> Iterator[Callable[..., str]]:
    """The text of a user's page, as an admin gets it."""
    admin = site.signed_in(root)

    def page(user: User, query: str = "") -> str:
        reply = admin.get(f"/users/{user.id}{query}", headers=BROWSER)
        assert (reply.status, reply.header("Content-Type")) == (200, "text/html; charset=utf-8")
        return reply.body.decode()

    return page


def acts(text: str) -> set[str]:
    return set(re.findall(r'data-act="([^"]+)"', text))


def test_every_cause_and_every_button_has_its_texts_in_each_language() -> None:
    names = {act.name for act in vars(user_page).values() if isinstance(act, user_page.Act)}
    wanted = {"why.title"} | {f"why.{cause}" for cause in Cause}
    wanted |= {f"act.{name}{part}" for name in names for part in ("", ".ask", ".done")}
    for file in LOCALES:
        there = {key for key in json.loads(file.read_text("utf-8")) if key.startswith(("why.", "act."))}
        assert there == wanted, file.name


@pytest.mark.parametrize(
    ("agent", "called"),
    [
        (
            f"Mozilla/5.0 (Windows NT 10.0; Win64; x64) {LIKE_CHROME} Safari/537.36 Edg/131.0.0.0",
            "Edge · Windows",
        ),
        (
            f"Mozilla/5.0 (Windows NT 10.0; Win64; x64) {LIKE_CHROME} Safari/537.36 OPR/116.0.0.0",
            "Opera · Windows",
        ),
        (f"Mozilla/5.0 (Linux; Android 10; K) {LIKE_CHROME} Mobile Safari/537.36", "Chrome · Android"),
        (f"Mozilla/5.0 (X11; CrOS x86_64 14541.0.0) {LIKE_CHROME} Safari/537.36", "Chrome · ChromeOS"),
        (f"Mozilla/5.0 (X11; Linux x86_64) {LIKE_CHROME} Safari/537.36", "Chrome · Linux"),
        (f"{ON_IPHONE} Version/17.4 Mobile/15E148 Safari/604.1", "Safari · iPhone"),
        (f"{ON_IPHONE} CriOS/120.0 Mobile/15E148 Safari/604.1", "Chrome · iPhone"),
        (f"{ON_IPHONE} FxiOS/120.0 Mobile/15E148 Safari/605.1.15", "Firefox · iPhone"),
        ("Mozilla/5.0 (Android 14; Mobile; rv:133.0) Gecko/133.0 Firefox/133.0", "Firefox · Android"),
        ("python-requests/2.31", "python-requests/2.31"),
    ],
)
def test_a_browser_is_called_by_its_own_name_and_system(agent: str, called: str) -> None:
    assert user_page.device(agent) == called


def test_the_page_has_profile_sessions_tokens_groups_and_history(
    site: Site, page: Callable[..., str]
) -> None:
    ada = site.add()
    site.service.sessions.login(ada.email, PASSWORD, client=Client("192.0.2.7", "Firefox on Linux"))
    site.service.sessions.create_api_token(ada.id, name="nightly", lifetime=None, by=OPERATOR)
    for group in ("staff", "press"):
        site.service.groups.create(group, by=OPERATOR)
    site.service.groups.set(ada.id, ["staff"], by=OPERATOR)
    text = page(ada)
    for shown in (
        "<h1>Ada</h1>",
        "ada@example.com",
        "Firefox · Linux",
        "192.0.2.7",
        "nightly",
        'value="staff" checked>',
        'value="press">',
        "create-token",
        "group-add",
        f'<time datetime="{ada.created_at[:16]}Z">2026-11-20 08:22 UTC</time>',
    ):
        assert shown in text, shown
    assert "Something is in the way" not in text
    assert acts(text) == {"reset", "deactivate", "delete", "end", "end-all"}
    assert 'aria-current="page"' in text


def test_what_is_in_the_way_stands_above_with_the_button_that_mends_it(
    make_site: Callable[..., Site],
) -> None:
    site = make_site(whitelist=("/register",))
    admin = site.signed_in(site.add("root", role="admin"))
    eve = site.service.registration.register("eve@example.com", "Eve", PASSWORD, by=OPERATOR)
    above, _, below = admin.get(f"/users/{eve.id}").body.decode().partition('id="facts"')
    assert "The email address was never confirmed." in above
    assert (acts(above), acts(below)) == ({"confirm"}, {"activate", "delete"})


def test_a_closed_registration_is_mended_by_activating_the_account(make_site: Callable[..., Site]) -> None:
    registration = make_site(whitelist=("/register",)).service.registration
    eve = registration.register("eve@example.com", "Eve", PASSWORD, by=OPERATOR)
    site = make_site()
    admin = site.signed_in(site.add("root", role="admin"))
    above, _, below = admin.get(f"/users/{eve.id}").body.decode().partition('id="facts"')
    assert (acts(above), acts(below)) == ({"activate"}, {"delete"})


def test_locked_deactivated_and_deleted_accounts_say_so(site: Site, page: Callable[..., str]) -> None:
    locked, gone = site.add("locked"), site.add("gone")
    asleep = site.add("asleep", active=False, password=None)
    for _ in range(10):
        site.client().login(locked.email, "wrong")
    site.signed_in(gone).send("DELETE", "/api/users/me", {"password": PASSWORD})
    assert {"unlock", "reset"} <= acts(page(locked))
    assert "Too many wrong passwords" in page(locked)
    assert "The account is deactivated." in page(asleep)
    assert "The account has no password" in page(asleep)
    assert "reset" not in acts(page(asleep))
    assert "The owner has deleted the account" in page(gone)


def test_an_invited_user_is_invited_again_or_the_invitation_is_withdrawn(
    site: Site, page: Callable[..., str]
) -> None:
    (eve,) = site.service.invitations.invite([Guest("eve@example.com")], timedelta(days=7), by=OPERATOR)
    above, _, below = page(eve).partition('id="facts"')
    assert "The invitation was not accepted yet." in above
    assert "Invited" in below
    assert (acts(above), acts(below)) == ({"invite"}, {"activate", "withdraw"})


def test_a_session_of_a_client_that_does_not_say_what_it_is_has_a_name_in_words(
    site: Site, root: User
) -> None:
    pages = [site.signed_in(root).get(path).body.decode() for path in ("/account", f"/users/{root.id}")]
    for text in pages:
        assert ">Unknown browser</span>" in text
        assert ">login</span>" not in text


def test_admins_do_not_deactivate_or_delete_themselves_here(root: User, page: Callable[..., str]) -> None:
    text = page(root)
    assert acts(text) == {"reset", "end-all"}  # and not this session: that is "Sign out"
    assert '<a class="button" href="/account">' in text
    assert "this device" in text


def test_a_claimed_address_stands_beside_the_known_one(site: Site, page: Callable[..., str]) -> None:
    ada = site.add()
    site.signed_in(ada).patch("/api/users/me", {"email": "new@example.com"})
    facts = page(ada).partition('id="facts"')[2].partition("</dl>")[0]
    assert "ada@example.com" in facts
    assert "new@example.com" in facts


def test_the_file_that_manages_the_account_is_named(site: Site, page: Callable[..., str]) -> None:
    ada = site.add()
    assert "Managed by the file" not in page(ada)
    with site.service.store.write() as tx:
        tx.manage_users("people & robots", [ada.id])
    facts = page(ada).partition('id="facts"')[2].partition("</dl>")[0]
    assert "<dt>Managed by the file</dt><dd>people &amp; robots</dd>" in facts


def test_lists_are_short_at_first_and_grow_by_links(site: Site, page: Callable[..., str]) -> None:
    ada = site.add()
    for number in range(12):
        site.service.sessions.login(
            ada.email, PASSWORD, client=Client(f"192.0.2.{number}", f"agent {number}")
        )
        for role in ("admin", "user"):
            site.service.accounts.update(ada.id, role=role, by=OPERATOR)
    first = page(ada)
    assert (first.count('data-act="end"'), first.count(">update<")) == (10, 20)
    assert 'href="?sessions=100&amp;rows=20"' in first
    assert 'href="?sessions=10&amp;rows=200"' in first
    more = page(ada, "?sessions=100&rows=200")
    assert (more.count('data-act="end"'), more.count(">update<")) == (12, 24)
    assert more.count("data-ask") == first.count("data-ask")  # the texts of a list stand there once
    assert "data-more" not in more


def test_the_own_lists_of_sessions_and_tokens_are_short_at_first_and_grow_by_links(site: Site) -> None:
    grace = site.add()
    own = site.signed_in(grace)
    for number in range(60):
        site.service.sessions.login(grace.email, PASSWORD, client=Client(f"192.0.2.{number}", "agent"))
        site.service.sessions.create_api_token(grace.id, name=f"token {number}", lifetime=None, by=OPERATOR)
    first = own.get("/account?redirect=/news").body.decode()
    assert (
        first.count('data-path="/api/users/me/sessions/'),
        first.count('data-path="/api/users/me/tokens/'),
    ) == (49, 50)
    assert first.count(">this device</span>") == 1
    assert first.count('href="?redirect=%2Fnews&amp;sessions=500" data-more') == 2
    assert "Show more of 61" in first
    for query in ("sessions=x", "sessions=0", "sessions=1001", "sessions=1&sessions=2"):  # as an empty one
        assert own.get(f"/account?{query}").body.decode().count('data-path="/api/users/me/tokens/') == 50
    more = own.get("/account?sessions=500").body.decode()
    assert (
        more.count('data-path="/api/users/me/sessions/'),
        more.count('data-path="/api/users/me/tokens/'),
    ) == (60, 60)
    assert "data-more" not in more


def test_a_full_page_with_all_that_it_loads_is_below_60_kb(make_site: Callable[..., Site]) -> None:
    for file in LOCALES:
        site = make_site(locale=file.stem, whitelist=("/register",))
        accounts = site.service.accounts
        root = accounts.create(
            accounts.newcomer(f"root-{file.stem}@example.com", "Root", "admin"), PASSWORD, by=OPERATOR
        )
        admin = site.signed_in(root)
        ada = site.add(f"ada-{file.stem}")
        for number in range(12):
            agent = f"Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/{number} Safari"
            site.service.sessions.login(ada.email, PASSWORD, client=Client("192.0.2.1", agent))
            for role in ("admin", "user"):
                accounts.update(ada.id, role=role, by=OPERATOR)
        html = admin.get(f"/users/{ada.id}").body
        files = re.findall(r'(?:src|href|data-texts)="(/assets/[^"]+)"', html.decode())
        weight = len(html) + sum(len(admin.get(name).body) for name in files)
        assert weight < 60_000, (file.stem, weight, len(html))


# --- who may, and which users there are ---


def test_other_users_and_visitors_do_not_get_it(site: Site, root: User) -> None:
    ada = site.add()
    user = site.signed_in(ada)
    for shown in (ada.id, root.id, 999):
        reply = user.get(f"/users/{shown}", headers=BROWSER)
        assert (reply.status, b"This page is for admins" in reply.body) == (403, True)
        assert root.email.encode() not in reply.body
        assert site.client().get(f"/users/{shown}").header("Location") == f"/login?redirect=/users/{shown}"


def test_an_unknown_user_is_a_page_that_says_so(site: Site, root: User) -> None:
    admin = site.signed_in(root)
    for unknown in ("999", "9" * 18):
        reply = admin.get(f"/users/{unknown}", headers=BROWSER)
        assert (reply.status, b"<h1>There is no such user</h1>" in reply.body) == (404, True)
        assert b'<a href="/users">' in reply.body
        assert f'<a href="/audit?user={unknown}">'.encode() in reply.body


def test_a_client_that_is_no_browser_gets_the_refusals_of_pages_for_admins_as_pages(
    site: Site, root: User
) -> None:
    for client, path, status in (
        (site.signed_in(root), "/users/999", 404),
        (site.signed_in(site.add("ada")), "/users", 403),
    ):
        reply = client.get(path, headers={"Accept": "application/json"})
        assert (reply.status, reply.header("Content-Type")) == (status, "text/html; charset=utf-8")


SPELLINGS = ["0", "01", "-1", "+1", "1.0", "1e0", "x", "me", "%31%00", "%D9%A1", "1%0a", "%201", "1%20", "9" * 19, "9" * 400, "%2e%2e"]  # fmt: skip


@pytest.mark.parametrize("id", SPELLINGS)
def test_another_spelling_of_an_id_is_no_user(site: Site, root: User, id: str) -> None:  # noqa: A002
    admin = site.signed_in(root)
    reply = admin.get(f"/users/{id}", headers=BROWSER)
    assert reply.status in (400, 404)
    assert b"<h1>There is no such page</h1>" in reply.body
    assert admin.get(f"/users/{id}").json["statusCode"] == reply.status


@pytest.mark.parametrize("query", ["rows=x", "rows=0", "rows=99999", "sessions=-1", "rows=1&rows=2"])
def test_a_malformed_query_is_a_page_that_says_so(site: Site, root: User, query: str) -> None:
    reply = site.signed_in(root).get(f"/users/{root.id}?{query}", headers=BROWSER)
    assert (reply.status, b"<h1>There is no such page</h1>" in reply.body) == (400, True)


def test_the_link_to_more_sessions_leads_to_no_other_site(site: Site, root: User) -> None:
    own = site.signed_in(root)
    site.service.sessions.login(root.email, PASSWORD)
    for target in ("https://evil.example/", "//evil.example", "/%5Cevil.example", "javascript:alert(1)"):
        shown = own.get(f"/account?sessions=1&redirect={target}").body
        assert b'href="?sessions=10" data-more' in shown
        assert b"evil.example" not in shown


# --- values stay text ---


def test_no_value_is_taken_for_markup(site: Site, page: Callable[..., str]) -> None:
    service = site.service
    ada = create_user(service, "b&'/{{b}}@example.com", HTML, PASSWORD, by=OPERATOR)
    service.sessions.login(ada.email, PASSWORD, client=Client(HTML, f"Agent {HTML}"))
    service.sessions.create_api_token(ada.id, name=HTML, lifetime=None, by=OPERATOR)
    with service.store.write() as tx:
        tx.change_user(ada.id, profile_picture=f"javascript:{HTML}")
        tx.add_identities([Identity(ada.id, "oauth", f"https://{HTML}", HTML, HTML, ada.created_at)])
        tx.change_user(
            ada.id, claimed_email=f"{HTML}@example.com", claim_expires_at="2999-01-01T00:00:00.000Z"
        )
        tx.audit(
            OPERATOR._replace(name=HTML, origin=HTML), HTML, ada, **{HTML: HTML, "list": [HTML, {HTML: 1}]}
        )
    text = page(ada)
    assert "<xss" not in text
    assert text.count("{{7*7}}") > 8
    assert not re.search(r"<[^>]* on\w+=", re.sub('"[^"]*"', '""', text))
    assert re.findall(r'href="(?!/|#|\?|data:,)[^"]*"', text) == []


def test_a_name_that_turns_the_direction_of_text_stands_in_a_box_of_its_own(
    site: Site, page: Callable[..., str], root: User
) -> None:
    """So that it does not turn the scopes or the details that follow it."""
    turned, ada = "\u202egnp.ada", site.add()
    owner = site.signed_in(ada)
    site.service.accounts.update(ada.id, name=turned, by=OPERATOR)
    site.service.sessions.create_api_token(ada.id, name=turned, lifetime=None, scopes="me", by=OPERATOR)
    with site.service.store.write() as tx:
        store_passkey(tx, ada.id, "phone", name=turned)
    of_admin, of_owner = page(ada), owner.get("/account").body.decode()
    trail = site.signed_in(root).get("/audit").body.decode()
    boxes = re.compile(f'<bdi class="name"[^>]*>{turned}</bdi>')
    assert len(boxes.findall(of_admin)) == len(boxes.findall(of_owner)) == 2
    for text in (of_admin, trail):
        assert f"name: <bdi>{turned}</bdi>" in text
    # Else a sign in the name could end the isolation.
    assert "bdi { display: inline-block" in (Path(pages.__file__).parent / "style.css").read_text("utf-8")
