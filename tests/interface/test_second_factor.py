"""The second factor at the interface: sign-in in two steps, authenticator apps, recovery codes, fresh proofs, and "this wasn't me"."""

import base64
import re
from collections.abc import Callable
from contextlib import nullcontext
from datetime import datetime, timedelta
from typing import Any

import pytest
from support.accounts import author, open_session
from support.commands import OPERATOR, PASSWORD
from support.factors import SEED, add_authenticator_apps, store_passkey
from support.fakes import FakeClock
from support.postbox import last_link, link_in, sent
from support.second_factors import (
    CONFIRM,
    SECOND_STEP,
    Phone,
    enrol,
    finish,
    remembered,
    second_step,
    with_phone,
)
from support.tables import audit, query, written
from support.web import Client, Site

from usersctl.errors import Forbidden
from usersctl.factors import totp
from usersctl.factors.totp import matching_step
from usersctl.models import User
from usersctl.permissions import require_fresh
from usersctl.service import Service

ADA = "ada@example.com"
GROUPED = re.compile(r"([a-z2-7]{4}-){5}[a-z2-7]{4}")


@pytest.fixture
def ada(site: Site, clock: FakeClock) -> tuple[Client, Phone]:
    return with_phone(site, clock)


# --- an authenticator app ---


def test_an_app_is_set_up_by_its_first_code_and_brings_ten_recovery_codes(
    site: Site, clock: FakeClock
) -> None:
    client = site.signed_in(site.add())
    assert client.get("/api/users/me/factors").json == {
        "totp": {"enabled": False, "created_at": None},
        "passkeys": [],
        "recoveryCodes": 0,
    }
    begun = client.post("/api/users/me/totp").json
    assert begun["uri"] == (
        f"otpauth://totp/Users:ada@example.com?secret={begun['secret']}&issuer=Users&algorithm=SHA1&digits=6&period=30"
    )
    assert begun["qr"].startswith("<svg ")
    phone = enrol(client, clock)
    assert len(set(phone.codes)) == 10
    assert all(map(GROUPED.fullmatch, phone.codes))
    factors = client.get("/api/users/me/factors").json
    assert factors["totp"] == {"enabled": True, "created_at": "2026-11-20T08:22:19.123Z"}
    assert factors["recoveryCodes"] == 10


def test_no_secret_and_no_recovery_code_lies_open_in_the_database_or_the_log(
    site: Site, ada: tuple[Client, Phone]
) -> None:
    _, phone = ada
    ((secret,),) = query(site.service, "SELECT secret FROM totp_secrets")
    assert phone.secret not in secret
    kept = written(site.service) + site.stream.getvalue().encode()
    for code in phone.codes:
        assert code.encode() not in kept
        assert code.replace("-", "").encode() not in kept


def test_a_wrong_first_code_sets_nothing_up(site: Site) -> None:
    client = site.signed_in(site.add())
    client.post("/api/users/me/totp")
    reply = client.post("/api/users/me/totp/confirm", {"code": "12345"})
    assert (reply.status, reply.message) == (400, "Invalid code")
    assert not client.get("/api/users/me/factors").json["totp"]["enabled"]


def test_an_enrolment_ends_in_the_session_that_began_it(site: Site, clock: FakeClock) -> None:
    user = site.add()
    one, two = site.signed_in(user), site.signed_in(user)
    begun = one.post("/api/users/me/totp").json
    phone = Phone(base64.b32decode(begun["secret"]), clock)
    refused = two.post("/api/users/me/totp/confirm", {"code": phone.code()})
    assert (refused.status, refused.message) == (
        400,
        "Begin again: no authenticator app waits for its first code",
    )
    clock.move(minutes=10)
    one.post(CONFIRM, {"password": PASSWORD})
    assert one.post("/api/users/me/totp/confirm", {"code": phone.code()}).status == 400


def test_an_enrolment_waits_for_ten_minutes(site: Site, clock: FakeClock) -> None:
    client = site.signed_in(site.add())
    phone = Phone(base64.b32decode(client.post("/api/users/me/totp").json["secret"]), clock)
    clock.move(minutes=10, milliseconds=-1)
    assert client.post("/api/users/me/totp/confirm", {"code": phone.code()}).status == 200


