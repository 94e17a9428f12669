"""create, as scripts call it: addresses, passwords, and accounts that are there already."""

import re
import subprocess

import pytest
from support.accounts import USER_KEYS
from support.commands import PASSWORD, Command, feed


def test_an_account_is_created_and_can_sign_in(usersctl: Command) -> None:
    done = usersctl.ok(
        "create", " Ada@Example.com", "--name", "Ada L", "--admin", "--password-stdin", stdin=PASSWORD
    )
    assert done.stdout == "Created user 1: ada@example.com (admin)\n"
    assert usersctl.can_log_in("ada@example.com")


def test_json_of_a_new_account_is_the_user_object(usersctl: Command) -> None:
    user = usersctl.ok("create", "ada@example.com", "--json", "--password-stdin", stdin=PASSWORD).json
    assert list(user) == USER_KEYS
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


@pytest.mark.parametrize(
    ("email", "hint"),
    [
        ("Ada <Ada@example.com>", "did you mean ada@example.com?"),
        ("mailto:ada@example.com", "did you mean ada@example.com?"),
        ("ada@example.com.", "did you mean ada@example.com?"),
        ("ada@example.com,", "did you mean ada@example.com?"),
        ("ada@example.com, eve@example.com", "give each address as a word of its own"),
    ],
)
def test_an_address_among_other_signs_is_found(usersctl: Command, email: str, hint: str) -> None:
    for words in (("create", email, "--generate"), ("invite", "send", email), ("mail", "test", email)):
        done = usersctl(*words)
        assert (done.code, done.stderr) == (2, f"usersctl: Invalid email format: {email!r}\n  {hint}\n")
    assert usersctl.is_unused


@pytest.mark.parametrize(
    "email", ["ada", "ada@", "@example.com", "a b@example.com", "ada@localhost", "üa@example.com"]
)
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
        (["audit", "--action", "kick"], "withdraw-invitation: 'kick'"),
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
    for command in ("usersctl update 1", "usersctl set-password 1"):
        assert command in done.stderr
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
