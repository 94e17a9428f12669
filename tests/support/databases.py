"""Databases of tests: an empty one is made and then copied, and no test waits until the disk has what it wrote."""

import sqlite3
from functools import cache, wraps
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from usersctl.store import database_file
from usersctl.store.opening import open_store

# A folder for databases of tests that write much: nothing is lost with them but time.
IN_MEMORY = next((folder for folder in ("/dev/shm",) if Path(folder).is_dir()), None)


def spare_the_disk() -> None:
    """From now on a commit in this process does not wait for the disk. Only a power cut would tell the difference."""
    connect = database_file.connect

    @wraps(connect)  # which keeps the original as __wrapped__, for the tests of it
    def connected(*arguments: Any, **keywords: Any) -> sqlite3.Connection:
        connection = connect(*arguments, **keywords)
        connection.execute("PRAGMA synchronous = OFF")
        return connection

    database_file.connect = connected


def add_database(path: Path) -> None:
    """Puts an empty database at this path, if there is no file yet."""
    if not path.exists():
        database_file.create_file(path)
        path.write_bytes(_content())


@cache
def _content() -> bytes:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "users.db"
        open_store(path, create=True).close()
        return path.read_bytes()
