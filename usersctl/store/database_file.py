"""The file of the database: made, opened, copied, and told from what is newer, older or none of ours."""

import os
import sqlite3
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

from usersctl.errors import Invalid, OtherVersion, StoreUnusable, Taken

# Counts up with every change to schema.sql. The step from each version to the next is kept for good.
VERSION = 1
APPLICATION_ID = 0x75737273  # "usrs": what `file` and a stray path tell our database by

BUSY_SECONDS = 5.0
NOT_OURS = "is not a database of usersctl"


class Migrated(NamedTuple):
    accounts: int
    backup: Path
    notes: list[str]


def connect(path: Path, *, read_only: bool = False, no_trace: bool = False) -> sqlite3.Connection:
    """A connection to a file that exists; it is never created here, so a lost file is an error and no empty database.

    `no_trace`: nothing is laid beside it, as every reader else does. Only for a look that may be repeated: whoever
    begins to write in the meantime is not seen.
    """
    uri = path.absolute().as_uri()
    try:
        if no_trace and not any(Path(f"{path}{end}").exists() for end in ("-wal", "-journal")):
            return _open(f"{uri}?immutable=1")
        connection = _open(f"{uri}?mode={'ro' if read_only else 'rw'}")
    except sqlite3.OperationalError:
        if not read_only or Path(f"{path}-wal").exists():
            raise
        # A write-ahead log needs a file beside the database; on a read-only disk that cannot be made, and is not needed.
        connection = _open(f"{uri}?immutable=1")
    connection.execute("PRAGMA foreign_keys = ON")
    connection.execute("PRAGMA synchronous = FULL")
    return connection


def _open(uri: str) -> sqlite3.Connection:
    # Autocommit: a transaction begins where we say so. Each thread has its own connection; only close() crosses over.
    connection = sqlite3.connect(
        uri,
        uri=True,
        timeout=BUSY_SECONDS,
        isolation_level=None,
        cached_statements=256,
        check_same_thread=False,
    )
    try:
        connection.execute("SELECT 1 FROM sqlite_schema LIMIT 1").fetchone()
    except sqlite3.Error:
        connection.close()
        raise
    return connection


def identity(path: Path) -> tuple[int, int] | None:
    """Which file has this name at the moment; None: there is none."""
    try:
        found = os.stat(path)  # noqa: PTH116 - asked at every request
    except OSError:
        return None
    return found.st_dev, found.st_ino


def is_current(connection: sqlite3.Connection, path: Path) -> bool:
    """False for an empty database and for an older one; what is newer, or no database of ours, is refused by name."""
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    if application in (APPLICATION_ID, 0) and version > VERSION:
        raise OtherVersion(
            f"{path} is of schema version {version}, this usersctl knows {VERSION}",
            hint="install the newer usersctl that wrote it",
        )
    if application == APPLICATION_ID and version == VERSION:
        return True
    if application not in (APPLICATION_ID, 0) or version != 0:
        raise StoreUnusable(f"{path} {NOT_OURS}")
    tables = [name for (name,) in connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")]
    if tables and "users" not in (name.lower() for name in tables):
        raise StoreUnusable(f"{path} {NOT_OURS}: it has no table of users")
    return False


def is_empty(connection: sqlite3.Connection) -> bool:
    return connection.execute("SELECT 1 FROM sqlite_schema LIMIT 1").fetchone() is None


def create_file(path: Path) -> None:
    """An empty file that only its owner reads, in a folder that only its owner enters; SQLite's own files copy its mode."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
    except FileExistsError:
        return


# --- copied ---

PAGES = 1024  # in one step of a copy: between two, a bar moves and Ctrl-C is heard


def copy_aside(path: Path, now: datetime) -> Path:
    """A copy beside itself, made by a connection of its own, which sees nothing of what is under way."""
    target = path.with_name(f"{path.name}.before-{now:%Y%m%dT%H%M%S.%fZ}")
    source = connect(path, read_only=True)
    try:
        source.execute("BEGIN")
        copy(source, target)
    finally:
        source.close()
    return target


def copy(
    source: sqlite3.Connection, target: Path, progress: Callable[[int, int], Any] = lambda _done, _total: None
) -> None:
    """Whole and on the disk, or not at all; for its owner only; never in the place of another file.

    `source` is in a transaction, which holds all pages at one moment: without it a copy begins anew whenever somebody
    writes, and under load never ends.
    """
    import tempfile

    _refuse_taken(target)
    source.execute("SELECT 1 FROM sqlite_schema LIMIT 1").fetchone()  # the moment
    try:
        # In a folder of its own, so that nothing that SQLite lays beside it stays behind.
        with tempfile.TemporaryDirectory(prefix=".users-copy-", dir=target.parent) as folder:
            made = Path(folder) / "users.db"
            create_file(made)
            _copy_pages(source, made, progress)
            _publish(made, target)
    except OSError as error:
        raise Invalid(f"{target} cannot be written: {error.strerror}") from None


def _copy_pages(source: sqlite3.Connection, made: Path, progress: Callable[[int, int], Any]) -> None:
    target = sqlite3.connect(made)
    try:
        # It is thrown away if anything happens, and brought to the disk at the end.
        target.execute("PRAGMA journal_mode = OFF")
        target.execute("PRAGMA synchronous = OFF")
        source.backup(
            target, pages=PAGES, progress=lambda _status, left, total: progress(total - left, total)
        )
    except sqlite3.OperationalError as error:
        if error.sqlite_errorcode & 0xFF in (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR):
            raise StoreUnusable(f"No copy in {made.parent.parent}: the disk is full or failing") from None
        raise
    finally:
        target.close()


def _publish(made: Path, target: Path) -> None:
    _to_disk(made)
    try:
        os.link(made, target)
    except OSError:
        # Taken in the meantime, or a file system on which a file has but one name: the name first, then the file.
        _refuse_taken(target)
        os.close(os.open(target, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        made.replace(target)
    _to_disk(target.parent)


def _to_disk(path: Path) -> None:
    number = os.open(path, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)


def _refuse_taken(path: Path) -> None:
    # A log that lost its database would be taken for that of the copy, and change it.
    for each in (path, Path(f"{path}-wal"), Path(f"{path}-journal")):
        if os.path.lexists(each):
            hint = "choose another name, or move it away: a copy never replaces a file"
            raise Taken(f"{each} is there already", hint=hint)
