"""The metrics for Prometheus: summed over all processes, on an address of their own, off by default."""

import io
import json
import os
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from support.accounts import open_session
from support.commands import OPERATOR, PASSWORD, Command
from support.daemons import free_port, serving, wait_for
from support.databases import destroy
from support.fakes import FakeClock
from support.oauth_site import IDENTITIES, MakeOAuthSite
from support.web import Client, Site, hosting

from usersctl.config.sources import Loaded, Origin
from usersctl.config.webhooks import Webhook
from usersctl.models import User
from usersctl.service import Service
from usersd import metrics
from usersd.counters import BUCKETS, NO_ROUTE, Counters, SharedCounters
from usersd.log import Log
from usersd.metrics import AT_ONCE, CachedCounts
from usersd.routes import TABLE
from usersd.start import hosted

Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]
BY_PATH = {(route.method, route.path): route for route in TABLE}


def scraped(port: int) -> Samples:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as reply:
        text = reply.read().decode()
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def value(samples: Samples, name: str, **labels: str) -> float:
    return samples.get((name, frozenset(labels.items())), 0.0)


def logins(samples: Samples, outcome: str, method: str = "password") -> float:
    return value(samples, "users_logins_total", method=method, outcome=outcome)


def requests(samples: Samples, method: str, route: str, status: str) -> float:
    return value(samples, "users_request_duration_seconds_count", method=method, route=route, status=status)


@contextmanager
def measured(service: Service, processes: int = 1) -> Iterator[tuple[list[Counters], int]]:
    """The counters of so many simulated processes, and the port of the metrics."""
    port = free_port()
    with (
        metrics.measuring("127.0.0.1", port, TABLE, processes) as counters,
        counters.of_process(0, service) as first,
    ):
        others = [Counters(counters._shared, index, service.hasher) for index in range(1, processes)]
        yield [first, *others], port


# --- the real daemon, in several processes ---


@pytest.mark.slow
def test_the_counters_of_several_processes_are_summed(usersctl: Command) -> None:
    (ada,) = usersctl.add("ada")
    port = free_port()
    usersctl.configure(
        f"passwordHashing.rounds = 10\nserver.processes = 2\nmetrics.port = {port}\nlimits.enabled = false\n"
    )
    with serving(usersctl) as daemon:
        assert daemon.events("metrics")[0]["url"] == f"http://127.0.0.1:{port}/metrics"
        for _ in range(2):
            assert daemon.client().login(ada.email, PASSWORD).status == 200
            assert daemon.client().login(ada.email, "wrong").status == 401
        client = daemon.client()
        client.login(ada.email, PASSWORD)
        for _ in range(6):
            client.get(f"/api/users/{ada.id}")
            client.get("/api/users/secret-path-4711")
            client.send("BREW", "/coffee")
        with usersctl.service() as service:
            service.cleaner.run(by=OPERATOR)
        samples = scraped(port)
        assert (logins(samples, "success"), logins(samples, "unauthenticated")) == (3, 2)
        assert requests(samples, "GET", "/api/users/:id", "2xx") == 6
        assert requests(samples, "GET", "/api/users/:id", "4xx") == 6
        assert requests(samples, *NO_ROUTE, "4xx") == 6
        assert not [
            sample
            for sample in samples
            if "4711" in str(sample) or "coffee" in str(sample) or "BREW" in str(sample)
        ]
        assert value(samples, "users_sessions") == 3
        assert value(samples, "users_cleanup_last_removed") == 0
        assert value(samples, "users_cleanup_last_timestamp_seconds") > 0
        assert value(samples, "users_bcrypt_slots") == max(2, (os.cpu_count() or 1) + 1 & ~1)
        pids = children_of(daemon.process.pid)
        assert len(pids) == 2
        for number in ("0", "1"):
            assert value(samples, "process_resident_memory_bytes", process=number) > 10**6
        # The service's own address does not serve metrics.
        assert daemon.client().get("/metrics").status == 302
        # A process that dies is replaced, and no counter decreases.
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        wait_for(lambda: len(set(children_of(daemon.process.pid)) - set(pids)) == 2)
        wait_for(lambda: answers(daemon.client()))
        assert logins(wait_for(lambda: told_by(port)), "success") == 3
        assert daemon.client().login(ada.email, PASSWORD).status == 200
        assert logins(scraped(port), "success") == 4
        assert daemon.stop() == 0
    with pytest.raises(urllib.error.URLError):
        scraped(port)


