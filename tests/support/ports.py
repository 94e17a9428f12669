"""Free ports for the servers of tests and benchmarks."""

import secrets
import socket
from contextlib import suppress


def free_port() -> int:
    """A random port below the range of outgoing connections, which could take it before the server does. Random, so
    that two workers rarely choose the same one."""
    for _ in range(100):
        port = 10_000 + secrets.randbelow(20_000)
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port
    raise AssertionError("there is no free port")
