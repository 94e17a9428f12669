"""Attacks by a backup that somebody has changed: it would act when it has been restored."""

import pytest
from support.backups import saved
from support.commands import Command, by_hand

BACK_DOOR = """
    BEGIN
        INSERT INTO auth_tokens (user_id, token_hash, kind, name, created_at)
        SELECT id, x'00', 'api', '', '' FROM users WHERE role = 'admin';
    END
    """
CHILD = "CREATE TABLE child (id INTEGER PRIMARY KEY, user_id REFERENCES users (id) ON DELETE CASCADE)"
GRANDCHILD = "CREATE TABLE grandchild (child REFERENCES Child (id) ON DELETE SET NULL)"


@pytest.mark.parametrize(
    "statements",
    [
        ["CREATE TRIGGER back_door AFTER INSERT ON user_search_idx"],
        ["CREATE TRIGGER user_search_idx AFTER INSERT ON users"],
        [
            "ALTER TABLE user_search_idx RENAME TO kept",
            "CREATE VIEW user_search_idx AS SELECT * FROM kept",
            "CREATE TRIGGER back_door INSTEAD OF INSERT ON user_search_idx",
        ],
        [CHILD, "CREATE TRIGGER back_door AFTER DELETE ON child"],
        [CHILD, GRANDCHILD, "CREATE TRIGGER back_door AFTER UPDATE ON Grandchild"],
    ],
)
def test_a_trigger_that_acts_on_a_change_of_an_account_is_found_and_not_restored(
    usersctl: Command, statements: list[str]
) -> None:
    usersctl.add("ada", role="admin")
    file = saved(usersctl)
    *before, trigger = statements
    by_hand(file, *before, trigger + BACK_DOOR)
    found = usersctl("db", "verify", file)
    assert (found.code, "schema: the trigger" in found.stdout) == (7, True), found
    refused = usersctl("db", "restore", file, "--yes")
    assert (refused.code, "is not sound, and was not restored" in refused.stderr) == (6, True), refused
    assert not list(usersctl.folder.glob("*.before-*"))
