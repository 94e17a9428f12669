"""On a terminal: questions, tables, progress bars and Ctrl-C."""

import json
import re
from pathlib import Path

import pytest
from rich.cells import cell_len
from support.commands import CTRL_Z_AND_FG, HASH, PASSWORD, Command
from support.databases import add_crowd

from usersctl.cli.snippet import Snippet
from usersctl.config.settings import KEYS


def people(usersctl: Command, count: int) -> None:
    rows = "".join(f"user{number:03}@example.com,User {number}\n" for number in range(1, count + 1))
    usersctl.ok("import", "-", stdin=f"email,name\n{rows}")


def crowd(usersctl: Command, count: int) -> None:
    usersctl.ok("db", "init")
    add_crowd(usersctl.database, count, "Crowd")


# --- passwords ---

# With the space at the end: before the whole prompt is printed, echo may still be on, and switching it off drops input.
PROMPT, AGAIN = "Password for ada@example.com: ", "Once more: "


def test_a_password_is_asked_twice_and_not_shown(usersctl: Command) -> None:
    screen = usersctl.on_terminal(
        "create",
        "ada@example.com",
        typed=[(PROMPT, f"{PASSWORD}\n"), (AGAIN, f"{PASSWORD}\n")],
    )
    assert screen.code == 0
    assert PASSWORD not in screen.raw
    assert screen.lines[-1] == "Created user 1: ada@example.com (user)"
    assert usersctl.can_log_in("ada@example.com")


@pytest.mark.parametrize("stopped", [PROMPT, AGAIN])
def test_a_password_is_not_shown_after_ctrl_z_and_fg(usersctl: Command, stopped: str) -> None:
    typed = [(PROMPT, f"{PASSWORD}\n"), (AGAIN, f"{PASSWORD}\n")]
    typed.insert([PROMPT, AGAIN].index(stopped), (stopped, CTRL_Z_AND_FG))
    screen = usersctl.on_terminal("create", "ada@example.com", typed=typed)
    assert screen.code == 0
    assert PASSWORD not in screen.raw
    assert screen.text.count(stopped) == 2
    assert usersctl.can_log_in("ada@example.com")


def test_a_mistyped_and_a_weak_password_are_asked_again(usersctl: Command) -> None:
    screen = usersctl.on_terminal(
        "create",
        "ada@example.com",
        typed=[
            (PROMPT, "short\n"),
            ("at least 8 characters", ""),
            (PROMPT, f"{PASSWORD}\n"),
            (AGAIN, "something else\n"),
            ("not the same", ""),
            (PROMPT, f"{PASSWORD}\n"),
            (AGAIN, f"{PASSWORD}\n"),
        ],
    )
    assert screen.code == 0
    assert usersctl.can_log_in("ada@example.com")


def test_the_password_prompt_gives_up_after_three_tries(usersctl: Command) -> None:
    typed = [(PROMPT, "short\n")] * 3
    screen = usersctl.on_terminal("create", "ada@example.com", typed=typed)
    assert screen.code == 2
    assert "three tries" in screen.text
    assert usersctl.is_unused


@pytest.mark.parametrize("key", ["\x03", "\x04"])
@pytest.mark.parametrize("prompt", [PROMPT, AGAIN])
def test_ctrl_c_and_end_of_input_at_the_prompt_change_nothing(
    usersctl: Command, prompt: str, key: str
) -> None:
    typed = [(PROMPT, f"{PASSWORD}\n")] if prompt == AGAIN else []
    screen = usersctl.on_terminal("create", "ada@example.com", typed=[*typed, (prompt, key)])
    assert screen.code == 130
    *prompts, error = screen.lines
    assert error == "usersctl: interrupted; nothing was done"
    assert prompts == ["Password for ada@example.com:", "Once more:"][: len(prompts)]
    assert usersctl.is_unused


def test_ctrl_c_at_a_prompt_is_reported_as_json_with_json(usersctl: Command) -> None:
    screen = usersctl.on_terminal("create", "ada@example.com", "--json", typed=[(PROMPT, "\x03")])
    assert screen.code == 130
    error = {"code": "interrupted", "message": "interrupted; nothing was done", "hint": None}
    assert json.loads(screen.lines[-1]) == {"error": error}


