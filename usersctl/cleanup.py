"""The cleanup of what has expired: for cron, the endpoint and the daemon's schedule."""

import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import datetime, timedelta
from functools import partial
from itertools import islice
from typing import Any

from usersctl.addresses import expire_claims, remove_registration
from usersctl.changes import delete_due, delete_each
from usersctl.clock import stamp
from usersctl.config import Settings
from usersctl.errors import Referred, UsersError
from usersctl.events import TRIED_FOR
from usersctl.mail.folder import mail_folder, remove_emails
from usersctl.mail.kinds import EmailQueue
from usersctl.models import SYSTEM, Actor, Cleanup, User
from usersctl.named import NamedTuple
from usersctl.permissions import admit
from usersctl.store.slots import CLEANUP_TASK
from usersctl.store.store import Store
from usersctl.store.transaction import Transaction
from usersctl.throttle import LONGEST_WINDOW

SENT_EMAILS_KEPT = timedelta(days=7)

Delete = Callable[[Transaction, int], int]  # so many rows at most; returns how many there were


class Cleaner(NamedTuple):
    store: Store
    settings: Settings
    emails: EmailQueue

    # It deletes some rows at a time until other writers have waited for `hold` seconds; the commit adds about as many.
    # They come in during the time that follows, in which the cleanup carries its pages into the database (else the
    # commit of a login would have to), or pauses.
    some: int = 50
    hold: float = 0.014
    pause: float = 0.006  # from the end of one transaction to the next, at least
    most: int = 250_000  # tokens whose ids are in memory at once, in 10 MB
    kept_failures: int = 100_000  # of failed logins on addresses without an account

    def stale(self, *, include_no_expiration: bool = False) -> Cleanup:
        """Counts what a cleanup would remove now."""
        with self.store.read() as tx:
            expired, endless = tx.count_stale_tokens()
        return Cleanup(expired, endless * include_no_expiration, include_no_expiration)

    def run(
        self,
        *,
        include_no_expiration: bool = False,
        by: Actor,
        slot: datetime | None = None,
        progress: Callable[[int], Any] = lambda _removed: None,
    ) -> Cleanup:
        """Removes in batches all that had expired when it began. One that is cut short is in the audit trail, too.

        `slot`: of the schedule. It is noted at the end, so that another daemon runs it if this one is killed.
        """
        with self.store.glance() as tx:
            began, kept_since = tx.now_text, tx.now - SENT_EMAILS_KEPT
            old_failures = tx.failure_beyond(self.kept_failures)
        done = Cleanup(0, 0, include_no_expiration)
        try:
            with self.store.many_changes():
                for removed in self._remove_expired_tokens(by, began):
                    done = done._replace(expired=removed)
                    progress(removed)
                if include_no_expiration:
                    # The caller's own token is the last, because it admits each transaction before.
                    for removed in self._in_batches(
                        by, lambda tx, some: tx.delete_endless_tokens(some, but=by.token_hash)
                    ):
                        done = done._replace(no_expiration=removed)
                        progress(removed)
                uncounted: tuple[Delete, ...] = (
                    lambda tx, some: tx.delete_expired_one_time_tokens(began, some),
                    lambda tx, some: tx.delete_expired_pending(began, some),
                    lambda tx, some: tx.delete_expired_enrolments(began, some),
                    lambda tx, some: tx.delete_old_failures(old_failures, some),
                    lambda tx, some: tx.delete_client_counts(stamp(tx.now - LONGEST_WINDOW), some),
                    lambda tx, some: tx.delete_finished_emails(stamp(kept_since), some),
                    lambda tx, some: tx.give_up_events(stamp(tx.now - TRIED_FOR), some),
                    lambda tx, some: expire_claims(tx, self.emails, some),
                    lambda tx, some: tx.delete_expired_reservations(began, some),
                    lambda tx, some: tx.delete_left_members(some),
                )
                for delete in uncounted:
                    for _ in self._in_batches(by, delete):
                        pass
                remove_emails(mail_folder(self.settings), kept_since)
                # At the end, because tables of others may refer to an account, which is refused then.
                done = done._replace(accounts=self._delete_accounts(by))
        except BaseException:
            if done.expired or done.no_expiration:
                with suppress(UsersError):  # the first error counts
                    self._record(done, by, is_whole=False)
            raise
        return self._record(done, by, slot=slot)

    def _delete_accounts(self, by: Actor) -> int:
        """Registrations that nobody confirmed, and accounts whose owners deleted them."""
        try:
            removed = self._remove_old_registrations(by)
        except Referred:  # one of them keeps no account of the others
            delete_due(self.store, by)
            raise
        return removed + delete_due(self.store, by)

    def _remove_old_registrations(self, by: Actor) -> int:
        age = self.settings.unconfirmed_expiration
        if not age:
            return 0

        def due(tx: Transaction, at_most: int, kept: int) -> list[User]:
            return tx.unconfirmed_since(stamp(tx.now - age), at_most, after=kept)

        def remove(tx: Transaction, users: list[User]) -> None:
            for user in users:
                remove_registration(tx, user, by=SYSTEM)

        return delete_each(self.store, by, due, remove)

    def _remove_expired_tokens(self, by: Actor, before: str) -> Iterator[int]:
        """Yields after each transaction how many were removed so far.

        In the order of their rows: in that of their expiry, almost each would change another page of the table.
        """
        removed, is_done = 0, False
        while not is_done:
            with self.store.read() as tx:
                ids = sorted(tx.expired_tokens(before, self.most))
            is_done = len(ids) < self.most
            earlier = removed
            for of_these in self._in_batches(by, partial(_delete_expired, iter(ids), before)):
                removed = earlier + of_these
                yield removed

    def _record(
        self, done: Cleanup, by: Actor, *, slot: datetime | None = None, is_whole: bool = True
    ) -> Cleanup:
        with self.store.write() as tx:
            if slot is not None and not tx.note_slot(CLEANUP_TASK, slot):
                return done  # another daemon ran it meanwhile, and noted it
            own = tx.session(by.token_hash)
            if is_whole and done.include_no_expiration and own is not None and own[0].expires_at is None:
                tx.delete_token(by.token_hash)
                done = done._replace(no_expiration=done.no_expiration + 1)
            counts = done._asdict()
            del counts["accounts"]  # each has a row of its own
            tx.audit(by, "cleanup-tokens", **counts)
        return done

    def _in_batches(self, by: Actor, delete: Delete) -> Iterator[int]:
        """Yields after each transaction how many rows were removed so far."""
        removed, is_done = 0, False
        while not is_done:
            with self.store.write() as tx:
                admit(tx, by)
                until = time.monotonic() + self.hold
                while not is_done:
                    some = delete(tx, self.some)
                    removed += some
                    is_done = some < self.some
                    if time.monotonic() >= until:
                        break
            free_since = time.monotonic()
            yield removed
            if removed:
                self.store.checkpoint()
            if not is_done:
                time.sleep(max(0, self.pause - (time.monotonic() - free_since)))


def _delete_expired(ids: Iterator[int], before: str, tx: Transaction, some: int) -> int:
    removed = 0
    while removed < some and (part := list(islice(ids, some - removed))):
        removed += tx.delete_expired_tokens(part, before)
    return removed
