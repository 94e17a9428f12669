"""The findings of `doctor` and `why`: a line for each check, with the command that fixes it."""

from collections.abc import Iterable
from typing import NamedTuple

from usersctl.cli.show.cells import clean
from usersctl.cli.show.output import Output

STYLES = {"problem": "bold red", "shut": "bold red", "warning": "yellow", "hint": "cyan"}
STYLES |= {"unchecked": "dim", "note": "dim"}


class Line(NamedTuple):
    name: str
    state: str
    message: str
    mend: str | None


def show(out: Output, columns: tuple[str, str, str], lines: Iterable[Line]) -> None:
    """Columns in a pipe. On a terminal each command stands on a line of its own, below its finding, for copying."""
    if not out.terminal:
        out.table((*columns, "mend"), lines)
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table.grid(padding=(0, 2, 0, 0))
    for _ in range(2):
        table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for line in lines:
        state, message = Text(line.state), Text(clean(line.message))
        command = Text(f"\n-> {clean(line.mend)}" if line.mend else "")
        if out.color:
            state.stylize(STYLES.get(line.state, "green"))
            command.stylize("bold")
        table.add_row(state, Text(line.name), message + command)
    Console(no_color=not out.color, highlight=False).print(table)
