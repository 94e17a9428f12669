"""Invitations: an admin makes an account for an address, and its owner sets name and password by the link of an email."""

from collections.abc import Callable, Iterable, Iterator
from datetime import timedelta
from typing import TypeVar

from usersctl import invited
from usersctl.addresses import TAKEN, make_free, overrule_registration
from usersctl.changes import changes_of
from usersctl.clock import moment, stamp
from usersctl.config import Settings
from usersctl.credentials import dead_link, end_links_of_other_addresses, shut_out
from usersctl.durations import span
from usersctl.errors import Forbidden, Invalid, NothingToInvite, Taken
from usersctl.fields import lookup_key, name_of, normal_email, normal_group, normal_name, normal_role
from usersctl.groups import set_groups
from usersctl.lockdown import refuse_in_lockdown
from usersctl.mail.kinds import LONGEST_INVITATION, USUAL_INVITATION, EmailQueue
from usersctl.models import Actor, Invitation, Newcomer, Purpose, Role, User
from usersctl.named import NamedTuple
from usersctl.passwords import Hasher, check_password, password_is_set
from usersctl.permissions import admit
from usersctl.secrets import digest
from usersctl.store.store import Store
from usersctl.store.transaction import Transaction
from usersctl.ways_in import ways_into_each

T = TypeVar("T")

SHORTEST = timedelta(hours=1)  # an email may take a while
BATCH = 200  # accounts that one transaction looks at

_ENDS = {
    Purpose.INVITE_USED: "This invitation was accepted already",
    Purpose.INVITE_WITHDRAWN: "This invitation was withdrawn",
    Purpose.INVITE_REPLACED: "This invitation was replaced by a newer one",
    Purpose.INVITE_DELETED: "The account of this invitation was deleted",
}
EXPIRED = "This invitation has expired"


class Guest(NamedTuple):
    """Whom to invite, in the stored form of the fields. None: the invitation leaves it open."""

    email: str
    name: str | None = None
    role: str | None = None
    groups: tuple[str, ...] | None = None


class Waiting(NamedTuple):
    """An invitation that was not accepted yet."""

    user: User
    invitation: Invitation
    has_expired: bool
    last_email: str | None  # its state; None: the cleanup has removed it


class Offer(NamedTuple):
    """What the page of an invitation shows: the account, or why the link is dead."""

    user: User | None
    problem: str | None
    needs_name: bool = False


