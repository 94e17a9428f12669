"""What the table of users holds of invitations."""

from collections.abc import Iterator

from usersctl.models import Invitation, User
from usersctl.store.statements import Statements
from usersctl.store.users import USER, user_of

_INVITATION = "invited_at, invitation_expires_at, invited_nameless"
_LAST_EMAIL = "SELECT state FROM outbox WHERE outbox.user_id = users.id AND kind = 'invitation' ORDER BY id DESC LIMIT 1"


class Invitations(Statements):
    def invitation_of(self, user_id: int) -> Invitation | None:
        statement = f"SELECT {_INVITATION} FROM users WHERE id = ? AND invited_at IS NOT NULL"
        return self._first(_invitation, statement, (user_id,))

    def expire_invitations(self) -> None:
        """All that wait. An admin can send each again; a forgotten password and an identity provider revive none."""
        condition = "invited_at IS NOT NULL AND invitation_expires_at > :now"
        self._run(f"UPDATE users SET invitation_expires_at = :now WHERE {condition}", {"now": self.now_text})

    def invited_users(self) -> Iterator[tuple[User, Invitation, str | None]]:
        """With the state of the last email of each invitation; the first to expire first."""
        statement = (
            f"SELECT {USER}, {_INVITATION}, ({_LAST_EMAIL}) FROM users WHERE invited_at IS NOT NULL"
            " ORDER BY invitation_expires_at, users.id"
        )
        for row in self._run(statement):
            yield user_of(row, self), _invitation(row[-4:]), row[-1]

    def users_to_invite(self, after: int, at_most: int) -> list[User]:
        """Active users without an invitation that waits for them, in the order of their ids."""
        statement = (
            # +: by their ids, and not by the index of active users
            f"SELECT {USER} FROM users WHERE +active = 1 AND id > :after"
            " AND (invited_at IS NULL OR invitation_expires_at <= :now) ORDER BY users.id LIMIT :most"
        )
        rows = self._run(statement, {"after": after, "now": self.now_text, "most": at_most})
        return [user_of(row, self) for row in rows]


def _invitation(row: tuple[str, str, int]) -> Invitation:
    return Invitation(row[0], row[1], row[2] == 1)
