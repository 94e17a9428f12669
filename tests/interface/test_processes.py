"""Several processes of one daemon are one service."""

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import pytest
from support.commands import PASSWORD, Command
from support.daemons import Daemon, serving, wait_for
from support.faults import LONG
from support.ports import free_port
from support.web import Client, Site

from usersctl.config import Settings
from usersctl.store.conninfo import Conninfo
from usersd.router import Router
from usersd.routes import TABLE
from usersd.server.connections import Hosted
from usersd.server.lanes import Lane
from usersd.server.listener import listen
from usersd.server.processes import Serving, _Child, _Parent
from usersd.server.systemd import Notifier

WRONG = "wrong horse battery"


def children_of(daemon: Daemon) -> list[int]:
    pid = daemon.process.pid
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


@pytest.mark.slow
@pytest.mark.parametrize("processes", [4, 8] if LONG else [8])
def test_many_processes_are_one_service(usersctl: Command, processes: int) -> None:
    (ada,) = usersctl.add("ada")
    port = free_port()
    usersctl.configure(
        f"[passwordHashing]\nrounds = 10\n[server]\nprocesses = {processes}\n[metrics]\nport = {port}\n"
        "[limits]\nfailedLoginsPerMinute = 10\n"
    )
    with serving(usersctl) as daemon:
        wait_for(lambda: daemon.events("leader"))
        client = daemon.client()
        assert client.login(ada.email, PASSWORD).status == 200
        assert {client.get("/api/users/me").status for _ in range(5 * processes)} == {200}
        assert daemon.client().post("/api/users/password/forgot", {"email": ada.email}).status == 200
        wait_for(lambda: daemon.events("email"))
        failed = Counter(daemon.client().login(f"u{n}@example.com", WRONG).status for n in range(30))
        assert 10 <= failed[401] <= 10 + processes - 1
        assert failed[401] + failed[429] == 30
        page = Client(port).get("/metrics").body.decode()
        counted = 'count{method="GET",route="/api/users/me",status="2xx"} '
        assert f"{counted}{5 * processes:.1f}" in page
        cores = os.cpu_count() or 1
        assert f"users_bcrypt_slots {processes * -(-cores // processes):.1f}" in page
        (leader,) = (line["process"] for line in daemon.events("leader"))
        os.kill(leader, signal.SIGKILL)
        wait_for(lambda: len(daemon.events("leader")) == 2)
        wait_for(lambda: len(children_of(daemon)) == processes)
        assert leader not in children_of(daemon)
        assert client.get("/api/users/me").status == 200
        assert daemon.stop() == 0
    assert len(daemon.events("email")) == 1


@pytest.mark.parametrize("processes", [1, 2, 3, 64])
def test_processes_share_the_cores_for_bcrypt(processes: int) -> None:
    settings = Settings(database=Path("users.db"), base_url="http://127.0.0.1", processes=processes)
    slots = Serving.of(settings).slow_threads
    assert slots >= 1
    assert slots * processes >= (os.cpu_count() or 1)
    assert (slots - 1) * processes < (os.cpu_count() or 1)


class Starts(_Parent):
    """Notes how long a process would wait before it begins, and starts none."""

    delay: float

    def _start(self, _index: int, delay: float) -> None:
        self.delay = delay


@pytest.mark.parametrize(
    ("lived", "delay", "next_delay"),
    [
        (0, 0, 0.1),
        (0, 0.1, 0.2),
        (0, 8, 10),
        (15, 10, 10),  # it waited ten seconds and served for five
        (11, 0, 0.1),
        (21, 10, 0.1),
    ],
)
def test_a_process_that_soon_ends_again_is_replaced_later_each_time(
    lived: float, delay: float, next_delay: float
) -> None:
    with listen("127.0.0.1", 0) as listener:
        parent = Starts(listener, lambda _: nullcontext(Hosted(app=None)), Serving(), print, Notifier())
        parent.ready = True
        parent._replace(1, _Child(0, time.monotonic() - lived, delay), -9)
    assert parent.delay == next_delay


LIMITS = """
from resource import RLIMIT_NOFILE, getrlimit, setrlimit
from usersd.server.processes import _connections
for soft, hard in ((4000, 4000), (256, 4000), (256, 1500), (105, 105)):
    setrlimit(RLIMIT_NOFILE, (soft, hard))
    print(_connections(), getrlimit(RLIMIT_NOFILE)[0])
"""


def test_a_process_takes_as_many_connections_as_it_may_open_files() -> None:
    root = Path(__file__).parents[2]
    env = os.environ | {"PYTHONPATH": f"{root}:{root / 'daemon'}"}
    done = subprocess.run([sys.executable, "-c", LIMITS], env=env, capture_output=True, check=True, text=True)
    assert done.stdout.splitlines() == ["2000 4000", "2000 2100", "1400 1500", "10 105"]


def test_the_main_thread_does_not_wait_for_a_server(
    make_site: Callable[..., Site], postgres_database: Callable[[], Conninfo], tmp_path: Path
) -> None:
    site = make_site(database=postgres_database())
    assert site.signed_in(site.add()).get("/api/users/me").status == 200
    settings = site.service.settings
    on_server = Router(TABLE, settings)
    in_file = Router(TABLE, settings._replace(database=tmp_path / "users.db"))
    for path in ("/api/users/me", "/api/users/auth/verify"):
        assert on_server.lane("GET", path) is Lane.QUICK
        assert in_file.lane("GET", path) is Lane.HERE
