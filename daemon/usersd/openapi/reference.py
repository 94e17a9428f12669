"""The OpenAPI document as two endpoints: as JSON, and as one page to read."""

import base64
import json
from collections.abc import Callable
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any

from usersctl.config import Settings
from usersctl.service import Service
from usersd.openapi.document import document
from usersd.openapi.operation import HTML, SERVICE, Operation
from usersd.openapi.schemas import Schema, opaque
from usersd.request import Request
from usersd.response import UNSTORED, Response, as_json
from usersd.routing import Route

_HERE = Path(__file__).parent

Table = tuple[Route, ...]


class Reference:
    """The handlers. The table is asked for late, because it has rows for them."""

    def __init__(self, table: Callable[[], Table]) -> None:
        self._table = table

    @Operation("openapi", SERVICE, opaque(title="OpenApiDocument", examples=[{"openapi": "3.1.0"}]))
    def as_document(self, request: Request, _service: Service) -> Response:
        """This interface, as OpenAPI."""
        return _document_response(request.settings, self._table())

    @Operation("docs", SERVICE, HTML)
    def as_page(self, request: Request, _service: Service) -> Response:
        """This interface, as a page."""
        return _page_response(request.settings, self._table())


@cache
def _document_response(settings: Settings, table: Table) -> Response:
    return as_json(document(settings, table))


@cache
def _page_response(settings: Settings, table: Table) -> Response:
    policy = (
        f"default-src 'none'; style-src 'sha256-{base64.b64encode(sha256(_style().encode()).digest()).decode()}';"
        " img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    headers = (("Content-Type", f"{HTML}; charset=utf-8"), ("Content-Security-Policy", policy), *UNSTORED)
    return Response(200, page(settings, table).encode(), headers)


def page(settings: Settings, table: Table) -> str:
    """One file without a script, its style included."""
    from bottle import SimpleTemplate  # late, because the document itself needs none

    reference = document(settings, table)
    topics: dict[str, list[tuple[str, str, Any]]] = {tag["name"]: [] for tag in reference["tags"]}
    for path, methods in reference["paths"].items():
        for method, operation in methods.items():
            topics[operation["tags"][0]].append((method.upper(), path, operation))
    template = SimpleTemplate(name="reference.html", lookup=[str(_HERE)])
    html: str = template.render(
        document=reference,
        topics=topics,
        style=_style(),
        example=lambda schema: json.dumps(_example(reference, schema), indent=2, ensure_ascii=False),
        kind=lambda schema: kind_of(reference, schema),
        resolved=lambda value: _resolved(reference, value),
    )
    return html


@cache
def _style() -> str:
    return (_HERE / "reference.css").read_text("utf-8")


def _resolved(reference: dict[str, Any], value: dict[str, Any]) -> dict[str, Any]:
    """The value itself, or the one that its $ref names."""
    if "$ref" in value:
        _, components, kind, name = value["$ref"].split("/")
        value = reference[components][kind][name]
    return value


def kind_of(reference: dict[str, Any], schema: Schema) -> str:
    """`string, email, at most 254`"""
    schema = _resolved(reference, schema)
    kind = schema.get("type", "anything")
    if isinstance(kind, list):
        kind = " or ".join(kind)
    if "enum" in schema:
        kind = " or ".join(f'"{value}"' for value in schema["enum"])
    parts = [kind]
    if "format" in schema:
        parts.append(schema["format"])
    if schema.get("minLength", 1) > 1:
        parts.append(f"at least {schema['minLength']}")
    if "maxLength" in schema:
        parts.append(f"at most {schema['maxLength']}")
    if schema.get("maximum", 10**9) < 10**9:
        parts.append(f"{schema['minimum']} to {schema['maximum']}")
    return ", ".join(parts)


def _example(reference: dict[str, Any], schema: Schema) -> Any:
    schema = _resolved(reference, schema)
    if "examples" in schema:
        return schema["examples"][0]
    if "const" in schema:
        return schema["const"]
    if schema.get("type") == "array":
        return [_example(reference, schema["items"])]
    return {name: _example(reference, field) for name, field in schema.get("properties", {}).items()}
