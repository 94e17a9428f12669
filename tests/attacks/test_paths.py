"""Attacks by the path: no spelling of it opens what another spelling closes, here or behind the gate."""

import re
import threading
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import urlsplit
from wsgiref.simple_server import WSGIRequestHandler, make_server

import bottle
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.commands import OPERATOR, PASSWORD, create_user
from support.paths import filled
from support.spellings import PIECES, other_spellings, readings
from support.web import Client, Site, running

from usersctl.models import User
from usersctl.service import Service
from usersd.gate import Gate, current_user
from usersd.page_access import Whitelist
from usersd.routes import TABLE
from usersd.routing import Access

CLOSED = [
    filled(route.path)
    for route in TABLE
    if route.access in (Access.SIGNED_IN, Access.ADMIN, Access.ADMIN_PAGE, Access.OPERATOR)
]
FOR_ADMINS = [
    (route.method, filled(route.path))
    for route in TABLE
    if route.access in (Access.ADMIN, Access.ADMIN_PAGE, Access.OPERATOR)
]


def ask(site: Site, method: str, target: str, *headers: str) -> tuple[int, str, bytes]:
    """Status, head and body for a target that is sent unchanged."""
    lines = [f"{method} {target} HTTP/1.1", "Host: 127.0.0.1", "Connection: close", *headers, "", ""]
    head, _, body = site.raw("\r\n".join(lines).encode()).partition(b"\r\n\r\n")
    return int(head.split()[1]), head.decode("latin-1"), body


@pytest.fixture
def closed_site(make_service: Callable[..., Service]) -> Iterator[Site]:
    """A site whose tasks always need a session."""
    with running(
        make_service(whitelist=("/about", "/docs/*", "/api/users/i")), listening="192.0.2.1"
    ) as site:
        yield site


@pytest.fixture
def ada(closed_site: Site) -> User:
    return create_user(closed_site.service, "ada@example.com", "Ada", PASSWORD, role="admin", by=OPERATOR)


# --- the daemon ---


@pytest.mark.parametrize("path", sorted(set(CLOSED)))
def test_no_spelling_of_a_closed_path_opens_it_without_a_session(
    closed_site: Site, ada: User, path: str
) -> None:
    login = ask(closed_site, "GET", "/login")[2]
    targets = [
        target for opened in ("/login", "/assets", "/docs") for target in other_spellings(path, opened)
    ]
    for target in dict.fromkeys(targets):  # most of them hold no open path, and are the same for each
        status, head, body = ask(closed_site, "GET", target)
        assert ada.email.encode() not in body, target
        if status == 200:
            # The query after an open path is no part of the path.
            assert body == login, target
            assert target.partition("?")[0] == "/login", target
        elif status == 302:
            location = re.search(r"(?im)^Location: (.*?)\r?$", head)
            assert location, target
            assert location[1].startswith("/login?redirect=/"), target
        else:
            assert status in (400, 401, 404, 431), target
            assert b'"statusCode":' in body, target


@pytest.mark.parametrize(("method", "path"), FOR_ADMINS)
def test_no_spelling_of_an_admins_path_opens_it_to_a_user(
    closed_site: Site, ada: User, method: str, path: str
) -> None:
    create_user(closed_site.service, "bob@example.com", "Bob", PASSWORD, by=OPERATOR)
    bob = closed_site.client()
    assert bob.login("bob@example.com", PASSWORD).status == 200
    cookie = f"Cookie: auth_token={bob.cookies['auth_token']}"
    for target in other_spellings(path, "/login"):
        status, _, body = ask(closed_site, method, target, cookie)
        assert ada.email.encode() not in body, target
        if status == 200:
            assert method == "GET", target
            assert target.partition("?")[0] == "/login", target
        else:
            assert status in (302, 400, 401, 403, 404, 405, 431), target
            assert status < 500, target
    assert closed_site.service.accounts.get(ada.id) == closed_site.service.accounts.find(ada.email)


