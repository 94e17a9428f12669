"""Small real things with state that tests move: here a clock."""

from datetime import UTC, datetime, timedelta
from typing import Any


class FakeClock:
    """Stands still until it is moved. Called like `utc_now`."""

    def __init__(self, now: datetime | None = None) -> None:
        self.now = now or datetime(2026, 11, 20, 8, 22, 19, 123000, tzinfo=UTC)

    def __call__(self) -> datetime:
        return self.now

    def move(self, **span: Any) -> None:
        self.now += timedelta(**span)
