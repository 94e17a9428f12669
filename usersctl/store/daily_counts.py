"""The table of what happened on each day, for which the audit trail has no rows, or too many to count."""

from usersctl.models import DayCounts
from usersctl.store.statements import Statements

_SUMS = ", ".join(f"sum({count})" for count in DayCounts._fields[1:])


class DailyCounts(Statements):
    @property
    def day(self) -> str:
        """Of this transaction, in UTC."""
        return self.now_text[:10]

    @property
    def row_of_day(self) -> str:
        """The key of the row in which this transaction counts: the day, and what may follow it."""
        return self.day

    def count_sign_in(self) -> None:
        self._count("sign_ins")

    def count_failed_sign_in(self) -> None:
        self._count("failed")

    def count_registration(self) -> None:
        self._count("registrations")

    def uncount_failed_sign_in(self, row: str) -> None:
        """`row`: in which it was counted."""
        self._run("UPDATE daily_counts SET failed = failed - 1 WHERE day = ? AND failed > 0", (row,))

    def _count(self, column: str) -> None:
        self._run(
            f"INSERT INTO daily_counts (day, {column}) VALUES (?, 1)"
            f" ON CONFLICT (day) DO UPDATE SET {column} = daily_counts.{column} + 1",
            (self.row_of_day,),
        )

    def daily_counts(self, since: str, until: str) -> dict[str, DayCounts]:
        """By day, both ends included. A day on which nothing happened is missing."""
        statement = (
            f"SELECT substr(day, 1, 10), {_SUMS} FROM daily_counts WHERE day BETWEEN ? AND ? GROUP BY 1"
        )
        days = map(DayCounts._make, self._run(statement, (since, f"{until}~")))
        return {counts.day: counts for counts in days}
