"""Import and export of accounts: many at once, all of them or none."""

import json
import re
import tempfile
from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

from usersctl.addresses import holder_of, make_free
from usersctl.config import Settings
from usersctl.credentials import shut_out
from usersctl.errors import Invalid, LastAdmin, UsersError
from usersctl.fields import is_text, is_web_address, normal_email, normal_name, normal_role, normal_time
from usersctl.mail.kinds import EmailQueue
from usersctl.models import UNUSABLE, Actor, Credentials, Link, Newcomer, User
from usersctl.passwords import Hasher, check_hash, check_password, cost_of
from usersctl.store.store import Store
from usersctl.store.transaction import Transaction
from usersctl.text import counted

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_TRUE, _FALSE = ("true", "1", "yes"), ("false", "0", "no")


def _text(name: str, value: Any) -> str:
    if isinstance(value, bool | int) and name in ("active", "confirmed"):
        return str(value)
    if not isinstance(value, str):
        raise Invalid(f"{name} must be a string")
    # A password is taken exactly as it was typed; its own rules forbid some characters.
    if not is_text(value) or (name != "password" and _CONTROL.search(value)):
        raise Invalid(f"{name} is not valid text: it holds control characters, or is not UTF-8")
    return value


def _boolean(name: str, value: str) -> bool:
    text = value.strip().lower()
    if text not in _TRUE + _FALSE:
        raise Invalid(f"{name} must be true or false")
    return text in _TRUE


def _picture(value: str) -> str:
    if not is_web_address(value):
        raise Invalid(f"profile_picture {value[:40]!r} is no web address: it begins with https:// or http://")
    return value


def _issuer(value: str) -> str:
    if not is_web_address(value):
        raise Invalid(f"oauth_issuer {value[:40]!r} is no web address: it begins with https:// or http://")
    return value


# In the order in which an export writes them; a password is only imported.
_CHECKS: dict[str, Callable[[str], Any]] = {
    "email": normal_email,
    "name": normal_name,
    "role": normal_role,
    "active": partial(_boolean, "active"),
    "confirmed": partial(_boolean, "confirmed"),
    "password_hash": check_hash,
    "created_at": normal_time,
    "last_login_at": normal_time,
    "oauth_id": str,
    "oauth_issuer": _issuer,
    "profile_picture": _picture,
    "password": str,
}
IMPORTED = tuple(_CHECKS)
COLUMNS = IMPORTED[:-1]
# Columns that `list` prints and an import ignores: accounts get new ids.
IGNORED = ("id", "updated_at")

PlacedRow = tuple[str, dict[str, Any] | Invalid]  # the row, or why it is invalid, after its place


class RowProblem(NamedTuple):
    where: str  # "line 7" or "entry 7"
    message: str


class ImportOptions(NamedTuple):
    on_conflict: str  # fail, skip or update
    dry_run: bool
    by: Actor
    report: Callable[[RowProblem], Any]  # is called for each broken row
    hashing: Callable[[int, int], Any]  # is called with the number of hashed passwords, and of all


class BrokenRows(Invalid):
    """Rows that cannot be imported; nothing was written."""

    def __init__(self, count: int, *, taken: bool = False, hint: str | None = None) -> None:
        problem = "with an address or provider id that is taken" if taken else "cannot be imported"
        super().__init__(f"{counted(count, 'row')} {problem}; nothing was imported", hint=hint)
        self.taken = taken


class Imported(NamedTuple):
    created: int
    updated: int
    skipped: int
    without_password: int


