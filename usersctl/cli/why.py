"""why: the checks that a sign-in has to pass, for one user or address."""

from typer import Context

from usersctl.cli.arguments import ReadUserArgument, one_reference
from usersctl.cli.invocation import invocation
from usersctl.cli.show.findings import Line, show
from usersctl.errors import NotFound

NOTHING = "Nothing of this account is in the way: it is the password, the browser or the service. To check the service:"


def why(ctx: Context, user: ReadUserArgument) -> None:
    """Show why a user cannot sign in.

    Prints the gates of a sign-in in their order, and for one that is shut the command that opens it. For an address
    without an account: what a registration, or a sign-in through the identity provider, would do.
    """
    run = invocation(ctx)
    service = run.service(write=False)
    user = one_reference(user)
    explained = service.why.explain(user)
    stopped_by = getattr(explained.shut, "name", None)
    lines = [
        Line(name, state, message, mend and run.options.repeated_in(mend))
        for state, name, message, mend, *_ in explained.gates
    ]
    if run.out.json:
        account, gates = explained.user and explained.user.as_json(), [line._asdict() for line in lines]
        run.out.write_json({"user": account, "stopped_by": stopped_by, "gates": gates})
    else:
        names, states = [line.name for line in lines], [line.state for line in lines]
        show(run.out, ("gate", "state", "why"), lines, names=names, states=states)
        if explained.user is not None:
            nothing = f"{NOTHING} {run.options.repeated_in('usersctl doctor')}"
            run.out.note(f"Stopped by: {stopped_by}" if stopped_by else nothing)
    if explained.user is None:
        raise NotFound(f"No user {user!r}", hint="look for it with: usersctl list --search TEXT")
