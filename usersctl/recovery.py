"""The way back into an account: a reset by email, and the owner's "this wasn't me"."""

from typing import Any

from usersctl.addresses import put_back
from usersctl.config import Settings
from usersctl.credentials import dead_link, end_links_of_other_addresses, new_password, owner_of, shut_out
from usersctl.errors import Invalid
from usersctl.factors.changes import take_back
from usersctl.fields import lookup_key
from usersctl.lockdown import refuse_in_lockdown
from usersctl.mail.kinds import RESET, EmailQueue
from usersctl.models import UNUSABLE, Actor, Enrolment, Purpose, User
from usersctl.named import NamedTuple
from usersctl.passwords import Hasher, check_password, password_is_set
from usersctl.permissions import admit
from usersctl.secrets import digest
from usersctl.store.store import Store


class Recovery(NamedTuple):
    store: Store
    hasher: Hasher
    settings: Settings
    emails: EmailQueue

    def has_password(self, user_id: int) -> bool:
        """False for an account that signs in through the identity provider only."""
        with self.store.glance() as tx:
            return password_is_set(tx.credentials_of(user_id))

    def forgot(self, email: str) -> None:
        """Does the same work for every address; the worker finds out whether there is an account."""
        email = lookup_key(email)
        with self.store.write() as tx:
            refuse_in_lockdown(tx)
            self.emails.add(tx, RESET, tx.user_by_email(email), email)

    def send_link(self, user_id: int, *, by: Actor) -> None:
        """For an admin, who learns what `forgot` hides."""
        with self.store.write() as tx:
            admit(tx, by)
            user = tx.existing_user(user_id)
            refuse_in_lockdown(tx, user)
            if not user.active:
                raise Invalid("The account is inactive, which a new password would not change")
            self.emails.add_for_admin(tx, RESET, user)
            tx.audit(by, "email-reset", user)

    def reset(self, token: str, email: str, password: str, *, by: Actor) -> User:
        """Proves the address, and leaves an inactive account inactive. A weak password does not use up the token."""
        email, token_hash = lookup_key(email), digest(token)
        with self.store.read() as tx:
            user = owner_of(tx, tx.one_time_token(Purpose.RESET, token_hash))
            refuse_in_lockdown(tx, user)
        if user is None or user.email != email or user.awaits_owner:
            raise dead_link()
        password_hash = self.hasher.hash(check_password(self.settings, password, user))
        with self.store.write() as tx:
            refuse_in_lockdown(tx, user)
            user = owner_of(tx, tx.take_one_time_token(Purpose.RESET, token_hash))
            if user is None or user.awaits_owner:
                raise dead_link()
            # The reset proves who reads this address; notices to one that was given up may be the owner's. Those of
            # enrolments stay: no reset takes an intruder's second factor away.
            tx.drop_notices(user.id, email=user.email, but_enrolments=True)
            end_links_of_other_addresses(tx, self.emails, user, by=by)
            return new_password(
                tx,
                self.emails,
                user,
                password_hash,
                action="reset-password",
                by=by,
                email_proven_at=tx.now_text,
            )

    def not_me(self, token: str, email: str, *, by: Actor) -> None:
        """Shuts out all who are signed in, and puts back the address that the link was sent to, while it is reserved.

        Only an email to that address opens the account again.
        """
        email = lookup_key(email)
        with self.store.write() as tx:
            refuse_in_lockdown(tx)
            link = tx.take_one_time_token(Purpose.NOT_ME, digest(token))
            if link is None or link.user_id is None or link.email != email:
                raise dead_link()
            user = tx.user(link.user_id)
            if user is None or (user.email != email and tx.reserved_for(email) != user.id):
                raise dead_link()
            shut_out(tx, user)
            put_back(tx, user, email)
            if link.about is not None:
                take_back(tx, user, Enrolment.read(link.about), by=by)
            # An intruder who came in through an identity provider must not come in there again.
            unlinked = [identity.provider for identity in tx.delete_identities(user.id)]
            changes: dict[str, Any] = {}
            if user.delete_at is not None:  # by the intruder, or the owner has thought again
                changes = {"active": True}
            changed = tx.change_user(user.id, password_hash=UNUSABLE, delete_at=None, **changes)
            self.emails.add(tx, RESET, changed, changed.email, is_only_way=True)
            undone: dict[str, Any] = {"unlinked": unlinked} if unlinked else {}
            if user.email != email:
                undone |= {"email": email, "old_email": user.email}
            tx.audit(by, "not-me", changed, **changes, **undone)
