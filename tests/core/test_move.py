"""A move to another database, on a PostgreSQL server or in a file: everything arrives, or both stay as they were."""

import random
import sqlite3
import threading
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from support import postgres
from support.accounts import stored_sessions
from support.backups import ignore, restored
from support.commands import OPERATOR, PASSWORD, by_hand, create_user
from support.factors import add_factors
from support.web import Site

from usersctl.errors import Busy, OtherVersion, Outdated, ServerAway, StoreUnusable, Taken, UsersError
from usersctl.models import SYSTEM, User
from usersctl.service import Service
from usersctl.sessions import Opened
from usersctl.store import backup, progress
from usersctl.store.conninfo import Conninfo, Database
from usersctl.store.content import tables
from usersctl.store.database_file import VERSION
from usersctl.store.move import move
from usersctl.store.opening import open_store
from usersctl.store.store import Store
from usersctl.store.transaction import Transaction

pytestmark = [pytest.mark.sqlite, pytest.mark.slow]  # each test names its databases

Make = Callable[..., Conninfo]
ME = "/api/users/me"
ODD = 'Ada "Countess"\t\\N\\x41\n of 🐎, \U0010ffff'


@pytest.fixture(autouse=True)
def progress_is_drawn_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "DRAWN_EVERY", 5)


def content(database: Database) -> Any:
    with closing(open_store(database, write=False)) as store, store.read() as tx:
        rows = {table: list(map(tuple, tx.all_rows(table, columns))) for table, columns in tables().items()}
        return rows, tx.last_ids(), tx.check_audit()


def moved(source: Database, to: Database) -> dict[str, int]:
    with closing(open_store(source)) as store:
        return move(store, to, ignore)


@pytest.fixture
def filled(service: Service, add: Callable[..., User]) -> Service:
    """Something in most tables, and an id that was given and deleted."""
    ada, bob, eve = add("ada", role="admin"), add("bob"), add("eve")
    service.accounts.update(bob.id, name="Bob", by=OPERATOR)
    with service.store.write() as tx:
        tx.change_user(bob.id, name=ODD)
    service.sessions.login(ada.email, PASSWORD)
    service.sessions.login(bob.email, PASSWORD)
    add_factors(service, ada.id)
    service.groups.create("staff", by=OPERATOR)
    service.groups.add("staff", [ada.id, bob.id], by=OPERATOR)
    service.recovery.forgot(bob.email)
    service.accounts.delete([eve.id], by=OPERATOR)
    service.store.signing_key("devices")
    return service


def test_everything_arrives_on_a_server_and_comes_back(
    filled: Service, postgres_database: Make, tmp_path: Path
) -> None:
    before, exported = content(filled.store.database), list(filled.transfer.export_rows(with_hashes=True))
    server, back = postgres_database(empty=True), tmp_path / "back.db"
    counts = moved(filled.store.database, server)
    assert counts == {table: len(rows) for table, rows in before[0].items()}
    assert {table for table, count in counts.items() if count} >= {
        "users", "auth_tokens", "totp_secrets", "passkeys", "recovery_codes", "groups", "group_members", "outbox", "signing_keys", "audit",
    }  # fmt: skip
    assert content(server) == before
    moved(server, back)
    assert content(back) == before
    with closing(open_store(back)) as store:
        assert backup.check_in_use(store).problems == []
        service = Service(filled.settings, store)
        assert list(service.transfer.export_rows(with_hashes=True)) == exported
        assert service.sessions.login("bob@example.com", PASSWORD).user.name == ODD


def test_the_new_database_goes_on_where_the_old_one_ended(filled: Service, postgres_database: Make) -> None:
    server, bob = postgres_database(empty=True), filled.accounts.find("bob@example.com")
    opened = filled.sessions.login(bob.email, PASSWORD)
    assert isinstance(opened, Opened)
    moved(filled.store.database, server)
    with closing(open_store(server)) as store:
        service = Service(filled.settings, store, filled.now)
        assert service.sessions.check(opened.token) is not None
        # The id between them was that of a user who was deleted.
        assert create_user(service, "new@example.com", "New", PASSWORD).id == bob.id + 2
        with store.read() as tx:
            assert tx.check_audit().problem is None
            assert list(tx.miscounted()) == []


