"""The endpoints of the task runner, through a real socket."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from support.commands import OPERATOR
from support.fakes import FakeClock
from support.web import Client, Site

TASKS = "/_tasks/"
CLEANUP = "/_tasks/users:cleanup-tokens"


@pytest.fixture
def admin(site: Site) -> Client:
    return site.signed_in(site.add("root", role="admin"))


def test_the_tasks_and_their_schedule_are_listed(admin: Client) -> None:
    reply = admin.get(TASKS)
    assert reply.status == 200
    assert reply.json == {
        "tasks": {"users:cleanup-tokens": {"description": "Delete expired tokens"}},
        "scheduledTasks": [{"cron": "0 2 * * *", "tasks": ["users:cleanup-tokens"]}],
    }


def test_a_schedule_that_is_off_leaves_the_task_runnable(make_site: Callable[..., Site]) -> None:
    site = make_site(cleanup_schedule=None)
    admin = site.signed_in(site.add("root", role="admin"))
    reply = admin.get(TASKS)
    assert reply.json["scheduledTasks"] == []
    assert list(reply.json["tasks"]) == ["users:cleanup-tokens"]
    assert admin.post(CLEANUP).json["result"] == "success"


@pytest.mark.parametrize(
    ("body", "endless"),
    [
        (None, False),
        ({}, False),
        ({"includeNoExpiration": False}, False),
        ({"includeNoExpiration": True}, True),
        ({"include_no_expiration": True}, False),
    ],
)
def test_a_cleanup_returns_the_true_counts(site: Site, clock: FakeClock, body: Any, endless: bool) -> None:
    root = site.add("root", role="admin")
    for _ in range(3):
        site.signed_in(root)
    tokens = [
        site.service.sessions.create_api_token(root.id, name="ci", lifetime=lifetime, by=OPERATOR).token
        for lifetime in (timedelta(hours=1), timedelta(days=9), None, None)
    ]
    clock.move(days=2)
    admin = site.signed_in(root)
    reply = admin.post(CLEANUP, body)
    assert reply.status == 200
    assert reply.json == {
        "result": "success",
        "expiredTokensRemoved": 4,
        "noExpirationTokensRemoved": 2 if endless else 0,
        "totalTokensCleaned": 6 if endless else 4,
        "includeNoExpiration": endless,
    }
    works = [
        site.client(headers={"Authorization": f"Bearer {token}"}).get("/api/users/me").status
        for token in tokens
    ]
    assert works == [401, 200, 401, 401] if endless else [401, 200, 200, 200]
    again = admin.post(CLEANUP, body).json
    assert (again["expiredTokensRemoved"], again["totalTokensCleaned"]) == (0, 0)


def test_a_cleanup_of_tokens_without_an_expiry_takes_that_of_its_caller_at_last(site: Site) -> None:
    root = site.add("root", role="admin")
    token, *_ = [
        site.service.sessions.create_api_token(root.id, name="ci", lifetime=None, by=OPERATOR).token
        for _ in range(3)
    ]
    caller = site.client(headers={"Authorization": f"Bearer {token}"})
    reply = caller.post(CLEANUP, {"includeNoExpiration": True})
    assert (reply.status, reply.json["noExpirationTokensRemoved"]) == (200, 3)
    assert caller.get("/api/users/me").status == 401
    assert site.service.sessions.listed(root.id) == []


@pytest.mark.parametrize("value", [0, 1, "true", "", [], {}, 1.0])
def test_a_flag_that_is_not_a_boolean_is_a_400_and_cleans_nothing(
    admin: Client, site: Site, value: Any
) -> None:
    user = site.add()
    site.service.sessions.create_api_token(user.id, name="ci", lifetime=None, by=OPERATOR)
    reply = admin.post(CLEANUP, {"includeNoExpiration": value})
    assert (reply.status, reply.message) == (400, "includeNoExpiration must be true or false")
    assert len(site.service.sessions.listed(user.id)) == 1


def test_an_unknown_task_is_a_404(admin: Client) -> None:
    for path in ("/_tasks/unknown", "/_tasks/users:cleanup-tokens/", "/_tasks/users:Cleanup-Tokens"):
        assert admin.post(path).status == 404


def test_a_cleanup_is_audited_with_its_actor(admin: Client, site: Site) -> None:
    admin.post(CLEANUP)
    with site.service.store.read() as tx:
        row = list(tx.audit_rows())[-1]
    assert (row.action, row.origin, row.actor[:5]) == ("cleanup-tokens", "127.0.0.1", "user:")
    assert row.details == {"expired": 0, "no_expiration": 0, "include_no_expiration": False}
