"""SIGKILL of the daemon amid sending events, with a receiver that refuses some: none is lost, each in order, with one id."""

import random
import signal
import time
from collections import Counter, defaultdict

import pytest
from support.commands import Command
from support.daemons import serving, wait_for
from support.databases import opened
from support.faults import LONG
from support.receivers import Listening, listening, table

KILLS, USERS, CHANGES = (30, 60, 5) if LONG else (4, 15, 3)


def waiting(usersctl: Command) -> int:
    with opened(usersctl.database) as database:
        return int(database.execute("SELECT count(*) FROM outbox WHERE state = 'waiting'").fetchone()[0])


def release(usersctl: Command) -> None:
    """Moves the clock, so that every event that was refused is due again, and the receiver is not left alone."""
    with opened(usersctl.database) as database:
        database.execute("UPDATE outbox SET due_at = created_at WHERE state = 'waiting' AND due_at < '9999'")
        database.execute("DELETE FROM webhooks")


def change_all(usersctl: Command, change: int) -> None:
    rows = "".join(f"u{number}@example.com,Name {change}\n" for number in range(USERS))
    usersctl.ok("import", "-", "--on-conflict", "update", "--format", "csv", stdin="email,name\n" + rows)


@pytest.mark.slow
def test_kills_lose_no_event_and_each_repeats_one_at_most(usersctl: Command) -> None:
    with listening() as (receiver, port):
        usersctl.configure("[passwordHashing]\nrounds = 10\n" + table(port))
        for change in range(CHANGES):
            change_all(usersctl, change)
        total = waiting(usersctl)
        assert total == USERS * CHANGES
        receiver.delay = 0.01
        receiver.answers = [random.choice([204, 204, 204, 500]) for _ in range(total)]
        for _ in range(KILLS):
            with serving(usersctl) as daemon:
                began = len(receiver.asked)
                wait_for(lambda: len(receiver.asked) > began or not waiting(usersctl))  # noqa: B023
                time.sleep(random.uniform(0, 0.2))
                daemon.process.send_signal(signal.SIGKILL)
                daemon.process.wait(10)
            release(usersctl)
        receiver.answers = []
        with serving(usersctl):
            wait_for(lambda: not waiting(usersctl), 60)
    check(receiver, total)


def check(receiver: Listening, total: int) -> None:
    taken = Counter(event.id for event in receiver.taken)
    assert len(taken) == total
    assert taken.total() - total <= KILLS
    by_user: dict[int | None, list[str]] = defaultdict(list)
    for event in receiver.taken:
        name = event.payload["data"]["user"]["name"]
        if name not in by_user[event.user][-1:]:  # the same again, after a kill
            by_user[event.user].append(name)
    assert len(by_user) == USERS
    assert all(names == [f"Name {change}" for change in range(CHANGES)] for names in by_user.values())
