"""When a cron line is due: five fields or an alias, in the host's local time."""

from datetime import datetime

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


def next_slot(line: str, after: datetime | None = None) -> datetime:
    """The first moment after `after` at which the line is due; ValueError where there is none."""
    from crontab import CronTab

    line = line.strip()
    if line.startswith("@"):
        if line not in _ALIASES:
            raise ValueError(f"known aliases: {', '.join(_ALIASES)}")
        line = _ALIASES[line]
    elif len(line.split()) != 5:
        # The package takes a sixth field for a year or for seconds, which cron does not.
        raise ValueError(f"{len(line.split())} fields instead of 5")
    after = after or utc_now()
    # Asked in the clock's own local time, so that a change to summer time between now and then does not move the slot.
    wall = after.astimezone().replace(tzinfo=None)
    slots = (CronTab(each).next(now=wall, default_utc=False, return_datetime=True) for each in _lines(line))
    slot = min((each for each in slots if each is not None), default=None)
    if slot is None:
        raise ValueError("never due")
    found: datetime = slot.astimezone()
    if found <= after or found.replace(tzinfo=None) != slot:
        # The hour that comes twice in autumn: the first one may be over already. The one that spring leaves out:
        # Python counts it backwards, and the slot would come again after the change.
        found = slot.replace(fold=1).astimezone()
    return found


def _lines(line: str) -> list[str]:
    """Where both days are restricted cron takes either of them, and the package wants both at once."""
    minute, hour, day, month, weekday = line.split()
    if day[0] in "*?" or weekday[0] in "*?":
        return [line]
    return [f"{minute} {hour} {day} {month} *", f"{minute} {hour} * {month} {weekday}"]
