"""lockdown: closes the service to everybody in an emergency, except for one admin."""

from typing import TYPE_CHECKING, Annotated

from typer import Context, Option

from usersctl.cli.arguments import complete_user, one_user
from usersctl.cli.invocation import invocation
from usersctl.cli.questions import Yes, confirm
from usersctl.cli.show.cells import clean
from usersctl.text import counted

if TYPE_CHECKING:
    from usersctl.models import Lockdown


def on(
    ctx: Context,
    admin: Annotated[
        str | None,
        Option("--except", metavar="ADMIN", help="May still sign in.", autocompletion=complete_user),
    ] = None,
    yes: Yes = False,
) -> None:
    """End all sessions and close the service.

    Until `lockdown off`, only the admin of --except can sign in; registration and password resets are closed, too. It
    is in force from the next request, in every process. API tokens are kept, but refused. This command keeps working.
    """
    run = invocation(ctx)
    service = run.service()
    admitted = one_user(service, admin) if admin is not None else None
    before = service.lockdown.state()
    if before is None or before.admitted != admitted:
        but = f" but {admitted.email}" if admitted is not None else ""
        confirm(run, f"End all sessions and close the service to everybody{but}?", yes=yes)
    ended = service.lockdown.start(admitted, by=run.actor)
    lockdown = service.lockdown.state()
    when = "already"
    if ended is not None:
        when = f"now; {counted(ended, 'session')} ended"
    as_json = _as_json(lockdown) | {"changed": ended is not None, "ended_sessions": ended or 0}
    run.out.result(f"{_sentence(lockdown)} {when}", as_json)


def off(ctx: Context) -> None:
    """Open the service again. Users have to sign in again."""
    run = invocation(ctx)
    changed = run.service().lockdown.stop(by=run.actor)
    when = "again" if changed else "already"
    run.out.result(f"The service is open {when}", _as_json(None) | {"changed": changed})


def status(ctx: Context) -> None:
    """Show whether the service is closed."""
    run = invocation(ctx)
    lockdown = run.service(write=False).lockdown.state()
    sentence = _sentence(lockdown)
    if lockdown is not None:
        sentence += f" since {lockdown.since}, by {lockdown.actor}"
    if run.out.json:
        run.out.write_json(_as_json(lockdown))
    else:
        run.out.data(clean(sentence))  # also with --quiet: it is what was asked for


def _sentence(lockdown: "Lockdown | None") -> str:
    if lockdown is None:
        return "The service is open"
    if lockdown.admitted is None:
        return "The service is closed to everybody"
    return f"The service is closed to everybody but {lockdown.admitted.email}"


def _as_json(lockdown: "Lockdown | None") -> dict[str, object]:
    if lockdown is None:
        return {"on": False, "since": None, "actor": None, "except": None}
    admitted = lockdown.admitted and lockdown.admitted.email
    return {"on": True, "since": lockdown.since, "actor": lockdown.actor, "except": admitted}
