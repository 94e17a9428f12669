"""The verifier of passkeys, judged by two others over the same ceremonies.

Some 900 mutated ceremonies in every run, 10,000 by `USERSCTL_LONG=1 pytest tests/core/test_webauthn.py`.
"""

import copy
import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest
from fido2 import cbor
from fido2.server import Fido2Server
from fido2.webauthn import AttestedCredentialData, PublicKeyCredentialRpEntity
from support.authenticator import (
    AT,
    BS,
    ED,
    ES256,
    UP,
    UV,
    Authenticator,
    Kept,
    from_base64,
    in_base64,
)
from support.faults import LONG
from support.mutations import changed_once
from webauthn import verify_authentication_response, verify_registration_response
from webauthn.helpers.cose import COSEAlgorithmIdentifier

from usersctl.errors import PasskeyRefused
from usersctl.factors.cbor import item_at, only_item
from usersctl.factors.webauthn import (
    ALGORITHMS,
    MAX_KEY,
    Site,
    credential_id,
    verify_new,
    verify_use,
)

SITE = Site("users.example.com", "https://users.example.com")
CHALLENGE = bytes(range(32))
CREATE = {
    "challenge": in_base64(CHALLENGE),
    "rp": {"id": SITE.rp_id, "name": "Users"},
    "user": {"id": in_base64(b"u" * 32)},
    "pubKeyCredParams": [{"type": "public-key", "alg": number} for number in ALGORITHMS],
}
GET = {"challenge": in_base64(CHALLENGE), "rpId": SITE.rp_id}

Credential = dict[str, Any]


@contextmanager
def refusal(why: str = "") -> Iterator[None]:
    with pytest.raises(PasskeyRefused, match=r"^Invalid passkey$") as refused:
        yield
    assert why in refused.value.why


def is_challenge(sent: bytes) -> bool:
    return sent == CHALLENGE


def an_authenticator(algorithm: int = ES256, **how: Any) -> Authenticator:
    return Authenticator(SITE.origin, algorithm, **how)


def made(credential: Credential) -> Any:
    return verify_new(credential, SITE, is_challenge)


def used(credential: Credential, kept: Kept) -> Any:
    return verify_use(credential, SITE, is_challenge, public_key=kept.cose)


# --- what is accepted ---


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("synced", [False, True])
def test_a_passkey_is_made_and_used(algorithm: int, synced: bool) -> None:
    authenticator = an_authenticator(algorithm, synced=synced)
    new = made(authenticator.create(CREATE))
    (kept,) = authenticator.passkeys
    assert new == (CHALLENGE, kept.id, kept.cose, algorithm, 1, synced)
    credential = authenticator.get(GET)
    assert credential_id(credential) == kept.id
    assert used(credential, kept) == (CHALLENGE, 2, synced, b"u" * 32)


def test_a_user_handle_may_be_missing() -> None:
    authenticator = an_authenticator()
    authenticator.create(CREATE)
    assert used(authenticator.get(GET, user_handle=None), authenticator.passkeys[0]).user_handle is None


@pytest.mark.parametrize("name", ["packed", "tpm", "fido-u2f", "apple"])
def test_an_attestation_that_the_browser_left_counts_for_nothing(name: str) -> None:
    statement = {"alg": -7, "sig": b"whatever", "x5c": [b"certificate"]}
    assert made(an_authenticator().create(CREATE, format=name, statement=statement))


def test_extensions_of_the_authenticator_are_read_over() -> None:
    authenticator = an_authenticator()
    extensions = cbor.encode({"credProtect": 3, "hmac-secret": True, "minPinLength": 4})
    assert made(authenticator.create(CREATE, extensions=extensions, flags=UP | UV | AT | ED))
    assert used(authenticator.get(GET, extensions=extensions), authenticator.passkeys[0])


# --- what is refused ---

OTHER_PLACES: dict[str, dict[str, Any]] = {
    "another origin": {"origin": "https://evil.example.com"},
    "a subdomain, which may use the RP ID": {"origin": "https://apps.users.example.com"},
    "the parent domain": {"origin": "https://example.com"},
    "another port": {"origin": "https://users.example.com:8443"},
    "another scheme": {"origin": "http://users.example.com"},
    "a slash at the end": {"origin": "https://users.example.com/"},
    "capitals": {"origin": "https://USERS.example.com"},
    "no text": {"origin": None},
    "a frame in a page of another site": {"crossOrigin": True},
    "a frame, said otherwise": {"crossOrigin": "false"},
    "the site around a frame": {"topOrigin": "https://users.example.com"},
    "another challenge": {"challenge": in_base64(bytes(32))},
    "no challenge": {"challenge": ""},
    "a challenge that is no text": {"challenge": 1},
    "another RP ID": {"rp_id": "example.com"},
    "no verification of the user": {"flags": UP},
    "no presence of the user": {"flags": UV},
    "neither": {"flags": 0},
    "synced, and cannot be": {"flags": UP | UV | BS},
}


