"""`usersctl list`: accounts as a table, TSV, CSV, JSON or JSON lines, as many as one likes without holding them all."""

import sys
from collections.abc import Iterable
from typing import IO

from usersctl.cli.invocation import Invocation
from usersctl.cli.show.output import to_json
from usersctl.models import USER_FIELDS, User, UserFilter
from usersctl.text import counted

ON_A_TERMINAL = 50
LINES_AT_ONCE = 500  # a write for each line would cost more than making it
COLUMNS = ("id", "email", "name", "role", "active", "created_at", "last_login_at")


def list_users(
    run: Invocation,
    wanted: UserFilter,
    *,
    form: str | None = None,
    limit: int | None = None,
    page: int = 1,
) -> None:
    """`form`: json, jsonl or csv; None is a table or TSV. `limit`: None is all, in a table on a terminal the first 50."""
    store = run.store(write=False)
    table = form is None
    if limit is None and table and run.out.terminal:
        limit = ON_A_TERMINAL
    with store.read() as tx:
        total = tx.count_users(wanted)
        offset = (page - 1) * limit if limit is not None else 0
        users = tx.users(wanted, limit=-1 if limit is None else limit, offset=offset)
        _print(run, users, form)
    if table and run.out.terminal and limit is not None and total:
        run.out.note(_how_many(total, limit, page, offset))


def _how_many(total: int, limit: int, page: int, offset: int) -> str:
    users, pages = counted(total, "user"), -(-total // limit)
    if offset >= total:
        return f"There are {users} on {counted(pages, 'page')}."
    if total <= limit:
        return users
    return f"{min(limit, total - offset)} of {users}, page {page} of {pages}; see the rest with --page N or --all"


def _print(run: Invocation, users: Iterable[User], form: str | None) -> None:
    if form == "json":
        print_json_array(user.as_json() for user in users)
    elif form == "jsonl":
        for user in users:
            print(to_json(user.as_json()))
    elif form == "csv":
        import csv

        writer = csv.writer(sys.stdout, lineterminator="\n")
        writer.writerow(USER_FIELDS)
        for user in users:
            writer.writerow(
                run.out.csv_cell(("true" if value else "false") if isinstance(value, bool) else value)
                for value in user.as_json().values()
            )
    else:
        rows = (tuple(getattr(user, column) for column in COLUMNS) for user in users)
        run.out.table(COLUMNS, rows, empty="No users.")


def print_json_array(items: Iterable[object], to: IO[str] | None = None) -> None:
    """As it comes, an object a line: `[]` when there is none."""
    target = to or sys.stdout
    before, lines = "[\n", []
    for item in items:
        lines.append(before + to_json(item))
        before = ",\n"
        if len(lines) == LINES_AT_ONCE:
            target.write("".join(lines))
            lines.clear()
    lines.append("[]\n" if before == "[\n" else "\n]\n")
    target.write("".join(lines))
