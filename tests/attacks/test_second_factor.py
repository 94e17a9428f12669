"""Attacks on the second factor: codes used twice or at once, guessed, or tried past the pending sign-in."""

import multiprocessing
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from support.commands import OPERATOR, PASSWORD, create_user
from support.databases import database_at, fields_of
from support.factors import SEED, add_authenticator_apps
from support.fakes import FakeClock
from support.second_factors import CONFIRM, Phone, enrol, finish, second_step, with_phone
from support.tables import query
from support.web import Client, Reply, Site

from usersctl import devices
from usersctl.clock import stamp
from usersctl.config import Settings
from usersctl.errors import InvalidCode
from usersctl.factors import totp
from usersctl.models import UNKNOWN_CLIENT, Actor, Proof
from usersctl.secrets import sign
from usersctl.service import build
from usersctl.store.conninfo import Database
from usersctl.store.signing_keys import COOKIES

ADA = "ada@example.com"
NOW = datetime.fromisoformat("2026-11-20T08:22:19.123+00:00")
ROUNDS = 20


@pytest.fixture
def phone(site: Site, clock: FakeClock) -> Phone:
    _, phone = with_phone(site, clock)
    return phone


def at_once(*calls: Callable[[], Reply]) -> list[int]:
    barrier = threading.Barrier(len(calls))

    def run(call: Callable[[], Reply]) -> int:
        barrier.wait(10)
        return call().status

    with ThreadPoolExecutor(len(calls)) as pool:
        return sorted(pool.map(run, calls))


# --- once ---


def use_codes(database: Database, folder: Path, tokens: list[str], barrier: Any, results: Any) -> None:
    """One process: for each round a pending sign-in of its own, and the code that the other process has, too."""
    clock = FakeClock(NOW)
    settings = Settings(
        **fields_of(database, folder), base_url="http://127.0.0.1:8080", rounds=4, limits_enabled=False
    )
    service = build(settings, now=clock)
    for number, token in enumerate(tokens):
        code = totp.code_at(SEED, totp.step_at(clock()))
        barrier.wait(30)
        try:
            service.second_step.finish(
                [token],
                Proof(code),
                then=service.sessions.finish,
                client=UNKNOWN_CLIENT,
                by=Actor("anonymous"),
            )
            results.put((number, True))
        except InvalidCode:
            results.put((number, False))
        clock.move(seconds=totp.STEP)
    service.close()


@pytest.mark.slow
def test_of_two_processes_that_use_a_code_at_once_one_succeeds(tmp_path: Path) -> None:
    database = database_at(tmp_path / "users.db")
    settings = Settings(
        **fields_of(database, tmp_path), base_url="http://127.0.0.1:8080", rounds=4, limits_enabled=False
    )
    service = build(settings, now=FakeClock(NOW))
    user = create_user(service, ADA, "Ada", PASSWORD, by=OPERATOR)
    add_authenticator_apps(service, user.id)
    waiting = [[service.sessions.login(ADA, PASSWORD).token for _ in range(ROUNDS)] for _process in range(2)]
    service.close()
    context = multiprocessing.get_context("spawn")
    barrier, results = context.Barrier(2), context.Queue()
    processes = [
        context.Process(target=use_codes, args=(database, tmp_path, tokens, barrier, results))
        for tokens in waiting
    ]
    for process in processes:
        process.start()
    outcomes = [results.get(timeout=60) for _ in range(2 * ROUNDS)]
    for process in processes:
        process.join(60)
    for number in range(ROUNDS):
        assert sorted(was_right for which, was_right in outcomes if which == number) == [False, True], number


def test_a_recovery_code_that_is_used_at_once_works_once(site: Site, phone: Phone) -> None:
    for code in phone.codes[:3]:
        browsers = [second_step(site.client()) for _ in range(8)]
        statuses = at_once(*(partial(finish, browser, recoveryCode=code) for browser in browsers))
        assert statuses.count(200) == 1, statuses
        site.service.throttle.unlock(site.service.accounts.get(1), OPERATOR)


def test_a_code_that_confirms_does_not_sign_in_as_well(site: Site, clock: FakeClock) -> None:
    client, phone = with_phone(site, clock)
    code = phone.next_code()
    assert client.post(CONFIRM, {"code": code}).status == 200
    assert finish(second_step(site.client()), code=code).status == 401


# --- guessed ---


