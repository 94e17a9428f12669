"""Users delete their own accounts: with a password or by email, with a time to undo, and never against an admin."""

import threading
from collections.abc import Callable
from datetime import timedelta

import pytest
from support.accounts import author, open_session
from support.commands import OPERATOR, PASSWORD
from support.factors import add_authenticator_apps
from support.fakes import FakeClock
from support.oauth_site import error_of, oauth_site
from support.postbox import Link, last_link, send_all, sent
from support.second_factors import enrol
from support.tables import query
from support.web import Client, Reply, Site

from usersctl.clock import stamp
from usersctl.errors import Forbidden, Unauthenticated
from usersctl.models import Actor, User
from usersctl.passwords import Hasher
from usersctl.service import Service
from usersctl.transfer.writing import ImportOptions

ME = "/api/users/me"
ADA = "ada@example.com"
NEW = "another good password"
SCHEDULE = Actor("system", "schedule")
WEEK = timedelta(days=7)


def deleted(client: Client, password: str = PASSWORD) -> Reply:
    return client.delete(ME, body={"password": password})


def undo(site: Site, link: Link) -> Reply:
    return site.client().post("/api/users/undo-deletion", {"token": link.token, "email": link.email})


def confirm(site: Site, link: Link) -> Reply:
    return site.client().post("/api/users/confirm-deletion", {"token": link.token, "email": link.email})


def actions(site: Site, user: User) -> list[str]:
    with site.service.store.read() as tx:
        return [row.action for row in tx.audit_rows(user_id=user.id)]


def exists(site: Site, user: User) -> bool:
    with site.service.store.glance() as tx:
        return tx.user(user.id) is not None


def is_active(site: Site, user: User) -> bool:
    return site.service.accounts.get(user.id).active


@pytest.fixture
def ada(site: Site) -> User:
    return site.add()


@pytest.fixture
def gone(site: Site, ada: User) -> Link:
    """Ada has deleted her account; the link undoes that."""
    assert deleted(site.signed_in(ada)).json == {"success": True}
    return last_link(site.service, ADA)


# --- with the password ---


def test_a_deleted_account_is_inactive_at_once_and_gone_after_seven_days(
    site: Site, ada: User, clock: FakeClock
) -> None:
    client, phone = site.signed_in(ada), site.signed_in(ada)
    api_token = site.service.sessions.create_api_token(ada.id, name="ci", lifetime=None, by=OPERATOR).token
    machine = site.client(headers={"Authorization": f"Bearer {api_token}"})
    reply = deleted(client)
    assert (reply.status, reply.json) == (200, {"success": True})
    assert client.cookies.keys() & {"auth_token"} == set()
    assert [other.get(ME).status for other in (phone, machine)] == [401, 401]
    login = site.client().login(ADA, PASSWORD)
    assert (login.status, login.message) == (403, "Account is inactive")
    assert site.service.accounts.get(ada.id).delete_at == stamp(clock() + WEEK)
    clock.move(days=7, seconds=-1)
    assert site.service.deletion.carry_out(by=SCHEDULE) == 0
    clock.move(seconds=1)
    assert site.service.deletion.carry_out(by=SCHEDULE) == 1
    assert not exists(site, ada)
    assert actions(site, ada)[-2:] == ["request-deletion", "delete"]
    assert site.client().login(ADA, PASSWORD).status == 401


def test_an_email_to_the_address_of_the_account_undoes_the_deletion(
    site: Site, ada: User, gone: Link
) -> None:
    assert (gone.path, gone.email) == ("/undo-deletion", ADA)
    assert undo(site, gone).status == 200
    assert site.client().login(ADA, PASSWORD).status == 200
    user = site.service.accounts.get(ada.id)
    assert (user.active, user.delete_at) == (True, None)
    assert user.email_proven_at is None, "a password that another person knows stays"
    assert actions(site, ada)[-1] == "undo-deletion"
    again = undo(site, gone)
    assert (again.status, again.message) == (400, "Invalid or expired link")


@pytest.mark.slow
def test_every_deletion_can_be_undone_also_the_fourth_within_minutes(
    site: Site, ada: User, clock: FakeClock
) -> None:
    for number in range(14):
        assert deleted(site.signed_in(ada)).status == 200
        assert len(sent(site.service, ADA)) == number + 1
        assert undo(site, last_link(site.service, ADA)).status == 200
        clock.move(seconds=30)


