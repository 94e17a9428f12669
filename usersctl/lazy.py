"""A property that is computed at its first use. That of functools takes a lock each time until Python 3.12."""

from collections.abc import Callable
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class lazy(Generic[T]):  # noqa: N801 - reads like the decorator that it is
    def __init__(self, compute: Callable[[Any], T]) -> None:
        self._compute = compute
        self.__doc__ = compute.__doc__

    def __set_name__(self, _owner: type, name: str) -> None:
        self._name = name

    def __get__(self, instance: Any, _owner: type | None = None) -> T:
        # The next look-up finds the value in the instance, before it comes here.
        value = instance.__dict__[self._name] = self._compute(instance)
        return value
