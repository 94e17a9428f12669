"""A plan as a diff: + what is made, ~ what is changed, - what is removed."""

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol

from usersctl.cli.show.cells import one_line, to_json
from usersctl.cli.show.output import Output

SIGNS = {"create": "+", "update": "~", "delete": "-"}
COLOURS = {"+": "\x1b[32m", "~": "\x1b[33m", "-": "\x1b[31m"}
END = "\x1b[0m"
WORDS = {"create": "to make", "update": "to change", "delete": "to delete"}


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
    colours = COLOURS if out.terminal and out.color else {}
    for change in changes:
        sign = SIGNS[change.action]
        colour = colours.get(sign, "")
        end = END if colour else ""
        lines = [
            f"{sign} {change.kind} {one_line(change.key)}",
            *(f"    {line}" for line in _differences(change)),
        ]
        out.data(
            "\n".join(f"{colour}{line}{end}" for line in lines[:1])
            + "".join(f"\n{line}" for line in lines[1:])
        )
    sys.stdout.flush()


def summary(changes: Sequence[Shown]) -> str:
    """`2 to make, 1 to delete`"""
    counts = {action: sum(change.action == action for change in changes) for action in SIGNS}
    return ", ".join(f"{count} {WORDS[action]}" for action, count in counts.items() if count)


def _differences(change: Shown) -> Iterator[str]:
    before, after = change.before or {}, change.after or {}
    if change.action == "delete":
        return
    for name in (*before, *(name for name in after if name not in before)):
        old, new = before.get(name), after.get(name)
        if change.action == "create":
            if new not in (None, [], False):
                yield f"{name}: {_shown(new)}"
        elif old != new and isinstance(old, list) and isinstance(new, list):
            signs = [f"+{each}" for each in new if each not in old] + [
                f"-{each}" for each in old if each not in new
            ]
            yield f"{name}: {one_line(' '.join(signs))}"
        elif old != new:
            yield f"{name}: {_shown(old)} -> {_shown(new)}"


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return one_line(", ".join(value))
    return "none" if value is None else to_json(value)
