"""Password hashes of other systems: how their text is read, what they cost, and how a password is checked against them."""

import base64
import hashlib
import hmac
import re
from collections.abc import Callable, Iterable

from usersctl.named import NamedTuple

# An import refuses what costs more, and a check does not begin with it: no stored text may occupy a slot for long.
MOST_ROUNDS = 5_000_000  # of PBKDF2
MOST_MEMORY = 256  # MiB, of Argon2 and scrypt
MOST_PASSES = 20  # of Argon2
MOST_LANES = 16  # of Argon2, and what scrypt calls parallelism
MOST_DOUBLINGS = 20  # of phpass

# Refusals take as long as a check of the slowest stored hash, up to so much work: two and a half times Django's default.
LEVELLED_AT_MOST = 2_500_000

_LONGEST = 512  # characters; those of the known systems have less than 300
_NUMBER = r"[1-9][0-9]{0,9}"
_SALT = r"(?P<salt>[!-#%-~]{1,128})"  # text without the $ that ends it
_BASE64 = r"[A-Za-z0-9+/]{4,172}={0,2}"
_ADAPTED = r"[A-Za-z0-9./+]{1,172}"  # base64 with a dot for the plus, and without padding
_DIGITS_OF_PHPASS = "./0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"


class ExtraMissing(Exception):
    """The library that this kind of hash needs is not installed."""


class ForeignHash(NamedTuple):
    kind: str
    beginning: str  # the text before the salt: hashes with the same one cost the same
    work: int  # as much as about so many rounds of PBKDF2 with SHA-256
    excess: str | None  # why a check would cost too much
    check: Callable[[bytes], bool]  # raises ExtraMissing


Interpret = Callable[[re.Match[str]], ForeignHash | None]
_FORMATS: list[tuple[re.Pattern[str], Interpret]] = []


def _written_as(pattern: str) -> Callable[[Interpret], Interpret]:
    def register(interpret: Interpret) -> Interpret:
        _FORMATS.append((re.compile(pattern, re.ASCII), interpret))
        return interpret

    return register


def read(stored: str) -> ForeignHash | None:
    """None for any other text. Raises nothing, and does no work that depends on the text."""
    if len(stored) > _LONGEST or not stored.isascii():
        return None
    for pattern, interpret in _FORMATS:
        found = pattern.fullmatch(stored)
        if found is not None:
            try:
                return interpret(found)
            except ValueError:  # no base64 after all
                return None
    return None


def matches(password: bytes, hashed: ForeignHash) -> bool:
    """False also where memory is lacking. Raises ExtraMissing.

    A NUL matches nothing: for HMAC a password is the same with and without one at its end.
    """
    if hashed.excess:
        return False
    try:
        return hashed.check(password) and b"\0" not in password
    except (ValueError, MemoryError):
        return False


def spend(work: int) -> None:
    """Does as much work as a check that costs this."""
    if work > 0:
        hashlib.pbkdf2_hmac("sha256", b"password", b"salt", work)


def slowest(texts: Iterable[str]) -> ForeignHash | None:
    """Of these, without those that would make every refused login take too long."""
    read_ones = filter(None, map(read, texts))
    fair = [hashed for hashed in read_ones if not hashed.excess and hashed.work <= LEVELLED_AT_MOST]
    return max(fair, key=lambda hashed: hashed.work, default=None)


def has_argon2() -> bool:
    """Whether the library is installed that Argon2 needs."""
    try:
        import argon2  # noqa: F401
    except ImportError:
        return False
    return True


# --- PBKDF2: Django, Werkzeug, passlib ---


def _pbkdf2(found: re.Match[str], salt: bytes, checksum: bytes) -> ForeignHash | None:
    algorithm, rounds = found["algorithm"] or "sha1", int(found["rounds"])
    if len(checksum) != hashlib.new(algorithm).digest_size:
        return None

    def check(password: bytes) -> bool:
        return hmac.compare_digest(hashlib.pbkdf2_hmac(algorithm, password, salt, rounds), checksum)

    work = rounds
    if algorithm in ("sha384", "sha512"):
        work = rounds * 9 // 4
    excess = _excess("PBKDF2", rounds, MOST_ROUNDS, "rounds")
    return ForeignHash("PBKDF2", found["beginning"], work, excess, check)


