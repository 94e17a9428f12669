"""The log: one line for each request and event, as text on a terminal and JSON otherwise, without secrets."""

import json
import logging
import os
import re
import sys
import threading
import traceback
from typing import IO, Any
from urllib.parse import parse_qsl, unquote, urlencode

from usersctl.clock import Clock, stamp, utc_now
from usersctl.secrets import API_TOKEN
from usersctl.text import visible

# Query parameters with one of these words in their name may hold a secret.
SECRET = re.compile(r"token|code|state|password", re.IGNORECASE)
_TOKEN = re.compile(f"{API_TOKEN}[A-Za-z0-9_-]{{20,}}")
LONGEST_QUERY = 2_000  # that is logged: to decode one of 15,000 characters takes as long as many requests

_encode = json.JSONEncoder(ensure_ascii=True).encode

# The codes of a terminal's styles.
BOLD, _DIM, _RED, _GREEN, _YELLOW, CYAN = "1", "2", "1;31", "32", "33", "36"
_STYLES = {
    "error": _RED,
    "no-admin": _YELLOW,
    "default-address": _YELLOW,
    "unread-variables": _YELLOW,
    "listening": _GREEN,
    "library": _YELLOW,
}
_STYLES_OF_STATUS = {2: _GREEN, 3: CYAN, 4: _YELLOW}  # by its first digit; any other: red


def in_color(stream: IO[str]) -> bool:
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def styled(style: str, text: str) -> str:
    return f"\x1b[{style}m{text}\x1b[0m"


class Log:
    def __init__(
        self,
        stream: IO[str] | None = None,
        *,
        as_json: bool | None = None,
        quiet: bool = False,
        now: Clock = utc_now,
    ) -> None:
        self.stream = stream or sys.stderr
        self.as_json = not self.stream.isatty() if as_json is None else as_json
        self.quiet = quiet  # no lines for requests, only for events
        self.now = now
        self._in_color = in_color(self.stream)
        self._lock = threading.Lock()

    def event(self, name: str, /, **fields: Any) -> None:
        if self.quiet and name == "request":
            return
        at = stamp(self.now())
        line = _encode({"at": at, "event": name, **fields}) if self.as_json else self._text(at, name, fields)
        try:
            with self._lock:
                self.stream.write(line + "\n")
                self.stream.flush()
        except (OSError, ValueError):
            pass  # a log that cannot be written must not stop the service

    def _text(self, at: str, name: str, fields: dict[str, Any]) -> str:
        pairs = [f"{key}={_plain(value)}" for key, value in fields.items() if value is not None]
        if not self._in_color:
            return " ".join((at, name, *pairs))
        style = _STYLES.get(name, BOLD)
        if "status" in fields:
            style = _STYLES_OF_STATUS.get(fields["status"] // 100, _RED)
        pairs = [styled(style, pair) if pair.startswith("status=") else pair for pair in pairs]
        return " ".join((styled(_DIM, at), styled(style, name), *pairs))

    def error(self, error: BaseException, **fields: Any) -> None:
        """An unexpected exception, with its trace."""
        self.event("error", **fields, trace="".join(traceback.format_exception(error)))


class Forward(logging.Handler):
    """Writes what libraries log through `logging` in the same form."""

    def __init__(self, log: Log) -> None:
        super().__init__(logging.WARNING)
        self._log = log

    def emit(self, record: logging.LogRecord) -> None:
        trace = None
        if record.exc_info:
            trace = "".join(traceback.format_exception(record.exc_info[1]))
        self._log.event("library", name=record.name, message=record.getMessage(), trace=trace)


def redacted(query: str) -> str:
    """A query with its secrets replaced. Names are decoded first, so that %74oken is one, too."""
    if not query:
        return ""
    if len(query) > LONGEST_QUERY:
        return "?***"
    try:
        pairs = parse_qsl(query, keep_blank_values=True, max_num_fields=50)
    except ValueError:
        return "?***"
    shown = [(_name_in(key), _redacted_value(key, value)) for key, value in pairs]
    return _without_tokens("?" + urlencode(shown, safe="*/?"))


def redacted_path(path: str) -> str:
    """A path with the secrets of a link whose query a mail program encoded, even twice, or joined to it by another sign."""
    before, mark, _ = path.partition("?")
    odd = "=" in before or "%" in before
    if odd and (len(before) > LONGEST_QUERY or _names_secret(unquote(unquote(before)))):
        before, mark = re.split(r"[^\w/.~-]", before, maxsplit=1)[0], "?"
    return _without_tokens(f"{before}?***" if mark else path)


def _without_tokens(text: str) -> str:
    """API tokens can be told by their form, wherever in an address a client puts one."""
    return _TOKEN.sub(f"{API_TOKEN}***", text) if API_TOKEN in text else text


def _name_in(key: str) -> str:
    """A link whose query was encoded once more has all of it in one name, a token included."""
    return re.split("[=%]", key, maxsplit=1)[0]


def _redacted_value(key: str, value: str) -> str:
    if SECRET.search(key):
        return "***"
    # A page to return to may have a query of its own, which may hold another one.
    shown = re.sub(r"\?.*", "?***", value, count=1, flags=re.DOTALL)
    if _names_secret(unquote(unquote(shown))):
        return "***"
    return shown


def _names_secret(text: str) -> bool:
    """Whether one of the words is in a name before a "=". Each character is looked at once; a single expression would go on to
    the end from each word."""
    names = (name for part in re.split("[/?&]", text) for name in part.split("=")[:-1])
    return any(map(SECRET.search, names))


def _plain(value: Any) -> str:
    text = visible(str(value))
    if text and " " not in text:
        return text
    return json.dumps(text, ensure_ascii=False)
