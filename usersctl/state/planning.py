"""What would change, so that the accounts and groups are as a file says: compared within one moment of the database."""

from collections.abc import Iterator, Sequence
from operator import attrgetter
from typing import Any, TypeVar

from usersctl.addresses import has_lapsed
from usersctl.config import Settings
from usersctl.errors import LastAdmin, Taken
from usersctl.fields import name_of
from usersctl.groups import group_named
from usersctl.models import Role, Standing
from usersctl.named import NamedTuple
from usersctl.state.lines import Place
from usersctl.state.reading import Broken, Problem, State, WantedUser
from usersctl.store.transaction import Transaction
from usersctl.text import counted
from usersctl.ways_in import ways_into_each

T = TypeVar("T")

BATCH = 400  # accounts that share their statements
DELETE = "delete"  # how accounts and groups are pruned; else accounts are deactivated
CREATED, UPDATED, DELETED = "create", "update", "delete"
GROUP, USER, REGISTRATION = "group", "user", "registration"

View = dict[str, Any]  # what the file decides of an account or group, as --json prints it


class Change(NamedTuple):
    action: str
    kind: str
    key: str  # the address of an account, the name of a group
    before: View | None
    after: View | None

    @property
    def is_grave(self) -> bool:
        """It deletes, deactivates, ends an invitation or takes the admin role."""
        before, after = self.before or {}, self.after or {}
        takes_admin = before.get("role") == Role.ADMIN != after.get("role")
        ends = any(before.get(name) and not after.get(name) for name in ("active", "invited"))
        return self.action == DELETED or takes_admin or ends

    @property
    def admins(self) -> int:
        """How many active admins more there are after it."""
        return _is_admin(self.after) - _is_admin(self.before)


class Options(NamedTuple):
    adopt: bool = False
    prune: str | None = None  # deactivate or delete


class Conflicts(Taken):
    """Accounts and groups that are there, and not the file's to change; nothing was done."""

    def __init__(self, problems: list[Problem], *, hint: str | None) -> None:
        count = counted(len(problems), "conflict")
        super().__init__(f"{count} with what is there; nothing was done", hint=hint)
        self.problems = problems


def plan(tx: Transaction, settings: Settings, state: State, options: Options) -> list[Change]:
    """In an order that depends on names and addresses alone: groups that are made, accounts, groups that are deleted."""
    planning = _Planning(tx, settings, state, options)
    parts = (planning.groups(), planning.users(), planning.pruned_groups())
    changes = [change for part in parts for change in sorted(part, key=attrgetter("key", "kind"))]
    if planning.unknown:
        raise Broken(planning.unknown)
    if planning.conflicts:
        hint = "--adopt takes over what exists" if planning.is_adoptable else None
        raise Conflicts(planning.conflicts, hint=hint)
    admins = tx.active_admins()
    if admins and admins + sum(change.admins for change in changes) < 1:
        raise LastAdmin
    return changes


