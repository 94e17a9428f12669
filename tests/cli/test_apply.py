"""usersctl apply and export --as-state: what they print, their exit codes, and the questions at a terminal."""

import io
import json
import os
import pty
import random
import stat
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from support.commands import OPERATOR, PASSWORD, Command, Measured, by_hand
from support.faults import LONG
from support.states import EMAILS, GROUPS, apply, disturb, random_state, read, world

from usersctl.cli.state import write_state
from usersctl.errors import UsersError
from usersctl.invitations import Guest
from usersctl.models import Actor
from usersctl.service import Service
from usersctl.state.planning import Options
from usersctl.store.conninfo import Database

STATES = 2_000 if LONG else 60
PEOPLE = """\
name = "people"

[[groups]]
name = "staff"

[[users]]
email = "ada@example.com"
name = "Ada Lovelace"
role = "admin"
groups = ["staff"]

[[users]]
email = "bob@example.com"
invite = true
"""
WITHOUT_BOB = PEOPLE.partition('\n[[users]]\nemail = "bob')[0]
PLAN = """\
+ group staff
    managed_by: "people"
+ user ada@example.com
    name: "Ada Lovelace"
    role: "admin"
    active: yes
    groups: staff
    managed_by: "people"
+ user bob@example.com
    name: "bob"
    role: "user"
    active: no
    invited: yes
    managed_by: "people"
    sends_invitation: yes
"""


@pytest.fixture
def people(usersctl: Command) -> Path:
    """The file, beside an empty database."""
    with usersctl.service():
        pass
    file = usersctl.folder / "people.toml"
    file.write_text(PEOPLE, "utf-8")
    return file


@contextmanager
def without_reader() -> Iterator[int]:
    """A pipe whose reader has gone."""
    reader, writer = os.pipe()
    os.close(reader)
    try:
        yield writer
    finally:
        os.close(writer)


def test_a_plan_changes_nothing_and_its_exit_code_tells_of_changes(usersctl: Command, people: Path) -> None:
    done = usersctl("apply", people, "--plan")
    assert (done.code, done.stdout, done.stderr) == (8, PLAN, "Plan: 3 to make\n")
    assert usersctl("apply", people, "--dry-run") == done
    assert usersctl.emails() == []
    done = usersctl.ok("apply", people)
    assert done.stdout == PLAN
    assert done.stderr.splitlines()[:-1] == [
        "Applied: 3 made",
        "New accounts without a password: 1; their owners set one through a reset email",
    ]
    assert done.stderr.splitlines()[-1].startswith("Note: no mail server: ")
    assert usersctl.ok("apply", people, "--plan").stdout == ""
    assert usersctl.ok("apply", people).stdout == "Nothing to change\n"
    assert usersctl.ok("apply", people, "--quiet").stdout == ""
    assert len(usersctl.ok("mail", "list", "--json").json) == 1


def test_a_plan_that_is_not_read_to_its_end_has_its_exit_code(usersctl: Command, people: Path) -> None:
    with without_reader() as nobody:
        assert usersctl("apply", people, "--plan", stdout=nobody).code == 8
        assert usersctl("apply", people, "--plan", "--json", stdout=nobody).code == 8
        assert usersctl.ok("apply", people, stdout=nobody)


def test_the_plan_as_json_is_what_is_done(usersctl: Command, people: Path) -> None:
    plan = usersctl("apply", people, "--plan", "--json")
    assert plan.code == 8
    done = usersctl.ok("apply", people, "--json")
    assert done.json == plan.json
    group, ada, bob = done.json["changes"]
    assert group == {
        "action": "create",
        "kind": "group",
        "key": "staff",
        "before": None,
        "after": {"managed_by": "people"},
    }
    assert (ada["key"], ada["after"]["role"]) == ("ada@example.com", "admin")
    assert (bob["key"], bob["after"]["invited"]) == ("bob@example.com", True)
    assert usersctl.ok("apply", people, "--json").json == {"changes": []}
    assert usersctl.ok("apply", people, "--plan", "--json").json == {"changes": []}


@pytest.mark.usefixtures("people")
def test_a_file_comes_from_standard_input_as_toml_or_json(usersctl: Command) -> None:
    document = {"name": "people", "users": [{"email": "ada@example.com"}]}
    assert usersctl("apply", "-", "--plan", stdin=PEOPLE).code == 8
    assert usersctl.ok("apply", "-", stdin=json.dumps(document)).stdout.startswith("+ user ada@example.com\n")
    assert usersctl.ok("apply", "-", stdin='name = "people"\n').stdout == "Nothing to change\n"


