"""Attacks by input: bodies, fields, ids and queries. Never a 5xx, and always the shape of an error."""

import gzip
import json
import string
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.commands import OPERATOR, PASSWORD, create_user
from support.paths import filled
from support.web import Client, Reply, Site, running

from usersctl.models import User
from usersctl.service import Service
from usersd.openapi.operation import operation_of
from usersd.routes import TABLE

# The fields of each endpoint, with accepted values. Booleans may be left out.
TEXTS: dict[tuple[str, str], dict[str, str]] = {
    ("POST", "/api/users/session"): {
        "email": "bob@example.com",
        "password": PASSWORD,
        "code": "123456",
    },
    ("POST", "/api/users/session/second-factor"): {"code": "123456", "recoveryCode": "abcd"},
    ("POST", "/api/users/me/totp/confirm"): {"code": "123456"},
    ("POST", "/api/users/me/passkeys"): {"name": "Phone"},
    ("POST", "/api/users/me/tokens"): {"name": "ci", "expires": "90d"},
    ("PATCH", "/api/users/me/passkeys/1"): {"name": "Phone"},
    ("POST", "/api/users/setup"): {
        "token": "t",
        "email": "new@example.com",
        "name": "New",
        "password": PASSWORD,
    },
    ("POST", "/api/users"): {
        "email": "new@example.com",
        "name": "New",
        "password": PASSWORD,
        "role": "user",
    },
    ("PATCH", "/api/users/2"): {"email": "bob@example.com", "name": "Bob", "role": "user"},
    ("PATCH", "/api/users/me"): {"email": "ada@example.com", "name": "Ada"},
    ("PATCH", "/api/users/password"): {
        "currentPassword": PASSWORD,
        "newPassword": "another sentence",
        "newPasswordConfirmation": "another sentence",
    },
    ("POST", "/api/users/register"): {"email": "new@example.com", "name": "New", "password": PASSWORD},
    ("POST", "/api/users/register/resend"): {"email": "bob@example.com"},
    ("POST", "/api/users/password/forgot"): {"email": "bob@example.com"},
    ("POST", "/api/users/password/reset"): {
        "token": "t",
        "email": "bob@example.com",
        "password": PASSWORD,
        "password_confirmation": PASSWORD,
    },
    ("POST", "/api/users/not-me"): {"token": "t", "email": "bob@example.com"},
    ("POST", "/api/users/confirm-deletion"): {"token": "t", "email": "bob@example.com"},
    ("POST", "/api/users/undo-deletion"): {"token": "t", "email": "bob@example.com"},
    ("POST", "/api/users/me/email"): {"token": "t", "email": "bob@example.com", "password": PASSWORD},
    ("DELETE", "/api/users/me"): {"password": "not the password"},
    ("POST", "/api/users/session/confirm"): {
        "password": PASSWORD,
        "code": "123456",
        "recoveryCode": "abcd",
    },
    ("POST", "/api/users/invite"): {
        "email": "new@example.com",
        "name": "New",
        "role": "user",
        "expires": "7d",
    },
    ("POST", "/api/users/invite/accept"): {
        "token": "t",
        "email": "bob@example.com",
        "name": "Bob",
        "password": PASSWORD,
    },
    ("POST", "/api/users/2/invite"): {"expires": "7d"},
    ("POST", "/api/users/bulk"): {"action": "add-group", "group": "staff"},
    ("POST", "/api/groups"): {"name": "staff"},
}
LISTS: dict[tuple[str, str], dict[str, list[Any]]] = {
    ("POST", "/api/users/invite"): {"groups": []},
    ("POST", "/api/users/bulk"): {"ids": [2]},
    ("PUT", "/api/users/2/groups"): {"groups": []},
    ("POST", "/api/users/me/tokens"): {"scopes": ["me"], "ip": ["192.0.2.0/24"]},
}
OBJECTS: dict[tuple[str, str], dict[str, dict[str, Any]]] = {
    ("POST", "/api/users/session/second-factor"): {"credential": {}},
    ("POST", "/api/users/session/confirm"): {"credential": {}},
    ("POST", "/api/users/session/passkey"): {"credential": {}},
    ("POST", "/api/users/me/passkeys"): {"credential": {}},
}
BOOLEANS = {
    (("POST", "/api/users/session"), "rememberMe"),
    (("POST", "/api/users/session"), "rememberDevice"),
    (("POST", "/api/users/session/second-factor"), "rememberDevice"),
    (("POST", "/api/users/session/passkey"), "rememberMe"),
    (("PATCH", "/api/users/2"), "active"),
    (("POST", "/_tasks/users:cleanup-tokens"), "includeNoExpiration"),
}
CHANGES = [
    (route.method, filled(route.path, id="2", session_id="99")) for route in TABLE if route.method != "GET"
]
READ_BODY = {
    change: body
    for change, route in zip(CHANGES, (route for route in TABLE if route.method != "GET"), strict=True)
    if (body := operation_of(route.handler).body) is not None
}
ALL_FIELDS = {name: value for fields in TEXTS.values() for name, value in fields.items()} | dict.fromkeys(
    (name for _, name in BOOLEANS), True
)