def test_ctrl_c_at_set_password_keeps_the_old_password(usersctl: Command) -> None:
    usersctl.add("ada")
    assert usersctl.on_terminal("set-password", "1", typed=[(PROMPT, "\x03")]).code == 130
    assert usersctl.can_log_in("ada@example.com")


def test_create_of_an_existing_account_asks_no_password(usersctl: Command) -> None:
    usersctl.add("ada")
    screen = usersctl.on_terminal("create", "ada@example.com")
    assert screen.code == 4
    assert "Password" not in screen.text


def test_no_input_asks_nothing_even_on_a_terminal(usersctl: Command) -> None:
    usersctl.add("ada")
    assert usersctl.on_terminal("create", "eve@example.com", "--no-input").code == 2
    refused = usersctl.on_terminal("--no-input", "delete", "1")
    assert refused.code == 5
    assert refused.lines[-1].strip() == "confirm with --yes"  # no word of a missing terminal
    assert usersctl.emails() == ["ada@example.com"]


# --- questions ---


@pytest.mark.parametrize(
    ("answer", "code"), [("y\n", 0), ("n\n", 5), ("\n", 5), ("\x03", 130), ("\x04", 130)]
)
def test_delete_asks_for_confirmation(usersctl: Command, answer: str, code: int) -> None:
    usersctl.add("ada")
    screen = usersctl.on_terminal("delete", "1", typed=[("[y/N]: ", answer)])
    assert screen.code == code
    assert screen.lines[0].startswith("Delete ada@example.com with all sessions and tokens? [y/N]:")
    assert len(screen.lines) == 2
    if code == 130:
        assert screen.lines[1] == "usersctl: interrupted; nothing was done"
    assert usersctl.emails() == ([] if code == 0 else ["ada@example.com"])


def test_an_answer_that_is_neither_yes_nor_no_is_asked_again(usersctl: Command) -> None:
    usersctl.add("ada")
    typed = [("[y/N]: ", "nein\n"), ("usersctl: answer y or n", ""), ("[y/N]: ", " YES \n")]
    screen = usersctl.on_terminal("delete", "1", typed=typed)
    assert (screen.code, usersctl.emails()) == (0, [])
    assert "Error" not in screen.text


# --- tables ---


@pytest.mark.slow
def test_a_search_that_many_share_says_how_many_there_are_at_least(usersctl: Command) -> None:
    crowd(usersctl, 5100)
    screen = usersctl.on_terminal("list", "--search", "crowd")
    assert screen.lines[-1].startswith("50 of 1,000 and more users, page 1; ")
    far = usersctl.on_terminal("list", "--search", "crowd", "--page", "60")
    assert far.lines[-1].startswith("50 of 3,001 and more users, page 60; ")
    beyond = usersctl.on_terminal("list", "--search", "crowd", "--page", "900")
    assert beyond.lines[-1] == "There are 1,000 and more users on 20 and more pages."
    assert len(usersctl.ok("list", "--search", "crowd").rows) == 5100


@pytest.mark.slow
def test_a_list_on_a_terminal_shows_50_accounts_and_the_total(usersctl: Command) -> None:
    people(usersctl, 120)
    screen = usersctl.on_terminal("list")
    assert len(re.findall(r"user\d+@example\.com", screen.text)) == 50
    behind = ""
    for shown in (50, 50, 20):
        ending = screen.lines[-1]
        assert ending.startswith(f"{shown} of 120 users, {behind or 'page 1 of 3'}; ")
        last = re.search(r"--after (\d+), all: --all$", ending)
        if last is not None:
            screen, behind = usersctl.on_terminal("list", "--after", last[1]), f"behind user {last[1]}"
    assert ending.endswith("; these are the last")
    by_email = usersctl.on_terminal("list", "--sort", "email")
    assert by_email.lines[-1] == "50 of 120 users, page 1 of 3; the next: --after 50, all: --all"
    assert len(re.findall(r"user\d+@", usersctl.on_terminal("list", "--all").text)) == 120
    last = usersctl.on_terminal("list", "--page", "3")
    assert last.lines[-1].startswith("20 of 120 users, page 3 of 3")
    assert usersctl.on_terminal("list", "--page", "4").lines == [
        "No users.",
        "There are 120 users on 3 pages.",
    ]
    assert usersctl.on_terminal("list", "--search", "user007").lines[-1] == "1 user"
    assert usersctl.on_terminal("list", "--search", "nobody").lines == ["No users."]
    assert usersctl.on_terminal("list", "--quiet", "--search", "user007").lines[-1] != "1 user"


