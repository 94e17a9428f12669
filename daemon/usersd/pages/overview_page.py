"""What the overview shows: numbers with links to what they count, and a chart for each number of the last days."""

from typing import Any

from usersctl.models import DayCounts
from usersctl.named import NamedTuple
from usersctl.overview import MANY, Overview

WIDTH, HEIGHT, STEP = 600, 100, 20  # of a chart, and from one day to the next, in units of its own


class Number(NamedTuple):
    text: str  # its name in the catalogues
    value: int
    link: str = ""
    is_bad: bool = False
    is_bound: bool = False  # there may be more


class Bar(NamedTuple):
    day: str
    value: int
    x: int
    y: float
    height: float


class Chart(NamedTuple):
    """Its text is overview.NAME."""

    name: str
    bars: list[Bar]
    total: int
    today: int
    most: int


def content(overview: Overview) -> dict[str, Any]:
    """The values of the template."""
    return {
        "numbers": _numbers(overview),
        "charts": [chart(name, overview.days) for name in DayCounts._fields[1:]],
        "counted": overview.days[::-1],  # the newest day first, as in every list
        "backup": overview.last_backup,
        "cleanup": overview.last_cleanup,
        "size": (WIDTH, HEIGHT),
    }


def _numbers(overview: Overview) -> list[Number]:
    numbers = [
        Number("users.title", overview.users, "/users"),
        Number("users.only-active", overview.active, "/users?state=active"),
        Number("users.only-admins", overview.admins, "/users?role=admin"),
        Number("overview.awaiting", overview.awaiting, "/users?state=awaiting"),
        Number("overview.invited", overview.invited, "/users?state=invited"),
        _bounded("overview.locked", overview.locked, "/users?state=locked"),
        _bounded("overview.groups", overview.groups, "/users/groups"),
        _bounded("overview.emails-waiting", overview.emails_waiting),
        _bounded("overview.emails-failed", overview.emails_failed, is_bad=overview.emails_failed > 0),
    ]
    if overview.events_waiting is not None:
        numbers.append(_bounded("overview.events-waiting", overview.events_waiting))
    return numbers


def _bounded(text: str, value: int, link: str = "", *, is_bad: bool = False) -> Number:
    return Number(text, value, link, is_bad, is_bound=value >= MANY)


def chart(name: str, days: list[DayCounts]) -> Chart:
    values: list[int] = [getattr(day, name) for day in days]
    most = max(values)
    bars = []
    for place, (day, value) in enumerate(zip(days, values, strict=True)):
        height = round(HEIGHT * value / max(1, most), 1)
        bars.append(Bar(day.day, value, place * STEP, round(HEIGHT - height, 1), height))
    return Chart(name, bars, sum(values), values[-1], most)
