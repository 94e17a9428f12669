"""The users and groups that a command names: the arguments, their completion, and the accounts that they stand for."""

import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from itertools import islice
from typing import TYPE_CHECKING, Annotated

from typer import Argument

from usersctl.cli.invocation import Invocation
from usersctl.errors import Invalid, NotFound
from usersctl.models import User, UserFilter, UserState
from usersctl.text import listed

if TYPE_CHECKING:
    from typing import Protocol

    from usersctl.service import Service

    class Named(Protocol):
        """What has a name: a group, a provider, a webhook."""

        @property
        def name(self) -> str: ...


LONGEST_USER = 1000  # characters of a line that names a user
NAMED = 10  # unknown users in a message
SHOWN_OF_EACH = 100  # characters: it may be a row of a table
_SEPARATORS = re.compile(r"[\s,;]")  # no id and no address has them


def complete_user(incomplete: str) -> list[str]:
    """Known addresses that begin with these characters."""
    return _completed(incomplete, lambda user: (user.email,))


def complete_called(incomplete: str) -> list[str]:
    """Known and claimed addresses that begin with these characters."""
    return _completed(incomplete, lambda user: (user.email, user.claimed_email or ""))


def complete_invited(incomplete: str) -> list[str]:
    """Addresses of open invitations that begin with these characters."""
    return _completed(incomplete, lambda user: (user.email,), UserState.INVITED)


def complete_actor(incomplete: str) -> list[str]:
    """Known addresses, and the actors that are no user."""
    others = [name for name in ("anonymous", "system") if name.startswith(incomplete)]
    return [*others, *complete_user(incomplete)]


def complete_provider(incomplete: str) -> list[str]:
    """Configured identity providers that begin with these characters."""
    return _completed_by(lambda service: _beginning(incomplete, service.settings.described_providers))


def complete_webhook(incomplete: str) -> list[str]:
    """Configured webhooks that begin with these characters."""
    return _completed_by(lambda service: _beginning(incomplete, service.settings.webhooks))


def _beginning(incomplete: str, named: "Iterable[Named]") -> list[str]:
    return [each.name for each in named if each.name.startswith(incomplete)]


def complete_group(incomplete: str) -> list[str]:
    """Groups that begin with these characters."""
    return _completed_by(lambda service: _beginning(incomplete, service.groups.all()))


def _completed(
    incomplete: str, addresses_of: Callable[[User], tuple[str, ...]], state: UserState | None = None
) -> list[str]:
    def known(service: "Service") -> list[str]:
        with service.accounts.all(UserFilter(search=incomplete, sort="email", state=state)) as accounts:
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
UserArgument = Annotated[
    str, Argument(metavar="USER", help="Id or email address.", autocompletion=complete_user)
]
# For commands that only read: they find a user by a claimed address, too.
ReadUserArgument = Annotated[
    str, Argument(metavar="USER", help="Id or email address.", autocompletion=complete_called)
]
UserArguments = Annotated[
    list[str], Argument(metavar="USER...", help=USERS_HELP, autocompletion=complete_user)
]
InvitedArguments = Annotated[
    list[str], Argument(metavar="USER...", help=USERS_HELP, autocompletion=complete_invited)
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
    if unknown:
        raise _none_of(unknown)
    return list(accounts.values())


def _none_of(unknown: dict[str, NotFound]) -> NotFound:
    has_several = any(map(_SEPARATORS.search, unknown))
    if len(unknown) == 1 and not has_several:
        return next(iter(unknown.values()))
    hint = "look for them with: usersctl list --search TEXT"
    if has_several:
        hint = (
            "name users one by one, with a blank between them; on standard input, one a line and nothing else"
        )
    named = [f"{each[:SHOWN_OF_EACH]!r}{'…' * (len(each) > SHOWN_OF_EACH)}" for each in unknown]
    return NotFound(f"No user{'s' * (len(unknown) > 1)} {listed(named, NAMED)}", hint=hint)


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
