"""Reads CSV, JSON and JSON lines as rows, each with its place in the file."""

import io
import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import IO, Any

from usersctl.errors import Invalid
from usersctl.fields import unique_keys
from usersctl.text import counted, quoted_file, visible

# The place, such as "line 7"; and the row, or why it is invalid.
SourceRow = tuple[str, dict[str, Any] | Invalid]

# In characters. They bound the memory for one read, because the file may be a device or an image of a disk.
LONGEST_LINE = 1024 * 1024
LONGEST_DOCUMENT = 256 * 1024 * 1024

_UTF_16 = ("\udcff\udcfe", "\udcfe\udcff")
# zip, which a spreadsheet is, too; gzip; an older spreadsheet, whose next bytes are UTF-8 by chance
_PACKED = ("PK\x03\x04", "\x1f\udc8b", "\udcd0\udccf\x11")
_NO_UTF_8 = re.compile("[\ud800-\udfff]")

_DECODER = json.JSONDecoder(object_pairs_hook=unique_keys)  # made once: loads() makes one for each line


class Format(StrEnum):
    CSV = "csv"
    JSON = "json"
    JSONL = "jsonl"


class _NotUtf8(Exception):
    """No Invalid, because it is about the file and not about a row."""

    def __init__(self, before: str, line: int) -> None:
        self.line = line
        self.is_packed = before.startswith(_PACKED)
        # Two bytes mark the order of the others; without them, the first letter shows it.
        self.encoding = "utf16" if before.startswith(_UTF_16) or "\0" in before[:4] else "latin1"
        if before.startswith("\0"):
            self.encoding = "utf16be"


@contextmanager
def as_text(source: IO[bytes], name: str) -> Iterator[IO[str]]:
    """`name` is of the file, or `-`."""
    # A byte that is not UTF-8 becomes a surrogate, so that its line can be named.
    text = io.TextIOWrapper(source, encoding="utf-8-sig", errors="surrogateescape", newline="")
    try:
        yield text
    except _NotUtf8 as error:
        if error.is_packed:
            hint = "unpack it, or save the spreadsheet as CSV in UTF-8"
            raise Invalid(f"{name} is no text but a packed file or a spreadsheet", hint=hint) from None
        convert = f"iconv -f {error.encoding} -t utf8"
        if name != "-":
            new = Path(name).with_name(f"{Path(name).stem}-utf8{Path(name).suffix}")
            convert += f" {quoted_file(name)} > {quoted_file(new)}"
        subject = "standard input" if name == "-" else name
        problem = f"{subject} is not UTF-8: see line {error.line}"
        raise Invalid(problem, hint=f"convert it, for example: {convert}") from None
    finally:
        text.detach()


def _refuse_other_encodings(text: str, line: int = 1) -> None:
    """Also what is UTF-8 by chance: UTF-16 of ASCII letters, which has many zeros, and the beginning of a packed file."""
    is_other = line == 1 and ("\0" in text[:4] or text.startswith(_PACKED))
    if text.isascii() and not is_other:
        return
    wrong = _NO_UTF_8.search(text)
    if wrong or is_other:
        raise _NotUtf8(text, line + text.count("\n", 0, wrong.start() if wrong else 0))


def lines(text: IO[str], at_most: int = LONGEST_LINE) -> Iterator[str]:
    """Yields lines with their ends, and raises Invalid for a long one; the caller knows its number."""
    while line := text.readline(at_most + 1):
        if len(line) > at_most and line[-1] not in "\r\n":
            raise Invalid(f"longer than {at_most} characters")
        yield line


def _lines_in_utf_8(text: IO[str]) -> Iterator[str]:
    for number, line in enumerate(lines(text), 1):
        _refuse_other_encodings(line, number)
        yield line


def csv_rows(
    text: IO[str], *, delimiter: str = ",", spelled: Callable[[str], str] = str
) -> tuple[list[str], Iterator[SourceRow]]:
    """Returns the names of the columns, and the rows."""
    rows = _fields(text, delimiter)
    line, header = next(rows, (1, Invalid("no header: the first line has to name the columns")))
    if isinstance(header, Invalid):
        raise Invalid(f"line {line}: {header}")
    columns = [spelled(name.strip()) for name in header]
    folded = [name.lower() for name in columns]
    duplicate = next((name for name in columns if folded.count(name.lower()) > 1), None)
    if duplicate is not None:
        problem = f"the column {visible(duplicate)} stands twice" if duplicate else "two columns have no name"
        raise Invalid(f"line {line}: {problem}", hint="the first line names the columns, each once")
    return columns, _csv_body(rows, columns)


def _csv_body(rows: Iterator[tuple[int, list[str] | Invalid]], columns: list[str]) -> Iterator[SourceRow]:
    for line, fields in rows:
        if isinstance(fields, Invalid):
            yield f"line {line}", fields
        elif len(fields) == len(columns):
            yield f"line {line}", dict(zip(columns, fields, strict=True))
        else:
            yield f"line {line}", Invalid(f"{counted(len(fields), 'field')} instead of {len(columns)}")


def _fields(text: IO[str], delimiter: str) -> Iterator[tuple[int, list[str] | Invalid]]:
    """Yields the rows that are not empty, with their lines. At an error it ends: the reader has lost its place."""
    import csv

    reader = csv.reader(_lines_in_utf_8(text), strict=True, delimiter=delimiter)
    line = 1
    try:
        for fields in reader:
            if fields:
                yield line, fields
            line = reader.line_num + 1
    except csv.Error as error:
        yield line, Invalid(f"not CSV: {error}")
    except Invalid as error:
        yield reader.line_num + 1, error


def json_rows(text: IO[str]) -> Iterator[SourceRow]:
    document = text.read(LONGEST_DOCUMENT + 1)
    if len(document) > LONGEST_DOCUMENT:
        most = LONGEST_DOCUMENT // 1024 // 1024
        raise Invalid(f"more than {most} MiB, which is too much for one JSON document: use JSON lines")
    _refuse_other_encodings(document)
    hint = "one object a line is read with --format jsonl; jq takes an array out of an object: jq .users FILE"
    try:
        entries = _parsed(document)
    except Invalid as error:
        error.hint = hint
        raise
    if not isinstance(entries, list):
        raise Invalid("not a JSON array of objects", hint=hint)
    for number, entry in enumerate(entries, 1):
        yield f"entry {number}", _object(entry)


def jsonl_rows(text: IO[str]) -> Iterator[SourceRow]:
    number = 0
    try:
        for number, line in enumerate(_lines_in_utf_8(text), 1):
            if line.strip():
                yield f"line {number}", _line(line)
    except Invalid as error:
        yield f"line {number + 1}", error


def _line(text: str) -> dict[str, Any] | Invalid:
    try:
        return _object(_parsed(text))
    except Invalid as error:
        return error


def _parsed(text: str) -> Any:
    try:
        return _DECODER.decode(text)
    except (ValueError, RecursionError) as error:
        raise Invalid(f"not JSON: {error}") from None


def _object(value: Any) -> dict[str, Any] | Invalid:
    if isinstance(value, dict):
        return value
    return Invalid("not a JSON object")
