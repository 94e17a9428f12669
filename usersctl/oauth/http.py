"""An HTTP client for the identity provider: limited in time and size, and every request can be cut off."""

import json
import re
import socket
import threading
from collections.abc import Callable, Mapping
from contextlib import closing, suppress
from functools import cache, partial
from typing import Any, TypeVar, cast
from urllib.parse import urlsplit

from usersctl.named import NamedTuple
from usersctl.oauth.refusals import refused, refused_by_provider, shown
from usersctl.text import network_words

WHOLE = 9.0  # seconds for all requests of one sign-in, so that the browser is answered within ten
STEP = 5.0  # seconds for a connection, and for each read
MOST_BYTES = 256 * 1024
PEEKED_BYTES = 4096
SIGN_INS_AT_ONCE = 32  # in one process, at all providers together: so many threads wait for them

T = TypeVar("T")


class Answer(NamedTuple):
    status: int
    headers: Mapping[str, str]  # in any letter case
    body: bytes


class SignInThread(threading.Thread):
    """Runs the requests of one sign-in in a thread. At the deadline its caller goes on, and cut connections end it.

    Neither a DNS look-up nor a server that drips bytes ends by a socket's time limit.
    """

    def __init__(self, work: Callable[[], Any]) -> None:
        super().__init__(name="oauth-sign-in", daemon=True)
        self._work = work
        self._lock = threading.Lock()
        self._connections: list[socket.socket] = []
        self.ended = threading.Event()
        self.completed = False
        self.result: Any = None
        self.error: Exception | None = None

    def run(self) -> None:
        try:
            self.result = self._work()
        except Exception as error:  # noqa: BLE001 - raised again by the caller that waits
            self.error = error
        self.completed = True
        self.end()

    def watch(self, connection: socket.socket) -> None:
        with self._lock:
            # A second handle, which stays valid when TLS takes the first one over.
            self._connections.append(connection.dup())
        if self.ended.is_set():
            self.end()

    def end(self) -> None:
        self.ended.set()
        with self._lock:
            for connection in self._connections:
                with suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)
                connection.close()
            self._connections.clear()


class HttpClient:
    """Follows no redirects, and uses neither the proxies nor the stored passwords of this machine."""

    def __init__(self) -> None:
        self.whole = WHOLE
        self._threads: set[SignInThread] = set()
        self._lock = threading.Lock()
        self._stopped = False

    def stop(self) -> None:
        """Cuts off all requests, because the daemon stops."""
        with self._lock:
            self._stopped = True
            for thread in self._threads:
                thread.end()

    def within_limits(self, work: Callable[[], T]) -> T:
        """Runs `work`, the only place where requests may be made, and raises SignInRefused at the deadline."""
        thread = SignInThread(work)
        with self._lock:
            if self._stopped:
                raise refused("the daemon stops")
            thread.start()
            self._threads.add(thread)
        in_time = thread.ended.wait(self.whole)
        thread.end()
        with self._lock:
            self._threads.discard(thread)
        if thread.error is not None:
            raise thread.error
        if not thread.completed:
            if in_time:  # stop() ended it
                raise refused("the daemon stops")
            raise refused(f"no answer within {self.whole:g} s")
        return cast(T, thread.result)

    def json(
        self, url: str, *, form: str = "", bearer: str = "", basic: tuple[str, str] | None = None
    ) -> Any:
        """Fetches a document; where there is a form, posts it."""
        method, headers = "GET", {"Accept": "application/json"}
        if form:
            method, headers["Content-Type"] = "POST", "application/x-www-form-urlencoded"
        if bearer:
            headers["Authorization"] = f"Bearer {bearer}"
        host = urlsplit(url).hostname
        auth = basic and _basic(*basic)
        read = partial(_read, host)
        answer = self._request(method, url, read, data=form, headers=headers, auth=auth)
        status = answer.status
        if 300 <= status < 400:
            target = re.split("[?#]", answer.headers.get("Location", ""))[0]  # what follows may hold a secret
            to = f" to {shown(target)}" if target else ""
            raise refused(f"{host} answers {status}{to}, and redirects are not followed")
        try:
            document = json.loads(answer.body)
        except (ValueError, RecursionError):
            said = _headers(answer, "Content-Type", "WWW-Authenticate")
            raise refused(f"{host} answers {status} without JSON{said}") from None
        if status != 200:
            error = document if isinstance(document, dict) else {}
            said = "" if "error" in error else _headers(answer, "WWW-Authenticate")
            raise refused_by_provider(
                f"{host} answers {status}{said}", error.get("error"), error.get("error_description")
            )
        return document

    def peek(self, url: str) -> Answer:
        """What a browser would get, with the beginning of the page, before any redirect."""
        return self._request(
            "GET", url, lambda response: bytes(response.raw.read(PEEKED_BYTES, decode_content=False))
        )

    def _request(self, method: str, url: str, read: Callable[[Any], bytes], **options: Any) -> Answer:
        import requests
        from urllib3.exceptions import HTTPError

        try:
            request = requests.Request(method, url, **options)
            request.headers |= {"Accept-Encoding": "identity", "User-Agent": "usersctl"}
            # Without a session of requests: that looks for proxies and passwords, and reads the whole body of a
            # redirect even where it does not follow it.
            with (
                closing(_adapter()) as adapter,
                closing(adapter.send(request.prepare(), stream=True, timeout=STEP)) as response,
            ):
                return Answer(response.status_code, response.headers, read(response))
        except (requests.RequestException, HTTPError, OSError, ValueError) as error:
            raise refused(f"{urlsplit(url).hostname} cannot be reached: {_words(error)}") from None


