"""Challenges that passkeys sign: bound to a browser or session, and good for one use within ten minutes.

The service signs them, so that one that is never used costs no row.
"""

from collections.abc import Iterable
from datetime import timedelta

from usersctl.clock import CLOCKS_DIFFER, stamp
from usersctl.models import Purpose
from usersctl.named import NamedTuple
from usersctl.secrets import digest, new_token, sign, verified
from usersctl.store.signing_keys import COOKIES
from usersctl.store.store import Store
from usersctl.store.transaction import Transaction

LIFETIME = timedelta(minutes=10)
SPENT_FOR = LIFETIME + CLOCKS_DIFFER  # one of a daemon whose clock is ahead is good for longer
TO_ADD, TO_USE = "new passkey", "use of a passkey"  # what the signature is for


class Challenges(NamedTuple):
    store: Store

    def new(self, purpose: str, bound_to: str) -> bytes:
        until = stamp(self.store.clock() + LIFETIME)
        text = f"{new_token()}~{until}~{digest(bound_to).hex()}"
        return sign(self.store.signing_key(COOKIES), purpose, text).encode()

    def is_ours(self, challenge: bytes, purpose: str, bound_to: Iterable[str]) -> bool:
        """Whether it was given for this purpose to one of these, and has not expired. It may be used already."""
        text = verified(self.store.signing_key(COOKIES), purpose, challenge.decode("latin-1"))
        if text is None:
            return False
        _, until, given_to = text.split("~")
        now = self.store.clock()
        # Not much later: the clock was set back.
        if not stamp(now) < until <= stamp(now + LIFETIME + CLOCKS_DIFFER):
            return False
        return given_to in {digest(each).hex() for each in bound_to}

    def spend(self, tx: Transaction, challenge: bytes, user_id: int | None = None) -> bool:
        """In the transaction of its effect. False if it was used before, also in parallel. `user_id`: whose use it is."""
        token_hash = digest(challenge.decode("latin-1"))
        return tx.add_one_time_token(token_hash, Purpose.PASSKEY_SPENT, SPENT_FOR, user_id=user_id)

    def spent_by(self, tx: Transaction, user_id: int) -> int:
        """How many uses of the account's passkeys there were within the time that a challenge is good for."""
        return tx.count_one_time_tokens(Purpose.PASSKEY_SPENT, user_id, SPENT_FOR)
