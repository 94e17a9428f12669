"""Passkeys: sign in with one, and add, rename and remove those of the caller."""

from functools import partial
from typing import Any

from usersctl.factors.challenges import LIFETIME
from usersctl.models import Method
from usersctl.secrets import new_token
from usersctl.service import Service
from usersd.handlers.factors import ENROL, PASSKEY, RECOVERY_CODES, with_codes
from usersd.handlers.session import CONFIRM_FIRST, CREDENTIAL, open_session
from usersd.inputs import Body, NoFields, flag, required, required_object
from usersd.openapi.operation import ACCOUNT_STATE, NEW_SESSION, OWN, SIGNING_IN, Operation
from usersd.openapi.schemas import DONE, EMAIL, USER, Schema, array, exactly, integer, model, opaque, string
from usersd.request import Request

_NAME = string("My phone", minLength=1, maxLength=200)
_BROWSER = "Names the browser for ten minutes: only it can use the challenge."
_NO_NAME = "Passkeys need an address with a name, which `baseUrl` has not."
_NOT_FOUND = {404: "Passkey not found."}
_CHALLENGE = {"challenge": string("r2Vx")}
_NEW = {
    "rp": exactly({"id": string("accounts.example.com"), "name": string("Users")}),
    "user": exactly({"id": string("Yq0W"), "name": EMAIL, "displayName": string("Grace Hopper")}),
    "pubKeyCredParams": array(
        exactly({"type": {"type": "string", "const": "public-key"}, "alg": integer(-7)})
    ),
}


def _options(title: str, reader: str, required: dict[str, Schema]) -> Schema:
    """Members of the standard, which a browser takes as they are: those that it requires, and others."""
    return model(title, {"publicKey": opaque(f"For `PublicKeyCredential.{reader}`.", required)})


_ADDED = model("PasskeyAdded", {"passkey": PASSKEY} | RECOVERY_CODES, may_lack=RECOVERY_CODES)


class PasskeyLogin(Body, missing="Credential is required"):
    credential = required_object(CREDENTIAL)
    remember = flag("rememberMe", "Keeps the session after the browser is closed.", example=True)


class NewPasskey(Body, missing="Credential and name are required"):
    credential = required_object(CREDENTIAL)
    name = required(_NAME)


class PasskeyName(Body, missing="Name is required"):
    name = required(_NAME)


@Operation(
    "getPasskeyOptions",
    SIGNING_IN,
    _options("PasskeyRequest", "parseRequestOptionsFromJSON", _CHALLENGE),
    NoFields,
    takes_session=True,
    sets_cookie=_BROWSER,
    refusals={400: _NO_NAME},
)
def options(request: Request, service: Service) -> dict[str, Any]:
    """Ask for a challenge that a passkey signs, to sign in with it, as a second step, or to confirm that it is you. The
    answer names the passkeys of the account for the last two only, and is the same for all others. It works once, within
    ten minutes."""
    NoFields(request.body)
    browser = next(iter(request.passkey_browsers), "") or new_token()
    user_id = request.user and request.user.id
    public_key = service.passkeys.options(browser, user_id, request.pending_tokens)
    max_age = int(LIFETIME.total_seconds())
    request.new_cookies.set(request.settings.passkey_cookie, browser, max_age=max_age)
    return {"publicKey": public_key}


@Operation(
    "loginWithPasskey",
    SIGNING_IN,
    USER,
    PasskeyLogin,
    sets_cookie=NEW_SESSION,
    refusals={
        400: _NO_NAME,
        401: "Invalid passkey; or unknown passkey, if no account has it.",
        403: "The account is inactive, or the request comes from another site.",
    },
    refusal_headers=ACCOUNT_STATE,
)
def login(request: Request, service: Service) -> dict[str, Any]:
    """Sign in with a passkey, which counts as both factors. A session that the request came with ends and is replaced. A 403
    for an inactive account has the header `X-Account-State`, as that of `login`."""
    body = PasskeyLogin(request.body)
    then = partial(
        service.sessions.open_in,
        remember=body.remember,
        client=request.client,
        opened_with=Method.PASSKEY,
        is_enough=True,
    )
    opened = service.passkeys.sign_in(body.credential, request.passkey_browsers, then=then, by=request.actor)
    return open_session(request, service, opened)


def is_known_device(request: Request, service: Service) -> bool:
    """Strangers at the same client address do not keep out a device that signed in to the account before."""
    owner = service.passkeys.owner_of(PasskeyLogin(request.body).credential)
    return owner is not None and service.sessions.is_known_device(owner.email, request.client)


@Operation(
    "beginMyPasskey",
    OWN,
    _options("PasskeyCreation", "parseCreationOptionsFromJSON", _CHALLENGE | _NEW),
    NoFields,
    refusals=ENROL | {400: f"{_NO_NAME} Or there are too many."},
)
def begin(request: Request, service: Service) -> dict[str, Any]:
    """Begin to add a passkey. What the browser makes of the answer has to be sent in the same session, within ten minutes."""
    NoFields(request.body)
    user_id, session_id = request.signed_in.id, request.session_id
    return {"publicKey": service.passkeys.options_to_add(user_id, session_id=session_id, by=request.actor)}


@Operation(
    "addMyPasskey",
    OWN,
    _ADDED,
    NewPasskey,
    refusals=ENROL | {400: "What the browser sent is refused, or an account has this passkey."},
)
def add(request: Request, service: Service) -> dict[str, Any]:
    """Add a passkey. With your first factor come ten recovery codes, which are shown once."""
    body = NewPasskey(request.body)
    user_id, session_id = request.signed_in.id, request.session_id
    passkey, codes = service.passkeys.add(
        user_id, body.credential, body.name, session_id=session_id, by=request.actor
    )
    return with_codes({"passkey": passkey}, codes)


@Operation("renameMyPasskey", OWN, DONE, PasskeyName, refusals=CONFIRM_FIRST | _NOT_FOUND)
def rename(request: Request, service: Service) -> dict[str, Any]:
    """Rename a passkey of yours."""
    name = PasskeyName(request.body).name
    service.passkeys.rename(request.signed_in.id, request.ids["passkey_id"], name, by=request.actor)
    return {"success": True}


@Operation(
    "removeMyPasskey",
    OWN,
    DONE,
    refusals=CONFIRM_FIRST
    | _NOT_FOUND
    | {400: "It is the only way into the account, which has no password, provider or other passkey."},
)
def remove(request: Request, service: Service) -> dict[str, Any]:
    """Remove a passkey of yours. The recovery codes end with the last factor."""
    service.passkeys.remove(request.signed_in.id, request.ids["passkey_id"], by=request.actor)
    return {"success": True}
