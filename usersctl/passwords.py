"""Password rules, and hashing in as many slots as there are cores."""

import os
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING

from usersctl.config import Settings
from usersctl.config.providers import host_of
from usersctl.errors import Busy, Invalid
from usersctl.folding import as_typed
from usersctl.models import UNUSABLE, Credentials, Newcomer, User

if TYPE_CHECKING:
    from usersctl.foreign_hashes import ForeignHash

MAX_BYTES = 72  # bcrypt reads no further
WAITING_ROOM = 8
# Characters: the work of zxcvbn doubles every few, and so many are strong unless they are a pattern.
MOST_ESTIMATED = 24
# Common passwords that no list has: repetitions, in passwords of so many characters at most, and parts of these rows.
LONGEST_REPETITION = 12
ROWS = ("0123456789" * 8, "abcdefghijklmnopqrstuvwxyz" * 3)

# Other systems write a mark before it, and some hash the password before: see _prepared().
_BCRYPT = re.compile(
    r"(bcrypt\$|bcrypt_sha256\$|\$wp|\{(?i:crypt|bcrypt|blf-crypt)\})?(\$2[aby]\$(0[4-9]|1[0-6])\$[./A-Za-z0-9]{53})",
    re.ASCII,
)
_NAMES_OF_MARKS = {"bcrypt_sha256$": "bcrypt_sha256", "$wp": "WordPress"}
BCRYPT, ARGON2 = "bcrypt", "Argon2"
MEND_LIBRARY = "pip install argon2-cffi"

_estimating = threading.Lock()  # zxcvbn keeps the names of one user in a dictionary that all threads share


class TooCostly(Invalid):
    """A hash of a known kind, whose check would occupy a slot for too long."""


class Hasher:
    """bcrypt in one slot for each core, with a waiting room of eight; beyond it callers get Busy."""

    def __init__(self, rounds: int, *, slots: int | None = None, waiting_room: int = WAITING_ROOM) -> None:
        self.rounds = rounds
        self.slots = slots or os.cpu_count() or 1
        self.waiting_room = waiting_room
        self.in_use = 0  # slots
        self.waiting = 0  # callers
        self._freed = threading.Condition()
        self._dummy = f"$2b${rounds:02}${'.' * 53}".encode()  # well-formed, and of no password

    @contextmanager
    def slot(self) -> Iterator[None]:
        with self._freed:
            if self.in_use + self.waiting >= self.slots + self.waiting_room:
                raise Busy("Too many logins at once, please try again", retry_after=2)
            self.waiting += 1
            try:
                self._freed.wait_for(lambda: self.in_use < self.slots)
                self.in_use += 1
            finally:
                self.waiting -= 1
        try:
            yield
        finally:
            with self._freed:
                self.in_use -= 1
                self._freed.notify()

    def hash(self, password: str) -> str:
        with self.slot():
            return self.renew(password)

    def matches(self, password: str, stored: str | None) -> bool:
        """Whether the password is right, at the same cost for every answer. To be called in a slot.

        Without an account (None), with an unusable or broken hash and with a password that is too long, the check uses a
        dummy hash; the work for a cheaper hash is padded to the present cost. So the time reveals nothing. The check of a
        hash of another system comes in addition: see level().
        """
        attempt = _bytes(password)
        if len(attempt) > MAX_BYTES:
            stored, attempt = None, attempt[:MAX_BYTES]
        foreign = _foreign(stored)
        if foreign is not None and _matches_foreign(attempt, foreign):
            return True  # the new hash costs what the dummy hash would
        return self._matches_bcrypt(attempt, stored)

    def _matches_bcrypt(self, attempt: bytes, stored: str | None) -> bool:
        import bcrypt

        found = _BCRYPT.fullmatch(stored or "")
        if found is not None:
            prepared = _prepared(attempt, found[1])
            try:
                fits = bcrypt.checkpw(prepared, found[2].encode())
            except ValueError:
                pass  # it has the form of a hash, but a salt that bcrypt never makes
            else:
                # Each step of cost doubles the work: 2^c + (2^c + ... + 2^(r-1)) = 2^r.
                for rounds in range(int(found[3]), self.rounds):
                    bcrypt.hashpw(prepared, bcrypt.gensalt(rounds))
                return fits
        bcrypt.checkpw(attempt, self._dummy)
        return False

    def needs_renewal(self, stored: str) -> bool:
        return not stored.startswith("$2") or cost_of(stored) != self.rounds

    def renew(self, password: str) -> str:
        """A new hash of a password that has just been checked, in the slot of that check."""
        import bcrypt

        return bcrypt.hashpw(_bytes(password), bcrypt.gensalt(self.rounds)).decode()


