"""HTTP messages: a strict request parser, and answers that are sent in one piece."""

import contextlib
import logging
import re
from functools import lru_cache
from itertools import chain
from typing import Any

from waitress.channel import ClientDisconnected
from waitress.parser import HTTPRequestParser, ParsingError, TransferEncodingNotImplemented
from waitress.task import WSGITask
from waitress.utilities import RequestEntityTooLarge, build_http_date

from usersd.response import STATUS_LINES, Response
from usersd.server.lanes import NONBLOCKING, MustWait

log = logging.getLogger("usersd")

MESSAGES = {
    400: "Malformed request",
    413: "Request body is too large",
    431: "Request headers are too large",
    500: "Internal server error",
    503: "Too many logins at once, please try again",
}
_WITHOUT_HTTP = frozenset({"CONTENT_LENGTH", "CONTENT_TYPE"})  # all other variables are HTTP_...
MAX_FRAMING = 512 * 1024  # bytes around the chunks of a body: room for the largest one in chunks of one byte
HEADERS_PARSED = (413, 503)  # refused after the headers were parsed, so the application sees method and path

# The head of a plain request: without escapes in its path, odd characters, or a body. A part that fits takes nothing back
# (++ and *+), so that refusing costs no more than reading.
_PLAIN = re.compile(
    r"([A-Z]++) ((/(?!/)[a-zA-Z0-9./_:@~-]*+)(?:\?([!\"$-~]*+))?) HTTP/1\.1\r\n"
    r"((?:[a-zA-Z0-9-]{1,64}+: [ -~]*+\r\n)++)\r\n"
)
_OF_A_BODY = ("CONTENT_LENGTH", "TRANSFER_ENCODING", "EXPECT")

# waitress accepts absolute and asterisk forms, control characters and any version.
_REQUEST_LINE = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Z-]+ /[!\"$-~]* HTTP/1\.[01]\r\n")
_TRANSFER_ENCODING = re.compile(rb"^transfer-encoding:(.*)$", re.IGNORECASE | re.MULTILINE)
# The blanks before a value, which mean nothing: over thousands of them waitress' expression takes a second and more.
_BLANKS = re.compile(rb"^([!-9;-~]++:)[ \t]++", re.MULTILINE)


class Parser(HTTPRequestParser):  # type: ignore[misc]  # waitress has no types
    """Reads a plain request by itself, and leaves all others to waitress, which is stricter here than by itself."""

    def received(self, data: bytes) -> int:
        if self.body_rcv is None and not self.header_plus:
            head = _PLAIN.match(data.decode("latin-1"))
            if head is not None and head.end() < self.adj.max_request_header_size and self._read(head):
                return head.end()
        if self.chunked and self.body_rcv is not None and not self.completed:
            return self._receive_chunks(data)
        # waitress does not read the method of a head that it refuses, and HEAD gets no body.
        is_head = self.body_rcv is None and (self.header_plus + data[:5]).startswith(b"HEAD ")
        consumed: int = super().received(data)
        if self.error and is_head:
            self.command = "HEAD"
        return consumed

    def _receive_chunks(self, data: bytes) -> int:
        """As waitress does it, which would count what stands around the chunks as a part of the body."""
        chunks = self.body_rcv
        consumed: int = chunks.received(data)
        self.body_bytes_received += consumed
        size = len(chunks)
        if size >= self.adj.max_request_body_size or self.body_bytes_received - size > MAX_FRAMING:
            self.error = RequestEntityTooLarge("chunks")
        else:
            self.error = chunks.error
        self.completed = chunks.completed or self.error is not None
        if self.completed:
            self.headers["CONTENT_LENGTH"] = str(size)
        return consumed

    def _read(self, head: re.Match[str]) -> bool:
        """Reads a plain request as waitress would; False if it is none."""
        command, uri, path, query, fields = head.groups("")
        headers: dict[str, str] = {}
        for field in fields.splitlines():
            name, _, value = field.partition(": ")
            key = _key(name)
            if key in headers or key in _OF_A_BODY:
                return False
            headers[key] = value.strip(" ")
        if "," in headers.get("HOST", ","):
            return False
        self.command, self.request_uri, self.path, self.query = command, uri, path, query
        self.version, self.headers = "1.1", headers
        self.headers_finished = self.completed = True
        return True

    def parse_header(self, header_plus: bytes) -> None:
        try:
            if not _REQUEST_LINE.match(header_plus):
                raise ParsingError("request line")
            if b"\r\n " in header_plus or b"\r\n\t" in header_plus:
                raise ParsingError("folded header")
            header_plus = _BLANKS.sub(rb"\1", header_plus)
            super().parse_header(header_plus)
            self._check_framing(header_plus)
        except (ParsingError, ValueError, TransferEncodingNotImplemented) as error:
            # Also a Content-Length of 5,000 digits, or an unknown encoding, which waitress would answer 501.
            self.expect_continue = False
            raise ParsingError(str(error)) from None
        if self.body_rcv is None or self.content_length >= self.adj.max_request_body_size:
            # "100 Continue" would wait for a body that never comes, or that is refused.
            self.expect_continue = False

    def _check_framing(self, header_plus: bytes) -> None:
        """Refuses a request whose end or host a proxy in front could read differently (request smuggling)."""
        host = self.headers.get("HOST")
        if "," in (host or "") or (host is None and self.version == "1.1"):
            raise ParsingError("host")
        if b"transfer-encoding" in header_plus.lower():
            values = [value.strip(b" \t\r").lower() for value in _TRANSFER_ENCODING.findall(header_plus)]
            once = values == [b"chunked"]
            if values and (not once or self.version != "1.1" or "CONTENT_LENGTH" in self.headers):
                raise ParsingError("transfer encoding")


