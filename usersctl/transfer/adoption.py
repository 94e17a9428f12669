"""Converts the rows of another application's table into rows that `import` accepts."""

import re
import shlex
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from usersctl.errors import Invalid
from usersctl.fields import is_web_address, normal_time
from usersctl.models import Role
from usersctl.passwords import TooCostly, check_hash
from usersctl.text import counted, listed
from usersctl.transfer.columns import DENYING
from usersctl.transfer.foreign import BETWEEN_ROLES, SourceTable, folded
from usersctl.transfer.rows import SourceRow

TRUE_IS_ADMIN = {"isadmin", "issuperuser", "admin"}

_YES = {"1", "1.0", "true", "t", "yes", "y", "on", "active", "enabled"}
_NO = {"", "0", "0.0", "false", "f", "no", "n", "off", "inactive", "disabled", "none", "null"}
_CONFIRMED = ("confirmed", "verified")
_NULLS = ("\\N", "NULL")  # how PostgreSQL and MySQL write it into a file
_ZERO_DATE = "0000-00-00"  # how MySQL writes none
_A_TIME = re.compile(r"\b(19|20)\d\d|\d{9}")  # of any form: a year, or seconds
_ZONE = re.compile(r" (?:UTC|([+-]\d\d:?\d\d))$")  # as Ruby writes it
_SINCE_1970 = re.compile(r"-?\d{9,13}(\.\d+)?")  # seconds or milliseconds
_COMPACT = re.compile(r"^(\d{8})(\d{6})$")  # 20240131120000, as MediaWiki writes it
_HASHES = re.compile(
    r"(pbkdf2\w*|bcrypt_sha256|argon2|scrypt|md5|sha1|sha256)\$|\$(argon2\w*|scrypt|1|5|6|7|y|P|H|wp)\$"
)
_NAMES_OF_HASHES = {
    "1": "MD5 crypt",
    "5": "SHA-256 crypt",
    "6": "SHA-512 crypt",
    "7": "scrypt crypt",
    "y": "yescrypt",
    "P": "phpass",
    "H": "phpass",
    "wp": "WordPress's",
}


def _mapped(name: str, column: str) -> str:
    """An option of a hint. Names and values of another application may hold what a shell acts on."""
    return f"--map {shlex.quote(f'{name}={column}')}"


class NoneConfirmed(Invalid):
    """A question for the operator: did the application ask for confirmations at all?"""

    def __init__(self, column: str, rows: int) -> None:
        super().__init__(
            f"{column} is empty or false in all {counted(rows, 'row')} that could be active: no account could sign in before its owner confirms by email",
            hint=f"to keep it so: {_mapped('confirmed', column)}; if the application never asked its users to confirm, leave the"
            " column out: --map confirmed=",
        )
        self.column = column


