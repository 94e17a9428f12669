"""Runs the real command in its own process: in a pipe like scripts and cron, or on a terminal like people."""

import contextlib
import fcntl
import json
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import IO, Any, NamedTuple

from support import postgres
from support.databases import SECRET_KEY, add_database, database_at, fields_of, opened
from support.forked import Forked, Forks

from usersctl.config import Settings
from usersctl.fields import lookup_key
from usersctl.models import Actor, Role, User
from usersctl.passwords import Hasher
from usersctl.service import Service, build
from usersctl.store.conninfo import Conninfo, Database

PASSWORD = "correct horse battery"
# bcrypt of PASSWORD, with the lowest cost that an import accepts.
HASH = "$2b$04$DZjf2yWbEECu6xQJQPFZwOg3eSwnkIaZkZfkb/aa2KvpeJSf8wCAW"
# SQL that gives account 1 a claim to another person's address.
CLAIM = "UPDATE users SET claimed_email = 'ceo@example.com', claim_expires_at = '2099-01-01T00:00:00.000Z' WHERE id = 1"
CTRL_Z_AND_FG = "\x1a"  # where `typed` has it
OPERATOR = Actor("cli:tester", "local")
# A small process in between, because a child inherits the peak of the memory of its parent.
_MEASURE = """
import json, resource, subprocess, sys
code = subprocess.call([sys.executable, "-m", "usersctl", *sys.argv[1:]], stdout=subprocess.DEVNULL)
used = resource.getrusage(resource.RUSAGE_CHILDREN)
print(json.dumps([code, used.ru_utime + used.ru_stime, used.ru_maxrss / 1024]))
"""
USERSCTL = str(Path(sys.executable).with_name("usersctl"))
TIME_LIMIT = 30


@cache
def forks() -> Forks:
    return Forks(environment())


def environment() -> dict[str, str]:
    """The variables of this process without those that change what the command does."""
    ours = ("USERS_", "COLUMNS", "LINES", "NO_COLOR", "SUDO_USER", "SSH_CONNECTION", "XDG_", "PYTEST_")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    return kept | {"PYTHONWARNINGS": "error", "TERM": "xterm-256color", "LC_ALL": "C.UTF-8"}


def create_user(
    service: Service,
    email: str,
    name: str,
    password: str | None,
    *,
    role: str = Role.USER,
    by: Actor = OPERATOR,
    **keywords: Any,
) -> User:
    newcomer = service.accounts.newcomer(email, name, role)
    if password == PASSWORD:
        newcomer, password = newcomer._replace(password_hash=_hash_of_password(service.hasher.rounds)), None
    return service.accounts.create(newcomer, password, by=by, **keywords)


@cache
def _hash_of_password(rounds: int) -> str:
    """Made once, because most accounts of tests have this password."""
    return Hasher(rounds).hash(PASSWORD)


def by_hand(database: Database, *statements: str) -> None:
    """Runs SQL statements on a database, past the service."""
    with opened(database) as db:
        for statement in statements:
            db.execute(postgres.worded(statement) if isinstance(database, Conninfo) else statement)


def feed(pipe: IO[bytes] | None, line: bytes) -> None:
    """Writes a line and waits until the process has read it, so everything before that read has happened."""
    assert pipe is not None
    pipe.write(line)
    pipe.flush()
    until = time.monotonic() + TIME_LIMIT
    while fcntl.ioctl(pipe, termios.FIONREAD, bytes(4)) != struct.pack("i", 0):
        assert time.monotonic() < until, "the process does not read"
        time.sleep(0.02)


class Result(NamedTuple):
    code: int
    stdout: str
    stderr: str

    @property
    def json(self) -> Any:
        return json.loads(self.stdout)

    @property
    def error(self) -> dict[str, Any]:
        """The error object that --json prints on stderr, with its shape checked."""
        (printed,) = [json.loads(line) for line in self.stderr.splitlines()]
        assert set(printed) == {"error"}
        assert set(printed["error"]) >= {"code", "message", "hint"}
        return dict(printed["error"])

    @property
    def rows(self) -> list[list[str]]:
        """Tab-separated columns, without the header line."""
        return [line.split("\t") for line in self.stdout.splitlines()[1:]]


