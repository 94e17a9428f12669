"""The owner's second factors: shown, added and removed. Passkeys are added in usersctl/factors/passkeys.py."""

from datetime import timedelta
from typing import Any

from usersctl.config import Settings
from usersctl.errors import Forbidden, Invalid, NotFound
from usersctl.factors import changes, totp
from usersctl.factors.sealing import Sealer, totp_context
from usersctl.mail.kinds import EmailQueue
from usersctl.models import Actor, Method, Passkey, User
from usersctl.named import NamedTuple
from usersctl.permissions import admit, require_fresh
from usersctl.store.store import Store
from usersctl.store.transaction import Transaction

ENROLMENT_LIFETIME = timedelta(minutes=10)
NOT_BEGUN = "Begin again: no authenticator app waits for its first code"
HAS_TOTP = "An authenticator app is set up already: remove it first"


class NewTotp(NamedTuple):
    """A secret that waits for its first code. It is shown once."""

    secret: str
    uri: str
    qr: str  # SVG


class Factors(NamedTuple):
    store: Store
    settings: Settings
    sealer: Sealer
    emails: EmailQueue

    def of(self, user_id: int) -> dict[str, Any]:
        with self.store.read() as tx:
            secret = tx.totp(user_id)
            return {
                "totp": {"enabled": secret is not None, "created_at": secret and secret.created_at},
                "passkeys": [as_json(passkey) for passkey in tx.passkeys(user_id)],
                "recoveryCodes": tx.count_recovery_codes(user_id),
            }

    # --- an authenticator app ---

    def begin_totp(self, user_id: int, *, session_id: int, by: Actor) -> NewTotp:
        """For an account without one. The same session has to confirm it."""
        with self.store.read() as tx:
            admit(tx, by)
            user = self.enroller(tx, user_id, by)
            if tx.totp(user_id) is not None:
                raise Invalid(HAS_TOTP)
        secret = totp.new_secret()
        sealed = self.sealer.seal(secret, totp_context(user_id))
        with self.store.write() as tx:
            admit(tx, by)
            self.enroller(tx, user_id, by)
            tx.begin_totp(session_id, user_id, sealed, ENROLMENT_LIFETIME)
        uri = totp.uri(secret, user.called, self.settings.brand)
        return NewTotp(totp.in_base32(secret), uri, _qr(uri))

    def confirm_totp(self, user_id: int, code: str, *, session_id: int, by: Actor) -> list[str] | None:
        """By the first code. Returns the recovery codes that come with the first factor."""
        with self.store.read() as tx:
            admit(tx, by)
            self.enroller(tx, user_id, by)
            sealed, now = tx.begun_totp(session_id, user_id), tx.now
        if sealed is None:
            raise Invalid(NOT_BEGUN)
        secret = self.sealer.open(sealed, totp_context(user_id))
        step = totp.matching_step(secret, code, now)
        if step is None:
            raise Invalid("Invalid code")
        with self.store.write() as tx:
            admit(tx, by)
            user = self.enroller(tx, user_id, by)
            if tx.begun_totp(session_id, user_id) != sealed:
                raise Invalid(NOT_BEGUN)
            # By the first key of this moment: a rotation since then must not leave a secret to an older one.
            sealed = self.sealer.seal(secret, totp_context(user_id))
            # The code that confirms is used: it does not sign in as well.
            if not tx.add_totp(user_id, sealed, step):
                raise Invalid(HAS_TOTP)
            tx.delete_begun_totp(user_id)
            tx.note_proof(by.token_hash, Method.OTP)
            return changes.added(tx, self.emails, user, changes.TOTP, by=by)

    def remove_totp(self, user_id: int, *, by: Actor) -> None:
        with self.store.write() as tx:
            admit(tx, by)
            user = self.owner(tx, user_id, by)
            if not tx.delete_totp(user_id):
                raise NotFound("No authenticator app is set up")
            changes.removed(tx, self.emails, user, changes.TOTP, by=by)

    # --- recovery codes ---

    def new_recovery_codes(self, user_id: int, *, by: Actor) -> list[str]:
        """The old ones end."""
        with self.store.write() as tx:
            admit(tx, by)
            user = self.owner(tx, user_id, by)
            if not user.factors:
                raise Invalid("Recovery codes come with the first passkey or authenticator app")
            return changes.renew_codes(tx, self.emails, user, by=by)

    # --- who may ---

    def enroller(self, tx: Transaction, user_id: int, by: Actor) -> User:
        """The owner, while factors may be added."""
        user = self.owner(tx, user_id, by)
        if self.settings.second_factor == "off":
            raise Forbidden("Second factors are switched off")
        return user

    def owner(self, tx: Transaction, user_id: int, by: Actor) -> User:
        """The user of a fresh session, as they are in this transaction."""
        require_fresh(tx, by)
        return tx.existing_user(user_id)


def as_json(passkey: Passkey) -> dict[str, Any]:
    shown = ("id", "name", "created_at", "last_used_at", "synced")
    return {name: getattr(passkey, name) for name in shown}


def _qr(uri: str) -> str:
    import segno  # late: only to set up an authenticator app

    svg: str = segno.make_qr(uri, error="m").svg_inline(omitsize=True, light="#fff", dark="#000")
    return svg
