"""Login and logout, and the lists of sessions."""

from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

from usersctl.devices import KNOWN_FOR
from usersctl.errors import Invalid, SecondFactorRequired
from usersctl.fields import lookup
from usersctl.models import Proof, Session, TokenKind
from usersctl.service import Service
from usersd.access import own_path
from usersd.inputs import Body, NoFields, flag, optional, optional_object, required
from usersd.openapi.operation import ACCOUNT_STATE, MANAGEMENT, NEW_SESSION, OWN, PAGES, SIGNING_IN, Operation
from usersd.openapi.schemas import (
    ANY_EMAIL,
    ANY_PASSWORD,
    DONE,
    MESSAGE,
    USER,
    array,
    model,
    named,
    opaque,
    string,
)
from usersd.pages.pages import Onward
from usersd.request import Request
from usersd.response import Response, redirect_to

if TYPE_CHECKING:
    from usersctl.sessions import Opened, Pending

NO_SUCH_USER = {404: "User not found."}
CONFIRM_FIRST = {403: "Confirm that it is you: see `confirmSession`."}
_REFUSED_LOGIN = {
    401: "Invalid email or password; or, after the right password, a second factor is required, for which the answer sets "
    "the cookie of the second step; or the code is wrong.",
    403: "The account is inactive, its app is closed after too many wrong codes, or the request comes from another site.",
}
PENDING_COOKIE = {
    401: {
        "Set-Cookie": (
            "If a second factor is required: the cookie of the second step.",
            string("auth_pending=…"),
        )
    }
}
CODE = string("123456")
REMEMBERS_DEVICE = (
    "This browser is not asked for a second factor again, for the days of `auth.rememberFactor`."
)
RECOVERY_CODE = string("abcd-efgh-ijkl-mnop-qrst-uvwx")
CREDENTIAL = opaque("What the browser's `toJSON()` makes of a passkey's answer.")
_END_FIRST = {"end": ("endMySession", "session_id", "$response.body#/sessions/0/id")}
_SESSIONS = model("SessionList", {"sessions": array(named("Session"))})
_SHOWN = ("id", "name", "created_at", "last_used_at", "expires_at", "ip", "user_agent")


class Credentials(Body, missing="Email and password are required"):
    email = required(ANY_EMAIL)
    password = required(ANY_PASSWORD)
    remember = flag("rememberMe", "Keeps the session after the browser is closed.", example=True)
    code = optional(CODE, "Of the authenticator app, if the account has one: then there is no second step.")
    remember_device = flag("rememberDevice", REMEMBERS_DEVICE, example=False)


@Operation(
    "login",
    SIGNING_IN,
    USER,
    Credentials,
    sets_cookie=NEW_SESSION,
    refusals=_REFUSED_LOGIN,
    refusal_headers=ACCOUNT_STATE | PENDING_COOKIE,
)
def login(request: Request, service: Service) -> dict[str, Any]:
    """Sign in. A session that the request came with ends and is replaced. A 403 after the right password has the header
    `X-Account-State`: `awaiting-confirmation`, `deactivated`, or `deletion` by its owner."""
    body = Credentials(request.body)
    email, is_address = lookup(body.email)
    if is_address:  # an invalid address may be a password in the wrong field: it is not logged
        request.log_fields["email"] = email
    factor = None
    if body.code:  # a form sends a field that its user left empty
        proof = Proof(code=body.code)
        factor = partial(service.second_step.prepare, proof=proof, by=request.actor)
    signed_in = service.sessions.login(
        email, body.password, remember=body.remember, client=request.client, factor=factor
    )
    return open_session(request, service, signed_in, remember_device=body.remember_device)


