"""Attacks by the head of a request: the short way through the parser accepts nothing that the long one refuses or reads
differently.

Some thousand mutated requests in every run; a million by `USERSCTL_LONG=1 pytest tests/faults/test_heads.py`.
"""

import random
import time
from itertools import product
from typing import Any

import pytest
from support.faults import LONG
from support.mutations import changed_once
from waitress.adjustments import Adjustments

from usersd.request import MAX_BODY
from usersd.server.connections import MAX_HEADERS
from usersd.server.messages import HTTPRequestParser, Parser

ADJUSTMENTS = Adjustments(max_request_header_size=MAX_HEADERS, max_request_body_size=MAX_BODY + 1)
MUTATED = 1_000_000 if LONG else 4_000

PLAIN = [
    b"GET /api/users/me HTTP/1.1\r\nHost: 127.0.0.1\r\nCookie: auth_token=abc-DEF_123; other=1\r\n\r\n",
    b"HEAD /users?page=2&search=a%20b HTTP/1.1\r\nHost: x\r\nAccept: */*\r\nX-Forwarded-For: 192.0.2.1, 10.0.0.1\r\n\r\n",
    b"DELETE /api/users/7/sessions HTTP/1.1\r\nhost: x:8080\r\nAuthorization: Bearer abc\r\nConnection: close\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: a.example.com\r\nUser-Agent: Mozilla/5.0 (X11; rv:140.0)\r\nConnection: keep-alive\r\nPriority: u=0, i\r\n\r\n",
]
OTHERS = [
    b"POST /api/users/session HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}",
    b"POST /api/users/session HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
    b"POST / HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n",
    b"GET /a%2fb HTTP/1.0\r\n\r\n",
    b"OPTIONS * HTTP/1.1\r\nHost: x\r\n\r\n",
]
PIECES = [
    b"\r\n", b"\n", b"\r", b"\r\n\r\n", b"\0", b" ", b"  ", b"\t", b":", b": ", b" :", b",", b";", b"/", b"//", b"/../", b"?", b"#", b"%", b"%2f",
    b"%00", b"\\", b"@", b"[", b"]", b"_", b"-", b"\x0b", b"\x0c", b"\x1c", b"\x7f", b"\x85", b"\xa0", b"\xff", b"\xc3\xa9", b"\xe2\x80\xa8",
    b"HTTP/1.0", b"HTTP/1.1", b"HTTP/1.1\r\n", b"HTTP/9.9", b"http://evil/", b"//evil/", b"get", b"GET ", b"Host", b"Host: y\r\n", b"Host:\r\n",
    b"host : x\r\n", b"Host: a, b\r\n", b"Cookie: c=1\r\n", b"X-A: 1\r\n", b"X_A: 1\r\n", b"X-A:\r\n", b"X-A: \t\r\n", b" X-A: 1\r\n", b"\tX-A: 1\r\n",
    b"Content-Length: 0\r\n", b"Content-Length: 3\r\n", b"Content-Length: +3\r\n", b"Content_Length: 3\r\n", b"content-length: 3\r\n",
    b"Transfer-Encoding: chunked\r\n", b"Transfer-Encoding: identity\r\n", b"Transfer-Encoding\r\n", b"transfer_encoding: chunked\r\n",
    b"Expect: 100-continue\r\n", b"Connection: close\r\n", b"Connection: upgrade\r\n", b"Upgrade: h2c\r\n", b"A" * 60, b"A" * 400, b"X-B: " + b"b" * 9000,
]  # fmt: skip


class LongWay(Parser):
    received = HTTPRequestParser.received


def mutated(chance: random.Random) -> bytes:
    data = bytearray(chance.choice(PLAIN if chance.random() < 0.8 else OTHERS))
    for _ in range(chance.choice((1, 1, 1, 2, 3, 6))):
        at = chance.randrange(len(data) + 1)
        # Half of all changes at the beginning of a line, where they are most likely to be accepted.
        if chance.random() < 0.5 and b"\r\n" in data:
            at = (data.find(b"\r\n", at) + 2) or at
        changed_once(data, at, PIECES, chance)
    return bytes(data)


def read(parser: HTTPRequestParser, sent: list[bytes]) -> dict[str, Any]:
    """All that the server learns of a request that arrives in these pieces."""
    consumed = 0
    for piece in sent:
        consumed += parser.received(piece)
        if parser.completed:
            break
    learned = {"consumed": consumed, "completed": parser.completed, "empty": parser.empty}
    if parser.error:
        return learned | {"status": parser.error.code}
    if not parser.headers_finished or parser.empty:
        return learned
    names = ("command", "request_uri", "path", "query", "version", "headers", "chunked", "content_length")
    learned |= {name: getattr(parser, name) for name in (*names, "expect_continue", "body_rcv")}
    return learned | {"body_rcv": parser.body_rcv is not None}


def test_both_ways_through_the_parser_read_every_request_alike() -> None:
    chance = random.Random(1)
    short = refused = 0
    for _ in range(MUTATED):
        request = mutated(chance)
        cut = len(request) if chance.random() < 0.8 else chance.randrange(1, len(request) + 1)
        parser = Parser(ADJUSTMENTS)
        learned = read(parser, [request[:cut], request[cut:]])
        assert learned == read(LongWay(ADJUSTMENTS), [request[:cut], request[cut:]]), request
        short += not hasattr(parser, "first_line") and parser.headers_finished and not parser.error
        refused += "status" in learned
    print(f"{MUTATED} requests: {short} by the short way, {refused} refused")
    assert short > MUTATED / 12
    assert refused > MUTATED / 5


FIELDS = b"GET / HTTP/1.1\r\nHost: x\r\n"
BEFORE = [
    *(
        b"",
        b"GET /",
        b"GET /?",
        b"GET / HTTP/1.1\r\n",
        FIELDS + b"X: ",
        FIELDS + b"Y_Z: 1\r\nX:",
        FIELDS + b"X: y",
    ),
    *(FIELDS + b"Content-Length:", FIELDS + b"Transfer-Encoding:", FIELDS + b"Transfer-Encoding: chunked,"),
]
AFTER = [
    b"",
    b"\r\n\r\n",
    b"x\r\n\r\n",
    b"\x01\r\n\r\n",
    b"chunked\r\n\r\n",
    b"1\r\n\r\n",
    b" HTTP/1.1\r\n\r\n",
]


@pytest.mark.parametrize(
    "filling", [b"a", b" ", b"\t", b" \t", b"a ", b",", b"X: ", b"X: a\r\n", b"/", b"/a", b"?", b"\r", b":"]
)
def test_no_head_takes_the_parser_long(filling: bytes) -> None:
    for before, after in product(BEFORE, AFTER):
        head = before + filling * ((MAX_HEADERS - len(before) - len(after)) // len(filling) - 1) + after
        began = time.process_time()
        Parser(ADJUSTMENTS).received(head)
        assert time.process_time() - began < 0.1
