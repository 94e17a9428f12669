"""Attacks on passkeys: of other sites, browsers, sessions and accounts, with copies, and with bytes that were changed.

Some 300 mutated ceremonies in every run, 10,000 by `USERSCTL_LONG=1 pytest tests/attacks/test_passkeys.py`.
"""

import copy
import json
import random
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from support.authenticator import BE, BS, UP, UV, Authenticator, from_base64, in_base64
from support.commands import OPERATOR
from support.fakes import FakeClock
from support.faults import LONG
from support.mutations import changed_once
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
from support.postbox import sent
from support.second_factors import CONFIRM, SECOND_STEP, second_step
from support.tables import audit, everything
from support.web import Reply, Site

from usersctl.factors import webauthn
from usersctl.factors.passkeys import MOST_USES

ADA = "ada@example.com"

UNVERIFIED: dict[str, dict[str, Any]] = {
    "without verification of the user": {"flags": UP},
    "without presence of the user": {"flags": UV},
    "synced, and cannot be": {"flags": UP | UV | BS},
    "of another site": {"rp_id": "evil.example.com"},
    "from a subdomain": {"origin": "http://apps.localhost:8080"},
    "from another port": {"origin": "http://localhost:3000"},
    "from the number of this machine": {"origin": "http://127.0.0.1:8080"},
    "from a frame": {"crossOrigin": True},
    "from a frame, with the site around it": {"topOrigin": "http://evil.example.com"},
}


@pytest.fixture
def device() -> Authenticator:
    return Authenticator(ORIGIN)


@pytest.fixture
def ada(here: Site) -> Person:
    return with_passkey(here.signed_in(here.add()))


def is_refused(reply: Reply) -> bool:
    return (reply.status, reply.message) == (401, "Invalid passkey")


# --- other places ---


@pytest.mark.parametrize("changes", UNVERIFIED.values(), ids=UNVERIFIED)
def test_a_ceremony_of_another_place_opens_nothing(here: Site, ada: Person, changes: dict[str, Any]) -> None:
    assert is_refused(use_passkey(here.client(), ada.device, **changes))
    assert use_passkey(second_step(here.client(), ADA), ada.device, SECOND_STEP, **changes).status == 401
    assert use_passkey(ada.client, ada.device, CONFIRM, **changes).status in (400, 401)
    more = changes | ({"flags": changes["flags"] | 0x40} if "flags" in changes else {})
    assert add_passkey(ada.client, Authenticator(ORIGIN), **more).status == 400
    assert use_passkey(here.client(), ada.device).status == 200


# --- copies ---


def test_a_copy_is_refused_and_its_owner_told_once(here: Site, ada: Person) -> None:
    twin = copy.deepcopy(ada.device)
    assert use_passkey(here.client(), ada.device).status == 200
    sent(here.service, ADA)
    browser = here.client()
    credential = twin.get(options(browser))
    for _ in range(5):
        assert is_refused(browser.post(SIGN_IN, {"credential": credential}))
    subjects = [email.subject for email in sent(here.service, ADA)]
    assert [subject for subject in subjects if "refused" in subject] == [subjects[-1]]
    assert [row.action for row in audit(here.service)].count("passkey-refused") == 1
    # The one that is ahead goes on.
    assert use_passkey(here.client(), ada.device).status == 200


