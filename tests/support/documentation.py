"""Reads the documentation: its pages, sections, tables and the examples that tests run."""

import fcntl
import os
import pty
import re
import shlex
import struct
import subprocess
import termios
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from support.commands import PASSWORD, USERSCTL, Command, Screen, environment, take_terminal, watch_terminal

from usersctl.cli.options import Options
from usersctl.cli.tree import command_tree
from usersctl.store.conninfo import Database

ROOT = Path(__file__).parents[2]

_CODE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
# A progress bar that was erased after it finished.
_ERASED = re.compile(r"[^\n]*\n(?:\x1b\[\?25h)?\r\x1b\[1A\x1b\[2K|[^\n]*\x1b\[2K")
_CHANGING = (
    (r"[0-9a-f]{64}", "HASH"),
    (r"\d{8}T\d{6}\.\d{6}Z", "TIME"),
    (r"\d+ bytes, [\d.]+ s", "SIZE"),
    (r"\d+ ms\b", "DURATION"),
    (r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d\.\d{3}Z)?", "TIME"),
    (r"\d{4}-\d\d-\d\d", "TIME"),
    (r"\b\d\d:\d\d\b", "TIME"),
    (r"usr_[A-Za-z0-9_-]{49}|[A-Za-z0-9_-]{43}", "TOKEN"),
    (r"^[A-Za-z2-9_.+-]{20}$", "PASSWORD"),
)


def page(name: str) -> str:
    return (ROOT / name).read_text("utf-8")


def pages() -> list[str]:
    """All pages, by their paths from the root of the checkout."""
    written = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "tests").rglob("*.md")]
    return sorted(file.relative_to(ROOT).as_posix() for file in written)


def without_code(text: str) -> str:
    return _CODE.sub("", text)


def headings(text: str) -> list[str]:
    return [line for line in without_code(text).splitlines() if line.startswith("#")]


def section(name: str, title: str) -> str:
    """The text under a heading of a page, with all sections below it."""
    lines: list[str] = []
    level = 0
    in_code = False
    for line in page(name).splitlines():
        in_code ^= line.startswith("```")
        depth = 0 if in_code else len(line) - len(line.lstrip("#"))
        if level and 0 < depth <= level:
            break
        if level:
            lines.append(line)
        elif depth and line[depth:].strip() == title:
            level = depth
    assert level, f"{name} has no section {title}"
    return "\n".join(lines) + "\n"


def rows(text: str) -> Iterator[list[str]]:
    """The rows of the tables in a text, without their heads."""
    for line in text.splitlines():
        if line.startswith("| `"):
            yield [cell.strip() for cell in line.strip("|").split(" | ")]


def tree_of_commands() -> dict[str, set[str]]:
    """The long names of each command's own options, by the words of its name."""
    everywhere = {f"--{name.replace('_', '-')}" for name in Options._fields} | {"--help"}
    options: dict[str, set[str]] = {}

    def walk(command: Any, words: str) -> None:
        if hasattr(command, "commands"):
            for name, subcommand in command.commands.items():
                walk(subcommand, f"{words} {name}".strip())
            if not command.invoke_without_command:
                return
        options[words] = {
            name for option in command.params for name in option.opts if name.startswith("--")
        } - everywhere

    root = command_tree()
    walk(root, "")
    options[""] = {name for option in root.params for name in option.opts} | everywhere
    return options


def blocks(text: str, language: str) -> list[str]:
    """The code blocks of a text that are marked with this language."""
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def steps(text: str) -> Iterator[tuple[str, str]]:
    """Each command that the consoles of a text show, with its output."""
    for block in blocks(text, "console"):
        for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            line, _, output = part.partition("\n")
            yield line, output.rstrip()


def same(text: str) -> str:
    """The text with everything replaced that differs from run to run."""
    for pattern, instead in _CHANGING:
        text = re.sub(pattern, instead, text, flags=re.MULTILINE)
    return text


def at_a_terminal(folder: Path, line: str, *, database: Database | None = None) -> str:
    """Runs a line of shell on a terminal of 100 columns, answers its questions, and returns the screen."""
    typed: list[tuple[str, str]] = []
    if "usersctl create" in line and not re.search("--(generate|password)", line):
        typed = [("Password for ada@example.com: ", f"{PASSWORD}\n"), ("Once more: ", f"{PASSWORD}\n")]
    elif re.search("usersctl (delete|db restore|lockdown on)", line) and "--yes" not in line:
        typed = [("[y/N]: ", "y\n")]
    command = Command(folder)
    command.env = environment() | {
        "HOME": str(folder),
        "SUDO_USER": "ada",  # the actor in the audit trail
        "USERS_CONFIG": str(command.config),
        "USERS_DATABASE": str(database or folder / "users.db"),
    }
    if line.startswith("usersctl ") and not re.search(r"[|<>&;$*~\\`]", line):
        screen = command.on_terminal(*shlex.split(line)[1:], typed=typed)
    else:
        screen = _in_a_shell(command, line, typed)
    lines = screen._replace(raw=_ERASED.sub("", screen.raw)).lines
    return "\n".join(lines).rstrip()


def _in_a_shell(command: Command, line: str, typed: list[tuple[str, str]]) -> Screen:
    master, terminal = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 50, 100, 0, 0))
    try:
        process = subprocess.Popen(
            ["/bin/bash", "-c", line],
            stdin=terminal,
            stdout=terminal,
            stderr=terminal,
            env=command.env | {"PATH": f"{Path(USERSCTL).parent}:/usr/bin:/bin"},
            cwd=command.folder,
            start_new_session=True,
            preexec_fn=take_terminal,  # noqa: PLW1509 - no thread runs here
        )
        os.close(terminal)
        return watch_terminal(process, master, typed)
    finally:
        os.close(master)
