"""Reads the configuration file, the environment and flags, and decides which of them wins for each key."""

import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

from usersctl.config.providers import PRESETS, PROVIDERS, ProviderSettings, table_of
from usersctl.config.settings import (
    KEYS,
    KEYS_OF_PROVIDERS,
    VARIABLES,
    Key,
    Settings,
    key_called,
    keys_of,
    provider_key_of,
    provider_of,
)
from usersctl.config.values import (
    MASK,
    BadPart,
    BadValue,
    MissingPart,
    connectable_host,
    origin_in,
    origin_of,
    provider_url,
    redirect,
)
from usersctl.errors import ConfigError, Invalid
from usersctl.fields import problem_of_toml, unique_keys
from usersctl.models import OAUTH
from usersctl.named import NamedTuple
from usersctl.store.conninfo import Conninfo

COMMAND_LINE = "command line"
# Beside those of the keys.
OTHER_VARIABLES = ("USERS_CONFIG", "USERS_ADMIN_EMAIL", "USERS_ADMIN_PASSWORD_FILE")
MOST_BYTES = 1024 * 1024  # of a configuration file or a secret's file


class Origin(NamedTuple):
    """Where a setting's value came from, for `config show --origin`."""

    source: str
    value: Any

    def __repr__(self) -> str:
        return f"Origin({self.source!r})"  # the value may be a secret


class Loaded(NamedTuple):
    settings: Settings
    file: Path | None
    origins: dict[str, Origin]  # by dotted key, the value as it was written

    @property
    def has_default_address(self) -> bool:
        """True while no operator has said what the public address of the service is."""
        return "baseUrl" not in self.origins


def load(
    *, config: Path | None = None, flags: Mapping[str, Any] = {}, env: Mapping[str, str] = os.environ
) -> Loaded:
    """The first of flag, environment, file and default wins. `flags` has dotted keys."""
    file = find_file(config, env)
    layers = [  # from the weakest to the strongest
        _from_file(file),
        _from_environment(env),
        {key: Origin(COMMAND_LINE, value) for key, value in flags.items() if value is not None},
    ]
    source, state_folder = _state_folder(env)
    if not any("database" in layer for layer in layers):
        layers.append({"database": _default_database(source, state_folder)})
    layers.insert(0, _from_presets(layers))
    origins: dict[str, Origin] = {}
    values: dict[str, Any] = {}
    for layer in layers:
        # Overridden values are checked too: they may apply on the next start.
        values |= _checked(layer)
        origins |= layer
    fields = {KEYS[name].field: value for name, value in values.items() if name in KEYS}
    fields["more_providers"] = _more_providers(values)
    if state_folder is not None:
        fields["state_folder"] = state_folder
    _make_absolute(fields, origins, file)
    host = "[::1]" if fields.get("host", "").strip("[]") == "::1" else "127.0.0.1"
    fields.setdefault("base_url", f"http://{host}:{fields.get('port', 8080)}")
    settings = Settings(**fields)
    _check_together(settings, origins)
    return Loaded(settings, file, origins)


def _checked(layer: dict[str, Origin]) -> dict[str, Any]:
    """By name. A null where there is no default counts as left out."""
    values: dict[str, Any] = {}
    for name, (source, value) in layer.items():
        key = _known(name)
        if value is None and Settings._field_defaults.get(key.field, ...) is None:
            continue
        try:
            values[name] = checked = key.kind(value)
            if source == COMMAND_LINE:
                refuse_password("--db", checked, "read it from a file by USERS_DATABASE_FILE or PGPASSFILE")
        except BadValue as problem:
            part, refused = "", _as_text(value, secret=key.secret)
            if isinstance(problem, BadPart):
                part, refused = problem.part, _as_text(problem.value)
            told = f"{name}{part} = {refused}: {problem}"
            if isinstance(problem, MissingPart):
                told = f"{name}{part} {problem}"
            # A wrong flag is misuse of the command; the configuration may be right.
            error = {COMMAND_LINE: Invalid}.get(source, ConfigError)
            raise error(f"{source}: {told}") from None
    return values


def refuse_password(argument: str, value: object, hint: str) -> None:
    """Of a database on a server."""
    if isinstance(value, Conninfo) and value.has_password:
        problem = f"{argument} must not have a password, which every user of this machine could see"
        raise Invalid(problem, hint=hint)


def _known(name: str) -> Key:
    key = key_called(name)
    if key is None:
        raise ConfigError(unknown_key(name))
    return key


