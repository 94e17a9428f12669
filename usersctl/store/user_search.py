"""The index of the search: which users may hold all words in their names and addresses."""

from collections.abc import Sequence
from typing import Any

from usersctl.store.statements import Statements

# The table user_search knows which users have three characters in a row, and so which may hold a longer word. If they are
# few, they are looked up and sorted. If they are many, the list is read in its order until the page is full.
FEW = 5_000
MOST_GRAMS = 60  # of a search; more would only take time

_FIELDS = ("name_folded", "email", "email_folded", "claimed_email", "claimed_folded")
_HOLDS = " OR ".join(f"{field} LIKE :word{{n}} ESCAPE '\\'" for field in _FIELDS)
_LAST_CHARACTER = "\U0010ffff"


class UserSearch(Statements):
    def candidates(self, words: Sequence[str]) -> list[int] | None:
        """All ids, or more than FEW of them; None if all words are too short for the index."""
        grams = _grams(words)
        return self._matching(_all_of(grams)) if grams else None

    def first_by_name(
        self, words: Sequence[str], conditions: Sequence[str], values: dict[str, Any], order: str, most: int
    ) -> list[int] | None:
        """Ids among which are the first `most` users in the order of their names; None if they are too many.

        For a word that many names begin with: those names stand together, and the list would be read up to them.
        """
        starts = list(dict.fromkeys(word[:2] for word in words if len(word) > 1))
        ids = self._with_other_names(words, starts)
        if len(ids) > FEW:
            return None
        where = " AND ".join((*conditions, "name_folded >= :start AND name_folded < :end"))
        for start in starts:
            named = values | {"start": start, "end": start + _LAST_CHARACTER, "most": most}
            rows = self._run(f"SELECT id FROM users WHERE {where} ORDER BY {order} LIMIT :most", named)
            ids += [user_id for (user_id,) in rows]
        return ids

    def _with_other_names(self, words: Sequence[str], starts: Sequence[str]) -> list[int]:
        """Those that may hold all words, and whose names begin with none of `starts`; or more than FEW of them."""
        # Said of each word, so that FTS5 stops at the first that no other name holds.
        held = (f"(({_all_of(_grams([word]))}) NOT ({_any_of(starts)}))" for word in words if len(word) > 2)
        return self._matching(" AND ".join(held))

    def _matching(self, match: str) -> list[int]:
        statement = "SELECT rowid FROM user_search WHERE user_search MATCH ? LIMIT ?"
        return [user_id for (user_id,) in self._run(statement, (match, FEW + 1))]


def holds(words: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """The conditions for users that hold all words, and their values."""
    conditions = [f"({_HOLDS.format(n=n)})" for n in range(len(words))]
    return conditions or ["FALSE"], {f"word{n}": pattern(word) for n, word in enumerate(words)}


def pattern(word: str) -> str:
    escaped = word.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")
    return f"%{escaped}%"


def _grams(words: Sequence[str]) -> list[str]:
    grams = dict.fromkeys(word[n : n + 3] for word in words for n in range(len(word) - 2))
    return list(grams)[:MOST_GRAMS]


def _all_of(grams: Sequence[str]) -> str:
    return " AND ".join(map(_quoted, grams))


def _any_of(starts: Sequence[str]) -> str:
    # A name stands behind a line end in the index.
    return " OR ".join(_quoted(f"\n{start}") for start in starts)


def _quoted(gram: str) -> str:
    return '"{}"'.format(gram.replace('"', '""'))
