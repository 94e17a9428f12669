"""The first admin of a new installation: by a link that works once, or from the environment."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from usersctl.clock import Clock, stamp
from usersctl.config import Settings
from usersctl.config.sources import read_secret
from usersctl.errors import ConfigError, Invalid
from usersctl.fields import normal_email, normal_name
from usersctl.lockdown import refuse_in_lockdown
from usersctl.models import SYSTEM, Actor, NewUser, Role, User
from usersctl.passwords import Hasher, check_password
from usersctl.secrets import digest, new_token
from usersctl.store.store import Store

LIFETIME = timedelta(minutes=30)
PURPOSE = "setup"
MAKE_AN_ADMIN = "usersctl create EMAIL --admin"


@dataclass(frozen=True)
class FirstAdmin:
    store: Store
    hasher: Hasher
    settings: Settings
    now: Clock
    command: str = MAKE_AN_ADMIN  # the other way to one: on the server, for this database and no other

    def needed(self) -> bool:
        with self.store.glance() as tx:
            return tx.active_admins() == 0

    def link(self) -> str:
        """A new one; those before it work no longer."""
        token, now = new_token(), self.now()
        with self.store.write() as tx:
            tx.drop_setup_tokens()
            tx.add_one_time_token(digest(token), PURPOSE, None, "", stamp(now), stamp(now + LIFETIME))
        return f"{self.settings.base_url}/setup?token={token}"

    def opens(self, token: str) -> bool:
        """Whether a link with this token would be taken now. Asking does not use it up."""
        with self.store.glance() as tx:
            return tx.one_time_token(PURPOSE, digest(token), stamp(self.now())) is not None

    def first_admin(self, token: str, email: str, name: str, password: str, *, by: Actor) -> User:
        email, name = normal_email(email), normal_name(name)
        check_password(self.settings, password, email=email, name=name)
        with self.store.glance() as tx:
            refuse_in_lockdown(tx)
            if tx.one_time_token(PURPOSE, digest(token), stamp(self.now())) is None:
                raise _no_link()
        password_hash = self.hasher.hash(password)
        with self.store.write() as tx:
            now = stamp(self.now())
            refuse_in_lockdown(tx)
            if tx.take_one_time_token(PURPOSE, digest(token), now) is None or tx.active_admins() > 0:
                raise _no_link()
            user = tx.add_user(NewUser(email, name, password_hash, Role.ADMIN, active=True, created_at=now))
            if user is None:
                raise Invalid("Email is already registered")
            tx.audit(now, by, "create", user, role=user.role, active=True, first_admin=True)
            return user

    def from_environment(self, env: Mapping[str, str]) -> User | None:
        """USERS_ADMIN_EMAIL with USERS_ADMIN_PASSWORD_FILE, if that account is missing."""
        email, file = env.get("USERS_ADMIN_EMAIL"), env.get("USERS_ADMIN_PASSWORD_FILE")
        if not email and not file:
            return None
        if not email or not file:
            raise ConfigError("USERS_ADMIN_EMAIL and USERS_ADMIN_PASSWORD_FILE go together")
        try:
            address = normal_email(email)
        except Invalid as error:
            raise ConfigError(f"USERS_ADMIN_EMAIL = {email!r}: {error}") from None
        with self.store.glance() as tx:
            if tx.user_by_email(address) is not None:
                return None
        name = address.partition("@")[0]
        password = read_secret(Path(file), "USERS_ADMIN_PASSWORD_FILE")
        try:
            check_password(self.settings, password, email=address, name=name)
        except Invalid as error:
            raise ConfigError(f"USERS_ADMIN_PASSWORD_FILE: {error}") from None
        password_hash = self.hasher.hash(password)
        with self.store.write() as tx:
            now = stamp(self.now())
            user = tx.add_user(NewUser(address, name, password_hash, Role.ADMIN, active=True, created_at=now))
            if user is not None:  # another process may have been quicker
                tx.audit(now, SYSTEM, "create", user, role=user.role, active=True)
            return user


def _no_link() -> Invalid:
    return Invalid("Invalid or expired link", hint="start usersctl serve on a terminal for a new one")
