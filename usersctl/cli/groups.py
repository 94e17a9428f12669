"""group: groups of users, and their members."""

from typing import Annotated

from typer import Argument, Context

from usersctl.cli.arguments import UserArguments, complete_group, users
from usersctl.cli.invocation import Invocation, invocation
from usersctl.cli.questions import Yes, confirm
from usersctl.cli.show.cells import Cell
from usersctl.text import counted

SHOWN = 50  # members of a group

GroupArgument = Annotated[
    str, Argument(metavar="GROUP", help="The name of the group.", autocompletion=complete_group)
]


def list_(ctx: Context) -> None:
    """List the groups, with the number of their members."""
    run = invocation(ctx)
    groups = run.service(write=False).groups.all()
    if run.out.json:
        run.out.write_json([group.as_json() | {"created_at": group.created_at} for group in groups])
        return
    rows = [(group.name, group.members, group.created_at) for group in groups]
    run.out.table(("name", "members", "created_at"), rows, empty="No groups.")


def show(ctx: Context, group: GroupArgument) -> None:
    """Show a group and its first 50 members. `usersctl list --group` prints all of them."""
    run = invocation(ctx)
    service = run.service(write=False)
    found, members = service.groups.with_members(group, SHOWN)
    if run.out.json:
        shown = [user.as_json() for user in members]
        run.out.write_json(found.as_json() | {"created_at": found.created_at, "users": shown})
        return
    facts: list[tuple[str, Cell]] = [("name", found.name), ("created_at", found.created_at)]
    facts += [("members", found.members), *(("member", user.called) for user in members)]
    run.out.facts(facts)
    if found.members > len(members):
        run.out.note(f"{len(members)} of {counted(found.members, 'member')}")


def create(ctx: Context, group: GroupArgument) -> None:
    """Create a group without members."""
    run = invocation(ctx)
    created = run.service().groups.create(group, by=run.actor)
    run.out.result(f"Created group {created.name}", created.as_json())


def delete(ctx: Context, group: GroupArgument, yes: Yes = False) -> None:
    """Delete a group. Its members lose it at their next request; their accounts stay."""
    run = invocation(ctx)
    service = run.service()
    found = service.groups.get(group)
    if found.members:
        confirm(run, f"Delete group {found.name} with {counted(found.members, 'member')}?", yes=yes)
    # Another process may add the first member meanwhile.
    deleted = service.groups.delete(group, with_members=yes or found.members > 0, by=run.actor)
    run.out.result(f"Deleted group {deleted.name}", deleted.as_json())


def add(ctx: Context, group: GroupArgument, user: UserArguments) -> None:
    """Add users to a group. None of them, if one is unknown. In force at their next request."""
    _change(invocation(ctx), group, user, into=True)


def remove(ctx: Context, group: GroupArgument, user: UserArguments) -> None:
    """Remove users from a group. None of them, if one is unknown. In force at their next request."""
    _change(invocation(ctx), group, user, into=False)


def _change(run: Invocation, group: str, references: list[str], *, into: bool) -> None:
    service = run.service()
    service.groups.get(group)  # before users are looked up
    accounts = users(service, references)
    change = service.groups.add if into else service.groups.remove
    changed = {user.id for user in change(group, [user.id for user in accounts], by=run.actor)}
    done, already = ("Added to", "Already in") if into else ("Removed from", "Not in")
    lines = [f"{done if user.id in changed else already} {group}: {user.called}" for user in accounts]
    as_json = {"group": service.groups.get(group).as_json(), "changed": len(changed)}
    run.out.result("\n".join(lines) or "No users given; nothing to do", as_json)
