"""Runs code in one process after the other. Each is killed before a later SQL statement, until one reaches its end."""

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

made, work, step = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
opened = database_file._open
operator = Actor("cli:tester", "local")


def service_on(database):
    return Service(Settings(database=database, base_url="http://localhost"), open_store(database))


exec(sys.argv[4])


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
    act(folder / "users.db")
    os._exit(0)


at = 0
status = signal.SIGKILL
while status == signal.SIGKILL:
    at += step
    folder = work / str(at)
    shutil.copytree(made, folder)
    status = os.waitpid(os.fork() or act_until(folder, at), 0)[1]
sys.exit(status != 0)
"""


@contextmanager
def folders_after_kills(made: Path, code: str, *, step: int = 1) -> Iterator[list[Path]]:
    """`code` defines act(database), and may use service_on(database). Each folder is a copy of `made`, as one of the killed
    processes left it, and named by the number of its statement; the last process ended by itself. `step`: 1 for each
    statement."""
    with TemporaryDirectory(dir=IN_MEMORY) as work:
        done = subprocess.run(
            [sys.executable, "-c", _HARNESS, str(made), work, str(step), code],
            check=False,
            capture_output=True,
            text=True,
            timeout=500,
        )
        assert done.returncode == 0, done.stderr
        folders = sorted(Path(work).iterdir(), key=lambda folder: int(folder.name))
        assert len(folders) * step > 10
        yield folders
