"""usersctl mail, with and without a daemon."""

import socket
import stat
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from support.commands import OPERATOR, Command, by_hand
from support.daemons import serving, wait_for
from support.postbox import Postbox, link_in, scripted_server, smtp_server

from usersctl.clock import stamp, utc_now

ADA = "ada@example.com"
LISTED = ["id", "kind", "email", "state", "attempts", "created_at", "due_at", "last_error"]
OPEN = '[auth]\nwhitelist = ["/register"]\n'


def configure(usersctl: Command, port: int | None = None, more: str = OPEN) -> None:
    mailer = f'[mailer]\nhost = "127.0.0.1"\nport = {port}\n' if port else ""
    usersctl.configure(f"[passwordHashing]\nrounds = 10\n{more}{mailer}")


def closed_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def listed(usersctl: Command) -> list[dict[str, Any]]:
    emails: list[dict[str, Any]] = usersctl.ok("mail", "list", "--json").json
    return emails


# --- list and show ---


def test_emails_are_listed_with_their_state(usersctl: Command) -> None:
    usersctl.ok("db", "init")
    assert usersctl.ok("mail", "list", "--json").json == []
    assert usersctl.ok("mail", "list").rows == []
    usersctl.register("ada", "bob")
    assert [row[:5] for row in usersctl.ok("mail", "list").rows] == [
        ["1", "confirm", ADA, "waiting", "0"],
        ["2", "confirm", "bob@example.com", "waiting", "0"],
    ]
    first, _ = listed(usersctl)
    assert set(LISTED) <= set(first)
    assert (first["state"], first["attempts"], first["last_error"]) == ("waiting", 0, None)


def test_an_email_in_the_folder_is_shown_with_its_text(usersctl: Command) -> None:
    usersctl.register("ada")
    printed = usersctl.ok("mail", "show", "1", "--json").json
    assert (printed["state"], printed["text"], printed["file"]) == ("waiting", None, None)
    usersctl.ok("mail", "retry")
    printed = usersctl.ok("mail", "show", "1", "--json").json
    assert printed["state"] == "sent"
    assert printed["subject"] == "Confirm your email address for Users"
    file = Path(printed["file"])
    assert file == usersctl.folder / "mail" / "1.eml"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    link = link_in(printed["text"])
    assert link.email == ADA
    assert link.token in usersctl.ok("mail", "show", "1").stdout
    with usersctl.service() as service:
        assert service.registration.confirm(link.token, ADA, by=OPERATOR).active


def test_databases_in_one_folder_keep_their_emails_of_the_same_number(usersctl: Command) -> None:
    names = ("one", "two", "three")
    for name in names:
        database = ("--db", usersctl.folder / f"{name}.db")
        usersctl.ok("db", "init", *database)
        usersctl.ok("invite", f"{name}@example.com", *database)
        usersctl.ok("mail", "retry", *database)
    folder = usersctl.folder / "mail"
    assert sorted(file.name for file in folder.iterdir()) == ["1-2.eml", "1-3.eml", "1.eml"]
    for name in names:
        shown = usersctl.ok("mail", "show", "1", "--json", "--db", usersctl.folder / f"{name}.db").json
        assert link_in(shown["text"]).email == f"{name}@example.com"


def test_the_json_of_emails_has_nothing_of_webhooks(usersctl: Command) -> None:
    usersctl.register("ada")
    (email,) = listed(usersctl)
    shown = usersctl.ok("mail", "show", "1", "--json").json
    assert shown == email | {"file": None, "subject": None, "text": None}
    (sent,) = usersctl.ok("mail", "retry", "--json").json
    assert set(sent) == set(email) == {*LISTED, "user_id", "finished_at", "about"}


@pytest.mark.sqlite  # a missing file
def test_an_email_file_of_another_database_is_not_shown(usersctl: Command) -> None:
    usersctl.register("ada")
    usersctl.ok("mail", "retry")
    for file in usersctl.folder.glob("users.db*"):
        file.unlink()
    usersctl.register("bob")
    printed = usersctl.ok("mail", "show", "1", "--json").json
    assert (printed["email"], printed["text"], printed["file"]) == ("bob@example.com", None, None)


