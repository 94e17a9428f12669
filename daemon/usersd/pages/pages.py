"""The pages: thin clients of the JSON API, from templates, one style sheet and one script of our own."""

import json
import re
from collections.abc import Sequence
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlsplit

import bottle

from usersctl.colours import BLACK, WHITE, made_readable, readable_on
from usersctl.config import Settings
from usersctl.errors import ConfigError, NotFound
from usersctl.passwords import MAX_BYTES
from usersctl.service import Service
from usersd.access import is_api, is_at_this_machine, own_path, wants_a_page
from usersd.inputs import Query, optional
from usersd.openapi.operation import PAGES, Operation, page
from usersd.openapi.schemas import TOKEN, string
from usersd.paths import REGISTRATION
from usersd.request import Request
from usersd.response import ALWAYS, JSON, PAGE, Response

_HERE = Path(__file__).parent
_CSS, _JS = "text/css; charset=utf-8", "text/javascript; charset=utf-8"
_IMAGES = {".svg": "image/svg+xml", ".png": "image/png", ".jpg": "image/jpeg", ".webp": "image/webp"}
MOST_BYTES = 512 * 1024  # of what an operator adds
LOGIN = "/login"
OAUTH = "/api/users/auth/oauth/redirect"

# What the script says on each page beside what stands in the template: of the catalogue's keys and of the refusals that
# the server may answer with there, how they begin.
_ANYWHERE = ("say.", "Cross-site", "The service is closed")
_RESEND = ("Account is", "Authentication", "Email is required", "Registration is closed")
_PERSON = ("Email is already", "Invalid email format", "Name must")
_NEW_PASSWORD = ("hint.", "Password ")
_LINK = ("Invalid or expired link", "Token")
_FOR_SCRIPT: dict[str, tuple[str, ...]] = {
    "login": ("hint.", "Email and", "Invalid email or", *_RESEND),
    "register": ("Email, name", *_PERSON, *_NEW_PASSWORD, *_RESEND),
    "confirm_email": ("Invalid or expired confirmation", "Token and", *_RESEND),
    "forgot_password": ("Email is required",),
    "reset_password": (*_LINK, *_NEW_PASSWORD),
    "not_me": _LINK,
    "setup": (*_LINK, *_PERSON, *_NEW_PASSWORD),
    "profile": (
        *("profile.here", "profile.last-used", "profile.end", "users.never"),
        *("Current password", "Email is required", "New password", "Session not", "User not"),
        *_PERSON,
        *_NEW_PASSWORD,
    ),
    "users": (
        *("nav.profile", "role.", "users.active", "users.inactive", "users.never", "users.last-login"),
        *("users.manage", "users.activate", "users.deactivate", "users.none", "users.page"),
        *("users.did.activate", "users.did.deactivate", "users.did.end", "users.did.delete"),
        *("Admin access", "Email, name", "The last active admin", "User not", "You cannot"),
        *_PERSON,
        *_NEW_PASSWORD,
    ),
}


# --- the pages ---


class LoginQuery(Query):
    redirect = optional(string("/users"), "Where to go afterwards: a path of this site.")
    error = optional(string("oauth_failed"), "Why a sign-in through the provider failed.")


@page("Sign in", query=LoginQuery)
def login(request: Request, service: Service) -> Response:
    query = LoginQuery.read(request, strict=False)
    then = own_path(query.redirect)
    if urlsplit(then).path == LOGIN:
        then = ""  # whoever has signed in would only come back here
    return _page(
        request,
        "login",
        command=service.first_admin.command if service.first_admin.needed() else None,
        closed=service.lockdown.state() is not None,
        open=REGISTRATION in request.settings.whitelist,
        then=then,
        onward=f"?{urlencode({'redirect': then})}" if then else "",
        provider=OAUTH,
        has_provider=request.settings.has_provider,
        error=catalogue(request.settings.locale).get(f"oauth.{query.error}"),
    )


CLOSED = {403: "Registration is closed."}
HTML_403 = frozenset({403})


@page("Create an account", refusals=CLOSED, html_refusals=HTML_403)
def register(request: Request, _service: Service) -> Response:
    return _page(request, "register")


@page("Where the confirmation email leads", refusals=CLOSED, html_refusals=HTML_403)
def confirm_email(request: Request, _service: Service) -> Response:
    return _page(request, "confirm_email")


@page("Ask for a reset email")
def forgot_password(request: Request, _service: Service) -> Response:
    return _page(request, "forgot_password")


