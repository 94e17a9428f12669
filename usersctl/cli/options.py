"""The options that every command takes, before or after its name."""

import shlex
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple


class Options(NamedTuple):
    config: Path | None = None
    db: str | None = None
    json: bool = False
    quiet: bool = False
    no_input: bool = False
    no_color: bool = False
    debug: bool = False
    version: bool = False

    def to_repeat(self) -> str:
        """Which configuration and database were named, for a command that is told: ` --db users.db`."""
        named = (("--config", self.config), ("--db", self.db))
        return "".join(f" {name} {shlex.quote(str(value))}" for name, value in named if value is not None)


_VALUES = ("--config", "--db")
# The other options that take a value: it is theirs whatever it looks like, so that no name can choose the database.
OTHER_VALUES = frozenset(
    [
        "--base-url",
        "--email",
        "--except",
        "--expect",
        "--expires",
        "--format",
        "--from",
        "--host",
        "--id",
        "--limit",
        "--map",
        "--map-role",
        "--name",
        "--on-conflict",
        "--page",
        "--password-file",
        "--port",
        "--role",
        "--search",
        "--since",
        "--socket",
        "--sort",
        "--table",
        "--timeout",
        "--user",
    ]
)
_FLAGS = {f"--{name.replace('_', '-')}": name for name in Options._fields if f"--{name}" not in _VALUES}


def take(argv: list[str]) -> tuple[Options, list[str]]:
    """These options, wherever they stand, and the rest of the command line for Typer.

    One without its value is left to Typer, which says what is missing.
    """
    found: dict[str, Any] = {}
    rest: list[str] = []
    words = iter(argv)
    for word in words:
        name, equals, value = word.partition("=")
        if word == "--":
            rest += [word, *words]
        elif word in _FLAGS:
            found[_FLAGS[word]] = True
        elif word in OTHER_VALUES:
            rest += [word, *islice(words, 1)]
        elif name in _VALUES and (given := [value] if equals else [*islice(words, 1)]):
            found[name[2:]] = given[0]
        else:
            rest.append(word)
    if "config" in found:
        found["config"] = Path(found["config"])
    return Options(**found), rest
