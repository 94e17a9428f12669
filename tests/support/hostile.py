"""An identity provider that sends any bytes a test wants, and records what it receives."""

import gzip
import json
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache
from typing import Any, NamedTuple
from urllib.parse import parse_qsl

DISCOVERY = "/.well-known/openid-configuration"


class Asked(NamedTuple):
    method: str
    path: str
    headers: dict[str, str]  # names in lower case
    body: bytes

    @property
    def form(self) -> dict[str, str]:
        return dict(parse_qsl(self.body.decode(), keep_blank_values=True, strict_parsing=True))


def answer(value: Any = b"", *headers: str, status: str = "200 OK", length: int | None = None) -> bytes:
    """`value` is sent as JSON, unless it is bytes."""
    body = value if isinstance(value, bytes) else json.dumps(value).encode()
    length = len(body) if length is None else length
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {length}", "Content-Type: application/json", *headers]
    return "\r\n".join([*lines, "Connection: close", "", ""]).encode() + body


@cache
def bomb(megabytes: int = 100) -> bytes:
    """A small body that decompresses to a large one."""
    return gzip.compress(b'"' + b"a" * megabytes * 1024 * 1024 + b'"', 1)


class Hostile:
    def __init__(self, *, host: str = "127.0.0.1", tls: ssl.SSLContext | None = None) -> None:
        self.tls = tls
        self.host = host
        self.greeting: Callable[[socket.socket, Hostile], None] | None = (
            None  # replaces the whole conversation
        )
        self.arrived: list[Asked] = []
        self.sent = 0
        self.closing = threading.Event()
        self._open: set[socket.socket] = set()
        self._threads: list[threading.Thread] = []
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=100)
        self._listener.settimeout(0.02)  # here, because a test may close it before the thread has started
        self.port: int = self._listener.getsockname()[1]
        self.discovery: dict[str, Any] = {
            "issuer": self.url,
            "authorization_endpoint": f"{self.url}/authorize",
            "token_endpoint": f"{self.url}/token",
            "userinfo_endpoint": f"{self.url}/userinfo",
        }
        self.token: dict[str, Any] = {"access_token": "an-access-token", "token_type": "Bearer"}
        self.profile: dict[str, Any] = {
            "sub": "1001",
            "email": "ada@example.com",
            "email_verified": True,
            "name": "Ada Lovelace",
        }
        self.answers: dict[str, bytes | Callable[[socket.socket, Hostile], None]] = {}
        self._start(self._accept)

    @property
    def url(self) -> str:
        return f"{'https' if self.tls else 'http'}://{self.host}:{self.port}"

    def asked(self, path: str) -> list[Asked]:
        return [request for request in self.arrived if request.path == path]

    def holds(self, text: str) -> bool:
        """True if any request contained this text."""
        return any(
            text in request.path + request.body.decode("latin-1") + repr(request.headers)
            for request in self.arrived
        )

    def close(self) -> None:
        self.closing.set()
        self._listener.close()
        for connection in list(self._open):
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(5)
            assert not thread.is_alive()

    def _start(self, work: Callable[..., None], *arguments: Any) -> None:
        thread = threading.Thread(target=work, args=arguments, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while not self.closing.is_set():
            with suppress(TimeoutError, OSError):
                connection, _ = self._listener.accept()
                connection.settimeout(20)
                self._open.add(connection)
                self._start(self._serve, connection)

    def _serve(self, connection: socket.socket) -> None:
        with suppress(OSError):
            if self.greeting is not None:
                self.greeting(connection, self)
            elif self.tls is not None:
                with self.tls.wrap_socket(connection, server_side=True) as secured:
                    self._converse(secured)
            else:
                self._converse(connection)
        self._open.discard(connection)
        connection.close()

    def _converse(self, connection: socket.socket) -> None:
        head = b""
        while b"\r\n\r\n" not in head:
            some = connection.recv(65536)
            if not some:
                return
            head += some
        head, _, body = head.partition(b"\r\n\r\n")
        first, *lines = head.decode("latin-1").split("\r\n")
        headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
        while len(body) < int(headers.get("content-length", 0)):
            body += connection.recv(65536)
        method, path, _ = first.split(" ")
        self.arrived.append(Asked(method, path, headers, body))
        key = path if path in self.answers else path.partition("?")[0]
        reply = self.answers[key] if key in self.answers else self._usual(path)
        if callable(reply):
            reply(connection, self)
        else:
            self.send(connection, reply)

    def send(self, connection: socket.socket, data: bytes) -> None:
        for start in range(0, len(data), 65536):
            connection.sendall(data[start : start + 65536])
            self.sent += len(data[start : start + 65536])

    def _usual(self, path: str) -> bytes:
        known = {DISCOVERY: self.discovery, "/token": self.token, "/userinfo": self.profile}
        return answer(known[path]) if path in known else answer({}, status="404 Not Found")


def dripped(
    data: bytes, at_once: bytes = b"", *, every: float = 0.5
) -> Callable[[socket.socket, Hostile], None]:
    """Sends one byte every half second, so that no time limit of a socket is reached."""

    def drip(connection: socket.socket, server: Hostile) -> None:
        server.send(connection, at_once)
        for at in range(len(data)):
            server.send(connection, data[at : at + 1])
            if server.closing.wait(every):
                return

    return drip


def silent(_connection: socket.socket, server: Hostile) -> None:
    server.closing.wait(20)


def endless(head: bytes, more: bytes) -> Callable[[socket.socket, Hostile], None]:
    def send(connection: socket.socket, server: Hostile) -> None:
        server.send(connection, head)
        while not server.closing.is_set() and server.sent < 200 * 1024 * 1024:
            server.send(connection, more)

    return send


@contextmanager
def hostile(**keywords: Any) -> Iterator[Hostile]:
    server = Hostile(**keywords)
    try:
        yield server
    finally:
        server.close()


@dataclass
class Waiting:
    """Calls that run in parallel, with the result and the seconds of each."""

    results: list[tuple[float, Any]] = field(default_factory=list)
    threads: list[threading.Thread] = field(default_factory=list)

    def join(self, seconds: float) -> None:
        for thread in self.threads:
            thread.join(seconds)
            assert not thread.is_alive()
