"""The hash chain of the audit trail: the hash of a row covers its content and the hash of the row before it."""

from collections.abc import Callable, Iterable, Sequence
from json.encoder import encode_basestring_ascii
from typing import Any

from usersctl.named import NamedTuple


class Head(NamedTuple):
    rows: int  # that the trail should have
    hash: bytes  # that its last row should have


START = bytes(32)  # what stands before the first row
BEGINNING = Head(0, START)


class ChainResult(NamedTuple):
    rows: int
    head: bytes
    first_broken: int | None  # the id of a row; None also if only the end is missing
    problem: str | None


class ChainStep(NamedTuple):
    """The result of one step of a check in steps."""

    so_far: ChainResult
    of: int  # rows that the trail should have
    next: int | None  # the id after which the next step begins; None: this was the last one


# The encoder of `json` would take several times as long, because it prepares itself for each row.
_AS_JSON: dict[type, Callable[[Any], str]] = {
    str: encode_basestring_ascii,
    int: str,
    type(None): lambda _: "null",
}


def link(before: bytes, row: Sequence[Any]) -> bytes:
    """`row`: all columns but the hash. It includes the id, so that two rows cannot be swapped."""
    import hashlib  # late: commands that only read do without

    values = [_AS_JSON.get(type(value), repr)(value) for value in row]  # of another type in a damaged row
    return hashlib.sha256(before + f"[{','.join(values)}]".encode()).digest()


def check(
    rows: Iterable[Sequence[Any]],
    head: Head | None,
    expected: bytes | None = None,
    *,
    so_far: Head = BEGINNING,
    is_end: bool = True,
) -> ChainResult:
    """Checks stored rows in the order of their ids, and stops at the first that does not follow from the one before.

    `so_far`: what the rows before these led to. `is_end`: the last one of the rows is the last one of the trail.

    An attacker who can write the database can make a whole new chain. `expected`, a hash that was noted elsewhere,
    detects that: one of the rows must have it.
    """
    count, before = so_far
    was_seen = expected in (None, START)
    problem: str | None = None
    for *content, stored in rows:
        if link(before, content) != stored:
            problem = (
                f"row {content[0]} does not follow from the one before it: it was changed, or what stood before it was"
                " removed, added or moved"
            )
            return ChainResult(count, before, content[0], problem)
        count, before = count + 1, stored
        was_seen = was_seen or stored == expected
    if not is_end:
        return ChainResult(count, before, None, None)
    if head is None:
        problem = "the note of where the trail ends is missing"
    elif count != head.rows:
        problem = f"the trail ends after row number {count} and should after {head.rows}: its end was cut off or added to"
    elif before != head.hash:
        problem = "the trail does not end in the row that it should end in"
    elif not was_seen:
        problem = "no row has the hash that was expected: this is another trail, or an older one"
    return ChainResult(count, before, None, problem)
