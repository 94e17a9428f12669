"""The figures that the documentation quotes: the tables of docs/speed.md and README.md, from figures.md."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
FIGURES = HERE / "figures.md"
PAGES = (ROOT / "docs" / "speed.md", ROOT / "README.md")

NOT_YET = "not measured yet"
BARE = "waitress and Bottle answering 200 bytes of JSON"
BARE_COMMAND = '`python -c "import argparse, json, sqlite3"`'
RATE = "of its requests a second"


class Row(NamedTuple):
    """One row of the table: the measure, what it is compared with, the promise, and what was measured."""

    measure: str
    beside: str
    promised: str
    measured: str  # with a place for each of the figures
    figures: tuple[str, ...]  # their names in figures.md: measure, figure, and the one below it


ROWS = (
    Row(
        "session check, 10,000 sessions, 1 connection",
        BARE,
        f"≥ 0.90 {RATE}",
        "{:.2f}",
        ("sessions: session check, 10,000 sessions, 1 connection: beside waitress + bottle",),
    ),
    Row(
        "session check, 10,000 sessions, 16 connections",
        BARE,
        f"≥ 1.30 {RATE}",
        "{:.2f}",
        ("sessions: session check, 10,000 sessions, 16 connections: beside waitress + bottle",),
    ),
    Row(
        "session check, `server.processes = 2`, 16 connections",
        "one process of waitress and Bottle",
        f"≥ 2.0 {RATE}",
        "{:.2f}",
        (
            "sessions: session check, server.processes = 2, 16 connections: beside waitress + bottle (one process)",
        ),
    ),
    Row(
        "session check, 10,000 sessions last used two minutes ago; `server.processes = 2`",
        "itself with sessions that were used within the minute",
        f"≥ 0.90 {RATE}",
        "{:.2f}; {:.2f}",
        (
            "stale: 10,000 stale sessions, server.processes = 1: beside fresh ones",
            "stale: 10,000 stale sessions, server.processes = 2: beside fresh ones",
        ),
    ),
    Row(
        "the worst case: 150,000 such sessions, each used once",
        "itself with sessions that were used within the minute",
        "",
        "{:.2f}; {:.2f}",
        (
            "stale: 150,000 stale sessions, server.processes = 1: beside fresh ones",
            "stale: 150,000 stale sessions, server.processes = 2: beside fresh ones",
        ),
    ),
    Row(
        "session check, 16 connections",
        "the minimum of a session check: cookie, SHA-256, one indexed SELECT, JSON",
        "more",
        "{:.1f}",
        ("sessions: minimal session check, 16 connections: our session check beside it",),
    ),
    Row(
        "session check, 16 connections",
        "Django's sessions; Flask with a signed cookie",
        "more than either",
        "{:.1f}; {:.1f}",
        (
            "sessions: Django, 16 connections: our session check beside it",
            "sessions: Flask, signed cookie, 16 connections: our session check beside it",
        ),
    ),
    Row(
        "session check, 1,000,000 users and sessions",
        "itself with 1,000",
        f"≥ 0.95 {RATE}",
        "{:.2f}",
        ("size: session check, 1,000,000 users and sessions, 1 connection: 1,000,000 beside 1,000",),
    ),
    Row(
        "forward authentication, 1 connection; 16",
        "session check with the same headers",
        f"≥ 0.95 {RATE}",
        "{:.2f}; {:.2f}",
        (
            "sessions: forward authentication, 1 connection: beside the session check asked like it",
            "sessions: forward authentication, 16 connections: beside the session check asked like it",
        ),
    ),
    Row(
        "logins, 8 clients, bcrypt of cost 12",
        "bcrypt alone on all cores",
        "≥ 0.95",
        "{:.2f}",
        ("logins: logins, 8 clients: beside bcrypt alone on all cores",),
    ),
    Row(
        "session check while 32 clients log in",
        "itself without logins",
        f"≥ 0.75 {RATE}, 99 of 100 within 20 ms",
        "{:.2f}, {:.0f} ms",
        (
            "logins: session check, 16 connections, while 32 clients log in: beside itself when all is quiet",
            "logins: session check, 16 connections, while 32 clients log in: 99 of 100 within",
        ),
    ),
    Row(
        "list of 1,000,000 users: first page; last page; a page in the middle with `after`",
        "of 1,000",
        "≤ 1.5 times",
        "{:.2f}; {:.2f}; {:.2f}",
        (
            "growth: list, first page, 1,000,000 users: 1,000,000 beside 1,000",
            "growth: list, last page, 1,000,000 users: 1,000,000 beside 1,000",
            "growth: list, page in the middle with `after`, 1,000,000 users: 1,000,000 beside 1,000",
        ),
    ),
    Row(
        "session check on PostgreSQL, everything on one machine, 1 connection; 16",
        "itself with a file",
        f"≥ 0.35 {RATE}",
        "{:.2f}; {:.2f}",
        (
            "postgres: session check on PostgreSQL, 10,000 sessions, 1 connection: beside SQLite",
            "postgres: session check on PostgreSQL, 10,000 sessions, 16 connections: beside SQLite",
        ),
    ),
    Row(
        "two daemons on PostgreSQL, each with 1 connection; 16",
        "one daemon on PostgreSQL",
        f"≥ 1.7 times {RATE.removeprefix('of ')}",
        "{:.2f}; {:.2f}",
        (
            "postgres: two daemons on PostgreSQL, 1 connection each: beside one",
            "postgres: two daemons on PostgreSQL, 16 connections each: beside one",
        ),
    ),
    Row(
        "session check on PostgreSQL while 32 clients log in, 1 connection; 16",
        "itself without logins",
        f"≥ 0.75 {RATE}, 99 of 100 within 20 ms",
        "{:.2f}, {:.1f} ms; {:.2f}, {:.1f} ms",
        (
            "postgres: session check, 1 connection, while 32 clients log in: beside itself when all is quiet",
            "postgres: session check, 1 connection, while 32 clients log in: 99 of 100 within",
            "postgres: session check, 16 connections, while 32 clients log in: beside itself when all is quiet",
            "postgres: session check, 16 connections, while 32 clients log in: 99 of 100 within",
        ),
    ),
    Row(
        "memory of the idle daemon on PostgreSQL",
        "",
        "≤ 55 MB",
        "{:.0f} MB",
        ("postgres: memory of the idle daemon on PostgreSQL",),
    ),
    Row(
        "start of the daemon to its first answer, 100,000 users",
        "an interpreter that imports Bottle and waitress",
        "≤ 2.2 times",
        "{:.1f}, {:.0f} ms",
        (
            "start: usersctl serve, 100,000 users, to its first answer: beside the bare one",
            "start: usersctl serve, 100,000 users, to its first answer",
        ),
    ),
    Row(
        "memory of the idle daemon; after 100,000 requests",
        "waitress and Bottle; after 10,000",
        "≤ 1.6 times; flat",
        "{:.2f} ({:.0f} MB); {:.2f}",
        (
            "memory: memory of the idle daemon: beside waitress + bottle",
            "memory: memory of the idle daemon",
            "memory: memory after 100,000 requests: beside that after 10,000",
        ),
    ),
    Row(
        "`usersctl list --json`, 1,000 users",
        BARE_COMMAND,
        "≤ 2.2 times",
        "{:.2f}",
        ("command: usersctl list --json of 1,000 users: beside the bare one",),
    ),
    Row(
        "`usersctl --help`",
        BARE_COMMAND,
        "≤ 4 times",
        "{:.1f}",
        ("command: usersctl --help: beside the bare one",),
    ),
    Row(
        "import of 100,000 users with hashes",
        "",
        "≥ 20,000 rows a second, memory flat",
        "{:,.0f}, {:.2f} times the memory of 10,000",
        (
            "import: import of 100,000 users with hashes",
            "import: import of 100,000 users with hashes: beside that of 10,000",
        ),
    ),
    Row(
        "cleanup of 1,000,000 expired tokens",
        "another process that logs in",
        "≥ 20,000 tokens a second, waits ≤ 0.1 s",
        "{:,.0f}, {:.0f} ms",
        (
            "cleanup: cleanup-tokens of 1,000,000 expired tokens",
            "cleanup: cleanup-tokens of 1,000,000 expired tokens: its longest login",
        ),
    ),
)


def medians(text: str) -> dict[str, float]:
    """The figures of figures.md by name."""
    named: dict[str, float] = {}
    measure = figure = ""
    for line in text.splitlines():
        if line.startswith("## "):
            measure = line.removeprefix("## ")
        cells = line.strip("| ").split(" | ")
        if not re.fullmatch(r"[\d,.]+", cells[1] if len(cells) > 1 else ""):
            continue
        below = cells[0].startswith("— ")
        figure = figure if below else cells[0]
        name = f"{measure}: {figure}" + f": {cells[0].removeprefix('— ')}" * below
        named[name] = float(cells[1].replace(",", ""))
    return named


def lines() -> Iterator[str]:
    """The rows of the table."""
    named = medians(FIGURES.read_text("utf-8"))
    for row in ROWS:
        measured = NOT_YET
        if set(row.figures) <= set(named):
            measured = row.measured.format(*(named[figure] for figure in row.figures))
        yield f"| {row.measure} | {row.beside} | {row.promised} | {measured} |".replace("|  |", "| |")


def with_figures(text: str) -> str:
    """A page with the present figures in its rows."""
    for line in lines():
        beginning = line.rpartition(" | ")[0]
        text = re.sub(rf"^{re.escape(beginning)} \|.*$", lambda _, new=line: new, text, flags=re.MULTILINE)
    return text


def update() -> None:
    for page in PAGES:
        page.write_text(with_figures(page.read_text("utf-8")), "utf-8")