@pytest.mark.parametrize("changes", OTHER_PLACES.values(), ids=OTHER_PLACES)
def test_a_ceremony_of_another_place_is_refused(changes: dict[str, Any]) -> None:
    authenticator = an_authenticator()
    authenticator.create(CREATE)
    with refusal():
        used(authenticator.get(GET, **changes), authenticator.passkeys[0])
    if "flags" in changes:
        changes = {"flags": changes["flags"] | AT}
    with refusal():
        made(an_authenticator().create(CREATE, **changes))


def test_the_two_ceremonies_do_not_stand_for_one_another() -> None:
    authenticator = an_authenticator()
    with refusal():
        made(authenticator.create(CREATE, type="webauthn.get"))
    with refusal():
        used(authenticator.get(GET, type="webauthn.create"), authenticator.passkeys[0])
    with refusal("instead of using one"):
        used(authenticator.get(GET, flags=UP | UV | AT), authenticator.passkeys[0])
    with refusal("made no passkey"):
        made(authenticator.create(CREATE, flags=UP | UV))


def test_the_signature_of_another_key_is_refused() -> None:
    authenticator, other = an_authenticator(), an_authenticator()
    authenticator.create(CREATE)
    other.create(CREATE)
    with refusal("signature"):
        used(authenticator.get(GET), other.passkeys[0])


@pytest.mark.parametrize(
    "key",
    [
        {},
        {1: 2, 3: -7, -1: 1, -2: bytes(32), -3: bytes(32)},  # no point of the curve
        {1: 2, 3: -7, -1: 2, -2: b"x" * 48, -3: b"y" * 48},  # P-384
        {1: 2, 3: -7, -1: 1, -2: b"x" * 31, -3: b"y" * 32},
        {1: 2, 3: -7, -1: 1, -2: b"x" * 32, -3: True},  # a compressed point
        {1: 1, 3: -8, -1: 6, -2: b"x" * 31},
        {1: 1, 3: -8, -1: 7, -2: b"x" * 57},  # Ed448
        {1: 3, 3: -257, -1: b"\xff" * 128, -2: b"\1\0\1"},  # 1024 bits
        {1: 3, 3: -257, -1: b"\xff" * 1000, -2: b"\1\0\1"},  # 8000 bits
        {1: 3, 3: -257, -1: b"\xff" * 256, -2: b"\1"},
        {1: 3, 3: -257, -1: b"\xff" * 256, -2: b"\xff" * 256},
        {1: 3, 3: -65535, -1: b"\xff" * 256, -2: b"\1\0\1"},  # SHA-1
        {1: 3, 3: -7, -1: b"\xff" * 256, -2: b"\1\0\1"},
    ],
    ids=str,
)
def test_a_key_of_another_kind_is_refused(key: dict[Any, Any]) -> None:
    with refusal("key"):
        made(an_authenticator().create(CREATE, cose=cbor.encode(key)))


def test_a_key_that_would_fill_the_database_is_refused() -> None:
    """A reader of the key skips members that it does not know, and each use of the passkey would read them."""
    authenticator = an_authenticator()
    authenticator.create(CREATE)
    key: dict[Any, Any] = dict(cbor.decode(authenticator.passkeys[0].cose))  # type: ignore[call-overload]
    assert made(authenticator.create(CREATE, cose=cbor.encode(key | {"more": bytes(100)})))
    with refusal("too long"):
        made(authenticator.create(CREATE, cose=cbor.encode(key | {"more": bytes(MAX_KEY)})))


def test_extensions_are_a_map_and_the_last_of_the_data() -> None:
    authenticator = an_authenticator()
    authenticator.create(CREATE)
    for extensions in (cbor.encode(["credProtect"]), cbor.encode(3), cbor.encode({}) + b"\0"):
        with refusal("another"):
            used(authenticator.get(GET, extensions=extensions), authenticator.passkeys[0])
        with refusal("another"):
            made(authenticator.create(CREATE, extensions=extensions, flags=UP | UV | AT | ED))


@pytest.mark.parametrize("name", [b"", b"short", bytes(15), bytes(1024)], ids=len)
def test_a_credential_id_of_another_length_is_refused(name: bytes) -> None:
    with refusal("credential id"):
        made(an_authenticator().create(CREATE, id=name))


