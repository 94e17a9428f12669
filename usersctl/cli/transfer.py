"""import and export: accounts from a file or another application, and into a file."""

import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer
from typer import Argument, Context, Option

from usersctl.cli.exit_codes import ExitCode, code_of
from usersctl.cli.files import by_suffix, opened, read_rows, replaced, write_rows
from usersctl.cli.invocation import Invocation, invocation
from usersctl.cli.questions import is_yes
from usersctl.cli.show.cells import one_line
from usersctl.errors import Invalid
from usersctl.fields import normal_role
from usersctl.named import NamedTuple
from usersctl.passwords import ARGON2, MAX_BYTES, MEND_LIBRARY
from usersctl.store.conninfo import Conninfo, is_file_of
from usersctl.store.progress import watched
from usersctl.text import counted, quoted_file
from usersctl.transfer.rows import Format, SourceRow

if TYPE_CHECKING:
    from usersctl.service import Service
    from usersctl.transfer.adoption import Adoption
    from usersctl.transfer.writing import BrokenRows, Imported, RowProblem


class OnConflict(StrEnum):
    SKIP = "skip"
    UPDATE = "update"
    FAIL = "fail"


class _Plan(NamedTuple):
    """What to do with the rows."""

    on_conflict: str
    dry_run: bool
    invite: bool
    create_groups: bool


def import_(
    ctx: Context,
    file: Annotated[
        str | None, Argument(metavar="FILE|-", help="CSV, JSON or JSON lines; - is standard input.")
    ] = None,
    source: Annotated[
        str | None,
        Option("--from", metavar="KIND:FILE", help="sqlite, pocketbase, django or csv, and the file."),
    ] = None,
    form: Annotated[Format | None, Option("--format", help="Default: by the suffix; CSV on stdin.")] = None,
    table: Annotated[
        str | None, Option(metavar="NAME", help="With --from: the table, collection or model.")
    ] = None,
    columns: Annotated[
        list[str] | None,
        Option("--map", metavar="OURS=THEIRS", help="With --from: their column for ours. Repeatable."),
    ] = None,
    roles: Annotated[
        list[str] | None,
        Option("--map-role", metavar="THEIRS=OURS", help="With --from: our role for theirs. Repeatable."),
    ] = None,
    dry_run: Annotated[bool, Option("--dry-run", help="Check everything, write nothing.")] = False,
    on_conflict: Annotated[OnConflict, Option(help="If an address has an account.")] = OnConflict.FAIL,
    invite: Annotated[
        bool, Option("--invite", help="Invite the owners of new accounts without a password, for 7 days.")
    ] = False,
    create_groups: Annotated[
        bool, Option("--create-groups", help="Create the groups that rows name and that do not exist.")
    ] = False,
) -> None:
    """Create accounts from a file: all of them, or none.

    Columns: email (required), name, role, active, confirmed, password or password_hash, created_at, last_login_at,
    oauth_id, oauth_issuer, profile_picture, identities, groups. Every broken row is reported with its line. A password_hash is
    bcrypt, PBKDF2, Argon2, scrypt, phpass, WordPress's or salted SHA, as its system writes it.

    With --from, columns may have other names: the most likely ones are used, and --dry-run shows them.
    """
    run = invocation(ctx)
    plan = _Plan(on_conflict, dry_run, invite, create_groups)
    if (file is None) == (source is None):
        hint = "see: usersctl import --help"
        if file is not None and _is_kind(source):
            hint = f"with a colon between them: --from {quoted_file(f'{source}:{file}')}"
        raise Invalid("Give a FILE, or --from KIND:FILE", hint=hint)
    if file is None:
        if form is not None:
            raise Invalid("--format is for a FILE; --from names the kind before the colon")
        _adopt(run, source or "", table, columns or [], roles or [], plan)
        return
    if table is not None or columns or roles:
        raise Invalid("--table, --map and --map-role go with --from")
    # The rows are closed before the file, also when a signal ends the command.
    if ":" in file and not Path(file).exists() and _is_kind(file.partition(":")[0]):
        raise Invalid(f"{file} is no file", hint=f"use: --from {quoted_file(file)}")
    with opened(file) as content, closing(read_rows(content, form or by_suffix(file), name=file)) as rows:
        _import(run, rows, None, plan)


def _is_kind(word: str | None) -> bool:
    from usersctl.transfer.foreign import SourceKind

    return word in tuple(SourceKind)


