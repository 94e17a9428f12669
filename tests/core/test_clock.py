"""Moments are stored in one form, of one width, so that text sorts as time."""

from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from usersctl.clock import moment, stamp, utc_now

ZONES = st.integers(-23 * 60, 23 * 60).map(lambda minutes: timezone(timedelta(minutes=minutes)))
MOMENTS = st.datetimes(datetime(1000, 1, 3), datetime(9999, 12, 28), timezones=ZONES)  # noqa: DTZ001 - given zones


def test_now_is_aware_and_utc() -> None:
    assert utc_now().utcoffset() == timedelta()
    assert timedelta() <= datetime.now(UTC) - utc_now() + timedelta(seconds=1) < timedelta(seconds=5)


def test_a_moment_is_written_with_milliseconds_and_z() -> None:
    zone = timezone(timedelta(hours=1))
    assert stamp(datetime(2026, 11, 20, 9, 22, 19, 123999, tzinfo=zone)) == "2026-11-20T08:22:19.123Z"


@given(MOMENTS)
def test_what_is_stamped_is_read_back_to_the_millisecond(when: datetime) -> None:
    text = stamp(when)
    assert len(text) == 24
    assert timedelta() <= when - moment(text) < timedelta(milliseconds=1)
    assert stamp(moment(text)) == text


@given(MOMENTS, MOMENTS)
def test_text_sorts_as_time(one: datetime, other: datetime) -> None:
    assert one > other or stamp(one) <= stamp(other)


@pytest.mark.parametrize(
    "text",
    [
        "2026-11-20 08:22:19.123",
        "2026-11-20T08:22:19.123",
        "2026-11-20T09:22:19.123+01:00",
        "20261120T082219.123Z",
    ],
)
def test_other_forms_of_iso_8601_are_read_too(text: str) -> None:
    assert stamp(moment(text)) == "2026-11-20T08:22:19.123Z"
