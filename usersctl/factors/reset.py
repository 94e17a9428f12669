"""An admin or operator takes second factors away, for a user who has lost them."""

from usersctl.config import Settings
from usersctl.credentials import end_sessions
from usersctl.mail.kinds import FACTORS_RESET, RESET, EmailQueue
from usersctl.models import Actor
from usersctl.named import NamedTuple
from usersctl.permissions import admit, require_fresh
from usersctl.store.store import Store
from usersctl.store.transaction import Transaction
from usersctl.text import counted
from usersctl.ways_in import ways_into


class Chosen(NamedTuple):
    """The kinds of factors that a reset is about."""

    totp: bool = True
    passkeys: bool = True
    codes: bool = True


class Removed(NamedTuple):
    totp: bool
    passkeys: int
    codes: int

    @property
    def described(self) -> str:
        parts = ["the authenticator app"] * self.totp
        parts += [counted(self.passkeys, "passkey")] * (self.passkeys > 0)
        parts += [counted(self.codes, "recovery code")] * (self.codes > 0)
        return ", ".join(parts)


class FactorReset(NamedTuple):
    store: Store
    settings: Settings
    emails: EmailQueue

    def run(self, user_id: int, chosen: Chosen, *, by: Actor) -> Removed:
        """Ends all sessions and API tokens of the user. Without anything to take away it changes nothing.

        A passkey may have been the last way in: then the user sets a password by email.
        """
        with self.store.write() as tx:
            admit(tx, by)
            # A session in other hands must not open the accounts of others, or its own.
            require_fresh(tx, by)
            user = tx.existing_user(user_id)
            removed = _remove(tx, user_id, chosen)
            if any(removed):
                ended = end_sessions(tx, user_id)
                self.emails.add(tx, FACTORS_RESET, user, user.email)
                if removed.passkeys and not ways_into(tx, self.settings, user_id):
                    self.emails.add(tx, RESET, user, user.email)
                tx.audit(by, "reset-factors", user, **removed._asdict(), ended=ended)
        return removed


def _remove(tx: Transaction, user_id: int, chosen: Chosen) -> Removed:
    totp, passkeys, codes = chosen.totp and tx.delete_totp(user_id), 0, 0
    if chosen.passkeys:
        passkeys = tx.delete_passkeys(user_id)
    if chosen.codes or not tx.existing_user(user_id).factors:  # the codes end with the last factor
        codes = tx.delete_recovery_codes(user_id)
    return Removed(totp, passkeys, codes)
