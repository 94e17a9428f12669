"""usersctl invite: one address or many, listed, sent again, withdrawn; and accounts that came without a password."""

import json

import pytest
from support.commands import HASH, OPERATOR, PASSWORD, Command
from support.postbox import link_in, sent

pytestmark = pytest.mark.slow

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
                  (BOB, "--without-password"), (BOB, "--dry-run")):  # fmt: skip
        assert usersctl("invite", *words).code == 2, words
    unknown = "usersctl: No group 'none'\n  see: usersctl group list\n"
    assert usersctl("invite", BOB, "--group", "none") == (3, "", unknown)
    assert usersctl("invite", "resend", ADA).code == 4
    assert usersctl("invite", "resend", BOB).code == 3
    assert usersctl("invite", "revoke", ADA).code == 5
    usersctl.ok("invite", BOB)
    assert usersctl("set-password", BOB, "--generate").code == 5
    assert usersctl("link", "reset", BOB).code == 5
    assert usersctl("link", "invite", ADA).code == 5


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
    assert "works once, within 7 days:" in printed.stderr
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
    done = usersctl.ok("invite", "revoke", BOB)
    assert done.stdout == f"Withdrawn: {BOB}, whose account stays\n"


def test_an_import_invites_new_accounts_that_nothing_opens(usersctl: Command) -> None:
    file = usersctl.folder / "people.csv"
    file.write_text(
        "email,name,password_hash,active,confirmed,oauth_id\n"
        f"{ADA},Ada,,,,\n{BOB},,,,false,\n{EVE},,{HASH},,,\n"
        "out@example.com,,,false,,\nlinked@example.com,,,,,7\n"
    )
    assert usersctl.ok("import", file, "--invite", "--dry-run", "--json").json["invited"] == 2
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