def _from_presets(layers: list[dict[str, Origin]]) -> dict[str, Origin]:
    """What the presets of the providers give, weaker than what is written."""
    written: dict[str, Origin] = {}
    for layer in layers:
        written |= layer
    given: dict[str, Origin] = {}
    for name, (_, preset) in written.items():
        if _known(name).field == "oauth_preset":
            values = PRESETS.get(preset, {}) if isinstance(preset, str) else {}
            given |= {
                f"{name.removesuffix('preset')}{key}": Origin(f"preset {preset}", value)
                for key, value in values.items()
            }
    return given


def _more_providers(values: dict[str, Any]) -> tuple[ProviderSettings, ...]:
    names = {name.split(".")[2]: None for name in values if name.startswith(PROVIDERS)}  # in their order
    callbacks = values.get("auth.oauth.callbackUrl", KEYS["auth.oauth.callbackUrl"].default)
    providers = []
    for name in names:
        fields: dict[str, Any] = {"callback_url": f"{callbacks}/{name}"}
        for key in keys_of(name):
            fields.setdefault(key.provider_field, Settings._field_defaults[key.field])
            given = values.get(key.name)
            if given is not None:
                fields[key.provider_field] = given
        providers.append(ProviderSettings(name, **fields))
    return tuple(providers)


def _as_text(value: Any, *, secret: bool = False) -> str:
    if secret:
        return MASK
    return json.dumps(value, ensure_ascii=False, default=str)


def _make_absolute(fields: dict[str, Any], origins: dict[str, Origin], file: Path | None) -> None:
    """A file's relative paths start at its folder, so that cron and a shell see the same database."""
    for key in KEYS.values():
        path = fields.get(key.field)
        if not isinstance(path, Path):
            continue
        if file is not None and origins[key.name].source == str(file):
            fields[key.field] = file.parent / path
        else:
            fields[key.field] = path.absolute()
    if file is not None and fields.get("locale", "").endswith(".json"):
        fields["locale"] = str(file.parent / fields["locale"])


def find_file(config: Path | None, env: Mapping[str, str]) -> Path | None:
    source = "--config"
    if config is None and env.get("USERS_CONFIG"):
        source, config = "USERS_CONFIG", Path(env["USERS_CONFIG"])
    if config is None:
        # In a folder that this process may not enter, is_file() alone would raise.
        files = (file for file in default_files(env) if os.access(file, os.F_OK))
        return next(filter(Path.is_file, files), None)
    try:
        if config.is_file():
            return config.absolute()
    except OSError as error:
        raise ConfigError(f"{config}: cannot be read: {error.strerror}") from None
    usual = " or ".join(map(str, default_files(env)))
    hint = f"{source} names it; without that, {usual} is used"
    problem = "no such configuration file"
    if config.exists():  # as with /dev/null, or a pipe of the shell
        problem = "is a folder, a pipe or a device, and has to be a file"
    raise ConfigError(f"{config}: {problem}", hint=hint)


def default_files(env: Mapping[str, str]) -> list[Path]:
    files = [Path("/etc/users/users.toml")]
    if home := _home(env, "XDG_CONFIG_HOME", ".config"):
        files.append(home / "users" / "users.toml")
    return files


def _home(env: Mapping[str, str], name: str, usual: str) -> Path | None:
    """An XDG base folder. Relative ones are ignored, so that the current folder is never searched."""
    if env.get(name, "").startswith("/"):
        return Path(env[name])
    if env.get("HOME", "").startswith("/"):
        return Path(env["HOME"]) / usual
    import pwd  # late: HOME is nearly always set

    try:
        # cron and systemd may leave HOME out; then the password database may know the folder.
        known = pwd.getpwuid(os.getuid()).pw_dir
    except KeyError:
        return None
    return Path(known) / usual if known.startswith("/") else None


def _state_folder(env: Mapping[str, str]) -> tuple[str, Path | None]:
    """The folder for what this program keeps, and why it is this one."""
    state = env.get("STATE_DIRECTORY", "").split(":")[0]
    if state.startswith("/"):  # as systemd sets it; see _home() for relative ones
        return "STATE_DIRECTORY", Path(state)
    if os.geteuid() == 0:
        return "default for root", Path("/var/lib/users")
    home = _home(env, "XDG_DATA_HOME", ".local/share")
    return "default", home and home / "users"


def _default_database(source: str, folder: Path | None) -> Origin:
    if folder is None:
        raise ConfigError("database: this user has no home folder for it: set USERS_DATABASE")
    return Origin(source, str(folder / "users.db"))


