"""Recovery codes: ten, of 120 random bits each, in groups of four, shown once. Only digests are stored."""

import base64
import re

from usersctl.secrets import digest, random_bytes

HOW_MANY = 10
_GROUP = 4
_IN_BETWEEN = re.compile(r"[\s\-\u2010-\u2015]+")  # blanks, and dashes of all kinds


def new_codes() -> list[str]:
    return [_new_code() for _ in range(HOW_MANY)]


def _new_code() -> str:
    # 24 letters and digits, without 0, 1, 8 and 9
    letters = base64.b32encode(random_bytes(15)).decode().lower()
    return "-".join(letters[start : start + _GROUP] for start in range(0, len(letters), _GROUP))


def hash_of(code: str) -> bytes:
    """Of its normal form: case, blanks and dashes do not matter."""
    return digest(_IN_BETWEEN.sub("", code).lower())
