"""The table of commands, and the Typer tree that is built from it."""

import os
import re
import sys
from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager, nullcontext
from copy import copy
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import CodeType
from typing import Annotated, Any

import typer
from typer import Option
from typer.core import TyperGroup, TyperOption
from typer.exceptions import Abort, TyperException

from usersctl.cli.exit_codes import ExitCode
from usersctl.cli.invocation import Invocation
from usersctl.cli.options import VALUES
from usersctl.errors import Invalid

# Each panel of the help with its commands: name, module and function, and the words of the example that follow the name.
# The function is named and not imported: a command loads no module but its own.
# fmt: off
COMMANDS = {
    "Accounts": (
        ("create",          "accounts.create",         "ada@example.com --name 'Ada Lovelace' --admin"),
        ("list",            "accounts.list_",          "--state never-signed-in --sort created --desc"),
        ("show",            "accounts.show",           "ada@example.com"),
        ("update",          "accounts.update",         "ada@example.com --role user"),
        ("activate",        "accounts.activate",       "7 8 grace@example.com"),
        ("deactivate",      "accounts.deactivate",     "- < leavers.txt"),
        ("delete",          "accounts.delete",         "bob@example.com --yes"),
        ("set-password",    "accounts.set_password",   "ada@example.com --generate"),
        ("unlock",          "accounts.unlock",         "ada@example.com"),
        ("why",             "why.why",                 "ada@example.com"),
        ("import",          "transfer.import_",        "people.csv --dry-run"),
        ("export",          "transfer.export",         "people.jsonl --with-hashes"),
        ("apply",           "state.apply",             "people.toml --plan"),
    ),
    "Invitations": (
        ("invite send",     "invitations.send",        "ada@example.com --name 'Ada Lovelace' --expires 14d"),
        ("invite list",     "invitations.list_",       "--json"),
        ("invite resend",   "invitations.resend",      "ada@example.com"),
        ("invite revoke",   "invitations.revoke",      "ada@example.com"),
    ),
    "Groups": (
        ("group list",      "groups.list_",            "--json"),
        ("group show",      "groups.show",             "staff"),
        ("group create",    "groups.create",           "staff"),
        ("group delete",    "groups.delete",           "staff --yes"),
        ("group add",       "groups.add",              "staff ada@example.com bob@example.com"),
        ("group remove",    "groups.remove",           "staff bob@example.com"),
    ),
    "Second factors": (
        ("factor list",     "factors.list_",           "ada@example.com"),
        ("factor reset",    "factors.reset",           "ada@example.com --totp"),
    ),
    "Sessions and tokens": (
        ("cleanup-tokens",  "tokens.cleanup_tokens",   "--quiet"),
        ("token create",    "tokens.create",           "ci@example.com --name backup --expires 90d --scope users:read"),
        ("token list",      "tokens.list_",            "ada@example.com"),
        ("token revoke",    "tokens.revoke",           "ada@example.com"),
    ),
    "Email": (
        ("mail list",       "mail.list_",              "--json"),
        ("mail show",       "mail.show",               "12"),
        ("mail retry",      "mail.retry",              ""),
        ("mail test",       "mail.test",               "ada@example.com"),
        ("link",            "mail.link",               "reset ada@example.com"),
    ),
    "Webhooks": (
        ("webhook list",    "webhooks.list_",          "--json"),
        ("webhook show",    "webhooks.show",           "billing"),
        ("webhook retry",   "webhooks.retry",          "billing"),
        ("webhook test",    "webhooks.test",           "billing"),
    ),
    "Operation": (
        ("serve",           "serve.serve",             "--dev"),
        ("doctor",          "doctor.doctor",           "--online"),
        ("healthcheck",     "healthcheck.healthcheck", "http://127.0.0.1:8080"),
        ("db init",         "database.init",           "--db /var/lib/users/users.db"),
        ("db migrate",      "database.migrate",        ""),
        ("db status",       "database.status",         "--json"),
        ("db backup",       "database.backup",         "/var/backups/users-today.db"),
        ("db verify",       "database.verify",         "/var/backups/users-today.db"),
        ("db restore",      "database.restore",        "/var/backups/users-today.db"),
        ("db move",         "move.move",               "postgresql://db.example.com/users"),
        ("key rotate",      "keys.rotate",             ""),
        ("audit",           "audit.audit",             "--user ada@example.com --since 7d"),
        ("audit verify",    "audit.verify",            ""),
        ("lockdown on",     "lockdown.on",             "--except ada@example.com"),
        ("lockdown off",    "lockdown.off",            ""),
        ("lockdown status", "lockdown.status",         "--json"),
        ("config show",     "configuration.show",      "--origin"),
        ("config explain",  "configuration.explain",   "auth.tokenExpiration"),
        ("config check",    "configuration.check",     "--config users.toml"),
        ("config path",     "configuration.path",      ""),
        ("snippet",         "snippet.snippet",         "systemd >/etc/systemd/system/usersd.service"),
        ("openapi",         "openapi.openapi",         "> openapi.json"),
    ),
}
# fmt: on

