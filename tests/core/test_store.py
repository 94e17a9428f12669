"""The store: one file, its connections, whole transactions, and what it says when the file cannot be used."""

import errno
import inspect
import multiprocessing
import os
import re
import resource
import sqlite3
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor, wait
from contextlib import closing
from pathlib import Path

import pytest
from support import postgres
from support.commands import OPERATOR, PASSWORD
from support.databases import database_at, held
from support.fakes import FakeClock
from support.tables import plan, statements

from usersctl.errors import Busy, NotFound, StoreUnusable, Taken
from usersctl.models import Identity, Newcomer, User, UserFilter
from usersctl.service import Service
from usersctl.store import database_file, sqlite_store
from usersctl.store.conninfo import Database
from usersctl.store.opening import open_store
from usersctl.store.store import Store

NOW = "2026-11-20T08:22:19.123Z"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "users.db"


@pytest.fixture
def database(path: Path) -> Database:
    database: Database = database_at(path)
    return database


@pytest.fixture
def opened() -> Iterator[Callable[..., Store]]:
    stores: list[Store] = []

    def open_(*arguments: object, **keywords: object) -> Store:
        stores.append(open_store(*arguments, **keywords))  # type: ignore[arg-type]
        return stores[-1]

    yield open_
    for store in stores:
        store.close()


def new_user(name: str) -> Newcomer:
    return Newcomer(f"{name}@example.com", name, "!", "user", True, NOW)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


# --- the file ---


@pytest.mark.sqlite  # modes of files
@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
def test_files_and_folder_are_readable_by_their_owner_only(
    tmp_path: Path, opened: Callable[..., Store], umask: int
) -> None:
    path = tmp_path / "deep" / "folder" / "users.db"
    before = os.umask(umask)
    try:
        store = opened(path, create=True)
        with store.write() as tx:
            tx.add_user(new_user("ada"))
    finally:
        os.umask(before)
    assert mode(path.parent) == 0o700
    files = {file.name: mode(file) for file in path.parent.iterdir()}
    assert files == {"users.db": 0o600, "users.db-wal": 0o600, "users.db-shm": 0o600}


@pytest.mark.sqlite  # modes of files
def test_a_folder_that_exists_keeps_its_mode(path: Path, opened: Callable[..., Store]) -> None:
    path.parent.chmod(0o750)
    opened(path, create=True)
    assert mode(path.parent) == 0o750


@pytest.mark.sqlite  # names of files
@pytest.mark.parametrize(
    "name",
    ["users.db", "with space.db", "100%.db", "what?.db", "#1.db", "ünï.db", "a%20b.db", "x?mode=memory"],
)
def test_any_file_name_is_used_as_it_is(tmp_path: Path, opened: Callable[..., Store], name: str) -> None:
    with opened(tmp_path / name, create=True).write() as tx:
        tx.add_user(new_user("ada"))
    with opened(tmp_path / name).read() as tx:
        assert tx.user(1)
    assert {file.name for file in tmp_path.iterdir()} == {name, f"{name}-wal", f"{name}-shm"}


