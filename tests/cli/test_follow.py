"""audit --follow shows each row and each sign-in once, whatever happens between two of its looks."""

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.backups import restored
from support.commands import PASSWORD
from support.databases import opened

from usersctl.cli import audit
from usersctl.models import AuditFilter, User
from usersctl.service import Service
from usersctl.sessions import Opened


class Ended(Exception):
    """There is nothing more to wait for."""


def followed(
    service: Service, monkeypatch: pytest.MonkeyPatch, *meanwhile: Callable[[], object]
) -> list[dict[str, Any]]:
    """The rows of what happens while `audit --follow` waits: one thing between two of its looks."""
    happens = iter(meanwhile)

    def sleep(_seconds: float) -> None:
        next(happens, end)()

    def end() -> None:
        raise Ended

    monkeypatch.setattr(audit, "time", SimpleNamespace(sleep=sleep))
    rows: list[dict[str, Any]] = []
    with suppress(Ended):
        rows.extend(audit.following(service.store, AuditFilter()))
    return rows


def test_follow_shows_all_that_came_after_a_restore(
    service: Service, add: Callable[..., User], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reader of its pipe that is slow makes the time between two looks as long as it likes."""
    add("ada")
    service.store.copy(tmp_path / "saved.db")
    for _ in range(3):
        service.sessions.login("ada@example.com", PASSWORD)

    def restore_and_go_on() -> None:
        restored(tmp_path / "saved.db", service.store.database)
        add("bob")
        add("eve")
        service.sessions.login("ada@example.com", PASSWORD)

    rows = followed(service, monkeypatch, lambda: add("eve"), restore_and_go_on)
    # The restore has the time of the machine, and the rest that of the test.
    actions = sorted(row["action"] for row in rows)
    assert actions == ["create", "create", "create", "restore", "sign-in"]


def test_follow_shows_a_sign_in_that_is_committed_after_one_with_a_higher_number(
    service: Service, add: Callable[..., User], monkeypatch: pytest.MonkeyPatch
) -> None:
    """PostgreSQL gives the number before the commit."""
    add("ada")

    def sign_in(number: int) -> None:
        ada = service.sessions.login("ada@example.com", PASSWORD)
        assert isinstance(ada, Opened)
        with opened(service.store.database) as db:
            db.execute("UPDATE auth_tokens SET id = ? WHERE id = ?", (number, ada.session.id))

    rows = followed(
        service, monkeypatch, *(partial(sign_in, number) for number in (20, 10, 30)), lambda: None
    )
    assert [row["details"]["token"] for row in rows] == [20, 10, 30]
