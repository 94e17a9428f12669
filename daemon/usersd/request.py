"""One request: path, query, body, cookies and client address, read here because Bottle's objects lose bytes of the path,
believe forwarding headers and forget cookies."""

import base64
import json
import os
import re
from collections.abc import Iterator
from typing import Any
from urllib.parse import parse_qsl

from usersctl.config import Settings
from usersctl.config.values import REASON_COOKIE, UNIX
from usersctl.errors import Invalid
from usersctl.fields import TwinKeys, is_text, unique_keys, whole_number
from usersctl.lazy import lazy
from usersctl.models import Actor, Client, Session, User
from usersctl.networks import is_in, normal_address
from usersctl.secrets import digest
from usersd.cookies import DEVICE_PATTERN, TOKEN_PATTERN, NewCookies, cookie_values
from usersd.server.lanes import NONBLOCKING

MAX_BODY = 64 * 1024
MAX_HOPS = 20  # of X-Forwarded-For

# What a proxy says of the request that it asks about: nginx is configured to send X-Original-…, Caddy and Traefik send
# X-Forwarded-….
_URLS = ("HTTP_X_ORIGINAL_URL", "HTTP_X_FORWARDED_URI")
_METHODS = ("HTTP_X_ORIGINAL_METHOD", "HTTP_X_FORWARDED_METHOD")
ORIGINAL = (*_URLS, *_METHODS, "HTTP_X_FORWARDED_HOST")
FORWARDING = ("HTTP_FORWARDED", "HTTP_X_REAL_IP", "HTTP_VIA")

# As Azure's gateway writes a client into X-Forwarded-For.
_WITH_PORT = re.compile(r"\A([0-9.]+|\[[^]]*\]):[0-9]{1,5}\Z", re.ASCII)
_CHARSET = re.compile(r"charset\s*=\s*\"?([^\s\";]+)", re.IGNORECASE)


def drop_original(environ: dict[str, Any], settings: Settings) -> None:
    """Behind another server: some of them read a client's X_Forwarded_Uri as X-Forwarded-Uri, and prefer it to the proxy's."""
    if not settings.proxy_drops_underscores:
        for name in ORIGINAL:
            environ.pop(name, None)


def _address_of(host: str) -> str | None:
    """A zone may be any text, and is dropped."""
    return normal_address(host.strip("[]").partition("%")[0])


def new_request_id() -> str:
    return os.urandom(8).hex()


