"""`usersctl config`, and the error of every command for a configuration that cannot be used."""

import json
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from support.commands import Command, tree_of

from usersctl.cli.configuration import toml_lines
from usersctl.config.settings import ALL_KEYS, KEYS
from usersctl.config.sources import Loaded, load, shown
from usersctl.config.values import BadValue


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("[auth]\ntokenExpiraton = 5\n", "did you mean auth.tokenExpiration?"),
        ("nonsense = 1\n", "unknown key nonsense (all keys: usersctl config explain)"),
        ("[auth]\ntokenExpiration = 'soon'\n", 'auth.tokenExpiration = "soon": must be a whole number of minutes'),
        ("[passwordHashing]\nrounds = 9\n", "passwordHashing.rounds = 9: must be a whole number from 10 to 16"),
        ("tokenCleanupSchedule = '* * * *'\n", "must be five cron fields"),
        ("tokenCleanupSchedule = '0 0 31 2 *'\n", "must be five cron fields"),
        ("tokenCleanupSchedule = '@sometimes'\n", "must be five cron fields"),
        ("tokenCleanupSchedule = '99 2 * * *'\n", "must be five cron fields"),
        ("tokenCleanupSchedule = '\u0660 \u0662 * * *'\n", "must be five cron fields"),
        ("tokenCleanupSchedule = '0 \uff12 * * *'\n", "only ASCII digits"),
        ("auth = 7\n", "must be a table of keys"),
        ("[auth\n", "not valid TOML"),
        ("[server]\n[server]\n", "not valid TOML: table [server] stands twice (at line 2"),
        ("[auth.oauth]\n[auth.oauth]\n", "not valid TOML: table [auth.oauth] stands twice (at line 2"),
        ("[[webhooks]]\nname = 'a'\nurl = 'https://a.example'\n", ": webhooks[0].secrets is missing"),
        ("[mailer.auth]\npass = ''\n", "mailer.auth.pass = ***"),
        ("baseUrl = 'https://example.com/app'\n", "must be an origin"),
        ("baseUrl = 'https://b\u00fccher.example'\n", "must be in ASCII, as browsers send it"),
        ("[auth.oauth]\nerrorRedirect = '//evil.example'\n", "must be a path"),
    ],
)  # fmt: skip
def test_a_configuration_error_is_one_line_with_file_key_value_and_what_is_allowed(
    usersctl: Command, text: str, error: str
) -> None:
    usersctl.configure(text)
    for words in (["config", "check"], ["list"], ["list", "--json"], ["cleanup-tokens", "--quiet"]):
        done = usersctl(*words)
        assert (done.code, done.stdout) == (6, "")
        assert str(usersctl.config) in done.stderr
        assert len(done.stderr.splitlines()) == 1
        message = done.error["message"] if "--json" in words else done.stderr
        assert error in message
    assert usersctl.is_unused


def test_only_what_sends_emails_needs_the_password_of_the_mail_server(usersctl: Command) -> None:
    usersctl.configure("[mailer]\nhost = '127.0.0.1'\nport = 1\n[mailer.auth]\nuser = 'accounts'\n")
    usersctl.ok("db", "init")
    usersctl.ok("cleanup-tokens", "--quiet")
    for words in (["config", "check"], ["serve"], ["serve", "--json"]):
        done = usersctl(*words)
        assert done.code == 6
        assert str(usersctl.config) in done.stderr
        assert "mailer.auth.user and mailer.auth.pass go together" in done.stderr
        assert "set USERS_MAILER_PASS" in done.stderr
    usersctl.ok("config", "check", env={"USERS_MAILER_PASS": "hush"})


def test_a_json_file_may_hold_null_and_no_duplicate_keys(usersctl: Command) -> None:
    file = usersctl.folder / "users.json"
    file.write_text('{"tokenCleanupSchedule": null}')
    done = usersctl.ok("config", "show", "--config", file)
    assert "tokenCleanupSchedule = false\n" in done.stdout
    file.write_text('{"locale": "en", "locale": "de"}')
    assert usersctl("config", "check", "--config", file).code == 6


