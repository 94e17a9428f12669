"""Whether this process can do its work: its database, and the parts that the daemon adds."""

import threading
import time
from collections.abc import Callable, Iterator, Mapping

from usersctl.errors import Busy, OtherVersion, StoreUnusable
from usersctl.store.store import Store

FRESH = 1.0  # seconds for which a result is given again


class Readiness:
    def __init__(self, store: Store, parts: Callable[[], Mapping[str, bool]]) -> None:
        self.store = store
        self.parts = parts  # which of the daemon's parts work, by name
        self.stopping = False
        self._result = (float("-inf"), ["start"])
        self._lock = threading.Lock()

    def failing(self) -> list[str]:
        """The names of the parts that do not work. One thread looks at a time; the others get the previous result."""
        if time.monotonic() - self._result[0] >= FRESH and self._lock.acquire(blocking=False):
            try:
                self._result = time.monotonic(), list(self._failing_now())
            finally:
                self._lock.release()
        return self._result[1]

    def _failing_now(self) -> Iterator[str]:
        try:
            if not self.store.is_current():
                yield "schema"
            self.store.check_writable()
        except Busy:
            pass  # another writer is at work, so the database can be written
        except OtherVersion:
            yield "schema"
        except StoreUnusable:
            yield "database"
        yield from (name for name, works in self.parts().items() if not works)
