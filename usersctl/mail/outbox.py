"""The worker's side of the outbox: an email is claimed, written with a token made at that moment, sent, and marked."""

import re
import threading
import time
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlencode

from usersctl.clock import moment, stamp
from usersctl.config import Settings
from usersctl.mail import kinds
from usersctl.mail.kinds import EmailQueue, Kind
from usersctl.models import Actor, EmailState, Purpose, QueuedEmail, User
from usersctl.named import NamedTuple
from usersctl.outgoing import LONGEST_DELAY, Attempt, claimed, delay_after, first_due, noted, seconds_until
from usersctl.permissions import admit
from usersctl.secrets import digest, new_token
from usersctl.store.locks import Locks
from usersctl.store.outbox import ANSWER_LOST
from usersctl.store.store import Store
from usersctl.store.transaction import Transaction

if TYPE_CHECKING:
    from usersctl.mail.folder import SavedEmail
    from usersctl.mail.sending import Send, Undeliverable

POLL_EVERY = 0.1  # seconds
# An email whose answer is lost so often is not sent again: the server may have taken each of them. From the second time on
# the pause is the longest, so that a server which hangs for an hour loses none. The last error of the email counts.
LOST_ANSWERS = 8
_LOST = re.compile(rf"{re.escape(ANSWER_LOST)}(\d+) of")


class Outbox(NamedTuple):
    store: Store
    settings: Settings
    queue: EmailQueue
    given_send: "Send | None"  # for tests; None: as the configuration says

    @property
    def committed(self) -> threading.Event:
        """Wakes the worker that sends."""
        return self.queue.committed

    def work(self, *, due_by: str | None = None) -> Attempt | None:
        """Tries the next email that is due (`due_by`: was due then); None if there is none."""
        due, now = first_due(self.store)
        due_by = due_by or stamp(now)
        if due is None or due > due_by:
            return None
        with self.store.locks() as locks:
            return self._work(locks, due_by)

    def _work(self, locks: Locks, due_by: str) -> Attempt | None:
        with self.store.write(alone=False) as tx:
            email = claimed(tx, locks, due_by)
            if email is None:
                return None  # another worker was quicker
            kind = kinds.KINDS.get(email.kind)
            user = tx.user(email.user_id or 0)  # 0: no account
            reason = _why_pointless(tx, email, kind, user)
            if kind is None or user is None or reason is not None:
                tx.finish_email(email.id, EmailState.DROPPED, reason)
                return Attempt(email, EmailState.DROPPED, reason or "")
            kind = _at_present(tx, kind, user)
            token = _add_link(tx, kind, user, email.email, about=email.about)
        return self._send(email, kind, token, tx.now, new_email=user.called)

    def seconds_until_due(self, at_most: float) -> float:
        return seconds_until(self.store, at_most)

    def retry(self, email_ids: list[int] | None) -> list[QueuedEmail]:
        """Makes these, or all that wait or failed, due now, except those that are being sent; returns them all."""
        with self.store.locks() as locks, self.store.write() as tx:
            emails = list(tx.queued_emails(unfinished=True))
            if email_ids is not None:
                emails = [email for email in emails if email.id in email_ids]
            for email in emails:
                if not locks.is_taken(email.id):
                    tx.retry_email(email.id)
            tx.after_commit(self.committed.set)
            return emails

    def wait_for_others(self, email_id: int) -> None:
        """Until no worker is sending this email."""
        with self.store.locks() as locks:
            while locks.is_taken(email_id):
                time.sleep(POLL_EVERY)

    def saved_emails(self) -> "list[SavedEmail]":
        """The newest emails in the folder that takes the place of a mail server."""
        from usersctl.mail import folder

        return folder.newest_emails(folder.mail_folder(self.settings))

    def link(self, kind: Kind, user: User, *, by: Actor) -> str:
        """A working link, for an operator whose users get no mail."""
        with self.store.write() as tx:
            admit(tx, by)
            user = tx.existing_user(user.id)
            email = user.email
            if kind is kinds.CONFIRM_NEW_EMAIL:
                email = user.called
            kind = _at_present(tx, kind, user)
            token = _add_link(tx, kind, user, email)
            tx.audit(by, f"link-{kind.name}", user)
        return self._url(kind, token, email)

    def _url(self, kind: Kind, token: str, email: str) -> str:
        pages = {
            Purpose.CONFIRM: self.settings.link_confirm,
            Purpose.RESET: self.settings.link_reset,
            Purpose.INVITE: self.settings.link_invite,
            Purpose.DELETE: "/confirm-deletion",
            Purpose.UNDO: "/undo-deletion",
            Purpose.CLAIM: "/confirm-new-email",
            Purpose.APPROVE: "/confirm-new-email",
            Purpose.NOT_ME: "/not-me",
        }
        return "" if kind.purpose is None else link_to(self.settings, pages[kind.purpose], token, email)

    def _send(self, email: QueuedEmail, kind: Kind, token: str, date: datetime, *, new_email: str) -> Attempt:
        # Late, because the libraries of mail are slow to import and most commands send no email.
        from usersctl.mail import writer
        from usersctl.mail.sending import Undeliverable

        send = self.given_send or sender(self.settings)
        try:
            message = writer.Writer(self.settings).write(
                kind.name,
                email.email,
                link=self._url(kind, token, email.email),
                lifetime=kind.lifetime,
                new_email=new_email,
                message_id=email.message_id,
                date=date,
            )
            response = send(message, email.email, email.id)
        except Undeliverable as error:
            return self._not_sent(email, token, error)
        except Exception as error:  # noqa: BLE001 - one bad email must not stop the others
            failure = Undeliverable(f"{type(error).__name__}: {error}", permanent=True)
            return self._not_sent(email, token, failure)
        noted(self.store, lambda tx: tx.finish_email(email.id, EmailState.SENT))
        return Attempt(email, EmailState.SENT, response.replace(token, "***"))

    def _not_sent(self, email: QueuedEmail, token: str, error: "Undeliverable") -> Attempt:
        reason = str(error).replace(token, "***")  # a server may quote the email in its response
        permanent, delay = error.permanent, delay_after(email.attempts)
        before = _LOST.match(email.last_error or "")
        lost = error.perhaps_taken + (int(before[1]) if before else 0)
        own_reason = reason  # for this email alone
        if error.perhaps_taken:
            own_reason = f"{ANSWER_LOST}{lost} of {LOST_ANSWERS}): {reason}"
            permanent = lost >= LOST_ANSWERS
            delay = LONGEST_DELAY if lost > 1 else delay
        elif lost:
            own_reason = f"{ANSWER_LOST}{lost} of {LOST_ANSWERS}) before; now: {reason}"

        def note(tx: Transaction) -> None:
            if not error.perhaps_taken:
                tx.delete_one_time_token(digest(token))
            if permanent:
                tx.finish_email(email.id, EmailState.FAILED, own_reason)
                return
            until = tx.now + delay
            tx.postpone_email(email.id, until, own_reason)
            if error.login_refused:  # many wrong logins lock an account
                tx.postpone_due_emails(until, reason)

        noted(self.store, note)
        return Attempt(email, EmailState.FAILED if permanent else EmailState.WAITING, own_reason)


