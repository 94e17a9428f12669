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

# Of the forms that libpq takes, those in which it is plain where a password ends. Its errors repeat bad escapes.
_USER = r"[^\s:/?@]*(?::[^\s/?@]*)?@"
_HOST = r"(?:[\w.%-]*|\[[\da-fA-F:.%]+\])(?::\d+)?"
_URL = re.compile(
    rf"(?!.*%(?:00|(?![\da-fA-F]{{2}})))postgres(?:ql)?://(?:{_USER})?{_HOST}(?:,{_HOST})*(?:/[^\s/?@]*)?"
    r"(?:\?\w+=[^\s&']*(?:&\w+=[^\s&']*)*)?"
)
_PAIRS = re.compile(r"(?:\s*\w+\s*=\s*(?:'(?:[^'\\]|\\.)*'|[^\s&'\\]+)(?=\s|$))+\s*")


class Conninfo(str):
    __slots__ = ()

    def __repr__(self) -> str:
        return repr(self.shown)

    @property
    def shown(self) -> str:
        """For messages and logs: without passwords."""
        return _SECRET.sub(lambda found: f"{found['before'] or found['key']}***", self)

    @property
    def has_password(self) -> bool:
        return self.shown != self


Database = Path | Conninfo


def is_conninfo(text: str) -> bool:
    return _IS_CONNINFO.match(text) is not None


def is_well_formed(text: str) -> bool:
    return text.isprintable() and bool(_URL.fullmatch(text) or _PAIRS.fullmatch(text))


def shown(database: Database) -> str:
    return database.shown if isinstance(database, Conninfo) else str(database)


def file_of(database: Database) -> Path:
    """Raises StoreUnusable for a database on a server."""
    if isinstance(database, Conninfo):
        raise StoreUnusable(f"{database.shown} is a database on a server, and this needs a file")
    return database
