"""Access: every route times every kind of caller times every method, through a real socket."""

import re
from collections.abc import Callable, Iterator
from datetime import timedelta
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from support.accounts import open_session
from support.api_tokens import api_token, bearer
from support.commands import OPERATOR, PASSWORD
from support.factors import SEED, add_factors
from support.fakes import FakeClock
from support.paths import filled
from support.web import Client, Reply, Site

from usersctl.config import load
from usersctl.errors import ConfigError
from usersctl.factors import totp
from usersctl.models import UNKNOWN_CLIENT, Proof, User
from usersctl.scopes import Scope
from usersd.page_access import Whitelist
from usersd.routes import FOR_DEVELOPMENT, TABLE
from usersd.routing import ANY

# The specification and the contract, written down here a second time on purpose: the callers of each route, and the
# status of an admitted request without a body. A route that is missing here fails a test below.
ANYONE, USER, ADMIN, OPERATOR_OR_ADMIN, REGISTRATION = "anyone", "user", "admin", "operator", "registration"
ADMINS_PAGE = "admin, and a page that says so to others"
EXPECTED: dict[tuple[str, str], tuple[str, int]] = {
    ("POST", "/api/users/session"): (ANYONE, 400),
    ("DELETE", "/api/users/session"): (ANYONE, 200),
    ("POST", "/api/users/session/confirm"): (USER, 400),
    ("POST", "/api/users/setup"): (ANYONE, 400),
    ("POST", "/api/users/register"): (REGISTRATION, 400),
    ("POST", "/api/users/register/resend"): (REGISTRATION, 400),
    ("GET", "/api/users/confirm-email"): (REGISTRATION, 400),
    ("POST", "/api/users/password/forgot"): (ANYONE, 400),
    ("POST", "/api/users/password/reset"): (ANYONE, 400),
    ("POST", "/api/users/not-me"): (ANYONE, 400),
    ("POST", "/api/users/invite"): (ADMIN, 400),
    ("POST", "/api/users/invite/accept"): (ANYONE, 400),
    ("POST", "/api/users/<id>/invite"): (ADMIN, 200),
    ("DELETE", "/api/users/<id>/invite"): (ADMIN, 200),
    ("POST", "/api/users/confirm-deletion"): (ANYONE, 400),
    ("POST", "/api/users/undo-deletion"): (ANYONE, 400),
    ("GET", "/api/users/me"): (USER, 200),
    ("PATCH", "/api/users/me"): (USER, 200),
    ("DELETE", "/api/users/me"): (USER, 400),
    ("GET", "/api/users/me/email"): (USER, 200),
    ("POST", "/api/users/me/email"): (ANYONE, 400),
    ("DELETE", "/api/users/me/email"): (USER, 200),
    ("POST", "/api/users/me/email/resend"): (USER, 404),
    ("GET", "/api/users/session/second-factor"): (ANYONE, 401),
    ("POST", "/api/users/session/second-factor"): (ANYONE, 400),
    ("POST", "/api/users/session/passkey"): (ANYONE, 400),
    ("POST", "/api/users/session/passkey/options"): (ANYONE, 400),
    ("POST", "/api/users/me/passkeys/options"): (USER, 400),
    ("POST", "/api/users/me/passkeys"): (USER, 400),
    ("PATCH", "/api/users/me/passkeys/<passkey_id>"): (USER, 400),
    ("DELETE", "/api/users/me/passkeys/<passkey_id>"): (USER, 404),
    ("GET", "/api/users/me/factors"): (USER, 200),
    ("POST", "/api/users/me/totp"): (USER, 200),
    ("POST", "/api/users/me/totp/confirm"): (USER, 400),
    ("DELETE", "/api/users/me/totp"): (USER, 404),
    ("POST", "/api/users/me/recovery-codes"): (USER, 400),
    ("GET", "/api/users/me/sessions"): (USER, 200),
    ("DELETE", "/api/users/me/sessions/<session_id>"): (USER, 404),
    ("GET", "/api/users/me/tokens"): (USER, 200),
    ("POST", "/api/users/me/tokens"): (USER, 400),
    ("DELETE", "/api/users/me/tokens/<token_id>"): (USER, 404),
    ("GET", "/api/users/me/identities"): (USER, 200),
    ("POST", "/api/users/me/identities/<provider>"): (USER, 404),
    ("DELETE", "/api/users/me/identities/<provider>"): (USER, 404),
    ("POST", "/api/users/me/sessions/end-others"): (USER, 200),
    ("PATCH", "/api/users/password"): (USER, 400),
    ("GET", "/api/users"): (ADMIN, 200),
    ("POST", "/api/users"): (ADMIN, 400),
    ("GET", "/api/users/inactive"): (ADMIN, 200),
    ("POST", "/api/users/bulk"): (ADMIN, 400),
    ("GET", "/api/users/<id>"): (USER, 200),  # their own; others' are a 403, below
    ("PATCH", "/api/users/<id>"): (ADMIN, 200),
    ("DELETE", "/api/users/<id>"): (ADMIN, 200),
    ("GET", "/api/users/<id>/sessions"): (ADMIN, 200),
    ("DELETE", "/api/users/<id>/sessions"): (ADMIN, 200),
    ("DELETE", "/api/users/<id>/sessions/<session_id>"): (ADMIN, 404),
    ("DELETE", "/api/users/<id>/factors"): (ADMIN, 200),
    ("GET", "/api/users/<id>/why"): (ADMIN, 200),
    ("POST", "/api/users/<id>/unlock"): (ADMIN, 200),
    ("POST", "/api/users/<id>/reset-letter"): (ADMIN, 200),
    ("POST", "/api/users/<id>/confirm-letter"): (ADMIN, 400),
    ("GET", "/api/users/<id>/groups"): (ADMIN, 200),
    ("PUT", "/api/users/<id>/groups"): (ADMIN, 400),
    ("GET", "/api/groups"): (ADMIN, 200),
    ("POST", "/api/groups"): (ADMIN, 400),
    ("DELETE", "/api/groups/<group>"): (ADMIN, 404),
    ("GET", "/api/audit"): (ADMIN, 200),
    ("GET", "/api/audit/check"): (ADMIN, 200),
    ("GET", "/api/users/auth/oauth/redirect"): (ANYONE, 302),
    ("GET", "/api/users/auth/oauth/callback"): (ANYONE, 302),
    ("GET", "/api/users/auth/oauth/callback/<provider>"): (ANYONE, 302),
    ("GET", "/api/users/auth/verify"): (ANYONE, 200),  # and 401 for an anonymous request
    ("GET", "/_tasks/"): (OPERATOR_OR_ADMIN, 200),
    ("POST", "/_tasks/users:cleanup-tokens"): (OPERATOR_OR_ADMIN, 200),
    ("GET", "/api/users/openapi.json"): (ANYONE, 200),
    ("GET", "/api/users/docs"): (ANYONE, 200),
    ("GET", "/health"): (ANYONE, 200),
    ("GET", "/ready"): (ANYONE, 200),
    ("GET", "/login"): (ANYONE, 200),
    ("GET", "/logout"): (ANYONE, 200),
    ("POST", "/logout"): (ANYONE, 302),
    ("GET", "/second-factor"): (ANYONE, 200),
    ("GET", "/register"): (REGISTRATION, 200),
    ("GET", "/confirm-email"): (REGISTRATION, 200),
    ("GET", "/forgot-password"): (ANYONE, 200),
    ("GET", "/reset-password"): (ANYONE, 200),
    ("GET", "/not-me"): (ANYONE, 200),
    ("GET", "/confirm-deletion"): (ANYONE, 200),
    ("GET", "/undo-deletion"): (ANYONE, 200),
    ("GET", "/confirm-new-email"): (ANYONE, 200),
    ("GET", "/accept-invite"): (ANYONE, 200),
    ("GET", "/setup"): (ANYONE, 200),
    ("GET", "/assets/<name>"): (ANYONE, 200),
    ("GET", "/account"): (USER, 200),
    ("GET", "/.well-known/change-password"): (USER, 302),
    ("GET", "/"): (USER, 200),
    ("GET", "/users"): (ADMINS_PAGE, 200),
    ("GET", "/overview"): (ADMINS_PAGE, 200),
    ("GET", "/audit"): (ADMINS_PAGE, 200),
    ("GET", "/users/groups"): (ADMINS_PAGE, 200),
    ("GET", "/users/<id>"): (ADMINS_PAGE, 200),
}
ONLY_FOR_DEVELOPMENT = {("GET", "/dev/mail")}
DECIDES_ITSELF = "/api/users/auth/verify"
# Not for HEAD.
WORKS_ONCE = {
    "/api/users/confirm-email",
    "/api/users/auth/oauth/callback",
    "/api/users/auth/oauth/callback/<provider>",
}

