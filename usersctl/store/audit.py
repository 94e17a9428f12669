"""The table of the audit trail: one row for each change, chained to the row before it."""

import json
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from usersctl.clock import moment, stamp
from usersctl.models import Actor, AuditFilter, AuditPage, AuditRow, User
from usersctl.named import NamedTuple
from usersctl.store import chain
from usersctl.store.progress import Progress, unwatched, watched
from usersctl.store.statements import Statements

LOOKED_AT = 500  # rows for one page: more would take as long as the trail is large
_NONE = {"user_id": "0", "actor": "''", "action": "''"}  # filters with an index, and SQL for no value
_FIRST, _LAST = datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC)
_LONGEST = (_LAST - _FIRST) // timedelta(milliseconds=1)
_AUDIT = ", ".join(AuditRow._fields)
_encoded = json.JSONEncoder(ensure_ascii=False).encode


Change = tuple[int | None, str | None, dict[str, Any]]  # the id and the address of the user, and the details


class Told(NamedTuple):
    """A change, as the listener of the store gets it in the transaction of the change."""

    by: Actor
    action: str
    user_id: int | None
    user: User | None  # perhaps as it was before the change; None: not known, or the change is of no user
    details: dict[str, Any]


class _End(NamedTuple):
    """Of the trail, as this transaction leaves it."""

    last: int  # the id of the newest row; 0 if there is none
    hash: bytes
    latest: str
    set_back: int  # milliseconds by which the clock was set back at most
    added: int  # rows, by this transaction