def test_the_credential_id_is_that_of_the_authenticator() -> None:
    credential = an_authenticator().create(CREATE)
    credential["id"] = credential["rawId"] = in_base64(bytes(20))
    with refusal("another"):
        made(credential)


def test_bytes_have_one_spelling_only() -> None:
    authenticator = an_authenticator()
    authenticator.create(CREATE)
    credential = authenticator.get(GET)
    name = credential["id"]  # 20 bytes: the last of 27 characters has bits to spare
    for spelling in (f"{name}=", f" {name}", f"{name}\n", f"{name[:-1]}{chr(ord(name[-1]) + 1)}", f"{name}é"):
        with refusal("base64url"):
            credential_id(credential | {"id": spelling, "rawId": spelling})


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("id",), None),
        (("id",), 1),
        (("rawId",), in_base64(bytes(20))),
        (("type",), "password"),
        (("response",), None),
        (("response",), "text"),
        (("response", "clientDataJSON"), None),
        (("response", "clientDataJSON"), in_base64(b"[" * 20_000)),
        (("response", "clientDataJSON"), in_base64(b"[]")),
        (("response", "clientDataJSON"), in_base64(b'{"type":"webauthn.get","n":' + b"9" * 5000 + b"}")),
        (("response", "clientDataJSON"), in_base64(b"\xff\xfe")),
        (("response", "authenticatorData"), ""),
        (("response", "authenticatorData"), []),
        (("response", "signature"), ""),
        (("response", "userHandle"), 7),
    ],
)
def test_a_field_of_another_form_is_refused(path: tuple[str, ...], value: Any) -> None:
    authenticator = an_authenticator()
    authenticator.create(CREATE)
    credential = authenticator.get(GET)
    inside = credential
    for name in path[:-1]:
        inside = inside[name]
    inside[path[-1]] = value
    assert not accepted(lambda: (credential_id(credential), used(credential, authenticator.passkeys[0])))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x80" * 40,  # then nothing
        b"\x81" * 40 + b"\x00",  # nested
        b"\x9f\xff",  # of no stated length
        b"\x5f\x41a\xff",
        b"\xbb" + b"\xff" * 8,  # a map of 2^64 pairs
        b"\x9b" + b"\xff" * 8,
        b"\x5b" + b"\xff" * 8,
        b"\xa2\x01\x02\x01\x03",  # one key twice
        b"\xa1\xf6\x01",  # a key that is null
        b"\xa1\xf5\x01",  # true, which Python takes for 1
        b"\xa1\x41a\x01",
        b"\x62\xc3\x28",  # no UTF-8
        b"\xf9\x00\x00",  # a float
        b"\xc1\x00",  # a tag
        b"\xf6",
        b"\xf7",
        b"\x00\x00",
    ],
    ids=bytes.hex,
)
def test_cbor_beyond_what_authenticators_write_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"CBOR|utf-8"):
        only_item(data)


@pytest.mark.parametrize("beginning", [b"\x81", b"\xa1\x00"], ids=["arrays", "maps"])
def test_cbor_is_nested_four_times_at_most(beginning: bytes) -> None:
    only_item(beginning * 4 + b"\x00")
    with pytest.raises(ValueError, match="nested too deeply"):
        only_item(beginning * 5 + b"\x00")


@pytest.mark.parametrize("data", [b"\x42\x00", b"\x62a", b"\x19\x01", b"\x82\x00", b"\xa1\x00"])
def test_cbor_that_ends_too_early_is_refused_wherever_it_stands(data: bytes) -> None:
    with pytest.raises(ValueError, match="the CBOR"):
        item_at(data, 0)


@pytest.mark.parametrize("data", [b"\xf8\x14", b"\xf8\x15", b"\xf9\x00\x15"])
def test_a_longer_form_of_true_and_false_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match="does not know"):
        only_item(data)


def test_cbor_is_read_as_others_read_it() -> None:
    for value in (
        {1: 2, "fmt": "none", -3: [b"x" * 300, "ü", True, False, 2**40]},
        [],
        {},
        -(2**33),
        0,
        23,
        24,
    ):
        assert only_item(cbor.encode(value)) == value


# --- the second opinions ---

SERVER = Fido2Server(
    PublicKeyCredentialRpEntity(id=SITE.rp_id, name="Users"),
    verify_origin=lambda origin: origin == SITE.origin,
)
STATE = {"challenge": in_base64(CHALLENGE), "user_verification": "required"}
SUPPORTED = [COSEAlgorithmIdentifier(number) for number in ALGORITHMS]


def fido2_accepts_new(credential: Credential) -> None:
    SERVER.register_complete(STATE, credential)


