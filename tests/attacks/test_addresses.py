"""Whose an address is: attacks through its change, and what each of them comes to."""

from collections.abc import Callable, Iterator

import pytest
from support.addresses import (
    OTHER,
    add,
    address_site,
    claim,
    confirms,
    email_of,
    forgets,
    imports,
    links,
    moves,
    not_me,
    prove,
    provider,
    refused,
    registers,
    resets,
    sign_in,
    state,
    subjects,
)
from support.commands import OPERATOR, PASSWORD
from support.fakes import FakeClock
from support.oauth_site import OAuthSite, error_of, oauth_site
from support.postbox import sent
from support.second_factors import enrol, finish, second_step
from support.tables import query

from usersctl.factors.reset import Chosen
from usersctl.models import SYSTEM
from usersctl.service import Service
from usersctl.transfer.writing import BrokenRows


@pytest.fixture
def site(make_service: Callable[..., Service]) -> Iterator[OAuthSite]:
    with address_site(make_service) as site:
        yield site


# --- claims ---


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


def test_an_account_that_was_handed_over_as_the_manual_says_opens_to_its_former_holder_in_no_way(
    site: OAuthSite, clock: FakeClock
) -> None:
    """An operator's change of the address alone leaves everything that is not an email."""
    service, user = site.service, site.proven()
    browser = provider(site, "1001")
    persistent = browser.client
    phone = enrol(persistent, clock)
    remembered = second_step(site.site.client())
    assert finish(remembered, code=phone.next_code(), rememberDevice=True).status == 200
    device = {name: value for name, value in remembered.cookies.items() if "device" in name}
    opened = service.sessions.create_api_token(user.id, name="ci", lifetime=None, by=OPERATOR)
    machine = site.site.client(headers={"Authorization": f"Bearer {opened.token}"})
    notices = links(site, "ada@example.com", "/not-me")
    assert notices
    service.accounts.update(user.id, email="later@example.com", by=OPERATOR)
    assert {email_of(client) for client in (persistent, remembered, machine)} == {"later@example.com"}
    assert site.site.client(cookies=device).login("later@example.com", PASSWORD).status == 200
    clock.move(seconds=1)
    service.accounts.update(user.id, unlink="oauth", by=OPERATOR)
    service.factor_reset.run(user.id, Chosen(), by=OPERATOR)
    service.accounts.set_password(user.id, OTHER, by=OPERATOR)
    for client in (persistent, remembered, machine):
        assert client.get("/api/users/me").status == 401
    assert site.site.client(cookies=device).login("later@example.com", PASSWORD).status == 401
    theirs = provider(site, "1001").me() or {}  # an account of their own
    assert theirs["id"] != user.id
    assert all(not_me(site, link).status == 400 for link in notices)
    assert email_of(sign_in(site, "later@example.com", OTHER)) == "later@example.com"


def test_a_claim_yields_also_to_a_provider_user_without_an_account(
    make_service: Callable[..., Service],
) -> None:
    with oauth_site(make_service, oauth_allow_auto_registration=False) as site:
        add(site, "mallory")
        mallory = sign_in(site, "mallory@example.com")
        assert claim(mallory, "ada@example.com").status == 200
        assert error_of(site.browser().sign_in()) == "user_not_registered"
        assert state(mallory) == ("mallory@example.com", None)


@pytest.mark.slow
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


# --- the way back ---


def test_a_former_address_is_reserved_for_the_week_of_the_notice(site: OAuthSite, clock: FakeClock) -> None:
    add(site)
    moves(site, sign_in(site, "ada@example.com"), "new@example.com")
    assert registers(site, "ada@example.com").status == 400
    assert error_of(site.browser().sign_in("1001")) == "oauth_failed"
    clock.move(days=7)
    site.service.cleaner.run(by=SYSTEM)
    assert query(site.service, "SELECT * FROM reserved_emails") == []
    assert not_me(site, links(site, "ada@example.com", "/not-me")[-1]).status == 400
    assert registers(site, "ada@example.com").status == 200


def test_a_deactivated_account_keeps_no_former_address(site: OAuthSite) -> None:
    ada = add(site)
    moves(site, sign_in(site, "ada@example.com"), "new@example.com")
    assert registers(site, "ada@example.com").status == 400
    site.service.accounts.set_active([ada.id], active=False, by=OPERATOR)
    assert registers(site, "ada@example.com").status == 200


def test_a_later_notice_keeps_the_former_address_for_the_week_of_its_own_link(
    site: OAuthSite, clock: FakeClock
) -> None:
    add(site)
    moves(site, sign_in(site, "ada@example.com"), "thief@example.com")
    clock.move(days=5)
    enrol(sign_in(site, "thief@example.com"), clock)
    notice = links(site, "ada@example.com", "/not-me")[-1]
    clock.move(days=6)
    assert registers(site, "ada@example.com").status == 400
    assert not_me(site, notice).status == 200
    assert forgets(site, "ada@example.com")


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


def test_an_import_does_not_take_an_address_that_is_reserved(site: OAuthSite) -> None:
    add(site)
    moves(site, sign_in(site, "ada@example.com"), "countess@example.com")
    with pytest.raises(BrokenRows) as refused:
        imports(site, email="ada@example.com", name="Another Ada")
    assert refused.value.hint is not None
    assert "seven days" in refused.value.hint
