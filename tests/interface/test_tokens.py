"""API tokens by the interface: a user makes, lists and ends their own; scopes and ranges count on every surface."""

import re
from base64 import b64encode
from collections.abc import Callable, Iterator
from ipaddress import ip_network
from typing import Any

import pytest
from support.api_tokens import api_token, bearer
from support.commands import OPERATOR, PASSWORD
from support.factors import add_factors
from support.fakes import FakeClock
from support.postbox import last_link
from support.tables import audit, query
from support.web import Client, Reply, Site, application, hosting

from usersctl.models import TokenKind, User
from usersctl.scopes import Scope
from usersctl.secrets import digest, new_api_token
from usersd.gate import Gate
from usersd.openapi.document import document
from usersd.routes import TABLE
from usersd.server.connections import Hosted

TOKENS = "/api/users/me/tokens"
VERIFY = "/api/users/auth/verify"
PROXY = (ip_network("127.0.0.0/8"),)
FIELDS = {
    "id",
    "name",
    "scopes",
    "ip",
    "created_at",
    "expires_at",
    "last_used_at",
    "last_ip",
    "last_user_agent",
}

Make = Callable[..., Site]


@pytest.fixture
def ada(site: Site) -> User:
    return site.add()


@pytest.fixture
def client(site: Site, ada: User) -> Client:
    return site.signed_in(ada)


# --- made, listed and ended ---


def test_the_owner_learns_of_a_token_that_was_made_in_a_session(
    site: Site, ada: User, client: Client
) -> None:
    made = client.post(TOKENS, {"name": "backup", "expires": "never"}).json
    link = last_link(site.service, ada.email)
    assert link.path == "/not-me"
    program = site.client(headers={"Authorization": f"Bearer {made['token']}"})
    assert program.get("/api/users/me").status == 200
    body = {"token": link.token, "email": link.email}
    assert site.client().post("/api/users/not-me", body).status == 200
    assert program.get("/api/users/me").status == 401


def test_nobody_is_told_of_a_token_that_an_operator_made(site: Site, ada: User) -> None:
    site.service.sessions.create_api_token(ada.id, name="ci", lifetime=None, by=OPERATOR)
    assert query(site.service, "SELECT kind FROM outbox") == []


def test_a_token_is_made_and_shown_once(site: Site, client: Client) -> None:
    body = {"name": " backup ", "expires": "30d", "scopes": ["verify", "me"], "ip": ["127.0.0.0/8"]}
    reply = client.post(TOKENS, body)
    assert (reply.status, set(reply.json)) == (200, FIELDS | {"token"})
    token = reply.json["token"]
    assert re.fullmatch(r"usr_[A-Za-z0-9_-]{43}[0-9A-Za-z]{6}", token)
    shown = {name: reply.json[name] for name in ("name", "scopes", "ip", "last_used_at", "expires_at")}
    assert shown == {
        "name": "backup",
        "scopes": ["me", "verify"],
        "ip": ["127.0.0.0/8"],
        "last_used_at": None,
        "expires_at": "2026-12-20T08:22:19.123Z",
    }
    assert bearer(site, token).get("/api/users/me").status == 200
    listed = client.get(TOKENS)
    assert [set(each) for each in listed.json["tokens"]] == [FIELDS]
    assert token.encode() not in listed.body
    assert token not in str(site.log) + str(query(site.service, "SELECT * FROM audit"))
    assert query(site.service, "SELECT count(*) FROM auth_tokens WHERE token_hash = ?", digest(token)) == [
        (1,)
    ]


@pytest.mark.parametrize(
    ("sent", "expires_at"),
    [
        ({}, "2027-02-18T08:22:19.123Z"),
        ({"expires": "1h"}, "2026-11-20T09:22:19.123Z"),
        ({"expires": "never"}, None),
    ],
)
def test_a_token_expires_after_90_days_if_nothing_else_is_said(
    client: Client, sent: dict[str, Any], expires_at: str | None
) -> None:
    reply = client.post(TOKENS, {"name": "ci"} | sent)
    assert (reply.status, reply.json["expires_at"]) == (200, expires_at)
    assert (reply.json["scopes"], reply.json["ip"]) == (None, None)


