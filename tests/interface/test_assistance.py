"""What an admin does for a user who cannot sign in, through a real socket: why, unlock, emails, one session."""

from collections.abc import Callable
from typing import Any

import pytest
from support.commands import OPERATOR, PASSWORD, create_user
from support.fakes import FakeClock
from support.web import Client, Reply, Site

from usersctl.models import User
from usersctl.why import Cause

ACTIONS = ("unlock", "reset-letter", "confirm-letter")
DONE = {"success": True}


def refused(reply: Reply) -> tuple[int, str]:
    return reply.status, reply.message


@pytest.fixture
def site(make_site: Callable[..., Site]) -> Site:
    return make_site(whitelist=("/register",))


@pytest.fixture
def root(site: Site) -> User:
    return site.add("root", role="admin")


@pytest.fixture
def admin(site: Site, root: User) -> Client:
    return site.signed_in(root)


@pytest.fixture
def ada(site: Site) -> User:
    return site.add()


@pytest.fixture
def eve(site: Site) -> User:
    """Registered, and not confirmed yet."""
    return site.service.registration.register("eve@example.com", "Eve", PASSWORD, by=OPERATOR)


def findings(admin: Client, user: User) -> list[dict[str, Any]]:
    reply = admin.get(f"/api/users/{user.id}/why")
    assert (reply.status, set(reply.json)) == (200, {"findings"})
    for finding in reply.json["findings"]:
        assert set(finding) == {"code", "message", "mend"}
        assert finding["code"] in set(Cause)
        assert isinstance(finding["message"], str)
    return list(reply.json["findings"])


def codes(admin: Client, user: User) -> list[str]:
    return [finding["code"] for finding in findings(admin, user)]


def sent(site: Site, kind: str) -> list[str]:
    """To whom emails of this kind wait or were sent."""
    with site.service.store.read() as tx:
        return [
            email.email for email in tx.queued_emails() if email.kind == kind and email.state != "dropped"
        ]


def audited(site: Site, user: User) -> list[tuple[str, str]]:
    with site.service.store.read() as tx:
        return [(row.action, row.actor) for row in tx.audit_rows(user_id=user.id)]


def fail(site: Site, email: str, times: int) -> None:
    for _ in range(times):
        site.client().login(email, "wrong")


# --- why ---


def test_a_user_who_can_sign_in_has_no_findings(admin: Client, ada: User) -> None:
    assert findings(admin, ada) == []


def test_a_finding_says_how_an_admin_mends_it_in_the_pages_and_by_command(admin: Client, ada: User) -> None:
    admin.patch(f"/api/users/{ada.id}", {"active": False})
    assert findings(admin, ada) == [
        {
            "code": "deactivated",
            "message": "an admin, an operator or an import made it inactive",
            "mend": f"Activate the account at /users/{ada.id}, or on the server with: usersctl activate {ada.id}",
        }
    ]
    admin.patch(f"/api/users/{ada.id}", {"active": True})
    assert findings(admin, ada) == []


def test_each_cause_is_found_once(site: Site, admin: Client, ada: User, eve: User) -> None:
    assert codes(admin, eve) == ["awaiting-confirmation", "email-waiting"]
    confirm, waiting = findings(admin, eve)
    assert confirm["mend"].startswith(
        f"Send the confirmation email again at /users/{eve.id}, or on the server"
    )
    assert waiting["mend"] == "On the server: usersctl mail retry 1"
    fail(site, ada.email, 10)
    assert codes(admin, ada) == ["throttled"]
    bea = create_user(site.service, "bea@example.com", "Bea", None, active=False, by=OPERATOR)
    assert codes(admin, bea) == ["deactivated", "no-password"]
    site.signed_in(ada_again := site.add("cy")).delete("/api/users/me", body={"password": PASSWORD})
    assert codes(admin, ada_again) == ["deletion"]


