"""Limits on guessing: failed password checks of an account, in the database, and requests of a client, in memory or there."""

import ipaddress
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from datetime import datetime, timedelta
from functools import lru_cache

from usersctl.clock import CLOCKS_DIFFER, Clock, moment, stamp
from usersctl.errors import Busy, CodesClosed, Invalid, StoreUnusable, TooMany, WrongPassword
from usersctl.models import Actor, Credentials, Device, LockRules, User
from usersctl.named import NamedTuple
from usersctl.passwords import Hasher
from usersctl.permissions import admit
from usersctl.store.store import Store
from usersctl.store.transaction import Transaction

FIRST_DELAY = timedelta(seconds=30)
LONGEST_DELAY = timedelta(minutes=15)
LONGEST_WINDOW = timedelta(hours=1)  # of a limit on requests of a client


class Counter(NamedTuple):
    """The failed checks of an account that count together: by strangers, on one known device, or in one session."""

    key: str
    user_id: int | None
    is_known: bool = False  # of a device or a session of the user
    counted_in: str = ""  # the row of the daily counts that has it as a failed login


def counter_of(tx: Transaction, user: User | None, email: str, devices: Iterable[Device] = ()) -> Counter:
    """For a login: of the user's device, if one of these still is, else of strangers."""
    if user is None:
        from usersctl.secrets import digest  # late: most commands need no hashing

        # Users mistype passwords into this field, so an address without an account is not stored in clear.
        return Counter(digest(email).hex(), None)
    for device in devices:
        if device.user_id == user.id and device.since >= tx.devices_since(user.id):
            return Counter(f"user:{user.id}:device:{device.id}", user.id, is_known=True)
    return Counter(f"user:{user.id}", user.id)


def counter_in_session(user_id: int, session_id: int) -> Counter:
    return Counter(f"user:{user_id}:session:{session_id}", user_id, is_known=True)


def clear_guesses(tx: Transaction, user_id: int) -> bool:
    """Failed checks and tried codes, after a right second factor or by an unlock. Returns whether there were any."""
    return tx.clear_failures(user_id) | tx.clear_codes(user_id)


