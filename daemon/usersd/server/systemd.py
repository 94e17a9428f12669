"""Messages to systemd: the service is ready, is stopping, and is alive for as long as it answers requests."""

import contextlib
import http.client
import os
import re
import socket
import threading
from collections.abc import Callable, Mapping

from usersctl.named import NamedTuple


class Notifier(NamedTuple):
    """The sd_notify protocol: lines in one datagram to NOTIFY_SOCKET. Sends nothing where systemd names no socket."""

    address: str = ""
    every: float | None = None  # seconds between two messages to the watchdog: half of its time limit

    @classmethod
    def from_environment(cls, environ: Mapping[str, str]) -> "Notifier":
        usec = environ.get("WATCHDOG_USEC", "")
        is_for_us = environ.get("WATCHDOG_PID", "") in ("", str(os.getpid()))
        every = int(usec) / 2_000_000 if usec.isdecimal() and int(usec) and is_for_us else None
        return cls(environ.get("NOTIFY_SOCKET", ""), every)

    def send(self, *lines: str) -> None:
        if not self.address:
            return
        # systemd writes an abstract socket, which has no file, with a leading @.
        address = re.sub("^@", "\0", self.address)
        # The service goes on when systemd does not receive the message.
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.settimeout(1)
            sender.sendto("\n".join(lines).encode(), address)

    def ready(self, status: str) -> None:
        self.send("READY=1", f"STATUS={status}")

    def stopping(self) -> None:
        self.send("STOPPING=1", "STATUS=answering pending requests")

    def alive(self) -> None:
        self.send("WATCHDOG=1")


class SelfCheck(threading.Thread):
    """Requests /health from this process as a client would, through the same loop, threads and application, and calls
    `on_success` after each answer. A process that is stuck anywhere on that way stops calling it."""

    def __init__(self, connection: socket.socket, every: float, on_success: Callable[[], None]) -> None:
        super().__init__(name="self-check", daemon=True)
        self._connection = http.client.HTTPConnection("localhost")
        self._connection.sock, self._connection.auto_open = connection, 0
        self._every = every
        self._on_success = on_success
        self._stopping = threading.Event()
        self.start()

    def close(self) -> None:
        self._stopping.set()
        self._connection.close()

    def run(self) -> None:
        with contextlib.suppress(OSError, http.client.HTTPException):  # the server stops
            while not self._stopping.is_set():
                self._connection.request("GET", "/health")
                answer = self._connection.getresponse()
                answer.read()
                if answer.status < 500:
                    self._on_success()
                self._stopping.wait(self._every)