NO_TEXT: list[Any] = [
    [],
    {},
    0,
    1,
    -1,
    1.5,
    True,
    False,
    ["x"],
    {"x": "y"},
    [[]],
    10**300,
    [None],
    {"$gt": ""},
]
NO_ITEM: list[Any] = [None, 0, -2, 1.5, True, [], {}, ["x"], [None], 10**300]
NO_LIST: list[Any] = [{}, 0, 1, 1.5, True, False, "", "x", "[]", {"0": 2}]
NO_OBJECT: list[Any] = [[], 0, 1, 1.5, True, False, "", "x", "{}", [{}]]
ODD_OBJECTS: list[dict[str, Any]] = [
    {"id": "x" * 60_000, "response": {}},
    {"id": None, "rawId": [], "type": {}, "response": []},
    {"id": "a" * 22, "rawId": "a" * 22, "type": "public-key", "response": {"clientDataJSON": "W" * 50_000}},
    {
        "id": "a" * 22,
        "rawId": "a" * 22,
        "type": "public-key",
        "response": {"attestationObject": "n" * 50_000},
    },
    {"__proto__": {}, "response": {"response": {"response": {}}}},
]
NO_BOOLEAN: list[Any] = [[], {}, 0, 1, "", "true", "false", "yes", 1.0, ["true"]]
ODD_TEXTS = [
    "", " ", "\t\n", "a" * 60_000, "a@" * 20_000, "\U0001f4a5" * 5_000, "\u202e\u200b\ufeff", "\uffff", "%s%n%x", "{{7*7}}",
    "${7*7}", "' OR 1=1 --", '"; DROP TABLE users; --', "a\r\nBcc: x@example.com", "../../etc/passwd", "<script>alert(1)</script>",
    "null", "-1", "1e309", "\x1b[2J", "\x7f\x85\u2028", "a@" + "b." * 3_000 + "com", "x" * 73, "\u0130@example.com",
    "ada@example.com\u0000", "a@xn--" + "z" * 60 + ".com", "(" * 5_000, '"' * 5_000 + "@example.com", "ada@[127.0.0.1]",
]  # fmt: skip


@pytest.fixture
def open_site(make_service: Callable[..., Service]) -> Iterator[Site]:
    """Registration is open, limits are off; Ada is an admin (1) and Bob a user (2)."""
    service = make_service(limits_enabled=False, whitelist=("/register",))
    for name, role in (("ada", "admin"), ("bob", "user")):
        create_user(service, f"{name}@example.com", name.title(), PASSWORD, role=role, by=OPERATOR)
    with running(service, listening="192.0.2.1") as site:
        yield site
        assert not [line for line in site.log if line["event"] == "error"]


@pytest.fixture
def ada(open_site: Site) -> Client:
    client = open_site.client()
    assert client.login("ada@example.com", PASSWORD).status == 200
    return client


def well_formed(reply: Reply) -> Reply:
    """No 5xx, and the shape of an error."""
    assert reply.status < 500, reply
    assert (reply.header("Content-Type") or "").startswith(
        ("application/json", "text/html", "text/css", "text/javascript")
    ), reply
    if reply.status >= 400:
        assert reply.message
        assert "Traceback" not in reply.message
        assert len(reply.body) < 1000, reply
    return reply


def login_body(**more: Any) -> bytes:
    return json.dumps({"email": "bob@example.com", "password": PASSWORD} | more).encode()


