"""cleanup-tokens as cron runs it, API tokens, and the audit trail."""

import subprocess
import sys
from pathlib import Path

import pytest
from support.accounts import author, open_session
from support.commands import OPERATOR, PASSWORD, USERSCTL, Command, by_hand

from usersctl.models import Client

TASK_KEYS = [
    "result",
    "expiredTokensRemoved",
    "noExpirationTokensRemoved",
    "totalTokensCleaned",
    "includeNoExpiration",
]


@pytest.fixture
def with_tokens(usersctl: Command) -> Command:
    """Two expired tokens, one without an expiry date, and one open session."""
    usersctl.add("ada")
    with usersctl.service() as service:
        for _ in range(3):
            service.sessions.create_api_token(1, name="ci", lifetime=None, by=OPERATOR)
        service.sessions.login("ada@example.com", PASSWORD)
        with service.store.write() as tx:
            tx._run("UPDATE auth_tokens SET expires_at = '2001-01-01T00:00:00.000Z' WHERE id < 3")
    return usersctl


def test_expired_tokens_are_removed_and_counted(with_tokens: Command) -> None:
    assert with_tokens.ok("cleanup-tokens", "--dry-run").stdout == "Would remove 2 expired tokens\n"
    assert with_tokens.ok("cleanup-tokens").stdout == "Removed 2 expired tokens\n"
    assert with_tokens.ok("cleanup-tokens").stdout == "Removed 0 expired tokens\n"


def test_json_of_cleanup_tokens_has_the_keys_of_the_task(with_tokens: Command) -> None:
    done = with_tokens.ok("cleanup-tokens", "--json", "--dry-run").json
    assert list(done) == TASK_KEYS
    done = with_tokens.ok("cleanup-tokens", "--json", "--include-no-expiration").json
    assert done == dict(zip(TASK_KEYS, ["success", 2, 1, 3, True], strict=True))
    assert [row[2] for row in with_tokens.ok("token", "list").rows] == ["session"]


def test_tokens_without_an_expiry_are_removed_only_with_the_option(with_tokens: Command) -> None:
    done = with_tokens.ok("cleanup-tokens", "--include-no-expiration", "--dry-run")
    assert done.stdout == "Would remove 2 expired tokens and 1 without an expiry date\n"
    assert with_tokens.ok("cleanup-tokens", "--json").json["noExpirationTokensRemoved"] == 0


def test_a_cleanup_says_how_many_accounts_it_removed(usersctl: Command) -> None:
    with usersctl.service() as service:
        for name in ("ada", "bob"):
            service.registration.register(f"{name}@example.com", name, PASSWORD, by=OPERATOR)
        with service.store.write() as tx:
            tx._run("UPDATE users SET created_at = '2001-01-01T00:00:00.000Z' WHERE id = 2")
    done = usersctl.ok("cleanup-tokens")
    assert done.stdout == "Removed 0 expired tokens\n"
    assert done.stderr == "Also removed 1 account, deleted by the owner or never confirmed\n"
    assert [row[0] for row in usersctl.ok("list").rows] == ["1"]
    assert usersctl.ok("cleanup-tokens").stderr == ""


def test_quiet_prints_errors_only(with_tokens: Command) -> None:
    done = with_tokens.ok("cleanup-tokens", "--quiet")
    assert done.stdout + done.stderr == ""
    done = with_tokens("cleanup-tokens", "--quiet", "--db", "/nowhere/users.db")
    assert done.code == 6
    assert "/nowhere/users.db" in done.stderr


