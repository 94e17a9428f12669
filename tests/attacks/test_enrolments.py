"""Intruders with a session, the password or the mailbox of an account: they add a factor of theirs, or meet the owner's."""

import base64
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from support.addresses import (
    OTHER,
    add,
    address_site,
    claim,
    forgets,
    links,
    moves,
    not_me,
    resets,
    sign_in,
)
from support.commands import PASSWORD
from support.fakes import FakeClock
from support.oauth_site import OAuthSite, error_of
from support.postbox import Link
from support.second_factors import CONFIRM, Phone, enrol, finish, second_step, with_phone
from support.tables import query
from support.web import Client, Site, running

from usersctl.service import Service

ADA, EVE = "ada@example.com", "eve@example.com"
WITHOUT_CLIENT_LIMIT = {"failed_logins_per_minute": 10**6}


@pytest.fixture
def mailed(make_service: Callable[..., Service]) -> Iterator[OAuthSite]:
    """A site whose emails are read."""
    with address_site(make_service) as site:
        yield site


def notices(site: OAuthSite, to: str = ADA) -> list[Link]:
    return links(site, to, "/not-me")


def is_back(site: OAuthSite) -> bool:
    """Whether a reset by email, and the new password alone, open Ada's account."""
    (link,) = forgets(site, ADA)
    assert resets(site, link).status == 200
    return site.site.client().login(ADA, OTHER).status == 200


# --- an intruder in a session of one factor adds a factor of theirs ---


def test_the_owner_takes_back_a_factor_that_was_added_after_a_theft_of_the_address(
    mailed: OAuthSite, clock: FakeClock
) -> None:
    add(mailed)
    thief = sign_in(mailed, ADA)
    moves(mailed, thief, EVE)
    clock.move(seconds=1)
    phone = enrol(thief, clock)
    for link in notices(mailed):
        assert not_me(mailed, link).status == 200
    assert is_back(mailed)
    assert mailed.site.client().login(ADA, PASSWORD, code=phone.next_code()).status == 401
    assert thief.get("/api/users/me").status == 401


@pytest.mark.parametrize("order", [1, -1], ids=["oldest first", "newest first"])
def test_the_link_of_one_notice_leaves_those_of_enrolments_in_force(
    mailed: OAuthSite, clock: FakeClock, order: int
) -> None:
    add(mailed)
    thief = sign_in(mailed, ADA)
    change = {
        "currentPassword": PASSWORD,
        "newPassword": "the thief's own",
        "newPasswordConfirmation": "the thief's own",
    }
    assert thief.patch("/api/users/password", change).status == 200
    enrol(thief, clock)
    clock.move(seconds=1)
    assert thief.post("/api/users/me/recovery-codes").status == 200
    assert claim(thief, EVE).status == 200
    found = notices(mailed)[::order]
    assert len(found) == 4
    # Some end with the use of another; each that takes back an enrolment works.
    assert [not_me(mailed, link).status for link in found].count(200) >= 3
    assert is_back(mailed)
    assert query(mailed.service, "SELECT count(*) FROM recovery_codes") == [(0,)]


def test_an_intruder_who_adds_and_removes_factors_all_day_is_told_of_each_time(
    mailed: OAuthSite, clock: FakeClock
) -> None:
    add(mailed)
    thief = sign_in(mailed, ADA)
    for _ in range(5):
        phone = enrol(thief, clock)
        clock.move(seconds=30)
        assert thief.delete("/api/users/me/totp").status == 200
        assert thief.post(CONFIRM, {"password": PASSWORD}).status == 200
    phone = enrol(thief, clock)
    assert not_me(mailed, notices(mailed)[-1]).status == 200
    assert is_back(mailed)
    assert mailed.site.client().login(ADA, OTHER, code=phone.next_code()).status == 200, "there is no factor"


def test_the_owner_takes_back_a_factor_of_an_account_that_the_intruder_deleted(
    mailed: OAuthSite, clock: FakeClock
) -> None:
    add(mailed)
    thief = sign_in(mailed, ADA)
    enrol(thief, clock)
    assert thief.delete("/api/users/me").json == {"success": True}
    (undo,) = links(mailed, ADA, "/undo-deletion")
    body = {"token": undo.token, "email": undo.email}
    assert mailed.site.client().post("/api/users/undo-deletion", body).status == 200
    for link in notices(mailed):
        not_me(mailed, link)
    assert is_back(mailed)


def test_a_link_that_takes_back_an_enrolment_works_once_and_for_its_address_only(
    mailed: OAuthSite, clock: FakeClock
) -> None:
    add(mailed)
    enrol(sign_in(mailed, ADA), clock)
    (link,) = notices(mailed)
    assert not_me(mailed, link._replace(email=EVE)).status == 400
    assert not_me(mailed, link).status == 200
    owner = mailed.site.client()
    (reset,) = forgets(mailed, ADA)
    resets(mailed, reset)
    assert owner.login(ADA, OTHER).status == 200
    enrol(owner, clock)
    assert not_me(mailed, link).status == 400
    assert owner.get("/api/users/me/factors").json["totp"]["enabled"]