def test_an_enrolment_that_has_ended_does_not_set_the_app_up_again(ada: tuple[Client, Phone]) -> None:
    client, phone = ada
    assert client.delete("/api/users/me/totp").status == 200
    again = client.post("/api/users/me/totp/confirm", {"code": phone.next_code()})
    assert (again.status, again.message) == (
        400,
        "Begin again: no authenticator app waits for its first code",
    )


@pytest.mark.parametrize(
    ("meanwhile", "message"),
    [
        ("begun anew", "Begin again: no authenticator app waits for its first code"),
        ("another set up", "An authenticator app is set up already: remove it first"),
    ],
)
def test_of_two_apps_that_are_set_up_at_once_only_the_latest_begun_and_the_first_confirmed_counts(
    site: Site, clock: FakeClock, monkeypatch: pytest.MonkeyPatch, meanwhile: str, message: str
) -> None:
    user = site.add()
    client = site.signed_in(user)
    phone = Phone(base64.b32decode(client.post("/api/users/me/totp").json["secret"]), clock)

    def checked_slowly(secret: bytes, code: str, now: datetime) -> int | None:
        monkeypatch.undo()
        if meanwhile == "begun anew":
            client.post("/api/users/me/totp")
        else:
            add_authenticator_apps(site.service, user.id)
            proof = {"code": Phone(SEED, clock).code()}
            assert client.post("/api/users/session/confirm", proof).status == 200
        return matching_step(secret, code, now)

    monkeypatch.setattr(totp, "matching_step", checked_slowly)
    reply = client.post("/api/users/me/totp/confirm", {"code": phone.code()})
    assert (reply.status, reply.message) == (400, message)
    assert client.get("/api/users/me/factors").json["recoveryCodes"] == 0
    assert "factor-add" not in [row.action for row in audit(site.service)]


def test_an_app_is_set_up_once(ada: tuple[Client, Phone]) -> None:
    reply = ada[0].post("/api/users/me/totp")
    assert (reply.status, reply.message) == (400, "An authenticator app is set up already: remove it first")


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", "/api/users/me/totp", None),
        ("POST", "/api/users/me/totp/confirm", {"code": "123456"}),
        ("DELETE", "/api/users/me/totp", None),
        ("POST", "/api/users/me/recovery-codes", None),
    ],
)
def test_factors_change_after_a_fresh_proof_only(
    ada: tuple[Client, Phone], clock: FakeClock, method: str, path: str, body: Any
) -> None:
    client, _ = ada
    clock.move(minutes=11)
    reply = client.send(method, path, body)
    assert (reply.status, reply.message) == (403, "Confirm that it is you")


@pytest.mark.parametrize(
    ("moved", "is_fresh"),
    [
        (timedelta(minutes=10), True),
        (timedelta(minutes=10, milliseconds=1), False),
        (timedelta(seconds=-10), True),  # at another daemon
        (timedelta(seconds=-10, milliseconds=-1), False),  # the clock was set back
    ],
)
def test_a_proof_is_fresh_for_ten_minutes(
    service: Service, add: Callable[..., User], clock: FakeClock, moved: timedelta, is_fresh: bool
) -> None:
    caller = author(open_session(service, add()))
    clock.now += moved
    with service.store.read() as tx, nullcontext() if is_fresh else pytest.raises(Forbidden):
        require_fresh(tx, caller)


def test_signing_out_ends_a_sign_in_that_waits_for_its_second_factor(
    site: Site, ada: tuple[Client, Phone]
) -> None:
    client = second_step(site.client())
    kept = site.client(cookies=dict(client.cookies))
    assert client.delete("/api/users/session").status == 200
    assert "auth_pending" not in client.cookies
    assert finish(kept, code=ada[1].next_code()).status == 401


def test_factors_are_closed_to_api_tokens(site: Site) -> None:
    user = site.add()
    made = site.service.sessions.create_api_token(user.id, name="ci", lifetime=None, by=OPERATOR)
    client = site.client(headers={"Authorization": f"Bearer {made.token}"})
    for method, path in (
        ("GET", "/api/users/me/factors"),
        ("POST", "/api/users/me/totp"),
        ("POST", "/api/users/me/totp/confirm"),
        ("DELETE", "/api/users/me/totp"),
        ("POST", "/api/users/me/recovery-codes"),
        ("POST", CONFIRM),
    ):
        reply = client.send(method, path)
        assert (reply.status, reply.message) == (403, "Sign in to change this"), path


