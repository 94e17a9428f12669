"""The documentation tells the truth: commands, options, calls, keys, links and examples are those of the code."""

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest
from support.commands import PASSWORD, USERSCTL, Command, by_hand
from support.daemons import free_port, serving
from support.documentation import (
    ROOT,
    at_a_terminal,
    blocks,
    headings,
    page,
    pages,
    rows,
    same,
    section,
    steps,
    tree_of_commands,
    without_code,
)
from support.receivers import table
from support.web import Client

from usersctl import errors
from usersctl.cli.exit_codes import code_of
from usersctl.cli.snippet import Snippet
from usersctl.cli.tree import DEFAULTS
from usersctl.config import settings, sources
from usersctl.mail.writer import PLACEHOLDERS, TEMPLATES
from usersctl.scopes import Scope
from usersctl.secrets import new_api_token, new_token
from usersctl.transfer.checks import IMPORTED
from usersd.routes import FOR_DEVELOPMENT, TABLE
from usersd.routing import CALLBACK, Access

README = page("README.md")
PAGES = pages()
MANUAL = [name for name in PAGES if name != "CHANGELOG.md"]
EVERYTHING = "\n".join(page(name) for name in MANUAL)
APPLY = page("docs/operating/apply.md")  # its TOML is a file of accounts
DAEMON = ROOT / "daemon"

# They work on a fresh machine with nothing but Python 3.11.
TRY_IT = "python3 -m venv .venv && .venv/bin/pip install -q -e . && .venv/bin/usersctl serve --dev"
TEST_IT = "python3 -m venv .venv && .venv/bin/pip install -q -e '.[test]' && .venv/bin/python -m pytest -q"

# For git in a script: no configuration of this machine, an author, and the command in its hooks.
GIT = {
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_AUTHOR_NAME": "Ada",
    "GIT_AUTHOR_EMAIL": "ada@example.com",
    "GIT_COMMITTER_NAME": "Ada",
    "GIT_COMMITTER_EMAIL": "ada@example.com",
    "PATH": f"{Path(USERSCTL).parent}:/usr/bin:/bin",
}

# The recipes for these identity providers need their real addresses.
PROVIDERS = {"accounts.google.com", "github.com", "gitlab.com", "login.microsoftonline.com"}


# --- the two commands ---


def test_the_readme_has_the_two_commands_once_each() -> None:
    lines = [line.strip() for line in README.splitlines()]
    assert lines.count(TRY_IT) == 1
    assert lines.count(TEST_IT) == 1


# Of refusals that only a request can meet.
CODES_OF_THE_DAEMON = {
    "unauthenticated",
    "second_factor",
    "invalid_code",
    "invalid_passkey",
    "codes_closed",
    "too_many",
    "locked_down",
    "sign_in_refused",
}


def test_the_page_of_the_command_has_the_codes_of_errors_with_their_exit_codes() -> None:
    sentence = section("docs/command.md", "Read the exit code").partition("names the kind of the error: ")[2]
    stated = {
        code: int(number)
        for codes, number in re.findall(r"((?:`\w+`(?:,\s)?)+) \((\d+)\)", sentence)
        for code in re.findall(r"\w+", codes)
    }
    classes = [kind for kind in vars(errors).values() if isinstance(kind, type) and "code" in vars(kind)]
    by_class = {
        kind.code: int(code_of(kind.__new__(kind)))
        for kind in classes
        if kind is not errors.UsersError and kind.code not in CODES_OF_THE_DAEMON
    }
    assert by_class.items() <= stated.items()
    others = {name for name in stated if name not in by_class}
    assert others == {"bug", "usage", "io", "undeliverable", "not_ready", "interrupted"}


def test_the_page_of_the_command_names_each_command_that_can_fail_partly() -> None:
    (stated,) = re.findall(
        r"^- `7` .*?(?=^- )", section("docs/command.md", "Read the exit code"), re.DOTALL | re.MULTILINE
    )
    (*_, commands) = section("docs/reference/commands.md", "Commands").partition("## Accounts")
    can_fail = {
        name
        for name, text in re.findall(
            r"^### usersctl (.+?)\n(.*?)(?=^##|\Z)", commands, re.DOTALL | re.MULTILINE
        )
        if re.search(r"exit code (is (then )?)?7\b", text, re.IGNORECASE)
    }
    assert can_fail == set(re.findall(r"`([a-z -]+)`", stated))


