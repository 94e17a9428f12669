"""cleanup-tokens of many tokens, and the longest login of another process meanwhile."""

import subprocess
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

from tests.benchmarks.frame import Bench, Figure, add_users, filling

# Logs in without a pause, with the cheapest hash, until its standard input ends. Prints its longest login.
LOGINS = """
import os, select, sys, time
from pathlib import Path
from usersctl.config import Settings
from usersctl.models import Actor
from usersctl.service import build

service = build(Settings(database=Path(sys.argv[1]), base_url="http://127.0.0.1", rounds=4))
password = "correct horse battery"
newcomer = service.accounts.newcomer(f"login-{os.getpid()}@example.com", "Ada")
user = service.accounts.create(newcomer, password, by=Actor("benchmark"))
longest, count = 0.0, 0
print("ready", flush=True)
while not select.select([sys.stdin], [], [], 0.002)[0]:
    began = time.perf_counter()
    service.sessions.login(user.email, password)
    longest, count = max(longest, time.perf_counter() - began), count + 1
service.close()
print(longest, count)
"""


def measure(bench: Bench) -> Iterator[Figure]:
    tokens = bench.size(1_000_000, 3_000)
    database = bench.database("cleanup")
    _expired(database, tokens)
    pause = f"import time; time.sleep({bench.seconds(2)})"
    quiet, _, _ = _logging_in(bench, database, ["-c", pause])
    cleaning = ["-m", "usersctl", "cleanup-tokens", "--quiet"]
    longest, count, seconds = _logging_in(bench, database, cleaning)
    yield Figure(
        f"cleanup-tokens of {tokens:,} expired tokens", [tokens / seconds], "tokens/s", at_least=20_000
    )
    yield Figure("  logins of another process meanwhile", [count / seconds], "logins/s")
    yield Figure("  its longest login", [longest * 1000], "ms", 100)
    yield Figure("  the same in 2 quiet seconds", [quiet * 1000], "ms")


def _logging_in(bench: Bench, database: Path, meanwhile: list[str]) -> tuple[float, int, float]:
    """Returns the longest login in seconds, the number of logins, and the duration of `meanwhile`."""
    env = bench.environment(database)
    streams = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with bench.started(["-c", LOGINS, str(database)], env, **streams) as process:
        if process.stdout is None or process.stdout.readline() != "ready\n":
            raise RuntimeError("the process that logs in did not start")
        seconds = bench.run(meanwhile, env).seconds
        output, _ = process.communicate(timeout=60)
    longest, count = output.split()
    return float(longest), int(count), seconds


def _expired(database: Path, tokens: int) -> None:
    users = max(1, tokens // 100)
    with filling(database) as connection:
        add_users(connection, users)
        connection.executemany(
            "INSERT INTO auth_tokens (user_id, token_hash, kind, name, created_at, last_used_at, expires_at, limit_at,"
            " ip, user_agent) VALUES (?1, randomblob(32), 'session', 'login', ?2, ?2, ?2, ?2, '192.0.2.7',"
            " 'Mozilla/5.0 (X11; Linux x86_64; rv:140.0) Gecko/20100101 Firefox/140.0')",
            ((1 + n % users, _moment(n)) for n in range(tokens)),
        )


def _moment(n: int) -> str:
    """Expiry times in no order, because use prolongs tokens at different moments."""
    return f"{(datetime(2025, 1, 1, tzinfo=UTC) + timedelta(seconds=n * 7919 % 20_000_000)):%Y-%m-%dT%H:%M:%S}.000Z"