GROUPS = {
    "invite": "Invitations: `usersctl invite EMAIL` is short for `usersctl invite send EMAIL`.",
    "group": "Groups of users: create, delete, add and remove members.",
    "factor": "Second factors of users: list, reset.",
    "token": "API tokens and sessions: create, list, revoke.",
    "mail": "Show, send and test emails.",
    "webhook": "Receivers of events: list, show, retry, test.",
    "db": "Create, upgrade, back up, check and move the database.",
    "key": "The key that seals the secrets of authenticator apps.",
    "audit": "Show the audit trail: on a terminal the newest row first, else the oldest.",
    "lockdown": "Close the service in an emergency.",
    "config": "Show, explain and check the configuration.",
}

# The command of a group that is meant where none is named.
DEFAULTS = {"invite": "send"}

# Options that would count as left out if they were empty. Others have checks of their own, or are a search for all.
NEVER_EMPTY = ("app", "socket", "table")

_NO_DOCSTRINGS = "Python has removed the description, because of -OO or PYTHONOPTIMIZE=2."

# The shared options that every command's help shows. `usersctl --help` shows the others, too.
SHARED = ("_config", "_db", "_json", "_quiet", "_no_input")


def build_tree(only: str | None, *, overview: bool) -> typer.Typer:
    columns = _columns()
    codes = ", ".join(f"{code} {code.name.lower().replace('_', ' ')}" for code in ExitCode)
    app = typer.Typer(
        name="usersctl",
        cls=_Root,
        no_args_is_help=True,
        # Boxes and colours on a terminal only: importing Rich takes longer than most commands.
        # In less than 70 columns, boxes would cut off the names of options. A reader of screens speaks their lines.
        rich_markup_mode="rich" if columns >= 70 and os.environ.get("TERM") != "dumb" else None,
        pretty_exceptions_enable=False,
        # Without boxes, Typer would write 50 columns on a terminal that has less.
        context_settings={
            "help_option_names": ["-h", "--help"],
            "terminal_width": max(columns - 2, 28) if 0 < columns < 52 else None,
        },
        epilog=f"Example: usersctl create ada@example.com --admin\n\nExit codes: {codes}.",
    )
    app.callback()(everywhere)
    groups: dict[str, typer.Typer] = {}
    for panel, rows in COMMANDS.items():
        for path, place, words in rows:
            epilog = f"Example: usersctl {path} {words}".rstrip()
            name, _, subcommand = path.partition(" ")
            if only not in (None, name):
                continue
            function = _described(place) if overview else _loaded(place)
            if name not in GROUPS:
                app.command(name, rich_help_panel=panel, epilog=epilog)(function)
                continue
            if name not in groups:
                groups[name] = typer.Typer(
                    cls=_WithDefault,
                    help=GROUPS[name],
                    epilog=epilog,
                    no_args_is_help=subcommand != "",
                    invoke_without_command=subcommand == "",
                )
                app.add_typer(groups[name], name=name, rich_help_panel=panel)
            if subcommand:
                groups[name].command(subcommand, epilog=epilog)(function)
            else:
                groups[name].callback()(function)
    return app


