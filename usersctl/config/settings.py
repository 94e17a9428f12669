"""All settings: each key with its name in the file, what it may be, what it means, and its default."""

import re
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from usersctl.config import values
from usersctl.config.providers import PRESETS, PROVIDERS, ProviderSettings, host_of
from usersctl.config.values import PASSKEY_COOKIE, PENDING_COOKIE, Kind
from usersctl.config.webhooks import Webhook, webhook_tables
from usersctl.identity_headers import DEFAULT as IDENTITY_HEADERS
from usersctl.models import OAUTH, Role
from usersctl.named import NamedTuple
from usersctl.store.conninfo import Conninfo, Database

if TYPE_CHECKING:
    from typing import Annotated
else:

    class Annotated:
        """Stands in for that of `typing`, which took a millisecond of each start for these keys: the key alone is left."""

        def __class_getitem__(cls, parts: tuple[Any, "Key"]) -> "Key":
            return parts[1]


# The roles whose users must have a second factor, by auth.secondFactor.
_WITH_FACTOR: dict[str, frozenset[str]] = {
    "admins": frozenset((Role.ADMIN,)),
    "everyone": frozenset(Role),
}
_NO_ROLES: frozenset[str] = frozenset()


class Key(NamedTuple):
    """How a setting is written in the configuration file and the environment, and what it means."""

    name: str
    kind: Kind[Any]
    help: str
    env: str | None = None
    env_file: bool = False  # the variable's name with _FILE may name a file that holds the value
    secret: bool = False
    example: str | int | None = None  # for documentation, where there is no default
    field: str = ""  # of Settings; KEYS fills it in
    has_default: bool = True  # that of the field

    @property
    def table(self) -> str:
        """The table of the TOML file that holds the key."""
        return self.name.rpartition(".")[0]

    @property
    def default(self) -> Any:
        """As the configuration file would hold it. None: there is no fixed default."""
        return self.kind.write(Settings._field_defaults.get(self.field)) if self.has_default else None

    @property
    def provider_field(self) -> str:
        """Of ProviderSettings, for a key of a provider."""
        return self.field.removeprefix("oauth_")

    @property
    def variables(self) -> tuple[str, ...]:
        """The environment variables that set this key."""
        if self.env is None:
            return ()
        return (self.env, f"{self.env}_FILE")[: 1 + self.env_file]


