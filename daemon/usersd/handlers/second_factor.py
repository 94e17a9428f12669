"""The second step of a sign-in."""

from typing import Any

from usersctl.service import Service
from usersd.handlers.session import REMEMBERS_DEVICE, SecondFactor, open_session
from usersd.inputs import flag
from usersd.openapi.operation import ACCOUNT_STATE, NEW_SESSION, SIGNING_IN, Operation
from usersd.openapi.schemas import USER, array, model, string
from usersd.request import Request

_METHOD = string("totp", enum=["totp", "recovery", "passkey"])
_NONE_WAITS = {401: "No sign-in of this browser waits for a second factor."}


class SecondStep(SecondFactor):
    remember_device = flag("rememberDevice", REMEMBERS_DEVICE, example=False)


@Operation(
    "getSecondFactor", SIGNING_IN, model("SecondFactors", {"methods": array(_METHOD)}), refusals=_NONE_WAITS
)
def methods(request: Request, service: Service) -> dict[str, Any]:
    """Read which second factors the account of the waiting sign-in has. The cookie `auth_pending` names the sign-in."""
    return {"methods": service.second_step.methods(request.pending_tokens)}


@Operation(
    "finishLogin",
    SIGNING_IN,
    USER,
    SecondStep,
    sets_cookie=NEW_SESSION,
    refusals={
        401: "Invalid code, or no sign-in of this browser waits for a second factor.",
        403: "The account is inactive, or its app is closed after too many wrong codes.",
    },
    refusal_headers=ACCOUNT_STATE,
)
def finish(request: Request, service: Service) -> dict[str, Any]:
    """Finish a sign-in with a second factor. Within ten minutes of the first step; five wrong codes end it."""
    body = SecondStep(request.body)
    opened = service.second_step.finish(
        request.pending_tokens,
        body.proof._replace(browsers=request.passkey_browsers),
        then=service.sessions.finish,
        client=request.client,
        by=request.actor,
    )
    return open_session(request, service, opened, remember_device=body.remember_device)


def is_waiting(request: Request, service: Service) -> bool:
    """Strangers at the same client address do not keep out a user whose password was right: five codes are bounded anyway."""
    return bool(service.second_step.offered(request.pending_tokens))
