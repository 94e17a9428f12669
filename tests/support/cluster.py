"""PostgreSQL on several servers of a test's own: one with a synchronous standby, and three nodes of Patroni with etcd.

The servers run as another user if the tests run as root, which PostgreSQL refuses, and so in a folder outside of pytest's.
"""

import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from support import postgres
from support.daemons import wait_for
from support.ports import free_port
from support.proxies import needed

ROLE = "postgres"
DATABASE = "users"
STARTS_WITHIN = 60.0
# Nothing here is lost with its process: what a server wrote is in the memory of the machine.
SETTINGS = {
    "listen_addresses": "127.0.0.1",
    "fsync": "off",
    "shared_buffers": "16MB",
    "max_connections": "60",
    "max_wal_size": "64MB",
    "min_wal_size": "32MB",
    "log_min_messages": "warning",
}


def binaries() -> Path:
    """The folder of PostgreSQL's programs."""
    postgres.needed()
    folder = postgres.programs()
    assert folder is not None
    return folder


def account() -> str | None:
    """The user of the servers; None: that of the tests."""
    return postgres.owner() if os.geteuid() == 0 else None


def owned_folder(folder: Path) -> Path:
    """A folder that the servers may use, made if it is missing."""
    folder.mkdir(mode=0o700, exist_ok=True)
    if account():
        shutil.chown(folder, account())
    return folder


