"""Registration and the confirmation of its address."""

from typing import Any

from usersctl.errors import Invalid
from usersctl.service import Service
from usersd.request import Request

_SHOWN = ("id", "email", "name", "role", "created_at", "updated_at")


def register(request: Request, service: Service) -> dict[str, Any]:
    email, name, password = request.texts(
        "email", "name", "password", otherwise="Email, name and password are required"
    )
    user = service.registration.register(email, name, password, by=request.actor)
    request.log_fields["created"] = user.id
    return {
        "user": {field: getattr(user, field) for field in _SHOWN},
        "message": "Registered. Open the link in the letter that is on its way to you",
    }


def resend(request: Request, service: Service) -> dict[str, Any]:
    (email,) = request.texts("email", otherwise="Email is required")
    service.registration.resend(email)
    return {"message": "If this address waits for its confirmation, a letter is on its way"}


def confirm(request: Request, service: Service) -> dict[str, Any]:
    token, email = request.query.get("token"), request.query.get("email")
    if not token or not email:
        raise Invalid("Token and email are required")
    user = service.registration.confirm(token, email, by=request.actor)
    request.log_fields["confirmed"] = user.id
    return {"success": True, "message": "Your email address is confirmed. You can sign in now"}
