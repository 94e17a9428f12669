"""Three daemons on one PostgreSQL server, behind a proxy that picks one at random: nothing is doubled or lost, also while
daemons are killed.

The short version is part of every run; `USERSCTL_LONG=1 pytest tests/faults` sends 2,000 emails, runs 200 slots and kills 100
times. Beside these, tests/faults/test_model.py drives three daemons at random, and tests/faults/test_killed.py compares what
they answered while they are killed with what the database has.
"""

import io
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from support import postgres
from support.accounts import only_admins, open_session
from support.commands import OPERATOR, PASSWORD, create_user
from support.daemons import wait_for
from support.fakes import FakeClock
from support.faults import LONG
from support.postbox import Postbox, smtp_server
from support.several import Several, several_daemons
from support.web import Client, Reply

from usersctl.config import Settings
from usersctl.mail.kinds import RESET
from usersctl.models import User
from usersctl.service import Service, build
from usersctl.store.conninfo import Conninfo
from usersd.background import leader, scheduler
from usersd.background.leader import Leader
from usersd.log import Log

EMAILS, SLOTS, ROUNDS, KILLS = (2_000, 200, 500, 100) if LONG else (60, 20, 20, 4)
REGISTRATIONS = 200 if LONG else 40
TOKENS = 10 if LONG else 2
FORGOT = "/api/users/password/forgot"


@contextmanager
def service_on(database: Conninfo, **changes: Any) -> Iterator[Service]:
    with TemporaryDirectory() as folder:
        values = {
            "database": database,
            "base_url": "http://127.0.0.1:8080",
            "rounds": 4,
            "state_folder": Path(folder),
        }
        with closing(build(Settings(**values | changes))) as service:
            yield service


@dataclass
class House:
    """`service` is the core on the database of the daemons, in this process."""

    daemons: Several
    service: Service
    box: Postbox

    def people(self, number: int, name: str) -> list[User]:
        emails = [f"{name}{n}@example.com" for n in range(number)]
        return [create_user(self.service, email, "U", None, by=OPERATOR) for email in emails]

    def client(self, token: str) -> Client:
        client = self.daemons.client()
        client.cookies["auth_token"] = token
        return client

    def ask_for_emails(self, users: list[User]) -> None:
        def ask(user: User) -> Reply:
            return until_answered(lambda: self.daemons.client().post(FORGOT, {"email": user.email}))

        with ThreadPoolExecutor(8) as pool:
            assert {reply.status for reply in pool.map(ask, users)} == {200}

    def wait_until_all_is_sent(self) -> None:
        def waiting() -> int:
            with self.service.store.glance() as tx:
                return tx.count_emails()["waiting"]

        wait_for(lambda: waiting() == 0, 300)


@contextmanager
def house(folder: Path, **box: Any) -> Iterator[House]:
    with (
        server_database() as database,
        smtp_server(Postbox(**box)) as postbox,
        service_on(database) as service,
        several_daemons(
            folder, database, more=f'[mailer]\nhost = "127.0.0.1"\nport = {postbox.port}\n'
        ) as daemons,
    ):
        yield House(daemons, service, postbox)


@contextmanager
def server_database() -> Iterator[Conninfo]:
    postgres.needed()
    database = postgres.add_database()
    yield database
    postgres.drop_database(database)


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    """Without kills, for all tests."""
    with house(tmp_path_factory.mktemp("three")) as house_of_three:
        yield house_of_three


@pytest.fixture
def database(postgres_database: Callable[..., Conninfo]) -> Conninfo:
    return postgres_database()


@pytest.fixture
def service(database: Conninfo) -> Iterator[Service]:
    with service_on(database) as service:
        yield service


def at_once(calls: Sequence[Callable[[], Any]], together: int = 32) -> list[Any]:
    with ThreadPoolExecutor(together) as pool:
        return list(pool.map(lambda call: call(), calls))


def until_answered(ask: Callable[[], Reply]) -> Reply:
    """Repeats a request until a daemon that lives to the end of it has answered."""
    until = time.monotonic() + 60
    while True:
        try:
            reply = ask()
        except (OSError, ValueError):
            assert time.monotonic() < until
            time.sleep(0.05)
            continue
        if reply.status != 503:
            return reply
        time.sleep(0.05)


# --- emails ---


