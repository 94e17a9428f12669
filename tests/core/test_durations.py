"""Durations as they are typed."""

from datetime import UTC, datetime, timedelta

import pytest

from usersctl.durations import since, span
from usersctl.errors import Invalid

NOW = datetime(2030, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "days"),
    [
        ("90m", 1 / 16),
        ("12h", 0.5),
        ("90d", 90),
        (" 2w\n", 14),
        ("1y", 365),
        ("100y", 36_500),
        ("36500d", 36_500),
    ],
)
def test_a_duration_is_a_number_and_a_unit(text: str, days: float) -> None:
    assert span(text) == timedelta(days=days)
    assert since(text, NOW) == NOW - timedelta(days=days)


@pytest.mark.parametrize(
    "text",
    ["", "7", "d", "0d", "-1d", "1.5d", "07d", "1D", "1s", "1d 2h", "\u0667d", "101y", "36501d", "9999999w"],
)
def test_what_is_no_duration_of_up_to_a_hundred_years_is_refused(text: str) -> None:
    with pytest.raises(Invalid, match="is not a duration"):
        span(text)


@pytest.mark.parametrize("text", ["2026-11-20", " 2026-11-20T01:00+01:00 "])
def test_a_duration_before_now_may_be_a_date_instead(text: str) -> None:
    assert since(text, NOW) == datetime(2026, 11, 20, tzinfo=UTC)


@pytest.mark.parametrize("text", ["", "yesterday", "101y", "0001-01-01T00:00+14:00"])
def test_what_is_neither_a_duration_nor_a_date_is_refused(text: str) -> None:
    with pytest.raises(Invalid, match="neither a duration nor a date"):
        since(text, NOW)


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("7", "7d"),
        ("7 days", "7d"),
        ("90min", "90m"),
        ("1D", "1d"),
        ("2weeks", "2w"),
        ("3 Months", "90d"),
        ("-7d", "7d"),
        ("2 weeks ago", "2w"),
    ],
)
def test_a_duration_that_is_written_in_another_way_is_told_in_ours(text: str, meant: str) -> None:
    for read in (span, lambda typed: since(typed, NOW)):
        with pytest.raises(Invalid) as refused:
            read(text)
        assert refused.value.hint == f"did you mean {meant}?"
        span(meant)


@pytest.mark.parametrize("text", ["never", "7x", "0", "2026", "1.5d", "101 years"])
def test_what_means_no_duration_gets_the_forms_that_there_are(text: str) -> None:
    with pytest.raises(Invalid) as refused:
        span(text)
    assert refused.value.hint == "write 30m, 12h, 90d, 2w or 1y; 100y at most"
