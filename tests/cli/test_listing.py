"""list, show and why, as scripts call them."""

import csv
import io
import json
from datetime import timedelta
from functools import partial
from pathlib import Path

import pytest
from support.commands import OPERATOR, PASSWORD, Command, by_hand
from support.tables import add_many

from usersctl.cli.invocation import Invocation
from usersctl.clock import stamp, utc_now

MANY = 10_000  # rows of a long list

# --- list ---


def test_an_empty_list_is_a_header_or_brackets(usersctl: Command) -> None:
    usersctl.ok("db", "init")
    assert usersctl.ok("list").stdout == "id\temail\tname\trole\tactive\tcreated_at\tlast_login_at\n"
    assert usersctl.ok("list", "--json").stdout == "[]\n"
    assert usersctl.ok("list", "--json", "--role", "admin").stdout == "[]\n"
    assert usersctl.ok("list", "--jsonl").stdout == ""
    assert usersctl.ok("list", "--csv").stdout.count("\n") == 1


def test_a_list_in_a_pipe_is_complete_and_not_cut(usersctl: Command) -> None:
    with usersctl.service() as service, service.store.write() as tx:
        tx._run(
            "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 120)"
            " INSERT INTO users (email, name, password_hash, role, active, created_at, updated_at)"
            " SELECT 'user' || i || '@example.com', ?, '!', 'user', i % 2, '2026-11-20T08:22:19.123Z',"
            " '2026-11-20T08:22:19.123Z' FROM n",
            ("long " * 40,),
        )
    done = usersctl.ok("list")
    assert len(done.rows) == 120
    assert done.rows[0][2] == "long " * 40
    assert done.stderr == ""
    assert len(usersctl.ok("list", "--active").rows) == 60
    assert len(usersctl.ok("list", "--limit", "50", "--page", "3").rows) == 20
    assert len(usersctl.ok("list", "--page", "1").rows) == 50
    assert len(usersctl.ok("list", "--page", "3").rows) == 20
    assert usersctl.ok("list", "--page", "4").rows == []
    assert len(usersctl.ok("list", "--all").rows) == 120
    assert len(usersctl.ok("list", "--jsonl").stdout.splitlines()) == 120
    assert len(usersctl.ok("list", "--limit", "9" * 30).rows) == 120
    assert usersctl.ok("list", "--limit", "9" * 30, "--page", "9" * 30).rows == []


def fill(usersctl: Command, count: int) -> None:
    """So many users, each with a token and an email."""
    with usersctl.service() as service, service.store.write() as tx:
        add_many(tx, count)
        tx._run(
            "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < ?)"
            " INSERT INTO outbox (kind, user_id, email, message_id, created_at, due_at)"
            " SELECT 'reset', i, 'user' || i || '@example.com', 'message' || i, 'x', 'x' FROM n",
            (count,),
        )
        until = stamp(utc_now() + timedelta(days=1))
        for number in range(1, count + 1):
            tx.add_token(number, b"%d" % number, kind="api", name="ci", expires_at=until)


@pytest.mark.slow
def test_a_long_list_of_tokens_or_emails_takes_little_memory(tmp_path: Path) -> None:
    for name in ("few", "many"):
        (tmp_path / name).mkdir()
    few, many = Command(tmp_path / "few"), Command(tmp_path / "many")
    fill(few, 1)
    fill(many, MANY)
    for words in ("token list", "token list --json", "mail list", "mail list --json"):
        of_one, of_all = (usersctl.measured(*words.split()) for usersctl in (few, many))
        assert (of_one.code, of_all.code) == (0, 0)
        assert of_all.megabytes < of_one.megabytes + 3, words
    assert len(many.ok("token", "list").rows) == len(many.ok("mail", "list", "--json").json) == MANY


@pytest.mark.parametrize("words", ["token list", "mail list"])
def test_a_list_in_json_is_one_line_in_a_pipe(usersctl: Command, words: str) -> None:
    usersctl.ok("db", "init")
    assert usersctl.ok(*words.split(), "--json").stdout == "[]\n"
    fill(usersctl, 2)
    printed = usersctl.ok(*words.split(), "--json")
    assert printed.stdout == json.dumps(printed.json) + "\n"
    on_terminal = usersctl.on_terminal(*words.split(), "--json")
    assert on_terminal.text == json.dumps(printed.json, indent=2) + "\n"


def test_all_formats_of_a_list_have_the_same_content(usersctl: Command) -> None:
    usersctl.add("ada", "grace")
    listed = usersctl.ok("list", "--json").json
    assert [json.loads(line) for line in usersctl.ok("list", "--jsonl").stdout.splitlines()] == listed
    assert usersctl.ok("--json", "list", "--sort", "name").json == listed
    in_csv = list(csv.DictReader(io.StringIO(usersctl.ok("list", "--csv").stdout)))
    assert [row["email"] for row in in_csv] == [user["email"] for user in listed]
    assert in_csv[0]["active"] == "true"
    assert [row[1] for row in usersctl.ok("list").rows] == [user["email"] for user in listed]


