"""The database file itself: made, brought up to date, looked at, saved, checked and put back."""

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from usersctl.cli.questions import Yes, confirm, invocation
from usersctl.cli.show.output import PARTLY_FAILED, clean, code_of
from usersctl.clock import utc_now
from usersctl.errors import Invalid, StoreUnusable
from usersctl.store.database_file import VERSION
from usersctl.text import counted

if TYPE_CHECKING:
    from usersctl.cli.invocation import Invocation
    from usersctl.store.backup import BackupReport


BackupFile = Annotated[Path, typer.Argument(metavar="FILE", help="A file that `db backup` made.")]


def register(app: typer.Typer) -> None:
    database = typer.Typer(
        no_args_is_help=True, help="The database file.", epilog="Example: usersctl db status"
    )
    for name, command, example in (
        ("init", init, "usersctl db init --db /var/lib/users/users.db"),
        ("migrate", migrate, "usersctl db migrate"),
        ("status", status, "usersctl db status --json"),
        ("backup", backup, "usersctl db backup /var/backups/users-today.db"),
        ("verify", verify, "usersctl db verify /var/backups/users-today.db"),
        ("restore", restore, "usersctl db restore /var/backups/users-today.db"),
    ):
        database.command(name, epilog=f"Example: {example}")(command)
    app.add_typer(database, name="db", rich_help_panel="Operation")


def init(ctx: typer.Context) -> None:
    """Make the database, if there is none."""
    run = invocation(ctx)
    path = run.loaded.settings.database
    there = path.is_file() and path.stat().st_size > 0
    run.store(create=True)
    run.out.result(
        f"{'There already:' if there else 'Made'} {path}", {"path": str(path), "created": not there}
    )


def migrate(ctx: typer.Context) -> None:
    """Bring an older database up to date. What it was stays beside it."""
    run = invocation(ctx)
    store = run.store()
    done = store.migrated
    told: dict[str, Any] = {
        "path": str(store.path),
        "version": VERSION,
        "migrated": done is not None,
        "accounts": done.accounts if done else None,
        "backup": str(done.backup) if done else None,
        "notes": done.notes if done else [],
    }
    run.out.result(f"{store.path} is of version {VERSION}" + ("" if done else " already"), told)


def status(ctx: typer.Context) -> None:
    """Tell where the database is and why, and what is in it."""
    run = invocation(ctx)
    store = run.store(write=False)
    log = Path(f"{store.path}-wal")
    with store.read() as tx:
        facts: dict[str, Any] = {
            "path": str(store.path),
            "chosen_by": run.loaded.origins["database"].source,
            "version": VERSION,
            "bytes": store.path.stat().st_size,
            "wal_bytes": log.stat().st_size if log.exists() else 0,
            **tx.counts(),
            "active_admins": tx.active_admins(),
        }
    if run.out.json:
        run.out.write_json(facts)
    else:
        run.out.facts(facts.items())


def backup(
    ctx: typer.Context,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A file that is not there yet.")],
) -> None:
    """Save the database while everything runs.

    It holds one moment, however long it takes. The file is for its owner only, and is there whole or not at all. It is
    never written over another one.
    """
    if str(file) == "-":
        raise Invalid("A backup is a file, and cannot go to standard output", hint="name a file")
    run = invocation(ctx)
    store = run.store(write=False)
    began = time.monotonic()
    with run.out.progress("Copying pages") as draw:
        counts = store.copy(file, draw)
    seconds, size = round(time.monotonic() - began, 2), file.stat().st_size
    run.out.result(
        f"Saved {_accounts(counts)} in {file}: {size} bytes, {seconds} s",
        {"file": str(file), "accounts": counts["users"], "bytes": size, "seconds": seconds},
    )