class _Planning:
    def __init__(self, tx: Transaction, settings: Settings, state: State, options: Options) -> None:
        self.tx = tx
        self.settings = settings
        self.state = state
        self.options = options
        self.conflicts: list[Problem] = []
        self.is_adoptable = False  # one of the conflicts
        self.unknown: list[Problem] = []  # groups that accounts of the file are in
        self.managers = tx.managers_of_groups()
        self.listed = {group.name for group in state.groups}
        self.pruned = set[str]()
        if options.prune == DELETE:
            ours = {name for name, manager in self.managers.items() if manager == state.name}
            self.pruned = ours - self.listed
        self.there = (self.managers.keys() | self.listed) - self.pruned

    # --- groups ---

    def groups(self) -> Iterator[Change]:
        for group in self.state.groups:
            name, manager = group.name, self.managers.get(group.name)
            before, after = {"managed_by": manager}, {"managed_by": self.state.name}
            if name not in self.managers:
                yield Change(CREATED, GROUP, name, None, after)
            elif after != before and not self._is_refused(group.place(), f"group {name}", manager):
                yield Change(UPDATED, GROUP, name, before, after)

    def pruned_groups(self) -> Iterator[Change]:
        for name in self.pruned:
            before = {"managed_by": self.state.name, "members": group_named(self.tx, name).members}
            yield Change(DELETED, GROUP, name, before, None)

    # --- accounts ---

    def users(self) -> Iterator[Change]:
        for batch in batches(self.state.users):
            emails = [wanted.email for wanted in batch]
            standings = self.tx.standings_of(emails)
            missing = [email for email in emails if email not in standings]
            in_use = self.tx.emails_in_use(missing) if missing else set()
            invited = self.tx.applied_invitations(emails)
            to_invite = [wanted.email for wanted in batch if wanted.invite and wanted.email not in invited]
            stuck = self._without_way_in(standings, to_invite)
            for wanted in batch:
                self._refuse_unknown_groups(wanted)
                standing = standings.get(wanted.email)
                if standing is not None and not standing.user.awaiting_confirmation:
                    yield from self._changed(wanted, standing, needs_invitation=wanted.email in stuck)
                    continue
                if standing is not None:
                    yield from self._unconfirmed(wanted, standing)
                elif wanted.email in in_use:
                    self._refuse_reserved(wanted)
                yield self._created(wanted, is_invited=wanted.email in invited)
        if self.options.prune is not None:
            yield from self._pruned_users()

    def _created(self, wanted: WantedUser, *, is_invited: bool) -> Change:
        view = {
            "name": wanted.name or name_of(wanted.email),
            "role": wanted.role or str(Role.USER),
            "active": wanted.active is not False and not wanted.invite,
            "groups": list(wanted.groups or ()),
            "invited": wanted.invite,
            "managed_by": self.state.name,
        }
        if wanted.invite:
            view["sends_invitation"] = not is_invited
        return Change(CREATED, USER, wanted.email, None, view)

    def _unconfirmed(self, wanted: WantedUser, standing: Standing) -> Iterator[Change]:
        """A stranger's, perhaps, with a password that the stranger knows: it gives way to a new account."""
        if not self.options.adopt and not has_lapsed(self.tx, standing.user):
            problem = (
                "was registered, and its owner has not confirmed it: --adopt replaces it by a new account"
            )
            self._conflict(wanted.place(), f"{wanted.email} {problem}")
        before = {"name": standing.user.name, "created_at": standing.user.created_at}
        yield Change(DELETED, REGISTRATION, wanted.email, before, None)

    def _changed(self, wanted: WantedUser, standing: Standing, *, needs_invitation: bool) -> Iterator[Change]:
        user, before = standing.user, _view(standing)
        if self._is_refused(wanted.place(), f"user {user.id} ({user.email})", standing.managed_by):
            return
        after = before | {"managed_by": self.state.name}
        after |= {key: value for key in ("name", "role") if (value := getattr(wanted, key)) is not None}
        groups = standing.groups if wanted.groups is None else wanted.groups
        after["groups"] = [name for name in groups if name not in self.pruned]
        waits_for_owner = wanted.invite and user.awaits_owner
        if wanted.active is not None and not waits_for_owner:
            after["active"] = wanted.active
            after["invited"] = before["invited"] and wanted.active
            if user.delete_at is not None:  # the owner asked for it, and the file decides otherwise
                before["delete_at"], after["delete_at"] = user.delete_at, None
        if needs_invitation and after["active"] and not before["invited"]:
            after |= {"invited": True, "sends_invitation": True}
        if after != before:
            yield Change(UPDATED, USER, user.email, before, after)

    def _without_way_in(self, standings: dict[str, Standing], emails: list[str]) -> set[str]:
        ids = {email: standings[email].user.id for email in emails if email in standings}
        ways = ways_into_each(self.tx, self.settings, list(ids.values()))
        return {email for email, user_id in ids.items() if not ways[user_id]}

    def _pruned_users(self) -> Iterator[Change]:
        listed = {wanted.email for wanted in self.state.users}
        for standing in self.tx.managed_standings(self.state.name):
            email, before = standing.user.email, _view(standing)
            if email in listed:
                continue
            if self.options.prune == DELETE:
                yield Change(DELETED, USER, email, before, None)
            elif before["active"] or before["invited"]:
                yield Change(UPDATED, USER, email, before, before | {"active": False, "invited": False})

    # --- problems ---

    def _conflict(self, place: Place, message: str) -> None:
        self.conflicts.append(Problem(self.state.places.named(place), message))

    def _is_refused(self, place: Place, noun: str, manager: str | None) -> bool:
        """Whether it is not the file's, and nobody said that the file takes over what exists: a conflict."""
        if manager == self.state.name or self.options.adopt:
            return False
        self.is_adoptable = True
        whose = "is managed by no file" if manager is None else f"is managed by the file {manager!r}"
        self._conflict(place, f"{noun} exists, and {whose}")
        return True

    def _refuse_reserved(self, wanted: WantedUser) -> None:
        holder = self.tx.reserved_for(wanted.email)
        if holder is not None:  # else it is claimed, and the claim yields
            why = f"is reserved for user {holder}, who gave it up less than a week ago"
            self._conflict(wanted.place(), f"{wanted.email} {why}: name the user's address of today")

    def _refuse_unknown_groups(self, wanted: WantedUser) -> None:
        for name in wanted.groups or ():
            if name in self.there:
                continue
            if name in self.pruned:
                problem = f"--prune delete deletes group {name}: add it below [[groups]]"
            else:
                mend = f"add it below [[groups]], or make it with: usersctl group create {name}"
                problem = f"there is no group {name}: {mend}"
            self.unknown.append(
                Problem(self.state.places.named(wanted.place("groups")), f"groups: {problem}")
            )


def _view(standing: Standing) -> View:
    user = standing.user
    return {
        "name": user.name,
        "role": user.role,
        "active": user.active,
        "groups": list(standing.groups),
        "invited": user.invited_at is not None,
        "managed_by": standing.managed_by,
    }


def _is_admin(view: View | None) -> bool:
    return view is not None and view.get("role") == Role.ADMIN and view["active"]


def batches(items: Sequence[T]) -> Iterator[Sequence[T]]:
    for start in range(0, len(items), BATCH):
        yield items[start : start + BATCH]
