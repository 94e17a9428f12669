"""The links of accounts to the identity provider: shown, removed by their owners, and bound to their issuer."""

from dataclasses import dataclass
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from usersctl.config import Settings
from usersctl.errors import Invalid, NotFound
from usersctl.mail.kinds import ACCOUNT_UNLINKED, PASSWORD_ENDED, EmailQueue
from usersctl.models import Actor, User
from usersctl.passwords import password_is_set
from usersctl.permissions import admit
from usersctl.store.store import Store

_KNOWN = {
    "accounts.google.com": "Google",
    "github.com": "GitHub",
    "gitlab.com": "GitLab",
    "login.microsoftonline.com": "Microsoft",
}
OAUTH = "oauth"  # the name of the provider in auth.oauth


class Identity(NamedTuple):
    """An account elsewhere that signs in to an account here."""

    name: str
    label: str
    email: str | None = None  # neither is stored
    linked_at: str | None = None

    def as_json(self) -> dict[str, Any]:
        return self._asdict()


class Bound(NamedTuple):
    """What the start of a daemon found about links: how many it bound, and how many are of other issuers."""

    now: int
    elsewhere: int


@dataclass(frozen=True)
class Identities:
    store: Store
    settings: Settings
    emails: EmailQueue

    def of(self, user_id: int) -> list[Identity]:
        with self.store.glance() as tx:
            link = tx.link_of(user_id)
        return [] if link is None else [Identity(OAUTH, self.label(link.oauth_issuer))]

    def label(self, issuer: str | None) -> str:
        """The name of a provider for people."""
        settings = self.settings
        if settings.oauth_label is not None and issuer in (None, settings.provider_issuer):
            return settings.oauth_label
        host = urlsplit(issuer or "").hostname or "Identity provider"
        return _KNOWN.get(host, host)

    def has_ended_password(self, user: User) -> bool:
        """Whether a first sign-in through the provider has ended the password lately, as an email said."""
        with self.store.glance() as tx:
            (count,) = tx.count_recent_emails(
                PASSWORD_ENDED.name, user.id, user.email, PASSWORD_ENDED.lifetime
            )
        return count > 0

    def disconnect(self, user_id: int, name: str, *, by: Actor) -> None:
        """By the owner, who needs another way in. Sessions stay: `end-others` and a new password end them."""
        with self.store.write() as tx:
            admit(tx, by)
            user = tx.user(user_id)
            link = tx.link_of(user_id)
            if user is None or link is None or name != OAUTH:
                raise NotFound("No such provider is linked")
            if not password_is_set(tx.credentials_of(user_id)):
                raise Invalid("This is the only way into the account: set a password first")
            changed = tx.change_user(user_id, oauth_id=None, oauth_issuer=None)
            self.emails.add(tx, ACCOUNT_UNLINKED, changed, changed.email)
            tx.audit(by, "unlink", changed, issuer=link.oauth_issuer)

    def bind(self) -> Bound:
        """Gives links without an issuer the configured one, so that ids of another provider never match them later."""
        issuer = self.settings.provider_issuer
        if not self.settings.has_provider or issuer is None:
            return Bound(0, 0)
        with self.store.glance() as tx:
            others = tx.links_elsewhere(issuer)
        bound = 0
        for other in sorted(others.keys() & unbound(issuer)):
            with self.store.write() as tx:
                bound += tx.bind_links(issuer, of=other)
        return Bound(bound, sum(others.values()) - bound)


def unbound(issuer: str) -> set[str]:
    """Issuers of links that belong to this one: none yet, and its name before a slash at the end was set right."""
    return {"", issuer.removesuffix("/") if issuer.endswith("/") else f"{issuer}/"}
