"""Which language a visitor reads: the header Accept-Language of RFC 9110, within bounds."""

import re
from collections.abc import Sequence

MAX_LENGTH, MAX_RANGES = 1000, 20  # a browser sends a few; what comes behind them is not read

_RANGE = re.compile(
    r"([a-z]{1,8}(?:-[a-z0-9]{1,8})*|\*)(?:[ \t]*;[ \t]*q=(0(?:\.[0-9]{0,3})?|1(?:\.0{0,3})?))?",
    re.ASCII | re.IGNORECASE,
)
_THOUSANDS = {"en": ",", "de": "."}
_RIGHT_TO_LEFT = {"ar", "ckb", "dv", "fa", "he", "ps", "sd", "ug", "ur", "yi"}


def chosen(languages: Sequence[str], header: str) -> str:
    """The one of `languages` that the header prefers; the first of them if it prefers none.

    `fr-CA` asks for `fr`, and `pt` for `pt-BR`. What the header refuses with q=0 or names elsewhere is not meant by `*`.
    """
    weights: dict[str, float] = {}
    for entry in header[:MAX_LENGTH].split(",")[:MAX_RANGES]:
        match = _RANGE.fullmatch(entry.strip(" \t"))
        if match is not None:
            weights.setdefault(match[1].lower(), float(match[2] or 1))
    unnamed = [one for one in languages if not any(_covers(named, one) for named in weights)]
    for wanted in sorted(filter(weights.__getitem__, weights), key=weights.__getitem__, reverse=True):
        for language in languages:
            if _covers(wanted, language) or (wanted == "*" and language in unnamed):
                return language
    return (unnamed or languages)[0]


def number(language: str, value: int) -> str:
    """With the separator of thousands; the narrow space is what ISO 80000 asks for."""
    return f"{value:,}".replace(",", _THOUSANDS.get(language.lower().partition("-")[0], "\u202f"))


def direction(language: str) -> str:
    """Of its script, as the attribute `dir` names it."""
    is_right_to_left = language.lower().partition("-")[0] in _RIGHT_TO_LEFT
    return "rtl" if is_right_to_left else "ltr"


def _covers(wanted: str, language: str) -> bool:
    """Whether one of the two is the other, or its beginning."""
    wanted, language = f"{wanted}-", f"{language.lower()}-"
    return wanted.startswith(language) or language.startswith(wanted)
