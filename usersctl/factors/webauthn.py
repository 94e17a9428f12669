"""The verifier of passkeys: what a browser and an authenticator sent is checked here (Web Authentication Level 3, 7.1, 7.2).

It is pure: the caller knows which challenges it gave, and which public key belongs to a credential. No attestation was
asked for, so the statement of an attestation is not looked at.
"""

import base64
import hashlib
import json
import re
from collections.abc import Callable, Mapping
from typing import Any

from usersctl.errors import PasskeyRefused
from usersctl.factors.cbor import item_at, only_item
from usersctl.named import NamedTuple
from usersctl.secrets import in_base64

ES256, EDDSA, RS256 = -7, -8, -257
ALGORITHMS = (ES256, EDDSA, RS256)
PRESENT, VERIFIED, ELIGIBLE, SYNCED, ATTESTED, EXTENDED = 0x01, 0x04, 0x08, 0x10, 0x40, 0x80  # the flags

MIN_ID, MAX_ID = 16, 1023  # bytes of a credential id: a shorter one could be guessed
MAX_KEY = 1024  # bytes
RSA_BITS = range(2048, 4097)
RSA_EXPONENT = 65537
# Of the registry of the IANA; a browser may leave the one that the authenticator chose.
FORMATS = re.compile("packed|tpm|android-key|android-safetynet|fido-u2f|apple")

IsChallenge = Callable[[bytes], bool]


class Site(NamedTuple):
    """The only place that passkeys are made and used at."""

    rp_id: str
    origin: str


class NewPasskey(NamedTuple):
    challenge: bytes
    credential_id: bytes
    public_key: bytes  # in COSE, as the authenticator wrote it
    algorithm: int
    sign_count: int
    synced: bool


class Assertion(NamedTuple):
    """A use of a passkey, whose signature was right."""

    challenge: bytes
    sign_count: int
    synced: bool
    user_handle: bytes | None


def credential_id(credential: Mapping[str, Any]) -> bytes:
    raw = _bytes(credential, "id")
    if credential.get("type") != "public-key" or credential.get("rawId") != credential["id"]:
        raise PasskeyRefused("this is no credential with a public key")
    if not MIN_ID <= len(raw) <= MAX_ID:
        raise PasskeyRefused("the credential id is too short or too long")
    return raw


def verify_new(credential: Mapping[str, Any], site: Site, is_challenge: IsChallenge) -> NewPasskey:
    """What `navigator.credentials.create()` returned, as its `toJSON()` writes it."""
    response = _response(credential)
    client_data = _bytes(response, "clientDataJSON")
    challenge = _checked_challenge(client_data, "webauthn.create", site, is_challenge)
    data = _attested_data(_read(only_item, _bytes(response, "attestationObject")))
    flags, sign_count = _check_authenticator_data(data, site)
    if not flags & ATTESTED or len(data) < 55:
        raise PasskeyRefused("the authenticator made no passkey")
    name = credential_id(credential)
    begin = 55 + len(name)
    if data[53:begin] != len(name).to_bytes(2) + name:
        raise PasskeyRefused("the credential id is another")
    key, end = _read(item_at, data, begin)
    _check_extensions(data, end, flags)
    if end - begin > MAX_KEY:
        raise PasskeyRefused("the public key is too long")
    algorithm, _ = _public_key(key)
    return NewPasskey(challenge, name, data[begin:end], algorithm, sign_count, bool(flags & SYNCED))


def verify_use(
    credential: Mapping[str, Any], site: Site, is_challenge: IsChallenge, *, public_key: bytes
) -> Assertion:
    """What `navigator.credentials.get()` returned; the key is that of its credential_id."""
    response = _response(credential)
    client_data = _bytes(response, "clientDataJSON")
    challenge = _checked_challenge(client_data, "webauthn.get", site, is_challenge)
    data = _bytes(response, "authenticatorData")
    flags, sign_count = _check_authenticator_data(data, site)
    if flags & ATTESTED:
        raise PasskeyRefused("the authenticator made a passkey instead of using one")
    _check_extensions(data, 37, flags)
    user_handle = None
    if response.get("userHandle") is not None:
        user_handle = _bytes(response, "userHandle")
    signed = data + hashlib.sha256(client_data).digest()
    _check_signature(public_key, _bytes(response, "signature"), signed)
    return Assertion(challenge, sign_count, bool(flags & SYNCED), user_handle)


# --- the parts of an answer ---


def _response(credential: Mapping[str, Any]) -> Mapping[str, Any]:
    response = credential.get("response")
    if not isinstance(response, dict):
        raise PasskeyRefused("the credential has no response")
    return response


