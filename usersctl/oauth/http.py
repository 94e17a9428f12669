"""HTTP calls to the identity provider, with limits of time and size, that can be given up at any moment."""

import json
import socket
import threading
from collections.abc import Callable
from contextlib import closing, suppress
from functools import cache
from typing import Any, TypeVar
from urllib.parse import urlsplit

from usersctl.oauth.refusals import refused, refused_by_provider

WHOLE = 9.0  # seconds for all that one sign-in asks, whatever the other side does: it is answered within ten
EACH_STEP = 5.0
MOST_BYTES = 256 * 1024
A_LOOK = 4096

T = TypeVar("T")


# --- calls ---


class Errand(threading.Thread):
    """What one sign-in asks of the provider, in a thread that is left behind when the time is over.

    Nothing ends the look-up of a name, and a server that sends a byte now and then never reaches the time limit of a
    socket. So whoever waits is let go, and the connections are cut, which ends the thread.
    """

    def __init__(self, work: Callable[[], Any]) -> None:
        super().__init__(name="errand", daemon=True)
        self._work = work
        self._lock = threading.Lock()
        self._connections: list[socket.socket] = []
        self.over = threading.Event()
        self.done = False
        self.result: Any = None
        self.error: Exception | None = None

    def run(self) -> None:
        try:
            self.result = self._work()
        except Exception as error:  # noqa: BLE001 - it is raised where it is waited for
            self.error = error
        self.done = True
        self.end()

    def watch(self, connection: socket.socket) -> None:
        with self._lock:
            # A second handle, which stays valid when TLS takes the first one over.
            self._connections.append(connection.dup())
        if self.over.is_set():
            self.end()

    def end(self) -> None:
        self.over.set()
        with self._lock:
            for each in self._connections:
                with suppress(OSError):
                    each.shutdown(socket.SHUT_RDWR)
                each.close()
            self._connections.clear()


class Http:
    """Calls to the provider: no redirects, no proxies or passwords of this machine, limits in time and size."""

    def __init__(self) -> None:
        self.whole = WHOLE
        self._errands: set[Errand] = set()
        self._lock = threading.Lock()
        self._stopped = False

    def stop(self) -> None:
        """Gives up what is under way: the daemon stops."""
        with self._lock:
            self._stopped = True
            for errand in self._errands:
                errand.end()

    def within_limits(self, work: Callable[[], T]) -> T:
        """Calls are made in here only."""
        errand = Errand(work)
        with self._lock:
            if self._stopped:
                raise refused("the daemon stops")
            self._errands.add(errand)
        errand.start()
        errand.over.wait(self.whole)
        errand.end()
        with self._lock:
            self._errands.discard(errand)
        if errand.error is not None:
            raise errand.error
        if not errand.done:
            raise refused("the daemon stops" if self._stopped else f"no answer within {self.whole:g} s")
        told: T = errand.result
        return told

    def json(
        self,
        method: str,
        url: str,
        *,
        form: str | None = None,
        bearer: str | None = None,
        basic: tuple[str, str] | None = None,
    ) -> Any:
        headers = {"Accept": "application/json"}
        if form is not None:
            headers["Content-Type"] = "application/x-www-form-urlencoded"
        if bearer is not None:
            headers["Authorization"] = f"Bearer {bearer}"
        host = urlsplit(url).hostname
        status, body = self._ask(method, url, headers, _read, form=form, basic=basic)
        try:
            told = json.loads(body)
        except (ValueError, RecursionError):
            raise refused(f"{host} answers {status} without JSON") from None
        if status != 200:
            said = told.get("error") if isinstance(told, dict) else None
            raise refused_by_provider(f"{host} answers {status} {str(said)[:100]!r}", said)
        return told

    def look(self, url: str) -> tuple[int, bytes]:
        """What a browser would be answered first: the status, and the beginning of the page."""
        return self._ask("GET", url, {}, lambda answer: bytes(answer.raw.read(A_LOOK, decode_content=False)))

    def _ask(
        self,
        method: str,
        url: str,
        headers: dict[str, str],
        read: Callable[[Any], bytes],
        *,
        form: str | None = None,
        basic: tuple[str, str] | None = None,
    ) -> tuple[int, bytes]:
        import requests
        from urllib3.exceptions import HTTPError

        headers = headers | {"Accept-Encoding": "identity", "User-Agent": "usersctl"}
        try:
            auth = _basic(*basic) if basic is not None else None
            asked = requests.Request(method, url, data=form, headers=headers, auth=auth).prepare()
            # Without a session of requests, which looks for proxies and passwords, and reads all that comes with a
            # redirect even where it does not follow.
            with (
                closing(_adapter()) as adapter,
                closing(adapter.send(asked, stream=True, timeout=EACH_STEP)) as answer,
            ):
                return answer.status_code, read(answer)
        except (requests.RequestException, HTTPError, OSError, ValueError) as error:
            raise refused(f"{urlsplit(url).hostname} cannot be asked: {type(error).__name__}") from None


def _read(answer: Any) -> bytes:
    if answer.headers.get("Content-Encoding", "identity").lower() != "identity":
        raise ValueError("compressed")
    body: bytes = answer.raw.read(MOST_BYTES + 1, decode_content=False)
    if len(body) > MOST_BYTES:
        raise ValueError("too much")
    return body


def _adapter() -> Any:
    from requests.adapters import HTTPAdapter

    adapter = HTTPAdapter(max_retries=0)
    adapter.init_poolmanager(1, 1, ssl_context=_authorities())
    adapter.poolmanager.pool_classes_by_scheme = _pools()
    return adapter


@cache
def _authorities() -> Any:
    """Besides those of requests whom this machine trusts: a company's own, and what SSL_CERT_FILE names."""
    import ssl

    return ssl.create_default_context()


@cache
def _pools() -> dict[str, Any]:
    """Connections that belong to the errand that opens them, from the first byte on."""
    from urllib3.connection import HTTPConnection, HTTPSConnection
    from urllib3.connectionpool import HTTPConnectionPool, HTTPSConnectionPool

    def watched(kind: type[HTTPConnection]) -> Any:
        class Watched(kind):  # type: ignore[misc,valid-type]
            def _new_conn(self) -> socket.socket:
                connection: socket.socket = super()._new_conn()
                errand = threading.current_thread()
                assert isinstance(errand, Errand), "outside of within_limits"  # noqa: S101
                errand.watch(connection)
                return connection

        return Watched

    class Plain(HTTPConnectionPool):
        ConnectionCls = watched(HTTPConnection)

    class Secure(HTTPSConnectionPool):
        ConnectionCls = watched(HTTPSConnection)

    return {"http": Plain, "https": Secure}


def _basic(identity: str, secret: str) -> Any:
    """RFC 6749 2.3.1: each part is encoded before they are joined."""
    from urllib.parse import quote_plus

    from requests.auth import HTTPBasicAuth

    return HTTPBasicAuth(quote_plus(identity), quote_plus(secret))
