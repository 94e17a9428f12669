"""One request to a receiver: to an address that was checked, within a time, and with a bounded look at the answer."""

import re
import socket
import time
from collections.abc import Mapping
from contextlib import closing
from urllib.parse import SplitResult, urlsplit

from usersctl.config.values import bracketed, host_and_port
from usersctl.deadline import within
from usersctl.named import NamedTuple
from usersctl.text import network_words
from usersctl.webhooks import reach
from usersctl.webhooks.errors import NotDelivered

WHOLE = 15.0  # seconds, from the look-up of the name to the answer
CONNECTING = 5.0  # to one of several addresses; the last one has all that is left
MOST_READ = 4096  # bytes of the answer

_STATUS = re.compile(rb"HTTP/1\.[01] ([1-9][0-9][0-9])(?: [^\r\n]*)?\r?\n")
_END_OF_HEAD = re.compile(rb"\r?\n\r?\n")
_RETRY_AFTER = re.compile(rb"^retry-after:[ \t]*([ -~]{1,64}?)[ \t]*\r?$", re.IGNORECASE | re.MULTILINE)


class Answer(NamedTuple):
    status: int
    retry_after: str | None = None

    @property
    def is_success(self) -> bool:
        return 200 <= self.status < 300

    @property
    def refusal(self) -> str:
        return f"the receiver answered {self.status}"


class _Deadline:
    def __init__(self, seconds: float) -> None:
        self._until = time.monotonic() + seconds

    @property
    def left(self) -> float:
        left = self._until - time.monotonic()
        if left <= 0:
            raise TimeoutError
        return left


def post(
    url: str, body: bytes, headers: Mapping[str, str], *, allow_private: bool, whole: float = WHOLE
) -> Answer:
    """Follows no redirect, and uses no proxy. Raises NotDelivered without an answer in HTTP."""
    deadline, parts = _Deadline(whole), urlsplit(url)
    try:
        with closing(_connected(parts, deadline, allow_private=allow_private)) as connection:
            connection.settimeout(deadline.left)
            connection.sendall(_head(parts, headers, len(body)) + body)
            return _answer(connection, deadline)
    except TimeoutError:
        raise NotDelivered(f"no answer within {whole:g} s") from None
    except OSError as error:
        raise NotDelivered(f"the connection failed: {network_words(error) or type(error).__name__}") from None


def _connected(parts: SplitResult, deadline: _Deadline, *, allow_private: bool) -> socket.socket:
    host, port = parts.hostname or "", parts.port or {"http": 80, "https": 443}[parts.scheme]
    addresses = within(deadline.left, lambda: reach.resolve(host, port))
    if not allow_private:
        reach.refuse_private(addresses)
    connection = _first_of(addresses, port, deadline)
    if parts.scheme == "http":
        return connection
    import ssl

    try:
        connection.settimeout(deadline.left)
        return ssl.create_default_context().wrap_socket(connection, server_hostname=host)
    except BaseException:
        connection.close()
        raise


def _first_of(addresses: list[str], port: int, deadline: _Deadline) -> socket.socket:
    """Connects to an address, never to the name: that could resolve to another one by now."""
    problem: OSError = OSError("no address")
    for address in addresses:
        try:
            seconds = deadline.left if address == addresses[-1] else min(CONNECTING, deadline.left)
            return socket.create_connection((address, port), seconds)
        except OSError as error:
            problem = error
    raise problem


def _head(parts: SplitResult, headers: Mapping[str, str], length: int) -> bytes:
    host = bracketed(parts.hostname or "")
    if parts.port is not None:
        host = host_and_port(parts.hostname or "", parts.port)
    target = parts.path or "/"
    if parts.query:
        target += f"?{parts.query}"
    fixed = {
        "Host": host,
        "User-Agent": "usersctl",
        "Content-Type": "application/json",
        "Content-Length": str(length),
        "Connection": "close",
    }
    lines = [
        f"POST {target} HTTP/1.1",
        *(f"{name}: {value}" for name, value in (fixed | {**headers}).items()),
    ]
    return "\r\n".join([*lines, "", ""]).encode("ascii")


def _answer(connection: socket.socket, deadline: _Deadline) -> Answer:
    """Of an answer whose head is too long or comes too late, the status counts."""
    read, received = b"", 0
    try:
        while not _END_OF_HEAD.search(read) and received < MOST_READ:
            connection.settimeout(deadline.left)
            chunk = connection.recv(MOST_READ - received)
            if not chunk:
                break
            received += len(chunk)
            read = _without_interim(read + chunk)
    except OSError:
        if _STATUS.match(read) is None:
            raise
    return _read(read)


def _without_interim(read: bytes) -> bytes:
    """Without answers such as 100 Continue, which come before the final one."""
    status, end = _STATUS.match(read), _END_OF_HEAD.search(read)
    if status is not None and end is not None and status[1].startswith(b"1"):
        return _without_interim(read[end.end() :])
    return read


def _read(read: bytes) -> Answer:
    status = _STATUS.match(read)
    if status is None:
        raise NotDelivered("the answer is no HTTP")
    head = _END_OF_HEAD.split(read)[0]
    retry_after = _RETRY_AFTER.search(head)
    return Answer(int(status[1]), retry_after and retry_after[1].decode("ascii"))
