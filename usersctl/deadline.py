"""A time limit for work that has none of its own, such as the look-up of a name."""

import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def within(seconds: float, work: Callable[[], T]) -> T:
    """Returns what `work` returns, or raises TimeoutError and leaves its thread behind."""
    results: list[T] = []
    errors: list[Exception] = []

    def run() -> None:
        try:
            results.append(work())
        except Exception as error:  # noqa: BLE001 - raised again by the thread that waits
            errors.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(seconds)
    for error in errors:
        raise error
    if not results:
        raise TimeoutError(f"no answer within {seconds:g} s")
    return results[0]
