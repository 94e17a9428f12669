"""The words of the pages: catalogues in several languages, and the texts that the script shows."""

import json
import re
from functools import cache
from pathlib import Path
from typing import Any

from usersctl.config import Settings
from usersctl.config.sources import refuse_pipe
from usersctl.errors import ConfigError
from usersctl.passwords import MAX_BYTES
from usersd.pages.languages import chosen

Words = dict[str, Any]

_FOLDER = Path(__file__).parent / "locales"


@cache
def shipped() -> tuple[str, ...]:
    return tuple(sorted(file.stem for file in _FOLDER.glob("*.json")))


@cache
def catalogues(locale: str) -> dict[str, Words]:
    """By language, the default first: those that are shipped, or an operator's file alone, which all visitors get."""
    default = catalogue(locale)
    others = shipped() if locale in shipped() else ()
    return {words["lang"]: words for words in (default, *map(catalogue, others))}


def words_for(settings: Settings, wanted: str) -> Words:
    """The texts for a visitor, by the header Accept-Language."""
    offered = catalogues(settings.locale)
    return offered[chosen(list(offered), wanted)]


@cache
def catalogue(locale: str) -> Words:
    """The texts of a locale, by name or from a file. What a file leaves out is that of its language, or English."""
    english = _read_shipped("en")
    if locale in shipped():
        return _over(english, _read_shipped(locale))
    own = _read_own(locale)
    if wrong := [repr(key) for key, value in own.items() if not _fits(english.get(key), value)]:
        must_be = (
            "must be a key of en.json with a string"
            if len(wrong) == 1
            else "must be keys of en.json with strings"
        )
        raise ConfigError(
            f"locale = {locale!r}: {', '.join(wrong)} {must_be}",
            # An upgrade may have ended a text.
            hint=f"correct what is misspelled, and remove what this version has no text for: {_FOLDER / 'en.json'}",
        )
    language = own.get("lang", "en")
    if not re.fullmatch(r"[A-Za-z]{2,3}(-[A-Za-z0-9]{2,8})*", language):
        raise ConfigError(f"locale = {locale!r}: 'lang' must be a language such as 'de' or 'pt-BR'")
    nearest = language.lower().partition("-")[0]
    if nearest in shipped():
        own = _over(_read_shipped(nearest), own)
    return _over(english, own)


def _read_shipped(name: str) -> Words:
    words: Words = json.loads((_FOLDER / f"{name}.json").read_text("utf-8"))
    return words


def _read_own(locale: str) -> Words:
    refuse_pipe(Path(locale), f"locale = {locale!r}")
    try:
        own = json.loads(Path(locale).read_text("utf-8"))
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or "not JSON"
        raise ConfigError(
            f"locale = {locale!r}: none of {', '.join(shipped())}, and as a file: {why}"
        ) from None
    if not isinstance(own, dict):
        raise ConfigError(f"locale = {locale!r}: must hold one JSON object with keys of en.json")
    return own


def _over(under: Words, own: Words) -> Words:
    return under | own | {"messages": under["messages"] | own.get("messages", {})}


def _fits(english: object, own: object) -> bool:
    if isinstance(english, dict):
        return isinstance(own, dict) and all(isinstance(text, str) for text in own.values())
    return isinstance(english, str) and isinstance(own, str)


def for_script(words: Words, script: str) -> Words:
    """The texts that a script names."""
    named = set(re.findall(r'"([a-z-]+\.[a-z.-]+)"', script))
    return {key: text for key, text in words.items() if key in named}


def label_of(words: Words, act: str, thing: str) -> str:
    """What a button is called by a screen reader, where others on the page have the same text."""
    return str(words["label.of"]).replace("{act}", act).replace("{thing}", thing)


def days(words: Words, number: int) -> str:
    return str(words["days.one"] if number == 1 else words["days.many"].replace("{n}", str(number)))


def password_rules(settings: Settings, words: Words) -> list[tuple[str, str]]:
    """The rules for a new password, as pairs of the script's name for the rule and its text."""
    applies = {
        "length": True,
        "upper": settings.require_uppercase,
        "lower": settings.require_lowercase,
        "number": settings.require_numbers,
        "special": settings.require_special_chars,
        "common": settings.prevent_common_passwords,
        "strength": settings.min_strength > 0,
        "bytes": True,
    }
    least, most = str(settings.min_length), str(MAX_BYTES)
    return [
        (rule, words[f"rules.{rule}"].replace("{n}", least).replace("{most}", most))
        for rule, is_applied in applies.items()
        if is_applied
    ]
