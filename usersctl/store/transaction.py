"""Transaction: all the SQL, and the only place where rows become models. It decides nothing."""

import json
import sqlite3
from collections.abc import Iterator
from typing import Any

from usersctl.models import Actor, AuditRow, Credentials, Letter, Lockdown, NewUser, Session, User, UserFilter
from usersctl.store import chain

_USER = (
    "users.id, email, users.name, role, active, users.created_at, updated_at, last_login_at, oauth_id,"
    " profile_picture, email_proven_at, awaiting_confirmation"
)
_SESSION = (
    "auth_tokens.id, user_id, kind, auth_tokens.name, auth_tokens.created_at, last_used_at, expires_at, limit_at, ip,"
    " user_agent"
)
_SESSION_COLUMNS = len(Session._fields) - len(Session._field_defaults)

_LETTER = ", ".join(Letter._fields)
_AUDIT = ", ".join(AuditRow._fields)

# Whole phrases, so that nothing that a caller says becomes SQL, and so that the partial indexes are found.
_SORTS = {"name": "name", "email": "email", "created": "created_at", "last-login": "last_login_at"}
_ROLES = {"admin": "role = 'admin'", "user": "role = 'user'"}
_ACTIVE = {True: "active = 1", False: "active = 0"}
_LARGEST = 2**63 - 1  # integer of SQLite

_SESSION_BY_HASH = (
    f"SELECT {_SESSION}, {_USER} FROM auth_tokens JOIN users ON users.id = user_id"
    " WHERE token_hash = ? AND active = 1 AND (expires_at IS NULL OR expires_at > ?)"
    # In a lockdown: sessions of the one admin, and no token of a machine.
    " AND NOT EXISTS (SELECT 1 FROM lockdown WHERE except_id IS NOT users.id OR role <> 'admin' OR kind = 'api')"
)


