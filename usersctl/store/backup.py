"""A backup of the database: checked from end to end, and put back while everything runs."""

import errno
import re
import shutil
import sqlite3
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from usersctl.clock import Clock, stamp
from usersctl.errors import StoreUnusable, UsersError
from usersctl.models import Actor
from usersctl.store import database_file
from usersctl.store.store import Store, open_store, refusal
from usersctl.store.transaction import Transaction
from usersctl.store.upgrade import schema
from usersctl.text import counted

MOST_PROBLEMS = 20  # of one kind; a file that is torn has thousands


class BackupProblem(NamedTuple):
    check: str
    message: str


class BackupReport(NamedTuple):
    counts: dict[str, int]  # of rows; empty where the file could not be read
    head: str  # of the audit trail
    problems: list[BackupProblem]


# --- checked ---


def check(path: Path, *, read_only: bool = True) -> BackupReport:
    """What is wrong with a current database, at one moment."""
    counts, head, problems = {}, "", []
    with closing(database_file.connect(path, read_only=read_only)) as connection:
        connection.execute("BEGIN")
        for name, look in _CHECKS.items():
            try:
                problems += [BackupProblem(name, message) for message in look(connection)]
            except sqlite3.DatabaseError as error:
                problems.append(BackupProblem(name, f"cannot be checked: {error}"))
        try:
            tx = Transaction(connection)
            found = tx.audit_head()
            counts, head = tx.counts(), found.hash.hex() if found else ""
        except sqlite3.DatabaseError:
            pass  # it has been said what is wrong
    return BackupReport(counts, head, problems)


@contextmanager
def checked_copy(file: Path) -> Iterator[tuple[BackupReport, Path]]:
    """`file` itself is only read, as bytes: a database that is opened may write beside itself."""
    with tempfile.TemporaryDirectory(prefix="users-check-") as folder:
        copy = Path(folder) / "users.db"
        try:
            if file.exists() and not file.is_file() and not file.is_dir():
                raise StoreUnusable(f"{file} is a pipe or a device, and no file")
            for suffix in ("", "-wal", "-journal"):  # a file that was in use has its newest changes beside it
                if not suffix or Path(f"{file}{suffix}").is_file():
                    shutil.copyfile(f"{file}{suffix}", f"{copy}{suffix}")
        except OSError as error:
            if error.errno == errno.ENOSPC:
                told = f"No room in {tempfile.gettempdir()} for a copy of {file}, which is what is opened"
                raise StoreUnusable(told, hint="name another folder in TMPDIR") from None
            raise StoreUnusable(f"{file} cannot be read: {error.strerror}") from None
        try:
            _bring_up(copy)
            found = check(copy, read_only=False)
        except sqlite3.DatabaseError as error:
            found = _unreadable(_said(error, copy), copy, file)
        except UsersError as error:
            found = _unreadable(str(error), copy, file)
        yield found, copy


def _bring_up(copy: Path) -> None:
    """A backup of an older version is judged, and put back, as what it becomes."""
    with closing(database_file.connect(copy)) as connection:
        if database_file.is_empty(connection):
            raise StoreUnusable(f"{copy} is empty")
    open_store(copy).close()


def _unreadable(message: str, copy: Path, file: Path) -> BackupReport:
    return BackupReport({}, "", [BackupProblem("file", message.replace(str(copy), str(file)))])


def _said(error: sqlite3.DatabaseError, path: Path) -> str:
    try:
        return str(refusal(error, path))
    except sqlite3.DatabaseError:
        return f"{path} cannot be opened: {error}"


def _integrity(connection: sqlite3.Connection) -> Iterator[str]:
    for (message,) in connection.execute(f"PRAGMA integrity_check({MOST_PROBLEMS})"):
        if message != "ok":
            yield str(message).replace("\n", " ")


def _foreign_keys(connection: sqlite3.Connection) -> Iterator[str]:
    for table, parent, count in connection.execute(
        'SELECT "table", parent, count(*) FROM pragma_foreign_key_check GROUP BY 1, 2'
    ):
        yield f"{counted(count, 'row')} of {table} belong{'s' * (count == 1)} to {parent} that are not there"


def _schema(connection: sqlite3.Connection) -> Iterator[str]:
    with closing(sqlite3.connect(":memory:")) as fresh:
        fresh.executescript(schema())
        ours = _parts(fresh)
    tables = {name for kind, name in ours if kind == "table"}
    theirs = _parts(connection)
    for (kind, name), (_, sql) in ours.items():
        found = theirs.get((kind, name))
        if found is None:
            yield f"the {kind} {name} is missing"
        elif found[1] != sql:
            yield f"the {kind} {name} is not what it should be"
    for (kind, name), (table, _) in theirs.items():
        # Tables of an older application may stand beside ours, with all that is theirs.
        if table in tables and (kind, name) not in ours:
            yield f"the {kind} {name} does not belong to the table {table}"


