"""Runs code in one process after the other. Each is killed before a later SQL statement, until one reaches its end."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from support.databases import IN_MEMORY, database_at, fields_of, use_database

from usersctl.config import Settings
from usersctl.service import Service
from usersctl.store.conninfo import Conninfo
from usersctl.store.opening import open_store

# A process of its own, because it forks, and so must have no threads and no open database.
_HARNESS = """
import os, shutil, signal, sys
from pathlib import Path
from support import postgres
from support.databases import fields_of
from usersctl.config import Settings
from usersctl.models import UNKNOWN_CLIENT, Actor, Proof
from usersctl.service import Service
from usersctl.store import database_file
from usersctl.store.conninfo import Conninfo
from usersctl.store.opening import open_store
import cryptography.hazmat.primitives.ciphers.aead, segno, usersctl.factors.enrolment, usersctl.factors.rotation, usersctl.sessions

made, work, step, server = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), Conninfo(sys.argv[4])
operator = Actor("cli:tester", "local")


def service_on(database):
    fields = fields_of(database, work / str(at))
    return Service(Settings(**fields, base_url="http://localhost"), open_store(database))


if server:
    import usersctl.store.postgres.store
exec(sys.argv[5])


def copied(folder):
    shutil.copytree(made, folder)
    if server:
        return postgres.copied(server, folder.name)
    return folder / "users.db"


def act_on(database):
    begun = 0

    def count(*_statement):
        nonlocal begun
        begun += 1
        if begun == at:
            os.kill(os.getpid(), signal.SIGKILL)

    if server:
        watch_server(count)
    else:
        watch_file(count)
    act(database)
    os._exit(0)


def watch_file(count):
    opened = database_file._open

    def open_and_watch(*arguments):
        connection = opened(*arguments)
        connection.set_trace_callback(count)
        return connection

    database_file._open = open_and_watch


def watch_server(count):
    from usersctl.store.postgres.driver import Connection

    sent = Connection._sent

    def counted(*arguments, **keywords):
        count()
        return sent(*arguments, **keywords)

    Connection._sent = counted


at = 0
status = signal.SIGKILL
while status == signal.SIGKILL:
    at += step
    database = copied(work / str(at))
    status = os.waitpid(os.fork() or act_on(database), 0)[1]
sys.exit(status != 0)
"""


def opened(folder: Path) -> Service:
    database = database_at(folder / "users.db")
    fields = fields_of(database, folder)
    return Service(Settings(**fields, base_url="http://localhost", rounds=4), open_store(database))


@contextmanager
def folders_after_kills(made: Path, code: str, *, step: int = 1) -> Iterator[list[Path]]:
    """`code` defines act(database), and may use service_on(database). Each folder is a copy of `made`, as one of the killed
    processes left it, and named by the number of its statement; the last process ended by itself. `step`: 1 for each
    statement. `database_at` knows the databases of the folders that are on the server."""
    database = database_at(made / "users.db")
    server = ""
    if isinstance(database, Conninfo):
        server = database
    with TemporaryDirectory(dir=IN_MEMORY) as work:
        done = subprocess.run(
            [sys.executable, "-c", _HARNESS, str(made), work, str(step), server, code],
            env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[1])},
            check=False,
            capture_output=True,
            text=True,
            timeout=500,
        )
        assert done.returncode == 0, done.stderr
        folders = sorted(Path(work).iterdir(), key=lambda folder: int(folder.name))
        assert len(folders) * step > 10
        if server:
            for folder in folders:
                use_database(folder / "users.db", Conninfo(f"{server}_{folder.name}"))
        yield folders
