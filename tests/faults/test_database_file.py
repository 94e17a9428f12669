"""The disk is full, another process holds the database, its file goes away or is damaged: what can be read is read,
what would be written is refused with the time to come back, and all is well again without a restart."""

import io
import json
import os
import random
import resource
import shutil
import sqlite3
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path

import pytest
from support.accounts import open_session
from support.commands import OPERATOR, PASSWORD, Command, create_user
from support.daemons import free_port, serving
from support.fakes import FakeClock
from support.faults import FORGOT, LONG, ME, OPEN, House, all_done, ask, done, is_refused_as_busy, none_done
from support.web import Client, Site

from usersctl.errors import StoreUnusable
from usersctl.service import Service
from usersctl.store import database_file
from usersd.app import App
from usersd.log import Log

pytestmark = pytest.mark.sqlite  # what becomes of the file


@pytest.fixture
def house(make_site: Callable[..., Site], clock: FakeClock) -> House:
    site = make_site(**OPEN)
    house = House(site.service, site.port)
    clock.move(minutes=2)  # so that using a session would be noted
    return house


def path_of(house: House) -> Path:
    return house.service.settings.database


# --- another process holds it ---


@contextmanager
def held(path: Path) -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(path, isolation_level=None, timeout=10)) as other:
        other.execute("BEGIN IMMEDIATE")
        yield other


