"""Attacks on the change of many users at once: by callers without the right, on the last admins, and in a race."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from support.commands import OPERATOR
from support.tables import everything, query
from support.web import Client, Reply, Site

from usersctl.models import User

BULK = "/api/users/bulk"
ACTIONS = ("activate", "deactivate", "end-sessions", "delete", "invite", "add-group", "remove-group")


@pytest.fixture
def root(site: Site) -> User:
    site.service.groups.create("admins", by=OPERATOR)
    return site.add("root", role="admin")


def send(client: Client, users: list[User], action: str, **more: Any) -> Reply:
    body = {"ids": [user.id for user in users], "action": action, "group": "admins"}
    return client.post(BULK, body, **more)


@pytest.mark.parametrize("action", ACTIONS)
def test_only_an_admin_changes_many_users(site: Site, root: User, action: str) -> None:
    eve, ada = site.add("eve"), site.add()
    user = site.signed_in(eve)
    before = everything(site.service)
    for users in ([ada], [eve], [root, ada, eve]):
        assert send(user, users, action).status == 403
        assert send(site.client(), users, action).status == 401
    assert everything(site.service) == before


@pytest.mark.parametrize("action", ACTIONS)
def test_another_site_changes_no_users(site: Site, root: User, action: str) -> None:
    ada, admin = site.add(), site.signed_in(root)
    before = everything(site.service)
    for headers in (
        {"Sec-Fetch-Site": "cross-site"},
        {"Origin": "https://evil.example"},
        {"Sec-Fetch-Site": "same-site"},
    ):
        assert send(admin, [ada], action, headers=headers).status == 403
    # As a form of another site would send it.
    raw = b'{"ids": [%d], "action": "delete"}' % ada.id
    assert admin.post(BULK, raw=raw, headers={"Content-Type": "text/plain"}).status == 415
    assert everything(site.service) == before


@pytest.mark.parametrize("action", ["deactivate", "delete"])
def test_the_last_admins_are_not_lost_in_one_change_of_many(site: Site, root: User, action: str) -> None:
    admins = [site.add(f"admin{number}", role="admin") for number in range(3)]
    ada = site.add()
    admin = site.signed_in(root)
    before = everything(site.service)
    reply = send(admin, [ada, *admins, root], action)
    assert reply.status == (403 if action == "deactivate" else 400), reply
    assert everything(site.service) == before
    assert send(admin, [ada, *admins], action).json == {"changed": 4}
    assert site.service.first_admin.needed() is False


def test_an_admin_does_not_change_whether_their_own_account_is_active(site: Site, root: User) -> None:
    site.add("second", role="admin")
    ada, admin = site.add(), site.signed_in(root)
    before = everything(site.service)
    reply = send(admin, [ada, root], "deactivate")
    assert (reply.status, reply.message) == (403, "You cannot change your own active status")
    assert everything(site.service) == before


@pytest.mark.parametrize("action", ACTIONS)
def test_an_api_token_does_not_reach_its_own_user_through_a_change_of_many(
    site: Site, root: User, action: str
) -> None:
    site.add("second", role="admin")
    ada = site.add()
    token = site.service.sessions.create_api_token(root.id, name="ci", lifetime=None, by=OPERATOR).token
    client = site.client(headers={"Authorization": f"Bearer {token}"})
    before = everything(site.service)
    reply = send(client, [ada, root], action)
    assert (reply.status, reply.message) == (403, "Sign in to change this")
    assert everything(site.service) == before
    assert send(client, [ada], action).status == (400 if action == "invite" else 200)


@pytest.mark.parametrize("action", ["deactivate", "delete"])
def test_admins_who_remove_one_another_at_once_leave_one(make_site: Callable[..., Site], action: str) -> None:
    site = make_site(limits_enabled=False)
    for number in range(8):
        pair = [site.add(f"{name}{number}", role="admin") for name in "ab"]
        admins = {user_id for (user_id,) in query(site.service, "SELECT id FROM users WHERE role = 'admin'")}
        site.service.accounts.delete(sorted(admins - {user.id for user in pair}), by=OPERATOR)
        clients = [site.signed_in(user) for user in pair]
        barrier = threading.Barrier(2)

        def remove(client: Client, victim: User, barrier: threading.Barrier = barrier) -> int:
            barrier.wait()
            return send(client, [victim], action).status

        with ThreadPoolExecutor(2) as pool:
            statuses = list(pool.map(remove, clients, pair[::-1]))
        assert sorted(statuses) in ([200, 401], [200, 400]), statuses
        with site.service.store.read() as tx:
            assert tx.active_admins() == 1


def test_ids_that_are_no_numbers_reach_no_user(site: Site, root: User) -> None:
    ada, admin = site.add(), site.signed_in(root)
    before = everything(site.service)
    for odd in (
        f"{ada.id}",
        f" {ada.id}",
        float(ada.id),
        -ada.id,
        [ada.id],
        {"id": ada.id},
        True,
        "1 OR 1=1",
        "\u0662",
        2**63,
        2**64 + ada.id,
    ):
        reply = admin.post(BULK, {"ids": [odd], "action": "delete"})
        assert (reply.status, reply.message) == (400, "Invalid user id"), odd
    raw = b'{"ids": [%d], "ids": [%d], "action": "delete"}' % (root.id, ada.id)
    assert admin.post(BULK, raw=raw, headers={"Content-Type": "application/json"}).status == 400
    assert everything(site.service) == before