def children_of(pid: int) -> list[int]:
    with open(f"/proc/{pid}/task/{pid}/children") as children:  # noqa: PTH123 - of the kernel
        return [int(child) for child in children.read().split()]


def answers(client: Client) -> bool:
    try:
        return client.get("/health").status == 200
    except OSError:
        return False


def told_by(port: int) -> Samples | None:
    try:
        return scraped(port)
    except OSError:
        return None


def test_a_taken_metrics_port_stops_the_start_with_one_line(usersctl: Command) -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as taken:
        usersctl.configure(f"metrics.port = {taken.getsockname()[1]}\n")
        result = usersctl("serve", "--port", str(free_port()), "--json")
    assert result.code == 6
    (error,) = [json.loads(line) for line in result.stderr.splitlines() if '"error"' in line]
    assert error["error"]["message"].startswith("metrics: 127.0.0.1:")
    assert "metrics.port" in error["error"]["hint"]


@pytest.mark.slow
def test_no_metrics_module_is_imported_when_metrics_are_off() -> None:
    code = "import sys, usersd.start; print([each for each in ('prometheus_client', 'usersd.metrics') if each in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.strip() == "[]"


# --- what is counted ---


def test_each_outcome_of_a_login_has_its_counter(
    make_service: Callable[..., Service], add: Callable[..., User]
) -> None:
    add("ada")
    add("grace", active=False)
    service, port = make_service(failures_before_delay=2), free_port()
    loaded = Loaded(service.settings, None, {"database": Origin("default", None)})
    with (
        metrics.measuring("127.0.0.1", port, TABLE, 1) as counters,
        hosted(loaded, Log(io.StringIO()), count=partial(counters.of_process, 0)) as served,
        hosting(served) as site,
    ):
        client = Client(site)
        assert client.login("ada@example.com", PASSWORD).status == 200
        assert client.login("grace@example.com", PASSWORD).status == 403
        assert [client.login("nobody@example.com", "wrong").status for _ in range(3)] == [401, 401, 429]
        assert client.post("/api/users/session", {}).status == 400
        assert client.get("/api/users/auth/oauth/redirect").status == 302
        samples = scraped(port)
    outcomes = ("success", "forbidden", "unauthenticated", "too_many", "invalid", "busy", "error")
    assert [logins(samples, outcome) for outcome in outcomes] == [1, 1, 2, 1, 1, 0, 0]
    assert logins(samples, "oauth_not_configured", "oauth") == 1


def counting(site: Site) -> SharedCounters:
    """The counters of a running site, which has none of its own."""
    shared = SharedCounters(TABLE, 1)
    site.app.counters = Counters(shared, 0, site.service.hasher)
    return shared


def test_a_link_to_a_provider_counts_as_no_sign_in(make_oauth_site: MakeOAuthSite) -> None:
    site = make_oauth_site()
    shared, browser = counting(site.site), site.browser()
    assert browser.client.login(site.proven().email, PASSWORD).status == 200

    def way() -> str:
        url: str = browser.client.post(f"{IDENTITIES}/oauth", {}).json["url"]
        return url

    assert browser.callback(browser.cancel(way())).header("Location") == "/account?error=oauth_failed"
    assert browser.callback(browser.consent(way(), "1004")).header("Location") == "/account?linked=oauth"
    assert [counted for counted in shared.logins() if counted[2]] == [("password", "success", 1)]


def test_each_request_is_counted_and_so_is_one_that_cannot_be_parsed(make_site: Callable[..., Site]) -> None:
    site = make_site()
    shared = counting(site)
    site.client().get("/login")
    site.raw(b"no request\r\n\r\n")
    counted = [
        (method, route, status, sum(buckets)) for method, route, status, buckets, _ in shared.requests()
    ]
    assert counted == [("GET", "/login", "2xx", 1), (*NO_ROUTE, "4xx", 1)]


def test_an_unknown_outcome_is_counted_as_error(service: Service) -> None:
    shared = SharedCounters(TABLE, 1)
    Counters(shared, 0, service.hasher).login("oauth", "something new")
    assert ("oauth", "error", 1) in shared.logins()


