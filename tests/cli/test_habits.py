"""Rules of all commands: help, shared options, exit codes, streams, completion and start-up."""

import json
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import pytest
from support.commands import CLAIM, PASSWORD, USERSCTL, Command, by_hand, feed
from typer.core import TyperCommand, TyperGroup, TyperOption

from usersctl import __version__
from usersctl.cli.guesses import GUESSES
from usersctl.cli.options import Options, take
from usersctl.cli.tree import COMMANDS as TABLE
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


# --- misuse ---


@pytest.mark.parametrize(
    "words",
    [
        ["nonsense"],
        ["list", "--nonsense"],
        ["list", "extra"],
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
        (["list", "--limt", "5"], "No such option: --limt (Possible options: --limit"),
    ],
)
def test_misuse_names_the_option(usersctl: Command, words: list[str], named: str) -> None:
    assert named in usersctl(*words).stderr


# --- the options for everywhere ---


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


def test_a_command_that_a_hint_names_is_for_the_same_configuration_and_database(usersctl: Command) -> None:
    other = usersctl.folder / "my users.db"
    again = f"usersctl db init --config {usersctl.config} --db '{other}'"
    assert (
        usersctl("show", "1", "--json", "--db", other).error["hint"]
        == f"make one with: usersctl db init --db '{other}'"
    )
    done = usersctl("--config", usersctl.config, "list", "--db", other)
    assert done.stderr.splitlines()[1] == f"  make one with: {again}"
    assert usersctl.shell(again).code == 0
    refused = usersctl("link", "email", "1", "--db", other, "--json")
    assert refused.error["hint"] == f"look for it with: usersctl list --search TEXT --db '{other}'"


@pytest.mark.parametrize(
    "db",
    [
        "postgresql://users:topsecret@127.0.0.1:1/users",
        "postgresql+psycopg://users:topsecret@127.0.0.1:1/users",
        "host=127.0.0.1 password=topsecret",
        "host=127.0.0.1 pwd='topsecret",
        "postgresql://127.0.0.1:1/users?password=topsecret",
        "postgresql://users:top/topsecret@127.0.0.1:1/users",
    ],
)
def test_no_hint_repeats_a_password_of_the_database(usersctl: Command, db: str) -> None:
    for words in (["import"], ["show", "1"], ["doctor"], ["db", "status"], ["serve"], ["nonsense"], ["db"]):
        for also in ([], ["--json"]):
            done = usersctl("--db", db, *words, *also)
            assert "topsecret" not in done.stdout + done.stderr
            assert done.code != 0


def test_a_hint_at_a_help_text_repeats_no_database(usersctl: Command) -> None:
    done = usersctl("--db", str(usersctl.database), "list", "--bogus")
    assert (done.code, done.stderr.splitlines()[-1]) == (2, "  see: usersctl list --help")
    assert (
        usersctl("--db", str(usersctl.database), "import", "--json").error["hint"]
        == "see: usersctl import --help"
    )


def test_an_option_without_its_value_leads_to_the_help_of_its_command(usersctl: Command) -> None:
    for words, helped in (
        ("list --limit", "usersctl list"),
        ("token create ada@example.com --scope", "usersctl token create"),
        ("--config", "usersctl"),
    ):
        problem = f"Option '{words.split()[-1]}' requires an argument."
        assert usersctl(*words.split()).stderr == f"usersctl: {problem}\n  see: {helped} --help\n"


def test_each_command_of_a_hint_is_for_the_database_that_was_named(usersctl: Command) -> None:
    usersctl.add("ada")
    usersctl.ok("invite", "send", "grace@example.com")
    there = ("--db", str(usersctl.database))
    for asked in (("create", "ada@example.com"), ("set-password", "grace@example.com")):
        hint = usersctl(*there, *asked, "--generate").stderr.splitlines()[-1]
        commands = hint.split(": usersctl ")[1:]
        assert len(commands) == 2
        assert all(each.split(";")[0].endswith(f" --db {usersctl.database}") for each in commands), hint


def test_a_file_in_a_hint_may_have_any_name(usersctl: Command) -> None:
    usersctl.add("ada")
    (usersctl.folder / "a;b, c.db").write_text("no database")
    done = usersctl("db", "restore", "a;b, c.db", "--yes", "--db", usersctl.database)
    assert done.stderr.splitlines()[-1] == f"  see: usersctl db verify 'a;b, c.db' --db {usersctl.database}"