def test_a_file_without_its_note_of_the_last_ids_goes_on_behind_its_rows(
    filled: Service, postgres_database: Make
) -> None:
    """A tool that copies tables may lose the note."""
    server, bob = postgres_database(empty=True), filled.accounts.find("bob@example.com")
    with closing(sqlite3.connect(str(filled.store.database))) as connection, connection:
        connection.execute("DELETE FROM sqlite_sequence")
    moved(filled.store.database, server)
    with closing(open_store(server)) as store:
        service = Service(filled.settings, store, filled.now)
        assert create_user(service, "new@example.com", "New", PASSWORD).id == bob.id + 1


def test_a_file_with_a_table_of_another_application_moves_without_it(
    filled: Service, postgres_database: Make, tmp_path: Path
) -> None:
    before, file = content(filled.store.database)[0], filled.store.path
    server, back = postgres_database(empty=True), tmp_path / "back.db"
    with closing(sqlite3.connect(file)) as connection, connection:
        connection.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY AUTOINCREMENT)")
        connection.execute("INSERT INTO orders DEFAULT VALUES")
    moved(file, server)
    assert content(server)[0] == before
    moved(server, back)
    with closing(sqlite3.connect(back)) as connection:
        assert ("orders",) not in connection.execute("SELECT name FROM sqlite_sequence").fetchall()


def test_a_server_with_a_table_of_another_application_moves_and_is_upgraded_without_it(
    on_server: Service, tmp_path: Path
) -> None:
    database = Conninfo(on_server.store.name)
    before = content(database)[0]
    with postgres.opened(database) as connection:
        number = "BIGINT GENERATED ALWAYS AS IDENTITY"
        connection.run(f'CREATE TABLE orders (number {number}); CREATE TABLE "Parts" (id {number})')
        connection.run('INSERT INTO orders DEFAULT VALUES; INSERT INTO "Parts" DEFAULT VALUES')
    older(database)
    open_store(database).close()
    moved(database, tmp_path / "back.db")
    assert content(tmp_path / "back.db")[0] == before


def test_a_server_has_nothing_to_vacuum_after_a_move(filled: Service, postgres_database: Make) -> None:
    server = postgres_database(empty=True)
    moved(filled.store.database, server)
    with postgres.opened(server) as connection:
        pages = connection.run(
            "SELECT relpages, relallvisible FROM pg_class WHERE relname IN ('users', 'auth_tokens', 'audit')"
        ).fetchall()
    assert len(pages) == 3
    assert all(visible == present > 0 for present, visible in pages)


def test_a_running_service_refuses_the_old_database_at_its_next_request(
    site: Site, add: Callable[..., User], postgres_database: Make, tmp_path: Path
) -> None:
    service, user = site.service, add("ada", role="admin")
    client = site.signed_in(user)
    server, back = postgres_database(empty=True), tmp_path / "back.db"
    with closing(open_store(service.store.database)) as other:
        move(other, server, ignore)
    assert client.get(ME).status == 503
    assert client.patch(ME, {"name": "Lost"}).status == 503
    assert service.readiness.failing() == ["schema"]
    with pytest.raises(OtherVersion, match=f"users.db was moved to {server}") as refused:
        service.accounts.get(user.id)
    assert refused.value.hint is not None
    assert f'set database = "{server}"' in refused.value.hint
    with closing(open_store(server)) as there:
        on_server = Service(service.settings, there)
        assert on_server.accounts.get(user.id).name == user.name
        moved(server, back)
        with pytest.raises(UsersError):
            on_server.accounts.get(user.id)  # its connection was ended
        with pytest.raises(OtherVersion, match=rf"{server} was moved to \S+back\.db"):
            on_server.accounts.get(user.id)
    with closing(open_store(back)) as store:
        assert Service(service.settings, store).accounts.get(user.id).name == user.name