@pytest.mark.parametrize(
    ("name", "text"), [("users.toml", 'locale = "de"'), ("users.json", '{"locale": "de"}')]
)
def test_a_configuration_may_begin_with_the_mark_of_utf_8(usersctl: Command, name: str, text: str) -> None:
    file = usersctl.folder / name
    file.write_text(f"\ufeff{text}\n")
    assert 'locale = "de"\n' in usersctl.ok("config", "show", "--config", file).stdout


@pytest.mark.parametrize("path", ["/login", "/", "/api/users/me", "/_tasks/"])
def test_the_callback_cannot_take_the_path_of_another_page(usersctl: Command, path: str) -> None:
    usersctl.configure(f'[auth.oauth]\ncallbackUrl = "{path}"\n')
    for words in (["config", "check"], ["serve"]):
        done = usersctl(*words)
        assert (done.code, done.stdout) == (6, "")
        assert f"{usersctl.config}: auth.oauth.callbackUrl = '{path}'" in done.stderr
    assert usersctl.is_unused


@pytest.mark.parametrize(
    "line", ["locale = 'xx'", "branding.logo = '/gone.svg'", "mailer.templates = '/gone'"]
)
def test_an_unusable_locale_logo_or_template_is_reported_with_its_key(usersctl: Command, line: str) -> None:
    usersctl.configure(f"{line}\n")
    for words in (["config", "check"], ["serve"]):
        done = usersctl(*words)
        assert (done.code, done.stdout) == (6, "")
        assert done.stderr.startswith(f"usersctl: {usersctl.config}: {line.partition(' ')[0]} = ")


def test_check_path_and_show_use_the_same_file(usersctl: Command) -> None:
    assert usersctl.ok("config", "path").stdout == f"{usersctl.config}\n"
    assert usersctl.ok("config", "check").stdout == f"{usersctl.config} can be used\n"
    assert usersctl.ok("config", "check", "--json").json == {"valid": True, "file": str(usersctl.config)}
    lines = usersctl.ok("config", "show").stdout.splitlines()
    assert "passwordHashing.rounds = 10" in lines
    assert all(" = " in line for line in lines)
    values = usersctl.ok("config", "show", "--json").json
    assert len(values) == len(lines)
    assert values["auth.tokenExpiration"] == 1440
    for line in lines:
        key, _, value = line.removeprefix("# ").partition(" = ")
        if values[key] is None:
            assert line == f"# {key} = (not set)"
        elif not isinstance(values[key], dict):
            assert json.loads(value) == values[key]


def test_show_prints_a_file_that_check_takes(usersctl: Command) -> None:
    usersctl.configure(
        'baseUrl = "HTTPS://Example.com:443/"\ntokenCleanupSchedule = false\n[auth]\nwhitelist = ["/register"]\n'
        'roleRules = {"/a b/*" = "admin"}\nassertionSecret = "0123456789012345678901234567890123456789"\n'
        '[auth.oauth]\nclientId = "c"\nclientSecret = "very secret"\nissuer = "https://id.example.com"\n'
        '[mailer]\nhost = "mail"\ndefaults.from = "\\"Ünï, \\" <a@example.com>"\n'
        'auth = {user = "u", pass = "also secret"}\n'.replace("/a b/", "/ä/")
    )
    shown = usersctl.ok("config", "show", "--origin").stdout
    assert "secret" not in shown.replace("Secret", "").replace("auth.secretKey", "")
    assert '# auth.oauth.clientSecret = "***"  # ' in shown
    assert '# mailer.auth.user = "u"  # ' in shown  # refused without its password
    assert "# server.socket = (not set)  # default\n" in shown
    again = usersctl.folder / "again.toml"
    again.write_text(shown)
    assert usersctl.ok("config", "check", "--config", again).stdout == f"{again} can be used\n"
    expected = usersctl.ok("config", "show", "--json").json
    hidden = ("auth.assertionSecret", "auth.oauth.clientSecret", "mailer.auth.user", "mailer.auth.pass")
    values = usersctl.ok("config", "show", "--json", "--config", again).json
    assert values == expected | dict.fromkeys(hidden)
    assert values["baseUrl"] == "https://example.com"


