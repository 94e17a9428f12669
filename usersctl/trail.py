"""The audit trail as admins read it: filtered, the newest rows first, and checked in steps."""

import re
from collections.abc import Iterable, Iterator
from typing import Any

from usersctl.clock import stamp
from usersctl.durations import since as time_of
from usersctl.errors import Invalid
from usersctl.events import ACTIONS
from usersctl.fields import lookup, whole_number
from usersctl.models import AuditFilter, AuditRow
from usersctl.named import NamedTuple
from usersctl.store.chain import ChainStep
from usersctl.store.store import Store
from usersctl.store.transaction import Transaction
from usersctl.text import did_you_mean

STEP = 10_000  # rows of one step of the check, which takes some 50 milliseconds
END = 100  # rows at the end of the trail, which are checked with each look at it
ACTOR = "system|anonymous|(cli|user):[^\0-\x1f\x7f\ud800-\udfff]{1,200}"  # as rows name it
NOBODY = 0  # the id of no user


class Wanted(NamedTuple):
    """A filter as it is typed; None: any."""

    user: str | None = None  # an id or an address
    actor: str | None = None  # the same, or as a row names it
    action: str | None = None
    since: str | None = None  # 7d, or a date
    until: str | None = None


class TrailPage(NamedTuple):
    rows: list[dict[str, Any]]
    next: int | None  # goes on before this id


class Trail(NamedTuple):
    store: Store

    def page(self, wanted: Wanted, *, limit: int, before: int | None = None) -> TrailPage:
        with self.store.read() as tx:
            page = tx.audit_page(_filter(tx, wanted), limit, before)
            return TrailPage(list(with_addresses(tx, page.rows)), page.next)

    def actions(self) -> list[str]:
        """To choose from."""
        with self.store.glance() as tx:
            return _actions(tx)

    def check(self, after: int, rows: int) -> ChainStep:
        """The next step of a check of the whole trail. `rows`: that the steps before have checked, up to the id `after`."""
        with self.store.read() as tx:
            return tx.check_audit_on(after, rows, STEP)

    def check_end(self) -> ChainStep:
        with self.store.read() as tx:
            return tx.check_audit_end(END)


def _filter(tx: Transaction, wanted: Wanted) -> AuditFilter:
    if wanted.action is not None:
        refuse_unknown(tx, wanted.action)
    return AuditFilter(
        _user_id("user", tx, wanted.user) if wanted.user is not None else None,
        _actor(tx, wanted.actor) if wanted.actor is not None else None,
        wanted.action,
        _time("since", tx, wanted.since),
        _time("until", tx, wanted.until),
    )


def _time(name: str, tx: Transaction, text: str | None) -> str | None:
    if text is None:
        return None
    try:
        return stamp(time_of(text, tx.now))
    except Invalid:
        raise Invalid(f"{name} must be a duration such as 7d, or an ISO 8601 time") from None


def _actions(tx: Transaction) -> list[str]:
    return sorted({*ACTIONS, *tx.actions()})


def refuse_unknown(tx: Transaction, action: str) -> None:
    actions = _actions(tx)
    if action not in actions:
        hint = did_you_mean(action, actions)
        raise Invalid(f"action must be one of {', '.join(actions)}", hint=hint, value=action)


def _user_id(name: str, tx: Transaction, text: str) -> int:
    """Of a user who may be deleted: the trail outlives the account."""
    number = whole_number(text.strip())
    if number is not None:
        return number
    email, is_email = lookup(text)
    if not is_email:
        raise Invalid(f"{name} must be the id or the email address of a user")
    return tx.id_of(email) or NOBODY


def _actor(tx: Transaction, text: str) -> str:
    if re.fullmatch(ACTOR, text):
        return text
    try:
        return f"user:{_user_id('actor', tx, text)}"
    except Invalid:
        raise Invalid(
            "actor must be system, anonymous, cli:NAME, user:ID, or the id or email address of a user"
        ) from None


def with_addresses(tx: Transaction, rows: Iterable[AuditRow]) -> Iterator[dict[str, Any]]:
    """The rows as dictionaries, with the address of the user who acted, as it is now; None for another actor."""
    addresses: dict[str, str | None] = {}
    for row in rows:
        kind, _, number = row.actor.partition(":")
        if kind == "user" and row.actor not in addresses:
            user = tx.user(whole_number(number) or 0)
            addresses[row.actor] = user and user.email
        yield row._asdict() | {"actor_email": addresses.get(row.actor)}
