"""waitress as a service: the listening socket, signals, and several processes on one socket."""

import atexit
import contextlib
import logging
import mmap
import os
import signal
import socket
import struct
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from types import FrameType
from typing import NoReturn

from usersctl.errors import UsersError
from usersd.server.connections import Hosted, Server
from usersd.server.listener import url_of
from usersd.server.systemd import Notify, Pulse

log = logging.getLogger("usersd")

CONNECTIONS = 2000  # for each process
OTHER_FILES = 100  # databases, logs, libraries

SOONEST_RESTART = 0.1
LATEST_RESTART = 10.0

_TIME = struct.Struct("d")


@dataclass(frozen=True)
class Serving:
    """How to serve: the numbers of one process, and how many processes there are."""

    threads: int = 4
    processes: int = 1
    slow_threads: int = os.cpu_count() or 1
    waiting_room: int = 8


def serve(
    listener: socket.socket,
    make: Callable[[int], AbstractContextManager[Hosted]],
    serving: Serving,
    on_ready: Callable[[str], None],
    notify: Notify = Notify(),  # noqa: B008 - immutable
) -> int:
    """Serves until SIGTERM or SIGINT, answers what has come, and returns the exit code; a second signal ends at once.

    `make` is entered in the process that serves, with its index from 0, and left after the last answer. With several
    processes it runs after the fork, so the caller must not have started threads or opened a database. The socket
    may as well have been inherited.
    """
    if serving.processes > 1:
        return _Parent(listener, make, serving, on_ready, notify).serve()

    def when_asked(signum: int, server: Server) -> None:
        if server.asked_to_stop:
            os._exit(128 + signum)
        notify.stopping()
        server.stop()

    def ready() -> None:
        notify.ready(url_of(listener))
        on_ready(url_of(listener))

    with _handlers_restored():
        if not _serve_alone(listener, make(0), serving, ready, when_asked, (notify.every, notify.alive)):
            atexit.register(_leave_threads)
    return 0


