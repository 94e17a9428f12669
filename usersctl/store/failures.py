"""The tables of failed password checks in a row, by counter, and of requests by client: see usersctl/throttle.py."""

from datetime import timedelta
from typing import Any

from usersctl.clock import stamp
from usersctl.models import Failures, LockRules
from usersctl.store.statements import Statements

# As the partial indexes say it.
_OF_STRANGERS = "account = 'user:' || CAST(user_id AS TEXT)"
_OF_KNOWN = "account <> 'user:' || CAST(user_id AS TEXT)"

# SQLite would take the index of users, and sort.
_BY_AGE = "login_failures INDEXED BY login_failures_by_age WHERE user_id IS NULL"


class LoginFailures(Statements):
    def failures(self, account: str) -> Failures | None:
        statement = "SELECT failures, last_failed_at FROM login_failures WHERE account = ?"
        return self._first(Failures._make, statement, (account,))

    def count_failure(self, account: str, user_id: int | None) -> None:
        self._run(
            "INSERT INTO login_failures (account, user_id, failures, last_failed_at) VALUES (?, ?, 1, ?)"
            " ON CONFLICT (account) DO UPDATE SET failures = login_failures.failures + 1,"
            " last_failed_at = excluded.last_failed_at",
            (account, user_id, self.now_text),
        )

    def uncount_failure(self, account: str) -> None:
        # In this order: on a server, the second of two sign-ins at once waits at the update, and then deletes what is left.
        self._run("UPDATE login_failures SET failures = failures - 1 WHERE account = ?", (account,))
        self._run("DELETE FROM login_failures WHERE account = ? AND failures <= 0", (account,))

    def failures_but(self, account: str, user_id: int | None) -> int:
        """The sum of all other counters of the user."""
        statement = "SELECT sum(failures) FROM login_failures WHERE user_id = ? AND account <> ?"
        return self._number(statement, (user_id, account))

    def locked_ids(self, locks: LockRules | None, at_most: int) -> list[int]:
        statement, values = locked(locks)
        return [user_id for (user_id,) in self._run(f"{statement} LIMIT :most", values | {"most": at_most})]

    def clear_failures(self, user_id: int) -> bool:
        return self._run("DELETE FROM login_failures WHERE user_id = ?", (user_id,)).rowcount > 0

    def failure_beyond(self, keep: int) -> str:
        """When the newest failure that is not among the newest `keep`, of addresses without an account, happened; "" if all are."""
        statement = f"SELECT last_failed_at FROM {_BY_AGE} ORDER BY last_failed_at DESC LIMIT 1 OFFSET ?"
        return self._value(str, statement, (keep,)) or ""

    def delete_old_failures(self, until: str, at_most: int) -> int:
        """Those of addresses without an account."""
        some = f"SELECT account FROM {_BY_AGE} AND last_failed_at <= ? LIMIT ?"
        return self._run(f"DELETE FROM login_failures WHERE account IN ({some})", (until, at_most)).rowcount

    def count_client(self, client: str, window: timedelta) -> tuple[str, int]:
        """Returns since when it is counted, and how often. A start in the future comes from a clock that was wrong."""
        is_current = "client_counts.started_at > :since AND client_counts.started_at <= :until"
        row = self._run(
            "INSERT INTO client_counts (client, started_at, n) VALUES (:client, :now, 1) ON CONFLICT (client) DO UPDATE SET"
            f" n = CASE WHEN {is_current} THEN client_counts.n + 1 ELSE 1 END,"
            f" started_at = CASE WHEN {is_current} THEN client_counts.started_at ELSE :now END RETURNING started_at, n",
            {
                "client": client,
                "now": self.now_text,
                "since": stamp(self.now - window),
                "until": stamp(self.now + window),
            },
        ).fetchone()
        return row[0], row[1]

    def delete_oldest_clients(self, limit: str, keep: int, at_most: int) -> int:
        """Deletes those that this limit counts, beyond the newest `keep`."""
        condition = "client LIKE ? ORDER BY started_at DESC LIMIT ? OFFSET ?"
        return self._delete_some("client_counts", "client", condition, f"{limit} %", at_most, keep)

    def delete_client_counts(self, before: str, at_most: int) -> int:
        return self._delete_some("client_counts", "client", "started_at < ? LIMIT ?", before, at_most)


def locked(locks: LockRules | None) -> tuple[str, dict[str, Any]]:
    """The statement that selects the ids of locked accounts, and its values."""
    if locks is None:
        return "SELECT user_id FROM login_failures WHERE FALSE", {}
    values: dict[str, Any] = {
        "of_strangers": locks.of_strangers,
        "of_known": locks.of_known,
        "latest": locks.latest,
    }
    conditions = ["failures >= :of_strangers"]
    for n, (failures, since) in enumerate(locks.delays):
        conditions.append(
            f"(failures >= :delay{n} AND last_failed_at > :since{n} AND last_failed_at <= :latest)"
        )
        values |= {f"delay{n}": failures, f"since{n}": since}
    values["least"] = min(locks.of_strangers, *(failures for failures, _ in locks.delays))
    return (
        "SELECT user_id FROM login_failures"
        f" WHERE {_OF_STRANGERS} AND failures >= :least AND ({' OR '.join(conditions)})"
        f" UNION SELECT user_id FROM login_failures WHERE {_OF_KNOWN} GROUP BY user_id HAVING sum(failures) >= :of_known"
    ), values
