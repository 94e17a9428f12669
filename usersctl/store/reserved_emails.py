"""The table of addresses that accounts have given up, and that a "this wasn't me" link can still put back."""

from usersctl.store.statements import Statements, given_ids


class ReservedEmails(Statements):
    def reserve(self, user_id: int, email: str, until: str) -> None:
        """As the one that the user gave up last."""
        self._run("DELETE FROM reserved_emails WHERE email = ?", (email,))
        self._insert("reserved_emails", user_id=user_id, email=email, expires_at=until)

    def reserved_for(self, email: str) -> int | None:
        """The id of the user for whom this address is reserved."""
        statement = "SELECT user_id FROM reserved_emails WHERE email = ? AND expires_at > ?"
        return self._number(statement, (email, self.now_text)) or None

    def reserved_emails_of(self, user_id: int) -> list[str]:
        """The one that was given up first comes first."""
        statement = "SELECT email FROM reserved_emails WHERE user_id = ? AND expires_at > ? ORDER BY id"
        return [email for (email,) in self._run(statement, (user_id, self.now_text))]

    def keep_reserved(self, user_id: int, email: str, until: str) -> None:
        """A reservation lasts as long as each link that can put the address back."""
        where = "user_id = :user AND email = :email AND expires_at < :until"
        values = {"user": user_id, "email": email, "until": until}
        self._run(f"UPDATE reserved_emails SET expires_at = :until WHERE {where}", values)

    def free_reserved(self, *user_ids: int, since: str | None = None) -> None:
        """Ends the reservations for users, and the links that they are for; with `since` those of that address and of all
        addresses that its user gave up after it. Links to that address that take back an enrolment stay."""
        first, ids, among = 0, given_ids(user_ids), f"user_id IN ({self.AMONG})"
        if since is not None:
            statement = f"SELECT id FROM reserved_emails WHERE {among} AND email = :since"
            first = self._number(statement, {"since": since, **ids})
        later = "SELECT email FROM reserved_emails WHERE user_id = one_time_tokens.user_id AND id >= :first"
        ended = f"purpose = 'not_me' AND email IN ({later}) AND (about IS NULL OR email <> :since)"
        values = {"first": first, **ids}
        self._run(f"DELETE FROM one_time_tokens WHERE {among} AND {ended}", {"since": since or "", **values})
        self._run(f"DELETE FROM reserved_emails WHERE {among} AND id >= :first", values)

    def delete_expired_reservations(self, before: str, at_most: int) -> int:
        return self._delete_some("reserved_emails", "id", "expires_at <= ? LIMIT ?", before, at_most)
