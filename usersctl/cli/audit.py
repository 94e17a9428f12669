"""Who did what to whom, when and from where; and whether that trail is whole."""

import time
from collections.abc import Generator, Iterable
from contextlib import closing
from typing import TYPE_CHECKING, Annotated, Any

import typer

from usersctl.cli.durations import since as since_when
from usersctl.cli.questions import complete_user, invocation, one_reference
from usersctl.cli.show.listing import print_json_array
from usersctl.cli.show.output import PARTLY_FAILED, plain, to_json
from usersctl.clock import stamp
from usersctl.errors import Invalid, NotFound
from usersctl.fields import lookup_key, user_id_of
from usersctl.models import AuditRow
from usersctl.text import counted

if TYPE_CHECKING:
    from usersctl.cli.invocation import Invocation
    from usersctl.service import Service
    from usersctl.store.store import Store

COLUMNS = ("id", "at", "actor", "origin", "action", "user_id", "email")
LOOK_EVERY = 0.1  # seconds between two looks for new rows; SQLite tells nobody of them


def register(app: typer.Typer) -> None:
    group = typer.Typer(
        invoke_without_command=True,
        help="Show the audit trail, oldest first.",
        epilog="Example: usersctl audit --user ada@example.com --since 7d",
    )
    group.callback()(audit)
    group.command("verify", epilog="Example: usersctl audit verify")(verify)
    app.add_typer(group, name="audit", rich_help_panel="Operation")


def audit(
    ctx: typer.Context,
    user: Annotated[
        str | None,
        typer.Option(
            metavar="USER", help="Only about this user, also a deleted one.", autocompletion=complete_user
        ),
    ] = None,
    since: Annotated[str | None, typer.Option(metavar="WHEN", help="Only since then: 7d, or a date.")] = None,
    follow: Annotated[
        bool, typer.Option("--follow", help="Then wait for new rows, from wherever they come.")
    ] = False,
    jsonl: Annotated[bool, typer.Option("--jsonl", help="One JSON object a line.")] = False,
) -> None:
    if ctx.invoked_subcommand is not None:
        if user is not None or since is not None or follow or jsonl:
            raise Invalid(f"The options of the list do not go with audit {ctx.invoked_subcommand}")
        return
    run = invocation(ctx)
    service = run.service(write=False)
    after = stamp(since_when(since, service.now())) if since is not None else None
    user_id = _user_id(service, one_reference(user)) if user is not None else None
    if follow:
        run.endless = True
        with closing(_followed(service.store, user_id=user_id, since=after)) as rows:
            _print_as_they_come(run, rows, as_json=jsonl or run.out.json)
        return
    with service.store.read() as tx:
        found = tx.audit_rows(user_id=user_id, since=after)
        if jsonl:
            for row in found:
                print(to_json(row._asdict()))
        elif run.out.json:
            print_json_array(row._asdict() for row in found)
        else:
            run.out.table((*COLUMNS, "details"), map(_cells, found), empty="Nothing yet.")


def verify(
    ctx: typer.Context,
    expect: Annotated[
        str | None,
        typer.Option(
            metavar="HASH", help="A hash that was noted earlier; the trail must still lead through it."
        ),
    ] = None,
) -> None:
    """Check that nobody changed or removed a row.

    Each row has a hash of its content and of the row before. The first that does not fit is named, and the exit code
    is 7. Who can write the database can also make a whole new chain: note the hash that this prints, elsewhere, and
    give it to --expect later.
    """
    expected = _hash(expect) if expect is not None else None
    run = invocation(ctx)
    with run.store(write=False).read() as tx:
        found = tx.check_audit(expected)
    told = {
        "intact": found.problem is None,
        "rows": found.rows,
        "head": found.head.hex(),
        "first_broken": found.first_broken,
        "problem": found.problem,
    }
    if found.problem is None:
        run.out.result(f"{counted(found.rows, 'row')}, unbroken up to {found.head.hex()}", told)
        return
    if run.out.json:
        run.out.write_json(told)
    else:
        run.out.data(f"Broken: {found.problem}")
        whole = "is 1 row" if found.rows == 1 else f"are {found.rows} rows"
        run.out.note(f"Unbroken {whole} up to {found.head.hex()}")
    raise typer.Exit(PARTLY_FAILED)


def _hash(text: str) -> bytes:
    try:
        found = bytes.fromhex(text)
    except ValueError:
        found = b""
    if len(found) != 32:
        raise Invalid("--expect takes a hash as `usersctl audit verify` prints it: 64 hexadecimal digits")
    return found


def _followed(store: "Store", *, user_id: int | None, since: str | None) -> Generator[AuditRow, None, None]:
    """Rows since then, or from now on, as they come. Ends only with the process."""
    with store.read() as tx:
        seen = tx.last_audit_row()
        if since is not None:
            yield from tx.audit_rows(user_id=user_id, since=since)
    while True:
        time.sleep(LOOK_EVERY)
        with store.read() as tx:
            rows = list(tx.audit_rows(from_id=seen.id if seen else None))
            if seen is not None and (not rows or rows[0].hash != seen.hash):
                # Another trail: a backup was restored, of which its last row tells.
                last = tx.last_audit_row()
                rows = [last] if last else []
            elif seen is not None:
                rows = rows[1:]
        yield from (row for row in rows if user_id in (None, row.user_id))
        seen = rows[-1] if rows else seen


def _print_as_they_come(run: "Invocation", rows: Iterable[AuditRow], *, as_json: bool) -> None:
    if not as_json and not run.out.terminal:
        print("\t".join((*COLUMNS, "details")), flush=True)
    for row in rows:
        if as_json:
            line = to_json(row._asdict())
        else:
            cells = map(plain, _cells(row))
            line = "  ".join(filter(None, cells)) if run.out.terminal else "\t".join(cells)
        print(line, flush=True)


def _cells(row: AuditRow) -> list[Any]:
    return [getattr(row, name) for name in COLUMNS] + [to_json(row.details) if row.details else ""]


def _user_id(service: "Service", reference: str) -> int:
    """Also of a user who is gone: the trail outlives the account."""
    number = user_id_of(reference)
    if number is not None:
        return number
    with service.store.read() as tx:
        found = tx.last_id_of(lookup_key(reference))
    if found is None:
        raise NotFound(f"No user {reference!r}, now or earlier")
    return found
