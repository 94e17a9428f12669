"""The journeys of passkeys: add one, sign in with it or use it as a second factor, rename and remove it."""

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from datetime import timedelta
from functools import partial
from typing import Any, TypeVar

from usersctl.errors import Inactive, Invalid, InvalidPasskey, NotFound, PasskeyRefused, Taken, TooMany
from usersctl.factors import changes, webauthn
from usersctl.factors.challenges import LIFETIME, TO_ADD, TO_USE, Challenges
from usersctl.factors.enrolment import Factors, as_json
from usersctl.fields import normal_name
from usersctl.lockdown import refuse_in_lockdown
from usersctl.mail.kinds import PASSKEY_REFUSED
from usersctl.models import Actor, Method, Passkey, User
from usersctl.named import NamedTuple
from usersctl.permissions import Check, admit
from usersctl.secrets import digest, in_base64, keyed_digest
from usersctl.store.signing_keys import USER_HANDLES
from usersctl.store.transaction import Transaction
from usersctl.throttle import clear_guesses
from usersctl.ways_in import LAST_WAY, ways_into

MOST_PASSKEYS = 20  # of one account
# Uses of an account's passkeys in ten minutes. A sign-in with one costs no hash of a password, and leaves rows: without a
# limit, a program fills the disk.
MOST_USES = 300
TIMEOUT = LIFETIME // timedelta(milliseconds=1)

T = TypeVar("T")


class Use(NamedTuple):
    """A passkey that was used rightly. It counts in the transaction that spends its challenge."""

    passkey: Passkey
    assertion: webauthn.Assertion


