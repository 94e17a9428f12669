"""What most tests need: a service on a real file, with cheap hashes and a clock that can be moved."""

import fcntl
import os
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import hypothesis
import pytest
from support.commands import OPERATOR, PASSWORD, Command
from support.fakes import FakeClock
from support.web import Site, running

from usersctl.config import Settings
from usersctl.models import User
from usersctl.service import Service, build

# On a busy machine one example may take long; that is no failure.
# At a desk each run tries something new; in CI a change is judged by the same examples as the one before it.
hypothesis.settings.register_profile("here", deadline=None, derandomize="CI" in os.environ)
hypothesis.settings.load_profile("here")


# Two files that are there anyhow, to be locked: the workers have nothing else in common.
GATE, ROOM = Path(__file__), Path(__file__).with_name("support") / "commands.py"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """A test that measures time waits until all workers are done with theirs, and they wait for it."""
    with GATE.open() as gate, ROOM.open() as room:
        # Whoever waits for the room holds the gate, so that nobody else slips in.
        fcntl.flock(gate, fcntl.LOCK_EX)
        fcntl.flock(room, fcntl.LOCK_EX if item.get_closest_marker("alone") else fcntl.LOCK_SH)
        fcntl.flock(gate, fcntl.LOCK_UN)
        return (yield)


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def make_service(tmp_path: Path, clock: FakeClock) -> Iterator[Callable[..., Service]]:
    """Services on one database file; keywords are fields of Settings."""
    built: list[Service] = []

    def make(**changes: Any) -> Service:
        values = {
            "database": tmp_path / "users.db",
            "base_url": "http://127.0.0.1:8080",
            "rounds": 4,
        } | changes
        built.append(build(Settings(**values), now=clock))
        return built[-1]

    yield make
    for service in built:
        service.close()


@pytest.fixture
def service(make_service: Callable[..., Service]) -> Service:
    return make_service()


@pytest.fixture
def add(service: Service) -> Callable[..., User]:
    """An account on `service`; the first argument is the local part of its address."""

    def add(name: str = "ada", **keywords: Any) -> User:
        password = keywords.pop("password", PASSWORD)
        return service.accounts.create(f"{name}@example.com", name.title(), password, by=OPERATOR, **keywords)

    return add


@pytest.fixture
def site(service: Service) -> Iterator[Site]:
    """The daemon on a socket, over the same service that the test holds."""
    with running(service) as found:
        yield found


@pytest.fixture
def make_site(make_service: Callable[..., Service]) -> Iterator[Callable[..., Site]]:
    """Daemons on one database file; keywords are fields of Settings."""
    with ExitStack() as stack:

        def make(*, listening: str | None = "127.0.0.1", **changes: Any) -> Site:
            return stack.enter_context(running(make_service(**changes), listening=listening))

        yield make


@pytest.fixture
def usersctl(tmp_path: Path) -> Command:
    """The command, with a configuration and a database of its own."""
    return Command(tmp_path)
