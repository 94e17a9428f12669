"""usersctl export --as-state: files that `apply` takes."""

import io
import random
import stat
import tomllib
from contextlib import suppress
from datetime import timedelta
from typing import Any

import pytest
from support.commands import OPERATOR, PASSWORD, Command
from support.faults import LONG
from support.states import EMAILS, GROUPS, apply, disturb, random_state, read, world

from usersctl.cli.state import write_state
from usersctl.errors import UsersError
from usersctl.invitations import Guest
from usersctl.models import Actor
from usersctl.service import Service
from usersctl.state.planning import Options

STATES = 2_000 if LONG else 60
PEOPLE = """\
name = "people"

[[users]]
email = "ada@example.com"
role = "admin"

[[users]]
email = "bob@example.com"
invite = true
"""


@pytest.mark.slow
def test_an_export_is_a_file_that_changes_nothing(usersctl: Command) -> None:
    usersctl.ok("db", "init")
    usersctl.ok("apply", "-", stdin=PEOPLE)
    for name in ("state.toml", "state.json"):
        done = usersctl.ok("export", "--as-state", name)
        assert done.stdout == f"Exported 2 users to {name}\n"
        assert stat.S_IMODE((usersctl.folder / name).stat().st_mode) == 0o600
        assert usersctl.ok("apply", name, "--plan", "--prune", "delete").stderr == "Nothing to change\n"
    text = usersctl.ok("export", "--as-state", "-").stdout
    assert text == (usersctl.folder / "state.toml").read_text("utf-8")
    assert usersctl.ok("export", "--as-state", "--json").json["name"] == "people"
    assert usersctl("export", "--as-state", "state.csv").code == 2
    assert usersctl("export", "--as-state", "--with-hashes").code == 2


def test_an_export_of_accounts_of_no_file_is_the_way_to_adopt_them(usersctl: Command) -> None:
    usersctl.add("ada", role="admin")
    usersctl.add("bob", active=False)
    (leaving,) = usersctl.add("leaving")
    with usersctl.service() as service:
        service.registration.register("eve@example.com", "Eve", PASSWORD, by=OPERATOR)
        with service.store.write() as tx:
            tx.change_user(leaving.id, active=False, delete_at="2100-01-01T00:00:00.000Z")
    text = usersctl.ok("export", "--as-state").stdout
    assert 'name = "users"' in text
    assert "eve@example.com" not in text
    (entry,) = (entry for entry in tomllib.loads(text)["users"] if entry["email"] == leaving.email)
    assert "active" not in entry
    assert "$2b$" not in text
    assert usersctl("apply", "-", "--plan", stdin=text).code == 4
    usersctl.ok("apply", "-", "--adopt", stdin=text)
    assert usersctl.ok("apply", "-", stdin=text).stdout == "Nothing to change\n"
    assert usersctl.can_log_in("ada@example.com")


def test_what_is_decided_after_an_export_stays_when_it_is_applied_again(usersctl: Command) -> None:
    usersctl.add("ada", role="admin")
    usersctl.add("bob")
    (leaving,) = usersctl.add("leaving")
    state = usersctl.ok("export", "--as-state").stdout
    usersctl.ok("apply", "-", "--adopt", stdin=state)
    usersctl.ok("deactivate", "bob@example.com")
    with usersctl.service() as service, service.store.write() as tx:
        tx.change_user(leaving.id, active=False, delete_at="2100-01-01T00:00:00.000Z")
    assert usersctl.ok("apply", "-", stdin=state).stdout == "Nothing to change\n"
    assert (
        'email = "bob@example.com"\nname = "Bob"\nrole = "user"\nactive = false\n'
        in usersctl.ok("export", "--as-state").stdout
    )


def exported(service: Service, *, as_json: bool) -> str:
    target = io.StringIO()
    write_state(target, service, as_json=as_json)
    return target.getvalue()


class MovingOn(io.StringIO):
    """Before the first line is written, another process adds an account to a new group."""

    def __init__(self, usersctl: Command) -> None:
        super().__init__()
        self.usersctl = usersctl

    def write(self, text: str) -> int:
        if not self.tell():
            self.usersctl.ok("group", "create", "late")
            self.usersctl.ok("group", "add", "late", "1")
        return super().write(text)


def test_an_export_is_of_one_moment(usersctl: Command) -> None:
    usersctl.add("ada")
    target = MovingOn(usersctl)
    with usersctl.service() as service:
        write_state(target, service, as_json=False)
    assert "late" not in target.getvalue()
    usersctl.ok("apply", "-", "--adopt", stdin=target.getvalue())


@pytest.mark.slow
def test_an_export_that_is_too_large_to_be_applied_says_so(usersctl: Command) -> None:
    usersctl.add("ada")
    assert "reads no file" not in usersctl.ok("export", "--as-state", "state.json").stderr
    with usersctl.service() as service, service.store.write() as tx:
        for number in range(1_100):
            tx.add_group("x" * 61_000 + str(number))
    assert usersctl.ok("export", "--as-state", "state.json").stderr == (
        "Note: `usersctl apply` reads no file of more than 64 MiB\n"
    )
    assert "larger than 64 MiB" in usersctl("apply", "state.json").stderr


def disturb_further(service: Service, chance: random.Random) -> None:
    """An invitation by hand, a claim, or a deletion that the owner asked for. Some are refused, as of the last admin."""
    email, other = chance.sample(EMAILS, 2)
    with service.store.read() as tx:
        user = tx.user_by_email(email)

    def claim(user_id: int) -> None:
        service.accounts.update(user_id, email=other, by=Actor(f"user:{user_id}"))

    def delete(user_id: int) -> None:
        service.accounts.set_password(user_id, PASSWORD, by=OPERATOR)
        service.deletion.request(user_id, PASSWORD, session_id=0, by=OPERATOR)

    with suppress(UsersError):
        if user is None or user.awaits_owner:
            service.invitations.invite([Guest(email)], timedelta(days=7), by=OPERATOR)
        else:
            chance.choice([claim, delete])(user.id)


@pytest.mark.slow
def test_any_export_changes_nothing(usersctl: Command) -> None:
    """2,000 states with USERSCTL_LONG=1. Accounts that the export does not manage change their manager only."""
    chance = random.Random(random.randrange(10**9))
    odd = ['"', "\\", "'''", "Łódź", "\u202e", "\U0001f600", "#", "[[users]]", "a\\u0041", "]"]
    with usersctl.service() as service:
        for _ in range(STATES):
            file = random_state(chance, name=chance.choice(["people", "people", "robots"]))
            file["groups"] = [{"name": name} for name in GROUPS]
            for user in file["users"]:
                user["name"] = chance.choice(odd) + chance.choice(odd)
            with suppress(UsersError):  # the last admin, or a conflict
                prune = chance.choice([None, "deactivate", "delete"])
                apply(service, file, adopt=chance.random() < 0.7, prune=prune)
            chance.choice([disturb, disturb_further])(service, chance)
            managers = managers_of_all(service)
            for as_json in (False, True):
                state = read(exported(service, as_json=as_json))
                changes = service.desired_state.plan(state, Options(adopt=True))
                assert all(without_manager(c.before) == without_manager(c.after) for c in changes), file
                if managers <= {state.name}:
                    assert service.desired_state.plan(state, Options(prune="delete")) == [], file


def managers_of_all(service: Service) -> set[str | None]:
    found = world(service)
    return {user["managed_by"] for user in found.users.values()} | set(found.groups.values())


def without_manager(view: dict[str, Any] | None) -> dict[str, Any]:
    assert view is not None
    return view | {"managed_by": None}
