"""Which letters there are, and how one is put into the outbox: in the transaction of what it tells."""

from datetime import datetime, timedelta
from typing import NamedTuple

from usersctl.clock import stamp
from usersctl.models import User
from usersctl.secrets import digest, new_message_id
from usersctl.store.transaction import Transaction

AT_MOST, WITHIN = 3, timedelta(minutes=15)


class Kind(NamedTuple):
    """What a letter carries: a one-time token of which purpose, and how long that is good for."""

    name: str
    purpose: str
    lifetime: timedelta


CONFIRM = Kind("confirm", "confirm", timedelta(hours=24))
RESET = Kind("reset", "reset", timedelta(hours=1))

# Notices to the owner of an account, each with a "this wasn't me" link.
_NOT_ME = timedelta(days=7)
PASSWORD_CHANGED = Kind("password-changed", "not_me", _NOT_ME)
EMAIL_CHANGED = Kind("email-changed", "not_me", _NOT_ME)
ACCOUNT_LINKED = Kind("account-linked", "not_me", _NOT_ME)

KINDS = {each.name: each for each in (CONFIRM, RESET, PASSWORD_CHANGED, EMAIL_CHANGED, ACCOUNT_LINKED)}

# A letter that could not be sent for so long has lost its point.
STALE_AFTER = {"confirm": timedelta(hours=24), "reset": timedelta(hours=24), "not_me": _NOT_ME}


def queue(tx: Transaction, kind: Kind, user: User | None, email: str, now: datetime) -> None:
    """To the stored address only. At most three of a kind to one account in a quarter of an hour, silently."""
    # What has no account may be anything that somebody typed, a password or a megabyte: it is only counted.
    nobody = digest(email).hex()
    tx.add_letter(
        kind.name,
        user.id if user else None,
        email if user else nobody,
        stamp(now),
        new_message_id(),
        at_most=AT_MOST,
        since=stamp(now - WITHIN),
    )
