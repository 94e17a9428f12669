"""How much the sign-in of a session proves."""

from collections.abc import Iterable

from usersctl.models import PROVIDER, Method, Session

HELD = {Method.OTP, Method.RECOVERY, Method.DEVICE}  # proofs of something that the user has


def has_two_factors(session: Session | None, trusted: Iterable[str]) -> bool:
    """A passkey, which its device unlocks for its owner only; a trusted provider; or a first factor and something that the
    user has. Never an API token."""
    if session is None:
        return False
    methods = set(session.proofs.split())
    if Method.PASSKEY in methods or is_through(session, trusted):
        return True
    return bool(methods & HELD) and bool(methods - HELD)


def is_through(session: Session, providers: Iterable[str]) -> bool:
    """Whether one of these identity providers signed the user in."""
    return any(PROVIDER + name in session.proofs.split() for name in providers)
