"""Settings: every key with its default and range, the source that wins, and the error for an invalid value."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.commands import tree_of

from usersctl.config import Settings
from usersctl.config.sources import MOST_BYTES, Loaded, default_files, find_file, load, shown
from usersctl.config.values import is_loopback, origin_of
from usersctl.errors import ConfigError, Invalid
from usersctl.store.conninfo import Conninfo

SAME_FOLDER = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
ANY_TEXT = st.text(st.characters(codec=None, exclude_categories=()))

# As documented; None for a key without a default.
DEFAULTS: dict[str, Any] = {
    "database": "/srv/users.db",
    "baseUrl": "http://127.0.0.1:8080",
    "server.host": "127.0.0.1",
    "server.port": 8080,
    "server.socket": None,
    "server.socketMode": "0660",
    "server.threads": 4,
    "server.processes": 1,
    "server.trustedProxies": [],
    "server.proxyDropsUnderscores": False,
    "server.hstsIncludeSubDomains": False,
    "auth.whitelist": [],
    "auth.tokenExpiration": 1440,
    "auth.unconfirmedExpiration": 30,
    "auth.rememberMeExpiration": 30,
    "auth.deletionGrace": 7,
    "auth.cookieName": "auth_token",
    "auth.allowedOrigins": [],
    "auth.roleRules": {},
    "auth.factorRules": [],
    "auth.assertionSecret": None,
    "auth.secretKey": None,
    "forward.headers": {
        "Remote-User": "id",
        "Remote-Email": "email",
        "Remote-Name": "name",
        "Remote-Role": "role",
        "Remote-Groups": "groups",
        "Remote-Auth": "auth",
    },
    "forward.basic": False,
    "auth.oauth.clientId": None,
    "auth.oauth.clientSecret": None,
    "auth.oauth.provider": "oidc",
    "auth.oauth.label": None,
    "auth.oauth.issuer": None,
    "auth.oauth.authorizationUrl": None,
    "auth.oauth.tokenUrl": None,
    "auth.oauth.userInfoUrl": None,
    "auth.oauth.allowAutoRegistration": False,
    "auth.oauth.trustsEmail": False,
    "auth.oauth.trustsFactors": False,
    "auth.oauth.successRedirect": "/",
    "auth.oauth.errorRedirect": "/login?error=oauth_failed",
    "auth.oauth.scopes": ["openid", "profile", "email"],
    "auth.oauth.callbackUrl": "/api/users/auth/oauth/callback",
    "passwordValidation.minLength": 8,
    "passwordValidation.requireUppercase": False,
    "passwordValidation.requireLowercase": False,
    "passwordValidation.requireNumbers": False,
    "passwordValidation.requireSpecialChars": False,
    "passwordValidation.preventCommonPasswords": True,
    "passwordHashing.rounds": 12,
    "mailer.host": None,
    "mailer.port": None,
    "mailer.secure": False,
    "mailer.auth.user": None,
    "mailer.auth.pass": None,
    "mailer.defaults.from": None,
    "mailer.templates": None,
    "mailer.links.confirm": "/confirm-email",
    "mailer.links.reset": "/reset-password",
    "mailer.links.invite": "/accept-invite",
    "branding.name": "Users",
    "branding.logo": None,
    "branding.accent": None,
    "branding.stylesheet": None,
    "locale": "en",
    "tokenCleanupSchedule": "0 2 * * *",
    "metrics.host": "127.0.0.1",
    "metrics.port": None,
    "limits.enabled": True,
    "limits.accountFailures": 10,
    "limits.accountLock": 100,
    "limits.failedLoginsPerMinute": 60,
    "limits.registrationsPerHour": 60,
    "limits.forgotsPerMinute": 20,
    "limits.ownChangesPerHour": 60,
    "limits.providerSignInsPerMinute": 60,
    "passwordValidation.minStrength": 0,
    "auth.secondFactor": "optional",
    "auth.rememberFactor": 30,
    "webhooks": [],
}
ENV = {"HOME": "/nonexistent", "USERS_DATABASE": "/srv/users.db"}


LoadKeys = Callable[..., Loaded]


@pytest.fixture
def load_keys(tmp_path: Path) -> LoadKeys:
    """Loads settings from a file that holds these dotted keys, in an environment with nothing but a home."""

    def load_(dotted: dict[str, Any] | None = None, *, env: dict[str, str] = ENV, **flags: Any) -> Loaded:
        file = tmp_path / "users.json"
        file.write_text(json.dumps(tree_of(dotted or {})))
        return load(config=file, env=env, **flags)

    return load_


def error_of(load_keys: LoadKeys, dotted: dict[str, Any], **more: Any) -> str:
    with pytest.raises(ConfigError) as error:
        load_keys(dotted, **more)
    assert len(str(error.value).splitlines()) <= 1 or "\\n" not in str(error.value)
    return str(error.value)


# --- defaults ---


def test_every_key_has_the_documented_default(load_keys: LoadKeys) -> None:
    assert {key: value for key, value, _ in shown(load_keys())} == DEFAULTS


def test_defaults_are_converted_to_durations_and_paths(load_keys: LoadKeys) -> None:
    kept = load_keys().settings
    assert kept.token_expiration == timedelta(hours=24)
    assert kept.remember_me_expiration == timedelta(days=30)
    assert kept.database == Path("/srv/users.db")
    assert kept.cleanup_schedule == "0 2 * * *"
    assert not kept.https
    folder = kept.state_folder  # it depends on the user who runs the tests
    assert kept == Settings(
        database=Path("/srv/users.db"), base_url="http://127.0.0.1:8080", state_folder=folder
    )


def test_settings_are_immutable(load_keys: LoadKeys) -> None:
    with pytest.raises(AttributeError):
        load_keys().settings.port = 1


def test_no_configuration_file_is_needed() -> None:
    assert load(env=ENV | {"USERS_CONFIG": ""}, flags={"server.port": 81}).settings.port == 81


@pytest.mark.parametrize("name", ["users.toml", "users.json"])
def test_an_empty_file_leaves_the_defaults(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("{}" if name.endswith("json") else "")
    assert load(config=tmp_path / name, env=ENV).settings.port == 8080


# --- values ---

PICTURE = "/srv/logo.svg"
GOOD: list[tuple[str, Any, Any]] = [
    ("baseUrl", "https://example.com", "https://example.com"),
    ("baseUrl", "HTTPS://Example.COM:443/", "https://example.com"),
    ("baseUrl", "http://example.com:80", "http://example.com"),
    ("baseUrl", "http://example.com:443", "http://example.com:443"),
    ("baseUrl", "https://[2001:DB8::1]:8443", "https://[2001:db8::1]:8443"),
    ("database", "/other/place.db", Path("/other/place.db")),
    ("server.host", "0.0.0.0", "0.0.0.0"),  # noqa: S104 - a value only
    ("server.port", 1, 1),
    ("server.port", 65535, 65535),
    ("auth.whitelist", ["/about", "/docs/*", "/a/*/b"], ("/about", "/docs/*", "/a/*/b")),
    ("auth.tokenExpiration", 1, timedelta(minutes=1)),
    ("auth.unconfirmedExpiration", 0, timedelta(0)),
    ("auth.rememberMeExpiration", 3650, timedelta(days=3650)),
    ("auth.cookieName", "my-cookie_1", "my-cookie_1"),
    ("auth.cookieName", "oauth_session", "oauth_session"),
    ("auth.allowedOrigins", ["https://App.example.com/"], ("https://app.example.com",)),
    ("auth.roleRules", {"/admin/*": "admin", "/x": "user"}, (("/admin/*", "admin"), ("/x", "user"))),
    ("auth.roleRules", {"/hr": "group:h.r-1"}, (("/hr", "group:h.r-1"),)),
    (
        "auth.roleRules",
        {"/hr/*": ["group:hr", "admin"], "/x": ["user"]},
        (("/hr/*", ("group:hr", "admin")), ("/x", ("user",))),
    ),
    ("auth.roleRules", {}, ()),
    ("auth.factorRules", ["/payroll/*", "/x"], ("/payroll/*", "/x")),
    ("auth.assertionSecret", "s" * 32, "s" * 32),
    ("forward.headers", {"X-Remote-User": "email"}, (("X-Remote-User", "email"),)),
    (
        "forward.headers",
        {"X-WEBAUTH-USER": "id", "x-groups": "groups"},
        (("X-WEBAUTH-USER", "id"), ("x-groups", "groups")),
    ),
    ("forward.headers", {"X-a-b-c-d-e": "id"}, (("X-a-b-c-d-e", "id"),)),
    ("forward.headers", {}, ()),
    ("forward.basic", True, True),
    ("auth.oauth.clientId", "", None),
    ("auth.oauth.clientSecret", "", None),
    ("auth.oauth.provider", "github", "github"),
    ("auth.oauth.issuer", "https://id.example.com/realm", "https://id.example.com/realm"),
    ("auth.oauth.issuer", "http://localhost:9000", "http://localhost:9000"),
    ("auth.oauth.tokenUrl", "http://127.0.0.2/token?x=1", "http://127.0.0.2/token?x=1"),
    ("auth.oauth.tokenUrl", "http://[::1]:1/token", "http://[::1]:1/token"),
    ("auth.oauth.allowAutoRegistration", True, True),
    ("auth.oauth.successRedirect", "/app?welcome=1#top", "/app?welcome=1#top"),
    ("auth.oauth.successRedirect", "http://127.0.0.1:8080/app", "http://127.0.0.1:8080/app"),
    ("auth.oauth.scopes", ["openid"], ("openid",)),
    ("auth.oauth.scopes", [], ()),
    ("auth.oauth.callbackUrl", "/back", "/back"),
    ("passwordValidation.minLength", 72, 72),
    ("passwordValidation.requireUppercase", True, True),
    ("passwordValidation.requireLowercase", True, True),
    ("passwordValidation.requireNumbers", True, True),
    ("passwordValidation.requireSpecialChars", True, True),
    ("passwordValidation.preventCommonPasswords", False, False),
    ("passwordHashing.rounds", 10, 10),
    ("passwordHashing.rounds", 16, 16),
    ("mailer.host", "mail.example.com", "mail.example.com"),
    ("mailer.host", "mail_2.bücher.example", "mail_2.bücher.example"),
    ("mailer.host", "192.0.2.1", "192.0.2.1"),
    ("mailer.host", "fe80::1%eth0", "fe80::1%eth0"),
    ("mailer.port", 465, 465),
    ("mailer.secure", True, True),
    ("mailer.defaults.from", "accounts@example.com", "accounts@example.com"),
    ("mailer.defaults.from", '"Accounts, Inc." <a@example.com>', '"Accounts, Inc." <a@example.com>'),
    ("mailer.defaults.from", "Ünï <a@example.com>", "Ünï <a@example.com>"),
    ("mailer.templates", "/srv/letters", Path("/srv/letters")),
    ("mailer.links.confirm", "/app/confirm", "/app/confirm"),
    ("branding.name", "Ünï & Söhne", "Ünï & Söhne"),
    ("branding.logo", PICTURE, Path(PICTURE)),
    ("branding.accent", "#0B5fff", "#0B5fff"),
    ("branding.stylesheet", "/srv/style.css", Path("/srv/style.css")),
    ("locale", "de", "de"),
    ("tokenCleanupSchedule", "*/5 * * * *", "*/5 * * * *"),
    ("tokenCleanupSchedule", " @daily ", "@daily"),
    ("tokenCleanupSchedule", False, None),
    ("tokenCleanupSchedule", None, None),
    ("limits.enabled", False, False),
    ("limits.accountFailures", 100, 100),
    ("limits.accountLock", 1, 1),
    ("auth.oauth.issuer", None, None),
    ("mailer.host", None, None),
]


def field_of(key: str) -> str:
    from usersctl.config.settings import KEYS

    return KEYS[key].field


@pytest.mark.parametrize(("key", "value", "kept"), GOOD, ids=lambda value: str(value)[:40])
def test_a_valid_value_is_kept_in_its_normal_form(
    load_keys: LoadKeys, key: str, value: Any, kept: Any
) -> None:
    assert (
        getattr(load_keys({key: value}, env={"HOME": "/h", "STATE_DIRECTORY": "/s"}).settings, field_of(key))
        == kept
    )


BAD: list[tuple[str, list[Any]]] = [
    (
        "baseUrl",
        [
            "",
            "example.com",
            "ftp://example.com",
            "https://",
            "https://example.com/app",
            "https://example.com?x",
            "https://example.com?",
            "https://example.com#",
            "https://user@example.com",
            "https://example.com:0",
            "https://example.com:99999",
            "https://example.com:x",
            "https://exa mple.com",
            "https://example.com\n",
            "https://exämple.com",
            "https://example.com\\@evil.com",
            "https://[::1",
            7,
            ["https://example.com"],
            None,
        ],
    ),
    ("database", ["", 7, ["a"], "a\0b", "a\ud800", "~nosuchuser/users.db"]),
    ("server.host", ["", " ", 7, "a\nb"]),
    ("server.port", [0, -1, 65536, "8080", 80.0, True, None, [80]]),
    ("server.socket", [1, True, ["/run/users.sock"], "a\0b"]),
    ("server.socketMode", [660, 0o660, "660", "1660", "0888", "rw-r--r--", None]),
    ("server.threads", [0, 65]),
    ("server.processes", [0, 65, "1"]),
    ("server.trustedProxies", ["10.0.0.1", [1], ["10.0.0.1/33"], ["host.example"], ["10.0.0.1/8"]]),
    ("auth.factorRules", ["/about", ["about"], [7], ["/a b"], {"/admin/*": 2}, True, None]),
    ("auth.whitelist", ["/about", ["about"], [""], [7], ["/a b"], ["/a?x"], ["/a#x"], ["/a\\b"], None]),
    ("auth.tokenExpiration", [0, -1, "1440", 1.5, True, 10**12]),
    ("auth.rememberMeExpiration", [0, 3651, None]),
    ("auth.cookieName", ["", "a b", "a;b", "é", "__Host-x", "__secure-x", 7, "_"]),
    ("auth.cookieName", ["auth_pending", "auth_passkey", "sign_in_reason", "oauth_0123456789abcdef"]),
    (
        "auth.roleRules",
        [
            [],
            "/admin",
            {"admin": "admin"},
            {"/a b": "admin"},
            {"": "admin"},
            {"/a": "Admin"},
            {"/a": "editor"},
            {"/a": []},
            {"/a": ["editor"]},
            {"/a": ["admin", None]},
            {"/a": [["admin"]]},
            {"/a": "staff"},
            {"/a": "group:"},
            {"/a": "group:Staff"},
            {"/a": "group:a,b"},
            {"/a": " group:staff"},
            {"/a": "groups:staff"},
            {"/a": None},
            {"/a": {"*": "admin"}},
            None,
        ],
    ),
    (
        "forward.headers",
        [
            [],
            "X-User",
            {"X User": "id"},
            {"X_User": "id"},
            {"": "id"},
            {"X-User:": "id"},
            {"X-User\r\nX": "id"},
            {"X-\u00dcser": "id"},
            {"X-" + "a" * 63: "id"},
            {"X-a-b-c-d-e-f": "id"},
            {"X--User": "id"},
            {"X-User-": "id"},
            {"X-User": "id", "x-user": "email"},
            {"X-User": "password"},
            {"X-User": ["id"]},
            {"X-User": None},
            None,
            *(
                {name: "id"}
                for name in (
                    *(
                        "Host",
                        "cookie",
                        "Authorization",
                        "Connection",
                        "Transfer-Encoding",
                        "Upgrade",
                        "TE",
                        "Trailer",
                    ),
                    *(
                        "Keep-Alive",
                        "Proxy-Connection",
                        "Content-Length",
                        "Content-Type",
                        "Set-Cookie",
                        "Location",
                    ),
                    *(
                        "Remote-Assertion",
                        "remote-cookie",
                        "X-Forwarded-For",
                        "X-Forwarded-Host",
                        "X-Forwarded-Proto",
                    ),
                    *(
                        "X-Accel-Redirect",
                        "X-Original-URL",
                        "X-Real-IP",
                        "Forwarded",
                        "Origin",
                        "Referer",
                        "Sec-Fetch-Mode",
                        "Accept",
                        "Range",
                    ),
                    *(
                        "WWW-Authenticate",
                        "Cache-Control",
                        "Vary",
                        "Access-Control-Allow-Origin",
                        "X-Request-Id",
                        "If-Match",
                    ),
                )
            ),
        ],
    ),
    ("forward.basic", ["true", 1, None]),
    ("auth.allowedOrigins", ["https://a.com", ["*"], ["null"], ["https://a.com/path"], [7]]),
    ("auth.oauth.clientId", [" ", 7, "a\nb"]),
    ("auth.oauth.provider", ["google", "", None, 7, []]),
    (
        "auth.oauth.issuer",
        [
            "http://id.example.com",
            "id.example.com",
            "",
            "https://u:p@id.example.com",
            "https://id.example.com#x",
            7,
        ],
    ),
    ("auth.oauth.tokenUrl", ["javascript:alert(1)", "http://localhost.evil.com", "file:///etc/passwd"]),
    ("auth.oauth.allowAutoRegistration", ["true", 1, 0, None]),
    (
        "auth.oauth.successRedirect",
        [
            "",
            "app",
            "//evil.com",
            "/\\evil.com",
            "\\\\evil.com",
            "/a\\b",
            "/\t/evil.com",
            "/\n",
            "/é",
            "javascript:alert(1)",
            "https:evil.com",
            "https://evil.com",
            "http://127.0.0.1:8080@evil.com/",
            "http://127.0.0.1:8080.evil.com/",
            "http://127.0.0.1:8081/",
            "http://127.0.0.1/",
            "https://127.0.0.1:8080/",
            "http://127.0.0.1:8080\\@evil.com/",
            "http:///evil.com",
            7,
            None,
        ],
    ),
    (
        "auth.oauth.callbackUrl",
        [
            "back",
            "//back",
            "http://127.0.0.1:8080/back",
            "/back?x=1",
            "/back#x",
            "/*",
            "/<x>",
            "/a%20b",
            "/../back",
            "",
            None,
        ],
    ),
    ("auth.oauth.scopes", ["openid", [""], [7]]),
    ("passwordValidation.minLength", [0, 73, "8", 8.0, None]),
    ("passwordValidation.preventCommonPasswords", ["yes", None]),
    ("passwordHashing.rounds", [9, 17, 31, "12", None]),
    ("mailer.port", [0, 65536, "25"]),
    ("metrics.port", [0, 65536, "9180", False]),
    ("metrics.host", ["", 1]),
    (
        "mailer.defaults.from",
        [
            "",
            "Accounts",
            "a@example.com, b@example.com",
            "A <a@example.com>, B <b@example.com>",
            "<a@example.com> b@example.com",
            "a@",
            "@example.com",
            "a b@example.com",
            "A <a@example.com>\nBcc: b@example.com",
            "a@bücher.example",
            7,
        ],
    ),
    (
        "mailer.host",
        [
            "",
            7,
            "mail.example.com:25",
            "192.0.2.1:25",
            "[::1]",
            "smtp://mail.example.com",
            " mail.example.com",
            "a b",
        ],
    ),
    ("mailer.links.confirm", ["confirm", "https://evil.com/confirm", "//evil.com"]),
    ("mailer.links.reset", ["reset", "https://evil.com/reset", "http://127.0.0.1:8080.evil.com"]),
    ("mailer.links.invite", ["invite", "https://evil.com/invite", "//evil.com"]),
    ("branding.name", ["", 7, "a\x1bb"]),
    ("branding.accent", ["red", "#fff", "#0b5fff;", "#0b5fff\n", "#gggggg"]),
    ("locale", ["", 7]),
    (
        "tokenCleanupSchedule",
        [True, 0, 5, "", "daily", "* * * * * *", "0 0 30 2 *", "60 * * * *", "@reboot", []],
    ),
    ("mailer.auth.user", ["", "Jürgen"]),
    ("limits.enabled", ["false", 0, None]),
    ("limits.accountFailures", [0, 101]),
    ("limits.accountLock", [0, 101]),
    ("limits.forgotsPerMinute", [0, "20"]),
]


@pytest.mark.parametrize(
    ("key", "value"),
    [(key, value) for key, values in BAD for value in values],
    ids=lambda value: str(value)[:40],
)
def test_an_invalid_value_is_refused_with_file_key_value_and_what_is_allowed(
    load_keys: LoadKeys, tmp_path: Path, key: str, value: Any
) -> None:
    message = error_of(load_keys, {key: value}, env={"HOME": "/h", "STATE_DIRECTORY": "/s"})
    start = f"{tmp_path / 'users.json'}: {key} = "
    assert message.startswith(start)
    shown_value, _, allowed = message.removeprefix(start).rpartition(": must be ")
    assert json.loads(shown_value.partition(": must be")[0]) == value
    assert allowed


def test_the_range_of_an_address_with_the_length_of_a_range_is_named(load_keys: LoadKeys) -> None:
    message = error_of(load_keys, {"server.trustedProxies": ["172.18.0.1/16"]})
    assert message.endswith("; the range of 172.18.0.1/16 is 172.18.0.0/16")


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | ANY_TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=5,
)


@SAME_FOLDER
@given(st.sampled_from(sorted(DEFAULTS)), JSON_VALUES)
def test_any_value_is_accepted_or_refused_by_its_key(load_keys: LoadKeys, key: str, value: Any) -> None:
    try:
        loaded = load_keys({key: value}, env={"HOME": "/h", "STATE_DIRECTORY": "/s"})
    except ConfigError as error:
        assert key in str(error)  # noqa: PT017 - either answer is right
    else:
        assert isinstance(loaded.settings, Settings)


@pytest.mark.parametrize(
    "target",
    [
        "https://app.example.com",
        "https://app.example.com/x?y#z",
        "https://app.example.com?x",
        "https://APP.example.com:443/",
    ],
)
@pytest.mark.parametrize(
    "key",
    [
        "auth.oauth.successRedirect",
        "auth.oauth.errorRedirect",
        "mailer.links.confirm",
        "mailer.links.reset",
        "mailer.links.invite",
    ],
)
def test_a_redirect_or_link_leads_to_base_url_or_an_allowed_origin(
    load_keys: LoadKeys, key: str, target: str
) -> None:
    assert load_keys({key: target, "baseUrl": "https://app.example.com"})
    assert load_keys({key: target, "auth.allowedOrigins": ["https://app.example.com"]})
    error_of(load_keys, {key: target})
    error_of(
        load_keys, {key: target, "auth.allowedOrigins": ["https://example.com", "http://app.example.com"]}
    )


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST", "127.0.0.1", "127.9.9.9", "::1", "[::1]"])
def test_a_loopback_host_is_recognised(host: str) -> None:
    assert is_loopback(host)


@pytest.mark.parametrize(
    "host", ["", "localhost.evil.com", "127.0.0.1.evil.com", "0.0.0.1", "10.0.0.1", "::", "2130706433"]
)
def test_another_host_is_not_taken_for_loopback(host: str) -> None:
    assert not is_loopback(host)


@given(ANY_TEXT | st.from_regex(r"https?://[^/]{0,20}(:[0-9]{0,6})?/?"))
def test_an_origin_is_its_own_origin_and_has_no_more_than_scheme_host_and_port(text: str) -> None:
    try:
        origin = origin_of(text)
    except Exception as error:  # noqa: BLE001 - its type is private to the module
        assert type(error).__name__ == "BadValue"  # noqa: PT017
        return
    assert origin_of(origin) == origin
    assert origin.count("/") == 2
    assert origin.isascii()
    assert not set(origin) & set("@?#\\ ")


# --- checks that involve several keys ---


OAUTH = {"auth.oauth.clientId": "id", "auth.oauth.clientSecret": "hush"}


def test_a_client_needs_an_issuer_or_urls_or_another_provider(load_keys: LoadKeys) -> None:
    message = error_of(load_keys, OAUTH)
    assert "auth.oauth.issuer" in message
    assert "hush" not in message
    urls = {
        f"auth.oauth.{name}": "https://id.example.com/x"
        for name in ("authorizationUrl", "tokenUrl", "userInfoUrl")
    }
    error_of(load_keys, OAUTH | dict(list(urls.items())[:2]))
    assert "auth.oauth.issuer" in error_of(
        load_keys, {"auth.oauth.clientId": "id"}
    )  # also before there is a secret
    assert load_keys({"auth.oauth.clientId": "id"} | urls)
    assert load_keys(OAUTH | urls)
    assert load_keys(OAUTH | {"auth.oauth.issuer": "https://id.example.com"})
    assert load_keys(OAUTH | {"auth.oauth.provider": "github"})


@pytest.mark.parametrize("name", ["authorizationUrl", "tokenUrl", "userInfoUrl"])
def test_only_a_provider_on_this_machine_has_http_addresses(load_keys: LoadKeys, name: str) -> None:
    key, local = f"auth.oauth.{name}", "http://127.0.0.1:9000/x"
    issuer = {"auth.oauth.issuer": "https://id.example.com"}
    assert f'{key} = "{local}": must be https, as the issuer is' in error_of(
        load_keys, OAUTH | issuer | {key: local}
    )
    assert load_keys(OAUTH | {"auth.oauth.issuer": "http://localhost:9000", key: local})
    urls = {f"auth.oauth.{name}": local for name in ("authorizationUrl", "tokenUrl", "userInfoUrl")}
    assert load_keys(OAUTH | urls)
    github = {"auth.oauth.provider": "github", "auth.oauth.tokenUrl": local}
    assert "auth.oauth.tokenUrl" in error_of(load_keys, OAUTH | github)


@pytest.mark.parametrize(
    ("host", "metrics"), [("::1", "::"), ("::", "[::1]"), ("*", "127.0.0.1"), ("a.example", "a.example")]
)
def test_metrics_need_another_port_than_the_service(load_keys: LoadKeys, host: str, metrics: str) -> None:
    there = {"server.host": host, "server.port": 9180, "metrics.host": metrics}
    assert "choose another" in error_of(load_keys, there | {"metrics.port": 9180})
    assert load_keys(there | {"metrics.port": 9181})
    assert load_keys(there | {"metrics.port": 9180, "server.socket": "/run/users/usersd.sock"})
    assert load_keys(there | {"metrics.port": 9180, "metrics.host": "192.0.2.7"})


def test_a_password_of_the_mail_server_needs_a_user(load_keys: LoadKeys) -> None:
    message = error_of(load_keys, {"mailer.auth.pass": "hush"})
    assert "users.json: mailer.auth.pass = ***: mailer.auth.user and mailer.auth.pass go together" in message
    assert "hush" not in message
    message = error_of(load_keys, {}, env=ENV | {"USERS_MAILER_PASS": "hush"})
    assert message.startswith("USERS_MAILER_PASS: mailer.auth.pass = ***: ")
    assert load_keys({"mailer.auth.user": "mailer", "mailer.auth.pass": "hush"})


# --- keys ---


@pytest.mark.parametrize(
    ("key", "near"),
    [
        ("basUrl", "baseUrl"),
        ("BaseURL", "baseUrl"),
        ("Server.port", "server"),
        ("atuh.whitelist", "auth"),
        ("auth.OAuth.scopes", "auth.oauth"),
        ("MAILER.AUTH.user", "mailer"),
        ("server.prot", "server.port"),
        ("auth.whiteList", "auth.whitelist"),
        ("auth.tokenexpiration", "auth.tokenExpiration"),
        ("auth.oauth.clientID", "auth.oauth.clientId"),
        ("passwordValidation.minLenght", "passwordValidation.minLength"),
        ("mailer.auth.password", "mailer.auth.pass"),
        ("tokenCleanupSchedul", "tokenCleanupSchedule"),
        ("oauth.scopes", "auth.oauth"),
        ("minlength", "passwordValidation.minLength"),
        ("port", "server.port or mailer.port or metrics.port"),
    ],
)
def test_an_unknown_key_is_refused_with_the_nearest_that_is_known(
    load_keys: LoadKeys, key: str, near: str
) -> None:
    message = error_of(load_keys, {key: "planted"})
    assert re.search(rf"unknown key \S+ \(did you mean {re.escape(near)}\?\)$", message)
    assert key.startswith(message.split(" unknown key ")[1].split()[0])
    assert "planted" not in message


@pytest.mark.parametrize("key", ["zzz", "auth.zzz.y", "server.port.x"])
def test_an_unknown_key_that_resembles_none_is_refused_too(load_keys: LoadKeys, key: str) -> None:
    assert key.rpartition(".")[0] in error_of(load_keys, {key: 1})


@pytest.mark.parametrize(
    "section", ["server", "auth", "auth.oauth", "mailer", "mailer.auth", "limits", "branding"]
)
@pytest.mark.parametrize("value", ["planted", 7, ["planted"], None, True])
def test_a_section_must_be_a_table_of_keys(load_keys: LoadKeys, section: str, value: Any) -> None:
    message = error_of(load_keys, {section: value})
    assert f"{section} = " in message
    assert "must be a table of keys" in message
    assert "planted" not in message or section in ("server", "limits", "branding")


# --- files ---


def test_toml_and_json_give_the_same_settings(tmp_path: Path) -> None:
    (tmp_path / "users.toml").write_text(
        'baseUrl = "https://example.com"\ntokenCleanupSchedule = false\n[auth]\nwhitelist = ["/register"]\n'
        '[auth.oauth]\nscopes = ["openid"]\n[server]\nport = 81\n'
    )
    (tmp_path / "users.json").write_text(
        '{"baseUrl": "https://example.com", "tokenCleanupSchedule": null, "auth": {"whitelist": ["/register"],'
        ' "oauth": {"scopes": ["openid"]}}, "server": {"port": 81}}'
    )
    toml, js = (load(config=tmp_path / f"users.{suffix}", env=ENV).settings for suffix in ("toml", "json"))
    assert toml == js
    assert toml.https


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("users.toml", b"port ="),
        ("users.toml", b"a = 1\na = 2\n"),
        ("users.toml", b"\xff\xfe"),
        ("users.toml", b"x = " + b"[" * 100_000),
        ("users.json", b""),
        ("users.json", b"{"),
        ("users.json", b"[]"),
        ("users.json", b"7"),
        ("users.json", b"null"),
        ("users.json", b'{"baseUrl": "https://a.com", "baseUrl": "https://b.com"}'),
        ("users.json", b'{"server": {"port": 1, "port": 2}}'),
        ("users.json", b"\xff"),
        ("users.json", b"[" * 100_000),
    ],
    ids=str,
)
def test_an_unreadable_file_is_refused_by_its_name(tmp_path: Path, name: str, content: bytes) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ConfigError, match=rf"{name}: "):
        load(config=tmp_path / name, env=ENV)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("users.toml", 'auth.whitelist = ["/a"]\n"auth.whitelist" = ["/b"]\n'),
        ("users.json", '{"auth": {"whitelist": ["/a"]}, "auth.whitelist": ["/b"]}'),
    ],
)
def test_a_key_that_stands_twice_in_two_spellings_is_refused(tmp_path: Path, name: str, content: str) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(ConfigError, match=f"{name}: auth.whitelist stands twice"):
        load(config=tmp_path / name, env=ENV)


@pytest.mark.parametrize("how", ["config", "environment"])
@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("users.toml", "no such configuration file"),
        ("", "is a folder, a pipe or a device, and has to be a file"),
        ("/dev/null", "is a folder, a pipe or a device, and has to be a file"),
    ],
)
def test_a_file_named_by_flag_or_environment_must_exist(
    tmp_path: Path, how: str, name: str, problem: str
) -> None:
    path = tmp_path / name
    asked = {"config": path} if how == "config" else {"env": ENV | {"USERS_CONFIG": str(path)}}
    with pytest.raises(ConfigError) as error:
        load(**({"env": ENV} | asked))
    assert str(error.value) == f"{path}: {problem}"


def test_a_file_that_is_too_large_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "users.toml"
    path.write_text("#" * (MOST_BYTES + 1))
    with pytest.raises(ConfigError, match=r"users.toml: is larger than 1024 KiB"):
        load(config=path, env=ENV)
    with pytest.raises(ConfigError, match=r"USERS_MAILER_PASS_FILE: /dev/zero: is larger than 1024 KiB"):
        load(env=ENV | {"USERS_MAILER_PASS_FILE": "/dev/zero"})


def test_the_file_is_searched_in_the_documented_order(tmp_path: Path) -> None:
    asked, named = tmp_path / "asked.toml", tmp_path / "named.toml"
    home, xdg = tmp_path / "home", tmp_path / "xdg"
    ours = [xdg / "users" / "users.toml", home / ".config" / "users" / "users.toml"]
    for file in (asked, named, *ours):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
    env = {"HOME": str(home)}
    etc = Path("/etc/users/users.toml")
    assert find_file(asked, env | {"USERS_CONFIG": str(named)}) == asked
    assert find_file(None, env | {"USERS_CONFIG": str(named)}) == named
    assert default_files(env | {"XDG_CONFIG_HOME": str(xdg)}) == [etc, ours[0]]
    assert default_files(env) == [etc, ours[1]]
    assert default_files(env | {"XDG_CONFIG_HOME": ""}) == [etc, ours[1]]
    if not etc.exists():
        assert find_file(None, env | {"XDG_CONFIG_HOME": str(xdg)}) == ours[0]
        assert find_file(None, env) == ours[1]
        assert find_file(None, {"HOME": str(tmp_path)}) is None


def test_the_current_folder_is_never_searched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("users.toml", "users/users.toml", ".config/users/users.toml"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("not = even valid")
    for env in (
        {"HOME": "."},
        {"HOME": "", "XDG_CONFIG_HOME": "."},
        {"XDG_CONFIG_HOME": ".", "XDG_DATA_HOME": "."},
    ):
        assert all(path.is_absolute() for path in default_files(env))
        database = load(env={**env, "USERS_CONFIG": ""}).settings.database
        assert database.is_absolute()
        assert not database.is_relative_to(tmp_path)


# --- the source that wins ---


def test_flag_beats_environment_beats_file_beats_default(load_keys: LoadKeys, tmp_path: Path) -> None:
    key, env = "baseUrl", ENV | {"USERS_BASE_URL": "https://environment.example"}
    file, flags = {key: "https://file.example"}, {key: "https://flag.example"}

    def winner(*arguments: Any, **keywords: Any) -> tuple[Any, str]:
        loaded = load_keys(*arguments, **keywords)
        return next((value, source) for name, value, source in shown(loaded) if name == key)

    assert winner(file, env=env, flags=flags) == ("https://flag.example", "command line")
    assert winner(file, env=env) == ("https://environment.example", "USERS_BASE_URL")
    assert winner(file, flags={key: None}) == ("https://file.example", str(tmp_path / "users.json"))
    assert winner() == ("http://127.0.0.1:8080", "default")
    assert winner(env=ENV | {"USERS_BASE_URL": ""}) == ("http://127.0.0.1:8080", "default")


def test_an_overridden_value_must_be_valid_too(load_keys: LoadKeys) -> None:
    env = ENV | {"USERS_BASE_URL": "https://environment.example"}
    assert "users.json: baseUrl = 5: " in error_of(load_keys, {"baseUrl": 5}, env=env)
    assert "users.json: database = 1: " in error_of(
        load_keys, {"database": 1}, env=ENV | {"USERS_DATABASE": "/x.db"}
    )
    env |= {"USERS_BASE_URL": "nonsense"}
    assert "USERS_BASE_URL: baseUrl = " in error_of(
        load_keys, {}, env=env, flags={"baseUrl": "https://flag.example"}
    )


def test_the_base_url_leads_to_a_daemon_on_the_other_loopback_address(load_keys: LoadKeys) -> None:
    for host in ("::1", "[::1]"):
        assert load_keys({"server.host": host}).settings.base_url == "http://[::1]:8080"
    for host in ("::", "*", "localhost"):
        assert load_keys({"server.host": host}).settings.base_url == "http://127.0.0.1:8080"


def test_the_base_url_follows_the_port(load_keys: LoadKeys) -> None:
    assert load_keys({"server.port": 81}).settings.base_url == "http://127.0.0.1:81"
    assert (
        load_keys({"server.port": 81}, flags={"server.port": 82}).settings.base_url == "http://127.0.0.1:82"
    )


@pytest.mark.parametrize("source", ["USERS_BASE_URL", "command line"])
def test_an_invalid_value_is_refused_from_environment_and_command_line(
    load_keys: LoadKeys, source: str
) -> None:
    # A wrong flag is misuse of the command; the configuration may be right.
    env, flags, kind = (
        (ENV | {source: "x"}, {}, ConfigError) if source.isupper() else (ENV, {"baseUrl": "x"}, Invalid)
    )
    with pytest.raises(kind, match=f"^{source}: baseUrl = "):
        load_keys({}, env=env, flags=flags)


# --- secrets ---

SECRETS = {
    "USERS_ASSERTION_SECRET": "auth.assertionSecret",
    "USERS_OAUTH_CLIENT_ID": "auth.oauth.clientId",
    "USERS_OAUTH_CLIENT_SECRET": "auth.oauth.clientSecret",
    "USERS_MAILER_USER": "mailer.auth.user",
    "USERS_MAILER_PASS": "mailer.auth.pass",
}
PLANTED = "planted: of as many characters as any secret has to have"
OTHERS = {"auth.oauth.provider": "github", "mailer.auth.user": "u", "mailer.auth.pass": "p"}


@pytest.mark.parametrize("name", SECRETS)
@pytest.mark.parametrize("end", ["", "\n", "\r\n"])
def test_a_secret_comes_from_its_variable_or_from_the_file_that_a_variable_names(
    load_keys: LoadKeys, tmp_path: Path, name: str, end: str
) -> None:
    (tmp_path / "secret").write_bytes(f" {PLANTED}  x{end}".encode())
    field = field_of(SECRETS[name])
    assert getattr(load_keys(OTHERS, env=ENV | {name: PLANTED}).settings, field) == PLANTED
    assert (
        getattr(load_keys(OTHERS, env=ENV | {f"{name}_FILE": str(tmp_path / "secret")}).settings, field)
        == f" {PLANTED}  x"
    )


@pytest.mark.parametrize("name", SECRETS)
def test_a_secret_given_as_variable_and_as_file_is_refused(
    load_keys: LoadKeys, tmp_path: Path, name: str
) -> None:
    (tmp_path / "secret").write_text(PLANTED)
    message = error_of(load_keys, OTHERS, env=ENV | {name: PLANTED, f"{name}_FILE": str(tmp_path / "secret")})
    assert f"{name} and {name}_FILE" in message
    assert "planted" not in message


@pytest.mark.parametrize("name", SECRETS)
@pytest.mark.parametrize("content", [None, b"\xff\xfe planted"])
def test_an_unreadable_secret_file_is_refused_by_its_name(
    load_keys: LoadKeys, tmp_path: Path, name: str, content: bytes | None
) -> None:
    if content is not None:
        (tmp_path / "secret").write_bytes(content)
    message = error_of(load_keys, OTHERS, env=ENV | {f"{name}_FILE": str(tmp_path / "secret")})
    assert f"{name}_FILE" in message
    assert str(tmp_path / "secret") in message
    assert "planted" not in message


@pytest.mark.parametrize("key", ["auth.assertionSecret", "auth.oauth.clientSecret", "mailer.auth.pass"])
@pytest.mark.parametrize("source", ["file", "environment", "secret file"])
def test_a_secret_is_never_shown(load_keys: LoadKeys, tmp_path: Path, key: str, source: str) -> None:
    name = next(variable for variable, its_key in SECRETS.items() if its_key == key)
    (tmp_path / "secret").write_text(PLANTED)
    env = ENV | {
        "environment": {name: PLANTED},
        "secret file": {f"{name}_FILE": str(tmp_path / "secret")},
    }.get(source, {})
    loaded = load_keys(OTHERS | ({key: PLANTED} if source == "file" else {}), env=env)
    assert getattr(loaded.settings, field_of(key)) == PLANTED
    assert (key, "***") in [(name, value) for name, value, _ in shown(loaded)]
    for text in (
        repr(loaded),
        str(loaded),
        repr(loaded.settings),
        str(loaded.settings),
        f"{loaded.settings}",
        repr(shown(loaded)),
    ):
        assert "planted" not in text


@pytest.mark.parametrize("key", ["auth.assertionSecret", "auth.oauth.clientSecret", "mailer.auth.pass"])
@pytest.mark.parametrize("value", [[PLANTED], {"a": PLANTED}, f"{PLANTED}\n", f"{PLANTED}\x1b[0m"])
def test_an_invalid_secret_is_not_shown_in_the_error(load_keys: LoadKeys, key: str, value: Any) -> None:
    message = error_of(load_keys, {key: value})
    assert f"{key} = ***" in message or key in message
    assert "planted" not in message


@pytest.mark.parametrize("value", ["", "s" * 31, 7, ["s" * 32], "s" * 31 + "\n"])
def test_the_assertion_secret_needs_32_characters(load_keys: LoadKeys, value: Any) -> None:
    message = error_of(load_keys, {"auth.assertionSecret": value})
    assert message.partition(": auth.assertionSecret = ***: ")[2].startswith("must be a ")
    if value == "s" * 31:
        assert "at least 32 characters" in message


@pytest.mark.parametrize(
    "value", ["", " \n", "s" * 31, 7, ["s" * 32], f"{'s' * 32}\nshort", f"{'s' * 32}\x1b"]
)
def test_each_sealing_key_needs_32_characters(load_keys: LoadKeys, value: Any) -> None:
    message = error_of(load_keys, {"auth.secretKey": value})
    assert message.partition(": auth.secretKey = ***: ")[2].startswith("must be a ")


def test_several_sealing_keys_stand_one_a_line(load_keys: LoadKeys, tmp_path: Path) -> None:
    keys = ("new " + "n" * 32, "old " + "o" * 32)
    text = f"{keys[0]}\r\n\n  {keys[1]}\n\n"
    (tmp_path / "secret").write_bytes(text.encode())
    for env in ({"USERS_SECRET_KEY": text}, {"USERS_SECRET_KEY_FILE": str(tmp_path / "secret")}):
        loaded = load_keys({}, env=ENV | env)
        assert loaded.settings.secret_keys == keys
        assert ("auth.secretKey", "***") in [(name, value) for name, value, _ in shown(loaded)]
        assert "nnn" not in repr(loaded) + repr(loaded.settings) + repr(shown(loaded))
    assert ("auth.secretKey", None) in [(name, value) for name, value, _ in shown(load_keys({}))]


@pytest.mark.parametrize(
    ("key", "value"), [("auth.roleRules", {"/a*": "admin"}), ("auth.factorRules", ["/a*"])]
)
def test_a_rule_with_a_star_within_a_segment_is_refused(load_keys: LoadKeys, key: str, value: Any) -> None:
    assert 'only as a whole segment, as in "/docs/*"' in error_of(load_keys, {key: value})


@pytest.mark.parametrize(
    ("key", "value"),
    [("auth.whitelist", ["/a b"]), ("auth.roleRules", {"/a?b": "admin"}), ("auth.factorRules", ["/a#b"])],
)
def test_a_character_that_no_path_has_is_refused_with_the_way_to_write_it(
    load_keys: LoadKeys, key: str, value: Any
) -> None:
    message = error_of(load_keys, {key: value})
    assert message.endswith(
        "must be paths without \\, and with %20, %3F or %23 in the place of a space, ? or #"
    )


# --- the database ---


def test_a_relative_path_in_a_file_starts_at_the_folder_of_the_file(
    load_keys: LoadKeys, tmp_path: Path
) -> None:
    env = {"HOME": "/h"}
    assert (
        load_keys({"database": "data/users.db"}, env=env).settings.database == tmp_path / "data" / "users.db"
    )
    assert load_keys({"branding.logo": "logo.svg"}).settings.logo == tmp_path / "logo.svg"
    assert load_keys({"mailer.templates": "letters"}).settings.mailer_templates == tmp_path / "letters"


def test_a_relative_database_of_environment_or_flag_starts_at_the_current_folder(
    load_keys: LoadKeys, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert load_keys({}, env={"USERS_DATABASE": "x.db"}).settings.database == tmp_path / "x.db"
    assert load_keys({}, flags={"database": "y.db"}).settings.database == tmp_path / "y.db"


WORD = "s3cret-word"
# Each with its password, and as it is shown.
CONNINFOS = [
    (f"postgresql://users:{WORD}@db.example.com/users", "postgresql://users:***@db.example.com/users"),
    (
        f"postgres://users:{WORD}@[::1]:5433/users?sslmode=require",
        "postgres://users:***@[::1]:5433/users?sslmode=require",
    ),
    (f"postgresql://a:1,b:2/users?user=u&password={WORD}", "postgresql://a:1,b:2/users?user=u&password=***"),
    (f"host=db dbname=users password={WORD} port=5432", "host=db dbname=users password=*** port=5432"),
    (f"host = db password = '{WORD} with \\' it'", "host = db password = ***"),
    (f"host=a,b\n  sslpassword={WORD}\n", "host=a,b   sslpassword=***"),
    # Keywords that libpq does not know.
    (f"host=db pwd={WORD}", "host=db pwd=***"),
    (f"host=db pass='{WORD}' passfile=/etc/users/pgpass", "host=db pass=*** passfile=/etc/users/pgpass"),
    (f"postgresql://db/users?Password={WORD}", "postgresql://db/users?Password=***"),
]


@pytest.mark.parametrize(("conninfo", "printed"), CONNINFOS)
def test_a_database_on_a_server_is_shown_without_its_password(
    load_keys: LoadKeys, tmp_path: Path, conninfo: str, printed: str
) -> None:
    (tmp_path / "secret").write_text(conninfo)
    loads = (
        load_keys({"database": conninfo}, env={"HOME": "/h"}),
        load_keys({}, env={"HOME": "/h", "USERS_DATABASE": conninfo}),
        load_keys({}, env={"HOME": "/h", "USERS_DATABASE_FILE": str(tmp_path / "secret")}),
    )
    for loaded in loads:
        database = loaded.settings.database
        assert isinstance(database, Conninfo)
        assert database == conninfo.strip().replace("\n", " ")
        assert {name: value for name, value, _ in shown(loaded)}["database"] == printed
        assert WORD not in repr(loaded) + str(shown(loaded))


def test_a_password_is_refused_on_the_command_line(load_keys: LoadKeys) -> None:
    for conninfo, _ in CONNINFOS:
        with pytest.raises(Invalid, match="--db must not have a password") as refused:
            load_keys({}, flags={"database": conninfo})
        assert "USERS_DATABASE_FILE" in str(refused.value.hint)
        assert WORD not in str(refused.value)
    plain = "postgresql://users@db.example.com/users"
    assert load_keys({}, flags={"database": plain}).settings.database == plain


@pytest.mark.parametrize(
    "conninfo",
    [
        f"postgresql://users:{WORD}/x@db/users",
        f"postgresql://users:{WORD}@x@db/users",
        f"postgresql://users:{WORD}?x@db/users",
        f"postgresql://users:12{WORD}/@db/users",
        f"postgresql://db/users?password={WORD}'x",
        f"postgresql://db/users?{WORD}",
        f"postgresql://users:{WORD}@db:port/users",
        f"postgresql://users:%{WORD}@db/users",
        f"postgresql://users:{WORD}%00@db/users",
        f"host=db password='{WORD}",
        f"host=db password={WORD}'x y'",
        f"host=db password={WORD}\\ x",
        f"host=db {WORD}",
        f"postgresql+psycopg://users:{WORD}@db/users",
        f"Postgresql://users:{WORD}@db/users",
        f"jdbc:postgresql://db/users?password={WORD}",
        f"postgresql:users:{WORD}@db/users",
        f"sqlite:///{WORD}.db",
        f"host=db password={WORD}\0",
        [f"host=db password={WORD}"],
        {"password": WORD},
        [f"postgresql://users:{WORD}@db/users"],
    ],
)
def test_a_conninfo_that_is_refused_is_not_repeated(load_keys: LoadKeys, conninfo: Any) -> None:
    message = error_of(load_keys, {"database": conninfo}, env={"HOME": "/h"})
    assert 'database = "***": must be ' in message
    assert WORD not in message


def test_files_of_a_database_on_a_server_stand_in_the_usual_folder(load_keys: LoadKeys) -> None:
    on_server = {"database": "host=db"}
    home = {"HOME": "/h", "XDG_DATA_HOME": "/d"}
    usual = "/var/lib/users" if os.geteuid() == 0 else "/d/users"
    assert load_keys(on_server, env=home).settings.folder == Path(usual)
    assert load_keys(on_server, env=home | {"STATE_DIRECTORY": "/s:/t"}).settings.folder == Path("/s")
    assert load_keys({"database": "/srv/users.db"}, env=home).settings.folder == Path("/srv")


WHERE = """
import json, os, sys
from pathlib import Path
from usersctl.config.sources import load, shown
from usersctl.errors import ConfigError
if os.geteuid() == 0 and sys.argv[1] != "root":
    os.setgroups([])
    os.setgid(int(sys.argv[1]))
    os.setuid(int(sys.argv[1]))
