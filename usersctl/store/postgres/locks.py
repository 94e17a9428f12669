"""Advisory locks of the server, of the connection of one thread: they are free when it ends, for whatever reason."""

import time
from threading import Event

from usersctl.store.database_file import APPLICATION_ID
from usersctl.store.postgres.dialect import OUTBOX
from usersctl.store.postgres.driver import Connection

NUMBERS = 2**31  # of locks; before its number, each has that of this program
SILENCE = 3.0  # seconds, after which the server counts as gone, and the locks as lost
STEP = 0.25  # seconds: for so long a stop is not noticed, nor that the server is gone without a word


class ServerLocks:
    look_every = 1.0  # it hears of emails: see `hear`

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def take(self, number: int) -> bool:
        statement = "SELECT pg_try_advisory_lock(CAST(? AS INTEGER), CAST(? AS INTEGER))"
        ((is_taken,),) = self._connection.execute(statement, (APPLICATION_ID, number % NUMBERS))
        return bool(is_taken)

    def is_taken(self, number: int) -> bool:
        statement = (
            "SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND classid = CAST(? AS BIGINT) AND objid = CAST(? AS BIGINT)"
            " AND objsubid = 2 AND granted AND pid <> pg_backend_pid()"
            " AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"
        )
        return self._connection.execute(statement, (APPLICATION_ID, number % NUMBERS)).fetchone() is not None

    def hear(self, stopping: Event, seconds: float) -> bool:
        self._connection.listen(OUTBOX)
        until = time.monotonic() + seconds
        while not stopping.is_set() and time.monotonic() < until:
            if self._connection.notified(STEP, within=SILENCE):  # raises an error if the locks are lost
                return True
        return False

    def free(self) -> None:
        self._connection.run("SELECT pg_advisory_unlock_all()")
