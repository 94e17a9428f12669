"""The OpenAPI 3.1 document: from the route table, and what each handler declares about itself."""

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from usersctl import __version__
from usersctl.config import Settings
from usersctl.config.providers import host_of
from usersctl.config.values import is_loopback
from usersd.access import REFUSED_AS_PAGES, is_api
from usersd.openapi.operation import HTML, TOPICS, Operation, operation_of
from usersd.openapi.schemas import ID, Schema, components, described, named, string
from usersd.openapi.webhooks import described_webhooks, schemas
from usersd.routing import ANY, SAFE_METHODS, Access, Route, configured

# What each status means where an operation has no words of its own.
_REFUSALS = {
    400: "A value is malformed, missing or invalid; the message names it.",
    401: "Authentication required.",
    403: "The request comes from another site, the role does not suffice, or an API token lacks the scope or would change its own user.",
    405: "This works once, and cannot be used with HEAD or prefetch.",
    413: "The body is over 64 kB.",
    415: "The body is not `application/json`, or is compressed.",
    429: "Too many requests; `Retry-After` gives the seconds to wait.",
    431: "The headers are over 16 kB.",
    500: "Internal error.",
    503: "Not available now: too many logins at once, a lockdown, or an unusable database.",
}
_ALWAYS = (400, 413, 431, 500, 503)
_PAGES = [status for status in REFUSED_AS_PAGES if status in _REFUSALS]
# Of paths; all others are ids.
_SEGMENTS = {
    "name": string("style.css", minLength=1),
    "group": string("staff", minLength=1),
    "provider": string("oauth", minLength=1),
}
_OPEN = (Access.ANYONE, Access.OPTIONAL_SESSION)
_REFUSAL_HEADERS = {401: ("WWW-Authenticate",), 405: ("Allow",), 429: ("Retry-After",), 503: ("Retry-After",)}

_STRING: Schema = {"type": "string"}


def _header(schema: Schema, description: str = "") -> Schema:
    return described({"required": True, "schema": schema}, description)


_HEADERS: dict[str, Schema] = {
    "X-Request-Id": _header({"type": "string", "pattern": "^[0-9a-f]{16}$"}, "The log has the same id."),
    "Location": _header(_STRING),
    "Allow": _header(_STRING),
    "WWW-Authenticate": _header(_STRING, "How to authenticate: `Bearer`, or a cookie."),
    "Retry-After": _header({"type": "integer", "minimum": 1}, "Seconds to wait before the next attempt."),
}
_DESCRIPTION = """\
Bodies are JSON objects of at most 64 kB, sent as `application/json`; every error is `{statusCode, statusMessage}`. Sign in
with a cookie, or send the same token, or one made by `usersctl token create`, as a bearer token. Without a session, every
path that is not for anyone is answered 401, also one that does not exist. A change that a browser sends for another site is
answered 403. HEAD is answered wherever GET is, except where a GET works once."""


def document(settings: Settings, table: Sequence[Route]) -> dict[str, Any]:
    operations = [operation_of(route.handler) for route in table]
    paths: dict[str, dict[str, Any]] = {}
    for route, placed, operation in zip(table, configured(table, settings), operations, strict=True):
        path = re.sub(r"<(\w+)>", r"{\1}", placed.path)
        paths.setdefault(path, {})[route.method.lower()] = _operation(route, operation, path, settings)
    topics = dict.fromkeys(operation.topic for operation in operations)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": f"{settings.brand}: accounts and sessions",
            "version": __version__,
            "description": _DESCRIPTION,
            "contact": {"name": settings.brand, "url": settings.base_url},
            "license": {"name": "MIT", "identifier": "MIT"},
        },
        "servers": [{"url": settings.base_url}],
        "tags": [{"name": topic, "description": TOPICS[topic]} for topic in topics],
        "paths": paths,
        "webhooks": described_webhooks(),
        "components": {
            "schemas": components(settings) | _models(operations) | schemas(),
            "headers": _HEADERS,
            "responses": {str(status): _refusal(status, meaning) for status, meaning in _REFUSALS.items()}
            | {f"{status}-page": _as_page(_refusal(status, _REFUSALS[status])) for status in _PAGES},
            "securitySchemes": {
                "cookie": {
                    "type": "apiKey",
                    "in": "cookie",
                    "name": settings.session_cookie,
                    "description": "Set by `login`, out of the reach of scripts: `HttpOnly; SameSite=Lax; Path=/`.",
                },
                "bearer": {
                    "type": "http",
                    "scheme": "bearer",
                    "description": "The value of the same cookie, or an API token. One with scopes needs the scope that an operation names here; where none is named, it opens nothing.",
                },
            },
        },
    }


def _by_token(route: Route) -> str:
    if route.own == ANY and "<id>" not in route.path:  # always of the caller's own account
        return "; not for API tokens"
    if route.scope is not None:
        return f"; an API token with scopes needs `{route.scope}`"
    return "; not for API tokens with scopes" * route.access.needs_session


