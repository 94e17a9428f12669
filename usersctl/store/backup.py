"""Checks a backup or a database completely, and restores a backup while the daemon runs."""

import errno
import os
import re
import shutil
import sqlite3
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from usersctl.clock import Clock
from usersctl.errors import Damaged, Invalid, OtherVersion, ServerAway, StoreUnusable, UsersError
from usersctl.models import Actor
from usersctl.named import NamedTuple
from usersctl.store import database_file
from usersctl.store.checks import Begins, Problem, Report, check, check_on_server, unseen
from usersctl.store.conninfo import Conninfo, Database
from usersctl.store.opening import open_store
from usersctl.store.progress import Progress
from usersctl.store.sqlite_store import store_error
from usersctl.store.store import Store
from usersctl.store.transaction import Transaction
from usersctl.text import visible

DELETIONS_WAIT = timedelta(days=7)

# --- check ---


def check_in_use(store: Store, begins: Begins = unseen) -> Report:
    """Checks the database in one snapshot, where it is."""
    if not isinstance(store.database, Conninfo):
        return check(store.database, begins)
    with store.read() as tx:
        store.whole()
        return check_on_server(tx, begins)


@contextmanager
def checked_copy(file: Path, begins: Begins = unseen) -> Iterator[tuple[Report, Path]]:
    """Yields the report on a copy of `file`, and the copy: opening `file` itself may create files beside it."""
    with database_file.temporary_folder(".users-check-") as folder:
        copy = folder / "users.db"
        try:
            if file.exists() and not file.is_file() and not file.is_dir():
                raise StoreUnusable(f"{file} is a pipe or a device, not a file")
            for suffix in ("", "-wal", "-journal"):  # a database in use has its latest changes in the log
                if not suffix or _is_beside(file, suffix):
                    shutil.copyfile(f"{file}{suffix}", f"{copy}{suffix}")
        except OSError as error:
            if error.errno == errno.ENOSPC:
                raise _no_room_for(file) from None
            raise StoreUnusable(f"{error.filename or file} cannot be read: {error.strerror}") from None
        try:
            _upgrade(copy)
            report = check(copy, begins, read_only=False)
        except (sqlite3.DatabaseError, UsersError) as error:
            if _lacks_room(error):
                raise _no_room_for(file) from None
            message = _described(error, copy).replace(str(copy), str(file))
            other = None
            if isinstance(error, OtherVersion):
                other = OtherVersion(message, hint=str(error.hint).replace(str(copy), str(file)))
            report = Report({}, "", [Problem("file", message)], other)
        yield report, copy


def _no_room_for(file: Path) -> StoreUnusable:
    message = f"{tempfile.gettempdir()} has no room for a copy of {file}; only a copy is opened"
    return StoreUnusable(message, hint="name another folder in TMPDIR")


def _lacks_room(error: Exception) -> bool:
    """Whether a copy could not be used because of the folder that it is in: that says nothing of what was copied."""
    cause = error if isinstance(error, sqlite3.Error) else error.__cause__
    return isinstance(cause, sqlite3.OperationalError) and database_file.is_without_room(cause)


def _is_beside(file: Path, suffix: str) -> bool:
    """Refuses a log that another user put there, as into /tmp: it changes what is checked and restored."""
    log = Path(f"{file}{suffix}")
    if not log.is_file():
        return False
    if log.lstat().st_uid not in (0, os.geteuid(), file.stat().st_uid):
        raise StoreUnusable(
            f"{log} belongs to another user", hint="move the backup, without it, to another folder"
        )
    return True


def _upgrade(copy: Path) -> None:
    """Upgrades a backup of an older version, because it is restored as the current version."""
    with closing(database_file.connect(copy)) as connection:
        if connection.execute("SELECT 1 FROM sqlite_schema LIMIT 1").fetchone() is None:
            raise StoreUnusable(f"{copy} is empty")
        (number,) = connection.execute("PRAGMA user_version").fetchone()
        if number < 0:  # it was moved away, and is a backup of that moment
            connection.execute("DROP TABLE usersctl_moved")
            connection.execute(f"PRAGMA user_version = {-number}")
        if database_file.version_of(connection, copy) == database_file.VERSION:
            return
    open_store(copy).close()


