"""Counters of requests and logins, in memory that all processes share: each process writes to a part of its own."""

import mmap
import os
import re
import threading
from bisect import bisect_left
from collections.abc import Iterator, Sequence

from usersctl.passwords import Hasher
from usersd.routing import Route

BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)  # seconds
CLASSES = ("1xx", "2xx", "3xx", "4xx", "5xx")
# Method and route of a request to an unknown path, or of one that was not parsed.
NO_ROUTE = ("other", "none")

SUCCESS = "success"
OTHERWISE = "error"
LOGINS = {
    "login": "password",
    "second-factor": "second_factor",
    "passkey-login": "passkey",
    "oauth": "oauth",
}  # the method of sign-in, by the event's name in the log
_REFUSED = ("invalid", "unauthenticated", "forbidden", "too_many", "busy", "locked_down", "database")
_FAILURES = {
    "password": (*_REFUSED, "second_factor", "invalid_code", "codes_closed"),
    "second_factor": (*_REFUSED, "invalid_code", "codes_closed"),
    "passkey": (*_REFUSED, "invalid_passkey"),
    "oauth": (
        "oauth_failed",
        "oauth_not_configured",
        "user_not_registered",
        "account_inactive",
        "second_factor",
    ),
}
_LOGINS = [(method, name) for method in _FAILURES for name in (SUCCESS, *_FAILURES[method], OTHERWISE)]

_PID, _HASHING, _WAITING, _FIRST_LOGIN = range(4)
_WIDTH = len(BUCKETS) + 2  # of one histogram: its buckets, the overflow, and the sum of seconds


class SharedCounters:
    """The counters of all processes. It has to be made before the fork, so the set of counters is fixed by then."""

    def __init__(self, table: Sequence[Route], processes: int) -> None:
        self.routes = [*((route.method, re.sub(r"<(\w+)>", r":\1", route.path)) for route in table), NO_ROUTE]
        # By handler, because the path of the OAuth callback is a setting.
        self.places = {(route.method, route.handler): place for place, route in enumerate(table)}
        self.first_request = _FIRST_LOGIN + len(_LOGINS)
        length = self.first_request + len(self.routes) * len(CLASSES) * _WIDTH
        self._memory = mmap.mmap(-1, processes * length * 8)
        numbers = memoryview(self._memory).cast("d")
        self.shares = [numbers[index * length : (index + 1) * length] for index in range(processes)]

    def _sum(self, at: int) -> float:
        return sum(share[at] for share in self.shares)

    @property
    def processes(self) -> list[int]:
        """The process ids; 0 for a process that has not started."""
        return [int(share[_PID]) for share in self.shares]

    @property
    def hashing(self) -> int:
        """bcrypt slots in use, as of each process' last tick."""
        return int(self._sum(_HASHING))

    @property
    def waiting(self) -> int:
        """Requests that wait for a bcrypt slot."""
        return int(self._sum(_WAITING))

    def logins(self) -> Iterator[tuple[str, str, int]]:
        for number, (method, outcome) in enumerate(_LOGINS):
            yield method, outcome, int(self._sum(_FIRST_LOGIN + number))

    def requests(self) -> Iterator[tuple[str, str, str, list[int], float]]:
        """Method, route and class of status of the requests so far; how many fell into each bucket; their seconds."""
        for place, (method, route) in enumerate(self.routes):
            for number, status in enumerate(CLASSES):
                at = self.first_request + (place * len(CLASSES) + number) * _WIDTH
                counts = [int(self._sum(bucket)) for bucket in range(at, at + _WIDTH - 1)]
                if any(counts):
                    yield method, route, status, counts, self._sum(at + _WIDTH - 1)


class Counters:
    """The counters of one process. Its replacement goes on counting where a process that died ended."""

    def __init__(self, shared: SharedCounters, index: int, hasher: Hasher) -> None:
        self._shared = shared
        self._share = shared.shares[index]
        self._hasher = hasher
        self._lock = threading.Lock()
        self._share[_PID] = os.getpid()
        self.tick(0)

    def request(self, route: Route | None, status: int, seconds: float) -> None:
        shared, share = self._shared, self._share
        place = len(shared.routes) - 1
        if route is not None:
            place = shared.places.get((route.method, route.handler), place)
        at = shared.first_request + (place * len(CLASSES) + status // 100 - 1) * _WIDTH
        with self._lock:
            share[at + bisect_left(BUCKETS, seconds)] += 1
            share[at + _WIDTH - 1] += seconds

    def login(self, method: str, outcome: str) -> None:
        if (method, outcome) not in _LOGINS:
            outcome = OTHERWISE
        with self._lock:
            self._share[_FIRST_LOGIN + _LOGINS.index((method, outcome))] += 1

    def tick(self, waiting: int) -> None:
        """Notes the bcrypt slots in use. `waiting`: requests in the queue that have no thread yet."""
        self._share[_HASHING] = self._hasher.in_use
        self._share[_WAITING] = self._hasher.waiting + waiting
