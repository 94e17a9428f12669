"""Limits on failed logins and on parallel password checks, through a real socket."""

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from ipaddress import ip_network

import pytest
from support.commands import OPERATOR, PASSWORD, Command
from support.databases import held
from support.fakes import FakeClock
from support.second_factors import enrol
from support.web import Reply, Site

from usersctl.errors import TooMany, Unauthenticated
from usersctl.service import Service
from usersd import rate_limits
from usersd.rate_limits import RateLimits
from usersd.routing import Limit

WRONG = "wrong horse battery"
OWN_PASSWORD = "/api/users/password"
CONFIRM = "/api/users/session/confirm"
REDIRECT = "/api/users/auth/oauth/redirect"
TOO_MANY = "Too many failed logins, please try again later"
TOO_MANY_FROM_HERE = "Too many requests, please try again later"


@pytest.fixture
def unlimited_clients(make_site: Callable[..., Site]) -> Site:
    """With limits for accounts only."""
    return make_site(failed_logins_per_minute=100_000)


def fail(site: Site, email: str = "ada@example.com", times: int = 1) -> list[int]:
    return [site.client().login(email, WRONG).status for _ in range(times)]


def refused(reply: Reply) -> tuple[int, str, str | None]:
    return reply.status, reply.message, reply.header("Retry-After")


# --- for each account ---


@pytest.mark.parametrize("email", ["ada@example.com", "nobody@example.com", "no address at all"])
def test_after_ten_failures_the_account_waits_and_the_wait_doubles(
    unlimited_clients: Site, clock: FakeClock, email: str
) -> None:
    site = unlimited_clients
    site.add()
    assert fail(site, email, 10) == [401] * 10
    for wait in (30, 60, 120, 240, 480, 900, 900):
        assert refused(site.client().login(email, PASSWORD)) == (429, TOO_MANY, str(wait))
        clock.move(seconds=wait - 1)
        assert refused(site.client().login(email, PASSWORD)) == (429, TOO_MANY, "1")
        clock.move(seconds=1)
        assert fail(site, email) == [401]


def test_a_success_clears_the_count(unlimited_clients: Site, clock: FakeClock) -> None:
    site = unlimited_clients
    site.add()
    fail(site, times=9)
    assert site.client().login("ada@example.com", PASSWORD).status == 200
    assert fail(site, times=10) == [401] * 10
    assert fail(site) == [429]
    clock.move(seconds=30)
    assert site.client().login("ada@example.com", PASSWORD).status == 200
    assert fail(site, times=10) == [401] * 10


@pytest.mark.slow
def test_after_eighty_failures_of_strangers_only_unlock_helps(
    unlimited_clients: Site, clock: FakeClock, usersctl: Command
) -> None:
    site = unlimited_clients
    site.add()
    for _ in range(80):
        assert fail(site) == [401]
        clock.move(minutes=16)
    for _ in range(3):
        clock.move(days=30)
        assert refused(site.client().login("ada@example.com", PASSWORD)) == (429, TOO_MANY, "900")
    usersctl.ok("unlock", "ada@example.com")
    assert site.client().login("ada@example.com", PASSWORD).status == 200


def test_unlock_ends_a_wait_too(unlimited_clients: Site, usersctl: Command) -> None:
    site = unlimited_clients
    site.add()
    fail(site, times=10)
    assert fail(site) == [429]
    usersctl.ok("unlock", "ada@example.com")
    assert site.client().login("ada@example.com", PASSWORD).status == 200


def test_a_waiting_account_keeps_its_sessions_and_the_others_their_logins(unlimited_clients: Site) -> None:
    site = unlimited_clients
    client, bea = site.signed_in(site.add()), site.add("bea")
    fail(site, times=11)
    assert client.get("/api/users/me").status == 200
    assert site.client().login(bea.email, PASSWORD).status == 200


def test_the_current_password_cannot_be_guessed_either(unlimited_clients: Site) -> None:
    site = unlimited_clients
    client = site.signed_in(site.add())
    new = "another horse battery"
    body = {"currentPassword": WRONG, "newPassword": new, "newPasswordConfirmation": new}
    assert [client.patch(OWN_PASSWORD, body).status for _ in range(10)] == [400] * 10
    right = body | {"currentPassword": PASSWORD}
    assert refused(client.patch(OWN_PASSWORD, right)) == (429, TOO_MANY, "30")
    assert fail(site) == [401], "the session has a counter of its own"


