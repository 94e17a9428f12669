"""A response: status, headers and body; and the headers that every response has."""

import json
from collections.abc import Callable
from http import HTTPStatus
from typing import Any

from usersctl.config import Settings
from usersctl.errors import Unauthenticated
from usersctl.named import NamedTuple

Header = tuple[str, str]


class Response(NamedTuple):
    status: int
    body: bytes
    headers: tuple[Header, ...] = ()


class WrongCredentials(Unauthenticated):
    """Counts as a failed login, and has a response of its own."""

    def __init__(self, response: Response) -> None:
        super().__init__("Authentication required")
        self.response = response


ALWAYS: tuple[Header, ...] = (("X-Content-Type-Options", "nosniff"), ("Referrer-Policy", "no-referrer"))
UNSTORED: tuple[Header, ...] = (("Cache-Control", "no-store"), *ALWAYS)  # of all but static files
NO_PAGE: Header = ("Content-Security-Policy", "default-src 'none'; frame-ancestors 'none'")
JSON: tuple[Header, ...] = (
    ("Content-Type", "application/json; charset=utf-8"),
    NO_PAGE,
    *UNSTORED,
)
_PAGE_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self';"
    " form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
PAGE: tuple[Header, ...] = (
    ("Content-Type", "text/html; charset=utf-8"),
    ("Content-Security-Policy", _PAGE_POLICY),
    *UNSTORED,
)

CHALLENGE = "WWW-Authenticate"
STATUS_LINES = {status.value: f"{status.value} {status.phrase}" for status in HTTPStatus}

_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


def hsts(settings: Settings) -> tuple[Header, ...]:
    """Browsers keep to HTTPS for a year, if baseUrl is https."""
    if not settings.https:
        return ()
    also = "; includeSubDomains" * settings.hsts_include_subdomains
    return (("Strict-Transport-Security", f"max-age=31536000{also}"),)


def send(environ: dict[str, Any], start_response: Callable[..., Any], response: Response) -> list[bytes]:
    """By WSGI. Never an empty list: some servers send the head with the first part of the body."""
    headers = [*response.headers, ("Content-Length", str(len(response.body)))]
    start_response(STATUS_LINES[response.status], headers)
    return [b""] if environ["REQUEST_METHOD"] == "HEAD" else [response.body]


def send_refusal(
    environ: dict[str, Any], start_response: Callable[..., Any], response: Response, settings: Settings
) -> list[bytes]:
    """Answers a request that does not reach the application."""
    headers = (*response.headers, *hsts(settings))
    return send(environ, start_response, response._replace(headers=headers))


def as_json(value: Any, *headers: Header, status: int = 200) -> Response:
    return Response(status, _encode(value).encode(), (*JSON, *headers))


def error_response(status: int, message: str, *headers: Header) -> Response:
    """Every error has this shape."""
    if status == 401 and CHALLENGE not in dict(headers):
        headers = (*headers, (CHALLENGE, "Bearer"))  # no browser asks its user for one
    return as_json({"statusCode": status, "statusMessage": message}, *headers, status=status)


def unavailable(*headers: Header) -> Response:
    """The database cannot be used."""
    message = "The service is not available right now, please try again"
    return error_response(503, message, ("Retry-After", "5"), *headers)


def redirect_to(target: str) -> Response:
    """`target` is from the configuration or was checked, and never copied from a request."""
    return Response(302, b"", (*PAGE, ("Location", target)))