def test_of_a_copy_that_comes_at_the_same_time_the_owner_is_told_too(
    here: Site, ada: Person, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, theirs = here.client(), here.client()
    use, same = (ada.device.get(options(each), count=100) for each in (ours, theirs))
    verify = webauthn.verify_use

    def verify_while_the_other_signs_in(*given: Any, **by_name: Any) -> webauthn.Assertion:
        monkeypatch.undo()
        assertion = verify(*given, **by_name)
        assert ours.post(SIGN_IN, {"credential": use}).status == 200
        return assertion

    monkeypatch.setattr(webauthn, "verify_use", verify_while_the_other_signs_in)
    assert is_refused(theirs.post(SIGN_IN, {"credential": same}))
    assert [row.action for row in audit(here.service)].count("passkey-refused") == 1
    assert any("refused" in email.subject for email in sent(here.service, ADA))


def test_a_passkey_that_is_removed_while_it_is_verified_opens_nothing_and_is_no_copy(
    here: Site, ada: Person, monkeypatch: pytest.MonkeyPatch
) -> None:
    verify = webauthn.verify_use

    def verify_and_remove(*given: Any, **by_name: Any) -> webauthn.Assertion:
        assertion = verify(*given, **by_name)
        with here.service.store.write() as tx:
            tx.delete_passkeys(1)
        return assertion

    monkeypatch.setattr(webauthn, "verify_use", verify_and_remove)
    assert is_refused(use_passkey(here.client(), ada.device))
    assert "passkey-refused" not in [row.action for row in audit(here.service)]
    assert not any("refused" in email.subject for email in sent(here.service, ADA))


@pytest.mark.parametrize(
    ("stored", "sent_count", "status"), [(5, 5, 401), (5, 4, 401), (5, 0, 401), (5, 6, 200)]
)
def test_a_counter_has_to_grow(here: Site, ada: Person, stored: int, sent_count: int, status: int) -> None:
    assert use_passkey(here.client(), ada.device, count=stored).status == 200
    assert use_passkey(here.client(), ada.device, count=sent_count).status == status


def test_a_copy_is_no_second_step_and_no_fresh_proof(here: Site, ada: Person) -> None:
    twin = copy.deepcopy(ada.device)
    assert use_passkey(here.client(), ada.device).status == 200
    for client, path in ((second_step(here.client(), ADA), SECOND_STEP), (ada.client, CONFIRM)):
        twin.passkeys[0].count = 0
        reply = use_passkey(client, twin, path)
        assert (reply.status, reply.message) == (401 if path == SECOND_STEP else 400, "Invalid code")
    assert [row.action for row in audit(here.service)].count("passkey-refused") == 2


def test_a_synced_passkey_counts_nothing_for_ever(here: Site) -> None:
    cloud = Authenticator(ORIGIN, synced=True, counts=False)
    with_passkey(here.signed_in(here.add()), cloud)
    for _ in range(3):
        assert use_passkey(here.client(), cloud).status == 200


def test_a_passkey_may_begin_to_count(here: Site) -> None:
    cloud = Authenticator(ORIGIN, synced=True, counts=False)
    with_passkey(here.signed_in(here.add()), cloud)
    assert use_passkey(here.client(), cloud, count=1, flags=UP | UV | BE).status == 200
    assert use_passkey(here.client(), cloud, count=0).status == 401


# --- challenges ---


def test_a_challenge_belongs_to_one_browser(here: Site, ada: Person) -> None:
    theirs, ours = here.client(), here.client()
    asked = options(theirs)
    options(ours)
    credential = ada.device.get(asked)
    for client in (ours, here.client(), here.client(cookies={"auth_passkey": "x" * 43})):
        assert is_refused(client.post(SIGN_IN, {"credential": credential}))
    assert theirs.post(SIGN_IN, {"credential": credential}).status == 200


def test_a_challenge_works_once(here: Site, ada: Person) -> None:
    cloud = Authenticator(ORIGIN, synced=True, counts=False)
    add_passkey(ada.client, cloud)
    for authenticator in (ada.device, cloud):
        browser = here.client()
        asked = options(browser)
        credential = authenticator.get(asked)
        assert browser.post(SIGN_IN, {"credential": credential}).status == 200
        assert is_refused(browser.post(SIGN_IN, {"credential": credential}))
        assert is_refused(browser.post(SIGN_IN, {"credential": authenticator.get(asked)}))
        assert ada.client.post(CONFIRM, {"credential": credential}).status in (400, 401)


def test_a_challenge_works_once_in_parallel(here: Site, ada: Person) -> None:
    cloud = Authenticator(ORIGIN, synced=True, counts=False)
    add_passkey(ada.client, cloud)
    browser = here.client()
    credential = cloud.get(options(browser))

    def sign_in(_: int) -> int:
        client = here.client(cookies={"auth_passkey": browser.cookies["auth_passkey"]})
        return client.post(SIGN_IN, {"credential": credential}).status

    with ThreadPoolExecutor(8) as pool:
        assert sorted(pool.map(sign_in, range(16))) == [200] + [401] * 15


def test_a_new_passkey_is_taken_once_in_parallel(here: Site, ada: Person) -> None:
    credential = Authenticator(ORIGIN).create(options(ada.client, TO_ADD))

    def add(_: int) -> int:
        return (
            here.client(cookies=ada.client.cookies.copy())
            .post(OWN, {"credential": credential, "name": "x"})
            .status
        )

    with ThreadPoolExecutor(8) as pool:
        assert sorted(pool.map(add, range(8))) == [200] + [400] * 7


def test_a_challenge_ends_after_ten_minutes(here: Site, ada: Person, clock: FakeClock) -> None:
    browser = here.client()
    credential = ada.device.get(options(browser))
    new = Authenticator(ORIGIN).create(options(ada.client, TO_ADD))
    clock.move(minutes=10)
    assert is_refused(browser.post(SIGN_IN, {"credential": credential}))
    use_passkey(ada.client, ada.device, CONFIRM)
    assert ada.client.post(OWN, {"credential": new, "name": "Late"}).status == 400
    clock.move(hours=-1)  # the clock was set back
    assert is_refused(browser.post(SIGN_IN, {"credential": credential}))


def test_a_challenge_of_a_daemon_whose_clock_is_ahead_is_good(
    here: Site, ada: Person, clock: FakeClock
) -> None:
    browser = here.client()
    credential = ada.device.get(options(browser))
    clock.move(seconds=-11)
    assert is_refused(browser.post(SIGN_IN, {"credential": credential}))
    clock.move(seconds=1)
    assert browser.post(SIGN_IN, {"credential": credential}).status == 200


def test_a_challenge_works_once_also_at_a_daemon_whose_clock_is_behind(here: Site, clock: FakeClock) -> None:
    cloud = Authenticator(ORIGIN, synced=True, counts=False)
    with_passkey(here.signed_in(here.add("grace")), cloud)
    browser = here.client()
    credential, cookies = cloud.get(options(browser)), dict(browser.cookies)
    clock.move(seconds=-10)
    assert browser.post(SIGN_IN, {"credential": credential}).status == 200
    clock.move(minutes=10)
    here.service.cleaner.run(by=OPERATOR)
    assert is_refused(here.client(cookies=cookies).post(SIGN_IN, {"credential": credential}))


@pytest.mark.parametrize("challenge", ["", "x", "a~b~c.d", "é", "x" * 5000])
def test_a_challenge_that_the_service_did_not_give_is_refused(
    here: Site, ada: Person, challenge: str
) -> None:
    browser = here.client()
    options(browser)
    asked = {"challenge": in_base64(challenge.encode())}
    assert is_refused(browser.post(SIGN_IN, {"credential": ada.device.get(asked)}))


def test_challenges_of_two_purposes_do_not_stand_for_one_another(ada: Person) -> None:
    to_add, to_use = options(ada.client, TO_ADD), options(ada.client)
    assert is_refused(ada.client.post(SIGN_IN, {"credential": ada.device.get(to_add)}))
    credential = Authenticator(ORIGIN).create(to_add | {"challenge": to_use["challenge"]})
    assert ada.client.post(OWN, {"credential": credential, "name": "x"}).status == 400


def test_asking_for_challenges_writes_nothing(here: Site, ada: Person) -> None:
    options(ada.client, TO_ADD)  # makes the keys that sign
    options(here.client())
    before = everything(here.service)
    for client in (here.client(), ada.client):
        for _ in range(20):
            options(client)
    assert everything(here.service) == before
    for _ in range(20):
        options(ada.client, TO_ADD)
    after = everything(here.service)
    # Changes of the own account are limited, and several daemons count them in the database.
    counted = [rows.pop("client_counts") for rows in (before, after)]
    assert [row[0] for row in counted[0]] == [row[0] for row in counted[1]]
    assert after == before


# --- sessions and accounts ---


def test_a_session_that_is_not_fresh_adds_and_removes_nothing(
    here: Site, device: Authenticator, clock: FakeClock
) -> None:
    client = here.signed_in(here.add())
    waiting = device.create(options(client, TO_ADD))
    clock.move(minutes=9)
    credential = Authenticator(ORIGIN).create(options(client, TO_ADD))
    clock.move(minutes=1, seconds=1)
    for reply in (
        client.post(TO_ADD, {}),
        client.post(OWN, {"credential": credential, "name": "x"}),
        client.post(OWN, {"credential": waiting, "name": "x"}),
        client.patch(f"{OWN}/1", {"name": "x"}),
        client.delete(f"{OWN}/1"),
    ):
        assert reply.status in (400, 403)
    assert client.post(OWN, {"credential": credential, "name": "x"}).message == "Confirm that it is you"
    assert client.get("/api/users/me/factors").json["passkeys"] == []


def test_an_api_token_reaches_nothing_of_passkeys(here: Site, ada: Person) -> None:
    made = here.service.sessions.create_api_token(1, name="ci", lifetime=None, by=OPERATOR)
    client = here.client(headers={"Authorization": f"Bearer {made.token}"})
    credential = Authenticator(ORIGIN).create(options(ada.client, TO_ADD))
    for method, path, body in (
        ("POST", OPTIONS, {}),
        ("POST", TO_ADD, {}),
        ("POST", OWN, {"credential": credential, "name": "x"}),
        ("PATCH", f"{OWN}/1", {"name": "x"}),
        ("DELETE", f"{OWN}/1", None),
    ):
        reply = client.send(method, path, body)
        assert (reply.status, reply.message) == (403, "Sign in to change this"), path


def test_a_sign_in_that_waits_reaches_nothing_of_passkeys(here: Site, ada: Person) -> None:
    browser = second_step(here.client(), ADA)
    credential = Authenticator(ORIGIN).create(options(ada.client, TO_ADD))
    for method, path, body in (
        ("POST", TO_ADD, {}),
        ("POST", OWN, {"credential": credential, "name": "x"}),
        ("PATCH", f"{OWN}/1", {"name": "x"}),
        ("DELETE", f"{OWN}/1", None),
    ):
        assert browser.send(method, path, body).status == 401


def test_a_passkey_is_added_in_the_session_that_began(here: Site, ada: Person) -> None:
    credential = Authenticator(ORIGIN).create(options(ada.client, TO_ADD))
    same_account = here.client()
    assert use_passkey(same_account, ada.device).status == 200
    bob = here.signed_in(here.add("bob"))
    for client in (same_account, bob):
        assert client.post(OWN, {"credential": credential, "name": "x"}).status == 400
    assert ada.client.post(OWN, {"credential": credential, "name": "x"}).status == 200


def test_a_passkey_belongs_to_one_account(here: Site, ada: Person) -> None:
    name = ada.device.passkeys[0].id
    bob = here.signed_in(here.add("bob"))
    for client in (bob, ada.client):
        reply = add_passkey(client, Authenticator(ORIGIN), id=name)
        assert (reply.status, reply.message) == (400, "This passkey is registered already")
    assert bob.get("/api/users/me/factors").json["passkeys"] == []
    assert use_passkey(here.client(), ada.device).json["user"]["email"] == ADA


def test_the_user_handle_is_that_of_the_account(here: Site, ada: Person) -> None:
    bob = options(here.signed_in(here.add("bob")), TO_ADD)["user"]["id"]
    for handle in (from_base64(bob), b"1", b"", None):
        assert is_refused(use_passkey(here.client(), ada.device, user_handle=handle))


def test_a_deleted_account_takes_its_passkeys_along(here: Site, ada: Person) -> None:
    here.service.accounts.delete([1], by=OPERATOR)
    assert use_passkey(here.client(), ada.device).message == "Unknown passkey"
    assert everything(here.service)["passkeys"] == []


def test_a_page_of_another_site_signs_nobody_in(here: Site, ada: Person) -> None:
    browser = here.client()
    credential = ada.device.get(options(browser))
    for headers in ({"Sec-Fetch-Site": "cross-site"}, {"Origin": "https://evil.example.com"}):
        for path, body in ((OPTIONS, {}), (SIGN_IN, {"credential": credential})):
            assert browser.post(path, body, headers=headers).status == 403


def test_wrong_passkeys_of_one_address_are_limited(here: Site, device: Authenticator) -> None:
    device.create(
        {"pubKeyCredParams": [{"alg": -7}], "challenge": "x", "rp": {"id": "localhost"}, "user": {"id": ""}}
    )
    client = here.client()
    credential = device.get(options(client))
    statuses = [client.post(SIGN_IN, {"credential": credential}).status for _ in range(61)]
    assert statuses == [401] * 60 + [429]


@pytest.mark.slow
def test_a_program_that_signs_in_with_a_passkey_all_day_fills_no_disk(
    here: Site, ada: Person, clock: FakeClock
) -> None:
    grace = with_passkey(here.signed_in(here.add("grace")))

    def signs_in(person: Person) -> int:
        return use_passkey(here.client(), person.device, SIGN_IN).status

    answers = [signs_in(ada) for _ in range(MOST_USES + 10)]
    assert answers == [200] * MOST_USES + [429] * 10
    assert signs_in(grace) == 200, "another account at the same address"
    assert use_passkey(ada.client, ada.device, CONFIRM).status == 429
    clock.move(minutes=10, seconds=10)
    assert signs_in(ada) == 200


def test_no_challenge_credential_or_reason_is_told_to_a_client(here: Site, ada: Person) -> None:
    reply = use_passkey(here.client(), ada.device, origin="https://evil.example.com")
    assert reply.json == {"statusCode": 401, "statusMessage": "Invalid passkey"}
    (line,) = [line for line in here.log if line["event"] == "passkey-login-refused"]
    assert line["why"] == "the origin is another"
    log = here.stream.getvalue()
    for secret in (*ada.client.cookies.values(), in_base64(ada.device.passkeys[0].id)):
        assert secret not in log


# --- bytes that were changed ---

PIECES = [b"\xff\xff", b'"origin"', b"\xa1", b"\x5b", b"\x9f", b"none", b"[" * 200, b"9" * 50, b"\0"]


def mutated(credential: dict[str, Any], chance: random.Random) -> dict[str, Any]:
    changed = copy.deepcopy(credential)
    how = chance.randrange(3)
    if how == 0:  # the JSON of the whole
        text = bytearray(json.dumps(changed).encode())
        changed_once(text, chance.randrange(len(text)), PIECES, chance)
        try:
            made = json.loads(text)
        except (ValueError, RecursionError):
            return changed | {"id": "broken"}
        return made if isinstance(made, dict) else changed | {"response": made}
    fields = changed["response"]
    name = chance.choice(sorted(fields))
    raw = bytearray(from_base64(fields[name]))
    if how == 1:
        raw[chance.randrange(len(raw))] ^= 1 << chance.randrange(8)
    else:
        changed_once(raw, chance.randrange(len(raw)), PIECES, chance)
    fields[name] = in_base64(bytes(raw))
    return changed


def test_no_mutated_passkey_signs_in_and_none_is_an_error_of_the_server(
    make_site: Callable[..., Site], device: Authenticator
) -> None:
    site = make_site(base_url=ORIGIN, limits_enabled=False)
    with_passkey(site.signed_in(site.add()), device)
    device.counts = False
    device.passkeys[0].count = 1000
    browser, chance = site.client(), random.Random(7)
    credential = device.get(options(browser))
    signed = ("clientDataJSON", "authenticatorData", "signature", "userHandle")
    for _ in range(8000 if LONG else 250):
        changed = mutated(credential, chance)
        response = changed.get("response")
        if isinstance(response, dict) and all(
            response.get(name) == credential["response"][name] for name in signed
        ):
            continue  # something changed that means nothing
        reply = browser.post(SIGN_IN, {"credential": changed})
        assert reply.status in (400, 401), (reply.status, changed)
    assert browser.post(SIGN_IN, {"credential": credential}).status == 200


def test_no_mutated_new_passkey_is_an_error_of_the_server(make_site: Callable[..., Site]) -> None:
    site = make_site(base_url=ORIGIN, limits_enabled=False)
    client, chance = site.signed_in(site.add()), random.Random(8)
    for _ in range(2000 if LONG else 60):
        credential = Authenticator(ORIGIN).create(options(client, TO_ADD))
        reply = client.post(OWN, {"credential": mutated(credential, chance), "name": "x"})
        assert reply.status in (200, 400), reply.status
        if reply.status == 200:
            assert client.delete(f"{OWN}/{reply.json['passkey']['id']}").status == 200
