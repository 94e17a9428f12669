"""How results look: a table on a terminal, tab-separated columns in a pipe, JSON with --json."""

import errno
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from usersctl.cli.options import Options
from usersctl.cli.show.cells import Cell, clean, csv_value, one_line, plain, to_json
from usersctl.errors import UsersError

if TYPE_CHECKING:
    from usersctl.cli.show.tables import Step


LEAST_ROOM = 24  # cells beside the names, as a time needs; with less, long texts stand below them


class Draw(Protocol):
    def __call__(self, done: int, total: int | None = None, /) -> None: ...


class DrawStep(Protocol):
    def __call__(self, what: str, done: int, total: int | None = None, /) -> None: ...


class Output:
    is_done = False  # the work of the command, of which only the report is missing

    def __init__(self, options: Options) -> None:
        self._options = options
        self.json = options.json
        self.quiet = options.quiet
        is_dumb = os.environ.get("TERM") == "dumb"  # as the shell of Emacs is
        self.color = not (options.no_color or os.environ.get("NO_COLOR") or is_dumb)
        self.terminal = sys.stdout.isatty()

    # --- data: stdout ---

    def data(self, text: str) -> None:
        print(text)

    def write_json(self, value: Any) -> None:
        self.data(to_json(value, indent=2 if self.terminal else None))

    def secret(self, text: str, value: Any) -> None:
        """Prints a secret that is shown only once, before the commit: a secret that was not shown must not be stored."""
        try:
            if self.json:
                self.write_json(value)
            else:
                self.data(text)
            sys.stdout.flush()
        except OSError as error:
            reason = error.strerror
            if isinstance(error, BrokenPipeError):
                reason = "the output was not read"  # for other output, this is no error
            raise OSError(errno.EIO, f"{reason}; nothing was done") from None

    def result(self, text: str, value: Any) -> None:
        """What a command did: a line for a person, or the same as JSON."""
        self.is_done = True
        if self.json:
            self.write_json(value)
        elif not self.quiet:
            self.data(clean(text))

    def table(
        self,
        columns: Sequence[str],
        rows: Iterable[Sequence[Cell]],
        *,
        empty: str = "",
        steps: "Sequence[Step]" = (),
    ) -> None:
        """With `steps` each row keeps one line on a narrow terminal."""
        if not self.terminal:
            self.data("\t".join(columns))
            for row in rows:
                self.data("\t".join(plain(cell) for cell in row))
            return
        from usersctl.cli.show import tables

        cells = list(rows)
        if not cells:
            self.note(empty)
            return
        if steps:
            left_out = tables.draw_fitted(columns, cells, steps, color=self.color)
            if left_out:
                from shutil import get_terminal_size
                from textwrap import fill

                self.note(fill(f"No room here for: {', '.join(left_out)}", get_terminal_size().columns))
            if left_out is not None:
                return
        titles, shown = tables.for_people(columns, cells)
        if steps or not tables.draw(titles, shown, color=self.color):
            # The terminal is too narrow for a table: print each row as a block of lines.
            for number, row in enumerate(shown):
                if number:
                    self.data("")
                self.facts(zip(titles, row, strict=True))

    def facts(self, pairs: Iterable[tuple[str, Cell]]) -> None:
        """One object, one line for each of its values. On a terminal, a long one goes on below itself, or below its name."""
        lines = [(name, plain(cell)) for name, cell in pairs]
        if not self.terminal:
            for name, value in lines:
                self.data(f"{name}\t{value}")
            return
        from shutil import get_terminal_size
        from textwrap import wrap
        from unicodedata import east_asian_width

        width = max(len(name) for name, _ in lines) + 2
        columns = get_terminal_size().columns
        for name, value in lines:
            # A wide character takes two cells; a control character, which no cell has, counts for the second.
            by_cells = "".join(c + "\0" * (east_asian_width(c) in "WF") for c in value)
            title, indent = f"{name:<{width}}", width
            if columns - width < min(len(by_cells), LEAST_ROOM):
                title, indent = f"{name}\n  ", 2
            parts = wrap(by_cells, max(columns - indent, 20), break_long_words=False, break_on_hyphens=False)
            self.data(title + ("\n" + " " * indent).join(parts).replace("\0", ""))

    def csv_cell(self, value: Cell) -> Cell:
        """Text is unchanged in a pipe or file. On a terminal, its control characters are made visible."""
        if self.terminal and isinstance(value, str):
            return one_line(value)
        return csv_value(value)

    # --- everything else: stderr ---

    def note(self, text: str) -> None:
        if not self.quiet and text:
            print(clean(text), file=sys.stderr)

    def error(self, error: Exception, *, code: str, hint: str | None = None, **more: Any) -> None:
        hint = hint and self._options.repeated_in(hint)
        told = error.in_full if isinstance(error, UsersError) else str(error)
        message = clean(told) or type(error).__name__
        if self.json:
            report = {"code": code, "message": message, "hint": hint, **more}
            print(to_json({"error": report}), file=sys.stderr)
            return
        print(f"usersctl: {message}", file=sys.stderr)
        if hint:
            print(f"  {clean(hint)}", file=sys.stderr)

    def interrupted(self, consequence: str = "") -> None:
        """After Ctrl-C. At a question the line has ended already; elsewhere the terminal shows ^C."""
        if not consequence and sys.stderr.isatty():
            print(file=sys.stderr)
        self.error(UsersError("; ".join(filter(None, ("interrupted", consequence)))), code="interrupted")

    @contextmanager
    def progress(self, what: str) -> Iterator[Draw]:
        """A bar on stderr for long work, on a terminal only."""
        with self.steps() as draw:
            yield partial(draw, what)

    @contextmanager
    def steps(self) -> Iterator[DrawStep]:
        """The same for work of several steps: each has its bar in the place of the one before."""
        if self.quiet or not sys.stderr.isatty():
            yield lambda _what, _done, _total=None: None
            return
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            MofNCompleteColumn,
            Progress,
            TaskID,
            TextColumn,
            TimeRemainingColumn,
        )

        class WithCursor(Console):
            def show_cursor(self, show: bool = True) -> bool:  # noqa: ARG002 - as Rich calls it
                """Hides none: Ctrl-Z, and `kill -9`, would leave the shell without a cursor."""
                return False

        console = WithCursor(stderr=True, no_color=not self.color)
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        with Progress(*columns, console=console, transient=True) as progress:
            tasks: dict[str, TaskID] = {}  # one at most

            def draw(what: str, done: int, total: int | None = None) -> None:
                if not done:
                    return  # what is over at once needs no bar
                if what in tasks:
                    progress.update(tasks[what], completed=done, total=total)
                    return
                for before in tasks.values():
                    progress.remove_task(before)
                tasks.clear()
                tasks[what] = progress.add_task(what, completed=done, total=total)  # at a speed of its own

            yield draw