def _leave_threads() -> None:
    """Python ends a thread by force when it comes back from bcrypt, which then aborts the process."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def _serve_alone(
    listener: socket.socket,
    making: AbstractContextManager[Hosted],
    serving: Serving,
    ready: Callable[[], None],
    when_asked: Callable[[int, Server], None],
    pulse: tuple[float | None, Callable[[], None]],  # how often, and who is told of it
    alive: Callable[[], bool] = lambda: True,
) -> bool:
    """Whether all threads ended."""
    with making as hosted:
        server = Server(
            listener,
            hosted,
            threads=serving.threads,
            slow_threads=serving.slow_threads,
            waiting_room=serving.waiting_room,
            connections=_connections(),
        )

        def handle(signum: int, _frame: FrameType | None) -> None:
            when_asked(signum, server)

        signal.signal(signal.SIGTERM, handle)
        if signal.getsignal(signal.SIGINT) != signal.SIG_IGN:
            signal.signal(signal.SIGINT, handle)
        ready()
        every, beat = pulse
        if every is None:
            return server.run(alive=alive)
        with contextlib.closing(Pulse(server.caller(), every, beat)):
            return server.run(alive=alive)


@contextlib.contextmanager
def _handlers_restored() -> Iterator[None]:
    before = {each: signal.getsignal(each) for each in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


def _connections() -> int:
    """How many connections the limit of open files allows, after raising it as far as needed and permitted."""
    import resource

    wanted = CONNECTIONS + OTHER_FILES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        return max(10, min(CONNECTIONS, soft - OTHER_FILES))
    return CONNECTIONS


# --- several processes ---


class _Parent:
    """Forks the processes that serve, starts anew who dies, and passes signals on.

    It blocks its signals and waits for the next one, so that none can come between two steps. A child reports with
    SIGUSR1 that it serves, and notes the time of its last sign of life in memory that all share.
    """

    def __init__(
        self,
        listener: socket.socket,
        make: Callable[[int], AbstractContextManager[Hosted]],
        serving: Serving,
        on_ready: Callable[[str], None],
        notify: Notify,
    ) -> None:
        self.listener = listener
        self.make = make
        self.serving = serving
        self.on_ready = on_ready
        self.notify = notify
        self.signs_of_life = mmap.mmap(-1, serving.processes * _TIME.size)
        self.children: dict[int, tuple[int, float, float]] = {}  # by pid: index, start, delay before it
        self.ready = self.stopping = False
        self.code = 0

    def serve(self) -> int:
        signals = {signal.SIGTERM, signal.SIGINT, signal.SIGCHLD, signal.SIGUSR1, signal.SIGALRM}
        self.mask = signal.pthread_sigmask(signal.SIG_BLOCK, signals)
        try:
            for index in range(self.serving.processes):
                self._start(index, 0)
            while self.children:
                got = signal.sigwait(signals)
                if got == signal.SIGCHLD:
                    self._bury()
                elif got == signal.SIGUSR1:
                    if not self.ready:
                        self.ready = True
                        self.notify.ready(url_of(self.listener))
                        self.on_ready(url_of(self.listener))
                        signal.setitimer(signal.ITIMER_REAL, self.notify.every or 0, self.notify.every or 0)
                elif got == signal.SIGALRM:
                    self._look_for_signs_of_life()
                elif self.stopping:
                    self._signal_all(signal.SIGKILL)
                    os._exit(128 + got)
                else:
                    self._stop()
        finally:
            # One of these that came meanwhile would end us by force as soon as it is let through.
            signal.setitimer(signal.ITIMER_REAL, 0)
            while signal.sigtimedwait({signal.SIGALRM, signal.SIGUSR1}, 0):
                pass
            signal.pthread_sigmask(signal.SIG_SETMASK, self.mask)
        return self.code

    def _look_for_signs_of_life(self) -> None:
        """One child that is stuck is enough for systemd to hear nothing."""
        oldest = min(_TIME.iter_unpack(self.signs_of_life[:]))[0]
        if self.notify.every is not None and time.monotonic() - oldest < self.notify.every:
            self.notify.alive()

    def _note_sign_of_life(self, index: int, seconds: float) -> None:
        _TIME.pack_into(self.signs_of_life, index * _TIME.size, seconds)

    def _stop(self) -> None:
        self.stopping = True
        self.notify.stopping()
        self.listener.close()
        self._signal_all(signal.SIGTERM)

    def _signal_all(self, signum: int) -> None:
        for pid in self.children:
            os.kill(pid, signum)  # not yet waited for, so the number is still theirs

    def _bury(self) -> None:
        for pid in list(self.children):
            found, status = os.waitpid(pid, os.WNOHANG)
            if not found:
                continue
            index, started, delay = self.children.pop(pid)
            code = os.waitstatus_to_exitcode(status)
            if self.stopping:
                continue
            if not self.ready:
                # What keeps the first from starting keeps them all.
                self.code = max(code, 1)
                self._stop()
                continue
            lived = time.monotonic() - started
            delay = min(delay * 2, LATEST_RESTART) if lived < delay + LATEST_RESTART else SOONEST_RESTART
            log.error("Process %d ended unexpectedly (%d), starting anew", pid, code)
            self._start(index, max(delay, SOONEST_RESTART))

    def _start(self, index: int, delay: float) -> None:
        parent = os.getpid()
        self._note_sign_of_life(index, time.monotonic() + delay)
        pid = os.fork()
        if pid:
            self.children[pid] = index, time.monotonic(), delay
        else:
            self._be_child(index, delay, parent)

    def _be_child(self, index: int, delay: float, parent: int) -> NoReturn:
        code = 1
        try:
            # A terminal sends SIGINT, and systemd SIGTERM, to all of us: the parent alone counts them.
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_SETMASK, self.mask)
            time.sleep(delay)
            _serve_alone(
                self.listener,
                self.make(index),
                self.serving,
                ready=lambda: os.kill(parent, signal.SIGUSR1),
                when_asked=lambda _signum, server: server.stop(),
                # Twice as often as the parent looks.
                pulse=(
                    self.notify.every and self.notify.every / 2,
                    lambda: self._note_sign_of_life(index, time.monotonic()),
                ),
                alive=lambda: os.getppid() == parent,
            )
            code = 0
        except UsersError as error:
            log.error("%s", error)  # noqa: TRY400  # one line is enough for a known refusal
            code = 6
        except BaseException:
            log.exception("Process %d failed", os.getpid())
        finally:
            with contextlib.suppress(Exception):
                sys.stdout.flush()
                sys.stderr.flush()
            os._exit(code)  # what else there is to finish belongs to the parent
