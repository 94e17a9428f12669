"""The emergency brake: nobody is let in, but for one admin who may be named."""

from typing import TYPE_CHECKING, Annotated

import typer

from usersctl.cli.questions import Yes, complete_user, confirm, invocation, one_user
from usersctl.text import counted

if TYPE_CHECKING:
    from usersctl.models import Lockdown


def register(app: typer.Typer) -> None:
    group = typer.Typer(
        no_args_is_help=True,
        help="The emergency brake: let nobody in.",
        epilog="Example: usersctl lockdown on --except ada@example.com",
    )
    for name, command, example in (
        ("on", on, "usersctl lockdown on --except ada@example.com"),
        ("off", off, "usersctl lockdown off"),
        ("status", status, "usersctl lockdown status --json"),
    ):
        group.command(name, epilog=f"Example: {example}")(command)
    app.add_typer(group, name="lockdown", rich_help_panel="Operation")


def on(
    ctx: typer.Context,
    admin: Annotated[
        str | None,
        typer.Option(
            "--except",
            metavar="ADMIN",
            help="This admin may sign in, with a password or the provider.",
            autocompletion=complete_user,
        ),
    ] = None,
    yes: Yes = False,
) -> None:
    """End all sessions and let nobody in.

    Nobody but the admin of --except signs in, registers or sets a password until `lockdown off`. It holds from the
    next request on, whichever process it reaches. API tokens are kept, and refused meanwhile. This command goes on
    working.
    """
    run = invocation(ctx)
    service = run.service()
    admitted = one_user(service, admin) if admin is not None else None
    before = service.lockdown.state()
    if before is None or before.admitted != admitted:
        who = f"everybody but {admitted.email}" if admitted is not None else "everybody"
        confirm(run, f"End all sessions and close the service to {who}?", yes=yes)
    ended = service.lockdown.start(admitted, by=run.actor)
    now = service.lockdown.state()
    what = "already" if ended is None else f"now; {counted(ended, 'session')} ended"
    run.out.result(
        f"{_said(now)} {what}", _facts(now) | {"changed": ended is not None, "ended_sessions": ended or 0}
    )


def off(ctx: typer.Context) -> None:
    """Open the service again. Who had a session signs in anew."""
    run = invocation(ctx)
    changed = run.service().lockdown.stop(by=run.actor)
    run.out.result(
        f"The service is open {'again' if changed else 'already'}", _facts(None) | {"changed": changed}
    )


def status(ctx: typer.Context) -> None:
    """Tell whether the service is closed, since when, and who is let in."""
    run = invocation(ctx)
    now = run.service(write=False).lockdown.state()
    if now is None:
        run.out.result("The service is open", _facts(None))
    else:
        run.out.result(f"{_said(now)} since {now.since}, by {now.actor}", _facts(now))


def _said(now: "Lockdown | None") -> str:
    admitted = now.admitted if now is not None else None
    return f"The service is closed to everybody{f' but {admitted.email}' if admitted is not None else ''}"


def _facts(now: "Lockdown | None") -> dict[str, object]:
    return {
        "on": now is not None,
        "since": now.since if now else None,
        "actor": now.actor if now else None,
        "except": now.admitted.email if now and now.admitted else None,
    }
