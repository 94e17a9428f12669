"""The file of the database: created, opened, copied, and checked for its version."""

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from datetime import datetime
from pathlib import Path

from usersctl.clock import utc_now
from usersctl.errors import Invalid, OtherVersion, StoreUnusable, Taken
from usersctl.named import NamedTuple
from usersctl.store.progress import Progress, unwatched

# Counts up when a release changes schema.sql. Every older version is upgraded when it is opened for writing.
VERSION = 8
APPLICATION_ID = 0x75737273  # "usrs": marks a database of this program, also for file(1)

BUSY_SECONDS = 5.0
NOT_OURS = "is not a database of usersctl"
NAME_ANOTHER = "name another file, with --db or USERS_DATABASE"


class Migrated(NamedTuple):
    accounts: int
    backup: Path | None  # of a file
    notes: list[str]


def connect(path: Path, *, read_only: bool = False, no_trace: bool = False) -> sqlite3.Connection:
    """A connection to an existing file; a missing one is an error here, and does not become an empty database."""
    uri = path.absolute().as_uri()
    try:
        # Without files beside it, as other readers make them. It sees no writer that begins meanwhile, so it is only
        # for reads that can be repeated.
        if no_trace and not any(Path(f"{path}{end}").exists() for end in ("-wal", "-journal")):
            return _open(f"{uri}?immutable=1")
        connection = _open(f"{uri}?mode={'ro' if read_only else 'rw'}")
    except sqlite3.OperationalError as error:
        log = Path(f"{path}-wal")
        if not read_only or (log.exists() and (log.stat().st_size or not is_without_room(error))):
            raise
        # A write-ahead log needs a file beside the database, which a read-only disk neither allows nor needs. A full one has no
        # room for it, and SQLite leaves an empty log there.
        connection = _open(f"{uri}?immutable=1")
    connection.execute("PRAGMA foreign_keys = ON")
    connection.execute("PRAGMA synchronous = FULL")
    # More pages than two transactions of a cleanup change, so that a login in between does not carry them.
    connection.execute("PRAGMA wal_autocheckpoint = 5000")
    return connection


def _open(uri: str) -> sqlite3.Connection:
    # Autocommit: transactions begin explicitly. Each thread uses its own connection; only close() touches all.
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


def identity(path: str) -> tuple[int, int, int] | None:
    """Identifies the file that has this name now, and the permissions that it has; None if there is none."""
    try:
        status = os.stat(path)  # noqa: PTH116 - runs at every request
    except OSError:
        return None
    return status.st_dev, status.st_ino, status.st_mode


def closed_to_this_user(path: Path) -> Path | None:
    """The first of the database and the files beside it that is there and cannot be read."""
    files = (Path(f"{path}{end}") for end in ("", "-wal", "-shm"))
    return next((file for file in files if file.exists() and not os.access(file, os.R_OK)), None)


def version_of(connection: sqlite3.Connection, path: Path) -> int | None:
    """None for an empty database, 0 for one of a deployment from before versions; raises for one that is newer, was moved, or
    belongs to another program."""
    if connection.in_transaction:
        return _version_of(connection, path)
    connection.execute("BEGIN")  # another process may make the tables meanwhile
    try:
        return _version_of(connection, path)
    finally:
        with suppress(sqlite3.OperationalError):  # an error may have ended it
            connection.execute("ROLLBACK")


def _version_of(connection: sqlite3.Connection, path: Path) -> int | None:
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    if application in (APPLICATION_ID, 0) and version > VERSION:
        raise newer(str(path), version)
    if application == APPLICATION_ID and version > 0:
        return int(version)
    if application == APPLICATION_ID and version < 0:
        raise moved(str(path), *connection.execute("SELECT moved_to FROM usersctl_moved").fetchone())
    if application not in (APPLICATION_ID, 0) or version != 0:
        raise StoreUnusable(f"{path} {NOT_OURS}", hint=NAME_ANOTHER)
    parts = connection.execute("SELECT type, name FROM sqlite_schema").fetchall()
    tables = {name.lower() for kind, name in parts if kind == "table"}
    if tables and "users" not in tables:
        raise StoreUnusable(f"{path} {NOT_OURS}: it has no table of users", hint=NAME_ANOTHER)
    # Deployments from before versions had none, and an upgrade keeps their accounts alone.
    if "audit_head" in tables:
        raise unversioned(path)
    return 0 if parts else None


def newer(name: str, version: int) -> OtherVersion:
    message = f"{name} is of version {version}, this usersctl knows {VERSION}"
    return OtherVersion(message, hint="install the newer usersctl that wrote it")


def unversioned(path: Path) -> OtherVersion:
    import shlex  # late: hardly ever needed

    marks = f"PRAGMA application_id = {APPLICATION_ID}; PRAGMA user_version = {VERSION}"
    hint = (
        f"if its version was {VERSION}: sqlite3 {shlex.quote(str(path))} '{marks}'; then: usersctl db verify"
    )
    return OtherVersion(f"{path} has lost its version, as in a copy by .dump of sqlite3", hint=hint)


def replaced(path: Path) -> str:
    """How a backup takes the place of a file that cannot be opened. A restore leaves such a file as it is."""
    return f"stop the daemon, move {path} and its -wal and -shm away, then: usersctl db restore FILE"


def moved(name: str, moved_to: str) -> OtherVersion:
    import json  # late: most commands need none of it

    hint = f"set database = {json.dumps(moved_to, ensure_ascii=False)}, and start again; what is here is as it was then"
    return OtherVersion(f"{name} was moved to {moved_to}", hint=hint)


