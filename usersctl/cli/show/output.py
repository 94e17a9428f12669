"""How results look: a table on a terminal, tab-separated columns in a pipe, JSON when asked for."""

import errno
import json
import os
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

from usersctl.cli.options import Options
from usersctl.errors import UsersError
from usersctl.text import visible

Cell = str | int | bool | None


class Draw(Protocol):
    def __call__(self, done: int, total: int | None = None, /) -> None: ...


class Output:
    def __init__(self, options: Options) -> None:
        self.json = options.json
        self.quiet = options.quiet
        self.color = not options.no_color and not os.environ.get("NO_COLOR")
        self.terminal = sys.stdout.isatty()

    # --- data: stdout ---

    def data(self, text: str) -> None:
        print(text)

    def write_json(self, value: Any) -> None:
        self.data(to_json(value, indent=2 if self.terminal else None))

    def secret(self, text: str, value: Any) -> None:
        """What is shown only now, alone or as JSON. It must have gone out before what it belongs to is kept."""
        try:
            if self.json:
                self.write_json(value)
            else:
                self.data(text)
            sys.stdout.flush()
        except BrokenPipeError:
            # MustWait a reader that goes away is no error.
            raise OSError(errno.EIO, "nobody reads it; nothing was done") from None

    def result(self, text: str, value: Any) -> None:
        """What a command did: one line for a person, or the same as JSON."""
        if self.json:
            self.write_json(value)
        elif not self.quiet:
            self.data(clean(text))

    def table(self, columns: Sequence[str], rows: Iterable[Sequence[Cell]], *, empty: str = "") -> None:
        if not self.terminal:
            self.data("\t".join(columns))
            for row in rows:
                self.data("\t".join(plain(cell) for cell in row))
            return
        from usersctl.cli.show import tables

        titles, listed = tables.for_people(columns, rows)
        if not listed:
            self.note(empty)
        elif not tables.draw(titles, listed, color=self.color):
            # Too narrow for any table: one below the other.
            for number, row in enumerate(listed):
                if number:
                    self.data("")
                self.facts(zip(titles, row, strict=True))

    def facts(self, pairs: Iterable[tuple[str, Cell]]) -> None:
        """One thing, told in lines."""
        listed = [(name, plain(cell)) for name, cell in pairs]
        width = max(len(name) for name, _ in listed)
        for name, value in listed:
            self.data(f"{name:<{width}}  {value}" if self.terminal else f"{name}\t{value}")

    def csv_cell(self, value: Cell) -> Cell:
        """Raw in a pipe and a file; what a name holds never moves a terminal's cursor."""
        return clean(value).replace("\n", "\\n") if self.terminal and isinstance(value, str) else value

    # --- everything else: stderr ---

    def note(self, text: str) -> None:
        if not self.quiet and text:
            print(clean(text), file=sys.stderr)

    def error(self, error: Exception, *, code: str, hint: str | None = None, **more: Any) -> None:
        message = clean(str(error)) or type(error).__name__
        if self.json:
            told = {"error": {"code": code, "message": message, "hint": hint, **more}}
            print(to_json(told), file=sys.stderr)
            return
        print(f"usersctl: {message}", file=sys.stderr)
        if hint:
            print(f"  {clean(hint)}", file=sys.stderr)

    def interrupted(self, consequence: str = "") -> None:
        """By the keys that end a command. Behind a question the line has ended already, elsewhere stands a ^C."""
        if not consequence and sys.stderr.isatty():
            print(file=sys.stderr)
        self.error(UsersError("; ".join(filter(None, ("interrupted", consequence)))), code="interrupted")

    @contextmanager
    def progress(self, what: str) -> Iterator[Draw]:
        """A bar on stderr for long work, drawn only where somebody looks."""
        if self.quiet or not sys.stderr.isatty():
            yield lambda _done, _total=None: None
            return
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        console = Console(stderr=True, no_color=not self.color)
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        with Progress(*columns, console=console, transient=True) as progress:
            task = progress.add_task(what, total=None, visible=False)

            def draw(done: int, total: int | None = None) -> None:
                progress.update(task, completed=done, total=total, visible=done > 0)

            yield draw


def clean(text: str) -> str:
    """Control characters made visible, so that no name can move a terminal's cursor."""
    return "\n".join(map(visible, text.split("\n")))


def plain(cell: Cell) -> str:
    if isinstance(cell, bool):
        return "yes" if cell else "no"
    return "" if cell is None else clean(str(cell)).replace("\n", "\\n")


# Control characters, separators of lines, the turns of a line's direction, and surrogates, which UTF-8 does not have.
_UNSAFE = "[\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"

_encode = json.JSONEncoder(ensure_ascii=False).encode


def to_json(value: Any, *, indent: int | None = None) -> str:
    """Names in any script stay readable; what a terminal would act on does not reach it."""
    text = _encode(value) if indent is None else json.dumps(value, ensure_ascii=False, indent=indent)
    if text.isascii() and "\x7f" not in text:
        return text
    return re.sub(_UNSAFE, lambda found: f"\\u{ord(found[0]):04x}", text)


def code_of(error: UsersError) -> int:
    """The exit code of a refusal; the nearest class in this table decides."""
    return next(EXIT_CODES[each.__name__] for each in type(error).__mro__ if each.__name__ in EXIT_CODES)


# Some of it went wrong, or what was looked at is not as it should be; no error of its own, for the rest was done.
PARTLY_FAILED = 7

INTERRUPTED = 130

EXIT_CODES = {
    "Invalid": 2,
    "NotFound": 3,
    "Taken": 4,
    "LastAdmin": 5,
    "Forbidden": 5,
    "Unauthenticated": 5,
    "TooMany": 5,
    "Busy": 6,  # on the command line only the database can be busy
    "ConfigError": 6,
    "StoreUnusable": 6,
    "UsersError": 5,
}
