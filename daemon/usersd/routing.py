"""What a row of the route table says."""

from collections.abc import Callable, Iterable
from enum import Enum
from typing import Any

from usersctl.config import Settings
from usersctl.named import NamedTuple
from usersctl.scopes import Scope
from usersctl.service import Service
from usersctl.store.conninfo import Conninfo
from usersd.request import Request
from usersd.response import Response
from usersd.server.lanes import Lane

Handler = Callable[[Request, Service], Response | dict[str, Any]]

SAFE_METHODS = ("GET", "HEAD", "OPTIONS")
ANY = "*"
CALLBACK = "/api/users/auth/oauth/callback"  # in the table; `auth.oauth.callbackUrl` takes its place
CALLBACK_OF = f"{CALLBACK}/<provider>"


class Access(Enum):
    """Who may call a route. The value completes the sentence "For …."."""

    ANYONE = "anyone"
    OPTIONAL_SESSION = "anyone; a session is looked up"
    SIGNED_IN = "signed-in users"
    OWN_OR_ADMIN = "signed-in users, with their own id; admins with any"
    ADMIN = "admins"
    ADMIN_PAGE = "admins; other signed-in users get a page that says so"
    REGISTRATION = "anyone, while `auth.whitelist` opens `/register`"
    OPERATOR = "admins; without a session only on the machine of a fresh installation"
    THIS_MACHINE = "callers on this machine, in development"

    @property
    def needs_session(self) -> bool:
        return self not in (Access.ANYONE, Access.OPTIONAL_SESSION, Access.REGISTRATION, Access.THIS_MACHINE)

    @property
    def is_for_admins(self) -> bool:
        return self in (Access.ADMIN, Access.ADMIN_PAGE, Access.OPERATOR)


class Limit(Enum):
    """What is counted for each client address, and for the account of a signed-in caller."""

    FAILED_LOGINS = "failed logins a minute"
    REGISTRATIONS = "registrations an hour"
    FORGOTS = "forgotten passwords a minute"
    OWN_CHANGES = "changes of one's own account an hour"
    OWN_FACTORS = "changes of one's own second factors an hour"  # for the account alone
    WAYS_TO_PROVIDER = "sign-ins through the provider that begin, a minute"
    WAYS_BACK = "sign-ins through the provider that come back, a minute"


class Route(NamedTuple):
    method: str
    path: str
    access: Access
    scope: Scope | None  # of API tokens that may call; None: none with scopes, where a session is looked up
    handler: Handler
    limit: Limit | None = None
    # The thread pool, if not that of the method. A path with a pattern has one only if the pattern is its last segment.
    lane: Lane | None = None
    once: bool = False  # a GET with an effect: not for HEAD, and not for a prefetch
    signs_in: bool = False  # a browser on its way to or from the identity provider: a refusal is a redirect
    event: str | None = None  # its name in the log
    # Changes what the caller signs in with, or their sessions: refused to an API token of the same user. The value is the
    # field of the body that does, or ANY.
    own: str | None = None
    # Open to a user who must have a second factor and has none yet.
    enrols: bool = False
    is_probe: bool = False  # called every few seconds by a machine: no line in the log while all is well
    # True for a request that the limit does not stop.
    spares: Callable[[Request, Service], bool] | None = None
    # The limit stops no request before its credentials are known to be wrong.
    judges_first: bool = False


def configured(table: Iterable[Route], settings: Settings) -> list[Route]:
    """The table as the settings make it: where providers call back, whether registration is open, and which thread answers."""
    # By that name only: a pattern that opens all pages opens no registration.
    registration = Access.ANYONE if settings.registration_is_open else Access.REGISTRATION
    callback = settings.oauth_callback_url
    # The main thread does not wait for a server.
    here = Lane.QUICK if isinstance(settings.database, Conninfo) else Lane.HERE
    return [
        route._replace(
            path=route.path.replace(CALLBACK, callback),
            access=registration if route.access is Access.REGISTRATION else route.access,
            lane=here if route.lane is Lane.HERE else route.lane,
        )
        for route in table
    ]


def own_callbacks(table: Iterable[Route], settings: Settings) -> list[Route]:
    """A row more for each provider of auth.providers with a callbackUrl of its own."""
    usual = f"{settings.oauth_callback_url}/"
    paths = [each.callback_url for each in settings.more_providers if each.callback_url != usual + each.name]
    return [route._replace(path=path) for route in table if route.path == CALLBACK_OF for path in paths]
