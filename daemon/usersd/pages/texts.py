"""The words of the pages: catalogues in several languages, and the texts that the script shows."""

import json
import re
from functools import cache
from pathlib import Path
from typing import Any

from usersctl.config import Settings
from usersctl.errors import ConfigError
from usersctl.passwords import MAX_BYTES

_FOLDER = Path(__file__).parent


@cache
def catalogue(locale: str) -> dict[str, Any]:
    """The texts of a locale, by name or from a file. English ones take the place of missing ones."""
    shipped = {file.stem: file for file in (_FOLDER / "locales").glob("*.json")}
    english: dict[str, Any] = json.loads(shipped["en"].read_text("utf-8"))
    try:
        own = json.loads(shipped.get(locale, Path(locale)).read_text("utf-8"))
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or "not JSON"
        raise ConfigError(
            f"locale = {locale!r}: none of {', '.join(sorted(shipped))}, and as a file: {why}"
        ) from None
    if not isinstance(own, dict):
        raise ConfigError(f"locale = {locale!r}: must hold one JSON object with keys of en.json")
    for key, value in own.items():
        if not _fits(english.get(key), value):
            raise ConfigError(f"locale = {locale!r}: {key!r} must be a key of en.json with a string")
    if not re.fullmatch(r"[A-Za-z]{2,3}(-[A-Za-z0-9]{2,8})*", own.get("lang", "en")):
        raise ConfigError(f"locale = {locale!r}: 'lang' must be a language such as 'de' or 'pt-BR'")
    return english | own | {"messages": english["messages"] | own.get("messages", {})}


def _fits(english: object, own: object) -> bool:
    if isinstance(english, dict):
        return isinstance(own, dict) and all(isinstance(text, str) for text in own.values())
    return isinstance(english, str) and isinstance(own, str)


@cache
def for_script(locale: str, script: str) -> bytes:
    """The texts that a script names, and its translations of the server's messages, as JSON."""
    named = set(re.findall(r'"([a-z-]+\.[a-z.-]+)"', script))
    texts = {key: text for key, text in catalogue(locale).items() if key in named or key == "messages"}
    return json.dumps(texts, ensure_ascii=False, separators=(",", ":")).encode()


def days(settings: Settings) -> str:
    """How long the owner of an account can undo its deletion."""
    words, number = catalogue(settings.locale), settings.deletion_grace.days
    return str(words["days.one"] if number == 1 else words["days.many"].replace("{n}", str(number)))


@cache
def password_rules(settings: Settings) -> list[tuple[str, str]]:
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
    texts = catalogue(settings.locale)
    least, most = str(settings.min_length), str(MAX_BYTES)
    rules = {rule: texts[f"rules.{rule}"] for rule in applies if applies[rule]}
    return [(rule, text.replace("{n}", least).replace("{most}", most)) for rule, text in rules.items()]
