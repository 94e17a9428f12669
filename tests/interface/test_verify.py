"""Forward authentication over a real socket: decisions, redirects to the login, and what an application learns."""

import base64
import re
import sqlite3
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import timedelta
from ipaddress import ip_network
from urllib.parse import quote, unquote

import pytest
from support.accounts import open_session, stored_sessions
from support.commands import OPERATOR, PASSWORD
from support.daemons import wait_for
from support.databases import destroy
from support.fakes import FakeClock
from support.identities import provider_settings
from support.web import Client, Reply, Site

from usersctl.identity_headers import DEFAULT
from usersctl.models import UNKNOWN_CLIENT, User
from usersctl.secrets import assertion, digest
from usersd import rate_limits
from usersd.access import wants_a_page

VERIFY = "/api/users/auth/verify"
HERE = (ip_network("127.0.0.0/8"),)
BROWSER = {"Accept": "text/html,application/xhtml+xml,*/*;q=0.8", "Sec-Fetch-Mode": "navigate"}
SECRET = "a secret of two, and of nobody else"
ALL = (*dict(DEFAULT), "Remote-Assertion")

Make = Callable[..., Site]


@pytest.fixture
def site(make_site: Make) -> Site:
    return make_site(
        trusted_proxies=HERE,
        whitelist=("/about", "/docs/*"),
        role_rules=(("/admin/*", "admin"), ("/docs/drafts/*", "admin"), ("/docs/members", "user")),
        assertion_secret=SECRET,
    )


def original(target: str, method: str = "GET", **more: str) -> dict[str, str]:
    """The request of nginx with our snippet."""
    return {"X-Original-URL": target, "X-Original-Method": method, "X-Forwarded-Host": "site.example", **more}


def forwarded(target: str, method: str = "GET", **more: str) -> dict[str, str]:
    """The request of Caddy and Traefik."""
    return {
        "X-Forwarded-Uri": target,
        "X-Forwarded-Method": method,
        "X-Forwarded-Host": "site.example",
        **more,
    }


def remote_headers(reply: Reply) -> dict[str, str]:
    """The identity headers, each exactly once."""
    assert all(len(reply.all(name)) == 1 for name in ALL), reply.headers
    return {name: str(reply.header(name)) for name in ALL}


NOBODY = dict.fromkeys(ALL, "")


# --- signed in ---


def test_an_application_learns_the_signed_in_user(site: Site) -> None:
    ada = site.add(role="admin")
    reply = site.signed_in(ada).get(VERIFY, headers=forwarded("/page"))
    assert (reply.status, reply.json) == (200, {})
    identity = remote_headers(reply)
    assert re.fullmatch(r"\d{10}\.[A-Za-z0-9_-]{43}", identity.pop("Remote-Assertion"))
    assert identity == {
        "Remote-User": str(ada.id),
        "Remote-Email": "ada@example.com",
        "Remote-Name": "Ada",
        "Remote-Role": "admin",
        "Remote-Groups": "",
        "Remote-Auth": "pwd",
    }


@pytest.mark.parametrize("ask", [original, forwarded])
def test_a_whitelisted_path_needs_no_session(site: Site, ask: Callable[..., dict[str, str]]) -> None:
    for target in (
        "/about",
        "/docs",
        "/docs/a/b?x=1",
        "/login",
        "/about?next=/admin",
        "/about?next=%2Fadmin%5C",
    ):
        reply = site.client().get(VERIFY, headers=ask(target))
        assert (reply.status, remote_headers(reply)) == (200, NOBODY), target
    for target in ("/", "/page", "/aboutx", "/login/", "/page?/about"):
        assert site.client().get(VERIFY, headers=ask(target)).status == 401, target


def test_verify_accepts_a_bearer_token(site: Site) -> None:
    ada = site.add()
    made = site.service.sessions.create_api_token(ada.id, name="x", lifetime=None, by=OPERATOR)
    reply = site.client(headers={"Authorization": f"Bearer {made.token}"}).get(
        VERIFY, headers=forwarded("/page")
    )
    assert remote_headers(reply)["Remote-User"] == str(ada.id)


@pytest.mark.parametrize(
    ("sent", "passed_on"),
    [
        ("auth_token={token}", None),
        ("auth_token={token}; a=1", "a=1"),
        ("a=1;auth_token={token};b=2", "a=1;b=2"),
        ("a=1; \tauth_token={token}; auth_token=x; b=2", "a=1; b=2"),
        ("a=1; __Host-auth_token=x; auth_token={token}", "a=1"),
        ("oauth_0123456789abcdef=x; __Host-oauth_0123456789abcdef=x; auth_token={token}", None),
        ("auth_token_device=x; auth_token={token}; __Host-auth_token_device=x; a=1", "a=1"),
        ("auth_pending=x; auth_token={token}; __Host-auth_pending=x; auth_passkey=x; __Host-auth_passkey=x; a=1", "a=1"),
        ("auth_token={token}; my_auth_token=1; auth_token2=2; auth_token; oauth_x=3", "my_auth_token=1; auth_token2=2; auth_token; oauth_x=3"),
        ('auth_token={token}; odd="a, b"; =; ;x', 'odd="a, b"; =; ;x'),
        ("auth_token={token}; a=1, __Host-auth_token={token}; b=2", "b=2"),
    ],
)  # fmt: skip
def test_an_application_gets_the_cookies_that_are_not_ours(
    site: Site, sent: str, passed_on: str | None
) -> None:
    token = site.signed_in(site.add()).cookies["auth_token"]
    reply = site.client(headers={"Cookie": sent.format(token=token)}).get(VERIFY, headers=forwarded("/page"))
    assert (reply.status, reply.header("Cookie")) == (200, passed_on)


def test_the_configured_name_of_the_cookie_is_the_one_that_is_removed(make_site: Make) -> None:
    site = make_site(trusted_proxies=HERE, cookie_name="sid-1", base_url="https://site.example")
    token = open_session(site.service, site.add()).token
    cookie = f"auth_token=theirs; __Host-sid-1={token}; sid-1=old; sid-12=x"
    reply = site.client(headers={"Cookie": cookie}).get(VERIFY, headers=forwarded("/page"))
    assert (reply.status, reply.header("Cookie")) == (200, "auth_token=theirs; sid-12=x")