@pytest.mark.sqlite  # settings of a connection to a file
@pytest.mark.parametrize("write", [True, False])
def test_every_connection_is_durable_and_keeps_references(
    path: Path, opened: Callable[..., Store], write: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    as_installed = inspect.unwrap(database_file.connect)  # without what spares the disk in tests
    monkeypatch.setattr(database_file, "connect", as_installed)
    opened(path, create=True)
    store = opened(path, write=write)

    def pragmas() -> list[object]:
        with store.read() as tx:
            return [
                tx._run(f"PRAGMA {name}").fetchone()[0]
                for name in ("journal_mode", "synchronous", "foreign_keys")
            ]

    full = 2
    assert pragmas() == ["wal", full, 1]
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(pragmas).result() == ["wal", full, 1]


@pytest.mark.sqlite  # the log of a file
def test_the_last_close_merges_the_write_ahead_log_into_the_file(path: Path) -> None:
    store = open_store(path, create=True)
    with store.write() as tx:
        tx.add_user(new_user("ada"))
    with ThreadPoolExecutor(1) as pool:
        pool.submit(lambda: store.glance().__enter__().user(1)).result()
    store.close()
    assert [file.name for file in path.parent.iterdir()] == ["users.db"]


@pytest.mark.sqlite  # a missing file
@pytest.mark.parametrize("write", [True, False])
def test_a_missing_database_is_an_error_that_names_the_path_and_why(path: Path, write: bool) -> None:
    with pytest.raises(StoreUnusable) as refused:
        open_store(path, write=write, why="USERS_DATABASE")
    assert str(path) in str(refused.value)
    assert "USERS_DATABASE" in str(refused.value)
    assert refused.value.hint
    assert list(path.parent.iterdir()) == []


@pytest.mark.sqlite  # a missing file
def test_a_database_that_is_lost_later_is_an_error_and_no_empty_one_appears(
    path: Path, opened: Callable[..., Store]
) -> None:
    store = opened(path, create=True)
    for file in path.parent.iterdir():
        file.unlink()

    def look() -> None:
        with store.read() as tx:
            tx.user(1)

    with ThreadPoolExecutor(1) as pool, pytest.raises(StoreUnusable, match=r"users\.db"):
        pool.submit(look).result()
    assert list(path.parent.iterdir()) == []


def text_file(path: Path) -> None:
    path.write_text("just a text\n" * 100)


def random_file(path: Path) -> None:
    path.write_bytes(os.urandom(8192))


def short_file(path: Path) -> None:
    path.write_bytes(b"x" * 50)  # shorter than a header


def of_another_application(path: Path) -> None:
    with closing(sqlite3.connect(path)) as db:
        db.execute("CREATE TABLE recipes (id INTEGER PRIMARY KEY)")


def marked_by_another_application(path: Path) -> None:
    with closing(sqlite3.connect(path)) as db:
        db.execute("CREATE TABLE users (id INTEGER PRIMARY KEY, email TEXT, password TEXT)")
        db.execute("PRAGMA application_id = 1196444487")


def with_other_users(path: Path) -> None:
    with closing(sqlite3.connect(path)) as db:
        db.execute("CREATE TABLE users (nickname TEXT, score INTEGER)")


def of_the_future(path: Path) -> None:
    open_store(path, create=True).close()
    with closing(sqlite3.connect(path)) as db:
        db.execute("PRAGMA user_version = 99")


def truncated(path: Path) -> None:
    open_store(path, create=True).close()
    with path.open("r+b") as file:
        file.truncate(5000)


def folder(path: Path) -> None:
    path.mkdir()


def pipe(path: Path) -> None:
    os.mkfifo(path)


def link_to_nothing(path: Path) -> None:
    path.symlink_to(path.parent / "disk" / "users.db")


UNUSABLE_FILES = [
    (text_file, "is not a database"),
    (random_file, "is not a database"),
    (short_file, "is not a database"),
    (of_another_application, "is not a database of usersctl"),
    (marked_by_another_application, "is not a database of usersctl"),
    (with_other_users, "is not a database of usersctl"),
    (of_the_future, "version 99"),
    (truncated, "is damaged"),
    (folder, "is a folder and no database"),
    (pipe, "is a pipe or a device and no database"),
    (link_to_nothing, "is a link to .*/disk/users.db, where no file is"),
]


@pytest.mark.sqlite  # other files
@pytest.mark.parametrize(
    ("make", "message"), UNUSABLE_FILES, ids=[make.__name__ for make, _ in UNUSABLE_FILES]
)
@pytest.mark.parametrize("create", [True, False])
def test_a_file_that_is_no_database_of_usersctl_is_refused_by_name_and_not_changed(
    path: Path, make: Callable[[Path], None], message: str, create: bool
) -> None:
    make(path)
    before = path.read_bytes() if path.is_file() else None
    with pytest.raises(StoreUnusable, match=message) as refused:
        open_store(path, create=create)
    assert str(path) in str(refused.value)
    if (
        make is not with_other_users
    ):  # it was opened for writing, and its journal changed to the write-ahead log
        assert (path.read_bytes() if path.is_file() else None) == before
    assert [file.name for file in path.parent.iterdir()] == ["users.db"]


@pytest.mark.sqlite  # other files
@pytest.mark.parametrize(
    ("make", "message"),
    UNUSABLE_FILES[:3] + UNUSABLE_FILES[6:7],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_file_that_is_no_database_is_refused_for_reading_too(
    path: Path, make: Callable[[Path], None], message: str
) -> None:
    make(path)
    with pytest.raises(StoreUnusable, match=message):
        open_store(path, write=False)


@pytest.mark.sqlite  # an empty file
def test_an_empty_file_becomes_a_database_where_one_may_be_made(
    path: Path, opened: Callable[..., Store]
) -> None:
    path.touch()
    for write in (False, True):
        with pytest.raises(StoreUnusable, match="is empty") as refused:
            open_store(path, write=write)
        assert "db init" in str(refused.value.hint)
        assert "db restore" in str(refused.value.hint)
    assert path.stat().st_size == 0
    with opened(path, create=True).read() as tx:
        assert tx.count_users(UserFilter()) == 0


@pytest.mark.sqlite  # other files
def test_a_folder_that_is_a_file_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for create in (True, False):
        with pytest.raises(StoreUnusable, match=r"users\.db"):
            open_store(tmp_path / "file" / "users.db", create=create)


# --- read-only ---


AS_NOBODY = """
import os, sys, urllib.parse  # which Path.as_uri() needs
from pathlib import Path
from usersctl.errors import StoreUnusable
from usersctl.models import UserFilter
from usersctl.store.opening import open_store
from usersctl.store.sqlite_store import SQLiteStore  # before it may read the modules no more
path, how = Path(sys.argv[1]), sys.argv[2]
if os.geteuid() == 0:
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
try:
    store = open_store(path, write=how != "read")
    if how == "read":
        with store.read() as tx:
            print(tx.count_users(UserFilter()))
    else:
        with store.write() as tx:
            tx.add_token(1, b"x", kind="api", name="x", created_at="x")
except StoreUnusable as error:
    print(error)
"""


def as_nobody(how: str, path: Path) -> str:
    """What somebody is told who owns nothing: root can read and write everything, so its rights are given up."""
    done = subprocess.run(
        [sys.executable, "-c", AS_NOBODY, path, how], capture_output=True, text=True, timeout=60, check=True
    )
    return done.stdout.strip()


@pytest.fixture
def shared() -> Iterator[Path]:
    """A folder that others may enter, as pytest's own is not."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


@pytest.fixture
def read_only(shared: Path) -> Iterator[Path]:
    """A database that everybody may read and nobody may write, in a folder of the same kind."""
    folder = shared / "disk"
    store = open_store(folder / "users.db", create=True)
    with store.write() as tx:
        tx.add_user(new_user("ada"))
    store.close()
    (folder / "users.db").chmod(0o444)
    folder.chmod(0o555)
    yield folder / "users.db"
    folder.chmod(0o755)


@pytest.mark.sqlite  # the disk of a file
def test_a_database_on_a_read_only_disk_can_be_read(read_only: Path) -> None:
    assert as_nobody("read", read_only) == "1"


@pytest.mark.sqlite  # the disk of a file
def test_a_database_on_a_read_only_disk_cannot_be_written_and_says_so(read_only: Path) -> None:
    assert as_nobody("write", read_only) in (f"{read_only} is read-only", f"{read_only} cannot be opened")


@pytest.mark.sqlite  # modes of files
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a file that somebody else may not see")
@pytest.mark.parametrize("how", ["read", "write"])
def test_a_database_without_read_permission_is_refused_by_name(shared: Path, how: str) -> None:
    path = shared / "closed" / "users.db"
    open_store(path, create=True).close()
    assert as_nobody(how, path) == f"{path} cannot be opened: Permission denied"
    path.parent.chmod(0o755)
    assert as_nobody(how, path) == f"{path} may not be read by this user"
    path.chmod(0o644)
    log = Path(f"{path}-wal")  # whose changes would be lost with it
    log.touch(0o600)
    assert as_nobody(how, path) == f"{log} may not be read by this user"


@pytest.mark.sqlite  # modes of files
def test_a_folder_that_is_closed_to_this_user_is_told_with_the_way_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: Path) -> bool:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(Path, "is_dir", refuse)
    with pytest.raises(StoreUnusable, match="cannot be opened: Permission denied") as refused:
        open_store(tmp_path / "users.db")
    assert refused.value.hint == "run it as the owner of its folder, or as root"


def test_a_store_that_is_opened_for_reading_cannot_be_written(
    database: Database, opened: Callable[..., Store]
) -> None:
    opened(database, create=True)
    store = opened(database, write=False)
    with pytest.raises(StoreUnusable, match="is read-only"), store.write() as tx:
        tx.add_user(new_user("ada"))


# --- transactions ---


def test_a_failure_rolls_back_the_transaction(service: Service) -> None:
    def fail() -> None:
        with service.store.write() as tx:
            assert tx.add_user(new_user("ada"))
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    with service.store.write() as tx:  # and the next one begins afresh
        assert tx.user_by_email("ada@example.com") is None


def test_a_write_without_commit_is_rolled_back(service: Service) -> None:
    with service.store.write(commit=False) as tx:
        assert tx.add_user(new_user("ada"))
    with service.store.read() as tx:
        assert tx.user_by_email("ada@example.com") is None


def test_a_reader_sees_a_snapshot(service: Service, add: Callable[..., User]) -> None:
    add("ada")
    with service.store.read() as tx:
        assert tx.count_users(UserFilter()) == 1
        with ThreadPoolExecutor(1) as pool:
            pool.submit(add, "bob").result(5)
        assert tx.count_users(UserFilter()) == 1
        assert tx.user(2) is None
    with service.store.read() as tx:
        assert tx.count_users(UserFilter()) == 2


def seen(service: Service) -> int:
    with service.store.glance() as tx:
        return tx.count_users(UserFilter())


@pytest.mark.sqlite  # on a server each glance is alone
def test_glances_together_see_one_moment(
    service: Service, clock: FakeClock, add: Callable[..., User]
) -> None:
    def add_later(name: str) -> None:
        clock.move(minutes=1)
        with ThreadPoolExecutor(1) as pool:
            pool.submit(add, name).result(5)

    with service.store.together():
        assert seen(service) == 0
        with service.store.glance() as tx:
            then = tx.now
        add_later("ada")
        assert seen(service) == 0
        with service.store.glance() as tx:
            assert tx.now == then
    assert seen(service) == 1
    with service.store.together():
        add_later("bob")  # before the first glance
        assert seen(service) == 2
        assert clock() > then


@pytest.mark.sqlite  # on a server each glance is alone
@pytest.mark.parametrize("verb", ["read", "write", "an error", "a failing disk"])
def test_what_is_no_glance_ends_the_moment_of_those_together(
    service: Service, add: Callable[..., User], verb: str
) -> None:
    expected = 2 if verb == "write" else 1
    with service.store.together():
        assert seen(service) == 0
        with ThreadPoolExecutor(1) as pool:
            pool.submit(add, "ada").result(5)
        if verb == "read":
            with service.store.read() as tx:
                assert tx.count_users(UserFilter()) == 1
        elif verb == "write":
            with service.store.write() as tx:
                assert tx.add_user(new_user("bob"))
        elif verb == "an error":
            with pytest.raises(sqlite3.OperationalError), service.store.glance() as tx:
                tx._run("SELEKT")
        else:
            with service.store.glance() as tx:
                tx._run("ROLLBACK")  # as SQLite does it then
        assert seen(service) == expected
    assert seen(service) == expected


@pytest.mark.sqlite  # on a server each glance is alone
@pytest.mark.parametrize("missing", ["Transaction", "connection"])
def test_glances_are_answered_alone_if_an_error_keeps_them_from_being_together(
    service: Service, add: Callable[..., User], monkeypatch: pytest.MonkeyPatch, missing: str
) -> None:
    def refuse(*_: object) -> None:
        raise MemoryError

    with monkeypatch.context() as patched:
        if missing == "Transaction":
            patched.setattr(sqlite_store, "Transaction", refuse)
        else:
            patched.setattr(service.store, "_connection", refuse)
        with service.store.together():
            patched.undo()
            assert seen(service) == 0
            with ThreadPoolExecutor(1) as pool:
                pool.submit(add, "ada").result(5)
            assert seen(service) == 1
    assert seen(service) == 1


@pytest.mark.sqlite  # a file that is replaced
def test_glances_together_raise_what_each_of_them_would(path: Path, opened: Callable[..., Store]) -> None:
    store = opened(path, create=True)
    store.close()  # it opens the file again when it is used
    path.rename(path.with_suffix(".away"))
    path.write_bytes(b"no database" * 100)
    for _ in range(2):
        with store.together():
            for _ in range(2):
                with pytest.raises(StoreUnusable, match="is not a database"), store.glance() as tx:
                    tx.count_users(UserFilter())
    path.with_suffix(".away").rename(path)
    with store.together(), store.glance() as tx:
        assert tx.count_users(UserFilter()) == 0


def test_threads_that_read_and_then_write_never_fail(service: Service, add: Callable[..., User]) -> None:
    user = add("ada")

    def count(_: int) -> None:
        for _ in range(10):
            with service.store.write() as tx:
                stored = tx.user(user.id)
                assert stored is not None
                tx.change_user(user.id, name=str(int(stored.name) + 1) if stored.name.isdigit() else "1")

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(count, range(8)))
    assert service.accounts.get(user.id).name == "80"


def add_many(database: Database, letter: str) -> None:
    store = open_store(database)
    for number in range(50):
        with store.write() as tx:
            assert tx.count_users(UserFilter()) >= number
            assert tx.add_user(new_user(f"{letter}{number}"))
    store.close()


def test_processes_that_read_and_then_write_never_fail(
    database: Database, opened: Callable[..., Store]
) -> None:
    store = opened(database, create=True)
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=add_many, args=(database, letter)) for letter in "abc"]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
    assert [process.exitcode for process in processes] == [0, 0, 0]
    with store.read() as tx:
        assert tx.count_users(UserFilter()) == 150


def key_of(database: Database) -> bytes:
    store = open_store(database)
    try:
        return store.signing_key("cookies")
    finally:
        store.close()


@pytest.mark.slow
def test_processes_that_need_a_signing_key_make_one(database: Database, opened: Callable[..., Store]) -> None:
    store = opened(database, create=True)
    with ProcessPoolExecutor(4, mp_context=multiprocessing.get_context("spawn")) as pool:
        keys = set(pool.map(key_of, [database] * 8))
    assert keys == {store.signing_key("cookies")}
    assert len(store.signing_key("cookies")) == 32
    assert store.signing_key("other") not in keys


def test_a_signing_key_that_was_made_meanwhile_stays(
    database: Database, opened: Callable[..., Store]
) -> None:
    store = opened(database, create=True)
    key = store.signing_key("cookies")
    with store.write() as tx:
        assert tx.make_signing_key("cookies") == key
    assert store.signing_key("cookies") == key


def test_a_writer_that_waits_too_long_for_another_process_is_refused_as_busy(
    database: Database, opened: Callable[..., Store], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert database_file.BUSY_SECONDS == 5.0
    monkeypatch.setattr(database_file, "BUSY_SECONDS", 0.5)
    store = opened(database, create=True)
    waited = []

    def write(_: int) -> None:
        began = time.monotonic()
        with pytest.raises(Busy) as refused, store.write():
            pass
        assert refused.value.retry_after > 0
        waited.append(time.monotonic() - began)

    with held(database):
        with store.read() as tx:
            assert tx.user(1) is None  # readers are not kept waiting
        with ThreadPoolExecutor(6) as pool:
            list(pool.map(write, range(6)))
    # One after the other they would wait for three seconds.
    assert max(waited) < 1.2
    with store.write() as tx:
        assert tx.add_user(new_user("ada"))


def test_a_writer_continues_when_another_process_is_done(
    database: Database, opened: Callable[..., Store]
) -> None:
    store = opened(database, create=True)
    with ThreadPoolExecutor(1) as pool:
        with held(database):

            def write() -> User | None:
                with store.write() as tx:
                    return tx.add_user(new_user("ada"))

            waiting = pool.submit(write)
            time.sleep(0.1)
            assert not waiting.done()
        assert waiting.result(5)


@pytest.mark.sqlite  # the disk of a file
@pytest.mark.skipif(not hasattr(resource, "RLIMIT_FSIZE"), reason="needs a limit on the size of files")
def test_a_full_disk_is_reported_and_ends_when_there_is_space(
    path: Path, opened: Callable[..., Store]
) -> None:
    store = opened(path, create=True)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    size = sum(file.stat().st_size for file in path.parent.iterdir())
    with store.write() as tx:
        assert tx.add_user(new_user("ada"))

    def fill() -> None:
        for number in range(200):
            with store.write() as tx:
                tx.add_user(new_user(f"{'x' * 60}{number}"))

    resource.setrlimit(resource.RLIMIT_FSIZE, (size // 2, before[1]))
    try:
        with pytest.raises(StoreUnusable, match="the disk is full"):
            fill()
        with store.read() as tx:
            assert tx.user(1)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    with store.write() as tx:
        assert tx.add_user(new_user("bob"))


@pytest.mark.sqlite  # the disk of a file
def test_a_full_disk_is_told_with_the_way_on(path: Path, opened: Callable[..., Store]) -> None:
    store = opened(path, create=True)

    def fill() -> None:
        with store.write() as tx:
            tx._run("PRAGMA max_page_count = 1")  # SQLite takes the present size
            for number in range(5000):
                tx.add_user(new_user(f"{'x' * 60}{number}"))

    with pytest.raises(StoreUnusable, match="cannot grow: the disk is full") as told:
        fill()
    # Without it a restore advises what helps a database that is beyond repair.
    assert str(told.value.hint).startswith("make room on that disk")


def test_an_sql_error_of_the_program_is_not_translated(service: Service) -> None:
    syntax, constraint = (sqlite3.OperationalError,), (sqlite3.IntegrityError,)
    if postgres.is_whole():
        syntax = constraint = service.store.foreign_errors
    with pytest.raises(syntax, match="syntax error"), service.store.read() as tx:
        tx._run("SELEKT")
    with pytest.raises(constraint), service.store.write() as tx:
        tx.add_user(new_user("ada")._replace(role="root"))


def test_a_taken_address_or_provider_account_is_refused(service: Service) -> None:
    with service.store.write() as tx:
        ada = tx.add_user(new_user("ada"))
        tx.add_identities([Identity(ada.id, "oauth", "", "7")])
        with pytest.raises(Taken):
            tx.add_user(new_user("ada"))
        bob = tx.add_user(new_user("bob"))
        for taken in (Identity(bob.id, "oauth", "", "7"), Identity(ada.id, "oauth", "", "8")):
            with pytest.raises(Taken):
                tx.add_identities([taken])
        assert [user and user.oauth_id for user in map(tx.user, (ada.id, bob.id))] == ["7", None]


def test_a_thread_that_has_ended_leaves_no_connection(
    database: Database, opened: Callable[..., Store]
) -> None:
    store = opened(database, create=True)

    def read() -> None:
        with store.glance() as tx:
            assert tx.count_live_tokens() == 0

    def files() -> int:
        return len(list(Path("/proc/self/fd").iterdir()))

    read()
    before = files()
    for _ in range(20):
        thread = threading.Thread(target=read)
        thread.start()
        thread.join()
    assert files() < before + 10


def test_close_is_for_every_thread_and_the_store_can_be_used_again(service: Service) -> None:
    arrived, leave = threading.Barrier(2), threading.Event()

    def stay() -> User | None:
        with service.store.glance() as tx:
            tx.user(1)
        arrived.wait()
        leave.wait(5)
        with service.store.glance() as tx:
            return tx.user(1)

    with ThreadPoolExecutor(1) as pool:
        staying = pool.submit(stay)
        arrived.wait()
        service.store.close()
        leave.set()
        assert staying.result(5) is None
    with pytest.raises(NotFound):
        service.accounts.set_active([1], active=True, by=OPERATOR)


def accounts_to_delete(service: Service) -> list[User]:
    with service.store.read() as tx:
        return tx.users_to_delete(5)


# --- how rows are found ---

Operation = Callable[[Service, str, User], object]
# By what is found, how SQLite gets there. A first page reads an index in its order, and no further than needed.
FOUND: dict[str, tuple[str, Operation]] = {
    "a login": (r"SEARCH users USING INDEX \w+ \(email=\?\)", lambda service, _token, user: service.sessions.login(user.email, PASSWORD)),
    "a session": (r"SEARCH auth_tokens USING INDEX \w+ \(token_hash=\?\)", lambda service, token, _: service.sessions.check(token)),
    "the first page": (r"SCAN users USING INDEX users_by_name", lambda service, *_: service.accounts.page(UserFilter())),
    "the first inactive": (r"SEARCH users USING INDEX users_by_activity_and_name \(active=\?\)", lambda service, *_: service.accounts.page(UserFilter(active=False))),
    "active by email": (r"SEARCH users USING INDEX users_by_activity_and_email \(active=\?\)", lambda service, *_: service.accounts.page(UserFilter(state="active", sort="email"))),
    "accounts to delete": (r"SEARCH users USING INDEX users_by_deletion \(delete_at<\?\)", lambda service, *_: accounts_to_delete(service)),
    "accounts to invite": (r"SEARCH users USING INTEGER PRIMARY KEY \(rowid>\?\)", lambda service, *_: list(service.invitations.without_password())),
    "the first admins": (r"SCAN users USING INDEX users_admins_by_name", lambda service, *_: service.accounts.page(UserFilter(role="admin"))),
    "a page after": (r"SEARCH users USING INDEX users_by_name \(name_folded=\? AND name=\? AND id>\?\)", lambda service, _, user: service.accounts.page(UserFilter(), after=user.id)),
    "the last to be created": (r"SCAN users USING INDEX users_by_creation", lambda service, *_: service.accounts.page(UserFilter(sort="created", descending=True))),
    "the last to sign in": (r"SCAN users USING INDEX users_by_last_login", lambda service, *_: service.accounts.page(UserFilter(sort="last-login", descending=True))),
    "admins by email": (r"SCAN users USING INDEX users_admins_by_email", lambda service, *_: service.accounts.page(UserFilter(role="admin", active=True, sort="email"))),
    "inactive by creation": (r"SEARCH users USING INDEX users_by_activity_and_creation \(active=\?\)", lambda service, *_: service.accounts.page(UserFilter(active=False, sort="created"))),
    "a page after by last login": (r"SEARCH users USING INDEX users_by_last_login \(login_order=\? AND rowid<\?\)", lambda service, _, user: service.accounts.page(UserFilter(sort="last-login", descending=True), after=user.id)),
}  # fmt: skip
FEW_ROWS = {"lockdown", "user_counts"}


@pytest.mark.sqlite  # the plan of SQLite
@pytest.mark.parametrize("what", FOUND)
def test_queries_read_no_more_rows_in_a_larger_database(
    service: Service, clock: FakeClock, add: Callable[..., User], what: str
) -> None:
    ada, _ = add("ada"), add("bob")
    token = service.sessions.login(ada.email, PASSWORD).token
    clock.move(minutes=5)  # and so the use of a session is noted
    expected, operation = FOUND[what]
    with statements(service) as run:
        operation(service, token, ada)
    asked = [statement for statement in run if re.match("SELECT|INSERT|UPDATE|DELETE|WITH", statement)]
    steps = [step for statement in asked for step in plan(service, statement)]
    assert any(re.fullmatch(expected, step) for step in steps), steps
    assert {step for step in steps if re.fullmatch(r"SCAN \w+", step)} <= {
        f"SCAN {table}" for table in FEW_ROWS
    }
    assert not [step for step in steps if "TEMP B-TREE" in step], steps


# Prints by how many megabytes the process has grown when 16 threads have read much, some at a time.
RESTING = """
import os
import sys
import threading
from pathlib import Path
from usersctl.store.opening import open_store

def memory():
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6

def read():
    for first in range(0, 3_000, 100):
        with store.read() as tx:
            for number in range(first, first + 100):
                tx.queued_email(number)
        store.rest()
    have_read.wait()
    may_end.wait()

store = open_store(Path(sys.argv[1]))
have_read, may_end = threading.Barrier(17), threading.Event()
before = memory()
for _ in range(16):
    threading.Thread(target=read).start()
have_read.wait()
print(memory() - before)
may_end.set()
"""


@pytest.mark.sqlite  # the cache of a connection to a file
@pytest.mark.skipif(sys.platform != "linux", reason="reads the memory of a process from /proc")
def test_threads_that_wait_for_something_else_keep_no_pages_in_memory(path: Path) -> None:
    with closing(open_store(path, create=True)) as store, store.write() as tx:
        for number in range(3_000):
            tx.add_email("reset", None, f"{number}@example.com", f"{number}" * 250, dropped=False)
    done = subprocess.run(
        [sys.executable, "-c", RESTING, path], capture_output=True, text=True, check=True, timeout=60
    )
    assert float(done.stdout) < 20  # of 36


def test_closing_waits_for_a_thread_that_is_amid_a_change(database: Database) -> None:
    store = open_store(database, create=True)
    begun, may_end = threading.Event(), threading.Event()

    def change() -> None:
        with store.write() as tx:
            begun.set()
            may_end.wait(10)
            tx.audit(OPERATOR, "late")

    with ThreadPoolExecutor(2) as pool:
        changing = pool.submit(change)
        assert begun.wait(10)
        closing = pool.submit(store.close)
        assert not wait([closing], timeout=0.2).done
        may_end.set()
        changing.result(10)
        closing.result(10)
    reopened = open_store(database)
    with reopened.read() as tx:
        assert [row.action for row in tx.audit_rows()] == ["late"]
    reopened.close()
