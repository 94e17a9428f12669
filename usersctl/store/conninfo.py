"""Where a database on a PostgreSQL server is: libpq's connection string, which may hold a password."""

import re
from pathlib import Path

from usersctl.errors import StoreUnusable

_IS_CONNINFO = re.compile(r"postgres(ql)?://|\w+ *= *")
# In the user's part of an address, in its parameters, and among key=value pairs, where blanks may stand in quotes.
_SECRET = re.compile(
    r"(?P<before>://[^:@/?\s]*:)[^@/]*(?=@)"
    r"|(?P<key>\b(?:\w*password|\w+_secret|scram_\w+)\s*=\s*)(?:'(?:\\.|[^'\\])*'|[^\s&']+)"
)


class Conninfo(str):
    __slots__ = ()

    def __repr__(self) -> str:
        return repr(self.shown)

    @property
    def shown(self) -> str:
        """For messages and logs: without passwords."""
        return _SECRET.sub(lambda found: f"{found['before'] or found['key']}***", self)


Database = Path | Conninfo


def is_conninfo(text: str) -> bool:
    return _IS_CONNINFO.match(text) is not None


def shown(database: Database) -> str:
    return database.shown if isinstance(database, Conninfo) else str(database)


def file_of(database: Database) -> Path:
    """Raises StoreUnusable for a database on a server."""
    if isinstance(database, Conninfo):
        raise StoreUnusable(f"{database.shown} is a database on a server, and this needs a file")
    return database
