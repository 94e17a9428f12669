"""import and export: files, formats, and where in them a broken row stands."""

import csv
import os
import sys
import tempfile
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, closing, contextmanager
from enum import StrEnum
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Any

import typer

from usersctl.cli.invocation import Invocation
from usersctl.cli.questions import invocation
from usersctl.cli.show.listing import print_json_array
from usersctl.cli.show.output import Cell, code_of, to_json
from usersctl.errors import Invalid
from usersctl.fields import normal_role
from usersctl.text import counted
from usersctl.transfer.rows import Format, SourceRow, as_text, csv_rows, json_rows, jsonl_rows
from usersctl.transfer.transfer import COLUMNS, IGNORED, IMPORTED, BrokenRows, RowProblem

if TYPE_CHECKING:
    from usersctl.service import Service
    from usersctl.transfer.adoption import Adoption

PANEL = "Accounts"


class OnConflict(StrEnum):
    SKIP = "skip"
    UPDATE = "update"
    FAIL = "fail"


def register(app: typer.Typer) -> None:
    app.command("import", rich_help_panel=PANEL, epilog="Example: usersctl import people.csv --dry-run")(
        import_
    )
    app.command(
        "export", rich_help_panel=PANEL, epilog="Example: usersctl export people.jsonl --with-hashes"
    )(export)


def import_(
    ctx: typer.Context,
    file: Annotated[
        str | None, typer.Argument(metavar="FILE|-", help="CSV, JSON or JSON lines; - is standard input.")
    ] = None,
    source: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="KIND:FILE",
            help="Accounts of another application: sqlite, pocketbase, django or csv, and the file.",
        ),
    ] = None,
    form: Annotated[
        Format | None, typer.Option("--format", help="By the suffix if left out; CSV from stdin.")
    ] = None,
    table: Annotated[
        str | None, typer.Option(metavar="NAME", help="With --from: the table, collection or model.")
    ] = None,
    columns: Annotated[
        list[str] | None,
        typer.Option(
            "--map", metavar="OURS=THEIRS", help="With --from: which column; none if empty. Repeatable."
        ),
    ] = None,
    roles: Annotated[
        list[str] | None,
        typer.Option(
            "--map-role", metavar="THEIRS=OURS", help="With --from: what a role becomes. Repeatable."
        ),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Check everything, write nothing.")] = False,
    on_conflict: Annotated[
        OnConflict, typer.Option(help="What to do with an address that has an account.")
    ] = OnConflict.FAIL,
) -> None:
    """Create accounts from a file: all of them, or none.

    Columns: email (the only one that must be there), name, role, active, confirmed, password or password_hash
    (bcrypt), created_at, last_login_at, oauth_id, profile_picture. Every broken row is named by its line.

    With --from, columns may have other names: the likeliest are taken, and --dry-run shows which.
    """
    run = invocation(ctx)
    if (file is None) == (source is None):
        raise Invalid("Give a FILE, or --from KIND:FILE", hint="see: usersctl import --help")
    if source is not None:
        if form is not None:
            raise Invalid("--format is for a FILE; --from tells the kind before the colon")
        with _foreign(run, source, table, columns or [], roles or []) as adoption:
            _import(run, adoption.rows(), adoption, dry_run=dry_run, on_conflict=on_conflict)
        return
    if table is not None or columns or roles:
        raise Invalid("--table, --map and --map-role go with --from")
    chosen = form or _by_suffix(file or "")
    # Rows let go of a file before it is closed, also where a signal ends it all.
    with _opened(file or "") as opened, closing(_rows(opened, chosen)) as rows:
        _import(run, rows, None, dry_run=dry_run, on_conflict=on_conflict)