try:
    loaded = load(env=json.loads(sys.argv[2]), config=Path(sys.argv[3]) if sys.argv[3:] else None)
    print(loaded.settings.database, loaded.origins["database"].source, sep="|")
except ConfigError as error:
    print("refused", error)
"""


def where(user: str, env: dict[str, str], *config: str) -> str:
    """The path and the origin of the database, as a process of this user finds them."""
    done = subprocess.run(
        [sys.executable, "-c", WHERE, user, json.dumps(env), *config],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
        env={"PATH": os.environ["PATH"]} | env,
    )
    return done.stdout.strip()


NOT_ROOT = "65534"
NO_NAME = "54321"  # a user that no password database knows
BOTH = ["root", NOT_ROOT]
only_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")


@only_root
@pytest.mark.parametrize(
    ("user", "env", "expected"),
    [
        ("root", {"HOME": "/h"}, "/var/lib/users/users.db|default for root"),
        ("root", {"HOME": "/h", "XDG_DATA_HOME": "/x"}, "/var/lib/users/users.db|default for root"),
        ("root", {}, "/var/lib/users/users.db|default for root"),
        (NOT_ROOT, {"HOME": "/h"}, "/h/.local/share/users/users.db|default"),
        (NOT_ROOT, {"HOME": "/h", "XDG_DATA_HOME": "/x"}, "/x/users/users.db|default"),
        (NOT_ROOT, {"HOME": "/h", "XDG_DATA_HOME": ""}, "/h/.local/share/users/users.db|default"),
        (NOT_ROOT, {"HOME": "/h", "XDG_DATA_HOME": "x"}, "/h/.local/share/users/users.db|default"),
        (NO_NAME, {"HOME": "/h"}, "/h/.local/share/users/users.db|default"),
        (NO_NAME, {"XDG_DATA_HOME": "/x"}, "/x/users/users.db|default"),
        (NO_NAME, {"STATE_DIRECTORY": "/s"}, "/s/users.db|STATE_DIRECTORY"),
        (NO_NAME, {"USERS_DATABASE": "/d.db"}, "/d.db|USERS_DATABASE"),
        *[(user, {"HOME": "/h", "STATE_DIRECTORY": "/s"}, "/s/users.db|STATE_DIRECTORY") for user in BOTH],
        *[(user, {"STATE_DIRECTORY": "/s:/t"}, "/s/users.db|STATE_DIRECTORY") for user in BOTH],
        (NOT_ROOT, {"HOME": "/h", "STATE_DIRECTORY": "s"}, "/h/.local/share/users/users.db|default"),
        *[
            ("root", {"STATE_DIRECTORY": text}, "/var/lib/users/users.db|default for root")
            for text in ("s", ":/s")
        ],
        *[
            (user, {"STATE_DIRECTORY": "/s", "USERS_DATABASE": "/d.db"}, "/d.db|USERS_DATABASE")
            for user in BOTH
        ],
    ],
)
def test_the_default_place_of_the_database(user: str, env: dict[str, str], expected: str) -> None:
    assert where(user, env) == expected


@only_root
@pytest.mark.parametrize("env", [{}, {"HOME": ""}, {"HOME": "relative"}])
def test_the_error_for_a_user_without_a_home_names_the_variable_to_set(env: dict[str, str]) -> None:
    message = where(NO_NAME, env)
    assert message.startswith("refused")
    assert "USERS_DATABASE" in message


@only_root
def test_without_home_the_home_of_the_user_is_used() -> None:
    import pwd

    home = pwd.getpwuid(int(NOT_ROOT)).pw_dir
    for env in ({}, {"HOME": ""}, {"HOME": "relative"}):
        assert where(NOT_ROOT, env) == f"{home}/.local/share/users/users.db|default"


@pytest.fixture
def closed(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "closed"
    folder.mkdir(mode=0o700)
    (folder / "users.toml").touch()
    (folder / "users").mkdir()
    (folder / "users" / "users.toml").touch()
    yield folder
    folder.chmod(0o700)


@only_root
def test_a_named_file_in_a_forbidden_folder_is_refused_and_a_default_one_ignored(closed: Path) -> None:
    message = where(NOT_ROOT, {"HOME": "/h"}, str(closed / "users.toml"))
    assert message == f"refused {closed}/users.toml: cannot be read: Permission denied"
    assert (
        where(NOT_ROOT, {"HOME": "/h", "XDG_CONFIG_HOME": str(closed)})
        == "/h/.local/share/users/users.db|default"
    )
