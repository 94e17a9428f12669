"""config: what the configuration is, where each value came from, and what each key means."""

import os
from collections.abc import Iterator
from typing import Annotated, Any

from typer import Argument, Context, Option

from usersctl.cli.invocation import invocation
from usersctl.cli.show.cells import clean, one_line, to_json
from usersctl.config import sources
from usersctl.config.settings import ALL_KEYS, Key, key_called, keys_of, provider_of
from usersctl.config.values import MASK
from usersctl.errors import Invalid
from usersctl.fields import is_text
from usersctl.store.conninfo import is_conninfo


def show(
    ctx: Context,
    origin: Annotated[bool, Option("--origin", help="Also show where each value came from.")] = False,
) -> None:
    """Print every setting that is in force, as TOML that `config check` takes; secrets as ***, in comments."""
    run = invocation(ctx)
    rows = sources.shown(run.loaded)
    if run.out.json and origin:
        run.out.write_json({name: {"value": value, "origin": source} for name, value, source in rows})
    elif run.out.json:
        run.out.write_json({name: value for name, value, _ in rows})
    else:
        for line in toml_lines(rows, origins=origin):
            run.out.data(line)


# A file with the first and without the second is refused.
NEEDS = {"mailer.auth.user": "mailer.auth.pass"}


def toml_lines(rows: list[tuple[str, Any, str]], *, origins: bool) -> Iterator[str]:
    """A comment stands for what a file cannot hold: no value, a masked secret, a path that is not UTF-8."""
    masked = {name for name, value, _ in rows if MASK in str(value) and _may_be_masked(name, str(value))}
    for name, value, source in rows:
        line = f"{name} = {as_toml(value)}"
        if value is None or name in masked or NEEDS.get(name) in masked or not is_text(str(value)):
            line = f"# {line}"
        yield f"{line}  # {one_line(source)}" if origins else line


def _may_be_masked(name: str, value: str) -> bool:
    """Of any other value, the mask is a part: the name of a service may be ***."""
    key = key_called(name)
    return (
        (key is not None and key.secret) or name == "webhooks" or (name == "database" and is_conninfo(value))
    )


def as_toml(value: Any) -> str:
    if value is None:
        return "(not set)"  # TOML has no null
    if isinstance(value, list) and any(isinstance(item, dict) for item in value):
        return f"[{', '.join(map(as_toml, value))}]"
    if isinstance(value, dict):
        pairs = ", ".join(f"{to_json(name)} = {as_toml(item)}" for name, item in value.items())
        return f"{{ {pairs} }}" if pairs else "{}"
    return to_json(value)


def explain(
    ctx: Context,
    named: Annotated[
        str | None,
        Argument(
            metavar="KEY",
            help="A key, or a table of keys such as auth.oauth.",
            autocompletion=lambda: [*ALL_KEYS],
        ),
    ] = None,
) -> None:
    """Print what keys mean: type, default, environment variables and meaning. All keys if none is named."""
    run, name = invocation(ctx), named or ""
    key = key_called(name)  # also of a provider by its name
    keys = [key] if key else _keys_in(name)
    if not keys:
        raise Invalid(sources.unknown_key(name))
    if run.out.json:
        explained = {key.name: _explanation(key) for key in keys}
        run.out.write_json(explained.get(name, explained))
        return
    for number, key in enumerate(keys):
        if number:
            run.out.data("")
        facts = _explanation(key) | {"environment": ", ".join(key.variables) or "none"}
        facts["default"] = "none" if key.default is None else to_json(key.default)
        run.out.facts(facts.items())


def _keys_in(table: str) -> list[Key]:
    """Also of a provider by its name. A key counts as a table that has only itself."""
    provider = provider_of(table)
    if provider is not None:
        return keys_of(provider)
    return [key for key in ALL_KEYS.values() if not table or f"{key.name}.".startswith(f"{table}.")]


def _explanation(key: Key) -> dict[str, Any]:
    facts: dict[str, Any] = {"key": key.name, "type": key.kind.name, "default": key.default}
    return facts | {"environment": list(key.variables), "meaning": key.help}


def check(ctx: Context) -> None:
    """Check that the configuration can be used. A mistake is named with what is allowed."""
    from usersd.check import check as check_files

    run = invocation(ctx)
    file = run.loaded.file
    check_files(run.loaded)  # also the files that the daemon reads: templates, catalogue, logo
    if unread := sources.unread_variables():
        run.out.note(f"Note: {unread}")
    used = file or "No configuration file: the defaults"
    run.out.result(f"{used} can be used", {"valid": True, "file": file and str(file)})


def path(ctx: Context) -> None:
    """Print the configuration file in use. Without one, list the places that were searched."""
    run = invocation(ctx)
    file = sources.find_file(run.options.config, os.environ)
    searched = [str(place) for place in sources.default_files(os.environ)]
    if run.out.json:
        run.out.write_json({"file": file and str(file), "looked_for": searched})
    elif file is not None:
        run.out.data(clean(str(file)))
    else:
        run.out.note("\n".join(["No configuration file; looked for:", *searched]))
