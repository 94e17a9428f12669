"""The trail: each change of an account is noted once, with who, what, whom, when and from where, and nothing secret."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.accounts import change_password
from support.commands import OPERATOR, PASSWORD
from support.fakes import FakeClock
from support.tables import audit, written

from usersctl.clock import stamp
from usersctl.errors import (
    NotFound,
    Unauthenticated,
)
from usersctl.models import Actor, AuditRow, Client, User
from usersctl.secrets import digest
from usersctl.service import Service

ANY_TEXT = st.text(st.characters(codec=None, exclude_categories=()))
SAME_SERVICE = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
ME = Actor("user:2", "192.0.2.9", 2, digest("my token"), as_admin=True)


@pytest.mark.parametrize(
    ("change", "action", "details"),
    [
        (
            lambda a, _: a.create(a.newcomer("new@example.com", "New"), PASSWORD, by=ME),
            "create",
            {"role": "user", "active": True},
        ),
        (lambda a, u: a.update(u.id, name="X", by=ME), "update", {"name": "X"}),
        (
            lambda a, u: a.update(u.id, email="x@example.com", by=ME),
            "update",
            {"email": "x@example.com", "old_email": "ada@example.com"},
        ),
        (lambda a, u: a.update(u.id, role="admin", by=ME), "update", {"role": "admin"}),
        (
            lambda a, u: a.update(u.id, name="X", role="admin", active=False, by=ME),
            "update",
            {"name": "X", "role": "admin", "active": False},
        ),
        (lambda a, u: a.set_active([u.id], active=False, by=ME), "deactivate", {"active": False}),
        (lambda a, u: a.update(u.id, active=False, by=ME), "deactivate", {"active": False}),
        (
            lambda a, u: a.update(u.id, email="x@example.com", active=False, by=ME),
            "update",
            {"email": "x@example.com", "old_email": "ada@example.com", "active": False},
        ),
        (lambda a, u: a.delete([u.id], by=ME), "delete", {}),
        (lambda a, u: a.set_password(u.id, "another sentence", by=ME), "set-password", {}),
    ],
    ids=[
        "create",
        "name",
        "email",
        "role",
        "all",
        "deactivate",
        "active",
        "email and active",
        "delete",
        "password",
    ],
)
def test_each_change_has_one_audit_row_with_actor_action_account_time_and_origin(
    service: Service,
    add: Callable[..., User],
    clock: FakeClock,
    change: Callable[[Any, User], Any],
    action: str,
    details: dict[str, Any],
) -> None:
    user = add("ada")
    me = add("me", role="admin")
    with service.store.write() as tx:
        tx.add_token(me.id, digest("my token"), kind="session", name="login")
    clock.move(minutes=5)
    changed = change(service.accounts, user)
    changed = changed[0] if isinstance(changed, list) else changed
    changed = changed if isinstance(changed, User) else changed[-1]  # as it was before, and as it is now
    (row,) = audit(service)[2:]
    assert row == AuditRow(
        3, stamp(clock()), "user:2", "192.0.2.9", action, changed.id, changed.email, details, row.hash
    )


def test_a_change_of_several_users_has_an_audit_row_for_each(
    service: Service, add: Callable[..., User]
) -> None:
    ids = [add(name).id for name in ("ada", "bob")]
    service.accounts.delete(ids, by=OPERATOR)
    assert [(row.action, row.user_id) for row in audit(service)[2:]] == [("delete", 1), ("delete", 2)]


def test_the_audit_can_be_filtered_by_user_and_time(
    service: Service, add: Callable[..., User], clock: FakeClock
) -> None:
    ids = [add(name).id for name in ("ada", "bob")]
    clock.move(days=1)
    service.accounts.delete(ids, by=OPERATOR)
    with service.store.read() as tx:
        assert [row.action for row in tx.audit_rows(user_id=1)] == ["create", "delete"]
        assert [row.user_id for row in tx.audit_rows(since=stamp(clock()))] == [1, 2]
        assert [row.id for row in tx.audit_rows(user_id=2, since=stamp(clock()))] == [4]


@pytest.mark.sqlite  # a file keeps what was deleted
def test_no_secret_is_anywhere_in_the_files(service: Service, add: Callable[..., User]) -> None:
    secrets = [
        "planted first password",
        "planted second password",
        "planted wrong password",
        "planted third password",
    ]
    user = add("ada", password=secrets[0])
    opened = service.sessions.login(user.email, secrets[0], client=Client(user_agent="planted agent"))
    secrets.append(opened.token)
    with pytest.raises(Unauthenticated):
        service.sessions.login(user.email, secrets[2])
    with pytest.raises(Unauthenticated):
        service.sessions.login(secrets[2], secrets[2])
    secrets.append(change_password(service, opened, secrets[0], secrets[1]))
    service.accounts.set_password(user.id, secrets[3], by=OPERATOR)
    api = service.sessions.create_api_token(user.id, name="planted name", lifetime=None, by=OPERATOR)
    secrets.append(api.token)
    service.sessions.check(api.token)
    service.sessions.revoke(api.session.id, by=OPERATOR)
    service.accounts.delete([user.id], by=OPERATOR)
    held = written(service)
    assert b"planted agent" in held  # the search finds what is there
    assert b"planted name" in held
    for secret in secrets:
        assert secret.encode() not in held
        assert secret.encode()[:12] not in held.replace(b"planted agent", b"").replace(b"planted name", b"")


def test_text_of_users_is_stored_unchanged_also_in_the_audit(
    service: Service, add: Callable[..., User]
) -> None:
    name = 'Ünï "quoted" \\ \'); DROP TABLE users; -- {} % 🦊'
    user = service.accounts.update(add("ada").id, name=name, by=OPERATOR)
    assert user.name == name
    assert audit(service)[-1].details == {"name": name}
    assert json.dumps(user.as_json())


@SAME_SERVICE
@given(reference=ANY_TEXT)
def test_no_reference_breaks_the_look_up(service: Service, reference: str) -> None:
    with pytest.raises(NotFound):
        service.accounts.find(reference)
