"""openapi: prints what the HTTP interface is, which is written in the daemon's package."""

from typing import Annotated

import typer

from usersctl.cli.questions import invocation


def register(app: typer.Typer) -> None:
    app.command("openapi", rich_help_panel="Operation", epilog="Example: usersctl openapi > openapi.json")(
        openapi
    )


def openapi(
    ctx: typer.Context,
    html: Annotated[
        bool, typer.Option("--html", help="As one page to read, which needs nothing beside it.")
    ] = False,
) -> None:
    """Print the HTTP interface as an OpenAPI document."""
    from usersd.openapi.document import document
    from usersd.openapi.reference import page
    from usersd.routes import TABLE

    run = invocation(ctx)
    if html:
        run.out.data(page(run.loaded.settings, TABLE))
    else:
        run.out.write_json(document(run.loaded.settings, TABLE))
