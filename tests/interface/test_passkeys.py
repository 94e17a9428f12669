"""Passkeys at the interface: added, used to sign in, as a second step and as a fresh proof, renamed and removed."""

import re
from collections.abc import Callable
from typing import Any

import pytest
from support.authenticator import EDDSA, RS256, Authenticator, from_base64
from support.commands import OPERATOR, PASSWORD
from support.factors import store_passkey
from support.fakes import FakeClock
from support.passkeys import (
    OPTIONS,
    ORIGIN,
    OWN,
    SIGN_IN,
    TO_ADD,
    Person,
    add_passkey,
    options,
    use_passkey,
    with_passkey,
)
from support.postbox import last_link, sent
from support.second_factors import CONFIRM, SECOND_STEP, enrol, finish, second_step, with_phone
from support.tables import audit, query, store_hash
from support.web import Site

from usersctl.models import UNUSABLE
from usersctl.sessions import Pending

ADA = "ada@example.com"
FACTORS = "/api/users/me/factors"


@pytest.fixture
def device() -> Authenticator:
    return Authenticator(ORIGIN)


@pytest.fixture
def ada(here: Site) -> Person:
    return with_passkey(here.signed_in(here.add()))


def opened_with(site: Site) -> list[str]:
    return [method for (method,) in query(site.service, "SELECT opened_with FROM auth_tokens ORDER BY id")]


# --- added ---


def test_the_options_to_add_one_ask_for_a_passkey_that_is_two_factors(here: Site) -> None:
    client = here.signed_in(here.add(name="ada"))
    asked = options(client, TO_ADD)
    handle = from_base64(asked["user"].pop("id"))
    assert len(from_base64(asked.pop("challenge"))) > 32
    assert asked == {
        "rp": {"id": "localhost", "name": "Users"},
        "user": {"name": ADA, "displayName": "Ada"},
        "pubKeyCredParams": [{"type": "public-key", "alg": number} for number in (-7, -8, -257)],
        "timeout": 600_000,
        "excludeCredentials": [],
        "authenticatorSelection": {
            "residentKey": "required",
            "requireResidentKey": True,
            "userVerification": "required",
        },
        "attestation": "none",
    }
    assert len(handle) == 32
    assert b"ada" not in handle


def test_the_first_passkey_comes_with_recovery_codes_an_email_and_a_row_of_the_trail(
    here: Site, device: Authenticator
) -> None:
    client = here.signed_in(here.add())
    reply = add_passkey(client, device, "My phone")
    assert reply.status == 200
    assert reply.json["passkey"] == {
        "id": 1,
        "name": "My phone",
        "created_at": "2026-11-20T08:22:19.123Z",
        "last_used_at": None,
        "synced": False,
    }
    assert len(set(reply.json["recoveryCodes"])) == 10
    assert client.get(FACTORS).json == {
        "totp": {"enabled": False, "created_at": None},
        "passkeys": [reply.json["passkey"]],
        "recoveryCodes": 10,
    }
    (email,) = sent(here.service, ADA)
    assert "passkey" in email.subject
    assert [(row.action, row.details) for row in audit(here.service)][-1] == (
        "factor-add",
        {"factor": "passkey", "passkey": 1},
    )
    again = add_passkey(client, Authenticator(ORIGIN, synced=True, counts=False), "Cloud")
    assert "recoveryCodes" not in again.json
    assert again.json["passkey"]["synced"] is True
    assert client.get(FACTORS).json["recoveryCodes"] == 10


def test_devices_are_remembered_until_a_second_factor_is_added_or_removed(
    here: Site, clock: FakeClock
) -> None:
    owner, phone = with_phone(here, clock)
    for change in (
        lambda: add_passkey(owner, Authenticator(ORIGIN)),
        lambda: owner.delete(f"{OWN}/1"),
    ):
        browser = second_step(here.client())
        assert finish(browser, code=phone.next_code(), rememberDevice=True).status == 200
        assert browser.login(ADA, PASSWORD).status == 200
        assert change().status == 200
        assert browser.login(ADA, PASSWORD).message == "Second factor required"


def test_a_passkey_is_shown_as_synced_once_a_use_says_so(here: Site, ada: Person) -> None:
    ada.device.synced = True
    assert use_passkey(here.client(), ada.device).status == 200
    (shown,) = ada.client.get(FACTORS).json["passkeys"]
    assert shown["synced"] is True


