"""Attacks on forward authentication: no spelling of a path weakens a rule, and no header speaks for another."""

import re
import time
import unicodedata
from collections.abc import Callable, Iterator
from ipaddress import ip_network
from typing import Any
from urllib.parse import unquote

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from support.commands import OPERATOR, PASSWORD, create_user
from support.spellings import PIECES, other_spellings, readings
from support.web import Site, running

from usersctl.models import Session, User
from usersctl.service import Service
from usersd.gate import Gate
from usersd.page_access import PageAccess, PathRules, Whitelist

VERIFY = "/api/users/auth/verify"
HERE = (ip_network("127.0.0.1"),)
WHITELIST = ("/about", "/docs/*", "/shop/*/view")
RULES = (("/admin/*", "admin"), ("/docs/drafts/*", "admin"), ("/teams/*/secrets/*", "admin"))
SECRET = "shared by two, and unknown to others"
CLOSED = ["/admin", "/docs/drafts/7", "/teams/7/secrets"]

Ask = Callable[[str], dict[str, str]]
ASKS: list[Ask] = [
    lambda target: {"X-Original-URL": target, "X-Original-Method": "GET"},
    lambda target: {
        "X-Forwarded-Uri": target,
        "X-Forwarded-Method": "GET",
        "X-Forwarded-Host": "site.example",
    },
]


@pytest.fixture
def site(make_service: Callable[..., Service]) -> Iterator[Site]:
    with running(
        make_service(trusted_proxies=HERE, whitelist=WHITELIST, role_rules=RULES, assertion_secret=SECRET)
    ) as running_site:
        yield running_site


def may_be(path: str, closed: str) -> bool:
    """Whether somebody may take one for the other, or for what is below it: by any reading, in any letter case, without
    accents, with a suffix."""
    wanted = _bare(closed)
    for reading in readings(path):
        for form in (reading, re.split(r"[?#\0]", reading)[0]):
            bare = _bare(re.sub(r"(?<=[^/])\.[^/]*", "", form))
            if bare == wanted or bare.startswith(wanted + "/"):
                return True
    return False


def _bare(path: str) -> str:
    folded = unicodedata.normalize("NFKD", path).upper().lower()
    plain = "".join(
        c for c in unicodedata.normalize("NFKD", folded) if unicodedata.category(c)[0] not in "MC"
    )
    return re.sub(r"\s*/+\s*", "/", plain).strip().rstrip("/")


def spellings(closed: str) -> list[str]:
    """All except the very long ones, which a header cannot hold."""
    return [target for target in other_spellings(closed, "/docs") if len(target) < 1000]


# --- every trick ---


@pytest.mark.parametrize("ask", ASKS)
@pytest.mark.parametrize("closed", CLOSED)
def test_no_spelling_of_a_closed_path_opens_it(site: Site, closed: str, ask: Ask) -> None:
    user = site.signed_in(site.add())
    nobody = site.client()
    opened = 0
    for target in spellings(closed):
        for client, refused in ((nobody, 401), (user, 403)):
            reply = client.get(VERIFY, headers=ask(target))
            assert reply.status in (200, refused), target
            if reply.status == 200:
                opened += 1
                path = unquote(re.sub(r"^https?://[^/?#]*", "", target).partition("?")[0])
                assert not may_be(path, closed), target
                assert client is user or path == "/docs" or path.startswith("/docs/"), target
    assert opened > 5  # otherwise this test would show nothing


PATHS = st.builds(
    lambda start, more: start + "".join(more),
    st.sampled_from(["/docs/", "/docs", "/about", "/shop/", "/admin", "/Admin/", "/login", "/docs/drafts", "/teams/", "/report", "/", ""]),
    st.lists(st.sampled_from([*PIECES, "drafts", "teams", "secrets", "report", ".json", "%61", "?", "#", "\u0131"]), max_size=9),
)  # fmt: skip


