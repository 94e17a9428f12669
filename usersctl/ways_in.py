"""The ways into an account: what opens a session of it, without an email, while it is active."""

from collections.abc import Sequence
from enum import StrEnum

from usersctl.config import Settings
from usersctl.passwords import password_is_set
from usersctl.store.transaction import Transaction

LAST_WAY = "This is the only way into the account: set a password first"


class Way(StrEnum):
    PASSWORD = "password"  # noqa: S105 - none is in it
    PROVIDER = "provider"  # linked, and configured now
    PASSKEY = "passkey"  # made for the host of baseUrl


def ways_into(tx: Transaction, settings: Settings, user_id: int, *, but: str | None = None) -> set[Way]:
    """`but`: the name of a provider whose link does not count."""
    return ways_into_each(tx, settings, [user_id], but=but)[user_id]


def ways_into_each(
    tx: Transaction, settings: Settings, user_ids: Sequence[int], *, but: str | None = None
) -> dict[int, set[Way]]:
    """Of one batch of accounts, which share three statements."""
    ways: dict[int, set[Way]] = {user_id: set() for user_id in user_ids}
    if not ways:
        return ways
    for stored in tx.credentials_of_each(user_ids):
        if password_is_set(stored):
            ways[stored.user.id].add(Way.PASSWORD)
    for identity in tx.identities_of_each(user_ids):
        if identity.provider != but and settings.opens(identity.provider, identity.issuer):
            ways[identity.user_id].add(Way.PROVIDER)
    if settings.rp_id is not None:
        for user_id in tx.users_with_passkey(user_ids, settings.rp_id):
            ways[user_id].add(Way.PASSKEY)
    return ways
