"""usersctl invite: one address or many, listed, sent again, withdrawn; and accounts that came without a password."""

import json
import signal
import subprocess
from typing import Any

import pytest
from support.commands import HASH, OPERATOR, PASSWORD, Command, by_hand, create_user
from support.factors import add_authenticator_apps, store_passkey
from support.postbox import link_in, sent
from support.tables import add_many

from usersctl.invitations import BATCH

ADA, BOB, EVE = "ada@example.com", "bob@example.com", "eve@example.com"


def accept(usersctl: Command, url: str, name: str | None = None) -> None:
    link = link_in(url)
    with usersctl.service() as service:
        service.invitations.accept(
            link.token, link.email, name, PASSWORD, then=lambda _tx, user: user, by=OPERATOR
        )


def invited(usersctl: Command) -> list[str]:
    return [row["email"] for row in usersctl.ok("invite", "list", "--json").json]


def test_addresses_are_invited_with_name_role_and_group(usersctl: Command) -> None:
    usersctl.ok("db", "init")
    usersctl.ok("group", "create", "staff")
    done = usersctl.ok(
        "invite", ADA, "--name", "Ada", "--role", "admin", "--group", "staff", "--expires", "30d"
    )
    assert done.stdout.startswith(f"Invited {ADA} (user 1), until ")
    assert usersctl.ok("list", "--group", "staff", "--state", "invited", "--json").json[0]["role"] == "admin"
    shown = usersctl.ok("show", ADA).stdout
    assert "invited_at\t2" in shown
    assert "active\tno" in shown
    why = usersctl("why", ADA)
    assert "invited at " in why.stdout
    assert "usersctl link invite 1" in why.stdout


def test_invite_send_is_the_same_command(usersctl: Command) -> None:
    usersctl.ok("db", "init")
    usersctl.ok("invite", "send", ADA)
    usersctl.ok("--json", "invite", "--expires", "2d", BOB)
    assert invited(usersctl) == [BOB, ADA]
    assert "send" in usersctl("invite", "--help").stdout


def test_a_list_on_standard_input_is_invited_whole_or_not_at_all(usersctl: Command) -> None:
    usersctl.ok("db", "init")
    wrong = usersctl("invite", "-", stdin=f"{ADA}\nno address\n{BOB}\n")
    assert (wrong.code, "no address" in wrong.stderr) == (2, True)
    assert invited(usersctl) == []
    many = usersctl("invite", "-", stdin="".join(f"guest{number}@example.com\n" for number in range(5_001)))
    assert (many.code, "At most 5,000 people" in many.stderr, invited(usersctl)) == (2, True, [])
    done = usersctl.ok("invite", "-", "--json", stdin=f"{ADA}\n\n{BOB}\n{ADA}\n")
    assert [user["email"] for user in done.json] == [ADA, BOB]
    assert usersctl.ok("invite", "-", stdin="").stdout == "Nobody to invite; nothing to do\n"


@pytest.mark.sqlite  # a missing file
def test_without_a_database_nobody_is_invited(usersctl: Command) -> None:
    assert usersctl("invite", ADA).code == 6
    assert usersctl.is_unused


def test_exit_codes_of_invite(usersctl: Command) -> None:
    usersctl.add("ada")
    taken = usersctl("invite", BOB, ADA, "--json")
    assert (taken.code, taken.error["code"]) == (4, "taken")
    assert ADA in taken.error["message"]
    assert invited(usersctl) == []
    for words in ((), (BOB, "--expires", "10m"), (BOB, "--expires", "91d"), (BOB, EVE, "--name", "Bob"),
                  (BOB, "--group", "none"), (BOB, "--without-password"), (BOB, "--dry-run")):  # fmt: skip
        assert usersctl("invite", *words).code == 2, words
    assert "usersctl group list" in usersctl("invite", BOB, "--group", "none").stderr
    usersctl.add("eve", active=False)
    for reference in (ADA, EVE):
        refused = usersctl("invite", "resend", reference, "--json")
        assert (refused.code, refused.error["code"]) == (5, "not_needed")
        assert refused.error["message"].startswith("This account needs no invitation")
    assert usersctl("invite", "resend", BOB).code == 3
    assert usersctl("invite", "revoke", ADA).code == 5
    usersctl.ok("invite", BOB)
    assert usersctl("set-password", BOB, "--generate").code == 5
    assert usersctl("link", "reset", BOB).code == 5
    assert usersctl("link", "invite", ADA).code == 5


