"""usersctl webhook, with and without a daemon; webhooks in config, doctor and audit."""

import json
import os
import subprocess
import threading
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from support.commands import PASSWORD, USERSCTL, Command
from support.daemons import serving, wait_for
from support.receivers import SECRET, Listening, listening, table

ROUNDS = "[passwordHashing]\nrounds = 10\n"


@pytest.fixture
def receiver() -> Iterator[tuple[Listening, int]]:
    with listening() as pair:
        yield pair


def configure(usersctl: Command, *tables: str) -> None:
    usersctl.configure(ROUNDS + "".join(tables))


def create(usersctl: Command, *names: str) -> None:
    for name in names:
        usersctl.ok("create", f"{name}@example.com", "--generate")


def test_a_command_writes_events_and_a_retry_sends_them_without_a_daemon(
    usersctl: Command, receiver: tuple[Listening, int]
) -> None:
    listener, port = receiver
    configure(usersctl, table(port))
    create(usersctl, "ada", "bob")
    (listed,) = usersctl.ok("webhook", "list", "--json").json
    assert (listed["name"], listed["state"], listed["waiting"], listed["sent"]) == ("ops", "ok", 2, 0)
    assert usersctl.ok("webhook", "list").rows[0][:4] == ["ops", f"http://127.0.0.1:{port}/hook", "*", "ok"]
    retried = usersctl.ok("webhook", "retry", "ops", "--json").json
    assert retried == {"name": "ops", "sent": 2, "waiting": 0, "error": None}
    assert [event.type for event in listener.taken] == ["user.created"] * 2
    shown = usersctl.ok("webhook", "show", "ops", "--json").json
    assert (shown["sent"], shown["waiting"]) == (2, 0)
    assert [(event["type"], event["state"]) for event in shown["newest"]] == [("user.created", "sent")] * 2
    assert {event["id"] for event in shown["newest"]} == {event.id for event in listener.taken}
    assert "user.created" in usersctl.ok("webhook", "show", "ops").stdout


def test_a_receiver_that_ended_its_webhook_is_named_and_begun_again(
    usersctl: Command, receiver: tuple[Listening, int]
) -> None:
    listener, port = receiver
    configure(usersctl, table(port))
    create(usersctl, "ada")
    listener.answers.append(410)
    failed = usersctl("webhook", "retry", "ops")
    assert failed.code == 7
    assert "the receiver answered 410" in failed.stdout
    assert usersctl.ok("webhook", "list", "--json").json[0]["state"] == "ended"
    checks = usersctl("doctor", "--json").json["findings"]
    (finding,) = [check for check in checks if check["code"] == "webhooks"]
    assert (finding["severity"], "webhook retry ops" in finding["mend"]) == ("warning", True)
    assert usersctl.ok("webhook", "retry", "ops").stdout == "ops: 1 event sent, 0 waiting\n"
    assert usersctl.ok("webhook", "list", "--json").json[0]["state"] == "ok"


def test_a_test_of_a_webhook_prints_the_status(usersctl: Command, receiver: tuple[Listening, int]) -> None:
    listener, port = receiver
    configure(usersctl, table(port, events=["user.created"]))
    usersctl.ok("db", "init")
    answer = usersctl.ok("webhook", "test", "ops", "--json").json
    (event,) = listener.taken
    assert (event.type, answer) == ("webhook.test", {"id": event.id, "status": 204})
    listener.answers.append(302)
    refused = usersctl("webhook", "test", "ops", "--json")
    assert (refused.code, refused.error["message"]) == (7, "the receiver answered 302")
    listener.answers.append(500)
    refused = usersctl("webhook", "test", "ops", "--config", usersctl.config, "--json")
    assert refused.error["hint"] == f"see: usersctl webhook show ops --config {usersctl.config}"


def test_a_receiver_on_this_machine_is_refused_without_allow_private(
    usersctl: Command, receiver: tuple[Listening, int]
) -> None:
    listener, port = receiver
    configure(usersctl, table(port, allowPrivate=False))
    usersctl.ok("db", "init")
    refused = usersctl("webhook", "test", "ops")
    assert refused.code == 7
    assert "refused without allowPrivate" in refused.stderr
    assert listener.asked == []


def test_a_webhook_that_is_not_there_is_named(usersctl: Command, receiver: tuple[Listening, int]) -> None:
    usersctl.ok("db", "init")
    assert usersctl.ok("webhook", "list", "--json").json == []
    assert usersctl("webhook", "test", "ops").code == 3
    configure(usersctl, table(receiver[1]))
    for command in ("show", "retry", "test"):
        missing = usersctl("webhook", command, "other")
        assert (missing.code, "No webhook 'other'" in missing.stderr) == (3, True)