@pytest.mark.parametrize(
    ("sent", "message"),
    [
        ({"name": ""}, "Name is required"),
        ({"name": "a\nb"}, "Name must not contain control characters"),
        ({"name": 7}, "name must be a string"),
        ({"expires": "soon"}, "'soon' is not a duration such as 12h, 90d or 1y"),
        ({"expires": ""}, "'' is not a duration"),
        ({"expires": "0d"}, "'0d' is not a duration"),
        ({"expires": None}, "expires must not be null"),
        ({"expires": 90}, "expires must be a string"),
        ({"scopes": []}, "Name at least one scope"),
        ({"scopes": ["users"]}, "'users' is no scope"),
        ({"scopes": ["users:read me"]}, "'users:read me' is no scope"),
        ({"scopes": "me"}, "scopes must be a list"),
        ({"scopes": [1]}, "scopes must be a list of strings"),
        ({"scopes": None}, "scopes must not be null"),
        ({"ip": []}, "Give at least one range"),
        ({"ip": ["10.0.0.1/8"]}, "Not an address or range: '10.0.0.1/8'; the range is 10.0.0.0/8"),
        ({"ip": ["fe80::1%a b"]}, "Not an address or range"),
        ({"ip": "10.0.0.0/8"}, "ip must be a list"),
        ({"ip": ["10.0.0.0/8"] * 3 + [f"192.0.2.{n}" for n in range(60)]}, "Too many ranges"),
    ],
)
def test_what_is_wrong_with_a_token_is_named_and_none_is_made(
    site: Site, client: Client, sent: dict[str, Any], message: str
) -> None:
    reply = client.post(TOKENS, {"name": "ci"} | sent)
    assert reply.status == 400
    assert reply.message.startswith(message)
    assert client.get(TOKENS).json == {"tokens": []}
    assert audit(site.service)[-1].action != "create-token"


def test_the_list_has_the_tokens_of_the_caller_with_their_last_use(
    site: Site, client: Client, ada: User
) -> None:
    token = api_token(site, ada, "me", ranges=("127.0.0.1",))
    api_token(site, site.add("eve"))
    assert bearer(site, token, **{"User-Agent": "backup/2"}).get("/api/users/me").status == 200
    site.service.sessions.uses.write()
    (listed,) = client.get(TOKENS).json["tokens"]
    assert listed == {
        "id": listed["id"],
        "name": "ci",
        "scopes": ["me"],
        "ip": ["127.0.0.1/32"],
        "created_at": "2026-11-20T08:22:19.123Z",
        "expires_at": None,
        "last_used_at": "2026-11-20T08:22:19.123Z",
        "last_ip": "127.0.0.1",
        "last_user_agent": "backup/2",
    }


def test_a_token_is_ended_by_its_user_alone(site: Site, client: Client, ada: User) -> None:
    token, eve = api_token(site, ada), site.signed_in(site.add("eve"))
    (listed,) = client.get(TOKENS).json["tokens"]
    path = f"{TOKENS}/{listed['id']}"
    assert (eve.delete(path).status, eve.delete(path).message) == (404, "Token not found")
    assert bearer(site, token).get("/api/users/me").status == 200
    assert client.delete(path).json == {"success": True}
    assert bearer(site, token).get("/api/users/me").status == 401
    assert client.delete(path).status == 404
    assert (audit(site.service)[-1].action, audit(site.service)[-1].actor) == ("revoke", f"user:{ada.id}")


def test_what_is_no_token_is_not_ended_as_one(client: Client) -> None:
    (session,) = client.get("/api/users/me/sessions").json["sessions"]
    assert client.delete(f"{TOKENS}/{session['id']}").status == 404
    assert client.delete(f"{TOKENS}/x").message == "Invalid token id"
    assert client.get("/api/users/me").status == 200


