"""The cookies of a request are parsed here, and the session cookie is made here."""

import re

from usersctl.config import Settings

MAX_COOKIE_HEADER = 16 * 1024
MAX_CANDIDATES = 3
_TOKEN = re.compile(r"[A-Za-z0-9_-]{1,128}", re.ASCII)


# --- cookies ---


def cookie_name(settings: Settings) -> str:
    return f"__Host-{settings.cookie_name}" if settings.https else settings.cookie_name


def cookie_values(header: str, name: str, form: re.Pattern[str] = _TOKEN) -> list[str]:
    """The values of one cookie, at most three of the right form. A neighbour's odd cookie is passed over."""
    if len(header) > MAX_COOKIE_HEADER:
        return []
    found: list[str] = []
    for part in header.split(";"):
        key, equals, value = part.strip(" \t").partition("=")
        if equals and key == name and value not in found and form.fullmatch(value):
            found.append(value)
            if len(found) == MAX_CANDIDATES:
                break
    return found


def cookie(settings: Settings, token: str, *, max_age: int | None) -> tuple[str, str]:
    """Set-Cookie. Without a Max-Age it ends with the browser; an empty token with 0 clears it."""
    parts = [f"{cookie_name(settings)}={token}", "Path=/", "HttpOnly", "SameSite=Lax"]
    if settings.https:
        parts.append("Secure")
    if max_age is not None:
        parts.append(f"Max-Age={max_age}")
    return "Set-Cookie", "; ".join(parts)


def cleared_cookie(settings: Settings) -> tuple[str, str]:
    return cookie(settings, "", max_age=0)