def test_parallel_guesses_on_one_sign_in_get_no_more_than_five_checks(site: Site, phone: Phone) -> None:
    browser = second_step(site.client())
    wrong = phone.wrong_code()
    cookies = dict(browser.cookies)
    guesses = [lambda: finish(Client(site.port, dict(cookies)), code=wrong) for _ in range(8)]
    assert at_once(*guesses) == [401] * 8
    ((counted,),) = query(site.service, "SELECT failures FROM login_failures")
    assert counted == 5
    assert query(site.service, "SELECT * FROM pending_sign_ins") == []


@pytest.mark.slow
def test_who_knows_the_password_gets_eighty_guesses_at_codes(
    site: Site, phone: Phone, clock: FakeClock
) -> None:
    wrong, checks = "12345", 0  # no code of any step
    for _ in range(200):
        client = site.client()
        asked = client.login(ADA, PASSWORD)
        while asked.status == 401 and client.cookies:
            reply = finish(client, code=wrong)
            if reply.status == 401 and reply.message == "Invalid code":
                checks += 1
            elif reply.status == 401:
                break
            clock.move(minutes=2)
        clock.move(minutes=15)
    assert checks == 80
    assert site.client().login(ADA, PASSWORD).status == 429
    assert site.client().login(ADA, PASSWORD, code=phone.code()).status == 429


@pytest.mark.usefixtures("phone")
def test_guesses_with_the_login_count_as_well(site: Site, clock: FakeClock) -> None:
    statuses = []
    for _ in range(120):
        statuses.append(site.client().login(ADA, PASSWORD, code="12345").status)
        clock.move(minutes=15)
    assert statuses == [401] * 80 + [429] * 40


def test_a_sign_in_that_waits_buys_no_code_of_an_account_that_is_locked_meanwhile(
    site: Site, phone: Phone
) -> None:
    """Else many that were begun before would buy as many guesses. A shorter wait holds up no first code."""
    for failures, status in ((79, 200), (80, 429)):
        client = second_step(site.client())
        with site.service.store.write() as tx:
            tx.clear_failures(1)
            for _ in range(failures):
                tx.count_failure("user:1", 1)
        assert finish(client, code=phone.next_code()).status == status


def test_guesses_in_a_stolen_session_share_the_twenty_of_known_devices(site: Site, clock: FakeClock) -> None:
    client, _ = with_phone(site, clock)
    statuses = []
    for _ in range(30):
        statuses.append(client.post(CONFIRM, {"code": "12345"}).status)
        clock.move(minutes=15)
    assert statuses == [400] * 20 + [429] * 10


def test_strangers_at_the_same_address_do_not_keep_a_user_out_of_the_second_step(
    make_site: Callable[..., Site], clock: FakeClock
) -> None:
    site = make_site(failed_logins_per_minute=5)
    client, phone = with_phone(site, clock)
    client.delete("/api/users/session")
    code = phone.next_code()
    for number in range(6):
        site.client().login(f"nobody{number}@example.com", "wrong password")
    assert site.client().login(ADA, PASSWORD).status == 429
    assert finish(second_step(client), code=code).status == 200
    for cookies in ({}, {"auth_pending": "x" * 43}):
        assert finish(site.client(cookies=cookies), code=code).status == 429


# --- past the second step ---


def test_a_pending_sign_in_of_another_account_opens_only_that_one(site: Site, clock: FakeClock) -> None:
    """A stranger plants the cookie of their own sign-in: the code of the victim does not open it."""
    _, phone = with_phone(site, clock)
    with_phone(site, clock, "mallory")
    planted = second_step(site.client(), "mallory@example.com")
    reply = finish(planted, code=phone.next_code())
    assert (reply.status, reply.message) == (401, "Invalid code")


def test_a_stranger_who_plants_a_cookie_does_not_share_the_session(site: Site, phone: Phone) -> None:
    """The stranger knows the password, and the victim finishes the stranger's sign-in: only the victim gets a session."""
    stranger = second_step(site.client())
    victim = site.client(cookies=dict(stranger.cookies))
    assert finish(victim, code=phone.next_code()).status == 200
    assert finish(stranger, code=phone.next_code()).status == 401
    assert stranger.get("/api/users/me").status == 401


def test_a_login_ends_the_planted_sign_in(site: Site, phone: Phone) -> None:
    stranger = second_step(site.client())
    victim = second_step(site.client(cookies=dict(stranger.cookies)))
    assert victim.cookies["auth_pending"] != stranger.cookies["auth_pending"]
    assert finish(stranger, code=phone.next_code()).status == 401