def test_a_token_is_made_after_a_fresh_proof_only(client: Client, clock: FakeClock) -> None:
    clock.move(minutes=11)
    refused = client.post(TOKENS, {"name": "ci"})
    assert (refused.status, refused.message) == (403, "Confirm that it is you")
    assert client.get(TOKENS).json == {"tokens": []}
    assert client.post("/api/users/session/confirm", {"password": PASSWORD}).status == 200
    assert client.post(TOKENS, {"name": "ci"}).status == 200


def test_with_a_factor_the_proof_is_the_factor(site: Site, client: Client, ada: User) -> None:
    add_factors(site.service, ada.id)
    assert client.post(TOKENS, {"name": "ci"}).message == "Confirm that it is you"


def test_who_must_add_a_factor_first_makes_no_token(make_site: Make) -> None:
    site = make_site(base_url="http://localhost:8080", second_factor="everyone")
    client = site.signed_in(site.add())
    assert client.post(TOKENS, {"name": "ci"}).message == "Second factor required"
    assert client.get(TOKENS).status == 403


@pytest.mark.parametrize("end", ["deactivate", "delete", "revoke", "password"])
def test_what_ends_the_sessions_of_a_user_ends_scoped_tokens(site: Site, ada: User, end: str) -> None:
    client = bearer(site, api_token(site, ada, "me", ranges=("127.0.0.1",)))
    assert client.get("/api/users/me").status == 200
    accounts, sessions = site.service.accounts, site.service.sessions
    {
        "deactivate": lambda: accounts.set_active([ada.id], active=False, by=OPERATOR),
        "delete": lambda: accounts.delete([ada.id], by=OPERATOR),
        "revoke": lambda: sessions.revoke_all([ada.id], by=OPERATOR),
        "password": lambda: accounts.set_password(ada.id, "another horse battery", by=OPERATOR),
    }[end]()
    assert client.get("/api/users/me").status == 401


# --- scopes ---


def test_a_token_without_a_scope_for_a_route_is_told_which_it_lacks(site: Site) -> None:
    root = site.add("root", role="admin")
    client = bearer(site, api_token(site, root, "users:read"))
    assert client.get("/api/users").status == 200
    for reply, scope in (
        (client.post("/api/users", {}), "users:write"),
        (client.get(f"/api/users/{root.id}/sessions"), "sessions:read"),
        (client.get("/api/users/me"), "me"),
        (client.get("/_tasks/"), "tasks"),
        (client.get(VERIFY), "verify"),
    ):
        assert (reply.status, reply.message) == (403, f"Token lacks the scope {scope}")
    refused = client.get("/api/users/me/factors")
    assert (refused.status, refused.message) == (403, "Tokens with scopes cannot do this")


def test_the_scope_me_changes_the_name_and_no_address(site: Site, ada: User) -> None:
    client = bearer(site, api_token(site, ada, "me"))
    assert client.patch("/api/users/me", {"name": "Ada L"}).json["name"] == "Ada L"
    refused = client.patch("/api/users/me", {"name": "Ada", "email": "eve@example.com"})
    assert (refused.status, refused.message) == (403, "Sign in to change this")
    assert client.get("/api/users/me").json["user"]["name"] == "Ada L"


def test_the_role_of_the_user_counts_beside_the_scope(site: Site, ada: User) -> None:
    token = api_token(site, ada, *Scope)
    client = bearer(site, token)
    assert client.get("/api/users").message == "Admin access required"
    assert client.get(f"/api/users/{ada.id}").status == 200
    site.service.accounts.update(ada.id, role="admin", by=OPERATOR)
    assert client.get("/api/users").status == 200


def test_the_document_names_the_scope_of_every_operation(site: Site) -> None:
    paths = document(site.service.settings, TABLE)["paths"]
    for route in TABLE:
        operation = paths[re.sub(r"<(\w+)>", r"{\1}", route.path)][route.method.lower()]
        needs = [scheme["bearer"] for scheme in operation["security"] if "bearer" in scheme]
        assert needs in ([], [[route.scope] if route.scope else []])
        assert needs or not route.access.needs_session
        assert route.scope is None or f"`{route.scope}`" in operation["description"]


