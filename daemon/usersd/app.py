"""The application: match the path, identify the caller, admit, run the handler, answer errors as JSON."""

import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from usersctl import errors
from usersctl.models import Role, TokenKind
from usersctl.oauth.refusals import FAILED, LIMITED
from usersctl.service import Service
from usersd import access
from usersd.counters import LOGINS, SUCCESS, Counters
from usersd.handlers.oauth import failure
from usersd.log import Log, redacted, redacted_path
from usersd.page_access import Whitelist
from usersd.pages import layout
from usersd.rate_limits import RateLimits
from usersd.request import BadRequest, Request, new_request_id
from usersd.response import (
    JSON,
    Header,
    Response,
    WrongCredentials,
    as_json,
    error_response,
    hsts,
    send,
    unavailable,
)
from usersd.router import Match, Router
from usersd.routes import TABLE
from usersd.routing import ANY, SAFE_METHODS, Access, Route
from usersd.server.lanes import Lane, MustWait

# The status of each error of the core; the nearest class decides.
STATUS: dict[type[Exception], int] = {
    errors.Invalid: 400,
    errors.Unauthenticated: 401,
    errors.Forbidden: 403,
    errors.NotFound: 404,
    errors.TooMany: 429,
    errors.Busy: 503,
    errors.LockedDown: 503,
    errors.StoreUnusable: 503,
}


