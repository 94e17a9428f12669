"""Accounts whose owners deleted them, when the time to undo that is over."""

from usersctl.models import Actor
from usersctl.store.transaction import Transaction


def delete_due(tx: Transaction, by: Actor, at_most: int) -> int:
    """In a lockdown, in which no owner could undo it, they wait."""
    if tx.lockdown() is not None:
        return 0
    due = tx.users_to_delete(at_most)
    for user in due:
        tx.delete_user(user.id)
        tx.audit(by, "delete", user, requested=True)
    return len(due)
