"""Import and export of accounts: many at once, all of them or none."""

import marshal
import tempfile
from collections.abc import Callable, Generator, Iterable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeVar

from usersctl.clock import stamp
from usersctl.config import Settings
from usersctl.errors import Invalid, LastAdmin, UsersError
from usersctl.mail.kinds import EmailQueue
from usersctl.models import OAUTH, Credentials, Identity
from usersctl.named import NamedTuple
from usersctl.passwords import Hasher, kind_of
from usersctl.store.store import Store
from usersctl.transfer.checks import COLUMNS, checked
from usersctl.transfer.writing import BrokenRows, Imported, ImportOptions, RowProblem, Writing

if TYPE_CHECKING:  # a daemon reads no files of accounts
    from usersctl.transfer.rows import SourceRow

T = TypeVar("T")


class Transfer(NamedTuple):
    store: Store
    hasher: Hasher
    settings: Settings
    emails: EmailQueue
    batch: int = 400  # rows that share their statements

    def import_rows(self, rows: "Iterable[SourceRow]", options: ImportOptions) -> Imported:
        """Checks every row, hashes the passwords, then writes all rows in one transaction."""
        # Checked rows wait on disk (a file without a name, with hashes only), so that memory does not grow with them.
        # Passwords that still need hashing wait in memory.
        with tempfile.TemporaryFile() as file:
            passwords: dict[int, str] = {}
            placed, count = self._checked(rows, passwords, options.report), 0
            sizes = []
            while batch := list(islice(placed, self.batch)):
                sizes.append(file.write(marshal.dumps(batch)))  # JSON takes three times as long
                options.progress("Checking rows", count, None)
                count += len(batch)
            if options.dry_run:  # like hashes, these differ from each other, and from every stored one
                hashes = {number: f"not made: {number}" for number in passwords}
            else:
                hashes = self._hashed(passwords, options.progress)
            file.seek(0)
            batches = (marshal.loads(file.read(size)) for size in sizes)  # noqa: S302 - just written
            return self._write(batches, count, hashes, options)

    def _checked(
        self, rows: "Iterable[SourceRow]", passwords: dict[int, str], report: Callable[[RowProblem], Any]
    ) -> Iterator[tuple[int, str, dict[str, Any]]]:
        """The rows with their numbers and places, without their passwords; after the last, BrokenRows if one is broken."""
        broken = 0
        for number, (where, row) in enumerate(rows):
            try:
                if isinstance(row, Invalid):
                    raise row
                fields = checked(self.settings, row)
            except UsersError as error:
                broken += 1
                report(RowProblem(where, error.in_full))
                continue
            password = fields.pop("password", None)
            if password is not None:
                passwords[number] = password
            yield number, where, fields
        if broken:
            raise BrokenRows(broken)

    def _hashed(
        self, passwords: dict[int, str], progress: Callable[[str, int, int | None], Any]
    ) -> dict[int, str]:
        from concurrent.futures import ThreadPoolExecutor

        hashes: dict[int, str] = {}
        # bcrypt lets go of Python's lock, so threads use all cores.
        with ThreadPoolExecutor(self.hasher.slots) as pool:
            try:
                made = pool.map(self.hasher.hash, passwords.values())
                for number, password_hash in zip(passwords, made, strict=True):
                    hashes[number] = password_hash
                    progress("Hashing passwords", len(hashes), len(passwords))
            except BaseException:
                pool.shutdown(cancel_futures=True)
                raise
        return hashes

    def _write(
        self,
        batches: Iterable[list[tuple[int, str, dict[str, Any]]]],
        count: int,
        hashes: dict[int, str],
        options: ImportOptions,
    ) -> Imported:
        with self.store.write(commit=not options.dry_run) as tx:
            had_admin = tx.active_admins() > 0
            issuers = {each.name: each.issuer_of_links or "" for each in self.settings.described_providers}
            age = self.settings.unconfirmed_expiration
            overdue_since = stamp(tx.now - age) if age else ""
            writing, done = Writing(tx, self.emails, options, issuers, overdue_since), 0
            for batch in batches:
                rows = []
                for number, where, row in batch:
                    if number in hashes:
                        row["password_hash"] = hashes[number]
                    if row.pop("confirmed", False):
                        row["email_proven_at"] = tx.now_text
                    rows.append((where, row))
                options.progress("Writing rows", done, count)
                writing.write(rows)
                done += len(rows)
            imported = writing.imported()
            if had_admin and tx.active_admins() == 0:
                raise LastAdmin
        return imported

    def export_rows(self, *, with_hashes: bool) -> Generator[dict[str, Any], None, None]:
        """Every account as `import_rows` takes it, in the order of their ids, without holding them all."""
        with self.store.read() as tx:
            identities_of, groups_of = _by_user(tx.all_identities()), _by_user(tx.groups_of_all())
            for credentials in tx.all_credentials():
                user_id = credentials.user.id
                row = _exported(credentials, identities_of(user_id), groups_of(user_id))
                yield {name: row[name] for name in COLUMNS if with_hashes or name != "password_hash"}


def _by_user(found: Iterator[tuple[int, list[T]]]) -> Callable[[int], list[T]]:
    """Looks up what belongs to a user; both are in the order of the ids."""
    ahead = next(found, None)

    def of(user_id: int) -> list[T]:
        nonlocal ahead
        if ahead is None or ahead[0] != user_id:
            return []
        items, ahead = ahead[1], next(found, None)
        return items

    return of


def _exported(credentials: Credentials, identities: list[Identity], groups: list[str]) -> dict[str, Any]:
    user, password_hash = credentials
    row: dict[str, Any] = user._asdict()
    row |= {"confirmed": None, "password_hash": None, "oauth_issuer": None}
    others = [_exported_identity(identity) for identity in identities if not _is_oauth_id_alone(identity)]
    row |= {"identities": others or None, "groups": groups or None}
    for identity in identities:
        if identity.provider == OAUTH:
            row["oauth_issuer"] = identity.issuer or None
    if user.email_proven_at:
        row["confirmed"] = True
    elif user.awaiting_confirmation:
        row["confirmed"] = False
    if kind_of(password_hash) is not None:  # else it is of no password
        row["password_hash"] = password_hash
    return row


def _is_oauth_id_alone(identity: Identity) -> bool:
    """Whether the columns oauth_id and oauth_issuer hold all of it."""
    return identity.provider == OAUTH and identity.email is None and identity.linked_at is None


def _exported_identity(identity: Identity) -> dict[str, Any]:
    fields = identity._asdict()
    del fields["user_id"]
    return fields | {"issuer": identity.issuer or None}
