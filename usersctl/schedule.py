"""When a cron line is due: five fields or an alias, in the host's local time."""

from datetime import datetime, timedelta

from usersctl.clock import utc_now

_ALIASES = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}
_LAST_YEAR = 2095  # from which the package, which knows none after 2099, finds the next 29 February


def next_slot(line: str, after: datetime | None = None) -> datetime:
    """The first moment after `after` at which the line is due; ValueError if it is never due."""
    from crontab import CronTab

    line = line.strip()
    if not line.isascii():
        # int() would take the digits of other scripts.
        raise ValueError("only ASCII digits, letters and signs")
    if line.startswith("@"):
        if line not in _ALIASES:
            raise ValueError(f"known aliases: {', '.join(_ALIASES)}")
        line = _ALIASES[line]
    elif len(line.split()) != 5:
        # The package accepts a sixth field for years or seconds; cron does not.
        raise ValueError(f"{len(line.split())} fields instead of 5")
    after = after or utc_now()
    # Computed in local wall time, so that a change to summer time on the way does not move the slot.
    wall = after.astimezone().replace(tzinfo=None)
    # A wrong clock may show a later year. The calendar is the same every 400 years.
    back = max(0, (wall.year - _LAST_YEAR + 399) // 400) * 400
    wall = wall.replace(year=wall.year - back)
    slots = (CronTab(part).next(now=wall, default_utc=False, return_datetime=True) for part in _lines(line))
    slot: datetime | None = min((slot for slot in slots if slot is not None), default=None)
    if slot is None:
        raise ValueError("never due")
    slot = slot.replace(year=slot.year + back)
    # The two readings of a time that comes twice, or never. Which of them has fold=0 depends on the version of Python.
    first, last = sorted(slot.replace(fold=fold).astimezone() for fold in (0, 1))
    # In the hour that comes twice in autumn, the first one may be over. In the hour that spring leaves out, the first one is
    # earlier than the line says, and the slot would come again after the change.
    is_over, is_earlier = first <= after, first.replace(tzinfo=None) != slot
    return last if is_over or is_earlier else first


def _lines(line: str) -> list[str]:
    """If both days are restricted, cron runs on either of them; the package only on days that match both."""
    minute, hour, day, month, weekday = line.split()
    if day[0] in "*?" or weekday[0] in "*?":
        return [line]
    return [f"{minute} {hour} {day} {month} *", f"{minute} {hour} * {month} {weekday}"]


def latest_slot(line: str, due: datetime, now: datetime) -> datetime:
    """The last moment until `now` at which the line was due, as it was at `due`."""
    slot, near = due, next_slot(line, now - timedelta(days=1))
    if due < near <= now:  # after a year of sleep it does not count every minute of it
        slot = near
    while (following := next_slot(line, slot)) <= now:
        slot = following
    return slot