# --- ranges, also behind a proxy ---


def asked(site: Site, token: str, forwarded: str | None) -> int:
    headers = {} if forwarded is None else {"X-Forwarded-For": forwarded}
    return bearer(site, token).get("/api/users/me", headers=headers).status


@pytest.mark.parametrize(
    ("forwarded", "status"),
    [
        ("10.1.2.3", 200),
        ("::ffff:10.1.2.3", 200),
        ("2001:db8::7", 200),
        ("[2001:db8::7]", 200),
        ("203.0.113.9, 10.1.2.3", 200),
        ("10.1.2.3, 203.0.113.9", 401),
        ("11.1.2.3", 401),
        ("::ffff:11.1.2.3", 401),
        ("::10.1.2.3", 401),
        ("2001:db9::7", 401),
        ("10.1.2.3.evil.example", 401),
        ("", 401),
        (None, 401),
    ],
)
def test_behind_a_trusted_proxy_the_client_has_to_be_in_the_range(
    make_site: Make, forwarded: str | None, status: int
) -> None:
    site = make_site(trusted_proxies=PROXY)
    token = api_token(site, site.add(), ranges=("10.0.0.0/8", "2001:db8::/32"))
    assert asked(site, token, forwarded) == status


def test_a_forwarding_header_of_a_stranger_puts_no_client_into_the_range(site: Site, ada: User) -> None:
    token = api_token(site, ada, ranges=("10.0.0.0/8",))
    assert asked(site, token, "10.1.2.3") == 401
    assert bearer(site, token).get("/api/users/me").message == "Authentication required"
    assert asked(site, api_token(site, ada, ranges=("127.0.0.0/8",)), "203.0.113.9") == 200


def test_a_token_from_elsewhere_leaves_the_cookie_beside_it_good(site: Site, ada: User) -> None:
    client = site.signed_in(ada)
    client.headers["Authorization"] = f"Bearer {api_token(site, ada, ranges=('10.0.0.0/8',))}"
    assert client.get("/api/users/me").status == 200


# --- verify and the gate ---


@pytest.fixture
def behind(make_site: Make) -> Site:
    return make_site(trusted_proxies=PROXY, whitelist=("/about",), forward_basic=True)


KINDS = [
    # scopes, range, the status of a page and of a public page
    ((), (), 200, 200),
    (("verify",), (), 200, 200),
    (("verify", "me"), ("10.0.0.0/8",), 200, 200),
    (tuple(Scope), (), 200, 200),
    (("me",), (), 403, 200),
    (tuple(scope for scope in Scope if scope != "verify"), (), 403, 200),
    ((), ("192.0.2.0/24",), 401, 200),
    (("verify",), ("192.0.2.0/24",), 401, 200),
]


def answers(ask: Callable[[str], Reply]) -> tuple[int, int]:
    return ask("/page").status, ask("/about").status


@pytest.mark.parametrize(("scopes", "ranges", "page", "public"), KINDS)
@pytest.mark.parametrize("way", ["bearer", "basic", "cookie"])
def test_verify_lets_in_the_tokens_with_its_scope(
    behind: Site, scopes: tuple[str, ...], ranges: tuple[str, ...], page: int, public: int, way: str
) -> None:
    ada = behind.add()
    token = api_token(behind, ada, *scopes, ranges=ranges)
    client = behind.client()
    if way == "cookie":
        client.cookies["auth_token"] = token
    else:
        client.headers["Authorization"] = credentials(way, token)

    def ask(path: str) -> Reply:
        sent = {"X-Forwarded-Uri": path, "X-Forwarded-Method": "GET", "X-Forwarded-For": "10.1.2.3"}
        return client.get(VERIFY, headers=sent)

    assert answers(ask) == (page, public)
    reply = ask("/page")
    assert reply.header("Authorization") is None, "no application gets a token of ours"
    if page == 200:
        assert (reply.header("Remote-User"), reply.header("Remote-Auth")) == (str(ada.id), "token")
    else:
        assert ask("/about").header("Remote-User") in ("", None)
    if page == 403:
        assert reply.message == "Token lacks the scope verify"


