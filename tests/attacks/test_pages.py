"""What a visitor can make a page do or show: no redirect to another site, no input repeated; and protecting headers."""

import json
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from support.commands import OPERATOR, PASSWORD, create_user
from support.paths import filled
from support.web import Reply, Site, running

import usersd.pages
from usersctl.service import Service
from usersd.access import own_path
from usersd.pages import assets
from usersd.routes import TABLE
from usersd.routing import Access

LEAVING = [
    "//evil.example", "///evil.example", "/\\evil.example", "\\\\evil.example", "\\/evil.example", "https://evil.example", "https:evil.example",
    "http:/evil.example", "javascript:alert(1)", " javascript:alert(1)", "java\tscript:alert(1)", "data:text/html,x", "vbscript:x", "/\t/evil.example",
    "/\n/evil.example", "/\r/evil.example", "\t//evil.example", " //evil.example", "\u00a0//evil.example", "\ufeff//evil.example", "/\u0000/evil.example",
    "\u0000//evil.example", "/\t\\evil.example", "/.\t./evil.example", "evil.example", "@evil.example", ":80", "", "?", "#", "./x", "..//evil.example",
    "/x\\..\\..\\\\evil.example", "\uff0f\uff0fevil.example", "blob:x", "/ /evil.example", "//", "/\\", "\u2028//evil.example", "//\u3002evil.example",
]  # fmt: skip
STAYING = ["/", "/users", "/users?page=2&search=a%20b#x", "/a//b", "/.//evil.example", "/%09/evil.example", "/%5cevil.example", "/x?to=https://evil.example",
           "/@evil.example", "/:80", "/;//evil.example"]  # fmt: skip

PROGRAM = """
const [leaving, staying] = JSON.parse(require("fs").readFileSync(0, "utf8"));
const home = "https://users.example/login?redirect=x";
const bad = [];
const stays = (target) => new URL(own_path(target), home).origin === "https://users.example";
for (const each of [...leaving, null, undefined]) if (own_path(each) !== "/") bad.push(each);
for (const each of staying) if (own_path(each) !== each || !stays(each)) bad.push(each);
const letters = ["/", "/", "\\\\", ".", "\\t", "\\n", "\\r", " ", "@", ":", "?", "#", "%", "a", "http:", "evil.example", "\\u0000", "\\u00a0", "\\uff0f", "\\u2028", "\\x7f"];
for (let n = 0; n < 100000; n++) {
  let each = n % 2 ? "/" : "";
  for (let k = n % 7; k >= 0; k--) each += letters[Math.floor(Math.random() * letters.length)];
  if (!stays(each)) bad.push(each);
}
console.log(JSON.stringify(bad));
"""


def script() -> str:
    """What all pages load, and the additions of some pages."""
    folder = Path(usersd.pages.pages.__file__).parent
    return "".join(file.read_text() for file in sorted(folder.glob("*.js"), reverse=True))