@pytest.mark.slow
def test_a_database_held_by_another_process_is_read_and_writers_are_refused_in_time(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More writers than threads. The long version waits ten seconds and uses the real time limits."""
    assert database_file.BUSY_SECONDS == 5.0
    if not LONG:
        monkeypatch.setattr(database_file, "BUSY_SECONDS", 1.0)
    in_time = database_file.BUSY_SECONDS + (0.5 if LONG else 1.5)  # others work on this machine, too
    held_until = time.monotonic() + 2 * database_file.BUSY_SECONDS
    writes, slowest_read, over = house.writes("x"), [0.0], threading.Event()

    def read() -> None:
        while not over.is_set():
            for answer in house.reads().values():
                assert answer.reply.status == 200
                slowest_read[0] = max(slowest_read[0], answer.seconds)

    def forget(number: int) -> float:
        began = time.monotonic()
        assert is_refused_as_busy(Client(house.port).post(FORGOT, {"email": f"{number}@example.com"}))
        return time.monotonic() - began

    with ThreadPoolExecutor(34) as pool:
        with held(path_of(house)):
            reading = [pool.submit(read) for _ in range(2)]
            waited = [pool.submit(forget, number) for number in range(32)]
            answered = none_done(writes)
            took = [future.result() for future in waited]
            while time.monotonic() < held_until:
                took.append(forget(99))
                time.sleep(0.05)
        over.set()
        for future in reading:
            future.result()
    assert max(took) < in_time
    assert max(answer.seconds for answer in answered.values()) < in_time
    assert slowest_read[0] < database_file.BUSY_SECONDS * 0.9
    all_done(writes)


# --- no room ---


@contextmanager
def small_disk(folder: Path) -> Iterator[Path]:
    disk = folder / "disk"
    disk.mkdir()
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m,mode=700", "tmpfs", disk], capture_output=True, text=True, check=False)  # fmt: skip
    if done.returncode != 0:
        pytest.skip(
            f"a small disk cannot be mounted here ({done.stderr.strip()}); the limit of file size stands for it"
        )
    try:
        yield disk
    finally:
        subprocess.run(["umount", "--lazy", disk], check=True)


@contextmanager
def no_room(disk: Path, *, but: int = 0) -> Iterator[None]:
    filler = disk / "filler"
    with suppress(OSError), filler.open("wb", buffering=0) as file:
        while shutil.disk_usage(disk).free > but:
            file.write(b"x" * 4096)
    try:
        yield
    finally:
        filler.unlink()


@contextmanager
def no_larger_files(path: Path) -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    log = Path(f"{path}-wal").stat().st_size
    resource.setrlimit(resource.RLIMIT_FSIZE, (max(path.stat().st_size, log), before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def use_up_what_is_left(service: Service) -> None:
    """Limits the files to the pages that they already have."""
    refused = 0
    for number in range(5000):
        try:
            create_user(service, f"{'x' * 60}{number}@example.com", "x" * 200, None, by=OPERATOR)
        except StoreUnusable:
            refused += 1
            if refused == 20:
                return
    pytest.fail("there is no end of room")


@pytest.mark.parametrize("way", ["disk", "limit"])
def test_a_database_on_a_full_disk_is_read_and_not_written_until_there_is_room(
    tmp_path: Path, make_site: Callable[..., Site], clock: FakeClock, way: str
) -> None:
    with ExitStack() as stack:
        folder = stack.enter_context(small_disk(tmp_path)) if way == "disk" else tmp_path
        site = make_site(database=folder / "users.db", **OPEN)
        house = House(site.service, site.port)
        writes = house.writes("x")
        house.read_all()
        clock.move(minutes=2)
        with no_room(folder) if way == "disk" else no_larger_files(folder / "users.db"):
            use_up_what_is_left(site.service)
            # A change that only deletes a row may still fit.
            for _ in range(2):
                writes = {
                    name: writes[name] for name, answer in ask(writes).items() if not done(answer.reply)
                }
                house.read_all()
            assert len(writes) > 10
        house.read_all()
        all_done(writes)
        site.service.close()


@pytest.mark.slow
@pytest.mark.sqlite  # the disk of a file
def test_a_database_that_no_process_has_open_is_saved_from_a_full_disk(
    tmp_path: Path, usersctl: Command
) -> None:
    """SQLite has no room there for the file that readers of a write-ahead log share."""
    with small_disk(tmp_path) as disk:
        usersctl.env["USERS_DATABASE"] = str(disk / "users.db")
        usersctl.ok("create", "ada@example.com", "--generate")
        with no_room(disk):
            for _ in range(2):
                assert len(usersctl.ok("list").rows) == 1
            saved = usersctl.ok("db", "backup", usersctl.folder / "saved.db")
            assert "The backup is complete, but not in the audit trail" in saved.stderr
            refused = usersctl("create", "bob@example.com", "--generate", "--json")
            assert (refused.code, "make room on that disk" in refused.error["hint"]) == (6, True)
            restore = usersctl("db", "restore", usersctl.folder / "saved.db", "--yes", "--json")
            assert restore.error["hint"].startswith("nothing was replaced; make room on that disk")
        usersctl.ok("create", "bob@example.com", "--generate")
        usersctl.ok("db", "verify")


@pytest.mark.slow
def test_a_full_temporary_folder_says_nothing_of_the_backup_and_replaces_nothing(
    tmp_path: Path, usersctl: Command
) -> None:
    usersctl.add("ada")
    saved = usersctl.folder / "saved.db"
    usersctl.ok("db", "backup", saved)
    usersctl.add("bob")
    size = saved.stat().st_size
    verify, restore = ("db", "verify", saved), ("db", "restore", saved, "--yes")
    dated = ("db", "backup", "--keep", "1", usersctl.folder / "dated")
    with small_disk(tmp_path) as disk:
        usersctl.env["TMPDIR"] = str(disk)
        # For less than the copy; for the copy and no file of SQLite; for all of them, but not for what a restore changes.
        for room, commands in (
            (size - 4096, (verify, dated, restore)),
            (size + 4096, (verify, dated, restore)),
            (size + 40 * 1024, (restore,)),
        ):
            with no_room(disk, but=room):
                for command in commands:
                    refused = usersctl(*command)
                    assert (refused.code, refused.stdout) == (6, "")
                    assert f"{disk} has no room for a copy of " in refused.stderr
                    assert "name another folder in TMPDIR" in refused.stderr
                    assert "sound" not in refused.stderr
        assert "is sound" in usersctl.ok(*verify).stdout
        assert len(usersctl.ok("list").rows) == 2
        assert not list(usersctl.folder.glob("*.before-*"))
        usersctl.ok(*restore)
        assert len(usersctl.ok("list").rows) == 1


# --- the file disappears, or another takes its place ---


def moved(path: Path, to: Path) -> None:
    to.mkdir(exist_ok=True)
    for file in sorted(path.parent.glob(f"{path.name}*")):
        file.rename(to / file.name)


def test_a_database_that_is_moved_away_is_read_and_not_written_until_it_is_back(
    house: House, tmp_path: Path
) -> None:
    path, writes = path_of(house), house.writes("x")
    house.read_all()
    moved(path, tmp_path / "away")
    # Every thread that has read before keeps the file open.
    assert True in {done(answer.reply) for answer in house.reads().values()}
    none_done(writes)
    assert not list(path.parent.glob("users.db*"))  # above all no new and empty one
    moved(tmp_path / "away" / path.name, path.parent)
    house.read_all()
    all_done(writes)


def test_a_database_that_replaces_another_is_used_at_once_by_readers_and_writers(
    house: House, tmp_path: Path
) -> None:
    path, saved = path_of(house), tmp_path / "saved.db"
    with closing(sqlite3.connect(path)) as live, closing(sqlite3.connect(saved)) as copy:
        live.backup(copy)
    saved.chmod(0o600)
    later = open_session(house.service, house.ada).token  # stands in the old one only
    moved(path, tmp_path / "away")
    saved.rename(path)
    house.read_all()
    assert Client(house.port, {"auth_token": later}).get(ME).status == 401
    all_done(house.writes("x"))
    with closing(sqlite3.connect(tmp_path / "away" / path.name)) as old:
        assert old.execute("SELECT count(*) FROM users").fetchone() == (2,)
    with closing(sqlite3.connect(path)) as new:
        assert new.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        assert new.execute("SELECT count(*) FROM users").fetchone()[0] > 2


@pytest.mark.parametrize("what", ["", "these are letters to a friend\n" * 400], ids=["empty", "letters"])
def test_a_file_that_is_not_a_database_is_refused(house: House, tmp_path: Path, what: str) -> None:
    path, writes = path_of(house), house.writes("x")
    moved(path, tmp_path / "away")
    path.write_text(what)
    assert {done(answer.reply) for answer in house.reads().values()} == {False}
    none_done(writes)
    assert path.read_text() == what
    path.unlink()
    moved(tmp_path / "away" / path.name, path.parent)
    house.read_all()
    all_done(writes)


# Root may write any file. Without these two capabilities the mode of a file counts for root, too.
WITHOUT_RIGHTS = """
import ctypes, os, sys
CAPBSET_DROP, DAC_OVERRIDE, DAC_READ_SEARCH = 24, 1, 2
if os.geteuid() == 0:
    for right in (DAC_OVERRIDE, DAC_READ_SEARCH):
        assert ctypes.CDLL(None).prctl(CAPBSET_DROP, right, 0, 0, 0) == 0
os.execv(sys.executable, [sys.executable, "-m", "usersctl", *sys.argv[1:]])
"""


def test_a_database_on_a_disk_that_is_mounted_read_only_is_called_so(usersctl: Command) -> None:
    with small_disk(usersctl.folder) as disk:
        usersctl.database = disk / "users.db"
        usersctl.env["USERS_DATABASE"] = str(usersctl.database)
        usersctl.add("ada")
        subprocess.run(["mount", "-o", "remount,ro", disk], check=True)
        assert "ada@example.com" in usersctl("list").stdout
        for words in (
            ["update", "1", "--name", "x"],
            ["cleanup-tokens"],
            ["serve", "--port", str(free_port())],
        ):
            refused = usersctl(*words)
            assert (refused.code, refused.stdout) == (6, "")
            assert refused.stderr.startswith(
                f"usersctl: {usersctl.database} is read-only\n"
                "  this user has to be able to write the file and its folder; see: usersctl doctor"
            )


@pytest.mark.slow
def test_a_database_that_becomes_read_only_is_read_and_written_again_afterwards(usersctl: Command) -> None:
    """A daemon that starts on such a database says so in one line and creates nothing."""
    (usersctl.folder / "without_rights.py").write_text(WITHOUT_RIGHTS)
    folder = usersctl.folder / "state"
    usersctl.database = folder / "users.db"
    paths = os.pathsep.join(filter(None, (str(usersctl.folder), os.environ.get("PYTHONPATH"))))
    usersctl.env |= {"USERS_DATABASE": str(usersctl.database), "PYTHONPATH": paths}
    usersctl.configure(
        'auth.whitelist = ["/register"]\npasswordHashing.rounds = 10\nlimits.enabled = false\n'
    )
    with usersctl.service() as service:
        assert service.first_admin.needed()

    def allow(folder_mode: int, file_mode: int) -> None:
        folder.chmod(0o700)
        for path in folder.iterdir():
            path.chmod(file_mode)
        folder.chmod(folder_mode)

    allow(0o500, 0o400)
    words = [sys.executable, "-m", "without_rights", "serve", "--port", str(free_port())]
    refused = subprocess.run(words, env=usersctl.env, capture_output=True, text=True, timeout=60, check=False)
    assert refused.returncode == 6
    assert refused.stderr == (
        f"usersctl: {usersctl.database} is read-only\n"
        "  this user has to be able to write the file and its folder; see: usersctl doctor\n"
    )
    words[3:] = ["doctor", "--quiet"]
    found = subprocess.run(words, env=usersctl.env, capture_output=True, text=True, timeout=60, check=False)
    assert f"{usersctl.database} is read-only\tchmod u+w {usersctl.database}" in found.stdout
    assert [path.name for path in folder.iterdir()] == ["users.db"]
    allow(0o700, 0o600)
    with serving(usersctl, module=("without_rights", "serve")) as daemon, usersctl.service() as service:
        house = House(service, daemon.port)
        writes = house.writes("x")
        house.read_all()
        allow(0o500, 0o400)
        assert True in {done(answer.reply) for answer in house.reads().values()}
        left = {name: writes[name] for name, answer in ask(writes).items() if not done(answer.reply)}
        allow(0o700, 0o600)
        house.read_all()
        all_done(left)


# --- it is damaged ---


def asked_directly(
    app: App, user: str, path: str, method: str = "GET", body: bytes = b""
) -> tuple[int, bytes]:
    """Calls the application without a socket, because many databases are tried."""
    lines: list[str] = []
    environ = {
        "REQUEST_METHOD": method,
        "PATH_INFO": path,
        "QUERY_STRING": "",
        "REMOTE_ADDR": "127.0.0.1",
        "HTTP_AUTHORIZATION": f"Bearer {user}",
        "CONTENT_TYPE": "application/json",
        "CONTENT_LENGTH": str(len(body)),
        "wsgi.input": io.BytesIO(body),
        "wsgi.url_scheme": "http",
    }
    answer = b"".join(app(environ, lambda status, _headers: lines.append(status)))
    return int(lines[0].split()[0]), answer


def damages(pages: int, size: int) -> Iterator[tuple[int, bytes]]:
    """(where, what) for a page that was lost, mixed up with others, or has a few flipped bits."""
    chance = random.Random(7)
    wanted = range(1, pages) if LONG else chance.sample(range(1, pages), 5)
    for page in wanted:
        for what in (bytes(size), chance.randbytes(size)):
            yield page * size, what
        for _ in range(20 if LONG else 2):
            yield page * size + chance.randrange(size), chance.randbytes(1)


def tables_of(path: Path) -> list[str] | None:
    """The tables as the file describes them. Damage in that description can make another valid layout."""
    with closing(sqlite3.connect(path)) as database:
        try:
            return [sql for (sql,) in database.execute("SELECT sql FROM sqlite_schema ORDER BY name")]
        except (sqlite3.Error, UnicodeDecodeError):
            return None


def test_a_damaged_page_never_causes_a_500_and_a_good_file_is_used_at_once(
    make_service: Callable[..., Service], tmp_path: Path
) -> None:
    service = make_service(**OPEN)
    house = House(service, 0)
    house.writes("x")
    token = service.sessions.create_api_token(house.root.id, name="x", lifetime=None, by=OPERATOR).token
    service.close()
    good = path_of(house).read_bytes()
    size, tables = 4096, tables_of(path_of(house))
    statuses: Counter[int] = Counter()
    for number, (where, what) in enumerate(damages(len(good) // size, size)):
        path = tmp_path / f"damaged{number}.db"
        path.write_bytes(good[:where] + what + good[where + len(what) :])
        try:
            damaged = make_service(database=path, **OPEN)
        except StoreUnusable:
            statuses[503] += 1
            continue
        log = io.StringIO()
        app = App(damaged, log=Log(log, as_json=True, now=damaged.now), listening=None)
        for method, target, body in (
            ("GET", ME, b""),
            ("GET", "/api/users", b""),
            ("GET", f"/api/users/{house.ada.id}", b""),
            ("GET", f"{ME}/sessions", b""),
            ("POST", "/api/users/session", json.dumps({"email": "ada@example.com", "password": PASSWORD}).encode()),
            ("POST", FORGOT, b'{"email": "ada@example.com"}'),
            ("PATCH", f"/api/users/{house.ada.id}", b'{"name": "Countess"}'),
            ("POST", "/api/users", json.dumps({"email": "new@example.com", "name": "N", "password": PASSWORD}).encode()),
            ("DELETE", f"/api/users/{house.ada.id}", b""),
            ("POST", "/_tasks/users:cleanup-tokens", b""),
        ):  # fmt: skip
            status, answer = asked_directly(app, token, target, method, body)
            assert status in (200, 400, 401, 403, 404, 503) or tables_of(path) != tables, (
                f"{where} {what[:8]!r} {method} {target}: {log.getvalue()[-2000:]}"
            )
            assert b"Traceback" not in answer
            statuses[status] += 1
        damaged.close()
    print(dict(statuses))
    assert statuses[200] > 0
    assert statuses[503] > 0
