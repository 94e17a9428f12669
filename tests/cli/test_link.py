"""usersctl link: what an email would have brought, with and without a daemon."""

import json

from support.accounts import author, open_session
from support.commands import OPERATOR, PASSWORD, Command, create_user
from support.daemons import serving
from support.postbox import link_in

from usersctl.models import User

ADA = "ada@example.com"
NEW = "another good password"
OPEN = 'auth.whitelist = ["/register"]\npasswordHashing.rounds = 10\n'


def test_link_confirm_prints_only_a_working_link(usersctl: Command) -> None:
    usersctl.configure(OPEN)
    usersctl.register("ada")
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
    usersctl.configure(OPEN)
    usersctl.ok("db", "init")
    usersctl.ok("invite", ADA)
    refused = usersctl("link", "confirm", ADA, "--json")
    assert (refused.code, refused.stdout) == (5, "")
    assert refused.error["hint"] == "use: usersctl link invite 1"


def test_link_confirm_is_refused_if_the_link_would_not_work(usersctl: Command) -> None:
    usersctl.add("done")
    usersctl.register("ada")
    closed = usersctl("link", "confirm", ADA, "--json")
    assert (closed.code, closed.stdout) == (5, "")
    assert closed.error["message"] == "Registration is closed, and its confirmation with it"
    usersctl.configure(OPEN)
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
