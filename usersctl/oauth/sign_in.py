"""Sign-in through one identity provider: the account of a profile is found, linked or created."""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from threading import BoundedSemaphore
from typing import Any, TypeVar

from usersctl import invited
from usersctl.addresses import end_claim, holder_of, make_free, take_from_stranger
from usersctl.clock import CLOCKS_DIFFER
from usersctl.config.providers import ProviderSettings
from usersctl.credentials import end_links, shut_out
from usersctl.errors import Invalid, SignInRefused, Taken
from usersctl.fields import MAX_NAME, name_of, normal_email
from usersctl.lockdown import refuse_in_lockdown
from usersctl.mail.kinds import ACCOUNT_LINKED, PASSWORD_ENDED, EmailQueue
from usersctl.models import UNUSABLE, Actor, Identity, Link, Newcomer, Purpose, User
from usersctl.named import NamedTuple
from usersctl.oauth.http import HttpClient
from usersctl.oauth.providers import Profile, Provider
from usersctl.oauth.refusals import (
    ANOTHER_LINK,
    LINKED_OTHERWISE,
    NO_ADDRESS,
    NOT_SAID,
    OF_ANOTHER_USER,
    UNPROVEN,
    UNVERIFIED,
    refused,
)
from usersctl.passwords import password_is_set
from usersctl.permissions import admit, require_fresh
from usersctl.secrets import digest
from usersctl.store.store import Store
from usersctl.store.transaction import Transaction

T = TypeVar("T")

STATE_LIFETIME = timedelta(minutes=10)
SPENT_FOR = STATE_LIFETIME + CLOCKS_DIFFER  # one of a daemon whose clock is ahead is good for longer
MAX_PICTURE = 2000
TWIN_WAITS = 15.0  # seconds: as long as the provider and the database may take

NOT_REGISTERED, INACTIVE = "user_not_registered", "account_inactive"


