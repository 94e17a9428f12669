"""Seals the secrets of all authenticator apps anew, in small transactions, so that people sign in meanwhile."""

from usersctl.errors import KeyUnusable
from usersctl.factors.sealing import Sealer, SealingKey, key_name_of, totp_context
from usersctl.models import Actor, TotpSecret
from usersctl.named import NamedTuple
from usersctl.permissions import admit
from usersctl.store.progress import Progress, unwatched
from usersctl.store.store import Store

SOME = 200  # secrets in one transaction, which other writers wait for


class Rotated(NamedTuple):
    sealed: int  # anew
    unreadable: int  # no key opens them


class KeyRotation(NamedTuple):
    store: Store
    sealer: Sealer

    def run(self, *, by: Actor, progress: Progress = unwatched) -> Rotated:
        """One that was killed is repeated: each secret opens with its key before and after it is sealed anew."""
        total = self._begin(by)
        sealed = unreadable = after = 0
        while secrets := self._some(after):
            after = secrets[-1].user_id
            keys = list(self.sealer.keys())
            anew = [(totp, _anew(keys, totp)) for totp in secrets]
            with self.store.write() as tx:
                admit(tx, by)
                for totp, secret in anew:
                    if secret is not None and secret != totp.secret:
                        sealed += tx.replace_totp_secret(totp, secret)
            unreadable += sum(secret is None for _, secret in anew)
            progress(sealed + unreadable, total)
        return Rotated(sealed, unreadable)

    def _begin(self, by: Actor) -> int:
        """Adds a new key to the file, if there is one; those of auth.secretKey are the operator's. Returns the number of
        secrets."""
        # In a transaction, so that of two rotations at once neither loses the key of the other.
        with self.store.write() as tx:
            admit(tx, by)
            total = tx.count_totp()
            if not self.sealer.configured:
                if total and not self.sealer.file.keys():
                    hint = "put it back; or set auth.secretKey for this command, too, as for the daemon"
                    raise KeyUnusable(f"{self.sealer.place} is missing", hint=hint)
                if not self.sealer.file.add():
                    return 0
            tx.audit(by, "rotate-key", secrets=total)
        return total

    def _some(self, after: int) -> list[TotpSecret]:
        with self.store.glance() as tx:
            return tx.totp_secrets(after, SOME)


def _anew(keys: list[SealingKey], totp: TotpSecret) -> bytes | None:
    """Sealed with the first key, as it may be already; None if no key opens the secret."""
    present = next((key for key in keys if key.name == key_name_of(totp.secret)), None)
    context = totp_context(totp.user_id)
    if present is None:
        return None
    if present is keys[0]:
        return totp.secret
    try:
        return keys[0].seal(present.open(totp.secret, context), context)
    except KeyUnusable:
        return None
