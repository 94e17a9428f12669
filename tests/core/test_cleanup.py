"""The cleanup: what it removes and counts, and what it leaves to others meanwhile."""

import os
import sqlite3
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, nullcontext
from datetime import timedelta
from typing import Any

import pytest
from support.accounts import open_session, signed_in_admin
from support.commands import OPERATOR, PASSWORD, create_user
from support.fakes import FakeClock
from support.tables import audit, plan, query, statements

from usersctl.clock import stamp
from usersctl.errors import Busy, Forbidden, Referred
from usersctl.mail.folder import mail_folder
from usersctl.models import Actor, Cleanup, User
from usersctl.secrets import digest
from usersctl.service import Service

ADA = "ada@example.com"


@pytest.fixture
def ada(add: Callable[..., User]) -> User:
    return add("ada")


def fill(service: Service, user: User, *, expired: int, live: int, endless: int) -> None:
    now = service.now()
    rows = [(stamp(now), "expired")] * expired + [(stamp(now + timedelta(milliseconds=1)), "live")] * live
    rows += [(None, "endless")] * endless
    with service.store.write() as tx:
        for number, (expires_at, name) in enumerate(rows):
            columns: dict[str, Any] = {
                "kind": "api",
                "name": name,
                "created_at": stamp(now),
                "expires_at": expires_at,
            }
            tx.add_token(user.id, digest(f"{name} {number}"), **columns)


def left(service: Service) -> list[tuple[str, int]]:
    with service.store.read() as tx:
        return tx._run("SELECT name, count(*) FROM auth_tokens GROUP BY 1 ORDER BY 1").fetchall()


@pytest.mark.parametrize("batch", [1, 2, 5, 7, 100])
@pytest.mark.parametrize("include", [False, True])
def test_a_cleanup_removes_what_has_expired_and_counts_it(
    service: Service, ada: User, batch: int, include: bool
) -> None:
    cleaner = service.cleaner._replace(some=batch, hold=0, pause=0)
    fill(service, ada, expired=7, live=3, endless=5)
    expected = Cleanup(7, 5 if include else 0, include)
    removed: list[int] = []
    assert cleaner.stale(include_no_expiration=include) == expected
    done = cleaner.run(include_no_expiration=include, by=OPERATOR, progress=removed.append)
    assert done == expected
    assert left(service) == ([("live", 3)] if include else [("endless", 5), ("live", 3)])
    assert max(removed) == 7
    assert done.as_json() == {
        "result": "success",
        "expiredTokensRemoved": 7,
        "noExpirationTokensRemoved": 5 if include else 0,
        "totalTokensCleaned": 12 if include else 7,
        "includeNoExpiration": include,
    }
    assert service.cleaner.run(include_no_expiration=include, by=OPERATOR) == Cleanup(0, 0, include)


@pytest.mark.parametrize("most", [1, 3, 4, 100])
def test_tokens_of_many_days_are_counted_and_removed_at_their_moment(
    service: Service, ada: User, most: int
) -> None:
    now = service.now()
    midnight = now.replace(hour=0, minute=0, second=0, microsecond=0)
    moments = [now + timedelta(days=days) for days in (-400, 2, -1, 1, 0, 40)]
    moments += [midnight, midnight + timedelta(days=1), midnight - timedelta(milliseconds=1)]
    moments += [now + timedelta(milliseconds=1)]
    with service.store.write() as tx:
        for number, expires in enumerate(moments):
            row = {"kind": "session", "created_at": stamp(now), "expires_at": stamp(expires)}
            tx.add_token(ada.id, digest(str(number)), name=stamp(expires), **row)
    expired = sum(moment <= now for moment in moments)
    assert service.cleaner.stale() == Cleanup(expired, 0, False)
    with service.store.read() as tx:
        assert tx.count_live_tokens() == len(moments) - expired
    assert service.cleaner._replace(most=most, some=2).run(by=OPERATOR) == Cleanup(expired, 0, False)
    assert [name for name, _ in left(service)] == sorted(stamp(moment) for moment in moments if moment > now)