@pytest.mark.slow
def test_invitations_are_listed_sent_again_and_withdrawn(usersctl: Command) -> None:
    usersctl.ok("db", "init")
    usersctl.ok("invite", ADA, BOB)
    assert [row[-2:] for row in usersctl.ok("invite", "list").rows] == [["waiting", "waiting"]] * 2
    with usersctl.service() as service:
        sent(service)
    assert [row[-1] for row in usersctl.ok("invite", "list").rows] == ["sent", "sent"]
    usersctl.ok("invite", "resend", ADA, "2")
    assert usersctl.ok("invite", "revoke", ADA).stdout == f"Withdrawn: {ADA}\n"
    assert invited(usersctl) == [BOB]
    assert usersctl("show", ADA).code == 3
    trail = usersctl.ok("audit", "--json").json
    assert [row["action"] for row in trail] == ["invite", "invite", "invite", "invite", "withdraw-invitation"]
    assert all(row["actor"].startswith("cli:") for row in trail)


def test_a_list_on_a_terminal_marks_who_is_invited(usersctl: Command) -> None:
    usersctl.add("bob")
    usersctl.ok("invite", ADA, "--name", "Ada")
    ada, bob = (line for line in usersctl.on_terminal("list", columns=200).text.splitlines() if "@" in line)
    assert ada.split()[4] == "invited"
    assert bob.split()[4] == "yes"
    assert [row[4] for row in usersctl.ok("list").rows] == ["no", "yes"]


def test_link_invite_prints_a_working_link(usersctl: Command) -> None:
    usersctl.ok("db", "init")
    usersctl.ok("invite", ADA)
    printed = usersctl.ok("link", "invite", ADA)
    assert "within 7 days" in printed.stderr
    accept(usersctl, printed.stdout.strip(), "Ada")
    assert usersctl.ok("show", ADA, "--json").json["active"] is True
    assert usersctl("link", "invite", ADA).code == 5


def test_accounts_without_a_password_are_invited_once(usersctl: Command) -> None:
    usersctl.add("ada")
    file = usersctl.folder / "people.csv"
    file.write_text(f"email,password_hash,active\n{BOB},,\n{EVE},{HASH},\nout@example.com,,false\n")
    usersctl.ok("import", file)
    would = usersctl.ok("invite", "--without-password", "--dry-run")
    assert would.stdout == f"Would invite {BOB} (user 2)\n"
    assert usersctl.ok("invite", "--without-password").stdout.startswith(f"Invited {BOB} (user 2), until ")
    assert usersctl.ok("invite", "--without-password").stdout == "Nobody to invite; nothing to do\n"
    by_hand(
        usersctl.database, "UPDATE users SET invitation_expires_at = '2001-01-01T00:00:00.000Z' WHERE id = 2"
    )
    assert usersctl.ok("invite", "--without-password", "--dry-run").stdout == would.stdout
    done = usersctl.ok("invite", "revoke", BOB)
    assert done.stdout == f"Withdrawn: {BOB}, whose account stays\n"


def test_without_a_mail_server_invite_names_the_folder_and_the_other_way(usersctl: Command) -> None:
    usersctl.add("root", role="admin")
    done = usersctl.ok("invite", ADA)
    folder = usersctl.folder / "mail"
    assert (
        done.stderr
        == f"Note: no mail server: emails go into {folder}; a link for each: usersctl link invite USER\n"
    )
    assert usersctl.ok("invite", BOB, "--json").stderr == usersctl.ok("invite", EVE, "--quiet").stderr == ""
    assert usersctl.ok("invite", "--without-password").stderr == ""  # there is nobody
    usersctl.configure('mailer.host = "mail.example.com"\n')
    assert usersctl.ok("invite", "resend", ADA).stderr == ""


def test_an_account_with_a_passkey_is_not_among_those_that_nothing_opens(usersctl: Command) -> None:
    usersctl.configure('baseUrl = "http://localhost"\n')
    with usersctl.service() as service:
        for number, email in enumerate((ADA, BOB, EVE), 1):
            create_user(service, email, "Someone", None)
            if email != EVE:
                rp_id = "localhost" if email == ADA else "former.example"
                with service.store.write() as tx:
                    store_passkey(tx, number, email, rp_id=rp_id)
        add_authenticator_apps(service, 3)
    would = usersctl.ok("invite", "--without-password", "--dry-run")
    assert would.stdout == f"Would invite {BOB} (user 2)\nWould invite {EVE} (user 3)\n"


