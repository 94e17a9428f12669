"""Links of accounts to identity providers, written and read past the rules."""

from pathlib import Path
from typing import Any

from usersctl.config import Settings
from usersctl.config.providers import ProviderSettings
from usersctl.models import OAUTH, Identity
from usersctl.service import Service

At = tuple[str, str]  # subject and issuer; "" is an issuer that is not known yet


def provider_settings(name: str, **fields: Any) -> ProviderSettings:
    """A provider of auth.providers, with the defaults of the others."""
    usual = Settings(database=Path(), base_url="").oauth
    callback = f"{usual.callback_url}/{name}"
    return usual._replace(**{"name": name, "callback_url": callback, **fields})


def link(service: Service, user_id: int, subject: str, issuer: str = "", *, provider: str = OAUTH) -> None:
    """Replaces the link to this provider."""
    with service.store.write() as tx:
        tx.delete_identities(user_id, provider)
        tx.add_identities([Identity(user_id, provider, issuer, subject)])


def link_of(service: Service, user_id: int, provider: str = OAUTH) -> At | None:
    with service.store.read() as tx:
        identity = tx.identity_of(user_id, provider)
    return identity and (identity.subject, identity.issuer)
