"""The generated files are those of the code, and hold every command, option, key, variable, call and exit code."""

import json
import re
import subprocess
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from shutil import which
from typing import Any

import pytest
from support.documentation import ROOT, blocks, page, rows, section, tree_of_commands

from usersctl.cli.exit_codes import ExitCode
from usersctl.config import settings, sources
from usersctl.errors import ConfigError
from usersd.routes import FOR_DEVELOPMENT, TABLE
from usersd.routing import ANY, Access

CONFIGURATION = "docs/reference/configuration.md"
COMMANDS = "docs/reference/commands.md"
HTTP = "docs/reference/http.md"

_spec = spec_from_file_location("generate", ROOT / "docs" / "generate.py")
assert _spec is not None
assert _spec.loader is not None
generate = module_from_spec(_spec)
_spec.loader.exec_module(generate)


# --- the generator ---


def test_the_generated_files_are_those_of_the_code() -> None:
    assert list(generate.outdated()) == [], "run make docs"


def test_every_file_of_the_reference_is_generated() -> None:
    names = {file.relative_to(ROOT).as_posix() for file in (ROOT / "docs" / "reference").iterdir()}
    assert names <= set(generate.generated())


def test_check_names_the_files_that_differ_and_a_run_without_it_writes_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "daemon").mkdir()
    monkeypatch.setattr(generate, "ROOT", tmp_path)
    monkeypatch.setattr("sys.argv", ["generate.py", "--check"])
    assert generate.main() == 1
    assert "docs/usersctl.1" in capsys.readouterr().out
    assert list((tmp_path / "docs").iterdir()) == []
    monkeypatch.setattr("sys.argv", ["generate.py"])
    assert generate.main() == 0
    monkeypatch.setattr("sys.argv", ["generate.py", "--check"])
    assert generate.main() == 0


# --- commands ---


def synopses(text: str) -> dict[str, set[str]]:
    """The long options of each command, by its name."""
    options = {}
    for line in text.splitlines():
        words = re.match(r"usersctl ((?:[a-z-]+(?: |$))*)", line)
        assert words is not None
        name = words[1].strip()
        options[name] = set(re.findall(r"--[a-z-]+", line))
    return options


def test_the_reference_holds_every_command_and_option_and_no_other() -> None:
    everywhere = {name for cells in rows(section(COMMANDS, "Global options")) for name in cells[0].split()}
    options = synopses("".join(blocks(page(COMMANDS), "")))
    options[""] = {name.strip("`,") for name in everywhere if name.startswith(("`--", "--"))}
    assert options == tree_of_commands()


def test_each_command_of_the_reference_has_an_example() -> None:
    assert (
        len(re.findall(r"^Example: `.*\busersctl ", page(COMMANDS), re.MULTILINE))
        == page(COMMANDS).count("\n### usersctl ")
        > 30
    )


def test_the_reference_and_the_man_page_hold_every_exit_code() -> None:
    codes = [str(int(code)) for code in ExitCode]
    assert [cells[0].strip("`") for cells in rows(section(COMMANDS, "Exit codes"))] == codes
    status = page("docs/usersctl.1").partition(".SH EXIT STATUS\n")[2].partition("\n.SH ")[0]
    assert re.findall(r"^\.B (\d+)$", status, re.MULTILINE) == codes


def test_the_man_page_holds_every_command_and_key() -> None:
    text = page("docs/usersctl.1").replace("\\-", "-")
    synopsis = "".join(
        line.removeprefix(".SS ") for line in text.splitlines(keepends=True) if line.startswith(".SS ")
    )
    assert set(synopses(synopsis)) == set(tree_of_commands()) - {""}
    keys = text.partition(".SH CONFIGURATION\n")[2]
    assert re.findall(r"^\.B (\S+)$", keys, re.MULTILINE) == list(settings.ALL_KEYS)
    assert text.startswith('.\\" ')
    assert [line for line in text.splitlines() if line.startswith("'")] == []