def _columns() -> int:
    """Of the terminal; 0 if stdout is none, and 80 if they are not known."""
    return (os.get_terminal_size(sys.stdout.fileno()).columns or 80) if sys.stdout.isatty() else 0


class _Root(TyperGroup):
    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:  # Typer would drop it, with what it says
            sys.exit(ExitCode.INTERRUPTED)


class _WithDefault(TyperGroup):
    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        default = DEFAULTS.get(self.name or "")
        # Another word is a command that was mistyped, and no address. An empty one is an address that is missing.
        if default and args and args[0] not in ctx.help_option_names and re.search("^-|@|^$", args[0]):
            args = [default, *args]
        return super().parse_args(ctx, args)


def _loaded(place: str) -> Callable[..., None]:
    module, _, function = place.partition(".")
    loaded: Callable[..., None] = getattr(import_module(f"usersctl.cli.{module}"), function)
    return loaded


def _described(place: str) -> Callable[..., None]:
    """A stand-in with the help of a command, which is read from its compiled module without running that."""
    module, _, name = place.partition(".")

    def stand_in() -> None:
        raise NotImplementedError

    stand_in.__doc__ = next(code.co_consts[0] for code in _codes(module) if code.co_name == name)
    return stand_in


@cache
def _codes(module: str) -> list[CodeType]:
    spec: Any = find_spec(f"usersctl.cli.{module}")
    return [code for code in spec.loader.get_code(spec.name).co_consts if isinstance(code, CodeType)]


def everywhere(
    _config: Annotated[
        Path | None, Option("--config", metavar="FILE", help="Configuration: users.toml or users.json.")
    ] = None,
    _db: Annotated[
        Path | None, Option("--db", metavar="PATH", help="The database: a file, or a conninfo.")
    ] = None,
    _json: Annotated[bool, Option("--json", help="JSON on stdout; errors as JSON on stderr.")] = False,
    _quiet: Annotated[bool, Option("--quiet", help="Print nothing but data and errors.")] = False,
    _no_input: Annotated[bool, Option("--no-input", help="Never ask, even on a terminal.")] = False,
    _no_color: Annotated[bool, Option("--no-color", help="No colours, as with NO_COLOR set.")] = False,
    _debug: Annotated[bool, Option("--debug", help="Print the trace of an error.")] = False,
    _version: Annotated[bool, Option("--version", help="Print the version and exit.")] = False,
) -> None:
    """Manage the accounts, sessions and tokens of a users database.

    The options below work before and after the name of a command.
    """
    # `options.take` has removed them from the command line. They are declared here for --help and completion.


@cache
def command_tree(only: str | None = None, *, overview: bool = False) -> TyperGroup:
    """The tree of commands, or of one command or group: describing the others to Typer takes longer than running one.

    Each has the shared options in its help and its completion. An `overview` is for the help of the root alone.
    """
    root = typer.main.get_command(build_tree(only, overview=overview))
    assert isinstance(root, TyperGroup)  # noqa: S101 - it has commands
    shared: list[Any] = [copy(option) for option in root.params if option.name in SHARED]
    for option in shared:
        option.expose_value = False  # `options.take` has removed it from the command line
        option.rich_help_panel = "Everywhere"
    for command in _commands(root):
        for parameter in command.params:
            if parameter.metavar and hasattr(parameter.type, "choices"):
                # In its boxes, Typer would break the choices anywhere. The help of an argument names them.
                parameter.type.get_metavar = lambda **_: ""
            # Typer's check of a file; the commands say it in their words, as of a missing one.
            if hasattr(parameter.type, "readable"):
                parameter.type.readable = False
            if parameter.param_type_name == "argument" or parameter.name in NEVER_EMPTY:
                parameter.callback = _not_empty
        command.params += shared
        # In its boxes, Typer would keep the line ends of the docstring. An overview shows the first sentence.
        command.help = re.sub(r"(?<!\n)\n(?!\n)", " ", command.help or _NO_DOCSTRINGS)
        command.short_help = re.split(r"(?<=\.)\s", command.help, maxsplit=1)[0]
    return root


