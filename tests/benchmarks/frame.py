"""What all measures share: a folder, processes with their time and memory, and figures with their promises."""

import compileall
import multiprocessing
import os
import resource
import shutil
import sqlite3
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

from usersctl.clock import stamp
from usersctl.store import chain

ROOT = Path(__file__).resolve().parents[2]
TICKS = os.sysconf("SC_CLK_TCK")  # of /proc, in a second
LONGEST = 900.0  # seconds until a process is killed
BARE = "import argparse, json, sqlite3"
BARE_SERVER = "import bottle, waitress"
# The code of the console script.
START = "from usersctl.__main__ import command; command()"
MOMENT = "2026-11-20T08:22:19.123Z"
USER_AGENT = "Mozilla/5.0 (X11; Linux x86_64; rv:140.0) Gecko/20100101 Firefox/140.0"
HASH = "$2b$12$" + "abcdefghijklmnopqrstuv" + "A" * 31  # well-formed, and of no known password


class Figure(NamedTuple):
    what: str
    values: list[float]  # one per run, or per turn of a single run
    unit: str
    at_most: float | None = None
    at_least: float | None = None

    @property
    def median(self) -> float:
        return statistics.median(self.values)

    @property
    def promise(self) -> str:
        if self.at_most is not None:
            return f"≤ {self.at_most:,g}"
        return f"≥ {self.at_least:,g}" if self.at_least is not None else ""

    @property
    def kept(self) -> bool | None:
        if self.at_most is not None:
            return self.median <= self.at_most
        return self.median >= self.at_least if self.at_least is not None else None

    def with_runs(self, others: Sequence["Figure"]) -> "Figure":
        """This figure of the first run and that of others, each by its median."""
        if not others:
            return self
        return self._replace(values=[figure.median for figure in (self, *others)])

    def as_json(self) -> dict[str, Any]:
        return {**self._asdict(), "median": self.median, "kept": self.kept}


Measure = Callable[["Bench"], Iterator[Figure]]


class Ran(NamedTuple):
    seconds: float
    peak: float  # MB


class Printed(NamedTuple):
    printed: str
    processor: float  # seconds