def open_session(
    request: Request, service: Service, signed_in: "Opened | Pending", *, remember_device: bool = False
) -> dict[str, Any]:
    """The answer to a sign-in, with its cookies; SecondFactorRequired if it waits for its second factor."""
    request.user = signed_in.user
    opened = unless_pending(request, signed_in)
    if opened is None:
        raise SecondFactorRequired
    set_session_cookie(request, service, opened, remember_device=remember_device)
    return {"user": opened.user.as_json()}


def unless_pending(request: Request, signed_in: "Opened | Pending") -> "Opened | None":
    """None, and the cookie of the second step, for a sign-in that waits for its second factor."""
    from usersctl.sessions import PENDING_LIFETIME, Opened  # late: routes are imported before

    if isinstance(signed_in, Opened):
        return signed_in
    request.waits = True
    max_age = int(PENDING_LIFETIME.total_seconds())
    request.new_cookies.set(request.settings.pending_cookie, signed_in.token, max_age=max_age)
    return None


class SecondFactor(Body):
    code = optional(CODE, "Of the authenticator app.")
    recovery_code = optional(
        RECOVERY_CODE, "Works once; case, blanks and dashes do not matter.", name="recoveryCode"
    )
    credential = optional_object(CREDENTIAL, "Of a passkey.")

    @property
    def is_given(self) -> bool:
        return any(value is not None for value in self._values)

    @property
    def proof(self) -> Proof:
        if sum(value is not None for value in self._values) != 1:
            raise Invalid("One of code, recoveryCode and credential is required")
        return Proof(*self._values)

    @property
    def _values(self) -> tuple[str | None, str | None, dict[str, Any] | None]:
        return self.code or None, self.recovery_code or None, self.credential  # an empty one is no guess


class ProofOfIdentity(SecondFactor):
    password = optional(ANY_PASSWORD, "Of an account without a second factor.")


@Operation(
    "confirmSession",
    SIGNING_IN,
    DONE,
    ProofOfIdentity,
    refusals={
        400: "Wrong password or code.",
        403: "A password, for an account with a second factor; or its app is closed after too many wrong codes.",
    },
)
def confirm(request: Request, service: Service) -> dict[str, Any]:
    """Confirm that it is you. Some changes of your own account need a proof of the last ten minutes: a sign-in, or this, with
    a second factor if the account has one, else with the password. They are refused otherwise, with a 403 "Confirm that it
    is you"."""
    body = ProofOfIdentity(request.body)
    user_id, session_id, by = request.signed_in.id, request.session_id, request.actor
    if body.is_given:
        proof = body.proof._replace(browsers=request.passkey_browsers)
        service.second_step.confirm(user_id, proof, session_id=session_id, by=by)
    else:
        service.freshness.confirm(user_id, body.password or "", session_id=session_id, by=by)
    return {"success": True}


def is_known_device(request: Request, service: Service) -> bool:
    """Strangers at the same client address do not keep out a device that signed in to the account before."""
    email, _ = lookup(Credentials(request.body).email)
    return service.sessions.is_known_device(email, request.client)


@Operation("logout", SIGNING_IN, MESSAGE, takes_session=True, sets_cookie="Cleared.")
def logout(request: Request, service: Service) -> dict[str, Any]:
    """Sign out. Succeeds without a session, too."""
    # First, so that it is cleared even if the database cannot be written.
    clear_session_cookie(request)
    if request.pending_tokens:
        clear_pending_cookie(request)
        service.second_step.give_up(request.pending_tokens)
    for token in filter(None, (request.bearer, *request.cookie_tokens)):
        session = service.sessions.end(token, ip=request.ip)
        if session is not None:
            request.log_fields |= {"account": session.user_id, "session": session.id}
    return {"message": "Logged out"}


@Operation(
    "logoutByForm",
    PAGES,
    None,
    query=Onward,
    redirect="To `redirect`, or to `/login`.",
    sets_cookie="Cleared.",
)
def logout_by_form(request: Request, service: Service) -> Response:
    """Sign out by a form. An application links to the page or has a form with this action; a form of another site is
    refused. Succeeds without a session, too."""
    logout(request, service)
    return redirect_to(own_path(Onward.lenient(request).redirect) or "/login")