def test_an_address_that_an_operator_gives_gets_a_link_to_undo_the_deletion(
    site: Site, ada: User, gone: Link, clock: FakeClock
) -> None:
    clock.move(days=3)
    site.service.accounts.update(ada.id, email="new@example.com", by=OPERATOR)
    link = last_link(site.service, "new@example.com")
    assert undo(site, gone).status == 400
    assert not is_active(site, ada)
    clock.move(days=4, seconds=-1)
    assert undo(site, link).status == 200
    assert is_active(site, ada)


def test_an_address_that_is_given_with_a_decision_on_the_account_gets_no_link_to_undo(
    site: Site, ada: User, gone: Link
) -> None:
    changes = {"email": "new@example.com", "active": False}
    site.service.accounts.update(ada.id, **changes, by=OPERATOR)
    assert sent(site.service, "new@example.com") == []
    assert undo(site, gone).status == 400


@pytest.mark.usefixtures("gone")
def test_the_email_names_the_time_until_which_it_undoes(site: Site, clock: FakeClock) -> None:
    (email,) = sent(site.service, ADA)
    assert f"{clock() + WEEK:%Y-%m-%d %H:%M} UTC" in " ".join(email.parts)


def test_the_link_to_undo_ends_with_the_account(site: Site, gone: Link, clock: FakeClock) -> None:
    clock.move(days=7)
    assert undo(site, gone).status == 400


def test_a_link_to_undo_works_for_its_address_only(site: Site, ada: User, gone: Link) -> None:
    assert undo(site, gone._replace(email="eve@example.com")).status == 400
    assert undo(site, gone._replace(token="x" * 43)).status == 400
    assert not is_active(site, ada)
    assert undo(site, gone._replace(email=f" {ADA.upper()}")).status == 200


def test_an_undone_deletion_brings_back_no_session_and_no_link_of_before(site: Site, ada: User) -> None:
    phone = site.signed_in(ada)
    site.client().post("/api/users/password/forgot", {"email": ADA})
    link = last_link(site.service, ADA)
    assert deleted(site.signed_in(ada)).status == 200
    assert undo(site, last_link(site.service, ADA)).status == 200
    assert phone.get(ME).status == 401
    body = {"token": link.token, "email": ADA, "password": NEW, "password_confirmation": NEW}
    assert site.client().post("/api/users/password/reset", body).status == 400


@pytest.mark.parametrize("body", [{}, {"token": "t"}, {"email": ADA}, {"token": "", "email": ""}])
@pytest.mark.parametrize("path", ["/api/users/undo-deletion", "/api/users/confirm-deletion"])
def test_a_link_without_token_or_address_is_a_400(site: Site, path: str, body: dict[str, str]) -> None:
    reply = site.client().post(path, body)
    assert (reply.status, reply.message) == (400, "Token and email are required")


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({}, "Password is required"),
        ({"password": ""}, "Password is required"),
        ({"password": "wrong"}, "Incorrect password"),
        ({"password": 7}, "password must be a string"),
    ],
)
def test_nothing_is_deleted_without_the_right_password(
    site: Site, ada: User, body: dict[str, object], message: str
) -> None:
    client = site.signed_in(ada)
    reply = client.delete(ME, body=body)
    assert (reply.status, reply.message) == (400, message)
    assert client.get(ME).status == 200
    assert send_all(site.service) == []


def test_wrong_passwords_are_counted_as_failed_checks(site: Site, ada: User) -> None:
    client = site.signed_in(ada)
    statuses = [deleted(client, "wrong").status for _ in range(11)]
    assert statuses == [400] * 10 + [429]
    assert deleted(client).status == 429


def test_the_last_active_admin_cannot_delete_the_own_account(site: Site) -> None:
    root = site.add("root", role="admin")
    reply = deleted(site.signed_in(root))
    assert reply.status == 400
    assert reply.message.startswith("The last active admin")
    site.add("other", role="admin")
    assert deleted(site.signed_in(root)).status == 200


def test_two_admins_who_delete_themselves_at_once_leave_one(site: Site) -> None:
    clients = [site.signed_in(site.add(name, role="admin")) for name in ("root", "other")]
    replies: list[Reply] = []
    threads = [threading.Thread(target=lambda c=c: replies.append(deleted(c))) for c in clients]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(reply.status for reply in replies) == [200, 400]


def test_without_a_time_to_undo_an_account_is_deleted_at_once(make_site: Callable[..., Site]) -> None:
    site = make_site(deletion_grace=timedelta())
    ada = site.add()
    client = site.signed_in(ada)
    assert deleted(client).json == {"success": True}
    assert not exists(site, ada)
    assert "auth_token" not in client.cookies
    assert actions(site, ada)[-1] == "delete"
    assert sent(site.service) == []
    site.add()  # the address is free again