@pytest.mark.slow
@given(PATHS)
@settings(max_examples=300, deadline=None)
@example("/adm\u0131n")
@example("/admin\0.css")
@example("/%2561dmin")
@example("/%u0061dmin")
@example("/docs/\u2025/admin")
@example("/teams/a/b/secrets")
@example("/docs/drafts ..")
@example("/admin\uff1f")
def test_no_reading_of_a_path_evades_a_role_rule(path: str) -> None:
    if any("\udc80" <= c <= "\udcff" for c in path):
        return  # not UTF-8: needs all roles
    roles = PathRules(RULES).needs(path)
    for closed in ("/admin", "/docs/drafts"):
        if may_be(path, closed):
            assert roles == {"admin"}, path
    if any(re.fullmatch(r"/teams(/.*)?/secrets/*", reading, re.DOTALL) for reading in readings(path)):
        assert roles == {"admin"}, path


@given(PATHS)
@settings(max_examples=100, deadline=None)
def test_a_role_rule_only_restricts(path: str) -> None:
    user = User(1, "", "", "user", True, "", "", None, None, None, None, False)
    admin = user._replace(role="admin")
    with_rules, without = PageAccess(WHITELIST, RULES), PageAccess(WHITELIST, ())
    for who, refused in ((None, 401), (user, 403)):
        assert with_rules.verdict(who, path) in (without.verdict(who, path), refused)
        assert without.verdict(who, path, role="admin") == refused
    assert with_rules.verdict(admin, path) == 200
    assert (without.verdict(None, path) == 200) == (path in Whitelist(WHITELIST) or path == "/login")
    assert without.verdict(user, path) == 200


@given(PATHS)
@settings(max_examples=200, deadline=None)
@example("/adm\u0131n")
@example("/x/..%2fadmin")
def test_a_factor_rule_holds_wherever_a_role_rule_does(path: str) -> None:
    user = User(1, "", "", "user", True, "", "", None, None, None, None, False)
    one = Session(1, 1, "session", "", "", None, None, None, None, None, "pwd")
    two = one._replace(opened_with="pwd otp")
    by_role, by_factor = PageAccess(WHITELIST, RULES), PageAccess(WHITELIST, (), tuple(dict(RULES)))
    assert by_factor.verdict(None, path) == by_role.verdict(None, path)
    assert (by_factor.verdict(user, path, one) == 401) == (by_role.verdict(user, path, one) == 403)
    assert by_factor.verdict(user, path, None) == by_factor.verdict(user, path, one)
    assert by_factor.verdict(user, path, two) == 200


@pytest.mark.parametrize(
    ("rules", "path", "asks"),
    [
        ("/admin", "/admin", True), ("/admin", "/admin/", True), ("/admin", "/ADMIN", True), ("/admin", "/admin.json", True),
        ("/admin", "/admin;x=1", True), ("/admin", "//admin", True), ("/admin", "/admin/x", False), ("/admin", "/administrator", False),
        ("/admin", "/x/admin", False), ("/admin", "/adm\u00edn", True), ("/admin", "/\uff41dmin", True), ("/admin", "/ad\u00admin", True),
        ("/admin", "/admin ", True), ("/admin", "/admin.", True), ("/admin", "/admin~", False), ("/admin", "/admin-x", False),
        ("/admin/*", "/admin", True), ("/admin/*", "/admin/x/y", True), ("/admin/*", "/admins", False), ("/admin/", "/admin", True),
        ("/*", "/", True), ("/*", "/x", True), ("/", "/", True), ("/", "/x", False), ("/", "", True),
        ("/x/*/y", "/x/1/y", True), ("/x/*/y", "/x/1/2/y", True), ("/x/*/y", "/x/y", True), ("/x/*/y", "/x/1/y/z", False),
        ("/x/*/y", "/x/1/yy", False), ("/x/*/y/*", "/x/1/y/z", True), ("/admin.php", "/admin.php", True), ("/admin.php", "/admin", False),
        ("/admin/*", "/index.php/admin/x", True), ("/admin/*", "/APP.PHP/admin", True), ("/admin/*", "/a.php/b/c.cgi/admin", True),
        ("/admin/*", "/a.php/admin/c.php", True), ("/admin", "/admin/index.html", True), ("/admin", "/x.php/admin/Index", True),
        ("/admin", "/admin/index.html/x", False), ("/", "/index.php", True), ("/admin/*", "/files/admin", False),
        ("/admin/*", "/v1.2/admin", False), ("/admin.php", "/admin.php/x", True),
        ("/admin", "/admin.php/x/y", True), ("/admin", "/x.php/admin.php/y", True), ("/", "/app.php", True), ("/", "/x/app.php", False),
        ("/x.php/y", "/x.php/y", True), ("/x/*/y", "/x/a.php/y", True), ("/admin.txt", "/admin.txt/x", False),
        ("/admin.php/*", "/admin.php/x", True), ("/a%20b", "/a b", True), ("/A", "/a", True), ("/\u00e4", "/\u00c4", True),
        ("/admin/*", "//evil/admin/x", True), ("/admin", "/%2fevil/admin", True), ("/admin", "/\\evil/admin", True),
        ("/x", "/y/../x", True), ("/x", "/y/../z", True), ("/x", "/y%2fz", True), ("/x", "/y\\z", True), ("/x", None, True),
        ("/x", "/%u0078", True), ("/x", "/y/%U002E%u002e/z", True), ("/x", "/%u00", False),
    ],
)  # fmt: skip
def test_a_role_rule_holds_for_every_equivalent_path(rules: str, path: str | None, asks: bool) -> None:
    assert (PathRules(((rules, "admin"),)).needs(path) == {"admin"}) == asks


