"""create, list, show, update, activate, deactivate, delete, set-password, unlock."""

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from usersctl.cli.invocation import Invocation
from usersctl.cli.questions import (
    Generate,
    PasswordFile,
    PasswordStdin,
    UserArgument,
    UserArguments,
    Yes,
    confirm,
    invocation,
    one_user,
    password,
    refuse_both_from_stdin,
    users,
)
from usersctl.cli.show.listing import list_users
from usersctl.cli.show.output import Cell
from usersctl.clock import stamp
from usersctl.errors import Invalid, Taken
from usersctl.fields import normal_email, normal_name, search_text
from usersctl.models import Role, User, UserFilter
from usersctl.passwords import check_password, password_is_set

if TYPE_CHECKING:
    from usersctl.service import Service

PANEL = "Accounts"
MOST = 2**62  # accounts: more than any table holds


class Sort(StrEnum):
    NAME = "name"
    EMAIL = "email"
    CREATED = "created"
    LAST_LOGIN = "last-login"


def register(app: typer.Typer) -> None:
    for name, command, example in (
        ("create", create, "usersctl create ada@example.com --name 'Ada Lovelace' --admin"),
        ("list", list_, "usersctl list --inactive --sort created --desc"),
        ("show", show, "usersctl show ada@example.com"),
        ("update", update, "usersctl update ada@example.com --role user"),
        ("activate", activate, "usersctl activate 7 8 grace@example.com"),
        ("deactivate", deactivate, "usersctl deactivate - < leavers.txt"),
        ("delete", delete, "usersctl delete bob@example.com --yes"),
        ("set-password", set_password, "usersctl set-password ada@example.com --generate"),
        ("unlock", unlock, "usersctl unlock ada@example.com"),
    ):
        app.command(name, rich_help_panel=PANEL, epilog=f"Example: {example}")(command)


def create(
    ctx: typer.Context,
    email: Annotated[str, typer.Argument(metavar="EMAIL", help="The address to sign in with.")],
    name: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Full name; what stands before the @ if left out.")
    ] = None,
    admin: Annotated[bool, typer.Option("--admin", help="The same as --role admin.")] = False,
    role: Annotated[Role | None, typer.Option(help="What the account may do; user if left out.")] = None,
    inactive: Annotated[
        bool, typer.Option("--inactive", help="It cannot sign in until it is activated.")
    ] = False,
    if_missing: Annotated[
        bool, typer.Option("--if-missing", help="Do nothing, and succeed, if the address has an account.")
    ] = False,
    password_stdin: PasswordStdin = False,
    password_file: PasswordFile = None,
    generate: Generate = False,
) -> None:
    """Create an account. Makes the database, too, if there is none yet."""
    run = invocation(ctx)
    if admin and role is Role.USER:
        raise Invalid("--admin and --role user contradict each other")
    address = normal_email(email)
    full_name = normal_name(name if name is not None else address.partition("@")[0])
    # Nobody is asked for the password of an account that is there already; nor is a database made for one that cannot be.
    service = run.service(create=True) if run.loaded.settings.database.is_file() else None
    existing = _owner(service, address) if service is not None else None
    if existing is None:
        chosen = _password(run, address, full_name, password_stdin, password_file, generate)
        service = service or run.service(create=True)
        try:
            user = service.accounts.create(
                address,
                full_name,
                chosen,
                role=Role.ADMIN if admin else role or Role.USER,
                active=not inactive,
                tell=lambda user: _tell_generated(run, user, chosen) if generate else None,
                by=run.actor,
            )
        except Taken:
            existing = _owner(service, address)  # another process was quicker
            if existing is None:
                raise
        else:
            _say(run, f"Created {_described(user)}", user, generated=generate)
            return
    if not if_missing:
        raise Taken(
            f"{address} is taken by user {existing.id}",
            hint="change that account with: usersctl update, or usersctl set-password",
        )
    told = f"{address} is there already, as user {existing.id}"
    if generate and not run.out.json:
        run.out.note(told)  # whoever waits for a password on stdout must not take this for one
    else:
        run.out.result(told, existing.as_json())


def _owner(service: "Service", address: str) -> User | None:
    with service.store.glance() as tx:
        return tx.user_by_email(address)


