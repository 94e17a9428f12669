"""Which accounts and groups a file of `usersctl apply` manages, and how they stand."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any

from usersctl.models import Standing
from usersctl.store.statements import Statements, given_ids, places
from usersctl.store.users import USER, user_of

_STANDING = f"SELECT {USER}, managed_by FROM users"
_BATCH = 400


class Managed(Statements):
    def standings_of(self, emails: Sequence[str]) -> dict[str, Standing]:
        """Of the accounts that have one of these addresses."""
        rows = self._run(f"{_STANDING} WHERE email IN ({places(emails)})", tuple(emails))
        return {standing.user.email: standing for standing in self._standings(rows.fetchall())}

    def standings(self) -> Iterator[Standing]:
        """Of all accounts, in the order of their ids."""
        last = 0
        while rows := self._run(f"{_STANDING} WHERE id > ? ORDER BY id LIMIT ?", (last, _BATCH)).fetchall():
            yield from self._standings(rows)
            last = rows[-1][0]

    def managed_standings(self, name: str) -> Iterator[Standing]:
        """Of the accounts that the file of this name manages, in the order of their addresses."""
        statement = f"{_STANDING} WHERE managed_by = ? AND email > ? ORDER BY email LIMIT ?"
        last = ""
        while rows := self._run(statement, (name, last, _BATCH)).fetchall():
            yield from self._standings(rows)
            last = rows[-1][1]

    def _standings(self, rows: Sequence[Any]) -> Iterator[Standing]:
        if not rows:
            return
        ids = [row[0] for row in rows]
        members = self._run(
            "SELECT user_id, name FROM group_members JOIN groups ON groups.id = group_id"
            f" WHERE user_id IN ({places(ids)}) ORDER BY user_id, name",
            ids,
        )
        groups = {
            user_id: tuple(name for _, name in found) for user_id, found in groupby(members, itemgetter(0))
        }
        for row in rows:
            yield Standing(user_of(row, self), groups.get(row[0], ()), row[-1])

    def manager_of(self, user_id: int) -> str | None:
        return self._first(itemgetter(0), "SELECT managed_by FROM users WHERE id = ?", (user_id,))

    def managers(self) -> list[str]:
        """The names of all files that manage an account or a group."""
        statement = (
            "SELECT DISTINCT managed_by FROM users WHERE managed_by IS NOT NULL"
            " UNION SELECT managed_by FROM groups WHERE managed_by IS NOT NULL ORDER BY 1"
        )
        return [name for (name,) in self._run(statement)]

    def managers_of_groups(self) -> dict[str, str | None]:
        """The file that manages it, for the name of every group."""
        return dict(self._run("SELECT name, managed_by FROM groups ORDER BY name"))

    def manage_users(self, name: str, user_ids: Iterable[int]) -> None:
        statement = f"UPDATE users SET managed_by = :name WHERE id IN ({self.AMONG})"
        self._run(statement, {"name": name, **given_ids(user_ids)})

    def manage_group(self, name: str, group: str) -> None:
        self._run("UPDATE groups SET managed_by = ? WHERE name = ?", (name, group))

    def applied_invitations(self, emails: Sequence[str]) -> set[str]:
        """Those that were invited before."""
        statement = f"SELECT email FROM applied_invitations WHERE email IN ({places(emails)})"
        return {email for (email,) in self._run(statement, tuple(emails))}

    def note_applied_invitation(self, email: str) -> None:
        self._insert("applied_invitations", email=email, invited_at=self.now_text)
