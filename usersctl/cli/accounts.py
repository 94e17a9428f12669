"""create, list, show, update, activate, deactivate, delete, set-password, unlock."""

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Context, Option

from usersctl.cli import questions
from usersctl.cli.arguments import (
    ReadUserArgument,
    UserArgument,
    UserArguments,
    complete_group,
    complete_provider,
    one_user,
    users,
)
from usersctl.cli.invocation import Invocation, invocation
from usersctl.cli.show.cells import Cell
from usersctl.cli.show.listing import ON_A_TERMINAL, list_users
from usersctl.errors import Invalid, Taken
from usersctl.fields import name_of, newcomer, normal_group, search_text
from usersctl.models import Identity, Role, TokenKind, User, UserFilter, UserState
from usersctl.passwords import password_is_set
from usersctl.store.conninfo import Conninfo
from usersctl.store.statements import MOST
from usersctl.text import counted

if TYPE_CHECKING:
    from usersctl.service import Service

OfGroup = Annotated[
    str | None,
    Option(metavar="GROUP", help="Only members of this group.", autocompletion=complete_group),
]


class Sort(StrEnum):
    NAME = "name"
    EMAIL = "email"
    CREATED = "created"
    LAST_LOGIN = "last-login"


def create(
    ctx: Context,
    email: Annotated[str, Argument(metavar="EMAIL", help="The address to sign in with.")],
    name: Annotated[str | None, Option(metavar="TEXT", help="Full name.")] = None,
    admin: Annotated[bool, Option("--admin", help="Short for --role admin.")] = False,
    role: Annotated[Role | None, Option(help="The role of the account. Default: user.")] = None,
    inactive: Annotated[bool, Option("--inactive", help="It cannot sign in until it is activated.")] = False,
    proven: Annotated[
        bool,
        Option(
            "--proven",
            help="You vouch that the owner reads this address: a first sign-in through the provider keeps the password.",
        ),
    ] = False,
    if_missing: Annotated[
        bool, Option("--if-missing", help="Succeed without a change if the account exists.")
    ] = False,
    password_stdin: questions.PasswordStdin = False,
    password_file: questions.PasswordFile = None,
    generate: questions.Generate = False,
) -> None:
    """Create an account.

    Without --name, the name is the part of the address before the @. The database is created, too, if there is none.
    """
    run = invocation(ctx)
    if admin and role is Role.USER:
        raise Invalid("--admin and --role user contradict each other")
    if admin:
        role = Role.ADMIN
    if name is None:
        name = name_of(email.strip().lower())
    new = newcomer(email, name, role or Role.USER)
    # Look before asking for a password; and do not create a database for an account that is refused.
    service = None
    database = run.loaded.settings.database
    if isinstance(database, Conninfo) or database.is_file():
        service = run.service(create=True)
        if _report_existing(run, service, new.email, if_missing=if_missing, generate=generate):
            return
    chosen = questions.new_password(run, new, stdin=password_stdin, file=password_file, generate=generate)
    service = service or run.service(create=True)
    try:
        user = service.accounts.create(
            new, chosen.text, active=not inactive, proven=proven, tell=chosen.show, by=run.actor
        )
    except Taken:  # another process was faster
        if not _report_existing(run, service, new.email, if_missing=if_missing, generate=generate):
            raise
        return
    chosen.report(f"Created {_described(user)}", user)
    if run.loaded.settings.providers and not proven:
        run.out.note("The first sign-in through the provider ends this password; with --proven it would stay")


def _report_existing(
    run: Invocation, service: "Service", email: str, *, if_missing: bool, generate: bool
) -> bool:
    """Returns False, and reports nothing, if no account has the address."""
    from usersctl.addresses import holder_of  # late: it imports the SQL, which a help text does without

    with service.store.glance() as tx:
        user = holder_of(tx, email)
    if user is None:
        return False
    if not if_missing:
        hint = f"change that account with: usersctl update {user.id}; its password with: usersctl set-password {user.id}"
        if user.awaits_owner:
            hint = f"it is invited, and not accepted yet: usersctl invite resend {user.id}"
        raise Taken(f"{user.email} is taken by user {user.id}", hint=hint)
    sentence = f"{user.email} exists already, as user {user.id}"
    if generate and not run.out.json:
        run.out.note(sentence)  # a script reads a password from stdout
    else:
        run.out.result(sentence, user.as_json())
    return True


