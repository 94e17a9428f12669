"""The table of secrets that work once: the links of emails and of the first set-up, and the states of sign-ins. And of those
of remembered devices, which are not taken."""

from collections.abc import Sequence
from datetime import timedelta

from usersctl.clock import stamp
from usersctl.models import OneTimeToken, Purpose
from usersctl.store.statements import Statements, given_ids

# The times in `users` would not end a device that was remembered by a clock that is ahead.
NONE_REMEMBERED = "DELETE FROM one_time_tokens WHERE purpose = 'remembered'"

_USABLE = "token_hash = ? AND purpose = ? AND expires_at > ?"


class OneTimeTokens(Statements):
    def add_one_time_token(
        self,
        token_hash: bytes,
        purpose: str,
        lifetime: timedelta,
        *,
        user_id: int | None = None,
        email: str = "",
        about: str | None = None,
    ) -> bool:
        """False if the token exists already."""
        added = self._insert(
            "one_time_tokens",
            "ON CONFLICT DO NOTHING",
            token_hash=token_hash,
            purpose=purpose,
            user_id=user_id,
            email=email,
            about=about,
            created_at=self.now_text,
            expires_at=stamp(self.now + lifetime),
        )
        return added.rowcount == 1

    def one_time_token(self, purpose: str, token_hash: bytes) -> OneTimeToken | None:
        """A token that could still be used."""
        statement = f"SELECT user_id, email, about FROM one_time_tokens WHERE {_USABLE}"
        return self._first(OneTimeToken._make, statement, (token_hash, purpose, self.now_text))

    def take_one_time_token(self, purpose: str, token_hash: bytes) -> OneTimeToken | None:
        """Uses the token in one statement, so that it works once, also in parallel."""
        statement = f"DELETE FROM one_time_tokens WHERE {_USABLE} RETURNING user_id, email, about"
        return self._first(OneTimeToken._make, statement, (token_hash, purpose, self.now_text))

    def count_one_time_tokens(self, purpose: str, user_id: int, lifetime: timedelta) -> int:
        """Those of a user that live so long, and still do. One that ends later was made by a clock that was wrong."""
        where = "user_id = ? AND purpose = ? AND expires_at > ? AND expires_at <= ?"
        statement = f"SELECT count(*) FROM one_time_tokens WHERE {where}"
        return self._number(statement, (user_id, purpose, self.now_text, stamp(self.now + lifetime)))

    def drop_setup_tokens(self) -> None:
        self._run("DELETE FROM one_time_tokens WHERE purpose = 'setup'")

    def drop_links(self, *user_ids: int) -> None:
        """Ends the links to confirm, reset, delete and accept an invitation, and drops the emails that would send more.

        The links to take something back stay: an intruder who changes several things must not take them from the owner.
        """
        condition = f"user_id IN ({self.AMONG}) AND purpose IN ('confirm', 'reset', 'delete')"
        self._run(f"DELETE FROM one_time_tokens WHERE {condition}", given_ids(user_ids))
        self._drop_emails("'confirm', 'reset', 'confirm-deletion'", user_ids)
        self.end_invite_links(Purpose.INVITE_WITHDRAWN, *user_ids)

    def end_invite_links(self, end: Purpose, *user_ids: int) -> None:
        """The tokens stay, so that the page of the link can say what became of the invitation."""
        condition = f"user_id IN ({self.AMONG}) AND purpose = 'invite'"
        statement = f"UPDATE one_time_tokens SET purpose = :end WHERE {condition}"
        self._run(statement, {"end": end, **given_ids(user_ids)})
        self._drop_emails("'invitation'", user_ids)

    def invite_link(self, token_hash: bytes) -> tuple[Purpose, OneTimeToken] | None:
        """The link of an invitation, and what became of it."""
        ends = ", ".join(f"'{purpose}'" for purpose in Purpose if purpose.startswith(Purpose.INVITE))
        statement = f"SELECT purpose, user_id, email, about FROM one_time_tokens WHERE token_hash = ? AND purpose IN ({ends})"
        return self._first(
            lambda row: (Purpose(row[0]), OneTimeToken._make(row[1:])), statement, (token_hash,)
        )

    def drop_notices(self, *user_ids: int, email: str | None = None, but_enrolments: bool = False) -> None:
        """Ends "this wasn't me" links; with `email` only those that were sent there. `but_enrolments`: those stay that take
        back an enrolment."""
        condition = (
            f"user_id IN ({self.AMONG}) AND purpose = 'not_me' AND email = coalesce(:email, email)"
            " AND (about IS NULL OR :but_enrolments = 0)"
        )
        values = {"email": email, "but_enrolments": but_enrolments, **given_ids(user_ids)}
        self._run(f"DELETE FROM one_time_tokens WHERE {condition}", values)

    def has_link(
        self,
        kind: str,
        purpose: str | None,
        user_id: int | None,
        email: str,
        *,
        until: str = "",
        since: str = "",
    ) -> bool:
        """Whether a link of this purpose to this address works until then (now, if left out), or an email of this kind that
        was asked for since then is about to send one."""
        sent = (
            "SELECT 1 FROM one_time_tokens WHERE user_id = ? AND purpose = ? AND email = ? AND expires_at > ?"
        )
        waiting = "SELECT 1 FROM outbox WHERE user_id = ? AND kind = ? AND email = ? AND state = 'waiting' AND created_at > ?"
        values = (user_id, purpose, email, until or self.now_text, user_id, kind, email, since)
        return self._number(f"SELECT 1 WHERE EXISTS ({sent}) OR EXISTS ({waiting})", values) == 1

    def drop_claim_links(self, *user_ids: int) -> None:
        """Ends the links that prove and approve a claim, and drops the emails that would send more."""
        condition = f"user_id IN ({self.AMONG}) AND purpose IN ('claim', 'approve')"
        self._run(f"DELETE FROM one_time_tokens WHERE {condition}", given_ids(user_ids))
        self._drop_emails("'confirm-new-email', 'approve-new-email'", user_ids)

    def drop_links_to_passwords(self) -> None:
        """Ends every link that sets a password, and drops the emails that would send more."""
        self._run("DELETE FROM one_time_tokens WHERE purpose IN ('reset', 'setup')")
        self._run("UPDATE one_time_tokens SET purpose = 'invite_withdrawn' WHERE purpose = 'invite'")
        self._drop_emails("'reset', 'invitation'")

    def _drop_emails(self, kinds: str, user_ids: Sequence[int] | None = None) -> None:
        """Of these users; None: of all."""
        where, values = f"state = 'waiting' AND kind IN ({kinds})", {"now": self.now_text}
        if user_ids is not None:
            where += f" AND user_id IN ({self.AMONG})"
            values |= given_ids(user_ids)
        self._run(f"UPDATE outbox SET state = 'dropped', finished_at = :now WHERE {where}", values)

    def drop_all_links(self) -> None:
        self._run("DELETE FROM one_time_tokens WHERE purpose <> 'oauth_spent'")

    def delete_one_time_token(self, token_hash: bytes) -> None:
        self._run("DELETE FROM one_time_tokens WHERE token_hash = ?", (token_hash,))

    def delete_expired_one_time_tokens(self, before: str, at_most: int) -> int:
        return self._delete_some("one_time_tokens", "token_hash", "expires_at <= ? LIMIT ?", before, at_most)