def _described(error: sqlite3.DatabaseError | UsersError, path: Path) -> str:
    if isinstance(error, UsersError):
        return str(error)
    try:
        return str(store_error(error, path))
    except sqlite3.DatabaseError:
        return f"{path} cannot be opened: {error}"


# --- dated backups ---


UNVERIFIED = ".unverified"
A_DAY = 86_400  # seconds


class DatedBackups(NamedTuple):
    """The backups in a folder that have the time in their name, of which the newest are kept."""

    folder: Path
    stem: str  # the beginning of their names
    keep: int

    def add(self, store: Store, now: datetime, progress: Progress) -> tuple[Path, dict[str, int], list[Path]]:
        """Returns the new backup, how many rows it has by table, and the backups that it replaces.

        It gets its name when it is verified, so an unsound or interrupted one never counts as one of those to keep.
        """
        file = self.folder / f"{self.stem}-{database_file.in_name(now)}.db"
        unverified = file.with_suffix(UNVERIFIED)
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            counts = store.copy(unverified, progress)
            try:
                self._verify(unverified)
                unverified.rename(file)
            finally:
                unverified.unlink(missing_ok=True)
            database_file.to_disk(self.folder)
            self._remove_unfinished(now)
            return file, counts, self._remove_old(file)
        except FileExistsError:
            raise Invalid(
                f"{self.folder} is no folder", hint="with --keep, name the folder of the backups"
            ) from None
        except OSError as error:
            raise Invalid(f"{error.filename or self.folder}: {error.strerror}") from None

    def _verify(self, file: Path) -> None:
        with checked_copy(file) as (report, _copy):
            if report.problems:
                raise StoreUnusable(
                    f"The backup is not sound, and was discarded: {report.problems[0].message}",
                    hint="no older backup was removed; see: usersctl db verify",
                )

    def _remove_old(self, new: Path) -> list[Path]:
        """The new one stays, also if a clock that was set back makes it the oldest. Those that a clock which was ahead dated
        later than it are the first to go."""
        others = [path for path in self.folder.iterdir() if self._is_ours(path, ".db") and path != new]
        order = sorted(others, key=lambda path: (path.name < new.name, path.name), reverse=True)
        old = order[self.keep - 1 :]
        for path in old:
            path.unlink(missing_ok=True)
        return sorted(old)

    def _is_ours(self, path: Path, suffix: str) -> bool:
        name = rf"{re.escape(self.stem)}-\d{{8}}T\d{{6}}\.\d{{6}}Z{re.escape(suffix)}"
        is_named = re.fullmatch(name, path.name, re.ASCII) is not None
        return is_named and path.is_file() and not path.is_symlink()

    def _remove_unfinished(self, now: datetime) -> None:
        """Files of killed backups; the next copy removes their folders. One that still runs is younger than a day."""
        for path in self.folder.iterdir():
            with suppress(FileNotFoundError):  # another backup removed it
                if self._is_ours(path, UNVERIFIED) and now.timestamp() - path.lstat().st_mtime > A_DAY:
                    path.unlink()


# --- restore ---


