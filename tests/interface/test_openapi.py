"""The OpenAPI document: valid, complete for the route table, and true for every response that schemathesis gets."""

import base64
import json
import os
import re
from collections.abc import Callable, Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from attacks.fuzz.run import fuzz
from support.api_tokens import api_token, bearer
from support.commands import Command
from support.web import Site

from usersctl.config import Settings
from usersctl.service import Service
from usersd.openapi.document import document
from usersd.openapi.operation import PAGES, Operation, operation_of
from usersd.openapi.reference import page
from usersd.openapi.schemas import model
from usersd.request import Request
from usersd.response import Response
from usersd.routes import TABLE
from usersd.routing import Access, Route

DAEMONS = Settings(database=Path("users.db"), base_url="https://accounts.example.com")
DOCUMENT = document(DAEMONS, TABLE)


def operations() -> Iterator[tuple[str, str, dict[str, Any]]]:
    for path, methods in DOCUMENT["paths"].items():
        for method, operation in methods.items():
            yield method.upper(), path, operation


def described() -> list[Operation]:
    return [operation_of(route.handler) for route in TABLE]


def by_row(method: str, path: str) -> dict[str, Any]:
    operation: dict[str, Any] = DOCUMENT["paths"][re.sub(r"<(\w+)>", r"{\1}", path)][method.lower()]
    return operation


def test_every_route_is_described_and_nothing_else() -> None:
    for route in TABLE:
        operation_of(route.handler)
    rows = {(route.method, route.path) for route in TABLE}
    assert {(method, re.sub(r"{(\w+)}", r"<\1>", path)) for method, path, _ in operations()} == rows


def test_a_route_whose_handler_is_not_described_cannot_be_added() -> None:
    row = Route("GET", "/new", Access.ANYONE, None, lambda _request, _service: {})
    with pytest.raises(TypeError, match=r"has no @Operation.* describe it"):
        document(DAEMONS, (*TABLE, row))


@pytest.mark.slow
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"oauth_callback_url": "/back", "cookie_name": "sid"},
        {"min_length": 72, "brand": 'A "<b>" \u00e9'},
    ],
)
def test_the_document_is_valid_whatever_the_configuration_says(changes: dict[str, Any]) -> None:
    from openapi_spec_validator import OpenAPIV31SpecValidator

    settings = DAEMONS._replace(**changes)
    described = json.loads(json.dumps(document(settings, TABLE)))
    assert list(OpenAPIV31SpecValidator(described).iter_errors()) == []
    assert described["servers"] == [{"url": settings.base_url}]
    assert settings.oauth_callback_url in described["paths"]
    assert described["components"]["securitySchemes"]["cookie"]["name"] == f"__Host-{settings.cookie_name}"


def test_the_documented_security_follows_from_the_table() -> None:
    for route in TABLE:
        operation = by_row(route.method, route.path)
        asks = route.access in (
            *(Access.SIGNED_IN, Access.OWN_OR_ADMIN),
            *(Access.ADMIN, Access.ADMIN_PAGE, Access.OPERATOR),
        )
        takes = operation_of(route.handler).takes_session
        assert bool(operation["security"]) == (asks or takes), route.path
        if route.access is Access.ADMIN:
            assert {"401", "403"} <= set(operation["responses"]), route.path


def test_ids_limits_and_bodies_have_the_refusals_that_follow() -> None:
    for route in TABLE:
        operation = by_row(route.method, route.path)
        assert [
            parameter["name"] for parameter in operation["parameters"] if parameter["in"] == "path"
        ] == re.findall(r"<(\w+)>", route.path)
        assert {"400", "503"} <= set(operation["responses"])
        limited = route.limit is not None and not route.signs_in  # a sign-in ends at a page
        limits_emails = 429 in operation_of(route.handler).refusals
        assert ("429" in operation["responses"]) == (limited or limits_emails), route.path
        assert ("415" in operation["responses"]) == ("requestBody" in operation), route.path
        assert route.method in ("GET", "DELETE") or "403" in operation["responses"], route.path


def test_the_headers_of_responses_are_documented() -> None:
    assert "Set-Cookie" in by_row("POST", "/api/users/session")["responses"]["200"]["headers"]
    assert "Retry-After" in DOCUMENT["components"]["responses"]["429"]["headers"]
    assert "Retry-After" in DOCUMENT["components"]["responses"]["503"]["headers"]
    assert "Location" in by_row("GET", "/api/users/auth/oauth/redirect")["responses"]["302"]["headers"]
    assert "Location" in by_row("GET", "/api/users/auth/verify")["responses"]["401"]["headers"]
    for _, path, operation in operations():
        for status, response in operation["responses"].items():
            if "$ref" not in response:
                assert "X-Request-Id" in response["headers"], (path, status)


def test_the_refusal_of_an_inactive_account_has_its_state() -> None:
    for name in ("session", "session/passkey", "session/second-factor"):
        header = by_row("POST", f"/api/users/{name}")["responses"]["403"]["headers"]["X-Account-State"]
        assert header["schema"]["enum"] == ["awaiting-confirmation", "deactivated", "deletion"]
        assert not header.get("required")  # other refusals have the same status