# fmt: off
class Settings(NamedTuple):
    database: Annotated[Database, Key("database", values.database, env="USERS_DATABASE", env_file=True, example="/var/lib/users/users.db", help=
        "The SQLite file. Without it: users.db in $STATE_DIRECTORY, for root /var/lib/users/users.db, else the user's data folder. "
        'Or a database on a PostgreSQL server: "postgresql://db.example.com/users", or "host=db.example.com dbname=users".')]
    base_url: Annotated[str, Key("baseUrl", values.origin_of, env="USERS_BASE_URL", example="http://127.0.0.1:8080", help=
        "The public address of the service, from which email links and cookie security follow. Without it: http://127.0.0.1 with server.port, or http://[::1] with it if server.host is ::1.")]

    host: Annotated[str, Key("server.host", values.string,
        "The address to listen on.")] = "127.0.0.1"
    port: Annotated[int, Key("server.port", values.whole(1, 65535),
        "The port to listen on.")] = 8080
    socket: Annotated[Path | None, Key("server.socket", values.optional_path, example="/run/users/usersd.sock", help=
        "A Unix socket to listen on instead of host and port.")] = None
    socket_mode: Annotated[str, Key("server.socketMode", values.file_mode,
        "The file mode of the Unix socket: its owner and group may connect.")] = "0660"
    threads: Annotated[int, Key("server.threads", values.whole(1, 64),
        "Threads for quick requests in each process. Password checks have threads of their own.")] = 4
    processes: Annotated[int, Key("server.processes", values.whole(1, 64),
        "Processes that share the listening socket. One of them sends emails and runs the schedule.")] = 1
    trusted_proxies: Annotated[tuple[Any, ...], Key("server.trustedProxies", values.list_of(values.network, "addresses and ranges"),
        'Proxies whose X-Forwarded-* headers are believed, read from the right. "unix" stands for every client of the Unix socket.')] = ()
    proxy_drops_underscores: Annotated[bool, Key("server.proxyDropsUnderscores", values.boolean,
        "For usersd.wsgi only: the proxy removes headers with an underscore in their name. Without it, path, method and host of forward authentication are not believed there.")] = False
    hsts_include_subdomains: Annotated[bool, Key("server.hstsIncludeSubDomains", values.boolean,
        "If baseUrl is https, tells browsers to use HTTPS for all subdomains of its host, too.")] = False

    whitelist: Annotated[tuple[str, ...], Key("auth.whitelist", values.list_of(values.path_pattern, "paths"),
        'Public paths, such as "/about", "/docs/*" or "/x/*/y". "/register" opens registration.')] = ()
    token_expiration: Annotated[timedelta, Key("auth.tokenExpiration", values.duration("minutes", 525_600),
        "Minutes without use after which a session ends.")] = timedelta(minutes=1440)
    remember_me_expiration: Annotated[timedelta, Key("auth.rememberMeExpiration", values.duration("days", 3650),
        'Days without use after which a session with "Stay signed in" ends.')] = timedelta(days=30)
    unconfirmed_expiration: Annotated[timedelta, Key("auth.unconfirmedExpiration", values.duration("days", 3650, low=0),
        "Days after which the cleanup removes an account whose address was never confirmed. 0: never.")] = timedelta(days=30)
    cookie_name: Annotated[str, Key("auth.cookieName", values.cookie_name,
        "The name of the session cookie. If baseUrl is https, __Host- is put in front of it.")] = "auth_token"
    deletion_grace: Annotated[timedelta, Key("auth.deletionGrace", values.duration("days", 365, low=0),
        "Days until an account that its owner deleted is gone. Until then the owner can undo it by email. 0: at once, without an email."
        )] = timedelta(days=7)
    second_factor: Annotated[str, Key("auth.secondFactor", values.one_of("optional", "admins", "everyone", "off"),
        "Which users must have a second factor: admins, everyone, or none (optional). With off, none can add one. A user who has one is always asked for it.")] = "optional"
    remember_factor: Annotated[timedelta, Key("auth.rememberFactor", values.duration("days", 365, low=0),
        "Days for which a device is not asked for the second factor again, if its user wished so. 0: it is always asked.")] = timedelta(days=30)
    allowed_origins: Annotated[tuple[str, ...], Key("auth.allowedOrigins", values.list_of(values.origin_of, "origins"),
        "Other web origins whose pages may call the API from a browser with the visitor's cookie.")] = ()
    role_rules: Annotated[tuple[values.RoleRule, ...], Key("auth.roleRules", values.role_rules,
        'Paths of an application behind a proxy that need a role or a group, such as {"/admin/*" = "admin", "/hr/*" = ["group:hr", "admin"]}; '
        'of a list, any suffices. A rule wins over the whitelist.')] = ()
    factor_rules: Annotated[tuple[str, ...], Key("auth.factorRules", values.list_of(values.path_pattern, "paths"),
        'Paths of an application behind a proxy that need a sign-in with two factors or a passkey, such as "/payroll/*". A rule wins over the whitelist.')] = ()
    assertion_secret: Annotated[str | None, Key("auth.assertionSecret", values.shared_secret, env="USERS_ASSERTION_SECRET",
        env_file=True, secret=True, example="the output of: openssl rand -base64 32", help=
        "The key that signs Remote-Assertion, shared with the applications that verify it: 32 characters or more.")] = None
    secret_keys: Annotated[tuple[str, ...], Key("auth.secretKey", values.secret_keys, env="USERS_SECRET_KEY",
        env_file=True, secret=True, example="the output of: openssl rand -base64 32", help=
        "The key that seals the secrets of authenticator apps: 32 characters or more. Several, one a line: the first seals, all open. "
        "Without it: the file users.key beside the database, which is made when it is needed. For a database on a server it must be set.")] = ()

    forward_headers: Annotated[tuple[tuple[str, str], ...], Key("forward.headers", values.identity_headers,
        "The headers that tell an application behind a proxy who the user is, each with what it holds: id, email, name, role, groups or auth.")
        ] = IDENTITY_HEADERS
    forward_basic: Annotated[bool, Key("forward.basic", values.boolean,
        "Lets clients that know nothing but passwords, such as calendars and git, pass forward authentication by an email and an API token.")] = False

    oauth_client_id: Annotated[str | None, Key("auth.oauth.clientId", values.optional_string, env="USERS_OAUTH_CLIENT_ID",
        env_file=True, example="users", help=
        "The client at the identity provider. Without it and its secret, sign-in through a provider is off.")] = None
    oauth_client_secret: Annotated[str | None, Key("auth.oauth.clientSecret", values.optional_string, env="USERS_OAUTH_CLIENT_SECRET",
        env_file=True, secret=True, example="the secret that the provider gave", help=
        "The secret of that client.")] = None
    oauth_provider: Annotated[str, Key("auth.oauth.provider", values.one_of("oidc", "github"),
        "The protocol: OpenID Connect, or GitHub's own.")] = "oidc"
    oauth_label: Annotated[str | None, Key("auth.oauth.label", values.string, example="Example Ltd", help=
        'The name of the provider for people: "Continue with Example Ltd". Without it, the host of the provider.')] = None
    oauth_issuer: Annotated[str | None, Key("auth.oauth.issuer", values.provider_url, example="https://id.example.com", help=
        "Where discovery finds the provider's URLs, written exactly as the provider calls itself. The provider oidc needs either this or the three URLs that follow.")] = None
    oauth_authorization_url: Annotated[str | None, Key("auth.oauth.authorizationUrl", values.provider_url,
        example="https://id.example.com/authorize", help="The authorization endpoint of a provider without discovery.")] = None
    oauth_token_url: Annotated[str | None, Key("auth.oauth.tokenUrl", values.provider_url,
        example="https://id.example.com/token", help="The token endpoint of a provider without discovery.")] = None
    oauth_user_info_url: Annotated[str | None, Key("auth.oauth.userInfoUrl", values.provider_url,
        example="https://id.example.com/userinfo", help="The user info endpoint of a provider without discovery.")] = None
    oauth_allow_auto_registration: Annotated[bool, Key("auth.oauth.allowAutoRegistration", values.boolean,
        "Creates an account for a person who signs in through the provider and has none.")] = False
    oauth_trusts_email: Annotated[bool, Key("auth.oauth.trustsEmail", values.boolean,
        "Takes an address of which the provider does not say whether it is verified for verified. Only for a provider that you run yourself, or where no person can set an address that is not theirs: such a person would sign in to the accounts of others. An address that the provider calls unverified stays refused.")] = False
    oauth_trusts_factors: Annotated[bool, Key("auth.oauth.trustsFactors", values.boolean,
        "Takes a sign-in through the provider for one with two factors: the account's own factor is not asked for, and pages that need two open. Only for a provider that asks all its users for a second factor.")] = False
    oauth_success_redirect: Annotated[str, Key("auth.oauth.successRedirect", values.redirect,
        "Where a sign-in through the provider ends.")] = "/"
    oauth_error_redirect: Annotated[str, Key("auth.oauth.errorRedirect", values.redirect,
        "Where a sign-in that fails ends, with the reason in the parameter error.")] = "/login?error=oauth_failed"
    oauth_scopes: Annotated[tuple[str, ...], Key("auth.oauth.scopes", values.list_of(values.string, "strings"),
        "The scopes that the provider is asked for.")] = ("openid", "profile", "email")
    oauth_callback_url: Annotated[str, Key("auth.oauth.callbackUrl", values.callback_path,
        "Where the provider sends the browser back to, as registered there. No other page may have this path.")
        ] = "/api/users/auth/oauth/callback"

    min_length: Annotated[int, Key("passwordValidation.minLength", values.whole(1, 72),
        "The least number of characters. More than 72 bytes are refused, because bcrypt reads no further.")] = 8
    require_uppercase: Annotated[bool, Key("passwordValidation.requireUppercase", values.boolean,
        "A password needs an uppercase letter.")] = False
    require_lowercase: Annotated[bool, Key("passwordValidation.requireLowercase", values.boolean,
        "A password needs a lowercase letter.")] = False
    require_numbers: Annotated[bool, Key("passwordValidation.requireNumbers", values.boolean,
        "A password needs a digit.")] = False
    require_special_chars: Annotated[bool, Key("passwordValidation.requireSpecialChars", values.boolean,
        "A password needs a character that is neither a letter, a digit nor a space.")] = False
    prevent_common_passwords: Annotated[bool, Key("passwordValidation.preventCommonPasswords", values.boolean,
        "Refuses some tens of thousands of known passwords and frequent words; repetitions and rows such as 12341234 and "
        "87654321; the user's own email, the part before its @, and name; the name and host of the service.")] = True
    min_strength: Annotated[int, Key("passwordValidation.minStrength", values.whole(0, 4),
        "The least strength that zxcvbn estimates: 1 withstands guesses through the login, 2 and 3 more of them, 4 guesses "
        "against a stolen hash. 0 does not ask.")] = 0
    rounds: Annotated[int, Key("passwordHashing.rounds", values.whole(10, 16),
        "The cost of bcrypt. A hash of another cost is renewed at the next login.")] = 12

    mailer_host: Annotated[str | None, Key("mailer.host", values.mail_host, example="mail.example.com", help=
        "The mail server. Without one, emails are written into the folder mail/ beside the database.")] = None
    mailer_port: Annotated[int | None, Key("mailer.port", values.whole(1, 65535), example=587, help=
        "The port of the mail server. Without it: 587, or 465 if mailer.secure is true.")] = None
    mailer_secure: Annotated[bool, Key("mailer.secure", values.boolean,
        "TLS from the start. If false: STARTTLS, required if a user is set and the server is another machine.")] = False
    mailer_user: Annotated[str | None, Key("mailer.auth.user", values.ascii_string, env="USERS_MAILER_USER",
        env_file=True, example="accounts", help="The user at the mail server, in ASCII.")] = None
    mailer_password: Annotated[str | None, Key("mailer.auth.pass", values.ascii_string, env="USERS_MAILER_PASS",
        env_file=True, secret=True, example="the password of the mail account", help=
        "The password of that user, in ASCII.")] = None
    mailer_from: Annotated[str | None, Key("mailer.defaults.from", values.sender, example="Accounts <accounts@example.com>", help=
        "The sender of every email. Without it: no-reply at the host of baseUrl.")] = None
    mailer_templates: Annotated[Path | None, Key("mailer.templates", values.path, example="emails", help=
        "A folder with your own email templates.")] = None
    link_confirm: Annotated[str, Key("mailer.links.confirm", values.redirect,
        "Where the link of a confirmation email leads; ?token=…&email=… is added.")] = "/confirm-email"
    link_reset: Annotated[str, Key("mailer.links.reset", values.redirect,
        "Where the link of a password reset email leads; ?token=…&email=… is added.")] = "/reset-password"
    link_invite: Annotated[str, Key("mailer.links.invite", values.redirect,
        "Where the link of an invitation leads; ?token=…&email=… is added.")] = "/accept-invite"

    brand: Annotated[str, Key("branding.name", values.string,
        "The name of the service in pages and emails.")] = "Users"
    logo: Annotated[Path | None, Key("branding.logo", values.path, example="logo.svg", help=
        "An image for the pages: SVG, PNG, JPEG or WebP, at most 512 KiB.")] = None
    accent: Annotated[str | None, Key("branding.accent", values.colour, example="#0b5fff", help=
        "The colour of buttons and links in the pages.")] = None
    stylesheet: Annotated[Path | None, Key("branding.stylesheet", values.path, example="own.css", help=
        "A style sheet that is loaded after the one of the pages.")] = None
    locale: Annotated[str, Key("locale", values.string,
        "The language of emails, and of the pages for a browser that prefers none of them: de, en, es or fr. Or the path of "
        "a JSON file with keys of daemon/usersd/pages/locales/en.json, whose texts all visitors get.")] = "en"

    metrics_host: Annotated[str, Key("metrics.host", values.string,
        "The address on which /metrics is served, to every client that reaches it.")] = "127.0.0.1"
    metrics_port: Annotated[int | None, Key("metrics.port", values.whole(1, 65535), example=9180, help=
        "The port on which /metrics serves counters for Prometheus, other than server.port. Without it: off.")] = None

    webhooks: Annotated[tuple[Webhook, ...], Key("webhooks", webhook_tables, "The receivers of events, each under [[webhooks]]: name, "
        'url, secrets ("whsec_" and base64; all of them sign), events (by name; all if left out), allowPrivate (false: no '
        "address of this machine or of a private network).")] = ()

    cleanup_schedule: Annotated[str | None, Key("tokenCleanupSchedule", values.cron,
        "When expired tokens are removed: five cron fields in local time, false, or "
        "@hourly, @daily, @midnight, @weekly, @monthly, @yearly or @annually.")] = "0 2 * * *"

    limits_enabled: Annotated[bool, Key("limits.enabled", values.boolean,
        "Limits failed logins, registrations, requests for emails, sign-ins through providers and changes of one's own account. "
        "false leaves that to a component in front.")] = True
    failures_before_delay: Annotated[int, Key("limits.accountFailures", values.whole(1, 100),
        "Failed logins in a row after which an account has to wait.")] = 10
    failures_before_lock: Annotated[int, Key("limits.accountLock", values.whole(1, 100),
        "Failed logins in a row after which only a reset or usersctl unlock opens the account. Strangers have four fifths of "
        "them; known devices and sessions share the rest.")] = 100
    failed_logins_per_minute: Annotated[int, Key("limits.failedLoginsPerMinute", values.whole(1, 100_000),
        "Failed logins a minute from one client address.")] = 60
    registrations_per_hour: Annotated[int, Key("limits.registrationsPerHour", values.whole(1, 100_000),
        "Registrations an hour from one client address.")] = 60
    forgots_per_minute: Annotated[int, Key("limits.forgotsPerMinute", values.whole(1, 100_000),
        "Requests for a reset or confirmation email a minute from one client address.")] = 20
    own_changes_per_hour: Annotated[int, Key("limits.ownChangesPerHour", values.whole(1, 100_000),
        "Changes of one's own account an hour, by one account and from one client address; of second factors by one account.")] = 60
    provider_sign_ins_per_minute: Annotated[int, Key("limits.providerSignInsPerMinute", values.whole(1, 100_000),
        "Sign-ins through the provider a minute from one client address.")] = 60
    # fmt: on
    oauth_preset: str | None = None  # only those of auth.providers have one
    more_providers: tuple[ProviderSettings, ...] = ()  # those of auth.providers, in the order of the file
    state_folder: Path = Path("/var/lib/users")  # for the files of this machine, if the database is none of them
    is_trial: bool = False  # of serve --dev

    def __repr__(self) -> str:
        return f"<Settings of {self.base_url}>"  # never a secret, wherever it is printed

    @property
    def folder(self) -> Path:
        """For the files beside the database, such as emails without a mail server."""
        if isinstance(self.database, Conninfo):
            return self.state_folder
        return self.database.parent

    @property
    def https(self) -> bool:
        return self.base_url.startswith("https:")

    @property
    def rp_id(self) -> str | None:
        """The name that passkeys belong to: the host of baseUrl. None for an address that is no name, where there are none."""
        host = host_of(self.base_url)
        is_number = ":" in host or host.rpartition(".")[2].isdigit()  # as browsers tell an IPv4 address
        return None if is_number else host

    @property
    def loopback_url(self) -> str | None:
        """The other address of http://localhost."""
        parts = urlsplit(self.base_url)
        if parts.hostname != "localhost":
            return None
        return parts._replace(netloc=parts.netloc.replace("localhost", "127.0.0.1")).geturl()

    def cookie(self, name: str) -> str:
        """Its whole name. Browsers take one with the prefix over HTTPS and from this host only."""
        return f"{'__Host-' * self.https}{name}"

    @property
    def session_cookie(self) -> str:
        return self.cookie(self.cookie_name)

    @property
    def device_cookie(self) -> str:
        """Of a browser that signed in before: see usersctl/devices.py."""
        return f"{self.session_cookie}_device"

    @property
    def passkey_cookie(self) -> str:
        """Names a browser for which a challenge was made."""
        return self.cookie(PASSKEY_COOKIE)

    @property
    def pending_cookie(self) -> str:
        """Of a sign-in that waits for its second factor."""
        return self.cookie(PENDING_COOKIE)

    @property
    def roles_with_factor(self) -> frozenset[str]:
        """The roles whose users must have a second factor."""
        return _WITH_FACTOR.get(self.second_factor, _NO_ROLES)

    @property
    def registration_is_open(self) -> bool:
        return "/register" in self.whitelist

    @property
    def oauth(self) -> ProviderSettings:
        """The provider of auth.oauth, which need not be configured."""
        return ProviderSettings(OAUTH, *(getattr(self, f"oauth_{name}") for name in ProviderSettings._fields[1:]))

    @property
    def described_providers(self) -> tuple[ProviderSettings, ...]:
        """All, also those without a client id or secret."""
        return (self.oauth, *self.more_providers)

    @property
    def providers(self) -> tuple[ProviderSettings, ...]:
        """Those that people can sign in through."""
        return tuple(provider for provider in self.described_providers if provider.is_complete)

    @property
    def trusted_providers(self) -> tuple[str, ...]:
        """Those whose sign-ins count as two factors."""
        names = (OAUTH,) * self.oauth_trusts_factors
        if self.more_providers:  # each request asks
            names += tuple(each.name for each in self.more_providers if each.trusts_factors)
        return names

    def provider(self, name: str) -> ProviderSettings | None:
        return next((provider for provider in self.providers if provider.name == name), None)

    def opens(self, provider: str, issuer: str) -> bool:
        """Whether a link to this provider and issuer ("": not known yet) signs in."""
        configured = self.provider(provider)
        return configured is not None and issuer in ("", configured.issuer_of_links)

    def redirect_uri(self, provider: ProviderSettings) -> str:
        """Where the identity provider sends the browser back to."""
        return self.base_url + provider.callback_url