def accepted(endpoint: tuple[str, str]) -> dict[str, Any]:
    return {**TEXTS.get(endpoint, {}), **LISTS.get(endpoint, {}), **OBJECTS.get(endpoint, {})}


# --- wrong types and odd texts in every field ---


def test_every_field_of_every_body_is_attacked_here() -> None:
    declared = {(endpoint, field.name) for endpoint, body in READ_BODY.items() for field in body.fields}
    attacked = {
        (endpoint, name)
        for fields in (TEXTS, LISTS, OBJECTS)
        for endpoint in fields
        for name in fields[endpoint]
    }
    assert declared == attacked | BOOLEANS


@pytest.mark.parametrize("endpoint", TEXTS, ids=" ".join)
def test_a_string_field_of_another_type_is_refused_by_name(ada: Client, endpoint: tuple[str, str]) -> None:
    for name, field in ((name, field) for name in TEXTS[endpoint] for field in NO_TEXT):
        reply = ada.send(*endpoint, accepted(endpoint) | {name: field})
        assert reply.status == 400, (name, field, reply)
        assert reply.message == f"{name} must be a string"


@pytest.mark.parametrize("endpoint", LISTS, ids=" ".join)
def test_a_list_of_another_type_or_of_other_values_is_refused(ada: Client, endpoint: tuple[str, str]) -> None:
    for name, field in ((name, field) for name in LISTS[endpoint] for field in NO_LIST):
        reply = ada.send(*endpoint, accepted(endpoint) | {name: field})
        assert (reply.status, reply.message) == (400, f"{name} must be a list"), field
    for name, odd in ((name, odd) for name in LISTS[endpoint] for odd in NO_ITEM):
        reply = ada.send(*endpoint, accepted(endpoint) | {name: [odd]})
        assert reply.status == 400, (name, odd)
        assert reply.message in ("Invalid user id", f"{name} must be a list of strings")


@pytest.mark.parametrize("endpoint", TEXTS, ids=" ".join)
def test_null_is_no_value(ada: Client, open_site: Site, endpoint: tuple[str, str]) -> None:
    before = open_site.service.accounts.get(1), open_site.service.accounts.get(2)
    for name in accepted(endpoint):
        assert ada.send(*endpoint, accepted(endpoint) | {name: None}).status == 400, name
    assert before == (open_site.service.accounts.get(1), open_site.service.accounts.get(2))


@pytest.mark.parametrize("endpoint", OBJECTS, ids=" ".join)
def test_an_object_of_another_type_or_form_is_refused(ada: Client, endpoint: tuple[str, str]) -> None:
    for name in OBJECTS[endpoint]:
        for field in NO_OBJECT:
            reply = ada.send(*endpoint, accepted(endpoint) | {name: field})
            assert (reply.status, reply.message) == (400, f"{name} must be an object"), field
        for odd in ODD_OBJECTS:
            body = {name: odd, "name": "Phone"}
            assert well_formed(ada.send(*endpoint, body)).status in (400, 401, 403), odd


@pytest.mark.parametrize(("endpoint", "name"), sorted(BOOLEANS), ids=str)
def test_a_boolean_field_of_another_type_is_refused_by_name(
    ada: Client, endpoint: tuple[str, str], name: str
) -> None:
    for value in NO_BOOLEAN:
        reply = ada.send(*endpoint, accepted(endpoint) | {name: value})
        assert reply.status == 400, (value, reply)
        assert reply.message == f"{name} must be true or false"


@pytest.mark.parametrize("endpoint", CHANGES, ids=" ".join)
def test_no_string_in_any_field_causes_a_500(ada: Client, open_site: Site, endpoint: tuple[str, str]) -> None:
    fields = accepted(endpoint)
    bodies = [
        fields | {name: [text] if isinstance(fields[name], list) else text}
        for name in fields
        for text in ODD_TEXTS
    ]
    # Without fields of its own nothing is refused for another field, so all of them are sent at once.
    bodies = bodies or [dict.fromkeys(ALL_FIELDS, text) for text in ODD_TEXTS]
    began = time.monotonic()
    for body in bodies:
        well_formed(ada.send(*endpoint, body))
        if "auth_token" not in ada.cookies:  # that was the logout
            ada.login("ada@example.com", PASSWORD)
    assert time.monotonic() - began < 40
    with open_site.service.store.read() as tx:
        assert tx.active_admins() == 1


