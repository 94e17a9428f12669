"""Messages to systemd: the service needs time to start, is ready, is stopping, and is alive for as long as it answers
requests."""

import contextlib
import http.client
import os
import re
import socket
import threading
from collections.abc import Callable, Iterator, Mapping

from usersctl.named import NamedTuple

MORE_TIME = 30  # seconds that one message asks for


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

    @contextlib.contextmanager
    def starting(self, every: float = MORE_TIME / 3) -> Iterator[None]:
        """Asks for more time meanwhile: systemd would end a start that takes longer than 90 seconds, as the upgrade of a
        large database does, and begin it again and again."""
        if not self.address:
            yield
            return
        done = threading.Event()

        def ask() -> None:
            while not done.wait(every):
                self.send(f"EXTEND_TIMEOUT_USEC={MORE_TIME}000000", "STATUS=preparing the database")

        asking = threading.Thread(target=ask, name="starting", daemon=True)
        asking.start()
        try:
            yield
        finally:
            done.set()
            asking.join()  # processes are forked next

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
