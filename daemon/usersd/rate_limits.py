"""How often one client address may ask: a component in front of the routes, counting in memory that does not grow."""

from datetime import timedelta

from usersctl.clock import Clock
from usersctl.config import Settings
from usersctl.errors import LockedDown, Unauthenticated, WrongPassword
from usersctl.throttle import AddressThrottle
from usersd.routing import Limit


class RateLimits:
    def __init__(self, settings: Settings, now: Clock) -> None:
        self.enabled = settings.limits_enabled
        self._throttles = {
            Limit.FAILED_LOGINS: AddressThrottle(
                now, settings.failed_logins_per_minute, timedelta(minutes=1)
            ),
            Limit.REGISTRATIONS: AddressThrottle(now, settings.registrations_per_hour, timedelta(hours=1)),
            Limit.FORGOTS: AddressThrottle(now, settings.forgots_per_minute, timedelta(minutes=1)),
        }

    def before(self, limit: Limit, address: str) -> None:
        if self.enabled:
            self._throttles[limit].check(address)
            if limit is not Limit.FAILED_LOGINS:
                self._throttles[limit].count(address)

    def failed(self, limit: Limit, address: str, error: Exception) -> None:
        """Of logins only those count that failed, and on a password."""
        if (
            limit is Limit.FAILED_LOGINS
            and isinstance(error, Unauthenticated | WrongPassword | LockedDown)
            and self.enabled
        ):
            self._throttles[limit].count(address)
