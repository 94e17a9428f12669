"""The handlers of the pages, which are thin clients of the JSON API."""

from collections.abc import Callable
from typing import Any
from urllib.parse import urlencode, urlsplit

from usersctl.service import Service
from usersd.access import own_path
from usersd.assurance import has_two_factors
from usersd.inputs import Query, number, optional
from usersd.openapi.operation import HTML, PAGES, Operation
from usersd.openapi.schemas import EMAIL, GROUP_NAME, TOKEN, integer, string
from usersd.page_access import REGISTRATION
from usersd.pages import assets, audit_page, factors_page, layout, overview_page, user_page
from usersd.pages.ways import proofs, ways_to
from usersd.request import Request
from usersd.response import ALWAYS, NO_PAGE, Response, redirect_to

LOGIN = "/login"
GROUPS_SHOWN = 200  # in the table of users, so that the page stays small
GROUPS = 30  # on a page


class Onward(Query):
    redirect = optional(string("/users"), "Where to go afterwards: a path of this site.")


class LoginQuery(Onward):
    error = optional(string("oauth_failed"), "Why a sign-in through the provider failed.")


def _onward(then: str) -> str:
    """The query that hands the target on to the next page."""
    return f"?{urlencode({'redirect': then})}" if then else ""


@Operation("loginPage", PAGES, HTML, query=LoginQuery)
def login(request: Request, service: Service) -> Response:
    """Sign in."""
    query = LoginQuery.lenient(request)
    then = own_path(query.redirect)
    if urlsplit(then).path.rstrip("/") == LOGIN:
        then = ""  # a sign-in that leads to the sign-in page would show it again
    ways = ways_to(request.settings.providers, then)
    words = layout.words_for(request)
    detail = request.take_reason() if query.error else ""
    return layout.page(
        request,
        "login",
        command=service.first_admin.command if service.first_admin.needed() else None,
        closed=service.lockdown.state() is not None,
        open=REGISTRATION in request.settings.whitelist,
        then=then,
        onward=_onward(then),
        ways=ways,
        error=_why_refused(words, query.error, detail),
        awaits=detail == "awaiting-confirmation",
        rp_id=request.settings.rp_id,
    )


def _why_refused(words: dict[str, Any], error: str | None, detail: str) -> str | None:
    """Why a sign-in through a provider was refused. An error that no text is for is none of ours."""
    return words.get(f"oauth.{error}.{detail}", words.get(f"oauth.{error}"))


@Operation("logoutPage", PAGES, HTML, query=Onward)
def logout(request: Request, _service: Service) -> Response:
    """Sign out. The button of this page sends a form to the same address."""
    then = own_path(Onward.lenient(request).redirect)
    return layout.page(request, "logout", then=then, query=_onward(then))


@Operation(
    "secondFactorPage",
    PAGES,
    HTML,
    query=Onward,
    redirect="With a session that has two factors: to `redirect`.",
)
def second_factor(request: Request, service: Service) -> Response:
    """The second step of a sign-in. A user who is signed in with one factor proves the missing one here, and with two goes on
    to `redirect`."""
    target, settings = Onward.lenient(request).redirect, request.settings
    then, elsewhere = own_path(target), _end_of_provider(request, target)
    onward = _onward(then)
    methods = service.second_step.offered(request.pending_tokens)
    steps_up = not methods and request.user is not None
    if steps_up and has_two_factors(request.session, settings.trusted_providers):
        return redirect_to(then or elsewhere or "/")
    if elsewhere:
        then = f"{request.path}{_onward(elsewhere)}"  # the script stays on this site, and this page leads on
    if steps_up:
        methods = factors_page.factors_of(service, request.signed_in.id).methods
    return layout.page(
        request,
        "second_factor",
        here="" if steps_up else "login",
        then=then,
        onward=onward,
        steps_up=steps_up,
        methods=methods,
        api="/api/users/session/confirm" if steps_up else "/api/users/session/second-factor",
        remembers=0 if steps_up else settings.remember_factor.days,
        rp_id=settings.rp_id,
    )


def _end_of_provider(request: Request, target: str | None) -> str:
    """Where sign-ins through a provider go on, if that is another origin. The configuration names it."""
    ends = [provider.success_redirect for provider in request.settings.described_providers]
    return next((end for end in ends if end == target and not own_path(end)), "")


CLOSED = {403: "Registration is closed."}
ADMINS_ONLY = {403: "For admins only."}


_ANY_TOKEN = string(TOKEN["examples"][0])  # a page is shown with any


class EmailLinkQuery(Query):
    token = optional(_ANY_TOKEN, "From the link in the email.")
    email = optional(string(EMAIL["examples"][0]), "From the link in the email.")

    @property
    def is_whole(self) -> bool:
        return bool(self.token and self.email)