def _import(
    run: Invocation,
    rows: Iterator[SourceRow],
    adoption: "Adoption | None",
    *,
    dry_run: bool,
    on_conflict: OnConflict,
) -> None:
    problems: list[RowProblem] = []

    def report(problem: RowProblem) -> None:
        if run.out.json:
            problems.append(problem)
        else:
            print(f"{problem.where}: {_shown(problem.message)}", file=sys.stderr)

    if adoption is not None and dry_run and not run.out.json:
        run.out.table(("ours", "theirs", "becomes"), adoption.explained())
    with _service(run, dry_run=dry_run) as service, run.out.progress("Hashing passwords") as draw:
        try:
            done = service.transfer.import_rows(
                rows, on_conflict=on_conflict, dry_run=dry_run, by=run.actor, report=report, hashing=draw
            )
        except BrokenRows as error:
            code = 4 if error.taken else code_of(error)
            listed = [problem._asdict() for problem in problems]
            run.out.error(error, code="taken" if error.taken else error.code, hint=error.hint, rows=listed)
            raise typer.Exit(code) from None
    told = f"{'Would import' if dry_run else 'Imported'}: {done.created} created, {done.updated} updated, {done.skipped} skipped"
    as_json: dict[str, Any] = done.as_json() | {"dry_run": dry_run}
    notes = list(adoption.notes()) if adoption is not None else []
    if adoption is not None:
        as_json |= {"from": adoption.table.name, "mapping": adoption.mapping, "notes": notes}
    run.out.result(told, as_json)
    for note in notes:
        run.out.note(f"Note: {note}")
    if done.without_password:
        run.out.note(f"{done.without_password} have no password: they set one through a reset letter")


@contextmanager
def _service(run: Invocation, *, dry_run: bool) -> Iterator["Service"]:
    """A dry run neither makes nor changes a database: it is tried on a copy that nobody sees, or on a new one."""
    if not dry_run:
        yield run.service(create=True)
        return
    from usersctl.service import build

    settings = run.loaded.settings
    with tempfile.TemporaryDirectory() as folder:
        aside = Path(folder) / "users.db"
        found = settings.database
        # Of an empty file an import would make a database.
        if found.is_dir() or (found.exists() and found.stat().st_size > 0):
            run.store(write=False).copy(aside)
        with closing(build(settings._replace(database=aside))) as service:
            yield service


@contextmanager
def _foreign(
    run: Invocation, source: str, table: str | None, columns: list[str], roles: list[str]
) -> Iterator["Adoption"]:
    from usersctl.transfer.adoption import Adoption
    from usersctl.transfer.columns import map_columns
    from usersctl.transfer.foreign import SourceKind, open_source

    kind, colon, name = source.partition(":")
    if not colon or not name or kind not in tuple(SourceKind):
        raise Invalid(
            f"--from {source}: it is KIND:FILE, as in sqlite:old.db",
            hint=f"kinds are {', '.join(SourceKind)}",
        )
    path, database = Path(name), run.loaded.settings.database
    if path.exists() and database.exists() and path.samefile(database):
        raise Invalid(
            f"{name} is the database itself",
            hint="an older one is brought up to date by: usersctl db migrate",
        )
    given = _pairs("--map", columns)
    new_roles = {theirs: normal_role(ours) for theirs, ours in _pairs("--map-role", roles).items()}
    with open_source(SourceKind(kind), path, table) as source_table:
        mapping = map_columns(source_table.columns, given, run.loaded.settings)
        yield Adoption(source_table, mapping, new_roles)


def _pairs(option: str, given: list[str]) -> dict[str, str]:
    pairs = [each.partition("=") for each in given]
    for name, equals, value in pairs:
        if not name or not equals:
            raise Invalid(f"{option} {name}{value}: it is A=B")
    return {name.strip(): value.strip() for name, _, value in pairs}


def export(
    ctx: typer.Context,
    file: Annotated[
        str, typer.Argument(metavar="[FILE|-]", help="Where to; standard output if left out.")
    ] = "-",
    form: Annotated[
        Format | None, typer.Option("--format", help="By the suffix if left out; CSV to stdout.")
    ] = None,
    with_hashes: Annotated[
        bool, typer.Option("--with-hashes", help="Also the bcrypt hashes: keep such a file like a password.")
    ] = False,
) -> None:
    """Write all accounts in the form that import reads. A file is readable by its owner alone."""
    run = invocation(ctx)
    chosen = form or (Format.JSON if run.out.json and file == "-" else _by_suffix(file))
    service = run.service(write=False)
    to_file = _replaced(Path(file)) if file != "-" else _stdout()
    with closing(service.transfer.export_rows(with_hashes=with_hashes)) as rows, to_file as target:
        cell = run.out.csv_cell if file == "-" else lambda value: value
        count = _write(target, chosen, rows, with_hashes=with_hashes, cell=cell)
    if file != "-":
        run.out.result(f"Exported {counted(count, 'user')} to {file}", {"exported": count, "file": file})