def test_an_application_gets_an_authorization_that_is_not_ours(site: Site) -> None:
    ada = site.signed_in(site.add())
    api = site.service.sessions.create_api_token(1, name="x", lifetime=None, by=OPERATOR).token
    for client in (ada, site.client()):
        for token in (api, ada.cookies["auth_token"]):
            headers = forwarded("/page", Authorization=f"Bearer {token}")
            assert client.get(VERIFY, headers=headers).header("Authorization") is None
    for theirs in ("Basic YTpi", f"Bearer {'A' * 43}", "x"):
        for client, page in ((ada, "/page"), (site.client(), "/about")):
            reply = client.get(VERIFY, headers=forwarded(page, Authorization=theirs))
            assert (reply.status, reply.header("Authorization")) == (200, theirs)


def test_no_character_that_ends_a_header_is_passed_on(site: Site) -> None:
    """Servers differ in what they let through."""
    for name, passed_on in (("HTTP_COOKIE", "Cookie"), ("HTTP_AUTHORIZATION", "Authorization")):
        for value, is_whole in (
            ("a=b\xe9\t", True),
            ("a=b\r\nX: y", False),
            ("a=\0", False),
            ("a=\x7f", False),
        ):
            headers: list[tuple[str, str]] = []
            asked = {"REQUEST_METHOD": "GET", "PATH_INFO": VERIFY, "REMOTE_ADDR": "127.0.0.1", name: value}
            asked |= {"HTTP_X_FORWARDED_URI": "/about"}
            list(site.app(asked, lambda _status, sent, headers=headers: headers.extend(sent)))
            assert (passed_on in dict(headers)) == is_whole, (name, value)


def test_no_script_reads_cookies_and_passwords_by_verify(make_site: Make) -> None:
    """Only a trusted proxy gets them back."""
    site = make_site(trusted_proxies=(ip_network("127.0.0.2"),))
    headers = {
        "Authorization": "Basic YTpi",
        "Cookie": f"sid=1; auth_token={site.signed_in(site.add()).cookies['auth_token']}",
    }
    reply = site.client().get(VERIFY, headers=headers)
    assert (reply.status, reply.header("Cookie"), reply.header("Authorization")) == (200, None, None)
    for path in ("/login", "/api/users/me"):
        assert site.client().get(path, headers=headers).header("Cookie") is None


def test_no_visitor_reaches_verify_by_another_spelling_of_its_address(make_site: Make) -> None:
    """Some proxies keep visitors from the address as it is written: to them %2F is no slash, and // not one."""
    site = make_site(trusted_proxies=HERE)
    ada = site.signed_in(site.add())
    for spelling in (
        "/api/users/auth%2Fverify",
        "/api/users/auth/%76erify",
        "/%61pi/users/auth/verify?role=user",
        "//api/users/auth/verify",
        "///api/users/auth/verify?role=user",
    ):
        reply = ada.get(spelling, headers={"Cookie": "sid=1", "Authorization": "Basic YTpi"})
        assert (reply.status, reply.header("Cookie"), reply.header("Remote-User")) == (404, None, None)
    assert ada.get(f"{VERIFY}?role=us%65r", headers=forwarded("/a%20page")).status == 200


@pytest.mark.parametrize("name", ["REQUEST_URI", "RAW_URI"])
@pytest.mark.parametrize(("written", "status"), [(VERIFY, "401"), ("/api/users/auth%2Fverify?x=1", "404")])
def test_each_server_has_a_name_of_its_own_for_the_address_as_it_is_written(
    site: Site, name: str, written: str, status: str
) -> None:
    statuses: list[str] = []
    asked = {"REQUEST_METHOD": "GET", "PATH_INFO": VERIFY, "REMOTE_ADDR": "127.0.0.1", name: written}
    list(site.app(asked, lambda line, _headers: statuses.append(line[:3])))
    assert statuses == [status]


@pytest.mark.parametrize(
    ("name", "header"),
    [
        ("Ada Lovelace", "Ada Lovelace"),
        ("Zoë 密", "Zo%C3%AB %E5%AF%86"),
        ("100 % sure", "100 %25 sure"),
        ("%41da", "%2541da"),
        ('a"b\\c, d; e=f', 'a"b\\c, d; e=f'),
        ("\u202eadA", "%E2%80%AEadA"),
    ],
)
def test_a_name_is_sent_as_ascii_and_decodes_to_itself(site: Site, name: str, header: str) -> None:
    ada = site.add()
    site.service.accounts.update(ada.id, name=name, by=OPERATOR)
    sent_name = remote_headers(site.signed_in(ada).get(VERIFY, headers=forwarded("/page")))["Remote-Name"]
    assert sent_name == header
    assert unquote(sent_name) == name


def test_a_name_from_an_old_database_cannot_end_a_header(site: Site) -> None:
    ada = site.add()
    client = site.signed_in(ada)
    with site.service.store.write() as tx:
        tx.change_user(ada.id, name="Ada\r\nRemote-Role: admin\0", email="a\r\nb@ä.example")
    identity = remote_headers(client.get(VERIFY, headers=forwarded("/page")))
    assert identity["Remote-Name"] in (
        "Ada%0D%0ARemote-Role: admin%00",
        "Ada%0D%0ARemote-Role: admin%EF%BF%BD",  # a server keeps no zero byte
    )
    assert identity["Remote-Email"] == "a%0D%0Ab@%C3%A4.example"
    assert identity["Remote-Role"] == "user"


# --- names of headers ---


def test_the_configured_headers_are_sent_in_the_place_of_the_usual_ones(make_site: Make) -> None:
    names = (
        ("X-Remote-User", "email"),
        ("X-WEBAUTH-NAME", "name"),
        ("Remote-User", "email"),
        ("X-Role", "role"),
        ("X-Id", "id"),
        ("X-Groups", "groups"),
        ("X-Proofs", "auth"),
    )
    site = make_site(
        trusted_proxies=HERE, whitelist=("/about",), forward_headers=names, assertion_secret=SECRET
    )
    ada = site.add()
    reply = site.signed_in(ada).get(VERIFY, headers=forwarded("/page"))
    assert {name: reply.all(name) for name, _ in names} == {
        "X-Remote-User": ["ada@example.com"],
        "X-WEBAUTH-NAME": ["Ada"],
        "Remote-User": ["ada@example.com"],
        "X-Role": ["user"],
        "X-Id": [str(ada.id)],
        "X-Groups": [""],
        "X-Proofs": ["pwd"],
    }
    assert reply.all("Remote-Email") == reply.all("Remote-Role") == []
    until, _, _ = str(reply.header("Remote-Assertion")).partition(".")
    of = (str(ada.id), "ada@example.com", "Ada", "user", "GET", "site.example", "/page")
    assert reply.header("Remote-Assertion") == assertion(SECRET, until=int(until), of=of)
    nobody = site.client().get(VERIFY, headers=forwarded("/about"))
    assert {value for name, _ in names for value in nobody.all(name)} == {""}


