"""The audit trail, for admins."""

from typing import Any

from usersctl.service import Service
from usersctl.trail import Wanted
from usersd.inputs import Query, number, optional
from usersd.openapi.operation import MANAGEMENT, Operation
from usersd.openapi.schemas import (
    ID,
    MOMENT,
    array,
    boolean,
    exactly,
    integer,
    model,
    opaque,
    or_null,
    string,
)
from usersd.request import Request

_DETAILS = opaque(examples=[{"role": "user", "active": True}])
_ROW = {
    "id": ID,
    "at": MOMENT,
    "actor": string("user:1", "`user:ID`, `cli:NAME`, `anonymous` or `system`."),
    "actor_email": or_null(string("", "The present address of a user who acted.")),
    "origin": or_null(string("", "The client's address, or the terminal.")),
    "action": string("create"),
    "user_id": or_null(ID),
    "email": or_null(string("", "Of the user, at that time.")),
    "details": _DETAILS,
    "hash": string("5c94" * 16, "Of this row and of the hash before it."),
}
_NEXT = or_null(ID)


class TrailQuery(Query):
    user = optional(string("ada@example.com"), "Only rows about this user: an id or an address.")
    actor = optional(string("cli:root"), "Only rows by this actor, or by a user with this id or address.")
    action = optional(string("create"), "Only rows of this action.")
    since = optional(string("7d"), "Only rows since then: a duration before now, or an ISO 8601 time.")
    until = optional(string("2026-11-20"), "Only rows before then, in the same forms.")
    limit = number(integer(50, minimum=1, maximum=100), 50, "Rows at most; 50 if left out.")
    before = number(ID, 0, "Goes on from the `next` of the page before.")

    @property
    def wanted(self) -> Wanted:
        return Wanted(self.user, self.actor, self.action, self.since, self.until)


@Operation(
    "listAudit",
    MANAGEMENT,
    model("AuditRows", {"rows": array(exactly(_ROW)), "next": _NEXT}),
    query=TrailQuery,
)
def rows(request: Request, service: Service) -> dict[str, Any]:
    """Read the audit trail. The newest rows first. A page can have fewer rows than `limit`, or none, before the end:
    only a `next` of null says that there are no more."""
    query = TrailQuery(request.query)
    page = service.trail.page(query.wanted, limit=query.limit, before=query.before or None)
    return {"rows": page.rows, "next": page.next}


class CheckQuery(Query):
    after = number(ID, 0, "The `next` of the step before; left out at the first step.")
    rows = number(ID, 0, "The `rows` of the step before.")


_STEP = {
    "intact": boolean("No row so far was changed or removed."),
    "rows": integer(10_000, minimum=0, description="Rows that were checked so far."),
    "of": integer(12_345, minimum=0, description="Rows that the trail should have."),
    "head": string("5c94" * 16, "The hash of the last row that was checked."),
    "first_broken": or_null(ID),
    "problem": or_null(string("")),
    "next": _NEXT,
}


@Operation("checkAudit", MANAGEMENT, model("AuditCheck", _STEP), query=CheckQuery)
def check(request: Request, service: Service) -> dict[str, Any]:
    """Check the chain of the audit trail, step by step. A step checks 10,000 rows; `next` is null after the last one."""
    query = CheckQuery(request.query)
    step = service.trail.check(query.after, query.rows)
    result = step.so_far
    return {
        "intact": result.problem is None,
        "rows": result.rows,
        "of": step.of,
        "head": result.head.hex(),
        "first_broken": result.first_broken,
        "problem": result.problem,
        "next": step.next,
    }