class BadRequest(Exception):
    """A malformed request, with a status of its own."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class Request:
    session: Session | None = None
    user: User | None = None
    token = ""  # that the session was identified by
    by_cookie = False
    as_admin = False  # the route is for admins only
    waits = False  # the sign-in goes on with its second step
    links = False  # the provider is linked to the account of a session, which is no sign-in
    errors_to: str | None = None  # where a refused sign-in ends, if not at `auth.oauth.errorRedirect`

    def __init__(self, environ: dict[str, Any], settings: Settings) -> None:
        self.environ = environ
        self.settings = settings
        self.method: str = environ["REQUEST_METHOD"]
        self.nonblocking: bool = environ.get(NONBLOCKING, False)
        self.request_id = new_request_id()
        self.ids: dict[str, int] = {}  # the ids in the path, checked
        self.segments: dict[str, str] = {}  # the variable segments of the path, as they were sent
        self.new_cookies = NewCookies()  # sent with any response, also an error
        self.log_fields: dict[str, Any] = {}  # what the handler adds to its line in the log

    # --- the caller ---

    @lazy
    def path(self) -> str | None:
        """Decoded once, with the prefix that the application is mounted at; None if it is not UTF-8."""
        raw: str = self.environ.get("SCRIPT_NAME", "").rstrip("/") + self.environ.get("PATH_INFO", "")
        if raw.isascii():
            return raw
        try:
            return raw.encode("latin-1").decode()
        except UnicodeError:
            return None

    @lazy
    def ip(self) -> str:
        """The client's address. A forwarding header is believed from trusted proxies only, and read from the right."""
        # A client on a Unix socket has no address; other servers than ours report an empty one.
        address: str = self.environ.get("REMOTE_ADDR") or UNIX
        trusted = self.settings.trusted_proxies
        if not trusted or not self.is_from_trusted_proxy:
            return address
        forwarded: str = self.environ.get("HTTP_X_FORWARDED_FOR", "")
        for hop in reversed(forwarded.split(",")[-MAX_HOPS:]):
            # Anything but an address is not believed.
            host = hop.strip()
            normal = _address_of(host) or _address_of(_WITH_PORT.sub(r"\1", host))
            if normal is None:
                break
            address = normal
            if not is_in(address, trusted):
                break
        return address

    @lazy
    def is_from_trusted_proxy(self) -> bool:
        return is_in(self.environ.get("REMOTE_ADDR") or UNIX, self.settings.trusted_proxies)

    @property
    def user_agent(self) -> str | None:
        agent: str | None = self.environ.get("HTTP_USER_AGENT")
        return agent

    @property
    def is_forwarded(self) -> bool:
        return any(name in FORWARDING or name.startswith("HTTP_X_FORWARDED") for name in self.environ)

    @property
    def is_prefetch(self) -> bool:
        """Sent by a browser or scanner before a person asked for the page."""
        names = ("HTTP_SEC_PURPOSE", "HTTP_PURPOSE", "HTTP_X_PURPOSE", "HTTP_X_MOZ")
        purposes = ("prefetch", "preview", "prerender")
        return any(self.environ.get(name, "").lower().startswith(purposes) for name in names)

    @property
    def actor(self) -> Actor:
        if self.user is None:
            return Actor("anonymous", self.ip)
        return Actor(f"user:{self.user.id}", self.ip, self.user.id, digest(self.token), self.as_admin)

    @property
    def client(self) -> Client:
        pending = tuple(self.pending_tokens)
        return Client(self.ip, self.user_agent, tuple(self.cookie_tokens), self.device_cookies, pending)

    @property
    def signed_in(self) -> User:
        """The caller, on a route that needs a session."""
        if self.user is None:
            raise AssertionError("a route that needs a user was reached without one")
        return self.user

    @property
    def session_id(self) -> int:
        """Of the caller's session, on a route that needs one."""
        if self.session is None:
            raise AssertionError("a route that needs a session was reached without one")
        return self.session.id

    @lazy
    def bearer(self) -> str | None:
        header: str = self.environ.get("HTTP_AUTHORIZATION", "")
        scheme, _, token = header.partition(" ")
        token = token.strip()
        if scheme.lower() == "bearer" and TOKEN_PATTERN.fullmatch(token):
            return token
        return None

    @lazy
    def basic(self) -> tuple[str, str] | None:
        """User and password of `Authorization: Basic`, empty if they are malformed; None with another header or none."""
        header = self.environ.get("HTTP_AUTHORIZATION")
        if not header:
            return None
        scheme, _, encoded = header.partition(" ")
        if scheme.lower() != "basic":
            return None
        try:
            # As leniently as any application behind us may read it.
            raw = base64.b64decode(encoded.replace("-", "+").replace("_", "/") + "==")
        except ValueError:
            return "", ""
        user, _, password = raw.decode(errors="replace").partition(":")
        return user, password

    def cookies(self, name: str, pattern: re.Pattern[str] = TOKEN_PATTERN) -> list[str]:
        """Every value of a cookie: another application on this host may have set one of the same name."""
        header = self.environ.get("HTTP_COOKIE")
        return cookie_values(header, name, pattern) if header else []

    @lazy
    def cookie_tokens(self) -> list[str]:
        return self.cookies(self.settings.session_cookie)

    @property
    def pending_tokens(self) -> list[str]:
        """Of sign-ins that wait for their second factor."""
        return self.cookies(self.settings.pending_cookie)

    @property
    def passkey_browsers(self) -> tuple[str, ...]:
        """What this browser was named when it asked for challenges."""
        return tuple(self.cookies(self.settings.passkey_cookie))

    @property
    def device_cookies(self) -> tuple[str, ...]:
        return tuple(self.cookies(self.settings.device_cookie, DEVICE_PATTERN))

    # The `error` of a sign-in through the provider has four values only. Our own sign-in page finds more in a cookie.

    @property
    def _reason_cookie(self) -> str:
        return self.settings.cookie(REASON_COOKIE)

    def leave_reason(self, detail: str) -> None:
        self.new_cookies.set(self._reason_cookie, detail, max_age=60)

    def take_reason(self) -> str:
        """The detail that the last sign-in of this browser left, once. It may be any text."""
        details = self.cookies(self._reason_cookie)
        if details:
            self.new_cookies.set(self._reason_cookie, "", max_age=0)
        return "".join(details[:1])

    # --- the input ---

    def read_segments(self, segments: dict[str, str]) -> None:
        self.segments = segments
        for name, kind in (
            ("id", "user"),
            ("session_id", "session"),
            ("passkey_id", "passkey"),
            ("token_id", "token"),
        ):
            if name in segments:
                number = whole_number(segments[name])
                if number is None:
                    raise Invalid(f"Invalid {kind} id")
                self.ids[name] = number

    @lazy
    def query(self) -> dict[str, str]:
        """Refuses what is not UTF-8, and a name that comes twice."""
        text: str = self.environ.get("QUERY_STRING", "")
        if not text:
            return {}
        try:
            pairs = parse_qsl(text, keep_blank_values=True, errors="strict", max_num_fields=50)
        except ValueError:
            raise Invalid("Invalid query") from None
        query = dict(pairs)
        if len(query) != len(pairs):
            raise Invalid("A query parameter comes twice")
        return query

    @lazy
    def body(self) -> dict[str, Any]:
        """One JSON object; no body at all is an empty one."""
        environ = self.environ
        raw = self._raw_body()
        if not raw:
            return {}
        media, _, parameters = environ.get("CONTENT_TYPE", "").partition(";")
        charset = _CHARSET.search(parameters)
        is_utf8 = charset is None or charset[1].lower() in ("utf-8", "utf8")
        if media.strip().lower() != "application/json" or not is_utf8:
            raise BadRequest(415, "The body must be sent as application/json")
        if environ.get("HTTP_CONTENT_ENCODING", "identity").strip().lower() not in ("identity", ""):
            raise BadRequest(415, "The body must not be compressed")
        return parse_object(raw)

    def _raw_body(self) -> bytes:
        environ = self.environ
        try:
            length = int(environ.get("CONTENT_LENGTH") or 0)
        except ValueError:
            raise BadRequest(400, "Invalid Content-Length") from None
        if length > MAX_BODY:
            raise BadRequest(413, "Request body is too large")
        if environ.get("wsgi.input_terminated"):
            if not environ.get("CONTENT_LENGTH"):
                length = MAX_BODY + 1  # sent in chunks, which some servers do not count
        elif self._hides_length:
            raise BadRequest(411, "The body must be sent with Content-Length")
        raw: bytes = environ["wsgi.input"].read(length) if length > 0 else b""
        if len(raw) > MAX_BODY:
            raise BadRequest(413, "Request body is too large")
        return raw

    @property
    def _hides_length(self) -> bool:
        """A body whose end this server does not tell: in chunks, or in frames of HTTP/2. It must not count as none."""
        environ = self.environ
        if environ.get("HTTP_TRANSFER_ENCODING"):
            return True
        is_framed = not environ.get("SERVER_PROTOCOL", "HTTP/1.1").startswith("HTTP/1.")
        return is_framed and "CONTENT_TYPE" in environ and not environ.get("CONTENT_LENGTH")


def parse_object(raw: bytes) -> dict[str, Any]:
    try:
        value = json.loads(raw.decode(), object_pairs_hook=unique_keys, parse_constant=_refuse_constant)
    except TwinKeys as error:
        raise Invalid(f"The body is not valid JSON: {error}") from None
    except (ValueError, RecursionError):
        raise Invalid("The body is not valid JSON") from None
    if not isinstance(value, dict):
        raise Invalid("The body must be a JSON object")
    # Only an escape can bring in a lone surrogate or a NUL.
    if b"\\u" in raw and not all(map(is_text, _strings(value))):
        raise Invalid("The body holds a character that no text may hold")
    return value


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def _strings(value: Any) -> Iterator[str]:
    """All strings of a JSON value, keys included."""
    pending = [value]
    while pending:
        value = pending.pop()
        if isinstance(value, str):
            yield value
        elif isinstance(value, dict):
            pending += [*value.keys(), *value.values()]
        elif isinstance(value, list):
            pending += value