class Transaction:
    """The questions and changes that the journeys need, each named for what it is about."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._run = connection.execute
        self.wrote_letter = False

    # --- users ---

    def user(self, user_id: int) -> User | None:
        return _user(self._run(f"SELECT {_USER} FROM users WHERE id = ?", (user_id,)).fetchone())

    def user_by_email(self, email: str) -> User | None:
        return _user(self._run(f"SELECT {_USER} FROM users WHERE email = ?", (email,)).fetchone())

    def user_by_oauth_id(self, oauth_id: str) -> User | None:
        return _user(self._run(f"SELECT {_USER} FROM users WHERE oauth_id = ?", (oauth_id,)).fetchone())

    def credentials(self, email: str) -> Credentials | None:
        return _credentials(
            self._run(f"SELECT {_USER}, password_hash FROM users WHERE email = ?", (email,)).fetchone()
        )

    def credentials_of(self, user_id: int) -> Credentials | None:
        return _credentials(
            self._run(f"SELECT {_USER}, password_hash FROM users WHERE id = ?", (user_id,)).fetchone()
        )

    def add_user(self, new: NewUser) -> User | None:
        """None: the address, or the provider's account, is taken."""
        columns = new._asdict() | {"updated_at": new.created_at}
        names, marks = ", ".join(columns), ", ".join(f":{name}" for name in columns)
        return _user(
            self._run(
                f"INSERT INTO users ({names}) VALUES ({marks}) ON CONFLICT DO NOTHING RETURNING {_USER}",
                columns,
            ).fetchone()
        )

    def change_user(self, user_id: int, now: str, **changes: Any) -> User:
        parts = ", ".join(f"{name} = :{name}" for name in (*changes, "updated_at"))
        return _row_to_user(
            self._run(
                f"UPDATE users SET {parts} WHERE id = :id RETURNING {_USER}",
                {**changes, "updated_at": now, "id": user_id},
            ).fetchone()
        )

    def note_login(self, user_id: int, now: str) -> None:
        self._run("UPDATE users SET last_login_at = ? WHERE id = ?", (now, user_id))

    def renew_hash(self, user_id: int, old: str, new: str) -> None:
        """Not, if the password was changed in the meantime."""
        self._run(
            "UPDATE users SET password_hash = ? WHERE id = ? AND password_hash = ?", (new, user_id, old)
        )

    def delete_user(self, user_id: int) -> None:
        """With all that hangs on it, by the foreign keys of schema.sql."""
        self._run("DELETE FROM users WHERE id = ?", (user_id,))

    def active_admins(self) -> int:
        return int(self._run("SELECT n FROM user_counts WHERE role = 'admin' AND active = 1").fetchone()[0])

    def count_users(self, wanted: UserFilter) -> int:
        if not wanted.search:
            where, _ = _where(wanted)
            return int(self._run(f"SELECT coalesce(sum(n), 0) FROM user_counts{where}").fetchone()[0])
        where, values = _where(wanted)
        return int(self._run(f"SELECT count(*) FROM users{where}", values).fetchone()[0])

    def users(
        self, wanted: UserFilter, *, limit: int = -1, offset: int = 0, behind: User | None = None
    ) -> Iterator[User]:
        """`behind`: only who comes after this one, in a list by name."""
        where, values = _where(wanted, behind)
        cursor = self._run(
            f"SELECT {_USER} FROM users{where} ORDER BY {_order(wanted)} LIMIT :limit OFFSET :offset",
            {**values, "limit": limit, "offset": min(offset, _LARGEST)},
        )
        return map(_row_to_user, cursor)

    def all_credentials(self) -> Iterator[Credentials]:
        cursor = self._run(f"SELECT {_USER}, password_hash FROM users ORDER BY users.id")
        return (Credentials(_row_to_user(row), row[-1]) for row in cursor)

    # --- sessions and API tokens ---

    def add_token(self, user_id: int, token_hash: bytes, token: dict[str, Any]) -> Session:
        columns = token | {"user_id": user_id, "token_hash": token_hash}
        names, marks = ", ".join(columns), ", ".join(f":{name}" for name in columns)
        row = self._run(
            f"INSERT INTO auth_tokens ({names}) VALUES ({marks}) RETURNING {_SESSION}", columns
        ).fetchone()
        return Session(*row)

    def session(self, token_hash: bytes, now: str) -> tuple[Session, User] | None:
        """The session check, in one query: a token that has not expired, of a user who is active."""
        row = self._run(_SESSION_BY_HASH, (token_hash, now)).fetchone()
        return (
            None if row is None else (Session(*row[:_SESSION_COLUMNS]), _row_to_user(row[_SESSION_COLUMNS:]))
        )

    def use_token(self, token_id: int, now: str, expires_at: str | None) -> None:
        self._run(
            "UPDATE auth_tokens SET last_used_at = ?, expires_at = ? WHERE id = ?",
            (now, expires_at, token_id),
        )

    def token(self, token_id: int) -> Session | None:
        row = self._run(f"SELECT {_SESSION} FROM auth_tokens WHERE id = ?", (token_id,)).fetchone()
        return Session(*row) if row else None

    def replace_token_hash(self, token_id: int, token_hash: bytes) -> bool:
        changed = self._run("UPDATE auth_tokens SET token_hash = ? WHERE id = ?", (token_hash, token_id))
        return changed.rowcount == 1

    def tokens(self, user_id: int | None = None, *, unexpired_at: str | None = None) -> Iterator[Session]:
        cursor = self._run(
            f"SELECT {_SESSION} FROM auth_tokens WHERE {'TRUE' if user_id is None else 'user_id = :user'}"
            " AND (:now IS NULL OR expires_at IS NULL OR expires_at > :now) ORDER BY id",
            {"user": user_id, "now": unexpired_at},
        )
        return (Session(*row) for row in cursor)

    def delete_token(self, token_hash: bytes) -> Session | None:
        row = self._run(
            f"DELETE FROM auth_tokens WHERE token_hash = ? RETURNING {_SESSION}", (token_hash,)
        ).fetchone()
        return Session(*row) if row else None

    def delete_token_by_id(self, token_id: int, user_id: int | None = None) -> Session | None:
        row = self._run(
            f"DELETE FROM auth_tokens WHERE id = :id AND (:user IS NULL OR user_id = :user) RETURNING {_SESSION}",
            {"id": token_id, "user": user_id},
        ).fetchone()
        return Session(*row) if row else None

    def delete_tokens_of(self, user_id: int, *, but: int | None = None) -> int:
        return self._run("DELETE FROM auth_tokens WHERE user_id = ? AND id IS NOT ?", (user_id, but)).rowcount

    def end_all_sessions(self, now: str) -> int:
        """And the links that let somebody set a password. The tokens of machines stay: nobody could make them anew."""
        ended = self._run("DELETE FROM auth_tokens WHERE kind <> 'api'").rowcount
        self._run("DELETE FROM one_time_tokens WHERE purpose IN ('reset', 'setup')")
        self._run(
            "UPDATE outbox SET state = 'dropped', finished_at = ? WHERE state = 'waiting' AND kind = 'reset'",
            (now,),
        )
        return ended

    def count_stale_tokens(self, now: str) -> tuple[int, int]:
        """(expired, without an expiry date)"""
        expired = self._run("SELECT count(*) FROM auth_tokens WHERE expires_at <= ?", (now,)).fetchone()[0]
        endless = self._run("SELECT count(*) FROM auth_tokens WHERE expires_at IS NULL").fetchone()[0]
        return expired, endless

    def count_live_tokens(self, now: str) -> int:
        """Sessions and API tokens that have not expired, counted by the index of their expiry alone."""
        live = self._run("SELECT count(*) FROM auth_tokens WHERE expires_at > ?", (now,)).fetchone()[0]
        return int(
            live + self._run("SELECT count(*) FROM auth_tokens WHERE expires_at IS NULL").fetchone()[0]
        )

    def delete_expired_tokens(self, now: str, at_most: int) -> int:
        return self._run(
            "DELETE FROM auth_tokens WHERE id IN (SELECT id FROM auth_tokens WHERE expires_at <= ? LIMIT ?)",
            (now, at_most),
        ).rowcount

    def delete_endless_tokens(self, at_most: int) -> int:
        return self._run(
            "DELETE FROM auth_tokens WHERE id IN (SELECT id FROM auth_tokens WHERE expires_at IS NULL LIMIT ?)",
            (at_most,),
        ).rowcount

    # --- one-time tokens ---

    def add_one_time_token(
        self, token_hash: bytes, purpose: str, user_id: int | None, email: str, now: str, expires_at: str
    ) -> None:
        self._run(
            "INSERT INTO one_time_tokens (token_hash, purpose, user_id, email, created_at, expires_at)"
            " VALUES (?, ?, ?, ?, ?, ?)",
            (token_hash, purpose, user_id, email, now, expires_at),
        )

    def one_time_token(self, purpose: str, token_hash: bytes, now: str) -> tuple[int | None, str] | None:
        """(user id, address) of a token that could still be used."""
        row = self._run(
            "SELECT user_id, email FROM one_time_tokens WHERE token_hash = ? AND purpose = ? AND expires_at > ?",
            (token_hash, purpose, now),
        ).fetchone()
        return (row[0], row[1]) if row else None

    def take_one_time_token(self, purpose: str, token_hash: bytes, now: str) -> tuple[int | None, str] | None:
        """(user id, address) of a token that is used by this very statement, and so by nobody else."""
        row = self._run(
            "DELETE FROM one_time_tokens WHERE token_hash = ? AND purpose = ? AND expires_at > ?"
            " RETURNING user_id, email",
            (token_hash, purpose, now),
        ).fetchone()
        return (row[0], row[1]) if row else None

    def spend_once(self, token_hash: bytes, purpose: str, now: str, until: str) -> bool:
        """False where it was spent before."""
        spent = self._run(
            "INSERT INTO one_time_tokens (token_hash, purpose, email, created_at, expires_at) VALUES (?, ?, '', ?, ?)"
            " ON CONFLICT DO NOTHING",
            (token_hash, purpose, now, until),
        )
        return spent.rowcount == 1

    def drop_setup_tokens(self) -> None:
        self._run("DELETE FROM one_time_tokens WHERE purpose = 'setup'")

    def drop_one_time_tokens(self, user_id: int, now: str) -> None:
        """Those that were sent, and the letters that would send more. But for the owner's "this wasn't me": an intruder
        who changes more than one thing would take it away."""
        self._run("DELETE FROM one_time_tokens WHERE user_id = ? AND purpose != 'not_me'", (user_id,))
        self._run(
            "UPDATE outbox SET state = 'dropped', finished_at = ? WHERE user_id = ? AND state = 'waiting'"
            " AND kind IN ('confirm', 'reset')",
            (now, user_id),
        )

    def drop_notices(self, user_id: int, email: str | None = None) -> None:
        """The links by which somebody may say "this wasn't me"; with `email` only those that were sent there."""
        self._run(
            "DELETE FROM one_time_tokens WHERE user_id = ? AND purpose = 'not_me' AND email = ifnull(?, email)",
            (user_id, email),
        )

    def delete_expired_one_time_tokens(self, now: str, at_most: int) -> int:
        return self._run(
            "DELETE FROM one_time_tokens WHERE token_hash IN"
            " (SELECT token_hash FROM one_time_tokens WHERE expires_at <= ? LIMIT ?)",
            (now, at_most),
        ).rowcount

    def delete_one_time_token(self, token_hash: bytes) -> None:
        self._run("DELETE FROM one_time_tokens WHERE token_hash = ?", (token_hash,))

    # --- letters ---

    def add_letter(
        self,
        kind: str,
        user_id: int | None,
        email: str,
        now: str,
        message_id: str,
        *,
        at_most: int,
        since: str,
    ) -> None:
        """Beyond `at_most` of a kind to one address or account it is dropped at once, in the time that it takes to keep it."""
        (sent,) = self._run(
            "SELECT count(*) FROM outbox WHERE (email = ? OR user_id = ?) AND kind = ? AND created_at > ?"
            " AND state <> 'dropped'",
            (email, user_id, kind, since),
        ).fetchone()
        dropped = sent >= at_most
        self._run(
            "INSERT INTO outbox (kind, user_id, email, message_id, state, created_at, due_at, finished_at)"
            " VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            (
                kind,
                user_id,
                email,
                message_id,
                "dropped" if dropped else "waiting",
                now,
                now,
                now if dropped else None,
            ),
        )
        self.wrote_letter = True

    def claim_letter(self, now: str, until: str) -> Letter | None:
        """The one that is due longest; nobody else takes it before `until`. It has no error yet while it is being sent."""
        return _letter(
            self._run(
                "UPDATE outbox SET due_at = :until, attempts = attempts + 1, last_error = NULL WHERE id ="
                " (SELECT id FROM outbox WHERE state = 'waiting' AND due_at <= :now ORDER BY due_at, id LIMIT 1)"
                f" RETURNING {_LETTER}",
                {"now": now, "until": until},
            ).fetchone()
        )

    def next_letter_due(self) -> str | None:
        row = self._run(
            "SELECT due_at FROM outbox WHERE state = 'waiting' ORDER BY due_at LIMIT 1"
        ).fetchone()
        return str(row[0]) if row else None

    def finish_letter(self, letter_id: int, state: str, now: str, error: str | None = None) -> None:
        self._run(
            "UPDATE outbox SET state = ?, finished_at = ?, last_error = ? WHERE id = ? AND state = 'waiting'",
            (state, now, error, letter_id),
        )

    def postpone_letter(self, letter_id: int, due_at: str, error: str) -> None:
        self._run(
            "UPDATE outbox SET due_at = ?, last_error = ? WHERE id = ? AND state = 'waiting'",
            (due_at, error, letter_id),
        )

    def retry_letter(self, letter_id: int, now: str) -> Letter | None:
        """Due now, and as if it had never been tried; None where it is done, being sent, or unknown."""
        self.wrote_letter = True
        return _letter(
            self._run(
                "UPDATE outbox SET state = 'waiting', due_at = ?, attempts = 0, finished_at = NULL"
                " WHERE id = ? AND (state = 'failed' OR (state = 'waiting'"
                f" AND (attempts = 0 OR last_error IS NOT NULL OR due_at <= ?))) RETURNING {_LETTER}",
                (now, letter_id, now),
            ).fetchone()
        )

    def letter(self, letter_id: int) -> Letter | None:
        return _letter(self._run(f"SELECT {_LETTER} FROM outbox WHERE id = ?", (letter_id,)).fetchone())

    def letters(self, *, unfinished: bool = False) -> Iterator[Letter]:
        where = " WHERE state IN ('waiting', 'failed')" if unfinished else ""
        return (Letter(*row) for row in self._run(f"SELECT {_LETTER} FROM outbox{where} ORDER BY id"))

    def oldest_letter(self, state: str) -> Letter | None:
        return _letter(
            self._run(
                f"SELECT {_LETTER} FROM outbox WHERE state = ? ORDER BY id LIMIT 1", (state,)
            ).fetchone()
        )

    def letters_of(self, user_id: int) -> Iterator[Letter]:
        """The newest first."""
        cursor = self._run(f"SELECT {_LETTER} FROM outbox WHERE user_id = ? ORDER BY id DESC", (user_id,))
        return (Letter(*row) for row in cursor)

    def count_letters(self) -> dict[str, int]:
        """By state; 0 is told, too."""
        counted = dict(self._run("SELECT state, count(*) FROM outbox GROUP BY state"))
        return {state: counted.get(state, 0) for state in ("waiting", "sent", "failed", "dropped")}

    def delete_finished_letters(self, before: str, at_most: int) -> int:
        """Those that failed stay, for an operator to see."""
        return self._run(
            "DELETE FROM outbox WHERE id IN (SELECT id FROM outbox WHERE finished_at < ? AND state <> 'failed' LIMIT ?)",
            (before, at_most),
        ).rowcount

    # --- failed logins ---

    def failures(self, account: str) -> tuple[int, str] | None:
        """(failed logins in a row, when the last one was)"""
        row = self._run(
            "SELECT failures, last_failed_at FROM login_failures WHERE account = ?", (account,)
        ).fetchone()
        return tuple(row) if row else None

    def count_failure(self, account: str, user_id: int | None, now: str) -> None:
        self._run(
            "INSERT INTO login_failures (account, user_id, failures, last_failed_at) VALUES (?, ?, 1, ?)"
            " ON CONFLICT (account) DO UPDATE SET failures = failures + 1, last_failed_at = excluded.last_failed_at",
            (account, user_id, now),
        )

    def uncount_failure(self, account: str) -> None:
        self._run("UPDATE login_failures SET failures = max(0, failures - 1) WHERE account = ?", (account,))

    def clear_failures(self, account: str) -> bool:
        return self._run("DELETE FROM login_failures WHERE account = ?", (account,)).rowcount == 1

    def delete_oldest_failures(self, keep: int, at_most: int) -> int:
        """Of addresses without an account: those beyond the newest `keep`."""
        return self._run(
            "DELETE FROM login_failures WHERE account IN (SELECT account FROM login_failures WHERE user_id IS NULL"
            " ORDER BY last_failed_at DESC LIMIT ? OFFSET ?)",
            (at_most, keep),
        ).rowcount

    # --- audit ---

    def audit(self, at: str, by: Actor, action: str, user: User | None = None, **details: Any) -> None:
        """One row for each change, in its transaction. Never a secret."""
        last, before = self._run(
            "SELECT (SELECT max(id) FROM audit), (SELECT hash FROM audit_head)"
        ).fetchone()
        row = (
            (last or 0) + 1,
            at,
            by.name,
            by.origin,
            action,
            user.id if user else None,
            user.email if user else None,
            json.dumps(details, ensure_ascii=False),
        )
        link = chain.link(before or chain.START, row)
        self._run(f"INSERT INTO audit ({_AUDIT}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", (*row, link))
        self._run(
            "INSERT INTO audit_head (id, n, hash) VALUES (1, 1, :link)"
            " ON CONFLICT (id) DO UPDATE SET n = n + 1, hash = :link",
            {"link": link},
        )

    def last_id_of(self, email: str) -> int | None:
        """Whose address this is, or was when something was last done to them."""
        user = self.user_by_email(email)
        if user is not None:
            return user.id
        row = self._run(
            "SELECT user_id FROM audit WHERE email = ? AND user_id IS NOT NULL ORDER BY id DESC LIMIT 1",
            (email,),
        ).fetchone()
        return int(row[0]) if row else None

    def audit_rows(
        self, *, user_id: int | None = None, since: str | None = None, from_id: int | None = None
    ) -> Iterator[AuditRow]:
        cursor = self._run(
            f"SELECT {_AUDIT} FROM audit"
            f" WHERE {'TRUE' if user_id is None else 'user_id = :user'}"
            f" AND {'TRUE' if since is None else 'at >= :since'}"
            f" AND {'TRUE' if from_id is None else 'id >= :from_id'} ORDER BY id",
            {"user": user_id, "since": since, "from_id": from_id},
        )
        return map(_audit_row, cursor)

    def first_audited_at(self) -> str | None:
        row = self._run("SELECT at FROM audit ORDER BY id LIMIT 1").fetchone()
        return str(row[0]) if row else None

    def last_cleanup(self) -> AuditRow | None:
        row = self._run(
            f"SELECT {_AUDIT} FROM audit WHERE action = 'cleanup-tokens' ORDER BY id DESC LIMIT 1"
        ).fetchone()
        return _audit_row(row) if row else None

    def last_audit_row(self) -> AuditRow | None:
        row = self._run(f"SELECT {_AUDIT} FROM audit ORDER BY id DESC LIMIT 1").fetchone()
        return _audit_row(row) if row else None

    def audit_head(self) -> chain.Head | None:
        """What the trail should come to; None where somebody took that away."""
        row = self._run("SELECT n, hash FROM audit_head").fetchone()
        return chain.Head(*row) if row else None

    def check_audit(self, expected: bytes | None = None) -> chain.ChainResult:
        """All rows, one by one, against the chain. What was made illegible is a change like any other."""
        rows = self._run(f"SELECT {_AUDIT} FROM audit ORDER BY id")
        rows.connection.text_factory = lambda raw: raw.decode("utf-8", "surrogateescape")
        try:
            return chain.check(rows, self.audit_head(), expected)
        finally:
            rows.connection.text_factory = str

    # --- lockdown ---

    def lockdown(self) -> Lockdown | None:
        row = self._run("SELECT since, actor, except_id FROM lockdown").fetchone()
        if row is None:
            return None
        named = self.user(row[2]) if row[2] is not None else None
        is_admin = named is not None and named.active and named.role == "admin"
        return Lockdown(row[0], row[1], named if is_admin else None)

    def lock_down(self, since: str, actor: str, except_id: int | None) -> None:
        """Of one that is in force only who is let in changes: it stays whose it was, and as old."""
        self._run(
            "INSERT INTO lockdown (id, except_id, since, actor) VALUES (1, ?, ?, ?) ON CONFLICT (id)"
            " DO UPDATE SET except_id = excluded.except_id",
            (except_id, since, actor),
        )

    def end_lockdown(self) -> None:
        self._run("DELETE FROM lockdown")

    # --- the file itself ---

    def change_nothing(self) -> None:
        """Refused where nothing may be written, which SQLite does not tell before somebody tries."""
        self._run("DELETE FROM login_failures WHERE FALSE")

    def parts(self) -> set[str]:
        """The names of tables, indexes and triggers."""
        return {name for (name,) in self._run("SELECT name FROM sqlite_schema")}

    def broken_page(self) -> str | None:
        """The first thing that is wrong with the pages of the file, by a quick look at all of them."""
        (told,) = self._run("PRAGMA quick_check(1)").fetchone()
        return None if told == "ok" else str(told)

    def count_later_than(self, moment: str) -> dict[str, int]:
        """Rows from the future, by table."""
        columns = {
            "users": ("created_at", "updated_at", "last_login_at"),
            "auth_tokens": ("created_at", "last_used_at"),
            "outbox": ("created_at",),
            "audit": ("at",),
        }
        return {
            table: int(
                self._run(
                    f"SELECT count(*) FROM {table} WHERE {' OR '.join(f'{name} > :at' for name in names)}",
                    {"at": moment},
                ).fetchone()[0]
            )
            for table, names in columns.items()
        }

    def last_logins(self, at_most: int) -> list[tuple[int, str]]:
        """(user, address) of the newest sessions."""
        return self._run(
            "SELECT user_id, ip FROM auth_tokens WHERE kind <> 'api' AND ip IS NOT NULL ORDER BY id DESC LIMIT ?",
            (at_most,),
        ).fetchall()

    def forget_all_tokens(self) -> None:
        """Sessions, API tokens and links, among which may be some that were revoked or used after a backup was made."""
        self._run("DELETE FROM auth_tokens")
        self._run("DELETE FROM one_time_tokens WHERE purpose <> 'oauth_spent'")

    def last_user_id_given(self) -> int:
        row = self._run("SELECT seq FROM sqlite_sequence WHERE name = 'users'").fetchone()
        return int(row[0]) if row else 0

    def give_no_user_id_up_to(self, last: int) -> None:
        if last > self.last_user_id_given():
            self._run("DELETE FROM sqlite_sequence WHERE name = 'users'")
            self._run("INSERT INTO sqlite_sequence (name, seq) VALUES ('users', ?)", (last,))

    def counts(self) -> dict[str, int]:
        tables = ("users", "auth_tokens", "one_time_tokens", "outbox", "login_failures", "audit")
        return {name: int(self._run(f"SELECT count(*) FROM {name}").fetchone()[0]) for name in tables}


