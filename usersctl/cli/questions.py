"""What a command asks of a person at a terminal, and where it gets the same without one."""

import os
import sys
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from usersctl.cli.invocation import Invocation
from usersctl.cli.show.output import clean
from usersctl.config.sources import read_secret
from usersctl.errors import ConfigError, Forbidden, Invalid, NotFound
from usersctl.models import User

if TYPE_CHECKING:
    from usersctl.service import Service

MOST = 1_000_000  # of what is read as a password: enough for any, not for a disk by mistake
LONGEST_USER = 1000  # characters of a line that names a user

PasswordStdin = Annotated[
    bool, typer.Option("--password-stdin", help="Read the password from standard input.")
]
PasswordFile = Annotated[
    Path | None, typer.Option("--password-file", metavar="FILE", help="Read the password from a file.")
]
Generate = Annotated[bool, typer.Option("--generate", help="Make a password and print it, alone, on stdout.")]
Yes = Annotated[bool, typer.Option("--yes", help="Do not ask.")]


def complete_user(incomplete: str) -> list[str]:
    """Addresses that begin so; whatever is wrong with the database, completion stays silent."""
    import shlex

    from usersctl.cli.options import take
    from usersctl.models import UserFilter

    run = None
    try:
        # What was typed so far, by its name in bash and in the other shells: it may say which database is meant.
        typed = os.environ.get("COMP_WORDS") or os.environ.get("_TYPER_COMPLETE_ARGS", "")
        run = Invocation(take(shlex.split(typed))[0])
        with run.service(write=False).accounts.all(UserFilter(search=incomplete, sort="email")) as found:
            return list(islice((user.email for user in found if user.email.startswith(incomplete)), 50))
    except Exception:  # noqa: BLE001 - a shell is waiting
        return []
    finally:
        if run is not None:
            run.close()


UserArgument = Annotated[
    str, typer.Argument(metavar="USER", help="Id or e-mail address.", autocompletion=complete_user)
]
UserArguments = Annotated[
    list[str],
    typer.Argument(
        metavar="USER...",
        help="Ids or e-mail addresses; - reads them from standard input.",
        autocompletion=complete_user,
    ),
]


def invocation(ctx: typer.Context) -> Invocation:
    found: Invocation = ctx.obj
    return found


def users(service: "Service", references: Iterable[str], *, if_exists: bool = False) -> list[User]:
    """Each of them once. One that is unknown stops the command before anything is done."""
    found: dict[int, User] = {}
    for reference in _expanded(references):
        try:
            user = service.accounts.find(reference)
        except NotFound:
            if not if_exists:
                raise
        else:
            found.setdefault(user.id, user)
    return list(found.values())


def one_user(service: "Service", reference: str) -> User:
    return service.accounts.find(one_reference(reference))


def one_reference(reference: str) -> str:
    """Of a user, who need not be there."""
    found = list(islice(_expanded([reference]), 2))
    if len(found) != 1:
        raise Invalid(f"Expected one user on standard input, got {'more' if found else 'none'}")
    return found[0]


def _expanded(references: Iterable[str]) -> Iterator[str]:
    for reference in references:
        if reference != "-":
            yield reference
            continue
        from usersctl.transfer.rows import lines  # late, with the formats of files that it brings

        try:
            yield from (word for line in lines(sys.stdin, LONGEST_USER) if (word := line.strip()))
        except Invalid as error:
            raise Invalid(f"A line on standard input is {error}, and no user") from None


def refuse_both_from_stdin(user: str, *, password_stdin: bool) -> None:
    """Before anything is read: what is meant as a password would be looked for as a user, and told."""
    if user == "-" and password_stdin:
        raise Invalid(
            "Standard input cannot be both the user and the password",
            hint="name the USER, or give the password with --password-file FILE",
        )


def password(
    run: Invocation,
    *,
    of: str,
    stdin: bool,
    file: Path | None,
    generate: bool,
    check: Callable[[str], object],
) -> str:
    """From one of the three sources, else asked twice of a person, who is told at once what is wrong with it."""
    if stdin + (file is not None) + generate > 1:
        raise Invalid("Choose one of --password-stdin, --password-file and --generate")
    if generate:
        from usersctl.secrets import new_password  # late, with the cryptography that it brings

        return new_password(max(20, run.loaded.settings.min_length))
    if stdin:
        return _from_stdin()
    if file is not None:
        try:
            return read_secret(file, "--password-file")
        except ConfigError as error:
            raise Invalid(str(error)) from None
    if not run.may_ask:
        raise Invalid(
            "No password, and no terminal to ask at",
            hint="give it with --password-stdin or --password-file FILE, or let --generate make one",
        )
    return _asked(run, of, check)


def _from_stdin() -> str:
    raw = sys.stdin.buffer.read(MOST)
    try:
        text = raw.decode()
    except UnicodeDecodeError:
        raise Invalid("The password on standard input is not UTF-8") from None
    return text.removesuffix("\n").removesuffix("\r")


def _asked(run: Invocation, of: str, check: Callable[[str], object]) -> str:
    for _ in range(3):
        first: str = typer.prompt(f"Password for {clean(of)}", hide_input=True, err=True)
        try:
            check(first)
        except Invalid as error:
            run.out.note(str(error))
            continue
        if typer.prompt("Once more", hide_input=True, err=True) == first:
            return first
        run.out.note("The two are not the same.")
    raise Invalid("No password after three tries; nothing was done")


def confirm(run: Invocation, question: str, *, yes: bool) -> None:
    if yes:
        return
    if not run.may_ask:
        raise Forbidden(
            f"{question} Nothing was done", hint="without a terminal to ask at, say so with --yes"
        )
    try:
        agreed = typer.confirm(clean(question), err=True)
    except typer.Abort:
        print(file=sys.stderr)  # as Typer does behind what is typed unseen
        raise
    if not agreed:
        raise Forbidden("Declined; nothing was done")
