"""`usersctl config`, and the error of every command for a configuration that cannot be used."""

import json

import pytest
from support.commands import Command

from usersctl.config.settings import KEYS


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("[auth]\ntokenExpiraton = 5\n", "did you mean auth.tokenExpiration?"),
        ("nonsense = 1\n", "unknown key nonsense"),
        ("[auth]\ntokenExpiration = 'soon'\n", 'auth.tokenExpiration = "soon": must be a whole number of minutes'),
        ("[passwordHashing]\nrounds = 9\n", "passwordHashing.rounds = 9: must be a whole number from 10 to 16"),
        ("tokenCleanupSchedule = '* * * *'\n", "must be five cron fields"),
        ("tokenCleanupSchedule = '0 0 31 2 *'\n", "must be five cron fields"),
        ("tokenCleanupSchedule = '@sometimes'\n", "must be five cron fields"),
        ("tokenCleanupSchedule = '99 2 * * *'\n", "must be five cron fields"),
        ("auth = 7\n", "must be a table of keys"),
        ("[auth\n", "not valid TOML"),
        ("[mailer.auth]\npass = ''\n", "mailer.auth.pass = ***"),
        ("baseUrl = 'https://example.com/app'\n", "must be an origin"),
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
    assert not usersctl.database.exists()


def test_a_json_file_may_hold_null_and_no_duplicate_keys(usersctl: Command) -> None:
    file = usersctl.folder / "users.json"
    file.write_text('{"tokenCleanupSchedule": null}')
    done = usersctl.ok("config", "show", "--config", file)
    assert "tokenCleanupSchedule = null\n" in done.stdout.replace("false", "null")
    file.write_text('{"locale": "en", "locale": "de"}')
    assert usersctl("config", "check", "--config", file).code == 6


@pytest.mark.parametrize("path", ["/login", "/", "/api/users/me", "/_tasks/"])
def test_the_callback_cannot_take_the_path_of_another_page(usersctl: Command, path: str) -> None:
    usersctl.configure(f'[auth.oauth]\ncallbackUrl = "{path}"\n')
    for words in (["config", "check"], ["serve"]):
        done = usersctl(*words)
        assert (done.code, done.stdout) == (6, "")
        assert f"{usersctl.config}: auth.oauth.callbackUrl = '{path}'" in done.stderr
    assert not usersctl.database.exists()


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
        key, _, value = line.partition(" = ")
        assert json.loads(value) == values[key]


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


def test_without_a_file_the_defaults_are_used(usersctl: Command) -> None:
    env = {"USERS_CONFIG": "", "XDG_CONFIG_HOME": str(usersctl.folder / "none")}
    assert "can be used" in usersctl.ok("config", "check", env=env).stdout
    done = usersctl.ok("config", "path", env=env)
    assert done.stdout == ""
    assert str(usersctl.folder / "none" / "users" / "users.toml") in done.stderr
    assert usersctl.ok("config", "path", "--json", env=env).json["file"] is None


def test_a_named_configuration_file_must_exist(usersctl: Command) -> None:
    for words in (["--config", "nowhere.toml"], ["--config", "."], ["--config", ""], ["--config="]):
        done = usersctl(*words, "list")
        assert done.code == 6
        assert "no such configuration file" in done.stderr
    done = usersctl("list", env={"USERS_CONFIG": "/nowhere/users.toml"})
    assert (done.code, "/nowhere/users.toml" in done.stderr) == (6, True)


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
    assert set(explained) == set(KEYS)
    assert all(key["meaning"].endswith(".") for key in explained.values())
    assert [
        line for line in usersctl.ok("config", "explain").stdout.splitlines() if line.startswith("key\t")
    ] == [f"key\t{name}" for name in KEYS]
    oauth = {name for name in KEYS if name.startswith("auth.oauth.")}
    assert set(usersctl.ok("config", "explain", "auth.oauth", "--json").json) == oauth


def test_explain_names_the_nearest_of_a_key_that_is_unknown(usersctl: Command) -> None:
    done = usersctl("config", "explain", "auth.tokenExpiraton")
    assert (done.code, done.stdout) == (2, "")
    assert done.stderr == "usersctl: unknown key auth.tokenExpiraton (did you mean auth.tokenExpiration?)\n"


def test_explain_works_while_the_configuration_cannot_be_used(usersctl: Command) -> None:
    usersctl.configure("[passwordHashing]\nrounds = 9\n")
    assert "default\t12" in usersctl.ok("config", "explain", "passwordHashing.rounds").stdout
    assert not usersctl.database.exists()
