"""Runs a piece of code in processes that are killed before each of its SQL statements in turn, until one reaches its end."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from support.databases import IN_MEMORY

# A process of its own, because it forks, and so must have no threads and no open database.
_HARNESS = """
import os, shutil, signal, sys
from pathlib import Path
from usersctl.config import Settings
from usersctl.models import UNKNOWN_CLIENT, Actor, Proof
from usersctl.service import Service
from usersctl.store import database_file
from usersctl.store.opening import open_store
import cryptography.hazmat.primitives.ciphers.aead, segno, usersctl.factors.enrolment, usersctl.factors.rotation, usersctl.sessions

made, work = Path(sys.argv[1]), Path(sys.argv[2])
exec(sys.argv[3])
opened = database_file._open
operator = Actor("cli:tester", "local")


def act_until(folder, at):
    begun = 0

    def count(_statement):
        nonlocal begun
        begun += 1
        if begun == at:
            os.kill(os.getpid(), signal.SIGKILL)

    def open_and_watch(*arguments):
        connection = opened(*arguments)
        connection.set_trace_callback(count)
        return connection

    database_file._open = open_and_watch
    database = folder / "users.db"
    act(Service(Settings(database=database, base_url="http://localhost"), open_store(database)))
    os._exit(0)


at = 0
status = signal.SIGKILL
while status == signal.SIGKILL:
    at += 1
    folder = work / str(at)
    shutil.copytree(made, folder)
    status = os.waitpid(os.fork() or act_until(folder, at), 0)[1]
sys.exit(status != 0)
"""


@contextmanager
def folders_after_kills(made: Path, code: str) -> Iterator[list[Path]]:
    """`code` defines act(service). Each folder is a copy of `made`, as one of the killed processes left it; the last one ended
    by itself."""
    with TemporaryDirectory(dir=IN_MEMORY) as work:
        done = subprocess.run(
            [sys.executable, "-c", _HARNESS, str(made), work, code],
            check=False,
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert done.returncode == 0, done.stderr
        folders = sorted(Path(work).iterdir(), key=lambda folder: int(folder.name))
        assert len(folders) > 10
        yield folders
