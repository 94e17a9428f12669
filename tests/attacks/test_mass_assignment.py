"""Attacks by fields that nobody asked for: no body sets more than its endpoint changes."""

from typing import Any

from support.bodies import CHANGES
from support.commands import PASSWORD
from support.web import Client, Site

MINE = {
    "id": 77, "role": "admin", "active": False, "password_hash": "$2b$04$" + "a" * 53, "created_at": "1999-01-01T00:00:00.000Z",
    "updated_at": "1999-01-01T00:00:00.000Z", "last_login_at": "1999-01-01T00:00:00.000Z", "oauth_id": "me", "oauthId": "me",
    "profile_picture": "http://evil.example/x.png", "email_proven_at": "1999-01-01T00:00:00.000Z", "awaiting_confirmation": True,
    "isAdmin": True, "is_admin": 1, "admin": True, "user": {"role": "admin"}, "permissions": ["*"], "password": "mallory's own one",
    "user_id": 1, "__proto__": {"role": "admin"}, "rounds": 31, "token": "x",
}  # fmt: skip


def everything_of(site: Site, user_id: int) -> dict[str, Any]:
    with site.service.store.read() as tx:
        credentials = tx.credentials_of(user_id)
    assert credentials
    return credentials.user._asdict() | {"password_hash": credentials.password_hash}


def test_a_user_changes_only_the_allowed_fields_of_their_account(open_site: Site) -> None:
    bob = open_site.client()
    bob.login("bob@example.com", PASSWORD)
    before = everything_of(open_site, 2)
    reply = bob.patch("/api/users/me", MINE | {"name": "Robert"})
    assert reply.status == 200
    assert everything_of(open_site, 2) == before | {"name": "Robert"}
    assert bob.patch("/api/users/me", MINE).json["role"] == "user"
    assert bob.get("/api/users").status == 403
    assert bob.patch("/api/users/2", {"role": "admin"}).status == 403
    assert bob.post("/api/users", MINE | {"email": "x@example.com", "name": "X"}).status == 403
    assert everything_of(open_site, 2) == before | {"name": "Robert"}


def test_an_admin_changes_only_the_allowed_fields_of_others(open_site: Site, ada: Client) -> None:
    allowed = {"role": "user", "active": True}
    before = everything_of(open_site, 2)
    assert ada.patch("/api/users/2", MINE | allowed).status == 200
    assert everything_of(open_site, 2) == before

    made = ada.post(
        "/api/users", MINE | allowed | {"email": "x@example.com", "name": "X", "password": PASSWORD}
    )
    user = everything_of(open_site, made.json["user"]["id"])
    assert user["id"] == 3
    assert user["active"] is True
    assert user["oauth_id"] is user["profile_picture"] is user["last_login_at"] is None
    assert user["created_at"] == user["updated_at"] == "2026-11-20T08:22:19.123Z"
    assert open_site.client().login("x@example.com", PASSWORD).status == 200


def test_login_and_password_change_set_no_other_field(open_site: Site) -> None:
    bob = open_site.client()
    before = everything_of(open_site, 2)
    assert (
        bob.post("/api/users/session", MINE | {"email": "bob@example.com", "password": PASSWORD}).status
        == 200
    )
    words = {
        "currentPassword": PASSWORD,
        "newPassword": "another sentence",
        "newPasswordConfirmation": "another sentence",
    }
    assert bob.patch("/api/users/password", MINE | words).status == 200
    after = everything_of(open_site, 2)
    changed = {name for name in before if before[name] != after[name]}
    assert changed <= {"password_hash", "last_login_at", "updated_at"}
    assert everything_of(open_site, 1)["role"] == "admin"
    assert bob.get("/api/users").status == 403


def test_registration_makes_an_inactive_account_with_the_role_user(open_site: Site) -> None:
    assert ("POST", "/api/users/register") in CHANGES
    words = {"email": "eve@example.com", "name": "Eve", "password": PASSWORD}
    reply = open_site.client().post("/api/users/register", MINE | {"active": True} | words)
    assert reply.status == 200
    user = everything_of(open_site, reply.json["user"]["id"])
    assert (user["id"], user["role"], user["active"]) == (3, "user", False)
    assert user["oauth_id"] is user["profile_picture"] is user["email_proven_at"] is None


def test_no_other_endpoint_creates_an_account(open_site: Site) -> None:
    nobody = open_site.client()
    for method, path in (
        ("PUT", "/api/users/me"),
        ("POST", "/api/users/2"),
        ("PUT", "/api/users/2"),
        ("POST", "/api/users/me"),
    ):
        assert nobody.send(method, path, MINE).status == 401
    with open_site.service.store.read() as tx:
        assert tx.counts()["users"] == 2
