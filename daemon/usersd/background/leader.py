"""What runs once over all processes that share a database, letters and schedule: in the one that holds the lock."""

import fcntl
import os
import threading
from contextlib import suppress
from datetime import datetime

from usersctl.clock import stamp
from usersctl.errors import UsersError
from usersctl.service import Service
from usersd.background.mailer import Worker
from usersd.background.scheduler import ACTOR, Scheduler
from usersd.log import Log

LOOK_EVERY = 0.5  # seconds between two looks whether the lock is free
SHORTEN_EVERY = 20.0  # seconds between two looks at the write-ahead log


class Leader:
    """Each process has one; it waits for the lock on a file beside the database, and then works until it is stopped.
    The kernel frees the lock of a process that dies, however it dies: another works on within a second.

    In that file stands the slot of the schedule that was run last, so that whoever takes over does not run it again.
    """

    def __init__(self, service: Service, *, log: Log) -> None:
        database = service.settings.database.resolve()
        self._file = database.with_name(f"{database.name}.lock")
        self._service = service
        self._log = log
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._wait_and_work, name="caretaker", daemon=True)
        self._trouble = ""
        self._at_work: tuple[Worker | Scheduler, ...] = ()

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()

    def sends_letters(self) -> bool:
        """As far as it is for this process to do."""
        return self._works(Worker)

    def keeps_the_schedule(self) -> bool:
        return self._works(Scheduler)

    def _works(self, what: type[Worker | Scheduler]) -> bool:
        alive = all(each.is_alive() for each in self._at_work if isinstance(each, what))
        return alive and self._thread.is_alive() and not self._trouble

    def _wait_and_work(self) -> None:
        looked = self._service.now()
        while not self._stop.is_set():
            try:
                handle = self._open()
                try:
                    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    self._work(handle, looked)
                    return
                finally:
                    os.close(handle)
            except BlockingIOError:  # another process works
                looked, self._trouble = self._service.now(), ""
            except OSError as error:
                if str(error) != self._trouble:
                    self._trouble = str(error)
                    self._log.event("caretaker", waiting=self._trouble)
            self._stop.wait(LOOK_EVERY)

    def _open(self) -> int:
        owner = self._service.settings.database.stat()
        # Where somebody else laid a link, root would give away what it leads to.
        handle = os.open(self._file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        if os.geteuid() == 0 and owner.st_uid != 0:
            # As SQLite does with the files that it adds: what root starts by hand must not shut out the daemon's own user.
            os.fchown(handle, owner.st_uid, owner.st_gid)
        return handle

    def _work(self, handle: int, since: datetime) -> None:
        scheduler = scheduled_cleanup(self._service, log=self._log, handle=handle, since=since)
        worker = Worker(self._service.outbox, log=self._log)
        at_work = (worker, scheduler) if scheduler else (worker,)
        self._log.event("caretaker", process=os.getpid())
        for each in at_work:
            each.start()
        self._at_work, self._trouble = at_work, ""
        while not self._stop.wait(SHORTEN_EVERY):
            # Whoever asks for something meanwhile is told, and the next look is soon.
            with suppress(UsersError):
                self._service.store.truncate_log()
        for each in at_work:
            each.stop()


def scheduled_cleanup(service: Service, *, log: Log, handle: int, since: datetime) -> Scheduler | None:
    """A slot that came due while the lock changed hands is run, unless whoever had it before has noted it as run."""
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