class Audit(Statements):
    listener: Callable[[Any, Told], object] | None = None  # is called with the transaction
    _end: _End | None = None  # None: this transaction has added no row

    def audit(self, by: Actor, action: str, user: User | None = None, **details: Any) -> None:
        """Adds the row of a change to the transaction of that change. Never a secret."""
        concerned = (user.id, user.email) if user else (None, None)
        self._add_rows(by, action, [(*concerned, details)])
        self.tell(by, action, user, details)

    def audit_each(self, by: Actor, action: str, changes: Sequence[Change]) -> None:
        """The rows of several changes."""
        self._add_rows(by, action, changes)
        if self.listener is not None:
            for user_id, _, details in changes:
                self.listener(self, Told(by, action, user_id, None, details))

    def tell(self, by: Actor, action: str, user: User | None, details: dict[str, Any]) -> None:
        """For a change of which the trail has no row; `audit` does it for the others."""
        if self.listener is not None:
            self.listener(self, Told(by, action, user and user.id, user, details))

    def _add_rows(self, by: Actor, action: str, changes: Sequence[Change]) -> None:
        last, link, latest, set_back, added = self._end or self._end_so_far()
        rows = []
        encoded, text = None, ""
        for number, (user_id, email, details) in enumerate(changes, last + 1):
            if details is not encoded:  # many changes may share one object
                encoded, text = details, _encoded(details)
            row = (number, self.now_text, by.name, by.origin, action, user_id, email, text)
            link = chain.link(link, row)
            rows.append((*row, link))
        self._insert_rows("audit", AuditRow._fields, rows)
        if self.now_text < latest:
            set_back = max(set_back, _milliseconds(self.now_text, latest))
        latest = max(latest, self.now_text)
        self._end = _End(last + len(rows), link, latest, set_back, added + len(rows))

    def _end_so_far(self) -> "_End":
        end = self._run(
            "SELECT last, hash, latest, set_back FROM (SELECT max(id) AS last FROM audit) AS rows"
            " LEFT JOIN audit_head ON TRUE"
        )
        last, link, latest, set_back = end.fetchone()
        return _End(last or 0, link or chain.START, latest or "", set_back or 0, 0)

    def write_end_of_trail(self) -> None:
        """Once, before the commit: on a server each write of a row takes longer the more of them the transaction has made."""
        if self._end is None:
            return
        conflict = (
            "ON CONFLICT (id) DO UPDATE SET n = audit_head.n + excluded.n, hash = excluded.hash,"
            " latest = excluded.latest, set_back = excluded.set_back"
        )
        _, link, latest, set_back, added = self._end
        self._insert("audit_head", conflict, id=1, n=added, hash=link, latest=latest, set_back=set_back)

    def last_id_of(self, email: str) -> int | None:
        """The id of the user who has this address, or had it at the last change of their account."""
        statement = (
            "SELECT user_id FROM audit WHERE email = ? AND user_id IS NOT NULL ORDER BY id DESC LIMIT 1"
        )
        return self.id_of(email) or self._number(statement, (email,)) or None

    def id_of(self, email: str) -> int | None:
        """The same, without the addresses that were changed since, which no index has."""
        removed = "email = :email AND action IN ('delete', 'registration-expired', 'withdraw-invitation')"
        statement = (
            "SELECT coalesce((SELECT id FROM users WHERE email = :email), (SELECT user_id FROM audit"
            f" WHERE {removed} ORDER BY id DESC LIMIT 1), 0)"
        )
        return self._number(statement, {"email": email}) or None

    def audit_rows(
        self,
        *,
        user_id: int | None = None,
        actor: str | None = None,
        action: str | None = None,
        since: str | None = None,
        until: str | None = None,
        from_id: int | None = None,
        newest: int | None = None,
    ) -> Iterator[AuditRow]:
        """The oldest first; with `newest` the newest first, and at most so many."""
        if since is not None and from_id is None:
            from_id = self._ids(since, None).start
        conditions = {"user_id = ?": user_id, "actor = ?": actor, "action = ?": action}
        conditions |= {"at >= ?": since, "at < ?": until, "id >= ?": from_id}
        given = {condition: value for condition, value in conditions.items() if value is not None}
        statement = f"SELECT {_AUDIT} FROM audit WHERE {' AND '.join(given) or 'TRUE'} ORDER BY id"
        if newest is None:
            return map(_row_of, self._stream(statement, tuple(given.values())))
        return map(_row_of, self._run(f"{statement} DESC LIMIT ?", (*given.values(), newest)))

    def audit_page(self, wanted: AuditFilter, limit: int, before: int | None = None) -> AuditPage:
        """The newest first. It may end early, so that a filter that admits few rows looks at a bounded number of them."""
        with self._readable():
            ids = self._ids(wanted.since, wanted.until)
            if before is not None:
                ids = range(ids.start, min(ids.stop, before))
            driving, reach = self._rarest(wanted, ids)
            # As expressions, so that no index but that of the driving filter is used.
            others = {
                f"coalesce({name}, {_NONE[name]}) = ?": getattr(wanted, name)
                for name in _NONE.keys() - driving
            }
            others |= {"at >= ?": wanted.since, "at < ?": wanted.until}
            given = {condition: value for condition, value in others.items() if value is not None}
            conditions, values = _within(driving, range(max(ids.start, reach), ids.stop))
            statement = f"SELECT {_AUDIT} FROM audit WHERE {' AND '.join([*conditions, *given])} ORDER BY id DESC LIMIT ?"
            rows = list(map(_row_of, self._run(statement, (*values, *given.values(), limit + 1))))
        if len(rows) > limit:
            return AuditPage(rows[:limit], rows[limit - 1].id)
        return AuditPage(rows, reach or None)

    def _rarest(self, wanted: AuditFilter, ids: range) -> tuple[dict[str, Any], int]:
        """The filter with an index whose rows reach back furthest, and the id to which LOOKED_AT of its rows reach; 0 if it
        has fewer."""
        given = [{name: getattr(wanted, name)} for name in _NONE if getattr(wanted, name) is not None]
        reaches = []
        for driving in given or [{}]:
            conditions, values = _within(driving, ids)
            statement = f"SELECT id FROM audit WHERE {' AND '.join(conditions)} ORDER BY id DESC LIMIT 1 OFFSET {LOOKED_AT - 1}"
            reaches.append((self._number(statement, values), driving))
        reach, driving = min(reaches, key=lambda pair: pair[0])
        return driving, reach

    def _ids(self, since: str | None, until: str | None) -> range:
        """All rows from `since` on and before `until` have ids in this range, and hardly any others.

        Ids rise with time, except where the clock was set back, which was never further than the trail's end says.
        """
        # One question for each: SQLite reads all rows for a minimum beside a maximum.
        row = self._run(
            "SELECT (SELECT min(id) FROM audit), (SELECT max(id) FROM audit),"
            " coalesce((SELECT set_back FROM audit_head), 0)"
        ).fetchone()
        first, last = row[0] or 1, row[1] or 0
        set_back = timedelta(milliseconds=min(max(0, row[2]), _LONGEST))  # it may be changed by hand
        ids = range(first, last + 1)
        start, stop = 0, len(ids)
        if since is not None:
            earliest = max(moment(since), _FIRST + set_back) - set_back
            start = bisect_left(ids, stamp(earliest), key=self._time_at)
        if until is not None:
            latest = min(moment(until), _LAST - set_back) + set_back
            stop = bisect_left(ids, stamp(latest), key=self._time_at)
        return ids[start:stop]

    def _time_at(self, number: int) -> str:
        """Of the first row from this id on."""
        statement = "SELECT at FROM audit WHERE id >= ? ORDER BY id LIMIT 1"
        return str(self._run(statement, (number,)).fetchone()[0])

    def actions(self) -> list[str]:
        """That the trail has rows of, by one look into the index for each."""
        statement = (
            "WITH RECURSIVE known (action) AS (SELECT min(action) FROM audit UNION ALL"
            " SELECT (SELECT min(action) FROM audit WHERE audit.action > known.action) FROM known"
            " WHERE known.action IS NOT NULL) SELECT action FROM known WHERE action IS NOT NULL"
        )
        with self._readable():
            return [action for (action,) in self._run(statement)]

    def last_of(self, action: str) -> AuditRow | None:
        statement = f"SELECT {_AUDIT} FROM audit WHERE action = ? ORDER BY id DESC LIMIT 1"
        return self._first(_row_of, statement, (action,))

    def first_audited_at(self) -> str | None:
        return self._value(str, "SELECT at FROM audit ORDER BY id LIMIT 1")

    def last_cleanup(self) -> AuditRow | None:
        return self.last_of("cleanup-tokens")

    def last_audit_row(self) -> AuditRow | None:
        return self._first(_row_of, f"SELECT {_AUDIT} FROM audit ORDER BY id DESC LIMIT 1")

    def audit_head(self) -> chain.Head | None:
        """The expected row count and last hash of the trail; None if the row was removed, or is damaged."""
        head = self._first(chain.Head._make, "SELECT n, hash FROM audit_head")
        return head if head and isinstance(head.rows, int) and isinstance(head.hash, bytes) else None

    def check_audit(self, expected: bytes | None = None, progress: Progress = unwatched) -> chain.ChainResult:
        """Checks every row against the chain, and that the note of where it ends hides none from a filter by time."""
        latest, set_back = "", 0

        def timed(rows: Iterable[Sequence[Any]]) -> Iterator[Sequence[Any]]:
            nonlocal latest, set_back
            for row in rows:
                at = str(row[1])
                if at < latest:
                    set_back = max(set_back, _milliseconds(at, latest))
                else:
                    latest = at
                yield row

        with self._readable("surrogateescape"):
            head, noted = self.audit_head(), self._end_so_far().set_back
            rows = timed(self._stream(f"SELECT {_AUDIT} FROM audit ORDER BY id"))
            result = chain.check(watched(rows, progress, head.rows if head else None), head, expected)
        if result.problem is None and noted < set_back:
            return result._replace(
                problem="the note of where the trail ends was changed: filters by time miss rows"
            )
        return result

    def check_audit_on(self, after: int, rows: int, at_most: int) -> chain.ChainStep:
        """Checks at most so many rows after this id. `rows`: the number of rows up to this id."""
        head = self.audit_head()
        before = "SELECT hash FROM audit WHERE id <= ? ORDER BY id DESC LIMIT 1"
        so_far = chain.Head(rows, self._value(bytes, before, (after,)) or chain.START)
        with self._readable("surrogateescape"):
            statement = f"SELECT {_AUDIT} FROM audit WHERE id > ? ORDER BY id LIMIT ?"
            some = self._run(statement, (after, at_most)).fetchall()
        is_end = len(some) < at_most
        result = chain.check(some, head, so_far=so_far, is_end=is_end)
        last = some[-1][0] if not (is_end or result.problem) else None
        return chain.ChainStep(result, head.rows if head else 0, last)

    def check_audit_end(self, rows: int) -> chain.ChainStep:
        """Checks the newest rows only."""
        head, newest = self.audit_head(), "SELECT id FROM audit ORDER BY id DESC LIMIT 1 OFFSET ?"
        after = self._number(newest, (rows,))
        before = head.rows - rows if head and after else 0
        return self.check_audit_on(after, before, rows + 1)


def _milliseconds(since: str, until: str) -> int:
    """Between two times; 0 if one of them was changed by hand and is none."""
    try:
        return (moment(until) - moment(since)) // timedelta(milliseconds=1)
    except (ValueError, OverflowError):
        return 0


def _within(driving: dict[str, Any], ids: range) -> tuple[list[str], list[Any]]:
    """The conditions of a filter with an index, and their values."""
    conditions = [*(f"{name} = ?" for name in driving), "id >= ?", "id < ?"]
    return conditions, [*driving.values(), ids.start, ids.stop]


def _row_of(row: Sequence[Any]) -> AuditRow:
    """`row`: as the columns hold it."""
    try:
        details = json.loads(row[7])
        if "\\u" in row[7]:
            _encoded(details).encode()  # half a character, which no answer can hold, is a ValueError
    except (ValueError, RecursionError):  # changed by hand
        details = None
    if not isinstance(details, dict):
        details = {"illegible": row[7]}
    return AuditRow._make((*row[:7], details, row[8].hex()))
