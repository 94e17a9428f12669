"""How many requests of one client address or account pass: counted before the handlers, in memory of a fixed size."""

from datetime import timedelta

from usersctl.clock import Clock
from usersctl.config import Settings
from usersctl.errors import LockedDown, SecondFactorRequired, Unauthenticated, WrongPassword
from usersctl.models import User
from usersctl.throttle import AddressThrottle
from usersd.routing import Limit


class RateLimits:
    def __init__(self, settings: Settings, now: Clock) -> None:
        minute, hour = timedelta(minutes=1), timedelta(hours=1)
        self.enabled = settings.limits_enabled
        self._throttles = {
            Limit.FAILED_LOGINS: AddressThrottle(now, settings.failed_logins_per_minute, minute),
            Limit.REGISTRATIONS: AddressThrottle(now, settings.registrations_per_hour, hour),
            Limit.FORGOTS: AddressThrottle(now, settings.forgots_per_minute, minute),
            Limit.OWN_CHANGES: AddressThrottle(now, settings.own_changes_per_hour, hour),
            Limit.WAYS_TO_PROVIDER: AddressThrottle(now, settings.provider_sign_ins_per_minute, minute),
            Limit.WAYS_BACK: AddressThrottle(now, settings.provider_sign_ins_per_minute, minute),
        }

    def check(self, limit: Limit, address: str, user: User | None = None) -> None:
        """Before the handler runs. Requests count at once, logins only if they fail.

        Password checks of a signed-in caller have a counter of their own (usersctl/throttle.py), so that strangers at the
        same address cannot use them up.
        """
        if not self.enabled or (limit is Limit.FAILED_LOGINS and user is not None):
            return
        throttle = self._throttles[limit]
        callers = [address] if user is None else [address, f"user {user.id}"]
        for caller in callers:
            throttle.check(caller)
        if limit is not Limit.FAILED_LOGINS:
            for caller in callers:
                throttle.count(caller)

    def count_failure(self, limit: Limit | None, address: str, error: Exception) -> None:
        """Only failed password checks count, not other refusals."""
        is_wrong = isinstance(error, Unauthenticated | WrongPassword | LockedDown)
        is_half_done = isinstance(error, SecondFactorRequired)  # the password was right
        if limit is Limit.FAILED_LOGINS and is_wrong and not is_half_done and self.enabled:
            self._throttles[limit].count(address)

    def refuse_or_count(self, limit: Limit | None, address: str, error: Exception) -> None:
        """For credentials that were found to be wrong, whatever the limit said before."""
        if limit is not None:
            self.check(limit, address)
        self.count_failure(limit, address, error)