class Measured(NamedTuple):
    code: int
    seconds: float  # of the processor
    megabytes: float


class Command:
    """`usersctl` with a configuration and a database in one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.database = database_at(folder / "users.db")
        self.config = folder / "users.toml"
        self.configure("[passwordHashing]\nrounds = 10\n")
        self.env = environment() | {
            "HOME": str(folder),
            "USERS_CONFIG": str(self.config),
            "USERS_DATABASE": str(self.database),
            # For the files of a test that names a database on a server: as root they would go to /var/lib/users.
            "STATE_DIRECTORY": str(folder),
        }
        if isinstance(self.database, Conninfo):
            self.env["USERS_SECRET_KEY"] = SECRET_KEY

    @property
    def is_unused(self) -> bool:
        """Whether no command has made a file or, in a database on a server, a change."""
        if isinstance(self.database, Path):
            return not self.database.exists()
        with opened(self.database) as db:
            return db.execute("SELECT n FROM audit_head").fetchall() == [(0,)]

    def put(self, name: str, content: str | bytes) -> Path:
        """Writes a file into the folder."""
        file = self.folder / name
        file.write_bytes(content.encode() if isinstance(content, str) else content)
        return file

    def configure(self, text: str) -> None:
        self.config.write_text(text, "utf-8")

    def __call__(
        self,
        *words: str | Path,
        stdin: str | bytes = "",
        env: dict[str, str] | None = None,
        cwd: Path | None = None,
        stdout: int | IO[bytes] = subprocess.PIPE,
        stderr: IO[bytes] | None = None,
    ) -> Result:
        """`stderr`: a file in the place of a pipe."""
        words = tuple(map(os.fsdecode, words))
        stdin = stdin.encode() if isinstance(stdin, str) else stdin
        place: Any = {"env": self.env | (env or {}), "cwd": cwd or self.folder, "timeout": TIME_LIMIT}
        if stdout == subprocess.PIPE and forks().can_run(words, place["env"]):
            done = forks().run(words, stdin=stdin, stderr=stderr and stderr.fileno(), **place)
        else:
            start = [sys.executable, "-m", "usersctl", *words]
            streams: Any = {"input": stdin, "stdout": stdout, "stderr": stderr or subprocess.PIPE}
            done = subprocess.run(start, check=False, **streams, **place)
        result = Result(done.returncode, (done.stdout or b"").decode(), (done.stderr or b"").decode())
        if "--debug" not in words:
            assert "Traceback" not in result.stdout + result.stderr, result
        return result

    def ok(self, *words: str | Path, **more: Any) -> Result:
        result = self(*words, **more)
        assert result.code == 0, result
        return result

    def shell(self, script: str, **env: str) -> Result:
        """Runs a script of bash in which `usersctl` is this command."""
        python = f'usersctl() {{ "{sys.executable}" -m usersctl "$@"; }}\n'
        done = subprocess.run(
            ["/bin/bash", "-c", python + script],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            env=self.env | env,
            cwd=self.folder,
            timeout=TIME_LIMIT,
            check=False,
        )
        return Result(done.returncode, done.stdout.decode(), done.stderr.decode())

    def start(self, *words: str | Path, measured: bool = True, **more: Any) -> subprocess.Popen[bytes]:
        """With `measured=False` coverage is off, because a signal's exception can leave its lock held for ever."""
        env = {name: value for name, value in self.env.items() if measured or not name.startswith("COVERAGE")}
        return subprocess.Popen([sys.executable, "-m", "usersctl", *words], env=env, cwd=self.folder, **more)

    def measured(self, *words: str | Path) -> Measured:
        """What a command takes; its output is dropped."""
        env = {name: value for name, value in self.env.items() if not name.startswith("COVERAGE")}
        start = [sys.executable, "-c", _MEASURE, *words]
        done = subprocess.run(start, env=env, cwd=self.folder, check=True, capture_output=True)
        return Measured(*json.loads(done.stdout))

    def on_terminal(
        self, *words: str | Path, typed: Sequence[tuple[str, str]] = (), columns: int = 100
    ) -> "Screen":
        """`typed` holds pairs: when the terminal shows the first text, the second is typed."""
        master, terminal = pty.openpty()
        fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
        try:
            words = tuple(map(os.fsdecode, words))
            if forks().can_run(words, self.env):
                process = forks().start(
                    words, env=self.env, cwd=self.folder, streams=(terminal,) * 3, on_terminal=True
                )
            else:
                streams = dict.fromkeys(("stdin", "stdout", "stderr"), terminal)
                process = self.start(*words, **streams, start_new_session=True, preexec_fn=take_terminal)
            os.close(terminal)
            return watch_terminal(process, master, list(typed))
        finally:
            os.close(master)

    @contextlib.contextmanager
    def service(self) -> Iterator[Service]:
        """The core on the same database, in this process: faster where a test is not about the command."""
        add_database(self.database)
        fields = fields_of(self.database, self.folder)
        service = build(Settings(**fields, base_url="http://127.0.0.1:8080", rounds=4))
        try:
            yield service
        finally:
            service.close()

    def add(self, *names: str, **keywords: Any) -> list[User]:
        """Adds accounts with PASSWORD; each name is the local part of an address."""
        with self.service() as service:
            return [
                create_user(service, f"{name}@example.com", name.title(), PASSWORD, by=OPERATOR, **keywords)
                for name in names
            ]

    def register(self, *names: str) -> None:
        """As visitors do: the accounts wait for their confirmation."""
        with self.service() as service:
            for name in names:
                service.registration.register(f"{name}@example.com", name.title(), PASSWORD, by=OPERATOR)

    def can_log_in(self, email: str, password: str = PASSWORD) -> bool:
        from usersctl.errors import UsersError

        with self.service() as service:
            try:
                service.sessions.login(lookup_key(email), password)
            except UsersError:
                return False
            return True

    def emails(self) -> list[str]:
        with self.service() as service, service.store.read() as tx:
            return [credentials.user.email for credentials in tx.all_credentials()]


