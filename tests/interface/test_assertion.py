"""Remote-Assertion: the verifiers of the documentation accept what the daemon signed, and nothing else."""

import base64
import hashlib
import hmac
import json
import os
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote
from wsgiref.simple_server import make_server

import bottle
import flask
import pytest
from support.daemons import free_port
from support.fakes import FakeClock
from support.proxies import Quiet, needed, started
from support.recipes import python_verifier, recipes, verifier
from support.servers import importable, installed
from support.web import Client, hosting

from usersctl.secrets import assertion
from usersd.server.connections import Hosted

SECRET = "shared by two, and unknown to others"
HOST = "accounts.example.com"
WHO = {"User": "7", "Email": "zoe@example.com", "Name": "Zo%C3%AB %25", "Role": "user"}
ZOE = {"id": 7, "email": "zoe@example.com", "name": "Zoë %", "role": "user", "groups": [], "auth": []}

NODE = """
import { createServer } from "node:http";
import { remoteUser } from "./verifier.mjs";
createServer((request, response) => {
  response.end(JSON.stringify(remoteUser(request)));
}).listen(0, "127.0.0.1", function () { console.log(this.address().port); });
"""


@contextmanager
def in_python() -> Iterator[int]:
    remote_user = python_verifier(SECRET)

    def application(environ: dict[str, Any], start_response: Callable[..., Any]) -> list[bytes]:
        body = json.dumps(remote_user(environ)).encode()
        start_response("200 OK", [("Content-Length", str(len(body)))])
        return [body]

    with hosting(Hosted(app=application)) as port:
        yield port


@contextmanager
def in_javascript(folder: Path) -> Iterator[int]:
    node = needed("node")
    (folder / "verifier.mjs").write_text(verifier("js"))
    (folder / "main.mjs").write_text(NODE)
    process = subprocess.Popen(
        [node, "main.mjs"],
        cwd=folder,
        stdout=subprocess.PIPE,
        text=True,
        env={"USERS_ASSERTION_SECRET": SECRET},
    )
    try:
        assert process.stdout is not None
        yield int(process.stdout.readline())
    finally:
        process.kill()
        process.communicate(timeout=10)


@dataclass
class Application:
    port: int

    def believes(
        self, headers: dict[str, str], method: str = "GET", target: str = "/page", host: str = HOST
    ) -> dict[str, Any] | None:
        reply = Client(self.port).send(method, target, headers=headers | {"Host": host})
        assert reply.status == 200, reply.body
        answer: dict[str, Any] | None = reply.json
        return answer


@pytest.fixture(scope="module", params=["python", "javascript"])
def application(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Application]:
    started = in_python() if request.param == "python" else in_javascript(tmp_path_factory.mktemp("node"))
    with started as port:
        yield Application(port)


def signed(
    *,
    secret: str = SECRET,
    seconds: int = 60,
    method: str = "GET",
    host: str = HOST,
    path: str = "/page",
    groups: str = "",
    auth: str = "",
    **changed: str,
) -> dict[str, str]:
    """The headers that `verify` adds to one request."""
    who = WHO | changed
    until = int(time.time()) + seconds
    proofs = [f"auth={auth}"] if auth not in ("", "pwd") else []
    of = [*who.values(), *filter(None, [groups]), *proofs, method, host, path]
    made = assertion(secret, until=until, of=tuple(of))
    sent = {f"Remote-{name}": value for name, value in who.items()}
    return sent | {"Remote-Groups": groups, "Remote-Auth": auth, "Remote-Assertion": made}


def test_an_assertion_of_the_daemon_is_accepted(application: Application) -> None:
    assert application.believes(signed()) == ZOE
    assert application.believes(signed(Role="admin")) == ZOE | {"role": "admin"}
    assert application.believes(signed(), host=HOST.upper()) == ZOE
    assert application.believes(signed(host=f"{HOST}:8443"), host=f"{HOST}:8443") == ZOE
    assert application.believes(signed(seconds=2)) == ZOE


