"""Lockdown: one row in the database refuses every sign-in and session, except those of one named admin."""

from usersctl.errors import Forbidden, LockedDown
from usersctl.models import Actor, Lockdown, Role, User
from usersctl.named import NamedTuple
from usersctl.permissions import admit
from usersctl.store.store import Store
from usersctl.store.transaction import Transaction


def refuse_in_lockdown(tx: Transaction, user: User | None = None) -> None:
    """For the transaction of every journey that signs a user in or gives access to an account."""
    lockdown = tx.lockdown()
    if lockdown is not None and not lockdown.admits(user):
        raise LockedDown


class Lockdowns(NamedTuple):
    store: Store

    def state(self) -> Lockdown | None:
        with self.store.read() as tx:
            return tx.lockdown()

    def start(self, admitted: User | None, *, by: Actor) -> int | None:
        """Ends every session and returns how many; None if the same lockdown was already in force."""
        with self.store.write() as tx:
            self.store.whole()  # that of a large service takes seconds
            admit(tx, by)
            if admitted is not None:
                admitted = tx.user(admitted.id)
                if admitted is None or admitted.role != Role.ADMIN or not admitted.active:
                    hint = "see: usersctl list --role admin --active"
                    raise Forbidden("Only an active admin can be left in", hint=hint)
            present = tx.lockdown()
            # Also if it looks the same: a former admin in the row could become an admin again.
            tx.lock_down(tx.now_text, by.name, admitted.id if admitted else None)
            if present is not None and present.admitted == admitted:
                return None
            ended = tx.end_for_lockdown()
            tx.audit(by, "lockdown-on", admitted, ended=ended)
            return ended

    def stop(self, *, by: Actor) -> bool:
        with self.store.write() as tx:
            admit(tx, by)
            if tx.lockdown() is None:
                return False
            tx.end_lockdown()
            tx.audit(by, "lockdown-off")
            return True
