"""Second factors for operators: listed, taken away, and the key that seals the secrets of authenticator apps."""

from pathlib import Path

import pytest
from support.accounts import open_session
from support.commands import OPERATOR, PASSWORD, Command
from support.factors import SEED, add_authenticator_apps, add_factors, opened_secrets
from support.tables import audit, everything, query

from usersctl.models import Client
from usersctl.sessions import Opened

# --- shown ---


def test_the_factors_of_a_user_are_listed(usersctl: Command) -> None:
    usersctl.add("ada", "bob")
    with usersctl.service() as service:
        add_factors(service, 1)
    listed = usersctl.ok("factor", "list", "ada@example.com", "--json").json
    assert listed["totp"]["enabled"] is True
    assert [passkey["name"] for passkey in listed["passkeys"]] == ["Phone", "Laptop"]
    assert listed["recoveryCodes"] == 10
    done = usersctl.ok("factor", "list", "1")
    assert [row[0] for row in done.rows] == ["authenticator app", "passkey", "passkey"]
    assert [row[2] for row in done.rows] == ["", "Phone", "Laptop"]
    assert done.stderr == "10 recovery codes left\n"
    assert usersctl.ok("factor", "list", "bob@example.com").rows == []
    none = {"totp": {"enabled": False, "created_at": None}, "passkeys": [], "recoveryCodes": 0}
    assert usersctl.ok("factor", "list", "2", "--json").json == none
    assert usersctl("factor", "list", "eve@example.com").code == 3


def test_show_tells_of_second_factors(usersctl: Command) -> None:
    usersctl.add("ada", "bob")
    with usersctl.service() as service:
        add_factors(service, 1)
    line = "second_factors\tauthenticator app, 2 passkeys, 10 recovery codes\n"
    assert line in usersctl.ok("show", "1").stdout
    assert "second_factors" not in usersctl.ok("show", "2").stdout
    assert "factor" not in usersctl.ok("show", "1", "--json").stdout  # the user object of the interface


def test_accounts_without_a_second_factor_are_listed(usersctl: Command) -> None:
    usersctl.add("ada", "bob", "carol")
    usersctl.add("eve", role="admin")
    with usersctl.service() as service:
        add_authenticator_apps(service, 1, 4)

    def listed(*words: str) -> list[str]:
        return [user["name"] for user in usersctl.ok("list", "--no-factor", "--json", *words).json]

    assert listed() == ["Bob", "Carol"]
    assert listed("--desc") == ["Carol", "Bob"]
    assert listed("--limit", "1", "--page", "2") == ["Carol"]
    assert listed("--search", "bob") == ["Bob"]
    assert listed("--role", "admin") == []
    assert "2 users" in usersctl.on_terminal("list", "--no-factor").text


# --- taken away ---


def test_a_reset_takes_all_factors_away_and_ends_all_sessions(usersctl: Command) -> None:
    usersctl.add("ada", "bob")
    with usersctl.service() as service:
        open_session(service, service.accounts.get(1), remember=True)
        open_session(service, service.accounts.get(2), remember=True)
        add_factors(service, 1)
    done = usersctl.ok("factor", "reset", "ada@example.com")
    assert done.stdout == (
        "Removed the authenticator app, 2 passkeys, 10 recovery codes of ada@example.com; its sessions have ended\n"
    )
    with usersctl.service() as service:
        assert query(service, "SELECT user_id FROM auth_tokens") == [(2,)]
        assert query(service, "SELECT factors FROM users WHERE id = 1") == [(0,)]
        rows = everything(service)
        assert [table for table in ("totp_secrets", "passkeys", "recovery_codes") if rows[table]] == []
        assert query(service, "SELECT kind, email FROM outbox") == [("factors-reset", "ada@example.com")]
        last = audit(service)[-1]
        assert (last.action, last.user_id) == ("reset-factors", 1)
        assert last.actor.startswith("cli:")
        assert last.details == {"totp": True, "passkeys": 2, "codes": 10, "ended": 1}


