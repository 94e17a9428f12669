"""Where a database on a PostgreSQL server is: libpq's connection string, which may hold a password."""

import re
from pathlib import Path

from usersctl.errors import StoreUnusable

# Text, not compiled: most commands need the first alone.
# Also what was meant to be one, such as the address of another library, because it may hold a password as well.
_IS_CONNINFO = r"(?i:[\w+.:-]*postgres[\w+.-]*:|[\w+.-]+://)|\w+ *= *"
# In the user's part of an address, in its parameters, and among key=value pairs, where blanks may stand in quotes.
_HIDDEN = (
    r"(?P<before>://[^:@/?\s]*:)[^@/]*(?=@)"
    r"|(?P<key>\b(?!passfile\b)(?i:\w*(?:pass|pwd|secret)\w*|scram_\w+)\s*=\s*)(?:'(?:\\.|[^'\\])*'|[^\s&']+)"
)

# Of the forms that libpq takes, those in which it is plain where a password ends. Its errors repeat bad escapes.
_USER = r"[^\s:/?@]*(?::[^\s/?@]*)?@"
_HOST = r"(?:[\w.%-]*|\[[\da-fA-F:.%]+\])(?::\d+)?"
_URL = (
    rf"(?!.*%(?:00|(?![\da-fA-F]{{2}})))postgres(?:ql)?://(?:{_USER})?{_HOST}(?:,{_HOST})*(?:/[^\s/?@]*)?"
    r"(?:\?\w+=[^\s&']*(?:&\w+=[^\s&']*)*)?"
)
_PAIRS = r"(?:\s*\w+\s*=\s*(?:'(?:[^'\\]|\\.)*'|[^\s&'\\]+)(?=\s|$))+\s*"


class Conninfo(str):
    __slots__ = ()

    def __repr__(self) -> str:
        return repr(self.shown)

    @property
    def shown(self) -> str:
        """For messages and logs: without passwords."""
        return re.sub(_HIDDEN, lambda found: f"{found['before'] or found['key']}***", self)

    @property
    def has_password(self) -> bool:
        return self.shown != self


Database = Path | Conninfo


def is_conninfo(text: str) -> bool:
    return re.match(_IS_CONNINFO, text) is not None


def is_well_formed(text: str) -> bool:
    return text.isprintable() and bool(re.fullmatch(_URL, text) or re.fullmatch(_PAIRS, text))


def shown(database: Database) -> str:
    return database.shown if isinstance(database, Conninfo) else str(database)


def is_file_of(file: Path, database: Database) -> bool:
    return isinstance(database, Path) and file.exists() and database.exists() and file.samefile(database)


def file_of(database: Database) -> Path:
    """Raises StoreUnusable for a database on a server."""
    if isinstance(database, Conninfo):
        raise StoreUnusable(f"{database.shown} is a database on a server, and this needs a file")
    return database