NO_OBJECTS = [
    b"[]", b"null", b"1", b'"x"', b"true", b"NaN", b'{"email": NaN}', b"{", b"\xff", b"[" * 10_000, b'{"a":1,"a":1}', b'{"x":"\\ud800"}',
]  # fmt: skip


@pytest.mark.parametrize("endpoint", CHANGES, ids=" ".join)
def test_no_endpoint_accepts_a_body_that_is_no_object(ada: Client, endpoint: tuple[str, str]) -> None:
    for raw in NO_OBJECTS:
        reply = well_formed(ada.send(*endpoint, raw=raw, headers={"Content-Type": "application/json"}))
        if endpoint in READ_BODY:
            assert reply.status == 400, raw


# --- JSON ---


@pytest.mark.parametrize(
    "raw",
    [
        b"[]", b"[{}]", b"1", b"null", b'"email"', b"true", b" ", b"\n", b"{", b"}", b"{}{}", b"{} x", b"{'email': 'x'}", b"{email: 1}",
        b'{"email": "x",}', b"/**/{}", b'{"a": NaN}', b'{"a": Infinity}', b'{"a": -Infinity}', b'{"a": 01}', b'{"a": .5}', b'{"a": 0x1}',
        b'{"a": 1, "a": 1}', b'{"a": {"b": 1, "b": 2}}', b'{"a": [{"b": 1, "b": 2}]}', b'{"a": 1, "\\u0061": 1}',
        b"[" * 10_000, b"[" * 10_000 + b"]" * 10_000, b'{"a":' * 10_000 + b"1" + b"}" * 10_000, b"[" * 65_000,
        b'{"a": ' + b"1" * 5_000 + b"}", b'{"a": -' + b"9" * 60_000 + b"}",
        b"\xef\xbb\xbf{}", b"\xef\xbb\xbf" + b'{"email": "bob@example.com", "password": "x"}',
        "{}".encode("utf-16"), "{}".encode("utf-16-le"), "{}".encode("utf-16-be"), "{}".encode("utf-32"), '{"a": "ä"}'.encode("latin-1"),
        b'{"a": "\xed\xa0\x80"}', b'{"a": "\xc0\x80"}', b'{"a": "\xf8\x88\x80\x80\x80"}', b'{"a": "\xff"}',
        b'{"a": "\x00"}', b'{"a": "\x01"}', b'{"a": "\n"}', b'{"a": "\\u0000"}', b'{"\\u0000": 1}', b'{"a": "\\ud800"}',
        b'{"a": "\\udc00\\ud800"}', b'{"\\ud800": 1}', b'{"a": [[["\\udfff"]]]}', b'{"a": "\\x"}', b'{"a": "\\u12"}', b'{"a"',
        b"\x00", b"{}\x00", gzip.compress(b"{}", mtime=0), b"email=x&password=y", b"<email>x</email>",
    ],
    ids=lambda raw: repr(raw[:24]),
)  # fmt: skip
def test_a_body_that_is_not_one_json_object_is_refused(site: Site, raw: bytes) -> None:
    began = time.monotonic()
    reply = site.client().post("/api/users/session", raw=raw, headers={"Content-Type": "application/json"})
    assert reply.status == 400
    assert "JSON" in reply.message or "character" in reply.message
    assert time.monotonic() - began < 2


@pytest.mark.parametrize(
    "more",
    [b'"x": 1e999', b'"x": -1e999', b'"x": 1e-999', b'"x": 0.1', b'"x": [[[[]]]]', b'"x": "\\ud83d\\ude00"', b'"x": null',
     b'"__proto__": {"role": "admin"}', b'"constructor": 1', b'"": ""'],
)  # fmt: skip
def test_unknown_fields_are_ignored(open_site: Site, more: bytes) -> None:
    raw = login_body()[:-1] + b", " + more + b"}"
    reply = open_site.client().post(
        "/api/users/session", raw=raw, headers={"Content-Type": "application/json"}
    )
    assert reply.status == 200


def test_a_body_that_is_empty_is_an_empty_object(site: Site) -> None:
    for headers in ({}, {"Content-Type": "text/plain"}, {"Content-Type": "application/json"}):
        reply = site.client().post("/api/users/session", raw=b"", headers=headers)
        assert reply.message == "Email and password are required"


