"""Login, logout, cookies, refresh, bearer tokens and the headers of every response, through a real socket."""

import hashlib
import json
import re
from collections.abc import Callable
from datetime import timedelta
from typing import Any
from urllib.parse import urlencode

import pytest
from support import postgres
from support.accounts import USER_KEYS
from support.commands import OPERATOR, PASSWORD, by_hand
from support.databases import destroy, opened
from support.fakes import FakeClock
from support.tables import query
from support.web import Client, Reply, Site

from usersctl.clock import stamp
from usersctl.models import User
from usersd.pages import assets

EXPOSED = "Retry-After, X-Request-Id, X-Account-State, X-Awaiting-Confirmation, X-Invited"

SESSION = "/api/users/session"
ME = "/api/users/me"
NOW = "2026-11-20T08:22:19.123Z"


def attributes(reply: Reply) -> tuple[str, set[str]]:
    """Name=value and the rest of the one cookie that is set."""
    (line,) = reply.cookies()
    pair, *rest = line.split("; ")
    return pair, set(rest)


def token_of(client: Client) -> str:
    return client.token


def api_token(site: Site, user: User, **keywords: Any) -> str:
    lifetime = keywords.get("lifetime")
    opened = site.service.sessions.create_api_token(user.id, name="ci", lifetime=lifetime, by=OPERATOR)
    return opened.token


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


# --- login ---


def test_login_answers_with_the_user_and_sets_a_cookie(site: Site) -> None:
    ada = site.add()
    client = site.client()
    reply = client.login("ada@example.com", PASSWORD)
    assert reply.status == 200
    assert reply.json == {
        "user": {
            "id": ada.id,
            "email": "ada@example.com",
            "name": "Ada",
            "role": "user",
            "active": True,
            "created_at": NOW,
            "updated_at": NOW,
            "last_login_at": NOW,
            "oauth_id": None,
            "profile_picture": None,
        }
    }
    pair, rest = attributes(reply)
    assert re.fullmatch(r"auth_token=[A-Za-z0-9_-]{43}", pair)
    assert rest == {"Path=/", "HttpOnly", "SameSite=Lax"}
    assert client.get(ME).json == reply.json


def test_the_database_holds_the_digest_of_a_token_and_no_file_the_token(site: Site) -> None:
    client = site.signed_in(site.add())
    token = token_of(client)
    ((kept,),) = query(site.service, "SELECT token_hash FROM auth_tokens")
    assert kept == hashlib.sha256(token.encode()).digest()
    assert not [
        path
        for path in site.service.settings.folder.iterdir()
        if path.is_file() and token.encode() in path.read_bytes()
    ]
    assert token not in site.stream.getvalue()


@pytest.mark.parametrize(
    "body",
    [
        None,
        {},
        {"email": "ada@example.com"},
        {"password": PASSWORD},
        {"email": "", "password": PASSWORD},
        {"email": "ada@example.com", "password": ""},
        {"email": None, "password": None},
        {"Email": "ada@example.com", "PASSWORD": PASSWORD},
    ],
)
def test_a_login_without_email_or_password_is_a_400(site: Site, body: Any) -> None:
    site.add()
    reply = site.client().post(SESSION, body)
    assert (reply.status, reply.message) == (400, "Email and password are required")
    assert reply.all("Set-Cookie") == []


@pytest.mark.parametrize("value", [0, 1, True, False, 1.5, [], ["ada@example.com"], {}])
@pytest.mark.parametrize("name", ["email", "password"])
def test_a_field_of_the_wrong_type_is_named(site: Site, name: str, value: Any) -> None:
    site.add()
    body = {"email": "ada@example.com", "password": PASSWORD, name: value}
    reply = site.client().post(SESSION, body)
    assert (reply.status, reply.message) == (400, f"{name} must be a string")


@pytest.mark.parametrize("value", [0, 1, "true", "", [], {}])
def test_remember_me_is_a_boolean(site: Site, value: Any) -> None:
    site.add()
    reply = site.client().login("ada@example.com", PASSWORD, rememberMe=value)
    assert (reply.status, reply.message) == (400, "rememberMe must be true or false")


def test_every_wrong_login_gets_the_same_answer(site: Site) -> None:
    site.add()
    broken, gone = site.add("broken"), site.add("gone")
    site.add("idle", active=False)
    with site.service.store.write() as tx:
        tx.change_user(broken.id, password_hash="$2b$31$broken")
    site.service.accounts.delete([gone.id], by=OPERATOR)
    wrong = [
        ("ada@example.com", "wrong horse battery"),
        ("ada@example.com", PASSWORD + "x" * 80),
        ("ada@example.com", PASSWORD.upper()),
        ("ada@example.com", PASSWORD + " "),
        ("nobody@example.com", PASSWORD),
        ("gone@example.com", PASSWORD),
        ("broken@example.com", PASSWORD),
        ("idle@example.com", "wrong horse battery"),
        ("ada", PASSWORD),
        ("ada@example.com'--", PASSWORD),
        ("%@example.com", PASSWORD),
    ]
    replies = [site.client().login(email, password) for email, password in wrong]
    assert {(reply.status, reply.body) for reply in replies} == {
        (401, b'{"statusCode":401,"statusMessage":"Invalid email or password"}')
    }
    assert [reply.all("Set-Cookie") for reply in replies] == [[]] * len(wrong)