# --- the command ---


def test_every_option_in_the_text_exists() -> None:
    known = {name for options in tree_of_commands().values() for name in options}
    # Scripts also have options of other programs, such as useradd.
    prose = re.sub(r"^```(?!console).*?^```$|^    .*$", "", EVERYTHING, flags=re.MULTILINE | re.DOTALL)
    for line in prose.splitlines():
        for code in [line] if line.startswith("$ ") else re.findall(r"`([^`]+)`", line):
            if "usersctl" in code or code.startswith("--"):
                assert set(re.findall(r"(?<![\w-])--[a-z-]+", code)) <= known, code


def test_every_command_in_the_text_exists() -> None:
    known = tree_of_commands()
    groups = {words.split()[0] for words in known if " " in words}
    for first, second in re.findall(r"usersctl ([a-z][a-z-]+)(?: ([a-z][a-z-]+))?", EVERYTHING):
        if first in ("is", "as", "in"):
            continue
        if first in DEFAULTS and f"{first} {second}" not in known:
            continue  # an argument of the default
        assert (f"{first} {second}" if second and first in groups else first) in known, (first, second)


# --- the examples: run on a terminal, and compared without values that differ from run to run ---


@pytest.mark.slow
@pytest.mark.parametrize("name", ["README.md", "docs/tour.md"])
def test_the_tour_shows_what_the_commands_print(tmp_path: Path, name: str) -> None:
    for line, shown in steps(page(name)):
        assert same(at_a_terminal(tmp_path, line)) == same(shown), line


def import_steps() -> list[tuple[str, str]]:
    return [*steps(section("docs/import.md", "Import")), *steps(section("docs/import.md", "Export"))]


def test_an_import_shows_what_the_commands_print(usersctl: Command) -> None:
    usersctl.add("ada", "grace")
    for line, shown in import_steps():
        assert same(at_a_terminal(usersctl.folder, line, database=usersctl.database)) == same(shown), line


def test_the_tour_and_the_import_have_steps_to_compare() -> None:
    assert len(list(steps(page("docs/tour.md")))) > 15
    assert len(list(import_steps())) > 3


@pytest.mark.slow
@pytest.mark.sqlite  # the page names the file
def test_a_backup_shows_what_the_commands_print(usersctl: Command) -> None:
    usersctl.add("ada", "grace")
    examples = list(steps(page("docs/operating/backup.md")))
    assert len(examples) == 4
    folder = str(usersctl.folder)
    for example in examples:
        line, shown = (re.sub("/var/(backups|lib/users)", folder, text) for text in example)
        assert same(at_a_terminal(usersctl.folder, line, database=usersctl.database)) == same(shown), line


def test_a_lockdown_shows_what_the_commands_print(usersctl: Command) -> None:
    usersctl.add("ada", role="admin")
    with usersctl.service() as service:
        for _ in range(3):
            service.sessions.login("ada@example.com", PASSWORD)
    examples = list(steps(section("docs/operating/lockdown-and-audit.md", "Lockdown")))
    assert len(examples) == 3
    for line, shown in examples:
        assert same(at_a_terminal(usersctl.folder, line, database=usersctl.database)) == same(shown), line


def test_a_broken_audit_trail_shows_what_the_commands_print(usersctl: Command) -> None:
    usersctl.add("ada", "grace", "alan", "bob", "carol")
    examples = list(steps(section("docs/operating/lockdown-and-audit.md", "The audit trail")))
    assert len(examples) == 3
    for line, shown in examples:
        if line.startswith("sqlite3 "):
            by_hand(usersctl.database, *re.findall('"(.*)"', line))
        else:
            assert same(at_a_terminal(usersctl.folder, line, database=usersctl.database)) == same(shown), line


