"""Forward authentication: a proxy in front of another application asks for each request whether to let it in."""

import re
from collections.abc import Iterator
from functools import lru_cache
from urllib.parse import quote, unquote_to_bytes

from usersctl.errors import Invalid, NotFound
from usersctl.identity_headers import ASSERTION
from usersctl.models import Method, TokenKind
from usersctl.named import NamedTuple
from usersctl.secrets import assertion
from usersctl.service import Service
from usersd.access import (
    ENROLMENT,
    SECOND_STEP,
    drop_without_factor,
    drop_without_scope,
    identify,
    own_path,
    wants_a_page,
)
from usersd.cookies import without_ours
from usersd.inputs import Query, choice, group_name
from usersd.openapi.operation import SERVICE, Operation
from usersd.openapi.schemas import ROLE, model, string
from usersd.page_access import PageAccess
from usersd.pages import layout
from usersd.request import ORIGINAL, Request
from usersd.response import CHALLENGE, JSON, Header, Response, WrongCredentials, error_response, redirect_to

ASSERTION_SECONDS = 60  # a proxy passes it on at once, but clocks differ
MAX_TARGET = 2000  # characters of a page to come back to: a proxy limits the length of a header
_INSUFFICIENT = 'Bearer error="insufficient_user_authentication"'  # RFC 9470

_HOST = re.compile(r"(?:[\w.-]+|\[[\da-fA-F:.]+\])(?::\d+)?", re.ASCII)
# The target of a request line, with or without scheme and host. No browser sends # or \ in it.
_TARGET = re.compile(
    rf"""(?:https?://(?P<host>{_HOST.pattern}))?(?P<target>/[!"$-\[\]-~\x80-\xff]*)""", re.ASCII
)
_METHOD = re.compile(r"[A-Z]+", re.ASCII)
_ANYTHING = re.compile(r".+")
_ENCODED_SLASH = re.compile(r"%(2f|5c)", re.IGNORECASE)
_FIELD_VALUE = re.compile(r"[\t -~\x80-\xff]+")
_WORD = re.compile(r"[^\s,;=\"]+")
_LIKE_A_TOKEN = re.compile(r"[A-Za-z0-9_-]{40,128}")
_READABLE = "".join(map(chr, range(0x20, 0x7F))).replace("%", "")

# Older browsers send no Sec-Fetch-Mode, but Referer, Origin, or what their scripts add.
_OF_BROWSERS = ("HTTP_SEC_FETCH_MODE", "HTTP_REFERER", "HTTP_ORIGIN", "HTTP_X_REQUESTED_WITH")


class Original(NamedTuple):
    """The request that the proxy asks about: only what its headers agree on."""

    method: str | None = None
    host: str | None = None
    target: str | None = None  # as it was written
    path: str | None = None  # of the target, decoded once


UNKNOWN_PAGE = Original()


class VerifyQuery(Query):
    role = choice(ROLE, "The role that is needed.")
    group = group_name("The group that is needed.")
    factors = choice(string("2", enum=["2"]), "The session needs two factors, or a passkey.")


_PARAMETERS = {field.name for field in VerifyQuery.fields}