def test_a_lockdown_is_found_by_the_admin_who_is_excepted(
    site: Site, admin: Client, root: User, ada: User
) -> None:
    site.service.lockdown.start(root, by=OPERATOR)
    admin = site.signed_in(root)
    assert codes(admin, ada) == ["lockdown"]
    assert findings(admin, ada)[0]["mend"] == "On the server: usersctl lockdown off"
    assert findings(admin, root) == []


# --- unlock ---


@pytest.mark.slow
def test_a_locked_user_signs_in_once_an_admin_has_unlocked_the_account(
    site: Site, admin: Client, ada: User
) -> None:
    fail(site, ada.email, 10)
    assert site.client().login(ada.email, PASSWORD).status == 429
    reply = admin.post(f"/api/users/{ada.id}/unlock")
    assert (reply.status, reply.json) == (200, DONE)
    assert site.client().login(ada.email, PASSWORD).status == 200
    assert admin.post(f"/api/users/{ada.id}/unlock").json == DONE
    assert [action for action, _ in audited(site, ada)].count("unlock") == 1


# --- emails ---


def test_a_reset_email_goes_to_the_known_address_and_is_audited(
    site: Site, admin: Client, root: User, ada: User
) -> None:
    site.signed_in(ada).patch("/api/users/me", {"email": "claimed@example.com"})
    reply = admin.post(f"/api/users/{ada.id}/reset-letter")
    assert (reply.status, reply.json) == (200, DONE)
    assert sent(site, "reset") == [ada.email]
    assert audited(site, ada)[-1] == ("email-reset", f"user:{root.id}")


@pytest.mark.parametrize("inactive", ["deactivated", "awaiting"])
def test_an_inactive_account_gets_no_reset_email(site: Site, admin: Client, eve: User, inactive: str) -> None:
    if inactive == "deactivated":
        admin.patch(f"/api/users/{eve.id}", {"active": False})
    reply = admin.post(f"/api/users/{eve.id}/reset-letter")
    assert refused(reply) == (400, "The account is inactive, which a new password would not change")
    assert sent(site, "reset") == []


def test_the_confirmation_email_is_sent_again_to_an_account_that_awaits_it(
    site: Site, admin: Client, root: User, eve: User
) -> None:
    assert admin.post(f"/api/users/{eve.id}/confirm-letter").json == DONE
    assert sent(site, "confirm") == [eve.email, eve.email]
    assert audited(site, eve)[-1] == ("email-confirm", f"user:{root.id}")


def test_only_an_account_that_awaits_its_confirmation_gets_that_email(
    site: Site, admin: Client, ada: User, eve: User
) -> None:
    nothing = (400, "The account has nothing to confirm")
    assert refused(admin.post(f"/api/users/{ada.id}/confirm-letter")) == nothing
    admin.patch(f"/api/users/{eve.id}", {"active": False})
    assert refused(admin.post(f"/api/users/{eve.id}/confirm-letter")) == nothing
    assert sent(site, "confirm") == []


def test_while_registration_is_closed_no_confirmation_email_is_sent(
    make_site: Callable[..., Site], admin: Client, eve: User
) -> None:
    closed = make_site()
    elsewhere = closed.client(cookies=admin.cookies)
    reply = elsewhere.post(f"/api/users/{eve.id}/confirm-letter")
    message = "Registration is closed, and its confirmation with it: activate the account"
    assert refused(reply) == (400, message)
    assert findings(elsewhere, eve)[0]["mend"].startswith("Activate the account at /users/")


def test_an_admin_learns_of_the_limit_on_emails(
    site: Site, admin: Client, ada: User, clock: FakeClock
) -> None:
    for _ in range(3):
        assert admin.post(f"/api/users/{ada.id}/reset-letter").status == 200
    rows = audited(site, ada)
    reply = admin.post(f"/api/users/{ada.id}/reset-letter")
    message = f"Too many emails of this kind, please try again later: {ada.email}"
    assert refused(reply) == (429, message)
    assert reply.header("Retry-After") == "900"
    assert (len(sent(site, "reset")), audited(site, ada)) == (3, rows)
    clock.move(minutes=16)
    assert admin.post(f"/api/users/{ada.id}/reset-letter").status == 200