def password_is_set(stored: Credentials | None) -> bool:
    """Whether a password could be right: an account of the identity provider has an unusable one."""
    return stored is not None and kind_of(stored.password_hash) is not None


def kind_of(stored: str) -> str | None:
    """The kind of hash, as people name it; None if no password can match the text."""
    found = _BCRYPT.fullmatch(stored)
    if found is not None:
        return _NAMES_OF_MARKS.get(found[1] or "", BCRYPT)
    foreign = _foreign(stored)
    return foreign.kind if foreign and not foreign.excess else None


def lacks_library(stored: str) -> bool:
    """Whether a password that may be right cannot be checked here."""
    if kind_of(stored) != ARGON2:
        return False
    from usersctl.foreign_hashes import has_argon2

    return not has_argon2()


def cost_of(stored: str) -> int | None:
    """The cost of a bcrypt hash; None for any other text, and above 16, because a check of cost 31 takes a week."""
    found = _BCRYPT.fullmatch(stored)
    return int(found[3]) if found else None


def beginning_of(stored: str) -> str:
    """The text that hashes of one kind and cost share; all of it if it is no hash."""
    found = _BCRYPT.fullmatch(stored)
    if found is not None:
        return stored[: found.end(3) + 1]
    foreign = _foreign(stored)
    return stored if foreign is None else foreign.beginning


def check_hash(stored: str) -> str:
    """A hash from another system, to be stored. The message never holds the text, which may be a password."""
    if cost_of(stored) is None:
        foreign = _foreign(stored)
        if foreign is None:
            raise Invalid(
                "password_hash is neither bcrypt of cost 4 to 16, nor PBKDF2, Argon2, scrypt, phpass or salted SHA as"
                " another system writes them"
            )
        if foreign.excess:
            raise TooCostly(f"password_hash would take too long to check: {foreign.excess}")
    return stored


def _foreign(stored: str | None) -> "ForeignHash | None":
    if not stored or stored.startswith(("$2", UNUSABLE)):
        return None
    from usersctl import foreign_hashes  # late, because most installations have no such hash

    return foreign_hashes.read(stored)


def _matches_foreign(attempt: bytes, foreign: "ForeignHash") -> bool:
    from usersctl import foreign_hashes

    try:
        return foreign_hashes.matches(attempt, foreign)
    except foreign_hashes.ExtraMissing:
        import logging

        message = "A password was not checked, because its hash is %s: %s"
        logging.getLogger(__name__).warning(message, foreign.kind, MEND_LIBRARY)
        foreign_hashes.spend(foreign.work)
        return False


def level(password: str, stored: str | None, slowest: "ForeignHash") -> None:
    """Adds to a refusal what a check of the slowest hash of another system costs more than the one that was made."""
    from usersctl import foreign_hashes

    attempt = _bytes(password)
    own = _foreign(stored)
    if own is not None and not own.excess and len(attempt) <= MAX_BYTES:
        foreign_hashes.spend(slowest.work - own.work)
        return
    try:
        foreign_hashes.matches(attempt[:MAX_BYTES], slowest)
    except foreign_hashes.ExtraMissing:
        foreign_hashes.spend(slowest.work)


def _prepared(attempt: bytes, mark: str | None) -> bytes:
    """What the system that writes this mark gives to bcrypt."""
    if mark == "bcrypt_sha256$":  # Django
        import hashlib

        return hashlib.sha256(attempt).hexdigest().encode()
    if mark == "$wp":  # WordPress since 6.8
        import base64
        import hmac

        from usersctl.foreign_hashes import slashed

        return base64.b64encode(hmac.digest(b"wp-sha384", slashed(attempt), "sha384"))
    return attempt


