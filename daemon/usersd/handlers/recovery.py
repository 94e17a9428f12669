"""Forgotten passwords, and "this wasn't me"."""

from typing import Any

from usersctl.errors import Invalid
from usersctl.service import Service
from usersd.inputs import Body, required
from usersd.openapi.operation import SIGNING_IN, Operation
from usersd.openapi.schemas import ANY_EMAIL, EMAIL, MESSAGE, NEW_PASSWORD, TOKEN
from usersd.request import Request


class Address(Body, missing="Email is required"):
    email = required(ANY_EMAIL)


class EmailLink(Body, missing="Token and email are required"):
    token = required(TOKEN)
    email = required(EMAIL)


class PasswordReset(EmailLink, missing="Token, email, password and password confirmation are required"):
    password = required(NEW_PASSWORD)
    confirmation = required(NEW_PASSWORD, "password_confirmation")


@Operation("forgotPassword", SIGNING_IN, MESSAGE, Address)
def forgot(request: Request, service: Service) -> dict[str, Any]:
    """Ask for a reset email. The answer is the same for every address."""
    service.recovery.forgot(Address(request.body).email)
    return {"message": "If this address has an account, an email with a link is on its way"}


@Operation("resetPassword", SIGNING_IN, MESSAGE, PasswordReset)
def reset(request: Request, service: Service) -> dict[str, Any]:
    """Set a new password with the link of a reset email. Ends all sessions, and does not sign in."""
    body = PasswordReset(request.body)
    if body.password != body.confirmation:
        raise Invalid("Password and confirmation do not match")
    user = service.recovery.reset(body.token, body.email, body.password, by=request.actor)
    request.log_fields["reset"] = user.id
    return {"message": "Your password is set"}


@Operation("notMe", SIGNING_IN, MESSAGE, EmailLink)
def not_me(request: Request, service: Service) -> dict[str, Any]:
    """This wasn't me. With the link of a notice: ends all sessions, API tokens and links to identity providers, puts a
    changed address back, undoes a deletion, and makes the password unusable until it is reset. The link about a new second
    factor also takes that back, with the recovery codes made then."""
    body = EmailLink(request.body)
    service.recovery.not_me(body.token, body.email, by=request.actor)
    return {"message": "All sessions have ended. Set a new password by email before you sign in again"}
