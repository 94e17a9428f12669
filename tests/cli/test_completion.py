"""Completion in bash, zsh and fish: its candidates, and that none of them runs a command."""

import re
import shlex
import subprocess
import sys

import pytest
from support.commands import CLAIM, Command, by_hand
from support.ports import free_port


def complete(usersctl: Command, line: str) -> list[str]:
    """As bash asks. It also ends a word at @, : and =."""
    words = [piece for word in line.split(" ") for piece in re.split("([@:=]+)", word) if piece or not word]
    return complete_words(usersctl, words)


def complete_words(usersctl: Command, words: list[str]) -> list[str]:
    env = {"COMP_WORDS": "\n".join(words), "COMP_CWORD": str(len(words) - 1)}
    done = usersctl(env=env | {"_USERSCTL_COMPLETE": "complete_bash"})
    assert done.stderr == ""
    return done.stdout.split()


@pytest.mark.slow
def test_completion_offers_commands_options_and_addresses(usersctl: Command) -> None:
    usersctl.add("ada", "alan", "eve")
    assert "cleanup-tokens" in complete(usersctl, "usersctl cl")
    assert set(complete(usersctl, "usersctl token ")) == {"create", "list", "revoke"}
    for group in ("staff", "stand-by", "board"):
        usersctl.ok("group", "create", group)
    for command in ("group show", "list --group", "invite send --group"):
        assert complete(usersctl, f"usersctl {command} st") == ["staff", "stand-by"], command
    assert "--json" in complete(usersctl, "usersctl list --j")
    assert complete(usersctl, "usersctl show a") == ["ada@example.com", "alan@example.com"]
    assert complete(usersctl, "usersctl delete ada@example.com e") == ["eve@example.com"]
    assert complete(usersctl, "usersctl create --role ") == ["admin", "user"]
    assert complete(usersctl, "usersctl audit --action lock") == ["lockdown-off", "lockdown-on"]


@pytest.mark.slow
def test_completion_offers_what_the_configuration_names_actors_and_open_invitations(
    usersctl: Command,
) -> None:
    usersctl.configure(
        '[[webhooks]]\nname = "billing"\nurl = "https://example.com/h"\nevents = ["*"]\n'
        'secrets = ["whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"]\n[auth.providers.own]\npreset = "google"\n'
    )
    usersctl.add("ada")
    usersctl.ok("invite", "send", "alan@example.com", "sam@example.com")
    for command in ("show", "retry", "test"):
        assert complete(usersctl, f"usersctl webhook {command} b") == ["billing"]
    assert complete(usersctl, "usersctl update ada@example.com --unlink o") == ["oauth", "own"]
    assert complete(usersctl, "usersctl audit --actor a") == [
        "anonymous",
        "ada@example.com",
        "alan@example.com",
    ]
    assert complete(usersctl, "usersctl audit --actor s") == ["system", "sam@example.com"]
    for command in ("resend", "revoke"):
        assert complete(usersctl, f"usersctl invite {command} a") == ["alan@example.com"]


@pytest.mark.slow
def test_completion_offers_a_claimed_address_to_commands_that_only_read(usersctl: Command) -> None:
    usersctl.add("ada")
    by_hand(usersctl.database, CLAIM)
    for command in ("show", "why", "token list"):
        assert complete(usersctl, f"usersctl {command} c") == ["ceo@example.com"], command
    for command in ("update", "delete", "token create", "token revoke", "link reset", "lockdown on --except"):
        assert complete(usersctl, f"usersctl {command} c") == [], command
    assert complete(usersctl, "usersctl update a") == ["ada@example.com"]


def test_completion_finds_an_address_by_its_beginning_among_many(usersctl: Command) -> None:
    usersctl.add(*(f"a{number:02}" for number in range(60)), "example")
    assert complete(usersctl, "usersctl show ex") == ["example@example.com"]


@pytest.mark.slow
def test_completion_in_bash_goes_on_after_a_sign_that_ends_a_word(usersctl: Command) -> None:
    usersctl.add("ada", "x=y")
    assert complete(usersctl, "usersctl show ada@ex") == ["@example.com"]
    assert complete(usersctl, "usersctl show ada@") == ["@example.com"]
    assert complete(usersctl, "usersctl show x=") == ["y@example.com"]
    assert complete(usersctl, "usersctl list --sort=na") == ["name"]
    for option in ("--scope ", "--scope="):
        line = f"usersctl token create ada@example.com {option}users:"
        assert complete(usersctl, line) == ["read", "write"], option
    usersctl.ok("create", "alan@example.com", "--generate", "--db", "another.db")
    assert complete(usersctl, "usersctl --db=another.db show a") == ["alan@example.com"]


