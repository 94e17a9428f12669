"""User management, and the caller's own profile and password."""

from typing import Any

from usersctl.errors import Invalid
from usersctl.fields import search_text
from usersctl.models import Role, UserFilter, UserState
from usersctl.service import Service
from usersd.access import renew_cookie
from usersd.handlers.registration import Registration
from usersd.handlers.session import NO_SUCH_USER, set_device_cookie
from usersd.inputs import Body, Query, choice, number, optional, optional_boolean, required, true_or_false
from usersd.openapi import schemas
from usersd.openapi.operation import MANAGEMENT, OWN, Operation
from usersd.request import Request
from usersd.response import Response, as_json

_CREATED_USER = {
    "read": ("getUser", "id", "$response.body#/user/id"),
    "change": ("updateUser", "id", "$response.body#/user/id"),
    "delete": ("deleteUser", "id", "$response.body#/user/id"),
    "sessions": ("listUserSessions", "id", "$response.body#/user/id"),
}
_FIRST_USER = {"first": ("getUser", "id", "$response.body#/users/0/id")}


class NewUser(Registration):
    role = optional(schemas.ROLE)


class ProfileChanges(Body):
    name = optional(schemas.NAME)
    email = optional(schemas.EMAIL)


class UserChanges(ProfileChanges):
    role = optional(schemas.ROLE)
    active = optional_boolean()


class PasswordChange(Body, missing="Current password, new password and its confirmation are required"):
    current = required(schemas.ANY_PASSWORD, "currentPassword")
    new = required(schemas.NEW_PASSWORD, "newPassword")
    confirmation = required(schemas.NEW_PASSWORD, "newPasswordConfirmation")


_SORT = schemas.string("name", enum=["name", "email", "created", "last-login"])
_ORDER = schemas.string("asc", enum=["asc", "desc"])
_STATE = schemas.string(UserState.ACTIVE, enum=list(UserState))


class UserList(Query):
    page = number(schemas.ID, 1, "From 1; 1 if left out.")
    limit = number(schemas.integer(10, minimum=1, maximum=100), 10, "Users on a page; 10 if left out.")
    after = number(schemas.ID, 0, "The last id of the page before this one; makes late pages fast.")
    search = optional(schemas.string("grace", maxLength=200), "A part of the address or the name.")
    role = choice(schemas.ROLE, "Only users of this role.")
    sort = choice(_SORT, "`name` if left out. Equal ones are in the order of their ids, or against it.")
    order = choice(_ORDER, "`asc` if left out.")


class FilteredUserList(UserList):
    active = true_or_false("Only active users, or only inactive ones.")
    state = choice(
        _STATE,
        "Only users in this state. `deactivated` is by an admin or by the owner; `locked` is after failed logins.",
    )
    group = optional(schemas.string("staff"), "Only members of this group.")


@Operation("createUser", MANAGEMENT, schemas.USER, NewUser, links=_CREATED_USER)
def create(request: Request, service: Service) -> dict[str, Any]:
    """Create a user. Active at once; `role` is `user` if left out."""
    body = NewUser(request.body)
    role = Role.USER if body.role is None else body.role
    newcomer = service.accounts.newcomer(body.email, body.name, role)
    user = service.accounts.create(newcomer, body.password, by=request.actor)
    request.log_fields |= {"created": user.id, "role": user.role}
    return {"user": user.as_json()}


_STATES = {
    "X-Awaiting-Confirmation": "The ids of listed users who have not confirmed their address yet.",
    "X-Invited": "The ids of listed users who have not accepted their invitation yet.",
}
_OWN_ONLY = {403: "You may only read your own profile."} | NO_SUCH_USER


@Operation("getUser", MANAGEMENT, schemas.USER, refusals=_OWN_ONLY, links=_CREATED_USER)
def read(request: Request, service: Service) -> dict[str, Any]:
    """Read a user."""
    return {"user": service.accounts.get(request.ids["id"]).as_json()}