def test_a_command_that_mends_a_file_is_for_the_database_that_was_named(usersctl: Command) -> None:
    usersctl.add("ada")
    there, mend = ("--db", str(usersctl.database)), f"usersctl group create staff --db {usersctl.database}"
    state = 'name = "people"\n[[users]]\nemail = "bob@example.com"\ngroups = ["staff"]\n'
    for form in ((), ("--json",)):
        assert f"make it with: {mend}" in usersctl(*there, "apply", "-", *form, stdin=state).stderr
        rows = "email,groups\nbob@example.com,staff\n"
        assert f"make it with: {mend}, or all" in usersctl(*there, "import", "-", *form, stdin=rows).stderr
    invited = usersctl.ok(*there, "import", "-", "--invite", stdin="email\nbob@example.com\n").stderr
    assert f"see: usersctl invite list --db {usersctl.database}\n" in invited
    resent = usersctl.ok(*there, "invite", "resend", "bob@example.com").stderr
    state = 'name = "people"\n[[users]]\nemail = "cy@example.com"\ninvite = true\n'
    for told in (invited, resent, usersctl.ok(*there, "apply", "-", stdin=state).stderr):
        assert f"usersctl link invite USER --db {usersctl.database}\n" in told


def test_a_hint_repeats_a_database_on_a_server_without_a_password(usersctl: Command) -> None:
    server = "postgresql://users@127.0.0.1:1/users"
    assert (
        usersctl("--db", server, "serve", "--app", "127.0.0.1:5000", "--json").error["hint"]
        == f"add --dev; for a real installation see: usersctl snippet nginx --db {server}"
    )


def test_the_table_of_guesses_names_commands_and_no_word_twice() -> None:
    names = {" ".join(path) for path, _ in COMMANDS} | {"--version", "--help"}
    for command in GUESSES:
        words = command.partition(",")[0].split()
        assert words[0] in names
        assert words[0] not in GROUPS or " ".join(words[:2]) in names
    guesses = [guess for line in GUESSES.values() for guess in line.split()]
    assert len(guesses) == len(set(guesses))
    assert not names & {guess.replace(":", " ") for guess in guesses}


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


# --- streams ---


def test_a_closed_stdout_is_reported_before_anything_is_done(usersctl: Command) -> None:
    done = usersctl.shell("usersctl create ada@example.com --generate >&-")
    assert (done.code, "stdout is closed" in done.stderr) == (6, True)
    assert usersctl.is_unused
    done = usersctl.shell("usersctl list --json >&-")
    assert (done.code, done.error["code"]) == (6, "io")


@pytest.mark.parametrize("words", ["list", "list --json", "--help", "--version", "export", "config show", "db status --json"])  # fmt: skip
def test_a_full_stdout_is_a_failure(usersctl: Command, words: str) -> None:
    usersctl.add("ada")
    done = usersctl.shell(f"usersctl {words} > /dev/full")
    assert done.code == 6, done
    assert "No space left on device" in done.stderr
    assert DONE not in done.stderr
    assert "Exception ignored" not in done.stderr
    assert "Traceback" not in done.stderr


DONE = "the command has done its work; only its report could not be written"


@pytest.mark.parametrize(
    ("words", "action"),
    [
        ("create bob@example.com --password-file word", "create"),
        ("update 1 --name Countess", "update"),
        ("delete 1 --yes --json", "delete"),
        ("import people.csv", "import"),
        ("apply people.toml", "create"),
        ("apply people.toml --json", "create"),
    ],
)
def test_a_full_stdout_after_a_change_says_that_it_is_made(
    usersctl: Command, words: str, action: str
) -> None:
    usersctl.add("ada")
    (usersctl.folder / "word").write_text(PASSWORD)
    (usersctl.folder / "people.csv").write_text("email\nbob@example.com\n")
    (usersctl.folder / "people.toml").write_text('name = "people"\n[[users]]\nemail = "bob@example.com"\n')
    if words.startswith("apply"):
        planned = usersctl.shell(f"usersctl {words} --plan > /dev/full")
        assert (planned.code, DONE in planned.stderr) == (6, False)
    done = usersctl.shell(f"usersctl {words} > /dev/full")
    assert (done.code, "No space left on device" in done.stderr, DONE in done.stderr) == (6, True, True)
    assert usersctl.ok("audit", "--json").json[-1]["action"] == action


@pytest.mark.parametrize(
    "words", ["create bob@example.com --generate", "token create 1 --no-expiry", "set-password 1 --generate"]
)
def test_a_secret_that_a_full_stdout_does_not_take_is_not_stored(usersctl: Command, words: str) -> None:
    usersctl.add("ada")
    before = usersctl.ok("audit", "--json").stdout
    done = usersctl.shell(f"usersctl {words} > /dev/full")
    assert (done.code, "No space left on device; nothing was done" in done.stderr) == (6, True)
    assert usersctl.ok("audit", "--json").stdout == before