def _not_empty(_context: Any, parameter: Any, value: Any) -> Any:
    """Most often an unset variable of a script: no command takes it for a file, a user or everything."""
    if "" in (value if isinstance(value, tuple | list) else (value,)):
        name = re.sub(r"[][.]|\|-", "", parameter.human_readable_name)
        if parameter.param_type_name == "option":
            name = parameter.opts[0]
        raise Invalid(f"{name} is empty")
    return value


def _commands(group: TyperGroup) -> list[Any]:
    commands: list[Any] = list(group.commands.values())
    for command in group.commands.values():
        if isinstance(command, TyperGroup):
            commands += _commands(command)
    return commands


def value_options(words: Sequence[str] | None = None) -> Collection[str]:
    """The options with a value of the command that these words run, or of all commands; for `options.take`."""
    tree = command_tree() if words is None else _tree_for(words)
    options = [option for command in _commands(tree) for option in command.params]
    taking = [option for option in options if isinstance(option, TyperOption) and not option.is_flag]
    return {name for option in taking for name in option.opts if name not in VALUES}


def _tree_for(words: Sequence[str]) -> TyperGroup:
    """As much of the tree as this command line needs."""
    names = _first_words()
    if words and words[0] in names:
        return command_tree(words[0])
    return command_tree(overview=not _is_completion() and names.isdisjoint(words))


def _is_completion() -> bool:
    return "_USERSCTL_COMPLETE" in os.environ


def _asks_for_completion(words: Sequence[str]) -> bool:
    return _is_completion() or any(word.endswith("-completion") for word in words)


def _completion(words: Sequence[str]) -> AbstractContextManager[None]:
    if not _asks_for_completion(words):
        return nullcontext()
    from usersctl.cli import completion  # late: it has a part for each shell

    completion.teach_zsh()
    way = os.environ.get("_USERSCTL_COMPLETE", "")
    shells = {
        "complete_bash": completion.bash_words,
        "complete_fish": completion.fish_words,
        "complete_zsh": completion.zsh_words,
    }
    return shells.get(way, nullcontext)()


def _first_words() -> set[str]:
    return {path.partition(" ")[0] for rows in COMMANDS.values() for path, _, _ in rows}


def run_tree(run: Invocation) -> int:
    """Runs the command line and returns its exit code."""
    if run.options.no_color:
        os.environ["NO_COLOR"] = "1"  # for Typer's own help
    if _is_completion():
        os.environ["COLUMNS"] = "10000"  # a description that Typer wraps would be more candidates to fish
    try:
        tree = _tree_for(run.words)
        with _completion(run.words):
            result = tree.main(run.words, prog_name="usersctl", standalone_mode=False, obj=run)
    except SystemExit as ended:
        # Typer makes an exit code of the first, and _Root of the second, which holds what to say.
        if isinstance(ended.__context__, BrokenPipeError | KeyboardInterrupt):
            raise ended.__context__ from None
        raise
    except Abort:  # Ctrl-C or Ctrl-D at a question
        raise KeyboardInterrupt("nothing was done") from None
    except TyperException as error:
        from usersctl.cli.misuse import report_misuse

        report_misuse(run, error, {path for rows in COMMANDS.values() for path, _, _ in rows})
        return ExitCode.MISUSE
    if result == ExitCode.INTERRUPTED:  # Typer returns it after Ctrl-C before the command
        raise KeyboardInterrupt
    # Typer's, in a shell for which it has no completion. A daemon of which a process failed exits so, too.
    if result == ExitCode.BUG and _asks_for_completion(run.words):
        hint = "start one of them, and run the same there"
        raise Invalid("Completion is for bash, zsh, fish and PowerShell", hint=hint)
    return result if isinstance(result, int) else ExitCode.DONE