@pytest.mark.parametrize(
    ("typed", "candidate"),
    [
        ("x", r"x\`id\`\$\'@example.com"),
        ('"x', r"x\`id\`\$'@example.com"),
        ("'x", r"x`id`$'\''@example.com"),
    ],
)
def test_an_address_runs_no_command_when_bash_has_completed_it(
    usersctl: Command, typed: str, candidate: str
) -> None:
    usersctl.add("x`id`$'")
    assert complete_words(usersctl, ["usersctl", "show", typed]) == [candidate]


@pytest.mark.parametrize("variable", ["COMP_WORDS", "_TYPER_COMPLETE_ARGS"])
def test_completion_reads_the_database_of_the_command_line(usersctl: Command, variable: str) -> None:
    usersctl.add("ada")
    usersctl.ok("create", "alan@example.com", "--generate", "--db", "another one.db")
    shell = "bash" if variable == "COMP_WORDS" else "zsh"
    words = ["usersctl", "--db", "'another one.db'", "show", "a"]
    line = ("\n" if shell == "bash" else " ").join(words)
    printed = usersctl(
        env={"_USERSCTL_COMPLETE": f"complete_{shell}", variable: line, "COMP_CWORD": "4"}
    ).stdout
    assert "alan@example.com" in printed
    assert "ada@example.com" not in printed


@pytest.mark.parametrize("line", ["usersctl ", "usersctl token create ada@example.com --"])
def test_completion_has_one_line_for_each_candidate_on_a_narrow_terminal(
    usersctl: Command, line: str
) -> None:
    env = {"_USERSCTL_COMPLETE": "complete_fish", "_TYPER_COMPLETE_FISH_ACTION": "get-args"}
    done = usersctl(env=env | {"_TYPER_COMPLETE_ARGS": line, "COLUMNS": "40"})
    candidates = [each.split("\t") for each in done.stdout.splitlines()]
    assert len(candidates) > 5
    assert {len(each) for each in candidates} == {2}  # the word, and what it means


def test_completion_is_silent_without_a_database_or_with_a_broken_configuration(usersctl: Command) -> None:
    assert complete(usersctl, "usersctl show a") == []
    usersctl.configure("nonsense")
    assert complete(usersctl, "usersctl show a") == []


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_is_shown_for_a_shell(usersctl: Command, shell: str) -> None:
    done = usersctl(env={"_USERSCTL_COMPLETE": f"source_{shell}"})
    assert done.code == 0
    assert "_USERSCTL_COMPLETE" in done.stdout


def test_completion_in_zsh_completes_at_the_first_tab_and_after_an_equals_sign(usersctl: Command) -> None:
    script = usersctl(env={"_USERSCTL_COMPLETE": "source_zsh"}).stdout
    assert "[[ $words[CURRENT] == --*=* ]] && compset -P '*='\n" in script
    assert "\n[[ $funcstack[1] == _usersctl ]] && _usersctl_completion\n" in script


def test_completion_in_zsh_keeps_an_apostrophe(usersctl: Command) -> None:
    usersctl.add("o'brien")
    env = {"_USERSCTL_COMPLETE": "complete_zsh", "_TYPER_COMPLETE_ARGS": "usersctl show o"}
    printed = usersctl(env=env).stdout
    assert shlex.split(printed) == ["_arguments", """*: :(("o'brien@example.com"))"""]


@pytest.mark.parametrize(
    ("line", "candidates"),
    [
        ("list --sort=na", ["--sort=name"]),
        ("list --sort na", ["name"]),
        ("token create 1 --scope=users:", ["--scope=users:read", "--scope=users:write"]),
    ],
)
def test_completion_in_fish_gives_whole_words(usersctl: Command, line: str, candidates: list[str]) -> None:
    env = {"_USERSCTL_COMPLETE": "complete_fish", "_TYPER_COMPLETE_FISH_ACTION": "get-args"}
    done = usersctl(env=env | {"_TYPER_COMPLETE_ARGS": f"usersctl {line}"})
    assert [each.split("\t")[0] for each in done.stdout.splitlines()] == candidates


@pytest.mark.parametrize("option", ["--show-completion", "--install-completion"])
def test_a_shell_without_completion_is_misuse(usersctl: Command, option: str) -> None:
    command = f"'{sys.executable}' -m usersctl {option}; exit $?"
    done = subprocess.run(
        ["sh", "-c", command], env=usersctl.env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert "usersctl: Completion is for bash, zsh, fish and PowerShell\n" in done.stderr


# Neither process of the daemon can serve, for a reason that nobody foresaw.
FAILING = """
import sys
from usersctl.__main__ import command
from usersd.server import processes

processes._serve_alone = None
command()
"""


def test_a_daemon_whose_processes_fail_says_nothing_of_completion(usersctl: Command) -> None:
    usersctl.configure(f"server.processes = 2\nserver.port = {free_port()}\n")
    words = [sys.executable, "-c", FAILING, "serve"]
    done = subprocess.run(words, env=usersctl.env, capture_output=True, text=True, check=False, timeout=30)
    assert done.returncode == 1
    assert "failed" in done.stderr
    assert "ompletion" not in done.stderr
