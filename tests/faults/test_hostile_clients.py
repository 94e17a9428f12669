"""Clients that break off, send garbage, use many addresses or take all descriptors leave the daemon as it was.

The short versions are part of every run; `USERSCTL_LONG=1 pytest tests/faults` sends 10,000 requests that are broken
off, 100,000 that are mutated, and 200,000 from as many addresses.
"""

import http.client
import json
import os
import random
import re
import resource
import signal
import socket
import struct
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest
from support.accounts import open_session
from support.commands import OPERATOR, PASSWORD, Command, create_user
from support.daemons import Daemon, serving, wait_for
from support.faults import FORGOT, LONG, ME, done
from support.mutations import changed_once
from support.web import Reply

ABORTED, MUTATED, ADDRESSES = (10_000, 100_000, 200_000) if LONG else (100, 500, 400)
MEMORY = 30 if LONG else 8  # MB more than before
TIME_LIMIT = 580 if LONG else 60
THREADS = 4
CHEAP_HASHES = "passwordHashing.rounds = 10\n"  # in a forked daemon
WARM = 200  # requests after which a daemon has what it needs for good


def descriptors(daemon: Daemon) -> int:
    return len(os.listdir(f"/proc/{daemon.process.pid}/fd"))  # noqa: PTH208


def threads(daemon: Daemon) -> int:
    return len(os.listdir(f"/proc/{daemon.process.pid}/task"))  # noqa: PTH208


def memory(daemon: Daemon) -> float:
    """Memory in use, in MB."""
    status = Path(f"/proc/{daemon.process.pid}/status").read_text("ascii")
    return int(status.partition("VmRSS:")[2].split()[0]) / 1024