@_written_as(
    rf"(?P<beginning>pbkdf2_(?P<algorithm>sha1|sha256)\$(?P<rounds>{_NUMBER})\$){_SALT}\$(?P<checksum>{_BASE64})"
)
def _django_pbkdf2(found: re.Match[str]) -> ForeignHash | None:
    return _pbkdf2(found, found["salt"].encode(), _base64(found["checksum"]))


@_written_as(
    rf"(?P<beginning>pbkdf2:(?P<algorithm>sha1|sha224|sha256|sha384|sha512):(?P<rounds>{_NUMBER})\$){_SALT}"
    r"\$(?P<checksum>(?:[0-9a-f]{2}){20,64})"
)
def _werkzeug_pbkdf2(found: re.Match[str]) -> ForeignHash | None:
    return _pbkdf2(found, found["salt"].encode(), bytes.fromhex(found["checksum"]))


@_written_as(
    rf"(?P<beginning>\$pbkdf2(?:-(?P<algorithm>sha256|sha512))?\$(?P<rounds>{_NUMBER})\$)(?P<salt>{_ADAPTED})"
    rf"\$(?P<checksum>{_ADAPTED})"
)
def _passlib_pbkdf2(found: re.Match[str]) -> ForeignHash | None:
    return _pbkdf2(found, _adapted_base64(found["salt"]), _adapted_base64(found["checksum"]))


# --- scrypt: Django, Werkzeug, passlib ---


