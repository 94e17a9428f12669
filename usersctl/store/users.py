"""The table of users, and how its rows become models."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import timedelta
from itertools import chain
from operator import attrgetter
from typing import Any

from usersctl.clock import stamp
from usersctl.errors import NotFound, Taken
from usersctl.folding import folded, folded_address, with_folded
from usersctl.models import Claim, Credentials, Newcomer, User
from usersctl.store.one_time_tokens import NONE_REMEMBERED
from usersctl.store.statements import Statements, given_ids, places

USER = (
    "users.id, email, users.name, role, active, users.created_at, updated_at, last_login_at, oauth_id,"
    " profile_picture, email_proven_at, awaiting_confirmation, delete_at, claimed_email, claim_expires_at,"
    " invited_at, factors"
)

_CREDENTIALS = f"SELECT {USER}, password_hash FROM users"
# Both indexes are used. No address is known and claimed at once, so that at most one row fits.
_CALLED = "email = :address OR (claimed_email = :address AND claim_expires_at > :now)"
_NEW_USER = f"(?, ?, ?{', ?' * len(Newcomer._fields)})"

_FOREIGN = "substr(password_hash, 1, 2) <> '$2' AND substr(password_hash, 1, 1) <> '!'"  # as the index has it
_LAST = "\U0010ffff"  # sorts after every other character


class Users(Statements):
    def user(self, user_id: int) -> User | None:
        return self._user_where("id = ?", (user_id,))

    def existing_user(self, user_id: int) -> User:
        """Raises NotFound."""
        user = self.user(user_id)
        if user is None:
            raise NotFound("User not found")
        return user

    def user_by_email(self, email: str) -> User | None:
        return self._user_where("email = ?", (email,))

    def user_called(self, address: str) -> User | None:
        """By the known address, or by the one that the user claims."""
        return self._user_where(_CALLED, self._called(address))

    def credentials(self, address: str) -> Credentials | None:
        return self._first(self._credentials, f"{_CREDENTIALS} WHERE {_CALLED}", self._called(address))

    def credentials_of(self, user_id: int) -> Credentials | None:
        return self._first(self._credentials, f"{_CREDENTIALS} WHERE id = ?", (user_id,))

    def credentials_of_each(self, user_ids: Sequence[int]) -> list[Credentials]:
        rows = self._run(f"{_CREDENTIALS} WHERE id IN ({places(user_ids)})", tuple(user_ids))
        return list(map(self._credentials, rows))

    def all_credentials(self) -> Iterator[Credentials]:
        return map(self._credentials, self._stream(f"{_CREDENTIALS} ORDER BY users.id"))

    def claimant(self, email: str) -> User | None:
        """The user whose row claims this address, also if the claim has expired."""
        return self._user_where("claimed_email = ?", (email,))

    def claim_of(self, user_id: int) -> Claim | None:
        """A claim that has not expired."""
        columns = "claimed_email, claim_expires_at, claim_proven_at, claim_approved_at"
        statement = f"SELECT {columns} FROM users WHERE id = ? AND claim_expires_at > ?"
        return self._first(Claim._make, statement, (user_id, self.now_text))

    def prolong_claim(self, user_id: int, email: str, until: str) -> None:
        """A claim lives as long as the newest link to prove or approve it."""
        where = "id = :id AND claimed_email = :email AND claim_expires_at < :until"
        values = {"id": user_id, "email": email, "until": until}
        self._run(f"UPDATE users SET claim_expires_at = :until WHERE {where}", values)

    def clear_claim(self, *user_ids: int) -> None:
        self._run(
            "UPDATE users SET claimed_email = NULL, claimed_folded = NULL, claim_expires_at = NULL,"
            " claim_proven_at = NULL, claim_approved_at = NULL, updated_at = :now"
            f" WHERE id IN ({self.AMONG}) AND claimed_email IS NOT NULL",
            {"now": self.now_text, **given_ids(user_ids)},
        )

    def expired_claims(self, at_most: int) -> list[User]:
        expired = "claim_expires_at <= ? ORDER BY claim_expires_at LIMIT ?"
        return self._users_where(expired, (self.now_text, at_most))

    def unconfirmed_since(self, before: str, at_most: int, *, after: int = 0) -> list[User]:
        """Registrations that were made before this time and never confirmed, without so many of the first ones."""
        old = "awaiting_confirmation = 1 AND created_at <= ? ORDER BY created_at, id LIMIT ? OFFSET ?"
        return self._users_where(old, (before, at_most, after))

    def add_user(self, newcomer: Newcomer) -> User:
        """Raises Taken if another account has the address."""
        (user_id,) = self.add_users([newcomer])
        return self.existing_user(user_id)

    def add_users(self, newcomers: Sequence[Newcomer]) -> list[int]:
        """All by one statement: for each statement, the triggers that count users cost more than the rows. Returns the ids."""
        values: list[Any] = []
        for newcomer in newcomers:
            made = newcomer if newcomer.created_at else newcomer._replace(created_at=self.now_text)
            values += (made.created_at, folded(made.name), folded_address(made.email), *made)
        statement = (
            f"INSERT INTO users (updated_at, name_folded, email_folded, {', '.join(Newcomer._fields)})"
            f" VALUES {', '.join([_NEW_USER] * len(newcomers))} ON CONFLICT DO NOTHING RETURNING id"
        )
        ids = sorted(chain.from_iterable(self._run(statement, values)))
        if len(ids) < len(newcomers):
            raise Taken("Email is already registered")
        return ids

    def emails_in_use(self, emails: Sequence[str]) -> set[str]:
        """Those that an account has, claims or had lately."""
        these = places(emails)
        statement = (
            f"SELECT email FROM users WHERE email IN ({these})"
            f" UNION ALL SELECT claimed_email FROM users WHERE claimed_email IN ({these})"
            f" UNION ALL SELECT email FROM reserved_emails WHERE email IN ({these})"
        )
        return {email for (email,) in self._run(statement, (*emails, *emails, *emails))}

    def change_user(self, user_id: int, **changes: Any) -> User:
        (changed,) = self._change("id = :id", {"id": user_id}, changes)
        return changed

    def change_users(self, user_ids: Iterable[int], **changes: Any) -> list[User]:
        """All in the same way, in the order of their ids."""
        changed = self._change(f"id IN ({self.AMONG})", given_ids(user_ids), changes)
        return sorted(changed, key=attrgetter("id"))

    def _change(self, where: str, which: dict[str, Any], changes: dict[str, Any]) -> list[User]:
        changes = with_folded(changes)
        parts = ", ".join(f"{name} = :{name}" for name in (*changes, "updated_at"))
        values = {**changes, "updated_at": self.now_text, **which}
        rows = self._run(f"UPDATE users SET {parts} WHERE {where} RETURNING {USER}", values)
        return list(map(self._user, rows))

    def note_login(self, user_id: int) -> None:
        self._run("UPDATE users SET last_login_at = ? WHERE id = ?", (self.now_text, user_id))

    def devices_since(self, user_id: int) -> str:
        """The devices of the user that signed in before are not known any more."""
        statement = "SELECT coalesce(devices_since, '') FROM users WHERE id = ?"
        return self._value(str, statement, (user_id,)) or ""

    def remembered_since(self, user_id: int) -> str:
        """A device that was remembered before asks for the second factor again."""
        statement = "SELECT coalesce(devices_since, ''), coalesce(factors_since, '') FROM users WHERE id = ?"
        return str(max(self._first(tuple, statement, (user_id,)) or ("",)))

    def forget_devices(self, *user_ids: int) -> None:
        among, ids = f"IN ({self.AMONG})", given_ids(user_ids)
        self._run(f"UPDATE users SET devices_since = :now WHERE id {among}", {"now": self.now_text, **ids})
        self._run(f"{NONE_REMEMBERED} AND user_id {among}", ids)

    def renew_hash(self, user_id: int, password_hash: str) -> None:
        """Another hash of the same password, which is no change of the account."""
        self._run("UPDATE users SET password_hash = ? WHERE id = ?", (password_hash, user_id))

    def foreign_hashes(self, beginning: Callable[[str], str], at_most: int) -> Iterator[str]:
        """One hash of another system for each beginning that such hashes share, in their order."""
        statement = f"SELECT min(password_hash) FROM users WHERE {_FOREIGN} AND password_hash > ?"
        after = ""
        for _ in range(at_most):
            ((stored,),) = self._run(statement, (after,))
            if stored is None:
                return
            yield stored
            after = beginning(stored) + _LAST

    def count_foreign_hashes(self, beginning: str) -> int:
        statement = f"SELECT count(*) FROM users WHERE {_FOREIGN} AND password_hash BETWEEN ? AND ?"
        return self._number(statement, (beginning, beginning + _LAST))

    def users_to_delete(self, at_most: int, *, after: int = 0, since: str | None = None) -> list[User]:
        """Users whose time to undo their deletion is over, or was at `since`, without so many of the first ones."""
        due = "delete_at <= ? AND +active = 0 ORDER BY delete_at, id LIMIT ? OFFSET ?"
        return self._users_where(due, (since or self.now_text, at_most, after))

    def postpone_deletions(self, by: timedelta) -> None:
        """Those that would come sooner."""
        until = stamp(self.now + by)
        self._run("UPDATE users SET delete_at = ? WHERE delete_at < ?", (until, until))

    def deleted_by_owners(self) -> list[User]:
        """Those whose deletion can still be undone."""
        return self._users_where("delete_at > ? ORDER BY id", (self.now_text,))

    def delete_users(self, user_ids: Iterable[int]) -> None:
        """Deletes also all rows that refer to the users, by the foreign keys of schema.sql; links of an invitation stay, to
        say what became of it.

        By one statement each: on a server each change of a counter takes longer than the one before, until the commit.
        """
        ids = given_ids(user_ids)
        self._run(
            "UPDATE one_time_tokens SET user_id = NULL, email = '', purpose = CASE purpose"
            " WHEN 'invite_used' THEN 'invite_deleted' ELSE 'invite_withdrawn' END"
            f" WHERE user_id IN ({self.AMONG}) AND purpose LIKE 'invite%'",
            ids,
        )
        # Foreign keys would do it one by one.
        self._run(f"DELETE FROM group_members WHERE user_id IN ({self.AMONG})", ids)
        self._run(f"DELETE FROM users WHERE id IN ({self.AMONG})", ids)

    def active_admins(self) -> int:
        active = "role = 'admin' AND active = 1"
        return self._number(f"SELECT sum(n) FROM user_counts WHERE {active}")

    def _user_where(self, condition: str, values: Any) -> User | None:
        return self._first(self._user, f"SELECT {USER} FROM users WHERE {condition}", values)

    def _users_where(self, condition: str, values: Any) -> list[User]:
        return list(map(self._user, self._run(f"SELECT {USER} FROM users WHERE {condition}", values)))

    def _user(self, row: Any) -> User:
        return user_of(row, self)

    def _credentials(self, row: Any) -> Credentials:
        return Credentials(user_of(row, self), row[-1])

    def _called(self, address: str) -> dict[str, str]:
        return {"address": address, "now": self.now_text}


def user_of(row: Any, at: Statements) -> User:
    """At the moment of this transaction: a claim ends with its time, before its row is cleared."""
    claimed = row[13]
    if claimed is not None and row[14] <= at.now_text:
        claimed = None
    # SQLite returns booleans as 0 and 1.
    return User._make(
        (*row[:4], row[4] == 1, *row[5:11], row[11] == 1, row[12], claimed, row[15], row[16], ())
    )
