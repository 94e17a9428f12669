"""What the page of the audit trail shows: its rows by a filter, and whether the end of the chain is sound."""

from datetime import date, timedelta
from typing import Any
from urllib.parse import quote, urlencode

from usersctl.errors import Invalid
from usersctl.fields import user_id_of
from usersctl.service import Service
from usersctl.trail import END, Wanted
from usersd.inputs import Field, Query, number, optional
from usersd.openapi.schemas import ID, string
from usersd.pages.user_page import in_words
from usersd.request import Request

ROWS = 30
_DAY = string("2026-11-20", format="date")


class AuditPageQuery(Query):
    user = optional(string("ada@example.com"), "Only rows about this user: an id or an address.")
    actor = optional(string("cli:root"), "Only rows by this actor, or by a user with this id or address.")
    action = optional(string("create"), "Only rows of this action.")
    first: Field[str | None] = Field(_DAY, None, name="from", description="From this day on, in UTC.")
    last: Field[str | None] = Field(_DAY, None, name="to", description="Up to this day, in UTC.")
    before = number(ID, 0, "Goes on before the row with this id.")


def content(request: Request, service: Service) -> dict[str, Any]:
    """The values of the template. `wrong` is the field whose value cannot be read; then there are no rows."""
    typed = {name: value.strip() for name, value in request.query.items() if value.strip()}
    wrong, listed = "", {}
    try:
        query = AuditPageQuery(typed)
        wanted = Wanted(
            query.user, query.actor, query.action, _day("from", query.first), _day("to", query.last, behind=1)
        )
        page = service.trail.page(wanted, limit=ROWS, before=query.before or None)
    except Invalid as error:
        wrong = str(error).partition(" ")[0]
    else:
        listed = {"rows": page.rows, "older": _older(typed, page.next), "is_end": page.next is None}
    kinds = {"user": "text", "actor": "text", "from": "date", "to": "date"}
    if wrong in ("from", "to"):
        kinds[wrong] = "text"  # a field of days would not show what is wrong
    return {
        "typed": typed,
        "wrong": wrong,
        "kinds": kinds,
        **listed,
        "in_words": in_words,
        "newest": urlencode({name: value for name, value in typed.items() if name != "before"}),
        "quoted": quote,
        "one": user_id_of(typed.get("user", "")),
        "actions": service.trail.actions(),
        "chain": service.trail.check_end(),
        "few": END,
    }


def _day(name: str, text: str | None, behind: int = 0) -> str | None:
    """The beginning of a day, or of the one behind it."""
    if text is None:
        return None
    try:
        return str(date.fromisoformat(text) + timedelta(days=behind))
    except (ValueError, OverflowError):
        raise Invalid(f"{name} must be a day such as 2026-11-20") from None


def _older(typed: dict[str, str], following: int | None) -> str:
    """The query of the next page."""
    return "" if following is None else urlencode(typed | {"before": str(following)})
