"""Which emails there are, and how one gets into the outbox: in the transaction of the change that it reports."""

import threading
from datetime import timedelta

from usersctl.clock import stamp
from usersctl.errors import TooMany
from usersctl.models import Enrolment, Purpose, User
from usersctl.named import NamedTuple
from usersctl.store.transaction import Transaction


class Kind(NamedTuple):
    name: str
    purpose: Purpose | None  # of the link; None: the email has none
    lifetime: timedelta  # of the one-time token in the link

    @property
    def stale_after(self) -> timedelta:
        """An email that could not be sent for so long has lost its point."""
        return max(self.lifetime, timedelta(hours=24))


CONFIRM = Kind("confirm", Purpose.CONFIRM, timedelta(hours=24))
RESET = Kind("reset", Purpose.RESET, timedelta(hours=1))

# The link works until the invitation expires, which the admin decides; the account holds that time.
USUAL_INVITATION, LONGEST_INVITATION = timedelta(days=7), timedelta(days=90)
INVITATION = Kind("invitation", Purpose.INVITE, LONGEST_INVITATION)
INVITATION_REMEMBERED = timedelta(days=30)  # after its end, for the page that says what became of it

# For the deletion of one's own account. The undo of one lives until the account is deleted.
DELETE = Kind("confirm-deletion", Purpose.DELETE, timedelta(hours=1))
UNDO = Kind("deletion", Purpose.UNDO, timedelta(days=7))
# A new address is proven by a link to it; without a password, a link to the known address has to approve it as well.
CONFIRM_NEW_EMAIL = Kind("confirm-new-email", Purpose.CLAIM, timedelta(hours=24))
APPROVE_NEW_EMAIL = Kind("approve-new-email", Purpose.APPROVE, timedelta(hours=24))

# Notices to the owner of an account, with a "this wasn't me" link.
_NOTICE = timedelta(days=7)
PASSWORD_CHANGED = Kind("password-changed", Purpose.NOT_ME, _NOTICE)
EMAIL_CHANGED = Kind("email-changed", Purpose.NOT_ME, _NOTICE)
ACCOUNT_LINKED = Kind("account-linked", Purpose.NOT_ME, _NOTICE)
# By the link to a provider: the password could be a stranger's.
PASSWORD_ENDED = Kind("password-ended", Purpose.NOT_ME, _NOTICE)
ACCOUNT_UNLINKED = Kind("account-unlinked", Purpose.NOT_ME, _NOTICE)
TOKEN_MADE = Kind("token-made", Purpose.NOT_ME, _NOTICE)  # an API token, in a session

# Notices about second factors. The link of an enrolment takes that enrolment back.
TOTP_ADDED = Kind("totp-added", Purpose.NOT_ME, _NOTICE)
TOTP_REMOVED = Kind("totp-removed", Purpose.NOT_ME, _NOTICE)
PASSKEY_ADDED = Kind("passkey-added", Purpose.NOT_ME, _NOTICE)
PASSKEY_REMOVED = Kind("passkey-removed", Purpose.NOT_ME, _NOTICE)
RECOVERY_CODES_MADE = Kind("recovery-codes-made", Purpose.NOT_ME, _NOTICE)
RECOVERY_CODE_USED = Kind("recovery-code-used", Purpose.NOT_ME, _NOTICE)
FACTORS_RESET = Kind("factors-reset", Purpose.NOT_ME, _NOTICE)  # by an admin
PASSKEY_REFUSED = Kind("passkey-refused", None, _NOTICE)  # its counter did not grow: it may be a copy

# Notices without a link: an operator changed the address; the address stays, because the claim to another one ended.
EMAIL_GIVEN = Kind("email-given", None, _NOTICE)
EMAIL_KEPT = Kind("email-kept", None, _NOTICE)