def test_a_trailing_line_feed_belongs_to_the_path(closed_site: Site, ada: User) -> None:
    admin = closed_site.client()
    admin.login(ada.email, PASSWORD)
    for path in (
        f"/api/users/{ada.id}/sessions%0a",
        "/_tasks/%0a",
        "/login%0a",
        "/assets/style.css%0a",
    ):
        assert admin.get(path).status == 404, path
    for path in (f"/api/users/{ada.id}%0a", "/api/users/me%0a", f"/api/users/{ada.id}%0a/sessions"):
        assert admin.get(path).message == "Invalid user id"
    assert admin.delete(f"/api/users/{ada.id}/sessions%0a").status == 404
    assert admin.get("/api/users/me").status == 200


@pytest.mark.parametrize("path", ["/about", "/docs", "/docs/", "/docs/x", "/docs/x/y"])
def test_a_whitelisted_path_without_a_route_is_a_404(closed_site: Site, path: str) -> None:
    assert closed_site.client().get(path).message == "Not found"


@pytest.mark.parametrize(
    "path",
    [
        "/abou", "/about/", "/about/x", "/aboutx", "/About", "/x/about", "/doc", "/docsx", "/docs-old", "/DOCS/x", "/x/docs/y",
        "/docs/../x", "/docs/%2e%2e/x", "/docs/..%2fx", "/docs/x/..", "/docs/.", "/docs%00/x", "/docs/..%5cx", "/docs/..;/x",
        "/docs/.%09./x", "/docs/..%20/x", "/docs/..%3f/x", "/docs/..%23/x", "/docs/..%0a/x", "/docs/..%00/x", "/docs/%20../x", "/docs/.%2509./x",
        "/docs/..%253f/x", "/docs/.%c2%a0./x", "/docs/.%e2%80%8b./x", "/docs/..%3fa=b/x", "/docs/..%e3%80%80/x", "/docs/..%09", "/docs/%09/x",
        "/docs/%252e%252e/x", "/docs/%25252e./x", "/docs/%2525252e./x", "/docs/%ef%bc%8e%ef%bc%8e/x", "/docs/%e2%80%a5/x", "/docs/%ff",
    ],
)  # fmt: skip
def test_a_whitelisted_prefix_opens_no_similar_path(closed_site: Site, path: str) -> None:
    reply = closed_site.client().get(path)
    assert reply.status in (302, 401)
    assert reply.status == 401 or (reply.header("Location") or "").startswith("/login?redirect=/")


def test_whitelisting_a_path_does_not_open_its_route(closed_site: Site) -> None:
    # /api/users/i would match the pattern of /api/users/<id>, whose rule stands in the table.
    assert closed_site.client().get("/api/users/i").message == "Authentication required"


@pytest.mark.parametrize(
    "path",
    ["/assets/..%2flayout.html", "/assets/../pages/login.html", "/assets/%2e%2e%2f__init__.py", "/assets//etc/passwd",
     "/assets/style.css%00", "/assets/style.css/", "/assets/STYLE.CSS", "/assets/layout.html", "/assets/", "/assets/.",
     "/assets/style.css%2f..%2flogin.html", "/assets/..%5clogin.html", "/assets/" + "a" * 5000],
)  # fmt: skip
def test_only_named_assets_are_served(closed_site: Site, ada: User, path: str) -> None:
    admin = closed_site.client()
    admin.login(ada.email, PASSWORD)
    assert admin.get(path).message == "Not found"


def test_a_redirect_after_login_is_a_path_of_this_site(closed_site: Site) -> None:
    for target in ("//evil.example", "/%2fevil.example", "/%5cevil.example", "/%09/evil.example", "/a?b=%0d%0aX:y",
                   "/x%0d%0aSet-Cookie:%20a=b", "/?redirect=//evil.example", "/a#b"):  # fmt: skip
        status, head, _ = ask(closed_site, "GET", target)
        assert status in (302, 400, 401)
        assert "\r\nSet-Cookie" not in head
        assert "\r\nX:" not in head
        if status == 302:
            location = head.partition("Location: ")[2].partition("\r\n")[0]
            assert re.fullmatch(r"/login\?redirect=/[!-~]*", location), location
            assert urlsplit(location).netloc == ""


