"""users.toml (or users.json), the environment and flags -> Settings: names, types, ranges, and which of them won."""

from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from usersctl.config.values import (
    Check,
    _boolean,
    _callback,
    _colour,
    _cookie_name,
    _cron,
    _mode,
    _network,
    _one_of,
    _path,
    _path_or_empty,
    _pattern,
    _plain_text,
    _redirect,
    _role_rules,
    _sender,
    _shared_secret,
    _span,
    _text,
    _text_or_empty,
    _texts,
    _whole,
    origin_of,
    provider_url,
)

# --- the settings: one line each ---


class Key(NamedTuple):
    """What a setting is called in the file and the environment, and what it may be."""

    name: str
    check: Check
    env: str | None = None
    secret: bool = False


class Settings(NamedTuple):
    database: Annotated[Path, Key("database", _path, env="USERS_DATABASE")]
    base_url: Annotated[str, Key("baseUrl", origin_of, env="USERS_BASE_URL")]

    host: Annotated[str, Key("server.host", _text)] = "127.0.0.1"
    port: Annotated[int, Key("server.port", _whole(1, 65535))] = 8080
    socket: Annotated[Path | None, Key("server.socket", _path_or_empty)] = None
    socket_mode: Annotated[str, Key("server.socketMode", _mode)] = "0660"
    threads: Annotated[int, Key("server.threads", _whole(1, 64))] = 4
    processes: Annotated[int, Key("server.processes", _whole(1, 64))] = 1
    trusted_proxies: Annotated[tuple[Any, ...], Key("server.trustedProxies", _texts(_network))] = ()

    whitelist: Annotated[tuple[str, ...], Key("auth.whitelist", _texts(_pattern))] = ()
    token_expiration: Annotated[timedelta, Key("auth.tokenExpiration", _span("minutes", 525_600))] = (
        timedelta(minutes=1440)
    )
    remember_me_expiration: Annotated[timedelta, Key("auth.rememberMeExpiration", _span("days", 3650))] = (
        timedelta(days=30)
    )
    cookie_name: Annotated[str, Key("auth.cookieName", _cookie_name)] = "auth_token"
    allowed_origins: Annotated[tuple[str, ...], Key("auth.allowedOrigins", _texts(origin_of))] = ()
    role_rules: Annotated[tuple[tuple[str, str], ...], Key("auth.roleRules", _role_rules)] = ()
    assertion_secret: Annotated[
        str | None,
        Key("auth.assertionSecret", _shared_secret, env="USERS_ASSERTION_SECRET", secret=True),
    ] = None

    oauth_client_id: Annotated[
        str | None, Key("auth.oauth.clientId", _text_or_empty, env="USERS_OAUTH_CLIENT_ID")
    ] = None
    oauth_client_secret: Annotated[
        str | None,
        Key("auth.oauth.clientSecret", _text_or_empty, env="USERS_OAUTH_CLIENT_SECRET", secret=True),
    ] = None
    oauth_provider: Annotated[str, Key("auth.oauth.provider", _one_of("oidc", "github"))] = "oidc"
    oauth_issuer: Annotated[str | None, Key("auth.oauth.issuer", provider_url)] = None
    oauth_authorization_url: Annotated[str | None, Key("auth.oauth.authorizationUrl", provider_url)] = None
    oauth_token_url: Annotated[str | None, Key("auth.oauth.tokenUrl", provider_url)] = None
    oauth_user_info_url: Annotated[str | None, Key("auth.oauth.userInfoUrl", provider_url)] = None
    oauth_allow_auto_registration: Annotated[bool, Key("auth.oauth.allowAutoRegistration", _boolean)] = False
    oauth_success_redirect: Annotated[str, Key("auth.oauth.successRedirect", _redirect)] = "/"
    oauth_error_redirect: Annotated[str, Key("auth.oauth.errorRedirect", _redirect)] = (
        "/login?error=oauth_failed"
    )
    oauth_scopes: Annotated[tuple[str, ...], Key("auth.oauth.scopes", _texts(_text))] = (
        "openid",
        "profile",
        "email",
    )
    oauth_callback_url: Annotated[str, Key("auth.oauth.callbackUrl", _callback)] = (
        "/api/users/auth/oauth/callback"
    )

    # 72 bytes is all that bcrypt reads.
    min_length: Annotated[int, Key("passwordValidation.minLength", _whole(1, 72))] = 8
    require_uppercase: Annotated[bool, Key("passwordValidation.requireUppercase", _boolean)] = False
    require_lowercase: Annotated[bool, Key("passwordValidation.requireLowercase", _boolean)] = False
    require_numbers: Annotated[bool, Key("passwordValidation.requireNumbers", _boolean)] = False
    require_special_chars: Annotated[bool, Key("passwordValidation.requireSpecialChars", _boolean)] = False
    prevent_common_passwords: Annotated[bool, Key("passwordValidation.preventCommonPasswords", _boolean)] = (
        True
    )
    rounds: Annotated[int, Key("passwordHashing.rounds", _whole(10, 16))] = 12

    mailer_host: Annotated[str | None, Key("mailer.host", _text)] = None
    mailer_port: Annotated[int | None, Key("mailer.port", _whole(1, 65535))] = None
    mailer_secure: Annotated[bool, Key("mailer.secure", _boolean)] = False
    mailer_user: Annotated[str | None, Key("mailer.auth.user", _plain_text, env="USERS_MAILER_USER")] = None
    mailer_password: Annotated[
        str | None, Key("mailer.auth.pass", _plain_text, env="USERS_MAILER_PASS", secret=True)
    ] = None
    mailer_from: Annotated[str | None, Key("mailer.defaults.from", _sender)] = None
    mailer_templates: Annotated[Path | None, Key("mailer.templates", _path)] = None
    link_confirm: Annotated[str, Key("mailer.links.confirm", _redirect)] = "/confirm-email"
    link_reset: Annotated[str, Key("mailer.links.reset", _redirect)] = "/reset-password"

    brand: Annotated[str, Key("branding.name", _text)] = "Users"
    logo: Annotated[Path | None, Key("branding.logo", _path)] = None
    accent: Annotated[str | None, Key("branding.accent", _colour)] = None
    stylesheet: Annotated[Path | None, Key("branding.stylesheet", _path)] = None
    locale: Annotated[str, Key("locale", _text)] = "en"

    metrics_host: Annotated[str, Key("metrics.host", _text)] = "127.0.0.1"
    metrics_port: Annotated[int | None, Key("metrics.port", _whole(1, 65535))] = None

    cleanup_schedule: Annotated[str | None, Key("tokenCleanupSchedule", _cron)] = "0 2 * * *"

    limits_enabled: Annotated[bool, Key("limits.enabled", _boolean)] = True
    failures_before_delay: Annotated[int, Key("limits.accountFailures", _whole(1, 100))] = 10
    failures_before_lock: Annotated[int, Key("limits.accountLock", _whole(1, 100))] = 100
    failed_logins_per_minute: Annotated[int, Key("limits.failedLoginsPerMinute", _whole(1, 100_000))] = 60
    registrations_per_hour: Annotated[int, Key("limits.registrationsPerHour", _whole(1, 100_000))] = 60
    forgots_per_minute: Annotated[int, Key("limits.forgotsPerMinute", _whole(1, 100_000))] = 20

    def __repr__(self) -> str:
        return f"<Settings of {self.base_url}>"  # never a secret, wherever it is printed

    @property
    def https(self) -> bool:
        return self.base_url.startswith("https:")

    @property
    def has_provider(self) -> bool:
        """Whether one signs in through an identity provider."""
        return bool(self.oauth_client_id and self.oauth_client_secret)

    @property
    def redirect_uri(self) -> str:
        """Where the identity provider sends people back to."""
        return self.base_url + self.oauth_callback_url


# By the dotted name in the file: the field of Settings, and its key.
TABLE: dict[str, tuple[str, Key]] = {
    hint.__metadata__[0].name: (field, hint.__metadata__[0])
    for field, hint in Settings.__annotations__.items()
}
