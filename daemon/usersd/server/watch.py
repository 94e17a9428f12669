"""The descriptors of one process that the main thread waits for, and what it waits for on each."""

import select
from collections.abc import Iterable
from typing import Any

READ, WRITE = select.POLLIN, select.POLLOUT


class Watched(dict[int, Any]):
    """waitress' map of channels by descriptor. waitress asks all channels in each round what they wait for. Here the kernel
    keeps that, and only channels that something happened to are asked again."""

    def __init__(self) -> None:
        self._poll = select.poll()
        # By descriptor, what the kernel reports. A channel that waits for a thread is not among them.
        self._events: dict[int, int] = {}

    def __delitem__(self, number: int) -> None:
        super().__delitem__(number)
        # Before the descriptor is closed: the next file that is opened gets its number.
        self._set(number, 0)

    def watch(self, numbers: Iterable[int]) -> None:
        """Asks these channels what they wait for now."""
        for number in numbers:
            channel = self.get(number)
            if channel is not None:
                events = READ * bool(channel.readable()) | WRITE * bool(channel.writable())
                self._set(number, events)

    def _set(self, number: int, events: int) -> None:
        if events == self._events.get(number, 0):
            return
        if events:
            self._poll.register(number, events)
            self._events[number] = events
        else:
            # Registered for no event, it would still be reported when its client has gone.
            self._poll.unregister(number)
            del self._events[number]

    def wait(self, seconds: float) -> list[tuple[int, Any, int]]:
        """The channels that are ready, with their descriptors and what they are ready for."""
        return [(number, self.get(number), events) for number, events in self._poll.poll(int(seconds * 1000))]
