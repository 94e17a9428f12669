"""Notes of use in real daemons: amid SIGKILL, at the stop, in two processes, and beside commands that revoke.

One kill in every run, 20 by `USERSCTL_LONG=1 pytest tests/faults`.
"""

import os
import random
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

import pytest
from support import databases
from support.accounts import open_session, stored_sessions
from support.commands import OPERATOR, PASSWORD, Command, create_user
from support.daemons import Daemon, serving, wait_for
from support.databases import add_database, held, is_sound
from support.faults import LONG, ME
from support.web import Client

from usersctl.clock import moment, stamp
from usersctl.config import Settings
from usersctl.models import Session
from usersctl.service import Service, build
from usersctl.session_uses import SessionUses

KILLS = 20 if LONG else 1
SESSIONS = 60
IDLE = timedelta(minutes=1440)
MINUTE = "[auth]\ntokenExpiration = 1\n"
LATEST = 1.0  # seconds that a busy machine may write later than it waits
ADA = "ada@example.com"

# The command with a clock that the file CLOCK moves, and with notes that wait a tenth of a second.
CLOCKED = """
import os, runpy
from datetime import datetime, timedelta, UTC
from pathlib import Path
from usersctl import clock
def moved():
    return datetime.now(UTC) + timedelta(seconds=float(Path(os.environ["CLOCK"]).read_text()))
clock.utc_now = moved  # before others import it
from usersctl import session_uses
session_uses.SessionUses.wait = 0.1
runpy.run_module("usersctl", run_name="__main__", alter_sys=True)
"""


@contextmanager
def opened(usersctl: Command) -> Iterator[Service]:
    settings = Settings(database=usersctl.database, base_url="http://127.0.0.1", rounds=4)
    service = build(settings)
    yield service
    service.close()


def sign_in(usersctl: Command, count: int = 1, *, remember: bool = False) -> list[str]:
    """Tokens of sessions that were last used two minutes ago."""
    add_database(usersctl.database)
    with opened(usersctl) as service:
        user = create_user(service, ADA, "Ada", PASSWORD, by=OPERATOR)
        tokens = [open_session(service, user, remember=remember).token for _ in range(count)]
    make_stale(usersctl)
    return tokens


def make_stale(usersctl: Command) -> None:
    used = datetime.now(UTC) - timedelta(minutes=2)
    with databases.opened(usersctl.database) as database:
        times = stamp(used), stamp(used + IDLE)
        database.execute("UPDATE auth_tokens SET last_used_at = ?, expires_at = ?", times)


def stored(usersctl: Command) -> list[Session]:
    with opened(usersctl) as service:
        return stored_sessions(service)


def signed_in(daemon: Daemon, token: str) -> bool:
    reply = Client(daemon.port, {"auth_token": token}).get(ME)
    assert reply.status in {200, 401}
    return reply.status == 200


class Use(NamedTuple):
    began: datetime
    ended: datetime


@pytest.mark.slow
def test_a_kill_loses_the_notes_of_the_last_seconds_only(usersctl: Command) -> None:
    tokens = sign_in(usersctl, SESSIONS)
    lost = 0
    for kill in range(KILLS + 4):
        if kill >= KILLS and lost:  # a kill right after a note was written proves little
            break
        make_stale(usersctl)
        before = stored(usersctl)[0]
        uses = []
        with serving(usersctl) as daemon:
            pause = random.uniform(2.5, 5) / SESSIONS
            for token in tokens:
                time.sleep(pause)
                began = datetime.now(UTC)
                assert signed_in(daemon, token)
                uses.append(Use(began, datetime.now(UTC)))
            daemon.process.send_signal(signal.SIGKILL)
            killed = datetime.now(UTC)
            assert daemon.process.wait(10) == -signal.SIGKILL
        noted = is_as_used(stored(usersctl), before, uses, killed)
        assert noted > 0, "the notes before are written"
        lost += SESSIONS - noted
        with serving(usersctl) as daemon:
            assert all(signed_in(daemon, token) for token in tokens)
    assert lost, "a kill came amid the notes"
    assert is_sound(usersctl.database)


