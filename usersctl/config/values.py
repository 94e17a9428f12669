"""What the value of a key may be: each kind checks a value as a file holds it, and returns it as Settings holds it."""

import os
import re
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any, Generic, TypeVar

from usersctl.errors import Invalid
from usersctl.fields import normal_group
from usersctl.named import NamedTuple
from usersctl.store.conninfo import Conninfo, Database, is_conninfo, is_well_formed, shown

MASK = "***"  # in the place of a secret
UNIX = "unix"  # among the trusted proxies, and as the address of a client of the Unix socket

# The cookies beside that of the session.
FLOW_COOKIE = "oauth_"  # and 16 hexadecimal digits: of a sign-in that waits for the provider
REASON_COOKIE = "sign_in_reason"  # why a sign-in through the provider failed, for our sign-in page
PENDING_COOKIE = "auth_pending"
PASSKEY_COOKIE = "auth_passkey"
OTHER_COOKIES = f"{FLOW_COOKIE}[0-9a-f]{{16}}|{REASON_COOKIE}|{PENDING_COOKIE}|{PASSKEY_COOKIE}"  # a pattern

T = TypeVar("T")


class BadValue(Exception):
    """Its message says what is allowed."""


class BadPart(BadValue):
    """Of a value that has keys of its own: `part` follows the name of the key."""

    def __init__(self, part: str, value: Any, problem: str) -> None:
        super().__init__(problem)
        self.part = part
        self.value = value


class MissingPart(BadPart):
    """A key that must be given."""

    def __init__(self, part: str) -> None:
        super().__init__(part, None, "is missing")


def _unchanged(value: Any) -> Any:
    return value


class Kind(NamedTuple, Generic[T]):
    """What a value may be: its name in the documentation, its check, and the inverse of the check."""

    name: str
    check: Callable[[Any], T]
    write: Callable[[Any], Any]  # from a value of Settings, or None, to one as a file holds it

    def __call__(self, value: Any) -> T:
        return self.check(value)


def kind(name: str, write: Callable[[Any], Any] = _unchanged) -> Callable[[Callable[[Any], T]], Kind[T]]:
    """Makes a Kind of the check below it."""
    return lambda check: Kind(name, check, write)


@kind("string")
def string(value: Any) -> str:
    if not isinstance(value, str) or not value.strip() or any(ord(c) < 32 for c in value):
        raise BadValue("must be a string that is not empty, without control characters")
    return value


def optional(needed: Kind[T]) -> Kind[T | None]:
    """The empty string counts as left out."""
    return Kind(needed.name, lambda value: needed(value) if value != "" else None, needed.write)


optional_string = optional(string)


@kind("string")
def ascii_string(value: Any) -> str:
    text = string(value)
    if not text.isascii():
        raise BadValue("must be of ASCII characters: Python's SMTP client sends no others")
    return text


@kind("string")
def mail_host(value: Any) -> str:
    text = string(value)
    name, ipv6 = r"[\w.-]+", r"[0-9a-fA-F]*:[0-9a-fA-F:.]*:[0-9a-fA-F.]*(%\w+)?"
    if not re.fullmatch(f"{name}|{ipv6}", text):
        raise BadValue("must be the name or address of a host alone: its port is mailer.port")
    return text


@kind("boolean")
def boolean(value: Any) -> bool:
    if not isinstance(value, bool):
        raise BadValue("must be true or false")
    return value