# --- Basic credentials ---


def basic(user: str, password: str) -> str:
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


@pytest.fixture
def with_basic(make_site: Make) -> Site:
    return make_site(
        trusted_proxies=HERE, whitelist=("/about",), forward_basic=True, failed_logins_per_minute=3
    )


def api_token(site: Site, user_id: int) -> str:
    made = site.service.sessions.create_api_token(user_id, name="x", lifetime=None, by=OPERATOR)
    return made.token


def test_an_email_and_an_api_token_pass_as_basic_credentials(with_basic: Site) -> None:
    site, ada = with_basic, with_basic.add()
    token = api_token(site, ada.id)
    for header in (
        basic("ada@example.com", token),
        basic(" ADA@Example.com", token),
        basic("ada@example.com", token).replace("Basic ", "basic  "),
    ):
        for client in (site.client(), site.signed_in(site.service.accounts.find(str(ada.id)))):
            reply = client.get(VERIFY, headers=forwarded("/page", Authorization=header))
            assert (reply.status, reply.header("Remote-User")) == (200, str(ada.id)), header
            assert reply.header("Authorization") is None
    site.service.sessions.uses.write()
    (used,) = (session for session in stored_sessions(site.service) if session.kind == "api")
    assert used.last_used_at is not None
    # Only verify takes them.
    assert site.client().get("/api/users/me", headers={"Authorization": header}).status == 401


def test_basic_credentials_need_the_configuration(make_site: Make) -> None:
    site = make_site(trusted_proxies=HERE, whitelist=("/about",))
    ada = site.add()
    header = basic("ada@example.com", api_token(site, ada.id))
    reply = site.client().get(VERIFY, headers=forwarded("/page", Authorization=header))
    assert (reply.status, reply.all("WWW-Authenticate")) == (401, ["Bearer"])
    # A token of ours does not go on, whatever it is used for.
    for client, target in ((site.client(), "/about"), (site.signed_in(ada), "/page")):
        reply = client.get(VERIFY, headers=forwarded(target, Authorization=header))
        assert (reply.status, reply.header("Authorization")) == (200, None)


def test_a_token_that_is_not_valid_now_reaches_no_application_either(
    make_site: Make, clock: FakeClock
) -> None:
    """It is valid again after a lockdown, and a clock may be set back."""
    site = make_site(trusted_proxies=HERE, whitelist=("/about",))
    ada = site.add()
    tokens = [api_token(site, ada.id), site.signed_in(ada).cookies["auth_token"]]

    def passed_on() -> set[str | None]:
        return {
            site.client()
            .get(VERIFY, headers=forwarded("/about", Authorization=header))
            .header("Authorization")
            for token in tokens
            for right in (basic("ada@example.com", token),)
            for header in (
                *(f"Bearer {token}", f"bearer  {token}", right, basic("x", token), basic("\u00ff", token)),
                *(f"Bearer\t{token}", f"Token {token}", f'Token token="{token}"', basic(token, "x"), token),
                *(
                    right.rstrip("="),
                    right.replace(" ", "   "),
                    right[:20] + " " + right[20:],
                    right.replace("B", "b", 1),
                ),
                "Basic " + base64.b64encode(b"\xff:" + token.encode()).decode(),
                "Basic " + base64.urlsafe_b64encode(b">>?:" + token.encode()).decode(),
            )
        }

    assert passed_on() == {None}
    clock.move(days=2)
    assert passed_on() == {None}
    site.service.lockdown.start(None, by=OPERATOR)
    del tokens[1]  # it ended
    assert passed_on() == {None}


def test_basic_credentials_may_have_the_address_that_a_user_has_claimed(with_basic: Site) -> None:
    ada = with_basic.add()
    token = api_token(with_basic, ada.id)
    assert with_basic.signed_in(ada).patch("/api/users/me", {"email": "new@example.com"}).status == 200
    for email, status in (("new@example.com", 200), ("ada@example.com", 200), ("bob@example.com", 401)):
        headers = forwarded("/page", Authorization=basic(email, token))
        assert with_basic.client().get(VERIFY, headers=headers).status == status


def test_wrong_basic_credentials_are_refused_and_counted_by_client_address(with_basic: Site) -> None:
    site = with_basic
    ada, bob = site.add(), site.add("bob")
    token, session = api_token(site, ada.id), site.signed_in(ada).cookies["auth_token"]
    right = basic("ada@example.com", token)
    wrong = [
        basic("bob@example.com", token),
        basic("ada@example.com", api_token(site, bob.id)),
        basic("ada@example.com", session),
        basic("ada@example.com", "A" * 43),
        basic("ada@example.com", ""),
        basic("", token),
        "Basic",
        "Basic !",
        "Basic A",
        "Basic /w==",
        "Basic " + base64.b64encode(b"x" * 5000).decode(),
    ]
    for number, header in enumerate(wrong):
        address = f"203.0.113.{number}"

        def asked(header: str, address: str = address, **more: str) -> Reply:
            headers = forwarded("/page", Authorization=header, **{"X-Forwarded-For": address}, **more)
            return site.client().get(VERIFY, headers=headers)

        assert [asked(header).status for _ in range(2)] == [401, 401], header
        assert asked(header, **BROWSER).status == 302
        refused = asked(header)
        assert (refused.status, refused.header("Retry-After") is not None) == (429, True)
        assert asked(header, **BROWSER).status == 429
        # Others at this address come in, and so does who has the right ones.
        assert asked(right).status == 200
        assert asked("Bearer x").status == 401
        assert asked("Bearer " + token).status == 200


@pytest.mark.sqlite  # with a server the main thread answers no request
def test_others_do_not_wait_while_wrong_basic_credentials_are_counted_for_all_processes(
    make_site: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rate_limits, "PATIENCE", 20.0)
    site = make_site(trusted_proxies=HERE, forward_basic=True, processes=2)
    ada = site.signed_in(site.add())
    with (
        ThreadPoolExecutor(1) as pool,
        closing(sqlite3.connect(site.service.store.path, isolation_level=None)) as other,
    ):
        other.execute("BEGIN IMMEDIATE")
        header = basic("ada@example.com", "A" * 43)
        wrong = pool.submit(site.client().get, VERIFY, headers=forwarded("/page", Authorization=header))
        wait_for(site.service.store._queue.locked)
        assert ada.get("/api/users/me").status == 200
        assert not wrong.done()
        other.execute("ROLLBACK")
        assert wrong.result(20).status == 401


