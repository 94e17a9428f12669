"""Whose an address is: an account's known one, claimed by an account, reserved for one, or free.

A user's known address was proven, or given by an admin. A claim is the new address that its owner gave: it counts for
nothing but the sign-in until a link to it was used.
"""

from datetime import timedelta
from typing import Any

from usersctl.clock import moment, stamp
from usersctl.errors import Taken
from usersctl.invited import send, settle
from usersctl.mail.kinds import (
    APPROVE_NEW_EMAIL,
    CONFIRM,
    CONFIRM_NEW_EMAIL,
    EMAIL_CHANGED,
    EMAIL_GIVEN,
    EMAIL_KEPT,
    UNDO,
    EmailQueue,
)
from usersctl.models import SYSTEM, UNUSABLE, Actor, Claim, User
from usersctl.passwords import password_is_set
from usersctl.store.transaction import Transaction

TAKEN = "Email is already registered"
LONGEST_REGISTRATION = timedelta(days=7)
RESERVED = EMAIL_CHANGED.lifetime  # as long as the link of the notice about the change


# --- who has it ---


def holder_of(tx: Transaction, email: str) -> User | None:
    """The user whose known address this is. A registration that was not confirmed in time holds no address."""
    user = tx.user_by_email(email)
    return None if user is None or has_lapsed(tx, user) else user


def has_lapsed(tx: Transaction, user: User) -> bool:
    """Whether no link confirms this registration any more, or strangers keep it alive by asking for links."""
    age = tx.now - moment(user.created_at)
    if not user.awaiting_confirmation or age < CONFIRM.lifetime:
        return False
    since = stamp(tx.now - CONFIRM.stale_after)
    return age >= LONGEST_REGISTRATION or not tx.has_link(
        CONFIRM.name, CONFIRM.purpose, user.id, user.email, since=since
    )


def refuse_taken(tx: Transaction, email: str, *, but: int | None = None) -> None:
    """Raises Taken if the address is known of another user than `but`, or reserved for one. A claim does not count."""
    holder, reserved_for = holder_of(tx, email), tx.reserved_for(email)
    if holder is not None and holder.id != but:
        raise Taken(TAKEN, value=email, hint=f"user {holder.id} has it: usersctl show {holder.id}")
    if reserved_for not in (None, but):
        hint = f"it is reserved for user {reserved_for}, who gave it up less than a week ago"
        raise Taken(TAKEN, value=email, hint=hint)


def make_free(tx: Transaction, emails: EmailQueue, email: str, *, by: Actor, but: int | None = None) -> None:
    """For user `but`, or a new one, who is about to have this address: claims and lapsed registrations of others yield."""
    refuse_taken(tx, email, but=but)
    lapsed = tx.user_by_email(email)
    if lapsed is not None and lapsed.id != but:
        remove_registration(tx, lapsed, by=by)
    claimant = tx.claimant(email)
    if claimant is not None and claimant.id != but:
        end_claim(tx, emails, claimant, "claim-yielded", by=by)


def remove_registration(tx: Transaction, user: User, *, by: Actor, **details: Any) -> None:
    tx.delete_users([user.id])
    tx.audit(by, "registration-expired", user, **details)


def overrule_registration(tx: Transaction, user: User, *, by: Actor, **details: Any) -> None:
    """An admin vouches for the address, which a stranger may have registered. Its reader decides."""
    tx.delete_users([user.id])
    tx.audit(by, "delete", user, unconfirmed=True, **details)


def take_from_stranger(tx: Transaction, user: User, *, through: str, by: Actor) -> None:
    """The reader of the address has shown up, and may not be who registered with it: that password must never work."""
    if password_is_set(tx.credentials_of(user.id)):
        tx.change_user(user.id, password_hash=UNUSABLE)
        tx.audit(by, "replace-password", user, through=through)


# --- an owner's change: a claim ---


def change_own(tx: Transaction, emails: EmailQueue, user: User, email: str, *, by: Actor) -> User:
    """By its owner: a claim to a new address, or the end of one if this is the known address."""
    if email == user.email:
        return end_claim(tx, emails, user, "claim-taken-back", by=by)
    claimant = tx.claimant(email)
    if claimant is not None and claimant.id != user.id and claimant.claimed_email is not None:
        raise Taken(TAKEN)
    make_free(tx, emails, email, by=by, but=user.id)
    tx.drop_claim_links(user.id)
    claimed = tx.change_user(
        user.id,
        claimed_email=email,
        claim_expires_at=stamp(tx.now + CONFIRM_NEW_EMAIL.lifetime),
        claim_proven_at=None,
        claim_approved_at=None,
    )
    send_claim_emails(tx, emails, claimed)
    emails.add(tx, EMAIL_CHANGED, claimed, claimed.email)
    tx.audit(by, "claim-email", claimed, new_email=email)
    return claimed


