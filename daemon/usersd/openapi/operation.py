"""What the OpenAPI document says about an endpoint, declared at its handler; the rest follows from its row in the table."""

import sys
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from usersd.inputs import Body, Query
from usersd.openapi.schemas import Schema, string

H = TypeVar("H", bound=Callable[..., Any])

HTML = "text/html"
NEW_SESSION = (
    "The new session, in the cookie of the security scheme `cookie`; and the mark of a known device."
)
_STATES = ["awaiting-confirmation", "deactivated", "deletion"]
ACCOUNT_STATE = {
    403: {"X-Account-State": ("If the account is inactive: why.", string(_STATES[0], enum=_STATES))}
}
_NONE: Mapping[Any, Any] = {}

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


class Operation:
    """A decorator: `@Operation("me", OWN, USER)`. The handler's docstring is the description, its first sentence the summary."""

    def __init__(
        self,
        name: str,  # clients make the name of a function of it
        topic: str,
        answer: Schema | str | None,  # of a 200: a JSON schema, a media type, or None for a redirect
        body: type[Body] | None = None,
        query: type[Query] | None = None,
        *,
        sets_cookie: str = "",  # which cookie
        redirect: str = "",  # where a 302 leads
        # Refusals that do not follow from the row of the table, or need other words.
        refusals: Mapping[int, str] = _NONE,
        refusal_headers: Mapping[int, Mapping[str, tuple[str, Schema]]] = _NONE,  # that some of these have
        html_refusals: frozenset[int] = frozenset(),  # of an API path, those that a browser gets as a page
        takes_session: bool = False,  # although anyone may call
        headers: Mapping[str, str] = _NONE,  # of the 200
        optional_headers: Mapping[str, str] = _NONE,
        # What to call next: its name, its parameter, and where in the answer the value stands.
        links: Mapping[str, tuple[str, str, str]] = _NONE,
    ) -> None:
        self.name, self.topic, self.answer, self.body, self.query = name, topic, answer, body, query
        self.sets_cookie, self.redirect, self.takes_session = sets_cookie, redirect, takes_session
        self.refusals, self.refusal_headers, self.html_refusals = refusals, refusal_headers, html_refusals
        self.headers, self.optional_headers, self.links = headers, optional_headers, links

    def but(self, **others: Any) -> "Operation":
        """The same with some parts changed."""
        return Operation(**vars(self) | others)

    def __call__(self, handler: H) -> H:
        vars(handler)["operation"] = self
        return handler


def operation_of(handler: Callable[..., Any]) -> Operation:
    operation = getattr(handler, "operation", None)
    # Under -OO no function has a docstring, and the document goes without.
    if not isinstance(operation, Operation) or (not handler.__doc__ and sys.flags.optimize < 2):
        raise TypeError(f"{handler.__qualname__} has no @Operation(...) and docstring that describe it")
    return operation
