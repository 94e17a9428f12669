"""cleanup-tokens and token: removes expired tokens; creates, lists and revokes API tokens."""

from typing import Annotated, Any

from typer import Argument, Context, Option

from usersctl.cli.arguments import USERS_HELP, UserArgument, complete_called, complete_user, one_user, users
from usersctl.cli.invocation import Invocation, invocation
from usersctl.cli.show.cells import in_cell
from usersctl.cli.show.listing import print_json_list
from usersctl.durations import span
from usersctl.errors import Invalid, NotFound
from usersctl.fields import normal_name
from usersctl.models import Session
from usersctl.networks import normal_ranges
from usersctl.scopes import Scope, normal_scopes
from usersctl.text import counted

COLUMNS = ("id", "user_id", "kind", "name", "created_at", "last_used_at", "expires_at", "ip", "user_agent")
LIMITS = ("scopes", "ranges")  # of API tokens


def cleanup_tokens(
    ctx: Context,
    endless: Annotated[
        bool, Option("--include-no-expiration", help="Also remove tokens without an expiry date.")
    ] = False,
    dry_run: Annotated[bool, Option("--dry-run", help="Only count the tokens.")] = False,
) -> None:
    """Remove expired tokens. Made for cron, and safe at any time, also while the daemon runs.

    It also removes accounts that their owners deleted or never confirmed, once their time is over, and emails that were
    finished a week ago.
    """
    run = invocation(ctx)
    service = run.service(write=not dry_run)
    if dry_run:
        cleanup = service.cleaner.stale(include_no_expiration=endless)
    else:
        with run.out.progress("Removing tokens") as draw:
            cleanup = service.cleaner.run(include_no_expiration=endless, by=run.actor, progress=draw)
    verb = "Would remove" if dry_run else "Removed"
    removed = f"{verb} {counted(cleanup.expired, 'expired token')}"
    if endless:
        removed += f" and {cleanup.no_expiration} without an expiry date"
    run.out.result(removed, cleanup.as_json())
    if cleanup.accounts:
        accounts = counted(cleanup.accounts, "account")
        run.out.note(f"Also removed {accounts}, deleted by the owner or never confirmed")


def _complete_scope(incomplete: str) -> list[str]:
    return [scope for scope in Scope if scope.startswith(incomplete)]


def create(
    ctx: Context,
    user: UserArgument,
    name: Annotated[str, Option(metavar="TEXT", help="A name for the token.")] = "api",
    expires: Annotated[str | None, Option(metavar="SPAN", help="Its lifetime: 12h, 90d, 1y.")] = None,
    no_expiry: Annotated[bool, Option("--no-expiry", help="It never expires.")] = False,
    scope: Annotated[
        list[str] | None,
        Option(
            metavar="SCOPE",
            help=f"What it may do, more than once or with commas: {', '.join(Scope)}. All that the user may do, if left out.",
            autocompletion=_complete_scope,
        ),
    ] = None,
    ip: Annotated[
        list[str] | None,
        Option(
            metavar="RANGE",
            help="An address or range that it works from, more than once or with commas. Anywhere, if left out.",
        ),
    ] = None,
) -> None:
    """Create a token for an API client. It is printed once, alone on stdout.

    With --ip it works from these addresses alone; elsewhere it is answered like an unknown token.
    """
    run = invocation(ctx)
    if no_expiry == (expires is not None):
        raise Invalid("Say when the token expires: either --expires SPAN or --no-expiry")
    lifetime = span(expires) if expires is not None else None
    name = normal_name(name)
    scopes = normal_scopes(_parts(scope)) if scope else None
    ranges = normal_ranges(_parts(ip)) if ip else None
    service = run.service()
    account = one_user(service, user)
    created = service.sessions.create_api_token(
        account.id,
        name=name,
        lifetime=lifetime,
        scopes=scopes,
        ranges=ranges,
        tell=lambda new: run.out.secret(new.token, _as_json(new.session) | {"token": new.token}),
        by=run.actor,
    )
    if not run.out.json:
        expires = created.session.expires_at or "never"
        run.out.note(f"Token {created.session.id} for {account.email}, expires: {expires}")
        if scopes or ranges:
            run.out.note(f"Scopes: {scopes or 'all'}; works from: {ranges or 'anywhere'}")
        run.out.note("Send it as `Authorization: Bearer TOKEN`. It is not shown again.")