def test_basic_credentials_of_an_application_go_on_to_it(with_basic: Site) -> None:
    theirs = basic("ada", "a password of the application")
    for client, target in (
        (with_basic.client(), "/about"),
        (with_basic.signed_in(with_basic.add()), "/page"),
    ):
        for _ in range(5):
            reply = client.get(VERIFY, headers=forwarded(target, Authorization=theirs))
            assert (reply.status, reply.header("Authorization")) == (200, theirs)


def test_a_revoked_token_and_a_deactivated_user_are_no_credentials(with_basic: Site) -> None:
    site, ada = with_basic, with_basic.add()
    header = basic("ada@example.com", api_token(site, ada.id))
    assert site.client().get(VERIFY, headers=forwarded("/page", Authorization=header)).status == 200
    site.service.accounts.set_active([ada.id], active=False, by=OPERATOR)
    assert site.client().get(VERIFY, headers=forwarded("/page", Authorization=header)).status == 401


@pytest.mark.parametrize(
    ("headers", "challenge"),
    [
        ({}, 'Basic realm="http://127.0.0.1:8080", charset="UTF-8"'),
        ({"Accept": "*/*"}, 'Basic realm="http://127.0.0.1:8080", charset="UTF-8"'),
        ({"Sec-Fetch-Mode": "cors"}, "Bearer"),
        ({"Sec-Fetch-Mode": "no-cors"}, "Bearer"),
        ({"X-Requested-With": "XMLHttpRequest"}, "Bearer"),
        ({"Referer": "http://127.0.0.1:8080/page"}, "Bearer"),
        ({"Origin": "http://127.0.0.1:8080"}, "Bearer"),
    ],
)
def test_only_clients_that_are_no_browsers_are_asked_for_basic_credentials(
    with_basic: Site, headers: dict[str, str], challenge: str
) -> None:
    for ask in (original, forwarded):
        reply = with_basic.client().get(VERIFY, headers=ask("/page", **headers))
        assert (reply.status, reply.all("WWW-Authenticate")) == (401, [challenge])
    page = with_basic.client().get(VERIFY, headers=forwarded("/page", **BROWSER))
    assert (page.status, page.all("WWW-Authenticate")) == (302, [])


def test_every_401_of_the_interface_names_a_way_to_authenticate_that_no_browser_asks_for(
    with_basic: Site,
) -> None:
    with_basic.add()
    for reply in (
        with_basic.client().get("/api/users/me"),
        with_basic.client().get("/nothing/here", headers={"Accept": "application/json"}),
        with_basic.client().post("/nothing/here"),
        with_basic.client().get("/api/users/me", headers={"Authorization": basic("ada@example.com", "x")}),
        with_basic.client().login("ada@example.com", "a wrong password"),
    ):
        assert reply.all("WWW-Authenticate") == (["Bearer"] if reply.status == 401 else [])


# --- anonymous ---


@pytest.mark.parametrize("ask", [original, forwarded])
@pytest.mark.parametrize(
    ("target", "way"),
    [
        ("/", "/login?redirect=/"),
        ("/page", "/login?redirect=/page"),
        ("/a%20b/%C3%A4?x=1&y=%26#", None),
        ("/a%20b/%C3%A4?x=1&y=%26", "/login?redirect=/a%2520b/%25C3%25A4%3Fx%3D1%26y%3D%2526"),
        ("/ä", "/login?redirect=/%25C3%25A4"),
        ("https://site.example/page?x", "/login?redirect=/page%3Fx"),
        ("https://site.example:8443/page", "/login?redirect=/page"),
        ("https://evil.example/page", "/login?redirect=/page"),
        ("//evil.example/x", "/login"),
        ("/\\evil.example", "/login"),
        ("javascript:alert(1)", "/login"),
        ("page", "/login"),
        ("", "/login"),
        ("/" + "x" * 1999, "/login?redirect=/" + "x" * 1999),
        ("/" + "x" * 2000, "/login"),
    ],
)
def test_an_anonymous_browser_is_sent_to_the_login_and_back_to_the_page(
    site: Site, ask: Callable[..., dict[str, str]], target: str, way: str | None
) -> None:
    way = way or "/login"
    target = target.encode().decode("latin-1")
    browser = site.client().get(VERIFY, headers=ask(target, **BROWSER))
    assert (browser.status, browser.header("Location"), browser.body) == (302, way, b"")
    client = site.client().get(VERIFY, headers=ask(target))
    assert (client.status, client.header("Location"), client.message) == (401, way, "Authentication required")
    assert not any(reply.header(name) for reply in (browser, client) for name in ALL)


@pytest.mark.parametrize("ask", [original, forwarded])
@pytest.mark.parametrize(
    ("method", "headers", "status"),
    [
        ("GET", BROWSER, 302),
        ("HEAD", BROWSER, 302),
        ("POST", BROWSER, 401),
        ("DELETE", BROWSER, 401),
        ("get", BROWSER, 302),  # not a method: that of the proxy's own request counts
        ("GET", {"Accept": "text/html"}, 302),
        ("GET", {"Accept": "text/html", "Sec-Fetch-Mode": "cors"}, 401),
        ("GET", {"Accept": "application/json", "Sec-Fetch-Mode": "navigate"}, 302),
        ("GET", {"Accept": "*/*"}, 401),
        ("GET", {}, 401),
    ],
)
def test_only_a_browser_that_opens_a_page_is_redirected(
    site: Site, ask: Callable[..., dict[str, str]], method: str, headers: dict[str, str], status: int
) -> None:
    assert site.client().get(VERIFY, headers=ask("/page", method, **headers)).status == status


def test_a_page_request_is_recognised_by_its_headers() -> None:
    assert wants_a_page({"HTTP_SEC_FETCH_MODE": "navigate"}, "GET")
    assert wants_a_page({"HTTP_ACCEPT": "text/html"}, "HEAD")
    assert not wants_a_page({"HTTP_ACCEPT": "text/html", "HTTP_SEC_FETCH_MODE": "no-cors"}, "GET")
    assert not wants_a_page({"HTTP_ACCEPT": "text/html"}, "PUT")


def test_one_host_in_two_cases_is_one_host(site: Site) -> None:
    headers = forwarded("https://site.example/page") | {"X-Forwarded-Host": "Site.Example"}
    assert site.signed_in(site.add()).get(VERIFY, headers=headers).header("Remote-Assertion")


# --- roles ---


