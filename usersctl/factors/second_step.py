"""The second step of a sign-in: a code of an authenticator app, a recovery code or a passkey after the password."""

from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import TypeVar

from usersctl.devices import Devices
from usersctl.errors import Inactive, Invalid, InvalidCode, Unauthenticated, WrongPassword
from usersctl.factors.passkeys import Passkeys
from usersctl.factors.recovery_codes import hash_of
from usersctl.factors.sealing import Sealer, totp_context
from usersctl.factors.totp import matching_step
from usersctl.lockdown import refuse_in_lockdown
from usersctl.mail.kinds import RECOVERY_CODE_USED, EmailQueue
from usersctl.models import Actor, Client, Method, PendingSignIn, Proof, User
from usersctl.named import NamedTuple
from usersctl.permissions import Check, admit
from usersctl.secrets import digest
from usersctl.store.store import Store
from usersctl.store.transaction import Transaction
from usersctl.throttle import AccountThrottle, clear_guesses, counter_in_session, counter_of

MOST_WRONG_CODES = 5

T = TypeVar("T")


class SecondStep(NamedTuple):
    store: Store
    throttle: AccountThrottle
    devices: Devices
    sealer: Sealer
    emails: EmailQueue
    passkeys: Passkeys

    def methods(self, tokens: Iterable[str]) -> list[str]:
        """What the account of the pending sign-in has: for the page that asks."""
        with self.store.read() as tx:
            user, _ = _waiting(tx, _alive(tx, tokens))
            refuse_in_lockdown(tx, user)
            has = {
                "totp": tx.totp(user.id) is not None,
                "recovery": tx.count_recovery_codes(user.id) > 0,
                "passkey": bool(tx.passkeys(user.id)),
            }
        return [name for name, is_there in has.items() if is_there]

    def offered(self, tokens: Iterable[str]) -> list[str]:
        """The same, for a page; nothing if no sign-in waits."""
        with suppress(Unauthenticated, Inactive):
            return self.methods(tokens)
        return []

    def finish(
        self,
        tokens: Iterable[str],
        proof: Proof,
        *,
        then: Callable[[Transaction, User, PendingSignIn, str, Client], T],
        client: Client,
        by: Actor,
    ) -> T:
        """Calls `then`, which opens the session, in the transaction in which the factor was right."""
        with self.store.read() as tx:
            token_hash = _alive(tx, tokens)
            user, _ = _waiting(tx, token_hash)
            refuse_in_lockdown(tx, user)
        check = self.prepare(user.id, proof, by=by)
        devices = self.devices.read(client.devices)
        with self.store.write() as tx:
            user, pending = _waiting(tx, token_hash)
            refuse_in_lockdown(tx, user)
            counter = counter_of(tx, user, user.email, devices)
            # The first code belongs to a password check that has waited.
            counter = self.throttle.count_sign_in(tx, counter, waits=pending.failures > 0)
            method = check(tx)
            if method is not None:
                tx.delete_pending(token_hash)
                clear_guesses(tx, user.id)
                tx.uncount_failed_sign_in(counter.counted_in)
                return then(tx, user, pending, method, client)
            tx.note_wrong_code(token_hash, MOST_WRONG_CODES)
        raise InvalidCode  # after the commit, so that it counts

    def give_up(self, tokens: Iterable[str]) -> None:
        """Signing out ends a sign-in that waits, too. An unknown token costs no write."""
        with self.store.read() as tx:
            waiting = [token_hash for token_hash in map(digest, tokens) if tx.pending(token_hash) is not None]
        if waiting:
            with self.store.write() as tx:
                for token_hash in waiting:
                    tx.delete_pending(token_hash)

    def confirm(self, user_id: int, proof: Proof, *, session_id: int, by: Actor) -> None:
        """A fresh proof of identity within a session: see permissions.require_fresh."""
        check = self.prepare(user_id, proof, by=by)
        with self.store.write() as tx:
            admit(tx, by)
            self.throttle.count_check(tx, counter_in_session(user_id, session_id))
            method = check(tx)
            if method is not None:
                clear_guesses(tx, user_id)
                tx.note_proof(by.token_hash, method)
                return
        raise WrongPassword("Invalid code")

    def prepare(self, user_id: int, proof: Proof, *, by: Actor) -> Check:
        """The check of this factor against this account. The one place that decides whether a factor is right."""
        if proof.code is not None:
            return self._totp(user_id, proof.code)
        if proof.recovery_code is not None:
            code_hash = hash_of(proof.recovery_code)
            return lambda tx: self._recovery_code(tx, user_id, code_hash, by)
        if proof.credential is not None:
            return self.passkeys.prepare(user_id, proof.credential, proof.browsers, by=by)
        raise Invalid("Code, recovery code or passkey is required")

    def _totp(self, user_id: int, code: str) -> Check:
        with self.store.read() as tx:
            totp, now = tx.totp(user_id), tx.now
        step = None
        if totp is not None:
            secret = self.sealer.open(totp.secret, totp_context(user_id))
            step = matching_step(secret, code, now)

        def check(tx: Transaction) -> str | None:
            self.throttle.count_code(tx, user_id)
            if totp is None or step is None or not tx.use_totp_step(totp, step):
                return None
            return Method.OTP

        return check

    def _recovery_code(self, tx: Transaction, user_id: int, code_hash: bytes, by: Actor) -> str | None:
        user = tx.user(user_id)
        if user is None or not tx.take_recovery_code(user_id, code_hash):
            return None
        self.emails.add(tx, RECOVERY_CODE_USED, user, user.email)
        tx.audit(by, "recovery-code-used", user, left=tx.count_recovery_codes(user_id))
        return Method.RECOVERY


def _alive(tx: Transaction, tokens: Iterable[str]) -> bytes:
    """The first pending sign-in of these cookies that has not ended: a neighbour may have set another cookie."""
    for token_hash in map(digest, tokens):
        if tx.pending(token_hash) is not None:
            return token_hash
    raise Unauthenticated


def _waiting(tx: Transaction, token_hash: bytes) -> tuple[User, PendingSignIn]:
    pending = tx.pending(token_hash)
    user = pending and tx.user(pending.user_id)
    if pending is None or user is None:
        raise Unauthenticated
    if not user.active:
        raise Inactive(user.inactive_because)
    if not user.factors:
        raise Unauthenticated  # the factors were removed meanwhile
    return user, pending