def _at_present(tx: Transaction, kind: Kind, user: User) -> Kind:
    """The link that undoes a deletion works until the account is deleted, and that of an invitation until this expires."""
    until, kind = None, kinds.sent_as(kind, user)
    if kind is kinds.UNDO:
        until = user.delete_at
    elif kind is kinds.INVITATION:
        invitation = tx.invitation_of(user.id)
        until = invitation and invitation.expires_at
    return kind if until is None else kind._replace(lifetime=moment(until) - tx.now)


def _add_link(tx: Transaction, kind: Kind, user: User, email: str, about: str | None = None) -> str:
    """Adds the one-time token of the email's link, if its kind has one."""
    token = new_token()
    if kind.purpose is None:
        return token
    remembered = kinds.INVITATION_REMEMBERED if kind.purpose is Purpose.INVITE else timedelta()
    tx.add_one_time_token(digest(token), kind.purpose, user.id, email, kind.lifetime + remembered, about)
    until = stamp(tx.now + kind.lifetime)
    if kind.purpose in (Purpose.CLAIM, Purpose.APPROVE) and user.claimed_email is not None:
        tx.prolong_claim(user.id, user.claimed_email, until)
    elif kind.purpose is Purpose.NOT_ME:
        tx.keep_reserved(user.id, email, until)
    return token


def _why_pointless(tx: Transaction, email: QueuedEmail, kind: Kind | None, user: User | None) -> str | None:
    """The reason why this email need not be sent any more."""
    if kind is None:
        return "no such kind of email"
    if user is None:
        return "no account"
    if email.created_at < stamp(tx.now - kind.stale_after):
        return "too old"
    if not _is_for(tx, email.email, kind, user):
        return "the address was changed"
    return _why_settled(tx, kind, user)


def _why_settled(tx: Transaction, kind: Kind, user: User) -> str | None:
    if kind is kinds.INVITATION and user.invited_at is None:
        return "nothing to accept"
    if kinds.sent_as(kind, user) is kinds.INVITATION:
        invitation = tx.invitation_of(user.id)
        return "the invitation has expired" if invitation and invitation.has_expired(tx.now_text) else None
    if kind is kinds.CONFIRM and not user.awaiting_confirmation:
        return "nothing to confirm"
    if kind is kinds.APPROVE_NEW_EMAIL and user.claimed_email is None:
        return "nothing to approve"
    if kind is kinds.UNDO and (user.delete_at is None or user.delete_at <= tx.now_text):
        return "nothing to undo"
    return None


def _is_for(tx: Transaction, email: str, kind: Kind, user: User) -> bool:
    """Whether the account still has to do with the address to which an email of this kind is to be sent."""
    if kind is kinds.CONFIRM_NEW_EMAIL:
        return email == user.claimed_email
    if kind.purpose is Purpose.NOT_ME:
        return email == user.email or tx.reserved_for(email) == user.id
    return email == user.email or kind is kinds.EMAIL_GIVEN


def sender(settings: Settings) -> "Send":
    """By SMTP where a mail server is configured, else into the folder beside the database."""
    from usersctl.mail.folder import FolderSender, mail_folder
    from usersctl.mail.smtp import SmtpSender

    if settings.mailer_host:
        return SmtpSender(settings)
    database = settings.database
    return FolderSender(mail_folder(settings), database if isinstance(database, Path) else settings.folder)


def link_to(settings: Settings, target: str, token: str, email: str) -> str:
    """A link that is made from the configuration alone, never from anything in a request."""
    if target.startswith("/"):
        target = settings.base_url + target
    fragment = target.rpartition("#")[2]  # a page whose path is there reads its parameters there, too
    separator = "&" if "?" in fragment else "?"
    return f"{target}{separator}{urlencode({'token': token, 'email': email})}"
