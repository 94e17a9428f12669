"""What a command line that is wrong is told: one line, and what to type instead."""

import re
import sys
from collections.abc import Collection, Sequence

from typer.exceptions import TyperException

from usersctl.cli.guesses import command_for, hint_at_stray_words, option_for, unquoted
from usersctl.cli.invocation import Invocation
from usersctl.text import did_you_mean

ONLY_IN_THE_HELP_OF_ALL = ("--no-color", "--debug", "--version")


def report_misuse(run: Invocation, error: TyperException, paths: Collection[str]) -> None:
    """`paths`: of all commands, such as `token create`."""
    is_help = type(error).__name__ == "NoArgsIsHelpError"
    if is_help and not run.out.json:
        print(error.format_message(), file=sys.stderr)  # the help; empty if Typer has drawn it in boxes
        return
    context = getattr(error, "ctx", None)
    path = getattr(context, "command_path", "") or f"usersctl {_path_of(run.words, paths)}".rstrip()
    message = "Missing command" if is_help else _in_our_words(error.format_message())  # it names the option
    names = {path.partition(" ")[0] for path in paths}
    known = (
        {option for parameter in context.command.params for option in parameter.opts} if context else set()
    )
    command, hint = path.removeprefix("usersctl").strip(), None
    if message.startswith("No such command"):
        if meant := command_for(run.words, names):
            message, hint = message.partition(". ")[0].rstrip("."), f"use: usersctl {meant}"
        else:
            hint = unquoted(run.words)
    elif message.startswith("No such option"):
        option = getattr(error, "option_name", "")
        named = next((word for word in run.words if word in names), None)
        if meant := option_for(option, command, {*known, *ONLY_IN_THE_HELP_OF_ALL}):
            hint = f"use: {meant}"
        elif not command and named and not getattr(error, "possibilities", None):
            hint = f"an option of a command stands behind its name; see: usersctl {named} --help"
        message = f"No such option: {option}" if hint else message
    elif stray := re.match(r"Unexpected arguments?: (?!''$)(.*)", message, re.DOTALL):
        hint = hint_at_stray_words(stray[1].split(), command, known, run.words)
    elif choice := re.search(r"'([^']*)' is not one of (.*)\.$", message, re.DOTALL):
        hint = did_you_mean(choice[1].lower(), re.findall("'(.*?)'", choice[2]))
    # Our own messages have no full stop.
    run.out.error(TyperException(message.rstrip(".")), code="usage", hint=hint or f"see: {path} --help")


def _path_of(words: Sequence[str], paths: Collection[str]) -> str:
    """Typer does not say which command lacks the value of an option."""
    return next((path for path in (" ".join(words[:2]), *words[:1]) if path in paths), "")


def _in_our_words(message: str) -> str:
    """Typer's sentences, of which some speak of types, of a plural that may be one, and of brackets."""
    message = message.replace("\n\t", " ")  # choices stand one a line
    for typers_words, ours in (("int", "a whole number"), ("float", "a number")):
        message = re.sub(rf"a valid {typers_words}( range)?\b", ours, message)
    message = re.sub(r"^(Invalid value for|Missing argument) '\[([^\]]+)\]'", r"\1 '\2'", message)
    stray = re.fullmatch(r"Got unexpected extra argument\(s\) \((.*)\)", message, re.DOTALL)
    if stray:
        words = stray[1].strip() or "''"  # most often an unset variable of a script
        message = f"Unexpected argument{'s' * (' ' in words)}: {words}"
    return message
