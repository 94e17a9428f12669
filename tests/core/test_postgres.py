"""The store on a PostgreSQL server: its driver, its errors, and what becomes of a server that goes away."""

import resource
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from importlib import import_module
from types import ModuleType
from typing import Any

import pytest
from support import postgres
from support.daemons import wait_for

from usersctl.config import Settings
from usersctl.errors import Busy, NotFound, OtherVersion, ServerAway, StoreUnusable, UsersError
from usersctl.lockdown import Lockdowns
from usersctl.mail.kinds import EmailQueue
from usersctl.models import OAUTH, SYSTEM, Identity, Newcomer, UserFilter
from usersctl.oauth.identities import Identities
from usersctl.store import database_file
from usersctl.store.conninfo import Conninfo
from usersctl.store.database_file import APPLICATION_ID, VERSION
from usersctl.store.opening import open_store
from usersctl.store.postgres import dialect
from usersctl.store.store import Store

Make = Callable[..., Conninfo]

ISSUER = "https://id.example.com"
SLOWLY = "CREATE FUNCTION slowly() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM pg_sleep(0.5); RETURN NULL; END';"


@pytest.fixture
def database(postgres_database: Make) -> Conninfo:
    return postgres_database()


@pytest.fixture
def store(database: Conninfo) -> Iterator[Store]:
    with closing(open_store(database)) as store:
        yield store


@pytest.mark.parametrize(
    "value", [0, -1, 2**40, "", "a\nb\t\\ 'c'", "žluťoučký 🐎", b"", bytes(range(256)), None]
)
def test_a_value_comes_back_as_it_went_in(database: Conninfo, value: object) -> None:
    with postgres.opened(database) as connection:
        kind = {int: "BIGINT", bytes: "BYTEA"}.get(type(value), "TEXT")
        connection.run(f"BEGIN; CREATE TABLE tried (it {kind})")
        connection.execute("INSERT INTO tried (it) VALUES (?)", (value,))
        connection.copy_in("tried", ["it"], [(value,)])

        assert connection.execute("SELECT it FROM tried").fetchall() == [(value,), (value,)]


def test_a_boolean_is_a_number_and_a_sum_is_one(database: Conninfo) -> None:
    with postgres.opened(database) as connection:
        row = connection.execute(
            "SELECT 1 = 1, 1 = 2, sum(n), count(*) FROM (VALUES (:a), (:b)) AS x (n)", {"a": 2, "b": 3}
        )

        assert row.fetchone() == (1, 0, 5, 2)


def test_text_with_a_zero_byte_finds_nothing(store: Store) -> None:
    with store.write() as tx:
        tx.add_user(Newcomer("a@example.org", "A"))
    with store.glance() as tx:
        assert tx.user_by_email("a@example.org") is not None
        assert tx.user_by_email("a@example.org\0") is None


@pytest.mark.parametrize(
    "rows",
    [
        "users ORDER BY name_folded DESC, name DESC, id DESC",
        "users ORDER BY created_at, id",
        "users ORDER BY login_order DESC, id DESC",
        "users WHERE active = 1 ORDER BY created_at, id",
        "users WHERE active = 0 AND invited = 0 AND awaiting_confirmation = 1 ORDER BY login_order, id",
        "users WHERE role = 'admin' ORDER BY created_at, id",
        "users WHERE signed_in = 0 ORDER BY created_at, id",
        "audit WHERE user_id = 1 ORDER BY id DESC",
        "audit WHERE actor = 'system' ORDER BY id DESC",
    ],
)
def test_a_list_is_read_in_the_order_of_an_index(database: Conninfo, rows: str) -> None:
    with postgres.opened(database) as connection:
        connection.run("SET enable_seqscan = off; SET enable_sort = off")
        plan = str(connection.run(f"EXPLAIN SELECT id FROM {rows} LIMIT 10").fetchall())  # noqa: S608 - our own rows
    assert "Index" in plan
    assert "Sort" not in plan


def test_a_check_looks_for_every_constraint_that_the_server_has(database: Conninfo) -> None:
    with postgres.opened(database) as connection:
        ours = "connamespace = CAST('public' AS REGNAMESPACE) AND contype IN ('p', 'u', 'f', 'c')"
        made = connection.run(f"SELECT conname FROM pg_constraint WHERE {ours}").fetchall()  # noqa: S608 - our own words
    assert {name for (name,) in made} <= dialect.names()