def test_a_token_that_is_prolonged_amid_a_cleanup_stays(service: Service, ada: User) -> None:
    """As by the note of a use in another process."""
    fill(service, ada, expired=5, live=0, endless=0)
    later = stamp(service.now() + timedelta(days=1))

    def prolong(removed: int) -> None:
        if removed == 2:
            with service.store.write() as tx:
                tx._run("UPDATE auth_tokens SET expires_at = ?, name = 'prolonged' WHERE id = 4", (later,))

    cleaner = service.cleaner._replace(some=2, hold=0, pause=0)
    assert cleaner.run(by=OPERATOR, progress=prolong) == Cleanup(4, 0, False)
    assert left(service) == [("prolonged", 1)]


def test_counting_stale_tokens_removes_nothing(service: Service, ada: User) -> None:
    fill(service, ada, expired=2, live=1, endless=1)
    assert service.cleaner.stale(include_no_expiration=True) == Cleanup(2, 1, True)
    assert left(service) == [("endless", 1), ("expired", 2), ("live", 1)]


def test_a_cleanup_has_one_audit_row_with_its_counts(service: Service, ada: User) -> None:
    fill(service, ada, expired=2, live=1, endless=1)
    service.cleaner.run(by=OPERATOR)
    with service.store.read() as tx:
        rows = [row for row in tx.audit_rows() if row.action == "cleanup-tokens"]
    assert [row.details for row in rows] == [
        {"expired": 2, "no_expiration": 0, "include_no_expiration": False}
    ]
    assert rows[0].user_id is None


def test_a_cleanup_removes_expired_links_without_counting_them(
    service: Service, ada: User, clock: FakeClock
) -> None:
    with service.store.write() as tx:
        for name, expires in (("old", clock()), ("new", clock() + timedelta(milliseconds=1))):
            tx._run(
                "INSERT INTO one_time_tokens VALUES (?, 'reset', ?, ?, ?, ?, NULL)",
                (digest(name), ada.id, ADA, stamp(clock()), stamp(expires)),
            )
    assert service.cleaner.run(by=OPERATOR) == Cleanup(0, 0, False)
    with service.store.read() as tx:
        assert tx._run("SELECT token_hash FROM one_time_tokens").fetchall() == [(digest("new"),)]


def test_a_cleanup_removes_apps_that_were_not_confirmed_in_time(
    service: Service, ada: User, clock: FakeClock
) -> None:
    sessions = [open_session(service, ada).session.id for _ in range(2)]
    for session_id in sessions:
        with service.store.write() as tx:
            tx.begin_totp(session_id, ada.id, b"sealed", timedelta(minutes=10))
        clock.move(minutes=5)
    service.cleaner.run(by=OPERATOR)
    with service.store.read() as tx:
        assert tx._run("SELECT session_id FROM totp_enrolments").fetchall() == [(sessions[1],)]


@pytest.mark.parametrize(("hold", "transactions"), [(0, 5), (60, 1)])
def test_a_transaction_of_a_cleanup_ends_when_it_has_held_the_lock_for_long(
    service: Service, ada: User, hold: float, transactions: int
) -> None:
    cleaner = service.cleaner._replace(some=10, hold=hold, pause=0)
    fill(service, ada, expired=45, live=0, endless=0)
    removed: list[int] = []
    cleaner.run(by=OPERATOR, progress=removed.append)
    assert len(removed) == transactions
    assert removed[-1] == 45


