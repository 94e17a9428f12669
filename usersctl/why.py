"""Explains why a user cannot sign in: each condition for a session, and the command that fulfils one that is not met."""

import shlex
from collections.abc import Iterator
from enum import StrEnum
from functools import partial

from usersctl.clock import stamp
from usersctl.config import Settings
from usersctl.config.providers import ProviderSettings, host_of, table_of
from usersctl.errors import KeyUnusable
from usersctl.factors.sealing import Sealer, totp_context
from usersctl.fields import lookup, lookup_key, whole_number
from usersctl.mail.kinds import CONFIRM, INVITATION, KINDS, RESET
from usersctl.models import OAUTH, EmailState, Identity, QueuedEmail, TokenKind, TotpSecret, User
from usersctl.named import NamedTuple
from usersctl.passwords import MEND_LIBRARY, lacks_library
from usersctl.store.store import Store
from usersctl.store.transaction import Transaction
from usersctl.text import counted
from usersctl.throttle import AccountThrottle, counter_of
from usersctl.ways_in import Way, ways_into

CLOSED = (
    "too many wrong codes: the authenticator app is closed until an unlock or a sign-in with another factor"
)


class State(StrEnum):
    OPEN = "open"
    SHUT = "shut"
    NOTE = "note"  # good to know, but no obstacle


class Cause(StrEnum):
    """What is in the way of a user."""

    LOCKDOWN = "lockdown"
    AWAITING = "awaiting-confirmation"
    INVITED = "invited"
    INVITATION_EXPIRED = "invitation-expired"
    DEACTIVATED = "deactivated"
    DELETION = "deletion"
    LOCKED = "locked"
    THROTTLED = "throttled"
    DEVICES_LOCKED = "devices-locked"
    NO_PASSWORD = "no-password"  # noqa: S105 - none is in it
    NO_LIBRARY = "no-library"
    NO_PROVIDER = "no-provider"
    MUST_ENROL = "must-enrol"
    NO_USABLE_FACTOR = "no-usable-factor"
    EMAIL_WAITING = "email-waiting"
    EMAIL_FAILED = "email-failed"


class Step(StrEnum):
    """What an admin can do about it without a command."""

    ACTIVATE = "activate"
    UNLOCK = "unlock"
    SEND_RESET = "reset-letter"
    SEND_CONFIRMATION = "confirm-letter"
    INVITE = "invite"


class Gate(NamedTuple):
    """One condition between a user and a session. One that is shut has a cause, if the user has an account."""

    state: State
    name: str
    message: str
    mend: str | None = None  # a command
    cause: Cause | None = None
    step: Step | None = None
    until: str | None = None  # when it opens by itself, or the account is deleted


class Explanation(NamedTuple):
    user: User | None
    gates: list[Gate]

    @property
    def findings(self) -> list[Gate]:
        """What is in the way of an account: the first gate of each cause."""
        first: dict[Cause | None, Gate] = {}
        for gate in self.gates:
            if gate.state is State.SHUT:
                first.setdefault(gate.cause, gate)
        return list(first.values())

    @property
    def shut(self) -> Gate | None:
        """The first condition that is not met."""
        return next((gate for gate in self.gates if gate.state is State.SHUT), None)


_open = partial(Gate, State.OPEN)
_shut = partial(Gate, State.SHUT)
_note = partial(Gate, State.NOTE)


