"""What a field of an account may hold, and the one form in which it is stored."""

import re
from typing import Any

from usersctl.clock import moment, since_1970, stamp
from usersctl.errors import Invalid
from usersctl.models import Newcomer, Role

MAX_NAME = 200
# What counts as printable and is seen as a blank.
_FILLERS = " \u115f\u1160\u2800\u3164\ufe0f\uffa0"
MAX_EMAIL = 320  # characters before a closer look, which takes long for long texts; a valid one has fewer
_ROLES = frozenset(Role)

# Addresses that need no closer look: letters and digits, with single signs between them. Hyphens side by side are left
# out, because domains with `xn--` hold other letters.
_WORD = "[a-z0-9]+"
_PLAIN_EMAIL = rf"{_WORD}([._+-]{_WORD})*@({_WORD}(-{_WORD})*\.)+[a-z]+"


def normal_email(value: str) -> str:
    """The one form in which an address is stored; Invalid if it is no address."""
    text = value.strip()
    if len(text) > MAX_EMAIL:
        raise Invalid("Invalid email format", value=text)
    if len(text) <= 64 and text.isascii() and re.fullmatch(_PLAIN_EMAIL, text.lower()):
        return text.lower()
    return checked_email(text)


def checked_email(text: str) -> str:
    """The same for any address, by a library whose import takes longer than most commands."""
    from email_validator import SPECIAL_USE_DOMAIN_NAMES, EmailNotValidError, validate_email

    # Domains such as .local are valid on an intranet; a domain without a dot is a typing mistake.
    SPECIAL_USE_DOMAIN_NAMES.clear()
    try:
        parts = validate_email(
            text, check_deliverability=False, allow_smtputf8=False, globally_deliverable=False
        )
    except (EmailNotValidError, UnicodeError):
        raise Invalid("Invalid email format", value=text, hint=_hint_at_address(text)) from None
    address = f"{parts.local_part}@{parts.ascii_domain}"
    last = parts.ascii_domain.rpartition(".")[2]
    is_domain = last not in ("", parts.ascii_domain) and not last.isdigit()
    if not address.isascii() or len(parts.local_part) > 64 or not is_domain:
        raise Invalid("Invalid email format", value=text)
    return address.lower()


def _hint_at_address(text: str) -> str | None:
    """For `Ada <ada@example.com>`, `mailto:ada@example.com`, `ada@example.com.` and several addresses in one word."""
    border = r"[<>()\[\],;:'\"]"  # no blank: the word before it may belong to the address
    found = re.finditer(rf"(?:^|{border} ?)({_PLAIN_EMAIL})(?= ?{border}|\.?$)", text.lower())
    addresses = [match[1] for match in found]
    if len(addresses) > 1:
        return "give each address as a word of its own"
    return f"did you mean {addresses[0]}?" if addresses else None


def lookup(email: str) -> tuple[str, bool]:
    """For look-ups: the form to look for, and whether it is an address."""
    try:
        return normal_email(email), True
    except Invalid:
        # It matches no account instead of raising, so that the response does not reveal that it was malformed.
        # SQLite takes no surrogates, which an argument of a shell may hold.
        return email.strip().lower().encode("utf-8", "backslashreplace").decode(), False


def name_of(email: str) -> str:
    """What an account is called until somebody gives a name."""
    return email.partition("@")[0]


def lookup_key(email: str) -> str:
    return lookup(email)[0]


def _is_visible(character: str) -> bool:
    if character.isprintable():
        return character not in _FILLERS
    from unicodedata import category  # late: hardly any name needs it

    return category(character) in ("Cn", "Co")  # a letter that is newer than this Python, or a private one


def normal_name(value: str) -> str:
    name = value.strip()
    # An account whose name is not visible could not be told apart, or be chosen by its name.
    if len(name) > MAX_NAME or not any(map(_is_visible, name)):
        raise Invalid(f"Name must have 1 to {MAX_NAME} characters", value=value)
    # Control characters, line separators, and surrogates, which UTF-8 cannot encode. No printable text has one.
    if not name.isprintable() and re.search("[\0-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]", name):
        is_latin = re.search("[\udc80-\udcff]", name) is not None
        hint = "it is not UTF-8, which terminals with another encoding send" if is_latin else None
        raise Invalid("Name must not contain control characters", value=value, hint=hint)
    return name


def normal_role(value: str) -> str:
    if value not in _ROLES:
        raise Invalid(f"Role must be one of {', '.join(Role)}", value=value)
    return str(value)


def normal_group(value: str) -> str:
    """In lower case already: applications compare it as it is, and a comma separates it from others in a header."""
    if not re.fullmatch("[a-z0-9][a-z0-9._-]{0,62}", value):
        raise Invalid(
            "Group name must be of a-z, 0-9 and . _ -, 63 at most, and begin with a-z or 0-9", value=value
        )
    return value


def normal_time(value: str | float) -> str:
    """The one form in which a time is stored, from ISO 8601 text or from seconds or milliseconds since 1970."""
    try:
        if isinstance(value, str):
            return stamp(moment(value.strip()))
        return stamp(since_1970(value))
    except (ValueError, OverflowError, OSError):
        raise Invalid(f"{value!r} is not an ISO 8601 time") from None


def newcomer(email: str, name: str, role: str = Role.USER) -> Newcomer:
    """An account with these fields in their stored form, without a password; Invalid if one breaks its rules."""
    return Newcomer(normal_email(email), normal_name(name), role=normal_role(role))


def is_web_address(text: str) -> bool:
    """For pictures, which other programs show: their addresses must not be scripts."""
    return text[:8].lower().startswith(("https://", "http://"))


def whole_number(text: str) -> int | None:
    """An id, or the number of a page, in its one written form: ASCII digits without a sign or leading zero, and no overflow."""
    return int(text) if text.isascii() and text.isdigit() and text[0] != "0" and len(text) <= 18 else None


def search_text(value: str) -> str | None:
    """The text to search for; None if it is blank."""
    text = value.strip()
    if len(text) > MAX_NAME or not is_text(text):
        raise Invalid(f"search must be a string of at most {MAX_NAME} characters", value=text)
    return text or None


def is_text(text: str) -> bool:
    return "\0" not in text and (text.isascii() or not any("\ud800" <= c <= "\udfff" for c in text))


class TwinKeys(ValueError):
    def __init__(self) -> None:
        super().__init__("a key stands twice in one object")


def unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An `object_pairs_hook` for JSON from outside: readers that keep different duplicates would disagree."""
    fields = dict(pairs)
    if len(fields) != len(pairs):
        raise TwinKeys
    return fields


def problem_of_toml(error: Exception) -> str:
    """In the words of a person: tomllib names a table as ('auth', 'oauth')."""
    named = re.sub(r"\('(.*?)',?\)", lambda parts: "[" + parts[1].replace("', '", ".") + "]", str(error))
    return re.sub(r"Cannot declare (\[.*\]) twice", r"table \1 stands twice", named)
