"""Free ports for the servers of tests and benchmarks."""

import os
import secrets
import socket
from contextlib import suppress

# Below the range of outgoing connections, which could take a port before the server does.
_FIRST, _END = 10_000, 32_000
_given: set[int] = set()


def free_port() -> int:
    """A port that nobody else gets: each worker of the tests has its own share, and no port is given twice. A server that
    takes a second to start, or that starts again, would find another one there, and answer its questions."""
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    share = (_END - _FIRST) // int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    for _ in range(1_000):
        port = _FIRST + worker * share + secrets.randbelow(share)
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            if port not in _given:
                _given.add(port)
                return port
    raise AssertionError("there is no free port")
