"""Runs `python -m usersctl` in processes that are forked from one that has imported the command already.

Python's start and the imports take most of the time of a command. A forked command has arguments, environment, folder,
streams and an exit code of its own; tests of how it starts and is interrupted start a process instead.
"""

import atexit
import fcntl
import gc
import io
import json
import os
import pkgutil
import select
import signal
import socket
import subprocess
import sys
import termios
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import redirect_stdout, suppress
from functools import wraps
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

# Variables that the command reads itself. Python or a library may read another one when it is started or imported.
FREE_VARIABLES = ("USERS_", "STATE_DIRECTORY", "HOME", "SUDO_USER", "SSH_CONNECTION")
MOST_BYTES = 100_000  # of a request, which has to fit into the buffer of a socket
NOT_IMPORTED = ("usersctl.__main__", "usersd.__main__", "usersd.wsgi")  # they run when they are imported
LEAST_CONFIGURED_COST, LEAST_COST = 10, 4  # of bcrypt
IMPORTED_LATE = (
    "bcrypt",
    "email_validator",
    "rich.progress",
    "rich.table",
    "sqlite_utils",
    "tomllib",
    "zxcvbn",
)

# --- in the process of the tests ---


class Forks:
    """The process that forks, and the line to it. It ends with this process."""

    def __init__(self, env: Mapping[str, str]) -> None:
        self.env = env
        self._line, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            start = [sys.executable, __file__, str(theirs.fileno())]
            self.process = subprocess.Popen(start, env=env, pass_fds=[theirs.fileno()])
        atexit.register(self.process.wait, 10)
        atexit.register(self._line.close)

    def can_run(self, words: Sequence[str], env: Mapping[str, str]) -> bool:
        changed = {name for name, _ in env.items() ^ self.env.items()}
        return (
            sys.platform == "linux"
            and sum(map(len, words)) < MOST_BYTES
            and all(name.startswith(FREE_VARIABLES) for name in changed)
        )

    def start(
        self,
        words: Sequence[str],
        *,
        env: Mapping[str, str],
        cwd: Path,
        streams: tuple[int, int, int],
        on_terminal: bool = False,
    ) -> "Forked":
        """`streams` are the descriptors of stdin, stdout and stderr; a terminal is made that of the process."""
        request = json.dumps({"words": words, "env": env, "cwd": str(cwd), "terminal": on_terminal}).encode()
        report, their_report = os.pipe()
        socket.send_fds(self._line, [request], [*streams, their_report])
        os.close(their_report)
        return Forked(report)

    def run(
        self,
        words: Sequence[str],
        *,
        env: Mapping[str, str],
        cwd: Path,
        stdin: bytes,
        timeout: float,
        stderr: int | None = None,
    ) -> subprocess.CompletedProcess[bytes]:
        """Does what subprocess.run does with pipes. `stderr`: a descriptor in the place of one."""
        (their_stdin, our_stdin), (our_stdout, their_stdout), (our_stderr, their_stderr) = (
            os.pipe() for _ in range(3)
        )
        streams = their_stdin, their_stdout, their_stderr if stderr is None else stderr
        process = self.start(words, env=env, cwd=cwd, streams=streams)
        for descriptor in (their_stdin, their_stdout, their_stderr):
            os.close(descriptor)
        with ThreadPoolExecutor(3) as pool:
            pool.submit(_write, our_stdin, stdin)
            output, errors = pool.submit(_read, our_stdout), pool.submit(_read, our_stderr)
            try:
                code = process.wait(timeout)
            finally:
                process.kill()
            return subprocess.CompletedProcess(words, code, output.result(), errors.result())