class Replacement:
    """Puts the content of a copy into a database, whose file stays, because a daemon may have it open."""

    def __init__(
        self,
        copy: Path,
        database: Database,
        file: Path,
        keep_tokens: bool,
        by: Actor,
        now: Clock,
        tell_owners: Callable[[Transaction], object],
    ) -> None:
        self.copy = copy  # checked; this changes it
        self.database = database
        self.file = file  # the backup
        self.keep_tokens = keep_tokens
        self.by, self.now = by, now
        self.tell_owners = tell_owners  # of accounts that wait for their deletion
        self.kept: Path | None = None  # the file with the replaced content
        self.is_prepared = False  # the source has the row of this restore, which tells whether it was done

    def run(self, progress: Progress) -> Path | None:
        """Returns the file that keeps the replaced content, if there was any."""
        with closing(open_store(self.copy, clock=self.now)) as source:
            if isinstance(self.database, Conninfo) or os.path.lexists(self.database):
                self._replace(source, progress)
            else:
                self._prepare(source, None)
                self.database.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                source.copy(self.database, progress, owner=self.database.parent)
        return self.kept

    def _replace(self, source: Store, progress: Progress) -> None:
        try:
            # An interrupted copy may have left an empty file, which `create` accepts.
            with closing(open_store(self.database, create=True)) as store:
                is_new = store.made
                store.take_over(source, first=lambda: self._keep(source, is_new=is_new), progress=progress)
        except BaseException as error:
            if self.is_prepared and self._is_done(source):
                return  # the error came after the commit
            if self.kept is not None:
                self.kept.unlink()
                self.kept = None
                if isinstance(error, ServerAway):
                    error.hint = "nothing was replaced: restore again when the server is back"
            if isinstance(error, StoreUnusable) and isinstance(self.database, Path):
                way_on = error.hint or (
                    "if that database is beyond repair, stop the daemon, move it away with its -wal and -shm, and"
                    " restore again"
                )
                if isinstance(error, Damaged):
                    way_on = database_file.replaced(self.database)
                error.hint = f"nothing was replaced; {way_on}"
            raise

    def _keep(self, source: Store, *, is_new: bool) -> None:
        """Runs under the lock of the database, when no other process can change it any more. `is_new`: this restore has made
        it, and there is nothing to keep unless another process was quicker than the lock."""
        with closing(open_store(self.database, write=False)) as present:
            if not (is_new and _is_blank(present)):
                self.kept = present.copy_aside(self.now(), self.file.absolute().parent)
            try:
                self._prepare(source, present)
            except StoreUnusable as error:
                if _lacks_room(error):
                    raise _no_room_for(self.file) from None
                raise

    def _is_done(self, source: Store) -> bool:
        """Whether the database has the audit row of this restore.

        A writer looks: it comes after the restore, whose commit a server may not have finished.
        """
        with source.read() as restored:
            last = restored.last_audit_row()
        try:
            with closing(open_store(self.database)) as store, store.write(commit=False) as present:
                return last is not None and next(present.audit_rows(from_id=last.id), None) == last
        except UsersError as error:
            message = f"{error}. It is not known whether the backup was restored"
            hint = "restore it again when the database can be used"
            if self.kept is not None:
                hint += f"; its content before this is kept as {self.kept}"
            raise StoreUnusable(message, hint=hint) from None

    def _prepare(self, source: Store, present: Store | None) -> None:
        """Changes the source where the past must not return: ended tokens, a lockdown, ids of deleted users."""
        with source.write() as tx:
            if not self.keep_tokens:
                # Some of them may have been revoked or used since the backup was made.
                tx.delete_all_tokens()
                tx.drop_all_links()
                tx.expire_invitations()
                tx.delete_signing_keys()  # ends the cookies of known devices, which a reset since may have ended
            replaced_trail = _carry_over(present, tx) if present else {}
            # An owner may have undone a deletion since then.
            tx.postpone_deletions(DELETIONS_WAIT)
            self.tell_owners(tx)
            kept = self.kept and visible(self.kept.name)
            details: dict[str, Any] = {
                "backup": visible(self.file.name),
                "kept": kept,
                "replaced_trail": replaced_trail,
            }
            tx.audit(self.by, "restore", **details, tokens_kept=self.keep_tokens)
        self.is_prepared = True


def _is_blank(store: Store) -> bool:
    with store.read() as tx:
        return not tx.count_rows("users") and not tx.count_rows("audit")


def _carry_over(present: Store, tx: Transaction) -> dict[str, Any]:
    """Keeps the lockdown and the last ids of users and sessions of the present database, and returns the end of its audit
    trail."""
    with present.read() as before:
        head, lockdown = before.audit_head(), before.lockdown()
        # Other applications may store user ids, so the id of a deleted user must not be given to another one; and the
        # rows of the trail name sessions, of which `audit --follow` shows those with a higher id than before.
        last_ids = before.last_ids()
        tx.give_no_ids_up_to({table: last_ids.get(table, 0) for table in ("users", "auth_tokens")})
    if lockdown is not None:
        admitted = lockdown.admitted and tx.user_by_email(lockdown.admitted.email)
        tx.lock_down(lockdown.since, lockdown.actor, admitted and admitted.id)
        tx.end_for_lockdown()  # or tokens that are kept would bring back what it has ended
    return {"rows": head.rows, "hash": head.hash.hex()} if head else {}