@pytest.mark.parametrize(
    ("days", "text"),
    [
        (0, "Your account is deleted at once"),
        (1, "After one day, it is deleted"),
        (7, "After 7 days, it is deleted"),
    ],
)
def test_the_pages_say_how_long_a_deletion_can_be_undone(
    make_site: Callable[..., Site], days: int, text: str
) -> None:
    site = make_site(deletion_grace=timedelta(days=days))
    ada = site.signed_in(site.add())
    for path in ("/account", "/confirm-deletion?token=x&email=y"):
        assert text in ada.get(path).body.decode()


def test_the_address_stays_taken_until_the_account_is_gone(
    make_site: Callable[..., Site], clock: FakeClock
) -> None:
    site = make_site(whitelist=("/register",))
    deleted(site.signed_in(site.add()))
    body = {"email": ADA, "name": "Eve", "password": NEW}
    assert site.client().post("/api/users/register", body).message == "Email is already registered"
    clock.move(days=7)
    site.service.deletion.carry_out(by=SCHEDULE)
    assert site.client().post("/api/users/register", body).status == 200


@pytest.mark.usefixtures("gone")
def test_a_restart_of_the_daemon_carries_out_what_came_due_while_it_was_away(
    site: Site, ada: User, clock: FakeClock, make_service: Callable[..., Service]
) -> None:
    clock.move(days=30)
    assert make_service().deletion.carry_out(by=SCHEDULE) == 1
    assert not exists(site, ada)


# --- without a password ---


@pytest.fixture
def grace(site: Site) -> Client:
    """Signed in through the provider only."""
    user = site.add("grace", password=None)
    return site.client(cookies={"auth_token": open_session(site.service, user).token})


def test_an_account_without_a_password_is_deleted_by_the_link_of_an_email(site: Site, grace: Client) -> None:
    reply = grace.delete(ME)
    assert (reply.status, reply.json.keys()) == (200, {"message"})
    assert grace.get(ME).status == 200  # nothing is deleted yet
    link = last_link(site.service, "grace@example.com")
    assert link.path == "/confirm-deletion"
    assert confirm(site, link).status == 200
    assert grace.get(ME).status == 401
    assert confirm(site, link).status == 400
    back = last_link(site.service, "grace@example.com")
    assert back.path == "/undo-deletion"
    assert undo(site, back).status == 200


def test_the_link_that_confirms_a_deletion_works_for_an_hour(
    site: Site, grace: Client, clock: FakeClock
) -> None:
    grace.delete(ME)
    link = last_link(site.service)
    clock.move(hours=1)
    assert confirm(site, link).status == 400


def test_the_link_that_confirms_a_deletion_works_for_its_address_only(site: Site, grace: Client) -> None:
    grace.delete(ME)
    link = last_link(site.service)
    assert confirm(site, link._replace(email=ADA)).status == 400
    grace.delete(ME)
    link = last_link(site.service)
    assert confirm(site, link._replace(email=f" {link.email.upper()}")).status == 200


def test_a_session_that_has_ended_meanwhile_gets_no_email_that_deletes_the_account(
    service: Service, add: Callable[..., User]
) -> None:
    user = add(password=None)
    opened = open_session(service, user)
    service.sessions.revoke_all([user.id], by=OPERATOR)
    with pytest.raises(Unauthenticated):
        service.deletion.request(user.id, None, session_id=opened.session.id, by=author(opened))
    assert query(service, "SELECT * FROM outbox") == []


def test_no_link_deletes_an_account_in_a_lockdown(site: Site, grace: Client) -> None:
    grace.delete(ME)
    link = last_link(site.service)
    site.service.lockdown.start(None, by=OPERATOR)
    assert confirm(site, link).status == 503
    site.service.lockdown.stop(by=OPERATOR)
    assert confirm(site, link).status == 200


def test_a_password_that_was_set_meanwhile_ends_the_link_that_confirms(site: Site, grace: Client) -> None:
    grace.delete(ME)
    link = last_link(site.service)
    site.service.accounts.set_password(grace.get(ME).json["user"]["id"], PASSWORD, by=OPERATOR)
    assert confirm(site, link).status == 400


def test_a_factor_that_was_added_meanwhile_ends_the_link_that_confirms(
    site: Site, grace: Client, clock: FakeClock
) -> None:
    grace.delete(ME)
    link = last_link(site.service)
    enrol(grace, clock)
    assert confirm(site, link).status == 400
    assert grace.get(ME).status == 200


