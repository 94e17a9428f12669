"""why: every gate between one person and a session."""

import typer

from usersctl.cli.options import Options
from usersctl.cli.questions import UserArgument, invocation, one_reference
from usersctl.cli.show.findings import Line, show
from usersctl.errors import NotFound

NOTHING = "Nothing is in the way here: it is the password, or the browser"


def register(app: typer.Typer) -> None:
    app.command("why", rich_help_panel="Accounts", epilog="Example: usersctl why ada@example.com")(why)


def why(ctx: typer.Context, user: UserArgument) -> None:
    """Tell what keeps somebody from signing in.

    Every gate on the way to a session, in order, and the command that opens the one that is shut. Of an address
    without an account, also what a registration, or a sign-in through the provider, would do.
    """
    from usersctl.why import Why

    run = invocation(ctx)
    service = run.service(write=False)
    user = one_reference(user)
    found = Why(service.store, service.throttle, service.settings, service.now).explain(user)
    stopped_by = found.shut.name if found.shut else None
    lines = [
        Line(name, state, told, _on_this_database(mend, run.options))
        for name, state, told, mend in found.gates
    ]
    if run.out.json:
        run.out.write_json(
            {
                "user": found.user.as_json() if found.user else None,
                "stopped_by": stopped_by,
                "gates": [line._asdict() for line in lines],
            }
        )
    else:
        show(run.out, ("gate", "state", "why"), lines)
        if found.user is not None:
            run.out.note(f"Stopped by: {stopped_by}" if stopped_by else NOTHING)
    if found.user is None:
        raise NotFound(f"No user {user!r}", hint="look for it with: usersctl list --search TEXT")


def _on_this_database(mend: str | None, options: Options) -> str | None:
    """A command that is told can be copied as it stands; what is no command stays what it is."""
    return mend + options.to_repeat() if mend and mend.startswith("usersctl ") else mend
