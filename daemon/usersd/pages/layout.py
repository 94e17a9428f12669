"""What all pages have in common: the layout with its navigation, in the language of the visitor; and the page of a refusal."""

from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING

from usersctl.models import Role
from usersd.access import REFUSED_AS_PAGES, shows_a_page
from usersd.pages import assets, common_passwords, languages, texts
from usersd.request import Request
from usersd.response import JSON, PAGE, Response

if TYPE_CHECKING:
    from bottle import SimpleTemplate

_FOLDER = str(Path(__file__).parent)
_REASONS = dict(zip(REFUSED_AS_PAGES, ("gone", "closed", "gone", "failed", "unavailable"), strict=True))
# Names of templates, which are also those of their texts (nav.NAME).
NAVIGATION = (("profile", "/account"),)
FOR_ADMINS = (
    ("users", "/users"),
    ("groups", "/users/groups"),
    ("overview", "/overview"),
    ("audit", "/audit"),
    *NAVIGATION,
)


def page(request: Request, name: str, *, width: str = "narrow", here: str = "", **values: object) -> Response:
    """`here`: the page of the navigation that this one belongs to, if it is not itself in the navigation."""
    settings, words = request.settings, words_for(request)
    language = words["lang"]
    # SimpleTemplate escapes every {{value}}.
    html = _template(name).render(
        t=words.__getitem__,
        lang=language,
        direction=languages.direction(language),
        rules=texts.password_rules(settings, words),
        min_length=settings.min_length,
        common=assets.address(settings, common_passwords.NAME) if settings.prevent_common_passwords else None,
        brand=settings.brand,
        asset=partial(assets.address, settings),
        script=assets.script_of(name),
        has_logo=settings.logo is not None,
        is_trial=settings.is_trial,
        grace=settings.deletion_grace,
        days=partial(texts.days, words),
        label_of=partial(texts.label_of, words),
        is_branded=assets.is_branded(settings),
        user=request.user,
        here=here or name,
        navigation=FOR_ADMINS if request.user and request.user.role == Role.ADMIN else NAVIGATION,
        width=width,
        n=partial(languages.number, language),
        **values,
    )
    headers = (*PAGE, ("Content-Language", language), ("Vary", "Accept-Language"))
    return Response(200, html.encode(), headers)


def words_for(request: Request) -> texts.Words:
    return texts.words_for(request.settings, request.environ.get("HTTP_ACCEPT_LANGUAGE", ""))


@cache
def _template(name: str) -> "SimpleTemplate":
    from bottle import SimpleTemplate  # late, because the OpenAPI document needs none

    return SimpleTemplate(name=f"{name}.html", lookup=[_FOLDER])


def forbidden(request: Request, why: str = "forbidden") -> Response:
    return refused(request, why, 403)


def instead(request: Request, answer: Response) -> Response:
    """Turns a JSON 400, 403, 404, 500 or 503 into a page if a browser is about to show it; returns any other answer unchanged."""
    reason = _REASONS.get(answer.status)
    if reason is None or answer.headers[: len(JSON)] != JSON or not shows_a_page(request):
        return answer
    try:
        refusal = refused(request, reason, answer.status)
    except Exception:
        if answer.status == 500:  # what failed may be the same here
            return answer
        raise
    return refusal._replace(headers=refusal.headers + answer.headers[len(JSON) :])


def refused(request: Request, why: str, status: int, *, trail: str = "") -> Response:
    return page(request, "refused", why=why, trail=trail)._replace(status=status)
