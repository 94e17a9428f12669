"""DELETE /api/users/ID/factors: an admin takes second factors away from a user who has lost them."""

import pytest
from support.commands import OPERATOR, PASSWORD
from support.factors import add_authenticator_apps, add_factors
from support.fakes import FakeClock
from support.tables import audit, query, store_hash
from support.web import Client, Site

from usersctl.models import User


@pytest.fixture
def bob(site: Site) -> User:
    return site.add("bob")


@pytest.fixture
def root(site: Site) -> User:
    return site.add("root", role="admin")


@pytest.fixture
def admin(site: Site, root: User) -> Client:
    return site.signed_in(root)


def path_of(user: User) -> str:
    return f"/api/users/{user.id}/factors"


def factors_of(site: Site, user: User) -> int:
    ((factors,),) = query(site.service, "SELECT factors FROM users WHERE id = ?", user.id)
    return int(factors)


def test_an_admin_takes_all_factors_of_a_user_away(site: Site, admin: Client, bob: User, root: User) -> None:
    phone = site.signed_in(bob)
    add_factors(site.service, bob.id)
    done = admin.delete(path_of(bob))
    assert (done.status, done.json) == (200, {"success": True})
    assert factors_of(site, bob) == 0
    assert query(site.service, "SELECT * FROM recovery_codes") == []
    assert phone.get("/api/users/me").status == 401
    assert query(site.service, "SELECT kind, email FROM outbox") == [("factors-reset", bob.email)]
    last = audit(site.service)[-1]
    assert (last.action, last.actor, last.user_id) == ("reset-factors", f"user:{root.id}", bob.id)
    assert last.details == {"totp": True, "passkeys": 2, "codes": 10, "ended": 1}
    assert site.signed_in(bob).get("/api/users/me").status == 200  # with the password alone


def test_a_reset_that_takes_the_last_way_into_an_account_sends_a_reset_email(
    site: Site, admin: Client, bob: User
) -> None:
    add_factors(site.service, bob.id)
    store_hash(site.service, bob, "!")  # without a password
    assert admin.delete(path_of(bob)).status == 200
    kinds = [kind for (kind,) in query(site.service, "SELECT kind FROM outbox ORDER BY id")]
    assert kinds == ["factors-reset", "reset"]


def test_a_reset_of_an_app_sends_no_reset_email_because_no_app_is_a_way_in(
    site: Site, admin: Client, bob: User
) -> None:
    add_authenticator_apps(site.service, bob.id)
    store_hash(site.service, bob, "!")
    assert admin.delete(path_of(bob)).status == 200
    assert query(site.service, "SELECT kind FROM outbox") == [("factors-reset",)]


def test_a_reset_without_factors_succeeds_and_changes_nothing(site: Site, admin: Client, bob: User) -> None:
    phone, rows = site.signed_in(bob), len(audit(site.service))
    assert admin.delete(path_of(bob)).json == {"success": True}
    assert phone.get("/api/users/me").status == 200
    assert len(audit(site.service)) == rows
    assert admin.delete("/api/users/999/factors").status == 404
    assert admin.delete("/api/users/x/factors").status == 400


def test_a_reset_needs_a_fresh_proof(
    site: Site, admin: Client, bob: User, root: User, clock: FakeClock
) -> None:
    add_factors(site.service, bob.id)
    clock.move(minutes=11)
    for user in (bob, root):
        refused = admin.delete(path_of(user))
        assert (refused.status, refused.message) == (403, "Confirm that it is you")
    assert admin.post("/api/users/session/confirm", {"password": PASSWORD}).status == 200
    assert admin.delete(path_of(bob)).status == 200


def test_a_stale_session_takes_no_factors_away_but_by_another_admin_and_that_leaves_a_trace(
    site: Site, admin: Client, bob: User, root: User, clock: FakeClock
) -> None:
    add_factors(site.service, bob.id)
    clock.move(minutes=11)
    assert admin.delete(path_of(bob)).status == 403
    rows = len(audit(site.service))
    # The specification lets an admin do this with any session.
    eve = {"email": "eve@example.com", "name": "Eve", "password": PASSWORD, "role": "admin"}
    number = admin.post("/api/users", eve).json["user"]["id"]
    accomplice = site.client()
    assert accomplice.login(eve["email"], PASSWORD).status == 200
    assert accomplice.delete(path_of(bob)).status == 200
    assert [(row.action, row.actor, row.user_id) for row in audit(site.service)[rows:]] == [
        ("create", f"user:{root.id}", number),
        ("reset-factors", f"user:{number}", bob.id),
    ]
    assert query(site.service, "SELECT kind, email FROM outbox") == [("factors-reset", bob.email)]


def test_no_api_token_and_no_plain_user_takes_factors_away(site: Site, bob: User, root: User) -> None:
    mine = site.signed_in(bob)
    for user in (bob, root):
        add_factors(site.service, user.id)
    token = site.service.sessions.create_api_token(root.id, name="ci", lifetime=None, by=OPERATOR)
    api = site.client(headers={"Authorization": f"Bearer {token.token}"})
    for client, status in ((mine, 403), (api, 403), (site.client(), 401)):
        assert [client.delete(path_of(user)).status for user in (bob, root)] == [status] * 2
    assert (factors_of(site, bob), factors_of(site, root)) == (3, 3)
