"""Fixtures of all tests: a service on a real database file, with cheap hashes and a clock that tests move."""

import fcntl
import gc
import os
import signal
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import hypothesis
import pytest
from support import postgres
from support.commands import OPERATOR, PASSWORD, Command, create_user
from support.databases import (
    add_database,
    database_at,
    dropped_afterwards,
    fields_of,
    keep_folders_in_memory,
    spare_the_disk,
)
from support.fakes import FakeClock
from support.oauth_site import MakeOAuthSite, oauth_site
from support.web import Site, running

from usersctl.config import Settings
from usersctl.models import User
from usersctl.service import Service, build
from usersctl.store.conninfo import Conninfo

# No deadline, because an example may take long on a busy machine. In CI every run tries the same examples, so that a
# failure comes from the change; elsewhere every run tries new ones.
hypothesis.settings.register_profile("here", deadline=None, derandomize="CI" in os.environ)
hypothesis.settings.load_profile("here")

# A shell starts a background job with SIGINT ignored, and every program that a test starts would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
# So does nohup with SIGHUP. A handler lets this process and its workers go on, and no program inherits it.
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN or "PYTEST_XDIST_WORKER" in os.environ:
    signal.signal(signal.SIGHUP, lambda *_: None)

spare_the_disk()


TESTS = Path(__file__).parent
THOROUGH_FOLDERS = {"attacks", "benchmarks", "browser", "faults"}
# Two files that exist anyway serve as locks, because the workers share nothing else.
GATE, ROOM = Path(__file__), TESTS / "support" / "commands.py"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--postgres", action="store_true", help="open the databases of all tests on a PostgreSQL server"
    )
    parser.addoption("--all", action="store_true", help="run the slow tests, too")


def pytest_configure(config: pytest.Config) -> None:
    if not _tests_are_chosen(config):
        config.option.markexpr = "not slow"
    if hasattr(config, "workerinput"):
        _begin_to_collect_elsewhere(config, **config.workerinput)
    else:  # the workers use what this process begins
        keep_folders_in_memory()
        postgres.begin(whole=config.getoption("postgres"))


def _tests_are_chosen(config: pytest.Config) -> bool:
    named, option = config.args_source is not pytest.Config.ArgsSource.TESTPATHS, config.option
    return bool(named or option.all or option.markexpr or option.keyword or config.getoption("lf", False))


def _begin_to_collect_elsewhere(
    config: pytest.Config, *, workerid: str, workercount: int, **_others: object
) -> None:
    """Each worker begins at another file, so that it finds most files as the others have left them: pytest rewrites the
    assertions of a new or changed file, which takes longer than all else of collecting, and keeps the result."""
    if config.args_source is pytest.Config.ArgsSource.TESTPATHS:
        patterns = config.getini("python_files")
        files = sorted({str(file) for pattern in patterns for file in TESTS.rglob(pattern)})
        first = int(workerid.removeprefix("gw")) % workercount * len(files) // workercount
        config.args = files[first:] + files[:first]


def pytest_unconfigure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):
        postgres.end()


def pytest_report_header(config: pytest.Config) -> str:
    left_out = "without the slow tests, which --all runs; " if config.option.markexpr == "not slow" else ""
    return f"{left_out}fast subset: pytest -m fast"


def pytest_xdist_auto_num_workers() -> int:
    """One more than there are cores, because many tests wait for a process, a socket or a time limit."""
    return (os.cpu_count() or 1) + 1


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Marks as fast what neither runs the command, is slow, measures time nor is in a folder of thorough tests. Tests of
    SQLite's files are left out with --postgres."""
    if postgres.is_whole():
        of_files = [item for item in items if item.get_closest_marker("sqlite")]
        config.hook.pytest_deselected(items=of_files)
        items[:] = [item for item in items if item.get_closest_marker("sqlite") is None]
    for item in items:
        runs_the_command = "usersctl" in getattr(item, "fixturenames", ())
        is_slow = item.get_closest_marker("slow") or item.get_closest_marker("alone")
        if not (runs_the_command or is_slow or item.path.parent.name in THOROUGH_FOLDERS):
            item.add_marker(pytest.mark.fast)
    # In one order, wherever collecting began. Those that run alone come first, at one worker: later each would wait for a
    # long test, and all others with it.
    items.sort(key=lambda item: (item.get_closest_marker("alone") is None, str(item.path)))


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collecting leaves a million objects that stay, and searching them for garbage would take a tenth of all time."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """A test marked `alone` waits until the tests of all workers have ended, and theirs wait for it."""
    with GATE.open() as gate, ROOM.open() as room:
        # A test that waits for the room holds the gate, so that no other test enters in between.
        fcntl.flock(gate, fcntl.LOCK_EX)
        fcntl.flock(room, fcntl.LOCK_EX if item.get_closest_marker("alone") else fcntl.LOCK_SH)
        fcntl.flock(gate, fcntl.LOCK_UN)
        return (yield)


@pytest.fixture(autouse=True)
def _databases_end() -> Iterator[None]:
    with dropped_afterwards():
        yield


@pytest.fixture
def postgres_database() -> Iterator[Callable[..., Conninfo]]:
    """Makes databases on a PostgreSQL server, with our tables unless they are to be `empty`."""
    postgres.needed()
    made: list[Conninfo] = []

    def make(*, empty: bool = False) -> Conninfo:
        made.append(postgres.add_database(empty=empty))
        return made[-1]

    yield make
    for database in made:
        postgres.drop_database(database)


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def make_service(tmp_path: Path, clock: FakeClock) -> Iterator[Callable[..., Service]]:
    """Services on one database file; keywords are fields of Settings."""
    built: list[Service] = []

    def make(**changes: Any) -> Service:
        given = changes.pop("database", None)
        database = given or database_at(tmp_path / "users.db")
        values = fields_of(database, tmp_path) | {"base_url": "http://127.0.0.1:8080", "rounds": 4} | changes
        if given is None:
            add_database(database)
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
        return create_user(service, f"{name}@example.com", name.title(), password, by=OPERATOR, **keywords)

    return add


@pytest.fixture
def site(service: Service) -> Iterator[Site]:
    """The daemon on a socket, over the same service that the test holds."""
    with running(service) as site:
        yield site


@pytest.fixture
def make_site(make_service: Callable[..., Service]) -> Iterator[Callable[..., Site]]:
    """Daemons on one database file; keywords are fields of Settings."""
    with ExitStack() as stack:

        def make(*, listening: str | None = "127.0.0.1", **changes: Any) -> Site:
            return stack.enter_context(running(make_service(**changes), listening=listening))

        yield make


@pytest.fixture
def here(make_site: Callable[..., Site]) -> Site:
    """A daemon at an address that is a name, as passkeys need it."""
    from support.passkeys import ORIGIN  # takes long to import

    return make_site(base_url=ORIGIN)


@pytest.fixture
def make_oauth_site(make_service: Callable[..., Service]) -> Iterator[MakeOAuthSite]:
    """Sites with identity providers; keywords are those of `oauth_site`."""
    with ExitStack() as stack:
        yield lambda **keywords: stack.enter_context(oauth_site(make_service, **keywords))


@pytest.fixture
def usersctl(tmp_path: Path) -> Command:
    """The command with its own configuration and database."""
    return Command(tmp_path)
