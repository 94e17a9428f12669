"""Sessions and API tokens: opened by a login, checked at every request, ended by logout, by others and by time."""

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from usersctl.clock import Clock, moment, stamp
from usersctl.config import Settings
from usersctl.errors import Busy, Forbidden, LockedDown, NotFound, StoreUnusable, Unauthenticated
from usersctl.fields import lookup_key
from usersctl.lockdown import refuse_in_lockdown
from usersctl.models import Actor, Cleanup, Session, User
from usersctl.passwords import Hasher
from usersctl.secrets import digest, new_token
from usersctl.store.store import Store
from usersctl.store.transaction import Transaction
from usersctl.throttle import KEPT_ADDRESSES, AccountThrottle, account_key

ABSOLUTE_LIMIT = timedelta(days=30)
USE_IS_NOTED_EVERY = timedelta(minutes=1)
NOTE_PATIENCE = 0.1  # seconds: a check is a read, and does not wait for whoever writes
MAX_USER_AGENT = 300
SENT_LETTERS_KEPT = timedelta(days=7)

# A batch keeps other writers waiting for some ten milliseconds. SQLite has them look again every 25, so that they
# come in during the pause. Its pages are fewer than the thousand at which a commit has to carry them into the database:
# nobody's login does that, because each batch is followed by its own.
BATCH = 250
PAUSE = 0.03


@dataclass(frozen=True)
class Opened:
    """A new session. The token is known here and to the client, and nowhere else."""

    token: str
    session: Session
    user: User