# --- media types, encodings, lengths ---


@pytest.mark.parametrize(
    "media",
    [
        None, "", "text/plain", "text/json", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", "application/xml",
        "application/jsonx", "application/json-patch+json", "application/vnd.api+json", "application/ld+json", "*/*", "json",
        "application/json; charset=utf-16", "application/json;charset=latin-1", 'application/json; charset="utf-7"',
        "application/json, text/plain", "text/plain, application/json", "text/plain; application/json", "application /json",
        "application/json\x0b", "x/application/json",
    ],
)  # fmt: skip
def test_a_body_of_another_media_type_is_refused(open_site: Site, media: str | None) -> None:
    headers = {} if media is None else {"Content-Type": media}
    reply = open_site.client().post("/api/users/session", raw=login_body(), headers=headers)
    assert reply.status in ((400, 415) if media and "\x0b" in media else (415,))
    assert reply.message
    assert not reply.all("Set-Cookie")


@pytest.mark.parametrize(
    "media",
    ["application/json", "Application/JSON", "application/json;charset=UTF-8", 'application/json ; charset="utf-8"', "application/json; x=y"],
)  # fmt: skip
def test_json_with_other_valid_headers_is_accepted(open_site: Site, media: str) -> None:
    reply = open_site.client().post("/api/users/session", raw=login_body(), headers={"Content-Type": media})
    assert reply.status == 200


@pytest.mark.parametrize(
    "encoding", ["gzip", "deflate", "br", "x-gzip", "identity, gzip", "GZIP", "zstd", "nonsense"]
)
def test_a_compressed_body_is_refused(open_site: Site, encoding: str) -> None:
    headers = {"Content-Type": "application/json", "Content-Encoding": encoding}
    for raw in (login_body(), gzip.compress(login_body()), gzip.compress(b" " * 50_000_000)[:60_000]):
        assert open_site.client().post("/api/users/session", raw=raw, headers=headers).status == 415


@pytest.mark.parametrize(
    ("size", "status"), [(65_535, 200), (65_536, 200), (65_537, 413), (70_000, 413), (2_000_000, 413)]
)
def test_a_body_may_have_64_kib(open_site: Site, size: int, status: int) -> None:
    raw = login_body().ljust(size)
    headers = {"Content-Type": "application/json"}
    assert (
        well_formed(open_site.client().post("/api/users/session", raw=raw, headers=headers)).status == status
    )


@pytest.mark.parametrize(("size", "status"), [(100, 200), (60_000, 200), (65_537, 413), (1_000_000, 413)])
def test_a_chunked_body_may_have_64_kib_with_its_framing(open_site: Site, size: int, status: int) -> None:
    raw = login_body().ljust(size)
    chunks = [raw[at : at + 7_001] for at in range(0, len(raw), 7_001)]
    sent = b"".join(b"%x;x=y\r\n%b\r\n" % (len(chunk), chunk) for chunk in chunks) + b"0\r\n\r\n"
    head = (
        b"POST /api/users/session HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Type: application/json\r\n"
        b"Transfer-Encoding: chunked\r\n\r\n"
    )
    answer = open_site.raw(head + sent)
    assert answer.startswith(b"HTTP/1.1 %d " % status)


@pytest.mark.parametrize(
    "length",
    ["-1", "+5", "0x10", "5, 5", "5 5", "1e3", "", "٣", "9" * 30, "9" * 5_000, "65537", "18446744073709551617", "1_0", "2\r\nContent-Length: 3"],
)  # fmt: skip
def test_an_invalid_content_length_is_refused_without_hanging(open_site: Site, length: str) -> None:
    began = time.monotonic()
    answer = open_site.raw(
        b"POST /api/users/session HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Type: application/json\r\n"
        b"Content-Length: %b\r\n\r\n%b" % (length.encode(), login_body())
    )
    assert answer.startswith((b"HTTP/1.1 400 ", b"HTTP/1.1 413 "))
    assert time.monotonic() - began < 5


# --- ids ---

