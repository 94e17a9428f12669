"""The JSON schemas that bodies and answers are made of."""

from collections.abc import Collection
from typing import Any

from usersctl.config import Settings
from usersctl.models import Role
from usersctl.passwords import MAX_BYTES

Schema = dict[str, Any]

MAX_ID = 10**18 - 1


def string(example: str, description: str = "", **rules: Any) -> Schema:
    return described({"type": "string", **rules, "examples": [example]}, description)


def integer(example: int, **rules: Any) -> Schema:
    return {"type": "integer", **rules, "examples": [example]}


def boolean(description: str = "", *, example: bool = True) -> Schema:
    return described({"type": "boolean", "examples": [example]}, description)


def described(schema: Schema, description: str) -> Schema:
    return schema | {"description": description} if description else schema


def or_null(schema: Schema) -> Schema:
    return schema | {"type": [schema["type"], "null"], "examples": [None]}


def fields(properties: dict[str, Schema], required: list[str]) -> Schema:
    """A body: an object in which fields that are not declared are ignored."""
    schema: Schema = {"type": "object", "properties": properties}
    return schema | {"required": required} if required else schema


def exactly(properties: dict[str, Schema], *, may_lack: Collection[str] = ()) -> Schema:
    """An answer: an object with these properties and no others; some answers lack those of `may_lack`."""
    required = [name for name in properties if name not in may_lack]
    return fields(properties, required) | {"additionalProperties": False}


def model(title: str, properties: dict[str, Schema], *, may_lack: Collection[str] = ()) -> Schema:
    """The same with a name: the whole body of an answer, which clients make a type of."""
    return {"title": title} | exactly(properties, may_lack=may_lack)


def opaque(description: str = "", properties: dict[str, Schema] | None = None, **rules: Any) -> Schema:
    """An object with other properties beside these. It has to say so: some clients take silence for "and none else"."""
    known = fields(properties, list(properties)) if properties else {"type": "object"}
    return described(known | {"additionalProperties": True} | rules, description)


def array(schema: Schema) -> Schema:
    return {"type": "array", "items": schema}


def named(name: str) -> Schema:
    return {"$ref": f"#/components/schemas/{name}"}


MOMENT = string("2026-11-20T08:22:19.123Z", format="date-time")
ID = integer(1, minimum=1, maximum=MAX_ID)
EMAIL = string("grace@example.com", format="email", maxLength=254)
NAME = string("Grace Hopper", minLength=1, maxLength=200)
ROLE = string(Role.USER, enum=list(Role))
GROUP_NAME = string("staff", pattern="^[a-z0-9][a-z0-9._-]{0,62}$")
TOKEN = string("gJz_R2rDRUH2UBKqLGkhd6Ofy3lfwTfUG4t2uPLb15k", minLength=1)
ANY_EMAIL = string("grace@example.com", minLength=1)  # to look for: an invalid address is an unknown one
ANY_PASSWORD = string("correct horse battery", minLength=1)  # an existing password, which no rule applies to
NEW_PASSWORD = named("NewPassword")

MESSAGE = model("Message", {"message": string("Logged out")})
DONE = model("Done", {"success": {"type": "boolean", "const": True}})
USER = model("OneUser", {"user": named("User")})

_ERROR = {"statusCode": integer(404, minimum=400, maximum=599), "statusMessage": string("User not found")}
_PERSON = {"id": ID, "email": EMAIL, "name": string("Grace Hopper"), "role": ROLE}
_TIMES = {"created_at": MOMENT, "updated_at": MOMENT}
_USER = {
    **_PERSON,
    "active": boolean(),
    **_TIMES,
    "last_login_at": or_null(MOMENT),
    "oauth_id": or_null(string("", "The account's id at the identity provider.")),
    "profile_picture": or_null(string("", "A URL.")),
}
_SESSION = {
    "id": ID,
    "name": string("login", "`login`, or the name of an API token."),
    "created_at": MOMENT,
    "last_used_at": or_null(MOMENT),
    "expires_at": or_null(MOMENT),
    "ip": or_null(string("")),
    "user_agent": or_null(string("")),
    "current": boolean("The session of this request."),
}
_IDENTITY = {
    "name": string("oauth"),
    "label": string("id.example.com", "For people: the provider's name or host."),
    "email": or_null(string("", "The address there, if it is known.")),
    "linked_at": or_null(MOMENT),
}
_PAGINATION = {
    "page": integer(1, minimum=1),
    "limit": integer(10, minimum=1, maximum=100),
    "total": integer(1, minimum=0),
    "totalIsExact": boolean(example=True),
    "totalPages": integer(1, minimum=0),
    "hasNext": boolean(example=False),
    "hasPrev": boolean(example=False),
}


def components(settings: Settings) -> dict[str, Schema]:
    """The schemas with a name, which answers and bodies refer to."""
    return {
        "Error": exactly(_ERROR),
        "User": exactly(_USER),
        "RegisteredUser": exactly(_PERSON | _TIMES),
        "Session": exactly(_SESSION),
        "Identity": exactly(_IDENTITY),
        "Group": exactly({"name": GROUP_NAME, "members": integer(2, minimum=0)}),
        "UserPage": exactly({"users": array(named("User")), "pagination": exactly(_PAGINATION)}),
        "NewPassword": string(
            "correct horse battery",
            f"At most {MAX_BYTES} bytes. Common passwords and the user's own name or address may be refused.",
            minLength=settings.min_length,
            maxLength=MAX_BYTES,
        ),
    }
