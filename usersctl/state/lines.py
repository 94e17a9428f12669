"""Where the entries of a document stand, and their keys: the parsers of the standard library do not tell."""

import json
import re
from collections.abc import Iterator
from functools import cached_property

from usersctl.text import visible

# Text in quotes and comments, as a whole, so that nothing in them is taken for a bracket or an end of line.
_TOKEN = re.compile(
    r"""(?P<text>\"{3}(?:\\.|[^\\])*?\"{3,5}|'{3}.*?'{3,5}|"(?:\\.|[^"\\\n])*"|'[^'\n]*'|\#[^\n]*)"""
    r"""|(?P<open>[\[{])|(?P<close>[\]}])|(?P<end>\n)|[^\[\]{}"'\#\n]+|.""",
    re.DOTALL,
)
_HEADER = re.compile(r"""\s*(\[\[?)\s*["']?([^"'\]\s]+)["']?\s*\]""")
_KEY = re.compile(r"""\s*(?:"([^"\\]*)"|'([^']*)'|([A-Za-z0-9_-]+))\s*[=.]""")

_JSON = re.compile(
    r"""(?P<blank>[\s:]+)|(?P<text>"(?:\\.|[^"\\])*")|(?P<open>[\[{])|(?P<close>[\]}])|(?P<comma>,)|[^\s\[\]{},:"]+""",
    re.DOTALL,
)

WHOLE = "file"  # where a problem is that has no place of its own

# A key of the document, the number of an entry from 0 on, and a key of the entry.
Place = tuple[str, int | None, str | None]


class Places:
    """In words, for problems. Without one, nothing is searched, and nothing kept but the document."""

    def __init__(self, document: str, *, is_json: bool) -> None:
        self._document = document
        self.is_json = is_json

    @cached_property
    def _lines(self) -> dict[Place, int]:
        return (lines_of_json if self.is_json else lines_of)(self._document)

    def line(self, place: Place) -> int:
        """Of the place, or what it is in; 0 if the document has neither."""
        kind, number, _ = place
        around = ((kind, number, None), (kind, None, None), (kind, 0, None))
        known = (self._lines.get(each) for each in (place, *around))
        return next(filter(None, known), 0)

    def named(self, place: Place) -> str:
        """In JSON with a path as well: it may all stand in one line."""
        kind, number, key = place
        line = self.line(place)
        if not line:
            return WHOLE
        if not self.is_json:
            return f"line {line}"
        path = "" if number is None else f"[{number}]"
        path += "" if key is None else f".{key}"
        return f"line {line}, {visible(f'{kind}{path}'[:80])}"


def lines_of(document: str) -> dict[Place, int]:
    """The line of each key and entry of a document that is TOML."""
    places: dict[Place, int] = {}
    counts: dict[str, int] = {}
    within: tuple[str, int | None] | None = None  # the table whose keys follow; None: the document
    for line, statement in _statements(document):
        header, assigned = _HEADER.match(statement), _KEY.match(statement)
        if header is not None:
            name = header[2]
            number = None
            if header[1] == "[[":
                number = counts.get(name, 0)
                counts[name] = number + 1
            within = (name, number)
            places.setdefault((name, number, None), line)
            if "." in name:
                places.setdefault((name.partition(".")[0], None, None), line)
        elif assigned is not None and within is not None:
            places.setdefault((*within, assigned[assigned.lastindex or 0]), line)
        elif assigned is not None:
            key = assigned[assigned.lastindex or 0]
            places.setdefault((key, None, None), line)
            for number, inner in enumerate(_inline_entries(statement)):
                places.setdefault((key, number, None), line + inner)
    return places


def _statements(document: str) -> Iterator[tuple[int, str]]:
    """Headers and assignments, each with the line where it begins. A value may go on for several lines."""
    line = first = 1
    depth = start = 0
    for token in _TOKEN.finditer(document):
        depth += (token["open"] is not None) - (token["close"] is not None)
        line += token[0].count("\n")
        if token["end"] and depth <= 0:
            yield first, document[start : token.start()]
            start, first, depth = token.end(), line, 0
    yield first, document[start:]


def _inline_entries(statement: str) -> Iterator[int]:
    """For `users = [{…}, {…}]`: how many lines below the first one each entry begins."""
    depth = line = 0
    for token in _TOKEN.finditer(statement):
        if token["open"]:
            if depth == 1 and token[0] == "{":
                yield line
            depth += 1
        depth -= token["close"] is not None
        line += token[0].count("\n")


def lines_of_json(document: str) -> dict[Place, int]:
    """The line of each key and entry of a document that is JSON."""
    places: dict[Place, int] = {}
    # Where the next value stands: for each container around it its key, or its number in a list. None: the key comes next.
    path: list[str | int | None] = []
    line = 1
    for token in _JSON.finditer(document):
        kind = token.lastgroup
        if kind == "blank":
            line += token[0].count("\n")
        elif kind == "close":
            path.pop()
        elif kind == "comma":
            path[-1] = path[-1] + 1 if isinstance(path[-1], int) else None
        else:
            if path and path[-1] is None:
                path[-1] = json.loads(token[0])
            _note(places, path, line)
            if kind == "open":
                path.append(None if token[0] == "{" else 0)
    return places


def twin_of_json(document: str) -> tuple[int, str]:
    """The key that stands twice in one object, and the line of its second time. The document is JSON up to there."""
    within: list[set[str] | None] = []  # the keys of each object around it; None: a list
    line = 1
    former = None  # the kind of the token before
    for token in _JSON.finditer(document):
        kind = token.lastgroup
        if kind == "blank":
            line += token[0].count("\n")
            continue
        if kind == "open":
            within.append(set() if token[0] == "{" else None)
        elif kind == "close":
            within.pop()
        elif former in ("open", "comma") and (keys := within[-1]) is not None:
            key = json.loads(token[0])
            if key in keys:
                return line, key
            keys.add(key)
        former = kind
    raise ValueError(document)


def _note(places: dict[Place, int], path: list[str | int | None], line: int) -> None:
    """Keeps the line where the key or entry begins: its value comes after it."""
    match path:
        case [str(key)]:
            places.setdefault((key, None, None), line)
        case [str(kind), int(number)]:
            places.setdefault((kind, number, None), line)
        case [str(kind), int(number), str(key)]:
            places.setdefault((kind, number, key), line)
