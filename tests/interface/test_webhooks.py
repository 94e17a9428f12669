"""A daemon that tells receivers, and the receivers of the manual, which verify with the libraries of Standard Webhooks."""

import base64
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from support.commands import PASSWORD, Command
from support.daemons import serving, wait_for
from support.documentation import blocks, section
from support.ports import free_port
from support.receivers import OTHER_SECRET, SECRET, listening, raw_receiver, table

MANUAL = "docs/integrating/webhooks.md"
ROUNDS = '[passwordHashing]\nrounds = 10\n[auth]\nwhitelist = ["/register"]\n'
INSTALL_WITHIN = 300


def registered(number: int) -> dict[str, str]:
    return {"email": f"u{number}@example.com", "name": "U", "password": PASSWORD}


def test_a_daemon_tells_its_receivers_at_once_and_in_order(usersctl: Command) -> None:
    with listening() as (ops, port), listening() as (few, other_port):
        usersctl.configure(ROUNDS + table(port) + table(other_port, "few", events=["user.deleted"]))
        with serving(usersctl) as daemon:
            for number in range(5):
                assert daemon.client().post("/api/users/register", registered(number)).status == 200
            usersctl.ok("activate", "u0@example.com")
            usersctl.ok("delete", "u0@example.com", "--yes")
            wait_for(lambda: len(ops.taken) == 7 and few.taken)
            wait_for(lambda: len(daemon.events("webhook")) == 8)  # a line comes after its event
            lines = daemon.events("webhook")
    assert [event.type for event in ops.taken if event.user == 1] == [
        "user.created",
        "user.activated",
        "user.deleted",
    ]
    assert [event.type for event in few.taken] == ["user.deleted"]
    assert {line["id"] for line in lines if line["webhook"] == "ops"} == {event.id for event in ops.taken}
    assert len({event.id for event in ops.asked}) == len(ops.asked) == 7


@pytest.mark.slow
def test_a_receiver_that_hangs_keeps_neither_emails_nor_other_receivers_waiting(usersctl: Command) -> None:
    never = threading.Event()
    with listening() as (ops, port), raw_receiver(lambda _connection: never.wait(30)) as hanging:
        usersctl.configure(ROUNDS + table(hanging, "hangs") + table(port))
        with serving(usersctl) as daemon:
            for number in range(3):
                assert daemon.client().post("/api/users/register", registered(number)).status == 200
            wait_for(lambda: len(ops.taken) == 3, 8)
            wait_for(lambda: len(daemon.events("email")) == 3, 8)
            assert daemon.stop() == 0
        never.set()


# --- the receivers of the manual ---


@contextmanager
def flask(folder: Path, secret: str) -> Iterator[tuple[int, Path]]:
    (source,) = blocks(section(MANUAL, "Flask"), "python")
    (folder / "receiver.py").write_text(source)
    port = free_port()
    words = [sys.executable, "-m", "flask", "--app", "receiver", "run", "--port", str(port)]
    with program(words, folder, secret, port) as output:
        yield port, output


@contextmanager
def express(folder: Path, secret: str) -> Iterator[tuple[int, Path]]:
    (source,) = blocks(section(MANUAL, "Express"), "javascript")
    (folder / "receiver.mjs").write_text(source)
    (folder / "package.json").write_text("{}")
    words = (
        "npm",
        "install",
        "--no-audit",
        "--no-fund",
        "--ignore-scripts",
        "express@4.21.2",
        "standardwebhooks@1.1.1",
    )
    subprocess.run(words, cwd=folder, check=True, capture_output=True, timeout=INSTALL_WITHIN)
    port = free_port()
    with program(["node", "receiver.mjs"], folder, secret, port) as output:
        yield port, output


@contextmanager
def program(words: list[str], folder: Path, secret: str, port: int) -> Iterator[Path]:
    """Runs a receiver; yields the file that it prints to."""
    output = folder / "output"
    env = os.environ | {"WEBHOOK_SECRET": secret, "PORT": str(port)}
    with output.open("wb") as file:
        process = subprocess.Popen(words, cwd=folder, env=env, stdout=file, stderr=subprocess.STDOUT)
    try:
        wait_for(lambda: answers(port))
        yield output
    finally:
        process.kill()
        process.wait(10)


def answers(port: int) -> bool:
    import http.client

    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        connection.request("POST", "/webhook", b"{}", {"Content-Type": "application/json"})
        return connection.getresponse().status == 401  # it has no signature
    except OSError:
        return False
    finally:
        connection.close()


RECEIVERS = {"Flask": flask, "Express": express}


@pytest.mark.slow
@pytest.mark.parametrize("name", RECEIVERS)
def test_the_receiver_of_the_manual_takes_what_is_signed_with_its_secret(
    usersctl: Command, tmp_path: Path, name: str
) -> None:
    if name == "Express":
        if os.environ.get("CLIENT_TESTS") != "required":
            pytest.skip("CLIENT_TESTS=required installs Express from npm")
        assert shutil.which("npm")
    folder = tmp_path / "receiver"
    folder.mkdir()
    with RECEIVERS[name](folder, SECRET) as (port, output):
        url = f"http://127.0.0.1:{port}/webhook"
        usersctl.configure(ROUNDS + table(port, url=url, secrets=[OTHER_SECRET, SECRET]))
        usersctl.ok("create", "ada@example.com", "--name", "Ada Łovelace", "--generate")
        assert usersctl.ok("webhook", "retry", "ops", "--json").json["sent"] == 1
        assert usersctl.ok("webhook", "test", "ops", "--json").json["status"] == 204
        printed = output.read_text("utf-8")
        assert "user.created" in printed
        assert "Ada Łovelace" in printed
        assert "webhook.test" in printed
        wrong = "whsec_" + base64.b64encode(b"w" * 32).decode()
        usersctl.configure(ROUNDS + table(port, url=url, secrets=[wrong]))
        refused = usersctl("webhook", "test", "ops", "--json")
        assert (refused.code, refused.error["message"]) == (7, "the receiver answered 401")
