"""Streams and signals: what is closed, full or not UTF-8, readers that go away, and Ctrl-C."""

import json
import os
import random
import signal
import string
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import pytest
from support.commands import PASSWORD, Command, feed


def test_a_closed_stdout_is_reported_before_anything_is_done(usersctl: Command) -> None:
    done = usersctl.shell("usersctl create ada@example.com --generate >&-")
    assert (done.code, "stdout is closed" in done.stderr) == (6, True)
    assert usersctl.is_unused
    done = usersctl.shell("usersctl list --json >&-")
    assert (done.code, done.error["code"]) == (6, "io")


@pytest.mark.parametrize("words", ["list", "list --json", "--help", "--version", "export", "config show", "db status --json"])  # fmt: skip
def test_a_full_stdout_is_a_failure(usersctl: Command, words: str) -> None:
    usersctl.add("ada")
    done = usersctl.shell(f"usersctl {words} > /dev/full")
    assert done.code == 6, done
    assert "No space left on device" in done.stderr
    assert DONE not in done.stderr
    assert "Exception ignored" not in done.stderr
    assert "Traceback" not in done.stderr


DONE = "the command has done its work; only its report could not be written"


@pytest.mark.parametrize(
    ("words", "action"),
    [
        ("create bob@example.com --password-file word", "create"),
        ("update 1 --name Countess", "update"),
        ("delete 1 --yes --json", "delete"),
        ("import people.csv", "import"),
        ("apply people.toml", "create"),
        ("apply people.toml --json", "create"),
    ],
)
def test_a_full_stdout_after_a_change_says_that_it_is_made(
    usersctl: Command, words: str, action: str
) -> None:
    usersctl.add("ada")
    (usersctl.folder / "word").write_text(PASSWORD)
    (usersctl.folder / "people.csv").write_text("email\nbob@example.com\n")
    (usersctl.folder / "people.toml").write_text('name = "people"\n[[users]]\nemail = "bob@example.com"\n')
    if words.startswith("apply"):
        planned = usersctl.shell(f"usersctl {words} --plan > /dev/full")
        assert (planned.code, DONE in planned.stderr) == (6, False)
    done = usersctl.shell(f"usersctl {words} > /dev/full")
    assert (done.code, "No space left on device" in done.stderr, DONE in done.stderr) == (6, True, True)
    assert usersctl.ok("audit", "--json").json[-1]["action"] == action


@pytest.mark.parametrize(
    "words", ["create bob@example.com --generate", "token create 1 --no-expiry", "set-password 1 --generate"]
)
def test_a_secret_that_a_full_stdout_does_not_take_is_not_stored(usersctl: Command, words: str) -> None:
    usersctl.add("ada")
    before = usersctl.ok("audit", "--json").stdout
    done = usersctl.shell(f"usersctl {words} > /dev/full")
    assert (done.code, "No space left on device; nothing was done" in done.stderr) == (6, True)
    assert usersctl.ok("audit", "--json").stdout == before


@pytest.mark.parametrize("words", ["list", "list --json", "list --csv", "export --format jsonl"])
def test_a_reader_that_goes_away_is_no_error(usersctl: Command, words: str) -> None:
    with usersctl.service() as service, service.store.write() as tx:
        tx._run(
            "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 5000)"
            " INSERT INTO users (email, name, password_hash, role, active, created_at, updated_at)"
            " SELECT 'user' || i || '@example.com', 'Name of user', '!', 'user', 1, 'x', 'x' FROM n"
        )
    done = usersctl.shell(f"set -o pipefail; usersctl {words} | head -1")
    assert (done.code, done.stderr) == (0, "")
    assert len(done.stdout.splitlines()) == 1


def test_audit_follow_ends_with_its_reader_though_no_row_comes(usersctl: Command) -> None:
    usersctl.add("ada")
    follow = f"timeout 20 '{sys.executable}' -m usersctl audit --follow --since 1h --jsonl"
    done = usersctl.shell(f"set -o pipefail; {follow} | grep -m 1 create")
    assert (done.code, done.stderr) == (0, "")