def check_password(settings: Settings, password: str, owner: User | Newcomer) -> str:
    """The password, if it keeps every rule; else Invalid, with all that is missing in one sentence."""
    try:
        length = len(password.encode())
    except UnicodeEncodeError:
        raise Invalid("Password must be valid UTF-8 text") from None
    if "\0" in password:
        raise Invalid("Password must not contain a NUL character")
    if length > MAX_BYTES:
        raise Invalid(f"Password must be at most {MAX_BYTES} bytes long")
    visible = "".join(password.split())
    has_special = visible != "" and not visible.isalnum()
    rules = [
        (True, len(password) >= settings.min_length, f"at least {settings.min_length} characters"),
        (settings.require_uppercase, any(map(str.isupper, password)), "an upper-case letter"),
        (settings.require_lowercase, any(map(str.islower, password)), "a lower-case letter"),
        (settings.require_numbers, any(map(str.isdigit, password)), "a number"),
        (settings.require_special_chars, has_special, "a special character"),
    ]
    missing = [rule for is_required, is_met, rule in rules if is_required and not is_met]
    if missing:
        listed = ", ".join(missing[:-1]) + (" and " if missing[1:] else "") + missing[-1]
        raise Invalid(f"Password must have {listed}")
    if settings.prevent_common_passwords:
        _refuse_common(settings, password.casefold(), owner)
    if settings.min_strength > 0 and _strength(settings, password, owner) < settings.min_strength:
        raise Invalid("Password is too easy to guess: add some words that do not belong together")
    return password


def refused_for_all(settings: Settings) -> frozenset[str]:
    """The common passwords and the names of the service, in lower case."""
    return _common_passwords() | _names_of_service(settings)


def _refuse_common(settings: Settings, folded: str, owner: User | Newcomer) -> None:
    if folded in (text.casefold() for text in (owner.name, *_own_addresses(owner))):
        raise Invalid("Password must not be your own email address or name")
    if folded in _names_of_service(settings):
        raise Invalid("Password must not be the name or address of this service")
    if folded in _common_passwords() or _is_pattern(folded):
        raise Invalid("Password is too common: it is on lists that attackers try first")


def _own_addresses(owner: User | Newcomer) -> Iterator[str]:
    """The known address and the one that the owner claims: whole, as people type its domain, and the part before the @."""
    for email in (owner.email, owner.called):
        yield from (email, as_typed(email), email.partition("@")[0])


def _names_of_service(settings: Settings) -> set[str]:
    """The brand, and the host of `baseUrl` with its labels and the domains that it belongs to; in one letter case."""
    labels = host_of(settings.base_url).split(".")
    domains = {".".join(labels[start:]) for start in range(len(labels))}
    brand = settings.brand.casefold()
    return {brand, "".join(brand.split()), *labels, *domains}


def _strength(settings: Settings, password: str, owner: User | Newcomer) -> int:
    """The score of zxcvbn, 0 to 4, to which the names of the user and of the service are known."""
    from zxcvbn import zxcvbn

    names = [
        owner.email,
        *owner.email.split("@"),
        owner.name,
        *owner.name.split(),
        *_names_of_service(settings),
    ]
    with _estimating:
        score: int = zxcvbn(password[:MOST_ESTIMATED], user_inputs=names)["score"]
    return score


@cache
def _common_passwords() -> frozenset[str]:
    from zxcvbn.frequency_lists import FREQUENCY_LISTS

    # Its list of passwords lacks those that stand higher in another of its lists, such as the first name "michelle".
    others = (words[:1000] for kind, words in FREQUENCY_LISTS.items() if kind != "passwords")
    return frozenset(FREQUENCY_LISTS["passwords"]).union(*others)


def _is_pattern(folded: str) -> bool:
    """Such as 88888888, 12341234 and 87654321. script.js has the same."""
    repeats = len(folded) <= LONGEST_REPETITION and re.fullmatch(r"(.{1,4})\1+", folded, re.DOTALL)
    return bool(repeats) or any(folded in row or folded[::-1] in row for row in ROWS)


def _bytes(password: str) -> bytes:
    return password.encode("utf-8", "surrogatepass")
