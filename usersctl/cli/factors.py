"""factor: the second factors of a user, shown and taken away."""

from typing import Annotated

from typer import Context, Option

from usersctl.cli.arguments import ReadUserArgument, UserArgument, one_user
from usersctl.cli.invocation import invocation
from usersctl.cli.show.cells import Cell
from usersctl.factors.reset import Chosen
from usersctl.text import counted

COLUMNS = ("factor", "id", "name", "created_at", "last_used_at", "synced")


def list_(ctx: Context, user: ReadUserArgument) -> None:
    """List the second factors of a user: authenticator app, passkeys, and how many recovery codes are left."""
    run = invocation(ctx)
    service = run.service(write=False)
    account = one_user(service, user, also_claimed=True)
    factors = service.factors.of(account.id)
    if run.out.json:
        run.out.write_json(factors)
        return
    rows: list[tuple[Cell, ...]] = []
    if factors["totp"]["enabled"]:
        rows.append(("authenticator app", None, None, factors["totp"]["created_at"], None, None))
    rows += [("passkey", *(passkey[name] for name in COLUMNS[1:])) for passkey in factors["passkeys"]]
    run.out.table(COLUMNS, rows, empty=f"{account.called} has no second factor.")
    if rows:
        run.out.note(f"{counted(factors['recoveryCodes'], 'recovery code')} left")


def reset(
    ctx: Context,
    user: UserArgument,
    totp: Annotated[bool, Option("--totp", help="Only the authenticator app.")] = False,
    passkeys: Annotated[bool, Option("--passkeys", help="Only the passkeys.")] = False,
    codes: Annotated[bool, Option("--codes", help="Only the recovery codes.")] = False,
) -> None:
    """Remove the second factors of a user who has lost them. Their sessions and API tokens end.

    All of them, or those that the options name; recovery codes end with the last factor. The user gets an email, and
    another one to set a password if a passkey was the last way into the account. Make sure that it is the user who asks:
    the next sign-in needs the password alone.
    """
    run = invocation(ctx)
    service = run.service()
    account = one_user(service, user)
    chosen = Chosen(totp, passkeys, codes) if totp or passkeys or codes else Chosen()
    removed = service.factor_reset.run(account.id, chosen, by=run.actor)
    done = f"Removed {removed.described} of {account.called}; its sessions have ended"
    if not any(removed):
        done = f"{account.called} has no factor to remove; nothing to do"
    run.out.result(done, {"id": account.id, "email": account.called, **removed._asdict()})