def test_the_last_factor_takes_the_recovery_codes_along(site: Site, ada: tuple[Client, Phone]) -> None:
    client, _ = ada
    assert client.delete("/api/users/me/totp").json == {"success": True}
    assert client.get("/api/users/me/factors").json["recoveryCodes"] == 0
    assert client.delete("/api/users/me/totp").status == 404
    assert site.client().login(ADA, PASSWORD).status == 200


def test_new_recovery_codes_end_the_old_ones(site: Site, ada: tuple[Client, Phone]) -> None:
    client, phone = ada
    codes = client.post("/api/users/me/recovery-codes").json["recoveryCodes"]
    assert len(codes) == 10
    waiting = second_step(site.client())
    assert finish(waiting, recoveryCode=phone.codes[0]).status == 401
    assert finish(waiting, recoveryCode=codes[0]).status == 200


def test_recovery_codes_come_with_a_factor_only(site: Site) -> None:
    reply = site.signed_in(site.add()).post("/api/users/me/recovery-codes")
    assert (reply.status, reply.message) == (
        400,
        "Recovery codes come with the first passkey or authenticator app",
    )


# --- the second step ---


def test_the_right_password_asks_for_the_second_factor(site: Site, ada: tuple[Client, Phone]) -> None:
    _, phone = ada
    client = site.client()
    reply = client.login(ADA, PASSWORD, rememberMe=True)
    assert (reply.status, reply.message) == (401, "Second factor required")
    (cookie,) = reply.all("Set-Cookie")
    assert re.fullmatch(r"auth_pending=[\w-]{43}; Path=/; HttpOnly; SameSite=Lax; Max-Age=600", cookie)
    assert client.get("/api/users/me").status == 401
    assert client.get(SECOND_STEP).json == {"methods": ["totp", "recovery"]}
    done = finish(client, code=phone.next_code())
    assert done.status == 200
    assert done.json["user"]["email"] == ADA
    assert set(client.cookies) == {"auth_token", "auth_token_device"}
    assert "Max-Age=2592000" in next(line for line in done.cookies() if line.startswith("auth_token="))
    assert client.get("/api/users/me").status == 200


def test_on_https_the_pending_cookie_has_the_host_prefix(
    make_site: Callable[..., Site], clock: FakeClock
) -> None:
    site = make_site(base_url="https://accounts.example.com")
    user = site.add()
    client = site.client()
    client.cookies["__Host-auth_token"] = open_session(site.service, user).token
    enrol(client, clock)
    (cookie,) = site.client().login(ADA, PASSWORD).all("Set-Cookie")
    assert cookie.startswith("__Host-auth_pending=")
    assert "; Secure" in cookie


def test_a_code_may_come_with_the_login(site: Site, ada: tuple[Client, Phone]) -> None:
    _, phone = ada
    client = site.client()
    wrong = client.login(ADA, PASSWORD, code=phone.wrong_code())
    assert (wrong.status, wrong.message) == (401, "Invalid code")
    assert client.cookies == {}
    assert client.login(ADA, PASSWORD, code=phone.next_code()).status == 200


def test_a_code_says_nothing_about_a_wrong_password(site: Site, ada: tuple[Client, Phone]) -> None:
    site.add("grace")
    replies = [
        site.client().login(email, "wrong password", code=ada[1].code(steps=1))
        for email in (ADA, "grace@example.com", "nobody@example.com")
    ]
    assert {(reply.status, reply.message) for reply in replies} == {(401, "Invalid email or password")}
    assert {reply.body for reply in replies} == {replies[0].body}


def test_an_account_without_a_factor_ignores_a_code(site: Site) -> None:
    assert site.client().login(site.add().email, PASSWORD, code="000000").status == 200