@pytest.mark.parametrize("algorithm", [EDDSA, RS256])
def test_other_algorithms_are_taken(here: Site, algorithm: int) -> None:
    ada = with_passkey(here.signed_in(here.add()), Authenticator(ORIGIN, algorithm))
    assert use_passkey(here.client(), ada.device).status == 200
    assert use_passkey(ada.client, ada.device, CONFIRM).status == 200


def test_all_passkeys_of_an_account_have_one_user_handle_and_exclude_one_another(
    ada: Person, here: Site
) -> None:
    asked = options(ada.client, TO_ADD)
    assert [each["id"] for each in asked["excludeCredentials"]] == [
        ada.device.get(options(ada.client))["id"],
    ]
    assert from_base64(asked["user"]["id"]) == ada.device.passkeys[0].user_handle
    other = options(here.signed_in(here.add("bob")), TO_ADD)
    assert other["user"]["id"] != asked["user"]["id"]
    assert other["excludeCredentials"] == []


@pytest.mark.slow
def test_an_account_has_twenty_passkeys_at_most(ada: Person) -> None:
    waiting = ada.device.create(options(ada.client, TO_ADD))
    for _ in range(19):
        assert add_passkey(ada.client, ada.device).status == 200
    reply = ada.client.post(TO_ADD, {})
    assert (reply.status, reply.message) == (400, "You have 20 passkeys: remove one first")
    assert ada.client.post(OWN, {"credential": waiting, "name": "One more"}).status == 400


def test_a_challenge_makes_one_passkey(ada: Person) -> None:
    asked = options(ada.client, TO_ADD)
    made = [Authenticator(ORIGIN).create(asked) for _ in range(2)]
    replies = [ada.client.post(OWN, {"credential": each, "name": "Phone"}) for each in made]
    assert [reply.status for reply in replies] == [200, 400]
    assert replies[1].message == "Begin again: this answer was used before"


@pytest.mark.parametrize("name", ["", " ", "x" * 201, "a\nb", 7, None])
def test_a_passkey_has_a_name(ada: Person, name: Any) -> None:
    credential = ada.device.create(options(ada.client, TO_ADD))
    assert ada.client.post(OWN, {"credential": credential, "name": name}).status == 400
    assert ada.client.patch(f"{OWN}/1", {"name": name}).status == 400
    # The same answer of the browser may be sent again with a better name.
    assert (
        ada.client.post(OWN, {"credential": credential, "name": "  Key  "}).json["passkey"]["name"] == "Key"
    )


@pytest.mark.parametrize("credential", [None, "text", [], {}, {"id": 1}, {"id": "x", "response": {}}])
def test_a_credential_of_another_form_is_refused(ada: Person, credential: Any) -> None:
    body = {"credential": credential, "name": "Key"}
    assert ada.client.post(OWN, body).status == 400
    assert ada.client.post(SIGN_IN, body).status in (400, 401)
    assert ada.client.post(CONFIRM, body).status in (400, 401)


# --- used to sign in ---


def test_a_passkey_signs_in_without_a_name_and_counts_as_both_factors(
    here: Site, ada: Person, clock: FakeClock
) -> None:
    clock.move(minutes=1)
    browser = here.client()
    reply = use_passkey(browser, ada.device)
    assert reply.status == 200
    assert reply.json["user"]["email"] == ADA
    assert reply.json["user"]["last_login_at"] == "2026-11-20T08:23:19.123Z"
    assert browser.get("/api/users/me").json["user"]["email"] == ADA
    assert opened_with(here)[-1] == "passkey"
    (passkey,) = browser.get(FACTORS).json["passkeys"]
    assert passkey["last_used_at"] == "2026-11-20T08:23:19.123Z"
    assert [line["event"] for line in here.log if line["event"].startswith("passkey")][-1] == "passkey-login"
    # It is a fresh proof as well.
    assert browser.delete(f"{OWN}/1").status == 200


def test_a_passkey_sign_in_may_be_remembered(here: Site, ada: Person) -> None:
    for remember, kind in ((True, "persistent"), (False, "session")):
        reply = use_passkey(here.client(), ada.device, body={"rememberMe": remember})
        (cookie,) = [line for line in reply.all("Set-Cookie") if line.startswith("auth_token=")]
        assert ("Max-Age=2592000" in cookie) is remember
        assert query(here.service, "SELECT kind FROM auth_tokens ORDER BY id DESC LIMIT 1") == [(kind,)]


