"""The only reader of the clock. Moments are stored as ISO 8601 text in UTC, of one width, so that text sorts as time."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

Clock = Callable[[], datetime]

# Of two daemons: the doctor lets each differ from their server by half of that.
CLOCKS_DIFFER = timedelta(seconds=10)


def utc_now() -> datetime:
    return datetime.now(UTC)


def stamp(moment: datetime) -> str:
    """`2026-11-20T08:22:19.123Z`"""
    if moment.tzinfo is not UTC:
        moment = moment.astimezone(UTC)
    return moment.isoformat("T", "milliseconds")[:-6] + "Z"  # for +00:00


def moment(text: str) -> datetime:
    """The reverse of `stamp`, which also takes other ISO 8601 forms; without an offset they count as UTC."""
    parsed = datetime.fromisoformat(text)
    if parsed.tzinfo is UTC:
        return parsed
    return parsed.replace(tzinfo=UTC) if parsed.tzinfo is None else parsed.astimezone(UTC)


def since_1970(number: float) -> datetime:
    """The moment so many seconds after the start of 1970; a number too large for seconds counts milliseconds."""
    if abs(number) > 1e11:
        number /= 1000
    return datetime.fromtimestamp(number, UTC)