def test_a_reset_is_of_the_chosen_kinds_and_codes_end_with_the_last_factor(usersctl: Command) -> None:
    usersctl.add("ada")
    with usersctl.service() as service:
        add_factors(service, 1)
    done = usersctl.ok("factor", "reset", "1", "--codes", "--json").json
    assert done == {"id": 1, "email": "ada@example.com", "totp": False, "passkeys": 0, "codes": 10}
    with usersctl.service() as service, service.store.write() as tx:
        tx.add_recovery_codes(1, [b"a", b"b"])
    done = usersctl.ok("factor", "reset", "1", "--totp", "--json").json
    assert (done["totp"], done["passkeys"], done["codes"]) == (True, 0, 0)
    assert usersctl.ok("factor", "list", "1", "--json").json["recoveryCodes"] == 2
    done = usersctl.ok("factor", "reset", "1", "--passkeys", "--json").json
    assert (done["totp"], done["passkeys"], done["codes"]) == (False, 2, 2)


def test_a_reset_without_anything_to_take_away_changes_nothing(usersctl: Command) -> None:
    usersctl.add("ada")
    with usersctl.service() as service:
        open_session(service, service.accounts.get(1), remember=True)
        rows = len(audit(service))
    done = usersctl.ok("factor", "reset", "1")
    assert done.stdout == "ada@example.com has no factor to remove; nothing to do\n"
    with usersctl.service() as service:
        assert len(query(service, "SELECT * FROM auth_tokens")) == 1
        assert len(audit(service)) == rows
        assert query(service, "SELECT * FROM outbox") == []
    assert usersctl("factor", "reset", "eve@example.com").code == 3
    assert usersctl("factor", "reset", "1", "--everything").code == 2


def test_a_reset_forgets_devices(usersctl: Command) -> None:
    usersctl.add("ada")
    with usersctl.service() as service:
        opened = service.sessions.login("ada@example.com", PASSWORD)
        assert isinstance(opened, Opened)
        known = Client(devices=(service.devices.cookie((), 1, opened.session.created_at),))
        add_authenticator_apps(service, 1)
        assert service.sessions.is_known_device("ada@example.com", known)
        usersctl.ok("factor", "reset", "1")
        assert not service.sessions.is_known_device("ada@example.com", known)


# --- the key ---


@pytest.mark.sqlite  # the key of a server is configured
def test_a_rotation_seals_all_secrets_with_a_new_key(usersctl: Command) -> None:
    usersctl.add("ada", "bob")
    with usersctl.service() as service:
        add_authenticator_apps(service, 1, 2)
    key = usersctl.folder / "users.key"
    before = key.read_text().splitlines()
    done = usersctl.ok("key", "rotate")
    assert done.stdout == "Sealed 2 secrets anew\n"
    assert done.stderr == f"{key} has a new first line: keep a copy of the file apart from the backups\n"
    assert key.read_text().splitlines()[1:] == before
    assert usersctl.ok("key", "rotate", "--json").json == {"sealed": 2, "unreadable": 0, "file": str(key)}
    with usersctl.service() as service:
        assert opened_secrets(service) == [SEED] * 2
    for line in key.read_text().splitlines():
        assert line not in done.stdout + done.stderr


@pytest.mark.sqlite  # the key of a server is configured
def test_a_rotation_before_the_first_app_makes_no_key(usersctl: Command) -> None:
    usersctl.add("ada")
    key = usersctl.folder / "users.key"
    done = usersctl.ok("key", "rotate")
    assert done.stdout == f"There is no key yet: the first authenticator app makes {key}; nothing to do\n"
    assert done.stderr == ""
    assert usersctl.ok("key", "rotate", "--json").json == {"sealed": 0, "unreadable": 0, "file": None}
    assert not key.exists()


@pytest.mark.sqlite  # the key of a server is configured
def test_a_rotation_to_a_configured_key(usersctl: Command) -> None:
    usersctl.add("ada")
    old, new = "old key " * 5, "new key " * 5
    (usersctl.folder / "old").write_text(old)
    (usersctl.folder / "both").write_text(f"{new}\n{old}\n")
    with usersctl.service() as service:
        add_authenticator_apps(service, 1)
    file = usersctl.folder / "users.key"
    env = {"USERS_SECRET_KEY_FILE": str(usersctl.folder / "old")}
    assert usersctl.ok("key", "rotate", "--json", env=env).json == {
        "sealed": 1,
        "unreadable": 0,
        "file": None,
    }
    file.unlink()
    env = {"USERS_SECRET_KEY_FILE": str(usersctl.folder / "both")}
    done = usersctl.ok("key", "rotate", env=env)
    assert (done.stdout, done.stderr) == ("Sealed 1 secret anew\n", "")
    assert usersctl.ok("key", "rotate", "--json", env=env).json["sealed"] == 0
    assert not file.exists()