def test_a_health_check_shows_what_the_commands_print(usersctl: Command) -> None:
    text = section("docs/operating/observe.md", "Health and readiness")
    unused = free_port()
    with serving(usersctl) as daemon:
        text = text.replace("$ usersctl healthcheck\n", "$ usersctl healthcheck http://127.0.0.1:8080\n")
        text = text.replace(":8080", f":{daemon.port}").replace(":8090", f":{unused}")
        (request, response), *examples = steps(text)
        assert request == f"curl -s http://127.0.0.1:{daemon.port}/ready"
        assert daemon.client().get("/ready").json == json.loads(response)
        assert len(examples) == 2
        for line, shown in examples:
            assert same(at_a_terminal(usersctl.folder, line, database=usersctl.database)) == same(shown), line


def test_every_metric_is_documented_and_the_example_shows_what_is_served(usersctl: Command) -> None:
    text = section("docs/operating/observe.md", "Metrics for Prometheus")
    port = free_port()
    usersctl.configure(f"passwordHashing.rounds = 10\nmetrics.port = {port}\n{table(free_port())}")
    with serving(usersctl):
        served = Client(port).get("/metrics").body.decode()
    served_names = set(re.findall(r"^# TYPE (\w+)", served, re.MULTILINE))
    documented = {name for cells in rows(text) for name in re.findall(r"`([\w*]+)`", cells[0])}
    # The process metrics depend on the system, the last cleanup on one that was.
    served_names = {"process_*" if name.startswith("process_") else name for name in served_names}
    assert served_names == {name for name in documented if "cleanup" not in name}
    ((_, example),) = steps(text)
    shown = {line.rpartition(" ")[0] for line in example.splitlines()}
    assert shown <= {line.rpartition(" ")[0] for line in served.splitlines()}


def test_every_event_of_the_log_that_no_request_causes_is_documented() -> None:
    sources = "".join(path.read_text("utf-8") for path in (ROOT / "daemon" / "usersd").rglob("*.py"))
    logged = set(re.findall(r'log[._]event\((?:request, )?\s*"([a-z-]+)"', sources))
    assert {"listening", "leader", "oauth-refused"} <= logged
    section = (
        (ROOT / "docs/operating/observe.md")
        .read_text("utf-8")
        .partition("## The log\n")[2]
        .partition("\n## ")[0]
    )
    documented = set(re.findall(r"`([a-z-]+)`", "".join(re.findall(r"^\|(.*?)\|", section, re.MULTILINE))))
    assert documented == logged | {"error", "email", "webhook"}


def test_a_file_of_accounts_is_applied_as_the_page_shows(usersctl: Command) -> None:
    prepare_file_of_accounts(usersctl)
    examples = list(steps(APPLY))
    assert len(examples) == 9
    for line, shown in examples:
        assert same(at_a_terminal(usersctl.folder, line, database=usersctl.database)) == same(shown), line


def prepare_file_of_accounts(usersctl: Command) -> str:
    """Writes the file of the page beside an empty database, and returns its text."""
    (text,) = blocks(APPLY, "toml")
    (usersctl.folder / "people.toml").write_text(text, "utf-8")
    usersctl.ok("db", "init")
    return text


def test_a_file_of_accounts_is_applied_by_the_line_for_cron(usersctl: Command) -> None:
    prepare_file_of_accounts(usersctl)
    (line,) = blocks(section("docs/operating/apply.md", "By cron"), "text")
    script = line.partition("  usersd  ")[2].replace("/etc/users", str(usersctl.folder))
    assert script.startswith("/opt/usersctl/bin/usersctl --config ")
    script = script.replace("/opt/usersctl/bin/usersctl", USERSCTL)
    for _ in range(2):
        done = usersctl.shell(script)
        assert (done.code, done.stdout, done.stderr) == (0, "", "")
    assert usersctl.emails() == ["ada@example.com", "bob@example.com"]


