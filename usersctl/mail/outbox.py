"""The worker's side of the outbox: an email is claimed, written with a token made at that moment, sent, and marked."""

import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from usersctl.clock import moment, stamp
from usersctl.config import Settings
from usersctl.errors import Busy, StoreUnusable
from usersctl.mail import kinds
from usersctl.mail.kinds import EmailQueue, Kind
from usersctl.models import Actor, EmailState, Purpose, QueuedEmail, User
from usersctl.permissions import admit
from usersctl.secrets import digest, new_token
from usersctl.store.store import Store
from usersctl.store.transaction import Transaction

if TYPE_CHECKING:
    from usersctl.mail.folder import SavedEmail
    from usersctl.mail.sending import Send, Undeliverable

# Longer than one attempt can take: until then no other worker touches the email.
LEASE = timedelta(minutes=2)
NOTED_WITHIN = 60.0  # seconds
FIRST_DELAY, LONGEST_DELAY = timedelta(seconds=5), timedelta(minutes=15)


@dataclass(frozen=True)
class Attempt:
    """What became of one email, for the log. Never the link."""

    email: QueuedEmail
    state: EmailState
    message: str


@dataclass(frozen=True)
class Outbox:
    store: Store
    settings: Settings
    queue: EmailQueue
    given_send: "Send | None" = None  # for tests; None: as the configuration says

    def work(self, *, due_by: str | None = None) -> Attempt | None:
        """Tries the next email that is due (`due_by`: was due then); None if there is none."""
        with self.store.glance() as tx:
            due = tx.next_email_due()
            due_by = due_by or tx.now_text
        if due is None or due > due_by:
            return None
        with self.store.write() as tx:
            email = tx.claim_email(due_by, LEASE)
            if email is None:
                return None  # another worker was quicker
            kind = kinds.KINDS.get(email.kind)
            user = tx.user(email.user_id or 0)  # 0: no account
            reason = _why_pointless(email, kind, user, tx.now)
            if kind is None or user is None or reason is not None:
                tx.finish_email(email.id, EmailState.DROPPED, reason)
                return Attempt(email, EmailState.DROPPED, reason or "")
            kind = _until_deleted(kind, user, tx.now)
            token = _add_link(tx, kind, user, email.email)
        return self._send(email, kind, token, tx.now)

    def seconds_until_due(self, at_most: float) -> float:
        with self.store.glance() as tx:
            due = tx.next_email_due()
        if due is None:
            return at_most
        return min(at_most, max(0.0, (moment(due) - tx.now) / timedelta(seconds=1)))

    def retry(self, email_ids: list[int] | None) -> list[QueuedEmail]:
        """Makes these, or all that wait or failed, due now; not one that is being sent."""
        with self.store.write() as tx:
            if email_ids is None:
                email_ids = [email.id for email in tx.queued_emails(unfinished=True)]
            tx.after_commit(self.queue.committed.set)
            return list(filter(None, map(tx.retry_email, email_ids)))

    def saved_emails(self) -> "list[SavedEmail]":
        """The newest emails in the folder that takes the place of a mail server."""
        from usersctl.mail import folder

        return folder.newest_emails(folder.mail_folder(self.settings))

    def link(self, kind: Kind, user: User, *, by: Actor) -> str:
        """A working link, for an operator whose users get no mail."""
        from usersctl.mail.writer import link

        with self.store.write() as tx:
            admit(tx, by)
            token = _add_link(tx, kind, user, user.email)
            tx.audit(by, f"link-{kind.name}", user)
        return link(self.settings, self._target(kind), token, user.email)

    def _target(self, kind: Kind) -> str:
        targets = {
            Purpose.CONFIRM: self.settings.link_confirm,
            Purpose.RESET: self.settings.link_reset,
            Purpose.DELETE: "/confirm-deletion",
            Purpose.UNDO: "/undo-deletion",
        }
        return targets.get(kind.purpose, "/not-me")

    def _send(self, email: QueuedEmail, kind: Kind, token: str, date: datetime) -> Attempt:
        # Late, because the libraries of mail are slow to import and most commands send no email.
        from usersctl.mail import writer
        from usersctl.mail.sending import Undeliverable

        send = self.given_send or sender(self.settings)
        try:
            link = writer.link(self.settings, self._target(kind), token, email.email)
            message = writer.Writer(self.settings).write(
                kind.name,
                email.email,
                link=link,
                lifetime=kind.lifetime,
                message_id=email.message_id,
                date=date,
            )
            response = send(message, email.email, email.id)
        except Undeliverable as error:
            return self._not_sent(email, token, error)
        except Exception as error:  # noqa: BLE001 - one bad email must not stop the others
            failure = Undeliverable(f"{type(error).__name__}: {error}", permanent=True)
            return self._not_sent(email, token, failure)
        self._note(lambda tx: tx.finish_email(email.id, EmailState.SENT))
        return Attempt(email, EmailState.SENT, response.replace(token, "***"))

    def _not_sent(self, email: QueuedEmail, token: str, error: "Undeliverable") -> Attempt:
        reason = str(error).replace(token, "***")  # a server may quote the email in its response

        def note(tx: Transaction) -> None:
            if not error.perhaps_taken:
                tx.delete_one_time_token(digest(token))
            if error.permanent:
                tx.finish_email(email.id, EmailState.FAILED, reason)
            else:
                tx.postpone_email(email.id, tx.now + delay_after(email.attempts), reason)

        self._note(note)
        return Attempt(email, EmailState.FAILED if error.permanent else EmailState.WAITING, reason)

    def _note(self, change: Callable[[Transaction], Any]) -> None:
        """Repeats the change during the lease until the database takes it, because an email that was sent must be marked."""
        until = time.monotonic() + NOTED_WITHIN
        while True:
            try:
                with self.store.write() as tx:
                    change(tx)
                    return
            except (Busy, StoreUnusable):
                if time.monotonic() > until:
                    raise
                time.sleep(0.5)