TEXT = st.text(max_size=30)
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "branding.name": TEXT,
    "auth.oauth.label": TEXT,
    "auth.oauth.clientId": TEXT,
    "auth.oauth.clientSecret": TEXT,
    "auth.oauth.scopes": st.lists(TEXT, max_size=3),
    "auth.assertionSecret": st.text(min_size=32, max_size=40),
    "auth.whitelist": st.lists(TEXT.map("/".__add__), max_size=3),
    "auth.roleRules": st.dictionaries(
        TEXT.map("/".__add__),
        st.sampled_from(("admin", "user", "group:staff", ["group:hr", "admin"])),
        max_size=3,
    ),
    "forward.headers": st.dictionaries(
        st.from_regex(r"X-[A-Za-z-]{1,9}", fullmatch=True), st.sampled_from(("id", "email")), max_size=3
    ),
    "mailer.host": TEXT,
    "mailer.auth.user": st.text(st.characters(codec="ascii"), max_size=9),
    "mailer.auth.pass": st.text(st.characters(codec="ascii"), max_size=9),
    "mailer.templates": TEXT,
    "database": TEXT,
    "server.host": TEXT,
    "server.port": st.integers(1, 65535),
    "server.trustedProxies": st.lists(st.ip_addresses().map(str) | st.just("unix"), max_size=3),
    "auth.tokenExpiration": st.integers(1, 525_600),
    "tokenCleanupSchedule": st.sampled_from((None, False, "@daily", "0 2 * * 1-5")),
    "passwordValidation.preventCommonPasswords": st.booleans(),
}


@pytest.mark.slow
@settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.fixed_dictionaries({}, optional=VALUES))
@example({"branding.name": "***"})
def test_whatever_is_configured_is_shown_as_toml_with_the_same_meaning(given_values: dict[str, Any]) -> None:
    values = {name: value for name, value in given_values.items() if is_usable(name, value)}
    if "mailer.auth.pass" not in values or "mailer.auth.user" not in values:
        values.pop("mailer.auth.pass", None)
        values.pop("mailer.auth.user", None)
    loaded = loaded_from("users.json", json.dumps(tree_of({"auth.oauth.provider": "github"} | values)))
    hidden = [name for name, key in KEYS.items() if key.secret] + ["mailer.auth.user"] * (
        "mailer.auth.pass" in values
    )
    expected = {name: value for name, value, _ in shown(loaded)} | dict.fromkeys(hidden)
    for origins in (False, True):
        text = "\n".join(toml_lines(shown(loaded), origins=origins))
        again = loaded_from("users.toml", text)
        assert {name: value for name, value, _ in shown(again)} == expected


def loaded_from(name: str, content: str) -> Loaded:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / name
        file.write_text(content, "utf-8", newline="")
        return load(config=file, env={"HOME": "/home", "STATE_DIRECTORY": "/state"})


def is_usable(name: str, value: Any) -> bool:
    try:
        KEYS[name].kind(value)
    except BadValue:
        return False
    return True


def test_show_origin_names_the_source_of_each_value(usersctl: Command) -> None:
    other = usersctl.folder / "other.db"
    done = usersctl.ok("config", "show", "--origin", "--db", other)
    assert f'database = "{other}"  # command line' in done.stdout
    assert f"passwordHashing.rounds = 10  # {usersctl.config}" in done.stdout
    assert "auth.tokenExpiration = 1440  # default" in done.stdout
    values = usersctl.ok("config", "show", "--origin", "--json").json
    assert values["database"] == {"value": str(usersctl.database), "origin": "USERS_DATABASE"}


def test_secrets_are_shown_as_stars(usersctl: Command) -> None:
    env = {
        "USERS_OAUTH_CLIENT_SECRET": "very secret",
        "USERS_MAILER_USER": "u",
        "USERS_MAILER_PASS": "also secret",
    }
    for words in (["config", "show"], ["config", "show", "--origin"], ["config", "show", "--json"]):
        done = usersctl.ok(*words, env=env)
        assert "very secret" not in done.stdout
        assert "also secret" not in done.stdout
        assert "***" in done.stdout


@pytest.mark.slow
def test_without_a_file_the_defaults_are_used(usersctl: Command) -> None:
    env = {"USERS_CONFIG": "", "XDG_CONFIG_HOME": str(usersctl.folder / "none")}
    assert "can be used" in usersctl.ok("config", "check", env=env).stdout
    done = usersctl.ok("config", "path", env=env)
    assert done.stdout == ""
    assert str(usersctl.folder / "none" / "users" / "users.toml") in done.stderr
    assert usersctl.ok("config", "path", "--json", env=env).json["file"] is None