def _tell_generated(run: Invocation, user: User, chosen: str) -> None:
    run.out.secret(chosen, user.as_json() | {"password": chosen})


def _say(run: Invocation, told: str, user: User, *, generated: bool) -> None:
    if not generated:
        run.out.result(told, user.as_json())
    elif not run.out.json:
        run.out.note(told)  # the password stands alone on stdout


def _password(run: Invocation, email: str, name: str, stdin: bool, file: Path | None, generate: bool) -> str:
    settings = run.loaded.settings
    chosen = password(
        run,
        of=email,
        stdin=stdin,
        file=file,
        generate=generate,
        check=lambda text: check_password(settings, text, email=email, name=name),
    )
    return check_password(settings, chosen, email=email, name=name)


def list_(
    ctx: typer.Context,
    active: Annotated[bool, typer.Option("--active", help="Only active accounts.")] = False,
    inactive: Annotated[bool, typer.Option("--inactive", help="Only inactive accounts.")] = False,
    role: Annotated[Role | None, typer.Option(help="Only this role.")] = None,
    search: Annotated[str | None, typer.Option(metavar="TEXT", help="Part of an address or a name.")] = None,
    sort: Annotated[
        Sort, typer.Option(metavar="KEY", help="By name, email, created or last-login.")
    ] = Sort.NAME,
    desc: Annotated[bool, typer.Option("--desc", help="The other way round.")] = False,
    limit: Annotated[int | None, typer.Option(min=1, metavar="N", help="So many on a page.")] = None,
    page: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Which page; the first if left out.")
    ] = None,
    everyone: Annotated[bool, typer.Option("--all", help="All of them, also on a terminal.")] = False,
    jsonl: Annotated[bool, typer.Option("--jsonl", help="One JSON object a line.")] = False,
    csv: Annotated[bool, typer.Option("--csv", help="Comma-separated, with a header line.")] = False,
) -> None:
    """List accounts: 50 on a terminal, all in a pipe."""
    run = invocation(ctx)
    if active and inactive:
        raise Invalid("--active and --inactive contradict each other")
    if run.options.json + jsonl + csv > 1:
        raise Invalid("Choose one of --json, --jsonl and --csv")
    for option, given in (("--limit", limit), ("--page", page)):
        if everyone and given is not None:
            raise Invalid(f"--all and {option} contradict each other")
    page = page or 1
    form = "json" if run.options.json else "jsonl" if jsonl else "csv" if csv else None
    if page > 1 and limit is None:
        limit = 50
    if limit is not None or everyone:
        limit = min(limit or MOST, MOST)
    if search is not None:  # surrogates, which no name holds, cannot be asked for in SQL
        search = search.encode("utf-8", "backslashreplace").decode()
    wanted = UserFilter(
        search_text(search or ""), role, True if active else False if inactive else None, sort, desc
    )
    list_users(run, wanted, form=form, limit=limit, page=page)


def show(ctx: typer.Context, user: UserArgument) -> None:
    """Show one account."""
    run = invocation(ctx)
    service = run.service(write=False)
    found = one_user(service, user)
    if run.out.json:
        run.out.write_json(found.as_json())
        return
    from usersctl.throttle import account_key  # late, with the cryptography that it brings

    with service.store.read() as tx:
        sessions = list(tx.tokens(found.id, unexpired_at=stamp(service.now())))
        wait = service.throttle.wait(tx, account_key(found, found.email))
        stored = tx.credentials_of(found.id)
    facts: list[tuple[str, Cell]] = list(found.as_json().items())
    facts += [
        ("email_proven_at", found.email_proven_at),
        ("awaiting_confirmation", found.awaiting_confirmation),
        ("has_password", password_is_set(stored)),
        ("sessions", sum(each.kind != "api" for each in sessions)),
        ("api_tokens", sum(each.kind == "api" for each in sessions)),
        ("login_locked", wait is not None),
    ]
    run.out.facts(facts)


