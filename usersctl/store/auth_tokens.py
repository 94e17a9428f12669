"""The table of tokens that sign a user in: sessions of browsers, and API tokens."""

from collections.abc import Iterator, Sequence
from itertools import chain
from operator import attrgetter
from typing import Any

from usersctl.models import FACTOR_METHODS, PROVIDER, UNUSABLE, Method, Session, TokenKind, User
from usersctl.store.statements import Statements, given_ids
from usersctl.store.users import USER, user_of

_SESSION = (
    "auth_tokens.id, user_id, kind, auth_tokens.name, auth_tokens.created_at, last_used_at, expires_at, limit_at, ip,"
    " user_agent, opened_with, scopes, ranges"
)
# What a session from before version 5 was opened with, which no column says: a provider, if it left a trace or the account
# has no password, else the password. With several providers the first one stands for all.
_OPENED_BEFORE = (
    "coalesce((SELECT :provider || provider FROM identities JOIN users ON users.id = identities.user_id"
    " WHERE users.id = auth_tokens.user_id AND (auth_time IS NOT NULL OR amr IS NOT NULL OR password_hash = :unusable)"
    " ORDER BY identities.id LIMIT 1), :password)"
)
_COLUMNS = len(Session._fields) - 1  # all but `moved`
_GROUPS = (
    "(SELECT group_concat(groups.name) FROM group_members JOIN groups ON groups.id = group_id"
    " WHERE group_members.user_id = users.id)"
)
_OF_HASH = (
    " FROM auth_tokens JOIN users ON users.id = auth_tokens.user_id"
    " WHERE token_hash = ? AND active = 1 AND (expires_at IS NULL OR expires_at > ?)"
    # A lockdown leaves only sessions of the excepted admin, and no API token.
    " AND NOT EXISTS (SELECT 1 FROM lockdown WHERE coalesce(except_id, 0) <> users.id OR role <> 'admin' OR kind = 'api')"
)
_BY_HASH = f"SELECT {_SESSION}, {USER}{_OF_HASH}"
_BY_HASH_WITH_GROUPS = f"SELECT {_SESSION}, {_GROUPS}, {USER}{_OF_HASH}"

# Another process may have written a later use, and a use that moves no expiry leaves the one that it moved. A last use in
# the future is none: the clock was set back.
_LATER = "last_used_at > used AND last_used_at <= now"
# One statement for many sessions, because between two statements the threads that answer requests have to wait for this
# one, and this one for them.
_USE = (
    "WITH noted (session, since, used, expires, moved) AS (VALUES {}), moment (now) AS (VALUES (?)) UPDATE auth_tokens"
    f" SET last_used_at = CASE WHEN {_LATER} THEN last_used_at ELSE used END,"
    f" expires_at = CASE WHEN moved = 0 OR ({_LATER} AND expires_at > expires) THEN expires_at ELSE expires END"
    " FROM noted, moment WHERE id = session AND created_at = since"
)
_NOTED = attrgetter("id", "created_at", "last_used_at", "expires_at", "moved")
# An API token has no sign-in: it shows which client used it last. After _USE, which leaves a later use of another process.
_CLIENTS = (
    "WITH noted (session, since, used, address, agent) AS (VALUES {}) UPDATE auth_tokens SET ip = address, user_agent = agent"
    " FROM noted WHERE id = session AND created_at = since AND last_used_at = used"
)
_NOTED_CLIENT = attrgetter("id", "created_at", "last_used_at", "ip", "user_agent")
_DAY = "substr(expires_at, 1, 10)"  # as the index has it