@pytest.mark.parametrize("way", ["bearer", "basic"])
def test_no_application_gets_a_token_with_a_typing_mistake(behind: Site, way: str) -> None:
    """It is nearly a token: the checksum would help to find the mistake."""
    token = api_token(behind, behind.add(), "verify")
    wrong = token[:20] + ("A" if token[20] != "A" else "B") + token[21:]
    for sent in (wrong, token[:-1], token + "x"):
        headers = {"X-Forwarded-Uri": "/about", "Authorization": credentials(way, sent)}
        reply = behind.client().get(VERIFY, headers=headers)
        assert (reply.status, reply.header("Authorization")) == (200, None)
    other = {"X-Forwarded-Uri": "/about", "Authorization": credentials(way, new_api_token())}
    assert behind.client().get(VERIFY, headers=other).header("Authorization") == other["Authorization"]


@pytest.mark.parametrize("way", ["bearer", "basic"])
@pytest.mark.parametrize(
    ("theirs", "reaches_it"),
    [
        (f"user_{'A' * 48}", True),
        (f"USR_{'A' * 49}", True),
        (f"usr_{'A' * 35}", True),
        (f"usr_{'A' * 36}", False),
        (f"usr_{'A' * 49}", False),
        (f"usr_{'A' * 124}", False),
    ],
)
def test_a_token_of_the_application_reaches_it_unless_it_looks_like_one_with_a_mistake(
    behind: Site, way: str, theirs: str, reaches_it: bool
) -> None:
    headers = {"X-Forwarded-Uri": "/about", "Authorization": credentials(way, theirs)}
    reply = behind.client().get(VERIFY, headers=headers)
    passed_on = {True: headers["Authorization"], False: None}[reaches_it]
    assert (reply.status, reply.header("Authorization")) == (200, passed_on)


def credentials(way: str, token: str) -> str:
    if way == "bearer":
        return f"Bearer {token}"
    return "Basic " + b64encode(f"ada@example.com:{token}".encode()).decode()


@pytest.fixture
def gated(behind: Site) -> Iterator[int]:
    with hosting(Hosted(app=Gate(application, behind.service))) as port:
        yield port


@pytest.mark.parametrize(("scopes", "ranges", "page", "public"), KINDS)
def test_the_gate_lets_in_the_tokens_with_the_scope_verify(
    behind: Site, gated: int, scopes: tuple[str, ...], ranges: tuple[str, ...], page: int, public: int
) -> None:
    token = api_token(behind, behind.add(), *scopes, ranges=ranges)
    client = Client(gated, headers={"Authorization": f"Bearer {token}", "X-Forwarded-For": "10.1.2.3"})
    # Without a session an API is a 401, and a page leads to the login.
    assert answers(client.post) == (page, public)
    reply = client.get("/about")
    known = reply.json["user"]
    if page == 200:
        assert (known["email"], known["auth"]) == ("ada@example.com", ["token"])
    else:
        assert known is None
    if page == 403:
        assert client.get("/page").message == "Token lacks the scope verify"


def test_a_token_of_before_opens_what_it_opened(behind: Site, gated: int) -> None:
    older, ada = "A" * 43, behind.add()
    with behind.service.store.write() as tx:
        tx.add_token(ada.id, digest(older), kind=TokenKind.API, name="before")
    sent = {"X-Forwarded-Uri": "/page", "Authorization": f"Bearer {older}"}
    reply = behind.client().get(VERIFY, headers=sent)
    assert (reply.status, reply.header("Remote-Auth")) == (200, "token")
    assert Client(gated, headers=sent).get("/page").json["user"]["auth"] == ["token"]
    assert behind.client().get("/api/users/me/factors", headers=sent).status == 403
    assert behind.client().get("/api/users/me/sessions", headers=sent).status == 200
