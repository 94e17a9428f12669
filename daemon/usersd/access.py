"""Who is let in: sessions, other sites, this machine. One rule for the daemon's routes and for applications behind the gate."""

import re
from datetime import datetime
from typing import Any
from urllib.parse import quote

from usersctl.clock import moment
from usersctl.config.providers import host_of
from usersctl.config.values import is_loopback
from usersctl.models import Session, TokenKind
from usersctl.scopes import Scope, permits
from usersctl.service import Service
from usersd.assurance import has_two_factors, is_through
from usersd.request import Request
from usersd.response import Header, Response, error_response, redirect_to

API = ("/api/", "/_tasks/")
REFUSED_AS_PAGES = (400, 403, 404, 500, 503)  # where `shows_a_page`
SECOND_STEP = "/second-factor"  # the page that asks for the second factor of a session or a sign-in
ENROLMENT = "/account"  # the page where a user adds one

# What a script of an allowed origin may read.
EXPOSED = "Retry-After, X-Request-Id, X-Account-State, X-Awaiting-Confirmation, X-Invited"

# One slash, and no character that a browser reads as a second one, drops, or takes for the end of the address.
_OWN_PATH = re.compile(r"/(?![/\\])[!-\[\]-~]*", re.ASCII)


def identify(request: Request, service: Service, *, renews: bool = True, groups: bool = False) -> None:
    """Tries each token of the request: the bearer token, then the cookies. `renews`, `groups`: see Sessions.check."""
    for token in filter(None, (request.bearer, *request.cookie_tokens)):
        known = service.sessions.check(
            token, renews=renews, nonblocking=request.nonblocking, groups=groups, caller=request
        )
        if known:
            session, request.user = known
            request.session, request.token, request.by_cookie = session, token, token != request.bearer
            if session.moved and request.by_cookie and session.kind == TokenKind.PERSISTENT:
                renew_cookie(request, session, token, service.now())
            return


def refuse_scope(request: Request, scope: Scope | None) -> Response | None:
    """403 for an API token whose scopes do not open a route of this scope; None: a route that no scope opens."""
    session = request.session
    if session is None or permits(session.scopes, scope):
        return None
    if scope is None:
        return error_response(403, "Tokens with scopes cannot do this")
    return error_response(403, f"Token lacks the scope {scope}")


def drop_without_scope(request: Request) -> Response | None:
    """To applications, a token without the scope `verify` is a visitor without a session. Returns the refusal of pages that
    need one."""
    refusal = refuse_scope(request, Scope.VERIFY)
    if refusal is not None:
        request.user = request.session = None
    return refusal


def factor_page(request: Request) -> str:
    """Where the caller must have a second factor: the page that comes before all else, to add one, or to prove it in a session
    that began without; empty if neither is missing. A provider that vouches for a second factor is as good as one."""
    roles = request.settings.roles_with_factor
    if not roles:
        return ""
    user, session = request.user, request.session
    if user is None or session is None or session.kind == TokenKind.API:
        return ""
    if user.role not in roles or is_through(session, request.settings.trusted_providers):
        return ""
    if not user.factors:
        return ENROLMENT
    return "" if has_two_factors(session, ()) else SECOND_STEP


def drop_without_factor(request: Request) -> str:
    """To applications, a user whose second factor comes first is a visitor without a session. Returns its page."""
    page = factor_page(request)
    if page:
        request.user = request.session = None
    return page


def renew_cookie(request: Request, session: Session, token: str, now: datetime) -> None:
    """A persistent cookie ends with its session, another one with the browser."""
    max_age = None
    if session.kind == TokenKind.PERSISTENT and session.expires_at is not None:
        max_age = max(0, int((moment(session.expires_at) - now).total_seconds()))
    request.new_cookies.set(request.settings.session_cookie, token, max_age=max_age)


