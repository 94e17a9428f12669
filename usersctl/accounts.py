"""Accounts: made, found, changed, deleted. Each change is one transaction with its audit row."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from usersctl.clock import Clock, stamp
from usersctl.config import Settings
from usersctl.errors import Forbidden, LastAdmin, NotFound, Taken, Unauthenticated, WrongPassword
from usersctl.fields import lookup_key, normal_email, normal_name, normal_role, user_id_of
from usersctl.mail.kinds import EMAIL_CHANGED, PASSWORD_CHANGED, RESET, queue
from usersctl.models import UNUSABLE, Actor, NewUser, Page, Role, User, UserFilter
from usersctl.passwords import Hasher, check_password, password_is_set
from usersctl.store.store import Store
from usersctl.store.transaction import Transaction
from usersctl.throttle import AccountThrottle, account_key


@dataclass(frozen=True)
class Accounts:
    store: Store
    hasher: Hasher
    throttle: AccountThrottle
    settings: Settings
    now: Clock

    # --- found ---

    def get(self, user_id: int) -> User:
        with self.store.glance() as tx:
            return _found(tx.user(user_id))

    def find(self, reference: str) -> User:
        """By id, or by e-mail address."""
        number = user_id_of(reference)
        with self.store.glance() as tx:
            user = tx.user(number) if number is not None else tx.user_by_email(lookup_key(reference))
        if user is None:
            raise NotFound(f"No user {reference!r}", hint="look for it with: usersctl list --search TEXT")
        return user

    def page(self, wanted: UserFilter, *, page: int = 1, limit: int = 10, after: int | None = None) -> Page:
        """`after`: the id of the last user of the page before, by which a far page is found at once. One who is not
        there any more makes no difference but in time."""
        offset = (page - 1) * limit
        with self.store.read() as tx:
            behind = tx.user(after) if after is not None else None
            if behind is not None:
                users, total = list(tx.users(wanted, limit=limit, behind=behind)), tx.count_users(wanted)
            elif wanted.search:
                users = list(tx.users(wanted, limit=limit, offset=offset))
                # To search is to read them all, which is done once where this page tells how many there are.
                is_last = len(users) < limit and (len(users) > 0 or page == 1)
                total = offset + len(users) if is_last else tx.count_users(wanted)
            else:
                total = tx.count_users(wanted)
                users = _from_the_nearer_end(tx, wanted, limit, offset, total)
        return Page(users, page, limit, total)

    @contextmanager
    def all(self, wanted: UserFilter) -> Iterator[Iterator[User]]:
        """Every one, as they come, without holding them all."""
        with self.store.read() as tx:
            yield tx.users(wanted)

    def has_admin(self) -> bool:
        with self.store.glance() as tx:
            return tx.active_admins() > 0

    # --- made ---

    def create(
        self,
        email: str,
        name: str,
        password: str | None,
        *,
        role: str = Role.USER,
        active: bool = True,
        tell: Callable[[User], object] = id,
        by: Actor,
    ) -> User:
        """Without a password the account has none that fits: its owner sets one by a reset letter.

        `tell` is called before the commit: what cannot be told, a password that was made up, is not done.
        """
        email, name, role = normal_email(email), normal_name(name), normal_role(role)
        if password is not None:
            check_password(self.settings, password, email=email, name=name)
        with self.store.glance() as tx:
            _refuse_taken(tx.user_by_email(email))  # before the costly hash; what counts is asked below
        password_hash = UNUSABLE if password is None else self.hasher.hash(password)
        now = stamp(self.now())
        with self.store.write() as tx:
            _refuse_who_lost_the_right(tx, by)
            user = tx.add_user(NewUser(email, name, password_hash, role, active, now))
            if user is None:
                raise _taken()
            tx.audit(stamp(self.now()), by, "create", user, role=role, active=active)
            tell(user)
            return user

    # --- changed ---

    def update(
        self,
        user_id: int,
        *,
        name: str | None = None,
        email: str | None = None,
        role: str | None = None,
        active: bool | None = None,
        unlink: bool = False,
        by: Actor,
    ) -> User:
        """All of it, or nothing. What is already so is no change, and moves no timestamp."""
        asked: dict[str, Any] = {
            "name": normal_name(name) if name is not None else None,
            "email": normal_email(email) if email is not None else None,
            "role": normal_role(role) if role is not None else None,
            "active": active,
        }
        with self.store.write() as tx:
            return self._update(tx, user_id, asked, by, unlink=unlink)

    def set_active(self, user_ids: Iterable[int], *, active: bool, by: Actor) -> list[User]:
        with self.store.write() as tx:
            return [self._update(tx, user_id, {"active": active}, by) for user_id in user_ids]

    def _update(
        self, tx: Transaction, user_id: int, asked: dict[str, Any], by: Actor, *, unlink: bool = False
    ) -> User:
        user = _found(tx.user(user_id))
        changes = _changes(user, asked, unlink=unlink)
        if "active" in changes and by.user_id == user_id:
            raise Forbidden("You cannot change your own active status")
        if not changes:
            return user
        self._refuse_last_admin(tx, [user], changes)
        told = {key: value for key, value in changes.items() if key in asked}
        if "email" in changes:
            _refuse_taken(tx.user_by_email(changes["email"]))
            told["old_email"] = user.email
            changes["email_proven_at"] = None
        now = self.now()
        if "email" in changes or changes.get("active") is False:
            tx.drop_one_time_tokens(user_id, stamp(now))
        if changes.get("active") is False:
            tx.delete_tokens_of(user_id)
            tx.drop_notices(user_id)
        changed = tx.change_user(user_id, stamp(now), **changes)
        if "email" in changes:
            queue(tx, EMAIL_CHANGED, changed, user.email, now)
        if "oauth_id" in changes:
            told["unlinked"] = True
            stored = tx.credentials_of(user_id)
            if not password_is_set(stored):
                queue(tx, RESET, changed, changed.email, now)  # the link was the last way in
        tx.audit(stamp(self.now()), by, _action(changes), changed, **told)
        return changed

    def delete(
        self, user_ids: Iterable[int], *, if_exists: bool = False, dry_run: bool = False, by: Actor
    ) -> list[User]:
        """With all that hangs on them; all of them, or none. Whom it was done to."""
        with self.store.read() if dry_run else self.store.write() as tx:
            asked = [tx.user(user_id) for user_id in dict.fromkeys(user_ids)]
            users = [_found(user) for user in asked if user is not None or not if_exists]
            self._refuse_last_admin(tx, users, {"active": False})
            if not dry_run:
                for user in users:
                    tx.delete_user(user.id)
                    tx.audit(stamp(self.now()), by, "delete", user)
        return users

    def set_password(
        self, user_id: int, password: str, *, tell: Callable[[User], object] = id, by: Actor
    ) -> User:
        """By an operator: ends every session and API token of the user, and opens an account that guesses locked."""
        user = self.get(user_id)
        check_password(self.settings, password, email=user.email, name=user.name)
        password_hash = self.hasher.hash(password)
        with self.store.write() as tx:
            user = _found(tx.user(user_id))
            tx.delete_tokens_of(user_id)
            tx.drop_one_time_tokens(user_id, stamp(self.now()))
            tx.clear_failures(account_key(user, user.email))
            changed = tx.change_user(user_id, stamp(self.now()), password_hash=password_hash)
            queue(tx, PASSWORD_CHANGED, changed, changed.email, self.now())
            tx.audit(stamp(self.now()), by, "set-password", changed)
            tell(changed)
            return changed

    def change_password(
        self,
        user_id: int,
        current: str,
        new: str,
        *,
        session_id: int,
        by: Actor,
        renew: Callable[[Transaction], None] | None,
    ) -> User:
        """By the owner: ends the other sessions; `renew` gives this one a new token in the same transaction."""
        with self.store.glance() as tx:
            found = tx.credentials_of(user_id)
        if found is None:
            raise NotFound("User not found")
        user, stored = found
        check_password(self.settings, new, email=user.email, name=user.name)
        account = account_key(user, user.email)
        self.throttle.check(account)
        with self.hasher.slot():
            self.throttle.count(account, user)
            if not self.hasher.matches(current, stored):
                raise WrongPassword("Current password is incorrect")
            password_hash = self.hasher.renew(new)
        with self.store.write() as tx:
            now_stored = tx.credentials_of(user_id)
            if now_stored is None or now_stored.password_hash != stored:
                # Somebody else was quicker, perhaps a reset: the old password no longer speaks for anybody.
                raise WrongPassword("Current password is incorrect")
            tx.delete_tokens_of(user_id, but=session_id)
            tx.drop_one_time_tokens(user_id, stamp(self.now()))
            tx.clear_failures(account)
            if renew is not None:
                renew(tx)
            changed = tx.change_user(user_id, stamp(self.now()), password_hash=password_hash)
            queue(tx, PASSWORD_CHANGED, changed, changed.email, self.now())
            tx.audit(stamp(self.now()), by, "change-password", changed)
            return changed

    # --- rules ---

    def _refuse_last_admin(self, tx: Transaction, users: list[User], changes: dict[str, Any]) -> None:
        leave = changes.get("active") is False or changes.get("role", Role.ADMIN) != Role.ADMIN
        admins = sum(user.active and user.role == Role.ADMIN for user in users)
        if leave and admins and admins == tx.active_admins():
            raise LastAdmin


def _changes(user: User, asked: dict[str, Any], *, unlink: bool) -> dict[str, Any]:
    """What is asked for and not so already."""
    changes = {
        key: value for key, value in asked.items() if value is not None and value != getattr(user, key)
    }
    if asked.get("active") is not None and user.awaiting_confirmation:
        # Whoever decides on `active` takes that decision from the letter.
        changes |= {"active": asked["active"], "awaiting_confirmation": False}
    if unlink and user.oauth_id is not None:
        changes["oauth_id"] = None
    return changes


def _from_the_nearer_end(
    tx: Transaction, wanted: UserFilter, limit: int, offset: int, total: int
) -> list[User]:
    """Whoever is passed over is counted one by one, so the last page is read backwards."""
    left = total - offset
    if left > offset:
        return list(tx.users(wanted, limit=limit, offset=offset))
    backwards = wanted._replace(descending=not wanted.descending)
    found = tx.users(backwards, limit=max(0, min(limit, left)), offset=max(0, left - limit))
    return list(found)[::-1]


def _found(user: User | None) -> User:
    if user is None:
        raise NotFound("User not found")
    return user


def _refuse_who_lost_the_right(tx: Transaction, by: Actor) -> None:
    """What an admin asked for may have taken a while, and who is one now counts."""
    if by.user_id is None:
        return
    actor = tx.user(by.user_id)
    if actor is None or not actor.active:
        raise Unauthenticated("Authentication required")
    if actor.role != Role.ADMIN:
        raise Forbidden("Admin access required")


def _taken() -> Taken:
    return Taken("Email is already registered")


def _refuse_taken(user: User | None) -> None:
    if user is not None:
        raise _taken()


def _action(changes: dict[str, Any]) -> str:
    if set(changes) <= {"active", "awaiting_confirmation"}:
        return "activate" if changes["active"] else "deactivate"
    return "update"
