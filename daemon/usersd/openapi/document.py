"""The interface as OpenAPI 3.1, and as one page: made from the route table and what `operations` says of its rows."""

import base64
import json
import re
from collections.abc import Iterator
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any

import bottle

from usersctl import __version__
from usersctl.config import Settings
from usersctl.service import Service
from usersd.access import is_api
from usersd.cookies import cookie_name
from usersd.handlers.oauth import callback
from usersd.openapi.operations import HTML, OPERATIONS, Operation, Schema, named, schemas
from usersd.request import Request
from usersd.response import ALWAYS, Header, Response, as_json
from usersd.routing import Access, Route

_PAGES = Path(__file__).parent.parent / "pages"
_CHANGING = ("POST", "PUT", "PATCH", "DELETE")

# What each status means where an operation has no words of its own.
_REFUSALS = {
    400: "Malformed, missing or invalid: the message says what.",
    401: "Authentication required.",
    403: "Another site asks, or the role does not suffice where one is needed.",
    404: "Not found.",
    405: "This uses something up, and is not for HEAD or a browser that looks ahead.",
    413: "The body is over 64 kB.",
    415: "The body is not `application/json`, or is compressed.",
    429: "Too many; `Retry-After` tells the seconds.",
    431: "The headers are over 16 kB.",
    500: "A fault of the service.",
    503: "Not now: too many logins at once, a lockdown, or a database that cannot be used.",
}
_ALWAYS = (400, 413, 431, 500, 503)

_HEADERS: dict[str, Schema] = {
    "X-Request-Id": {
        "description": "The log has the same.",
        "required": True,
        "schema": {"type": "string", "pattern": "^[0-9a-f]{16}$"},
    },
    "Set-Cookie": {"description": "A session.", "schema": {"type": "string"}},
    "Location": {"required": True, "schema": {"type": "string"}},
    "Allow": {"required": True, "schema": {"type": "string"}},
    "Retry-After": {
        "description": "Seconds until it makes sense to ask again.",
        "required": True,
        "schema": {"type": "integer", "minimum": 1},
    },
}
_DESCRIPTION = """\
Bodies are JSON objects of at most 64 kB, sent as `application/json`; every error is `{statusCode, statusMessage}`. Sign in
with a cookie, or send the same token, or one that `usersctl token create` made, as a bearer. Without a session, whatever is
not said to be for anyone is 401, also what does not exist. A change that a browser sends for another site is 403. HEAD is
answered wherever GET is and uses nothing up."""


# --- the handlers ---


def as_document(request: Request, _service: Service) -> Response:
    return _document_answer(request.settings)


def as_page(request: Request, _service: Service) -> Response:
    return _page_answer(request.settings)


@cache
def _document_answer(settings: Settings) -> Response:
    return as_json(document(settings))


@cache
def _page_answer(settings: Settings) -> Response:
    policy = (
        f"default-src 'none'; style-src 'sha256-{base64.b64encode(sha256(_style().encode()).digest()).decode()}';"
        " img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    headers: tuple[Header, ...] = (
        ("Content-Type", f"{HTML}; charset=utf-8"),
        ("Content-Security-Policy", policy),
    )
    return Response(200, page(settings).encode(), (*headers, *ALWAYS))


# --- the document ---


def document(settings: Settings) -> dict[str, Any]:
    from usersd.routes import TABLE  # late: the table has rows for us

    paths: dict[str, dict[str, Any]] = {}
    for route in TABLE:
        written = _path(route, settings)
        paths.setdefault(written, {})[route.method.lower()] = _operation(
            route, OPERATIONS[route.method, route.path], written
        )
    return {
        "openapi": "3.1.0",
        "info": {
            "title": f"{settings.brand}: accounts and sessions",
            "version": __version__,
            "description": _DESCRIPTION,
        },
        "servers": [{"url": settings.base_url}],
        "tags": [{"name": topic} for topic in dict.fromkeys(each.topic for each in OPERATIONS.values())],
        "paths": paths,
        "components": {
            "schemas": schemas(settings),
            "headers": _HEADERS,
            "responses": {str(status): _refused(status, words) for status, words in _REFUSALS.items()},
            "securitySchemes": {
                "cookie": {"type": "apiKey", "in": "cookie", "name": cookie_name(settings)},
                "bearer": {"type": "http", "scheme": "bearer"},
            },
        },
    }