@pytest.mark.slow
def test_a_file_of_accounts_in_git_is_applied_by_the_hooks(usersctl: Command) -> None:
    text = prepare_file_of_accounts(usersctl)
    hooks = "".join(
        f"cat > people.git/hooks/{hook.split()[2].removeprefix('hooks/')} <<'END'\n{hook}END\n"
        for hook in blocks(section("docs/operating/apply.md", "From git"), "sh")
    )
    assert hooks.count("\nEND\n") == 2
    made = usersctl.shell(
        f"set -e\ngit init -q -b main --bare people.git\n{hooks}chmod +x people.git/hooks/*\ngit init -q -b main work\n",
        **GIT,
    )
    assert made.code == 0, made
    push = "cd work; cp ../people.toml .; git add people.toml; git commit -qm 'Accounts'; git push -q ../people.git main"
    assert usersctl.shell(push, **GIT).code == 0
    assert usersctl.emails() == ["ada@example.com", "bob@example.com"]
    (usersctl.folder / "people.toml").write_text(text.replace("admin", "boss"), "utf-8")
    refused = usersctl.shell(push, **GIT)
    assert refused.code != 0
    assert "line 9: role" in refused.stderr
    (usersctl.folder / "people.toml").write_text(text.replace("bob", "grace"), "utf-8")
    done = usersctl.shell(push, **GIT)
    assert done.code == 0, done
    active = {user["email"]: user["active"] for user in usersctl.ok("list", "--json").json}
    assert active == {"ada@example.com": True, "bob@example.com": False, "grace@example.com": False}
    assert "grace@example.com" in done.stderr


# --- the HTTP interface ---


def test_every_kind_of_caller_is_explained() -> None:
    explained = tuple(re.findall(r"^- \*\*(.+?)\*\*:", section("docs/http.md", "Who may call"), re.MULTILINE))
    assert [access.value for access in Access if not access.value.startswith(explained)] == []


def test_every_page_is_documented_with_its_callers() -> None:
    callers = {
        cells[0].strip("`"): cells[1] for cells in rows(section("docs/integrating/pages.md", "The pages"))
    }
    not_pages = ("/api/", "/_tasks/", "/health", "/ready")
    assert callers == {
        "GET " + route.path.replace("<", "{").replace(">", "}"): route.access.value.partition("; a session")[
            0
        ]
        for route in TABLE + FOR_DEVELOPMENT
        if not route.path.startswith(not_pages) and route.path != CALLBACK
    }


# --- the configuration ---


def test_the_text_names_every_environment_variable_and_no_other() -> None:
    named = {variable for key in settings.ALL_KEYS.values() for variable in key.variables}
    named |= {"USERS_CONFIG", "USERS_ADMIN_EMAIL", "USERS_ADMIN_PASSWORD_FILE"}
    assert set(re.findall(r"\bUSERS_[A-Z_]+", EVERYTHING)) == named


def test_every_configuration_in_the_text_loads(tmp_path: Path) -> None:
    examples = [example for example in blocks(EVERYTHING, "toml") if example not in blocks(APPLY, "toml")]
    assert len(examples) >= 2
    env = {"STATE_DIRECTORY": str(tmp_path)}
    for number, example in enumerate(examples):
        file = tmp_path / f"{number}.toml"
        file.write_text(example, "utf-8")
        more = {"USERS_MAILER_PASS": "x"} if "mailer.auth" in example else {}
        sources.load(config=file, env=env | more)


# --- imports and emails ---


def test_every_column_of_an_import_is_documented_and_no_other() -> None:
    columns = [
        name
        for cells in rows(section("docs/import.md", "Columns"))
        for name in re.findall(r"`(\w+)`", cells[0])
    ]
    assert sorted(columns) == sorted(IMPORTED)


def test_every_email_and_every_word_of_its_template_is_documented_and_no_other() -> None:
    first = {
        name
        for cells in rows(page("docs/integrating/emails.md"))
        for name in re.findall(r"`([^`]+)`", cells[0])
    }
    words = {f"${word}" for word in PLACEHOLDERS | {"subject", "content"}}
    assert first == words | {file.stem for file in TEMPLATES.glob("*.txt")}


# --- links and headings ---


