"""db: creates, migrates, backs up, verifies and restores the database."""

import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer
from typer import Argument, Context, Option

from usersctl.cli.exit_codes import ExitCode
from usersctl.cli.invocation import Invocation, invocation
from usersctl.cli.questions import Yes, confirm
from usersctl.cli.show.cells import clean
from usersctl.clock import utc_now
from usersctl.errors import Busy, Invalid, KeyUnusable, StoreUnusable, Taken
from usersctl.store.conninfo import Conninfo, is_file_of, shown
from usersctl.store.database_file import VERSION
from usersctl.store.opening import open_store
from usersctl.store.store import Store
from usersctl.text import counted, quoted_file

if TYPE_CHECKING:
    from usersctl.factors.sealing import Sealer
    from usersctl.store.checks import Begins, Report


BackupFile = Annotated[Path, Argument(metavar="FILE", help="A file that `db backup` made.")]


def init(ctx: Context) -> None:
    """Create the database, if there is none."""
    run = invocation(ctx)
    store = run.store(create=True)
    done = "Created" if store.made else "Exists already:"
    run.out.result(f"{done} {store.name}", {"path": store.name, "created": store.made})


def migrate(ctx: Context) -> None:
    """Upgrade an older database. An old file is kept beside it."""
    run = invocation(ctx)
    store = run.store()
    done = store.migrated
    as_json: dict[str, Any] = {"path": store.name, "version": VERSION, "migrated": done is not None}
    if done is None:
        as_json |= {"accounts": None, "backup": None, "notes": []}
        run.out.result(f"{store.name} is of version {VERSION} already", as_json)
    else:
        backup = done.backup and str(done.backup)
        as_json |= {"accounts": done.accounts, "backup": backup, "notes": done.notes}
        run.out.result(f"{store.name} is of version {VERSION}", as_json)


def status(ctx: Context) -> None:
    """Show the path, version and size of the database."""
    run = invocation(ctx)
    store = run.store(write=False)
    with store.read() as tx:
        server, last_backup = tx.server(), tx.last_of("backup")
        facts: dict[str, Any] = {
            "path": store.name,
            "chosen_by": run.loaded.origins["database"].source,
            "version": VERSION,
            **(_sizes(store.path) if server is None else {"server": server.version, "bytes": server.bytes}),
            **tx.counts(),
            "active_admins": tx.active_admins(),
            "last_backup": last_backup and last_backup.at,
        }
    if run.out.json:
        run.out.write_json(facts)
    else:
        run.out.facts(facts.items())


def _sizes(file: Path) -> dict[str, int]:
    log = Path(f"{file}-wal")
    return {"bytes": file.stat().st_size, "wal_bytes": log.stat().st_size if log.exists() else 0}


def backup(
    ctx: Context,
    file: Annotated[
        Path, Argument(metavar="FILE", help="The file to write. It must not exist. With --keep: a folder.")
    ],
    keep: Annotated[
        int | None,
        Option(
            metavar="N",
            min=1,
            help="Write a dated backup into the folder FILE, verify it, and keep the newest N there.",
        ),
    ] = None,
) -> None:
    """Back up the database while everything runs.

    The backup is the state of one moment, however long the copy takes. The file appears when it is complete, with mode
    0600. An existing file is never overwritten. The audit trail of the database in use gets a row, if it can be written.
    --keep removes older backups that it made, and no other file, after the new one is verified.
    """
    from usersctl.store.backup import DatedBackups

    if str(file) == "-":
        raise Invalid("A backup is a file, and cannot go to standard output", hint="name a file")
    run = invocation(ctx)
    store = run.store(write=False)
    began = time.monotonic()
    removed: list[Path] = []
    with run.out.progress("Copying pages") as draw:
        if keep is None:
            if file.is_dir():
                both = f"name a file in it, or keep the newest ones there: usersctl db backup --keep 7 {quoted_file(file)}"
                raise Taken(f"{file} is a folder", hint=both)
            counts = store.copy(file, draw)
        else:
            file, counts, removed = DatedBackups(file, _stem(store), keep).add(store, utc_now(), draw)
    seconds, size = round(time.monotonic() - began, 2), file.stat().st_size
    accounts = counted(counts["users"], "account")
    key = _sealer(run).place if counts["totp_secrets"] else None
    as_json: dict[str, Any] = {
        "file": str(file),
        "accounts": counts["users"],
        "bytes": size,
        "seconds": seconds,
        "key": key,
    }
    if keep is not None:
        as_json["removed"] = list(map(str, removed))
    run.out.result(f"Saved {accounts} in {file}: {size} bytes, {seconds} s", as_json)
    if removed:
        run.out.note(f"Removed {counted(len(removed), 'older backup')}")
    if key is not None:
        apps = counted(counts["totp_secrets"], "authenticator app")
        run.out.note(
            f"Not in it: the key in {key}, without which {apps} cannot be used. Keep a copy elsewhere"
        )
    _record(run, file, counts["users"])


