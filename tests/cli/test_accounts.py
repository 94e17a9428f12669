"""create, update, activate, deactivate, delete, set-password and unlock, as scripts call them."""

import re
import subprocess
from pathlib import Path

import pytest
from support.commands import PASSWORD, Command, feed

# --- create ---


def test_an_account_is_created_and_can_sign_in(usersctl: Command) -> None:
    done = usersctl.ok(
        "create", " Ada@Example.com", "--name", "Ada L", "--admin", "--password-stdin", stdin=PASSWORD
    )
    assert done.stdout == "Created user 1: ada@example.com (admin)\n"
    assert usersctl.can_log_in("ada@example.com")


def test_json_of_a_new_account_is_the_user_object(usersctl: Command) -> None:
    user = usersctl.ok("create", "ada@example.com", "--json", "--password-stdin", stdin=PASSWORD).json
    assert list(user) == [
        "id",
        "email",
        "name",
        "role",
        "active",
        "created_at",
        "updated_at",
        "last_login_at",
        "oauth_id",
        "profile_picture",
    ]
    assert (user["name"], user["role"], user["active"]) == ("ada", "user", True)


def test_a_generated_password_is_printed_alone_on_stdout(usersctl: Command) -> None:
    done = usersctl.ok("create", "ada@example.com", "--generate")
    assert re.fullmatch(r"\S{16,}\n", done.stdout)
    assert done.stderr == "Created user 1: ada@example.com (user)\n"
    assert usersctl.can_log_in("ada@example.com", done.stdout.strip())


def test_a_generated_password_has_the_configured_minimum_length(usersctl: Command) -> None:
    usersctl.configure("[passwordHashing]\nrounds = 10\n[passwordValidation]\nminLength = 72\n")
    assert len(usersctl.ok("create", "ada@example.com", "--generate").stdout.strip()) == 72


def test_with_quiet_a_generated_password_is_all_that_is_printed(usersctl: Command) -> None:
    done = usersctl.ok("create", "ada@example.com", "--generate", "--quiet")
    assert len(done.stdout.splitlines()) == 1
    assert done.stderr == ""


def test_json_of_a_generated_password_has_it_in_the_object(usersctl: Command) -> None:
    done = usersctl.ok("create", "ada@example.com", "--generate", "--json")
    assert usersctl.can_log_in("ada@example.com", done.json["password"])
    assert done.stderr == ""


@pytest.mark.parametrize(
    ("given", "is_"),
    [
        (f"{PASSWORD}\n", PASSWORD),
        (f"{PASSWORD}\r\n", PASSWORD),
        (f"{PASSWORD}\n\n", f"{PASSWORD}\n"),
        (f"  {PASSWORD} ", f"  {PASSWORD} "),
        (f"\ufeff{PASSWORD}\r\n", PASSWORD),
    ],
)
@pytest.mark.parametrize("source", ["stdin", "file"])
def test_exactly_one_line_end_and_the_mark_of_windows_are_dropped_from_a_password(
    usersctl: Command, given: str, is_: str, source: str
) -> None:
    if source == "stdin":
        usersctl.ok("create", "ada@example.com", "--password-stdin", stdin=given)
    else:
        file = usersctl.folder / "password"
        file.write_bytes(given.encode())
        usersctl.ok("create", "ada@example.com", "--password-file", file)
    assert usersctl.can_log_in("ada@example.com", is_)


@pytest.mark.slow
def test_create_vouches_for_an_address(usersctl: Command) -> None:
    usersctl.configure(
        'auth.oauth = { clientId = "users", clientSecret = "x", issuer = "https://id.example.com" }\n'
    )
    plain = usersctl("create", "ada@example.com", "--password-stdin", stdin=PASSWORD)
    vouched = usersctl("create", "grace@example.com", "--proven", "--password-stdin", stdin=PASSWORD)
    hint = "The first sign-in through the provider ends this password; with --proven it would stay"
    assert (hint in plain.stderr, hint in vouched.stderr) == (True, False)
    assert "the owner was never asked to confirm this address" in usersctl("why", "ada@example.com").stdout
    assert "the owner was never asked" not in usersctl("why", "grace@example.com").stdout


def test_create_without_a_terminal_or_a_password_source_is_refused(usersctl: Command) -> None:
    done = usersctl("create", "ada@example.com", stdin=f"{PASSWORD}\n{PASSWORD}\n")
    assert done.code == 2
    assert "--password-stdin" in done.stderr
    assert "--generate" in done.stderr
    assert usersctl.is_unused


@pytest.mark.parametrize(
    ("words", "stdin", "printed"),
    [
        (["--generate", "--password-stdin"], "", "Choose one of"),
        (["--password-file", "nowhere"], "", "nowhere: cannot be read: No such file or directory"),
        (["--password-stdin"], "short", "at least 8 characters"),
        (["--password-stdin"], "", "at least 8 characters"),
        (["--password-stdin"], "password1", "too common"),
        (["--password-stdin"], "ada@example.com", "your own email address"),
        (["--password-stdin"], "ä" * 37, "at most 72 bytes"),
        (["--password-stdin"], b"\xff\xfe" * 8, "not UTF-8"),
        (["--password-stdin"], "with a \0 in it", "NUL"),
        (["--generate", "--admin", "--role", "user"], "", "contradict"),
        (["--generate", "--role", "boss"], "", "'admin', 'user'"),
        (["--generate", "--name", "two\nlines"], "", "control characters"),
        (["--generate", "--name", "\x1b[2J"], "", "control characters"),
        (["--generate", "--name", ""], "", "1 to 200"),
        (["--generate", "--name", "n" * 201], "", "1 to 200"),
    ],
)
def test_invalid_input_is_refused_before_a_database_is_created(
    usersctl: Command, words: list[str], stdin: str | bytes, printed: str
) -> None:
    done = usersctl("create", "ada@example.com", *words, stdin=stdin)
    assert done.code == 2
    assert printed in done.stderr
    assert done.stdout == ""
    assert usersctl.is_unused


