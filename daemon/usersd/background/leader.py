"""The leader: of all processes on one database, the one that holds a lock sends the emails and runs the schedule."""

import os
import threading
import time
from contextlib import suppress
from datetime import datetime, timedelta

from usersctl.clock import moment
from usersctl.errors import UsersError
from usersctl.models import SYSTEM
from usersctl.service import Service
from usersctl.store.locks import LEADER, Locks
from usersctl.store.slots import CLEANUP_TASK
from usersd.background.mailer import Mailer
from usersd.background.scheduler import ACTOR, Scheduler
from usersd.log import Log

LOCK_EVERY = 0.5  # seconds between two attempts to take the lock
STOPPING = 2.0  # seconds for what is being sent; the next leader sends an unfinished one again
TIDY_EVERY = 20.0  # seconds: until the next look at the write-ahead log, claims and deletions
# A slot that was not finished so long ago is run by the next leader.
UNFINISHED_FOR = timedelta(minutes=10)


class Leader(threading.Thread):
    """A candidate in each process: waits for the lock, then works until it is stopped or has lost the lock.

    The lock of a process that dies is free at once, so another one takes over within a second. The database holds the
    schedule's last slot, so that the next leader does not run it again.
    """

    def __init__(self, service: Service, *, log: Log) -> None:
        super().__init__(name="leader", daemon=True)
        self._service = service
        self._log = log
        self._stopping = threading.Event()
        self._problem = ""  # why the lock cannot be asked for
        self._jobs: list[Mailer | Scheduler] = []

    def end(self) -> None:
        """After what is being sent, for which it does not wait."""
        self._stopping.set()

    def stop(self) -> None:
        self.end()
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
                with self._service.store.locks() as locks:
                    if locks.take(LEADER):
                        self._lead(locks, tried_at)
                # Another process is the leader.
                tried_at, self._problem = self._service.now(), ""
            except Exception as error:  # noqa: BLE001 - emails and schedule must not end for good
                if str(error) != self._problem:
                    self._problem = str(error)
                    if isinstance(error, OSError | UsersError):
                        self._log.event("leader", waiting=self._problem)
                    else:
                        self._log.error(error)
            self._stopping.wait(LOCK_EVERY)

    def _lead(self, locks: Locks, since: datetime) -> None:
        scheduler = scheduled_cleanup(self._service, log=self._log, since=since)
        jobs: list[Mailer | Scheduler] = [
            *self._mailers(locks.look_every),
            *([scheduler] if scheduler else []),
        ]
        self._log.event("leader", process=os.getpid())
        for job in jobs:
            job.start()
        self._jobs, self._problem = jobs, ""
        try:
            self._look_after(locks)
        finally:
            self._end_jobs()

    def _mailers(self, look_every: float) -> list[Mailer]:
        """One for the emails and one for each webhook: a receiver that is slow keeps no other one waiting."""
        deliveries = self._service.webhooks.deliveries.values() if self._service.webhooks else ()
        return [
            Mailer(self._service.outbox, log=self._log, look_every=look_every),
            *(Mailer(each, log=self._log, look_every=look_every, name="webhook") for each in deliveries),
        ]

    def _look_after(self, locks: Locks) -> None:
        tidy_at = time.monotonic() + TIDY_EVERY
        while not self._stopping.is_set():
            if locks.hear(self._stopping, max(0, tidy_at - time.monotonic())):
                for job in self._jobs:
                    if isinstance(job, Mailer):
                        job.wake()
            if time.monotonic() >= tidy_at and not self._stopping.is_set():
                # If the database is unusable, requests report it; the next attempt follows soon.
                with suppress(UsersError):
                    self._service.store.truncate_log()
                    self._service.claims.expire()
                    self._service.deletion.carry_out(by=SYSTEM)  # other data may belong to an account
                tidy_at = time.monotonic() + TIDY_EVERY

    def _end_jobs(self) -> None:
        jobs, self._jobs = self._jobs, []
        for job in jobs:
            job.end()
        until = time.monotonic() + STOPPING
        for job in jobs:
            job.join(max(0, until - time.monotonic()))


def scheduled_cleanup(service: Service, *, log: Log, since: datetime) -> Scheduler | None:
    """Runs the slots that come due after `since`, when another leader may have worked last, and those it left undone."""
    line = service.settings.cleanup_schedule
    if line is None:
        return None
    with service.store.glance() as tx:
        last = tx.last_slot(CLEANUP_TASK)
    if last is not None:
        since = max(moment(last), since - UNFINISHED_FOR)

    def clean(slot: datetime) -> None:
        done = service.cleaner.run(by=ACTOR, slot=slot)
        log.event("cleanup-tokens", slot=slot.isoformat(), removed=done.expired)

    return Scheduler(line, clean, now=service.now, log=log, since=since)
