"""Scopes of API tokens: what a token may do of that which its user may do."""

from collections.abc import Iterable
from enum import StrEnum
from functools import cache

from usersctl.errors import Invalid
from usersctl.text import did_you_mean


class Scope(StrEnum):
    USERS_READ = "users:read"
    USERS_WRITE = "users:write"
    SESSIONS_READ = "sessions:read"
    SESSIONS_WRITE = "sessions:write"
    ME = "me"
    TASKS = "tasks"
    VERIFY = "verify"


INCLUDED = {Scope.USERS_WRITE: Scope.USERS_READ, Scope.SESSIONS_WRITE: Scope.SESSIONS_READ}


def normal_scopes(names: Iterable[str]) -> str:
    """As a token stores them: in the order of the table, each once, separated by blanks."""
    given = set(names)
    for name in sorted(given - set(Scope)):
        hint = did_you_mean(name, list(Scope))
        raise Invalid(f"{name[:60]!r} is no scope: there are {', '.join(Scope)}", hint=hint)
    if not given:
        # An empty list of a program must not make a token that may do all.
        raise Invalid("Name at least one scope, or leave them out for a token without limits")
    return " ".join(scope for scope in Scope if scope in given)


def permits(stored: str | None, scope: Scope | None) -> bool:
    """Whether a session with these scopes may call a route of this scope. None: a session that no scope limits; a route that
    no scope opens."""
    return stored is None or scope in _granted(stored)


@cache  # there are few combinations
def _granted(stored: str) -> frozenset[str]:
    names = frozenset(stored.split())
    return names | {INCLUDED[Scope(name)] for name in names if name in INCLUDED}