@pytest.mark.parametrize("command", [[USERSCTL], [sys.executable, "-m", "usersctl"]])
def test_cleanup_tokens_runs_under_cron_without_terminal_home_or_path(
    with_tokens: Command, command: list[str]
) -> None:
    done = subprocess.run(
        [*command, "cleanup-tokens", "--quiet", "--config", str(with_tokens.config)],
        env={"PATH": "/usr/bin:/bin", "USERS_DATABASE": str(with_tokens.database)},
        cwd="/",
        stdin=subprocess.DEVNULL,
        capture_output=True,
        start_new_session=True,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
    assert with_tokens.ok("cleanup-tokens").stdout == "Removed 0 expired tokens\n"


def test_cleanup_tokens_writes_an_audit_row(with_tokens: Command) -> None:
    with_tokens.ok("cleanup-tokens", env={"SUDO_USER": "grace", "SSH_CONNECTION": "192.0.2.7 1 192.0.2.8 22"})
    row = with_tokens.ok("audit", "--json").json[-1]
    assert (row["actor"], row["origin"], row["action"]) == ("cli:grace", "192.0.2.7", "cleanup-tokens")
    assert row["details"]["expired"] == 2


# --- tokens of API clients ---


def test_a_new_token_is_printed_once_alone_on_stdout_and_works(usersctl: Command) -> None:
    usersctl.add("ada")
    done = usersctl.ok("token", "create", "ada@example.com", "--name", "backup", "--expires", "90d")
    token = done.stdout.strip()
    assert token.isprintable()
    assert len(done.stdout.splitlines()) == 1
    assert "not shown again" in done.stderr
    assert "Bearer" in done.stderr
    with usersctl.service() as service:
        checked = service.sessions.check(token)
    assert checked is not None
    assert checked[1].email == "ada@example.com"
    assert token not in usersctl.ok("token", "list", "--json").stdout


def test_json_of_a_new_token(usersctl: Command) -> None:
    usersctl.add("ada")
    made = usersctl.ok("token", "create", "1", "--no-expiry", "--json")
    assert made.json["expires_at"] is None
    assert made.json["kind"] == "api"
    assert made.json["token"]
    assert made.stderr == ""


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["1"], 2),
        (["1", "--expires", "1d", "--no-expiry"], 2),
        (["1", "--expires", "0d"], 2),
        (["1", "--expires", "soon"], 2),
        (["1", "--expires", "9999999y"], 2),
        (["1", "--expires", "-1d"], 2),
        (["1", "--no-expiry", "--name", "a\nb"], 2),
        (["9", "--no-expiry"], 3),
        (["2", "--no-expiry"], 5),
    ],
)
def test_invalid_token_options_create_no_token(usersctl: Command, words: list[str], code: int) -> None:
    usersctl.add("ada")
    usersctl.add("eve", active=False)
    assert usersctl("token", "create", *words).code == code
    assert usersctl.ok("token", "list", "--json").stdout == "[]\n"


@pytest.mark.parametrize(
    "words",
    [
        ["--scope", "users:read", "--scope", "me", "--ip", "10.0.0.0/8", "--ip", "2001:db8::/32"],
        ["--scope", "me, users:read", "--ip", "2001:DB8::/32,10.0.0.0/8"],
    ],
    ids=["repeated", "with commas"],
)
def test_a_token_has_scopes_and_ranges(usersctl: Command, words: list[str]) -> None:
    usersctl.add("ada")
    done = usersctl.ok("token", "create", "1", "--no-expiry", *words)
    assert "Scopes: users:read me; works from: 10.0.0.0/8 2001:db8::/32" in done.stderr
    (listed,) = usersctl.ok("token", "list", "--json").json
    assert (listed["scopes"], listed["ranges"]) == (["users:read", "me"], ["10.0.0.0/8", "2001:db8::/32"])
    table = usersctl.ok("token", "list")
    assert table.stdout.splitlines()[0].split("\t")[-3:] == ["email", "scopes", "ranges"]
    assert table.rows[0][-2:] == ["users:read me", "10.0.0.0/8 2001:db8::/32"]
    assert "users:read me" in usersctl.on_terminal("token", "list", columns=180).text
    with usersctl.service() as service:
        token = done.stdout.strip()
        assert service.sessions.check(token, caller=Client("10.9.9.9")) is not None
        assert service.sessions.check(token, caller=Client("192.0.2.7")) is None


def test_a_token_without_scopes_and_ranges_says_so_in_json(usersctl: Command) -> None:
    usersctl.add("ada")
    made = usersctl.ok("token", "create", "1", "--no-expiry", "--json").json
    assert (made["scopes"], made["ranges"]) == (None, None)
    assert "scopes" not in usersctl.on_terminal("token", "list", columns=180).text


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--scope", "users"], "'users' is no scope: there are users:read, users:write,"),
        (["--scope", "users:raed"], "did you mean users:read?"),
        (["--scope", "me,"], "'' is no scope"),
        (["--scope", ""], "'' is no scope"),
        (["--ip", "10.0.0.1/8"], "Not an address or range: '10.0.0.1/8'; the range is 10.0.0.0/8"),
        (["--ip", "unix"], "write 192.0.2.7, 10.0.0.0/8 or 2001:db8::/32"),
        (["--ip", ""], "Not an address or range: ''"),
    ],
)
def test_an_unknown_scope_or_range_creates_no_token(usersctl: Command, words: list[str], said: str) -> None:
    usersctl.add("ada")
    done = usersctl("token", "create", "1", "--no-expiry", *words)
    assert (done.code, done.stdout) == (2, "")
    assert said in done.stderr
    assert usersctl.ok("token", "list", "--json").json == []


