"""`serve --dev --app ADDRESS`: a proxy for development in front of one application on this machine.

For each request it asks `verify`, as nginx or Caddy would, and does with the answer what their snippets do.
"""

import http.client
import re
from collections.abc import Callable, Iterable, Iterator
from ipaddress import ip_network
from typing import Any
from urllib.parse import urlsplit

from usersctl.config import Settings
from usersctl.config.values import host_and_port, is_loopback
from usersctl.errors import Invalid, UsersError
from usersctl.identity_headers import ASSERTION, known_names
from usersd.access import own_path, wants_a_page
from usersd.app import App
from usersd.handlers.verify import verify
from usersd.pages import layout
from usersd.request import FORWARDING, Request
from usersd.response import JSON, Response, WrongCredentials, error_response, send_refusal, unavailable
from usersd.server.connections import Hosted
from usersd.server.lanes import Lane

MAX_UPLOAD = 1024 * 1024 * 1024  # bytes
TO_ANSWER = 60.0  # seconds between two parts of an answer
VERIFY = "/api/users/auth/verify"
PROXY = "127.0.0.1"  # the only proxy that `verify` believes here: this one

# Headers that concern one connection only (RFC 9110 7.6.1), and those that the server here writes or has dealt with.
CONNECTION = [
    "connection",
    "date",
    "expect",
    "keep-alive",
    "proxy-authenticate",
    "proxy-authorization",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
]
SECRETS = ("cookie", "authorization")  # `verify` says what goes on of these
FROM_PROXIES = ("HTTP_REMOTE_", "HTTP_X_REMOTE_", "HTTP_X_FORWARDED", "HTTP_X_ORIGINAL_", "HTTP_X_REWRITE_")


def application_at(url: str, settings: Settings) -> tuple[str, int]:
    """Host and port of an application on this machine, which is not this daemon itself."""
    hint = "give its address, such as 127.0.0.1:5000 or http://127.0.0.1:5000"
    is_url = "://" in url
    try:
        parts = urlsplit(url if is_url else f"http://{url}")
        host, port = parts.hostname or "", 80 if is_url and parts.port is None else parts.port
    except ValueError:
        raise Invalid(f"--app {url!r}: not an address", hint=hint) from None
    if (
        parts.scheme != "http"
        or not port
        or parts.path not in ("", "/")
        or parts.query
        or parts.fragment
        or parts.username
    ):
        raise Invalid(f"--app {url!r}: not an address of the form HOST:PORT or http://HOST:PORT", hint=hint)
    if not is_loopback(host):
        raise Invalid(
            f"--app {url!r}: the development proxy leads to this machine only",
            hint="for others see: usersctl snippet nginx",
        )
    if port == settings.port:
        raise Invalid(f"--app {url!r}: that is the port of this daemon", hint="choose another with --port")
    return host, port


def in_front_of(address: tuple[str, int], app: App, hosted: Hosted) -> Hosted:
    """The same daemon with an application behind it."""
    proxy = DevProxy(app, address)
    return hosted._replace(app=proxy, answer=None, lane=proxy.lane, max_body=MAX_UPLOAD)


class DevProxy:
    """A WSGI application: the service on its own paths, and the application behind it on all others."""

    def __init__(self, app: App, address: tuple[str, int]) -> None:
        self._app = app
        self._address = address
        settings = app.service.settings
        self._believing = settings._replace(trusted_proxies=(ip_network(PROXY),))
        names = (*known_names(), ASSERTION, *(name for name, _ in settings.forward_headers))
        self._identity = {f"HTTP_{name.upper().replace('-', '_')}" for name in names} | set(FORWARDING)

    def lane(self, method: str, path: str) -> Lane:
        router = self._app.router
        return router.lane(method, path) if router.keeps(path) else Lane.AWAY

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        request = Request(environ, self._app.service.settings)
        if request.path != VERIFY and self._app.router.keeps(request.path):
            return self._app(environ, start_response)
        answer = self._refusal(request) or self._verified(request)
        if answer.status != 200:
            return send_refusal(environ, start_response, answer, request.settings)
        headers = self._of_visitor(environ) | dict(answer.headers[len(JSON) :])
        connection = http.client.HTTPConnection(*self._address, timeout=TO_ANSWER)
        try:
            body = environ["wsgi.input"] if "CONTENT_LENGTH" in environ else None
            connection.request(request.method, environ["REQUEST_URI"], body, headers)
            response = connection.getresponse()
        except (OSError, http.client.HTTPException):
            connection.close()
            return send_refusal(environ, start_response, self._away(request), request.settings)
        kept = [(name, value) for name, value in response.getheaders() if name.lower() not in CONNECTION]
        start_response(f"{response.status} {response.reason or '-'}", kept)
        return _parts(connection, response)

    def _refusal(self, request: Request) -> Response | None:
        if request.path == VERIFY:
            return error_response(404, "Not found")
        if request.environ.get("HTTP_UPGRADE", "").lower() == "websocket":
            return error_response(501, "The development proxy passes on no WebSockets")
        return None

    def _verified(self, request: Request) -> Response:
        """What `verify` says of this request; its headers go to the application."""
        asked = self._without_identity(request.environ) | {
            "REQUEST_METHOD": "GET",
            "PATH_INFO": VERIFY,
            "REQUEST_URI": VERIFY,
            "QUERY_STRING": "",
            "REMOTE_ADDR": PROXY,
            "HTTP_X_ORIGINAL_METHOD": request.method,
            "HTTP_X_ORIGINAL_URL": request.environ["REQUEST_URI"],
        }
        try:
            return verify(Request(asked, self._believing), self._app.service)
        except WrongCredentials as wrong:
            return wrong.response
        except UsersError:
            return unavailable()

    def _of_visitor(self, environ: dict[str, Any]) -> dict[str, str]:
        """The headers of the visitor that go on to the application as they are."""
        headers = {
            name.removeprefix("HTTP_").replace("_", "-").title(): value
            for name, value in self._without_identity(environ).items()
            if name.startswith("HTTP_") or name in ("CONTENT_TYPE", "CONTENT_LENGTH")
        }
        kept = {name: value for name, value in headers.items() if name.lower() not in (*CONNECTION, *SECRETS)}
        return kept | {
            "X-Forwarded-For": environ["REMOTE_ADDR"],
            "X-Forwarded-Host": headers.get("Host", ""),
            "X-Forwarded-Proto": "http",
        }

    def _without_identity(self, environ: dict[str, Any]) -> dict[str, Any]:
        """Without what only proxies may say."""
        return {
            name: value
            for name, value in environ.items()
            if _read_as(name) not in self._identity and not _read_as(name).startswith(FROM_PROXIES)
        }

    def _away(self, request: Request) -> Response:
        url = f"http://{host_and_port(*self._address)}"
        if wants_a_page(request.environ, request.method):
            again = own_path(request.environ["REQUEST_URI"]) or "/"
            return layout.page(request, "away", url=url, again=again)._replace(status=502)
        return error_response(502, f"The application at {url} does not answer")


def _read_as(name: str) -> str:
    """The name of a header as the most lenient servers read it."""
    return re.sub(r"[^A-Z0-9]", "_", name)


def _parts(connection: http.client.HTTPConnection, response: http.client.HTTPResponse) -> Iterator[bytes]:
    """Each part of the body as soon as it arrives."""
    try:
        while part := response.read1():
            yield part
    finally:
        connection.close()
