"""The identity providers that an account is linked to, for its owner."""

from typing import Any

from usersctl.service import Service
from usersd.handlers.oauth import begin
from usersd.handlers.session import CONFIRM_FIRST
from usersd.inputs import NoFields
from usersd.openapi.operation import OWN, Operation
from usersd.openapi.schemas import DONE, array, model, named, string
from usersd.request import Request

_REFUSALS = CONFIRM_FIRST | {
    400: "It is the only way into the account, which has no password, passkey or other provider.",
    404: "No such provider is linked.",
}
_WAY = model("WayToProvider", {"url": string("https://id.example.com/authorize?client_id=users")})


@Operation("listMyIdentities", OWN, model("IdentityList", {"identities": array(named("Identity"))}))
def list_own(request: Request, service: Service) -> dict[str, Any]:
    """List the identity providers that you can sign in with."""
    return {"identities": [identity.as_json() for identity in service.identities.of(request.signed_in.id)]}


@Operation(
    "linkMyIdentity",
    OWN,
    _WAY,
    NoFields,
    refusals=CONFIRM_FIRST | {400: "It is linked already.", 404: "No such provider."},
    sets_cookie="The state of this link, for ten minutes.",
)
def connect(request: Request, service: Service) -> dict[str, Any]:
    """Connect an identity provider. Go to `url` in the same browser; it ends at `/account?linked=NAME`, or at `/account` with
    an `error`. The address at the provider may be another than yours, if no other account here has it."""
    NoFields(request.body)
    name = request.segments["provider"]
    service.identities.prepare_link(request.signed_in.id, name, by=request.actor)
    return {"url": begin(request, service, service.sign_ins[name], links=request.signed_in.id)}


@Operation("unlinkMyIdentity", OWN, DONE, refusals=_REFUSALS)
def disconnect(request: Request, service: Service) -> dict[str, Any]:
    """Disconnect an identity provider. Your sessions stay; a notice goes to your address."""
    service.identities.disconnect(request.signed_in.id, request.segments["provider"], by=request.actor)
    return {"success": True}