class Invitations(NamedTuple):
    """The account exists from the start, inactive and without a password: nothing but the link (or a sign-in by a provider
    that has verified the address) opens it."""

    store: Store
    hasher: Hasher
    settings: Settings
    emails: EmailQueue

    # --- by an admin ---

    def invite(self, guests: Iterable[Guest], lifetime: timedelta, *, by: Actor) -> list[User]:
        """All of them, or none. An address that is invited already is invited again."""
        with self.store.write() as tx:
            admit(tx, by)
            return [self._invite(tx, guest, lifetime, by) for guest in dict.fromkeys(guests)]

    def _invite(self, tx: Transaction, guest: Guest, lifetime: timedelta, by: Actor) -> User:
        holder = tx.user_by_email(guest.email)
        if holder is not None and holder.awaits_owner:
            return self._change(tx, holder, guest, lifetime, by)
        if holder is not None and holder.awaiting_confirmation:
            overrule_registration(tx, holder, by=by)
        elif holder is not None:
            hint = f"user {holder.id} has it; without a password: usersctl invite resend {holder.id}"
            raise Taken(TAKEN, hint=hint, value=guest.email)
        make_free(tx, self.emails, guest.email, by=by)
        name = guest.name or name_of(guest.email)
        made = tx.add_user(Newcomer(guest.email, name, role=guest.role or Role.USER, active=False))
        if guest.groups is not None:
            set_groups(tx, made, guest.groups, by=by)
        is_nameless = guest.name is None
        return invited.begin(tx, self.emails, made, lifetime, is_nameless=is_nameless, created=True, by=by)

    def _change(self, tx: Transaction, user: User, guest: Guest, lifetime: timedelta, by: Actor) -> User:
        """What the newer invitation says counts; what it leaves open stays."""
        present = tx.invitation_of(user.id)
        changes = changes_of(user, {"name": guest.name, "role": guest.role})
        if changes:
            user = tx.change_user(user.id, **changes)
            tx.audit(by, "update", user, **changes)
        if guest.groups is not None:
            set_groups(tx, user, guest.groups, by=by)
        is_nameless = guest.name is None and present is not None and present.is_nameless
        return invited.begin(tx, self.emails, user, lifetime, is_nameless=is_nameless, again=True, by=by)

    def again(self, user_ids: Iterable[int], lifetime: timedelta, *, by: Actor) -> list[User]:
        """Those who have not accepted yet, and active users without a password. All of them, or none."""
        with self.store.write() as tx:
            admit(tx, by)
            return [self._again(tx, user_id, lifetime, by) for user_id in user_ids]

    def _again(self, tx: Transaction, user_id: int, lifetime: timedelta, by: Actor) -> User:
        user = tx.existing_user(user_id)
        if not user.awaits_owner and (not user.active or password_is_set(tx.credentials_of(user_id))):
            raise NothingToInvite(user.email)
        present = tx.invitation_of(user_id)
        is_nameless = present is not None and present.is_nameless
        again = present is not None
        return invited.begin(tx, self.emails, user, lifetime, is_nameless=is_nameless, again=again, by=by)

    def withdraw(self, user_ids: Iterable[int], *, by: Actor) -> list[User]:
        """Removes an account that was never used. One that was active before it was invited stays."""
        with self.store.write() as tx:
            admit(tx, by)
            return [self._withdraw(tx, user_id, by) for user_id in user_ids]

    def _withdraw(self, tx: Transaction, user_id: int, by: Actor) -> User:
        user = tx.existing_user(user_id)
        if user.invited_at is None:
            hint = f"{user.email} has accepted it, or was never invited; usersctl delete removes an account"
            raise Forbidden("There is no invitation to withdraw", hint=hint)
        tx.end_invite_links(Purpose.INVITE_WITHDRAWN, user_id)
        if user.active:
            user = tx.change_user(user_id, **invited.NOT_INVITED)
        else:
            tx.delete_users([user_id])
        tx.audit(by, "withdraw-invitation", user, removed=not user.active)
        return user

    def waiting(self) -> list[Waiting]:
        with self.store.read() as tx:
            return [
                Waiting(user, invitation, invitation.has_expired(tx.now_text), last_email)
                for user, invitation, last_email in tx.invited_users()
            ]

    # --- to all who have no password ---

    def without_password(self) -> Iterator[User]:
        """Active users who have no way in, and were not invited yet."""
        after: int | None = 0
        while after is not None:
            with self.store.read() as tx:
                found, after = self._without_password(tx, after)
            yield from found

    def invite_without_password(self, lifetime: timedelta, *, by: Actor) -> Iterator[User]:
        """In batches, because other writers wait. After an interruption, a second run invites the others."""
        after: int | None = 0
        while after is not None:
            first = after
            with self.store.read() as tx:
                found, after = self._without_password(tx, first)
            if not found:
                continue
            with self.store.write() as tx:
                admit(tx, by)
                found, after = self._without_password(tx, first)
                begun = [invited.begin(tx, self.emails, user, lifetime, by=by) for user in found]
            yield from begun

    def _without_password(self, tx: Transaction, after: int) -> tuple[list[User], int | None]:
        """Of one batch, and the last id of the batch; None after the last."""
        batch = tx.users_to_invite(after, BATCH)
        ways = ways_into_each(tx, self.settings, [user.id for user in batch])
        return [user for user in batch if not ways[user.id]], batch[-1].id if batch else None

    # --- by the owner ---

    def look(self, token: str, email: str) -> Offer:
        """For the page. Uses nothing up."""
        with self.store.read() as tx:
            try:
                user, invitation = _invited(tx, digest(token), lookup_key(email))
            except Invalid as error:
                return Offer(None, str(error))
        return Offer(user, None, needs_name=invited.needs_name(user, invitation))

    def accept(
        self,
        token: str,
        email: str,
        name: str | None,
        password: str,
        *,
        then: Callable[[Transaction, User], T],
        by: Actor,
    ) -> T:
        """Proves the address, sets name and password, and calls `then` with the user in the same transaction.

        A weak password does not use up the link.
        """
        token_hash, email = digest(token), lookup_key(email)
        with self.store.read() as tx:
            user, invitation = _invited(tx, token_hash, email)
            refuse_in_lockdown(tx, user)
        if name is not None:
            user = user._replace(name=normal_name(name))
        elif invited.needs_name(user, invitation):
            raise Invalid("Name is required")
        password_hash = self.hasher.hash(check_password(self.settings, password, user))
        with self.store.write() as tx:
            refuse_in_lockdown(tx, user)
            present, _ = _invited(tx, token_hash, email)
            changes = {"password_hash": password_hash, "name": present.name if name is None else user.name}
            accepted = invited.accept(tx, present, by=by, through="link", **changes)
            shut_out(tx, accepted)
            end_links_of_other_addresses(tx, self.emails, accepted, by=by)
            tx.clear_failures(accepted.id)
            return then(tx, accepted)


def guest(
    email: str, name: str | None = None, role: str | None = None, groups: Iterable[str] | None = None
) -> Guest:
    """Invalid if a field breaks its rules."""
    return Guest(
        normal_email(email),
        None if name is None else normal_name(name),
        None if role is None else normal_role(role),
        None if groups is None else tuple(map(normal_group, groups)),
    )


def lifetime_of(expires: str | None) -> timedelta:
    lifetime = USUAL_INVITATION if expires is None else span(expires)
    if not SHORTEST <= lifetime <= LONGEST_INVITATION:
        raise Invalid("An invitation expires after 1h to 90d", value=expires)
    return lifetime


def expiry(invited: User, lifetime: timedelta) -> str:
    """Of an invitation that has just begun."""
    return stamp(moment(str(invited.invited_at)) + lifetime)


def _invited(tx: Transaction, token_hash: bytes, email: str) -> tuple[User, Invitation]:
    """The account that this link opens. Raises Invalid for a dead link, and says what became of it."""
    found = tx.invite_link(token_hash)
    if found is None:
        raise dead_link()
    state, link = found
    if state in _ENDS:
        raise Invalid(_ENDS[state])
    user = tx.user(link.user_id or 0)
    invitation = tx.invitation_of(link.user_id or 0)
    if user is None or invitation is None or not link.email == user.email == email:
        raise dead_link()
    if invitation.has_expired(tx.now_text):
        raise Invalid(EXPIRED)
    return user, invitation
