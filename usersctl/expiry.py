"""Accounts whose owners deleted them, when the time to undo that is over."""

from usersctl.models import Actor
from usersctl.store.transaction import Transaction


def delete_due(tx: Transaction, by: Actor, at_most: int) -> int:
    """In a lockdown, in which no owner could undo it, they wait."""
    if tx.lockdown() is not None:
        return 0
    due = tx.users_to_delete(at_most)
    tx.delete_users(user.id for user in due)
    for user in due:
        tx.audit(by, "delete", user, requested=True)
    return len(due)
