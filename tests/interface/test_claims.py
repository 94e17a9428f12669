"""A change of the own address: claimed, proven by link and password, taken back, and closed to API tokens."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from datetime import timedelta

import pytest
from support.addresses import (
    OTHER,
    add,
    address_site,
    audit,
    claim,
    email_of,
    forgets,
    links,
    not_me,
    prove,
    provider,
    refused,
    sign_in,
    state,
    subjects,
)
from support.commands import OPERATOR, PASSWORD
from support.factors import add_authenticator_apps
from support.fakes import FakeClock
from support.oauth_site import OAuthSite
from support.postbox import Link, sent
from support.web import Client, application, hosting

from usersctl.errors import Forbidden
from usersctl.models import Actor, Role
from usersctl.service import Service
from usersctl.store.transaction import Transaction
from usersd.gate import Gate
from usersd.server.connections import Hosted


@pytest.fixture
def site(make_service: Callable[..., Service]) -> Iterator[OAuthSite]:
    with address_site(make_service) as site:
        yield site


# --- a claim ---


def test_both_addresses_sign_in_while_a_claim_waits(site: OAuthSite, clock: FakeClock) -> None:
    add(site)
    ada = sign_in(site, "ada@example.com")
    assert claim(ada, "new@example.com").status == 200
    assert email_of(sign_in(site, "new@example.com")) == "new@example.com"
    assert email_of(sign_in(site, "ada@example.com")) == "new@example.com"
    clock.move(hours=24)
    assert refused(site, "new@example.com", PASSWORD)
    assert email_of(sign_in(site, "ada@example.com")) == "ada@example.com"


def test_failed_logins_count_on_the_account_whichever_of_its_addresses_is_used(
    site: OAuthSite,
) -> None:
    add(site)
    assert claim(sign_in(site, "ada@example.com"), "new@example.com").status == 200
    for email in ["ada@example.com", "new@example.com"] * 5:
        assert site.site.client().login(email, "wrong").status == 401
    assert site.site.client().login("new@example.com", "wrong").status == 429
    assert site.site.client().login("ada@example.com", "wrong").status == 429


def test_the_password_that_proves_an_address_ends_the_failed_logins_before_it(site: OAuthSite) -> None:
    add(site)
    assert claim(sign_in(site, "ada@example.com"), "new@example.com").status == 200
    (link,) = links(site, "new@example.com", "/confirm-new-email")
    for _ in range(9):
        assert refused(site, "ada@example.com", "wrong")
    assert prove(site, link).status == 200
    for _ in range(10):
        assert refused(site, "new@example.com", "wrong")
    assert site.site.client().login("new@example.com", "wrong").status == 429


def test_no_claim_is_taken_back_twice(site: OAuthSite) -> None:
    add(site)
    ada = sign_in(site, "ada@example.com")
    assert claim(ada, "new@example.com").status == 200
    assert ada.delete("/api/users/me/email").status == 200
    told = subjects(site, "ada@example.com"), audit(site)
    assert ada.delete("/api/users/me/email").status == 200
    assert (subjects(site, "ada@example.com"), audit(site)) == told


def test_an_expired_claim_is_cleared_and_its_owner_told(site: OAuthSite, clock: FakeClock) -> None:
    add(site)
    ada = sign_in(site, "ada@example.com", PASSWORD)
    assert claim(ada, "new@example.com").status == 200
    (link,) = links(site, "new@example.com", "/confirm-new-email")
    clock.move(hours=24)
    assert prove(site, link).status == 400
    assert site.service.claims.expire() == 1
    assert site.service.claims.expire() == 0
    assert "keeps its email address" in subjects(site, "ada@example.com")[-1]
    assert audit(site)[-1] == "claim-expired"


def test_a_cleanup_clears_expired_claims_where_no_daemon_does(site: OAuthSite, clock: FakeClock) -> None:
    add(site)
    assert claim(sign_in(site, "ada@example.com"), "new@example.com").status == 200
    for hours, is_over in ((23, False), (1, True)):
        clock.move(hours=hours)
        site.service.cleaner.run(by=OPERATOR)
        assert ("claim-expired" in audit(site)) == is_over


def test_a_claim_of_another_account_is_not_claimed_until_it_expires(
    site: OAuthSite, clock: FakeClock
) -> None:
    add(site)
    add(site, "bea")
    ada, bea = sign_in(site, "ada@example.com"), sign_in(site, "bea@example.com")
    assert claim(ada, "new@example.com").status == 200
    reply = claim(bea, "new@example.com")
    assert (reply.status, reply.message) == (400, "Email is already registered")
    clock.move(hours=24)
    assert claim(sign_in(site, "bea@example.com"), "new@example.com").status == 200


def test_a_claim_can_be_asked_for_again_and_taken_back(site: OAuthSite, clock: FakeClock) -> None:
    add(site)
    ada = sign_in(site, "ada@example.com", PASSWORD)
    assert ada.post("/api/users/me/email/resend").status == 404
    assert claim(ada, "new@example.com").status == 200
    assert len(links(site, "new@example.com", "/confirm-new-email")) == 1
    clock.move(hours=23)
    assert ada.post("/api/users/me/email/resend").status == 200
    assert len(links(site, "new@example.com", "/confirm-new-email")) == 2
    clock.move(hours=1)  # the first link is over
    first, second = links(site, "new@example.com", "/confirm-new-email")
    assert prove(site, first).status == 400
    assert state(sign_in(site, "ada@example.com")) == ("ada@example.com", "new@example.com")
    assert sign_in(site, "ada@example.com").delete("/api/users/me/email").json == {"success": True}
    assert prove(site, second).status == 400
    assert state(sign_in(site, "ada@example.com")) == ("ada@example.com", None)
    assert "keeps its email address" in subjects(site, "ada@example.com")[-1]
    assert (
        sign_in(site, "ada@example.com").delete("/api/users/me/email").status == 200
    )  # nothing to take back


@pytest.mark.parametrize(("days", "notices"), [(1, 1), (4, 2)])
def test_the_former_address_can_undo_a_change_for_most_of_a_week_after_its_proof(
    site: OAuthSite, clock: FakeClock, days: int, notices: int
) -> None:
    """Also if the email to the new address was asked for again and again, and the first notice is old."""
    user, ada = add(site), sign_in(site, "ada@example.com")
    assert claim(ada, "new@example.com").status == 200
    assert len(links(site, "ada@example.com", "/not-me")) == 1
    for _ in range(days):
        clock.move(hours=23)
        assert ada.post("/api/users/me/email/resend").status == 200
        link = links(site, "new@example.com", "/confirm-new-email")[-1]
    assert prove(site, link).status == 200
    sent_to_her = links(site, "ada@example.com", "/not-me")
    assert len(sent_to_her) == notices
    clock.move(days=5)
    assert not_me(site, sent_to_her[-1]).status == 200
    assert site.service.accounts.get(user.id).email == "ada@example.com"


def test_a_change_back_to_the_known_address_takes_the_claim_back(site: OAuthSite) -> None:
    add(site)
    ada = sign_in(site, "ada@example.com")
    assert claim(ada, "new@example.com").status == 200
    assert claim(ada, "new@example.com").status == 200  # a form sends back what it shows
    assert len(links(site, "new@example.com", "/confirm-new-email")) == 1
    reply = claim(ada, "ada@example.com")
    assert (reply.status, reply.json["email"]) == (200, "ada@example.com")
    assert state(ada) == ("ada@example.com", None)


def test_a_sign_in_by_a_provider_that_knows_the_claimed_address_leaves_the_owners_claim(
    site: OAuthSite,
) -> None:
    ada = provider(site, "1001")
    assert claim(ada.client, "new@example.com").status == 200
    site.provider.people["1001"].email = "new@example.com"
    assert state(provider(site, "1001").client) == ("ada@example.com", "new@example.com")


def test_a_second_claim_replaces_the_first(site: OAuthSite) -> None:
    add(site)
    ada = sign_in(site, "ada@example.com")
    assert claim(ada, "one@example.com").status == 200
    (first,) = links(site, "one@example.com", "/confirm-new-email")
    assert claim(ada, "two@example.com").status == 200
    assert prove(site, first).status == 400
    assert refused(site, "one@example.com", PASSWORD)
    assert prove(site, links(site, "two@example.com", "/confirm-new-email")[0]).status == 200
    assert state(ada) == ("two@example.com", None)


@pytest.mark.parametrize("by_id", [False, True])
def test_an_admins_own_change_is_a_claim_by_either_route(site: OAuthSite, by_id: bool) -> None:
    root = add(site, "root", role=Role.ADMIN)
    client = sign_in(site, "root@example.com")
    path = f"/api/users/{root.id}" if by_id else "/api/users/me"
    assert client.patch(path, {"email": "new@example.com"}).status == 200
    assert state(client) == ("root@example.com", "new@example.com")


def test_another_admin_gives_an_address_at_once_and_ends_a_claim(site: OAuthSite) -> None:
    add(site, "root", role=Role.ADMIN)
    ada = add(site)
    admin, owner = sign_in(site, "root@example.com"), sign_in(site, "ada@example.com")
    assert claim(owner, "claimed@example.com").status == 200
    (link,) = links(site, "claimed@example.com", "/confirm-new-email")
    reply = admin.patch(f"/api/users/{ada.id}", {"email": "claimed@example.com", "name": "Countess"})
    assert reply.json["user"]["name"] == "Countess"
    assert state(owner) == ("ada@example.com", "claimed@example.com")  # the form sent back what it showed
    assert admin.patch(f"/api/users/{ada.id}", {"email": "given@example.com"}).status == 200
    assert state(owner) == ("given@example.com", None)
    assert prove(site, link).status == 400


def test_an_operator_gives_an_account_the_address_that_it_claims(site: OAuthSite) -> None:
    ada = add(site)
    client = sign_in(site, "ada@example.com")
    assert claim(client, "new@example.com").status == 200
    site.service.accounts.update(ada.id, email="new@example.com", by=OPERATOR)
    assert state(client) == ("new@example.com", None)


def test_an_admin_gives_a_claimed_address_to_somebody_else(site: OAuthSite) -> None:
    add(site, "root", role=Role.ADMIN)
    add(site)
    admin, owner = sign_in(site, "root@example.com"), sign_in(site, "ada@example.com")
    assert claim(owner, "new@example.com").status == 200
    body = {"email": "new@example.com", "name": "New", "password": OTHER}
    assert admin.post("/api/users", body).status == 200
    assert state(owner) == ("ada@example.com", None)


def test_an_application_behind_the_gate_sees_the_known_address(site: OAuthSite) -> None:
    add(site)
    ada = sign_in(site, "ada@example.com")
    assert claim(ada, "new@example.com").status == 200
    with hosting(Hosted(app=Gate(application, site.service))) as port:
        user = Client(port, dict(ada.cookies)).get("/").json["user"]
    assert user["email"] == "ada@example.com"
    assert set(user) == {*ada.get("/api/users/me").json["user"], "groups", "auth"}


def test_a_search_finds_both_addresses_and_shows_the_claimed_one(site: OAuthSite) -> None:
    add(site, "root", role=Role.ADMIN)
    add(site)
    assert claim(sign_in(site, "ada@example.com"), "new@example.com").status == 200
    admin = sign_in(site, "root@example.com")
    for text in ("ada@", "new@"):
        (user,) = admin.get(f"/api/users?search={text}").json["users"]
        assert user["email"] == "new@example.com"


# --- the proof ---


def test_a_proof_needs_the_link_and_the_password(site: OAuthSite) -> None:
    add(site)
    ada = sign_in(site, "ada@example.com")
    assert claim(ada, "new@example.com").status == 200
    (link,) = links(site, "new@example.com", "/confirm-new-email")
    assert prove(site, link, None).message == "Password is required"
    wrong = prove(site, link, "wrong")
    assert (wrong.status, wrong.message) == (401, "Incorrect password")
    assert prove(site, Link("", link.token, "ada@example.com")).message == "Invalid or expired link"
    assert prove(site, Link("", "made-up", link.email), None).message == "Invalid or expired link"
    reply = prove(site, link)
    assert (reply.status, reply.json["success"]) == (200, True)
    assert state(ada) == ("new@example.com", None)
    assert prove(site, link).status == 400
    assert refused(site, "ada@example.com", PASSWORD)
    assert forgets(site, "new@example.com")
    assert not forgets(site, "ada@example.com")


def test_wrong_passwords_for_a_proof_count_as_failed_logins(site: OAuthSite) -> None:
    add(site)
    assert claim(sign_in(site, "ada@example.com"), "new@example.com").status == 200
    (link,) = links(site, "new@example.com", "/confirm-new-email")
    assert [prove(site, link, "wrong").status for _ in range(11)] == [401] * 10 + [429]
    assert site.site.client().login("ada@example.com", PASSWORD).status == 429


@pytest.mark.parametrize("first", ["new", "old"])
def test_without_a_password_links_to_both_addresses_are_needed(site: OAuthSite, first: str) -> None:
    ada = provider(site, "1001")
    assert claim(ada.client, "new@example.com").status == 200
    (to_new,) = links(site, "new@example.com", "/confirm-new-email")
    (to_old,) = links(site, "ada@example.com", "/confirm-new-email")
    order = [to_new, to_old] if first == "new" else [to_old, to_new]
    assert prove(site, order[0], None).status == 200
    assert state(ada.client) == ("ada@example.com", "new@example.com")
    assert prove(site, order[0], None).status == 400
    assert prove(site, order[1], None).status == 200
    assert state(ada.client) == ("new@example.com", None)


def test_an_approval_that_is_asked_for_again_works_for_24_hours(site: OAuthSite, clock: FakeClock) -> None:
    ada = provider(site, "1001")  # without a password
    assert claim(ada.client, "new@example.com").status == 200
    assert prove(site, links(site, "new@example.com", "/confirm-new-email")[0], None).status == 200
    clock.move(hours=23)
    assert ada.client.post("/api/users/me/email/resend").status == 200
    _, again = links(site, "ada@example.com", "/confirm-new-email")
    clock.move(hours=23)
    assert prove(site, again, None).status == 200
    assert state(ada.client) == ("new@example.com", None)


def test_the_email_to_a_new_address_does_not_promise_that_a_password_is_asked_for(site: OAuthSite) -> None:
    ada = provider(site, "1001")  # without a password, so the page asks for none
    assert claim(ada.client, "new@example.com").status == 200
    (email,) = sent(site.service, "new@example.com")
    assert "You may be asked for the password of the account:" in " ".join(email.parts)


def test_an_invitation_to_an_address_that_its_owner_has_changed_waits_no_more(site: OAuthSite) -> None:
    ada = provider(site, "1001")  # without a password, so that an admin may invite her
    site.service.invitations.again([(ada.me() or {})["id"]], timedelta(days=7), by=OPERATOR)
    assert claim(ada.client, "new@example.com").status == 200
    for email in ("new@example.com", "ada@example.com"):
        assert prove(site, links(site, email, "/confirm-new-email")[0], None).status == 200
    assert site.service.invitations.waiting() == []


def test_an_account_that_was_deactivated_proves_nothing(site: OAuthSite) -> None:
    ada = add(site)
    assert claim(sign_in(site, "ada@example.com"), "new@example.com").status == 200
    (link,) = links(site, "new@example.com", "/confirm-new-email")
    site.service.accounts.set_active([ada.id], active=False, by=OPERATOR)
    site.service.accounts.set_active([ada.id], active=True, by=OPERATOR)
    assert prove(site, link).status == 400
    assert state(sign_in(site, "ada@example.com")) == ("ada@example.com", None)


def test_the_links_of_a_claim_serve_no_later_one(site: OAuthSite) -> None:
    """Else an approval that its owner did not use would approve the address of a thief."""
    ada = provider(site, "1001").client
    assert claim(ada, "new@example.com").status == 200
    proof = links(site, "new@example.com", "/confirm-new-email")[-1]
    approval = links(site, "ada@example.com", "/confirm-new-email")[-1]
    assert ada.delete("/api/users/me/email").status == 200
    for later in ("mallory@example.com", "new@example.com"):
        assert claim(ada, later).status == 200
        for link in (proof, approval):
            assert prove(site, link, None).status == 400, (later, link)
    assert state(ada) == ("ada@example.com", "new@example.com")


def test_a_factor_that_is_removed_during_a_proof_does_not_spare_the_password(
    site: OAuthSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    ada = add(site)
    assert claim(sign_in(site, "ada@example.com"), "new@example.com").status == 200
    (link,) = links(site, "new@example.com", "/confirm-new-email")
    add_authenticator_apps(site.service, ada.id)
    write = site.service.store.write

    def removed_first() -> AbstractContextManager[Transaction]:
        with write() as tx:
            tx.delete_totp(ada.id)
        return write()

    monkeypatch.setattr(site.service.store, "write", removed_first)
    with pytest.raises(Forbidden):
        site.service.claims.prove(link.token, link.email, "", by=Actor("anonymous", "192.0.2.1"))


# --- API tokens ---


def test_an_api_token_changes_nothing_that_its_user_signs_in_with(site: OAuthSite) -> None:
    root = add(site, "root", role=Role.ADMIN)
    add(site, "second", role=Role.ADMIN)
    ada = add(site)
    browser = sign_in(site, "root@example.com")
    (session,) = browser.get("/api/users/me/sessions").json["sessions"]
    token = site.service.sessions.create_api_token(root.id, name="t", lifetime=None, by=OPERATOR).token
    client = site.site.client(headers={"Authorization": f"Bearer {token}"})
    passwords = {"currentPassword": PASSWORD, "newPassword": OTHER, "newPasswordConfirmation": OTHER}
    attempts = [
        ("PATCH", "/api/users/me", {"email": "new@example.com"}),
        ("PATCH", "/api/users/me", {"email": "new@example.com", "name": "New"}),
        ("POST", "/api/users/me/email", {"token": "t", "email": "new@example.com", "password": PASSWORD}),
        ("DELETE", "/api/users/me/email", None),
        ("POST", "/api/users/me/email/resend", None),
        ("PATCH", "/api/users/password", passwords),
        ("DELETE", "/api/users/me", {"password": PASSWORD}),
        ("DELETE", "/api/users/me/identities/oauth", None),
        ("POST", "/api/users/me/sessions/end-others", None),
        ("DELETE", f"/api/users/me/sessions/{session['id']}", None),
        ("PATCH", f"/api/users/{root.id}", {"email": "new@example.com"}),
        ("DELETE", f"/api/users/{root.id}", None),
        ("DELETE", f"/api/users/{root.id}/sessions", None),
    ]
    for method, path, body in attempts:
        reply = client.send(method, path, body)
        assert (reply.status, reply.message) == (403, "Sign in to change this"), (method, path)
    assert browser.get("/api/users/me").status == 200
    # Of other users, as its role allows; its own name; and itself.
    assert client.patch("/api/users/me", {"name": "Root"}).status == 200
    assert client.patch(f"/api/users/{ada.id}", {"email": "given@example.com"}).status == 200
    assert client.delete(f"/api/users/{ada.id}/sessions").status == 200
    assert client.delete(f"/api/users/{ada.id}").status == 200
    assert client.delete("/api/users/session").status == 200
    assert client.get("/api/users/me").status == 401
