"""update, activate, deactivate, delete, set-password and unlock, as scripts call them."""

import os
import subprocess
from pathlib import Path

import pytest
from support.commands import PASSWORD, Command, feed

# --- update ---


def test_update_changes_the_given_fields_and_reports_when_nothing_changed(usersctl: Command) -> None:
    usersctl.add("ada")
    done = usersctl.ok("update", "1", "--name", "Ada L", "--email", "ada@example.org", "--role", "admin")
    assert done.stdout == "Updated user 1: ada@example.org (admin)\n"
    again = usersctl.ok("update", "1", "--name", "Ada L", "--role", "admin")
    assert again.stdout == "Unchanged: user 1: ada@example.org (admin)\n"
    assert usersctl.ok("update", "1", "--name", "Ada", "--json").json["name"] == "Ada"


def test_update_refuses_invalid_values_and_unknown_users(usersctl: Command) -> None:
    usersctl.add("ada", role="admin")
    usersctl.add("eve")
    for words, code in (
        (["1"], 2),
        (["1", "--name", "a\tb"], 2),
        (["1", "--email", "nonsense"], 2),
        (["1", "--role", "root"], 2),
        (["1", "--email", "EVE@example.com"], 4),
        (["1", "--role", "user"], 5),
        (["9", "--name", "x"], 3),
    ):
        assert usersctl("update", *words).code == code, words
    assert [user["name"] for user in usersctl.ok("list", "--json").json] == ["Ada", "Eve"]


def test_a_name_from_a_terminal_that_is_not_utf_8_is_told_as_such(usersctl: Command) -> None:
    usersctl.add("ada")
    refused = usersctl("update", "1", "--name", os.fsdecode("Jörg".encode("latin-1")), env={"LANG": "de_DE"})
    assert refused.code == 2
    assert refused.stderr.endswith("\n  it is not UTF-8, which terminals with another encoding send\n")
    assert usersctl("update", "1", "--name", "J\torg").stderr.count("\n") == 1


def test_an_address_that_is_taken_is_named_with_its_user(usersctl: Command) -> None:
    usersctl.add("ada", "bob")
    refused = usersctl("update", "1", "--email", "Bob@Example.com")
    told = "usersctl: Email is already registered: 'bob@example.com'\n  user 2 has it: usersctl show 2\n"
    assert (refused.code, refused.stdout, refused.stderr) == (4, "", told)


# --- activate, deactivate ---


def test_several_accounts_are_activated_and_deactivated_repeatedly(usersctl: Command) -> None:
    usersctl.add("ada", "eve", "grace")
    done = usersctl.ok("deactivate", "1", "eve@example.com", "1")
    assert done.stdout == "Now inactive: ada@example.com (user 1)\nNow inactive: eve@example.com (user 2)\n"
    assert "Already inactive" in usersctl.ok("deactivate", "-", stdin="1\n2\n").stdout
    assert [user["active"] for user in usersctl.ok("activate", "1", "--json").json] == [True]
    assert usersctl.ok("activate", "-", "--json").stdout == "[]\n"


def test_one_unknown_user_stops_the_whole_command(usersctl: Command) -> None:
    usersctl.add("ada", "eve")
    for words in (["deactivate"], ["delete", "--yes"], ["token", "revoke"]):
        done = usersctl(*words, "ada@example.com", "nobody@example.com", "eve@example.com")
        assert done.code == 3
        assert "nobody@example.com" in done.stderr
    assert len(usersctl.ok("list", "--active").rows) == 2


def test_all_unknown_users_of_a_list_are_named_at_once(usersctl: Command) -> None:
    usersctl.add("ada")
    done = usersctl("deactivate", "-", stdin="bob@example.com\nada@example.com\n7\nbob@example.com\n")
    assert (done.code, done.stdout) == (3, "")
    assert done.stderr.startswith("usersctl: No users 'bob@example.com', '7'\n")
    many = usersctl("delete", "-", "--yes", stdin="\n".join(map(str, range(100, 200)))).stderr
    assert many.startswith("usersctl: No users '100', ")
    assert many.partition("\n")[0].endswith(", '109', …")
    assert usersctl.ok("list", "--active", "--json").json[0]["email"] == "ada@example.com"


