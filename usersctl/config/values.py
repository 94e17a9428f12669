"""What the value of a key may be: each check returns the value as Settings holds it, or says what is allowed."""

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

UNIX = "unix"  # among the trusted proxies, and where an address is told: whoever came through a Unix socket


class Bad(Exception):
    pass


Check = Callable[[Any], Any]


# --- what a value may be: each check returns the value as Settings holds it, or says what is allowed ---


def _text(value: Any) -> str:
    if not isinstance(value, str) or not value.strip() or any(ord(c) < 32 for c in value):
        raise Bad("must be a text that is not empty, without control characters")
    return value


def _text_or_empty(value: Any) -> str | None:
    return None if value == "" else _text(value)


def _plain_text(value: Any) -> str:
    text = _text(value)
    if not text.isascii():
        raise Bad("must be of ASCII characters: Python's SMTP client sends no others")
    return text


def _boolean(value: Any) -> bool:
    if not isinstance(value, bool):
        raise Bad("must be true or false")
    return value


def _whole(low: int, high: int) -> Check:
    def check(value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise Bad(f"must be a whole number from {low} to {high}")
        return value

    return check


def _span(unit: str, high: int) -> Check:
    """A duration in `unit`, kept as a timedelta."""

    def check(value: Any) -> timedelta:
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= high:
            raise Bad(f"must be a whole number of {unit} from 1 to {high}")
        return timedelta(**{unit: value})

    return check


def _texts(item: Check) -> Check:
    def check(value: Any) -> tuple[Any, ...]:
        if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
            raise Bad("must be a list of texts")
        return tuple(item(each) for each in value)

    return check


def _one_of(*names: str) -> Check:
    def check(value: Any) -> str:
        if value not in names:
            raise Bad(f"must be one of {', '.join(names)}")
        return str(value)

    return check


def _path(value: Any) -> Path:
    if not isinstance(value, str) or not value or "\0" in value:
        raise Bad("must be the path of a file")
    try:
        return Path(value).expanduser()
    except RuntimeError:
        raise Bad("must be the path of a file; the home folder that its ~ stands for is unknown") from None


def _path_or_empty(value: Any) -> Path | None:
    return None if value == "" else _path(value)


def _mode(value: Any) -> str:
    if not isinstance(value, str) or len(value) != 4 or value[0] != "0" or not set(value) <= set("01234567"):
        raise Bad('must be the mode of a file, such as "0660"')
    return value


def origin_of(value: Any) -> str:
    """scheme://host[:port] as a browser writes it in an Origin header."""
    from urllib.parse import urlsplit

    problem = Bad("must be an origin such as https://example.com, without path, query or user")
    if not isinstance(value, str) or any(c <= " " or c > "~" for c in value):
        raise problem
    try:
        url = urlsplit(value)
        port = url.port
    except ValueError:
        raise problem from None
    host = (url.hostname or "").lower()
    if url.scheme not in ("http", "https") or not host or "@" in url.netloc or port == 0:
        raise problem
    if url.path not in ("", "/") or url.query or url.fragment or value.endswith(("?", "#")) or "\\" in value:
        raise problem
    if not (host.replace("-", "").replace(".", "").replace("_", "").isalnum() or ":" in host):
        raise problem
    name = f"[{host}]" if ":" in host else host
    default = {"http": 80, "https": 443}[url.scheme]
    return f"{url.scheme}://{name}" + (f":{port}" if port not in (None, default) else "")


def provider_url(value: Any) -> str:
    """An https URL of the identity provider; http only on this machine."""
    from urllib.parse import urlsplit

    problem = Bad("must be an https URL (http only for this machine)")
    if not isinstance(value, str) or any(c <= " " or c > "~" for c in value):
        raise problem
    try:
        url = urlsplit(value)
        _ = url.port
    except ValueError:
        raise problem from None
    if not url.hostname or "@" in url.netloc or url.fragment:
        raise problem
    if url.scheme != "https" and not (url.scheme == "http" and is_loopback(url.hostname)):
        raise problem
    return value


def host_and_port(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def near(host: str) -> str:
    """Where to ask, on this machine, whoever listens there: a listener everywhere has no address of its own."""
    host = host.strip("[]")
    return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104 - compared, not listened at


def is_loopback(host: str) -> bool:
    import ipaddress

    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def _network(value: Any) -> Any:
    import ipaddress

    if value == UNIX:
        return value
    try:
        return ipaddress.ip_network(value)
    except ValueError:
        raise Bad(f'must be addresses, CIDR ranges such as 10.0.0.0/8, or "{UNIX}"') from None


def _pattern(value: Any) -> str:
    if not isinstance(value, str) or not value.startswith("/") or any(c <= " " or c in "?#\\" for c in value):
        raise Bad('must be paths such as "/about" or "/docs/*", each beginning with /')
    if any("*" in part and part != "*" for part in value.split("/")):
        raise Bad('must have a * only as a whole segment, as in "/docs/*" or "/shop/*/item"')
    return value


def _role_rules(value: Any) -> tuple[tuple[str, str], ...]:
    if not isinstance(value, dict):
        raise Bad('must be a table of paths and roles, such as "/admin/*" = "admin"')
    for path, role in value.items():
        _pattern(path)
        if role not in ("admin", "user"):
            raise Bad("must be admin or user for each path")
    return tuple(value.items())


def _shared_secret(value: Any) -> str:
    text = _text(value)
    if len(text) < 32:
        raise Bad("must be a secret of at least 32 characters, such as `openssl rand -base64 32` makes")
    return text


def _cookie_name(value: Any) -> str:
    if (
        not isinstance(value, str)
        or not value.replace("_", "").replace("-", "").isalnum()
        or not value.isascii()
    ):
        raise Bad("must be letters, digits, - and _")
    if value.lower().startswith(("__host-", "__secure-")):
        raise Bad("must be without __Host-: that is added when baseUrl is https")
    return value


def _redirect(value: Any) -> str:
    text = _text(value)
    if (
        text.startswith("/")
        and not text.startswith(("//", "/\\"))
        and all(" " < c <= "~" for c in text)
        and "\\" not in text
    ):
        return text
    if text.startswith(("http://", "https://")) and all(" " < c <= "~" for c in text) and "\\" not in text:
        return text  # its origin is compared when all of the settings are known
    raise Bad(
        "must be a path that begins with one /, or an absolute URL on baseUrl's origin or one of auth.allowedOrigins"
    )


def _callback(value: Any) -> str:
    text = _redirect(value)
    is_plain = not any(c in "?#*<>%" for c in text) and {".", ".."}.isdisjoint(text.split("/"))
    if not text.startswith("/") or not is_plain:
        raise Bad(
            "must be a path that begins with one /, as it stands in the address: without % and patterns"
        )
    return text


def _cron(value: Any) -> str | None:
    if value is None or value is False:
        return None
    problem = Bad('must be five cron fields such as "0 2 * * *", an alias such as "@daily", or false')
    if not isinstance(value, str):
        raise problem
    from usersctl.schedule import next_slot

    try:
        next_slot(value)
    except ValueError as error:
        raise Bad(f"{problem} ({error})") from None
    return value.strip()


def _sender(value: Any) -> str:
    from email.errors import MessageError
    from email.headerregistry import Address
    from email.utils import getaddresses

    text = _text(value)
    found = getaddresses([text])
    try:
        addresses = [Address(name, addr_spec=address).addr_spec for name, address in found]
    except (ValueError, IndexError, MessageError):
        addresses = []
    if len(addresses) != 1 or addresses[0].count("@") != 1 or not text.isprintable():
        raise Bad('must be one sender such as "Accounts <accounts@example.com>"')
    return text


def _colour(value: Any) -> str:
    import re

    if not isinstance(value, str) or not re.fullmatch(r"#[0-9a-fA-F]{6}", value):
        raise Bad('must be a colour such as "#0b5fff"')
    return value
