"""What a row of the table says: the table itself is in `routes`."""

from collections.abc import Callable
from enum import Enum
from typing import Any, NamedTuple

from usersctl.service import Service
from usersd.request import Request
from usersd.response import Response
from usersd.server.lanes import Lane

Handler = Callable[[Request, Service], Response | dict[str, Any]]


class Access(Enum):
    ANYONE = "anyone"
    SIGNED_IN = "signed in"
    ADMIN = "admin"
    REGISTRATION = "anyone while auth.whitelist opens /register, and otherwise nobody"
    OPERATOR = "admin, or whoever sits at the machine of a fresh installation"


class Limit(Enum):
    """What is counted for each client address, and how it counts."""

    FAILED_LOGINS = "failed logins a minute"
    REGISTRATIONS = "registrations an hour"
    FORGOTS = "forgotten passwords a minute"


class Route(NamedTuple):
    method: str
    path: str
    access: Access
    handler: Handler
    limit: Limit | None = None
    lane: Lane = Lane.QUICK  # which threads; only a path without a pattern can have one of its own
    once: bool = False  # a GET that uses something up: not for HEAD, and not for a browser that looks ahead
    signs_in: bool = False  # a browser between two sites: a refusal is a redirect
    event: str | None = None  # what the log calls it
    is_probe: bool = False  # asked every few seconds by a machine: no line in the log while all is well