@pytest.mark.slow
def test_messages_for_a_closed_stderr_do_not_go_to_stdout(usersctl: Command) -> None:
    done = usersctl.shell("usersctl create ada@example.com --generate 2>&-")
    assert done.code == 0
    assert usersctl.can_log_in("ada@example.com", done.stdout.strip())
    assert usersctl.shell("usersctl show nobody 2>&-") == (3, "", "")


@pytest.fixture(params=["full", "without a reader", "not for writing"])
def stderr(request: pytest.FixtureRequest) -> Iterator[IO[bytes]]:
    """A stderr that cannot be written to."""
    if request.param == "without a reader":
        reader, writer = os.pipe()
        os.close(reader)
        opened: IO[bytes] = os.fdopen(writer, "wb", buffering=0)
    else:
        opened = Path("/dev/full").open("wb" if request.param == "full" else "rb", buffering=0)  # noqa: SIM115
    with opened:
        yield opened


def test_a_line_that_a_full_disk_cut_takes_no_other_with_it(tmp_path: Path) -> None:
    script = (
        "import resource, sys; from usersctl.__main__ import _prepare_streams; _prepare_streams()\n"
        "_, most = resource.getrlimit(resource.RLIMIT_FSIZE)\n"
        "for number, room in enumerate((15, 15, 16, 16, most, most)):\n"
        "    resource.setrlimit(resource.RLIMIT_FSIZE, (room, most))\n"
        "    print(f'a line, number {number}', file=sys.stderr)\n"
    )
    log = tmp_path / "log"
    with log.open("ab") as stderr:
        subprocess.run([sys.executable, "-c", script], stderr=stderr, check=True)
    assert log.read_text().splitlines() == ["a line, number ", "a line, number 4", "a line, number 5"]


@pytest.mark.parametrize(
    ("words", "code"),
    [
        ("list", 0),
        ("show nobody", 3),
        ("show nobody --json", 3),
        ("delete 1", 5),
        ("why 1", 0),
        ("why nobody", 3),
        ("doctor", 7),
        ("snippet cron", 0),
        ("import --from csv:nowhere.csv", 2),
        ("cleanup-tokens --quiet --db /nowhere/users.db", 6),
        ("nonsense", 2),
        ("token", 2),
        ("list --debug --db /nowhere/users.db", 6),
    ],
)
def test_an_unwritable_stderr_changes_neither_result_nor_exit_code(
    usersctl: Command, stderr: IO[bytes], words: str, code: int
) -> None:
    usersctl.add("ada")
    done, as_ever = usersctl(*words.split(), stderr=stderr), usersctl(*words.split())
    assert done.code == as_ever.code == code
    # The first column is the same on every run.
    printed, wanted = ([line.split("\t")[0] for line in each.stdout.splitlines()] for each in (done, as_ever))
    assert printed == wanted


def test_a_secret_is_printed_and_stored_with_an_unwritable_stderr(
    usersctl: Command, stderr: IO[bytes]
) -> None:
    """Also from the start of Python."""

    def printed(*words: str) -> str:
        process = usersctl.start(*words, stdout=subprocess.PIPE, stderr=stderr)
        out, _ = process.communicate(timeout=30)
        assert process.returncode == 0
        return out.decode().strip()

    made = printed("create", "ada@example.com", "--generate")
    assert usersctl.can_log_in("ada@example.com", made)
    token = printed("token", "create", "1", "--no-expiry")
    with usersctl.service() as service:
        assert service.sessions.check(token) is not None
    assert printed("create", "ada@example.com", "--generate", "--if-missing") == ""


@pytest.mark.parametrize(
    ("words", "code"),
    [
        ("show -", 2),
        ("delete - --yes", 0),
        ("create eve@example.com --password-stdin", 2),
        ("create eve@example.com", 2),
        ("import - --format jsonl", 0),
    ],
)
def test_a_closed_stdin_counts_as_empty(usersctl: Command, words: str, code: int) -> None:
    usersctl.add("ada")
    done = usersctl.shell(f"usersctl {words} <&-")
    assert done.code == code, done
    assert "bug" not in done.stderr


