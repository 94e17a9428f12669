"""Secrets are sealed with keys that are not in the database: which key opens what, and how the file of keys is made."""

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from usersctl.errors import KeyUnusable
from usersctl.factors.sealing import KeyFile, NoKeyFile, Sealer, SealingKey, key_name_of, totp_context

OLD, NEW = "old key " * 5, "new key " * 5
SECRET = b"twenty bytes of seed"
CONTEXT = totp_context(7)


@pytest.fixture
def database(tmp_path: Path) -> Path:
    path = tmp_path / "data" / "users.db"
    path.parent.mkdir()
    path.touch(0o600)
    return path


def sealer(database: Path, *configured: str) -> Sealer:
    return Sealer(configured, KeyFile(database))


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


# --- what is sealed ---


def test_a_sealed_secret_opens_again(database: Path) -> None:
    sealed = sealer(database).seal(SECRET, CONTEXT)
    assert SECRET not in sealed
    assert sealer(database).open(sealed, CONTEXT) == SECRET


def test_the_same_secret_is_sealed_differently_each_time(database: Path) -> None:
    assert len({sealer(database).seal(SECRET, CONTEXT) for _ in range(100)}) == 100


def test_a_sealed_secret_opens_for_its_own_account_only(database: Path) -> None:
    sealed = sealer(database).seal(SECRET, CONTEXT)
    with pytest.raises(KeyUnusable, match="damaged, or was copied"):
        sealer(database).open(sealed, totp_context(8))


