"""Self-registration: an account that is inactive until its owner proves that they read its address."""

from usersctl.addresses import make_free, take_from_stranger
from usersctl.config import Settings
from usersctl.credentials import owner_of
from usersctl.errors import Invalid
from usersctl.fields import lookup_key, newcomer
from usersctl.lockdown import refuse_in_lockdown
from usersctl.mail.kinds import CONFIRM, RESET, EmailQueue
from usersctl.models import Actor, Purpose, Role, User
from usersctl.named import NamedTuple
from usersctl.passwords import Hasher, check_password
from usersctl.permissions import admit
from usersctl.secrets import digest
from usersctl.store.store import Store
from usersctl.ways_in import ways_into


class Registration(NamedTuple):
    store: Store
    hasher: Hasher
    settings: Settings
    emails: EmailQueue

    def register(self, email: str, name: str, password: str, *, by: Actor) -> User:
        with self.store.glance() as tx:
            refuse_in_lockdown(tx)  # before the costly hash; the write below checks again
        new = newcomer(email, name)._replace(active=False, awaiting_confirmation=True)
        password_hash = self.hasher.hash(check_password(self.settings, password, new))
        with self.store.write() as tx:
            refuse_in_lockdown(tx)
            make_free(tx, self.emails, new.email, by=by)
            user = tx.add_user(new._replace(password_hash=password_hash))
            self.emails.add(tx, CONFIRM, user, user.email)
            tx.audit(by, "register", user)
            tx.count_registration()
            return user

    def resend(self, email: str) -> None:
        """Does the same for every address; the worker finds out whether the account awaits its confirmation."""
        email = lookup_key(email)
        with self.store.write() as tx:
            refuse_in_lockdown(tx)
            self.emails.add(tx, CONFIRM, tx.user_by_email(email), email)

    def send_link(self, user_id: int, *, by: Actor) -> None:
        """For an admin, who learns what `resend` hides."""
        with self.store.write() as tx:
            admit(tx, by)
            user = tx.existing_user(user_id)
            refuse_in_lockdown(tx, user)
            if not user.awaiting_confirmation:
                raise Invalid("The account has nothing to confirm")
            if not self.settings.registration_is_open:
                raise Invalid("Registration is closed, and its confirmation with it: activate the account")
            self.emails.add_for_admin(tx, CONFIRM, user)
            tx.audit(by, "email-confirm", user)

    def confirm(self, token: str, email: str, *, by: Actor) -> User:
        """Uses the token in the transaction that activates, so that it works once, also in parallel."""
        with self.store.write() as tx:
            refuse_in_lockdown(tx)
            user = owner_of(tx, tx.take_one_time_token(Purpose.CONFIRM, digest(token)))
            # An account that awaits no confirmation was decided on by an admin in the meantime.
            if user is None or user.email != lookup_key(email) or not user.awaiting_confirmation:
                raise Invalid("Invalid or expired confirmation link")
            tx.drop_links(user.id)
            has_rights = user.role != Role.USER or tx.groups_of(user.id)
            if has_rights and user.email_proven_at is None:
                # They are meant for the reader of the address.
                take_from_stranger(tx, user, through="confirmation", by=by)
            confirmed = tx.change_user(
                user.id, active=True, awaiting_confirmation=False, email_proven_at=tx.now_text
            )
            tx.audit(by, "confirm-email", confirmed)
            if not ways_into(tx, self.settings, user.id):
                self.emails.add(tx, RESET, confirmed, confirmed.email, is_only_way=True)
            return confirmed

    def has_way_in(self, user: User) -> bool:
        with self.store.read() as tx:
            return bool(ways_into(tx, self.settings, user.id))
