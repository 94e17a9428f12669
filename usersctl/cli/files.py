"""Reads the files of `import`, and writes those of `export`."""

import os
import stat
import sys
from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import IO, Any

from usersctl.cli.show.cells import Cell, csv_value, to_json
from usersctl.cli.show.listing import print_json_array
from usersctl.errors import Invalid
from usersctl.text import quoted_file
from usersctl.transfer.rows import Format, SourceRow, as_text, csv_rows, json_rows, jsonl_rows

_SPREADSHEETS = ("xlsx", "xls", "ods", "numbers")
_BY_SUFFIX = {"csv": Format.CSV, "json": Format.JSON, "jsonl": Format.JSONL, "ndjson": Format.JSONL}


def by_suffix(file: str) -> Format:
    if file == "-":
        return Format.CSV
    suffix = Path(file).suffix.lower().removeprefix(".")
    form = _BY_SUFFIX.get(suffix)
    if form is None:
        hint = "name it with --format csv, json or jsonl"
        if suffix in _SPREADSHEETS:
            hint = "a spreadsheet program saves CSV in UTF-8, and opens it: use a file .csv"
        elif suffix == "toml":
            hint = "TOML is written with --as-state, and read by: usersctl apply FILE"
        raise Invalid(f"Cannot tell the format of {file}", hint=hint)
    return form


# --- reading ---


def opened(file: str) -> AbstractContextManager[IO[bytes]]:
    if file == "-":
        return nullcontext(sys.stdin.buffer)
    try:
        return Path(file).open("rb")
    except OSError as error:
        raise Invalid(f"{file} cannot be read: {error.strerror}") from None


def read_rows(content: IO[bytes], form: Format, *, name: str) -> Generator[SourceRow, None, None]:
    with as_text(content, name) as text:
        if form is Format.CSV:
            columns, rows = csv_rows(text, spelled=str.lower)
            _check_header(columns, name)
            yield from rows
        elif form is Format.JSONL:
            yield from jsonl_rows(text)
        else:
            yield from json_rows(text)


def _check_header(header: list[str], name: str) -> None:
    from usersctl.transfer.checks import IGNORED, IMPORTED

    known, file = ", ".join(IMPORTED), quoted_file("csv:FILE" if name == "-" else f"csv:{name}")
    other = f"other names, tabs and semicolons are read with: usersctl import --from {file} --dry-run"
    if header and "email" not in header:
        hint = f"the first line names the columns, separated by commas: {known}; {other}"
        raise Invalid("line 1: the header has no column email", hint=hint)
    unknown = next((name for name in header if name not in IMPORTED + IGNORED), None)
    if unknown is not None:
        raise Invalid(f"line 1: unknown column {unknown[:60]!r}", hint=f"known are {known}; {other}")


# --- writing ---


@contextmanager
def replaced(path: Path) -> Iterator[IO[str]]:
    """A file with mode 0600 that appears when it is complete. Devices and pipes are written directly."""
    temporary = None
    try:
        is_link = _is_own_link(path)
        if path.exists() and not path.is_file():
            number = _opened_directly(path, is_link=is_link)
        else:
            import tempfile

            # A symbolic link is kept, and its target replaced.
            final = Path(os.path.realpath(path)) if is_link else path
            # mkstemp creates files with mode 0600. A name that adds to the longest one would be too long.
            number, temporary = tempfile.mkstemp(prefix=f".{final.name[:50]}.", dir=final.parent)
    except OSError as error:
        raise Invalid(f"{path} cannot be written: {error.strerror}") from None
    try:
        with os.fdopen(number, "w", encoding="utf-8", newline="") as target:
            yield target
            if temporary is not None:
                target.flush()
                os.fsync(target.fileno())
        if temporary is not None:
            Path(temporary).replace(final)
    except BaseException as error:
        if temporary is not None:
            Path(temporary).unlink(missing_ok=True)
        if isinstance(error, OSError) and not isinstance(error, BrokenPipeError):
            raise OSError(error.errno, error.strerror, str(path)) from None
        raise


def _is_own_link(path: Path) -> bool:
    """Refuses what another user put there, as into /tmp: a pipe to read all, or a link that chooses what is replaced.

    A file of another user may stay: it is replaced, and not written to.
    """
    is_link = False
    with suppress(FileNotFoundError):  # an unnamed pipe has no real path
        status = path.lstat()
        is_link = stat.S_ISLNK(status.st_mode)
        _refuse_foreign(path, status)
        _refuse_foreign(path, os.lstat(os.path.realpath(path)))
    return is_link


def _opened_directly(path: Path, *, is_link: bool) -> int:
    """Another user may have put a link or a pipe there since the check, but none in the place of one's own link."""
    if is_link:
        return os.open(path, os.O_WRONLY)
    number = os.open(path, os.O_WRONLY | os.O_NOFOLLOW)
    try:
        _refuse_foreign(path, os.fstat(number))
    except Invalid:
        os.close(number)
        raise
    return number


def _refuse_foreign(path: Path, status: os.stat_result) -> None:
    is_tempting = stat.S_ISLNK(status.st_mode) or stat.S_ISFIFO(status.st_mode)
    if is_tempting and status.st_uid not in (0, os.geteuid()):
        hint = "name another file, or write to standard output: -"
        raise Invalid(f"{path} belongs to another user", hint=hint)


def _flat(name: str, value: Any) -> Cell:
    """Groups are separated by commas; another list, as of identities, is JSON in its cell."""
    if name == "groups":
        return ",".join(value or ())
    return to_json(value) if isinstance(value, list) else value


def write_rows(
    target: IO[str],
    form: Format,
    rows: Iterator[dict[str, Any]],
    *,
    with_hashes: bool,
    cell: Callable[[Cell], Cell] = csv_value,
    safe: bool = False,
) -> int:
    """Returns how many rows were written. `safe`: CSV without formulas."""
    from usersctl.transfer.checks import COLUMNS

    count = 0
    if form is Format.CSV:
        import csv

        from usersctl.cli.show.formulas import no_formula

        columns = [name for name in COLUMNS if with_hashes or name != "password_hash"]
        writer = csv.DictWriter(target, columns, lineterminator="\n")
        writer.writeheader()
        for row in rows:
            cells = {name: cell(_flat(name, value)) for name, value in row.items()}
            if safe:
                cells = {name: no_formula(value) for name, value in cells.items()}
            writer.writerow(cells)
            count += 1
    elif form is Format.JSONL:
        for row in rows:
            target.write(to_json(row) + "\n")
            count += 1
    else:
        count = print_json_array(rows, target)
    return count
