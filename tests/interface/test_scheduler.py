"""The scheduler: each slot runs once, whatever the clock does, and in one of several processes."""

import io
import json
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from support.accounts import stored_sessions
from support.commands import OPERATOR, PASSWORD, Command, create_user
from support.daemons import serving, wait_for
from support.fakes import FakeClock

from usersctl.errors import StoreUnusable
from usersctl.service import Service
from usersd.background import scheduler
from usersd.background.leader import scheduled_cleanup
from usersd.background.scheduler import LONGEST_SLEEP, Scheduler
from usersd.log import Log


class CountingClock(FakeClock):
    looks = 0

    def __call__(self) -> datetime:
        self.looks += 1
        return super().__call__()


class Run:
    """A scheduler driven by hand: it sleeps in the time of a fake clock."""

    def __init__(self, line: str, start: datetime) -> None:
        self.clock = CountingClock(start)
        self.slots: list[datetime] = []
        self.stream = io.StringIO()
        log = Log(self.stream, as_json=True, now=self.clock)
        self.scheduler = Scheduler(line, self.slots.append, now=self.clock, log=log)
        self.looks = 0

    def live(self, **span: Any) -> None:
        until = self.clock.now + timedelta(**span)
        while self.clock.now < until:
            sleep = self.scheduler.tick()
            assert sleep > 0
            self.looks += 1
            self.clock.now += timedelta(seconds=sleep)

    @property
    def times(self) -> list[str]:
        return [slot.astimezone().strftime("%m-%d %H:%M") for slot in self.slots]


@pytest.fixture
def local(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], None]]:
    """Sets the host's time zone for one test."""

    def set_zone(name: str) -> None:
        monkeypatch.setenv("TZ", name)
        time.tzset()

    set_zone("UTC")
    yield set_zone
    monkeypatch.undo()
    time.tzset()


START = datetime(2026, 11, 20, 1, 0, tzinfo=UTC)

# --- slots ---


def test_each_slot_runs_once_and_on_time(local: Callable[[str], None]) -> None:
    local("UTC")
    run = Run("0 2 * * *", START)
    run.live(days=3)
    assert run.times == ["11-20 02:00", "11-21 02:00", "11-22 02:00"]
    run = Run("*/15 * * * *", START)
    run.live(hours=1, minutes=1)
    assert run.times == ["11-20 01:15", "11-20 01:30", "11-20 01:45", "11-20 02:00"]


def test_a_slot_runs_when_it_is_due_and_not_before(local: Callable[[str], None]) -> None:
    local("UTC")
    run = Run("0 2 * * *", START)
    run.clock.now = START + timedelta(minutes=59, seconds=59.9)
    run.scheduler.tick()
    assert run.slots == []
    run.clock.move(seconds=0.1)
    run.scheduler.tick()
    run.scheduler.tick()
    assert run.slots == [START + timedelta(hours=1)]


def test_the_scheduler_never_spins(local: Callable[[str], None]) -> None:
    local("UTC")
    run = Run("0 2 * * *", START)
    run.live(days=2)
    assert run.looks <= 2 * 86400 / LONGEST_SLEEP + 2 * 2
    run = Run("* * * * *", START)
    run.live(hours=2)
    assert run.looks <= 2 * 3600 / LONGEST_SLEEP + 120 * 2


def test_a_clock_that_stands_still_just_before_a_slot_does_not_make_it_spin(
    local: Callable[[str], None],
) -> None:
    local("UTC")
    clock = CountingClock(START + timedelta(minutes=59, seconds=59, milliseconds=999))
    thread = Scheduler("0 2 * * *", lambda _slot: None, now=clock, log=Log(io.StringIO(), as_json=True))
    thread.start()
    time.sleep(0.5)
    thread.end()
    thread.join(2)
    assert 2 <= clock.looks <= 50


# --- clocks ---


# A clock without a battery may say 2106, when 32 bits of seconds are full.
IN_2106 = datetime(2106, 2, 7, 6, 28, 15, tzinfo=UTC) - START


@pytest.mark.parametrize("jump", [timedelta(hours=5), timedelta(days=3), timedelta(days=400), IN_2106])
def test_a_clock_that_jumps_ahead_runs_the_skipped_slots_once(
    local: Callable[[str], None], jump: timedelta
) -> None:
    local("UTC")
    run = Run("0 2 * * *", START)
    run.clock.now += jump
    run.scheduler.tick()
    run.scheduler.tick()
    assert len(run.slots) == 1
    run.live(days=1)
    assert len(run.slots) == 2


