"""`usersctl list`: accounts as a table, TSV, CSV, JSON or JSON lines, row by row and never all in memory."""

import sys
from collections.abc import Iterable, Sequence
from typing import IO, TYPE_CHECKING

from usersctl.cli.invocation import Invocation
from usersctl.cli.show.cells import Cell, to_json
from usersctl.errors import NotFound
from usersctl.models import USER_FIELDS, Page, User, UserFilter
from usersctl.text import counted

if TYPE_CHECKING:
    from usersctl.cli.show.tables import Step

ON_A_TERMINAL = 50  # rows
LINES_AT_ONCE = 500  # writing line by line costs more than encoding the lines
COLUMNS: tuple[str, ...] = ("id", "email", "name", "role", "active", "created_at", "last_login_at")


def list_users(
    run: Invocation,
    wanted: UserFilter,
    *,
    form: str | None = None,
    limit: int | None = None,
    page: int = 1,
    after: int | None = None,
) -> None:
    """`form` is json, jsonl or csv; None prints a table or TSV. Without a `limit` a terminal shows the first 50."""
    store = run.store(write=False)
    on_terminal = form is None and run.out.terminal
    if limit is None and on_terminal:
        limit = ON_A_TERMINAL
    with store.read() as tx:
        if limit is None or (after is None and not on_terminal):
            _print(run, tx.users(wanted, limit=limit, offset=(page - 1) * (limit or 0)), form)
            return
        # A larger number is no integer of the database.
        if after is not None and (after >= 2**63 or tx.user(after) is None):
            raise NotFound(
                f"No user {after}", hint="name the last user of the page before, or a page with --page N"
            )
        found = tx.page(wanted, page=page, limit=limit, after=after)
    _print(run, found.users, form)
    if on_terminal and found.total:
        run.out.note(_how_many(found, page, after))


def _how_many(found: Page, page: int, after: int | None) -> str:
    users, all_pages = counted(found.total, "user"), counted(found.total_pages, "page")
    pages = f"page {page} of {found.total_pages}"
    if not found.is_exact:
        users, all_pages = f"{found.total:,} and more users", f"{found.total_pages} and more pages"
        pages = f"page {page}"
    if after is not None:
        pages = f"behind user {after}"
    elif not found.users:
        return f"There are {users} on {all_pages}."
    elif found.total <= found.limit:
        return users
    rest = "these are the last"
    if len(found.users) == found.limit:
        rest = f"the next: --after {found.users[-1].id}, all: --all"
    return f"{len(found.users)} of {users}, {pages}; {rest}"


def _print(run: Invocation, users: Iterable[User], form: str | None) -> None:
    if form == "json":
        print_json_array(user.as_json() for user in users)
    elif form == "jsonl":
        for user in users:
            print(to_json(user.as_json()))
    elif form == "csv":
        import csv

        from usersctl.cli.show.formulas import no_formula

        writer = csv.writer(sys.stdout, lineterminator="\n")
        writer.writerow(USER_FIELDS)
        for user in users:
            writer.writerow(no_formula(run.out.csv_cell(value)) for value in user.as_json().values())
    else:
        columns = COLUMNS
        if run.out.terminal:
            users = list(users)  # a table is drawn of all its rows
            if any(user.delete_at for user in users):
                columns = (*COLUMNS, "delete_at")  # an owner has deleted one of the accounts
        rows = (_cells(user, columns, on_terminal=run.out.terminal) for user in users)
        run.out.table(columns, rows, empty="No users.", steps=_steps() if run.out.terminal else ())


def _steps() -> "Sequence[Step]":
    from usersctl.cli.show.tables import DAYS, Step  # late: most lists are read by scripts

    optional = (Step("created_at"), Step("last_login_at"), Step("role"))
    last = (Step("email", 28), Step("delete_at"), Step("name"), Step("active"))
    return (DAYS, Step("name", 16), *optional, *last)


def _cells(user: User, columns: Iterable[str], *, on_terminal: bool) -> tuple[Cell, ...]:
    values: dict[str, Cell] = user.as_json() | {"delete_at": user.delete_at}
    if on_terminal and user.claimed_email is not None:
        values["email"] = f"{user.claimed_email} (not proven)"
    if on_terminal and user.awaits_owner:
        values["active"] = "invited"
    return tuple(values[column] for column in columns)


def print_json_list(run: Invocation, items: Iterable[object]) -> None:
    """As `write_json` prints a list, but in a pipe never all in memory."""
    if run.out.terminal:
        run.out.write_json(list(items))
    else:
        print_json_array(items, in_one_line=True)


def print_json_array(items: Iterable[object], to: IO[str] | None = None, *, in_one_line: bool = False) -> int:
    """One object a line, written in batches; `[]` if there is none. Returns the number of objects."""
    target = to or sys.stdout
    before, between, end = ("[", ", ", "]\n") if in_one_line else ("[\n", ",\n", "\n]\n")
    count, lines = 0, []
    for item in items:
        lines.append(before + to_json(item))
        before = between
        count += 1
        if len(lines) == LINES_AT_ONCE:
            target.write("".join(lines))
            lines.clear()
    lines.append(end if count else "[]\n")
    target.write("".join(lines))
    return count
