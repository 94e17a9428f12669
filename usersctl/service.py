"""The composition root: build(settings) -> Service. The only place that wires."""

from collections.abc import Callable, Mapping
from functools import cached_property
from threading import BoundedSemaphore
from typing import TYPE_CHECKING

from usersctl.clock import Clock, utc_now
from usersctl.config import Settings
from usersctl.passwords import Hasher
from usersctl.store.opening import open_store
from usersctl.store.store import Store

MAKE_AN_ADMIN = "usersctl create EMAIL --admin"
# Made at their first use: by two threads at once perhaps twice, which does no harm.
LATE = ("desired_state", "sealer", "factor_reset", "key_rotation", "factors", "second_step", "passkeys")

if TYPE_CHECKING:
    from usersctl.accounts import Accounts
    from usersctl.claims import Claims
    from usersctl.cleanup import Cleaner
    from usersctl.deletion import Deletion
    from usersctl.devices import Devices
    from usersctl.factors.enrolment import Factors
    from usersctl.factors.passkeys import Passkeys
    from usersctl.factors.reset import FactorReset
    from usersctl.factors.rotation import KeyRotation
    from usersctl.factors.sealing import Sealer
    from usersctl.factors.second_step import SecondStep
    from usersctl.first_admin import FirstAdmin
    from usersctl.freshness import Freshness
    from usersctl.groups import Groups
    from usersctl.invitations import Invitations
    from usersctl.lockdown import Lockdowns
    from usersctl.mail.kinds import EmailQueue
    from usersctl.mail.outbox import Outbox
    from usersctl.mail.sending import Send
    from usersctl.oauth.http import HttpClient
    from usersctl.oauth.identities import Identities
    from usersctl.oauth.sign_in import OAuthSignIn
    from usersctl.overview import Overviews
    from usersctl.readiness import Readiness
    from usersctl.recovery import Recovery
    from usersctl.registration import Registration
    from usersctl.sessions import Sessions
    from usersctl.state.state import DesiredState
    from usersctl.throttle import AccountThrottle
    from usersctl.trail import Trail
    from usersctl.transfer.transfer import Transfer
    from usersctl.webhooks.webhooks import Webhooks
    from usersctl.why import Why


def build(
    settings: Settings,
    *,
    store: Store | None = None,
    send: "Send | None" = None,
    now: Clock = utc_now,
    admin_command: str = MAKE_AN_ADMIN,
    parts: Callable[[], Mapping[str, bool]] = dict,
) -> "Service":
    """A service on the database of the settings, which is created if it is missing, or on a store that is open already.

    Its parts are there, because many threads will use it, but for those that hardly any request needs. A server of the
    database that is away is no error yet: an application is imported once, and would not try again.
    """
    store = store or open_store(settings.database, create=True, may_be_away=True)
    service = Service(settings, store, now, send, admin_command, parts)
    for name, value in vars(Service).items():
        if isinstance(value, cached_property) and name not in LATE:
            getattr(service, name)
    return service


