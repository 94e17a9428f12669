"""Login, logout, and who sees and ends which sessions."""

from contextlib import suppress
from typing import Any

from usersctl.errors import Invalid
from usersctl.fields import normal_email
from usersctl.models import Session
from usersctl.service import Service
from usersd.request import Call, cleared_cookie, cookie
from usersd.response import Answer, as_json


def login(call: Call, service: Service) -> Answer:
    email, password = call.texts("email", "password", otherwise="Email and password are required")
    remember = call.given("rememberMe") and bool(call.boolean("rememberMe"))
    with suppress(Invalid):  # what is no address may be a password in the wrong field
        call.told["email"] = normal_email(email)
    opened = service.sessions.login(
        email,
        password,
        remember=remember,
        ip=call.ip,
        user_agent=call.user_agent,
        replaces=call.cookie_tokens,
    )
    call.user = opened.user
    return as_json({"user": opened.user.as_json()}, session_cookie(call, opened.token, remember=remember))


def logout(call: Call, service: Service) -> Answer:
    call.leaves.append(cleared_cookie(call.settings))  # also where the database cannot be written
    for token in (call.bearer, *call.cookie_tokens):
        ended = service.sessions.end(token) if token is not None else None
        if ended is not None:
            call.told |= {"account": ended.user_id, "session": ended.id}
    return as_json({"message": "Logged out"})


def session_cookie(call: Call, token: str, *, remember: bool) -> tuple[str, str]:
    lifetime = int(call.settings.remember_me_expiration.total_seconds())
    return cookie(call.settings, token, max_age=lifetime if remember else None)


def list_mine(call: Call, service: Service) -> dict[str, Any]:
    return _listed(call, service.sessions.listed(call.signed_in.id))


def end_mine(call: Call, service: Service) -> dict[str, Any]:
    service.sessions.revoke(call.ids["session_id"], by=call.actor, user_id=call.signed_in.id)
    return {"success": True}


def list_theirs(call: Call, service: Service) -> dict[str, Any]:
    user = service.accounts.get(call.ids["id"])
    return _listed(call, service.sessions.listed(user.id))


def end_theirs(call: Call, service: Service) -> dict[str, Any]:
    service.sessions.revoke_all([call.ids["id"]], by=call.actor)
    return {"success": True}


_SHOWN = ("id", "name", "created_at", "last_used_at", "expires_at", "ip", "user_agent")


def _listed(call: Call, sessions: list[Session]) -> dict[str, Any]:
    here = call.session.id if call.session else None
    return {
        "sessions": [
            {name: getattr(each, name) for name in _SHOWN} | {"current": each.id == here} for each in sessions
        ]
    }