def test_a_factor_that_is_added_during_the_password_check_keeps_the_account(
    service: Service, add: Callable[..., User], clock: FakeClock
) -> None:
    user = add()
    opened = open_session(service, user)
    clock.move(minutes=11)

    class Slow(Hasher):
        def matches(self, password: str, stored: str | None) -> bool:
            add_authenticator_apps(service, user.id)
            return super().matches(password, stored)

    deletion = service.deletion._replace(hasher=Slow(4))
    with pytest.raises(Forbidden, match="Confirm that it is you"):
        deletion.request(user.id, PASSWORD, session_id=opened.session.id, by=author(opened))
    assert service.accounts.get(user.id).active


def test_no_link_serves_for_another_purpose(site: Site, grace: Client, gone: Link) -> None:
    grace.delete(ME)
    confirming = last_link(site.service, "grace@example.com")
    assert undo(site, confirming).status == 400
    assert confirm(site, gone).status == 400
    for link in (confirming, gone):
        body = {"token": link.token, "email": link.email}
        assert site.client().post("/api/users/not-me", body).status == 400


def test_requests_to_delete_an_account_are_limited(make_site: Callable[..., Site]) -> None:
    """An account without a password would get an email, and the database a row, for each of them."""
    site = make_site(own_changes_per_hour=3)
    user = site.add("grace", password=None)
    grace = site.client(cookies={"auth_token": open_session(site.service, user).token})
    assert [grace.delete(ME).status for _ in range(4)] == [200] * 3 + [429]
    assert grace.post(f"{ME}/sessions/end-others").status == 429


# --- an admin's decision ---


@pytest.mark.usefixtures("gone")
def test_an_admin_who_activates_the_account_cancels_the_deletion(
    site: Site, ada: User, clock: FakeClock
) -> None:
    admin = site.signed_in(site.add("root", role="admin"))
    assert admin.patch(f"/api/users/{ada.id}", {"active": True}).status == 200
    assert actions(site, ada)[-1] == "activate"
    clock.move(days=8)
    assert site.service.deletion.carry_out(by=SCHEDULE) == 0
    assert is_active(site, ada)


def test_no_link_activates_an_account_that_an_admin_deactivated(
    site: Site, ada: User, gone: Link, clock: FakeClock
) -> None:
    admin = site.signed_in(site.add("root", role="admin"))
    assert admin.patch(f"/api/users/{ada.id}", {"active": False}).status == 200
    assert actions(site, ada)[-1] == "deactivate"
    assert undo(site, gone).status == 400
    # The admin decides from now on: the owner's wish deletes nothing any more.
    clock.move(days=8)
    assert site.service.deletion.carry_out(by=SCHEDULE) == 0
    assert not is_active(site, ada)


def test_an_account_that_an_admin_deactivated_is_not_deleted_by_a_link(site: Site, grace: Client) -> None:
    user_id = grace.get(ME).json["user"]["id"]
    grace.delete(ME)
    link = last_link(site.service, "grace@example.com")
    site.service.accounts.set_active([user_id], active=False, by=OPERATOR)
    assert confirm(site, link).status == 400
    assert site.service.accounts.get(user_id).delete_at is None


def test_an_import_that_activates_the_account_cancels_the_deletion(
    site: Site, ada: User, gone: Link, clock: FakeClock
) -> None:
    rows = [("line 2", {"email": ADA, "active": "true"})]
    options = ImportOptions("update", False, OPERATOR, lambda _row: None, lambda *_: None)
    site.service.transfer.import_rows(rows, options)
    assert undo(site, gone).status == 400
    clock.move(days=8)
    site.service.deletion.carry_out(by=SCHEDULE)
    assert is_active(site, ada)


@pytest.mark.usefixtures("gone")
def test_the_cleanup_deletes_accounts_whose_time_to_undo_is_over(
    site: Site, ada: User, clock: FakeClock
) -> None:
    bob = site.add("bob")
    clock.move(days=7)
    admin = site.signed_in(site.add("root", role="admin"))
    reply = admin.post("/_tasks/users:cleanup-tokens")
    assert (reply.status, len(reply.json)) == (200, 5)
    assert not exists(site, ada)
    assert exists(site, bob)


# --- what others do meanwhile ---


