"""User management, and one's own profile and password."""

from typing import Any

from usersctl.errors import Forbidden, Invalid
from usersctl.fields import search_text
from usersctl.models import Role, UserFilter
from usersctl.service import Service
from usersd.request import Call

MAX_PAGE = 10**18


def create(call: Call, service: Service) -> dict[str, Any]:
    email, name, password = call.texts(
        "email", "name", "password", otherwise="Email, name and password are required"
    )
    role = call.text("role") if call.given("role") else None
    user = service.accounts.create(
        email, name, password, role=Role.USER if role is None else role, by=call.actor
    )
    call.told |= {"created": user.id, "role": user.role}
    return {"user": user.as_json()}


def read(call: Call, service: Service) -> dict[str, Any]:
    if call.ids["id"] != call.signed_in.id and call.signed_in.role != Role.ADMIN:
        raise Forbidden("You may only read your own profile")
    return {"user": service.accounts.get(call.ids["id"]).as_json()}


def change(call: Call, service: Service) -> dict[str, Any]:
    user = service.accounts.update(
        call.ids["id"],
        name=call.text("name") if call.given("name") else None,
        email=call.text("email") if call.given("email") else None,
        role=call.text("role") if call.given("role") else None,
        active=call.boolean("active") if call.given("active") else None,
        by=call.actor,
    )
    call.told |= {name: getattr(user, name) for name in ("role", "active") if name in call.body}
    return {"user": user.as_json()}


def delete(call: Call, service: Service) -> dict[str, Any]:
    service.accounts.delete([call.ids["id"]], by=call.actor)
    return {"success": True}


def list_all(call: Call, service: Service) -> dict[str, Any]:
    return _page(call, service, UserFilter(_search(call), _role(call), _active(call)))


def list_inactive(call: Call, service: Service) -> dict[str, Any]:
    return _page(call, service, UserFilter(_search(call), _role(call), active=False))


def read_me(call: Call, _service: Service) -> dict[str, Any]:
    return {"user": call.signed_in.as_json()}


def change_me(call: Call, service: Service) -> dict[str, Any]:
    # The bare user object, as the specification has it; role and active are not read here.
    return service.accounts.update(
        call.signed_in.id,
        name=call.text("name") if call.given("name") else None,
        email=call.text("email") if call.given("email") else None,
        by=call.actor,
    ).as_json()


def change_password(call: Call, service: Service) -> dict[str, Any]:
    current, new, again = call.texts(
        "currentPassword",
        "newPassword",
        "newPasswordConfirmation",
        otherwise="Current password, new password and its confirmation are required",
    )
    if new != again:
        raise Invalid("New password and confirmation do not match")
    session = call.session
    if session is None:
        raise AssertionError("a session was admitted")
    # Another token for this session, so that one that was stolen ends with the others. An API token stays as it is, and
    # a client that does not keep cookies could not be told of another one.
    replaced = call.by_cookie and session.kind != "api"
    token, renew = service.sessions.renewal(session) if replaced else (None, None)
    service.accounts.change_password(
        call.signed_in.id, current, new, session_id=session.id, by=call.actor, renew=renew
    )
    if token is not None:
        call.token, call.has_new_token = token, True
    return {"message": "Password changed"}


def _page(call: Call, service: Service, wanted: UserFilter) -> dict[str, Any]:
    page, limit = call.number("page", 1, MAX_PAGE), call.number("limit", 10, 100)
    after = call.number("after", 0, MAX_PAGE) or None
    found = service.accounts.page(wanted, page=page, limit=limit, after=after)
    return {
        "users": [user.as_json() for user in found.users],
        "pagination": {
            "page": page,
            "limit": limit,
            "total": found.total,
            "totalPages": found.total_pages,
            "hasNext": page < found.total_pages,
            "hasPrev": page > 1,
        },
    }


def _search(call: Call) -> str | None:
    return search_text(call.query.get("search", ""))


def _role(call: Call) -> str | None:
    role = call.query.get("role")
    if role is not None and role not in tuple(Role):
        raise Invalid(f"role must be one of {', '.join(Role)}")
    return role


def _active(call: Call) -> bool | None:
    active = call.query.get("active")
    if active not in (None, "true", "false"):
        raise Invalid("active must be true or false")
    return None if active is None else active == "true"