def test_each_change_is_shown_with_what_was_before(usersctl: Command, people: Path) -> None:
    usersctl.ok("apply", people)
    people.write_text(
        'name = "people"\n[[groups]]\nname = "board"\n[[users]]\nemail = "ada@example.com"\nname = "Ada"\n'
        'groups = ["board"]\n[[users]]\nemail = "cy@example.com"\nrole = "admin"\n',
        "utf-8",
    )
    done = usersctl("apply", people, "--prune", "delete", "--plan")
    assert done.stdout == (
        "+ group board\n"
        '    managed_by: "people"\n'
        "~ user ada@example.com\n"
        '    name: "Ada Lovelace" -> "Ada"\n'
        "    groups: +board -staff\n"
        "- user bob@example.com\n"
        '    name: "bob"\n'
        '    role: "user"\n'
        "    active: no\n"
        "    invited: yes\n"
        '    managed_by: "people"\n'
        "+ user cy@example.com\n"
        '    name: "cy"\n'
        '    role: "admin"\n'
        "    active: yes\n"
        '    managed_by: "people"\n'
        "- group staff\n"
        '    managed_by: "people"\n'
        "    members: 1\n"
    )
    assert done.stderr == "Plan: 2 to make, 1 to change, 2 to delete\n"


@pytest.mark.slow
def test_refusals_have_their_exit_codes_and_change_nothing(usersctl: Command, people: Path) -> None:
    usersctl.add("grace", role="admin")
    usersctl.ok("apply", people)
    before = usersctl.ok("export").stdout
    user = '[[users]]\nemail = "{}@example.com"\n'
    for text, words, code, message in (
        (user.format("ada"), (), 2, "standard input, file: name is missing"),
        (
            'name = "x"\n' + user.format("ada") + "colour = 1\n",
            (),
            2,
            "standard input, line 4: unknown key colour",
        ),
        (
            'name = "x"\n' + user.format("ada"),
            (),
            4,
            "standard input, line 3: user 2 (ada@example.com) exists",
        ),
        ('name = "people"\n' + user.format("grace"), (), 4, "is managed by no file"),
        (WITHOUT_BOB, ("--prune", "delete"), 5, "confirm with --yes"),
        (WITHOUT_BOB, ("--prune", "deactivate"), 5, "confirm with --yes"),
        (PEOPLE.replace('"admin"', '"user"'), (), 5, "confirm with --yes"),
        (WITHOUT_BOB, ("--prune", "everything"), 2, "--prune"),
    ):
        done = usersctl("apply", "-", *words, stdin=text)
        assert (done.code, done.stdout) == (code, ""), (text, words, done)
        assert message in done.stderr, (done.stderr, message)
    assert usersctl("apply", "missing.toml").code == 2
    assert usersctl.ok("export").stdout == before


def test_errors_as_json_have_their_places(usersctl: Command, people: Path) -> None:
    error = usersctl("apply", "-", "--json", stdin='name = "x"\nnmae = 1\n').error
    assert error["code"] == "invalid"
    (problem,) = error["problems"]
    assert (problem["file"], problem["where"]) == ("standard input", "line 2")
    usersctl.add("ada")
    done = usersctl("apply", people, "--json")
    assert (done.code, done.error["code"]) == (4, "taken")
    assert done.error["problems"][0]["where"] == "line 7"


def test_the_last_admin_stays(usersctl: Command, people: Path) -> None:
    usersctl.ok("apply", people)
    for words in (("--plan",), ("--yes",)):
        done = usersctl("apply", "-", "--prune", "delete", *words, stdin='name = "people"\n')
        assert done.code == 5
        assert "The last active admin" in done.stderr
    assert len(usersctl.emails()) == 2


@pytest.mark.sqlite  # a missing file
def test_a_missing_database_is_not_made(usersctl: Command) -> None:
    done = usersctl("apply", "-", stdin=PEOPLE)
    assert done.code == 6
    assert "No database" in done.stderr
    assert not usersctl.database.exists()


@pytest.mark.usefixtures("people")
def test_escape_sequences_in_a_file_do_not_reach_the_terminal(usersctl: Command) -> None:
    text = 'name = "x"\n"a\\u001b[2Jb" = 1\n[[users]]\nemail = "\\u001b]0;x\\u0007@example.com"\n'
    done = usersctl("apply", "-", stdin=text)
    assert done.code == 2
    assert "\x1b" not in done.stderr
    text = '{"name": "x", "users": [{"email": "ada@example.com", "\\u001b[2J\\n\\u202e": 1}]}'
    done = usersctl("apply", "-", stdin=text)
    assert done.code == 2
    assert done.stderr.startswith(r"standard input, line 1, users[0].\x1b[2J\n\u202e: unknown key")


def test_show_names_the_file_of_an_account(usersctl: Command, people: Path) -> None:
    usersctl.ok("apply", people)
    usersctl.add("grace")
    assert "\nmanaged_by\tpeople\n" in usersctl.ok("show", "ada@example.com").stdout
    assert "managed_by" not in usersctl.ok("show", "grace@example.com").stdout