@pytest.mark.sqlite  # settings of a connection to a file
@pytest.mark.parametrize("fails", [False, True])
def test_a_cleanup_leaves_the_connection_as_it_was(service: Service, ada: User, fails: bool) -> None:
    def pragmas() -> list[object]:
        connection = service.store._connection()
        names = ("synchronous", "cache_size", "wal_autocheckpoint")
        return [connection.execute(f"PRAGMA {name}").fetchone()[0] for name in names]

    def progress(_removed: int) -> None:
        assert pragmas() != before
        if fails:
            raise Busy("amid the cleanup", retry_after=1)

    before = pragmas()
    fill(service, ada, expired=2, live=0, endless=0)
    with pytest.raises(Busy) if fails else nullcontext():
        service.cleaner.run(by=OPERATOR, progress=progress)
    assert pragmas() == before


@pytest.mark.sqlite  # the log of a file
def test_a_commit_leaves_the_pages_of_a_cleanup_to_the_cleanup(
    service: Service, make_service: Callable[..., Service]
) -> None:
    cleaning, file = make_service(), service.store.path
    before = file.stat().st_size
    with cleaning.store.many_changes(), cleaning.store.write() as tx:
        for _ in range(3000):  # some 3,000 pages, as a transaction of the cleanup changes
            tx.audit(OPERATOR, "update", details="x" * 4000)
    create_user(service, "eve@example.com", "Eve", None, by=OPERATOR)
    assert file.stat().st_size == before
    cleaning.store.checkpoint()
    assert file.stat().st_size > before + 3000 * 4000


@pytest.mark.sqlite  # the log of a file
def test_a_cleanup_carries_its_pages_into_the_database_itself(service: Service, ada: User) -> None:
    fill(service, ada, expired=200, live=0, endless=0)
    service.cleaner.run(by=OPERATOR)
    with closing(sqlite3.connect(service.store.path)) as other:
        _, in_log, carried = other.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
    assert carried == in_log < 20