def test_an_empty_code_counts_as_left_out_and_is_no_guess(site: Site, ada: tuple[Client, Phone]) -> None:
    client, phone = ada
    waiting = second_step(site.client(), code="")  # as from a form with a field for those who have an app
    for fields in ({"code": ""}, {"code": "", "recoveryCode": ""}) * 3:
        reply = finish(waiting, **fields)
        assert (reply.status, reply.message) == (400, "One of code, recoveryCode and credential is required")
    assert finish(waiting, code="", recoveryCode=phone.codes[0]).status == 200
    refused = client.post(CONFIRM, {"code": "", "password": PASSWORD})
    assert (refused.status, refused.message) == (403, "Second factor required")
    grace = site.signed_in(site.add("grace"))
    assert grace.post(CONFIRM, {"code": "", "password": PASSWORD}).status == 200


def test_a_code_works_once(site: Site, ada: tuple[Client, Phone]) -> None:
    _, phone = ada
    code = phone.next_code()
    assert finish(second_step(site.client()), code=code).status == 200
    assert finish(second_step(site.client()), code=code).status == 401
    assert finish(second_step(site.client()), code=phone.code(steps=-1)).status == 401
    assert finish(second_step(site.client()), code=phone.code(steps=1)).status == 200


def test_the_code_that_set_up_the_app_does_not_sign_in(site: Site, ada: tuple[Client, Phone]) -> None:
    assert finish(second_step(site.client()), code=ada[1].code()).status == 401


def test_clocks_may_differ_by_one_step(site: Site, ada: tuple[Client, Phone], clock: FakeClock) -> None:
    _, phone = ada
    clock.move(minutes=5)
    assert finish(second_step(site.client()), code=phone.code(steps=-2)).status == 401
    assert finish(second_step(site.client()), code=phone.code(steps=2)).status == 401
    assert finish(second_step(site.client()), code=phone.code(steps=-1)).status == 200
    assert finish(second_step(site.client()), code=phone.code(steps=1)).status == 200


def test_a_recovery_code_works_once_however_it_is_typed(site: Site, ada: tuple[Client, Phone]) -> None:
    _, phone = ada
    typed = phone.codes[3].upper().replace("-", "  ")
    client = second_step(site.client())
    assert finish(client, recoveryCode=typed).status == 200
    assert client.get("/api/users/me/factors").json["recoveryCodes"] == 9
    assert finish(second_step(site.client()), recoveryCode=phone.codes[3]).status == 401


def test_five_wrong_codes_end_the_sign_in(site: Site, ada: tuple[Client, Phone]) -> None:
    _, phone = ada
    client = second_step(site.client())
    for _ in range(5):
        reply = finish(client, code=phone.wrong_code())
        assert (reply.status, reply.message) == (401, "Invalid code")
    over = finish(client, code=phone.next_code())
    assert (over.status, over.message) == (401, "Authentication required")
    assert client.get(SECOND_STEP).status == 401


def test_wrong_codes_count_as_failed_logins_which_no_right_password_clears(
    site: Site, ada: tuple[Client, Phone]
) -> None:
    _, phone = ada
    for _ in range(2):
        client = second_step(site.client())
        for _ in range(5):
            assert finish(client, code=phone.wrong_code()).status == 401
    locked = site.client().login(ADA, PASSWORD)
    assert locked.status == 429
    assert locked.header("Retry-After") == "30"


def test_the_owner_passes_both_steps_after_the_delay(
    site: Site, ada: tuple[Client, Phone], clock: FakeClock
) -> None:
    _, phone = ada
    for _ in range(10):
        site.client().login(ADA, "wrong password")
    clock.move(seconds=30)
    client = second_step(site.client())
    assert finish(client, code=phone.code(steps=1)).status == 200  # at once
    assert query(site.service, "SELECT * FROM login_failures") == []


def test_a_lock_that_comes_between_the_steps_holds_the_second_one(
    site: Site, ada: tuple[Client, Phone]
) -> None:
    client = second_step(site.client())
    with site.service.store.write() as tx:
        for _ in range(site.service.throttle.of_strangers):
            tx.count_failure("user:1", 1)
    assert finish(client, code=ada[1].next_code()).status == 429