def test_check_names_variables_of_the_environment_that_set_nothing(usersctl: Command) -> None:
    assert "variables" not in usersctl.ok("config", "check").stderr
    done = usersctl.ok("config", "check", env={"USERS_SECRETKEY": "x" * 32, "USERS_PORT": "8080"})
    unread = "USERS_PORT, USERS_SECRETKEY (did you mean USERS_SECRET_KEY?)"
    assert done.stderr == f"Note: environment variables that set nothing: {unread}\n"


def test_a_named_configuration_file_must_exist(usersctl: Command) -> None:
    missing, folder = "no such configuration file", "is a folder, a pipe or a device, and has to be a file"
    for words, problem in (
        (["--config", "nowhere.toml"], missing),
        (["--config", "."], folder),
        (["--config", ""], folder),
        (["--config="], folder),
    ):
        done = usersctl(*words, "list")
        assert done.code == 6
        hint = "--config names it; without that, /etc/users/users.toml or"
        assert f": {problem}\n  {hint}" in done.stderr
    done = usersctl("list", env={"USERS_CONFIG": "/nowhere/users.toml"})
    assert (done.code, "/nowhere/users.toml" in done.stderr) == (6, True)
    assert "\n  USERS_CONFIG names it; without that, /etc/users/users.toml or" in done.stderr


def test_a_relative_database_of_the_file_starts_at_its_folder(usersctl: Command) -> None:
    folder = usersctl.folder / "etc"
    folder.mkdir()
    (folder / "users.toml").write_text('database = "data/users.db"\n')
    env = {"USERS_DATABASE": "", "USERS_CONFIG": ""}
    done = usersctl.ok("db", "init", "--config", "etc/users.toml", env=env)
    assert str(folder / "data" / "users.db") in done.stdout


@pytest.mark.parametrize("empty", [["--db", ""], ["--db="]])
def test_an_empty_database_path_is_misuse(usersctl: Command, empty: list[str]) -> None:
    usersctl.add("ada")
    for words in ([*empty, "list"], ["list", *empty]):
        done = usersctl(*words)
        assert (done.code, done.stdout) == (2, "")


def test_explain_prints_type_default_environment_and_meaning_of_a_key(usersctl: Command) -> None:
    assert usersctl.ok("config", "explain", "mailer.auth.pass").stdout.splitlines() == [
        "key\tmailer.auth.pass",
        "type\tstring",
        "default\tnone",
        "environment\tUSERS_MAILER_PASS, USERS_MAILER_PASS_FILE",
        "meaning\tThe password of that user, in ASCII.",
    ]
    assert usersctl.ok("config", "explain", "auth.whitelist", "--json").json == {
        "key": "auth.whitelist",
        "type": "list of paths",
        "default": [],
        "environment": [],
        "meaning": KEYS["auth.whitelist"].help,
    }


def test_explain_without_a_key_explains_all_of_them_and_a_table_its_own(usersctl: Command) -> None:
    explained = usersctl.ok("config", "explain", "--json").json
    assert set(explained) == set(ALL_KEYS)
    assert all(key["meaning"].endswith(".") for key in explained.values())
    assert [
        line for line in usersctl.ok("config", "explain").stdout.splitlines() if line.startswith("key\t")
    ] == [f"key\t{name}" for name in ALL_KEYS]
    oauth = {name for name in KEYS if name.startswith("auth.oauth.")}
    assert set(usersctl.ok("config", "explain", "auth.oauth", "--json").json) == oauth


def test_explain_names_the_nearest_of_a_key_that_is_unknown(usersctl: Command) -> None:
    done = usersctl("config", "explain", "auth.tokenExpiraton")
    assert (done.code, done.stdout) == (2, "")
    assert done.stderr == "usersctl: unknown key auth.tokenExpiraton (did you mean auth.tokenExpiration?)\n"


def test_explain_works_while_the_configuration_cannot_be_used(usersctl: Command) -> None:
    usersctl.configure("[passwordHashing]\nrounds = 9\n")
    assert "default\t12" in usersctl.ok("config", "explain", "passwordHashing.rounds").stdout
    assert usersctl.is_unused
