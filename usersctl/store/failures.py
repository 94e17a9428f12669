"""The table of failed password checks in a row, by counter: see usersctl/throttle.py."""

from usersctl.models import Failures
from usersctl.store.statements import Statements


class LoginFailures(Statements):
    def failures(self, account: str) -> Failures | None:
        statement = "SELECT failures, last_failed_at FROM login_failures WHERE account = ?"
        return self._first(Failures._make, statement, (account,))

    def count_failure(self, account: str, user_id: int | None) -> None:
        self._run(
            "INSERT INTO login_failures (account, user_id, failures, last_failed_at) VALUES (?, ?, 1, ?)"
            " ON CONFLICT (account) DO UPDATE SET failures = failures + 1, last_failed_at = excluded.last_failed_at",
            (account, user_id, self.now_text),
        )

    def uncount_failure(self, account: str) -> None:
        self._run("DELETE FROM login_failures WHERE account = ? AND failures <= 1", (account,))
        self._run("UPDATE login_failures SET failures = failures - 1 WHERE account = ?", (account,))

    def failures_but(self, account: str, user_id: int | None) -> int:
        """The sum of all other counters of the user."""
        statement = "SELECT coalesce(sum(failures), 0) FROM login_failures WHERE user_id = ? AND account <> ?"
        return self._number(statement, (user_id, account))

    def clear_failures(self, user_id: int) -> bool:
        return self._run("DELETE FROM login_failures WHERE user_id = ?", (user_id,)).rowcount > 0

    def delete_oldest_failures(self, keep: int, at_most: int) -> int:
        """Deletes those of addresses without an account, beyond the newest `keep`."""
        condition = "user_id IS NULL ORDER BY last_failed_at DESC LIMIT ? OFFSET ?"
        return self._delete_some("login_failures", "account", condition, at_most, keep)
