"""Small classes with state that replace parts of the outside world."""

from datetime import UTC, datetime, timedelta
from typing import Any


class FakeClock:
    """A clock that stands still until a test moves it. It is called like `utc_now`."""

    def __init__(self, now: datetime | None = None) -> None:
        self.now = now or datetime(2026, 11, 20, 8, 22, 19, 123000, tzinfo=UTC)

    def __call__(self) -> datetime:
        return self.now

    def move(self, **span: Any) -> None:
        self.now += timedelta(**span)