def _linked(operation: Operation, name: str, description: str) -> Callable[[Request, Service], Response]:
    """The handler of a page that an email leads to. Without the link its form could not succeed."""

    def show(request: Request, _service: Service) -> Response:
        return layout.page(request, name, has_link=EmailLinkQuery.lenient(request).is_whole)

    show.__doc__ = description
    return operation.but(query=EmailLinkQuery)(show)


@Operation("registerPage", PAGES, HTML, refusals=CLOSED)
def register(request: Request, _service: Service) -> Response:
    """Create an account."""
    # A sign-in through the others would find no account.
    providers = [each for each in request.settings.providers if each.allow_auto_registration]
    return layout.page(request, "register", ways=ways_to(providers))


confirm_email = _linked(
    Operation("confirmEmailPage", PAGES, HTML, refusals=CLOSED),
    "confirm_email",
    "Where the confirmation email leads.",
)


@Operation("forgotPasswordPage", PAGES, HTML)
def forgot_password(request: Request, _service: Service) -> Response:
    """Ask for a reset email."""
    return layout.page(request, "forgot_password")


reset_password = _linked(
    Operation("resetPasswordPage", PAGES, HTML), "reset_password", "Where the reset email leads."
)
not_me = _linked(Operation("notMePage", PAGES, HTML), "not_me", "Where the link of a notice leads.")
confirm_deletion = _linked(
    Operation("confirmDeletionPage", PAGES, HTML),
    "confirm_deletion",
    "Where the email about a deletion leads.",
)
undo_deletion = _linked(
    Operation("undoDeletionPage", PAGES, HTML), "undo_deletion", "Undo the deletion of your account."
)


@Operation("acceptInvitePage", PAGES, HTML, query=EmailLinkQuery)
def accept_invite(request: Request, service: Service) -> Response:
    """Where an invitation leads. Says what became of a dead one, and uses nothing up."""
    link = EmailLinkQuery.lenient(request)
    offer = service.invitations.look(link.token or "", link.email or "")
    name = offer.user.name if offer.user and not offer.needs_name else ""
    return layout.page(request, "accept_invite", has_link=link.is_whole, problem=offer.problem, known=name)


@Operation("confirmNewEmailPage", PAGES, HTML, query=EmailLinkQuery)
def confirm_new_email(request: Request, service: Service) -> Response:
    """Where the email to a new address leads."""
    link, user = EmailLinkQuery.lenient(request), request.user
    proof = None
    if user is not None and user.factors:
        # The link may be of another account than the one that this browser is signed in to.
        owner = service.claims.owner_of_link(link.token or "", link.email or "")
        if owner in (None, user.id):
            proof = _proof(request, service)
    return layout.page(request, "confirm_new_email", has_link=link.is_whole, proof=proof)


class SetupQuery(Query):
    token = optional(_ANY_TOKEN, "From the set-up link.")


@Operation("setupPage", PAGES, HTML, query=SetupQuery)
def setup(request: Request, service: Service) -> Response:
    """The first admin, with the set-up link."""
    first_admin = service.first_admin
    opens = first_admin.opens(SetupQuery.lenient(request).token or "")
    return layout.page(
        request, "setup", needed=first_admin.needed(), opens=opens, command=first_admin.command
    )


def _proof(request: Request, service: Service) -> dict[str, Any]:
    """How the caller proves anew who they are, in the dialog of proof.html."""
    user = request.signed_in
    return {
        "has_password": service.recovery.has_password(user.id),
        "methods": factors_page.factors_of(service, user.id).methods,
        "proofs": proofs(request, service.identities.connections(user.id)),
        "rp_id": request.settings.rp_id,
    }


class AccountQuery(Onward):
    linked = optional(string("google"), "The provider that has just been connected.")
    error = optional(string("oauth_failed"), "Why a provider could not be connected.")
    sessions = number(
        integer(user_page.OWN_SESSIONS, minimum=1, maximum=user_page.MOST),
        user_page.OWN_SESSIONS,
        "Sessions, and API tokens, to list at most; 50 if left out.",
    )


@Operation("accountPage", PAGES, HTML, query=AccountQuery)
def profile(request: Request, service: Service) -> Response:
    """Your profile, password, providers and sessions."""
    query, words = AccountQuery.lenient(request), layout.words_for(request)
    user = request.signed_in
    has_password = service.recovery.has_password(user.id)
    connections = service.identities.connections(user.id)
    linked = {one.name: one for one in connections if one.is_linked}
    then = own_path(query.redirect)
    shown = ({"redirect": then} if then else {}) | {"sessions": query.sessions}
    # A sign-in through a provider links no account with a second factor whose address is not proven, and ends nothing.
    links_at_sign_in = bool(request.settings.providers) and not linked and not user.factors
    return layout.page(
        request,
        "profile",
        width="middle",
        has_password=has_password,
        connections=connections,
        proofs=proofs(request, connections, then),
        provider=" / ".join(provider.display for provider in request.settings.providers),
        ends_password=links_at_sign_in and user.email_proven_at is None,
        **user_page.own_sessions(request, service, shown),
        **factors_page.content(request, service),
        device=user_page.device(request.user_agent or ""),
        then=then,
        ended_password=not has_password and service.identities.has_ended_password(user),
        connected=linked.get(query.linked or ""),
        error=_why_refused(words, query.error, request.take_reason() if query.error else ""),
    )


