"""Sign-in through an identity provider, there and back; every failure ends at the configured page with one code."""

import base64
import hmac
import json
import re
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Self
from urllib.parse import urlencode, urlsplit, urlunsplit

from usersctl.clock import CLOCKS_DIFFER
from usersctl.config import Settings
from usersctl.config.values import FLOW_COOKIE
from usersctl.devices import KEY
from usersctl.errors import SignInRefused
from usersctl.models import OAUTH, PROVIDER, TokenKind
from usersctl.named import NamedTuple
from usersctl.oauth.refusals import CANCELLED, NOT_CONFIGURED, refused, refused_by_provider
from usersctl.secrets import challenge_of, digest, new_token, sign, verified
from usersctl.service import Service
from usersd.access import SECOND_STEP, identify, is_navigation_of_another_site, own_path
from usersd.handlers.session import set_session_cookie, unless_pending
from usersd.inputs import Query, optional
from usersd.openapi.operation import SIGNING_IN, Operation
from usersd.openapi.schemas import string
from usersd.pages.pages import Onward
from usersd.request import Request
from usersd.response import Response, redirect_to

if TYPE_CHECKING:
    from usersctl.oauth.providers import Profile
    from usersctl.oauth.sign_in import OAuthSignIn
    from usersctl.sessions import Opened, Pending

MAX_TARGET = 1000  # characters of the page to go to afterwards: it has to fit into a cookie
MAX_FLOWS = 5  # sign-ins that may wait in one browser; a larger Cookie header would be refused

ACCOUNT = "/account"  # where a link ends
PURPOSE = "sign-in"  # of the signature of its cookie
_VALUE = re.compile(r"[A-Za-z0-9_.-]{1,4000}", re.ASCII)


class Flow(NamedTuple):
    """A sign-in that a browser has begun. Its signed cookie holds it, so that no made-up one is taken to the provider."""

    state: str
    nonce: str
    verifier: str
    began: float
    then: str  # the page to go to afterwards, if it is not the configured one
    provider: str = OAUTH  # that it began at: the callback of another does not end it
    links: int | None = None  # the user who asked to link the account of the provider

    def written(self) -> str:
        return base64.urlsafe_b64encode(json.dumps(self).encode()).decode().rstrip("=")

    @classmethod
    def read(cls, text: str) -> Self:
        return cls(*json.loads(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))))


class CallbackQuery(Query):
    code = optional(string("SplxlOBeZQQYbYS6WxSbIA"), "From the provider.")
    state = optional(string("af0ifjsldkj"), "As it was sent to the provider.")
    iss = optional(string("https://id.example.com"), "The provider's issuer.")
    error = optional(string("access_denied"), "Why there is no code.")
    error_description = optional(string("The user cancelled."), "The same in words, for the log.")


class RedirectQuery(Onward):
    provider = optional(string(OAUTH), "The name of a provider of `auth.providers`; `oauth` if left out.")


@Operation(
    "oauthRedirect",
    SIGNING_IN,
    None,
    query=RedirectQuery,
    redirect="To the identity provider, or to `auth.oauth.errorRedirect` with an `error`.",
    sets_cookie="The state of this sign-in, for ten minutes.",
)
def redirect(request: Request, service: Service) -> Response:
    """Sign in through the identity provider."""
    query = RedirectQuery.lenient(request)
    sign_in = _configured(service, query.provider or OAUTH)
    request.errors_to = sign_in.settings.error_redirect
    if is_navigation_of_another_site(request):
        raise refused("a page of another site started this sign-in")
    target = own_path(query.redirect)
    return redirect_to(begin(request, service, sign_in, then=target))


def begin(
    request: Request, service: Service, sign_in: "OAuthSignIn", *, then: str = "", links: int | None = None
) -> str:
    """Returns the address at the provider. The state waits in a cookie of this browser, one for each that was begun."""
    from usersctl.oauth.sign_in import STATE_LIFETIME  # late, because the OpenAPI document needs no provider

    request.log_fields["provider"] = sign_in.settings.name
    state, nonce, verifier = new_token(), new_token(), new_token()
    with sign_in.place():
        url = sign_in.authorization_url(state=state, nonce=nonce, challenge=challenge_of(verifier))
    if len(then) + then.count('"') > MAX_TARGET:  # JSON takes two characters for a quotation mark
        then = ""
    for oldest in _flow_cookies(request)[: -MAX_FLOWS + 1]:
        request.new_cookies.set(oldest, "", max_age=0)
    flow = Flow(state, nonce, verifier, service.now().timestamp(), then, sign_in.settings.name, links)
    key = service.store.signing_key(KEY)
    name = _flow_cookie(request.settings, state)
    max_age = int(STATE_LIFETIME.total_seconds())
    request.new_cookies.set(name, sign(key, PURPOSE, flow.written()), max_age=max_age)
    return url


_CALLBACK = Operation(
    "oauthCallback",
    SIGNING_IN,
    None,
    query=CallbackQuery,
    redirect="Signed in, or to `auth.oauth.errorRedirect` with an `error`.",
    sets_cookie="The new session.",
)