@dataclass(frozen=True)
class Transfer:
    store: Store
    hasher: Hasher
    settings: Settings
    emails: EmailQueue

    def import_rows(self, rows: Iterable[PlacedRow], options: ImportOptions) -> Imported:
        """Checks every row, hashes the passwords, then writes all rows in one transaction."""
        # Checked rows wait on disk (a file without a name, with hashes only), so that memory does not grow with them.
        # Passwords that still need hashing wait in memory.
        with tempfile.TemporaryFile("w+", encoding="utf-8") as file:
            passwords: dict[int, str] = {}
            broken = 0
            for number, (where, row) in enumerate(rows):
                try:
                    if isinstance(row, Invalid):
                        raise row
                    checked = self._checked(row)
                except UsersError as error:
                    broken += 1
                    options.report(RowProblem(where, str(error)))
                    continue
                password = checked.pop("password", None)
                if password is not None:
                    passwords[number] = password
                file.write(json.dumps([number, where, checked]) + "\n")  # dump() is several times slower
            if broken:
                raise BrokenRows(broken)
            hashes = dict.fromkeys(passwords, UNUSABLE)
            if not options.dry_run:
                hashes = self._hashed(passwords, options.hashing)
            file.seek(0)
            return self._write(file, hashes, options)

    def _checked(self, row: dict[str, Any]) -> dict[str, Any]:
        unknown = next((name for name in row if name not in IMPORTED and name not in IGNORED), None)
        if unknown is not None:
            raise Invalid(f"unknown column {unknown!r}; known are {', '.join(IMPORTED)}")
        given = {name: row[name] for name in IMPORTED if row.get(name) not in (None, "")}
        if "email" not in given:
            raise Invalid("email is missing")
        if "password_hash" in given and "password" in given:
            raise Invalid("has both a password and a password_hash")
        checked = {name: _CHECKS[name](_text(name, value)) for name, value in given.items()}
        if checked.get("confirmed") is False:
            if checked.get("active"):
                raise Invalid("is active and not confirmed: leave confirmed empty, or make it inactive")
            del checked["confirmed"]
            checked |= {"active": False, "awaiting_confirmation": True}
        if "oauth_id" not in checked:
            checked.pop("oauth_issuer", None)
        if "password" in checked:
            owner = Newcomer(checked["email"], checked.get("name", ""))
            check_password(self.settings, checked["password"], owner)
        return checked

    def _hashed(self, passwords: dict[int, str], hashing: Callable[[int, int], Any]) -> dict[int, str]:
        from concurrent.futures import ThreadPoolExecutor

        hashes: dict[int, str] = {}
        # bcrypt lets go of Python's lock, so threads use all cores.
        with ThreadPoolExecutor(self.hasher.slots) as pool:
            try:
                made = pool.map(self.hasher.hash, passwords.values())
                for number, password_hash in zip(passwords, made, strict=True):
                    hashes[number] = password_hash
                    hashing(len(hashes), len(passwords))
            except BaseException:
                pool.shutdown(cancel_futures=True)
                raise
        return hashes

    def _write(self, lines: Iterable[str], hashes: dict[int, str], options: ImportOptions) -> Imported:
        created = updated = skipped = without = taken = first = 0
        hint = ""
        with self.store.write(commit=not options.dry_run) as tx:
            had_admin = tx.active_admins() > 0
            for line in lines:
                number, where, row = json.loads(line)
                if number in hashes:
                    row["password_hash"] = hashes[number]
                if row.pop("confirmed", False):
                    row["email_proven_at"] = tx.now_text
                known = holder_of(tx, row["email"])
                row |= self._issuer_of(tx, known, row)
                why_taken = _why_taken(tx, row, known)
                if why_taken is not None:
                    taken += 1
                    problem, hint = why_taken
                    options.report(RowProblem(where, problem))
                elif known is None:
                    make_free(tx, self.emails, row["email"], by=options.by)
                    user = tx.add_user(Newcomer(**{"name": row["email"].partition("@")[0]} | row))
                    tx.audit(options.by, "import", user, role=user.role, active=user.active)
                    first = first or user.id
                    created += 1
                    without += "password_hash" not in row
                elif options.on_conflict == "fail":
                    taken += 1
                    hint = "choose with --on-conflict skip or --on-conflict update"
                    holder = "an earlier row" if first and known.id >= first else f"user {known.id}"
                    options.report(RowProblem(where, f"{known.email} is taken by {holder}"))
                elif options.on_conflict == "update":
                    updated += self._update(tx, known, row, options.by)
                else:
                    skipped += 1
            if taken:
                raise BrokenRows(taken, taken=True, hint=hint)
            if had_admin and tx.active_admins() == 0:
                raise LastAdmin
        return Imported(created, updated, skipped, without)

    def _issuer_of(self, tx: Transaction, known: User | None, row: dict[str, Any]) -> dict[str, Any]:
        """An id for which the row names no issuer keeps the one that it has here, or gets that of the configuration."""
        if "oauth_id" not in row or "oauth_issuer" in row:
            return {}
        link = tx.link_of(known.id) if known is not None else None
        if link is not None and link.oauth_id == row["oauth_id"] and link.oauth_issuer is not None:
            return {"oauth_issuer": link.oauth_issuer}
        return {"oauth_issuer": self.settings.provider_issuer}

    def _update(self, tx: Transaction, known: User, row: dict[str, Any], by: Actor) -> bool:
        stored = tx.credentials_of(known.id)
        before = known._asdict() | {"password_hash": stored.password_hash if stored else UNUSABLE}
        link = tx.link_of(known.id)
        before["oauth_issuer"] = link and link.oauth_issuer
        if row.pop("awaiting_confirmation", False):
            del row["active"]  # an account that exists here need not wait for an email again
        if known.email_proven_at is not None:
            row.pop("email_proven_at", None)
        elif known.awaiting_confirmation and "email_proven_at" in row:
            row = {"active": True, **row, "awaiting_confirmation": False}  # the import confirms the address
        changes = {name: value for name, value in row.items() if value != before[name]}
        if "active" in changes:
            changes |= {"awaiting_confirmation": False, "delete_at": None}
        if not changes:
            return False
        if known.awaiting_confirmation and "password_hash" not in row:
            changes["password_hash"] = (
                UNUSABLE  # the person of the row may be another than the one who registered
            )
        if changes.get("active") is False:
            shut_out(tx, known, notices=True)
        elif "password_hash" in changes:
            shut_out(tx, known)
        user = tx.change_user(known.id, **changes)
        recorded = {name: value for name, value in changes.items() if name in ("name", "role", "active")}
        tx.audit(by, "import-update", user, **recorded, password="password_hash" in changes)
        return True

    def export_rows(self, *, with_hashes: bool) -> Generator[dict[str, Any], None, None]:
        """Every account as `import_rows` takes it, in the order of their ids, without holding them all."""
        with self.store.read() as tx:
            for credentials, issuer in tx.all_credentials_with_issuer():
                yield _exported(credentials, issuer, with_hashes=with_hashes)