OF_NOTHING = {"session_id": "999", "passkey_id": "999", "token_id": "999"}
METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "BREW")
PATHS = sorted({path for _, path in EXPECTED})
SIGNED_IN = ("user", "admin")
NOBODY = ("nobody", "deactivated", "deleted", "logged out", "expired", "forged")


def expected(  # noqa: PLR0911 - one for each rule
    method: str, path: str, caller: str, *, registration: bool
) -> int:
    """The status, from the table above and these rules alone."""
    asked = "GET" if method == "HEAD" else method
    api = path.startswith(("/api/", "/_tasks/"))
    at_the_door = 302 if asked == "GET" and not api else 401
    levels = {level for (_, known), (level, _) in EXPECTED.items() if known == path}
    if registration:
        levels = {ANYONE if level == REGISTRATION else level for level in levels}
    if (asked, path) not in EXPECTED:
        if ANYONE in levels:
            return 405
        if caller not in SIGNED_IN:
            return at_the_door
        return 403 if caller == "user" and levels <= {ADMIN, OPERATOR_OR_ADMIN} else 405
    level, status = EXPECTED[asked, path]
    if level == REGISTRATION and not registration:
        return 403 if caller in SIGNED_IN else at_the_door
    if level not in (ANYONE, REGISTRATION):
        if caller not in SIGNED_IN:
            return at_the_door
        if level != USER and caller != "admin":
            return 403
    if path == DECIDES_ITSELF and caller not in SIGNED_IN:
        return 401
    return 405 if method == "HEAD" and path in WORKS_ONCE else status