def test_groups_are_part_of_the_assertion(application: Application) -> None:
    true = signed(groups="board,staff")
    assert application.believes(true) == ZOE | {"groups": ["board", "staff"]}
    for groups in (
        "",
        "board",
        "staff",
        "staff,board",
        "board,staff,",
        "board,staff,admins",
        "GET",
        "board,staff\tx",
    ):
        assert application.believes(true | {"Remote-Groups": groups}) is None, groups
    true = signed()
    without = {name: value for name, value in true.items() if name != "Remote-Groups"}
    assert application.believes(without) == ZOE  # as a daemon sends it whose forward.headers have no groups
    for groups in ("staff", "GET", ",", HOST):
        assert application.believes(true | {"Remote-Groups": groups}) is None, groups


def test_proofs_are_part_of_the_assertion(application: Application) -> None:
    true = signed(auth="pwd otp", groups="staff")
    assert application.believes(true) == ZOE | {"groups": ["staff"], "auth": ["pwd", "otp"]}
    for auth in ("", "pwd", "passkey", "pwd otp passkey", "otp pwd", "pwd  otp", "staff", "auth=pwd otp"):
        assert application.believes(true | {"Remote-Auth": auth}) is None, auth
    for auth in ("", "pwd"):
        true = signed(auth=auth)
        assert application.believes(true) == ZOE | {"auth": auth.split()}
        for more in ("passkey", "pwd otp", "provider:corp", "GET", HOST):
            assert application.believes(true | {"Remote-Auth": more}) is None, more
    # A group of that name exists nowhere.
    moved = signed(auth="passkey") | {"Remote-Auth": "", "Remote-Groups": "auth=passkey"}
    assert application.believes(moved) == ZOE | {"groups": ["auth=passkey"]}
    true = signed(groups="passkey")
    assert application.believes(true | {"Remote-Auth": "passkey", "Remote-Groups": ""}) is None


@pytest.mark.parametrize(
    ("method", "target", "path"),
    [
        ("POST", "/page", "/page"),
        ("DELETE", "/page?x=1&y=/admin", "/page"),
        ("GET", "/a%20b/%C3%A4/%E5%AF%86", "/a b/ä/密"),
        ("GET", "/a%0Ab", "/a\nb"),
        ("GET", "/100%25;v=1", "/100%;v=1"),
        ("GET", "/a%2Fb", "/a/b"),
        ("GET", "/", "/"),
    ],
)
def test_an_assertion_covers_method_and_path(
    application: Application, method: str, target: str, path: str
) -> None:
    headers = signed(method=method, path=path)
    assert application.believes(headers, method, target) == ZOE
    assert application.believes(headers, "PATCH", target) is None
    assert application.believes(headers, method, target.replace("?", "x?") + "x") is None


def test_a_changed_assertion_is_rejected(application: Application) -> None:
    true = signed()
    for name, value in (
        ("Remote-User", "1"),
        ("Remote-User", ""),
        ("Remote-Email", "root@example.com"),
        ("Remote-Name", "Root"),
        ("Remote-Role", "admin"),
        ("Remote-Role", "User"),
        ("Remote-Role", "user x"),
    ):
        assert application.believes(true | {name: value}) is None, (name, value)
    for target in (
        "/admin",
        "/pag",
        "/page/",
        "/Page",
        "/page//",
        "/page%00",
        "/page%0a",
        "/./page",
        "/page;x",
    ):
        assert application.believes(true, target=target) is None, target
    for host in ("other.example.com", f"{HOST}:443", f"{HOST}.", f"x.{HOST}", ""):
        assert application.believes(true, host=host) is None, host
    for method in ("POST", "PUT", "DELETE", "OPTIONS"):
        assert application.believes(true, method) is None, method


def test_an_expired_assertion_is_rejected(application: Application) -> None:
    assert application.believes(signed(seconds=-2)) is None
    assert application.believes(signed(seconds=-3600)) is None
    until, _, signature = signed(seconds=-2)["Remote-Assertion"].partition(".")
    for later in (
        int(until) + 3600,
        f"{until}0",
        f"0{until}",
        f"{until}.0",
        "inf",
        "NaN",
        "1e99",
        "",
        "-1",
        "+9999999999",
    ):
        assert application.believes(signed() | {"Remote-Assertion": f"{later}.{signature}"}) is None