def test_the_right_password_of_an_inactive_account_is_a_403(site: Site) -> None:
    site.add(active=False)
    client = site.client()
    reply = client.login("ada@example.com", PASSWORD)
    assert (reply.status, reply.message) == (403, "Account is inactive")
    assert client.cookies == {}


@pytest.mark.parametrize("email", ["ADA@EXAMPLE.COM", "  ada@example.com\t", "Ada@Example.com"])
def test_the_address_of_a_login_may_be_spelled_in_any_case(site: Site, email: str) -> None:
    site.add()
    assert site.client().login(email, PASSWORD).status == 200


def test_remember_me_sets_a_cookie_that_outlives_the_browser(site: Site) -> None:
    ada = site.add()
    for more, lifetime in (
        ({"rememberMe": True}, {f"Max-Age={30 * 86400}"}),
        ({"rememberMe": False}, set()),
        ({}, set()),
    ):
        _, rest = attributes(site.client().login(ada.email, PASSWORD, **more))
        assert rest - {"Path=/", "HttpOnly", "SameSite=Lax"} == lifetime
    for odd in (None, 1, "true", []):
        refused = site.client().login(ada.email, PASSWORD, rememberMe=odd)
        assert (refused.status, "rememberMe" in refused.message) == (400, True)
    kinds = [(session.kind, session.expires_at) for session in site.service.sessions.listed(ada.id)]
    assert kinds == [
        ("persistent", "2026-12-20T08:22:19.123Z"),
        ("session", "2026-11-21T08:22:19.123Z"),
        ("session", "2026-11-21T08:22:19.123Z"),
    ]


def test_the_configuration_sets_the_lifetime_and_name_of_the_cookie(make_site: Callable[..., Site]) -> None:
    site = make_site(
        token_expiration=timedelta(minutes=7), remember_me_expiration=timedelta(days=3), cookie_name="sid"
    )
    ada = site.add()
    pair, rest = attributes(site.client().login(ada.email, PASSWORD, rememberMe=True))
    assert pair.startswith("sid=")
    assert f"Max-Age={3 * 86400}" in rest
    site.signed_in(ada)
    assert [session.expires_at for session in site.service.sessions.listed(ada.id)] == [
        "2026-11-23T08:22:19.123Z",
        "2026-11-20T08:29:19.123Z",
    ]


def test_on_https_the_cookie_is_bound_to_the_host_and_no_other_name_counts(
    make_site: Callable[..., Site],
) -> None:
    site = make_site(base_url="https://users.example.com")
    ada = site.add()
    client = site.client()
    pair, rest = attributes(client.login(ada.email, PASSWORD))
    assert pair.startswith("__Host-auth_token=")
    assert rest == {"Path=/", "HttpOnly", "SameSite=Lax", "Secure"}
    assert client.get(ME).status == 200
    assert site.client(cookies={"auth_token": token_of(client)}).get(ME).status == 401
    _, rest = attributes(client.delete(SESSION))
    assert rest == {"Path=/", "HttpOnly", "SameSite=Lax", "Secure", "Max-Age=0"}


def test_a_login_ends_and_replaces_the_session_of_its_request(site: Site) -> None:
    ada, bea = site.add(), site.add("bea")
    client, other = site.signed_in(ada), site.signed_in(ada)
    before = token_of(client)
    assert client.login(bea.email, PASSWORD).status == 200
    assert token_of(client) != before
    assert client.get(ME).json["user"]["id"] == bea.id
    assert site.client(cookies={"auth_token": before}).get(ME).status == 401
    assert other.get(ME).status == 200


def test_a_failed_login_keeps_the_session_of_its_request(site: Site) -> None:
    client = site.signed_in(site.add())
    assert client.login("ada@example.com", "wrong horse battery").status == 401
    assert client.get(ME).status == 200


def test_a_token_made_up_by_the_client_never_becomes_a_session(site: Site) -> None:
    ada = site.add()
    fixed = "A" * 43
    client = site.client(cookies={"auth_token": fixed})
    assert client.login(ada.email, PASSWORD).status == 200
    assert token_of(client) != fixed
    assert site.client(cookies={"auth_token": fixed}).get(ME).status == 401


