"""The tree of commands, and what Typer itself has to refuse."""

import os
import re
import sys
from copy import copy
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup
from typer.exceptions import Abort, TyperException

from usersctl.cli import (
    accounts,
    audit,
    configuration,
    database,
    doctor,
    healthcheck,
    lockdown,
    mail,
    openapi,
    serve,
    snippet,
    tokens,
    transfer,
    why,
)
from usersctl.cli.invocation import Invocation
from usersctl.cli.show.output import INTERRUPTED

# What is asked for less often, `usersctl --help` tells.
SHARED = ("_config", "_db", "_json", "_quiet", "_no_input")


def build_tree(*, no_color: bool = False) -> typer.Typer:
    if no_color:
        os.environ["NO_COLOR"] = "1"  # for Typer's own help
    # Boxes and colours only where somebody looks; importing them takes longer than most commands.
    app = typer.Typer(
        name="usersctl",
        no_args_is_help=True,
        rich_markup_mode="rich" if sys.stdout.isatty() else None,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
        epilog="Example: usersctl create ada@example.com --admin",
    )
    app.callback()(everywhere)
    for topic in (
        accounts,
        why,
        tokens,
        transfer,
        mail,
        serve,
        doctor,
        healthcheck,
        database,
        audit,
        lockdown,
        configuration,
        snippet,
        openapi,
    ):
        topic.register(app)
    return app


def everywhere(
    _config: Annotated[
        Path | None, typer.Option("--config", metavar="FILE", help="Configuration: users.toml or users.json.")
    ] = None,
    _db: Annotated[Path | None, typer.Option("--db", metavar="PATH", help="The database file.")] = None,
    _json: Annotated[bool, typer.Option("--json", help="JSON on stdout; errors as JSON on stderr.")] = False,
    _quiet: Annotated[bool, typer.Option("--quiet", help="Print nothing but data and errors.")] = False,
    _no_input: Annotated[bool, typer.Option("--no-input", help="Never ask, even at a terminal.")] = False,
    _no_color: Annotated[bool, typer.Option("--no-color", help="No colours (as with NO_COLOR set).")] = False,
    _debug: Annotated[bool, typer.Option("--debug", help="Show the trace of an error.")] = False,
    _version: Annotated[bool, typer.Option("--version", help="Show the version and exit.")] = False,
) -> None:
    """Accounts, sessions and tokens of a users database.

    The options below may stand before or after the name of a command.
    """
    # cli.options has taken them from the command line by now: here they are for --help and for completion.


def command_tree(*, no_color: bool = False) -> TyperGroup:
    """The tree with the options for everywhere in the help, and in the completion, of every command."""
    root = typer.main.get_command(build_tree(no_color=no_color))
    assert isinstance(root, TyperGroup)  # noqa: S101 - it has commands
    shared = [_shared(option) for option in root.params if option.name in SHARED]
    groups = [root]
    for group in groups:
        groups += (each for each in group.commands.values() if isinstance(each, TyperGroup))
        for each in group.commands.values():
            each.params += shared
            # Where it draws boxes, Typer would keep the line ends of our sources.
            each.help = re.sub(r"(?<!\n)\n(?!\n)", " ", each.help) if each.help else None
    return root


def _shared(option: Any) -> Any:
    copied = copy(option)
    copied.expose_value = False  # taken from the command line by now
    copied.rich_help_panel = "Everywhere"
    return copied


def run_tree(run: Invocation, words: list[str]) -> int:
    """The exit code of one command line."""
    try:
        result = command_tree(no_color=run.options.no_color).main(
            words, prog_name="usersctl", standalone_mode=False, obj=run
        )
    except SystemExit as ended:
        if isinstance(ended.__context__, BrokenPipeError):  # Typer's word for it is a plain 1
            raise ended.__context__ from None
        raise
    except Abort:  # Ctrl-C or Ctrl-D at a question
        raise KeyboardInterrupt("nothing was done") from None
    except TyperException as refused:
        ctx = getattr(refused, "ctx", None)
        path = ctx.command_path if ctx is not None else "usersctl"
        if type(refused).__name__ == "NoArgsIsHelpError":
            # Nothing was asked: the help is the answer, and Typer has printed it where it draws boxes.
            print(refused.format_message(), file=sys.stderr)
        else:
            said = refused.format_message()  # which names the option
            said = said.replace("a valid int range", "a whole number").replace(
                "a valid float range", "a number"
            )
            run.out.error(TyperException(said), code="usage", hint=f"see: {path} --help")
        return 2
    if result == INTERRUPTED:  # Typer's word for it
        raise KeyboardInterrupt
    return result if isinstance(result, int) else 0
