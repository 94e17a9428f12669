"""The kinds of emails, and what the link of each kind is good for."""

from datetime import timedelta
from typing import NamedTuple

from usersctl.models import Purpose


class Kind(NamedTuple):
    name: str
    purpose: Purpose
    lifetime: timedelta  # of the one-time token in the link

    @property
    def stale_after(self) -> timedelta:
        """An email that could not be sent for so long has lost its point."""
        return max(self.lifetime, timedelta(hours=24))


CONFIRM = Kind("confirm", Purpose.CONFIRM, timedelta(hours=24))
RESET = Kind("reset", Purpose.RESET, timedelta(hours=1))

# Notices to the owner of an account, with a "this wasn't me" link.
_NOTICE = timedelta(days=7)
PASSWORD_CHANGED = Kind("password-changed", Purpose.NOT_ME, _NOTICE)
EMAIL_CHANGED = Kind("email-changed", Purpose.NOT_ME, _NOTICE)
ACCOUNT_LINKED = Kind("account-linked", Purpose.NOT_ME, _NOTICE)

KINDS = {kind.name: kind for kind in (CONFIRM, RESET, PASSWORD_CHANGED, EMAIL_CHANGED, ACCOUNT_LINKED)}