def test_a_wrong_code_is_a_failed_sign_in_of_the_overview_and_a_right_one_is_none(
    site: Site, ada: tuple[Client, Phone]
) -> None:
    _, phone = ada
    client = second_step(site.client())
    before = site.service.overview.now().days[-1]
    finish(client, code=phone.wrong_code())
    assert site.service.overview.now().days[-1] == before._replace(failed=before.failed + 1)
    assert finish(client, code=phone.next_code()).status == 200
    after = before._replace(failed=before.failed + 1, sign_ins=before.sign_ins + 1)
    assert site.service.overview.now().days[-1] == after


def test_wrong_codes_of_strangers_leave_a_known_device_in(site: Site, ada: tuple[Client, Phone]) -> None:
    client, phone = ada
    with site.service.store.write() as tx:
        tx._run("INSERT INTO login_failures VALUES ('user:1', 1, 80, ?)", (tx.now_text,))
    assert site.client().login(ADA, PASSWORD).status == 429
    client.delete("/api/users/session")
    assert finish(second_step(client), code=phone.next_code()).status == 200


def test_a_sign_in_waits_ten_minutes(site: Site, ada: tuple[Client, Phone], clock: FakeClock) -> None:
    _, phone = ada
    client = second_step(site.client())
    clock.move(minutes=10)
    assert client.get(SECOND_STEP).status == 401
    assert finish(client, code=phone.code()).status == 401
    site.service.cleaner.run(by=OPERATOR)
    assert query(site.service, "SELECT count(*) FROM pending_sign_ins") == [(0,)]


@pytest.mark.usefixtures("ada")
def test_a_pending_sign_in_opens_nothing_else(site: Site) -> None:
    client = second_step(site.client())
    client.cookies["auth_token"] = client.cookies["auth_pending"]
    for method, path in (
        ("GET", "/api/users/me"),
        ("GET", "/api/users/me/factors"),
        ("POST", "/api/users/me/totp"),
        ("DELETE", "/api/users/me/totp"),
        ("POST", CONFIRM),
        ("POST", "/api/users/me/recovery-codes"),
    ):
        assert client.send(method, path).status == 401, path


@pytest.mark.parametrize(
    "end",
    [
        lambda site, _user: site.service.sessions.revoke_all([1], by=OPERATOR),
        lambda site, _user: site.service.accounts.update(1, active=False, by=OPERATOR),
        lambda site, _user: site.service.lockdown.start(None, by=OPERATOR),
    ],
    ids=["sessions ended", "deactivated", "lockdown"],
)
def test_what_ends_all_sessions_ends_a_sign_in_that_waits(
    site: Site, ada: tuple[Client, Phone], end: Callable[[Site, Any], Any]
) -> None:
    _, phone = ada
    client = second_step(site.client())
    end(site, None)
    assert finish(client, code=phone.next_code()).status in (401, 503)
    assert client.get(SECOND_STEP).status in (401, 503)


@pytest.mark.parametrize("path", [SECOND_STEP, CONFIRM])
def test_a_right_proof_opens_the_app_that_wrong_codes_closed(
    site: Site, ada: tuple[Client, Phone], path: str
) -> None:
    client, phone = ada
    for recovery_code in phone.codes[:2]:
        with site.service.store.write() as tx:
            for _ in range(99):
                tx.count_code(1)
        for proof in ({"code": "12345"}, {"recoveryCode": recovery_code}, {"code": phone.next_code()}):
            client = second_step(site.client()) if path == SECOND_STEP else client
            right = proof != {"code": "12345"}
            assert (client.post(path, proof).status == 200) == right, proof


def test_a_right_code_with_the_login_ends_the_count_of_wrong_ones(
    site: Site, ada: tuple[Client, Phone]
) -> None:
    for _ in range(2):
        with site.service.store.write() as tx:
            for _ in range(99):
                tx.count_code(1)
        assert site.client().login(ADA, PASSWORD, code=ada[1].next_code()).status == 200


def test_a_right_password_in_a_session_ends_the_wait_for_the_wrong_ones(site: Site) -> None:
    client = site.signed_in(site.add())
    for _ in range(2):
        for _ in range(9):
            assert client.post(CONFIRM, {"password": "wrong"}).status == 400
        assert client.post(CONFIRM, {"password": PASSWORD}).status == 200


