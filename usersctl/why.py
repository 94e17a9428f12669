"""Why somebody cannot sign in: every gate between a person and a session, and what opens the one that is shut."""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from usersctl.clock import Clock, stamp
from usersctl.config import Settings
from usersctl.errors import Invalid
from usersctl.fields import lookup_key, normal_email, user_id_of
from usersctl.mail.kinds import CONFIRM, KINDS, RESET
from usersctl.models import Letter, User
from usersctl.passwords import password_is_set
from usersctl.store.store import Store
from usersctl.store.transaction import Transaction
from usersctl.text import counted
from usersctl.throttle import AccountThrottle, account_key


class State(StrEnum):
    OPEN = "open"
    SHUT = "shut"
    NOTE = "note"  # not in the way, and good to know


class Gate(NamedTuple):
    name: str
    state: State
    message: str
    mend: str | None = None


class Explanation(NamedTuple):
    user: User | None
    gates: list[Gate]

    @property
    def shut(self) -> Gate | None:
        """The first one that lets nobody through."""
        return next((gate for gate in self.gates if gate.state is State.SHUT), None)


def _open(name: str, message: str) -> Gate:
    return Gate(name, State.OPEN, message)


@dataclass(frozen=True)
class Why:
    store: Store
    throttle: AccountThrottle
    settings: Settings
    now: Clock

    def explain(self, reference: str) -> Explanation:
        """Of an id or an address, also of one that nobody has. All of it at one moment."""
        number = user_id_of(reference)
        with self.store.read() as tx:
            user = tx.user(number) if number is not None else tx.user_by_email(lookup_key(reference))
            if user is None:
                return Explanation(None, list(self._of_nobody(tx, reference, number)))
            return Explanation(user, list(self._of(tx, user)))

    def _of(self, tx: Transaction, user: User) -> Iterator[Gate]:
        has_password = password_is_set(tx.credentials_of(user.id))
        has_provider = self.settings.has_provider and user.oauth_id is not None
        yield _lockdown(tx, user)
        yield _open("exists", f"user {user.id}, {user.role}, since {user.created_at}")
        yield self._active(user)
        yield self._confirmed(user)
        yield self._not_throttled(tx, account_key(user, user.email), user)
        yield self._password(user, has_password=has_password, has_provider=has_provider)
        yield self._linked(user, has_password=has_password)
        yield self._letters(tx, user, needed=user.awaiting_confirmation or not (has_password or has_provider))
        yield self._sessions(tx, user)

    def _active(self, user: User) -> Gate:
        if user.active:
            return _open("active", "yes")
        if user.awaiting_confirmation:
            return Gate("active", State.SHUT, "not before the address is confirmed", self._confirming(user))
        return Gate(
            "active", State.SHUT, "an operator or an import made it inactive", f"usersctl activate {user.id}"
        )

    def _confirming(self, user: User) -> str:
        # A link to a registration that is closed would lead nowhere.
        if "/register" in self.settings.whitelist:
            return f"usersctl link confirm {user.id}"
        return f"usersctl activate {user.id}"

    def _confirmed(self, user: User) -> Gate:
        if user.awaiting_confirmation:
            return Gate(
                "confirmed", State.SHUT, "registered, and the letter was not answered", self._confirming(user)
            )
        if user.email_proven_at is None:
            return Gate("confirmed", State.NOTE, "was never asked to show that they read this address")
        return _open("confirmed", f"since {user.email_proven_at}")

    def _not_throttled(self, tx: Transaction, account: str, user: User | None) -> Gate:
        name, limit = "throttled", self.settings.failures_before_lock
        if not self.settings.limits_enabled:
            return _open(name, "limits are off here")
        failures = (tx.failures(account) or (0, ""))[0]
        left = self.throttle.wait(tx, account)
        if left is None:
            return _open(name, f"no; {counted(failures, 'failed login')} in a row")
        told = f"{failures} failed logins in a row"
        mend = f"usersctl unlock {user.id}" if user else None
        if failures >= limit:
            return Gate(name, State.SHUT, f"{told}: locked until a reset", mend)
        return Gate(name, State.SHUT, f"{told}: until {stamp(self.now() + left)}", mend)

    def _password(self, user: User, *, has_password: bool, has_provider: bool) -> Gate:
        if has_password:
            return _open("password", "has one")
        told, mend = "has none that could fit", f"usersctl link reset {user.id}"
        if has_provider:
            return Gate("password", State.NOTE, f"{told}, and signs in through the provider", mend)
        return Gate("password", State.SHUT, told, mend)

    def _linked(self, user: User, *, has_password: bool) -> Gate:
        name = "provider"
        if user.oauth_id is None:
            then = (
                "the first sign-in through it links the account"
                if self.settings.has_provider
                else "none is configured"
            )
            return Gate(name, State.NOTE, f"not linked; {then}")
        if self.settings.has_provider:
            return _open(name, f"linked as {user.oauth_id}")
        told = f"linked as {user.oauth_id}, and no provider is configured"
        return Gate(
            name, State.NOTE if has_password else State.SHUT, told, "set auth.oauth.clientId and clientSecret"
        )

    def _letters(self, tx: Transaction, user: User, *, needed: bool) -> Gate:
        """The last letter that lets somebody in."""
        kinds = {CONFIRM.name, RESET.name}
        last = next((each for each in tx.letters_of(user.id) if each.kind in kinds), None)
        name = "letter"
        if last is None:
            return _open(name, "none was asked for")
        told = f"{last.kind} of {last.created_at}: {_state_of(last)}"
        if last.state in ("waiting", "failed"):
            mend = f"usersctl mail retry {last.id}"
            return Gate(name, State.SHUT if needed else State.NOTE, told, mend)
        if last.state == "sent" and needed and last.finished_at is not None:
            hours = KINDS[last.kind].lifetime.total_seconds() / 3600
            told += f"; its link is good for {hours:.0f} h"
        return _open(name, told)

    def _sessions(self, tx: Transaction, user: User) -> Gate:
        live = list(tx.tokens(user.id, unexpired_at=stamp(self.now())))
        sessions = sum(each.kind != "api" for each in live)
        told = f"{sessions} open, {counted(len(live) - sessions, 'API token')}"
        return Gate("sessions", State.NOTE, f"{told}; last login {user.last_login_at or 'never'}")

    # --- nobody has this id or address ---

    def _of_nobody(self, tx: Transaction, reference: str, number: int | None) -> Iterator[Gate]:
        yield _lockdown(tx, None)
        before = number if number is not None else tx.last_id_of(lookup_key(reference))
        rows = list(tx.audit_rows(user_id=before)) if before is not None else []
        if rows:
            last = rows[-1]
            told = f"was user {before}, {last.email}; last: {last.action} at {last.at} by {last.actor}"
        else:
            told = f"no user {reference!r}, and none that the audit trail knows"
        yield Gate("exists", State.SHUT, told, "usersctl list --search TEXT")
        if number is not None:
            return
        try:
            email = normal_email(reference)
        except Invalid:
            yield Gate("address", State.SHUT, "this is no e-mail address")
            return
        yield self._not_throttled(tx, account_key(None, email), None)
        yield self._registration(email)
        yield self._first_sign_in()

    def _registration(self, email: str) -> Gate:
        if "/register" in self.settings.whitelist:
            return Gate(
                "registration",
                State.NOTE,
                "open: they can make an account at /register, and confirm it by letter",
            )
        return Gate(
            "registration",
            State.NOTE,
            "closed: an operator has to make the account",
            f"usersctl create {email}",
        )

    def _first_sign_in(self) -> Gate:
        name = "provider"
        if not self.settings.has_provider:
            return Gate(name, State.NOTE, "none is configured")
        if self.settings.oauth_allow_auto_registration:
            return Gate(name, State.NOTE, "a sign-in through it would make the account")
        return Gate(name, State.NOTE, "a sign-in through it would end in user_not_registered")


def _lockdown(tx: Transaction, user: User | None) -> Gate:
    closed = tx.lockdown()
    if closed is None:
        return _open("lockdown", "off")
    if closed.admits(user):
        return _open("lockdown", f"on since {closed.since}, but not for this one")
    return Gate(
        "lockdown", State.SHUT, f"on since {closed.since}, by {closed.actor}", "usersctl lockdown off"
    )


def _state_of(letter: Letter) -> str:
    said = f" ({letter.last_error})" if letter.last_error else ""
    when = (
        f" at {letter.finished_at}" if letter.finished_at else f", tried {counted(letter.attempts, 'time')}"
    )
    return f"{letter.state}{when}{said}"
