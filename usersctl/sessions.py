"""Sessions and API tokens: opened by a login, checked at every request, ended by logout, revocation and time."""

from collections.abc import Callable, Iterable
from contextlib import suppress
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from usersctl.clock import moment, stamp
from usersctl.config import Settings
from usersctl.credentials import end_sessions
from usersctl.devices import Devices
from usersctl.errors import (
    Busy,
    Forbidden,
    Inactive,
    InvalidCode,
    KeyUnusable,
    LockedDown,
    NotFound,
    StoreUnusable,
    Unauthenticated,
)
from usersctl.events import SIGN_IN
from usersctl.lockdown import refuse_in_lockdown
from usersctl.mail.kinds import TOKEN_MADE, EmailQueue
from usersctl.models import (
    FACTOR_METHODS,
    UNKNOWN_CLIENT,
    Actor,
    Caller,
    Client,
    Method,
    PendingSignIn,
    Session,
    TokenKind,
    User,
)
from usersctl.named import NamedTuple
from usersctl.networks import is_within
from usersctl.passwords import Hasher, beginning_of, level
from usersctl.permissions import Check, admit, require_fresh
from usersctl.secrets import digest, is_mistyped, new_api_token, new_token
from usersctl.session_uses import SessionUses
from usersctl.store.store import Store
from usersctl.store.transaction import Transaction
from usersctl.throttle import AccountThrottle, Counter, counter_of

if TYPE_CHECKING:
    from usersctl.foreign_hashes import ForeignHash

ABSOLUTE_LIMIT = timedelta(days=30)
USE_IS_NOTED_EVERY = timedelta(minutes=1)
NOTE_PATIENCE = 0.1  # seconds: a check is a read, and does not wait for writers
SOONEST_END = timedelta(seconds=10)  # longer than a note waits
MAX_USER_AGENT = 300
MOST_KINDS_OF_HASHES = 50  # that a login looks at; of an application, few costs and kinds come


class Opened(NamedTuple):
    """A new session. Only this object and the client know the token."""

    token: str
    session: Session
    user: User

    @property
    def by_factor(self) -> bool:
        """Whether the user proved a second factor or a passkey just now."""
        return is_by_factor(self.session.opened_with or "")


class Pending(NamedTuple):
    """A sign-in that waits for its second factor. Only this object and the client's cookie know the token."""

    token: str
    user: User


PENDING_LIFETIME = timedelta(minutes=10)


class Verified(NamedTuple):
    """A user whose password was right."""

    user: User
    counter: Counter  # of the failed logins
    password_hash: str  # that the password was checked against
    renewed: str | None  # a hash of the present cost, if the stored one has another


class _HashChangedError(Unauthenticated):
    """The hash was replaced during the check: by a new password, or renewed by a login at the same time."""