@pytest.mark.parametrize("on_server", [False, True])
def test_a_change_that_waits_for_the_move_is_refused_and_never_lost(
    service: Service, postgres_database: Make, tmp_path: Path, on_server: bool
) -> None:
    database: Database = service.store.database
    to: Database = tmp_path / "new.db"
    if on_server:
        database = postgres_database()
    answered: list[str] = []
    refused: list[UsersError] = []
    begun, stop = threading.Event(), threading.Event()

    def write(number: int) -> None:
        with closing(open_store(database)) as store:
            while not stop.is_set():
                try:
                    with store.write() as tx:
                        tx.audit(SYSTEM, "noted", number=number)
                    answered.append("noted")
                    begun.set()
                except UsersError as error:
                    refused.append(error)
                    time.sleep(0.01)

    writers = [threading.Thread(target=write, args=(number,)) for number in range(4)]
    for writer in writers:
        writer.start()
    assert begun.wait(20)
    moved(database, to)
    stop.set()
    for writer in writers:
        writer.join(30)
    assert any(isinstance(error, OtherVersion) for error in refused)
    with closing(open_store(to)) as store, store.read() as tx:
        assert tx.count_rows("audit") == len(answered)
        assert tx.check_audit().problem is None


def test_only_a_new_or_empty_database_is_filled(
    service: Service, add: Callable[..., User], postgres_database: Make, tmp_path: Path
) -> None:
    add("ada")
    before = content(service.store.database)
    (tmp_path / "taken.db").write_text("precious")
    used, foreign = postgres_database(), postgres_database(empty=True)
    with closing(open_store(used)) as store:
        create_user(Service(service.settings, store), "eve@example.com", "Eve", PASSWORD)
    with postgres.opened(foreign) as connection:
        connection.run("CREATE TABLE users (id INT)")
    for to, problem in {
        tmp_path / "taken.db": "is there already",
        service.store.database: "is the database itself",
        used: "is not empty",
        foreign: "has tables of another application: users",
    }.items():
        with pytest.raises(Taken, match=problem):
            move(service.store, to, ignore)
    with postgres.opened(used) as connection:
        connection.run("CREATE SCHEMA other")
    beside = Conninfo(f"{used}?options=-csearch_path%3Dother")
    with pytest.raises(StoreUnusable, match="has a service already, in the schema public"):
        move(service.store, beside, ignore)
    assert (tmp_path / "taken.db").read_text() == "precious"
    assert content(service.store.database) == before
    with postgres.opened(foreign) as connection:
        assert connection.run("SELECT count(*) FROM users").fetchall() == [(0,)]
    fresh = postgres_database()  # has tables, as after db init
    move(service.store, fresh, ignore)
    assert content(fresh) == before


def test_a_database_is_not_moved_into_itself_by_another_name(on_server: Service) -> None:
    database = on_server.store.database
    assert isinstance(database, Conninfo)
    other = Conninfo(f"{database}{'&' if '?' in database else '?'}connect_timeout=9")
    began = time.monotonic()
    with pytest.raises(Taken, match="is not empty"):
        move(on_server.store, other, ignore)
    assert time.monotonic() - began < 3  # it waits for no writer: that is this very move
    assert on_server.accounts.find("bob@example.com")


@pytest.mark.parametrize("on_server", [False, True])
@pytest.mark.parametrize("at_the_end", [False, True])
def test_a_move_that_fails_leaves_both_as_they_were(
    filled: Service, postgres_database: Make, tmp_path: Path, at_the_end: bool, on_server: bool
) -> None:
    database, to = filled.store.database, postgres_database(empty=True)
    if on_server:
        moved(database, to)
        database, to = to, tmp_path / "new.db"
    before = content(database)

    def fail(done: int, total: int) -> None:
        if (done == total) is at_the_end:
            raise KeyboardInterrupt

    with closing(open_store(database)) as store:
        with pytest.raises(KeyboardInterrupt):
            move(store, to, fail)
        assert list(tmp_path.glob("new*")) == []
        if isinstance(to, Conninfo):
            with postgres.opened(to) as connection:
                assert connection.run("SELECT 1 FROM pg_class WHERE relname = 'users'").fetchall() == []
        with store.write() as tx:
            tx.change_nothing()
    assert content(database) == before
    moved(database, to)
    assert content(to) == before