def _from_file(file: Path | None) -> dict[str, Origin]:
    if file is None:
        return {}
    text = _text_of(file, str(file))
    form = "TOML"
    try:
        if file.suffix == ".json":
            form = "JSON"
            tree = json.loads(text, object_pairs_hook=unique_keys)
        else:
            import tomllib

            tree = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{file}: not valid {form}: {problem_of_toml(error)}") from None
    if not isinstance(tree, dict):
        raise ConfigError(f"{file}: must hold one JSON object")
    origins: dict[str, Origin] = {}
    for name, origin in _flattened(file, tree):
        if name in origins:  # in its table, and as one word with dots
            raise ConfigError(f"{file}: {name} stands twice")
        origins[name] = origin
    return origins


def _flattened(file: Path, tree: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Origin]]:
    for part, value in tree.items():
        name = prefix + part
        inside = _keys_inside(file, name)
        if key_called(name):
            yield name, Origin(str(file), value)
        elif not inside:
            raise ConfigError(f"{file}: {unknown_key(name)}")
        elif isinstance(value, dict):
            yield from _flattened(file, value, name + ".")
        else:
            text = _as_text(value, secret=any(key.secret for key in inside))
            raise ConfigError(f"{file}: {name} = {text}: must be a table of keys")


def _keys_inside(file: Path, name: str) -> list[Key]:
    """The keys of this table."""
    provider = name.removeprefix(PROVIDERS)
    if name == PROVIDERS.rstrip("."):
        return [*KEYS_OF_PROVIDERS.values()]
    if provider == name or "." in provider:
        return [key for key in KEYS.values() if key.name.startswith(name + ".")]
    if provider_of(name) is None:
        allowed = "must be 1 to 31 small letters, digits and hyphens, a letter first"
        if provider == OAUTH:
            allowed = "this name stands for auth.oauth: choose another"
        raise ConfigError(f"{file}: {name}: {allowed}")
    return keys_of(provider)


def unknown_key(name: str) -> str:
    """The message, with the keys or tables that end in this word, or the nearest. The letter case is what is most often
    wrong."""
    import difflib

    keys = [*KEYS.values()]
    table = name.rpartition(".")[0]
    if table.startswith(PROVIDERS):
        keys = keys_of(table.removeprefix(PROVIDERS))
    names = {known.lower(): known for key in keys for known in (key.name, key.table) if known}
    nearest = [known for known in names if known.endswith(f".{name.lower()}")]
    nearest = nearest or difflib.get_close_matches(name.lower(), names, n=1)
    if not nearest:
        return f"unknown key {name} (all keys: usersctl config explain)"
    return f"unknown key {name} (did you mean {' or '.join(names[match] for match in nearest)}?)"


def _from_environment(env: Mapping[str, str]) -> dict[str, Origin]:
    origins: dict[str, Origin] = {}
    for variable in sorted(env):
        key, value = VARIABLES.get(variable) or provider_key_of(variable), env[variable]
        if key is None or not value:
            continue
        if key.name in origins:
            raise ConfigError(f"{key.env} and {variable} are both set: keep one of them")
        if variable != key.env:
            value = read_secret(Path(value), variable)
        origins[key.name] = Origin(variable, value)
    return origins


def unread_variables() -> str:
    """Names the variables that look like ones of this program and set nothing; empty if there are none."""
    known = [*VARIABLES, *OTHER_VARIABLES]
    ours = [name for name in sorted(os.environ) if name.startswith("USERS_") and name not in known]
    unread = [name for name in ours if provider_key_of(name) is None]
    if not unread:
        return ""
    import difflib

    nearest = {name: difflib.get_close_matches(name, known, n=1, cutoff=0.8) for name in unread}
    named = [f"{name} (did you mean {near[0]}?)" if near else name for name, near in nearest.items()]
    return f"environment variables that set nothing: {', '.join(named)}"


def read_secret(file: Path, what: str) -> str:
    """A secret in a file, without the line end that editors add."""
    return _text_of(file, f"{what}: {file}").removesuffix("\n").removesuffix("\r")


def _text_of(file: Path, name: str) -> str:
    try:
        with file.open("rb") as opened:
            raw = opened.read(MOST_BYTES + 1)  # a device may have no end
        text = raw.decode("utf-8-sig")  # Windows writes a mark of UTF-8 first
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{name}: cannot be read: {getattr(error, 'strerror', 'not UTF-8')}") from None
    if len(raw) > MOST_BYTES:
        raise ConfigError(f"{name}: is larger than {MOST_BYTES // 1024} KiB")
    return text