def test_streams_are_read_side_by_side(database: Conninfo) -> None:
    with postgres.opened(database) as connection:
        connection.run("BEGIN")
        numbers = "SELECT n FROM generate_series(1, :last) AS n"
        first, second = connection.stream(numbers, {"last": 2500}), connection.stream(numbers, {"last": 2500})

        assert list(zip(first, second, strict=True)) == [((n,), (n,)) for n in range(1, 2501)]
        connection.run("ROLLBACK")


def test_a_second_writer_waits_and_is_told_that_the_database_is_busy(
    database: Conninfo, store: Store
) -> None:
    with postgres.opened(database) as other:
        postgres.hold(other)
        began = time.monotonic()
        with pytest.raises(Busy), store.write(patience=0.2):
            pass
        assert 0.1 < time.monotonic() - began < 2
        other.run("ROLLBACK")

    with store.write() as tx:
        tx.audit(SYSTEM, "tried")


def test_writers_that_need_not_be_alone_do_not_wait_for_each_other(database: Conninfo, store: Store) -> None:
    with (
        closing(open_store(database)) as second,
        store.write(alone=False),
        second.write(alone=False, patience=0.2),
    ):
        pass

    with (
        closing(open_store(database)) as second,
        store.write(alone=False),
        pytest.raises(Busy),
        second.write(patience=0.1),
    ):
        pass


def test_only_a_writer_that_was_alone_shows_that_no_other_one_stands_still(
    database: Conninfo, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database_file, "BUSY_SECONDS", 1.0)
    with postgres.opened(database) as other:
        other.run(f"BEGIN; SELECT pg_advisory_xact_lock_shared({APPLICATION_ID})")
        with pytest.raises(Busy), store.write():
            pass
        with store.write(alone=False):
            pass
        began = time.monotonic()
        with pytest.raises(Busy), store.write():
            pass
        assert time.monotonic() - began < 0.5
        other.run("ROLLBACK")

    with store.write() as tx:
        tx.audit(SYSTEM, "tried")


def test_the_members_that_a_group_gets_at_once_are_counted_at_once(database: Conninfo, store: Store) -> None:
    with store.write() as tx:
        ids = tx.add_users([Newcomer(f"{n}@example.org", f"{n}") for n in range(50)])
        for name, members in (("staff", ids), ("others", ids[:1])):
            group = tx.add_group(name)
            assert group
            assert tx.join_group(group.id, members) == set(members)
    with postgres.opened(database) as connection:
        rows = connection.run("SELECT name, members, CAST(ctid AS TEXT) FROM groups ORDER BY name").fetchall()

    # Each change leaves a version of the row behind: these are the fourth and the second.
    assert rows == [("others", 1, "(0,4)"), ("staff", 50, "(0,2)")]


def test_the_end_of_the_trail_is_written_once_for_all_changes_of_a_transaction(
    database: Conninfo, store: Store
) -> None:
    with store.write() as tx:
        for n in range(50):
            tx.audit(SYSTEM, "create", n=n)
    with postgres.opened(database) as connection:
        rows = connection.run("SELECT n, CAST(ctid AS TEXT) FROM audit_head").fetchall()

    assert rows == [(50, "(0,2)")]  # the row with which a database begins, and its only change
    with store.read() as tx:
        assert not tx.check_audit().problem


@pytest.mark.parametrize("isolation", ["repeatable read", "serializable"])
def test_a_writer_that_waited_sees_what_the_one_before_has_done_whatever_the_database_is_set_to(
    database: Conninfo, isolation: str
) -> None:
    set_for_all(database, "default_transaction_isolation", isolation)
    with closing(open_store(database)) as store, closing(open_store(database)) as other:
        with other.write() as tx:
            tx.add_user(Newcomer("ada@example.com", "Ada"))
        second = threading.Thread(target=count_in_change, args=[store, counted := list[int]()])
        with other.write() as tx:
            second.start()
            wait_for(lambda: waiting_for_a_lock(database))
            tx.delete_users([1])
        second.join()
    assert counted == [0]


def test_a_search_works_with_the_old_rules_for_backslashes(database: Conninfo) -> None:
    set_for_all(database, "standard_conforming_strings", "off")
    with closing(open_store(database)) as store:
        with store.write() as tx:
            tx.add_user(Newcomer("ada@example.com", "Ada"))
        with store.read() as tx:
            assert [user.id for user in tx.page(UserFilter(search="ada")).users] == [1]


