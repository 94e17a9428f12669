"""openapi: prints the description of the HTTP interface."""

from typing import Annotated

from typer import Context, Option

from usersctl.cli.invocation import invocation
from usersctl.cli.show.interface import show_interface


def openapi(
    ctx: Context,
    html: Annotated[bool, Option("--html", help="As a web page in one file, for reading.")] = False,
) -> None:
    """Print the OpenAPI document of the HTTP interface."""
    show_interface(invocation(ctx), as_page=html)