def test_the_audit_trail_has_the_limits_of_a_token_and_never_the_token(usersctl: Command) -> None:
    usersctl.add("ada")
    token = usersctl.ok(
        "token", "create", "1", "--no-expiry", "--scope", "tasks", "--ip", "::1"
    ).stdout.strip()
    done = usersctl.ok("audit", "--action", "create-token", "--json")
    assert done.json[-1]["details"]["scopes"] == "tasks"
    assert done.json[-1]["details"]["ranges"] == "::1/128"
    assert token not in done.stdout


def test_token_list_shows_all_tokens_or_those_of_one_user(with_tokens: Command) -> None:
    with_tokens.add("eve")
    assert [row[0] for row in with_tokens.ok("token", "list").rows] == ["3", "4"]
    assert with_tokens.ok("token", "list", "eve@example.com", "--json").json == []
    assert len(with_tokens.ok("token", "list", "1", "--json").json) == 2
    assert with_tokens("token", "list", "9").code == 3


def test_tokens_are_revoked_by_user_or_by_id(with_tokens: Command) -> None:
    with_tokens.add("eve")
    assert with_tokens.ok("token", "revoke", "--id", "3").stdout == "Revoked token 3 of user 1\n"
    for number in ("3", "0", "-1", "9" * 30, "-" + "9" * 30):
        done = with_tokens("token", "revoke", "--id", number)
        assert (done.code, done.stdout) == (3, ""), number
        assert done.stderr == f"usersctl: No token {int(number)}\n  see: usersctl token list\n"
    done = with_tokens.ok("token", "revoke", "ada@example.com", "2")
    assert done.stdout == "Revoked 3 tokens of ada@example.com\nRevoked 0 tokens of eve@example.com\n"
    assert with_tokens.ok("token", "revoke", "-", "--json", stdin="1\n2\n").json == {"revoked": 0}


def test_of_two_ids_of_tokens_none_is_passed_over(with_tokens: Command) -> None:
    before = len(with_tokens.ok("token", "list", "--json").json)
    refused = with_tokens("token", "revoke", "--id", "2", "--id", "3")
    told = "usersctl: --id is for one token\n  revoke each with a command of its own\n"
    assert (refused.code, refused.stdout, refused.stderr) == (2, "", told)
    assert len(with_tokens.ok("token", "list", "--json").json) == before


def test_a_number_that_may_be_meant_as_the_id_of_a_token_is_told_to_be_of_a_user(usersctl: Command) -> None:
    usersctl.add("ada", "bob")
    usersctl.ok("token", "create", "1", "--no-expiry")
    usersctl.ok("token", "create", "1", "--no-expiry")
    done = usersctl.ok("token", "revoke", "2")
    assert done.stdout == "Revoked 0 tokens of bob@example.com\n"
    assert done.stderr == "A number is the id of a user; for a token: usersctl token revoke --id N\n"
    assert usersctl.ok("token", "revoke", "bob@example.com").stderr == ""
    assert usersctl.ok("token", "revoke", "1").stderr == ""


def test_revoke_needs_users_or_one_id(usersctl: Command) -> None:
    usersctl.add("ada")
    assert usersctl("token", "revoke").code == 2
    assert usersctl("token", "revoke", "1", "--id", "1").code == 2
    assert usersctl("token", "revoke", "--id", "one").code == 2


# --- the trail ---