STRANGE_NAMES = [
    "Ada [bold red]L[/bold red] [link=https://example.com]x[/link]",
    "N" * 180,
    "長い名前" * 20,
    "😀 \u202eabc",
    "Maximiliane Freifrau von Müller-Lüdenscheidt",
]


def test_a_long_name_of_wide_letters_is_broken_by_the_cells_that_it_takes(usersctl: Command) -> None:
    name = " ".join(["山田太郎左衛門"] * 8)
    usersctl.ok("import", "-", stdin=f"email,name\nada@example.com,{name}\n")
    lines = [line for line in usersctl.on_terminal("show", "1", columns=60).lines if "山" in line]
    assert max(map(cell_len, lines)) <= 60
    assert " ".join(line.removeprefix("name").strip() for line in lines) == name


@pytest.mark.parametrize("columns", [200, 100, 80, 60, 40])
def test_a_list_has_one_line_for_each_user_on_a_narrow_terminal(usersctl: Command, columns: int) -> None:
    rows = "".join(
        f"user{number}@{'long-' * number}example.com,{name}\n" for number, name in enumerate(STRANGE_NAMES)
    )
    usersctl.ok("import", "-", stdin=f"email,name\n{rows}")
    screen = usersctl.on_terminal("list", columns=columns)
    assert screen.code == 0
    title, _, *lines = screen.lines
    assert max(map(cell_len, [title, *lines[:5]])) <= columns
    assert sorted(line.split()[0] for line in lines[:5]) == ["1", "2", "3", "4", "5"]
    assert not re.search(r"\d\d:\d\d", screen.text)
    assert ("email" in title, "name" in title, "active" in title) == (True, columns > 40, columns > 40)
    assert "\u202e" not in screen.text
    if columns == 200:
        assert "Ada [bold red]L[/bold red] [link=https://example.com]x[/link]" in screen.text
    assert ("created" in title) == (columns >= 100)
    if columns < 100:
        note = next(number for number, line in enumerate(lines) if line.startswith("No room here for: "))
        left_out = lines[note:-1]  # the last line is the number of users
        assert "created" in " ".join(left_out)
        assert max(map(len, left_out)) <= columns
    piped = usersctl.ok("list").stdout
    assert "N" * 180 in piped


def test_a_list_on_a_very_narrow_terminal_is_blocks_that_are_not_cut(usersctl: Command) -> None:
    rows = "".join(f"user{number}@example.com,{name}\n" for number, name in enumerate(STRANGE_NAMES))
    usersctl.ok("import", "-", stdin=f"email,name\n{rows}")
    everything = re.sub(r"\s", "", usersctl.on_terminal("list", columns=20).text)
    assert everything.count("N") >= 180
    assert everything.count("長") == 20
    assert "[boldred]L[/boldred]" in everything
    assert "created(UTC)" in everything


@pytest.mark.parametrize("columns", [80, 60])
def test_an_ordinary_list_fits_with_names_and_activity(usersctl: Command, columns: int) -> None:
    people(usersctl, 12)
    usersctl.ok("deactivate", "3")
    screen = usersctl.on_terminal("list", columns=columns)
    users = [line for line in screen.lines if "@example.com" in line]
    assert len(users) == 12
    assert max(map(len, screen.lines)) <= columns
    assert sum(" no" in line for line in users) == 1


