"""The chain that holds the audit trail together: each row's hash is made of its content and of the hash before it."""

import json
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

START = bytes(32)  # what stands before the first row


class Head(NamedTuple):
    """What the trail should come to."""

    rows: int
    hash: bytes


class ChainResult(NamedTuple):
    rows: int
    head: bytes
    first_broken: int | None  # the id of a row; None also where only the end is missing
    problem: str | None


def link(before: bytes, row: Sequence[Any]) -> bytes:
    """`row`: all that it holds but its hash, the id included, so that no two can change places."""
    import hashlib  # late: what only reads does without

    content = json.dumps(row, separators=(",", ":")).encode()
    return hashlib.sha256(before + content).digest()


def check(rows: Iterable[Sequence[Any]], head: Head | None, expected: bytes | None = None) -> ChainResult:
    """Rows as they are stored, in the order of their ids. Stops at the first that does not follow from the one before.

    Whoever can write the database can make a whole new chain. `expected`, a hash that was noted elsewhere, tells that
    as well: it must be that of one of the rows.
    """
    count, before, was_seen = 0, START, expected in (None, START)
    for *content, stored in rows:
        if link(before, content) != stored:
            problem = (
                f"row {content[0]} does not follow from the one before it: it was changed, or what stood before it was"
                " removed, added or moved"
            )
            return ChainResult(count, before, content[0], problem)
        count, before = count + 1, stored
        was_seen = was_seen or stored == expected
    return ChainResult(count, before, None, _at_the_end(count, before, head) or _if_not(was_seen))


def _at_the_end(count: int, last: bytes, head: Head | None) -> str | None:
    if head is None:
        return "the note of where the trail ends is missing"
    if count != head.rows:
        return f"the trail ends after row number {count} and should after {head.rows}: its end was cut off or added to"
    return "the trail does not end in the row that it should end in" if last != head.hash else None


def _if_not(was_seen: bool) -> str | None:
    return (
        None if was_seen else "no row has the hash that was expected: this is another trail, or an older one"
    )
