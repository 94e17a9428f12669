"""Files of people as rows: CSV, JSON and JSON lines, each row with the place where it stands."""

import csv
import io
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from typing import IO, Any

from usersctl.errors import Invalid
from usersctl.fields import unique_keys
from usersctl.text import counted, visible

Row = tuple[str, dict[str, Any] | Invalid]  # where, and what; or what is wrong with it

# What is read as a whole has an end, also where somebody names a device or the file of a disk. In characters.
LONGEST_LINE = 1024 * 1024
LONGEST_DOCUMENT = 256 * 1024 * 1024


class Format(StrEnum):
    CSV = "csv"
    JSON = "json"
    JSONL = "jsonl"


@contextmanager
def as_text(source: IO[bytes]) -> Iterator[IO[str]]:
    # A byte that is not UTF-8 becomes a surrogate, which the row's own check names by its line.
    text = io.TextIOWrapper(source, encoding="utf-8-sig", errors="surrogateescape", newline="")
    try:
        yield text
    finally:
        text.detach()


def lines(text: IO[str], at_most: int = LONGEST_LINE) -> Iterator[str]:
    """One by one, with their ends. Where the one stands that is too long, the caller knows."""
    while line := text.readline(at_most + 1):
        if len(line) > at_most and line[-1] not in "\r\n":
            raise Invalid(f"longer than {at_most} characters")
        yield line


def csv_rows(
    text: IO[str], *, delimiter: str = ",", spelled: Callable[[str], str] = str
) -> tuple[list[str], Iterator[Row]]:
    """The names of the columns, and the rows."""
    reader = csv.reader(lines(text), strict=True, delimiter=delimiter)
    line, header = 1, list[str]()
    try:
        for header in reader:  # the first line that is not empty
            if header:
                break
            line = reader.line_num + 1
    except csv.Error as error:
        raise Invalid(f"line {line}: not CSV: {error}") from None
    except Invalid as error:
        raise Invalid(f"line {reader.line_num + 1}: {error}") from None
    columns = [spelled(name.strip()) for name in header]
    folded = [name.lower() for name in columns]
    twice = next((name for name in columns if folded.count(name.lower()) > 1), None)
    if twice is not None:
        raise Invalid(f"line {line}: the column {visible(twice)} stands twice")
    return columns, _csv_body(reader, columns)


def _csv_body(reader: Any, columns: list[str]) -> Iterator[Row]:
    line = reader.line_num + 1
    while True:
        try:
            fields = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            # The reader has lost its place: what follows would be guessed.
            yield f"line {line}", Invalid(f"not CSV: {error}")
            return
        except Invalid as error:
            yield f"line {reader.line_num + 1}", error
            return
        if not fields:
            pass
        elif len(fields) != len(columns):
            yield f"line {line}", Invalid(f"{counted(len(fields), 'field')} instead of {len(columns)}")
        else:
            yield f"line {line}", dict(zip(columns, fields, strict=True))
        line = reader.line_num + 1


def json_rows(text: IO[str]) -> Iterator[Row]:
    document = text.read(LONGEST_DOCUMENT + 1)
    if len(document) > LONGEST_DOCUMENT:
        most = LONGEST_DOCUMENT // 1024 // 1024
        raise Invalid(f"more than {most} MiB, which is too much for one JSON document: use JSON lines")
    try:
        found = json.loads(document, object_pairs_hook=unique_keys)
    except (ValueError, RecursionError) as error:
        raise Invalid(f"not JSON: {error}") from None
    if not isinstance(found, list):
        raise Invalid("not a JSON array of objects")
    for number, each in enumerate(found, 1):
        yield f"entry {number}", each if isinstance(each, dict) else Invalid("not a JSON object")


def jsonl_rows(text: IO[str]) -> Iterator[Row]:
    number = 0
    try:
        for number, line in enumerate(lines(text), 1):
            if line.strip():
                yield f"line {number}", _object(line)
    except Invalid as error:
        yield f"line {number + 1}", error


def _object(line: str) -> dict[str, Any] | Invalid:
    try:
        found = json.loads(line, object_pairs_hook=unique_keys)
    except (ValueError, RecursionError) as error:
        return Invalid(f"not JSON: {error}")
    return found if isinstance(found, dict) else Invalid("not a JSON object")