def test_a_request_falls_into_its_bucket_and_the_sums_are_of_all_processes(service: Service) -> None:
    route = BY_PATH["GET", "/api/users/<id>"]
    with measured(service, processes=3) as (processes, port):
        for counters, seconds in zip(processes, (BUCKETS[0], 0.3, 60.0), strict=True):
            counters.request(route, 200, seconds)
        samples = scraped(port)
    labels = {"method": "GET", "route": "/api/users/:id", "status": "2xx"}
    buckets = [
        value(samples, "users_request_duration_seconds_bucket", **labels, le=str(bucket))
        for bucket in (*BUCKETS, "+Inf")
    ]
    assert buckets == [2.0 if bucket >= 0.5 else 1.0 for bucket in BUCKETS] + [3.0]
    assert value(samples, "users_request_duration_seconds_sum", **labels) == pytest.approx(60.301)


def test_each_process_has_its_own_figures_of_the_system(service: Service) -> None:
    with (
        subprocess.Popen(["sleep", "60"]) as younger,
        measured(service, processes=3) as (processes, port),
    ):
        processes[2]._share[0] = younger.pid
        samples = scraped(port)
        younger.kill()
    began = [value(samples, "process_start_time_seconds", process=str(number)) for number in range(3)]
    assert 0 < began[0] == began[1] < began[2]


def test_a_replaced_process_keeps_its_counters_but_not_its_slots_in_use(service: Service) -> None:
    shared = SharedCounters(TABLE, 2)
    old = Counters(shared, 1, service.hasher)
    old.login("password", "success")
    with service.hasher.slot():
        old.tick(waiting=3)
    assert (shared.hashing, shared.waiting) == (1, 3)
    new = Counters(shared, 1, service.hasher)
    new.login("password", "success")
    assert (shared.hashing, shared.waiting) == (0, 0)
    assert ("password", "success", 2) in shared.logins()


def test_slots_and_waiting_requests_come_from_the_hasher(make_service: Callable[..., Service]) -> None:
    hasher = make_service().hasher
    assert (hasher.in_use, hasher.waiting) == (0, 0)
    with hasher.slot():
        assert (hasher.in_use, hasher.waiting) == (1, 0)
    assert (hasher.in_use, hasher.waiting) == (0, 0)


# --- what is in the database ---


def test_counts_of_sessions_and_emails_are_current(
    service: Service, add: Callable[..., User], clock: FakeClock
) -> None:
    ada = add()
    for _ in range(3):
        open_session(service, ada)
    clock.move(hours=2)
    open_session(service, ada, remember=True)
    service.sessions.create_api_token(ada.id, name="cron", lifetime=None, by=OPERATOR)
    service.recovery.forgot(ada.email)
    counts = CachedCounts(service)()
    assert counts is not None
    assert counts.sessions == 5
    assert counts.letters == {"waiting": 1, "sent": 0, "failed": 0, "dropped": 0}
    assert (counts.cleaned_at, counts.cleaned) == (None, 0)
    clock.move(hours=23)  # those without "stay signed in" are over
    service.cleaner.run(include_no_expiration=True, by=OPERATOR)
    counts = CachedCounts(service)()
    assert counts is not None
    assert (counts.sessions, counts.cleaned) == (1, 4)
    assert counts.cleaned_at == clock().timestamp()


def test_a_scrape_has_the_counts_of_the_database(
    service: Service, add: Callable[..., User], clock: FakeClock
) -> None:
    ada = add()
    open_session(service, ada)
    service.recovery.forgot(ada.email)
    with measured(service) as (_, port):
        samples = scraped(port)
    assert value(samples, "users_sessions") == 1
    assert value(samples, "users_letters", state="waiting") == 1
    assert ("users_letters", frozenset({("state", "failed")})) in samples
    assert ("users_cleanup_last_removed", frozenset()) not in samples
    clock.move(days=2)
    service.cleaner.run(by=OPERATOR)
    with measured(service) as (_, port):
        samples = scraped(port)
    assert value(samples, "users_cleanup_last_removed") == 1
    assert value(samples, "users_cleanup_last_timestamp_seconds") == pytest.approx(clock().timestamp())


