"""What the configuration says of one identity provider: in `auth.oauth`, or in `[auth.providers.NAME]`."""

from urllib.parse import urlsplit

from usersctl.config.values import origin_in
from usersctl.models import OAUTH
from usersctl.named import NamedTuple

PROVIDERS = "auth.providers."

# The value of each key that a preset gives, unless the configuration has another one.
PRESETS: dict[str, dict[str, str]] = {
    "google": {"issuer": "https://accounts.google.com", "label": "Google"},
    # Of personal accounts; a company's own accounts have the issuer of its tenant.
    "microsoft": {
        "issuer": "https://login.microsoftonline.com/9188040d-6c67-4c5b-b112-36a304b66dad/v2.0",
        "label": "Microsoft",
    },
    "github": {"provider": "github", "label": "GitHub"},
    "gitlab": {"issuer": "https://gitlab.com", "label": "GitLab"},
}
# For a logo, and for a name where there is no label.
_HOSTS = {
    "accounts.google.com": "google",
    "github.com": "github",
    "gitlab.com": "gitlab",
    "login.microsoftonline.com": "microsoft",
}


class ProviderSettings(NamedTuple):
    """The fields of Settings that begin with `oauth_`, for one provider."""

    name: str
    client_id: str | None
    client_secret: str | None
    preset: str | None
    provider: str  # the protocol
    label: str | None
    issuer: str | None
    authorization_url: str | None
    token_url: str | None
    user_info_url: str | None
    allow_auto_registration: bool
    trusts_email: bool
    trusts_factors: bool
    success_redirect: str
    error_redirect: str
    scopes: tuple[str, ...]
    callback_url: str

    def __repr__(self) -> str:
        return f"<ProviderSettings of {self.name}>"  # never a secret

    @property
    def is_complete(self) -> bool:
        """True if people can sign in through it."""
        return bool(self.client_id and self.client_secret)

    @property
    def issuer_of_links(self) -> str | None:
        """The issuer that ids of the provider belong to; None if no provider is described."""
        if self.issuer is not None and self.provider == "oidc":
            return self.issuer
        if self.authorization_url is not None:
            return origin_in(self.authorization_url)
        return "https://github.com" if self.provider == "github" else None

    @property
    def display(self) -> str:
        """The name of the provider for people."""
        return self.label or name_of_issuer(self.issuer_of_links)

    @property
    def logo(self) -> str | None:
        """The name of a logo of the pages."""
        return self.preset or known_as(self.issuer_of_links)


def table_of(name: str) -> str:
    """The table of the configuration that describes the provider of this name."""
    return "auth.oauth" if name == OAUTH else PROVIDERS + name


def known_as(issuer: str | None) -> str | None:
    """The preset of the provider with this issuer."""
    return _HOSTS.get(host_of(issuer))


def name_of_issuer(issuer: str | None) -> str:
    preset = known_as(issuer)
    if preset is not None:
        return PRESETS[preset]["label"]
    return host_of(issuer) or "Identity provider"


def host_of(url: str | None) -> str:
    """Empty if there is none. A database may hold any text, from imports of earlier versions."""
    try:
        return urlsplit(url or "").hostname or ""
    except ValueError:
        return ""
