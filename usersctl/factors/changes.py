"""What every change of an account's second factors does beside it, in the same transaction."""

from typing import Any

from usersctl.factors import recovery_codes
from usersctl.mail.kinds import (
    PASSKEY_ADDED,
    PASSKEY_REMOVED,
    RECOVERY_CODES_MADE,
    TOTP_ADDED,
    TOTP_REMOVED,
    EmailQueue,
    Kind,
)
from usersctl.models import Actor, Enrolment, User
from usersctl.store.transaction import Transaction

TOTP, PASSKEY, CODES = "totp", "passkey", "codes"
_ADDED = {TOTP: TOTP_ADDED, PASSKEY: PASSKEY_ADDED}
_REMOVED = {TOTP: TOTP_REMOVED, PASSKEY: PASSKEY_REMOVED}


def added(
    tx: Transaction, emails: EmailQueue, before: User, kind: str, *, passkey_id: int | None = None, by: Actor
) -> list[str] | None:
    """After a factor was added to an account, as it was `before`. Returns the recovery codes that come with the first."""
    codes = None
    if not before.factors:
        codes = _make_codes(tx, before.id)
    tx.note_factors_changed(before.id)
    _tell(tx, emails, _ADDED[kind], before, Enrolment(kind, tx.now_text, passkey_id))
    tx.audit(by, "factor-add", before, **_details(kind, passkey_id))
    return codes


def removed(
    tx: Transaction, emails: EmailQueue, before: User, kind: str, *, passkey_id: int | None = None, by: Actor
) -> None:
    """After a factor was removed from an account, as it was `before`."""
    _settle(tx, before.id)
    emails.add(tx, _REMOVED[kind], before, before.email)
    tx.audit(by, "factor-remove", before, **_details(kind, passkey_id))


def renew_codes(tx: Transaction, emails: EmailQueue, user: User, *, by: Actor) -> list[str]:
    """New recovery codes in the place of the old ones."""
    codes = _make_codes(tx, user.id)
    tx.note_factors_changed(user.id)
    _tell(tx, emails, RECOVERY_CODES_MADE, user, Enrolment(CODES, tx.now_text))
    tx.audit(by, "recovery-codes", user)
    return codes


def take_back(tx: Transaction, user: User, enrolment: Enrolment, *, by: Actor) -> None:
    """The owner says that it was not theirs. What was removed or added since stays as it is."""
    if enrolment.kind == TOTP:
        tx.delete_totp(user.id, enrolment.made_at)
    elif enrolment.passkey_id is not None:
        tx.delete_passkey(user.id, enrolment.passkey_id)
    tx.delete_recovery_codes(user.id, enrolment.made_at)
    _settle(tx, user.id)
    tx.audit(by, "factor-take-back", user, **_details(enrolment.kind, enrolment.passkey_id))


def _tell(tx: Transaction, emails: EmailQueue, kind: Kind, user: User, about: Enrolment) -> None:
    """Also at the addresses that the account gave up in the last days: a thief may have changed the address before."""
    for email in (user.email, *tx.reserved_emails_of(user.id)):
        emails.add(tx, kind, user, email, about=about)


def _make_codes(tx: Transaction, user_id: int) -> list[str]:
    codes = recovery_codes.new_codes()
    tx.add_recovery_codes(user_id, list(map(recovery_codes.hash_of, codes)))
    return codes


def _settle(tx: Transaction, user_id: int) -> None:
    """Recovery codes end with the last factor, and no device is remembered any more."""
    tx.note_factors_changed(user_id)
    if not tx.existing_user(user_id).factors:
        tx.delete_recovery_codes(user_id)


def _details(kind: str, passkey_id: int | None) -> dict[str, Any]:
    details: dict[str, Any] = {"factor": kind}
    if passkey_id is not None:
        details["passkey"] = passkey_id
    return details
