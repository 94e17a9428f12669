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
from usersd import threads
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
        self._part: _Part[T] | None = None
        self._closed = False
        # Held while a thread begins, and while this process forks: what begins between the two would go into the child.
        self._beginning = threading.Lock()
        os.register_at_fork(
            before=self._before_fork, after_in_parent=self._beginning.release, after_in_child=self._in_child
        )
        uwsgi: Any = sys.modules.get("uwsgi")
        if uwsgi is not None and uwsgi.worker_id() == 0:
            # Its master forks without Python's hooks, and calls this one in each worker.
            uwsgi.post_fork_hook = _both(getattr(uwsgi, "post_fork_hook", None), self._begun)
        else:
            self._begun()

    def opened(self) -> T:
        """Raises UsersError if it cannot be opened now."""
        threads.check()
        while (opened := (part := self._begun()).opened()) is None:
            part.thread.join()  # this process is about to fork
        return opened

    def close(self) -> None:
        """Only a later request opens it again."""
        with self._beginning:
            self._closed = True
            self._end()

    def _begun(self) -> "_Part[T]":
        part = self._part
        if part is not None and part.process == os.getpid():
            return part
        with self._beginning:
            if self._part is None or self._part.process != os.getpid():
                self._closed = False
                self._part = _Part(self._opening, self._log)
            return self._part

    def _before_fork(self) -> None:
        self._beginning.acquire()
        self._end()

    def _end(self) -> None:
        if self._part is not None and self._part.process == os.getpid():
            self._part.close()
        self._part = None

    def _in_child(self) -> None:
        self._beginning.release()
        if not self._closed:
            self._begun()


class _Part(Generic[T]):
    """What is open in one process, until that ends or forks."""

    def __init__(self, opening: Callable[[], AbstractContextManager[T]], log: Log) -> None:
        self._opening = opening
        self._log = log
        self._lock = threading.Lock()
        self._stack = ExitStack()
        self._open: T | None = None
        self._closing = threading.Event()
        self.process = os.getpid()
        # Not a daemon thread: Python waits for it at exit, so that it can close what is open.
        self.thread = threading.Thread(target=self._run, name="usersd")
        self.thread.start()

    def opened(self) -> T | None:
        """None if it closes."""
        with self._lock:
            if self._closing.is_set():
                return None
            if self._open is None:
                self._open = self._stack.enter_context(self._opening())
            return self._open

    def close(self) -> None:
        self._closing.set()
        self.thread.join()

    def _run(self) -> None:
        wait = START_AFTER
        while not self._closing.wait(wait) and threading.main_thread().is_alive():
            wait = CHECK_STOP_EVERY
            threads.check()
            try:
                self.opened()
            except UsersError as error:
                self._log.event("database", message=str(error), hint=error.hint)
                wait = START_AFTER
            except Exception as error:  # noqa: BLE001 - the thread must live to try again, and to close
                self._log.error(error)
                wait = START_AFTER
        with self._lock:
            self._stack.close()
            self._open = None


def _both(first: Callable[[], object] | None, second: Callable[[], object]) -> Callable[[], None]:
    def both() -> None:
        if first is not None:
            first()
        second()

    return both


# --- the pages, the interface and the background work beside an application ---


def accounts_of(service: Service) -> Embedded[App]:
    check(Loaded(service.settings, None, {}))
    log = Log(quiet=True)  # the server logs the requests
    return Embedded(lambda: _at_work(service, log), log)


@contextmanager
def _at_work(service: Service, log: Log) -> Iterator[App]:
    announce(service, log)
    log_mail(service.settings, log)
    log_missing_metrics(service.settings, log)
    leader = Leader(service, log=log)
    leader.start()
    try:
        yield App(service, log=log)
    finally:
        leader.stop()
        service.close()