class Callers:
    """A new session for each request, because some requests end it."""

    def __init__(self, site: Site, clock: FakeClock) -> None:
        self.site = site
        self.number = count()
        self.user = site.add("user")
        self.admin = site.add("admin", role="admin")
        gone = site.add("gone", role="admin")
        asleep = site.add("asleep", role="admin")
        self.tokens = {
            "expired": self._open(self.admin),
            "deleted": self._open(gone),
            "deactivated": self._open(asleep),
            "logged out": self._open(self.admin),
            "forged": "A" * 43,
        }
        site.service.accounts.delete([gone.id], by=OPERATOR)
        site.service.accounts.set_active([asleep.id], active=False, by=OPERATOR)
        site.service.sessions.end(self.tokens["logged out"])
        clock.move(days=2)

    def _open(self, user: Any) -> str:
        return open_session(self.site.service, user).token

    def client(self, caller: str) -> Client:
        if caller == "nobody":
            return self.site.client()
        token = self._open(getattr(self, caller)) if caller in SIGNED_IN else self.tokens[caller]
        return self.site.client(cookies={"auth_token": token})

    def path(self, path: str, caller: str, method: str) -> str:
        if "<id>" not in path:
            return filled(path, **OF_NOTHING)
        own = method in ("GET", "HEAD")
        target = getattr(self, caller, self.user) if own else another(self.site, path, self.number)
        return filled(path, id=str(target.id), **OF_NOTHING)


def another(site: Site, path: str, number: Iterator[int]) -> User:
    """A new user for this path, which may end the account; an invited one for the path of an invitation."""
    name = f"other-{next(number)}"
    if not path.endswith("/invite"):
        return site.add(name)
    user = site.add(name, password=None)
    (invited,) = site.service.invitations.again([user.id], timedelta(days=7), by=OPERATOR)
    return invited