def anchors(name: str) -> set[str]:
    titles = [line.lstrip("# ").replace("`", "") for line in headings(page(name))]
    return {re.sub(r"[^\w -]", "", title).lower().replace(" ", "-") for title in titles}


@pytest.mark.parametrize("name", PAGES)
def test_every_link_leads_to_a_file_and_a_heading_that_exist(name: str) -> None:
    targets = re.findall(r"\]\(([^)\s]+)\)|src=\"([^\"]+)\"", without_code(page(name)))
    for target in [link or source for link, source in targets]:
        if target.startswith("https://"):
            continue
        path, _, anchor = target.partition("#")
        file = (ROOT / name).parent / path if path else ROOT / name
        assert file.is_dir() if path.endswith("/") else file.is_file(), target
        if anchor:
            assert anchor in anchors(file.resolve().relative_to(ROOT.resolve()).as_posix()), target


def test_the_documentation_has_links_and_every_page_is_linked() -> None:
    targets = {
        (name, path.partition("#")[0])
        for name in PAGES
        for path in re.findall(r"\]\(([^)\s]+)\)", without_code(page(name)))
    }
    linked = {((ROOT / name).parent / path).resolve() for name, path in targets if path}
    assert len(targets) > 10
    assert [name for name in PAGES if name != "README.md" and (ROOT / name).resolve() not in linked] == []


@pytest.mark.parametrize("name", PAGES)
def test_no_heading_stands_twice_on_a_page(name: str) -> None:
    titles = headings(page(name))
    assert len(titles) == len(set(titles))
    assert [title for title in titles if title.startswith("# ")] == titles[:1]


@pytest.mark.parametrize("name", MANUAL)
def test_every_page_says_email(name: str) -> None:
    prose = re.sub(r"`[^`]*`", "", without_code(page(name)))
    other_words = re.findall(r"\b(?:\w+ )?(?:letters|e-mails?)\b", prose, re.IGNORECASE)
    assert set(other_words) <= {"capital letters", "small letters"}


def test_the_readme_is_short() -> None:
    assert len(README.splitlines()) <= 200


def test_the_readme_quotes_figures_and_promises_from_their_pages() -> None:
    quoted = [line for line in section("README.md", "How fast, how safe").splitlines() if line[:2] == "| "]
    full = page("docs/speed.md") + page("docs/security.md")
    assert len(quoted) == 3 + 5 + 2
    assert [line for line in quoted if f"\n{line.removesuffix(' |')} |" not in full] == []


@pytest.mark.parametrize(
    "name", [*MANUAL, "daemon/usersd.service", "daemon/users.example.toml", "daemon/users.cron"]
)
def test_no_page_names_the_machine_on_which_it_was_written(name: str) -> None:
    text = (ROOT / name).read_text("utf-8")
    assert re.findall(r"/(?:root|work|tmp|home/\w+|Users/\w+)/\S*", text) == []
    hosts = (
        set(re.findall(r"https?://([\w.-]+)", text))
        - {"127.0.0.1", "localhost", "HOST", "owasp.org", "www.standardwebhooks.com"}
        - PROVIDERS
    )
    assert {host for host in hosts if host != "example.com" and not host.endswith(".example.com")} == set()
    text = text.replace("\\n", "\n")
    assert set(re.findall(r"[\w.+-]+@[\w-]+\.[\w.]+", text)) <= {
        f"{name}@example.com" for name in ("ada", "alan", "grace", "bob", "nobody", "accounts", "you", "ci")
    }


# --- what is promised ---


def test_every_test_that_the_page_on_security_names_exists() -> None:
    named = re.findall(r"`(tests/[^`]*)`", page("docs/security.md"))
    assert len(named) > 25
    for test in named:
        file, _, name = test.partition("::")
        assert (ROOT / file).is_file(), test
        assert not name or f"\ndef {name}(" in page(file), test


def test_every_attack_has_an_answer_and_a_test() -> None:
    lines = section("docs/security.md", "Attacks and answers").splitlines()
    head = "| attack | what happens | test |"
    attacks = [line.strip("| ").split(" | ") for line in lines if line.startswith("| ") and line != head]
    assert len(attacks) > 150
    for attack, answer, tests in attacks:
        assert attack.endswith("."), attack
        assert answer.endswith("."), attack
        assert "`tests/" in tests, attack