def test_a_login_never_redirects_to_another_site() -> None:
    node = shutil.which("node")
    if node is None:
        pytest.skip("node, which runs the script of the pages, is not installed")
    function = re.search(r"^function own_path\(.*?^}\n", script(), re.MULTILINE | re.DOTALL)
    assert function
    done = subprocess.run(
        [node, "-e", function[0] + PROGRAM],
        input=json.dumps([LEAVING, STAYING]),
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert done.stderr == ""
    assert json.loads(done.stdout) == []


def test_the_service_never_redirects_to_another_site() -> None:
    assert {own_path(target) for target in LEAVING} == {""}
    assert [own_path(target) for target in STAYING] == STAYING


def test_the_script_navigates_only_to_own_paths_and_writes_no_html() -> None:
    for dangerous in (
        "innerHTML",
        "outerHTML",
        "insertAdjacentHTML",
        "document.write",
        "eval(",
        "new Function",
        "location.href =",
        "location =",
        "window.open",
        "postMessage",
    ):
        assert dangerous not in script(), dangerous
    for used in re.findall(r"location\.(?:assign|replace)\((.*?)\);\n", script()):
        assert "redirect" not in used or "own_path(" in used, used


class Page(HTMLParser):
    """Everything in a page that a browser runs or fetches."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.odd: list[str] = []
        self.scripts: list[str | None] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        attributes = dict(attrs)
        if tag == "script":
            src, kind = attributes.get("src"), attributes.get("type")
            self.scripts.append(src.partition("?")[0] if src else kind)
        self.odd += [
            f"{tag} {name}"
            for name in attributes
            if name.startswith("on") or name in ("style", "srcdoc", "formaction")
        ]
        self.odd += [
            f"{tag} {value}"
            for name in ("src", "href", "action")
            if (value := attributes.get(name)) and not value.startswith(("/", "#", "data:,"))
        ]
        self.odd += [tag] if tag in ("iframe", "object", "embed", "base", "style", "xss") else []


PAGES = [
    route
    for route in TABLE
    if route.method == "GET"
    and not route.path.startswith(("/api/", "/_tasks/", "/assets/", "/health", "/ready", "/.well-known/"))
]
XSS = "\"'><xss onload=alert(1)>{{7*7}}</title>%3Cxss%3E"


@pytest.fixture
def page_site(make_service: Callable[..., Service]) -> Iterator[Site]:
    service = make_service(whitelist=("/register",), brand=f"Brand {XSS}")
    create_user(service, "ada@example.com", f"Ada {XSS}", PASSWORD, role="admin", by=OPERATOR)
    with running(service) as site:
        yield site


@pytest.mark.parametrize("route", PAGES, ids=lambda route: route.path)
def test_no_page_repeats_its_input(page_site: Site, route: Any) -> None:
    client = page_site.client()
    client.login("ada@example.com", PASSWORD)
    path = filled(route.path)
    plain = client.get(path)
    assert plain.status == 200
    names = ("redirect", "error", "token", "email", "message", "code", "state", "x")
    for value in (XSS, "javascript:alert(1)", "//evil.example", "\r\n\r\n<xss>", "\ud83d\ude00<xss>"):
        query = "&".join(
            f"{name}={quote(value.encode('utf-16', 'surrogatepass').decode('utf-16'))}" for name in names
        )
        reply = client.get(
            f"{path}?{query}", headers={"User-Agent": XSS, "Referer": XSS, "Accept-Language": XSS}
        )
        assert "<xss" not in reply.body.decode()
        assert "evil.example" not in reply.body.decode()
        page = Page(reply.body.decode())
        assert page.odd == []
        assert set(page.scripts) <= {f"/assets/{name}.js" for name in assets.SCRIPTS}
    assert Page(plain.body.decode()).odd == []
    assert "{{7*7}}" in plain.body.decode()


def test_every_response_has_its_protecting_headers(page_site: Site) -> None:
    admin, nobody = page_site.client(), page_site.client()
    admin.login("ada@example.com", PASSWORD)
    token = admin.cookies["auth_token"]
    paths = {filled(route.path, session_id="99") for route in TABLE}
    seen = set()
    for client in (nobody, admin):
        for path in sorted(
            {*paths, "/nowhere", "/api/nowhere", "/api/users/x", "/assets/x", "/%ff", "/x%0a"}
        ):
            for method in ("GET", "HEAD", "POST", "DELETE", "OPTIONS", "TRACE"):
                client.cookies = {"auth_token": token} if client is admin else {}
                reply = client.send(
                    method, path, headers={"Origin": "http://evil.example"} if method == "TRACE" else None
                )
                if (method, path) in (
                    ("DELETE", "/api/users/session"),
                    ("DELETE", "/api/users/1/sessions"),
                ) and client is admin:
                    token = page_site.service.sessions.login("ada@example.com", PASSWORD).token
                seen.add(reply.status)
                protected(reply, asset=path == "/assets/style.css")
    assert {200, 302, 400, 401, 403, 404, 405} <= seen


def protected(reply: Reply, *, asset: bool = False) -> None:
    for name in (
        "Content-Type",
        "Content-Security-Policy",
        "X-Content-Type-Options",
        "Referrer-Policy",
        "Cache-Control",
        "X-Request-Id",
    ):
        assert len(reply.all(name)) == 1, (name, reply)
    policy = reply.header("Content-Security-Policy") or ""
    assert policy.startswith("default-src 'none'")
    assert "frame-ancestors 'none'" in policy
    assert "unsafe" not in policy
    assert "*" not in policy
    assert reply.header("X-Content-Type-Options") == "nosniff"
    assert reply.header("Referrer-Policy") == "no-referrer"
    assert reply.header("Cache-Control") == "no-store" or (asset and reply.status == 200)
    assert reply.header("Server") is None
    assert reply.header("X-Powered-By") is None
    assert reply.header("Strict-Transport-Security") is None
    assert reply.header("Access-Control-Allow-Origin") is None


def test_responses_of_the_server_itself_have_the_headers_too(page_site: Site) -> None:
    for raw in (b"\r\n\r\nGET\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n", b"GET / HTTP/1.1\r\n\r\n", b"GET http://x/ HTTP/1.1\r\nHost: x\r\n\r\n",
                b"GET / HTTP/1.1\r\nHost: x\r\nX: " + b"x" * 20_000 + b"\r\n\r\n", b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 70000\r\n\r\n"):  # fmt: skip
        head, _, body = page_site.raw(raw).partition(b"\r\n\r\n")
        lines = [line.partition(": ") for line in head.decode().split("\r\n")[1:]]
        reply = Reply(int(head.split()[1]), [(name, value) for name, _, value in lines], body)
        assert reply.status in (400, 413, 431)
        assert reply.message
        protected(reply)


def test_over_https_every_response_has_hsts(make_service: Callable[..., Service]) -> None:
    with running(make_service(base_url="https://users.example")) as site:
        for path in ("/", "/login", "/api/users/me", "/nowhere", "/assets/style.css", "/%ff"):
            (header,) = site.client().get(path).all("Strict-Transport-Security")
            assert int(header.partition("max-age=")[2].partition(";")[0]) >= 15_768_000
        assert b"Strict-Transport-Security" in site.raw(b"GET / HTTP/1.1\r\n\r\n")


def test_subdomains_are_in_hsts_only_if_configured(make_service: Callable[..., Service]) -> None:
    with running(make_service(base_url="https://users.example", hsts_include_subdomains=True)) as site:
        for path in ("/login", "/nowhere", "/assets/style.css"):
            (header,) = site.client().get(path).all("Strict-Transport-Security")
            assert header == "max-age=31536000; includeSubDomains"
    with running(make_service(hsts_include_subdomains=True)) as site:
        assert site.client().get("/login").header("Strict-Transport-Security") is None


def test_the_routes_open_to_anyone_are_exactly_the_intended_ones() -> None:
    open_to_all = {(route.method, route.path) for route in TABLE if route.access is Access.ANYONE}
    meant = {
        ("POST", "/api/users/session"), ("DELETE", "/api/users/session"), ("POST", "/api/users/setup"), ("GET", "/login"), ("GET", "/setup"),
        ("GET", "/assets/<name>"), ("POST", "/api/users/password/forgot"), ("POST", "/api/users/password/reset"), ("POST", "/api/users/not-me"),
        ("POST", "/api/users/confirm-deletion"), ("POST", "/api/users/undo-deletion"), ("GET", "/confirm-deletion"), ("GET", "/undo-deletion"),
        ("GET", "/forgot-password"), ("GET", "/reset-password"), ("GET", "/not-me"), ("GET", "/api/users/auth/oauth/redirect"),
        ("GET", "/api/users/auth/oauth/callback"), ("GET", "/api/users/auth/verify"), ("GET", "/health"), ("GET", "/ready"),
        ("GET", "/api/users/openapi.json"), ("GET", "/api/users/docs"), ("GET", "/confirm-new-email"),
        ("POST", "/logout"), ("GET", "/accept-invite"), ("POST", "/api/users/invite/accept"),
        ("GET", "/api/users/auth/oauth/callback/<provider>"), ("GET", "/api/users/session/second-factor"),
        ("POST", "/api/users/session/second-factor"), ("POST", "/api/users/session/passkey"),
    }  # fmt: skip
    assert open_to_all <= meant