class Sessions(NamedTuple):
    store: Store
    hasher: Hasher
    throttle: AccountThrottle
    devices: Devices
    settings: Settings
    uses: SessionUses
    emails: EmailQueue

    # --- opened ---

    def login(
        self,
        email: str,
        password: str,
        *,
        remember: bool = False,
        client: Client = UNKNOWN_CLIENT,
        factor: Callable[[int], Check] | None = None,
    ) -> Opened | Pending:
        """`email` is in the form of fields.lookup(). Every refusal before the password was right takes the same time.

        `factor` prepares the check of a second factor that came along, for a user who has one.
        """
        try:
            return self._open_verified(self._verify(email, password, client), remember, client, factor)
        except _HashChangedError:
            return self._open_verified(self._verify(email, password, client), remember, client, factor)

    def is_known_device(self, email: str, client: Client) -> bool:
        devices = self.devices.read(client.devices)
        with self.store.read() as tx:
            credentials = tx.credentials(email)
            return counter_of(tx, credentials and credentials.user, email, devices).is_known

    def _verify(self, email: str, password: str, client: Client) -> Verified:
        devices = self.devices.read(client.devices)
        with self.store.write() as tx:
            credentials = tx.credentials(email)
            user = credentials and credentials.user
            counter = counter_of(tx, user, email, devices)
            lockdown = tx.lockdown()
            counter = self.throttle.count_sign_in(tx, counter)
            slowest = _slowest_foreign_hash(tx)
        stored = None
        # In a lockdown the response reveals neither whether the password is right nor which admin is excepted.
        if credentials and (lockdown is None or lockdown.admits(user)):
            stored = credentials.password_hash
        with self.throttle.slot(self.hasher, counter):
            fits = self.hasher.matches(password, stored)
            if slowest is not None and not fits:
                level(password, stored, slowest)
            if credentials is None or not fits:
                raise LockedDown if lockdown else Unauthenticated("Invalid email or password")
            user, stored = credentials
            renewed = None
            if self.hasher.needs_renewal(stored):
                renewed = self.hasher.renew(password)
        return Verified(user, counter, stored, renewed)

    def _open_verified(
        self, verified: Verified, remember: bool, client: Client, factor: Callable[[int], Check] | None
    ) -> Opened | Pending:
        try:
            check = None
            if factor is not None and verified.user.factors:
                check = factor(verified.user.id)
            return self._open(verified, remember, client, check)
        except (Forbidden, KeyUnusable, LockedDown, _HashChangedError):
            self.throttle.uncount(verified.counter)  # the password was right
            raise

    def _open(
        self, verified: Verified, remember: bool, client: Client, check: Check | None
    ) -> Opened | Pending:
        # Codes are counted, and the end of a session that the client sent is in the audit trail.
        with self.store.write(alone=check is not None or bool(client.tokens)) as tx:
            refuse_in_lockdown(tx, verified.user)
            current = tx.credentials_of(verified.user.id)
            if current is None:
                raise Unauthenticated("Invalid email or password")
            if current.password_hash != verified.password_hash:
                raise _HashChangedError("Invalid email or password")
            user = current.user
            if not user.active:
                raise Inactive(user.inactive_because)
            opened = None
            # The code is committed as tried, and the password check stays counted as failed.
            with suppress(InvalidCode):
                opened = self.open_in(tx, user, remember=remember, client=client, check=check)
            if opened is not None:
                self._note_right_password(tx, verified, opened)
        if opened is None:
            raise InvalidCode
        return opened

    def _note_right_password(self, tx: Transaction, verified: Verified, opened: Opened | Pending) -> None:
        user_id = verified.user.id
        if verified.renewed is not None:
            tx.renew_hash(user_id, verified.renewed)
        tx.uncount_failed_sign_in(verified.counter.counted_in)
        if isinstance(opened, Pending):
            # Or the password alone would clear the wrong codes that were counted.
            tx.uncount_failure(verified.counter.key)
        else:
            tx.clear_failures(user_id)

    def open_in(
        self,
        tx: Transaction,
        user: User,
        *,
        remember: bool,
        client: Client,
        opened_with: str = Method.PASSWORD,
        is_enough: bool = False,
        check: Check | None = None,
        auth_time: str | None = None,
        amr: str | None = None,
    ) -> Opened | Pending:
        """For a user who was found active, and admitted, in this transaction. With a second factor the sign-in waits for it,
        unless this device is remembered, `check` takes one that came along, or `opened_with` is enough without.

        `auth_time` and `amr`: when and how a provider signed the user in.
        """
        pending = PendingSignIn(b"", user.id, opened_with, remember, auth_time, amr)
        if not user.factors or is_enough:
            return self.finish(tx, user, pending, "", client)
        if check is not None:
            method = check(tx)
            if method is None:
                raise InvalidCode
            return self.finish(tx, user, pending, method, client)
        if self.devices.is_remembered(tx, user.id, client.devices, self.settings.remember_factor):
            return self.finish(tx, user, pending, Method.DEVICE, client)
        token = new_token()
        _end_sent_pending(tx, client)
        tx.add_pending(pending._replace(token_hash=digest(token)), PENDING_LIFETIME)
        return Pending(token, user)

    def finish(
        self, tx: Transaction, user: User, pending: PendingSignIn, method: str, client: Client
    ) -> Opened:
        """Opens the session of a sign-in; `method` is the second factor that was proved, if there is one."""
        for sent in client.tokens:
            _sign_out(tx, sent, client.ip)
        _end_sent_pending(tx, client)
        remember, opened_with = pending.is_persistent, f"{pending.opened_with} {method}".rstrip()
        kind = TokenKind.PERSISTENT if remember else TokenKind.SESSION
        token = new_token()
        limit = tx.now + max(ABSOLUTE_LIMIT, self.settings.remember_me_expiration)
        session = tx.add_token(
            user.id,
            digest(token),
            kind=kind,
            name="login",
            last_used_at=tx.now_text,
            expires_at=stamp(min(tx.now + self.idle_time(kind), limit)),
            limit_at=stamp(limit),
            ip=client.ip,
            user_agent=clean_user_agent(client.user_agent),
            auth_time=pending.auth_time,
            amr=pending.amr,
            opened_with=opened_with,
            factor_at=tx.now_text if is_by_factor(opened_with) else None,
        )
        tx.note_login(user.id)
        tx.count_sign_in()
        tx.tell(Actor(f"user:{user.id}", client.ip), SIGN_IN, user, sign_in_details(session))
        return Opened(token, session, user._replace(last_login_at=tx.now_text))

    def idle_time(self, kind: str) -> timedelta:
        if kind == TokenKind.PERSISTENT:
            return self.settings.remember_me_expiration
        return self.settings.token_expiration

    # --- checked ---

    def check(
        self,
        token: str,
        *,
        renews: bool = True,
        nonblocking: bool = False,
        groups: bool = False,
        caller: Caller = UNKNOWN_CLIENT,
    ) -> tuple[Session, User] | None:
        """The session of this token, and its user. Its use moves its expiry on, which is noted at most once a minute.

        `renews`: a cookie of the response reaches the browser. Without that a persistent session keeps its expiry, which
        is also that of the browser's cookie, until a use that can renew both.

        `nonblocking`: raises Busy instead of the one step that may have to wait, which is to write the use at once.

        `groups`: the user comes with their groups.

        `caller`: an API token may be for some addresses only, and shows which client used it last.
        """
        if is_mistyped(token):
            return None
        if self.uses.are_overdue():
            self._write_uses(nonblocking=nonblocking)
        with self.store.glance() as tx:
            look = tx.session_with_groups if groups else tx.session
            known = look(digest(token))
        if known is None:
            return None
        session, user = known
        if session.ranges is not None and not is_within(caller.ip, session.ranges):
            return None
        latest = self.uses.latest(session)
        idle = self.idle_time(session.kind)
        if not _is_due(latest, idle, tx.now, renews=renews):
            return latest, user
        used = _used(latest, idle, tx, renews=renews)
        if session.kind == TokenKind.API:
            used = used._replace(ip=caller.ip, user_agent=clean_user_agent(caller.user_agent))
        at_once = _would_end(session, used, idle, tx)
        if at_once and nonblocking:
            raise Busy("The use of a session is to be written", retry_after=0)
        self.uses.note(used)
        if at_once:
            self._write_uses()
        return used, user

    def is_ours(self, token: str) -> bool:
        """Whether this service gave the token, valid or not, or it is nearly one: no application behind a proxy gets it."""
        if is_mistyped(token):
            return True
        with self.store.glance() as tx:
            return tx.has_token(digest(token))

    def _write_uses(self, *, nonblocking: bool = False) -> None:
        if nonblocking:
            raise Busy("Uses of sessions are to be written", retry_after=0)
        # The notes stay, and are written later: a check does not fail for them.
        with suppress(Busy, StoreUnusable):
            self.uses.write(patience=NOTE_PATIENCE)

    # --- ended ---

    def end(self, token: str, *, ip: str | None = None) -> Session | None:
        """Logout. An unknown token costs no write, and nor does one that may not be used from this address."""
        with self.store.glance() as tx:
            if not _may_sign_out(tx, token, ip):
                return None
        with self.store.write() as tx:
            return _sign_out(tx, token, ip)

    def listed(self, user_id: int) -> list[Session]:
        with self.store.read() as tx:
            return list(tx.live_tokens_of(user_id))

    def revoke(
        self, token_id: int, *, by: Actor, user_id: int | None = None, kind: TokenKind | None = None
    ) -> Session:
        """Ends one token; with `user_id` and `kind` only one of that user and kind, and NotFound for any other."""
        with self.store.write() as tx:
            admit(tx, by)
            ended = tx.delete_token_by_id(token_id, user_id, kind)
            if ended is None:
                raise NotFound("Token not found" if kind == TokenKind.API else "Session not found")
            user = tx.user(ended.user_id)
            tx.audit(by, "revoke", user, token=ended.id, kind=ended.kind, name=ended.name)
            return ended

    def revoke_all(self, user_ids: Iterable[int], *, by: Actor) -> list[int]:
        """Ends all tokens of these users; returns how many ended, by user."""
        with self.store.write() as tx:
            admit(tx, by)
            return [self._revoke_all(tx, user_id, by) for user_id in user_ids]

    def _revoke_all(self, tx: Transaction, user_id: int, by: Actor) -> int:
        user = tx.existing_user(user_id)
        ended = end_sessions(tx, user_id)
        if ended:
            tx.audit(by, "revoke-all", user, count=ended)
        return ended

    def end_others(self, user_id: int, *, but: int, by: Actor) -> str:
        """All sessions and API tokens of the user, except session `but`. Returns when the devices were forgotten, too."""
        with self.store.write() as tx:
            admit(tx, by)
            ended = end_sessions(tx, user_id, but=but)
            if ended:  # else a user could add rows without end
                tx.audit(by, "end-others", tx.user(user_id), count=ended)
            return tx.now_text

    def renewal(self, session: Session) -> tuple[str, Callable[[Transaction], None]]:
        """A new token for a session that goes on, and the step that stores it within the transaction of another change."""
        token = new_token()

        def renew(tx: Transaction) -> None:
            if not tx.replace_token_hash(session.id, digest(token)):
                raise Unauthenticated  # ended in the meantime

        return token, renew

    # --- API tokens ---

    def create_api_token(
        self,
        user_id: int,
        *,
        name: str,
        lifetime: timedelta | None,
        scopes: str | None = None,
        ranges: str | None = None,
        tell: Callable[[Opened], object] = id,
        by: Actor,
    ) -> Opened:
        """A token that keeps its expiry, however it is used; without a lifetime it never expires. `scopes` and `ranges` are in
        the form of normal_scopes() and normal_ranges().

        `tell` runs before the commit: a token that could not be shown is not stored.
        """
        token = new_api_token()
        with self.store.write() as tx:
            admit(tx, by)
            require_fresh(tx, by)
            user = tx.existing_user(user_id)
            if not user.active:
                hint = f"activate it first with: usersctl activate {user.id}"
                raise Forbidden("Account is inactive", hint=hint)
            expires_at = None
            if lifetime is not None:
                expires_at = stamp(tx.now + lifetime)
            session = tx.add_token(
                user_id,
                digest(token),
                kind=TokenKind.API,
                name=name,
                expires_at=expires_at,
                scopes=scopes,
                ranges=ranges,
            )
            limits = {"scopes": scopes, "ranges": ranges}
            given = {limit: value for limit, value in limits.items() if value is not None}
            tx.audit(by, "create-token", user, token=session.id, name=name, expires_at=expires_at, **given)
            if by.user_id == user_id:  # else an operator makes it, perhaps for a program
                self.emails.add(tx, TOKEN_MADE, user, user.email)
            opened = Opened(token, session, user)
            tell(opened)
            return opened