def set_for_all(database: Conninfo, name: str, value: str) -> None:
    """As an administrator of the server does, for each connection from now on."""
    with postgres.opened(database) as connection:
        (own,) = connection.run("SELECT quote_ident(current_database())").fetchone() or ("",)
        connection.run(f"ALTER DATABASE {own} SET {name} = '{value}'")


def count_in_change(store: Store, counted: list[int]) -> None:
    with store.write() as tx:
        counted.append(tx.count_rows("users"))


def waiting_for_a_lock(database: Conninfo) -> bool:
    with postgres.opened(database) as connection:
        waiting = (
            "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
            " AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"
        )
        return connection.run(waiting).fetchone() == (1,)


def test_rows_with_more_values_than_a_statement_takes_are_added(store: Store) -> None:
    """As by an import of accounts with many identities each."""
    with store.write() as tx:
        user_id = tx.add_user(Newcomer("a@example.org", "A")).id
        tx.add_identities([Identity(user_id, f"p{n}", ISSUER, "7") for n in range(11_000)])
        assert len(tx.identities_of(user_id)) == 11_000


def test_an_error_rolls_everything_back(store: Store) -> None:
    with suppress(NotFound), store.write() as tx:
        tx.audit(SYSTEM, "tried")
        tx.existing_user(1)

    with store.read() as tx:
        assert tx.last_audit_row() is None
    with store.write(commit=False) as tx:
        tx.audit(SYSTEM, "tried")
    with store.read() as tx:
        assert tx.last_audit_row() is None


def test_a_snapshot_does_not_see_what_is_committed_meanwhile(database: Conninfo, store: Store) -> None:
    with store.read() as before:
        assert before.last_audit_row() is None
        with closing(open_store(database)) as second, second.write() as tx:
            tx.audit(SYSTEM, "tried")
        assert before.last_audit_row() is None


def test_a_connection_that_the_server_ended_is_made_anew(database: Conninfo, store: Store) -> None:
    with store.glance() as tx:
        assert tx.user(1) is None
    postgres.end_connections(database)

    with store.glance() as tx:
        assert tx.user(1) is None


def test_a_connection_that_another_thread_found_to_be_lost_is_called_so(store: Store) -> None:
    def go_on() -> None:
        with store.locks() as locks:
            store._lost = time.monotonic()
            with store.glance() as tx:  # by a connection that was made anew
                assert tx.user(1) is None
            locks.take(7)

    with pytest.raises(ServerAway, match="is away: the connection was lost"):
        go_on()


def test_the_connection_of_a_thread_that_ended_is_closed(database: Conninfo, store: Store) -> None:
    def look() -> None:
        with store.glance() as tx:
            tx.user(1)

    for _ in range(5):
        thread = threading.Thread(target=look)
        thread.start()
        thread.join()

    until = time.monotonic() + 5
    while postgres.count_connections(database) > 1 and time.monotonic() < until:
        time.sleep(0.02)
    assert postgres.count_connections(database) == 1


def test_a_thread_that_waits_for_something_else_keeps_no_connection(database: Conninfo, store: Store) -> None:
    with store.glance() as tx:
        tx.user(1)
    store.rest()
    until = time.monotonic() + 5
    while postgres.count_connections(database) and time.monotonic() < until:
        time.sleep(0.02)
    assert postgres.count_connections(database) == 0
    with store.glance() as tx:
        assert tx.user(1) is None


def test_no_server_is_an_error_in_words_and_without_the_password() -> None:
    nowhere = Conninfo("postgresql://users:secret@127.0.0.1:1/users")

    with pytest.raises(StoreUnusable, match="is away") as refused:
        open_store(nowhere)
    assert "secret" not in refused.value.in_full


@pytest.mark.parametrize("hosts", ["{},127.0.0.1:1", "127.0.0.1:1,{},127.0.0.1:1"])
def test_what_no_waiting_mends_is_told_although_another_host_is_away(database: Conninfo, hosts: str) -> None:
    host, _, name = database.partition("@")[2].partition("/")
    several = Conninfo(database.replace(host, hosts.format(host)).replace(name, "nowhere"))

    with pytest.raises(StoreUnusable, match=r'cannot be used: .*"nowhere" does not exist'):
        open_store(several)


