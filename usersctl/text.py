"""Text of messages: control characters made visible, a count with its noun, a list that is cut."""

from collections.abc import Sequence


def visible(text: str) -> str:
    """Control characters made visible, so that no name can move a terminal's cursor or begin a line of a log."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def counted(count: int, noun: str) -> str:
    """`1 row`, `2 rows`."""
    return f"{count} {noun}{'s' * (count != 1)}"


def listed(items: Sequence[str], at_most: int) -> str:
    """`a, b, …`"""
    shown = list(items[:at_most])
    if len(items) > at_most:
        shown.append("…")
    return ", ".join(shown)
