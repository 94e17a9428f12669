"""Start-up time of every command, in processor time, beside a bare Python that imports what any such command needs."""

import itertools
import json
import os
import re
import shlex
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path

from tests.benchmarks.frame import BARE, START, Bench, Figure, add_users, filling
from tests.benchmarks.servers import free_port

USERS = ("ada", "bob", "grace", "ci")  # the users of the examples
# The words of a command where those of its example do not fit: they need a file, a second run, or a question.
WORDS = {
    "create": "ada@example.com --if-missing",
    "deactivate": "bob@example.com",
    "import": "people.csv --dry-run",
    "export": "-",
    "apply": "state.toml",
    "group create": "editors",
    "invite send": "new@example.com",
    "invite resend": "guest@example.com",
    "invite revoke": "guest@example.com",
    "mail show": "1",
    "mail test": "ada@example.com",
    "healthcheck": "http://127.0.0.1:{port}",
    "serve": "--port {port}",
    "db init": "--db new.db",
    "db move": "new.db",
    "db backup": "copy.db",
    "db verify": "backup.db",
    "db restore": "backup.db --dry-run",
    "lockdown on": "--except ada@example.com --yes",
    "config check": "",
    "snippet": "systemd",
    **{f"webhook {name}": "billing --config webhooks.toml" for name in ("show", "retry", "test")},
}
# Of the commands for them only: others would queue events.
WEBHOOKS = """
[[webhooks]]
name = "billing"
url = "http://127.0.0.1:9/"
events = ["*"]
secrets = ["whsec_AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA="]
allowPrivate = true
"""
# They do the work before they print.
WITH_OTHER_WORK = {
    "mail retry": "an email that is sent",
    "mail test": "an email that is sent",
    "webhook retry": "an event that is sent",
    "webhook test": "an event that is sent",
    "set-password": "a bcrypt hash of cost 10",
    "serve": "the start of the daemon",
    "db move": "a whole database",
}
# In a process of its own: what this one imports would count as memory of all that it starts.
LIST_COMMANDS = "import json, usersctl.cli.tree as tree; print(json.dumps(tree.COMMANDS))"
DONE = (0, 7)  # 7: `healthcheck` and `doctor` have found a problem


def measure(bench: Bench) -> Iterator[Figure]:
    users = bench.size(1_000, 100)
    database = prepared(bench, users)
    env = bench.environment(database)
    # An editable installation that may not write byte code compiles the sources at every start.
    compiling = bench.environment(database, byte_code=False)
    whole = {
        f"list --json of {users:,} users": (["list", "--json"], env, 2.2),
        "--help": (["--help"], env, 4),
        f"list --json of {users:,} users, no byte code": (["list", "--json"], compiling, None),
        "--help, no byte code": (["--help"], compiling, None),
    }
    listed = subprocess.run(
        [sys.executable, "-c", LIST_COMMANDS], env=env, capture_output=True, check=True, timeout=60
    )
    commands = words_of_commands(json.loads(listed.stdout))
    # A test runs all commands, in less time.
    commands = dict(itertools.islice(commands.items(), 0, None, bench.size(1, 12)))
    bare: list[float] = []
    ran: dict[str, list[float]] = {name: [] for name in (*whole, *commands)}
    beside: dict[str, list[float]] = {name: [] for name in ran}

    def note(name: str, measured: Callable[[], float]) -> None:
        bare.append(to_the_end(bench, ["-c", BARE], env))
        ran[name].append(measured())
        beside[name].append(ran[name][-1] / bare[-1])

    for _ in range(bench.size(5, 1)):
        for name, (words, environment, _) in whole.items():
            note(name, partial(to_the_end, bench, ["-c", START, *words], environment))
    for _ in range(bench.size(3, 1)):
        for name, words in commands.items():
            note(name, partial(to_first_output, bench, words, env))
    yield Figure(f'python -c "{BARE}"', [seconds * 1000 for seconds in bare], "ms")
    for name, (_, _, at_most) in whole.items():
        yield Figure(f"usersctl {name}", [seconds * 1000 for seconds in ran[name]], "ms")
        yield Figure("  beside the bare one", beside[name], "times", at_most)
    slowest = sorted(commands, key=lambda name: statistics.median(beside[name]), reverse=True)
    for name in slowest:
        what, at_most = f"usersctl {name}, to its first output", 4
        if name in WITH_OTHER_WORK:
            what, at_most = f"usersctl {name}, with {WITH_OTHER_WORK[name]}", None
        yield Figure(what, beside[name], "times", at_most)


