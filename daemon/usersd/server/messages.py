"""HTTP messages: a strict request parser, and answers that are sent in one piece."""

import contextlib
import logging
import re
from functools import lru_cache
from typing import Any

from waitress.channel import ClientDisconnected
from waitress.parser import HTTPRequestParser, ParsingError, TransferEncodingNotImplemented
from waitress.task import WSGITask
from waitress.utilities import build_http_date

from usersd.request import MAX_BODY
from usersd.response import STATUS_LINES
from usersd.server.lanes import NONBLOCKING, MustWait

log = logging.getLogger("usersd")

MESSAGES = {
    400: "Malformed request",
    413: "Request body is too large",
    431: "Request headers are too large",
    500: "Internal server error",
    503: "Too many logins at once, please try again",
}
HEADERS_PARSED = (413, 503)  # refused after the headers were parsed, so the application sees method and path

# waitress accepts absolute and asterisk forms, control characters and any version.
_REQUEST_LINE = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Z-]+ /[!\"$-~]* HTTP/1\.[01]\r\n")
_TRANSFER_ENCODING = re.compile(rb"^transfer-encoding:[ \t]*(.*?)[ \t]*\r?$", re.IGNORECASE | re.MULTILINE)


class Parser(HTTPRequestParser):  # type: ignore[misc]  # waitress has no types
    def parse_header(self, header_plus: bytes) -> None:
        try:
            if not _REQUEST_LINE.match(header_plus):
                raise ParsingError("request line")
            if b"\r\n " in header_plus or b"\r\n\t" in header_plus:
                raise ParsingError("folded header")
            super().parse_header(header_plus)
            self._check_framing(header_plus)
        except (ParsingError, ValueError, TransferEncodingNotImplemented) as error:
            # Also a Content-Length of 5,000 digits, or an unknown encoding, which waitress would answer 501.
            self.expect_continue = False
            raise ParsingError(str(error)) from None
        if self.body_rcv is None or self.content_length > MAX_BODY:
            # "100 Continue" would wait for a body that never comes, or that is refused.
            self.expect_continue = False

    def _check_framing(self, header_plus: bytes) -> None:
        """Refuses a request whose end or host a proxy in front could read differently (request smuggling)."""
        host = self.headers.get("HOST")
        if "," in (host or "") or (host is None and self.version == "1.1"):
            raise ParsingError("host")
        if b"transfer-encoding" in header_plus.lower():
            values = _TRANSFER_ENCODING.findall(header_plus)
            once = len(values) == 1 and values[0].lower() == b"chunked"
            if values and (not once or self.version != "1.1" or "CONTENT_LENGTH" in self.headers):
                raise ParsingError("transfer encoding")


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
        answer = self.channel.server.hosted.on_error(status, MESSAGES[status], environ)
        self.complete = True
        self.status = STATUS_LINES[answer.status]
        self.response_headers = [*answer.headers, ("Content-Length", str(len(answer.body)))]
        if answer.status == 503:
            self.response_headers.append(("Retry-After", "2"))
        if status != 503:
            self.set_close_on_finish()
        self.content_length = len(answer.body)
        if getattr(self.request, "command", "") == "HEAD":  # a request that was not parsed has no command
            answer = answer._replace(body=b"")
        self.write(answer.body)

    def get_environment(self) -> dict[str, Any]:
        environ: dict[str, Any] = super().get_environment()
        environ[NONBLOCKING] = self.nonblocking
        return environ

    def build_response_header(self) -> bytes:
        """The head as waitress builds it, without its normalising and sorting of header names, which took longer than
        looking up a session."""
        if self.channel.server.stopping:
            self.request.headers["CONNECTION"] = "close"
        # An application behind the gate may leave the length to the server, or spell the name differently.
        has_length = any(name == "Content-Length" for name, _ in self.response_headers)
        if self.version != "1.1" or not has_length or not self.has_body:
            head: bytes = super().build_response_header()
            return head
        if self.request.headers.get("CONNECTION", "").lower() == "close":
            self.set_close_on_finish()
        lines = [f"{name}: {value}\r\n" for name, value in self.response_headers]
        date = _date(int(self.start_time))
        return f"HTTP/1.1 {self.status}\r\n{''.join(lines)}Date: {date}\r\n\r\n".encode("latin-1")

    def write(self, data: bytes) -> None:
        # One system call for head and body: each call releases Python's global lock.
        if data and self.complete and not self.wrote_header:
            head = self.build_response_header()
            self.wrote_header = True
            if self.has_body and self.content_length == len(data):
                self.content_bytes_written = len(data)
                self.channel.write_soon(head + data)
                return
            self.channel.write_soon(head)
        super().write(data)
