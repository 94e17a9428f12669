"""Cookies: those of a request are parsed here, and Set-Cookie is made here."""

import re
from functools import cache

from usersctl.config.values import OTHER_COOKIES

MAX_COOKIE_HEADER = 16 * 1024
MAX_CANDIDATES = 3
DEVICE_PATTERN = re.compile(r"[A-Za-z0-9_~:./-]{1,800}", re.ASCII)  # room for all accounts of a browser
TOKEN_PATTERN = re.compile(r"[A-Za-z0-9_-]{1,128}", re.ASCII)


def cookie_values(header: str, name: str, pattern: re.Pattern[str] = TOKEN_PATTERN) -> list[str]:
    """The values of one cookie, at most three that fit the pattern. Malformed cookies of others are skipped."""
    if len(header) > MAX_COOKIE_HEADER:
        return []
    values: list[str] = []
    for part in header.split(";"):
        key, _, value = part.strip(" \t").partition("=")
        if key == name and value not in values and pattern.fullmatch(value):
            values.append(value)
            if len(values) == MAX_CANDIDATES:
                break
    return values


def without_ours(header: str, cookie_name: str) -> str:
    """A Cookie header for an application behind us: all cookies but those of sessions, known devices and sign-ins."""
    is_ours = _ours(cookie_name).search
    if ";" not in header:  # for most applications behind us ours is the only one
        return "" if is_ours(header) else header.strip()
    return ";".join([part for part in header.split(";") if not is_ours(part)]).strip()


@cache
def _ours(cookie_name: str) -> re.Pattern[str]:
    """Under HTTPS and without it, because one of the two may be left from before. Servers join two headers by a comma."""
    return re.compile(rf"(^|,)[ \t]*(__Host-)?({re.escape(cookie_name)}(_device)?|{OTHER_COOKIES})=")


class NewCookies(dict[str, tuple[str, str]]):
    """The Set-Cookie headers of a response, by the names of the cookies."""

    def set(self, name: str, value: str, *, max_age: int | None) -> None:
        """Without `max_age` the cookie ends with the browser; 0 clears it."""
        parts = [f"{name}={value}", "Path=/", "HttpOnly", "SameSite=Lax"]
        if name.startswith("__Host-"):
            parts.append("Secure")
        if max_age is not None:
            parts.append(f"Max-Age={max_age}")
        self[name] = "Set-Cookie", "; ".join(parts)
