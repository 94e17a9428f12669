"""What an admin does for a user who cannot sign in: learns why, opens the lock, sends an email with a link."""

from typing import Any

from usersctl.errors import NotFound
from usersctl.service import Service
from usersctl.why import Gate, Step
from usersd.handlers.session import NO_SUCH_USER
from usersd.inputs import NoFields
from usersd.openapi.operation import MANAGEMENT, Operation
from usersd.openapi.schemas import DONE, array, exactly, model, or_null, string
from usersd.request import Request

_FINDING = {
    "code": string("locked", "What is in the way, for programs."),
    "message": string("80 failed logins in a row: locked until a reset, but for known devices"),
    "mend": or_null(string("Unlock the account at /users/7, or on the server with: usersctl unlock 7")),
}
_TOO_MANY = {429: "Three emails of this kind went to the user in 15 minutes, or twelve in a day."}
_MENDED_BY = {
    Step.ACTIVATE: "Activate the account",
    Step.UNLOCK: "Unlock the account",
    Step.SEND_RESET: "Send a reset email",
    Step.SEND_CONFIRMATION: "Send the confirmation email again",
    Step.INVITE: "Invite the user again",
}


@Operation(
    "explainUser",
    MANAGEMENT,
    model("FindingList", {"findings": array(exactly(_FINDING))}),
    refusals=NO_SUCH_USER,
)
def why(request: Request, service: Service) -> dict[str, Any]:
    """Learn why a user cannot sign in. What is in the way, in the order of a sign-in; an empty list if nothing is."""
    user_id = request.ids["id"]
    explained = service.why.explain(str(user_id))
    if explained.user is None:
        raise NotFound("User not found")
    return {
        "findings": [
            {"code": gate.cause, "message": gate.message, "mend": _mend(gate, user_id)}
            for gate in explained.findings
        ]
    }


def _mend(gate: Gate, user_id: int) -> str | None:
    if gate.mend is None or not gate.mend.startswith(("usersctl ", "pip ")):
        return gate.mend
    if gate.step is None:
        return f"On the server: {gate.mend}"
    return f"{_MENDED_BY[gate.step]} at /users/{user_id}, or on the server with: {gate.mend}"


@Operation("unlockUser", MANAGEMENT, DONE, NoFields, refusals=NO_SUCH_USER)
def unlock(request: Request, service: Service) -> dict[str, Any]:
    """Unlock a user. Clears all failed logins of the account; succeeds if there are none, too."""
    NoFields(request.body)
    service.throttle.unlock(service.accounts.get(request.ids["id"]), request.actor)
    return {"success": True}


@Operation("sendResetEmail", MANAGEMENT, DONE, NoFields, refusals=NO_SUCH_USER | _TOO_MANY)
def send_reset(request: Request, service: Service) -> dict[str, Any]:
    """Send a user a reset email. Refused for an inactive account."""
    NoFields(request.body)
    service.recovery.send_link(request.ids["id"], by=request.actor)
    return {"success": True}


@Operation("sendConfirmationEmail", MANAGEMENT, DONE, NoFields, refusals=NO_SUCH_USER | _TOO_MANY)
def send_confirmation(request: Request, service: Service) -> dict[str, Any]:
    """Send a user the confirmation email again. Refused for an account that awaits no confirmation."""
    NoFields(request.body)
    service.registration.send_link(request.ids["id"], by=request.actor)
    return {"success": True}