def test_every_route_is_in_the_table_of_this_test() -> None:
    assert [(route.method, route.path) for route in TABLE] == list(
        dict.fromkeys((route.method, route.path) for route in TABLE)
    ), "a row stands twice"
    assert {(route.method, route.path) for route in TABLE} == set(EXPECTED)
    assert {(route.method, route.path) for route in FOR_DEVELOPMENT} == ONLY_FOR_DEVELOPMENT


@pytest.mark.parametrize("registration", [False, True])
@pytest.mark.parametrize("path", PATHS)
def test_each_caller_gets_the_expected_status_on_every_route(
    make_site: Callable[..., Site], clock: FakeClock, path: str, registration: bool
) -> None:
    site = make_site(listening=None, whitelist=("/register",) if registration else (), limits_enabled=False)
    callers = Callers(site, clock)
    wrong = []
    for caller in (*SIGNED_IN, *NOBODY):
        for method in METHODS:
            asked = callers.path(path, caller, method)
            reply = callers.client(caller).send(method, asked)
            wanted = expected(method, path, caller, registration=registration)
            if reply.status != wanted or not is_well_formed(reply, path, method, asked):
                wrong.append((caller, method, reply.status, wanted, reply.body))
    assert wrong == []


def is_well_formed(reply: Reply, path: str, method: str, asked: str) -> bool:
    """`path` is of the table, and `asked` with ids. An error holds its message only, and a redirect leads to the login and back."""
    if reply.status == 302 and path.startswith("/api/users/auth/"):
        return reply.header("Location") == "/login?error=oauth_not_configured"
    if reply.status == 403 and EXPECTED.get(("GET", path), ("",))[0] == ADMINS_PAGE:
        return reply.header("Content-Type") == "text/html; charset=utf-8"
    if reply.status == 302:
        ways = {"/logout": "/login", "/.well-known/change-password": "/account#change"}
        ways_on = (ways.get(path), f"/login?redirect={asked}")
        return reply.header("Location") in ways_on and reply.body == b""
    if reply.status in (401, 403, 405) and method != "HEAD":
        return reply.message in (
            "Authentication required",
            "Admin access required",
            "Registration is closed",
            "Method not allowed",
        )
    return True


@pytest.mark.slow
def test_a_bearer_token_is_accepted_wherever_a_cookie_is(site: Site, clock: FakeClock) -> None:
    callers = Callers(site, clock)
    for (method, path), (_, status) in EXPECTED.items():
        if path not in ("/api/users/register", "/api/users/register/resend", "/api/users/confirm-email"):
            token = callers.client("admin").token
            client = site.client(headers={"Authorization": f"Bearer {token}"})
            if not path.endswith(("/register", "/confirm-email")):
                assert client.send(method, callers.path(path, "admin", method)).status == status, path


# --- second factors ---

# Where second factors are for everyone: the states of an admin, and what is refused or admitted in them.
STATES = (
    "pending",
    "its cookie as a session",
    "its cookie as a token",
    "one factor",
    "one factor is enough",
    "two factors",
    "must enrol",
    "API token",
    "API token of one who must enrol",
)
SECOND_STEP = "/api/users/session/second-factor"
ENROLS = {
    ("POST", "/api/users/session/confirm"),
    ("GET", "/api/users/me"),
    ("GET", "/api/users/me/factors"),
    ("POST", "/api/users/me/totp"),
    ("POST", "/api/users/me/totp/confirm"),
    ("POST", "/api/users/me/passkeys/options"),
    ("POST", "/api/users/me/passkeys"),
    ("GET", "/account"),
}
# Of an account with both kinds of factors: in a session that proved none of them, and in one that just did.
NEEDS_A_FACTOR = {
    ("POST", "/api/users/session/confirm"): (403, 403),  # without a body it is for a password
    ("GET", "/second-factor"): (200, 302),  # to the application
    ("DELETE", "/api/users/<id>/factors"): (403, 200),
    ("DELETE", "/api/users/me"): (403, 200),
    ("POST", "/api/users/me/totp"): (403, 400),  # there is one
    ("DELETE", "/api/users/me/totp"): (403, 200),
    ("POST", "/api/users/me/passkeys/options"): (403, 200),
    ("DELETE", "/api/users/me/passkeys/<passkey_id>"): (403, 404),
    ("POST", "/api/users/me/recovery-codes"): (403, 200),
    ("POST", "/api/users/me/identities/<provider>"): (403, 404),  # none is configured
    ("DELETE", "/api/users/me/identities/<provider>"): (403, 404),
}
OPTIONS = ("POST", "/api/users/session/passkey/options")
CLOSED_TO_TOKENS = {(route.method, route.path) for route in TABLE if route.own == ANY}


