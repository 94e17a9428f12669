"""The composition root: build(settings) -> Service. The only place that wires."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from usersctl.accounts import Accounts
from usersctl.claims import Claims
from usersctl.clock import Clock, utc_now
from usersctl.config import Settings
from usersctl.deletion import Deletion
from usersctl.devices import Devices
from usersctl.first_admin import MAKE_AN_ADMIN, FirstAdmin
from usersctl.lockdown import Lockdowns
from usersctl.mail.kinds import EmailQueue
from usersctl.mail.outbox import Outbox
from usersctl.oauth.http import HttpClient
from usersctl.oauth.identities import Identities
from usersctl.oauth.providers import Provider, make_provider
from usersctl.oauth.sign_in import OAuthSignIn
from usersctl.passwords import Hasher
from usersctl.readiness import Readiness
from usersctl.recovery import Recovery
from usersctl.registration import Registration
from usersctl.session_uses import SessionUses
from usersctl.sessions import Sessions
from usersctl.store.store import Store
from usersctl.throttle import AccountThrottle
from usersctl.transfer.transfer import Transfer

if TYPE_CHECKING:
    from usersctl.mail.sending import Send


@dataclass(frozen=True)
class Service:
    settings: Settings
    store: Store
    hasher: Hasher
    throttle: AccountThrottle
    devices: Devices
    accounts: Accounts
    claims: Claims
    sessions: Sessions
    transfer: Transfer
    first_admin: FirstAdmin
    registration: Registration
    recovery: Recovery
    deletion: Deletion
    outbox: Outbox
    oauth: OAuthSignIn
    identities: Identities
    lockdown: Lockdowns
    http: HttpClient
    readiness: Readiness
    now: Clock

    def stop(self) -> None:
        """The daemon stops: what waits for other servers is given up."""
        self.readiness.stopping = True
        self.http.stop()

    def close(self) -> None:
        self.sessions.uses.stop()
        self.store.close()


def build(
    settings: Settings,
    *,
    store: Store | None = None,
    provider: Provider | None = None,
    send: "Send | None" = None,
    now: Clock = utc_now,
    admin_command: str = MAKE_AN_ADMIN,
    parts: Callable[[], Mapping[str, bool]] = dict,
) -> Service:
    """A service on the database of the settings, which is created if it is missing, or on a store that is open already."""
    store = store or Store.open(settings.database, create=True)
    store.clock = now  # one clock for all parts of a service
    hasher = Hasher(settings.rounds)
    http = HttpClient()
    emails = EmailQueue()
    throttle = AccountThrottle(
        store, settings.limits_enabled, settings.failures_before_delay, settings.failures_before_lock
    )
    devices = Devices(store)
    return Service(
        settings=settings,
        store=store,
        hasher=hasher,
        throttle=throttle,
        devices=devices,
        accounts=Accounts(store, hasher, throttle, settings, emails),
        claims=Claims(store, hasher, throttle, devices, emails),
        sessions=Sessions(store, hasher, throttle, devices, settings, emails, SessionUses(store)),
        transfer=Transfer(store, hasher, settings, emails),
        first_admin=FirstAdmin(store, hasher, settings, emails, admin_command),
        registration=Registration(store, hasher, settings, emails),
        recovery=Recovery(store, hasher, settings, emails),
        deletion=Deletion(store, hasher, throttle, settings, emails),
        outbox=Outbox(store, settings, emails, send),
        oauth=OAuthSignIn(store, settings, emails, provider or make_provider(settings, http, now), http),
        identities=Identities(store, settings, emails),
        lockdown=Lockdowns(store),
        http=http,
        readiness=Readiness(store, parts),
        now=now,
    )