def test_every_kind_of_table_is_drawn_on_a_terminal(usersctl: Command) -> None:
    usersctl.add("ada")
    assert usersctl.on_terminal("token", "list").lines == ["No tokens."]
    usersctl.ok("token", "create", "1", "--name", "[red]ci[/red]", "--expires", "90d")
    assert "[red]ci[/red]" in usersctl.on_terminal("token", "list", columns=150).text
    assert "create-token" in usersctl.on_terminal("audit").text
    assert "active" in usersctl.on_terminal("show", "1").text
    assert "audit" in usersctl.on_terminal("db", "status").text


@pytest.mark.parametrize("columns", [120, 80, 60])
def test_the_trail_on_a_terminal_begins_with_the_newest_row_and_keeps_one_line_for_each(
    usersctl: Command, columns: int
) -> None:
    people(usersctl, 60)
    screen = usersctl.on_terminal("audit", columns=columns)
    title, _, *lines = screen.lines
    assert "at (UTC)" in title
    shown = [re.findall(r" (\d+) user", line)[0] for line in lines[:50]]
    assert shown == [str(number) for number in range(60, 10, -1)]
    assert max(map(len, [title, *lines[:50]])) <= columns
    assert screen.lines[-1].startswith("The newest 50 rows; see more with --limit N")
    assert len(usersctl.on_terminal("audit", "--limit", "3", columns=columns).text.split("import")) == 4


@pytest.mark.parametrize("columns", [120, 80])
def test_a_long_fact_and_a_long_help_are_broken_between_words(usersctl: Command, columns: int) -> None:
    screen = usersctl.on_terminal("config", "explain", "auth.secretKey", columns=columns)
    assert max(map(len, screen.lines)) <= columns
    meaning = screen.lines[4:]
    assert meaning[0].startswith("meaning      The key that seals")
    assert " ".join(line[13:] for line in meaning) == KEYS["auth.secretKey"].help
    names = usersctl.on_terminal("snippet", "--help", columns=columns).text
    assert set(re.findall(r"\w+", names)) >= set(Snippet)
    assert "systemd|" not in names


def test_facts_and_findings_stand_below_their_names_on_a_narrow_terminal(usersctl: Command) -> None:
    usersctl.add("ada", active=False)
    lines = usersctl.on_terminal("show", "1", columns=40).lines
    assert max(map(len, lines)) <= 40
    created = lines.index("created_at")
    assert re.fullmatch(r"  2\d{3}-\d\d-\d\dT[\d:.]+Z", lines[created + 1])
    assert "role                   user" in lines

    screen = usersctl.on_terminal("why", "1", columns=40)
    shut = screen.lines.index("shut active")
    assert screen.lines[shut + 1].startswith("  an admin, an operator or an import")
    assert "  -> usersctl activate 1" in screen.lines
    assert max(map(len, screen.lines)) <= 40
    checks = [line for line in usersctl.on_terminal("doctor", columns=40).lines if not line.startswith(" ")]
    assert "ok database-schema" in checks
    wide = usersctl.on_terminal("why", "1", columns=80).lines
    assert next(line for line in wide if line.startswith("shut  active  ")).endswith(" made it inactive")


def test_no_color_prints_no_colours(usersctl: Command) -> None:
    usersctl.add("ada")
    assert "\x1b[" in usersctl.on_terminal("list").raw
    for words in (["list", "--no-color"], ["--no-color", "--help"]):
        raw = usersctl.on_terminal(*words).raw
        assert not re.search(r"\x1b\[[0-9;]*3[0-7]", raw), words


def test_json_on_a_terminal_is_json(usersctl: Command) -> None:
    usersctl.add("ada")
    assert '"email": "ada@example.com"' in usersctl.on_terminal("show", "1", "--json").text
    assert usersctl.on_terminal("list", "--json").text.startswith("[")


# --- bars ---


def file_of_people(usersctl: Command, count: int, **columns: str) -> Path:
    """A file for an import: so many users, who have these values."""
    file = usersctl.folder / "people.csv"
    rows = [",".join((f"user{number}@example.com", *columns.values())) for number in range(count)]
    file.write_text("\n".join((",".join(("email", *columns)), *rows)) + "\n")
    return file


