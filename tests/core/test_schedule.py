"""When a cron line is due: after now, once for each slot, in local time."""

import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from usersctl.schedule import latest_slot, next_slot

BERLIN = ZoneInfo("Europe/Berlin")
NOW = datetime(2026, 11, 20, 8, 22, 19, tzinfo=UTC)


@pytest.fixture
def berlin(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with monkeypatch.context() as patch:
        patch.setenv("TZ", "Europe/Berlin")
        time.tzset()
        yield
    time.tzset()


@pytest.fixture
def utc(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with monkeypatch.context() as patch:
        patch.setenv("TZ", "UTC")
        time.tzset()
        yield
    time.tzset()


@pytest.mark.usefixtures("utc")
@pytest.mark.parametrize(
    ("line", "due"),
    [
        ("0 2 * * *", datetime(2026, 11, 21, 2, tzinfo=UTC)),
        ("  0 2 * * *  ", datetime(2026, 11, 21, 2, tzinfo=UTC)),
        ("* * * * *", datetime(2026, 11, 20, 8, 23, tzinfo=UTC)),
        ("*/15 * * * *", datetime(2026, 11, 20, 8, 30, tzinfo=UTC)),
        ("22 8 * * *", datetime(2026, 11, 21, 8, 22, tzinfo=UTC)),
        ("0 0 * * 0", datetime(2026, 11, 22, tzinfo=UTC)),
        ("0 0 * * 7", datetime(2026, 11, 22, tzinfo=UTC)),
        ("0 0 * * mon", datetime(2026, 11, 23, tzinfo=UTC)),
        ("0 0 29 2 *", datetime(2028, 2, 29, tzinfo=UTC)),
        ("0 0 13 * 5", datetime(2026, 11, 27, tzinfo=UTC)),  # a Friday or a 13th, as cron reads it
        ("0 0 22 * 5", datetime(2026, 11, 22, tzinfo=UTC)),
        ("0 0 30 2 5", datetime(2027, 2, 5, tzinfo=UTC)),
        ("0 0 */2 * 5", datetime(2026, 11, 27, tzinfo=UTC)),
        ("0 0 ? * 5", datetime(2026, 11, 27, tzinfo=UTC)),
        ("0 0 22 * ?", datetime(2026, 11, 22, tzinfo=UTC)),
        ("@hourly", datetime(2026, 11, 20, 9, tzinfo=UTC)),
        ("@daily", datetime(2026, 11, 21, tzinfo=UTC)),
        (" @daily ", datetime(2026, 11, 21, tzinfo=UTC)),
        ("@midnight", datetime(2026, 11, 21, tzinfo=UTC)),
        ("@weekly", datetime(2026, 11, 22, tzinfo=UTC)),
        ("@monthly", datetime(2026, 12, 1, tzinfo=UTC)),
        ("@yearly", datetime(2027, 1, 1, tzinfo=UTC)),
        ("@annually", datetime(2027, 1, 1, tzinfo=UTC)),
    ],
)
def test_the_next_slot_of_a_line(line: str, due: datetime) -> None:
    assert next_slot(line, NOW) == due


@pytest.mark.usefixtures("utc")
@pytest.mark.parametrize(
    ("line", "after", "due"),
    [
        ("0 2 * * *", datetime(2099, 12, 31, 3, tzinfo=UTC), datetime(2100, 1, 1, 2, tzinfo=UTC)),
        ("0 0 29 2 *", datetime(2096, 3, 1, tzinfo=UTC), datetime(2104, 2, 29, tzinfo=UTC)),
        ("0 0 * * mon", datetime(2106, 2, 7, 6, 28, 15, tzinfo=UTC), datetime(2106, 2, 8, tzinfo=UTC)),
        ("@yearly", datetime(2489, 6, 1, tzinfo=UTC), datetime(2490, 1, 1, tzinfo=UTC)),
        ("*/15 * * * *", datetime(2500, 3, 1, tzinfo=UTC), datetime(2500, 3, 1, 0, 15, tzinfo=UTC)),
        ("0 2 * * *", datetime(9998, 12, 31, 3, tzinfo=UTC), datetime(9999, 1, 1, 2, tzinfo=UTC)),
    ],
)
def test_a_line_is_due_also_after_the_last_year_that_the_package_knows(
    line: str, after: datetime, due: datetime
) -> None:
    assert next_slot(line, after) == due


@pytest.mark.parametrize(
    "line",
    [
        "",
        "daily",
        "* * * *",
        "* * * * * *",  # seconds or a year, says the package; cron says neither
        "0 2 * * * root",
        "60 * * * *",
        "* 24 * * *",
        "* * 0 * *",
        "* * * 13 *",
        "* * * * 8",
        "*/0 * * * *",
        "5-1 * * * *",
        "a b c d e",
        "-1 * * * *",
        "\u0662 2 * * *",  # an Arabic digit
        "0 0 30 2 *",
        "0 0 32 * 5",
        "0 0 13 * 8",
        "0 0 31 4,6,9,11 *",
        "@reboot",
        "@never",
        "@",
    ],
)
@pytest.mark.parametrize("after", [NOW, datetime(2106, 2, 7, tzinfo=UTC)])
def test_an_impossible_line_is_a_value_error(line: str, after: datetime) -> None:
    with pytest.raises(ValueError, match=r"."):
        next_slot(line, after)


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("@never", "known aliases: @hourly, @daily, "),
        ("* * * * * *", "6 fields instead of 5"),
        ("0 0 30 2 *", "never due"),
    ],
)
def test_the_error_of_an_impossible_line_says_why(line: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        next_slot(line, NOW)


FIELD = st.text("0123456789*/,-LW#?abjmnsu ", max_size=6)


@given(st.text(max_size=20) | st.lists(FIELD, min_size=5, max_size=5).map(" ".join))
def test_any_line_is_due_later_or_a_value_error(line: str) -> None:
    try:
        slot = next_slot(line, NOW)
    except ValueError:
        return
    assert slot > NOW
    assert slot.utcoffset() is not None
    assert (slot.second, slot.microsecond) == (0, 0)


@pytest.mark.usefixtures("berlin")
def test_a_line_means_local_time() -> None:
    assert next_slot("0 2 * * *", datetime(2026, 7, 1, tzinfo=UTC)) == datetime(2026, 7, 2, 2, tzinfo=BERLIN)
    assert next_slot("0 2 * * *", datetime(2026, 12, 1, 1, tzinfo=UTC)) == datetime(
        2026, 12, 2, 2, tzinfo=BERLIN
    )


@pytest.mark.usefixtures("berlin")
@pytest.mark.parametrize(
    "after",
    [datetime(2026, 3, 28, 12, tzinfo=BERLIN), datetime(2026, 10, 24, 12, tzinfo=BERLIN)],
    ids=["spring", "autumn"],
)
def test_a_change_of_the_clocks_before_the_slot_does_not_move_it(after: datetime) -> None:
    assert next_slot("0 4 * * *", after) == (after + timedelta(days=1)).replace(hour=4)


@pytest.mark.usefixtures("berlin")
@pytest.mark.parametrize("line", ["30 2 * * *", "0 2 * * *", "@daily", "59 2 * * *", "0 3 * * *"])
@pytest.mark.parametrize(
    "start",
    [datetime(2026, 3, 27, 12, tzinfo=UTC), datetime(2026, 10, 23, 12, tzinfo=UTC)],
    ids=["spring", "autumn"],
)
def test_a_daily_line_is_due_once_on_each_day_over_a_change_of_the_clocks(line: str, start: datetime) -> None:
    slots = [next_slot(line, start)]
    while slots[-1] < start + timedelta(days=4):
        slots.append(next_slot(line, slots[-1]))
        assert slots[-1] > slots[-2]
    days = [slot.astimezone(BERLIN).date() for slot in slots]
    assert days == [days[0] + timedelta(days=count) for count in range(len(days))]


@pytest.mark.usefixtures("berlin")
@pytest.mark.parametrize(
    "line", ["* * * * *", "*/15 * * * *", "30 2 * * *", "0 2 * * *", "@hourly", "@weekly"]
)
@given(
    minutes=st.integers(0, 48 * 60),
    day=st.sampled_from([datetime(2026, 3, 28, tzinfo=UTC), datetime(2026, 10, 24, tzinfo=UTC)]),
)
def test_a_slot_is_always_later_also_while_clocks_change(line: str, minutes: int, day: datetime) -> None:
    after = day + timedelta(minutes=minutes)
    assert after < next_slot(line, after) < after + timedelta(days=9)


def test_without_a_moment_it_starts_from_now() -> None:
    now = datetime.now(UTC)
    assert now < next_slot("* * * * *") <= now + timedelta(minutes=2)


@pytest.mark.parametrize(
    ("line", "due", "now", "latest"),
    [
        ("* * * * *", "2026-11-20T08:30", "2026-11-20T08:30", "2026-11-20T08:30"),
        ("* * * * *", "2026-11-20T08:30", "2026-11-20T08:31", "2026-11-20T08:31"),
        ("*/5 * * * *", "2026-11-20T08:25", "2026-11-20T08:44", "2026-11-20T08:40"),
        ("* * * * *", "2025-11-20T08:30", "2026-11-20T08:31", "2026-11-20T08:31"),
        ("0 0 1 1 *", "2026-01-01T00:00", "2026-11-20T08:31", "2026-01-01T00:00"),
    ],
)
def test_of_several_slots_that_are_due_the_latest_is_run(line: str, due: str, now: str, latest: str) -> None:
    slots = (datetime.fromisoformat(text).astimezone() for text in (due, now, latest))
    due_at, now_at, latest_at = slots
    assert latest_slot(line, due_at, now_at) == latest_at
