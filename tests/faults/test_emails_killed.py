"""SIGKILL of the daemon at random moments of registrations, with a mail server that comes and goes.

Every account that was answered 200 gets its letter, and each kill costs one duplicate at most. The short version is part
of every run; `USERSCTL_LONG=1 pytest tests/faults` makes 100 registrations and 30 kills.
"""

import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from support.commands import PASSWORD, Command
from support.daemons import Daemon, free_port, serving, wait_for
from support.databases import opened
from support.faults import LONG
from support.postbox import Postbox, smtp_server
from support.web import Client

KILLS, REGISTRATIONS = (30, 100) if LONG else (4, 16)
TIME_LIMIT = 600 if LONG else 60


class Crowd:
    """A client that registers addresses, and repeats each request until it is answered."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.answered: list[str] = []
        self.stopping = threading.Event()
        self.threads = [threading.Thread(target=self._register, args=(share,)) for share in range(2)]

    def _register(self, share: int) -> None:
        for number in range(share, REGISTRATIONS, 2):
            email = f"u{number}@example.com"
            body = {"email": email, "name": "U", "password": PASSWORD}
            while not self.stopping.is_set():
                try:
                    reply = Client(self.port).post("/api/users/register", body)
                except (OSError, ValueError):
                    time.sleep(0.05)
                    continue
                if reply.status == 200:
                    self.answered.append(email)
                if reply.status in (200, 400):  # 400: it was made, and the answer was lost with the daemon
                    break
                time.sleep(0.05)

    @property
    def done(self) -> bool:
        return not any(thread.is_alive() for thread in self.threads)


@contextmanager
def flapping(box: Postbox) -> Iterator[None]:
    """A mail server that is slow, refuses for a while and accepts again, and never loses an email silently."""
    stopping = threading.Event()

    def flap() -> None:
        while not stopping.wait(random.uniform(0.05, 0.3)):
            box.answers.clear()
            box.answers.update(random.choice([{}, {}, {"RCPT": "450 later"}, {"MAIL": "421 busy"}]))
        box.answers.clear()

    thread = threading.Thread(target=flap)
    thread.start()
    try:
        yield
    finally:
        stopping.set()
        thread.join(5)


def release(usersctl: Command) -> None:
    """Moves the clock by a quarter of an hour, so that every email that was refused is due again."""
    with opened(usersctl.database) as database:
        database.execute("UPDATE outbox SET due_at = created_at WHERE state = 'waiting'")


def waiting(usersctl: Command) -> int:
    with opened(usersctl.database) as database:
        return int(database.execute("SELECT count(*) FROM outbox WHERE state = 'waiting'").fetchone()[0])


def kill(daemon: Daemon) -> None:
    daemon.process.send_signal(signal.SIGKILL)
    assert daemon.process.wait(10) == -signal.SIGKILL


@contextmanager
def sending(usersctl: Command, box: Postbox) -> Iterator[tuple[Postbox, Daemon]]:
    """A daemon amid an email, and the slow mail server that it is sent to."""
    usersctl.add("ada")
    with smtp_server(box):
        usersctl.configure(f'[mailer]\nhost = "127.0.0.1"\nport = {box.port}\n')
        with serving(usersctl) as daemon:
            body = {"email": "ada@example.com"}
            assert daemon.client().post("/api/users/password/forgot", body).status == 200
            wait_for(lambda: box.at_once)
            yield box, daemon


@pytest.fixture
def killed_while_sending(usersctl: Command) -> Iterator[Postbox]:
    """The postbox of a mail server that was amid an email of a daemon when the daemon was killed."""
    with sending(usersctl, Postbox(delay=60)) as (box, daemon):
        kill(daemon)
        box.delay = 0
        yield box


@pytest.mark.slow
def test_the_next_daemon_sends_the_email_of_a_killed_one_within_seconds(
    usersctl: Command, killed_while_sending: Postbox
) -> None:
    with serving(usersctl) as daemon:
        wait_for(lambda: daemon.events("email"), 10)
    assert [line["state"] for line in daemon.events("email")] == ["sent"]
    assert len(killed_while_sending.received) == 1


def test_retry_sends_the_email_of_a_killed_daemon_at_once(
    usersctl: Command, killed_while_sending: Postbox
) -> None:
    assert usersctl.ok("mail", "retry").stdout == "Email 1 to ada@example.com: sent\n"
    assert len(killed_while_sending.received) == 1
    assert usersctl.ok("mail", "retry").stdout == "No email waits; nothing to do\n"
    (listed,) = usersctl.ok("mail", "list", "--json").json
    assert (listed["state"], listed["due_at"]) == ("sent", None)


@pytest.mark.slow
def test_retry_waits_for_the_email_that_a_daemon_is_sending(usersctl: Command) -> None:
    with sending(usersctl, Postbox(delay=2)) as (box, _):
        assert usersctl.ok("mail", "retry").stdout == "Email 1 to ada@example.com: sent\n"
    assert len(box.received) == 1


@pytest.mark.slow
def test_every_answered_registration_is_emailed_and_a_kill_costs_at_most_one_duplicate(
    usersctl: Command,
) -> None:
    until = time.monotonic() + TIME_LIMIT
    port, kills = free_port(), 0
    with smtp_server(Postbox(delay=0.03)) as box:
        usersctl.configure(
            f'[auth]\nwhitelist = ["/register"]\n[passwordHashing]\nrounds = 10\n[limits]\nenabled = false\n'
            f'[mailer]\nhost = "127.0.0.1"\nport = {box.port}\n[server]\nport = {port}\n'
        )
        crowd = Crowd(port)
        with flapping(box):
            for thread in crowd.threads:
                thread.start()
            try:
                while kills < KILLS:
                    assert time.monotonic() < until
                    with serving(usersctl, port=port) as daemon:
                        time.sleep(random.uniform(0.1, 0.8))
                        kill(daemon)
                        kills += 1
                    release(usersctl)
                with serving(usersctl, port=port):
                    wait_for(lambda: crowd.done, until - time.monotonic())
            finally:
                crowd.stopping.set()
                for thread in crowd.threads:
                    thread.join(30)
        release(usersctl)
        with serving(usersctl, port=port):
            wait_for(lambda: waiting(usersctl) == 0, 30)
    letters = Counter(email.recipients[0] for email in box.received)
    assert len(crowd.answered) >= REGISTRATIONS - 2 * kills
    assert set(crowd.answered) <= set(letters)
    assert sum(letters.values()) - len(letters) <= kills
    ids = {email.id: email.recipients[0] for email in box.received}
    assert len(ids) == len(letters)  # a duplicate has the Message-ID of its twin