# --- the gate around another application ---


class Behind:
    """An application that records the paths of its requests."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> list[bytes]:
        self.seen.append(environ.get("SCRIPT_NAME", "") + environ.get("PATH_INFO", ""))
        user = current_user(environ)
        start_response("200 OK", [("Content-Type", "text/plain")])
        return [(user["email"] if user else "nobody").encode()]


OPENED = ("/about", "/docs/*", "/shop/*/view")


def reaches(service: Service, path: str, script: str = "", **environ: str) -> tuple[bool, str, str]:
    """Whether the application was reached, the status, and the target of a redirect."""
    behind = Behind()
    answer: list[Any] = []
    request = {
        "REQUEST_METHOD": "GET",
        "SCRIPT_NAME": script,
        "PATH_INFO": path.encode("utf-8", "surrogateescape").decode("latin-1"),
        **environ,
    }
    body = b"".join(
        Gate(behind, service)(request, lambda status, headers: answer.extend((status, dict(headers))))
    )
    assert bool(behind.seen) == (body == b"nobody")
    return bool(behind.seen), answer[0], answer[1].get("Location", "")


def is_meant(path: str) -> bool:
    return (
        path in ("/about", "/login", "/docs")
        or path.startswith("/docs/")
        or bool(re.fullmatch(r"/shop/[^/]+/view(/.*)?", path))
    )


@pytest.mark.slow
@given(
    st.sampled_from(["/docs/", "/docs", "/about", "/shop/", "/shop/1/view", "/login", "/", ""]),
    st.lists(st.sampled_from(PIECES), max_size=9),
)
@settings(max_examples=1000, deadline=None)
def test_no_reading_of_a_whitelisted_path_leads_elsewhere(start: str, more: list[str]) -> None:
    path = start + "".join(more)
    if any("\udc80" <= c <= "\udcff" for c in path):
        return  # not UTF-8: never looked up
    opened = Whitelist(OPENED)
    if path in opened:
        assert all(is_meant(reading) for reading in readings(path)), path


@pytest.mark.parametrize(
    "path",
    ["//docs/x", "/docs\udcff/x", "/docs/\udcff", "/%64ocs/x", "/docs/..\\admin", "/docs/..;/admin", "/docs/%2e%2e/admin",
     "/docs/..%2fadmin", "/docs/\u2025/admin", "/docs/a\\..\\..\\admin", "/docs/;/../../admin", "/login/", "/login\udcff",
     "/shop/%2f/view", "/shop/a%2fb/view", "/shop/\\/view", "/shop/a\\b/view", "/shop/;x/view", "/shop/\uff0f/view",
     "//login", "/LOGIN", "/login\n", "/login\0", "/login;x", "/login/../admin", "/about/", "/shop//view", "/shop/a/b/view",
     "/shop/../view", "/shop/view", "", "/", "docs/x", "*", "/register", "/assets/style.css", "/api/users/session", "/setup"],
)  # fmt: skip
def test_no_spelling_of_a_closed_path_reaches_the_application(
    make_service: Callable[..., Service], path: str
) -> None:
    reached, status, location = reaches(make_service(whitelist=OPENED), path)
    assert not reached
    assert status.startswith(("302", "401"))
    assert location == "" or re.fullmatch(r"/login\?redirect=/?[!-~]*", location)


@pytest.mark.parametrize(
    "path", ["/login", "/about", "/docs", "/docs/", "/docs/100%25.html", "/docs/ä;v=1/b", "/shop/1/view"]
)
def test_whitelisted_paths_reach_the_application(make_service: Callable[..., Service], path: str) -> None:
    assert reaches(make_service(whitelist=OPENED), path)[0]


@pytest.mark.parametrize(
    ("pattern", "path", "opened"),
    [
        ("/price%20list", "/price list", True),
        ("/price%20list", "/price%20list", False),
        ("/price%20list/*", "/price list/2026", True),
        ("/%C3%A4/*/x", "/ä/b/x", True),
        ("/docs/%2A/x", "/docs/a/x", False),
        ("/docs/%2A/*", "/docs/a/x", False),
        ("/a%2Fb", "/a/b", False),  # to an application, that may be another page
        ("/a%2fb/*", "/a/b/c", False),
    ],
)
def test_a_pattern_of_the_whitelist_may_be_written_as_in_an_address(
    pattern: str, path: str, opened: bool
) -> None:
    assert (path in Whitelist((pattern,))) == opened


@pytest.mark.parametrize(
    ("script", "path", "opened"),
    [
        ("/docs", "/x", True),
        ("/docs", "", True),
        ("/docs/", "/x", True),
        ("/", "/about", True),
        ("", "/docs/x", True),
        ("/admin", "/docs/x", False),
        ("/admin", "/login", False),
        ("/admin", "/about", False),
        ("/docs/..", "/admin", False),
        ("/docs", "/../admin", False),
        ("/docs\xff", "/x", False),
    ],
)
def test_the_mount_point_of_the_gate_belongs_to_the_path(
    make_service: Callable[..., Service], script: str, path: str, opened: bool
) -> None:
    reached, _, location = reaches(make_service(whitelist=OPENED), path, script)
    assert reached == opened
    if script == "/admin":
        assert location == f"/login?redirect={script}{path}"


@pytest.mark.parametrize("name", ["HTTP_X_ORIGINAL_URL", "HTTP_X_REWRITE_URL", "HTTP_X_FORWARDED_URI", "HTTP_X_FORWARDED_PREFIX",
                                  "HTTP_X_SCRIPT_NAME", "REQUEST_URI", "RAW_URI", "PATH_TRANSLATED", "HTTP_X_HTTP_METHOD_OVERRIDE"])  # fmt: skip
def test_no_request_header_replaces_the_path(make_service: Callable[..., Service], name: str) -> None:
    service = make_service(whitelist=OPENED)
    assert not reaches(service, "/admin", "", **{name: "/docs/x"})[0]


@pytest.mark.parametrize("name", ["HTTP_USERSD.USER", "HTTP_USERSD_USER", "usersd.user"])
def test_no_client_sets_its_identity_for_the_application(
    make_service: Callable[..., Service], name: str
) -> None:
    service = make_service(whitelist=OPENED)
    reached, _, _ = reaches(service, "/docs/x", "", **{name: '{"email": "ada@example.com", "role": "admin"}'})
    assert reached  # without a user, as `reaches` checks


class Quiet(WSGIRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - its name there
        pass


def test_the_rules_hold_behind_another_server_and_router(
    make_service: Callable[..., Service], add: Callable[..., User]
) -> None:
    """Bottle's router drops bytes and leading slashes, and a mounted application sees a shorter path."""
    service = make_service(whitelist=OPENED)
    inner, outer = bottle.Bottle(), bottle.Bottle()
    secrets = 0

    @inner.route("/<path:path>")  # type: ignore[untyped-decorator]
    def inside(path: str) -> str:
        return "inner " + path

    @outer.route("/<path:path>")  # type: ignore[untyped-decorator]
    def outside(path: str) -> str:
        nonlocal secrets
        secrets += path != "docs" and not path.startswith("docs/")
        return "outer " + path

    outer.mount("/admin/", Gate(inner, service))
    with make_server("127.0.0.1", 0, Gate(outer, service), handler_class=Quiet) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            nobody, ada = Client(server.server_port), Client(server.server_port)
            assert nobody.get("/docs/x").body == b"outer docs/x"
            for target in other_spellings("/admin/docs/x", "/docs"):
                if target.isascii() and " " not in target and "\\" not in target and target.startswith("/"):
                    nobody.get(target[:2000])
            assert secrets == 0
            assert nobody.get("/admin/docs/x").header("Location") == "/login?redirect=/admin/docs/x"
            add()
            ada.cookies["auth_token"] = service.sessions.login("ada@example.com", PASSWORD).token
            assert ada.get("/admin/docs/x").body == b"inner docs/x"
            assert ada.get("/secret").body == b"outer secret"
        finally:
            server.shutdown()
            thread.join(10)