def create_file(path: Path, *, owner: Path | None = None) -> None:
    """An empty file that only its owner reads, in a folder that only its owner enters; SQLite's own files copy its mode.

    If root makes it, it belongs to the owner of its folder, or of the folder `owner`.
    """
    from usersctl.ownership import give_to  # late: most commands make no file

    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with suppress(FileExistsError):
        handle = os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600)
        try:
            with suppress(PermissionError):  # then it stays root's
                give_to((owner or path.parent).stat(), handle)
        finally:
            os.close(handle)


# --- copied ---

UNFINISHED = ".users-copy-"  # the beginning of the name of the folder of a copy that is being made
A_MINUTE = 60.0  # seconds
PAGES = 1024  # in one step of a copy; between steps the progress bar moves and Ctrl-C works


def in_name(now: datetime) -> str:
    """The time as it stands in the name of a file: names sort as their times."""
    return f"{now:%Y%m%dT%H%M%S.%fZ}"


def copy_aside(path: Path, now: datetime, ending: str = "") -> Path:
    """Copies the database to a file beside it, through a connection of its own, which sees only what is committed."""
    target = path.with_name(f"{path.name}.before-{in_name(now)}{ending}")
    with closing(connect(path, read_only=True)) as source:
        source.execute("BEGIN")
        copy(source, target, owner=path)
    return target


def copy(
    source: sqlite3.Connection, target: Path, progress: Progress = unwatched, *, owner: Path | None = None
) -> None:
    """Writes a complete copy, or none, that its owner alone can read. `source` must be in a transaction."""
    with new_file(target, owner=owner) as made:
        # Takes the snapshot. Without one SQLite starts again after every write of others, and under load never ends.
        source.execute("SELECT 1 FROM sqlite_schema LIMIT 1").fetchone()
        with closing(sqlite3.connect(made)) as copied:
            # An error discards the copy, and _publish() syncs it to the disk.
            copied.execute("PRAGMA journal_mode = OFF")
            copied.execute("PRAGMA synchronous = OFF")
            source.backup(copied, pages=PAGES, progress=lambda _, left, total: progress(total - left, total))


@contextmanager
def temporary_folder(prefix: str, parent: Path | None = None) -> Iterator[Path]:
    """For its owner alone. A signal that comes while it is removed leaves nothing, unlike with TemporaryDirectory; and what
    a killed process leaves is removed by the next one, because the kernel frees its lock.

    The prefix begins with a dot, so that nobody gives a folder of their own such a name by chance.
    """
    import fcntl
    import shutil
    import tempfile

    _remove_left(Path(parent or tempfile.gettempdir()), prefix)
    folder = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
    handle = os.open(folder, os.O_RDONLY)
    try:
        with suppress(OSError):  # some file systems have no locks
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield folder
    finally:
        try:
            shutil.rmtree(folder)
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        finally:
            os.close(handle)


def _remove_left(parent: Path, prefix: str) -> None:
    import fcntl
    import shutil

    for folder in parent.glob(f"{prefix}*"):
        with suppress(OSError):  # somebody else's, locked, or gone
            handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                status = os.fstat(handle)
                # A younger one may be about to be locked.
                if status.st_uid == os.geteuid() and utc_now().timestamp() - status.st_mtime > A_MINUTE:
                    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    shutil.rmtree(folder)
            finally:
                os.close(handle)


@contextmanager
def new_file(target: Path, *, owner: Path | None = None) -> Iterator[Path]:
    """An empty file for its owner alone. It gets the name `target` when the block ends without an error.

    If root makes it, it belongs to the owner of `owner`. Without that, as a backup, it stays with its maker, wherever that puts it.
    """
    _refuse_taken(target)
    try:
        # In a temporary folder, so that no file that SQLite creates beside it stays behind.
        with temporary_folder(UNFINISHED, target.parent) as folder:
            made = folder / "users.db"
            create_file(made, owner=owner or folder)
            yield made
            _publish(made, target)
    except sqlite3.OperationalError as error:
        if is_without_room(error):
            message = f"No copy in {target.parent}: the disk is full or failing"
            raise StoreUnusable(message, hint="make room on that disk, and try again") from None
        raise
    except OSError as error:
        raise Invalid(f"{target} cannot be written: {error.strerror}") from None


def is_without_room(error: sqlite3.OperationalError) -> bool:
    """Whether the disk is full, or failing."""
    return primary_code(error) in (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR)


def primary_code(error: sqlite3.Error) -> int:
    """Without what its extended code adds to it; SQLITE_OK for an error that is not SQLite's own."""
    return getattr(error, "sqlite_errorcode", sqlite3.SQLITE_OK) & 0xFF


def _publish(made: Path, target: Path) -> None:
    to_disk(made)
    try:
        os.link(made, target)
    except OSError:
        # The name was taken meanwhile, or the file system has no hard links: then create the name first.
        _refuse_taken(target)
        os.close(os.open(target, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        made.replace(target)
    to_disk(target.parent)


def to_disk(path: Path) -> None:
    number = os.open(path, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)


def _refuse_taken(path: Path) -> None:
    # SQLite would apply a leftover log to the copy, and change it.
    for file in (path, Path(f"{path}-wal"), Path(f"{path}-journal")):
        if os.path.lexists(file):
            hint = "choose another name, or move it away: a copy never replaces a file"
            raise Taken(f"{file} is there already", hint=hint)