def _adopt(
    run: Invocation,
    source: str,
    table: str | None,
    columns: list[str],
    roles: list[str],
    plan: _Plan,
) -> None:
    from usersctl.transfer.adoption import NoneConfirmed

    try:
        with _foreign(run, source, table, columns, roles) as adoption:
            _import(run, adoption.decided_rows(), adoption, plan)
    except NoneConfirmed as problem:
        if not run.may_ask:
            raise
        run.close()  # nothing was written; the second try opens the database again
        run.out.note(f"{problem}.")
        asked = is_yes("Did the application ask its users for confirmations?")
        choice = f"confirmed={problem.column if asked else ''}"
        with _foreign(run, source, table, [*columns, choice], roles) as adoption:
            _import(run, adoption.decided_rows(), adoption, plan)


def _import(run: Invocation, rows: Iterator[SourceRow], adoption: "Adoption | None", plan: _Plan) -> None:
    from usersctl.mail.kinds import USUAL_INVITATION
    from usersctl.transfer.writing import BrokenRows, ImportOptions

    problems: list[RowProblem] = []

    def report(problem: "RowProblem") -> None:
        if run.out.json:
            problems.append(problem)
        else:
            print(f"{problem.where}: {one_line(problem.message)}", file=sys.stderr)

    if adoption is not None and plan.dry_run and not run.out.json:
        run.out.table(("ours", "theirs", "becomes"), adoption.explained())
    with _service(run, dry_run=plan.dry_run) as service, run.out.steps() as draw:
        try:
            options = ImportOptions(
                plan.on_conflict,
                plan.dry_run,
                run.actor,
                report,
                progress=draw,
                invite=USUAL_INVITATION if plan.invite else None,
                create_groups=plan.create_groups,
            )
            done = service.transfer.import_rows(rows, options)
        except BrokenRows as error:
            _refuse_broken(run, error, problems)
    notes = [] if adoption is None else list(adoption.notes())
    if done.overdue:
        accounts = counted(done.overdue, "new account")
        notes.append(
            f"never confirmed, and older than auth.unconfirmedExpiration: {accounts}; the next cleanup removes them, unless you"
            " set that to 0 before"
        )
    notes += _about_hashes(done)
    _report_done(run, done, adoption, notes, dry_run=plan.dry_run)


def _report_done(
    run: Invocation, done: "Imported", adoption: "Adoption | None", notes: list[str], *, dry_run: bool
) -> None:
    left_out = 0
    about: dict[str, Any] = {}
    if adoption is not None:
        left_out = len(adoption.without_email)
        about = {"from": adoption.table.name, "mapping": adoption.mapping}
    rows = done.created + done.updated + done.unchanged + done.skipped + left_out
    numbers = done._asdict() | {"left_out": left_out, "rows": rows}
    verb = "Would import" if dry_run else "Imported"
    text = f"{verb}: {done.created} created, {done.updated} updated, {done.skipped} skipped"
    for count, what in ((done.unchanged, "unchanged"), (left_out, "left out")):
        if count:
            text += f", {count} {what}"
    run.out.result(text, numbers | {"dry_run": dry_run, "notes": notes} | about)
    for note in (*notes, *_about_rights(done)):  # JSON has the latter as numbers
        run.out.note(f"Note: {note}")
    if done.invited and dry_run:
        run.out.note(f"Would invite: {done.invited}")
    elif done.invited:
        see = run.options.repeated_in("see: usersctl invite list")
        run.out.note(f"Invited: {done.invited}; {see}")
        run.note_where_invitations_go()
    if done.without_password > done.invited:
        count = done.without_password - done.invited
        run.out.note(f"New accounts without a password: {count}; their owners set one through a reset email")


def _about_rights(done: "Imported") -> Iterator[str]:
    """What an operator may not expect of a file that somebody else wrote."""
    given = [counted(done.admins, "new admin")] * (done.admins > 0)
    if done.linked:
        given.append(f"{counted(done.linked, 'new link')} of existing accounts to identity providers")
    if given:
        yield "; ".join(given)
    if done.repeated:
        yield f"{counted(done.repeated, 'row')} overwrote what an earlier row of the same address said"


def _about_hashes(done: "Imported") -> Iterator[str]:
    """What an operator has to know about hashes that bcrypt replaces at the next login."""
    kinds = done.foreign_hashes
    if not kinds:
        return
    from usersctl.foreign_hashes import has_argon2

    rows = counted(sum(kinds.values()), "row")
    listed = ", ".join(f"{kind} {count}" for kind, count in sorted(kinds.items()))
    yield f"the password hashes of {rows} are of other systems ({listed}): bcrypt replaces each at its owner's next login"
    yield (
        f"{rows} of {counted(len(kinds), 'kind')} may be of passwords over {MAX_BYTES} bytes, which do not sign in here: their"
        " owners set another one through a reset email"
    )
    if ARGON2 in kinds and not has_argon2():
        yield f"Argon2 hashes match no password until their library is installed: {MEND_LIBRARY}"