ODD_IDS = [
    "0", "-1", "01", "00", "+1", "%2B1", "1%0a", "%0a1", "1%20", "%201", "1%09", "1.0", "1e3", "0x1", "0b1", "1_0", "1,2", "1;2", "1'",
    "%D9%A1", "%EF%BC%91", "%C2%B9", "%E2%91%A0", "1%CC%81", "1%E2%80%8B", "9" * 19, "9" * 400, "9223372036854775808", "18446744073709551617",
    "nan", "inf", "null", "true", "Me", "ME", "me%20", "inactive2", "*", "%25", "1%25", "1%2b1", "%00", "1%00", "1%2e", "~1", "$1", "[1]", "(1)",
    "1=1", "1--", "%F0%9F%92%A5", "1%7C2", "a" * 3_000,
]  # fmt: skip


@pytest.mark.parametrize(
    ("method", "path"),
    [(route.method, route.path) for route in TABLE if route.path.startswith("/api/users/<id>")],
)
def test_an_invalid_user_id_is_refused(ada: Client, method: str, path: str) -> None:
    body = accepted((method, filled(path, id="2"))) if method in ("PATCH", "POST", "PUT") else None
    for odd in ODD_IDS:
        reply = ada.send(method, filled(path, id=odd), body)
        assert (reply.status, reply.message) == (400, "Invalid user id"), odd
    for far in ("3", "999999999999999999", "9" * 18):
        reply = ada.send(method, filled(path, id=far), body)
        assert (reply.status, reply.message) == (404, "User not found"), far


@pytest.mark.parametrize("path", ["/api/users/me/sessions", "/api/users/2/sessions"])
def test_an_invalid_session_id_is_refused(ada: Client, path: str) -> None:
    for odd in ODD_IDS:
        assert ada.delete(f"{path}/{odd}").status == 400, odd
    assert ada.delete(f"{path}/999999999999999999").status == 404
    assert ada.get("/api/users/me").status == 200


@pytest.mark.parametrize("odd", ["1%ff", "%ff1", "%c0%b1", "%ed%a0%80"])
def test_an_id_that_is_not_utf_8_matches_no_route(ada: Client, odd: str) -> None:
    assert well_formed(ada.get(f"/api/users/{odd}")).status in (400, 404)


# --- mass assignment ---

MINE = {
    "id": 77, "role": "admin", "active": False, "password_hash": "$2b$04$" + "a" * 53, "created_at": "1999-01-01T00:00:00.000Z",
    "updated_at": "1999-01-01T00:00:00.000Z", "last_login_at": "1999-01-01T00:00:00.000Z", "oauth_id": "me", "oauthId": "me",
    "profile_picture": "http://evil.example/x.png", "email_proven_at": "1999-01-01T00:00:00.000Z", "awaiting_confirmation": True,
    "isAdmin": True, "is_admin": 1, "admin": True, "user": {"role": "admin"}, "permissions": ["*"], "password": "mallory's own one",
    "user_id": 1, "__proto__": {"role": "admin"}, "rounds": 31, "token": "x",
}  # fmt: skip


def everything_of(site: Site, user_id: int) -> dict[str, Any]:
    with site.service.store.read() as tx:
        credentials = tx.credentials_of(user_id)
    assert credentials
    return credentials.user._asdict() | {"password_hash": credentials.password_hash}


def test_a_user_changes_only_the_allowed_fields_of_their_account(open_site: Site) -> None:
    bob = open_site.client()
    bob.login("bob@example.com", PASSWORD)
    before = everything_of(open_site, 2)
    reply = bob.patch("/api/users/me", MINE | {"name": "Robert"})
    assert reply.status == 200
    assert everything_of(open_site, 2) == before | {"name": "Robert"}
    assert bob.patch("/api/users/me", MINE).json["role"] == "user"
    assert bob.get("/api/users").status == 403
    assert bob.patch("/api/users/2", {"role": "admin"}).status == 403
    assert bob.post("/api/users", MINE | {"email": "x@example.com", "name": "X"}).status == 403
    assert everything_of(open_site, 2) == before | {"name": "Robert"}


def test_an_admin_changes_only_the_allowed_fields_of_others(open_site: Site, ada: Client) -> None:
    allowed = {"role": "user", "active": True}
    before = everything_of(open_site, 2)
    assert ada.patch("/api/users/2", MINE | allowed).status == 200
    assert everything_of(open_site, 2) == before

    made = ada.post(
        "/api/users", MINE | allowed | {"email": "x@example.com", "name": "X", "password": PASSWORD}
    )
    user = everything_of(open_site, made.json["user"]["id"])
    assert user["id"] == 3
    assert user["active"] is True
    assert user["oauth_id"] is user["profile_picture"] is user["last_login_at"] is None
    assert user["created_at"] == user["updated_at"] == "2026-11-20T08:22:19.123Z"
    assert open_site.client().login("x@example.com", PASSWORD).status == 200


