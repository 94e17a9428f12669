"""Forward authentication: a proxy in front of another application asks, request by request, who is there and what they may."""

import re
from functools import cache, lru_cache
from typing import NamedTuple
from urllib.parse import quote, unquote_to_bytes

from usersctl.errors import Invalid
from usersctl.models import Role
from usersctl.secrets import assertion
from usersctl.service import Service
from usersd.access import identify, own_path, wants_a_page
from usersd.pages import pages
from usersd.paths import PageAccess
from usersd.request import Request
from usersd.response import JSON, Header, Response, error_response, redirect_to

NAMES = ("Remote-User", "Remote-Email", "Remote-Name", "Remote-Role")
NOBODY = ("", "", "", "")
ASSERTED_FOR = 60  # seconds: a proxy passes it on at once, but clocks differ
LONGEST = 2000  # of a page to come back to: a proxy takes only so much of a header

# What a request line holds, after a scheme and host that may be left out. A # or \ is in none that a browser sends.
_TARGET = re.compile(
    r"""(?:https?://(?P<host>(?:[\w.-]+|\[[\da-fA-F:.]+\])(?::\d+)?))?(?P<target>/[!"$-\[\]-~\x80-\xff]*)""",
    re.ASCII,
)
_HOST = re.compile(r"(?:[\w.-]+|\[[\da-fA-F:.]+\])(?::\d+)?", re.ASCII)
_METHOD = re.compile(r"[A-Z]+", re.ASCII)
_ANYTHING = re.compile(r".+")
_ENCODED_SLASH = re.compile(r"%(2f|5c)", re.IGNORECASE)
_READABLE = "".join(map(chr, range(0x20, 0x7F))).replace("%", "")


class Asked(NamedTuple):
    """The request that this is about: what of it is known beyond doubt."""

    method: str | None = None
    host: str | None = None
    target: str | None = None  # as it was written
    path: str | None = None  # of it, decoded once


def verify(request: Request, service: Service) -> Response:
    role = request.query.get("role")
    if role is not None and role not in tuple(Role):
        raise Invalid("role must be admin or user")
    identify(request, service, renews=False)  # a proxy drops our cookies
    settings = request.settings
    # Whoever is signed in is let in wherever they ask for, unless a role or an assertion hangs on it.
    is_asked_for = request.user is None or role or settings.role_rules or settings.assertion_secret
    asked = asked_by_proxy(request) if is_asked_for and request.is_from_trusted_proxy else Asked()
    access = _page_access(settings.whitelist, settings.role_rules)
    verdict = access.verdict(request.user, asked.path, role=role)
    if request.user is None and _ENCODED_SLASH.search((asked.target or "").partition("?")[0]):
        verdict = 401  # who decodes it at another time than the whitelist sees another path
    if verdict == 200:
        return Response(200, b"{}", (*JSON, *_identity(request, service, asked)))
    is_page = wants_a_page(request.environ, asked.method or request.method)
    if verdict == 403:
        return pages.forbidden(request) if is_page else error_response(403, "Admin access required")
    way = "/login" + _and_back(asked.target)
    return redirect_to(way) if is_page else error_response(401, "Authentication required", ("Location", way))


@cache
def _page_access(whitelist: tuple[str, ...], role_rules: tuple[tuple[str, str], ...]) -> PageAccess:
    return PageAccess(whitelist, role_rules)


def asked_by_proxy(request: Request) -> Asked:
    """nginx is told to speak of X-Original-…, Caddy and Traefik speak of X-Forwarded-…. Where both came and do not say
    the same, one is the client's own, and neither is believed."""
    told = request.environ.get
    return _asked(
        (told("HTTP_X_ORIGINAL_URL"), told("HTTP_X_FORWARDED_URI")),
        (told("HTTP_X_ORIGINAL_METHOD"), told("HTTP_X_FORWARDED_METHOD")),
        told("HTTP_X_FORWARDED_HOST"),
        told("HTTP_HOST"),
    )


@lru_cache(maxsize=256)  # most requests are for a few pages
def _asked(
    urls: tuple[str | None, ...],
    methods: tuple[str | None, ...],
    forwarded_host: str | None,
    host: str | None,
) -> Asked:
    found = [_TARGET.fullmatch(url) for url in urls if url is not None]
    hosts = [url["host"] for url in found if url and url["host"]]
    if forwarded_host is not None:
        hosts.append(forwarded_host)
    elif not hosts and host is not None:
        hosts.append(host)
    target = _agreed([url["target"] if url else "" for url in found], _ANYTHING)
    return Asked(
        _agreed([method for method in methods if method is not None], _METHOD),
        _agreed([each.lower() for each in hosts], _HOST),
        target,
        _path_of(target) if target else None,
    )


def _agreed(values: list[str], form: re.Pattern[str]) -> str | None:
    return values[0] if values and len(set(values)) == 1 and form.fullmatch(values[0]) else None


def _path_of(target: str) -> str | None:
    """None where its bytes are no text."""
    try:
        return unquote_to_bytes(target.partition("?")[0].encode("latin-1")).decode()
    except UnicodeError:
        return None


def _and_back(target: str | None) -> str:
    if target is None:
        return ""
    target = quote(target.encode("latin-1"), safe=_READABLE + "%")  # a browser would send it so
    return "?redirect=" + quote(target, safe="/") if own_path(target) and len(target) <= LONGEST else ""


def _identity(request: Request, service: Service, asked: Asked) -> list[Header]:
    """All of the headers, always: where one is missing, some proxies pass on what the client made up."""
    user = request.user
    who = (str(user.id), _in_ascii(user.email), _in_ascii(user.name), user.role) if user else NOBODY
    asserted = ""
    secret, method, host, path = request.settings.assertion_secret, asked.method, asked.host, asked.path
    if user and secret and method and host and path:
        until = int(service.now().timestamp()) + ASSERTED_FOR
        asserted = assertion(secret, until=until, of=(*who, method, host, path))
    return [*zip(NAMES, who, strict=True), ("Remote-Assertion", asserted)]


def _in_ascii(text: str) -> str:
    """As a header can hold it: readable where it is printable ASCII, and otherwise UTF-8 in percent signs."""
    is_plain = text.isascii() and text.isprintable() and "%" not in text
    return text if is_plain else quote(text, safe=_READABLE)