class States:
    """A new admin for each request."""

    def __init__(self, site: Site) -> None:
        self.site, self.number = site, count()

    def client(self, state: str) -> Client:
        service, client = self.site.service, self.site.client()
        user = self.site.add(f"admin-{next(self.number)}", role="admin")
        if state.startswith("API token"):
            if "enrol" not in state:
                add_factors(service, user.id)
            made = service.sessions.create_api_token(user.id, name="ci", lifetime=None, by=OPERATOR)
            client.headers["Authorization"] = f"Bearer {made.token}"
            return client
        session = open_session(service, user).token
        if state == "must enrol":
            client.cookies["auth_token"] = session
            return client
        add_factors(service, user.id)
        if state.startswith("one factor"):
            client.cookies["auth_token"] = session
            return client
        pending = service.sessions.login(user.email, PASSWORD).token
        if state == "two factors":
            proof = Proof(code=totp.code_at(SEED, totp.step_at(service.now())))
            opened = service.second_step.finish(
                [pending], proof, then=service.sessions.finish, client=UNKNOWN_CLIENT, by=OPERATOR
            )
            client.cookies["auth_token"] = opened.token
        elif state == "pending":
            client.cookies["auth_pending"] = pending
        elif state == "its cookie as a session":
            client.cookies["auth_token"] = pending
        else:
            client.headers["Authorization"] = f"Bearer {pending}"
        return client

    def path(self, path: str) -> str:
        if "<id>" not in path:
            return filled(path, **OF_NOTHING)
        return filled(path, id=str(another(self.site, path, self.number).id), **OF_NOTHING)


def expected_in(  # noqa: PLR0911 - one for each rule
    state: str, method: str, path: str
) -> int:
    level, status = EXPECTED[method, path]
    is_open = level in (ANYONE, REGISTRATION)
    if (method, path) == OPTIONS:
        return 403 if state.startswith("API token") else 200
    if state in STATES[:3]:
        if (method, path) == ("GET", SECOND_STEP) and state == "pending":
            return 200
        return expected(method, path, "nobody", registration=True)
    if state == "must enrol":
        if path == DECIDES_ITSELF:
            return 403
        if (method, path) == ("POST", "/api/users/me/passkeys/options"):
            return 200
        return status if is_open or (method, path) in ENROLS else 403
    if state.startswith("API token"):
        is_own = (method, path) in CLOSED_TO_TOKENS and "<id>" not in path
        is_proven = path == "/api/users/<id>/factors"
        return 403 if is_own or is_proven else status
    one, two = NEEDS_A_FACTOR.get((method, path), (status, status))
    if state == "one factor":
        if path == DECIDES_ITSELF:
            return 401
        is_api = (method, path) in ENROLS and path != "/account"
        return one if is_open or is_api else 403
    return two if state == "two factors" else one


@pytest.mark.slow
@pytest.mark.parametrize("state", STATES)
def test_each_route_in_each_state_of_second_factors(
    make_site: Callable[..., Site], clock: FakeClock, state: str
) -> None:
    site = make_site(
        listening=None,
        base_url="http://localhost:8080",
        whitelist=("/register",),
        second_factor="optional" if state == "one factor is enough" else "everyone",
        limits_enabled=False,
    )
    states, wrong = States(site), []
    clock.move(minutes=1)
    for method, path in EXPECTED:
        reply = states.client(state).send(method, states.path(path))
        wanted = expected_in(state, method, path)
        if reply.status != wanted:
            wrong.append((method, path, reply.status, wanted))
    assert wrong == []


