"""Attacks on the rules for paths: no spelling of a path evades one, by forward authentication, by themselves, or through the gate."""

import re
import time
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import unquote

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from support.accounts import open_session
from support.commands import OPERATOR, PASSWORD, create_user
from support.spellings import (
    ASKS,
    CLOSED,
    HERE,
    PIECES,
    RULES,
    VERIFY,
    WHITELIST,
    Ask,
    may_be,
    readings,
    spellings,
)
from support.web import Site, running

from usersctl.models import Session, User
from usersctl.service import Service
from usersd.gate import Gate
from usersd.page_access import PageAccess, PathRules, Whitelist


@pytest.fixture
def site(make_service: Callable[..., Service]) -> Iterator[Site]:
    with running(make_service(trusted_proxies=HERE, whitelist=WHITELIST, role_rules=RULES)) as running_site:
        yield running_site


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
        ("/admin/*", "/x.asp/admin", True), ("/admin/*", "/x.Aspx/admin/y", True), ("/admin/*", "/a/x.jsp/admin", True), ("/admin", "/admin.jsp/x", True),
        ("/admin", "/admin::$DATA", True), ("/admin", "/Admin::$data", True), ("/admin/*", "/admin:$i30:$INDEX_ALLOCATION/x", True),
        ("/admin", "/admin%3a:$DATA", True), ("/items", "/items:close", False), ("/admin", "/x.aspen/admin", False),
        ("/admin/*", "/a.php/admin/c.php", True), ("/admin", "/admin/index.html", True), ("/admin", "/x.php/admin/Index", True),
        ("/admin", "/admin/index.html/x", False), ("/", "/index.php", True), ("/admin/*", "/files/admin", False),
        ("/admin/*", "/v1.2/admin", False), ("/admin.php", "/admin.php/x", True), ("/settings/*", "/example.com/settings", False),
        *(("/admin/*", f"/x.{kind}/admin/y", True) for kind in ("cshtml", "vbhtml", "do", "Action", "rb", "lua")),
        *(("/admin", f"/admin.{kind}/x", True) for kind in ("cshtml", "do", "action", "rb", "lua")), ("/admin", "/x.dot/admin", False),
        ("/admin", "/admin.php/x/y", True), ("/admin", "/x.php/admin.php/y", True), ("/", "/app.php", True), ("/", "/x/app.php", False),
        ("/x.php/y", "/x.php/y", True), ("/x/*/y", "/x/a.php/y", True), ("/admin.txt", "/admin.txt/x", False),
        ("/admin.php/*", "/admin.php/x", True), ("/a%20b", "/a b", True), ("/A", "/a", True), ("/\u00e4", "/\u00c4", True),
        ("/admin/*", "//evil/admin/x", True), ("/admin", "/%2fevil/admin", True), ("/admin", "/\\evil/admin", True),
        ("/x", "/y/../x", True), ("/x", "/y/../z", True), ("/x", "/y%2fz", True), ("/x", "/y\\z", True), ("/x", None, True),
        ("/x", "/%u0078", True), ("/x", "/%U0078", True), ("/x", "/y/%U002E%u002e/z", True), ("/x", "/%u00", False),
        ("/admin", "/%2561dmin", True), ("/admin", "/admin\uff1fx", True), ("/admin", "/\U0001d400dmin", True), ("/what%3F", "/what?", True),
        ("/report.pdf", "/report.pdf ", True), ("/admin", "/admin .json", True),
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


def test_the_sign_in_page_is_open_whatever_the_rules_ask_for() -> None:
    access = PageAccess((), (("/*", "admin"),), ("/*",))
    assert [access.verdict(None, path) for path in ("/login", "/login/x", "/x")] == [200, 401, 401]


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


# --- how long it takes ---


def time_to_judge(filling: str, size: int) -> float:
    """The longest of some paths of about so many bytes takes so many seconds of the thread that answers all requests."""
    paths = [
        f"{closed}/" + filling * (size // len(filling.encode()))
        for closed in ("/docs/drafts", "/teams/x/secrets", "/docs")
    ]
    # The least of three, because a collection of garbage may fall into one.
    return max(min(seconds_for(path) for _ in range(3)) for path in paths)


def seconds_for(path: str) -> float:
    access = PageAccess(WHITELIST, RULES)  # a new one: it remembers paths
    began = time.thread_time()
    access.verdict(None, path)
    return time.thread_time() - began


@pytest.mark.parametrize(
    "filling", ["/", "/a", "/.a", "%25", "/%2f", "\ufdfa", "\u0301", ";", "@", "/secrets", "/a.php"]
)
def test_no_path_keeps_the_thread_that_judges_it(filling: str) -> None:
    assert time_to_judge(filling, 15_000) < 0.02
    long = "/docs/" + "a b" * 700
    access = PageAccess(WHITELIST, RULES)
    assert [access.verdict(None, path) for path in (long[:1900], long)] == [200, 401]


def test_no_pattern_of_the_whitelist_opens_a_path_over_2000_bytes() -> None:
    whitelist = Whitelist(("/docs/*",))
    for path in ("/docs/" + "x" * 1994, "/docs/" + "\xe9" * 997):
        assert path in whitelist
        assert path + "x" not in whitelist


@pytest.mark.parametrize(
    "filling", ["%", "\ufdfa", "\xe9/", "\u3301", "%2525\u0301", "/secrets", "/A.php", "%252fa.pl"]
)
def test_nor_does_one_that_is_just_short_enough_to_be_looked_at(filling: str) -> None:
    assert time_to_judge(filling, 1_980) < 0.03


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
    token = open_session(service, user).token
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
    token = open_session(service, ada).token
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
