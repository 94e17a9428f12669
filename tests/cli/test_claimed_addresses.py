"""An address that a user claims and has not proven: which commands find the user by it."""

import pytest
from support.commands import CLAIM, Command, by_hand
from support.tables import everything


@pytest.fixture
def claimed(usersctl: Command) -> Command:
    """User 1, ada@example.com, claims ceo@example.com."""
    usersctl.add("ada", "root", role="admin")
    by_hand(usersctl.database, CLAIM)
    return usersctl


@pytest.mark.parametrize(
    "words",
    [
        "update {} --role user",
        "update {} --email new@example.com",
        "set-password {} --generate",
        "activate {}",
        "deactivate 2 {}",
        "delete {} --yes",
        "delete {} --dry-run",
        "unlock {}",
        "token create {} --no-expiry",
        "token revoke {}",
        "link reset {}",
        "link confirm {}",
        "link email {}",
        "link invite {}",
        "invite resend {}",
        "invite revoke {}",
        "lockdown on --yes --except {}",
    ],
)
def test_no_command_that_changes_something_takes_a_claimant_for_the_owner(
    claimed: Command, words: str
) -> None:
    with claimed.service() as service:
        before = everything(service)
    done = claimed(*words.format("CEO@example.com").split(), "--json")
    assert (done.code, done.stdout) == (3, "")
    assert done.error["message"] == "No user 'CEO@example.com'"
    hint = "user 1 (ada@example.com) claims this address and has not proven it: name the user by id"
    assert done.error["hint"] == hint
    with claimed.service() as service:
        assert everything(service) == before


def test_a_claimed_address_that_is_deleted_if_it_exists_deletes_no_user(claimed: Command) -> None:
    done = claimed.ok("delete", "ceo@example.com", "--if-exists", "--yes")
    assert done.stdout == "No such user; nothing to do\n"
    assert claimed.emails() == ["ada@example.com", "root@example.com"]


def test_commands_that_only_read_find_a_user_by_the_claimed_address(claimed: Command) -> None:
    facts = dict(line.split("\t") for line in claimed.ok("show", "ceo@example.com").stdout.splitlines())
    assert (facts["id"], facts["email"], facts["known_email"]) == ("1", "ceo@example.com", "ada@example.com")
    assert "ceo@example.com waits for its confirmation" in claimed.ok("why", "ceo@example.com").stdout
    assert claimed.ok("token", "list", "ceo@example.com").rows == []


def test_a_list_on_a_terminal_marks_addresses_that_are_not_proven(claimed: Command) -> None:
    text = claimed.on_terminal("list", columns=200).text
    assert "ceo@example.com (not proven)" in text
    assert "root@example.com (" not in text
    for form in ((), ("--csv",), ("--json",), ("--jsonl",)):
        plain = claimed.ok("list", *form).stdout
        assert "ceo@example.com" in plain
        assert "not proven" not in plain


def test_commands_that_change_something_name_the_known_address(claimed: Command) -> None:
    done = claimed("delete", "1")
    assert done.code == 5
    assert "Delete ada@example.com with all sessions and tokens?" in done.stderr
    done = claimed.ok("update", "1", "--role", "user")
    assert done.stdout == "Updated user 1: ada@example.com (user)\n"
    assert claimed.ok("deactivate", "1").stdout == "Now inactive: ada@example.com (user 1)\n"
