"""The findings of `doctor` and `why`: a line for each check, with the command that fixes it."""

import sys
from collections.abc import Iterable, Iterator
from itertools import chain, islice

from usersctl.cli.show.cells import clean
from usersctl.cli.show.output import LEAST_ROOM, Output
from usersctl.named import NamedTuple

STYLES = {"problem": "bold red", "shut": "bold red", "warning": "yellow", "hint": "cyan"}
STYLES |= {"unchecked": "dim", "note": "dim"}


class Line(NamedTuple):
    name: str
    state: str
    message: str
    mend: str | None


def show(
    out: Output,
    columns: tuple[str, str, str],
    lines: Iterable[Line],
    *,
    names: Iterable[str],
    states: Iterable[str],
) -> None:
    """Prints each line before the next one is made, because a check may take long. `names` and `states` are those that
    lines may have.

    Columns in a pipe. On a terminal each command stands on a line of its own, below its finding, for copying; on a narrow
    one the message stands below the name of its check.
    """
    if not out.terminal:
        each = _one_by_one(lines)
        first = list(islice(each, 1))
        if first or not out.quiet:  # cron sends even a header
            out.table((*columns, "mend"), chain(first, each))
        return
    from rich.padding import Padding
    from rich.table import Table
    from rich.text import Text

    from usersctl.cli.show.tables import terminal_console

    console = terminal_console(color=out.color)
    widths = max(map(len, states)), max(map(len, names))
    is_narrow = console.width - sum(widths) - 4 < LEAST_ROOM
    for line in lines:
        state, message = Text(line.state), Text(clean(line.message))
        command = Text(f"\n-> {clean(line.mend)}" if line.mend else "")
        if out.color:
            state.stylize(STYLES.get(line.state, "green"))
            command.stylize("bold")
        if is_narrow:
            below = Padding(message + command, (0, 0, 0, 2))
            console.print(state, line.name)
            console.print(below, overflow="fold")
            continue
        row = Table.grid(padding=(0, 2, 0, 0))
        for width in widths:
            row.add_column(no_wrap=True, min_width=width)
        row.add_column(overflow="fold")
        row.add_row(state, Text(line.name), message + command)
        console.print(row)


def _one_by_one(lines: Iterable[Line]) -> Iterator[Line]:
    sys.stdout.flush()
    for line in lines:
        yield line
        sys.stdout.flush()