def update(
    ctx: typer.Context,
    user: UserArgument,
    name: Annotated[str | None, typer.Option(metavar="TEXT", help="A new name.")] = None,
    email: Annotated[
        str | None,
        typer.Option(metavar="EMAIL", help="A new address, unproven until its owner shows it."),
    ] = None,
    role: Annotated[Role | None, typer.Option(help="A new role, in force at the next request.")] = None,
    unlink: Annotated[
        bool,
        typer.Option(
            "--unlink", help="No sign-in through the provider any more; a letter if that was the only way."
        ),
    ] = False,
) -> None:
    """Change an account's name, address or role."""
    run = invocation(ctx)
    if name is None and email is None and role is None and not unlink:
        raise Invalid("Nothing to change", hint="give --name, --email, --role or --unlink")
    service = run.service()
    found = one_user(service, user)
    changed = service.accounts.update(
        found.id, name=name, email=email, role=role, unlink=unlink, by=run.actor
    )
    run.out.result(
        f"{'Unchanged:' if changed == found else 'Updated'} {_described(changed)}", changed.as_json()
    )


def activate(ctx: typer.Context, user: UserArguments) -> None:
    """Let accounts sign in. All of them, or none."""
    _set_active(invocation(ctx), user, active=True)


def deactivate(ctx: typer.Context, user: UserArguments) -> None:
    """Keep accounts out. Ends their sessions and tokens. All of them, or none."""
    _set_active(invocation(ctx), user, active=False)


def _set_active(run: Invocation, references: list[str], *, active: bool) -> None:
    service = run.service()
    found = users(service, references)
    changed = service.accounts.set_active([user.id for user in found], active=active, by=run.actor)
    word = "active" if active else "inactive"
    lines = [
        f"{'Already' if before == after else 'Now'} {word}: {after.email} (user {after.id})"
        for before, after in zip(found, changed, strict=True)
    ]
    run.out.result("\n".join(lines) or "No users given; nothing to do", [user.as_json() for user in changed])


def delete(
    ctx: typer.Context,
    user: UserArguments,
    yes: Yes = False,
    if_exists: Annotated[
        bool, typer.Option("--if-exists", help="Pass over users that do not exist.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be deleted.")] = False,
) -> None:
    """Delete accounts, with their sessions and tokens. All of them, or none."""
    run = invocation(ctx)
    service = run.service(write=not dry_run)
    found = users(service, user, if_exists=if_exists)
    if found and not dry_run:
        confirm(run, f"Delete {_names(found)} with all sessions and tokens?", yes=yes)
    ids = [each.id for each in found]
    # Fewer than were found, where another process is deleting, too.
    deleted = (
        service.accounts.delete(ids, if_exists=if_exists, dry_run=dry_run, by=run.actor) if found else []
    )
    told = f"{'Would delete' if dry_run else 'Deleted'} {_names(deleted)}"
    run.out.result(told if deleted else "No such user; nothing to do", [each.as_json() for each in deleted])


def _names(listed: list[User]) -> str:
    more = f" and {len(listed) - 10} more" if listed[10:] else ""
    return ", ".join(each.email for each in listed[:10]) + more


def set_password(
    ctx: typer.Context,
    user: UserArgument,
    password_stdin: PasswordStdin = False,
    password_file: PasswordFile = None,
    generate: Generate = False,
) -> None:
    """Set a password. Ends all sessions and tokens of the account."""
    run = invocation(ctx)
    refuse_both_from_stdin(user, password_stdin=password_stdin)
    service = run.service()
    found = one_user(service, user)
    chosen = _password(run, found.email, found.name, password_stdin, password_file, generate)
    changed = service.accounts.set_password(
        found.id,
        chosen,
        tell=lambda user: _tell_generated(run, user, chosen) if generate else None,
        by=run.actor,
    )
    _say(run, f"Password set for {_described(changed)}; its sessions have ended", changed, generated=generate)


def unlock(ctx: typer.Context, user: UserArgument) -> None:
    """Let an account that failed logins have locked try again."""
    run = invocation(ctx)
    service = run.service()
    found = one_user(service, user)
    unlocked = service.throttle.unlock(found, run.actor)
    told = "Unlocked" if unlocked else "Not locked:"
    run.out.result(f"{told} {found.email}", {"id": found.id, "email": found.email, "unlocked": unlocked})


def _described(user: User) -> str:
    state = "" if user.active else ", inactive"
    return f"user {user.id}: {user.email} ({user.role}{state})"
