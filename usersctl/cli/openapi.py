"""openapi: prints the description of the HTTP interface, which the daemon's package writes."""

from typing import Annotated

from typer import Context, Option

from usersctl.cli.questions import invocation


def openapi(
    ctx: Context,
    html: Annotated[bool, Option("--html", help="As a web page in one file, for reading.")] = False,
) -> None:
    """Print the OpenAPI document of the HTTP interface."""
    from usersd.openapi.document import document
    from usersd.routes import TABLE

    run = invocation(ctx)
    if html:
        from usersd.openapi.reference import page

        run.out.data(page(run.loaded.settings, TABLE))
    else:
        run.out.write_json(document(run.loaded.settings, TABLE))
