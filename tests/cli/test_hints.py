"""Commands in hints: for the same configuration and database, fit to be pasted, and without a password."""

import pytest
from support.commands import Command


def test_a_command_that_a_hint_names_is_for_the_same_configuration_and_database(usersctl: Command) -> None:
    other = usersctl.folder / "my users.db"
    again = f"usersctl db init --config {usersctl.config} --db '{other}'"
    assert (
        usersctl("show", "1", "--json", "--db", other).error["hint"]
        == f"make one with: usersctl db init --db '{other}'"
    )
    done = usersctl("--config", usersctl.config, "list", "--db", other)
    assert done.stderr.splitlines()[1] == f"  make one with: {again}"
    assert usersctl.shell(again).code == 0
    refused = usersctl("link", "email", "1", "--db", other, "--json")
    assert refused.error["hint"] == f"look for it with: usersctl list --search TEXT --db '{other}'"


@pytest.mark.parametrize(
    "db",
    [
        "postgresql://users:topsecret@127.0.0.1:1/users",
        "postgresql+psycopg://users:topsecret@127.0.0.1:1/users",
        "host=127.0.0.1 password=topsecret",
        "host=127.0.0.1 pwd='topsecret",
        "postgresql://127.0.0.1:1/users?password=topsecret",
        "postgresql://users:top/topsecret@127.0.0.1:1/users",
    ],
)
def test_no_hint_repeats_a_password_of_the_database(usersctl: Command, db: str) -> None:
    for words in (["import"], ["show", "1"], ["doctor"], ["db", "status"], ["serve"], ["nonsense"], ["db"]):
        for also in ([], ["--json"]):
            done = usersctl("--db", db, *words, *also)
            assert "topsecret" not in done.stdout + done.stderr
            assert done.code != 0


def test_a_hint_at_a_help_text_repeats_no_database(usersctl: Command) -> None:
    done = usersctl("--db", str(usersctl.database), "list", "--bogus")
    assert (done.code, done.stderr.splitlines()[-1]) == (2, "  see: usersctl list --help")
    assert (
        usersctl("--db", str(usersctl.database), "import", "--json").error["hint"]
        == "see: usersctl import --help"
    )


def test_each_command_of_a_hint_is_for_the_database_that_was_named(usersctl: Command) -> None:
    usersctl.add("ada")
    usersctl.ok("invite", "send", "grace@example.com")
    there = ("--db", str(usersctl.database))
    for asked in (("create", "ada@example.com"), ("set-password", "grace@example.com")):
        hint = usersctl(*there, *asked, "--generate").stderr.splitlines()[-1]
        commands = hint.split(": usersctl ")[1:]
        assert len(commands) == 2
        assert all(each.split(";")[0].endswith(f" --db {usersctl.database}") for each in commands), hint


def test_a_file_in_a_hint_may_have_any_name(usersctl: Command) -> None:
    usersctl.add("ada")
    (usersctl.folder / "a;b, c.db").write_text("no database")
    done = usersctl("db", "restore", "a;b, c.db", "--yes", "--db", usersctl.database)
    assert done.stderr.splitlines()[-1] == f"  see: usersctl db verify 'a;b, c.db' --db {usersctl.database}"


def test_a_command_that_mends_a_file_is_for_the_database_that_was_named(usersctl: Command) -> None:
    usersctl.add("ada")
    there, mend = ("--db", str(usersctl.database)), f"usersctl group create staff --db {usersctl.database}"
    state = 'name = "people"\n[[users]]\nemail = "bob@example.com"\ngroups = ["staff"]\n'
    for form in ((), ("--json",)):
        assert f"make it with: {mend}" in usersctl(*there, "apply", "-", *form, stdin=state).stderr
        rows = "email,groups\nbob@example.com,staff\n"
        assert f"make it with: {mend}, or all" in usersctl(*there, "import", "-", *form, stdin=rows).stderr
    invited = usersctl.ok(*there, "import", "-", "--invite", stdin="email\nbob@example.com\n").stderr
    assert f"see: usersctl invite list --db {usersctl.database}\n" in invited
    resent = usersctl.ok(*there, "invite", "resend", "bob@example.com").stderr
    state = 'name = "people"\n[[users]]\nemail = "cy@example.com"\ninvite = true\n'
    for told in (invited, resent, usersctl.ok(*there, "apply", "-", stdin=state).stderr):
        assert f"usersctl link invite USER --db {usersctl.database}\n" in told


def test_a_hint_repeats_a_database_on_a_server_without_a_password(usersctl: Command) -> None:
    server = "postgresql://users@127.0.0.1:1/users"
    assert (
        usersctl("--db", server, "serve", "--app", "127.0.0.1:5000", "--json").error["hint"]
        == f"add --dev; for a real installation see: usersctl snippet nginx --db {server}"
    )