@pytest.mark.slow
def test_each_of_many_emails_is_sent_once(three: House) -> None:
    users = three.people(EMAILS, "many")
    three.ask_for_emails(users)
    three.wait_until_all_is_sent()
    assert len(three.daemons.events("leader")) == 1
    assert Counter(email.recipients[0] for email in three.box.received if "many" in email.recipients[0]) == {
        user.email: 1 for user in users
    }


@pytest.mark.slow
def test_kills_lose_no_email_and_each_costs_at_most_one_duplicate(tmp_path: Path) -> None:
    with house(tmp_path, delay=0.01) as killed:
        users = killed.people(EMAILS, "u")
        with killed.daemons.killed_meanwhile(KILLS):
            killed.ask_for_emails(users)
        killed.wait_until_all_is_sent()
        assert killed.daemons.kills == KILLS
    received = killed.box.received
    ids = {email.id: email.recipients[0] for email in received}
    assert set(ids.values()) == {user.email for user in users}
    assert len(received) - len(ids) <= KILLS  # a duplicate has the Message-ID of its twin
    # A request that was cut off had perhaps queued its email, before it was repeated.
    assert len(ids) - len(users) <= 8 * KILLS


# --- the schedule ---


class Candidates:
    """The leaders of three daemons, in this process: each has connections of its own to the database."""

    def __init__(self, database: Conninfo, clock: FakeClock, stack: ExitStack) -> None:
        self.stream = io.StringIO()
        log = Log(self.stream, as_json=True, now=clock)
        self.leaders = []
        for _ in range(3):
            service = stack.enter_context(service_on(database, cleanup_schedule="* * * * *"))
            service.store.clock = clock
            service.now = clock
            self.leaders.append(Leader(service, log=log))
            stack.callback(self.leaders[-1].stop)
            self.leaders[-1].start()


CUT_OFF = (
    "SELECT pg_terminate_backend(pid) FROM pg_locks"
    " WHERE locktype = 'advisory' AND objsubid = 2 AND objid = 0 AND granted"
    " AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"
)


def cut_off_the_leader(service: Service) -> bool:
    """The server ends the connection that holds the leader's lock; False if there is no leader."""
    with service.store.read() as tx:
        return bool(tx._run(CUT_OFF).fetchall())


def cleanups(service: Service) -> int:
    with service.store.glance() as tx:
        return tx._number("SELECT count(*) FROM audit WHERE action = 'cleanup-tokens'")


@pytest.mark.slow
def test_each_slot_runs_once_while_leaders_lose_their_lock(
    database: Conninfo, service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leader, "LOCK_EVERY", 0.02)
    monkeypatch.setattr(scheduler, "LONGEST_SLEEP", 0.02)
    clock = FakeClock()
    with ExitStack() as stack:
        candidates = Candidates(database, clock, stack)
        wait_for(lambda: '"leader"' in candidates.stream.getvalue())
        cut = 0
        for slot in range(1, SLOTS + 1):
            clock.move(minutes=1)
            if slot % 4 == 0:  # at another moment of the work each time
                time.sleep(slot % 5 * 0.005)
                cut += cut_off_the_leader(service)
            wait_for(lambda slot=slot: cleanups(service) >= slot)
        time.sleep(0.2)
        assert cleanups(service) == SLOTS
        assert cut >= SLOTS // 8
        wait_for(lambda: all(all(each.parts().values()) for each in candidates.leaders))


def test_a_leader_that_loses_its_connection_becomes_a_candidate_again(
    database: Conninfo, service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leader, "LOCK_EVERY", 0.02)
    with ExitStack() as stack:
        candidates = Candidates(database, FakeClock(), stack)
        for n in range(1, 8):
            wait_for(lambda n=n: candidates.stream.getvalue().count('"process"') == n)
            assert cut_off_the_leader(service)
        wait_for(lambda: candidates.stream.getvalue().count('"process"') == 8)
        wait_for(lambda: len([each for each in candidates.leaders if each._jobs]) == 1)
        wait_for(lambda: all(all(each.parts().values()) for each in candidates.leaders))