class OAuthSignIn(NamedTuple):
    """Matches by the provider's id, else by address, else creates an account; all in one transaction."""

    store: Store
    settings: ProviderSettings
    emails: EmailQueue
    provider: Provider
    http: HttpClient
    places: BoundedSemaphore  # for sign-ins that wait for the provider
    under_way: dict[str, Any]  # sign-ins of this process, by state

    @contextmanager
    def place(self) -> Iterator[None]:
        """Around all that may wait for the provider: one that hangs leaves the threads for the others free."""
        if not self.places.acquire(blocking=False):
            raise refused(f"too many sign-ins wait for {self.settings.name} already")
        try:
            yield
        finally:
            self.places.release()

    def authorization_url(self, *, state: str, nonce: str, challenge: str) -> str:
        self.store.rest()
        return self.http.within_limits(
            lambda: self.provider.authorization_url(state=state, nonce=nonce, challenge=challenge)
        )

    def fetch_profile(self, *, code: str, verifier: str, nonce: str, issuer: str | None) -> Profile:
        def ask() -> Profile:
            grant = self.provider.exchange(code=code, verifier=verifier, nonce=nonce, issuer=issuer)
            return self.provider.profile(grant)

        self.store.rest()
        return self.http.within_limits(ask)

    def user_for(self, profile: Profile, *, then: Callable[[Transaction, User], T], by: Actor) -> T:
        """Finds, links or creates the account, and calls `then` with it in the same transaction."""
        email = _verified_address(profile)
        with self.store.write() as tx:
            linked = tx.user_by_link(self._link(profile))
            known = linked or self._by_address(tx, email)
            refuse_in_lockdown(tx, known)
            try:
                user = self._matched(tx, email, known, profile, by)
            except SignInRefused as error:
                error.account = known and known.id
                refusal = error  # what strangers lose to the owner of the address is committed all the same
            else:
                return then(tx, user)
        raise refusal

    def link(self, user_id: int, profile: Profile, *, by: Actor) -> None:
        """For a signed-in user who asked for it. The address at the provider may be another than that of the account."""
        email = _verified_address(profile)
        with self.store.write() as tx:
            admit(tx, by)
            require_fresh(tx, by)  # again: it took a while, and the account may have got a second factor
            user = tx.existing_user(user_id)
            if self._is_of_another(tx, user, email, profile):
                raise refused("this provider account is another user's", detail=OF_ANOTHER_USER)
            former = self._former(tx, user)
            if former is not None and former.link == self._link(profile):
                return
            if self._is_kept(former, profile):
                raise refused("the account is linked to another provider account", detail=ANOTHER_LINK)
            self._add_link(tx, user, email, profile)
            self.emails.add(tx, ACCOUNT_LINKED, user, user.email)
            tx.audit(by, "link", user, provider=self.settings.name, email=email)

    def _is_of_another(self, tx: Transaction, user: User, email: str, profile: Profile) -> bool:
        """It signs in to another account, or would by its address."""
        linked, holder = tx.user_by_link(self._link(profile)), tx.user_by_email(email)
        if linked is not None:
            return linked.id != user.id
        return holder is not None and holder.id != user.id and not holder.awaiting_confirmation

    def _matched(self, tx: Transaction, email: str, user: User | None, profile: Profile, by: Actor) -> User:
        claimant = tx.claimant(email)
        if claimant is not None and (user is None or claimant.id != user.id):
            end_claim(tx, self.emails, claimant, "claim-yielded", by=by)
        if user is None:
            return self._create(tx, email, profile, by)
        if user.invited_at is not None and user.email == email:
            user = self._show_up(tx, user, profile, by)
        if user.awaiting_confirmation:
            take_from_stranger(tx, user, through="provider", by=by)
            raise _inactive(user, "the account awaits its confirmation")
        former = self._former(tx, user)
        if former is not None and former.link == self._link(profile):
            return self._update_picture(tx, user, profile)
        return self._connect(tx, user, email, profile, by)

    def _show_up(self, tx: Transaction, user: User, profile: Profile, by: Actor) -> User:
        """The owner of an invited address signs in by a provider that has verified it: that accepts the invitation."""
        if self._is_kept(self._former(tx, user), profile):
            return user  # and refused
        invitation = tx.invitation_of(user.id)
        if user.active or invitation is None:
            invited.settle(tx, user)
            return user._replace(invited_at=None)
        if invitation.has_expired(tx.now_text):
            return user  # and refused as inactive
        name = user.name
        if invited.needs_name(user, invitation):
            name = _name(profile.name) or name
        return invited.accept(tx, user, by=by, through="provider", name=name)

    def _by_address(self, tx: Transaction, email: str) -> User | None:
        """By the known address. A registration that was not confirmed in time gives way to a new account."""
        if self.settings.allow_auto_registration:
            return holder_of(tx, email)
        return tx.user_by_email(email)

    def once(self, state: str, sign_in: Callable[[], T]) -> T:
        """Runs `sign_in` for a state that was never used. A callback that comes again meanwhile gets the same result.

        After a second click, a browser drops the answer to the first: without the result that person would not come in.
        """
        from concurrent.futures import Future

        mine: Future[T] = Future()
        first: Future[T] = self.under_way.setdefault(state, mine)
        if first is not mine:
            try:
                return first.result(TWIN_WAITS)
            except TimeoutError:
                raise refused("the first callback with this state takes too long") from None
        try:
            self.spend(state)
            result = sign_in()
        except BaseException as error:
            mine.set_exception(error)
            raise
        else:
            mine.set_result(result)
            return result
        finally:
            del self.under_way[state]

    def spend(self, state: str) -> None:
        """Raises SignInRefused for a state that was used before."""
        with self.store.write() as tx:
            if not tx.add_one_time_token(digest(state), Purpose.OAUTH_SPENT, SPENT_FOR):
                raise refused("this state was used before")

    def _update_picture(self, tx: Transaction, user: User, profile: Profile) -> User:
        if not user.active:
            raise _inactive(user)
        picture = _picture(profile.picture)
        if picture is not None and picture != user.profile_picture:
            return tx.change_user(user.id, profile_picture=picture)
        return user

    def _link(self, profile: Profile) -> Link:
        return Link(self.settings.name, self.settings.issuer_of_links or "", profile.subject)

    def _former(self, tx: Transaction, user: User) -> Identity | None:
        return tx.identity_of(user.id, self.settings.name)

    def _is_kept(self, former: Identity | None, profile: Profile) -> bool:
        """Whether the account stays with another id. An id of another issuer no longer signs in here, so it does not keep
        the address's owner out. One that is not bound yet may be of this issuer."""
        here = self._link(profile)
        return former is not None and former.issuer in ("", here.issuer) and former.subject != here.subject

    def _add_link(self, tx: Transaction, user: User, email: str, profile: Profile) -> None:
        tx.delete_identities(user.id, self.settings.name)
        tx.add_identities([Identity(user.id, *self._link(profile), email, tx.now_text)])

    def _connect(self, tx: Transaction, user: User, email: str, profile: Profile, by: Actor) -> User:
        former = self._former(tx, user)
        if self._is_kept(former, profile):
            raise refused("the account is linked to another provider account", detail=LINKED_OTHERWISE)
        if not user.active:
            raise _inactive(user)
        changes: dict[str, Any] = {"email_proven_at": tx.now_text}
        picture = _picture(profile.picture)
        if picture is not None:
            changes["profile_picture"] = picture
        notice, ended = ACCOUNT_LINKED, 0
        if user.email_proven_at is None:
            if user.factors:
                # They may be of a stranger who waits inside, or of the owner: neither keeps them nor ends them by a link.
                why = "the account has a second factor, and its address was never proven"
                raise refused(why, detail=UNPROVEN)
            # An account for somebody else's address must not wait for its owner with a known password or open session.
            if password_is_set(tx.credentials_of(user.id)):
                notice = PASSWORD_ENDED
            changes["password_hash"] = UNUSABLE
            ended = shut_out(tx, user, notices=True)
            self._end_links_of_others(tx, user, email, by)
        self._add_link(tx, user, email, profile)
        linked = tx.change_user(user.id, **changes)
        self.emails.add(tx, notice, linked, linked.email)
        details: dict[str, Any] = {"former_issuer": former.issuer} if former else {}
        if ended:
            details["ended"] = ended
        replaced = notice is PASSWORD_ENDED
        tx.audit(by, "link", linked, provider=self.settings.name, password_replaced=replaced, **details)
        return linked

    def _end_links_of_others(self, tx: Transaction, user: User, email: str, by: Actor) -> None:
        """Of this account to other providers, unless one of them has verified the same address."""
        here = self.settings.name  # whose link is replaced
        others = [link for link in tx.identities_of(user.id) if link.provider != here and link.email != email]
        end_links(tx, self.emails, user, others, by=by)

    def _create(self, tx: Transaction, email: str, profile: Profile, by: Actor) -> User:
        if not self.settings.allow_auto_registration:
            raise SignInRefused(NOT_REGISTERED, "no account has this address")
        try:
            make_free(tx, self.emails, email, by=by)
        except Taken:
            raise refused("the address is reserved for another account") from None
        name, picture = _name(profile.name) or name_of(email), _picture(profile.picture)
        made = tx.add_user(Newcomer(email, name, email_proven_at=tx.now_text, profile_picture=picture))
        self._add_link(tx, made, email, profile)
        user = tx.user(made.id) or made
        details = {"through": "provider", "provider": self.settings.name}
        tx.audit(by, "create", user, role=user.role, active=True, **details)
        tx.count_registration()
        return user


def _verified_address(profile: Profile) -> str:
    if not profile.email:
        raise refused("the provider gave no address", detail=NO_ADDRESS)
    if not profile.email_verified:
        detail = UNVERIFIED if profile.says_unverified else NOT_SAID
        raise refused(profile.unverified_because, detail=detail)
    try:
        return normal_email(profile.email)
    except Invalid:
        raise refused("the provider gave no usable address") from None


def _inactive(user: User, reason: str = "the account is inactive") -> SignInRefused:
    return SignInRefused(INACTIVE, reason, detail=user.inactive_because)


def _name(text: str | None) -> str:
    """The provider's name, changed as little as the rules for names allow."""
    visible = "".join(c if c.isprintable() else " " for c in text or "")
    return " ".join(visible.split())[:MAX_NAME].strip()


def _picture(url: str | None) -> str | None:
    usable = url is not None and len(url) < MAX_PICTURE and re.fullmatch(r"(?i:https?)://[!-~]+", url)
    return url if usable else None