def test_the_routes_that_enrol_are_those_of_this_table() -> None:
    assert {(route.method, route.path) for route in TABLE if route.enrols} == ENROLS


# --- paths without a route ---

UNKNOWN = [
    "/nowhere",
    "/user",
    "/admin",
    "/login/",
    "/Login",
    "/api",
    "/api/",
    "/api/users/",
    "/api/users/1/",
    "/api/users/1/sessions/2/3",
    "/api/users/me/",
    "/api/users/session/1",
    "/api/other",
    "/_tasks",
    "/_tasks/unknown",
    "/_tasks//",
    "/assets/",
    "/assets/a/b",
    "/dev/mail",
    "/index.html",
    "/.env",
    "/favicon.ico",
]


@pytest.mark.parametrize("path", UNKNOWN)
def test_a_path_without_a_route_is_401_before_404(site: Site, path: str) -> None:
    nobody, user = site.client(), site.signed_in(site.add())
    page = not path.startswith(("/api", "/_tasks"))
    for method in METHODS:
        reply = nobody.send(method, path)
        if page and method in ("GET", "HEAD"):
            assert (reply.status, reply.header("Location")) == (302, f"/login?redirect={path}")
        else:
            assert reply.status == 401
        assert user.send(method, path).status == 404


@pytest.mark.parametrize(
    ("asked", "back"),
    [
        ("/", "/"),
        ("/a%20b", "/a%2520b"),
        ("/page?x=1&y=2", "/page%3Fx%3D1%26y%3D2"),
        ("/%C3%A4", "/%25C3%25A4"),
        ("//evil.example/x", "/evil.example/x"),
        ("/%5Cevil.example", "/%255Cevil.example"),
        ("/%09/evil.example", "/%2509/evil.example"),
        ("/x%0d%0aSet-Cookie:a=b", "/x%250D%250ASet-Cookie%3Aa%3Db"),
        ("/?redirect=//evil.example", "/%3Fredirect%3D//evil.example"),
    ],
)
def test_an_anonymous_page_request_redirects_to_the_login_and_back(site: Site, asked: str, back: str) -> None:
    reply = site.client().get(asked)
    assert (reply.status, reply.header("Location")) == (302, f"/login?redirect={back}")


def test_dev_mail_has_a_route_only_while_developing(make_site: Callable[..., Site]) -> None:
    site = make_site(whitelist=("/dev/mail",))
    assert site.client().get("/dev/mail").status == 404
    assert b"/dev/mail" not in site.client().get("/login").body


# --- the whitelist ---


def test_a_whitelisted_path_without_a_route_is_not_found_for_everyone(make_site: Callable[..., Site]) -> None:
    site = make_site(whitelist=("/about", "/docs/*", "/api/public", "/shop/*/item"))
    nobody, user = site.client(), site.signed_in(site.add())
    for path in ("/about", "/docs", "/docs/", "/docs/a/b", "/api/public", "/shop/7/item"):
        for client in (nobody, user):
            reply = client.get(path)
            assert (reply.status, reply.message) == (404, "Not found")
    for path in (
        "/about/",
        "/About",
        "/docsx",
        "/api/public/x",
        "/shop/item",
        "/shop/7/8/item",
        "/docs/../x",
    ):
        assert nobody.get(path).status in (302, 401)


@pytest.mark.parametrize(
    "whitelist", [("/*",), ("/api/*", "/_tasks/*", "/"), ("/api/users/me", "/api/users")]
)
def test_no_pattern_opens_a_route_that_asks_for_a_session(
    make_site: Callable[..., Site], whitelist: tuple[str, ...]
) -> None:
    site = make_site(listening=None, whitelist=whitelist)
    for (method, path), (level, _) in EXPECTED.items():
        if level != ANYONE:
            reply = site.client().send(method, re.sub("<[a-z_]+>", "1", path))
            assert reply.status == (401 if path.startswith(("/api/", "/_tasks/")) else 302), path