@pytest.mark.usefixtures("ada")
def test_a_reset_leaves_the_account_inactive_and_the_link_to_undo_good(site: Site, gone: Link) -> None:
    site.client().post("/api/users/password/forgot", {"email": ADA})
    link = last_link(site.service, ADA)
    body = {"token": link.token, "email": ADA, "password": NEW, "password_confirmation": NEW}
    assert site.client().post("/api/users/password/reset", body).status == 200
    assert site.client().login(ADA, NEW).status == 403
    assert undo(site, gone).status == 200
    assert site.client().login(ADA, NEW).status == 200


def test_a_thief_who_deletes_the_account_leaves_the_links_of_earlier_notices_good(
    site: Site, ada: User
) -> None:
    thief = site.signed_in(ada)
    body = {"currentPassword": PASSWORD, "newPassword": NEW, "newPasswordConfirmation": NEW}
    assert thief.patch("/api/users/password", body).status == 200
    notice = last_link(site.service, ADA)
    assert deleted(thief, NEW).status == 200
    sent_to_owner = {"token": notice.token, "email": ADA}
    assert site.client().post("/api/users/not-me", sent_to_owner).status == 200
    user = site.service.accounts.get(ada.id)
    assert (user.active, user.delete_at) == (True, None)
    assert site.client().login(ADA, NEW).status == 401  # the owner sets a password by the email that follows
    assert last_link(site.service, ADA).path == "/reset-password"


def test_an_api_token_neither_deletes_the_account_of_its_user_nor_ends_sessions(
    site: Site, ada: User
) -> None:
    client = site.signed_in(ada)
    api_token = site.service.sessions.create_api_token(ada.id, name="ci", lifetime=None, by=OPERATOR).token
    machine = site.client(headers={"Authorization": f"Bearer {api_token}"})
    for reply in (deleted(machine), machine.post(f"{ME}/sessions/end-others")):
        assert (reply.status, reply.message) == (403, "Sign in to change this")
    assert client.get(ME).status == 200


def test_accounts_wait_for_their_deletion_while_a_lockdown_lets_no_owner_undo_it(
    site: Site, ada: User, gone: Link, clock: FakeClock
) -> None:
    site.service.lockdown.start(None, by=OPERATOR)
    assert undo(site, gone).status == 503
    clock.move(days=8)
    assert site.service.deletion.carry_out(by=SCHEDULE) == 0
    assert exists(site, ada)
    site.service.lockdown.stop(by=OPERATOR)
    assert site.service.deletion.carry_out(by=SCHEDULE) == 1


def test_a_sign_in_through_the_provider_neither_undoes_the_deletion_nor_gets_in(
    make_service: Callable[..., Service],
) -> None:
    with oauth_site(make_service, oauth_allow_auto_registration=True) as there:
        browser = there.browser()
        browser.sign_in()
        user = browser.me()
        assert user is not None
        browser.client.delete(ME)
        confirm(there.site, last_link(there.service, user["email"]))
        assert browser.me() is None
        assert error_of(browser.sign_in()) == "account_inactive"
        assert there.service.accounts.get(user["id"]).delete_at is not None


def test_an_undone_deletion_leaves_no_stranger_in_an_account_whose_owner_comes_by_the_provider(
    make_service: Callable[..., Service],
) -> None:
    with oauth_site(make_service) as there:
        ada = there.site.add("ada")  # a stranger knows the password that the operator gave
        deleted(there.site.signed_in(ada))
        assert undo(there.site, last_link(there.service, ADA)).status == 200
        browser = there.browser()
        browser.sign_in()
        assert (browser.me() or {})["id"] == ada.id
        assert there.site.client().login(ADA, PASSWORD).status == 401


# --- sign out everywhere else ---


def test_all_other_sessions_and_tokens_end_and_this_one_goes_on(site: Site, ada: User) -> None:
    here, phone = site.signed_in(ada), site.signed_in(ada, rememberMe=True)
    api_token = site.service.sessions.create_api_token(ada.id, name="ci", lifetime=None, by=OPERATOR).token
    machine = site.client(headers={"Authorization": f"Bearer {api_token}"})
    stranger = site.signed_in(site.add("bob"))
    cookie = here.cookies["auth_token"]
    reply = here.post(f"{ME}/sessions/end-others")
    assert (reply.status, reply.json) == (200, {"success": True})
    assert here.cookies["auth_token"] == cookie
    assert [client.get(ME).status for client in (here, stranger, phone, machine)] == [200, 200, 401, 401]
    assert [session["current"] for session in here.get(f"{ME}/sessions").json["sessions"]] == [True]
    assert actions(site, ada)[-1] == "end-others"
