"""The deletion of one's own account: requested, confirmed and undone."""

from typing import Any

from usersctl.service import Service
from usersd.handlers.recovery import EmailLink
from usersd.handlers.session import clear_session_cookie
from usersd.inputs import Body, optional
from usersd.openapi.operation import OWN, SIGNING_IN, Operation
from usersd.openapi.schemas import ANY_PASSWORD, DONE, MESSAGE, model
from usersd.request import Request

# `success` when the account is deleted, `message` when an email has to confirm it.
_EITHER = DONE["properties"] | MESSAGE["properties"]
_DELETED = model("DeletionBegun", _EITHER, may_lack=_EITHER)


class OwnDeletion(Body):
    password = optional(ANY_PASSWORD, "Required from an account that has one, and no second factor.")


@Operation(
    "deleteMe",
    OWN,
    _DELETED,
    OwnDeletion,
    sets_cookie="Cleared, when the account is deleted.",
    refusals={403: "With a second factor: confirm that it is you, see `confirmSession`."},
)
def delete_me(request: Request, service: Service) -> dict[str, Any]:
    """Delete your account. It is inactive at once, and deleted after `auth.deletionGrace`; until then a link in an email
    undoes that. The answer is `{success}`. An account with a second factor needs a fresh proof by it. One
    without it and without a password gets an email that confirms first: `{message}`."""
    body = OwnDeletion(request.body)
    user_id, session_id = request.signed_in.id, request.session_id
    if service.deletion.request(user_id, body.password, session_id=session_id, by=request.actor):
        clear_session_cookie(request)
        return {"success": True}
    return {"message": "Open the link in the email that is on its way to you"}


@Operation("confirmDeletion", SIGNING_IN, MESSAGE, EmailLink)
def confirm_deletion(request: Request, service: Service) -> dict[str, Any]:
    """Confirm the deletion of an account without a password. With the link of the email."""
    body = EmailLink(request.body)
    service.deletion.confirm(body.token, body.email, by=request.actor)
    return {"message": "Your account is deleted"}


@Operation("undoDeletion", SIGNING_IN, MESSAGE, EmailLink)
def undo_deletion(request: Request, service: Service) -> dict[str, Any]:
    """Undo the deletion of your account. With the link of the email, until the account is gone."""
    body = EmailLink(request.body)
    service.deletion.undo(body.token, body.email, by=request.actor)
    return {"message": "Your account is active again. You can sign in now"}
