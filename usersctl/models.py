"""The nouns of the core: named tuples, because rows of the database become them at the least cost.

Times are text as `clock.stamp` writes it. A User has no password to leak.
"""

from enum import StrEnum
from typing import Any, Protocol

from usersctl.named import NamedTuple

OAUTH = "oauth"  # the name of the identity provider in auth.oauth
UNUSABLE = "!"  # in the place of a password's hash: matches no password


class Role(StrEnum):
    ADMIN = "admin"
    USER = "user"


class UserState(StrEnum):
    """What a list of users can be filtered by, beside the role. An account may be in several."""

    ACTIVE = "active"
    DEACTIVATED = "deactivated"  # by an admin or by its owner
    AWAITING = "awaiting"  # its confirmation
    INVITED = "invited"
    LOCKED = "locked"  # after failed logins
    NEVER_SIGNED_IN = "never-signed-in"


class TokenKind(StrEnum):
    SESSION = "session"
    PERSISTENT = "persistent"
    API = "api"


class Purpose(StrEnum):
    """What a one-time token is good for. One purpose never serves another."""

    CONFIRM = "confirm"
    RESET = "reset"
    DELETE = "delete"
    UNDO = "undo"
    NOT_ME = "not_me"
    SETUP = "setup"
    CLAIM = "claim"  # to the new address of an account
    APPROVE = "approve"  # to the old one, for an account without a password
    OAUTH_SPENT = "oauth_spent"
    PASSKEY_SPENT = "passkey_spent"  # a challenge that a passkey has signed
    REMEMBERED = "remembered"  # a device on which the second factor is not asked for: works until it expires
    INVITE = "invite"
    # What became of the link of an invitation. It does nothing any more, but its page can say why.
    INVITE_USED = "invite_used"
    INVITE_WITHDRAWN = "invite_withdrawn"
    INVITE_REPLACED = "invite_replaced"  # by a newer one
    INVITE_DELETED = "invite_deleted"  # it was used, and its account is deleted


class EmailState(StrEnum):
    WAITING = "waiting"
    SENT = "sent"
    FAILED = "failed"
    DROPPED = "dropped"


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
    delete_at: str | None = None  # its owner deleted it, and can undo that until then
    claimed_email: str | None = None  # the owner's new address, while it waits for its proof
    invited_at: str | None = None  # its owner was invited, and has not accepted yet
    factors: int = 0  # the number of its TOTP secrets and passkeys
    groups: tuple[str, ...] = ()  # only where a session check asks for them

    @property
    def awaits_owner(self) -> bool:
        """It was made by an invitation, and never used. An active account may be invited, too: to set a password."""
        return self.invited_at is not None and not self.active

    @property
    def called(self) -> str:
        """The address to show. Recovery, emails and other applications use `email`, the known address."""
        return self.claimed_email or self.email

    @property
    def inactive_because(self) -> str:
        """Why an inactive account is inactive, for its owner."""
        if self.awaiting_confirmation:
            return "awaiting-confirmation"
        if self.invited_at is not None:
            return "invited"
        return "deactivated" if self.delete_at is None else "deletion"

    def as_json(self) -> dict[str, Any]:
        """The user object of the HTTP interface and of every `--json`, without the internal fields."""
        user = self.as_known()
        if self.claimed_email is not None:
            user["email"] = self.claimed_email
        return user

    def as_known(self) -> dict[str, Any]:
        """The user object with the known address, for other applications."""
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
    # What the user proved: see Method. None: an API token, or a session from before version 5 of the database.
    opened_with: str | None = None
    scopes: str | None = None  # of an API token: see usersctl/scopes.py. None: all that its user may do
    ranges: str | None = None  # of client addresses that may use it, separated by blanks. None: all
    moved: bool = False  # this use moved its expiry on

    @property
    def scope_names(self) -> list[str] | None:
        return None if self.scopes is None else self.scopes.split()

    @property
    def range_texts(self) -> list[str] | None:
        return None if self.ranges is None else self.ranges.split()

    @property
    def proofs(self) -> str:
        """What it was opened with, as applications learn it; empty where that is not known."""
        return TOKEN if self.kind == TokenKind.API else self.opened_with or ""


class Actor(NamedTuple):
    """The author of a change, as the audit trail names them, where the change came from, and what allows it."""

    name: str
    origin: str | None = None
    user_id: int | None = None
    token_hash: bytes = b""  # of the session or API token that the request was admitted with, if any
    as_admin: bool = False  # only admins may do this


