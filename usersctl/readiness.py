"""Whether this process can do its work: its database, and whatever else the daemon says that it needs."""

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from usersctl.errors import Busy, OtherVersion, StoreUnusable
from usersctl.store.store import Store

FRESH = 1.0  # seconds: whoever asks more often is told the same


@dataclass
class Readiness:
    store: Store
    parts: dict[str, Callable[[], bool]] = field(default_factory=dict)  # by name: does it work?
    stopping: bool = False
    _found: tuple[float, list[str]] = (float("-inf"), ["start"])
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def failing(self) -> list[str]:
        """The names of the parts that do not work; while somebody is looking, others are told what was found before."""
        if time.monotonic() - self._found[0] >= FRESH and self._lock.acquire(blocking=False):
            try:
                self._found = time.monotonic(), list(self._look())
            finally:
                self._lock.release()
        return self._found[1]

    def _look(self) -> Iterator[str]:
        try:
            if not self.store.is_current():
                yield "schema"
            self.store.check_writable()
        except Busy:
            pass  # whoever else writes will be done with it
        except OtherVersion:
            yield "schema"
        except StoreUnusable:
            yield "database"
        for name, works in self.parts.items():
            if not works():
                yield name