def reference(patterns: tuple[str, ...], path: str) -> bool:
    """The same rule, written with regular expressions."""
    if "/register" in patterns:
        patterns += ("/confirm-email",)
    for pattern in patterns:
        if "*" not in pattern:
            if path == pattern:
                return True
            continue
        if {".", "..", "\n"} & set(path.split("/")):  # other servers drop a segment that is not visible
            continue
        if path.startswith("//"):  # and take what follows for a host
            continue
        body, below = (pattern.removesuffix("/*"), "(/.*)?") if pattern.endswith("/*") else (pattern, "")
        parts = ["[^/]+" if part == "*" else re.escape(part) for part in body.split("/")]
        if re.fullmatch("/".join(parts) + below, path, re.DOTALL):
            return True
    return False


SEGMENTS = st.sampled_from(["a", "b", "A", "*", "", ".", "..", "a*", "é", "\n", "register", "confirm-email"])
SOME_PATH = st.lists(SEGMENTS, min_size=1, max_size=5).map(lambda parts: "/" + "/".join(parts))


@given(patterns=st.lists(SOME_PATH, max_size=3).map(tuple), path=SOME_PATH)
@example(patterns=("/*",), path="/")
@example(patterns=("/x/*",), path="/x")
@example(patterns=("/x/*",), path="/xy")
@example(patterns=("/x/*",), path="/x/../y")
@example(patterns=("/*/y",), path="//y")
@example(patterns=("/*",), path="//a")
@example(patterns=("/x/*/*",), path="/x")
@example(patterns=("/register",), path="/confirm-email")
@example(patterns=("/register/*",), path="/confirm-email")
def test_a_whitelist_pattern_matches_as_documented(patterns: tuple[str, ...], path: str) -> None:
    assert (path in Whitelist(patterns)) == reference(patterns, path)


@pytest.mark.parametrize("pattern", ["/docs*", "/*.css", "/a/b*/c", "/**"])
def test_a_star_inside_a_segment_of_a_pattern_stops_the_start(tmp_path: Path, pattern: str) -> None:
    file = tmp_path / "users.toml"
    file.write_text(f'[auth]\nwhitelist = ["{pattern}"]\n')
    with pytest.raises(ConfigError, match="only as a whole segment"):
        load(config=file, env={"USERS_DATABASE": str(tmp_path / "users.db")})


def test_every_change_of_the_own_account_is_closed_to_api_tokens() -> None:
    """Or to those of its own user, where the path names one. The name alone may be changed."""
    for route in TABLE:
        is_own = route.path.startswith(("/api/users/me", "/api/users/password", "/api/users/<id>"))
        if is_own and route.access.needs_session and route.method != "GET":
            changes_details = route.method == "PATCH" and route.path in ("/api/users/me", "/api/users/<id>")
            assert route.own == ("email" if changes_details else ANY), route


# --- scopes of API tokens ---

# The table of the contract, written down a second time: what each scope opens, beside what is open to anyone.
USERS_READ = {
    ("GET", "/api/users"),
    ("GET", "/api/users/inactive"),
    ("GET", "/api/users/<id>"),
    ("GET", "/api/users/<id>/groups"),
    ("GET", "/api/users/<id>/why"),
    ("GET", "/api/groups"),
    ("GET", "/api/audit"),
    ("GET", "/api/audit/check"),
}
SESSIONS_READ = {("GET", "/api/users/<id>/sessions")}
OPENED: dict[str, set[tuple[str, str]]] = {
    "users:read": USERS_READ,
    "users:write": USERS_READ
    | {
        ("POST", "/api/users"),
        ("POST", "/api/users/bulk"),
        ("POST", "/api/users/invite"),
        ("PATCH", "/api/users/<id>"),
        ("DELETE", "/api/users/<id>"),
        ("POST", "/api/users/<id>/invite"),
        ("DELETE", "/api/users/<id>/invite"),
        ("POST", "/api/users/<id>/unlock"),
        ("POST", "/api/users/<id>/reset-letter"),
        ("POST", "/api/users/<id>/confirm-letter"),
        ("PUT", "/api/users/<id>/groups"),
        ("POST", "/api/groups"),
        ("DELETE", "/api/groups/<group>"),
    },
    "sessions:read": SESSIONS_READ,
    "sessions:write": SESSIONS_READ
    | {("DELETE", "/api/users/<id>/sessions"), ("DELETE", "/api/users/<id>/sessions/<session_id>")},
    "me": {("GET", "/api/users/me"), ("PATCH", "/api/users/me"), ("GET", "/api/users/me/sessions")},
    "tasks": {("GET", "/_tasks/"), ("POST", "/_tasks/users:cleanup-tokens")},
    "verify": {("GET", "/api/users/auth/verify")},
}
# Open to anyone, but a session that comes along counts, and so do its limits.
LOOKED_UP = {
    OPTIONS,
    ("POST", "/api/users/me/email"),
    ("GET", "/login"),
    ("GET", "/logout"),
    ("GET", "/second-factor"),
    ("GET", "/confirm-new-email"),
}