def test_the_refusals_that_a_browser_gets_as_a_page_are_documented(site: Site) -> None:
    admin = site.signed_in(site.add("root", role="admin"))
    browser = {"Accept": "text/html", "Sec-Fetch-Mode": "navigate"}
    for target, path, status in (
        ("/audit?user=1&user=2", "/audit", "400"),
        ("/users/x", "/users/<id>", "400"),
        ("/users/7", "/users/<id>", "404"),
        ("/assets/nothing", "/assets/<name>", "404"),
    ):
        documented = by_row("GET", path)["responses"][status]["content"]
        for headers in (browser, {}):
            reply = admin.get(target, headers=headers)
            assert reply.status == int(status), target
            assert str(reply.header("Content-Type")).partition(";")[0] in documented, target
        assert str(admin.get(target, headers=browser).header("Content-Type")).startswith("text/html"), target


def test_a_page_that_is_closed_to_an_api_token_is_documented_as_what_a_browser_gets(site: Site) -> None:
    script = bearer(site, api_token(site, site.add("root", role="admin"), "users:read"))
    closed = 0
    for route in TABLE:
        if route.method != "GET" or route.path.startswith(("/api/", "/_tasks/")) or "<" in route.path:
            continue
        for accepted in ("text/html", "application/json"):
            reply = script.get(route.path, headers={"Accept": accepted})
            closed += reply.status == 403
            answer = by_row("GET", route.path)["responses"][str(reply.status)]
            if "$ref" in answer:
                answer = DOCUMENT["components"]["responses"][answer["$ref"].rpartition("/")[2]]
            kind = str(reply.header("Content-Type")).partition(";")[0]
            assert kind in answer.get("content", [kind]), (route.path, reply.status, accepted)
    assert closed > 10


def test_the_headers_of_a_refusal_by_forward_authentication_are_documented(
    make_site: Callable[..., Site],
) -> None:
    site = make_site(second_factor="everyone")
    refused = site.signed_in(site.add("ada")).get("/api/users/auth/verify")
    documented = by_row("GET", "/api/users/auth/verify")["responses"]["403"]["headers"]
    assert refused.status == 403
    for name in ("Location", "WWW-Authenticate"):
        assert refused.header(name)
        assert not documented[name].get("required")  # the others have none


def test_what_a_second_factor_has_to_finish_sets_a_cookie() -> None:
    for path in ("/api/users/session", "/api/users/invite/accept"):
        refused = by_row("POST", path)["responses"]["401"]
        assert "second step" in refused["headers"]["Set-Cookie"]["description"], path


def test_links_refer_to_operations_that_exist() -> None:
    names = [operation["operationId"] for _, _, operation in operations()]
    assert len(set(names)) == len(names)
    links = [
        link["operationId"]
        for _, _, operation in operations()
        for response in operation["responses"].values()
        for link in response.get("links", {}).values()
    ]
    assert len(links) > 8
    assert set(links) <= set(names)


def test_operations_have_readable_names() -> None:
    names = {(method, path): operation["operationId"] for method, path, operation in operations()}
    assert all(re.fullmatch(r"[a-z][A-Za-z]+", name) for name in names.values())
    assert names["POST", "/api/users/session"] == "login"
    assert names["GET", "/api/users/me"] == "me"
    assert names["GET", "/api/users"] == "listUsers"


def test_bodies_of_requests_and_answers_are_named_schemas() -> None:
    bodies = [operation["requestBody"] for _, _, operation in operations() if "requestBody" in operation]
    answers = [operation["responses"].get("200", {}) for _, _, operation in operations()]
    schemas = [
        body["content"]["application/json"]["schema"]
        for body in (*bodies, *answers)
        if "application/json" in body.get("content", {})
    ]
    assert len(schemas) > 40
    for schema in schemas:
        assert list(schema) == ["$ref"]
        assert schema["$ref"].rpartition("/")[2] in DOCUMENT["components"]["schemas"]


def test_two_bodies_of_one_name_are_refused() -> None:
    def other(_request: Request, _service: Service) -> Response:
        """Another message."""
        raise AssertionError("only described")

    Operation("other", PAGES, model("Message", {}))(other)
    with pytest.raises(TypeError, match="two bodies are named Message"):
        document(DAEMONS, (*TABLE, Route("GET", "/new", Access.ANYONE, None, other)))


def objects(value: Any) -> Iterator[dict[str, Any]]:
    if isinstance(value, dict) and value.get("type") == "object":
        yield value
    if isinstance(value, dict | list):
        for part in value.values() if isinstance(value, dict) else value:
            yield from objects(part)


def test_an_object_that_may_have_any_property_says_so() -> None:
    # openapi-typescript makes an object without properties of one that does not.
    silent = [
        schema for schema in objects(DOCUMENT) if not {"properties", "additionalProperties"} & set(schema)
    ]
    assert silent == []
    event = DOCUMENT["components"]["schemas"]["UserUpdatedEvent"]["properties"]["data"]
    assert event["properties"]["details"]["additionalProperties"] is True