def fido2_accepts_use(credential: Credential, kept: Kept) -> None:
    known = AttestedCredentialData.create(bytes(16), kept.id, cbor.decode(kept.cose))  # type: ignore[arg-type]
    SERVER.authenticate_complete(STATE, [known], credential)


def py_webauthn_accepts_new(credential: Credential) -> None:
    verify_registration_response(
        credential=credential,
        expected_challenge=CHALLENGE,
        expected_rp_id=SITE.rp_id,
        expected_origin=SITE.origin,
        require_user_verification=True,
        supported_pub_key_algs=SUPPORTED,
    )


def py_webauthn_accepts_use(credential: Credential, kept: Kept) -> None:
    verify_authentication_response(
        credential=credential,
        expected_challenge=CHALLENGE,
        expected_rp_id=SITE.rp_id,
        expected_origin=SITE.origin,
        credential_public_key=kept.cose,
        credential_current_sign_count=0,
        require_user_verification=True,
    )


def mutated(credential: Credential, chance: random.Random) -> Credential:
    """One bit flipped in one part, or a few bytes of it changed, or a character of its text."""
    changed = copy.deepcopy(credential)
    parts = [(changed["response"], name) for name in changed["response"]] + [(changed, "id")]
    fields, name = chance.choice(parts)
    raw = bytearray(from_base64(fields[name]))
    at = chance.randrange(len(raw))
    how = chance.randrange(4)
    if how < 2:
        raw[at] ^= 1 << chance.randrange(8)
    elif how == 2:
        changed_once(raw, at, [b"\xff\xff", b'"origin"', b"\xa1", b"\x5b", b"none", b"true"], chance)
    text = in_base64(bytes(raw))
    if how == 3:
        letters = bytearray(text.encode())
        letters[chance.randrange(len(letters))] ^= 1 << chance.randrange(7)
        text = letters.decode("latin-1")
    fields[name] = text
    if name == "id" and chance.random() < 0.8:
        changed["rawId"] = text
    return changed


def accepted(verify: Callable[[], object]) -> bool:
    """Anything but our own refusal fails the test."""
    try:
        verify()
    except PasskeyRefused:
        return False
    return True


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_nothing_is_accepted_that_a_second_opinion_refuses(algorithm: int) -> None:
    chance = random.Random(f"{algorithm}")
    authenticator = an_authenticator(algorithm)
    new = authenticator.create(CREATE)
    (kept,) = authenticator.passkeys
    use = authenticator.get(GET)
    for credential, opinions in (
        (new, (fido2_accepts_new, py_webauthn_accepts_new)),
        (use, (partial(fido2_accepts_use, kept=kept), partial(py_webauthn_accepts_use, kept=kept))),
    ):
        for opinion in opinions:
            opinion(credential)
    taken = 0
    for _ in range(1700 if LONG else 150):
        changed = mutated(new, chance)
        if accepted(partial(made, changed)):
            taken += 1
            fido2_accepts_new(changed)
            py_webauthn_accepts_new(changed)
        changed = mutated(use, chance)
        if accepted(lambda changed=changed: (credential_id(changed), used(changed, kept))):  # type: ignore[misc]
            signed = ("clientDataJSON", "authenticatorData", "signature")
            assert all(changed["response"][part] == use["response"][part] for part in signed)
    assert taken, "a new passkey has parts that nothing vouches for, such as the kind of its authenticator"


def test_a_use_of_a_passkey_survives_no_flipped_bit() -> None:
    authenticator = an_authenticator()
    authenticator.create(CREATE)
    use = authenticator.get(GET)
    for part in ("clientDataJSON", "authenticatorData", "signature"):
        raw = from_base64(use["response"][part])
        for bit in range(0, len(raw) * 8, 1 if LONG else 7):
            flipped = bytearray(raw)
            flipped[bit // 8] ^= 1 << bit % 8
            changed = use | {"response": use["response"] | {part: in_base64(bytes(flipped))}}
            assert not accepted(partial(used, changed, authenticator.passkeys[0]))


def test_the_second_opinions_see_no_difference_in_what_is_right() -> None:
    for algorithm in ALGORITHMS:
        for synced in (False, True):
            authenticator = an_authenticator(algorithm, synced=synced, counts=not synced)
            new = authenticator.create(CREATE)
            (kept,) = authenticator.passkeys
            fido2_accepts_new(new)
            py_webauthn_accepts_new(new)
            use = authenticator.get(GET)
            fido2_accepts_use(use, kept)
            py_webauthn_accepts_use(use, kept)
            assert made(new)
            assert used(use, kept)


# --- what it costs ---


def test_cryptography_is_imported_by_the_first_signature() -> None:
    code = "import sys, usersctl.factors.webauthn; print('cryptography' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.strip() == "False"
