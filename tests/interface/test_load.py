"""A login storm against the real daemon: session checks stay fast, and logins use all of the machine's hashing.

Three seconds of it belong to every run. For reliable numbers, on a machine that does nothing else:

    LOAD_SECONDS=30 pytest -s tests/interface/test_load.py
"""

import json
import os
import subprocess
import sys
from contextlib import ExitStack
from typing import Any

import pytest
from support.accounts import open_session
from support.commands import PASSWORD, Command
from support.daemons import serving

from usersctl.config import Settings
from usersctl.models import Newcomer
from usersctl.passwords import Hasher
from usersctl.service import build

SECONDS = float(os.environ.get("LOAD_SECONDS", "3"))
CLIENTS = 32
COST = 12

# bcrypt alone, with as many threads as the daemon has for it and at the same priority.
BCRYPT = """
import bcrypt, os, sys, threading, time
hashed, password, until, done = sys.argv[1].encode(), sys.argv[2].encode(), time.monotonic() + float(sys.argv[3]), []
def work():
    if sys.platform == "linux":
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 10)
    while time.monotonic() < until:
        bcrypt.checkpw(password, hashed)
        done.append(time.monotonic())
began = time.monotonic()
threads = [threading.Thread(target=work) for _ in range(os.cpu_count() or 1)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
print(len(done) / (max(done) - began))
"""

# Each client logs in repeatedly, and after a refusal for load waits a second.
LOGINS = """
import http.client, json, sys, threading, time
port, password, until = int(sys.argv[1]), sys.argv[2], time.monotonic() + float(sys.argv[3])
times, others = [], {}
def work(number):
    time.sleep(number / 100)
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    body = json.dumps({"email": f"user{number}@example.com", "password": password})
    while time.monotonic() < until:
        connection.request("POST", "/api/users/session", body, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        answer.read()
        if answer.status == 200:
            times.append(time.monotonic())
        else:
            others[answer.status] = others.get(answer.status, 0) + 1
            time.sleep(1)
began = time.monotonic()
threads = [threading.Thread(target=work, args=(number,)) for number in range(int(sys.argv[4]))]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
in_time = [each for each in times if each <= until]
print(json.dumps({"logins": len(in_time) / (until - began), "others": others}))
"""

# Session checks at a rate that leaves the processor to logins; two threads, so that one slow answer does not hide others.
CHECKS = """
import json, socket, sys, threading, time
port, token, until = int(sys.argv[1]), sys.argv[2], time.monotonic() + float(sys.argv[3])
request = f"GET /api/users/me HTTP/1.1\\r\\nHost: x\\r\\nCookie: auth_token={token}\\r\\n\\r\\n".encode()
took, failed = [], []
def work():
    connection = socket.create_connection(("127.0.0.1", port), timeout=20)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    while time.monotonic() < until:
        began = time.perf_counter()
        connection.sendall(request)
        got = connection.recv(65536)
        took.append(time.perf_counter() - began)
        if not got.startswith(b"HTTP/1.1 200 ") or not got.endswith(b"}}"):
            failed.append(got.decode())
        time.sleep(0.02)
threads = [threading.Thread(target=work) for _ in range(2)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
took.sort()
print(json.dumps({"checks": len(took), "failed": failed[:3], **{f"p{p}": 1000 * took[len(took) * p // 100] for p in (50, 99)}, "worst": 1000 * took[-1]}))
"""


def started(stack: ExitStack, program: str, *words: Any) -> "subprocess.Popen[str]":
    process = subprocess.Popen(
        [sys.executable, "-c", program, *map(str, words)], stdout=subprocess.PIPE, text=True
    )
    stack.callback(process.communicate)
    stack.callback(lambda: process.kill() if process.poll() is None else None)
    return process


def result(process: "subprocess.Popen[str]") -> Any:
    out, _ = process.communicate(timeout=SECONDS + 30)
    assert process.returncode == 0
    return json.loads(out)


def storm(port: int, token: str, hashed: str) -> dict[str, Any]:
    """Measures quiet, bcrypt alone, the storm, and bcrypt alone again."""
    with ExitStack() as stack:
        quiet = result(started(stack, CHECKS, port, token, 1))
        before = result(started(stack, BCRYPT, hashed, PASSWORD, SECONDS / 2))
        logins = started(stack, LOGINS, port, PASSWORD, SECONDS, CLIENTS)
        checks = started(stack, CHECKS, port, token, SECONDS)
        figures = {"quiet p99": quiet["p99"], **result(checks), **result(logins)}
        after = result(started(stack, BCRYPT, hashed, PASSWORD, SECONDS / 2))
    figures["bcrypt"] = [before, after]
    figures["bcrypt alone"] = (before + after) / 2
    figures["share"] = figures["logins"] / figures["bcrypt alone"]
    return figures


@pytest.fixture
def prepared(usersctl: Command) -> tuple[str, str]:
    """32 accounts with a hash of the default cost, a token for the checks, and the hash."""
    usersctl.configure(f"[passwordHashing]\nrounds = {COST}\n")
    hashed = Hasher(COST).hash(PASSWORD)
    service = build(Settings(database=usersctl.database, base_url="http://127.0.0.1:8080"))
    with service.store.write() as tx:
        users = [
            tx.add_user(Newcomer(f"user{n}@example.com", f"User {n}", hashed, "user", True, "2026-01-01T00:00:00.000Z"))
            for n in range(CLIENTS)
        ]  # fmt: skip
    assert users[0]
    token = open_session(service, users[0]).token
    service.close()
    return token, hashed


@pytest.mark.slow
@pytest.mark.alone
def test_while_32_clients_log_in_session_checks_stay_quick_and_the_logins_get_the_machine(
    usersctl: Command, prepared: tuple[str, str]
) -> None:
    token, hashed = prepared
    with serving(usersctl) as daemon:
        # The machine may be shared, also with the other half of this suite: one good try of five shows that it can.
        for _ in range(5):
            figures = storm(daemon.port, token, hashed)
            print(json.dumps(figures))
            assert figures["failed"] == []
            assert set(figures["others"]) <= {"503"}
            if figures["p99"] <= 50 and figures["share"] >= 0.85:
                break
        else:
            pytest.fail(f"p99 ≤ 50 ms, share ≥ 0.85 of bcrypt alone: {figures}")
