"""A fresh proof of identity, for the changes of one's own account that need one: see permissions.require_fresh."""

from usersctl.errors import Forbidden, Invalid, Unauthenticated
from usersctl.models import Actor, Method
from usersctl.named import NamedTuple
from usersctl.passwords import Hasher, password_is_set
from usersctl.store.store import Store
from usersctl.throttle import AccountThrottle


class Freshness(NamedTuple):
    store: Store
    hasher: Hasher
    throttle: AccountThrottle

    def confirm(self, user_id: int, password: str, *, session_id: int, by: Actor) -> None:
        """With the password. An account without one proves itself by a sign-in at its provider, which opens a session."""
        with self.store.read() as tx:
            credentials = tx.credentials_of(user_id)
        if credentials is None:
            raise Unauthenticated
        if credentials.user.factors:
            raise Forbidden("Second factor required")  # the password alone is no fresh proof of this account
        if not password_is_set(credentials):
            raise Invalid("This account has no password: sign in through its provider again")
        proven = self.throttle.proven(self.hasher, credentials, password, session_id=session_id, by=by)
        with proven as (tx, _):
            tx.note_proof(by.token_hash, Method.PASSWORD)
