"""Registration, and the confirmation of its email address."""

from typing import Any

from usersctl.service import Service
from usersd.handlers.recovery import Address
from usersd.inputs import Body, Query, required
from usersd.openapi.operation import SIGNING_IN, Operation
from usersd.openapi.schemas import DONE, EMAIL, MESSAGE, NAME, NEW_PASSWORD, TOKEN, model, named, string
from usersd.request import Request

_REGISTERED = model("Registered", {"user": named("RegisteredUser"), "message": string("Registered.")})
_CONFIRMED = model("EmailConfirmed", DONE["properties"] | {"message": string("You can sign in now")})
_SIGN_IN = "Your email address is confirmed. You can sign in now"
_SET_PASSWORD = (
    "Your email address is confirmed. Set a password with the link in the email that is on its way to you"  # noqa: S105 - none is in it
)
_SHOWN = ("id", "email", "name", "role", "created_at", "updated_at")


class Registration(Body, missing="Email, name and password are required"):
    email = required(EMAIL)
    name = required(NAME)
    password = required(NEW_PASSWORD)


class ConfirmationLink(Query, missing="Token and email are required"):
    token = required(TOKEN, description="From the link in the email.")
    email = required(EMAIL, description="From the link in the email.")


@Operation("register", SIGNING_IN, _REGISTERED, Registration)
def register(request: Request, service: Service) -> dict[str, Any]:
    """Register. The account is inactive until its owner opens the link in the email."""
    body = Registration(request.body)
    user = service.registration.register(body.email, body.name, body.password, by=request.actor)
    request.log_fields["created"] = user.id
    return {
        "user": {field: getattr(user, field) for field in _SHOWN},
        "message": "Registered. Open the link in the email that is on its way to you",
    }


@Operation("resendConfirmation", SIGNING_IN, MESSAGE, Address)
def resend(request: Request, service: Service) -> dict[str, Any]:
    """Send the confirmation email again. The answer is the same for every address."""
    service.registration.resend(Address(request.body).email)
    return {"message": "If this address waits for its confirmation, an email is on its way"}


@Operation("confirmEmail", SIGNING_IN, _CONFIRMED, query=ConfirmationLink)
def confirm(request: Request, service: Service) -> dict[str, Any]:
    """Confirm an address. Works once. HEAD and prefetch have no effect."""
    link = ConfirmationLink(request.query)
    user = service.registration.confirm(link.token, link.email, by=request.actor)
    request.log_fields["confirmed"] = user.id
    has_way_in = service.registration.has_way_in(user)
    return {"success": True, "message": _SIGN_IN if has_way_in else _SET_PASSWORD}