def test_the_query_may_require_a_role(site: Site) -> None:
    nobody, user, admin = (
        site.client(),
        site.signed_in(site.add()),
        site.signed_in(site.add("root", role="admin")),
    )
    for query, statuses in (("?role=admin", [401, 403, 200]), ("?role=user", [401, 200, 200])):
        for target in ("/page", "/about", "/login"):
            answered_statuses = [
                client.get(VERIFY + query, headers=forwarded(target)).status
                for client in (nobody, user, admin)
            ]
            assert answered_statuses == statuses, (query, target)
    for query in ("?role=", "?role=Admin", "?role=editor", "?role=user&role=admin"):
        assert admin.get(VERIFY + query, headers=forwarded("/page")).status == 400
    assert user.get(VERIFY + "?role=admin").message == "Admin access required"


def test_a_role_of_the_query_is_needed_in_addition_to_that_of_the_path(site: Site) -> None:
    user, admin = site.signed_in(site.add()), site.signed_in(site.add("root", role="admin"))
    for client, status in ((user, 403), (admin, 200)):
        assert client.get(f"{VERIFY}?role=user", headers=forwarded("/admin")).status == status


@pytest.mark.parametrize(
    ("query", "status"), [("?role=admin", 403), ("?group=staff", 403), ("?factors=2", 401), ("", 200)]
)
def test_the_query_holds_without_any_rule(make_site: Make, query: str, status: int) -> None:
    site = make_site(trusted_proxies=HERE)
    user = site.signed_in(site.add())
    for headers in (forwarded("/page"), None):
        assert user.get(VERIFY + query, headers=headers).status == status


def test_role_rules_win_over_the_whitelist(site: Site) -> None:
    nobody, user, admin = (
        site.client(),
        site.signed_in(site.add()),
        site.signed_in(site.add("root", role="admin")),
    )
    for target, statuses in (
        ("/admin", [401, 403, 200]),
        ("/admin/x?y", [401, 403, 200]),
        ("/docs/drafts/1", [401, 403, 200]),
        ("/docs/members", [401, 200, 200]),
        ("/docs/other", [200, 200, 200]),
        ("/administrators", [401, 200, 200]),
        ("/login", [200, 200, 200]),
    ):
        for ask in (original, forwarded):
            answered_statuses = [
                client.get(VERIFY, headers=ask(target)).status for client in (nobody, user, admin)
            ]
            assert answered_statuses == statuses, target
    refused = user.get(VERIFY, headers=forwarded("/admin"))
    assert refused.message == "Admin access required"
    assert not any(refused.header(name) for name in ALL)
    page = user.get(VERIFY, headers=forwarded("/admin", **BROWSER))
    assert (page.status, page.header("Content-Type")) == (403, "text/html; charset=utf-8")
    assert b"This page is for admins" in page.body


# --- groups ---


@pytest.fixture
def grouped(make_site: Make) -> Site:
    """Ada is in staff and board, Bob in none."""
    site = make_site(
        trusted_proxies=HERE,
        whitelist=("/about", "/docs/*"),
        role_rules=(
            ("/staff/*", "group:staff"),
            ("/docs/drafts/*", ("group:hr", "admin")),
            ("/both/*", "group:staff"),
            ("/both/*/admins", "admin"),
        ),
        assertion_secret=SECRET,
    )
    ada = site.add("ada")
    site.add("bob")
    site.add("root", role="admin")
    for name in ("staff", "board", "hr"):
        site.service.groups.create(name, by=OPERATOR)
    site.service.groups.set(ada.id, ["staff", "board"], by=OPERATOR)
    return site


def signed_in(site: Site) -> tuple[Client, Client, Client]:
    with site.service.store.read() as tx:
        users = [tx.user_by_email(f"{name}@example.com") for name in ("ada", "bob", "root")]
    ada, bob, root = (site.signed_in(user) for user in users if user is not None)
    return ada, bob, root


def test_an_application_learns_the_groups_in_order(grouped: Site) -> None:
    ada, bob, _ = signed_in(grouped)
    for client, groups in ((ada, "board,staff"), (bob, "")):
        reply = client.get(VERIFY, headers=forwarded("/page"))
        assert reply.all("Remote-Groups") == [groups]
    nobody = grouped.client().get(VERIFY, headers=forwarded("/about"))
    assert nobody.all("Remote-Groups") == [""]


def test_the_assertion_covers_the_groups_that_are_sent(grouped: Site, make_site: Make) -> None:
    four = tuple(pair for pair in DEFAULT if pair[1] != "groups")
    for site, more in (
        (grouped, ("board,staff",)),
        (make_site(trusted_proxies=HERE, forward_headers=four, assertion_secret=SECRET), ()),
    ):
        ada, _, _ = signed_in(site)
        reply = ada.get(VERIFY, headers=forwarded("/page"))
        until, _, _ = str(reply.header("Remote-Assertion")).partition(".")
        of = ("1", "ada@example.com", "Ada", "user", *more, "GET", "site.example", "/page")
        assert reply.header("Remote-Assertion") == assertion(SECRET, until=int(until), of=of)
        assert reply.all("Remote-Groups") == list(more)


def test_the_query_may_require_a_group(grouped: Site) -> None:
    clients = (grouped.client(), *signed_in(grouped))
    for query, statuses in (
        ("?group=staff", [401, 200, 403, 403]),
        ("?group=board", [401, 200, 403, 403]),
        ("?group=hr", [401, 403, 403, 403]),
        ("?group=unknown", [401, 403, 403, 403]),
        ("?group=staff&role=user", [401, 200, 403, 403]),
        ("?group=staff&role=admin", [401, 403, 403, 403]),
    ):
        for target in ("/page", "/about", "/login"):
            answers = [client.get(VERIFY + query, headers=forwarded(target)).status for client in clients]
            assert answers == statuses, (query, target)
    ada = clients[1]
    for query in ("?group=", "?group=Staff", "?group=staff,board", "?group=a%20b", "?group=hr&group=staff"):
        assert ada.get(VERIFY + query, headers=forwarded("/page")).status == 400, query
    for query, message in (("?group=hr", "Group"), ("?role=admin&group=hr", "Admin")):
        refused = ada.get(VERIFY + query, headers=forwarded("/page"))
        assert refused.message == f"{message} access required"


