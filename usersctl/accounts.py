"""Accounts: created, looked up, changed and deleted. Each change is one transaction with its audit row."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from usersctl import addresses, fields
from usersctl.changes import changes_of, delete_users, make_changes
from usersctl.config import Settings
from usersctl.credentials import new_password
from usersctl.errors import Forbidden, NotFound, WrongPassword
from usersctl.fields import lookup_key, normal_email, normal_name, normal_role, whole_number
from usersctl.mail.kinds import ACCOUNT_UNLINKED, CONFIRM, RESET, EmailQueue
from usersctl.models import Actor, Newcomer, Page, Role, User, UserFilter
from usersctl.named import NamedTuple
from usersctl.passwords import Hasher, check_password
from usersctl.permissions import admit, keep_an_admin
from usersctl.store.store import Store
from usersctl.store.transaction import Transaction
from usersctl.throttle import AccountThrottle, counter_in_session
from usersctl.ways_in import ways_into

Tell = Callable[[User], object]
Renew = Callable[[Transaction], None]


class Accounts(NamedTuple):
    store: Store
    hasher: Hasher
    throttle: AccountThrottle
    settings: Settings
    emails: EmailQueue

    def get(self, user_id: int) -> User:
        with self.store.glance() as tx:
            return tx.existing_user(user_id)

    def find(self, reference: str, *, also_claimed: bool = False) -> User:
        """By id or known email address. `also_claimed` is for reading only: users may claim anybody's address."""
        number = whole_number(reference)
        address = "" if number is not None else lookup_key(reference)
        with self.store.glance() as tx:
            user = tx.user(number) if number is not None else tx.user_called(address)
        if user is None:
            raise NotFound(f"No user {reference!r}", hint="look for it with: usersctl list --search TEXT")
        if number is None and user.email != address and not also_claimed:
            hint = f"user {user.id} ({user.email}) claims this address and has not proven it: name the user by id"
            raise NotFound(f"No user {reference!r}", hint=hint)
        return user

    def manager_of(self, user_id: int) -> str | None:
        """The name of the file of `usersctl apply` that manages the account."""
        with self.store.glance() as tx:
            return tx.manager_of(user_id)

    def page(self, wanted: UserFilter, *, page: int = 1, limit: int = 10, after: int | None = None) -> Page:
        """`after`: the id of the last user of the page before, which makes a far page quick. An unknown id is ignored."""
        with self.store.read() as tx:
            wanted = wanted._replace(locks=self.throttle.locks(tx.now))
            return tx.page(wanted, page=page, limit=limit, after=after)

    @contextmanager
    def all(self, wanted: UserFilter) -> Iterator[Iterator[User]]:
        """Every user, without holding them all in memory."""
        with self.store.read() as tx:
            yield tx.users(wanted._replace(locks=self.throttle.locks(tx.now)))

    def newcomer(self, email: str, name: str, role: str = Role.USER) -> Newcomer:
        """An account that may be created: its fields keep the rules, and its address is not taken yet."""
        newcomer = fields.newcomer(email, name, role)
        with self.store.read() as tx:
            addresses.refuse_taken(tx, newcomer.email)
        return newcomer

    def create(
        self,
        newcomer: Newcomer,
        password: str | None,
        *,
        active: bool = True,
        proven: bool = False,
        tell: Tell = id,
        by: Actor,
    ) -> User:
        """Without a password the account has an unusable one: its owner sets one by a reset email.

        `proven`: an operator vouches that the owner reads the address, so that a first sign-in through the provider
        keeps the password.

        `tell` runs before the commit: if it fails (a generated password could not be printed), nothing is created.
        """
        newcomer = newcomer._replace(active=active)
        if password is not None:
            check_password(self.settings, password, newcomer)
            newcomer = newcomer._replace(password_hash=self.hasher.hash(password))
        with self.store.write() as tx:
            admit(tx, by)
            addresses.make_free(tx, self.emails, newcomer.email, by=by)
            vouched = {}
            if proven:
                newcomer, vouched = newcomer._replace(email_proven_at=tx.now_text), {"proven": True}
            user = tx.add_user(newcomer)
            tx.audit(by, "create", user, role=user.role, active=user.active, **vouched)
            tell(user)
            return user

    def update(
        self,
        user_id: int,
        *,
        name: str | None = None,
        email: str | None = None,
        role: str | None = None,
        active: bool | None = None,
        unlink: str | None = None,
        by: Actor,
    ) -> User:
        """All changes or none. Values that equal the stored ones are ignored; without a change `updated_at` stays.

        `unlink`: the name of an identity provider. A new address is a claim if it comes from its owner; an operator gives it at once.
        """
        email = normal_email(email) if email is not None else None
        asked: dict[str, Any] = {
            "name": normal_name(name) if name is not None else None,
            "role": normal_role(role) if role is not None else None,
            "active": active,
        }
        with self.store.write() as tx:
            admit(tx, by)
            return self._update(tx, user_id, asked, by, email=email, unlink=unlink)

    def set_active(self, user_ids: Iterable[int], *, active: bool, by: Actor) -> list[tuple[User, User]]:
        """Returns each user as it was before and as it is now."""
        with self.store.write() as tx:
            admit(tx, by)
            users = [tx.existing_user(user_id) for user_id in user_ids]
            return [(user, self._update(tx, user.id, {"active": active}, by)) for user in users]

    def _update(
        self,
        tx: Transaction,
        user_id: int,
        asked: dict[str, Any],
        by: Actor,
        *,
        email: str | None = None,
        unlink: str | None = None,
    ) -> User:
        user = tx.existing_user(user_id)
        changes = changes_of(user, asked)
        if "active" in changes and by.user_id == user_id:
            raise Forbidden("You cannot change your own active status")
        if changes.get("active") is False or "role" in changes:
            keep_an_admin(tx, [user])
        further: dict[str, Any] = {}
        if email is not None and _is_another(email, user, by):
            former, user = user, self._change_address(tx, user, email, by)
            if user.email != former.email:
                further |= {"email": user.email, "old_email": former.email}
        if unlink is not None:
            further |= self._unlink(tx, user, unlink)
        if not changes and not further:
            return user
        (changed,) = make_changes(tx, [user], changes, further, by=by)
        return changed

    def _unlink(self, tx: Transaction, user: User, provider: str) -> dict[str, Any]:
        """By an operator, who may take the last way in: then its owner sets a password by email."""
        if not tx.delete_identities(user.id, provider):
            return {}
        self.emails.add(tx, ACCOUNT_UNLINKED, user, user.email)
        if not ways_into(tx, self.settings, user.id):
            self.emails.add(tx, RESET, user, user.email)
        return {"unlinked": provider}

    def _change_address(self, tx: Transaction, user: User, email: str, by: Actor) -> User:
        """By its owner it is a claim, by another admin or an operator it is given."""
        if by.user_id == user.id:
            return addresses.change_own(tx, self.emails, user, email, by=by)
        given = addresses.give(tx, self.emails, user, email, by=by)
        if given.awaiting_confirmation and self.settings.registration_is_open:
            self.emails.add(tx, CONFIRM, given, given.email)  # the link to the former address is dead
        return given

    def delete(
        self, user_ids: Iterable[int], *, if_exists: bool = False, dry_run: bool = False, by: Actor
    ) -> list[User]:
        """Deletes all of these users, with all rows that refer to them, or none; returns the deleted ones."""
        with self.store.read() if dry_run else self.store.write() as tx:
            admit(tx, by)
            look = tx.user if if_exists else tx.existing_user
            users = list(filter(None, map(look, dict.fromkeys(user_ids))))
            keep_an_admin(tx, users)
            if not dry_run:
                delete_users(tx, users, by=by)
        return users

    def set_password(self, user_id: int, password: str, *, tell: Tell = id, by: Actor) -> User:
        """By an operator. Ends all sessions and API tokens; also clears the lock after failed logins."""
        user = self.get(user_id)
        _refuse_invited(user)
        password_hash = self.hasher.hash(check_password(self.settings, password, user))
        with self.store.write() as tx:
            admit(tx, by)
            user = tx.existing_user(user_id)
            _refuse_invited(user)
            changed = new_password(tx, self.emails, user, password_hash, action="set-password", by=by)
            tell(changed)
            return changed

    def change_password(
        self, user_id: int, current: str, new: str, *, session_id: int, by: Actor, renew: Renew | None
    ) -> User:
        """By the owner. Ends the other sessions; `renew` gives this one a new token in the same transaction."""
        with self.store.glance() as tx:
            credentials = tx.credentials_of(user_id)
        if credentials is None:
            raise NotFound("User not found")
        user, stored = credentials
        check_password(self.settings, new, user)
        with self.throttle.check(self.hasher, counter_in_session(user_id, session_id), by):
            if not self.hasher.matches(current, stored):
                raise WrongPassword("Current password is incorrect")
            password_hash = self.hasher.renew(new)
        with self.store.write() as tx:
            admit(tx, by)
            present = tx.credentials_of(user_id)
            if present is None or present.password_hash != stored:
                # The password was changed meanwhile, perhaps by a reset, so the former one proves nothing any more.
                raise WrongPassword("Current password is incorrect")
            if renew is not None:
                renew(tx)
            return new_password(
                tx, self.emails, present.user, password_hash, but=session_id, action="change-password", by=by
            )


def _is_another(email: str, user: User, by: Actor) -> bool:
    """Whether this changes the address. A form sends back the claimed address that it shows; only a command gives it."""
    return email != user.called or (email != user.email and by.user_id is None)


def _refuse_invited(user: User) -> None:
    """No password opens an account whose owner has not accepted the invitation."""
    if user.awaits_owner:
        hint = f"print it with: usersctl link invite {user.id}; make the account one like others with: usersctl activate {user.id}"
        raise Forbidden("The owner of an invited account sets its password with the link", hint=hint)
