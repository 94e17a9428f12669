"""Attacks from a page of another site: what a browser can be made to send changes nothing, and no other origin reads."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from support.commands import OPERATOR, PASSWORD, create_user
from support.paths import filled
from support.tables import everything
from support.web import Client, Reply, Site, running

from usersctl.service import Service
from usersd.routes import FOR_DEVELOPMENT, TABLE

EXPOSED = "Retry-After, X-Request-Id, X-Account-State, X-Awaiting-Confirmation, X-Invited"

OURS = "http://127.0.0.1:8080"
FRIEND = "https://app.example"
EVIL = "https://evil.example"
JSON = {"Content-Type": "application/json"}

CHANGES = [(route.method, filled(route.path, id="2")) for route in TABLE if route.method != "GET"]
READS = [filled(route.path, id="2") for route in TABLE if route.method == "GET"]

# The headers of various browsers in a request of another site.
CROSS_SITE: list[dict[str, str]] = [
    {"Sec-Fetch-Site": "cross-site"},
    {"Sec-Fetch-Site": "same-site"},
    {"Sec-Fetch-Site": "cross-site", "Origin": EVIL},
    {"Sec-Fetch-Site": "cross-site", "Origin": OURS},
    {"Sec-Fetch-Site": "same-site", "Origin": "http://127.0.0.1:8081"},
    {"Sec-Fetch-Site": "cross-site", "Origin": "null"},
    {"Sec-Fetch-Site": ""},
    {"Sec-Fetch-Site": "Same-Origin"},
    {"Sec-Fetch-Site": "same-origin, cross-site"},
    {"Sec-Fetch-Site": "same-originx"},
    {"Origin": EVIL},
    {"Origin": "null"},
    {"Origin": ""},
    {"Origin": "http://127.0.0.1"},
    {"Origin": "http://127.0.0.1:8081"},
    {"Origin": "https://127.0.0.1:8080"},
    {"Origin": "http://localhost:8080"},
    {"Origin": "http://127.0.0.1:8080.evil.example"},
    {"Origin": "http://evil.example#http://127.0.0.1:8080"},
    {"Origin": "http://127.0.0.1:8080@evil.example"},
    {"Origin": "http://127.0.0.1:8080/"},
    {"Origin": "http://127.0.0.1:80800"},
    {"Origin": f"{OURS} {EVIL}"},
    {"Origin": f"{OURS},{EVIL}"},
    {"Origin": "file://"},
    {"Origin": "*"},
]


@pytest.fixture
def make_site(make_service: Callable[..., Service]) -> Iterator[Callable[..., Site]]:
    with ExitStack() as stack:

        def make(**changes: Any) -> Site:
            service = make_service(whitelist=("/register",), limits_enabled=False, **changes)
            for name, role in (("ada", "admin"), ("bob", "user")):
                create_user(service, f"{name}@example.com", name.title(), PASSWORD, role=role, by=OPERATOR)
            service.groups.create("staff", by=OPERATOR)
            return stack.enter_context(running(service))

        yield make


@pytest.fixture
def site(make_site: Callable[..., Site]) -> Site:
    return make_site()


@pytest.fixture
def ada(site: Site) -> Client:
    """The victim: an admin whose browser sends the cookie, as an old browser or a page of a sibling domain makes it do."""
    client = site.client()
    client.login("ada@example.com", PASSWORD)
    return client


def words(path: str) -> dict[str, Any]:
    if path == "/api/groups":
        return {"name": "eves"}
    if path.endswith("/groups"):
        return {"groups": ["staff"]}
    if path.endswith("/bulk"):
        return {"ids": [2], "action": "deactivate"}
    return {"email": "eve@example.com", "name": "Eve", "password": PASSWORD, "currentPassword": PASSWORD, "active": False,
            "newPassword": "another sentence", "newPasswordConfirmation": "another sentence", "role": "admin"} | (
        {"email": "bob@example.com"} if path.endswith("/session") else {}
    )  # fmt: skip


# --- changes ---


@pytest.mark.parametrize("endpoint", CHANGES, ids=" ".join)
def test_a_request_of_another_site_changes_nothing(
    site: Site, ada: Client, endpoint: tuple[str, str]
) -> None:
    before = everything(site.service)
    for headers in CROSS_SITE:
        reply = ada.send(*endpoint, words(endpoint[1]), headers=headers)
        assert (reply.status, reply.message) == (403, "Cross-site requests are not allowed"), headers
        assert not reply.all("Set-Cookie")
    assert everything(site.service) == before
    assert ada.get("/api/users/me").status == 200


FOR_FORMS = ("POST", "/logout")  # no browser sends the cookie with a form of another site
OF_FORMS: list[tuple[str | None, bytes]] = [
    ("application/x-www-form-urlencoded", b"email=bob%40example.com&password=correct+horse+battery&name=Eve"),
    ("application/x-www-form-urlencoded", b'{"email": "bob@example.com", "name": "Eve", "password": "correct horse battery", "x": "=="}'),
    ("text/plain", b'{"email": "bob@example.com", "name": "Eve", "password": "correct horse battery", "x": "="}'),
    ("text/plain;application/json", b'{"email": "bob@example.com", "name": "Eve", "password": "correct horse battery"}'),
    ("multipart/form-data; boundary=x", b'--x\r\nContent-Disposition: form-data; name="email"\r\n\r\nbob@example.com\r\n--x--\r\n'),
    (None, b'{"email": "bob@example.com", "name": "Eve", "password": "correct horse battery"}'),
    ("", b'{"email": "bob@example.com", "name": "Eve", "password": "correct horse battery"}'),
]  # fmt: skip


@pytest.mark.parametrize(
    "endpoint", [change for change in CHANGES if change[0] == "POST" and change != FOR_FORMS], ids=" ".join
)
def test_a_body_that_an_html_form_can_send_is_refused(
    site: Site, ada: Client, endpoint: tuple[str, str]
) -> None:
    """From a browser so old that it does not send the origin of the form."""
    before = everything(site.service)
    for media, raw in OF_FORMS:
        reply = ada.send(*endpoint, raw=raw, headers={} if media is None else {"Content-Type": media})
        assert reply.status == 415, media
        assert reply.message, media
        assert everything(site.service) == before, media


def test_another_site_cannot_sign_a_browser_in(site: Site) -> None:
    victim = site.client()
    for headers in CROSS_SITE:
        reply = victim.post(
            "/api/users/session", {"email": "bob@example.com", "password": PASSWORD}, headers=headers
        )
        assert reply.status == 403
    assert victim.cookies == {}


@pytest.mark.parametrize("headers", [{}, {"Sec-Fetch-Site": "same-origin"}, {"Sec-Fetch-Site": "none"}, {"Origin": OURS},
                                     {"Sec-Fetch-Site": "same-origin", "Origin": OURS}])  # fmt: skip
def test_own_pages_and_programs_are_accepted(ada: Client, headers: dict[str, str]) -> None:
    assert ada.patch("/api/users/me", {"name": "Ada L."}, headers=headers).status == 200


@pytest.mark.parametrize("path", READS)
def test_a_get_changes_nothing(site: Site, ada: Client, path: str) -> None:
    before = everything(site.service)
    for method in ("GET", "HEAD", "OPTIONS"):
        for query in (
            "",
            "?_method=DELETE",
            "?active=false&role=user",
            "?email=bob@example.com&token=x",
            "?logout",
        ):
            for headers in (
                {},
                {"X-HTTP-Method-Override": "DELETE"},
                {"X-Method-Override": "PATCH"},
                {"Sec-Fetch-Site": "cross-site"},
            ):
                assert (
                    ada.send(
                        method, path + query, {"active": False, "_method": "DELETE"}, headers=headers
                    ).status
                    < 500
                )
    assert everything(site.service) == before


@pytest.mark.parametrize("endpoint", CHANGES, ids=" ".join)
def test_no_other_method_makes_a_change(site: Site, ada: Client, endpoint: tuple[str, str]) -> None:
    before = everything(site.service)
    others = {"GET", "HEAD", "OPTIONS", "TRACE", "get", "Post", "PUT", "SEARCH", "LINK", "X-POST", "A,GET"}
    for method in others - {endpoint[0]}:
        assert ada.send(method, endpoint[1], words(endpoint[1])).status < 500
        assert everything(site.service) == before


# --- reading: CORS ---


def cors(reply: Reply) -> dict[str, str]:
    return {name: value for name, value in reply.headers if name.lower().startswith("access-control")}


def test_without_allowed_origins_no_response_has_a_cors_header(ada: Client) -> None:
    for origin in (EVIL, "null", OURS, "*", FRIEND):
        for method, path in (("GET", "/api/users/me"), ("GET", "/login"), ("GET", "/nowhere"), *CHANGES):
            assert cors(ada.send(method, path, headers={"Origin": origin})) == {}
        preflight = {
            "Origin": origin,
            "Access-Control-Request-Method": "DELETE",
            "Access-Control-Request-Headers": "content-type",
        }
        for path in ("/api/users/me", "/api/users/2", "/api/users/session", "/nowhere"):
            reply = ada.send("OPTIONS", path, headers=preflight)
            assert cors(reply) == {}
            assert reply.status in (401, 404, 405)


def test_only_an_allowed_origin_may_read_responses(make_site: Callable[..., Site]) -> None:
    site = make_site(allowed_origins=(FRIEND,))
    browser = site.client()
    allowed = {
        "Access-Control-Allow-Origin": FRIEND,
        "Access-Control-Allow-Credentials": "true",
        "Access-Control-Expose-Headers": EXPOSED,
    }
    for fetch in ({}, {"Sec-Fetch-Site": "cross-site"}, {"Sec-Fetch-Site": "same-site"}):
        headers = {"Origin": FRIEND, **fetch}
        reply = browser.post(
            "/api/users/session", {"email": "ada@example.com", "password": PASSWORD}, headers=headers
        )
        assert reply.status == 200
        assert cors(reply) == allowed
        assert cors(browser.get("/api/users/me", headers=headers)) == allowed
        assert cors(browser.get("/api/users/x", headers=headers)) == allowed  # errors can be read, too
    for origin in (EVIL, "null", "https://app.example.evil.example", "https://app.example:8443", "http://app.example", "https://APP.example",
                   "https://xapp.example", "https://app.example/", f"{FRIEND}, {EVIL}", f"{FRIEND} {EVIL}", "*", "", OURS):  # fmt: skip
        reply = browser.get("/api/users/me", headers={"Origin": origin})
        assert cors(reply) == {}, origin
        assert reply.header("Vary") == "Origin"
        if origin != OURS:
            refused = browser.patch("/api/users/me", {"name": "Eve"}, headers={"Origin": origin})
            assert refused.status == 403, origin
            assert cors(refused) == {}
        assert (
            cors(
                browser.send(
                    "OPTIONS",
                    "/api/users/me",
                    headers={"Origin": origin, "Access-Control-Request-Method": "PATCH"},
                )
            )
            == {}
        )
    reply = browser.get("/api/users/me")
    assert cors(reply) == {}
    assert reply.header("Vary") == "Origin"


def test_a_preflight_of_an_allowed_origin_needs_no_session(make_site: Callable[..., Site]) -> None:
    site = make_site(allowed_origins=(FRIEND,))
    headers = {"Origin": FRIEND, "Access-Control-Request-Method": "PATCH", "Sec-Fetch-Site": "cross-site"}
    for path in ("/api/users/me", "/api/users/2", "/api/users/session"):
        reply = site.client().send("OPTIONS", path, headers=headers)
        assert reply.status == 200
        assert reply.body == b""
        allowed = cors(reply)
        assert allowed["Access-Control-Allow-Origin"] == FRIEND
        assert allowed["Access-Control-Allow-Credentials"] == "true"
        assert "*" not in "".join(allowed.values())
        assert allowed["Access-Control-Allow-Headers"] == "Content-Type, Authorization"
        assert reply.header("X-Content-Type-Options") == "nosniff"
    # Of what there is not, and to whom it is not said, nothing is told.
    for path in ("/nowhere", "/api/nowhere", "/api/users/", "/api", "/users"):
        reply = site.client().send("OPTIONS", path, headers=headers)
        assert (reply.status, reply.message) == (401, "Authentication required")
        assert "Access-Control-Allow-Methods" not in cors(reply)
    for path in ("/login", "/assets/style.css"):
        reply = site.client().send("OPTIONS", path, headers=headers)
        assert (reply.status, cors(reply)) == (405, {})


def test_a_preflight_lists_the_methods_of_the_path(make_site: Callable[..., Site]) -> None:
    site = make_site(allowed_origins=(FRIEND,))
    for path, methods in (
        ("/api/users/me", "DELETE, GET, HEAD, PATCH"),
        ("/api/users/2", "DELETE, GET, HEAD, PATCH"),
        ("/api/users/session", "DELETE, POST"),
        ("/api/users/auth/verify", "GET, HEAD"),
    ):
        asked = {"Origin": FRIEND, "Access-Control-Request-Method": "PATCH"}
        reply = site.client().send("OPTIONS", path, headers=asked)
        assert cors(reply)["Access-Control-Allow-Methods"] == methods
        assert cors(reply)["Access-Control-Max-Age"] == "600"
        assert reply.header("Vary") == "Origin"


def test_pages_and_redirects_are_for_no_other_origin(make_site: Callable[..., Site]) -> None:
    """An allowed origin may call the API. Pages and redirects stay unreadable for it."""
    site = make_site(allowed_origins=(FRIEND,))
    ada = site.client()
    ada.login("ada@example.com", PASSWORD)
    for client in (site.client(), ada):
        for path in (
            "/", "/users", "/login", "/nowhere", "/forgot-password", "/assets/script.js", "/api/users/auth/oauth/redirect",
            "/api/users/auth/oauth/callback?error=x",
        ):  # fmt: skip
            assert cors(client.get(path, headers={"Origin": FRIEND})) == {}, path
    browser = {"Origin": FRIEND, "Accept": "text/html", "Sec-Fetch-Mode": "navigate"}
    reply = site.client().get("/api/users/auth/verify", headers=browser)
    assert (reply.status, cors(reply)) == (302, {})


def test_an_application_of_an_allowed_origin_signs_in_and_out(
    make_site: Callable[..., Site],
) -> None:
    """Each call as a browser sends it: a preflight, then the request with the cookie."""
    site = make_site(allowed_origins=(FRIEND,))
    browser = site.client()

    def fetch(method: str, path: str, body: Any = None, *, simple: bool = False) -> Reply:
        origin = {"Origin": FRIEND, "Sec-Fetch-Site": "same-site", "Sec-Fetch-Mode": "cors"}
        if not simple:
            asked = {
                "Access-Control-Request-Method": method,
                "Access-Control-Request-Headers": "content-type",
            }
            preflight = site.client().send("OPTIONS", path, headers=origin | asked)
            assert preflight.status == 200
            assert method in cors(preflight)["Access-Control-Allow-Methods"].split(", ")
        reply = browser.send(method, path, body, headers=origin)
        assert cors(reply)["Access-Control-Allow-Origin"] == FRIEND
        assert cors(reply)["Access-Control-Allow-Credentials"] == "true"
        return reply

    assert fetch("GET", "/api/users/me", simple=True).message == "Authentication required"
    words = {"email": "bob@example.com", "password": PASSWORD}
    assert (
        fetch("POST", "/api/users/session", words | {"password": "wrong"}).message
        == "Invalid email or password"
    )
    assert fetch("POST", "/api/users/session", words).status == 200
    assert fetch("PATCH", "/api/users/me", {"name": "Bob B."}).json["name"] == "Bob B."
    assert fetch("GET", "/api/users/me", simple=True).json["user"]["name"] == "Bob B."
    assert fetch("GET", "/api/users", simple=True).status == 403
    assert fetch("DELETE", "/api/users/session").status == 200
    assert fetch("GET", "/api/users/me", simple=True).status == 401


def test_an_allowed_origin_does_not_open_the_tasks(
    make_site: Callable[..., Site],
) -> None:
    """A fresh installation is open to a person on that machine, and not to every page in the browser there."""
    site = make_site()
    assert site.client().get("/_tasks/").status == 200
    for headers in CROSS_SITE:
        assert site.client().post("/_tasks/users:cleanup-tokens", headers=headers).status == 403
    assert site.client().post("/_tasks/users:cleanup-tokens").status == 200


TURNED = [
    "evil.example", "evil.example:8080", "127.0.0.1.evil.example", "localhost.evil.example:8080", "192.0.2.1", "",
    "127.0.0.1@evil.example", "[2001:db8::1]:8080", "0.0.0.0:8080", "[::1", "x]",
]  # fmt: skip


@pytest.mark.parametrize("host", TURNED)
def test_a_rebound_host_name_does_not_count_as_this_machine(
    make_service: Callable[..., Service], host: str
) -> None:
    """DNS rebinding: for the browser it is the same origin."""
    doors = (("GET", "/_tasks/"), ("POST", "/_tasks/users:cleanup-tokens"), ("GET", "/dev/mail"))
    with running(make_service(), table=TABLE + FOR_DEVELOPMENT) as site:
        for method, path in doors:
            answer = as_host(
                site, method, path, host, "Sec-Fetch-Site: same-origin", f"Origin: http://{host}"
            )
            assert answer.startswith((b"HTTP/1.1 401 ", b"HTTP/1.1 400 ", b"HTTP/1.1 404 ")), answer


@pytest.mark.parametrize(
    "host", ["127.0.0.1:8080", "localhost", "localhost:3000", "LOCALHOST:8080", "[::1]:8080", "127.1.2.3"]
)
def test_a_loopback_host_name_counts_as_this_machine(make_service: Callable[..., Service], host: str) -> None:
    with running(make_service(), table=TABLE + FOR_DEVELOPMENT) as site:
        for path in ("/_tasks/", "/dev/mail"):
            assert as_host(site, "GET", path, host).startswith(b"HTTP/1.1 200 ")
            assert not as_host(site, "GET", path, host, "X-Forwarded-For: 127.0.0.1").startswith(
                b"HTTP/1.1 200 "
            )


def as_host(site: Site, method: str, path: str, host: str, *headers: str) -> bytes:
    lines = [f"{method} {path} HTTP/1.1", f"Host: {host}", *headers, "Connection: close", "", ""]
    return site.raw("\r\n".join(lines).encode())
