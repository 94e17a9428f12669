"""A plan as a diff: + what is made, ~ what is changed, - what is removed."""

import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Protocol

from usersctl.cli.show.cells import one_line, to_json
from usersctl.cli.show.output import Output

SIGNS = {"create": "+", "update": "~", "delete": "-"}
COLOURS = {"+": "\x1b[32m", "~": "\x1b[33m", "-": "\x1b[31m"}
END = "\x1b[0m"
PLANNED = {"create": "to make", "update": "to change", "delete": "to delete"}
DONE = {"create": "made", "update": "changed", "delete": "deleted"}


class Shown(Protocol):
    """A change of a plan."""

    @property
    def action(self) -> str: ...
    @property
    def kind(self) -> str: ...
    @property
    def key(self) -> str: ...
    @property
    def before(self) -> Mapping[str, Any] | None: ...
    @property
    def after(self) -> Mapping[str, Any] | None: ...


def show_changes(out: Output, changes: Iterable[Shown]) -> None:
    """Colours on a terminal only."""
    is_coloured = out.terminal and out.color
    for change in changes:
        sign = SIGNS[change.action]
        title = f"{sign} {change.kind} {one_line(change.key)}"
        if is_coloured:
            title = f"{COLOURS[sign]}{title}{END}"
        out.data("\n".join((title, *(f"    {line}" for line in _lines(change)))))
    sys.stdout.flush()


def summary(changes: Iterable[Shown], words: Mapping[str, str]) -> str:
    """`2 to make, 1 to delete`"""
    counts = Counter(change.action for change in changes)
    return ", ".join(f"{counts[action]} {word}" for action, word in words.items() if counts[action])


def _lines(change: Shown) -> Iterator[str]:
    """All that there is on one side, or what differs between the two."""
    before, after = change.before, change.after
    if before is None or after is None:
        for name, value in (before or after or {}).items():
            if value not in (None, []) and (name, value) != ("invited", False):
                yield f"{name}: {_value(value)}"
        return
    for name, value in after.items():
        former = before.get(name)
        if former == value:
            continue
        if name not in before:
            yield f"{name}: {_value(value)}"
        elif isinstance(value, list):
            signs = [f"+{each}" for each in value if each not in before[name]]
            signs += [f"-{each}" for each in before[name] if each not in value]
            yield f"{name}: {' '.join(signs)}"
        else:
            yield f"{name}: {_value(former)} -> {_value(value)}"


def _value(value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return ", ".join(value)  # groups, whose names are plain
    return to_json(value)
