"""The letters that wait: each is taken by one worker, written with a token made at that moment, sent, and marked."""

import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from usersctl.clock import Clock, moment, stamp
from usersctl.config import Settings
from usersctl.errors import Busy, StoreUnusable
from usersctl.mail import kinds
from usersctl.mail.kinds import STALE_AFTER, Kind
from usersctl.models import Actor, Letter, User
from usersctl.secrets import digest, new_token
from usersctl.store.store import Store
from usersctl.store.transaction import Transaction

if TYPE_CHECKING:
    from usersctl.mail.folder import SavedEmail
    from usersctl.mail.sending import Send

# Longer than one attempt can take: until then no other worker touches the letter.
LEASE = timedelta(minutes=2)
NOTED_WITHIN = 60.0  # seconds
FIRST_DELAY, LONGEST_DELAY = timedelta(seconds=5), timedelta(minutes=15)


@dataclass(frozen=True)
class Attempt:
    """What became of one letter, for the log. Never the link."""

    letter: Letter
    state: str  # sent, waiting, failed, dropped
    told: str


@dataclass(frozen=True)
class Outbox:
    store: Store
    settings: Settings
    now: Clock
    given_send: "Send | None" = None  # a test's; else what the configuration says

    def work(self, *, due_by: str | None = None) -> Attempt | None:
        """Takes the next letter that is due, or was at that time, and does what can be done with it; None: there is none."""
        now = self.now()
        due_by = due_by or stamp(now)
        with self.store.glance() as tx:
            due = tx.next_letter_due()
        if due is None or due > due_by:
            return None
        with self.store.write() as tx:
            letter = tx.claim_letter(due_by, stamp(now + LEASE))
            if letter is None:
                return None  # another worker was quicker
            kind = kinds.KINDS.get(letter.kind)
            user = tx.user(letter.user_id) if letter.user_id is not None else None
            why = _pointless(letter, kind, user, stamp(now - STALE_AFTER[kind.purpose]) if kind else "")
            if kind is None or user is None or why is not None:
                tx.finish_letter(letter.id, "dropped", stamp(now), why)
                return Attempt(letter, "dropped", why or "")
            token = self._make_token(tx, letter, kind, user)
        return self._send(letter, kind, token)

    def seconds_until_due(self, at_most: float) -> float:
        with self.store.glance() as tx:
            due = tx.next_letter_due()
        if due is None:
            return at_most
        return min(at_most, max(0.0, (moment(due) - self.now()) / timedelta(seconds=1)))

    def retry(self, letter_ids: list[int] | None) -> list[Letter]:
        """These, or all that wait or failed, are due now; but not one that is being sent."""
        with self.store.write() as tx:
            ids = letter_ids if letter_ids is not None else [each.id for each in tx.letters(unfinished=True)]
            return [found for each in ids if (found := tx.retry_letter(each, stamp(self.now()))) is not None]

    def saved_emails(self) -> "list[SavedEmail]":
        """The newest emails in the folder that takes the place of a mail server."""
        from usersctl.mail import folder

        return folder.newest_emails(folder.mail_folder(self.settings))

    def link(self, kind: Kind, user: User, *, by: Actor) -> str:
        """A working link, for the operator whose users get no mail."""
        from usersctl.mail.writer import link

        with self.store.write() as tx:
            token = new_token()
            now = self.now()
            tx.add_one_time_token(
                digest(token), kind.purpose, user.id, user.email, stamp(now), stamp(now + kind.lifetime)
            )
            tx.audit(stamp(now), by, f"link-{kind.name}", user)
        return link(self.settings, self._target(kind), token, user.email)

    def _make_token(self, tx: Transaction, letter: Letter, kind: Kind, user: User) -> str:
        token, now = new_token(), self.now()
        tx.add_one_time_token(
            digest(token), kind.purpose, user.id, letter.email, stamp(now), stamp(now + kind.lifetime)
        )
        return token

    def _target(self, kind: Kind) -> str:
        return {"confirm": self.settings.link_confirm, "reset": self.settings.link_reset}.get(
            kind.purpose, "/not-me"
        )

    def _send(self, letter: Letter, kind: Kind, token: str) -> Attempt:
        # Late, because all that is known of mail is slow to import and most commands write no letter.
        from usersctl.mail import writer
        from usersctl.mail.sending import Undeliverable

        send = self.given_send or sender(self.settings)
        try:
            message = writer.Writer(self.settings).write(
                kind.name,
                letter.email,
                link=writer.link(self.settings, self._target(kind), token, letter.email),
                hours=kind.lifetime // timedelta(hours=1),
                message_id=letter.message_id,
                date=self.now(),
            )
            told = send(message, letter.email, letter.id)
        except Undeliverable as error:
            return self._not_sent(
                letter, token, str(error), permanent=error.permanent, keep_token=error.perhaps_taken
            )
        except Exception as error:  # noqa: BLE001 - one bad letter must not stop the others
            return self._not_sent(letter, token, f"{type(error).__name__}: {error}", permanent=True)
        self._note(lambda tx: tx.finish_letter(letter.id, "sent", stamp(self.now())))
        return Attempt(letter, "sent", _without(token, told))

    def _not_sent(
        self, letter: Letter, token: str, why: str, *, permanent: bool, keep_token: bool = False
    ) -> Attempt:
        why = _without(token, why)

        def note(tx: Transaction) -> None:
            if not keep_token:
                tx.delete_one_time_token(digest(token))
            if permanent:
                tx.finish_letter(letter.id, "failed", stamp(self.now()), why)
            else:
                tx.postpone_letter(letter.id, stamp(self.now() + delay_after(letter.attempts)), why)

        self._note(note)
        return Attempt(letter, "failed" if permanent else "waiting", why)

    def _note(self, change: Callable[[Transaction], Any]) -> None:
        """What was sent must be known as sent: a database that cannot be written is asked again while the letter is ours."""
        until = time.monotonic() + NOTED_WITHIN
        while True:
            try:
                with self.store.write() as tx:
                    change(tx)
            except (Busy, StoreUnusable):
                if time.monotonic() > until:
                    raise
                time.sleep(0.5)
            else:
                return


def _without(token: str, told: str) -> str:
    """A server may quote the letter in its answer, which is kept and logged."""
    return told.replace(token, "***")


def delay_after(attempts: int) -> timedelta:
    """From seconds to a quarter of an hour, never the same for all that wait for one server."""
    doubled = min(LONGEST_DELAY / 1.2, FIRST_DELAY * 2.0 ** min(attempts - 1, 10))
    return doubled * random.uniform(0.8, 1.2)  # noqa: S311 - no secret


def _pointless(letter: Letter, kind: Kind | None, user: User | None, stale_before: str) -> str | None:
    """Why nobody needs this letter any more."""
    reasons = (
        (kind is None, "no such kind of letter"),
        (user is None, "no account"),
        (letter.created_at < stale_before, "too old"),
        # The notice of a change goes to the address that was.
        (
            kind is not kinds.EMAIL_CHANGED and user and user.email != letter.email,
            "the address was changed",
        ),
        (kind is kinds.CONFIRM and user and not user.awaiting_confirmation, "nothing to confirm"),
    )
    return next((reason for applies, reason in reasons if applies), None)


def sender(settings: Settings) -> "Send":
    """By SMTP where a mail server is configured, else into the folder beside the database."""
    from usersctl.mail.folder import FolderSender, mail_folder
    from usersctl.mail.smtp import SmtpSender

    return SmtpSender(settings) if settings.mailer_host else FolderSender(mail_folder(settings))