def test_login_and_password_change_set_no_other_field(open_site: Site) -> None:
    bob = open_site.client()
    before = everything_of(open_site, 2)
    assert (
        bob.post("/api/users/session", MINE | {"email": "bob@example.com", "password": PASSWORD}).status
        == 200
    )
    words = {
        "currentPassword": PASSWORD,
        "newPassword": "another sentence",
        "newPasswordConfirmation": "another sentence",
    }
    assert bob.patch("/api/users/password", MINE | words).status == 200
    after = everything_of(open_site, 2)
    changed = {name for name in before if before[name] != after[name]}
    assert changed <= {"password_hash", "last_login_at", "updated_at"}
    assert everything_of(open_site, 1)["role"] == "admin"
    assert bob.get("/api/users").status == 403


def test_registration_makes_an_inactive_account_with_the_role_user(open_site: Site) -> None:
    assert ("POST", "/api/users/register") in CHANGES
    words = {"email": "eve@example.com", "name": "Eve", "password": PASSWORD}
    reply = open_site.client().post("/api/users/register", MINE | {"active": True} | words)
    assert reply.status == 200
    user = everything_of(open_site, reply.json["user"]["id"])
    assert (user["id"], user["role"], user["active"]) == (3, "user", False)
    assert user["oauth_id"] is user["profile_picture"] is user["email_proven_at"] is None


def test_no_other_endpoint_creates_an_account(open_site: Site) -> None:
    nobody = open_site.client()
    for method, path in (
        ("PUT", "/api/users/me"),
        ("POST", "/api/users/2"),
        ("PUT", "/api/users/2"),
        ("POST", "/api/users/me"),
    ):
        assert nobody.send(method, path, MINE).status == 401
    with open_site.service.store.read() as tx:
        assert tx.counts()["users"] == 2


# --- queries ---


def emails(client: Client, query: str) -> list[str]:
    return [user["email"] for user in client.get(f"/api/users?{query}").json["users"]]


def test_sql_wildcards_have_no_meaning_in_a_search(open_site: Site, ada: Client) -> None:
    for email in ("a_b@example.com", "axb@example.com", "100%@example.com"):
        create_user(open_site.service, email, "Somebody \\", PASSWORD, by=OPERATOR)
    assert emails(ada, "search=_") == ["a_b@example.com"]
    assert emails(ada, "search=%25") == ["100%@example.com"]
    assert emails(ada, "search=a_b") == ["a_b@example.com"]
    assert len(emails(ada, "search=%5C")) == 3
    for nothing in (
        "%25%25",
        "%5C%25",
        "%5C_",
        "'%20OR%201=1%20--",
        "%22",
        "*",
        "?",
        "[a-z]",
        "a%00",
        "%F0%9F%92%A5",
    ):
        reply = well_formed(ada.get(f"/api/users?search={nothing}"))
        assert reply.status == 400 or reply.json["users"] == [], nothing


@pytest.mark.parametrize("path", ["/api/users", "/api/users/inactive"])
def test_malformed_queries_are_refused(ada: Client, path: str) -> None:
    for query in (
        "page=0", "page=-1", "page=01", "page=1.0", "page=1e3", "page=%2B1", "page=+1", "page=", "page", "page=x", "page=%D9%A1",
        "page=%EF%BC%91", "page=1%0a", "page=1%00", "page=9999999999999999999", "page=" + "9" * 400, "page=NaN", "page=true", "page=[1]",
        "page=1&page=1", "page=1&page=2", "limit=0", "limit=101", "limit=-1", "limit=1&limit=100", "limit=10.0", "limit=",
        "limit=99999999999999999999", "page=1&limit=1&page=1", "%70age=1&page=1", "search=a&search=b", "search=%00", "search=" + "a" * 201,
        "search=%ff", "search=%ed%a0%80", "%ff=1", "&".join(f"x{n}=1" for n in range(51)), "role=Admin", "role=", "role=root", "role=admin%00",
        "role=admin&role=user", "role[]=admin&role[]=user", "sort=password_hash", "sort=name,email", "order=up",
        *(["active=1", "active=True", "active=", "active=null", "active=true&active=false", "state=", "state=Locked", "state=locked%00",
           "state=locked&state=invited", "group=", "group=Staff", "group=staff%00", "group=a,b", "group=" + "a" * 64, "group=nowhere",
           "group='%20OR%201=1--"] if path == "/api/users" else []),
    ):  # fmt: skip
        assert well_formed(ada.get(f"{path}?{query}")).status == 400, query


