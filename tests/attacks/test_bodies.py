"""Attacks by bodies: their fields, their JSON, their media types and lengths. Never a 5xx, and always the shape of an error."""

import gzip
import io
import json
import time
from typing import Any

import pytest
from support.bodies import (
    ALL_FIELDS,
    BOOLEANS,
    CHANGES,
    LISTS,
    OBJECTS,
    READ_BODY,
    TEXTS,
    accepted,
    well_formed,
)
from support.commands import PASSWORD
from support.web import Client, Site

from usersctl.service import Service
from usersd.request import BadRequest, Request

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


def login_body(**more: Any) -> bytes:
    return json.dumps({"email": "bob@example.com", "password": PASSWORD} | more).encode()


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
    ["application/json", "Application/JSON", "application/json;charset=UTF-8", "application/json; charset=utf8", 'application/json ; charset="utf-8"', "application/json; x=y"],
)  # fmt: skip
def test_json_with_other_valid_headers_is_accepted(open_site: Site, media: str) -> None:
    reply = open_site.client().post("/api/users/session", raw=login_body(), headers={"Content-Type": media})
    assert reply.status == 200


@pytest.mark.parametrize(
    "encoding", ["gzip", "deflate", "br", "x-gzip", "identity, gzip", "GZIP", "zstd", "nonsense"]
)
def test_a_compressed_body_is_refused(open_site: Site, encoding: str) -> None:
    headers = {"Content-Type": "application/json", "Content-Encoding": encoding}
    for raw in (login_body(), gzip.compress(login_body()), gzip.compress(b" " * 10_000_000, 1)):
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


# --- other servers ---

FRAMED = {"SERVER_PROTOCOL": "HTTP/2", "CONTENT_TYPE": "application/json"}


@pytest.mark.parametrize(
    ("environ", "status"),
    [
        ({"CONTENT_LENGTH": "65537"}, 413),
        ({"CONTENT_LENGTH": "65537", "wsgi.input_terminated": True}, 413),
        ({"CONTENT_LENGTH": "x"}, 400),
        ({"HTTP_TRANSFER_ENCODING": "chunked"}, 411),
        (FRAMED, 411),
    ],
)
def test_no_byte_is_read_of_a_body_that_is_too_long_or_whose_end_is_hidden(
    service: Service, environ: dict[str, Any], status: int
) -> None:
    request = Request({"REQUEST_METHOD": "POST", "wsgi.input": None} | environ, service.settings)
    with pytest.raises(BadRequest) as refused:
        _ = request.body
    assert refused.value.status == status


@pytest.mark.parametrize("environ", [{"SERVER_PROTOCOL": "HTTP/2"}, FRAMED | {"SERVER_PROTOCOL": "HTTP/1.0"}])
def test_a_request_without_a_body_is_read_as_an_empty_object(
    service: Service, environ: dict[str, Any]
) -> None:
    assert Request({"REQUEST_METHOD": "POST", "wsgi.input": None} | environ, service.settings).body == {}


def test_a_body_that_another_server_has_put_together_may_have_64_kib(service: Service) -> None:
    def read(size: int) -> dict[str, Any]:
        environ = {"wsgi.input": io.BytesIO(b"{}".ljust(size)), "wsgi.input_terminated": True}
        headers = {"REQUEST_METHOD": "POST", "CONTENT_TYPE": "application/json"}
        return Request(environ | headers, service.settings).body

    assert read(65_536) == {}
    with pytest.raises(BadRequest, match="too large"):
        read(65_537)