def test_a_right_proof_in_a_session_ends_the_wait_for_the_wrong_ones(ada: tuple[Client, Phone]) -> None:
    client, phone = ada
    for right in ({"code": phone.next_code()}, {"recoveryCode": phone.codes[0]}):
        for _ in range(9):
            assert client.post(CONFIRM, {"code": "12345"}).status == 400
        assert client.post(CONFIRM, right).status == 200


def test_a_sign_in_whose_factor_is_removed_meanwhile_begins_anew(
    site: Site, ada: tuple[Client, Phone]
) -> None:
    client, phone = ada
    waiting = second_step(site.client())
    assert client.delete("/api/users/me/totp").status == 200
    for reply in (waiting.get(SECOND_STEP), waiting.post(SECOND_STEP, {"code": phone.next_code()})):
        assert (reply.status, reply.message) == (401, "Authentication required")
    assert waiting.login("ada@example.com", PASSWORD).status == 200


@pytest.mark.usefixtures("ada")
def test_a_new_login_replaces_the_sign_in_that_waits(site: Site) -> None:
    client = second_step(site.client())
    first = client.cookies["auth_pending"]
    second_step(client)
    assert site.client(cookies={"auth_pending": first}).get(SECOND_STEP).status == 401


def test_a_cookie_that_a_stranger_planted_does_not_hide_the_right_one(
    site: Site, ada: tuple[Client, Phone]
) -> None:
    _, phone = ada
    client = second_step(site.client())
    cookie = f"auth_pending=planted; auth_pending={client.cookies.pop('auth_pending')}"
    reply = client.post(SECOND_STEP, {"code": phone.next_code()}, headers={"Cookie": cookie})
    assert reply.status == 200


@pytest.mark.usefixtures("ada")
@pytest.mark.parametrize("body", [{}, {"code": "123456", "recoveryCode": "abcd"}])
def test_one_proof_is_asked_for(site: Site, body: dict[str, str]) -> None:
    reply = second_step(site.client()).post(SECOND_STEP, body)
    assert (reply.status, reply.message) == (400, "One of code, recoveryCode and credential is required")


def test_the_session_knows_what_it_was_opened_with(site: Site, ada: tuple[Client, Phone]) -> None:
    _, phone = ada
    finish(second_step(site.client()), code=phone.next_code(), rememberDevice=True)
    finish(second_step(site.client()), recoveryCode=phone.codes[0])
    assert [with_ for (with_,) in query(site.service, "SELECT opened_with FROM auth_tokens ORDER BY id")] == [
        "pwd otp",  # the session that set up the app
        "pwd otp",
        "pwd recovery",
    ]


def test_a_sign_in_in_two_steps_is_logged_as_no_refusal(site: Site, ada: tuple[Client, Phone]) -> None:
    client = second_step(site.client())
    finish(client, code=ada[1].wrong_code())
    finish(client, code=ada[1].next_code())
    events = [(line["event"], line.get("reason")) for line in site.log if line["event"] != "request"]
    assert events[-3:] == [
        ("login-waits", "second_factor"),
        ("second-factor-refused", "invalid_code"),
        ("second-factor", None),
    ]


def test_a_right_password_that_waits_is_no_failed_login_of_the_address(
    make_site: Callable[..., Site], clock: FakeClock
) -> None:
    site = make_site(failed_logins_per_minute=1)
    with_phone(site, clock)
    for _ in range(3):
        second_step(site.client())


# --- a fresh proof ---


def test_an_account_with_a_factor_confirms_itself_by_a_factor(
    ada: tuple[Client, Phone], clock: FakeClock
) -> None:
    client, phone = ada
    clock.move(minutes=11)
    refused = client.post(CONFIRM, {"password": PASSWORD})
    assert (refused.status, refused.message) == (403, "Second factor required")
    wrong = client.post(CONFIRM, {"code": phone.wrong_code()})
    assert (wrong.status, wrong.message) == (400, "Invalid code")
    assert client.delete("/api/users/me/totp").status == 403
    assert client.post(CONFIRM, {"code": phone.code()}).json == {"success": True}
    assert client.delete("/api/users/me/totp").status == 200


def test_a_recovery_code_confirms_too(ada: tuple[Client, Phone], clock: FakeClock) -> None:
    client, phone = ada
    clock.move(minutes=11)
    assert client.post(CONFIRM, {"recoveryCode": phone.codes[0]}).status == 200
    assert client.post("/api/users/me/recovery-codes").status == 200


