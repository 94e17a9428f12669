"""Text of messages: control characters made visible, a count with its noun, a list that is cut, and a mistake in TOML."""

import re
from collections.abc import Sequence


def visible(text: str) -> str:
    """Control characters made visible, so that no name can move a terminal's cursor or begin a line of a log."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def counted(count: int, noun: str) -> str:
    """`1 row`, `2 rows`."""
    return f"{count} {noun}{'s' * (count != 1)}"


def problem_of_toml(error: Exception) -> str:
    """In the words of a person: tomllib names a table as ('auth', 'oauth')."""
    named = re.sub(r"\('(.*?)',?\)", lambda parts: "[" + parts[1].replace("', '", ".") + "]", str(error))
    return re.sub(r"Cannot declare (\[.*\]) twice", r"table \1 stands twice", named)


def listed(items: Sequence[str], at_most: int) -> str:
    """`a, b, …`"""
    shown = list(items[:at_most])
    if len(items) > at_most:
        shown.append("…")
    return ", ".join(shown)