def _parts(connection: sqlite3.Connection) -> dict[tuple[str, str], tuple[str, str]]:
    """What there is, of which table, and how it was made, without remarks and space."""
    rows = connection.execute(
        "SELECT type, lower(name), lower(tbl_name), sql FROM sqlite_schema WHERE sql IS NOT NULL AND name <> 'sqlite_sequence'"
    )
    return {
        (kind, name): (table, " ".join(re.sub(r"--[^\n]*", "", sql).split()))
        for kind, name, table, sql in rows
    }


def _counts(connection: sqlite3.Connection) -> Iterator[str]:
    noted = _by_kind(connection, "SELECT role, active, n FROM user_counts WHERE n <> 0")
    there = _by_kind(connection, "SELECT role, active, count(*) FROM users GROUP BY role, active")
    for role, active in sorted(noted.keys() | there.keys()):
        said, actual = noted.get((role, active), 0), there.get((role, active), 0)
        if said != actual:
            kind = f"{'active' if active else 'inactive'} accounts of role {role}"
            yield f"user_counts tells of {said} {kind}, there are {actual}"


def _by_kind(connection: sqlite3.Connection, query: str) -> dict[tuple[str, int], int]:
    return {(role, active): n for role, active, n in connection.execute(query)}


def _audit(connection: sqlite3.Connection) -> Iterator[str]:
    found = Transaction(connection).check_audit()
    if found.problem is not None:
        yield found.problem


_CHECKS: dict[str, Callable[[sqlite3.Connection], Iterator[str]]] = {
    "integrity": _integrity,
    "foreign keys": _foreign_keys,
    "schema": _schema,
    "counts": _counts,
    "audit": _audit,
}


# --- put back ---

_IF_BEYOND_REPAIR = (
    "nothing was replaced; if that database is beyond repair, stop the daemon, move it away with its -wal and -shm,"
    " and restore again"
)


def restore(
    copy: Path,
    path: Path,
    *,
    name: str,
    keep_tokens: bool,
    by: Actor,
    now: Clock,
    progress: Callable[[int, int], Any],
) -> Path | None:
    """`copy`, which was checked and is changed, becomes the content of the database at `path`.

    Answers what keeps the content that it replaces. The file stays the same file, so that a daemon that has it open
    goes on with the new content.
    """
    with closing(open_store(copy)) as source:
        if not path.exists():
            _prepare(source, None, name=name, kept=None, keep_tokens=keep_tokens, by=by, now=now)
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            source.copy(path, progress)
            return None
        kept: Path | None = None

        def first() -> None:
            nonlocal kept
            kept = database_file.copy_aside(path, now())
            with closing(open_store(path, write=False)) as present:
                _prepare(source, present, name=name, kept=kept, keep_tokens=keep_tokens, by=by, now=now)

        try:
            with closing(open_store(path, create=True)) as store:  # what is there may have been cut off
                store.take_over(source, first=first, progress=progress)
        except BaseException as error:
            if kept is not None and _has_happened(source, path):
                return kept  # whatever it was, it came too late
            if kept is not None:
                kept.unlink()
            if isinstance(error, StoreUnusable):
                error.hint = error.hint or _IF_BEYOND_REPAIR
            raise
        return kept


def _has_happened(source: Store, path: Path) -> bool:
    """Whether the database has the row of the trail that tells of this restore."""
    with closing(open_store(path, write=False)) as store, source.read() as ours, store.read() as theirs:
        last = ours.last_audit_row()
        return last is not None and next(theirs.audit_rows(from_id=last.id), None) == last


def _prepare(
    source: Store,
    present: Store | None,
    *,
    name: str,
    kept: Path | None,
    keep_tokens: bool,
    by: Actor,
    now: Clock,
) -> None:
    """What must not go back to what it was, although everything else does."""
    with source.write() as tx:
        replaced: dict[str, Any] = {}
        if not keep_tokens:
            tx.forget_all_tokens()
        if present is not None:
            with present.read() as before:
                head, lockdown = before.audit_head(), before.lockdown()
                replaced = {"rows": head.rows, "hash": head.hash.hex()} if head else {}
                # An application may know its users by their ids, also those who are gone now.
                tx.give_no_user_id_up_to(before.last_user_id_given())
            if lockdown is not None:
                admitted = tx.user_by_email(lockdown.admitted.email) if lockdown.admitted else None
                tx.lock_down(lockdown.since, lockdown.actor, admitted.id if admitted else None)
        tx.audit(
            stamp(now()),
            by,
            "restore",
            backup=name,
            kept=kept.name if kept else None,
            replaced_trail=replaced,
            tokens_kept=keep_tokens,
        )
