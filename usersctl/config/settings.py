"""users.toml (or users.json), the environment and flags -> Settings: names, types, ranges, and which of them won."""

import json
import os
from collections.abc import Callable, Mapping
from datetime import timedelta
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from usersctl.errors import ConfigError, Invalid

COMMAND_LINE = "command line"
MOST_BYTES = 1024 * 1024  # of a file that is read whole: a configuration, or one secret
UNIX = "unix"  # among the trusted proxies, and where an address is told: whoever came through a Unix socket


class Bad(Exception):
    pass


class Origin(NamedTuple):
    """Where a setting's value came from, for `config show --origin`."""

    source: str
    value: Any

    def __repr__(self) -> str:
        return f"Origin({self.source!r})"  # the value may be a secret


Check = Callable[[Any], Any]


# --- what a value may be: each check returns the value as Settings holds it, or says what is allowed ---


def _text(value: Any) -> str:
    if not isinstance(value, str) or not value.strip() or any(ord(c) < 32 for c in value):
        raise Bad("must be a text that is not empty, without control characters")
    return value


def _text_or_empty(value: Any) -> str | None:
    return None if value == "" else _text(value)


def _plain_text(value: Any) -> str:
    text = _text(value)
    if not text.isascii():
        raise Bad("must be of ASCII characters: Python's SMTP client sends no others")
    return text


def _boolean(value: Any) -> bool:
    if not isinstance(value, bool):
        raise Bad("must be true or false")
    return value