KINDS = {
    kind.name: kind
    for kind in (
        CONFIRM,
        RESET,
        INVITATION,
        CONFIRM_NEW_EMAIL,
        APPROVE_NEW_EMAIL,
        DELETE,
        UNDO,
        PASSWORD_CHANGED,
        EMAIL_CHANGED,
        ACCOUNT_LINKED,
        PASSWORD_ENDED,
        ACCOUNT_UNLINKED,
        TOKEN_MADE,
        TOTP_ADDED,
        TOTP_REMOVED,
        PASSKEY_ADDED,
        PASSKEY_REMOVED,
        RECOVERY_CODES_MADE,
        RECOVERY_CODE_USED,
        FACTORS_RESET,
        PASSKEY_REFUSED,
        EMAIL_GIVEN,
        EMAIL_KEPT,
    )
}


# No limit drops these: none repeats another one, and no stranger can cause a flood of them, because each change takes the
# password, a fresh proof, a code or another link.
ALWAYS_SENT = (
    UNDO,
    TOTP_ADDED,
    TOTP_REMOVED,
    PASSKEY_ADDED,
    PASSKEY_REMOVED,
    RECOVERY_CODES_MADE,
    RECOVERY_CODE_USED,
    FACTORS_RESET,
)


def sent_as(kind: Kind, user: User | None) -> Kind:
    """An account that awaits its owner gets its invitation instead of a link to a new password."""
    if kind is RESET and user is not None and user.awaits_owner:
        return INVITATION
    return kind


AT_MOST, WITHIN = 3, timedelta(minutes=15)
AT_MOST_A_DAY, DAY = 12, timedelta(days=1)


class EmailQueue:
    def __init__(self) -> None:
        self.committed = threading.Event()  # wakes the worker that sends

    def add_for_admin(self, tx: Transaction, kind: Kind, user: User) -> None:
        """Raises TooMany where `add` drops the email."""
        if not self.add(tx, kind, user, user.email):
            wait = int(WITHIN.total_seconds())
            message = f"Too many emails of this kind, please try again later: {user.email}"
            hint = f"see what went to {user.email} with: usersctl mail list"
            raise TooMany(message, retry_after=wait, hint=hint)

    def add(
        self,
        tx: Transaction,
        kind: Kind,
        user: User | None,
        email: str,
        *,
        about: Enrolment | None = None,
        is_only_way: bool = False,
    ) -> bool:
        """To an address of the account only. Silently drops more than three of a kind to one address or account in 15 minutes,
        and returns False.

        After twelve in a day there is only one more whenever the last link has expired: so no flood of requests keeps the
        owner without a link that works, also if other accounts ask for emails to this address. For the same reason a
        notice is sent if no link of one works, and an email of ALWAYS_SENT always, as one that is the only way into the
        account from now on. Its link takes back the enrolment that it is `about`.
        """
        from usersctl.secrets import digest, new_message_id  # late: most commands need no hashing

        if user is None:
            # Without an account the text may be a mistyped password or a megabyte, so only its digest is stored.
            email = digest(email).hex()
        user_id = user and user.id
        recent, today = tx.count_recent_emails(kind.name, user_id, email, WITHIN, DAY)
        too_many = recent >= AT_MOST or today >= AT_MOST_A_DAY
        is_needed = kind.purpose is not None  # for its link
        if too_many and is_needed and (recent < AT_MOST or kind.purpose is Purpose.NOT_ME):
            purpose, since = sent_as(kind, user).purpose, stamp(tx.now - kind.stale_after)
            too_many = tx.has_link(kind.name, purpose, user_id, email, since=since)
            if kind in (CONFIRM_NEW_EMAIL, APPROVE_NEW_EMAIL):
                # A user who takes the claim back ends the link, as often as they like.
                lately = stamp(tx.now - kind.lifetime)
                too_many = too_many or tx.was_written_to(kind.name, user_id, email, since=lately)
        if is_only_way or kind in ALWAYS_SENT:
            too_many = False
        enrolment = None if about is None else str(about)
        tx.add_email(kind.name, user_id, email, new_message_id(), dropped=too_many, about=enrolment)
        tx.after_commit(self.committed.set)
        return not too_many