def _stem(store: Store) -> str:
    """How the names of its dated backups begin."""
    return store.database.stem if isinstance(store.database, Path) else "users"


def _sealer(run: Invocation) -> "Sealer":
    from usersctl.factors.sealing import Sealer

    return Sealer.of(run.loaded.settings)


def _record(run: Invocation, file: Path, accounts: int) -> None:
    """For the overview, and because a copy of all accounts is worth a row of the trail. A failure spoils no backup."""
    try:
        with closing(open_store(run.loaded.settings.database)) as store, store.write() as tx:
            tx.audit(run.actor, "backup", file=clean(str(file.absolute())), accounts=accounts)
    except (StoreUnusable, Busy) as error:
        run.out.note(f"The backup is complete, but not in the audit trail: {error}")


def verify(
    ctx: Context,
    file: Annotated[Path | None, Argument(metavar="[FILE]", help="A backup. Default: the database.")] = None,
) -> None:
    """Check a backup, or the database in use, from end to end.

    Checks pages and indexes, texts, foreign keys, tables and triggers, counts, and the hashes of the audit trail. A backup is
    copied first, and only the copy is opened. Every problem is one line, and the exit code is then 7.
    """
    from usersctl.store import backup as backups

    run = invocation(ctx)
    if file is None or is_file_of(file, run.loaded.settings.database):
        # The database in use is not copied: another process may write to it meanwhile.
        store = run.store(write=False)
        with _checking(run) as begins:
            name, report = store.name, backups.check_in_use(store, begins)
    else:
        name = str(file)
        with _checking(run) as begins, backups.checked_copy(file, begins) as (report, _copy):
            pass
    _print_report(run, name, report)


@contextmanager
def _checking(run: Invocation) -> Iterator["Begins"]:
    """A bar for the checks of a large database, each of which may take a minute."""
    with run.out.steps() as draw:
        yield lambda check, number, of: draw(f"Checking {check}", number, of)


