"""What an account signs in with: replaced by a new password, or ended when its user is shut out."""

from enum import Enum, auto
from typing import Any

from usersctl.mail.kinds import PASSWORD_CHANGED
from usersctl.mail.queue import EmailQueue
from usersctl.models import Actor, User
from usersctl.store.transaction import Transaction
from usersctl.throttle import account_key


class Notices(Enum):
    """Which "this wasn't me" links end when a user is shut out."""

    NONE = auto()
    TO_PRESENT_ADDRESS = auto()
    ALL = auto()


def shut_out(tx: Transaction, user: User, *, but: int | None = None, notices: Notices = Notices.NONE) -> None:
    """Ends all sessions and API tokens of the user, except session `but`, and all confirmation and reset links."""
    tx.delete_tokens_of(user.id, but=but)
    tx.drop_links(user.id)
    if notices is Notices.ALL:
        tx.drop_notices(user.id)
    elif notices is Notices.TO_PRESENT_ADDRESS:
        tx.drop_notices(user.id, user.email)


def new_password(
    tx: Transaction,
    emails: EmailQueue,
    user: User,
    password_hash: str,
    *,
    action: str,
    by: Actor,
    but: int | None = None,
    notices: Notices = Notices.NONE,
    **changes: Any,
) -> User:
    """Shuts the user out, stores the hash, clears the lock after failed logins, and tells the owner by email."""
    shut_out(tx, user, but=but, notices=notices)
    tx.clear_failures(account_key(user, user.email))
    changed = tx.change_user(user.id, password_hash=password_hash, **changes)
    emails.add(tx, PASSWORD_CHANGED, changed, changed.email)
    tx.audit(by, action, changed)
    return changed