def _is_due(session: Session, idle: timedelta, now: datetime, *, renews: bool) -> bool:
    noted = moment(session.last_used_at) if session.last_used_at else None
    if noted is None or now - noted >= _pause(session, idle) or noted > now:
        return True
    # It was used since, but no use could renew the cookie.
    return (
        renews
        and session.kind == TokenKind.PERSISTENT
        and session.expires_at < _moved(session, stamp(noted + idle))
    )


def _pause(session: Session, idle: timedelta) -> timedelta:
    """The time between two notes. Shorter only for a session of one minute, which would end while it is used."""
    return USE_IS_NOTED_EVERY if session.limit_at is None else min(USE_IS_NOTED_EVERY, idle / 2)


def _used(session: Session, idle: timedelta, tx: Transaction, *, renews: bool) -> Session:
    expires_at = session.expires_at
    moves = renews or session.kind != TokenKind.PERSISTENT
    if moves:
        expires_at = _moved(session, tx.after(idle))
    return session._replace(last_used_at=tx.now_text, expires_at=expires_at, moved=moves)


def _moved(session: Session, expires_at: str) -> Any:
    """The expiry after a use that would move it to this one; an API token keeps the one that it was given."""
    return session.expires_at if session.limit_at is None else min(expires_at, session.limit_at)


