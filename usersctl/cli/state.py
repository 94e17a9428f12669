"""apply and export --as-state: accounts and groups as a file says."""

import sys
from collections.abc import Iterable
from contextlib import suppress
from enum import StrEnum
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, NoReturn

import typer
from typer import Argument, Context, Option

from usersctl.cli.exit_codes import ExitCode, code_of
from usersctl.cli.files import opened, replaced
from usersctl.cli.invocation import Invocation, invocation
from usersctl.cli.questions import Yes, confirm
from usersctl.cli.show.cells import one_line, to_json
from usersctl.cli.show.changes import DONE, PLANNED, show_changes, summary
from usersctl.cli.show.listing import print_json_array
from usersctl.errors import Forbidden, Invalid
from usersctl.store.progress import Progress, unwatched, watched
from usersctl.text import counted

if TYPE_CHECKING:
    from usersctl.models import Standing
    from usersctl.service import Service
    from usersctl.state.planning import Change, Conflicts, Options
    from usersctl.state.reading import Broken, State


NOTHING = "Nothing to change"


class Prune(StrEnum):
    DEACTIVATE = "deactivate"
    DELETE = "delete"


def apply(
    ctx: Context,
    file: Annotated[str, Argument(metavar="FILE|-", help="TOML or JSON; - is standard input.")],
    plan: Annotated[
        bool,
        Option("--plan", "--dry-run", help="Only print what would change; exit code 8 if anything would."),
    ] = False,
    adopt: Annotated[
        bool, Option("--adopt", help="Take over accounts and groups that exist and that the file names.")
    ] = False,
    prune: Annotated[
        Prune | None, Option(help="What happens to accounts of this file that it does not name any more.")
    ] = None,
    yes: Yes = False,
) -> None:
    """Make accounts and groups as a file says: all of it, or nothing.

    The file has a name, users (email, name, role, active, groups, invite) and groups (name). What an entry leaves out stays
    as it is. Accounts that it makes or adopts are managed by its name, and only those are pruned.

    Without a terminal, --yes is needed to deactivate, to delete, to end an invitation and to take the role admin.
    """
    from usersctl.state.planning import Conflicts, Options
    from usersctl.state.reading import Broken

    run = invocation(ctx)
    options = Options(adopt, prune)
    try:
        state = _read(file)
        service = run.service(write=not plan)
        changes = service.desired_state.plan(state, options)
        if plan:
            with suppress(BrokenPipeError):  # of `| head`, which has read enough
                _print_plan(run, changes)
        elif not changes:
            run.out.result(NOTHING, {"changes": []})
        else:
            shown = _agreed(run, changes, yes=yes)
            del changes  # memory holds one plan, not two
            _apply(run, service, state, options, shown, yes=yes)
    except (Broken, Conflicts) as error:
        _refuse(run, file, error)
    if plan and changes:
        raise typer.Exit(ExitCode.PENDING)


def _read(file: str) -> "State":
    from usersctl.state.reading import LARGEST, read_state

    with opened(file) as content:
        return read_state(content.read(LARGEST + 1))


def _print_plan(run: Invocation, changes: "list[Change]") -> None:
    if run.out.json:
        _print_json(changes)
        return
    show_changes(run.out, changes)
    planned = summary(changes, PLANNED)
    run.out.note(f"Plan: {planned}" if changes else NOTHING)


def _agreed(run: Invocation, changes: "list[Change]", *, yes: bool) -> "list[Change] | None":
    """The plan, if a person at a terminal agrees to it; None if the command does not ask."""
    if not run.may_ask or yes or run.out.json:
        return None
    try:
        show_changes(run.out, changes)
    except BrokenPipeError:  # of `| head`
        hint = "read it with --plan, and confirm with --yes"
        raise Forbidden("The plan was not read to its end; nothing was done", hint=hint) from None
    confirm(run, f"Apply: {summary(changes, PLANNED)}?", yes=False)
    return changes


