"""Changes of accounts by an admin, one by its page or many by a file; and deletions, also of accounts that are due."""

from collections.abc import Callable, Collection, Mapping
from typing import Any

from usersctl.credentials import shut_out
from usersctl.errors import Referred
from usersctl.invited import NOT_INVITED
from usersctl.models import Actor, User
from usersctl.permissions import admit
from usersctl.store.store import Store
from usersctl.store.transaction import Transaction

ASKED = ("name", "role", "active")  # what an admin changes; the rest of a change follows from it
AT_ONCE = 20  # accounts that one transaction deletes, because other writers wait for it


def changes_of(user: User, asked: Mapping[str, Any]) -> dict[str, Any]:
    """The requested values that differ from the stored ones, with what follows from them. None: not requested."""
    changes = {key: value for key, value in asked.items() if value not in (None, getattr(user, key))}
    if asked.get("active") is not None and (user.awaiting_confirmation or user.delete_at is not None):
        # A decision on `active` replaces the one by the confirmation email, and the one of an owner who deletes it.
        changes |= {"active": asked["active"], "awaiting_confirmation": False, "delete_at": None}
    if asked.get("active") is False and user.invited_at is not None:
        changes |= {"active": False, **NOT_INVITED}
    return changes


def make_changes(
    tx: Transaction,
    users: Collection[User],
    changes: Mapping[str, Any],
    further: Mapping[str, Any],
    *,
    by: Actor,
) -> list[User]:
    """Of all users by the same statements: one for each of them would keep other writers waiting.

    `further`: details of changes that were made already, for the audit trail.
    """
    if changes.get("active") is False:
        shut_out(tx, *users, notices=True)
    changed = tx.change_users([user.id for user in users], **changes)
    action = "update"
    if (
        changes
        and set(changes) <= {"active", "awaiting_confirmation", "delete_at", *NOT_INVITED}
        and further.keys().isdisjoint(("email", "unlinked"))
    ):
        action = "activate" if changes["active"] else "deactivate"
    details = {**{key: value for key, value in changes.items() if key in ASKED}, **further}
    tx.audit_each(by, action, [(user.id, user.email, details) for user in changed])
    return changed


def delete_users(tx: Transaction, users: Collection[User], *, by: Actor, **details: Any) -> None:
    tx.delete_users(user.id for user in users)
    for user in users:
        tx.audit(by, "delete", user, **details)


def delete_each(
    store: Store,
    by: Actor,
    due: Callable[[Transaction, int, int], list[User]],
    delete: Callable[[Transaction, list[User]], object],
) -> int:
    """Deletes the accounts that `due` names, a few in each transaction; returns how many. `due` gets how many it may name at
    most, and how many of the first ones to pass over. An account to which other data belongs keeps no other one: its error
    comes last."""
    deleted, at_most, kept = 0, AT_ONCE, 0
    some: list[User] = []
    refused: Referred | None = None
    while _is_any(store, due, kept):
        try:
            with store.write() as tx:
                admit(tx, by)
                some = due(tx, at_most, kept)
                delete(tx, some)
            deleted += len(some)
            store.checkpoint()
        except Referred:
            if at_most == 1:
                kept, refused = kept + 1, Referred(some[0].email)
            at_most = 1
    if refused is not None:
        raise refused
    return deleted


def _is_any(store: Store, due: Callable[[Transaction, int, int], list[User]], kept: int) -> bool:
    with store.glance() as tx:
        return bool(due(tx, 1, kept))


def delete_due(store: Store, by: Actor) -> int:
    """Accounts whose owners deleted them, when the time to undo that is over; returns how many. In a lockdown, in which no
    owner could undo it, they wait."""

    def due(tx: Transaction, at_most: int, kept: int) -> list[User]:
        return [] if tx.lockdown() is not None else tx.users_to_delete(at_most, after=kept)

    return delete_each(store, by, due, lambda tx, users: delete_users(tx, users, by=by, requested=True))
