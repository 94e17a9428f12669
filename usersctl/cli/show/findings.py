"""What was looked at, line by line: how it is, and the command that mends it."""

from collections.abc import Iterable
from typing import NamedTuple

from usersctl.cli.show.output import Output, clean

STYLES = {
    "warning": "yellow",
    "problem": "bold red",
    "shut": "bold red",
    "hint": "cyan",
    "unchecked": "dim",
    "note": "dim",
}


class Line(NamedTuple):
    name: str
    state: str
    message: str
    mend: str | None


def show(out: Output, columns: tuple[str, str, str], lines: Iterable[Line]) -> None:
    """As columns in a pipe. On a terminal the command stands below what it mends, to be read and copied."""
    if not out.terminal:
        out.table((*columns, "mend"), lines)
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    grid = Table.grid(padding=(0, 2, 0, 0))
    for _ in range(2):
        grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    for line in lines:
        style = STYLES.get(line.state, "green") if out.color else ""
        told = Text(clean(line.message))
        if line.mend:
            told.append(f"\n-> {clean(line.mend)}", style="bold" if out.color else "")
        grid.add_row(Text(line.state, style=style), Text(line.name), told)
    Console(no_color=not out.color, highlight=False).print(grid)