class Why(NamedTuple):
    store: Store
    throttle: AccountThrottle
    settings: Settings
    sealer: Sealer

    def explain(self, reference: str) -> Explanation:
        """Explains an id or an email address, which need not have an account, in one snapshot of the database."""
        number = whole_number(reference)
        with self.store.read() as tx:
            user = tx.user(number) if number is not None else tx.user_called(lookup_key(reference))
            if user is None:
                return Explanation(None, list(self._without_account(tx, reference, number)))
            return Explanation(user, list(self._with_account(tx, user)))

    def _with_account(self, tx: Transaction, user: User) -> Iterator[Gate]:
        stored = tx.credentials_of(user.id)
        identities = {identity.provider: identity for identity in tx.identities_of(user.id)}
        ways = ways_into(tx, self.settings, user.id)
        yield _lockdown(tx, user)
        yield _open("exists", f"user {user.id}, {user.role}, since {user.created_at}")
        yield _invited(tx, user) if user.awaits_owner else self._active(user)
        yield self._confirmed(user)
        yield self._throttled(tx, user, user.email)
        if stored is not None and lacks_library(stored.password_hash):
            message = "its hash is of another system, and needs a library that is not installed"
            yield _shut("password", message, MEND_LIBRARY, Cause.NO_LIBRARY, Step.SEND_RESET)
        elif not user.awaits_owner:
            yield _password(user, ways)
        yield from self._providers(user, identities, has_another_way=bool(ways))
        yield self._second_factor(tx, user, ways, identities)
        by_hand = {
            CONFIRM.name: self._command_to_confirm(user),
            RESET.name: f"usersctl link reset {user.id}",
            INVITATION.name: f"usersctl link invite {user.id}",
        }
        needed = user.awaiting_confirmation or not ways
        yield _email(tx, user, needed=needed, by_hand=by_hand)
        if user.claimed_email is not None:
            mend = f"usersctl link email {user.id}"
            yield _note("claim", f"{user.claimed_email} waits for its confirmation", mend)
        yield self._sessions(tx, user)

    def _active(self, user: User) -> Gate:
        if user.active:
            return _open("active", "yes")
        if user.awaiting_confirmation:
            return self._awaiting(user, "active", "inactive until the address is confirmed")
        mend = f"usersctl activate {user.id}"
        if user.delete_at is not None:
            message = f"its owner deleted it, and can undo that by email until {user.delete_at}"
            return _shut("active", message, mend, Cause.DELETION, Step.ACTIVATE, user.delete_at)
        message = "an admin, an operator or an import made it inactive"
        return _shut("active", message, mend, Cause.DEACTIVATED, Step.ACTIVATE)

    def _confirmed(self, user: User) -> Gate:
        if user.awaiting_confirmation:
            return self._awaiting(user, "confirmed", "registered, but never confirmed")
        if user.email_proven_at is None:
            return _note("confirmed", "the owner was never asked to confirm this address")
        return _open("confirmed", f"since {user.email_proven_at}")

    def _awaiting(self, user: User, name: str, message: str) -> Gate:
        step = Step.ACTIVATE
        if self.settings.registration_is_open:
            step = Step.SEND_CONFIRMATION
        return _shut(name, message, self._command_to_confirm(user), Cause.AWAITING, step)

    def _command_to_confirm(self, user: User) -> str:
        # While registration is closed, the page behind a link to confirm is closed, too.
        command = "link confirm" if self.settings.registration_is_open else "activate"
        return f"usersctl {command} {user.id}"

    def _throttled(self, tx: Transaction, user: User | None, email: str) -> Gate:
        if not self.settings.limits_enabled:
            return _open("throttled", "limits are off here")
        strangers = counter_of(tx, user, email)
        failures, _ = tx.failures(strangers.key) or (0, "")
        known = tx.failures_but(strangers.key, strangers.user_id)
        codes = " and wrong codes" if user is not None and user.factors else ""
        message = f"{counted(failures, 'failed login')}{codes} in a row"
        if known:
            message += f", and {known} on known devices or in sessions"
        shut = partial(_shut, "throttled")
        if user is not None:
            shut = partial(shut, mend=f"usersctl unlock {user.id}", step=Step.UNLOCK)
        wait = self.throttle.wait(tx, strangers)
        if self.throttle.is_locked(tx, strangers):
            return shut(f"{message}: locked until a reset, but for known devices", cause=Cause.LOCKED)
        if wait is not None:
            until = stamp(tx.now + wait)
            message = f"{message}: until {until}, but for known devices"
            return shut(message, cause=Cause.THROTTLED, until=until)
        if known >= self.throttle.of_known:
            return shut(f"{message}: known devices are locked until a reset", cause=Cause.DEVICES_LOCKED)
        return _open("throttled", f"no; {message}")

    def _providers(
        self, user: User, identities: dict[str, Identity], *, has_another_way: bool
    ) -> Iterator[Gate]:
        """One for each provider that is configured or linked."""
        names = [provider.name for provider in self.settings.providers]
        if not names and not identities:
            yield _note("provider", "not linked; none is configured")
        for name in dict.fromkeys([*names, *identities]):
            yield self._provider(name, user, identities.get(name), has_another_way=has_another_way)

    def _provider(self, name: str, user: User, identity: Identity | None, *, has_another_way: bool) -> Gate:
        gate = _gate_of(name)
        # The factor may be a stranger's: see OAuthSignIn.
        refuses = user.email_proven_at is None and bool(user.factors)
        refusal = (
            "refuses a sign-in through it: the account has a second factor, and its address was never proven"
        )
        reset = f"usersctl link reset {user.id}"
        if identity is None and refuses:
            return _note(gate, f"not linked, and {refusal}", reset)
        if identity is None:
            return _note(gate, "not linked; the first sign-in through it links the account")
        message = f"linked as {identity.subject}"
        if identity.issuer:
            message += f" at {identity.issuer}"
        if self.settings.opens(name, identity.issuer):
            return _open(gate, message)
        result = _note if has_another_way else partial(_shut, cause=Cause.NO_PROVIDER)
        if self.settings.provider(name) is not None:
            message += ", which is not the configured provider"
            if refuses:
                return result(gate, f"{message}, and {refusal}", reset)
            return result(gate, message, "a sign-in with the account's address links it again")
        table = table_of(name)
        return result(
            gate, f"{message}, and {table} is not configured", f"set {table}.clientId and clientSecret"
        )

    def _second_factor(
        self, tx: Transaction, user: User, ways: set[Way], identities: dict[str, Identity]
    ) -> Gate:
        gate = "second-factor"
        if not user.factors:
            if user.role in self.settings.roles_with_factor:
                message = (
                    "auth.secondFactor asks for one: until the user has one, a sign-in leads to /account only"
                )
                return _shut(gate, message, "the user adds one at /account", Cause.MUST_ENROL)
            return _open(gate, "none, and none is asked for")
        usable, unusable = self._factors(tx, user)
        mend = f"usersctl factor reset {user.id}"
        if not usable and CLOSED in unusable:
            return _shut(gate, CLOSED, f"usersctl unlock {user.id}", Cause.LOCKED, Step.UNLOCK)
        if not usable:
            return _shut(gate, "; ".join(unusable), mend, Cause.NO_USABLE_FACTOR)
        opens = [name for name, each in identities.items() if self.settings.opens(name, each.issuer)]
        is_vouched_for = set(opens) <= set(self.settings.trusted_providers)
        asked_for = _asked_for(ways, is_vouched_for=is_vouched_for)
        message = "; ".join([f"{asked_for}: {', '.join(usable)}", *unusable])
        return _note(gate, message, f"if all are lost: {mend}")

    def _factors(self, tx: Transaction, user: User) -> tuple[list[str], list[str]]:
        """Those that can be used, and why the others cannot."""
        usable, unusable = [], []
        totp, codes = tx.totp(user.id), tx.count_recovery_codes(user.id)
        passkeys, host = tx.passkeys(user.id), host_of(self.settings.base_url)
        if self.throttle.closes_codes(tx.tried_codes(user.id)):
            unusable.append(CLOSED)
        elif totp is not None and self._opens(totp):
            usable.append("authenticator app")
        elif totp is not None:
            unusable.append("the key that opens the secret of the authenticator app is missing")
        here = sum(passkey.rp_id == host for passkey in passkeys)
        if here:
            usable.append(counted(here, "passkey"))
        if here < len(passkeys):
            unusable.append(
                f"{counted(len(passkeys) - here, 'passkey')} made for another address than {host}"
            )
        if codes:
            usable.append(counted(codes, "recovery code"))
        return usable, unusable

    def _opens(self, totp: TotpSecret) -> bool:
        try:
            self.sealer.open(totp.secret, totp_context(totp.user_id))
        except KeyUnusable:
            return False
        return True

    def _sessions(self, tx: Transaction, user: User) -> Gate:
        kinds = [token.kind for token in tx.live_tokens_of(user.id)]
        tokens = kinds.count(TokenKind.API)
        message = f"{len(kinds) - tokens} open, {counted(tokens, 'API token')}"
        return _note("sessions", f"{message}; last login {user.last_login_at or 'never'}")

    def _without_account(self, tx: Transaction, reference: str, number: int | None) -> Iterator[Gate]:
        yield _lockdown(tx, None)
        yield _exists(tx, reference, number)
        if number is not None:
            return
        email, is_address = lookup(reference)
        if not is_address:
            yield _shut("address", "this is not an email address")
            return
        yield self._throttled(tx, None, email)
        reserved_for = tx.reserved_for(email)
        if reserved_for is not None:
            yield _note("address", f"reserved for user {reserved_for}, who gave it up less than a week ago")
        yield self._registration(email)
        yield from self._first_sign_ins()

    def _registration(self, email: str) -> Gate:
        if self.settings.registration_is_open:
            return _note("registration", "open: anyone can register at /register and confirm by email")
        create = f"usersctl create {shlex.quote(email)}"  # an address may hold what a shell acts on
        return _note("registration", "closed: an operator can create the account", create)

    def _first_sign_ins(self) -> Iterator[Gate]:
        if not self.settings.providers:
            yield _note("provider", "none is configured")
        for provider in self.settings.providers:
            yield _note(_gate_of(provider.name), _first_sign_in(provider))


