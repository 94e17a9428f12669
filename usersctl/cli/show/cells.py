"""One cell of a table and one value of JSON as text that is safe to print."""

import json
import re
from typing import Any

from usersctl.text import visible

Cell = str | int | bool | None

# Control characters, line separators, changes of writing direction, and surrogates, which UTF-8 cannot hold.
_UNSAFE = "[\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"

_encode = json.JSONEncoder(ensure_ascii=False).encode


def clean(text: str) -> str:
    """Control characters made visible, except line ends."""
    return "\n".join(map(visible, text.split("\n")))


def one_line(text: str) -> str:
    return clean(text).replace("\n", "\\n")


def plain(cell: Cell) -> str:
    if cell is None:
        return ""
    if isinstance(cell, bool):
        return "yes" if cell else "no"
    return one_line(str(cell))


def in_cell(value: Any) -> Any:
    """A list of words as one text."""
    return " ".join(value) if isinstance(value, list) else value


def csv_value(value: Cell) -> Cell:
    """Booleans as in JSON, not as in Python."""
    return str(value).lower() if isinstance(value, bool) else value


def to_json(value: Any, *, indent: int | None = None) -> str:
    """Letters of every script stay readable; characters that a terminal acts on are escaped."""
    text = _encode(value) if indent is None else json.dumps(value, ensure_ascii=False, indent=indent)
    if text.isascii() and "\x7f" not in text:
        return text
    return re.sub(_UNSAFE, lambda match: f"\\u{ord(match[0]):04x}", text)
