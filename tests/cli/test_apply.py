"""usersctl apply: what it prints, its exit codes, and the questions at a terminal."""

import json
import os
import pty
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from support.commands import Command, Measured, by_hand

from usersctl.store.conninfo import Database

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
        (user.format("ada"), (), 2, "standard input: it has no name; begin it with one"),
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
