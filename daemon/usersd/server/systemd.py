"""What systemd is told: that the service is ready, that it stops, and as long as it answers that it is alive."""

import contextlib
import http.client
import os
import socket
import threading
from collections.abc import Callable, Mapping
from typing import NamedTuple


class Notify(NamedTuple):
    """sd_notify by hand: lines in one datagram to the socket that systemd names. Nothing where it names none."""

    address: str = ""
    every: float | None = None  # seconds between two signs of life: half of what systemd waits for one

    @classmethod
    def from_environment(cls, environ: Mapping[str, str]) -> "Notify":
        usec = environ.get("WATCHDOG_USEC", "")
        is_for_us = environ.get("WATCHDOG_PID", "") in ("", str(os.getpid()))
        every = int(usec) / 2_000_000 if usec.isdecimal() and int(usec) and is_for_us else None
        return cls(environ.get("NOTIFY_SOCKET", ""), every)

    def say(self, *lines: str) -> None:
        if not self.address:
            return
        # An abstract socket, which has no file, is written with an @.
        address = "\0" + self.address[1:] if self.address.startswith("@") else self.address
        # A service that systemd does not hear goes on serving.
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as teller:
            teller.settimeout(1)
            teller.sendto("\n".join(lines).encode(), address)

    def ready(self, status: str) -> None:
        self.say("READY=1", f"STATUS={status}")

    def stopping(self) -> None:
        self.say("STOPPING=1", "STATUS=answering what has come")

    def alive(self) -> None:
        self.say("WATCHDOG=1")


class Pulse:
    """Asks this process a question as every client does, through the same loop, threads and application, and tells
    `beat` of each answer. Who is stuck anywhere on that way has no pulse."""

    def __init__(self, end: socket.socket, every: float, beat: Callable[[], None]) -> None:
        self._connection = http.client.HTTPConnection("localhost")
        self._connection.sock, self._connection.auto_open = end, 0
        self._every = every
        self._beat = beat
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._work, name="pulse", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._stop.set()
        self._connection.close()

    def _work(self) -> None:
        with contextlib.suppress(OSError, http.client.HTTPException):  # the server stops
            while not self._stop.is_set():
                self._connection.request("GET", "/health")
                answer = self._connection.getresponse()
                answer.read()
                if answer.status < 500:
                    self._beat()
                self._stop.wait(self._every)
