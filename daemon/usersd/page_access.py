"""Path patterns: the whitelist, the rules of roles and factors, and the decision for one page of an application."""

import re
import unicodedata
from collections.abc import Iterator
from functools import cache, lru_cache
from itertools import accumulate, product
from operator import and_, or_
from urllib.parse import unquote

from usersctl.config import Settings
from usersctl.config.values import GROUP, Requirement, RoleRule
from usersctl.models import Role, Session, User
from usersctl.named import NamedTuple
from usersd.assurance import has_two_factors

REGISTRATION = "/register"
WITH_REGISTRATION = ("/confirm-email",)
ALWAYS_PUBLIC = ("/login",)
TWO_FACTORS = "factors:2"  # what `auth.factorRules` asks for, among the roles and groups of the other rules


class Refusal(NamedTuple):
    message: str
    page: str  # its name in refused.html


FOR_ADMINS = Refusal("Admin access required", "forbidden")
FOR_MEMBERS = Refusal("Group access required", "members")


class Whitelist:
    """`/about` is that path; `/docs/*` is /docs and all below; a `*` elsewhere is one segment."""

    def __init__(self, patterns: tuple[str, ...]) -> None:
        opened = patterns + (WITH_REGISTRATION if REGISTRATION in patterns else ())
        parts = {pattern: [_literal(part) for part in pattern.split("/")] for pattern in opened}
        self._exact = frozenset("/".join(parts[pattern]) for pattern in opened if "*" not in pattern)
        self._wild = [parts[pattern] for pattern in opened if "*" in pattern]

    def __contains__(self, path: str) -> bool:
        if path in self._exact:
            return True
        parts = path.split("/")
        return any(_matches(pattern, parts) for pattern in self._wild) and not _is_ambiguous(path)


def _literal(part: str) -> str:
    """A configuration writes a space as %20; but %2A is no wildcard, and %2F ends no segment."""
    decoded = unquote(part)
    return part if decoded == "*" or "/" in decoded else decoded


LONGEST = 2000  # bytes of a path
_END = re.compile(r"[?#\0]")  # where some parsers stop reading the path
_UTF_16 = re.compile("%[uU][0-9a-fA-F]{4}")  # a character to IIS and to older versions of Jetty


def _is_ambiguous(path: str) -> bool:
    """True if another server could parse this path differently (dot segments, a host, backslashes, parameters, double encoding,
    Unicode forms, other escapes, characters that it drops or stops at), or if it is too long to look at in the main thread."""
    if len(path.encode(errors="surrogatepass")) > LONGEST:
        return True
    shape = [bool(part) for part in path.split("/")]
    for read in _decoded(path):
        if len(read) > LONGEST or _UTF_16.search(read):
            return True  # too long if its characters stand for many others each
        if read[1:2] == "/":
            return True  # a parser of URLs takes what follows for a host
        *inner, last = re.split(r"[/\\]", read)
        if any(map(_END.search, inner)):
            return True
        parts = [_essence(part) for part in (*inner, last)]
        if [bool(part) for part in parts] != shape or not {".", ".."}.isdisjoint(parts):
            return True
    return False


def _decoded(path: str) -> Iterator[str]:
    """Once, twice and three times, as long as that changes anything."""
    before = None
    for _ in range(3):
        path = unicodedata.normalize("NFKC", unquote(path))
        if path == before:
            return
        yield path
        before = path


def _essence(part: str) -> str:
    """A segment up to its parameters, query or fragment, without invisible characters and spaces."""
    before = _END.split(part, maxsplit=1)[0].partition(";")[0]
    if before.isascii() and before.isprintable() and " " not in before:
        return before
    return "".join(c for c in before if unicodedata.category(c)[0] not in "CZ")


def _matches(pattern: list[str], parts: list[str]) -> bool:
    if pattern[-1] == "*":
        pattern = pattern[:-1]
        parts = parts[: len(pattern)]
    return len(pattern) == len(parts) and all(
        wanted == part or (wanted == "*" and part != "") for wanted, part in zip(pattern, parts, strict=True)
    )


class PathRules:
    """What a path needs: roles, groups, two factors. The whitelist's patterns match narrowly; here they match widely: a rule
    also holds for every path that the application could read as one that the rule means."""

    def __init__(self, rules: tuple[RoleRule, ...]) -> None:
        self._all = frozenset(needed for _, needed in rules)
        self._rules: list[tuple[list[str], frozenset[str], Requirement]] = []
        for path, needed in rules:
            pattern = _segments(_folded(unquote(path)))
            self._rules.append((pattern, frozenset(pattern) - {"*"}, needed))
        self.needs = lru_cache(maxsize=256)(self._needs)  # most requests are for a few paths

    def _needs(self, path: str | None) -> frozenset[Requirement]:
        """What the rules ask for on this path. Unknown or ambiguous paths need what any rule asks for."""
        if not self._rules:
            return self._all
        if path is not None and _PLAIN.fullmatch(path):
            return self._needs_of([part for part in path.split("/") if part])
        if path is None or _is_ambiguous(path):
            return self._all
        return frozenset().union(*(self._needs_of(reading) for reading in _readings(path)))

    def _needs_of(self, parts: list[str]) -> frozenset[Requirement]:
        return frozenset().union(*map(self._of, _as_served(parts)))

    def _of(self, parts: list[str]) -> frozenset[Requirement]:
        # Most paths lack a word of the pattern, which is faster to see than that they do not match.
        words = {*parts, *(_stem(part) for part in parts)}
        return frozenset(
            need for pattern, fixed, need in self._rules if fixed <= words and _covers(pattern, parts)
        )