def test_an_inactive_account_learns_why_after_the_right_password_only(site: Site) -> None:
    site.service.registration.register("ada@example.com", "Ada", PASSWORD, by=OPERATOR)
    site.add("grace", active=False)
    assert (
        site.signed_in(site.add("barbara")).delete("/api/users/me", body={"password": PASSWORD}).status == 200
    )
    for name, state in (("ada", "awaiting-confirmation"), ("grace", "deactivated"), ("barbara", "deletion")):
        wrong = site.client().login(f"{name}@example.com", "wrong")
        unknown = site.client().login("nobody@example.com", PASSWORD)
        assert (wrong.status, wrong.body) == (unknown.status, unknown.body)
        assert [key for key, _ in wrong.headers] == [key for key, _ in unknown.headers]
        right = site.client().login(f"{name}@example.com", PASSWORD)
        assert (right.status, right.message) == (403, "Account is inactive")
        assert right.header("X-Account-State") == state


# --- logout ---


def test_logout_ends_the_token_and_clears_the_cookie(site: Site) -> None:
    ada = site.add()
    client, other = site.signed_in(ada), site.signed_in(ada)
    token = token_of(client)
    reply = client.delete(SESSION)
    assert (reply.status, reply.json) == (200, {"message": "Logged out"})
    assert attributes(reply) == ("auth_token=", {"Path=/", "HttpOnly", "SameSite=Lax", "Max-Age=0"})
    assert site.client(cookies={"auth_token": token}).get(ME).status == 401
    assert other.get(ME).status == 200


def test_logout_ends_each_token_that_comes(site: Site) -> None:
    ada = site.add()
    tokens = [token_of(site.signed_in(ada)) for _ in range(2)]
    cookie = "; ".join(f"auth_token={token}" for token in tokens)
    assert site.client(headers={"Cookie": cookie}).delete(SESSION).status == 200
    for token in tokens:
        assert site.client(cookies={"auth_token": token}).get(ME).status == 401


def test_logout_by_bearer_ends_that_token(site: Site) -> None:
    ada = site.add()
    token = api_token(site, ada)
    client = site.signed_in(ada)
    reply = site.client(headers=bearer(token)).delete(SESSION)
    assert reply.json == {"message": "Logged out"}
    assert site.client(headers=bearer(token)).get(ME).status == 401
    assert client.get(ME).status == 200


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Cookie": "auth_token=never-given"},
        {"Cookie": "auth_token="},
        {"Cookie": "=;;=,{}"},
        {"Authorization": "Bearer nonsense"},
        {"Authorization": "Basic YWRhOng="},
    ],
)
def test_logout_succeeds_and_clears_the_cookie_for_any_token(site: Site, headers: dict[str, str]) -> None:
    reply = site.client(headers=headers).delete(SESSION)
    assert (reply.status, reply.json) == (200, {"message": "Logged out"})
    assert attributes(reply)[0] == "auth_token="


FORM = {"Content-Type": "application/x-www-form-urlencoded"}
OWN_FORM = FORM | {"Sec-Fetch-Site": "same-origin"}


def test_a_form_signs_out_at_once(site: Site) -> None:
    client = site.signed_in(site.add())
    token = token_of(client)
    reply = client.send("POST", "/logout", raw=b"a=b", headers=OWN_FORM)
    assert (reply.status, reply.header("Location")) == (302, "/login")
    assert attributes(reply) == ("auth_token=", {"Path=/", "HttpOnly", "SameSite=Lax", "Max-Age=0"})
    assert site.client(cookies={"auth_token": token}).get(ME).status == 401
    again = site.client().send("POST", "/logout", raw=b"", headers=OWN_FORM)
    assert (again.status, again.header("Location")) == (302, "/login")


def test_a_form_of_another_site_signs_nobody_out(site: Site) -> None:
    client = site.signed_in(site.add())
    for origin in (
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
    ):
        reply = client.send("POST", "/logout", raw=b"", headers=FORM | origin)
        assert (reply.status, reply.message) == (403, "Cross-site requests are not allowed")
        assert reply.all("Set-Cookie") == []
    assert client.get(ME).status == 200


def test_the_logout_page_signs_nobody_out_by_itself(site: Site) -> None:
    client = site.signed_in(site.add())
    for method in ("GET", "HEAD"):
        reply = client.send(method, "/logout?redirect=/goodbye", headers={"Sec-Fetch-Site": "cross-site"})
        assert (reply.status, reply.cookies()) == (200, [])
    page = client.get("/logout?redirect=/goodbye%3Fa=1").body.decode()
    assert '<form method="post" action="/logout?redirect=%2Fgoodbye%3Fa%3D1">' in page
    assert page.count("<button") == 1
    assert client.get(ME).status == 200


