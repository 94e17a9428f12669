"""What an account signs in with: replaced by a new password, or ended when its user is shut out."""

from collections.abc import Iterable
from typing import Any

from usersctl.errors import Invalid
from usersctl.invited import settle
from usersctl.mail.kinds import ACCOUNT_UNLINKED, PASSWORD_CHANGED, EmailQueue
from usersctl.models import Actor, Identity, OneTimeToken, User
from usersctl.store.transaction import Transaction


def end_sessions(tx: Transaction, *user_ids: int, but: int | None = None) -> int:
    """Ends all sessions and API tokens of these users, except session `but`, and returns how many. Their devices are
    forgotten, because one of them may be a thief's."""
    ended = tx.delete_tokens_of(*user_ids, but=but)
    tx.forget_devices(*user_ids)
    return ended


def shut_out(tx: Transaction, *users: User, but: int | None = None, notices: bool = False) -> int:
    """Ends their sessions, except session `but`, and all confirmation and reset links. Returns how many sessions ended.

    A claim to another address ends as well, unless it is the owner with session `but` who goes on.
    """
    ids = [user.id for user in users]
    ended = end_sessions(tx, *ids, but=but)
    tx.drop_links(*ids)
    if but is None:
        tx.clear_claim(*ids)
        tx.drop_claim_links(*ids)
    if notices:  # the "this wasn't me" links end, too, and the reservations that are for them
        tx.drop_notices(*ids)
        tx.free_reserved(*ids)
    return ended


def end_links(
    tx: Transaction, emails: EmailQueue, user: User, identities: Iterable[Identity], *, by: Actor
) -> None:
    """To accounts of identity providers that may be another person's. The user gets an email about each of them."""
    for identity in identities:
        tx.delete_identities(user.id, identity.provider)
        emails.add(tx, ACCOUNT_UNLINKED, user, user.email)
        tx.audit(by, "unlink", user, provider=identity.provider, issuer=identity.issuer)


def end_links_of_other_addresses(tx: Transaction, emails: EmailQueue, user: User, *, by: Actor) -> None:
    """The reader of the address takes the account back: an intruder in a session may have linked an account of theirs."""
    others = [link for link in tx.identities_of(user.id) if link.email not in (None, user.email)]
    end_links(tx, emails, user, others, by=by)


def new_password(
    tx: Transaction,
    emails: EmailQueue,
    user: User,
    password_hash: str,
    *,
    action: str,
    by: Actor,
    but: int | None = None,
    **changes: Any,
) -> User:
    """Shuts the user out, stores the hash, clears the lock after failed logins, and tells the owner by email."""
    settle(tx, user)
    shut_out(tx, user, but=but)
    tx.clear_failures(user.id)
    changed = tx.change_user(user.id, password_hash=password_hash, **changes)
    emails.add(tx, PASSWORD_CHANGED, changed, changed.email)
    tx.audit(by, action, changed)
    return changed


def dead_link() -> Invalid:
    """For a link that was used, has expired or was ended, and for one that never existed: the answers do not differ."""
    return Invalid("Invalid or expired link")


def owner_of(tx: Transaction, link: OneTimeToken | None) -> User | None:
    """The user to whose present address the link was sent."""
    if link is None or link.user_id is None:
        return None
    user = tx.user(link.user_id)
    return user if user is not None and user.email == link.email else None
