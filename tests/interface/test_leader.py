"""The leader: emails and schedule run in one process per database, and another takes over when it ends."""

import io
import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from support.accounts import author, open_session
from support.commands import Command
from support.daemons import serving, wait_for
from support.fakes import FakeClock

from usersctl.clock import stamp
from usersctl.config.sources import Loaded, Origin
from usersctl.errors import StoreUnusable
from usersctl.models import User
from usersctl.service import Service
from usersctl.store.locks import LEADER, Locks
from usersd.background import leader, mailer, scheduler
from usersd.background.leader import Leader
from usersd.background.mailer import Mailer
from usersd.log import Log
from usersd.start import hosted


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leader, "LOCK_EVERY", 0.01)
    monkeypatch.setattr(scheduler, "LONGEST_SLEEP", 0.01)


class Two:
    """Two candidates on one database: each opens the lock file for itself, as processes do."""

    def __init__(self, service: Service) -> None:
        self.service = service
        self.stream = io.StringIO()
        log = Log(self.stream, as_json=True, now=service.now)
        self.first, self.second = Leader(service, log=log), Leader(service, log=log)

    def events(self, event: str) -> list[dict[str, Any]]:
        lines = [json.loads(line) for line in self.stream.getvalue().splitlines()]
        return [line for line in lines if line["event"] == event]

    def start_one_after_the_other(self) -> None:
        self.first.start()
        wait_for(lambda: self.events("leader"))
        self.second.start()


@pytest.fixture
def two(make_service: Callable[..., Service]) -> Iterator[Two]:
    pair = Two(make_service(cleanup_schedule="* * * * *"))
    with ExitStack() as stack:
        stack.callback(pair.first.stop)
        stack.callback(pair.second.stop)
        yield pair


def test_one_process_leads_and_another_takes_over_when_it_stops(two: Two, clock: FakeClock) -> None:
    two.start_one_after_the_other()
    clock.move(minutes=1)
    wait_for(lambda: two.events("cleanup-tokens"))
    assert len(two.events("leader")) == 1
    assert two.second.parts() == {
        "worker": True,
        "scheduler": True,
    }  # it is not the leader, so it need not work
    two.first.stop()
    wait_for(lambda: len(two.events("leader")) == 2)
    clock.move(minutes=1)
    wait_for(lambda: len(two.events("cleanup-tokens")) == 2)
    slots = [line["slot"] for line in two.events("cleanup-tokens")]
    assert slots == sorted(set(slots))


def test_the_leader_tells_which_of_its_parts_have_ended(two: Two) -> None:
    leads = two.first
    leads.start()
    sends, schedules = wait_for(lambda: leads._jobs)
    assert leads.parts() == {"worker": True, "scheduler": True}
    schedules.end()
    schedules.join(10)
    assert leads.parts() == {"worker": True, "scheduler": False}
    sends.end()
    sends.join(10)
    assert leads.parts() == {"worker": False, "scheduler": False}
    leads.stop()
    assert not leads.is_alive()
    assert leads.parts() == {"worker": False, "scheduler": False}


def test_a_leader_that_stops_lets_no_other_lead_while_it_still_sends(
    two: Two, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leader, "STOPPING", 30.0)
    sends, sent = threading.Event(), threading.Event()

    def work(_: object) -> None:
        sends.set()
        sent.wait(20)

    monkeypatch.setattr(type(two.service.outbox), "work", work)
    two.first.start()
    assert sends.wait(20)
    two.first.end()
    with two.service.store.locks() as locks:
        time.sleep(0.2)
        assert not locks.take(LEADER)
        sent.set()
        two.first.stop()
        assert locks.take(LEADER)


def test_a_slot_that_came_due_between_two_leaders_is_run_once(two: Two, clock: FakeClock) -> None:
    two.start_one_after_the_other()
    clock.move(minutes=1)
    wait_for(lambda: two.events("cleanup-tokens"))
    before: Callable[[Leader, Locks, datetime], None] = Leader._lead

    def late(self: Leader, locks: Locks, since: datetime) -> None:
        clock.move(minutes=1)  # the slot comes due after the lock is taken and before the clock is read
        before(self, locks, since)

    two.second._lead = late.__get__(two.second)  # type: ignore[method-assign]
    two.first.stop()
    wait_for(lambda: len(two.events("cleanup-tokens")) >= 2)
    two.second.stop()
    slots = [line["slot"] for line in two.events("cleanup-tokens")]
    assert slots == sorted(set(slots))
    assert len(slots) == 2