def test_the_logout_page_leads_on_without_a_session(site: Site) -> None:
    page = site.client().get("/logout").body.decode()
    assert "You are signed out" in page
    assert 'href="/login"' in page
    assert "<form" not in page
    assert 'href="/goodbye"' in site.client().get("/logout?redirect=/goodbye").body.decode()


@pytest.mark.parametrize(
    ("asked", "led_to"),
    [
        ("/goodbye?a=1", "/goodbye?a=1"),
        ("//evil.example", "/login"),
        ("/\\evil.example", "/login"),
        ("https://evil.example/", "/login"),
        ("javascript:alert(1)", "/login"),
        ("/a\r\nX: y", "/login"),
    ],
)
def test_a_logout_leads_on_inside_the_site_only(site: Site, asked: str, led_to: str) -> None:
    path = "/logout?" + urlencode({"redirect": asked})
    reply = site.signed_in(site.add()).send("POST", path, raw=b"", headers=OWN_FORM)
    assert (reply.status, reply.header("Location")) == (302, led_to)
    for client in (site.client(), site.signed_in(site.add("grace"))):
        page = client.get(path).body.decode()
        assert "evil" not in page
        assert "javascript" not in page


# --- tokens ---


def test_the_same_token_is_taken_as_cookie_and_as_bearer(site: Site) -> None:
    client = site.signed_in(site.add())
    token = token_of(client)
    for scheme in ("Bearer", "bearer", "BEARER"):
        assert site.client(headers={"Authorization": f"{scheme} {token}"}).get(ME).status == 200
    for value in (
        token,
        f"Basic {token}",
        f"Bearer{token}",
        f"Bearer {token}x",
        f"Bearer {token[:-1]}",
        "Bearer",
    ):
        reply = site.client(headers={"Authorization": value}).get(ME)
        assert (reply.status, reply.message) == (401, "Authentication required")


def test_an_unknown_bearer_does_not_hide_a_good_cookie(site: Site) -> None:
    client = site.signed_in(site.add())
    assert client.get(ME, headers=bearer("unknown")).status == 200


@pytest.mark.parametrize(
    "header",
    [
        "auth_token={token}",
        "a=b; auth_token={token}; c=d",
        'j={{"a":1,"b":[2]}}; auth_token={token}',
        "Path; auth_token={token}; HttpOnly",
        'q="; auth_token={token}',
        "auth_token={token}; auth_token=old",
        "auth_token=old; auth_token=older; auth_token={token}",
        "auth_token=; auth_token={token}",
        "auth_token=has spaces; auth_token={token}",
        ";;;auth_token={token};",
    ],
)
def test_malformed_cookies_of_others_end_no_session(site: Site, header: str) -> None:
    token = token_of(site.signed_in(site.add()))
    assert site.client(headers={"Cookie": header.format(token=token)}).get(ME).status == 200


@pytest.mark.parametrize(
    "header",
    [
        "auth_token=1; auth_token=2; auth_token=3; auth_token={token}",
        "Auth_Token={token}",
        "xauth_token={token}",
        "auth_token ={token}",
        "__Host-auth_token={token}",
        'auth_token="{token}"',
        "auth_token={token}%20",
    ],
)
def test_no_other_cookie_signs_in(site: Site, header: str) -> None:
    token = token_of(site.signed_in(site.add()))
    assert site.client(headers={"Cookie": header.format(token=token)}).get(ME).status == 401


def test_api_tokens_keep_the_expiry_that_they_were_given(site: Site, clock: FakeClock) -> None:
    ada = site.add()
    short = site.client(headers=bearer(api_token(site, ada, lifetime=timedelta(days=90))))
    endless = site.client(headers=bearer(api_token(site, ada)))
    for _ in range(8):
        clock.move(days=10)
        assert [opened.get(ME).status for opened in (short, endless)] == [200, 200]
    clock.move(days=10)
    assert [opened.get(ME).status for opened in (short, endless)] == [401, 200]
    clock.move(days=4000)
    reply = endless.get(ME)
    assert (reply.status, reply.all("Set-Cookie")) == (200, [])


# --- refresh on activity ---


@pytest.mark.parametrize(("remember", "idle"), [(False, timedelta(days=1)), (True, timedelta(days=30))])
def test_a_session_expires_after_its_idle_time_and_not_before(
    make_site: Callable[..., Site], clock: FakeClock, remember: bool, idle: timedelta
) -> None:
    site = make_site()
    ada = site.add()
    used, left = site.signed_in(ada, rememberMe=remember), site.signed_in(ada, rememberMe=remember)
    clock.now += idle - timedelta(milliseconds=1)
    assert used.get(ME).status == 200
    clock.move(milliseconds=1)
    reply = left.get(ME)
    assert (reply.status, reply.message) == (401, "Authentication required")


def test_using_a_session_moves_its_expiry(site: Site, clock: FakeClock) -> None:
    client = site.signed_in(site.add())
    for _ in range(20):
        clock.move(hours=23)
        assert client.get(ME).status == 200
    clock.move(hours=24)
    assert client.get(ME).status == 401