def _row_to_user(row: Any) -> User:
    # Booleans come as 0 and 1.
    identity, moments = row[:4], row[5:11]
    return User._make((*identity, row[4] == 1, *moments, row[11] == 1))


def _user(row: Any) -> User | None:
    return None if row is None else _row_to_user(row)


def _letter(row: Any) -> Letter | None:
    return None if row is None else Letter(*row)


def _credentials(row: Any) -> Credentials | None:
    return None if row is None else Credentials(_row_to_user(row), row[-1])


def _audit_row(row: Any) -> AuditRow:
    try:
        details = json.loads(row[7])
    except ValueError:  # changed by hand
        details = None
    if not isinstance(details, dict):
        details = {"illegible": row[7]}
    return AuditRow._make((*row[:7], details, row[8].hex()))


def _where(wanted: UserFilter, behind: User | None = None) -> tuple[str, dict[str, Any]]:
    parts: list[str] = []
    values: dict[str, Any] = {}
    if behind is not None:
        parts.append("(name, id) > (:behind_name, :behind_id)")
        values |= {"behind_name": behind.name, "behind_id": behind.id}
    if wanted.role is not None:
        parts.append(_ROLES[wanted.role])
    if wanted.active is not None:
        parts.append(_ACTIVE[wanted.active])
    if wanted.search:
        escaped = wanted.search.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")
        values["search"] = f"%{escaped}%"
        parts.append("(email LIKE :search ESCAPE '\\' OR name LIKE :search ESCAPE '\\')")
    return (" WHERE " + " AND ".join(parts) if parts else ""), values


def _order(wanted: UserFilter) -> str:
    direction = " DESC" if wanted.descending else ""
    return f"{_SORTS[wanted.sort]}{direction}, id{direction}"