def test_another_session_of_one_factor_is_not_fresh_once_there_are_two(site: Site, clock: FakeClock) -> None:
    user = site.add()
    other, own = site.signed_in(user), site.signed_in(user)
    enrol(own, clock)
    assert other.delete("/api/users/me/totp").status == 403
    assert other.post("/api/users/me/recovery-codes").status == 403


def test_a_remembered_device_is_no_fresh_proof(site: Site, ada: tuple[Client, Phone]) -> None:
    _, phone = ada
    client = second_step(site.client())
    finish(client, code=phone.next_code(), rememberDevice=True)
    assert client.login(ADA, PASSWORD).status == 200
    assert client.delete("/api/users/me/totp").status == 403


# --- emails and trail ---


def test_each_change_is_told_by_email_and_in_the_trail(site: Site, ada: tuple[Client, Phone]) -> None:
    client, _ = ada
    client.post("/api/users/me/recovery-codes")
    client.delete("/api/users/me/totp")
    kinds = [kind for (kind,) in query(site.service, "SELECT kind FROM outbox ORDER BY id")]
    assert kinds == ["totp-added", "recovery-codes-made", "totp-removed"]
    assert [row.action for row in audit(site.service)][1:] == [
        "factor-add",
        "recovery-codes",
        "factor-remove",
    ]


def test_a_used_recovery_code_is_told_by_email_and_in_the_trail(
    site: Site, ada: tuple[Client, Phone]
) -> None:
    finish(second_step(site.client()), recoveryCode=ada[1].codes[0])
    assert ("recovery-code-used",) in query(site.service, "SELECT kind FROM outbox")
    assert audit(site.service)[-1].action == "recovery-code-used"
    assert audit(site.service)[-1].details == {"left": 9}


# --- "this wasn't me" ---


def not_me_link(site: Site, subject: str) -> dict[str, str]:
    """Of the newest email with this in its subject."""
    (*_, email) = (email for email in sent(site.service) if subject in email.subject)
    link = link_in(" ".join(email.parts))
    return {"token": link.token, "email": link.email}


def says_not_me(site: Site, link: dict[str, str]) -> None:
    assert site.client().post("/api/users/not-me", link).status == 200


def factors_of(site: Site, user_id: int) -> tuple[bool, int]:
    factors = site.service.factors.of(user_id)
    return factors["totp"]["enabled"], factors["recoveryCodes"]


def test_this_was_not_me_takes_back_the_enrolment_and_its_recovery_codes(
    site: Site, ada: tuple[Client, Phone]
) -> None:
    thief, _ = ada
    says_not_me(site, not_me_link(site, "authenticator app"))
    assert factors_of(site, 1) == (False, 0)
    assert thief.get("/api/users/me").status == 401
    assert site.client().login(ADA, PASSWORD).status == 401
    assert [row.action for row in audit(site.service)][-2:] == ["factor-take-back", "not-me"]


def test_this_was_not_me_after_the_app_was_set_up_anew_leaves_the_new_one(
    site: Site, ada: tuple[Client, Phone], clock: FakeClock
) -> None:
    client, _ = ada
    link = not_me_link(site, "authenticator app")
    client.delete("/api/users/me/totp")
    clock.move(seconds=30)
    enrol(client, clock)
    says_not_me(site, link)
    assert factors_of(site, 1) == (True, 10)


def test_this_was_not_me_takes_new_recovery_codes_back_and_leaves_the_app(
    site: Site, ada: tuple[Client, Phone], clock: FakeClock
) -> None:
    clock.move(seconds=1)
    ada[0].post("/api/users/me/recovery-codes")
    says_not_me(site, not_me_link(site, "recovery codes"))
    assert factors_of(site, 1) == (True, 0)


def test_another_email_leaves_factors_alone(site: Site, ada: tuple[Client, Phone]) -> None:
    ada[0].patch(
        "/api/users/password",
        {
            "currentPassword": PASSWORD,
            "newPassword": "another battery",
            "newPasswordConfirmation": "another battery",
        },
    )
    says_not_me(site, not_me_link(site, "password"))
    assert factors_of(site, 1) == (True, 10)