def test_a_token_in_use_is_written_at_most_once_a_minute(site: Site, clock: FakeClock) -> None:
    client, other = site.signed_in(ada := site.add()), site.signed_in(ada)
    uses = site.service.sessions.uses
    statement = "PRAGMA data_version"  # changes with each commit of another connection
    if postgres.is_whole():
        statement = "SELECT string_agg(CAST(xmin AS TEXT), ' ') FROM auth_tokens"  # with each write of a row
    with opened(site.service.settings.database) as database:

        def version() -> object:
            return database.execute(statement).fetchone()

        before, writes = version(), []
        for second in range(1, 181):
            clock.move(seconds=1)
            assert client.get(ME).status == 200
            uses.write()
            after = version()
            writes += [second] if after != before else []
            before = after
        assert writes == [60, 120, 180]
        assert other.get(ME).status == 200
        uses.write()
        assert version() != before, "each token counts for itself"


@pytest.mark.parametrize(
    ("settings", "remember", "days"),
    [
        ({}, False, 30),
        ({}, True, 30),
        ({"remember_me_expiration": timedelta(days=60)}, True, 60),
        ({"remember_me_expiration": timedelta(days=60)}, False, 60),
        ({"remember_me_expiration": timedelta(days=2)}, True, 30),
    ],
)
def test_no_use_moves_a_session_past_its_absolute_limit(
    make_site: Callable[..., Site], clock: FakeClock, settings: dict[str, Any], remember: bool, days: int
) -> None:
    client = (site := make_site(**settings)).signed_in(site.add(), rememberMe=remember)
    for _ in range(days * 2 - 1):
        clock.move(hours=12)
        assert client.get(ME).status == 200
    clock.move(hours=12)
    assert client.get(ME).status == 401


def test_a_persistent_cookie_is_sent_again_when_its_expiry_moved(site: Site, clock: FakeClock) -> None:
    client = site.signed_in(site.add(), rememberMe=True)
    token = token_of(client)
    clock.move(seconds=59)
    assert client.get(ME).all("Set-Cookie") == []
    clock.move(seconds=1)
    reply = client.get(ME)
    assert attributes(reply) == (
        f"auth_token={token}",
        # At most 30 days, and never past the absolute limit.
        {"Path=/", "HttpOnly", "SameSite=Lax", f"Max-Age={30 * 86400 - 60}"},
    )
    assert client.get(ME).all("Set-Cookie") == []
    clock.move(days=10)
    assert f"Max-Age={20 * 86400 - 60}" in attributes(client.get(ME))[1]


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/api/users/no-number", 400),
        ("GET", "/api/users/999", 403),
        ("GET", "/api/users", 403),
        ("DELETE", "/api/users/me/sessions/999", 404),
        ("GET", "/nowhere", 404),
        ("PUT", "/api/users/me", 405),
        ("GET", "/", 200),
        ("HEAD", "/", 200),
    ],
)
def test_errors_also_carry_the_renewed_cookie(
    site: Site, clock: FakeClock, method: str, path: str, status: int
) -> None:
    client = site.signed_in(site.add(), rememberMe=True)
    clock.move(hours=1)
    reply = client.send(method, path)
    assert reply.status == status
    assert attributes(reply)[0] == f"auth_token={token_of(client)}"


def test_a_session_cookie_is_not_sent_again_and_a_bearer_gets_none(site: Site, clock: FakeClock) -> None:
    ada = site.add()
    client, persistent = site.signed_in(ada), site.signed_in(ada, rememberMe=True)
    clock.move(minutes=5)
    assert client.get(ME).all("Set-Cookie") == []
    by_bearer = site.client(headers=bearer(token_of(persistent)))
    assert by_bearer.get(ME).all("Set-Cookie") == []
    assert by_bearer.post(f"{ME}/sessions/end-others").all("Set-Cookie") == []


# --- every response ---

JSON_POLICY = "default-src 'none'; frame-ancestors 'none'"


def check_headers(reply: Reply, *, https: bool = False) -> None:
    assert reply.header("X-Content-Type-Options") == "nosniff"
    assert reply.header("Referrer-Policy") == "no-referrer"
    assert "frame-ancestors 'none'" in (reply.header("Content-Security-Policy") or "")
    assert (reply.header("Content-Security-Policy") or "").startswith("default-src 'none'")
    assert "unsafe" not in (reply.header("Content-Security-Policy") or "")
    assert re.fullmatch(r"[0-9a-f]{16}", reply.header("X-Request-Id") or "")
    assert reply.header("Server") is None
    assert reply.header("Strict-Transport-Security") == ("max-age=31536000" if https else None)
    names = [name.lower() for name, _ in reply.headers]
    assert len(names) == len(set(names)), "a header comes twice"


