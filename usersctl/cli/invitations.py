"""invite: accounts that wait for their owners to accept."""

from collections import deque
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Context, Option

from usersctl.cli.arguments import InvitedArguments, complete_group, expanded, users
from usersctl.cli.invocation import Invocation, invocation
from usersctl.cli.show.cells import clean
from usersctl.cli.show.listing import print_json_list
from usersctl.errors import Invalid
from usersctl.models import Role, User

if TYPE_CHECKING:
    from datetime import timedelta

    from usersctl.invitations import Waiting

MOST = 5_000  # people in one transaction, which logins wait for
INVITED = "Invited"
COLUMNS = ("id", "email", "name", "role", "invited_at", "expires_at", "state", "last_email")

Expires = Annotated[str | None, Option(metavar="SPAN", help="How long, from 1h to 90d. Default: 7d.")]
IntoGroups = Annotated[
    list[str] | None,
    Option(
        metavar="GROUP",
        help="A group that the accounts are in. Repeatable.",
        autocompletion=complete_group,
    ),
]


def send(
    ctx: Context,
    email: Annotated[
        list[str] | None,
        Argument(metavar="[EMAIL...]", help="Addresses; - reads them from standard input, one a line."),
    ] = None,
    name: Annotated[
        str | None, Option(metavar="TEXT", help="Full name. Without it the owner has to give one.")
    ] = None,
    role: Annotated[Role | None, Option(help="The role of the accounts. Default: user.")] = None,
    group: IntoGroups = None,
    expires: Expires = None,
    without_password: Annotated[
        bool,
        Option(
            "--without-password",
            help="Instead of addresses: all active accounts that no password, provider or passkey signs in to.",
        ),
    ] = False,
    dry_run: Annotated[
        bool, Option("--dry-run", help="With --without-password: print which accounts would be invited.")
    ] = False,
) -> None:
    """Invite people: all of these addresses, or none.

    Each account exists at once, and is inactive until its owner chooses a password with the link of the email. An address
    that is invited already is invited again, and the link before is dead.
    """
    from usersctl.invitations import guest, lifetime_of

    run = invocation(ctx)
    lifetime = lifetime_of(expires)
    if without_password:
        if email or name is not None or role is not None or group:
            raise Invalid(
                "--without-password is for accounts that exist: only --expires and --dry-run go with it"
            )
        service = run.service(write=not dry_run)
        if dry_run:
            _print(run, "Would invite", ((user, None) for user in service.invitations.without_password()))
        else:
            _report(run, service.invitations.invite_without_password(lifetime, by=run.actor), lifetime)
        return
    if not email:
        raise Invalid("Nobody to invite", hint="give addresses, - for standard input, or --without-password")
    if dry_run:
        raise Invalid("--dry-run goes with --without-password")
    guests = [guest(address, name, role, group) for address in islice(expanded(email), MOST + 1)]
    if len(guests) > MOST:
        raise Invalid(
            f"At most {MOST:,} people are invited at once", hint="split the list, one part a command"
        )
    if name is not None and len(guests) > 1:
        raise Invalid("--name is for one address", hint="invite each person who has a name with a command")
    service = run.service()
    _report(run, service.invitations.invite(guests, lifetime, by=run.actor), lifetime)


def list_(ctx: Context) -> None:
    """List the invitations that were not accepted yet, and what became of their emails."""
    run = invocation(ctx)
    waiting = run.service(write=False).invitations.waiting()
    if run.out.json:
        run.out.write_json([_as_json(invitation) for invitation in waiting])
        return
    rows = ([_as_json(invitation)[column] for column in COLUMNS] for invitation in waiting)
    run.out.table(COLUMNS, rows, empty="No invitations.")


def resend(ctx: Context, user: InvitedArguments, expires: Expires = None) -> None:
    """Invite users again: all of them, or none. The link before is dead.

    Also for active users who have no password: the link lets them set one.
    """
    from usersctl.invitations import lifetime_of

    run = invocation(ctx)
    lifetime = lifetime_of(expires)
    service = run.service()
    ids = [account.id for account in users(service, user)]
    _report(run, service.invitations.again(ids, lifetime, by=run.actor), lifetime)


def revoke(ctx: Context, user: InvitedArguments) -> None:
    """Withdraw invitations: all of them, or none. Their accounts, which were never used, are removed.

    An account that was active before it was invited stays.
    """
    run = invocation(ctx)
    service = run.service()
    ids = [account.id for account in users(service, user)]
    withdrawn = service.invitations.withdraw(ids, by=run.actor)
    lines = [
        f"Withdrawn: {account.email}" + (", whose account stays" if account.active else "")
        for account in withdrawn
    ]
    as_json = [account.as_json() for account in withdrawn]
    run.out.result("\n".join(lines) or "No users given; nothing to do", as_json)


def _report(run: Invocation, invited: Iterable[User], lifetime: "timedelta") -> None:
    from usersctl.invitations import expiry

    _print(run, INVITED, ((account, expiry(account, lifetime)) for account in invited))


def _print(run: Invocation, verb: str, accounts: Iterator[tuple[User, str | None]]) -> None:
    """Each as it comes: a long work that is interrupted has told what it did."""
    try:
        if run.out.json:
            print_json_list(run, (account.as_json() | {"expires_at": until} for account, until in accounts))
        else:
            _print_lines(run, verb, accounts)
    except OSError:
        deque(accounts, maxlen=0)  # a report that cannot be written keeps nobody from being invited
        run.out.is_done = True
        raise
    run.out.is_done = True


def _print_lines(run: Invocation, verb: str, accounts: Iterator[tuple[User, str | None]]) -> None:
    line = ""
    for account, until in accounts:
        line = f"{verb} {account.email} (user {account.id})" + (f", until {until}" if until else "")
        if not run.out.quiet:
            print(clean(line), flush=True)
    if not line:
        run.out.result("Nobody to invite; nothing to do", [])
    elif verb == INVITED:
        run.note_where_invitations_go()


def _as_json(waiting: "Waiting") -> dict[str, Any]:
    user, invitation, has_expired, last_email = waiting
    return user.as_json() | {
        "invited_at": invitation.invited_at,
        "expires_at": invitation.expires_at,
        "state": "expired" if has_expired else "waiting",
        "last_email": last_email,
    }
