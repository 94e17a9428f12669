"""The options that every command takes, before or after its name."""

from collections.abc import Collection
from itertools import islice
from pathlib import Path
from typing import Any

from usersctl.named import NamedTuple
from usersctl.text import with_options


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
        """The named configuration and database, for a command that is suggested: ` --db users.db`. Without a database that
        has a password, or may have one."""
        import shlex  # late: few commands suggest another

        from usersctl.store.conninfo import Conninfo, is_conninfo, is_well_formed

        db = self.db
        if db is not None and is_conninfo(db) and (not is_well_formed(db) or Conninfo(db).has_password):
            db = None
        named = (("--config", self.config), ("--db", db))
        return "".join(f" {name} {shlex.quote(str(value))}" for name, value in named if value is not None)

    def repeated_in(self, text: str) -> str:
        """The commands that a text suggests work on the configuration and database of this one."""
        return with_options(text, self.to_repeat())


VALUES = ("--config", "--db")
_FLAGS = {f"--{name.replace('_', '-')}": name for name in Options._fields if f"--{name}" not in VALUES}


def take(argv: list[str], value_options: Collection[str] = ()) -> tuple[Options, list[str]]:
    """These options, wherever they stand, and the rest of the command line for Typer.

    The word after one of `value_options` is its value, whatever it looks like: no name can choose the database.
    Typer reports a shared option without its value.
    """
    taken: dict[str, Any] = {}
    rest: list[str] = []
    words = iter(argv)
    for word in words:
        name, equals, value = word.partition("=")
        if word == "--":
            rest += [word, *words]
        elif word in _FLAGS:
            taken[_FLAGS[word]] = True
        elif word in value_options:
            rest += [word, *islice(words, 1)]
        elif name in VALUES and (given := [value] if equals else [*islice(words, 1)]):
            taken[name[2:]] = given[0]
        else:
            rest.append(word)
    if "config" in taken:
        taken["config"] = Path(taken["config"])
    return Options(**taken), rest
