"""Accounts of another application as ours: which column is which, and what becomes of each value."""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlsplit

from usersctl.clock import moment, stamp
from usersctl.config import Settings
from usersctl.errors import Invalid
from usersctl.fields import is_web_address
from usersctl.models import Role
from usersctl.passwords import cost_of
from usersctl.text import counted
from usersctl.transfer.foreign import EXTERNAL, Table, folded
from usersctl.transfer.rows import Row

# What others call our columns, the likeliest first; compared without case, dashes and underscores.
NAMES: dict[str, tuple[str, ...]] = {
    "email": ("email", "emailaddress", "mail", "useremail", "primaryemail"),
    "name": ("name", "fullname", "displayname", "realname"),
    "role": ("role", "userrole", "usertype", "isadmin", "issuperuser", "admin"),
    "active": ("active", "isactive", "enabled", "isenabled", "disabled", "isdisabled", "blocked", "isblocked",
               "banned", "isbanned", "suspended", "deletedat"),
    "confirmed": ("confirmed", "isconfirmed", "verified", "isverified", "emailverified", "emailconfirmed",
                  "confirmedat", "verifiedat", "emailverifiedat", "emailconfirmedat", "emailprovenat"),
    "password_hash": ("passwordhash", "hashedpassword", "encryptedpassword", "passworddigest", "password",
                      "passwd", "pwhash", "hash"),
    "created_at": ("createdat", "created", "datejoined", "registeredat", "signupat", "creationdate",
                   "createddate", "createdon", "insertedat", "joinedat"),
    "last_login_at": ("lastloginat", "lastlogin", "lastsigninat", "currentsigninat", "lastsignin"),
    "oauth_id": ("oauthid", "oauthsub", "oauthuid", "oidcsub", "oidcid", "openid", "providerid",
                 "provideruserid", "provideruid", "externalid", "sub"),
    "profile_picture": ("profilepicture", "picture", "pictureurl", "avatarurl", "avatar", "photourl", "photo",
                        "imageurl", "image"),
}  # fmt: skip
OURS = (*NAMES, "password")
PARTS_OF_NAMES = (("firstname", "givenname"), ("lastname", "familyname", "surname"))
SECOND_BEST_NAMES = ("username", "login", "nickname")
TRUE_IS_ADMIN = {"isadmin", "issuperuser", "admin"}
DENYING = {"disabled", "isdisabled", "blocked", "isblocked", "banned", "isbanned", "suspended", "deletedat"}

_YES = {"1", "1.0", "true", "t", "yes", "y", "on", "active", "enabled"}
_NO = {"", "0", "0.0", "false", "f", "no", "n", "off", "inactive", "disabled", "none", "null"}
# Of those who tell several kinds of hashes apart: what stands before one of bcrypt.
_BEFORE_BCRYPT = re.compile(r"(?:bcrypt\$|\{(?:BCRYPT|BLF-CRYPT|CRYPT)\})(?=\$2)", re.IGNORECASE)
_KINDS = re.compile(
    r"(pbkdf2\w*|bcrypt_sha256|argon2|scrypt|md5|sha1|sha256)\$|\$(argon2\w*|scrypt|1|5|6|7|y)\$"
)