def list_(
    ctx: Context,
    active: Annotated[bool, Option("--active", help="Only active accounts.")] = False,
    inactive: Annotated[bool, Option("--inactive", help="Only inactive accounts.")] = False,
    role: Annotated[Role | None, Option(help="Only accounts with this role.")] = None,
    state: Annotated[
        UserState | None,
        Option(
            metavar="STATE",
            help="Only active, deactivated, awaiting (a confirmation), invited, locked (after failed logins) or"
            " never-signed-in accounts.",
        ),
    ] = None,
    group: OfGroup = None,
    no_factor: Annotated[bool, Option("--no-factor", help="Only accounts without a second factor.")] = False,
    search: Annotated[str | None, Option(metavar="TEXT", help="Part of an address or a name.")] = None,
    sort: Annotated[Sort, Option(metavar="KEY", help="By name, email, created or last-login.")] = Sort.NAME,
    desc: Annotated[bool, Option("--desc", help="Sort in descending order.")] = False,
    limit: Annotated[int | None, Option(min=1, metavar="N", help="Accounts on a page.")] = None,
    page: Annotated[int | None, Option(min=1, metavar="N", help="The page. Default: the first.")] = None,
    after: Annotated[
        int | None,
        Option(
            min=1, metavar="ID", help="The page behind this account in the same order: quick also far back."
        ),
    ] = None,
    everyone: Annotated[bool, Option("--all", help="All accounts, also on a terminal.")] = False,
    jsonl: Annotated[bool, Option("--jsonl", help="One JSON object a line.")] = False,
    csv: Annotated[bool, Option("--csv", help="Comma-separated values with a header line.")] = False,
) -> None:
    """List accounts. Prints 50 on a terminal, and all in a pipe."""
    run = invocation(ctx)
    if active and inactive:
        raise Invalid("--active and --inactive contradict each other")
    forms = [form for form, asked in (("json", run.options.json), ("jsonl", jsonl), ("csv", csv)) if asked]
    if len(forms) > 1:
        raise Invalid("Choose one of --json, --jsonl and --csv")
    for option, value in (("--limit", limit), ("--page", page), ("--after", after)):
        if everyone and value is not None:
            raise Invalid(f"--all and {option} contradict each other")
    if after is not None and page is not None:
        raise Invalid("--after and --page contradict each other")
    if everyone:
        limit = MOST
    elif limit is None and (page is not None or after is not None):
        limit = ON_A_TERMINAL
    if group is not None:
        group = normal_group(group)
    # Surrogates, which no name holds, cannot be bound to a statement.
    search = (search or "").encode("utf-8", "backslashreplace").decode()
    is_active = active if active != inactive else None
    wanted = UserFilter(search_text(search), role, is_active, sort, desc, state, group, no_factor=no_factor)
    if state is UserState.LOCKED:
        service = run.service(write=False)
        wanted = wanted._replace(locks=service.throttle.locks(service.now()))
    form, limit = next(iter(forms), None), limit and min(limit, MOST)
    list_users(run, wanted, form=form, limit=limit, page=page or 1, after=after)


def show(ctx: Context, user: ReadUserArgument) -> None:
    """Show one account.

    On a terminal or in a pipe, also the number of its sessions, whether failed logins have locked it, and when it is
    deleted if its owner asked for that; --json prints the user object of the HTTP interface.
    """
    run = invocation(ctx)
    service = run.service(write=False)
    account = one_user(service, user, also_claimed=True)
    if run.out.json:
        run.out.write_json(account.as_json())
        return
    from usersctl.throttle import counter_of  # late, for the same reason as holder_of

    with service.store.read() as tx:
        sessions = list(tx.live_tokens_of(account.id))
        wait = service.throttle.wait(tx, counter_of(tx, account, account.email))
        stored = tx.credentials_of(account.id)
        claim = tx.claim_of(account.id)
        identities = tx.identities_of(account.id)
        invitation = tx.invitation_of(account.id)
        groups = tx.groups_of(account.id)
        manager = tx.manager_of(account.id)
    facts: dict[str, Cell] = account.as_json() | {
        "email_proven_at": account.email_proven_at,
        "awaiting_confirmation": account.awaiting_confirmation,
        "delete_at": account.delete_at,
        "has_password": password_is_set(stored),
        "sessions": sum(session.kind != TokenKind.API for session in sessions),
        "api_tokens": sum(session.kind == TokenKind.API for session in sessions),
        "login_locked": wait is not None,
    }
    if account.factors:
        facts |= {"second_factors": _described_factors(service.factors.of(account.id))}
    if groups:
        facts |= {"groups": ", ".join(groups)}
    if manager is not None:
        facts |= {"managed_by": manager}
    if invitation is not None:
        facts |= {"invited_at": invitation.invited_at, "invitation_expires_at": invitation.expires_at}
    if claim is not None:
        facts |= {"known_email": account.email, "claim_expires_at": claim.expires_at}
    facts |= {f"identity_{identity.provider}": _described_identity(identity) for identity in identities}
    run.out.facts(facts.items())


def update(
    ctx: Context,
    user: UserArgument,
    name: Annotated[str | None, Option(metavar="TEXT", help="A new name.")] = None,
    email: Annotated[
        str | None, Option(metavar="EMAIL", help="A new address, in force at once, but not proven.")
    ] = None,
    role: Annotated[Role | None, Option(help="A new role, in force at the next request.")] = None,
    unlink: Annotated[
        str | None,
        Option(
            metavar="NAME",
            help="Unlink this provider, such as oauth; without another way in, it gets a reset email.",
            autocompletion=complete_provider,
        ),
    ] = None,
) -> None:
    """Change the name, address or role of an account."""
    run = invocation(ctx)
    if name is None and email is None and role is None and unlink is None:
        raise Invalid("Nothing to change", hint="give --name, --email, --role or --unlink")
    service = run.service()
    before = one_user(service, user)
    if unlink is not None:
        _refuse_unknown_provider(service, before, unlink)
    after = service.accounts.update(before.id, name=name, email=email, role=role, unlink=unlink, by=run.actor)
    done = "Unchanged:" if after == before else "Updated"
    run.out.result(f"{done} {_described(after)}", after.as_json())
    if unlink is not None:
        shut_out = run.options.repeated_in(f"to shut it out: usersctl deactivate {after.id}")
        run.out.note(f"Provider {unlink}: a sign-in there with {after.email} links it again; {shut_out}")


