"""Tables on a terminal: as wide as the content needs, and times to the minute."""

from collections.abc import Iterable, Sequence

from usersctl.cli.show.cells import Cell, plain

_GAP = 2  # between two columns; one of the two is Rich's divider


def for_people(columns: Sequence[str], rows: Iterable[Sequence[Cell]]) -> tuple[list[str], list[list[Cell]]]:
    """Titles and cells as a person reads them: `last login (UTC)` instead of `last_login_at`, and no seconds.

    `show` and --json print times in full.
    """
    times = [column == "at" or column.endswith("_at") for column in columns]
    titles = [column.removesuffix("_at").replace("_", " ") for column in columns]
    for number, is_time in enumerate(times):
        if is_time:
            titles[number] += " (UTC)"
    cells = [
        [_to_the_minute(cell) if is_time else cell for is_time, cell in zip(times, row, strict=True)]
        for row in rows
    ]
    return titles, cells


def _to_the_minute(cell: Cell) -> Cell:
    return cell[:16].replace("T", " ") if isinstance(cell, str) else cell


def draw(titles: list[str], rows: list[list[Cell]], *, color: bool) -> bool:
    """Returns False, and draws nothing, if the terminal is too narrow."""
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(no_color=not color, highlight=False)
    texts = [titles, *([plain(cell) for cell in row] for row in rows)]
    widths = _widths(list(zip(*texts, strict=True)), console.width)
    if widths is None:
        return False
    style = "bold" if color else None
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, padding=(0, _GAP - 1, 0, 0), header_style=style)
    for title, width, cells in zip(titles, widths, zip(*rows, strict=True), strict=True):
        numeric = {type(cell) for cell in cells} - {type(None)} == {int}
        table.add_column(title, justify="right" if numeric else "left", overflow="fold", width=width)
    for row in rows:
        texts_of_row = [Text(plain(cell)) for cell in row]  # not str: names are never read as markup
        for cell, text in zip(row, texts_of_row, strict=True):
            if color and (cell is None or cell is False):
                text.stylize("dim")
        table.add_row(*texts_of_row)
    console.print(table)
    return True


def _widths(columns: list[tuple[str, ...]], room: int) -> list[int] | None:
    """The width of each column: as wide as its content; if that is too much, the widest shrink. None: no table fits."""
    from rich.cells import cell_len

    for unfolded in (24, 16, 12):  # words of up to this many characters are not broken
        widths = [max(map(cell_len, texts)) for texts in columns]
        least = [
            max(min(unfolded, cell_len(word)) for text in texts for word in text.split() or [""])
            for texts in columns
        ]
        while sum(widths) + _GAP * len(widths) - 1 > room:
            shrinkable = [number for number, width in enumerate(widths) if width > least[number]]
            if not shrinkable:
                break
            widths[max(shrinkable, key=widths.__getitem__)] -= 1
        else:
            return widths
    return None