@contextmanager
def folder_of_servers() -> Iterator[Path]:
    """With a short name, because that of a socket has to fit into 107 characters."""
    folder = Path(tempfile.mkdtemp(prefix="usersctl-pg-"))
    try:
        yield owned_folder(folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def run(*words: str | Path) -> str:
    """Runs a program as the user of the servers, and returns what it printed."""
    done = subprocess.run(
        words, user=account(), cwd="/", capture_output=True, text=True, timeout=STARTS_WITHIN, check=False
    )
    assert done.returncode == 0, (words, done.stdout, done.stderr)
    return done.stdout


def start(
    words: list[str | Path], log: Path, stack: ExitStack, *, ends_by: int = signal.SIGKILL
) -> "subprocess.Popen[bytes]":
    """Starts a program as the user of the servers. It ends with the stack."""
    with log.open("ab") as output:
        process = subprocess.Popen(
            words,
            user=account(),
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env={"PATH": f"{binaries()}:{os.environ['PATH']}", "LC_ALL": "C.UTF-8"},
        )
    stack.callback(_end, process, ends_by)
    return process


def _end(process: "subprocess.Popen[bytes]", signum: int) -> None:
    if process.poll() is None:
        process.send_signal(signum)
    try:
        process.wait(10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait(10)


@dataclass
class Node:
    """One server, started by this process or by Patroni."""

    folder: Path
    port: int = field(default_factory=free_port)
    process: "subprocess.Popen[bytes] | None" = None

    @property
    def data(self) -> Path:
        return self.folder / "data"

    @property
    def address(self) -> str:
        return f"host=127.0.0.1 port={self.port} user={ROLE}"

    def sql(self, statement: str, *, database: str = DATABASE) -> str:
        """What psql prints: a line for each row, `|` between the columns."""
        words = ("-X", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1", "-c", statement)
        return run(binaries() / "psql", "-d", f"{self.address} dbname={database}", *words).strip()

    def answers(self) -> bool:
        words = (binaries() / "pg_isready", "-q", "-t", "1", "-h", "127.0.0.1", "-p", str(self.port))
        return subprocess.run(words, check=False).returncode == 0

    # --- made and started ---

    def make(self) -> None:
        run(binaries() / "initdb", "-D", self.data, "-U", ROLE, "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync", "--wal-segsize=1")  # fmt: skip

    def copy(self, primary: "Node") -> None:
        """Makes a standby of `primary`, whose name is `standby` there."""
        source = f"{primary.address} application_name=standby"
        run(binaries() / "pg_basebackup", "-D", self.data, "-R", "-X", "stream", "-c", "fast", "--no-sync", "-d", source)  # fmt: skip

    def start(self, stack: ExitStack, **settings: str) -> None:
        settings = SETTINGS | settings | {"port": str(self.port), "unix_socket_directories": str(self.folder)}
        words = [binaries() / "postgres", "-D", self.data]
        for name, value in settings.items():
            words += ["-c", f"{name}={value}"]
        stack.callback(self.kill)
        self.process = start(words, self.folder / f"{self.port}.log", stack, ends_by=signal.SIGINT)
        wait_for(self.answers, STARTS_WITHIN)

    def promote(self) -> None:
        run(binaries() / "pg_ctl", "promote", "-w", "-D", self.data)

    # --- faults ---

    @property
    def processes(self) -> list[int]:
        """That of the server itself, and those that it started: each connection has its own."""
        with suppress(OSError, ValueError):
            server = int((self.data / "postmaster.pid").read_text().partition("\n")[0])
            return [server, *map(int, Path(f"/proc/{server}/task/{server}/children").read_text().split())]
        return []

    def signal_all(self, signum: int) -> None:
        """The server first, so that it starts no other process meanwhile."""
        signalled: set[int] = set()
        while more := [process for process in self.processes if process not in signalled]:
            for process in more:
                with suppress(ProcessLookupError):
                    os.kill(process, signum)
            signalled.update(more)

    def kill(self) -> None:
        """All of it at once, as a machine without power would end."""
        self.signal_all(signal.SIGKILL)
        if self.process is not None:
            self.process.wait(10)

    @contextmanager
    def stopped(self) -> Iterator[None]:
        """Its connections stay open, and nothing is heard of it: as if the network were cut."""
        self.signal_all(signal.SIGSTOP)
        try:
            yield
        finally:
            self.signal_all(signal.SIGCONT)


def conninfo(*nodes: Node) -> str:
    """For a service that uses the one of these that takes writes."""
    hosts = ",".join(f"127.0.0.1:{node.port}" for node in nodes)
    return f"postgresql://{ROLE}@{hosts}/{DATABASE}?target_session_attrs=read-write"


@contextmanager
def one_server(**settings: str) -> Iterator[Node]:
    with folder_of_servers() as folder, ExitStack() as stack:
        node = Node(folder)
        node.make()
        node.start(stack, **settings)
        node.sql(f"CREATE DATABASE {DATABASE}", database=ROLE)
        yield node


@contextmanager
def with_a_standby() -> Iterator[tuple[Node, Node]]:
    """A server and its standby. A commit is answered when both have it."""
    with one_server() as primary, folder_of_servers() as folder, ExitStack() as stack:
        standby = Node(folder)
        standby.copy(primary)
        standby.start(stack)
        primary.sql("ALTER SYSTEM SET synchronous_standby_names = 'standby'")
        primary.sql("SELECT pg_reload_conf()")
        wait_for(lambda: primary.sql("SELECT sync_state FROM pg_stat_replication") == "sync", STARTS_WITHIN)
        yield primary, standby


# --- Patroni ---


@dataclass
class Member:
    """A node that Patroni looks after."""

    name: str
    node: Node
    port: int  # of Patroni
    process: "subprocess.Popen[bytes]"

    def kill(self) -> None:
        """Patroni and its server, as a machine without power would end."""
        self.process.kill()
        self.process.wait(10)
        self.node.kill()


class Patroni:
    """Three nodes, of which one takes writes and another has each commit before it is answered."""

    def __init__(self, members: list[Member]) -> None:
        self.members = members

    @property
    def roles(self) -> dict[str, str]:
        """By name, as one of the members knows them."""
        for member in self.members:
            with suppress(OSError, ValueError):
                url = f"http://127.0.0.1:{member.port}/cluster"
                with urllib.request.urlopen(url, timeout=2) as answer:
                    told: list[dict[str, Any]] = json.load(answer)["members"]
                return {one["name"]: one["role"] for one in told if one["state"] in ("running", "streaming")}
        return {}

    @property
    def leader(self) -> Member | None:
        roles = self.roles
        return next((one for one in self.members if roles.get(one.name) == "leader"), None)

    @property
    def conninfo(self) -> str:
        return conninfo(*(member.node for member in self.members))

    def is_whole(self) -> bool:
        return sorted(self.roles.values()) == ["leader", "replica", "sync_standby"]

    def hand_over(self) -> None:
        """Planned, to the one that has each commit."""
        roles = self.roles
        (leader,) = (name for name, role in roles.items() if role == "leader")
        (candidate,) = (name for name, role in roles.items() if role == "sync_standby")
        body = json.dumps({"leader": leader, "candidate": candidate}).encode()
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.members[0].port}/switchover",
            body,
            {"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=30) as answer:  # noqa: S310 - loopback
            assert answer.status == 200


@contextmanager
def patroni() -> Iterator[Patroni]:
    etcd, program = needed("etcd", "POSTGRES"), needed("patroni", "POSTGRES")
    with folder_of_servers() as folder, ExitStack() as stack:
        client, peer = (f"http://127.0.0.1:{free_port()}" for _ in range(2))
        start(
            [
                etcd, "--name", "one", "--data-dir", folder / "etcd",
                "--listen-client-urls", client, "--advertise-client-urls", client,
                "--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer, "--initial-cluster", f"one={peer}",
            ],
            folder / "etcd.log",
            stack,
        )  # fmt: skip
        wait_for(lambda: _is_healthy(client), STARTS_WITHIN)
        members: list[Member] = []
        for name in ("a", "b", "c"):
            node, port = Node(owned_folder(folder / name)), free_port()
            file = folder / f"{name}.yml"
            file.write_text(json.dumps(_configuration(name, node, port, client)))
            stack.callback(node.kill)
            process = start([program, file], folder / f"{name}.log", stack)
            members.append(Member(name, node, port, process))
            if not members[1:]:  # the first one makes the database, and the others copy it
                wait_for(lambda: Patroni(members).leader, STARTS_WITHIN)
        cluster = Patroni(members)
        wait_for(cluster.is_whole, STARTS_WITHIN)
        leader = cluster.leader
        assert leader is not None
        leader.node.sql(f"CREATE DATABASE {DATABASE}", database=ROLE)
        yield cluster


def _is_healthy(etcd: str) -> bool:
    with suppress(OSError), urllib.request.urlopen(f"{etcd}/health", timeout=2) as answer:  # noqa: S310
        return json.load(answer)["health"] == "true"
    time.sleep(0.1)
    return False


def _configuration(name: str, node: Node, port: int, etcd: str) -> dict[str, Any]:
    """As JSON it is YAML, too."""
    at = f"127.0.0.1:{port}"
    server = f"127.0.0.1:{node.port}"
    return {
        "scope": "users",
        "name": name,
        "restapi": {"listen": at, "connect_address": at},
        "etcd3": {"hosts": etcd.removeprefix("http://")},
        "bootstrap": {
            "dcs": {
                "ttl": 20,  # the least that Patroni takes
                "loop_wait": 1,
                "retry_timeout": 3,
                "synchronous_mode": True,
                "postgresql": {"parameters": {"max_connections": 60}},
            },
            "initdb": ["no-sync", {"encoding": "UTF8"}, {"locale": "C"}, {"wal-segsize": "1"}],
            "pg_hba": [
                "local all all trust",
                "host all all 127.0.0.1/32 trust",
                "host replication all 127.0.0.1/32 trust",
            ],
        },
        "postgresql": {
            "listen": server,
            "connect_address": server,
            "data_dir": str(node.data),
            "bin_dir": str(binaries()),
            "pgpass": str(node.folder / "pgpass"),
            "authentication": {
                "superuser": {"username": ROLE, "password": "none"},
                "replication": {"username": "replicator", "password": "none"},
            },
            "parameters": {
                **{
                    key: value
                    for key, value in SETTINGS.items()
                    if key not in ("listen_addresses", "max_connections")
                },
                "unix_socket_directories": str(node.folder),
            },
        },
    }
