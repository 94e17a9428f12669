"""Named tuples that are quick to define: the first instance compiles the constructor, not the definition.

A command defines some fifty before it begins, and with those of `typing` that was 7 % of its time.
"""

import sys
from collections.abc import Iterable
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING or sys.version_info >= (3, 14):  # there, a class has no annotations while it is made
    from typing import NamedTuple as NamedTuple  # noqa: PLC0414 - exported
else:

    class _Definition(type):
        def __new__(cls, name: str, bases: tuple[type, ...], body: dict[str, Any], **more: Any) -> Self:
            fields = tuple(body.get("__annotations__", ()))
            if fields:
                body["_fields"] = body["__match_args__"] = fields
                body["_field_defaults"] = {field: body[field] for field in fields if field in body}
                body |= {field: property(itemgetter(place)) for place, field in enumerate(fields)}
            return super().__new__(cls, name, bases, {"__slots__": ()} | body, **more)

    class NamedTuple(tuple, metaclass=_Definition):  # noqa: SLOT001 - its metaclass does
        """Stands in for that of `typing`, which the type checker sees in its place."""

        def __new__(cls, *values: Any, **named_values: Any) -> Self:
            fields = ", ".join(cls._fields)
            # As `namedtuple` does it, which makes a whole class for it, for as much time again.
            new = eval(f"lambda _cls, {fields}: _make(_cls, ({fields},))", {"_make": tuple.__new__})  # noqa: S307
            new.__qualname__ = f"{cls.__name__}.__new__"  # begins an error about its arguments
            new.__defaults__ = tuple(cls._field_defaults.values())
            cls.__new__ = new
            return new(cls, *values, **named_values)

        @classmethod
        def _make(cls, values: Iterable[Any]) -> Self:
            made = tuple.__new__(cls, values)
            if len(made) != len(cls._fields):
                raise TypeError(f"{cls.__name__} has {len(cls._fields)} fields, not {len(made)}")
            return made

        def _replace(self, **changes: Any) -> Self:
            made = self._make(map(changes.pop, self._fields, self))
            if changes:
                raise ValueError(f"{type(self).__name__} has no field {', '.join(changes)}")
            return made

        def _asdict(self) -> dict[str, Any]:
            return dict(zip(self._fields, self, strict=True))

        def __getnewargs__(self) -> tuple[Any, ...]:
            return tuple(self)

        def __repr__(self) -> str:
            values = ", ".join(f"{field}={value!r}" for field, value in self._asdict().items())
            return f"{type(self).__name__}({values})"
