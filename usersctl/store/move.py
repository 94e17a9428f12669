"""Moves everything into a new database, on the same engine or on the other, and marks the old one."""

from collections.abc import Iterator
from contextlib import closing, contextmanager

from usersctl.errors import OtherVersion, Taken
from usersctl.store.conninfo import Conninfo, Database, shown
from usersctl.store.content import NewDatabase, pour
from usersctl.store.new_file import new_file
from usersctl.store.progress import Progress
from usersctl.store.store import Store
from usersctl.text import visible


def move(source: Store, to: Database, progress: Progress) -> dict[str, int]:
    """Returns how many rows each table has. Meanwhile others can read the old database, and write to none of the two.

    The new one is there when all is checked, and a moment later the old one is marked. Before that, a kill leaves both as
    they were.
    """
    if to == source.database:
        raise Taken(f"{source.name} is the database itself")
    source.check_movable()
    try:
        with source.write() as tx:
            source.whole()
            with _new(source, to) as new:
                counts = pour(tx, new, progress)
                source.mark_as_moved(tx, visible(shown(to)))
    except KeyboardInterrupt:  # perhaps amid the commit, which is not interrupted
        try:
            source.is_current()
        except OtherVersion as moved:
            raise KeyboardInterrupt(f"but all is done: {moved}; {moved.hint}") from None
        raise
    return counts


@contextmanager
def _new(source: Store, database: Database) -> Iterator[NewDatabase]:
    """It is there when the block ends without an error."""
    if not isinstance(database, Conninfo):
        with new_file(database, owner=database.parent) as file:
            yield file
        return
    from usersctl.store.postgres.store import PostgresStore  # late: it needs psycopg

    with (
        closing(PostgresStore(database, read_only=False, clock=source.clock)) as store,
        store.filled() as tables,
    ):
        yield tables