def test_a_session_that_comes_along_ends(here: Site, ada: Person) -> None:
    former = ada.client.cookies["auth_token"]
    assert use_passkey(ada.client, ada.device).status == 200
    assert ada.client.cookies["auth_token"] != former
    assert here.client(cookies={"auth_token": former}).get("/api/users/me").status == 401


def test_the_options_are_the_same_for_all_who_are_not_signed_in(here: Site, ada: Person) -> None:
    known = here.client(cookies={"auth_token_device": ada.client.cookies["auth_token_device"]})
    asked = [
        options(each) for each in (here.client(), known, here.client(cookies={"auth_pending": "x" * 43}))
    ]
    assert len({len(each.pop("challenge")) for each in asked}) == 1
    for each in asked:
        assert each == {
            "rpId": "localhost",
            "timeout": 600_000,
            "userVerification": "required",
            "allowCredentials": [],
        }


def test_a_browser_with_two_sign_ins_that_wait_is_offered_the_passkeys_of_none(
    here: Site, clock: FakeClock
) -> None:
    tokens = []
    for name in ("ada", "bob"):
        with_phone(here, clock, name)
        waiting = here.service.sessions.login(f"{name}@example.com", PASSWORD)
        assert isinstance(waiting, Pending)
        tokens.append(waiting.token)
    with here.service.store.write() as tx:
        store_passkey(tx, 1, "key")
    asked = here.service.passkeys.options
    assert len(asked("browser", pending=tokens[:1])["allowCredentials"]) == 1
    assert asked("browser", pending=tokens)["allowCredentials"] == []


@pytest.mark.parametrize("credential", [{}, {"id": 1}, {"id": "AAAA", "rawId": "AAAA", "type": "public-key"}])
def test_a_credential_that_is_none_has_no_owner(here: Site, credential: dict[str, Any]) -> None:
    assert here.service.passkeys.owner_of(credential) is None


def test_the_cookie_of_the_browser_is_for_the_service_only(make_site: Callable[..., Site]) -> None:
    site = make_site(base_url="https://users.example.com")
    reply = site.client().post(OPTIONS, {})
    (cookie,) = reply.all("Set-Cookie")
    assert re.fullmatch(
        "__Host-auth_passkey=[A-Za-z0-9_-]{43}; Path=/; HttpOnly; SameSite=Lax; Secure; Max-Age=600", cookie
    )
    assert reply.json["publicKey"]["rpId"] == "users.example.com"


def test_two_tabs_of_a_browser_do_not_end_one_another(here: Site, ada: Person) -> None:
    browser = here.client()
    first = options(browser)
    options(browser)
    assert browser.post(SIGN_IN, {"credential": ada.device.get(first)}).status == 200


def test_a_passkey_that_no_account_has_is_unknown(here: Site, ada: Person) -> None:
    assert ada.client.delete(f"{OWN}/1").status == 200
    browser = here.client()
    reply = use_passkey(browser, ada.device)
    assert (reply.status, reply.message) == (401, "Unknown passkey")
    assert browser.get("/api/users/me").status == 401


def test_an_inactive_account_is_told_so(here: Site, ada: Person) -> None:
    here.service.accounts.set_active([1], active=False, by=OPERATOR)
    reply = use_passkey(here.client(), ada.device)
    assert (reply.status, reply.message) == (403, "Account is inactive")
    assert reply.header("X-Account-State") == "deactivated"


def test_a_lockdown_keeps_passkeys_out_except_those_of_its_admin(here: Site, ada: Person) -> None:
    root_device = Authenticator(ORIGIN)
    root = here.add("root", role="admin")
    with_passkey(here.signed_in(root), root_device)
    here.service.lockdown.start(root, by=OPERATOR)
    assert use_passkey(here.client(), ada.device).status == 503
    assert use_passkey(here.client(), root_device).status == 200
    here.service.lockdown.stop(by=OPERATOR)
    assert use_passkey(here.client(), ada.device).status == 200


def test_a_locked_password_does_not_keep_the_passkey_out(here: Site, ada: Person) -> None:
    for _ in range(12):
        here.client().login(ADA, "wrong")
    assert here.client().login(ADA, PASSWORD).status == 429
    assert use_passkey(here.client(), ada.device).status == 200


