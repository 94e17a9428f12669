"""Limits on guessing: failed logins of an account, in the database, and requests of a client, in memory."""

import ipaddress
import threading
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta

from usersctl.clock import Clock, moment
from usersctl.errors import Busy, TooMany
from usersctl.models import Actor, User
from usersctl.passwords import Hasher
from usersctl.permissions import admit
from usersctl.secrets import digest
from usersctl.store.store import Store
from usersctl.store.transaction import Transaction

FIRST_DELAY = timedelta(seconds=30)
LONGEST_DELAY = timedelta(minutes=15)


def account_key(user: User | None, email: str) -> str:
    # Users mistype passwords into this field, so an address without an account is not stored in clear.
    return f"user:{user.id}" if user else digest(email).hex()


@dataclass(frozen=True)
class AccountThrottle:
    """After ten failed logins in a row a delay that doubles; after a hundred only a reset or `usersctl unlock` helps."""

    store: Store
    enabled: bool
    before_delay: int
    before_lock: int

    def count(self, tx: Transaction, account: str, user: User | None) -> None:
        """Counts a password check as failed, or raises TooMany while the account has to wait; a success clears the count.

        The caller commits before the check, because parallel guesses in other processes would slip past otherwise.
        An address without an account is treated alike.
        """
        if not self.enabled:
            return
        left = self.wait(tx, account)
        if left:
            raise TooMany("Too many failed logins, please try again later", retry_after=_seconds(left))
        tx.count_failure(account, user and user.id)

    @contextmanager
    def slot(self, hasher: Hasher, account: str) -> Iterator[None]:
        """A slot for a check that was counted. If none is free there is no check, and nothing to count."""
        try:
            with hasher.slot():
                yield
        except Busy:
            self.uncount(account)
            raise

    def uncount(self, account: str) -> None:
        """For a check that did not happen, or a right password that was refused for another reason."""
        if self.enabled:
            with self.store.write() as tx:
                tx.uncount_failure(account)

    def wait(self, tx: Transaction, account: str) -> timedelta | None:
        """How long the account still has to wait; the longest delay if it is locked until a reset."""
        failures = tx.failures(account)
        if failures is None or failures.in_a_row < min(self.before_delay, self.before_lock):
            return None
        if failures.in_a_row >= self.before_lock:
            return LONGEST_DELAY
        delay = min(LONGEST_DELAY, FIRST_DELAY * 2 ** min(failures.in_a_row - self.before_delay, 10))
        waited = tx.now - moment(failures.last_at)
        # A clock that was set back must not lengthen the wait: the next failure is noted in its new time.
        return delay - waited if timedelta() <= waited < delay else None

    def unlock(self, user: User, by: Actor) -> bool:
        with self.store.write() as tx:
            admit(tx, by)
            unlocked = tx.clear_failures(account_key(user, user.email))
            if unlocked:
                tx.audit(by, "unlock", user)
            return unlocked


@dataclass(frozen=True)
class AddressThrottle:
    """A limit on events of one kind from one client in a window of time, in bounded memory."""

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
    """IPv4 by address; IPv6 by /64, because a provider gives a customer so many addresses."""
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
