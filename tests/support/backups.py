"""What tests of backups look at: the accounts, the files and the checks of a database."""

from contextlib import closing
from pathlib import Path

from support.commands import OPERATOR, Command
from support.databases import opened

from usersctl.clock import utc_now
from usersctl.deletion import tell_owners
from usersctl.store import backup
from usersctl.store.conninfo import Database
from usersctl.store.content import Progress
from usersctl.store.opening import open_store


def ignore(_done: int, _total: int) -> None:
    """No progress is drawn."""


def emails(database: Database) -> list[str]:
    with opened(database) as db:
        return [email for (email,) in db.execute("SELECT email FROM users ORDER BY id")]


def report_on(database: Database) -> backup.Report:
    with closing(open_store(database, write=False)) as store:
        return backup.check_in_use(store)


def names(folder: Path) -> set[str]:
    """The files in the folder, without those that SQLite keeps beside an open database."""
    return {path.name for path in folder.iterdir() if not path.name.endswith(("-wal", "-shm"))}


def saved(usersctl: Command) -> Path:
    with usersctl.service() as service:
        service.store.copy(usersctl.folder / "saved.db")
    return usersctl.folder / "saved.db"


def restored(
    file: Path, database: Database, *, keep_tokens: bool = False, progress: Progress = ignore
) -> Path | None:
    with backup.checked_copy(file) as (report, copy):
        assert report.problems == []
        return backup.Replacement(copy, database, file, keep_tokens, OPERATOR, utc_now, tell_owners).run(
            progress
        )