@pytest.mark.slow
def test_ten_thousand_accounts_take_seconds_and_little_memory(usersctl: Command, people: Path) -> None:
    def measured(count: int) -> Measured:
        entries = (
            f'[[users]]\nemail = "u{number}@example.com"\nname = "User {number}"\ngroups = ["staff"]\n'
            for number in range(count)
        )
        people.write_text('name = "people"\n[[groups]]\nname = "staff"\n' + "".join(entries), "utf-8")
        return usersctl.measured("apply", people, "--quiet")

    _, _, for_one = measured(1)
    for _ in range(2):
        code, seconds, megabytes = measured(10_000)
        assert code == 0
        assert seconds < 10
        assert megabytes < min(80, for_one + 20)
    assert len(usersctl.emails()) == 10_000


# --- at a terminal ---


class Meanwhile:
    """An answer; before it is typed, another process changes an account."""

    def __init__(self, database: Database) -> None:
        self.database = database

    def encode(self) -> bytes:
        by_hand(self.database, "UPDATE users SET name = 'Robert' WHERE email = 'bob@example.com'")
        return b"y\n"


def test_a_terminal_shows_the_plan_in_colours_and_asks(usersctl: Command, people: Path) -> None:
    screen = usersctl.on_terminal("apply", people, typed=[("Apply: 3 to make? [y/N]", "n\n")])
    assert screen.code == 5
    assert "\x1b[32m+ user ada@example.com\x1b[0m" in screen.raw
    assert "Declined; nothing was done" in screen.text
    assert usersctl.emails() == []
    screen = usersctl.on_terminal("apply", people, typed=[("Apply: 3 to make? [y/N]", "y\n")])
    assert screen.code == 0
    assert "Applied: 3 made" in screen.text
    screen = usersctl.on_terminal("apply", people, "--plan", "--no-color", "--prune", "delete")
    assert screen.lines == ["Nothing to change"]
    people.write_text(WITHOUT_BOB, "utf-8")
    screen = usersctl.on_terminal("apply", people, "--prune", "delete", "--no-color", "--yes")
    assert screen.lines[0] == "- user bob@example.com"
    assert screen.lines[-1] == "Applied: 1 deleted"


def test_what_changes_between_the_plan_and_the_answer_is_refused(usersctl: Command, people: Path) -> None:
    usersctl.ok("apply", people)
    people.write_text(PEOPLE.replace("invite = true", 'name = "Bob"'), "utf-8")
    answer: Any = Meanwhile(usersctl.database)
    screen = usersctl.on_terminal("apply", people, typed=[("[y/N]", answer)])
    assert screen.code == 5
    assert "The accounts changed since the plan was shown; nothing was done" in screen.text
    assert "Robert" in usersctl.ok("show", "bob@example.com").stdout


def test_with_no_input_a_terminal_needs_yes(usersctl: Command, people: Path) -> None:
    usersctl.ok("apply", people)
    people.write_text(WITHOUT_BOB, "utf-8")
    screen = usersctl.on_terminal("apply", people, "--prune", "delete", "--no-input")
    assert screen.code == 5
    assert "--yes" in screen.text


def test_a_plan_that_is_not_read_to_its_end_is_not_applied_and_that_is_told(
    usersctl: Command, people: Path
) -> None:
    """As with `usersctl apply people.toml | head` at a terminal."""
    master, terminal = pty.openpty()
    with without_reader() as nobody, os.fdopen(master, "rb", buffering=0) as screen:
        process = usersctl.start("apply", people, stdin=terminal, stdout=nobody, stderr=terminal)
        os.close(terminal)
        assert process.wait(30) == 5
        assert b"The plan was not read to its end; nothing was done" in screen.read(1000)
    assert usersctl.emails() == []


def test_a_dumb_terminal_gets_no_colours(usersctl: Command, people: Path) -> None:
    usersctl.env["TERM"] = "dumb"
    screen = usersctl.on_terminal("apply", people, "--plan")
    assert screen.raw.startswith("+ group staff\r\n")


def test_a_long_apply_shows_how_far_it_is(usersctl: Command, people: Path) -> None:
    entries = (f'[[users]]\nemail = "u{number}@example.com"\n' for number in range(500))
    people.write_text('name = "people"\n' + "".join(entries), "utf-8")
    screen = usersctl.on_terminal("apply", people, "--yes")
    assert "Applying changes" in screen.text
    assert "500/500" in screen.text
    assert "Applied: 500 made" in screen.text


# --- export --as-state ---


@pytest.mark.slow
def test_an_export_is_a_file_that_changes_nothing(usersctl: Command, people: Path) -> None:
    usersctl.ok("apply", people)
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
