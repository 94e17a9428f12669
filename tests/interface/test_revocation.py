"""Stop means stop: whatever ends or changes a user, over HTTP or by a command in another process, holds at the next request
on every surface: by cookie and by bearer, at the API, for forward authentication and behind the gate."""

import re
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from typing import Any

import pytest
from support.commands import OPERATOR, PASSWORD, Command
from support.web import Client, Site, application, hosting

from usersctl.mail.kinds import PASSWORD_CHANGED, RESET, Kind
from usersctl.models import User
from usersd.gate import Gate
from usersd.server.connections import Hosted

ME = "/api/users/me"
VERIFY = "/api/users/auth/verify"
NEW = "another horse battery"


class Surfaces:
    """One user, signed in with a session cookie, a persistent cookie and an API token."""

    def __init__(self, site: Site, gate: int) -> None:
        self.site = site
        self.ada = site.add()
        self.bea = site.add("bea")
        self.root = site.add("root", role="admin")
        opened = site.service.sessions.create_api_token(self.ada.id, name="ci", lifetime=None, by=OPERATOR)
        self.api_token = opened
        self.cookie = site.signed_in(self.ada)
        self.persistent = site.signed_in(self.ada, rememberMe=True)
        self.bearer = Client(site.port, headers={"Authorization": f"Bearer {opened.token}"})
        self.admin = site.signed_in(self.root)
        self.bystander = site.signed_in(self.bea)
        self.gate = gate
        assert self.statuses() == ALL
        assert self.bystander.get(ME).status == 200

    def who(self) -> list[Client]:
        return [self.cookie, self.persistent, self.bearer]

    def behind_the_gate(self) -> list[Client]:
        return [Client(self.gate, dict(client.cookies), dict(client.headers)) for client in self.who()]

    def statuses(self) -> list[int]:
        """Of each of the three: at the API, for forward authentication, and at the gate."""
        at_api = [client.get(ME).status for client in self.who()]
        verified = [client.get(VERIFY).status for client in self.who()]
        return [*at_api, *verified, *(client.get("/api/x").status for client in self.behind_the_gate())]

    def link(self, kind: Kind) -> str:
        return (
            self.site.service.outbox.link(kind, self.ada, by=OPERATOR)
            .partition("token=")[2]
            .partition("&")[0]
        )


ALL, NONE = [200] * 9, [401] * 9
# Without the API token, the third of each surface.
BUT_THE_TOKEN = [200, 200, 401] * 3


@pytest.fixture
def surfaces(site: Site) -> Iterator[Surfaces]:
    with ExitStack() as stack:
        port = stack.enter_context(hosting(Hosted(app=Gate(application, site.service))))
        yield Surfaces(site, port)


def over_http(surfaces: Surfaces, what: str) -> None:
    path = f"/api/users/{surfaces.ada.id}"
    body = {
        "token": surfaces.link(RESET),
        "email": surfaces.ada.email,
        "password": NEW,
        "password_confirmation": NEW,
    }
    asked = {
        "deactivate": lambda: surfaces.admin.patch(path, {"active": False}),
        "delete": lambda: surfaces.admin.delete(path),
        "password": lambda: surfaces.site.client().post("/api/users/password/reset", body),
        "revoke": lambda: surfaces.admin.delete(f"{path}/sessions"),
        "not me": lambda: surfaces.site.client().post(
            "/api/users/not-me", {"token": surfaces.link(PASSWORD_CHANGED), "email": surfaces.ada.email}
        ),
    }
    assert asked[what]().status == 200


def by_command(usersctl: Command, what: str) -> None:
    words = {
        "deactivate": ["deactivate", "ada@example.com"],
        "delete": ["delete", "--yes", "ada@example.com"],
        "password": ["set-password", "ada@example.com", "--password-stdin"],
        "revoke": ["token", "revoke", "ada@example.com"],
    }
    usersctl.ok(*words[what], stdin=f"{NEW}\n")