def test_a_sign_in_with_a_passkey_unlocks_the_password(here: Site, ada: Person) -> None:
    for _ in range(12):
        here.client().login(ADA, "wrong")
    assert use_passkey(here.client(), ada.device).status == 200
    assert here.client().login(ADA, PASSWORD).message == "Second factor required"


def test_a_sign_in_with_a_passkey_opens_an_app_that_wrong_codes_closed(
    here: Site, ada: Person, clock: FakeClock
) -> None:
    phone = enrol(ada.client, clock)
    with here.service.store.write() as tx:
        for _ in range(100):
            tx.count_code(1)
    closed = finish(second_step(here.client()), code=phone.next_code())
    assert (closed.status, closed.header("Retry-After")) == (403, None)
    assert closed.message == (
        "Too many wrong codes: use a recovery code or a passkey, or ask an admin to unlock your account"
    )
    reply = here.client().login(ADA, PASSWORD, code=phone.next_code())
    assert (reply.status, reply.message) == (403, closed.message)
    assert use_passkey(here.client(), ada.device).status == 200
    assert finish(second_step(here.client()), code=phone.next_code()).status == 200


# --- as a second step, and as a fresh proof ---


def test_a_wrong_passkey_counts_as_a_wrong_code(here: Site, ada: Person) -> None:
    browser = second_step(here.client(), ADA)
    for _ in range(5):
        reply = use_passkey(browser, ada.device, SECOND_STEP, rp_id="evil.example")
        assert (reply.status, reply.message) == (401, "Invalid code")
    reply = use_passkey(browser, ada.device, SECOND_STEP)
    assert (reply.status, reply.message) == (401, "Authentication required")
    for _ in range(9):
        assert use_passkey(ada.client, ada.device, CONFIRM, rp_id="evil.example").message == "Invalid code"
    assert use_passkey(ada.client, ada.device, CONFIRM).status == 200


def test_a_passkey_is_a_second_step(here: Site, ada: Person) -> None:
    browser = second_step(here.client(), ADA)
    assert browser.get(SECOND_STEP).json == {"methods": ["recovery", "passkey"]}
    asked = options(browser)
    assert [each["id"] for each in asked["allowCredentials"]] == [ada.device.get(asked)["id"]]
    assert use_passkey(browser, ada.device, SECOND_STEP).status == 200
    assert browser.get("/api/users/me").status == 200
    assert opened_with(here)[-1] == "pwd passkey"


def test_the_passkey_of_another_account_is_no_second_step(here: Site, ada: Person) -> None:
    theirs = with_passkey(here.signed_in(here.add("bob"))).device
    browser = second_step(here.client(), ADA)
    reply = use_passkey(browser, theirs, SECOND_STEP, kept=theirs.passkeys[0])
    assert (reply.status, reply.message) == (401, "Invalid code")
    assert browser.get("/api/users/me").status == 401
    assert use_passkey(browser, ada.device, SECOND_STEP).status == 200


def test_a_passkey_is_a_fresh_proof(ada: Person, clock: FakeClock) -> None:
    clock.move(minutes=11)
    reply = ada.client.delete(f"{OWN}/1")
    assert (reply.status, reply.message) == (403, "Confirm that it is you")
    assert ada.client.post(CONFIRM, {"password": PASSWORD}).status == 403
    asked = options(ada.client)
    assert len(asked["allowCredentials"]) == 1
    assert use_passkey(ada.client, ada.device, CONFIRM).json == {"success": True}
    assert ada.client.delete(f"{OWN}/1").json == {"success": True}


def test_a_recovery_code_stands_for_a_lost_passkey(here: Site, device: Authenticator) -> None:
    codes = add_passkey(here.signed_in(here.add()), device).json["recoveryCodes"]
    browser = second_step(here.client(), ADA)
    assert finish(browser, recoveryCode=codes[0]).status == 200


# --- changed ---


def test_a_passkey_is_renamed_and_removed_by_its_owner_only(here: Site, ada: Person) -> None:
    bob = with_passkey(here.signed_in(here.add("bob"))).client
    for passkey, status in ((1, 404), (3, 404), ("x", 400), ("01", 400)):
        assert bob.patch(f"{OWN}/{passkey}", {"name": "Mine"}).status == status
        assert bob.delete(f"{OWN}/{passkey}").status == status
    assert ada.client.patch(f"{OWN}/1", {"name": "Old phone"}).json == {"success": True}
    assert ada.client.get(FACTORS).json["passkeys"][0]["name"] == "Old phone"
    assert ada.client.delete(f"{OWN}/1").json == {"success": True}
    assert ada.client.get(FACTORS).json["passkeys"] == []
    assert ada.client.get(FACTORS).json["recoveryCodes"] == 0
    assert len(sent(here.service, ADA)) == 2
    assert here.client().login(ADA, PASSWORD).status == 200  # without a factor the password is enough


