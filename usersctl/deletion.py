"""The deletion of one's own account: requested, perhaps confirmed by email, undone by email, carried out after a while."""

from usersctl.changes import delete_due, delete_users
from usersctl.clock import stamp
from usersctl.config import Settings
from usersctl.credentials import dead_link, owner_of, shut_out
from usersctl.errors import Unauthenticated
from usersctl.fields import lookup_key
from usersctl.invited import settle
from usersctl.lockdown import refuse_in_lockdown
from usersctl.mail.kinds import DELETE, UNDO, EmailQueue
from usersctl.models import Actor, Credentials, Purpose, User
from usersctl.named import NamedTuple
from usersctl.passwords import Hasher, password_is_set
from usersctl.permissions import admit, keep_an_admin, require_fresh
from usersctl.secrets import digest
from usersctl.store.store import Store
from usersctl.store.transaction import Transaction
from usersctl.throttle import AccountThrottle


class Deletion(NamedTuple):
    """Until `users.delete_at` the account is inactive, and its owner can undo the deletion.

    Only an owner sets `delete_at`, and an admin's decision on `active` clears it. So an undo never activates an account
    that an admin deactivated.
    """

    store: Store
    hasher: Hasher
    throttle: AccountThrottle
    settings: Settings
    emails: EmailQueue

    def request(self, user_id: int, password: str | None, *, session_id: int, by: Actor) -> bool:
        """Deletes, with the password of the account; one with a second factor needs a fresh proof by it instead.

        An account without both gets an email that confirms: False.
        """
        with self.store.glance() as tx:
            credentials = _present(tx, user_id)
            keep_an_admin(tx, [credentials.user])
        if credentials.user.factors:
            with self.store.write() as tx:
                admit(tx, by)
                require_fresh(tx, by)
                self._delete(tx, _present(tx, user_id).user, by)
            return True
        if not password_is_set(credentials):
            self._ask_by_email(user_id, by)
            return False
        proven = self.throttle.proven(self.hasher, credentials, password, session_id=session_id, by=by)
        with proven as (tx, user):
            if user.factors:  # added during the check: the password alone deletes the account no more
                require_fresh(tx, by)
            self._delete(tx, user, by)
        return True

    def _ask_by_email(self, user_id: int, by: Actor) -> None:
        with self.store.write() as tx:
            admit(tx, by)
            user = _present(tx, user_id).user
            self.emails.add(tx, DELETE, user, user.email)

    def confirm(self, token: str, email: str, *, by: Actor) -> None:
        """With the link of the email to an account without a password."""
        with self.store.write() as tx:
            refuse_in_lockdown(tx)
            user = owner_of(tx, tx.take_one_time_token(Purpose.DELETE, digest(token)))
            if user is None or user.email != lookup_key(email) or not user.active:
                raise dead_link()
            if user.factors:  # added since: the email alone deletes the account no more
                raise dead_link()
            self._delete(tx, user, by)

    def _delete(self, tx: Transaction, user: User, by: Actor) -> None:
        """At once, or after the time to undo. The "this wasn't me" links stay: they are the owner's against a thief."""
        keep_an_admin(tx, [user])
        if not self.settings.deletion_grace:
            delete_users(tx, [user], by=by, own=True)
            return
        settle(tx, user)
        shut_out(tx, user)
        until = stamp(tx.now + self.settings.deletion_grace)
        inactive = tx.change_user(user.id, active=False, delete_at=until)
        self.emails.add(tx, UNDO, inactive, inactive.email)
        tx.audit(by, "request-deletion", inactive, delete_at=until)

    def undo(self, token: str, email: str, *, by: Actor) -> None:
        with self.store.write() as tx:
            refuse_in_lockdown(tx)
            user = owner_of(tx, tx.take_one_time_token(Purpose.UNDO, digest(token)))
            if user is None or user.email != lookup_key(email) or user.delete_at is None:
                raise dead_link()
            # It does not prove the address: unlike a reset, it leaves the password, which another person may know.
            active = tx.change_user(user.id, active=True, delete_at=None)
            tx.audit(by, "undo-deletion", active)

    def carry_out(self, *, by: Actor) -> int:
        return delete_due(self.store, by)


def tell_owners(tx: Transaction) -> None:
    """After a restore, which ends the links of emails, and brings back deletions that were undone since."""
    for user in tx.deleted_by_owners():
        EmailQueue().add(tx, UNDO, user, user.email)


def _present(tx: Transaction, user_id: int) -> Credentials:
    """The caller, whose session may have ended since the request was admitted."""
    credentials = tx.credentials_of(user_id)
    if credentials is None or not credentials.user.active:
        raise Unauthenticated
    return credentials
