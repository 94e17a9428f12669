"""Groups, and those of one user."""

from typing import Any

from usersctl.service import Service
from usersd.handlers.session import NO_SUCH_USER
from usersd.inputs import Body, required, required_strings
from usersd.openapi import schemas
from usersd.openapi.operation import MANAGEMENT, Operation
from usersd.request import Request

_NO_SUCH_GROUP = {404: "There is no group of this name."}


class NewGroup(Body, missing="Name is required"):
    name = required(schemas.GROUP_NAME)


class UserGroups(Body, missing="Groups are required"):
    groups = required_strings(schemas.GROUP_NAME, "All groups of the user.")


@Operation(
    "listGroups", MANAGEMENT, schemas.model("GroupList", {"groups": schemas.array(schemas.named("Group"))})
)
def list_all(_request: Request, service: Service) -> dict[str, Any]:
    """List groups. By name, with the number of their members."""
    return {"groups": [group.as_json() for group in service.groups.all()]}


@Operation("createGroup", MANAGEMENT, schemas.model("OneGroup", {"group": schemas.named("Group")}), NewGroup)
def create(request: Request, service: Service) -> dict[str, Any]:
    """Create a group."""
    group = service.groups.create(NewGroup(request.body).name, by=request.actor)
    request.log_fields["group"] = group.name
    return {"group": group.as_json()}


@Operation("deleteGroup", MANAGEMENT, schemas.DONE, refusals=_NO_SUCH_GROUP)
def delete(request: Request, service: Service) -> dict[str, Any]:
    """Delete a group. Also one with members, whose accounts stay."""
    group = service.groups.delete(request.segments["group"], by=request.actor)
    request.log_fields["group"] = group.name
    return {"success": True}


_NAMES = schemas.model("GroupNames", {"groups": schemas.array(schemas.GROUP_NAME)})


@Operation("listUserGroups", MANAGEMENT, _NAMES, refusals=NO_SUCH_USER)
def list_of_user(request: Request, service: Service) -> dict[str, Any]:
    """List a user's groups."""
    return {"groups": service.groups.of(request.ids["id"])}


@Operation("setUserGroups", MANAGEMENT, _NAMES, UserGroups, refusals=NO_SUCH_USER)
def set_of_user(request: Request, service: Service) -> dict[str, Any]:
    """Set a user's groups. To exactly these; an unknown one is a 400, and changes nothing."""
    names: list[str] = UserGroups(request.body).groups
    return {"groups": service.groups.set(request.ids["id"], names, by=request.actor)}