@Operation(
    "verify",
    SERVICE,
    model("LetIn", {}),
    query=VerifyQuery,
    takes_session=True,
    redirect="A browser without a session is sent to `/login`, one whose session lacks a second factor to `/second-factor`, one of a user who must add one first to `/account`; and back.",
    refusals={
        401: "Not signed in, or without the second factor that is needed. `Location` is the page of this service that asks for it. With `forward.basic`, clients other than browsers are asked for Basic credentials: an email and an API token.",
        403: "The role does not suffice, the user is not in the group, or the token lacks the scope `verify`; or the user must add a second factor first, at the `Location`.",
    },
    html_refusals=frozenset({403}),
    refusal_headers={
        403: {
            "Location": ("If a second factor must be added first: where.", string("/account?redirect=/")),
            "WWW-Authenticate": ("The same, for programs.", string(_INSUFFICIENT)),
        }
    },
    headers={
        "Remote-Assertion": "Id, address, name, role, groups and proofs, signed, if `auth.assertionSecret` is set."
    },
    optional_headers={
        "Remote-User": "The user's id; empty, like all of these, without a session. `forward.headers` gives them other names.",
        "Remote-Email": "The address.",
        "Remote-Name": "The name; characters outside of ASCII as percent-encoded UTF-8.",
        "Remote-Role": "The role.",
        "Remote-Groups": "The groups, separated by commas.",
        "Remote-Auth": "What the session was opened with, separated by blanks: `pwd`, `otp`, `recovery`, `passkey`, `device`, `provider:NAME`; `token` for an API token.",
        "Cookie": "The `Cookie` of the request without those of this service, for the application.",
        "Authorization": "That of the request, for the application, unless it has a token of this service, or what may be one with a typing mistake.",
    },
)
def verify(request: Request, service: Service) -> Response:
    """Forward authentication. For a proxy in front of another application: whether to let the request that it holds in. The URL of that request is taken from `X-Original-URL` or `X-Forwarded-Uri`, from trusted proxies only."""
    if _is_spelled_otherwise(request):
        raise NotFound("Not found")
    asked = _asked(request.query)
    identify(request, service, renews=False, groups=True)  # a proxy drops our cookies
    is_wrong = _signs_in_wrongly(request, service)
    scope_refusal = drop_without_scope(request)
    factor_page = drop_without_factor(request)
    settings = request.settings
    original = UNKNOWN_PAGE
    # A signed-in user may see every page, unless a rule or an assertion depends on which page it is.
    is_judged = request.user is None or asked or settings.role_rules or settings.factor_rules
    if (is_judged or settings.assertion_secret) and request.is_from_trusted_proxy:
        original = _original(*map(request.environ.get, (*ORIGINAL, "HTTP_HOST")))
    if not is_judged:
        return _let_in(request, service, original)
    pages_access = PageAccess.of(settings)
    verdict = pages_access.verdict(request.user, original.path, request.session, **asked)
    if request.user is None and _ENCODED_SLASH.search((original.target or "").partition("?")[0]):
        verdict = 401  # an application that decodes it differently from the whitelist sees another path
    if verdict == 200:
        return _let_in(request, service, original)
    if verdict == 403:
        refusal = pages_access.refusal(request.user, original.path, **asked)
        if _is_page(request, original):
            return layout.forbidden(request, refusal.page)
        return error_response(403, refusal.message)
    refused = scope_refusal or _missing_factor(request, original, factor_page)
    if refused is not None:
        return refused
    response = _sign_in_first(request, original)
    if is_wrong:
        raise WrongCredentials(response)
    return response


def _let_in(request: Request, service: Service, original: Original) -> Response:
    return Response(
        200, b"{}", (*JSON, *_identity(request, service, original), *_passed_on(request, service))
    )


def _asked(query: dict[str, str]) -> dict[str, str]:
    """A parameter that is not known may be one with a typing mistake, which would let in everybody."""
    if not query:
        return {}
    if not query.keys() <= _PARAMETERS:
        known = ", ".join(sorted(_PARAMETERS))
        raise Invalid(f"verify takes {known} only; for Caddy, its address ends with a ?")
    return {name: value for name, value in vars(VerifyQuery(query)).items() if value is not None}


def _is_spelled_otherwise(request: Request) -> bool:
    """Proxies keep visitors from this address, and some compare it as it is written: to them %2F is no slash, and // is two."""
    written: str = request.environ.get("REQUEST_URI") or request.environ.get("RAW_URI", "")
    path = written.partition("?")[0]
    return "%" in path or path.startswith("//")


def _is_page(request: Request, original: Original) -> bool:
    return wants_a_page(request.environ, original.method or request.method)


def _sign_in_first(request: Request, original: Original) -> Response:
    login = "/login" + _and_back(original.target)
    if _is_page(request, original):
        return redirect_to(login)
    return error_response(401, "Authentication required", ("Location", login), _challenge(request))


def _missing_factor(request: Request, original: Original, factor_page: str) -> Response | None:
    if factor_page == ENROLMENT:
        return _second_factor_first(request, original, 403, ENROLMENT)
    if factor_page or request.user is not None:
        return _second_factor_first(request, original, 401, SECOND_STEP)
    return None


def _second_factor_first(request: Request, original: Original, status: int, page: str) -> Response:
    """A page of ours asks for it, or is where the user adds one. An API token cannot get one."""
    way = page + _and_back(original.target)
    if _is_page(request, original):
        return redirect_to(way)
    return error_response(status, "Second factor required", ("Location", way), (CHALLENGE, _INSUFFICIENT))


def _signs_in_wrongly(request: Request, service: Service) -> bool:
    """Signs in by Basic credentials, an email and an API token, if the configuration allows that. True if they are wrong,
    for the same work."""
    if not request.settings.forward_basic or request.basic is None:
        return False
    email, token = request.basic
    known = service.sessions.check(
        token, renews=False, nonblocking=request.nonblocking, groups=True, caller=request
    )
    address = email.strip().lower()  # as it is stored: the look-up of a login would take longer for odd ones
    if known is None:
        return True
    session, user = known
    if session.kind != TokenKind.API or address not in (user.email, user.claimed_email):
        return True
    request.session, request.user, request.token, request.by_cookie = session, user, token, False
    return False


