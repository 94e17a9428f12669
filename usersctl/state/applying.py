"""Carries out a plan, within the transaction in which it was made."""

from collections.abc import Iterator, Sequence

from usersctl import invited
from usersctl.addresses import has_lapsed, make_free, overrule_registration, remove_registration
from usersctl.changes import ASKED, changes_of, delete_users, make_changes
from usersctl.fields import name_of
from usersctl.groups import create_group, delete_group, group_named, set_groups
from usersctl.mail.kinds import USUAL_INVITATION, EmailQueue
from usersctl.models import Actor, Newcomer, Standing, User
from usersctl.state.planning import (
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
from usersctl.store.transaction import Transaction


class Applying:
    def __init__(self, tx: Transaction, emails: EmailQueue, name: str, *, by: Actor) -> None:
        self.tx = tx
        self.emails = emails
        self.name = name  # of the file
        self.by = by

    def carry_out(self, changes: Sequence[Change]) -> None:
        """What needs others comes after them: members after their group, the last admin's leave after a new admin."""

        def some(action: str, kind: str) -> list[Change]:
            return [change for change in changes if (change.action, change.kind) == (action, kind)]

        for change in some(CREATED, GROUP):
            create_group(self.tx, change.key, by=self.by)
            self.tx.manage_group(self.name, change.key)
        for change in some(UPDATED, GROUP):
            self.tx.manage_group(self.name, change.key)
            self.tx.audit(self.by, "group-adopt", group=change.key, file=self.name)
        for _, standing in self._with_standings(some(DELETED, REGISTRATION)):
            self._remove_registration(standing)
        for batch in batches(some(CREATED, USER)):
            self._create(batch)
        gaining_first = sorted(some(UPDATED, USER), key=lambda change: -change.admins)
        for change, standing in self._with_standings(gaining_first):
            self._update(change, standing)
        for _, standing in self._with_standings(some(DELETED, USER)):
            delete_users(self.tx, [standing.user], by=self.by)
        for change in some(DELETED, GROUP):
            delete_group(self.tx, group_named(self.tx, change.key), by=self.by)

    def _with_standings(self, changes: Sequence[Change]) -> Iterator[tuple[Change, Standing]]:
        for batch in batches(changes):
            standings = self.tx.standings_of([change.key for change in batch])
            for change in batch:
                yield change, standings[change.key]

    def _remove_registration(self, standing: Standing) -> None:
        remove = remove_registration if has_lapsed(self.tx, standing.user) else overrule_registration
        remove(self.tx, standing.user, by=self.by)

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
        for user_id, newcomer, view in zip(ids, newcomers, views, strict=True):
            if view.get("sends_invitation"):
                self._invite(user_id, newcomer, view["groups"])
                continue
            if view["invited"]:
                self._await_owner(user_id, newcomer)
            members += [(name, user_id) for name in view["groups"]]
            created.append((user_id, newcomer.email, self._recorded(view)))
        tx.join_groups(members)
        if created:
            tx.audit_each(self.by, "create", created)

    def _recorded(self, view: View) -> View:
        recorded = {"role": view["role"], "active": view["active"], "file": self.name}
        if view["groups"]:
            recorded["groups"] = view["groups"]
        return recorded

    def _invite(self, user_id: int, newcomer: Newcomer, groups: list[str]) -> None:
        user = self.tx.existing_user(user_id)
        set_groups(self.tx, user, groups, by=self.by)
        self._send_invitation(user, is_nameless=_is_nameless(newcomer), created=True)

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
        )

    def _await_owner(self, user_id: int, newcomer: Newcomer) -> None:
        """Its email was sent before, and the account is gone since: an admin decides about another email."""
        self.tx.change_user(
            user_id,
            invited_at=self.tx.now_text,
            invitation_expires_at=self.tx.now_text,
            invited_nameless=_is_nameless(newcomer),
        )

    def _update(self, change: Change, standing: Standing) -> None:
        before, after = change.before or {}, change.after or {}
        user = standing.user
        asked = {key: after[key] for key in ASKED if after[key] != before[key]}
        if (before["invited"] and not after["invited"]) or "delete_at" in after:
            asked["active"] = after["active"]
        changes = changes_of(user, asked)
        if changes:
            user = make_changes(self.tx, user, changes, {"file": self.name}, by=self.by)
        if after["groups"] != before["groups"]:
            set_groups(self.tx, user, after["groups"], by=self.by)
        if after["managed_by"] != before["managed_by"]:
            self.tx.manage_users(self.name, [user.id])
            self.tx.audit(self.by, "adopt", user, file=self.name)
        if "sends_invitation" in after:
            self._send_invitation(user)


def _is_nameless(newcomer: Newcomer) -> bool:
    """Whether the owner has to give a name: the account has that of its address."""
    return newcomer.name == name_of(newcomer.email)
