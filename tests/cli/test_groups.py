"""usersctl group: groups and their members, for people and for scripts."""

import os
from pathlib import Path

import pytest
from support.commands import Command


@pytest.mark.slow
def test_a_group_is_created_filled_shown_and_deleted(usersctl: Command) -> None:
    usersctl.add("ada", "bob")
    assert usersctl.ok("group", "list", "--json").json == []
    assert usersctl.ok("group", "create", "staff").stdout == "Created group staff\n"
    done = usersctl.ok("group", "add", "staff", "ada@example.com", "2")
    assert done.stdout == "Added to staff: ada@example.com\nAdded to staff: bob@example.com\n"
    done = usersctl.ok("group", "add", "staff", "1", "--json")
    assert done.json == {"group": {"name": "staff", "members": 2}, "changed": 0}
    (listed,) = usersctl.ok("group", "list", "--json").json
    created_at = usersctl.ok("group", "show", "staff", "--json").json["created_at"]
    assert listed == {"name": "staff", "members": 2, "created_at": created_at}
    shown = usersctl.ok("group", "show", "staff", "--json").json
    assert (shown["name"], shown["members"]) == ("staff", 2)
    assert [user["email"] for user in shown["users"]] == ["ada@example.com", "bob@example.com"]
    assert usersctl.ok("group", "show", "staff").stdout.endswith(
        "member\tada@example.com\nmember\tbob@example.com\n"
    )
    assert usersctl.ok("group", "remove", "staff", "1", "2", "--quiet").stdout == ""
    assert usersctl.ok("group", "delete", "staff").stdout == "Deleted group staff\n"


def test_users_of_a_change_come_from_standard_input(usersctl: Command) -> None:
    usersctl.add("ada", "bob")
    usersctl.ok("group", "create", "staff")
    assert (
        usersctl.ok("group", "add", "staff", "-", "--json", stdin="ada@example.com\n2\n").json["changed"] == 2
    )
    done = usersctl.ok("group", "remove", "staff", "-", stdin="")
    assert done.stdout == "No users given; nothing to do\n"


@pytest.mark.slow
def test_refusals_have_their_exit_codes(usersctl: Command) -> None:
    usersctl.add("ada")
    usersctl.ok("group", "create", "staff")
    usersctl.ok("group", "add", "staff", "1")
    for words, code, message in (
        (("create", "staff"), 4, "Group name is taken: 'staff'"),
        (("create", "Staff"), 2, "Group name must be of a-z"),
        (("show", "nobody"), 3, "No group 'nobody'\n  see: usersctl group list"),
        (("add", "nobody", "1"), 3, "No group 'nobody'"),
        (("add", "staff", "1", "99"), 3, "No user '99'"),
        (("remove", "staff", "eve@example.com"), 3, "No user"),
        (("delete", "nobody", "--yes"), 3, "No group 'nobody'"),
        (("delete", "staff"), 5, "confirm with --yes"),
    ):
        done = usersctl("group", *words)
        assert (done.code, done.stdout) == (code, ""), words
        assert message in done.stderr
    assert usersctl.ok("group", "delete", "staff", "--yes", "--json").json == {"name": "staff", "members": 1}
    error = usersctl("group", "show", "staff", "--json")
    assert '"code": "not_found"' in error.stderr


@pytest.mark.slow
def test_a_name_that_no_group_can_have_is_no_bug(usersctl: Command) -> None:
    usersctl.add("ada")
    for name in (os.fsdecode(b"st\xff"), "\u00e9", "a\nb", "--", " ", "x" * 100_000):
        for words, codes in (
            (("show",), (3,)),
            (("delete", "--yes"), (3,)),
            (("create",), (2,)),
            (("remove",), (3,)),
        ):
            users = ["1"] * (words[0] == "remove")
            assert usersctl("group", *words, "--", name, *users).code in codes, (words, name)
        assert usersctl("list", f"--group={name}").code == 2
    assert usersctl.ok("group", "list", "--json").json == []


