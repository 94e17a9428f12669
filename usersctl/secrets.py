"""The only source of secrets. A token is shown once, and stored as a digest."""

import base64
import binascii
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


# API tokens begin with it, and end with a checksum, so that scanners of secrets can find them.
API_TOKEN = "usr_"  # noqa: S105 - a prefix
_BASE_62 = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_OLDER_LENGTH = 43  # of new_token(), as API tokens were before: one of them may begin like that by chance


def new_api_token() -> str:
    body = API_TOKEN + new_token()
    return body + _checksum(body)


def is_mistyped(token: str) -> bool:
    """Whether this cannot be a token of ours: it begins like an API token, and its checksum is wrong."""
    if not token.startswith(API_TOKEN) or len(token) == _OLDER_LENGTH:
        return False
    return len(token) != len(API_TOKEN) + _OLDER_LENGTH + 6 or _checksum(token[:-6]) != token[-6:]


def _checksum(text: str) -> str:
    """CRC-32 in base 62, six characters: it finds mistakes, and proves nothing."""
    rest, digits = binascii.crc32(text.encode("utf-8", "surrogatepass")), ""
    for _ in range(6):
        rest, digit = divmod(rest, 62)
        digits = _BASE_62[digit] + digits
    return digits


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


def new_key() -> bytes:
    return secrets.token_bytes(32)


def random_bytes(length: int) -> bytes:
    return secrets.token_bytes(length)


def sign(key: bytes, purpose: str, text: str) -> str:
    """`text`, a dot, and an HMAC for one purpose. Everybody can read it, and only the holder of the key can make it."""
    return f"{text}.{_mac(key, purpose, text)}"


def verified(key: bytes, purpose: str, signed: str) -> str | None:
    """The text that was signed for this purpose; None if the signature is wrong."""
    text, _, mac = signed.rpartition(".")
    is_right = hmac.compare_digest(_mac(key, purpose, text).encode(), mac.encode("utf-8", "surrogatepass"))
    return text if is_right else None


def keyed_digest(key: bytes, text: str) -> bytes:
    """Without the key, nobody can tell which text it is of."""
    return hmac.digest(key, text.encode(), "sha256")


def _mac(key: bytes, purpose: str, text: str) -> str:
    # A purpose is a constant without a line break, so the two cannot run into one another.
    message = f"{purpose}\n{text}".encode("utf-8", "surrogatepass")
    return in_base64(hmac.digest(key, message, "sha256"))


def new_device_id() -> str:
    return secrets.token_urlsafe(12)


def challenge_of(verifier: str) -> str:
    """The S256 challenge of PKCE."""
    return in_base64(hashlib.sha256(verifier.encode()).digest())


def assertion(secret: str, *, until: int, of: tuple[str, ...]) -> str:
    """An expiry time in seconds, and an HMAC of it and these texts, for applications that share the secret.

    Every text stands on a line of its own, so only the last may contain a line break.
    """
    message = "\n".join((str(until), *of)).encode()
    signed = _keyed(secret).copy()
    signed.update(message)
    return f"{until}.{in_base64(signed.digest())}"


@cache  # setting up the key costs twice as much as the rest
def _keyed(secret: str) -> hmac.HMAC:
    return hmac.new(secret.encode(), digestmod="sha256")


def in_base64(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).decode().rstrip("=")