@pytest.mark.parametrize("words", [["show", "1"], ["retry", "1"], ["retry", "1", "2"], ["show", "9" * 30]])
def test_an_unknown_email_ends_with_exit_code_3(usersctl: Command, words: list[str]) -> None:
    usersctl.ok("db", "init")
    done = usersctl("mail", *words, "--json")
    assert done.code == 3
    assert done.error["message"] == f"No email {words[1]}"


@pytest.mark.parametrize("words", [["show", "x"], ["show", "0"], ["show"], ["retry", "-1"], []])
def test_an_invalid_email_number_ends_with_exit_code_2(usersctl: Command, words: list[str]) -> None:
    usersctl.ok("db", "init")
    assert usersctl("mail", *words).code == 2


@pytest.mark.parametrize(
    "words", [["mail", "list"], ["mail", "show", "1"], ["mail", "retry"], ["link", "reset", "1"]]
)
@pytest.mark.sqlite  # a missing file
def test_mail_commands_without_a_database_end_with_exit_code_6(usersctl: Command, words: list[str]) -> None:
    done = usersctl(*words)
    assert done.code == 6
    assert str(usersctl.database) in done.stderr


# --- retry ---


def test_retry_sends_waiting_emails_without_a_daemon(usersctl: Command) -> None:
    usersctl.register("ada", "bob")
    with smtp_server() as box:
        configure(usersctl, box.port)
        done = usersctl.ok("mail", "retry")
    assert done.stdout.splitlines() == [f"Email 1 to {ADA}: sent", "Email 2 to bob@example.com: sent"]
    assert [email.recipients for email in box.received] == [[ADA], ["bob@example.com"]]
    assert usersctl.ok("mail", "retry").stdout == "No email waits; nothing to do\n"
    assert usersctl.ok("mail", "retry", "1", "--json").json == []


@pytest.mark.slow
def test_retry_prints_which_emails_failed_and_why(usersctl: Command) -> None:
    usersctl.register("ada", "bob", "cleo")
    box = Postbox(answers={"RCPT bob@example.com": "550 no such user", "RCPT cleo@example.com": "450 later"})
    with smtp_server(box):
        configure(usersctl, box.port)
        done = usersctl("mail", "retry")
        assert done.code == 7
        assert done.stdout.splitlines() == [
            f"Email 1 to {ADA}: sent",
            "Email 2 to bob@example.com: failed (550 no such user)",
            "Email 3 to cleo@example.com: waiting (450 later)",
        ]
        assert [row["last_error"] for row in listed(usersctl)] == [None, "550 no such user", "450 later"]
        box.answers.clear()
        # On a slow machine, its delay of five seconds would be over before the next command starts.
        later = stamp(utc_now() + timedelta(minutes=15))
        postpone = f"UPDATE outbox SET due_at = '{later}' WHERE state = 'waiting'"  # noqa: S608 - a time
        by_hand(usersctl.database, postpone)
        printed = usersctl.ok("mail", "retry", "2", "--json").json
        assert [(row["id"], row["state"]) for row in printed] == [(2, "sent")]
    assert {row["state"] for row in listed(usersctl)} == {"sent", "waiting"}


def test_retry_of_one_email_leaves_postponed_ones_alone(usersctl: Command) -> None:
    usersctl.register("ada", "bob")
    configure(usersctl, closed_port())
    assert usersctl("mail", "retry").code == 7
    with smtp_server() as box:
        configure(usersctl, box.port)
        usersctl.ok("mail", "retry", "2")
    assert [email.recipients for email in box.received] == [["bob@example.com"]]


@pytest.mark.slow
def test_retry_ends_even_if_an_attempt_takes_longer_than_the_first_delay(
    usersctl: Command,
) -> None:
    usersctl.register("ada", "bob", "cleo", "dan")
    tried: list[int] = []

    def slow(connection: socket.socket) -> None:
        tried.append(1)  # the first is due again, after six seconds at most, while the last is tried
        time.sleep(2.2)
        connection.sendall(b"421 too busy\r\n")

    with scripted_server(slow) as port:
        configure(usersctl, port)
        assert usersctl("mail", "retry").code == 7
    assert len(tried) == 4