class AuthTokens(Statements):
    def add_token(self, user_id: int, token_hash: bytes, *, kind: str, name: str, **columns: Any) -> Session:
        """`created_at` is the moment of the transaction if it is left out."""
        row: dict[str, Any] = {"user_id": user_id, "token_hash": token_hash, "kind": kind, "name": name}
        row |= {"created_at": self.now_text, **columns}
        return Session(*self._insert("auth_tokens", f"RETURNING {_SESSION}", **row).fetchone())

    def session(self, token_hash: bytes, *, expired: bool = False) -> tuple[Session, User] | None:
        """The session check, in one query: a token of an active user. `expired`: also one that has expired."""
        after = "" if expired else self.now_text
        row = self._run(_BY_HASH, (token_hash, after)).fetchone()
        if row is None:
            return None
        return Session(*row[:_COLUMNS]), user_of(row[_COLUMNS:], self)

    def session_with_groups(self, token_hash: bytes) -> tuple[Session, User] | None:
        """The same, for a user with their groups."""
        row = self._run(_BY_HASH_WITH_GROUPS, (token_hash, self.now_text)).fetchone()
        if row is None:
            return None
        session, user = Session(*row[:_COLUMNS]), user_of(row[_COLUMNS + 1 :], self)
        names = row[_COLUMNS]
        if names is not None:
            user = user._replace(groups=tuple(sorted(names.split(","))))
        return session, user

    def has_token(self, token_hash: bytes) -> bool:
        """Also one that has expired, or that a lockdown refuses for the time being."""
        return self._number("SELECT 1 FROM auth_tokens WHERE token_hash = ?", (token_hash,)) == 1

    def use_tokens(self, sessions: Sequence[Session]) -> None:
        """Leaves out a session that is gone, also if a restored database has another one of this id."""
        values = chain.from_iterable(map(_NOTED, sessions))
        rows = ", ".join(["(?, ?, ?, ?, ?)"] * len(sessions))
        self._run(_USE.format(rows), (*values, self.now_text))
        self._note_clients([session for session in sessions if session.kind == TokenKind.API])

    def _note_clients(self, tokens: Sequence[Session]) -> None:
        if tokens:
            values = chain.from_iterable(map(_NOTED_CLIENT, tokens))
            self._run(_CLIENTS.format(", ".join(["(?, ?, ?, ?, ?)"] * len(tokens))), tuple(values))

    def live_tokens_of(self, user_id: int) -> Iterator[Session]:
        """Those that have not expired."""
        where = "user_id = ? AND (expires_at IS NULL OR expires_at > ?)"
        statement = f"SELECT {_SESSION} FROM auth_tokens WHERE {where} ORDER BY id"
        return map(_session_of, self._run(statement, (user_id, self.now_text)))

    def live_tokens(self, user_id: int | None = None) -> Iterator[tuple[Session, str]]:
        """Those that have not expired, of one user or of all, with the address of their user."""
        where = "(expires_at IS NULL OR expires_at > :now)"
        if user_id is not None:
            where += " AND user_id = :user"
        return self._with_emails(where, user=user_id, now=self.now_text)

    def proofs(self, token_hash: bytes) -> tuple[str, ...]:
        """When the user of this session proved who they are: by its sign-in, and since. Empty without, and for an API token.

        An account with a factor proves it by a factor only.
        """
        statement = (
            "SELECT factors, auth_tokens.created_at, coalesce(confirmed_at, ''), coalesce(factor_at, '')"
            " FROM auth_tokens JOIN users ON users.id = user_id WHERE token_hash = ? AND kind <> 'api'"
        )
        factors, *proofs, by_factor = self._first(tuple, statement, (token_hash,)) or (0, "")
        return (by_factor,) if factors else tuple(proofs)

    def note_proof(self, token_hash: bytes, method: str) -> None:
        """The session was opened with this method, too, from now on."""
        values = {
            "hash": token_hash,
            "method": method,
            "now": self.now_text,
            "is_factor": method in FACTOR_METHODS,
            "provider": PROVIDER,
            "password": Method.PASSWORD,
            "unusable": UNUSABLE,
        }
        self._run(
            "UPDATE auth_tokens SET confirmed_at = :now,"
            " factor_at = CASE WHEN :is_factor = 1 THEN :now ELSE factor_at END,"
            " opened_with = CASE WHEN ' ' || coalesce(opened_with, '') || ' ' LIKE '% ' || :method || ' %'"
            " THEN opened_with ELSE trim(coalesce(opened_with, CASE WHEN :is_factor = 1 THEN"
            f" {_OPENED_BEFORE} END, '') || ' ' || :method) END"
            " WHERE token_hash = :hash",
            values,
        )

    def replace_token_hash(self, token_id: int, token_hash: bytes) -> bool:
        changed = self._run("UPDATE auth_tokens SET token_hash = ? WHERE id = ?", (token_hash, token_id))
        return changed.rowcount == 1

    def delete_token(self, token_hash: bytes) -> Session | None:
        statement = f"DELETE FROM auth_tokens WHERE token_hash = ? RETURNING {_SESSION}"
        return self._first(_session_of, statement, (token_hash,))

    def delete_token_by_id(
        self, token_id: int, user_id: int | None = None, kind: str | None = None
    ) -> Session | None:
        condition = "id = ? AND user_id = coalesce(?, user_id) AND kind = coalesce(?, kind)"
        statement = f"DELETE FROM auth_tokens WHERE {condition} RETURNING {_SESSION}"
        return self._first(_session_of, statement, (token_id, user_id, kind))

    def delete_tokens_of(self, *user_ids: int, but: int | None = None) -> int:
        """Sign-ins that wait for their second factor end as well."""
        ids, among = given_ids(user_ids), f"user_id IN ({self.AMONG})"
        self._run(f"DELETE FROM pending_sign_ins WHERE {among}", ids)
        statement = f"DELETE FROM auth_tokens WHERE {among} AND id <> :but"
        return self._run(statement, {"but": but or 0, **ids}).rowcount

    def delete_all_sessions(self) -> int:
        """API tokens stay: no user could make them again."""
        self._run("DELETE FROM pending_sign_ins")
        return self._run("DELETE FROM auth_tokens WHERE kind <> 'api'").rowcount

    def delete_all_tokens(self) -> None:
        self._run("DELETE FROM pending_sign_ins")
        self._run("DELETE FROM auth_tokens")

    def count_stale_tokens(self) -> tuple[int, int]:
        """(expired, without an expiry date)"""
        expired = (f"{_DAY} < :day", f"{_DAY} = :day AND expires_at <= :now")
        return sum(map(self._count_tokens, expired)), self._count_tokens(f"{_DAY} IS NULL")

    def count_live_tokens(self) -> int:
        """Sessions and API tokens that have not expired: most by the index alone, those of today by their rows."""
        live = (f"{_DAY} > :day", f"{_DAY} = :day AND expires_at > :now", f"{_DAY} IS NULL")
        return sum(map(self._count_tokens, live))

    def _count_tokens(self, condition: str) -> int:
        moment = {"day": self.now_text[:10], "now": self.now_text}
        return self._number(f"SELECT count(*) FROM auth_tokens WHERE {condition}", moment)

    def expired_tokens(self, before: str, at_most: int) -> Iterator[int]:
        """Their ids, by days."""
        found = self._stream(
            f"SELECT id FROM auth_tokens WHERE {_DAY} < :day UNION ALL"
            f" SELECT id FROM auth_tokens WHERE {_DAY} = :day AND expires_at <= :before LIMIT :most",
            {"day": before[:10], "before": before, "most": at_most},
        )
        return (token_id for (token_id,) in found)

    def delete_expired_tokens(self, ids: list[int], before: str) -> int:
        """Of these, those that no other process prolonged or deleted meanwhile."""
        statement = f"DELETE FROM auth_tokens WHERE id IN ({self.AMONG}) AND expires_at <= :before"
        return self._run(statement, {"before": before, **given_ids(ids)}).rowcount

    def delete_endless_tokens(self, at_most: int, *, but: bytes) -> int:
        condition = f"{_DAY} IS NULL AND token_hash <> ? LIMIT ?"
        return self._delete_some("auth_tokens", "id", condition, but, at_most)

    def idle_endless_tokens(self, since: str, at_most: int) -> list[tuple[int, str, str]]:
        """(id, name, email of the user) of API tokens without an expiry date that were not used since."""
        statement = (
            "SELECT auth_tokens.id, auth_tokens.name, email FROM auth_tokens JOIN users ON users.id = user_id"
            f" WHERE kind = 'api' AND {_DAY} IS NULL AND coalesce(last_used_at, auth_tokens.created_at) < ?"
            " ORDER BY auth_tokens.id LIMIT ?"
        )
        return self._run(statement, (since, at_most)).fetchall()

    def last_session_id(self, before: str) -> int:
        """Of those that were opened before."""
        return self._number(
            "SELECT id FROM auth_tokens WHERE created_at < ? ORDER BY id DESC LIMIT 1", (before,)
        )

    def sign_ins_after(self, session_id: int) -> Iterator[tuple[Session, str]]:
        """The sessions that were opened since this one, with the address of their user."""
        return self._with_emails("auth_tokens.id > :id AND kind <> 'api'", id=session_id)

    def _with_emails(self, where: str, **values: Any) -> Iterator[tuple[Session, str]]:
        statement = (
            f"SELECT {_SESSION}, email FROM auth_tokens JOIN users ON users.id = user_id"
            f" WHERE {where} ORDER BY auth_tokens.id"
        )
        return ((Session(*row[:_COLUMNS]), row[_COLUMNS]) for row in self._stream(statement, values))

    def last_logins(self, at_most: int) -> list[tuple[int, str]]:
        """(user, address) of the newest sessions."""
        where = "kind <> 'api' AND ip IS NOT NULL ORDER BY id DESC LIMIT ?"
        return self._run(f"SELECT user_id, ip FROM auth_tokens WHERE {where}", (at_most,)).fetchall()


def _session_of(row: Any) -> Session:
    return Session(*row)
