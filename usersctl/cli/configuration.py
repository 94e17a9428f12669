"""What the configuration is, and where each value came from."""

import os
from typing import Annotated

import typer

from usersctl.cli.questions import invocation
from usersctl.cli.show.output import Cell, clean, to_json
from usersctl.config import sources


def register(app: typer.Typer) -> None:
    group = typer.Typer(
        no_args_is_help=True, help="The configuration.", epilog="Example: usersctl config show --origin"
    )
    for name, command, example in (
        ("show", show, "usersctl config show --origin"),
        ("check", check, "usersctl config check --config users.toml"),
        ("path", path, "usersctl config path"),
    ):
        group.command(name, epilog=f"Example: {example}")(command)
    app.add_typer(group, name="config", rich_help_panel="Operation")


def show(
    ctx: typer.Context,
    origin: Annotated[bool, typer.Option("--origin", help="Also tell where each value came from.")] = False,
) -> None:
    """Print every setting as it is in force; secrets as ***."""
    run = invocation(ctx)
    rows = sources.shown(run.loaded)
    if run.out.json:
        told = {key: {"value": value, "origin": source} if origin else value for key, value, source in rows}
        run.out.write_json(told)
        return
    for key, value, source in rows:
        run.out.data(f"{key} = {to_json(value)}" + (f"  # {source}" if origin else ""))


def check(ctx: typer.Context) -> None:
    """Say whether the configuration can be used. A mistake is named with what is allowed."""
    from usersd import start

    run = invocation(ctx)
    file = str(run.loaded.file) if run.loaded.file else None
    start.check(run.loaded)  # also the files that the daemon reads: templates, catalogue, logo
    run.out.result(
        f"{file or 'No configuration file: the defaults'} can be used", {"valid": True, "file": file}
    )


def path(ctx: typer.Context) -> None:
    """Print the configuration file in use. Without one, where it would be looked for."""
    run = invocation(ctx)
    found = sources.find_file(run.options.config, os.environ)
    looked = [str(each) for each in sources.default_files(os.environ)]
    if run.out.json:
        run.out.write_json({"file": str(found) if found else None, "looked_for": looked})
    elif found is not None:
        run.out.data(clean(str(found)))
    else:
        told: list[Cell] = ["No configuration file; looked for:", *looked]
        run.out.note("\n".join(map(str, told)))