@pytest.mark.parametrize("base_url", ["http://127.0.0.1:8080", "https://users.example.com"])
def test_every_response_has_the_security_headers(make_site: Callable[..., Site], base_url: str) -> None:
    site = make_site(base_url=base_url)
    client = site.signed_in(site.add(role="admin"))
    nobody = site.client()
    text = {"Content-Type": "text/plain"}
    replies = {
        200: client.get(ME),
        302: nobody.get("/"),
        400: client.get("/api/users/x"),
        401: nobody.get(ME),
        403: nobody.post(SESSION, headers={"Origin": "https://evil.example"}),
        404: client.get("/api/users/999"),
        405: nobody.get(SESSION),
        413: nobody.send("POST", SESSION, headers={"Content-Length": "65537"}),
        415: nobody.send("POST", SESSION, raw=b"email=a", headers=text),
        431: nobody.get(ME, headers={"X": "x" * 17000}),
    }
    for status, reply in replies.items():
        assert reply.status == status
        check_headers(reply, https=base_url.startswith("https"))
        assert reply.header("Cache-Control") == "no-store"
        if status != 302:
            assert reply.header("Content-Type") == "application/json; charset=utf-8"
            assert reply.header("Content-Security-Policy") == JSON_POLICY
        if status >= 400:
            assert reply.message
        assert reply.header("WWW-Authenticate") == ("Bearer" if status == 401 else None)
    ids = [reply.header("X-Request-Id") for reply in replies.values()]
    assert len(set(ids)) == len(ids)


def test_pages_and_assets_have_the_security_headers(site: Site) -> None:
    client = site.signed_in(site.add())
    for path in ("/", "/login", "/setup"):
        reply = client.get(path)
        assert (reply.status, reply.header("Content-Type")) == (200, "text/html; charset=utf-8")
        check_headers(reply)
        assert reply.header("Cache-Control") == "no-store"
    for path, kind in (("/assets/style.css", "text/css"), ("/assets/script.js", "text/javascript")):
        reply = site.client().get(path)
        assert (reply.status, reply.header("Content-Type")) == (200, f"{kind}; charset=utf-8")
        check_headers(reply)
        assert reply.header("Cache-Control") == "public, max-age=60"  # no version in the address
        name = path.removeprefix("/assets/")
        kept = site.client().get(assets.address(site.service.settings, name))
        check_headers(kept)
        assert kept.header("Cache-Control") == "public, max-age=31536000, immutable"
    assert site.client().get("/assets/layout.html").status == 404


def test_a_crash_is_a_500_without_details_and_with_the_security_headers(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = site.signed_in(site.add())
    monkeypatch.delattr("usersctl.models.User.as_json")
    reply = client.get(ME)
    assert (reply.status, reply.message) == (500, "Internal server error")
    check_headers(reply)
    (logged,) = [line for line in site.log if line["event"] == "error"]
    assert logged["request"] == reply.header("X-Request-Id")
    assert "as_json" in logged["trace"]


def test_a_database_that_lacks_a_column_is_a_503_that_does_not_name_it(site: Site) -> None:
    client = site.signed_in(site.add())
    by_hand(site.service.store.database, "ALTER TABLE users RENAME COLUMN profile_picture TO secret_column")
    reply = client.get(ME)
    assert (reply.status, b"profile_picture" in reply.body) == (503, False)


def test_a_missing_database_is_a_503_that_does_not_name_it(site: Site) -> None:
    client = site.signed_in(site.add())
    site.service.store.close()
    destroy(site.service.settings.database)
    reply = client.get(ME)
    assert (reply.status, reply.header("Retry-After")) == (503, "5")
    assert reply.message == "The service is not available right now, please try again"
    check_headers(reply)


@pytest.mark.parametrize(
    "path", [ME, "/api/users", "/api/users/1", "/", "/login", "/assets/style.css", "/nowhere", "/api/users/x"]
)
def test_head_is_get_without_the_body(site: Site, path: str) -> None:
    client = site.signed_in(site.add(role="admin"))
    got, head = client.get(path), client.send("HEAD", path)
    assert head.status == got.status
    assert head.body == b""
    assert head.header("Content-Length") == str(len(got.body))
    differs = {"X-Request-Id", "Date"}
    assert [h for h in head.headers if h[0] not in differs] == [h for h in got.headers if h[0] not in differs]


def test_head_without_a_session_is_refused_like_get(site: Site) -> None:
    assert site.client().send("HEAD", ME).status == 401
    reply = site.client().send("HEAD", "/")
    assert (reply.status, reply.header("Location")) == (302, "/login?redirect=/")


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("GET", SESSION, "DELETE, POST"),
        ("HEAD", SESSION, "DELETE, POST"),
        ("PUT", SESSION, "DELETE, POST"),
        ("OPTIONS", SESSION, "DELETE, POST"),
        ("POST", ME, "DELETE, GET, HEAD, PATCH"),
        ("PUT", "/api/users", "GET, HEAD, POST"),
        ("POST", "/api/users/1", "DELETE, GET, HEAD, PATCH"),
        ("POST", "/api/users/x", "DELETE, GET, HEAD, PATCH"),
        ("GET", "/api/users/password", "PATCH"),
        ("DELETE", "/api/users/inactive", "GET, HEAD"),
        ("POST", "/api/users/1/sessions", "DELETE, GET, HEAD"),
        ("GET", "/api/users/me/sessions/1", "DELETE"),
        ("GET", "/_tasks/users:cleanup-tokens", "POST"),
        ("DELETE", "/_tasks/", "GET, HEAD"),
        ("POST", "/login", "GET, HEAD"),
        ("BREW", "/", "GET, HEAD"),
        # What works once refuses HEAD.
        ("POST", "/api/users/confirm-email", "GET"),
        ("POST", "/api/users/auth/oauth/callback", "GET"),
        ("HEAD", "/api/users/auth/oauth/callback", "GET"),
    ],
)
def test_a_known_path_with_another_method_is_a_405(site: Site, method: str, path: str, allowed: str) -> None:
    client = site.signed_in(site.add(role="admin"))
    reply = client.send(method, path)
    assert (reply.status, reply.header("Allow")) == (405, allowed)
    if method != "HEAD":
        assert reply.message == "Method not allowed"


