"""Sign-in through the identity provider: there, and back. Every failure ends at the configured page with one code."""

import base64
import hmac
import json
import re
from typing import Any
from urllib.parse import urlencode, urlsplit, urlunsplit

from usersctl.config import Settings
from usersctl.errors import SignInRefused
from usersctl.oauth.refusals import NOT_CONFIGURED, refused
from usersctl.oauth.sign_in import STATE_LIFETIME
from usersctl.secrets import challenge_of, digest, new_token
from usersctl.service import Service
from usersd.access import own_path
from usersd.cookies import cookie_values
from usersd.handlers.session import session_cookie
from usersd.request import Request
from usersd.response import Header, Response, redirect_to

LONGEST = 1000  # of a page to go to afterwards: it has to fit into a cookie
MOST_FLOWS = 5  # that may wait in one browser; a header full of them would be refused

_VALUE = re.compile(r"[A-Za-z0-9_-]{1,4000}", re.ASCII)
_VERIFIER = re.compile(r"[A-Za-z0-9_-]{43}", re.ASCII)


def redirect(request: Request, service: Service) -> Response:
    """To the provider. What must come back waits in a cookie of this browser, one for each flow."""
    if not request.settings.has_provider:
        raise SignInRefused(NOT_CONFIGURED, "client id or secret is missing")
    state, verifier = new_token(), new_token()
    url = service.oauth.authorization_url(state=state, challenge=challenge_of(verifier))
    then = own_path(request.unchecked_query("redirect"))
    waits = {
        "state": state,
        "verifier": verifier,
        "began": service.now().timestamp(),
        "then": then if len(then) <= LONGEST else "",
    }
    for name in _flows(request)[: -MOST_FLOWS + 1]:
        request.response_headers.append(_cookie(request.settings, name, "", 0))
    value = base64.urlsafe_b64encode(json.dumps(waits).encode()).decode().rstrip("=")
    return redirect_to(
        url,
        _cookie(
            request.settings,
            _cookie_name(request.settings, state),
            value,
            int(STATE_LIFETIME.total_seconds()),
        ),
    )


def callback(request: Request, service: Service) -> Response:
    """From the provider. The cookie goes, whatever comes of it."""
    if not request.settings.has_provider:
        raise SignInRefused(NOT_CONFIGURED, "client id or secret is missing")
    told = request.query  # a parameter that comes twice is refused there
    state = told.get("state", "")
    waits = _waiting(request, service, state)
    request.response_headers.append(_cookie(request.settings, _cookie_name(request.settings, state), "", 0))
    if told.get("error") or not told.get("code"):
        raise refused(f"the provider says {told.get('error', 'nothing')[:100]!r}")
    profile = service.oauth.fetch_profile(
        code=told["code"],
        verifier=waits["verifier"],
        issuer=told.get("iss"),
    )
    # After the provider took the code: whoever makes up states must not make us write.
    service.oauth.spend(state)
    user = service.oauth.user_for(profile, by=request.actor)
    opened = service.sessions.open(
        user, remember=True, ip=request.ip, user_agent=request.user_agent, replaces=request.cookie_tokens
    )
    request.user = opened.user
    target = waits["then"] or request.settings.oauth_success_redirect
    return redirect_to(target, session_cookie(request, opened.token, remember=True))


def failure(settings: Settings, code: str) -> Response:
    """The error page of the configuration, with this one `error=`; whatever else stands in its address stays."""
    parts = urlsplit(settings.oauth_error_redirect)
    # Taken apart by hand, so that what we did not write is not written anew.
    kept = [pair for pair in parts.query.split("&") if pair and pair.partition("=")[0] != "error"]
    query = "&".join([*kept, urlencode({"error": code})])
    return redirect_to(urlunsplit(parts._replace(query=query)))


def _waiting(request: Request, service: Service, state: str) -> dict[str, Any]:
    """What this browser was given when it set out with this state, in the last ten minutes."""
    header = request.environ.get("HTTP_COOKIE", "")
    values = cookie_values(header, _cookie_name(request.settings, state), _VALUE) if state else []
    for value in values:
        try:
            waits = json.loads(base64.urlsafe_b64decode(value + "=" * (-len(value) % 4)))
            same = hmac.compare_digest(waits["state"].encode(), state.encode())
            age = service.now().timestamp() - waits["began"]
            known = _VERIFIER.fullmatch(waits["verifier"]) and waits["then"] == own_path(waits["then"])
        except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError):
            continue
        if same and known and 0 <= age <= STATE_LIFETIME.total_seconds():
            found: dict[str, Any] = waits
            return found
    raise refused("this browser did not set out with this state, or too long ago")


def _flows(request: Request) -> list[str]:
    """The names of the cookies that wait, the oldest first, as browsers send them."""
    header: str = request.environ.get("HTTP_COOKIE", "")
    return re.findall(rf"(?:^|;)[ \t]*({_prefix(request.settings)}[0-9a-f]{{16}})=", header)


def _cookie_name(settings: Settings, state: str) -> str:
    """A name for each flow, so that two tabs do not take each other's."""
    return _prefix(settings) + digest(state).hex()[:16]


def _prefix(settings: Settings) -> str:
    return f"{'__Host-' if settings.https else ''}oauth_"


def _cookie(settings: Settings, name: str, value: str, max_age: int) -> Header:
    secure = "; Secure" if settings.https else ""
    return "Set-Cookie", f"{name}={value}; Path=/; HttpOnly; SameSite=Lax; Max-Age={max_age}{secure}"
