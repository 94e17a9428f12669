"""The metrics endpoint for Prometheus, on an address of its own."""

import logging
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import accumulate
from socket import socket
from typing import Any

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import CounterMetricFamily as Counter
from prometheus_client.core import GaugeMetricFamily as Gauge
from prometheus_client.core import HistogramMetricFamily as Histogram
from prometheus_client.core import InfoMetricFamily as Info
from prometheus_client.exposition import choose_encoder

from usersctl import __version__
from usersctl.clock import moment
from usersctl.errors import ConfigError, UsersError
from usersctl.named import NamedTuple
from usersctl.service import Service
from usersd.counters import BUCKETS, Counters, SharedCounters
from usersd.routing import Route
from usersd.server.listener import listen, url_of

log = logging.getLogger("usersd")

PATH = "/metrics"
CLIENT_TIMEOUT = 5.0  # seconds that a silent client has
AT_ONCE = 16  # connections
CHECK_STOP_EVERY = 0.1  # seconds

# Counting a million sessions in the database takes a while, so it is done at most this often, and for at most this
# share of the time.
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


class DatabaseCounts(NamedTuple):
    sessions: int
    letters: dict[str, int]
    events: dict[str, dict[str, int]]  # of each webhook
    cleaned_at: float | None = None
    cleaned: int = 0


class CachedCounts:
    """Counts the rows of the database, and caches them; None while the database cannot be read."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._lock = threading.Lock()
        self._next = float("-inf")
        self._counts: DatabaseCounts | None = None

    def __call__(self) -> DatabaseCounts | None:
        with self._lock:
            began = time.monotonic()
            if began >= self._next:
                try:
                    self._counts = self._count()
                except UsersError:
                    self._counts = None
                now = time.monotonic()
                self._next = now + max(COUNTED_EVERY, (now - began) / SHARE)
            return self._counts

    def _count(self) -> DatabaseCounts:
        with self._service.store.read() as tx:
            cleanup = tx.last_cleanup()
            events = {hook.name: tx.count_events(hook.name) for hook in self._service.settings.webhooks}
            counts = DatabaseCounts(tx.count_live_tokens(), tx.count_emails(), events)
        if cleanup is None:
            return counts
        removed = cleanup.details.get("expired", 0) + cleanup.details.get("no_expiration", 0)
        return counts._replace(cleaned_at=moment(cleanup.at).timestamp(), cleaned=removed)


class Collector:
    """Called by prometheus_client at each scrape."""

    def __init__(self, shared: SharedCounters, service: Service) -> None:
        self._shared = shared
        self._slots = service.hasher.slots * len(shared.shares)
        self._counts = CachedCounts(service)

    def collect(self) -> Iterator[Any]:
        shared = self._shared
        yield Info("users_build", "The version that runs here.", {"version": __version__})
        logins = Counter("users_logins", "Logins by method and outcome.", labels=["method", "outcome"])
        for method, outcome, number in shared.logins():
            logins.add_metric([method, outcome], number)
        yield logins
        yield Gauge("users_bcrypt_slots", "Passwords that may be hashed at once.", self._slots)
        yield Gauge("users_bcrypt_slots_in_use", "Passwords that are being hashed.", shared.hashing)
        yield Gauge("users_bcrypt_queue", "Requests that wait for one of these slots.", shared.waiting)
        yield from self._in_the_database()
        labels = ["method", "route", "status"]
        requests = Histogram(
            "users_request_duration_seconds", "Duration of requests, by route.", labels=labels
        )
        bounds = [*map(str, BUCKETS), "+Inf"]
        for method, route, status, counts, seconds in shared.requests():
            buckets = zip(bounds, accumulate(counts), strict=True)
            requests.add_metric([method, route, status], list(buckets), seconds)
        yield requests
        yield from self._processes()

    def _in_the_database(self) -> Iterator[Any]:
        counts = self._counts()
        if counts is None:
            return
        yield Gauge("users_sessions", "Sessions and API tokens that have not expired.", counts.sessions)
        letters = Gauge("users_letters", "Emails in the outbox.", labels=["state"])
        for state, number in counts.letters.items():
            letters.add_metric([state], number)
        yield letters
        if counts.events:
            events = Gauge("users_webhook_events", "Events in the outbox.", labels=["webhook", "state"])
            for webhook, states in counts.events.items():
                for state, number in states.items():
                    events.add_metric([webhook, state], number)
            yield events
        if counts.cleaned_at is not None:
            yield Gauge(
                "users_cleanup_last_timestamp_seconds", "Time of the last token cleanup.", counts.cleaned_at
            )
            yield Gauge("users_cleanup_last_removed", "Tokens that it removed.", counts.cleaned)

    def _processes(self) -> Iterator[Any]:
        """The usual process_* metrics of each process."""
        merged: dict[str, Any] = {}
        for number, pid in enumerate(self._shared.processes):
            if not pid:
                continue  # not started yet
            families: Iterable[Any] = ProcessCollector(registry=None, pid=partial(int, pid)).collect()
            for family in families:
                empty = type(family)(family.name, family.documentation, labels=["process"])
                merged.setdefault(family.name, empty).add_metric([str(number)], family.samples[0].value)
        yield from merged.values()


class Metrics:
    """The shared counters and the listening socket, both made before the processes are forked."""

    def __init__(self, listener: socket, table: Sequence[Route], processes: int) -> None:
        self._listener = listener
        self._shared = SharedCounters(table, processes)

    @property
    def url(self) -> str:
        return url_of(self._listener) + PATH

    @contextmanager
    def of_process(self, index: int, service: Service) -> Iterator[Counters]:
        """Each process counts; the first one serves the metrics of all."""
        counters = Counters(self._shared, index, service.hasher)
        if index > 0:
            yield counters
            return
        registry = CollectorRegistry()
        registry.register(Collector(self._shared, service))

        class Scrape(_Scrape):
            collectors = registry

        server = _Server(self._listener.getsockname()[:2], Scrape, bind_and_activate=False)
        server.socket.close()
        server.socket = self._listener
        thread = threading.Thread(
            target=server.serve_forever, args=[CHECK_STOP_EVERY], name="metrics", daemon=True
        )
        thread.start()
        try:
            yield counters
        finally:
            server.shutdown()


class _Server(ThreadingHTTPServer):
    """Has few threads, so that open connections here do not use up the files that sign-ins need."""

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
        if not isinstance(sys.exc_info()[1], OSError):  # the client has gone
            log.error("A scrape failed", exc_info=sys.exc_info())


class _Scrape(BaseHTTPRequestHandler):
    timeout = CLIENT_TIMEOUT
    collectors: Any

    def do_GET(self) -> None:
        if self.path.partition("?")[0] != PATH:
            self.send_error(404)
            return
        try:
            encode, kind = choose_encoder(self.headers.get("Accept", ""))
        except (TypeError, ValueError):  # the Accept header has a version that is not a number
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
        """Without the default page, which names the Python version."""
        self.send_response_only(code)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_words: Any) -> None:
        """Writes nothing: a scrape comes every few seconds."""
