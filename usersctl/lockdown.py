"""The emergency brake: one row in the database, which every way in looks at, closes them all but for one named admin."""

from dataclasses import dataclass

from usersctl.clock import Clock, stamp
from usersctl.errors import Forbidden, LockedDown
from usersctl.models import Actor, Lockdown, Role, User
from usersctl.store.store import Store
from usersctl.store.transaction import Transaction


def refuse_in_lockdown(tx: Transaction, user: User | None = None) -> None:
    """In every journey that opens a door, inside of its transaction. Without a user nobody is let through."""
    lockdown = tx.lockdown()
    if lockdown is not None and not lockdown.admits(user):
        raise LockedDown


@dataclass(frozen=True)
class Lockdowns:
    store: Store
    now: Clock

    def state(self) -> Lockdown | None:
        with self.store.read() as tx:
            return tx.lockdown()

    def start(self, admitted: User | None, *, by: Actor) -> int | None:
        """How many sessions ended: all, also those of the one who is let in again. None: it was so already."""
        with self.store.write() as tx:
            now = stamp(self.now())
            if admitted is not None:
                admitted = tx.user(admitted.id)
                if admitted is None or admitted.role != Role.ADMIN or not admitted.active:
                    raise Forbidden(
                        "Only an active admin can be left in", hint="see: usersctl list --role admin --active"
                    )
            present = tx.lockdown()
            # Also where it looks the same: somebody who was named, and is no admin now, may become one again.
            tx.lock_down(now, by.name, admitted.id if admitted else None)
            if present is not None and present.admitted == admitted:
                return None
            ended = tx.end_all_sessions(now)
            tx.audit(now, by, "lockdown-on", admitted, ended=ended)
            return ended

    def stop(self, *, by: Actor) -> bool:
        with self.store.write() as tx:
            if tx.lockdown() is None:
                return False
            tx.end_lockdown()
            tx.audit(stamp(self.now()), by, "lockdown-off")
            return True
