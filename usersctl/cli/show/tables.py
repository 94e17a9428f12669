"""Rows on a terminal: a table that is as wide as it has to be, with the times that people read."""

from collections.abc import Iterable, Sequence

from usersctl.cli.show.output import Cell, plain

_GAP = 2  # between columns, of which Rich's divider is one


def for_people(columns: Sequence[str], rows: Iterable[Sequence[Cell]]) -> tuple[list[str], list[list[Cell]]]:
    """Titles and cells."""
    cells = [[_brief(name, cell) for name, cell in zip(columns, row, strict=True)] for row in rows]
    return [_title(name) for name in columns], cells


def draw(titles: list[str], rows: list[list[Cell]], *, color: bool) -> bool:
    """Whether there was room for it."""
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(no_color=not color, highlight=False)
    texts = [titles, *([plain(cell) for cell in row] for row in rows)]
    widths = _widths(list(zip(*texts, strict=True)), console.width)
    if widths is None:
        return False
    grid = Table(
        box=box.SIMPLE_HEAD,
        show_edge=False,
        padding=(0, _GAP - 1, 0, 0),
        header_style="bold" if color else None,
    )
    for title, width, cells in zip(titles, widths, zip(*rows, strict=True), strict=True):
        numbers = {type(cell) for cell in cells} - {type(None)} == {int}
        grid.add_column(title, justify="right" if numbers else "left", overflow="fold", width=width)
    for row in rows:
        # Text and not str: what users wrote is never taken for markup.
        grid.add_row(*(Text(plain(cell), style="dim" if color and _is_off(cell) else "") for cell in row))
    console.print(grid)
    return True


def _is_off(cell: Cell) -> bool:
    return cell is None or cell is False


def _is_time(column: str) -> bool:
    return column == "at" or column.endswith("_at")


def _title(column: str) -> str:
    """`last_login_at` is `last login (UTC)` to people."""
    name = f"{column.removesuffix('_at')} (UTC)" if _is_time(column) else column
    return name.replace("_", " ")


def _brief(column: str, cell: Cell) -> Cell:
    """The minute is enough in a table; `show` and --json have it all."""
    return cell[:16].replace("T", " ") if isinstance(cell, str) and _is_time(column) else cell


def _widths(columns: list[tuple[str, ...]], room: int) -> list[int] | None:
    """As wide as each wants to be; where that is too much, the widest give way. None: no table fits."""
    from rich.cells import cell_len

    for unfolded in (24, 16, 12):  # words that are not longer than that stay whole
        widths = [max(map(cell_len, texts)) for texts in columns]
        least = [
            max(min(unfolded, cell_len(word)) for text in texts for word in text.split() or [""])
            for texts in columns
        ]
        while sum(widths) + _GAP * len(widths) - 1 > room:
            wide = [number for number, width in enumerate(widths) if width > least[number]]
            if not wide:
                break
            widths[max(wide, key=widths.__getitem__)] -= 1
        else:
            return widths
    return None