def test_no_output_and_no_error_has_the_secret(usersctl: Command, receiver: tuple[Listening, int]) -> None:
    _, port = receiver
    configure(usersctl, table(port))
    create(usersctl, "ada")
    commands = (
        ("config", "show"),
        ("config", "show", "--json", "--origin"),
        ("webhook", "list", "--json"),
        ("webhook", "show", "ops", "--json"),
        ("webhook", "test", "ops"),
        ("doctor", "--json"),
        ("audit", "--json"),
    )
    for words in commands:
        result = usersctl(*words)
        assert SECRET[6:] not in result.stdout + result.stderr
    shown = usersctl.ok("config", "show").stdout
    assert '# webhooks = [{ "name" = "ops"' in shown
    assert '"secrets" = ["***"]' in shown
    configure(usersctl, table(port, secrets=[SECRET[:-1]]))
    refused = usersctl("config", "check")
    assert refused.code == 6
    assert SECRET[6:-1] not in refused.stderr
    assert "webhooks[0].secrets = " in refused.stderr


@pytest.mark.slow
def test_follow_and_webhooks_tell_the_same_by_the_same_names(
    usersctl: Command, receiver: tuple[Listening, int]
) -> None:
    listener, port = receiver
    configure(usersctl, table(port))
    usersctl.ok("create", "root@example.com", "--admin", "--generate")
    env = usersctl.env | os.environ
    with ExitStack() as stack:
        daemon = stack.enter_context(serving(usersctl))
        wait_for(lambda: len(listener.taken) == 1)
        words = [USERSCTL, "audit", "--follow", "--jsonl", "--since", "1h"]
        follow = stack.enter_context(
            subprocess.Popen(words, env=env, cwd=usersctl.folder, stdout=subprocess.PIPE, text=True)
        )
        stack.callback(follow.kill)
        assert follow.stdout is not None
        end = threading.Timer(60, follow.kill)
        end.start()
        usersctl.ok("create", "first@example.com", "--generate")
        while "first@example.com" not in (line := follow.stdout.readline()):
            assert line, "it ended"
        wait_for(lambda: len(listener.taken) == 2)
        usersctl("create", "ada@example.com", "--password-stdin", stdin=PASSWORD)
        client = daemon.client()
        assert (
            client.post("/api/users/session", {"email": "ada@example.com", "password": PASSWORD}).status
            == 200
        )
        wait_for(lambda: len(listener.taken) == 4)
        # It sees this session before the session ends, and some of those below not.
        rows = [json.loads(follow.stdout.readline()) for _ in range(2)]
        client.delete("/api/users/session")
        usersctl.ok("update", "ada@example.com", "--role", "admin")
        usersctl.ok("deactivate", "ada@example.com")
        usersctl.ok("delete", "ada@example.com", "--yes")
        wait_for(lambda: len(listener.taken) == 8)
        rows += [json.loads(follow.stdout.readline()) for _ in range(4)]
        usersctl("create", "bob@example.com", "--password-stdin", stdin=PASSWORD)
        for _ in range(5):
            client.post("/api/users/session", {"email": "bob@example.com", "password": PASSWORD})
            client.delete("/api/users/session")
        wait_for(lambda: len(listener.taken) == 19)
        short = [json.loads(follow.stdout.readline()) for _ in range(11)]
        end.cancel()
    told = [
        (event, row["user_id"], row["action"], row["actor"], row["details"])
        for row in rows
        for event in row["events"]
    ]
    sent = []
    for event in listener.taken[2:8]:
        data = event.payload["data"]
        sent.append((event.type, event.user, data["action"], data["actor"], data["details"]))
    assert told == sent
    assert [event for event, *_ in told] == [
        "user.created",
        "session.created",
        "session.revoked",
        "user.updated",
        "user.deactivated",
        "user.deleted",
    ]
    assert [event for row in short for event in row["events"]] == [event.type for event in listener.taken[8:]]
    for row, event in zip(short, listener.taken[8:], strict=True):
        data = event.payload["data"]
        assert [row["user_id"], row["actor"]] == [event.user, data["actor"]]
        assert row["details"].items() <= data["details"].items()
        assert (row["id"] is None) == (row["hash"] is None) == (event.type == "session.created")