@pytest.mark.slow
def test_retry_beside_a_daemon_sends_nothing_twice(usersctl: Command) -> None:
    names = [f"u{number}" for number in range(20)]
    usersctl.register(*names)
    with smtp_server(Postbox(delay=0.05)) as box:
        configure(usersctl, box.port)
        with serving(usersctl):
            for _ in range(3):
                usersctl("mail", "retry")
            wait_for(lambda: {row["state"] for row in listed(usersctl)} == {"sent"})
    assert sorted(email.recipients[0] for email in box.received) == sorted(
        f"{name}@example.com" for name in names
    )


# --- test ---


def test_mail_test_prints_the_answer_of_the_server(usersctl: Command) -> None:
    with smtp_server(Postbox(answers={"DATA": "250 2.0.0 queued as 4711"})) as box:
        configure(usersctl, box.port)
        done = usersctl.ok("mail", "test", "Ada@example.com")
        assert done.stdout == f"Sent to {ADA}: 250 2.0.0 queued as 4711\n"
        printed = usersctl.ok("mail", "test", ADA, "--json").json
        assert printed == {"to": ADA, "answer": "250 2.0.0 queued as 4711"}
    assert usersctl.is_unused
    assert "can send emails to ada@example.com" in box.received[0].text()


def test_mail_test_ends_with_exit_code_7_when_the_server_refuses(usersctl: Command) -> None:
    with smtp_server(Postbox(answers={"RCPT": "550 relaying denied"})) as box:
        configure(usersctl, box.port)
        done = usersctl("mail", "test", ADA, "--json")
    assert (done.code, done.stdout) == (7, "")
    assert (done.error["code"], done.error["message"]) == ("undeliverable", "550 relaying denied")
    port = closed_port()
    configure(usersctl, port)
    done = usersctl("mail", "test", ADA, "--config", usersctl.config)
    assert done.code == 7
    assert done.stderr.endswith(f"see: usersctl config show --origin --config {usersctl.config}\n")
    assert done.stderr.startswith(f"usersctl: 127.0.0.1:{port}: Connection refused\n")


def test_mail_test_without_a_server_writes_to_the_folder(usersctl: Command) -> None:
    done = usersctl.ok("mail", "test", ADA)
    assert done.stdout == f"No mail server is configured: written to {usersctl.folder / 'mail' / '0.eml'}\n"


@pytest.mark.sqlite  # modes of files
def test_mail_test_before_the_database_leaves_its_folder_private(usersctl: Command) -> None:
    path = usersctl.folder / "deep" / "users.db"
    usersctl.ok("mail", "test", ADA, "--db", path)
    assert not path.exists()
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


@pytest.mark.parametrize(
    "to", ["nobody", "a@example.com, b@example.com", "a@example.com\nBcc: b@example.com", ""]
)
def test_mail_test_to_an_invalid_address_ends_with_exit_code_2(usersctl: Command, to: str) -> None:
    assert usersctl("mail", "test", to).code == 2


@pytest.mark.parametrize("words", [["test", ADA], ["retry"]])
def test_a_broken_template_ends_with_exit_code_6_and_one_line(usersctl: Command, words: list[str]) -> None:
    usersctl.register("ada")
    (usersctl.folder / "letters").mkdir()
    (usersctl.folder / "letters" / "confirm.txt").write_text("Subject: x\n\n$link $user\n")
    usersctl.configure('[mailer]\ntemplates = "letters"\n')
    done = usersctl("mail", *words)
    assert done.code == 6
    assert "unknown placeholder $user" in done.stderr
    assert [row["attempts"] for row in listed(usersctl)] == [0]


def test_the_password_of_the_mail_server_is_never_printed(usersctl: Command) -> None:
    with scripted_server(lambda connection: connection.sendall(b"554 no\r\n")) as port:
        configure(usersctl, port)
        env = {"USERS_MAILER_USER": "ada", "USERS_MAILER_PASS": "planted-secret"}
        done = usersctl("mail", "test", ADA, "--debug", env=env)
    assert done.code == 7
    assert "planted-secret" not in done.stdout + done.stderr


# --- link ---
