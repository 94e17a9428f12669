"""How far long work is, for a bar on a terminal."""

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

T = TypeVar("T")

Progress = Callable[[int, int | None], object]  # is called with what is done, and the total if it is known
DRAWN_EVERY = 1000  # rows


def unwatched(_done: int, _total: int | None) -> None:
    """For work that nobody watches."""


def watched(rows: Iterable[T], progress: Progress, total: int | None = None, before: int = 0) -> Iterator[T]:
    """The same rows, of which `before` were done earlier."""
    for done, row in enumerate(rows, before):
        if done % DRAWN_EVERY == 0:
            progress(done, total)
        yield row
