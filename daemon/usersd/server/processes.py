"""The service: signals, and one or several processes that serve one listening socket."""

import atexit
import contextlib
import logging
import mmap
import os
import signal
import socket
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from types import FrameType
from typing import NoReturn

from usersctl.config import Settings
from usersctl.errors import UsersError
from usersctl.named import NamedTuple
from usersctl.passwords import WAITING_ROOM
from usersd.server.connections import Hosted, Server
from usersd.server.listener import url_of
from usersd.server.systemd import Notifier, SelfCheck

log = logging.getLogger("usersd")

CONNECTIONS = 2000  # for each process
OTHER_FILES = 100  # databases, logs, libraries

# Seconds.
SOONEST_RESTART = 0.1
LATEST_RESTART = 10.0
TRIED_AGAIN_AFTER = 1.0  # where the system allows no more processes, or has no memory for one

# systemd sends SIGTERM, a terminal SIGINT at Ctrl-C and SIGHUP when it is closed.
# Of SIGHUP a second one may come, from the shell and from the terminal, so it ends nothing at once.
STOPPING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class Serving(NamedTuple):
    """How many threads each process has, and how many processes there are."""

    threads: int = 4
    processes: int = 1
    slow_threads: int = os.cpu_count() or 1
    # The Hasher has its own of this size, for applications on another server.
    waiting_room: int = WAITING_ROOM

    @classmethod
    def of(cls, settings: Settings) -> "Serving":
        """The processes share the cores for bcrypt, and each has one slot at least."""
        cores = os.cpu_count() or 1
        return cls(settings.threads, settings.processes, -(-cores // settings.processes))

    def sizes(self) -> dict[str, int]:
        return {name: size for name, size in self._asdict().items() if name != "processes"}


def serve(
    listener: socket.socket,
    make: Callable[[int], AbstractContextManager[Hosted]],
    serving: Serving,
    on_ready: Callable[[str], None],
    notifier: Notifier | None = None,
) -> int:
    """Serves until SIGTERM, SIGINT or SIGHUP, answers pending requests, and returns the exit code; a second signal exits
    at once.

    The context manager `make(index)` is entered in the process that serves and left after the last answer. With
    several processes that is after the fork, so the caller must not have started threads or opened a database.
    """
    notifier = notifier or Notifier()
    if serving.processes > 1:
        return _Parent(listener, make, serving, on_ready, notifier).serve()

    def stop(signum: int, server: Server) -> None:
        if not server.asked_to_stop:
            notifier.stopping()
            server.stop()
        elif signum != signal.SIGHUP:
            os._exit(128 + signum)

    def ready() -> None:
        notifier.ready(url_of(listener))
        on_ready(url_of(listener))

    handlers = {signum: signal.getsignal(signum) for signum in STOPPING}
    try:
        if not _serve_alone(listener, make(0), serving, ready, stop, notifier.every, notifier.alive):
            atexit.register(_exit_without_threads)
    finally:
        for signum, handler in handlers.items():
            signal.signal(signum, handler)
    return 0


def _heeded() -> list[signal.Signals]:
    """A shell starts a job in the background with SIGINT ignored, and nohup any job with SIGHUP ignored: both go on."""
    return [
        signum
        for signum in STOPPING
        if signum == signal.SIGTERM or signal.getsignal(signum) != signal.SIG_IGN
    ]


def _exit_without_threads() -> None:
    """At its end Python kills a thread that returns from bcrypt, and that aborts the process."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def _serve_alone(
    listener: socket.socket,
    opening: AbstractContextManager[Hosted],
    serving: Serving,
    ready: Callable[[], None],
    on_signal: Callable[[int, Server], None],
    check_every: float | None,  # seconds between two self-checks; None: there are none
    on_check: Callable[[], None],
    alive: Callable[[], bool] = lambda: True,
) -> bool:
    """Returns whether all threads ended."""
    with opening as hosted:
        server = Server(listener, hosted, connections=_connections(), **serving.sizes())

        def handle(signum: int, _frame: FrameType | None) -> None:
            on_signal(signum, server)

        for signum in _heeded():
            signal.signal(signum, handle)
        ready()
        if check_every is None:
            return server.run(alive=alive)
        with contextlib.closing(SelfCheck(server.internal_connection(), check_every, on_check)):
            return server.run(alive=alive)


def _connections() -> int:
    """The number of connections that the limit of open files allows, once raised as far as needed and permitted."""
    import resource

    wanted = CONNECTIONS + OTHER_FILES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        allowed = wanted
        if hard != resource.RLIM_INFINITY:
            allowed = min(wanted, hard)
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
        soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        return max(10, min(CONNECTIONS, soft - OTHER_FILES))
    return CONNECTIONS


# --- several processes ---


class _Child(NamedTuple):
    number: int  # from 0
    started: float
    delay: float  # seconds that it waited before it began to serve


class _Parent:
    """Forks the processes that serve, replaces those that end unexpectedly, and passes signals on.

    Its signals are blocked and taken one at a time, so that none interrupts a step. A child sends SIGUSR1 when it
    serves, and writes the time of its last successful self-check into shared memory.
    """

    def __init__(
        self,
        listener: socket.socket,
        make: Callable[[int], AbstractContextManager[Hosted]],
        serving: Serving,
        on_ready: Callable[[str], None],
        notifier: Notifier,
    ) -> None:
        self.listener, self.make, self.serving = listener, make, serving
        self.on_ready, self.notifier = on_ready, notifier
        self.children: dict[int, _Child] = {}  # by process id
        self.unstarted: dict[int, float] = {}  # by number: delays of those that were not let begin
        self.ready = self.stopping = False
        self.code = 0
        self.checked_at = memoryview(mmap.mmap(-1, self.serving.processes * 8)).cast("d")

    def serve(self) -> int:
        handlers: dict[int, Callable[[int], None]] = {
            signal.SIGCHLD: self._reap,
            signal.SIGUSR1: self._report_ready,
            signal.SIGALRM: self._look_after_them,
            **dict.fromkeys(_heeded(), self._stop_or_kill),
        }
        self.mask = signal.pthread_sigmask(signal.SIG_BLOCK, handlers)
        try:
            for index in range(self.serving.processes):
                self._start(index, 0)
            while self.children or self.unstarted:
                signum = signal.sigwait(handlers)
                handlers[signum](signum)
        finally:
            # A signal that is still pending would end this process when it is unblocked.
            signal.setitimer(signal.ITIMER_REAL, 0)
            while signal.sigtimedwait({signal.SIGALRM, signal.SIGUSR1}, 0):
                pass
            signal.pthread_sigmask(signal.SIG_SETMASK, self.mask)
        return self.code

    def _report_ready(self, _signum: int) -> None:
        """The first child serves."""
        if not self.ready:
            self.ready = True
            self.notifier.ready(url_of(self.listener))
            self.on_ready(url_of(self.listener))
            self._set_alarm(self.notifier.every or 0)

    def _set_alarm(self, seconds: float) -> None:
        """And from then on one for each report to systemd, if it wants them."""
        signal.setitimer(signal.ITIMER_REAL, seconds, self.notifier.every or 0)

    def _look_after_them(self, _signum: int) -> None:
        """Starts those that could not be started, and tells systemd that all children answer; one that is stuck is enough to
        stay silent."""
        for index, delay in list(self.unstarted.items()):
            self._start(index, delay)
        if self.notifier.every and time.monotonic() - min(self.checked_at) < self.notifier.every:
            self.notifier.alive()

    def _stop_or_kill(self, signum: int) -> None:
        if not self.stopping:
            self._stop()
        elif signum != signal.SIGHUP:
            self._signal_all(signal.SIGKILL)
            os._exit(128 + signum)

    def _stop(self) -> None:
        self.stopping = True
        self.unstarted.clear()
        self.notifier.stopping()
        self.listener.close()
        self._signal_all(signal.SIGTERM)

    def _signal_all(self, signum: int) -> None:
        for pid in self.children:
            os.kill(pid, signum)  # safe: the id is not reused before waitpid

    def _reap(self, _signum: int) -> None:
        for pid in list(self.children):
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                self._replace(pid, self.children.pop(pid), os.waitstatus_to_exitcode(status))

    def _replace(self, pid: int, child: _Child, code: int) -> None:
        if self.stopping:
            return
        if not self.ready:
            # What keeps the first child from starting keeps them all.
            self.code = max(code, 1)
            self._stop()
            return
        delay = SOONEST_RESTART
        if time.monotonic() - child.started < child.delay + LATEST_RESTART:
            delay = min(max(child.delay * 2, SOONEST_RESTART), LATEST_RESTART)
        log.error("Process %d ended unexpectedly (%d) and is replaced", pid, code)
        self._start(child.number, delay)

    def _start(self, index: int, delay: float) -> None:
        parent = os.getpid()
        self._note_check(index, time.monotonic() + delay)
        try:
            pid = os.fork()
        except OSError as error:
            if not self.ready:
                raise
            if index not in self.unstarted:
                log.error("A process cannot be replaced for now: %s", error.strerror)  # noqa: TRY400
            self.unstarted[index] = delay  # the others serve meanwhile
            self._set_alarm(TRIED_AGAIN_AFTER)
            return
        if pid:
            self.unstarted.pop(index, None)
            self.children[pid] = _Child(index, time.monotonic(), delay)
        else:
            self._be_child(index, delay, parent)

    def _note_check(self, index: int, seconds: float) -> None:
        self.checked_at[index] = seconds

    def _be_child(self, index: int, delay: float, parent: int) -> NoReturn:
        code = 1
        # Twice as often as the parent reads the times.
        every = self.notifier.every and self.notifier.every / 2
        try:
            # A terminal sends SIGINT and SIGHUP to all processes, systemd SIGTERM: only the parent acts on the second one.
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            signal.signal(signal.SIGHUP, signal.SIG_IGN)
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_SETMASK, self.mask)
            time.sleep(delay)
            _serve_alone(
                self.listener,
                self.make(index),
                self.serving,
                ready=lambda: os.kill(parent, signal.SIGUSR1),
                on_signal=lambda _signum, server: server.stop(),
                check_every=every,
                on_check=lambda: self._note_check(index, time.monotonic()),
                alive=lambda: os.getppid() == parent,
            )
            code = 0
        except UsersError as error:
            log.error("%s", error)  # noqa: TRY400  # a known error needs no trace
            code = 6
        except BaseException:
            log.exception("Process %d failed", os.getpid())
        finally:
            with contextlib.suppress(Exception):
                sys.stdout.flush()
                sys.stderr.flush()
            os._exit(code)  # the rest of the clean-up belongs to the parent
