"""A move of a million users to a server and back: the same export and the same trail, in minutes and in little memory.

Some thousands in each run, a million in the long version (`USERSCTL_LONG=1 pytest tests/faults -k test_move_large`).
"""

import hashlib
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.commands import HASH, Command
from support.faults import LONG

from usersctl.store import chain
from usersctl.store.conninfo import Conninfo
from usersctl.store.content import tables
from usersctl.store.new_file import new_file

pytestmark = pytest.mark.sqlite  # each test names its databases

USERS = 1_000_000 if LONG else 3_000
SECONDS = 600  # there and back; the short version does not judge a machine that others use, too
MEGABYTES = 200
AT = "2026-11-20T08:22:19.123Z"


def fill(path: Path) -> None:
    """Users with one session and one audit row each."""
    with new_file(path) as new:
        for table, rows in (("users", users), ("auth_tokens", sessions), ("audit", trail)):
            columns = tables()[table]
            new.put(table, columns, ([row.get(column) for column in columns] for row in rows()))
        of_kind = {"role": "user", "active": 1, "awaiting_confirmation": 0, "invited": 0, "signed_in": 1}
        new.put("user_counts", [*of_kind, "n"], [(*of_kind.values(), USERS)])
        end = {"id": 1, "n": USERS, "hash": head[0], "latest": AT, "set_back": 0}
        new.put("audit_head", list(end), [tuple(end.values())])
        new.complete({"users": USERS, "auth_tokens": USERS, "audit": USERS})
        assert new.problems() == []
        new.finish()


def users() -> Iterator[dict[str, Any]]:
    for n in range(1, USERS + 1):
        row = {"id": n, "email": f"user{n}@example.com", "name": f"Üser {n}", "name_folded": f"user {n}"}
        row |= {"password_hash": HASH, "role": "user", "active": 1, "awaiting_confirmation": 0, "factors": 0}
        yield row | {"created_at": AT, "updated_at": AT, "last_login_at": AT, "invited_nameless": 0}


def sessions() -> Iterator[dict[str, Any]]:
    for n in range(1, USERS + 1):
        token = hashlib.sha256(b"%d" % n).digest()
        row = {
            "id": n,
            "user_id": n,
            "token_hash": token,
            "kind": "session",
            "name": "",
            "opened_with": "pwd",
        }
        yield row | {
            "created_at": AT,
            "last_used_at": AT,
            "expires_at": AT,
            "user_agent": "Mozilla/5.0 (X11)",
        }


head = [chain.START]


def trail() -> Iterator[dict[str, Any]]:
    columns = tables()["audit"]
    for n in range(1, USERS + 1):
        row = (n, AT, "cli:tester", "local", "create", n, f"user{n}@example.com", '{"role": "user"}')
        head[0] = chain.link(head[0], row)
        yield dict(zip(columns, (*row, head[0]), strict=True))


def run(usersctl: Command, *words: str, database: str) -> tuple[float, float]:
    """Returns the seconds and the megabytes that it took."""
    began = time.monotonic()
    start = [sys.executable, "-m", "usersctl", *words]
    process = subprocess.Popen(start, env=usersctl.env | {"USERS_DATABASE": database}, cwd=usersctl.folder)
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0
    return time.monotonic() - began, used.ru_maxrss / 1024


def said_of(usersctl: Command, database: str) -> list[bytes]:
    """The digest of the export, and what the check of the trail says."""
    said = []
    for words in (("export", "--with-hashes"), ("audit", "verify")):
        start = [sys.executable, "-m", "usersctl", *words]
        env = usersctl.env | {"USERS_DATABASE": database}
        with subprocess.Popen(start, env=env, stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            said.append(hashlib.file_digest(process.stdout, "sha256").digest())
        assert process.returncode == 0
    return said


@pytest.mark.slow
def test_a_million_users_move_to_a_server_and_back(
    usersctl: Command, postgres_database: Callable[..., Conninfo]
) -> None:
    fill(usersctl.folder / "users.db")
    server, back = str(postgres_database(empty=True)), str(usersctl.folder / "back.db")
    before = said_of(usersctl, str(usersctl.database))
    there = run(usersctl, "db", "move", server, database=str(usersctl.database))
    assert said_of(usersctl, server) == before
    again = run(usersctl, "db", "move", back, database=server)
    assert said_of(usersctl, back) == before
    print(
        f"{USERS} users: there in {there[0]:.0f} s and {there[1]:.0f} MB, back in {again[0]:.0f} s and {again[1]:.0f} MB"
    )
    if LONG:  # the peak of a process includes that of the one that started it, which ran other tests before
        assert max(there[1], again[1]) < MEGABYTES
        assert there[0] + again[0] <= SECONDS
