"""Invitations: by an admin, and accepted by the owner of the address."""

from functools import partial
from typing import Any

from usersctl.invitations import guest, lifetime_of
from usersctl.service import Service
from usersd.handlers.recovery import EmailLink
from usersd.handlers.session import NO_SUCH_USER, PENDING_COOKIE, open_session
from usersd.inputs import Body, optional, optional_strings, required
from usersd.openapi.operation import MANAGEMENT, NEW_SESSION, SIGNING_IN, Operation
from usersd.openapi.schemas import DONE, EMAIL, GROUP_NAME, NAME, NEW_PASSWORD, ROLE, USER, string
from usersd.request import Request

_EXPIRES = "From 1h to 90d; 7d if left out."


class AnotherInvitation(Body):
    expires = optional(string("7d"), _EXPIRES)


class NewInvitation(Body, missing="Email is required"):
    email = required(EMAIL)
    name = optional(NAME, "The owner can change it; without it they have to give one.")
    role = optional(ROLE)
    groups = optional_strings(GROUP_NAME, "Groups that the user is in from the start.")
    expires = optional(string("7d"), _EXPIRES)


class Acceptance(EmailLink, missing="Token, email and password are required"):
    name = optional(NAME, "May be left out where the invitation has one.")
    password = required(NEW_PASSWORD)


@Operation(
    "inviteUser", MANAGEMENT, USER, NewInvitation, refusals={429: "Too many invitations to this address."}
)
def invite(request: Request, service: Service) -> dict[str, Any]:
    """Invite a user. The account is inactive until its owner opens the link in the email. An address that is invited already
    is invited again, and the link before is dead."""
    body = NewInvitation(request.body)
    lifetime = lifetime_of(body.expires)
    invited = guest(body.email, body.name, body.role, body.groups)
    (user,) = service.invitations.invite([invited], lifetime, by=request.actor)
    request.log_fields |= {"invited": user.id, "role": user.role}
    return {"user": user.as_json()}


@Operation(
    "inviteUserAgain",
    MANAGEMENT,
    USER,
    AnotherInvitation,
    refusals=NO_SUCH_USER | {429: "Too many invitations to this address."},
)
def invite_again(request: Request, service: Service) -> dict[str, Any]:
    """Invite a user again, or an active one who has no password. The link before is dead."""
    lifetime = lifetime_of(AnotherInvitation(request.body).expires)
    (user,) = service.invitations.again([request.ids["id"]], lifetime, by=request.actor)
    return {"user": user.as_json()}


@Operation("withdrawInvitation", MANAGEMENT, DONE, refusals=NO_SUCH_USER)
def withdraw(request: Request, service: Service) -> dict[str, Any]:
    """Withdraw an invitation. Deletes the account, which was never used; one that was active before it was invited stays.
    Refused with 403 once the invitation was accepted."""
    service.invitations.withdraw([request.ids["id"]], by=request.actor)
    return {"success": True}


@Operation(
    "acceptInvitation",
    SIGNING_IN,
    USER,
    Acceptance,
    sets_cookie=NEW_SESSION,
    refusals={
        401: "The invitation is accepted, and the account has a second factor: the answer sets the cookie of the second step."
    },
    refusal_headers=PENDING_COOKIE,
)
def accept(request: Request, service: Service) -> dict[str, Any]:
    """Accept an invitation. With the link of the email: sets name and password, confirms the address and signs in."""
    body = Acceptance(request.body)
    then = partial(service.sessions.open_in, remember=False, client=request.client)
    signed_in = service.invitations.accept(
        body.token, body.email, body.name, body.password, then=then, by=request.actor
    )
    return open_session(request, service, signed_in)
