"""What an invitation does to its account: it begins, is sent again, ends, or its owner shows up."""

from datetime import timedelta
from typing import Any

from usersctl.clock import stamp
from usersctl.fields import name_of
from usersctl.mail.kinds import INVITATION, EmailQueue
from usersctl.models import Actor, Invitation, Purpose, User
from usersctl.store.transaction import Transaction

NOT_INVITED: dict[str, Any] = {"invited_at": None, "invitation_expires_at": None, "invited_nameless": False}


def begin(
    tx: Transaction,
    emails: EmailQueue,
    user: User,
    lifetime: timedelta,
    *,
    is_nameless: bool = False,
    again: bool = False,
    created: bool = False,
    by: Actor,
    **further: Any,
) -> User:
    """For a new account (`created`: by this invitation), for one that has no password, or `again`: the links of an earlier
    invitation are dead."""
    tx.end_invite_links(Purpose.INVITE_REPLACED, user.id)
    expires_at = stamp(tx.now + lifetime)
    invited = tx.change_user(
        user.id,
        awaiting_confirmation=False,  # the link proves the address as well
        invited_at=tx.now_text,
        invitation_expires_at=expires_at,
        invited_nameless=is_nameless,
    )
    emails.add_for_admin(tx, INVITATION, invited)
    details = {name: True for name, is_so in (("again", again), ("created", created)) if is_so}
    tx.audit(by, "invite", invited, role=invited.role, days=_days(lifetime), **details, **further)
    return invited


def _days(lifetime: timedelta) -> float:
    """7, and not 7.0, for whole days."""
    days = round(lifetime / timedelta(days=1), 2)
    return int(days) if days.is_integer() else days


def send(tx: Transaction, emails: EmailQueue, user: User, *, former: User) -> User:
    """Sends the link of an invited account to its new address. A name that was taken from the former one follows."""
    invitation = tx.invitation_of(user.id)
    if invitation is not None and needs_name(former, invitation):
        user = tx.change_user(user.id, name=name_of(user.email))
    tx.end_invite_links(Purpose.INVITE_REPLACED, user.id)
    emails.add_for_admin(tx, INVITATION, user)
    return user


def needs_name(user: User, invitation: Invitation) -> bool:
    """An admin may have given one since."""
    return invitation.is_nameless and user.name == name_of(user.email)


def accept(tx: Transaction, user: User, *, by: Actor, through: str, **changes: Any) -> User:
    """The owner has proved that they read the address. `through`: the link, or a sign-in by a provider."""
    tx.end_invite_links(Purpose.INVITE_USED, user.id)
    accepted = tx.change_user(user.id, active=True, email_proven_at=tx.now_text, **(NOT_INVITED | changes))
    details = {"was_active": True} if user.active else {}
    tx.audit(by, "accept-invitation", accepted, through=through, **details)
    return accepted


def settle(tx: Transaction, user: User) -> None:
    """An account that was active before it was invited has got another way in: there is nothing to accept any more."""
    if user.invited_at is not None:
        tx.end_invite_links(Purpose.INVITE_USED, user.id)
        tx.change_user(user.id, **NOT_INVITED)