SYSTEM = Actor("system")


class Client(NamedTuple):
    """The program that signs in, and the cookies that it sends along. Sessions and pending sign-ins among them end by that."""

    ip: str | None = None
    user_agent: str | None = None
    tokens: tuple[str, ...] = ()
    devices: tuple[str, ...] = ()
    pending: tuple[str, ...] = ()  # of sign-ins that wait for their second factor


UNKNOWN_CLIENT = Client()


class Caller(Protocol):
    """What a session check may ask about the program that sent a request. Few ask, so a request works it out late."""

    @property
    def ip(self) -> str | None: ...

    @property
    def user_agent(self) -> str | None: ...


class Method(StrEnum):
    """What a user can prove. A session was opened with some of them, separated by blanks, or with `provider:NAME`."""

    PASSWORD = "pwd"  # noqa: S105 - a name
    OTP = "otp"  # a code of an authenticator app
    RECOVERY = "recovery"  # a recovery code
    PASSKEY = "passkey"
    DEVICE = "device"  # a second factor, on this device, some days ago


TOKEN = "token"  # noqa: S105 - in the place of these, for an API token
PROVIDER = "provider:"  # before the name of the identity provider
FACTOR_METHODS = (Method.OTP, Method.RECOVERY, Method.PASSKEY)


class Proof(NamedTuple):
    """A second factor, as a request brings it: one of the first three."""

    code: str | None = None
    recovery_code: str | None = None
    credential: dict[str, Any] | None = None
    browsers: tuple[str, ...] = ()  # for a credential: the cookies that its challenge may be bound to


class TotpSecret(NamedTuple):
    user_id: int
    secret: bytes  # sealed
    created_at: str


class Passkey(NamedTuple):
    id: int
    user_id: int
    credential_id: bytes
    rp_id: str  # the host name that it was made for
    public_key: bytes
    name: str
    synced: bool
    created_at: str
    last_used_at: str | None


class Enrolment(NamedTuple):
    """What an email tells of, so that its link can take it back: written as in `outbox.about`."""

    kind: str  # totp, passkey or codes
    made_at: str  # with the recovery codes of this moment
    passkey_id: int | None = None

    @classmethod
    def read(cls, text: str) -> "Enrolment":
        kind, made_at, passkey_id = text.split()
        return cls(kind, made_at, int(passkey_id) or None)

    def __str__(self) -> str:
        return f"{self.kind} {self.made_at} {self.passkey_id or 0}"


class PendingSignIn(NamedTuple):
    """A sign-in that waits for its second factor."""

    token_hash: bytes
    user_id: int
    opened_with: str  # what the user proved so far
    is_persistent: bool
    auth_time: str | None = None
    amr: str | None = None
    failures: int = 0  # wrong codes


class Cleanup(NamedTuple):
    expired: int
    no_expiration: int
    include_no_expiration: bool
    accounts: int = 0  # that their owners deleted, or never confirmed

    def as_json(self) -> dict[str, Any]:
        """The five keys that the task's endpoint and `cleanup-tokens --json` print alike."""
        return {
            "result": "success",
            "expiredTokensRemoved": self.expired,
            "noExpirationTokensRemoved": self.no_expiration,
            "totalTokensCleaned": self.expired + self.no_expiration,
            "includeNoExpiration": self.include_no_expiration,
        }


class LockRules(NamedTuple):
    """From how many failed logins in a row on an account is locked: see usersctl/throttle.py."""

    of_strangers: int
    of_known: int  # known devices and sessions, together
    delays: tuple[tuple[int, str], ...]  # so many failures, the last one after this time
    latest: str  # a failure after it is of a clock that was wrong, and delays nothing


class UserFilter(NamedTuple):
    search: str | None = None
    role: str | None = None
    active: bool | None = None
    sort: str = "name"
    descending: bool = False
    state: str | None = None
    group: str | None = None
    locks: LockRules | None = None  # for the state "locked"; None: limits are off, and no account is locked
    no_factor: bool = False  # only without a second factor


