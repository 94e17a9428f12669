"""The links of accounts to identity providers: shown, removed by their owners, and bound to their issuers."""

from typing import Any

from usersctl.config import Settings
from usersctl.config.providers import ProviderSettings, known_as, name_of_issuer
from usersctl.errors import Invalid, NotFound
from usersctl.mail.kinds import ACCOUNT_UNLINKED, PASSWORD_ENDED, EmailQueue
from usersctl.models import Actor, Identity, User
from usersctl.named import NamedTuple
from usersctl.permissions import admit, require_fresh
from usersctl.store.store import Store
from usersctl.ways_in import LAST_WAY, ways_into


class Linked(NamedTuple):
    """An account elsewhere that signs in to an account here, as its owner sees it."""

    name: str
    label: str
    email: str | None
    linked_at: str | None

    def as_json(self) -> dict[str, Any]:
        return self._asdict()


class Connection(NamedTuple):
    """A provider as its page shows it to the owner of an account: one to disconnect, or one to connect."""

    name: str
    label: str
    logo: str | None
    is_linked: bool = False
    email: str | None = None
    linked_at: str | None = None
    is_spare: bool = False  # the account has another way in


class Bound(NamedTuple):
    """What the start of a daemon found about links to a provider: how many it bound, and how many are of other issuers."""

    provider: ProviderSettings
    now: int
    elsewhere: int


class Identities(NamedTuple):
    store: Store
    settings: Settings
    emails: EmailQueue

    def of(self, user_id: int) -> list[Linked]:
        with self.store.glance() as tx:
            identities = tx.identities_of(user_id)
        return [
            Linked(identity.provider, self._label(identity), identity.email, identity.linked_at)
            for identity in identities
        ]

    def connections(self, user_id: int) -> list[Connection]:
        """The links of the account, and then the providers that it is not linked to."""
        with self.store.read() as tx:
            connections = [
                Connection(
                    identity.provider,
                    self._label(identity),
                    self._logo(identity),
                    is_linked=True,
                    email=identity.email,
                    linked_at=identity.linked_at,
                    is_spare=bool(ways_into(tx, self.settings, user_id, but=identity.provider)),
                )
                for identity in tx.identities_of(user_id)
            ]
        linked = {connection.name for connection in connections}
        others = [provider for provider in self.settings.providers if provider.name not in linked]
        return connections + [Connection(other.name, other.display, other.logo) for other in others]

    def _logo(self, identity: Identity) -> str | None:
        provider = self.settings.provider(identity.provider)
        return known_as(identity.issuer) if provider is None else provider.logo

    def _label(self, identity: Identity) -> str:
        """The name of the provider for people. A link to another issuer has the name of that one."""
        provider = self.settings.provider(identity.provider)
        if provider is not None and self.settings.opens(identity.provider, identity.issuer):
            return provider.display
        return name_of_issuer(identity.issuer)

    def has_ended_password(self, user: User) -> bool:
        """Whether a first sign-in through a provider has ended the password lately, as an email said."""
        with self.store.glance() as tx:
            (count,) = tx.count_recent_emails(
                PASSWORD_ENDED.name, user.id, user.email, PASSWORD_ENDED.lifetime
            )
        return count > 0

    def prepare_link(self, user_id: int, name: str, *, by: Actor) -> None:
        """Before the browser goes to the provider: refuses what could not be linked."""
        with self.store.read() as tx:
            admit(tx, by)
            require_fresh(tx, by)
            identity = tx.identity_of(user_id, name)
        if self.settings.provider(name) is None:
            raise NotFound("No such provider")
        if identity is not None and self.settings.opens(name, identity.issuer):
            raise Invalid("This provider is linked already: disconnect it first")

    def disconnect(self, user_id: int, name: str, *, by: Actor) -> None:
        """By the owner, who needs another way in. Sessions stay: `end-others` and a new password end them."""
        with self.store.write() as tx:
            admit(tx, by)
            require_fresh(tx, by)
            user = tx.user(user_id)
            if user is None or tx.identity_of(user_id, name) is None:
                raise NotFound("No such provider is linked")
            if not ways_into(tx, self.settings, user_id, but=name):
                raise Invalid(LAST_WAY)
            (identity,) = tx.delete_identities(user_id, name)
            self.emails.add(tx, ACCOUNT_UNLINKED, user, user.email)
            tx.audit(by, "unlink", user, provider=name, issuer=identity.issuer)

    def bind(self) -> list[Bound]:
        """Gives links without an issuer the configured one, so that ids of another provider never match them later."""
        return [self._bind(provider) for provider in self.settings.providers if provider.issuer_of_links]

    def _bind(self, provider: ProviderSettings) -> Bound:
        issuer = provider.issuer_of_links or ""
        with self.store.glance() as tx:
            others = tx.links_elsewhere(provider.name, issuer)
        bound = 0
        for other in sorted(others.keys() & unbound(issuer)):
            with self.store.write() as tx:
                self.store.whole()  # those of a large service take seconds
                bound += tx.bind_links(provider.name, issuer, of=other)
        return Bound(provider, bound, sum(others.values()) - bound)


def unbound(issuer: str) -> set[str]:
    """Issuers of links that belong to this one: none yet, and its name before a slash at the end was set right."""
    return {"", issuer.removesuffix("/") if issuer.endswith("/") else f"{issuer}/"}