@dataclass
class Adoption:
    """One import from another application, and what its operator has to know about the rows afterwards."""

    table: SourceTable
    mapping: dict[str, list[str]]  # our field, and the columns whose values are joined for it
    roles: Mapping[str, str]
    chosen: Collection[str] = ()  # our fields that the operator has mapped
    odd_roles: Counter[str] = field(default_factory=Counter)
    odd_hashes: Counter[str] = field(default_factory=Counter)
    assumed_utc: set[str] = field(default_factory=set)
    left_pictures: int = 0
    without_email: list[str] = field(default_factory=list)  # the places of these rows
    confirmed: int = 0
    unconfirmed: int = 0  # and for no other reason inactive
    hashed_twice: int = 0

    def rows(self) -> Iterator[SourceRow]:
        for where, row in self.table.rows:
            try:
                converted = row if isinstance(row, Invalid) else self._converted(row)
            except Invalid as error:
                converted = error
            if isinstance(converted, Invalid) or "email" in converted:
                yield where, converted
            else:
                self.without_email.append(where)  # an account of a machine, or one that no email can reach

    def decided_rows(self) -> Iterator[SourceRow]:
        """After the last row an error, if a column that was guessed would make all accounts inactive."""
        yield from self.rows()
        if self.unconfirmed and not self.confirmed and "confirmed" not in self.chosen:
            raise NoneConfirmed(self.mapping["confirmed"][0], self.unconfirmed)

    @property
    def hashes_twice(self) -> bool:
        """Flask-Security hashes a keyed digest of the password, unless SECURITY_PASSWORD_SINGLE_HASH is set."""
        marked = any(folded(column) == "fsuniquifier" for column in self.table.columns)
        return marked and "password_hash" not in self.chosen

    def _converted(self, row: Mapping[str, Any]) -> dict[str, Any]:
        converted: dict[str, Any] = {}
        for name, columns in self.mapping.items():
            value = row.get(columns[0])
            if name == "active":
                converted[name] = all(_active(self, row.get(column), column) for column in columns)
                continue
            if len(columns) > 1:
                value = " ".join(filter(None, (_text(row.get(column)).strip() for column in columns)))
            converted[name] = _CONVERTERS[name][0](self, value, columns[0])
        converted = {name: value for name, value in converted.items() if value is not None}
        if converted.get("confirmed") is False and converted.get("active") is False:
            # It may have been deactivated for a reason, and confirming an email must not undo that.
            del converted["confirmed"]
        elif converted.get("confirmed") is False:
            converted.pop("active", None)
        self.confirmed += converted.get("confirmed") is True
        self.unconfirmed += converted.get("confirmed") is False
        return converted

    def explained(self) -> Iterator[tuple[str, str, str]]:
        """Yields each field, its columns, and what becomes of their values."""
        for name, columns in self.mapping.items():
            yield name, " + ".join(columns), _explanation(name, columns)

    def notes(self) -> Iterator[str]:
        for role, count in self.odd_roles.most_common(5):
            rows = counted(count, "row")
            option = f"--map-role {shlex.quote(f'{role}=admin')}"
            yield f"the role {role!r} of {rows} becomes user; for another role: {option}"
        if (more := len(self.odd_roles) - 5) > 0:
            yield f"{counted(more, 'more unknown role')} become{'s' * (more == 1)} user"
        for kind, count in self.odd_hashes.most_common():
            rows = counted(count, "row")
            yield f"the password hashes of {rows} cannot be checked here ({kind}): no password will match them"
        if self.hashed_twice:
            rows, column = counted(self.hashed_twice, "row"), self.mapping["password_hash"][0]
            yield (
                f"the password hashes of {rows} are left out: Flask-Security hashes twice, with SECURITY_PASSWORD_SALT, and no"
                " password would match them; their owners set a new one through a reset email. If the application sets"
                f" SECURITY_PASSWORD_SINGLE_HASH, keep them with {_mapped('password_hash', column)}"
            )
        if self.unconfirmed:
            rows, column = counted(self.unconfirmed, "row"), self.mapping["confirmed"][0]
            yield (
                f"{column} is empty or false in {rows}: inactive until their owners confirm by email; to leave the column out:"
                " --map confirmed="
            )
        if self.without_email:
            rows = counted(len(self.without_email), "row")
            yield f"{rows} without an email address left out: {listed(self.without_email, 5)}"
        if self.assumed_utc:
            yield f"times without an offset count as UTC: {', '.join(sorted(self.assumed_utc))}"
        if self.left_pictures:
            yield f"pictures left out because they are not web addresses: {self.left_pictures}"
        used = {column for columns in self.mapping.values() for column in columns}
        left = [column for column in self.table.columns if column not in used and column.lower() != "id"]
        if left:
            yield f"columns left out: {', '.join(left)}"


def _explanation(name: str, columns: Sequence[str]) -> str:
    column = folded(columns[0])
    if name == "active" and len(columns) > 1:
        return "false where any of them says so"
    if name == "active" and column in DENYING:
        return "false where it has a value"
    if name == "role" and column in TRUE_IS_ADMIN:
        return "admin where it is true"
    return _CONVERTERS[name][1]


# --- values ---


def _as_it_is(_: Adoption, value: Any, _column: str) -> str | None:
    return _text(value).strip() or None


