"""The first admin of a new installation: by a link that works once, or from the environment."""

from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path

from usersctl.addresses import holder_of, make_free, remove_registration
from usersctl.config import Settings
from usersctl.config.sources import read_secret
from usersctl.errors import ConfigError, Invalid, Taken
from usersctl.fields import name_of, newcomer, normal_email
from usersctl.lockdown import refuse_in_lockdown
from usersctl.mail.kinds import EmailQueue
from usersctl.models import SYSTEM, Actor, Newcomer, Purpose, Role, User
from usersctl.named import NamedTuple
from usersctl.passwords import Hasher, check_password
from usersctl.secrets import digest, new_token
from usersctl.store.store import Store

LIFETIME = timedelta(minutes=30)


class FirstAdmin(NamedTuple):
    store: Store
    hasher: Hasher
    settings: Settings
    emails: EmailQueue
    command: str  # the other way: on the server, for this database

    def needed(self) -> bool:
        with self.store.glance() as tx:
            return tx.active_admins() == 0

    def link(self) -> str:
        """A new link; the ones before it stop working."""
        token = new_token()
        with self.store.write() as tx:
            tx.drop_setup_tokens()
            tx.add_one_time_token(digest(token), Purpose.SETUP, LIFETIME)
        return f"{self.settings.base_url}/setup?token={token}"

    def opens(self, token: str) -> bool:
        """Whether a link with this token would work now. Does not use the token."""
        with self.store.glance() as tx:
            return tx.one_time_token(Purpose.SETUP, digest(token)) is not None

    def create(self, token: str, email: str, name: str, password: str, *, by: Actor) -> User:
        new = newcomer(email, name, Role.ADMIN)
        with self.store.read() as tx:
            refuse_in_lockdown(tx)
            if tx.one_time_token(Purpose.SETUP, digest(token)) is None:
                raise _dead_link()
        check_password(self.settings, password, new)  # with a link only: to estimate its strength takes long
        new = new._replace(password_hash=self.hasher.hash(password))
        with self.store.write() as tx:
            refuse_in_lockdown(tx)
            if tx.take_one_time_token(Purpose.SETUP, digest(token)) is None or tx.active_admins() > 0:
                raise _dead_link()
            make_free(tx, self.emails, new.email, by=by)
            # The person with the link runs this service and vouches for the address.
            user = tx.add_user(new._replace(email_proven_at=tx.now_text))
            tx.audit(by, "create", user, role=user.role, active=True, proven=True, first_admin=True)
            return user

    def from_environment(self, env: Mapping[str, str]) -> User | None:
        """Creates the admin of USERS_ADMIN_EMAIL and USERS_ADMIN_PASSWORD_FILE, unless the account exists."""
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
            holder = holder_of(tx, address)
        if holder is not None and not holder.awaiting_confirmation:
            return None
        new = Newcomer(address, name_of(address), role=Role.ADMIN)
        password = read_secret(Path(file), "USERS_ADMIN_PASSWORD_FILE")
        try:
            check_password(self.settings, password, new)
        except Invalid as error:
            raise ConfigError(f"USERS_ADMIN_PASSWORD_FILE: {error}") from None
        new = new._replace(password_hash=self.hasher.hash(password))
        try:
            with self.store.write() as tx:
                registered = tx.user_by_email(new.email)
                if registered is not None and registered.awaiting_confirmation:
                    # A stranger's, perhaps: the operator vouches.
                    remove_registration(tx, registered, by=SYSTEM)
                make_free(tx, self.emails, new.email, by=SYSTEM)
                user = tx.add_user(new._replace(email_proven_at=tx.now_text))
                tx.audit(SYSTEM, "create", user, role=user.role, active=True, proven=True)
                return user
        except Taken:
            return None  # another process was quicker


def _dead_link() -> Invalid:
    return Invalid("Invalid or expired link", hint="start usersctl serve on a terminal for a new one")
