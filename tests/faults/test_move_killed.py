"""A move that is killed before any one of its statements: both databases are as they were, or it is done.

Some of the statements in each run, all of them in the long version (`USERSCTL_LONG=1 pytest tests/faults`).
"""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from support import postgres
from support.commands import OPERATOR
from support.factors import add_factors
from support.faults import LONG

from usersctl.errors import OtherVersion, StoreUnusable
from usersctl.models import User
from usersctl.service import Service
from usersctl.store.conninfo import Conninfo, Database
from usersctl.store.content import tables
from usersctl.store.move import move
from usersctl.store.opening import open_store

pytestmark = pytest.mark.sqlite  # each test names its databases

SAMPLES = 5
KILLER = """
import json, os, signal, sqlite3, sys, traceback
from pathlib import Path
from types import SimpleNamespace
import usersctl.store.postgres.store, usersctl.store.sqlite_store  # once, and not in each of the processes that are killed
from usersctl.store import database_file, new_file
from usersctl.store.conninfo import Conninfo, is_conninfo
from usersctl.store.move import move
from usersctl.store.opening import open_store
from usersctl.store.postgres.driver import Connection

begun = last = 0


def count(_statement):
    global begun
    begun += 1
    if begun == last:
        os.kill(os.getpid(), signal.SIGKILL)


def counting(function):
    def counted(*arguments, **keywords):
        found = function(*arguments, **keywords)
        found.set_trace_callback(count)
        return found
    return counted


def counted_first(method):
    def counted(self, text, *more, **keywords):
        count(text)
        return method(self, text, *more, **keywords)
    return counted


def act(source, to, at):
    global begun, last
    signal.alarm(120)
    try:
        store = open_store(source)
        begun, last = 0, at
        move(store, to, lambda _done, _total: None)
        print(begun, flush=True)
        os._exit(0)
    except BaseException:
        traceback.print_exc()
        os._exit(1)


database_file._open = counting(database_file._open)
new_file.sqlite3 = SimpleNamespace(connect=counting(sqlite3.connect))
for name in ("run", "execute", "copy_in"):
    setattr(Connection, name, counted_first(getattr(Connection, name)))
for line in sys.stdin:
    *names, at = json.loads(line)
    source, to = [Conninfo(name) if is_conninfo(name) else Path(name) for name in names]
    status = os.waitpid(os.fork() or act(source, to, at), 0)[1]
    if status != 0:
        print("killed" if status == signal.SIGKILL else f"ended with {status}", flush=True)
"""
Kill = Callable[[Database, Database, int], int | None]


@pytest.fixture
def killed() -> Iterator[Kill]:
    """Moves one database to another, killed before the statement of this number; returns how many there were if the move
    ended before."""
    start = [sys.executable, "-c", KILLER]
    with subprocess.Popen(start, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        ask, answers = process.stdin, process.stdout

        def kill(source: Database, to: Database, at: int) -> int | None:
            print(json.dumps([str(source), str(to), at]), file=ask, flush=True)
            answer = answers.readline().strip()
            return None if answer == "killed" else int(answer)

        yield kill


def content(database: Database) -> Any:
    with closing(open_store(database, write=False)) as store, store.read() as tx:
        return {table: list(map(tuple, tx.all_rows(table, columns))) for table, columns in tables().items()}


def state(database: Database, expected: Any) -> str:
    """What became of it: it is missing, or moved, or has the whole content."""
    try:
        assert content(database) == expected
    except OtherVersion:
        return "moved"
    except StoreUnusable:
        assert isinstance(database, Conninfo) or not database.exists()
        return "missing"
    with closing(open_store(database)) as store, store.write() as tx:
        tx.change_nothing()
    return "whole"


@pytest.mark.slow
@pytest.mark.parametrize("from_server", [False, True])
def test_a_move_that_is_killed_leaves_both_as_they_were_or_is_done(
    service: Service,
    add: Callable[..., User],
    postgres_database: Any,
    tmp_path: Path,
    killed: Kill,
    from_server: bool,
) -> None:
    add_factors(service, add("ada", role="admin").id)
    service.groups.create("staff", by=OPERATOR)
    saved = tmp_path / "saved.db"
    service.store.copy(saved)
    expected = content(saved)

    def databases(number: int) -> tuple[Database, Database]:
        file, server = tmp_path / f"{number}.db", postgres_database(empty=True)
        file.write_bytes(saved.read_bytes())
        if not from_server:
            return file, server
        with closing(open_store(file)) as store:
            move(store, server, lambda _done, _total: None)
        return server, tmp_path / f"{number}-back.db"

    source, to = databases(0)
    steps = killed(source, to, 0)
    assert steps is not None
    assert (state(source, expected), state(to, expected)) == ("moved", "whole")
    first = 1 if LONG else max(1, steps // SAMPLES)
    chosen = [*range(first, steps - 3, first), *range(max(1, steps - 3), steps + 1)]
    states = []
    for at in chosen:
        source, to = databases(at)
        assert killed(source, to, at) is None
        if isinstance(source, Conninfo):
            postgres.end_connections(source)  # the server notices a dead client late
        states.append((state(source, expected), state(to, expected)))
    print(f"killed before {len(chosen)} of {steps} statements: {states}")
    order = [("whole", "missing"), ("whole", "whole"), ("moved", "whole")]
    assert sorted(states, key=order.index) == states
    assert states[0] == order[0]
    assert states.count(("whole", "whole")) <= 2  # between the two commits
