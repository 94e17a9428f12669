"""Second factors of accounts, written past the journeys that enrol them."""

from usersctl.factors.sealing import totp_context
from usersctl.models import Passkey
from usersctl.service import Service
from usersctl.store.transaction import Transaction

SEED = b"a seed of twenty by."


def add_authenticator_apps(service: Service, *user_ids: int, seed: bytes = SEED) -> None:
    service.sealer.seal(seed, "")  # makes the key
    key = next(service.sealer.keys())
    with service.store.write() as tx:
        for user_id in user_ids:
            tx.add_totp(user_id, key.seal(seed, totp_context(user_id)), 0)


def store_passkey(
    tx: Transaction, user_id: int, credential_id: str, *, name: str = "Phone", rp_id: str = "localhost"
) -> Passkey:
    """One that nothing can sign with."""
    passkey = tx.add_passkey(
        user_id,
        credential_id.encode(),
        rp_id=rp_id,
        public_key=b"key",
        algorithm=-7,
        sign_count=0,
        name=name,
        synced=True,
    )
    assert passkey is not None
    return passkey


def add_factors(service: Service, user_id: int, rp_id: str = "localhost") -> None:
    """An authenticator app, two passkeys and ten recovery codes."""
    add_authenticator_apps(service, user_id)
    with service.store.write() as tx:
        for name in ("Phone", "Laptop"):
            store_passkey(tx, user_id, f"{name} {user_id}", name=name, rp_id=rp_id)
        tx.add_recovery_codes(user_id, [bytes([number]) * 32 for number in range(10)])


def opened_secrets(service: Service, *, every: int = 1) -> list[bytes]:
    """Of all authenticator apps, or some of them."""
    with service.store.read() as tx:
        secrets = tx.totp_secrets(0, 1_000_000)
    return [service.sealer.open(totp.secret, totp_context(totp.user_id)) for totp in secrets[::every]]