def verify(
    ctx: typer.Context,
    file: Annotated[
        Path | None, typer.Argument(metavar="[FILE]", help="A backup; the database in use if left out.")
    ] = None,
) -> None:
    """Check a backup, or the database in use, from end to end.

    Its pages and indexes, foreign keys, tables and triggers, counts, and the chain of the audit trail. A backup is
    copied first, and only the copy is opened. Every problem is a line; with one the exit code is 7.
    """
    from usersctl.store import backup as backups

    run = invocation(ctx)
    in_use = run.loaded.settings.database
    if file is None or (file.exists() and in_use.exists() and file.samefile(in_use)):
        # Never by a copy of its bytes, which somebody may write to meanwhile.
        path = run.store(write=False).path
        found = backups.check(path)
    else:
        path = file
        with backups.checked_copy(file) as (found, _copy):
            pass
    _tell(run, path, found)


def restore(
    ctx: typer.Context,
    file: BackupFile,
    keep_tokens: Annotated[
        bool,
        typer.Option("--keep-tokens", help="Leave the backup's sessions, API tokens and sent links valid."),
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Check the file, and change nothing.")] = False,
    yes: Yes = False,
) -> None:
    """Put a backup in the place of the database.

    Also while everything runs. A file that `db verify` finds fault with is refused. What is replaced stays beside the
    database in a file of its own. All sessions, API tokens and links in letters end, because some of those in the
    backup may have been revoked since it was made. A lockdown stays in force.
    """
    from usersctl.store import backup as backups

    run = invocation(ctx)
    path = run.loaded.settings.database
    if file.exists() and path.exists() and file.samefile(path):
        raise Invalid(f"{file} is the database itself", hint="name a file that usersctl db backup made")
    with backups.checked_copy(file) as (found, copy):
        if found.problems:
            refused = StoreUnusable(
                f"{file} is not sound, and was not restored", hint=f"see: usersctl db verify {file}"
            )
            listed = [problem._asdict() for problem in found.problems]
            run.out.error(refused, code=refused.code, hint=refused.hint, problems=listed)
            raise typer.Exit(code_of(refused))
        told: dict[str, Any] = {
            "file": str(file),
            "database": str(path),
            "accounts": found.counts["users"],
            "tokens_kept": keep_tokens,
            "dry_run": dry_run,
        }
        if dry_run:
            run.out.result(f"Would restore {_accounts(found.counts)} to {path}", told | {"kept": None})
            return
        ends = "" if keep_tokens else ", and end all sessions and API tokens"
        confirm(run, f"Replace {path} by {_accounts(found.counts)} of {file}{ends}?", yes=yes)
        with run.out.progress("Restoring pages") as draw:
            kept = backups.restore(
                copy, path, name=file.name, keep_tokens=keep_tokens, by=run.actor, now=utc_now, progress=draw
            )
    run.out.result(
        f"Restored {_accounts(found.counts)} to {path}", told | {"kept": str(kept) if kept else None}
    )
    if kept is not None:
        run.out.note(f"What it was: {kept}")
    if not keep_tokens:
        run.out.note("All sessions, API tokens and sent links have ended.")


def _tell(run: "Invocation", path: Path, found: "BackupReport") -> None:
    accounts, rows = found.counts.get("users"), found.counts.get("audit")
    if run.out.json:
        run.out.write_json(
            {
                "file": str(path),
                "sound": not found.problems,
                "accounts": accounts,
                "audit_rows": rows,
                "audit_head": found.head,
                "problems": [problem._asdict() for problem in found.problems],
            }
        )
    elif found.problems:
        for problem in found.problems:
            run.out.data(clean(f"{problem.check}: {problem.message}"))
        run.out.note(f"{path} is not sound: {counted(len(found.problems), 'problem')}")
    else:
        run.out.result(
            f"{path} is sound: {_accounts(found.counts)}, {counted(rows or 0, 'audit row')} up to {found.head}",
            None,
        )
    if found.problems:
        raise typer.Exit(PARTLY_FAILED)


def _accounts(counts: dict[str, int]) -> str:
    return counted(counts["users"], "account")