def test_refusals_other_than_a_wrong_password_are_not_counted(unlimited_clients: Site) -> None:
    site = unlimited_clients
    site.add()
    site.add("idle", active=False)
    for _ in range(12):
        assert site.client().post("/api/users/session", {"email": "ada@example.com"}).status == 400
        assert site.client().login("idle@example.com", PASSWORD).status == 403
    assert fail(site, "ada@example.com") == [401]
    assert fail(site, "idle@example.com") == [401]


# --- for each client address ---


@pytest.mark.slow
def test_a_client_fails_sixty_times_a_minute(site: Site, clock: FakeClock) -> None:
    ada = site.add()
    assert [*{status for n in range(60) for status in fail(site, f"u{n}@example.com")}] == [401]
    reply = site.client().login(ada.email, PASSWORD)
    assert refused(reply) == (429, TOO_MANY_FROM_HERE, "60")
    clock.move(seconds=59)
    assert refused(site.client().login(ada.email, PASSWORD))[2] == "1"
    clock.move(seconds=1)
    assert site.client().login(ada.email, PASSWORD).status == 200


def test_only_wrong_passwords_are_counted(make_site: Callable[..., Site]) -> None:
    site = make_site(failed_logins_per_minute=2)
    site.add("idle", active=False)
    for _ in range(3):
        assert site.client().post("/api/users/session", {"email": "ada@example.com"}).status == 400
        assert site.client().login("idle@example.com", PASSWORD).status == 403
    assert fail(site, times=3) == [401, 401, 429]


def test_logins_that_succeed_are_not_counted(site: Site) -> None:
    ada = site.add()
    assert {site.client().login(ada.email, PASSWORD).status for _ in range(70)} == {200}
    assert fail(site) == [401]


@pytest.fixture
def behind_a_proxy(make_site: Callable[..., Site]) -> Site:
    return make_site(
        trusted_proxies=(ip_network("127.0.0.0/8"), ip_network("10.0.0.0/8")), failed_logins_per_minute=2
    )


def login_from(site: Site, forwarded: str, n: int) -> int:
    body = {"email": f"{n}-{abs(hash(forwarded))}@example.com", "password": WRONG}
    return site.client().post("/api/users/session", body, headers={"X-Forwarded-For": forwarded}).status


@pytest.mark.parametrize(
    ("first", "then", "same"),
    [
        ("192.0.2.1", "192.0.2.1", True),
        ("192.0.2.1", "192.0.2.2", False),
        ("2001:db8:1:2::1", "2001:db8:1:2:ffff::9", True),
        ("2001:db8:1:2::1", "2001:db8:1:3::1", False),
        ("192.0.2.1", "::ffff:192.0.2.1", True),
        # Read from the right: an untrusted client wrote everything to the left of its own address.
        ("203.0.113.1, 192.0.2.1", "203.0.113.2, 192.0.2.1", True),
        ("192.0.2.1, 10.0.0.7", "192.0.2.1", True),
        ("192.0.2.1, 10.0.0.7, 10.0.0.8", "192.0.2.2, 10.0.0.7", False),
        ("nonsense", "more nonsense", True),
    ],
)
def test_limits_count_the_client_behind_a_trusted_proxy(
    behind_a_proxy: Site, first: str, then: str, same: bool
) -> None:
    assert [login_from(behind_a_proxy, first, n) for n in range(2)] == [401, 401]
    assert login_from(behind_a_proxy, then, 3) == (429 if same else 401)


def test_an_ipv4_address_that_is_mapped_is_shown_as_itself(behind_a_proxy: Site) -> None:
    assert login_from(behind_a_proxy, "::ffff:192.0.2.1", 1) == 401
    assert {line["ip"] for line in behind_a_proxy.log} == {"192.0.2.1"}