def restore(
    ctx: Context,
    file: BackupFile,
    keep_tokens: Annotated[bool, Option("--keep-tokens", help="Keep sessions, tokens and links.")] = False,
    dry_run: Annotated[bool, Option("--dry-run", help="Check the backup, and change nothing.")] = False,
    yes: Yes = False,
) -> None:
    """Replace the database by a backup.

    Where there is a database, it asks first. The daemon may run meanwhile. A backup in which `db verify` finds a
    problem is refused. The replaced database is kept beside the new one. All sessions, API tokens and email links end,
    because the backup may hold some that were revoked later. A lockdown stays in force. Owners who deleted their
    accounts get a new email to undo that.
    """
    from usersctl.store import backup as backups

    run = invocation(ctx)
    database = run.loaded.settings.database
    name = shown(database)
    if is_file_of(file, database):
        raise Invalid(f"{file} is the database itself", hint="name a file that usersctl db backup made")
    with ExitStack() as copies:
        with _checking(run) as begins:
            report, copy = copies.enter_context(backups.checked_copy(file, begins))
        if report.other_version is not None:
            raise report.other_version
        if report.problems:
            _refuse_unsound(run, file, report)
        users = report.counts["users"]
        accounts = counted(users, "account")
        as_json: dict[str, Any] = {"file": str(file), "database": name, "accounts": users}
        apps = report.counts["totp_secrets"]
        unreadable, consequence_for_apps = _without_key(run, copy) if apps else (0, "")
        as_json |= {"tokens_kept": keep_tokens, "dry_run": dry_run, "kept": None, "unreadable": unreadable}
        if dry_run:
            run.out.result(f"Would restore {accounts} to {name}", as_json)
            run.out.note(consequence_for_apps)
            return
        consequence = "" if keep_tokens else ", and end all sessions and API tokens"
        if isinstance(database, Conninfo) or database.exists():  # else there is nothing to lose
            confirm(run, f"Replace {name} by {accounts} of {file}{consequence}?", yes=yes)
        from usersctl.deletion import tell_owners  # late, for --dry-run

        with run.out.progress("Restoring pages") as draw:
            replacement = backups.Replacement(
                copy, database, file, keep_tokens, run.actor, utc_now, tell_owners
            )
            kept = replacement.run(draw)
    as_json["kept"] = kept and str(kept)
    run.out.result(f"Restored {accounts} to {name}", as_json)
    if kept is not None:
        run.out.note(f"The replaced database is kept as {kept}")
    if not keep_tokens:
        run.out.note("All sessions, API tokens and email links have ended.")
    run.out.note(consequence_for_apps)


def _without_key(run: Invocation, copy: Path) -> tuple[int, str]:
    """How many secrets of authenticator apps in the backup no key opens, and what that means."""
    from usersctl.factors.sealing import NAME_BYTES

    with closing(open_store(copy, write=False)) as store, store.read() as tx:
        sealed_with = tx.count_totp_by_beginning(NAME_BYTES)
    try:
        missing = _sealer(run).missing(sealed_with)
    except KeyUnusable:
        missing = sealed_with
    count = sum(missing.values())
    if not count:
        return 0, ""
    apps = counted(count, "authenticator app")
    return count, (
        f"{apps} cannot be used, because the key is not in {_sealer(run).place}. Add it there, one key a line; or, if it is"
        " lost, let users enrol again after: usersctl factor reset USER --totp. usersctl doctor names them"
    )


def _refuse_unsound(run: Invocation, file: Path, report: "Report") -> NoReturn:
    message = f"{file} is not sound, and was not restored"
    hint = f"see: usersctl db verify {quoted_file(file)}"
    problems = [problem._asdict() for problem in report.problems]
    run.out.error(StoreUnusable(message), code=StoreUnusable.code, hint=hint, problems=problems)
    raise typer.Exit(ExitCode.UNUSABLE)


def _print_report(run: Invocation, name: str, report: "Report") -> None:
    accounts, rows = report.counts.get("users"), report.counts.get("audit")
    if run.out.json:
        problems = [problem._asdict() for problem in report.problems]
        as_json = {"file": name, "sound": not problems, "accounts": accounts, "audit_rows": rows}
        run.out.write_json(as_json | {"audit_head": report.head, "problems": problems})
    elif report.problems:
        for problem in report.problems:
            run.out.data(clean(f"{problem.check}: {problem.message}"))
        run.out.note(f"{name} is not sound: {counted(len(report.problems), 'problem')}")
    else:
        contents = f"{counted(accounts or 0, 'account')}, {counted(rows or 0, 'audit row')}"
        run.out.result(f"{name} is sound: {contents} up to {report.head}", None)
    if report.problems:
        raise typer.Exit(ExitCode.PARTLY_FAILED)
