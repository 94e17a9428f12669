"""The leader: of all processes on one database, the one that holds a lock sends the emails and runs the schedule."""

import fcntl
import os
import threading
import time
from contextlib import suppress
from datetime import datetime

from usersctl.clock import stamp
from usersctl.errors import UsersError
from usersctl.models import SYSTEM
from usersctl.service import Service
from usersctl.store import lock_file
from usersd.background.mailer import Mailer
from usersd.background.scheduler import ACTOR, Scheduler
from usersd.log import Log

LOCK_EVERY = 0.5  # seconds between two attempts to take the lock
STOPPING = 2.0  # seconds for what is being sent; the next leader sends an unfinished one again
TIDY_EVERY = 20.0  # seconds: until the next look at the write-ahead log, claims and deletions


class Leader(threading.Thread):
    """A candidate in each process: waits for the lock on a file beside the database, then works until it is stopped.

    The kernel frees the lock of a process that dies, so another one takes over within a second. The file holds the
    schedule's last slot, so that the next leader does not run it again.
    """

    def __init__(self, service: Service, *, log: Log) -> None:
        super().__init__(name="leader", daemon=True)
        self._service = service
        self._log = log
        self._stopping = threading.Event()
        self._problem = ""  # why the lock file cannot be opened
        self._jobs: list[Mailer | Scheduler] = []

    def stop(self) -> None:
        self._stopping.set()
        if self.is_alive():
            self.join()

    def parts(self) -> dict[str, bool]:
        """Which parts work: false if this process should do the work and does not; true if another one leads."""
        is_well = self.is_alive() and not self._problem
        ended = {type(job) for job in self._jobs if not job.is_alive()}
        return {"worker": is_well and Mailer not in ended, "scheduler": is_well and Scheduler not in ended}

    def run(self) -> None:
        tried_at = self._service.now()
        while not self._stopping.is_set():
            try:
                handle = self._open()
                try:
                    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    self._work(handle, tried_at)
                    return
                finally:
                    os.close(handle)
            except BlockingIOError:  # another process is the leader
                tried_at, self._problem = self._service.now(), ""
            except OSError as error:
                if str(error) != self._problem:
                    self._problem = str(error)
                    self._log.event("leader", waiting=self._problem)
            self._stopping.wait(LOCK_EVERY)

    def _open(self) -> int:
        return lock_file.open_beside(self._service.store.path)

    def _work(self, handle: int, since: datetime) -> None:
        scheduler = scheduled_cleanup(self._service, log=self._log, handle=handle, since=since)
        jobs: list[Mailer | Scheduler] = [Mailer(self._service.outbox, log=self._log)]
        if (
            self._service.webhooks is not None
        ):  # a receiver that is slow keeps no email and no other receiver waiting
            deliveries = self._service.webhooks.deliveries.values()
            jobs += [Mailer(delivery, log=self._log, name="webhook") for delivery in deliveries]
        jobs += [scheduler] if scheduler else []
        self._log.event("leader", process=os.getpid())
        for job in jobs:
            job.start()
        self._jobs, self._problem = jobs, ""
        while not self._stopping.wait(TIDY_EVERY):
            # If the database is unusable, requests report it; the next attempt follows soon.
            with suppress(UsersError):
                self._service.store.truncate_log()
                self._service.deletion.carry_out(by=SYSTEM)
                self._service.claims.expire()
        for job in jobs:
            job.end()
        until = time.monotonic() + STOPPING
        for job in jobs:
            job.join(max(0, until - time.monotonic()))


def scheduled_cleanup(service: Service, *, log: Log, handle: int, since: datetime) -> Scheduler | None:
    """A slot that came due while the lock changed hands is run, unless the last leader has noted it in the lock file."""
    line = service.settings.cleanup_schedule
    if line is None:
        return None

    def clean(slot: datetime) -> None:
        note = stamp(slot).encode()
        if os.pread(handle, 100, 0) == note:
            return
        os.ftruncate(handle, os.pwrite(handle, note, 0))
        done = service.sessions.cleanup(by=ACTOR)
        log.event("cleanup-tokens", slot=slot.isoformat(), removed=done.expired)

    return Scheduler(line, clean, now=service.now, log=log, since=since)