def set_session_cookie(
    request: Request, service: Service, opened: "Opened", *, remember_device: bool = False
) -> None:
    """After a sign-in. The cookie of a session that is not persistent ends with the browser."""
    settings, session = request.settings, opened.session
    max_age = None
    if session.kind == TokenKind.PERSISTENT:
        max_age = int(settings.remember_me_expiration.total_seconds())
    request.new_cookies.set(settings.session_cookie, opened.token, max_age=max_age)
    remember_for = settings.remember_factor if remember_device and opened.by_factor else None
    set_device_cookie(request, service, opened.user.id, session.created_at, remember_for=remember_for)
    if request.pending_tokens:
        clear_pending_cookie(request)


def set_device_cookie(
    request: Request, service: Service, user_id: int, since: str, *, remember_for: timedelta | None = None
) -> None:
    """Strangers' guesses do not keep the user out of this browser. `since`: not before the user's devices were forgotten."""
    value = service.devices.cookie(request.device_cookies, user_id, since, remember_for=remember_for)
    request.new_cookies.set(request.settings.device_cookie, value, max_age=int(KNOWN_FOR.total_seconds()))


def clear_session_cookie(request: Request) -> None:
    request.new_cookies.set(request.settings.session_cookie, "", max_age=0)


def clear_pending_cookie(request: Request) -> None:
    request.new_cookies.set(request.settings.pending_cookie, "", max_age=0)


@Operation("listMySessions", OWN, _SESSIONS, links=_END_FIRST)
def list_own(request: Request, service: Service) -> dict[str, Any]:
    """List your sessions."""
    return _listed(request, service.sessions.listed(request.signed_in.id))


@Operation("endMySession", OWN, DONE, refusals={404: "Session not found, or another user's."})
def end_own(request: Request, service: Service) -> dict[str, Any]:
    """End one of your sessions."""
    service.sessions.revoke(request.ids["session_id"], by=request.actor, user_id=request.signed_in.id)
    return {"success": True}


@Operation("endMyOtherSessions", OWN, DONE, NoFields, sets_cookie="This device's, renewed.")
def end_others(request: Request, service: Service) -> dict[str, Any]:
    """Sign out everywhere else. Ends all other sessions and all API tokens."""
    NoFields(request.body)
    user_id = request.signed_in.id
    since = service.sessions.end_others(user_id, but=request.session_id, by=request.actor)
    if request.by_cookie:
        set_device_cookie(request, service, user_id, since)
    return {"success": True}


@Operation("listUserSessions", MANAGEMENT, _SESSIONS, refusals=NO_SUCH_USER)
def list_of_user(request: Request, service: Service) -> dict[str, Any]:
    """List a user's sessions. API tokens included."""
    user = service.accounts.get(request.ids["id"])
    return _listed(request, service.sessions.listed(user.id))


@Operation("endUserSessions", MANAGEMENT, DONE, refusals=NO_SUCH_USER)
def end_of_user(request: Request, service: Service) -> dict[str, Any]:
    """End all sessions of a user. API tokens included."""
    service.sessions.revoke_all([request.ids["id"]], by=request.actor)
    return {"success": True}


@Operation("endUserSession", MANAGEMENT, DONE, refusals={404: "User or session not found."})
def end_one_of_user(request: Request, service: Service) -> dict[str, Any]:
    """End one session or API token of a user."""
    user = service.accounts.get(request.ids["id"])
    service.sessions.revoke(request.ids["session_id"], by=request.actor, user_id=user.id)
    return {"success": True}


def _listed(request: Request, sessions: list[Session]) -> dict[str, Any]:
    current = request.session and request.session.id
    return {
        "sessions": [
            {name: getattr(session, name) for name in _SHOWN} | {"current": session.id == current}
            for session in sessions
        ]
    }
