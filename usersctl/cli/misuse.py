"""What a command line that is wrong is told: one line, and what to type instead."""

import re
import sys
from collections.abc import Collection, Sequence

from typer.exceptions import TyperException

from usersctl.cli.guesses import command_for, hint_at_stray_words, option_for, unquoted
from usersctl.cli.invocation import Invocation
from usersctl.text import did_you_mean

OF_EVERY_COMMAND = ("--no-color", "--debug", "--version")  # and left out of its help


def report_misuse(run: Invocation, error: TyperException, paths: Collection[str]) -> None:
    """`paths`: of all commands, such as `token create`."""
    is_help = type(error).__name__ == "NoArgsIsHelpError"
    if is_help and not run.out.json:
        print(error.format_message(), file=sys.stderr)  # the help; empty if Typer has drawn it in boxes
        return
    context = getattr(error, "ctx", None)
    path = getattr(context, "command_path", "") or f"usersctl {_path_of(run.words, paths)}".rstrip()
    message, hint = "Missing command", None
    if not is_help:
        options = (
            [option for parameter in context.command.params for option in parameter.opts] if context else []
        )
        command = path.removeprefix("usersctl").strip()
        message, hint = _told(error, run.words, command, options, {path.partition(" ")[0] for path in paths})
    # Our own messages have no full stop.
    run.out.error(TyperException(message.rstrip(".")), code="usage", hint=hint or f"see: {path} --help")


def _told(
    error: TyperException,
    words: Sequence[str],
    command: str,
    options: Collection[str],
    names: Collection[str],
) -> tuple[str, str | None]:
    """The message, and what to type instead. `options`: of the command; `names`: of all commands and groups of them."""
    message = _in_our_words(error.format_message())  # it names the option
    if message.startswith("No such command"):
        if meant := command_for(words, names):
            return message.partition(". ")[0], f"use: usersctl {meant}"
        return message, unquoted(words)
    if message.startswith("No such option"):
        option, hint = getattr(error, "option_name", ""), None
        named = next((word for word in words if word in names), None)
        if meant := option_for(option, command, {*options, *OF_EVERY_COMMAND}):
            hint = f"use: {meant}"
        elif not command and named and not getattr(error, "possibilities", None):
            hint = f"an option of a command stands behind its name; see: usersctl {named} --help"
        return f"No such option: {option}" if hint else message, hint
    if stray := re.match(r"Unexpected arguments?: (?!''$)(.*)", message, re.DOTALL):
        return message, hint_at_stray_words(stray[1].split(), command, options, words)
    if choice := re.search(r"'([^']*)' is not one of (.*)\.$", message, re.DOTALL):
        return message, did_you_mean(choice[1].lower(), re.findall("'(.*?)'", choice[2]))
    return message, None


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
