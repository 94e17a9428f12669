"""Forgotten passwords, and "this wasn't me"."""

from typing import Any

from usersctl.errors import Invalid
from usersctl.service import Service
from usersd.request import Request


def forgot(request: Request, service: Service) -> dict[str, Any]:
    (email,) = request.texts("email", otherwise="Email is required")
    service.recovery.forgot(email)
    return {"message": "If this address has an account, a letter with a link is on its way"}


def reset(request: Request, service: Service) -> dict[str, Any]:
    token, email, password, again = request.texts(
        "token",
        "email",
        "password",
        "password_confirmation",
        otherwise="Token, email, password and password confirmation are required",
    )
    if password != again:
        raise Invalid("Password and confirmation do not match")
    user = service.recovery.reset(token, email, password, by=request.actor)
    request.log_fields["reset"] = user.id
    return {"message": "Your password is set"}


def not_me(request: Request, service: Service) -> dict[str, Any]:
    token, email = request.texts("token", "email", otherwise="Token and email are required")
    service.recovery.not_me(token, email, by=request.actor)
    return {"message": "All sessions have ended. Set a new password by email before you sign in again"}