KEYS: dict[str, Key] = {
    hint.name: hint._replace(field=field)
    for field, hint in Settings.__annotations__.items()
    if isinstance(hint, Key)
}
VARIABLES: dict[str, Key] = {variable: key for key in KEYS.values() if key.env for variable in key.variables}

# --- more providers: for each key of auth.oauth, one of auth.providers.NAME ---

_ANY = "NAME"
_OTHER_HELP = {
    "callbackUrl": "Where the provider sends the browser back to, as registered there. Without it: auth.oauth.callbackUrl, a slash, and NAME.",
    "clientId": "The client at one more identity provider. NAME is of small letters, digits and hyphens.",
}
PROVIDER_NAME = re.compile("[a-z][a-z0-9-]{0,30}")


def _key_of_any_provider(key: Key) -> Key:
    last = key.name.rpartition(".")[2]
    return key._replace(
        name=f"{PROVIDERS}{_ANY}.{last}",
        help=_OTHER_HELP.get(last, f"As auth.oauth.{last}."),
        env=key.env and key.env.replace("_OAUTH_", f"_PROVIDERS_{_ANY}_"),
        example="/sso/callback" if last == "callbackUrl" else key.example,
        has_default=last != "callbackUrl",
    )


_PRESET = Key(f"{PROVIDERS}{_ANY}.preset", values.one_of(*PRESETS), field="oauth_preset", example="google", help=
    "A well-known provider, so that issuer, protocol and label need not be set. microsoft stands for personal accounts, unless "
    "issuer names a tenant.")  # fmt: skip
