"""One request: its path, body, query, cookies and client address, read by code of ours where the framework's is not safe."""

import ipaddress
import json
import os
import re
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl

from usersctl.config import Settings
from usersctl.config.values import UNIX
from usersctl.errors import Invalid
from usersctl.fields import unique_keys
from usersctl.models import Actor, Session, User
from usersd.server.lanes import NONBLOCKING

if TYPE_CHECKING:
    from usersd.routing import Route
from usersd.cookies import _TOKEN, cookie_name, cookie_values

MAX_BODY = 64 * 1024

FORWARDING = (
    "HTTP_FORWARDED",
    "HTTP_X_REAL_IP",
    "HTTP_VIA",
)

_ID = re.compile(r"[1-9][0-9]{0,17}", re.ASCII)


def new_request_id() -> str:
    return os.urandom(8).hex()


class BadRequest(Exception):
    """A request that is refused for its form, with a status of its own."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class Request:
    def __init__(self, environ: dict[str, Any], settings: Settings) -> None:
        self.environ = environ
        self.settings = settings
        self.method: str = environ["REQUEST_METHOD"]
        self.nonblocking: bool = environ.get(NONBLOCKING, False)
        self.request_id = new_request_id()
        self.ids: dict[str, int] = {}  # of the path, checked
        self.parts: dict[str, str] = {}  # of the path, as they came
        self.route: Route | None = None  # known once the path is matched
        self.response_headers: list[tuple[str, str]] = []  # headers of the answer, also of a refusal
        self.log_fields: dict[str, Any] = {}  # what the handler adds to its line in the log
        self.session: Session | None = None
        self.user: User | None = None
        self.token: str | None = None  # the one that signs the caller in
        self.by_cookie = False
        self.has_new_token = False  # the handler replaced it

    # --- who asks ---

    @cached_property
    def path(self) -> str | None:
        """Decoded once, as a whole, with what we are mounted at; None where the bytes are no text."""
        raw: str = self.environ.get("SCRIPT_NAME", "").rstrip("/") + self.environ.get("PATH_INFO", "")
        try:
            return raw.encode("latin-1").decode() if not raw.isascii() else raw
        except UnicodeError:
            return None

    @cached_property
    def ip(self) -> str:
        """The client's address. A forwarding header is believed from trusted proxies only, and read from the right."""
        # Whoever comes through a Unix socket has no address, which other servers than ours say with an empty one.
        address: str = self.environ.get("REMOTE_ADDR") or UNIX
        trusted = self.settings.trusted_proxies
        if not self.is_from_trusted_proxy:
            return address
        forwarded: str = self.environ.get("HTTP_X_FORWARDED_FOR", "")
        for hop in reversed([part.strip() for part in forwarded.split(",")][-20:]):
            try:
                # Whatever a proxy wrote is an address, or is not believed. Its zone may be any text.
                address = str(ipaddress.ip_address(hop.strip("[]").partition("%")[0]))
            except ValueError:
                break
            if not _is_in(address, trusted):
                break
        return address

    @cached_property
    def is_from_trusted_proxy(self) -> bool:
        trusted = self.settings.trusted_proxies
        return bool(trusted) and _is_in(self.environ.get("REMOTE_ADDR") or UNIX, trusted)

    @property
    def is_forwarded(self) -> bool:
        return any(name in FORWARDING or name.startswith("HTTP_X_FORWARDED") for name in self.environ)

    @property
    def looks_ahead(self) -> bool:
        """A browser or a scanner that fetches what nobody has asked for yet."""
        names = ("HTTP_SEC_PURPOSE", "HTTP_PURPOSE", "HTTP_X_PURPOSE", "HTTP_X_MOZ")
        ahead = ("prefetch", "preview", "prerender")
        return any(self.environ.get(name, "").lower().startswith(ahead) for name in names)

    @property
    def actor(self) -> Actor:
        if self.user is None:
            return Actor("anonymous", self.ip)
        return Actor(f"user:{self.user.id}", self.ip, self.user.id)

    @property
    def user_agent(self) -> str | None:
        return self.environ.get("HTTP_USER_AGENT")

    @property
    def signed_in(self) -> User:
        """The caller of a route that asks for a session."""
        if self.user is None:
            raise AssertionError("a route that needs a user was reached without one")
        return self.user

    @cached_property
    def bearer(self) -> str | None:
        scheme, _, token = self.environ.get("HTTP_AUTHORIZATION", "").partition(" ")
        token = token.strip()
        return token if scheme.lower() == "bearer" and _TOKEN.fullmatch(token) else None

    @cached_property
    def cookie_tokens(self) -> list[str]:
        """Every value that our cookie comes with, for a neighbour may have set one of the same name."""
        header: str = self.environ.get("HTTP_COOKIE", "")
        return cookie_values(header, cookie_name(self.settings))

    # --- what is asked ---

    def id_from(self, name: str, text: str) -> int:
        if not _ID.fullmatch(text):
            raise Invalid("Invalid user id" if name == "id" else "Invalid session id")
        return int(text)

    @cached_property
    def query(self) -> dict[str, str]:
        """Each name once. What is not UTF-8, or comes twice, is refused."""
        text: str = self.environ.get("QUERY_STRING", "")
        if not text:
            return {}
        try:
            pairs = parse_qsl(text, keep_blank_values=True, errors="strict", max_num_fields=50)
        except ValueError:
            raise Invalid("Invalid query") from None
        found = dict(pairs)
        if len(found) != len(pairs):
            raise Invalid("A query parameter comes twice")
        return found

    def unchecked_query(self, name: str) -> str | None:
        """One parameter where a query that is odd is as good as none."""
        try:
            return self.query.get(name)
        except Invalid:
            return None

    def number(self, name: str, default: int, at_most: int) -> int:
        text = self.query.get(name)
        if text is None:
            return default
        if not _ID.fullmatch(text) or int(text) > at_most:
            raise Invalid(
                f"{name} must be a whole number from 1" + (f" to {at_most}" if at_most < 10**9 else "")
            )
        return int(text)

    @cached_property
    def body(self) -> dict[str, Any]:
        """One JSON object; no body at all is an empty one."""
        environ = self.environ
        try:
            length = int(environ.get("CONTENT_LENGTH") or 0)
        except ValueError:
            raise BadRequest(400, "Invalid Content-Length") from None
        if length > MAX_BODY:
            raise BadRequest(413, "The body is too large")
        if not environ.get("CONTENT_LENGTH") and environ.get("wsgi.input_terminated"):
            length = MAX_BODY + 1  # sent in chunks, which some servers do not count for us
        raw: bytes = environ["wsgi.input"].read(length) if length > 0 else b""
        if len(raw) > MAX_BODY:
            raise BadRequest(413, "The body is too large")
        if not raw:
            return {}
        media, _, parameters = environ.get("CONTENT_TYPE", "").partition(";")
        if media.strip().lower() != "application/json" or not _is_utf8(parameters):
            raise BadRequest(415, "The body must be sent as application/json")
        if environ.get("HTTP_CONTENT_ENCODING", "identity").strip().lower() not in ("identity", ""):
            raise BadRequest(415, "The body must not be compressed")
        return parse_object(raw)

    def text(self, name: str) -> str | None:
        """A field of the body, which may be missing or null."""
        value = self.body.get(name)
        if value is None or isinstance(value, str):
            return value
        raise Invalid(f"{name} must be a string")

    def texts(self, *names: str, otherwise: str) -> list[str]:
        """Fields that must all be there and not be empty."""
        found = [self.text(name) for name in names]
        if not all(found):
            raise Invalid(otherwise)
        return [value for value in found if value]

    def boolean(self, name: str) -> bool | None:
        value = self.body.get(name)
        if value is None or isinstance(value, bool):
            return value
        raise Invalid(f"{name} must be true or false")

    def given(self, name: str) -> bool:
        """Whether a field that may be left out is there; null is not a way to leave it out."""
        if name in self.body and self.body[name] is None:
            raise Invalid(f"{name} must not be null")
        return name in self.body


