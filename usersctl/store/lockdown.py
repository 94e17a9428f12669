"""The row that exists while a lockdown is in force."""

from usersctl.models import Lockdown
from usersctl.store.statements import Statements
from usersctl.store.users import USER, user_of


class LockdownRow(Statements):
    def lockdown(self) -> Lockdown | None:
        row = self._run(
            f"SELECT since, actor, {USER} FROM lockdown"
            " LEFT JOIN users ON users.id = except_id AND active = 1 AND role = 'admin'"
        ).fetchone()
        if row is None:
            return None
        since, actor, *admitted = row
        return Lockdown(since, actor, None if admitted[0] is None else user_of(admitted, self))

    def lock_down(self, since: str, actor: str, except_id: int | None) -> None:
        """If a lockdown is in force, changes only the excepted admin; `since` and `actor` stay."""
        conflict = "ON CONFLICT (id) DO UPDATE SET except_id = excluded.except_id"
        self._insert("lockdown", conflict, id=1, except_id=except_id, since=since, actor=actor)

    def end_lockdown(self) -> None:
        self._run("DELETE FROM lockdown")
