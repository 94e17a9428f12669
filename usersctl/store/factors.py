"""The tables of second factors, and of what waits for one: sign-ins and enrolments."""

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from usersctl.clock import stamp
from usersctl.models import Passkey, PendingSignIn, TotpSecret
from usersctl.store.one_time_tokens import NONE_REMEMBERED
from usersctl.store.statements import Statements, places

_TOTP = ", ".join(TotpSecret._fields)
_PASSKEY = ", ".join(Passkey._fields)
_PENDING = "token_hash, user_id, opened_with, persistent, auth_time, amr, failures"


class Factors(Statements):
    # --- authenticator apps ---

    def begin_totp(self, session_id: int, user_id: int, secret: bytes, lifetime: timedelta) -> None:
        """The session has one secret that waits, the newest."""
        self._run("DELETE FROM totp_enrolments WHERE session_id = ?", (session_id,))
        until = stamp(self.now + lifetime)
        self._insert(
            "totp_enrolments", session_id=session_id, user_id=user_id, secret=secret, expires_at=until
        )

    def begun_totp(self, session_id: int, user_id: int) -> bytes | None:
        statement = (
            "SELECT secret FROM totp_enrolments WHERE session_id = ? AND user_id = ? AND expires_at > ?"
        )
        return self._value(bytes, statement, (session_id, user_id, self.now_text))

    def delete_begun_totp(self, user_id: int) -> None:
        self._run("DELETE FROM totp_enrolments WHERE user_id = ?", (user_id,))

    def add_totp(self, user_id: int, secret: bytes, last_step: int) -> bool:
        """False if the account has one."""
        added = self._insert(
            "totp_secrets",
            "ON CONFLICT DO NOTHING",
            user_id=user_id,
            secret=secret,
            created_at=self.now_text,
            last_step=last_step,
        )
        return added.rowcount == 1

    def totp(self, user_id: int) -> TotpSecret | None:
        return self._first(
            TotpSecret._make, f"SELECT {_TOTP} FROM totp_secrets WHERE user_id = ?", (user_id,)
        )

    def count_code(self, user_id: int) -> None:
        self._run("UPDATE totp_secrets SET failures = failures + 1 WHERE user_id = ?", (user_id,))

    def tried_codes(self, user_id: int) -> int:
        """How many, since a second factor was right."""
        statement = "SELECT failures FROM totp_secrets WHERE user_id = ?"
        return self._number(statement, (user_id,))

    def clear_codes(self, user_id: int) -> bool:
        statement = "UPDATE totp_secrets SET failures = 0 WHERE user_id = ? AND failures > 0"
        return self._run(statement, (user_id,)).rowcount == 1

    def use_totp_step(self, totp: TotpSecret, step: int) -> bool:
        """False if a code of this step or a later one was used, or the secret is another by now."""
        where = "user_id = ? AND created_at = ? AND last_step < ?"
        values = (step, totp.user_id, totp.created_at, step)
        return (
            self._run(f"UPDATE totp_secrets SET last_step = ?, failures = 0 WHERE {where}", values).rowcount
            == 1
        )

    def delete_totp(self, user_id: int, made_at: str | None = None) -> bool:
        """With `made_at` only the secret of that moment."""
        where = "user_id = ? AND created_at = coalesce(?, created_at)"
        return self._run(f"DELETE FROM totp_secrets WHERE {where}", (user_id, made_at)).rowcount == 1

    def totp_secrets(self, after: int, at_most: int) -> list[TotpSecret]:
        """By the ids of their users, after this one."""
        statement = f"SELECT {_TOTP} FROM totp_secrets WHERE user_id > ? ORDER BY user_id LIMIT ?"
        return list(map(TotpSecret._make, self._run(statement, (after, at_most))))

    def replace_totp_secret(self, totp: TotpSecret, sealed: bytes) -> bool:
        """False if it was replaced meanwhile, or is gone."""
        statement = "UPDATE totp_secrets SET secret = ? WHERE user_id = ? AND secret = ?"
        return self._run(statement, (sealed, totp.user_id, totp.secret)).rowcount == 1

    def count_totp(self) -> int:
        return self._number("SELECT count(*) FROM totp_secrets")

    def count_totp_by_beginning(self, length: int) -> dict[bytes, int]:
        """By so many bytes at the beginning of the sealed secrets, which name their key."""
        counts = "SELECT substr(secret, 1, CAST(? AS INTEGER)), count(*) FROM totp_secrets GROUP BY 1"
        return {bytes(beginning): count for beginning, count in self._run(counts, (length,))}

    def emails_of_totp(self, beginning: bytes, at_most: int) -> list[str]:
        """Of users whose sealed secret begins so."""
        begins = "substr(secret, 1, CAST(? AS INTEGER)) = ?"
        secrets = f"SELECT user_id FROM totp_secrets WHERE {begins} ORDER BY user_id LIMIT ?"
        statement = f"SELECT email FROM users WHERE id IN ({secrets}) ORDER BY id"
        return [email for (email,) in self._run(statement, (len(beginning), beginning, at_most))]

    # --- passkeys ---

    def count_passkeys_by_rp(self) -> dict[str, int]:
        return dict(self._run("SELECT rp_id, count(*) FROM passkeys GROUP BY rp_id").fetchall())

    def passkeys(self, user_id: int) -> list[Passkey]:
        statement = f"SELECT {_PASSKEY} FROM passkeys WHERE user_id = ? ORDER BY id"
        return list(map(_passkey, self._run(statement, (user_id,))))

    def users_with_passkey(self, user_ids: Sequence[int], rp_id: str) -> set[int]:
        """Those of these users who have one that was made for this host."""
        statement = f"SELECT user_id FROM passkeys WHERE user_id IN ({places(user_ids)}) AND rp_id = ?"
        return {user_id for (user_id,) in self._run(statement, (*user_ids, rp_id))}

    def passkey(self, credential_id: bytes) -> Passkey | None:
        return self._first(
            _passkey, f"SELECT {_PASSKEY} FROM passkeys WHERE credential_id = ?", (credential_id,)
        )

    def add_passkey(
        self, user_id: int, credential_id: bytes, *, rp_id: str, **columns: Any
    ) -> Passkey | None:
        """None if an account, also this one, has it."""
        added = self._insert(
            "passkeys",
            f"ON CONFLICT DO NOTHING RETURNING {_PASSKEY}",
            user_id=user_id,
            credential_id=credential_id,
            rp_id=rp_id,
            created_at=self.now_text,
            **columns,
        ).fetchone()
        return None if added is None else _passkey(added)

    def use_passkey(self, passkey_id: int, sign_count: int, *, synced: bool) -> bool:
        """False if its counter did not grow, or if it is gone. One that stays 0 counts nothing: that of a synced passkey."""
        row = {"id": passkey_id, "count": sign_count, "synced": synced, "now": self.now_text}
        changes = "sign_count = :count, synced = :synced, last_used_at = :now"
        where = "id = :id AND (sign_count < :count OR sign_count = 0)"
        return self._run(f"UPDATE passkeys SET {changes} WHERE {where}", row).rowcount == 1

    def rename_passkey(self, user_id: int, passkey_id: int, name: str) -> Passkey | None:
        statement = f"UPDATE passkeys SET name = ? WHERE id = ? AND user_id = ? RETURNING {_PASSKEY}"
        return self._first(_passkey, statement, (name, passkey_id, user_id))

    def delete_passkey(self, user_id: int, passkey_id: int) -> Passkey | None:
        statement = f"DELETE FROM passkeys WHERE id = ? AND user_id = ? RETURNING {_PASSKEY}"
        return self._first(_passkey, statement, (passkey_id, user_id))

    def delete_passkeys(self, user_id: int) -> int:
        return self._run("DELETE FROM passkeys WHERE user_id = ?", (user_id,)).rowcount

    # --- recovery codes ---

    def add_recovery_codes(self, user_id: int, hashes: list[bytes]) -> None:
        """In the place of those that the account has."""
        self.delete_recovery_codes(user_id)
        rows = [(user_id, code_hash, self.now_text) for code_hash in hashes]
        self._insert_rows("recovery_codes", ("user_id", "code_hash", "created_at"), rows)

    def count_recovery_codes(self, user_id: int) -> int:
        return self._number("SELECT count(*) FROM recovery_codes WHERE user_id = ?", (user_id,))

    def take_recovery_code(self, user_id: int, code_hash: bytes) -> bool:
        """Uses the code in one statement, so that it works once, also in parallel."""
        statement = "DELETE FROM recovery_codes WHERE user_id = ? AND code_hash = ?"
        return self._run(statement, (user_id, code_hash)).rowcount == 1

    def delete_recovery_codes(self, user_id: int, made_at: str | None = None) -> int:
        """With `made_at` only those of that moment."""
        where = "user_id = ? AND created_at = coalesce(?, created_at)"
        return self._run(f"DELETE FROM recovery_codes WHERE {where}", (user_id, made_at)).rowcount

    def note_factors_changed(self, user_id: int) -> None:
        """Devices that were remembered before ask for the second factor again."""
        self._run("UPDATE users SET factors_since = ? WHERE id = ?", (self.now_text, user_id))
        self._run(f"{NONE_REMEMBERED} AND user_id = ?", (user_id,))

    def forget_remembered(self) -> None:
        """The devices of all users ask for the second factor again."""
        holders = "SELECT user_id FROM totp_secrets UNION SELECT user_id FROM passkeys"
        self._run(f"UPDATE users SET factors_since = ? WHERE id IN ({holders})", (self.now_text,))
        self._run(NONE_REMEMBERED)

    # --- sign-ins that wait for their second factor ---

    def add_pending(self, pending: PendingSignIn, lifetime: timedelta) -> None:
        row: dict[str, Any] = dict(zip(_PENDING.split(", "), pending, strict=True))
        self._insert("pending_sign_ins", expires_at=stamp(self.now + lifetime), **row)

    def pending(self, token_hash: bytes) -> PendingSignIn | None:
        statement = f"SELECT {_PENDING} FROM pending_sign_ins WHERE token_hash = ? AND expires_at > ?"
        return self._first(_pending, statement, (token_hash, self.now_text))

    def note_wrong_code(self, token_hash: bytes, at_most: int) -> None:
        """So many wrong codes end the sign-in."""
        self._run("UPDATE pending_sign_ins SET failures = failures + 1 WHERE token_hash = ?", (token_hash,))
        self._run(
            "DELETE FROM pending_sign_ins WHERE token_hash = ? AND failures >= ?", (token_hash, at_most)
        )

    def delete_pending(self, token_hash: bytes) -> None:
        self._run("DELETE FROM pending_sign_ins WHERE token_hash = ?", (token_hash,))

    # --- cleanup ---

    def delete_expired_pending(self, before: str, at_most: int) -> int:
        return self._delete_some("pending_sign_ins", "token_hash", "expires_at <= ? LIMIT ?", before, at_most)

    def delete_expired_enrolments(self, before: str, at_most: int) -> int:
        return self._delete_some("totp_enrolments", "session_id", "expires_at <= ? LIMIT ?", before, at_most)


def _passkey(row: Any) -> Passkey:
    passkey = Passkey._make(row)
    return passkey._replace(synced=passkey.synced == 1)


def _pending(row: Any) -> PendingSignIn:
    pending = PendingSignIn._make(row)
    return pending._replace(is_persistent=pending.is_persistent == 1)
