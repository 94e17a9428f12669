"""Options that a command does not have, and words that it does not take: what it says to use instead."""

from typing import Any

import pytest
from support.commands import Command

from usersctl.cli.guesses import OPTIONS
from usersctl.cli.options import VALUES
from usersctl.cli.tree import command_tree


def _every_command() -> dict[str, Any]:
    tree = command_tree()
    groups = {name: group for name, group in tree.commands.items() if hasattr(group, "commands")}
    inner = {
        f"{name} {each}": command
        for name, group in groups.items()
        for each, command in group.commands.items()
    }
    return {"": tree, **tree.commands, **inner}


@pytest.mark.parametrize(
    ("words", "option", "instead"),
    [
        ("delete 4 -y", "-y", "--yes"),
        ("delete 4 -f", "-f", "--yes"),
        ("group delete staff --force", "--force", "--yes"),
        ("list --format json", "--format", "--json"),
        ("list -n 5", "-n", "--limit"),
        ("import people.csv -n", "-n", "--dry-run"),
        ("import people.csv --overwrite", "--overwrite", "--on-conflict update"),
        ("list -q", "-q", "--quiet"),
        ("-V", "-V", "--version"),
        ("audit -f", "-f", "--follow"),
        ("create ada@example.com --password secret", "--password", "--password-stdin"),
        ("update 1 --password secret", "--password", "usersctl set-password USER"),
        ("update 1 --inactive", "--inactive", "usersctl deactivate USER"),
        ("create ada@example.com --group staff", "--group", "usersctl group add GROUP USER"),
        ("list --admins", "--admins", "--role admin"),
    ],
)
def test_an_option_of_other_tools_leads_to_ours(
    usersctl: Command, words: str, option: str, instead: str
) -> None:
    done = usersctl(*words.split())
    assert (done.code, done.stdout) == (2, "")
    assert done.stderr == f"usersctl: No such option: {option}\n  use: {instead}\n"


def test_an_option_is_named_to_a_command_that_has_it_only(usersctl: Command) -> None:
    assert usersctl("show", "1", "--force").stderr.splitlines()[1] == "  see: usersctl show --help"


def test_the_table_of_options_names_options_and_commands_that_there_are() -> None:
    commands = _every_command()
    options = {name for each in commands.values() for param in each.params for name in param.opts}
    for meant, line in OPTIONS.items():
        words = meant.removeprefix("usersctl ").split()
        assert words[0] in options or words[0] in commands or " ".join(words[:2]) in commands
        for guess in line.split():
            command, _, option = guess.rpartition(":")
            assert not command or option not in {
                name for param in commands[command].params for name in param.opts
            }


@pytest.mark.parametrize(
    ("words", "value"),
    [
        (["create", "ada@example.com", "--name", "Ada", "Lovelace", "--admin"], "--name 'Ada Lovelace'"),
        (["create", "--name", "Ada", "Lovelace", "ada@example.com"], "--name 'Ada Lovelace'"),
        (["update", "1", "--name", "Ada", "King", "O'Lovelace"], "--name 'Ada King O'\"'\"'Lovelace'"),
        (["list", "--search", "ada", "lovelace"], "--search 'ada lovelace'"),
        (["update", "1", "--name=Ada", "Lovelace"], "--name 'Ada Lovelace'"),
        (["audit", "--since", "2026-11-20", "08:00"], "--since '2026-11-20 08:00'"),
    ],
)
def test_a_value_that_lost_its_quotes_is_shown_with_them(
    usersctl: Command, words: list[str], value: str
) -> None:
    done = usersctl(*words)
    assert (done.code, done.stdout) == (2, "")
    assert done.stderr.startswith(("usersctl: Unexpected argument", "usersctl: No such command '08:00'"))
    assert done.stderr.splitlines()[1] == f"  quote a value of several words: {value}"


def test_a_word_that_a_command_does_not_take_is_named_with_what_it_may_be(usersctl: Command) -> None:
    assert usersctl("list", "ada").stderr == (
        "usersctl: Unexpected argument: ada\n  use: usersctl list --search ada\n"
    )
    hint = "no password stands on a command line; see: --password-stdin, --password-file and --generate"
    for words in (("create", "ada@example.com"), ("set-password", "ada@example.com")):
        assert usersctl(*words, "secret", "--json").error["hint"] == hint
    for words in (("list", ""), ("show", "1", " ")):
        told = f"usersctl: Unexpected argument: ''\n  see: usersctl {words[0]} --help\n"
        assert usersctl(*words).stderr == told
    assert usersctl("show", "1", "2", "3").stderr == (
        "usersctl: Unexpected arguments: 2 3\n  see: usersctl show --help\n"
    )


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        ("list active", "use: --active"),
        ("list json", "use: --json"),
        ("create ada@example.com admin", "use: --admin"),
        ("list help", "see: usersctl list --help"),
        ("--limit 5 list", "an option of a command stands behind its name; see: usersctl list --help"),
        ("-y delete 4", "an option of a command stands behind its name; see: usersctl delete --help"),
        ("db init my.db", "use: --db my.db"),
        ("config check users.toml", "use: --config users.toml"),
        ("lockdown on ada@example.com", "use: --except ada@example.com"),
        ("group list staff", "use: usersctl group show staff"),
        ("openapi -o openapi.json", "see: usersctl openapi --help"),
        ("list --role Admin", "did you mean admin?"),
        ("list --sort created_at", "did you mean created?"),
        ("snippet docker", "did you mean dockerfile?"),
        ("link rest 1", "did you mean reset?"),
        ("export --format CSV", "did you mean csv?"),
        ("link 1 reset", "see: usersctl link --help"),
        ("token help", "use: usersctl token --help"),
        ("LIST", "use: usersctl list"),
        ("session revoke 1", "use: usersctl token revoke USER"),
        ("webhook add billing", "use: usersctl config explain webhooks"),
        ("completion bash", "use: usersctl --install-completion"),
    ],
)
def test_what_is_nearly_right_is_told_right(usersctl: Command, words: str, hint: str) -> None:
    done = usersctl(*words.split())
    assert (done.code, done.stdout, done.stderr.splitlines()[1]) == (2, "", f"  {hint}")


def test_a_mistyped_option_before_a_command_is_told_as_elsewhere(usersctl: Command) -> None:
    told = usersctl("--jsn", "list").stderr
    assert told == "usersctl: No such option: --jsn (Possible options: --json)\n  see: usersctl --help\n"


def test_an_argument_is_named_without_brackets(usersctl: Command) -> None:
    assert usersctl("mail", "retry", "x").stderr.startswith(
        "usersctl: Invalid value for 'ID...': 'x' is not a"
    )
    assert usersctl("activate").stderr.startswith("usersctl: Missing argument 'USER...'\n")


def test_typer_checks_no_file_so_that_an_unreadable_one_is_told_as_a_missing_one_is() -> None:
    """As root, every file can be read: this looks at what is declared. The shared options never reach Typer."""
    params = [param for command in _every_command().values() for param in command.params]
    paths = [each for each in params if hasattr(each.type, "readable") and not {*each.opts} & {*VALUES}]
    assert len(paths) >= 5
    assert not any(path.type.readable for path in paths)