# --- bodies ---

GOOD = {"email": "ada@example.com", "password": PASSWORD}


@pytest.mark.parametrize(
    "media",
    [
        "application/json",
        "application/json; charset=utf-8",
        "Application/JSON;charset=UTF-8",
        "application/json;",
    ],
)
def test_a_json_body_is_accepted_with_any_valid_content_type(site: Site, media: str) -> None:
    site.add()
    reply = site.client().send(
        "POST", SESSION, raw=json.dumps(GOOD).encode(), headers={"Content-Type": media}
    )
    assert reply.status == 200


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Content-Type": ""},
        {"Content-Type": "text/plain"},
        {"Content-Type": "application/x-www-form-urlencoded"},
        {"Content-Type": "multipart/form-data; boundary=x"},
        {"Content-Type": "application/json-seq"},
        {"Content-Type": "text/json"},
        {"Content-Type": "application/json; charset=utf-16"},
        {"Content-Type": "application/json", "Content-Encoding": "gzip"},
        {"Content-Type": "application/json", "Content-Encoding": "br"},
    ],
)
def test_a_body_of_another_media_type_is_a_415(site: Site, headers: dict[str, str]) -> None:
    site.add()
    reply = site.client().send("POST", SESSION, raw=json.dumps(GOOD).encode(), headers=headers)
    assert reply.status == 415
    assert reply.message in (
        "The body must be sent as application/json",
        "The body must not be compressed",
    )


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (b"{", "The body is not valid JSON"),
        (b"nothing", "The body is not valid JSON"),
        (b'{"a": NaN}', "The body is not valid JSON"),
        (b'{"a": Infinity}', "The body is not valid JSON"),
        (b'{"email": "a", "email": "b"}', "The body is not valid JSON: a key stands twice in one object"),
        (b'{"a": {"b": 1, "b": 2}}', "The body is not valid JSON: a key stands twice in one object"),
        (b'{"a": "\xff"}', "The body is not valid JSON"),
        (b'\xef\xbb\xbf{"a": 1}', "The body is not valid JSON"),
        (b'{"a": "\x01"}', "The body is not valid JSON"),
        (b"[" * 10_000 + b"]" * 10_000, "The body is not valid JSON"),
        (b'{"a":' * 10_000 + b"1" + b"}" * 10_000, "The body is not valid JSON"),
        (b"[]", "The body must be a JSON object"),
        (b"null", "The body must be a JSON object"),
        (b'"text"', "The body must be a JSON object"),
        (b"1", "The body must be a JSON object"),
        (b'{"a": "\\ud800"}', "The body holds a character that no text may hold"),
        (b'{"a": ["\\u0000"]}', "The body holds a character that no text may hold"),
        (b'{"\\u0000": 1}', "The body holds a character that no text may hold"),
    ],
)
def test_a_body_that_is_not_a_json_object_is_a_400(site: Site, raw: bytes, message: str) -> None:
    reply = site.client().send("POST", SESSION, raw=raw, headers={"Content-Type": "application/json"})
    assert (reply.status, reply.message) == (400, message)