def whole(low: int, high: int, of: str = "") -> Kind[int]:
    @kind(f"{low} to {high}")
    def check(value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise BadValue(f"must be a whole number{of} from {low} to {high}")
        return value

    return check


def duration(unit: str, high: int, low: int = 1) -> Kind[timedelta]:
    """A number of `unit`, kept as a timedelta."""
    number, one = whole(low, high, f" of {unit}"), timedelta(**{unit: 1})
    return Kind(f"{unit}, {low} to {high}", lambda value: number(value) * one, lambda value: value // one)


def list_of(item: Callable[[Any], T], names: str) -> Kind[tuple[T, ...]]:
    @kind(f"list of {names}", write=lambda value: list(map(str, value)))
    def check(value: Any) -> tuple[T, ...]:
        if not isinstance(value, list) or not all(isinstance(entry, str) for entry in value):
            raise BadValue("must be a list of strings")
        return tuple(item(entry) for entry in value)

    return check


def matching(name: str, pattern: str, problem: str) -> Kind[str]:
    @kind(name)
    def check(value: Any) -> str:
        if not isinstance(value, str) or not re.fullmatch(pattern, value):
            raise BadValue(problem)
        return value

    return check


def one_of(*names: str) -> Kind[str]:
    return matching(" or ".join(names), "|".join(names), f"must be one of {', '.join(names)}")


file_mode = matching("file mode", "0[0-7]{3}", 'must be the mode of a file, such as "0660"')
colour = matching("colour", "#[0-9a-fA-F]{6}", 'must be a colour such as "#0b5fff"')


@kind("path", write=lambda value: value and str(value))
def path(value: Any) -> Path:
    if not isinstance(value, str) or not value or "\0" in value:
        raise BadValue("must be the path of a file")
    try:
        os.fsencode(value)  # JSON can hold half a character, which no name of a file can
        return Path(value).expanduser()
    except UnicodeEncodeError:
        raise BadValue("must be the path of a file") from None
    except RuntimeError:
        raise BadValue("must be the path of a file; the home folder that ~ stands for is unknown") from None


optional_path = optional(path)


@kind("path or conninfo", write=lambda value: value and shown(value))
def database(value: Any) -> Database:
    """A value that is refused is not repeated, because it may hold a password."""
    if not isinstance(value, str):
        if re.search("password|://", str(value)):
            raise BadPart("", MASK, "must be one text")
        return path(value)
    text = value.replace("\n", " ").strip()  # it is long, and may have several lines
    if not is_conninfo(text):
        return path(value)
    if not is_well_formed(text):
        one = '"postgresql://db.example.com/users" (with @ / ? of a password as %40 %2F %3F)'
        other = '"host=db.example.com dbname=users" (with \' around a value with blanks and other signs)'
        raise BadPart("", MASK, f"must be the path of a file, or a conninfo such as {one} or {other}")
    return Conninfo(text)


def url_of(value: Any, problem: BadValue) -> Any:
    from urllib.parse import urlsplit

    if not isinstance(value, str) or any(c <= " " or c > "~" for c in value):
        raise problem
    try:
        url = urlsplit(value)
        _ = url.port  # raises ValueError
    except ValueError:
        raise problem from None
    if not url.hostname or "@" in url.netloc:
        raise problem
    return url


@kind("origin")
def origin_of(value: Any) -> str:
    """scheme://host[:port] as a browser writes it in an Origin header."""
    problem = BadValue("must be an origin such as https://example.com, without path, query or user")
    if isinstance(value, str) and not value.isascii():
        problem = BadValue(
            "must be in ASCII, as browsers send it, such as https://xn--bcher-kva.example for bücher"
        )
    url = url_of(value, problem)
    if url.scheme not in ("http", "https") or url.path not in ("", "/") or set(value) & set("?#\\"):
        raise problem
    is_host = ":" in url.hostname or re.sub("[-._]", "", url.hostname).isalnum()
    if url.port == 0 or not is_host:
        raise problem
    if url.port in (None, {"http": 80, "https": 443}[url.scheme]):
        return f"{url.scheme}://{bracketed(url.hostname)}"
    return f"{url.scheme}://{host_and_port(url.hostname, url.port)}"


def origin_in(url: str) -> str:
    """The origin of a URL that was checked before."""
    from urllib.parse import urlsplit

    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.lower()}"


@kind("https URL")
def provider_url(value: Any) -> str:
    """An https URL of the identity provider; http only on this machine."""
    problem = BadValue("must be an https URL (http only for this machine)")
    url = url_of(value, problem)
    is_local = url.scheme == "http" and is_loopback(url.hostname)
    if url.fragment or not (url.scheme == "https" or is_local):
        raise problem
    return str(value)


def bracketed(host: str) -> str:
    """The host as it stands in a URL."""
    return f"[{host}]" if ":" in host else host


def host_and_port(host: str, port: int) -> str:
    return f"{bracketed(host)}:{port}"


def connectable_host(host: str) -> str:
    """The host that reaches a listener on `host` from this machine: 0.0.0.0, :: and * are no addresses to connect to."""
    host = host.strip("[]")
    return {"0.0.0.0": "127.0.0.1", "*": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104 - compared, not listened on


def is_loopback(host: str) -> bool:
    import ipaddress

    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


@kind("address or range")
def network(value: Any) -> Any:
    import ipaddress

    if value == UNIX:
        return value
    try:
        return ipaddress.ip_network(value)
    except ValueError:
        problem = f'must be addresses, CIDR ranges such as 10.0.0.0/8, or "{UNIX}"'
        with suppress(ValueError):
            problem += f"; the range of {value} is {ipaddress.ip_network(value, strict=False)}"
        raise BadValue(problem) from None


@kind("path")
def path_pattern(value: Any) -> str:
    if not isinstance(value, str) or not value.startswith("/"):
        raise BadValue('must be paths such as "/about" or "/docs/*", each beginning with /')
    if any(c <= " " or c in "?#\\" for c in value):
        raise BadValue("must be paths without \\, and with %20, %3F or %23 in the place of a space, ? or #")
    if any("*" in part and part != "*" for part in value.split("/")):
        raise BadValue('must have a * only as a whole segment, as in "/docs/*" or "/shop/*/item"')
    return value


GROUP = "group:"  # before the name of a group
Requirement = str | tuple[str, ...]  # a role or a group, or several, of which any suffices
RoleRule = tuple[str, Requirement]  # for a pattern


@kind("table of paths and roles", write=dict)
def role_rules(value: Any) -> tuple[RoleRule, ...]:
    if not isinstance(value, dict):
        raise BadValue('must be a table of paths and roles, such as "/admin/*" = "admin"')
    return tuple((path_pattern(pattern), _requirement(needed)) for pattern, needed in value.items())


def groups_in(needed: Requirement) -> list[str]:
    alternatives = (needed,) if isinstance(needed, str) else needed
    return [one.removeprefix(GROUP) for one in alternatives if one.startswith(GROUP)]


def _requirement(value: Any) -> Requirement:
    if isinstance(value, list) and value:
        return tuple(_role_or_group(one) for one in value)
    return _role_or_group(value)


def _role_or_group(value: Any) -> str:
    if value in ("admin", "user"):
        return str(value)
    if isinstance(value, str) and value.startswith(GROUP):
        with suppress(Invalid):
            return GROUP + normal_group(value.removeprefix(GROUP))
    raise BadValue('must be admin, user, a group such as "group:staff", or a list of these, for each path')


@kind("table of header names", write=dict)
def identity_headers(value: Any) -> tuple[tuple[str, str], ...]:
    from usersctl.identity_headers import KINDS, problem_with

    if not isinstance(value, dict):
        raise BadValue('must be a table of header names, such as X-Remote-User = "email"')
    if problem := problem_with(value):
        raise BadValue(f"must be names of headers: {problem}")
    if not set(map(str, value.values())) <= set(KINDS):
        raise BadValue(f"must be {', '.join(KINDS[:-1])} or {KINDS[-1]} for each name")
    return tuple(value.items())


@kind("secret")
def shared_secret(value: Any) -> str:
    text = string(value)
    if len(text) < 32:
        raise BadValue("must be a secret of at least 32 characters, such as `openssl rand -base64 32` prints")
    return text


@kind("secrets, one a line", write=lambda keys: "\n".join(keys or ()) or None)
def secret_keys(value: Any) -> tuple[str, ...]:
    lines = value.splitlines() if isinstance(value, str) else []
    keys = [line.strip() for line in lines if line.strip()]
    if not keys:
        raise BadValue("must be a secret of at least 32 characters, or several, one a line")
    return tuple(shared_secret(key) for key in keys)


@kind("string")
def cookie_name(value: Any) -> str:
    if not isinstance(value, str) or not re.fullmatch("[_-]*[A-Za-z0-9][A-Za-z0-9_-]*", value):
        raise BadValue("must be letters, digits, - and _")
    if value.lower().startswith(("__host-", "__secure-")):
        raise BadValue("must be without __Host-: that is added when baseUrl is https")
    if re.fullmatch(OTHER_COOKIES, value):
        raise BadValue("must be another name: the service has a cookie of this one")
    return value


@kind("path or URL")
def redirect(value: Any) -> str:
    """The origin of a URL is compared in `sources`, when all settings are known."""
    text = string(value)
    if not re.fullmatch(r"(/(?!/)|https?://)[!-\[\]-~]*", text):  # printable ASCII without backslash
        choices = "a path that begins with one /, or an absolute URL on baseUrl's origin or one of auth.allowedOrigins"
        raise BadValue(f"must be {choices}")
    return text


@kind("path")
def callback_path(value: Any) -> str:
    text = redirect(value)
    has_dots = {".", ".."} & set(text.split("/"))
    if not text.startswith("/") or has_dots or set(text) & set("?#*<>%"):
        raise BadValue("must be a path that begins with one /, as in the address, without % or patterns")
    return text


@kind("cron, or false", write=lambda value: value or False)
def cron(value: Any) -> str | None:
    if value is None or value is False:
        return None
    problem = BadValue('must be five cron fields such as "0 2 * * *", an alias such as "@daily", or false')
    if not isinstance(value, str):
        raise problem
    from usersctl.schedule import next_slot

    try:
        next_slot(value)
    except ValueError as error:
        raise BadValue(f"{problem} ({error})") from None
    return value.strip()


@kind("sender")
def sender(value: Any) -> str:
    from email.errors import MessageError
    from email.headerregistry import Address
    from email.utils import getaddresses

    text = string(value)
    try:
        addresses = [Address(name, addr_spec=address).addr_spec for name, address in getaddresses([text])]
    except (ValueError, IndexError, MessageError):
        addresses = []
    if len(addresses) != 1 or addresses[0].count("@") != 1 or not text.isprintable():
        raise BadValue('must be one sender such as "Accounts <accounts@example.com>"')
    if not addresses[0].isascii():  # a mail server takes no other from smtplib
        raise BadValue(
            "must be an address in ASCII, such as accounts@xn--bcher-kva.example for bücher.example"
        )
    return text