def test_a_null_fits_no_field_of_a_body() -> None:
    for name, schema in DOCUMENT["components"]["schemas"].items():
        if name in {operation.body.__name__ for operation in described() if operation.body}:
            for field, kind in schema["properties"].items():
                assert kind.get("type") in ("string", "boolean", "array", "object", None), (name, field)


def test_the_cookie_of_a_login_is_documented() -> None:
    header = by_row("POST", "/api/users/session")["responses"]["200"]["headers"]["Set-Cookie"]
    assert "security scheme `cookie`" in header["description"]
    scheme = DOCUMENT["components"]["securitySchemes"]["cookie"]
    assert (scheme["in"], scheme["name"]) == ("cookie", "__Host-auth_token")
    assert "HttpOnly" in scheme["description"]


@pytest.mark.parametrize(
    ("base_url", "host", "opens"),
    [
        ("http://127.0.0.1:8080", "127.0.0.1", True),
        ("https://accounts.example.com", "127.0.0.1", False),
        ("http://127.0.0.1:8080", "192.0.2.1", False),
    ],
)
def test_tasks_open_without_a_session_only_where_the_document_says_so(
    base_url: str, host: str, opens: bool
) -> None:
    paths = document(DAEMONS._replace(base_url=base_url, host=host), TABLE)["paths"]
    for operation in (paths["/_tasks/"]["get"], paths["/_tasks/users:cleanup-tokens"]["post"]):
        assert ({} in operation["security"]) == opens
        assert operation["security"][:2] == [{"cookie": []}, {"bearer": ["tasks"]}]


# --- where it is ---


def test_the_daemon_and_the_command_print_the_same_document(site: Site, usersctl: Command) -> None:
    reply = site.client().get("/api/users/openapi.json")
    assert (reply.status, reply.header("Content-Type")) == (200, "application/json; charset=utf-8")
    assert reply.json == usersctl.ok("openapi").json
    written = usersctl.ok("openapi", "--html").stdout
    assert written == site.client().get("/api/users/docs").body.decode() + "\n"


def test_the_document_holds_no_secret_and_no_path_of_the_machine(
    make_site: Callable[..., Site], tmp_path: Path
) -> None:
    site = make_site(
        oauth_client_id="known-client",
        oauth_client_secret="hidden-secret",
        oauth_issuer="https://id.example.com",
        assertion_secret="hidden-between-two-of-at-least-so-many-letters",
    )
    for path in ("/api/users/openapi.json", "/api/users/docs"):
        text = site.client().get(path).body.decode()
        for hidden in (str(tmp_path), "known-client", "hidden-secret", "hidden-between"):
            assert hidden not in text


def test_the_page_has_every_operation_and_loads_no_other_file(make_site: Callable[..., Site]) -> None:
    site = make_site(brand='<script>alert("1")</script>')
    reply = site.client().get("/api/users/docs")
    html = reply.body.decode()
    for _, path, operation in operations():
        assert f'<details id="{operation["operationId"]}">' in html
        assert f"<code>{path}</code>" in html
    assert re.findall(
        r"<script|<link rel=.stylesheet|\ssrc=|@import|url\(|https?://(?!127\.0\.0\.1)\S+", html
    ) == [url for url in re.findall(r"https?://(?!127\.0\.0\.1)\S+", html) if "example.com" in url]
    assert "&lt;script&gt;" in html
    (style,) = re.findall(r"<style>(.*?)</style>", html, re.DOTALL)
    policy = reply.header("Content-Security-Policy") or ""
    assert f"'sha256-{base64.b64encode(sha256(style.encode()).digest()).decode()}'" in policy
    assert policy.startswith("default-src 'none'; ")
    assert "unsafe" not in policy


def test_the_page_has_exactly_the_operations_of_the_document() -> None:
    html = page(DAEMONS, TABLE)
    assert html.count("<details") == len(list(operations()))
    assert "None" not in re.sub(r"'none'", "", html)


# --- what schemathesis finds ---


@pytest.mark.slow
def test_every_answer_fits_the_document(tmp_path: Path) -> None:
    """All phases of `python -m tests.attacks.fuzz`, for some seconds."""
    repeated = ["--generation-deterministic"] if "CI" in os.environ else []
    # The pages have hardly any input.
    done = fuzz(tmp_path, "admin", "--max-examples=1", "--exclude-tag=Pages", *repeated, seconds=400)
    assert done.returncode == 0, done.stdout + done.stderr
    passed = re.search(r"(\d+) generated, (\d+) passed", done.stdout)
    assert passed is not None, done.stdout
    assert passed[1] == passed[2]
    assert int(passed[1]) > 500
    for phase in ("Examples", "Coverage", "Fuzzing", "Stateful"):
        assert re.search(rf"\u2705 +{phase}", done.stdout), done.stdout
