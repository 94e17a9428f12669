"""Bodies and queries: a handler declares its fields once, which reads them and describes them in the OpenAPI document."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Self, TypeVar

from usersctl.errors import Invalid
from usersctl.fields import normal_group, whole_number
from usersd.openapi.schemas import GROUP_NAME, ID, MAX_ID, Schema, array, boolean, described, fields
from usersd.request import Request

T = TypeVar("T")

_KINDS = {str: "a string", bool: "true or false", list: "a list", dict: "an object"}


class Field(Generic[T]):
    """`check` takes the field's name and a value of this kind, and returns the value or raises Invalid."""

    attribute: str

    def __init__(
        self,
        schema: Schema,
        default: T,
        kind: type = str,
        check: Callable[[str, Any], T] | None = None,
        *,
        name: str = "",  # in the request, if it is not the attribute's
        required: bool = False,
        description: str = "",
    ) -> None:
        self.schema, self.default, self.kind, self.check = schema, default, kind, check
        self.name, self.required, self.description = name, required, description

    def __set_name__(self, _owner: type, attribute: str) -> None:
        self.attribute = attribute
        self.name = self.name or attribute

    if TYPE_CHECKING:  # an instance holds the value in its own dictionary

        def __get__(self, instance: object, owner: type) -> T: ...

    def read(self, values: Mapping[str, Any]) -> Any:
        value = values.get(self.name)
        if value is None:
            if self.name in values and not self.required:
                raise Invalid(f"{self.name} must not be null")
            return self.default
        if not isinstance(value, self.kind):
            raise Invalid(f"{self.name} must be {_KINDS[self.kind]}")
        if self.check is not None:
            value = self.check(self.name, value)
        return value


def required(schema: Schema, name: str = "", *, description: str = "") -> Field[str]:
    """A string that must be sent and not be empty."""
    return Field(schema, "", name=name, required=True, description=description)


def required_strings(schema: Schema, description: str) -> Field[Any]:
    """A list that must be sent, and may be empty."""
    return _strings(schema, description, required=True)


def optional_strings(schema: Schema, description: str) -> Field[Any]:
    return _strings(schema, description, required=False)


def _strings(schema: Schema, description: str, *, required: bool) -> Field[Any]:
    def check(name: str, value: list[Any]) -> list[str]:
        if not all(isinstance(item, str) for item in value):
            raise Invalid(f"{name} must be a list of strings")
        return value

    return Field(array(schema), None, list, check, required=required, description=description)


def optional(schema: Schema, description: str = "", *, name: str = "") -> Field[str | None]:
    return Field(schema, None, name=name, description=description)


def required_object(schema: Schema) -> Field[Any]:
    return Field(schema, None, dict, required=True)


def optional_object(schema: Schema, description: str) -> Field[dict[str, Any] | None]:
    return Field(schema, None, dict, description=description)


def optional_boolean() -> Field[bool | None]:
    return Field(boolean(), None, bool)


def flag(name: str, description: str, *, example: bool) -> Field[bool]:
    """A boolean that is False if it is left out."""
    return Field(boolean(description, example=example), default=False, kind=bool, name=name)


def required_ids(most: int, description: str) -> Field[Any]:
    """A list of ids of users; each of them counts once."""

    def check(name: str, value: list[Any]) -> list[int]:
        if not 0 < len(value) <= most:
            raise Invalid(f"{name} must hold 1 to {most:,} ids")
        if not all(type(number) is int and 0 < number <= MAX_ID for number in value):
            raise Invalid("Invalid user id")
        return list(dict.fromkeys(value))

    schema = array(ID) | {"minItems": 1, "maxItems": most}
    return Field(schema, None, list, check, required=True, description=description)


def required_choice(schema: Schema, description: str) -> Field[str]:
    """One of the values that the schema lists."""
    return Field(schema, "", check=_listed(schema), required=True, description=description)


# --- of a query, where every value is a string ---


def number(schema: Schema, default: int, description: str) -> Field[int]:
    def check(name: str, value: str) -> int:
        most: int = schema["maximum"]
        given = whole_number(value)
        if given is None or given > most:
            raise Invalid(f"{name} must be a whole number from 1 to {most}")
        return given

    return Field(schema, default, check=check, description=description)


def choice(schema: Schema, description: str) -> Field[str | None]:
    """One of the values that the schema lists."""
    return Field(schema, None, check=_listed(schema), description=description)


def _listed(schema: Schema) -> Callable[[str, Any], str]:
    def check(name: str, value: str) -> str:
        if value not in schema["enum"]:
            raise Invalid(f"{name} must be one of {', '.join(schema['enum'])}")
        return value

    return check


def group_name(description: str) -> Field[str | None]:
    return Field(GROUP_NAME, None, check=lambda _, value: normal_group(value), description=description)


def true_or_false(description: str) -> Field[bool | None]:
    def check(name: str, value: str) -> bool:
        if value not in ("true", "false"):
            raise Invalid(f"{name} must be true or false")
        return value == "true"

    return Field(boolean(), None, check=check, description=description)


class Fields:
    """What a subclass declares: `missing` is the message if a required field is missing or empty. Types of required
    fields are checked first, then whether one is missing, then the optional fields; undeclared ones are ignored."""

    fields: ClassVar[tuple[Field[Any], ...]] = ()
    missing: ClassVar[str] = ""

    def __init_subclass__(cls, *, missing: str = "") -> None:
        cls.missing = missing or cls.missing
        cls.fields += tuple(field for field in vars(cls).values() if isinstance(field, Field))

    def __init__(self, values: Mapping[str, Any]) -> None:
        for is_required in (True, False):
            for field in self.fields:
                if field.required is is_required:
                    vars(self)[field.attribute] = field.read(values)
            if is_required and any(value in (None, "") for value in vars(self).values()):
                raise Invalid(self.missing)


class Body(Fields):
    """The fields of a JSON body."""

    @classmethod
    def schema(cls) -> Schema:
        properties = {field.name: described(field.schema, field.description) for field in cls.fields}
        body = fields(properties, [field.name for field in cls.fields if field.required])
        return {"title": cls.__name__} | body


class NoFields(Body):
    """Declared, so that a body that is no JSON, as a form of another site sends it, is refused."""


class Query(Fields):
    """The parameters of a query."""

    @classmethod
    def lenient(cls, request: Request) -> Self:
        """A malformed query counts as an empty one."""
        try:
            return cls(request.query)
        except Invalid:
            return cls({})

    @classmethod
    def parameters(cls) -> list[Schema]:
        return [
            {
                "name": field.name,
                "in": "query",
                "required": field.required,
                "description": field.description,
                "schema": field.schema,
            }
            for field in cls.fields
        ]
