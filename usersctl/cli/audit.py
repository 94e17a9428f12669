"""audit: the trail of changes, and the check that no row of it was changed or removed."""

import re
import select
import sys
import time
from collections.abc import Generator, Iterable, Iterator
from contextlib import closing, suppress
from datetime import timedelta
from operator import attrgetter
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Context, Option

from usersctl.cli.arguments import complete_actor, complete_user, one_reference
from usersctl.cli.exit_codes import ExitCode
from usersctl.cli.invocation import Invocation, invocation
from usersctl.cli.show.cells import plain, to_json
from usersctl.cli.show.listing import ON_A_TERMINAL, print_json_array
from usersctl.clock import stamp
from usersctl.durations import since as since_when
from usersctl.errors import Invalid, NotFound
from usersctl.events import ACTIONS, SIGN_IN, events_of
from usersctl.fields import lookup_key, whole_number
from usersctl.models import AuditFilter, AuditRow, TokenKind
from usersctl.store.statements import MOST
from usersctl.text import counted
from usersctl.trail import ACTOR, refuse_unknown, with_addresses

if TYPE_CHECKING:
    from usersctl.service import Service
    from usersctl.store.store import Store
    from usersctl.store.transaction import Transaction

# Beside them, JSON has `events`: the names by which webhooks tell of the row.
COLUMNS = ("id", "at", "actor", "origin", "action", "user_id", "email", "details", "actor_email")
POLL_EVERY = 0.1  # seconds; SQLite does not notify of new rows
COMMITTED_WITHIN = timedelta(seconds=10)  # a session, after its moment: a request fails before that


ByActor = Annotated[
    str | None,
    Option(
        metavar="NAME",
        help="Only rows by this actor: a user, cli:NAME, system, anonymous.",
        autocompletion=complete_actor,
    ),
]


def _complete_action(incomplete: str) -> list[str]:
    return sorted(action for action in ACTIONS if action.startswith(incomplete))


def audit(
    ctx: Context,
    user: Annotated[
        str | None, Option(metavar="USER", help="Only rows about this user.", autocompletion=complete_user)
    ] = None,
    actor: ByActor = None,
    action: Annotated[
        str | None,
        Option(
            metavar="NAME", help="Only rows of this action, such as create.", autocompletion=_complete_action
        ),
    ] = None,
    since: Annotated[str | None, Option(metavar="WHEN", help="Only rows since then: 7d, or a date.")] = None,
    until: Annotated[str | None, Option(metavar="WHEN", help="Only rows before then: 7d, or a date.")] = None,
    limit: Annotated[
        int | None, Option(metavar="N", min=1, help="Only the newest N rows. Default on a terminal: 50.")
    ] = None,
    follow: Annotated[bool, Option("--follow", help="Then wait for new rows, until Ctrl-C.")] = False,
    jsonl: Annotated[bool, Option("--jsonl", help="One JSON object a line.")] = False,
) -> None:
    if ctx.invoked_subcommand is not None:
        if follow or jsonl or not {user, actor, action, since, until, limit} <= {None}:
            raise Invalid(f"audit {ctx.invoked_subcommand} does not take the options of audit")
        return
    run = invocation(ctx)
    if follow and limit is not None:
        raise Invalid("--limit does not go with --follow", hint="begin earlier with --since WHEN")
    service = run.service(write=False)
    wanted = AuditFilter(
        user_id=_user_id(service, one_reference(user)) if user is not None else None,
        actor=_actor(service, actor) if actor is not None else None,
        action=_known(service, action, follow=follow),
        since=_time(service, since),
        until=_time(service, until),
    )
    if follow:
        run.endless = True
        with closing(following(service.store, wanted)) as endless:
            _print_each(run, endless, as_json=jsonl or run.out.json)
        return
    limit = limit and min(limit, MOST)
    with service.store.read() as tx:
        if run.out.terminal and not (run.out.json or jsonl):
            _draw(run, tx, wanted, limit or ON_A_TERMINAL)
            return
        if limit is not None:
            trail = reversed(list(tx.audit_rows(**wanted._asdict(), newest=limit)))
        else:
            trail = tx.audit_rows(**wanted._asdict())
        rows = map(_with_events, with_addresses(tx, trail))
        if jsonl:
            for row in rows:
                print(to_json(row))
        elif run.out.json:
            print_json_array(rows)
        else:
            run.out.table(COLUMNS, map(_cells, rows))


def _draw(run: Invocation, tx: "Transaction", wanted: AuditFilter, limit: int) -> None:
    """The newest first, because that is what a person looks for."""
    from usersctl.cli.show.tables import DAYS, Step

    rows = list(with_addresses(tx, tx.audit_rows(**wanted._asdict(), newest=limit + 1)))
    columns = ("id", "at", "actor", "action", "user", "origin", "details")
    cells = []
    for row in rows[:limit]:
        row |= {
            "actor": _beside(row["actor"], row["actor_email"]),
            "user": _beside(row["user_id"], row["email"]),
            "details": _details(row),
        }
        cells.append([row[name] for name in columns])
    first = (Step("details", 24), Step("user", 30), Step("origin"), Step("id"), Step("details"))
    steps = (*first, Step("actor", 12), Step("user", 14), DAYS)
    run.out.table(columns, cells, empty="The audit trail has no such row.", steps=steps)
    if len(rows) > limit:
        run.out.note(f"The newest {counted(limit, 'row')}; see more with --limit N, or all of them in a pipe")


def _beside(name: object, address: str | None) -> str | None:
    """An id with the address that belongs to it."""
    return " ".join(str(part) for part in (name, address) if part is not None) or None


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
    with run.store(write=False).read() as tx, run.out.progress("Checking rows") as draw:
        chain = tx.check_audit(expected, draw)
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
    problem = "--expect takes a hash of 64 hexadecimal digits, as `usersctl audit verify` prints it"
    raise Invalid(problem, value=text)