def prepared(bench: Bench, users: int) -> Path:
    """The database of the commands, and beside it the files that they read."""
    database = bench.database("command")
    with filling(database) as connection:
        add_users(connection, users)
        for number, name in enumerate(USERS, 1):
            connection.execute(
                "UPDATE users SET email = ?, role = 'admin' WHERE id = ?", (f"{name}@example.com", number)
            )
    bench.usersctl(database, "update", "5", "--email", "eve@example.org")  # leaves an email in the outbox
    bench.usersctl(database, "invite", "guest@example.com", "--quiet")
    bench.usersctl(database, "group", "create", "staff")
    bench.usersctl(database, "group", "add", "staff", "bob@example.com")
    backup = bench.folder / "backup.db"
    backup.unlink(missing_ok=True)  # of the run before
    bench.usersctl(database, "db", "backup", str(backup))
    (bench.folder / "people.csv").write_text("email,name\neve@example.com,Eve\n", "utf-8")
    (bench.folder / "state.toml").write_text(
        'name = "people"\n[[users]]\nemail = "dan@example.com"\n', "utf-8"
    )
    (bench.folder / "users.toml").write_text("[passwordHashing]\nrounds = 10\n", "utf-8")
    (bench.folder / "webhooks.toml").write_text(WEBHOOKS, "utf-8")
    return database


def fresh(bench: Bench, database: Path) -> dict[str, str]:
    """The variables of one command, which works on a copy of the database."""
    copy = bench.folder / "one-command.db"
    for file in (bench.folder / "new.db", bench.folder / "copy.db", Path(f"{copy}-wal"), Path(f"{copy}-shm")):
        file.unlink(missing_ok=True)
    shutil.copy(database, copy)
    return {"USERS_DATABASE": str(copy), "USERS_CONFIG": str(bench.folder / "users.toml")}


def words_of_commands(table: Mapping[str, list[list[str]]]) -> dict[str, list[str]]:
    """Every command, with the words of its example or those that fit better here."""
    commands = {}
    for name, _, example in itertools.chain.from_iterable(table.values()):
        words = WORDS.get(name, re.split("[<>]", example)[0]).format(port=free_port())
        commands[name] = shlex.split(f"{name} {words}")
    return commands


def to_the_end(bench: Bench, words: list[str], env: Mapping[str, str]) -> float:
    """The processor time of one Python process, in seconds."""
    with bench.started(words, env) as process:
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        raise RuntimeError(f"{' '.join(words)}: exit {process.returncode}")
    return used.ru_utime + used.ru_stime


def to_first_output(bench: Bench, words: list[str], env: Mapping[str, str]) -> float:
    """The processor time of a command on a copy of the database until its first byte of output, in seconds."""
    env = {**env, **fresh(bench, Path(env["USERS_DATABASE"]))}
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    with bench.started(["-c", START, *words], env, **streams) as process:
        assert process.stdout is not None
        first = os.read(process.stdout.fileno(), 1)
        used = time.clock_gettime(clock_of(process.pid))
        if words[0] == "serve":
            return used
        rest = process.stdout.read()
        if process.wait() not in DONE:
            raise RuntimeError(f"{' '.join(words)}: exit {process.returncode}: {first.decode()}{rest}")
    return used


def clock_of(process: int) -> int:
    """The clock of the processor time of another process, as clock_getcpuclockid(3) of Linux numbers it."""
    return (~process << 3) | 2