@pytest.mark.parametrize(
    "query",
    ["", "page=1", "page=999999999999999999", "page=999999999999999999&limit=100", "limit=100", "x=y", "page[]=7", "Page=0", "PAGE=x",
     "search=", "search=%20", "=", "&&&", "orderBy=1", "search=" + "%25" * 200, "active=true", "role=admin",
     "fields=password_hash", "include=password"],
)  # fmt: skip
def test_other_queries_are_answered_without_a_secret(ada: Client, query: str) -> None:
    reply = well_formed(ada.get(f"/api/users?{query}"))
    assert reply.status == 200
    assert set(reply.json) == {"users", "pagination"}
    assert b"password" not in reply.body.replace(b"last", b"")
    assert b"$2" not in reply.body


# --- anything at all ---

SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=40)
VALUES = st.recursive(
    SCALARS,
    lambda more: st.lists(more, max_size=3) | st.dictionaries(st.text(max_size=8), more, max_size=3),
    max_leaves=6,
)
FIELDS = st.dictionaries(st.sampled_from(sorted(ALL_FIELDS)) | st.text(max_size=8), VALUES, max_size=6)
PATHS = (
    st.sampled_from(sorted({filled(route.path, id="2") for route in TABLE}))
    | st.builds("/api/users/{}".format, st.text(string.ascii_letters + string.digits + "%._-/", max_size=12))
    | st.text(string.printable.strip().replace("#", "").replace(" ", ""), max_size=30).map(lambda text: "/" + text)
)  # fmt: skip
HEADER = st.text([chr(c) for c in range(32, 256) if c != 127], max_size=60)
HEADERS = st.dictionaries(
    st.sampled_from(
        ["Accept", "Authorization", "Content-Type", "Content-Encoding", "Cookie", "Expect", "Forwarded", "If-None-Match", "Origin", "Range",
         "Sec-Fetch-Site", "User-Agent", "X-Forwarded-For", "X-HTTP-Method-Override", "X-Request-Id", "Upgrade", "Via"]
    ),
    HEADER | st.sampled_from(["application/json", "null", "gzip", "cross-site", "same-origin", "127.0.0.1", "Bearer x", "auth_token=x"]),
    max_size=4,
)  # fmt: skip
METHODS = st.sampled_from(["GET", "HEAD", "POST", "PATCH", "DELETE", "PUT", "OPTIONS", "TRACE", "QUERY", "X"])


def test_no_request_causes_a_500(open_site: Site) -> None:
    """600 requests or ten seconds, whichever comes first."""
    token = open_site.service.sessions.login("ada@example.com", PASSWORD).token
    until = time.monotonic() + 10

    @given(
        METHODS,
        PATHS,
        st.none() | FIELDS.map(json.dumps).map(str.encode) | st.binary(max_size=200),
        HEADERS,
        st.booleans(),
    )
    @settings(max_examples=600, deadline=None, suppress_health_check=list(HealthCheck))
    def attack(method: str, path: str, raw: bytes | None, headers: dict[str, str], signed_in: bool) -> None:
        if time.monotonic() > until:
            return
        sent = {name: value.encode("latin-1").decode("latin-1") for name, value in headers.items()}
        if raw is not None:
            sent.setdefault("Content-Type", "application/json")
        if signed_in:
            sent["Cookie"] = f"auth_token={token}"
        reply = open_site.client().send(method, path, raw=raw, headers=sent)
        assert reply.status < 500
        if reply.status >= 400 and method != "HEAD":
            assert reply.message
        assert reply.header("X-Content-Type-Options") == "nosniff"
        assert reply.header("Server") is None

    attack()
    assert isinstance(open_site.service.accounts.find("ada@example.com"), User)
