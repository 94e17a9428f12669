"""The figures for Prometheus, on an address of their own."""

import logging
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, nullcontext
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import accumulate
from socket import socket
from typing import Any, NamedTuple

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import CounterMetricFamily as Counter
from prometheus_client.core import GaugeMetricFamily as Gauge
from prometheus_client.core import HistogramMetricFamily as Histogram
from prometheus_client.core import InfoMetricFamily as Info
from prometheus_client.exposition import choose_encoder

from usersctl import __version__
from usersctl.clock import moment, stamp
from usersctl.errors import ConfigError, UsersError
from usersctl.service import Service
from usersd.counters import BUCKETS, Counters, SharedCounters
from usersd.routing import Route
from usersd.server.listener import listen, url_of

log = logging.getLogger("usersd")

PATH = "/metrics"
PATIENCE = 5.0  # seconds for whoever asks and does not go on
AT_ONCE = 16  # connections
LOOK_EVERY = 0.1  # seconds between two looks whether the daemon stops

# What has to be counted in the database, where a million sessions take a while: not more often than this, and never for
# more than a hundredth of the time.
COUNTED_EVERY = 10.0
SHARE = 0.01


@contextmanager
def measuring(host: str, port: int, table: Sequence[Route], processes: int) -> Iterator["Metrics"]:
    try:
        listener = listen(host, port)
    except ConfigError as error:
        hint = "choose others with metrics.host and metrics.port"
        raise ConfigError(f"metrics: {error}", hint=hint) from None
    with closing(listener):
        yield Metrics(listener, table, processes)


class Counted(NamedTuple):
    sessions: int
    letters: dict[str, int]
    cleaned_at: float | None
    cleaned: int