class Screen(NamedTuple):
    """The output of a terminal, raw and without escape sequences."""

    code: int
    raw: str

    @property
    def text(self) -> str:
        return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", self.raw).replace("\r", "")

    @property
    def lines(self) -> list[str]:
        return [line.rstrip() for line in self.text.splitlines()]


def take_terminal() -> None:
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


def stop_and_continue(pid: int, master: int) -> None:
    """What a shell does at Ctrl-Z and `fg`: it takes the terminal with its echo, and gives it back as it is."""
    os.kill(pid, signal.SIGSTOP)
    time.sleep(0.05)
    mode = termios.tcgetattr(master)
    mode[3] |= termios.ECHO
    termios.tcsetattr(master, termios.TCSANOW, mode)
    os.kill(pid, signal.SIGCONT)


def watch_terminal(
    process: subprocess.Popen[bytes] | Forked, master: int, typed: list[tuple[str, str]]
) -> Screen:
    shown, seen, until, last = b"", 0, time.monotonic() + TIME_LIMIT, ""
    try:
        while True:
            if not select.select([master], [], [], 1)[0]:
                if time.monotonic() > until:
                    raise AssertionError(f"nothing more on the terminal after {shown!r}")
                if last in ("\x03", "\x04"):
                    # A signal between prompt and read is handled only at the next input, so the key is pressed
                    # again.
                    os.write(master, last.encode())
                continue
            try:
                some = os.read(master, 65536)
            except OSError:  # the last process on the terminal has ended
                break
            if not some:
                break
            shown += some
            while typed and (at := shown.find(typed[0][0].encode(), seen)) >= 0:
                seen = at + len(typed[0][0].encode())
                time.sleep(0.05)
                last = typed.pop(0)[1]
                if last == CTRL_Z_AND_FG:
                    stop_and_continue(process.pid, master)
                else:
                    os.write(master, last.encode())
    finally:
        process.kill() if time.monotonic() > until else None
        code = process.wait(TIME_LIMIT)
    assert not typed, (typed, shown)
    return Screen(code, shown.decode())


def tree_of(dotted: dict[str, Any]) -> dict[str, Any]:
    """A configuration whose keys are written with dots, as the tables of its file."""
    tree: dict[str, Any] = {}
    for key, value in dotted.items():
        *sections, name = key.split(".")
        branch = tree
        for section in sections:
            branch = branch.setdefault(section, {})
        branch[name] = value
    return tree