def expected_with(scopes: tuple[str, ...], role: str, method: str, path: str, *, own: bool) -> int:
    level, status = EXPECTED[method, path]
    is_open = level in (ANYONE, REGISTRATION) and (method, path) not in LOOKED_UP
    if is_open and path != DECIDES_ITSELF:
        return status
    if not any((method, path) in OPENED[scope] for scope in scopes):
        return 403
    if role == "user" and level not in (USER, ANYONE):
        return 403
    if "<id>" in path and role == "user" and not own:
        return 403
    if "<id>" in path and own and (method, path) in CLOSED_TO_TOKENS:
        return 403
    return status


def refusals(method: str, path: str) -> set[str]:
    """What a 403 may say."""
    scopes = {scope for scope, opened in OPENED.items() if (method, path) in opened}
    lacks = {f"Token lacks the scope {scope}" for scope in scopes} or {"Tokens with scopes cannot do this"}
    return lacks | {"Sign in to change this", "Admin access required", "You may only read your own profile"}


@pytest.mark.parametrize("role", ["admin", "user"])
@pytest.mark.parametrize("scopes", [*((scope,) for scope in OPENED), tuple(OPENED)], ids=" ".join)
def test_each_scope_opens_what_it_names_of_ones_own_and_of_others(
    make_site: Callable[..., Site], clock: FakeClock, scopes: tuple[str, ...], role: str
) -> None:
    site = make_site(listening=None, whitelist=("/register",), limits_enabled=False)
    callers = Callers(site, clock)
    caller = getattr(callers, role)
    wrong = []
    for method, path in EXPECTED:
        for own in (True, False) if "<id>" in path else (True,):
            target = caller if own else another(site, path, callers.number)
            asked = callers.path(path.replace("<id>", str(target.id)), role, method)
            # A new one for each request, because signing out ends it.
            reply = bearer(site, api_token(site, caller, *scopes)).send(method, asked)
            wanted = expected_with(scopes, role, method, path, own=own)
            is_said = reply.status != 403 or reply.message in refusals(method, path)
            if reply.status != wanted or not is_said:
                wrong.append((method, asked, reply.status, wanted, reply.body))
    assert wrong == []


def test_the_scopes_of_the_table_are_those_of_this_test() -> None:
    assert set(OPENED) == set(Scope)
    for route in TABLE:
        opening = {scope for scope, opened in OPENED.items() if (route.method, route.path) in opened}
        # The narrowest of them.
        narrow = {
            scope for scope in opening if scope.removesuffix(":write") + ":read" not in opening - {scope}
        }
        assert {route.scope} - {None} == narrow, route.path


@pytest.mark.parametrize("scope", Scope)
def test_an_unknown_path_tells_a_scoped_token_no_more_than_others(site: Site, scope: Scope) -> None:
    root = site.add("root", role="admin")
    client = bearer(site, api_token(site, root, scope))
    assert client.get("/api/nothing").status == 404
    assert client.send("PUT", "/api/users/bulk").status == 405
    assert client.post("/api/users/1/factors").status == 405