def test_all_matching_role_rules_apply() -> None:
    rules = PathRules((("/x/*", "user"), ("/x/y/*", "admin"), ("/x/y/z", "user")))
    assert rules.needs("/x/1") == {"user"}
    assert rules.needs("/x/y/z") == {"user", "admin"}
    assert rules.needs("/other") == frozenset()
    assert PathRules(()).needs(None) == frozenset()


def test_a_long_path_is_judged_quickly() -> None:
    import time

    rules = PathRules((("/a/*/b/*/c/*/d/*/e", "admin"),))
    began = time.process_time()
    for path in (
        "/a" + "/b" * 4000,
        "/a/b/c" * 1300 + "/d",
        "/" * 8000,
        "/a" + "/%25" * 2000,
        "/" + "a." * 4000,
        "/ä" * 4000,
    ):
        rules.needs(path)
    assert time.process_time() - began < 2


# --- whose word counts ---


def test_headers_of_an_untrusted_address_are_ignored(make_service: Callable[..., Service]) -> None:
    for trusted in ((), (ip_network("10.0.0.0/8"),), (ip_network("127.0.0.2"),)):
        with running(
            make_service(trusted_proxies=trusted, whitelist=WHITELIST, assertion_secret=SECRET)
        ) as site:
            for ask in ASKS:
                reply = site.client().get(VERIFY, headers=ask("/about") | {"X-Forwarded-For": "10.0.0.1"})
                assert (reply.status, reply.header("Location")) == (401, "/login")


@pytest.mark.parametrize(
    "headers",
    [
        {"X-Original-URL": "/about", "X-Forwarded-Uri": "/page"},
        {"X-Original-URL": "/page", "X-Forwarded-Uri": "/about"},
        {"X-Original-URL": "/about", "X-Forwarded-Uri": ""},
        {"X-Original-URL": "", "X-Forwarded-Uri": "/about"},
        {"X-Original-URL": "/about", "X-Forwarded-Uri": "/about?x"},
        {"X-Forwarded-Uri": "/about, /page"},
        {"X-Forwarded-Uri": "/docs/x, /admin"},
        {"X-Forwarded-Uri": "/docs/x /admin"},
        {"X-Original-URL": "http://a?/docs/x"},
        {"X-Original-URL": "http://a#/docs/x"},
        {"X-Original-URL": "http://a@b/docs/x"},
        {"X-Original-URL": "http://a:x/docs/x"},
        {"X-Original-URL": "http:///docs/x"},
        {"X-Original-URL": "ftp://a/docs/x"},
        {"X-Original-URL": "//docs/x"},
        {"X-Original-URL": "docs/x"},
        {"X-Original-URL": "/docs/x#/../admin"},
        {"X-Original-URL": "/docs\\x"},
        {"X-Original-URL": "/docs%2fx"},
        {"X-Original-URL": "/docs/a%2Fb"},
        {"X-Original-URL": "/docs/a%5cb"},
        {"X-Original-URL": "/docs/%ff"},
        {"X-Original-Uri": "/docs/x"},
        {"X-Original-Path": "/docs/x"},
        {"X-Rewrite-URL": "/docs/x"},
        {"X-Forwarded-Prefix": "/docs"},
        {"X-Forwarded-Path": "/docs"},
        {"X_Original_URL": "/docs/x"},
        {"X_Forwarded_Uri": "/docs/x"},
        {"Referer": "/docs/x"},
    ],
)
def test_an_ambiguous_path_is_not_public(site: Site, headers: dict[str, str]) -> None:
    reply = site.client().get(VERIFY, headers=headers)
    assert reply.status == 401
    assert re.fullmatch(r"/login(\?redirect=/[!-~]*)?", str(reply.header("Location")))