def _bytes(fields: Mapping[str, Any], name: str) -> bytes:
    """Bytes have one spelling only: the same credential must not come under two names."""
    text = fields.get(name)
    if not isinstance(text, str):
        raise PasskeyRefused(f"{name} is missing")
    try:
        raw = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
    except ValueError:
        raise PasskeyRefused(f"{name} is not in base64url") from None
    if in_base64(raw) != text:
        raise PasskeyRefused(f"{name} is not in base64url")
    return raw


def _checked_challenge(raw: bytes, kind: str, site: Site, is_challenge: IsChallenge) -> bytes:
    """That of client data of this ceremony at this site."""
    try:
        data = json.loads(raw.decode())
    except (ValueError, RecursionError):
        raise PasskeyRefused("the client data are not JSON") from None
    if not isinstance(data, dict) or data.get("type") != kind:
        raise PasskeyRefused("the client data are of another ceremony")
    # A subdomain may ask for passkeys of this RP ID, and so may a page in a frame: their origin differs.
    if data.get("origin") != site.origin:
        raise PasskeyRefused("the origin is another")
    if data.get("crossOrigin", False) is not False or "topOrigin" in data:
        raise PasskeyRefused("a page of another site has this one in a frame")
    challenge = _bytes(data, "challenge")
    if not is_challenge(challenge):
        raise PasskeyRefused("the challenge is another")
    return challenge


def _attested_data(attestation: Any) -> bytes:
    match attestation:
        case {"fmt": "none", "attStmt": {**statement}, "authData": bytes(data)} if not statement:
            return data
        case {"fmt": str(name), "attStmt": {}, "authData": bytes(data)} if FORMATS.fullmatch(name):
            return data
    raise PasskeyRefused("the attestation object has another form")


def _check_authenticator_data(data: bytes, site: Site) -> tuple[int, int]:
    """Returns the flags and the counter."""
    if len(data) < 37 or data[:32] != hashlib.sha256(site.rp_id.encode()).digest():
        raise PasskeyRefused("the authenticator data are of another site")
    flags = data[32]
    if not flags & PRESENT or not flags & VERIFIED:
        raise PasskeyRefused("the authenticator did not verify its user")
    if flags & SYNCED and not flags & ELIGIBLE:
        raise PasskeyRefused("the passkey is synced, and cannot be")
    return flags, int.from_bytes(data[33:37])


def _check_extensions(data: bytes, at: int, flags: int) -> None:
    """None was asked for. An authenticator may add some, and nothing comes after them."""
    if flags & EXTENDED:
        extensions, at = _read(item_at, data, at)
        if not isinstance(extensions, dict):
            raise PasskeyRefused("the extensions have another form")
    if at != len(data):
        raise PasskeyRefused("the authenticator data have another length")


def _read(reader: Callable[..., Any], *arguments: Any) -> Any:
    try:
        return reader(*arguments)
    except ValueError as error:
        raise PasskeyRefused(str(error)) from None


# --- keys and signatures ---


def _public_key(key: Any) -> tuple[int, Any]:
    """Of a COSE key (RFC 9052 and 9053): its algorithm, and the key."""
    from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa

    try:
        match key:
            case {1: 2, 3: -7, -1: 1, -2: bytes(x), -3: bytes(y)} if len(x) == len(y) == 32:
                numbers = ec.EllipticCurvePublicNumbers(int.from_bytes(x), int.from_bytes(y), ec.SECP256R1())
                return ES256, numbers.public_key()
            case {1: 1, 3: -8, -1: 6, -2: bytes(x)}:
                return EDDSA, ed25519.Ed25519PublicKey.from_public_bytes(x)
            case {1: 3, 3: -257, -1: bytes(n), -2: bytes(e)} if int.from_bytes(e) == RSA_EXPONENT:
                if int.from_bytes(n).bit_length() in RSA_BITS:
                    return RS256, rsa.RSAPublicNumbers(RSA_EXPONENT, int.from_bytes(n)).public_key()
    except ValueError:  # no point of the curve
        pass
    raise PasskeyRefused("the public key is of no kind that was asked for")


def _check_signature(public_key: bytes, signature: bytes, signed: bytes) -> None:
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec, padding

    algorithm, key = _public_key(_read(only_item, public_key))
    arguments: dict[int, tuple[Any, ...]] = {
        ES256: (ec.ECDSA(hashes.SHA256()),),
        EDDSA: (),
        RS256: (padding.PKCS1v15(), hashes.SHA256()),
    }
    try:
        key.verify(signature, signed, *arguments[algorithm])
    except InvalidSignature:
        raise PasskeyRefused("the signature is wrong") from None