def test_a_slot_that_was_run_before_the_lock_changed_hands_is_not_run_again(
    make_service: Callable[..., Service], clock: FakeClock
) -> None:
    service = make_service(cleanup_schedule="* * * * *")
    stream = io.StringIO()
    log = Log(stream, as_json=True, now=clock)
    began = clock()
    for _ in range(2):  # the second waited for the lock since before the first ran the slot
        job = leader.scheduled_cleanup(service, log=log, since=began)
        assert job is not None
        clock.move(seconds=50)
        job.tick()
    assert stream.getvalue().count("cleanup-tokens") == 1
    with service.store.read() as tx:
        assert [row.action for row in tx.audit_rows()].count("cleanup-tokens") == 1


@pytest.mark.parametrize(("minutes", "is_run"), [(7, False), (12, True), (20, False)])
def test_a_slot_that_a_killed_leader_left_undone_is_run_by_the_next_one_for_ten_minutes(
    make_service: Callable[..., Service], clock: FakeClock, minutes: int, is_run: bool
) -> None:
    service = make_service(cleanup_schedule="30 * * * *")
    service.cleaner.run(by=scheduler.ACTOR, slot=clock())
    clock.move(minutes=minutes)  # the slot of 8:30 comes due after less than eight
    stream = io.StringIO()
    job = leader.scheduled_cleanup(service, log=Log(stream, as_json=True, now=clock), since=clock())
    assert job is not None
    job.tick()
    assert stream.getvalue().count("cleanup-tokens") == is_run


