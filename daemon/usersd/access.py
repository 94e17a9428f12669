"""Who is let in: sessions, whitelist, origins. One rule for the daemon's own routes and for applications behind the gate."""

import ipaddress
import re
from typing import Any
from urllib.parse import quote, urlsplit

from usersctl.clock import moment
from usersctl.config import Settings
from usersctl.config.values import is_loopback
from usersctl.service import Service
from usersd.cookies import cookie
from usersd.request import Request
from usersd.response import Header, Response, error_response, redirect_to

API = ("/api/", "/_tasks/")
SAFE_METHODS = ("GET", "HEAD", "OPTIONS")


# One slash, and nothing that a browser reads as a second one, drops, or takes for the end of the address.
_INSIDE = re.compile(r"/(?![/\\])[!-\[\]-~]*", re.ASCII)


def identify(request: Request, service: Service, *, renews: bool = True) -> None:
    """Each token that came along is tried: a bearer, then what cookies there are. `renews`: see Sessions.check."""
    if request.bearer is not None:
        found = service.sessions.check(request.bearer, renews=renews, nonblocking=request.nonblocking)
        if found is not None:
            request.session, request.user, request.token = found[0], found[1], request.bearer
            return
    for token in request.cookie_tokens:
        found = service.sessions.check(token, renews=renews, nonblocking=request.nonblocking)
        if found is not None:
            request.session, request.user, request.token, request.by_cookie = found[0], found[1], token, True
            return


def renewed_cookie(request: Request, service: Service) -> tuple[Header, ...]:
    """A persistent cookie lives on with its session: sent again whenever the session's expiry was moved. And any cookie
    is, whose token was replaced."""
    session = request.session
    if not request.by_cookie or session is None or request.token is None:
        return ()
    if session.kind != "persistent" or session.expires_at is None:
        return (cookie(request.settings, request.token, max_age=None),) if request.has_new_token else ()
    if not session.moved and not request.has_new_token:
        return ()
    left = int((moment(session.expires_at) - service.now()).total_seconds())
    return (cookie(request.settings, request.token, max_age=max(0, left)),)


def is_cross_site(request: Request) -> bool:
    """A change that another site's page asks a browser for. Without either header it is no browser."""
    if request.method in SAFE_METHODS:
        return False
    origin = request.environ.get("HTTP_ORIGIN")
    if origin is not None and origin in request.settings.allowed_origins:
        return False
    site = request.environ.get("HTTP_SEC_FETCH_SITE")
    if site is not None:
        return site not in ("same-origin", "none")
    return origin is not None and origin != request.settings.base_url


def wants_a_page(environ: dict[str, Any], method: str) -> bool:
    """Whether a browser is about to show what comes: its own word, and from an older one what it says that it takes."""
    if method not in ("GET", "HEAD"):
        return False
    mode: str | None = environ.get("HTTP_SEC_FETCH_MODE")
    return mode == "navigate" if mode else "text/html" in environ.get("HTTP_ACCEPT", "")


def refuse_anonymous(request: Request) -> Response:
    """An API says so; a page sends a browser to log in and back."""
    if is_api(request.path):
        return error_response(401, "Authentication required")
    if request.method not in ("GET", "HEAD"):
        return error_response(401, "Authentication required")
    target = quote(request.path or "/", safe="/:@!$&'()*+,;=-._~")
    query = request.environ.get("QUERY_STRING", "")
    if query:
        target += "?" + query
    return redirect_to("/login?redirect=" + quote(target, safe="/"))


def own_path(target: str | None) -> str:
    """A path of this site, to go to after a sign-in; anything else is none. The same as in pages/script.js."""
    return target if target is not None and _INSIDE.fullmatch(target) else ""


def is_api(path: str | None) -> bool:
    return path is None or path.startswith(API) or path in ("/api", "/_tasks")


def is_at_this_machine(request: Request, listening: str | None) -> bool:
    """A fresh installation on one's own machine: configured for it, listening there, asked from there, by no proxy, and
    by its own name: a page elsewhere may have had its name turned to this machine (DNS rebinding)."""
    return (
        listening is not None
        and is_loopback(listening)
        and is_loopback(_host_of(request.settings.base_url))
        and is_loopback(_host_of("//" + request.environ.get("HTTP_HOST", "")))
        and _is_loopback_address(request.environ.get("REMOTE_ADDR", ""))
        and not request.is_forwarded
    )


def _host_of(url: str) -> str:
    try:
        return urlsplit(url).hostname or ""
    except ValueError:
        return ""


def _is_loopback_address(address: str) -> bool:
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return False


def allowed_origin_headers(request: Request, settings: Settings) -> tuple[Header, ...]:
    """CORS with credentials for the interface and the origins that the configuration names, and nothing for anybody else."""
    if not settings.allowed_origins or not is_api(request.path):
        return ()
    vary: Header = ("Vary", "Origin")
    origin = request.environ.get("HTTP_ORIGIN")
    if origin not in settings.allowed_origins:
        return (vary,)
    return (vary, ("Access-Control-Allow-Origin", origin), ("Access-Control-Allow-Credentials", "true"))
