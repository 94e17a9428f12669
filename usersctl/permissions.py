"""Permissions: a change for an HTTP caller checks in its own transaction that the caller may still make it.

The request was admitted before it waited for the database, and perhaps for a password check. Meanwhile the session may
have ended, the account may have been deactivated or demoted, and a lockdown may have begun.
"""

from collections.abc import Callable, Iterable
from datetime import timedelta

from usersctl.clock import CLOCKS_DIFFER, stamp
from usersctl.errors import Forbidden, LastAdmin, Unauthenticated
from usersctl.models import Actor, Role, User
from usersctl.store.transaction import Transaction

FRESH = timedelta(minutes=10)

# Whether a second factor is right, in the transaction of its effect: the method that was proved, else None. It works once.
Check = Callable[[Transaction], str | None]


def admit(tx: Transaction, by: Actor) -> None:
    """The first step of every transaction that makes a change for `by`."""
    if by.user_id is None:  # a command, the service itself, or a caller of a route that needs no session
        return
    session_and_user = tx.session(by.token_hash)
    if session_and_user is None:
        raise Unauthenticated
    _, user = session_and_user
    if by.as_admin and user.role != Role.ADMIN:
        raise Forbidden("Admin access required")


def require_fresh(tx: Transaction, by: Actor) -> None:
    """Raises Forbidden unless the caller's session is of the last ten minutes, or proved its user in them.

    For changes of the ways into one's own account, because a session may be in other hands.
    """
    if by.user_id is None:  # a command
        return
    since = stamp(tx.now - FRESH)
    # A proof further in the future is none: the clock was set back.
    until = stamp(tx.now + CLOCKS_DIFFER)
    if not any(since <= proven_at <= until for proven_at in tx.proofs(by.token_hash)):
        raise Forbidden("Confirm that it is you")


def keep_an_admin(tx: Transaction, leaving: Iterable[User]) -> None:
    """Raises LastAdmin if no active admin is left without these users."""
    admins = sum(user.active and user.role == Role.ADMIN for user in leaving)
    if admins and admins == tx.active_admins():
        raise LastAdmin