@pytest.mark.skipif(which("groff") is None, reason="groff is not installed")
def test_groff_renders_the_man_page_without_a_warning() -> None:
    done = subprocess.run(
        ["groff", "-man", "-ww", "-Tutf8", ROOT / "docs" / "usersctl.1"],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stderr == ""
    assert "NAME" in re.sub(r".\x08", "", done.stdout)


# --- the HTTP interface ---


def callers(text: str) -> dict[tuple[str, str], str]:
    calls: dict[tuple[str, str], str] = {}
    for cells in rows(text):
        call = re.fullmatch(r"`(GET|POST|PUT|PATCH|DELETE) (/\S*)`", cells[0])
        if call:
            assert (call[1], call[2]) not in calls, call[0]
            calls[call[1], call[2]] = cells[1]
    return calls


def test_the_reference_holds_every_call_with_its_callers_and_no_other() -> None:
    expected = {}
    for route in TABLE:
        words = route.access.value
        if route.own == ANY and "<id>" not in route.path:
            words += "; not for API tokens"
        elif route.scope is not None:
            words += f"; an API token with scopes needs `{route.scope}`"
        elif route.access.needs_session:
            words += "; not for API tokens with scopes"
        expected[route.method, re.sub(r"<(\w+)>", r"{\1}", route.path)] = words
    assert callers(page(HTTP)) == expected


def test_the_pages_of_development_are_documented_with_their_callers() -> None:
    calls = callers(page("docs/integrating/pages.md"))
    for route in FOR_DEVELOPMENT:
        assert route.access is Access.THIS_MACHINE
        assert calls[route.method, route.path] == Access.THIS_MACHINE.value


# --- the configuration ---


@pytest.fixture
def defaults(tmp_path: Path) -> dict[str, Any]:
    loaded = sources.load(env={"HOME": str(tmp_path), "STATE_DIRECTORY": str(tmp_path)})
    return {key: value for key, value, _ in sources.shown(loaded)}


def documented_keys() -> dict[str, list[str]]:
    keys: dict[str, list[str]] = {}
    for name, *cells in rows(page(CONFIGURATION).partition("## Environment")[0]):
        assert len(cells) == 3, cells
        assert name not in keys, name
        keys[name.strip("`")] = cells
    return keys


def test_the_reference_holds_every_key_with_its_default_and_no_other(defaults: dict[str, Any]) -> None:
    keys = documented_keys()
    assert set(keys) == set(settings.ALL_KEYS)
    for key, (_, default, meaning) in keys.items():
        assert meaning.endswith("."), key
        if key in ("baseUrl", "database"):  # they depend on other keys, as their meaning says
            assert "Without it: " in meaning
            continue
        value = defaults.get(key, settings.ALL_KEYS[key].default)
        assert default == ("none" if value is None else f"`{json.dumps(value)}`"), key


def test_a_range_of_the_reference_is_the_one_that_is_checked(tmp_path: Path) -> None:
    ranges = {key: re.search(r"(\d+) to (\d+)", kind) for key, (kind, _, _) in documented_keys().items()}
    assert sum(range_ is not None for range_ in ranges.values()) > 10
    for key, limits in ranges.items():
        if limits is None:
            continue
        low, high = int(limits[1]), int(limits[2])
        assert loads(tmp_path, key, low), key
        assert loads(tmp_path, key, high), key
        assert not loads(tmp_path, key, low - 1), key
        assert not loads(tmp_path, key, high + 1), key


def loads(folder: Path, key: str, value: Any) -> bool:
    file = folder / "users.toml"
    file.write_text(f"{key} = {json.dumps(value)}\n", "utf-8")
    try:
        sources.load(config=file, env={"STATE_DIRECTORY": str(folder)})
    except ConfigError:
        return False
    return True


def test_the_reference_holds_every_environment_variable_and_no_other() -> None:
    variables = {variable for key in settings.ALL_KEYS.values() for variable in key.variables}
    variables |= {"USERS_CONFIG", "USERS_ADMIN_EMAIL", "USERS_ADMIN_PASSWORD_FILE"}
    assert set(re.findall(r"\bUSERS_[A-Z_]+", section(CONFIGURATION, "Environment"))) == variables


def test_the_example_of_a_configuration_is_all_comments() -> None:
    text = page("daemon/users.example.toml")
    assert [line for line in text.splitlines() if line and not line.startswith("#")] == []


def test_the_example_of_a_configuration_has_every_key_with_its_default(
    tmp_path: Path, defaults: dict[str, Any]
) -> None:
    lines = page("daemon/users.example.toml").splitlines()
    file = tmp_path / "users.toml"
    text = "\n".join(line.removeprefix("# ") for line in lines)
    file.write_text(text.replace("auth.providers.NAME", "auth.providers.other"), "utf-8")
    loaded = sources.load(config=file, env={"STATE_DIRECTORY": str(tmp_path)})
    written = {key for key, origin in loaded.origins.items() if origin.source == str(file)}
    assert written == {key.replace(".NAME.", ".other.") for key in settings.ALL_KEYS}
    for key, value, _ in sources.shown(loaded):
        if defaults.get(key) is not None and key != "database":
            assert value == defaults[key], key