class AccountThrottle(NamedTuple):
    """After `before_delay` failed checks in a row a delay that doubles; after `before_lock` only a reset or `usersctl unlock`
    helps.

    Each counter has its own delay. Strangers may use up four fifths of `before_lock`, known devices and sessions share the
    rest: so strangers, who are many, cannot keep the owner out, and together they never get more.
    """

    store: Store
    enabled: bool
    before_delay: int
    before_lock: int

    @property
    def of_strangers(self) -> int:
        """The failures that lock strangers out."""
        return max(1, self.before_lock * 4 // 5)

    @property
    def of_known(self) -> int:
        """The failures that lock known devices and sessions."""
        return max(1, self.before_lock - self.of_strangers)

    @contextmanager
    def check(self, hasher: Hasher, counter: Counter, by: Actor) -> Iterator[None]:
        """A slot for one check that is counted as failed before. A success has to clear the failures of the user."""
        with self.store.write() as tx:
            admit(tx, by)
            self.count_check(tx, counter)
        with self.slot(hasher, counter):
            yield

    @contextmanager
    def proven(
        self, hasher: Hasher, stored: Credentials, password: str | None, *, session_id: int, by: Actor
    ) -> Iterator[tuple[Transaction, User]]:
        """A transaction for the user of a session who gave the right password again, else WrongPassword."""
        if not password:
            raise Invalid("Password is required")
        user_id = stored.user.id
        with self.check(hasher, counter_in_session(user_id, session_id), by):
            if not hasher.matches(password, stored.password_hash):
                raise WrongPassword("Incorrect password")
        with self.store.write() as tx:
            admit(tx, by)
            present = tx.credentials_of(user_id)
            if present is None or present.password_hash != stored.password_hash:
                # The password was changed meanwhile, so the former one proves nothing any more.
                raise WrongPassword("Incorrect password")
            tx.clear_failures(user_id)
            yield tx, present.user

    def count_check(self, tx: Transaction, counter: Counter, *, waits: bool = True) -> None:
        """Counts a password check as failed, or raises TooMany while its counter has to wait.

        The caller commits before the check, because parallel guesses in other processes would slip past otherwise.
        An address without an account is treated as one with an account. `waits`: False for the second half of a check that
        has waited; a lock holds all the same.
        """
        if not self.enabled:
            return
        left = self.wait(tx, counter)
        if left and (waits or self.is_locked(tx, counter)):
            raise _too_many(left)
        tx.count_failure(counter.key, counter.user_id)

    def count_code(self, tx: Transaction, user_id: int) -> None:
        """Counts a code of an authenticator app, which only a right second factor or an unlock clears.

        Who knows the password, or reads the emails, clears the other counters, and could go on guessing.
        """
        if self.closes_codes(tx.tried_codes(user_id)):
            raise CodesClosed
        if self.enabled:
            tx.count_code(user_id)

    def closes_codes(self, tried: int) -> bool:
        return self.enabled and tried >= self.before_lock

    def count_sign_in(self, tx: Transaction, counter: Counter, *, waits: bool = True) -> Counter:
        """The same for a sign-in, which counts as failed on this day, too. Without limits nothing is written."""
        self.count_check(tx, counter, waits=waits)
        if not self.enabled:
            return counter
        tx.count_failed_sign_in()
        return counter._replace(counted_in=tx.row_of_day)

    @contextmanager
    def slot(self, hasher: Hasher, counter: Counter) -> Iterator[None]:
        """A slot for a check that was counted. If none is free there is no check, and nothing to count."""
        try:
            with hasher.slot():
                yield
        except Busy:
            self.uncount(counter)
            raise

    def uncount(self, counter: Counter) -> None:
        """For a check that did not happen, or a right password that was refused for another reason."""
        if self.enabled:
            with self.store.write() as tx:
                tx.uncount_failure(counter.key)
                tx.uncount_failed_sign_in(counter.counted_in)

    def is_locked(self, tx: Transaction, counter: Counter) -> bool:
        """Whether only a success elsewhere, a reset or an unlock helps."""
        if counter.is_known:
            known = tx.failures_but(f"user:{counter.user_id}", counter.user_id)
            return known >= self.of_known
        failures = tx.failures(counter.key)
        return failures is not None and failures.in_a_row >= self.of_strangers

    def wait(self, tx: Transaction, counter: Counter) -> timedelta | None:
        """How long the counter still has to wait; the longest delay if it is locked."""
        if self.is_locked(tx, counter):
            return LONGEST_DELAY
        failures = tx.failures(counter.key)
        if failures is None or failures.in_a_row < self.before_delay:
            return None
        delay = _delay_after(failures.in_a_row - self.before_delay)
        waited = tx.now - moment(failures.last_at)
        # A clock that was set back further must not lengthen the wait: the next failure is noted in its new time.
        return delay - waited if -CLOCKS_DIFFER <= waited < delay else None

    def locks(self, now: datetime) -> LockRules | None:
        """What `wait` and `is_locked` say, for a list of locked accounts; None if limits are off."""
        if not self.enabled:
            return None
        doublings = range((LONGEST_DELAY // FIRST_DELAY).bit_length() + 1)
        since = tuple((self.before_delay + n, stamp(now - _delay_after(n))) for n in doublings)
        return LockRules(self.of_strangers, self.of_known, since, stamp(now + CLOCKS_DIFFER))

    def unlock(self, user: User, by: Actor) -> bool:
        with self.store.write() as tx:
            admit(tx, by)
            unlocked = clear_guesses(tx, user.id)
            if unlocked:
                tx.audit(by, "unlock", user)
            return unlocked


KEPT = 10_000  # clients of a limit: in memory; in the database also those that came since a process looked


class AddressThrottle:
    """A limit on events of one kind from one client in a window of time, in bounded memory.

    `together` counts an event of a client also for other processes, and returns since when and how many all of them
    counted.
    """

    def __init__(
        self,
        now: Clock,
        at_most: int,
        window: timedelta,
        kept: int = KEPT,
        together: Callable[[str, timedelta], tuple[datetime, int]] | None = None,
    ) -> None:
        self.now, self.at_most, self.window, self.kept, self.together = now, at_most, window, kept, together
        self._windows: OrderedDict[str, tuple[float, int]] = OrderedDict()
        self._lock = threading.Lock()

    def check(self, address: str) -> None:
        network = network_of(address)
        if network not in self._windows:  # as for nearly every address
            return
        with self._lock:
            started, events = self._current(network)
        if events >= self.at_most:
            raise self._refusal(started)

    def admit(self, address: str) -> None:
        """Counts an event that `check` let pass, and refuses it if others, perhaps of other processes, came before it."""
        started, number = self.count(address)
        if number > self.at_most:
            raise self._refusal(started)

    def count(self, address: str) -> tuple[float, int]:
        """Returns since when, and the number that the event has."""
        network = network_of(address)
        with self._lock:
            started, events = self._current(network)
            number = events + 1
            self._windows[network] = (started, number)
            if len(self._windows) > self.kept:
                self._windows.popitem(last=False)  # the oldest window
        if self.together is not None:
            with suppress(Busy, StoreUnusable):
                since, number = self.together(network, self.window)
                started = min(since, self.now()).timestamp()  # the clock of another machine may be ahead
                with self._lock:
                    before, known = self._windows.get(network, (started, 0))
                    # Another thread may have counted after this one, and learnt of more.
                    self._windows[network] = (started, max(number, known) if before == started else number)
        return started, number

    def _refusal(self, started: float) -> TooMany:
        left = started + self.window.total_seconds() - self.now().timestamp()
        return TooMany(
            "Too many requests, please try again later", retry_after=_seconds(timedelta(seconds=left))
        )

    def _current(self, network: str) -> tuple[float, int]:
        now = self.now().timestamp()
        started, events = self._windows.get(network, (now, 0))
        if not 0 <= now - started < self.window.total_seconds():
            self._windows.pop(network, None)
            return now, 0
        return started, events


@lru_cache(maxsize=1000)
def network_of(address: str) -> str:
    """IPv4 by address; IPv6 by /64, because a provider gives a customer so many addresses."""
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return address
    if parsed.version == 6:
        if parsed.ipv4_mapped:
            return str(parsed.ipv4_mapped)
        return str(ipaddress.ip_network((parsed, 64), strict=False))
    return str(parsed)


def _delay_after(doublings: int) -> timedelta:
    return min(LONGEST_DELAY, FIRST_DELAY * (1 << min(doublings, 10)))


def _too_many(left: timedelta) -> TooMany:
    return TooMany("Too many failed logins, please try again later", retry_after=_seconds(left))


def _seconds(left: timedelta) -> int:
    return max(1, -(-left // timedelta(seconds=1)))