def _refuse_broken(run: Invocation, error: "BrokenRows", problems: "list[RowProblem]") -> NoReturn:
    code, exit_code = error.code, code_of(error)
    if error.taken:
        code, exit_code = "taken", ExitCode.TAKEN
    run.out.error(error, code=code, hint=error.hint, rows=[problem._asdict() for problem in problems])
    raise typer.Exit(exit_code) from None


@contextmanager
def _service(run: Invocation, *, dry_run: bool) -> Iterator["Service"]:
    """For a dry run: the service on a temporary copy of the database, or on a new one."""
    if not dry_run:
        yield run.service(create=True)
        return
    from usersctl.service import Service
    from usersctl.store.database_file import temporary_folder
    from usersctl.store.opening import open_store

    settings = run.loaded.settings
    database = settings.database
    with temporary_folder(".users-import-") as folder:
        copy = folder / "users.db"
        # An import turns an empty file into a database.
        if (
            isinstance(database, Conninfo)
            or database.is_dir()
            or (database.exists() and database.stat().st_size > 0)
        ):
            run.store(write=False).copy(copy)
        with closing(open_store(copy, create=True)) as store:
            yield Service(settings._replace(database=copy), store)


@contextmanager
def _foreign(
    run: Invocation, source: str, table: str | None, columns: list[str], roles: list[str]
) -> Iterator["Adoption"]:
    from usersctl.transfer.adoption import Adoption
    from usersctl.transfer.columns import map_columns
    from usersctl.transfer.foreign import SourceKind, open_source

    kind, colon, name = source.partition(":")
    if not colon or not name or kind not in tuple(SourceKind):
        kinds = ", ".join(SourceKind)
        raise Invalid(f"--from {source}: expected KIND:FILE, as in sqlite:old.db", hint=f"kinds are {kinds}")
    path, database = Path(name), run.loaded.settings.database
    if is_file_of(path, database):
        raise Invalid(f"{name} is the database itself", hint="to upgrade it: usersctl db migrate")
    our_columns = _pairs("--map", columns)
    new_roles = {theirs: normal_role(ours) for theirs, ours in _pairs("--map-role", roles).items()}
    with open_source(SourceKind(kind), path, table) as source_table:
        mapping = map_columns(source_table.columns, our_columns, run.loaded.settings)
        yield Adoption(source_table, mapping, new_roles, chosen=our_columns)


def _pairs(option: str, given: list[str]) -> dict[str, str]:
    pairs: dict[str, str] = {}
    for pair in given:
        name, equals, value = (part.strip() for part in pair.partition("="))
        if not name or not equals:
            raise Invalid(f"{option} {name}{value}: expected A=B")
        if pairs.setdefault(name, value) != value:
            raise Invalid(f"{option} {name} is given twice: {pairs[name]!r} and {value!r}")
    return pairs


def export(
    ctx: Context,
    file: Annotated[
        str, Argument(metavar="[FILE|-]", help="The file to write. Default: stdout.", show_default=False)
    ] = "-",
    form: Annotated[Format | None, Option("--format", help="Default: by the suffix; CSV on stdout.")] = None,
    with_hashes: Annotated[bool, Option("--with-hashes", help="Also the secret password hashes.")] = False,
    safe: Annotated[
        bool,
        Option("--safe", help="CSV for a spreadsheet: an apostrophe before each formula. Not for `import`."),
    ] = False,
    as_state: Annotated[
        bool, Option("--as-state", help="Accounts and groups as a file for `apply`, without any password.")
    ] = False,
) -> None:
    """Write all accounts to a file that `import` reads, or `apply` with --as-state.

    Only the owner of the file can read it (mode 0600).
    """
    run = invocation(ctx)
    if as_state:
        if form is not None or with_hashes or safe:
            raise Invalid("--as-state goes with none of --format, --with-hashes and --safe")
        from usersctl.cli.state import export_state

        export_state(run, file)
        return
    to_stdout = file == "-"
    if form is None:
        form = Format.JSON if run.out.json and to_stdout else by_suffix(file)
    if safe and form is not Format.CSV:
        raise Invalid("--safe is for CSV", hint="no spreadsheet runs formulas of JSON")
    service = run.service(write=False)
    with closing(service.transfer.export_rows(with_hashes=with_hashes)) as rows:
        if to_stdout:
            write_rows(sys.stdout, form, rows, with_hashes=with_hashes, cell=run.out.csv_cell, safe=safe)
            return
        with replaced(Path(file)) as target, run.out.progress("Writing users") as draw:
            count = write_rows(target, form, watched(rows, draw), with_hashes=with_hashes, safe=safe)
    run.out.result(f"Exported {counted(count, 'user')} to {file}", {"exported": count, "file": file})