@pytest.mark.sqlite  # the key of a server is configured
def test_a_rotation_tells_of_secrets_that_no_key_opens(usersctl: Command) -> None:
    usersctl.add("ada")
    with usersctl.service() as service:
        add_authenticator_apps(service, 1)
    key = usersctl.folder / "users.key"
    key.unlink()
    done = usersctl("key", "rotate")
    assert done.code == 6
    assert f"{key} is missing" in done.stderr
    assert "set auth.secretKey for this command, too" in done.stderr
    assert not key.exists()
    key.write_text("another key " * 4)
    done = usersctl("key", "rotate")
    assert (done.code, done.stdout) == (7, "Sealed 0 secrets anew\n")
    assert "No key opens 1 secret, which stay as they are; see: usersctl doctor\n" in done.stderr
    key.write_text("short\n")
    done = usersctl("key", "rotate")
    assert done.code == 6
    assert "users.key must be a secret of at least 32 characters" in done.stderr


@pytest.mark.sqlite  # the key of a server is configured
def test_a_key_is_in_no_output_log_or_backup(usersctl: Command, tmp_path: Path) -> None:
    usersctl.add("ada", role="admin")
    with usersctl.service() as service:
        add_authenticator_apps(service, 1)
    (key,) = (usersctl.folder / "users.key").read_text().split()
    configured = "planted key of more than 32 characters"
    shown = [
        usersctl(*words, env={"USERS_SECRET_KEY": configured})
        for words in (
            ("config", "show", "--origin"),
            ("config", "check"),
            ("doctor", "--debug"),
            ("factor", "list", "1"),
            ("why", "1"),
            ("key", "rotate", "--debug"),
            ("audit",),
        )
    ]
    assert 'auth.secretKey = "***"' in shown[0].stdout
    usersctl.ok("db", "backup", tmp_path / "backup.db")
    texts = [(done.stdout + done.stderr).encode() for done in shown]
    texts += [
        path.read_bytes() for path in tmp_path.iterdir() if path.name.startswith(("users.db", "backup"))
    ]
    for secret in (key, configured):
        assert [text for text in texts if secret.encode() in text] == []
    assert SEED not in b"".join(texts)
    assert (usersctl.folder / "users.key").stat().st_mode & 0o777 == 0o600


@pytest.mark.sqlite  # the key of a server is configured
def test_each_command_that_why_and_doctor_suggest_is_for_the_database_that_was_asked_about(
    usersctl: Command,
) -> None:
    usersctl.add("ada", role="admin")
    with usersctl.service() as service:
        add_authenticator_apps(service, 1)
    on_this = ("--db", usersctl.database)
    (gate,) = [
        gate
        for gate in usersctl("why", "1", "--json", *on_this).json["gates"]
        if gate["name"] == "second-factor"
    ]
    assert gate["mend"] == f"if all are lost: usersctl factor reset 1 --db {usersctl.database}"
    (usersctl.folder / "users.key").unlink()
    findings = usersctl("doctor", "--json", *on_this).json
    assert f"usersctl factor reset USER --totp --db {usersctl.database}" in str(findings)


@pytest.mark.slow
def test_the_other_ways_of_an_account_leave_its_factors_alone(usersctl: Command) -> None:
    usersctl.add("ada")
    with usersctl.service() as service:
        add_factors(service, 1)
    usersctl.ok("set-password", "1", "--generate")
    usersctl.ok("unlock", "1")
    usersctl.ok("deactivate", "1")
    usersctl.ok("activate", "1")
    usersctl.ok("link", "reset", "1")
    usersctl.ok("token", "create", "1", "--no-expiry")
    assert len(usersctl.ok("factor", "list", "1").rows) == 3
    exported = usersctl.ok("export", "--format", "json", "--with-hashes").stdout
    assert "factor" not in exported
    assert "passkey" not in exported
    with usersctl.service() as service:
        service.accounts.delete([1], by=OPERATOR)
        rows = everything(service)
        assert [table for table in ("totp_secrets", "passkeys", "recovery_codes") if rows[table]] == []