def test_an_empty_database_is_used_only_on_request(postgres_database: Make) -> None:
    empty = postgres_database(empty=True)

    with pytest.raises(StoreUnusable, match="is empty"):
        open_store(empty)
    open_store(empty, create=True).close()
    open_store(empty).close()


def test_processes_that_start_at_once_make_the_tables_once(postgres_database: Make) -> None:
    empty = postgres_database(empty=True)
    problems: list[UsersError] = []

    def begin() -> None:
        try:
            open_store(empty, create=True).close()
        except UsersError as error:
            problems.append(error)

    threads = [threading.Thread(target=begin) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert problems == []


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("UPDATE installation SET version = version + 1", f"is of version {VERSION + 1}"),
        ("UPDATE installation SET moved_to = 'users.db'", "was moved to users.db"),
        ("DROP TABLE installation", "is not a database of usersctl"),
    ],
)
def test_a_database_of_another_version_is_refused_by_name(
    database: Conninfo, change: str, message: str
) -> None:
    with postgres.opened(database) as connection:
        connection.run(change)

    with pytest.raises(StoreUnusable, match=message):
        open_store(database)


def test_a_running_service_refuses_a_database_that_was_moved_at_its_next_connection(
    database: Conninfo,
) -> None:
    with closing(open_store(database)) as store:
        with postgres.opened(database) as connection:
            connection.run("UPDATE installation SET moved_to = 'users.db'")
        postgres.end_connections(database)

        with pytest.raises(OtherVersion), store.glance() as tx:
            tx.user(1)


@pytest.mark.parametrize(
    ("state", "told"),
    [
        ("53100", "the disk of the server is full"),
        ("53200", "is short of memory"),
        ("54000", "does not take a value of that length"),
        ("58030", "has trouble with its machine"),
        ("XX001", "is damaged"),
    ],
)
def test_trouble_of_the_server_is_no_fault_of_this_program(store: Store, state: str, told: str) -> None:
    with pytest.raises(StoreUnusable, match=told), store.read() as tx:
        tx._connection.run(f"DO $$ BEGIN RAISE 'trouble' USING ERRCODE = '{state}'; END $$")


# --- a server that is silent, slow or gone ---


@pytest.fixture
def driver() -> ModuleType:
    postgres.needed()
    return import_module("usersctl.store.postgres.driver")


@pytest.mark.slow
def test_an_address_that_is_silent_keeps_neither_the_caller_nor_other_threads(
    driver: ModuleType, database: Conninfo, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(driver, "SILENCE", 1.0)
    longest, over = 0.0, threading.Event()

    def count() -> None:
        nonlocal longest
        last = time.monotonic()
        while not over.wait(0.01):
            longest, last = max(longest, time.monotonic() - last), time.monotonic()

    other = threading.Thread(target=count)
    other.start()
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        at = database.replace("@127.0.0.1:", f"@127.0.0.1:{port},127.0.0.1:")
        began = time.monotonic()
        with postgres.opened(Conninfo(at)) as connection:
            assert 0.4 < time.monotonic() - began < 1.5
            assert connection.run("SELECT 1").fetchall() == [(1,)]
        began = time.monotonic()
        with pytest.raises(driver.Silent, match="does not answer"):
            driver.Connection(Conninfo(f"postgresql://127.0.0.1:{port}/users"))
        assert 0.9 < time.monotonic() - began < 2
    over.set()
    other.join()
    assert longest < 0.9


def test_a_process_with_too_many_files_open_has_no_connection(driver: ModuleType, database: Conninfo) -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (1, before[1]))
    try:
        # libpq has words of its own for it up to version 15.
        with pytest.raises(driver.Away, match=r"too many files open|Too many open files"):
            driver.Connection(database)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_a_server_that_goes_away_amid_a_copy_is_no_fault_of_this_program(
    driver: ModuleType, database: Conninfo
) -> None:
    def rows() -> Iterator[tuple[str]]:
        yield ("first",)
        postgres.end_connections(database)
        yield from (("x" * 1000,) for _ in range(100_000))

    with postgres.opened(database) as connection:
        connection.run("BEGIN; CREATE TABLE copied (it TEXT)")
        with pytest.raises(driver.Away):
            connection.copy_in("copied", ["it"], rows())
        assert connection.is_lost