def _scrypt(found: re.Match[str], n: int, salt: bytes, checksum: bytes) -> ForeignHash | None:
    r, p = int(found["r"]), int(found["p"])
    if n < 2 or n & (n - 1) or len(checksum) not in (32, 64):
        return None

    def check(password: bytes) -> bool:
        needed = 128 * r * (n + p + 2) + 4096
        size = len(checksum)
        made = hashlib.scrypt(password, salt=salt, n=n, r=r, p=p, maxmem=needed, dklen=size)
        return hmac.compare_digest(made, checksum)

    mebibytes = 128 * r * (n + p) // 2**20  # the lanes count where n is tiny
    excess = _excess("scrypt", mebibytes, MOST_MEMORY, "MiB") or _excess("scrypt", p, MOST_LANES, "lanes")
    return ForeignHash("scrypt", found["beginning"], n * r * p * 3 // 2, excess, check)


@_written_as(
    rf"(?P<beginning>scrypt\$(?P<n>{_NUMBER})\$){_SALT}\$(?P<r>{_NUMBER})\$(?P<p>{_NUMBER})\$(?P<checksum>{_BASE64})"
)
def _django_scrypt(found: re.Match[str]) -> ForeignHash | None:
    return _scrypt(found, int(found["n"]), found["salt"].encode(), _base64(found["checksum"]))


@_written_as(
    rf"(?P<beginning>scrypt:(?P<n>{_NUMBER}):(?P<r>{_NUMBER}):(?P<p>{_NUMBER})\$){_SALT}\$(?P<checksum>[0-9a-f]{{128}})"
)
def _werkzeug_scrypt(found: re.Match[str]) -> ForeignHash | None:
    return _scrypt(found, int(found["n"]), found["salt"].encode(), bytes.fromhex(found["checksum"]))


@_written_as(
    rf"(?P<beginning>\$scrypt\$ln=(?P<ln>[1-9][0-9]?),r=(?P<r>{_NUMBER}),p=(?P<p>{_NUMBER})\$)(?P<salt>{_BASE64})"
    rf"\$(?P<checksum>{_BASE64})"
)
def _passlib_scrypt(found: re.Match[str]) -> ForeignHash | None:
    n = 2 ** int(found["ln"])
    return _scrypt(found, n, _base64(found["salt"]), _base64(found["checksum"]))


# --- Argon2: everywhere in one form, in Django and OpenLDAP with a mark before it ---


@_written_as(
    r"(?P<beginning>(?P<mark>(?:argon2|\{ARGON2\})?)\$argon2(?P<type>id|i|d)\$(?:v=(?:16|19)\$)?"
    rf"m=(?P<m>{_NUMBER}),t=(?P<t>{_NUMBER}),p=(?P<p>{_NUMBER})\$)[A-Za-z0-9+/]{{11,86}}\$[A-Za-z0-9+/]{{16,86}}"
)
def _argon2(found: re.Match[str]) -> ForeignHash | None:
    memory, passes, lanes = int(found["m"]), int(found["t"]), int(found["p"])
    text = found.string[len(found["mark"]) :]
    if memory < 8 * lanes:
        return None

    def check(password: bytes) -> bool:
        try:
            from argon2.exceptions import VerificationError
            from argon2.low_level import Type, verify_secret
        except ImportError:
            raise ExtraMissing from None
        types = {"id": Type.ID, "i": Type.I, "d": Type.D}
        try:
            return verify_secret(text.encode(), password, types[found["type"]])
        except VerificationError:  # it does not match, or memory is lacking
            return False

    excess = (
        _excess("Argon2", -(-memory // 1024), MOST_MEMORY, "MiB")
        or _excess("Argon2", passes, MOST_PASSES, "passes")
        or _excess("Argon2", lanes, MOST_LANES, "lanes")
    )
    return ForeignHash("Argon2", found["beginning"], memory * passes * 15 // 4, excess, check)


# --- phpass: WordPress before 6.8 ($P$), phpBB ($H$) ---


@_written_as(
    r"(?P<beginning>\$[PH]\$(?P<cost>[5-9A-Za-z]))(?P<salt>[./0-9A-Za-z]{8})(?P<checksum>[./0-9A-Za-z]{22})"
)
def _phpass(found: re.Match[str]) -> ForeignHash | None:
    doublings = _DIGITS_OF_PHPASS.index(found["cost"])
    if doublings > 30:
        return None

    def fits(password: bytes) -> bool:
        made = hashlib.md5(found["salt"].encode() + password).digest()  # noqa: S324 - what phpass is made of
        for _ in range(2**doublings):
            made = hashlib.md5(made + password).digest()  # noqa: S324
        return hmac.compare_digest(_digits_of_phpass(made), found["checksum"])

    def check(password: bytes) -> bool:
        """The password as WordPress or phpBB has it, and as others have it: always both, so that the time is the same."""
        escaped = slashed(password)
        if found["beginning"].startswith("$H$"):
            escaped = _as_html(password)
        return fits(escaped) | fits(password)

    excess = _excess("phpass", 2**doublings, 2**MOST_DOUBLINGS, "rounds")
    return ForeignHash("phpass", found["beginning"], 2**doublings * 16 // 5, excess, check)


def slashed(password: bytes) -> bytes:
    """As PHP's addslashes() makes it. WordPress changes all that comes from a form so, before it hashes a password."""
    return re.sub(rb"(['\"\\])", rb"\\\1", password)


def _as_html(password: bytes) -> bytes:
    """As PHP's htmlspecialchars() makes it, before phpBB hashes a password."""
    for character, entity in ((b"&", b"&amp;"), (b"<", b"&lt;"), (b">", b"&gt;"), (b'"', b"&quot;")):
        password = password.replace(character, entity)
    return password


def _digits_of_phpass(made: bytes) -> str:
    """Six bits a digit, the lowest first."""
    number = int.from_bytes(made, "little")
    return "".join(_DIGITS_OF_PHPASS[number >> shift & 63] for shift in range(0, 8 * len(made), 6))


# --- salted SHA: LDAP ---


@_written_as(rf"(?P<beginning>\{{(?i:SSHA)(?P<bits>256|384|512)?\}})(?P<checksum>{_BASE64})")
def _salted_sha(found: re.Match[str]) -> ForeignHash | None:
    algorithm = f"sha{found['bits'] or 1}"
    decoded = _base64(found["checksum"])
    size = hashlib.new(algorithm).digest_size
    checksum, salt = decoded[:size], decoded[size:]
    if not salt:
        return None

    def check(password: bytes) -> bool:
        return hmac.compare_digest(hashlib.new(algorithm, password + salt).digest(), checksum)

    return ForeignHash("salted SHA", found["beginning"], 1, None, check)


# --- reading ---


def _base64(text: str) -> bytes:
    """With its padding or without."""
    return base64.b64decode(text + "=" * (-len(text) % 4), validate=True)


def _adapted_base64(text: str) -> bytes:
    return _base64(text.replace(".", "+"))


def _excess(kind: str, cost: int, most: int, unit: str) -> str | None:
    return f"{kind} with {cost} {unit} is more than {most}" if cost > most else None
