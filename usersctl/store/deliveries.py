"""The rows of the outbox that tell events to webhooks, and the webhooks whose receivers failed."""

from collections.abc import Iterator
from datetime import datetime

from usersctl.clock import stamp
from usersctl.models import BEHIND, EmailState, QueuedEmail, WebhookState
from usersctl.store.outbox import QUEUED, Outbox
from usersctl.store.statements import given_ids

# The events of one user. With its second condition, so that SQLite uses the index of events alone: there may be many.
_OF_A_USER = "webhook = :webhook AND webhook <> '' AND subject = :subject"


class Deliveries(Outbox):
    def add_event(self, webhook: str, subject: int, event: str, message_id: str, payload: str) -> None:
        """Due now, or behind the events of the same user that wait."""
        waiting = f"SELECT 1 FROM outbox WHERE {_OF_A_USER} AND state = 'waiting'"
        self._run(
            "INSERT INTO outbox (kind, email, message_id, created_at, due_at, webhook, subject, payload) VALUES (:event, '',"
            f" :id, :now, CASE WHEN EXISTS ({waiting}) THEN :behind ELSE :now END, :webhook, :subject, :payload)",
            {
                "webhook": webhook,
                "subject": subject,
                "event": event,
                "id": message_id,
                "payload": payload,
                "now": self.now_text,
                "behind": BEHIND,
            },
        )

    def finish_event(self, event: QueuedEmail, state: EmailState, error: str | None = None) -> None:
        """The next one of the same user is due."""
        self.finish_email(event.id, state, error)
        self._release(event.webhook, event.subject)

    def _release(self, webhook: str, subject: int) -> None:
        first = f"SELECT min(id) FROM outbox WHERE {_OF_A_USER} AND state = 'waiting'"
        self._run(
            f"UPDATE outbox SET due_at = :now WHERE id = ({first}) AND due_at = :behind",
            {"webhook": webhook, "subject": subject, "now": self.now_text, "behind": BEHIND},
        )

    def give_up_events(self, before: str, at_most: int) -> int:
        """Those that nothing sends: of webhooks that ended, or that the configuration has no more. Also those of a receiver that
        is down, which is asked for few of them."""
        # By the index of what waits, which an order by the id alone would not use.
        old = "webhook > '' AND state = 'waiting' AND created_at < ? ORDER BY +id LIMIT ?"
        events = self._run(f"SELECT {QUEUED} FROM outbox WHERE {old}", (before, at_most)).fetchall()
        for event in map(QueuedEmail._make, events):
            self.finish_event(event, EmailState.FAILED, event.last_error or "too old")
        return len(events)

    def tried_events(self, webhook: str, due_by: str) -> list[int]:
        """Those that wait, and were claimed at least once: some may be being sent."""
        where = "webhook = ? AND state = 'waiting' AND due_at <= ? AND attempts > 0"
        return [number for (number,) in self._run(f"SELECT id FROM outbox WHERE {where}", (webhook, due_by))]

    def retry_events(self, webhook: str, being_sent: list[int]) -> None:
        """Makes all that wait due as if never tried, in their order; and those given up, where no later one of the same user
        was taken, or is being sent."""
        later = (
            "SELECT 1 FROM outbox AS later WHERE later.webhook = outbox.webhook AND later.webhook <> ''"
            " AND later.subject = outbox.subject AND later.id > outbox.id"
            f" AND (later.state = 'sent' OR later.id IN ({self.AMONG}))"
        )
        values = {"webhook": webhook, "behind": BEHIND, "now": self.now_text, **given_ids(being_sent)}
        self._run(
            "UPDATE outbox SET state = 'waiting', attempts = 0, finished_at = NULL, due_at = :behind"
            " WHERE webhook = :webhook AND (state = 'waiting' OR"
            f" (state = 'failed' AND NOT EXISTS ({later})))",
            values,
        )
        first = "SELECT min(id) FROM outbox WHERE webhook = :webhook AND state = 'waiting' GROUP BY subject"
        self._run(f"UPDATE outbox SET due_at = :now WHERE id IN ({first})", values)

    def newest_events(self, webhook: str, at_most: int) -> Iterator[QueuedEmail]:
        statement = f"SELECT {QUEUED} FROM outbox WHERE webhook = ? ORDER BY id DESC LIMIT ?"
        return map(QueuedEmail._make, self._run(statement, (webhook, at_most)))

    def oldest_waiting_event(self, webhook: str) -> QueuedEmail | None:
        statement = f"SELECT {QUEUED} FROM outbox WHERE webhook = ? AND state = 'waiting' ORDER BY id LIMIT 1"
        return self._first(QueuedEmail._make, statement, (webhook,))

    def count_events(self, webhook: str) -> dict[str, int]:
        """No event is dropped."""
        return self._count_by_state(webhook, (EmailState.WAITING, EmailState.SENT, EmailState.FAILED))

    def count_waiting_events(self, at_most: int) -> int:
        """For all webhooks, up to a number."""
        some = "SELECT 1 FROM outbox WHERE webhook > '' AND state = 'waiting' LIMIT ?"
        return self._how_many(some, (at_most,))

    # --- receivers that failed ---

    def webhook_state(self, name: str) -> WebhookState:
        statement = "SELECT failures, paused_until, ended_at FROM webhooks WHERE name = ?"
        return self._first(WebhookState._make, statement, (name,)) or WebhookState()

    def note_webhook_failure(
        self, name: str, failures: int, *, paused_until: datetime | None, ended: bool = False
    ) -> None:
        """`failures`: in a row. A pause that is longer already stays."""
        self._insert(
            "webhooks",
            "ON CONFLICT (name) DO UPDATE SET failures = excluded.failures,"
            " paused_until = CASE WHEN coalesce(webhooks.paused_until, '') > coalesce(excluded.paused_until, '')"
            " THEN webhooks.paused_until ELSE excluded.paused_until END,"
            " ended_at = coalesce(webhooks.ended_at, excluded.ended_at)",
            name=name,
            failures=failures,
            paused_until=paused_until and stamp(paused_until),
            ended_at=self.now_text if ended else None,
        )

    def note_webhook_works(self, name: str) -> None:
        """It did end if another worker learned so: only an operator's retry begins it again."""
        self._run("DELETE FROM webhooks WHERE name = ? AND ended_at IS NULL", (name,))

    def begin_webhook_again(self, name: str) -> None:
        self._run("DELETE FROM webhooks WHERE name = ?", (name,))
