"""Opens the database that the configuration names: a file of SQLite, or one on a PostgreSQL server."""

from usersctl.clock import Clock, utc_now
from usersctl.store.conninfo import Conninfo, Database
from usersctl.store.store import Store


def open_store(
    database: Database,
    *,
    create: bool = False,
    write: bool = True,
    no_trace: bool = False,
    may_be_away: bool = False,
    why: str = "",
    clock: Clock = utc_now,
) -> Store:
    """A store on a current database. `create` makes a missing one; opening an old one for writing migrates it.

    `may_be_away`: if its server is, the store opens when that is back. Until then each use raises ServerAway.

    `no_trace` leaves no files beside it. `why` says where the path comes from, for the error about a missing file.
    """
    store: Store
    # Late, because each imports its own driver.
    if isinstance(database, Conninfo):
        from usersctl.store.postgres.store import PostgresStore

        store = PostgresStore(database, read_only=not write, clock=clock)
    else:
        from usersctl.store.sqlite_store import SQLiteStore

        store = SQLiteStore(database, read_only=not write, no_trace=no_trace, why=why, clock=clock)
    store.open(create=create, may_be_away=may_be_away)
    return store