def test_a_renamed_passkey_is_in_the_audit_trail(here: Site, ada: Person) -> None:
    ada.client.patch(f"{OWN}/1", {"name": "Old phone"})
    last = audit(here.service)[-1]
    assert (last.action, last.actor, last.user_id) == ("passkey-rename", "user:1", 1)
    assert last.details == {"passkey": 1, "name": "Old phone"}


def test_the_last_way_into_an_account_is_not_removed(here: Site, ada: Person) -> None:
    store_hash(here.service, here.service.accounts.get(1), UNUSABLE)
    with here.service.store.write() as tx:
        store_passkey(tx, 1, "old", rp_id="former.example")
    reply = ada.client.delete(f"{OWN}/1")
    assert (reply.status, reply.message) == (
        400,
        "This is the only way into the account: set a password first",
    )
    assert use_passkey(here.client(), ada.device).status == 200
    assert ada.client.delete(f"{OWN}/2").status == 200  # it opens nothing here
    assert add_passkey(ada.client, Authenticator(ORIGIN)).status == 200
    assert ada.client.delete(f"{OWN}/1").json == {"success": True}


def test_a_passkey_of_a_former_host_may_go_though_nothing_else_opens_the_account(
    here: Site, ada: Person
) -> None:
    store_hash(here.service, here.service.accounts.get(1), UNUSABLE)
    with here.service.store.write() as tx:
        store_passkey(tx, 1, "old", rp_id="former.example")
        tx.delete_passkey(1, 1)
    assert ada.client.delete(f"{OWN}/2").json == {"success": True}


def test_what_was_not_me_takes_the_passkey_back(here: Site, ada: Person) -> None:
    link = last_link(here.service, ADA)
    assert here.client().post("/api/users/not-me", {"token": link.token, "email": ADA}).status == 200
    assert use_passkey(here.client(), ada.device).message == "Unknown passkey"
    assert ada.client.get("/api/users/me").status == 401


def test_what_was_not_me_ends_the_recovery_codes_with_the_last_factor(here: Site, clock: FakeClock) -> None:
    client = here.signed_in(here.add())
    enrol(client, clock)
    clock.move(seconds=1)
    add_passkey(client, Authenticator(ORIGIN))
    link = last_link(here.service, ADA)
    assert client.delete("/api/users/me/totp").status == 200
    assert client.get(FACTORS).json["recoveryCodes"] == 10
    assert here.client().post("/api/users/not-me", {"token": link.token, "email": ADA}).status == 200
    assert here.service.factors.of(1)["recoveryCodes"] == 0


# --- where there are none ---


@pytest.mark.parametrize("base_url", ["http://127.0.0.1:8080", "https://192.0.2.7", "http://[::1]:8080"])
def test_there_are_none_at_an_address_that_is_no_name(
    make_site: Callable[..., Site], base_url: str, device: Authenticator
) -> None:
    site = make_site(base_url=base_url)
    client = site.signed_in(site.add())
    asked = {"challenge": "x", "rp": {"id": "x"}, "user": {"id": ""}, "pubKeyCredParams": [{"alg": -7}]}
    credential = device.create(asked)
    for path, body in (
        (OPTIONS, {}),
        (TO_ADD, {}),
        (OWN, {"credential": credential, "name": "Key"}),
        (SIGN_IN, {"credential": device.get(asked)}),
    ):
        reply = client.post(path, body)
        assert (reply.status, reply.message) == (
            400,
            "Passkeys need an address with a name, which baseUrl has not",
        )
    assert client.get(FACTORS).json["passkeys"] == []


def test_none_are_added_where_second_factors_are_off(
    make_site: Callable[..., Site], device: Authenticator
) -> None:
    before = make_site(base_url=ORIGIN)
    with_passkey(before.signed_in(before.add()), device)
    site = make_site(base_url=ORIGIN, second_factor="off")
    browser = site.client()
    assert use_passkey(browser, device).status == 200  # who has one still uses it
    assert browser.post(TO_ADD, {}).status == 403