@pytest.mark.parametrize("email", ["ada", "ada@", "@example.com", "a b@example.com", "ada@localhost", ""])
def test_an_invalid_address_is_refused(usersctl: Command, email: str) -> None:
    done = usersctl("create", email, "--generate")
    assert (done.code, done.stderr) == (2, f"usersctl: Invalid email format: {email!r}\n")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["create", "no \x1b[31maddress"], r"Invalid email format: 'no \x1b[31maddress'"),
        (["create", "a" * 500], f"Invalid email format: '{'a' * 60}'…"),
        (["update", "1", "--email", "ada@"], "Invalid email format: 'ada@'"),
        (["update", "1", "--name", "A\nB"], r"Name must not contain control characters: 'A\nB'"),
        (["update", "1", "--name", "n" * 201], f"Name must have 1 to 200 characters: '{'n' * 60}'…"),
        (["update", "1", "--role", "boss"], "'boss' is not one of 'admin', 'user'"),
        (["mail", "test", "\u202eevil"], r"Invalid email format: '\u202eevil'"),
        (["token", "create", "1", "--expires", "soon"], "'soon' is not a duration"),
        (["audit", "--since", "soon"], "'soon' is neither a duration nor a date"),
        (["audit", "verify", "--expect", "abc"], "as `usersctl audit verify` prints it: 'abc'"),
        (["list", "--limit", "ten"], "'ten' is not a whole number"),
    ],
    ids=str,
)
def test_a_message_about_an_invalid_value_shows_the_value(
    usersctl: Command, words: list[str], message: str
) -> None:
    usersctl.add("ada")
    done = usersctl(*words)
    assert done.code == 2
    assert message in done.stderr
    assert "\x1b" not in done.stderr
    assert message in usersctl("--json", *words).error["message"]


def test_an_address_that_is_taken_is_refused_with_its_own_exit_code(usersctl: Command) -> None:
    usersctl.add("ada")
    done = usersctl("create", "ADA@example.com", "--generate")
    assert done.code == 4
    assert "taken by user 1" in done.stderr
    assert usersctl("create", "ada@example.com", "--generate", "--json").error["code"] == "taken"


def test_if_missing_succeeds_and_changes_nothing_and_needs_no_password_then(usersctl: Command) -> None:
    usersctl.add("ada")
    done = usersctl.ok("create", "ada@example.com", "--if-missing", "--admin")
    assert "exists already" in done.stdout
    assert usersctl.ok("create", "ada@example.com", "--if-missing", "--json").json["role"] == "user"
    assert usersctl("create", "eve@example.com", "--if-missing").code == 2
    usersctl.ok("create", "eve@example.com", "--if-missing", "--generate", "--inactive")
    assert not usersctl.ok("show", "eve@example.com", "--json").json["active"]


def test_with_generate_stdout_holds_only_a_password_even_if_the_account_exists(
    usersctl: Command,
) -> None:
    usersctl.add("ada")
    done = usersctl.ok("create", "ada@example.com", "--if-missing", "--generate")
    assert done.stdout == ""
    assert "exists already" in done.stderr


@pytest.mark.slow
def test_concurrent_creates_of_one_account_make_it_once(usersctl: Command) -> None:
    words = ("create", "ada@example.com", "--if-missing", "--generate")
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    started = [usersctl.start(*words, **pipes) for _ in range(5)]
    ended = [(*process.communicate(timeout=30), process.returncode) for process in started]
    assert [code for _, _, code in ended] == [0] * 5, ended
    (made,) = [out.decode().strip() for out, _, _ in ended if out]
    assert usersctl.can_log_in("ada@example.com", made)
    assert sum(b"exists already, as user 1" in err for _, err, _ in ended) == 4


@pytest.mark.parametrize(
    ("words", "code", "printed"),
    [
        (["--if-missing"], 0, "ada@example.com exists already, as user 1"),
        ([], 4, "ada@example.com is taken by user 1"),
    ],
)
def test_create_finds_an_account_that_another_process_created_meanwhile(
    usersctl: Command, words: list[str], code: int, printed: str
) -> None:
    usersctl.ok("db", "init")
    process = usersctl.start(
        "create", "ada@example.com", "--password-stdin", *words,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    feed(process.stdin, b"correct horse")
    usersctl.add("ada")
    out, err = process.communicate(b" in the meantime", timeout=30)
    assert process.returncode == code
    assert printed in (out + err).decode()
    assert usersctl.can_log_in("ada@example.com", PASSWORD)


# --- the value of an option is a value, whatever it looks like ---


def test_a_name_that_looks_like_an_option_is_a_name(usersctl: Command) -> None:
    usersctl.ok("create", "ada@example.com", "--generate", "--name", "--db=/nowhere/users.db")
    usersctl.ok("create", "eve@example.com", "--generate", "--name", "--json")
    names = [user["name"] for user in usersctl.ok("list", "--json").json]
    assert names == ["--db=/nowhere/users.db", "--json"]


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