def _refuse_unknown_provider(service: "Service", user: User, name: str) -> None:
    with service.store.read() as tx:
        known = [identity.provider for identity in tx.identities_of(user.id)]
    configured = [provider.name for provider in service.settings.described_providers]
    if name not in known + configured:
        hint = f"{user.email} is linked to: {', '.join(known) or 'none'}"
        raise Invalid(f"No provider {name!r}", hint=hint)


def _described_factors(factors: dict[str, Any]) -> str:
    parts = ["authenticator app"] * factors["totp"]["enabled"]
    parts += [counted(len(factors["passkeys"]), "passkey")] * bool(factors["passkeys"])
    return ", ".join([*parts, counted(factors["recoveryCodes"], "recovery code")])


def _described_identity(identity: Identity) -> str:
    parts: list[str | None] = [identity.subject, identity.issuer and f"at {identity.issuer}"]
    parts += [identity.email and f"as {identity.email}", identity.linked_at and f"since {identity.linked_at}"]
    return " ".join(filter(None, parts))


def activate(ctx: Context, user: UserArguments) -> None:
    """Activate accounts. All of them, or none. Cancels a deletion that their owners asked for."""
    _set_active(invocation(ctx), user, active=True)


def deactivate(ctx: Context, user: UserArguments) -> None:
    """Deactivate accounts. All of them, or none.

    They cannot sign in any more, and their sessions and API tokens end.
    """
    _set_active(invocation(ctx), user, active=False)


def _set_active(run: Invocation, references: list[str], *, active: bool) -> None:
    service = run.service()
    accounts = users(service, references)
    changes = service.accounts.set_active([user.id for user in accounts], active=active, by=run.actor)
    state = "active" if active else "inactive"
    lines = [
        f"{'Already' if before == after else 'Now'} {state}: {after.email} (user {after.id})"
        for before, after in changes
    ]
    run.out.result(
        "\n".join(lines) or "No users given; nothing to do", [user.as_json() for _, user in changes]
    )


def delete(
    ctx: Context,
    user: UserArguments,
    yes: questions.Yes = False,
    if_exists: Annotated[bool, Option("--if-exists", help="Ignore users that do not exist.")] = False,
    dry_run: Annotated[bool, Option("--dry-run", help="Print which accounts would be deleted.")] = False,
) -> None:
    """Delete accounts. All of them, or none.

    Their sessions and API tokens end. Rows of the audit trail stay.
    """
    run = invocation(ctx)
    service = run.service(write=not dry_run)
    accounts = users(service, user, if_exists=if_exists)
    if accounts and not dry_run:
        questions.confirm(run, f"Delete {_emails(accounts)} with all sessions and tokens?", yes=yes)
    if accounts:
        # Another process may delete some of them meanwhile.
        ids = [account.id for account in accounts]
        accounts = service.accounts.delete(ids, if_exists=if_exists, dry_run=dry_run, by=run.actor)
    done = f"{'Would delete' if dry_run else 'Deleted'} {_emails(accounts)}"
    if not accounts:
        done = "No such user; nothing to do"
    run.out.result(done, [account.as_json() for account in accounts])


def _emails(accounts: list[User]) -> str:
    more = f" and {len(accounts) - 10} more" if accounts[10:] else ""
    return ", ".join(account.email for account in accounts[:10]) + more


def set_password(
    ctx: Context,
    user: UserArgument,
    password_stdin: questions.PasswordStdin = False,
    password_file: questions.PasswordFile = None,
    generate: questions.Generate = False,
) -> None:
    """Set a new password. All sessions and API tokens of the account end."""
    run = invocation(ctx)
    questions.refuse_both_from_stdin(user, password_stdin=password_stdin)
    service = run.service()
    account = one_user(service, user)
    chosen = questions.new_password(run, account, stdin=password_stdin, file=password_file, generate=generate)
    changed = service.accounts.set_password(account.id, chosen.text, tell=chosen.show, by=run.actor)
    chosen.report(f"Password set for {_described(changed)}; its sessions have ended", changed)


def unlock(ctx: Context, user: UserArgument) -> None:
    """Unlock an account that is locked after failed logins."""
    run = invocation(ctx)
    service = run.service()
    account = one_user(service, user)
    unlocked = service.throttle.unlock(account, run.actor)
    as_json = {"id": account.id, "email": account.email, "unlocked": unlocked}
    run.out.result(f"{'Unlocked' if unlocked else 'Not locked:'} {account.email}", as_json)


def _described(user: User) -> str:
    state = "" if user.active else ", inactive"
    return f"user {user.id}: {user.email} ({user.role}{state})"
