"""What is counted while serving: in memory that all processes share, each in a part of its own, so that the sums are true."""

import mmap
import os
import re
import threading
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from usersctl.passwords import Hasher
from usersd.routing import Route

BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)  # seconds
CLASSES = ("1xx", "2xx", "3xx", "4xx", "5xx")
NO_ROUTE = ("other", "none")  # what has no route: whatever was asked, and what is refused before it is read

SUCCESS = "success"
OTHERWISE = "error"
LOGINS = {"login": "password", "oauth": "oauth"}  # by what the log calls it
_OUTCOMES = {
    "password": (
        SUCCESS,
        "invalid",
        "unauthenticated",
        "forbidden",
        "too_many",
        "busy",
        "locked_down",
        "database",
        OTHERWISE,
    ),
    "oauth": (
        SUCCESS,
        "oauth_failed",
        "oauth_not_configured",
        "user_not_registered",
        "account_inactive",
        OTHERWISE,
    ),
}
_LOGINS = [(how, outcome) for how, outcomes in _OUTCOMES.items() for outcome in outcomes]

_PID, _HASHING, _WAITING, _FIRST_LOGIN = range(4)
_WIDTH = len(BUCKETS) + 2  # of one histogram: what fits into no bucket, and the sum


class Requests(NamedTuple):
    """How long requests took, of one method, route and class of status."""

    method: str
    route: str
    status: str
    counts: list[int]  # for each of BUCKETS, and beyond
    seconds: float


class SharedCounters:
    """All figures of all processes. It has to be made before they are forked, and every figure is known by then."""

    def __init__(self, table: Sequence[Route], processes: int) -> None:
        self.routes = [*((route.method, re.sub(r"<(\w+)>", r":\1", route.path)) for route in table), NO_ROUTE]
        # By its handler: the path of one of them is a setting.
        self.places = {(route.method, route.handler): place for place, route in enumerate(table)}
        self.first_request = _FIRST_LOGIN + len(_LOGINS)
        length = self.first_request + len(self.routes) * len(CLASSES) * _WIDTH
        self._memory = mmap.mmap(-1, processes * length * 8)
        numbers = memoryview(self._memory).cast("d")
        self.shares = [numbers[each * length : (each + 1) * length] for each in range(processes)]

    def _sum(self, at: int) -> float:
        return sum(share[at] for share in self.shares)

    @property
    def processes(self) -> list[int]:
        """Their ids; 0 for one that has not begun."""
        return [int(share[_PID]) for share in self.shares]

    @property
    def hashing(self) -> int:
        """bcrypt slots in use, as each process saw it in the last half second."""
        return int(self._sum(_HASHING))

    @property
    def waiting(self) -> int:
        """Who waits for such a slot."""
        return int(self._sum(_WAITING))

    def logins(self) -> Iterator[tuple[str, str, int]]:
        for number, (how, outcome) in enumerate(_LOGINS):
            yield how, outcome, int(self._sum(_FIRST_LOGIN + number))

    def requests(self) -> Iterator[Requests]:
        """Those that there were."""
        for place, (method, route) in enumerate(self.routes):
            for number, status in enumerate(CLASSES):
                at = self.first_request + (place * len(CLASSES) + number) * _WIDTH
                counts = [int(self._sum(each)) for each in range(at, at + _WIDTH - 1)]
                if any(counts):
                    yield Requests(method, route, status, counts, self._sum(at + _WIDTH - 1))


class Counters:
    """One process's share. Who takes the place of a process that died goes on counting where it ended."""

    def __init__(self, ledger: SharedCounters, index: int, hasher: Hasher) -> None:
        self._ledger = ledger
        self._share = ledger.shares[index]
        self._hasher = hasher
        self._lock = threading.Lock()
        self._share[_PID] = os.getpid()
        self.look(0)

    def request(self, route: "Route | None", status: int, seconds: float) -> None:
        ledger, share = self._ledger, self._share
        place = len(ledger.routes) - 1
        if route is not None:
            place = ledger.places.get((route.method, route.handler), place)
        at = ledger.first_request + (place * len(CLASSES) + status // 100 - 1) * _WIDTH
        with self._lock:
            share[at + bisect_left(BUCKETS, seconds)] += 1
            share[at + _WIDTH - 1] += seconds

    def login(self, how: str, outcome: str) -> None:
        known = (how, outcome if outcome in _OUTCOMES[how] else OTHERWISE)
        with self._lock:
            self._share[_FIRST_LOGIN + _LOGINS.index(known)] += 1

    def look(self, waiting: int) -> None:
        """Twice a second. `waiting`: who has not even a thread yet."""
        self._share[_HASHING] = self._hasher.in_use
        self._share[_WAITING] = self._hasher.waiting + waiting
