"""ID tokens of OpenID Connect: signature and claims are checked, and how the provider signed the person in is read."""

import hmac
import json
import re
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any, Protocol

from usersctl.clock import stamp
from usersctl.named import NamedTuple
from usersctl.oauth.refusals import refused, shown

# With a key pair only: `none` proves nothing, and the key of HS256 is the client's secret.
ALGORITHMS = ("RS256", "PS256", "ES256", "EdDSA", "RS384", "PS384", "ES384", "RS512", "PS512", "ES512")
LEEWAY = timedelta(minutes=1)  # between the clocks
OLDEST = timedelta(minutes=10)  # it was issued for this sign-in
MOST_KEYS = 50
MOST_METHODS = 10

_OTHER_FORMS = {1: "not signed", 4: "encrypted"}  # by the number of dots
_METHOD = re.compile(r"[A-Za-z0-9._:/+-]{1,64}", re.ASCII)


class Expected(NamedTuple):
    """What an ID token has to say."""

    client_id: str
    now: datetime
    nonce: str | None  # None: none was sent
    issuer: str | None  # None: without discovery, no document says how the provider calls itself
    algorithms: tuple[str, ...] = ALGORITHMS


class Claims(NamedTuple):
    subject: Any
    auth_time: str | None
    amr: str | None


class FindKeys(Protocol):
    def __call__(self, *, fresh: bool) -> list[dict[str, Any]]:
        """The public keys of the provider. `fresh`: fetched now, because no cached one fits."""


def checked(token: Any, expected: Expected, find_keys: FindKeys | None) -> Claims:
    """Raises SignInRefused unless the token is the provider's, for this client and this sign-in.

    Without keys the signature is not checked. That is for a provider without discovery: there, TLS to the token endpoint
    proves the origin of the token (OpenID Connect Core 3.1.3.7).
    """
    header, payload = _parts(token)
    if header.get("alg") not in expected.algorithms:
        wanted = ", ".join(expected.algorithms) or "none of ours"
        raise refused(f"the ID token is signed with {shown(header.get('alg'))}, and not with {wanted}")
    if find_keys is not None and not any(
        _is_signed(token, header, find_keys(fresh=fresh)) for fresh in (False, True)
    ):
        raise refused("no key of the provider fits the signature of the ID token")
    _check(payload, expected)
    return Claims(
        payload.get("sub"),
        _auth_time(payload.get("auth_time"), expected.now),
        _methods(payload.get("amr")),
    )


def _parts(token: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Header and payload, of which nothing is checked yet."""
    from jwt import PyJWTError
    from jwt.api_jws import PyJWS

    try:
        if not isinstance(token, str):
            raise TypeError
        form = _OTHER_FORMS.get(token.count("."))
        if form is not None:
            raise refused(f"the ID token is {form}, and only a signed one is read")
        parts = PyJWS().decode_complete(token, options={"verify_signature": False})
        payload = json.loads(parts["payload"])
    except (PyJWTError, ValueError, TypeError, RecursionError) as error:
        raise refused(f"the ID token cannot be read: {type(error).__name__}") from None
    if not isinstance(payload, dict):
        raise refused("the ID token is not an object")
    return parts["header"], payload


def _is_signed(token: str, header: dict[str, Any], keys: Iterable[dict[str, Any]]) -> bool:
    from jwt import PyJWK
    from jwt.api_jws import PyJWS

    algorithm, kid = header["alg"], header.get("kid")
    jws = PyJWS(options={"verify_signature": True, "enforce_minimum_key_length": True})
    # No provider publishes a private key, and PyJWT would look for the primes of a long one for hours.
    public = (key for key in keys if "d" not in key)
    for key in [key for key in public if kid is None or key.get("kid") == kid][:MOST_KEYS]:
        if key.get("alg", algorithm) != algorithm or key.get("use", "sig") != "sig":
            continue
        try:
            jws.decode(token, PyJWK(key, algorithm), algorithms=[algorithm])
        except Exception:  # noqa: BLE001, S112 - a malformed key can raise anything, and fits no signature
            continue
        return True
    return False


def _check(payload: dict[str, Any], expected: Expected) -> None:
    audience, nonce = payload.get("aud"), payload.get("nonce")
    audiences = audience if isinstance(audience, list) else [audience]
    azp = payload.get("azp", expected.client_id if len(audiences) == 1 else None)
    expires, issued, begins = map(_moment, (payload.get("exp"), payload.get("iat"), payload.get("nbf", 0)))
    now = expected.now
    holds = {
        "iss": expected.issuer is None or payload.get("iss") == expected.issuer,
        "aud": expected.client_id in audiences,
        "azp": azp == expected.client_id,
        "nonce": expected.nonce is None or _is_same(nonce, expected.nonce),
        "exp": expires is not None and now < expires + LEEWAY,
        "iat": issued is not None and now - OLDEST - LEEWAY <= issued <= now + LEEWAY,
        "nbf": begins is not None and begins <= now + LEEWAY,
    }
    for name, right in holds.items():
        if not right:
            value = "" if name == "nonce" else f": {shown(payload.get(name))}"
            hint = ", unless a clock is wrong" * (name in ("exp", "iat", "nbf"))
            raise refused(f"the ID token has a wrong {name}{value}{hint}")


def _is_same(value: Any, expected: str) -> bool:
    return isinstance(value, str) and hmac.compare_digest(
        value.encode("utf-8", "surrogatepass"), expected.encode()
    )


def _moment(seconds: Any) -> datetime | None:
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 <= seconds < 10**11:
        return None
    return datetime.fromtimestamp(seconds, UTC)


def _auth_time(seconds: Any, now: datetime) -> str | None:
    at = _moment(seconds)
    return stamp(min(at, now)) if at is not None and at <= now + LEEWAY else None


def _methods(amr: Any) -> str | None:
    methods = amr if isinstance(amr, list) else []
    usable = [method for method in methods if isinstance(method, str) and _METHOD.fullmatch(method)]
    return " ".join(dict.fromkeys(usable[:MOST_METHODS])) or None
