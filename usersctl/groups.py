"""Groups: names beside the two roles, which applications behind a proxy get, and rules can ask for."""

from collections import defaultdict
from collections.abc import Collection, Iterable
from typing import Any

from usersctl.errors import Forbidden, Invalid, NotFound, Taken
from usersctl.fields import normal_group
from usersctl.models import Actor, Group, User
from usersctl.named import NamedTuple
from usersctl.permissions import admit
from usersctl.store.store import Store
from usersctl.store.transaction import Transaction

CHANGED_AT_ONCE = 1000  # members in one transaction, which logins wait for; POST /api/users/bulk has no more
REMOVED_AT_ONCE = 1000  # members of a deleted group; the cleanup removes the rows of others


def group_named(tx: Transaction, name: str) -> Group:
    group = tx.group(name)
    if group is None:
        raise NotFound("Group not found", named=f"No group {name!r}", hint="see: usersctl group list")
    return group


def change_members(
    tx: Transaction, group: Group, users: Iterable[User], *, into: bool, by: Actor, **details: Any
) -> list[User]:
    """Adds these users to the group, or removes them from it. Returns those for whom that changed something."""
    by_id = {user.id: user for user in users}
    change = tx.join_group if into else tx.leave_group
    ids = change(group.id, by_id)
    changed = [user for user in by_id.values() if user.id in ids]
    if changed:
        action = "group-add" if into else "group-remove"
        recorded = {"group": group.name, **details}
        tx.audit_each(by, action, [(user.id, user.email, recorded) for user in changed])
    return changed


def join_groups(tx: Transaction, pairs: Iterable[tuple[str, int]]) -> None:
    """Each the name of a group and the id of a new user, whose row of the audit trail names the group."""
    ids_by_group = defaultdict[str, list[int]](list)
    for name, user_id in pairs:
        ids_by_group[name].append(user_id)
    for name, ids in ids_by_group.items():
        tx.join_group(group_named(tx, name).id, ids)


def create_group(tx: Transaction, name: str, *, by: Actor, **details: Any) -> Group:
    group = tx.add_group(name)
    if group is None:
        raise Taken("Group name is taken", value=name)
    tx.audit(by, "group-create", group=name, **details)
    return group


def delete_group(tx: Transaction, group: Group, *, by: Actor, **details: Any) -> None:
    tx.delete_group(group.id)
    tx.delete_left_members(REMOVED_AT_ONCE)
    tx.audit(by, "group-delete", group=group.name, members=group.members, **details)


def set_groups(tx: Transaction, user: User, names: Collection[str], *, by: Actor) -> None:
    """Exactly these; Invalid if one does not exist."""
    unknown = sorted(name for name in names if tx.group(name) is None)
    if unknown:
        raise Invalid("Unknown group", value=unknown[0], hint="see: usersctl group list")
    change_groups(tx, [(user, tx.groups_of(user.id), names)], by=by)


def change_groups(
    tx: Transaction,
    accounts: Iterable[tuple[User, Iterable[str], Iterable[str]]],
    *,
    by: Actor,
    **details: Any,
) -> None:
    """All of a group at once. `accounts`: the groups before and after, for each."""
    joining, leaving = defaultdict[str, list[User]](list), defaultdict[str, list[User]](list)
    for user, before, after in accounts:
        for name in set(after).difference(before):
            joining[name].append(user)
        for name in set(before).difference(after):
            leaving[name].append(user)
    for into, changed in ((True, joining), (False, leaving)):
        for name in sorted(changed):
            change_members(tx, group_named(tx, name), changed[name], into=into, by=by, **details)


class Groups(NamedTuple):
    store: Store

    def all(self) -> list[Group]:
        with self.store.glance() as tx:
            return tx.groups()

    def some(self, *, after: str, at_most: int) -> list[Group]:
        """By name, behind this one."""
        with self.store.glance() as tx:
            return tx.groups(after, at_most)

    def get(self, name: str) -> Group:
        with self.store.glance() as tx:
            return group_named(tx, name)

    def with_members(self, name: str, at_most: int) -> tuple[Group, list[User]]:
        """The group, and its oldest members."""
        with self.store.read() as tx:
            group = group_named(tx, name)
            return group, tx.members(group.id, at_most)

    def create(self, name: str, *, by: Actor) -> Group:
        name = normal_group(name)
        with self.store.write() as tx:
            admit(tx, by)
            return create_group(tx, name, by=by)

    def delete(self, name: str, *, with_members: bool = True, by: Actor) -> Group:
        """No user is a member from this moment on, however many there were."""
        with self.store.write() as tx:
            admit(tx, by)
            group = group_named(tx, name)
            if group.members and not with_members:
                raise Forbidden(f"Group {name} has members", hint="confirm with --yes")
            delete_group(tx, group, by=by)
            return group

    def add(self, name: str, user_ids: Iterable[int], *, by: Actor) -> list[User]:
        """Returns the users who were no members before."""
        return self._change(name, user_ids, into=True, by=by)

    def remove(self, name: str, user_ids: Iterable[int], *, by: Actor) -> list[User]:
        """Returns the users who were members."""
        return self._change(name, user_ids, into=False, by=by)

    def _change(self, name: str, user_ids: Iterable[int], *, into: bool, by: Actor) -> list[User]:
        """In batches. After an interruption, a second run changes the others."""
        ids, changed = list(user_ids), list[User]()
        for start in range(0, max(1, len(ids)), CHANGED_AT_ONCE):
            with self.store.write() as tx:
                admit(tx, by)
                group = group_named(tx, name)
                users = [tx.existing_user(user_id) for user_id in ids[start : start + CHANGED_AT_ONCE]]
                changed += change_members(tx, group, users, into=into, by=by)
        return changed

    def of(self, user_id: int) -> tuple[str, ...]:
        with self.store.read() as tx:
            tx.existing_user(user_id)
            return tx.groups_of(user_id)

    def set(self, user_id: int, names: Collection[str], *, by: Actor) -> tuple[str, ...]:
        with self.store.write() as tx:
            admit(tx, by)
            set_groups(tx, tx.existing_user(user_id), names, by=by)
            return tx.groups_of(user_id)
