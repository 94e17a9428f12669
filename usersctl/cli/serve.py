"""serve: starts the daemon."""

import gc
from typing import Annotated

import typer
from typer import Context, Option

from usersctl.cli.invocation import invocation
from usersctl.errors import Invalid


def serve(
    ctx: Context,
    host: Annotated[str | None, Option(metavar="HOST", help="The address to listen on.")] = None,
    port: Annotated[int | None, Option(metavar="PORT", help="The port to listen on.")] = None,
    socket: Annotated[str | None, Option(metavar="PATH", help="A Unix socket instead of both.")] = None,
    base_url: Annotated[str | None, Option(metavar="URL", help="The address that browsers use.")] = None,
    dev: Annotated[bool, Option("--dev", help="Try it out on this machine, with open registration.")] = False,
    app: Annotated[
        str | None,
        Option(
            metavar="ADDRESS",
            help="With --dev: ask visitors of this application on this machine to sign in. HOST:PORT or a URL.",
        ),
    ] = None,
    no_samples: Annotated[
        bool, Option("--no-samples", help="With --dev: begin without the sample people.")
    ] = False,
) -> None:
    """Run the daemon.

    It serves the pages and the HTTP interface, sends emails and removes expired tokens, until it is stopped.
    """
    from usersd.start import start

    run = invocation(ctx)
    trial = None
    if dev:
        from usersd.development import Trial

        trial = Trial(app, samples=not no_samples)
    elif app is not None or no_samples:
        hint = "add --dev; for a real installation see: usersctl snippet nginx"
        raise Invalid("--app and --no-samples are for development", hint=hint)
    if socket is None and (host is not None or port is not None):
        socket = ""  # an address on the command line replaces the socket of the configuration
    run.flags |= {"server.host": host, "server.port": port, "server.socket": socket, "baseUrl": base_url}
    gc.freeze()  # the modules; from here on garbage is searched for more often, because the daemon makes some all day
    gc.set_threshold(10_000)
    options = run.options
    try:
        code = start(run.loaded, trial=trial, quiet=options.quiet, as_json=options.json or None)
    except (SystemExit, KeyboardInterrupt):
        code = 0  # a signal came before it served, as while it waits for the server of its database
    raise typer.Exit(code)
