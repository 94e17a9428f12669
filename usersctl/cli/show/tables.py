"""Tables on a terminal: as wide as the content needs, and times to the minute."""

from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING

from usersctl.cli.show.cells import Cell, plain
from usersctl.named import NamedTuple

if TYPE_CHECKING:
    from rich.console import Console

_GAP = 2  # between two columns; one of the two is Rich's divider


class Step(NamedTuple):
    """What a table gives up on a narrow terminal, one step after the other, so that each row keeps one line."""

    column: str
    least: int = 0  # its texts are cut to so many characters; 0: it is left out


DAYS = Step("times", 10)  # no hours and minutes


def for_people(
    columns: Sequence[str], rows: Iterable[Sequence[Cell]], *, days: bool = False
) -> tuple[list[str], list[list[Cell]]]:
    """Titles and cells as a person reads them: `last login (UTC)` instead of `last_login_at`, and no seconds.

    `days`: nor hours and minutes. `show` and --json print times in full.
    """
    times = [column == "at" or column.endswith("_at") for column in columns]
    titles = [column.removesuffix("_at").replace("_", " ") for column in columns]
    for number, is_time in enumerate(times):
        if is_time and not days:
            titles[number] += " (UTC)"
    length = 10 if days else 16
    cells = [
        [_shortened(cell, length) if is_time else cell for is_time, cell in zip(times, row, strict=True)]
        for row in rows
    ]
    return titles, cells


def _shortened(time: Cell, length: int) -> Cell:
    return time[:length].replace("T", " ") if isinstance(time, str) else time


def draw_fitted(
    columns: Sequence[str], rows: Sequence[Sequence[Cell]], steps: Sequence[Step], *, color: bool
) -> list[str] | None:
    """Returns the titles of the columns that were left out; None, and draws nothing, if the terminal is too narrow."""
    console = terminal_console(color=color)
    steps = [step for step in steps if step is DAYS or step.column in columns]
    for taken in range(len(steps) + 1):
        days = DAYS in steps[:taken]
        least = {step.column: step.least for step in steps[:taken] if step is not DAYS}
        kept = [number for number, column in enumerate(columns) if least.get(column) != 0]
        names = [columns[number] for number in kept]
        titles, cells = for_people(names, ([row[number] for number in kept] for row in rows), days=days)
        cut = {names.index(column): length for column, length in least.items() if length}
        widths = _cut_widths(_columns(titles, cells), cut, console.width)
        if widths is not None:
            _draw(console, titles, cells, widths, cut=cut, color=color)
            return for_people([column for column in columns if column not in names], [], days=True)[0]
    return None


def _cut_widths(columns: list[tuple[str, ...]], cut: dict[int, int], room: int) -> list[int] | None:
    """The width of each column, if all rows have room for one line. `cut`: the least widths of columns."""
    from rich.cells import cell_len

    widths = [max(map(cell_len, texts)) for texts in columns]
    missing = _whole_width(widths) - room
    for number, least in cut.items():
        less = min(max(missing, 0), max(widths[number] - least, 0))
        widths[number] -= less
        missing -= less
    return widths if missing <= 0 else None


def _whole_width(widths: list[int]) -> int:
    """That of a table with columns of these widths."""
    return sum(widths) + _GAP * len(widths) - 1


def draw(titles: list[str], rows: list[list[Cell]], *, color: bool) -> bool:
    """Returns False, and draws nothing, if the terminal is too narrow."""
    console = terminal_console(color=color)
    widths = _widths(_columns(titles, rows), console.width)
    if widths is not None:
        _draw(console, titles, rows, widths, cut=(), color=color)
    return widths is not None


def terminal_console(*, color: bool) -> "Console":
    from rich.console import Console

    return Console(no_color=not color, highlight=False)


def _columns(titles: list[str], rows: list[list[Cell]]) -> list[tuple[str, ...]]:
    return list(zip(titles, *([plain(cell) for cell in row] for row in rows), strict=True))


def _draw(
    console: "Console",
    titles: list[str],
    rows: list[list[Cell]],
    widths: list[int],
    *,
    cut: Collection[int],
    color: bool,
) -> None:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    style = "bold" if color else None
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, padding=(0, _GAP - 1, 0, 0), header_style=style)
    for number, (title, width, cells) in enumerate(zip(titles, widths, zip(*rows, strict=True), strict=True)):
        numeric = {type(cell) for cell in cells} - {type(None)} == {int}
        is_cut = number in cut
        table.add_column(
            title,
            justify="right" if numeric else "left",
            overflow="ellipsis" if is_cut else "fold",
            no_wrap=is_cut,
            width=width,
        )
    for row in rows:
        texts_of_row = [Text(plain(cell)) for cell in row]  # not str: names are never read as markup
        for cell, text in zip(row, texts_of_row, strict=True):
            if color and (cell is None or cell is False):
                text.stylize("dim")
        table.add_row(*texts_of_row)
    console.print(table)


def _widths(columns: list[tuple[str, ...]], room: int) -> list[int] | None:
    """The width of each column: as wide as its content; if that is too much, the widest shrink. None: no table fits."""
    from rich.cells import cell_len

    for unfolded in (24, 16, 12):  # words of up to this many characters are not broken
        widths = [max(map(cell_len, texts)) for texts in columns]
        least = [
            max(min(unfolded, cell_len(word)) for text in texts for word in text.split() or [""])
            for texts in columns
        ]
        while _whole_width(widths) > room:
            shrinkable = [number for number, width in enumerate(widths) if width > least[number]]
            if not shrinkable:
                break
            widths[max(shrinkable, key=widths.__getitem__)] -= 1
        else:
            return widths
    return None