@pytest.mark.parametrize("proxies", [(), (ip_network("192.0.2.0/24"),)])
def test_an_untrusted_client_cannot_forge_its_address(
    make_site: Callable[..., Site], proxies: tuple[object, ...]
) -> None:
    site = make_site(trusted_proxies=proxies, failed_logins_per_minute=2)
    assert [login_from(site, f"192.0.2.{n}", n) for n in range(3)] == [401, 401, 429]
    assert {line["ip"] for line in site.log} == {"127.0.0.1"}


def test_a_wrong_password_of_a_session_counts_for_its_address_too(make_site: Callable[..., Site]) -> None:
    site = make_site(failed_logins_per_minute=2)
    ada = site.signed_in(site.add())
    assert [ada.post(CONFIRM, {"password": WRONG}).status for _ in range(3)] == [400] * 3
    assert fail(site, "nobody@example.com") == [429]
    assert ada.post(CONFIRM, {"password": PASSWORD}).status == 200


def test_a_login_during_a_lockdown_counts_for_its_address(make_site: Callable[..., Site]) -> None:
    site = make_site(failed_logins_per_minute=2)
    site.service.lockdown.start(None, by=OPERATOR)
    assert fail(site, times=3) == [503, 503, 429]


def test_a_wrong_password_counts_once_where_every_request_counts(make_site: Callable[..., Site]) -> None:
    site = make_site(own_changes_per_hour=3)
    ada = site.signed_in(site.add())
    statuses = [ada.send("DELETE", "/api/users/me", {"password": WRONG}).status for _ in range(4)]
    assert statuses == [400, 400, 400, 429]


def test_the_memory_of_client_addresses_does_not_grow(service: Service) -> None:
    limits = RateLimits(service)
    for n in range(12_000):
        address = f"10.{n >> 16}.{(n >> 8) & 255}.{n & 255}"
        limits.count_failure(Limit.FAILED_LOGINS, address, Unauthenticated("no"))
    assert len(limits._throttles[Limit.FAILED_LOGINS]._windows) == 10_000


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["file", "server"])
def test_several_processes_count_a_client_together(
    engine: str, make_site: Callable[..., Site], clock: FakeClock, request: pytest.FixtureRequest
) -> None:
    changes = (
        {"processes": 3} if engine == "file" else {"database": request.getfixturevalue("postgres_database")()}
    )
    sites = [make_site(failed_logins_per_minute=30, **changes) for _ in range(3)]
    statuses = [sites[n % 3].client().login(f"u{n}@example.com", WRONG).status for n in range(60)]
    # A process learns of the others' when it lets one pass itself.
    assert 30 <= statuses.count(401) <= 32
    assert set(statuses[40:]) == {429}
    with sites[0].service.store.read() as tx:
        assert tx._run("SELECT client FROM client_counts").fetchall() == [("FAILED_LOGINS 127.0.0.1",)]
    clock.move(minutes=1)
    assert [site.client().login("u@example.com", WRONG).status for site in sites] == [401] * 3
    clock.move(hours=2)
    sites[0].service.cleaner.run(by=OPERATOR)
    with sites[0].service.store.read() as tx:
        assert tx._run("SELECT client FROM client_counts").fetchall() == []


