"""Forward authentication with the files of `usersctl snippet`: a real nginx and a real Caddy in front of an application."""

import json
import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, quote, unquote, urlsplit

import pytest
import yaml
from support.commands import OPERATOR, PASSWORD, Command
from support.daemons import free_port
from support.documentation import blocks, page, section
from support.proxies import NAME, STARTS, House, Visitor, house
from support.spellings import other_spellings
from support.web import Client, Reply, hosting

from usersctl.identity_headers import known_names, spellings
from usersd.routes import TABLE
from usersd.server.connections import Hosted

pytestmark = pytest.mark.slow

FORWARD_AUTH = "docs/integrating/forward-auth.md"

BROWSER = {
    "Accept": "text/html,application/xhtml+xml",
    "Sec-Fetch-Mode": "navigate",
    "Sec-Fetch-Site": "none",
}


@pytest.fixture(scope="module", params=["nginx", "caddy"])
def here(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    with house(request.param, tmp_path_factory.mktemp(request.param)) as site:
        yield site


def seen(reply: Reply) -> dict[str, Any]:
    """What the application received."""
    assert reply.status == 200, (reply.status, reply.body)
    answer: dict[str, Any] = reply.json
    return answer


ADA = {"email": "ada@example.com", "name": "Ada Lövelace", "role": "user", "groups": [], "auth": ["pwd"]}


def who(seen_request: dict[str, Any]) -> dict[str, Any] | None:
    return (
        {name: value for name, value in seen_request["who"].items() if name != "id"}
        if seen_request["who"]
        else None
    )


# --- visitors ---


def test_an_anonymous_visitor_does_not_reach_the_application(here: House) -> None:
    nobody = here.visitor()
    for method in ("GET", "POST", "PUT", "DELETE"):
        reply = nobody.send(method, "/page?x=1")
        assert (reply.status, reply.message) == (401, "Authentication required")
        assert reply.header("Location") == "/login?redirect=/page%3Fx%3D1"
        assert (reply.header("Content-Type") or "").startswith("application/json")
        assert reply.header("Cache-Control") == "no-store"
    browser = nobody.get("/page?x=1", headers=BROWSER)
    assert (browser.status, browser.header("Location")) == (302, "/login?redirect=/page%3Fx%3D1")
    assert nobody.get("/page", headers={"Accept": "text/html"}).status == 302
    assert nobody.post("/page", {}, headers=BROWSER).status == 401
    assert nobody.get("/page", headers=BROWSER | {"Sec-Fetch-Mode": "cors"}).status == 401


def test_the_application_knows_the_signed_in_user(here: House) -> None:
    ada = here.visitor(here.ada)
    for method, target, path in (
        ("GET", "/", "/"),
        ("GET", "/page?x=1&y=%26", "/page"),
        ("POST", "/a%20b/%C3%A4", "/a b/ä"),
        ("PUT", "/api/things/7", "/api/things/7"),
        ("DELETE", "/a%2Fb", "/a/b"),
        ("GET", "/100%25;v=1/(x)~'*", "/100%;v=1/(x)~'*"),
    ):
        seen_request = seen(
            ada.send(method, target, {"some": "thing"} if method in ("POST", "PUT") else None)
        )
        assert (seen_request["method"], seen_request["path"], who(seen_request)) == (method, path, ADA)
        assert seen_request["query"] == target.partition("?")[2]
        assert seen_request["body"] == ('{"some": "thing"}' if method in ("POST", "PUT") else "")
        headers = seen_request["headers"]
        assert headers["remote-user"] == str(here.ada.id)
        assert headers["remote-name"] == "Ada L%C3%B6velace"
        assert headers["x-forwarded-for"] == "127.0.0.1"
        assert headers["x-forwarded-proto"] == "https"
        assert headers["x-forwarded-host"] == headers["host"]
        assert headers["host"] == f"{NAME}:{here.proxy.port}"


def test_a_token_is_as_good_as_a_cookie(here: House) -> None:
    made = here.site.service.sessions.create_api_token(here.ada.id, name="x", lifetime=None, by=OPERATOR)
    client = here.visitor()
    assert who(seen(client.get("/x", headers={"Authorization": f"Bearer {made.token}"}))) == ADA | {
        "auth": ["token"]
    }


def test_public_pages_are_open_to_anonymous_and_signed_in_visitors(here: House) -> None:
    for path in ("/about", "/docs", "/docs/a/b", "/about?next=https%3A%2F%2Fexample.com%2F"):
        seen_request = seen(here.visitor().get(path, headers=BROWSER))
        assert who(seen_request) is None
        assert [
            value for name, value in seen_request["headers"].items() if name.startswith("remote") and value
        ] == []
        assert who(seen(here.visitor(here.ada).get(path))) == ADA


def test_a_header_without_a_value_is_empty_and_nginx_leaves_it_out(here: House) -> None:
    headers = seen(here.visitor().get("/about"))["headers"]
    assert {name: value for name, value in headers.items() if name.startswith("remote-")} == (
        {} if here.kind == "nginx" else dict.fromkeys(map(str.lower, FORGED), "")
    )


def test_a_request_with_too_many_headers_is_told_so(here: House) -> None:
    headers = {f"X-Long-{n}": "x" * 6_000 for n in range(3)}
    assert here.visitor().get("/about", headers=headers).status == 431
    assert here.visitor().get("/page", headers=headers).status == 431


def test_pages_for_admins(here: House) -> None:
    nobody, ada = here.visitor(), here.visitor(here.ada)
    root = here.opened_with(here.root, "passkey")  # one of the paths may be one that needs two factors
    for path in ("/admin", "/admin/x?y=1", "/ADMIN/", "/docs/drafts/1", "/x/..%2fadmin", "/admin.json"):
        assert [nobody.get(path).status, ada.get(path).status] == [401, 403], path
        assert nobody.get(path, headers=BROWSER).status == 302
        seen_request = seen(root.get(path))
        assert seen_request["who"]["role"] == "admin"


def test_pages_for_a_group(here: House) -> None:
    groups, eve = here.site.service.groups, here.site.add("eve")
    nobody, root, member = here.visitor(), here.visitor(here.root), here.visitor(eve)
    assert [client.get("/staff/x").status for client in (nobody, member, root)] == [401, 403, 200]
    for name in ("staff", "board"):
        groups.create(name, by=OPERATOR)
        groups.add(name, [eve.id], by=OPERATOR)
    seen_request = seen(member.get("/staff/x"))
    assert seen_request["headers"]["remote-groups"] == "board,staff"
    assert seen_request["who"]["groups"] == ["board", "staff"]
    for headers in rewritten({"Remote-Groups": "admins", "X-Forwarded-Groups": "admins"}):
        assert seen(member.get("/staff/x", headers=headers))["who"]["groups"] == ["board", "staff"]
        assert seen(root.get("/page", headers=headers))["who"]["groups"] == []
    for connection in ("close, Remote-Groups", "keep-alive, remote-groups"):
        answer = seen(member.get("/staff/x", headers={"Connection": connection}))
        assert answer["who"]["groups"] == ["board", "staff"]
    groups.delete("staff", by=OPERATOR)
    groups.remove("board", [eve.id], by=OPERATOR)
    assert member.get("/staff/x").status == 403
    assert seen(member.get("/page"))["headers"].get("remote-groups", "") == ""
    here.site.service.accounts.delete([eve.id], by=OPERATOR)


def test_pages_that_need_two_factors(here: House) -> None:
    """And the application learns what was proven, from the daemon alone."""
    one, two = here.visitor(here.ada), here.opened_with(here.ada, "pwd otp")
    for target in ("/money/1?x=1&y=/z", "/docs/secret", "/MONEY/1"):
        way = f"/second-factor?redirect={quote(target, safe='/')}"
        reply = one.get(target)
        assert (reply.status, reply.header("Location")) == (401, way)
        page = one.get(target, headers=BROWSER)
        assert (page.status, str(page.header("Location"))[-len(way) :]) == (302, way)
        assert here.visitor().get(target, headers=BROWSER).status == 302
        assert seen(two.get(target))["who"]["auth"] == ["pwd", "otp"]
    token = {"Authorization": f"Bearer {here.api_token(here.ada)}"}
    assert here.visitor().get("/money/1", headers=token).status == 401
    assert seen(here.visitor().get("/page", headers=token))["headers"]["remote-auth"] == "token"
    for headers in rewritten({"Remote-Auth": "passkey"}):
        assert one.get("/money/1", headers=headers).status == 401
        assert seen(one.get("/page", headers=headers))["who"]["auth"] == ["pwd"]
        assert seen(two.get("/money/1", headers=headers))["who"]["auth"] == ["pwd", "otp"]
        assert seen(here.visitor().get("/about", headers=headers))["headers"].get("remote-auth", "") == ""


def test_a_user_who_must_add_a_second_factor_is_led_there(tmp_path: Path, here: House) -> None:
    with house(here.kind, tmp_path, second_factor="everyone") as strict:
        ada = strict.visitor(strict.ada)
        way = "/account?redirect=/page%3Fx%3D1"
        page = ada.get("/page?x=1", headers=BROWSER)
        assert (page.status, str(page.header("Location"))[-len(way) :]) == (302, way)
        assert [ada.get(path).status for path in ("/page", "/admin", "/api/users", "/users")] == [403] * 4
        assert [ada.post("/page", headers=BROWSER).status, ada.get("/account").status] == [403, 200]
        public = seen(ada.get("/about"))
        assert (public["who"], public["headers"].get("remote-user", "")) == (None, "")


def test_a_form_of_the_application_signs_out(here: House) -> None:
    ada = here.visitor(here.ada)
    assert ada.get("/logout?redirect=/about").body.count(b"<button") == 1
    form = {"Content-Type": "application/x-www-form-urlencoded"}
    other = ada.send("POST", "/logout", raw=b"", headers=form | {"Sec-Fetch-Site": "cross-site"})
    assert (other.status, who(seen(ada.get("/page")))) == (403, ADA)
    own = {"Sec-Fetch-Site": "same-origin"}
    reply = ada.send("POST", "/logout?redirect=/about", raw=b"", headers=form | own)
    assert (reply.status, reply.header("Location")) == (302, "/about")
    assert ada.get("/page").status == 401


def test_a_sign_in_leads_back_to_the_page(here: House) -> None:
    visitor = here.visitor()
    deep = "/reports/7?from=2026-01-01&q=%C3%A4%26b#"[:-1]
    way = str(visitor.get(deep, headers=BROWSER).header("Location"))
    page = visitor.get(way, headers=BROWSER)
    assert (page.status, page.header("Content-Type")) == (200, "text/html; charset=utf-8")
    assert (
        visitor.post("/api/users/session", {"email": "ada@example.com", "password": PASSWORD}).status == 200
    )
    (back,) = parse_qs(urlsplit(way).query)["redirect"]
    assert back == deep
    seen_request = seen(visitor.get(back, headers=BROWSER))
    assert (seen_request["path"], "?" + seen_request["query"], who(seen_request)) == (
        "/reports/7",
        deep.partition("/7")[2],
        ADA,
    )
    assert visitor.delete("/api/users/session").status == 200
    assert visitor.get(deep, headers=BROWSER).status == 302


@pytest.mark.parametrize(
    "query", ["role=editor", "role=admin", "a=1&a=2", "%ff", "&".join("abcdefghij" * 6), "&" * 1994]
)
def test_the_query_reaches_the_application_unchanged(here: House, query: str) -> None:
    """The query plays no part in the verification, and is kept over a sign-in whatever it holds."""
    way = str(here.visitor().get(f"/page?{query}", headers=BROWSER).header("Location"))
    assert unquote(way) == f"/login?redirect=/page?{query}"
    assert here.visitor().get(way, headers=BROWSER).status == 200
    assert seen(here.visitor(here.ada).get(f"/page?{query}"))["query"] == query
    assert here.visitor(here.ada).get(f"/admin?{query}").status == 403


def test_a_sign_in_through_the_provider_leads_back_to_the_page(here: House) -> None:
    visitor, provider = here.visitor(), Client(here.site.port)
    deep = "/reports/7?from=2026-01-01&q=%C3%A4%26b"
    page = visitor.get(str(visitor.get(deep, headers=BROWSER).header("Location")), headers=BROWSER)
    (out,) = re.findall(r'href="(/api/users/auth/oauth/redirect[^"]*)"', page.body.decode())
    there = urlsplit(str(visitor.get(out.replace("&amp;", "&"), headers=BROWSER).header("Location")))
    assert there.netloc == f"127.0.0.1:{here.site.port}"
    consent = provider.get(f"{there.path}?{there.query}").body.decode()
    (agreed,) = re.findall(r'href="([^"]*person=1001[^"]*)"', consent)
    back = urlsplit(str(provider.get(agreed.replace("&amp;", "&")).header("Location")))
    assert back.netloc == f"{NAME}:{here.proxy.port}"
    home = visitor.get(f"{back.path}?{back.query}", headers=BROWSER)
    assert (home.status, home.header("Location")) == (302, deep)
    seen_request = seen(visitor.get(deep, headers=BROWSER))
    assert (seen_request["path"], seen_request["who"]["email"]) == ("/reports/7", "ada@example.com")


def test_the_pages_of_the_daemon_are_where_they_belong(here: House) -> None:
    nobody, ada = here.visitor(), here.visitor(here.ada)
    login = nobody.get("/login", headers=BROWSER).body.decode()
    (script,) = re.findall(r'src="(/assets/[^"]+)"', login)
    assert nobody.get(script).header("Content-Type") == "text/javascript; charset=utf-8"
    assert nobody.get("/forgot-password").status == 200
    assert nobody.get("/account", headers=BROWSER).header("Location") == "/login?redirect=/account"
    assert b'data-signed-in="1"' in ada.get("/account", headers=BROWSER).body
    assert ada.get("/.well-known/change-password").header("Location") == "/account#change"
    assert seen(ada.get("/Xwell-known/change-password", headers=BROWSER))["path"].startswith("/Xwell-known")
    assert seen(ada.get("/", headers=BROWSER))["path"] == "/"
    assert ada.get("/users", headers=BROWSER).status == 403
    assert ada.get("/api/users/me").json["user"]["email"] == "ada@example.com"
    assert here.visitor(here.root).get("/api/users").json["pagination"]["total"] == 2
    assert nobody.get("/api/users").status == 401
    # These are not public, so the application has the path.
    for path in ("/health", "/ready", "/metrics", "/_tasks/", "/dev/provider/authorize", "/dev/mail"):
        assert nobody.get(path).header("Location") == f"/login?redirect={path}"
        assert seen(ada.get(path))["path"] == path


@pytest.mark.parametrize(("kind", "language"), [("nginx", "nginx"), ("caddy", "caddyfile")])
def test_a_browser_asks_again_before_it_shows_a_file_of_a_static_site(
    tmp_path: Path, kind: str, language: str
) -> None:
    site = tmp_path / "site"
    site.mkdir()
    (site / "index.html").write_text("for members")
    (lines,) = blocks(section(FORWARD_AUTH, "What browsers and caches keep"), language)

    def deliver_files(snippet: str) -> str:
        application = r"(proxy_pass|reverse_proxy) http://127\.0\.0\.1:\d+;?"
        edited, places = re.subn(application, lines.replace("/srv/site", str(site)), snippet)
        assert places == 1
        return edited

    with house(kind, tmp_path, edited=deliver_files) as here:
        ada = here.visitor(here.ada)
        shown = ada.get("/", headers=BROWSER)
        assert (shown.status, shown.body) == (200, b"for members")
        assert shown.header("Cache-Control") == "private, no-cache"
        kept = BROWSER | {"If-None-Match": shown.header("ETag")}
        assert ada.get("/", headers=kept).status == 304
        assert ada.send("POST", "/logout").status == 302
        asked = ada.get("/", headers=kept)
        assert (asked.status, asked.header("Location")) == (302, "/login?redirect=/")
        assert here.visitor().get("/nothing", headers=BROWSER).status == 302


@pytest.mark.parametrize("kind", ["nginx", "caddy"])
def test_the_proxy_may_come_through_a_unix_socket(tmp_path: Path, kind: str) -> None:
    with house(kind, tmp_path, by_socket=True) as here:
        reply = here.visitor().get("/page?x", headers=BROWSER)
        assert (reply.status, reply.header("Location")) == (302, "/login?redirect=/page%3Fx")
        assert here.visitor().get("/login").status == 200
        assert who(seen(here.visitor(here.ada).get("/page"))) == ADA
        assert here.visitor(here.ada).get("/admin").status == 403


@pytest.mark.parametrize("kind", ["nginx", "caddy"])
def test_no_request_reaches_the_application_while_the_daemon_is_down(
    tmp_path: Path, usersctl: Command, kind: str
) -> None:
    reached = []

    def behind(environ: dict[str, Any], start_response: Callable[..., Any]) -> list[bytes]:
        reached.append(environ["PATH_INFO"])
        start_response("200 OK", [])
        return []

    usersctl.configure(f'baseUrl = "https://{NAME}"\n[server]\nport = {free_port()}\n')
    port = free_port()
    with ExitStack() as stack:
        application = stack.enter_context(hosting(Hosted(app=behind)))
        snippet = usersctl.ok("snippet", kind, "--app", f"127.0.0.1:{application}").stdout
        proxy = stack.enter_context(STARTS[kind](tmp_path, snippet, port))
        for path in ("/page", "/about", "/admin", "/login", "/account"):
            for headers in ({}, BROWSER, FORGED | OTHER_PATH):
                assert proxy.visitor().get(path, headers=headers).status in (500, 502), path
    assert reached == []


# --- forged requests ---

FORGED = {
    "Remote-User": "2",
    "Remote-Email": "root@example.com",
    "Remote-Name": "Root",
    "Remote-Role": "admin",
    "Remote-Groups": "staff",
    "Remote-Auth": "passkey",
    "Remote-Assertion": "9999999999.AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA",
}
OTHER_PATH = {
    "X-Original-URL": "/about",
    "X-Original-Method": "GET",
    "X-Forwarded-Uri": "/about",
    "X-Forwarded-Method": "GET",
    "X-Forwarded-Host": "evil.example",
    "X-Forwarded-Proto": "http",
    "X-Forwarded-For": "192.0.2.7",
    "X-Rewrite-URL": "/about",
    "X-Original-Host": "evil.example",
    "Forwarded": "for=192.0.2.7;host=evil.example;proto=http",
    "X-Real-IP": "192.0.2.7",
}


def rewritten(headers: dict[str, str]) -> list[dict[str, str]]:
    return [
        headers,
        {name.lower(): value for name, value in headers.items()},
        {name.upper(): value for name, value in headers.items()},
        {name.replace("-", "_"): value for name, value in headers.items()},
        {name.replace("-", "_", 1): value for name, value in headers.items()},
        headers | {"Connection": ", ".join(["close", *headers])},
    ]


def test_identity_headers_of_a_client_are_not_believed(here: House) -> None:
    for headers in rewritten(FORGED):
        assert here.visitor().get("/page", headers=headers).status == 401
        seen_request = seen(here.visitor().get("/about", headers=headers))
        assert seen_request["who"] is None
        identity = {
            value for name, value in seen_request["headers"].items() if name.startswith("remote") and value
        }
        assert identity == set(), headers
        assert here.visitor(here.ada).get("/admin", headers=headers).status == 403
        seen_request = seen(here.visitor(here.ada).get("/page", headers=headers))
        identity = {
            name: value for name, value in seen_request["headers"].items() if re.match("remote[-_]", name)
        }
        assert not set(identity.values()) & set(FORGED.values()), headers
        assert who(seen_request) == ADA


def test_forwarded_uri_headers_of_a_client_are_not_believed(here: House) -> None:
    for headers in [*rewritten(OTHER_PATH), {"X-Original-URL": "/about"}, {"X-Forwarded-Uri": "/about"}]:
        reply = here.visitor().get("/page", headers=headers)
        assert (reply.status, reply.header("Location")) == (401, "/login?redirect=/page")
        assert here.visitor(here.ada).get("/admin", headers=headers).status == 403
        assert here.visitor().post("/page", headers=headers | BROWSER).status == 401
        seen_request = seen(here.visitor(here.ada).get("/page", headers=headers))
        assert not {"evil.example", "192.0.2.7", "/about"} & set(
            map(str, seen_request["headers"].values())
        ), headers
        assert who(seen_request) == ADA


@pytest.mark.parametrize("connection", ["close", "keep-alive", "upgrade", "close, upgrade"])
def test_a_client_cannot_remove_identity_headers_by_naming_them_in_connection(
    here: House, connection: str
) -> None:
    ada, names = (
        here.visitor(here.ada),
        [*FORGED, "X-Forwarded-For", "X-Forwarded-Proto", "X-Forwarded-Host", "Cookie"],
    )
    for named in (*names, ", ".join(names), ", ".join(names).lower()):
        seen_request = seen(ada.get("/page", headers={"Connection": f"{connection}, {named}"}))
        assert (who(seen_request), seen_request["headers"]["x-forwarded-for"]) == (ADA, "127.0.0.1"), named


def upgraded(visitor: Visitor, target: str, *headers: str) -> tuple[int, bytes]:
    """The status of a request for an upgrade, and what the protocol answers to one line."""
    lines = [f"GET {target} HTTP/1.1", f"Host: {visitor.headers['Host']}", *headers]
    if visitor.cookies:
        lines.append("Cookie: " + "; ".join(f"{name}={value}" for name, value in visitor.cookies.items()))
    with visitor.opened() as connection, connection.makefile("rb") as answer:
        connection.sendall("\r\n".join([*lines, "", ""]).encode())
        status = int(answer.readline().split()[1])
        while answer.readline().strip():
            pass
        if status != 101:
            return status, b""
        connection.sendall(b"hello\n")
        return status, answer.readline()


def test_a_websocket_reaches_the_application_for_signed_in_users(here: House) -> None:
    nobody, ada = here.visitor(), here.visitor(here.ada)
    for connection in ("Upgrade", "keep-alive, Upgrade", "Upgrade, Remote-User, Remote-Role"):
        asks = (
            f"Connection: {connection}",
            "Upgrade: websocket",
            "Sec-WebSocket-Version: 13",
            "Remote-User: 2",
        )
        assert upgraded(ada, "/live", *asks) == (101, f"websocket {here.ada.id} hello\n".encode())
        assert upgraded(nobody, "/live", *asks)[0] == 401
        assert upgraded(ada, "/admin", *asks)[0] == 403
        assert upgraded(ada, "/api/users/me", *asks)[0] == 200


def test_a_client_upgrades_to_no_other_protocol(here: House) -> None:
    """A tunnel to the application would carry requests that are not verified."""
    for protocol in ("h2c", "TLS/1.0", "websocket, h2c", "h2c, websocket", "websocketx"):
        asks = (
            "Connection: Upgrade, HTTP2-Settings",
            f"Upgrade: {protocol}",
            "HTTP2-Settings: AAMAAABkAAQAAP__",
        )
        assert upgraded(here.visitor(here.ada), "/live", *asks)[0] == 200, protocol
    both = ("Connection: Upgrade", "Upgrade: h2c", "Upgrade: websocket")
    for asks in (both, (both[0], both[2], both[1])):
        status, answer = upgraded(here.visitor(here.ada), "/live", *asks)
        assert status == 200 or answer.startswith(b"websocket ")


def test_the_verify_endpoint_is_only_reachable_for_the_proxy(here: House) -> None:
    for path in ("/api/users/auth/verify", "/api/users/auth/verify?role=user", "/.usersd/verify", "//api/users/auth/verify",
                 "/api/users/auth/%76erify", "/api/users/./auth/verify", "/api/users/auth/verify/", "/.usersd/../.usersd/verify"):  # fmt: skip
        reply = here.visitor(here.ada).get(path, headers=OTHER_PATH)
        assert not reply.header("Remote-User"), path
        assert not reply.header("Remote-Assertion"), path


def test_a_direct_request_to_the_verify_endpoint_reveals_no_page(here: House) -> None:
    """From an address that is not the proxy's."""

    class MustWait(Client):
        def connection(self) -> Any:
            connection = super().connection()
            connection.source_address = ("127.0.0.2", 0)
            return connection

    for headers in (OTHER_PATH, FORGED | OTHER_PATH, {"X-Original-URL": "/docs/x"}):
        nobody = MustWait(here.site.port).get("/api/users/auth/verify", headers=headers)
        assert (nobody.status, nobody.header("Location")) == (401, "/login")
        ada = MustWait(here.site.port, cookies=here.cookies(here.ada))
        assert (
            ada.get("/api/users/auth/verify", headers=headers).status == 403
        )  # there are rules, and a path is not known
    root = MustWait(here.site.port, cookies=here.cookies(here.root))
    assert root.get("/api/users/auth/verify", headers=OTHER_PATH).status == 401  # needs two factors as well
    root = MustWait(here.site.port, cookies=here.cookies(here.root, "passkey"))
    reply = root.get("/api/users/auth/verify", headers=OTHER_PATH)
    assert (reply.status, reply.header("Remote-Assertion")) == (200, "")


def test_the_application_is_not_fooled_around_the_proxy(here: House) -> None:
    headers = seen(here.visitor(here.ada).get("/page"))["headers"]
    true = {
        name.title(): value for name, value in headers.items() if name.startswith("remote-") or name == "host"
    }
    around = Client(here.port)
    assert who(seen(around.get("/page", headers=true))) == ADA  # a replay within its minute works
    for method, path, changed in (
        ("GET", "/page", FORGED),
        ("GET", "/page", {"Remote-Role": "admin"}),
        ("GET", "/page", {"Remote-User": "2"}),
        ("GET", "/page", {"Remote-Email": "root@example.com"}),
        ("GET", "/page", {"Remote-Name": "Root"}),
        ("GET", "/page", {"Host": "other.example.com"}),
        ("GET", "/page", {"Remote-Assertion": ""}),
        ("GET", "/admin", {}),
        ("GET", "/page/", {}),
        ("POST", "/page", {}),
        ("DELETE", "/page", {}),
    ):
        assert seen(around.send(method, path, headers=true | changed))["who"] is None, (method, path, changed)


@pytest.mark.parametrize(
    ("user", "closed"), [("nobody", "admin"), ("ada", "admin"), ("nobody", "money"), ("ada", "money")]
)
def test_no_spelling_of_a_path_opens_it(here: House, user: str, closed: str) -> None:
    """Whatever path the application reads from a request that got through, that page is open to this visitor, whose session
    has one factor."""
    visitor = here.visitor(here.ada if user == "ada" else None)
    targets = [target for target in other_spellings(f"/{closed}", "/docs") if len(target) < 7000]
    opened = 0
    for target, status, body in visitor.ask(targets):
        assert 200 <= status < 500, target
        if status == 200 and body.startswith(b"{"):
            path = unquote(unquote(json.loads(body)["path"]))
            opened += 1
            assert not re.match(rf"(?i)/+{closed}([^\w~*%-].*)?$", path, re.DOTALL), target
            assert user == "ada" or path.startswith("/docs"), target
    assert opened > 1


# --- what the application gets of cookies and tokens ---

THEIRS = (
    "theme=dark; sid=a%20b; auth_token_2=x; x-auth_token=y; oauth_state=z; oauth_0123=1; odd; __Host-sid=2"
)


def of_ours(here: House) -> list[str]:
    token = here.cookies(here.ada)["__Host-auth_token"]
    names = ["auth_token=old", "oauth_0123456789abcdef=eyJ9", "auth_token_device=1.2.3"]
    return [
        f"__Host-auth_token={token}",
        f"auth_token={token}",
        *names,
        *(f"__Host-{name}" for name in names),
    ]


def test_the_application_does_not_get_the_session_cookie(here: House) -> None:
    ours, theirs = of_ours(here), THEIRS.split("; ")
    for path in ("/page", "/about"):
        for cookies in (
            [ours[0], *theirs],
            [*theirs, ours[0]],
            [*ours, *theirs],
            [*theirs, *ours],
            [cookie for pair in zip(ours * 2, theirs, strict=False) for cookie in pair]
            + theirs[len(ours * 2) :],
        ):
            seen_request = seen(here.visitor().get(path, headers={"Cookie": "; ".join(cookies)}))
            assert seen_request["headers"]["cookie"] == THEIRS, cookies
            assert who(seen_request) == ADA
        for cookies in (ours, ours[:1]):
            seen_request = seen(here.visitor().get(path, headers={"Cookie": "; ".join(cookies)}))
            assert (who(seen_request), "cookie" in seen_request["headers"]) == (ADA, False)
    long = f"{ours[0]}; a={'x' * 3500}; b={'y' * 3500}"
    assert (
        seen(here.visitor().get("/page", headers={"Cookie": long}))["headers"]["cookie"]
        == long.partition("; ")[2]
    )


def test_cookies_of_an_anonymous_visitor_reach_a_public_page(here: House) -> None:
    seen_request = seen(
        here.visitor().get("/about", headers={"Cookie": f"{THEIRS}; __Host-auth_token=ended"})
    )
    assert (who(seen_request), seen_request["headers"]["cookie"]) == (None, THEIRS)
    assert "cookie" not in seen(here.visitor().get("/about"))["headers"]


def test_the_application_gets_no_bearer_token_of_ours_and_every_other_authorization(here: House) -> None:
    api = here.site.service.sessions.create_api_token(here.ada.id, name="x", lifetime=None, by=OPERATOR).token
    session = here.cookies(here.ada)["__Host-auth_token"]
    for token in (api, session):
        for path in ("/page", "/about"):
            for scheme in ("Bearer", "bearer"):
                seen_request = seen(here.visitor().get(path, headers={"Authorization": f"{scheme} {token}"}))
                identity = ADA | {"auth": [{api: "token", session: "pwd"}[token]]}
                assert (who(seen_request), "authorization" in seen_request["headers"]) == (identity, False)
    for theirs in (
        "Basic YTpi",
        f"Bearer {'A' * 43}",
        "Bearer a.b.c",
        "Token x",
        'Digest username="ada", uri="/"',
    ):
        for path, visitor in (("/page", here.visitor(here.ada)), ("/about", here.visitor())):
            seen_request = seen(visitor.get(path, headers={"Authorization": theirs}))
            assert seen_request["headers"]["authorization"] == theirs
            assert "cookie" not in seen_request["headers"]


def test_the_pages_of_the_daemon_get_cookies_and_tokens_as_they_were_sent(here: House) -> None:
    token = here.cookies(here.ada)["__Host-auth_token"]
    for headers in ({"Cookie": f"a=1; __Host-auth_token={token}"}, {"Authorization": f"Bearer {token}"}):
        assert here.visitor().get("/api/users/me", headers=headers).json["user"]["email"] == "ada@example.com"


def test_a_client_cannot_choose_the_cookies_of_the_application(here: House) -> None:
    for name in ("Remote-Cookie", "Remote_Cookie", "Remote-Authorization"):
        seen_request = seen(here.visitor(here.ada).get("/page", headers={name: "sid=planted"}))
        assert not {"cookie", "authorization"} & set(seen_request["headers"])


# --- Traefik, which Debian does not have: its file has the form and the fields of its documentation ---

# Traefik version 3: the keys that each kind of object may have.
FIELDS = {
    "routers": {"rule", "priority", "entryPoints", "tls", "middlewares", "service"},
    "tls": {"certResolver", "options", "domains"},
    "headers": {"customRequestHeaders"},
    "forwardAuth": {
        "address", "trustForwardHeader", "authResponseHeaders", "authResponseHeadersRegex", "authRequestHeaders", "tls",
        "addAuthCookiesToResponse", "headerField", "forwardBody", "maxBodySize", "preserveLocationHeader", "preserveRequestMethod",
    },
    "loadBalancer": {"servers"},
}  # fmt: skip


def test_the_file_for_traefik_is_of_its_form(usersctl: Command) -> None:
    usersctl.configure(f'baseUrl = "https://{NAME}"\n[server]\nhost = "::1"\nport = 8081\n')
    file = yaml.safe_load(usersctl("snippet", "traefik").stdout)
    assert set(file) == {"http"}
    routers, middlewares, services = (
        file["http"].pop(name) for name in ("routers", "middlewares", "services")
    )
    assert file["http"] == {}
    for router in routers.values():
        assert set(router) <= FIELDS["routers"]
        assert set(router["tls"]) <= FIELDS["tls"]
        assert router["rule"].startswith(f"Host(`{NAME}`)")
        assert router["rule"].count("(") == router["rule"].count(")")
        assert router["service"] in services
        # Headers that a visitor forged are removed first.
        assert router["middlewares"][0] == "users-strip-headers"
        assert set(router["middlewares"]) <= set(middlewares)
    kinds = {kind for parts in middlewares.values() for kind in parts}
    assert kinds == {"headers", "forwardAuth"}
    for parts in middlewares.values():
        ((kind, options),) = parts.items()
        assert set(options) <= FIELDS[kind]
    for service in services.values():
        assert set(service) == {"loadBalancer"}
        assert set(service["loadBalancer"]) <= FIELDS["loadBalancer"]
        assert all(server["url"].startswith("http://") for server in service["loadBalancer"]["servers"])

    stripped = middlewares["users-strip-headers"]["headers"]["customRequestHeaders"]
    assert set(stripped.values()) == {""}
    assert {*FORGED, "X-Original-Url", "X-Forwarded-Uri", "X-Forwarded-Method", "Forwarded"} <= set(stripped)
    asks = middlewares["users-verify"]["forwardAuth"]
    assert asks["address"] == "http://[::1]:8081/api/users/auth/verify"
    assert asks["authResponseHeaders"] == [*FORGED, "Cookie", "Authorization"]
    assert asks["preserveLocationHeader"] is True
    assert asks["authRequestHeaders"] == ["Accept", "Authorization", "Cookie", "Sec-Fetch-Mode"]
    assert "users-verify" in routers["application"]["middlewares"]
    assert routers["application"]["priority"] < min(
        router["priority"] for name, router in routers.items() if name != "application"
    )
    assert services["usersd"]["loadBalancer"]["servers"] == [{"url": "http://[::1]:8081"}]


def test_the_file_for_traefik_removes_every_spelling_of_an_identity_header(usersctl: Command) -> None:
    usersctl.configure(f'baseUrl = "https://{NAME}"\nforward.headers = {{"X-Own-User" = "email"}}\n')
    done = usersctl.ok("snippet", "traefik", "--header", "X-WEBAUTH-USER=email")
    middlewares = yaml.safe_load(done.stdout)["http"]["middlewares"]
    stripped = middlewares["users-strip-headers"]["headers"]["customRequestHeaders"]
    assert set(stripped.values()) == {""}
    keys = [name.lower() for name in stripped]
    assert len(keys) == len(set(keys))
    for name in (*known_names(), "X-Own-User", "X-WEBAUTH-USER", "Remote-Assertion"):
        assert set(map(str.lower, spellings(name))) <= set(keys), name
    assert {"x.own.user", "x-own.user", "x_webauth.user", "remote.assertion"} <= set(keys)
    assert middlewares["users-verify"]["forwardAuth"]["authResponseHeaders"] == [
        *("X-Own-User", "X-WEBAUTH-USER"),
        *("Remote-Assertion", "Cookie", "Authorization"),
    ]
    # Traefik cannot rename what the daemon sends.
    assert 'so usersd has to send them so: [forward.headers] "X-WEBAUTH-USER" = "email"\n' in done.stdout


# The daemon's paths beside an application; one that ends with / stands for all below it.
BELOW = ("/users/", "/api/users/", "/api/groups/", "/api/audit/", "/assets/")
FROM_OUTSIDE = set(BELOW) | {
    route.path
    for route in TABLE
    if not route.path.startswith((*BELOW, "/_tasks/")) and route.path not in ("/", "/health", "/ready")
}


@pytest.mark.parametrize("kind", ["nginx", "caddy", "traefik"])
def test_every_page_of_the_daemon_is_behind_the_proxy_and_nothing_else(usersctl: Command, kind: str) -> None:
    """A route that is added to the table must be added to the snippets, too."""
    usersctl.configure(f'baseUrl = "https://{NAME}"\n')
    text = usersctl("snippet", kind).stdout.replace(r"\.", ".")
    for path in FROM_OUTSIDE - set(BELOW):
        assert re.search(rf"[/(|]{re.escape(path[1:])}[ `|)\n]", text), path
    for inside in ("/health", "/ready", "/metrics", "/_tasks"):
        assert inside not in text


def test_the_documentation_lists_every_path_of_the_daemon_for_other_proxies() -> None:
    text = page("docs/integrating/python.md")
    paths = text.partition("Let your proxy send")[2].partition("Then one cookie")[0]
    assert set(re.findall(r"`(/[^`]*)`", paths)) == FROM_OUTSIDE


def test_every_route_that_is_for_outside_is_one_of_these() -> None:
    for route in TABLE:
        below = any(address.endswith("/") and route.path.startswith(address) for address in FROM_OUTSIDE)
        is_for_inside = route.path in ("/", "/health", "/ready") or route.path.startswith("/_tasks/")
        assert (below or route.path in FROM_OUTSIDE) != is_for_inside, route.path
