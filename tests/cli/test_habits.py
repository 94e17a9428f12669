"""Rules of all commands: help, misuse, shared options, bugs, and no secret in the process list."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from support.commands import Command
from typer.core import TyperCommand, TyperGroup, TyperOption

from usersctl import __version__
from usersctl.cli.guesses import GUESSES
from usersctl.cli.options import Options, take
from usersctl.cli.tree import GROUPS, command_tree, value_options


def every_command(root: TyperGroup) -> list[tuple[tuple[str, ...], TyperCommand | TyperGroup]]:
    commands: list[tuple[tuple[str, ...], TyperCommand | TyperGroup]] = [((), root)]
    for path, command in commands:
        if isinstance(command, TyperGroup):
            for name, subcommand in command.commands.items():
                assert isinstance(subcommand, TyperCommand | TyperGroup)
                commands.append(((*path, name), subcommand))
    return commands


COMMANDS = every_command(command_tree())

# --- help ---


@pytest.mark.parametrize("path", [path for path, _ in COMMANDS], ids=" ".join)
def test_every_command_has_help_an_example_and_the_shared_options(path: tuple[str, ...]) -> None:
    command = dict(COMMANDS)[path]
    assert command.help
    assert command.epilog is not None
    assert command.epilog.startswith("Example: ")
    assert " ".join(("usersctl", *path)) in command.epilog
    named = {option for parameter in command.params for option in parameter.opts}
    assert named >= {"--json", "--quiet", "--db", "--config", "--no-input"}
    for parameter in command.params:
        assert getattr(parameter, "help", None), (path, parameter.name)


def test_the_help_of_all_ends_with_the_exit_codes(usersctl: Command) -> None:
    help_in_lines = usersctl.ok("--help").stdout
    assert "Exit codes: 0 done, 1 bug, 2 misuse, 3 not found, 4 taken, 5 refused, 6" in help_in_lines


@pytest.mark.slow
def test_help_in_a_pipe_has_no_boxes_and_is_not_cut(usersctl: Command) -> None:
    groups = [[*path, "--help"] for path, command in COMMANDS if isinstance(command, TyperGroup)]
    assert len(groups) > 5
    for words in (*groups, ["-h"], ["token", "create", "-h"]):
        done = usersctl.ok(*words)
        assert done.stdout.startswith("Usage: usersctl")
        assert "╭" not in done.stdout
        assert "..." not in done.stdout.replace("[ARGS]...", "").replace("...]", "")
        assert "Example: usersctl" in done.stdout


def test_python_without_docstrings_has_a_help_that_says_so_and_an_openapi_document(usersctl: Command) -> None:
    env = {"PYTHONOPTIMIZE": "2"}
    for words in (["--help"], ["show", "--help"]):
        assert "because of -OO or PYTHONOPTIMIZE=2" in " ".join(usersctl.ok(*words, env=env).stdout.split())
    assert usersctl.ok("openapi", env=env).json["paths"].keys() == usersctl.ok("openapi").json["paths"].keys()


def test_a_paragraph_of_help_has_no_line_ends() -> None:
    assert [path for path, command in COMMANDS if "\n" in (command.help or "").replace("\n\n", "")] == []


def test_the_examples_can_be_parsed() -> None:
    for path, command in COMMANDS:
        assert command.epilog is not None
        words = command.epilog.partition("usersctl ")[2].partition(" <")[0].replace("'", "").split()
        assert tuple(words[: len(path)]) == path


def test_a_command_line_without_a_command_prints_help(usersctl: Command) -> None:
    for words in ([], ["token"], ["db"], ["config"]):
        done = usersctl(*words)
        assert (done.code, done.stdout) == (2, "")
        assert done.stderr.startswith("Usage: usersctl")
        error = usersctl("--json", *words).error
        assert (error["code"], error["message"]) == ("usage", "Missing command")
        assert error["hint"] == f"see: {' '.join(('usersctl', *words))} --help"


def test_the_version_option_prints_the_version(usersctl: Command) -> None:
    for words in (["--version"], ["list", "--version"]):
        assert usersctl.ok(*words).stdout == f"usersctl {__version__}\n"
        assert usersctl.ok(*words, "--json").json == {"version": __version__}


# --- misuse ---


@pytest.mark.parametrize(
    "words",
    [
        ["nonsense"],
        ["list", "--nonsense"],
        ["show", "1", "extra"],
        ["create"],
        ["token", "nonsense"],
        ["list", "--db"],
        ["--json=yes", "list"],
        ["import", "-", "--format", "xml"],
        ["import", "-", "--on-conflict", "guess"],
    ],
)
def test_misuse_is_one_line_with_a_hint_at_the_help(usersctl: Command, words: list[str]) -> None:
    done = usersctl(*words)
    assert (done.code, done.stdout) == (2, "")
    line, hint = done.stderr.splitlines()
    assert line.startswith("usersctl: ")
    assert hint.startswith("  see: usersctl")
    assert usersctl("--json", *words).error["code"] == "usage"


@pytest.mark.parametrize(
    ("words", "name"),
    [
        ("apply", "FILE"),
        ("config explain", "KEY"),
        ("db verify", "FILE"),
        ("delete --if-exists 1", "USER"),
        ("export", "FILE"),
        ("import --format csv", "FILE"),
        ("invite", "EMAIL"),
        ("show", "USER"),
        ("snippet nginx --app", "--app"),
        ("serve --socket", "--socket"),
        ("import --from csv:people.csv --table", "--table"),
    ],
)
def test_an_empty_argument_is_misuse(usersctl: Command, words: str, name: str) -> None:
    refused = usersctl(*words.split(), "")
    assert (refused.code, refused.stdout, refused.stderr) == (2, "", f"usersctl: {name} is empty\n")


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["list", "--limit", "ten"], "'--limit': 'ten' is not a whole number"),
        (["serve", "--port", "http"], "'--port': 'http' is not a whole number"),
        (["invite", "lst"], "No such command 'lst'. Did you mean 'list'?"),
        (["list", "--sort", "age"], "'--sort': 'age' is not one of 'name', 'email', 'created', 'last-login'"),
        (["healthcheck", "--timeout", "soon"], "'--timeout': 'soon' is not a number"),
        (["show"], "Missing argument 'USER'"),
        (["link"], "Choose from: confirm, reset, email, invite\n"),
        (["list", "--limit", "0"], "'--limit': 0 is not in the range x>=1\n"),
        (["deactivate"], "Missing argument 'USER...'\n"),
        (["list", "--limt", "5"], "No such option: --limt (Possible options: --limit"),
    ],
)
def test_misuse_names_the_option(usersctl: Command, words: list[str], named: str) -> None:
    assert named in usersctl(*words).stderr


def test_an_option_without_its_value_leads_to_the_help_of_its_command(usersctl: Command) -> None:
    for words, helped in (
        ("list --limit", "usersctl list"),
        ("token create ada@example.com --scope", "usersctl token create"),
        ("--config", "usersctl"),
    ):
        problem = f"Option '{words.split()[-1]}' requires an argument"
        assert usersctl(*words.split()).stderr == f"usersctl: {problem}\n  see: {helped} --help\n"


@pytest.mark.parametrize(
    ("words", "command"),
    [
        ("user list", "list"),
        ("users", "list"),
        ("user", "list"),
        ("ls", "list"),
        ("add", "create EMAIL"),
        ("user add ada@example.com", "create EMAIL"),
        ("useradd", "create EMAIL"),
        ("users delete 7 --yes", "delete"),
        ("rm ada@example.com", "delete USER"),
        ("remove", "delete USER"),
        ("passwd ada", "set-password USER"),
        ("reset-password", "set-password USER, or: usersctl link reset USER"),
        ("enable", "activate USER"),
        ("disable", "deactivate USER"),
        ("login", "token create USER, or for people: usersctl serve"),
        ("start", "serve"),
        ("run", "serve"),
        ("restart", "serve"),
        ("config edit", "config path"),
        ("caddy", "snippet caddy"),
        ("backup", "db backup FILE"),
        ("migrate", "db migrate"),
        ("db upgrade", "db migrate"),
        ("token ls", "token list"),
        ("invite add ada@example.com", "invite send EMAIL"),
        ("invite cancel ada@example.com", "invite revoke USER"),
        ("version", "--version"),
        ("help", "--help"),
        ("help list", "list --help"),
    ],
)
def test_a_wrong_guess_leads_to_the_right_command(usersctl: Command, words: str, command: str) -> None:
    done = usersctl(*words.split())
    assert (done.code, done.stdout) == (2, "")
    first, second = done.stderr.splitlines()
    assert first.startswith("usersctl: No such command '")
    assert "Did you mean" not in first
    assert second == f"  use: usersctl {command}"
    assert usersctl("--json", *words.split()).error["hint"] == f"use: usersctl {command}"


def test_the_table_of_guesses_names_commands_and_no_word_twice() -> None:
    names = {" ".join(path) for path, _ in COMMANDS} | {"--version", "--help", "--install-completion"}
    for command in GUESSES:
        words = command.partition(",")[0].split()
        assert words[0] in names
        assert words[0] not in GROUPS or " ".join(words[:2]) in names
    guesses = [guess for line in GUESSES.values() for guess in line.split()]
    assert len(guesses) == len(set(guesses))
    assert not names & {guess.replace(":", " ") for guess in guesses}


# --- the options for everywhere ---


def test_shared_options_work_before_and_after_the_command(usersctl: Command) -> None:
    usersctl.add("ada")
    env = {"USERS_DATABASE": "/nowhere/users.db"}
    for words in (
        ["--json", "--db", usersctl.database, "show", "1"],
        ["show", "1", "--json", "--db", usersctl.database],
        ["--json", "show", f"--db={usersctl.database}", "1"],
    ):
        assert usersctl.ok(*words, env=env).json["id"] == 1


def test_words_after_two_dashes_are_no_options(usersctl: Command) -> None:
    usersctl.add("ada")
    assert usersctl("show", "--", "--json").stderr.startswith("usersctl: No user '--json'")


def test_the_value_of_an_option_is_never_read_as_a_shared_option() -> None:
    taking = {
        option
        for _, command in COMMANDS
        for parameter in command.params
        if isinstance(parameter, TyperOption) and not parameter.is_flag
        for option in parameter.opts
    }
    assert taking - {"--config", "--db"} == value_options()
    assert value_options() >= {"--name", "--role", "--expires", "--from"}
    words = ["create", "a@example.com", "--name", "--db=x", "--role", "--json", "--quiet"]
    assert take(words, value_options()) == (Options(quiet=True), words[:-1])
    assert take(words, value_options(["create"])) == (Options(quiet=True), words[:-1])


@pytest.mark.parametrize("name", command_tree().commands)
def test_one_command_alone_has_the_options_that_it_has_among_all(name: str) -> None:
    alone = command_tree(name).commands
    assert list(alone) == [name]
    for path, command in every_command(command_tree(name)):
        among_all = dict(COMMANDS)[path]
        assert [option.opts for option in command.params] == [option.opts for option in among_all.params]
        taking = {
            name
            for option in command.params
            if isinstance(option, TyperOption) and not option.is_flag
            for name in option.opts
        }
        assert not path or taking - {"--config", "--db"} <= set(value_options([path[0], "x"]))


# --- a working folder that is gone ---


@pytest.mark.parametrize(
    ("words", "code"),
    [
        ("list", 0),
        ("list --json", 0),
        ("show 1", 0),
        ("why 1", 0),
        ("audit", 0),
        ("create eve@example.com --generate", 0),
        ("import - --format jsonl --dry-run", 0),
        ("import {folder}/people.csv", 0),
        ("import --from csv:{folder}/people.csv --dry-run", 0),
        ("export {folder}/all.csv", 0),
        ("export all.csv", 2),
        ("db status", 0),
        ("db verify", 0),
        ("config show", 0),
    ],
)
def test_a_command_needs_no_working_folder(usersctl: Command, words: str, code: int) -> None:
    usersctl.add("ada")
    (usersctl.folder / "people.csv").write_text("email\ngrace@example.com\n")
    words = words.format(folder=usersctl.folder)
    done = usersctl.shell(f"mkdir gone && cd gone && rmdir ../gone; usersctl {words}")
    assert done.code == code, done


def test_a_relative_path_in_a_folder_that_was_removed_is_told_from_a_missing_file(usersctl: Command) -> None:
    done = usersctl.shell("mkdir gone && cd gone && rmdir ../gone; usersctl list --db users.db")
    assert (done.code, done.stdout) == (6, "")
    assert done.stderr == "usersctl: The working folder was removed\n  go to another one, and start again\n"


# --- a bug of ours ---


def test_a_bug_is_one_line_with_a_trace_only_with_debug(usersctl: Command) -> None:
    usersctl.add("ada")
    script = (
        "import sys; from usersctl import __main__ as command;"
        "import usersctl.cli.show.listing as listing;"
        "listing.list_users = lambda *_, **__: 1 / 0;"
        "sys.argv = ['usersctl', 'list', '--json', *sys.argv[1:]]; command.main()"
    )
    for words, traced in (([], False), (["--debug"], True)):
        done = subprocess.run(
            [sys.executable, "-c", script, *words],
            env=usersctl.env,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 1
        assert json.loads(done.stderr.splitlines()[0])["error"]["code"] == "bug"
        assert ("Traceback" in done.stderr) is traced


@pytest.mark.sqlite  # of a server, other modules and errors
def test_an_error_has_a_trace_with_debug(usersctl: Command) -> None:
    assert "Traceback" in usersctl("list", "--debug").stderr


def test_secrets_are_not_visible_in_the_process_list(usersctl: Command) -> None:
    process = usersctl.start(
        "create", "ada@example.com", "--password-stdin", stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    seen = Path(f"/proc/{process.pid}/cmdline")
    if seen.exists():
        assert b"correct horse" not in seen.read_bytes()
    process.communicate(b"correct horse battery", timeout=20)
    assert process.returncode == 0