def is_as_used(sessions: list[Session], before: Session, uses: list[Use], killed: datetime) -> int:
    """Returns how many uses are stored. One that is not was a moment before the kill."""
    noted = 0
    for session, use in zip(sessions, uses, strict=True):
        assert session.last_used_at is not None
        if session.last_used_at == before.last_used_at:
            assert session.expires_at == before.expires_at
            assert killed - use.began < timedelta(seconds=SessionUses.wait + LATEST), "its note was lost"
            continue
        noted += 1
        used = moment(session.last_used_at)
        assert stamp(use.began) <= session.last_used_at <= stamp(use.ended)
        assert session.expires_at == stamp(used + IDLE)
    return noted


@pytest.mark.slow
def test_a_use_is_in_the_list_of_sessions_within_seconds_and_a_stop_writes_it(usersctl: Command) -> None:
    (token,) = sign_in(usersctl)
    stale = stored(usersctl)[0].last_used_at

    def shown_by_the_command() -> bool:
        (session,) = usersctl.ok("token", "list", ADA, "--json").json
        return bool(session["last_used_at"] != stale)

    with serving(usersctl) as daemon:
        client = Client(daemon.port, {"auth_token": token})
        assert client.get(ME).status == 200
        wait_for(shown_by_the_command, SessionUses.wait + 5)
        (session,) = client.get("/api/users/me/sessions").json["sessions"]
        assert session["last_used_at"] != stale
        make_stale(usersctl)
        stale = stored(usersctl)[0].last_used_at
        assert client.get(ME).status == 200
        assert stored(usersctl)[0].last_used_at == stale, "the note waits"
        assert daemon.stop() == 0
    assert stored(usersctl)[0].last_used_at != stale


@pytest.mark.slow
def test_a_stop_does_not_wait_long_for_a_database_that_another_process_holds(usersctl: Command) -> None:
    (token,) = sign_in(usersctl)
    with serving(usersctl) as daemon, held(usersctl.database):
        assert signed_in(daemon, token)
        began = time.monotonic()
        assert daemon.stop() == 0
        assert time.monotonic() - began < 6


@pytest.mark.slow
@pytest.mark.parametrize("words", [("token", "revoke", ADA), ("deactivate", ADA)], ids=lambda words: words[0])
def test_a_revocation_by_a_command_holds_while_a_note_waits_and_after_it(
    usersctl: Command, words: tuple[str, ...]
) -> None:
    (token,) = sign_in(usersctl)
    with serving(usersctl) as daemon:
        assert signed_in(daemon, token)
        usersctl.ok(*words)
        assert not signed_in(daemon, token)
        time.sleep(SessionUses.wait + 0.5)
        assert not signed_in(daemon, token)
        assert stored(usersctl) == []


class MovedClock:
    """The clock of processes that run CLOCKED."""

    def __init__(self, usersctl: Command) -> None:
        (usersctl.folder / "clocked.py").write_text(CLOCKED)
        self.file, self.next = usersctl.folder / "offset", usersctl.folder / "next"
        paths = os.pathsep.join(filter(None, (str(usersctl.folder), os.environ.get("PYTHONPATH"))))
        self.env = {"PYTHONPATH": paths, "CLOCK": str(self.file)}
        self.seconds = 0
        self.move(0)

    def move(self, seconds: int) -> None:
        self.seconds += seconds
        self.next.write_text(str(self.seconds))
        self.next.rename(self.file)

    def since(self, text: str | None) -> float:
        """Seconds since this moment."""
        assert text is not None
        return (datetime.now(UTC) - moment(text)).total_seconds() + self.seconds


@pytest.mark.slow
@pytest.mark.parametrize("processes", [1, 2])
def test_a_session_of_a_minute_lives_as_long_as_it_is_used_and_no_longer(
    usersctl: Command, processes: int
) -> None:
    """In each process, beside a cleanup by a command."""
    (token,) = sign_in(usersctl)
    usersctl.configure(f"{MINUTE}[server]\nprocesses = {processes}\n")
    clock = MovedClock(usersctl)

    def noted() -> bool:
        return clock.since(stored(usersctl)[0].last_used_at) < 30

    with serving(usersctl, module=("clocked", "serve"), env=clock.env) as daemon:
        for turn in range(10):
            assert signed_in(daemon, token), f"after {clock.seconds} seconds"
            wait_for(noted, 3)  # the clock moves faster than the machine: a note would wait two seconds
            clock.move(20)
            if turn == 5:
                cleanup = f"{sys.executable} -m clocked cleanup-tokens"
                assert usersctl.shell(cleanup, **clock.env).code == 0
        clock.move(61)
        assert not signed_in(daemon, token)