@page("Where the reset email leads")
def reset_password(request: Request, _service: Service) -> Response:
    return _page(request, "reset_password")


@page("Where the link of a notice leads")
def not_me(request: Request, _service: Service) -> Response:
    return _page(request, "not_me")


class SetupQuery(Query):
    token = optional(TOKEN, "From the set-up link.")


@page("The first admin, with the set-up link", query=SetupQuery)
def setup(request: Request, service: Service) -> Response:
    opens = service.first_admin.opens(SetupQuery.read(request, strict=False).token or "")
    return _page(
        request,
        "setup",
        needed=service.first_admin.needed(),
        opens=opens,
        command=service.first_admin.command,
    )


@page("Your profile, password and sessions")
def profile(request: Request, service: Service) -> Response:
    has_password = service.recovery.has_password(request.signed_in.id)
    return _page(request, "profile", width="middle", has_password=has_password)


@page("User management", refusals={403: "For admins only."}, html_refusals=HTML_403)
def users(request: Request, _service: Service) -> Response:
    return _page(request, "users", width="wide")


def forbidden(request: Request) -> Response:
    return _refused(request, "forbidden", 403)


def instead(request: Request, answer: Response) -> Response:
    """The same refusal as a page, where a browser is about to show it: an unknown one, or registration that is closed."""
    if (
        answer.status not in (403, 404)
        or is_api(request.path)
        or not wants_a_page(request.environ, request.method)
    ):
        return answer
    if answer.headers[: len(JSON)] != JSON:
        return answer  # a page already
    refusal = _refused(request, "gone" if answer.status == 404 else "closed", answer.status)
    return refusal._replace(headers=refusal.headers + answer.headers[len(JSON) :])


def _refused(request: Request, why: str, status: int) -> Response:
    return _page(request, "refused", why=why)._replace(status=status)


def dev_mail(request: Request, service: Service) -> Response:
    # Not for a page elsewhere whose name was turned to this machine: letters open accounts.
    if not is_at_this_machine(request, request.settings.host):
        raise NotFound("Not found")
    return _page(request, "dev_mail", width="middle", letters=service.outbox.saved_emails())


def sample_provider(request: Request, *, people: Sequence[tuple[object, str]], cancel: str) -> Response:
    return _page(request, "sample_provider", people=people, cancel=cancel)


def _page(request: Request, name: str, *, width: str = "narrow", **values: object) -> Response:
    settings = request.settings
    texts = catalogue(settings.locale)
    # SimpleTemplate escapes every {{value}}.
    html = _template(name).render(
        t=texts.__getitem__,
        lang=texts["lang"],
        texts=_for_script(settings, name),
        rules=_rules(settings),
        brand=settings.brand,
        asset=lambda asset: f"/assets/{asset}?v={_version(settings, asset)}",
        has_logo=settings.logo is not None,
        is_branded=settings.accent is not None or settings.stylesheet is not None,
        user=request.user,
        here=name,
        width=width,
        **values,
    )
    return Response(200, html.encode(), PAGE)


@cache
def _template(name: str) -> bottle.SimpleTemplate:
    return bottle.SimpleTemplate(name=f"{name}.html", lookup=[str(_HERE)])


# --- what they are made of ---


@Operation(PAGES, "Style sheet, script and logo", "*/*", refusals={404: "Not found."})
def asset(request: Request, _service: Service) -> Response:
    kind, content = _asset(request.settings, request.segments["name"])
    # The address holds a digest of the content, so a browser need not ask again.
    headers = (
        ("Content-Type", kind),
        ("Cache-Control", "public, max-age=31536000, immutable"),
        *ALWAYS[1:],
        ("Content-Security-Policy", "default-src 'none'; frame-ancestors 'none'"),
    )
    return Response(200, content, headers)


@cache
def _asset(settings: Settings, name: str) -> tuple[str, bytes]:
    """Media type and content: two files of ours, and two that an operator may add."""
    if name in ("style.css", "script.js"):
        # Without indentation and comments, and line by line, so that a browser names the lines that stand in the file.
        lean = re.sub(r"^ +(//.*)?|^//.*", "", (_HERE / name).read_text("utf-8"), flags=re.MULTILINE)
        return _CSS if name == "style.css" else _JS, lean.encode()
    if name == "brand.css" and (settings.accent is not None or settings.stylesheet is not None):
        own = settings.stylesheet.read_bytes() if settings.stylesheet is not None else b""
        return _CSS, _accent(settings.accent).encode() + own
    if name == "logo" and settings.logo is not None:
        return _IMAGES[settings.logo.suffix.lower()], settings.logo.read_bytes()
    raise NotFound("Not found")


