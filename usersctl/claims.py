"""An owner's change of address, until the new one is proven: asked for again, taken back, proven, or expired."""

from usersctl import addresses
from usersctl.credentials import dead_link
from usersctl.devices import Devices
from usersctl.errors import Forbidden, Invalid, NotFound, Unauthenticated
from usersctl.fields import lookup_key
from usersctl.lockdown import refuse_in_lockdown
from usersctl.mail.kinds import EmailQueue
from usersctl.models import UNKNOWN_CLIENT, Actor, Claim, Client, Credentials, Purpose, User
from usersctl.named import NamedTuple
from usersctl.passwords import Hasher, password_is_set
from usersctl.permissions import admit, require_fresh
from usersctl.secrets import digest
from usersctl.store.store import Store
from usersctl.store.transaction import Transaction
from usersctl.throttle import AccountThrottle, counter_of

BATCH = 100  # claims that expire in one transaction


class Claims(NamedTuple):
    store: Store
    hasher: Hasher
    throttle: AccountThrottle
    devices: Devices
    emails: EmailQueue

    def of(self, user_id: int) -> Claim | None:
        with self.store.glance() as tx:
            return tx.claim_of(user_id)

    def owner_of_link(self, token: str, email: str) -> int | None:
        """For the page of the link. None for a dead one. Uses nothing up."""
        with self.store.read() as tx:
            try:
                _, credentials = _linked(tx, digest(token), lookup_key(email))
            except Invalid:
                return None
        return credentials.user.id

    def resend(self, user_id: int, *, by: Actor) -> None:
        with self.store.write() as tx:
            admit(tx, by)
            user = tx.user(user_id)
            if user is None or user.claimed_email is None:
                raise NotFound("No new address to confirm")
            addresses.send_claim_emails(tx, self.emails, user)

    def take_back(self, user_id: int, *, by: Actor) -> None:
        """Succeeds without a claim, too: the known address is the user's address then."""
        with self.store.write() as tx:
            admit(tx, by)
            user = tx.user(user_id)
            if user is not None and user.claimed_email is not None:
                addresses.end_claim(tx, self.emails, user, "claim-taken-back", by=by)

    def prove(
        self, token: str, email: str, password: str, *, client: Client = UNKNOWN_CLIENT, by: Actor
    ) -> User:
        """With the link to the new address and the password; without a password, also with the link to the known address.
        An account with a second factor needs a fresh proof by it instead of the password.

        A wrong password does not use up the link.
        """
        token_hash, email = digest(token), lookup_key(email)
        with self.store.read() as tx:
            _, credentials = _linked(tx, token_hash, email)
            refuse_in_lockdown(tx, credentials.user)
        if password_is_set(credentials) and not credentials.user.factors:
            self._check_password(credentials, password, client, by)
        with self.store.write() as tx:
            purpose, present = _linked(tx, token_hash, email)
            refuse_in_lockdown(tx, present.user)
            if present.password_hash != credentials.password_hash:
                raise Unauthenticated("Incorrect password")  # it was changed meanwhile
            if credentials.user.factors or present.user.factors:
                _require_fresh_owner(tx, present.user, by)
            tx.clear_failures(present.user.id)
            return self._note(tx, purpose, present, token_hash, by)

    def _check_password(self, credentials: Credentials, password: str, client: Client, by: Actor) -> None:
        """Counts as a login: a wrong password counts as a failed one."""
        if not password:
            raise Invalid("Password is required")
        user, stored = credentials
        devices = self.devices.read(client.devices)
        with self.store.read() as tx:
            counter = counter_of(tx, user, user.email, devices)
        with self.throttle.check(self.hasher, counter, by):
            if not self.hasher.matches(password, stored):
                raise Unauthenticated("Incorrect password")

    def _note(
        self, tx: Transaction, purpose: Purpose, present: Credentials, token_hash: bytes, by: Actor
    ) -> User:
        tx.take_one_time_token(purpose, token_hash)
        column = "claim_proven_at" if purpose is Purpose.CLAIM else "claim_approved_at"
        user = tx.change_user(present.user.id, **{column: tx.now_text})
        claim = tx.claim_of(user.id)
        if claim is None or claim.proven_at is None:
            return user
        if claim.approved_at is None and not password_is_set(present):
            return user
        return addresses.complete_claim(tx, self.emails, user, claim, by=by)

    def expire(self) -> int:
        """Reading ignores an expired claim at once; this clears it and tells its owner."""
        total = 0
        while True:
            with self.store.glance() as tx:
                if not tx.expired_claims(1):
                    return total
            with self.store.write() as tx:
                total += addresses.expire_claims(tx, self.emails, BATCH)


def _require_fresh_owner(tx: Transaction, user: User, by: Actor) -> None:
    if by.user_id != user.id:
        raise Forbidden("Confirm that it is you")
    admit(tx, by)
    require_fresh(tx, by)


def _linked(tx: Transaction, token_hash: bytes, email: str) -> tuple[Purpose, Credentials]:
    """The account whose living claim this link proves or approves. Raises Invalid for a dead link."""
    for purpose in (Purpose.CLAIM, Purpose.APPROVE):
        link = tx.one_time_token(purpose, token_hash)
        if link is None or link.user_id is None or link.email != email:
            continue
        credentials = tx.credentials_of(link.user_id)
        if credentials is None or not credentials.user.active or credentials.user.claimed_email is None:
            continue
        user = credentials.user
        expected = user.claimed_email if purpose is Purpose.CLAIM else user.email
        if email == expected:
            return purpose, credentials
    raise dead_link()