def test_a_refused_connection_costs_no_other_thread_its_own(database: Conninfo) -> None:
    role = f"few_{postgres.name_of(database)}"
    postgres.run(f"CREATE ROLE {role} LOGIN CONNECTION LIMIT 1 IN ROLE pg_read_all_data")
    with closing(open_store(Conninfo(database.replace("//users@", f"//{role}@")), write=False)) as store:

        def process() -> object:
            with store.glance() as tx:
                return tx._connection.process

        first = process()
        with ThreadPoolExecutor(1) as pool, pytest.raises(StoreUnusable, match="too many connections"):
            pool.submit(process).result()
        assert process() == first
    postgres.run(f"DROP ROLE {role}")


def test_a_slow_statement_is_ended_and_the_connection_kept(driver: ModuleType, database: Conninfo) -> None:
    with postgres.opened(database) as connection:
        connection.limit(0.1)
        with pytest.raises(driver.ServerError) as refused:
            connection.run("SELECT pg_sleep(5)")
        assert refused.value.state == "57014"
        assert connection.run("SELECT 1").fetchall() == [(1,)]


@pytest.mark.slow
def test_a_lockdown_may_take_longer_than_other_changes(database: Conninfo, store: Store) -> None:
    """It ends all that a large service has."""
    with postgres.opened(database) as connection:
        connection.run(
            f"{SLOWLY} CREATE TRIGGER slowly BEFORE DELETE ON auth_tokens EXECUTE FUNCTION slowly()"
        )
    with store.glance() as tx:
        tx._connection.limit(0.2)
    assert Lockdowns(store).start(None, by=SYSTEM) == 0
    assert Lockdowns(store).state() is not None
    with pytest.raises(StoreUnusable, match="takes too long"), store.write() as tx:
        tx.delete_all_sessions()


def test_a_start_binds_the_links_of_a_large_service_however_long_that_takes(
    database: Conninfo, store: Store
) -> None:
    with store.write() as tx:
        ada = tx.add_user(Newcomer("ada@example.com", "Ada"))
        tx.add_identities([Identity(ada.id, OAUTH, "", "1001")])
    with postgres.opened(database) as connection:
        connection.run(
            f"{SLOWLY} CREATE TRIGGER slowly BEFORE UPDATE ON identities EXECUTE FUNCTION slowly()"
        )
    with store.glance() as tx:
        tx._connection.limit(0.2)
    provider = {"oauth_client_id": "users", "oauth_client_secret": "secret", "oauth_issuer": ISSUER}
    settings = Settings(database=database, base_url="http://127.0.0.1:8080", **provider)
    (bound,) = Identities(store, settings, EmailQueue()).bind()
    assert (bound.now, bound.elsewhere) == (1, 0)
    with store.read() as tx:
        assert [identity.issuer for identity in tx.identities_of(ada.id)] == [ISSUER]


def test_every_connection_has_the_name_by_which_a_move_ends_it(database: Conninfo) -> None:
    named = Conninfo(f"{database}{'&' if '?' in database else '?'}application_name=accounts")
    with closing(open_store(named)) as store, store.glance() as tx:
        assert tx._run("SELECT current_setting('application_name')").fetchone() == ("usersctl",)


