"""Self-registration: an account that sleeps until its owner shows that the address is theirs."""

from dataclasses import dataclass

from usersctl.clock import Clock, stamp
from usersctl.config import Settings
from usersctl.errors import Invalid, Taken
from usersctl.fields import lookup_key, normal_email, normal_name
from usersctl.lockdown import refuse_in_lockdown
from usersctl.mail.kinds import CONFIRM, queue
from usersctl.models import Actor, NewUser, Role, User
from usersctl.passwords import Hasher, check_password
from usersctl.secrets import digest
from usersctl.store.store import Store


@dataclass(frozen=True)
class Registration:
    store: Store
    hasher: Hasher
    settings: Settings
    now: Clock

    def register(self, email: str, name: str, password: str, *, by: Actor) -> User:
        with self.store.glance() as tx:
            refuse_in_lockdown(tx)  # before the costly hash; what counts is asked below
        email, name = normal_email(email), normal_name(name)
        check_password(self.settings, password, email=email, name=name)
        password_hash = self.hasher.hash(password)
        now = self.now()
        new = NewUser(
            email,
            name,
            password_hash,
            Role.USER,
            active=False,
            created_at=stamp(now),
            awaiting_confirmation=True,
        )
        with self.store.write() as tx:
            refuse_in_lockdown(tx)
            user = tx.add_user(new)
            if user is None:
                raise Taken("Email is already registered")
            queue(tx, CONFIRM, user, user.email, now)
            tx.audit(stamp(now), by, "register", user)
            return user

    def resend(self, email: str) -> None:
        """The same for everyone; whether the address waits for a confirmation is found out when the letter is due."""
        email, now = lookup_key(email), self.now()
        with self.store.write() as tx:
            refuse_in_lockdown(tx)
            queue(tx, CONFIRM, tx.user_by_email(email), email, now)

    def confirm(self, token: str, email: str, *, by: Actor) -> User:
        """One statement uses the token, in the transaction that activates: it works once, also in parallel."""
        now = stamp(self.now())
        with self.store.write() as tx:
            refuse_in_lockdown(tx)
            taken = tx.take_one_time_token(CONFIRM.purpose, digest(token), now)
            user = tx.user(taken[0]) if taken and taken[0] is not None else None
            if taken is None or user is None or not taken[1] == user.email == lookup_key(email):
                raise Invalid("Invalid or expired confirmation link")
            if not user.awaiting_confirmation:
                raise Invalid("Invalid or expired confirmation link")  # an admin has decided in the meantime
            tx.drop_one_time_tokens(user.id, now)
            confirmed = tx.change_user(
                user.id, now, active=True, awaiting_confirmation=False, email_proven_at=now
            )
            tx.audit(now, by, "confirm-email", confirmed)
            return confirmed