def test_a_body_over_64_kib_is_a_413(site: Site) -> None:
    site.add()
    filled = json.dumps(GOOD | {"filling": ""})
    raw = json.dumps(GOOD | {"filling": "x" * (65536 - len(filled))}).encode()
    headers = {"Content-Type": "application/json"}
    assert site.client().send("POST", SESSION, raw=raw, headers=headers).status == 200
    reply = site.client().send("POST", SESSION, raw=raw + b" ", headers=headers)
    assert (reply.status, reply.message) == (413, "Request body is too large")


def test_a_chunked_body_is_read(site: Site) -> None:
    site.add()
    raw = json.dumps(GOOD).encode()
    head = f"POST {SESSION} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Type: application/json\r\n"
    sent = head.encode() + b"Transfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n\r\n" % (len(raw), raw)
    assert site.raw(sent).startswith(b"HTTP/1.1 200 OK\r\n")


@pytest.mark.parametrize("chunk", [65_537, 7_001, 1])
def test_a_chunked_body_may_be_as_large_as_any_other(site: Site, chunk: int) -> None:
    site.add()
    head = f"POST {SESSION} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Type: application/json\r\n"
    statuses = {}
    for size in (65_535, 65_536, 65_537):
        raw = json.dumps(GOOD).encode().ljust(size)
        parts = [raw[at : at + chunk] for at in range(0, size, chunk)]
        body = b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in [*parts, b""])
        reply = site.raw(head.encode() + b"Transfer-Encoding: chunked\r\n\r\n" + body)
        statuses[size] = int(reply.split(b" ", 2)[1])
    assert statuses == {65_535: 200, 65_536: 200, 65_537: 413}


def test_unknown_fields_change_nothing(site: Site) -> None:
    ada = site.add()
    reply = site.client().post(SESSION, GOOD | {"role": "admin", "id": 7, "remember_me": True, "user": {}})
    assert reply.json["user"]["role"] == "user"
    assert reply.json["user"]["id"] == ada.id
    assert "Max-Age" not in "".join(reply.cookies())


# --- other sites ---


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 200),
        ({"Origin": "http://127.0.0.1:8080"}, 200),
        ({"Origin": "http://127.0.0.1:8080", "Sec-Fetch-Site": "same-origin"}, 200),
        ({"Sec-Fetch-Site": "none"}, 200),
        ({"Origin": "https://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Origin": "http://127.0.0.1"}, 403),
        ({"Origin": "http://127.0.0.1:8080.evil.example"}, 403),
        ({"Sec-Fetch-Site": "cross-site"}, 403),
        ({"Sec-Fetch-Site": "same-site"}, 403),
        ({"Sec-Fetch-Site": "cross-site", "Origin": "http://127.0.0.1:8080"}, 403),
    ],
)
def test_a_request_of_another_site_changes_nothing(site: Site, headers: dict[str, str], status: int) -> None:
    client = site.signed_in(site.add())
    reply = client.patch(ME, {"name": "Changed"}, headers=headers)
    assert reply.status == status
    assert client.get(ME, headers=headers).json["user"]["name"] == ("Changed" if status == 200 else "Ada")
    if status == 403:
        assert reply.message == "Cross-site requests are not allowed"


def test_an_allowed_origin_may_call_with_credentials_and_no_other(
    make_site: Callable[..., Site],
) -> None:
    site = make_site(allowed_origins=("https://app.example.com",))
    client = site.signed_in(site.add())
    ours = {"Origin": "https://app.example.com", "Sec-Fetch-Site": "cross-site"}
    reply = client.patch(ME, {"name": "Changed"}, headers=ours)
    assert reply.status == 200
    assert reply.header("Access-Control-Allow-Origin") == "https://app.example.com"
    assert reply.header("Access-Control-Allow-Credentials") == "true"
    assert reply.header("Access-Control-Expose-Headers") == EXPOSED
    assert reply.header("Vary") == "Origin"
    asked = site.client().send("OPTIONS", ME, headers=ours | {"Access-Control-Request-Method": "PATCH"})
    assert (asked.status, asked.body) == (200, b"")
    assert asked.header("Access-Control-Allow-Methods") == "DELETE, GET, HEAD, PATCH"
    check_headers(asked)
    evil = client.get(ME, headers={"Origin": "https://evil.example"})
    assert [name for name, _ in evil.headers if name.startswith("Access-Control")] == []


def test_without_an_allowed_origin_there_is_no_cors_header(site: Site) -> None:
    client = site.signed_in(site.add())
    reply = client.get(ME, headers={"Origin": "http://127.0.0.1:8080"})
    assert [name for name, _ in reply.headers if name.startswith("Access-Control") or name == "Vary"] == []


def test_times_are_utc_with_milliseconds(site: Site, clock: FakeClock) -> None:
    user = site.signed_in(site.add()).get(ME).json["user"]
    assert set(user) == set(USER_KEYS)
    assert {user[name] for name in ("created_at", "updated_at", "last_login_at")} == {stamp(clock.now)}
