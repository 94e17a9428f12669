"""Devices that are not asked for a second step for 30 days, and what ends that."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from support.commands import OPERATOR, PASSWORD
from support.factors import add_authenticator_apps, store_passkey
from support.fakes import FakeClock
from support.second_factors import Phone, finish, remembered, second_step, with_phone
from support.tables import query
from support.web import Client, Site

from usersctl.clock import stamp
from usersctl.models import User
from usersctl.service import Service
from usersctl.store.transaction import Transaction
from usersd.cookies import DEVICE_PATTERN

ADA = "ada@example.com"


@pytest.fixture
def ada(site: Site, clock: FakeClock) -> tuple[Client, Phone]:
    return with_phone(site, clock)


def test_a_remembered_device_is_not_asked_for_thirty_days(
    site: Site, ada: tuple[Client, Phone], clock: FakeClock
) -> None:
    client = remembered(site, ada[1])
    clock.move(days=29)
    assert client.login(ADA, PASSWORD, rememberDevice=True).status == 200
    ((opened_with,),) = query(site.service, "SELECT opened_with FROM auth_tokens ORDER BY id DESC LIMIT 1")
    assert opened_with == "pwd device"
    clock.move(days=1, seconds=1)  # the sign-in of yesterday, without a factor, does not begin the days again
    assert client.login(ADA, PASSWORD).status == 401
    assert site.client().login(ADA, PASSWORD).status == 401


@pytest.mark.parametrize(("behind", "status"), [(10, 200), (11, 401)])
def test_a_remembered_device_is_not_asked_at_a_daemon_whose_clock_is_behind(
    site: Site, ada: tuple[Client, Phone], clock: FakeClock, behind: int, status: int
) -> None:
    client = remembered(site, ada[1])
    clock.move(seconds=-behind)
    assert client.login(ADA, PASSWORD).status == status


def test_a_device_is_remembered_only_on_request_and_only_after_a_factor(
    site: Site, ada: tuple[Client, Phone]
) -> None:
    _, phone = ada
    client = site.client()
    assert client.login(ADA, PASSWORD, code=phone.next_code()).status == 200
    assert client.login(ADA, PASSWORD, rememberDevice=True).status == 401
    assert client.login(ADA, PASSWORD, code=phone.next_code(), rememberDevice=True).status == 200
    assert client.login(ADA, PASSWORD).status == 200


def test_a_device_remembers_one_account(site: Site, ada: tuple[Client, Phone], clock: FakeClock) -> None:
    with_phone(site, clock, "grace")
    client = remembered(site, ada[1])
    assert client.login("grace@example.com", PASSWORD).status == 401
    assert client.login(ADA, PASSWORD).status == 200


def test_a_device_remembers_each_of_five_accounts(site: Site, clock: FakeClock) -> None:
    names = ("ada", "grace", "alan", "bob", "eve")
    client = site.client()
    for name in names:
        _, phone = with_phone(site, clock, name)
        second_step(client, f"{name}@example.com")
        assert finish(client, code=phone.next_code(), rememberDevice=True).status == 200
    assert [client.login(f"{name}@example.com", PASSWORD).status for name in names] == [200] * 5


def test_the_cookie_of_a_device_may_hold_the_longest_entries_of_five_accounts(service: Service) -> None:
    cookies: list[str] = []
    for number in range(6):
        user_id, since = 2**63 - 1 - number, stamp(service.now())
        cookies = [service.devices.cookie(cookies, user_id, since, remember_for=timedelta(days=30))]
    assert len(service.devices.read(cookies)) == 5
    assert DEVICE_PATTERN.fullmatch(cookies[0])


ENDS_OF_REMEMBERED = pytest.mark.parametrize(
    "end",
    [
        lambda client: client.post("/api/users/me/sessions/end-others"),
        lambda client: client.post("/api/users/me/recovery-codes"),
        lambda client: client.patch(
            "/api/users/password",
            {
                "currentPassword": PASSWORD,
                "newPassword": "another battery",
                "newPasswordConfirmation": "another battery",
            },
        ),
    ],
    ids=["all sessions ended", "factors changed", "password changed"],
)


@ENDS_OF_REMEMBERED
def test_what_ends_remembered_devices(
    site: Site, ada: tuple[Client, Phone], clock: FakeClock, end: Callable[[Client], Any]
) -> None:
    client = remembered(site, ada[1])
    clock.move(seconds=1)
    owner = site.client()
    assert owner.login(ADA, PASSWORD, code=ada[1].next_code()).status == 200
    assert end(owner).status == 200
    replies = [client.login(ADA, password) for password in (PASSWORD, "another battery")]
    assert 200 not in [reply.status for reply in replies]


def test_a_lockdown_ends_remembered_devices(site: Site, ada: tuple[Client, Phone], clock: FakeClock) -> None:
    client = remembered(site, ada[1])
    clock.move(seconds=1)
    site.service.lockdown.start(None, by=OPERATOR)
    site.service.lockdown.stop(by=OPERATOR)
    assert client.login(ADA, PASSWORD).message == "Second factor required"


@ENDS_OF_REMEMBERED
def test_a_daemon_whose_clock_is_behind_ends_remembered_devices(
    site: Site, ada: tuple[Client, Phone], clock: FakeClock, end: Callable[[Client], Any]
) -> None:
    owner = site.client()
    assert owner.login(ADA, PASSWORD, code=ada[1].next_code()).status == 200
    client = remembered(site, ada[1])
    clock.move(seconds=-10)
    assert end(owner).status == 200
    clock.move(seconds=10)
    replies = [client.login(ADA, password) for password in (PASSWORD, "another battery")]
    assert 200 not in [reply.status for reply in replies]


def test_a_lockdown_ends_remembered_devices_also_by_a_clock_that_is_behind(
    site: Site, ada: tuple[Client, Phone], clock: FakeClock
) -> None:
    client = remembered(site, ada[1])
    clock.move(seconds=-10)
    site.service.lockdown.start(None, by=OPERATOR)
    site.service.lockdown.stop(by=OPERATOR)
    clock.move(seconds=10)
    assert client.login(ADA, PASSWORD).message == "Second factor required"


@pytest.mark.parametrize(
    "end",
    [
        lambda tx, user_id: tx.note_factors_changed(user_id),
        lambda tx, user_id: tx.forget_devices(user_id),
        lambda tx, _user_id: tx.forget_remembered(),
    ],
    ids=["factors changed", "all sessions ended", "lockdown"],
)
def test_a_device_whose_sign_in_is_noted_after_the_end_of_remembered_devices_is_asked(
    service: Service, add: Callable[..., User], clock: FakeClock, end: Callable[[Transaction, int], None]
) -> None:
    with_app, with_passkey = add(), add("bob")
    add_authenticator_apps(service, with_app.id)
    with service.store.write() as tx:
        store_passkey(tx, with_passkey.id, "key")
    signed_in, month = stamp(clock()), timedelta(days=30)
    clock.move(seconds=1)
    for user in (with_app, with_passkey):
        with service.store.write() as tx:
            end(tx, user.id)
        cookie = service.devices.cookie([], user.id, signed_in, remember_for=month)
        with service.store.read() as tx:
            assert not service.devices.is_remembered(tx, user.id, [cookie], month)


def test_a_remembered_device_stays_so_when_it_signs_in_again(
    service: Service, add: Callable[..., User], clock: FakeClock
) -> None:
    user, month = add(), timedelta(days=30)
    cookie = service.devices.cookie([], user.id, stamp(clock()), remember_for=month)
    clock.move(days=1)
    cookie = service.devices.cookie([cookie], user.id, stamp(clock()))
    with service.store.read() as tx:
        assert service.devices.is_remembered(tx, user.id, [cookie], month)
    clock.move(days=29)  # it counts from the proof
    with service.store.read() as tx:
        assert not service.devices.is_remembered(tx, user.id, [cookie], month)


def test_a_browser_keeps_the_latest_proof_of_each_account(
    service: Service, add: Callable[..., User], clock: FakeClock
) -> None:
    ada, bob, month, cookies = add(), add("bob"), timedelta(days=30), []
    for user in (ada, ada, bob):  # with one cookie for each sign-in
        cookies.append(service.devices.cookie([], user.id, stamp(clock()), remember_for=month))
        clock.move(days=1)
    clock.move(days=27)  # the first proof is over
    cookie = service.devices.cookie(cookies, ada.id, stamp(clock()))
    with service.store.read() as tx:
        assert service.devices.is_remembered(tx, ada.id, [cookie], month)


def test_a_device_is_not_remembered_without_the_key_that_signed_its_cookie(
    service: Service, add: Callable[..., User], clock: FakeClock
) -> None:
    user, month = add(), timedelta(days=30)
    cookie = service.devices.cookie([], user.id, stamp(clock()), remember_for=month)
    with service.store.write() as tx:
        assert service.devices.is_remembered(tx, user.id, [cookie], month)
        tx.delete_signing_keys()
        assert not service.devices.is_remembered(tx, user.id, [cookie], month)


def test_an_account_that_signs_in_again_and_again_ends_no_memory_of_others(
    service: Service, add: Callable[..., User], clock: FakeClock
) -> None:
    users, cookie = [add(name) for name in ("ada", "bob")], ""
    for user in (users[1], *[users[0]] * 6):
        clock.move(seconds=1)
        cookie = service.devices.cookie([cookie], user.id, stamp(clock()))
    assert [device.user_id for device in service.devices.read([cookie])] == [user.id for user in users]


def test_no_device_is_remembered_with_zero_days(make_site: Callable[..., Site], clock: FakeClock) -> None:
    site = make_site(remember_factor=timedelta())
    _, phone = with_phone(site, clock)
    assert remembered(site, phone).login(ADA, PASSWORD).status == 401


@pytest.mark.parametrize(
    ("days", "text"),
    [
        (1, "Do not ask again on this device for one day"),
        (30, "Do not ask again on this device for 30 days"),
    ],
)
def test_the_page_of_the_second_step_says_how_long_a_device_is_remembered(
    make_site: Callable[..., Site], clock: FakeClock, days: int, text: str
) -> None:
    site = make_site(remember_factor=timedelta(days=days))
    with_phone(site, clock)
    client = site.client()
    client.login(ADA, PASSWORD)
    assert text in client.get("/second-factor").body.decode()


def test_fewer_days_hold_for_devices_that_are_remembered_already(
    make_site: Callable[..., Site], clock: FakeClock
) -> None:
    before = make_site()
    _, phone = with_phone(before, clock)
    client = remembered(before, phone)
    client.port = make_site(remember_factor=timedelta(days=1)).port
    clock.move(hours=23)
    assert client.login(ADA, PASSWORD).status == 200
    clock.move(hours=1)
    assert client.login(ADA, PASSWORD).message == "Second factor required"