def _would_end(stored: Session, used: Session, idle: timedelta, tx: Transaction) -> bool:
    """Whether a use has to be written at once: other processes see the database only, and so does one after a crash."""
    if stored.expires_at is None or stored.expires_at == used.expires_at:
        return False  # the use moves nothing
    return stored.expires_at < tx.after(max(SOONEST_END, idle / 10))


def is_by_factor(opened_with: str) -> bool:
    return any(method in FACTOR_METHODS for method in opened_with.split())


def sign_in_details(session: Session) -> dict[str, Any]:
    """What an event tells of a new session; the trail has no row of it."""
    return {
        "token": session.id,
        "kind": session.kind,
        "name": session.name,
        "opened_with": session.opened_with,
        "expires_at": session.expires_at,
        "ip": session.ip,
        "user_agent": session.user_agent,
    }


def _may_sign_out(tx: Transaction, token: str, ip: str | None) -> bool:
    """Not from an address where an API token does not work: a thief could end it there."""
    known = tx.session(digest(token), expired=True)
    return known is not None and (known[0].ranges is None or is_within(ip, known[0].ranges))


def _sign_out(tx: Transaction, token: str, ip: str | None) -> Session | None:
    """The token is the proof, so its user is the actor."""
    if not _may_sign_out(tx, token, ip):
        return None
    ended = tx.delete_token(digest(token))
    if ended is not None:
        by, user = Actor(f"user:{ended.user_id}", ip), tx.user(ended.user_id)
        tx.audit(by, "sign-out", user, token=ended.id, kind=ended.kind, name=ended.name)
    return ended


def _end_sent_pending(tx: Transaction, client: Client) -> None:
    for sent in client.pending:
        tx.delete_pending(digest(sent))


def _slowest_foreign_hash(tx: Transaction) -> "ForeignHash | None":
    """As slow as the check of this hash is, so slow are all refusals, or time would tell which addresses have such hashes."""
    if not any(tx.foreign_hashes(str, 1)):
        return None
    from usersctl import foreign_hashes  # late, because most installations have no such hash

    return foreign_hashes.slowest(tx.foreign_hashes(beginning_of, MOST_KINDS_OF_HASHES))


def clean_user_agent(text: str | None) -> str | None:
    """The header, cut and without unprintable characters."""
    if not text:
        return None
    return "".join(c if c.isprintable() else " " for c in text[:MAX_USER_AGENT])
