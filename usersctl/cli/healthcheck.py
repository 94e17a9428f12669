"""healthcheck: asks a daemon whether it is ready, for containers and monitoring."""

import json
import math
import time
from contextlib import closing
from typing import TYPE_CHECKING, Annotated
from urllib.parse import urlsplit

import typer
from typer import Argument, Context, Option

from usersctl.cli.exit_codes import ExitCode
from usersctl.cli.invocation import invocation
from usersctl.config import Settings
from usersctl.config.values import connectable_host, host_and_port
from usersctl.deadline import within
from usersctl.errors import Invalid
from usersctl.named import NamedTuple

if TYPE_CHECKING:
    from http.client import HTTPConnection

PATH = "/ready"
MOST = 4096  # bytes that are read; another program may answer there


class NotReady(Exception):
    pass


class Target(NamedTuple):
    connection: "HTTPConnection"
    path: str
    url: str


def healthcheck(
    ctx: Context,
    url: Annotated[
        str | None, Argument(metavar="[URL]", help="URL, or unix:PATH. Default: as configured.")
    ] = None,
    timeout: Annotated[float, Option(metavar="SECONDS", min=0.1, max=600, help="The time limit.")] = 5,
) -> None:
    """Ask a daemon whether it is ready. Exit code 7 if it is not ready, or does not answer."""
    if math.isnan(timeout):
        raise Invalid("--timeout nan is not a number of seconds")
    run = invocation(ctx)
    target = _from_url(url) if url is not None else configured(run.loaded.settings)
    began = time.monotonic()
    try:
        ask_within(timeout, target)
    except NotReady as error:
        run.out.error(NotReady(f"Not ready: {target.url}: {error}"), code="not_ready", url=target.url)
        raise typer.Exit(ExitCode.PARTLY_FAILED) from None
    took = round((time.monotonic() - began) * 1000)
    run.out.result(f"Ready: {target.url} ({took} ms)", {"ready": True, "url": target.url, "ms": took})


def configured(settings: Settings) -> Target:
    from http.client import HTTPConnection

    if settings.socket is not None:
        return _at_socket(str(settings.socket))
    host = connectable_host(settings.host)
    url = f"http://{host_and_port(host, settings.port)}{PATH}"
    return Target(HTTPConnection(host, settings.port), PATH, url)


def _from_url(url: str) -> Target:
    from http.client import HTTPConnection, HTTPSConnection

    error = Invalid(f"{url!r} is not a URL such as http://127.0.0.1:8080 or unix:/run/users/usersd.sock")
    if url.startswith("unix:/"):
        return _at_socket(url.removeprefix("unix:"))
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        raise error from None
    if parts.scheme not in ("http", "https") or not host or not all("!" <= c <= "~" for c in url):
        raise error
    connections = {"http": HTTPConnection, "https": HTTPSConnection}
    path = parts.path if parts.path not in ("", "/") else PATH
    shown = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{path}"  # without a password
    return Target(connections[parts.scheme](host, port), path, shown)


def _at_socket(path: str) -> Target:
    import socket
    from http.client import HTTPConnection

    class SocketConnection(HTTPConnection):
        def connect(self) -> None:
            self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            self.sock.connect(path)

    return Target(SocketConnection("localhost"), PATH, f"unix:{path}")


def ask_within(seconds: float, target: Target) -> None:
    try:
        within(seconds, lambda: _ask(target))
    except TimeoutError as error:
        raise NotReady(str(error)) from None


def _ask(target: Target) -> None:
    from http.client import HTTPException

    try:
        with closing(target.connection) as connection:
            connection.request("GET", target.path)
            with connection.getresponse() as response:
                body = response.read(MOST)
    except (OSError, UnicodeError) as error:
        raise NotReady(getattr(error, "strerror", None) or str(error) or type(error).__name__) from None
    except HTTPException:
        raise NotReady("answers something that is not HTTP") from None
    except Exception as error:  # noqa: BLE001 - any other failure means not ready, too
        raise NotReady(type(error).__name__) from None
    if response.status != 200:
        raise NotReady(_field(body, "statusMessage") or f"answers {response.status}")
    if target.path.endswith(PATH) and _field(body, "status") != "ready":
        raise NotReady("another program answers there")


def _field(body: bytes, key: str) -> str:
    """A field of the daemon's answer; empty if another program answered."""
    try:
        return str(json.loads(body)[key]).removeprefix("Not ready: ")
    except (ValueError, TypeError, KeyError):
        return ""