@dataclass
class Adoption:
    """Rows of a foreign table as `import` takes them, and what there is to say of them afterwards."""

    table: Table
    mapping: dict[str, list[str]]  # ours, and theirs: several are joined
    roles: Mapping[str, str]
    odd_roles: Counter[str] = field(default_factory=Counter)
    odd_passwords: Counter[str] = field(default_factory=Counter)
    assumed_utc: set[str] = field(default_factory=set)
    left_pictures: int = 0
    without_address: list[str] = field(default_factory=list)  # where they stand

    def rows(self) -> Iterator[Row]:
        for where, row in self.table.rows:
            try:
                adapted = row if isinstance(row, Invalid) else self._adapted(row)
            except Invalid as error:
                adapted = error
            if isinstance(adapted, Invalid) or "email" in adapted:
                yield where, adapted
            else:
                self.without_address.append(where)  # of a machine, or of somebody whom no letter could reach

    def _adapted(self, row: Mapping[str, Any]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for ours, theirs in self.mapping.items():
            value = row.get(theirs[0])
            if len(theirs) > 1:
                value = " ".join(filter(None, (_text(row.get(name)).strip() for name in theirs)))
            made = _BECOMES[ours](self, value, theirs[0])
            if made is not None:
                found[ours] = made
        if found.get("confirmed") is False and found.pop("active", True) is False:
            # There may have been a reason to make it inactive, and no letter must open that door.
            del found["confirmed"]
            found["active"] = False
        return found

    def explained(self) -> Iterator[tuple[str, str, str]]:
        """(ours, theirs, what becomes of it)"""
        for ours, theirs in self.mapping.items():
            yield ours, " + ".join(theirs), _told(ours, folded(theirs[0]))

    def notes(self) -> Iterator[str]:
        """What an operator has to know of the rows that were read."""
        for role, count in self.odd_roles.most_common(5):
            yield f"the role {role!r} of {counted(count, 'account')} becomes user; for another one: --map-role {role}=admin"
        if len(self.odd_roles) > 5:
            yield f"{len(self.odd_roles) - 5} more unknown roles become user"
        for kind, count in self.odd_passwords.most_common():
            yield (
                f"the passwords of {counted(count, 'account')} are {kind} and not bcrypt: they cannot be checked here, and"
                " open nothing"
            )
        if self.without_address:
            listed = ", ".join(self.without_address[:5]) + (", …" if len(self.without_address) > 5 else "")
            yield f"{counted(len(self.without_address), 'account')} without an address cannot be here: {listed}"
        if self.assumed_utc:
            yield f"times without an offset count as UTC: {', '.join(sorted(self.assumed_utc))}"
        if self.left_pictures:
            yield f"the pictures of {counted(self.left_pictures, 'account')} are no web addresses, and stay behind"
        used = {name for theirs in self.mapping.values() for name in theirs}
        left = [name for name in self.table.columns if name not in used and name.lower() != "id"]
        if left:
            yield f"stays behind: {', '.join(left)}"


def _told(ours: str, theirs: str) -> str:
    if ours == "active" and theirs in DENYING:
        return "false where it says something"
    if ours == "role" and theirs in TRUE_IS_ADMIN:
        return "admin where it is true"
    return {
        "email": "lower case",
        "role": "admin and user as they are, others by --map-role, else user",
        "active": "true or false",
        "confirmed": "false: inactive until confirmed by letter",
        "password": "in clear: checked by the rules, and hashed",
        "password_hash": "bcrypt as it is, others open nothing",
        "created_at": "UTC where there is no offset",
        "last_login_at": "UTC where there is no offset",
        "oauth_id": "the id at the provider of auth.oauth",
        "profile_picture": "web addresses only",
    }.get(ours, "as it is")


# --- values ---


def _as_it_is(_: Adoption, value: Any, _column: str) -> str | None:
    return _text(value).strip() or None


def _role(adoption: Adoption, value: Any, column: str) -> str | None:
    text = _text(value).strip()
    if text in adoption.roles:
        return adoption.roles[text]
    if folded(column) in TRUE_IS_ADMIN:
        return str(Role.ADMIN if _truth(text, column) else Role.USER)
    if text and text.lower() not in tuple(Role):
        adoption.odd_roles[text] += 1
        return str(Role.USER)
    return text.lower() or None


def _active(_: Adoption, value: Any, column: str) -> bool:
    if folded(column) in DENYING:  # a time, a reason, or a mere yes
        return _text(value).strip().lower() in _NO
    return _truth(_text(value), column)


def _confirmed(_: Adoption, value: Any, _column: str) -> bool:
    return _text(value).strip().lower() not in _NO  # often the time when it happened


def _password_hash(adoption: Adoption, value: Any, _column: str) -> str | None:
    text = _BEFORE_BCRYPT.sub("", _text(value).strip())
    if not text or text[0] in "!*":  # what Django and Unix write where there is none
        return None
    if cost_of(text) is not None:
        return text
    # Only what is known as the name of a kind is told: this may be a password in clear.
    kind = _KINDS.match(text)
    adoption.odd_passwords[(kind[1] or kind[2]) if kind else "of an unknown kind"] += 1
    return None


def _password(_: Adoption, value: Any, _column: str) -> str | None:
    return _text(value) or None


def _time(adoption: Adoption, value: Any, column: str) -> str | None:
    text = _text(value).strip()
    if text in ("", "0"):
        return None
    try:
        if re.fullmatch(r"-?\d{9,14}(\.\d+)?", text):  # seconds or milliseconds since 1970
            number = float(text)
            return stamp(datetime.fromtimestamp(number / 1000 if abs(number) > 1e11 else number, UTC))
        if datetime.fromisoformat(text).tzinfo is None:
            adoption.assumed_utc.add(column)
        return stamp(moment(text))
    except (ValueError, OverflowError, OSError):
        raise Invalid(f"{column}: {text[:40]!r} is no time") from None


def _picture(adoption: Adoption, value: Any, _column: str) -> str | None:
    text = _text(value).strip()
    if text and not is_web_address(text):
        adoption.left_pictures += 1
        return None
    return text or None


_BECOMES: dict[str, Callable[[Adoption, Any, str], Any]] = {
    "email": _as_it_is,
    "name": _as_it_is,
    "oauth_id": _as_it_is,
    "role": _role,
    "active": _active,
    "confirmed": _confirmed,
    "password_hash": _password_hash,
    "password": _password,
    "created_at": _time,
    "last_login_at": _time,
    "profile_picture": _picture,
}


def _text(value: Any) -> str:
    if isinstance(value, bytes):  # as bcrypt makes its hashes, some keep them
        return value.decode("utf-8", "surrogateescape")
    return "" if value is None or isinstance(value, list | dict) else str(value)


def _truth(text: str, column: str) -> bool:
    said = text.strip().lower()
    if said not in _YES | _NO:
        raise Invalid(f"{column}: {said[:40]!r} is neither true nor false")
    return said in _YES


# --- which column is which ---


def mapped(columns: Sequence[str], given: Mapping[str, str], settings: Settings) -> dict[str, list[str]]:
    """As their names suggest, except for what is given: `{"email": "mail", "oauth_id": ""}`."""
    found = _proposed(columns, settings)
    for ours, theirs in given.items():
        if ours not in OURS:
            raise Invalid(
                f"--map {ours}={theirs}: no column {ours!r} here", hint=f"there are {', '.join(OURS)}"
            )
        if theirs:
            found[ours] = _named(columns, theirs, f"--map {ours}={theirs}")
        else:
            found.pop(ours, None)
    if "password" in given and "password_hash" not in given:
        found.pop("password_hash", None)
    if "email" not in found:
        raise Invalid(
            "No column looks like one of e-mail addresses",
            hint=f"say which it is with --map email=COLUMN; there are {_listed(columns)}",
        )
    return {ours: found[ours] for ours in OURS if ours in found}


def _named(columns: Sequence[str], theirs: str, option: str) -> list[str]:
    by_name = {name.lower(): name for name in columns}
    names = [theirs] if theirs.lower() in by_name else theirs.split("+")
    unknown = next((name for name in names if name.strip().lower() not in by_name), None)
    if unknown is not None:
        raise Invalid(f"{option}: no column {unknown.strip()!r} there", hint=f"there are {_listed(columns)}")
    return [by_name[name.strip().lower()] for name in names]


def _listed(columns: Sequence[str]) -> str:
    return ", ".join(name[:40] for name in columns[:30]) + (", …" if len(columns) > 30 else "")


def _proposed(columns: Sequence[str], settings: Settings) -> dict[str, list[str]]:
    by_name = {folded(name): name for name in reversed(columns)}

    def first(names: Iterable[str]) -> list[str]:
        return next(([by_name[name]] for name in names if name in by_name), [])

    found = {ours: first(names) for ours, names in NAMES.items()}
    if not found["name"]:
        parts = [name for names in PARTS_OF_NAMES for name in first(names)]
        found["name"] = parts or first(SECOND_BEST_NAMES)
    # An id counts at the provider that gave it, and nowhere else.
    found["oauth_id"] = first(_ids_of(settings, by_name)) or found["oauth_id"]
    return {ours: theirs for ours, theirs in found.items() if theirs}


def _ids_of(settings: Settings, names: Iterable[str]) -> list[str]:
    """Columns of ids at the provider that we have; any provider's, where none is configured and there is just one."""
    ids = [
        name for name in names if name.startswith(EXTERNAL) or re.fullmatch("(google|github|gitlab)id", name)
    ]
    if not settings.oauth_client_id:
        return ids if len(ids) == 1 else []
    host = urlsplit(settings.oauth_issuer or "").hostname or ""
    provider = {"accounts.google.com": "google", "gitlab.com": "gitlab"}.get(host, "oidc")
    if settings.oauth_provider == "github":
        provider = "github"
    return [name for name in (f"{provider}id", EXTERNAL + provider) if name in ids]