def _whole(low: int, high: int) -> Check:
    def check(value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise Bad(f"must be a whole number from {low} to {high}")
        return value

    return check


def _span(unit: str, high: int) -> Check:
    """A duration in `unit`, kept as a timedelta."""

    def check(value: Any) -> timedelta:
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= high:
            raise Bad(f"must be a whole number of {unit} from 1 to {high}")
        return timedelta(**{unit: value})

    return check


def _texts(item: Check) -> Check:
    def check(value: Any) -> tuple[Any, ...]:
        if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
            raise Bad("must be a list of texts")
        return tuple(item(each) for each in value)

    return check


def _one_of(*names: str) -> Check:
    def check(value: Any) -> str:
        if value not in names:
            raise Bad(f"must be one of {', '.join(names)}")
        return str(value)

    return check


def _path(value: Any) -> Path:
    if not isinstance(value, str) or not value or "\0" in value:
        raise Bad("must be the path of a file")
    try:
        return Path(value).expanduser()
    except RuntimeError:
        raise Bad("must be the path of a file; the home folder that its ~ stands for is unknown") from None


def _path_or_empty(value: Any) -> Path | None:
    return None if value == "" else _path(value)


def _mode(value: Any) -> str:
    if not isinstance(value, str) or len(value) != 4 or value[0] != "0" or not set(value) <= set("01234567"):
        raise Bad('must be the mode of a file, such as "0660"')
    return value


def origin_of(value: Any) -> str:
    """scheme://host[:port] as a browser writes it in an Origin header."""
    from urllib.parse import urlsplit

    problem = Bad("must be an origin such as https://example.com, without path, query or user")
    if not isinstance(value, str) or any(c <= " " or c > "~" for c in value):
        raise problem
    try:
        url = urlsplit(value)
        port = url.port
    except ValueError:
        raise problem from None
    host = (url.hostname or "").lower()
    if url.scheme not in ("http", "https") or not host or "@" in url.netloc or port == 0:
        raise problem
    if url.path not in ("", "/") or url.query or url.fragment or value.endswith(("?", "#")) or "\\" in value:
        raise problem
    if not (host.replace("-", "").replace(".", "").replace("_", "").isalnum() or ":" in host):
        raise problem
    name = f"[{host}]" if ":" in host else host
    default = {"http": 80, "https": 443}[url.scheme]
    return f"{url.scheme}://{name}" + (f":{port}" if port not in (None, default) else "")


def provider_url(value: Any) -> str:
    """An https URL of the identity provider; http only on this machine."""
    from urllib.parse import urlsplit

    problem = Bad("must be an https URL (http only for this machine)")
    if not isinstance(value, str) or any(c <= " " or c > "~" for c in value):
        raise problem
    try:
        url = urlsplit(value)
        _ = url.port
    except ValueError:
        raise problem from None
    if not url.hostname or "@" in url.netloc or url.fragment:
        raise problem
    if url.scheme != "https" and not (url.scheme == "http" and is_loopback(url.hostname)):
        raise problem
    return value


def host_and_port(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def near(host: str) -> str:
    """Where to ask, on this machine, whoever listens there: a listener everywhere has no address of its own."""
    host = host.strip("[]")
    return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104 - compared, not listened at


def is_loopback(host: str) -> bool:
    import ipaddress

    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def _network(value: Any) -> Any:
    import ipaddress

    if value == UNIX:
        return value
    try:
        return ipaddress.ip_network(value)
    except ValueError:
        raise Bad(f'must be addresses, CIDR ranges such as 10.0.0.0/8, or "{UNIX}"') from None


def _pattern(value: Any) -> str:
    if not isinstance(value, str) or not value.startswith("/") or any(c <= " " or c in "?#\\" for c in value):
        raise Bad('must be paths such as "/about" or "/docs/*", each beginning with /')
    if any("*" in part and part != "*" for part in value.split("/")):
        raise Bad('must have a * only as a whole segment, as in "/docs/*" or "/shop/*/item"')
    return value


def _role_rules(value: Any) -> tuple[tuple[str, str], ...]:
    if not isinstance(value, dict):
        raise Bad('must be a table of paths and roles, such as "/admin/*" = "admin"')
    for path, role in value.items():
        _pattern(path)
        if role not in ("admin", "user"):
            raise Bad("must be admin or user for each path")
    return tuple(value.items())


def _shared_secret(value: Any) -> str:
    text = _text(value)
    if len(text) < 32:
        raise Bad("must be a secret of at least 32 characters, such as `openssl rand -base64 32` makes")
    return text


def _cookie_name(value: Any) -> str:
    if (
        not isinstance(value, str)
        or not value.replace("_", "").replace("-", "").isalnum()
        or not value.isascii()
    ):
        raise Bad("must be letters, digits, - and _")
    if value.lower().startswith(("__host-", "__secure-")):
        raise Bad("must be without __Host-: that is added when baseUrl is https")
    return value


def _redirect(value: Any) -> str:
    text = _text(value)
    if (
        text.startswith("/")
        and not text.startswith(("//", "/\\"))
        and all(" " < c <= "~" for c in text)
        and "\\" not in text
    ):
        return text
    if text.startswith(("http://", "https://")) and all(" " < c <= "~" for c in text) and "\\" not in text:
        return text  # its origin is compared when all of the settings are known
    raise Bad(
        "must be a path that begins with one /, or an absolute URL on baseUrl's origin or one of auth.allowedOrigins"
    )


def _callback(value: Any) -> str:
    text = _redirect(value)
    is_plain = not any(c in "?#*<>%" for c in text) and {".", ".."}.isdisjoint(text.split("/"))
    if not text.startswith("/") or not is_plain:
        raise Bad(
            "must be a path that begins with one /, as it stands in the address: without % and patterns"
        )
    return text


def _cron(value: Any) -> str | None:
    if value is None or value is False:
        return None
    problem = Bad('must be five cron fields such as "0 2 * * *", an alias such as "@daily", or false')
    if not isinstance(value, str):
        raise problem
    from usersctl.schedule import next_slot

    try:
        next_slot(value)
    except ValueError as error:
        raise Bad(f"{problem} ({error})") from None
    return value.strip()


def _sender(value: Any) -> str:
    from email.errors import MessageError
    from email.headerregistry import Address
    from email.utils import getaddresses

    text = _text(value)
    found = getaddresses([text])
    try:
        addresses = [Address(name, addr_spec=address).addr_spec for name, address in found]
    except (ValueError, IndexError, MessageError):
        addresses = []
    if len(addresses) != 1 or addresses[0].count("@") != 1 or not text.isprintable():
        raise Bad('must be one sender such as "Accounts <accounts@example.com>"')
    return text


def _colour(value: Any) -> str:
    import re

    if not isinstance(value, str) or not re.fullmatch(r"#[0-9a-fA-F]{6}", value):
        raise Bad('must be a colour such as "#0b5fff"')
    return value


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


class Loaded(NamedTuple):
    settings: Settings
    file: Path | None
    origins: dict[str, Origin]  # by dotted key, the value as it was written


def load(
    *,
    config: Path | None = None,
    flags: Mapping[str, Any] | None = None,
    env: Mapping[str, str] | None = None,
) -> Loaded:
    """Flag, environment, file, default: the first that speaks wins. `flags` has dotted keys."""
    env = os.environ if env is None else env
    file = find_file(config, env)
    in_file = _read(file) if file is not None else {}
    layers = [
        {key: Origin(str(file), value) for key, value in in_file.items()},
        _from_environment(env),
        {key: Origin(COMMAND_LINE, value) for key, value in (flags or {}).items() if value is not None},
    ]
    if not any("database" in layer for layer in layers):
        source, path = _default_database(env)
        layers.append({"database": Origin(source, str(path))})

    written: dict[str, Origin] = {}
    values: dict[str, Any] = {}
    # Also what is overridden has to be right: it may not be, the next time.
    for key, (source, value) in chain.from_iterable(layer.items() for layer in layers):
        name, rule = TABLE[key]
        written[key] = Origin(source, value)
        if value is None and Settings._field_defaults.get(name, ...) is None:
            continue
        try:
            values[name] = rule.check(value)
        except Bad as problem:
            shown = "***" if rule.secret else json.dumps(value, ensure_ascii=False, default=str)
            refused = Invalid if source == COMMAND_LINE else ConfigError  # misuse, and not the configuration
            raise refused(f"{source}: {key} = {shown}: {problem}") from None
    _make_absolute(values, written, file)
    values.setdefault("base_url", f"http://127.0.0.1:{values.get('port', 8080)}")
    settings = Settings(**values)
    _check_together(settings, written)
    return Loaded(settings, file, written)


def _make_absolute(values: dict[str, Any], written: dict[str, Origin], file: Path | None) -> None:
    """A file's relative paths start at its folder, so that cron and a shell see the same database."""
    for name in ("database", "socket", "mailer_templates", "logo", "stylesheet"):
        if isinstance(values.get(name), Path):
            key = Settings.__annotations__[name].__metadata__[0].name
            if file is not None and written[key].source == str(file):
                values[name] = file.parent / values[name]
            else:
                values[name] = values[name].absolute()
    if file is not None and values.get("locale", "").endswith(".json"):
        values["locale"] = str(file.parent / values["locale"])


def find_file(config: Path | None, env: Mapping[str, str]) -> Path | None:
    named = config or (Path(env["USERS_CONFIG"]) if env.get("USERS_CONFIG") else None)
    if named is not None:
        try:
            there = named.is_file()
        except OSError as error:
            raise ConfigError(f"{named}: cannot be read: {error.strerror}") from None
        if not there:
            raise ConfigError(f"{named}: no such configuration file")
        return named.absolute()
    for path in default_files(env):
        if _is_file(path):
            return path
    return None


def _is_file(path: Path) -> bool:
    # A folder that we may not enter holds no configuration of ours; is_file() alone would raise there.
    return os.access(path, os.F_OK) and path.is_file()


def default_files(env: Mapping[str, str]) -> list[Path]:
    home = _home(env, "XDG_CONFIG_HOME", ".config")
    return [Path("/etc/users/users.toml"), *([home / "users" / "users.toml"] if home else [])]


def _home(env: Mapping[str, str], name: str, usual: str) -> Path | None:
    """A base folder as XDG has it, which counts only if it is absolute: nothing of ours is looked for in `.`."""
    if env.get(name, "").startswith("/"):
        return Path(env[name])
    try:
        # cron and systemd may leave HOME out; then the password database may know it.
        return (Path(env["HOME"]) if env.get("HOME", "").startswith("/") else Path("~").expanduser()) / usual
    except RuntimeError:
        return None


def _default_database(env: Mapping[str, str]) -> tuple[str, Path]:
    if env.get("STATE_DIRECTORY"):
        return "STATE_DIRECTORY", Path(env["STATE_DIRECTORY"].split(":")[0]) / "users.db"
    if os.geteuid() == 0:
        return "default for root", Path("/var/lib/users/users.db")
    home = _home(env, "XDG_DATA_HOME", ".local/share")
    if home is None:
        raise ConfigError("database: this user has no home folder to keep it in: set USERS_DATABASE")
    return "default", home / "users" / "users.db"


def _read(file: Path) -> dict[str, Any]:
    text = _text_of(file, str(file))
    try:
        if file.suffix == ".json":
            tree = json.loads(text, object_pairs_hook=_no_duplicates)
        else:
            import tomllib

            tree = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(
            f"{file}: not valid {'JSON' if file.suffix == '.json' else 'TOML'}: {error}"
        ) from None
    if not isinstance(tree, dict):
        raise ConfigError(f"{file}: must hold one JSON object")
    flat: dict[str, Any] = {}
    _flatten(file, tree, "", flat)
    return flat


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key stands twice in one object")
    return found


def _flatten(file: Path, tree: dict[str, Any], prefix: str, flat: dict[str, Any]) -> None:
    for name, value in tree.items():
        key = prefix + name
        if key in TABLE:
            flat[key] = value
        elif any(known.startswith(key + ".") for known in TABLE):
            if not isinstance(value, dict):
                secret = any(rule.secret for known, (_, rule) in TABLE.items() if known.startswith(key + "."))
                shown = "***" if secret else json.dumps(value, ensure_ascii=False, default=str)
                raise ConfigError(f"{file}: {key} = {shown}: must be a table of keys")
            _flatten(file, value, key + ".", flat)
        else:
            import difflib

            # Keys and sections; the letter case is what is most often wrong.
            names = {
                each.lower(): each for known in TABLE for each in (known, known.rpartition(".")[0]) if each
            }
            near = difflib.get_close_matches(key.lower(), names, n=1)
            meant = f" (did you mean {names[near[0]]}?)" if near else ""
            raise ConfigError(f"{file}: unknown key {key}{meant}")


MAY_BE_FILES = ("USERS_ASSERTION_", "USERS_MAILER_", "USERS_OAUTH_")


def _from_environment(env: Mapping[str, str]) -> dict[str, Origin]:
    found: dict[str, Origin] = {}
    for key, (_, rule) in TABLE.items():
        name = rule.env
        if name is None:
            continue
        file = env.get(f"{name}_FILE") if name.startswith(MAY_BE_FILES) else None
        if env.get(name) and file:
            raise ConfigError(f"{name} and {name}_FILE are both set: keep one of them")
        if env.get(name):
            found[key] = Origin(name, env[name])
        elif file:
            found[key] = Origin(f"{name}_FILE", read_secret(Path(file), f"{name}_FILE"))
    return found


def read_secret(file: Path, what: str) -> str:
    """A secret in a file, without the line end that editors add."""
    return _text_of(file, f"{what}: {file}").removesuffix("\n").removesuffix("\r")


def _text_of(file: Path, named: str) -> str:
    try:
        with file.open("rb") as opened:
            raw = opened.read(MOST_BYTES + 1)  # a device may have no end
        text = raw.decode()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"{named}: cannot be read: {getattr(error, 'strerror', None) or 'not UTF-8'}"
        ) from None
    if len(raw) > MOST_BYTES:
        raise ConfigError(f"{named}: is larger than {MOST_BYTES // 1024} KiB")
    return text


def _check_together(settings: Settings, written: dict[str, Origin]) -> None:
    """What no single key can tell."""

    def refuse(key: str, allowed: str) -> None:
        origin = written.get(key, Origin("configuration", None))
        raise ConfigError(f"{origin.source}: {key} = {json.dumps(origin.value, default=str)}: {allowed}")

    origins = {settings.base_url, *settings.allowed_origins}
    for key in (
        "auth.oauth.successRedirect",
        "auth.oauth.errorRedirect",
        "mailer.links.confirm",
        "mailer.links.reset",
    ):
        target: str = getattr(settings, TABLE[key][0])
        if not target.startswith("/"):
            try:
                inside = (
                    origin_of("/".join(target.split("/")[:3]).partition("?")[0].partition("#")[0]) in origins
                )
            except Bad:
                inside = False
            if not inside:
                refuse(key, "must be a path, or a URL on baseUrl's origin or one of auth.allowedOrigins")
    if settings.oauth_client_id and settings.oauth_provider == "oidc":
        urls = (settings.oauth_authorization_url, settings.oauth_token_url, settings.oauth_user_info_url)
        if not settings.oauth_issuer and not all(urls):
            refuse(
                "auth.oauth.clientId",
                "needs auth.oauth.issuer, or all of authorizationUrl, tokenUrl and userInfoUrl, or another provider",
            )
    if (settings.mailer_user is None) != (settings.mailer_password is None):
        refuse("mailer.auth.user", "mailer.auth.user and mailer.auth.pass go together")
    hosts = {near(settings.host), near(settings.metrics_host)}
    if settings.socket is None and settings.metrics_port == settings.port and len(hosts) == 1:
        refuse("metrics.port", "is where the service itself listens, see server.port: choose another")


def shown(loaded: Loaded) -> list[tuple[str, Any, str]]:
    """(key, value, source) of every key, secrets masked: what `config show` prints."""
    rows = []
    for key, (name, rule) in TABLE.items():
        origin = loaded.origins.get(key, Origin("default", None))
        value = origin.value
        if key not in loaded.origins or key == "database":
            value = _plain(getattr(loaded.settings, name), key)
        if rule.secret and value is not None:
            value = "***"
        rows.append((key, value, origin.source))
    return rows


def _plain(value: Any, key: str) -> Any:
    """A default as one would write it in the file."""
    if isinstance(value, timedelta):
        return value // timedelta(**{"days" if key.endswith("rememberMeExpiration") else "minutes": 1})
    if key == "auth.roleRules":
        return dict(value)
    if isinstance(value, tuple):
        return [str(each) for each in value]
    if key == "tokenCleanupSchedule" and value is None:
        return False
    return str(value) if isinstance(value, Path) else value
