"""usersctl mail and link, with and without a daemon."""

import json
import socket
import stat
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from support.accounts import author, open_session
from support.commands import OPERATOR, PASSWORD, Command, by_hand, create_user
from support.daemons import serving, wait_for
from support.postbox import Postbox, link_in, scripted_server, smtp_server

from usersctl.clock import stamp, utc_now
from usersctl.models import User

ADA = "ada@example.com"
NEW = "another good password"
LISTED = ["id", "kind", "email", "state", "attempts", "created_at", "due_at", "last_error"]
OPEN = '[auth]\nwhitelist = ["/register"]\n'


def configure(usersctl: Command, port: int | None = None, more: str = OPEN) -> None:
    mailer = f'[mailer]\nhost = "127.0.0.1"\nport = {port}\n' if port else ""
    usersctl.configure(f"[passwordHashing]\nrounds = 10\n{more}{mailer}")


def register(usersctl: Command, *names: str) -> None:
    with usersctl.service() as service:
        for name in names:
            service.registration.register(f"{name}@example.com", name.title(), PASSWORD, by=OPERATOR)


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
    register(usersctl, "ada", "bob")
    assert [row[:5] for row in usersctl.ok("mail", "list").rows] == [
        ["1", "confirm", ADA, "waiting", "0"],
        ["2", "confirm", "bob@example.com", "waiting", "0"],
    ]
    first, _ = listed(usersctl)
    assert set(LISTED) <= set(first)
    assert (first["state"], first["attempts"], first["last_error"]) == ("waiting", 0, None)


def test_an_email_in_the_folder_is_shown_with_its_text(usersctl: Command) -> None:
    register(usersctl, "ada")
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
    register(usersctl, "ada")
    (email,) = listed(usersctl)
    shown = usersctl.ok("mail", "show", "1", "--json").json
    assert shown == email | {"file": None, "subject": None, "text": None}
    (sent,) = usersctl.ok("mail", "retry", "--json").json
    assert set(sent) == set(email) == {*LISTED, "user_id", "finished_at", "about"}


@pytest.mark.sqlite  # a missing file
def test_an_email_file_of_another_database_is_not_shown(usersctl: Command) -> None:
    register(usersctl, "ada")
    usersctl.ok("mail", "retry")
    for file in usersctl.folder.glob("users.db*"):
        file.unlink()
    register(usersctl, "bob")
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
    register(usersctl, "ada", "bob")
    with smtp_server() as box:
        configure(usersctl, box.port)
        done = usersctl.ok("mail", "retry")
    assert done.stdout.splitlines() == [f"Email 1 to {ADA}: sent", "Email 2 to bob@example.com: sent"]
    assert [email.recipients for email in box.received] == [[ADA], ["bob@example.com"]]
    assert usersctl.ok("mail", "retry").stdout == "No email waits; nothing to do\n"
    assert usersctl.ok("mail", "retry", "1", "--json").json == []


@pytest.mark.slow
def test_retry_prints_which_emails_failed_and_why(usersctl: Command) -> None:
    register(usersctl, "ada", "bob", "cleo")
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
    register(usersctl, "ada", "bob")
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
    register(usersctl, "ada", "bob", "cleo", "dan")
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
    register(usersctl, *names)
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
    register(usersctl, "ada")
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


def test_link_confirm_prints_only_a_working_link(usersctl: Command) -> None:
    configure(usersctl)
    register(usersctl, "ada")
    done = usersctl.ok("link", "confirm", ADA, env={"USERS_BASE_URL": "https://accounts.example.com"})
    assert done.stdout.startswith("https://accounts.example.com/confirm-email?token=")
    assert done.stdout.count("\n") == 1
    link = link_in(done.stdout)
    assert link.email == ADA
    assert ADA in done.stderr
    assert "24 h" in done.stderr
    with usersctl.service() as service:
        assert service.registration.confirm(link.token, link.email, by=OPERATOR).active


def test_link_reset_prints_a_working_link(usersctl: Command) -> None:
    (user,) = usersctl.add("ada")
    printed = usersctl.ok("link", "reset", str(user.id), "--json").json
    assert set(printed) == {"url", "email", "purpose"}
    link = link_in(printed["url"])
    with usersctl.service() as service:
        service.recovery.reset(link.token, link.email, NEW, by=OPERATOR)
    assert usersctl.can_log_in(ADA, NEW)
    (row,) = [
        row for row in json.loads(usersctl.ok("audit", "--json").stdout) if row["action"] == "link-reset"
    ]
    assert row["user_id"] == user.id
    assert link.token not in json.dumps(row)


def test_link_reset_says_that_an_inactive_account_stays_inactive(usersctl: Command) -> None:
    (user,) = usersctl.add("ada")
    assert "inactive" not in usersctl.ok("link", "reset", ADA).stderr
    usersctl.ok("deactivate", ADA)
    told = usersctl.ok("link", "reset", ADA)
    assert link_in(told.stdout).path == "/reset-password"
    assert f"stays so. To let it in: usersctl activate {user.id}" in told.stderr
    assert usersctl.ok("link", "reset", ADA, "--quiet").stderr == ""


def claimed(usersctl: Command, user: User, email: str) -> None:
    """The user gives a new address, over HTTP."""
    with usersctl.service() as service:
        opened = open_session(service, user)
        service.accounts.update(user.id, email=email, by=author(opened))