def list_(
    ctx: Context,
    user: Annotated[
        str | None,
        Argument(metavar="[USER]", help="Only those of this user.", autocompletion=complete_called),
    ] = None,
) -> None:
    """List the sessions and API tokens that have not expired."""
    run = invocation(ctx)
    service = run.service(write=False)
    user_id = one_user(service, user, also_claimed=True).id if user is not None else None
    with service.store.read() as tx:
        rows = (_as_json(session) | {"email": email} for session, email in tx.live_tokens(user_id))
        if run.out.json:
            print_json_list(run, rows)
        elif run.out.terminal:
            _draw(run, list(rows))
        else:
            columns = (*COLUMNS, "email", *LIMITS)
            run.out.table(columns, ([in_cell(row[name]) for name in columns] for row in rows))


def _draw(run: Invocation, rows: list[dict[str, Any]]) -> None:
    from usersctl.cli.show.tables import DAYS, Step

    limits = [name for name in LIMITS if any(row[name] for row in rows)]
    columns = ("id", "user", *COLUMNS[2:], *limits)
    cells = [
        [f"{row['user_id']} {row['email']}" if name == "user" else in_cell(row[name]) for name in columns]
        for row in rows
    ]
    first = (
        DAYS,
        Step("user_agent", 16),
        Step("user", 30),
        Step("user_agent"),
        Step("created_at"),
        Step("ip"),
    )
    last = (
        Step("ranges"),
        Step("scopes", 16),
        Step("name", 12),
        Step("last_used_at"),
        Step("user", 18),
        Step("name"),
        Step("kind"),
    )
    run.out.table(columns, cells, empty="No tokens.", steps=(*first, *last))


def revoke(
    ctx: Context,
    user: Annotated[
        list[str] | None, Argument(metavar="[USER...]", help=USERS_HELP, autocompletion=complete_user)
    ] = None,
    token_ids: Annotated[list[int] | None, Option("--id", metavar="N", help="One token, by its id.")] = None,
) -> None:
    """End all sessions and API tokens of users, or one of them. In force at the next request."""
    run = invocation(ctx)
    if (not token_ids) == (not user):
        raise Invalid("Give users, or one token with --id N")
    if token_ids and len(token_ids) > 1:  # of several, Typer would take the last without a word
        raise Invalid("--id is for one token", hint="revoke each with a command of its own")
    service = run.service()
    if token_ids:
        token_id = token_ids[0]
        try:
            if not 0 < token_id < 2**63:  # a larger number is no integer of SQLite
                raise NotFound("Session not found")
            ended = service.sessions.revoke(token_id, by=run.actor)
        except NotFound:
            raise NotFound(f"No token {token_id}", hint="see: usersctl token list") from None
        run.out.result(f"Revoked token {ended.id} of user {ended.user_id}", {"revoked": 1})
        return
    accounts = users(service, user or [])
    counts = service.sessions.revoke_all([account.id for account in accounts], by=run.actor)
    lines = [
        f"Revoked {counted(count, 'token')} of {account.email}"
        for account, count in zip(accounts, counts, strict=True)
    ]
    run.out.result("\n".join(lines) or "No users given; nothing to do", {"revoked": sum(counts)})
    if accounts and not any(counts) and any(map(str.isdigit, user or ())):
        by_id = run.options.repeated_in("for a token: usersctl token revoke --id N")
        run.out.note(f"A number is the id of a user; {by_id}")


def _as_json(session: Session) -> dict[str, Any]:
    limits = {"scopes": session.scope_names, "ranges": session.range_texts}
    return {name: getattr(session, name) for name in COLUMNS} | limits


def _parts(values: list[str]) -> list[str]:
    return [part.strip() for value in values for part in value.split(",")]