def test_rules_ask_for_a_group_or_for_any_of_several(grouped: Site) -> None:
    clients = (grouped.client(), *signed_in(grouped))
    for target, statuses in (
        ("/staff", [401, 200, 403, 403]),
        ("/STAFF/x.json", [401, 200, 403, 403]),
        ("/docs/drafts/1", [401, 403, 403, 200]),
        ("/docs/other", [200, 200, 200, 200]),
        ("/both/x", [401, 200, 403, 403]),
        ("/both/x/admins", [401, 403, 403, 403]),
        ("/x/..%2fstaff", [401, 403, 403, 403]),  # needs whatever any rule asks for
        ("/login", [200, 200, 200, 200]),
    ):
        for ask in (original, forwarded):
            answers = [client.get(VERIFY, headers=ask(target)).status for client in clients]
            assert answers == statuses, target
    _, _, bob, root = clients
    assert bob.get(VERIFY, headers=forwarded("/staff")).message == "Group access required"
    assert root.get(VERIFY, headers=forwarded("/both/x/admins")).message == "Group access required"
    page = bob.get(VERIFY, headers=forwarded("/staff", **BROWSER))
    assert (page.status, b"This page is for a group" in page.body) == (403, True)


# --- parameters ---


@pytest.mark.parametrize(
    "query",
    [
        "groups=staff", "grp=staff", "Group=staff", "GROUP=staff", "group[]=staff", "group%00=staff", " group=staff", "%20group=staff",
        "group%20=staff", ";group=staff", "roles=admin", "Role=admin", "role%5B%5D=admin", "factor=2", "Factors=2", "two-factors", "amr=mfa",
        "role=admin&groups=staff", "factors=2&x=1", "x", "=", "?role=admin", "amp;role=admin", "token=x", "rd=/page",
    ],
)  # fmt: skip
def test_a_parameter_with_a_typing_mistake_lets_nobody_in(site: Site, query: str) -> None:
    """It would let in everybody instead of few."""
    clients = (site.client(), site.signed_in(site.add("root", role="admin")))
    for client in clients:
        for target in ("/about", "/page", f"/page?{query}"):
            reply = client.get(f"{VERIFY}?{query.replace(' ', '+')}", headers=forwarded(target))
            assert (reply.status, reply.header("Remote-User")) == (400, None)
            assert reply.message.startswith("verify takes factors, group, role only")


def test_values_with_a_typing_mistake_let_nobody_in(site: Site) -> None:
    root = site.signed_in(site.add("root", role="admin"))
    for query in (
        "factors=",
        "factors=1",
        "factors=3",
        "factors=two",
        "factors=2,",
        "factors=2&factors=2",
        "factors=%32%20",
    ):
        assert root.get(f"{VERIFY}?{query}", headers=forwarded("/page")).status == 400, query
    for query in ("", "?", "?&"):  # Caddy's ? at the end
        assert root.get(VERIFY + query, headers=forwarded("/page?x=1")).status == 200, query


# --- two factors ---

TRUSTED = (provider_settings("corp", trusts_factors=True), provider_settings("other"))
# What a session was opened with, and whether that is two factors.
PROOFS: list[tuple[str | None, bool]] = [
    ("pwd otp", True),
    ("pwd recovery", True),
    ("pwd device", True),
    ("pwd passkey", True),
    ("passkey", True),
    ("provider:other otp", True),
    ("provider:other recovery", True),
    ("provider:other device", True),
    ("provider:other passkey", True),
    ("provider:corp", True),
    ("provider:corp pwd", True),
    ("pwd device otp", True),
    (None, False),  # a session from before second factors
    ("", False),
    ("pwd", False),
    ("provider:other", False),
    ("provider:other pwd", False),  # both are known
    ("provider:oauth", False),
    ("provider:gone", False),  # no longer configured
    ("provider:corporation", False),
    ("provider:", False),
    ("otp", False),
    ("otp recovery", False),
    ("otp recovery device", False),
    ("corp", False),
]


@pytest.fixture
def strict(make_site: Make) -> Site:
    return make_site(
        trusted_proxies=HERE,
        whitelist=("/about", "/docs/*"),
        role_rules=(("/admin/*", "admin"), ("/money/admin", "admin")),
        factor_rules=("/money/*", "/docs/secret"),
        more_providers=TRUSTED,
        assertion_secret=SECRET,
        forward_basic=True,
    )


def opened_with(site: Site, user: User, proofs: str | None) -> Client:
    """A client with a session that was opened so."""
    with site.service.store.write() as tx:
        opened = site.service.sessions.open_in(
            tx, user, remember=False, client=UNKNOWN_CLIENT, opened_with=proofs or ""
        )
        if proofs is None:
            tx._run("UPDATE auth_tokens SET opened_with = NULL WHERE id = ?", (opened.session.id,))
    return site.client(cookies={"auth_token": opened.token})


@pytest.mark.parametrize(("proofs", "suffices"), PROOFS)
def test_two_factors_are_a_passkey_or_two_of_different_kinds_or_a_trusted_provider(
    strict: Site, proofs: str | None, suffices: bool
) -> None:
    client = opened_with(strict, strict.add(), proofs)
    for query, target in (
        ("?factors=2", "/page"),
        ("?factors=2", "/about"),
        ("", "/money/1"),
        ("", "/docs/secret"),
    ):
        reply = client.get(VERIFY + query, headers=forwarded(target))
        assert reply.status == (200 if suffices else 401), target
    reply = client.get(VERIFY, headers=forwarded("/page"))
    assert (reply.status, reply.all("Remote-Auth")) == (200, [proofs or ""])


def test_a_session_with_one_factor_is_led_to_the_second_and_back(strict: Site) -> None:
    ada = strict.signed_in(strict.add())
    for query, target in (("?factors=2", "/page?x=1&y=/z"), ("", "/money/a%20b?x=1")):
        way = f"/second-factor?redirect={quote(target, safe='/')}"
        for ask in (original, forwarded):
            browser = ada.get(VERIFY + query, headers=ask(target, **BROWSER))
            assert (browser.status, browser.header("Location"), browser.body) == (302, way, b"")
            client = ada.get(VERIFY + query, headers=ask(target))
            assert (client.status, client.header("Location")) == (401, way)
            assert client.message == "Second factor required"
            assert client.header("WWW-Authenticate") == 'Bearer error="insufficient_user_authentication"'
            assert not any(reply.header(name) for reply in (browser, client) for name in ALL)
    # Never out of the site. An ambiguous path needs what any rule asks for.
    ada = opened_with(strict, strict.add("root", role="admin"), "pwd")
    for target in ("//evil.example/x", "/\\evil.example", "https:evil.example", "/" + "x" * 2000):
        for headers in (original(target, **BROWSER), forwarded(target, **BROWSER)):
            reply = ada.get(f"{VERIFY}?factors=2", headers=headers)
            assert (reply.status, reply.header("Location")) == (302, "/second-factor"), target