def test_a_move_that_is_interrupted_during_its_commit_says_that_it_is_done(
    filled: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, to = filled.store, tmp_path / "new.db"
    mark = store.mark_as_moved

    def interrupt() -> None:
        raise KeyboardInterrupt

    def mark_and_interrupt(tx: Transaction, moved_to: str) -> None:
        mark(tx, moved_to)
        tx.after_commit(interrupt)

    monkeypatch.setattr(store, "mark_as_moved", mark_and_interrupt)
    with pytest.raises(
        KeyboardInterrupt, match=r"but all is done: .* was moved to .*new\.db; set database = "
    ):
        move(store, to, ignore)
    with closing(open_store(to)) as new, new.read() as tx:
        assert tx.count_rows("users")


def test_what_a_server_does_not_take_stops_the_move(
    service: Service, add: Callable[..., User], postgres_database: Make
) -> None:
    ada = add("ada")
    with service.store.write() as tx:
        tx.change_user(ada.id, name="A\0")
    with pytest.raises(StoreUnusable, match="users holds text with a zero byte"):
        move(service.store, postgres_database(empty=True), ignore)
    assert service.accounts.find("ada@example.com")


def test_an_identity_that_is_too_long_for_an_index_stops_the_move(
    service: Service, add: Callable[..., User], postgres_database: Make
) -> None:
    """As an import took it once."""
    ada, subject = add("ada"), "".join(random.Random(1).choices("abcdefghijklmnopqrstuvwxyz", k=6000))
    with service.store.write() as tx:
        tx._insert("identities", user_id=ada.id, provider="oauth", issuer="", subject=subject)
    with pytest.raises(StoreUnusable, match=r"does not take a value of that length .*identities"):
        move(service.store, postgres_database(empty=True), ignore)


def test_a_trail_that_is_broken_stops_the_move(filled: Service, postgres_database: Make) -> None:
    by_hand(filled.store.path, "UPDATE audit SET actor = 'cli:me' WHERE id = 2")
    with pytest.raises(StoreUnusable, match="row 2 does not follow") as refused:
        move(filled.store, postgres_database(empty=True), ignore)
    assert refused.value.hint == "see: usersctl db verify"


def test_a_file_that_was_moved_is_a_backup_of_that_moment(
    filled: Service, postgres_database: Make, tmp_path: Path
) -> None:
    before = content(filled.store.database)
    moved(filled.store.database, postgres_database(empty=True))
    assert filled.store.path.stat().st_mode & 0o777 == 0o400
    restored(filled.store.path, tmp_path / "new.db", keep_tokens=True)
    assert content(tmp_path / "new.db")[0]["users"] == before[0]["users"]


# --- backups of a server ---


@pytest.fixture
def on_server(filled: Service, postgres_database: Make) -> Service:
    """The same accounts on a server."""
    database = postgres_database(empty=True)
    moved(filled.store.database, database)
    store = open_store(database)
    filled.store.close()
    filled.store = store
    return Service(filled.settings, store, filled.now)


def test_a_backup_of_a_server_is_a_file_of_one_moment(on_server: Service, tmp_path: Path) -> None:
    before = content(on_server.store.database)

    def write(done: int, _total: int) -> None:
        email = f"new{done}@example.com"
        thread = threading.Thread(target=lambda: create_user(on_server, email, "New", PASSWORD))
        thread.start()
        thread.join()

    counts = on_server.store.copy(tmp_path / "saved.db", write)
    assert counts["users"] == 2
    assert (tmp_path / "saved.db").stat().st_mode & 0o777 == 0o600
    rows, _last_ids, trail = content(tmp_path / "saved.db")
    assert (rows, trail) == (before[0], before[2])
    assert backup.check(tmp_path / "saved.db").problems == []
    assert on_server.accounts.find("new5@example.com")


def test_a_restore_to_a_server_brings_back_what_may_return(on_server: Service, tmp_path: Path) -> None:
    service, file = on_server, tmp_path / "backups" / "saved.db"
    file.parent.mkdir()
    bob = service.accounts.find("bob@example.com")
    opened = service.sessions.login(bob.email, PASSWORD)
    assert isinstance(opened, Opened)
    service.store.copy(file)
    service.accounts.update(bob.id, name="Robert", by=OPERATOR)
    later = create_user(service, "later@example.com", "Later", PASSWORD)
    service.lockdown.start(None, by=OPERATOR)
    replaced = content(service.store.database)
    kept = restored(file, service.store.database)
    assert kept is not None
    assert kept.parent == file.parent
    assert content(kept) == replaced
    assert service.accounts.get(bob.id).name == ODD
    assert service.sessions.check(opened.token) is None
    assert service.lockdown.state() is not None
    service.lockdown.stop(by=OPERATOR)
    assert create_user(service, "next@example.com", "Next", PASSWORD).id == later.id + 1
    assert backup.check_in_use(service.store).problems == []
    with service.store.read() as tx:
        assert tx.last_of("restore") is not None
    restored(file, service.store.database, keep_tokens=True)
    assert service.sessions.check(opened.token) is not None


def test_a_restore_to_a_server_that_fails_changes_nothing(on_server: Service, tmp_path: Path) -> None:
    on_server.store.copy(tmp_path / "saved.db")
    create_user(on_server, "new@example.com", "New", PASSWORD)
    before = content(on_server.store.database)

    def stop(_done: int, _total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        restored(tmp_path / "saved.db", on_server.store.database, progress=stop)
    assert content(on_server.store.database) == before
    assert list(tmp_path.glob("*.before-*")) == []
    assert create_user(on_server, "newer@example.com", "Newer", PASSWORD)


# --- a commit that takes long ---


@pytest.fixture
def slow(on_server: Service, monkeypatch: pytest.MonkeyPatch) -> Callable[[Store], None]:
    """Makes the commit of the transaction of a store take two seconds; no other answer may take half a second."""
    assert isinstance(on_server.store.database, Conninfo)
    with postgres.opened(on_server.store.database) as connection:
        connection.run(
            "CREATE TABLE slow (n INT);"
            " CREATE FUNCTION sleeps() RETURNS trigger LANGUAGE plpgsql AS"
            " $$ BEGIN PERFORM pg_sleep(2); RETURN NULL; END $$;"
            " CREATE CONSTRAINT TRIGGER slow AFTER INSERT ON slow DEFERRABLE INITIALLY DEFERRED"
            " FOR EACH ROW EXECUTE FUNCTION sleeps()"
        )
    monkeypatch.setattr("usersctl.store.postgres.driver.SILENCE", 0.5)
    on_server.store.close()  # its next connection knows
    return lambda store: store.begun()._connection.run("INSERT INTO slow VALUES (1)")


@pytest.fixture
def stores(monkeypatch: pytest.MonkeyPatch) -> list[Store]:
    """Those that a restore opens."""
    opened: list[Store] = []

    def opening(*arguments: Any, **options: Any) -> Store:
        opened.append(open_store(*arguments, **options))
        return opened[-1]

    monkeypatch.setattr(backup, "open_store", opening)
    return opened


@pytest.mark.parametrize("is_cut", [False, True])
def test_a_restore_whose_commit_takes_long_is_done(
    on_server: Service,
    tmp_path: Path,
    slow: Callable[[Store], None],
    stores: list[Store],
    monkeypatch: pytest.MonkeyPatch,
    is_cut: bool,
) -> None:
    """Also one whose connection ends before the server answers."""
    on_server.store.copy(tmp_path / "saved.db")
    create_user(on_server, "new@example.com", "New", PASSWORD)
    if is_cut:
        monkeypatch.setattr("usersctl.store.postgres.store.LONGEST", 0.5)

    def at_the_end(done: int, total: int) -> None:
        if done == total:
            slow(next(store for store in stores if store.database == on_server.store.database))
            monkeypatch.setattr("usersctl.store.postgres.driver.SILENCE", 5.0)  # for later connections

    kept = restored(tmp_path / "saved.db", on_server.store.database, progress=at_the_end)
    assert kept is not None
    assert len(content(kept)[0]["users"]) == 3
    assert len(content(on_server.store.database)[0]["users"]) == 2


def test_a_move_whose_commit_takes_long_is_done(
    on_server: Service, tmp_path: Path, slow: Callable[[Store], None]
) -> None:
    def at_the_end(done: int, total: int) -> None:
        if done == total:
            slow(on_server.store)

    move(on_server.store, tmp_path / "new.db", at_the_end)
    with pytest.raises(OtherVersion, match=r"was moved to .*new\.db"):
        on_server.accounts.find("bob@example.com")


def test_a_restore_that_loses_the_server_says_that_nothing_was_replaced(
    on_server: Service, tmp_path: Path
) -> None:
    on_server.store.copy(tmp_path / "saved.db")
    database = on_server.store.database
    assert isinstance(database, Conninfo)
    before = content(database)

    def cut(done: int, total: int) -> None:
        if done == total:
            postgres.end_connections(database)

    with pytest.raises(ServerAway) as told:
        restored(tmp_path / "saved.db", database, progress=cut)
    assert told.value.hint == "nothing was replaced: restore again when the server is back"
    assert content(database) == before
    assert list(tmp_path.glob("*.before-*")) == []


def test_a_restore_of_which_nothing_is_known_keeps_the_replaced_database(
    on_server: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_server.store.copy(tmp_path / "saved.db")

    def cut(done: int, total: int) -> None:
        if done == total:
            monkeypatch.setattr(backup, "open_store", away)
            raise ServerAway("the server is away")

    def away(*_: Any, **_options: Any) -> Store:
        raise ServerAway("the server is away")

    with pytest.raises(
        StoreUnusable, match=r"is away\. It is not known whether the backup was restored"
    ) as told:
        restored(tmp_path / "saved.db", on_server.store.database, progress=cut)
    (kept,) = tmp_path.glob("*.before-*")
    assert str(told.value.hint).endswith(f"is kept as {kept}")


def test_readers_go_on_while_a_server_is_restored(on_server: Service, tmp_path: Path) -> None:
    on_server.store.copy(tmp_path / "saved.db")
    seen: list[int] = []

    def look(done: int, total: int) -> None:
        if done < total:
            thread = threading.Thread(target=lambda: seen.append(len(stored_sessions(on_server))))
            thread.start()
            thread.join()

    restored(tmp_path / "saved.db", on_server.store.database, progress=look)
    assert set(seen) == {2}
    assert stored_sessions(on_server) == []


@pytest.mark.parametrize(
    ("change", "check", "message"),
    [
        ("UPDATE user_counts SET n = n + 1 WHERE role = 'user' AND active = 1", "counts", "user_counts has"),
        ("DROP INDEX users_by_creation", "schema", "users_by_creation is missing"),
        ("ALTER TABLE users DISABLE TRIGGER users_counted_in", "schema", "users_counted_in is missing"),
        ("ALTER TABLE users DROP COLUMN profile_picture", "schema", "users.profile_picture is missing"),
        ("ALTER TABLE users DROP CONSTRAINT users_email_key", "schema", "users_email_key is missing"),
        (
            "ALTER TABLE outbox DROP CONSTRAINT outbox_user_id_fkey",
            "schema",
            "outbox_user_id_fkey is missing",
        ),
        (
            "UPDATE pg_index SET indisvalid = FALSE WHERE indexrelid = CAST('users_by_name' AS REGCLASS)",
            "schema",
            "users_by_name is missing",
        ),
        ("UPDATE audit SET details = '{}' WHERE id = 3", "audit", "row 3 does not follow"),
        ("DELETE FROM audit WHERE id = (SELECT max(id) FROM audit)", "audit", "its end was cut off"),
    ],
)
def test_a_check_of_a_server_finds(on_server: Service, change: str, check: str, message: str) -> None:
    assert backup.check_in_use(on_server.store).problems == []
    with postgres.opened(Conninfo(on_server.store.name)) as connection:
        connection.run(change)
    problems = backup.check_in_use(on_server.store).problems
    assert {problem.check for problem in problems} == {check}
    assert message in problems[0].message


@pytest.mark.parametrize(
    "change", ["DROP TABLE groups CASCADE", "ALTER TABLE users DROP COLUMN profile_picture"]
)
def test_a_server_that_is_not_whole_is_restored_to_a_new_database(
    on_server: Service, postgres_database: Make, tmp_path: Path, change: str
) -> None:
    """Because a restore keeps what it replaces."""
    database, saved = on_server.store.database, tmp_path / "saved.db"
    on_server.store.copy(saved)
    with postgres.opened(Conninfo(str(database))) as connection:
        connection.run(change)
    with pytest.raises(StoreUnusable, match="is not whole") as refused:
        restored(saved, database)
    assert refused.value.hint == "restore a backup to a new database, made with: createdb NAME"
    restored(saved, postgres_database(empty=True))


# --- versions ---


def older(database: Database) -> None:
    """As if an earlier version had made it: without a column, a table, an index, and with another trigger."""
    with postgres.opened(Conninfo(str(database))) as connection:
        connection.execute("UPDATE installation SET version = ?", (VERSION - 1,))
        connection.run(
            "ALTER TABLE users DROP COLUMN invited_nameless;"
            " DROP TABLE webhooks; DROP INDEX users_by_deletion; DROP TRIGGER users_counted_in ON users"
        )


def test_an_older_database_on_a_server_is_upgraded_by_one_of_those_who_come(on_server: Service) -> None:
    database = on_server.store.database
    before = content(database)
    older(database)
    with pytest.raises(
        Outdated, match=f"is of version {VERSION - 1}, this usersctl knows {VERSION}$"
    ) as refused:
        open_store(database, write=False)
    assert refused.value.hint == "bring it up to date with: usersctl db migrate"
    opened: list[Store] = []
    threads = [threading.Thread(target=lambda: opened.append(open_store(database))) for _ in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(opened) == 5
    (migrated,) = [store.migrated for store in opened if store.migrated is not None]
    assert migrated.accounts == 2
    for store in opened:
        store.close()
    assert content(database) == before
    assert backup.check_in_use(on_server.store).problems == []
    assert create_user(on_server, "new@example.com", "New", PASSWORD).id == 4


def test_others_read_on_while_a_server_is_upgraded(
    on_server: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    from usersctl.store.postgres.new_tables import NewTables  # needs psycopg

    seen: list[int] = []
    put = NewTables.put_old_rows

    def put_and_look(self: NewTables) -> None:
        put(self)
        thread = threading.Thread(target=lambda: seen.append(len(stored_sessions(on_server))))
        thread.start()
        thread.join()

    monkeypatch.setattr(NewTables, "put_old_rows", put_and_look)
    older(on_server.store.database)
    on_server.store.is_open = False  # knows the older version
    open_store(on_server.store.database).close()
    assert seen == [2]


def test_an_upgrade_that_waits_in_vain_for_a_session_of_another_program_names_it(
    on_server: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("usersctl.store.postgres.store.IN_USE", 0.3)
    database = Conninfo(str(on_server.store.database))
    older(database)
    name = postgres.name_of(database)
    postgres.run(f"CREATE ROLE {name}_reader LOGIN SUPERUSER")
    by_reader = Conninfo(database.replace("users@", f"{name}_reader@"))
    with postgres.opened(by_reader) as reader, postgres.opened(by_reader) as shop:
        reader.run("SET application_name = 'a report'; BEGIN; SELECT 1 FROM users LIMIT 1")
        shop.run("CREATE TABLE orders (number BIGINT)")
        shop.run("BEGIN; LOCK TABLE orders")
        with pytest.raises(Busy, match=rf"use it: process {reader.process} of {name}_reader \(a report\)$"):
            open_store(database)
        reader.run("ROLLBACK")
    with closing(open_store(database)) as store:
        assert store.migrated is not None


@pytest.mark.parametrize(
    ("dependent", "message"),
    [
        ("CREATE VIEW report AS SELECT id, email FROM users", "others depend on them: report"),
        (
            "CREATE SCHEMA shop; CREATE TABLE shop.orders (buyer BIGINT REFERENCES users)",
            "others depend on them: orders_buyer_fkey of shop.orders",
        ),
        # Only the server notices it, at the end.
        ("CREATE TABLE kept (it users)", "has something of others that depends on its tables"),
    ],
)
def test_what_others_made_of_our_tables_stops_a_restore_and_an_upgrade(
    on_server: Service, tmp_path: Path, dependent: str, message: str
) -> None:
    database = on_server.store.database
    on_server.store.copy(tmp_path / "saved.db")
    before = content(database)
    with postgres.opened(Conninfo(str(database))) as connection:
        connection.run(dependent)
    with pytest.raises(StoreUnusable, match=message):
        restored(tmp_path / "saved.db", database)
    assert content(database) == before
    assert list(tmp_path.glob("*.before-*")) == []
    older(database)
    with pytest.raises(StoreUnusable, match=message):
        open_store(database)
    with pytest.raises(Outdated):
        open_store(database, write=False)


@pytest.mark.parametrize("owns", [True, False])
def test_a_role_that_owns_its_database_has_all_rights_that_are_needed(
    filled: Service, postgres_database: Make, tmp_path: Path, owns: bool
) -> None:
    database = postgres_database(empty=True)
    name = postgres.name_of(database)
    postgres.run(f"CREATE ROLE {name} LOGIN")
    if owns:
        postgres.run(f"ALTER DATABASE {name} OWNER TO {name}")
    plain = Conninfo(database.replace("users@", f"{name}@"))
    before = content(filled.store.database)
    if not owns:
        with pytest.raises(StoreUnusable, match="does not let this user do that"):
            move(filled.store, plain, ignore)
        return
    moved(filled.store.database, plain)
    restored(filled.store.path, plain, keep_tokens=True)
    older(plain)
    open_store(plain).close()
    moved(plain, tmp_path / "back.db")
    assert content(tmp_path / "back.db")[0]["users"] == before[0]["users"]


def owned(database: Conninfo, *, member: str) -> str:
    """Gives the database an owner of its name, who has a member, and returns that name."""
    owner = postgres.name_of(database)
    postgres.run(f"CREATE ROLE {owner} LOGIN; CREATE ROLE {owner}{member} LOGIN IN ROLE {owner}")
    postgres.run(f"ALTER DATABASE {owner} OWNER TO {owner}")
    return owner


@pytest.mark.parametrize("by", ["a member", "a superuser"])
def test_the_tables_keep_their_owner_whoever_restores_or_upgrades_them(
    filled: Service, postgres_database: Make, by: str
) -> None:
    """Else the daemons could use them no more."""
    database = postgres_database(empty=True)
    owner = owned(database, member="_member")
    of_daemons = Conninfo(database.replace("users@", f"{owner}@"))
    other = Conninfo(database.replace("users@", f"{owner}_member@")) if by == "a member" else database
    move(filled.store, of_daemons, ignore)

    restored(filled.store.path, other)
    assert _owners(database) == {(owner,)}
    older(database)
    open_store(other).close()
    assert _owners(database) == {(owner,)}
    assert content(of_daemons)


def test_daemons_whose_connections_a_move_may_not_end_have_to_stop_first(
    filled: Service, postgres_database: Make, tmp_path: Path
) -> None:
    database = postgres_database(empty=True)
    owner = owned(database, member="_daemon")
    by_owner = Conninfo(database.replace("users@", f"{owner}@"))
    moved(filled.store.database, by_owner)
    with (
        closing(open_store(Conninfo(database.replace("users@", f"{owner}_daemon@")))),
        pytest.raises(StoreUnusable, match="connections of daemons with another role") as refused,
    ):
        moved(by_owner, tmp_path / "back.db")
    assert refused.value.hint == "stop these daemons first"
    moved(by_owner, tmp_path / "back.db")


def _owners(database: Conninfo) -> set[tuple[str]]:
    with postgres.opened(database) as connection:
        return set(
            connection.run(
                "SELECT pg_get_userbyid(relowner) FROM pg_class WHERE relnamespace = to_regnamespace('public')"
                " UNION SELECT pg_get_userbyid(proowner) FROM pg_proc JOIN pg_language ON pg_language.oid = prolang"
                " WHERE pronamespace = to_regnamespace('public') AND lanname = 'plpgsql'"
            )
        )


def test_a_service_of_another_version_is_refused_by_name_while_it_runs(on_server: Service) -> None:
    database = Conninfo(on_server.store.name)
    with postgres.opened(database) as connection:
        connection.execute("UPDATE installation SET version = ?", (VERSION + 1,))
    assert on_server.readiness.failing() == ["schema"]
    with pytest.raises(OtherVersion, match=f"of version {VERSION + 1}, this usersctl knows {VERSION}"):
        open_store(database)
    with postgres.opened(database) as connection:
        connection.run(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database()"
            " AND pid <> pg_backend_pid()"
        )
    with pytest.raises(StoreUnusable):
        on_server.accounts.find("bob@example.com")
    with pytest.raises(OtherVersion):
        on_server.accounts.find("bob@example.com")