def test_two_different_headers_are_both_ignored(site: Site) -> None:
    for name in ("X-Original-URL", "X-Forwarded-Uri"):
        for first, second in (("/about", "/page"), ("/page", "/about"), ("/about", "/about")):
            answer = site.raw(
                f"GET {VERIFY} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{name}: {first}\r\n{name}: {second}\r\n\r\n".encode()
            )
            assert answer.startswith(b"HTTP/1.1 401 ")


@pytest.mark.parametrize(
    "target",
    ["/x%0d%0aSet-Cookie:%20a=b", "/x?a=%0d%0aX:y", "/x\x85y", "/x\xa0y", "/<script>", '/"onload=', "/x'y", "/x%00", "/\xff\xfe", "/?redirect=//evil.example",
     "//evil.example/", "/\\evil.example", "/%5cevil.example", "/%09/evil.example", "https://evil.example/x", "https://site.example//evil.example"],
)  # fmt: skip
def test_the_redirect_to_the_login_stays_on_this_site(site: Site, target: str) -> None:
    for ask in ASKS:
        for more in ({}, {"Accept": "text/html"}):
            reply = site.client().get(VERIFY, headers=ask(target) | more)
            assert reply.status in (302, 401)
            location = str(reply.header("Location"))
            assert re.fullmatch(r"/login(\?redirect=/(?![/\\])[A-Za-z0-9/%._~-]*)?", location), location
            assert not reply.header("Set-Cookie")
            back = unquote(location.partition("redirect=")[2])
            assert back == "" or re.match(r"/(?![/\\])", back)


# --- who asks ---


@pytest.mark.parametrize(
    "name",
    [
        "Remote-User",
        "Remote-Role",
        "Remote-Assertion",
        "X-Forwarded-User",
        "X-Remote-User",
        "Remote_User",
        "X-User",
    ],
)
def test_no_request_header_sets_the_identity(site: Site, name: str) -> None:  # fmt: skip
    ada = site.add()
    for headers in ({name: "1"}, {name: "admin"}):
        assert site.client().get(VERIFY, headers=ASKS[0]("/page") | headers).status == 401
        reply = site.signed_in(ada).get(VERIFY, headers=ASKS[0]("/page") | headers)
        assert (reply.header("Remote-User"), reply.header("Remote-Role")) == ("1", "user")
        assert site.signed_in(ada).get(VERIFY, headers=ASKS[0]("/admin") | headers).status == 403


def test_invalid_sessions_are_anonymous(site: Site) -> None:
    ada = site.add()
    token = site.signed_in(ada).cookies["auth_token"]
    for cookie in (
        "",
        "x",
        "A" * 43,
        token[:-1],
        token + "A",
        token.lower(),
        f"{token} ",
        f'"{token}"',
        f"{token},",
    ):
        client = site.client(headers={"Cookie": f"auth_token={cookie}"})
        good = cookie.strip(" ") == token
        assert client.get(VERIFY, headers=ASKS[0]("/page")).status == (200 if good else 401), cookie
    site.service.sessions.revoke_all([ada.id], by=OPERATOR)
    client = site.client(cookies={"auth_token": token})
    assert client.get(VERIFY, headers=ASKS[0]("/page")).status == 401
    assert client.get(VERIFY, headers=ASKS[0]("/about")).header("Remote-User") == ""