def test_in_a_lockdown_no_link_is_sent(site: Site, root: User, ada: User) -> None:
    site.service.lockdown.start(root, by=OPERATOR)
    admin = site.signed_in(root)
    assert admin.post(f"/api/users/{ada.id}/reset-letter").status == 503
    assert sent(site, "reset") == []


# --- one session ---


def test_an_admin_ends_one_session_or_api_token_of_a_user(
    site: Site, admin: Client, root: User, ada: User
) -> None:
    phone, desk = site.signed_in(ada), site.signed_in(ada)
    token = site.service.sessions.create_api_token(ada.id, name="ci", lifetime=None, by=OPERATOR)
    api = site.client(headers={"Authorization": f"Bearer {token.token}"})
    first, _, last = [
        session["id"] for session in admin.get(f"/api/users/{ada.id}/sessions").json["sessions"]
    ]
    for ended in (first, last):
        reply = admin.delete(f"/api/users/{ada.id}/sessions/{ended}")
        assert (reply.status, reply.json) == (200, DONE)
    assert [each.get("/api/users/me").status for each in (phone, desk, api)] == [401, 200, 401]
    assert audited(site, ada)[-2:] == [("revoke", f"user:{root.id}")] * 2


def test_a_session_of_another_user_is_not_found(admin: Client, ada: User) -> None:
    own = admin.get("/api/users/me/sessions").json["sessions"][0]["id"]
    for path, message in (
        (f"/api/users/{ada.id}/sessions/{own}", "Session not found"),
        (f"/api/users/{ada.id}/sessions/999", "Session not found"),
        (f"/api/users/999/sessions/{own}", "User not found"),
    ):
        assert refused(admin.delete(path)) == (404, message)
    assert admin.get("/api/users/me").status == 200


# --- for admins, with an id, and not by an API token for its own user ---


@pytest.mark.parametrize("action", ACTIONS)
def test_an_action_needs_an_admin_and_a_user(site: Site, admin: Client, ada: User, action: str) -> None:
    path = f"/api/users/{ada.id}/{action}"
    assert refused(site.client().post(path)) == (401, "Authentication required")
    assert refused(site.signed_in(ada).post(path)) == (403, "Admin access required")
    assert refused(admin.post(f"/api/users/999/{action}")) == (404, "User not found")
    assert refused(admin.post(f"/api/users/01/{action}")) == (400, "Invalid user id")
    assert admin.post(path, raw=b"a=b", headers={"Content-Type": "text/plain"}).status == 415


def test_why_needs_an_admin_and_a_user(site: Site, admin: Client, ada: User) -> None:
    assert refused(site.signed_in(ada).get(f"/api/users/{ada.id}/why")) == (403, "Admin access required")
    assert refused(admin.get("/api/users/999/why")) == (404, "User not found")
    assert refused(admin.get("/api/users/x/why")) == (400, "Invalid user id")


def test_an_api_token_does_this_for_others_only(site: Site, root: User, ada: User) -> None:
    token = site.service.sessions.create_api_token(root.id, name="ci", lifetime=None, by=OPERATOR)
    api = site.client(headers={"Authorization": f"Bearer {token.token}"})
    for action in ACTIONS:
        reply = api.post(f"/api/users/{root.id}/{action}")
        assert refused(reply) == (403, "Sign in to change this"), action
    own = f"/api/users/{root.id}/sessions/{token.session.id}"
    assert refused(api.delete(own)) == (403, "Sign in to change this")
    assert api.post(f"/api/users/{ada.id}/unlock").json == DONE
    assert api.get(f"/api/users/{root.id}/why").json == {"findings": []}