def _headers(answer: Answer, *names: str) -> str:
    """Those of these headers that came, for the log."""
    found = [f"{name}: {shown(answer.headers[name])}" for name in names if name in answer.headers]
    return f" ({', '.join(found)})" if found else ""


def _words(error: Exception) -> str:
    """The innermost of the exceptions tells most, if it tells anything."""
    words, inner = type(error).__name__, error.__context__
    while inner is not None:
        words = network_words(inner) or words
        inner = inner.__cause__ or inner.__context__
    return words


def _read(host: str | None, response: Any) -> bytes:
    if response.headers.get("Content-Encoding", "identity").lower() != "identity":
        raise refused(f"{host} answers compressed, which was not asked for")
    body: bytes = response.raw.read(MOST_BYTES + 1, decode_content=False)
    if len(body) > MOST_BYTES:
        raise refused(f"{host} answers more than {MOST_BYTES // 1024} kB")
    return body


def _adapter() -> Any:
    from requests.adapters import HTTPAdapter

    adapter = HTTPAdapter(max_retries=0)
    adapter.init_poolmanager(1, 1, ssl_context=_authorities())
    adapter.poolmanager.pool_classes_by_scheme = _pools()
    return adapter


@cache
def _authorities() -> Any:
    """The authorities of requests, and those of this machine: a company's own, and what SSL_CERT_FILE names."""
    import ssl

    return ssl.create_default_context()


@cache
def _pools() -> dict[str, Any]:
    """Connection pools that hand each new socket to its SignInThread, so that it can be cut off at any moment."""
    from urllib3.connection import HTTPConnection, HTTPSConnection
    from urllib3.connectionpool import HTTPConnectionPool, HTTPSConnectionPool

    def watched(kind: type[HTTPConnection]) -> Any:
        class Watched(kind):  # type: ignore[misc,valid-type]
            def _new_conn(self) -> socket.socket:
                connection: socket.socket = super()._new_conn()
                thread = threading.current_thread()
                assert isinstance(thread, SignInThread), "outside of within_limits"  # noqa: S101
                thread.watch(connection)
                return connection

        return Watched

    class Plain(HTTPConnectionPool):
        ConnectionCls = watched(HTTPConnection)

    class Secure(HTTPSConnectionPool):
        ConnectionCls = watched(HTTPSConnection)

    return {"http": Plain, "https": Secure}


def _basic(identity: str, secret: str) -> Any:
    """HTTP Basic with each part encoded before they are joined, as RFC 6749 2.3.1 says."""
    from urllib.parse import quote_plus

    from requests.auth import HTTPBasicAuth

    return HTTPBasicAuth(quote_plus(identity), quote_plus(secret))