def test_a_progress_bar_is_drawn_on_a_terminal_only(usersctl: Command) -> None:
    file = file_of_people(usersctl, 8, password=PASSWORD)
    screen = usersctl.on_terminal("import", file)
    assert "8/8" in screen.text
    assert "Imported: 8 created" in screen.text
    done = usersctl.ok("import", file, "--on-conflict", "skip")
    assert done.stderr == ""


def test_a_long_import_of_ready_hashes_shows_how_far_it_is(usersctl: Command) -> None:
    screen = usersctl.on_terminal("import", file_of_people(usersctl, 4_000, password_hash=HASH))
    assert "Checking rows" in screen.text
    assert "3600/4000" in screen.text
    assert "Imported: 4000 created" in screen.text


@pytest.mark.slow
def test_a_progress_bar_leaves_the_cursor_to_the_shell_that_ctrl_z_leads_to(usersctl: Command) -> None:
    usersctl.ok("import", file_of_people(usersctl, 2_500))
    screen = usersctl.on_terminal("audit", "verify")
    assert "2000/2500" in screen.text
    assert "\x1b[?25l" not in screen.raw  # hides it


@pytest.mark.slow
def test_long_checks_and_exports_show_how_far_they_are(usersctl: Command) -> None:
    usersctl.ok("import", file_of_people(usersctl, 2_500))
    assert "2000/2500" in usersctl.on_terminal("audit", "verify").text
    for words in (["export", "all.csv"], ["export", "--as-state", "all.toml"]):
        assert "Writing users" in usersctl.on_terminal(*words).text, words
    usersctl.ok("db", "backup", "saved.db")
    for words in (["db", "verify"], ["db", "verify", "saved.db"], ["db", "restore", "saved.db", "--dry-run"]):
        screen = usersctl.on_terminal(*words)
        assert "Checking audit" in screen.text, words
        assert screen.code == 0
    assert usersctl.ok("db", "verify").stderr == ""


@pytest.mark.slow
def test_ctrl_c_while_passwords_are_hashed_imports_nothing(usersctl: Command) -> None:
    usersctl.configure("passwordHashing.rounds = 11\n")
    usersctl.ok("db", "init")
    screen = usersctl.on_terminal(
        "import", file_of_people(usersctl, 200, password=PASSWORD), typed=[("/200", "\x03")]
    )
    assert screen.code == 130
    assert "Traceback" not in screen.text
    assert screen.lines[-1] == "usersctl: interrupted"
    assert usersctl.emails() == []


def test_ctrl_c_ends_audit_follow_without_a_message(usersctl: Command) -> None:
    usersctl.add("ada")
    screen = usersctl.on_terminal("audit", "--follow", "--since", "1h", typed=[("create", "\x03")])
    assert screen.code == 130
    assert "interrupted" not in screen.text


# --- the way by help alone ---


def test_help_is_drawn_in_boxes_and_typos_get_suggestions(usersctl: Command) -> None:
    screen = usersctl.on_terminal(columns=80)
    assert screen.code == 2
    for word in ("create", "cleanup-tokens", "Accounts", "Example: usersctl create"):
        assert word in screen.text
    assert "--json" in usersctl.on_terminal("list", "--help", columns=80).text
    wrong = usersctl.on_terminal("lst")
    assert wrong.code == 2
    assert "Did you mean 'list'?" in wrong.text
    assert "usersctl --help" in wrong.text


def test_help_has_no_boxes_on_a_dumb_terminal(usersctl: Command) -> None:
    usersctl.env["TERM"] = "dumb"
    for words in ((), ("list", "--help"), ("token", "create", "--help")):
        screen = usersctl.on_terminal(*words, columns=80)
        assert "--json " in screen.text
        assert not set(screen.text) & set("╭│─╰")


@pytest.mark.parametrize("columns", [70, 50, 40])
def test_help_on_a_narrow_terminal_cuts_off_no_name_of_an_option(usersctl: Command, columns: int) -> None:
    for command, names in (
        ("create", {"--password-stdin", "--password-file"}),
        ("cleanup-tokens", {"--include-no-expiration"}),
        ("invite send", {"--without-password"}),
    ):
        screen = usersctl.on_terminal(*command.split(), "--help", columns=columns)
        assert names <= set(screen.text.split())
        assert max(map(len, screen.lines)) <= columns
