"""Reads the configuration file, the environment and flags, and decides which of them wins for each key."""

import json
import os
from collections.abc import Mapping
from datetime import timedelta
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

from usersctl.config.settings import TABLE, Settings
from usersctl.config.values import Bad, near, origin_of
from usersctl.errors import ConfigError, Invalid

COMMAND_LINE = "command line"
MOST_BYTES = 1024 * 1024  # of a file that is read whole: a configuration, or one secret


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