@pytest.mark.slow
def test_output_is_utf_8_in_every_locale(usersctl: Command) -> None:
    usersctl.ok("import", "-", stdin="email,name\nada@example.com,Zoë 中 😀\n")
    for env in ({"LC_ALL": "C"}, {"PYTHONIOENCODING": "ascii"}, {"PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "LC_ALL": "POSIX"}):  # fmt: skip
        assert usersctl.ok("list", env=env).rows[0][2] == "Zoë 中 😀"
        assert usersctl.ok("list", "--json", env=env).json[0]["name"] == "Zoë 中 😀"


def test_invalid_utf_8_in_arguments_is_no_bug(usersctl: Command) -> None:
    usersctl.add("ada")
    odd = os.fsdecode(b"\xff")
    assert usersctl("show", odd).code == 3
    assert usersctl("show", "-", stdin=b"\xff\n").code == 3
    assert usersctl.ok("list", "--search", odd, "--json").json == []
    assert usersctl("create", f"{odd}@example.com", "--generate").code == 2
    assert usersctl("create", "eve@example.com", "--generate", "--name", odd).code == 2
    assert usersctl("update", "1", "--name", odd).code == 2
    usersctl.ok("update", "1", "--name", "Ada L", env={"SUDO_USER": odd, "SSH_CONNECTION": f"{odd}\x1b[2J 1"})
    assert "\x1b" not in usersctl.ok("audit").stdout
    path = usersctl.folder / f"{odd}.db"
    assert usersctl("list", "--db", path).code == 6
    assert json.loads(usersctl.ok("db", "init", "--db", path, "--json").stdout)["created"]


def test_the_trail_holds_no_more_of_a_person_than_the_index_of_every_database_can(usersctl: Command) -> None:
    usersctl.add("ada")
    long = "".join(random.Random(1).choices(string.ascii_letters, k=6000))
    usersctl.ok("update", "1", "--name", "Ada L", env={"SUDO_USER": long, "SSH_CONNECTION": long})
    row = usersctl.ok("audit", "--json").json[-1]
    assert (row["actor"], row["origin"]) == (f"cli:{long}"[:200], long[:200])


def test_ctrl_c_is_130_without_a_trace(usersctl: Command) -> None:
    usersctl.add("ada")
    process = usersctl.start(
        "import",
        "-",
        measured=False,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    feed(process.stdin, b"email\neve@example.com\n")
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=20)
    assert (process.returncode, out, err) == (130, b"", b"usersctl: interrupted\n")
    assert usersctl.emails() == ["ada@example.com"]


def test_ctrl_c_is_reported_as_json_with_json(usersctl: Command) -> None:
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    process = usersctl.start("import", "-", "--json", measured=False, **pipes)
    feed(process.stdin, b"email\neve@example.com\n")
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=20)
    assert (process.returncode, out) == (130, b"")
    assert json.loads(err) == {"error": {"code": "interrupted", "message": "interrupted", "hint": None}}


SIGNAL_IN_A_FINALIZER = """
import signal, sys, time
from usersctl.__main__ import catch_signals

class Finalized:
    def __del__(self):
        signal.raise_signal(signal.Signals[sys.argv[1]])

catch_signals()
Finalized()
time.sleep(10)
print("lost")
"""


@pytest.mark.parametrize(("name", "code"), [("SIGTERM", 143), ("SIGINT", -signal.SIGINT)])
def test_a_signal_that_comes_while_an_object_is_finalized_is_not_lost(name: str, code: int) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SIGNAL_IN_A_FINALIZER, name],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert (done.stdout, done.returncode) == ("", code)


BUSY = """
import threading, time
start = threading.Thread.start
threading.Thread.start = lambda thread: (start(thread), time.sleep(0.3))
"""


def test_such_a_signal_is_not_lost_on_a_busy_machine_either() -> None:
    """There the main thread may wait for long until the thread that sends the signal again has begun."""
    done = subprocess.run(
        [sys.executable, "-c", BUSY + SIGNAL_IN_A_FINALIZER, "SIGTERM"],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert (done.stdout, done.returncode) == ("", 143)
