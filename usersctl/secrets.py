"""The only source of secrets. A token is shown once, and stored as a digest."""

import base64
import hashlib
import hmac
import secrets
from functools import cache

# Without characters that people confuse when they read a password aloud.
_LOWER = "abcdefghijkmnpqrstuvwxyz"
_UPPER = "ABCDEFGHJKLMNPQRSTUVWXYZ"
_DIGITS = "23456789"
_SPECIAL = "-_.+"


def new_token() -> str:
    """256 random bits, safe in a cookie, a header and a URL."""
    return secrets.token_urlsafe(32)


def digest(token: str) -> bytes:
    # A token is as long as its digest and as random, so a plain fast hash is enough: there is nothing to guess.
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).digest()


def new_password(length: int = 20) -> str:
    """A password that keeps every rule that an operator can switch on."""
    groups = (_LOWER, _UPPER, _DIGITS, _SPECIAL)
    chars = [secrets.choice(group) for group in groups]
    chars += [secrets.choice("".join(groups)) for _ in range(length - len(groups))]
    secrets.SystemRandom().shuffle(chars)
    return "".join(chars)


def new_message_id() -> str:
    """The left part of an email's Message-ID."""
    return secrets.token_hex(16)


def challenge_of(verifier: str) -> str:
    """The S256 challenge of PKCE."""
    return _in_base64(hashlib.sha256(verifier.encode()).digest())


def assertion(secret: str, *, until: int, of: tuple[str, ...]) -> str:
    """An expiry time in seconds, and an HMAC of it and these texts, for applications that share the secret.

    Every text stands on a line of its own, so only the last may contain a line break.
    """
    message = "\n".join((str(until), *of)).encode()
    signed = _keyed(secret).copy()
    signed.update(message)
    return f"{until}.{_in_base64(signed.digest())}"


@cache  # setting up the key costs twice as much as the rest
def _keyed(secret: str) -> hmac.HMAC:
    return hmac.new(secret.encode(), digestmod="sha256")


def _in_base64(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).decode().rstrip("=")
