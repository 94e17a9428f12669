"""Transaction: every statement that a journey needs, in the moment and with the fate of all others beside it."""

from usersctl.store.audit import Audit
from usersctl.store.failures import LoginFailures
from usersctl.store.lockdown import LockdownRow
from usersctl.store.one_time_tokens import OneTimeTokens
from usersctl.store.outbox import Outbox
from usersctl.store.tokens import Tokens
from usersctl.store.users import Users
from usersctl.store.whole import Whole


class Transaction(Users, Tokens, OneTimeTokens, Outbox, LoginFailures, Audit, LockdownRow, Whole):
    """The questions and changes of all nouns. It decides nothing."""