def send_claim_emails(tx: Transaction, emails: EmailQueue, user: User) -> None:
    """The links that a claim still needs."""
    claim = tx.claim_of(user.id)
    if claim is None:
        return
    if claim.proven_at is None:
        emails.add(tx, CONFIRM_NEW_EMAIL, user, claim.email)
    if claim.approved_at is None and not password_is_set(tx.credentials_of(user.id)):
        emails.add(tx, APPROVE_NEW_EMAIL, user, user.email)


def end_claim(tx: Transaction, emails: EmailQueue, user: User, action: str, *, by: Actor) -> User:
    """The known address stays, and its owner learns of it."""
    tx.clear_claim(user.id)
    tx.drop_claim_links(user.id)
    kept = user._replace(claimed_email=None, updated_at=tx.now_text)
    emails.add(tx, EMAIL_KEPT, kept, kept.email)
    tx.audit(by, action, kept)
    return kept


def complete_claim(tx: Transaction, emails: EmailQueue, user: User, claim: Claim, *, by: Actor) -> User:
    """The claimed address is the known one from now on. Links to the former one can still put it back for a week."""
    make_free(tx, emails, claim.email, by=by, but=user.id)
    if tx.reserved_for(claim.email) == user.id:
        # Back at an address that it gave up: those that it had since are as if they had never been.
        tx.drop_notices(user.id, email=user.email)
        tx.free_reserved(user.id, since=claim.email)
    else:
        tx.reserve(user.id, user.email, stamp(tx.now + RESERVED))
        # The notice about the claim is older if its email was asked for again and again.
        lasting = stamp(tx.now + RESERVED - 2 * CONFIRM_NEW_EMAIL.lifetime)
        if not tx.has_link(EMAIL_CHANGED.name, EMAIL_CHANGED.purpose, user.id, user.email, until=lasting):
            emails.add(tx, EMAIL_CHANGED, user, user.email)
    settle(tx, user)  # its owner is in, and a link to the former address would open nothing
    tx.drop_links(user.id)
    tx.drop_claim_links(user.id)
    tx.clear_claim(user.id)
    proven = tx.change_user(user.id, email=claim.email, email_proven_at=tx.now_text)
    tx.audit(by, "prove-email", proven, old_email=user.email)
    return proven


def expire_claims(tx: Transaction, emails: EmailQueue, at_most: int) -> int:
    expired = tx.expired_claims(at_most)
    for user in expired:
        end_claim(tx, emails, user, "claim-expired", by=SYSTEM)
    return len(expired)


# --- an operator's change, and the owner's "this wasn't me" ---


def give(tx: Transaction, emails: EmailQueue, user: User, email: str, *, by: Actor) -> User:
    """By an operator: at once, and nothing from before the change can undo it."""
    if email == user.email:
        return end_claim(tx, emails, user, "claim-ended", by=by)
    make_free(tx, emails, email, by=by, but=user.id)
    tx.clear_claim(user.id)
    tx.drop_claim_links(user.id)
    tx.drop_links(user.id)
    tx.drop_notices(user.id)
    tx.free_reserved(user.id)
    given = tx.change_user(user.id, email=email, email_proven_at=None)
    if given.invited_at is not None:
        given = send(tx, emails, given, former=user)
    if not given.awaits_owner:  # else the former address is not the owner's, but a mistake
        emails.add(tx, EMAIL_GIVEN, given, user.email)
    if given.delete_at is not None:  # the link that undoes the deletion works at the known address only
        emails.add(tx, UNDO, given, given.email)
    return given


def put_back(tx: Transaction, user: User, email: str) -> None:
    """After "this wasn't me" from this address: it is the known one again, and those that came after it mean nothing.

    Notices to addresses that were given up before it stay: a thief who went on to a third address must not end the
    owner's links with one to the second. So do those that take back an enrolment: each is of its own.
    """
    tx.drop_notices(user.id, email=email, but_enrolments=True)
    if email != user.email:
        tx.drop_notices(user.id, email=user.email)
        tx.free_reserved(user.id, since=email)
        tx.change_user(user.id, email=email, email_proven_at=tx.now_text)
