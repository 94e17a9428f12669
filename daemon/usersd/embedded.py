"""A part of the service in a process that another server runs: when to open it, and when to close it."""

import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any, Generic, TypeVar

from usersctl.config import Loaded
from usersctl.errors import UsersError
from usersctl.service import Service
from usersd.announce import announce, log_mail, log_missing_metrics
from usersd.app import App
from usersd.background.leader import Leader
from usersd.check import check
from usersd.log import Log

T = TypeVar("T")

START_AFTER = 1.0  # seconds without a request; also between two attempts to start
CHECK_STOP_EVERY = 0.5  # seconds


class Embedded(Generic[T]):
    """Opens at a process's first request, or a second after the process started.

    Earlier it cannot know that no fork follows: some servers import the application before they fork. It does not wait
    for a request, because emails are due without one. Before a later fork it closes, so children inherit nothing.
    """

    def __init__(self, opening: Callable[[], AbstractContextManager[T]], log: Log) -> None:
        self._opening = opening
        self._log = log
        self._process = 0  # that the lock, the thread and what is open belong to
        self._open: T | None = None
        os.register_at_fork(before=self._close, after_in_child=self._begin)
        uwsgi: Any = sys.modules.get("uwsgi")
        if uwsgi is not None and uwsgi.worker_id() == 0:
            # Its master forks without Python's hooks, and calls this one in each worker.
            uwsgi.post_fork_hook = _both(getattr(uwsgi, "post_fork_hook", None), self._begin)
        else:
            self._begin()

    def opened(self) -> T:
        """Raises UsersError if it cannot be opened now."""
        self._begin()
        with self._lock:
            if self._open is None:
                self._open = self._stack.enter_context(self._opening())
            return self._open

    def _begin(self) -> None:
        if self._process == os.getpid():
            return
        self._process = os.getpid()
        self._lock = threading.Lock()
        self._stack = ExitStack()
        self._open = None
        self._closing = threading.Event()
        # Not a daemon thread: Python waits for it at exit, so that it can close what is open.
        self._thread = threading.Thread(target=self._run, name="usersd")
        self._thread.start()

    def _run(self) -> None:
        wait = START_AFTER
        while not self._closing.wait(wait) and threading.main_thread().is_alive():
            wait = CHECK_STOP_EVERY
            try:
                self.opened()
            except UsersError as error:
                self._log.event("database", message=str(error), hint=error.hint)
                wait = START_AFTER
        with self._lock:
            self._stack.close()
            self._open = None

    def _close(self) -> None:
        if self._process == os.getpid():
            self._closing.set()
            self._thread.join()
            self._process = 0


def _both(first: Callable[[], object] | None, second: Callable[[], None]) -> Callable[[], None]:
    def both() -> None:
        if first is not None:
            first()
        second()

    return both


# --- the pages, the interface and the background work beside an application ---


def accounts_of(service: Service) -> Callable[[], App]:
    check(Loaded(service.settings, None, {}))
    log = Log(quiet=True)  # the server logs the requests
    return Embedded(lambda: _at_work(service, log), log).opened


@contextmanager
def _at_work(service: Service, log: Log) -> Iterator[App]:
    announce(service, log)
    log_mail(service.settings, log, dev=False)
    log_missing_metrics(service.settings, log)
    leader = Leader(service, log=log)
    leader.start()
    try:
        yield App(service, log=log)
    finally:
        leader.stop()
        service.close()