@Operation(
    "updateUser",
    MANAGEMENT,
    schemas.USER,
    UserChanges,
    refusals=NO_SUCH_USER
    | {429: "Too many invitations to this user, who is invited again at each new address until they accept."},
)
def change(request: Request, service: Service) -> dict[str, Any]:
    """Change a user. You cannot change your own `active` (403), and the last active admin cannot be lost (400)."""
    body = UserChanges(request.body)
    user = service.accounts.update(request.ids["id"], **vars(body), by=request.actor)
    for name in ("role", "active"):
        if getattr(body, name) is not None:
            request.log_fields[name] = getattr(user, name)
    return {"user": user.as_json()}


@Operation("deleteUser", MANAGEMENT, schemas.DONE, refusals=NO_SUCH_USER)
def delete(request: Request, service: Service) -> dict[str, Any]:
    """Delete a user. With all data of the account."""
    service.accounts.delete([request.ids["id"]], by=request.actor)
    return {"success": True}


@Operation(
    "listUsers",
    MANAGEMENT,
    schemas.named("UserPage"),
    query=FilteredUserList,
    links=_FIRST_USER,
    optional_headers=_STATES,
)
def list_all(request: Request, service: Service) -> Response:
    """List users. A page beyond the end is an empty list. `total` is a lower bound if `totalIsExact` is false."""
    query = FilteredUserList(request.query)
    return _page(service, query, UserFilter(active=query.active, state=query.state, group=query.group))


@Operation(
    "listInactiveUsers",
    MANAGEMENT,
    schemas.named("UserPage"),
    query=UserList,
    links=_FIRST_USER,
    optional_headers=_STATES,
)
def list_inactive(request: Request, service: Service) -> Response:
    """List inactive users."""
    return _page(service, UserList(request.query), UserFilter(active=False))


def _page(service: Service, query: UserList, wanted: UserFilter) -> Response:
    page, limit = query.page, query.limit
    wanted = wanted._replace(
        search=search_text(query.search or ""),
        role=query.role,
        sort=query.sort or "name",
        descending=query.order == "desc",
    )
    result = service.accounts.page(wanted, page=page, limit=limit, after=query.after or None)
    listed = {
        "users": [user.as_json() for user in result.users],
        "pagination": {
            "page": page,
            "limit": limit,
            "total": result.total,
            "totalIsExact": result.is_exact,
            "totalPages": result.total_pages,
            "hasNext": result.has_next,
            "hasPrev": page > 1 and result.total > 0,
        },
    }
    # The user object has no field for these.
    ids = {
        "X-Awaiting-Confirmation": (user.id for user in result.users if user.awaiting_confirmation),
        "X-Invited": (user.id for user in result.users if user.invited_at is not None),
    }
    headers = ((name, ",".join(map(str, listed_ids))) for name, listed_ids in ids.items())
    return as_json(listed, *(header for header in headers if header[1]))


@Operation("me", OWN, schemas.USER)
def read_me(request: Request, _service: Service) -> dict[str, Any]:
    """Read your profile."""
    return {"user": request.signed_in.as_json()}


@Operation("updateMe", OWN, schemas.named("User"), ProfileChanges)
def change_me(request: Request, service: Service) -> dict[str, Any]:
    """Change your profile. Answers with the bare user object."""
    body = ProfileChanges(request.body)
    return service.accounts.update(request.signed_in.id, **vars(body), by=request.actor).as_json()


@Operation(
    "changePassword",
    OWN,
    schemas.MESSAGE,
    PasswordChange,
    sets_cookie="This session's and this device's, renewed.",
)
def change_password(request: Request, service: Service) -> dict[str, Any]:
    """Change your password. Ends all other sessions and API tokens."""
    body = PasswordChange(request.body)
    if body.new != body.confirmation:
        raise Invalid("New password and confirmation do not match")
    session = request.session
    if session is None:
        raise AssertionError("a session was admitted")
    # This session gets a new token, so that a stolen one ends with the other sessions. A bearer keeps the one it has: its
    # client could not learn of a new one.
    token = renew = None
    if request.by_cookie:
        token, renew = service.sessions.renewal(session)
    changed = service.accounts.change_password(
        request.signed_in.id, body.current, body.new, session_id=session.id, by=request.actor, renew=renew
    )
    if token is not None:
        renew_cookie(request, session, token, service.now())
        set_device_cookie(request, service, changed.id, changed.updated_at)
    return {"message": "Password changed"}