@pytest.mark.slow
def test_the_leader_hears_of_an_email_that_another_daemon_queues(
    database: Conninfo, service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    from usersctl.store.postgres.locks import ServerLocks  # late: it needs psycopg

    monkeypatch.setattr(ServerLocks, "look_every", 3600.0)
    service.now = service.store.clock = FakeClock()
    user = create_user(service, "ada@example.com", "Ada", None, by=OPERATOR)
    with ExitStack() as stack:
        candidates = Candidates(database, FakeClock(), stack)
        wait_for(lambda: [each for each in candidates.leaders if each._jobs])
        for number in range(1, 4):
            time.sleep(0.2)  # the sender sleeps again
            service.recovery.forgot(user.email)
            wait_for(lambda number=number: candidates.stream.getvalue().count('"sent"') == number)


# --- requests at once ---


WAYS: tuple[Callable[[Client, int], Reply], ...] = (
    lambda client, other: client.patch(f"/api/users/{other}", {"role": "user"}),
    lambda client, other: client.patch(f"/api/users/{other}", {"active": False}),
    lambda client, other: client.delete(f"/api/users/{other}"),
)


@pytest.mark.slow
def test_two_admins_who_remove_each_other_leave_one(three: House) -> None:
    start, service = threading.Barrier(2, timeout=20), three.service
    with ThreadPoolExecutor(2) as pool:
        for number in range(ROUNDS):
            users = only_admins(service, number)
            clients = [three.client(open_session(service, user).token) for user in users]

            def act(
                which: int, users: list[User] = users, clients: list[Client] = clients, n: int = number
            ) -> Reply:
                start.wait()
                return WAYS[(n if which else n // 3) % 3](clients[which], users[1 - which].id)

            replies = list(pool.map(act, (0, 1)))
            with service.store.read() as tx:
                assert tx.active_admins() == 1, replies
            one, other = sorted(reply.status for reply in replies)
            assert one == 200, replies
            assert other in (400, 401, 403, 404), replies


@pytest.mark.slow
def test_a_token_that_is_used_32_times_at_once_works_once(three: House) -> None:
    for user in three.people(TOKENS, "token"):
        link = three.service.outbox.link(RESET, user, by=OPERATOR)
        token = link.partition("token=")[2].partition("&")[0]
        body = {"token": token, "email": user.email, "password": PASSWORD, "password_confirmation": PASSWORD}

        def use(body: dict[str, str] = body) -> Reply:
            return until_answered(lambda: three.daemons.client().post("/api/users/password/reset", body))

        statuses = Counter(reply.status for reply in at_once([use] * 32))
        assert statuses == {200: 1, 400: 31}


@pytest.mark.slow
def test_parallel_registrations_of_one_address_make_one_account(three: House) -> None:
    body = {"email": "one@example.com", "name": "One", "password": PASSWORD}

    def register() -> Reply:
        return until_answered(lambda: three.daemons.client().post("/api/users/register", body))

    statuses = Counter(reply.status for reply in at_once([register] * REGISTRATIONS))
    assert statuses == {200: 1, 400: REGISTRATIONS - 1}
    with three.service.store.read() as tx:
        assert tx._number("SELECT count(*) FROM users WHERE email = ?", (body["email"],)) == 1


def test_a_revocation_holds_at_the_next_request_on_every_daemon(three: House) -> None:
    (user,) = three.people(1, "revoked")
    for n in range(6):
        token = open_session(three.service, user).token
        clients = [three.daemons.client(index) for index in (n % 3, (n + 1) % 3, (n + 2) % 3)]
        for client in clients:
            client.cookies["auth_token"] = token
            assert client.get("/api/users/me").status == 200
        assert clients[0].delete("/api/users/session").status == 200
        assert [client.get("/api/users/me").status for client in clients[1:]] == [401, 401]


# --- starts ---


def test_daemons_that_start_at_once_on_an_empty_database_make_it_once(
    postgres_database: Callable[..., Conninfo],
) -> None:
    database, start = postgres_database(empty=True), threading.Barrier(8)

    def begin(number: int) -> tuple[int, bytes]:
        start.wait(20)
        with service_on(database) as service:
            made = create_user(service, f"u{number}@example.com", "U", None, by=OPERATOR)
            return made.id, service.store.signing_key("device")

    begun = at_once([partial(begin, number) for number in range(8)])
    assert sorted(number for number, _ in begun) == list(range(1, 9))
    assert len({key for _, key in begun}) == 1
    with service_on(database) as service, service.store.read() as tx:
        assert tx.check_audit().problem is None
