"""The way back in: a reset by letter, and the owner's "this wasn't me"."""

from dataclasses import dataclass

from usersctl.clock import Clock, stamp
from usersctl.config import Settings
from usersctl.errors import Invalid
from usersctl.fields import lookup_key
from usersctl.lockdown import refuse_in_lockdown
from usersctl.mail.kinds import PASSWORD_CHANGED, RESET, queue
from usersctl.models import UNUSABLE, Actor, User
from usersctl.passwords import Hasher, check_password, password_is_set
from usersctl.secrets import digest
from usersctl.store.store import Store
from usersctl.throttle import account_key

NOT_ME = PASSWORD_CHANGED.purpose


@dataclass(frozen=True)
class Recovery:
    store: Store
    hasher: Hasher
    settings: Settings
    now: Clock

    def has_password(self, user_id: int) -> bool:
        """Whether there is one that could fit. Who came in through the identity provider may have none to change."""
        with self.store.glance() as tx:
            return password_is_set(tx.credentials_of(user_id))

    def forgot(self, email: str) -> None:
        """The same work for every address: who has an account is found out when the letter is due."""
        email, now = lookup_key(email), self.now()
        with self.store.write() as tx:
            refuse_in_lockdown(tx)
            queue(tx, RESET, tx.user_by_email(email), email, now)

    def reset(self, token: str, email: str, password: str, *, by: Actor) -> User:
        """A weak password does not use up the token. It proves the address, and leaves an inactive account inactive."""
        email, token_hash = lookup_key(email), digest(token)
        with self.store.glance() as tx:
            known = tx.one_time_token(RESET.purpose, token_hash, stamp(self.now()))
            refuse_in_lockdown(tx, tx.user(known[0]) if known and known[0] is not None else None)
        user = self._owner(known, email)
        check_password(self.settings, password, email=user.email, name=user.name)
        password_hash = self.hasher.hash(password)
        now = self.now()
        with self.store.write() as tx:
            refuse_in_lockdown(tx, user)
            taken = tx.take_one_time_token(RESET.purpose, token_hash, stamp(now))
            if taken is None:
                raise _no_link()
            current = tx.user(user.id)
            if current is None or current.email != taken[1]:
                raise _no_link()
            tx.drop_one_time_tokens(user.id, stamp(now))
            # Whoever resets reads what was sent there; elsewhere it may be the owner.
            tx.drop_notices(user.id, current.email)
            tx.delete_tokens_of(user.id)
            tx.clear_failures(account_key(current, current.email))
            changed = tx.change_user(
                user.id, stamp(now), password_hash=password_hash, email_proven_at=stamp(now)
            )
            queue(tx, PASSWORD_CHANGED, changed, changed.email, now)
            tx.audit(stamp(now), by, "reset-password", changed)
            return changed

    def not_me(self, token: str, email: str, *, by: Actor) -> None:
        """Whoever is in is thrown out, and only a letter to the account's address opens it again."""
        email, now = lookup_key(email), self.now()
        with self.store.write() as tx:
            refuse_in_lockdown(tx)
            taken = tx.take_one_time_token(NOT_ME, digest(token), stamp(now))
            user = tx.user(taken[0]) if taken and taken[0] is not None else None
            if taken is None or user is None or taken[1] != email:
                raise _no_link()
            tx.delete_tokens_of(user.id)
            tx.drop_one_time_tokens(user.id, stamp(now))
            tx.drop_notices(user.id)
            # Who came in through the identity provider must not come in there again.
            changed = tx.change_user(user.id, stamp(now), password_hash=UNUSABLE, oauth_id=None)
            if user.email == email:
                # Not to an address that somebody else may have put there.
                queue(tx, RESET, changed, changed.email, now)
            tx.audit(stamp(now), by, "not-me", changed)

    def _owner(self, known: tuple[int | None, str] | None, email: str) -> User:
        if known is None or known[0] is None or known[1] != email:
            raise _no_link()
        with self.store.glance() as tx:
            user = tx.user(known[0])
        if user is None or user.email != email:
            raise _no_link()
        return user


def _no_link() -> Invalid:
    return Invalid("Invalid or expired link")