def _role(adoption: Adoption, value: Any, column: str) -> str | None:
    text = _text(value).strip()
    if BETWEEN_ROLES in text:
        roles = {_role(adoption, role, column) for role in text.split(BETWEEN_ROLES)}
        return str(Role.ADMIN if Role.ADMIN in roles else Role.USER)
    if text in adoption.roles:
        return adoption.roles[text]
    if folded(column) in TRUE_IS_ADMIN:
        return str(Role.ADMIN if _truth(text, column) else Role.USER)
    if text and text.lower() not in tuple(Role):
        adoption.odd_roles[text] += 1
        return str(Role.USER)
    return text.lower() or None


def _active(_: Adoption, value: Any, column: str) -> bool:
    if folded(column) in DENYING:  # holds a time, a reason, or just yes
        return _is_no(value)
    return _truth(_text(value), column)


def _confirmed(_: Adoption, value: Any, column: str) -> bool:
    """Often holds the time of the confirmation. A word that is not known, such as "pending", vouches for nothing."""
    if _is_no(value):
        return False
    text = _text(value)
    return bool(_A_TIME.search(text)) or text.strip().lower() in _CONFIRMED or _truth(text, column)


def _password_hash(adoption: Adoption, value: Any, _column: str) -> str | None:
    text = _text(value).strip()
    if not text or text[0] in "!*":  # how Django and Unix mark an account without a password
        return None
    try:
        check_hash(text)
    except TooCostly:
        raise
    except Invalid:
        # Only the name of a known kind is repeated, because the value may be a password in plain text.
        known = _HASHES.match(text)
        kind = known[1] or known[2] if known else "of an unknown kind"
        adoption.odd_hashes[_NAMES_OF_HASHES.get(kind, kind)] += 1
        return None
    if adoption.hashes_twice:
        adoption.hashed_twice += 1
        return None
    return text


def _password(_: Adoption, value: Any, _column: str) -> str | None:
    return _text(value) or None


def _time(adoption: Adoption, value: Any, column: str) -> str | None:
    text = _text(value).strip()
    if text in ("", "0") or text.startswith(_ZERO_DATE):
        return None
    try:
        if _SINCE_1970.fullmatch(text):
            return normal_time(float(text))
        iso = _COMPACT.sub(r"\1T\2", _ZONE.sub(lambda zone: zone[1] or "Z", text))
        time = normal_time(iso)
    except Invalid:
        raise Invalid(f"{column}: {text[:40]!r} is not a time") from None
    if datetime.fromisoformat(iso).tzinfo is None:
        adoption.assumed_utc.add(column)
    return time


def _picture(adoption: Adoption, value: Any, _column: str) -> str | None:
    text = _text(value).strip()
    if text and not is_web_address(text):
        adoption.left_pictures += 1
        return None
    return text or None


# By field, with the explanation for the operator.
_CONVERTERS: dict[str, tuple[Callable[[Adoption, Any, str], Any], str]] = {
    "email": (_as_it_is, "lower case"),
    "name": (_as_it_is, "as it is"),
    "role": (_role, "admin and user as they are, others by --map-role, else user"),
    "active": (_active, "true or false"),
    "confirmed": (_confirmed, "if false, inactive until confirmed by email"),
    "password": (_password, "plain text: checked by the rules, then hashed"),
    "password_hash": (_password_hash, "as it is, if its kind can be checked here"),
    "created_at": (_time, "UTC where there is no offset"),
    "last_login_at": (_time, "UTC where there is no offset"),
    "oauth_id": (_as_it_is, "the id at the provider of auth.oauth"),
    "profile_picture": (_picture, "web addresses only"),
}


def _text(value: Any) -> str:
    if isinstance(value, bytes):  # some keep bcrypt's own output
        return value.decode("utf-8", "surrogateescape")
    if value is None or value in _NULLS or isinstance(value, list | dict):
        return ""
    return str(value)


def _is_no(value: Any) -> bool:
    text = _text(value).strip().lower()
    return text in _NO or text.startswith(_ZERO_DATE)


def _truth(text: str, column: str) -> bool:
    text = text.strip().lower()
    if text not in _YES | _NO:
        raise Invalid(f"{column}: {text[:40]!r} is neither true nor false")
    return text in _YES