def refuse_pipe(file: Path, name: str) -> None:
    """Of a file that is read again later: what opens a pipe or a device may wait for ever, or read without an end."""
    with suppress(OSError):  # its reader says why it cannot be read
        if file.exists() and not file.is_file() and not file.is_dir():
            raise ConfigError(f"{name}: is a pipe or a device, not a file")


def _check_together(settings: Settings, origins: dict[str, Origin]) -> None:
    """Checks that involve several keys."""

    def refuse(name: str, allowed: str) -> NoReturn:
        # A key that is left out stands in no file: then the error names another key of its table, which does.
        table = name.rpartition(".")[0] + "."
        names = (name, *(other for other in origins if other.startswith(table)))
        written = next(filter(origins.__contains__, names))
        source, value = origins[written]
        refused = _as_text(value, secret=_known(written).secret)
        raise ConfigError(f"{source}: {written} = {refused}: {allowed}")

    allowed_origins = {settings.base_url, *settings.allowed_origins}
    redirects = {key.name: getattr(settings, key.field) for key in KEYS.values() if key.kind is redirect}
    for provider in settings.more_providers:
        redirects |= _of_kind(provider, redirect)
    for name, target in redirects.items():
        if not target.startswith("/") and _origin_of_url(target) not in allowed_origins:
            refuse(name, "must be a path, or a URL on baseUrl's origin or one of auth.allowedOrigins")
    callbacks: dict[str, str] = {}
    for provider in settings.described_providers:
        _check_provider(provider, refuse)
        taken = callbacks.setdefault(provider.callback_url, provider.name)
        if taken != provider.name:
            # Of the two, the one that is written: the other may follow from the name.
            both = {
                f"{table_of(provider.name)}.callbackUrl": taken,
                f"{table_of(taken)}.callbackUrl": provider.name,
            }
            name = next(filter(origins.__contains__, both))
            refuse(name, f"is the callback of {both[name]}: choose another path")
    # A user without a password is for usersd.check: only the daemon may have the password in its environment.
    if settings.mailer_user is None and settings.mailer_password is not None:
        refuse("mailer.auth.pass", "mailer.auth.user and mailer.auth.pass go together")
    hosts = {connectable_host(settings.host), connectable_host(settings.metrics_host)}
    if settings.socket is None and settings.metrics_port == settings.port and len(hosts) == 1:
        refuse("metrics.port", "is where the service itself listens, see server.port: choose another")


def _of_kind(provider: ProviderSettings, kind: Any) -> dict[str, Any]:
    """The values of the keys of this kind, by the names of the keys."""
    keys = [key for key in keys_of(provider.name) if key.kind is kind]
    return {key.name: getattr(provider, key.provider_field) for key in keys}


def _check_provider(provider: ProviderSettings, refuse: Callable[[str, str], NoReturn]) -> None:
    table = table_of(provider.name)
    if (provider.client_id or provider.name != OAUTH) and provider.provider == "oidc":
        urls = (provider.authorization_url, provider.token_url, provider.user_info_url)
        if not provider.issuer and not all(urls):
            urls_of_it = "authorizationUrl, tokenUrl and userInfoUrl"
            needed = f"needs {table}.issuer, or a preset, or all of {urls_of_it}, or another provider"
            refuse(f"{table}.clientId", needed)
    if "/.well-known/" in (provider.issuer or ""):
        refuse(f"{table}.issuer", "must be the issuer itself: all before /.well-known/")
    addresses = _of_kind(provider, provider_url)
    plain = [name for name, url in addresses.items() if url and origin_in(url).startswith("http:")]
    if plain and origin_in(provider.issuer_of_links or "").startswith("https:"):
        refuse(plain[0], "must be https, as the issuer is")


def _origin_of_url(url: str) -> str | None:
    try:
        return origin_of("/".join(url.split("/")[:3]).partition("?")[0].partition("#")[0])
    except BadValue:
        return None


def shown(loaded: Loaded) -> list[tuple[str, Any, str]]:
    """(key, value, source) of every key, as it is in force, secrets masked: what `config show` prints."""
    settings = loaded.settings
    values = {name: (key, getattr(settings, key.field)) for name, key in KEYS.items()}
    for provider in settings.more_providers:
        values |= {key.name: (key, getattr(provider, key.provider_field)) for key in keys_of(provider.name)}
    rows = []
    for name, (key, in_force) in values.items():
        value = key.kind.write(in_force)
        if key.secret and value is not None:
            value = MASK
        rows.append((name, value, loaded.origins.get(name, Origin("default", None)).source))
    return rows
