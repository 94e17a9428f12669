"""Files of `usersctl apply`: made by chance, applied, and compared with what the database holds."""

import json
import random
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NamedTuple

from support.commands import OPERATOR, create_user
from support.tables import query

from usersctl.errors import UsersError
from usersctl.service import Service
from usersctl.state.planning import Change, Options
from usersctl.state.reading import State, read_state

NAMES = ("people", "robots")
EMAILS = [f"u{number}@example.com" for number in range(6)]
GROUPS = ["board", "staff", "team"]

View = dict[str, Any]


class World(NamedTuple):
    """What files decide of a database: accounts, groups and unconfirmed registrations."""

    users: dict[str, View]
    groups: dict[str, str | None]
    registrations: set[str]


def read(document: View | str) -> State:
    """A text is TOML, a dictionary becomes JSON."""
    text = document if isinstance(document, str) else json.dumps(document)
    return read_state(text.encode())


def apply(
    service: Service, document: View | str, *, adopt: bool = False, prune: str | None = None
) -> list[Change]:
    return service.desired_state.apply(read(document), Options(adopt, prune), confirmed=True, by=OPERATOR)


def world(service: Service) -> World:
    users: dict[str, View] = {}
    registrations = set()
    for number, email, name, role, active, invited, managed_by, awaiting in query(
        service,
        "SELECT id, email, name, role, active, invited_at IS NOT NULL, managed_by, awaiting_confirmation FROM users",
    ):
        members = query(
            service,
            "SELECT name FROM group_members JOIN groups ON groups.id = group_id WHERE user_id = ? ORDER BY name",
            number,
        )
        if awaiting:
            registrations.add(email)
            continue
        users[email] = {
            "name": name,
            "role": role,
            "active": bool(active),
            "groups": [group for (group,) in members],
            "invited": bool(invited),
            "managed_by": managed_by,
        }
    groups = dict(query(service, "SELECT name, managed_by FROM groups"))
    return World(users, groups, registrations)


def after(before: World, changes: list[Change]) -> World:
    """The world as this plan says that it will be."""
    users, groups, registrations = dict(before.users), dict(before.groups), set(before.registrations)
    for change in changes:
        view = dict(change.after or {})
        view.pop("sends_invitation", None)
        if change.kind == "registration":
            registrations.remove(change.key)
        elif change.kind == "group" and change.action == "delete":
            del groups[change.key]
            users = {
                email: user | {"groups": [name for name in user["groups"] if name != change.key]}
                for email, user in users.items()
            }
        elif change.kind == "group":
            assert (change.key in groups) == (change.action == "update")
            groups[change.key] = view["managed_by"]
        else:
            assert users.get(change.key) == change.before
            users[change.key] = view
            if change.action == "delete":
                del users[change.key]
    return World(users, groups, registrations)


def random_state(chance: random.Random, *, name: str | None = None) -> View:
    """Every key is sometimes left out. Some files name a group that does not exist."""

    def user(email: str) -> View:
        entry: View = {"email": email}
        given: View = {
            "name": f"Name {chance.randrange(3)}",
            "role": chance.choice(["admin", "user"]),
            "active": chance.random() < 0.7,
            "groups": chance.sample(GROUPS, chance.randrange(3)),
        }
        entry |= {key: value for key, value in given.items() if chance.random() < 0.5}
        if chance.random() < 0.3 and entry.get("active", True):
            entry["invite"] = True
        return entry

    emails = chance.sample(EMAILS, chance.randrange(len(EMAILS) + 1))
    groups = chance.sample(GROUPS, chance.randrange(1, len(GROUPS) + 1))
    return {
        "name": name or chance.choice(NAMES),
        "groups": [{"name": group} for group in groups],
        "users": [user(email) for email in emails],
    }


def random_options(chance: random.Random) -> Options:
    return Options(chance.random() < 0.6, chance.choice([None, None, "deactivate", "delete"]))


def disturb(service: Service, chance: random.Random) -> None:
    """A change that an admin, or a stranger, makes meanwhile. Some are refused, as one of the last admin is."""
    with service.store.read() as tx:
        ids = [standing.user.id for standing in tx.standings()]
        groups = list(tx.managers_of_groups())
    user_id = chance.choice(ids or [1])
    email, group = chance.choice(EMAILS), chance.choice(GROUPS)
    acts: list[Callable[[], object]] = [
        lambda: create_user(service, email, "Made", None, role=chance.choice(["admin", "user"])),
        lambda: service.registration.register(email, "Stranger", "correct horse battery", by=OPERATOR),
        lambda: service.accounts.update(user_id, name="Renamed", by=OPERATOR),
        lambda: service.accounts.update(user_id, role=chance.choice(["admin", "user"]), by=OPERATOR),
        lambda: service.accounts.update(user_id, active=chance.random() < 0.5, by=OPERATOR),
        lambda: service.accounts.update(user_id, email=email, by=OPERATOR),
        lambda: service.accounts.delete([user_id], by=OPERATOR),
        lambda: service.groups.create(group, by=OPERATOR),
        lambda: service.groups.delete(chance.choice(groups or ["none"]), by=OPERATOR),
        lambda: service.groups.add(chance.choice(groups or ["none"]), [user_id], by=OPERATOR),
    ]
    with suppress(UsersError):
        chance.choice(acts)()
