"""What a row of the route table says, and which row a path belongs to."""

from collections.abc import Callable, Iterable
from enum import Enum
from typing import Any, NamedTuple

import bottle

from usersctl.config import Settings
from usersctl.service import Service
from usersd.request import Request
from usersd.response import Response
from usersd.server.lanes import Lane

Handler = Callable[[Request, Service], Response | dict[str, Any]]

SAFE_METHODS = ("GET", "HEAD", "OPTIONS")
ANY = "*"
OF_THE_APPLICATION = ("/", "/health", "/ready")  # where one stands beside the service
OF_THE_SERVICE = ("/api/users/", "/assets/", "/_tasks/")
CALLBACK = "/api/users/auth/oauth/callback"  # in the table; `auth.oauth.callbackUrl` takes its place


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
    WAYS_TO_PROVIDER = "sign-ins through the provider that begin, a minute"
    WAYS_BACK = "sign-ins through the provider that come back, a minute"


class Route(NamedTuple):
    method: str
    path: str
    access: Access
    handler: Handler
    limit: Limit | None = None
    lane: Lane | None = None  # the thread pool, if not that of the method; not for a path with a pattern
    once: bool = False  # a GET with an effect: not for HEAD, and not for a prefetch
    signs_in: bool = False  # a browser on its way to or from the identity provider: a refusal is a redirect
    event: str | None = None  # its name in the log
    # Changes what the caller signs in with, or their sessions: refused to an API token of the same user. The value is the
    # field of the body that does, or ANY.
    own: str | None = None
    is_probe: bool = False  # called every few seconds by a machine: no line in the log while all is well
    # True for a request that the limit does not stop.
    spares: Callable[[Request, Service], bool] | None = None


class Match(NamedTuple):
    """The routes of one path by method, HEAD included, and the variable segments of the path."""

    methods: dict[str, Route]
    segments: dict[str, str]

    @property
    def allowed(self) -> str:
        """The methods, as the header Allow lists them."""
        return ", ".join(sorted(self.methods))


NO_MATCH = Match({}, {})


class Router:
    """Paths are matched without the method, so that the answer to a wrong method depends on who may call the path.

    A plain path is a key of a dictionary. Bottle's patterns are for the others only: in a plain path they would take a
    colon for a wildcard.
    """

    def __init__(self, table: Iterable[Route], settings: Settings) -> None:
        self._plain: dict[str, Match] = {}
        self._patterns = bottle.Router()
        patterns: dict[str, Match] = {}
        for route in configured(table, settings):
            matches = patterns if "<" in route.path else self._plain
            match = matches.setdefault(route.path, Match({}, {}))
            match.methods[route.method] = route
            if route.method == "GET":
                match.methods["HEAD"] = route
        for path, match in patterns.items():
            self._patterns.add(path, "ANY", match.methods)

    def match(self, path: str | None) -> Match:
        """None is a path that is not UTF-8."""
        if path is None:
            return NO_MATCH
        match = self._plain.get(path)
        if match is not None:
            return match
        try:
            methods, segments = self._patterns.match({"REQUEST_METHOD": "ANY", "PATH_INFO": path})
        except bottle.HTTPError:
            return NO_MATCH
        # The end of Bottle's patterns also matches before a final line feed, which no segment then holds.
        if path.endswith("\n") and not any(segment.endswith("\n") for segment in segments.values()):
            return NO_MATCH
        return Match(methods, segments)

    def keeps(self, path: str | None) -> bool:
        """Whether a path belongs to the service where an application stands beside it."""
        if path is None or path in OF_THE_APPLICATION:
            return False
        return path.startswith(OF_THE_SERVICE) or bool(self.match(path).methods)

    def lane(self, method: str, path: str) -> Lane:
        """The thread pool of a request, by its path as the server read it: a look-up, before there is a request to match."""
        route = self._plain.get(path, NO_MATCH).methods.get(method)
        if route is not None and route.lane is not None:
            return route.lane
        return Lane.QUICK if method in SAFE_METHODS else Lane.WRITING


def configured(table: Iterable[Route], settings: Settings) -> list[Route]:
    """The table as the settings make it: where the provider calls back, and whether registration is open."""
    # By that name only: a pattern that opens all pages opens no registration.
    registration = Access.ANYONE if settings.registration_is_open else Access.REGISTRATION
    return [
        route._replace(
            path=settings.oauth_callback_url if route.path == CALLBACK else route.path,
            access=registration if route.access is Access.REGISTRATION else route.access,
        )
        for route in table
    ]
