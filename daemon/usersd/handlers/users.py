"""User management, and one's own profile and password."""

from typing import Any

from usersctl.errors import Forbidden, Invalid
from usersctl.fields import search_text
from usersctl.models import Role, UserFilter
from usersctl.service import Service
from usersd.request import Request

MAX_PAGE = 10**18


def create(request: Request, service: Service) -> dict[str, Any]:
    email, name, password = request.texts(
        "email", "name", "password", otherwise="Email, name and password are required"
    )
    role = request.text("role") if request.given("role") else None
    user = service.accounts.create(
        email, name, password, role=Role.USER if role is None else role, by=request.actor
    )
    request.log_fields |= {"created": user.id, "role": user.role}
    return {"user": user.as_json()}


def read(request: Request, service: Service) -> dict[str, Any]:
    if request.ids["id"] != request.signed_in.id and request.signed_in.role != Role.ADMIN:
        raise Forbidden("You may only read your own profile")
    return {"user": service.accounts.get(request.ids["id"]).as_json()}


def change(request: Request, service: Service) -> dict[str, Any]:
    user = service.accounts.update(
        request.ids["id"],
        name=request.text("name") if request.given("name") else None,
        email=request.text("email") if request.given("email") else None,
        role=request.text("role") if request.given("role") else None,
        active=request.boolean("active") if request.given("active") else None,
        by=request.actor,
    )
    request.log_fields |= {name: getattr(user, name) for name in ("role", "active") if name in request.body}
    return {"user": user.as_json()}


def delete(request: Request, service: Service) -> dict[str, Any]:
    service.accounts.delete([request.ids["id"]], by=request.actor)
    return {"success": True}


def list_all(request: Request, service: Service) -> dict[str, Any]:
    return _page(request, service, UserFilter(_search(request), _role(request), _active(request)))


def list_inactive(request: Request, service: Service) -> dict[str, Any]:
    return _page(request, service, UserFilter(_search(request), _role(request), active=False))


def read_me(request: Request, _service: Service) -> dict[str, Any]:
    return {"user": request.signed_in.as_json()}


def change_me(request: Request, service: Service) -> dict[str, Any]:
    # The bare user object, as the specification has it; role and active are not read here.
    return service.accounts.update(
        request.signed_in.id,
        name=request.text("name") if request.given("name") else None,
        email=request.text("email") if request.given("email") else None,
        by=request.actor,
    ).as_json()


def change_password(request: Request, service: Service) -> dict[str, Any]:
    current, new, again = request.texts(
        "currentPassword",
        "newPassword",
        "newPasswordConfirmation",
        otherwise="Current password, new password and its confirmation are required",
    )
    if new != again:
        raise Invalid("New password and confirmation do not match")
    session = request.session
    if session is None:
        raise AssertionError("a session was admitted")
    # Another token for this session, so that one that was stolen ends with the others. An API token stays as it is, and
    # a client that does not keep cookies could not be told of another one.
    replaced = request.by_cookie and session.kind != "api"
    token, renew = service.sessions.renewal(session) if replaced else (None, None)
    service.accounts.change_password(
        request.signed_in.id, current, new, session_id=session.id, by=request.actor, renew=renew
    )
    if token is not None:
        request.token, request.has_new_token = token, True
    return {"message": "Password changed"}


def _page(request: Request, service: Service, wanted: UserFilter) -> dict[str, Any]:
    page, limit = request.number("page", 1, MAX_PAGE), request.number("limit", 10, 100)
    after = request.number("after", 0, MAX_PAGE) or None
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


def _search(request: Request) -> str | None:
    return search_text(request.query.get("search", ""))


def _role(request: Request) -> str | None:
    role = request.query.get("role")
    if role is not None and role not in tuple(Role):
        raise Invalid(f"role must be one of {', '.join(Role)}")
    return role


def _active(request: Request) -> bool | None:
    active = request.query.get("active")
    if active not in (None, "true", "false"):
        raise Invalid("active must be true or false")
    return None if active is None else active == "true"
