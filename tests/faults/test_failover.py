"""The PostgreSQL server goes away, and it or its successor comes back: nothing that was answered is lost, requests end as
503 within 5.5 seconds meanwhile, and no daemon is started again.

Servers are killed and stopped as a whole. The long version, `USERSCTL_LONG=1 pytest tests/faults`, writes for longer.
"""

import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass

import pytest
from support.cluster import Node, conninfo, one_server, patroni, with_a_standby
from support.commands import PASSWORD, Command
from support.daemons import Daemon, serving, wait_for
from support.faults import LONG, ME
from support.web import Client, Reply
from support.writers import Writer, all_are_back, nothing_is_lost, prepared, writing

# Several servers, and limits of time, which a machine that does other work does not keep.
pytestmark = pytest.mark.skipif(
    os.environ.get("FAILOVER_TESTS") != "required" and not LONG, reason="run alone, by: make test-failover"
)
DAEMONS, WRITERS = (3, 4) if LONG else (2, 2)  # writers of each daemon
WRITES_FOR = 20.0 if LONG else 2.0  # seconds before a fault, and after it
ANSWERED_WITHIN = 5.5
BACK_WITHIN = 30.0


@dataclass
class House:
    """Several daemons on one database."""

    usersctl: Command
    daemons: list[Daemon]
    admin: str

    @contextmanager
    def writing(self) -> Iterator[list[Writer]]:
        """At the end all that the writers were answered is looked for."""
        with writing(self.daemons, self.admin, WRITERS, WRITES_FOR) as writers:
            yield writers
        nothing_is_lost(self.usersctl, self.daemons, writers, ANSWERED_WITHIN)


@contextmanager
def house(usersctl: Command, database: str, daemons: int = DAEMONS) -> Iterator[House]:
    usersctl.env["USERS_DATABASE"] = database
    admin = prepared(usersctl)
    with ExitStack() as stack:
        yield House(usersctl, [stack.enter_context(serving(usersctl)) for _ in range(daemons)], admin)


# --- another server takes its place ---


@pytest.mark.parametrize("fault", ["killed", "silent"])
def test_nothing_answered_is_lost_when_a_standby_is_promoted(usersctl: Command, fault: str) -> None:
    with with_a_standby() as (primary, standby), house(usersctl, conninfo(primary, standby)) as it:
        with it.writing() as writers:
            primary.signal_all(signal.SIGKILL if fault == "killed" else signal.SIGSTOP)
            began = time.monotonic()
            standby.promote()
            print(f"{fault}: back after {all_are_back(writers, began, BACK_WITHIN):.1f} s")
        assert sum(writer.refused for writer in writers) > 0
        primary.kill()


def test_nothing_answered_is_lost_when_patroni_changes_the_leader(usersctl: Command) -> None:
    with patroni() as cluster, house(usersctl, cluster.conninfo) as it, it.writing() as writers:
        began = time.monotonic()
        cluster.hand_over()
        print(f"handed over: back after {all_are_back(writers, began, BACK_WITHIN):.1f} s")
        wait_for(cluster.is_whole, 60)
        leader = cluster.leader
        assert leader is not None
        leader.kill()
        fault = time.monotonic()
        print(f"leader killed: back after {all_are_back(writers, fault, BACK_WITHIN):.1f} s")


# --- the same server, silent, broken or restarted ---


REQUESTS: dict[str, Callable[["Visits"], Reply]] = {
    "me": lambda it: it.ada.get(ME),
    "verify": lambda it: it.ada.get("/api/users/auth/verify"),
    "profile page": lambda it: it.ada.get("/"),
    "list": lambda it: it.admin.get("/api/users"),
    "one": lambda it: it.admin.get("/api/users/1"),
    "audit": lambda it: it.admin.get("/api/audit"),
    "rename": lambda it: it.ada.patch(ME, {"name": f"Ada {time.monotonic_ns()}"}),
    "login": lambda it: Client(it.ada.port).login("ada@example.com", PASSWORD),
    "forgot": lambda it: Client(it.ada.port).post("/api/users/password/forgot", {"email": "ada@example.com"}),
}


@dataclass
class Visits:
    ada: Client
    admin: Client

    def all_at_once(self) -> dict[str, list[tuple[int, float]]]:
        """Status and seconds of each kind of request, sent four times at the same moment."""
        with ThreadPoolExecutor(4 * len(REQUESTS)) as pool:
            futures = {
                name: [pool.submit(self._timed, ask) for _ in range(4)] for name, ask in REQUESTS.items()
            }
            return {name: [future.result() for future in some] for name, some in futures.items()}

    def _timed(self, ask: Callable[["Visits"], Reply]) -> tuple[int, float]:
        began = time.monotonic()
        reply = ask(self)
        return reply.status, time.monotonic() - began

    def are_served(self) -> bool:
        return {status for some in self.all_at_once().values() for status, _ in some} == {200}


def visits(it: House, daemon: Daemon) -> Visits:
    admin = Client(daemon.port, headers={"Authorization": f"Bearer {it.admin}"})
    assert (
        admin.post("/api/users", {"email": "ada@example.com", "name": "Ada", "password": PASSWORD}).status
        == 200
    )
    ada = Client(daemon.port)
    assert ada.login("ada@example.com", PASSWORD).status == 200
    return Visits(ada, admin)


Answers = dict[str, list[tuple[int, float]]]  # status and seconds, by the kind of request


def late(answers: Answers) -> Answers:
    return {
        name: some for name, some in answers.items() if max(seconds for _, seconds in some) > ANSWERED_WITHIN
    }


def refused_in_time(answers: Answers) -> bool:
    assert not late(answers)
    others = {name: some for name, some in answers.items() if {status for status, _ in some} != {503}}
    assert not others, others
    return True