def test_an_assertion_signed_with_another_secret_is_rejected(application: Application) -> None:
    assert application.believes(signed(secret="another secret, also of some length")) is None
    assert application.believes(signed(secret="")) is None
    assert application.believes(signed(secret=SECRET + "\n")) is None
    # A plain digest, or an HMAC with its parts exchanged.
    until = str(int(time.time()) + 60)
    message = "\n".join([until, *WHO.values(), "GET", HOST, "/page"]).encode()
    for raw in (
        hashlib.sha256(SECRET.encode() + message).digest(),
        hashlib.sha256(message).digest(),
        hmac.digest(message, SECRET.encode(), "sha256"),
        hmac.digest(SECRET.encode(), message, "sha1"),
        hmac.digest(SECRET.encode(), message, "sha256")[:16],
        b"",
    ):
        made = base64.urlsafe_b64encode(raw).decode().rstrip("=")
        assert application.believes(signed() | {"Remote-Assertion": f"{until}.{made}"}) is None


@pytest.mark.parametrize(
    "value",
    ["", ".", "..", "x", "9999999999", "9999999999.", ".AAAA", "9999999999.AAAA", "9999999999.\xe4\xf6", "null", "{}", "9" * 5000,
     "9999999999." + "A" * 43, "9999999999." + "=" * 43, "9999999999,x", "Bearer x"],
)  # fmt: skip
def test_a_malformed_assertion_is_no_user_and_no_error(application: Application, value: str) -> None:
    assert application.believes(signed() | {"Remote-Assertion": value}) is None


def test_a_right_signature_has_one_spelling(application: Application) -> None:
    true = signed()
    for more in ("=", ".", ".x", "%", "A", "AAAA", "~"):
        assert application.believes(true | {"Remote-Assertion": true["Remote-Assertion"] + more}) is None, (
            more
        )


def test_without_an_assertion_there_is_no_user(application: Application) -> None:
    assert application.believes({}) is None
    assert application.believes({f"Remote-{name}": value for name, value in WHO.items()}) is None
    assert application.believes({f"Remote-{name}": "" for name in (*WHO, "Assertion")}) is None
    assert application.believes(signed(), target="/%ff") is None
    assert application.believes(signed(), target="/%zz") is None
    # There is no other way to put a line feed of the path in the place of one between two fields.
    assert application.believes(signed(host="a", path=f"{HOST}\n/page"), host="a") is None


def test_an_application_without_a_secret_accepts_no_assertion(tmp_path: Path) -> None:
    """Like an empty variable in an environment file of a container."""
    headers = signed(secret="")
    environ = {f"HTTP_{name.upper().replace('-', '_')}": value for name, value in headers.items()}
    environ |= {"REQUEST_METHOD": "GET", "PATH_INFO": "/page", "HTTP_HOST": HOST}
    assert python_verifier("")(environ) is None
    (tmp_path / "verifier.mjs").write_text(verifier("js"))
    request = {"method": "GET", "url": "/page", "headers": {"host": HOST}}
    request["headers"] |= {name.lower(): value for name, value in headers.items()}
    script = 'import { remoteUser } from "./verifier.mjs"; console.log(JSON.stringify(remoteUser(JSON.parse(process.argv[1]))));'
    for secret, expected in (("", None), (SECRET, ZOE)):
        request["headers"]["remote-assertion"] = signed(secret=secret)["Remote-Assertion"]
        printed = subprocess.run(
            [needed("node"), "--input-type=module", "-e", script, json.dumps(request)],
            cwd=tmp_path,
            env={"USERS_ASSERTION_SECRET": secret},
            capture_output=True,
            text=True,
            timeout=30,
            check=True,
        )
        assert json.loads(printed.stdout) == expected


def test_a_repeated_assertion_header_is_rejected(application: Application) -> None:
    lines = [f"{name}: {value}" for name, value in signed().items()]
    for more in ("Remote-Role: admin", "Remote-User: 1", lines[-1]):
        for order in ([*lines, more], [more, *lines]):
            sent = "\r\n".join(["GET /page HTTP/1.1", f"Host: {HOST}", "Connection: close", *order, "", ""])
            with socket.create_connection(("127.0.0.1", application.port), 10) as connection:
                connection.sendall(sent.encode())
                got = b""
                while chunk := connection.recv(65536):
                    got += chunk
            assert re.search(rb"\r\n\r\n(?:4\r\n)?null", got) or b" 400 " in got.partition(b"\r\n")[0], got


# --- the maker ---


