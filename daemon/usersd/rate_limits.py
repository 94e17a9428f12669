"""How many requests of one client address or account pass: counted before the handlers, in memory of a fixed size; where
several processes serve, in the database as well, in a bounded number of rows."""

from collections.abc import Iterator
from datetime import datetime, timedelta
from functools import partial
from itertools import count

from usersctl.clock import moment
from usersctl.errors import LockedDown, SecondFactorRequired, Unauthenticated, WrongPassword
from usersctl.models import User
from usersctl.service import Service
from usersctl.store.conninfo import Conninfo
from usersctl.throttle import KEPT, LONGEST_WINDOW, AddressThrottle
from usersd.routing import Limit

PATIENCE = 0.2  # seconds that a request waits to be counted for all
LOOK_EVERY = 1_000  # requests that a process counts


class RateLimits:
    def __init__(self, service: Service) -> None:
        settings, self._store = service.settings, service.store
        minute, hour = timedelta(minutes=1), LONGEST_WINDOW
        limits = {
            Limit.FAILED_LOGINS: (settings.failed_logins_per_minute, minute),
            Limit.REGISTRATIONS: (settings.registrations_per_hour, hour),
            Limit.FORGOTS: (settings.forgots_per_minute, minute),
            Limit.OWN_CHANGES: (settings.own_changes_per_hour, hour),
            Limit.OWN_FACTORS: (settings.own_changes_per_hour, hour),
            Limit.WAYS_TO_PROVIDER: (settings.provider_sign_ins_per_minute, minute),
            Limit.WAYS_BACK: (settings.provider_sign_ins_per_minute, minute),
        }
        is_alone = settings.processes == 1 and not isinstance(settings.database, Conninfo)
        self.enabled = settings.limits_enabled
        self._throttles = {
            limit: AddressThrottle(
                service.now, most, window, together=None if is_alone else partial(self._count, limit, count())
            )
            for limit, (most, window) in limits.items()
        }

    def _count(
        self, limit: Limit, counted: Iterator[int], client: str, window: timedelta
    ) -> tuple[datetime, int]:
        with self._store.write(patience=PATIENCE, alone=False) as tx:
            since, events = tx.count_client(f"{limit.name} {client}", window)
            if next(counted) % LOOK_EVERY == 0:
                tx.delete_oldest_clients(limit.name, KEPT, 2 * LOOK_EVERY)
        return moment(since), events

    def check(self, limit: Limit, address: str, user: User | None = None) -> None:
        """Before the handler runs. Requests count at once, logins only if they fail.

        Password checks of a signed-in caller have a counter of their own (usersctl/throttle.py), so that strangers at the
        same address cannot use them up.
        """
        if not self.enabled or (limit is Limit.FAILED_LOGINS and user is not None):
            return
        throttle = self._throttles[limit]
        # All people of an office, behind one address, may have to add a factor on the day that asks for one.
        callers = [] if limit is Limit.OWN_FACTORS else [address]
        if user is not None:
            callers.append(f"user {user.id}")
        for caller in callers:
            throttle.check(caller)
        if limit is not Limit.FAILED_LOGINS:
            for caller in callers:
                throttle.admit(caller)

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