class Forked:
    """A process with what tests use of subprocess.Popen."""

    def __init__(self, report: int) -> None:
        self._report = os.fdopen(report, encoding="ascii")
        self.pid = int(self._report.readline())
        self.returncode: int | None = None

    def poll(self) -> int | None:
        with suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            if not select.select([self._report], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired("usersctl", timeout or 0)
            with self._report:
                self.returncode = int(self._report.readline())
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def _write(descriptor: int, data: bytes) -> None:
    with suppress(BrokenPipeError), os.fdopen(descriptor, "wb", buffering=0) as pipe:
        while data:
            data = data[pipe.write(data) :]


def _read(descriptor: int) -> bytes:
    with os.fdopen(descriptor, "rb") as pipe:
        return pipe.read()


# --- in the process that forks ---


def main(line: socket.socket) -> None:
    """Forks for each request until the other end of the line is closed."""
    _import_all()
    _save_coverage()
    # By the descriptor of a process: its id, and the pipe for its exit code.
    running: dict[int, tuple[int, int]] = {}
    while True:
        for ready in select.select([line, *running], [], [])[0]:
            if ready is not line:
                _report_end(ready, *running.pop(ready))
                continue
            request, descriptors, _, _ = socket.recv_fds(line, 2 * MOST_BYTES, 4)
            if not request:
                return
            process = os.fork()
            if process == 0:
                line.detach()
                run_command(json.loads(request), descriptors)
            *streams, report = descriptors
            os.write(report, b"%d\n" % process)
            running[os.pidfd_open(process)] = (process, report)
            for stream in streams:
                os.close(stream)


def _report_end(descriptor: int, process: int, report: int) -> None:
    _, status = os.waitpid(process, 0)
    os.write(report, b"%d\n" % os.waitstatus_to_exitcode(status))
    os.close(report)
    os.close(descriptor)


def _import_all() -> None:
    import usersctl.cli.tree
    import usersd

    for package in (usersctl, usersd):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if module.name not in NOT_IMPORTED:
                import_module(module.name)
    for name in IMPORTED_LATE:
        import_module(name)
    # The trees are kept, as they are in a pipe: to describe a command to Typer takes longer than to run it.
    with redirect_stdout(io.StringIO()):
        for name in (None, *usersctl.cli.tree._first_words()):
            usersctl.cli.tree.command_tree(name)
    gc.freeze()  # so that a collection in a forked process does not copy the memory of all modules


def _save_coverage() -> None:
    """If coverage is measured, a forked command that inherits what was measured so far would save it once more."""
    if coverage := sys.modules.get("coverage"):
        coverage.process_startup.coverage.save()


def spare_the_processor() -> None:
    """From now on the least cost that may be configured is as cheap as bcrypt can be. Tests of the cost name another one."""
    from usersctl.passwords import Hasher

    make = Hasher.__init__

    @wraps(make)
    def made(self: Hasher, rounds: int, **keywords: Any) -> None:
        make(self, LEAST_COST if rounds == LEAST_CONFIGURED_COST else rounds, **keywords)

    Hasher.__init__ = made  # type: ignore[method-assign]


def run_command(request: dict[str, Any], streams: list[int]) -> NoReturn:
    """Makes this process what a start by `python -m usersctl` would have made of it."""
    for number in range(3):
        os.dup2(streams[number], number)
    os.closerange(3, 1024)
    if request["terminal"]:
        os.setsid()
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)
        import_module("usersctl.cli.tree").command_tree.cache_clear()  # its width says how help is drawn
    for name in os.environ.keys() - request["env"].keys():
        del os.environ[name]
    os.environ.update(request["env"].items() - os.environ.items())
    os.chdir(request["cwd"])
    sys.path[0] = request["cwd"]
    sys.argv[1:] = request["words"]
    sys.stdin = os.fdopen(0, closefd=False, errors="surrogateescape")
    sys.stdout = os.fdopen(1, "w", closefd=False)
    sys.stderr = os.fdopen(2, "w", closefd=False, buffering=1, errors="backslashreplace")
    try:
        import_module("usersctl.__main__").main()
    except SystemExit as end:
        code = end.code
    _leave(int(code or 0))


def _leave(code: int) -> NoReturn:
    """Ends the process without clearing every module, which would copy the memory that it shares with its parent."""
    gc.collect()  # warns of what is not closed
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).parents[1])
    from support.databases import spare_the_disk

    spare_the_disk()
    spare_the_processor()
    sys.path[0] = ""
    with socket.socket(fileno=int(sys.argv[1])) as line:
        main(line)
