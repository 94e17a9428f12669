"""A move that is killed before any one of its statements: both databases are as they were, or it is done.

Some of the statements in each run, all of them in the long version (`USERSCTL_LONG=1 pytest tests/faults`).
"""

import signal
import subprocess
import sys
from collections.abc import Callable
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
KILL_AT = """
import os, signal, sqlite3, sys
from pathlib import Path
from types import SimpleNamespace
from usersctl.store import database_file, new_file
from usersctl.store.conninfo import Conninfo, is_conninfo
from usersctl.store.move import move
from usersctl.store.opening import open_store
from usersctl.store.postgres.driver import Connection

source, to = [Conninfo(name) if is_conninfo(name) else Path(name) for name in sys.argv[1:3]]
at, begun = int(sys.argv[3]), 0


def count(_statement):
    global begun
    begun += 1
    if begun == at:
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


database_file._open = counting(database_file._open)
new_file.sqlite3 = SimpleNamespace(connect=counting(sqlite3.connect))
for name in ("run", "execute", "copy_in"):
    setattr(Connection, name, counted_first(getattr(Connection, name)))
store = open_store(source)
begun = 0
move(store, to, lambda _done, _total: None)
print(begun)
"""


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


def killed(source: Database, to: Database, at: int) -> int | None:
    """Before the statement of this number; returns how many there were if it ended before."""
    words = [sys.executable, "-c", KILL_AT, str(source), str(to), str(at)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode in (0, -signal.SIGKILL), done.stderr
    return int(done.stdout) if done.returncode == 0 else None


@pytest.mark.parametrize("from_server", [False, True])
def test_a_move_that_is_killed_leaves_both_as_they_were_or_is_done(
    service: Service, add: Callable[..., User], postgres_database: Any, tmp_path: Path, from_server: bool
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
