"""A port for a server of a test, or of a measure."""

import secrets
import socket
from contextlib import suppress


def free_port() -> int:
    """Below those that the system gives to outgoing connections, which could take it before its daemon does. Which one
    is chance, so that two workers hardly ever choose the same."""
    for _ in range(100):
        port = 10_000 + secrets.randbelow(20_000)
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port
    raise AssertionError("there is no free port")
