"""The daemon on a real socket in this process, and a small client that sends exactly what a test says."""

import http.client
import io
import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from support.commands import OPERATOR, PASSWORD, create_user

from usersctl.models import User
from usersctl.service import Service
from usersd.app import App
from usersd.gate import current_user
from usersd.log import Log
from usersd.routes import TABLE
from usersd.routing import Route
from usersd.server.connections import Hosted, Server
from usersd.server.lanes import AWAY_THREADS
from usersd.server.listener import listen
from usersd.start import as_hosted

# The open connections to each server of this process, for the next request: a new one costs as much as an answer.
IDLE: dict[int, list[http.client.HTTPConnection]] = {}
DEVICE = "auth_token_device"  # the cookie of a known device
OK = b"HTTP/1.1 200 OK\r\n"


def application(environ: dict[str, Any], start_response: Callable[..., Any]) -> list[bytes]:
    """An application behind the gate that answers with the current user."""
    start_response("200 OK", [("Content-Type", "application/json")])
    return [json.dumps({"user": current_user(environ)}).encode()]


def read_all(connection: socket.socket) -> bytes:
    """Everything until the server closes the connection."""
    received = b""
    while some := connection.recv(65536):
        received += some
    return received


@dataclass
class Reply:
    status: int
    headers: list[tuple[str, str]]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def message(self) -> str:
        """The message of an error, with the shape of the body checked."""
        error = self.json
        assert set(error) == {"statusCode", "statusMessage"}
        assert error["statusCode"] == self.status
        return str(error["statusMessage"])

    def header(self, name: str) -> str | None:
        return next((value for key, value in self.headers if key.lower() == name.lower()), None)

    def all(self, name: str) -> list[str]:
        return [value for key, value in self.headers if key.lower() == name.lower()]

    def cookies(self) -> list[str]:
        """Those that are set, without that of a known device."""
        return [line for line in self.all("Set-Cookie") if "_device=" not in line]


def refusal_of(reply: Reply) -> tuple[Any, ...]:
    """What a client can tell it by."""
    headers = sorted((name, value) for name, value in reply.headers if name not in ("X-Request-Id", "Date"))
    return reply.status, headers, reply.body


@dataclass
class Client:
    """Keeps cookies like a browser, and does nothing else like one."""

    port: int
    cookies: dict[str, str] = field(default_factory=dict)
    headers: dict[str, str] = field(default_factory=dict)

    @property
    def token(self) -> str:
        """That of the session."""
        others = ("_device", "_pending", "_passkey")
        (token,) = (value for name, value in self.cookies.items() if not name.endswith(others))
        return token

    def connection(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)

    def send(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        raw: bytes | None = None,
        headers: dict[str, str] | None = None,
    ) -> Reply:
        """`body` is sent as JSON, `raw` unchanged and without a content type."""
        sent = dict(self.headers)
        if self.cookies:
            sent["Cookie"] = "; ".join(f"{name}={value}" for name, value in self.cookies.items())
        if body is not None:
            raw = json.dumps(body).encode()
            sent["Content-Type"] = "application/json"
        sent |= headers or {}
        # A client of another kind connects in a way of its own, such as from another address.
        idle = IDLE.get(self.port) if type(self) is Client else None
        connection = idle.pop() if idle else self.connection()
        try:
            connection.putrequest(method, path, skip_host="Host" in sent, skip_accept_encoding=True)
            for name, value in sent.items():
                connection.putheader(name, value)
            if raw is not None and "Content-Length" not in sent:
                connection.putheader("Content-Length", str(len(raw)))
            connection.endheaders(raw)
            response = connection.getresponse()
            reply = Reply(response.status, response.getheaders(), response.read())
        except BaseException:
            connection.close()
            raise
        if idle is None or response.will_close:
            connection.close()
        else:
            idle.append(connection)
        for cookie in reply.all("Set-Cookie"):
            name, _, value = cookie.partition(";")[0].partition("=")
            if value:
                self.cookies[name] = value
            else:
                self.cookies.pop(name, None)
        return reply

    def get(self, path: str, **keywords: Any) -> Reply:
        return self.send("GET", path, **keywords)

    def post(self, path: str, body: Any = None, **keywords: Any) -> Reply:
        return self.send("POST", path, body, **keywords)

    def patch(self, path: str, body: Any = None, **keywords: Any) -> Reply:
        return self.send("PATCH", path, body, **keywords)

    def delete(self, path: str, **keywords: Any) -> Reply:
        return self.send("DELETE", path, **keywords)

    def login(self, email: str, password: str, **more: Any) -> Reply:
        return self.post("/api/users/session", {"email": email, "password": password, **more})


@dataclass
class Site:
    """A running daemon. `log` is what it has written so far."""

    service: Service
    port: int
    stream: io.StringIO
    app: App

    @property
    def log(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.stream.getvalue().splitlines()]

    def client(self, **keywords: Any) -> Client:
        return Client(self.port, **keywords)

    def add(self, name: str = "ada", **keywords: Any) -> User:
        """Adds an account with PASSWORD; `name` is the local part of its address."""
        email, password = f"{name}@example.com", keywords.pop("password", PASSWORD)
        return create_user(self.service, email, name.title(), password, by=OPERATOR, **keywords)

    def signed_in(self, user: User, **more: Any) -> Client:
        client = self.client()
        assert client.login(user.email, PASSWORD, **more).status == 200
        return client

    def raw(self, data: bytes, *, timeout: float = 10) -> bytes:
        """Sends bytes and returns everything received until the server closes or the time is over."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=timeout) as connection:
            connection.sendall(data)
            got = b""
            try:
                while chunk := connection.recv(65536):
                    got += chunk
            except TimeoutError:
                pass
            return got


@contextmanager
def running(
    service: Service,
    *,
    listening: str | None = "127.0.0.1",
    table: tuple[Route, ...] = TABLE,
    listener: socket.socket | None = None,
) -> Iterator[Site]:
    stream = io.StringIO()
    log = Log(stream, as_json=True, now=service.now)
    app = App(service, log=log, listening=listening, table=table)
    away_threads = AWAY_THREADS if service.settings.providers else 4
    with hosting(as_hosted(app), listener, away_threads=away_threads) as port:
        yield Site(service, port, stream, app)


@contextmanager
def hosting(hosted: Hosted, listener: socket.socket | None = None, *, away_threads: int = 4) -> Iterator[int]:
    """Serves any WSGI application on a socket and yields its port."""
    listener = listener or listen("127.0.0.1", 0)
    server = Server(
        listener,
        hosted,
        threads=4,
        slow_threads=2,
        waiting_room=8,
        away_threads=away_threads,
        connections=500,
    )
    thread = threading.Thread(target=server.run, name="server")
    thread.start()
    port = listener.getsockname()[1]
    IDLE[port] = []
    try:
        yield port
    finally:
        for connection in IDLE.pop(port):
            connection.close()
        end(server, thread)
        listener.close()


def end(server: Server, thread: threading.Thread) -> None:
    if thread.is_alive():
        server.stop()
    thread.join(20)
    assert not thread.is_alive()
    # On a busy machine the threads of the lanes may end later than the shutdown waits for them.
    assert server.task_dispatcher.stop(20)
    server.trigger.close()