def _operation(route: Route, operation: Operation, path: str, settings: Settings) -> dict[str, Any]:
    parameters = [
        {"name": name, "in": "path", "required": True, "schema": _SEGMENTS.get(name, ID)}
        for name in re.findall(r"{(\w+)}", path)
    ]
    if operation.query is not None:
        parameters += operation.query.parameters()
    summary, _, note = " ".join((route.handler.__doc__ or "").split()).partition(". ")
    result: dict[str, Any] = {
        "operationId": operation.name,
        "tags": [operation.topic],
        "summary": summary.removesuffix("."),
        "description": f"For {route.access.value}{_by_token(route)}. {note}".rstrip(),
        "security": [],
        "parameters": parameters,
        "responses": _responses(route, operation),
    }
    if route.access.needs_session or operation.takes_session:
        result["security"] = [{"cookie": []}, {"bearer": _scopes(route)}]
    if operation.takes_session or (route.access is Access.OPERATOR and _is_for_this_machine(settings)):
        result["security"].append({})  # or without a session
    if operation.body is not None:
        schema = operation.body.schema()
        # A request without a body counts as one with {}.
        result["requestBody"] = {
            "required": "required" in schema,
            "content": {"application/json": {"schema": named(schema["title"])}},
        }
    return result


def _scopes(route: Route) -> list[str]:
    """Of a token that has scopes. OpenAPI 3.1 lets any scheme name what a caller needs."""
    return [] if route.scope is None else [route.scope]


def _is_for_this_machine(settings: Settings) -> bool:
    return is_loopback(settings.host) and is_loopback(host_of(settings.base_url))


def _models(operations: Iterable[Operation]) -> dict[str, Schema]:
    """The bodies of requests and answers that have a name."""
    models: dict[str, Schema] = {}
    for operation in operations:
        for schema in (operation.body and operation.body.schema(), operation.answer):
            if not isinstance(schema, dict) or "title" not in schema:
                continue
            if models.setdefault(schema["title"], schema) != schema:
                raise TypeError(f"two bodies are named {schema['title']}")
    return models


def _responses(route: Route, operation: Operation) -> dict[str, Any]:
    responses: dict[str, Any] = {}
    if operation.answer is not None:
        responses["200"] = _success(route, operation, operation.answer)
    redirect = operation.redirect
    if not redirect and route.access not in _OPEN and not is_api(route.path):
        redirect = "To `/login`, and back after signing in."
        if not route.enrols:
            redirect = "To `/login`, or to `/account` if a second factor has to be added first, and back."
    if redirect:
        headers = _headers("Location", cookie=operation.sets_cookie)
        responses["302"] = {"description": redirect, "headers": headers}
    if operation.answer is None:
        responses["default"] = _refusal(0, "Any other status is an error.")
    pages = REFUSED_AS_PAGES if _is_for_browsers(route) else ()
    for status in sorted({*_statuses(route, operation), *operation.refusals}):
        name = f"{status}-page" if status in pages else str(status)
        responses[str(status)] = {"$ref": f"#/components/responses/{name}"}
        meaning = operation.refusals.get(status)
        if meaning is not None and meaning != _REFUSALS.get(status):
            # A client that is not a browser learns where a browser would be sent.
            location = ("Location",) if operation.redirect and status == 401 else ()
            responses[str(status)] = _refusal(status, meaning, *location)
        for name, (why, schema) in operation.refusal_headers.get(status, {}).items():
            responses[str(status)]["headers"][name] = {"description": why, "schema": schema}
        if "content" in responses[str(status)] and status in {*pages, *operation.html_refusals}:
            _as_page(responses[str(status)])
    return responses


def _is_for_browsers(route: Route) -> bool:
    """Whether a browser that is about to show a refusal gets it as a page."""
    return route.method in SAFE_METHODS and not is_api(route.path) and not route.is_probe


def _as_page(refusal: dict[str, Any]) -> dict[str, Any]:
    refusal["content"][HTML] = {"schema": _STRING}
    return refusal


def _statuses(route: Route, operation: Operation) -> Iterator[int]:
    """The refusals that follow from the row."""
    # A sign-in through the provider ends at a page, unless the server itself refuses the request.
    yield from (status for status in _ALWAYS if status not in (413, 500) or not route.signs_in)
    if route.access not in _OPEN and is_api(route.path):
        yield 401
    # Wherever a session is looked up, an API token may lack the scope.
    if route.access is not Access.ANYONE or route.method not in SAFE_METHODS:
        yield 403
    if operation.body is not None:
        yield 415
    if route.limit is not None and not route.signs_in:
        yield 429
    if route.once:
        yield 405


def _headers(*names: str, cookie: str = "") -> dict[str, Any]:
    headers: dict[str, Any] = {
        name: {"$ref": f"#/components/headers/{name}"} for name in ("X-Request-Id", *names)
    }
    if cookie:
        headers["Set-Cookie"] = {"description": cookie, "schema": _STRING}
    return headers


def _success(route: Route, operation: Operation, answer: Schema | str) -> dict[str, Any]:
    cookie = operation.sets_cookie
    if route.access.needs_session:
        cookie = cookie or "A persistent session, renewed."
    headers = _headers(cookie=cookie)
    for name, meaning in operation.headers.items():
        headers[name] = _header(_STRING, meaning)
    for name, meaning in operation.optional_headers.items():
        headers[name] = {"description": meaning, "schema": _STRING}
    success: dict[str, Any] = {"description": "Done.", "headers": headers, "content": _content(answer)}
    if operation.links:
        success["links"] = {
            name: {"operationId": next_id, "parameters": {parameter: place}}
            for name, (next_id, parameter, place) in operation.links.items()
        }
    return success


def _content(answer: Schema | str) -> Schema:
    if isinstance(answer, str):
        return {answer: {"schema": _STRING}}
    return {"application/json": {"schema": named(answer["title"]) if "title" in answer else answer}}


def _refusal(status: int, meaning: str, *headers: str) -> dict[str, Any]:
    return {
        "description": meaning,
        "headers": _headers(*_REFUSAL_HEADERS.get(status, ()), *headers),
        "content": {"application/json": {"schema": named("Error")}},
    }
