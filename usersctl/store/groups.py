"""The tables of groups and of their members."""

from collections.abc import Iterable, Iterator
from itertools import groupby
from operator import itemgetter

from usersctl.models import Group, User
from usersctl.store.statements import MOST, Statements, given_ids
from usersctl.store.users import USER, user_of

_GROUP = "id, name, created_at, members"
# Of deleted groups: one search of the index for each group.
_LEFT_OVER = (
    "WITH RECURSIVE used (id) AS (SELECT min(group_id) FROM group_members UNION ALL"
    " SELECT (SELECT min(group_id) FROM group_members WHERE group_id > used.id) FROM used WHERE used.id IS NOT NULL)"
    " SELECT id FROM used WHERE id IS NOT NULL AND id NOT IN (SELECT id FROM groups) LIMIT 1"
)


class Groups(Statements):
    def groups(self, after: str = "", at_most: int = MOST) -> list[Group]:
        """By name, behind this one."""
        statement = f"SELECT {_GROUP} FROM groups WHERE name > ? ORDER BY name LIMIT ?"
        return list(map(Group._make, self._run(statement, (after, at_most))))

    def count_groups(self, at_most: int) -> int:
        return self._how_many("SELECT 1 FROM groups LIMIT ?", (at_most,))

    def group(self, name: str) -> Group | None:
        if not name.isascii():  # no group has such a name, and SQLite takes no surrogates of a command line
            return None
        return self._first(Group._make, f"SELECT {_GROUP} FROM groups WHERE name = ?", (name,))

    def add_group(self, name: str) -> Group | None:
        """None if there is one of this name."""
        ending = f"ON CONFLICT DO NOTHING RETURNING {_GROUP}"
        row = self._insert("groups", ending, name=name, created_at=self.now_text).fetchone()
        return None if row is None else Group._make(row)

    def delete_group(self, group_id: int) -> None:
        """Its members stay in their table, for delete_left_members: there may be a million."""
        self._run("DELETE FROM groups WHERE id = ?", (group_id,))

    def delete_left_members(self, at_most: int) -> int:
        """Members of deleted groups. Returns how many there were."""
        some = "SELECT user_id FROM group_members WHERE group_id = :id LIMIT :most"
        statement = f"DELETE FROM group_members WHERE group_id = :id AND user_id IN ({some})"
        deleted = 0
        while deleted < at_most and (group_id := self._number(_LEFT_OVER)):
            deleted += self._run(statement, {"id": group_id, "most": at_most - deleted}).rowcount
        return deleted

    def groups_of(self, user_id: int) -> tuple[str, ...]:
        statement = "SELECT name FROM group_members JOIN groups ON groups.id = group_id WHERE user_id = ? ORDER BY name"
        return tuple(name for (name,) in self._run(statement, (user_id,)))

    def groups_of_all(self) -> Iterator[tuple[int, list[str]]]:
        """Users who are in a group, in the order of their ids."""
        names = {group.id: group.name for group in self.groups()}
        rows = self._stream("SELECT user_id, group_id FROM group_members ORDER BY user_id")
        for user_id, found in groupby(rows, itemgetter(0)):
            yield user_id, sorted(names[group_id] for _, group_id in found if group_id in names)

    def members(self, group_id: int, at_most: int) -> list[User]:
        statement = f"SELECT {USER} FROM group_members JOIN users ON users.id = user_id WHERE group_id = ? ORDER BY user_id LIMIT ?"
        return [user_of(row, self) for row in self._run(statement, (group_id, at_most))]

    # One statement for all of a group: on a server each change of its counter takes longer than the one before, until the
    # commit.

    def join_group(self, group_id: int, user_ids: Iterable[int]) -> set[int]:
        """Returns those who were no members before."""
        statement = (
            f"INSERT INTO group_members (group_id, user_id) SELECT :group_id, value FROM ({self.AMONG}) AS added"
            " WHERE TRUE ON CONFLICT DO NOTHING RETURNING user_id"
        )
        return self._change_members(statement, group_id, user_ids)

    def leave_group(self, group_id: int, user_ids: Iterable[int]) -> set[int]:
        """Returns those who were members."""
        among = f"user_id IN ({self.AMONG})"
        statement = f"DELETE FROM group_members WHERE group_id = :group_id AND {among} RETURNING user_id"
        return self._change_members(statement, group_id, user_ids)

    def _change_members(self, statement: str, group_id: int, user_ids: Iterable[int]) -> set[int]:
        changed = self._run(statement, {"group_id": group_id, **given_ids(user_ids)})
        return {user_id for (user_id,) in changed}
