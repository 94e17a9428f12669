"""db move: everything goes to another database."""

import time
from pathlib import Path
from typing import Annotated

from typer import Argument, Context

from usersctl.cli.invocation import invocation
from usersctl.cli.show.cells import to_json
from usersctl.config.sources import refuse_password
from usersctl.config.values import BadValue, database
from usersctl.errors import Invalid
from usersctl.store.conninfo import Database, shown
from usersctl.text import counted


def move(
    ctx: Context,
    to: Annotated[
        str, Argument(metavar="TO", help="A new file, or postgresql://… of an empty database on a server.")
    ],
) -> None:
    """Move everything from a file to a PostgreSQL server, or back.

    All rows go, with their ids: accounts, sessions, API tokens, waiting emails, the audit trail. Meanwhile the daemon
    answers what only reads, and refuses what writes with a 503. The new database is checked before the command says that
    it is done. The old one stays as it was, and is marked: a daemon that still uses it answers 503 from then on.
    """
    from usersctl.store.move import move as move_all

    run = invocation(ctx)
    target = _target(to)
    source = run.store()
    began = time.monotonic()
    with run.out.progress("Copying rows") as draw:
        counts = move_all(source, target, draw)
    seconds, name = round(time.monotonic() - began, 2), shown(target)
    as_json = {"from": source.name, "to": name, "accounts": counts["users"], "rows": sum(counts.values())}
    accounts = counted(counts["users"], "account")
    run.out.result(f"Moved {accounts} to {name}: {seconds} s", as_json | {"seconds": seconds})
    run.out.note(
        f"Now set database = {to_json(name)}, and start the daemon again. {source.name} is marked as moved"
    )
    named_by = run.loaded.origins["database"].source
    if named_by.startswith("USERS_DATABASE"):
        run.out.note(f"{named_by} names the old one, and wins over the configuration: change it instead")
    settings = run.loaded.settings
    if counts["totp_secrets"] and not settings.secret_keys:
        from usersctl.factors.sealing import Sealer

        if Sealer.of(settings).place == Sealer.of(settings._replace(database=target)).place:
            return
        apps = counted(counts["totp_secrets"], "authenticator app")
        run.out.note(f"The key of {apps} is in the file users.key: set auth.secretKey to what it holds")


def _target(to: str) -> Database:
    try:
        target = database(to)
    except BadValue as problem:
        raise Invalid(f"TO {problem}") from None
    refuse_password("TO", target, "put it into a file that PGPASSFILE names")
    return target.absolute() if isinstance(target, Path) else target
