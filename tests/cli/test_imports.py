"""How soon a command answers: it imports its own module, and what it needs."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from support.commands import USERSCTL, Command

from usersctl import __version__
from usersctl.cli.tree import COMMANDS as TABLE


def imported(usersctl: Command, *words: str, code: int = 0) -> tuple[set[str], str]:
    """The modules that a command imports, and its output. Coverage is off, because it imports modules itself."""
    script = (
        "import sys; sys.argv = ['usersctl', *sys.argv[1:]]\n"
        "before = {*sys.modules}\n"
        "from usersctl.__main__ import main\n"
        "try: main()\n"
        "finally: print(*{*sys.modules} - before, file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, *words],
        env={name: value for name, value in usersctl.env.items() if not name.startswith("COVERAGE")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == code
    modules = set(done.stderr.split())
    assert "usersctl.__main__" in modules  # otherwise the list is not complete
    return modules, done.stdout


@pytest.mark.sqlite  # of a server, other modules and errors
def test_list_in_json_imports_only_what_it_needs(usersctl: Command) -> None:
    usersctl.add("ada")
    heavy = {
        "typer",
        "rich",
        "dataclasses",
        "inspect",
        "bcrypt",
        "email_validator",
        "sqlite_utils",
        "requests",
        "tempfile",
        "hashlib",
    }
    journeys = {f"usersctl.{name}" for name in ("service", "accounts", "sessions", "transfer", "throttle")}
    for words in (["list", "--json"], ["--json", "--quiet", "list"]):
        modules, printed = imported(usersctl, *words)
        assert json.loads(printed)[0]["email"] == "ada@example.com"
        assert not modules & (heavy | journeys)


@pytest.mark.parametrize("words", [["openapi"], ["--quiet", "openapi", "--json"]])
def test_openapi_imports_no_framework(usersctl: Command, words: list[str]) -> None:
    modules, printed = imported(usersctl, *words)
    assert json.loads(printed)["openapi"] == "3.1.0"
    assert not modules & {"typer", "rich", "dataclasses", "inspect", "bottle", "waitress"}


# Libraries that most commands do without, and whose import would take longer than the rest of a command.
HEAVY = {
    "bottle",
    "waitress",
    "requests",
    "oauthlib",
    "jwt",
    "cryptography",
    "sqlite_utils",
    "rich",
    "tempfile",
    "csv",
}
HEAVY |= {
    "email",
    "http",
    "ssl",
    "smtplib",
    "bcrypt",
    "zxcvbn",
    "email_validator",
    "crontab",
    "tomllib",
    "usersd",
}
JOURNEYS = {
    "accounts",
    "sessions",
    "claims",
    "registration",
    "recovery",
    "deletion",
    "first_admin",
    "oauth",
    "transfer",
}


@pytest.mark.parametrize(
    ("words", "of_its_own", "journeys"),
    [
        ("show ada@example.com", {"accounts"}, {"accounts"}),
        ("list --inactive", {"accounts"}, set()),
        ("create ada@example.com --if-missing", {"accounts"}, set()),
        ("cleanup-tokens", {"tokens"}, set()),
        ("token list", {"tokens"}, set()),
        ("audit", {"audit"}, set()),
        ("mail list", {"mail"}, set()),
        ("lockdown status", {"lockdown"}, set()),
        ("config path", {"configuration"}, set()),
        ("config check", {"configuration"}, set()),
        ("openapi", set(), {"oauth"}),
    ],
)
@pytest.mark.sqlite  # of a server, other modules and errors
def test_a_command_imports_its_own_module_and_its_journeys_only(
    usersctl: Command, words: str, of_its_own: set[str], journeys: set[str]
) -> None:
    usersctl.add("ada")
    usersctl.config.unlink()
    usersctl.env["USERS_CONFIG"] = ""
    modules, _ = imported(usersctl, *words.split())
    commands = {place.partition(".")[0] for rows in TABLE.values() for _, place, _ in rows}
    assert {name for name in commands if f"usersctl.cli.{name}" in modules} == of_its_own
    assert {name for name in JOURNEYS if f"usersctl.{name}" in modules} <= journeys
    needed = {"config check": {"usersd"}, "openapi": {"usersd", "http"}}  # of http the names of statuses only
    assert not modules & (HEAVY - needed.get(words, set()))
    assert "http.client" not in modules


def test_doctor_without_the_network_imports_no_client_of_mail_and_of_the_provider(usersctl: Command) -> None:
    usersctl.add("ada", role="admin")
    usersctl.config.write_text("")
    modules, _ = imported(usersctl, "doctor", code=7)  # no daemon runs
    assert not modules & {"smtplib", "requests", "oauthlib", "usersctl.mail.writer", "usersctl.oauth.http"}


def test_help_imports_nothing_that_single_commands_need(usersctl: Command) -> None:
    modules, printed = imported(usersctl, "--help")
    assert printed.startswith("Usage: usersctl")
    assert not modules & HEAVY


def test_the_installed_script_is_the_same_command(usersctl: Command) -> None:
    if not Path(USERSCTL).exists():
        pytest.skip("not installed as a script")
    done = subprocess.run(
        [USERSCTL, "--version"], env=usersctl.env, capture_output=True, text=True, check=True
    )
    assert done.stdout == f"usersctl {__version__}\n"