_PLAIN = re.compile(r"(/[a-z0-9_~-]+(\.[a-z0-9_~-]+)*)*/?", re.ASCII)
# A list, and not any suffix: /example.com/settings of a service is none of /settings.
_SCRIPT = re.compile(r".+\.(php\d?|phtml|f?cgi|pl|py|rb|lua|aspx?|ashx|asmx|(cs|vb)html|jspx?|do|action|cfm)")
# To Windows, /admin::$DATA is the file, and /admin:$i30:$INDEX_ALLOCATION the folder.
_STREAM = re.compile(r"::?\$")


def _as_served(parts: list[str]) -> Iterator[list[str]]:
    """The path itself; a script in it without what follows, or what follows alone, as in /index.php/admin; the folder of an
    index.html."""
    scripts = [at for at, part in enumerate(parts, 1) if _SCRIPT.fullmatch(part)]
    found = {*scripts[:1], *scripts[-1:]}  # servers take the first one, or the last
    ends = found | {len(parts) - 1} if parts and _stem(parts[-1]) == "index" else found
    for begin, end in product({0} | found, {len(parts)} | ends):
        if begin < end or len(parts) <= 1:
            yield parts[begin:end]


def _readings(path: str) -> list[list[str]]:
    """The segments of a path in every way that a server may read it: decoded again, cut at a query, case-folded."""
    forms = []
    for _ in range(3):
        forms += [path, _END.split(unicodedata.normalize("NFKC", path), maxsplit=1)[0]]
        path, before = unquote(path), path
        if path == before:
            break
    return [_segments(_folded(form)) for form in dict.fromkeys(forms)]


def _folded(path: str) -> str:
    """In lower case, without accents and invisible characters."""
    same_case = unicodedata.normalize("NFKD", path).upper().casefold()
    return "".join(
        c for c in unicodedata.normalize("NFKD", same_case) if unicodedata.category(c)[0] not in "MC"
    )


def _segments(path: str) -> list[str]:
    parts = (_STREAM.split(part.partition(";")[0], maxsplit=1)[0] for part in re.split(r"[/\\]", path))
    return [name for part in parts if (name := part.strip())]


def _stem(part: str) -> str:
    """Without the suffix that some routers take for a format: to them /admin.json is /admin."""
    return part.partition(".")[0].strip()


def _covers(pattern: list[str], parts: list[str]) -> bool:
    """`*` matches any number of segments, because an upstream may decode %2F and see more or fewer."""
    forms = [(part, _stem(part)) for part in parts]
    matched = [True] + [False] * len(parts)  # by how many segments the pattern matches, up to this word
    for word in pattern:
        if word == "*":
            matched = list(accumulate(matched, or_))
        else:
            fits = [word in form for form in forms]
            matched = [False, *map(and_, matched, fits)]
    return matched[-1]


class PageAccess:
    """Who may see which page of an application: one rule for the gate and for forward authentication."""

    def __init__(
        self,
        whitelist: tuple[str, ...],
        role_rules: tuple[RoleRule, ...],
        factor_rules: tuple[str, ...] = (),
        trusted: tuple[str, ...] = (),
    ) -> None:
        """`trusted`: the identity providers whose sign-ins count as two factors."""
        self.whitelist = Whitelist(whitelist)
        self.rules = PathRules((*role_rules, *((path, TWO_FACTORS) for path in factor_rules)))
        self._trusted = trusted

    @staticmethod
    def of(settings: Settings) -> "PageAccess":
        """Made once for the same rules."""
        return _page_access(
            settings.whitelist, settings.role_rules, settings.factor_rules, settings.trusted_providers
        )

    def verdict(
        self,
        user: User | None,
        path: str | None,
        session: Session | None = None,
        **asked: str | None,
    ) -> int:
        """200, 401 or 403. `asked`: a role, a group or factors that are needed in addition to what the path needs. A rule wins
        over the whitelist. 401 for a user: the session lacks a second factor."""
        needed = self._needed(path, **asked)
        if user is None:
            is_public = path in ALWAYS_PUBLIC or (path is not None and path in self.whitelist)
            return 200 if is_public and not needed else 401
        if not needed:
            return 200
        if not all(meets(user, need) for need in needed if need != TWO_FACTORS):
            return 403
        if TWO_FACTORS in needed and not has_two_factors(session, self._trusted):
            return 401
        return 200

    def refusal(self, user: User | None, path: str | None, **asked: str | None) -> Refusal:
        """Of a 403."""
        wants_admin = Role.ADMIN in self._needed(path, **asked)
        return FOR_ADMINS if wants_admin and user and user.role != Role.ADMIN else FOR_MEMBERS

    def _needed(
        self,
        path: str | None,
        *,
        role: str | None = None,
        group: str | None = None,
        factors: str | None = None,
    ) -> frozenset[Requirement]:
        needed = frozenset() if path in ALWAYS_PUBLIC else self.rules.needs(path)
        if role is not None:
            needed |= {role}
        if group is not None:
            needed |= {GROUP + group}
        if factors is not None:
            needed |= {TWO_FACTORS}
        return needed


_page_access = cache(PageAccess)


def meets(user: User, needed: Requirement) -> bool:
    """A role, a group, or any of several. A group has its members only: an admin may be none."""
    if isinstance(needed, tuple):
        return any(meets(user, one) for one in needed)
    if needed.startswith(GROUP):
        return needed.removeprefix(GROUP) in user.groups
    return suffices(user.role, needed)


def suffices(role: str, needed: str) -> bool:
    """An admin may do whatever a user may."""
    return role in (needed, Role.ADMIN)