@pytest.mark.parametrize(
    ("way", "what", "login"),
    [
        ("http", "deactivate", 403),
        ("http", "delete", 401),
        ("http", "password", 401),
        ("http", "revoke", 200),
        ("http", "not me", 401),
        ("command", "deactivate", 403),
        ("command", "delete", 401),
        ("command", "password", 401),
        ("command", "revoke", 200),
    ],
)
def test_ending_a_user_ends_every_kind_of_session(
    surfaces: Surfaces, usersctl: Command, way: str, what: str, login: int
) -> None:
    if way == "http":
        over_http(surfaces, what)
    else:
        by_command(usersctl, what)
    assert surfaces.statuses() == NONE
    assert surfaces.bystander.get(ME).status == 200
    assert surfaces.site.client().login("ada@example.com", PASSWORD).status == login


@pytest.mark.slow
def test_a_lockdown_ends_all_sessions_and_opens_for_api_tokens_again_when_it_is_over(
    surfaces: Surfaces, usersctl: Command
) -> None:
    usersctl.ok("lockdown", "on", "--yes", "--except", "root@example.com")
    assert surfaces.statuses() == NONE
    assert surfaces.bystander.get(ME).status == surfaces.admin.get(ME).status == 401
    assert surfaces.site.client().login("ada@example.com", PASSWORD).status == 503
    assert surfaces.site.client().login("root@example.com", PASSWORD).status == 200
    usersctl.ok("lockdown", "off")
    assert surfaces.statuses() == [401, 401, 200] * 3
    assert surfaces.site.client().login("ada@example.com", PASSWORD).status == 200


@pytest.mark.parametrize("way", ["http", "command"])
def test_one_revoked_token_leaves_the_others(surfaces: Surfaces, usersctl: Command, way: str) -> None:
    number = surfaces.api_token.session.id
    if way == "http":
        assert surfaces.cookie.delete(f"{ME}/sessions/{number}").status == 200
    else:
        usersctl.ok("token", "revoke", "--id", str(number))
    assert surfaces.statuses() == BUT_THE_TOKEN


def test_a_logout_ends_its_own_session_only(surfaces: Surfaces) -> None:
    before = dict(surfaces.cookie.cookies)
    assert surfaces.cookie.delete("/api/users/session").status == 200
    surfaces.cookie.cookies |= before
    assert surfaces.statuses() == [401, 200, 200] * 3


def test_a_check_after_a_logout_on_its_connection_is_refused_while_others_are_answered(site: Site) -> None:
    """Checks that come together are answered from one snapshot, and this one comes after it."""
    ada, others = site.add(), 12

    def request(method: str, path: str, token: str) -> bytes:
        return f"{method} {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token}\r\n\r\n".encode()

    def statuses(connection: socket.socket, count: int) -> list[bytes]:
        got = b""  # it may begin with the end of an earlier answer
        while len(found := re.findall(rb"HTTP/1.1 (\d+)", got)) < count:
            got += connection.recv(65536)
        return found

    def token() -> str:
        return site.service.sessions.create_api_token(ada.id, name="x", lifetime=None, by=OPERATOR).token

    lasting = request("GET", ME, token())
    with ExitStack() as stack:
        connect = partial(socket.create_connection, ("127.0.0.1", site.port), 20)
        one, *rest = (stack.enter_context(connect()) for _ in range(1 + others))
        for _ in range(50):
            ended = token()
            one.sendall(request("DELETE", "/api/users/session", ended) + request("GET", ME, ended))
            for connection in rest:
                connection.sendall(lasting * 3)
            assert statuses(one, 2) == [b"200", b"401"]
            for connection in rest:
                assert statuses(connection, 3) == [b"200"] * 3


