"""Which row of the route table a path belongs to."""

from collections.abc import Callable, Sequence

from usersctl.config import Settings
from usersctl.lazy import lazy
from usersctl.named import NamedTuple
from usersd.routing import SAFE_METHODS, Route, configured, own_callbacks
from usersd.server.lanes import Lane

OF_THE_APPLICATION = ("/", "/health", "/ready")  # where one stands beside the service
OF_THE_SERVICE = ("/api/users/", "/api/groups/", "/api/audit/", "/assets/", "/_tasks/")


class Match(NamedTuple):
    """The routes of one path by method, HEAD included, and the variable segments of the path."""

    methods: dict[str, Route]
    segments: dict[str, str]

    @property
    def allowed(self) -> str:
        """The methods, as the header Allow lists them: without the HEAD of a route that refuses it."""
        listed = (name for name, route in self.methods.items() if name != "HEAD" or not route.once)
        return ", ".join(sorted(listed))


NO_MATCH = Match({}, {})


class Router:
    """Paths are matched without the method, so that the answer to a wrong method depends on who may call the path.

    A plain path is a key of a dictionary. Bottle's patterns are for the others only: in a plain path they would take a
    colon for a wildcard.
    """

    def __init__(self, table: Sequence[Route], settings: Settings) -> None:
        self._plain: dict[str, Match] = {}
        self._patterns: dict[str, Match] = {}
        self._lanes: dict[tuple[str, str], Lane] = {}  # of patterns, by method and all segments but the last
        for route in (*configured(table, settings), *own_callbacks(table, settings)):
            matches = self._patterns if "<" in route.path else self._plain
            match = matches.setdefault(route.path, Match({}, {}))
            match.methods[route.method] = route
            if route.lane is not None and matches is self._patterns:
                self._lanes[route.method, route.path.rpartition("/")[0]] = route.lane
            if route.method == "GET":
                match.methods["HEAD"] = route

    def match(self, path: str | None) -> Match:
        """None is a path that is not UTF-8."""
        if path is None:
            return NO_MATCH
        match = self._plain.get(path)
        if match is not None:
            return match
        return self._match_pattern(path)

    @lazy
    def _match_pattern(self) -> Callable[[str], Match]:
        """Made for the first path that is not plain: Bottle takes long to import, and compiles all patterns for each one that
        is added."""
        from bottle import HTTPError
        from bottle import Router as Patterns

        patterns = Patterns()
        for pattern, known in self._patterns.items():
            patterns.add(pattern, "ANY", known.methods)

        def match(path: str) -> Match:
            try:
                methods, segments = patterns.match({"REQUEST_METHOD": "ANY", "PATH_INFO": path})
            except HTTPError:
                return NO_MATCH
            # The end of Bottle's patterns also matches before a final line feed, which no segment then holds.
            if path.endswith("\n") and not any(segment.endswith("\n") for segment in segments.values()):
                return NO_MATCH
            return Match(methods, segments)

        return match

    def keeps(self, path: str | None) -> bool:
        """Whether a path belongs to the service where an application stands beside it."""
        if path is None or path in OF_THE_APPLICATION:
            return False
        return path.startswith(OF_THE_SERVICE) or bool(self.match(path).methods)

    def lane(self, method: str, path: str) -> Lane:
        """The thread pool of a request, by its path as the server read it: a look-up, before there is a request to match."""
        match = self._plain.get(path)
        if match is None:
            lane = self._lanes.get((method, path.rpartition("/")[0]))
        else:
            route = match.methods.get(method)
            lane = route and route.lane
        if lane is not None:
            return lane
        return Lane.QUICK if method in SAFE_METHODS else Lane.WRITING