@pytest.mark.parametrize(
    ("password", "amr", "providers", "proofs"),
    [
        (PASSWORD, None, (), "pwd otp"),
        (PASSWORD, None, ("other",), "pwd otp"),
        (PASSWORD, "pwd", ("other",), "provider:other otp"),
        (None, None, ("other", "corp"), "provider:other otp"),
        (PASSWORD, "pwd", (), "pwd otp"),  # the link was removed
    ],
)
def test_a_session_from_before_second_factors_passes_after_a_proof_by_one(
    strict: Site, password: str | None, amr: str | None, providers: tuple[str, ...], proofs: str
) -> None:
    ada = strict.add(password=password)
    client = opened_with(strict, ada, None)
    with strict.service.store.write() as tx:
        tx._run("UPDATE auth_tokens SET amr = ?", (amr,))
        for provider in providers:
            tx._run(
                "INSERT INTO identities (user_id, provider, issuer, subject) VALUES (?, ?, '', 'x')",
                (ada.id, provider),
            )
    assert client.get(VERIFY, headers=forwarded("/money/1")).status == 401
    with strict.service.store.write() as tx:
        tx.note_proof(digest(client.cookies["auth_token"]), "otp")
    reply = client.get(VERIFY, headers=forwarded("/money/1"))
    assert (reply.status, reply.header("Remote-Auth")) == (200, proofs)


def test_a_password_alone_tells_no_provider_of_a_session_from_before_second_factors(strict: Site) -> None:
    ada = strict.add()
    client = opened_with(strict, ada, None)
    with strict.service.store.write() as tx:
        tx._run("UPDATE auth_tokens SET amr = 'pwd'")
        tx._run(
            "INSERT INTO identities (user_id, provider, issuer, subject) VALUES (?, 'corp', '', 'x')",
            (ada.id,),
        )
        tx.note_proof(digest(client.cookies["auth_token"]), "pwd")
    assert client.get(VERIFY, headers=forwarded("/money/1")).status == 401


def test_a_visitor_without_a_session_signs_in_first(strict: Site) -> None:
    nobody = strict.client()
    for query, target in (("?factors=2", "/about"), ("", "/money"), ("", "/docs/secret")):
        reply = nobody.get(VERIFY + query, headers=forwarded(target, **BROWSER))
        assert (reply.status, reply.header("Location")) == (302, f"/login?redirect={target}")
    assert nobody.get(VERIFY, headers=forwarded("/docs/other")).status == 200
    assert nobody.get(VERIFY, headers=forwarded("/login")).status == 200


def test_an_api_token_is_no_second_factor(strict: Site) -> None:
    token = api_token(strict, strict.add().id)
    for header in (f"Bearer {token}", basic("ada@example.com", token)):
        client = strict.client(headers={"Authorization": header})
        for query, target in (("?factors=2", "/page"), ("", "/money/1")):
            reply = client.get(VERIFY + query, headers=forwarded(target))
            assert (reply.status, reply.message) == (401, "Second factor required")
            assert "Basic" not in str(reply.header("WWW-Authenticate"))
        reply = client.get(VERIFY, headers=forwarded("/page"))
        assert (reply.status, reply.header("Remote-Auth")) == (200, "token")


def test_the_role_is_asked_for_before_the_factor(strict: Site) -> None:
    user = strict.add()
    one, two = opened_with(strict, user, "pwd"), opened_with(strict, user, "pwd otp")
    root = opened_with(strict, strict.add("root", role="admin"), "pwd")
    for target, statuses in (
        ("/money/admin", [403, 403, 401]),
        ("/money/1", [401, 200, 401]),
        ("/x/..%2fmoney", [403, 403, 401]),  # needs whatever any rule asks for
    ):
        answers = [client.get(VERIFY, headers=forwarded(target)).status for client in (one, two, root)]
        assert answers == statuses, target
    assert two.get(f"{VERIFY}?factors=2&role=admin", headers=forwarded("/page")).status == 403


def test_without_the_path_every_factor_rule_applies(make_site: Make) -> None:
    """As every role rule does: the proxy is not trusted, or its headers disagree."""
    site = make_site(factor_rules=("/money/*",))
    ada = site.add()
    assert opened_with(site, ada, "pwd").get(VERIFY, headers=forwarded("/page")).status == 401
    assert opened_with(site, ada, "passkey").get(VERIFY, headers=forwarded("/page")).status == 200


def test_the_assertion_covers_more_than_a_password(strict: Site, make_site: Make) -> None:
    without = tuple(pair for pair in DEFAULT if pair[1] != "auth")
    user = strict.add()
    for site, proofs, more in (
        (strict, "pwd", ()),
        (strict, None, ()),
        (strict, "pwd otp", ("auth=pwd otp",)),
        (strict, "provider:corp", ("auth=provider:corp",)),
        (make_site(trusted_proxies=HERE, forward_headers=without, assertion_secret=SECRET), "passkey", ()),
    ):
        reply = opened_with(site, user, proofs).get(VERIFY, headers=forwarded("/page"))
        until, _, _ = str(reply.header("Remote-Assertion")).partition(".")
        of = ("1", "ada@example.com", "Ada", "user", *more, "GET", "site.example", "/page")
        assert reply.header("Remote-Assertion") == assertion(SECRET, until=int(until), of=of)
        assert reply.all("Remote-Auth") == ([proofs or ""] if site is strict else [])


def test_a_token_and_basic_credentials_carry_the_groups(make_site: Make) -> None:
    site = make_site(trusted_proxies=HERE, forward_basic=True)
    ada = site.add()
    site.service.groups.create("staff", by=OPERATOR)
    site.service.groups.add("staff", [ada.id], by=OPERATOR)
    token = api_token(site, ada.id)
    for header in (f"Bearer {token}", basic("ada@example.com", token)):
        reply = site.client(headers={"Authorization": header}).get(VERIFY, headers=forwarded("/page"))
        assert reply.header("Remote-Groups") == "staff"


def test_a_changed_role_counts_at_the_next_request(site: Site) -> None:
    ada = site.add()
    client = site.signed_in(ada)
    site.add("root", role="admin")
    assert client.get(VERIFY, headers=forwarded("/admin")).status == 403
    site.service.accounts.update(ada.id, role="admin", by=OPERATOR)
    assert remote_headers(client.get(VERIFY, headers=forwarded("/admin")))["Remote-Role"] == "admin"
    site.service.accounts.set_active([ada.id], active=False, by=OPERATOR)
    assert client.get(VERIFY, headers=forwarded("/admin")).status == 401


# --- the cookie ---


