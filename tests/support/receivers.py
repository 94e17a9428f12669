"""Receivers of webhooks: a small one in this process, and one that answers with raw bytes. Each checks what it gets."""

import base64
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from jsonschema import Draft202012Validator
from standardwebhooks.webhooks import Webhook as ForeignWebhook

from usersctl.config import Settings
from usersctl.webhooks.errors import NotDelivered
from usersctl.webhooks.sending import Answer
from usersd.openapi.document import document
from usersd.openapi.webhooks import name_of
from usersd.routes import TABLE

SECRET = "whsec_" + base64.b64encode(bytes(range(32))).decode()
OTHER_SECRET = "whsec_" + base64.b64encode(bytes(range(32, 64))).decode()


class Taken(NamedTuple):
    id: str
    type: str
    user: int | None
    payload: dict[str, Any]
    headers: dict[str, str]


@cache
def _validator(event: str) -> Draft202012Validator:
    described = document(Settings(database=Path("users.db"), base_url="https://accounts.example.com"), TABLE)
    posted = described["webhooks"][event]["post"]["requestBody"]["content"]["application/json"]["schema"]
    assert posted == {"$ref": f"#/components/schemas/{name_of(event)}"}
    schema = posted | {"components": {"schemas": described["components"]["schemas"]}}
    return Draft202012Validator(schema, format_checker=Draft202012Validator.FORMAT_CHECKER)


def checked(headers: dict[str, str], body: bytes, *secrets: str) -> Taken:
    """An event whose form fits the OpenAPI document, under 20 kB, signed with each of these secrets."""
    assert len(body) < 20_000
    payload = json.loads(body)
    assert list(payload) == ["type", "timestamp", "data"]
    _validator(payload["type"]).validate(payload)
    event_id, timestamp = headers["webhook-id"], headers["webhook-timestamp"]
    at = datetime.fromtimestamp(int(timestamp), UTC).replace(tzinfo=None)
    for secret in secrets or (SECRET,):
        expected = ForeignWebhook(secret).sign(msg_id=event_id, timestamp=at, data=body.decode())
        assert expected in headers["webhook-signature"].split(" ")
    user = payload["data"]["user"]
    return Taken(event_id, payload["type"], user and user["id"], payload, headers)


class Receiver:
    """In the place of the request. It takes every event, unless `answer` says otherwise for one."""

    def __init__(self, *secrets: str) -> None:
        self.secrets = secrets
        self.answer: Callable[[Taken], Answer | str] = lambda _event: Answer(204)
        self.asked: list[Taken] = []
        self.taken: list[Taken] = []

    def __call__(self, url: str, body: bytes, headers: dict[str, str], *, allow_private: bool) -> Answer:
        assert url.startswith("https://")
        assert not allow_private
        event = checked(headers, body, *self.secrets)
        self.asked.append(event)
        answer = self.answer(event)
        if isinstance(answer, str):
            raise NotDelivered(answer)
        if 200 <= answer.status < 300:
            self.taken.append(event)
        return answer


@contextmanager
def raw_receiver(talk: Callable[[socket.socket], object]) -> Iterator[int]:
    """Yields the port of a server that calls `talk` for each connection, in a thread of its own."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(0.1)
        stopping = threading.Event()

        def one(connection: socket.socket) -> None:
            with connection, suppress(OSError):
                talk(connection)

        def serve() -> None:
            while not stopping.is_set():
                try:
                    connection, _ = listener.accept()
                except TimeoutError:
                    continue
                connection.settimeout(20)
                threading.Thread(target=one, args=(connection,), daemon=True).start()

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield int(listener.getsockname()[1])
        finally:
            stopping.set()
            thread.join()


def request_of(connection: socket.socket) -> tuple[dict[str, str], bytes]:
    """The headers, in small letters, and the body."""
    read = b""
    while b"\r\n\r\n" not in read:
        read += connection.recv(65536)
    head, _, body = read.partition(b"\r\n\r\n")
    lines = head.decode("ascii").split("\r\n")
    headers = {"": lines[0]} | {
        name.lower(): value for name, _, value in (line.partition(": ") for line in lines[1:])
    }
    while len(body) < int(headers["content-length"]):
        body += connection.recv(65536)
    return headers, body


class Listening:
    """A receiver on a port, for a daemon. `answers` has the status of the next answers; then all are taken."""

    def __init__(self) -> None:
        self.answers: list[int] = []
        self.delay = 0.0
        self.asked: list[Taken] = []
        self.taken: list[Taken] = []
        self._lock = threading.Lock()

    def talk(self, connection: socket.socket) -> None:
        headers, body = request_of(connection)
        event = checked(headers, body)
        ForeignWebhook(SECRET).verify(body, headers)  # the time, too
        with self._lock:
            self.asked.append(event)
            status = self.answers.pop(0) if self.answers else 204
            if status == 204:
                self.taken.append(event)
        time.sleep(self.delay)
        connection.sendall(f"HTTP/1.1 {status} Answer\r\nContent-Length: 0\r\n\r\n".encode())


@contextmanager
def listening() -> Iterator[tuple[Listening, int]]:
    receiver = Listening()
    with raw_receiver(receiver.talk) as port:
        yield receiver, port


def table(port: int, name: str = "ops", **more: Any) -> str:
    """The lines of a configuration file; in TOML, they come last."""
    values = {
        "name": name,
        "url": f"http://127.0.0.1:{port}/hook",
        "secrets": [SECRET],
        "allowPrivate": True,
    } | more
    return "\n[[webhooks]]\n" + "".join(f"{key} = {json.dumps(value)}\n" for key, value in values.items())
