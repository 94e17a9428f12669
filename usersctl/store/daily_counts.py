"""The table of what happened on each day, for which the audit trail has no rows, or too many to count."""

from usersctl.models import DayCounts
from usersctl.store.statements import Statements

_COUNTS = ", ".join(DayCounts._fields)


class DailyCounts(Statements):
    @property
    def day(self) -> str:
        """Of this transaction, in UTC."""
        return self.now_text[:10]

    def count_sign_in(self) -> None:
        self._count("sign_ins")

    def count_failed_sign_in(self) -> None:
        self._count("failed")

    def count_registration(self) -> None:
        self._count("registrations")

    def uncount_failed_sign_in(self, day: str) -> None:
        """`day`: on which it was counted."""
        self._run("UPDATE daily_counts SET failed = failed - 1 WHERE day = ? AND failed > 0", (day,))

    def _count(self, column: str) -> None:
        self._run(
            f"INSERT INTO daily_counts (day, {column}) VALUES (?, 1)"
            f" ON CONFLICT (day) DO UPDATE SET {column} = daily_counts.{column} + 1",
            (self.day,),
        )

    def daily_counts(self, since: str, until: str) -> dict[str, DayCounts]:
        """By day, both ends included. A day on which nothing happened is missing."""
        statement = f"SELECT {_COUNTS} FROM daily_counts WHERE day BETWEEN ? AND ? ORDER BY day"
        days = map(DayCounts._make, self._run(statement, (since, until)))
        return {counts.day: counts for counts in days}