@pytest.mark.parametrize("typed", ["1,2", "1 2", "1;2", "1,"])
def test_users_with_a_comma_or_a_blank_between_them_are_no_user_and_the_hint_says_how(
    usersctl: Command, typed: str
) -> None:
    usersctl.add("ada", "bob")
    hint = "name users one by one, with a blank between them; on standard input, one a line and nothing else"
    for words, stdin in (((typed,), ""), (("-",), f"{typed}\n")):
        refused = usersctl("deactivate", *words, stdin=stdin)
        assert (refused.code, refused.stderr) == (3, f"usersctl: No user {typed!r}\n  {hint}\n")


def test_the_rows_of_a_list_are_no_users_and_are_shown_in_short(usersctl: Command) -> None:
    usersctl.add("ada", "bob")
    rows = usersctl.ok("list", "--jsonl").stdout
    refused = usersctl("deactivate", "-", stdin=rows)
    assert refused.code == 3
    assert "…" in refused.stderr
    assert len(refused.stderr.splitlines()[0]) < 250
    assert refused.stderr.endswith("; on standard input, one a line and nothing else\n")


def test_the_last_active_admin_cannot_be_removed(usersctl: Command) -> None:
    usersctl.add("ada", role="admin")
    usersctl.add("eve")
    for words in (["deactivate", "2", "1"], ["delete", "2", "1", "--yes"], ["update", "1", "--role", "user"]):
        done = usersctl(*words)
        assert done.code == 5, words
        assert "last active admin" in done.stderr
    assert usersctl("delete", "1", "--dry-run").code == 5
    assert len(usersctl.ok("list", "--active").rows) == 2


# --- delete ---


def test_delete_without_a_terminal_needs_yes(usersctl: Command) -> None:
    usersctl.add("ada")
    for words in ([], ["--no-input"]):
        done = usersctl("delete", "ada@example.com", *words, stdin="y\n")
        assert done.code == 5
        assert "--yes" in done.stderr
    assert usersctl.emails() == ["ada@example.com"]


def test_delete_removes_accounts_by_id_address_and_standard_input(usersctl: Command) -> None:
    usersctl.add("ada", "eve", "grace")
    assert usersctl.ok("delete", "1", "2", "--dry-run").stdout.startswith("Would delete ada@example.com, eve")
    assert len(usersctl.emails()) == 3
    assert [user["id"] for user in usersctl.ok("delete", "-", "--yes", "--json", stdin="1\n").json] == [1]
    assert usersctl("delete", "1", "--yes").code == 3
    assert usersctl.ok("delete", "1", "--yes", "--if-exists").stdout == "No such user; nothing to do\n"
    usersctl.ok("delete", "1", "2", "--yes", "--if-exists")
    assert usersctl.emails() == ["grace@example.com"]


