"""The questions asked at a terminal, passwords and confirmations, and the options that answer them."""

import sys
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Annotated

import typer
from typer import Option

from usersctl.cli.invocation import Invocation
from usersctl.cli.show.cells import clean
from usersctl.config.sources import read_secret
from usersctl.errors import ConfigError, Forbidden, Invalid
from usersctl.models import Newcomer, User
from usersctl.named import NamedTuple

MOST = 1_000_000  # bytes that are read as a password, so that /dev/zero by mistake does not fill the memory

PasswordStdin = Annotated[bool, Option("--password-stdin", help="Read the password from standard input.")]
PasswordFile = Annotated[
    Path | None, Option("--password-file", metavar="FILE", help="Read the password from a file.")
]
Generate = Annotated[bool, Option("--generate", help="Generate a password and print it, alone, on stdout.")]
Yes = Annotated[bool, Option("--yes", help="Do not ask for confirmation.")]


def refuse_both_from_stdin(user: str, *, password_stdin: bool) -> None:
    """Otherwise the password would be looked up as a user, and printed in the error."""
    if user == "-" and password_stdin:
        hint = "name the USER, or give the password with --password-file FILE"
        raise Invalid("Standard input cannot be both the user and the password", hint=hint)


class NewPassword(NamedTuple):
    run: Invocation
    text: str
    generated: bool

    def __repr__(self) -> str:
        return "<NewPassword>"

    def show(self, user: User) -> None:
        """Prints a generated password. Called before the commit."""
        if self.generated:
            self.run.out.secret(self.text, user.as_json() | {"password": self.text})

    def report(self, sentence: str, user: User) -> None:
        if not self.generated:
            self.run.out.result(sentence, user.as_json())
        elif not self.run.out.json:
            self.run.out.note(sentence)  # the password stands alone on stdout


def new_password(
    run: Invocation, owner: User | Newcomer, *, stdin: bool, file: Path | None, generate: bool
) -> NewPassword:
    """From one of the three sources, or else from a prompt, which repeats while the rules refuse the password."""
    if stdin + (file is not None) + generate > 1:
        raise Invalid("Choose one of --password-stdin, --password-file and --generate")
    if generate:
        from usersctl import secrets  # late: it imports hashing

        text = secrets.new_password(max(20, run.loaded.settings.min_length))
    elif stdin:
        text = _from_stdin()
    elif file is not None:
        try:
            text = read_secret(file, "--password-file")
        except ConfigError as error:
            raise Invalid(str(error)) from None
    else:
        return NewPassword(run, _asked(run, owner), generated=False)
    _check(run, text, owner)
    return NewPassword(run, text, generated=generate)


def _check(run: Invocation, password: str, owner: User | Newcomer) -> None:
    from usersctl.passwords import check_password  # late: hardly a command asks for a password

    check_password(run.loaded.settings, password, owner)


def _from_stdin() -> str:
    raw = sys.stdin.buffer.read(MOST)
    try:
        text = raw.decode("utf-8-sig")  # Windows writes a mark of UTF-8 first
    except UnicodeDecodeError:
        raise Invalid("The password on standard input is not UTF-8") from None
    return text.removesuffix("\n").removesuffix("\r")


def _asked(run: Invocation, owner: User | Newcomer) -> str:
    if not run.may_ask:
        hint = "use --password-stdin, --password-file FILE or --generate"
        raise Invalid("No password, and no terminal to ask on", hint=hint)
    for _ in range(3):
        first = _hidden(f"Password for {clean(owner.email)}")
        try:
            _check(run, first, owner)
        except Invalid as error:
            run.out.note(str(error))
            continue
        if _hidden("Once more") == first:
            return first
        run.out.note("The two passwords are not the same.")
    raise Invalid("No password after three tries; nothing was done")


def _hidden(prompt: str) -> str:
    """Hidden also after Ctrl-Z and `fg`: the shell has switched the echo on meanwhile, and getpass switches it off once."""
    import signal
    import termios

    def hide_again(_number: int, _frame: FrameType | None) -> None:
        with suppress(termios.error):  # in the background it stops again
            mode = termios.tcgetattr(sys.stdin)
            mode[3] &= ~termios.ECHO
            termios.tcsetattr(sys.stdin, termios.TCSAFLUSH, mode)
            print(f"{prompt}: ", end="", file=sys.stderr, flush=True)

    before = signal.signal(signal.SIGCONT, hide_again)
    try:
        text: str = typer.prompt(prompt, hide_input=True, err=True)
    finally:
        signal.signal(signal.SIGCONT, before)
    return text


def confirm(run: Invocation, question: str, *, yes: bool) -> None:
    if yes:
        return
    if not run.may_ask:
        raise Forbidden(f"{question} Nothing was done", hint="confirm with --yes")
    if not is_yes(question):
        raise Forbidden("Declined; nothing was done")


def is_yes(question: str) -> bool:
    """Asks until the answer is yes or no; Enter alone is no."""
    while True:
        try:
            answer = typer.prompt(f"{clean(question)} [y/N]", default="", show_default=False, err=True)
        except typer.Abort:
            print(file=sys.stderr)  # ends the line, as Typer does at a hidden prompt
            raise
        answer = answer.strip().lower()
        if answer in ("y", "yes", "n", "no", ""):
            return answer in ("y", "yes")
        print("usersctl: answer y or n", file=sys.stderr)