def busy(daemon: Daemon) -> float:
    """Seconds of processor time."""
    fields = Path(f"/proc/{daemon.process.pid}/stat").read_text("ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def in_parallel(work: Callable[[random.Random], None], count: int) -> None:
    """`work` as often, by a few at once, with chances that are the same in every run."""
    until = time.monotonic() + TIME_LIMIT

    def share(number: int) -> None:
        chance = random.Random(number)
        for _ in range(count // THREADS):
            assert time.monotonic() < until, "not done in time"
            work(chance)

    with ThreadPoolExecutor(THREADS) as pool:
        for future in [pool.submit(share, number) for number in range(THREADS)]:
            future.result()


def body_of(method: str, path: str, body: object, *headers: str) -> bytes:
    raw = json.dumps(body).encode() if body is not None else b""
    lines = [f"{method} {path} HTTP/1.1", "Host: 127.0.0.1", *headers]
    if raw:
        lines += ["Content-Type: application/json", f"Content-Length: {len(raw)}"]
    return ("\r\n".join(lines) + "\r\n\r\n").encode() + raw


def requests(usersctl: Command) -> list[bytes]:
    """Requests of every kind: as an admin, as a user without rights, and without a session."""
    with usersctl.service() as service:
        root = create_user(service, "root@example.com", "Root", PASSWORD, role="admin", by=OPERATOR)
        ada = create_user(service, "ada@example.com", "Ada", PASSWORD, by=OPERATOR)
        admin = service.sessions.create_api_token(root.id, name="x", lifetime=None, by=OPERATOR).token
        cookie = open_session(service, ada, remember=True).token
    bearer, cookie = f"Authorization: Bearer {admin}", f"Cookie: auth_token={cookie}; other=1"
    credentials = {"email": "ada@example.com", "password": PASSWORD, "rememberMe": True}
    return [
        body_of("GET", ME, None, cookie, "Accept: */*"),
        body_of("GET", "/api/users?page=1&limit=10&search=a", None, bearer),
        body_of("GET", f"/api/users/{ada.id}", None, bearer),
        body_of("PATCH", ME, {"name": "Ada L."}, cookie),
        body_of("PATCH", f"/api/users/{ada.id}", {"name": "A", "role": "user", "active": True}, bearer),
        body_of("POST", "/api/users/session", credentials, "User-Agent: x/1 (y)"),
        body_of("POST", "/api/users/register", {"email": "b@example.com", "name": "B", "password": "short"}),
        body_of("POST", FORGOT, {"email": "nobody@example.com"}, "X-Forwarded-For: 192.0.2.1, 10.0.0.1"),
        body_of("POST", "/api/users/password/reset", {"token": "x", "email": "a@example.com", "password": PASSWORD, "password_confirmation": PASSWORD}),
        body_of("GET", "/api/users/confirm-email?token=x&email=ada%40example.com", None),
        body_of("GET", "/login?redirect=%2Fusers", None, "Accept-Language: de", "Sec-Fetch-Site: none"),
        body_of("OPTIONS", "/api/users", None, "Origin: https://elsewhere.example"),
        body_of("POST", "/_tasks/users:cleanup-tokens", {"includeNoExpiration": False}, bearer),
        body_of("HEAD", "/", None, cookie),
        (
            b"POST /api/users/session HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
            b'Transfer-Encoding: chunked\r\n\r\n14\r\n{"email":"a","b":[]}\r\n0\r\n\r\n'
        ),
    ]  # fmt: skip


# --- broken off, and mutated ---


def break_off(address: tuple[str, int], request: bytes, chance: random.Random) -> None:
    with suppress(OSError), socket.create_connection(address, timeout=10) as client:
        how = chance.randrange(5)
        if how == 4:  # an answer that is not read to its end
            client.sendall(request)
            client.recv(chance.randrange(1, 40))
        elif how > 0:
            client.sendall(request[: chance.randrange(len(request) + 1)])
        if how == 1:
            client.shutdown(socket.SHUT_WR)
        elif how == 2:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # a reset


_ODD = [
    b"\r\n", b"\n", b"\0", b" ", b"\t", b":", b"/", b"//", b"%", b"%00", b"%ff", b"%0d%0a", b"..", b"\xff\xfe", b"\xc3\xa9", b"{", b"}", b"[",
    b'"', b"\\", b"\\u0000", b"\\ud800", b"null", b"NaN", b"1e999", b"-1", b"9" * 40, b"HTTP/1.0", b"HTTP/9.9", b"Content-Length: 0\r\n",
    b"Content-Length: 7\r\n", b"Transfer-Encoding: chunked\r\n", b"Expect: 100-continue\r\n", b"Connection: close\r\n", b"Upgrade: h2c\r\n",
    b"Cookie: auth_token=\r\n", b"Authorization: Bearer \r\n", b"Content-Encoding: gzip\r\n", b"A" * 300, b"Host: y\r\n",
]  # fmt: skip


def mutated(requests: list[bytes], chance: random.Random) -> bytes:
    data = bytearray(chance.choice(requests))
    for _ in range(chance.choice((1, 1, 2, 3, 8))):
        at = chance.randrange(len(data) + 1)
        if chance.random() < 0.85:
            changed_once(data, at, _ODD, chance)
        else:
            other = chance.choice(requests)
            data[at:] = other[chance.randrange(len(other)) :]
    return bytes(data)


def answers(address: tuple[str, int], request: bytes) -> bytes:
    got = b""
    with suppress(ConnectionError), socket.create_connection(address, timeout=20) as client:
        client.sendall(request)
        client.shutdown(socket.SHUT_WR)
        while some := client.recv(65536):
            got += some
    return got


@pytest.mark.slow
def test_broken_and_mutated_requests_leave_the_daemon_as_it_was(usersctl: Command) -> None:
    statuses: Counter[bytes] = Counter()
    usersctl.configure(f'{CHEAP_HASHES}auth.whitelist = ["/register"]\nlimits.enabled = false\n')
    with serving(usersctl) as daemon:
        address = ("127.0.0.1", daemon.port)
        known = requests(usersctl)

        def mutate(chance: random.Random) -> None:
            sent = mutated(known, chance)
            got = answers(address, sent)
            answered = re.findall(rb"HTTP/1\.1 (\d\d\d) ", got)
            statuses.update(answered)
            assert not [status for status in answered if status >= b"500"], (sent, got)

        in_parallel(lambda chance: break_off(address, chance.choice(known), chance), 40)
        in_parallel(mutate, 40)
        wait_for(lambda: quiet(daemon))
        before = descriptors(daemon), threads(daemon)
        in_parallel(lambda chance: break_off(address, chance.choice(known), chance), ABORTED)
        in_parallel(mutate, MUTATED)
        assert daemon.client().get("/login").status == 200
        wait_for(lambda: quiet(daemon))
        # A thread opens two files when it first needs the database; nothing else stays open.
        wait_for(lambda: descriptors(daemon) <= before[0] + 2 * before[1])
        assert threads(daemon) == before[1]
        assert daemon.process.poll() is None
        events = {line["event"] for line in daemon.log}
        assert "error" not in events, daemon.events("error")
        assert not [line for line in daemon.events("request") if line["status"] >= 500]
        print(f"{ABORTED} broken off, {MUTATED} mutated: answers {dict(statuses)}")
        print(f"(descriptors, threads) before {before}, after {(descriptors(daemon), threads(daemon))}")
        assert len(statuses) > 4


def quiet(daemon: Daemon) -> bool:
    """No client is connected."""
    state = Path("/proc/net/tcp").read_text("ascii").splitlines()[1:]
    here = f":{daemon.port:04X}"
    return not [line for line in state if line.split()[1].endswith(here) and line.split()[3] in ("01", "08")]


# --- many addresses ---


class Stream:
    """Requests one after the other on a connection that is kept, read no further than needed: the client must not be
    what takes the time."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.socket: socket.socket | None = None

    def status(self, request: bytes) -> int:
        for _ in range(200):  # the waiting room may be full for a moment, and a connection be closed
            try:
                if self.socket is None:
                    self.socket = socket.create_connection(("127.0.0.1", self.port), timeout=30)
                self.socket.sendall(request)
                got = b""
                while b"\r\n\r\n" not in got:
                    got += self._more()
                head, _, body = got.partition(b"\r\n\r\n")
                left = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0]) - len(body)
                while left > 0:
                    left -= len(self._more())
            except ConnectionError:
                self.close()
                continue
            if head[9:12] != b"503":
                return int(head[9:12])
            time.sleep(0.02)
        raise AssertionError("there is never a free slot")

    def _more(self) -> bytes:
        assert self.socket
        some = self.socket.recv(65536)
        if not some:
            raise ConnectionResetError
        return some

    def close(self) -> None:
        if self.socket is not None:
            self.socket.close()
        self.socket = None


def from_elsewhere(number: int) -> bytes:
    """A login, or two times in five a registration, that fails, by an address and from a client that were never seen
    before: of both families as many."""
    client = (
        f"2001:db8:{number >> 16:x}:{number & 0xFFFF:x}::1"
        if number % 2
        else socket.inet_ntoa(struct.pack("!I", 0x0B000000 + number))
    )
    email = f"a{number}@example.com"
    if number // 2 % 5 < 2:
        path, body = "/api/users/register", {"email": email, "name": "A", "password": "short"}
    else:
        path, body = "/api/users/session", {"email": email, "password": PASSWORD}
    return body_of("POST", path, body, f"X-Forwarded-For: {client}")


@pytest.mark.slow
def test_a_flood_of_addresses_takes_no_memory(usersctl: Command) -> None:
    statuses: Counter[int] = Counter()
    until = time.monotonic() + TIME_LIMIT

    def flood(port: int, numbers: range) -> Counter[int]:
        stream, statuses = Stream(port), Counter[int]()
        try:
            for number in numbers:
                statuses[stream.status(from_elsewhere(number))] += 1
                assert time.monotonic() < until, f"not done in time: {number} of {numbers}"
        finally:
            stream.close()
        return statuses

    usersctl.configure(
        f'{CHEAP_HASHES}auth.whitelist = ["/register"]\nserver.trustedProxies = ["127.0.0.1"]\n'
    )
    with serving(usersctl) as daemon:
        with ThreadPoolExecutor(THREADS) as pool:
            list(pool.map(lambda share: flood(daemon.port, range(share, WARM, THREADS)), range(THREADS)))
            before = memory(daemon)
            for counted in pool.map(
                lambda share: flood(daemon.port, range(WARM + share, WARM + ADDRESSES, THREADS)),
                range(THREADS),
            ):
                statuses += counted
        grown = memory(daemon) - before
        print(f"{ADDRESSES} addresses: {grown:.1f} MB more than {before:.1f} MB; {dict(statuses)}")
        assert grown < MEMORY
        assert daemon.client().get("/login").status == 200
        assert statuses == {401: ADDRESSES * 3 // 5, 400: ADDRESSES * 2 // 5}


# --- no descriptors left, and a signal ---


@pytest.mark.slow
def test_a_daemon_without_descriptors_serves_open_connections_and_does_not_spin(usersctl: Command) -> None:
    with serving(usersctl) as daemon, ExitStack() as stack:
        inside = http.client.HTTPConnection("127.0.0.1", daemon.port, timeout=20)
        stack.callback(inside.close)

        def asked() -> Reply:
            inside.request("GET", "/login")
            reply = inside.getresponse()
            return Reply(reply.status, reply.getheaders(), reply.read())

        assert asked().status == 200
        limits = resource.prlimit(daemon.process.pid, resource.RLIMIT_NOFILE)
        resource.prlimit(daemon.process.pid, resource.RLIMIT_NOFILE, (descriptors(daemon) + 5, limits[1]))
        outside = [socket.create_connection(("127.0.0.1", daemon.port), timeout=20) for _ in range(40)]
        for connection in outside:
            stack.callback(connection.close)
            connection.sendall(b"GET /login HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        worked, began = busy(daemon), time.monotonic()
        while time.monotonic() - began < 2:
            done(asked())  # a thread that was idle until now finds no descriptor for the database
            time.sleep(0.1)
        assert busy(daemon) - worked < 1.0
        resource.prlimit(daemon.process.pid, resource.RLIMIT_NOFILE, limits)
        statuses = Counter(connection.recv(12)[9:] for connection in outside)
        assert set(statuses) <= {b"200", b"503"}
        assert statuses[b"200"] > 20
        assert daemon.stop() == 0
        assert "error" not in {line["event"] for line in daemon.log}


def test_requests_in_flight_are_answered_after_a_signal(usersctl: Command) -> None:
    """Logins that hash and wait for a slot, changes and reads. On a machine that others keep busy a hash takes as long as
    they like, so only the long version is of the full cost."""
    (ada,) = usersctl.add("ada")
    with usersctl.service() as service:
        token = open_session(service, ada).token
    usersctl.configure("limits.enabled = false\n" + ("" if LONG else CHEAP_HASHES))
    login = body_of(
        "POST", "/api/users/session", {"email": ada.email, "password": PASSWORD}, "Connection: close"
    )
    rename = body_of("PATCH", ME, {"name": "A"}, f"Cookie: auth_token={token}", "Connection: close")
    read = body_of("GET", ME, None, f"Cookie: auth_token={token}", "Connection: close")
    with serving(usersctl) as daemon, ExitStack() as stack:
        clients = []
        for request in [login] * 8 + [rename] * 6 + [read] * 6:
            clients.append(
                stack.enter_context(socket.create_connection(("127.0.0.1", daemon.port), timeout=20))
            )
            clients[-1].sendall(request)
        wait_for(lambda: b'"request"' in daemon.file.read_bytes())
        began = time.monotonic()
        daemon.process.send_signal(signal.SIGTERM)
        got = [b"".join(iter(lambda connection=client: connection.recv(65536), b"")) for client in clients]
        assert daemon.process.wait(20) == 0
        took = time.monotonic() - began
        print(f"stopped after {took:.1f} s: {Counter(reply[9:12] for reply in got)}")
        for reply in got:
            head, _, body = reply.partition(b"\r\n\r\n")
            assert head[:12] in (b"HTTP/1.1 200", b"HTTP/1.1 503")
            assert json.loads(body)
        assert Counter(reply[9:12] for reply in got)[b"200"] >= 12
        assert took < (6 if LONG else 12)