def _challenge(request: Request) -> Header:
    """Basic is for clients that are no browsers: a browser would ask its user for a password."""
    if request.settings.forward_basic and not any(name in request.environ for name in _OF_BROWSERS):
        return CHALLENGE, f'Basic realm="{request.settings.base_url}", charset="UTF-8"'
    return CHALLENGE, "Bearer"


@lru_cache(maxsize=256)  # most requests are for a few pages
def _original(*headers: str | None) -> Original:
    """If two headers for one thing differ, one is the client's own, and neither is believed."""
    urls, methods, (forwarded_host, host) = headers[:2], headers[2:4], headers[4:]
    matches = [_TARGET.fullmatch(url) for url in urls if url is not None]
    hosts = [match["host"] for match in matches if match and match["host"]]
    if forwarded_host is not None:
        hosts.append(forwarded_host)
    elif not hosts and host is not None:
        hosts.append(host)
    target = _agreed([match["target"] if match else "" for match in matches], _ANYTHING)
    return Original(
        _agreed([method for method in methods if method is not None], _METHOD),
        _agreed([host.lower() for host in hosts], _HOST),
        target,
        _path_of(target),
    )


def _agreed(values: list[str], pattern: re.Pattern[str]) -> str | None:
    """The one value that all headers have, if it fits the pattern."""
    if len(set(values)) == 1 and pattern.fullmatch(values[0]):
        return values[0]
    return None


def _path_of(target: str | None) -> str | None:
    """The decoded path; None if it is not UTF-8."""
    if not target:
        return None
    try:
        return unquote_to_bytes(target.partition("?")[0].encode("latin-1")).decode()
    except UnicodeError:
        return None


def _and_back(target: str | None) -> str:
    if target is None:
        return ""
    target = quote(target.encode("latin-1"), safe=_READABLE + "%")  # as a browser would send it
    if not own_path(target) or len(target) > MAX_TARGET:
        return ""
    return "?redirect=" + quote(target, safe="/")


def _identity(request: Request, service: Service, original: Original) -> list[Header]:
    """All headers, always: if one is missing, some proxies pass on what the client sent under its name."""
    user, names = request.user, request.settings.forward_headers
    if user is None:
        return [*[(name, "") for name, _ in names], (ASSERTION, "")]
    values = {
        "id": str(user.id),
        "email": _as_ascii(user.email),
        "name": _as_ascii(user.name),
        "role": user.role,
        "groups": ",".join(user.groups),
        "auth": request.session.proofs if request.session else "",
    }
    signed = ""
    secret = request.settings.assertion_secret
    if secret and original.method and original.host and original.path:
        until = int(service.now().timestamp()) + ASSERTION_SECONDS
        of = (*_signed(dict(values), names), original.method, original.host, original.path)
        signed = assertion(secret, until=until, of=of)
    return [*[(name, values[kind]) for name, kind in names], (ASSERTION, signed)]


def _signed(values: dict[str, str], names: tuple[Header, ...]) -> Iterator[str]:
    """What the assertion covers, line by line. Groups have a line if there are some, and the proofs if they are more than a
    password, each only if its header is sent: so applications that know neither can check the rest. No line can be taken
    for another one."""
    groups, proofs = values.pop("groups"), values.pop("auth")
    yield from values.values()
    sent = {kind for _, kind in names}
    if groups and "groups" in sent:
        yield groups
    if proofs not in ("", Method.PASSWORD) and "auth" in sent:
        yield f"auth={proofs}"


def _passed_on(request: Request, service: Service) -> list[Header]:
    """What the application gets of the headers that sign people in: what is not ours. For the proxy only, because a script
    could read cookies here that browsers keep from it."""
    if not request.is_from_trusted_proxy:
        return []
    passed_on = []
    cookie = without_ours(request.environ.get("HTTP_COOKIE", ""), request.settings.cookie_name)
    if cookie and _FIELD_VALUE.fullmatch(cookie):
        passed_on.append(("Cookie", cookie))
    authorization: str = request.environ.get("HTTP_AUTHORIZATION", "")
    if authorization and _FIELD_VALUE.fullmatch(authorization) and not _is_token_of_ours(request, service):
        passed_on.append(("Authorization", authorization))
    return passed_on


def _is_token_of_ours(request: Request, service: Service) -> bool:
    if request.session is not None and not request.by_cookie:
        return True
    # Wherever it stands: some clients send it as the user, or after a tab.
    words = [*_WORD.findall(request.environ["HTTP_AUTHORIZATION"])[:4], *(request.basic or ())]
    return any(service.sessions.is_ours(word) for word in words if _LIKE_A_TOKEN.fullmatch(word))


def _as_ascii(text: str) -> str:
    """Printable ASCII as it is, and anything else as percent-encoded UTF-8."""
    if text.isascii() and text.isprintable() and "%" not in text:
        return text
    return quote(text, safe=_READABLE)