_KEYS_OF_OAUTH = [key for key in KEYS.values() if key.table == "auth.oauth"]
KEYS_OF_PROVIDERS: dict[str, Key] = {
    key.name: key for key in (_PRESET, *map(_key_of_any_provider, _KEYS_OF_OAUTH))
}

ALL_KEYS = KEYS | KEYS_OF_PROVIDERS  # for documentation


def provider_of(table: str) -> str | None:
    """The name of the provider that this table of auth.providers describes."""
    name = table.removeprefix(PROVIDERS)
    return name if name not in (table, OAUTH) and PROVIDER_NAME.fullmatch(name) else None


def keys_of(provider: str) -> list[Key]:
    """Those of the table of this provider."""
    if provider == OAUTH:
        return _KEYS_OF_OAUTH
    return [_key_of(provider, key) for key in KEYS_OF_PROVIDERS.values()]


def key_called(name: str) -> Key | None:
    """Also one of a provider, such as auth.providers.google.clientId."""
    table, _, last = name.rpartition(".")
    provider, known = provider_of(table), KEYS_OF_PROVIDERS.get(f"{PROVIDERS}{_ANY}.{last}")
    if provider is None or known is None:
        return KEYS.get(name)
    return _key_of(provider, known)


def _key_of(provider: str, known: Key) -> Key:
    variable = provider.upper().replace("-", "_")
    env = known.env and known.env.replace(_ANY, variable)
    return known._replace(name=known.name.replace(_ANY, provider), env=env)


def provider_key_of(variable: str) -> Key | None:
    """The key that an environment variable such as USERS_PROVIDERS_GOOGLE_CLIENT_ID sets."""
    if not variable.startswith("USERS_PROVIDERS_"):  # as nearly all
        return None
    match = re.fullmatch("USERS_PROVIDERS_([A-Z][A-Z0-9_]*)_CLIENT_(ID|SECRET)(_FILE)?", variable)
    if match is None:
        return None
    name = match[1].lower().replace("_", "-")
    return key_called(f"{PROVIDERS}{name}.client{match[2].title()}")