def test_events_are_counted_for_each_webhook_of_the_configuration(
    make_service: Callable[..., Service],
) -> None:
    none = make_service()
    with measured(none) as (_, port):
        assert not [name for name, _ in scraped(port) if name.startswith("users_webhook")]
    ops = Webhook("ops", "https://ops.example.com/", ())
    few = Webhook("few", "https://few.example.com/", (), ("user.deleted",))
    service = make_service(webhooks=(ops, few))
    service.registration.register("ada@example.com", "Ada", PASSWORD, by=OPERATOR)
    with measured(service) as (_, port):
        samples = scraped(port)
        assert value(samples, "users_webhook_events", webhook="ops", state="waiting") == 1
        assert ("users_webhook_events", frozenset({"webhook": "few", "state": "waiting"}.items())) in samples
        assert value(samples, "users_webhook_events", webhook="few", state="waiting") == 0


def test_the_database_is_not_counted_for_more_than_a_hundredth_of_the_time(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    counting, now, counts = CachedCounts(service), [0.0], []

    def count() -> Any:
        counts.append(now[0])
        now[0] += 2.0  # a large one

    monkeypatch.setattr(counting, "_count", count)
    monkeypatch.setattr(metrics.time, "monotonic", lambda: now[0])
    while now[0] < 1000:
        counting()
        now[0] += 1
    assert len(counts) == 5
    monkeypatch.setattr(counting, "_count", lambda: counts.append(now[0]))
    now[0] += 1000
    counts.clear()
    for _ in range(100):
        counting()
        now[0] += 1
    assert len(counts) == 10


def test_counts_of_an_unreadable_database_are_left_out(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metrics, "COUNTED_EVERY", 0)
    monkeypatch.setattr(metrics, "SHARE", float("inf"))
    counted = CachedCounts(service)
    assert counted() is not None
    service.store.close()
    destroy(service.store.database)
    assert counted() is None
    with measured(service) as ((counters,), port):
        counters.login("password", "success")
        samples = scraped(port)
    assert logins(samples, "success") == 1
    assert ("users_sessions", frozenset()) not in samples


# --- the address ---


def test_metrics_has_one_path_and_two_methods(service: Service) -> None:
    with measured(service) as (_, port):
        client = Client(port)
        reply = client.get("/metrics?x=1")
        assert reply.status == 200
        assert (reply.header("Content-Type") or "").startswith("text/plain; version=")
        assert reply.header("Server") is None
        with closing(socket.create_connection(("127.0.0.1", port))) as raw:
            raw.sendall(b"HEAD /metrics HTTP/1.0\r\n\r\n")
            head = raw.makefile("rb").read()
        assert head.startswith(b"HTTP/1.0 200 ")
        assert head.endswith(b"\r\n\r\n")
        for method, path, status in (
            ("GET", "/", 404),
            ("GET", "/metrics/x", 404),
            ("POST", "/metrics", 501),
            ("BREW", "/metrics", 501),
        ):
            refused = client.send(method, path)
            assert (refused.status, refused.body) == (status, b"")


def test_a_silent_scraper_does_not_delay_others(service: Service) -> None:
    with measured(service) as (_, port), closing(socket.create_connection(("127.0.0.1", port))) as silent:
        silent.sendall(b"GET /metr")
        assert scraped(port)


def test_open_scraper_connections_use_few_files_and_make_room_for_others_as_they_end(
    service: Service,
) -> None:
    def files() -> int:
        return len(list(Path("/proc/self/fd").iterdir()))

    with measured(service) as (_, port):
        with ExitStack() as stack:
            before = files()
            for _ in range(80):
                client = stack.enter_context(closing(socket.create_connection(("127.0.0.1", port))))
                with suppress(OSError):
                    client.sendall(b"GET /metr")
            # The clients' sockets are files of this process, too.
            wait_for(lambda: files() - before <= 80 + AT_ONCE + 4)
            assert files() - before >= 80

        def is_served() -> bool:
            with suppress(OSError):
                return bool(scraped(port))
            return False

        wait_for(is_served)


@pytest.mark.parametrize("kind", ["text/plain", "application/openmetrics-text"])
def test_an_accept_header_with_an_invalid_version_is_answered(service: Service, kind: str) -> None:
    with measured(service) as (_, port):
        reply = Client(port, headers={"Accept": f"{kind}; version=x"}).get("/metrics")
    assert (reply.status, b"users_" in reply.body) == (200, True)


def test_openmetrics_is_sent_to_scrapers_that_accept_it(service: Service) -> None:
    with measured(service) as (_, port):
        reply = Client(port, headers={"Accept": "application/openmetrics-text; version=1.0.0"}).get(
            "/metrics"
        )
    assert reply.status == 200
    assert reply.body.endswith(b"# EOF\n")