def test_an_error_that_nobody_foresaw_is_logged_and_does_not_end_the_leader(
    two: Two, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    leads, failures = Leader._lead, iter([RuntimeError("odd"), RuntimeError("odd")])

    def fails(self: Leader, locks: Locks, since: datetime) -> None:
        for failure in failures:
            raise failure
        leads(self, locks, since)

    monkeypatch.setattr(Leader, "_lead", fails)
    two.first.start()
    wait_for(lambda: two.events("leader"))
    clock.move(minutes=1)
    wait_for(lambda: two.events("cleanup-tokens"))
    assert ["RuntimeError: odd" in line["trace"] for line in two.events("error")] == [True]


def test_trouble_that_lasts_is_logged_once_by_what_sends_emails(
    two: Two, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As while a server takes no more connections."""
    monkeypatch.setattr(mailer, "AFTER_AN_ERROR", 0.0)
    stream, answers = io.StringIO(), iter("aab-b")
    sender = Mailer(
        two.service.outbox, log=Log(stream, as_json=True, now=two.service.now), look_every=0.0, name="email"
    )

    def work() -> None:
        answer = next(answers, "")
        if not answer:
            sender.end()
        elif answer != "-":
            raise StoreUnusable(answer)

    monkeypatch.setattr(type(two.service.outbox), "work", lambda _outbox: work())
    sender.run()
    assert [json.loads(line)["waiting"] for line in stream.getvalue().splitlines()] == ["a", "b", "b"]


def test_the_leader_deletes_accounts_whose_time_to_undo_is_over(
    two: Two, clock: FakeClock, add: Callable[..., User], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leader, "TIDY_EVERY", 0.01)
    ada = add("ada")
    with two.service.store.write() as tx:
        tx.change_user(ada.id, active=False, delete_at=stamp(clock() + timedelta(hours=1)))
    two.start_one_after_the_other()

    def exists() -> bool:
        with two.service.store.glance() as tx:
            return tx.user(ada.id) is not None

    assert exists()
    clock.move(hours=1)
    wait_for(lambda: not exists())


@pytest.mark.slow
def test_the_leader_ends_claims_that_have_expired(
    two: Two, clock: FakeClock, add: Callable[..., User], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leader, "TIDY_EVERY", 0.01)
    opened = open_session(two.service, add("ada"), remember=True)
    two.service.accounts.update(opened.user.id, email="new@example.com", by=author(opened))
    two.start_one_after_the_other()
    clock.move(hours=25)

    def is_reported() -> bool:
        with two.service.store.read() as tx:
            return "claim-expired" in [row.action for row in tx.audit_rows()]

    wait_for(is_reported)


@pytest.mark.sqlite  # the lock beside a file
def test_the_lock_file_is_private_and_beside_the_database(two: Two) -> None:
    two.start_one_after_the_other()
    database = two.service.settings.database
    file = database.with_name(f"{database.name}.lock")
    assert file.stat().st_mode & 0o777 == 0o600


@pytest.mark.sqlite  # the lock beside a file
@pytest.mark.parametrize("is_there_already", [False, True])
def test_a_group_that_may_write_the_database_may_open_the_lock_whatever_the_umask_is(
    two: Two, is_there_already: bool
) -> None:
    database = two.service.settings.database
    database.chmod(0o660)
    file, before = database.with_name(f"{database.name}.lock"), os.umask(0o022)
    try:
        if is_there_already:
            file.touch(mode=0o640)
        with two.service.store.locks() as locks:
            assert locks.take(1)
    finally:
        os.umask(before)
    assert file.stat().st_mode & 0o777 == 0o660


def test_a_lock_that_cannot_be_opened_is_logged_once_and_makes_the_daemon_not_ready(
    two: Two, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused() -> Any:
        raise PermissionError(13, "Permission denied", "users.db.lock")

    monkeypatch.setattr(two.service.store, "locks", refused)
    two.first.start()
    wait_for(lambda: not two.first.parts()["worker"])
    wait_for(lambda: two.events("leader"))
    assert len(two.events("leader")) == 1
    assert "Permission denied" in two.events("leader")[0]["waiting"]
    monkeypatch.undo()
    wait_for(lambda: len(two.events("leader")) == 2)
    wait_for(lambda: two.first.parts()["worker"])


@pytest.mark.sqlite  # the lock beside a file
def test_a_link_in_the_place_of_the_lock_is_not_followed(two: Two, tmp_path: Path) -> None:
    database = two.service.settings.database
    (tmp_path / "precious").write_text("x")
    database.with_name(f"{database.name}.lock").symlink_to(tmp_path / "precious")
    two.first.start()
    wait_for(lambda: not two.first.parts()["worker"])
    assert (tmp_path / "precious").read_text() == "x"


def test_emails_end_while_the_last_requests_are_answered(service: Service) -> None:
    """Else the seconds of both would add up to more than a stop may take."""
    stream = io.StringIO()
    loaded = Loaded(service.settings, None, {"database": Origin("default", None)})
    with hosted(loaded, Log(stream, as_json=True)) as daemon:
        wait_for(lambda: '"leader"' in stream.getvalue())
        at_work = [each for each in threading.enumerate() if each.name == "leader"]
        assert len(at_work) == 1
        daemon.on_stop()
        wait_for(lambda: not at_work[0].is_alive(), 10)


# --- over real processes ---


@pytest.mark.slow
def test_a_daemon_takes_over_from_a_killed_one_and_each_email_is_sent_once(usersctl: Command) -> None:
    usersctl.configure("[passwordHashing]\nrounds = 10\n[server]\nprocesses = 2\n")
    usersctl.add("ada", "grace", "alan")
    mailbox = usersctl.folder / "mail"

    def ask(client: Any, name: str) -> None:
        assert client.post("/api/users/password/forgot", {"email": f"{name}@example.com"}).status == 200

    with serving(usersctl) as first, serving(usersctl) as second:
        wait_for(lambda: first.events("leader") + second.events("leader"))
        ask(first.client(), "ada")
        ask(second.client(), "grace")
        wait_for(lambda: len(first.events("email") + second.events("email")) == 2)
        at_work = first.events("leader") + second.events("leader")
        assert len(at_work) == 1  # of four processes
        os.kill(at_work[0]["process"], signal.SIGKILL)
        wait_for(lambda: len(first.events("leader") + second.events("leader")) == 2)
        ask(second.client(), "alan")
        wait_for(lambda: len(first.events("email") + second.events("email")) == 3)
        assert sorted(line["id"] for line in first.events("email") + second.events("email")) == [1, 2, 3]
        assert len(list(mailbox.glob("*.eml"))) == 3
        assert first.client().get("/ready").status == 200
        assert second.client().get("/ready").status == 200
