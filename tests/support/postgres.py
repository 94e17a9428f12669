"""One PostgreSQL server for all tests of a run, in a temporary folder, and a database of its own for each test.

It starts when the first test needs it. All workers share it, so what one of them does for all is done under a lock.
"""

import fcntl
import os
import pwd
import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from functools import cache
from itertools import count
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import pytest
from support.ports import free_port

from usersctl.store.conninfo import Conninfo
from usersctl.store.opening import open_store

# A folder for what is written much: nothing is lost with it but time.
IN_MEMORY = next((folder for folder in ("/dev/shm",) if Path(folder).is_dir()), None)

# Where the programs of a server are, the newest version first: Debian's folders, and what an operator may have set.
# The variable POSTGRES_PROGRAMS names the folder of another version.
_PROGRAMS = ("/usr/lib/postgresql/*/bin", "/usr/pgsql-*/bin", "/usr/local/bin", "/usr/bin")
_FOLDER, _WHOLE = "POSTGRES_FOLDER", "POSTGRES_WHOLE"  # variables that the workers inherit
_TEMPLATE = "users_template"
_SETTINGS = {
    "max_connections": 400,
    "shared_buffers": "128MB",
    "autovacuum": "off",
    # Nothing is lost with a database of a test but time.
    "fsync": "off",
    "synchronous_commit": "off",
    "full_page_writes": "off",
    "max_wal_size": "4GB",
    "checkpoint_timeout": "1h",
}
_numbers = count(1)


def begin(*, whole: bool) -> None:
    """In the process that starts the workers. `whole`: the tests open all their stores there."""
    folder = Path(mkdtemp(prefix="postgres-", dir=IN_MEMORY))
    os.environ |= {_FOLDER: str(folder)} | ({_WHOLE: "1"} if whole else {})
    folder.chmod(0o755)
    (folder / "pid").write_text(str(os.getpid()))
    for other in folder.parent.glob("postgres-*/pid"):
        with suppress(PermissionError, FileNotFoundError, ValueError):
            _end_of_killed_run(other)


def _end_of_killed_run(file: Path) -> None:
    try:
        os.kill(int(file.read_text()), 0)
    except ProcessLookupError:
        end(file.parent)


def end(folder: Path | None = None) -> None:
    folder = folder or Path(os.environ[_FOLDER])
    if (folder / "data" / "postmaster.pid").exists():
        # A killed run can leave the file of a server that has ended; then there is nothing to stop.
        with suppress(subprocess.CalledProcessError):
            _run("pg_ctl", "stop", "--pgdata", folder / "data", "--mode=immediate", "--silent")
    shutil.rmtree(folder, ignore_errors=True)


def is_whole() -> bool:
    """Whether the whole suite runs on PostgreSQL."""
    return _WHOLE in os.environ


def needed() -> None:
    """Skips the test where there is no server, all tests in one line of the report; with POSTGRES_TESTS=required it fails."""
    missing = _missing()
    if missing and os.environ.get("POSTGRES_TESTS") == "required":
        pytest.fail(missing)
    if missing:
        pytest.skip(missing)


@cache
def _missing() -> str | None:
    if programs() is None:
        return "PostgreSQL is not installed: apt install postgresql"
    try:
        import psycopg  # noqa: F401
    except ImportError:
        return "the extra postgres is not installed: pip install -e '.[postgres]'"
    return None


@cache
def programs() -> Path | None:
    named = os.environ.get("POSTGRES_PROGRAMS")
    found = [
        folder
        for pattern in ([named] if named else _PROGRAMS)
        for folder in Path("/").glob(pattern[1:])
        if (folder / "initdb").exists()
    ]
    return max(found, key=lambda folder: [int(n) for n in folder.parts if n.isdecimal()], default=None)


def _run(program: str, *words: str | Path) -> None:
    """As another user than root, whom PostgreSQL refuses."""
    folder = programs()
    assert folder is not None
    other: dict[str, Any] = {}
    if os.geteuid() == 0:
        account = pwd.getpwnam(owner())
        other = {"user": account.pw_uid, "group": account.pw_gid, "extra_groups": []}
    with Path(os.environ[_FOLDER], "log").open("ab") as log:
        start = [folder / program, *words]
        subprocess.run(
            start, cwd="/", stdin=subprocess.DEVNULL, stdout=log, stderr=log, check=True, timeout=120, **other
        )