def _apply(
    run: Invocation,
    service: "Service",
    state: "State",
    options: "Options",
    shown: "list[Change] | None",
    *,
    yes: bool,
) -> None:
    is_agreed = shown is not None
    with run.out.progress("Applying changes") as draw:
        done = service.desired_state.apply(
            state, options, confirmed=yes or is_agreed, shown=shown, progress=draw, by=run.actor
        )
    run.out.is_done = True
    if run.out.json:
        _print_json(done)
        return
    if not is_agreed and not run.out.quiet:
        show_changes(run.out, done)
    run.out.note(f"Applied: {summary(done, DONE)}" if done else NOTHING)
    without_password = sum(_has_no_way_in(change) for change in done)
    if without_password:
        run.out.note(
            f"New accounts without a password: {without_password}; their owners set one through a reset email"
        )
    if any((change.after or {}).get("sends_invitation") for change in done):
        run.note_where_invitations_go()


def _has_no_way_in(change: "Change") -> bool:
    view = change.after or {}
    return change.action == "create" and change.kind == "user" and bool(view["active"])


def _print_json(changes: "list[Change]") -> None:
    print('{"changes": ', end="")
    print_json_array(change._asdict() for change in changes)
    print("}")


def _refuse(run: Invocation, file: str, error: "Broken | Conflicts") -> NoReturn:
    """Each problem by its file and its place."""
    from usersctl.state.lines import WHOLE

    name = "standard input" if file == "-" else file
    problems = [
        {"where": where, "message": run.options.repeated_in(message), "file": name}
        for where, message in error.problems
    ]
    if not run.out.json:
        for problem in problems:
            where = "" if problem["where"] == WHOLE else f", {problem['where']}"
            print(f"{one_line(name)}{where}: {one_line(problem['message'])}", file=sys.stderr)
    run.out.error(error, code=error.code, hint=error.hint, problems=problems)
    raise typer.Exit(code_of(error)) from None


# --- export --as-state ---


def export_state(run: Invocation, file: str) -> None:
    """By the suffix JSON, else TOML. On stdout TOML, with --json JSON."""
    from usersctl.state.reading import LARGEST

    service = run.service(write=False)
    if file != "-" and Path(file).suffix.lower() not in (".toml", ".json"):
        raise Invalid(f"Cannot tell the format of {file}", hint="name it .toml or .json")
    as_json = file.lower().endswith(".json") or (file == "-" and run.out.json)
    if file == "-":
        write_state(sys.stdout, service, as_json=as_json)
        return
    with replaced(Path(file)) as target, run.out.progress("Writing users") as draw:
        count = write_state(target, service, draw, as_json=as_json)
    run.out.result(f"Exported {counted(count, 'user')} to {file}", {"exported": count, "file": file})
    if Path(file).stat().st_size > LARGEST:
        run.out.note(f"Note: `usersctl apply` reads no file of more than {LARGEST // 1024 // 1024} MiB")


def write_state(target: IO[str], service: "Service", progress: Progress = unwatched, *, as_json: bool) -> int:
    """Returns how many users it has."""
    write = _write_json if as_json else _write_toml
    with service.desired_state.present() as present:
        return write(target, present.name, present.groups, watched(map(_entry, present.standings), progress))


def _write_json(target: IO[str], name: str, groups: list[str], users: Iterable[dict[str, object]]) -> int:
    count = 0
    listed = to_json([{"name": group} for group in groups])
    target.write(f'{{"name": {to_json(name)}, "groups": {listed}, "users": [')
    for count, user in enumerate(users, 1):
        target.write((",\n" if count > 1 else "\n") + to_json(user))
    target.write("\n]}\n")
    return count


def _write_toml(target: IO[str], name: str, groups: list[str], users: Iterable[dict[str, object]]) -> int:
    """Strings, lists of strings and booleans of JSON are TOML as well."""
    count = 0
    target.write(f"name = {to_json(name)}\n")
    for group in groups:
        target.write(f"\n[[groups]]\nname = {to_json(group)}\n")
    for user in users:
        target.write("\n[[users]]\n")
        target.writelines(f"{key} = {to_json(value)}\n" for key, value in user.items())
        count += 1
    return count


def _entry(standing: "Standing") -> dict[str, object]:
    user = standing.user
    entry: dict[str, object] = {"email": user.email, "name": user.name, "role": user.role}
    if user.awaits_owner:
        entry["invite"] = True  # it becomes active when its owner accepts
    elif not user.active and user.delete_at is None:
        # `active = true` would undo what an admin decides later, and the deletion that an owner asks for.
        entry["active"] = False
    return entry | {"groups": list(standing.groups)}
