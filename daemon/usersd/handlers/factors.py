"""The second factors of the caller, and those that an admin takes away from a user."""

from typing import Any

from usersctl.factors.reset import Chosen
from usersctl.service import Service
from usersd.handlers.session import CODE, CONFIRM_FIRST, NO_SUCH_USER, RECOVERY_CODE
from usersd.inputs import Body, NoFields, required
from usersd.openapi.operation import MANAGEMENT, OWN, Operation
from usersd.openapi.schemas import (
    DONE,
    ID,
    MOMENT,
    array,
    boolean,
    exactly,
    integer,
    model,
    or_null,
    string,
)
from usersd.request import Request

ENROL = {403: "Confirm that it is you: see `confirmSession`; or second factors are switched off."}
PASSKEY = exactly(
    {
        "id": ID,
        "name": string("My phone"),
        "created_at": MOMENT,
        "last_used_at": or_null(MOMENT),
        "synced": boolean("It is on several devices of its owner, by a password manager."),
    }
)
_TOTP = exactly({"enabled": boolean(), "created_at": or_null(MOMENT)})
_FACTORS = {"totp": _TOTP, "passkeys": array(PASSKEY), "recoveryCodes": integer(10, minimum=0)}
_NEW_TOTP = {
    "secret": string("JBSWY3DPEHPK3PXPJBSWY3DPEHPK3PXP", "In base 32, to type."),
    "uri": string(
        "otpauth://totp/Users:grace@example.com?secret=JBSWY3DPEHPK3PXPJBSWY3DPEHPK3PXP&issuer=Users"
    ),
    "qr": string("<svg></svg>", "The URI as a QR code, as SVG."),
}
RECOVERY_CODES = {"recoveryCodes": array(RECOVERY_CODE)}
# The codes come with the first factor only.
CONFIRMED = model("FactorAdded", DONE["properties"] | RECOVERY_CODES, may_lack=RECOVERY_CODES)


class FirstCode(Body, missing="Code is required"):
    code = required(CODE, description="That the app shows now.")


@Operation("listMyFactors", OWN, model("Factors", _FACTORS))
def read(request: Request, service: Service) -> dict[str, Any]:
    """List your second factors. `recoveryCodes` is how many are left."""
    return service.factors.of(request.signed_in.id)


@Operation(
    "beginMyTotp",
    OWN,
    model("NewTotp", _NEW_TOTP),
    NoFields,
    refusals=ENROL | {400: "An app is set up already."},
)
def begin_totp(request: Request, service: Service) -> dict[str, Any]:
    """Begin to set up an authenticator app. Its first code has to be sent in the same session, within ten minutes."""
    NoFields(request.body)
    new = service.factors.begin_totp(request.signed_in.id, session_id=request.session_id, by=request.actor)
    return new._asdict()


@Operation(
    "confirmMyTotp", OWN, CONFIRMED, FirstCode, refusals=ENROL | {400: "Invalid code, or begin again."}
)
def confirm_totp(request: Request, service: Service) -> dict[str, Any]:
    """Set up an authenticator app by its first code. With your first factor come ten recovery codes, which are shown once."""
    code = FirstCode(request.body).code
    codes = service.factors.confirm_totp(
        request.signed_in.id, code, session_id=request.session_id, by=request.actor
    )
    return with_codes({"success": True}, codes)


@Operation("removeMyTotp", OWN, DONE, refusals=CONFIRM_FIRST | {404: "No authenticator app is set up."})
def remove_totp(request: Request, service: Service) -> dict[str, Any]:
    """Remove your authenticator app. The recovery codes end with the last factor."""
    service.factors.remove_totp(request.signed_in.id, by=request.actor)
    return {"success": True}


@Operation(
    "renewMyRecoveryCodes",
    OWN,
    model("NewRecoveryCodes", RECOVERY_CODES),
    NoFields,
    refusals=CONFIRM_FIRST | {400: "They come with the first factor."},
)
def new_recovery_codes(request: Request, service: Service) -> dict[str, Any]:
    """Make new recovery codes. They are shown once, and the old ones end."""
    NoFields(request.body)
    return {"recoveryCodes": service.factors.new_recovery_codes(request.signed_in.id, by=request.actor)}


@Operation("resetFactors", MANAGEMENT, DONE, refusals=NO_SUCH_USER | CONFIRM_FIRST)
def reset(request: Request, service: Service) -> dict[str, Any]:
    """Remove all second factors of a user who has lost them. Their sessions and API tokens end, and an email tells them.
    Succeeds without any, too. It needs a fresh proof, which no API token has."""
    service.factor_reset.run(request.ids["id"], Chosen(), by=request.actor)
    return {"success": True}


def with_codes(answer: dict[str, Any], codes: list[str] | None) -> dict[str, Any]:
    return answer if codes is None else answer | {"recoveryCodes": codes}