def test_a_password_that_its_owner_changes_ends_the_other_sessions_and_tokens(surfaces: Surfaces) -> None:
    before = dict(surfaces.cookie.cookies)
    body = {"currentPassword": PASSWORD, "newPassword": NEW, "newPasswordConfirmation": NEW}
    assert surfaces.cookie.patch("/api/users/password", body).status == 200
    assert surfaces.statuses() == [200, 401, 401] * 3
    surfaces.cookie.cookies |= before
    assert surfaces.statuses() == NONE


@pytest.mark.parametrize("way", ["http", "command"])
def test_a_new_role_counts_at_once_and_ends_no_session(
    surfaces: Surfaces, usersctl: Command, way: str
) -> None:
    for role, status in (("admin", 200), ("user", 403)):
        if way == "http":
            assert surfaces.admin.patch(f"/api/users/{surfaces.ada.id}", {"role": role}).status == 200
        else:
            usersctl.ok("update", "ada@example.com", "--role", role)
        for client in surfaces.who():
            assert client.get("/api/users").status == status
            assert client.get(f"{VERIFY}?role=admin").status == status
            assert client.get(VERIFY).header("Remote-Role") == role
        for client in surfaces.behind_the_gate():
            assert client.get("/api/x").json["user"]["role"] == role


@pytest.mark.slow
@pytest.mark.parametrize("way", ["http", "command"])
def test_a_group_counts_at_once_and_no_longer_than_its_membership(
    surfaces: Surfaces, usersctl: Command, way: str
) -> None:
    usersctl.ok("group", "create", "staff")
    groups = f"/api/users/{surfaces.ada.id}/groups"

    def change(*command: str, method: str, path: str, body: dict[str, Any] | None = None) -> None:
        if way == "command":
            usersctl.ok("group", *command)
        else:
            assert surfaces.admin.send(method, path, body).status == 200

    def check(expected: list[str], status: int) -> None:
        for client in surfaces.who():
            assert client.get(f"{VERIFY}?group=staff").status == status
            assert client.get(VERIFY).header("Remote-Groups") == ",".join(expected)
        for client in surfaces.behind_the_gate():
            assert client.get("/api/x").json["user"]["groups"] == expected

    check([], 403)
    change("add", "staff", "ada@example.com", method="PUT", path=groups, body={"groups": ["staff"]})
    check(["staff"], 200)
    change("remove", "staff", "ada@example.com", method="PUT", path=groups, body={"groups": []})
    check([], 403)
    change("add", "staff", "ada@example.com", method="PUT", path=groups, body={"groups": ["staff"]})
    change("delete", "staff", "--yes", method="DELETE", path="/api/groups/staff")
    check([], 403)


def test_activation_allows_a_new_sign_in_but_restores_no_session(
    surfaces: Surfaces, usersctl: Command
) -> None:
    usersctl.ok("deactivate", "ada@example.com")
    usersctl.ok("activate", "ada@example.com")
    assert surfaces.statuses() == NONE
    assert surfaces.site.client().login("ada@example.com", PASSWORD).status == 200


def test_a_change_of_name_and_address_is_seen_at_once(surfaces: Surfaces, usersctl: Command) -> None:
    usersctl.ok("update", "ada@example.com", "--name", "Countess", "--email", "countess@example.com")
    seen = [surfaces.cookie.get(ME), surfaces.behind_the_gate()[0].get("/api/x")]
    assert [(answer.json["user"]["name"], answer.json["user"]["email"]) for answer in seen] == [
        ("Countess", "countess@example.com")
    ] * 2
    verified = surfaces.cookie.get(VERIFY)
    assert (verified.header("Remote-Name"), verified.header("Remote-Email")) == (
        "Countess",
        "countess@example.com",
    )


def test_a_token_that_the_command_made_signs_in_at_once(site: Site, usersctl: Command) -> None:
    ada: User = site.add()
    printed = usersctl.ok("--json", "token", "create", ada.email, "--no-expiry").json
    client = site.client(headers={"Authorization": f"Bearer {printed['token']}"})
    assert client.get(ME).json["user"]["id"] == ada.id