def test_a_cleanup_carries_the_pages_of_deleted_accounts_as_well(
    service: Service, add: Callable[..., User], clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    users = [add(f"user{number}") for number in range(45)]
    with service.store.write() as tx:
        for user in users:
            tx.change_user(user.id, active=False, delete_at=tx.now_text)
    clock.move(seconds=1)
    left: list[int] = []
    monkeypatch.setattr(service.store, "checkpoint", lambda: left.append(accounts(service)))
    service.cleaner.run(by=OPERATOR)
    assert left == [25, 5, 0]


def accounts(service: Service) -> int:
    count: int = query(service, "SELECT count(*) FROM users")[0][0]
    return count


@pytest.mark.sqlite  # the log of a file
def test_a_cleanup_lets_the_log_begin_anew_only_if_it_is_long(service: Service) -> None:
    """That copies what others wrote meanwhile, too, for which it waits for the disk once more."""
    with service.store.many_changes():
        for pages, begins_anew in ((1000, False), (3000, True)):
            with service.store.write() as tx:
                for _ in range(pages):
                    tx.audit(OPERATOR, "update", details="x" * 4000)
            with statements(service) as run:
                service.store.checkpoint()
            assert ("PRAGMA wal_checkpoint(RESTART)" in run) == begins_anew


def test_parallel_cleanups_count_every_token_once(service: Service, ada: User) -> None:
    cleaner = service.cleaner._replace(some=5, hold=0, pause=0)
    fill(service, ada, expired=101, live=2, endless=0)
    with ThreadPoolExecutor(4) as pool:
        done = list(pool.map(lambda _: cleaner.run(by=OPERATOR), range(4)))
    assert sum(batch.expired for batch in done) == 101
    assert left(service) == [("live", 2)]


def test_logins_succeed_between_the_batches_of_a_cleanup(service: Service, ada: User) -> None:
    cleaner = service.cleaner._replace(some=10, hold=0)
    fill(service, ada, expired=45, live=0, endless=0)
    opened = []

    def login(_removed: int) -> None:
        opened.append(service.sessions.login(ada.email, PASSWORD).token)

    assert cleaner.run(by=OPERATOR, progress=login).expired == 45
    assert len(opened) == 5
    assert all(service.sessions.check(token) for token in opened)


def test_a_cleanup_whose_admin_is_demoted_stops_and_records_what_it_removed(
    service: Service, add: Callable[..., User]
) -> None:
    add("root", role="admin")
    me = add("me", role="admin")
    by = signed_in_admin(service, me)
    cleaner = service.cleaner._replace(some=10, hold=0, pause=0)
    fill(service, me, expired=45, live=0, endless=0)

    def demote(_removed: int) -> None:
        service.accounts.update(me.id, role="user", by=OPERATOR)

    with pytest.raises(Forbidden):
        cleaner.run(by=by, progress=demote)
    with service.store.read() as tx:
        details = [row.details for row in tx.audit_rows() if row.action == "cleanup-tokens"]
    assert details == [{"expired": 10, "no_expiration": 0, "include_no_expiration": False}]


def test_a_cleanup_that_is_interrupted_records_what_it_removed(service: Service, ada: User) -> None:
    cleaner = service.cleaner._replace(some=10, hold=0, pause=0)
    fill(service, ada, expired=45, live=0, endless=0)

    def interrupt(removed: int) -> None:
        if removed == 20:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        cleaner.run(by=OPERATOR, progress=interrupt)
    with service.store.read() as tx:
        details = [row.details for row in tx.audit_rows() if row.action == "cleanup-tokens"]
    assert details == [{"expired": 20, "no_expiration": 0, "include_no_expiration": False}]


def test_the_endless_token_that_asks_for_a_cleanup_ends_last_and_only_if_it_says_so(
    service: Service, add: Callable[..., User]
) -> None:
    root = add("root", role="admin")
    cron = service.sessions.create_api_token(root.id, name="cron", lifetime=None, by=OPERATOR).token
    by = Actor(f"user:{root.id}", "192.0.2.9", root.id, digest(cron), as_admin=True)
    assert service.cleaner.run(by=by) == Cleanup(0, 0, False)
    assert service.sessions.check(cron)
    fill(service, root, expired=1, live=0, endless=1)

    def interrupt(_removed: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        service.cleaner.run(include_no_expiration=True, by=by, progress=interrupt)
    assert service.sessions.check(cron)
    assert service.cleaner.run(include_no_expiration=True, by=by) == Cleanup(0, 2, True)
    assert service.sessions.check(cron) is None


def test_of_two_cleanups_for_one_slot_of_the_schedule_one_is_recorded(
    service: Service, clock: FakeClock
) -> None:
    for _ in range(2):
        service.cleaner.run(by=OPERATOR, slot=clock())
    assert [row.action for row in audit(service)] == ["cleanup-tokens"]


@pytest.mark.sqlite  # how SQLite runs a statement
def test_tokens_that_expire_are_found_by_the_index_of_their_day(service: Service) -> None:
    with statements(service) as run:
        service.cleaner.stale()
        service.cleaner.run(include_no_expiration=True, by=OPERATOR)
        with service.store.read() as tx:
            tx.count_live_tokens()
            tx.idle_endless_tokens(tx.now_text, 10)
    plans = {statement: plan(service, statement) for statement in run if "substr(expires_at" in statement}
    assert len(plans) == 8
    for statement, steps in plans.items():
        assert any("auth_tokens_by_expiry" in step for step in steps), statement
        assert not any("SCAN auth_tokens" in step for step in steps), statement


@pytest.mark.sqlite  # how SQLite runs a statement
def test_a_cleanup_looks_only_at_what_it_may_remove(service: Service) -> None:
    with statements(service) as run:
        service.cleaner.run(by=OPERATOR)
    plans = {statement: plan(service, statement) for statement in run if "login_failures" in statement}
    plans |= {
        statement: plan(service, statement) for statement in run if "FROM outbox WHERE webhook" in statement
    }
    assert len(plans) == 3
    for statement, steps in plans.items():
        assert not any("SCAN outbox" in step for step in steps), statement
        assert not any("login_failures_by_user" in step for step in steps), statement
        assert "outbox" in statement or not any("TEMP B-TREE" in step for step in steps), statement


def test_a_cleanup_removes_emails_in_the_folder_that_are_older_than_a_week(
    service: Service, clock: FakeClock
) -> None:
    folder = mail_folder(service.settings)
    folder.mkdir()
    now, day = clock().timestamp(), 24 * 60 * 60
    ages = {"1.eml": 8, "1-2.eml": 8, "2.eml": 6, "3.tmp": 8, "4.tmp": 6, "note.eml": 8, "5.txt": 8}
    for name, days in ages.items():
        (folder / name).write_text("To: ada@example.com")
        os.utime(folder / name, (now, now - days * day))
    (folder / "6.eml").mkdir()
    os.utime(folder / "6.eml", (now, now - 8 * day))
    service.cleaner.run(by=OPERATOR)
    assert sorted(file.name for file in folder.iterdir()) == ["2.eml", "4.tmp", "5.txt", "6.eml", "note.eml"]


def test_a_cleanup_succeeds_without_a_folder_of_emails(service: Service) -> None:
    folder = mail_folder(service.settings)
    assert not folder.exists()
    assert service.cleaner.run(by=OPERATOR) == Cleanup(0, 0, False)
    folder.write_text("a file")
    assert service.cleaner.run(by=OPERATOR) == Cleanup(0, 0, False)


@pytest.fixture
def refer(service: Service) -> Callable[..., None]:
    """Lets a table of another application refer to accounts."""

    def refer(*users: User) -> None:
        with service.store.write() as tx:
            tx._run("CREATE TABLE posts (author INTEGER NOT NULL REFERENCES users (id))", ())
            for user in users:
                tx._run("INSERT INTO posts VALUES (?)", (user.id,))

    return refer


def test_an_account_that_cannot_be_deleted_keeps_a_cleanup_from_nothing_else(
    service: Service, add: Callable[..., User], clock: FakeClock, refer: Callable[..., None]
) -> None:
    ada, others = add("ada"), [add(name) for name in ("bob", "cy", "dan")]
    service.registration.register("eve@example.com", "Eve", PASSWORD, by=OPERATOR)
    clock.move(days=40)
    with service.store.write() as tx:
        for user in (ada, *others):
            tx.change_user(user.id, active=False, delete_at=tx.now_text)
    refer(ada, others[1])
    clock.move(seconds=1)
    with pytest.raises(Referred) as refused:
        service.cleaner.run(by=OPERATOR)
    assert refused.value.in_full.endswith("account: 'cy@example.com'")
    assert query(service, "SELECT email FROM users ORDER BY id") == [(ADA,), ("cy@example.com",)]
    assert query(service, "SELECT count(*) FROM outbox") == [(0,)]


def test_a_registration_that_cannot_be_removed_keeps_a_cleanup_from_nothing_else(
    service: Service, ada: User, clock: FakeClock, refer: Callable[..., None]
) -> None:
    eve, *_ = (
        service.registration.register(f"{name}@example.com", name, PASSWORD, by=OPERATOR)
        for name in ("eve", "mallory", "trent")
    )
    refer(eve)
    folder = mail_folder(service.settings)
    folder.mkdir()
    (folder / "1.eml").write_text("")
    old = (clock() - timedelta(days=8)).timestamp()
    os.utime(folder / "1.eml", (old, old))
    clock.move(days=40)
    with service.store.write() as tx:
        tx.change_user(ada.id, active=False, delete_at=tx.now_text)
    clock.move(seconds=1)
    with pytest.raises(Referred) as refused:
        service.cleaner.run(by=OPERATOR)
    assert refused.value.in_full.endswith("account: 'eve@example.com'")
    assert query(service, "SELECT email FROM users") == [("eve@example.com",)]
    assert list(folder.iterdir()) == []