@lru_cache(maxsize=256)
def _key(name: str) -> str:
    """The name of a header as waitress keeps it."""
    return name.upper().replace("-", "_")


@lru_cache(maxsize=1)
def _date(second: int) -> str:
    return str(build_http_date(second))


class Task(WSGITask):  # type: ignore[misc]
    """One request, answered by the application or with an error; raises nothing but MustWait."""

    logger = log
    wrote_header: bool
    nonblocking = False  # runs in the main thread, which must not wait

    def service(self) -> None:
        try:
            self.start()
            if self.request.error:
                self._answer_error(self.request.error.code)
            elif self.channel.server.hosted.answer is not None:
                self._send(self.channel.server.hosted.answer(self.get_environment()))
            else:
                self.execute()
                self.finish()
        except ClientDisconnected:
            self.close_on_finish = True
        except MustWait:
            raise
        except Exception:
            # _REQUEST_LINE guarantees printable ASCII; the query is cut off because it may hold secrets.
            path = self.request.request_uri.partition("?")[0]
            log.exception("%s %s failed", self.request.command, path)
            self.close_on_finish = True
            if not self.wrote_header:
                with contextlib.suppress(ClientDisconnected):
                    self._answer_error(500)

    def _answer_error(self, status: int) -> None:
        if status not in MESSAGES:
            status = 400
        environ = None
        if status in HEADERS_PARSED:
            environ = self.get_environment()
        response = self.channel.server.hosted.on_error(status, MESSAGES[status], environ)
        if response.status == 503:
            response = response._replace(headers=(*response.headers, ("Retry-After", "2")))
        self._send(response, close=status != 503)

    def _send(self, response: Response, *, close: bool = False) -> None:
        """In one piece, because each system call releases Python's global lock."""
        self.status = STATUS_LINES[response.status]
        self.response_headers = [*response.headers, ("Content-Length", str(len(response.body)))]
        if close:
            self.set_close_on_finish()
        data = self.build_response_header()
        if getattr(self.request, "command", "") != "HEAD":  # a request that was not parsed has no command
            data += response.body
        self.wrote_header = True
        self.channel.write_soon(data)

    def get_environment(self) -> dict[str, Any]:
        """As PEP 3333 has it."""
        request, channel = self.request, self.channel
        environ = {
            **channel.server.environ,
            "REMOTE_ADDR": channel.addr[0],
            "REMOTE_PORT": str(channel.addr[1]),
            "REQUEST_METHOD": request.command,
            "SERVER_PROTOCOL": f"HTTP/{self.version}",
            "PATH_INFO": "/" + request.path.lstrip("/"),
            "REQUEST_URI": request.request_uri,
            "QUERY_STRING": request.query,
            "wsgi.input": request.get_body_stream(),
            NONBLOCKING: self.nonblocking,
        }
        for key, value in request.headers.items():
            environ[key if key in _WITHOUT_HTTP else f"HTTP_{key}"] = value
        return environ

    def build_response_header(self) -> bytes:
        """The head as waitress builds it, without its normalising and sorting of header names, which took longer than
        looking up a session."""
        # Perl's clients send "TE, close", of which waitress would not see the end.
        if self.channel.ends or "close" in self.request.headers.get("CONNECTION", "").lower():
            self.request.headers["CONNECTION"] = "close"
        # `complete`: the headers are those of another WSGI application.
        if self.version != "1.1" or self.complete:
            head: bytes = super().build_response_header()
            return head
        if self.request.headers.get("CONNECTION") == "close":
            self.set_close_on_finish()
        headers = self.response_headers
        lines = ("%s: %s\r\n" * len(headers)) % tuple(chain.from_iterable(headers))
        if lines.count("\n") != len(headers):
            raise ValueError("a header holds a line feed")
        date = _date(int(self.start_time))
        return f"HTTP/1.1 {self.status}\r\n{lines}Date: {date}\r\n\r\n".encode("latin-1")
