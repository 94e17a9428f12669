"""Registration and the confirmation of its address."""

from typing import Any

from usersctl.errors import Invalid
from usersctl.service import Service
from usersd.request import Call

_SHOWN = ("id", "email", "name", "role", "created_at", "updated_at")


def register(call: Call, service: Service) -> dict[str, Any]:
    email, name, password = call.texts(
        "email", "name", "password", otherwise="Email, name and password are required"
    )
    user = service.registration.register(email, name, password, by=call.actor)
    call.told["created"] = user.id
    return {
        "user": {field: getattr(user, field) for field in _SHOWN},
        "message": "Registered. Open the link in the letter that is on its way to you",
    }


def resend(call: Call, service: Service) -> dict[str, Any]:
    (email,) = call.texts("email", otherwise="Email is required")
    service.registration.resend(email)
    return {"message": "If this address waits for its confirmation, a letter is on its way"}


def confirm(call: Call, service: Service) -> dict[str, Any]:
    token, email = call.query.get("token"), call.query.get("email")
    if not token or not email:
        raise Invalid("Token and email are required")
    user = service.registration.confirm(token, email, by=call.actor)
    call.told["confirmed"] = user.id
    return {"success": True, "message": "Your email address is confirmed. You can sign in now"}