def owner() -> str:
    try:
        return pwd.getpwnam("postgres").pw_name
    except KeyError:
        return "nobody"


@contextmanager
def _alone() -> Iterator[Path]:
    """Yields the folder of the server, to one worker at a time."""
    folder = Path(os.environ[_FOLDER])
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield folder


@cache
def server() -> str:
    """Its address, before the name of a database."""
    needed()
    with _alone() as folder:
        address = folder / "address"
        if not address.exists():
            _start(folder, port := free_port())
            address.write_text(f"postgresql://users@127.0.0.1:{port}")
        return address.read_text()


def _start(folder: Path, port: int) -> None:
    data = folder / "data"
    data.mkdir()
    if os.geteuid() == 0:
        shutil.chown(data, owner())
    _run(
        "initdb",
        "--pgdata",
        data,
        "--username=users",
        "--auth=trust",
        "--encoding=UTF8",
        "--locale=C.UTF-8",
        "--no-sync",
    )
    settings = _SETTINGS | {
        "port": port,
        "listen_addresses": "127.0.0.1",
        "unix_socket_directories": str(data),
    }
    with (data / "postgresql.conf").open("a") as file:
        file.writelines(f"{name} = '{value}'\n" for name, value in settings.items())
    _run("pg_ctl", "start", "--pgdata", data, "--wait", "--silent", "--log", data / "log")


@cache
def _admin() -> Any:
    from usersctl.store.postgres.driver import Connection

    return Connection(Conninfo(f"{server()}/postgres"))


def run(statement: str) -> list[tuple[Any, ...]]:
    """A statement about the server."""
    with _admin().patient(600):
        rows: list[tuple[Any, ...]] = _admin().run(statement).fetchall()
    return rows


def add_database(*, empty: bool = False) -> Conninfo:
    """A new database, with our tables unless it is to be `empty`."""
    name = f"test_{os.getpid()}_{next(_numbers)}"
    template = "template0" if empty else _template()
    run(f"CREATE DATABASE {name} TEMPLATE {template}")
    return Conninfo(f"{server()}/{name}")


def copied(database: Conninfo, number: str) -> Conninfo:
    """A copy of a database that nothing is connected to."""
    copy = Conninfo(f"{database}_{number}")
    run(f"CREATE DATABASE {name_of(copy)} TEMPLATE {name_of(database)}")
    return copy


def drop_database(database: Conninfo) -> None:
    run(f"DROP DATABASE IF EXISTS {name_of(database)} WITH (FORCE)")


def name_of(database: Conninfo) -> str:
    return database.rpartition("/")[2]


@cache
def _template() -> str:
    address = server()
    with _alone():
        if (_TEMPLATE,) not in run("SELECT datname FROM pg_database"):
            run(f"CREATE DATABASE {_TEMPLATE} TEMPLATE template0")
            open_store(Conninfo(f"{address}/{_TEMPLATE}"), create=True).close()
    return _TEMPLATE


@contextmanager
def opened(database: Conninfo) -> Iterator[Any]:
    from usersctl.store.postgres.driver import Connection

    with closing(Connection(database)) as connection, connection.patient(600):
        yield connection


def worded(statement: str) -> str:
    """A statement of a test whose bytes stand in it as SQLite writes them."""
    statement = re.sub(r"zeroblob\((\d+)\)", lambda found: f"x'{'00' * int(found[1])}'", statement)
    return re.sub(r"\bx'([0-9a-f]*)'", r"CAST('\\x\1' AS BYTEA)", statement)


def hold(connection: Any) -> None:
    """Begins a transaction as the one writer."""
    from usersctl.store.postgres.store import WRITERS

    connection.run(f"BEGIN; SELECT pg_advisory_xact_lock({WRITERS})")


def end_connections(database: Conninfo) -> None:
    run(f"SELECT pg_terminate_backend(pid, 5000) {_of_connections(database)}")


def count_connections(database: Conninfo) -> int:
    ((count,),) = run(f"SELECT count(*) {_of_connections(database)}")
    return int(count)


def waits_for_a_row(database: Conninfo) -> bool:
    """Whether a transaction waits until another one ends, which has changed the same row."""
    ((count,),) = run(f"SELECT count(*) {_of_connections(database)} AND wait_event = 'transactionid'")
    return bool(count)


def _of_connections(database: Conninfo) -> str:
    return f"FROM pg_stat_activity WHERE datname = '{name_of(database)}'"