class Counting:
    """The figures that are in the database, as they were a moment ago; None while it cannot be read."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._lock = threading.Lock()
        self._next = float("-inf")
        self._found: Counted | None = None

    def __call__(self) -> Counted | None:
        with self._lock:
            began = time.monotonic()
            if began >= self._next:
                try:
                    self._found = self._count()
                except UsersError:
                    self._found = None
                now = time.monotonic()
                self._next = now + max(COUNTED_EVERY, (now - began) / SHARE)
            return self._found

    def _count(self) -> Counted:
        now = stamp(self._service.now())
        with self._service.store.read() as tx:
            cleanup = tx.last_cleanup()
            return Counted(
                sessions=tx.count_live_tokens(now),
                letters=tx.count_letters(),
                cleaned_at=moment(cleanup.at).timestamp() if cleanup else None,
                cleaned=cleanup.details.get("expired", 0) + cleanup.details.get("no_expiration", 0)
                if cleanup
                else 0,
            )


class Collector:
    """What prometheus_client asks at each scrape."""

    def __init__(self, ledger: SharedCounters, service: Service) -> None:
        self._ledger = ledger
        self._slots = service.hasher.slots * len(ledger.shares)
        self._counted = Counting(service)

    def collect(self) -> Iterator[Any]:
        ledger = self._ledger
        yield Info("users_build", "What runs here.", {"version": __version__})
        logins = Counter("users_logins", "Logins by how they came out.", labels=["method", "outcome"])
        for how, outcome, number in ledger.logins():
            logins.add_metric([how, outcome], number)
        yield logins
        yield Gauge("users_bcrypt_slots", "How many passwords may be hashed at once.", self._slots)
        yield Gauge("users_bcrypt_slots_in_use", "How many are being hashed.", ledger.hashing)
        yield Gauge("users_bcrypt_queue", "Who waits for one of these slots.", ledger.waiting)
        yield from self._in_the_database()
        requests = Histogram(
            "users_request_duration_seconds",
            "How long requests took, by route.",
            labels=["method", "route", "status"],
        )
        bounds = [*map(str, BUCKETS), "+Inf"]
        for each in ledger.requests():
            counts = zip(bounds, accumulate(each.counts), strict=True)
            requests.add_metric([each.method, each.route, each.status], list(counts), each.seconds)
        yield requests
        yield from self._processes()

    def _in_the_database(self) -> Iterator[Any]:
        counted = self._counted()
        if counted is None:
            return
        yield Gauge("users_sessions", "Sessions and API tokens that have not expired.", counted.sessions)
        letters = Gauge("users_letters", "Letters in the outbox.", labels=["state"])
        for state, number in counted.letters.items():
            letters.add_metric([state], number)
        yield letters
        if counted.cleaned_at is not None:
            yield Gauge(
                "users_cleanup_last_timestamp_seconds",
                "When tokens were last cleaned up.",
                counted.cleaned_at,
            )
            yield Gauge("users_cleanup_last_removed", "How many tokens that removed.", counted.cleaned)

    def _processes(self) -> Iterator[Any]:
        """The usual process_* of each."""
        found: dict[str, Any] = {}
        for number, pid in enumerate(self._ledger.processes):
            if not pid:
                continue  # it has not begun yet
            families: Iterable[Any] = ProcessCollector(registry=None, pid=partial(int, pid)).collect()
            for each in families:
                kind = type(each)
                kept = found.setdefault(each.name, kind(each.name, each.documentation, labels=["process"]))
                kept.add_metric([str(number)], each.samples[0].value)
        yield from found.values()


class Metrics:
    """The memory to count in and the socket to be asked at: both made before there are several processes."""

    def __init__(self, listener: socket, table: Sequence[Route], processes: int) -> None:
        self._listener = listener
        self._ledger = SharedCounters(table, processes)

    @property
    def url(self) -> str:
        return url_of(self._listener) + PATH

    @contextmanager
    def of_process(self, index: int, service: Service) -> Iterator[Counters]:
        """Each process counts; the first one answers for all."""
        counters = Counters(self._ledger, index, service.hasher)
        with self._answered(service) if index == 0 else nullcontext():
            yield counters

    @contextmanager
    def _answered(self, service: Service) -> Iterator[None]:
        registry = CollectorRegistry()
        registry.register(Collector(self._ledger, service))

        class Scrape(_Scrape):
            collectors = registry

        server = _Server(self._listener.getsockname()[:2], Scrape, bind_and_activate=False)
        server.socket.close()
        server.socket = self._listener
        thread = threading.Thread(target=server.serve_forever, args=[LOOK_EVERY], name="metrics", daemon=True)
        thread.start()
        try:
            yield
        finally:
            server.shutdown()


class _Server(ThreadingHTTPServer):
    """Of few threads: whoever holds connections open here must not take the files of those who sign in."""

    def __init__(self, *args: Any, **keywords: Any) -> None:
        super().__init__(*args, **keywords)
        self._room = threading.BoundedSemaphore(AT_ONCE)

    def process_request(self, request: Any, client_address: Any) -> None:
        if self._room.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._room.release()

    def handle_error(self, _request: Any, _address: Any) -> None:
        if not isinstance(sys.exc_info()[1], OSError):  # one that is gone
            log.error("A scrape failed", exc_info=sys.exc_info())


class _Scrape(BaseHTTPRequestHandler):
    timeout = PATIENCE
    collectors: Any

    def do_GET(self) -> None:
        if self.path.partition("?")[0] != PATH:
            self.send_error(404)
            return
        try:
            encode, kind = choose_encoder(self.headers.get("Accept", ""))
        except (TypeError, ValueError):  # a version that is no number
            encode, kind = choose_encoder("")
        body = encode(self.collectors)
        self.send_response_only(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    do_HEAD = do_GET  # noqa: N815

    def send_error(self, code: int, _message: str | None = None, _explain: str | None = None) -> None:
        """Without the page, and what it would tell of Python."""
        self.send_response_only(code)
        self.send_header("Content-Length", "0")
        self.send_header("Connection", "close")
        self.end_headers()

    def log_message(self, *_words: Any) -> None:
        """Nothing: who scrapes comes every few seconds."""
