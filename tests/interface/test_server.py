"""The server on real sockets: lanes, slow clients, malformed requests, and how it stops."""

import errno
import http.client
import json
import logging
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager, suppress
from email.utils import parsedate_to_datetime
from typing import Any

import pytest
from support.daemons import wait_for
from support.web import OK, end, read_all

from usersctl.errors import ConfigError
from usersd.response import Response
from usersd.server import channel, connections, messages
from usersd.server.connections import Hosted, Server
from usersd.server.lanes import NONBLOCKING, Lane, MustWait
from usersd.server.listener import _cannot_listen, listen, url_of


class App:
    """Answers with method, path and body; slow paths wait until the gate is opened."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.seen: list[str] = []
        self.threads: list[str] = []
        self.priorities: list[int] = []

    def __call__(self, _environ: dict[str, Any], _start_response: Callable[..., Any]) -> list[bytes]:
        raise AssertionError("the server takes the shorter way")

    def answer(self, environ: dict[str, Any]) -> Response:
        path = environ["PATH_INFO"]
        self.seen.append(path)
        self.threads.append(threading.current_thread().name)
        self.priorities.append(os.getpriority(os.PRIO_PROCESS, threading.get_native_id()))
        if path == "/crash":
            raise OSError("secret")
        if path == "/here/but-waits" and environ[NONBLOCKING]:
            raise MustWait
        if is_slow(environ["REQUEST_METHOD"], path):
            self.gate.wait(20)
        body = environ["wsgi.input"].read()
        answer = f"{environ['REQUEST_METHOD']} {path} {len(body)} {environ['REMOTE_ADDR']}".encode()
        if path == "/much":
            answer = b"x" * 4_000_000
        if path == "/splits":
            return Response(200, answer, (("Location", "/\r\nSet-Cookie: a=b"),))
        return Response(200, answer, (("Content-Type", "text/plain"),))


def is_slow(method: str, path: str) -> bool:
    return method == "POST" and path == "/login"


def lane_of(method: str, path: str) -> Lane:
    if path.startswith("/here"):
        return Lane.HERE
    return Lane.HASHING if is_slow(method, path) else Lane.QUICK


class Running:
    def __init__(self, app: App, listener: socket.socket, **changes: Any) -> None:
        self.app = app
        self.url = url_of(listener)
        self.address = listener.getsockname()[:2]
        self.stops: list[bool] = []
        hosted = Hosted(app=app, answer=app.answer, lane=lane_of, on_stop=lambda: self.stops.append(True))
        numbers = {"threads": 4, "slow_threads": 2, "waiting_room": 8, "connections": 1000} | changes
        self.server = Server(listener, hosted, **numbers)
        self.thread = threading.Thread(target=self.server.run, name="main")
        self.thread.start()

    def does_when_it_stops(self, on_stop: Callable[[], None]) -> None:
        self.server.hosted = self.server.hosted._replace(on_stop=on_stop)

    def stop(self) -> None:
        self.app.gate.set()
        end(self.server, self.thread)

    def connect(self) -> socket.socket:
        return socket.create_connection(self.address, timeout=10)

    def raw(self, sent: bytes) -> bytes:
        """Everything that the server sends until it closes the connection."""
        with self.connect() as client:
            client.sendall(sent)
            return read_all(client)

    def get(self, path: str = "/") -> bytes:
        return self.raw(f"GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())


@pytest.fixture
def start() -> Iterator[Callable[..., Running]]:
    with ExitStack() as stack:

        def start(host: str = "127.0.0.1", **changes: Any) -> Running:
            running = Running(App(), listen(host, 0), **changes)
            stack.callback(running.stop)
            return running

        yield start


@pytest.fixture
def running(start: Callable[..., Running]) -> Running:
    return start()


# --- requests and answers ---


def test_a_connection_serves_many_requests(running: Running) -> None:
    with closing(http.client.HTTPConnection(*running.address, timeout=10)) as client:
        for n in range(100):
            client.request("POST", f"/{n}", body=b"x" * n)
            answer = client.getresponse()
            assert (answer.status, answer.read()) == (200, f"POST /{n} {n} 127.0.0.1".encode())
            assert answer.getheader("Server") is None


def test_pipelined_requests_are_answered_in_order(running: Running) -> None:
    last = b"GET /49 HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
    received = running.raw(b"".join(b"GET /%d HTTP/1.1\r\nHost: x\r\n\r\n" % n for n in range(49)) + last)
    bodies = [part.split(b" ")[1] for part in received.split(b"\r\n\r\n")[1:]]
    assert bodies == [b"/%d" % n for n in range(50)]


def test_requests_that_come_far_ahead_wait_outside_of_the_daemon_and_are_all_answered(
    running: Running,
) -> None:
    with running.connect() as client:
        first, last = b"POST /login HTTP/1.1\r\nHost: x\r\n\r\n", GET + b"Connection: close\r\n\r\n"
        client.sendall(first + (GET + b"\r\n") * 3000 + last)
        wait_for(lambda: running.app.seen)
        (connection,) = running.server.active_channels.values()
        time.sleep(0.2)  # in which it could read all of them
        assert len(connection.requests) < 1000
        running.app.gate.set()
        assert read_all(client).count(OK) == 3002


def test_a_client_that_half_closed_its_connection_gets_its_answer(running: Running) -> None:
    with running.connect() as client:
        client.sendall(b"POST /login HTTP/1.1\r\nHost: x\r\n\r\n")
        client.shutdown(socket.SHUT_WR)
        wait_for(lambda: running.app.seen)
        time.sleep(0.1)
        running.app.gate.set()
        assert b"POST /login" in read_all(client)


@pytest.mark.parametrize(
    "sent",
    [
        b"POST / HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 65536\r\n\r\n" + b"x" * 65536,
        b"POST / HTTP/1.1\r\nHost: x\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
        b"\r\nGET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
        b"GET /a?b=%20[]{}|^ HTTP/1.1\r\nHost: x\r\nConnection: close\r\nX: transfer-encoding: gzip\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\nExpect: 100-continue\r\n\r\n",
        b"GET / HTTP/1.0\r\n\r\n",
    ],
)
def test_unusual_but_valid_requests_are_served(running: Running, sent: bytes) -> None:
    assert b" 200 OK\r\n" in running.raw(sent)


def test_a_client_may_wait_for_100_continue_before_it_sends_a_body(running: Running) -> None:
    with running.connect() as client:
        client.sendall(b"POST / HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 3\r\n\r\n")
        assert client.recv(100) == b"HTTP/1.1 100 Continue\r\n\r\n"
        client.sendall(b"abc")
        assert client.recv(1000).startswith(OK)


GET = b"GET / HTTP/1.1\r\nHost: x\r\n"
POST = b"POST / HTTP/1.1\r\nHost: x\r\n"
MUCH = b"GET /much HTTP/1.1\r\nHost: x\r\n\r\n"


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (POST + b"Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
        (POST + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
        (POST + b"Transfer-Encoding: chunked, chunked\r\n\r\n0\r\n\r\n", 400),
        (POST + b"Transfer-Encoding:\r\n\r\n", 400),
        (POST + b"Transfer-Encoding: gzip\r\n\r\n", 400),
        (POST + b"Transfer-Encoding: \x0bchunked\r\n\r\n0\r\n\r\n", 400),
        (POST + b"Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n", 400),
        (POST + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n\r\n", 400),
        (b"POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
        (POST + b"Content-Length: 3\r\nContent-Length: 3\r\n\r\nabc", 400),
        (POST + b"Content-Length: 3\r\nContent-Length: 4\r\n\r\nabc", 400),
        (POST + b"Content-Length: +3\r\n\r\nabc", 400),
        (POST + b"Content-Length: -1\r\n\r\n", 400),
        (POST + b"Content-Length: 3, 3\r\n\r\nabc", 400),
        (POST + b"Content-Length: 0x3\r\n\r\nabc", 400),
        (POST + b"Content-Length:\r\n\r\n", 400),
        (POST + b"Content-Length: " + b"0" * 5000 + b"3\r\n\r\nabc", 400),
        (POST + b"Expect: 100-continue\r\nContent-Length: x\r\n\r\n", 400),
        (POST + b"Expect: 100-continue\r\nContent-Length: 65537\r\n\r\n", 413),
        (POST + b"Content-Length: 65537\r\n\r\n", 413),
        (POST + b"Transfer-Encoding: chunked\r\n\r\n20000\r\n" + b"x" * 0x20000 + b"\r\n0\r\n\r\n", 413),
        (POST + b"Transfer-Encoding: chunked\r\n\r\n1;" + b"x" * 600_000, 413),
        (POST + b"Transfer-Encoding: chunked\r\n\r\n0\r\n" + b"X: y\r\n" * 100_000, 413),
        (GET + b"X: " + b"x" * 16384 + b"\r\n\r\n", 431),
        (b"GET /" + b"x" * 17000, 431),
        (b"GET http://evil/admin HTTP/1.1\r\nHost: x\r\n\r\n", 400),
        (b"GET admin HTTP/1.1\r\nHost: x\r\n\r\n", 400),
        (b"GET /a#b HTTP/1.1\r\nHost: x\r\n\r\n", 400),
        (b"GET /a\x00b HTTP/1.1\r\nHost: x\r\n\r\n", 400),
        (b"GET /a\tb HTTP/1.1\r\nHost: x\r\n\r\n", 400),
        (b"GET /a\x7fb HTTP/1.1\r\nHost: x\r\n\r\n", 400),
        (b"GET /\xc3\xa4 HTTP/1.1\r\nHost: x\r\n\r\n", 400),
        (b"GET  / HTTP/1.1\r\nHost: x\r\n\r\n", 400),
        (b"OPTIONS * HTTP/1.1\r\nHost: x\r\n\r\n", 400),
        (b"CONNECT x:80 HTTP/1.1\r\nHost: x\r\n\r\n", 400),
        (b"get / HTTP/1.1\r\nHost: x\r\n\r\n", 400),
        (b"GET /\r\n\r\n", 400),
        (b"GET / HTTP/2.0\r\nHost: x\r\n\r\n", 400),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\n\r\n", 400),
        (GET + b"Host: y\r\n\r\n", 400),
        (GET + b"X: a\r\n folded\r\n\r\n", 400),
        (GET + b"X: a\x00b\r\n\r\n", 400),
        (GET + b"X: a\nY: b\r\n\r\n", 400),
        (GET + b"X a\r\n\r\n", 400),
        (GET + b": a\r\n\r\n", 400),
    ],
)
def test_malformed_requests_are_refused_as_json_and_do_not_reach_the_application(
    running: Running, sent: bytes, status: int
) -> None:
    head, _, body = running.raw(sent).partition(b"\r\n\r\n")
    assert int(head.split(b" ")[1]) == status
    assert json.loads(body) == {"statusCode": status, "statusMessage": messages.MESSAGES[status]}
    headers = dict(line.split(": ", 1) for line in head.decode().split("\r\n")[1:])
    assert headers.pop("Date")
    assert headers == {
        "Cache-Control": "no-store",
        "Connection": "close",
        "Content-Length": str(len(body)),
        "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
        "Content-Type": "application/json; charset=utf-8",
        "Referrer-Policy": "no-referrer",
        "X-Content-Type-Options": "nosniff",
    }
    assert running.app.seen == []


@pytest.mark.parametrize(
    ("after", "status"),
    [
        (b"X a\r\n\r\n", 400),
        (b"Content-Length: +3\r\n\r\n", 400),
        (b"X: " + b"x" * 16384 + b"\r\n\r\n", 431),
        (b"Content-Length: 65537\r\n\r\n", 413),
    ],
)
def test_head_is_refused_without_a_body(running: Running, after: bytes, status: int) -> None:
    head, _, body = running.raw(b"HEAD / HTTP/1.1\r\nHost: x\r\n" + after).partition(b"\r\n\r\n")
    assert (int(head.split(b" ")[1]), body) == (status, b"")
    assert b"Content-Length: 0" not in head


def test_a_client_that_is_still_sending_receives_the_refusal(running: Running) -> None:
    sent = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 3000000\r\n\r\n" + b"x" * 3_000_000
    assert running.raw(sent).startswith(b"HTTP/1.1 413 ")


def test_a_crash_is_logged_without_the_query_and_answered_without_its_text(
    running: Running, caplog: pytest.LogCaptureFixture
) -> None:
    received = running.get("/crash?token=abc")
    assert received.startswith(b"HTTP/1.1 500 ")
    assert json.loads(received.partition(b"\r\n\r\n")[2]) == {
        "statusCode": 500,
        "statusMessage": "Internal server error",
    }
    assert [(line.name, line.levelno) for line in caplog.records] == [("usersd", logging.ERROR)]
    assert "GET /crash failed" in caplog.text
    assert "token" not in caplog.text


def test_an_ipv4_client_of_a_dual_stack_socket_has_its_ipv4_address(start: Callable[..., Running]) -> None:
    try:
        running = start("::")
    except ConfigError:
        pytest.skip("no IPv6 here")
    running.address = ("127.0.0.1", running.address[1])
    assert running.get("/").endswith(b"GET / 0 127.0.0.1")


# --- lanes ---


LOGIN = b"POST /login HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"


def test_logins_have_a_queue_of_their_own_and_are_refused_when_it_is_full(running: Running) -> None:
    with ExitStack() as stack:
        clients = [stack.enter_context(running.connect()) for _ in range(2 + 8)]
        for client in clients:
            client.sendall(LOGIN)
        wait_for(lambda: running.app.seen == ["/login"] * 2)
        began = time.monotonic()
        for _ in range(50):
            assert running.get("/quick").startswith(OK)
        assert time.monotonic() - began < 5

        refused = running.raw(LOGIN)
        assert refused.startswith(b"HTTP/1.1 503 ")
        assert b"\r\nRetry-After: 2\r\n" in refused
        assert json.loads(refused.partition(b"\r\n\r\n")[2]) == {
            "statusCode": 503,
            "statusMessage": "Too many logins at once, please try again",
        }

        # The connection of a refused one goes on.
        both = running.raw(LOGIN.replace(b"Connection: close\r\n", b"") + GET + b"Connection: close\r\n\r\n")
        assert (both.count(b"HTTP/1.1 503 "), both.count(OK)) == (1, 1)

        running.app.gate.set()
        assert all(read_all(client).startswith(OK) for client in clients)
    assert running.raw(LOGIN).startswith(OK)


@pytest.mark.skipif(sys.platform != "linux", reason="a priority of each thread is Linux's")
def test_logins_give_way_to_all_other_requests(running: Running) -> None:
    running.app.gate.set()
    for request in (LOGIN, GET + b"Connection: close\r\n\r\n", LOGIN):
        assert running.raw(request).startswith(OK)
    login, other, again = running.app.priorities
    assert login == again == min(19, other + 10)
    assert other == os.getpriority(os.PRIO_PROCESS, 0)


def test_the_threads_of_a_lane_start_with_its_first_request(running: Running) -> None:
    def lanes() -> set[Lane]:
        return {lane for lane, _ in running.server.task_dispatcher._threads}

    running.get("/here")
    assert lanes() == set()
    running.get("/")
    assert lanes() == {Lane.QUICK}
    running.app.gate.set()
    running.raw(b"POST /login HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 0\r\n\r\n")
    running.get("/")
    assert lanes() == {Lane.QUICK, Lane.HASHING}
    assert len(running.server.task_dispatcher._threads) == 4 + 2


@contextmanager
def no_more_threads() -> Iterator[list[str]]:
    """In the block the system allows none. Their names are gathered."""
    refused: list[str] = []

    def refuse(thread: threading.Thread) -> None:
        refused.append(thread.name)
        raise RuntimeError("can't start new thread")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        yield refused


def test_a_system_that_allows_no_more_threads_stops_no_request_for_good(running: Running) -> None:
    with running.connect() as first:
        with no_more_threads() as refused:
            first.sendall(b"GET /first HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
            wait_for(lambda: refused)
        assert b"GET /second" in running.get("/second")
        assert b"GET /first" in read_all(first)


def test_a_request_for_which_no_thread_can_be_started_is_logged_and_answered_when_one_can(
    running: Running, caplog: pytest.LogCaptureFixture
) -> None:
    with running.connect() as client:
        with no_more_threads():
            client.sendall(b"GET /alone HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
            wait_for(lambda: "A request waits" in caplog.text)
        assert b"GET /alone" in read_all(client)


@pytest.mark.parametrize("path", ["/login", "//login", "/%6cogin", "/log%ffin", "/login?x=/quick"])
def test_no_spelling_of_the_path_brings_a_login_into_the_quick_lane(running: Running, path: str) -> None:
    running.app.gate.set()
    running.raw(LOGIN.replace(b"/login", path.encode()))
    assert [name.partition("-")[0] for name in running.app.threads] == ["hashing"]


def test_a_login_behind_a_quick_request_on_the_same_connection_changes_lanes(running: Running) -> None:
    with ExitStack() as stack:
        clients = [stack.enter_context(running.connect()) for _ in range(8)]
        for client in clients:
            client.sendall(b"GET /quick HTTP/1.1\r\nHost: x\r\n\r\n" + LOGIN)
        wait_for(lambda: len(running.app.seen) == 8 + 2)
        assert running.get("/other").startswith(OK)
        running.app.gate.set()
        assert all(read_all(client).count(OK) == 2 for client in clients)
    lanes = zip(running.app.seen, running.app.threads, strict=True)
    assert {(path, name.partition("-")[0]) for path, name in lanes} == {
        ("/quick", "quick"),
        ("/login", "hashing"),
        ("/other", "quick"),
    }


def test_the_main_thread_answers_requests_of_lane_here_unless_they_must_wait(
    running: Running,
) -> None:
    paths = ["/quick", "/here", "/here/but-waits", "/here", "/here/but-waits", "/quick"]
    sent = "".join(f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n" for path in paths)
    last = b"GET /here HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
    received = running.raw(sent.encode() + last)
    assert [part.split(b" ")[1].decode() for part in received.split(b"\r\n\r\n")[1:]] == [*paths, "/here"]
    lanes = zip(running.app.seen, running.app.threads, strict=True)
    assert [(path, name.partition("-")[0]) for path, name in lanes] == [
        ("/quick", "quick"),
        ("/here", "main"),
        ("/here/but-waits", "main"),
        ("/here/but-waits", "quick"),
        ("/here", "main"),
        ("/here/but-waits", "main"),
        ("/here/but-waits", "quick"),
        ("/quick", "quick"),
        ("/here", "main"),
    ]


def test_requests_that_come_together_are_answered_at_one_moment_and_later_ones_at_another() -> None:
    """A request may follow, on its connection, one whose answer has changed something after that moment."""
    events: list[str] = []

    class Noting(App):
        def answer(self, environ: dict[str, Any]) -> Response:
            if environ["PATH_INFO"] == "/login":
                self.gate.wait(20)
            elif environ["PATH_INFO"] == "/here/first":
                self.gate.set()
                wait_for(lambda: len(server.task_dispatcher._here) == 2)
            events.append(environ["PATH_INFO"])
            return super().answer(environ)

    @contextmanager
    def together() -> Iterator[None]:
        events.append("begin")
        yield
        events.append("end")

    app, sizes = Noting(), {"threads": 4, "slow_threads": 2, "waiting_room": 8}
    hosted = Hosted(app=app, answer=app.answer, lane=lane_of, together=together)
    listener = listen("127.0.0.1", 0)
    server = Server(listener, hosted, connections=100, **sizes)
    with ExitStack() as stack:
        one, two, three = (
            stack.enter_context(socket.create_connection(listener.getsockname(), 10)) for _ in range(3)
        )
        one.sendall(b"POST /login HTTP/1.1\r\nHost: x\r\n\r\nGET /here/after HTTP/1.1\r\nHost: x\r\n\r\n")
        two.sendall(b"GET /here/first HTTP/1.1\r\nHost: x\r\n\r\n")
        three.sendall(b"GET /here/second HTTP/1.1\r\nHost: x\r\n\r\n")
        for _ in range(3):
            server.handle_accept()
        server._watch_all()
        thread = threading.Thread(target=server.run)
        thread.start()
        try:
            wait_for(lambda: "/here/after" in events)
        finally:
            app.gate.set()
            end(server, thread)
    assert events == ["begin", "/login", "/here/first", "/here/second", "end", "/here/after"]


def test_the_headers_of_the_application_are_sent_unchanged_with_a_date(running: Running) -> None:
    head, _, body = running.get("/quick").partition(b"\r\n\r\n")
    *lines, date = head.split(b"\r\n")
    length = b"Content-Length: %d" % len(body)
    assert lines == [b"HTTP/1.1 200 OK", b"Content-Type: text/plain", length, b"Connection: close"]
    assert parsedate_to_datetime(date.removeprefix(b"Date: ").decode())


@pytest.mark.parametrize("options", [b"Close", b"TE, close", b"close,TE"])
def test_a_client_that_asks_for_the_end_of_its_connection_gets_it(running: Running, options: bytes) -> None:
    received = running.raw(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: %s\r\n\r\n" % options)
    assert b"\r\nConnection: close\r\n" in received


def test_a_header_with_a_line_feed_is_not_sent(running: Running, caplog: pytest.LogCaptureFixture) -> None:
    received = running.get("/splits")
    assert received.startswith(b"HTTP/1.1 500 ")
    assert b"Set-Cookie" not in received
    assert "a header holds a line feed" in caplog.text


# --- slow clients ---


@pytest.mark.parametrize(
    ("first", "drip"),
    [
        (b"", b""),
        (b"", b"\r\n"),
        (b"GET / HTTP/1.1\r\n", b""),
        (b"GET / HTTP/1.1\r\nX: ", b"x"),
        (b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n", b"x"),
        (b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n100\r\n", b"x"),
        (b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\nExpect: 100-continue\r\n\r\n", b""),
        (b"GET / HTTP/1.1\r\nHost: x\r\n\r\nGET / HTTP/1.1\r\nX: ", b"x"),
    ],
)
def test_a_client_that_never_finishes_its_request_is_disconnected(
    running: Running, monkeypatch: pytest.MonkeyPatch, first: bytes, drip: bytes
) -> None:
    monkeypatch.setattr(channel, "TO_SEND", 0.3)
    with running.connect() as client:
        began = time.monotonic()
        client.settimeout(0.1)
        client.sendall(first)
        while True:
            assert time.monotonic() - began < 5
            try:
                client.sendall(drip)
                if not client.recv(1000):
                    break
            except TimeoutError:
                continue
            except ConnectionError:
                break


@pytest.mark.slow
def test_a_client_may_be_idle_between_two_requests(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channel, "TO_SEND", 0.3)
    with running.connect() as client:
        for pause in (2, 0):
            client.sendall(GET + b"\r\n")
            assert client.recv(1000).startswith(OK)
            time.sleep(pause)


def test_idle_connections_are_closed_early_when_there_are_many(
    start: Callable[..., Running], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(channel, "TO_SEND", 0.3)
    running = start(connections=8)
    with ExitStack() as stack:
        for _ in range(12):
            client = stack.enter_context(running.connect())
            client.sendall(GET + b"\r\n")
        assert client.recv(1000).startswith(OK)


@pytest.mark.slow
def test_clients_that_keep_on_asking_leave_connections_to_others(start: Callable[..., Running]) -> None:
    running = start(connections=8)
    over = threading.Event()

    def keep_on_asking() -> None:
        with closing(http.client.HTTPConnection(*running.address, timeout=1)) as client:
            while not over.wait(0.05):
                with suppress(OSError, http.client.HTTPException):
                    client.request("GET", "/")  # connects again, if the server has closed
                    client.getresponse().read()

    with ThreadPoolExecutor(16) as pool:
        for _ in range(16):
            pool.submit(keep_on_asking)
        try:
            time.sleep(1)
            assert [running.get("/").startswith(OK) for _ in range(5)] == [True] * 5
        finally:
            over.set()


def test_the_self_check_keeps_its_connection_when_there_are_many() -> None:
    app, sizes = App(), {"threads": 4, "slow_threads": 2, "waiting_room": 8}
    server = Server(listen("127.0.0.1", 0), Hosted(app=app, answer=app.answer), connections=2, **sizes)
    with closing(http.client.HTTPConnection("localhost", timeout=10)) as inside:
        inside.sock, inside.auto_open = server.internal_connection(), 0
        thread = threading.Thread(target=server.run)
        thread.start()
        try:
            wait_for(lambda: server.full)
            for _ in range(2):
                inside.request("GET", "/")
                assert inside.getresponse().read().startswith(b"GET /")
        finally:
            end(server, thread)


@pytest.mark.slow
def test_a_client_that_does_not_read_its_answers_gets_no_more_and_is_disconnected(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(channel, "TO_READ", 1.0)
    with running.connect() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.sendall(MUCH * 40)
        wait_for(lambda: running.app.seen)
        for _ in range(20):
            assert running.get("/").startswith(OK)
        wait_for(lambda: not running.server.active_channels)
        assert running.app.seen.count("/much") < 10


def test_a_slow_reader_gets_all_of_a_large_answer(running: Running) -> None:
    with running.connect() as client:
        client.sendall(MUCH * 4 + GET + b"Connection: close\r\n\r\n")
        time.sleep(0.3)
        assert len(read_all(client)) > 4 * 4_000_000


# --- the address ---


def test_the_error_for_a_taken_port_names_it() -> None:
    with listen("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=rf"^127\.0\.0\.1:{port} is already in use$") as caught:
            listen("127.0.0.1", port)
        assert "--port" in str(caught.value.hint)


@pytest.mark.parametrize(
    ("host", "says"),
    [
        ("192.0.2.1", r"192\.0\.2\.1:0: 192\.0\.2\.1 is not an address of this machine"),
        ("nowhere.invalid", r"nowhere\.invalid: no such host"),
        ("." * 300, "no such host"),
    ],
)
def test_the_error_for_an_address_of_another_machine_names_it(host: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        listen(host, 0)


def test_the_error_for_a_privileged_port_names_it() -> None:
    error = _cannot_listen("127.0.0.1:80", "127.0.0.1", PermissionError(errno.EACCES, "Permission denied"))
    assert str(error) == "127.0.0.1:80: this user may not open that port"
    assert error.hint


@pytest.mark.parametrize("host", ["::1", "[::1]"])
def test_ipv6_is_written_with_brackets(start: Callable[..., Running], host: str) -> None:
    try:
        running = start(host)
    except ConfigError:
        pytest.skip("no IPv6 here")
    assert running.url == f"http://[::1]:{running.address[1]}"
    assert running.get("/").endswith(b"GET / 0 ::1")


# --- stopping ---


def test_stopping_answers_pending_requests_and_closes_idle_connections(running: Running) -> None:
    with running.connect() as resting, running.connect() as waiting, running.connect() as dripping:
        resting.sendall(GET + b"\r\n")
        assert resting.recv(1000).startswith(OK)
        dripping.sendall(b"GET / HT")
        waiting.sendall(b"POST /login HTTP/1.1\r\nHost: x\r\n\r\n")
        wait_for(lambda: running.app.seen == ["/", "/login"])
        running.server.stop()
        running.server.stop()
        assert read_all(resting) == b""
        assert read_all(dripping) == b""
        assert running.stops == [True]
        with pytest.raises(ConnectionError):
            running.connect()
        running.app.gate.set()
        answer = read_all(waiting)
        assert answer.startswith(OK)
        assert b"\r\nConnection: close\r\n" in answer
    running.stop()


@pytest.mark.slow
def test_a_client_in_the_queue_of_the_kernel_is_answered_before_the_daemon_stops(running: Running) -> None:
    clients: list[socket.socket] = []

    def connect() -> None:
        clients.append(running.connect())
        clients[0].sendall(GET + b"\r\n")

    running.does_when_it_stops(connect)
    running.server.stop()
    wait_for(lambda: clients)
    with clients[0]:
        assert read_all(clients[0]).startswith(OK)


def test_a_callback_that_fails_while_the_daemon_stops_keeps_it_from_nothing(
    running: Running, caplog: pytest.LogCaptureFixture
) -> None:
    def fail() -> None:
        raise OSError("no")

    running.does_when_it_stops(fail)
    with running.connect() as client:
        client.sendall(LOGIN)
        wait_for(lambda: running.app.seen)
        running.server.stop()
        wait_for(lambda: "A callback failed while stopping" in caplog.text)
        running.app.gate.set()
        assert read_all(client).startswith(OK)


def test_a_client_that_has_been_idle_may_ask_once_more_while_the_daemon_stops(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(channel, "TO_ASK_WHILE_STOPPING", 3.0)
    with running.connect() as client:
        client.sendall(GET + b"\r\n")
        assert client.recv(1000).startswith(OK)
        (connection,) = running.server.active_channels.values()
        wait_for(lambda: connection.answered)
        connection.since -= 60
        running.server.stop()
        wait_for(lambda: running.stops)
        time.sleep(0.2)  # so that the watchdog has looked at it
        client.sendall(GET + b"\r\n")
        assert read_all(client).startswith(OK)


def test_stopping_does_not_wait_for_ever(
    running: Running, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(connections, "TO_STOP", 0.3)
    with running.connect() as client:
        client.sendall(LOGIN)
        wait_for(lambda: running.app.seen)
        running.server.stop()
        running.thread.join(5)
        assert not running.thread.is_alive()
        head, _, body = read_all(client).partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 503 ")
        assert {b"Connection: close", b"Retry-After: 2"} <= set(head.split(b"\r\n"))
        assert json.loads(body)["statusMessage"] == "Too many logins at once, please try again"
    assert "Connections that were cut off: 1" in caplog.text
    running.app.gate.set()
    wait_for(lambda: not any(thread.is_alive() for _, thread in running.server.task_dispatcher._threads))
    running.server.trigger.close()


def test_an_answer_that_has_begun_is_cut_off_without_another_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "TO_STOP", 0.3)
    monkeypatch.setattr(connections, "TO_LEAVE", 0.1)
    gate = threading.Event()

    def app(_environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterator[bytes]:
        start_response("200 OK", [("Content-Type", "text/plain")])
        yield b"begun"
        gate.wait(20)
        yield b"ended"

    listener, sizes = listen("127.0.0.1", 0), {"threads": 1, "slow_threads": 1, "waiting_room": 1}
    with closing(socket.create_connection(listener.getsockname(), timeout=10)) as client:
        server = Server(listener, Hosted(app=app), connections=10, **sizes)
        thread = threading.Thread(target=server.run)
        thread.start()
        try:
            client.sendall(GET + b"\r\n")
            received = b""
            while b"begun" not in received:
                received += client.recv(1000)
            server.stop()
            assert b"503" not in read_all(client)
        finally:
            gate.set()
            end(server, thread)