def _until_deleted(kind: Kind, user: User, now: datetime) -> Kind:
    """The link that undoes a deletion works until the account is deleted."""
    if kind is not kinds.UNDO or user.delete_at is None:
        return kind
    return kind._replace(lifetime=moment(user.delete_at) - now)


def _add_link(tx: Transaction, kind: Kind, user: User, email: str) -> str:
    token = new_token()
    tx.add_one_time_token(digest(token), kind.purpose, user.id, email, kind.lifetime)
    return token


def delay_after(attempts: int) -> timedelta:
    """From seconds to a quarter of an hour, and random, so that not all emails come back to a server at once."""
    doubled = min(LONGEST_DELAY / 1.2, FIRST_DELAY * 2.0 ** min(attempts - 1, 10))
    return doubled * random.uniform(0.8, 1.2)  # noqa: S311 - no secret


def _why_pointless(email: QueuedEmail, kind: Kind | None, user: User | None, now: datetime) -> str | None:
    """The reason why this email need not be sent any more."""
    if kind is None:
        return "no such kind of email"
    if user is None:
        return "no account"
    reasons = {
        "too old": email.created_at < stamp(now - kind.stale_after),
        # The notice of a change goes to the former address.
        "the address was changed": kind is not kinds.EMAIL_CHANGED and user.email != email.email,
        "nothing to confirm": kind is kinds.CONFIRM and not user.awaiting_confirmation,
        "nothing to undo": kind is kinds.UNDO and (user.delete_at is None or user.delete_at <= stamp(now)),
    }
    return next((reason for reason, applies in reasons.items() if applies), None)


def sender(settings: Settings) -> "Send":
    """By SMTP where a mail server is configured, else into the folder beside the database."""
    from usersctl.mail.folder import FolderSender, mail_folder
    from usersctl.mail.smtp import SmtpSender

    return SmtpSender(settings) if settings.mailer_host else FolderSender(mail_folder(settings))
