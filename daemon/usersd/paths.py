"""Paths and patterns: the whitelist, the role rules, and the decision for one page."""

import re
import unicodedata
from functools import lru_cache
from urllib.parse import unquote

from usersctl.models import Role, User

REGISTRATION = "/register"
WITH_REGISTRATION = ("/confirm-email",)
ALWAYS_PUBLIC = ("/login",)


class Whitelist:
    """`/about` is that path; `/docs/*` is /docs and all below; a `*` elsewhere is one segment."""

    def __init__(self, patterns: tuple[str, ...]) -> None:
        opened = patterns + (WITH_REGISTRATION if REGISTRATION in patterns else ())
        self._exact = frozenset(pattern for pattern in opened if "*" not in pattern)
        self._wild = [pattern.split("/") for pattern in opened if "*" in pattern]

    def __contains__(self, path: str) -> bool:
        if path in self._exact:
            return True
        parts = path.split("/")
        return any(_matches(pattern, parts) for pattern in self._wild) and not _reads_otherwise(path)


def _reads_otherwise(path: str) -> bool:
    """Whether it could mean another path to whoever serves it: dots, or other segments than these, behind a backslash,
    before a parameter, decoded once more, or in letters that some normalise."""
    shape = [bool(part) for part in path.split("/")]
    for _ in range(3):
        path = unicodedata.normalize("NFKC", unquote(path))
        parts = [part.partition(";")[0] for part in re.split(r"[/\\]", path)]
        if [bool(part) for part in parts] != shape or not {".", ".."}.isdisjoint(parts):
            return True
    return False


def _matches(pattern: list[str], parts: list[str]) -> bool:
    if pattern[-1] == "*":
        pattern = pattern[:-1]
        if len(parts) < len(pattern):
            return False
        parts = parts[: len(pattern)]
    return len(pattern) == len(parts) and all(
        wanted == part or (wanted == "*" and part != "") for wanted, part in zip(pattern, parts, strict=True)
    )


class RoleRules:
    """Which roles a path asks for. Patterns are those of the whitelist, matched generously where that is narrow: a rule
    holds for whatever somebody behind us may take for the path that it means."""

    def __init__(self, rules: tuple[tuple[str, str], ...]) -> None:
        self._all = frozenset(role for _, role in rules)
        self._rules: list[tuple[list[str], frozenset[str], str]] = []
        for path, role in rules:
            pattern = _segments(_folded(unquote(path)))
            self._rules.append((pattern, frozenset(pattern) - {"*"}, role))
        self.roles = lru_cache(maxsize=256)(self._roles)  # most requests are for a few paths

    def _roles(self, path: str | None) -> frozenset[str]:
        """All that are asked for on it; on a path that nobody knows, or that may be another, those of every rule."""
        if not self._rules:
            return self._all
        if path is not None and _PLAIN.fullmatch(path):
            return self._of([part for part in path.split("/") if part])
        if path is None or _reads_otherwise(path):
            return self._all
        return frozenset().union(*(self._of(reading) for reading in _readings(path)))

    def _of(self, parts: list[str]) -> frozenset[str]:
        # Most paths are ruled out by the words that they lack.
        words = {*parts, *(_stem(part) for part in parts)}
        return frozenset(
            role for pattern, needed, role in self._rules if needed <= words and _covers(pattern, parts)
        )


_PLAIN = re.compile(r"(/[a-z0-9_~-]+(\.[a-z0-9_~-]+)*)*/?", re.ASCII)


def _readings(path: str) -> list[list[str]]:
    """The segments of a path as they may be understood: decoded once more, cut at a query, in other letters."""
    forms = []
    for _ in range(3):
        forms += [path, re.split(r"[?#\0]", path)[0]]
        path = unquote(path)
    return [_segments(_folded(form)) for form in forms]


def _folded(path: str) -> str:
    """In small letters without accents, and without what cannot be seen."""
    same_case = unicodedata.normalize("NFKD", path).upper().casefold()
    return "".join(
        c for c in unicodedata.normalize("NFKD", same_case) if unicodedata.category(c)[0] not in "MC"
    )


def _segments(path: str) -> list[str]:
    return [part for part in (each.partition(";")[0].strip() for each in re.split(r"[/\\]", path)) if part]


def _stem(part: str) -> str:
    """Without the suffix that some routers choose a format by: /admin.json is /admin to them."""
    return part.partition(".")[0].strip()


def _covers(pattern: list[str], parts: list[str]) -> bool:
    """A * is any number of segments: who decodes a slash earlier or later counts them differently."""

    def past_stars(places: set[int]) -> set[int]:
        for at, part in enumerate(pattern):
            if part == "*" and at in places:
                places.add(at + 1)
        return places

    places = past_stars({0})
    for part in parts:
        here = {at for at in places if at < len(pattern)}
        places = past_stars(
            {at for at in here if pattern[at] == "*"}
            | {at + 1 for at in here if pattern[at] in (part, _stem(part))}
        )
    return len(pattern) in places


class PageAccess:
    """Who may see which page of an application: the one rule behind the gate and forward authentication."""

    def __init__(self, whitelist: tuple[str, ...], role_rules: tuple[tuple[str, str], ...]) -> None:
        self.whitelist = Whitelist(whitelist)
        self.rules = RoleRules(role_rules)

    def verdict(self, user: User | None, path: str | None, *, role: str | None = None) -> int:
        """200, 401 or 403, for a path and a role that is asked for beside its rules. A rule wins over the whitelist."""
        if path in ALWAYS_PUBLIC and role is None:
            return 200
        roles = self.rules.roles(path) | ({role} if role else set())
        if user is None:
            return 200 if not roles and path is not None and path in self.whitelist else 401
        return 200 if not roles or all(may(user.role, each) for each in roles) else 403


def may(role: str, asked: str) -> bool:
    """Whether a role suffices where another is asked for: an admin may do whatever a user may."""
    return role in (asked, Role.ADMIN)
