"""The folded form of names and addresses, in which a search compares them and a list sorts them."""

import re
import unicodedata
from collections.abc import Callable
from contextlib import suppress
from typing import Any

# Letters that Unicode does not decompose, and signs that people type in several ways.
_LIKE: dict[int, str] = str.maketrans(
    {"æ": "ae", "œ": "oe", "þ": "th", "ĸ": "k"}
    | dict(zip("øłđħıŧƶɨʉŋəɛɔɓɗƙƴǥð", "oldhitziuneeobdkygd", strict=True))
    | dict.fromkeys("\u2018\u2019\u02bb\u02bc\u02b9\u2032", "'")
    | dict.fromkeys("\u2010\u2011\u2012\u2013\u2014\u2212", "-")
)
# The marks of Latin, Greek and Cyrillic letters, and the hyphen that is not visible. Behind the last of these letters are
# other marks, which are looked up one by one.
_MARKS = "[\u0300-\u036f\xad]"
_LAST_WITHOUT_OTHER_MARKS = "\u0482"


def folded(text: str) -> str:
    """Without letter case, marks, width, and characters that are not visible; blanks become single spaces."""
    if not text.isascii():
        # Folded twice: some letters are capitals only after they are decomposed.
        text = re.sub(_MARKS, "", unicodedata.normalize("NFKD", text.casefold())).casefold()
        if max(text, default="") > _LAST_WITHOUT_OTHER_MARKS:
            text = "".join(c for c in text if not _is_mark(c))
        text = text.translate(_LIKE)
    return " ".join(text.lower().split())


def _is_mark(character: str) -> bool:
    # Vowel signs of Indic scripts have no combining class: they are letters to their readers.
    return (
        unicodedata.combining(character) != 0
        or unicodedata.category(character) in ("Cf", "Me")
        or "\ufe00" <= character <= "\ufe0f"  # variation selectors
    )


def folded_address(email: str | None) -> str | None:
    """The folded Unicode form of an address; None if it is the address itself, as of nearly all."""
    if email is None or (email.isascii() and "xn--" not in email):
        return None
    return folded(as_typed(email))


def as_typed(email: str) -> str:
    """With the domain in the letters of its language."""
    local, at, domain = email.rpartition("@")
    return local + at + ".".join(map(_unicode_label, domain.split(".")))


def _unicode_label(label: str) -> str:
    with suppress(UnicodeError):
        if label.startswith("xn--"):
            return label[4:].encode("ascii").decode("punycode")
    return label


def search_words(text: str) -> list[str]:
    """The words of a search; all of them have to occur in a name or an address."""
    words = (word.strip(",;<>") or word for word in folded(text.replace("\0", " ")).split())
    return list(dict.fromkeys(words))


# The columns of users that hold a folded form: of which column, and how it is folded.
FOLDED_COLUMNS: dict[str, tuple[str, Callable[[Any], str | None]]] = {
    "name_folded": ("name", folded),
    "email_folded": ("email", folded_address),
    "claimed_folded": ("claimed_email", folded_address),
}


def with_folded(columns: dict[str, Any]) -> dict[str, Any]:
    """These columns of a user with the folded forms that belong to them."""
    return columns | {name: fold(columns[of]) for name, (of, fold) in FOLDED_COLUMNS.items() if of in columns}
