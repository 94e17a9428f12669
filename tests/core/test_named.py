"""Our named tuples are those of `typing`: each test holds for both."""

import copy
import pickle
import sys
import threading
import typing
from typing import Any, Generic, TypeVar

import pytest

from usersctl import named

T = TypeVar("T")


class Quick(named.NamedTuple):
    left: int
    right: str
    more: str | None = None
    number: int = 1

    @property
    def both(self) -> str:
        return f"{self.left}{self.right}"


class Typed(typing.NamedTuple):
    left: int
    right: str
    more: str | None = None
    number: int = 1

    @property
    def both(self) -> str:
        return f"{self.left}{self.right}"


class QuickOf(named.NamedTuple, Generic[T]):
    value: T


class TypedOf(typing.NamedTuple, Generic[T]):
    value: T


either = pytest.mark.parametrize("kind", [Quick, Typed])


@either
def test_it_is_made_of_values_by_place_and_by_name(kind: Any) -> None:
    for made in (kind(1, "x", None, 1), kind(1, "x"), kind(1, right="x"), kind(right="x", left=1)):
        assert made == (1, "x", None, 1)
        assert (made.left, made.right, made.more, made.number, made.both) == (1, "x", None, 1, "1x")
    assert kind(1, "x", number=3) == (1, "x", None, 3)


@either
@pytest.mark.parametrize(
    ("values", "names"),
    [((), {}), ((1,), {}), ((1, "x", None, 1, 5), {}), ((1, "x"), {"y": 1}), ((1, "x"), {"left": 1})],
)
def test_a_value_too_few_or_too_many_is_refused(
    kind: Any, values: tuple[Any, ...], names: dict[str, int]
) -> None:
    with pytest.raises(TypeError, match=rf"^{kind.__name__}\.__new__\(\) "):
        kind(*values, **names)


@either
def test_it_is_made_of_a_row_of_the_right_length_only(kind: Any) -> None:
    made = kind._make(iter([1, "x", None, 1]))
    assert made == (1, "x", None, 1)
    assert type(made) is kind
    for wrong in ([1, "x"], [1, "x", None, 1, 5]):
        with pytest.raises(TypeError):
            kind._make(wrong)


@either
def test_a_copy_may_have_other_values(kind: Any) -> None:
    made = kind(1, "x")
    assert made._replace(right="y", number=2) == (1, "y", None, 2)
    assert made == (1, "x", None, 1)
    error = TypeError if kind is Typed and sys.version_info >= (3, 13) else ValueError
    with pytest.raises(error, match="other"):
        made._replace(other=1)


@either
def test_it_knows_its_fields(kind: Any) -> None:
    assert kind._fields == kind.__match_args__ == ("left", "right", "more", "number")
    assert kind._field_defaults == {"more": None, "number": 1}
    assert kind(1, "x")._asdict() == {"left": 1, "right": "x", "more": None, "number": 1}
    assert repr(kind(1, "x")) == f"{kind.__name__}(left=1, right='x', more=None, number=1)"


@either
def test_it_is_a_tuple_that_never_changes(kind: Any) -> None:
    made = kind(1, "x")
    assert isinstance(made, tuple)
    assert hash(made) == hash((1, "x", None, 1))
    assert {made: 1}[kind(1, "x")] == 1
    assert not hasattr(made, "__dict__")
    for name in ("left", "other"):
        with pytest.raises(AttributeError):
            setattr(made, name, 2)
    match made:
        case kind(left, right):
            assert (left, right) == (1, "x")


@either
def test_it_can_be_copied_and_pickled(kind: Any) -> None:
    made = kind(1, "x")
    for other in (copy.copy(made), copy.deepcopy(made), pickle.loads(pickle.dumps(made))):  # noqa: S301 - our own
        assert other == made
        assert type(other) is kind


@pytest.mark.parametrize("kind", [QuickOf, TypedOf])
def test_it_may_be_of_any_type(kind: Any) -> None:
    assert kind[int](value=1).value == 1
    assert issubclass(kind[str].__origin__, tuple)


@either
def test_a_class_below_it_keeps_the_fields(kind: Any) -> None:
    class Below(kind):  # type: ignore[misc]
        @property
        def left_doubled(self) -> int:
            return 2 * int(self.left)

    made = Below(2, right="x")
    assert (made.left_doubled, made.number, Below._fields) == (4, 1, kind._fields)
    assert type(made._replace(left=3)) is Below


def test_many_threads_may_make_the_first_one() -> None:
    for _ in range(50):

        class New(named.NamedTuple):
            left: int
            right: int = 2

        made: list[New] = []
        together = threading.Barrier(8)

        def first(kind: type[New] = New, to: list[New] = made, start: threading.Barrier = together) -> None:
            start.wait()
            to.append(kind(left=1))

        threads = [threading.Thread(target=first) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert made == [(1, 2)] * 8