class Page(NamedTuple):
    users: list[User]
    limit: int
    total: int
    is_exact: bool = True  # else there may be more than `total`
    has_next: bool = False

    @property
    def total_pages(self) -> int:
        return -(-self.total // self.limit)


class Newcomer(NamedTuple):
    """An account that does not exist yet, in the stored form of its fields; `import` gives more of them than `create`."""

    email: str
    name: str
    password_hash: str = UNUSABLE
    role: str = Role.USER
    active: bool = True
    created_at: str | None = None  # None: the moment of the transaction that adds it
    awaiting_confirmation: bool = False
    email_proven_at: str | None = None
    last_login_at: str | None = None
    profile_picture: str | None = None

    @property
    def called(self) -> str:
        return self.email  # nobody claims another one yet


class Link(NamedTuple):
    """An account of an identity provider. A subject counts at its provider and issuer only."""

    provider: str  # its name in the configuration
    issuer: str  # "": not known yet, until a daemon with this provider binds it
    subject: str


class Identity(NamedTuple):
    """An account of an identity provider that signs in to an account here."""

    user_id: int
    provider: str
    issuer: str
    subject: str
    email: str | None = None  # as the provider said when the account was linked
    linked_at: str | None = None  # None: unknown

    @property
    def link(self) -> Link:
        return Link(self.provider, self.issuer, self.subject)


class Group(NamedTuple):
    id: int
    name: str
    created_at: str
    members: int

    def as_json(self) -> dict[str, Any]:
        return {"name": self.name, "members": self.members}


class Standing(NamedTuple):
    """An account as a file of `usersctl apply` compares it."""

    user: User
    groups: tuple[str, ...]
    managed_by: str | None  # the name of the file


class AuditRow(NamedTuple):
    id: int
    at: str
    actor: str
    origin: str | None
    action: str
    user_id: int | None
    email: str | None
    details: dict[str, Any]
    hash: str  # of this row and, through the chain, of all rows before it


class AuditFilter(NamedTuple):
    """Which rows of the audit trail are wanted; None: any."""

    user_id: int | None = None
    actor: str | None = None
    action: str | None = None
    since: str | None = None
    until: str | None = None  # before this

    def includes(self, row: AuditRow) -> bool:
        return (
            self.user_id in (None, row.user_id)
            and self.actor in (None, row.actor)
            and self.action in (None, row.action)
            and (self.since is None or self.since <= row.at)
            and (self.until is None or row.at < self.until)
        )


class AuditPage(NamedTuple):
    rows: list[AuditRow]
    next: int | None  # goes on before this id; None: there is nothing more


class DayCounts(NamedTuple):
    day: str
    sign_ins: int = 0
    failed: int = 0
    registrations: int = 0


class Lockdown(NamedTuple):
    """Every sign-in and session is refused, except those of one admin who may be named."""

    since: str
    actor: str
    admitted: User | None

    def admits(self, user: User | None) -> bool:
        return user is not None and self.admitted is not None and user.id == self.admitted.id


class Claim(NamedTuple):
    """A new address that the owner of an account gave, which is not proven yet."""

    email: str
    expires_at: str
    proven_at: str | None  # the link to the new address was used
    approved_at: str | None  # the link to the known address was used; needed without a password

    def as_json(self) -> dict[str, Any]:
        return {"email": self.email, "expires_at": self.expires_at}


class Invitation(NamedTuple):
    """To an account that awaits its owner, or that has no password."""

    invited_at: str
    expires_at: str
    is_nameless: bool  # the account is named after its address, because the invitation gave no name

    def has_expired(self, now: str) -> bool:
        return self.expires_at <= now


class OneTimeToken(NamedTuple):
    user_id: int | None
    email: str  # the address that it was sent to
    about: str | None = None  # the enrolment that it takes back, or when a second factor was proved


class Failures(NamedTuple):
    in_a_row: int  # failed checks since the last success
    last_at: str


class Device(NamedTuple):
    """A browser that signed in to an account, as its signed cookie says."""

    user_id: int
    id: str
    since: str
    factor_at: str = ""  # a second factor was proved on it then, and need not be again for some days
    secret: str = ""  # that this browser alone has, to show so


BEHIND = "9999-12-31T23:59:59.999Z"  # when an event is due that waits for an earlier one


class QueuedEmail(NamedTuple):
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
    about: str | None = None
    # Of an event; kind is its name, and there is no email and no user_id.
    webhook: str = ""
    subject: int = 0  # the id of the user; 0: none
    payload: str | None = None

    @property
    def is_behind(self) -> bool:
        """Whether it waits for an earlier event of the same user."""
        return self.due_at == BEHIND


class WebhookState(NamedTuple):
    """What the receiver of a webhook did lately."""

    failures: int = 0  # in a row
    paused_until: str | None = None
    ended_at: str | None = None

    def holds(self, now: str) -> bool:
        """Whether nothing is sent now."""
        return self.ended_at is not None or (self.paused_until or "") > now
