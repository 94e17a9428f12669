"""Lists of users: filtered, searched, sorted, and page by page."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from usersctl.errors import Invalid
from usersctl.folding import search_words
from usersctl.models import Page, Role, User, UserFilter, UserState
from usersctl.store.failures import LoginFailures, locked
from usersctl.store.statements import MOST, given_ids
from usersctl.store.user_search import FEW, UserSearch, holds
from usersctl.store.users import USER, user_of

COUNTED = 1_000  # users of a search that finds more than FEW

# Whole phrases, so that no value of a caller becomes SQL, and so that SQLite uses the partial indexes.
_SORTS = {
    "name": ("name_folded", "name"),
    "email": ("email",),
    "created": ("created_at",),
    "last-login": ("login_order",),
}
_ROLES = {Role.ADMIN: "role = 'admin'", Role.USER: "role = 'user'"}
_ACTIVE = {True: "active = 1", False: "active = 0"}
# Of columns that user_counts has as well.
_STATES = {
    UserState.ACTIVE: "active = 1",
    UserState.DEACTIVATED: "active = 0 AND invited = 0 AND awaiting_confirmation = 0",
    UserState.AWAITING: "active = 0 AND invited = 0 AND awaiting_confirmation = 1",
    UserState.INVITED: "invited = 1",
    UserState.NEVER_SIGNED_IN: "signed_in = 0",
}
_IN_GROUP = "EXISTS (SELECT 1 FROM group_members WHERE group_id = :group AND user_id = users.id)"
_LARGEST = 2**63 - 1  # integer of SQLite

Values = dict[str, Any]


class UserLists(UserSearch, LoginFailures):
    def count_users(self, wanted: UserFilter) -> int:
        """By role, activity and state."""
        where = _where(_of_columns(wanted))
        return self._number(f"SELECT sum(n) FROM user_counts{where}")

    def users(self, wanted: UserFilter, *, limit: int | None = None, offset: int = 0) -> Iterator[User]:
        candidates, wanted = self._candidates(wanted)
        most = MOST if limit is None else limit
        ids = self._to_sort(wanted, candidates, {}, most + offset)
        return self._list(wanted, most, offset, ids=ids)

    def page(self, wanted: UserFilter, *, page: int = 1, limit: int = 10, after: int | None = None) -> Page:
        """`after`: the id of the last user of the page before, which makes a far page quick. An unknown id is ignored."""
        offset = (page - 1) * limit
        behind = self._place_of(after, wanted)
        total = self._total(wanted)
        candidates, wanted = self._candidates(wanted)
        if total is None:
            return self._page_of_uncounted(wanted, candidates, limit, offset, behind)
        if behind:
            # With the first of the next page: users who came or went since make the number of this one a guess.
            users = self._list_behind(wanted, limit + 1, behind, candidates)
            return Page(users[:limit], limit, total, has_next=len(users) > limit)
        users = self._from_nearer_end(wanted, limit, offset, total, candidates)
        return Page(users, limit, total, has_next=offset + limit < total)

    def _total(self, wanted: UserFilter) -> int | None:
        """None if no table has the number."""
        if wanted.search or wanted.no_factor or wanted.state == UserState.LOCKED:
            return None
        if wanted.group is None:
            return self.count_users(wanted)
        return None if _of_columns(wanted) else self._group(wanted.group)[1]

    def _group(self, name: str) -> tuple[int, int]:
        """Its id, and the number of its members."""
        row = self._run("SELECT id, members FROM groups WHERE name = ?", (name,)).fetchone()
        if row is None:
            raise Invalid("Unknown group", value=name, hint="see: usersctl group list")
        return row[0], row[1]

    def _candidates(self, wanted: UserFilter) -> tuple[list[int] | None, UserFilter]:
        """Ids among which all users of the list are, the fewest that an index has (None: all ids), and the filter without
        what they fulfil. A search may find more than it lists."""
        found: list[tuple[list[int], UserFilter]] = []
        if wanted.search:
            ids = self.candidates(search_words(wanted.search))
            if ids is not None:
                found.append((ids, wanted))
        if wanted.group is not None:
            ids = self._few_members(wanted.group)
            if ids is not None:
                found.append((ids, wanted._replace(group=None)))
        if wanted.state == UserState.LOCKED:
            ids = self.locked_ids(wanted.locks, FEW + 1)
            if len(ids) <= FEW:
                found.append((ids, wanted._replace(state=None)))
        return min(found, key=lambda one: len(one[0]), default=(None, wanted))

    def _few_members(self, name: str) -> list[int] | None:
        group_id, members = self._group(name)
        if members > FEW:
            return None
        rows = self._run("SELECT user_id FROM group_members WHERE group_id = ?", (group_id,))
        return [user_id for (user_id,) in rows]

    def _place_of(self, user_id: int | None, wanted: UserFilter) -> Values:
        """Of a user in a list; empty for an unknown one."""
        if user_id is None:
            return {}
        statement = f"SELECT {', '.join(_keys(wanted))} FROM users WHERE id = ?"
        row = self._run(statement, (user_id,)).fetchone()
        return {f"before{n}": value for n, value in enumerate(row or ())}

    def _list_behind(
        self, wanted: UserFilter, limit: int, behind: Values, ids: list[int] | None
    ) -> list[User]:
        if ids is not None:
            return list(self._list(wanted, limit, ids=ids, more=[_behind(wanted)], values=behind))
        # First the users with the same keys: SQLite finds an id by an index in no other way.
        users: list[User] = []
        for condition in (_among_same(wanted), _behind_same(wanted)):
            users += self._list(wanted, limit - len(users), more=[condition], values=behind)
        return users

    def _from_nearer_end(
        self, wanted: UserFilter, limit: int, offset: int, total: int, ids: list[int] | None
    ) -> list[User]:
        """OFFSET scans every skipped row, so pages in the second half are read from the end and reversed."""
        left = total - offset
        if left > offset:
            return list(self._list(wanted, limit, offset, ids=ids))
        backwards = wanted._replace(descending=not wanted.descending)
        users = self._list(backwards, max(0, min(limit, left)), max(0, left - limit), ids=ids)
        return list(users)[::-1]

    def _page_of_uncounted(
        self, wanted: UserFilter, candidates: list[int] | None, limit: int, offset: int, behind: Values
    ) -> Page:
        skipped = 0 if behind else offset
        ids = self._to_sort(wanted, candidates, behind, skipped + limit + 1)
        more = [_behind(wanted)] if behind else []
        users = list(self._list(wanted, limit + 1, skipped, ids=ids, more=more, values=behind))
        if not behind and len(users) <= limit and (users or not offset):
            return Page(users, limit, offset + len(users))
        total, is_exact = self._count_found(wanted, candidates)
        if users and not is_exact:
            total = max(total, offset + len(users))  # with the first of the next page
        return Page(users[:limit], limit, total, is_exact, len(users) > limit)

    def _to_sort(
        self, wanted: UserFilter, candidates: list[int] | None, behind: Values, most: int
    ) -> list[int] | None:
        """The ids to sort for the `most` first users of a search; None if the list has to be read in its order."""
        if candidates is None or len(candidates) <= FEW:
            return candidates
        if wanted.sort != "name" or most > FEW:
            return None
        conditions, values = self._conditions(wanted)
        if behind:
            # IS TRUE, so that SQLite reads the index from the first of the names that begin like a word.
            conditions.append(f"({_behind(wanted)}) IS TRUE")
        words = search_words(wanted.search or "")
        return self.first_by_name(words, conditions, values | behind, _order(wanted), most)

    def _list(
        self,
        wanted: UserFilter,
        limit: int,
        offset: int = 0,
        *,
        ids: list[int] | None = None,
        more: Sequence[str] = (),
        values: Values | None = None,
    ) -> Iterator[User]:
        """`ids`: only these users; SQLite would rather read an index than look them up one by one. `more` conditions have
        `values`."""
        conditions, known = self._conditions(wanted, ids)
        hint = "" if ids is None else " NOT INDEXED"
        read: Callable[..., Iterable[Any]] = self._stream if limit == MOST else self._run
        statement = (
            f"SELECT {USER} FROM users{hint}{_where([*conditions, *more])}"
            f" ORDER BY {_order(wanted)} LIMIT :limit OFFSET :offset"
        )
        known |= {**(values or {}), "limit": limit, "offset": min(offset, _LARGEST)}
        return (user_of(row, self) for row in read(statement, known))

    def _conditions(self, wanted: UserFilter, ids: list[int] | None = None) -> tuple[list[str], Values]:
        conditions = _of_columns(wanted)
        values: Values = {}
        if ids is not None:
            conditions.append(f"id IN ({self.AMONG})")
            values |= given_ids(ids)
        if wanted.state == UserState.NEVER_SIGNED_IN and wanted.sort == "last-login":
            conditions.append("login_order = ''")  # for the index in this order
        if wanted.group is not None:
            conditions.append(_IN_GROUP)
            values["group"] = self._group(wanted.group)[0]
        if wanted.no_factor:
            conditions.append("factors = 0")
        if wanted.state == UserState.LOCKED:
            statement, rules = locked(wanted.locks)
            conditions.append(f"+id IN ({statement})")  # +: the list is read in its order
            values |= rules
        if wanted.search:
            held, patterns = holds(search_words(wanted.search))
            conditions += held
            values |= patterns
        return conditions, values

    def _count_found(self, wanted: UserFilter, candidates: list[int] | None) -> tuple[int, bool]:
        """The users of a search, and whether these are all."""
        if candidates is None:
            conditions, values = self._conditions(wanted)
            users = "users"
            if _is_sparsest_by_group(wanted):
                # From the members, who may be far apart among all users.
                users = "group_members CROSS JOIN users"
                of_members = ["group_id = :group", "users.id = user_id"]
                conditions = [*of_members, *(one for one in conditions if one != _IN_GROUP)]
            some = f"SELECT 1 FROM {users}{_where(conditions)} LIMIT {COUNTED + 1}"
            count = self._how_many(some, values)
            return min(count, COUNTED), count <= COUNTED
        are_all = len(candidates) <= FEW
        most = len(candidates) if are_all else COUNTED
        conditions, values = self._conditions(wanted, candidates)
        some = f"SELECT 1 FROM users NOT INDEXED{_where(conditions)} LIMIT {most}"
        return self._how_many(some, values), are_all


def _of_columns(wanted: UserFilter) -> list[str]:
    """The conditions that users and user_counts know."""
    conditions: list[str] = []
    if wanted.active is not None:
        # +: a state has an index of its own, of fewer users
        conditions.append(_ACTIVE[wanted.active] if wanted.state is None else f"+{_ACTIVE[wanted.active]}")
    if wanted.state is not None and wanted.state != UserState.LOCKED:
        conditions.append(_STATES[UserState(wanted.state)])
    if wanted.role == Role.ADMIN:
        # There are few admins. IS TRUE, so that SQLite reads their index and none of the others.
        conditions = [f"({condition}) IS TRUE" for condition in conditions]
    if wanted.role is not None:
        conditions.append(_ROLES[Role(wanted.role)])
    return conditions


def _is_sparsest_by_group(wanted: UserFilter) -> bool:
    """Whether most users fulfil everything but the group."""
    others = wanted._replace(group=None, role=None if wanted.role == Role.USER else wanted.role)
    is_plain = others.state in (None, UserState.ACTIVE) and others.active is not False
    return wanted.group is not None and is_plain and not (others.role or others.search)


def _where(conditions: list[str]) -> str:
    return " WHERE " + " AND ".join(conditions) if conditions else ""


def _keys(wanted: UserFilter) -> tuple[str, ...]:
    return (*_SORTS[wanted.sort], "id")


def _behind(wanted: UserFilter) -> str:
    return _compared(_keys(wanted), _direction(wanted))


def _behind_same(wanted: UserFilter) -> str:
    return _compared(_SORTS[wanted.sort], _direction(wanted))


def _among_same(wanted: UserFilter) -> str:
    keys = _SORTS[wanted.sort]
    return f"{_compared(keys, '=')} AND id {_direction(wanted)} :before{len(keys)}"


def _direction(wanted: UserFilter) -> str:
    return "<" if wanted.descending else ">"


def _compared(keys: Sequence[str], operator: str) -> str:
    """The keys of a user with those of the last one of the page before."""
    before = ", ".join(f":before{n}" for n in range(len(keys)))
    return f"({', '.join(keys)}) {operator} ({before})"


def _order(wanted: UserFilter) -> str:
    direction = " DESC" if wanted.descending else ""
    return ", ".join(f"{key}{direction}" for key in _keys(wanted))
