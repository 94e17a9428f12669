"""Transaction: every statement that a journey needs, in the moment and with the fate of all others beside it."""

from usersctl.store.audit import Audit
from usersctl.store.auth_tokens import AuthTokens
from usersctl.store.daily_counts import DailyCounts
from usersctl.store.deliveries import Deliveries
from usersctl.store.factors import Factors
from usersctl.store.failures import LoginFailures
from usersctl.store.groups import Groups
from usersctl.store.identities import Identities
from usersctl.store.inspection import Inspection
from usersctl.store.invitations import Invitations
from usersctl.store.lockdown import LockdownRow
from usersctl.store.managed import Managed
from usersctl.store.one_time_tokens import OneTimeTokens
from usersctl.store.reserved_emails import ReservedEmails
from usersctl.store.signing_keys import SigningKeys
from usersctl.store.slots import Slots
from usersctl.store.user_lists import UserLists
from usersctl.store.users import Users


class Transaction(
    Users,
    Identities,
    UserLists,
    Groups,
    Managed,
    Invitations,
    ReservedEmails,
    AuthTokens,
    Factors,
    OneTimeTokens,
    Deliveries,  # with those of Outbox
    LoginFailures,
    Audit,
    DailyCounts,
    LockdownRow,
    SigningKeys,
    Slots,
    Inspection,
):
    """The questions and changes of all nouns. It decides nothing."""

    def end_for_lockdown(self) -> int:
        """Ends all sessions, remembered devices, links that set a password, and invitations; returns how many sessions."""
        ended = self.delete_all_sessions()
        self.forget_remembered()
        self.drop_links_to_passwords()
        self.expire_invitations()
        return ended