def time_to_judge(filling: str, size: int) -> float:
    """The longest of some paths of about so many bytes takes so many seconds of the thread that answers all requests."""
    access, longest = PageAccess(WHITELIST, RULES), 0.0
    for closed in ("/docs/drafts", "/teams/x/secrets", "/docs"):
        path = closed + "/" + filling * (size // len(filling.encode()))
        began = time.process_time()
        access.verdict(None, path)
        longest = max(longest, time.process_time() - began)
    return longest


@pytest.mark.parametrize(
    "filling", ["/", "/a", "/.a", "%25", "/%2f", "\ufdfa", "\u0301", ";", "@", "/secrets", "/a.php"]
)
def test_no_path_keeps_the_thread_that_judges_it(filling: str) -> None:
    assert time_to_judge(filling, 15_000) < 0.02
    long = "/docs/" + "a b" * 700
    access = PageAccess(WHITELIST, RULES)
    assert [access.verdict(None, path) for path in (long[:1900], long)] == [200, 401]


@pytest.mark.parametrize(
    "filling", ["%", "\ufdfa", "\xe9/", "\u3301", "%2525\u0301", "/secrets", "/A.php", "%252fa.pl"]
)
def test_nor_does_one_that_is_just_short_enough_to_be_looked_at(filling: str) -> None:
    assert time_to_judge(filling, 1_980) < 0.03


def test_another_site_learns_nothing_from_verify(make_service: Callable[..., Service]) -> None:
    with running(make_service(allowed_origins=("https://app.example",))) as site:
        ada = site.signed_in(site.add())
        for origin in ("https://evil.example", "null", "http://127.0.0.1:8080.evil.example"):
            reply = ada.get(VERIFY, headers={"Origin": origin})
            assert not [name for name, _ in reply.headers if name.lower().startswith("access-control")]
        for method in ("POST", "PUT", "DELETE", "PATCH"):
            assert ada.send(method, VERIFY).status == 405


# --- the gate ---


@pytest.mark.parametrize(
    "rules", [{"role_rules": RULES}, {"factor_rules": tuple(dict(RULES))}], ids=["roles", "factors"]
)
@pytest.mark.parametrize("closed", CLOSED)
def test_no_spelling_of_a_closed_path_opens_the_gate(
    make_service: Callable[..., Service], add: Callable[..., User], closed: str, rules: dict[str, Any]
) -> None:
    service = make_service(whitelist=WHITELIST, **rules)
    user = add()
    token = service.sessions.open(user, remember=False).token
    reached: list[str] = []

    def behind(environ: dict[str, Any], start_response: Callable[..., Any]) -> list[bytes]:
        reached.append(environ["PATH_INFO"].encode("latin-1").decode("utf-8", "replace"))
        start_response("200 OK", [])
        return [b""]

    gate = Gate(behind, service)
    for cookie in ("", f"auth_token={token}"):
        for target in spellings(closed):
            environ = {"REQUEST_METHOD": "GET", "PATH_INFO": unquote(target.partition("?")[0], "latin-1")}
            gate(environ | {"HTTP_COOKIE": cookie}, lambda *_: None)
    assert len(reached) > 5
    for path in reached:
        assert not may_be(path, closed), path


def test_a_new_role_counts_at_the_next_request_through_the_gate(make_service: Callable[..., Service]) -> None:
    service = make_service(role_rules=RULES)
    ada = create_user(service, "ada@example.com", "Ada", PASSWORD, role="admin", by=OPERATOR)
    create_user(service, "root@example.com", "Root", PASSWORD, role="admin", by=OPERATOR)
    token = service.sessions.open(ada, remember=False).token
    statuses: list[str] = []
    gate = Gate(lambda _environ, start: start("200 OK", []) or [], service)

    def ask() -> str:
        environ = {"REQUEST_METHOD": "GET", "PATH_INFO": "/admin", "HTTP_COOKIE": f"auth_token={token}"}
        gate(environ, lambda status, _headers: statuses.append(status))
        return statuses[-1][:3]

    assert ask() == "200"
    service.accounts.update(ada.id, role="user", by=OPERATOR)
    assert ask() == "403"
    service.accounts.set_active([ada.id], active=False, by=OPERATOR)
    assert ask() == "302"