def test_a_csv_list_holds_no_formula(usersctl: Command) -> None:
    usersctl.ok("create", "ada@example.com", "--name", '=HYPERLINK("http://example.com")', "--generate")
    usersctl.ok("create", "=1@example.com", "--name", "Eve;@SUM(1)", "--generate")
    rows = list(csv.DictReader(io.StringIO(usersctl.ok("list", "--csv").stdout)))
    assert [row["name"] for row in rows] == ['\'=HYPERLINK("http://example.com")', "Eve;'@SUM(1)"]
    assert [row["email"] for row in rows] == ["ada@example.com", "'=1@example.com"]
    assert [row["id"] for row in rows] == ["1", "2"]


def listed_names(usersctl: Command, *words: str) -> str:
    return " ".join(row[1].partition("@")[0] for row in usersctl.ok("list", *words).rows)


def test_lists_are_filtered_searched_and_sorted(usersctl: Command) -> None:
    usersctl.add("ada", role="admin")
    usersctl.add("grace", active=False)
    usersctl.add("eve")

    emails = partial(listed_names, usersctl)
    assert emails() == "ada eve grace"
    assert emails("--desc") == "grace eve ada"
    assert emails("--sort", "created") == "ada grace eve"
    assert emails("--role", "admin") == "ada"
    assert emails("--inactive") == "grace"
    assert emails("--active", "--role", "user") == "eve"
    assert emails("--search", "GRA") == "grace"
    assert emails("--search", "%") == ""
    assert emails("--search", "") == "ada eve grace"


def test_lists_are_filtered_by_state_and_group(usersctl: Command) -> None:
    for name in ("ada", "bob", "eve"):
        usersctl.add(name, active=name != "eve")
    with usersctl.service() as service, service.store.write() as tx:
        for _ in range(80):
            tx.count_failure("user:2", 2)
    usersctl.ok("group", "create", "staff")
    usersctl.ok("group", "add", "staff", "2", "3")

    emails = partial(listed_names, usersctl)
    assert emails("--state", "active") == "ada bob"
    assert emails("--state", "deactivated") == "eve"
    assert emails("--state", "locked") == "bob"
    assert emails("--state", "never-signed-in", "--group", "staff", "--desc") == "eve bob"
    assert emails("--group", "staff", "--active", "--limit", "5") == "bob"
    assert emails("--state", "invited") == emails("--state", "awaiting") == ""
    refused = usersctl("list", "--group", "ghosts")
    assert refused == (2, "", "usersctl: Unknown group: 'ghosts'\n  see: usersctl group list\n")
    assert usersctl("list", "--state", "gone").code == 2