def test_link_email_prints_a_working_link_to_prove_a_new_address(usersctl: Command) -> None:
    (user,) = usersctl.add("ada")
    refused = usersctl("link", "email", ADA, "--json")
    assert (refused.code, refused.error["code"]) == (5, "forbidden")
    assert refused.error["message"] == f"{ADA} has no new address to confirm"
    assert "at once: usersctl update" in refused.error["hint"]
    claimed(usersctl, user, "new@example.com")
    printed = usersctl.ok("link", "email", ADA)
    link = link_in(printed.stdout)
    assert (link.path, link.email) == ("/confirm-new-email", "new@example.com")
    assert "new@example.com" in printed.stderr
    with usersctl.service() as service:
        proven = service.claims.prove(link.token, link.email, PASSWORD, by=OPERATOR)
    assert (proven.email, proven.claimed_email) == ("new@example.com", None)


def test_link_email_prints_both_links_that_an_account_without_a_password_needs(usersctl: Command) -> None:
    with usersctl.service() as service:
        user = create_user(service, ADA, "Ada", None)
    claimed(usersctl, user, "new@example.com")
    printed = usersctl.ok("link", "email", ADA)
    first = link_in(printed.stdout)
    assert first.email == "new@example.com"
    assert "print the one that approves the change: usersctl link email 1\n" in printed.stderr
    with usersctl.service() as service:
        service.claims.prove(first.token, first.email, "", by=OPERATOR)
    printed = usersctl.ok("link", "email", ADA)
    second = link_in(printed.stdout)
    assert (second.path, second.email) == ("/confirm-new-email", ADA)
    assert "approves" not in printed.stderr
    with usersctl.service() as service:
        approved = service.claims.prove(second.token, second.email, "", by=OPERATOR)
    assert (approved.email, approved.claimed_email) == ("new@example.com", None)


def test_a_new_address_is_shown_while_the_known_one_is_exported(usersctl: Command) -> None:
    (user,) = usersctl.add("ada")
    claimed(usersctl, user, "new@example.com")
    for reference in (ADA, "new@example.com", str(user.id)):
        assert usersctl.ok("show", reference, "--json").json["email"] == "new@example.com"
    shown = dict(row[:2] for row in usersctl.ok("show", ADA).rows)
    assert (shown["email"], shown["known_email"]) == ("new@example.com", ADA)
    assert shown["claim_expires_at"] > user.created_at
    assert [row["email"] for row in usersctl.ok("list", "--json").json] == ["new@example.com"]
    assert "new@example.com" in usersctl.ok("list").stdout
    assert [row["email"] for row in usersctl.ok("list", "--json", "--search", "ada@").json] == [
        "new@example.com"
    ]
    assert [row["email"] for row in usersctl.ok("export", "--format", "json").json] == [ADA]
    assert "waits for its confirmation" in usersctl.ok("why", ADA).stdout
    # What an operator gives counts at once.
    assert (
        usersctl.ok("update", ADA, "--email", "new@example.com", "--json").json["email"] == "new@example.com"
    )
    assert usersctl("show", ADA).code == 3


def test_a_link_works_at_a_daemon_that_was_started_later(usersctl: Command) -> None:
    (user,) = usersctl.add("ada")
    link = link_in(usersctl.ok("link", "reset", user.email).stdout)
    with serving(usersctl) as daemon:
        fields = {"token": link.token, "email": link.email}
        body = fields | {"password": NEW, "password_confirmation": NEW}
        assert daemon.client().post("/api/users/password/reset", body).status == 200


def test_link_confirm_of_an_invited_account_names_the_link_of_its_invitation(usersctl: Command) -> None:
    configure(usersctl)
    usersctl.ok("db", "init")
    usersctl.ok("invite", ADA)
    refused = usersctl("link", "confirm", ADA, "--json")
    assert (refused.code, refused.stdout) == (5, "")
    assert refused.error["hint"] == "use: usersctl link invite 1"


def test_link_confirm_is_refused_if_the_link_would_not_work(usersctl: Command) -> None:
    usersctl.add("done")
    register(usersctl, "ada")
    closed = usersctl("link", "confirm", ADA, "--json")
    assert (closed.code, closed.stdout) == (5, "")
    assert closed.error["message"] == "Registration is closed, and its confirmation with it"
    configure(usersctl)
    confirmed = usersctl("link", "confirm", "done@example.com", "--json")
    assert confirmed.code == 5
    assert confirmed.error == {
        "code": "forbidden",
        "hint": "see: usersctl why 1",
        "message": "done@example.com has nothing to confirm",
    }
    usersctl.ok("deactivate", "done@example.com")
    shut = usersctl("link", "confirm", "done@example.com")
    assert (shut.code, "usersctl activate" in shut.stderr) == (5, True)
    usersctl.ok("deactivate", ADA)
    assert usersctl("link", "confirm", ADA).code == 5


def test_link_refuses_an_unknown_user_and_an_unknown_purpose(usersctl: Command) -> None:
    usersctl.ok("db", "init")
    assert usersctl("link", "reset", "nobody@example.com").code == 3
    assert usersctl("link", "delete", ADA).code == 2