@pytest.mark.parametrize("engine", ["file", "server"])
def test_several_processes_let_no_request_too_many_pass_however_many_come_at_once(
    engine: str,
    make_service: Callable[..., Service],
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(rate_limits, "PATIENCE", 10.0)
    changes = (
        {"processes": 3} if engine == "file" else {"database": request.getfixturevalue("postgres_database")()}
    )
    processes = [RateLimits(make_service(forgots_per_minute=30, **changes)) for _ in range(3)]
    barrier = threading.Barrier(12)

    def ask(number: int) -> int:
        barrier.wait(20)
        passed = 0
        for _ in range(20):
            with suppress(TooMany):
                processes[number % 3].check(Limit.FORGOTS, "192.0.2.1")
                passed += 1
        return passed

    with ThreadPoolExecutor(12) as pool:
        assert sum(pool.map(ask, range(12))) == 30


def test_a_limit_holds_while_no_process_can_count_for_all_and_requests_hardly_wait(
    make_service: Callable[..., Service],
) -> None:
    service = make_service(processes=2, forgots_per_minute=2)
    limits = RateLimits(service)
    began = time.monotonic()
    with held(service.store.database):
        for _ in range(2):
            limits.check(Limit.FORGOTS, "192.0.2.1")
        with pytest.raises(TooMany):
            limits.check(Limit.FORGOTS, "192.0.2.1")
    assert time.monotonic() - began < 5


@pytest.mark.parametrize("schedule", [None, "0 3 * * *"])
def test_the_table_of_client_addresses_does_not_grow(
    make_site: Callable[..., Site], clock: FakeClock, monkeypatch: pytest.MonkeyPatch, schedule: str | None
) -> None:
    monkeypatch.setattr(rate_limits, "KEPT", 40)
    monkeypatch.setattr(rate_limits, "LOOK_EVERY", 10)
    sites = [make_site(processes=3, cleanup_schedule=schedule) for _ in range(3)]
    processes = [RateLimits(site.service) for site in sites]
    processes[0].check(Limit.REGISTRATIONS, "192.0.2.1")
    for n in range(300):
        clock.move(seconds=1)
        processes[n % 3].count_failure(Limit.FAILED_LOGINS, f"10.0.{n >> 8}.{n & 255}", Unauthenticated("no"))
    with sites[0].service.store.read() as tx:
        clients = {client for (client,) in tx._run("SELECT client FROM client_counts")}
    assert 40 < len(clients) <= 1 + 40 + 3 * 10
    assert clients >= {f"FAILED_LOGINS 10.0.1.{n}" for n in range(10, 44)} | {"REGISTRATIONS 192.0.2.1"}


@pytest.mark.sqlite  # other daemons may use a server
def test_a_process_that_is_alone_counts_clients_in_its_memory_only(site: Site) -> None:
    assert fail(site, times=3) == [401] * 3
    with site.service.store.read() as tx:
        assert tx._run("SELECT client FROM client_counts").fetchall() == []


def test_one_account_changes_its_profile_sixty_times_an_hour(
    make_site: Callable[..., Site], clock: FakeClock
) -> None:
    site = make_site(trusted_proxies=(ip_network("127.0.0.0/8"),))
    client = site.signed_in(site.add(), rememberMe=True)
    site.add("bea")
    replies = [
        client.patch(
            "/api/users/me", {"email": "bea@example.com"}, headers={"X-Forwarded-For": f"192.0.2.{n}"}
        )
        for n in range(61)
    ]
    assert [reply.status for reply in replies] == [400] * 60 + [429]
    assert refused(replies[-1]) == (429, TOO_MANY_FROM_HERE, "3600")
    clock.move(hours=1)
    assert client.patch("/api/users/me", {"name": "Ada"}).status == 200


@pytest.mark.slow
def test_an_office_adds_second_factors_behind_one_address_on_the_day_that_asks_for_them(
    make_site: Callable[..., Site], clock: FakeClock
) -> None:
    site = make_site(second_factor="everyone", own_changes_per_hour=3)
    people = [site.signed_in(site.add(name)) for name in ("ada", "bea", "cy")]
    for client in people:
        enrol(client, clock)
    begun = "/api/users/me/totp"
    replies = [people[0].post(begun) for _ in range(2)]
    assert [reply.status for reply in replies] == [400, 429]  # one account has its limit all the same


def test_one_client_looks_up_sixty_addresses_an_hour_with_however_many_accounts(site: Site) -> None:
    clients = [site.signed_in(site.add(f"user{number}")) for number in range(3)]
    statuses = [
        clients[n % 3].patch("/api/users/me", {"email": "user0@example.com"}).status for n in range(63)
    ]
    assert statuses[60:] == [429] * 3
    assert clients[0].get("/api/users/me").status == 200


def test_a_change_that_changes_nothing_adds_no_audit_row(site: Site) -> None:
    client = site.signed_in(site.add())
    for body in (
        {"name": "Ada"},
        {"email": "ADA@example.com"},
        {"name": " Ada ", "email": "ada@example.com"},
        {},
    ):
        assert client.patch("/api/users/me", body).status == 200
    with site.service.store.read() as tx:
        assert [row.action for row in tx.audit_rows()] == ["create"]


@pytest.mark.parametrize(
    "path", ["/api/users/auth/oauth/redirect", "/api/users/auth/oauth/callback?state=x&code=y"]
)
def test_a_client_asks_sixty_times_a_minute_for_a_sign_in_through_the_provider(
    site: Site, clock: FakeClock, path: str
) -> None:
    for _ in range(60):
        assert site.client().get(path).header("Location") == "/login?error=oauth_not_configured"
    reply = site.client().get(path)
    assert (reply.status, reply.header("Location")) == (302, "/login?error=oauth_failed")
    assert [line["why"] for line in site.log if line["event"] == "oauth-refused"][-1] == TOO_MANY_FROM_HERE
    client = site.client()
    client.get(path)
    assert "Please try again in a minute." in client.get("/login?error=oauth_failed").body.decode()
    clock.move(minutes=1)
    assert site.client().get(path).header("Location") == "/login?error=oauth_not_configured"


# --- switched off ---


def test_with_limits_disabled_no_client_is_counted(make_site: Callable[..., Site]) -> None:
    site = make_site(limits_enabled=False, processes=2)
    assert fail(site) == [401]
    assert site.client().post("/api/users/password/forgot", {"email": "ada@example.com"}).status == 200
    with site.service.store.read() as tx:
        assert tx._run("SELECT client FROM client_counts").fetchall() == []


@pytest.mark.slow
def test_with_limits_disabled_only_the_hashing_slots_remain(make_site: Callable[..., Site]) -> None:
    site = make_site(limits_enabled=False)
    site.add()
    assert fail(site, times=120) == [401] * 120
    client = site.signed_in(site.add("bea"))
    assert {client.patch("/api/users/me", {"name": f"Bea {n}"}).status for n in range(61)} == {200}
    assert "oauth_failed" not in {site.client().get(REDIRECT).header("Location") for _ in range(61)}
    assert site.client().login("ada@example.com", PASSWORD).status == 200
    assert overloaded(site).count(503) > 0


# --- slots ---


def overloaded(site: Site) -> list[int]:
    """Thirteen logins while every slot is taken; two wait for one, eight in the room."""
    time.sleep(0.3)  # so that the clients that were just answered have left the room
    replies: list[Reply] = []
    done = threading.Semaphore(0)

    def login() -> None:
        replies.append(site.client().login("ada@example.com", PASSWORD))
        done.release()

    with ExitStack() as stack:
        for _ in range(site.service.hasher.slots):
            stack.enter_context(site.service.hasher.slot())
        threads = [threading.Thread(target=login) for _ in range(13)]
        for thread in threads:
            thread.start()
        for _ in range(3):
            assert done.acquire(timeout=10), "three are refused while ten wait"
        assert [reply.status for reply in replies] == [503] * 3
        for reply in replies:
            assert reply.message == "Too many logins at once, please try again"
            assert int(reply.header("Retry-After") or 0) >= 1
            assert reply.header("X-Request-Id")
        assert site.client().get("/api/users/me").status == 401, "others are answered meanwhile"
    for thread in threads:
        thread.join(10)
    return [reply.status for reply in replies]


@pytest.mark.slow
def test_a_login_beyond_the_waiting_room_is_a_503_and_waiting_ones_are_answered(site: Site) -> None:
    ada = site.add()
    assert sorted(overloaded(site)) == [200] * 10 + [503] * 3
    assert site.client().login(ada.email, PASSWORD).status == 200


@pytest.mark.slow
def test_a_503_is_no_failed_login(site: Site) -> None:
    site.add()
    for _ in range(4):
        overloaded(site)
    assert fail(site, times=10) == [401] * 10


def test_registration_and_new_accounts_share_the_slots(site: Site) -> None:
    admin = site.signed_in(site.add("root", role="admin"))
    new = {"email": "new@example.com", "name": "New", "password": PASSWORD}
    hasher = site.service.hasher
    hasher.in_use, hasher.waiting = hasher.slots, hasher.waiting_room
    reply = admin.post("/api/users", new)
    assert (reply.status, reply.header("Retry-After")) == (503, "2")
    hasher.in_use = hasher.waiting = 0
    assert admin.post("/api/users", new).status == 200
