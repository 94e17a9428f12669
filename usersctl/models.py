"""What the core speaks of. Rows of the database arrive here and stay as they are: named tuples, which cost least to make.

Times are text as `clock.stamp` writes it. A User has no password to leak.
"""

from enum import StrEnum
from typing import Any, NamedTuple

UNUSABLE = "!"  # in the place of a password's hash: matches no password


class Role(StrEnum):
    ADMIN = "admin"
    USER = "user"


class User(NamedTuple):
    id: int
    email: str
    name: str
    role: str
    active: bool
    created_at: str
    updated_at: str
    last_login_at: str | None
    oauth_id: str | None
    profile_picture: str | None
    email_proven_at: str | None
    awaiting_confirmation: bool

    def as_json(self) -> dict[str, Any]:
        """The user object of the HTTP interface and of every `--json`; what is ours alone stays inside."""
        return dict(zip(USER_FIELDS, self, strict=False))


USER_FIELDS = User._fields[:10]


class Credentials(NamedTuple):
    """A user with the stored hash: for the password check and the export with hashes, and for nothing else."""

    user: User
    password_hash: str


class Session(NamedTuple):
    """One token that signs a user in: a session of a browser, or an API token."""

    id: int
    user_id: int
    kind: str
    name: str
    created_at: str
    last_used_at: str | None
    expires_at: str | None
    limit_at: str | None
    ip: str | None
    user_agent: str | None
    moved: bool = False  # this very use moved its expiry on


class Actor(NamedTuple):
    """Who acts, and from where: what the audit tells."""

    name: str
    origin: str | None = None
    user_id: int | None = None


SYSTEM = Actor("system")


class Cleanup(NamedTuple):
    expired: int
    no_expiration: int
    include_no_expiration: bool

    def as_json(self) -> dict[str, Any]:
        """The five keys that the task's endpoint and `cleanup-tokens --json` print alike."""
        return {
            "result": "success",
            "expiredTokensRemoved": self.expired,
            "noExpirationTokensRemoved": self.no_expiration,
            "totalTokensCleaned": self.expired + self.no_expiration,
            "includeNoExpiration": self.include_no_expiration,
        }


class UserFilter(NamedTuple):
    search: str | None = None
    role: str | None = None
    active: bool | None = None
    sort: str = "name"
    descending: bool = False


class Page(NamedTuple):
    users: list[User]
    page: int
    limit: int
    total: int

    @property
    def total_pages(self) -> int:
        return -(-self.total // self.limit)


class NewUser(NamedTuple):
    """All that an account starts with; `import` fills more of it than `create`."""

    email: str
    name: str
    password_hash: str
    role: str
    active: bool
    created_at: str
    awaiting_confirmation: bool = False
    email_proven_at: str | None = None
    last_login_at: str | None = None
    oauth_id: str | None = None
    profile_picture: str | None = None


class AuditRow(NamedTuple):
    id: int
    at: str
    actor: str
    origin: str | None
    action: str
    user_id: int | None
    email: str | None
    details: dict[str, Any]
    hash: str  # what the whole trail up to this row comes to


class Lockdown(NamedTuple):
    """Nobody is let in, but for one admin who may be named."""

    since: str
    actor: str
    admitted: User | None

    def admits(self, user: User | None) -> bool:
        return user is not None and self.admitted is not None and user.id == self.admitted.id


class Letter(NamedTuple):
    """A row of the outbox."""

    id: int
    kind: str
    user_id: int | None
    email: str
    message_id: str
    state: str
    created_at: str
    due_at: str
    attempts: int
    last_error: str | None
    finished_at: str | None
