"""Forgotten passwords, and "this wasn't me"."""

from typing import Any

from usersctl.errors import Invalid
from usersctl.service import Service
from usersd.request import Call


def forgot(call: Call, service: Service) -> dict[str, Any]:
    (email,) = call.texts("email", otherwise="Email is required")
    service.recovery.forgot(email)
    return {"message": "If this address has an account, a letter with a link is on its way"}


def reset(call: Call, service: Service) -> dict[str, Any]:
    token, email, password, again = call.texts(
        "token",
        "email",
        "password",
        "password_confirmation",
        otherwise="Token, email, password and password confirmation are required",
    )
    if password != again:
        raise Invalid("Password and confirmation do not match")
    user = service.recovery.reset(token, email, password, by=call.actor)
    call.told["reset"] = user.id
    return {"message": "Your password is set"}


def not_me(call: Call, service: Service) -> dict[str, Any]:
    token, email = call.texts("token", "email", otherwise="Token and email are required")
    service.recovery.not_me(token, email, by=call.actor)
    return {"message": "All sessions have ended. Set a new password by email before you sign in again"}
