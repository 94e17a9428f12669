"""How often a password may be guessed: on one account, kept in the database, and from one client, kept in memory."""

import ipaddress
import threading
from collections import OrderedDict
from dataclasses import dataclass, field
from datetime import timedelta

from usersctl.clock import Clock, moment, stamp
from usersctl.errors import TooMany
from usersctl.models import Actor, User
from usersctl.secrets import digest
from usersctl.store.store import Store
from usersctl.store.transaction import Transaction

FIRST_DELAY = timedelta(seconds=30)
LONGEST_DELAY = timedelta(minutes=15)
KEPT_ADDRESSES = 100_000  # of failed logins on addresses that have no account


def account_key(user: User | None, email: str) -> str:
    # People type passwords into the wrong field, so an address without an account is not kept in clear.
    return f"user:{user.id}" if user else digest(email).hex()


@dataclass(frozen=True)
class AccountThrottle:
    """After ten failed logins in a row a wait that doubles; after a hundred, only a reset or `usersctl unlock` helps."""

    store: Store
    now: Clock
    enabled: bool
    before_delay: int
    before_lock: int

    def check(self, account: str) -> None:
        """Refuses while the account has to wait. An address without an account is treated alike."""
        if self.enabled:
            with self.store.glance() as tx:
                self._refuse(tx, account)

    def count(self, account: str, user: User | None) -> None:
        """Counts a password check before it is made, so that parallel guesses cannot slip past; success clears it."""
        if self.enabled:
            with self.store.write() as tx:
                self._refuse(tx, account)
                tx.count_failure(account, user.id if user else None, stamp(self.now()))

    def uncount(self, account: str) -> None:
        """The check did not come about, or the password was right and something else stood in the way."""
        if self.enabled:
            with self.store.write() as tx:
                tx.uncount_failure(account)

    def wait(self, tx: Transaction, account: str) -> timedelta | None:
        """How long the account still has to wait; the longest delay, too, where waiting does not help."""
        found = tx.failures(account)
        if found is None or found[0] < min(self.before_delay, self.before_lock):
            return None
        failures, last = found
        if failures >= self.before_lock:
            return LONGEST_DELAY
        delay = min(LONGEST_DELAY, FIRST_DELAY * 2 ** min(failures - self.before_delay, 10))
        waited = self.now() - moment(last)
        # A clock that was set back must not lengthen the wait: the next failure is noted in its new time.
        return delay - waited if timedelta() <= waited < delay else None

    def unlock(self, user: User, by: Actor) -> bool:
        with self.store.write() as tx:
            unlocked = tx.clear_failures(account_key(user, user.email))
            if unlocked:
                tx.audit(stamp(self.now()), by, "unlock", user)
            return unlocked

    def _refuse(self, tx: Transaction, account: str) -> None:
        left = self.wait(tx, account)
        if left is not None:
            raise TooMany("Too many failed logins, please try again later", retry_after=_seconds(left))


@dataclass(frozen=True)
class AddressThrottle:
    """At most so many events of one kind from one client in a window of time, in memory that does not grow."""

    now: Clock
    at_most: int
    window: timedelta
    kept: int = 10_000
    _windows: OrderedDict[str, tuple[float, int]] = field(default_factory=OrderedDict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def check(self, address: str) -> None:
        with self._lock:
            started, events = self._current(network_of(address))
        if events >= self.at_most:
            left = started + self.window.total_seconds() - self.now().timestamp()
            raise TooMany(
                "Too many requests, please try again later", retry_after=_seconds(timedelta(seconds=left))
            )

    def count(self, address: str) -> None:
        network = network_of(address)
        with self._lock:
            started, events = self._current(network)
            self._windows[network] = (started, events + 1)
            if len(self._windows) > self.kept:
                self._windows.popitem(last=False)  # the oldest window

    def _current(self, network: str) -> tuple[float, int]:
        now = self.now().timestamp()
        started, events = self._windows.get(network, (now, 0))
        if not 0 <= now - started < self.window.total_seconds():
            self._windows.pop(network, None)
            return now, 0
        return started, events


def network_of(address: str) -> str:
    """IPv4 by address; IPv6 by /64, which is what one customer gets."""
    try:
        parsed = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if parsed.version == 6:
        if parsed.ipv4_mapped:
            return str(parsed.ipv4_mapped)
        return str(ipaddress.ip_network((parsed, 64), strict=False))
    return str(parsed)


def _seconds(left: timedelta) -> int:
    return max(1, -(-left // timedelta(seconds=1)))