def add_without_password(usersctl: Command, count: int) -> None:
    with usersctl.service() as service, service.store.write() as tx:
        add_many(tx, count)


def test_an_interrupted_invitation_of_many_has_told_whom_it_invited(usersctl: Command) -> None:
    add_without_password(usersctl, 3_000)  # whose lines no pipe holds
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "bufsize": 0}
    process = usersctl.start("invite", "--without-password", measured=False, **pipes)
    assert process.stdout is not None
    first = process.stdout.readline()
    process.send_signal(signal.SIGINT)
    rest, told = process.communicate(timeout=20)
    assert (process.returncode, told) == (130, b"usersctl: interrupted\n")
    lines = (first + rest).decode().splitlines()
    waiting = {row["email"]: row["expires_at"] for row in usersctl.ok("invite", "list", "--json").json}
    assert len(waiting) < 3_000
    assert len(waiting) - len(lines) <= BATCH
    for number, line in enumerate(lines, 1):
        email = f"user{number}@example.com"
        assert line == f"Invited {email} (user {number}), until {waiting[email]}"


@pytest.mark.parametrize(
    ("words", "output", "code"),
    [("", "| head -1", 0), ("", "> /dev/full", 6), ("--json", "> /dev/full", 6), ("--quiet", "", 0)],
)
def test_a_report_that_nobody_reads_keeps_nobody_from_being_invited(
    usersctl: Command, words: str, output: str, code: int
) -> None:
    add_without_password(usersctl, 2 * BATCH)
    done = usersctl.shell(f"set -o pipefail; usersctl invite --without-password {words} {output}")
    assert done.code == code
    assert ("the command has done its work" in done.stderr) == (code == 6)
    assert len(done.stdout.splitlines()) == output.count("head")
    assert len(invited(usersctl)) == 2 * BATCH


def test_invitations_in_json_are_one_document(usersctl: Command) -> None:
    add_without_password(usersctl, BATCH + 1)
    would = usersctl.ok("invite", "--without-password", "--dry-run", "--json").json
    assert [(user["id"], user["expires_at"]) for user in would] == [(n, None) for n in range(1, BATCH + 2)]
    done = usersctl.ok("invite", "--without-password", "--json").json
    until = {row["id"]: row["expires_at"] for row in usersctl.ok("invite", "list", "--json").json}
    assert {user["id"]: user["expires_at"] for user in done} == until
    assert usersctl.ok("invite", "--without-password", "--json").stdout == "[]\n"


@pytest.mark.slow
def test_an_import_invites_new_accounts_that_nothing_opens(usersctl: Command) -> None:
    file = usersctl.folder / "people.csv"
    file.write_text(
        "email,name,password_hash,active,confirmed,oauth_id\n"
        f"{ADA},Ada,,,,\n{BOB},,,,false,\n{EVE},,{HASH},,,\n"
        "out@example.com,,,false,,\nlinked@example.com,,,,,7\n"
    )
    assert usersctl.ok("import", file, "--invite", "--dry-run", "--json").json["invited"] == 2
    would = usersctl.ok("import", file, "--invite", "--dry-run").stderr
    assert ("Would invite: 2\n" in would, "Invited" in would) == (True, False)
    done = usersctl.ok("import", file, "--invite")
    assert "Invited: 2; see: usersctl invite list" in done.stderr
    assert invited(usersctl) == [ADA, BOB]
    trail = [row for row in usersctl.ok("audit", "--json").json if row["action"] == "invite"]
    assert [row["email"] for row in trail] == [ADA, BOB]
    assert [json.dumps(row["details"]) for row in trail] == ['{"role": "user", "days": 7}'] * 2
    accept(usersctl, usersctl.ok("link", "invite", ADA).stdout.strip())
    accept(usersctl, usersctl.ok("link", "invite", BOB).stdout.strip(), "Bob")
    assert usersctl.ok("show", BOB, "--json").json["active"] is True


def test_an_import_invites_an_account_whose_list_of_identities_is_empty(usersctl: Command) -> None:
    row = json.dumps({"email": ADA, "identities": [], "groups": []})
    usersctl.ok("import", "-", "--format", "jsonl", "--invite", stdin=f"{row}\n")
    assert invited(usersctl) == [ADA]
