"""The table of emails and events that wait to be sent, or were. `webhook`: the one that events are for; "": emails."""

from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta

from usersctl.clock import stamp
from usersctl.models import BEHIND, EmailState, QueuedEmail
from usersctl.store.statements import Statements

QUEUED = ", ".join(QueuedEmail._fields)
ANSWER_LOST = "no answer to the email ("  # how the last error of one begins that the server may have taken, and how often


class Outbox(Statements):
    def add_email(
        self,
        kind: str,
        user_id: int | None,
        email: str,
        message_id: str,
        *,
        dropped: bool,
        about: str | None = None,
    ) -> None:
        """A row that is dropped at once takes as long as one that is kept."""
        self._insert(
            "outbox",
            kind=kind,
            user_id=user_id,
            email=email,
            message_id=message_id,
            about=about,
            created_at=self.now_text,
            due_at=self.now_text,
            state=EmailState.DROPPED if dropped else EmailState.WAITING,
            finished_at=self.now_text if dropped else None,
        )

    def count_recent_emails(
        self, kind: str, user_id: int | None, email: str, *spans: timedelta
    ) -> tuple[int, ...]:
        """How many of a kind to this address or account were not dropped, for each of the spans of time until now.

        One that is as far in the future comes from a clock that was wrong, and must not keep others back.
        """
        periods = [(stamp(self.now - span), stamp(self.now + span)) for span in spans]
        counts = ", ".join("count(*) FILTER (WHERE created_at > ? AND created_at < ?)" for _ in spans)
        where = "(email = ? OR user_id = ?) AND kind = ? AND created_at > ? AND state <> 'dropped'"
        statement = f"SELECT {counts} FROM outbox WHERE {where}"
        values = (*(end for period in periods for end in period), email, user_id, kind, min(periods)[0])
        counted: tuple[int, ...] = self._run(statement, values).fetchone()
        return counted

    def was_written_to(self, kind: str, user_id: int | None, email: str, *, since: str) -> bool:
        """Whether an email of this kind went from this account to this address, or is about to."""
        where = "email = ? AND user_id = ? AND kind = ? AND created_at > ? AND state <> 'dropped'"
        return self._number(f"SELECT 1 FROM outbox WHERE {where} LIMIT 1", (email, user_id, kind, since)) == 1

    def due_email(self, due_by: str, webhook: str = "") -> int | None:
        """The email that is due longest."""
        where = "webhook = ? AND state = 'waiting' AND due_at <= ?"
        statement = f"SELECT id FROM outbox WHERE {where} ORDER BY due_at, id LIMIT 1"
        return self._value(int, statement, (webhook, due_by))

    def claim_email(self, email_id: int, due_by: str, lease: timedelta) -> QueuedEmail | None:
        """No other worker takes the email before `lease` is over."""
        return self._first(
            QueuedEmail._make,
            "UPDATE outbox SET due_at = :until, attempts = attempts + 1"
            f" WHERE id = :id AND state = 'waiting' AND due_at <= :due RETURNING {QUEUED}",
            {"id": email_id, "due": due_by, "until": stamp(self.now + lease)},
        )

    def leave_email(self, email_id: int) -> None:
        """Takes a claim back, for another worker, which is sending the email. It is due when the lease is over."""
        self._run("UPDATE outbox SET attempts = attempts - 1 WHERE id = ?", (email_id,))

    def next_email_due(self, webhook: str = "") -> str | None:
        where = "webhook = ? AND state = 'waiting'"
        statement = f"SELECT due_at FROM outbox WHERE {where} ORDER BY due_at LIMIT 1"
        return self._value(str, statement, (webhook,))

    def last_email_due(self, webhook: str = "") -> str | None:
        """When the last one is due; events that wait for an earlier one left out."""
        where = "webhook = ? AND state = 'waiting' AND due_at < ?"
        statement = f"SELECT due_at FROM outbox WHERE {where} ORDER BY due_at DESC LIMIT 1"
        return self._value(str, statement, (webhook, BEHIND))

    def hasten_emails(self, webhook: str, after: str) -> None:
        """Makes due now what is due after that, and ends a pause until after that. Events that wait for an earlier one go on
        to wait."""
        where = "webhook = ? AND state = 'waiting' AND due_at > ? AND due_at < ?"
        self._run(f"UPDATE outbox SET due_at = ? WHERE {where}", (self.now_text, webhook, after, BEHIND))
        self.end_pause(webhook, after)

    def end_pause(self, webhook: str, after: str) -> None:
        """Of the receiver, if it lasts until after that."""
        statement = "UPDATE webhooks SET paused_until = NULL WHERE name = ? AND paused_until > ?"
        self._run(statement, (webhook, after))

    def finish_email(self, email_id: int, state: EmailState, error: str | None = None) -> None:
        changes = "state = ?, finished_at = ?, last_error = ?"
        statement = f"UPDATE outbox SET {changes} WHERE id = ? AND state = 'waiting'"
        self._run(statement, (state, self.now_text, error, email_id))

    def postpone_email(self, email_id: int, due_at: datetime, error: str) -> None:
        statement = "UPDATE outbox SET due_at = ?, last_error = ? WHERE id = ? AND state = 'waiting'"
        self._run(statement, (stamp(due_at), error, email_id))

    def postpone_due_emails(self, due_at: datetime, error: str) -> None:
        """All that would be tried now. Those whose answers were lost keep the error that counts them."""
        counts = f"last_error LIKE '{ANSWER_LOST}%'"
        changes = f"due_at = ?, last_error = CASE WHEN {counts} THEN last_error ELSE ? END"
        where = "webhook = '' AND state = 'waiting' AND due_at <= ?"
        self._run(f"UPDATE outbox SET {changes} WHERE {where}", (stamp(due_at), error, self.now_text))

    def retry_email(self, email_id: int) -> None:
        """Makes the email due now, as if it had never been tried."""
        self._run(
            "UPDATE outbox SET state = 'waiting', due_at = ?, attempts = 0, last_error = NULL, finished_at = NULL"
            " WHERE id = ? AND state IN ('waiting', 'failed')",
            (self.now_text, email_id),
        )

    def queued_email(self, email_id: int) -> QueuedEmail | None:
        return self._first(
            QueuedEmail._make, f"SELECT {QUEUED} FROM outbox WHERE id = ? AND webhook = ''", (email_id,)
        )

    def queued_emails(self, *, unfinished: bool = False) -> Iterator[QueuedEmail]:
        where = "webhook = ''"
        if unfinished:
            where += " AND state IN ('waiting', 'failed')"
        return map(QueuedEmail._make, self._stream(f"SELECT {QUEUED} FROM outbox WHERE {where} ORDER BY id"))

    def queued_emails_of(self, user_id: int) -> Iterator[QueuedEmail]:
        """The newest first."""
        cursor = self._run(f"SELECT {QUEUED} FROM outbox WHERE user_id = ? ORDER BY id DESC", (user_id,))
        return map(QueuedEmail._make, cursor)

    def oldest_email(self, state: EmailState) -> QueuedEmail | None:
        statement = f"SELECT {QUEUED} FROM outbox WHERE webhook = '' AND state = ? ORDER BY id LIMIT 1"
        return self._first(QueuedEmail._make, statement, (state,))

    def was_any_sent(self, webhook: str, *, since: str) -> bool:
        where = "finished_at > ? AND webhook = ? AND state = 'sent'"
        return self._number(f"SELECT 1 FROM outbox WHERE {where} LIMIT 1", (since, webhook)) == 1

    def count_emails(self) -> dict[str, int]:
        return self._count_by_state("", EmailState)

    def _count_by_state(self, webhook: str, states: Iterable[EmailState]) -> dict[str, int]:
        """States without a row included."""
        statement = "SELECT state, count(*) FROM outbox WHERE webhook = ? GROUP BY state"
        counted = dict(self._run(statement, (webhook,)))
        return {state.value: counted.get(state.value, 0) for state in states}

    def count_unfinished_emails(self, at_most: int) -> tuple[int, int]:
        """Those that wait and those that failed, each up to a number."""
        # The state as text, so that SQLite uses the indexes of those alone.
        some = "SELECT 1 FROM outbox WHERE webhook = '' AND state = '{}' LIMIT ?"
        waiting, failed = (
            self._how_many(some.format(state), (at_most,))
            for state in (EmailState.WAITING, EmailState.FAILED)
        )
        return waiting, failed

    def delete_finished_emails(self, before: str, at_most: int) -> int:
        """Emails that failed stay, for an operator to see."""
        condition = "finished_at < ? AND (state <> 'failed' OR webhook <> '') LIMIT ?"
        return self._delete_some("outbox", "id", condition, before, at_most)