@dataclass(frozen=True)
class Sessions:
    store: Store
    hasher: Hasher
    throttle: AccountThrottle
    settings: Settings
    now: Clock

    # --- opened ---

    def login(
        self,
        email: str,
        password: str,
        *,
        remember: bool = False,
        ip: str | None = None,
        user_agent: str | None = None,
        replaces: Iterable[str] = (),
    ) -> Opened:
        """`replaces`: the tokens that came along, which end. Every refusal costs the same time."""
        for _ in range(2):
            opened = self._login(email, password, remember, ip, user_agent, replaces)
            if opened is not None:
                return opened
        raise Unauthenticated("Invalid email or password")

    def _login(
        self,
        email: str,
        password: str,
        remember: bool,
        ip: str | None,
        user_agent: str | None,
        replaces: Iterable[str],
    ) -> Opened | None:
        """None: the hash was changed while we were at it, perhaps only renewed by a login beside this one."""
        email = lookup_key(email)
        with self.store.read() as tx:
            found = tx.credentials(email)
            lockdown = tx.lockdown()
        account = account_key(found.user if found else None, email)
        self.throttle.check(account)
        with self.hasher.slot():
            self.throttle.count(account, found.user if found else None)
            # In a lockdown nobody learns whether a password fits, or who would be let in.
            admitted = found if found and (lockdown is None or lockdown.admits(found.user)) else None
            fits = self.hasher.matches(password, admitted.password_hash if admitted else None)
            if found is None or not fits:
                raise LockedDown if lockdown else Unauthenticated("Invalid email or password")
            renewed = self.hasher.renew(password) if self.hasher.needs_renewal(found.password_hash) else None
        with self.store.write() as tx:
            now = stamp(self.now())
            refuse_in_lockdown(tx, found.user)
            current = tx.credentials_of(found.user.id)
            if current is None:
                raise Unauthenticated("Invalid email or password")
            if current.password_hash != found.password_hash:
                return None
            if current.user.active:
                tx.clear_failures(account)
                if renewed is not None:
                    tx.renew_hash(current.user.id, current.password_hash, renewed)
                for token in replaces:
                    tx.delete_token(digest(token))
                return self._open(tx, current.user, remember=remember, ip=ip, user_agent=user_agent, now=now)
        self.throttle.uncount(account)
        raise Forbidden("Account is inactive")

    def open(
        self,
        user: User,
        *,
        remember: bool,
        ip: str | None = None,
        user_agent: str | None = None,
        replaces: Iterable[str] = (),
    ) -> Opened:
        """For somebody whose identity was shown in another way than by a password."""
        with self.store.write() as tx:
            refuse_in_lockdown(tx, user)
            current = tx.user(user.id)
            if current is None or not current.active:
                raise Forbidden("Account is inactive")
            for token in replaces:
                tx.delete_token(digest(token))
            return self._open(
                tx, current, remember=remember, ip=ip, user_agent=user_agent, now=stamp(self.now())
            )

    def _open(
        self, tx: Transaction, user: User, *, remember: bool, ip: str | None, user_agent: str | None, now: str
    ) -> Opened:
        kind = "persistent" if remember else "session"
        token = new_token()
        began = self.now()
        limit = began + max(ABSOLUTE_LIMIT, self.settings.remember_me_expiration)
        session = tx.add_token(
            user.id,
            digest(token),
            {
                "kind": kind,
                "name": "login",
                "created_at": now,
                "last_used_at": now,
                "expires_at": stamp(min(began + self.idle_time(kind), limit)),
                "limit_at": stamp(limit),
                "ip": ip,
                "user_agent": clean_user_agent(user_agent),
            },
        )
        tx.note_login(user.id, now)
        return Opened(token, session, user._replace(last_login_at=now))

    def idle_time(self, kind: str) -> timedelta:
        return (
            self.settings.remember_me_expiration if kind == "persistent" else self.settings.token_expiration
        )

    # --- checked ---

    def check(
        self, token: str, *, use: bool = True, renews: bool = True, nonblocking: bool = False
    ) -> tuple[Session, User] | None:
        """Whose session this is. Using it moves its expiry on, which is written at most once a minute.

        Without `renews` no cookie of the answer reaches the browser. A persistent session then stays at its expiry, which
        is that of the browser's cookie, and the next use that can move both does.

        `nonblocking`: Busy in the place of the one step that may have to wait, which is to note the use.
        """
        now = self.now()
        with self.store.glance() as tx:
            found = tx.session(digest(token), stamp(now))
        if found is None or not use:
            return found
        session, user = found
        if self._is_due(session, now, renews=renews):
            if nonblocking:
                raise Busy("The use of a session is to be noted", retry_after=0)
            session = self._note_use(session, renews=renews)
        return session, user

    def _is_due(self, session: Session, now: datetime, *, renews: bool) -> bool:
        noted = moment(session.last_used_at) if session.last_used_at else None
        if noted is None or now - noted >= self._pause(session) or noted > now:
            return True
        # Used since, but where nothing could renew the cookie.
        return renews and session.kind == "persistent" and session.expires_at < self._moved_by(session, noted)

    def _pause(self, session: Session) -> timedelta:
        """Between two notes. Shorter only for a session of one minute, which would end amid its use."""
        if session.limit_at is None:
            return USE_IS_NOTED_EVERY
        return min(USE_IS_NOTED_EVERY, self.idle_time(session.kind) / 2)

    def _moved_by(self, session: Session, used: datetime) -> Any:
        """The expiry that a use at this time leads to; an API token keeps the one that it was given."""
        if session.limit_at is None:
            return session.expires_at
        return min(stamp(used + self.idle_time(session.kind)), session.limit_at)

    def _note_use(self, session: Session, *, renews: bool) -> Session:
        now = self.now()
        moves = renews or session.kind != "persistent"
        expires_at = self._moved_by(session, now) if moves else session.expires_at
        try:
            with self.store.write(patience=NOTE_PATIENCE) as tx:
                tx.use_token(session.id, stamp(now), expires_at)
        except (Busy, StoreUnusable):
            return session  # a check answers while others write, or nobody can; the next one will note it
        return session._replace(last_used_at=stamp(now), expires_at=expires_at, moved=moves)

    # --- ended ---

    def end(self, token: str) -> Session | None:
        """Logout. An unknown token is no news, and nothing to write down."""
        with self.store.glance() as tx:
            if tx.session(digest(token), "") is None:
                return None
        with self.store.write() as tx:
            return tx.delete_token(digest(token))

    def listed(self, user_id: int | None = None, *, live: bool = True) -> list[Session]:
        with self.store.read() as tx:
            return list(tx.tokens(user_id, unexpired_at=stamp(self.now()) if live else None))

    def revoke(self, token_id: int, *, by: Actor, user_id: int | None = None) -> Session:
        """One token; with `user_id` only if it is that user's, and otherwise it does not exist."""
        with self.store.write() as tx:
            ended = tx.delete_token_by_id(token_id, user_id)
            if ended is None:
                raise NotFound("Session not found")
            tx.audit(
                stamp(self.now()),
                by,
                "revoke",
                tx.user(ended.user_id),
                token=ended.id,
                kind=ended.kind,
                name=ended.name,
            )
            return ended

    def revoke_all(self, user_ids: Iterable[int], *, by: Actor) -> list[int]:
        """How many ended, for each of them."""
        with self.store.write() as tx:
            return [self._revoke_all(tx, user_id, by) for user_id in user_ids]

    def _revoke_all(self, tx: Transaction, user_id: int, by: Actor) -> int:
        user = tx.user(user_id)
        if user is None:
            raise NotFound("User not found")
        ended = tx.delete_tokens_of(user_id)
        if ended:
            tx.audit(stamp(self.now()), by, "revoke-all", user, count=ended)
        return ended

    def renewal(self, session: Session) -> tuple[str, Callable[[Transaction], None]]:
        """A new token for a session that goes on, and the step that puts it in place within another change."""
        token = new_token()

        def renew(tx: Transaction) -> None:
            if not tx.replace_token_hash(session.id, digest(token)):
                raise Unauthenticated("Authentication required")  # ended in the meantime

        return token, renew

    # --- API tokens ---

    def create_api_token(
        self,
        user_id: int,
        *,
        name: str,
        lifetime: timedelta | None,
        tell: Callable[[Opened], object] = id,
        by: Actor,
    ) -> Opened:
        """Keeps the expiry that it is given: use does not move it. None: it never expires.

        `tell` is called before the commit: a token that cannot be shown is none.
        """
        token, now = new_token(), self.now()
        with self.store.write() as tx:
            user = tx.user(user_id)
            if user is None:
                raise NotFound("User not found")
            if not user.active:
                raise Forbidden("Account is inactive", hint="activate it first with: usersctl activate USER")
            session = tx.add_token(
                user_id,
                digest(token),
                {
                    "kind": "api",
                    "name": name,
                    "created_at": stamp(now),
                    "expires_at": stamp(now + lifetime) if lifetime is not None else None,
                },
            )
            tx.audit(
                stamp(now),
                by,
                "create-token",
                user,
                token=session.id,
                name=name,
                expires_at=session.expires_at,
            )
            made = Opened(token, session, user)
            tell(made)
            return made

    # --- cleanup: one function for cron, the endpoint and the daemon's schedule ---

    def stale(self, *, include_no_expiration: bool = False) -> Cleanup:
        """What a cleanup would remove now."""
        with self.store.read() as tx:
            expired, endless = tx.count_stale_tokens(stamp(self.now()))
        return Cleanup(expired, endless if include_no_expiration else 0, include_no_expiration)

    def cleanup(
        self,
        *,
        include_no_expiration: bool = False,
        by: Actor,
        progress: Callable[[int], Any] = lambda _removed: None,
    ) -> Cleanup:
        """Removes what has expired, in batches. What expires while it runs is the next run's."""
        now = stamp(self.now())
        removed = self._in_batches(lambda tx: tx.delete_expired_tokens(now, BATCH), progress)
        removed_endless = 0
        if include_no_expiration:
            removed_endless = self._in_batches(lambda tx: tx.delete_endless_tokens(BATCH), progress)
        self._in_batches(lambda tx: tx.delete_expired_one_time_tokens(now, BATCH))
        self._in_batches(lambda tx: tx.delete_oldest_failures(KEPT_ADDRESSES, BATCH))
        sent_before = stamp(self.now() - SENT_LETTERS_KEPT)
        self._in_batches(lambda tx: tx.delete_finished_letters(sent_before, BATCH))
        done = Cleanup(removed, removed_endless, include_no_expiration)
        with self.store.write() as tx:
            tx.audit(stamp(self.now()), by, "cleanup-tokens", **done._asdict())
        return done

    def _in_batches(
        self, delete: Callable[[Transaction], int], progress: Callable[[int], Any] = lambda _removed: None
    ) -> int:
        removed = 0
        while True:
            with self.store.write() as tx:
                batch = delete(tx)
            removed += batch
            progress(removed)
            if batch < BATCH:
                return removed
            self.store.checkpoint()
            time.sleep(PAUSE)


def clean_user_agent(text: str | None) -> str | None:
    """A header of a stranger, short and printable."""
    return "".join(c if c.isprintable() else " " for c in text[:MAX_USER_AGENT]) if text else None
