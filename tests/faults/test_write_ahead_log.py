"""A long read lets the write-ahead log grow; a minute after its end the log is small again."""

import io
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest
from support.commands import OPERATOR, Command, create_user
from support.daemons import serving, wait_for
from support.faults import LONG

from usersctl.service import Service
from usersctl.store.sqlite_store import SQLiteStore
from usersd.background import leader

pytestmark = pytest.mark.sqlite  # the log of a file

PROMISED = 64 * 1024 * 1024
GROWS_TO = 150 * 1024 * 1024 if LONG else 2 * 1024 * 1024


def size(service: Service) -> int:
    with suppress(FileNotFoundError):
        return service.store.path.with_name(f"{service.store.path.name}-wal").stat().st_size
    return 0


def grow(service: Service) -> None:
    """Makes the log grow as commands and requests do, with one change in each transaction."""
    number = 0
    while size(service) < GROWS_TO:
        number += 1
        with service.store.write() as tx:
            for _ in range(400):
                tx.audit(OPERATOR, "update", details="x" * 500)
        assert number < 5000


def test_the_write_ahead_log_is_truncated_after_a_long_read_and_not_before(
    make_service: Callable[..., Service], monkeypatch: pytest.MonkeyPatch
) -> None:
    service, reader = make_service(), make_service()
    assert service.store.longest_log <= PROMISED
    monkeypatch.setattr(service.store, "longest_log", GROWS_TO // 4)
    create_user(service, "ada@example.com", "Ada", None, by=OPERATOR)
    with reader.store.read() as tx:
        seen = tx.counts()
        grow(service)
        began = time.monotonic()
        service.store.truncate_log()
        assert time.monotonic() - began < 5  # it waits for nobody
        assert tx.counts() == seen
        assert size(service) >= GROWS_TO
    service.store.truncate_log()
    assert size(service) == 0
    with service.store.write() as tx:
        assert tx.counts()["audit"] > seen["audit"]


def test_the_write_ahead_log_is_truncated_amid_reads_and_changes_without_a_pause(
    make_service: Callable[..., Service], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As under more checks than the machine can answer: there is always a snapshot, though none for long."""
    service, over = make_service(), threading.Event()
    store = service.store
    monkeypatch.setattr(store, "longest_log", GROWS_TO // 4)

    def read() -> None:
        while not over.is_set():
            with store.together(), store.glance() as tx:
                tx.user(1)
                time.sleep(0.003)

    def change() -> None:
        while not over.is_set():
            with store.write() as tx:
                tx.audit(OPERATOR, "update", details="x" * 500)

    def is_cut() -> bool:
        store.truncate_log()
        return size(service) < GROWS_TO // 2

    with ThreadPoolExecutor(4) as pool:
        threads = [pool.submit(what) for what in (read, read, read, change)]
        try:
            grow(service)
            assert any(is_cut() for _ in range(20))
        finally:
            over.set()
        for thread in threads:
            thread.result(20)


def test_the_daemon_truncates_the_write_ahead_log(usersctl: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    """The daemon does so at least three times a minute; the long version waits for it."""
    assert leader.TIDY_EVERY <= 20
    if not LONG:
        asked: list[Path] = []
        monkeypatch.setattr(leader, "TIDY_EVERY", 0.01)
        monkeypatch.setattr(SQLiteStore, "truncate_log", lambda store: asked.append(store.path))
        from usersd.log import Log

        with usersctl.service() as service:
            job = leader.Leader(service, log=Log(io.StringIO()))
            job.start()
            wait_for(lambda: len(asked) > 2)
            job.stop()
        return
    with serving(usersctl), usersctl.service() as service, usersctl.service() as reader:
        with reader.store.read() as tx:
            tx.counts()
            grow(service)
        assert size(service) > PROMISED
        began = time.monotonic()
        wait_for(lambda: size(service) <= PROMISED, 60)
        print(
            f"the log of {GROWS_TO // 2**20} MB was cut {time.monotonic() - began:.1f} s after the reader had ended"
        )
