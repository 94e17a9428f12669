"""The caller's own change of address: its state, and its proof by the link that was sent to the new address."""

from typing import Any

from usersctl.service import Service
from usersd.handlers.recovery import EmailLink
from usersd.inputs import NoFields, optional
from usersd.openapi.operation import OWN, SIGNING_IN, Operation
from usersd.openapi.schemas import ANY_PASSWORD, DONE, EMAIL, MESSAGE, MOMENT, exactly, model, or_null, string
from usersd.request import Request

_CLAIM = exactly({"email": EMAIL, "expires_at": MOMENT})
_STATE = model("OwnEmail", {"email": EMAIL, "claim": or_null(_CLAIM)})
_PROVEN = model("EmailProven", DONE["properties"] | {"message": string("Email changed")})
_WRONG_PASSWORD = {
    400: "The link is dead, or the password is missing.",
    401: "Incorrect password.",
    403: "With a second factor: sign in first, or confirm that it is you, see `confirmSession`.",
}


class Proof(EmailLink, missing="Token and email are required"):
    password = optional(ANY_PASSWORD, "The account's password, if it has one and no second factor.")


@Operation("getMyEmail", OWN, _STATE)
def read(request: Request, service: Service) -> dict[str, Any]:
    """Read your addresses. `email` is the known one; `claim` the new one that waits for its confirmation."""
    claim = service.claims.of(request.signed_in.id)
    return {"email": request.signed_in.email, "claim": claim and claim.as_json()}


@Operation("proveMyEmail", SIGNING_IN, _PROVEN, Proof, refusals=_WRONG_PASSWORD, takes_session=True)
def prove(request: Request, service: Service) -> dict[str, Any]:
    """Confirm a new address. With the link that was sent to it and the password. An account without a password needs the link that was sent to its known address, too. An account with a second factor
    needs a session with a fresh proof by it instead of the password."""
    body = Proof(request.body)
    user = service.claims.prove(
        body.token, body.email, body.password or "", client=request.client, by=request.actor
    )
    request.log_fields["account"] = user.id
    if user.claimed_email is None:
        return {"success": True, "message": "Email changed"}
    return {"success": True, "message": "Confirmed, now open the other link"}


@Operation("takeBackMyEmail", OWN, DONE)
def take_back(request: Request, service: Service) -> dict[str, Any]:
    """Take back a new address that is not confirmed yet."""
    service.claims.take_back(request.signed_in.id, by=request.actor)
    return {"success": True}


@Operation("resendMyEmail", OWN, MESSAGE, NoFields, refusals={404: "No new address to confirm."})
def resend(request: Request, service: Service) -> dict[str, Any]:
    """Send the email to a new address again."""
    NoFields(request.body)
    service.claims.resend(request.signed_in.id, by=request.actor)
    return {"message": "The email is on its way"}