@pytest.mark.parametrize("words", ["list", "list --json", "list --csv", "export --format jsonl"])
def test_a_reader_that_goes_away_is_no_error(usersctl: Command, words: str) -> None:
    with usersctl.service() as service, service.store.write() as tx:
        tx._run(
            "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 5000)"
            " INSERT INTO users (email, name, password_hash, role, active, created_at, updated_at)"
            " SELECT 'user' || i || '@example.com', 'Name of user', '!', 'user', 1, 'x', 'x' FROM n"
        )
    done = usersctl.shell(f"set -o pipefail; usersctl {words} | head -1")
    assert (done.code, done.stderr) == (0, "")
    assert len(done.stdout.splitlines()) == 1


def test_audit_follow_ends_with_its_reader_though_no_row_comes(usersctl: Command) -> None:
    usersctl.add("ada")
    follow = f"timeout 20 '{sys.executable}' -m usersctl audit --follow --since 1h --jsonl"
    done = usersctl.shell(f"set -o pipefail; {follow} | grep -m 1 create")
    assert (done.code, done.stderr) == (0, "")


@pytest.mark.slow
def test_messages_for_a_closed_stderr_do_not_go_to_stdout(usersctl: Command) -> None:
    done = usersctl.shell("usersctl create ada@example.com --generate 2>&-")
    assert done.code == 0
    assert usersctl.can_log_in("ada@example.com", done.stdout.strip())
    assert usersctl.shell("usersctl show nobody 2>&-") == (3, "", "")


@pytest.fixture(params=["full", "without a reader", "not for writing"])
def stderr(request: pytest.FixtureRequest) -> Iterator[IO[bytes]]:
    """A stderr that cannot be written to."""
    if request.param == "without a reader":
        reader, writer = os.pipe()
        os.close(reader)
        opened: IO[bytes] = os.fdopen(writer, "wb", buffering=0)
    else:
        opened = Path("/dev/full").open("wb" if request.param == "full" else "rb", buffering=0)  # noqa: SIM115
    with opened:
        yield opened


def test_a_line_that_a_full_disk_cut_takes_no_other_with_it(tmp_path: Path) -> None:
    script = (
        "import resource, sys; from usersctl.__main__ import _prepare_streams; _prepare_streams()\n"
        "_, most = resource.getrlimit(resource.RLIMIT_FSIZE)\n"
        "for number, room in enumerate((15, 15, 16, 16, most, most)):\n"
        "    resource.setrlimit(resource.RLIMIT_FSIZE, (room, most))\n"
        "    print(f'a line, number {number}', file=sys.stderr)\n"
    )
    log = tmp_path / "log"
    with log.open("ab") as stderr:
        subprocess.run([sys.executable, "-c", script], stderr=stderr, check=True)
    assert log.read_text().splitlines() == ["a line, number ", "a line, number 4", "a line, number 5"]


@pytest.mark.parametrize(
    ("words", "code"),
    [
        ("list", 0),
        ("show nobody", 3),
        ("show nobody --json", 3),
        ("delete 1", 5),
        ("why 1", 0),
        ("why nobody", 3),
        ("doctor", 7),
        ("snippet cron", 0),
        ("import --from csv:nowhere.csv", 2),
        ("cleanup-tokens --quiet --db /nowhere/users.db", 6),
        ("nonsense", 2),
        ("token", 2),
        ("list --debug --db /nowhere/users.db", 6),
    ],
)
def test_an_unwritable_stderr_changes_neither_result_nor_exit_code(
    usersctl: Command, stderr: IO[bytes], words: str, code: int
) -> None:
    usersctl.add("ada")
    process = usersctl.start(*words.split(), stdout=subprocess.PIPE, stderr=stderr, stdin=subprocess.DEVNULL)
    out, _ = process.communicate(timeout=30)
    assert process.returncode == code
    # The first column is the same on every run.
    printed, as_ever = (
        [line.split("\t")[0] for line in text.splitlines()]
        for text in (out.decode(), usersctl(*words.split()).stdout)
    )
    assert printed == as_ever


def test_a_secret_is_printed_and_stored_with_an_unwritable_stderr(
    usersctl: Command, stderr: IO[bytes]
) -> None:
    def printed(*words: str) -> str:
        process = usersctl.start(*words, stdout=subprocess.PIPE, stderr=stderr)
        out, _ = process.communicate(timeout=30)
        assert process.returncode == 0
        return out.decode().strip()

    made = printed("create", "ada@example.com", "--generate")
    assert usersctl.can_log_in("ada@example.com", made)
    token = printed("token", "create", "1", "--no-expiry")
    with usersctl.service() as service:
        assert service.sessions.check(token) is not None
    assert printed("create", "ada@example.com", "--generate", "--if-missing") == ""


