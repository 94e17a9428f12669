"""Carries out a plan, within the transaction in which it was made."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from usersctl import invited
from usersctl.addresses import has_lapsed, make_free, overrule_registration, remove_registration
from usersctl.changes import ASKED, changes_of, delete_users, make_changes
from usersctl.fields import name_of
from usersctl.groups import change_groups, create_group, delete_group, group_named, join_groups
from usersctl.mail.kinds import USUAL_INVITATION, EmailQueue
from usersctl.models import Actor, Newcomer, User
from usersctl.state.planning import (
    BATCH,
    CREATED,
    DELETED,
    GROUP,
    REGISTRATION,
    UPDATED,
    USER,
    Change,
    View,
    batches,
)
from usersctl.store.progress import Progress
from usersctl.store.transaction import Transaction


class Applying:
    def __init__(
        self, tx: Transaction, emails: EmailQueue, name: str, progress: Progress, *, by: Actor
    ) -> None:
        self.tx = tx
        self.emails = emails
        self.name = name  # of the file
        self.progress = progress
        self.by = by

    def carry_out(self, changes: Sequence[Change]) -> None:
        """What needs others comes after them: members after their group."""
        self.done, self.total = 0, len(changes)

        def some(action: str, kind: str) -> list[Change]:
            return [change for change in changes if (change.action, change.kind) == (action, kind)]

        for change in some(CREATED, GROUP):
            create_group(self.tx, change.key, by=self.by, file=self.name)
            self.tx.manage_group(self.name, change.key)
        for change in some(UPDATED, GROUP):
            self.tx.manage_group(self.name, change.key)
            self.tx.audit(self.by, "group-adopt", group=change.key, file=self.name)
        for lapsed in self._parts(some(DELETED, REGISTRATION)):
            for _, user in self._with_accounts(lapsed):
                self._remove_registration(user)
        for created in self._parts(some(CREATED, USER)):
            self._create(created)
        for updated in self._parts(some(UPDATED, USER)):
            self._update(updated)
        for deleted in self._parts(some(DELETED, USER)):
            users = [user for _, user in self._with_accounts(deleted)]
            delete_users(self.tx, users, by=self.by, file=self.name)
        for change in some(DELETED, GROUP):
            delete_group(self.tx, group_named(self.tx, change.key), by=self.by, file=self.name)

    def _parts(self, changes: Sequence[Change]) -> Iterator[Sequence[Change]]:
        for part in batches(changes):
            yield part
            self.done += len(part)
            if self.total > BATCH:  # few are done at once
                self.progress(self.done, self.total)

    def _with_accounts(self, changes: Sequence[Change]) -> list[tuple[Change, User]]:
        standings = self.tx.standings_of([change.key for change in changes])
        return [(change, standings[change.key].user) for change in changes]

    def _remove_registration(self, user: User) -> None:
        remove = remove_registration if has_lapsed(self.tx, user) else overrule_registration
        remove(self.tx, user, by=self.by, file=self.name)

    def _create(self, changes: Sequence[Change]) -> None:
        """All by the same statements: one for each account would keep other writers waiting."""
        tx = self.tx
        for email in sorted(tx.emails_in_use([change.key for change in changes])):
            make_free(tx, self.emails, email, by=self.by)
        views = [change.after or {} for change in changes]
        newcomers = [
            Newcomer(change.key, view["name"], role=view["role"], active=view["active"])
            for change, view in zip(changes, views, strict=True)
        ]
        ids = tx.add_users(newcomers)
        tx.manage_users(self.name, ids)
        members: list[tuple[str, int]] = []
        created: list[tuple[int, str, View]] = []
        invitees: list[tuple[User, View]] = []
        for user_id, newcomer, view in zip(ids, newcomers, views, strict=True):
            if view.get("sends_invitation"):
                invitees.append((tx.existing_user(user_id), view))
                continue
            if view["invited"]:
                self._await_owner(user_id, newcomer)
            members += [(name, user_id) for name in view["groups"]]
            created.append((user_id, newcomer.email, self._recorded(view)))
        join_groups(tx, members)
        if created:
            tx.audit_each(self.by, "create", created)
        change_groups(tx, [(user, [], view["groups"]) for user, view in invitees], by=self.by, file=self.name)
        for user, _ in invitees:
            self._send_invitation(user, is_nameless=_is_nameless(user), created=True)

    def _recorded(self, view: View) -> View:
        recorded = {"role": view["role"], "active": view["active"], "file": self.name}
        if view["groups"]:
            recorded["groups"] = view["groups"]
        return recorded

    def _send_invitation(self, user: User, *, is_nameless: bool = False, created: bool = False) -> None:
        self.tx.note_applied_invitation(user.email)
        invited.begin(
            self.tx,
            self.emails,
            user,
            USUAL_INVITATION,
            is_nameless=is_nameless,
            created=created,
            by=self.by,
            file=self.name,
        )

    def _await_owner(self, user_id: int, newcomer: Newcomer) -> None:
        """Its email was sent before, and the account is gone since: an admin decides about another email."""
        self.tx.change_user(
            user_id,
            invited_at=self.tx.now_text,
            invitation_expires_at=self.tx.now_text,
            invited_nameless=_is_nameless(newcomer),
        )

    def _update(self, changes: Sequence[Change]) -> None:
        accounts = [
            (user, change.before or {}, change.after or {}) for change, user in self._with_accounts(changes)
        ]
        moved = [(user, before["groups"], after["groups"]) for user, before, after in accounts]
        change_groups(self.tx, moved, by=self.by, file=self.name)
        self._change_alike(accounts)
        self._adopt(user for user, before, after in accounts if after["managed_by"] != before["managed_by"])
        for user, _, after in accounts:
            if "sends_invitation" in after:
                self._send_invitation(user)

    def _change_alike(self, accounts: Iterable[tuple[User, View, View]]) -> None:
        """Those that change in the same way by the same statements."""
        alike = defaultdict[tuple[tuple[str, Any], ...], list[User]](list)
        for user, before, after in accounts:
            alike[tuple(sorted(_changes_of(user, before, after).items()))].append(user)
        for changes, users in alike.items():
            if changes:
                make_changes(self.tx, users, dict(changes), {"file": self.name}, by=self.by)

    def _adopt(self, users: Iterable[User]) -> None:
        adopted = [(user.id, user.email, {"file": self.name}) for user in users]
        if adopted:
            self.tx.manage_users(self.name, [user_id for user_id, *_ in adopted])
            self.tx.audit_each(self.by, "adopt", adopted)


def _changes_of(user: User, before: View, after: View) -> View:
    asked = {key: after[key] for key in ASKED if after[key] != before[key]}
    if (before["invited"] and not after["invited"]) or "delete_at" in after:
        asked["active"] = after["active"]
    return changes_of(user, asked)


def _is_nameless(newcomer: Newcomer | User) -> bool:
    """Whether the owner has to give a name: the account has that of its address."""
    return newcomer.name == name_of(newcomer.email)
