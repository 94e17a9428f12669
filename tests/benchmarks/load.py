"""Asks a server on this machine as fast as it answers: a program of its own, so that nothing of it runs in who measures.

Each line on standard input is one order as JSON, each line on standard output what came of it. A request costs it some
ten microseconds, so it is no bottleneck.
"""

import heapq
import json
import random
import select
import socket
import sys
import time
from typing import Any

TIME_LIMIT = 30.0
LATER = 1.0  # seconds until a connection that got a 503 tries again


class Connection:
    def __init__(self, port: int, requests: list[bytes]) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), TIME_LIMIT)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.requests = requests
        self.began = 0.0

    def ask(self) -> None:
        self.began = time.perf_counter()
        self.socket.sendall(random.choice(self.requests))

    def hear(self) -> int:
        """Reads the whole answer and returns its status."""
        got = self._more()
        while b"\r\n\r\n" not in got:
            got += self._more()
        head, _, body = got.partition(b"\r\n\r\n")
        missing = int(head.partition(b"\r\nContent-Length: ")[2].partition(b"\r\n")[0]) - len(body)
        while missing > 0:
            missing -= len(self._more())
        return int(head[9:12])

    def _more(self) -> bytes:
        more = self.socket.recv(65536)
        if not more:
            raise ConnectionError("the server closed the connection")
        return more


class Crowd:
    """Connections that each send a random request as soon as the last one is answered."""

    def __init__(self, port: int, requests: list[str], connections: int, seconds: float) -> None:
        encoded = [request.encode() for request in requests]
        self.members = [Connection(port, encoded) for _ in range(connections)]
        self.by_number = {one.socket.fileno(): one for one in self.members}
        self.poll = select.epoll()
        for number in self.by_number:
            self.poll.register(number, select.EPOLLIN)
        self.seconds = seconds
        self.took: list[float] = []
        self.others: dict[int, int] = {}
        self.waiting: set[int] = set()  # connections that wait for an answer
        self.later: list[tuple[float, int]] = []  # when a connection tries again

    def run(self, warm_up: int) -> float:
        """The seconds from the first request to the last answer."""
        for one in self.members * warm_up:
            one.ask()
            one.hear()
        began = last = time.perf_counter()
        self.until = began + self.seconds
        for number in self.by_number:
            self._ask(number)
        while self.waiting or self.later:
            patience = max(0.0, self.later[0][0] - time.perf_counter()) if self.later else TIME_LIMIT
            ready = self.poll.poll(patience)
            if not ready and not self.later:
                raise TimeoutError("no answer")
            for number, _ in ready:
                self._hear(number)
                last = time.perf_counter()
            while self.later and self.later[0][0] <= time.perf_counter():
                self._ask(heapq.heappop(self.later)[1])
        for one in self.members:
            one.socket.close()
        return last - began

    def _ask(self, number: int) -> None:
        if time.perf_counter() < self.until:
            self.by_number[number].ask()
            self.waiting.add(number)

    def _hear(self, number: int) -> None:
        one = self.by_number[number]
        status = one.hear()
        now = time.perf_counter()
        self.waiting.discard(number)
        if status == 200:
            self.took.append(now - one.began)
        else:
            self.others[status] = self.others.get(status, 0) + 1
        if status == 503:
            heapq.heappush(self.later, (now + LATER, number))
        else:
            self._ask(number)


def ask(
    port: int, requests: list[str], connections: int, seconds: float, *, warm_up: int = 5
) -> dict[str, Any]:
    """The first `warm_up` requests on each connection do not count."""
    crowd = Crowd(port, requests, connections, seconds)
    lasted = crowd.run(warm_up)
    took = sorted(crowd.took) or [lasted]
    return {
        "rate": len(crowd.took) / lasted,
        "others": crowd.others,
        "median": took[len(took) // 2],
        "p99": took[len(took) * 99 // 100],
        "longest": took[-1],
    }


def main() -> None:
    for line in sys.stdin:
        print(json.dumps(ask(**json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
