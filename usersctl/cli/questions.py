"""Arguments that several commands share, and the questions asked at a terminal: passwords and confirmations."""

import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Argument, Option

from usersctl.cli.invocation import Invocation
from usersctl.cli.show.cells import clean
from usersctl.config.sources import read_secret
from usersctl.errors import ConfigError, Forbidden, Invalid, NotFound
from usersctl.models import Newcomer, User, UserFilter
from usersctl.named import NamedTuple
from usersctl.text import listed

if TYPE_CHECKING:
    from usersctl.service import Service

MOST = 1_000_000  # bytes that are read as a password, so that /dev/zero by mistake does not fill the memory
LONGEST_USER = 1000  # characters of a line that names a user
NAMED = 10  # unknown users in a message

PasswordStdin = Annotated[bool, Option("--password-stdin", help="Read the password from standard input.")]
PasswordFile = Annotated[
    Path | None, Option("--password-file", metavar="FILE", help="Read the password from a file.")
]
Generate = Annotated[bool, Option("--generate", help="Generate a password and print it, alone, on stdout.")]
Yes = Annotated[bool, Option("--yes", help="Do not ask for confirmation.")]


def complete_user(incomplete: str) -> list[str]:
    """Known addresses that begin with these characters."""
    return _completed(incomplete, lambda user: (user.email,))


def complete_called(incomplete: str) -> list[str]:
    """Known and claimed addresses that begin with these characters."""
    return _completed(incomplete, lambda user: (user.email, user.claimed_email or ""))


def complete_group(incomplete: str) -> list[str]:
    """Groups that begin with these characters."""
    return _completed_by(
        lambda service: [group.name for group in service.groups.all() if group.name.startswith(incomplete)]
    )


def _completed(incomplete: str, addresses_of: Callable[[User], tuple[str, ...]]) -> list[str]:
    def known(service: "Service") -> list[str]:
        with service.accounts.all(UserFilter(search=incomplete, sort="email")) as accounts:
            addresses = (address for user in accounts for address in addresses_of(user) if address)
            return list(islice((address for address in addresses if address.startswith(incomplete)), 50))

    return _completed_by(known)


def _completed_by(words: "Callable[[Service], list[str]]") -> list[str]:
    """Errors stay silent, because the shell shows no messages."""
    run = None
    try:
        # The command line so far, in bash and in other shells: it may name the database.
        typed = os.environ.get("COMP_WORDS") or os.environ.get("_TYPER_COMPLETE_ARGS", "")
        run = Invocation(_split(typed))
        return words(run.service(write=False))[:50]
    except Exception:  # noqa: BLE001 - completion never fails
        return []
    finally:
        if run is not None:
            run.close()


def _split(line: str) -> list[str]:
    """The words of a command line, of which the last may have an open quote."""
    import shlex

    for end in ("", "'"):
        with suppress(ValueError):
            return shlex.split(line + end)
    return shlex.split(line + '"')


USERS_HELP = "Ids or email addresses; - reads them from standard input."
UserArgument = Annotated[str, Argument(metavar="USER", help="Id or address.", autocompletion=complete_user)]
# For commands that only read: they find a user by a claimed address, too.
ReadUserArgument = Annotated[
    str, Argument(metavar="USER", help="Id or address.", autocompletion=complete_called)
]
UserArguments = Annotated[
    list[str], Argument(metavar="USER...", help=USERS_HELP, autocompletion=complete_user)
]


def users(service: "Service", references: Iterable[str], *, if_exists: bool = False) -> list[User]:
    """Every user once. Unknown ones stop the command before it changes anything."""
    accounts: dict[int, User] = {}
    unknown: dict[str, NotFound] = {}
    for reference in expanded(references):
        try:
            user = service.accounts.find(reference)
        except NotFound as problem:
            if not if_exists:
                unknown[reference] = problem
            if len(unknown) > NAMED:  # perhaps the words of another file
                break
        else:
            accounts.setdefault(user.id, user)
    if len(unknown) == 1:
        raise next(iter(unknown.values()))
    if unknown:
        hint = "look for them with: usersctl list --search TEXT"
        raise NotFound(f"No users {listed([*map(repr, unknown)], NAMED)}", hint=hint)
    return list(accounts.values())


def one_user(service: "Service", reference: str, *, also_claimed: bool = False) -> User:
    return service.accounts.find(one_reference(reference), also_claimed=also_claimed)


def one_reference(reference: str) -> str:
    """The id or address of a user, who need not exist."""
    references = list(islice(expanded([reference]), 2))
    if len(references) == 1:
        return references[0]
    raise Invalid(f"Expected one user on standard input, got {'more' if references else 'none'}")


def expanded(references: Iterable[str]) -> Iterator[str]:
    for reference in references:
        if reference != "-":
            yield reference
            continue
        from usersctl.transfer.rows import lines  # late: most commands read none

        try:
            for line in lines(sys.stdin, LONGEST_USER):
                if word := line.removeprefix("\ufeff").strip():  # the mark of UTF-8 that Windows writes
                    yield word
        except Invalid as error:
            raise Invalid(f"A line on standard input is {error}, and not a user") from None


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
