"""Attacks with an API token that has scopes: to make a wider one, to end sessions, to read factors, to get at pages."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from ipaddress import ip_network
from typing import Any

import pytest
from support.api_tokens import api_token, bearer
from support.commands import OPERATOR, PASSWORD
from support.factors import add_factors
from support.tables import everything, query
from support.web import Client, Reply, Site

from usersctl.models import User
from usersctl.scopes import Scope

TOKENS = "/api/users/me/tokens"
ALL = tuple(Scope)
BROWSER = {"Accept": "text/html", "Sec-Fetch-Mode": "navigate"}


@pytest.fixture
def root(site: Site) -> User:
    return site.add("root", role="admin")


def holder(site: Site, user: User, *scopes: str, **more: Any) -> Client:
    return bearer(site, api_token(site, user, *scopes, **more))


@pytest.mark.parametrize("scopes", [(), ALL, *((scope,) for scope in ALL)], ids=" ".join)
def test_no_token_makes_lists_or_ends_tokens_of_its_user(
    site: Site, root: User, scopes: tuple[str, ...]
) -> None:
    client = holder(site, root, *scopes)
    (own,) = site.service.sessions.listed(root.id)
    before = everything(site.service)
    for body in (
        {},
        {"name": "wider"},
        {"name": "wider", "scopes": ["me"]},
        {"name": "x", "scopes": list(ALL)},
    ):
        assert client.post(TOKENS, body).status == 403
    assert client.delete(f"{TOKENS}/{own.id}").status == 403
    assert client.get(TOKENS).status == (403 if scopes else 200)
    assert everything(site.service) == before


def test_no_scope_proves_who_the_user_is_to_make_a_token(site: Site, root: User) -> None:
    """A fresh proof belongs to a session, and no token is one."""
    for scopes in ((), ALL):
        client = holder(site, root, *scopes)
        assert client.post("/api/users/session/confirm", {"password": PASSWORD}).status == 403
        assert client.post(TOKENS, {"name": "wider"}).status == 403


@pytest.mark.parametrize("scopes", [(scope,) for scope in ALL if scope != "sessions:write"], ids=" ".join)
def test_only_its_scope_ends_sessions(site: Site, root: User, scopes: tuple[str, ...]) -> None:
    ada = site.add()
    theirs, mine = site.signed_in(ada), site.signed_in(root)
    (session,) = site.service.sessions.listed(ada.id)
    client = holder(site, root, *scopes)
    for path in (
        f"/api/users/{ada.id}/sessions",
        f"/api/users/{ada.id}/sessions/{session.id}",
        f"/api/users/{root.id}/sessions",
        f"/api/users/me/sessions/{session.id}",
    ):
        assert client.delete(path).status == 403, path
    assert client.post("/api/users/me/sessions/end-others", {}).status == 403
    assert [each.get("/api/users/me").status for each in (theirs, mine)] == [200, 200]


def test_with_its_scope_a_token_ends_the_sessions_of_others_only(site: Site, root: User) -> None:
    ada = site.add()
    theirs, mine = site.signed_in(ada), site.signed_in(root)
    client = holder(site, root, "sessions:write")
    assert client.delete(f"/api/users/{ada.id}/sessions").status == 200
    refused = client.delete(f"/api/users/{root.id}/sessions")
    assert (refused.status, refused.message) == (403, "Sign in to change this")
    assert [each.get("/api/users/me").status for each in (theirs, mine)] == [401, 200]


@pytest.mark.parametrize("scopes", [ALL, *((scope,) for scope in ALL)], ids=" ".join)
def test_factors_and_identities_are_closed_to_every_scope(
    site: Site, root: User, scopes: tuple[str, ...]
) -> None:
    ada = site.add()
    for user in (ada, root):
        add_factors(site.service, user.id)
    client = holder(site, root, *scopes)
    before = query(site.service, "SELECT * FROM passkeys")
    asked: list[Reply] = [
        client.get("/api/users/me/factors"),
        client.post("/api/users/me/totp", {}),
        client.delete("/api/users/me/totp"),
        client.post("/api/users/me/passkeys/options", {}),
        client.post("/api/users/me/recovery-codes", {}),
        client.delete(f"/api/users/{ada.id}/factors"),
        client.delete(f"/api/users/{root.id}/factors"),
        client.get("/api/users/me/identities"),
        client.patch("/api/users/password", {"currentPassword": PASSWORD}),
        client.post("/api/users/session/passkey/options", {}),
    ]
    assert {reply.status for reply in asked} == {403}
    assert query(site.service, "SELECT * FROM passkeys") == before


@pytest.mark.parametrize("scopes", [ALL, *((scope,) for scope in ALL)], ids=" ".join)
def test_pages_are_closed_to_every_scope(site: Site, root: User, scopes: tuple[str, ...]) -> None:
    client = holder(site, root, *scopes)
    for path in ("/users", f"/users/{root.id}", "/users/groups", "/account", "/", "/overview", "/audit"):
        for headers in ({}, BROWSER):
            reply = client.get(path, headers=headers)
            assert reply.status == 403, path
            assert b"root@example.com" not in reply.body


@pytest.mark.parametrize("scope", [scope for scope in ALL if not scope.startswith("users:")])
def test_no_other_scope_reads_or_changes_users(site: Site, root: User, scope: str) -> None:
    ada, client = site.add(), holder(site, root, scope)
    before = everything(site.service)
    assert {
        client.get("/api/users").status,
        client.get(f"/api/users/{ada.id}").status,
        client.get("/api/audit").status,
        client.get("/api/groups").status,
        client.patch(f"/api/users/{ada.id}", {"role": "admin"}).status,
        client.delete(f"/api/users/{ada.id}").status,
        client.post("/api/users/bulk", {"ids": [ada.id], "action": "delete"}).status,
    } == {403}
    assert everything(site.service) == before


def test_reading_is_not_writing_in_any_spelling(site: Site, root: User) -> None:
    ada, client = site.add(), holder(site, root, "users:read")
    before = everything(site.service)
    for headers in (
        {"X-HTTP-Method-Override": "DELETE"},
        {"X-HTTP-Method": "DELETE"},
        {"X-Method-Override": "DELETE"},
        {"X-Scope": "users:write"},
        {"Scope": "users:write"},
    ):
        assert client.get(f"/api/users/{ada.id}", headers=headers).status == 200
        assert client.post(f"/api/users/{ada.id}", {"scopes": list(ALL)}, headers=headers).status == 405
    for path in (
        f"/api/users/{ada.id}",
        f"//api/users/{ada.id}",
        f"/api/users/%3{ada.id}",
        "/api/users/%6de",
    ):
        reply = client.delete(f"{path}?scope=users:write&scopes=users:write")
        assert reply.status in (400, 401, 403, 404, 405), path
    assert everything(site.service) == before


def test_a_token_in_the_cookie_has_the_same_limits(site: Site, root: User) -> None:
    token = api_token(site, root, "me")
    client = site.client(cookies={"auth_token": token})
    assert client.get("/api/users/me").status == 200
    assert client.get("/api/users").message == "Token lacks the scope users:read"
    assert client.get(f"/users/{root.id}").status == 403
    assert client.post(TOKENS, {"name": "wider"}).status == 403


def test_two_tokens_of_one_request_do_not_add_up(site: Site, root: User) -> None:
    client = holder(site, root, "me")
    client.cookies["auth_token"] = api_token(site, root, "users:read")
    assert client.get("/api/users/me").status == 200
    assert client.get("/api/users").message == "Token lacks the scope users:read"


def test_a_token_that_signs_in_opens_no_wider_session(site: Site, root: User) -> None:
    """The password does, but the token is no part of it."""
    client = holder(site, root, "me")
    assert client.login(root.email, "wrong").status == 401
    assert client.get("/api/users").status == 403
    assert not client.cookies


def test_a_role_that_is_taken_away_counts_at_the_next_request(site: Site, root: User) -> None:
    client = holder(site, root, "users:write", "tasks")
    assert client.get("/api/users").status == 200
    site.add("other", role="admin")
    site.service.accounts.update(root.id, role="user", by=OPERATOR)
    assert client.get("/api/users").status == 403
    assert client.get("/_tasks/").status == 403


def test_a_stolen_token_does_nothing_from_elsewhere_whatever_it_says_of_itself(
    make_site: Callable[..., Site],
) -> None:
    site = make_site(trusted_proxies=(ip_network("192.0.2.1/32"),))
    root = site.add("root", role="admin")
    client = holder(site, root, *ALL, ranges=("10.0.0.0/8",))
    before = everything(site.service)
    for headers in (
        {},
        {"X-Forwarded-For": "10.0.0.1"},
        {"X-Real-IP": "10.0.0.1"},
        {"Forwarded": "for=10.0.0.1"},
        {"X-Client-IP": "10.0.0.1"},
        {"CF-Connecting-IP": "10.0.0.1"},
        {"Via": "1.1 10.0.0.1"},
    ):
        for method, path in (("GET", "/api/users"), ("GET", "/api/users/me"), ("DELETE", "/api/users/1")):
            reply = client.send(method, path, headers=headers)
            assert (reply.status, reply.message) == (401, "Authentication required")
        client.delete("/api/users/session", headers=headers)  # which is always answered alike
    site.service.sessions.uses.write()
    assert everything(site.service) == before, "no use was noted"


def test_a_sign_in_elsewhere_does_not_end_a_stolen_token(site: Site, root: User) -> None:
    """It ends the session that its browser had, and the thief has put the token there."""
    eve = site.add("eve")
    elsewhere, here = (api_token(site, root, ranges=(place,)) for place in ("10.0.0.0/8", "127.0.0.0/8"))
    for token in (elsewhere, here):
        thief = site.client(cookies={"auth_token": token})
        assert thief.login(eve.email, PASSWORD).json["user"]["id"] == eve.id
    (left,) = site.service.sessions.listed(root.id)
    assert left.ranges == "10.0.0.0/8"
    assert query(site.service, "SELECT user_id FROM audit WHERE action = 'sign-out'") == [(root.id,)]


def test_an_address_out_of_range_answers_like_an_unknown_token(site: Site, root: User) -> None:
    elsewhere = holder(site, root, ranges=("10.0.0.0/8",)).get("/api/users")
    unknown = bearer(site, "A" * 43).get("/api/users")
    assert (elsewhere.status, elsewhere.body) == (unknown.status, unknown.body)


def test_a_flood_of_tokens_meets_the_limit_on_own_changes(make_site: Callable[..., Site]) -> None:
    site = make_site(own_changes_per_hour=5)
    client = site.signed_in(site.add())
    statuses = [client.post(TOKENS, {"name": "ci"}).status for _ in range(8)]
    assert statuses == [200] * 5 + [429] * 3


def test_a_session_that_ends_meanwhile_makes_no_token(site: Site, root: User) -> None:
    client = site.signed_in(root)
    with ThreadPoolExecutor(8) as pool:
        made = [pool.submit(client.post, TOKENS, {"name": "ci"}) for _ in range(16)]
        site.service.sessions.revoke_all([root.id], by=OPERATOR)
        replies = [each.result() for each in made]
    assert {reply.status for reply in replies} <= {200, 401}
    for reply in replies:
        if reply.status == 200:
            client = bearer(site, reply.json["token"])
            assert client.get("/api/users/me").status == 401, "it ended with all of the user's"
