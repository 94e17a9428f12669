"""The identity providers that an account is linked to, for its owner."""

from typing import Any

from usersctl.service import Service
from usersd.openapi.operation import OWN, Operation
from usersd.openapi.schemas import DONE, array, model, named
from usersd.request import Request

_REFUSALS = {
    400: "It is the only way into the account, which has no password.",
    404: "No such provider is linked.",
}


@Operation("listMyIdentities", OWN, model("IdentityList", {"identities": array(named("Identity"))}))
def list_own(request: Request, service: Service) -> dict[str, Any]:
    """List the identity providers that you can sign in with."""
    return {"identities": [identity.as_json() for identity in service.identities.of(request.signed_in.id)]}


@Operation("unlinkMyIdentity", OWN, DONE, refusals=_REFUSALS)
def disconnect(request: Request, service: Service) -> dict[str, Any]:
    """Disconnect an identity provider. Your sessions stay; a notice goes to your address."""
    service.identities.disconnect(request.signed_in.id, request.segments["provider"], by=request.actor)
    return {"success": True}