@pytest.mark.parametrize("back", [timedelta(minutes=1), timedelta(hours=1), timedelta(hours=23)])
def test_a_clock_that_is_set_back_runs_no_slot_twice(local: Callable[[str], None], back: timedelta) -> None:
    local("UTC")
    run = Run("0 2 * * *", START)
    run.live(hours=1, minutes=5)
    assert len(run.slots) == 1
    run.clock.now -= back
    run.live(seconds=back.total_seconds() + 600)
    assert len(run.slots) == 1
    run.live(days=1)
    assert len(run.slots) == 2


@pytest.mark.parametrize("ahead", [timedelta(days=2000), IN_2106])
def test_a_clock_that_was_years_ahead_at_boot_delays_no_slot(
    local: Callable[[str], None], ahead: timedelta
) -> None:
    local("UTC")
    run = Run("0 2 * * *", START + ahead)
    run.scheduler.tick()
    run.clock.now = START
    run.live(days=1)
    assert run.times == ["11-20 02:00"]


@pytest.mark.parametrize(
    ("line", "start", "days"),
    [
        ("30 2 * * *", datetime(2026, 3, 28, 12, tzinfo=UTC), 3),  # 02:30 is left out on the 29th
        ("30 2 * * *", datetime(2026, 10, 24, 12, tzinfo=UTC), 3),  # 02:30 comes twice on the 25th
        ("0 2 * * *", datetime(2026, 10, 24, 12, tzinfo=UTC), 3),
        ("0 3 * * *", datetime(2026, 3, 28, 12, tzinfo=UTC), 3),
    ],
)
def test_a_daily_slot_runs_once_a_day_while_clocks_change_for_summer(
    local: Callable[[str], None], line: str, start: datetime, days: int
) -> None:
    local("Europe/Berlin")
    run = Run(line, start)
    run.live(days=days)
    dates = [slot.astimezone().date() for slot in run.slots]
    assert len(dates) == len(set(dates)) == days


# --- failures ---


class Failing:
    """A task that fails a given number of times, in two ways by turns."""

    def __init__(self, times: int) -> None:
        self.left = times
        self.calls = 0

    def __call__(self, _slot: datetime) -> None:
        self.calls += 1
        self.left -= 1
        if self.left >= 0:
            raise StoreUnusable("the disk is full") if self.left % 2 else ZeroDivisionError("a bug")