@cache
def _version(settings: Settings, name: str) -> str:
    return sha256(_asset(settings, name)[1]).hexdigest()[:12]


def _accent(colour: str | None) -> str:
    """The operator's colour, with black or white on it, and as links that can be read in light and dark."""
    if colour is None:
        return ""
    light = made_readable(colour, on="#f5f6f8", towards=BLACK)
    dark = made_readable(colour, on="#1b1f23", towards=WHITE)
    return (
        f":root {{ --accent: {colour}; --on-accent: {readable_on(colour)}; --link: {light}; }}\n"
        f"@media (prefers-color-scheme: dark) {{ :root {{ --link: {dark}; }} }}\n"
    )


# --- words ---


@cache
def catalogue(locale: str) -> dict[str, Any]:
    """A shipped one by its name, or a file. What it lacks is said in English."""
    folder = _HERE / "locales"
    english: dict[str, Any] = json.loads((folder / "en.json").read_text("utf-8"))
    shipped = {file.stem: file for file in folder.glob("*.json")}
    try:
        own = json.loads(shipped.get(locale, Path(locale)).read_text("utf-8"))
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or "not JSON"
        raise ConfigError(
            f"locale = {locale!r}: neither {' nor '.join(sorted(shipped))}, and as a file: {why}"
        ) from None
    if not isinstance(own, dict):
        raise ConfigError(f"locale = {locale!r}: must hold one JSON object with keys of en.json")
    odd = next((key for key, value in own.items() if not _fits(english.get(key), value)), None)
    if odd is not None:
        raise ConfigError(f"locale = {locale!r}: {odd!r} must be a key of en.json with a text")
    if not re.fullmatch(r"[A-Za-z]{2,3}(-[A-Za-z0-9]{2,8})*", own.get("lang", "en")):
        raise ConfigError(f"locale = {locale!r}: 'lang' must be a language such as 'de' or 'pt-BR'")
    return english | own | {"messages": english["messages"] | own.get("messages", {})}


def _fits(english: object, own: object) -> bool:
    if isinstance(english, dict):
        return isinstance(own, dict) and all(isinstance(value, str) for value in own.values())
    return isinstance(english, str) and isinstance(own, str)


@cache
def _for_script(settings: Settings, page: str) -> str:
    said = _ANYWHERE + _FOR_SCRIPT.get(page, ())
    words = catalogue(settings.locale)
    texts = {key: value for key, value in words.items() if key.startswith(said)}
    texts["messages"] = {key: value for key, value in words["messages"].items() if key.startswith(said)}
    told = json.dumps(texts | {"rules.min": settings.min_length}, ensure_ascii=False, separators=(",", ":"))
    # In a script element nothing is escaped, but "</script" would end it.
    return told.replace("<", "\\u003c")


@cache
def _rules(settings: Settings) -> list[tuple[str, str]]:
    """The rules for a new password, by the names that the script knows them by."""
    asked = {
        "length": True,
        "upper": settings.require_uppercase,
        "lower": settings.require_lowercase,
        "number": settings.require_numbers,
        "special": settings.require_special_chars,
        "common": settings.prevent_common_passwords,
        "bytes": True,
    }
    texts = catalogue(settings.locale)
    words = {"{n}": str(settings.min_length), "{most}": str(MAX_BYTES)}
    return [(rule, _filled(texts[f"rules.{rule}"], words)) for rule, applies in asked.items() if applies]


def _filled(text: str, words: dict[str, str]) -> str:
    for name, value in words.items():
        text = text.replace(name, value)
    return text


def check(settings: Settings) -> None:
    """What an operator adds is read at the start, so that a slip shows then."""
    catalogue(settings.locale)
    if settings.logo is not None and settings.logo.suffix.lower() not in _IMAGES:
        raise ConfigError(f"branding.logo = {settings.logo}: must be one of {', '.join(_IMAGES)}")
    for key, file in (("branding.logo", settings.logo), ("branding.stylesheet", settings.stylesheet)):
        if file is None:
            continue
        try:
            size = len(file.read_bytes())
        except OSError as error:
            raise ConfigError(f"{key} = {file}: cannot be read: {error.strerror}") from None
        if size > MOST_BYTES:
            raise ConfigError(f"{key} = {file}: must be a file of at most {MOST_BYTES // 1024} KiB")