class Bench:
    """`quick` makes everything small: it shows that the measures work, and its figures mean nothing."""

    def __init__(self, folder: Path, *, quick: bool) -> None:
        self.folder = folder
        self.quick = quick

    @cached_property
    def installed(self) -> str:
        """The path of packages as an installation has them: with byte code, and with schema.sql inside."""
        if self.quick:
            return os.pathsep.join((str(ROOT), str(ROOT / "daemon")))
        target = self._copied("installed")
        compileall.compile_dir(target, quiet=1)
        return str(target)

    @cached_property
    def sources(self) -> str:
        """The path of packages without byte code."""
        return str(self._copied("sources"))

    def _copied(self, name: str) -> Path:
        for package in (ROOT / "usersctl", ROOT / "daemon" / "usersd"):
            target = self.folder / name / package.name
            shutil.copytree(package, target, ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copy(ROOT / "schema.sql", self.folder / name / "usersctl")
        return self.folder / name

    def size(self, full: int, quick: int) -> int:
        return quick if self.quick else full

    def seconds(self, full: float) -> float:
        return 0.05 if self.quick else full

    def environment(self, database: Path | str, *, byte_code: bool = True) -> dict[str, str]:
        # Without the caller's configuration, and without coverage, which would be measured as well.
        ours = ("USERS_", "COV", "PYTHON", "XDG_")
        env = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
        return env | {
            "HOME": str(self.folder),
            "PYTHONPATH": self.installed if byte_code else self.sources,
            "PYTHONDONTWRITEBYTECODE": "1",
            "USERS_DATABASE": str(database),
            "STATE_DIRECTORY": str(self.folder),
        }

    def run(self, words: Sequence[str], env: Mapping[str, str]) -> Ran:
        """Runs one Python process to its end."""
        began = time.perf_counter()
        with self.started(words, env) as process:
            _, status, used = os.wait4(process.pid, 0)
            seconds = time.perf_counter() - began
            process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode != 0:
            raise RuntimeError(f"{' '.join(words)}: exit {process.returncode}")
        # The peak of a process includes what its parent held at the fork, so this process stays small.
        return Ran(seconds, used.ru_maxrss / 1024)

    def wrk(self, words: Sequence[str]) -> Printed:
        command = ["wrk", *words]
        if self.quick:  # wrk takes whole seconds, and when it is interrupted it prints what it has
            command = ["timeout", "--preserve-status", "--signal=INT", "0.5", *command]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        printed = process.stdout.read() if process.stdout else ""
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode != 0:
            raise RuntimeError(f"wrk {' '.join(words)}: exit {process.returncode}")
        return Printed(printed, used.ru_utime + used.ru_stime)

    @contextmanager
    def started(
        self, words: Sequence[str], env: Mapping[str, str], **streams: Any
    ) -> Iterator[subprocess.Popen[str]]:
        process = subprocess.Popen(
            [sys.executable, *words],
            env=dict(env),
            cwd=self.folder,
            text=True,
            **({"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL} | streams),
        )
        timer = threading.Timer(LONGEST, process.kill)
        timer.start()
        try:
            yield process
        finally:
            if process.returncode is None:
                process.terminate()  # a server waits for its processes, so that their processor time counts as ours
                process.wait()
            timer.cancel()

    def usersctl(self, database: Path, *words: str) -> Ran:
        return self.run(["-c", START, *words], self.environment(database))

    def people(self, count: int) -> Path:
        """A database of so many users, each with a session."""

        def fill(connection: sqlite3.Connection) -> None:
            add_users(connection, count)
            add_sessions(connection, count)

        return self.kept(f"people-{count}", fill)

    def kept(self, name: str, fill: Callable[[sqlite3.Connection], None]) -> Path:
        """A database that is filled once, and serves all runs."""
        path = self.folder / f"{name}.db"
        if path.exists():
            into_memory(path)
        else:
            self.database(name)
            # By a process of its own: all that this one starts later would count its peak of memory as theirs.
            filler = multiprocessing.get_context("fork").Process(target=_fill, args=(path, fill))
            filler.start()
            filler.join()
            if filler.exitcode != 0:
                raise RuntimeError(f"{path} was not filled")
        return path

    def database(self, name: str) -> Path:
        """A new, empty database."""
        path = self.folder / f"{name}.db"
        for suffix in ("", "-wal", "-shm"):
            Path(f"{path}{suffix}").unlink(missing_ok=True)
        self.usersctl(path, "db", "init", "--quiet")
        os.sync()  # otherwise the next measure would wait for what the last one wrote
        return path


def into_memory(path: Path) -> None:
    """What the system dropped of a file since the last run would be measured as the speed of the disk."""
    with path.open("rb", buffering=0) as file:
        while file.read(1 << 20):
            pass


def _fill(path: Path, fill: Callable[[sqlite3.Connection], None]) -> None:
    with filling(path) as connection:
        fill(connection)


@contextmanager
def filling(path: Path) -> Iterator[sqlite3.Connection]:
    """A connection for millions of rows, without protection against a power cut."""
    connection = sqlite3.connect(path, isolation_level=None)
    try:
        connection.execute("PRAGMA synchronous = OFF")
        connection.execute("BEGIN")
        yield connection
        connection.execute("COMMIT")
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    finally:
        connection.close()
    os.sync()  # otherwise the next measure would wait for it


def add_users(connection: sqlite3.Connection, count: int, *, hashed: str = HASH) -> None:
    # In one statement, because the index of the search writes to the disk after each.
    connection.execute(
        "WITH RECURSIVE numbers (n) AS (SELECT 0 UNION ALL SELECT n + 1 FROM numbers LIMIT :count)"
        " INSERT INTO users (email, name, name_folded, password_hash, active, created_at, updated_at)"
        " SELECT printf('user%08d@example.com', n), printf('User Number %08d', n), printf('user number %08d', n),"
        " :hashed, 1, :moment, :moment FROM numbers",
        {"count": count, "hashed": hashed, "moment": MOMENT},
    )


def add_sessions(connection: sqlite3.Connection, count: int) -> None:
    """Adds one session for each user, with a known token: `benchmark-` and the number of the user."""
    now = datetime.now(UTC)
    used, ends = (f"{moment:%Y-%m-%dT%H:%M:%S}.000Z" for moment in (now, now + timedelta(days=1)))
    connection.executemany(
        "INSERT INTO auth_tokens (user_id, token_hash, kind, name, created_at, last_used_at, expires_at, limit_at, ip,"
        " user_agent) VALUES (?, ?, 'session', 'login', ?, ?, ?, ?, '192.0.2.7', ?)",
        (
            (1 + n, sha256(b"benchmark-%08d" % n).digest(), used, used, ends, ends, USER_AGENT)
            for n in range(count)
        ),
    )


def add_audit_rows(connection: sqlite3.Connection, count: int) -> None:
    """A sound trail of a minute between two rows: one actor and one action have one row in twenty."""
    first = datetime.now(UTC) - timedelta(minutes=count)

    def rows() -> Iterator[tuple[Any, ...]]:
        link = chain.START
        for n in range(1, count + 1):
            at, is_rare = stamp(first + timedelta(minutes=n)), n % 20 == 10
            actor, action = ("cli:rare", "lockdown-on") if is_rare else (f"user:{1 + n % 7}", "update")
            row = (n, at, actor, "192.0.2.7", action, n, f"user{n:08}@example.com", '{"name": "User"}')
            link = chain.link(link, row)
            yield (*row, link)

    connection.executemany("INSERT INTO audit VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", rows())
    connection.execute(
        "UPDATE audit_head SET (n, hash, latest) = (SELECT id, hash, at FROM audit ORDER BY id DESC LIMIT 1)"
    )


class Others:
    """The processor time that other programs take, in cores: what is busy on the machine without us and our children."""

    def __init__(self) -> None:
        self._began, self._before = time.perf_counter(), _busy_with_others()

    def cores(self) -> float:
        return (_busy_with_others() - self._before) / (time.perf_counter() - self._began)


def _busy_with_others() -> float:
    first = Path("/proc/stat").read_text("utf-8").partition("\n")[0]
    user, nice, system, _idle, _waiting, *interrupts = map(int, first.split()[1:8])
    ours = sum(
        used.ru_utime + used.ru_stime
        for used in map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    )
    return (user + nice + system + sum(interrupts)) / TICKS - ours


def rounds(count: int, measures: Mapping[str, Callable[[], Ran]]) -> dict[str, list[Ran]]:
    """Runs every measure in each round, so that other load of the machine affects all of them alike."""
    ran: dict[str, list[Ran]] = {name: [] for name in measures}
    for _ in range(count):
        for name, measure in measures.items():
            ran[name].append(measure())
    return ran


def ratios(ran: Iterable[float], beside: Iterable[float]) -> list[float]:
    return [value / other for value, other in zip(ran, beside, strict=True)]