def test_a_failure_is_logged_and_does_not_end_the_thread(
    local: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    local("UTC")
    monkeypatch.setattr(scheduler, "LONGEST_SLEEP", 0.01)
    clock, stream, task = FakeClock(START), io.StringIO(), Failing(2)
    thread = Scheduler("* * * * *", task, now=clock, log=Log(stream, as_json=True, now=clock))
    thread.start()
    try:
        for n in range(1, 5):
            clock.move(minutes=1)
            wait_for(lambda n=n: task.calls == n, 5)
    finally:
        thread.end()
        thread.join(2)
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert [line["event"] for line in lines] == ["schedule", "error"]
    assert lines[0]["failed"] == "the disk is full"
    assert "ZeroDivisionError: a bug" in lines[1]["trace"]


def test_a_slot_without_the_database_is_tried_again_until_it_is_done(local: Callable[[str], None]) -> None:
    local("UTC")
    clock, slots, stream = FakeClock(START), [], io.StringIO()

    def task(slot: datetime) -> None:
        slots.append(slot)
        if len(slots) < 4:
            raise StoreUnusable("the server is away")

    thread = Scheduler("0 * * * *", task, now=clock, log=Log(stream, as_json=True, now=clock))
    tried = []
    while clock() < START + timedelta(hours=3, minutes=1):
        before = len(slots)
        clock.move(seconds=thread.tick())
        if len(slots) > before:
            tried.append((f"{clock():%H:%M}", f"{slots[-1]:%H:%M}"))
    assert tried == [
        ("02:00", "02:00"), ("02:05", "02:00"), ("02:10", "02:00"), ("02:15", "02:00"), ("03:00", "03:00"), ("04:00", "04:00"),
    ]  # fmt: skip
    assert len(stream.getvalue().splitlines()) == 3


def test_a_slot_that_failed_is_left_when_the_next_one_is_due(local: Callable[[str], None]) -> None:
    local("UTC")
    clock, slots = FakeClock(START), []

    def task(slot: datetime) -> None:
        slots.append(f"{slot:%H:%M}")
        raise StoreUnusable("the server is away")

    thread = Scheduler("*/2 * * * *", task, now=clock, log=Log(io.StringIO()))
    while clock() < START + timedelta(minutes=7):
        clock.move(seconds=thread.tick())
    assert slots == ["01:02", "01:04", "01:06"]


def test_the_scheduler_stops_at_once_while_it_sleeps() -> None:
    thread = Scheduler("0 2 * * *", lambda _slot: None, now=FakeClock(), log=Log(io.StringIO()))
    thread.start()
    began = time.monotonic()
    thread.end()
    thread.join(2)
    assert time.monotonic() - began < 1


# --- in the daemon ---


def test_the_schedule_cleans_as_the_endpoint_and_the_command_do(
    make_service: Callable[..., Service], clock: FakeClock
) -> None:
    service = make_service(cleanup_schedule="0 * * * *")
    ada = create_user(service, "ada@example.com", "Ada", PASSWORD, by=OPERATOR)
    service.sessions.login(ada.email, PASSWORD)
    service.sessions.create_api_token(ada.id, name="ci", lifetime=None, by=OPERATOR)
    stream = io.StringIO()
    log = Log(stream, as_json=True, now=clock)
    made = scheduled_cleanup(service, log=log, since=clock())
    assert made is not None
    clock.move(days=2)
    made.tick()
    (logged,) = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert (logged["event"], logged["removed"]) == ("cleanup-tokens", 1)
    assert [session.kind for session in stored_sessions(service)] == ["api"]
    with service.store.read() as tx:
        row = list(tx.audit_rows())[-1]
    assert (row.action, row.actor, row.origin) == ("cleanup-tokens", "system", "schedule")


@pytest.mark.parametrize("value", ["false", "null"])
def test_false_and_null_switch_it_off_and_leave_the_task_runnable(usersctl: Command, value: str) -> None:
    config = usersctl.folder / "users.json"
    config.write_text('{"passwordHashing": {"rounds": 10}, "tokenCleanupSchedule": %s}' % value)  # noqa: UP031
    with serving(usersctl, "--config", str(config)) as daemon:
        listed = daemon.client().get("/_tasks/").json
        assert (listed["scheduledTasks"], list(listed["tasks"])) == ([], ["users:cleanup-tokens"])
        assert daemon.client().post("/_tasks/users:cleanup-tokens").json["result"] == "success"
    assert usersctl.ok("--json", "--config", config, "cleanup-tokens").json["result"] == "success"


# The daemon with a clock just before the next minute.
AHEAD = """
from datetime import timedelta
from usersctl import clock

real = clock.utc_now
now = real()
ahead = timedelta(seconds=54 - now.second, microseconds=-now.microsecond)
clock.utc_now = lambda: real() + ahead
from usersctl.__main__ import main

main()
"""


@pytest.mark.slow
def test_of_several_processes_one_runs_the_schedule(usersctl: Command) -> None:
    usersctl.configure('tokenCleanupSchedule = "* * * * *"\n[server]\nprocesses = 2\n')
    (usersctl.folder / "ahead.py").write_text(AHEAD)
    (ada,) = usersctl.add("ada")
    with usersctl.service() as service:
        for _ in range(3):
            service.sessions.create_api_token(ada.id, name="ci", lifetime=timedelta(seconds=-1), by=OPERATOR)
    with serving(usersctl, module=("ahead", "serve"), env={"PYTHONPATH": str(usersctl.folder)}) as daemon:
        wait_for(lambda: daemon.events("cleanup-tokens"), 20)
        time.sleep(1)
        (done,) = daemon.events("cleanup-tokens")
        assert done["removed"] == 3
        children = Path(f"/proc/{daemon.process.pid}/task/{daemon.process.pid}/children").read_text().split()
        assert len(children) == 2
        assert daemon.stop() == 0
    with usersctl.service() as service, service.store.read() as tx:
        assert [row.action for row in tx.audit_rows()].count("cleanup-tokens") == 1