def test_a_command_opens_its_store_once(usersctl: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    usersctl.ok("db", "init")
    for name in ("USERS_CONFIG", "USERS_DATABASE", "USERS_SECRET_KEY"):
        monkeypatch.setenv(name, usersctl.env.get(name, ""))
    run = Invocation(["list", "--state", "locked"])
    service = run.service(write=False)
    assert run.store(write=False) is service.store
    run.close()


@pytest.mark.slow
def test_a_list_goes_on_behind_a_user(usersctl: Command) -> None:
    usersctl.add("eve", "grace", "ada", "emile", "bob")

    def listed(*words: str) -> list[str]:
        return [user["email"] for user in usersctl.ok("list", "--json", *words).json]

    everyone, behind = listed(), []
    while page := usersctl.ok("list", "--json", "--limit", "2", *behind).json:
        assert [user["email"] for user in page] == everyone[:2]
        del everyone[:2]
        behind = ["--after", str(page[-1]["id"])]
    assert everyone == []
    by_age = listed("--sort", "created", "--desc")
    assert listed("--after", "3", "--sort", "created", "--desc") == by_age[3:]
    assert listed("--after", "3", "--search", "example", "--active") == listed()[1:]
    assert usersctl.ok("list", "--after", "3").rows[0][1] == "bob@example.com"
    for unknown in ("99", "9" * 30):
        missing = usersctl("list", "--after", unknown)
        assert missing.code == 3
        assert f"No user {unknown}" in missing.stderr


@pytest.mark.parametrize(
    "words",
    [
        ["--active", "--inactive"],
        ["--after", "1", "--page", "2"],
        ["--after", "1", "--all"],
        ["--after", "0"],
        ["--json", "--csv"],
        ["--csv", "--jsonl"],
        ["--all", "--limit", "3"],
        ["--all", "--page", "2"],
        ["--all", "--page", "1"],
        ["--limit", "0"],
        ["--page", "0"],
        ["--page", "-1"],
        ["--limit", "ten"],
        ["--sort", "password_hash"],
        ["--role", "boss"],
        ["--search"],
    ],
)
def test_contradicting_or_invalid_list_options_are_misuse(usersctl: Command, words: list[str]) -> None:
    usersctl.add("ada")
    done = usersctl("list", *words)
    assert (done.code, done.stdout) == (2, "")
    assert done.stderr.startswith(("usersctl: ", "{"))


# --- show ---


def test_show_takes_an_id_an_address_or_standard_input(usersctl: Command) -> None:
    usersctl.add("ada")
    facts = dict(line.split("\t") for line in usersctl.ok("show", "1").stdout.splitlines())
    assert facts["email"] == "ada@example.com"
    assert facts["has_password"] == "yes"
    assert facts["sessions"] == "0"
    assert usersctl.ok("show", "ADA@example.com", "--json").json["id"] == 1
    assert usersctl.ok("show", "-", "--json", stdin="\n ada@example.com \n").json["id"] == 1
    assert usersctl.ok("show", "-", "--json", stdin="\ufeffada@example.com\r\n").json["id"] == 1


@pytest.mark.slow
def test_a_deletion_by_the_owner_is_shown_and_activating_cancels_it(usersctl: Command) -> None:
    usersctl.add("ada", "grace")
    until = "2099-11-29T14:05:00.000Z"
    with usersctl.service() as service, service.store.write() as tx:
        tx.change_user(1, active=False, delete_at=until)
    facts = dict(line.split("\t") for line in usersctl.ok("show", "1").stdout.splitlines())
    assert (facts["active"], facts["delete_at"]) == ("no", until)
    screen = usersctl.on_terminal("list", columns=200)
    assert "delete (UTC)" in screen.text
    assert "2099-11-29 14:05" in screen.text
    assert until in usersctl("why", "1").stdout
    assert usersctl.ok("activate", "1").stdout == "Now active: ada@example.com (user 1)\n"
    facts = dict(line.split("\t") for line in usersctl.ok("show", "1").stdout.splitlines())
    assert (facts["active"], facts["delete_at"]) == ("yes", "")
    assert "delete (UTC)" not in usersctl.on_terminal("list", columns=200).text


@pytest.mark.parametrize("user", ["2", "01", "+1", "1.0", "9" * 40, "nobody@example.com", "ada", "[red]"])
def test_an_unknown_user_is_not_found(usersctl: Command, user: str) -> None:
    usersctl.add("ada")
    done = usersctl("show", user)
    assert (done.code, done.stdout) == (3, "")
    assert done.stderr.startswith("usersctl: No user ")
    assert "list --search" in done.stderr
    assert usersctl("show", user, "--json").error["code"] == "not_found"


@pytest.mark.slow
def test_commands_for_one_user_refuse_two(usersctl: Command) -> None:
    usersctl.add("ada", "eve")
    for words in (["show"], ["why"], ["audit", "--user"]):
        for stdin in ("1\n2\n", "1\n1\n", "", "\n \n"):
            done = usersctl(*words, "-", stdin=stdin)
            assert (done.code, done.stdout) == (2, "")
            assert "Expected one user on standard input" in done.stderr


@pytest.mark.parametrize("words", ["show -", "delete - --yes --if-exists", "why -", "audit --user -"])
def test_an_endless_line_on_standard_input_is_refused(usersctl: Command, words: str) -> None:
    usersctl.add("ada")
    printed = "usersctl: A line on standard input is longer than 1000 characters, and not a user\n"
    # Limited memory, so that a command that reads on does not take the machine's.
    done = usersctl.shell(f"ulimit -v 2000000; usersctl {words} </dev/zero")
    assert (done.code, done.stdout, done.stderr) == (2, "", printed)
    assert usersctl("show", "-", stdin="x" * 1000 + "\n").code == 3
    assert usersctl("show", "-", stdin="x" * 1001 + "\n").code == 2


# --- why ---


def test_why_takes_the_user_from_standard_input(usersctl: Command) -> None:
    usersctl.add("ada")
    assert usersctl.ok("why", "-", "--json", stdin="ada@example.com\n").json["user"]["id"] == 1
    done = usersctl("why", "-", stdin="nobody@example.com\n")
    assert done.code == 3
    assert "usersctl: No user 'nobody@example.com'" in done.stderr


@pytest.mark.parametrize(("attempts", "printed"), [(0, "0 times"), (1, "1 time"), (2, "2 times")])
def test_why_counts_the_attempts_to_send_an_email(usersctl: Command, attempts: int, printed: str) -> None:
    with usersctl.service() as service:
        service.registration.register("ada@example.com", "Ada", PASSWORD, by=OPERATOR)
    by_hand(usersctl.database, f"UPDATE outbox SET attempts = {attempts}")  # noqa: S608 - our own number
    (letter,) = [gate for gate in usersctl.ok("why", "1", "--json").json["gates"] if gate["name"] == "letter"]
    assert letter["message"].endswith(f": waiting, tried {printed}")


def test_signs_of_spelling_are_printed_and_others_without_width_are_made_visible(usersctl: Command) -> None:
    names = ["می\u200cشی", "क्\u200dष", "A\u200cda", "ن\u200c", "👩\u200d🚀"]
    rows = "".join(f"user{number}@example.com,{name}\n" for number, name in enumerate(names))
    usersctl.ok("import", "-", stdin=f"email,name\n{rows}")
    listed = usersctl.ok("list", "--sort", "email").stdout.splitlines()[1:]
    shown = [*names[:2], r"A\u200cda", r"ن\u200c", r"👩\u200d🚀"]
    assert [line.split("\t")[2] for line in listed] == shown
