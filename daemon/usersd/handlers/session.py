"""Login, logout, and who sees and ends which sessions."""

from contextlib import suppress
from typing import Any

from usersctl.errors import Invalid
from usersctl.fields import normal_email
from usersctl.models import Session
from usersctl.service import Service
from usersd.cookies import cleared_cookie, cookie
from usersd.request import Request
from usersd.response import Response, as_json


def login(request: Request, service: Service) -> Response:
    email, password = request.texts("email", "password", otherwise="Email and password are required")
    remember = request.given("rememberMe") and bool(request.boolean("rememberMe"))
    with suppress(Invalid):  # what is no address may be a password in the wrong field
        request.log_fields["email"] = normal_email(email)
    opened = service.sessions.login(
        email,
        password,
        remember=remember,
        ip=request.ip,
        user_agent=request.user_agent,
        replaces=request.cookie_tokens,
    )
    request.user = opened.user
    return as_json({"user": opened.user.as_json()}, session_cookie(request, opened.token, remember=remember))


def logout(request: Request, service: Service) -> Response:
    request.response_headers.append(
        cleared_cookie(request.settings)
    )  # also where the database cannot be written
    for token in (request.bearer, *request.cookie_tokens):
        ended = service.sessions.end(token) if token is not None else None
        if ended is not None:
            request.log_fields |= {"account": ended.user_id, "session": ended.id}
    return as_json({"message": "Logged out"})


def session_cookie(request: Request, token: str, *, remember: bool) -> tuple[str, str]:
    lifetime = int(request.settings.remember_me_expiration.total_seconds())
    return cookie(request.settings, token, max_age=lifetime if remember else None)


def list_mine(request: Request, service: Service) -> dict[str, Any]:
    return _listed(request, service.sessions.listed(request.signed_in.id))


def end_mine(request: Request, service: Service) -> dict[str, Any]:
    service.sessions.revoke(request.ids["session_id"], by=request.actor, user_id=request.signed_in.id)
    return {"success": True}


def list_theirs(request: Request, service: Service) -> dict[str, Any]:
    user = service.accounts.get(request.ids["id"])
    return _listed(request, service.sessions.listed(user.id))


def end_theirs(request: Request, service: Service) -> dict[str, Any]:
    service.sessions.revoke_all([request.ids["id"]], by=request.actor)
    return {"success": True}


_SHOWN = ("id", "name", "created_at", "last_used_at", "expires_at", "ip", "user_agent")


def _listed(request: Request, sessions: list[Session]) -> dict[str, Any]:
    here = request.session.id if request.session else None
    return {
        "sessions": [
            {name: getattr(each, name) for name in _SHOWN} | {"current": each.id == here} for each in sessions
        ]
    }