@pytest.mark.parametrize(
    ("words", "code"),
    [
        ("show -", 2),
        ("delete - --yes", 0),
        ("create eve@example.com --password-stdin", 2),
        ("create eve@example.com", 2),
        ("import - --format jsonl", 0),
    ],
)
def test_a_closed_stdin_counts_as_empty(usersctl: Command, words: str, code: int) -> None:
    usersctl.add("ada")
    done = usersctl.shell(f"usersctl {words} <&-")
    assert done.code == code, done
    assert "bug" not in done.stderr


@pytest.mark.slow
def test_output_is_utf_8_in_every_locale(usersctl: Command) -> None:
    usersctl.ok("import", "-", stdin="email,name\nada@example.com,Zoë 中 😀\n")
    for env in ({"LC_ALL": "C"}, {"PYTHONIOENCODING": "ascii"}, {"PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "LC_ALL": "POSIX"}):  # fmt: skip
        assert usersctl.ok("list", env=env).rows[0][2] == "Zoë 中 😀"
        assert usersctl.ok("list", "--json", env=env).json[0]["name"] == "Zoë 中 😀"


def test_invalid_utf_8_in_arguments_is_no_bug(usersctl: Command) -> None:
    usersctl.add("ada")
    odd = os.fsdecode(b"\xff")
    assert usersctl("show", odd).code == 3
    assert usersctl("show", "-", stdin=b"\xff\n").code == 3
    assert usersctl.ok("list", "--search", odd, "--json").json == []
    assert usersctl("create", f"{odd}@example.com", "--generate").code == 2
    assert usersctl("create", "eve@example.com", "--generate", "--name", odd).code == 2
    assert usersctl("update", "1", "--name", odd).code == 2
    usersctl.ok("update", "1", "--name", "Ada L", env={"SUDO_USER": odd, "SSH_CONNECTION": f"{odd}\x1b[2J 1"})
    assert "\x1b" not in usersctl.ok("audit").stdout
    path = usersctl.folder / f"{odd}.db"
    assert usersctl("list", "--db", path).code == 6
    assert json.loads(usersctl.ok("db", "init", "--db", path, "--json").stdout)["created"]


def test_ctrl_c_is_130_without_a_trace(usersctl: Command) -> None:
    usersctl.add("ada")
    process = usersctl.start(
        "import",
        "-",
        measured=False,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    feed(process.stdin, b"email\neve@example.com\n")
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=20)
    assert (process.returncode, out, err) == (130, b"", b"usersctl: interrupted\n")
    assert usersctl.emails() == ["ada@example.com"]


def test_ctrl_c_is_reported_as_json_with_json(usersctl: Command) -> None:
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    process = usersctl.start("import", "-", "--json", measured=False, **pipes)
    feed(process.stdin, b"email\neve@example.com\n")
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=20)
    assert (process.returncode, out) == (130, b"")
    assert json.loads(err) == {"error": {"code": "interrupted", "message": "interrupted", "hint": None}}


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


# --- completion ---


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


# --- how soon it answers ---


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


def test_secrets_are_not_visible_in_the_process_list(usersctl: Command) -> None:
    process = usersctl.start(
        "create", "ada@example.com", "--password-stdin", stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    seen = Path(f"/proc/{process.pid}/cmdline")
    if seen.exists():
        assert b"correct horse" not in seen.read_bytes()
    process.communicate(b"correct horse battery", timeout=20)
    assert process.returncode == 0


SIGNAL_IN_A_FINALIZER = """
import signal, sys, time
from usersctl.__main__ import catch_signals

class Finalized:
    def __del__(self):
        signal.raise_signal(signal.Signals[sys.argv[1]])

catch_signals()
Finalized()
time.sleep(10)
print("lost")
"""


@pytest.mark.parametrize(("name", "code"), [("SIGTERM", 143), ("SIGINT", -signal.SIGINT)])
def test_a_signal_that_comes_while_an_object_is_finalized_is_not_lost(name: str, code: int) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SIGNAL_IN_A_FINALIZER, name],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert (done.stdout, done.returncode) == ("", code)


BUSY = """
import threading, time
start = threading.Thread.start
threading.Thread.start = lambda thread: (start(thread), time.sleep(0.3))
"""


def test_such_a_signal_is_not_lost_on_a_busy_machine_either() -> None:
    """There the main thread may wait for long until the thread that sends the signal again has begun."""
    done = subprocess.run(
        [sys.executable, "-c", BUSY + SIGNAL_IN_A_FINALIZER, "SIGTERM"],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert (done.stdout, done.returncode) == ("", 143)
