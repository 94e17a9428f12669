"""cleanup-tokens, and the tokens of API clients."""

from datetime import timedelta
from typing import Annotated, Any

import typer

from usersctl.cli.durations import span
from usersctl.cli.questions import UserArgument, complete_user, invocation, one_user, users
from usersctl.errors import Invalid, NotFound
from usersctl.fields import normal_name
from usersctl.models import Session
from usersctl.text import counted

PANEL = "Sessions and tokens"
COLUMNS = ("id", "user_id", "kind", "name", "created_at", "last_used_at", "expires_at", "ip", "user_agent")


def register(app: typer.Typer) -> None:
    app.command(
        "cleanup-tokens", rich_help_panel=PANEL, epilog="Example: 0 2 * * *  usersctl cleanup-tokens --quiet"
    )(cleanup_tokens)
    token = typer.Typer(
        no_args_is_help=True,
        help="Sessions and API tokens.",
        epilog="Example: usersctl token create ci@example.com --name backup --expires 90d",
    )
    for name, command, example in (
        ("create", create, "usersctl token create ci@example.com --name backup --expires 90d"),
        ("list", list_, "usersctl token list ada@example.com"),
        ("revoke", revoke, "usersctl token revoke ada@example.com"),
    ):
        token.command(name, epilog=f"Example: {example}")(command)
    app.add_typer(token, name="token", rich_help_panel=PANEL)


def cleanup_tokens(
    ctx: typer.Context,
    include_no_expiration: Annotated[
        bool, typer.Option("--include-no-expiration", help="Also remove tokens that never expire.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Count what would be removed.")] = False,
) -> None:
    """Remove expired tokens. Made for cron; safe to run at any time, also while the daemon serves."""
    run = invocation(ctx)
    service = run.service(write=not dry_run)
    if dry_run:
        done = service.sessions.stale(include_no_expiration=include_no_expiration)
    else:
        with run.out.progress("Removing tokens") as draw:
            done = service.sessions.cleanup(
                include_no_expiration=include_no_expiration, by=run.actor, progress=draw
            )
    told = f"{'Would remove' if dry_run else 'Removed'} {counted(done.expired, 'expired token')}"
    if include_no_expiration:
        told += f" and {done.no_expiration} without an expiry date"
    run.out.result(told, done.as_json())


def create(
    ctx: typer.Context,
    user: UserArgument,
    name: Annotated[str, typer.Option(metavar="TEXT", help="What the token is for.")] = "api",
    expires: Annotated[str | None, typer.Option(metavar="SPAN", help="When it ends: 12h, 90d, 1y.")] = None,
    no_expiry: Annotated[bool, typer.Option("--no-expiry", help="It never ends by itself.")] = False,
) -> None:
    """Make a token for an API client. It is shown once, alone on stdout."""
    run = invocation(ctx)
    if no_expiry == (expires is not None):
        raise Invalid("Say when the token ends: either --expires SPAN or --no-expiry")
    lifetime: timedelta | None = span(expires) if expires is not None else None
    name = normal_name(name)
    service = run.service()
    found = one_user(service, user)
    made = service.sessions.create_api_token(
        found.id,
        name=name,
        lifetime=lifetime,
        tell=lambda made: run.out.secret(made.token, _as_json(made.session) | {"token": made.token}),
        by=run.actor,
    )
    if not run.out.json:
        run.out.note(
            f"Token {made.session.id} for {found.email}, expires: {made.session.expires_at or 'never'}"
        )
        run.out.note("Send it as `Authorization: Bearer TOKEN`. It is not shown again.")


def list_(
    ctx: typer.Context,
    user: Annotated[
        str | None,
        typer.Argument(
            metavar="[USER]", help="Only this user's: id or e-mail address.", autocompletion=complete_user
        ),
    ] = None,
) -> None:
    """List sessions and API tokens that are in force."""
    run = invocation(ctx)
    service = run.service(write=False)
    listed = service.sessions.listed(one_user(service, user).id if user is not None else None)
    if run.out.json:
        run.out.write_json([_as_json(each) for each in listed])
        return
    run.out.table(COLUMNS, ([getattr(each, name) for name in COLUMNS] for each in listed), empty="No tokens.")


def revoke(
    ctx: typer.Context,
    user: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[USER]...",
            help="Ids or e-mail addresses; - reads them from standard input.",
            autocompletion=complete_user,
        ),
    ] = None,
    token_id: Annotated[int | None, typer.Option("--id", metavar="N", help="One token, by its id.")] = None,
) -> None:
    """End all sessions and tokens of users, or one token by its id. In force at the next request."""
    run = invocation(ctx)
    if (token_id is None) == (not user):
        raise Invalid("Name users, or one token with --id N")
    service = run.service()
    if token_id is not None:
        try:
            if not 0 < token_id < 2**63:  # SQLite's integers end there
                raise NotFound("Session not found")
            ended = service.sessions.revoke(token_id, by=run.actor)
        except NotFound as error:
            raise NotFound(str(error), hint="see: usersctl token list USER") from None
        run.out.result(f"Revoked token {ended.id} of user {ended.user_id}", {"revoked": 1})
        return
    found = users(service, user or [])
    counts = service.sessions.revoke_all([each.id for each in found], by=run.actor)
    lines = [f"Revoked {count} of {each.email}" for each, count in zip(found, counts, strict=True)]
    run.out.result("\n".join(lines) or "No users given; nothing to do", {"revoked": sum(counts)})


def _as_json(session: Session) -> dict[str, Any]:
    return {name: getattr(session, name) for name in COLUMNS}