def test_verify_sets_no_cookie_and_leaves_the_renewal_to_other_requests(
    make_site: Make, clock: FakeClock
) -> None:
    site = make_site(trusted_proxies=HERE, remember_me_expiration=timedelta(days=7))
    client = site.signed_in(site.add(), rememberMe=True)
    (session,) = stored_sessions(site.service)
    for _ in range(20):
        clock.move(hours=1)
        assert client.get(VERIFY, headers=forwarded("/page")).all("Set-Cookie") == []
    site.service.sessions.uses.write()
    (used,) = stored_sessions(site.service)
    assert used.last_used_at == "2026-11-21T04:22:19.123Z"
    assert used.expires_at == session.expires_at  # as in the browser's cookie
    clock.move(seconds=5)
    (cookie,) = client.get("/api/users/me").all("Set-Cookie")
    assert "; Max-Age=" in cookie
    site.service.sessions.uses.write()
    (renewed,) = stored_sessions(site.service)
    assert (renewed.expires_at or "") > (session.expires_at or "")
    assert client.get("/api/users/me").all("Set-Cookie") == []


def test_verify_keeps_a_non_persistent_session_alive(site: Site, clock: FakeClock) -> None:
    client = site.signed_in(site.add())
    for _ in range(5):
        clock.move(hours=20)
        reply = client.get(VERIFY, headers=forwarded("/page"))
        assert (reply.status, reply.all("Set-Cookie")) == (200, [])


def test_a_remembered_session_ends_with_its_cookie(make_site: Make, clock: FakeClock) -> None:
    site = make_site(trusted_proxies=HERE, remember_me_expiration=timedelta(days=7))
    client = site.signed_in(site.add(), rememberMe=True)
    for _ in range(6):
        clock.move(days=1)
        assert client.get(VERIFY).status == 200
    assert client.get("/api/users/me").all("Set-Cookie") != []
    clock.move(days=6)
    assert client.get(VERIFY).status == 200
    clock.move(days=2)
    assert client.get(VERIFY).status == 401


# --- the assertion ---


def test_without_a_secret_the_assertion_is_empty(make_site: Make) -> None:
    site = make_site(trusted_proxies=HERE)
    identity = remote_headers(site.signed_in(site.add()).get(VERIFY, headers=forwarded("/page")))
    assert (identity["Remote-User"], identity["Remote-Assertion"]) == ("1", "")


def test_the_assertion_covers_user_and_request_for_a_minute(site: Site, clock: FakeClock) -> None:
    client = site.signed_in(site.add("zoe"))
    signed = remote_headers(client.get(VERIFY, headers=forwarded("/a%0Ab/%C3%A4?x=1", "PATCH")))[
        "Remote-Assertion"
    ]
    until = int(clock().timestamp()) + 60
    of = ("1", "zoe@example.com", "Zoe", "user", "PATCH", "site.example", "/a\nb/ä")
    assert signed == assertion(SECRET, until=until, of=of)


@pytest.mark.parametrize(
    ("target", "host"), [("/page", "proxy.example"), ("https://site.example/page", "site.example")]
)
def test_the_assertion_names_the_host_of_the_request_if_the_proxy_names_no_other(
    site: Site, clock: FakeClock, target: str, host: str
) -> None:
    headers = {"X-Original-URL": target, "X-Original-Method": "GET", "Host": "proxy.example"}
    signed = remote_headers(site.signed_in(site.add("zoe")).get(VERIFY, headers=headers))["Remote-Assertion"]
    of = ("1", "zoe@example.com", "Zoe", "user", "GET", host, "/page")
    assert signed == assertion(SECRET, until=int(clock().timestamp()) + 60, of=of)


def test_the_assertion_is_empty_if_a_part_of_the_request_is_unknown(make_site: Make, site: Site) -> None:
    client = site.signed_in(site.add())
    for headers in (
        {},
        forwarded("/%ff"),
        forwarded("/x", "get"),
        forwarded("/x") | {"X-Forwarded-Host": "a, b"},
        forwarded("/x") | original("/y"),
        original("https://other.example/x"),
    ):
        reply = client.get(VERIFY, headers=headers)
        assert reply.status in (200, 403)
        assert not reply.header("Remote-Assertion"), headers
    without_rules = make_site(assertion_secret=SECRET, trusted_proxies=HERE).client(cookies=client.cookies)
    assert remote_headers(without_rules.get(VERIFY))["Remote-Assertion"] == ""
    assert remote_headers(without_rules.get(VERIFY, headers=forwarded("/x")))["Remote-Assertion"]
    assert remote_headers(without_rules.get(VERIFY, headers=forwarded("/%ff")))["Remote-Assertion"] == ""
    untrusting = make_site(assertion_secret=SECRET).client(cookies=client.cookies)
    assert remote_headers(untrusting.get(VERIFY, headers=forwarded("/x")))["Remote-Assertion"] == ""


# --- log and database ---


@pytest.mark.parametrize("ask", [original, forwarded])
def test_verify_logs_no_secret(site: Site, ask: Callable[..., dict[str, str]]) -> None:
    user, stranger = site.signed_in(site.add()), "planted-session-of-nobody"
    link, target = "planted-token-of-a-link", "/page?token=planted-token-of-a-link&x=1"
    known = user.get(VERIFY, headers=ask(target))
    issued = remote_headers(known)["Remote-Assertion"]
    assert issued
    asked = [
        (200, known),
        (403, user.get(VERIFY, headers=ask(f"/admin?token={link}"))),
        (403, user.get(f"{VERIFY}?role=admin", headers=ask(target))),
        (400, user.get(f"{VERIFY}?role=admin&token={link}", headers=ask(target))),
        (401, site.client().get(VERIFY, headers=ask(target, **{"Remote-Assertion": issued}))),
        (401, site.client(cookies={"auth_token": stranger}).get(VERIFY, headers=ask(target))),
        (302, site.client().get(VERIFY, headers=ask(target, **BROWSER))),
        (302, site.client().get(VERIFY, headers=ask(f"https://other.example{target}", **BROWSER))),
    ]
    assert [reply.status for _, reply in asked] == [status for status, _ in asked]
    assert [line["status"] for line in site.log if str(line.get("path", "")).startswith(VERIFY)] == [
        status for status, _ in asked
    ]
    secrets = {link, stranger, SECRET, issued, issued.partition(".")[2], user.cookies["auth_token"]}
    text = site.stream.getvalue()
    assert [secret for secret in secrets if secret in text] == []


def test_without_a_database_verify_refuses_every_request(site: Site) -> None:
    client = site.signed_in(site.add())
    site.service.store.close()
    destroy(site.service.settings.database)
    reply = client.get(VERIFY, headers=forwarded("/page"))
    assert (reply.status, reply.header("Retry-After")) == (503, "5")
