"""A fresh proof of identity, for the changes of one's own account that need one: see permissions.require_fresh."""

from dataclasses import dataclass

from usersctl.errors import Invalid, Unauthenticated, WrongPassword
from usersctl.models import Actor
from usersctl.passwords import Hasher, password_is_set
from usersctl.permissions import admit
from usersctl.store.store import Store
from usersctl.throttle import AccountThrottle, counter_in_session


@dataclass(frozen=True)
class Freshness:
    store: Store
    hasher: Hasher
    throttle: AccountThrottle

    def confirm(self, user_id: int, password: str, *, session_id: int, by: Actor) -> None:
        """With the password. An account without one proves itself by a sign-in at its provider, which opens a session."""
        with self.store.read() as tx:
            credentials = tx.credentials_of(user_id)
        if credentials is None:
            raise Unauthenticated("Authentication required")
        if not password_is_set(credentials):
            raise Invalid("This account has no password: sign in through its provider again")
        if not password:
            raise Invalid("Password is required")
        with self.throttle.check(self.hasher, counter_in_session(user_id, session_id), by):
            if not self.hasher.matches(password, credentials.password_hash):
                raise WrongPassword("Incorrect password")
        with self.store.write() as tx:
            admit(tx, by)
            present = tx.credentials_of(user_id)
            if present is None or present.password_hash != credentials.password_hash:
                raise WrongPassword("Incorrect password")  # it was changed meanwhile
            tx.clear_failures(user_id)
            tx.note_proof(by.token_hash or b"")
