"""Threads in lanes, so that who needs long does not keep those waiting who are quickly done."""

import contextlib
import logging
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from enum import Enum
from queue import Empty, SimpleQueue
from typing import Any

log = logging.getLogger("usersd")

WRITING_THREADS = 4  # one writes, and the others have read the next requests by then
AWAY_THREADS = 32  # and no waiting room: who waited there for others to be given up would wait too long


NONBLOCKING = "usersd.nonblocking"  # in the environ: the main thread asks, and waits for nothing; raise MustWait if you must


class Lane(Enum):
    HERE = "here"  # reads a row: the main thread answers it, as a hand-over would cost as much as the answer
    QUICK = "quick"
    WRITING = "writing"  # waits its turn, for seconds where another process holds the database
    HASHING = "hashing"  # needs bcrypt: as many threads as cores, and of a lower priority
    AWAY = "away"  # waits for a server that is not ours: the identity provider


class Lanes:
    """Takes the place of waitress' dispatcher: a channel goes into the lane of its first request.

    Who finds a waiting room full is told so at the watchdog's next look: whoever asks again at once would cost more
    than a login.
    """

    def __init__(
        self, lane_of: Callable[[str, str], Lane], *, threads: int, slow_threads: int, waiting_room: int
    ) -> None:
        self._lane_of = lane_of
        self._queues: dict[Lane, SimpleQueue[Any]] = {lane: SimpleQueue() for lane in Lane}
        self._rooms = {
            Lane.HASHING: threading.BoundedSemaphore(slow_threads + waiting_room),
            Lane.AWAY: threading.BoundedSemaphore(AWAY_THREADS),
        }
        self._turned_away: deque[Any] = deque()
        counts = {
            Lane.QUICK: threads,
            Lane.WRITING: WRITING_THREADS,
            Lane.HASHING: slow_threads,
            Lane.AWAY: AWAY_THREADS,
        }
        self._threads = [(lane, self._start(lane, n)) for lane, count in counts.items() for n in range(count)]

    def _start(self, lane: Lane, number: int) -> threading.Thread:
        thread = threading.Thread(target=self._work, args=[lane], name=f"{lane.value}-{number}", daemon=True)
        thread.start()
        return thread

    def add_task(self, channel: Any) -> None:
        request = channel.requests[0]
        lane = Lane.QUICK if request.error else self._lane_of(request.command, _routed(request.path))
        room = self._rooms.get(lane)
        if room is None or room.acquire(blocking=False):
            self._queues[lane].put(channel)
        else:
            request.error = TurnedAway()
            self._turned_away.append(channel)

    def answer_here(self) -> None:
        """In the main thread, which waits for nothing: what turns out to have to goes to a thread after all."""
        waiting = self._queues[Lane.HERE]
        while not waiting.empty():
            channel = waiting.get()
            try:
                _answer(channel, nonblocking=True)
            except MustWait:
                self._queues[Lane.QUICK].put(channel)

    @property
    def waiting_to_hash(self) -> int:
        return self._queues[Lane.HASHING].qsize()

    def turn_away(self) -> None:
        while self._turned_away:
            self._queues[Lane.QUICK].put(self._turned_away.popleft())

    def turn_away_who_waits(self) -> None:
        """The daemon stops, and there is no time left to begin with what needs long."""
        for lane, room in self._rooms.items():
            with contextlib.suppress(Empty):
                while True:
                    channel = self._queues[lane].get_nowait()
                    channel.requests[0].error = TurnedAway()
                    room.release()
                    self._turned_away.append(channel)
        self.turn_away()

    def _work(self, lane: Lane) -> None:
        # MustWait a priority belongs to the whole process.
        if lane is Lane.HASHING and sys.platform == "linux":
            with contextlib.suppress(OSError):
                me = threading.get_native_id()
                os.setpriority(os.PRIO_PROCESS, me, min(19, os.getpriority(os.PRIO_PROCESS, me) + 10))
        queue, room = self._queues[lane], self._rooms.get(lane)
        while (channel := queue.get()) is not None:
            try:
                _answer(channel)
            finally:
                if room is not None:
                    room.release()

    def stop(self, timeout: float) -> bool:
        """Whether all threads ended."""
        for lane, _ in self._threads:
            self._queues[lane].put(None)
        deadline = time.monotonic() + timeout
        for _, thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        return not any(thread.is_alive() for _, thread in self._threads)


class MustWait(Exception):
    """What an application raises that was called in haste and would have to wait."""


class TurnedAway:
    """Stands where waitress keeps the error of a request."""

    code = 503


def _routed(path: str) -> str:
    """The path as it will be matched: leading slashes are one, bytes that are not UTF-8 are none."""
    path = "/" + path.lstrip("/")
    return path if path.isascii() else path.encode("latin-1").decode("utf-8", "ignore")


def _answer(channel: Any, *, nonblocking: bool = False) -> None:
    try:
        channel.service(nonblocking=nonblocking)
    except MustWait:
        raise
    except BaseException:
        # A thread that ends would take a part of the service with it.
        log.exception("A connection failed")
        channel.cancel()
        channel.server.pull_trigger()