def test_shifting_text_between_fields_breaks_the_signature(clock: FakeClock) -> None:
    until = int(clock().timestamp())
    made = {
        assertion(SECRET, until=until, of=of)
        for of in (
            ("1", "a", "b"),
            ("1a", "", "b"),
            ("1", "ab", ""),
            ("", "1a", "b"),
            ("1", "a", "\nb"),
            ("1", "a\n", "b"),
        )
    }
    assert len(made) == 6 - 1  # the last two agree: only the last field may hold a line feed


def test_the_verifier_is_short() -> None:
    made = assertion(SECRET, until=1795186568, of=("x" * 10_000,))
    assert re.fullmatch(r"1795186568\.[A-Za-z0-9_-]{43}", made)


# --- in a framework ---

PATHS = ("/page", "/a b/ä", "/密", "/Ã¤", "/100%;v=1", "/x/y")


@pytest.mark.parametrize("framework", ["Bottle", "Flask"])
def test_the_verifier_reads_requests_of_wsgi_frameworks(framework: str) -> None:
    remote_user = python_verifier(SECRET)
    if framework == "Bottle":
        app = bottle.Bottle()
        request = bottle.request
        app.route("/<_:path>", callback=lambda _: json.dumps(remote_user(request.environ, request.path)))
    else:
        app = flask.Flask(__name__)
        app.add_url_rule("/<path:_>", "page", lambda _: json.dumps(remote_user(flask.request.environ)))
    with make_server("127.0.0.1", 0, app, handler_class=Quiet) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        try:
            for path in PATHS:
                assert (
                    Application(server.server_port).believes(signed(path=path), target=quote(path)) == ZOE
                ), path
                assert Application(server.server_port).believes(signed(), target=quote(path + "x")) is None
        finally:
            server.shutdown()
            thread.join(10)


DJANGO = """
import json, sys
from django.conf import settings
from django.core.wsgi import get_wsgi_application
from django.http import JsonResponse
from django.urls import path
from verifier import remote_user

def found(request, _):
    return JsonResponse(remote_user(request.META, request.path), safe=False)

urlpatterns = [path("<path:_>", found)]
settings.configure(ROOT_URLCONF=__name__, ALLOWED_HOSTS=["*"])
application = get_wsgi_application()
for environ in json.load(sys.stdin):
    print(b"".join(application(environ | {"wsgi.input": sys.stdin}, lambda *_: None)).decode())
"""


def test_the_verifier_reads_requests_of_django(tmp_path: Path) -> None:
    """In its own process, because a process can hold only one Django."""
    installed("django-admin", "applications")
    (tmp_path / "verifier.py").write_text(verifier("python"))

    def environ(signed_path: str, path: str) -> dict[str, str]:
        headers = signed(path=signed_path).items()
        return {f"HTTP_{name.upper().replace('-', '_')}": value for name, value in headers} | {
            "REQUEST_METHOD": "GET",
            "PATH_INFO": path.encode().decode("latin-1"),
            "HTTP_HOST": HOST,
            "SERVER_NAME": HOST,
            "SERVER_PORT": "80",
        }

    asked = [environ(path, path) for path in PATHS] + [environ(path, path + "x") for path in PATHS]
    printed = subprocess.run(
        [sys.executable, "-c", DJANGO],
        cwd=tmp_path,
        env={"USERS_ASSERTION_SECRET": SECRET},
        input=json.dumps(asked),
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
    )
    assert [json.loads(line) for line in printed.stdout.splitlines()] == [ZOE] * len(PATHS) + [None] * len(
        PATHS
    )


FASTAPI = """
from fastapi import FastAPI, Request

app = FastAPI()

@app.get("/{_:path}")
async def found(request: Request):
    return user_of(request)
"""


@pytest.mark.slow
def test_the_verifier_reads_requests_of_fastapi(tmp_path: Path) -> None:
    importable("fastapi", "browser")
    (tmp_path / "found.py").write_text("\n".join([*recipes("python"), FASTAPI]))
    port = free_port()
    words = [installed("uvicorn", "browser"), "found:app", "--host=127.0.0.1", f"--port={port}"]
    with started(words, tmp_path, port, env=os.environ | {"USERS_ASSERTION_SECRET": SECRET}):
        for path in PATHS:
            found = Application(port)
            assert found.believes(signed(path=path), target=quote(path) + "?query=1") == ZOE, path
            assert found.believes(signed(), target=quote(path + "x")) is None
