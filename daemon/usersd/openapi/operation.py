"""What the OpenAPI document says about an endpoint, declared at its handler; the rest follows from its row in the table."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from usersd.inputs import Body, Query
from usersd.openapi.schemas import Schema

H = TypeVar("H", bound=Callable[..., Any])

HTML = "text/html"

SIGNING_IN = "Session and registration"
OWN = "Your own account"
MANAGEMENT = "Management"
SERVICE = "The service itself"
PAGES = "Pages"
TOPICS = {
    SIGNING_IN: "Ways into an account and out of it, and the links of emails.",
    OWN: "What signed-in users read and change of their own.",
    MANAGEMENT: "What admins read and change.",
    SERVICE: "Probes, this description, and the question of a proxy in front of another application.",
    PAGES: "For people: HTML, and what it loads.",
}


@dataclass(frozen=True)
class Operation:
    """A decorator: `@Operation("me", OWN, USER)`. The handler's docstring is the description, its first sentence the summary."""

    id: str  # clients make the name of a function of it
    topic: str
    answer: Schema | str | None  # of a 200: a JSON schema, a media type, or None for a redirect
    body: type[Body] | None = None
    query: type[Query] | None = None
    sets_cookie: str = ""  # which cookie
    redirect: str = ""  # where a 302 leads
    # Refusals that do not follow from the row of the table, or need other words.
    refusals: dict[int, str] = field(default_factory=dict)
    html_refusals: frozenset[int] = frozenset()  # those that a browser gets as a page
    takes_session: bool = False  # although anyone may call
    headers: dict[str, str] = field(default_factory=dict)  # of the 200
    optional_headers: dict[str, str] = field(default_factory=dict)
    # What to call next: its id, its parameter, and where in the answer the value stands.
    links: dict[str, tuple[str, str, str]] = field(default_factory=dict)

    def __call__(self, handler: H) -> H:
        vars(handler)["operation"] = self
        return handler


def operation_of(handler: Callable[..., Any]) -> Operation:
    operation = getattr(handler, "operation", None)
    if not isinstance(operation, Operation) or not handler.__doc__:
        raise TypeError(f"{handler.__qualname__} has no @Operation(...) and docstring that describe it")
    return operation
