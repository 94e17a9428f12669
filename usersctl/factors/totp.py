"""Codes of an authenticator app: TOTP of RFC 6238 with SHA-1, six digits and 30 seconds, which every such app knows."""

import base64
import hmac
import re
from datetime import datetime
from urllib.parse import quote, urlencode

from usersctl.secrets import random_bytes

STEP = 30  # seconds
DIGITS = 6
DRIFT = 1  # steps by which the clock of a phone may be wrong, either way

_CODE = re.compile(rf"\d{{{DIGITS}}}", re.ASCII)
_BLANKS = re.compile(r"[\s-]+")


def new_secret() -> bytes:
    """160 bits, as RFC 4226 recommends."""
    return random_bytes(20)


def in_base32(secret: bytes) -> str:
    """As apps take it. 160 bits fill it without padding."""
    return base64.b32encode(secret).decode()


def code_at(secret: bytes, step: int) -> str:
    digest = hmac.digest(secret, step.to_bytes(8), "sha1")
    offset = digest[-1] & 0x0F
    number = int.from_bytes(digest[offset : offset + 4]) & 0x7FFF_FFFF
    return str(number % 10**DIGITS).zfill(DIGITS)


def step_at(moment: datetime) -> int:
    return int(moment.timestamp()) // STEP


def matching_step(secret: bytes, code: str, now: datetime) -> int | None:
    """The step that this code belongs to, one step either way; None if it is wrong. Blanks and dashes do not matter."""
    code = _BLANKS.sub("", code)
    if not _CODE.fullmatch(code):
        return None
    present, found = step_at(now), None
    for step in range(present - DRIFT, present + DRIFT + 1):
        if hmac.compare_digest(code_at(secret, step), code):
            found = step
    return found


def uri(secret: bytes, account: str, issuer: str) -> str:
    """What the QR code holds: the Key URI Format of authenticator apps."""
    label = quote(f"{issuer.replace(':', ' ')}:{account}", safe=":@")
    return f"otpauth://totp/{label}?" + urlencode(
        {
            "secret": in_base32(secret),
            "issuer": issuer,
            "algorithm": "SHA1",
            "digits": DIGITS,
            "period": STEP,
        },
        quote_via=quote,
    )
