"""Page access for another application in this process: a WSGI wrapper, and the current user.

application = Gate(application, build(settings))
"""

import re
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

from usersctl.errors import UsersError
from usersctl.service import Service
from usersd import access, page_access, threads
from usersd.pages import layout
from usersd.request import Request, drop_original
from usersd.response import Header, Response, error_response, send_refusal, unavailable

if TYPE_CHECKING:
    from usersd.app import App
    from usersd.embedded import Embedded

WSGI = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]
_KEY = "usersd.user"  # not HTTP_..., so no client can set it


class Refused(Exception):
    """Raised by `require_user`, `require_role` and `require_group`, with a status and its JSON body."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.body = {"statusCode": status, "statusMessage": message}


class Gate:
    """Lets in signed-in users with the role or group that `auth.roleRules` asks for, and anyone to what `auth.whitelist` opens.

    With `pages` it also serves the pages and the interface of the service, sends emails and runs the schedule.
    """

    def __init__(self, app: WSGI, service: Service, *, pages: bool = False) -> None:
        self.app = app
        self.service = service
        self.access = page_access.PageAccess.of(service.settings)
        self.accounts: Embedded[App] | None = None  # the service, on its own paths
        service.close()  # the server may fork now; each thread opens a connection of its own
        if pages:
            from usersd.embedded import accounts_of  # late: a gate alone needs no daemon

            self.accounts = accounts_of(service)

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        threads.check()
        request = Request(environ, self.service.settings)
        refuse = partial(send_refusal, environ, start_response, settings=request.settings)
        try:
            accounts = self.accounts and self.accounts.opened()
            if accounts and accounts.router.keeps(request.path):
                drop_original(environ, request.settings)
                return accounts(environ, start_response)
            access.identify(request, self.service, groups=True)
        except UsersError:
            return refuse(unavailable())
        refusal = self._refusal(request)
        if refusal is not None:
            return refuse(refusal._replace(headers=(*refusal.headers, *request.new_cookies.values())))
        environ[_KEY] = _known(request)
        if not request.new_cookies:
            return self.app(environ, start_response)

        def start_with_cookie(status: str, headers: list[Header], *rest: Any) -> Any:
            return start_response(status, [*_for_one(headers), *request.new_cookies.values()], *rest)

        return self.app(environ, start_with_cookie)

    def close(self) -> None:
        """For tests that make an application each: else its threads and files stay open until the process ends."""
        if self.accounts:
            self.accounts.close()
        self.service.close()

    def _refusal(self, request: Request) -> Response | None:
        scope_refusal = access.drop_without_scope(request)
        factor_page = access.drop_without_factor(request)
        verdict = self.access.verdict(request.user, request.path, request.session)
        if verdict == 200:
            return None
        if scope_refusal is not None:
            return scope_refusal
        if factor_page:
            return access.factor_first(request, factor_page)
        if verdict == 401:
            return access.sign_in_first(request)
        refusal = self.access.refusal(request.user, request.path)
        if access.shows_a_page(request):
            return layout.forbidden(request, refusal.page)
        return error_response(403, refusal.message)


def _for_one(headers: Iterable[Header]) -> Iterator[Header]:
    """A cache that visitors share may keep an answer with its cookie, which is a session, if the application lets it (RFC
    9111 7.3)."""
    is_private = False
    for name, value in headers:
        if name.lower() == "cache-control" and re.search("private|no-store", value, re.IGNORECASE):
            is_private = True
        elif name.lower().endswith(("cache-control", "surrogate-control")):
            continue  # also those for a network of caches alone, such as CDN-Cache-Control
        yield name, value
    if not is_private:
        yield "Cache-Control", "private"


def _known(request: Request) -> dict[str, Any] | None:
    user, session = request.user, request.session
    if user is None or session is None:
        return None
    return user.as_known() | {"groups": list(user.groups), "auth": session.proofs.split()}


def current_user(environ: dict[str, Any]) -> dict[str, Any] | None:
    """The user object, without a password, the user's `groups`, and what the session was opened with (`auth`); None without
    a session."""
    if _KEY not in environ:
        raise RuntimeError("current_user() needs the application to be wrapped in usersd.gate.Gate")
    user: dict[str, Any] | None = environ[_KEY]
    return user


def require_user(environ: dict[str, Any]) -> dict[str, Any]:
    user = current_user(environ)
    if user is None:
        raise Refused(401, "Authentication required")
    return user


def require_role(environ: dict[str, Any], role: str) -> dict[str, Any]:
    user = require_user(environ)
    if not page_access.suffices(user["role"], role):
        raise Refused(403, f"{role.capitalize()} access required")
    return user


def require_group(environ: dict[str, Any], *groups: str) -> dict[str, Any]:
    """A member of any of these groups."""
    user = require_user(environ)
    if not set(groups).intersection(user["groups"]):
        raise Refused(403, page_access.FOR_MEMBERS.message)
    return user
