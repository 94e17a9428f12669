"""audit: the trail of changes, and the check that no row of it was changed or removed."""

import time
from collections.abc import Generator, Iterable
from contextlib import closing, suppress
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Context, Option

from usersctl.cli.durations import since as since_when
from usersctl.cli.exit_codes import ExitCode
from usersctl.cli.questions import complete_user, invocation, one_reference
from usersctl.cli.show.cells import plain, to_json
from usersctl.cli.show.listing import print_json_array
from usersctl.clock import stamp
from usersctl.errors import Invalid, NotFound
from usersctl.fields import lookup_key, user_id_of
from usersctl.models import AuditRow
from usersctl.text import counted

if TYPE_CHECKING:
    from usersctl.cli.invocation import Invocation
    from usersctl.service import Service
    from usersctl.store.store import Store

COLUMNS = ("id", "at", "actor", "origin", "action", "user_id", "email", "details")
POLL_EVERY = 0.1  # seconds; SQLite does not notify of new rows


def audit(
    ctx: Context,
    user: Annotated[
        str | None, Option(metavar="USER", help="Only rows about this user.", autocompletion=complete_user)
    ] = None,
    since: Annotated[str | None, Option(metavar="WHEN", help="Only rows since then: 7d, or a date.")] = None,
    follow: Annotated[bool, Option("--follow", help="Then wait for new rows, until Ctrl-C.")] = False,
    jsonl: Annotated[bool, Option("--jsonl", help="One JSON object a line.")] = False,
) -> None:
    if ctx.invoked_subcommand is not None:
        if user is not None or since is not None or follow or jsonl:
            raise Invalid(f"audit {ctx.invoked_subcommand} does not take the options of audit")
        return
    run = invocation(ctx)
    service = run.service(write=False)
    after = stamp(since_when(since, service.now())) if since is not None else None
    user_id = _user_id(service, one_reference(user)) if user is not None else None
    if follow:
        run.endless = True
        with closing(_followed(service.store, user_id=user_id, since=after)) as rows:
            _print_each(run, rows, as_json=jsonl or run.out.json)
        return
    with service.store.read() as tx:
        trail = tx.audit_rows(user_id=user_id, since=after)
        if jsonl:
            for row in trail:
                print(to_json(row._asdict()))
        elif run.out.json:
            print_json_array(row._asdict() for row in trail)
        else:
            run.out.table(COLUMNS, map(_cells, trail), empty="The audit trail is empty.")


def verify(
    ctx: Context,
    expect: Annotated[
        str | None, Option(metavar="HASH", help="An earlier hash, which the trail must still contain.")
    ] = None,
) -> None:
    """Check that no row was changed or removed.

    Each row has a hash of its content and of the row before it. The first row that does not match is named, and the
    exit code is 7. Someone who can write to the database can also write a new chain: keep the hash that this command
    prints somewhere else, and give it to --expect later.
    """
    expected = _hash(expect) if expect is not None else None
    run = invocation(ctx)
    with run.store(write=False).read() as tx:
        chain = tx.check_audit(expected)
    rows, head = counted(chain.rows, "row"), chain.head.hex()
    as_json: dict[str, Any] = {"intact": chain.problem is None, "rows": chain.rows, "head": head}
    as_json |= {"first_broken": chain.first_broken, "problem": chain.problem}
    if chain.problem is None:
        run.out.result(f"{rows}, unbroken up to {head}", as_json)
        return
    if run.out.json:
        run.out.write_json(as_json)
    else:
        run.out.data(f"Broken: {chain.problem}")
        run.out.note(f"Unbroken: {rows} up to {head}")
    raise typer.Exit(ExitCode.PARTLY_FAILED)


def _hash(text: str) -> bytes:
    with suppress(ValueError):
        if len(digest := bytes.fromhex(text)) == 32:
            return digest
    raise Invalid("--expect takes a hash as `usersctl audit verify` prints it: 64 hexadecimal digits")


def _followed(store: "Store", *, user_id: int | None, since: str | None) -> Generator[AuditRow, None, None]:
    """Yields rows since then, or from now on, and waits for more. Never returns."""
    with store.read() as tx:
        seen = tx.last_audit_row()
        if since is not None:
            yield from tx.audit_rows(user_id=user_id, since=since)
    while True:
        time.sleep(POLL_EVERY)
        with store.read() as tx:
            rows = list(tx.audit_rows(from_id=seen and seen.id))
            if seen is not None and (not rows or rows[0].hash != seen.hash):
                # A backup was restored, and this is another trail. Its last row is the restore.
                rows = list(filter(None, [tx.last_audit_row()]))
            elif seen is not None:
                rows = rows[1:]
        yield from (row for row in rows if user_id in (None, row.user_id))
        if rows:
            seen = rows[-1]


def _print_each(run: "Invocation", rows: Iterable[AuditRow], *, as_json: bool) -> None:
    if not as_json and not run.out.terminal:
        print("\t".join(COLUMNS), flush=True)
    for row in rows:
        cells = map(plain, _cells(row))
        if as_json:
            print(to_json(row._asdict()), flush=True)
        elif run.out.terminal:
            print("  ".join(filter(None, cells)), flush=True)
        else:
            print("\t".join(cells), flush=True)


def _cells(row: AuditRow) -> list[Any]:
    details = to_json(row.details) if row.details else ""
    return [getattr(row, name) for name in COLUMNS[:-1]] + [details]


def _user_id(service: "Service", reference: str) -> int:
    """The id of a user who may be deleted: the trail outlives the account."""
    number = user_id_of(reference)
    if number is not None:
        return number
    with service.store.read() as tx:
        number = tx.last_id_of(lookup_key(reference))
    if number is None:
        raise NotFound(f"No user {reference!r}, now or earlier")
    return number
