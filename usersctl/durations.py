"""Durations as they are typed: 30m, 12h, 90d, 2w, 1y."""

import re
from contextlib import suppress
from datetime import datetime, timedelta

from usersctl.clock import moment
from usersctl.errors import Invalid

_UNITS = {"m": timedelta(minutes=1), "h": timedelta(hours=1), "d": timedelta(days=1), "w": timedelta(weeks=1)}
_UNITS["y"] = timedelta(days=365)
LONGEST = timedelta(days=36_500)


def span(text: str) -> timedelta:
    match = re.fullmatch(r"([1-9][0-9]{0,6})([mhdwy])", text.strip(), re.ASCII)
    if match is None or int(match[1]) > LONGEST / _UNITS[match[2]]:
        raise Invalid(
            f"{text[:60]!r} is not a duration such as 12h, 90d or 1y",
            hint=_meant_by(text) or "write 30m, 12h, 90d, 2w or 1y; 100y at most",
        )
    return int(match[1]) * _UNITS[match[2]]


def _meant_by(text: str) -> str | None:
    """A hint for `7 days`, `90min`, `1D`, `7`, `-7d` or `7 days ago`."""
    # Of three digits at most: 2026 is a year.
    match = re.fullmatch(r"-?([1-9][0-9]{0,2}) ?([a-z]*)(?: ago)?", text.strip().lower(), re.ASCII)
    if match is None:
        return None
    number, unit = int(match[1]), match[2][:1] or "d"
    if match[2].startswith("mo"):
        number, unit = 30 * number, "d"
    is_span = unit in _UNITS and number * _UNITS[unit] <= LONGEST
    return f"did you mean {number}{unit}?" if is_span else None


def since(text: str, now: datetime) -> datetime:
    """A duration before now, or a date."""
    with suppress(Invalid):
        return now - span(text)
    try:
        return moment(text.strip())
    except (ValueError, OverflowError):
        hint = _meant_by(text) or "write 7d, or 2026-11-20"
        raise Invalid(f"{text[:60]!r} is neither a duration nor a date", hint=hint) from None