def _owner_of_link(tx: Transaction, row: dict[str, Any]) -> User | None:
    """The account that has this id of the provider, or may get it when a daemon binds its link."""
    if "oauth_id" not in row:
        return None
    link = Link(row["oauth_id"], row["oauth_issuer"])
    return tx.user_by_link(link) or tx.user_by_link(link._replace(oauth_issuer=None))


def _why_taken(tx: Transaction, row: dict[str, Any], known: User | None) -> tuple[str, str] | None:
    """The problem, and a hint."""
    owner = _owner_of_link(tx, row)
    if owner is not None and (known is None or owner.id != known.id):
        hint = "give each row an oauth_id of its own, or free it with: usersctl update USER --unlink"
        return f"oauth_id is taken by {owner.email}", hint
    if known is None and tx.reserved_for(row["email"]) is not None:
        hint = "wait: an address that its user gave up stays reserved for seven days"
        return f"{row['email']} is reserved for another account", hint
    return None


def _exported(credentials: Credentials, issuer: str | None, *, with_hashes: bool) -> dict[str, Any]:
    user, password_hash = credentials
    row: dict[str, Any] = user._asdict()
    row |= {"confirmed": None, "password_hash": None, "oauth_issuer": issuer}
    if user.email_proven_at:
        row["confirmed"] = True
    elif user.awaiting_confirmation:
        row["confirmed"] = False
    if cost_of(password_hash) is not None:  # else it is of no password
        row["password_hash"] = password_hash
    return {name: row[name] for name in COLUMNS if with_hashes or name != "password_hash"}
