"""serve: starts the daemon, which is another package and may not be imported by the core."""

from typing import Annotated

import typer

from usersctl.cli.questions import invocation


def register(app: typer.Typer) -> None:
    app.command("serve", rich_help_panel="Operation", epilog="Example: usersctl serve --dev")(serve)


def serve(
    ctx: typer.Context,
    host: Annotated[str | None, typer.Option(metavar="HOST", help="The address to listen at.")] = None,
    port: Annotated[int | None, typer.Option(metavar="PORT", help="The port to listen at.")] = None,
    socket: Annotated[
        str | None, typer.Option(metavar="PATH", help="A Unix socket to listen at, in the place of both.")
    ] = None,
    base_url: Annotated[
        str | None, typer.Option(metavar="URL", help="What the service is called from outside.")
    ] = None,
    dev: Annotated[
        bool, typer.Option("--dev", help="Try it out on this machine: registration is open.")
    ] = False,
) -> None:
    """Serve the HTTP interface until told to stop."""
    from usersd.start import start

    run = invocation(ctx)
    if socket is None and (host is not None or port is not None):
        socket = ""  # who asks for an address does not mean the socket of the configuration
    run.flags |= {"server.host": host, "server.port": port, "server.socket": socket, "baseUrl": base_url}
    options = run.options
    raise typer.Exit(start(run.loaded, dev=dev, quiet=options.quiet, as_json=options.json or None))
