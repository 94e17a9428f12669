"""One thread pool per kind of request, so that slow logins do not delay fast reads."""

import contextlib
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from enum import Enum
from queue import Empty, SimpleQueue
from typing import Any

from usersctl.oauth.http import SIGN_INS_AT_ONCE

WRITING_THREADS = 4  # SQLite lets one write at a time; the others parse the next requests meanwhile
# Without a queue: behind so many that wait for providers it would be too long.
AWAY_THREADS = SIGN_INS_AT_ONCE

# A key of the WSGI environ: the main thread runs the application, which raises MustWait instead of waiting.
NONBLOCKING = "usersd.nonblocking"


class Lane(Enum):
    # Reads one row: answered in the main thread, because a hand-over costs as much as the answer.
    HERE = "here"
    QUICK = "quick"
    WRITING = "writing"  # waits for the database's write lock, for seconds while another process holds it
    HASHING = "hashing"  # runs bcrypt: one thread per core, at a lower priority
    AWAY = "away"  # waits for the identity provider


class Lanes:
    """Replaces waitress' task dispatcher: a channel is queued in the lane of its first request. The threads of a lane start
    with its first channel, so that a daemon without providers, for example, has none that wait for them.

    When a queue is full the 503 is sent by the next watchdog tick (at most 0.5 s later), because a client that retries
    at once costs more than a login.
    """

    def __init__(
        self,
        lane_of: Callable[[str, str], Lane],
        *,
        threads: int,
        slow_threads: int,
        waiting_room: int,
        away_threads: int = AWAY_THREADS,
        together: Callable[[], contextlib.AbstractContextManager[object]] = contextlib.nullcontext,
    ) -> None:
        self._lane_of = lane_of
        self._together = together
        self._here: deque[Any] = deque()
        self._unstarted = {
            Lane.QUICK: threads,
            Lane.WRITING: WRITING_THREADS,
            Lane.HASHING: slow_threads,
            Lane.AWAY: away_threads,
        }
        self._queues: dict[Lane, SimpleQueue[Any]] = {lane: SimpleQueue() for lane in self._unstarted}
        self._capacity = {
            Lane.HASHING: threading.BoundedSemaphore(slow_threads + waiting_room),
            Lane.AWAY: threading.BoundedSemaphore(away_threads),
        }
        self._rejected: deque[Any] = deque()
        self._starting = threading.Lock()
        self._threads: list[tuple[Lane, threading.Thread]] = []

    def _put(self, lane: Lane, channel: Any) -> None:
        self._queues[lane].put(channel)
        if self._unstarted[lane]:
            self._start(lane)
            if all(started is not lane for started, _ in self._threads):
                import logging  # late, as in _answer

                logging.getLogger("usersd").warning(
                    "A request waits: the system allows no more threads for now"
                )

    def _start(self, lane: Lane) -> None:
        # Where the system allows no more threads now, the next channel tries again, and so does the next tick.
        with self._starting, contextlib.suppress(RuntimeError):
            while self._unstarted[lane]:
                name = f"{lane.value}-{self._unstarted[lane]}"
                thread = threading.Thread(target=self._work, args=[lane], name=name, daemon=True)
                thread.start()
                self._threads.append((lane, thread))
                self._unstarted[lane] -= 1

    def start_again(self) -> None:
        """Starts the threads that could not be started and that requests wait for."""
        for lane, queue in self._queues.items():
            if self._unstarted[lane] and not queue.empty():
                self._start(lane)

    def add_task(self, channel: Any) -> None:
        request = channel.requests[0]
        lane = Lane.QUICK if request.error else self._lane_of(request.command, _routed(request.path))
        if lane is Lane.HERE:
            self._here.append(channel)
            return
        capacity = self._capacity.get(lane)
        if capacity is None or capacity.acquire(blocking=False):
            self._put(lane, channel)
        else:
            request.error = Rejected()
            self._rejected.append(channel)

    def answer_here(self) -> None:
        """Runs the requests of Lane.HERE in the main thread; one that would wait moves to a thread."""
        while count := len(self._here):
            # Not those that threads add meanwhile: they may have answered a change that came before on the same connection.
            with self._together() if count > 1 else contextlib.nullcontext():
                for _ in range(count):
                    self._answer_or_hand_over(self._here.popleft())

    def _answer_or_hand_over(self, channel: Any) -> None:
        try:
            _answer(channel, nonblocking=True)
        except MustWait:
            self._put(Lane.QUICK, channel)

    @property
    def waiting_to_hash(self) -> int:
        return self._queues[Lane.HASHING].qsize()

    def answer_rejected(self) -> None:
        while self._rejected:
            self._put(Lane.QUICK, self._rejected.popleft())

    def reject_waiting(self) -> None:
        """Answers 503 to requests in the bounded queues: the daemon stops and has no time left to begin them."""
        for lane, capacity in self._capacity.items():
            with contextlib.suppress(Empty):
                while True:
                    channel = self._queues[lane].get_nowait()
                    channel.requests[0].error = Rejected()
                    capacity.release()
                    self._rejected.append(channel)
        self.answer_rejected()

    def _work(self, lane: Lane) -> None:
        # Only Linux has a priority per thread; elsewhere it would be the whole process's.
        if lane is Lane.HASHING and sys.platform == "linux":
            with contextlib.suppress(OSError):
                me = threading.get_native_id()
                os.setpriority(os.PRIO_PROCESS, me, min(19, os.getpriority(os.PRIO_PROCESS, me) + 10))
        queue, capacity = self._queues[lane], self._capacity.get(lane)
        while (channel := queue.get()) is not None:
            try:
                _answer(channel)
            finally:
                if capacity is not None:
                    capacity.release()

    def stop(self, timeout: float) -> bool:
        """Returns whether all threads ended."""
        for lane, _ in self._threads:
            self._queues[lane].put(None)
        deadline = time.monotonic() + timeout
        for _, thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        return not any(thread.is_alive() for _, thread in self._threads)


class MustWait(Exception):
    """Raised by an application that runs nonblocking and would have to wait."""


class Rejected:
    """The error of a request that is answered 503 without being run, where waitress keeps a parse error."""

    code = 503


def _routed(path: str) -> str:
    """The path as the application will match it: decoded, with one leading slash. A path that is not UTF-8 has no route, so any
    lane will do for it."""
    path = "/" + path.lstrip("/")
    return path if path.isascii() else path.encode("latin-1").decode("utf-8", "ignore")


def _answer(channel: Any, *, nonblocking: bool = False) -> None:
    try:
        channel.service(nonblocking=nonblocking)
    except MustWait:
        raise
    except BaseException:
        import logging  # late, because `usersctl openapi` imports this module and runs no thread

        # The thread must survive: the pool does not replace it.
        logging.getLogger("usersd").exception("A connection failed")
        channel.cancel()
        channel.server.pull_trigger()
