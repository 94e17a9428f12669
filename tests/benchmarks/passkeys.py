"""A sign-in with a passkey: what the service computes for its challenge and for its answer."""

import io
import json
import time
from collections.abc import Iterator
from http.cookies import SimpleCookie
from pathlib import Path
from typing import Any
from wsgiref.util import setup_testing_defaults

from tests.benchmarks.frame import Bench, Figure, add_sessions, add_users, filling

ORIGIN = "http://localhost:8080"
MOST = 15  # milliseconds
TIMES = 40  # of which the quickest counts: whatever else the machine does only adds to it
ALGORITHMS = {"ES256": -7, "EdDSA": -8, "RS256": -257}


def measure(bench: Bench) -> Iterator[Figure]:
    """Processor time of both requests, without the socket, and without the first one, which imports."""
    size = bench.size(100_000, 100)
    database = bench.database("passkeys")  # of this run: only a new session may add a passkey
    with filling(database) as connection:
        add_users(connection, size)
        add_sessions(connection, size)
    for number, (name, algorithm) in enumerate(ALGORITHMS.items()):
        person = Person(database, number, algorithm)
        person.signs_in()
        took = min(person.signs_in() for _ in range(bench.size(TIMES, 2)))
        yield Figure(f"sign-in with a passkey, {name}, {size:,} users", [took * 1000], "ms", MOST)


class Person:
    """At the application in this process, as its server calls it."""

    def __init__(self, database: Path, number: int, algorithm: int) -> None:
        # Late: the peak of a process that another measure starts includes what this one holds.
        from tests.support.authenticator import Authenticator
        from usersctl.config import Settings
        from usersctl.service import build
        from usersd.app import App
        from usersd.log import Log

        service = build(Settings(database=database, base_url=ORIGIN))
        self.app = App(service, log=Log(io.StringIO(), as_json=True, now=service.now), listening=None)
        self.device = Authenticator(ORIGIN, algorithm)
        self.cookies = {"auth_token": f"benchmark-{number:08}"}
        asked, _ = self._sends("me/passkeys/options", {})
        credential = self.device.create(asked["publicKey"])
        self._sends("me/passkeys", {"credential": credential, "name": "Key"})
        self.cookies.clear()

    def signs_in(self) -> float:
        asked, took = self._sends("session/passkey/options", {})
        credential = self.device.get(asked["publicKey"])  # the person's own time
        return took + self._sends("session/passkey", {"credential": credential})[1]

    def _sends(self, path: str, body: dict[str, Any]) -> tuple[dict[str, Any], float]:
        sent = json.dumps(body).encode()
        environ: dict[str, Any] = {
            "REQUEST_METHOD": "POST",
            "PATH_INFO": f"/api/users/{path}",
            "CONTENT_TYPE": "application/json",
            "CONTENT_LENGTH": str(len(sent)),
            "HTTP_COOKIE": "; ".join(f"{name}={value}" for name, value in self.cookies.items()),
            "wsgi.input": io.BytesIO(sent),
        }
        setup_testing_defaults(environ)
        answered: list[Any] = []
        began = time.process_time()
        answer = b"".join(self.app(environ, lambda *start: answered.extend(start[:2])))
        took = time.process_time() - began
        status, headers = answered
        if status != "200 OK":
            raise RuntimeError(f"{path}: {status} {answer!r}")
        for name, value in headers:
            if name == "Set-Cookie":
                self.cookies |= {key: morsel.value for key, morsel in SimpleCookie(value).items()}
        return json.loads(answer), took