def test_a_question_that_takes_too_long_is_no_silence(
    driver: ModuleType, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(driver, "SILENCE", 0.6)
    monkeypatch.setattr(driver, "SLOW", 0.1)
    with pytest.raises(TimeoutError), store.within(0.7), store.read() as tx:
        tx._run("SELECT pg_sleep(5)")
    with store.read() as tx:
        assert tx.user(1) is None


def test_no_limit_of_whole_transactions_ends_one_that_copies_everything(store: Store) -> None:
    with store.glance() as tx:
        if tx._connection.run("SHOW server_version_num").fetchone() < ("170000",):
            pytest.skip("PostgreSQL has this limit since version 17")
        tx._connection.run("SET transaction_timeout = '300ms'")
    with store.write() as tx:
        store.whole()
        tx._run("SELECT pg_sleep(0.5)")
    with pytest.raises(StoreUnusable, match="transaction timeout"), store.write() as tx:
        tx._run("SELECT pg_sleep(0.5)")


def test_a_reader_may_pause_whatever_the_role_is_set_to(database: Conninfo) -> None:
    """As an export does into a program that reads slowly."""
    name = postgres.name_of(database)
    postgres.run(f"ALTER DATABASE {name} SET idle_in_transaction_session_timeout = '50ms'")
    with closing(open_store(database)) as store, store.read() as tx:
        assert tx._connection.run("SHOW idle_in_transaction_session_timeout").fetchone() == ("30min",)


def test_the_server_looks_for_machines_that_are_gone(store: Store) -> None:
    with store.glance() as tx:
        names = (
            "tcp_keepalives_idle",
            "tcp_keepalives_interval",
            "tcp_keepalives_count",
            "statement_timeout",
        )
        settings = [tx._connection.run(f"SHOW {name}").fetchone() for name in names]
    assert settings == [("10",), ("5",), ("3",), ("4500ms",)]


@pytest.mark.parametrize("host", ["nowhere.invalid", "two..dots"])
def test_a_host_without_an_address_is_named(driver: ModuleType, host: str) -> None:
    with pytest.raises(driver.Silent, match="name of its host is not known"):
        driver.Connection(Conninfo(f"postgresql://{host}/users"))


class NameServers:
    """They know the names that they are given, and may fall silent."""

    def __init__(self) -> None:
        self.addresses = {"127.0.0.1": "127.0.0.1"}
        self.silent: set[str] = set()
        self.over = threading.Event()
        self._numbers = socket.getaddrinfo

    def look_up(self, host: str, port: int | None, **options: Any) -> Any:
        if host in self.silent:
            self.over.wait(20)
        if host not in self.addresses:
            raise socket.gaierror(socket.EAI_AGAIN, "there is no answer")
        return self._numbers(self.addresses[host], port, **options)


@pytest.fixture
def name_servers(driver: ModuleType, monkeypatch: pytest.MonkeyPatch) -> Iterator[NameServers]:
    name_servers = NameServers()
    monkeypatch.setattr(socket, "getaddrinfo", name_servers.look_up)
    monkeypatch.setattr(driver, "_known", {})
    monkeypatch.setattr(driver, "SILENCE", 1.0)
    yield name_servers
    name_servers.over.set()


@pytest.mark.slow
def test_silent_name_servers_keep_the_caller_no_longer_than_a_silent_server(
    name_servers: NameServers,
) -> None:
    name_servers.silent = {"db1", "db2", "db3"}
    began = time.monotonic()
    with pytest.raises(ServerAway, match="is away: the name of its host is not known") as refused:
        open_store(Conninfo("postgresql://db1,db2,db3/users"))
    assert refused.value.hint == (
        "check host and port of `database`, or start the server; a daemon goes on by itself when it is back"
    )
    assert 0.9 < time.monotonic() - began < 1.5


def test_a_host_is_tried_although_the_name_of_another_is_not_answered(
    name_servers: NameServers, database: Conninfo
) -> None:
    name_servers.silent = {"db1"}
    name_servers.addresses["db2"] = "127.0.0.1"
    with postgres.opened(Conninfo(database.replace("@127.0.0.1:", "@db1:1,db2:"))) as connection:
        assert connection.run("SELECT 1").fetchall() == [(1,)]


def test_the_last_known_address_is_used_while_no_name_server_answers(
    name_servers: NameServers, database: Conninfo
) -> None:
    name_servers.addresses["db1"] = "127.0.0.1"
    named = Conninfo(database.replace("@127.0.0.1:", "@db1:"))
    for silent in ((), (), ("db1",)):  # it answers, then it fails, then nothing comes
        name_servers.silent = set(silent)
        with postgres.opened(named) as connection:
            assert connection.run("SELECT 1").fetchall() == [(1,)]
        name_servers.addresses.pop("db1", None)


def test_quotes_and_empty_values_of_a_conninfo_arrive_as_they_are(driver: ModuleType) -> None:
    given = driver._options(r"host=/run,db password='it\'s \\ 1' port=1,2 options=''")
    attempts = driver._attempts(given | {"hostaddr": ",127.0.0.2"}, time.monotonic())
    made = [driver._options(one) for one, _ in attempts]
    assert made == [
        {"host": "/run", "password": r"it's \ 1", "port": "1"},
        {"host": "db", "hostaddr": "127.0.0.2", "password": r"it's \ 1", "port": "2"},
    ]
