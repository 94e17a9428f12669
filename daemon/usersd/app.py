"""The application from the table: identify, admit, run, refuse as JSON.

Of Bottle it uses the router and the templates. Its request and response objects stay out: they drop bytes of the path,
believe forwarded headers and forget cookies (see `request`).
"""

import time
from collections.abc import Callable, Iterable
from typing import Any

import bottle

from usersctl import errors
from usersctl.models import Role
from usersctl.oauth.refusals import FAILED
from usersctl.service import Service
from usersd import access, paths
from usersd.counters import LOGINS, SUCCESS, Counters
from usersd.handlers.oauth import callback, failure
from usersd.log import Log, redacted
from usersd.pages import pages
from usersd.rate_limits import RateLimits
from usersd.request import BadRequest, Request, new_request_id
from usersd.response import HSTS, JSON, STATUS_LINES, Header, Response, as_json, error_response, unavailable
from usersd.routes import TABLE
from usersd.routing import Access, Route
from usersd.server.lanes import Lane, MustWait

StartResponse = Callable[..., Any]

# What each refusal of the core is to HTTP; the nearest class decides.
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
    """A WSGI application. `listening`: the address that it is reached at, where that is known."""

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
        self.settings = service.settings
        self.log = log
        self.listening = listening
        self.counters = counters
        self.limits = RateLimits(service.settings, service.now)
        self.whitelist = paths.Whitelist(service.settings.whitelist)
        # By its own name only: whoever opens all pages by a pattern has not said that anybody may have an account.
        self.registration_is_open = paths.REGISTRATION in service.settings.whitelist
        # By path and not by method, so that a wrong method is refused by who asks. Plain paths need no pattern, and a
        # colon in them is none: Bottle would take it for a wildcard of its old syntax.
        table = tuple(self._configured(route) for route in table)
        self._plain: dict[str, dict[str, Route]] = {}
        self._router = bottle.Router()
        self._lanes = {
            (route.method, route.path): route.lane for route in table if route.lane is not Lane.QUICK
        }
        patterns: dict[str, dict[str, Route]] = {}
        for route in table:
            known = patterns if "<" in route.path else self._plain
            known.setdefault(route.path, {})[route.method] = route
        for path, methods in patterns.items():
            self._router.add(path, "ANY", methods)

    def __call__(self, environ: dict[str, Any], start_response: StartResponse) -> Iterable[bytes]:
        began = time.perf_counter()
        request = Request(environ, self.settings)
        try:
            answer = self._answer(request)
        except Exception as error:  # noqa: BLE001 - the one place where everything ends as an answer
            answer = self._refused(request, error)
        answer = pages.instead(request, answer)
        headers = [
            *self._told(request, answer, time.perf_counter() - began),
            ("Content-Length", str(len(answer.body))),
        ]
        start_response(STATUS_LINES[answer.status], headers)
        return [] if request.method == "HEAD" else [answer.body]

    def lane(self, method: str, path: str) -> Lane:
        """Which threads a request is for: who only reads must not wait for those who write."""
        otherwise = Lane.QUICK if method in access.SAFE_METHODS else Lane.WRITING
        return self._lanes.get(("GET" if method == "HEAD" else method, path), otherwise)

    def _configured(self, route: Route) -> Route:
        is_callback = route.handler is callback
        return route._replace(path=self.settings.oauth_callback_url) if is_callback else route

    def refuse(self, status: int, message: str, environ: dict[str, Any] | None) -> Response:
        """What the server refuses by itself: the same headers, a line in the log. `environ`: None where what came is no
        request to speak of."""
        if environ is not None:
            request = Request(environ, self.settings)
            request.route = self._match(request.path)[0].get(
                "GET" if request.method == "HEAD" else request.method
            )
            answer = error_response(status, message)
            if request.route is not None and request.route.signs_in:
                answer = self._sign_in_refused(request, errors.Busy(message, retry_after=2))
            return answer._replace(headers=tuple(self._told(request, answer, 0.0)))
        request_id = new_request_id()
        self.log.event("request", status=status, request=request_id)
        if self.counters is not None:
            self.counters.request(None, status, 0.0)
        headers = (("X-Request-Id", request_id), *((HSTS,) if self.settings.https else ()))
        return error_response(status, message, *headers)

    def _told(self, request: Request, answer: Response, took: float) -> list[Header]:
        """The log and the figures are told; the headers that the answer goes out with."""
        self._log_request(request, answer, took)
        if self.counters is not None:
            self.counters.request(request.route, answer.status, took)
        return [
            *answer.headers,
            ("X-Request-Id", request.request_id),
            *request.response_headers,
            *access.renewed_cookie(request, self.service),
            *self._site_headers(request, answer),
        ]

    # --- the way of a request ---

    def _answer(self, request: Request) -> Response:
        methods, found = self._match(request.path)
        route = methods.get("GET" if request.method == "HEAD" else request.method)
        request.route = route
        if access.is_cross_site(request):
            return error_response(403, "Cross-site requests are not allowed")
        if (
            request.method == "OPTIONS"
            and methods
            and access.allowed_origin_headers(request, self.settings)[1:]
        ):
            return self._preflight(methods)
        if route is None:
            return self._without_route(request, methods)
        refused = self._admit(request, route, found)
        if refused is not None:
            return refused
        return self._run(request, route)

    def _match(self, path: str | None) -> tuple[dict[str, Route], dict[str, str]]:
        if path is None:
            return {}, {}
        if path in self._plain:
            return self._plain[path], {}
        try:
            methods, found = self._router.match({"REQUEST_METHOD": "ANY", "PATH_INFO": path})
        except bottle.HTTPError:
            return {}, {}
        # The end of Bottle's patterns is also before a line end, which is in none of what was found.
        if path.endswith("\n") and not any(text.endswith("\n") for text in found.values()):
            return {}, {}
        return methods, found

    def _admit(self, request: Request, route: Route, found: dict[str, str]) -> Response | None:
        """In this order: 401, 400 for an id, 403. What comes after is the handler's."""
        level = self._level(route)
        if level is not Access.ANYONE:
            access.identify(request, self.service)
            if request.user is None and not self._is_open(request, route):
                return access.refuse_anonymous(request)
            if level is Access.REGISTRATION:
                return error_response(403, "Registration is closed")
        for name, text in found.items():
            if name in ("id", "session_id"):
                request.ids[name] = request.id_from(name, text)
        request.parts = found
        if level in (Access.ADMIN, Access.OPERATOR) and request.user and request.user.role != Role.ADMIN:
            return error_response(403, "Admin access required")
        return None

    def _level(self, route: Route) -> Access:
        is_open = route.access is Access.REGISTRATION and self.registration_is_open
        return Access.ANYONE if is_open else route.access

    def _is_open(self, request: Request, route: Route) -> bool:
        return route.access is Access.OPERATOR and access.is_at_this_machine(request, self.listening)

    def _run(self, request: Request, route: Route) -> Response:
        limit = route.limit
        if route.once and (request.method == "HEAD" or request.looks_ahead):
            return error_response(
                405, "This uses something up, and is done by a GET that is meant", ("Allow", route.method)
            )
        try:
            if limit is not None:
                self.limits.before(limit, request.ip)
            result = route.handler(request, self.service)
        except errors.UsersError as error:
            if limit is not None:
                self.limits.failed(limit, request.ip, error)
            if route.event is not None and not route.signs_in:  # that one has a line of its own
                self._log_event(request, f"{route.event}-refused", reason=error.code)
            raise
        if route.event is not None:
            self._log_event(request, route.event)
        return result if isinstance(result, Response) else as_json(result)

    def _without_route(self, request: Request, methods: dict[str, Route]) -> Response:
        """An unknown path, or a known one with a method that it does not have."""
        if not methods and request.path is not None and request.path in self.whitelist:
            return error_response(404, "Not found")
        access.identify(request, self.service)
        if not methods:
            return error_response(404, "Not found") if request.user else access.refuse_anonymous(request)
        # Whoever may use one of its methods may know that there is no other.
        levels = {self._level(route) for route in methods.values()}
        is_open = Access.ANYONE in levels or any(self._is_open(request, route) for route in methods.values())
        if request.user is None and not is_open:
            return access.refuse_anonymous(request)
        if levels <= {Access.ADMIN, Access.OPERATOR} and request.user and request.user.role != Role.ADMIN:
            return error_response(403, "Admin access required")
        return error_response(405, "Method not allowed", ("Allow", _allowed(methods)))

    def _preflight(self, methods: dict[str, Route]) -> Response:
        return Response(
            200,
            b"",
            (
                *JSON,
                ("Access-Control-Allow-Methods", _allowed(methods)),
                ("Access-Control-Allow-Headers", "Content-Type, Authorization"),
                ("Access-Control-Max-Age", "600"),
            ),
        )

    # --- refusals ---

    def _refused(self, request: Request, error: Exception) -> Response:
        if request.nonblocking and isinstance(error, errors.Busy):
            raise MustWait from None
        if isinstance(error, BadRequest):
            return error_response(error.status, str(error))
        if request.route is not None and request.route.signs_in:
            return self._sign_in_refused(request, error)
        status = next((STATUS[each] for each in type(error).__mro__ if each in STATUS), 500)
        if status == 500:
            self.log.error(error, request=request.request_id, method=request.method, path=_path_told(request))
            return error_response(500, "Internal server error")
        later: tuple[Header, ...] = ()
        if isinstance(error, errors.TooMany | errors.Busy | errors.LockedDown):
            later = (("Retry-After", str(error.retry_after)),)
        if isinstance(error, errors.StoreUnusable):
            # Its text names files, which are nobody's business outside.
            self.log.event("database", request=request.request_id, message=str(error))
            return unavailable()
        return error_response(status, str(error), *later)

    def _sign_in_refused(self, request: Request, error: Exception) -> Response:
        """A browser is on its way between two sites: whatever happened, it ends at a page."""
        if not isinstance(error, errors.UsersError):
            self.log.error(error, request=request.request_id, method=request.method, path=request.path)
        code = error.reason if isinstance(error, errors.SignInRefused) else FAILED
        why = str(error) if isinstance(error, errors.UsersError) else type(error).__name__
        self.log.event("oauth-refused", ip=request.ip, error=code, why=why, request=request.request_id)
        if self.counters is not None:
            self.counters.login("oauth", code)
        return failure(self.settings, code)

    def _site_headers(self, request: Request, answer: Response) -> list[Header]:
        headers: list[Header] = [HSTS] if self.settings.https else []
        if answer.status != 302:  # where a page is sent to is no business of another origin
            headers += access.allowed_origin_headers(request, self.settings)
        return headers

    def _log_event(self, request: Request, name: str, **more: str) -> None:
        user = request.user.id if request.user else None
        self.log.event(
            name,
            ip=request.ip,
            user=user,
            **request.ids,
            **request.log_fields,
            **more,
            request=request.request_id,
        )
        if self.counters is not None and request.route is not None and request.route.event in LOGINS:
            self.counters.login(LOGINS[request.route.event], more.get("reason", SUCCESS))

    def _log_request(self, request: Request, answer: Response, seconds: float) -> None:
        if answer.status == 200 and request.route is not None and request.route.is_probe:
            return
        self.log.event(
            "request",
            method=request.method,
            path=_path_told(request) + redacted(request.environ.get("QUERY_STRING", "")),
            status=answer.status,
            ms=round(seconds * 1000, 1),
            ip=request.ip,
            user=request.user.id if request.user else None,
            request=request.request_id,
        )


def _allowed(methods: dict[str, Route]) -> str:
    return ", ".join(sorted({*methods, "HEAD"} if "GET" in methods else methods))


def _path_told(request: Request) -> str:
    """The path for the log. Behind a question mark that somebody encoded there may be a token."""
    path: str = request.path if request.path is not None else request.environ.get("PATH_INFO", "")
    before, mark, _ = path.partition("?")
    return f"{before}?***" if mark else path