@_CALLBACK
def callback(request: Request, service: Service) -> Response:
    """Come back from the identity provider. Its path is `auth.oauth.callbackUrl`."""
    sign_in = _called_back(request, service)
    request.log_fields["provider"] = sign_in.settings.name
    request.errors_to = sign_in.settings.error_redirect
    query = CallbackQuery(request.query)
    state = query.state or ""
    name = _flow_cookie(request.settings, state)
    elsewhere = request.settings.loopback_url
    if elsewhere is not None and _began_at(elsewhere, request, name):
        return redirect_to(f"{elsewhere}{request.path}?{request.environ['QUERY_STRING']}")
    flow = _flow(request, service, state, name)
    request.new_cookies.set(name, "", max_age=0)  # also if the sign-in fails
    if flow.links is not None:
        request.links, request.errors_to = True, ACCOUNT
    if flow.provider != sign_in.settings.name:
        raise refused(f"this sign-in began at {flow.provider}, and comes back from {sign_in.settings.name}")
    if query.error or not query.code:
        detail = CANCELLED if query.error == "access_denied" else None
        error = query.error or "nothing"
        raise refused_by_provider("the provider says", error, query.error_description, detail=detail)
    fetch_profile = partial(
        sign_in.fetch_profile,
        code=query.code,
        verifier=flow.verifier,
        nonce=flow.nonce,
        issuer=query.iss,
    )
    if flow.links is not None:
        return _link(request, service, sign_in, flow, fetch_profile)
    with sign_in.place():
        signed_in = sign_in.once(state, partial(_sign_in, request, service, sign_in, fetch_profile))
    request.user = signed_in.user
    then = flow.then or sign_in.settings.success_redirect
    opened = unless_pending(request, signed_in)
    if opened is None:
        return redirect_to(f"{SECOND_STEP}?{urlencode({'redirect': then})}")
    set_session_cookie(request, service, opened)
    return redirect_to(then)


@_CALLBACK.but(name="oauthCallbackOfProvider")
def callback_of(request: Request, service: Service) -> Response:
    """Come back from a provider of `auth.providers`. Its path is `auth.oauth.callbackUrl`, a slash and the name of the
    provider, or the `callbackUrl` of the provider. It ends also what `POST /api/users/me/identities/NAME` began."""
    return callback(request, service)


def _sign_in(
    request: Request, service: Service, sign_in: "OAuthSignIn", fetch_profile: "Callable[[], Profile]"
) -> "Opened | Pending":
    profile = fetch_profile()
    open_session = partial(
        service.sessions.open_in,
        remember=True,
        client=request.client,
        auth_time=profile.auth_time,
        amr=profile.amr,
        opened_with=PROVIDER + sign_in.settings.name,
        is_enough=sign_in.settings.trusts_factors,
    )
    return sign_in.user_for(profile, then=open_session, by=request.actor)


def _link(
    request: Request,
    service: Service,
    sign_in: "OAuthSignIn",
    flow: Flow,
    fetch_profile: "Callable[[], Profile]",
) -> Response:
    """Links the account of the provider to the account whose session asked for it, in the same browser."""
    identify(request, service)
    session = request.session
    if session is None or session.user_id != flow.links or session.kind == TokenKind.API:
        raise refused("the session that asked for this link has ended")
    with sign_in.place():
        sign_in.once(flow.state, lambda: sign_in.link(session.user_id, fetch_profile(), by=request.actor))
    request.log_fields["linked"] = sign_in.settings.name
    return redirect_to(f"{ACCOUNT}?{urlencode({'linked': sign_in.settings.name})}")


def failure(page: str, code: str) -> Response:
    """To this error page, with `error=` replaced in its address and all else kept."""
    parts = urlsplit(page)
    # Split by hand, because parsing and encoding again could change the operator's own parameters.
    kept = [pair for pair in parts.query.split("&") if pair and pair.partition("=")[0] != "error"]
    query = "&".join([*kept, urlencode({"error": code})])
    return redirect_to(urlunsplit(parts._replace(query=query)))


def _configured(service: Service, name: str) -> "OAuthSignIn":
    sign_in = service.sign_ins.get(name)
    if sign_in is None:
        raise SignInRefused(NOT_CONFIGURED, "no such provider")
    if not sign_in.settings.is_complete:
        raise SignInRefused(NOT_CONFIGURED, "client id or secret is missing")
    return sign_in


def _called_back(request: Request, service: Service) -> "OAuthSignIn":
    """The sign-in through the provider whose callback this path is."""
    callbacks = {each.callback_url: each.name for each in request.settings.described_providers}
    return _configured(service, callbacks.get(request.path or "", ""))


def _flow(request: Request, service: Service, state: str, name: str) -> Flow:
    """What this browser's cookie holds of the sign-in that it began with this state, in the last ten minutes."""
    from usersctl.oauth.sign_in import STATE_LIFETIME

    key = service.store.signing_key(KEY)
    for value in request.cookies(name, _VALUE):
        text = verified(key, PURPOSE, value)
        if text is None:
            continue
        flow = Flow.read(text)
        age = timedelta(seconds=service.now().timestamp() - flow.began)
        if (
            hmac.compare_digest(flow.state.encode(), state.encode())
            and -CLOCKS_DIFFER <= age <= STATE_LIFETIME
        ):
            return flow
    raise refused("this browser began no sign-in with this state, or too long ago")


def _began_at(loopback_url: str, request: Request, name: str) -> bool:
    """Whether a sign-in that comes back to localhost may have begun at the other name of this machine, where its cookie is."""
    is_here = loopback_url.endswith(f"//{request.environ.get('HTTP_HOST', '')}")
    return not is_here and not request.cookies(name, _VALUE)


def _flow_cookies(request: Request) -> list[str]:
    """The names of the cookies of waiting sign-ins, the oldest first, as browsers send them."""
    header: str = request.environ.get("HTTP_COOKIE", "")
    return re.findall(rf"(?:^|;)[ \t]*({request.settings.cookie(FLOW_COOKIE)}[0-9a-f]{{16}})=", header)


def _flow_cookie(settings: Settings, state: str) -> str:
    """One name for each state, so that two tabs do not overwrite each other's."""
    return settings.cookie(f"{FLOW_COOKIE}{digest(state).hex()[:16]}")