@pytest.mark.parametrize(
    ("asked", "more", "code", "printed", "left"),
    [
        ("ada", ["--if-exists"], 0, "No such user; nothing to do\n", ["eve@example.com"]),
        ("ada eve", ["--if-exists"], 0, "Deleted eve@example.com\n", []),
        ("ada eve", [], 3, "", ["eve@example.com"]),
    ],
)
def test_if_exists_ignores_an_account_that_another_process_deleted_meanwhile(
    usersctl: Command, asked: str, more: list[str], code: int, printed: str, left: list[str]
) -> None:
    usersctl.add("ada", "eve")
    process = usersctl.start(
        "delete", "-", "--yes", *more, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    # A line is read after the user of the line before it was looked up.
    for name in asked.split():
        feed(process.stdin, f"{name}@example.com\n".encode())
    feed(process.stdin, b"\n")
    usersctl.ok("delete", "ada@example.com", "--yes")
    out, _ = process.communicate(timeout=30)
    assert (process.returncode, out.decode()) == (code, printed)
    assert usersctl.emails() == left


def test_two_concurrent_deletes_with_if_exists_both_succeed(usersctl: Command) -> None:
    usersctl.add("ada")
    words = ("delete", "ada@example.com", "--yes", "--if-exists")
    started = [usersctl.start(*words, stdout=subprocess.PIPE) for _ in range(2)]
    printed = sorted(process.communicate(timeout=30)[0] for process in started)
    assert [process.returncode for process in started] == [0, 0]
    assert printed == [b"Deleted ada@example.com\n", b"No such user; nothing to do\n"]


def test_deleting_all_admins_at_once_is_refused(usersctl: Command) -> None:
    usersctl.add("ada", "eve", role="admin")
    for words in (["--yes"], ["--dry-run"]):
        assert usersctl("delete", "1", "2", *words).code == 5
    assert usersctl.ok("delete", "1", "--dry-run").stdout == "Would delete ada@example.com\n"
    assert len(usersctl.emails()) == 2


def test_an_id_is_never_reused(usersctl: Command) -> None:
    usersctl.add("ada")
    usersctl.ok("delete", "1", "--yes")
    assert usersctl.ok("create", "ada@example.com", "--generate", "--json").json["id"] == 2


# --- set-password, unlock ---


def test_set_password_replaces_the_old_password(usersctl: Command) -> None:
    usersctl.add("ada")
    usersctl.ok("token", "create", "1", "--no-expiry")
    usersctl.ok("set-password", "ada@example.com", "--password-stdin", stdin="another horse battery")
    assert usersctl.can_log_in("ada@example.com", "another horse battery")
    assert not usersctl.can_log_in("ada@example.com")
    made = usersctl.ok("set-password", "1", "--generate").stdout.strip()
    assert usersctl.can_log_in("ada@example.com", made)
    made = usersctl.ok("set-password", "1", "--generate", "--json").json["password"]
    assert usersctl.can_log_in("ada@example.com", made)
    assert all(row[2] != "api" for row in usersctl.ok("token", "list").rows)


def test_set_password_refuses_unknown_users_and_weak_passwords(usersctl: Command) -> None:
    usersctl.add("ada")
    assert usersctl("set-password", "9", "--generate").code == 3
    assert usersctl("set-password", "1").code == 2
    assert usersctl("set-password", "1", "--password-stdin", stdin="ada").code == 2
    assert usersctl.can_log_in("ada@example.com")


def test_standard_input_is_either_the_user_or_the_password(usersctl: Command) -> None:
    usersctl.add("ada")
    typed = "ada@example.com\\na secret that nobody may see\\n"
    done = usersctl.shell(f"printf '{typed}' | {{ usersctl set-password - --password-stdin; echo $?; cat; }}")
    assert done.stdout == f"2\n{typed}".replace("\\n", "\n")  # the command read nothing of it
    assert done.stderr.startswith("usersctl: Standard input cannot be both the user and the password\n  ")
    assert "secret" not in done.stderr
    usersctl.ok("set-password", "-", "--generate", stdin="1\n")


def test_unlock_opens_an_account_after_failed_logins(usersctl: Command) -> None:
    usersctl.add("ada")
    for _ in range(10):
        assert not usersctl.can_log_in("ada@example.com", "wrong")
    assert not usersctl.can_log_in("ada@example.com")
    assert "login_locked\tyes" in usersctl.ok("show", "1").stdout
    assert usersctl.ok("unlock", "1").stdout == "Unlocked ada@example.com\n"
    assert usersctl.can_log_in("ada@example.com")
    assert usersctl.ok("unlock", "1").stdout == "Not locked: ada@example.com\n"
    assert usersctl.ok("unlock", "1", "--json").json["unlocked"] is False
    assert usersctl("unlock", "9").code == 3


# --- secrets ---


def test_no_secret_is_in_the_audit_trail_or_in_an_error(usersctl: Command, tmp_path: Path) -> None:
    secret = "very secret horse"
    usersctl.ok("create", "ada@example.com", "--password-stdin", stdin=secret)
    usersctl.ok("set-password", "1", "--password-stdin", stdin=f"{secret} 2")
    token = usersctl.ok("token", "create", "1", "--no-expiry").stdout.strip()
    refused = usersctl(
        "create", "eve@example.com", "--password-stdin", "--debug", stdin=f"{secret}{'x' * 80}"
    )
    people = tmp_path / "people.csv"
    people.write_text(f"email,password\nnonsense,{secret}\neve@example.com,{secret}{'x' * 80}\n")
    rows = usersctl("import", people, "--debug")
    assert (refused.code, rows.code) == (2, 2)
    trail = usersctl.ok("audit", "--json").stdout + usersctl.ok("show", "1").stdout
    for text in (trail, refused.stderr, rows.stderr):
        assert secret not in text
        assert token not in text
    assert token.encode() not in b"".join(file.read_bytes() for file in tmp_path.glob("users.db*"))


def test_no_option_takes_a_password_from_the_command_line(usersctl: Command) -> None:
    for option in ("--password", "--pass", "--token"):
        assert usersctl("create", "ada@example.com", option, PASSWORD).code == 2