class App:
    """A WSGI application. `listening`: the address that it is served at, if that is known."""

    def __init__(
        self,
        service: Service,
        *,
        log: Log,
        listening: str | None = None,
        table: tuple[Route, ...] = TABLE,
        counters: Counters | None = None,
    ) -> None:
        self.service = service
        self.log = log
        self.listening = listening
        self.counters = counters
        self.limits = RateLimits(service)
        self.whitelist = Whitelist(service.settings.whitelist)
        self.router = Router(table, service.settings)
        self._hsts = hsts(service.settings)
        self._asks_for_factors = bool(service.settings.roles_with_factor)

    # --- the way of a request ---

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        return send(environ, start_response, self.answer(environ))

    def answer(self, environ: dict[str, Any]) -> Response:
        """The response with all its headers but Content-Length; its body is not for HEAD."""
        began = time.perf_counter()
        request = Request(environ, self.service.settings)
        match = self.router.match(request.path)
        route = match.methods.get(request.method)
        try:
            response = self._respond(request, match, route)
        except Exception as error:  # noqa: BLE001 - the one place where every error becomes a response
            response = self._error_response(request, route, error)
        if response.status >= 400 and not (route and route.is_probe):
            response = layout.instead(request, response)
        if route is not None and route.lane is Lane.AWAY:  # there are many threads for them
            self.service.store.rest()
        headers = self._headers(request, response)
        self._record(request, route, response, time.perf_counter() - began)
        return Response(response.status, response.body, headers)

    def _respond(self, request: Request, match: Match, route: Route | None) -> Response:
        """Refusals in this order: 403 for another site, 401, 400 for an id, 403; then those of the handler."""
        if request.method not in SAFE_METHODS and access.is_cross_site(request):
            return error_response(403, "Cross-site requests are not allowed")
        if request.method == "OPTIONS" and match.methods and access.is_from_allowed_origin(request):
            return _preflight(match)
        if route is None:
            return self._without_route(request, match)
        if route.access not in (Access.ANYONE, Access.THIS_MACHINE):
            access.identify(request, self.service)
            if request.user is None and not self._admits_anonymous(request, route):
                return access.sign_in_first(request)
        if match.segments:
            request.read_segments(match.segments)
        request.as_admin = route.access.is_for_admins
        refusal = (
            self._factor_first(request, route)
            or access.refuse_scope(request, route.scope)
            or self._forbidden(request, route)
        )
        if refusal is None and _is_own_change_by_token(request, route):
            refusal = error_response(403, "Sign in to change this")
        return refusal or self._run(request, route)

    def _factor_first(self, request: Request, route: Route) -> Response | None:
        if not self._asks_for_factors or not route.access.needs_session:
            return None
        page = access.factor_page(request)
        # The page that adds a factor is of no use to those who have one.
        if not page or (route.enrols and (page == access.ENROLMENT or access.is_api(request.path))):
            return None
        return access.factor_first(request, page)

    def _forbidden(self, request: Request, route: Route) -> Response | None:
        """For a caller with the wrong role, and for a route that is closed to all."""
        user = request.user
        if route.access is Access.REGISTRATION:
            return error_response(403, "Registration is closed")
        if route.access is Access.THIS_MACHINE and not self._admits_anonymous(request, route):
            return error_response(404, "Not found")
        if user is None or user.role == Role.ADMIN:
            return None
        if route.access in (Access.ADMIN, Access.OPERATOR):
            return error_response(403, "Admin access required")
        if route.access is Access.OWN_OR_ADMIN and request.ids["id"] != user.id:
            return error_response(403, "You may only read your own profile")
        return layout.forbidden(request) if route.access is Access.ADMIN_PAGE else None

    def _admits_anonymous(self, request: Request, route: Route) -> bool:
        if route.access in (Access.OPERATOR, Access.THIS_MACHINE):
            return access.is_at_this_machine(request, self.listening)
        return route.access in (Access.ANYONE, Access.OPTIONAL_SESSION)

    def _run(self, request: Request, route: Route) -> Response:
        if route.once and (request.method == "HEAD" or request.is_prefetch):
            return error_response(
                405, "This link works once and cannot be used with HEAD or prefetch", ("Allow", route.method)
            )
        try:
            self._limit(request, route)
            result = route.handler(request, self.service)
        except WrongCredentials as error:
            if request.nonblocking:  # several processes count in the database
                raise MustWait from None
            self.limits.refuse_or_count(route.limit, request.ip, error)
            return error.response
        except errors.UsersError as error:
            self.limits.count_failure(route.limit, request.ip, error)
            if route.event is not None and not route.signs_in:  # _sign_in_error_response logs those
                # A sign-in that goes on with its second step was not refused.
                end = "waits" if request.waits else "refused"
                why = {"why": error.why} if error.why else {}
                self._log_outcome(request, route.event, f"{route.event}-{end}", reason=error.code, **why)
            raise
        if route.event is not None and request.waits:  # after a sign-in through a provider
            reason = errors.SecondFactorRequired.code
            self._log_outcome(request, route.event, f"{route.event}-waits", reason=reason)
        elif route.event is not None:
            self._log_outcome(request, route.event, route.event)
        return result if isinstance(result, Response) else as_json(result)

    def _limit(self, request: Request, route: Route) -> None:
        if route.limit is None or route.judges_first:
            return
        try:
            self.limits.check(route.limit, request.ip, request.user)
        except errors.TooMany:
            if route.spares is None or not route.spares(request, self.service):
                raise

    def _without_route(self, request: Request, match: Match) -> Response:
        """An unknown path, or a known one with a method that it does not have."""
        if not match.methods and request.path is not None and request.path in self.whitelist:
            return error_response(404, "Not found")
        access.identify(request, self.service)
        # A caller who may use one method of the path may know that the others do not exist.
        routes = match.methods.values()
        if request.user is None and not any(self._admits_anonymous(request, route) for route in routes):
            return access.sign_in_first(request)
        if not routes:
            return error_response(404, "Not found")
        is_for_admins = all(route.access in (Access.ADMIN, Access.OPERATOR) for route in routes)
        if is_for_admins and request.user and request.user.role != Role.ADMIN:
            return error_response(403, "Admin access required")
        return error_response(405, "Method not allowed", ("Allow", match.allowed))

    def _headers(self, request: Request, response: Response) -> tuple[Header, ...]:
        request_id = ("X-Request-Id", request.request_id)
        headers = (*response.headers, request_id, *request.new_cookies.values(), *self._hsts)
        # The target of a redirect is not for other origins.
        if request.settings.allowed_origins and response.status != 302:
            headers += tuple(access.allowed_origin_headers(request))
        return headers

    # --- errors ---

    def _error_response(self, request: Request, route: Route | None, error: Exception) -> Response:
        if isinstance(error, MustWait) or (request.nonblocking and isinstance(error, errors.Busy)):
            raise MustWait from None
        if isinstance(error, BadRequest):
            return error_response(error.status, str(error))
        if route is not None and route.signs_in:
            return self._sign_in_error_response(request, error)
        if isinstance(error, errors.SignInRefused):  # of an endpoint that a script calls
            self._log_event(request, "oauth-refused", error=error.reason, why=str(error))
            message = "The provider cannot be reached, please try again later"
            return error_response(503, message, ("Retry-After", "10"))
        status = next((STATUS[kind] for kind in type(error).__mro__ if kind in STATUS), 500)
        if status == 500:
            self.log.error(
                error, request=request.request_id, method=request.method, path=_logged_path(request)
            )
            return error_response(500, "Internal server error")
        if isinstance(error, errors.StoreUnusable):
            # Its message names files, which clients must not learn.
            self.log.event("database", request=request.request_id, message=str(error), hint=error.hint)
            return unavailable()
        return error_response(status, str(error), *_headers_of(error))

    def _sign_in_error_response(self, request: Request, error: Exception) -> Response:
        """The browser is on its way between two sites: every error ends at the configured page."""
        code, why = FAILED, str(error)
        if isinstance(error, errors.SignInRefused):
            code = error.reason
            if error.detail is not None:
                request.leave_reason(error.detail)
            if error.account is not None:
                request.log_fields["account"] = error.account
        elif isinstance(error, errors.TooMany):
            request.leave_reason(LIMITED)
        elif not isinstance(error, errors.UsersError):
            why = type(error).__name__
            self.log.error(error, request=request.request_id, method=request.method, path=request.path)
        self._log_event(request, "oauth-refused", error=code, why=why)
        if self.counters is not None and not request.links:
            self.counters.login("oauth", code)
        return failure(request.errors_to or request.settings.oauth_error_redirect, code)

    def server_error(self, status: int, message: str, environ: dict[str, Any] | None) -> Response:
        """For an error that the server answers without a handler. `environ` is None if no request could be parsed."""
        if environ is not None:
            request = Request(environ, self.service.settings)
            route = self.router.match(request.path).methods.get(request.method)
            response = error_response(status, message)
            if route is not None and route.signs_in:
                response = self._sign_in_error_response(request, errors.Busy(message, retry_after=2))
            self._record(request, route, response, 0.0)
            return response._replace(headers=self._headers(request, response))
        request_id = new_request_id()
        self.log.event("request", status=status, request=request_id)
        if self.counters is not None:
            self.counters.request(None, status, 0.0)
        return error_response(status, message, ("X-Request-Id", request_id), *self._hsts)

    # --- log and counters ---

    def _log_outcome(self, request: Request, event: str, name: str, **more: str) -> None:
        self._log_event(request, name, **more)
        if self.counters is not None and event in LOGINS and not request.links:
            self.counters.login(LOGINS[event], more.get("reason", SUCCESS))

    def _log_event(self, request: Request, name: str, **more: str) -> None:
        self.log.event(
            name,
            ip=request.ip,
            user=request.user and request.user.id,
            **request.ids,
            **request.log_fields,
            **more,
            request=request.request_id,
        )

    def _record(self, request: Request, route: Route | None, response: Response, seconds: float) -> None:
        if self.counters is not None:
            self.counters.request(route, response.status, seconds)
        if route is not None and route.is_probe and response.status == 200:
            return
        self.log.event(
            "request",
            method=request.method,
            path=_logged_path(request) + redacted(request.environ.get("QUERY_STRING", "")),
            status=response.status,
            ms=round(seconds * 1000, 1),
            ip=request.ip,
            user=request.user and request.user.id,
            request=request.request_id,
        )


def _headers_of(error: Exception) -> Iterator[Header]:
    if isinstance(error, errors.Inactive):
        yield "X-Account-State", error.state
    if isinstance(error, errors.TooMany | errors.Busy | errors.LockedDown):
        yield "Retry-After", str(error.retry_after)


def _is_own_change_by_token(request: Request, route: Route) -> bool:
    session = request.session
    if route.own is None or session is None or session.kind != TokenKind.API:
        return False
    is_own = request.ids.get("id", session.user_id) == session.user_id
    return is_own and (route.own == ANY or route.own in request.body)


def _preflight(match: Match) -> Response:
    headers = (
        ("Access-Control-Allow-Methods", match.allowed),
        ("Access-Control-Allow-Headers", "Content-Type, Authorization"),
        ("Access-Control-Max-Age", "600"),
    )
    return Response(200, b"", (*JSON, *headers))


def _logged_path(request: Request) -> str:
    return redacted_path(request.path or request.environ.get("PATH_INFO", ""))
