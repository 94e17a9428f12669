"""The table of the audit trail: one row for each change, chained to the row before it."""

import json
from collections.abc import Iterator, Sequence
from typing import Any

from usersctl.models import Actor, AuditRow, User
from usersctl.store import chain
from usersctl.store.statements import Statements

_AUDIT = ", ".join(AuditRow._fields)
_encoded = json.JSONEncoder(ensure_ascii=False).encode


class Audit(Statements):
    def audit(self, by: Actor, action: str, user: User | None = None, **details: Any) -> None:
        """Adds the row of a change to the transaction of that change. Never a secret."""
        self.audit_each(by, action, [(user, details)])

    def audit_each(
        self, by: Actor, action: str, changes: Sequence[tuple[User | None, dict[str, Any]]]
    ) -> None:
        """The rows of several changes: the users, and the details."""
        end = self._run("SELECT (SELECT max(id) FROM audit), (SELECT hash FROM audit_head)")
        last, before = end.fetchone()
        last, link = last or 0, before or chain.START
        rows = []
        for number, (user, details) in enumerate(changes, last + 1):
            concerned = (user.id, user.email) if user else (None, None)
            row = (number, self.now_text, by.name, by.origin, action, *concerned, _encoded(details))
            link = chain.link(link, row)
            rows.append((*row, link))
        self._run_each(f"INSERT INTO audit ({_AUDIT}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", rows)
        conflict = "ON CONFLICT (id) DO UPDATE SET n = audit_head.n + excluded.n, hash = excluded.hash"
        self._insert("audit_head", conflict, id=1, n=len(rows), hash=link)

    def last_id_of(self, email: str) -> int | None:
        """The id of the user who has this address, or had it at the last change of their account."""
        statement = (
            "SELECT coalesce((SELECT id FROM users WHERE email = :email), (SELECT user_id FROM audit"
            " WHERE email = :email AND user_id IS NOT NULL ORDER BY id DESC LIMIT 1), 0)"
        )
        return self._number(statement, {"email": email}) or None

    def audit_rows(
        self,
        *,
        user_id: int | None = None,
        action: str | None = None,
        since: str | None = None,
        from_id: int | None = None,
        newest: int | None = None,
    ) -> Iterator[AuditRow]:
        """The oldest first; with `newest` the newest first, and at most so many."""
        conditions = {"user_id = ?": user_id, "action = ?": action, "at >= ?": since, "id >= ?": from_id}
        given = {condition: value for condition, value in conditions.items() if value is not None}
        order, values = "ORDER BY id", list(given.values())
        if newest is not None:
            order, values = "ORDER BY id DESC LIMIT ?", [*values, newest]
        statement = f"SELECT {_AUDIT} FROM audit WHERE {' AND '.join(given) or 'TRUE'} {order}"
        return map(_row_of, self._run(statement, tuple(values)))

    def first_audited_at(self) -> str | None:
        return self._first(lambda row: str(row[0]), "SELECT at FROM audit ORDER BY id LIMIT 1")

    def last_cleanup(self) -> AuditRow | None:
        statement = f"SELECT {_AUDIT} FROM audit WHERE action = 'cleanup-tokens' ORDER BY id DESC LIMIT 1"
        return self._first(_row_of, statement)

    def last_audit_row(self) -> AuditRow | None:
        return self._first(_row_of, f"SELECT {_AUDIT} FROM audit ORDER BY id DESC LIMIT 1")

    def audit_head(self) -> chain.Head | None:
        """The expected row count and last hash of the trail; None if the row was removed."""
        return self._first(chain.Head._make, "SELECT n, hash FROM audit_head")

    def check_audit(self, expected: bytes | None = None) -> chain.ChainResult:
        """Checks every row against the chain. A text that is not UTF-8 counts as a change like any other."""
        rows = self._run(f"SELECT {_AUDIT} FROM audit ORDER BY id")
        rows.connection.text_factory = lambda raw: raw.decode("utf-8", "surrogateescape")
        try:
            return chain.check(rows, self.audit_head(), expected)
        finally:
            rows.connection.text_factory = str


def _row_of(row: Any) -> AuditRow:
    try:
        details = json.loads(row[7])
    except ValueError:  # changed by hand
        details = None
    if not isinstance(details, dict):
        details = {"illegible": row[7]}
    return AuditRow._make((*row[:7], details, row[8].hex()))