@Operation("changePasswordPage", PAGES, None, redirect="To the password on `/account`.")
def change_password(_request: Request, _service: Service) -> Response:
    """The address that password managers open on every site."""
    return redirect_to("/account#change")


@Operation("homePage", PAGES, HTML)
def home(request: Request, service: Service) -> Response:
    """The same as `/account`, where no application has `/`."""
    return profile(request, service)


@Operation("usersPage", PAGES, HTML, refusals=ADMINS_ONLY)
def users(request: Request, service: Service) -> Response:
    """User management."""
    groups = [group.name for group in service.groups.some(after="", at_most=GROUPS_SHOWN)]
    return layout.page(request, "users", width="wide", groups=groups)


class GroupsQuery(Query):
    after = optional(GROUP_NAME, "The last group of the page before this one.")


@Operation("groupsPage", PAGES, HTML, query=GroupsQuery, refusals=ADMINS_ONLY)
def groups(request: Request, service: Service) -> Response:
    """Groups. To create and delete them."""
    after = GroupsQuery.lenient(request).after or ""
    found = service.groups.some(after=after, at_most=GROUPS + 1)
    return layout.page(request, "groups", width="middle", groups=found[:GROUPS], more=len(found) > GROUPS)


class OneUserQuery(Query):
    sessions = number(
        integer(10, minimum=1, maximum=user_page.MOST), 10, "Sessions to list, at most; 10 if left out."
    )
    rows = number(
        integer(20, minimum=1, maximum=user_page.MOST),
        20,
        "Rows of the audit trail to list, at most; 20 if left out.",
    )


@Operation(
    "userPage",
    PAGES,
    HTML,
    query=OneUserQuery,
    refusals={400: "The id or the query is malformed.", 404: "User not found."} | ADMINS_ONLY,
)
def user(request: Request, service: Service) -> Response:
    """One user. Profile, what is in the way of a sign-in, sessions, identities, audit trail, and what an admin can do."""
    user_id = request.ids["id"]
    explained = service.why.explain(str(user_id))
    if explained.user is None:
        return layout.refused(request, "no-user", 404, trail=f"/audit?user={user_id}")
    query = vars(OneUserQuery(request.query))
    return layout.page(
        request,
        "user",
        width="wide",
        here="users",
        proof=_proof(request, service),
        **user_page.content(request, service, explained.user, explained.findings, query),
    )


@Operation(
    "auditPage",
    PAGES,
    HTML,
    query=audit_page.AuditPageQuery,
    refusals={400: "The query is not UTF-8, or has a name twice."} | ADMINS_ONLY,
)
def audit(request: Request, service: Service) -> Response:
    """The audit trail. With a filter in the address, the newest rows first."""
    return layout.page(request, "audit", width="wide", scripted=False, **audit_page.content(request, service))


@Operation("overviewPage", PAGES, HTML, refusals=ADMINS_ONLY)
def overview(request: Request, service: Service) -> Response:
    """The service at a glance. Numbers of users and emails, the last 30 days, the last backup and cleanup."""
    values = overview_page.content(service.overview.now())
    schedule = request.settings.cleanup_schedule
    return layout.page(request, "overview", width="wide", scripted=False, schedule=schedule, **values)


def dev_mail(request: Request, service: Service) -> Response:
    return layout.page(request, "dev_mail", width="middle", emails=service.outbox.saved_emails())


@Operation("asset", PAGES, "*/*", refusals={404: "There is no such file."})
def asset(request: Request, _service: Service) -> Response:
    """Style sheet, script, texts and logo."""
    name = request.segments["name"]
    media_type, content = assets.content(request.settings, name)
    encoding: tuple[tuple[str, str], ...] = ()
    # Only these: what is compressed together with a secret would show it by its length.
    if assets.takes_gzip(request.environ.get("HTTP_ACCEPT_ENCODING", "")):
        content, encoding = assets.compressed(request.settings, name), (("Content-Encoding", "gzip"),)
    # A page of another daemon, of a newer version, may ask for its own file here: this one must not be kept in its place.
    is_asked_for = request.environ.get("QUERY_STRING") == assets.query(request.settings, name)
    kept = "31536000, immutable" if is_asked_for else "60"
    headers = (
        ("Content-Type", media_type),
        ("Cache-Control", f"public, max-age={kept}"),
        ("Vary", "Accept-Encoding"),
        *encoding,
        *ALWAYS,
        NO_PAGE,
    )
    return Response(200, content, headers)