def is_cross_site(request: Request) -> bool:
    """A change that a browser sends for a page of another site. Without both headers the client is not a browser."""
    origin = request.environ.get("HTTP_ORIGIN")
    if origin is not None and origin in request.settings.allowed_origins:
        return False
    site = request.environ.get("HTTP_SEC_FETCH_SITE")
    if site is not None:
        return site not in ("same-origin", "none")
    return origin is not None and origin not in (request.settings.base_url, request.settings.loopback_url)


def is_navigation_of_another_site(request: Request) -> bool:
    """A page of another site sends the browser here without a click of its visitor. Older browsers do not say."""
    site = request.environ.get("HTTP_SEC_FETCH_SITE", "none")
    return (
        site not in ("same-origin", "same-site", "none")
        and request.environ.get("HTTP_SEC_FETCH_USER") != "?1"
    )


def wants_a_page(environ: dict[str, Any], method: str) -> bool:
    """Whether a browser is about to show the response: it says so, or, if it is an older one, accepts HTML."""
    if method not in ("GET", "HEAD"):
        return False
    mode: str | None = environ.get("HTTP_SEC_FETCH_MODE")
    if mode:
        return mode == "navigate"
    return "text/html" in environ.get("HTTP_ACCEPT", "")


def shows_a_page(request: Request) -> bool:
    """The same, of a path that is for browsers."""
    return not is_api(request.path) and wants_a_page(request.environ, request.method)


def sign_in_first(request: Request) -> Response:
    """401 for the API; a page redirects to the login and back. With a session: to the second factor that it lacks."""
    page, message = "/login", "Authentication required"
    if request.user is not None:
        page, message = SECOND_STEP, "Second factor required"
    if is_api(request.path) or request.method not in ("GET", "HEAD"):
        return error_response(401, message)
    return _to_page_and_back(page, request)


def factor_first(request: Request, page: str) -> Response:
    """403; a browser that is about to show a page is led to this one, and back."""
    if shows_a_page(request):
        return _to_page_and_back(page, request)
    return error_response(403, "Second factor required")


def _to_page_and_back(page: str, request: Request) -> Response:
    target = quote(request.path or "/", safe="/:@!$&'()*+,;=-._~")
    query = request.environ.get("QUERY_STRING", "")
    if query:
        target += "?" + query
    return redirect_to(f"{page}?redirect={quote(target, safe='/')}")


def own_path(target: str | None) -> str:
    """A path of this site to go to after a sign-in, or "" for any other target. pages/script.js has the same rule."""
    return target if target is not None and _OWN_PATH.fullmatch(target) else ""


def is_api(path: str | None) -> bool:
    return path is None or path.startswith(API) or path in ("/api", "/_tasks")


def is_at_this_machine(request: Request, listening: str | None) -> bool:
    """A fresh installation on the caller's own machine: configured for loopback, listening there, called from there, without a
    proxy, and by a loopback name: a page elsewhere may have pointed its own name to this machine (DNS rebinding). A proxy
    without a configuration of its own adds no header, but speaks HTTP/1.0 (nginx)."""
    return (
        is_loopback(listening or "")
        and is_loopback(host_of(request.settings.base_url))
        and is_loopback(host_of("//" + request.environ.get("HTTP_HOST", "")))
        and is_loopback(request.environ.get("REMOTE_ADDR", ""))
        and request.environ.get("SERVER_PROTOCOL") == "HTTP/1.1"
        and not request.is_forwarded
    )


def is_from_allowed_origin(request: Request) -> bool:
    return is_api(request.path) and request.environ.get("HTTP_ORIGIN") in request.settings.allowed_origins


def allowed_origin_headers(request: Request) -> list[Header]:
    """CORS with credentials, for the API and the configured origins only."""
    if not is_api(request.path):
        return []
    headers = [("Vary", "Origin")]
    if is_from_allowed_origin(request):
        headers.append(("Access-Control-Allow-Origin", request.environ["HTTP_ORIGIN"]))
        headers.append(("Access-Control-Allow-Credentials", "true"))
        headers.append(("Access-Control-Expose-Headers", EXPOSED))
    return headers