class Passkeys(NamedTuple):
    factors: Factors
    challenges: Challenges

    @property
    def site(self) -> webauthn.Site:
        settings = self.factors.settings
        if settings.rp_id is None:
            raise Invalid("Passkeys need an address with a name, which baseUrl has not")
        return webauthn.Site(settings.rp_id, settings.base_url)

    def user_handle(self, user_id: int) -> bytes:
        """What authenticators call the account: the same for all its passkeys, and of no meaning to others."""
        return keyed_digest(self.factors.store.signing_key(USER_HANDLES), str(user_id))

    def accepted(self, user_id: int) -> dict[str, Any] | None:
        """For `PublicKeyCredential.signalAllAcceptedCredentials()`: the browser forgets all others of the account."""
        if self.factors.settings.rp_id is None:
            return None
        with self.factors.store.read() as tx:
            present = tx.passkeys(user_id)
        return {
            "rpId": self.site.rp_id,
            "userId": in_base64(self.user_handle(user_id)),
            "allAcceptedCredentialIds": [in_base64(each.credential_id) for each in present],
        }

    # --- added ---

    def options_to_add(self, user_id: int, *, session_id: int, by: Actor) -> dict[str, Any]:
        """For `navigator.credentials.create()`, in the form that `parseCreationOptionsFromJSON` takes."""
        site = self.site
        with self.factors.store.read() as tx:
            admit(tx, by)
            user = self.factors.enroller(tx, user_id, by)
            present = tx.passkeys(user_id)
        _refuse_more(present)
        challenge = self.challenges.new(TO_ADD, _session(session_id))
        handle = in_base64(self.user_handle(user_id))
        return {
            "rp": {"id": site.rp_id, "name": self.factors.settings.brand},
            "user": {"id": handle, "name": user.email, "displayName": user.name},
            "challenge": in_base64(challenge),
            "pubKeyCredParams": [
                {"type": "public-key", "alg": algorithm} for algorithm in webauthn.ALGORITHMS
            ],
            "timeout": TIMEOUT,
            "excludeCredentials": _described(present),
            "authenticatorSelection": {
                "residentKey": "required",
                "requireResidentKey": True,
                "userVerification": "required",
            },
            "attestation": "none",
        }

    def add(
        self, user_id: int, credential: Mapping[str, Any], name: str, *, session_id: int, by: Actor
    ) -> tuple[dict[str, Any], list[str] | None]:
        """In the session that asked for the options. Returns also the recovery codes that come with the first factor."""
        name = normal_name(name)
        site = self.site
        is_ours = partial(self.challenges.is_ours, purpose=TO_ADD, bound_to=[_session(session_id)])
        new = webauthn.verify_new(credential, site, is_ours)
        with self.factors.store.write() as tx:
            admit(tx, by)
            user = self.factors.enroller(tx, user_id, by)
            _refuse_more(tx.passkeys(user_id))
            if not self.challenges.spend(tx, new.challenge):
                raise Invalid("Begin again: this answer was used before")
            passkey = tx.add_passkey(
                user_id,
                new.credential_id,
                rp_id=site.rp_id,
                public_key=new.public_key,
                algorithm=new.algorithm,
                sign_count=new.sign_count,
                name=name,
                synced=new.synced,
            )
            if passkey is None:
                raise Taken("This passkey is registered already")
            codes = changes.added(
                tx, self.factors.emails, user, changes.PASSKEY, passkey_id=passkey.id, by=by
            )
            # Its authenticator has just verified the user.
            tx.note_proof(by.token_hash, Method.PASSKEY)
            return as_json(passkey), codes

    def rename(self, user_id: int, passkey_id: int, name: str, *, by: Actor) -> None:
        name = normal_name(name)
        with self.factors.store.write() as tx:
            admit(tx, by)
            user = self.factors.owner(tx, user_id, by)
            if tx.rename_passkey(user_id, passkey_id, name) is None:
                raise NotFound("Passkey not found")
            tx.audit(by, "passkey-rename", user, passkey=passkey_id, name=name)

    def remove(self, user_id: int, passkey_id: int, *, by: Actor) -> None:
        with self.factors.store.write() as tx:
            admit(tx, by)
            user = self.factors.owner(tx, user_id, by)
            removed = tx.delete_passkey(user_id, passkey_id)
            if removed is None:
                raise NotFound("Passkey not found")
            settings = self.factors.settings
            # One that was made for another host may go: it opens nothing here.
            if removed.rp_id == settings.rp_id and not ways_into(tx, settings, user_id):
                raise Invalid(LAST_WAY)
            changes.removed(tx, self.factors.emails, user, changes.PASSKEY, passkey_id=passkey_id, by=by)

    # --- used ---

    def options(
        self, browser: str, user_id: int | None = None, pending: Iterable[str] = ()
    ) -> dict[str, Any]:
        """For `navigator.credentials.get()`: the passkeys of the user, or of the sign-in that waits. Without either, or with
        two different ones, the browser offers all that it has for this site."""
        site = self.site
        allowed: list[Passkey] = []
        if user_id is not None or pending:
            with self.factors.store.read() as tx:
                waiting = [tx.pending(digest(token)) for token in pending]
                users = {each.user_id for each in waiting if each}
                if user_id is not None:
                    users.add(user_id)
                if len(users) == 1:
                    allowed = tx.passkeys(*users)
        return {
            "challenge": in_base64(self.challenges.new(TO_USE, browser)),
            "rpId": site.rp_id,
            "timeout": TIMEOUT,
            "userVerification": "required",
            "allowCredentials": _described(allowed),
        }

    def sign_in(
        self,
        credential: Mapping[str, Any],
        browsers: Iterable[str],
        *,
        then: Callable[[Transaction, User], T],
        by: Actor,
    ) -> T:
        """Calls `then`, which opens the session, in the transaction in which the passkey was used."""
        use = self._verified(credential, browsers)
        if use.assertion.user_handle is None:
            raise InvalidPasskey("the authenticator does not say whose it is")
        with self.factors.store.write() as tx:
            user = tx.user(use.passkey.user_id)
            refuse_in_lockdown(tx, user)
            why = self._count(tx, use, by)
            if user is not None and not why:
                if not user.active:
                    raise Inactive(user.inactive_because)
                clear_guesses(tx, user.id)
                return then(tx, user)
        raise InvalidPasskey(why)  # after the commit, or the owner would get no email about a copy

    def owner_of(self, credential: Mapping[str, Any]) -> User | None:
        """Of the passkey that this names. Nothing about it is checked."""
        with suppress(PasskeyRefused), self.factors.store.read() as tx:
            passkey = tx.passkey(webauthn.credential_id(credential))
            return passkey and tx.user(passkey.user_id)
        return None

    def prepare(
        self, user_id: int, credential: Mapping[str, Any], browsers: Iterable[str], *, by: Actor
    ) -> Check:
        """The check of a passkey as a second factor of this account."""
        try:
            use = self._verified(credential, browsers)
        except InvalidPasskey:
            return lambda _: None

        def check(tx: Transaction) -> str | None:
            is_right = use.passkey.user_id == user_id and not self._count(tx, use, by)
            return Method.PASSKEY if is_right else None

        return check

    def _verified(self, credential: Mapping[str, Any], browsers: Iterable[str]) -> Use:
        is_ours = partial(self.challenges.is_ours, purpose=TO_USE, bound_to=tuple(browsers))
        site = self.site
        try:
            name = webauthn.credential_id(credential)
            with self.factors.store.read() as tx:
                passkey = tx.passkey(name)
            if passkey is None:
                raise InvalidPasskey("no account has it", is_known=False)
            assertion = webauthn.verify_use(credential, site, is_ours, public_key=passkey.public_key)
        except PasskeyRefused as refused:
            raise InvalidPasskey(refused.why) from None
        if assertion.user_handle not in (None, self.user_handle(passkey.user_id)):
            raise InvalidPasskey("it was made for another account")
        return Use(passkey, assertion)

    def _count(self, tx: Transaction, use: Use, by: Actor) -> str:
        """Why this use does not count, else "". The owner of what may be a copy gets an email, in this transaction."""
        passkey, assertion = use
        is_limited = self.factors.settings.limits_enabled
        if is_limited and self.challenges.spent_by(tx, passkey.user_id) >= MOST_USES:
            raise TooMany("Too many requests, please try again later", retry_after=60)
        if not self.challenges.spend(tx, assertion.challenge, passkey.user_id):
            return "it was used before"
        if tx.use_passkey(passkey.id, assertion.sign_count, synced=assertion.synced):
            return ""
        user = tx.user(passkey.user_id)
        if user is None or tx.passkey(passkey.credential_id) is None:
            return "it was removed meanwhile"
        self.factors.emails.add(tx, PASSKEY_REFUSED, user, user.email)
        tx.audit(by, "passkey-refused", user, passkey=passkey.id)
        return "its counter did not grow: it may be a copy"


def _session(session_id: int) -> str:
    return f"session {session_id}"


def _refuse_more(present: list[Passkey]) -> None:
    if len(present) >= MOST_PASSKEYS:
        raise Invalid(f"You have {MOST_PASSKEYS} passkeys: remove one first")


def _described(passkeys: list[Passkey]) -> list[dict[str, str]]:
    return [{"type": "public-key", "id": in_base64(each.credential_id)} for each in passkeys]