def test_audit_filters_by_time_and_by_user_also_a_deleted_one(usersctl: Command) -> None:
    usersctl.add("ada", "eve")
    usersctl.ok("delete", "1", "--yes")
    actions = [row["action"] for row in usersctl.ok("audit", "--user", "ADA@example.com", "--json").json]
    assert actions == ["create", "delete"]
    assert [row[4] for row in usersctl.ok("audit", "--user", "1").rows] == actions
    assert len(usersctl.ok("audit", "--since", "1h").rows) == 3
    assert usersctl.ok("audit", "--since", "2999-01-01", "--json").stdout == "[]\n"
    assert usersctl("audit", "--user", "nobody@example.com").code == 3
    usersctl.ok("update", "2", "--name", "Eve L")
    for typed in ("2\n", "EVE@example.com\n"):
        rows = usersctl.ok("audit", "--user", "-", "--json", stdin=typed).json
        assert [row["action"] for row in rows] == ["create", "update"]
    done = usersctl("audit", "--user", "-", stdin="nobody@example.com\n")
    assert done.stderr == (
        "usersctl: No user 'nobody@example.com', now or earlier\n  look for it with: usersctl list --search TEXT\n"
    )


def test_audit_filters_by_action_and_shows_the_newest_rows(usersctl: Command) -> None:
    usersctl.add("ada", "eve", "bob")
    usersctl.ok("update", "2", "--name", "Eve L")
    assert [row[5] for row in usersctl.ok("audit", "--action", "create").rows] == ["1", "2", "3"]
    assert [row[0] for row in usersctl.ok("audit", "--limit", "2").rows] == ["3", "4"]
    assert [row["id"] for row in usersctl.ok("audit", "--limit", "2", "--json").json] == [3, 4]
    newest = usersctl.ok("audit", "--limit", "1", "--action", "create", "--jsonl").json
    assert (newest["id"], newest["action"]) == (3, "create")
    refused = usersctl("audit", "--action", "crete", "--json")
    assert (refused.code, refused.stdout, refused.error["hint"]) == (2, "", "did you mean create?")
    assert refused.error["message"].startswith("action must be one of accept-invitation, ")
    assert usersctl("audit", "--follow", "--action", "nothing").code == 2
    assert usersctl.ok("audit", "--action", "lockdown-on", "--json").json == []
    assert len(usersctl.ok("audit", "--limit", "9" * 30).rows) == 4
    assert usersctl("audit", "--limit", "0").code == 2
    assert usersctl("audit", "--limit", "1", "--follow").code == 2
    assert usersctl("audit", "--limit", "1", "verify").code == 2


def test_addresses_stand_beside_ids_in_audit_and_token_list(usersctl: Command) -> None:
    ada, eve = usersctl.add("ada", "eve", role="admin")
    with usersctl.service() as service:
        opened = open_session(service, ada)
        service.accounts.update(eve.id, name="Eve L", by=author(opened))
    (row,) = usersctl.ok("audit", "--action", "update", "--json").json
    assert (row["actor"], row["actor_email"], row["email"]) == (f"user:{ada.id}", ada.email, eve.email)
    assert usersctl.ok("audit", "--action", "update").rows[0][-1] == ada.email
    shown = usersctl.on_terminal("audit", "--action", "update", columns=120).text
    assert f"user:{ada.id} {ada.email}" in shown
    assert f"{eve.id} {eve.email}" in shown
    (token,) = usersctl.ok("token", "list", "--json").json
    assert (token["user_id"], token["email"]) == (ada.id, ada.email)
    listed = usersctl.ok("token", "list")
    assert (
        dict(zip(listed.stdout.splitlines()[0].split("\t"), listed.rows[0], strict=True))["email"]
        == ada.email
    )
    assert f"{ada.id} {ada.email}" in usersctl.on_terminal("token", "list", columns=120).text


def test_audit_verify_counts_one_row_in_the_singular(usersctl: Command) -> None:
    usersctl.add("ada")
    assert usersctl.ok("audit", "verify").stdout.startswith("1 row, unbroken up to ")
    usersctl.ok("update", "1", "--name", "Ada L")
    assert usersctl.ok("audit", "verify").stdout.startswith("2 rows, unbroken up to ")
    by_hand(
        usersctl.database,
        "UPDATE audit SET action = 'delete' WHERE id = 2",
    )
    done = usersctl("audit", "verify")
    assert (done.code, done.stderr.partition(" up to ")[0]) == (7, "Unbroken: 1 row")


@pytest.mark.parametrize("when", ["yesterday", "7", "0001-01-01T00:00:00+14:00", "9999999y", ""])
def test_an_invalid_time_is_misuse(usersctl: Command, when: str, tmp_path: Path) -> None:
    usersctl.ok("db", "init", "--db", tmp_path / "users.db")
    done = usersctl("audit", "--since", when)
    assert done.code == 2
    assert "7d" in done.stderr