def test_a_new_password_ends_a_sign_in_by_the_old_one(site: Site, clock: FakeClock) -> None:
    owner, phone = with_phone(site, clock)
    thief = second_step(site.client())
    words = {
        "currentPassword": PASSWORD,
        "newPassword": "another battery",
        "newPasswordConfirmation": "another battery",
    }
    assert owner.patch("/api/users/password", words).status == 200
    assert finish(thief, code=phone.next_code()).status == 401


def test_a_session_of_before_the_factor_cannot_remove_it(site: Site, clock: FakeClock) -> None:
    user = site.add()
    thief, owner = site.signed_in(user), site.signed_in(user)
    enrol(owner, clock)
    for method, path in (("DELETE", "/api/users/me/totp"), ("POST", "/api/users/me/recovery-codes")):
        assert thief.send(method, path).message == "Confirm that it is you"
    assert thief.post(CONFIRM, {"password": PASSWORD}).status == 403


def test_a_recovery_code_of_another_account_is_wrong(site: Site, clock: FakeClock) -> None:
    ada, _ = with_phone(site, clock)
    _, mallorys = with_phone(site, clock, "mallory")
    (theirs, *_) = mallorys.codes
    assert finish(second_step(site.client()), recoveryCode=theirs).status == 401
    assert ada.post(CONFIRM, {"recoveryCode": theirs}).status == 400
    assert finish(second_step(site.client(), "mallory@example.com"), recoveryCode=theirs).status == 200


def test_a_device_cookie_of_another_account_or_a_forged_one_remembers_nothing(
    site: Site, clock: FakeClock
) -> None:
    _, phone = with_phone(site, clock)
    _, mallorys = with_phone(site, clock, "mallory")
    mallory = second_step(site.client(), "mallory@example.com")
    assert finish(mallory, code=mallorys.next_code(), rememberDevice=True).status == 200
    device = mallory.cookies["auth_token_device"]
    forged = device.replace("2~", "1~", 1)
    for cookie in (device, forged):
        assert site.client(cookies={"auth_token_device": cookie}).login(ADA, PASSWORD).status == 401
    assert finish(second_step(site.client()), code=phone.next_code()).status == 200


def test_a_thief_of_the_database_cannot_forge_a_remembered_device(site: Site, clock: FakeClock) -> None:
    """It has the key that signs cookies, all that was stored when devices were remembered, and a remembered device of its
    own."""
    _, phone = with_phone(site, clock)
    _, mallorys = with_phone(site, clock, "mallory")
    thief = second_step(site.client(), "mallory@example.com")
    assert finish(thief, code=mallorys.next_code(), rememberDevice=True).status == 200
    owner = second_step(site.client())
    assert finish(owner, code=phone.next_code(), rememberDevice=True).status == 200
    genuine = owner.cookies["auth_token_device"]
    stored = [row.hex() for (row,) in query(site.service, "SELECT token_hash FROM one_time_tokens")]
    clock.move(minutes=1)
    now = stamp(clock())
    key = site.service.store.signing_key(COOKIES)
    of_the_browser = genuine.rpartition(".")[0].split("~")[-1]
    for secret in ("", *stored, of_the_browser):  # this one proves what was then, not now
        text = f"1~x~{now}~{now}~{secret}".rstrip("~")
        forged = sign(key, devices.PURPOSE, text)
        assert site.client(cookies={"auth_token_device": forged}).login(ADA, PASSWORD).status == 401, text
    own = thief.cookies["auth_token_device"].rpartition(".")[0]
    forged = sign(key, devices.PURPOSE, own.replace("2~", "1~", 1))
    assert site.client(cookies={"auth_token_device": forged}).login(ADA, PASSWORD).status == 401
    assert site.client(cookies={"auth_token_device": genuine}).login(ADA, PASSWORD).status == 200


def test_the_second_step_of_another_site_is_refused(site: Site, phone: Phone) -> None:
    client = second_step(site.client())
    headers = {"Sec-Fetch-Site": "cross-site", "Origin": "https://evil.example"}
    reply = client.post("/api/users/session/second-factor", {"code": phone.next_code()}, headers=headers)
    assert (reply.status, reply.message) == (403, "Cross-site requests are not allowed")