def test_a_large_group_is_shown_in_part(usersctl: Command) -> None:
    usersctl.add(*(f"u{n}" for n in range(52)))
    usersctl.ok("group", "create", "staff")
    usersctl.ok("group", "add", "staff", *map(str, range(1, 53)))
    done = usersctl.ok("group", "show", "staff")
    assert done.stdout.count("\nmember\t") == 50
    assert "50 of 52 members" in done.stderr
    assert len(usersctl.ok("group", "show", "staff", "--json").json["users"]) == 50


def test_show_prints_the_groups_of_a_user(usersctl: Command) -> None:
    usersctl.add("ada", "bob")
    for group in ("staff", "board"):
        usersctl.ok("group", "create", group)
        usersctl.ok("group", "add", group, "ada@example.com")
    assert "\ngroups\tboard, staff\n" in usersctl.ok("show", "ada@example.com").stdout
    assert "groups" not in usersctl.ok("show", "bob@example.com").stdout
    assert "groups" not in usersctl.ok("show", "ada@example.com", "--json").json


@pytest.mark.slow
def test_an_export_carries_groups_to_another_database(usersctl: Command, tmp_path: Path) -> None:
    usersctl.add("ada", "bob", "eve")
    for group, users in (("staff", "12"), ("board", "1"), ("empty", "")):
        usersctl.ok("group", "create", group)
        usersctl.ok("group", "add", group, "-", stdin="\n".join(users))
    for form in ("csv", "json", "jsonl"):
        file, there = tmp_path / f"all.{form}", ("--db", str(tmp_path / f"{form}.db"))
        usersctl.ok("export", str(file))
        done = usersctl("import", str(file), *there)
        assert (done.code, done.stdout) == (2, "")
        assert "there is no group board" in done.stderr
        assert "--create-groups" in done.stderr
        usersctl.ok("import", str(file), "--create-groups", *there)
        listed = usersctl.ok("group", "list", "--json", *there).json
        assert [(group["name"], group["members"]) for group in listed] == [("board", 1), ("staff", 2)]
        assert "\ngroups\tboard, staff\n" in usersctl.ok("show", "ada@example.com", *there).stdout
        done = usersctl.ok("import", str(file), "--on-conflict", "update", *there)
        assert "3 unchanged" in done.stdout
    assert usersctl.ok("export", "--format", "csv").stdout.splitlines()[1].endswith('"board,staff"')
    assert usersctl.ok("export", "--format", "json").json[0]["groups"] == ["board", "staff"]


def test_every_row_with_a_group_that_is_none_is_named(usersctl: Command) -> None:
    usersctl.add("ada")
    usersctl.ok("group", "create", "staff")
    rows = 'email,groups\nb@example.com,staff\nc@example.com,nobody\nd@example.com,\ne@example.com,"staff,none"\n'
    done = usersctl("import", "-", stdin=rows)
    assert done.code == 2
    assert "line 3: there is no group nobody" in done.stderr
    assert "line 5: there is no group none" in done.stderr
    assert "line 2" not in done.stderr
    done = usersctl("import", "-", "--create-groups", stdin='email,groups\nb@example.com,"staff,Bad Name"\n')
    assert (done.code, "line 2: Group name must be" in done.stderr) == (2, True)
    for groups in ("7", '{"a": 1}', '["staff", 7]'):
        done = usersctl(
            "import", "-", "--format", "json", stdin=f'[{{"email": "x@example.com", "groups": {groups}}}]'
        )
        assert (done.code, "groups must be a list of names" in done.stderr) == (2, True)
    assert [row[0] for row in usersctl.ok("list").rows] == ["1"]


def test_an_import_sets_the_groups_of_an_account_that_exists(usersctl: Command) -> None:
    usersctl.add("ada")
    for group in ("staff", "board"):
        usersctl.ok("group", "create", group)
    usersctl.ok("group", "add", "staff", "1")
    for groups, expected, verb in (("", "staff", "1 unchanged"), ("board", "board", "1 updated")):
        rows = f"email,groups\nada@example.com,{groups}\n"
        done = usersctl.ok("import", "-", "--on-conflict", "update", stdin=rows)
        assert verb in done.stdout
        assert f"\ngroups\t{expected}\n" in usersctl.ok("show", "1").stdout
