"""Text of messages: control characters made visible, a count with its noun, a list that is cut, a word that was meant,
commands in a hint, what the network says."""

from collections.abc import Sequence


def visible(text: str) -> str:
    """Control characters made visible, so that no name can move a terminal's cursor or begin a line of a log."""
    if text.isprintable():
        return text
    return "".join(
        c if c.isprintable() or _is_joiner(text, place) else c.encode("unicode_escape").decode()
        for place, c in enumerate(text)
    )


def _is_joiner(text: str, place: int) -> bool:
    """A sign of spelling between two letters, as in Persian and Hindi: it has no width. Between others it would only hide."""
    beside = text[place - 1 : place] + text[place + 1 : place + 2]
    return (
        text[place] in "\u200c\u200d" and len(beside) == 2 and all("\u0600" <= c < "\u2000" for c in beside)
    )


def counted(count: int, noun: str) -> str:
    """`1 row`, `2 rows`."""
    return f"{count} {noun}{'s' * (count != 1)}"


def listed(items: Sequence[str], at_most: int) -> str:
    """`a, b, …`"""
    shown = list(items[:at_most])
    if len(items) > at_most:
        shown.append("…")
    return ", ".join(shown)


def did_you_mean(text: str, known: Sequence[str]) -> str | None:
    """A hint with the known word that is nearest; None if none is near."""
    from difflib import get_close_matches  # late: it is for the mistaken only

    nearest = get_close_matches(text, known, n=1)
    return f"did you mean {nearest[0]}?" if nearest else None


def quoted_file(file: object) -> str:
    """The name of a file in a command of a hint: one that begins with a dash would be an option."""
    import shlex  # late: few texts need it

    name = str(file)
    return shlex.quote(f"./{name}" if name.startswith("-") else name)


def with_options(text: str, options: str) -> str:
    """The commands that a text suggests, at its beginning or after a colon, with these options; `--help` needs none."""
    if not options:
        return text
    import re  # late: few texts need it

    command = "(?:'[^']*'|[^;,])++"  # the quoted name of a file may hold any sign
    return re.sub(f"(^|: )usersctl {command}(?<!--help)(?=[;,]|$)", lambda found: found[0] + options, text)


def network_words(error: BaseException) -> str:
    """What is wrong with a certificate or with the network, as TLS or the system says it; empty if they say nothing."""
    if not isinstance(error, OSError):
        return ""
    return getattr(error, "verify_message", "") or getattr(error, "reason", "") or error.strerror or ""
