"""The table of identities: accounts of identity providers that sign a user in, and the copy of one of them in `users`."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from operator import attrgetter

from usersctl.errors import Taken
from usersctl.models import OAUTH, Identity, Link, User
from usersctl.store.statements import Statements, places
from usersctl.store.users import USER, user_of

_COLUMNS = ", ".join(Identity._fields)
_OF_OAUTH = f"SELECT subject FROM identities WHERE user_id = users.id AND provider = '{OAUTH}'"


class Identities(Statements):
    def identities_of(self, user_id: int) -> list[Identity]:
        statement = f"SELECT {_COLUMNS} FROM identities WHERE user_id = ? ORDER BY id"
        return list(map(Identity._make, self._run(statement, (user_id,))))

    def identities_of_each(self, user_ids: Sequence[int]) -> list[Identity]:
        statement = f"SELECT {_COLUMNS} FROM identities WHERE user_id IN ({places(user_ids)})"
        return list(map(Identity._make, self._run(statement, tuple(user_ids))))

    def identity_of(self, user_id: int, provider: str) -> Identity | None:
        statement = f"SELECT {_COLUMNS} FROM identities WHERE user_id = ? AND provider = ?"
        return self._first(Identity._make, statement, (user_id, provider))

    def all_identities(self) -> Iterator[tuple[int, list[Identity]]]:
        """By user, in the order of their ids."""
        rows = map(Identity._make, self._stream(f"SELECT {_COLUMNS} FROM identities ORDER BY user_id, id"))
        return ((user_id, list(group)) for user_id, group in groupby(rows, attrgetter("user_id")))

    def user_by_link(self, link: Link) -> User | None:
        of_link = "SELECT user_id FROM identities WHERE provider = ? AND issuer = ? AND subject = ?"
        statement = f"SELECT {USER} FROM users WHERE id = ({of_link})"
        return self._first(lambda row: user_of(row, self), statement, link)

    def add_identities(self, identities: Sequence[Identity], *, of_new: bool = False) -> None:
        """Raises Taken if an account has one of them, or another one of the same provider. `of_new`: the accounts were made
        in this transaction, and have their `updated_at`.
        """
        if not identities:
            return
        added = self._insert_rows("identities", Identity._fields, identities, "ON CONFLICT DO NOTHING")
        if added < len(identities):
            raise Taken("This account of the provider is linked already")
        of_oauth = (identity.user_id for identity in identities if identity.provider == OAUTH)
        self._copy_oauth_id(of_oauth, at=None if of_new else self.now_text)

    def delete_identities(self, user_id: int, provider: str | None = None) -> list[Identity]:
        """Of all providers, if none is named."""
        statement = f"DELETE FROM identities WHERE user_id = ? AND provider = coalesce(?, provider) RETURNING {_COLUMNS}"
        deleted = list(map(Identity._make, self._run(statement, (user_id, provider))))
        if any(identity.provider == OAUTH for identity in deleted):
            self._copy_oauth_id([user_id], at=self.now_text)
        return deleted

    def _copy_oauth_id(self, user_ids: Iterable[int], *, at: str | None) -> None:
        """The user object shows it, so that a session check reads one table less."""
        ids = list(user_ids)
        if ids:
            changes = f"oauth_id = ({_OF_OAUTH}), updated_at = coalesce(?, updated_at)"
            self._run(f"UPDATE users SET {changes} WHERE id IN ({places(ids)})", (at, *ids))

    def links_elsewhere(self, provider: str, issuer: str) -> dict[str, int]:
        """The number of links of each other issuer; "" stands for links that are not bound yet."""
        counted = "SELECT issuer, count(*) FROM identities WHERE provider = :provider AND issuer"
        # In two ranges of the index, so that the links of this issuer are not read.
        statement = f"{counted} < :it GROUP BY 1 UNION ALL {counted} > :it GROUP BY 1"
        return dict(self._run(statement, {"provider": provider, "it": issuer}).fetchall())

    def bind_links(self, provider: str, issuer: str, *, of: str) -> int:
        """Binds the links of another issuer ("": of none) to this one, unless it has their subject; returns their number."""
        taken = (
            "SELECT 1 FROM identities AS other WHERE other.provider = :provider AND other.issuer = :issuer"
            " AND other.subject = identities.subject"
        )
        statement = (
            "UPDATE identities SET issuer = :issuer"
            f" WHERE provider = :provider AND issuer = :of AND NOT EXISTS ({taken})"
        )
        return self._run(statement, {"provider": provider, "issuer": issuer, "of": of}).rowcount

    def providers_with_links(self) -> dict[str, int]:
        """The number of links of each provider, configured or not."""
        return dict(self._run("SELECT provider, count(*) FROM identities GROUP BY 1").fetchall())

    def links_in_use(self, links: Iterable[Link]) -> set[tuple[str, str]]:
        """(provider, subject) of those that an account has at this issuer, or at one that is not known yet."""
        wanted: dict[tuple[str, str], list[str]] = {}
        for link in links:
            for issuer in {link.issuer, ""}:
                wanted.setdefault((link.provider, issuer), []).append(link.subject)
        found = set()
        for (provider, issuer), subjects in wanted.items():
            statement = (
                "SELECT subject FROM identities WHERE provider = ? AND issuer = ?"
                f" AND subject IN ({places(subjects)})"
            )
            rows = self._run(statement, (provider, issuer, *subjects))
            found |= {(provider, subject) for (subject,) in rows}
        return found