def _by_suffix(file: str) -> Format:
    if file == "-":
        return Format.CSV
    suffix = Path(file).suffix.lower().removeprefix(".")
    known = {"csv": Format.CSV, "json": Format.JSON, "jsonl": Format.JSONL, "ndjson": Format.JSONL}
    if suffix not in known:
        raise Invalid(f"Cannot tell the format of {file}", hint="say so with --format csv, json or jsonl")
    return known[suffix]


# --- reading ---


@contextmanager
def _opened(file: str) -> Iterator[IO[bytes]]:
    if file == "-":
        yield sys.stdin.buffer
        return
    with ExitStack() as stack:
        try:
            source = stack.enter_context(Path(file).open("rb"))
        except OSError as error:
            raise Invalid(f"{file} cannot be read: {error.strerror}") from None
        yield source


def _rows(source: IO[bytes], form: Format) -> Generator[SourceRow, None, None]:
    with as_text(source) as text:
        if form is Format.CSV:
            columns, rows = csv_rows(text, spelled=str.lower)
            _check_header(columns)
            yield from rows
        else:
            yield from (jsonl_rows if form is Format.JSONL else json_rows)(text)


def _check_header(header: list[str]) -> None:
    if header and "email" not in header:
        raise Invalid(
            "line 1: the header has no column email",
            hint=f"the first line names the columns, separated by commas: {', '.join(IMPORTED)};"
            " a file with other names is read with --from csv:FILE",
        )
    unknown = next((name for name in header if name not in IMPORTED + IGNORED), None)
    if unknown is not None:
        raise Invalid(
            f"line 1: unknown column {unknown!r}",
            hint=f"known are {', '.join(IMPORTED)}; a file with other names is read with --from csv:FILE",
        )


def _shown(text: str) -> str:
    from usersctl.cli.show.output import clean

    return clean(text).replace("\n", "\\n")


# --- writing ---


@contextmanager
def _stdout() -> Iterator[IO[str]]:
    yield sys.stdout


@contextmanager
def _replaced(path: Path) -> Iterator[IO[str]]:
    """A file that is there whole or not at all, mode 0600. Devices and pipes are written as they are."""
    name = None
    try:
        if path.exists() and not path.is_file():
            number = os.open(path, os.O_WRONLY)
        else:
            there = Path(os.path.realpath(path))  # a link stays, and leads to the new file
            # mkstemp makes it 0600.
            number, name = tempfile.mkstemp(prefix=f".{there.name}.", dir=there.parent)
    except OSError as error:
        raise Invalid(f"{path} cannot be written: {error.strerror}") from None
    try:
        with os.fdopen(number, "w", encoding="utf-8", newline="") as target:
            yield target
            if name is not None:
                target.flush()
                os.fsync(target.fileno())
        if name is not None:
            Path(name).replace(there)
    except BaseException as error:
        if name is not None:
            Path(name).unlink(missing_ok=True)
        if isinstance(error, OSError) and not isinstance(error, BrokenPipeError):
            raise OSError(error.errno, error.strerror, str(path)) from None
        raise


def _write(
    target: IO[str],
    form: Format,
    rows: Iterator[dict[str, Any]],
    *,
    with_hashes: bool,
    cell: Callable[[Cell], Cell],
) -> int:
    count = 0

    def counted() -> Iterator[dict[str, Any]]:
        nonlocal count
        for row in rows:
            count += 1
            yield row

    if form is Format.CSV:
        columns = [name for name in COLUMNS if with_hashes or name != "password_hash"]
        writer = csv.DictWriter(target, columns, lineterminator="\n")
        writer.writeheader()
        for row in counted():
            # As JSON has them, and not as Python.
            said = {name: str(value).lower() for name, value in row.items() if isinstance(value, bool)}
            writer.writerow({name: cell(value) for name, value in (row | said).items()})
    elif form is Format.JSONL:
        for row in counted():
            target.write(to_json(row) + "\n")
    else:
        print_json_array(counted(), target)
    return count