# --- an intruder with the password, the mailbox or a session, against the owner's factor ---


def test_other_notices_leave_the_owners_factor_alone(mailed: OAuthSite, clock: FakeClock) -> None:
    """A reader of the mailbox changes the password, and uses the link of that notice."""
    add(mailed)
    phone = enrol(sign_in(mailed, ADA), clock)
    clock.move(days=8)
    (link,) = forgets(mailed, ADA)
    resets(mailed, link)
    assert not_me(mailed, notices(mailed)[-1]).status == 200
    (link,) = forgets(mailed, ADA)
    resets(mailed, link)
    assert finish(second_step(mailed.site.client(), password=OTHER), code=phone.next_code()).status == 200


def test_a_provider_links_no_account_with_a_factor_and_an_address_that_was_never_proven(
    mailed: OAuthSite, clock: FakeClock
) -> None:
    """The factor may be a stranger's who waits inside, or the owner's."""
    add(mailed)
    phone = enrol(sign_in(mailed, ADA), clock)
    browser = mailed.browser()
    assert error_of(browser.sign_in()) == "oauth_failed"
    (link,) = forgets(mailed, ADA)  # which proves the address
    resets(mailed, link)
    assert browser.sign_in().header("Location") == "/second-factor?redirect=%2F"
    assert browser.me() is None
    assert finish(browser.client, code=phone.next_code()).status == 200


# --- guesses ---


@pytest.mark.slow
def test_a_right_password_never_buys_more_than_a_hundred_codes(
    make_service: Callable[..., Service], clock: FakeClock
) -> None:
    """An intruder with a session of one factor and the password clears other failures by changing the password."""
    with running(make_service(**WITHOUT_CLIENT_LIMIT)) as site:
        user = site.add()
        stolen = site.signed_in(user)
        phone = enrol(site.signed_in(user), clock)
        again = {"currentPassword": PASSWORD, "newPassword": PASSWORD, "newPasswordConfirmation": PASSWORD}
        for _ in range(10):
            assert site.client().login(ADA, PASSWORD, code=phone.wrong_code()).status == 401
        assert stolen.patch("/api/users/password", again).status == 200
        for _ in range(22):
            intruder = second_step(site.client())
            assert [finish(intruder, code=phone.wrong_code()).status for _ in range(4)] == [401] * 4
            assert stolen.patch("/api/users/password", again).status == 200
        for _ in range(2):
            assert stolen.post(CONFIRM, {"code": phone.wrong_code()}).status == 400
        assert query(site.service, "SELECT failures FROM totp_secrets") == [(100,)]
        owner = second_step(site.client())
        shut = finish(owner, code=phone.next_code())
        assert (shut.status, shut.header("Retry-After")) == (403, None)
        assert finish(owner, recoveryCode=phone.codes[0]).status == 200
        assert finish(second_step(site.client()), code=phone.next_code()).status == 200


# --- at once ---


def at_once(calls: list[Callable[[], Any]]) -> list[Any]:
    with ThreadPoolExecutor(len(calls)) as pool:
        return list(pool.map(lambda call: call(), calls))


@pytest.fixture
def two(make_service: Callable[..., Service]) -> Iterator[tuple[Site, Site]]:
    """Two daemons on one database, without limits on requests."""
    with (
        running(make_service(limits_enabled=False)) as one,
        running(make_service(limits_enabled=False)) as other,
    ):
        yield one, other


def test_one_pending_sign_in_opens_one_session(two: tuple[Site, Site], clock: FakeClock) -> None:
    """With several right codes at once."""
    _, phone = with_phone(two[0], clock)
    client = second_step(two[0].client())
    copies = [Client(two[n % 2].port, dict(client.cookies)) for n in range(6)]
    calls = [
        lambda n=n, c=copy: finish(c, recoveryCode=phone.codes[n]).status for n, copy in enumerate(copies)
    ]
    assert at_once(calls).count(200) == 1
    assert query(two[0].service, "SELECT count(*) FROM recovery_codes") == [(9,)]


def test_two_enrolments_at_once_leave_one_app(two: tuple[Site, Site], clock: FakeClock) -> None:
    user = two[0].add()
    clients = [two[n].signed_in(user) for n in (0, 1)]
    clients[1].port = two[1].port
    begun = [Phone(base64.b32decode(c.post("/api/users/me/totp").json["secret"]), clock) for c in clients]
    pairs = list(zip(clients, begun, strict=True))
    statuses = at_once(
        [lambda c=c, p=p: c.post("/api/users/me/totp/confirm", {"code": p.code()}).status for c, p in pairs]
    )
    assert statuses.count(200) == 1
    assert query(two[0].service, "SELECT count(*) FROM totp_secrets") == [(1,)]
    assert query(two[0].service, "SELECT count(*) FROM recovery_codes") == [(10,)]