def _gate_of(provider: str) -> str:
    return "provider" if provider == OAUTH else f"provider-{provider}"


def _first_sign_in(provider: ProviderSettings) -> str:
    if provider.allow_auto_registration:
        return "a sign-in through it would create the account"
    return "a sign-in through it would end in user_not_registered"


def _lockdown(tx: Transaction, user: User | None) -> Gate:
    lockdown = tx.lockdown()
    if lockdown is None:
        return _open("lockdown", "off")
    if lockdown.admits(user):
        return _open("lockdown", f"on since {lockdown.since}, but not for this user")
    message = f"on since {lockdown.since}, by {lockdown.actor}"
    return _shut("lockdown", message, "usersctl lockdown off", Cause.LOCKDOWN)


def _invited(tx: Transaction, user: User) -> Gate:
    invitation = tx.invitation_of(user.id)
    if invitation is None or invitation.has_expired(tx.now_text):
        message, mend = "the invitation has expired", f"usersctl invite resend {user.id}"
        return _shut("active", message, mend, Cause.INVITATION_EXPIRED, Step.INVITE)
    message = f"invited at {invitation.invited_at}, and not accepted yet"
    mend = f"usersctl link invite {user.id}"
    return _shut("active", message, mend, Cause.INVITED, Step.INVITE, invitation.expires_at)