class Service:
    """Each part is made, and its module imported, at its first use: a command pays for those that it needs."""

    def __init__(
        self,
        settings: Settings,
        store: Store,
        now: Clock | None = None,
        send: "Send | None" = None,
        admin_command: str = MAKE_AN_ADMIN,
        parts: Callable[[], Mapping[str, bool]] = dict,
    ) -> None:
        self.settings = settings
        self.store = store
        self.now = store.clock = now or store.clock  # one clock for all parts of a service
        self.hasher = Hasher(settings.rounds)
        self._send = send
        self._admin_command = admin_command
        self._parts = parts
        if self.webhooks is not None:
            store.listener = self.webhooks.hear

    @cached_property
    def emails(self) -> "EmailQueue":
        from usersctl.mail.kinds import EmailQueue

        return EmailQueue()

    @cached_property
    def http(self) -> "HttpClient":
        from usersctl.oauth.http import HttpClient

        return HttpClient()

    @cached_property
    def throttle(self) -> "AccountThrottle":
        from usersctl.throttle import AccountThrottle

        settings = self.settings
        return AccountThrottle(
            self.store, settings.limits_enabled, settings.failures_before_delay, settings.failures_before_lock
        )

    @cached_property
    def devices(self) -> "Devices":
        from usersctl.devices import Devices

        return Devices(self.store)

    @cached_property
    def accounts(self) -> "Accounts":
        from usersctl.accounts import Accounts

        return Accounts(self.store, self.hasher, self.throttle, self.settings, self.emails)

    @cached_property
    def groups(self) -> "Groups":
        from usersctl.groups import Groups

        return Groups(self.store)

    @cached_property
    def claims(self) -> "Claims":
        from usersctl.claims import Claims

        return Claims(self.store, self.hasher, self.throttle, self.devices, self.emails)

    @cached_property
    def sessions(self) -> "Sessions":
        from usersctl.session_uses import SessionUses
        from usersctl.sessions import Sessions

        uses = SessionUses(self.store)
        return Sessions(
            self.store, self.hasher, self.throttle, self.devices, self.settings, uses, self.emails
        )

    @cached_property
    def cleaner(self) -> "Cleaner":
        from usersctl.cleanup import Cleaner

        return Cleaner(self.store, self.settings, self.emails)

    @cached_property
    def transfer(self) -> "Transfer":
        from usersctl.transfer.transfer import Transfer

        return Transfer(self.store, self.hasher, self.settings, self.emails)

    @cached_property
    def desired_state(self) -> "DesiredState":
        from usersctl.state.state import DesiredState

        return DesiredState(self.store, self.settings, self.emails)

    @cached_property
    def first_admin(self) -> "FirstAdmin":
        from usersctl.first_admin import FirstAdmin

        return FirstAdmin(self.store, self.hasher, self.settings, self.emails, self._admin_command)

    @cached_property
    def registration(self) -> "Registration":
        from usersctl.registration import Registration

        return Registration(self.store, self.hasher, self.settings, self.emails)

    @cached_property
    def recovery(self) -> "Recovery":
        from usersctl.recovery import Recovery

        return Recovery(self.store, self.hasher, self.settings, self.emails)

    @cached_property
    def deletion(self) -> "Deletion":
        from usersctl.deletion import Deletion

        return Deletion(self.store, self.hasher, self.throttle, self.settings, self.emails)

    @cached_property
    def invitations(self) -> "Invitations":
        from usersctl.invitations import Invitations

        return Invitations(self.store, self.hasher, self.settings, self.emails)

    @cached_property
    def outbox(self) -> "Outbox":
        from usersctl.mail.outbox import Outbox

        return Outbox(self.store, self.settings, self.emails, self._send)

    @cached_property
    def sign_ins(self) -> "dict[str, OAuthSignIn]":
        """The sign-in through each identity provider, by its name. That of auth.oauth is always there."""
        from usersctl.oauth.http import SIGN_INS_AT_ONCE
        from usersctl.oauth.providers import make_provider
        from usersctl.oauth.sign_in import OAuthSignIn

        settings = self.settings
        at_once = max(2, SIGN_INS_AT_ONCE // len(settings.described_providers))
        sign_ins = {}
        for each in settings.described_providers:
            provider = make_provider(each, settings.redirect_uri(each), self.http, self.now)
            places = BoundedSemaphore(at_once)
            sign_ins[each.name] = OAuthSignIn(self.store, each, self.emails, provider, self.http, places, {})
        return sign_ins

    @cached_property
    def freshness(self) -> "Freshness":
        from usersctl.freshness import Freshness

        return Freshness(self.store, self.hasher, self.throttle)

    @cached_property
    def sealer(self) -> "Sealer":
        from usersctl.factors.sealing import Sealer

        return Sealer.of(self.settings)

    @cached_property
    def factor_reset(self) -> "FactorReset":
        from usersctl.factors.reset import FactorReset

        return FactorReset(self.store, self.settings, self.emails)

    @cached_property
    def key_rotation(self) -> "KeyRotation":
        from usersctl.factors.rotation import KeyRotation

        return KeyRotation(self.store, self.sealer)

    @cached_property
    def factors(self) -> "Factors":
        from usersctl.factors.enrolment import Factors

        return Factors(self.store, self.settings, self.sealer, self.emails)

    @cached_property
    def second_step(self) -> "SecondStep":
        from usersctl.factors.second_step import SecondStep

        return SecondStep(self.store, self.throttle, self.devices, self.sealer, self.emails, self.passkeys)

    @cached_property
    def passkeys(self) -> "Passkeys":
        from usersctl.factors.challenges import Challenges
        from usersctl.factors.passkeys import Passkeys

        return Passkeys(self.factors, Challenges(self.store))

    @cached_property
    def identities(self) -> "Identities":
        from usersctl.oauth.identities import Identities

        return Identities(self.store, self.settings, self.emails)

    @cached_property
    def lockdown(self) -> "Lockdowns":
        from usersctl.lockdown import Lockdowns

        return Lockdowns(self.store)

    @cached_property
    def trail(self) -> "Trail":
        from usersctl.trail import Trail

        return Trail(self.store)

    @cached_property
    def overview(self) -> "Overviews":
        from usersctl.overview import Overviews

        return Overviews(self.store, self.throttle, bool(self.settings.webhooks))

    @cached_property
    def readiness(self) -> "Readiness":
        from usersctl.readiness import Readiness

        return Readiness(self.store, self._parts)

    @cached_property
    def webhooks(self) -> "Webhooks | None":
        """None without one in the configuration: then nothing hears of events."""
        if not self.settings.webhooks:
            return None
        from usersctl.webhooks.webhooks import Webhooks

        return Webhooks(self.store, self.settings.webhooks, self.now)

    @cached_property
    def why(self) -> "Why":
        from usersctl.why import Why

        return Why(self.store, self.throttle, self.settings, self.sealer)

    def stop(self) -> None:
        """The daemon stops: what waits for other servers is given up."""
        self.readiness.stopping = True
        self.http.stop()

    def close(self) -> None:
        self.sessions.uses.stop()
        self.store.close()
