"""What tests of backups and restores begin with."""

import pytest
from support.commands import Command

from usersctl.models import User
from usersctl.store import progress


@pytest.fixture
def progress_is_drawn_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "DRAWN_EVERY", 1)


@pytest.fixture
def ada(usersctl: Command) -> User:
    (user,) = usersctl.add("ada", role="admin")
    return user