def _path(route: Route, settings: Settings) -> str:
    path = settings.oauth_callback_url if route.handler is callback else route.path
    return re.sub(r"<(\w+)>", r"{\1}", path)


def _operation(route: Route, told: Operation, path: str) -> dict[str, Any]:
    ids = re.findall(r"{(\w+)}", path)
    found: dict[str, Any] = {
        "operationId": _operation_id(route.method, path),
        "tags": [told.topic],
        "summary": told.summary,
        "description": " ".join(part for part in (f"For {_who(route)}.", told.more) if part),
        "security": [{"cookie": []}, {"bearer": []}]
        if _asks_for_a_session(route) or told.takes_session
        else [],
        "parameters": [_in_path(name) for name in ids] + list(told.query),
        "responses": _responses(route, told),
    }
    if told.body is not None:
        # Nothing at all counts as {}.
        found["requestBody"] = {
            "required": "required" in told.body,
            "content": {"application/json": {"schema": told.body}},
        }
    return found


def _operation_id(method: str, path: str) -> str:
    """get_api_users_id"""
    return re.sub(r"\W+", "_", f"{method.lower()}{path}").strip("_")


def _who(route: Route) -> str:
    return {
        Access.ANYONE: "anyone",
        Access.SIGNED_IN: "whoever is signed in",
        Access.ADMIN: "admins",
        Access.REGISTRATION: "anyone, while `auth.whitelist` opens `/register`",
        Access.OPERATOR: "admins; without a session only at the machine of a fresh installation",
    }[route.access]


def _is_for_anyone(route: Route) -> bool:
    return route.access is Access.ANYONE


def _asks_for_a_session(route: Route) -> bool:
    return route.access in (Access.SIGNED_IN, Access.ADMIN, Access.OPERATOR)


def _in_path(name: str) -> Schema:
    if name in ("id", "session_id"):
        schema: Schema = {"type": "integer", "minimum": 1, "maximum": 10**18 - 1, "examples": [1]}
    else:
        schema = {"type": "string", "minLength": 1, "examples": ["style.css"]}
    return {"name": name, "in": "path", "required": True, "schema": schema}


def _responses(route: Route, told: Operation) -> dict[str, Any]:
    found: dict[str, Any] = {}
    cookie = told.sets_cookie or ("A persistent session, renewed." if _asks_for_a_session(route) else "")
    if told.answer is not None:
        found["200"] = _success(told, cookie)
    if told.redirect:
        found["302"] = _redirect(told.redirect, told.sets_cookie)
    elif not _is_for_anyone(route) and not is_api(route.path):
        found["302"] = _redirect("To `/login`, and back after signing in.", "")
    for status in sorted({*_refusals(route, told), *told.refusals}):
        words = told.refusals.get(status, _REFUSALS[status])
        found[str(status)] = {"$ref": f"#/components/responses/{status}"}
        if words != _REFUSALS[status]:
            # Whoever is no browser is told where one would be led.
            way = ("Location",) if told.redirect and status == 401 else ()
            found[str(status)] = _refused(status, words, *way)
        if status in told.as_page:
            found[str(status)]["content"][HTML] = {"schema": {"type": "string"}}
    return found


def _refusals(route: Route, told: Operation) -> Iterator[int]:
    """The statuses that follow from the row."""
    # Whoever signs in is on the way between two sites: but for what the server itself refuses, it ends at a page.
    yield from (each for each in _ALWAYS if each not in (413, 500) or not route.signs_in)
    if not _is_for_anyone(route) and is_api(route.path):
        yield 401
    if route.access not in (Access.ANYONE, Access.SIGNED_IN) or route.method in _CHANGING:
        yield 403
    if told.body is not None:
        yield 415
    if route.limit is not None:
        yield 429
    if route.once:
        yield 405


def _headers(*names: str) -> dict[str, Any]:
    return {name: {"$ref": f"#/components/headers/{name}"} for name in ("X-Request-Id", *names)}