def test_no_changed_bit_of_a_sealed_secret_opens() -> None:
    key = SealingKey(OLD)
    sealed = key.seal(SECRET, CONTEXT)
    for bit in range(len(key.name) * 8, len(sealed) * 8):
        changed = bytearray(sealed)
        changed[bit // 8] ^= 1 << bit % 8
        with pytest.raises(KeyUnusable):
            key.open(bytes(changed), CONTEXT)


@pytest.mark.parametrize("length", [0, 7, 8, 19, 20, 35])
def test_a_cut_secret_is_refused(database: Path, length: int) -> None:
    sealed = sealer(database, OLD).seal(SECRET, CONTEXT)
    with pytest.raises(KeyUnusable):
        sealer(database, OLD).open(sealed[:length], CONTEXT)


def test_another_key_opens_nothing(database: Path) -> None:
    sealed = sealer(database, OLD).seal(SECRET, CONTEXT)
    with pytest.raises(KeyUnusable, match="is missing") as refused:
        sealer(database, NEW).open(sealed, CONTEXT)
    assert "usersctl factor reset USER" in (refused.value.hint or "")


# --- several keys ---


def test_the_first_key_seals_and_all_open(database: Path) -> None:
    before = sealer(database, OLD).seal(SECRET, CONTEXT)
    both = sealer(database, NEW, OLD)
    assert both.open(before, CONTEXT) == SECRET
    after = both.seal(SECRET, CONTEXT)
    assert [key_name_of(after), key_name_of(before)] == both.names()
    assert sealer(database, NEW).open(after, CONTEXT) == SECRET


def test_the_file_goes_on_to_open_when_a_key_is_configured(database: Path) -> None:
    before = sealer(database).seal(SECRET, CONTEXT)
    assert sealer(database, NEW).open(before, CONTEXT) == SECRET
    assert sealer(database, NEW).names()[0] == SealingKey(NEW).name


def test_a_configured_key_need_not_be_text(database: Path) -> None:
    key = os.fsdecode(b"\xff" * 32)  # as a variable of the environment may be
    assert sealer(database, key).open(sealer(database, key).seal(SECRET, CONTEXT), CONTEXT) == SECRET


def test_a_broken_file_is_no_obstacle_to_a_configured_key(database: Path) -> None:
    KeyFile(database).path.write_bytes(b"short")
    sealed = sealer(database, NEW).seal(SECRET, CONTEXT)
    assert sealer(database, NEW).open(sealed, CONTEXT) == SECRET


def test_a_configured_key_makes_no_file(database: Path) -> None:
    sealer(database, NEW).seal(SECRET, CONTEXT)
    assert not KeyFile(database).path.exists()


# --- the file ---


def test_the_first_use_makes_a_file_that_only_its_owner_reads(database: Path) -> None:
    assert KeyFile(database).keys() == ()
    assert sealer(database).names() == []
    sealer(database).seal(SECRET, CONTEXT)
    (key,) = KeyFile(database).keys()
    assert len(key) == 43
    assert mode_of(database.parent / "users.key") == 0o600
    assert {path.name for path in database.parent.iterdir()} == {"users.db", "users.key"}
    sealer(database).seal(SECRET, CONTEXT)
    assert KeyFile(database).keys() == (key,)


def test_a_database_behind_a_link_has_its_key_beside_the_file_itself(database: Path, tmp_path: Path) -> None:
    link = tmp_path / "users.db"
    link.symlink_to(database)
    assert KeyFile(link).path == KeyFile(database).path


def test_a_new_key_of_the_file_seals_and_the_others_open(database: Path) -> None:
    before = sealer(database).seal(SECRET, CONTEXT)
    file = KeyFile(database)
    file.path.chmod(0o640)
    file.add()
    assert len(file.keys()) == 2
    assert mode_of(file.path) == 0o640
    assert sealer(database).open(before, CONTEXT) == SECRET
    assert key_name_of(sealer(database).seal(SECRET, CONTEXT)) == sealer(database).names()[0] != before[:8]


@pytest.mark.parametrize("content", [b"", b"\n", b"short\n", b"\xff" * 40])
def test_a_file_without_a_key_is_refused_and_stays(database: Path, content: bytes) -> None:
    path = KeyFile(database).path
    path.write_bytes(content)
    with pytest.raises(KeyUnusable, match=r"users\.key"):
        sealer(database).seal(SECRET, CONTEXT)
    assert path.read_bytes() == content


def test_a_link_in_the_place_of_the_file_is_not_followed(database: Path, tmp_path: Path) -> None:
    target = tmp_path / "elsewhere"
    target.write_text("k" * 43)
    KeyFile(database).path.symlink_to(target)
    with pytest.raises(KeyUnusable, match=r"users\.key cannot be read"):
        sealer(database).seal(SECRET, CONTEXT)


def test_a_file_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(KeyUnusable, match=r"users\.key cannot be written: No such file"):
        sealer(tmp_path / "missing" / "users.db").seal(SECRET, CONTEXT)


def test_a_database_on_a_server_gets_no_file_for_a_key() -> None:
    for write in (NoKeyFile().make, NoKeyFile().add):
        with pytest.raises(KeyUnusable, match=r"auth\.secretKey is not set"):
            write()


def test_a_pipe_in_the_place_of_the_file_is_refused_without_waiting_for_a_writer(database: Path) -> None:
    os.mkfifo(KeyFile(database).path)
    command = "import sys, pathlib; from usersctl.factors.sealing import *; KeyFile(pathlib.Path(sys.argv[1])).keys()"
    done = subprocess.run(
        [sys.executable, "-c", command, database], capture_output=True, timeout=20, check=False
    )
    assert b"KeyUnusable" in done.stderr


def test_a_key_that_is_there_seals_without_a_change_of_its_folder(database: Path) -> None:
    (key,) = KeyFile(database).make()
    before = database.parent.stat().st_mtime_ns
    assert KeyFile(database).make() == (key,)
    assert database.parent.stat().st_mtime_ns == before


def test_a_file_that_another_process_made_meanwhile_stays(
    database: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, looked, read = KeyFile(database), [], KeyFile.keys

    def keys(self: KeyFile) -> tuple[str, ...]:
        looked.append(self)
        return () if len(looked) == 1 else read(self)

    made = file.make()
    monkeypatch.setattr(KeyFile, "keys", keys)
    assert file.make() == made
    assert {path.name for path in database.parent.iterdir()} == {"users.db", "users.key"}


MAKE_IT_AT_ONCE = """
import os, sys
from pathlib import Path
from usersctl.factors.sealing import KeyFile

start, begin = os.pipe()
for _ in range(8):
    if not os.fork():
        os.close(begin)
        os.read(start, 1)
        os.write(1, KeyFile(Path(sys.argv[1])).make()[0].encode() + b"\\n")
        os._exit(0)
os.close(begin)
while True:
    try:
        os.wait()
    except ChildProcessError:
        break
"""


def test_of_many_processes_that_make_the_file_one_succeeds(database: Path) -> None:
    command = [sys.executable, "-c", MAKE_IT_AT_ONCE, str(database)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.split() == [*KeyFile(database).keys()] * 8
    assert {path.name for path in database.parent.iterdir()} == {"users.db", "users.key"}


# For each line of the code in turn, a process that is killed there while it makes the file; until one runs to its end.
KILLED_AT_EACH_LINE = """
import os, signal, sys
from pathlib import Path
from usersctl.factors import sealing

def make_until(line, database):
    def trace(frame, event, argument):
        nonlocal line
        if event == "line" and frame.f_code.co_filename == sealing.__file__:
            line -= 1
            if line == 0:
                os.kill(os.getpid(), signal.SIGKILL)
        return trace
    sys.settrace(trace)
    sealing.KeyFile(database).make()
    os._exit(0)

status = line = 1
while status:
    database = Path(sys.argv[1]) / str(line) / "users.db"
    database.parent.mkdir()
    database.touch(0o600)
    child = os.fork() or make_until(line, database)
    status = os.waitpid(child, 0)[1]
    line += 1
"""


@pytest.mark.slow
def test_a_process_that_is_killed_at_any_line_leaves_a_whole_key_or_none(tmp_path: Path) -> None:
    command = [sys.executable, "-c", KILLED_AT_EACH_LINE, str(tmp_path)]
    subprocess.run(command, check=True, timeout=60)
    folders = sorted(tmp_path.iterdir(), key=lambda folder: int(folder.name))
    assert len(folders) > 20
    before = []
    for folder in folders:
        file = KeyFile(folder / "users.db")
        before.append(file.keys())
        (key,) = file.make()
        assert len(key) == 43
        assert before[-1] in ((), (key,))
        assert mode_of(file.path) == 0o600
    assert before[0] == ()
    assert before[-1] != ()


def test_what_a_killed_process_left_is_removed_later(database: Path) -> None:
    old, new = database.parent / ".users.key-old", database.parent / ".users.key-new"
    for path in (old, new):
        path.write_text("k" * 43)
    os.utime(old, (0, 0))
    KeyFile(database).make()
    assert not old.exists()
    assert new.exists()  # another process may write it at this moment