def parse_object(raw: bytes) -> dict[str, Any]:
    try:
        found = json.loads(raw.decode(), object_pairs_hook=unique_keys, parse_constant=_no_constant)
    except (ValueError, RecursionError):
        raise Invalid("The body is not valid JSON") from None
    if not isinstance(found, dict):
        raise Invalid("The body must be a JSON object")
    if b"\\u" in raw and _holds_no_text(found):
        raise Invalid("The body holds a character that no text may hold")
    return found


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def _holds_no_text(found: Any) -> bool:
    """Whether a lone surrogate or a NUL is anywhere in it, both of which only an escape can bring in."""
    waiting = [found]
    while waiting:
        each = waiting.pop()
        if isinstance(each, str):
            if "\0" in each or any("\ud800" <= c <= "\udfff" for c in each):
                return True
        elif isinstance(each, dict):
            waiting += [*each.keys(), *each.values()]
        elif isinstance(each, list):
            waiting += each
    return False


def _is_utf8(parameters: str) -> bool:
    charset = re.search(r"charset\s*=\s*\"?([^\s\";]+)", parameters, re.IGNORECASE)
    return charset is None or charset[1].lower() in ("utf-8", "utf8")


@lru_cache(maxsize=1000)  # proxies are few, and each request comes through one
def _is_in(address: str, networks: tuple[Any, ...]) -> bool:
    if address == UNIX:
        return UNIX in networks
    try:
        parsed = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return False
    mapped = getattr(parsed, "ipv4_mapped", None)
    return any((mapped or parsed) in network for network in networks if network != UNIX)