def _success(told: Operation, cookie: str) -> dict[str, Any]:
    headers: dict[str, Any] = _headers()
    if cookie:
        headers["Set-Cookie"] = _HEADERS["Set-Cookie"] | {"description": cookie}
    for name, meaning in told.headers.items():
        headers[name] = {"description": meaning, "required": True, "schema": {"type": "string"}}
    media = told.answer if isinstance(told.answer, str) else "application/json"
    schema: Schema = {"type": "string"} if isinstance(told.answer, str) else told.answer or {}
    found: dict[str, Any] = {
        "description": "Done.",
        "headers": headers,
        "content": {media: {"schema": schema}},
    }
    if told.links:
        found["links"] = {
            name: {
                "operationId": _operation_id(method, path),
                "parameters": {re.findall(r"{(\w+)}", path)[0]: where},
            }
            for name, (method, path, where) in told.links.items()
        }
    return found


def _redirect(where: str, cookie: str) -> dict[str, Any]:
    headers = _headers("Location")
    if cookie:
        headers["Set-Cookie"] = _HEADERS["Set-Cookie"] | {"description": cookie}
    return {"description": where, "headers": headers}


def _refused(status: int, words: str, *headers: str) -> dict[str, Any]:
    more = {405: ("Allow",), 429: ("Retry-After",), 503: ("Retry-After",)}.get(status, ()) + headers
    return {
        "description": words,
        "headers": _headers(*more),
        "content": {"application/json": {"schema": named("Error")}},
    }


# --- the page ---


def page(settings: Settings) -> str:
    """One file that needs nothing beside it: no script, its style within."""
    told = document(settings)
    topics: dict[str, list[tuple[str, str, Any]]] = {tag["name"]: [] for tag in told["tags"]}
    for path, methods in told["paths"].items():
        for method, operation in methods.items():
            topics[operation["tags"][0]].append((method.upper(), path, operation))
    template = bottle.SimpleTemplate(name="reference.html", lookup=[str(_PAGES)])
    html: str = template.render(
        told=told,
        topics=topics,
        style=_style(),
        rows=lambda schema: _rows(told, schema),
        example=lambda schema: json.dumps(_example(told, schema), indent=2, ensure_ascii=False),
        kind=lambda schema: _kind(told, schema),
        meant=lambda response: _meant(told, response),
    )
    return html


@cache
def _style() -> str:
    return (_PAGES / "reference.css").read_text("utf-8")


def _meant(told: dict[str, Any], written: dict[str, Any]) -> dict[str, Any]:
    """What a reference stands for."""
    found = told if "$ref" in written else written
    for step in written.get("$ref", "").split("/")[1:]:
        found = found[step]
    return found


def _rows(told: dict[str, Any], schema: Schema) -> Iterator[tuple[str, str, str, bool]]:
    """(name, kind, description, must be there) of each field of a body."""
    for name, each in schema["properties"].items():
        yield (
            name,
            _kind(told, each),
            _meant(told, each).get("description", ""),
            name in schema.get("required", ()),
        )


def _kind(told: dict[str, Any], schema: Schema) -> str:
    """`string, email, at most 254`"""
    meant = _meant(told, schema)
    types = meant.get("type", "anything")
    said = [" or ".join(types) if isinstance(types, list) else types]
    if "enum" in meant:
        said = [" or ".join(f'"{each}"' for each in meant["enum"])]
    said += [meant["format"]] if "format" in meant else []
    if meant.get("minLength", 1) > 1:
        said.append(f"at least {meant['minLength']}")
    if "maxLength" in meant:
        said.append(f"at most {meant['maxLength']}")
    if meant.get("maximum", 10**9) < 10**9:
        said.append(f"{meant['minimum']} to {meant['maximum']}")
    return ", ".join(said)


def _example(told: dict[str, Any], schema: Schema) -> Any:
    meant = _meant(told, schema)
    if "examples" in meant:
        return meant["examples"][0]
    if "const" in meant:
        return meant["const"]
    if meant.get("type") == "array":
        return [_example(told, meant["items"])]
    return {name: _example(told, each) for name, each in meant.get("properties", {}).items()}