def _with_events(row: dict[str, Any]) -> dict[str, Any]:
    return row | {"events": list(events_of(row["action"], row["details"]))}


class _SignIns:
    """The sessions that are opened. The trail has no rows of sign-ins, so those that tell of them have no id."""

    def __init__(self, tx: "Transaction") -> None:
        # All up to this one were told; above it, those with a number in the set. A session may become visible after one
        # with a higher number, because PostgreSQL commits side by side.
        self._all_up_to = self._settled(tx)
        self._told = {row.details["token"] for row in self._opened(tx)}

    def with_rows(self, tx: "Transaction", rows: list[AuditRow]) -> list[AuditRow]:
        """The new rows of the trail, and the sign-ins since the last call, in the order of their time."""
        told = [*self._with_short_sessions(rows), *self._tell(self._opened(tx))]
        self._all_up_to = max(self._all_up_to, self._settled(tx))
        self._told = {number for number in self._told if number > self._all_up_to}
        return sorted(told, key=attrgetter("at"))

    def _tell(self, sign_ins: Iterable[AuditRow]) -> Iterator[AuditRow]:
        for row in sign_ins:
            number = row.details["token"]
            if number > self._all_up_to and number not in self._told:
                self._told.add(number)
                yield row

    def _with_short_sessions(self, rows: Iterable[AuditRow]) -> Iterator[AuditRow]:
        """Before the end of a session that ended unseen, its sign-in: the row of the end names the session."""
        for row in rows:
            if "token" in row.details and row.details.get("kind", TokenKind.API) != TokenKind.API:
                sign_in = row._replace(id=0, hash="", action=SIGN_IN, actor=f"user:{row.user_id}")
                yield from self._tell([sign_in])
            yield row

    def _opened(self, tx: "Transaction") -> list[AuditRow]:
        from usersctl.sessions import sign_in_details

        return [
            AuditRow(
                id=0,
                at=session.created_at,
                actor=f"user:{session.user_id}",
                origin=session.ip,
                action=SIGN_IN,
                user_id=session.user_id,
                email=email,
                details=sign_in_details(session),
                hash="",
            )
            for session, email in tx.sign_ins_after(self._all_up_to)
        ]

    def _settled(self, tx: "Transaction") -> int:
        return tx.last_session_id(before=stamp(tx.now - COMMITTED_WITHIN))


def following(store: "Store", wanted: AuditFilter) -> Generator[dict[str, Any], None, None]:
    """Yields rows since then, or from now on, and waits for more, and for sign-ins, as long as the output has a reader."""
    with store.read() as tx:
        seen, sign_ins = tx.last_audit_row(), _SignIns(tx)
        if wanted.since is not None:
            yield from with_addresses(tx, tx.audit_rows(**wanted._asdict()))
    while True:
        time.sleep(POLL_EVERY)
        _end_without_reader()
        with store.read() as tx:
            rows = list(tx.audit_rows(from_id=seen and seen.id))
            if seen is not None and (not rows or rows[0].hash != seen.hash):
                # A backup was restored, and this is another trail: what is new in it begins with the restore.
                first = tx.last_of("restore") or tx.last_audit_row()
                rows = list(tx.audit_rows(from_id=first.id)) if first else []
            elif seen is not None:
                rows = rows[1:]
            new = list(with_addresses(tx, filter(wanted.includes, sign_ins.with_rows(tx, rows))))
        for row in new:
            yield row | {"id": row["id"] or None, "hash": row["hash"] or None}
        if rows:
            seen = rows[-1]


def _end_without_reader() -> None:
    """What `grep -m 1` does not read any more: the next row, with which writing would fail, may come in hours."""
    output = select.poll()
    output.register(sys.stdout, 0)  # errors are told always
    if any(event & (select.POLLERR | select.POLLHUP) for _, event in output.poll(0)):
        raise BrokenPipeError


def _print_each(run: Invocation, rows: Iterable[dict[str, Any]], *, as_json: bool) -> None:
    if not as_json and not run.out.terminal:
        print("\t".join(COLUMNS), flush=True)
    for row in rows:
        if as_json:
            line = to_json(_with_events(row))
        else:
            cells = map(plain, _cells(row))
            line = "  ".join(filter(None, cells)) if run.out.terminal else "\t".join(cells)
        print(line, flush=True)


def _cells(row: dict[str, Any]) -> list[Any]:
    return [_details(row) if name == "details" else row[name] for name in COLUMNS]


def _details(row: dict[str, Any]) -> str:
    return to_json(row["details"]) if row["details"] else ""


def _time(service: "Service", text: str | None) -> str | None:
    return stamp(since_when(text, service.now())) if text is not None else None


def _known(service: "Service", action: str | None, *, follow: bool) -> str | None:
    """The trail has no rows of sign-ins, but --follow shows them."""
    if action is not None and not (follow and action == SIGN_IN):
        with service.store.glance() as tx:
            refuse_unknown(tx, action)
    return action


def _user_id(service: "Service", reference: str) -> int:
    """The id of a user who may be deleted: the trail outlives the account."""
    number = whole_number(reference)
    if number is not None:
        return number
    with service.store.read() as tx:
        number = tx.last_id_of(lookup_key(reference))
    if number is None:
        hint = "look for it with: usersctl list --search TEXT"
        raise NotFound(f"No user {reference!r}, now or earlier", hint=hint)
    return number


def _actor(service: "Service", name: str) -> str:
    """As rows name the actor; a user may be named as for --user."""
    if re.fullmatch(ACTOR, name):
        return name
    return f"user:{_user_id(service, one_reference(name))}"
