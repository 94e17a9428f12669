"""One change of many users at once: all of them, or none."""

from collections.abc import Callable
from enum import StrEnum
from typing import Any

from usersctl.errors import Forbidden, Invalid, NothingToInvite
from usersctl.invitations import lifetime_of
from usersctl.models import Actor, TokenKind
from usersctl.service import Service
from usersd.inputs import Body, optional, required_choice, required_ids
from usersd.openapi import schemas
from usersd.openapi.operation import MANAGEMENT, Operation
from usersd.request import Request

MOST = 1_000  # users in one transaction, which other writers wait for

Change = Callable[[Service, list[int], str, Actor], int]


class Action(StrEnum):
    ACTIVATE = "activate"
    DEACTIVATE = "deactivate"
    END_SESSIONS = "end-sessions"
    DELETE = "delete"
    INVITE = "invite"
    ADD_GROUP = "add-group"
    REMOVE_GROUP = "remove-group"


OF_GROUPS = (Action.ADD_GROUP, Action.REMOVE_GROUP)


class BulkChange(Body, missing="ids and action are required"):
    ids = required_ids(MOST, f"Ids of users, at most {MOST:,}.")
    action = required_choice(
        schemas.string(Action.DEACTIVATE, enum=list(Action)),
        "What happens to each of them. `invite` is for users who have not accepted their invitation yet, and for active"
        " ones without a password.",
    )
    group = optional(schemas.string("staff"), "For `add-group` and `remove-group`.")


def _set_active(service: Service, user_ids: list[int], by: Actor, *, active: bool) -> int:
    changes = service.accounts.set_active(user_ids, active=active, by=by)
    return sum(before != after for before, after in changes)


def _invite(service: Service, user_ids: list[int], by: Actor) -> int:
    try:
        return len(service.invitations.again(user_ids, lifetime_of(None), by=by))
    except NothingToInvite as error:
        raise Invalid(f"{error}: {error.value}") from None  # which of them


# The number of users that each changes.
_CHANGES: dict[str, Change] = {
    Action.ACTIVATE: lambda service, users, _, by: _set_active(service, users, by, active=True),
    Action.DEACTIVATE: lambda service, users, _, by: _set_active(service, users, by, active=False),
    Action.END_SESSIONS: lambda service, users, _, by: sum(
        map(bool, service.sessions.revoke_all(users, by=by))
    ),
    Action.DELETE: lambda service, users, _, by: len(service.accounts.delete(users, by=by)),
    Action.INVITE: lambda service, users, _, by: _invite(service, users, by),
    Action.ADD_GROUP: lambda service, users, group, by: len(service.groups.add(group, users, by=by)),
    Action.REMOVE_GROUP: lambda service, users, group, by: len(service.groups.remove(group, users, by=by)),
}


@Operation(
    "changeUsers",
    MANAGEMENT,
    schemas.model("BulkChanged", {"changed": schemas.integer(2, minimum=0)}),
    BulkChange,
    refusals={
        404: "One of the users, or the group, does not exist. Nothing is changed.",
        429: "Too many invitations to one of the users. Nothing is changed.",
    },
)
def change(request: Request, service: Service) -> dict[str, Any]:
    """Change many users. All of them, or none; answers with the number of users that this changed."""
    body = BulkChange(request.body)
    if body.action in OF_GROUPS and not body.group:
        raise Invalid("group is required")
    session = request.session
    if session is not None and session.kind == TokenKind.API and request.signed_in.id in body.ids:
        raise Forbidden("Sign in to change this")  # as for the routes that name one user
    changed = _CHANGES[body.action](service, body.ids, body.group or "", request.actor)
    request.log_fields |= {"action": body.action, "users": len(body.ids), "changed": changed}
    return {"changed": changed}