# The number of requirements of levels 1 and 2 in each section of the standard, which are its first ones; about second
# factors, all.
REQUIREMENTS = {
    "3.5": 5, "6.1": 3, "6.2": 12, "6.3": 4, "6.4": 6, "6.5": 8, "6.6": 4, "6.7": 2, "6.8": 4, "7.1": 3, "7.2": 4, "7.3": 2,
    "7.4": 5, "7.5": 2, "7.6": 2, "10.1": 2, "10.2": 2, "10.3": 4, "10.4": 11, "10.5": 5, "10.6": 2, "10.7": 3,
}  # fmt: skip


def test_every_requirement_of_the_standard_is_met_by_a_named_test_or_has_a_reason() -> None:
    lines = section("docs/security.md", "OWASP ASVS 5.0, level 2").splitlines()
    answers = [line.strip("| ").split(" | ") for line in lines if re.match(r"\| \d", line)]
    expected = [f"{part}.{number}" for part, last in REQUIREMENTS.items() for number in range(1, last + 1)]
    assert [requirement.split()[0] for requirement, _, _ in answers] == expected
    for requirement, status, reason in answers:
        assert status in ("met", "not met", "not applicable"), requirement
        assert re.search(r"`tests/\S+\.py::test_\w+`", reason) or status != "met", requirement
        assert reason, requirement


def test_every_promise_has_a_number_and_a_test() -> None:
    text = section("docs/security.md", "What is promised")
    promises = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| ")]
    assert len(promises) > 20
    for promise, number, tests in promises:
        if promise == "promise":
            continue
        assert promise.endswith("."), promise
        assert number
        assert "`tests/" in tests, promise
    faults = {f"tests/faults/{file.name}" for file in (ROOT / "tests" / "faults").glob("test_*.py")}
    assert {file for file in faults if file not in text} == set()


def test_the_page_on_tokens_has_their_pattern_and_all_scopes() -> None:
    text = page("docs/integrating/tokens.md")
    (pattern,) = (block.strip() for block in blocks(text, "text"))
    tokens = [new_api_token() for _ in range(100)]
    assert all(re.fullmatch(pattern, token) for token in tokens)
    assert re.fullmatch(pattern, new_token()) is None
    (code,) = blocks(text, "python")
    example: dict[str, Any] = {}
    exec(code, example)  # noqa: S102 - our own example
    assert all(example["is_token"](token) for token in tokens)
    assert not example["is_token"]("usr_" + "A" * 49)
    scopes = [cells[0].strip("`") for cells in rows(section("docs/integrating/tokens.md", "Scopes"))]
    assert scopes == list(Scope)


# --- the files beside the daemon ---


def test_a_snippet_is_printed_as_the_page_shows(usersctl: Command) -> None:
    text = section("docs/operating/install.md", "Print the files for your installation")
    names = {name for cells in rows(text) for name in re.findall(r"`([a-z0-9]+)`", cells[0])}
    assert names == set(Snippet)
    line, shown = re.findall(r"^\$ (usersctl snippet .*)\n(.*)$", text, re.MULTILINE)[0]
    assert at_a_terminal(usersctl.folder, line, database=usersctl.folder / "users.db") == shown
    cron = (DAEMON / "users.cron").read_text("utf-8").splitlines()[-1]
    assert cron in section("docs/operating/install.md", "cron")


def test_a_backup_is_made_and_checked_as_the_page_says(usersctl: Command) -> None:
    usersctl.add("ada", "grace")
    (script,) = blocks(section("docs/operating/backup.md", "Every night"), "sh")
    done = usersctl.shell(script.replace("/var/backups", str(usersctl.folder)))
    assert (done.code, done.stdout, done.stderr) == (0, "", "")
    (copy,) = usersctl.folder.glob("users/users-*.db")
    assert len(usersctl.ok("list", "--db", copy, "--json").json) == 2
