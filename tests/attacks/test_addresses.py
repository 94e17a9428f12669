"""Whose an address is: attacks through its change, and what each of them comes to."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.commands import OPERATOR, PASSWORD, create_user
from support.fakes import FakeClock
from support.oauth_site import Browser, OAuthSite, error_of, oauth_site
from support.postbox import Link, link_in, sent
from support.web import Client, Reply, application, hosting

from usersctl.models import SYSTEM, Role, User
from usersctl.service import Service
from usersctl.transfer.writing import BrokenRows, ImportOptions
from usersd.gate import Gate
from usersd.server.connections import Hosted

OTHER = "another horse battery"
SECRET = "a secret that two programs share, long enough"


@pytest.fixture
def site(make_service: Callable[..., Service]) -> Iterator[OAuthSite]:
    with oauth_site(
        make_service,
        whitelist=("/register",),
        oauth_allow_auto_registration=True,
        assertion_secret=SECRET,
        trusted_proxies=(),
    ) as site:
        yield site
        assert not site.errors()


def add(site: OAuthSite, name: str = "ada", **keywords: Any) -> User:
    password = keywords.pop("password", PASSWORD)
    return create_user(site.service, f"{name}@example.com", name.title(), password, by=OPERATOR, **keywords)


def sign_in(site: OAuthSite, email: str, password: str = PASSWORD) -> Client:
    client = site.site.client()
    assert client.login(email, password).status == 200
    return client


def refused(site: OAuthSite, email: str, password: str) -> bool:
    return site.site.client().login(email, password).status == 401


def links(site: OAuthSite, to: str, page: str) -> list[Link]:
    """All links to this page that were sent to an address, oldest first."""
    parts = [" ".join(email.parts) for email in sent(site.service, to)]
    every = [link_in(text) for text in parts if "http" in text]
    return [link for link in every if link.path == page]


def subjects(site: OAuthSite, to: str) -> list[str]:
    return [email.subject for email in sent(site.service, to)]


def claim(client: Client, email: str) -> Reply:
    return client.patch("/api/users/me", {"email": email})


def prove(site: OAuthSite, link: Link, password: str | None = PASSWORD) -> Reply:
    body = {"token": link.token, "email": link.email}
    if password is not None:
        body["password"] = password
    return site.site.client().post("/api/users/me/email", body)


def moves(site: OAuthSite, client: Client, email: str, password: str = PASSWORD) -> None:
    """A whole change of address: claimed and proven."""
    assert claim(client, email).status == 200
    assert prove(site, links(site, email, "/confirm-new-email")[-1], password).status == 200


def not_me(site: OAuthSite, link: Link) -> Reply:
    return site.site.client().post("/api/users/not-me", {"token": link.token, "email": link.email})


def forgets(site: OAuthSite, email: str) -> list[Link]:
    """The reset links that come to this address after asking for one."""
    before = links(site, email, "/reset-password")
    assert site.site.client().post("/api/users/password/forgot", {"email": email}).status == 200
    return links(site, email, "/reset-password")[len(before) :]


def resets(site: OAuthSite, link: Link, password: str = OTHER) -> Reply:
    body = {"token": link.token, "email": link.email, "password": password, "password_confirmation": password}
    return site.site.client().post("/api/users/password/reset", body)


def registers(site: OAuthSite, email: str, password: str = PASSWORD) -> Reply:
    body = {"email": email, "name": "Somebody", "password": password}
    return site.site.client().post("/api/users/register", body)


def confirms(site: OAuthSite, email: str) -> Reply:
    link = links(site, email, "/confirm-email")[-1]
    return site.site.client().get(f"/api/users/confirm-email?token={link.token}&email={link.email}")


def email_of(client: Client) -> str:
    reply = client.get("/api/users/me")
    assert reply.status == 200
    return str(reply.json["user"]["email"])


def state(client: Client) -> tuple[str, str | None]:
    """The known address and the claimed one."""
    reply = client.get("/api/users/me/email").json
    return reply["email"], reply["claim"] and reply["claim"]["email"]


def provider(site: OAuthSite, person: str) -> Browser:
    browser = site.browser()
    reply = browser.sign_in(person)
    assert "error=" not in str(reply.header("Location")), reply.header("Location")
    return browser


def audit(site: OAuthSite) -> list[str]:
    with site.service.store.read() as tx:
        return [row.action for row in tx.audit_rows()]


# --- the eight cases ---


def test_a_claimed_address_is_never_signed_and_its_owner_can_register(site: OAuthSite) -> None:
    add(site, "mallory")
    mallory = sign_in(site, "mallory@example.com")
    reply = claim(mallory, "victim@example.com")
    assert (reply.status, reply.json["email"]) == (200, "victim@example.com")
    proxied = {"X-Original-URL": "/", "X-Original-Method": "GET", "Host": "app.example.com"}
    verified = mallory.get("/api/users/auth/verify", headers=proxied)
    assert verified.header("Remote-Email") == "mallory@example.com"
    assert not forgets(site, "victim@example.com")
    assert registers(site, "victim@example.com", OTHER).status == 200
    assert state(mallory) == ("mallory@example.com", None)
    assert email_of(mallory) == "mallory@example.com"
    assert "keeps its email address" in subjects(site, "mallory@example.com")[-1]
    assert prove(site, links(site, "victim@example.com", "/confirm-new-email")[-1]).status == 400
    assert confirms(site, "victim@example.com").status == 200
    assert email_of(sign_in(site, "victim@example.com", OTHER)) == "victim@example.com"


@pytest.mark.parametrize("proven", [False, True])
def test_a_thief_who_changes_the_address_loses_the_account_to_its_owner(
    site: OAuthSite, proven: bool
) -> None:
    add(site)
    thief = sign_in(site, "ada@example.com")
    if proven:  # the thief knows the password, too
        moves(site, thief, "thief@example.com")
    else:
        assert claim(thief, "thief@example.com").status == 200
    (notice,) = links(site, "ada@example.com", "/not-me")
    assert not_me(site, notice).status == 200
    assert thief.get("/api/users/me").status == 401
    assert not forgets(site, "thief@example.com")
    (link,) = links(site, "ada@example.com", "/reset-password")
    assert resets(site, link).status == 200
    owner = sign_in(site, "ada@example.com", OTHER)
    assert state(owner) == ("ada@example.com", None)
    assert refused(site, "thief@example.com", PASSWORD)
    assert refused(site, "thief@example.com", OTHER)
    for left in links(site, "thief@example.com", "/confirm-new-email"):
        assert prove(site, left, OTHER).status == 400


def test_an_api_token_changes_no_address(site: OAuthSite) -> None:
    ada = add(site)
    token = site.service.sessions.create_api_token(ada.id, name="t", lifetime=None, by=OPERATOR).token
    client = site.site.client(headers={"Authorization": f"Bearer {token}"})
    reply = claim(client, "thief@example.com")
    assert (reply.status, reply.message) == (403, "Sign in to change this")
    assert client.patch("/api/users/me", {"name": "Countess"}).status == 200
    assert state(client) == ("ada@example.com", None)


def test_a_claimed_address_is_not_linked_at_the_provider_and_the_owners_notices_stay(
    site: OAuthSite,
) -> None:
    add(site)
    thief = sign_in(site, "ada@example.com")
    assert claim(thief, "eve@example.com").status == 200
    eve = provider(site, "1004")
    ada = thief.get("/api/users/me").json["user"]
    assert eve.me() is not None
    assert ada["oauth_id"] is None
    assert eve.me()["id"] != ada["id"]  # type: ignore[index]
    assert ada["email"] == "ada@example.com"  # the claim has yielded
    (notice,) = links(site, "ada@example.com", "/not-me")
    assert not_me(site, notice).status == 200
    assert thief.get("/api/users/me").status == 401
    assert resets(site, links(site, "ada@example.com", "/reset-password")[-1]).status == 200
    assert provider(site, "1004").me()["id"] != ada["id"]  # type: ignore[index]


def test_a_reset_by_the_owner_ends_a_thiefs_claim(site: OAuthSite) -> None:
    add(site)
    thief = sign_in(site, "ada@example.com")
    assert claim(thief, "thief@example.com").status == 200
    assert resets(site, forgets(site, "ada@example.com")[-1]).status == 200
    assert state(sign_in(site, "ada@example.com", OTHER)) == ("ada@example.com", None)
    assert prove(site, links(site, "thief@example.com", "/confirm-new-email")[-1], OTHER).status == 400


def test_a_provider_user_who_claims_a_strangers_address_keeps_it_from_nobody(site: OAuthSite) -> None:
    ada = provider(site, "1001")
    assert claim(ada.client, "stranger@example.com").status == 200
    assert registers(site, "stranger@example.com", OTHER).status == 200
    assert confirms(site, "stranger@example.com").status == 200
    stranger = sign_in(site, "stranger@example.com", OTHER)
    again = provider(site, "1001").me()
    assert again is not None
    assert again["email"] == "ada@example.com"
    assert stranger.get("/api/users/me").json["user"]["id"] != again["id"]


def test_a_claim_yields_to_the_provider_user_whose_address_it_is(site: OAuthSite) -> None:
    ada = provider(site, "1001")
    assert claim(ada.client, "grace@example.com").status == 200
    grace = provider(site, "1002").me()
    assert grace is not None
    assert grace["email"] == "grace@example.com"
    assert state(ada.client) == ("ada@example.com", None)
    assert claim(ada.client, "grace@example.com").status == 400
    assert provider(site, "1002").me() == grace | {
        "last_login_at": provider(site, "1002").me()["last_login_at"]
    }  # type: ignore[index]


def test_a_strangers_password_never_works_once_the_owner_came_by_provider(site: OAuthSite) -> None:
    assert registers(site, "ada@example.com", "a stranger knows this").status == 200
    browser = site.browser()
    assert error_of(browser.sign_in("1001")) == "account_inactive"
    assert confirms(site, "ada@example.com").status == 200
    assert refused(site, "ada@example.com", "a stranger knows this")
    linked = provider(site, "1001").me()
    assert linked is not None
    assert linked["oauth_id"] == "1001"
    assert refused(site, "ada@example.com", "a stranger knows this")


def test_the_owner_who_comes_by_provider_a_day_after_a_strangers_registration_gets_an_account(
    site: OAuthSite, clock: FakeClock
) -> None:
    assert registers(site, "ada@example.com", "a stranger knows this").status == 200
    clock.move(hours=24)
    ada = provider(site, "1001").me()
    assert ada is not None
    assert (ada["email"], ada["oauth_id"]) == ("ada@example.com", "1001")
    assert refused(site, "ada@example.com", "a stranger knows this")


def test_an_account_that_an_admin_deactivated_keeps_its_password_at_a_provider_sign_in(
    site: OAuthSite,
) -> None:
    ada = add(site, active=False)
    assert error_of(site.browser().sign_in("1001")) == "account_inactive"
    site.service.accounts.set_active([ada.id], active=True, by=OPERATOR)
    assert sign_in(site, "ada@example.com")


def test_an_unconfirmed_registration_gives_way_when_its_email_has_expired(
    site: OAuthSite, clock: FakeClock
) -> None:
    assert registers(site, "ada@example.com", "a stranger knows this").status == 200
    former = links(site, "ada@example.com", "/confirm-email")[-1]
    clock.move(hours=23, minutes=59)
    assert registers(site, "ada@example.com").status == 400
    clock.move(minutes=1)
    assert registers(site, "ada@example.com").status == 200
    path = f"/api/users/confirm-email?token={former.token}&email={former.email}"
    assert site.site.client().get(path).status == 400
    assert confirms(site, "ada@example.com").status == 200
    assert sign_in(site, "ada@example.com")
    assert "registration-expired" in audit(site)


def test_the_cleanup_removes_a_registration_that_was_not_confirmed(site: OAuthSite, clock: FakeClock) -> None:
    assert registers(site, "ada@example.com").status == 200
    kept = add(site, "kept", active=False)
    clock.move(days=29, hours=23)
    site.service.sessions.cleanup(by=SYSTEM)
    assert site.service.accounts.find("ada@example.com")
    clock.move(hours=1)
    site.service.sessions.cleanup(by=SYSTEM)
    with site.service.store.read() as tx:
        assert tx.user_by_email("ada@example.com") is None
        assert tx.user(kept.id) is not None  # an admin made it inactive
    assert "registration-expired" in audit(site)


def test_zero_days_keep_unconfirmed_registrations(
    make_service: Callable[..., Service], clock: FakeClock
) -> None:
    from datetime import timedelta

    service = make_service(unconfirmed_expiration=timedelta(0))
    service.registration.register("ada@example.com", "Ada", PASSWORD, by=SYSTEM)
    clock.move(days=400)
    service.sessions.cleanup(by=SYSTEM)
    assert service.accounts.find("ada@example.com")


def test_a_former_holders_notice_does_not_shut_out_the_later_owner(site: OAuthSite) -> None:
    office = add(site, "office")
    former = sign_in(site, "office@example.com")
    body = {"currentPassword": PASSWORD, "newPassword": OTHER, "newPasswordConfirmation": OTHER}
    assert former.patch("/api/users/password", body).status == 200
    (notice,) = links(site, "office@example.com", "/not-me")
    site.service.accounts.update(office.id, email="later@example.com", by=OPERATOR)
    later = sign_in(site, "later@example.com", OTHER)
    assert not_me(site, notice).status == 400
    assert email_of(later) == "later@example.com"
    assert (
        len(links(site, "office@example.com", "/not-me")) == 1
    )  # the notice of the operator's change has no link
    assert "was changed" in subjects(site, "office@example.com")[-1]


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


def test_a_change_back_to_the_known_address_takes_the_claim_back(site: OAuthSite) -> None:
    add(site)
    ada = sign_in(site, "ada@example.com")
    assert claim(ada, "new@example.com").status == 200
    assert claim(ada, "new@example.com").status == 200  # a form sends back what it shows
    assert len(links(site, "new@example.com", "/confirm-new-email")) == 1
    reply = claim(ada, "ada@example.com")
    assert (reply.status, reply.json["email"]) == (200, "ada@example.com")
    assert state(ada) == ("ada@example.com", None)


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
    assert set(user) == set(ada.get("/api/users/me").json["user"])


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


def test_an_account_that_was_deactivated_proves_nothing(site: OAuthSite) -> None:
    ada = add(site)
    assert claim(sign_in(site, "ada@example.com"), "new@example.com").status == 200
    (link,) = links(site, "new@example.com", "/confirm-new-email")
    site.service.accounts.set_active([ada.id], active=False, by=OPERATOR)
    site.service.accounts.set_active([ada.id], active=True, by=OPERATOR)
    assert prove(site, link).status == 400
    assert state(sign_in(site, "ada@example.com")) == ("ada@example.com", None)


# --- the way back ---


def test_a_former_address_is_reserved_for_the_week_of_the_notice(site: OAuthSite, clock: FakeClock) -> None:
    add(site)
    moves(site, sign_in(site, "ada@example.com"), "new@example.com")
    assert registers(site, "ada@example.com").status == 400
    assert error_of(site.browser().sign_in("1001")) == "oauth_failed"
    clock.move(days=7)
    site.service.sessions.cleanup(by=SYSTEM)
    assert not_me(site, links(site, "ada@example.com", "/not-me")[-1]).status == 400
    assert registers(site, "ada@example.com").status == 200


def test_a_thief_who_moves_on_cannot_end_the_owners_way_back(site: OAuthSite) -> None:
    add(site)
    thief = sign_in(site, "ada@example.com")
    moves(site, thief, "one@example.com")
    moves(site, thief, "two@example.com")
    (to_one,) = links(site, "one@example.com", "/not-me")
    assert not_me(site, to_one).status == 200
    assert (
        resets(site, links(site, "one@example.com", "/reset-password")[-1], "the thief's own one").status
        == 200
    )
    (to_ada,) = links(site, "ada@example.com", "/not-me")
    assert not_me(site, to_ada).status == 200
    assert resets(site, links(site, "ada@example.com", "/reset-password")[-1]).status == 200
    assert state(sign_in(site, "ada@example.com", OTHER)) == ("ada@example.com", None)
    for email in ("one@example.com", "two@example.com"):
        assert not forgets(site, email)
        for link in links(site, email, "/not-me"):
            assert not_me(site, link).status == 400


def test_an_owner_who_moves_back_leaves_no_way_to_the_addresses_between(site: OAuthSite) -> None:
    add(site)
    thief = sign_in(site, "ada@example.com")
    moves(site, thief, "thief@example.com")
    moves(site, thief, "ada@example.com")
    for link in links(site, "thief@example.com", "/not-me"):
        assert not_me(site, link).status == 400
    assert state(thief) == ("ada@example.com", None)


def test_a_reset_at_a_new_address_leaves_the_former_owners_way_back(site: OAuthSite) -> None:
    add(site)
    moves(site, sign_in(site, "ada@example.com"), "thief@example.com")
    assert resets(site, forgets(site, "thief@example.com")[-1]).status == 200
    assert not_me(site, links(site, "ada@example.com", "/not-me")[-1]).status == 200
    assert refused(site, "thief@example.com", OTHER)
    assert forgets(site, "ada@example.com")


def test_a_thief_who_deletes_the_account_loses_it_to_the_owner(site: OAuthSite) -> None:
    add(site)
    thief = sign_in(site, "ada@example.com")
    moves(site, thief, "thief@example.com")
    assert thief.delete("/api/users/me", body={"password": PASSWORD}).status == 200
    assert not_me(site, links(site, "ada@example.com", "/not-me")[-1]).status == 200
    assert resets(site, links(site, "ada@example.com", "/reset-password")[-1]).status == 200
    assert state(sign_in(site, "ada@example.com", OTHER)) == ("ada@example.com", None)


def test_a_flood_of_claims_leaves_the_owner_a_link_that_works(site: OAuthSite, clock: FakeClock) -> None:
    add(site)
    thief = sign_in(site, "ada@example.com")
    for number in range(15):
        assert claim(thief, f"thief{number}@example.com").status == 200
        clock.move(minutes=10)
    assert (
        resets(site, forgets(site, "ada@example.com")[-1]).status == 200
    )  # ends all notices to this address
    again = sign_in(site, "ada@example.com", OTHER)
    moves(site, again, "thief@example.com", OTHER)
    assert not_me(site, links(site, "ada@example.com", "/not-me")[-1]).status == 200
    assert forgets(site, "ada@example.com")


def test_a_claim_that_is_kept_alive_ends_with_a_new_notice(site: OAuthSite, clock: FakeClock) -> None:
    add(site)
    thief = sign_in(site, "ada@example.com")
    assert claim(thief, "thief@example.com").status == 200
    for _ in range(9):
        assert links(site, "thief@example.com", "/confirm-new-email")
        clock.move(hours=20)
        thief = sign_in(site, "ada@example.com")
        assert thief.post("/api/users/me/email/resend").status == 200
    assert prove(site, links(site, "thief@example.com", "/confirm-new-email")[-1]).status == 200
    clock.move(days=6)
    assert not_me(site, links(site, "ada@example.com", "/not-me")[-1]).status == 200
    assert forgets(site, "ada@example.com")


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


# --- a stranger's registration ---


def imports(site: OAuthSite, **row: Any) -> None:
    options = ImportOptions("update", dry_run=False, by=OPERATOR, report=print, hashing=lambda *_: None)
    site.service.transfer.import_rows([("row 1", row)], options)


@pytest.mark.parametrize("row", [{"confirmed": "true"}, {"active": "true"}, {"role": "admin"}], ids=str)
def test_an_import_over_a_strangers_registration_ends_the_strangers_password(
    site: OAuthSite, row: dict[str, str]
) -> None:
    assert registers(site, "ada@example.com", OTHER).status == 200
    imports(site, email="ada@example.com", **row)
    if "role" in row:
        assert (
            site.site.client().post("/api/users/register/resend", {"email": "ada@example.com"}).status == 200
        )
        assert confirms(site, "ada@example.com").status == 200
    assert refused(site, "ada@example.com", OTHER)
    (link,) = forgets(site, "ada@example.com")
    assert resets(site, link, PASSWORD).status == 200
    sign_in(site, "ada@example.com")


def test_an_import_does_not_take_an_address_that_is_reserved(site: OAuthSite) -> None:
    add(site)
    moves(site, sign_in(site, "ada@example.com"), "countess@example.com")
    with pytest.raises(BrokenRows) as refused:
        imports(site, email="ada@example.com", name="Another Ada")
    assert refused.value.hint is not None
    assert "seven days" in refused.value.hint


def test_an_import_over_a_lapsed_registration_makes_a_new_account(site: OAuthSite, clock: FakeClock) -> None:
    assert registers(site, "ada@example.com", OTHER).status == 200
    clock.move(hours=24)
    imports(site, email="ada@example.com", name="Ada")
    assert refused(site, "ada@example.com", OTHER)


def test_a_registration_with_an_id_of_the_provider_loses_its_password_when_the_owner_comes(
    site: OAuthSite,
) -> None:
    assert registers(site, "ada@example.com", OTHER).status == 200
    user = site.service.accounts.find("ada@example.com")
    with site.service.store.write() as tx:
        tx.change_user(user.id, oauth_id="1001", oauth_issuer=site.service.settings.provider_issuer)
    assert error_of(site.browser().sign_in()) == "account_inactive"
    assert confirms(site, "ada@example.com").status == 200
    assert refused(site, "ada@example.com", OTHER)


def test_links_that_are_asked_for_keep_a_registration_but_not_longer_than_a_week(
    site: OAuthSite, clock: FakeClock
) -> None:
    assert registers(site, "ada@example.com").status == 200
    for _ in range(7):
        clock.move(hours=23)
        assert (
            site.site.client().post("/api/users/register/resend", {"email": "ada@example.com"}).status == 200
        )
        sent(site.service, "ada@example.com")
        clock.move(hours=0.5)
        assert registers(site, "ada@example.com", OTHER).status == 400
    clock.move(hours=4)
    assert registers(site, "ada@example.com", OTHER).status == 200


def test_a_claim_yields_also_to_a_provider_user_without_an_account(
    make_service: Callable[..., Service],
) -> None:
    with oauth_site(make_service, oauth_allow_auto_registration=False) as site:
        add(site, "mallory")
        mallory = sign_in(site, "mallory@example.com")
        assert claim(mallory, "ada@example.com").status == 200
        assert error_of(site.browser().sign_in()) == "user_not_registered"
        assert state(mallory) == ("mallory@example.com", None)


def test_strangers_who_claim_an_address_again_and_again_leave_its_owner_an_email(
    site: OAuthSite, clock: FakeClock
) -> None:
    add(site, "mallory")
    add(site, "ada")
    mallory, ada = sign_in(site, "mallory@example.com"), sign_in(site, "ada@example.com")
    for _ in range(5):
        for _ in range(3):
            assert claim(mallory, "new@example.com").status == 200
            assert mallory.delete("/api/users/me/email").status == 200
        sent(site.service, "new@example.com")
        clock.move(minutes=16)
    moves(site, ada, "new@example.com")


def test_the_admin_of_the_environment_takes_the_place_of_a_strangers_registration(
    site: OAuthSite, tmp_path: Path
) -> None:
    assert registers(site, "root@example.com", OTHER).status == 200
    file = tmp_path / "password"
    file.write_text(PASSWORD)
    env = {"USERS_ADMIN_EMAIL": "root@example.com", "USERS_ADMIN_PASSWORD_FILE": str(file)}
    admin = site.service.first_admin.from_environment(env)
    assert admin is not None
    assert (admin.role, admin.active) == (Role.ADMIN, True)
    assert refused(site, "root@example.com", OTHER)
    sign_in(site, "root@example.com")
    assert site.service.first_admin.from_environment(env) is None
