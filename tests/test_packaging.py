"""What is installed: one version, one licence, the database's schema, the commands; and a checkout of few names."""

import re
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import pytest

import usersctl

ROOT = Path(__file__).parent.parent
TOP_LEVEL = {
    "pyproject.toml",
    "usersctl",
    "daemon",
    "schema.sql",
    "tests",
    "README.md",
    "LICENSE",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "Makefile",
    "docs",
}
DISTRIBUTION = metadata.distribution("usersctl")
COMMANDS = {script.name: script for script in DISTRIBUTION.entry_points.select(group="console_scripts")}


def elsewhere(folder: Path, *words: str) -> str:
    """What an installed Python says from another folder, where nothing of the checkout is found by chance."""
    command = [sys.executable, "-W", "error", *words]
    return subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=60, check=True
    ).stdout.strip()


def test_the_top_level_holds_no_other_files() -> None:
    made = {line.strip("/") for line in (ROOT / ".gitignore").read_text("utf-8").split()}
    files = {path.name for path in ROOT.iterdir() if not path.name.startswith(".")}
    assert files - made - {"PKG-INFO"} == TOP_LEVEL  # which a source distribution adds


def test_the_source_distribution_holds_the_whole_checkout() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    included = {
        name.removeprefix("/") for name in project["tool"]["hatch"]["build"]["targets"]["sdist"]["include"]
    }
    assert TOP_LEVEL - {"pyproject.toml"} <= included  # hatchling always adds pyproject.toml
    assert {name for name in included if not (ROOT / name).exists()} == set()


def test_make_test_runs_the_command_of_the_readme() -> None:
    (command,) = (
        line.strip() for line in (ROOT / "README.md").read_text("utf-8").splitlines() if "-m pytest" in line
    )
    assert f"\ntest:\n\t{command}\n" in (ROOT / "Makefile").read_text("utf-8")


def test_the_version_is_the_same_everywhere() -> None:
    assert re.fullmatch(r"\d+\.\d+\.\d+", usersctl.__version__)
    assert DISTRIBUTION.version == usersctl.__version__
    assert f"## [{usersctl.__version__}]" in (ROOT / "CHANGELOG.md").read_text("utf-8")


def test_the_licence_is_installed() -> None:
    assert DISTRIBUTION.metadata["License-Expression"] == "MIT"
    text = (ROOT / "LICENSE").read_text("utf-8")
    assert text.startswith("MIT License")
    assert "licenses/LICENSE" in {"/".join(file.parts[-2:]) for file in DISTRIBUTION.files or ()}


def test_the_required_python_and_libraries_are_declared() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    assert DISTRIBUTION.metadata["Requires-Python"] == project["requires-python"] == ">=3.11"
    assert sys.version_info >= (3, 11)
    needed = {re.split(r"[<>=!~ ;\[]", line)[0] for line in project["dependencies"]}
    card = {
        "typer",
        "rich",
        "bottle",
        "waitress",
        "sqlite-utils",
        "bcrypt",
        "oauthlib",
        "requests",
        "crontab",
    }
    assert card <= needed
    for name in needed:
        assert metadata.version(name)
    assert "typer>=0.28,<0.29" in project["dependencies"]


@pytest.mark.parametrize("name", ["usersctl", "usersd"])
def test_a_command_is_installed_and_can_be_loaded(name: str) -> None:
    assert callable(COMMANDS[name].load())
    script = Path(sys.executable).with_name(name)
    assert script.is_file()


def test_the_schema_is_found_from_another_folder(tmp_path: Path) -> None:
    code = "from usersctl.store.upgrade import schema; print(schema())"
    assert elsewhere(tmp_path, "-c", code) == (ROOT / "schema.sql").read_text("utf-8").strip()


def test_the_command_works_from_another_folder(tmp_path: Path) -> None:
    assert elsewhere(tmp_path, "-m", "usersctl", "--version") == f"usersctl {usersctl.__version__}"


def test_the_daemon_is_found_from_another_folder(tmp_path: Path) -> None:
    assert elsewhere(tmp_path, "-c", "import usersd; print(usersd.__doc__ is not None)") == "True"


def test_both_packages_are_marked_as_typed() -> None:
    assert (ROOT / "usersctl" / "py.typed").is_file()
    assert (ROOT / "daemon" / "usersd" / "py.typed").is_file()