def test_requests_end_as_503_while_the_server_is_silent_and_it_heals(usersctl: Command) -> None:
    with one_server() as server, house(usersctl, conninfo(server), daemons=1) as it:
        (daemon,) = it.daemons
        all_of = visits(it, daemon)
        assert all_of.are_served()
        with server.stopped():
            for _ in range(2):  # connections that were open, and new ones
                assert refused_in_time(all_of.all_at_once())
            assert daemon.client().get("/health").status == 200
            assert daemon.client().get("/ready").message.startswith("Not ready: database")
            began = time.monotonic()
            listed = usersctl("list", "--json")
            assert (listed.code, time.monotonic() - began < 7) == (6, True), listed
        began = time.monotonic()
        wait_for(all_of.are_served, BACK_WITHIN)
        print(f"served again {time.monotonic() - began:.1f} s after the server was heard again")
        wait_for(lambda: daemon.client().get("/ready").status == 200)
        assert daemon.stop() == 0


def test_a_daemon_stops_in_time_while_the_server_is_silent(usersctl: Command) -> None:
    with one_server() as server, house(usersctl, conninfo(server), daemons=1) as it:
        (daemon,) = it.daemons
        all_of = visits(it, daemon)
        with server.stopped(), ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(all_of.ada.get, ME)
            time.sleep(0.2)
            began = time.monotonic()
            assert daemon.stop() == 0
            assert time.monotonic() - began <= 7
            assert waiting.result().status == 503


def test_nothing_answered_is_lost_when_a_process_of_the_server_is_killed(usersctl: Command) -> None:
    """The server then ends all its connections and repairs itself."""
    with one_server() as server, house(usersctl, conninfo(server)) as it, it.writing() as writers:
        for _ in range(3):
            os.kill(_amid_a_transaction(server), signal.SIGKILL)
            fault = time.monotonic()
            print(f"back after {all_are_back(writers, fault, BACK_WITHIN):.1f} s")


def _amid_a_transaction(server: Node) -> int:
    def found() -> str:
        return server.sql(
            "SELECT pid FROM pg_stat_activity WHERE datname = 'users' AND pid <> pg_backend_pid()"
            " AND xact_start IS NOT NULL LIMIT 1"
        )

    return int(wait_for(found))


def test_connections_that_the_server_ended_are_opened_again_without_a_refusal(usersctl: Command) -> None:
    with one_server() as server, house(usersctl, conninfo(server), daemons=1) as it:
        all_of = visits(it, it.daemons[0])
        assert all_of.are_served()
        ended = server.sql(
            "SELECT count(pg_terminate_backend(pid, 5000)) FROM pg_stat_activity"
            " WHERE datname = 'users' AND pid <> pg_backend_pid()"
        )
        assert int(ended) > 4
        assert all_of.are_served()


def test_reads_go_on_and_writes_are_refused_while_the_standby_is_away(usersctl: Command) -> None:
    with with_a_standby() as (primary, standby), house(usersctl, conninfo(primary, standby), daemons=1) as it:
        all_of = visits(it, it.daemons[0])
        with standby.stopped():
            answers = all_of.all_at_once()
            assert not late(answers)
            statuses = {name: {status for status, _ in some} for name, some in answers.items()}
            assert statuses.pop("rename") == {503}
            assert statuses.pop("login") == {503}
            assert statuses.pop("forgot") <= {200, 503}
            assert set.union(*statuses.values()) == {200}, statuses
        wait_for(all_of.are_served, BACK_WITHIN)


def test_a_daemon_that_hangs_amid_a_change_keeps_the_others_only_for_a_moment(usersctl: Command) -> None:
    with one_server() as server, house(usersctl, conninfo(server)) as it:
        hanging, other = it.daemons[0], it.daemons[-1]
        all_of = visits(it, other)
        with ThreadPoolExecutor(4) as pool:
            over = threading.Event()
            writers = [Writer(hanging.port, it.admin, f"w{number}") for number in range(4)]
            living = [pool.submit(writer.live, over) for writer in writers]
            try:
                _hang_amid_a_change(server, hanging)
                began = time.monotonic()
                wait_for(all_of.are_served, BACK_WITHIN)
                print(f"the others wrote again after {time.monotonic() - began:.1f} s")
            finally:
                os.kill(hanging.process.pid, signal.SIGCONT)
                over.set()
            for future in living:
                with suppress(Exception):  # the time limit of the client
                    future.result()


def _hang_amid_a_change(server: Node, daemon: Daemon) -> None:
    """Stops the daemon while it holds the lock that only one writer has."""
    held = (
        "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND objsubid = 1"
        " AND mode = 'ExclusiveLock' AND granted"
    )
    for _ in range(200):
        os.kill(daemon.process.pid, signal.SIGSTOP)
        time.sleep(0.05)
        if server.sql(held) != "0":
            return
        os.kill(daemon.process.pid, signal.SIGCONT)
        time.sleep(random.uniform(0, 0.05))
    raise AssertionError("the daemon never held the lock")


# --- a start without a server ---


def test_a_daemon_that_starts_before_the_server_waits_for_it(usersctl: Command) -> None:
    with one_server() as server, ExitStack() as stack, ThreadPoolExecutor(1) as pool:
        usersctl.env["USERS_DATABASE"] = conninfo(server)
        server.kill()

        def start_late() -> None:
            wait_for(lambda: any(b'"waiting"' in log.read_bytes() for log in usersctl.folder.glob("*.log")))
            server.start(stack)

        started = pool.submit(start_late)
        with serving(usersctl) as daemon:
            started.result()
            assert len(daemon.events("waiting")) == 1
            assert daemon.client().get("/ready").status == 200
