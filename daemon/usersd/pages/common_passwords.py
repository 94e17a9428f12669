"""The common passwords as a Bloom filter of some 20 kB, with which a page judges a password while it is typed.

About one password in a thousand that is not on the list looks as if it were. The server has the last word.
"""

from functools import cache

from usersctl import __version__
from usersctl.config import Settings
from usersctl.passwords import refused_for_all

NAME = "common.bin"  # of its file
BITS = 14  # for each password
HASHES = 10
FNV = (2166136261, 709607)  # where the two hashes begin; script.js has the same
_PRIME = 16777619


def made_of(settings: Settings) -> bytes:
    """Changes with the content, which takes a while to make, so that is done only when a browser asks for it."""
    return "|".join((__version__, str(settings.min_length), settings.brand, settings.base_url)).encode()


@cache
def content(settings: Settings) -> bytes:
    """Of passwords that are long enough; all others are refused anyway."""
    listed = refused_for_all(settings)
    passwords = [password.encode() for password in listed if len(password) >= settings.min_length]
    size = max(8, len(passwords) * BITS // 8)
    bits = bytearray(size)
    for password in passwords:
        first, second = (_hash(password, start) for start in FNV)
        for step in range(HASHES):
            # By an odd number, so that every bit of a hash counts.
            place = (first + step * second) % (size * 8 - 1)
            bits[place >> 3] |= 1 << (place & 7)
    return bytes(bits)


def _hash(text: bytes, start: int) -> int:
    """FNV-1a."""
    for byte in text:
        start = ((start ^ byte) * _PRIME) & 0xFFFFFFFF
    return start