def _exists(tx: Transaction, reference: str, number: int | None) -> Gate:
    """Shut, with the last entry of the audit trail about a deleted user of this id or address."""
    message = f"no user {reference!r}, and none in the audit trail"
    former = number if number is not None else tx.last_id_of(lookup_key(reference))
    if former is not None:
        for last in tx.audit_rows(user_id=former, newest=1):
            message = f"was user {former}, {last.email}; last: {last.action} at {last.at} by {last.actor}"
    return _shut("exists", message, "usersctl list --search TEXT")


def _password(user: User, ways: set[Way]) -> Gate:
    if Way.PASSWORD in ways:
        return _open("password", "is set")
    mend = f"usersctl link reset {user.id}"
    others = {Way.PROVIDER: "through the provider", Way.PASSKEY: "with a passkey"}
    present = [others[way] for way in others if way in ways]
    if present:
        return _note("password", f"not set; the user signs in {' or '.join(present)}", mend)
    return _shut("password", "not set", mend, Cause.NO_PASSWORD, Step.SEND_RESET)


def _asked_for(ways: set[Way], *, is_vouched_for: bool) -> str:
    """When a sign-in of this account waits for a second factor. `is_vouched_for`: its providers have asked for one."""
    if Way.PROVIDER in ways and Way.PASSWORD not in ways:
        if is_vouched_for:
            return "not asked for after the provider, which has trustsFactors"
        return "asked for after the provider"
    if ways == {Way.PASSKEY}:
        return "a passkey signs in without a password; after one is set, it is asked for"
    return "asked for after the password"


def _email(tx: Transaction, user: User, *, needed: bool, by_hand: dict[str, str]) -> Gate:
    """The latest email with a link that lets the user in. `by_hand`: the commands that do without each kind."""
    links = [email for email in tx.queued_emails_of(user.id) if email.kind in by_hand]
    if not links:
        return _open("letter", "none was requested")
    last = links[0]
    message = f"{last.kind} of {last.created_at}: {_outcome(last)}"
    if last.state in (EmailState.WAITING, EmailState.FAILED):
        mend, cause = f"usersctl mail retry {last.id}", Cause.EMAIL_WAITING
        if last.state == EmailState.FAILED:  # the server refused it, and would again
            mend, cause = by_hand[last.kind], Cause.EMAIL_FAILED
        if not needed:
            return _note("letter", message, mend)
        return _shut("letter", message, mend, cause)
    if last.state == EmailState.SENT and needed and last.kind != INVITATION.name:
        hours = KINDS[last.kind].lifetime.total_seconds() / 3600
        message += f"; its link works for {hours:.0f} h"
    return _open("letter", message)


def _outcome(email: QueuedEmail) -> str:
    outcome = f"{email.state}, tried {counted(email.attempts, 'time')}"
    if email.finished_at:
        outcome = f"{email.state} at {email.finished_at}"
    if email.last_error:
        outcome += f" ({email.last_error})"
    return outcome
