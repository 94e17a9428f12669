"""What the checked rows of an import become, in its one transaction: new accounts, changes, conflicts."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import timedelta
from functools import cache
from typing import Any

from usersctl.addresses import holder_of, make_free
from usersctl.credentials import shut_out
from usersctl.errors import Invalid
from usersctl.fields import name_of
from usersctl.groups import change_groups, create_group, join_groups
from usersctl.invited import NOT_INVITED, begin, settle
from usersctl.mail.kinds import EmailQueue
from usersctl.models import OAUTH, UNUSABLE, Actor, Identity, Link, Newcomer, Role, User
from usersctl.named import NamedTuple
from usersctl.passwords import BCRYPT, kind_of
from usersctl.store.audit import Change
from usersctl.store.transaction import Transaction
from usersctl.text import counted


class RowProblem(NamedTuple):
    where: str  # "line 7" or "entry 7"
    message: str


class ImportOptions(NamedTuple):
    on_conflict: str  # fail, skip or update
    dry_run: bool
    by: Actor
    report: Callable[[RowProblem], Any]  # is called for each broken row
    progress: Callable[[str, int, int | None], Any]  # is called with a step, and how far it is
    invite: timedelta | None = None  # new accounts that nothing opens, for so long
    create_groups: bool = False  # that rows name and that do not exist


class BrokenRows(Invalid):
    """Rows that cannot be imported; nothing was written."""

    def __init__(self, count: int, *, taken: bool = False, hint: str | None = None) -> None:
        problem = "with an address or provider id that is taken" if taken else "cannot be imported"
        super().__init__(f"{counted(count, 'row')} {problem}; nothing was imported", hint=hint)
        self.taken = taken


class Imported(NamedTuple):
    """What became of the rows; each is in one of the first four numbers."""

    created: int
    updated: int
    unchanged: int
    skipped: int
    without_password: int
    foreign_hashes: Mapping[str, int]  # that were stored, by kind
    invited: int
    admins: int  # new and promoted ones
    linked: int  # identities at a provider that existing accounts got, or got in the place of another
    repeated: int  # rows that changed what an earlier row had made or changed
    overdue: int  # new accounts that never confirmed, and so old that the next cleanup removes them


class Ids:
    """A set of a million ids in little memory: most stand side by side, so a bit of a large number is enough for each."""

    def __init__(self) -> None:
        self._bits: defaultdict[int, int] = defaultdict(int)  # of 1024 ids each

    def add(self, number: int) -> None:
        self._bits[number >> 10] |= 1 << (number & 1023)

    def __contains__(self, number: int) -> bool:
        return bool(self._bits.get(number >> 10, 0) >> (number & 1023) & 1)


class Writing:
    def __init__(
        self,
        tx: Transaction,
        emails: EmailQueue,
        options: ImportOptions,
        issuers: Mapping[str, str],
        overdue_since: str,
    ) -> None:
        self.tx = tx
        self.emails = emails
        self.options = options
        self.issuers = issuers  # of the configured providers, by name
        self.overdue_since = overdue_since  # the time before which a registration is; "": never
        self.first = 0  # the id of the first account that was made
        self.created = self.updated = self.unchanged = self.skipped = self.without_password = 0
        self.taken = self.invited = self.admins = self.linked = self.repeated = self.overdue = 0
        self.foreign_hashes: Counter[str] = Counter()
        self.changed = Ids()  # of accounts that were there
        self.unknown_groups = 0  # rows with one
        self.hint = ""
        self.changes: list[Change] = []  # that wait for their rows of the audit trail
        self.moves: dict[int, tuple[User, Sequence[str], Sequence[str]]] = {}  # that wait: groups by user

    def write(self, rows: Sequence[tuple[str, dict[str, Any]]]) -> None:
        """Rows with their places. Those whose address and provider id are free are added together, the others one by one."""
        emails = [row["email"] for _, row in rows]
        links = [link for _, row in rows if "identities" in row for link in self._links(row)]
        taken_emails, taken_ids = self.tx.emails_in_use(emails), self.tx.links_in_use(links)
        free: list[dict[str, Any]] = []
        for where, row in rows:
            if "groups" in row:
                self._find_groups(where, row)
            email, ids = row["email"], set()
            if "identities" in row:
                ids = {(link.provider, link.subject) for link in self._links(row)}
            if email in taken_emails or not ids.isdisjoint(taken_ids):
                self._add(free)
                free.clear()
                self._write_one(where, row)
            else:
                free.append(row)
            taken_emails.add(email)
            taken_ids |= ids
        self._add(free)
        self._catch_up()

    def _catch_up(self) -> None:
        """What waits, because changes that follow each other are made together: on a server each change of a group takes
        longer than the one before, until the commit."""
        if self.changes:
            self.tx.audit_each(self.options.by, "import-update", self.changes)
            self.changes.clear()
        change_groups(self.tx, self.moves.values(), by=self.options.by)
        self.moves.clear()

    def imported(self) -> Imported:
        if self.unknown_groups:
            raise BrokenRows(self.unknown_groups, hint=self.hint)
        if self.taken:
            raise BrokenRows(self.taken, taken=True, hint=self.hint)
        numbers = (self.created, self.updated, self.unchanged, self.skipped, self.without_password)
        return Imported(
            *numbers,
            dict(self.foreign_hashes),
            self.invited,
            self.admins,
            self.linked,
            self.repeated,
            self.overdue,
        )

    def _add(self, rows: Sequence[dict[str, Any]]) -> None:
        if not rows:
            return
        self._catch_up()
        newcomers = []
        for row in rows:
            fields = {"name": name_of(row["email"]), **row}
            for name in ("identities", "groups"):
                fields.pop(name, None)
            newcomers.append(Newcomer(**fields))
            self.admins += newcomers[-1].role == Role.ADMIN
            self.overdue += self._is_overdue(row)
            if "password_hash" in row:
                self._count_hash(row)
            else:
                self.without_password += 1
        ids = self.tx.add_users(newcomers)
        pairs = list(zip(ids, rows, strict=True))
        self.tx.add_identities(
            [
                identity
                for user_id, row in pairs
                if "identities" in row
                for identity in self._identities(user_id, row)
            ],
            of_new=True,
        )
        members = [(name, user_id) for user_id, row in pairs if "groups" in row for name in row["groups"]]
        join_groups(self.tx, members)
        self.tx.audit_each(
            self.options.by,
            "import",
            [
                (user_id, newcomer.email, _recorded(newcomer, row))
                for user_id, newcomer, row in zip(ids, newcomers, rows, strict=True)
            ],
        )
        self.first = self.first or ids[0]
        self.created += len(ids)
        if self.options.invite is not None:
            for user_id, row in pairs:
                self._invite(row, user_id, self.options.invite)

    def _invite(self, row: dict[str, Any], user_id: int, lifetime: timedelta) -> None:
        """Not an account that the file makes inactive: an invitation would undo that."""
        user = self.tx.user(user_id)
        if user is None or not (user.active or user.awaiting_confirmation):
            return
        if "password_hash" in row or row.get("identities"):
            return
        begin(self.tx, self.emails, user, lifetime, is_nameless="name" not in row, by=self.options.by)
        self.invited += 1
        self.overdue -= self._is_overdue(row)

    def _is_overdue(self, row: Mapping[str, Any]) -> bool:
        return "awaiting_confirmation" in row and row.get("created_at", "9") <= self.overdue_since

    def _links(self, row: dict[str, Any]) -> Iterator[Link]:
        """An id for which the row names no issuer gets that of the configuration."""
        for given in row.get("identities", []):
            provider = given["provider"]
            yield Link(provider, given.get("issuer", self.issuers.get(provider, "")), given["subject"])

    def _identities(self, user_id: int, row: dict[str, Any]) -> Iterator[Identity]:
        for link, given in zip(self._links(row), row.get("identities", []), strict=True):
            yield Identity(user_id, *link, given.get("email"), given.get("linked_at"))

    def _write_one(self, where: str, row: dict[str, Any]) -> None:
        tx, by = self.tx, self.options.by
        known = self._holder(row)
        if known is not None and self.options.on_conflict == "skip":
            self.skipped += 1  # nothing of the row is written, so it may have an id that is taken
            return
        if known is not None:
            self._keep_issuers(known, row)
        why_taken = self._why_taken(row, known)
        if why_taken is not None:
            problem, hint = why_taken
            self._refuse(where, problem, hint)
        elif known is None:
            self._catch_up()
            make_free(tx, self.emails, row["email"], by=by)
            self._add([row])
        elif self.options.on_conflict == "fail":
            holder = "an earlier row" if self._is_new(known) else f"user {known.id}"
            hint = "choose with --on-conflict skip or --on-conflict update"
            self._refuse(where, f"{known.email} is taken by {holder}", hint)
        else:
            changed = self._update(known, row)
            self.updated += changed
            self.unchanged += not changed
            if changed:
                self._count_hash(row)
                self.repeated += self._is_new(known) or known.id in self.changed
                self.changed.add(known.id)

    def _holder(self, row: dict[str, Any]) -> User | None:
        """A lapsed registration yields, unless the row is not confirmed either, or an earlier row has made it."""
        user = self.tx.user_by_email(row["email"])
        if user is not None and (row.get("awaiting_confirmation") or self._is_new(user)):
            return user
        return holder_of(self.tx, row["email"])

    def _is_new(self, user: User) -> bool:
        return 0 < self.first <= user.id

    def _find_groups(self, where: str, row: dict[str, Any]) -> None:
        unknown = [name for name in row.get("groups", ()) if self.tx.group(name) is None]
        if unknown and self.options.create_groups:
            self._catch_up()
            for name in unknown:
                create_group(self.tx, name, by=self.options.by)
        elif unknown:
            self.unknown_groups += 1
            self.hint = (
                f"make it with: usersctl group create {unknown[0]}, or all of them with --create-groups"
            )
            self.options.report(RowProblem(where, f"there is no group {unknown[0]}"))
            del row["groups"]

    def _count_hash(self, row: Mapping[str, Any]) -> None:
        kind = kind_of(row.get("password_hash", UNUSABLE))
        if kind not in (BCRYPT, None):
            self.foreign_hashes[kind] += 1

    def _refuse(self, where: str, problem: str, hint: str) -> None:
        self.taken += 1
        self.hint = hint
        self.options.report(RowProblem(where, problem))

    def _keep_issuers(self, known: User, row: dict[str, Any]) -> None:
        """An id for which the row names no issuer keeps the one that it has here."""
        for given in row.get("identities", []):
            identity = self.tx.identity_of(known.id, given["provider"])
            if identity and identity.issuer and identity.subject == given["subject"]:
                given.setdefault("issuer", identity.issuer)

    def _update(self, known: User, row: dict[str, Any]) -> bool:
        if known.id in self.moves:  # by an earlier row
            self._catch_up()
        relinked, groups = self._relink(known, row), row.pop("groups", None)
        row.pop("identities", None)
        present = () if groups is None else self.tx.groups_of(known.id)
        moves = groups is not None and set(groups) != set(present)
        recorded = _change_account(self.tx, known, row, relinked=relinked, moves=moves)
        if recorded is not None:
            self.admins += recorded.get("role") == Role.ADMIN
            self.changes.append((known.id, known.email, recorded))
        if moves:
            self.moves[known.id] = (known, present, groups)
        return moves or recorded is not None

    def _relink(self, known: User, row: dict[str, Any]) -> list[str]:
        """Gives the account the identities of the row, and returns their providers; those of others stay."""
        changed = []
        for given in self._identities(known.id, row):
            stored, identity = self.tx.identity_of(known.id, given.provider), given
            if stored is None or stored.link != given.link:
                self.linked += 1
            else:
                email, linked_at = given.email or stored.email, given.linked_at or stored.linked_at
                identity = given._replace(email=email, linked_at=linked_at)
            if stored != identity:
                self.tx.delete_identities(known.id, identity.provider)
                self.tx.add_identities([identity])
                changed.append(identity.provider)
        return changed

    def _why_taken(self, row: dict[str, Any], known: User | None) -> tuple[str, str] | None:
        """The problem, and a hint."""
        for link in self._links(row):
            owner = _owner_of(self.tx, link)
            # A lapsed registration yields with its links.
            if owner is not None and owner.email != row["email"]:
                free = f"or free it with: usersctl update USER --unlink {link.provider}"
                if link.provider == OAUTH:
                    hint = f"give each row an oauth_id of its own, {free}"
                    return f"oauth_id is taken by {owner.email}", hint
                return f"{link.subject} of {link.provider} is taken by {owner.email}", f"leave it out, {free}"
        if known is None and self.tx.reserved_for(row["email"]) is not None:
            hint = "wait: an address that its user gave up stays reserved for seven days"
            return f"{row['email']} is reserved for another account", hint
        return None


def _change_account(
    tx: Transaction, known: User, row: dict[str, Any], *, relinked: list[str], moves: bool
) -> dict[str, Any] | None:
    """Returns what the audit trail records; None if nothing changed. `moves`: other groups follow, with rows of their own."""
    stored = tx.credentials_of(known.id)
    before = known._asdict() | {"password_hash": stored.password_hash if stored else UNUSABLE}
    row = _of_existing(known, row)
    changes = {name: value for name, value in row.items() if value != before[name]}
    if "active" in changes:
        changes |= {"awaiting_confirmation": False, "delete_at": None}
        if not changes["active"]:
            changes |= NOT_INVITED
    if not changes and not relinked and not (moves and known.awaiting_confirmation):
        return None
    if known.awaiting_confirmation and "password_hash" not in row:
        # The person of the row may be another than the one who registered.
        changes["password_hash"] = UNUSABLE
    if changes.get("active") is False:
        shut_out(tx, known, notices=True)
    elif "password_hash" in changes:
        settle(tx, known)
        shut_out(tx, known)
    tx.change_user(known.id, **changes)
    recorded = {name: value for name, value in changes.items() if name in ("name", "role", "active")}
    if relinked:
        recorded["linked"] = relinked
    return recorded | {"password": "password_hash" in changes}


def _recorded(newcomer: Newcomer, row: dict[str, Any]) -> dict[str, Any]:
    recorded = _state(newcomer.role, newcomer.active)
    return recorded | {"groups": row["groups"]} if "groups" in row else recorded


@cache
def _state(role: str, active: bool) -> dict[str, Any]:
    """The same object for most rows, so that the audit trail encodes it once."""
    return {"role": role, "active": active}


def _of_existing(known: User, row: dict[str, Any]) -> dict[str, Any]:
    if row.pop("awaiting_confirmation", False):
        del row["active"]  # an account that exists here need not wait for an email again
    if known.email_proven_at is not None:
        row.pop("email_proven_at", None)
    elif known.awaiting_confirmation and "email_proven_at" in row:
        row = {"active": True, **row, "awaiting_confirmation": False}  # the import confirms the address
    if known.awaits_owner and "password_hash" in row:
        row = {"active": True, **row}  # the import brings the account, so there is nothing to accept
    return row


def _owner_of(tx: Transaction, link: Link) -> User | None:
    """The account that has this id of the provider, or may get it when a daemon binds its link."""
    return tx.user_by_link(link) or tx.user_by_link(link._replace(issuer=""))