def reset_by_email(site: Site, password: str = "another battery") -> None:
    site.client().post("/api/users/password/forgot", {"email": ADA})
    link = last_link(site.service)
    body = {"token": link.token, "email": link.email, "password": password, "password_confirmation": password}
    assert site.client().post("/api/users/password/reset", body).status == 200


def test_a_reset_by_email_removes_no_factor_and_ends_remembered_devices(
    site: Site, ada: tuple[Client, Phone]
) -> None:
    _, phone = ada
    client = remembered(site, phone)
    reset_by_email(site)
    assert factors_of(site, 1) == (True, 10)
    second_step(client, password="another battery")
    assert finish(client, code=phone.next_code()).status == 200


@pytest.mark.usefixtures("ada")
def test_the_owner_takes_a_strangers_factor_back_after_a_reset_too(site: Site) -> None:
    link = not_me_link(site, "authenticator app")
    reset_by_email(site)
    says_not_me(site, link)
    assert factors_of(site, 1) == (False, 0)
    reset_by_email(site, "a third battery")
    assert site.client().login(ADA, "a third battery").status == 200


# --- what else needs a fresh proof ---


def test_the_deletion_of_an_account_with_a_factor_needs_a_fresh_proof_by_it(
    ada: tuple[Client, Phone], clock: FakeClock
) -> None:
    client, phone = ada
    clock.move(minutes=11)
    assert client.delete("/api/users/me", body={"password": PASSWORD}).message == "Confirm that it is you"
    client.post(CONFIRM, {"code": phone.code()})
    assert client.delete("/api/users/me").json == {"success": True}
    assert client.get("/api/users/me").status == 401


def test_a_new_address_of_an_account_with_a_factor_needs_a_fresh_proof_by_it(
    site: Site, ada: tuple[Client, Phone], clock: FakeClock
) -> None:
    client, phone = ada
    assert client.patch("/api/users/me", {"email": "new@example.com"}).status == 200
    link = last_link(site.service, "new@example.com")
    proof = {"token": link.token, "email": link.email, "password": PASSWORD}
    stranger = site.client().post("/api/users/me/email", proof)
    assert (stranger.status, stranger.message) == (403, "Confirm that it is you")
    other = site.signed_in(site.add("grace")).post("/api/users/me/email", proof)
    assert (other.status, other.message) == (403, "Confirm that it is you")
    clock.move(minutes=11)
    assert client.post("/api/users/me/email", proof).status == 403
    client.post(CONFIRM, {"code": phone.code()})
    del proof["password"]
    assert client.post("/api/users/me/email", proof).json["message"] == "Email changed"


def test_the_page_of_a_new_address_asks_for_a_factor_of_the_account_that_the_link_is_of(
    site: Site, ada: tuple[Client, Phone], clock: FakeClock
) -> None:
    client, _ = ada
    client.patch("/api/users/me", {"email": "new@example.com"})
    link = last_link(site.service, "new@example.com")
    path = f"{link.path}?token={link.token}&email={link.email}"
    other = with_phone(site, clock, "grace")[0]
    for browser, page, asked in (
        (client, path, True),
        (other, path, False),  # who is asked for the password of the account
        (client, f"{link.path}?token=none&email={link.email}", True),
    ):
        html = browser.get(page).body.decode()
        assert ('id="proof-code"' in html, 'id="password"' in html) == (asked, not asked), page


@pytest.mark.usefixtures("ada")
def test_deleting_a_user_removes_all_factors(site: Site) -> None:
    second_step(site.client())
    with site.service.store.write() as tx:
        tx.begin_totp(1, 1, b"sealed", timedelta(hours=1))
        store_passkey(tx, 1, "of ada")
    tables = ("totp_secrets", "passkeys", "recovery_codes", "pending_sign_ins", "totp_enrolments")
    rows = {table: query(site.service, f"SELECT * FROM {table}") for table in tables}  # noqa: S608 - a constant
    assert all(rows.values()), rows
    site.service.accounts.delete([1], by=OPERATOR)
    for table in tables:
        assert query(site.service, f"SELECT * FROM {table}") == [], table  # noqa: S608 - a constant
